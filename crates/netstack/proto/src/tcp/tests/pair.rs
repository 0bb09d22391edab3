//! Two sides, a wire that loses, repeats and reorders, and a clock that jumps to the next event.

use super::end::{CONN, End, Wire, flow, segments};
use crate::config::{CongestionControl, Ecn, Limits, TcpPolicy};
use crate::hash::Rng;
use crate::log::effect::{ConnectionEvent, Effect, FrameNumbers};
use crate::log::request::{Flags, Mac};
use crate::seqnum::SeqNum;
use crate::tcp::{Cx, State, Tcb, reset_for};
use crate::time::{Duration, Instant};

/// How the wire misbehaves, in percent.
#[derive(Clone, Copy)]
pub(super) struct Faults {
    loss: u32,
    duplicate: u32,
    reorder: u32,
    bad_checksum: u32,
}

impl Faults {
    const NONE: Faults = Faults {
        loss: 0,
        duplicate: 0,
        reorder: 0,
        bad_checksum: 0,
    };
}

/// Two ends and the wire between them.
pub(super) struct Pair {
    pub(super) ends: [End; 2],
    pub(super) now: Instant,
    rng: Rng,
    faults: Faults,
    delay: Duration,
    /// Arrival time, receiving end and segment, in order of sending.
    flight: Vec<(Instant, usize, Wire)>,
    /// Which end has answered a segment with a reset after its TIME-WAIT.
    forgot: [bool; 2],
    /// Bytes that each side will write.
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
            forgot: [false; 2],
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
            if moved && (end.finish.waits_for_sent() || end.finish.is_blocked()) {
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
            if end.finish.is_blocked()
                && end.frames.next < end.taken + u64::from(end.limits.tx_slots)
            {
                end.request(self.now, &[], |_, _| ());
            }
        }
    }

    /// Lets the next segment arrive, or fires a timer. Returns false if there is neither.
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
                if end
                    .tcb
                    .as_ref()
                    .is_some_and(|t| t.next_deadline() <= self.now)
                {
                    end.request(self.now, &[], |tcb, cx| tcb.on_time(cx));
                    let next = end.tcb.as_ref().map(Tcb::next_deadline);
                    assert!(next > Some(self.now), "a due timer did not fire");
                }
            }
            return true;
        }
        let (_, side, first) = self.flight.remove(arrival.unwrap_or(0));
        // Like the pump: segments without a gap between them make a run.
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
                self.forgot[side] = true;
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

    /// Runs until both sides have written and read everything and the connection is gone.
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
            let rests = |end: &End| end.written == end.released && end.read == end.readable;
            let idle = self.ends.iter().all(rests);
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
            assert!(end.events.contains(&ConnectionEvent::Established));
            // A long timeout may outlast the other end's TIME-WAIT: then a reset answers our FIN.
            let all = end.events.contains(&ConnectionEvent::AllAcknowledged);
            assert!(all || self.forgot[1 - side], "{:?}", end.events);
            assert!(
                end.events
                    .contains(&ConnectionEvent::PeerFinished { end: total })
            );
            // The end also learns of the reset if some data is not acknowledged.
            let reset = end.events.contains(&ConnectionEvent::Reset);
            assert!(
                !reset || (!all && self.forgot[1 - side]),
                "{:?}",
                end.events
            );
            let others = end.events.len() - usize::from(all) - usize::from(reset);
            assert_eq!(others, 2, "{:?}", end.events);
        }
    }
}

fn limits_for(rng: &mut Rng) -> Limits {
    let mtu = [576, 1500, 9000, 120][rng.index(4)];
    Limits {
        connections: 1,
        receive_buffer: 1 << (10 + rng.below(8)),
        send_buffer: 1 << (10 + rng.below(8)),
        tx_slots: [4, 16, 64, 512][rng.index(4)],
        mtu,
        frame_payload: [0, 4000, 65_000][rng.index(3)],
        quantum: [1, 2, 16, 64][rng.index(4)],
        tcp: TcpPolicy::default()
            .ecn([Ecn::Never, Ecn::Accept, Ecn::Request][rng.index(3)])
            .congestion(CongestionControl::ALL[rng.index(CongestionControl::ALL.len())]),
        ..Limits::default()
    }
}

fn stream(seed: u64, faults: Faults, simultaneous: bool) -> Pair {
    let mut rng = Rng::new(seed ^ 0xabcd);
    let limits = [limits_for(&mut rng), limits_for(&mut rng)];
    let total = [rng.below(60_000), [0, rng.below(60_000)][rng.index(2)]];
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
            // Window probes repeat a byte; nothing else may.
            assert!(
                end.sent_again < 200,
                "{} bytes again, seed {seed}",
                end.sent_again
            );
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
fn most_segments_of_a_bulk_transfer_take_the_fast_path() {
    let limits = Limits::default();
    let mut pair = Pair::new(1, [limits; 2], Faults::NONE, [3_000_000, 0]);
    pair.open(0);
    pair.run();
    pair.expect_complete();
    for end in &pair.ends {
        assert!(
            end.fast_segments > 20 * end.slow_segments,
            "{} predicted, {} not",
            end.fast_segments,
            end.slow_segments
        );
    }
}
