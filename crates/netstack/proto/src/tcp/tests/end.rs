//! One side of a connection with its device and its application, and the checks of its invariants.

use std::collections::VecDeque;

use crate::config::Limits;
use crate::log::effect::{ConnectionEvent, Deliver, Effect, FrameNumbers, Transmit};
use crate::log::request::{Address, Endpoint};
use crate::log::request::{ConnId, Flags, Flow, Options, Segment};
use crate::seqnum::SeqNum;
use crate::tcp::retransmit::Timer;
use crate::tcp::{Cx, Finish, State, Tcb};
use crate::time::Instant;

/// One segment on the wire.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wire {
    pub(super) seq: SeqNum,
    pub(super) ack: SeqNum,
    pub(super) len: u32,
    /// Offset of its payload in the sender's stream.
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
            followed: false,
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
                    options: match (t.syn, t.sack) {
                        (Some(syn), _) => Options::Syn(syn),
                        (_, Some(sack)) => Options::Sack(sack),
                        _ => Options::None,
                    },
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
    pub(super) events: Vec<ConnectionEvent>,
    /// Numbered frames that the device has not taken.
    pub(super) unsent: VecDeque<(u64, Wire)>,
    /// Frames that left without a connection, or after the connection ended. The cursors moved
    /// since the last request that reported them.
    pub(super) taken: u64,
    pub(super) written: u64,
    pub(super) released: u64,
    pub(super) read: u64,
    /// How often each byte of the receive stream was delivered.
    pub(super) seen: Vec<u8>,
    /// How far complete deliveries reach.
    pub(super) readable: u64,
    pub(super) deliveries: u64,
    pub(super) edge: u64,
    pub(super) shut: bool,
    /// The cursors moved since a request last reported them.
    pub(super) dirty: bool,
    pub(super) fast_segments: u64,
    pub(super) slow_segments: u64,
    pub(super) sent_again: u64,
    pub(super) sent_most: u64,
}

pub(super) const CONN: ConnId = ConnId {
    index: 3,
    generation: 5,
};

pub(super) fn flow(side: usize) -> Flow {
    let ends = [
        Endpoint::new(Address::ipv4(10, 0, 0, 1), 1000),
        Endpoint::new(Address::ipv4(10, 0, 0, 2), 2000),
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
                ..FrameNumbers::default()
            },
            limits,
            finish: Finish::default(),
            events: Vec::new(),
            unsent: VecDeque::new(),
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
            fast_segments: 0,
            slow_segments: 0,
            sent_again: 0,
            sent_most: 0,
        }
    }

    pub(super) fn state(&self) -> State {
        self.tcb.as_ref().map_or(State::Closed, Tcb::state)
    }

    /// One request: `what` happens, then the connection finishes. Checks all invariants afterwards.
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
        // The answer to a SYN's bad acknowledgment does not count against the quantum.
        assert!(numbered <= u64::from(self.limits.quantum) + 2);
        assert!(self.frames.next <= self.frames.limit);
        check(tcb, self.finish, &self.limits);
        let edge = tcb.rcv.offset + u64::from(tcb.rcv.wnd());
        if tcb.state().accepts_data() {
            assert!(edge >= self.edge, "the right edge moved left");
            self.edge = edge;
            assert!(edge <= tcb.rcv.read + u64::from(self.limits.receive_buffer));
        }
        self.perform(&out, first, run);
    }

    /// Performs the effects, and checks that they can be performed.
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
                        assert!(t.payload_offset >= self.released, "reads released bytes");
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
            assert_eq!(from, Some(d.stream_offset + u64::from(i)), "wrong byte");
            self.seen[(d.stream_offset + u64::from(i)) as usize] += 1;
        }
        assert!(
            self.seen[d.stream_offset as usize..end as usize]
                .iter()
                .all(|&n| n == 1),
            "a byte was delivered twice"
        );
        if d.last {
            assert!(d.end >= self.readable);
            self.readable = d.end;
            self.deliveries += 1;
            assert!(self.seen[..d.end as usize].iter().all(|&n| n == 1));
        }
    }

    /// The pieces of a run arrive; both paths must agree on each.
    pub(super) fn arrive(&mut self, now: Instant, run: &[(u32, Wire)], progress: bool) {
        let mut counts = (0, 0);
        let (read, written) = (self.read, self.written);
        self.request(now, run, |tcb, cx| {
            if progress {
                tcb.progress_low(read as u32, written as u32, cx);
            }
            let mut at = 0;
            while at < run.len() {
                // Adjacent segments make one piece.
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
                if compare_paths(tcb, &seg, cx) {
                    counts.0 += 1;
                } else {
                    counts.1 += 1;
                }
                at = next;
            }
        });
        self.fast_segments += counts.0;
        self.slow_segments += counts.1;
    }
}

/// Lets `seg` arrive by both paths and compares the results. Returns whether the fast path took it.
pub(super) fn compare_paths(
    tcb: &mut Tcb,
    seg: &Segment<'_>,
    cx: &mut Cx<'_, Vec<Effect>>,
) -> bool {
    let before = tcb.clone();
    let mut slow = tcb.clone();
    let mut frames = cx.frames.clone();
    let mut out = cx.out.clone();
    let mut slow_cx = Cx {
        now: cx.now,
        frames: &mut frames,
        limits: cx.limits,
        out: &mut out,
        pending_delivery: cx.pending_delivery,
    };
    slow.close_fast_path();
    slow.on_segment(seg, &mut slow_cx);
    let held = slow_cx.pending_delivery;
    let fast = tcb.try_fast_path(seg, cx);
    if fast {
        (slow.fast_path, slow.expected_bits) = (tcb.fast_path, tcb.expected_bits);
        assert_eq!(tcb.first_difference(&slow), None, "{seg:?}");
        assert_eq!((&*tcb, cx.pending_delivery), (&slow, held));
        assert_eq!((&*cx.out, &*cx.frames), (&out, &frames));
    } else {
        assert_eq!(*tcb, before, "a refused prediction changed something");
        tcb.segment(seg, cx);
        assert_eq!(*tcb, slow);
    }
    assert_eq!(tcb.fingerprint(), slow.fingerprint());
    fast
}

/// Checks the invariants that hold after every request.
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
    if tcb.state.is_synchronized() && !finish.is_blocked() {
        assert!(
            tcb.pipe() == 0 || tcb.timers.runs(Timer::Retransmit),
            "nothing waits for what is in flight: {tcb:?}"
        );
        assert!(
            snd.una == snd.end
                || tcb.timers.runs(Timer::Retransmit)
                || tcb.timers.runs(Timer::Persist)
                || tcb.timers.runs(Timer::Pace),
            "stalled: {tcb:?}"
        );
    }
    if tcb.state == State::Closed {
        assert_eq!(tcb.next_deadline(), Instant::NEVER);
    }
    assert!(snd.mss >= 1 && limits.quantum >= 1);
}
