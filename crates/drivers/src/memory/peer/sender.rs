//! The sending half of the peer. It patches the headers of prebuilt frames when they are claimed.

use super::config::{ACK_BUFFER, Payload, PeerConfig, Role};
use super::handle::PeerShared;
use super::headers::{self, Ends, HEADERS_LEN, Numbers, Patch, flags};
use super::pool::PeerPool;
use super::{PEER_ISS, PEER_SCALE};
use crate::{DeviceError, DeviceRx, DeviceWaker, Frame, RxChecksum, RxMeta, RxStats};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Number of pure acknowledgments in circulation.
const ACKS: usize = 4096;
/// Calls without a new segment after which a single segment is acknowledged.
pub(super) const ACK_AFTER_IDLE_CLAIMS: u32 = 64;
/// Segments per tick of the peer's timestamp clock, which takes about a millisecond.
const TICK: u64 = 512;

/// Progress of the handshake (RFC 9293 section 3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SenderPhase {
    Closed,
    SynSent,
    Established,
}

/// The half of a [`PeerDevice`](super::PeerDevice) that the stack receives from: the peer's sender.
///
/// It sends a released frame again with other numbers, so release frames unchanged.
/// [`stats`](DeviceRx::stats) counts only frames.
#[derive(Debug)]
pub struct PeerRx {
    shared: Arc<PeerShared>,
    role: Role,
    ends: Ends,
    segment: u32,
    stamped: bool,
    /// The checksum state of all frames.
    checksum: RxChecksum,
    /// Length of the part of a frame that gets patched, in bytes.
    head: usize,
    /// Frames with payload: one pool per prebuilt payload, or a single one if all are alike.
    /// Stacks return frames in any order.
    data: Vec<PeerPool>,
    /// The patches of these pools.
    data_patches: Vec<Patch>,
    /// Buffer length in these pools, in bytes.
    data_buffer: usize,
    /// Whether payloads begin with their offset.
    marked: bool,
    acks: PeerPool,
    ack_patch: Patch,
    connections: Vec<Sending>,
    /// Number of established connections. They are opened in order.
    open: usize,
    /// The connection whose turn it is.
    turn: usize,
    /// Consecutive segments of one connection, if there are several.
    burst: usize,
    /// Segments sent on all connections.
    sent: u64,
    stats: RxStats,
}

/// The sending half's state of a connection.
#[derive(Debug)]
struct Sending {
    index: usize,
    phase: SenderPhase,
    /// Offset of the next byte in the peer's stream.
    offset: u64,
    /// The stack's first sequence number.
    iss: u32,
    /// Bytes of the stack's stream that were acknowledged.
    acked: u64,
    /// Bytes of the stack's stream that had arrived at the last call, and the number of calls
    /// since that value changed.
    received: u64,
    silence: u32,
}

impl Sending {
    fn new(index: usize) -> Self {
        Sending {
            index,
            phase: SenderPhase::Closed,
            offset: 0,
            iss: 0,
            acked: 0,
            received: 0,
            silence: 0,
        }
    }
}

impl PeerRx {
    pub(super) fn new(config: &PeerConfig, shared: Arc<PeerShared>) -> Self {
        let ends = config.ends;
        let options: &[u8] = if config.timestamps {
            &headers::timestamps(0, 0)
        } else {
            &[]
        };
        let checksum = if config.checksum_offload {
            RxChecksum::Valid
        } else {
            RxChecksum::Verify
        };
        let marked = matches!(config.payload, Payload::Marked(_));
        let segments: Vec<Vec<u8>> = config
            .payloads()
            .iter()
            .zip(0..=u16::MAX)
            .map(|(payload, id)| {
                let mut f = headers::tcp_frame(&ends, flags::ACK, u16::MAX, options, payload);
                headers::identify(&mut f, id);
                f
            })
            .collect();
        let patch = |segment: &Vec<u8>| {
            if marked {
                Patch::with_mark(segment)
            } else {
                Patch::new(segment)
            }
        };
        let ack = headers::tcp_frame(&ends, flags::ACK, u16::MAX, options, &[]);
        let frames = if matches!(config.role, Role::Receiver | Role::FreeReceiver) {
            0
        } else {
            config.pool_frames
        };
        let count = frames / segments.len();
        let buffer = config.buffer_len();
        let meta = RxMeta {
            checksum,
            ..RxMeta::default()
        };
        PeerRx {
            data: segments
                .iter()
                .map(|segment| PeerPool::new(segment, buffer, count, meta))
                .collect(),
            data_patches: segments.iter().map(patch).collect(),
            data_buffer: buffer,
            marked,
            acks: PeerPool::new(&ack, ACK_BUFFER, ACKS, meta),
            ack_patch: Patch::new(&ack),
            shared,
            role: config.role,
            ends,
            segment: config.segment_bytes as u32,
            stamped: config.timestamps,
            checksum,
            head: config.head_bytes() + 4,
            connections: (0..config.connections).map(Sending::new).collect(),
            open: if config.role.is_free() {
                config.connections
            } else {
                0
            },
            turn: 0,
            burst: config.burst,
            sent: 0,
            stats: RxStats::default(),
        }
    }

    fn port(&self, index: usize) -> u16 {
        self.ends.from.port() + index as u16
    }

    fn handshake(&mut self, out: &mut Vec<Frame>) {
        let index = self.open;
        match self.connections[index].phase {
            SenderPhase::Closed => {
                // The announced MSS does not count options (RFC 6691).
                let options_len = if self.stamped {
                    headers::TIMESTAMPS_LEN
                } else {
                    0
                };
                let mss = self.segment as u16 + options_len as u16;
                let options = headers::syn_options(mss, PEER_SCALE, self.stamped);
                let mut syn = headers::tcp_frame(&self.ends, flags::SYN, u16::MAX, &options, &[]);
                let numbers = Numbers {
                    source_port: self.port(index),
                    seq: PEER_ISS,
                    ..Numbers::default()
                };
                Patch::new(&syn).bare(&mut syn, &numbers);
                let mut syn = Frame::from_bytes(&syn);
                syn.meta.checksum = self.checksum;
                out.push(syn);
                self.connections[index].phase = SenderPhase::SynSent;
            }
            SenderPhase::SynSent => {
                // ORDERING: Acquire, pairs with the Release in `PeerTx::syn`.
                let syn = self.shared.connections[index].syn.load(Ordering::Acquire);
                if syn >> 32 != 0 {
                    self.connections[index].iss = syn as u32;
                    if self.acknowledge(index, 0, out) {
                        self.connections[index].phase = SenderPhase::Established;
                        self.open += 1;
                    }
                }
            }
            SenderPhase::Established => {}
        }
    }

    /// The stack's window edge and timestamp on connection `index`.
    #[inline]
    fn window(&self, index: usize) -> (u32, u32) {
        // ORDERING: Acquire, pairs with the Release in `PeerTx::window`.
        let word = self.shared.connections[index]
            .window
            .load(Ordering::Acquire);
        (word as u32, (word >> 32) as u32)
    }

    /// The peer's timestamp clock.
    #[inline]
    fn clock(&self) -> u32 {
        (self.sent / TICK) as u32
    }

    /// Appends a pure acknowledgment of the stack's stream up to `upto`. False if no frame is free.
    fn acknowledge(&mut self, index: usize, upto: u64, out: &mut Vec<Frame>) -> bool {
        let Some(mut frame) = self.acks.take() else {
            return false;
        };
        let sending = &self.connections[index];
        let numbers = Numbers {
            source_port: self.port(index),
            seq: sequence(PEER_ISS, sending.offset),
            ack: sequence(sending.iss, upto),
            timestamps: if self.stamped {
                (self.clock(), self.window(index).1)
            } else {
                (0, 0)
            },
        };
        self.ack_patch.bare(frame.bytes_mut(), &numbers);
        out.push(frame);
        self.connections[index].acked = upto;
        true
    }

    /// Acknowledges every second segment.
    fn acknowledgments(&mut self, index: usize, max: usize, out: &mut Vec<Frame>) {
        // ORDERING: Acquire, pairs with the Release in `PeerTx::publish_progress`.
        let received = self.shared.connections[index]
            .received
            .load(Ordering::Acquire);
        let two = u64::from(2 * self.segment);
        let due = ((received - self.connections[index].acked) / two) as usize;
        self.acks.prefetch(due.min(max - out.len()), HEADERS_LEN);
        while out.len() < max && received - self.connections[index].acked >= two {
            let upto = self.connections[index].acked + two;
            if !self.acknowledge(index, upto, out) {
                return;
            }
            self.sent += 2;
        }
        let sending = &mut self.connections[index];
        sending.silence = if received == sending.received {
            sending.silence.wrapping_add(1)
        } else {
            0
        };
        sending.received = received;
        if sending.silence >= ACK_AFTER_IDLE_CLAIMS && received > sending.acked && out.len() < max {
            self.acknowledge(index, received, out);
        }
    }

    /// Appends segments while the window allows, until `out` holds `max` frames. Returns their
    /// number.
    fn segments(&mut self, index: usize, max: usize, out: &mut Vec<Frame>) -> usize {
        let (edge, echo) = self.window(index);
        let clock = self.clock();
        let sending = &mut self.connections[index];
        let left = if self.role == Role::Free {
            usize::MAX
        } else {
            let open = edge.wrapping_sub(sequence(PEER_ISS, sending.offset));
            // The edge may be before the bytes sent only for a moment in the handshake.
            (open as i32).max(0) as usize / self.segment as usize
        };
        let rounds = self.data.len();
        let mut kind = if rounds == 1 {
            0
        } else {
            (sending.offset / u64::from(self.segment)) as usize % rounds
        };
        let count = left.min(max - out.len());
        let any = !self.data[kind].is_empty();
        if self.role == Role::Both && count > 0 && any {
            // ORDERING: Acquire, pairs with the Release in `PeerTx::publish_progress`.
            let received = &self.shared.connections[index].received;
            sending.acked = received.load(Ordering::Acquire);
        }
        let mut numbers = Numbers {
            source_port: self.ends.from.port() + sending.index as u16,
            seq: sequence(PEER_ISS, sending.offset),
            ack: sequence(sending.iss, sending.acked),
            timestamps: (clock, echo),
        };
        if rounds == 1 {
            self.data[0].prefetch(count, self.head);
        } else {
            for at in 0..count.min(rounds) {
                self.data[(kind + at) % rounds].prefetch(1, self.head);
            }
        }
        for sent in 0..count {
            let Some(mut frame) = self.data[kind].take() else {
                self.sent += sent as u64;
                return sent;
            };
            let patch = &self.data_patches[kind];
            if self.marked {
                let offset = sending.offset as u32;
                patch.marked(frame.bytes_mut(), &numbers, offset);
            } else {
                patch.bare(frame.bytes_mut(), &numbers);
                kind = (kind + 1) % rounds;
            }
            numbers.seq = numbers.seq.wrapping_add(self.segment);
            sending.offset += u64::from(self.segment);
            out.push(frame);
        }
        self.sent += count as u64;
        count
    }

    /// Appends the next frames of connection `index`.
    fn serve(&mut self, index: usize, max: usize, out: &mut Vec<Frame>) {
        match self.role {
            Role::Receiver | Role::FreeReceiver => self.acknowledgments(index, max, out),
            Role::Sender | Role::Free => {
                self.segments(index, max, out);
            }
            Role::Both => {
                if self.segments(index, max, out) == 0 {
                    self.acknowledgments(index, max, out);
                }
            }
        }
    }
}

/// The sequence number of byte `offset` of the stream that begins after `iss`.
#[inline]
fn sequence(iss: u32, offset: u64) -> u32 {
    iss.wrapping_add(1).wrapping_add(offset as u32)
}

impl DeviceRx for PeerRx {
    fn claim(&mut self, max: usize, out: &mut Vec<Frame>) -> Result<usize, DeviceError> {
        let before = out.len();
        let max = before.saturating_add(max);
        let count = self.connections.len();
        if self.open < count {
            // ORDERING: Relaxed, the flag publishes no other memory.
            if max > before && self.shared.is_asked.swap(false, Ordering::Relaxed) {
                out.push(Frame::from_bytes(&headers::arp_reply(&self.ends)));
            } else if max > before {
                self.handshake(out);
            }
        } else if count == 1 {
            self.serve(0, max, out);
        } else {
            let mut without = 0;
            while out.len() < max && without < count {
                let index = self.turn;
                self.turn = (index + 1) % count;
                let had = out.len();
                self.serve(index, max.min(had + self.burst), out);
                without = if out.len() == had { without + 1 } else { 0 };
            }
        }
        let claimed = out.len() - before;
        self.stats.frames += claimed as u64;
        Ok(claimed)
    }

    fn release(&mut self, frames: &mut Vec<Frame>) {
        for frame in frames.drain(..) {
            // The two kinds differ in capacity; frames of the handshake are neither.
            match frame.capacity() {
                ACK_BUFFER => self.acks.give_back(frame),
                other if other == self.data_buffer => {
                    let kind = match self.data.len() {
                        1 => 0,
                        _ => match headers::identification(&frame) {
                            Some(id) => usize::from(id),
                            None => continue,
                        },
                    };
                    if let Some(pool) = self.data.get_mut(kind) {
                        pool.give_back(frame);
                    }
                }
                _ => {}
            }
        }
    }

    fn wait(&mut self, _timeout: Option<Duration>) -> Result<(), DeviceError> {
        Ok(())
    }

    fn waker(&self) -> DeviceWaker {
        DeviceWaker::new(|| ())
    }

    fn stats(&self) -> RxStats {
        self.stats
    }
}
