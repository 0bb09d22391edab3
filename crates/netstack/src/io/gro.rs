//! Parses a batch of frames into runs of segments.
//!
//! A [`Parser`] reads headers and changes only itself. So workers parse different batches at the
//! same time, and any worker can parse a batch whose worker is delayed. A parser has an open run
//! for each of up to 64 flows, so alternating frames of several connections merge as well as those
//! of one. It keeps the header template of each flow's last run, so the first segment of the next
//! run needs no full parsing either.
//!
//! A parser merges segments only if no protocol step can observe that: they have one flow,
//! consecutive sequence numbers, and equal acknowledgment, window, timestamps, flags and congestion
//! mark; all but the last have equal length, and only the last has PSH or FIN. A segment with other
//! options than timestamps is not merged. The device has verified either all checksums of a run or
//! none, so the verdict of a run is known entirely or not at all.
//!
//! Acknowledgments without payload are never merged, but up to 32 of a flow share a request, or
//! seven if their windows differ. `apply` takes those of one window at once if each acknowledges
//! more than the one before it, and handles others one by one. All data that they allow is sent as
//! one range of frames. The parser verifies their checksums, most of whose sum is in the header
//! template, so the request needs no frames. The end of a run is part of the request, so it is
//! equal in every replica.

use dominoes_drivers::Frame;

use crate::io::prepare::{is_good, is_verified_by_device};
use crate::io::world::World;
use crate::io::{ClaimedFrames, Indices, Run, RunFrames};
use crate::ip::route::is_martian_v6;
use crate::log::request::{
    Acks, Body, Digest, Flags, Flow, MAX_RUN, MORE_ACKS, MORE_ALIKE, Mac, Options, Request,
    RequestKind, Sack, SynOptions,
};
use crate::packet as wire;
use crate::packet::Packet;
use crate::packet::flow::Endpoint;
use crate::seqnum::SeqNum;
use crate::time::Instant;

/// The flow of a received segment, from our point of view.
pub(crate) fn flow_of(tcp: &wire::Tcp) -> Flow {
    Flow {
        local: Endpoint::new(tcp.dst, tcp.dst_port),
        remote: Endpoint::new(tcp.src, tcp.src_port),
    }
}

/// A run that may still grow. The parser writes its request in place.
#[derive(Debug)]
struct OpenRun {
    /// Whether the run has begun.
    begun: bool,
    /// Whether another segment may follow.
    open: bool,
    /// Whether all its segments are acknowledgments without payload whose checksum is good.
    is_acks: bool,
    /// Whether the device has verified the checksums.
    is_verified_by_device: bool,
    /// Whether it is a frame that the device merged.
    is_merged: bool,
    /// Bytes of the merged frames just before it in this batch, which it acknowledges as well.
    owed: u32,
    /// Flags of the first segment; the digest has the last segment's.
    flags: u8,
    /// The flow of its segments.
    flow: Flow,
    /// The headers of a segment that continues the flow, in this run or the next.
    next: Option<wire::HeaderTemplate>,
    /// As `next`, for IPv6; `None` for IPv4.
    next_v6: Option<wire::HeaderTemplateV6>,
    /// With `is_acks`: whether the second and all later ones have the window of the first and
    /// acknowledge at most 65,535 bytes more than the previous one.
    are_alike: bool,
    /// How many bytes the second and each later one acknowledges beyond the previous one.
    beyond: [u16; MORE_ALIKE],
    /// The first few of these in full.
    acks: Acks,
    /// The acknowledgment number of the last segment.
    last_ack: SeqNum,
    /// The run, or the last run.
    run: Run,
}

impl Default for OpenRun {
    fn default() -> Self {
        OpenRun {
            begun: false,
            open: false,
            is_acks: false,
            is_verified_by_device: false,
            is_merged: false,
            owed: 0,
            flags: 0,
            flow: Flow::default(),
            next: None,
            next_v6: None,
            are_alike: true,
            beyond: [0; MORE_ALIKE],
            acks: Acks::default(),
            last_ack: SeqNum(0),
            run: Run::bare(Request::tick(Instant::ZERO, 0)),
        }
    }
}

/// Bytes of merged frames in a row after which one is acknowledged: half of a window of 1 MiB, so
/// the sender never waits for its end.
const MAX_OWED: u32 = 512 << 10;
/// Maximum number of flows with an open run.
const OPEN_RUNS: usize = 64;

/// The entry of the flow between these addresses and ports.
#[inline(always)]
const fn entry_of(src: u32, dst: u32, ports: u32) -> usize {
    let mixed = (src ^ dst.rotate_left(16) ^ ports).wrapping_mul(0x9e37_79b1);
    (mixed >> (32 - OPEN_RUNS.trailing_zeros())) as usize
}

/// How a frame differs from its flow's header template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Repeated {
    ack: SeqNum,
    wnd: u16,
    is_pushed: bool,
}

/// Receives the contents of a batch.
pub(crate) trait Found {
    /// A run of segments for us ended. Its request has no time, credit and cursors yet; its verdict
    /// is given if that is known without reading the payload. Takes its frames.
    fn run(&mut self, run: &mut Run);
    /// Frame `index` of the batch is something else.
    fn other(&mut self, index: usize);
}

/// Parses batches. It has at most one open run per flow; flows with colliding entries end each
/// other's runs. Between batches no run is open. The default has no entries, and cannot parse.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    runs: Box<[OpenRun]>,
    /// A bit for each run that has begun.
    begun: u64,
    /// The entry of the last segment.
    current: usize,
}

impl Parser {
    pub(crate) fn new() -> Parser {
        Parser {
            runs: (0..OPEN_RUNS).map(|_| OpenRun::default()).collect(),
            begun: 0,
            current: 0,
        }
    }

    /// Passes the contents of `batch` to `found`. Returns how many segments for us it had.
    pub(crate) fn parse(
        &mut self,
        world: &World,
        batch: &ClaimedFrames,
        found: &mut impl Found,
    ) -> u64 {
        self.parse_by(segment_for, world, batch, found)
    }

    /// As `parse`, for frames that we sent to ourselves. Such a parser must parse no other frames.
    pub(crate) fn parse_looped(
        &mut self,
        world: &World,
        batch: &ClaimedFrames,
        found: &mut impl Found,
    ) -> u64 {
        self.parse_by(looped_segment, world, batch, found)
    }

    #[inline(always)]
    fn parse_by(
        &mut self,
        segment_for: impl Fn(&World, &Frame) -> Option<(wire::Tcp, [u8; 6])>,
        world: &World,
        batch: &ClaimedFrames,
        found: &mut impl Found,
    ) -> u64 {
        let frames = &batch[..];
        let mut segments = 0;
        let mut at = 0;
        loop {
            let open = self.current();
            let more = open.follow(frames, at);
            let more = more + open.pushed(batch, at + more, found);
            (at, segments) = (at + more, segments + more);
            let Some(frame) = frames.get(at) else { break };
            if self.switch_to_flow_of(frame) {
                let more = self.current().follow(frames, at);
                if more > 0 {
                    (at, segments) = (at + more, segments + more);
                    continue;
                }
            }
            let open = self.current();
            if let Some(what) = open.matches_template(frame) {
                open.record_followed();
                open.end(batch, found);
                open.repeat(at, what);
                self.note_begun();
                segments += 1;
            } else if let Some((tcp, src)) = segment_for(world, frame) {
                self.segment(&tcp, src, (batch, at), found);
                segments += 1;
            } else {
                found.other(at);
            }
            at += 1;
        }
        while self.next_begun() {
            self.current().owed = 0;
            self.current().end(batch, found);
        }
        segments as u64
    }

    fn segment(
        &mut self,
        tcp: &wire::Tcp,
        src: [u8; 6],
        (batch, at): (&ClaimedFrames, usize),
        found: &mut impl Found,
    ) {
        self.switch_to(tcp);
        let open = self.current();
        let frame = &batch[at];
        if !open.push(tcp, src, frame, at) {
            open.record_continued(tcp);
            open.end(batch, found);
            // An empty run takes any segment.
            open.push(tcp, src, frame, at);
        }
        self.note_begun();
    }

    /// Makes the run of this frame's flow the current one. Returns false if it is current already,
    /// or the frame is not a TCP segment without IP options.
    #[inline(always)]
    fn switch_to_flow_of(&mut self, frame: &Frame) -> bool {
        if self.current().seems_to_continue_with(frame.bytes()) {
            return false;
        }
        let Some([src, dst, ports]) = wire::plain_tcp_flow(frame.bytes()) else {
            return false;
        };
        let entry = entry_of(src, dst, ports);
        core::mem::replace(&mut self.current, entry) != entry
    }

    /// Makes the run of the flow of this segment the current one.
    fn switch_to(&mut self, tcp: &wire::Tcp) {
        let ports = u32::from(tcp.src_port) << 16 | u32::from(tcp.dst_port);
        self.current = entry_of(tcp.src.v4_bits(), tcp.dst.v4_bits(), ports);
    }

    /// The last run of `flow`, if its entry still has one.
    #[inline]
    pub(crate) fn run_of(&mut self, flow: &Flow) -> Option<&mut Run> {
        let (remote, local) = (flow.remote.address, flow.local.address);
        let entry = entry_of(remote.v4_bits(), local.v4_bits(), flow.ports());
        let open = self.runs.get_mut(entry)?;
        (open.flow == *flow).then_some(&mut open.run)
    }

    /// The run of the last segment.
    #[inline(always)]
    fn current(&mut self) -> &mut OpenRun {
        &mut self.runs[self.current]
    }

    /// Notes that the current run has begun.
    #[inline(always)]
    fn note_begun(&mut self) {
        self.begun |= 1 << self.current;
    }

    /// Makes the next run that has begun the current one, and clears its bit. Returns false if
    /// there is none.
    #[inline(always)]
    fn next_begun(&mut self) -> bool {
        if self.begun == 0 {
            return false;
        }
        self.current = self.begun.trailing_zeros() as usize;
        self.begun &= self.begun - 1;
        true
    }
}

/// The segment for us in `frame`, and its source link address. `None` for every other frame,
/// including frames to drop.
#[inline]
fn segment_for(world: &World, frame: &Frame) -> Option<(wire::Tcp, [u8; 6])> {
    let bytes = frame.bytes();
    let (src, dst) = wire::link(bytes)?;
    let own = world.v4();
    let is_refused = dst != world.mac
        || src[0] & 1 != 0
        || wire::ends_v4(bytes).is_some_and(|ends| own.is_martian(ends));
    match wire::parse(bytes) {
        Ok(Packet::Tcp(tcp))
            if !is_refused && (tcp.dst == own.address || may_be_for_us(world, &tcp)) =>
        {
            Some((tcp, src))
        }
        _ => None,
    }
}

/// As [`segment_for`], for a frame that we sent to ourselves. The publisher checks whether it is
/// for us.
fn looped_segment(_: &World, frame: &Frame) -> Option<(wire::Tcp, [u8; 6])> {
    let (src, _) = wire::link(frame.bytes())?;
    match wire::parse(frame.bytes()) {
        Ok(Packet::Tcp(tcp)) => Some((tcp, src)),
        _ => None,
    }
}

/// Whether a segment that is not for our first IPv4 address may be for another address of ours. The
/// publisher, which knows our addresses, checks that.
#[cold]
fn may_be_for_us(world: &World, tcp: &wire::Tcp) -> bool {
    match tcp.dst.is_v4() {
        true => world.has_several_v4(),
        false => !tcp.dst.is_multicast() && !is_martian_v6(tcp.src, tcp.dst),
    }
}

/// PSH and FIN: flags that only the last segment of a run may have.
const LAST_ONLY: u8 = Flags::PSH.0 | Flags::FIN.0;

impl OpenRun {
    /// Adds the next segments of a bulk transfer, beginning with frame `at` of the batch, by
    /// comparing them with the header template. Returns how many; the frame after them is not one,
    /// or ends the run.
    #[inline(always)]
    fn follow(&mut self, frames: &[Frame], at: usize) -> usize {
        match self.open {
            true => self.follow_open(frames, at),
            false => 0,
        }
    }

    /// As [`OpenRun::follow`], of an open run.
    #[inline(never)]
    fn follow_open(&mut self, frames: &[Frame], at: usize) -> usize {
        if self.is_acks {
            return match (self.next, self.next_v6) {
                (Some(next), _) => self.follow_acks(&next, &frames[at..]),
                (None, Some(next)) => self.follow_acks_v6(&next, &frames[at..]),
                (None, None) => 0,
            };
        }
        let rest = Growing {
            open: &mut self.open,
            is_verified_by_device: self.is_verified_by_device,
            flags: self.flags,
            digest: &mut self.run.request.digest,
            indices: &mut self.run.frames.indices,
        };
        match (&self.next, &self.next_v6) {
            (Some(next), _) => rest.follow(next, frames, at),
            (None, Some(next)) => rest.follow_v6(next, frames, at),
            (None, None) => 0,
        }
    }

    #[inline(never)]
    fn follow_acks_v6(&mut self, next: &wire::HeaderTemplateV6, frames: &[Frame]) -> usize {
        self.follow_acks(next, frames)
    }

    /// As [`OpenRun::follow`], for acknowledgments.
    #[inline(always)]
    fn follow_acks<const WORDS: usize, const HEAD: usize>(
        &mut self,
        next: &wire::Template<WORDS, HEAD>,
        frames: &[Frame],
    ) -> usize {
        let seq = self.run.request.digest.seg_seq.0;
        let follows = |frame: &&Frame| {
            let Some(found) = next.acknowledges(frame.bytes(), seq) else {
                return false;
            };
            let (ack, wnd) = (SeqNum(found.ack), found.wnd);
            self.has_room_for_ack(ack, wnd)
                && (found.is_good || is_verified_by_device(frame))
                && self.add_ack(ack, wnd)
        };
        frames.iter().take_while(follows).count()
    }

    /// Adds segment `at` of the batch if it may be in this run. Returns whether it may.
    fn push(&mut self, tcp: &wire::Tcp, mac: [u8; 6], frame: &Frame, at: usize) -> bool {
        if !self.begun {
            self.begin(tcp, mac, frame, at);
            return true;
        }
        if !self.may_take(tcp, frame) {
            return false;
        }
        if self.is_acks {
            return self.add_ack(SeqNum(tcp.ack), tcp.wnd);
        }
        let digest = &mut self.run.request.digest;
        digest.count += 1;
        digest.len += tcp.payload_len;
        digest.flags = Flags(tcp.flags);
        self.open = tcp.flags & LAST_ONLY == 0 && tcp.payload_len == u32::from(digest.seg_len);
        self.run.frames.indices.push(at);
        true
    }

    /// Whether this acknowledgment without payload has the window of the earlier ones, and
    /// acknowledges at most 65,535 bytes more than the last one.
    #[inline(always)]
    fn is_alike(&self, ack: SeqNum, wnd: u16) -> bool {
        let is_little = ack.since(self.last_ack) <= u32::from(u16::MAX);
        is_little && wnd == self.run.request.digest.seg_wnd
    }

    /// Whether the run of acknowledgments has room for this one.
    #[inline(always)]
    fn has_room_for_ack(&self, ack: SeqNum, wnd: u16) -> bool {
        let more = usize::from(self.run.request.digest.count) - 1;
        more < MORE_ACKS || more < MORE_ALIKE && self.are_alike && self.is_alike(ack, wnd)
    }

    /// Adds an acknowledgment without payload, for which there is room. Returns true.
    #[inline(always)]
    fn add_ack(&mut self, ack: SeqNum, wnd: u16) -> bool {
        self.are_alike &= self.is_alike(ack, wnd);
        let more = usize::from(self.run.request.digest.count) - 1;
        self.beyond[more] = ack.since(self.last_ack) as u16;
        if more < MORE_ACKS {
            (self.acks.ack[more], self.acks.wnd[more]) = (ack, wnd);
        }
        self.last_ack = ack;
        self.run.request.digest.count += 1;
        true
    }

    fn begin(&mut self, tcp: &wire::Tcp, mac: [u8; 6], frame: &Frame, at: usize) {
        self.begun = true;
        (self.are_alike, self.last_ack) = (true, SeqNum(tcp.ack));
        self.is_verified_by_device = is_verified_by_device(frame);
        self.is_merged = frame.meta.gso.is_some();
        self.is_acks = is_bare_ack(tcp) && verified(frame);
        self.open = self.is_acks || may_begin(tcp, frame);
        self.flags = tcp.flags & !Flags::PSH.0;
        let flow = flow_of(tcp);
        if flow != self.flow {
            (self.flow, self.run.hint_version) = (flow, 0);
            self.next_v6 = None;
        }
        let is_plain = may_continue(tcp) && tcp.flags & Flags::FIN.0 == 0;
        let is_repeated = self.is_acks || is_plain && frame.meta.gso.is_none();
        self.next = is_repeated
            .then(|| wire::HeaderTemplate::new(frame.bytes(), tcp))
            .flatten();
        if !flow.local.address.is_v4() {
            self.next_v6 = is_repeated
                .then(|| wire::HeaderTemplateV6::new(frame.bytes(), tcp))
                .flatten();
        }
        let Request { digest, body, .. } = &mut self.run.request;
        digest.kind = RequestKind::Segments;
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
        *body = Body::Segments {
            flow: self.flow,
            mac: Mac(mac),
            payload_offset: tcp.payload_offset,
            options: options_of(tcp),
        };
        self.run.frames.indices.begin_with(at);
    }

    fn may_take(&self, tcp: &wire::Tcp, frame: &Frame) -> bool {
        let digest = &self.run.request.digest;
        let of_a_kind = self.open
            && if self.is_acks {
                self.has_room_for_ack(SeqNum(tcp.ack), tcp.wnd)
                    && is_bare_ack(tcp)
                    && verified(frame)
            } else {
                usize::from(digest.count) < MAX_RUN
                    && may_continue(tcp)
                    && tcp.payload_len <= u32::from(digest.seg_len)
                    && tcp.ack == digest.seg_ack.0
                    && tcp.wnd == digest.seg_wnd
                    && may_grow(frame, self.is_verified_by_device)
            };
        let timestamps =
            (digest.bits & Digest::TIMESTAMPS != 0).then_some((digest.ts_val, digest.ts_ecr));
        of_a_kind
            && tcp.seq == digest.seg_seq.0.wrapping_add(digest.len)
            && tcp.timestamps == timestamps
            && tcp.ce == (digest.bits & Digest::CE != 0)
            && tcp.payload_offset == self.run.request.layout().1
            && (tcp.flags ^ self.flags) & !LAST_ONLY == 0
            && flow_of(tcp) == self.flow
    }

    /// Whether the frame has the ports and the destination of this flow. Segments of two flows may
    /// differ in the source alone; they are parsed.
    #[inline(always)]
    fn seems_to_continue_with(&self, frame: &[u8]) -> bool {
        match (&self.next, &self.next_v6) {
            (Some(next), _) => next.has_ports_of(frame),
            (None, Some(next)) => next.has_ports_of(frame),
            (None, None) => false,
        }
    }

    /// Begins a run, after the end of this one, with each of the next segments that has PSH and
    /// continues the flow, beginning with frame `at` of the batch. Returns how many.
    #[inline(always)]
    fn pushed(&mut self, batch: &ClaimedFrames, at: usize, found: &mut impl Found) -> usize {
        let frame = batch.get(at).filter(|_| self.begun && !self.is_acks);
        if !frame.is_some_and(|frame| self.seems_to_continue_with(frame.bytes())) {
            return 0;
        }
        match (self.next, self.next_v6) {
            (Some(next), _) => self.pushed_as(&next, batch, at, found),
            (None, Some(next)) => self.pushed_as(&next, batch, at, found),
            (None, None) => 0,
        }
    }

    #[inline(never)]
    fn pushed_as<const WORDS: usize, const HEAD: usize>(
        &mut self,
        next: &wire::Template<WORDS, HEAD>,
        batch: &ClaimedFrames,
        at: usize,
        found: &mut impl Found,
    ) -> usize {
        let flags = Flags(self.flags).with(Flags::PSH);
        let is_verified_by_device = self.is_verified_by_device;
        let mut many = 0;
        while let Some(frame) = batch.get(at + many)
            && may_grow(frame, is_verified_by_device)
            && next.matches(frame.bytes(), self.next_seq().0) == Some(true)
        {
            self.record_followed();
            self.pass(batch, is_verified_by_device, found);
            self.run.frames.indices.begin_with(at + many);
            let digest = &mut self.run.request.digest;
            digest.seg_seq += digest.len;
            digest.len = u32::from(digest.seg_len);
            (digest.count, digest.flags) = (1, flags);
            digest.bits &= Digest::TIMESTAMPS | Digest::CE;
            (self.open, many) = (false, many + 1);
        }
        many
    }

    /// The sequence number of the next byte after the run.
    #[inline(always)]
    fn next_seq(&self) -> SeqNum {
        let digest = &self.run.request.digest;
        digest.seg_seq + digest.len
    }

    /// The differences of `frame` from the flow's header template, if it matches: then it continues
    /// the flow's last run, or begins the next one.
    #[inline]
    fn matches_template(&self, frame: &Frame) -> Option<Repeated> {
        match &self.next {
            Some(next) => self.matches_as(next, frame),
            None => self.matches_as(self.next_v6.as_ref()?, frame),
        }
    }

    #[inline(always)]
    fn matches_as<const WORDS: usize, const HEAD: usize>(
        &self,
        next: &wire::Template<WORDS, HEAD>,
        frame: &Frame,
    ) -> Option<Repeated> {
        let (digest, seq) = (&self.run.request.digest, self.next_seq());
        if self.is_acks {
            let found = next.acknowledges(frame.bytes(), seq.0)?;
            let is_good = found.is_good || is_verified_by_device(frame);
            return is_good.then_some(Repeated {
                ack: SeqNum(found.ack),
                wnd: found.wnd,
                is_pushed: false,
            });
        }
        if !may_grow(frame, self.is_verified_by_device) {
            return None;
        }
        Some(Repeated {
            ack: digest.seg_ack,
            wnd: digest.seg_wnd,
            is_pushed: next.matches(frame.bytes(), seq.0)?,
        })
    }

    /// Called when a frame matches the template ([`OpenRun::matches_template`]): if the run ends
    /// only because it has [`MAX_RUN`] segments, marks it as followed by another run. Frames of a
    /// later batch do not count, so an acknowledgment waits only for frames of this batch.
    #[inline]
    fn record_followed(&mut self) {
        let digest = &mut self.run.request.digest;
        if !self.is_acks && usize::from(digest.count) == MAX_RUN && self.open {
            digest.bits |= Digest::FOLLOWED;
        }
    }

    /// Called when `tcp` is the flow's next segment, and not of this run: if this is a merged frame
    /// and `tcp` continues its bytes, one acknowledgment for both is enough, up to
    /// [`MAX_OWED`] bytes.
    #[inline]
    fn record_continued(&mut self, tcp: &wire::Tcp) {
        let digest = &mut self.run.request.digest;
        let owed = self.owed + digest.len;
        let continues = self.is_merged
            && self.flags == Flags::ACK.0
            && may_continue(tcp)
            && tcp.seq == digest.seg_seq.0.wrapping_add(digest.len)
            && flow_of(tcp) == self.flow;
        self.owed = 0;
        if continues && owed < MAX_OWED {
            digest.bits |= Digest::FOLLOWED;
            self.owed = owed;
        }
    }

    /// Begins a run with frame `at`, which differs from the header template by `what`. Requires
    /// that this run has ended.
    #[inline]
    fn repeat(&mut self, at: usize, what: Repeated) {
        let digest = &mut self.run.request.digest;
        digest.seg_seq += digest.len;
        (digest.seg_ack, digest.seg_wnd) = (what.ack, what.wnd);
        digest.count = 1;
        digest.flags = Flags(self.flags);
        if what.is_pushed {
            digest.flags = digest.flags.with(Flags::PSH);
        }
        digest.bits &= Digest::TIMESTAMPS | Digest::CE;
        (self.begun, self.open) = (true, !what.is_pushed);
        (self.are_alike, self.last_ack) = (true, what.ack);
        if self.is_acks {
            if let Body::Segments { options, .. } = &mut self.run.request.body {
                *options = Options::None;
            }
        } else {
            digest.len = u32::from(digest.seg_len);
            self.run.frames.indices.begin_with(at);
        }
    }

    /// Ends the run, if there is one, and passes it to `found`.
    #[inline(always)]
    fn end(&mut self, batch: &ClaimedFrames, found: &mut impl Found) {
        if !self.begun {
            return;
        }
        (self.begun, self.open) = (false, false);
        if self.is_acks {
            self.end_acks();
            return found.run(&mut self.run);
        }
        self.pass(batch, self.is_verified_by_device, found);
    }

    /// Passes a run with frames of `batch` to `found`.
    #[inline(always)]
    fn pass(&mut self, batch: &ClaimedFrames, is_verified: bool, found: &mut impl Found) {
        let Run {
            request,
            verdict,
            frames,
            ..
        } = &mut self.run;
        *verdict = is_verified.then(|| request.digest.all_good());
        frames.batch = Some(ClaimedFrames::clone(batch));
        frames.lie_as(request);
        found.run(&mut self.run);
    }

    /// Completes a run of acknowledgments, which need no frames.
    #[inline(always)]
    fn end_acks(&mut self) {
        let Request { digest, body, .. } = &mut self.run.request;
        if digest.count > 1 {
            digest.bits |= Digest::ACKS;
            if let Body::Segments { options, .. } = body {
                *options = match self.are_alike {
                    true => Options::AcksAlike(self.beyond),
                    false => Options::Acks(self.acks),
                };
            }
        }
        self.run.verdict = Some(digest.all_good());
        self.run.frames = RunFrames::default();
    }
}

/// The fields of a run that change as it grows by frames that match its template.
struct Growing<'a> {
    open: &'a mut bool,
    is_verified_by_device: bool,
    flags: u8,
    digest: &'a mut Digest,
    indices: &'a mut Indices,
}

impl Growing<'_> {
    #[inline(never)]
    fn follow_v6(self, next: &wire::HeaderTemplateV6, frames: &[Frame], at: usize) -> usize {
        self.follow(next, frames, at)
    }

    /// As [`OpenRun::follow`].
    #[inline(always)]
    fn follow<const WORDS: usize, const HEAD: usize>(
        self,
        next: &wire::Template<WORDS, HEAD>,
        frames: &[Frame],
        at: usize,
    ) -> usize {
        let digest = self.digest;
        let len = u32::from(digest.seg_len);
        let frames = &frames[at..];
        let frames = &frames[..frames.len().min(MAX_RUN - self.indices.len())];
        let mut seq = digest.seg_seq.0.wrapping_add(digest.len);
        let mut many = 0;
        for frame in frames {
            if !may_grow(frame, self.is_verified_by_device) {
                break;
            }
            let Some(is_pushed) = next.matches(frame.bytes(), seq) else {
                break;
            };
            (many, seq) = (many + 1, seq.wrapping_add(len));
            if is_pushed {
                *self.open = false;
                digest.flags = Flags(self.flags).with(Flags::PSH);
                break;
            }
        }
        self.indices.extend(at..at + many);
        digest.count += many as u8;
        digest.len += many as u32 * len;
        many
    }
}

/// Whether a run whose checksums the device has verified, or not, may have this frame.
#[inline(always)]
fn may_grow(frame: &Frame, is_verified: bool) -> bool {
    is_verified_by_device(frame) == is_verified && frame.meta.gso.is_none()
}

fn may_begin(tcp: &wire::Tcp, frame: &Frame) -> bool {
    may_continue(tcp) && tcp.flags & LAST_ONLY == 0 && frame.meta.gso.is_none()
}

fn may_continue(tcp: &wire::Tcp) -> bool {
    tcp.payload_len > 0 && tcp.flags & !LAST_ONLY == Flags::ACK.0 && !tcp.options.any
}

/// Whether the checksum of a frame is right; the device verified it, or this does.
#[inline]
fn verified(frame: &Frame) -> bool {
    is_verified_by_device(frame) || is_good(frame.bytes())
}

/// Whether a segment is only an acknowledgment.
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
pub(super) mod tests {
    use super::*;
    use crate::log::request::Verdict;
    use crate::packet::flow::{Address, Flow, IpFields};
    use crate::packet::{Packet, TcpHeaders};

    /// Most acknowledgments of a request.
    const MOST_ACKS: usize = 1 + MORE_ALIKE;

    fn frame(seq: u32, flags: Flags, payload: &[u8]) -> (wire::Tcp, Frame) {
        let headers = TcpHeaders {
            src_mac: [2; 6],
            dst_mac: [4; 6],
            flow: Flow {
                local: Endpoint::new(Address::ipv4(10, 0, 0, 2), 4000),
                remote: Endpoint::new(Address::ipv4(10, 0, 0, 1), 80),
            },
            seq,
            ack: 9,
            wnd: 100,
            flags: flags.0,
            ect: false,
            ip: IpFields::DEFAULT,
            label: 0,
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

    /// A frame that the device merged.
    pub(in crate::io) fn merged(seq: u32, len: usize, flags: Flags) -> Frame {
        let (_, mut frame) = frame(seq, flags, &vec![1; len]);
        frame.meta.checksum = dominoes_drivers::RxChecksum::Valid;
        frame.meta.gso = Some(dominoes_drivers::Gso {
            kind: dominoes_drivers::GsoKind::Tcp4,
            size: 1448,
            header_len: 54,
        });
        frame
    }

    fn push(run: &mut OpenRun, seq: u32, flags: Flags, payload: &[u8]) -> bool {
        let (tcp, frame) = frame(seq, flags, payload);
        run.push(&tcp, [2; 6], &frame, run.run.frames.indices.len())
    }

    /// Ends the run. Returns how many frames it has.
    fn take(run: &mut OpenRun) -> Option<usize> {
        let mut lens = Vec::new();
        run.end(&ClaimedFrames::default(), &mut lens);
        lens.pop()
    }

    /// Notes the number of frames of each run.
    impl Found for Vec<usize> {
        fn run(&mut self, run: &mut Run) {
            self.push(run.frames.len());
        }

        fn other(&mut self, _: usize) {}
    }

    /// How many frames the run that ends now has.
    fn taken(run: &mut OpenRun) -> usize {
        take(run).expect("a run has begun")
    }

    #[test]
    fn consecutive_segments_make_one_run_until_a_shorter_or_pushed_one_ends_it() {
        let mut run = OpenRun::default();
        assert!(push(&mut run, 100, Flags::ACK, &[1; 10]));
        assert!(push(&mut run, 110, Flags::ACK, &[2; 10]));
        assert!(push(&mut run, 120, Flags::ACK.with(Flags::PSH), &[3; 10]));
        assert!(!push(&mut run, 130, Flags::ACK, &[4; 10]));
        assert_eq!(taken(&mut run), 3);
        let request = run.run.request;
        assert_eq!(request.digest.count, 3);
        assert_eq!(request.digest.len, 30);
        assert_eq!(request.digest.seg_len, 10);
        assert!(request.digest.flags.has(Flags::PSH));
        assert!(take(&mut run).is_none());

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
        let next = frame(100 + 10 * MAX_RUN as u32, Flags::ACK, &[2; 10]).1;
        let what = run.matches_template(&next).unwrap();
        run.record_followed();
        take(&mut run).unwrap();
        assert!(run.run.request.digest.bits & Digest::FOLLOWED != 0);
        assert_eq!(usize::from(run.run.request.digest.count), MAX_RUN);

        run.repeat(0, what);
        // Only its length may have ended it.
        run.record_followed();
        take(&mut run).unwrap();
        assert!(run.run.request.digest.bits & Digest::FOLLOWED == 0);
    }

    /// Notes the first sequence number of each run, and whether it is marked as followed.
    impl Found for Vec<(u32, bool)> {
        fn run(&mut self, run: &mut Run) {
            let digest = &run.request.digest;
            self.push((digest.seg_seq.0, digest.bits & Digest::FOLLOWED != 0));
        }

        fn other(&mut self, _: usize) {}
    }

    #[test]
    fn merged_frames_of_a_batch_are_acknowledged_every_half_of_a_mebibyte() {
        let (device, _) = dominoes_drivers::memory::scripted();
        let setup = crate::io::setup::Setup::new([10, 0, 0, 1].into(), 24, [1, 2]);
        let world = setup.build(Box::new(device), 64, 1).unwrap().world;
        let mut parser = Parser::new();
        let mut marks = |frames: &[(u32, usize, Flags)]| {
            let frames_of = frames.iter().map(|of| merged(of.0, of.1, of.2));
            let batch = ClaimedFrames::new(frames_of.collect());
            let mut found = Vec::new();
            parser.parse_looped(&world, &batch, &mut found);
            let seqs = found.iter().map(|(seq, _)| *seq);
            assert!(seqs.eq(frames.iter().map(|(seq, ..)| *seq)));
            found.into_iter().map(|(_, mark)| mark).collect::<Vec<_>>()
        };
        let (ack, pushed) = (Flags::ACK, Flags::ACK.with(Flags::PSH));
        let long = |at: u32| {
            (
                at * 60_000,
                60_000,
                if at.is_multiple_of(2) { ack } else { pushed },
            )
        };
        let row: Vec<_> = (0..12).map(long).collect();
        let nine = [[true; 8].as_slice(), &[false]].concat();
        assert_eq!(marks(&row), [&nine[..], &[true, true, false]].concat());
        // The last frame of a batch is acknowledged, whatever the next batch begins with.
        assert_eq!(marks(&[long(12)]), [false]);
        assert_eq!(marks(&row[..9]), nine);
        // So is a frame before a gap, before an acknowledgment, and before a FIN's successor.
        let gap = [long(0), long(2), long(3)];
        assert_eq!(marks(&gap), [false, true, false]);
        assert_eq!(marks(&[long(0), (60_000, 0, ack)]), [false, false]);
        let end = Flags::ACK.with(Flags::FIN);
        assert_eq!(marks(&[(0, 3000, end), (3000, 3000, ack)]), [false, false]);
    }

    #[test]
    fn flows_whose_segments_alternate_have_a_run_each() {
        let mut runs = Parser::new();
        for i in 0..4u32 {
            for port in [4000, 4001] {
                let (mut tcp, mut frame) = frame(100 + 10 * i, Flags::ACK, &[1; 10]);
                tcp.src_port = port;
                frame.bytes_mut()[34..36].copy_from_slice(&port.to_be_bytes());
                assert!(runs.switch_to_flow_of(&frame));
                let entry = runs.current;
                runs.switch_to(&tcp);
                assert_eq!(runs.current, entry);
                let at = runs.current().run.frames.indices.len();
                assert!(runs.current().push(&tcp, [2; 6], &frame, at));
                runs.note_begun();
            }
        }
        for _ in 0..2 {
            assert!(runs.next_begun());
            assert_eq!(taken(runs.current()), 4);
        }
        assert!(!runs.next_begun());
    }

    #[test]
    fn a_pushed_segment_ends_a_run_and_the_next_one_begins_without_being_parsed() {
        let mut run = OpenRun::default();
        assert!(push(&mut run, 100, Flags::ACK.with(Flags::PSH), &[1; 10]));
        let pushed = |seq| frame(seq, Flags::ACK.with(Flags::PSH), &[1; 10]).1;
        let plain = |seq| frame(seq, Flags::ACK, &[1; 10]).1;
        assert_eq!(run.follow(&[pushed(110)], 0), 0);
        take(&mut run).unwrap();
        let next = plain(110);
        let what = run.matches_template(&next).unwrap();
        run.repeat(0, what);
        let frames = [next, plain(120), pushed(130), plain(140)];
        assert_eq!(run.follow(&frames, 1), 2);
        assert_eq!(run.follow(&frames, 3), 0);
        assert!(run.run.frames.indices.iter().eq(0..3));
        assert_eq!(taken(&mut run), 3);
        assert_eq!(run.run.request.digest.count, 3);
        assert!(run.run.request.digest.flags.has(Flags::PSH));
        let last = pushed(140);
        let what = run.matches_template(&last).unwrap();
        run.repeat(0, what);
        assert_eq!(run.follow(&[last, plain(150)], 1), 0);
        assert!(run.run.request.digest.flags.has(Flags::PSH));
    }

    /// The runs that ended.
    #[derive(Debug, Default, PartialEq)]
    struct Ended(Vec<(Request, usize, Option<Verdict>)>);

    impl Found for Ended {
        fn run(&mut self, run: &mut Run) {
            let first = run.frames.indices.iter().next().expect("a run has frames");
            self.0.push((run.request, first, run.verdict));
        }

        fn other(&mut self, _: usize) {}
    }

    #[test]
    fn pushed_segments_are_runs_of_their_own_as_if_each_was_matched_by_itself() {
        let pushed = |seq| frame(seq, Flags::ACK.with(Flags::PSH), &[1; 10]);
        for before in [1, 2, MAX_RUN as u32] {
            let seq = |i| 100 + 10 * i;
            let mut frames: Vec<_> = (0..before)
                .map(|i| frame(seq(i), Flags::ACK, &[1; 10]))
                .collect();
            frames.extend((before..before + 3).map(|i| pushed(seq(i))));
            frames.push(frame(seq(before + 3), Flags::ACK, &[1; 10]));
            let (headers, frames): (Vec<_>, Vec<_>) = frames.into_iter().unzip();
            let batch = ClaimedFrames::new(frames);
            let mut runs = [OpenRun::default(), OpenRun::default()];
            let mut ended = [Ended::default(), Ended::default()];
            // A run that is not full takes the first one that is pushed.
            let first = (before as usize + 1).min(MAX_RUN);
            for run in &mut runs {
                for at in 0..first {
                    assert!(run.push(&headers[at], [2; 6], &batch[at], at));
                }
            }
            let [run, other] = &mut runs;
            let many = run.pushed(&batch, first, &mut ended[0]);
            let mut at = first;
            while let Some(what) = other.matches_template(&batch[at]).filter(|w| w.is_pushed) {
                other.record_followed();
                other.end(&batch, &mut ended[1]);
                other.repeat(at, what);
                at += 1;
            }
            assert_eq!((many, first + many), (at - first, before as usize + 3));
            assert_eq!(ended[0], ended[1]);
            assert_eq!(format!("{run:?}"), format!("{other:?}"));
        }
    }

    #[test]
    fn the_device_vouches_for_a_run_as_a_whole_or_not_at_all() {
        let mut run = OpenRun::default();
        let (tcp, mut first) = frame(100, Flags::ACK, &[1; 10]);
        first.meta.checksum = dominoes_drivers::RxChecksum::Valid;
        assert!(run.push(&tcp, [2; 6], &first, 0));
        let (tcp, mut second) = frame(110, Flags::ACK, &[2; 10]);
        assert!(!run.push(&tcp, [2; 6], &second, 1));
        second.meta.checksum = dominoes_drivers::RxChecksum::Valid;
        assert!(run.push(&tcp, [2; 6], &second, 1));
    }

    #[test]
    fn a_gap_a_pure_ack_and_a_longer_segment_begin_runs_of_their_own() {
        let mut run = OpenRun::default();
        assert!(push(&mut run, 100, Flags::ACK, &[1; 10]));
        assert!(!push(&mut run, 111, Flags::ACK, &[2; 10]));
        assert!(!push(&mut run, 110, Flags::ACK, &[]));
        assert!(!push(&mut run, 110, Flags::ACK, &[2; 11]));
        take(&mut run);
        assert!(push(&mut run, 100, Flags::ACK, &[]));
        assert!(!push(&mut run, 100, Flags::ACK, &[1; 10]));
    }

    /// Adds an acknowledgment without payload, whose checksum the device vouches for.
    fn push_ack(run: &mut OpenRun, ack: u32, wnd: u16) -> bool {
        let (mut tcp, mut frame) = frame(100, Flags::ACK, &[]);
        frame.meta.checksum = dominoes_drivers::RxChecksum::Valid;
        (tcp.ack, tcp.wnd) = (ack, wnd);
        run.push(&tcp, [2; 6], &frame, 0)
    }

    /// Ends a run that has no frames. Returns number and window of its acknowledgments.
    fn taken_acks(run: &mut OpenRun) -> Vec<(u32, u16)> {
        assert_eq!(taken(run), 0);
        assert_eq!(run.run.request.digest.len, 0);
        let mut seen = Vec::new();
        run.run
            .request
            .pieces(u64::MAX, |ack| seen.push((ack.ack.0, ack.wnd)));
        assert_eq!(seen.len(), usize::from(run.run.request.digest.count));
        seen
    }

    #[test]
    fn bare_acknowledgments_share_a_request_that_needs_no_frames() {
        let mut run = OpenRun::default();
        let acks: Vec<_> = (0..MOST_ACKS as u32).map(|i| (9 + 3000 * i, 7)).collect();
        for (ack, wnd) in &acks {
            assert!(push_ack(&mut run, *ack, *wnd));
        }
        assert!(!push_ack(&mut run, 200_000, 7));
        assert_eq!(taken_acks(&mut run), acks);
    }

    #[test]
    fn acknowledgments_share_a_request_whatever_they_say_but_fewer_if_they_are_not_alike() {
        // Another window, one that is far ahead, and one that comes late.
        for other in [(9_000, 8), (90_000, 7), (1_000, 7)] {
            for place in 1..MOST_ACKS {
                let mut run = OpenRun::default();
                let mut acks: Vec<_> = (0..MOST_ACKS as u32).map(|i| (5_000 + 2 * i, 7)).collect();
                acks[place] = other;
                let taken = acks
                    .iter()
                    .take_while(|ack| push_ack(&mut run, ack.0, ack.1));
                let count = taken.count();
                assert_eq!(
                    count,
                    if place <= MORE_ACKS {
                        1 + MORE_ACKS
                    } else {
                        place
                    }
                );
                assert_eq!(taken_acks(&mut run), acks[..count]);
            }
        }
    }

    #[test]
    fn an_acknowledgment_with_a_bad_checksum_goes_the_way_of_all_segments() {
        let mut run = OpenRun::default();
        let (tcp, frame) = frame(100, Flags::ACK, &[]);
        // `emit_tcp` computes no checksum: it does not know the payload.
        assert!(run.push(&tcp, [2; 6], &frame, 0));
        run.end(&ClaimedFrames::new(vec![frame]), &mut Vec::<usize>::new());
        let Run {
            request,
            verdict,
            frames,
            ..
        } = &run.run;
        assert_eq!((request.digest.count, frames.len()), (1, 1));
        assert_eq!(*verdict, None);
        assert_eq!(crate::io::prepare::prepare(request, frames), 0);
    }
}
