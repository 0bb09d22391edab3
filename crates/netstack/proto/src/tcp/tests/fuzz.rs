//! Arbitrary segments and calls in every state: nothing panics, both paths agree, and the
//! invariants in the documentation of [`tcp`](crate::tcp) hold after every call.

use proptest::prelude::*;

use super::end::{CONN, check, compare_paths, flow};
use crate::config::Limits;
use crate::hash::Rng;
use crate::log::effect::{ConnectionEvent, Effect, FrameNumbers};
use crate::log::request::{Flags, Mac, Options, Sack, Segment, SynOptions};
use crate::seqnum::SeqNum;
use crate::tcp::{Cx, Finish, State, Tcb, reset_for};
use crate::time::{Duration, Instant};

/// A connection, its surroundings, and the effects so far.
pub(super) struct Subject {
    pub(super) tcb: Tcb,
    pub(super) frames: FrameNumbers,
    pub(super) limits: Limits,
    pub(super) now: Instant,
    seen: Vec<u8>,
    edge: u64,
    released: u64,
    events: Vec<ConnectionEvent>,
    pub(super) rng: Rng,
}

impl Subject {
    fn new(seed: u64) -> Subject {
        Subject::offered(seed, options)
    }

    /// `offer` makes the options of the SYN that opens the connection.
    pub(super) fn offered(seed: u64, offer: impl Fn(&mut Rng) -> Options) -> Subject {
        let mut rng = Rng::new(seed);
        let limits = Limits {
            receive_buffer: 1 << (10 + rng.below(8)),
            send_buffer: 1 << (10 + rng.below(8)),
            mtu: [68, 576, 1500, 65_535][rng.index(4)],
            tx_slots: [4, 64][rng.index(2)],
            frame_payload: [0, 65_475][rng.index(2)],
            quantum: [1, 64][rng.index(2)],
            ..Limits::default()
        };
        // Half of all streams wrap.
        let iss = match rng.next() {
            any if any % 2 == 0 => SeqNum((any >> 8) as u32),
            close => SeqNum(0) - (close >> 8) as u32 % 20_000,
        };
        let now = Instant::from_millis(rng.below(1 << 30));
        let frames = FrameNumbers {
            next: 0,
            limit: u64::from(limits.tx_slots),
            sent: 0,
            ..FrameNumbers::default()
        };
        let mac = Mac::default();
        let tcb = if rng.percent(50) {
            Tcb::open(CONN, flow(0), mac, iss, &limits, now)
        } else {
            let options = offer(&mut rng);
            let syn = Segment {
                seq: SeqNum(rng.next() as u32),
                ack: SeqNum(0),
                len: 0,
                run_offset: 0,
                count: 1,
                wnd: rng.next() as u16,
                flags: [Flags::SYN, Flags(0xc2)][rng.index(2)],
                timestamps: rng.percent(50).then_some((7, 0)),
                ce: false,
                followed: false,
                options: &options,
            };
            Tcb::passive(CONN, flow(0), mac, iss, &syn, &limits, now)
        };
        Subject {
            tcb,
            frames,
            limits,
            now,
            seen: vec![0; 1 << 20],
            edge: 0,
            released: 0,
            events: Vec::new(),
            rng,
        }
    }

    /// A number close to a significant one, or any.
    fn near(&mut self, numbers: &[SeqNum]) -> SeqNum {
        let base = numbers[self.rng.index(numbers.len())];
        match self.rng.below(10) {
            0 => SeqNum(self.rng.next() as u32),
            1..=4 => base,
            5..=7 => base + self.rng.below(3000) as u32,
            _ => base - self.rng.below(3000) as u32,
        }
    }

    /// A segment that may be acceptable.
    fn arrive(&mut self) {
        let (rcv, snd) = (&self.tcb.rcv, &self.tcb.snd);
        let (seqs, acks) = (
            [rcv.nxt, rcv.nxt, rcv.nxt, rcv.edge, rcv.irs],
            [snd.una, snd.nxt, snd.max, snd.end],
        );
        let ts_recent = rcv.ts_recent;
        let has_timestamps = rcv.timestamps != self.rng.percent(3);
        let options = options(&mut self.rng);
        let flags = match self.rng.below(20) {
            0 => Flags(self.rng.next() as u8),
            1 | 2 => Flags::SYN.with(Flags::ACK),
            3 => Flags::RST,
            7 => Flags::ACK.with(Flags::ECE),
            8 => Flags::ACK.with(Flags::CWR),
            4 | 5 => Flags::ACK.with(Flags::FIN),
            6 => Flags::SYN,
            _ => Flags::ACK,
        };
        let len = match self.rng.below(10) {
            0 => self.rng.next() as u32,
            1..=4 => 0,
            _ => self.rng.below(4000) as u32,
        };
        let ts_val = ts_recent
            .wrapping_add(self.rng.below(12) as u32)
            .wrapping_sub(1);
        let seg = Segment {
            seq: self.near(&seqs),
            ack: self.near(&acks),
            len,
            run_offset: self.rng.below(1 << 16) as u32,
            count: self.rng.below(9) as u8,
            wnd: self.rng.next() as u16 >> self.rng.below(17).min(15),
            flags,
            timestamps: has_timestamps.then_some((ts_val, self.rng.next() as u32)),
            ce: self.rng.percent(5),
            followed: self.rng.percent(20),
            options: &options,
        };
        self.segment(&seg);
    }

    pub(super) fn segment(&mut self, seg: &Segment<'_>) {
        self.request(|tcb, cx| {
            compare_paths(tcb, seg, cx);
        });
    }

    pub(super) fn step(&mut self) {
        let (a, b) = (self.rng.next(), self.rng.next());
        match self.rng.below(100) {
            0..=69 => self.arrive(),
            70..=79 => {
                let read = self.tcb.rcv.read + a % 5000;
                let written = self.tcb.snd.written + b % 5000;
                self.request(|tcb, cx| {
                    if a % 7 < 3 {
                        tcb.progress(read, written, cx);
                    } else {
                        tcb.progress_low(read as u32, written as u32, cx);
                    }
                });
            }
            80..=89 => {
                let deadline = self.tcb.next_deadline();
                if deadline != Instant::NEVER && a % 3 != 0 {
                    self.now = self.now.max(deadline);
                } else {
                    self.now += Duration::from_millis(a % 3000);
                }
                self.request(|tcb, cx| tcb.on_time(cx));
                assert!(self.tcb.next_deadline() > self.now);
            }
            90..=97 => {
                self.frames.sent += a % (self.frames.next - self.frames.sent + 1);
                self.frames.limit = self.frames.sent + u64::from(self.limits.tx_slots);
                self.request(|_, _| ());
            }
            98 => match a % 12 {
                0..=5 => self.request(|tcb, cx| tcb.shutdown(cx)),
                6 | 7 => self.request(|tcb, cx| tcb.orphan(cx)),
                8 => self.request(|tcb, cx| tcb.abort(cx)),
                _ => {}
            },
            _ => self.request(|_, _| ()),
        }
    }

    pub(super) fn request(&mut self, what: impl FnOnce(&mut Tcb, &mut Cx<'_, Vec<Effect>>)) {
        let mut out = Vec::new();
        let before = self.tcb.clone();
        let first = self.frames.next;
        let delivery = self.tcb.rcv.deliveries;
        let mut cx = Cx::new(self.now, &mut self.frames, &self.limits, &mut out);
        what(&mut self.tcb, &mut cx);
        let finish: Finish = self.tcb.finish(&mut cx);
        assert!(self.frames.next <= self.frames.limit);
        check(&self.tcb, finish, &self.limits);
        let tcb = &self.tcb;
        if tcb.state.accepts_data() {
            let edge = tcb.rcv.offset + u64::from(tcb.rcv.wnd());
            assert!(edge >= self.edge, "the right edge moved left");
            self.edge = edge;
        }
        if *tcb != before {
            assert!(tcb.first_difference(&before).is_some());
            assert_ne!(tcb.fingerprint(), before.fingerprint());
        }
        let mut number = first;
        for effect in &out {
            match effect {
                Effect::Deliver(d) => {
                    assert_eq!(d.delivery, delivery);
                    let (start, end) = (d.stream_offset, d.stream_offset + u64::from(d.len));
                    assert!(d.len > 0);
                    assert!(end <= tcb.rcv.read + u64::from(self.limits.receive_buffer));
                    for seen in &mut self.seen[start as usize..end as usize] {
                        assert_eq!(*seen, 0, "a byte was delivered twice");
                        *seen = 1;
                    }
                }
                Effect::Transmit(t) => {
                    assert_eq!(t.first_frame, number);
                    number += u64::from(t.count);
                    assert!(t.payload_len == 0 || t.payload_offset >= self.released);
                    assert!(t.payload_offset + u64::from(t.payload_len) <= tcb.snd.written);
                    let most = u64::from(t.frame_len) * u64::from(t.count);
                    assert!(u64::from(t.payload_len) <= most);
                }
                Effect::Release { upto, .. } => {
                    assert!(*upto > self.released && *upto <= tcb.snd.una_offset);
                    self.released = *upto;
                }
                Effect::Event { event, .. } => {
                    assert!(!self.events.contains(event), "{event:?} twice");
                    self.events.push(*event);
                }
                other => panic!("{other:?} is not for a connection"),
            }
        }
        assert_eq!(number, self.frames.next);
        let reached = tcb.rcv.offset as usize;
        assert!(self.seen[..reached].iter().all(|&n| n == 1), "a hole");
    }
}

fn options(rng: &mut Rng) -> Options {
    match rng.below(4) {
        0 => Options::None,
        1 => {
            let mut sack = Sack::NONE;
            sack.push(SeqNum(1), SeqNum(2));
            Options::Sack(sack)
        }
        _ => Options::Syn(SynOptions {
            mss: rng.percent(80).then_some(rng.next() as u16),
            window_scale: rng.percent(80).then_some(rng.next() as u8),
            sack_permitted: rng.percent(50),
        }),
    }
}

#[test]
fn no_sequence_of_segments_and_calls_breaks_a_promise() {
    let mut met = Vec::new();
    for seed in 0..3000 {
        let mut subject = Subject::new(seed);
        for _ in 0..120 {
            subject.step();
            if !met.contains(&subject.tcb.state) {
                met.push(subject.tcb.state);
            }
            if subject.tcb.is_closed() {
                break;
            }
        }
    }
    for state in State::ALL {
        assert!(met.contains(&state) || state == State::Listen, "{state:?}");
    }
}

#[test]
fn a_flip_of_any_bit_of_any_connection_is_seen_in_its_fingerprint_and_by_name() {
    let (mut names, mut longest) = (std::collections::BTreeSet::new(), 0);
    for seed in 0..300 {
        let mut subject = Subject::new(seed);
        for _ in 0..subject.rng.below(100) {
            subject.step();
        }
        let tcb = subject.tcb;
        let bits = tcb.bits();
        longest = longest.max(bits);
        // Every bit of a few connections, and some bits of all.
        let step = if seed % 50 == 0 {
            1
        } else {
            1 + seed as usize % 97
        };
        for bit in (0..bits).step_by(step) {
            let mut other = tcb.clone();
            let name = other.flip(bit).expect("there is such a bit");
            assert_eq!(
                tcb.first_difference(&other),
                Some(name),
                "bit {bit} of {tcb:?}"
            );
            assert_ne!(
                tcb.fingerprint(),
                other.fingerprint(),
                "bit {bit}, {name}, of {tcb:?}"
            );
            assert_ne!(tcb, other);
            names.insert(name);
        }
        assert_eq!(tcb.clone().flip(bits), None);
    }
    assert!(
        names.len() > 90 && longest > 4_000,
        "{longest} bits: {names:?}"
    );
}

proptest! {
    #[test]
    fn whatever_a_segment_says_in_whatever_state_nothing_panics(
        seed in any::<u64>(),
        fields in proptest::collection::vec(any::<(u32, u32, u32, u32, u8, u16, u8, Option<(u32, u32)>)>(), 1..8),
        steps in 0usize..60,
    ) {
        let mut subject = Subject::new(seed);
        for _ in 0..steps {
            subject.step();
        }
        let options = options(&mut subject.rng);
        for (seq, ack, len, run_offset, count, wnd, flags, timestamps) in fields {
            let seg = Segment {
                seq: SeqNum(seq),
                ack: SeqNum(ack),
                len,
                run_offset,
                count,
                wnd,
                flags: Flags(flags),
                timestamps,
                ce: false,
                followed: false,
                options: &options,
            };
            subject.request(|tcb, cx| {
                compare_paths(tcb, &seg, cx);
            });
            let mut out = Vec::new();
            let mut cx = Cx::new(subject.now, &mut subject.frames, &subject.limits, &mut out);
            let left = reset_for(&seg, flow(0), Mac::default(), &mut cx);
            prop_assert_eq!(left, out.len() == 1);
        }
    }
}
