//! Packets to ourselves (RFC 1122 section 3.2.1.3 (g)).
//!
//! They have our own link-layer address as source and destination. The transmit pump puts such
//! frames into the mailbox of the group that they are for, instead of giving them to the device, so
//! the wire never sees one. The receive pump takes them from there, with a parser of their own:
//! header templates of the wire's frames match none of them, and none of theirs matches a frame
//! that a neighbour forged. What looks like them on the wire is martian, as ever.
//!
//! What a socket sends to a multicast group goes both ways if sockets here listen to the group (RFC
//! 1112 section 6.1): its frames leave, and the receive pump puts a copy, one frame however long,
//! into the mailbox before they are numbered. From there on the copy is as a neighbour's datagram,
//! and what a device hands back of the others is martian: it comes from an address of ours.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use crate::io::Batch;
use crate::io::gro::Parser;
use crate::io::perform::whole_datagram;
use crate::io::rx::{BATCH, Log, RESERVED, RunPublisher, RxPump};
use crate::io::stream::Parts;
use crate::log::request::{Address, Endpoint, Mac};
use crate::packet as wire;
use crate::time::Instant;
use crate::udp::record::RecordHeader;

/// Packets to ourselves in the receive pump.
#[derive(Default)]
pub(super) struct Loopback {
    /// Made when it is needed.
    parser: Option<Parser>,
}

impl RxPump {
    /// Handles frames that we sent to ourselves, as far as the log has room. Returns how many.
    #[cold]
    pub(super) fn take_looped(&mut self, now: Instant, log: &mut impl Log) -> usize {
        // Every frame may need a place in the log, and so may the gathered datagrams.
        let room = log.room().saturating_sub(RESERVED + 2).min(BATCH);
        let mailbox = &self.world.mailbox;
        // Before they are taken: what comes afterwards says so again.
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
        // What answers them comes back, too.
        self.world.enable_loopback();
        let count = frames.len();
        let batch = Batch::new(frames);
        self.host.is_looping = true;
        self.parse_and_publish(now, &batch, log);
        self.host.is_looping = false;
        self.recycler.put_batch(batch);
        self.stats.looped += count as u64;
        count
    }

    /// As [`Parser::parse`], of frames that came back.
    pub(super) fn parse_looped(&mut self, now: Instant, batch: &Batch, log: &mut impl Log) -> u64 {
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

    /// Whether datagrams to `remote` are for sockets of ours, too: for a group in which we are.
    pub(super) fn is_own_group(&self, remote: Address) -> bool {
        remote.is_multicast() && self.host.is_to_all(remote, true)
    }

    /// Gives a copy of a datagram from `local` to a group to ourselves. Returns false, and does
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
