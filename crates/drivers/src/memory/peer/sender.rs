//! The half of the peer that sends: it patches the headers of the next prebuilt frames when they
//! are claimed.

use super::config::{ACK_BUFFER, Payload, PeerConfig, Role};
use super::handle::Shared;
use super::headers::{self, Ends, HEADERS_LEN, Numbers, Patch, flags};
use super::pool::Pool;
use super::{PEER_ISS, PEER_SCALE};
use crate::{DeviceError, DeviceRx, Frame, RxChecksum, RxMeta, RxStats, Waker};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Pure acknowledgments in circulation.
const ACKS: usize = 4096;
/// Calls without news after which a segment by itself is acknowledged.
pub(super) const ACK_AFTER_IDLE_CLAIMS: u32 = 64;
/// Segments between two ticks of the peer's timestamp clock: about a millisecond.
const TICK: u64 = 512;

/// How far the handshake is (RFC 9293 section 3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Closed,
    SynSent,
    Established,
}

/// The half of a [`PeerDevice`](super::PeerDevice) that the stack receives from: the peer's sender.
///
/// A frame that is given back is sent again with other numbers, so it has to be given back as it
/// was claimed. Of the [`stats`](DeviceRx::stats) only frames are counted.
#[derive(Debug)]
pub struct PeerRx {
    shared: Arc<Shared>,
    role: Role,
    ends: Ends,
    segment: u32,
    stamped: bool,
    /// What all frames say of their checksums.
    checksum: RxChecksum,
    /// Bytes at the beginning of a frame that are about to be patched.
    head: usize,
    /// Frames with payload, for each prebuilt payload (one, if all are alike); the one that was
    /// unused for longest first. Stacks give frames back in any order.
    data: Vec<Pool>,
    /// For each of them.
    data_patches: Vec<Patch>,
    /// Bytes of their buffers.
    data_buffer: usize,
    /// Whether payloads begin with their offset.
    marked: bool,
    acks: Pool,
    ack_patch: Patch,
    connections: Vec<Sending>,
    /// Connections that are established; they are opened one after the other.
    open: usize,
    /// Whose turn it is.
    turn: usize,
    /// Segments of one connection in a row, if there are several.
    burst: usize,
    /// Segments sent, of all connections.
    sent: u64,
    stats: RxStats,
}

/// One connection, as the sending half has it.
#[derive(Debug)]
struct Sending {
    index: usize,
    phase: Phase,
    /// Next byte of the peer's stream.
    offset: u64,
    /// The stack's first sequence number.
    iss: u32,
    /// How much of the stack's stream was acknowledged.
    acked: u64,
    /// How much of it had arrived at the last call, and how often it was the same since.
    received: u64,
    silence: u32,
}

impl Sending {
    fn new(index: usize) -> Self {
        Sending {
            index,
            phase: Phase::Closed,
            offset: 0,
            iss: 0,
            acked: 0,
            received: 0,
            silence: 0,
        }
    }
}

impl PeerRx {
    pub(super) fn new(config: &PeerConfig, shared: Arc<Shared>) -> Self {
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
        let frames = if config.role == Role::Receiver {
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
                .map(|segment| Pool::new(segment, buffer, count, meta))
                .collect(),
            data_patches: segments.iter().map(patch).collect(),
            data_buffer: buffer,
            marked,
            acks: Pool::new(&ack, ACK_BUFFER, ACKS, meta),
            ack_patch: Patch::new(&ack),
            shared,
            role: config.role,
            ends,
            segment: config.segment_bytes as u32,
            stamped: config.timestamps,
            checksum,
            head: config.head_bytes() + 4,
            connections: (0..config.connections).map(Sending::new).collect(),
            open: if config.role == Role::Free {
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
            Phase::Closed => {
                // The size that is announced counts no options (RFC 6691).
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
                self.connections[index].phase = Phase::SynSent;
            }
            Phase::SynSent => {
                // ORDERING: Acquire, pairs with the Release in `PeerTx::syn`.
                let syn = self.shared.connections[index].syn.load(Ordering::Acquire);
                if syn >> 32 != 0 {
                    self.connections[index].iss = syn as u32;
                    if self.acknowledge(index, 0, out) {
                        self.connections[index].phase = Phase::Established;
                        self.open += 1;
                    }
                }
            }
            Phase::Established => {}
        }
    }

    /// The stack's window and timestamp on connection `index`.
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

    /// A pure acknowledgment of the stack's stream up to `upto`.
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

    /// Sends segments as far as the window goes, at most until `out` holds `max` frames. Returns
    /// how many.
    fn segments(&mut self, index: usize, max: usize, out: &mut Vec<Frame>) -> usize {
        let (edge, echo) = self.window(index);
        let clock = self.clock();
        let sending = &mut self.connections[index];
        let left = if self.role == Role::Free {
            usize::MAX
        } else {
            let open = edge.wrapping_sub(sequence(PEER_ISS, sending.offset));
            // The edge may lie behind what was sent only for a moment in the handshake.
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

    /// The next frames of connection `index`.
    fn serve(&mut self, index: usize, max: usize, out: &mut Vec<Frame>) {
        match self.role {
            Role::Receiver => self.acknowledgments(index, max, out),
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
            // ORDERING: Relaxed, it says nothing of other memory.
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
            // The two kinds differ in capacity; the frames of the handshake are of neither.
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

    fn waker(&self) -> Waker {
        Waker::new(|| ())
    }

    fn stats(&self) -> RxStats {
        self.stats
    }
}
