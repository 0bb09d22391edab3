//! The receiving half of the peer, which acts on parsed frames in order.

use super::config::{PeerConfig, Role};
use super::handle::PeerShared;
use super::reader::{Kind, PeerPrepared, Read, Reader, fault};
use crate::{DeviceError, DeviceTx, TxFrame, TxPrepare, TxStats};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The half of a [`PeerDevice`](super::PeerDevice) that the stack sends to: the peer's receiver.
///
/// It takes every frame at once. [`PeerHandle`](super::PeerHandle) counts the faults of frames;
/// [`stats`](DeviceTx::stats) counts only frames.
#[derive(Debug)]
pub struct PeerTx {
    reader: Arc<Reader>,
    connections: Vec<Receiving>,
    /// The connection of the last frame. Its changes are not yet published.
    current: usize,
    /// The frames parsed in advance, if the stack prepares frames.
    prepared: Option<Arc<PeerPrepared>>,
    stats: TxStats,
}

/// The receiving half's state of a connection.
#[derive(Clone, Debug, Default)]
struct Receiving {
    /// Window scale of the stack.
    scale: u8,
    /// Acknowledgment number and window field of the newest frame.
    last: Option<(u32, u16)>,
    /// Its timestamp.
    stamp: u32,
    /// Sequence number expected next.
    next: u32,
    received: u64,
    /// The value of `received` that was last published.
    published: u64,
    /// Ranges of sequence numbers that arrived beyond `next`: the first, and one after the last.
    beyond: Vec<(u32, u32)>,
}

impl Receiving {
    /// Records that bytes `seq` to `seq + len` have arrived.
    fn take(&mut self, seq: u32, len: u32) {
        let end = seq.wrapping_add(len);
        if seq.wrapping_sub(self.next) as i32 > 0 {
            match self.beyond.last_mut() {
                Some((_, last)) if *last == seq => *last = end,
                _ => self.beyond.push((seq, end)),
            }
            return;
        }
        self.advance(end);
        while let Some(at) =
            (self.beyond.iter()).position(|(begin, _)| begin.wrapping_sub(self.next) as i32 <= 0)
        {
            let (_, end) = self.beyond.swap_remove(at);
            self.advance(end);
        }
    }

    fn advance(&mut self, end: u32) {
        let new = end.wrapping_sub(self.next) as i32;
        if new > 0 {
            self.next = end;
            self.received += u64::from(new as u32);
        }
    }
}

impl PeerTx {
    pub(super) fn new(config: PeerConfig, shared: Arc<PeerShared>) -> Self {
        PeerTx {
            connections: vec![Receiving::default(); config.connections],
            current: 0,
            prepared: None,
            reader: Arc::new(Reader::new(config, shared)),
            stats: TxStats::default(),
        }
    }

    fn syn(&mut self, index: usize, syn: &Read) {
        let connection = &mut self.connections[index];
        connection.scale = syn.scale;
        connection.next = syn.seq.wrapping_add(1);
        // The window of a SYN is not scaled (RFC 7323 section 2.2).
        self.window(index, syn.ack.wrapping_add(u32::from(syn.wnd)), syn.stamp);
        // ORDERING: Release, pairs with the Acquire in `PeerRx::handshake`.
        self.reader.shared.connections[index]
            .syn
            .store(1 << 32 | u64::from(syn.seq), Ordering::Release);
    }

    fn window(&self, index: usize, edge: u32, stamp: u32) {
        let word = u64::from(stamp) << 32 | u64::from(edge);
        // ORDERING: Release, pairs with the Acquire in `PeerRx::window`.
        self.reader.shared.connections[index]
            .window
            .store(word, Ordering::Release);
    }

    /// Publishes the changes that the last frames made to connection `index` to the other half.
    fn publish_progress(&mut self, index: usize) {
        let connection = &self.connections[index];
        if let Some((ack, wnd)) = connection.last {
            let edge = ack.wrapping_add(u32::from(wnd) << connection.scale);
            self.window(index, edge, connection.stamp);
        }
        let connection = &mut self.connections[index];
        if connection.received != connection.published {
            connection.published = connection.received;
            // ORDERING: Release, pairs with the Acquires in `PeerRx::acknowledgments` and
            // `segments`.
            self.reader.shared.connections[index]
                .received
                .store(connection.received, Ordering::Release);
        }
    }

    /// Processes a parsed frame, or a run of them.
    fn take(&mut self, read: &Read) {
        let faults = &self.reader.shared.faults;
        if read.kind == Kind::Unexpected {
            return fault(&faults.unexpected);
        }
        if read.kind == Kind::Asks {
            // ORDERING: Relaxed, the flag publishes no other memory.
            return self.reader.shared.is_asked.store(true, Ordering::Relaxed);
        }
        let index = usize::from(read.connection);
        if index != self.current {
            self.publish_progress(self.current);
            self.current = index;
        }
        let faults = &self.reader.shared.faults;
        let connection = &mut self.connections[index];
        if self.reader.role.is_free() {
            connection.received += u64::from(read.run_len);
            return;
        }
        if read.kind == Kind::SynAck {
            match connection.last {
                None => self.syn(index, read),
                Some(_) => fault(&faults.unexpected),
            }
            return;
        }
        let ahead = read.seq.wrapping_sub(connection.next) as i32;
        if ahead != 0 {
            // A frame without payload retransmits nothing, however late it comes.
            let count = if ahead > 0 || read.len == 0 {
                &faults.out_of_order
            } else {
                &faults.sent_again
            };
            fault(count);
        }
        connection.take(read.seq, read.run_len);
        if self.reader.is_stamped() {
            connection.stamp = read.stamp;
        }
        let now = (read.ack, read.wnd);
        if self.reader.role == Role::Sender && read.len == 0 && connection.last == Some(now) {
            fault(&faults.repeated_acks);
        }
        let overtaken = |(last, _): (u32, u16)| (read.ack.wrapping_sub(last) as i32) < 0;
        if connection.last.is_some_and(overtaken) {
            return fault(&faults.out_of_order);
        }
        connection.last = Some(now);
    }

    /// Processes the frames in `count` slots from `first` on, as [`take`](Self::take).
    fn take_prepared(&mut self, prepared: &PeerPrepared, first: usize, count: usize) {
        let (mut slot, end) = (first, first + count);
        while slot < end {
            let read = prepared.get(slot);
            let connection = &self.connections[usize::from(read.connection)];
            let is_next = read.seq == connection.next || self.reader.role.is_free();
            // Each segment out of order counts separately.
            let run = match usize::from(read.run) {
                run if run > 1 && run <= end - slot && is_next => run,
                _ => 1,
            };
            match run {
                1 => self.take(&read.alone()),
                _ => self.take(&read),
            }
            slot += run;
        }
    }
}

impl DeviceTx for PeerTx {
    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, DeviceError> {
        for frame in frames {
            self.take(&self.reader.read(frame));
        }
        self.publish_progress(self.current);
        self.stats.frames += frames.len() as u64;
        Ok(frames.len())
    }

    fn preparer(&mut self, slots: usize) -> Option<Arc<dyn TxPrepare>> {
        let prepared = Arc::new(PeerPrepared::new(Arc::clone(&self.reader), slots));
        self.prepared = Some(Arc::clone(&prepared));
        Some(prepared)
    }

    fn transmit_prepared(&mut self, first: usize, count: usize) -> Result<usize, DeviceError> {
        let Some(prepared) = self.prepared.take() else {
            return Ok(0);
        };
        self.take_prepared(&prepared, first, count);
        self.prepared = Some(prepared);
        self.publish_progress(self.current);
        self.stats.frames += count as u64;
        Ok(count)
    }

    fn stats(&self) -> TxStats {
        self.stats
    }
}
