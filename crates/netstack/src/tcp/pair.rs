//! Two connections, a lossy wire and a clock that jumps: the tests of the whole of TCP.

use core::net::{Ipv4Addr, SocketAddrV4};

use super::retransmit::Timer;
use super::{Cx, Finish, RTO_INITIAL, State, Tcb, reset_for};
use crate::config::Limits;
use crate::digest::{ConnId, Flags, Flow, Mac, Options, Segment};
use crate::effect::{Deliver, Effect, Event, FrameNumbers, Transmit};
use crate::seqnum::SeqNum;
use crate::time::{Duration, Instant};

/// A generator that is the same everywhere (xorshift64*).
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// Below `n`.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// True `n` times in a hundred.
    pub(super) fn percent(&mut self, n: u64) -> bool {
        self.below(100) < n
    }
}

/// One segment on the wire.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wire {
    pub(super) seq: SeqNum,
    pub(super) ack: SeqNum,
    pub(super) len: u32,
    /// Where its payload stands in the sender's stream.
    pub(super) offset: u64,
    pub(super) wnd: u16,
    pub(super) flags: Flags,
    pub(super) timestamps: Option<(u32, u32)>,
    pub(super) options: Options,
}

impl Wire {
    pub(super) fn segment(&self) -> Segment<'_> {
        Segment {
            seq: self.seq,
            ack: self.ack,
            len: self.len,
            run_offset: 0,
            count: 1,
            wnd: self.wnd,
            flags: self.flags,
            timestamps: self.timestamps,
            ce: false,
            options: &self.options,
        }
    }
}

/// The segments of `transmit`, each with the number of its frame.
pub(super) fn segments(t: &Transmit) -> Vec<(u64, Wire)> {
    let mut all = Vec::new();
    assert!(t.count >= 1);
    for i in 0..t.count {
        let (offset, len) = t.payload_of(i);
        assert!(len > 0 || t.payload_len == 0, "empty frame in {t:?}");
        let mut at = 0;
        loop {
            let piece = (len - at).min(u32::from(t.mss));
            let last = i + 1 == t.count && at + piece == len;
            let end = Flags::PSH.with(Flags::FIN);
            all.push((
                t.first_frame + u64::from(i),
                Wire {
                    seq: t.seq + i * t.frame_len + at,
                    ack: t.ack,
                    len: piece,
                    offset: offset + u64::from(at),
                    wnd: t.wnd,
                    flags: if last { t.flags } else { t.flags.without(end) },
                    timestamps: t.timestamps,
                    options: t.syn.map_or(Options::None, Options::Syn),
                },
            ));
            at += piece;
            if at == len {
                break;
            }
        }
    }
    all
}

/// One side: the connection, its device, its application.
pub(super) struct End {
    pub(super) tcb: Option<Tcb>,
    pub(super) frames: FrameNumbers,
    pub(super) limits: Limits,
    pub(super) finish: Finish,
    pub(super) events: Vec<Event>,
    /// Numbered frames that the device has not taken.
    unsent: std::collections::VecDeque<(u64, Wire)>,
    /// Frames that left without a connection or after it.
    taken: u64,
    written: u64,
    released: u64,
    read: u64,
    /// How often each octet of the receive stream was delivered.
    seen: Vec<u8>,
    /// How far complete deliveries reach.
    readable: u64,
    deliveries: u64,
    edge: u64,
    shut: bool,
    /// The cursors moved since they were last told.
    dirty: bool,
    predicted: u64,
    slow: u64,
    sent_again: u64,
    sent_most: u64,
}

pub(super) const CONN: ConnId = ConnId {
    index: 3,
    generation: 5,
};

pub(super) fn flow(side: usize) -> Flow {
    let ends = [
        SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 1000),
        SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 2000),
    ];
    Flow {
        local: ends[side],
        remote: ends[1 - side],
    }
}

impl End {
    pub(super) fn new(limits: Limits) -> Self {
        limits.check().expect("limits of a test");
        End {
            tcb: None,
            frames: FrameNumbers {
                next: 0,
                limit: u64::from(limits.tx_slots),
                sent: 0,
            },
            limits,
            finish: Finish::default(),
            events: Vec::new(),
            unsent: Default::default(),
            taken: 0,
            written: 0,
            released: 0,
            read: 0,
            seen: Vec::new(),
            readable: 0,
            deliveries: 0,
            edge: 0,
            shut: false,
            dirty: false,
            predicted: 0,
            slow: 0,
            sent_again: 0,
            sent_most: 0,
        }
    }

    pub(super) fn state(&self) -> State {
        self.tcb.as_ref().map_or(State::Closed, Tcb::state)
    }

    /// One request: `what` happens, then the connection finishes. Checks all that must hold afterwards.
    pub(super) fn request(
        &mut self,
        now: Instant,
        run: &[(u32, Wire)],
        what: impl FnOnce(&mut Tcb, &mut Cx<'_, Vec<Effect>>),
    ) {
        let Some(tcb) = &mut self.tcb else { return };
        self.frames.sent = self.taken;
        self.frames.limit = self.taken + u64::from(self.limits.tx_slots);
        let first = self.frames.next;
        let mut out = Vec::new();
        let mut cx = Cx::new(now, &mut self.frames, &self.limits, &mut out);
        what(tcb, &mut cx);
        self.finish = tcb.finish(&mut cx);
        let numbered = self.frames.next - first;
        // A SYN's bad acknowledgment may be answered beside the quantum.
        assert!(numbered <= u64::from(self.limits.quantum) + 2);
        assert!(self.frames.next <= self.frames.limit);
        check(tcb, self.finish, &self.limits);
        let edge = tcb.rcv.offset + u64::from(tcb.rcv.wnd());
        if tcb.state().takes_text() {
            assert!(edge >= self.edge, "the right edge moved left");
            self.edge = edge;
            assert!(edge <= tcb.rcv.read + u64::from(self.limits.receive_buffer));
        }
        self.perform(&out, first, run);
    }

    /// Does what the effects say, and checks that it can be done.
    fn perform(&mut self, out: &[Effect], first: u64, run: &[(u32, Wire)]) {
        let mut number = first;
        let last = out.iter().rposition(|e| matches!(e, Effect::Deliver(_)));
        for (i, effect) in out.iter().enumerate() {
            match effect {
                Effect::Deliver(d) => {
                    assert_eq!(d.last, Some(i) == last);
                    self.deliver(d, run);
                }
                Effect::Transmit(t) => {
                    assert_eq!(t.first_frame, number);
                    number += u64::from(t.count);
                    assert!(t.payload_offset + u64::from(t.payload_len) <= self.written);
                    if t.payload_len > 0 {
                        assert!(t.payload_offset >= self.released, "reads released octets");
                        let end = t.payload_offset + u64::from(t.payload_len);
                        self.sent_again += self.sent_most.saturating_sub(t.payload_offset);
                        self.sent_most = self.sent_most.max(end);
                    }
                    self.unsent.extend(segments(t));
                }
                Effect::Release { upto, .. } => {
                    assert!(*upto > self.released && *upto <= self.written);
                    self.released = *upto;
                    let reads = |w: &Wire| w.len > 0 && w.offset < *upto;
                    assert!(!self.unsent.iter().any(|(_, w)| reads(w)));
                }
                Effect::Event { event, .. } => {
                    assert!(!self.events.contains(event), "{event:?} twice");
                    self.events.push(*event);
                }
                other => panic!("{other:?} is not for a connection"),
            }
        }
        assert_eq!(number, self.frames.next);
    }

    fn deliver(&mut self, d: &Deliver, run: &[(u32, Wire)]) {
        assert_eq!(d.delivery, self.deliveries);
        assert_eq!(d.conn, CONN);
        let end = d.stream_offset + u64::from(d.len);
        assert!(d.len > 0 && end <= self.read + u64::from(self.limits.receive_buffer));
        if self.seen.len() < end as usize {
            self.seen.resize(end as usize, 0);
        }
        for i in 0..d.len {
            let at = d.run_offset + i;
            let from = run
                .iter()
                .find(|(begin, w)| (*begin..begin + w.len).contains(&at))
                .map(|(begin, w)| w.offset + u64::from(at - begin));
            assert_eq!(from, Some(d.stream_offset + u64::from(i)), "wrong octet");
            self.seen[(d.stream_offset + u64::from(i)) as usize] += 1;
        }
        assert!(
            self.seen[d.stream_offset as usize..end as usize]
                .iter()
                .all(|&n| n == 1),
            "an octet was delivered twice"
        );
        if d.last {
            assert!(d.end >= self.readable);
            self.readable = d.end;
            self.deliveries += 1;
            assert!(self.seen[..d.end as usize].iter().all(|&n| n == 1));
        }
    }

    /// The pieces of a run arrive; both roads must agree on each.
    pub(super) fn arrive(&mut self, now: Instant, run: &[(u32, Wire)], progress: bool) {
        let mut counts = (0, 0);
        let (read, written) = (self.read, self.written);
        self.request(now, run, |tcb, cx| {
            if progress {
                tcb.progress_low(read as u32, written as u32, cx);
            }
            let mut at = 0;
            while at < run.len() {
                // Neighbours make one piece.
                let mut next = at + 1;
                while next < run.len() && run[next].0 == run[next - 1].0 + run[next - 1].1.len {
                    next += 1;
                }
                let piece = &run[at..next];
                let last = &piece[piece.len() - 1].1;
                let seg = Segment {
                    seq: piece[0].1.seq,
                    run_offset: piece[0].0,
                    len: piece.iter().map(|(_, w)| w.len).sum(),
                    count: piece.len() as u8,
                    ..last.segment()
                };
                if both_roads(tcb, &seg, cx) {
                    counts.0 += 1;
                } else {
                    counts.1 += 1;
                }
                at = next;
            }
        });
        self.predicted += counts.0;
        self.slow += counts.1;
    }
}

/// Lets `seg` arrive by both roads and compares what they leave. Returns whether it was predicted.
pub(super) fn both_roads(
    tcb: &mut Tcb,
    seg: &Segment<'_>,
    cx: &mut Cx<'_, Vec<Effect>>,
) -> bool {
    let before = tcb.clone();
    let mut slow = tcb.clone();
    let mut frames = *cx.frames;
    let mut out = cx.out.clone();
    let mut slow_cx = Cx {
        now: cx.now,
        frames: &mut frames,
        limits: cx.limits,
        out: &mut out,
        held: cx.held,
    };
    slow.arrives(seg, &mut slow_cx);
    let held = slow_cx.held;
    let predicted = tcb.predicted(seg, cx);
    if predicted {
        assert_eq!(tcb.first_difference(&slow), None, "{seg:?}");
        assert_eq!((&*tcb, cx.held), (&slow, held));
        assert_eq!((&*cx.out, *cx.frames), (&out, frames));
    } else {
        assert_eq!(*tcb, before, "a refused prediction changed something");
        tcb.segment(seg, cx);
        assert_eq!(*tcb, slow);
    }
    assert_eq!(tcb.fingerprint(), slow.fingerprint());
    predicted
}

/// What holds after every request.
pub(super) fn check(tcb: &Tcb, finish: Finish, limits: &Limits) {
    let Tcb { rcv, snd, .. } = tcb;
    let to = |n: SeqNum| n.since(snd.una);
    assert!(
        to(snd.nxt) <= to(snd.max) && to(snd.max) <= to(snd.end) && to(snd.end) < 1 << 31,
        "{snd:?}"
    );
    assert!(rcv.wnd() < 1 << 31);
    assert!(rcv.read <= rcv.offset);
    assert!(snd.una_offset <= snd.written || tcb.state == State::Closed);
    if tcb.state.is_synchronized() && !finish.blocked {
        assert!(
            snd.nxt == snd.una || tcb.timers.runs(Timer::Retransmit),
            "nothing waits for what is in flight: {tcb:?}"
        );
        assert!(
            snd.una == snd.end
                || tcb.timers.runs(Timer::Retransmit)
                || tcb.timers.runs(Timer::Persist),
            "stalled: {tcb:?}"
        );
    }
    if tcb.state == State::Closed {
        assert_eq!(tcb.next_deadline(), Instant::NEVER);
    }
    assert!(snd.mss >= 1 && limits.quantum >= 1);
}

/// How the wire misbehaves, in percent.
#[derive(Clone, Copy)]
pub(super) struct Faults {
    loss: u64,
    duplicate: u64,
    reorder: u64,
    bad_checksum: u64,
}

impl Faults {
    const NONE: Faults = Faults {
        loss: 0,
        duplicate: 0,
        reorder: 0,
        bad_checksum: 0,
    };
}

/// Two ends and what is between them.
pub(super) struct Pair {
    pub(super) ends: [End; 2],
    pub(super) now: Instant,
    rng: Rng,
    faults: Faults,
    delay: Duration,
    /// When, to whom, what; in order of sending.
    flight: Vec<(Instant, usize, Wire)>,
    /// Octets that each side will write.
    total: [u64; 2],
    iss: [SeqNum; 2],
}

impl Pair {
    fn new(seed: u64, limits: [Limits; 2], faults: Faults, total: [u64; 2]) -> Pair {
        let mut rng = Rng::new(seed);
        // Close to the wrap.
        let iss = [(); 2].map(|()| SeqNum(0u32.wrapping_sub(rng.below(100_000) as u32)));
        Pair {
            ends: limits.map(End::new),
            now: Instant::from_millis(1_000_000),
            rng,
            faults,
            delay: Duration::from_millis(5),
            flight: Vec::new(),
            total,
            iss,
        }
    }

    fn open(&mut self, side: usize) {
        let end = &mut self.ends[side];
        let iss = self.iss[side];
        end.tcb = Some(Tcb::open(
            CONN,
            flow(side),
            Mac::default(),
            iss,
            &end.limits,
            self.now,
        ));
        end.request(self.now, &[], |_, _| ());
    }

    /// The devices take some frames and put them on the wire.
    fn transmit(&mut self, all: bool) {
        for side in 0..2 {
            let end = &mut self.ends[side];
            let mut moved = false;
            while let Some(&(number, wire)) = end.unsent.front() {
                if !all && self.rng.percent(20) {
                    break;
                }
                end.unsent.pop_front();
                // A frame is sent when its last segment is.
                if end.unsent.front().is_none_or(|(n, _)| *n != number) {
                    end.taken = number + 1;
                }
                moved = true;
                let copies = 1 + u64::from(self.rng.percent(self.faults.duplicate));
                for _ in 0..copies {
                    if self.rng.percent(self.faults.loss) {
                        continue;
                    }
                    let mut delay = self.delay;
                    if self.rng.percent(self.faults.reorder) {
                        delay = delay + Duration::from_micros(self.rng.below(20_000));
                    }
                    self.flight.push((self.now + delay, 1 - side, wire));
                }
            }
            if moved && (end.finish.waits_for_sent || end.finish.blocked) {
                end.request(self.now, &[], |_, _| ());
            }
        }
    }

    /// The applications read and write.
    fn work(&mut self) {
        for side in 0..2 {
            let total = self.total[side];
            let end = &mut self.ends[side];
            if end.tcb.is_none() {
                continue;
            }
            let room = end.released + u64::from(end.limits.send_buffer) - end.written;
            let more = room.min(total - end.written).min(self.rng.below(6000));
            end.written += more;
            let unread = end.readable - end.read;
            let read = unread.min(self.rng.below(8000));
            end.read += read;
            end.dirty |= more + read > 0;
            if end.dirty && self.rng.percent(70) {
                end.dirty = false;
                let (read, written) = (end.read, end.written);
                end.request(self.now, &[], |tcb, cx| tcb.progress(read, written, cx));
            }
            if !end.shut && end.written == total && self.rng.percent(30) {
                end.shut = true;
                let (read, written) = (end.read, end.written);
                end.request(self.now, &[], |tcb, cx| {
                    tcb.progress(read, written, cx);
                    tcb.shutdown(cx);
                });
            }
            if end.finish.blocked && end.frames.next < end.taken + u64::from(end.limits.tx_slots) {
                end.request(self.now, &[], |_, _| ());
            }
        }
    }

    /// Whatever is next on the wire arrives, or a timer fires. Returns false if neither will.
    fn step(&mut self) -> bool {
        let arrival = (0..self.flight.len()).min_by_key(|&i| self.flight[i].0);
        let at = arrival.map_or(Instant::NEVER, |i| self.flight[i].0);
        let deadline = self
            .ends
            .iter()
            .filter_map(|end| end.tcb.as_ref())
            .map(Tcb::next_deadline)
            .min()
            .unwrap_or(Instant::NEVER);
        if at == Instant::NEVER && deadline == Instant::NEVER {
            return false;
        }
        self.now = self.now.max(at.min(deadline));
        if deadline < at {
            for end in &mut self.ends {
                if end.tcb.as_ref().is_some_and(|t| t.next_deadline() <= self.now) {
                    end.request(self.now, &[], |tcb, cx| tcb.on_time(cx));
                    let next = end.tcb.as_ref().map(Tcb::next_deadline);
                    assert!(next > Some(self.now), "a due timer did not fire");
                }
            }
            return true;
        }
        let (_, side, first) = self.flight.remove(arrival.unwrap_or(0));
        // As the pump does: what follows without a gap makes a run.
        let mut run = vec![(0, first)];
        let mut end = first.len;
        while run.len() < 8 && first.len > 0 && self.rng.percent(70) {
            let last = run[run.len() - 1].1;
            let next = self.flight.iter().position(|(at, to, w)| {
                *at <= self.now
                    && *to == side
                    && w.len > 0
                    && w.seq == last.seq + last.len
                    && w.ack == last.ack
                    && w.wnd == last.wnd
                    && last.flags == Flags::ACK
                    && w.timestamps.is_some() == last.timestamps.is_some()
                    && w.timestamps.map(|t| t.1) == last.timestamps.map(|t| t.1)
            });
            let Some(next) = next else { break };
            let wire = self.flight.remove(next).2;
            run.push((end, wire));
            end += wire.len;
        }
        run.retain(|_| !self.rng.percent(self.faults.bad_checksum));
        if !run.is_empty() {
            self.arrive(side, &run);
        }
        true
    }

    fn arrive(&mut self, side: usize, run: &[(u32, Wire)]) {
        let (now, progress) = (self.now, self.rng.percent(50));
        let iss = self.iss[side];
        let end = &mut self.ends[side];
        if end.tcb.is_none() && run[0].1.flags.0 & 0x16 == Flags::SYN.0 {
            end.tcb = Some(Tcb::passive(
                CONN,
                flow(side),
                Mac::default(),
                iss,
                &run[0].1.segment(),
                &end.limits,
                now,
            ));
            end.request(now, &[], |_, _| ());
            return;
        }
        if end.tcb.is_some() && end.state() == State::Closed {
            let mut frames = FrameNumbers {
                limit: 1,
                ..FrameNumbers::default()
            };
            let mut out = Vec::new();
            let mut cx = Cx::new(now, &mut frames, &end.limits, &mut out);
            reset_for(&run[0].1.segment(), flow(side), Mac::default(), &mut cx);
            if let Some(Effect::Transmit(t)) = out.first() {
                let wire = segments(t)[0].1;
                self.flight.push((now + self.delay, 1 - side, wire));
            }
            return;
        }
        end.arrive(now, run, progress);
    }

    fn is_done(&self) -> bool {
        (0..2).all(|side| {
            let end = &self.ends[side];
            end.shut && end.read == self.total[1 - side] && end.written == self.total[side]
        })
    }

    /// Runs until both sides have said and read everything and the connection is gone.
    fn run(&mut self) {
        for _ in 0..400_000 {
            self.work();
            // No device keeps its frames while the wire is idle.
            self.transmit(self.flight.is_empty());
            if self.step() {
                continue;
            }
            let closed = self.ends.iter().all(|end| end.state() == State::Closed);
            if closed && self.is_done() {
                return;
            }
            let idle = self.ends.iter().all(|end| end.written == end.released);
            assert!(!(closed && idle), "closed before the end");
        }
        panic!(
            "no end: {:?} {:?}",
            self.ends[0].tcb.as_ref(),
            self.ends[1].tcb.as_ref()
        );
    }

    fn expect_complete(&self) {
        for side in 0..2 {
            let (end, total) = (&self.ends[side], self.total[1 - side]);
            assert_eq!(end.seen.len() as u64, total);
            assert!(end.seen.iter().all(|&n| n == 1));
            assert!(end.events.contains(&Event::Established));
            assert!(end.events.contains(&Event::AllAcknowledged), "{:?}", end.events);
            assert!(end.events.contains(&Event::PeerFinished { end: total }));
            assert_eq!(end.events.len(), 3, "{:?}", end.events);
        }
    }
}

fn limits_for(rng: &mut Rng) -> Limits {
    let mtu = [576, 1500, 9000, 120][rng.below(4) as usize];
    Limits {
        connections: 1,
        receive_buffer: 1 << (10 + rng.below(8)),
        send_buffer: 1 << (10 + rng.below(8)),
        tx_slots: [4, 16, 64, 512][rng.below(4) as usize],
        mtu,
        frame_payload: [0, 4000, 65_000][rng.below(3) as usize],
        quantum: [1, 2, 16, 64][rng.below(4) as usize],
    }
}

fn stream(seed: u64, faults: Faults, simultaneous: bool) -> Pair {
    let mut rng = Rng::new(seed ^ 0xabcd);
    let limits = [limits_for(&mut rng), limits_for(&mut rng)];
    let total = [rng.below(60_000), [0, rng.below(60_000)][rng.below(2) as usize]];
    let mut pair = Pair::new(seed, limits, faults, total);
    pair.open(0);
    if simultaneous {
        pair.open(1);
    }
    pair.run();
    pair.expect_complete();
    pair
}

#[test]
fn streams_over_a_good_wire_arrive_whole_and_nothing_is_sent_twice() {
    for seed in 0..100 {
        let pair = stream(seed, Faults::NONE, false);
        for end in &pair.ends {
            // Window probes repeat an octet; nothing else may.
            assert!(end.sent_again < 200, "{} octets again, seed {seed}", end.sent_again);
        }
    }
}

#[test]
fn streams_over_a_bad_wire_arrive_whole() {
    let faults = Faults {
        loss: 5,
        duplicate: 5,
        reorder: 10,
        bad_checksum: 3,
    };
    for seed in 0..200 {
        stream(seed, faults, false);
    }
}

#[test]
fn streams_over_a_wire_that_loses_every_fifth_frame_arrive_whole() {
    let faults = Faults {
        loss: 20,
        duplicate: 0,
        reorder: 30,
        bad_checksum: 0,
    };
    for seed in 0..50 {
        stream(seed, faults, false);
    }
}

#[test]
fn both_sides_may_open_at_once() {
    let faults = Faults {
        loss: 3,
        reorder: 20,
        ..Faults::NONE
    };
    for seed in 0..100 {
        stream(seed, Faults::NONE, true);
        stream(seed, faults, true);
    }
}

#[test]
fn most_segments_of_a_bulk_transfer_take_the_short_road() {
    let limits = Limits::default();
    let mut pair = Pair::new(1, [limits; 2], Faults::NONE, [3_000_000, 0]);
    pair.open(0);
    pair.run();
    pair.expect_complete();
    for end in &pair.ends {
        assert!(
            end.predicted > 20 * end.slow,
            "{} predicted, {} not",
            end.predicted,
            end.slow
        );
    }
}

#[test]
fn a_lost_syn_ack_is_sent_again_after_one_rto() {
    let mut pair = Pair::new(7, [Limits::default(); 2], Faults::NONE, [0, 0]);
    pair.open(0);
    let start = pair.now;
    pair.transmit(true);
    assert!(pair.step());
    assert_eq!(pair.ends[1].state(), State::SynReceived);
    pair.transmit(true);
    pair.flight.clear();
    while pair.ends[1].state() != State::Established {
        assert!(pair.step());
        pair.transmit(true);
    }
    assert!(pair.now.since(start) >= RTO_INITIAL);
    assert!(pair.now.since(start) < RTO_INITIAL + Duration::from_millis(30));
}
