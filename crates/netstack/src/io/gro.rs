//! From frames to runs.
//!
//! All frames that the pump claims at once are gathered by flow: [`OpenRuns`] has an open run for
//! each of up to 64 flows, so connections whose frames alternate merge as well as one alone. The
//! header template of a flow's last run stays, so that the first segment of its next run need not
//! be parsed either.
//!
//! Segments are merged only where no protocol step could tell: one flow, consecutive sequence
//! numbers, and the same acknowledgment, window, timestamps, flags and congestion mark; all but the
//! last of equal length, PSH or FIN only on the last. Segments with options besides timestamps stay
//! alone. The device vouches for all checksums of a run or for none, so that its word is the whole
//! verdict.
//!
//! Acknowledgments without text are never merged, but up to seven of a flow share a request: each
//! is applied by itself, and the core that takes them up has one request to fetch for all. The pump
//! verifies them itself, as what there is to verify is the headers that it has just read, and gives
//! their frames back at once. Where a run ends is part of the request, so it is the same in every
//! replica.

use core::net::{Ipv4Addr, SocketAddrV4};
use std::vec;

use dominoes_drivers::Frame;

use crate::io::Run;
use crate::io::prepare::{is_good, is_verified_by_device};
use crate::log::request::{
    Acks, Body, ConnId, Digest, Flags, Flow, Kind, MAX_RUN, MORE_ACKS, Mac, Options, Request, Sack,
    SynOptions, Verdict,
};
use crate::packet as wire;
use crate::seqnum::SeqNum;
use crate::time::Instant;

/// The flow of a received segment, as we see it.
pub(crate) fn flow_of(tcp: &wire::Tcp) -> Flow {
    Flow {
        local: SocketAddrV4::new(tcp.dst, tcp.dst_port),
        remote: SocketAddrV4::new(tcp.src, tcp.src_port),
    }
}

/// A run that may still grow. Its request is written where it is gathered.
#[derive(Debug)]
pub(crate) struct OpenRun {
    /// Whether there is one.
    begun: bool,
    /// Whether another segment may follow.
    open: bool,
    /// Whether it is acknowledgments without text whose checksum is good.
    is_acks: bool,
    /// Whether the device vouches for the checksums.
    is_verified_by_device: bool,
    /// Flags of the first segment; the digest has those of the last.
    flags: u8,
    /// Whose segments they are.
    pub(crate) flow: Flow,
    /// The connection of the flow, with the number of the table that it was looked up in.
    pub(crate) hint: Option<(u64, ConnId)>,
    /// What a segment looks like that surely follows, in the run or behind it.
    next: Option<wire::HeaderTemplate>,
    /// With `is_acks`, what the second and later ones say.
    acks: Acks,
    /// Of the run, or of the last one.
    pub(crate) request: Request,
    run: Run,
}

impl Default for OpenRun {
    fn default() -> Self {
        let nobody = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
        OpenRun {
            begun: false,
            open: false,
            is_acks: false,
            is_verified_by_device: false,
            flags: 0,
            flow: Flow {
                local: nobody,
                remote: nobody,
            },
            hint: None,
            next: None,
            acks: Acks::default(),
            request: Request::tick(Instant::ZERO, 0),
            run: Run::default(),
        }
    }
}

/// Flows that have an open run at a time.
pub(crate) const OPEN_RUNS: usize = 64;

/// The entry of the flow between these addresses and ports.
#[inline(always)]
const fn entry_of(src: u32, dst: u32, ports: u32) -> usize {
    let mixed = (src ^ dst.rotate_left(16) ^ ports).wrapping_mul(0x9e37_79b1);
    (mixed >> (32 - OPEN_RUNS.trailing_zeros())) as usize
}

/// How a frame differs from its flow's header template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Repeated {
    ack: SeqNum,
    wnd: u16,
    is_pushed: bool,
}

/// The open runs of the frames that were claimed at once: one at most for a flow. Flows whose
/// entries collide end the runs of one another.
#[derive(Debug)]
pub(crate) struct OpenRuns {
    runs: Box<[OpenRun]>,
    /// A bit for each run that has begun.
    begun: u64,
    /// The entry of the last segment.
    current: usize,
}

impl Default for OpenRuns {
    fn default() -> Self {
        OpenRuns {
            runs: (0..OPEN_RUNS).map(|_| OpenRun::default()).collect(),
            begun: 0,
            current: 0,
        }
    }
}

impl OpenRuns {
    /// Makes the run of the flow of this frame the current one. Returns false if it is that already
    /// or the frame is no TCP segment without IP options.
    #[inline(always)]
    pub(crate) fn switch_to_flow_of(&mut self, frame: &Frame) -> bool {
        let Some([src, dst, ports]) = wire::plain_tcp_flow(frame.bytes()) else {
            return false;
        };
        let entry = entry_of(src, dst, ports);
        core::mem::replace(&mut self.current, entry) != entry
    }

    /// Makes the run of the flow of this segment the current one.
    pub(crate) fn switch_to(&mut self, tcp: &wire::Tcp) {
        let ports = u32::from(tcp.src_port) << 16 | u32::from(tcp.dst_port);
        self.current = entry_of(tcp.src.to_bits(), tcp.dst.to_bits(), ports);
    }

    /// The run of the last segment.
    #[inline(always)]
    pub(crate) fn current(&mut self) -> &mut OpenRun {
        &mut self.runs[self.current]
    }

    /// Notes that the current run has begun.
    #[inline(always)]
    pub(crate) fn note_begun(&mut self) {
        self.begun |= 1 << self.current;
    }

    /// Makes the next run that has begun the current one, and forgets that it has. Returns false if
    /// there is none.
    #[inline(always)]
    pub(crate) fn next_begun(&mut self) -> bool {
        if self.begun == 0 {
            return false;
        }
        self.current = self.begun.trailing_zeros() as usize;
        self.begun &= self.begun - 1;
        true
    }
}

/// PSH and FIN: what only the last segment of a run may have.
const LAST_ONLY: u8 = Flags::PSH.0 | Flags::FIN.0;

impl OpenRun {
    /// Adds the next segments of a bulk transfer, which are known by their looks. Returns how many;
    /// what comes next has to be parsed. Frames that are not needed any more go to `done_with`.
    #[inline]
    pub(crate) fn follow(
        &mut self,
        frames: &mut vec::Drain<'_, Frame>,
        done_with: &mut Vec<Frame>,
    ) -> usize {
        let Some(next) = self.next.as_ref().filter(|_| self.open) else {
            return 0;
        };
        let digest = &mut self.request.digest;
        if self.is_acks {
            let before = digest.count;
            for frame in frames.as_slice() {
                let more = usize::from(digest.count) - 1;
                if more == MORE_ACKS {
                    break;
                }
                let Some((ack, wnd)) = next.acknowledges(frame.bytes(), digest.seg_seq.0) else {
                    break;
                };
                if !verified(frame) {
                    break;
                }
                self.acks.ack[more] = SeqNum(ack);
                self.acks.wnd[more] = wnd;
                digest.count += 1;
            }
            let many = usize::from(digest.count - before);
            done_with.extend(frames.take(many));
            return many;
        }
        let mut seq = digest.seg_seq.0.wrapping_add(digest.len);
        let room = MAX_RUN - usize::from(digest.count);
        // Looked at first and moved then, all at once.
        let waiting = frames.as_slice().iter().take(room);
        let many = waiting
            .take_while(|frame| {
                let follows = is_verified_by_device(frame) == self.is_verified_by_device
                    && frame.meta.gso.is_none()
                    && next.matches(frame.bytes(), seq);
                seq = seq.wrapping_add(u32::from(digest.seg_len));
                follows
            })
            .count();
        self.run.frames.extend(frames.take(many));
        digest.count += many as u8;
        digest.len += many as u32 * u32::from(digest.seg_len);
        if usize::from(digest.count) < MAX_RUN
            && let Some(frame) = frames.as_slice().first()
            && is_verified_by_device(frame) == self.is_verified_by_device
            && frame.meta.gso.is_none()
            && next.matches_pushed(frame.bytes(), digest.seg_seq.0.wrapping_add(digest.len))
        {
            self.run.frames.extend(frames.next());
            digest.count += 1;
            digest.len += u32::from(digest.seg_len);
            digest.flags = Flags(self.flags).with(Flags::PSH);
            self.open = false;
            return many + 1;
        }
        many
    }

    /// Adds a segment if it may stand in the same run, or refuses its frame. A frame that nobody
    /// needs any more comes back at once.
    pub(crate) fn push(
        &mut self,
        tcp: &wire::Tcp,
        mac: [u8; 6],
        frame: Frame,
    ) -> Result<Option<Frame>, Frame> {
        if !self.begun {
            return Ok(self.begin(tcp, mac, frame));
        }
        if !self.may_take(tcp, &frame) {
            return Err(frame);
        }
        let digest = &mut self.request.digest;
        digest.count += 1;
        if self.is_acks {
            let more = usize::from(digest.count) - 2;
            self.acks.ack[more] = SeqNum(tcp.ack);
            self.acks.wnd[more] = tcp.wnd;
            return Ok(Some(frame));
        }
        digest.len += tcp.payload_len;
        digest.flags = Flags(tcp.flags);
        self.open = tcp.flags & LAST_ONLY == 0 && tcp.payload_len == u32::from(digest.seg_len);
        self.run.frames.push(frame);
        Ok(None)
    }

    fn begin(&mut self, tcp: &wire::Tcp, mac: [u8; 6], frame: Frame) -> Option<Frame> {
        self.begun = true;
        self.is_verified_by_device = is_verified_by_device(&frame);
        self.is_acks = is_bare_ack(tcp) && verified(&frame);
        self.open = self.is_acks || may_begin(tcp, &frame);
        self.flags = tcp.flags & !Flags::PSH.0;
        let flow = flow_of(tcp);
        if flow != self.flow {
            (self.flow, self.hint) = (flow, None);
        }
        let is_plain = may_continue(tcp) && tcp.flags & Flags::FIN.0 == 0;
        self.next = (self.is_acks || is_plain && frame.meta.gso.is_none())
            .then(|| wire::HeaderTemplate::new(frame.bytes(), tcp))
            .flatten();
        let Request { digest, body } = &mut self.request;
        digest.kind = Kind::Segments;
        digest.seg_seq = SeqNum(tcp.seq);
        digest.seg_ack = SeqNum(tcp.ack);
        digest.len = tcp.payload_len;
        digest.seg_len = tcp.payload_len as u16;
        digest.seg_wnd = tcp.wnd;
        digest.flags = Flags(tcp.flags);
        digest.count = 1;
        let timestamps = if tcp.timestamps.is_some() {
            Digest::TIMESTAMPS
        } else {
            0
        };
        (digest.ts_val, digest.ts_ecr) = tcp.timestamps.unwrap_or_default();
        let options = if tcp.options.any { Digest::OPTIONS } else { 0 };
        let ce = if tcp.ce { Digest::CE } else { 0 };
        digest.bits = timestamps | options | ce;
        *body = Body::Segment {
            flow: self.flow,
            mac: Mac(mac),
            payload_offset: tcp.payload_offset,
            options: options_of(tcp),
        };
        if self.is_acks {
            return Some(frame);
        }
        self.run.seq = SeqNum(tcp.seq);
        self.run.frames.push(frame);
        None
    }

    fn may_take(&self, tcp: &wire::Tcp, frame: &Frame) -> bool {
        let digest = &self.request.digest;
        let of_a_kind = self.open
            && if self.is_acks {
                usize::from(digest.count) <= MORE_ACKS && is_bare_ack(tcp) && verified(frame)
            } else {
                usize::from(digest.count) < MAX_RUN
                    && may_continue(tcp)
                    && tcp.payload_len <= u32::from(digest.seg_len)
                    && tcp.ack == digest.seg_ack.0
                    && tcp.wnd == digest.seg_wnd
                    && is_verified_by_device(frame) == self.is_verified_by_device
                    && frame.meta.gso.is_none()
            };
        let timestamps =
            (digest.bits & Digest::TIMESTAMPS != 0).then_some((digest.ts_val, digest.ts_ecr));
        of_a_kind
            && tcp.seq == digest.seg_seq.0.wrapping_add(digest.len)
            && tcp.timestamps == timestamps
            && tcp.ce == (digest.bits & Digest::CE != 0)
            && usize::from(tcp.payload_offset) == self.request.layout().1
            && (tcp.flags ^ self.flags) & !LAST_ONLY == 0
            && flow_of(tcp) == self.flow
    }

    /// What differs in `frame` if it repeats the header template of the flow: then it continues the
    /// flow's last run, or begins one right behind it.
    #[inline]
    pub(crate) fn matches_template(&self, frame: &Frame) -> Option<Repeated> {
        let next = self.next.as_ref()?;
        let digest = &self.request.digest;
        let seq = digest.seg_seq + digest.len;
        if self.is_acks {
            let (ack, wnd) = next.acknowledges(frame.bytes(), seq.0)?;
            return verified(frame).then_some(Repeated {
                ack: SeqNum(ack),
                wnd,
                is_pushed: false,
            });
        }
        let may_follow =
            is_verified_by_device(frame) == self.is_verified_by_device && frame.meta.gso.is_none();
        let is_pushed = may_follow && next.matches_pushed(frame.bytes(), seq.0);
        let follows = is_pushed || may_follow && next.matches(frame.bytes(), seq.0);
        follows.then_some(Repeated {
            ack: digest.seg_ack,
            wnd: digest.seg_wnd,
            is_pushed,
        })
    }

    /// A frame is there of which [`OpenRun::matches_template`] said something: if only its length
    /// ends the run, says so. A batch of frames ends this, so an acknowledgment waits for no more
    /// than those.
    #[inline]
    pub(crate) fn record_followed(&mut self) {
        let digest = &mut self.request.digest;
        if !self.is_acks && usize::from(digest.count) == MAX_RUN && self.open {
            digest.bits |= Digest::FOLLOWED;
        }
    }

    /// Begins a run with a frame that differs from the header template by `what`, when there is no
    /// run. A frame that is not needed any more goes to `done_with`.
    #[inline]
    pub(crate) fn repeat(&mut self, frame: Frame, what: Repeated, done_with: &mut Vec<Frame>) {
        let digest = &mut self.request.digest;
        digest.seg_seq += digest.len;
        (digest.seg_ack, digest.seg_wnd) = (what.ack, what.wnd);
        digest.count = 1;
        digest.flags = Flags(self.flags);
        if what.is_pushed {
            digest.flags = digest.flags.with(Flags::PSH);
        }
        digest.bits &= Digest::TIMESTAMPS | Digest::CE;
        (self.begun, self.open) = (true, !what.is_pushed);
        if self.is_acks {
            if let Body::Segment { options, .. } = &mut self.request.body {
                *options = Options::None;
            }
            done_with.push(frame);
        } else {
            digest.len = u32::from(digest.seg_len);
            self.run.seq = digest.seg_seq;
            self.run.frames.push(frame);
        }
    }

    /// Ends the run: its frames, and its verdict if that is known without looking at the payload.
    /// Its request stays in `request`, without time, credit, hint and cursors. `None` if there is
    /// none. `spare` gives an empty run that takes the frames of the next one.
    #[inline]
    pub(crate) fn take(&mut self, spare: impl FnOnce() -> Run) -> Option<(Run, Option<Verdict>)> {
        if !self.begun {
            return None;
        }
        (self.begun, self.open) = (false, false);
        let digest = &mut self.request.digest;
        if self.is_acks && digest.count > 1 {
            digest.bits |= Digest::ACKS;
            if let Body::Segment { options, .. } = &mut self.request.body {
                *options = Options::Acks(self.acks);
            }
        }
        let run = if self.is_acks {
            Run::default()
        } else {
            core::mem::replace(&mut self.run, spare())
        };
        let known = self.is_acks || self.is_verified_by_device;
        Some((run, known.then(|| self.request.digest.all_good())))
    }
}

fn may_begin(tcp: &wire::Tcp, frame: &Frame) -> bool {
    may_continue(tcp) && tcp.flags & LAST_ONLY == 0 && frame.meta.gso.is_none()
}

fn may_continue(tcp: &wire::Tcp) -> bool {
    tcp.payload_len > 0 && tcp.flags & !LAST_ONLY == Flags::ACK.0 && !tcp.options.any
}

/// Whether the checksum of a frame is right, as the device says or the frame shows.
#[inline]
fn verified(frame: &Frame) -> bool {
    is_verified_by_device(frame) || is_good(frame.bytes())
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
    if o.sack.count == 0 {
        return Options::None;
    }
    let mut sack = Sack::NONE;
    for (left, right) in o.sack.iter() {
        sack.push(SeqNum(left), SeqNum(right));
    }
    Options::Sack(sack)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Packet, TcpHeaders};
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
            ect: false,
            ttl: 64,
            tos: 0,
            timestamps: None,
            mss: None,
            window_scale: None,
            sack_permitted: false,
            sack: wire::SackBlocks::default(),
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
        run.push(&tcp, [2; 6], frame).is_ok()
    }

    #[test]
    fn consecutive_segments_make_one_run_until_a_shorter_or_pushed_one_ends_it() {
        let mut run = OpenRun::default();
        assert!(push(&mut run, 100, Flags::ACK, &[1; 10]));
        assert!(push(&mut run, 110, Flags::ACK, &[2; 10]));
        assert!(push(&mut run, 120, Flags::ACK.with(Flags::PSH), &[3; 10]));
        assert!(!push(&mut run, 130, Flags::ACK, &[4; 10]));
        let (frames, _) = run.take(Run::default).unwrap();
        let request = run.request;
        assert_eq!(request.digest.count, 3);
        assert_eq!(request.digest.len, 30);
        assert_eq!(request.digest.seg_len, 10);
        assert!(request.digest.flags.has(Flags::PSH));
        assert_eq!(frames.frames.len(), 3);
        assert!(run.take(Run::default).is_none());

        assert!(push(&mut run, 100, Flags::ACK, &[1; 10]));
        assert!(push(&mut run, 110, Flags::ACK, &[2; 4]));
        assert!(!push(&mut run, 114, Flags::ACK, &[2; 4]));
    }

    #[test]
    fn a_full_run_says_that_more_is_there_already_and_the_last_one_does_not() {
        let mut run = OpenRun::default();
        for i in 0..MAX_RUN as u32 {
            assert!(push(&mut run, 100 + 10 * i, Flags::ACK, &[1; 10]));
        }
        let next = frame(420, Flags::ACK, &[2; 10]).1;
        let what = run.matches_template(&next).unwrap();
        run.record_followed();
        run.take(Run::default).unwrap();
        assert!(run.request.digest.bits & Digest::FOLLOWED != 0);
        assert_eq!(usize::from(run.request.digest.count), MAX_RUN);

        run.repeat(next, what, &mut Vec::new());
        // Only its length may have ended it.
        run.record_followed();
        run.take(Run::default).unwrap();
        assert!(run.request.digest.bits & Digest::FOLLOWED == 0);
    }

    #[test]
    fn flows_whose_segments_alternate_have_a_run_each() {
        let mut runs = OpenRuns::default();
        for i in 0..4u32 {
            for port in [4000, 4001] {
                let (mut tcp, mut frame) = frame(100 + 10 * i, Flags::ACK, &[1; 10]);
                tcp.src_port = port;
                frame.bytes_mut()[34..36].copy_from_slice(&port.to_be_bytes());
                assert!(runs.switch_to_flow_of(&frame));
                let entry = runs.current;
                runs.switch_to(&tcp);
                assert_eq!(runs.current, entry);
                assert!(runs.current().push(&tcp, [2; 6], frame).is_ok());
                runs.note_begun();
            }
        }
        for _ in 0..2 {
            assert!(runs.next_begun());
            let (run, _) = runs.current().take(Run::default).unwrap();
            assert_eq!(run.frames.len(), 4);
        }
        assert!(!runs.next_begun());
    }

    #[test]
    fn a_pushed_segment_ends_a_run_and_the_next_one_begins_without_being_parsed() {
        let mut run = OpenRun::default();
        assert!(push(&mut run, 100, Flags::ACK.with(Flags::PSH), &[1; 10]));
        let pushed = |seq| frame(seq, Flags::ACK.with(Flags::PSH), &[1; 10]).1;
        let plain = |seq| frame(seq, Flags::ACK, &[1; 10]).1;
        let mut frames = vec![pushed(110)];
        assert_eq!(run.follow(&mut frames.drain(..), &mut Vec::new()), 0);
        run.take(Run::default).unwrap();
        let next = plain(110);
        let what = run.matches_template(&next).unwrap();
        run.repeat(next, what, &mut Vec::new());
        frames = vec![plain(120), pushed(130), plain(140)];
        assert_eq!(run.follow(&mut frames.drain(..), &mut Vec::new()), 2);
        assert_eq!(
            run.follow(&mut vec![plain(140)].drain(..), &mut Vec::new()),
            0
        );
        let (taken, _) = run.take(Run::default).unwrap();
        assert_eq!((run.request.digest.count, taken.frames.len()), (3, 3));
        assert!(run.request.digest.flags.has(Flags::PSH));
        let last = pushed(140);
        let what = run.matches_template(&last).unwrap();
        run.repeat(last, what, &mut Vec::new());
        assert_eq!(
            run.follow(&mut vec![plain(150)].drain(..), &mut Vec::new()),
            0
        );
        assert!(run.request.digest.flags.has(Flags::PSH));
    }

    #[test]
    fn the_device_vouches_for_a_run_as_a_whole_or_not_at_all() {
        let mut run = OpenRun::default();
        let (tcp, mut first) = frame(100, Flags::ACK, &[1; 10]);
        first.meta.checksum = dominoes_drivers::RxChecksum::Valid;
        assert!(run.push(&tcp, [2; 6], first).is_ok());
        let (tcp, mut second) = frame(110, Flags::ACK, &[2; 10]);
        assert!(run.push(&tcp, [2; 6], second.clone()).is_err());
        second.meta.checksum = dominoes_drivers::RxChecksum::Valid;
        assert!(run.push(&tcp, [2; 6], second).is_ok());
    }

    #[test]
    fn a_gap_a_pure_ack_and_a_longer_segment_begin_runs_of_their_own() {
        let mut run = OpenRun::default();
        assert!(push(&mut run, 100, Flags::ACK, &[1; 10]));
        assert!(!push(&mut run, 111, Flags::ACK, &[2; 10]));
        assert!(!push(&mut run, 110, Flags::ACK, &[]));
        assert!(!push(&mut run, 110, Flags::ACK, &[2; 11]));
        run.take(Run::default);
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
            assert!(matches!(run.push(&tcp, [2; 6], frame), Ok(Some(_))));
        }
        assert!(!push(&mut run, 100, Flags::ACK, &[]));
        let (frames, _) = run.take(Run::default).unwrap();
        let request = run.request;
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
        assert!(matches!(run.push(&tcp, [2; 6], frame), Ok(None)));
        let (frames, _) = run.take(Run::default).unwrap();
        let request = run.request;
        assert_eq!((request.digest.count, frames.frames.len()), (1, 1));
        assert_eq!(crate::io::prepare::prepare(&request, &frames), 0);
    }
}
