//! Packets to ourselves (RFC 1122 section 3.2.1.3 (g)).
//!
//! Such frames have our own link-layer address as source and destination. The transmit pump puts
//! them into the mailbox of the destination's group instead of giving them to the device, so they
//! never leave this host. The receive pump parses them with a separate parser. So its header
//! templates never match a frame from the wire that a neighbour forged, and templates of frames
//! from the wire match none of these. A frame from the wire with such addresses is martian.
//!
//! A datagram to a multicast group is also for us if sockets here listen to the group (RFC 1112
//! section 6.1). Before its frames are numbered, the receive pump puts a copy into the mailbox, as
//! one frame of any length. The copy is then handled like a neighbour's datagram. If a device hands
//! us the frames that left, they are martian, because they come from our address.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use crate::io::ClaimedFrames;
use crate::io::gro::Parser;
use crate::io::perform::whole_datagram;
use crate::io::rx::{FRAMES_A_TURN, Log, RESERVED, RunPublisher, RxPump};
use crate::io::stream::Parts;
use crate::log::request::{Address, Endpoint, Mac};
use crate::packet as wire;
use crate::time::Instant;
use crate::udp::record::RecordHeader;

/// Packets to ourselves in the receive pump.
#[derive(Default)]
pub(super) struct Loopback {
    /// Created for the first packet to ourselves.
    parser: Option<Parser>,
}

impl RxPump {
    /// Handles frames that we sent to ourselves while the log has room. Returns how many.
    #[cold]
    pub(super) fn take_looped(&mut self, now: Instant, log: &mut impl Log) -> usize {
        // Every frame may need a place in the log, and so may the gathered datagrams.
        let room = log.room().saturating_sub(RESERVED + 2).min(FRAMES_A_TURN);
        let mailbox = &self.world.mailbox;
        // Cleared before the frames are taken, so that later frames set it again.
        // ORDERING: Acquire, pairs with the Release in `World::loop_back`.
        mailbox.has_looped.swap(false, Ordering::Acquire);
        let frames: Vec<_> = core::iter::from_fn(|| mailbox.looped.pop())
            .take(room)
            .collect();
        if frames.len() == room {
            mailbox.has_looped.store(true, Ordering::Relaxed);
        }
        if frames.is_empty() {
            return 0;
        }
        // Answers to them are packets to ourselves, too.
        self.world.enable_loopback();
        let count = frames.len();
        let batch = ClaimedFrames::new(frames);
        self.host.is_looping = true;
        self.parse_and_publish(now, &batch, log);
        self.host.is_looping = false;
        self.recycler.put_batch(batch);
        self.stats.looped += count as u64;
        count
    }

    /// As [`Parser::parse`], for frames that we sent to ourselves.
    pub(super) fn parse_looped(
        &mut self,
        now: Instant,
        batch: &ClaimedFrames,
        log: &mut impl Log,
    ) -> u64 {
        let world = Arc::clone(&self.world);
        let mut parser = match self.loopback.parser.take() {
            Some(parser) => parser,
            None => Parser::new(),
        };
        let mut publishing = RunPublisher {
            pump: self,
            now,
            log,
        };
        let segments = parser.parse_looped(&world, batch, &mut publishing);
        self.loopback.parser = Some(parser);
        segments
    }

    /// Whether `remote` is a multicast group that sockets of ours listen to.
    pub(super) fn is_own_group(&self, remote: Address) -> bool {
        remote.is_multicast() && self.host.is_to_all(remote, true)
    }

    /// Sends a copy of a multicast datagram from `local` to ourselves. Returns false, and does
    /// nothing, while too many frames wait.
    #[cold]
    pub(super) fn loop_datagram(
        &self,
        (local, mac): (Endpoint, Mac),
        header: &RecordHeader,
        payload: Parts<'_>,
    ) -> bool {
        let mut frame = whole_datagram(&self.world, local, header, 0, payload);
        wire::set_link_dst(&mut frame, mac.0);
        self.world.give_to_ourselves(frame, None)
    }
}
