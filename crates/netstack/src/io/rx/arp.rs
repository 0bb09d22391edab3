//! ARP in the receive pump (RFC 826), and the defence of our address (RFC 5227).

use crate::io::rx::{Log, RxPump};
use crate::ip::neighbor::Learned;
use crate::log::request::{Body, Mac};
use crate::packet as wire;
use crate::time::{Duration, Instant};

/// Time between two announcements (RFC 5227 section 1.1).
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);
/// The number of announcements.
const ANNOUNCEMENTS: u32 = 2;
/// The least time between two defences of our address (RFC 5227 section 1.1).
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// The state of our claim to our address.
#[derive(Debug, Default)]
pub(crate) struct Claim {
    /// Announcements so far, and the time of the next one.
    announced: u32,
    next: Option<Instant>,
    /// The time of the latest defence.
    defended: Option<Instant>,
}

impl Claim {
    pub(crate) fn begin(&mut self, now: Instant) {
        self.next = Some(now);
    }

    pub(crate) fn next_announcement(&self) -> Instant {
        self.next.unwrap_or(Instant::NEVER)
    }
}

impl RxPump {
    /// Announces our address from the beginning: it is another one, or the link is.
    pub(super) fn announce_again(&mut self, now: Instant) {
        self.claim = Claim::default();
        self.claim.begin(now);
    }

    /// Announces our address to all hosts, if that is due and configured (RFC 5227 section 2.3).
    pub(crate) fn announce_if_due(&mut self, now: Instant) {
        if self.claim.next.is_none_or(|at| at > now) {
            return;
        }
        self.claim.next = None;
        if self.announce && self.site.has_v4() {
            self.claim.announced += 1;
            if self.claim.announced < ANNOUNCEMENTS {
                self.claim.next = Some(now + ANNOUNCE_INTERVAL);
            }
            self.request_address(self.site.address, None);
        }
    }

    /// RFC 826: learns the sender's address, and answers requests for ours.
    pub(crate) fn arp(&mut self, now: Instant, arp: &wire::Arp, log: &mut impl Log) {
        let mac = Mac(arp.sender_mac);
        // A host without an address asks whether one is in use (RFC 5227 section 2.1.1).
        let is_probe = arp.sender.is_unspecified();
        let is_ours = arp.sender == self.site.address;
        let ends = (arp.sender, arp.target);
        if mac.0[0] & 1 != 0 || !is_probe && !is_ours && self.site.is_martian(ends) {
            self.stats.martians += 1;
            return;
        }
        self.stats.arp += 1;
        if is_ours {
            return self.conflict(now, mac);
        }
        let for_us = arp.target == self.site.address;
        // A host of another network is no neighbour.
        if !is_probe && self.site.next_hop(arp.sender) == Some(arp.sender) {
            self.learn(now, arp, for_us, log);
        }
        if arp.request && for_us && self.group.is_first() {
            let reply = wire::arp_frame(
                self.world.mac,
                self.site.address,
                Some(arp.sender_mac),
                arp.sender,
            );
            self.control(reply);
        }
    }

    fn learn(&mut self, now: Instant, arp: &wire::Arp, for_us: bool, log: &mut impl Log) {
        let mac = Mac(arp.sender_mac);
        let learned = self.neighbors.learn(arp.sender, mac, for_us, now);
        self.learned(now, mac, learned, log);
    }

    /// Does what follows from learning that a neighbour has `mac`.
    pub(crate) fn learned(&mut self, now: Instant, mac: Mac, learned: Learned, log: &mut impl Log) {
        let Learned {
            opens,
            frames,
            moved,
            is_move_rejected,
        } = learned;
        self.stats.neighbor_moves_rejected += u64::from(is_move_rejected);
        self.opens.extend(opens.into_iter().map(|open| (open, mac)));
        for mut frame in frames {
            wire::set_link_dst(&mut frame, mac.0);
            self.control(frame);
        }
        if let Some(old) = moved {
            self.migration.neighbor_changed(old, mac);
            self.publish_command(now, Body::Neighbor { old, new: mac }, log);
        }
    }

    /// Another host uses our address. We keep it and defend it, at most every ten seconds (RFC 5227
    /// section 2.4, (c)).
    fn conflict(&mut self, now: Instant, mac: Mac) {
        if mac.0 == self.world.mac || !self.group.is_first() {
            return;
        }
        self.stats.conflicts += 1;
        let is_due = |last: Instant| last + DEFEND_INTERVAL <= now;
        if self.claim.defended.is_none_or(is_due) {
            self.claim.defended = Some(now);
            self.request_address(self.site.address, None);
        }
    }
}
