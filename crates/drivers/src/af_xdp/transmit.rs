//! The sending half: frames are copied into chunks, which go to the kernel through the send ring
//! and come back through the completion ring.
//!
//! If several threads build frames, each copies its own into chunks in advance ([`TxPrepare`]).
//! The sender then only writes descriptors and makes the system call.

use super::filter::AttachedFilter;
use super::{CHUNK_LEN, MAX_PIECES};
use crate::link::{Link, LinkState};
use crate::prepared::PreparedSlots;
use crate::umem::{TransmitChunk, TransmitMemory};
use crate::xsk_ring::{Consumer, Producer, XskDescriptor};
use crate::{
    Capabilities, DeviceError, DeviceTx, TxChecksum, TxFrame, TxMeta, TxPrepare, TxStats, sys,
};
use crossbeam_queue::ArrayQueue;
use std::sync::Arc;

/// Most system calls per batch. Each sends at least 32 frames, if the device has room.
const KICKS: usize = 64;
/// Chunks reserved for frames that were not prepared, while other frames are; at most a quarter of
/// all chunks.
const RESERVE: usize = 64;

/// A piece of a frame, in a chunk.
#[derive(Debug)]
struct Piece {
    chunk: TransmitChunk,
    len: u32,
    options: u32,
}

/// A frame in chunks.
#[derive(Debug)]
struct Filled {
    first: Piece,
    /// Empty unless the frame is longer than a chunk.
    rest: Vec<Piece>,
    len: usize,
}

impl Filled {
    fn pieces(self) -> impl Iterator<Item = Piece> {
        std::iter::once(self.first).chain(self.rest)
    }
}

/// The content of a slot.
#[derive(Debug)]
enum Prepared {
    Filled(Filled),
    /// The frame's bytes, because no chunk was free.
    Copied(Box<[u8]>, TxMeta),
    /// The frame can never be sent.
    Refused,
}

/// Copies frames into chunks.
#[derive(Debug)]
struct Filler {
    caps: Capabilities,
    memory: TransmitMemory,
    /// Bytes in front of each piece for metadata to the kernel.
    metadata_len: usize,
    /// Free chunks for the threads that prepare frames.
    free: ArrayQueue<TransmitChunk>,
}

impl Filler {
    /// Bytes of a frame that fit into a chunk.
    fn room(&self) -> usize {
        CHUNK_LEN - self.metadata_len
    }

    fn pieces(&self, frame: &TxFrame<'_>) -> usize {
        frame.len().div_ceil(self.room()).max(1)
    }

    fn admits(&self, frame: &TxFrame<'_>) -> bool {
        self.caps.admits(frame) && self.pieces(frame) <= MAX_PIECES
    }

    /// Copies a frame into chunks supplied by `take`. `None` if there are too few; the chunks
    /// taken until then are given back.
    #[inline]
    fn fill(
        &self,
        frame: &TxFrame<'_>,
        mut take: impl FnMut() -> Option<TransmitChunk>,
    ) -> Option<Filled> {
        let count = self.pieces(frame);
        let first = take()?;
        let mut rest = Vec::new();
        for _ in 1..count {
            let Some(chunk) = take() else {
                self.give_back(first);
                rest.into_iter().for_each(|chunk| self.give_back(chunk));
                return None;
            };
            rest.push(chunk);
        }
        let (mut head, mut payload) = (frame.head, frame.payload);
        let mut left = count;
        let mut fill = |mut chunk| {
            left -= 1;
            let mut options = if left > 0 { libc::XDP_PKT_CONTD } else { 0 };
            if let TxChecksum::Partial { start, offset } = frame.meta.checksum
                && left + 1 == count
            {
                // struct xsk_tx_metadata
                let mut metadata = [0; 24];
                let flags = u64::from(libc::XDP_TXMD_FLAGS_CHECKSUM);
                metadata[..8].copy_from_slice(&flags.to_ne_bytes());
                metadata[8..10].copy_from_slice(&start.to_ne_bytes());
                metadata[10..12].copy_from_slice(&offset.to_ne_bytes());
                self.memory.write(&mut chunk, 0, &metadata);
                options |= libc::XDP_TX_METADATA;
            }
            let (from_head, behind) = head.split_at(head.len().min(self.room()));
            head = behind;
            let more = payload.len().min(self.room() - from_head.len());
            let (from_payload, behind) = payload.split_at(more);
            payload = behind;
            let at = self.metadata_len;
            self.memory.write(&mut chunk, at, from_head);
            let at = at + from_head.len();
            self.memory.write(&mut chunk, at, from_payload);
            Piece {
                chunk,
                len: (from_head.len() + from_payload.len()) as u32,
                options,
            }
        };
        Some(Filled {
            first: fill(first),
            rest: rest.into_iter().map(fill).collect(),
            len: frame.len(),
        })
    }

    fn give_back(&self, chunk: TransmitChunk) {
        // Never full: there is room for every chunk.
        let _ = self.free.push(chunk);
    }
}

/// The part of sending that runs on the threads that build frames.
#[derive(Debug)]
struct Preparer {
    filler: Arc<Filler>,
    slots: PreparedSlots<Prepared>,
}

impl TxPrepare for Preparer {
    fn prepare(&self, first: usize, frames: &[TxFrame<'_>]) {
        let filler = &*self.filler;
        for (slot, frame) in (first..).zip(frames) {
            let prepared = if !filler.admits(frame) {
                Prepared::Refused
            } else {
                match filler.fill(frame, || filler.free.pop()) {
                    Some(filled) => Prepared::Filled(filled),
                    None => {
                        let bytes = [frame.head, frame.payload].concat();
                        Prepared::Copied(bytes.into(), frame.meta)
                    }
                }
            };
            // The old frame was abandoned because the link was down.
            if let Some(Prepared::Filled(unsent)) = self.slots.put(slot, prepared) {
                unsent
                    .pieces()
                    .for_each(|piece| filler.give_back(piece.chunk));
            }
        }
    }
}

/// The sending half of an [`AfXdp`](super::AfXdp).
#[derive(Debug)]
pub(super) struct XdpTx {
    link: Arc<Link>,
    filler: Arc<Filler>,
    /// Free chunks for frames that were not prepared, and how many of them to keep.
    free: Vec<TransmitChunk>,
    reserve: usize,
    /// Number of chunks that the kernel has.
    under_way: usize,
    preparer: Option<Arc<Preparer>>,
    ring: Producer<XskDescriptor>,
    completion: Consumer<u64>,
    stats: TxStats,
    _attached: Arc<AttachedFilter>,
}

impl XdpTx {
    pub(super) fn new(
        caps: Capabilities,
        link: Arc<Link>,
        (memory, free): (TransmitMemory, Vec<TransmitChunk>),
        (ring, completion): (Producer<XskDescriptor>, Consumer<u64>),
        metadata_len: usize,
        attached: Arc<AttachedFilter>,
    ) -> Self {
        let filler = Filler {
            caps,
            memory,
            metadata_len,
            free: ArrayQueue::new(free.len().max(1)),
        };
        Self {
            link,
            filler: Arc::new(filler),
            free,
            reserve: usize::MAX,
            under_way: 0,
            preparer: None,
            ring,
            completion,
            stats: TxStats::default(),
            _attached: attached,
        }
    }

    /// See [`BareXdp::send`](crate::bare::BareXdp::send).
    #[cfg(feature = "bare")]
    pub(crate) fn bare_send(&mut self, frame: &[u8], count: usize) -> usize {
        self.reap();
        let mut sent = 0;
        let frame = TxFrame::new(frame);
        while sent < count && self.put(&frame) {
            sent += 1;
        }
        self.ring.publish();
        if self.ring.needs_wakeup() {
            // Errors do not matter, since the next call tries again.
            let _ = sys::xsk_kick_send(self.link.fd());
        }
        sent
    }

    /// Takes back the chunks that have been sent.
    fn reap(&mut self) {
        let mut any = false;
        while let Some(at) = self.completion.pop() {
            assert!(self.under_way > 0, "the kernel returns more than it had");
            self.under_way -= 1;
            let chunk = self.filler.memory.take_back(at);
            if self.free.len() < self.reserve {
                self.free.push(chunk);
            } else {
                self.filler.give_back(chunk);
            }
            any = true;
        }
        if any {
            self.completion.release();
        }
    }

    /// Puts a frame on the ring. False if there is no room now.
    #[inline]
    fn put(&mut self, frame: &TxFrame<'_>) -> bool {
        let filler = &*self.filler;
        let count = filler.pieces(frame);
        if (self.ring.room(count as u32) as usize) < count {
            return false;
        }
        let free = &mut self.free;
        let filled = filler.fill(frame, || free.pop().or_else(|| filler.free.pop()));
        filled.is_some_and(|filled| self.put_filled(filled).is_ok())
    }

    /// Puts a frame that is already in chunks on the ring. Returns it if there is no room now.
    #[inline]
    fn put_filled(&mut self, filled: Filled) -> Result<(), Filled> {
        let count = 1 + filled.rest.len();
        if (self.ring.room(count as u32) as usize) < count {
            return Err(filled);
        }
        self.stats.frames += 1;
        self.stats.bytes += filled.len as u64;
        self.under_way += count;
        for piece in filled.pieces() {
            let at = self.filler.memory.hand_over(piece.chunk);
            let put = self.ring.push(XskDescriptor {
                at: at + self.filler.metadata_len as u64,
                len: piece.len,
                options: piece.options,
            });
            debug_assert!(put, "counted above");
        }
        Ok(())
    }

    /// Sends as many of `count` frames as there is room for. `put` puts one on the ring, or
    /// returns false.
    fn send(
        &mut self,
        count: usize,
        mut put: impl FnMut(&mut Self, usize) -> bool,
    ) -> Result<usize, DeviceError> {
        if self.link.may_be_down() {
            match self.link.query_state() {
                LinkState::Up => {}
                LinkState::Down => return Err(self.link.down()),
                LinkState::Gone => return Err(self.link.gone()),
            }
        }
        self.reap();
        let mut taken = 0;
        while taken < count {
            if !put(self, taken) {
                self.stats.busy += 1;
                break;
            }
            taken += 1;
        }
        self.ring.publish();
        // Also sends frames that an earlier call left on the ring.
        self.kick();
        Ok(taken)
    }

    /// Puts the content of a slot on the ring, or leaves it there. False if there is no room now.
    fn put_prepared(&mut self, preparer: &Preparer, slot: usize) -> bool {
        let unsent = match preparer.slots.take(slot) {
            None | Some(Prepared::Refused) => {
                self.stats.dropped += 1;
                return true;
            }
            Some(Prepared::Filled(filled)) => match self.put_filled(filled) {
                Ok(()) => return true,
                Err(filled) => Prepared::Filled(filled),
            },
            Some(Prepared::Copied(bytes, meta)) => {
                let frame = TxFrame {
                    head: &bytes,
                    payload: &[],
                    meta,
                };
                if self.put(&frame) {
                    return true;
                }
                Prepared::Copied(bytes, meta)
            }
        };
        preparer.slots.put(slot, unsent);
        false
    }

    /// Makes the kernel send the frames on the ring.
    fn kick(&mut self) {
        let mut stuck = 0;
        let mut before = self.ring.pending();
        for _ in 0..KICKS {
            if before == 0 || !self.ring.needs_wakeup() || stuck > 2 {
                break;
            }
            if let Err(error) = sys::xsk_kick_send(self.link.fd()) {
                match error.raw_os_error() {
                    Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => {
                        self.link.report_error();
                        break;
                    }
                    // Some frames were sent; or the device is busy; or the kernel has dropped a
                    // frame that it cannot send.
                    _ => self.reap(),
                }
            }
            let now = self.ring.pending();
            stuck = if now == before { stuck + 1 } else { 0 };
            before = now;
        }
    }
}

impl DeviceTx for XdpTx {
    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, DeviceError> {
        self.send(frames.len(), |tx, i| {
            let admitted = tx.filler.admits(&frames[i]);
            tx.stats.dropped += u64::from(!admitted);
            !admitted || tx.put(&frames[i])
        })
    }

    fn preparer(&mut self, slots: usize) -> Option<Arc<dyn TxPrepare>> {
        self.reserve = RESERVE.min(self.free.len() / 4);
        for chunk in self.free.drain(self.reserve..) {
            self.filler.give_back(chunk);
        }
        let preparer = Arc::new(Preparer {
            filler: Arc::clone(&self.filler),
            slots: PreparedSlots::new(slots),
        });
        self.preparer = Some(Arc::clone(&preparer));
        Some(preparer)
    }

    fn transmit_prepared(&mut self, first: usize, count: usize) -> Result<usize, DeviceError> {
        let Some(preparer) = self.preparer.clone() else {
            return Ok(0);
        };
        self.send(count, |tx, i| tx.put_prepared(&preparer, first + i))
    }

    fn stats(&self) -> TxStats {
        self.stats
    }
}
