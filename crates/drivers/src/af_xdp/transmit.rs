//! Sending: frames are copied into chunks, which go to the kernel through the send ring and come
//! back through the completion ring.

use super::{Attached, CHUNK_LEN, MAX_PIECES};
use crate::link::{Link, LinkState};
use crate::umem::TransmitChunks;
use crate::xsk_ring::{Consumer, Descriptor, Producer};
use crate::{Capabilities, DeviceError, DeviceTx, TxChecksum, TxFrame, TxStats, sys};
use std::sync::Arc;

/// System calls that one batch may take. Each sends 32 frames at least, if the device has room.
const KICKS: usize = 64;

/// The sending half of an [`AfXdp`](super::AfXdp).
#[derive(Debug)]
pub(super) struct XdpTx {
    caps: Capabilities,
    link: Arc<Link>,
    chunks: TransmitChunks,
    ring: Producer<Descriptor>,
    completion: Consumer<u64>,
    /// Bytes before each piece of a frame, for what the device is to do.
    metadata_len: usize,
    stats: TxStats,
    _attached: Arc<Attached>,
}

impl XdpTx {
    pub(super) fn new(
        caps: Capabilities,
        link: Arc<Link>,
        chunks: TransmitChunks,
        (ring, completion): (Producer<Descriptor>, Consumer<u64>),
        metadata_len: usize,
        attached: Arc<Attached>,
    ) -> Self {
        Self {
            caps,
            link,
            chunks,
            ring,
            completion,
            metadata_len,
            stats: TxStats::default(),
            _attached: attached,
        }
    }

    /// See [`BareXdp::send`](crate::bare::BareXdp::send).
    #[cfg(feature = "bare")]
    pub(crate) fn bare_send(&mut self, frame: &[u8], count: usize) -> usize {
        self.reap();
        let mut sent = 0;
        while sent < count && self.ring.room(1) > 0 {
            let Some(at) = self.chunks.take() else { break };
            let at = at + self.metadata_len as u64;
            self.chunks.write(at, frame);
            self.ring.push(Descriptor {
                at,
                len: frame.len() as u32,
                options: 0,
            });
            sent += 1;
        }
        self.ring.publish();
        if self.ring.needs_wakeup() {
            // Whatever it says: the next call goes on.
            let _ = sys::xsk_kick_send(self.link.fd());
        }
        sent
    }

    /// Takes back the chunks that have been sent.
    fn reap(&mut self) {
        let mut any = false;
        while let Some(at) = self.completion.pop() {
            self.chunks.put(at);
            any = true;
        }
        if any {
            self.completion.release();
        }
    }

    /// Puts a frame on the ring. False if there is no room now.
    #[inline]
    fn put(&mut self, frame: &TxFrame<'_>) -> bool {
        let room = CHUNK_LEN - self.metadata_len;
        let pieces = frame.len().div_ceil(room);
        if self.chunks.free() < pieces || (self.ring.room(pieces as u32) as usize) < pieces {
            return false;
        }
        let (mut head, mut payload) = (frame.head, frame.payload);
        for piece in 0..pieces {
            let Some(chunk) = self.chunks.take() else {
                unreachable!("counted above");
            };
            let at = chunk + self.metadata_len as u64;
            let mut options = if piece + 1 < pieces {
                libc::XDP_PKT_CONTD
            } else {
                0
            };
            if let (0, TxChecksum::Partial { start, offset }) = (piece, frame.meta.checksum) {
                // struct xsk_tx_metadata
                let mut metadata = [0; 24];
                metadata[..8]
                    .copy_from_slice(&u64::from(libc::XDP_TXMD_FLAGS_CHECKSUM).to_ne_bytes());
                metadata[8..10].copy_from_slice(&start.to_ne_bytes());
                metadata[10..12].copy_from_slice(&offset.to_ne_bytes());
                self.chunks.write(chunk, &metadata);
                options |= libc::XDP_TX_METADATA;
            }
            let (from_head, rest) = head.split_at(head.len().min(room));
            head = rest;
            let (from_payload, rest) = payload.split_at(payload.len().min(room - from_head.len()));
            payload = rest;
            self.chunks.write(at, from_head);
            self.chunks.write(at + from_head.len() as u64, from_payload);
            let put = self.ring.push(Descriptor {
                at,
                len: (from_head.len() + from_payload.len()) as u32,
                options,
            });
            debug_assert!(put, "counted above");
        }
        true
    }

    /// Makes the kernel send what is on the ring.
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
                    // Some were sent, or the device is busy; or the kernel has dropped one that it
                    // will not send.
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
        if self.link.may_be_down() {
            match self.link.query_state() {
                LinkState::Up => {}
                LinkState::Down => return Err(self.link.down()),
                LinkState::Gone => return Err(self.link.gone()),
            }
        }
        self.reap();
        let mut taken = 0;
        let most = MAX_PIECES * (CHUNK_LEN - self.metadata_len);
        for frame in frames {
            if !self.caps.admits(frame) || frame.len() > most {
                self.stats.dropped += 1;
            } else if self.put(frame) {
                self.stats.frames += 1;
                self.stats.bytes += frame.len() as u64;
            } else {
                self.stats.busy += 1;
                break;
            }
            taken += 1;
        }
        self.ring.publish();
        // Also for frames that an earlier call could not get rid of.
        self.kick();
        Ok(taken)
    }

    fn stats(&self) -> TxStats {
        self.stats
    }
}
