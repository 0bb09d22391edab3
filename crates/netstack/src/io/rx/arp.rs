//! ARP in the receive pump (RFC 826), and the defence of our addresses (RFC 5227).

use crate::io::rx::RxPump;
use crate::ip::neighbor::Learned;
use crate::log::request::{Address, Mac};
use crate::packet as wire;
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
pub(crate) struct Claims {
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

    pub(crate) fn next_announcement(&self) -> Instant {
        self.next
    }
}

impl RxPump {
    /// Announces our addresses from the beginning: the link may be another one.
    pub(super) fn announce_again(&mut self, now: Instant) {
        let next = self.first_announcement(now);
        for own in self.site.places_v4() {
            self.claims.begin(own.address, next);
        }
    }

    /// When an address is announced that is claimed now, if that is configured.
    fn first_announcement(&self, now: Instant) -> Instant {
        match self.announce {
            true => now,
            false => Instant::NEVER,
        }
    }

    /// Announces an address that we have from now on.
    pub(super) fn claim(&mut self, address: Address, now: Instant) {
        let next = self.first_announcement(now);
        self.claims.begin(address, next);
    }

    /// An address is ours no longer.
    pub(super) fn end_claim(&mut self, address: Address) {
        self.claims.end(address);
    }

    /// Announces an address of ours to all hosts, if that is due (RFC 5227 section 2.3). Each turn
    /// one: the device may not take all at once.
    pub(crate) fn announce_if_due(&mut self, now: Instant) {
        if self.claims.next_announcement() > now {
            return;
        }
        if let Some(address) = self.claims.take_due(now) {
            self.request_address(address, None);
        }
    }

    /// RFC 826: learns the sender's address, and answers requests for ours.
    pub(crate) fn arp(&mut self, now: Instant, arp: &wire::Arp) {
        let mac = Mac(arp.sender_mac);
        // A host without an address asks whether one is in use (RFC 5227 section 2.1.1).
        let is_probe = arp.sender.is_unspecified();
        let is_ours = self.site.is_own_v4(arp.sender);
        let ends = (arp.sender, arp.target);
        if mac.0[0] & 1 != 0 || !is_probe && !is_ours && self.site.is_martian(ends) {
            self.stats.martians += 1;
            return;
        }
        self.stats.arp += 1;
        if is_ours {
            return self.conflict(now, arp.sender, mac);
        }
        let for_us = self.site.is_own_v4(arp.target);
        // A host of another network is no neighbour.
        if !is_probe && self.site.next_hop(arp.sender) == Some(arp.sender) {
            self.learn(now, arp, for_us);
        }
        if arp.request && for_us && self.group.is_first() {
            let (own, to) = (self.world.mac, Some(arp.sender_mac));
            self.control(wire::arp_frame(own, arp.target, to, arp.sender));
        }
    }

    fn learn(&mut self, now: Instant, arp: &wire::Arp, for_us: bool) {
        let mac = Mac(arp.sender_mac);
        let learned = self.neighbors.learn(arp.sender, mac, for_us, now);
        self.routes_to(arp.sender, now);
        self.learned((arp.sender, mac), learned);
    }

    /// Does what follows from learning that a neighbour has `mac`.
    pub(crate) fn learned(&mut self, (neighbor, mac): (Address, Mac), learned: Learned<Vec<u8>>) {
        let Learned {
            opens,
            frames,
            moved,
            is_move_rejected,
        } = learned;
        self.stats.neighbor_moves_rejected += u64::from(is_move_rejected);
        self.opens.extend(opens.into_iter().map(|open| (open, mac)));
        self.deliver(frames, mac);
        if moved.is_some() {
            self.neighbor_moved(neighbor);
        }
    }

    /// Another host uses an address of ours. We keep it and defend it, at most every ten seconds
    /// (RFC 5227 section 2.4, (c)).
    fn conflict(&mut self, now: Instant, address: Address, mac: Mac) {
        if mac.0 == self.world.mac || !self.group.is_first() {
            return;
        }
        self.stats.conflicts += 1;
        if self.claims.defend(address, now) {
            self.request_address(address, None);
        }
    }
}
