//! A peer that reports arbitrary SACK blocks, in every state, while data is in flight, lost, and
//! retransmitted. No call may panic, and the checks of [`Subject::request`] must hold after each.
//!
//! Nothing here catches a panic, and the test profile checks every addition for overflow.

use super::end::Wire;
use super::fuzz::Subject;
use super::one_side::OneSide;
use crate::hash::Rng;
use crate::log::request::{Flags, Options, Sack, SynOptions};
use crate::seqnum::SeqNum;
use crate::tcp::{Cx, State};
use crate::time::{Duration, Instant};

/// Number of cases by default; `SACKS_CASES=1000000` runs more, and `SACKS_SEED=17` repeats one.
const CASES: u64 = 2500;

/// Prints the seed of a case that does not finish.
struct Named {
    seed: u64,
    has_ended: bool,
}

impl Drop for Named {
    fn drop(&mut self) {
        if !self.has_ended {
            let seed = self.seed;
            println!("SACKS_SEED={seed} cargo test -p dominoes-netstack --lib whatever_blocks_say");
        }
    }
}

fn number(name: &str) -> Option<u64> {
    let payload = std::env::var(name).ok()?;
    Some(payload.parse().expect("it is a number"))
}

/// A number at which some comparison changes, or one nearby, or any.
fn edge(subject: &mut Subject) -> SeqNum {
    let snd = &subject.tcb.snd;
    let (una, nxt, max) = (snd.una, snd.nxt, snd.max);
    let mss = u32::from(snd.mss);
    let bases = [
        una,
        una,
        una,
        nxt,
        nxt,
        max,
        snd.end,
        snd.iss,
        una - snd.wnd_max,
        una + (1 << 31),
        nxt + (1 << 31),
        una - (1 << 31),
        SeqNum(0),
        SeqNum(u32::MAX),
    ];
    let rng = &mut subject.rng;
    let base = bases[rng.index(bases.len())];
    let flight = u64::from(nxt.since(una)).clamp(1, 1 << 20);
    match rng.below(12) {
        0 => SeqNum(rng.next() as u32),
        1 | 2 => base,
        3 => base + 1,
        4 => base - 1,
        5 => base + mss * rng.below(4) as u32,
        6 => base - mss * rng.below(4) as u32,
        7 => base - rng.below(5000) as u32,
        // Most reports are about data in flight.
        _ => una + rng.below(flight) as u32,
    }
}

fn blocks(subject: &mut Subject) -> Options {
    let mut sack = Sack::NONE;
    for _ in 0..subject.rng.below(5) {
        let left = edge(subject);
        let right = match subject.rng.below(4) {
            0 => edge(subject),
            1 => left + u32::from(subject.tcb.snd.mss),
            _ => left + subject.rng.below(4000) as u32,
        };
        sack.push(left, right);
    }
    Options::Sack(sack)
}

/// A segment that is usually acceptable, whatever it reports.
fn report(subject: &mut Subject) {
    let options = blocks(subject);
    let (rcv, snd) = (&subject.tcb.rcv, &subject.tcb.snd);
    let (seq, una, max, ts_recent) = (rcv.nxt, snd.una, snd.max, rcv.ts_recent);
    let (timestamps, recent) = (rcv.timestamps, subject.now.as_nanos() >> 20);
    let rng = &mut subject.rng;
    let ack = match rng.below(8) {
        0 => una - rng.below(3000) as u32,
        1 => max,
        2 => una + rng.below(u64::from(max.since(una)).clamp(1, 1 << 20)) as u32,
        3 => una + 1,
        _ => una,
    };
    let wire = Wire {
        seq,
        ack,
        len: [0, 0, 0, 0, 500][rng.index(5)],
        offset: 0,
        wnd: [60_000, 60_000, 60_000, 700, 0][rng.index(5)],
        flags: Flags::ACK.with(Flags(if rng.percent(2) { 0x40 } else { 0 })),
        timestamps: timestamps.then_some((ts_recent, (recent - rng.below(3)) as u32)),
        options,
    };
    subject.segment(&wire.segment());
}

/// The peer opens, or answers, with SACK permitted.
fn establish(subject: &mut Subject) {
    let (rcv, snd) = (&subject.tcb.rcv, &subject.tcb.snd);
    let syn = subject.tcb.state == State::SynSent;
    let wire = Wire {
        seq: if syn {
            SeqNum(subject.rng.next() as u32)
        } else {
            rcv.nxt
        },
        ack: snd.max,
        len: 0,
        offset: 0,
        wnd: 60_000,
        flags: if syn {
            Flags::SYN.with(Flags::ACK)
        } else {
            Flags::ACK
        },
        timestamps: (syn || rcv.timestamps).then_some((rcv.ts_recent.max(7), 0)),
        options: if syn {
            offer(&mut subject.rng)
        } else {
            Options::None
        },
    };
    subject.segment(&wire.segment());
}

fn offer(rng: &mut Rng) -> Options {
    Options::Syn(SynOptions {
        mss: Some([64, 500, 1460][rng.index(3)]),
        window_scale: rng.percent(70).then_some(rng.below(20) as u8),
        sack_permitted: rng.percent(95),
    })
}

/// Runs one case. Returns all states that it passed, whether data was in flight when blocks
/// arrived, and whether some of it was reported, lost, and retransmitted.
fn case(seed: u64) -> (Vec<State>, [bool; 4]) {
    let mut named = Named {
        seed,
        has_ended: false,
    };
    let mut subject = Subject::offered(seed, offer);
    let (mut met, mut saw) = (Vec::new(), [false; 4]);
    subject.request(|_, _: &mut Cx<'_, Vec<_>>| ());
    if !subject.rng.percent(5) {
        establish(&mut subject);
    }
    for _ in 0..160 {
        let (a, b) = (subject.rng.next(), subject.rng.next());
        match a % 100 {
            0..=54 => {
                saw[0] |= subject.tcb.snd.una != subject.tcb.snd.nxt;
                report(&mut subject);
            }
            55..=64 => {
                let written = subject.tcb.snd.written + b % 9000;
                let read = subject.tcb.rcv.offset;
                subject.request(|tcb, cx| tcb.progress(read, written, cx));
            }
            65..=76 => {
                subject.now = match subject.tcb.next_deadline() {
                    at if at != Instant::NEVER && b % 3 == 0 => subject.now.max(at),
                    _ => subject.now + Duration::from_micros(b % 30_000),
                };
                subject.request(|tcb, cx| tcb.on_time(cx));
            }
            77..=93 => {
                subject.frames.sent = subject.frames.next;
                subject.frames.limit = subject.frames.next + u64::from(subject.limits.tx_slots);
                subject.request(|_, _| ());
            }
            94 if b % 8 == 0 => subject.request(|tcb, cx| tcb.shutdown(cx)),
            _ => subject.step(),
        }
        let flight = &subject.tcb.scoreboard;
        saw[1] |= flight.sacked() > 0;
        saw[2] |= flight.lost() > 0;
        saw[3] |= flight.retransmitted() > 0;
        if !met.contains(&subject.tcb.state) {
            met.push(subject.tcb.state);
        }
        if subject.tcb.is_closed() {
            break;
        }
    }
    named.has_ended = true;
    (met, saw)
}

#[test]
fn whatever_blocks_say_in_whatever_state_nothing_panics() {
    if let Some(seed) = number("SACKS_SEED") {
        case(seed);
        return;
    }
    let count = number("SACKS_CASES").unwrap_or(CASES);
    let cases: Vec<_> = (0..count).map(case).collect();
    if count < CASES {
        return;
    }
    for state in State::ALL {
        let met = cases.iter().any(|(met, _)| met.contains(&state));
        assert!(met || state == State::Listen, "{state:?}");
    }
    for what in 0..4 {
        let count = cases.iter().filter(|(_, saw)| saw[what]).count();
        assert!(4 * count > cases.len(), "{what}: {count}");
    }
}

/// Established with SACK, with ten segments of 1000 bytes in flight, from 1 on.
fn ten_in_flight() -> OneSide {
    let options = Options::Syn(SynOptions {
        mss: Some(1000),
        window_scale: None,
        sack_permitted: true,
    });
    let mut one_side = OneSide::passive(OneSide::limits(), options, None);
    one_side.sent();
    one_side.receive(Flags::ACK, 1, 1, 0);
    one_side.write(10_000);
    assert_eq!(one_side.sent().len(), 10);
    one_side
}

/// The peer acknowledges up to `ack` and reports `blocks`.
fn acknowledge(one_side: &mut OneSide, ack: u32, blocks: &[(u32, u32)]) {
    let mut sack = Sack::NONE;
    for (left, right) in blocks {
        sack.push(OneSide::ISS + *left, OneSide::ISS + *right);
    }
    one_side.receive_with(Flags::ACK, 1, ack, 0, None, Options::Sack(sack));
}

/// Edges, relative to the initial number, of blocks that say nothing about 1..10001.
const NOTHING: [(u32, u32); 14] = [
    // Beginning in numbers that were not sent yet.
    (10_001, 10_001u32.wrapping_add(1 << 31)),
    (10_001, 10_002),
    (5000, 10_002),
    (10_000, 20_000),
    // Empty, or reversed.
    (3000, 3000),
    (4000, 3000),
    (9000, 1),
    // Already acknowledged, or covered by the acknowledgment.
    (0, 2000),
    (1, 2000),
    (u32::MAX - 3000, 5000),
    // Across half of the sequence space.
    (1u32.wrapping_add((1 << 31) - 1), u32::MAX - 8),
    (1 << 31, (1 << 31) + 5),
    (2, 1 << 31),
    (2, 0),
];

#[test]
fn a_block_that_lies_not_in_flight_reports_nothing() {
    for block in NOTHING {
        for before in [&[][..], &[(3001, 4001)]] {
            // The outcome equals that without the block, also beside other blocks.
            for others in [&[][..], &[(5001, 6001)]] {
                let [mut with, mut without] = [ten_in_flight(), ten_in_flight()];
                for one_side in [&mut with, &mut without] {
                    acknowledge(one_side, 1, before);
                    one_side.sent();
                }
                acknowledge(&mut with, 1, &[&[block], others].concat());
                acknowledge(&mut without, 1, others);
                assert_eq!(with.tcb(), without.tcb(), "{block:?}");
                assert_eq!(with.sent(), without.sent(), "{block:?}");
            }
        }
    }
}

#[test]
fn a_block_up_to_all_that_was_sent_counts() {
    let mut one_side = ten_in_flight();
    acknowledge(&mut one_side, 1, &[(9001, 10_001)]);
    assert_eq!(one_side.tcb().scoreboard.sacked(), 1000);
    acknowledge(&mut one_side, 1, &[(2, 10_001)]);
    assert_eq!(one_side.tcb().scoreboard.sacked(), 9999);
}

/// Invalid D-SACK blocks, relative to the initial number: 2001 is acknowledged, 10001 was sent.
const NOT_TWICE: [(u32, u32); 7] = [
    // Empty, or reversed.
    (1001, 1001),
    (1500, 1001),
    // After the edge that they would have to precede.
    (1001, 2002),
    (2001, 3001),
    // Too far back: by more than a window, or by half of the sequence space.
    (2001u32.wrapping_sub(40_000), 2001u32.wrapping_sub(39_000)),
    (2001u32.wrapping_add(1 << 31), 2001),
    (2002u32.wrapping_add(1 << 31), 1001),
];

#[test]
fn a_block_of_what_came_twice_counts_only_where_that_may_be() {
    let widened = |block| {
        let mut one_side = ten_in_flight();
        acknowledge(&mut one_side, 2001, &[]);
        let before = format!("{:?}", one_side.tcb().recovery);
        acknowledge(&mut one_side, 2001, &[block]);
        before != format!("{:?}", one_side.tcb().recovery)
    };
    for block in NOT_TWICE {
        assert!(!widened(block), "{block:?}");
    }
    // The last one begins as far before the acknowledgment as a copy may: the widest window.
    let edge = 2001u32.wrapping_sub(30_000);
    for block in [
        (1, 1001),
        (1001, 2001),
        (1000, 2000),
        (edge, edge.wrapping_add(1000)),
    ] {
        assert!(widened(block), "{block:?}");
    }
    assert!(!widened((edge.wrapping_sub(1), edge)));
}

#[test]
fn sacked_data_reneged_while_the_window_was_closed_is_retransmitted() {
    let mut one_side = ten_in_flight();
    // All data is lost, and the window closes.
    one_side.wnd = 0;
    acknowledge(&mut one_side, 1, &[(9001, 10_001)]);
    one_side.sent();
    acknowledge(&mut one_side, 1, &[(1001, 10_001)]);
    one_side.sent();
    // The peer had 1001..10001 and has dropped it (RFC 2018 section 8).
    one_side.wnd = 30_000;
    acknowledge(&mut one_side, 1001, &[]);
    one_side.sent();
    for _ in 0..3 {
        one_side.wait();
    }
    let first = one_side.sent().first().copied();
    assert_eq!(
        first.map(|(_, seq, ..)| seq),
        Some(1001),
        "{:?}",
        one_side.tcb()
    );
}
