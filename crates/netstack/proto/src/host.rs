//! An IP host below TCP and UDP: neighbours, addresses, echo, errors, fragments and groups.
//!
//! An [`IpHost`] sees no device and no clock. Its owner passes frames and the time, sends the
//! frames that the host makes ([`IpHost::take_frame`]), and handles its events
//! ([`IpHost::take_news`]). Nothing of this is replicated or in the log.

mod arp;
mod dhcp;
mod multicast;
mod ndp;
mod network;
mod paths;

use std::collections::VecDeque;

pub use arp::{ArpMeaning, question};
pub use dhcp::{DhcpConfig, Lease};
pub use network::Left;

use crate::host::arp::Claims;
use crate::host::dhcp::DhcpClient;
use crate::host::ndp::LinkState;
use crate::ip::identification::Identifications;
use crate::ip::multicast::Memberships;
use crate::ip::neighbor::{Cause, Neighbors, Overdue, WaitingOpen};
use crate::ip::pmtu::PathMtus;
use crate::ip::rate_limit::{Rate, RateLimit};
use crate::ip::reassembly::{Reassembly, ReassemblyLimits};
use crate::ip::route::{AddressKind, Site};
use crate::keys::{KeyUse, Keys};
use crate::log::request::ConnId;
use crate::packet as wire;
use crate::packet::flow::{Address, Mac};
use crate::stats::PumpStats;
use crate::time::Instant;

/// The initial values of a host.
#[derive(Clone, Debug)]
pub struct IpHostConfig {
    /// Its link-layer address.
    pub mac: [u8; 6],
    /// The link-layer address of all neighbours, on a link without ARP and neighbour discovery.
    pub fixed_mac: Option<Mac>,
    /// Its addresses and routes.
    pub site: Site,
    /// Key of the numbers that outsiders must not predict.
    pub keys: Keys,
    /// Maximum bytes of a packet on its link.
    pub mtu: u16,
    /// Maximum number of ICMP errors per second.
    pub error_rate: Rate,
    /// Bounds of the fragments that it keeps.
    pub reassembly: ReassemblyLimits,
    /// Bytes of a socket's send ring, all of which may wait for one neighbour.
    pub send_buffer: usize,
}

/// An event that the owner of a host has to handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// The next hop of this open is known.
    Resolved(WaitingOpen, Mac),
    /// A message of this neighbour arrived, or one that names its link-layer address.
    Heard(Address),
    /// This neighbour has another link-layer address than before.
    Moved(Address),
    /// A message arrived that may change our place: see [`IpHost::changed_place`].
    LinkTold,
    /// The place may change, too; the owner checks in its next turn.
    LinkChanges,
    /// [`IpHost::link_deadline`] changed.
    Deadline,
    /// The lease of DHCP changed, or no server gives one.
    Lease,
    /// Packets to ourselves leave.
    Loops,
}

/// An IP host at one link.
#[derive(Debug)]
pub struct IpHost {
    mac: [u8; 6],
    /// Its addresses and routes. When the owner adds an IPv4 address, it calls
    /// [`claim`](Self::claim).
    pub site: Site,
    /// Whether it is the first of the hosts that share its addresses: only the first answers and
    /// reports.
    is_first: bool,
    /// Whether our addresses of IPv4 are announced.
    pub announce: bool,
    /// Whether packets that we sent to ourselves are handled at present.
    pub is_looping: bool,
    keys: Keys,
    mtu: u16,
    /// Link-layer addresses, and what waits for them.
    pub neighbors: Neighbors,
    claims: Claims,
    /// IPv6 on the link, if the host has it.
    link: Option<Box<LinkState>>,
    /// The client of DHCP, if the host has one.
    dhcp: Option<Box<DhcpClient>>,
    /// Datagrams that are not complete yet.
    reassembly: Reassembly,
    error_limit: RateLimit,
    error_rate: Rate,
    /// Identifications of packets outside the log.
    idents: Identifications,
    /// What passes the paths to destinations.
    pub paths: PathMtus,
    /// Which sockets listen to which groups.
    pub groups: Memberships<ConnId>,
    frames: VecDeque<Vec<u8>>,
    news: VecDeque<News>,
    /// Its counters.
    pub stats: PumpStats,
}

impl IpHost {
    /// A host with IPv4. It announces nothing yet.
    pub fn new(config: IpHostConfig) -> Self {
        IpHost {
            mac: config.mac,
            site: config.site,
            is_first: true,
            announce: false,
            is_looping: false,
            keys: config.keys,
            mtu: config.mtu,
            neighbors: Neighbors::new(config.send_buffer).with_fixed_mac(config.fixed_mac),
            claims: Claims::default(),
            link: None,
            dhcp: None,
            reassembly: Reassembly::new(config.reassembly),
            error_limit: RateLimit::new(&config.keys, KeyUse::ErrorLimit),
            error_rate: config.error_rate,
            idents: Identifications::default(),
            paths: PathMtus::default(),
            groups: Memberships::default(),
            frames: VecDeque::new(),
            news: VecDeque::new(),
            stats: PumpStats::default(),
        }
    }

    /// Makes it one of several hosts that share the addresses. Each has other identifications, and
    /// only the first answers frames that reach all of them.
    pub fn share(&mut self, is_first: bool, idents: Identifications) {
        self.is_first = is_first;
        self.idents = idents;
        self.announce &= is_first;
    }

    /// Whether there are frames to send, or news.
    #[inline]
    pub fn has_effects(&self) -> bool {
        !self.frames.is_empty() || !self.news.is_empty()
    }

    /// The oldest frame to send.
    pub fn take_frame(&mut self) -> Option<Vec<u8>> {
        self.frames.pop_front()
    }

    /// The oldest news.
    pub fn take_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    /// When fragments, neighbours or announcements are due.
    pub fn next_deadline(&self) -> Instant {
        let fragments = self.reassembly.next_deadline();
        let announcement = self.claims.next_announcement();
        self.neighbors
            .next_deadline()
            .min(fragments)
            .min(announcement)
    }

    /// Whether a packet to `address` is for us alone.
    pub fn is_ours(&self, address: Address) -> bool {
        self.site.classify(address) == AddressKind::Local
            || self.is_looping && self.site.is_ourselves(address)
            || self.site.takes_any && self.site.takes(address)
    }

    /// Whether no packet between these addresses can come the way that the one at hand came.
    pub fn is_martian(&self, ends: (Address, Address)) -> bool {
        !self.is_looping && self.site.is_martian(ends)
    }

    /// Whether a packet was addressed to all hosts or a group of ours, and sent in a frame for
    /// them.
    pub fn is_to_all(&self, dst: Address, broadcast: bool) -> bool {
        broadcast
            && (self.site.classify(dst) == AddressKind::Broadcast || self.groups.listens_to(dst))
    }

    /// The link-layer address of packets to `remote` that leave for `cause`, if it is known.
    pub fn resolve(&mut self, cause: Cause, now: Instant, remote: Address) -> Option<Mac> {
        if !remote.is_v4() && remote.is_multicast() {
            return Some(Mac(wire::ndp::group_mac(remote)));
        }
        if self.site.classify(remote) == AddressKind::Broadcast {
            return Some(Mac([0xff; 6]));
        }
        if remote.is_multicast() {
            return Some(Mac(wire::igmp::group_mac(remote)));
        }
        let own = self.own_mac_for(remote);
        own.or_else(|| {
            let next_hop = self.site.next_hop(remote)?;
            self.neighbors.lookup_for(cause, next_hop, now)
        })
    }

    /// Our link-layer address, for packets that come back to us, if those to `address` do.
    pub fn own_mac_for(&mut self, address: Address) -> Option<Mac> {
        if !self.site.is_ourselves(address) {
            return None;
        }
        self.news.push_back(News::Loops);
        Some(Mac(self.mac))
    }

    /// Announces an address and gives up fragments, as far as that is due.
    #[inline]
    pub fn on_time(&mut self, now: Instant) {
        if self.reassembly.next_deadline() <= now {
            self.give_up_fragments(now);
        }
        if self.claims.next_announcement() <= now {
            self.announce_if_due(now);
        }
    }

    /// Sends the packet in `frames` to `to`, whose next hop gets its frames. They wait while that
    /// is not known.
    pub fn send_frames(&mut self, now: Instant, cause: Cause, to: Address, frames: Vec<Vec<u8>>) {
        if let Some(mac) = self.resolve(cause, now, to) {
            self.deliver(frames, mac);
        } else if let Some(next_hop) = self.site.next_hop(to) {
            self.hold(now, cause, next_hop, frames);
        } else {
            self.stats.unresolved += 1;
        }
    }

    /// Holds frames for a neighbour that is not known yet, and asks for it.
    pub fn hold(&mut self, now: Instant, cause: Cause, next_hop: Address, frames: Vec<Vec<u8>>) {
        let held = self.neighbors.queue_frames(cause, next_hop, frames, now);
        self.stats.unresolved += held.dropped;
        if held.ask {
            self.request_address(next_hop, None);
        }
    }

    /// Sends frames to a neighbour.
    fn deliver(&mut self, frames: impl IntoIterator<Item = Vec<u8>>, to: Mac) {
        for mut frame in frames {
            wire::set_link_dst(&mut frame, to.0);
            self.control(frame);
        }
    }

    fn control(&mut self, frame: Vec<u8>) {
        self.frames.push_back(frame);
    }

    /// Asks for the link-layer address of `address`: by broadcast or multicast, or the host with
    /// `mac`.
    pub fn request_address(&mut self, address: Address, mac: Option<Mac>) {
        self.frames
            .extend(question(&self.site, self.mac, address, mac));
    }

    /// Asks again for neighbours that do not answer, and gives them up. The result contains the
    /// failed opens and the silent neighbours.
    pub fn ask_again(&mut self, now: Instant) -> Overdue<Vec<u8>> {
        let mut overdue = self.neighbors.on_time(now);
        self.stats.unresolved += overdue.dropped;
        for address in core::mem::take(&mut overdue.ask) {
            self.request_address(address, None);
        }
        for (address, mac) in core::mem::take(&mut overdue.poll) {
            self.request_address(address, Some(mac));
        }
        for address in &overdue.silent {
            self.neighbor_is_silent(*address);
        }
        overdue
    }

    /// The identification of a packet of `protocol` to `destination`.
    pub fn next_ident(&mut self, destination: Address, protocol: u8) -> u32 {
        let one = self.idents.take(destination, protocol, 1);
        match destination.is_v4() {
            true => one.nth(0).into(),
            false => one.nth_wide(0),
        }
    }
}

#[cfg(test)]
mod tests;
