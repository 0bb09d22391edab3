//! One apply of a run of acknowledgments leaves the state that an apply of each would leave.

use super::one_side::OneSide;
use crate::config::{CongestionControl, Limits};
use crate::hash::Rng;
use crate::log::effect::Effect;
use crate::log::request::{Flags, MORE_ALIKE, Options, Segment, SynOptions};
use crate::seqnum::SeqNum;
use crate::tcp::retransmit::{Expiry, Timer};
use crate::tcp::{Cx, Finish, Tcb};
use crate::time::Duration;

const SEEDS: u64 = 400;

/// How many runs of each kind were compared, so that no kind is forgotten.
#[derive(Debug, Default)]
struct Seen {
    taken: u64,
    refused: u64,
    window_grew: u64,
    avoided_congestion: u64,
    measured: u64,
    ended_flight: u64,
    nothing_to_send: u64,
}

/// A run of acknowledgments without data, as a digest has it.
struct Run {
    first: SeqNum,
    beyond: Vec<u16>,
    wnd: u16,
    timestamps: Option<(u32, u32)>,
}

impl Run {
    /// A run that acknowledges some of what is in flight. Some are not as expected.
    fn random(tcb: &Tcb, now: u32, rng: &mut Rng) -> Run {
        let snd = &tcb.snd;
        let flight = snd.max.since(snd.una);
        let more = rng.below(MORE_ALIKE as u64 + 1) as usize;
        let each = match rng.below(4) {
            0 => u64::from(flight) / (more as u64 + 1),
            1 => 2 * u64::from(snd.mss),
            _ => u64::from(snd.mss),
        };
        let exact = rng.percent(50);
        let step = |rng: &mut Rng| {
            let step = if exact { each } else { 1 + rng.below(2 * each) };
            step.clamp(1, u64::from(u16::MAX)) as u16
        };
        let first = snd.una + u32::from(step(rng));
        let mut beyond: Vec<u16> = (0..more).map(|_| step(rng)).collect();
        // Most runs end before SND.MAX, some there.
        let reached = |beyond: &[u16]| {
            let more: u32 = beyond.iter().map(|more| u32::from(*more)).sum();
            first.since(snd.una) + more
        };
        while reached(&beyond) > flight && !beyond.is_empty() && !rng.percent(3) {
            beyond.pop();
        }
        let left = flight.saturating_sub(reached(&beyond));
        if let (Some(last), true) = (beyond.last_mut(), rng.percent(30)) {
            *last = last.saturating_add(left.min(0xffff) as u16);
        }
        if !beyond.is_empty() && rng.percent(10) {
            let at = rng.index(beyond.len());
            beyond[at] = 0;
        }
        let first = if rng.percent(3) { snd.una } else { first };
        Run {
            first,
            beyond,
            wnd: [60_000, 60_000, 50_000, 900][rng.index(4)],
            timestamps: tcb
                .rcv
                .timestamps
                .then_some((tcb.rcv.ts_recent + 1, now - rng.below(30) as u32)),
        }
    }

    fn segment(&self, tcb: &Tcb, ack: SeqNum) -> Segment<'static> {
        Segment {
            seq: tcb.rcv.nxt,
            ack,
            len: 0,
            run_offset: 0,
            count: 1,
            wnd: self.wnd,
            flags: Flags::ACK,
            timestamps: self.timestamps,
            ce: false,
            followed: false,
            options: &Options::None,
        }
    }

    fn acks(&self) -> Vec<SeqNum> {
        let mut acks = vec![self.first];
        for more in &self.beyond {
            acks.push(acks[acks.len() - 1] + u32::from(*more));
        }
        acks
    }
}

/// The connection, and what one or several requests with `what` asked for.
fn after(
    one_side: &OneSide,
    requests: usize,
    mut what: impl FnMut(usize, &mut Tcb, &mut Cx<'_, Vec<Effect>>),
) -> (Tcb, Vec<Effect>, Finish, u64) {
    let mut tcb = one_side.tcb().clone();
    let (mut frames, mut out) = (one_side.end.frames.clone(), Vec::new());
    frames.sent = frames.next;
    frames.limit = frames.next + u64::from(one_side.end.limits.tx_slots);
    let mut finish = Finish::default();
    for i in 0..requests {
        let mut cx = Cx::new(one_side.now, &mut frames, &one_side.end.limits, &mut out);
        what(i, &mut tcb, &mut cx);
        finish = tcb.finish(&mut cx);
    }
    tcb.timers.update_next();
    if !tcb.timers.runs(Timer::Retransmit) {
        // The purpose of a timer that does not run is the one that it had last.
        tcb.retransmit.expiry = Expiry::Timeout;
    }
    (tcb, out, finish, frames.next)
}

/// Compares the three ways, and lets the run arrive.
fn arrive(one_side: &mut OneSide, run: &Run, seen: &mut Seen) {
    let before = one_side.tcb().clone();
    let (first, acks) = (run.segment(&before, run.first), run.acks());
    let mut is_taken = false;
    let one = after(one_side, 1, |_, tcb, cx| {
        let first = first.digest();
        is_taken = tcb.expects::<true>(&first) && tcb.take_expected_acks(&first, &run.beyond, cx);
        assert!(
            is_taken || *tcb == before,
            "a refused run changed something"
        );
    });
    if is_taken {
        let each = after(one_side, 1, |_, tcb, cx| {
            for ack in &acks {
                tcb.segment(&run.segment(&before, *ack), cx);
            }
        });
        assert_eq!(
            one.0.first_difference(&each.0),
            None,
            "of {acks:?}, {before:?}"
        );
        assert_eq!(one, each);
        let (was, is) = (&before, &one.0);
        seen.window_grew += u64::from(is.cwnd() > was.cwnd());
        let avoids = was.cwnd() >= was.congestion.ssthresh();
        seen.avoided_congestion += u64::from(avoids && is.cwnd() > was.cwnd());
        seen.measured += u64::from(was.retransmit.timing && !is.retransmit.timing);
        seen.ended_flight += u64::from(is.snd.una == was.snd.max);
        if before.snd.nxt == before.snd.end {
            // Separate requests send nothing in between. They release their bytes one by one.
            seen.nothing_to_send += 1;
            let alone = after(one_side, acks.len(), |i, tcb, cx| {
                tcb.segment(&run.segment(&before, acks[i]), cx);
            });
            assert_eq!(
                one.0.first_difference(&alone.0),
                None,
                "of {acks:?}, {before:?}"
            );
            assert_eq!((one.1.last(), one.3), (alone.1.last(), alone.3));
        }
    }
    seen.taken += u64::from(is_taken);
    seen.refused += u64::from(!is_taken);
    one_side.call(|tcb, cx| {
        for ack in &acks {
            tcb.segment(&run.segment(&before, *ack), cx);
        }
    });
}

/// A sender whose peer acknowledges, is silent, or repeats itself.
fn play(seed: u64, seen: &mut Seen) {
    let mut rng = Rng::new(seed);
    let mut limits = Limits {
        send_buffer: 1 << 18,
        tx_slots: 1 << 10,
        frame_payload: 0,
        ..Limits::default()
    };
    limits.tcp.congestion = CongestionControl::ALL[rng.index(CongestionControl::ALL.len())];
    let syn = Options::Syn(SynOptions {
        mss: Some(1000),
        window_scale: Some(7),
        sack_permitted: rng.percent(70),
    });
    let ts = rng.percent(60).then_some(5);
    let mut one_side = OneSide::passive(limits, syn, ts);
    let stamp = |one_side: &OneSide| (one_side.now.as_nanos() >> 20) as u32;
    let echo = ts.map(|ts| (ts, stamp(&one_side)));
    one_side.receive_with(Flags::ACK, 1, 1, 0, echo, Options::None);
    let shuts = rng.percent(30).then(|| rng.below(60));
    for round in 0..80 {
        one_side.end.taken = one_side.end.frames.next;
        one_side.end.unsent.clear();
        let room = one_side.end.released + (1 << 18) - one_side.end.written;
        let written = one_side.end.written + rng.below(60_000).min(room);
        if shuts.is_none_or(|at| round < at) {
            one_side.write(written);
        } else if shuts == Some(round) {
            one_side.call(|tcb, cx| tcb.shutdown(cx));
        }
        one_side.end.taken = one_side.end.frames.next;
        one_side.end.unsent.clear();
        one_side.now += Duration::from_micros(rng.below(20_000));
        let tcb = one_side.tcb();
        if tcb.is_closed() || tcb.snd.una == tcb.snd.end && tcb.snd.fin {
            return;
        }
        match rng.below(100) {
            0..=3 if tcb.snd.una != tcb.snd.max => {
                one_side.wait();
            }
            4..=6 => {
                let again = Run {
                    beyond: vec![0; 3],
                    ..Run::random(tcb, stamp(&one_side), &mut rng)
                };
                arrive(&mut one_side, &again, seen);
            }
            _ => {
                let run = Run::random(tcb, stamp(&one_side), &mut rng);
                arrive(&mut one_side, &run, seen);
            }
        }
    }
}

#[test]
fn one_apply_of_a_run_of_acknowledgments_is_an_apply_of_each() {
    let mut seen = Seen::default();
    for seed in 0..SEEDS {
        println!("seed {seed}");
        play(seed, &mut seen);
    }
    println!("{seen:?}");
    let Seen {
        taken,
        refused,
        window_grew,
        avoided_congestion,
        measured,
        ended_flight,
        nothing_to_send,
    } = seen;
    assert!(taken > 20 * SEEDS && refused > SEEDS);
    let kinds = [
        window_grew,
        avoided_congestion,
        measured,
        ended_flight,
        nothing_to_send,
    ];
    assert!(kinds.iter().all(|kind| *kind > 100), "{kinds:?}");
}
