//! The half of the peer that receives: it reads the headers of the frames that the stack sends.

use super::config::{Encoding, PeerConfig, Role};
use super::handle::{Shared, VERIFY_CHECKSUMS, VERIFY_FRAMES};
use super::headers::{self, HEADERS_LEN, TcpHeader, flags};
use super::sums::Sums;
use crate::{DeviceError, DeviceTx, TxChecksum, TxFrame, TxStats};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The half of a [`PeerDevice`](super::PeerDevice) that the stack sends to: the peer's receiver.
///
/// It takes every frame at once; what is wrong with one is counted by
/// [`PeerHandle`](super::PeerHandle). Of the [`stats`](DeviceTx::stats) only frames are counted.
#[derive(Debug)]
pub struct PeerTx {
    shared: Arc<Shared>,
    role: Role,
    stamped: bool,
    first_port: u16,
    connections: Vec<Receiving>,
    /// The connection of the last frame, whose changes are not published yet.
    current: usize,
    /// The stack's stream before it is encoded, which repeats; empty if it is not compared.
    expected: Vec<u8>,
    encoding: Option<Encoding>,
    /// Of the expected stream, if checksums are compared with it.
    sums: Option<Sums>,
    stats: TxStats,
}

/// One connection, as the receiving half has it.
#[derive(Clone, Debug, Default)]
struct Receiving {
    /// Window scale of the stack.
    scale: u8,
    /// Acknowledgment number and window of the newest frame.
    last: Option<(u32, u16)>,
    /// Its timestamp.
    stamp: u32,
    /// Sequence number that the next segment should begin with.
    next: u32,
    received: u64,
    /// What was published of it.
    published: u64,
    /// What arrived beyond `next`: sequence numbers of the first byte and of the one behind the
    /// last.
    beyond: Vec<(u32, u32)>,
}

impl Receiving {
    /// Bytes `seq` to `seq + len` have arrived.
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
    pub(super) fn new(config: PeerConfig, shared: Arc<Shared>) -> Self {
        PeerTx {
            shared,
            role: config.role,
            stamped: config.timestamps,
            first_port: config.ends.from.port(),
            connections: vec![Receiving::default(); config.connections],
            current: 0,
            sums: config.verify_checksums.then(|| Sums::new(&config.expected)),
            expected: config.expected,
            encoding: config.encoding,
            stats: TxStats::default(),
        }
    }

    fn syn(&mut self, index: usize, header: TcpHeader, options: &[u8]) {
        let connection = &mut self.connections[index];
        connection.scale = headers::window_scale(options);
        connection.next = header.seq.wrapping_add(1);
        // The window of a SYN is not scaled (RFC 7323 section 2.2).
        let stamp = headers::timestamp(options);
        self.window(index, header.ack.wrapping_add(u32::from(header.wnd)), stamp);
        // ORDERING: Release, pairs with the Acquire in `PeerRx::handshake`.
        self.shared.connections[index]
            .syn
            .store(1 << 32 | u64::from(header.seq), Ordering::Release);
    }

    fn window(&self, index: usize, edge: u32, stamp: u32) {
        let word = u64::from(stamp) << 32 | u64::from(edge);
        // ORDERING: Release, pairs with the Acquire in `PeerRx::window`.
        self.shared.connections[index]
            .window
            .store(word, Ordering::Release);
    }

    /// Publishes to the other half what the last frames of connection `index` changed.
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
            self.shared.connections[index]
                .received
                .store(connection.received, Ordering::Release);
        }
    }

    fn fault(count: &AtomicU64) {
        // ORDERING: Relaxed, a count.
        count.fetch_add(1, Ordering::Relaxed);
    }

    fn frame(&mut self, frame: &TxFrame<'_>) {
        let faults = &self.shared.faults;
        let Some(header) = TcpHeader::read(frame.head) else {
            return Self::fault(&faults.unexpected);
        };
        let index = match self.role {
            Role::Free => 0,
            _ => usize::from(header.destination_port.wrapping_sub(self.first_port)),
        };
        if index >= self.connections.len() {
            return Self::fault(&faults.unexpected);
        }
        if index != self.current {
            self.publish_progress(self.current);
            self.current = index;
        }
        let faults = &self.shared.faults;
        // ORDERING: Relaxed, frames on their way may be compared or not.
        let verify = self.shared.verify.load(Ordering::Relaxed);
        if verify != 0 {
            self.verify(verify, index, frame);
        }
        // A header that claims to be longer than its frame counts as no payload in order; `verify`
        // tells.
        let len = frame.len().wrapping_sub(header.headers_len);
        if self.role == Role::Free {
            let connection = &mut self.connections[index];
            connection.received = connection.received.wrapping_add(len as u64);
            return;
        }
        if header.flags & (flags::SYN | flags::RST | flags::FIN) != 0 {
            let first = self.connections[index].last.is_none();
            if header.flags == flags::SYN | flags::ACK && first {
                self.syn(index, header, frame.head.get(HEADERS_LEN..).unwrap_or(&[]));
            } else {
                Self::fault(&faults.unexpected);
            }
            return;
        }
        let connection = &mut self.connections[index];
        let ahead = header.seq.wrapping_sub(connection.next) as i32;
        if ahead != 0 {
            // One without payload sends nothing again, however late it comes.
            Self::fault(if ahead > 0 || len == 0 {
                &faults.out_of_order
            } else {
                &faults.sent_again
            });
        }
        connection.take(header.seq, len as u32);
        if self.stamped {
            connection.stamp = headers::timestamp(frame.head.get(HEADERS_LEN..).unwrap_or(&[]));
        }
        let now = (header.ack, header.wnd);
        if self.role == Role::Sender && len == 0 && connection.last == Some(now) {
            Self::fault(&faults.repeated_acks);
        }
        let overtaken = |(last, _): (u32, u16)| (header.ack.wrapping_sub(last) as i32) < 0;
        if connection.last.is_some_and(overtaken) {
            return Self::fault(&faults.out_of_order);
        }
        connection.last = Some(now);
    }

    /// Compares a frame with what it should be, as far as `what` says.
    #[cold]
    fn verify(&self, what: u8, index: usize, frame: &TxFrame<'_>) {
        // Read again: what is passed is stored by the caller also where it does not call.
        let Some(header) = TcpHeader::read(frame.head) else {
            return;
        };
        if !(HEADERS_LEN..=frame.len()).contains(&header.headers_len) {
            return Self::fault(&self.shared.faults.unexpected);
        }
        let connection = &self.connections[index];
        // Before or behind what arrived in order, by so much.
        let ahead = match self.role {
            Role::Free => 0,
            _ => header.seq.wrapping_sub(connection.next) as i32,
        };
        let offset = connection.received.wrapping_add_signed(i64::from(ahead));
        let right = (what & VERIFY_FRAMES == 0 || self.is_right(frame, header.headers_len, offset))
            && (what & VERIFY_CHECKSUMS == 0
                || self.has_expected_checksum(frame, header.headers_len, offset));
        if !right {
            Self::fault(&self.shared.faults.wrong);
        }
    }

    /// Whether the payload of `frame` is what is expected at `offset` of the stream, and its
    /// checksum that of the frame.
    fn is_right(&self, frame: &TxFrame<'_>, headers_len: usize, offset: u64) -> bool {
        let whole = [frame.head, frame.payload].concat();
        let payload = &whole[headers_len..];
        let checksum = match frame.meta.checksum {
            TxChecksum::Done => headers::checksum_is_good(&whole),
            // The device's to finish.
            TxChecksum::Partial { .. } => true,
        };
        if self.role == Role::Free || self.expected.is_empty() {
            return checksum;
        }
        let at = (offset % self.expected.len() as u64) as usize;
        let expected = self.expected.iter().cycle().skip(at).take(payload.len());
        let as_expected = match &self.encoding {
            None => payload.iter().eq(expected),
            Some(encoding) => {
                let plain: Vec<u8> = expected.copied().collect();
                let mut sent = vec![0; payload.len()];
                encoding.encode(offset, &plain, &mut sent);
                payload == sent
            }
        };
        as_expected && checksum
    }

    /// Whether the checksum of `frame` is that of its header and the payload that is expected at
    /// `offset` of the stream. The payload is not read.
    fn has_expected_checksum(&self, frame: &TxFrame<'_>, headers_len: usize, offset: u64) -> bool {
        let (Some(sums), TxChecksum::Done) = (&self.sums, frame.meta.checksum) else {
            return true;
        };
        let whole;
        let head = match frame.head.get(..headers_len) {
            Some(head) => head,
            None => {
                whole = [frame.head, frame.payload].concat();
                &whole[..headers_len]
            }
        };
        let payload = sums.of(offset, frame.len() - headers_len);
        headers::fold(headers::header_sum(head, frame.len()) + u64::from(payload)) == 0xffff
    }
}

impl DeviceTx for PeerTx {
    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, DeviceError> {
        for frame in frames {
            self.frame(frame);
        }
        self.publish_progress(self.current);
        self.stats.frames += frames.len() as u64;
        Ok(frames.len())
    }

    fn stats(&self) -> TxStats {
        self.stats
    }
}
