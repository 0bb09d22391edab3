//! The IP host in the receive pump: its effects on connections and on the device.
//!
//! It makes *control frames*, which have no frame number: ARP, neighbour discovery, ICMP, IGMP, and
//! datagrams that waited for a neighbour. The transmit pump sends them.
//!
//! One frame may need many frames in answer: a reply of 65,507 bytes takes 1,366 packets of 68. So
//! the queue accepts all answers to one batch; but while it holds more than [`FULL`] bytes, the
//! receive pump takes neither frames nor commands, which wait in the device and in their queues. If
//! the device takes nothing for [`PATIENCE`], the pump resumes, because the other host may be
//! waiting for us in the same way. Frames beyond [`MOST`] bytes are then dropped, and counted.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use crossbeam_queue::SegQueue;
use dominoes_drivers::Frame;

use crate::host::{Left, News};
use crate::io::ClaimedFrames;
use crate::io::rx::{Log, RxPump};
use crate::io::world::Command;
use crate::ip::multicast::Member;
use crate::ip::neighbor::{FRAME_OVERHEAD, WaitingOpen};
use crate::ip::v6::{Ipv6Config, Ipv6Link, SiteV6};
use crate::log::request::ConnId;
use crate::packet::{Packet, ipv6};
use crate::time::{Duration, Instant};

impl RxPump {
    #[inline(never)]
    pub(super) fn perform_host(&mut self, now: Instant) {
        while let Some(mut frame) = self.host.take_frame() {
            ipv6::map_hop_limit(&mut frame, |dst, own| self.world.hop_limit(dst, own));
            if !self.world.control.push(frame) {
                self.stats.control_dropped += 1;
            }
        }
        while let Some(news) = self.host.take_news() {
            match news {
                News::Resolved(open, mac) => self.connections.opens.push_back((open, mac)),
                News::Heard(neighbor) => self.routes_to(neighbor, now),
                News::Moved(neighbor) => self.neighbor_moved(neighbor),
                News::LinkTold => self.take_place(now, true),
                // The next turn takes the change.
                News::LinkChanges => self.v6_due = Instant::ZERO,
                News::Deadline => self.v6_due = self.v6_deadline(),
                News::Lease => self.take_lease(),
                News::Loops => self.world.enable_loopback(),
            }
        }
    }

    /// Handles a packet that is neither a segment nor a datagram. `broadcast`: its frame was sent
    /// to all hosts.
    pub(super) fn packet(
        &mut self,
        now: Instant,
        packet: &Packet,
        broadcast: bool,
        frame: &Frame,
        log: &mut impl Log,
    ) {
        let bytes = frame.bytes();
        match self.with_host(now, |host| host.packet(now, packet, broadcast, bytes)) {
            Left::Nothing => {}
            Left::Whole(bytes) => {
                let frame = Frame::from_bytes(&bytes);
                if self.is_for_this_group(&frame) {
                    self.parse_and_publish(now, &Arc::new(vec![frame]), log);
                } else {
                    self.stats.not_ours += 1;
                }
            }
            Left::EchoReply => self.take_echo_reply(now, frame),
            Left::TooBig { remote, len, mtu } => self.too_big(now, remote, (len, mtu)),
            Left::DatagramError => {
                if let Packet::UdpError { error, dst } = packet {
                    self.datagram_error(now, *dst, error);
                }
            }
            Left::Unknown => {
                if !self.untagged(now, frame, log) {
                    self.stats.unknown += 1;
                }
            }
        }
    }

    /// Handles an IPv6 frame that is not a segment for us.
    pub(super) fn frame_v6(
        &mut self,
        now: Instant,
        (batch, index): (&ClaimedFrames, usize),
        link: ([u8; 6], [u8; 6]),
        log: &mut impl Log,
    ) {
        if let Some(what) = self.host.accept_v6(batch[index].bytes(), link) {
            self.parsed(now, what, (batch, index), log);
        }
    }

    /// A socket starts or stops listening to a multicast group.
    pub(super) fn member(&mut self, now: Instant, member: Member<ConnId>, listens: bool) {
        self.host.groups.change(member, listens, now);
        self.v6_due = self.v6_due.min(self.host.groups.next_deadline());
    }

    pub(super) fn leave_groups(&mut self, now: Instant, socket: ConnId) {
        self.host.groups.leave_all(socket, now);
        self.v6_due = self.v6_due.min(self.host.groups.next_deadline());
    }

    // Our IPv6 addresses and routes.

    /// Enables IPv6. `routes` are all configured routes.
    pub(crate) fn enable_v6(&mut self, config: Ipv6Config, routes: &[crate::ip::route::Route]) {
        if let Some(place) = self.host.enable_v6(config, routes) {
            self.world.set_v6(place);
        }
        // The other groups check in every turn whether our addresses or routes have changed.
        self.v6_due = Instant::ZERO;
    }

    /// When [`turn_v6`](Self::turn_v6) is due.
    pub(super) fn v6_deadline(&self) -> Instant {
        if !self.connections.lost.is_empty() || self.connections.rerouting.is_due() {
            return Instant::ZERO;
        }
        self.host
            .link_deadline()
            .min(self.connections.rerouting.next_deadline())
            .min(self.connections.paths.next_deadline())
            .min(self.host.paths.next_deadline())
    }

    /// Does the due work of lost addresses, next hops, path MTUs, DHCP and the IPv6 link.
    #[cold]
    pub(super) fn turn_v6(&mut self, now: Instant, log: &mut impl Log) {
        self.with_host(now, |host| {
            host.report_groups(now);
            host.dhcp_on_time(now);
        });
        self.end_lost_connections(now, log);
        self.follow_routes(now, log);
        self.retry_routes_if_due(now);
        self.follow_paths(now, log);
        if !self.host.has_v6() {
            self.v6_due = self.v6_deadline();
            return;
        }
        let Some(actions) = self.host.link_on_time(now) else {
            return self.follow_v6(now);
        };
        self.take_place(now, true);
        for action in actions {
            self.with_host(now, |host| host.act(action));
        }
    }

    /// If our IPv6 addresses or routes have changed, publishes them for this pump, sockets and the
    /// other groups. `limited`: received messages may have changed them, so the rate of changes is
    /// limited.
    fn take_place(&mut self, now: Instant, limited: bool) {
        if let Some(place) = self.host.changed_place(now, limited) {
            self.filter_v6(&place);
            self.world.set_v6(place);
            self.follow_v6(now);
        }
        self.v6_due = self.v6_deadline();
    }

    /// Changes the IPv6 link for an application.
    pub(super) fn change_link(&mut self, now: Instant, what: impl FnOnce(&mut Ipv6Link)) {
        if self.host.change_link(what) {
            self.take_place(now, false);
        }
    }

    /// Adds new IPv6 addresses, also tentative ones, to the device's filter, and removes lost ones.
    fn filter_v6(&self, place: &SiteV6) {
        if self.world.filter.is_none() {
            return;
        }
        let before = self.world.v6();
        let (before, now) = (before.all(), place.all());
        for own in before.iter().filter(|own| !now.contains(own)) {
            self.leave_frames_to(*own);
        }
        for own in now.iter().filter(|own| !before.contains(own)) {
            self.take_frames_to(*own);
        }
    }

    /// Whether the first group has published IPv6 addresses or routes that this one has not taken.
    pub(super) fn follows_place(&self) -> bool {
        let known = self.host.followed_version();
        known.is_some_and(|version| version != self.world.shared.v6_version())
    }

    /// Takes the IPv6 addresses and routes that the first group has published.
    fn follow_v6(&mut self, now: Instant) {
        let (world, host) = (&self.world, &mut self.host);
        let Some(before) = host.take_place(world.shared.v6_version(), || world.v6()) else {
            return;
        };
        let opens = core::mem::take(&mut self.connections.sourceless);
        self.world.set_hop_limit(self.host.site.v6.hop_limit);
        if self.host.site.v6.mtu != before.v6.mtu {
            self.follow_link_mtu();
        }
        self.find_lost_connections();
        self.find_rerouted(now, before);
        for open in opens {
            // Starts again as a new command, because the log may have no room now.
            self.world.commands.push(Command::Open(open));
        }
    }

    /// Whether `open` must wait because all of our suitable addresses are tentative, or DHCP has
    /// not given one yet. If so, queues it, or fails it for lack of room.
    pub(super) fn waits_for_source(&mut self, open: WaitingOpen) -> bool {
        let remote = open.remote.address;
        let site = &self.host.site;
        let may_come = match remote.is_v4() {
            true => self.world.awaits_lease(),
            false => !site.v6.tentative.is_empty(),
        };
        let waits = may_come && site.source(remote).is_none();
        if waits && self.may_wait(open) {
            self.connections.sourceless.push_back(open);
        }
        waits
    }
}

/// The receive pump takes no more frames while more bytes than this wait, with the overhead of each
/// frame: 1,200 ARP frames, or three replies of 65,507 bytes.
const FULL: usize = 1 << 18;
/// Most bytes that may wait: the answers to a batch of 32 requests of 64 KB, and all datagrams that
/// wait for neighbours.
const MOST: usize = 8 << 20;
/// How long the pump waits for a device that takes nothing.
const PATIENCE: Duration = Duration::from_millis(10);

/// The queue of control frames.
#[derive(Debug, Default)]
pub(crate) struct ControlFrames {
    frames: SegQueue<Vec<u8>>,
    /// The cost of the frames that the device has not taken. The receive pump adds to it, the
    /// transmit pump subtracts.
    bytes: AtomicUsize,
}

fn cost(frame: &[u8]) -> usize {
    frame.len() + FRAME_OVERHEAD
}

impl ControlFrames {
    /// Adds a frame. Returns false if there is no room.
    pub(crate) fn push(&self, frame: Vec<u8>) -> bool {
        // ORDERING: Relaxed: only a bound; `SegQueue` orders the frames.
        let has_room = self.bytes.load(Ordering::Relaxed) + cost(&frame) <= MOST;
        if has_room {
            self.bytes.fetch_add(cost(&frame), Ordering::Relaxed);
            self.frames.push(frame);
        }
        has_room
    }

    /// The oldest frame, which the caller [offers](Self::sent) to the device.
    pub(crate) fn pop(&self) -> Option<Vec<u8>> {
        self.frames.pop()
    }

    /// The device has taken this frame.
    pub(crate) fn sent(&self, frame: &[u8]) {
        self.bytes.fetch_sub(cost(frame), Ordering::Relaxed);
    }

    /// Whether the device has taken all frames.
    #[inline]
    pub(crate) fn are_sent(&self) -> bool {
        // ORDERING: Relaxed: a thread that wants to sleep looks at the queue after a fence.
        self.bytes.load(Ordering::Relaxed) == 0
    }

    /// Whether no frame waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// How many frames wait.
    #[cfg(feature = "pipelined")]
    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }
}

/// How long the receive pump has waited for the transmit pump.
#[derive(Debug, Default)]
pub(crate) struct ControlWait {
    /// The bytes at the last look, and the time since which none have left.
    last_look: Option<(usize, Instant)>,
}

impl ControlWait {
    /// Whether the receive pump has to wait until `queue` is shorter.
    #[inline]
    pub(crate) fn has_to_wait(&mut self, queue: &ControlFrames, now: Instant) -> bool {
        let bytes = queue.bytes.load(Ordering::Relaxed);
        if bytes <= FULL {
            self.last_look = None;
            return false;
        }
        self.has_patience(bytes, now)
    }

    #[cold]
    fn has_patience(&mut self, bytes: usize, now: Instant) -> bool {
        let since = match self.last_look {
            Some((before, since)) if bytes >= before => since,
            _ => now,
        };
        self.last_look = Some((bytes, since));
        now < since + PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pump_waits_while_the_device_takes_frames_and_not_for_one_that_takes_none() {
        let (queue, mut wait) = (ControlFrames::default(), ControlWait::default());
        let at = Instant::from_millis;
        let large = || vec![0; 1 << 16];
        while !wait.has_to_wait(&queue, at(0)) {
            assert!(queue.push(large()));
        }
        assert_eq!(queue.frames.len(), 4);
        (0..9).for_each(|_| assert!(queue.push(large())));
        assert!(wait.has_to_wait(&queue, at(0)));
        let send = || queue.pop().map(|frame| queue.sent(&frame));
        for sent in 1..10 {
            send();
            assert!(wait.has_to_wait(&queue, at(9 * sent)), "{sent}");
        }
        assert!(wait.has_to_wait(&queue, at(90)));
        assert!(!wait.has_to_wait(&queue, at(91)), "it takes none for long");
        while queue.push(large()) {}
        assert_eq!(queue.frames.len(), MOST / cost(&large()));
        while send().is_some() {}
        assert!(queue.are_sent());
        assert!(!wait.has_to_wait(&queue, at(200)));
        assert_eq!(queue.bytes.load(Ordering::Relaxed), 0);
    }
}
