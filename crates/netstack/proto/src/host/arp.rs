//! ARP (RFC 826), and the defence of our addresses (RFC 5227).

use crate::host::{IpHost, News};
use crate::ip::neighbor::Learned;
use crate::ip::route::Site;
use crate::packet as wire;
use crate::packet::flow::{Address, Mac};
use crate::time::{Duration, Instant};

/// Time between two announcements (RFC 5227 section 1.1).
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);
/// The number of announcements.
const ANNOUNCEMENTS: u32 = 2;
/// The least time between two defences of an address (RFC 5227 section 1.1).
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// The state of our claim to an address.
#[derive(Debug)]
struct Claim {
    address: Address,
    /// Announcements so far, and the time of the next one.
    announced: u32,
    next: Instant,
    /// The time of the latest defence.
    defended: Option<Instant>,
}

/// The claims to all addresses of IPv4 that we have.
#[derive(Debug)]
pub(super) struct Claims {
    all: Vec<Claim>,
    /// When one is due.
    next: Instant,
}

impl Default for Claims {
    fn default() -> Self {
        Claims {
            all: Vec::new(),
            next: Instant::NEVER,
        }
    }
}

impl Claims {
    /// Claims an address, from the beginning if it was claimed before. The first announcement is
    /// due then.
    fn begin(&mut self, address: Address, next: Instant) {
        self.end(address);
        self.all.push(Claim {
            address,
            announced: 0,
            next,
            defended: None,
        });
        self.next = self.next.min(next);
    }

    fn end(&mut self, address: Address) {
        self.all.retain(|claim| claim.address != address);
    }

    /// An address whose announcement is due, if one is.
    fn take_due(&mut self, now: Instant) -> Option<Address> {
        let due = self.all.iter_mut().find(|claim| claim.next <= now);
        let due = due.map(|claim| {
            claim.announced += 1;
            claim.next = match claim.announced {
                ANNOUNCEMENTS.. => Instant::NEVER,
                _ => now + ANNOUNCE_INTERVAL,
            };
            claim.address
        });
        let next = self.all.iter().map(|claim| claim.next);
        self.next = next.min().unwrap_or(Instant::NEVER);
        due
    }

    /// Whether an address that another host uses may be defended now: then it is.
    fn defend(&mut self, address: Address, now: Instant) -> bool {
        let mut claims = self.all.iter_mut();
        let Some(claim) = claims.find(|claim| claim.address == address) else {
            return false;
        };
        let is_due = |last: Instant| last + DEFEND_INTERVAL <= now;
        let may = claim.defended.is_none_or(is_due);
        if may {
            claim.defended = Some(now);
        }
        may
    }

    /// When the next announcement is due.
    pub(super) fn next_announcement(&self) -> Instant {
        self.next
    }
}

/// The meaning of an ARP message for a host or a router (RFC 826).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArpMeaning {
    /// No host sends it.
    Martian,
    /// It comes from an address of ours.
    FromUs,
    /// It comes from a neighbour, or from a host without an address.
    Message {
        /// Whether its sender is a neighbour that can be remembered.
        is_neighbor: bool,
        /// Whether it is for an address of ours, or one for which we answer.
        for_us: bool,
        /// The answer, if it wants one.
        reply: Option<Vec<u8>>,
    },
}

impl ArpMeaning {
    /// The meaning of `arp` for a host at `site` with the link-layer address `mac`.
    pub fn of(arp: &wire::Arp, site: &Site, mac: [u8; 6]) -> Self {
        // A host without an address asks whether one is in use (RFC 5227 section 2.1.1).
        let is_probe = arp.sender.is_unspecified();
        let is_ours = site.is_own_v4(arp.sender);
        let ends = (arp.sender, arp.target);
        if arp.sender_mac[0] & 1 != 0 || !is_probe && !is_ours && site.is_martian(ends) {
            return ArpMeaning::Martian;
        }
        if is_ours {
            return ArpMeaning::FromUs;
        }
        // A host that asks whether an address is in use, or announces its own, keeps it.
        let may_answer = arp.request && !is_probe && arp.sender != arp.target;
        let for_us = site.is_own_v4(arp.target) || may_answer && site.answers_for(arp.target);
        let reply = || wire::arp_frame(mac, arp.target, Some(arp.sender_mac), arp.sender);
        ArpMeaning::Message {
            // A host of another network is no neighbour.
            is_neighbor: !is_probe && site.next_hop(arp.sender) == Some(arp.sender),
            for_us,
            reply: (arp.request && for_us).then(reply),
        }
    }
}

/// A frame from `own` that asks for the link-layer address of `address`: by broadcast or multicast,
/// or the host with `mac`. `None` if we have no source address, because no answer could arrive.
pub fn question(site: &Site, own: [u8; 6], address: Address, mac: Option<Mac>) -> Option<Vec<u8>> {
    let mac = mac.map(|mac| mac.0);
    let source = site.source(address)?;
    if !address.is_v4() {
        return Some(wire::ndp::solicitation(own, source, mac, address));
    }
    let mut frame = wire::arp_frame(own, source, None, address);
    if let Some(mac) = mac {
        wire::set_link_dst(&mut frame, mac);
    }
    Some(frame)
}

impl IpHost {
    /// Announces our addresses from the beginning: the link may be another one.
    pub fn announce_again(&mut self, now: Instant) {
        let next = self.first_announcement(now);
        for own in self.site.places_v4() {
            self.claims.begin(own.address, next);
        }
    }

    /// When an address is announced that is claimed now, if that is configured.
    fn first_announcement(&self, now: Instant) -> Instant {
        match self.announce && self.neighbors.asks() {
            true => now,
            false => Instant::NEVER,
        }
    }

    /// Announces an address that we have from now on.
    pub fn claim(&mut self, address: Address, now: Instant) {
        let next = self.first_announcement(now);
        self.claims.begin(address, next);
    }

    /// An address is ours no longer.
    pub fn end_claim(&mut self, address: Address) {
        self.claims.end(address);
    }

    /// Announces an address of ours to all hosts, if that is due (RFC 5227 section 2.3). Each turn
    /// one: the device may not take all at once.
    pub(super) fn announce_if_due(&mut self, now: Instant) {
        if let Some(address) = self.claims.take_due(now) {
            self.request_address(address, None);
        }
    }

    /// Learns the sender's address, and answers requests for ours.
    pub fn arp(&mut self, now: Instant, arp: &wire::Arp) {
        if !self.neighbors.asks() {
            self.stats.unknown += 1;
            return;
        }
        self.dhcp_hears_arp(now, arp);
        let meaning = ArpMeaning::of(arp, &self.site, self.mac);
        self.stats.arp += u64::from(meaning != ArpMeaning::Martian);
        match meaning {
            ArpMeaning::Martian => self.stats.martians += 1,
            ArpMeaning::FromUs => self.conflict(now, arp.sender, Mac(arp.sender_mac)),
            ArpMeaning::Message {
                is_neighbor,
                for_us,
                reply,
            } => {
                if is_neighbor {
                    let mac = Mac(arp.sender_mac);
                    let learned = self.neighbors.learn(arp.sender, mac, for_us, now);
                    self.learned((arp.sender, mac), learned);
                }
                self.frames.extend(reply.filter(|_| self.is_first));
            }
        }
    }

    /// Does what follows from a message of a neighbour that has `mac`.
    pub(super) fn learned(&mut self, (neighbor, mac): (Address, Mac), learned: Learned<Vec<u8>>) {
        let Learned {
            opens,
            frames,
            moved,
            is_move_rejected,
        } = learned;
        self.news.push_back(News::Heard(neighbor));
        self.stats.neighbor_moves_rejected += u64::from(is_move_rejected);
        let resolved = opens.into_iter().map(|open| News::Resolved(open, mac));
        self.news.extend(resolved);
        self.deliver(frames, mac);
        self.news.extend(moved.map(|_| News::Moved(neighbor)));
    }

    /// Another host uses an address of ours. We keep it and defend it, at most every ten seconds
    /// (RFC 5227 section 2.4, (c)).
    fn conflict(&mut self, now: Instant, address: Address, mac: Mac) {
        if mac.0 == self.mac || !self.is_first {
            return;
        }
        self.stats.conflicts += 1;
        if self.claims.defend(address, now) {
            self.request_address(address, None);
        }
    }
}
