//! From frames to runs.
//!
//! Segments are merged only where no protocol step could tell: one flow, consecutive sequence numbers, and the
//! same acknowledgment, window, timestamps, flags and congestion mark; all but the last of equal length, PSH
//! or FIN only on the last. Segments with options besides timestamps stay alone. The device vouches for all
//! checksums of a run or for none, so that its word is the whole verdict.
//!
//! Acknowledgments without text are never merged, but up to seven of a flow share a request: each is applied by
//! itself, and the core that takes them up has one request to fetch for all. The pump verifies them itself, as
//! what there is to verify is the headers that it has just read, and gives their frames back at once.
//! Where a run ends is part of the request, so it is the same in every replica.

use core::net::SocketAddrV4;

use dominoes_drivers::Frame;

use crate::digest::{
    Acks, Body, ConnId, Digest, Flags, Flow, Kind, MAX_RUN, MORE_ACKS, Mac, Options, Request,
    SynOptions,
};
use crate::engine::Run;
use crate::engine::prepare::{is_good, vouched};
use crate::seqnum::SeqNum;
use crate::time::Instant;
use crate::wire;

/// The flow of a received segment, as we see it.
pub(crate) fn flow_of(tcp: &wire::Tcp) -> Flow {
    Flow {
        local: SocketAddrV4::new(tcp.dst, tcp.dst_port),
        remote: SocketAddrV4::new(tcp.src, tcp.src_port),
    }
}

/// A run that may still grow.
#[derive(Debug, Default)]
pub(crate) struct OpenRun {
    head: Option<Head>,
    run: Run,
}

#[derive(Clone, Copy, Debug)]
struct Head {
    first: wire::Tcp,
    flow: Flow,
    mac: Mac,
    /// Flags of the last segment.
    flags: u8,
    len: u32,
    /// Whether the last segment may be followed by another.
    open: bool,
    /// Segments so far.
    count: usize,
    /// With `is_acks`, what the second and later ones say.
    acks: Acks,
    /// Whether it is acknowledgments without text whose checksum is good.
    is_acks: bool,
    /// Whether the device vouches for the checksums.
    vouched: bool,
}

/// PSH and FIN: what only the last segment of a run may have.
const LAST_ONLY: u8 = Flags::PSH.0 | Flags::FIN.0;

impl OpenRun {
    /// The flow of the segments that are gathered.
    pub(crate) fn flow(&self) -> Option<Flow> {
        self.head.map(|head| head.flow)
    }

    /// Adds a segment if it may stand in the same run, or refuses its frame. A frame that nobody needs any more
    /// comes back at once.
    pub(crate) fn push(
        &mut self,
        tcp: &wire::Tcp,
        mac: [u8; 6],
        frame: Frame,
        merge: bool,
    ) -> Result<Option<Frame>, Frame> {
        let Some(head) = &mut self.head else {
            let is_acks = is_bare_ack(tcp) && (vouched(&frame) || is_good(frame.bytes()));
            self.head = Some(Head {
                first: *tcp,
                flow: flow_of(tcp),
                mac: Mac(mac),
                flags: tcp.flags,
                len: tcp.payload_len,
                open: merge && (is_acks || may_begin(tcp, &frame)),
                vouched: vouched(&frame),
                count: 1,
                acks: Acks::default(),
                is_acks,
            });
            if is_acks {
                return Ok(Some(frame));
            }
            self.run.frames.push(frame);
            return Ok(None);
        };
        let first = &head.first;
        let fits = head.open
            && if head.is_acks {
                head.count <= MORE_ACKS
                    && is_bare_ack(tcp)
                    && (vouched(&frame) || is_good(frame.bytes()))
            } else {
                head.count < MAX_RUN
                    && may_continue(tcp)
                    && tcp.payload_len <= first.payload_len
                    && tcp.ack == first.ack
                    && tcp.wnd == first.wnd
                    && vouched(&frame) == head.vouched
                    && frame.meta.gso.is_none()
            }
            && tcp.seq == first.seq.wrapping_add(head.len)
            && tcp.timestamps == first.timestamps
            && tcp.ce == first.ce
            && tcp.payload_offset == first.payload_offset
            && (tcp.flags ^ first.flags) & !LAST_ONLY == 0
            && tcp.src_port == first.src_port
            && tcp.dst_port == first.dst_port
            && tcp.src == first.src
            && tcp.dst == first.dst;
        if !fits {
            return Err(frame);
        }
        if head.is_acks {
            head.acks.ack[head.count - 1] = SeqNum(tcp.ack);
            head.acks.wnd[head.count - 1] = tcp.wnd;
            head.count += 1;
            return Ok(Some(frame));
        }
        head.count += 1;
        head.len += tcp.payload_len;
        head.flags = tcp.flags;
        head.open = tcp.flags & LAST_ONLY == 0 && tcp.payload_len == first.payload_len;
        self.run.frames.push(frame);
        Ok(None)
    }

    /// Ends the run: its request, stamped, and its frames. `None` if there is none. `spare` gives an empty run that
    /// takes the frames of the next one.
    pub(crate) fn take(
        &mut self,
        now: Instant,
        sent: u64,
        hint: ConnId,
        cursors: Option<(u64, u64)>,
        spare: impl FnOnce() -> Run,
    ) -> Option<(Request, Run)> {
        let head = self.head.take()?;
        let run = if head.is_acks {
            Run::default()
        } else {
            core::mem::replace(&mut self.run, spare())
        };
        let tcp = &head.first;
        let mut digest = Digest::bare(Kind::Segments, now, sent);
        digest.hint = hint;
        digest.seg_seq = SeqNum(tcp.seq);
        digest.seg_ack = SeqNum(tcp.ack);
        digest.len = head.len;
        digest.seg_len = tcp.payload_len as u16;
        digest.seg_wnd = tcp.wnd;
        digest.flags = Flags(head.flags);
        digest.count = head.count as u8;
        if let Some((val, ecr)) = tcp.timestamps {
            digest.ts_val = val;
            digest.ts_ecr = ecr;
            digest.bits |= Digest::TIMESTAMPS;
        }
        if let Some((read, written)) = cursors {
            digest.app_read = read as u32;
            digest.app_written = written as u32;
            digest.bits |= Digest::PROGRESS;
        }
        let options = if head.is_acks && head.count > 1 {
            digest.bits |= Digest::ACKS;
            Options::Acks(head.acks)
        } else {
            options_of(tcp)
        };
        if tcp.options.any {
            digest.bits |= Digest::OPTIONS;
        }
        if tcp.ce {
            digest.bits |= Digest::CE;
        }
        let body = Body::Segment {
            flow: head.flow,
            mac: head.mac,
            payload_offset: tcp.payload_offset,
            options,
        };
        Some((Request { digest, body }, run))
    }
}

fn may_begin(tcp: &wire::Tcp, frame: &Frame) -> bool {
    may_continue(tcp) && tcp.flags & LAST_ONLY == 0 && frame.meta.gso.is_none()
}

fn may_continue(tcp: &wire::Tcp) -> bool {
    tcp.payload_len > 0 && tcp.flags & !LAST_ONLY == Flags::ACK.0 && !tcp.options.any
}

/// An acknowledgment and nothing else.
fn is_bare_ack(tcp: &wire::Tcp) -> bool {
    tcp.payload_len == 0 && tcp.flags == Flags::ACK.0 && !tcp.options.any
}

fn options_of(tcp: &wire::Tcp) -> Options {
    let o = &tcp.options;
    if !o.any {
        return Options::None;
    }
    if tcp.flags & Flags::SYN.0 != 0 {
        return Options::Syn(SynOptions {
            mss: o.mss,
            window_scale: o.window_scale,
            sack_permitted: o.sack_permitted,
        });
    }
    let mut blocks = [(SeqNum(0), SeqNum(0)); 4];
    let mut count = 0;
    for (left, right) in o.sack.iter().flatten() {
        blocks[usize::from(count)] = (SeqNum(*left), SeqNum(*right));
        count += 1;
    }
    if count == 0 {
        Options::None
    } else {
        Options::Sack { count, blocks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Packet, TcpHeaders};
    use std::net::Ipv4Addr;

    fn frame(seq: u32, flags: Flags, payload: &[u8]) -> (wire::Tcp, Frame) {
        let headers = TcpHeaders {
            src_mac: [2; 6],
            dst_mac: [4; 6],
            src: Ipv4Addr::new(10, 0, 0, 2),
            dst: Ipv4Addr::new(10, 0, 0, 1),
            src_port: 4000,
            dst_port: 80,
            seq,
            ack: 9,
            wnd: 100,
            flags: flags.0,
            timestamps: None,
            mss: None,
            window_scale: None,
            sack_permitted: false,
            payload_len: payload.len(),
        };
        let mut bytes = vec![0; 200];
        let head = wire::emit_tcp(&mut bytes, &headers);
        bytes.truncate(head);
        bytes.extend(payload);
        let Ok(Packet::Tcp(tcp)) = wire::parse(&bytes) else {
            panic!("not TCP")
        };
        (tcp, Frame::from_bytes(&bytes))
    }

    fn push(run: &mut OpenRun, seq: u32, flags: Flags, payload: &[u8]) -> bool {
        let (tcp, frame) = frame(seq, flags, payload);
        run.push(&tcp, [2; 6], frame, true).is_ok()
    }

    #[test]
    fn consecutive_segments_make_one_run_until_a_shorter_or_pushed_one_ends_it() {
        let mut run = OpenRun::default();
        assert!(push(&mut run, 100, Flags::ACK, &[1; 10]));
        assert!(push(&mut run, 110, Flags::ACK, &[2; 10]));
        assert!(push(&mut run, 120, Flags::ACK.with(Flags::PSH), &[3; 10]));
        assert!(!push(&mut run, 130, Flags::ACK, &[4; 10]));
        let (request, frames) = run
            .take(Instant::ZERO, 3, ConnId::NONE, None, Run::default)
            .unwrap();
        assert_eq!(request.digest.count, 3);
        assert_eq!(request.digest.len, 30);
        assert_eq!(request.digest.seg_len, 10);
        assert_eq!(request.digest.sent, 3);
        assert!(request.digest.flags.has(Flags::PSH));
        assert_eq!(frames.frames.len(), 3);
        assert!(run.flow().is_none());

        assert!(push(&mut run, 100, Flags::ACK, &[1; 10]));
        assert!(push(&mut run, 110, Flags::ACK, &[2; 4]));
        assert!(!push(&mut run, 114, Flags::ACK, &[2; 4]));
    }

    #[test]
    fn the_device_vouches_for_a_run_as_a_whole_or_not_at_all() {
        let mut run = OpenRun::default();
        let (tcp, mut first) = frame(100, Flags::ACK, &[1; 10]);
        first.meta.checksum = dominoes_drivers::RxChecksum::Valid;
        assert!(run.push(&tcp, [2; 6], first, true).is_ok());
        let (tcp, mut second) = frame(110, Flags::ACK, &[2; 10]);
        assert!(run.push(&tcp, [2; 6], second.clone(), true).is_err());
        second.meta.checksum = dominoes_drivers::RxChecksum::Valid;
        assert!(run.push(&tcp, [2; 6], second, true).is_ok());
    }

    #[test]
    fn a_gap_a_pure_ack_and_a_longer_segment_begin_runs_of_their_own() {
        let mut run = OpenRun::default();
        assert!(push(&mut run, 100, Flags::ACK, &[1; 10]));
        assert!(!push(&mut run, 111, Flags::ACK, &[2; 10]));
        assert!(!push(&mut run, 110, Flags::ACK, &[]));
        assert!(!push(&mut run, 110, Flags::ACK, &[2; 11]));
        run.take(Instant::ZERO, 0, ConnId::NONE, None, Run::default);
        assert!(push(&mut run, 100, Flags::ACK, &[]));
        assert!(!push(&mut run, 100, Flags::ACK, &[1; 10]));
    }

    #[test]
    fn bare_acknowledgments_share_a_request_and_their_frames_go_back() {
        let mut run = OpenRun::default();
        for _ in 0..=MORE_ACKS {
            let (mut tcp, mut frame) = frame(100, Flags::ACK, &[]);
            frame.meta.checksum = dominoes_drivers::RxChecksum::Valid;
            tcp.ack += 2;
            assert!(matches!(run.push(&tcp, [2; 6], frame, true), Ok(Some(_))));
        }
        assert!(!push(&mut run, 100, Flags::ACK, &[]));
        let (request, frames) = run
            .take(Instant::ZERO, 0, ConnId::NONE, None, Run::default)
            .unwrap();
        assert_eq!((request.digest.count, request.digest.len), (7, 0));
        assert!(frames.frames.is_empty());
        let mut seen = 0;
        request.pieces(0xff, |ack| seen += usize::from(ack.ack == SeqNum(11)));
        assert_eq!(seen, 1 + MORE_ACKS);
    }

    #[test]
    fn an_acknowledgment_with_a_bad_checksum_goes_the_way_of_all_segments() {
        let mut run = OpenRun::default();
        let (tcp, frame) = frame(100, Flags::ACK, &[]);
        // `emit_tcp` leaves the checksum to whoever knows the payload.
        assert!(matches!(run.push(&tcp, [2; 6], frame, true), Ok(None)));
        let (request, frames) = run
            .take(Instant::ZERO, 0, ConnId::NONE, None, Run::default)
            .unwrap();
        assert_eq!((request.digest.count, frames.frames.len()), (1, 1));
        assert_eq!(crate::engine::prepare::prepare(&request, &frames), 0);
    }
}
