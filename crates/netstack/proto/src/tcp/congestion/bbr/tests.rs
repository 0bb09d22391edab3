//! BBR on a path of its own.

use super::*;
use crate::tcp::scoreboard::RangeState;
use std::collections::VecDeque;

const MSS: u32 = 1000;
const INITIAL: u32 = 10 * MSS;
/// Bytes per second of the bottleneck, and the round trip without a queue: 100,000 bytes.
const RATE: u64 = 10_000_000;
const RTT: Duration = Duration::from_millis(10);
const BDP: u32 = 100_000;

/// A sender and its path: a bottleneck with a queue, and a loss of every n-th segment.
struct Path {
    bbr: Bbr,
    now: Instant,
    cwnd: u32,
    in_flight: u32,
    /// Segments on the way: when the acknowledgment arrives, if one does.
    sent: VecDeque<(Instant, SentRange, bool)>,
    next: u32,
    idle_at: Instant,
    /// Bytes that the queue holds.
    buffer: u32,
    /// One of this many segments is lost; 0: none.
    lose: u32,
    recover: u32,
    /// Bytes that the application writes in each round trip; 0: as many as possible.
    writes: u32,
    written: u32,
    /// The states so far, and the longest queue.
    states: Vec<BbrState>,
    queue: Duration,
    stop: Option<BbrState>,
}

impl Path {
    fn new() -> Path {
        let mut bbr = Bbr::default();
        let now = Instant::from_millis(1000);
        bbr.begin(now, RTT, INITIAL, MSS);
        Path {
            bbr,
            now,
            cwnd: INITIAL,
            in_flight: 0,
            sent: VecDeque::new(),
            next: 0,
            idle_at: now,
            buffer: 10 * BDP,
            lose: 0,
            recover: 0,
            writes: 0,
            written: 0,
            states: vec![BbrState::Startup],
            queue: Duration::ZERO,
            stop: None,
        }
    }

    fn view(&self) -> PathView {
        let una = self.sent.front().map_or(self.next, |s| s.1.begin.0);
        PathView {
            now: self.now,
            mss: MSS,
            in_flight: self.in_flight,
            cwnd: self.cwnd,
            recovering: una < self.recover,
        }
    }

    fn has_data(&self) -> bool {
        self.writes == 0 || self.next < self.written
    }

    /// Sends what may be sent now.
    fn send(&mut self) {
        if !self.has_data() {
            return;
        }
        self.cwnd = self.bbr.before_send(&self.view());
        while self.has_data()
            && self.in_flight + MSS <= self.cwnd
            && self.bbr.allowance(self.now) >= MSS
        {
            let range = SentRange {
                begin: SeqNum(self.next),
                end: SeqNum(self.next + MSS),
                sent_at: self.now,
                state: RangeState::InFlight,
                retransmitted: false,
            };
            let number = self.next / MSS + 1;
            self.next += MSS;
            self.in_flight += MSS;
            self.bbr
                .on_sent(self.now, MSS, self.in_flight, || Instant::ZERO);
            let waits = self.idle_at.since(self.now);
            let is_lost = self.lose != 0 && number.is_multiple_of(self.lose)
                || volume(RATE, waits) > self.buffer;
            if !is_lost {
                self.queue = self.queue.max(waits);
                let takes = Duration::from_nanos(u64::from(MSS) * 1_000_000_000 / RATE);
                self.idle_at = self.idle_at.max(self.now) + takes;
            }
            self.sent.push_back((self.idle_at + RTT, range, is_lost));
        }
        let full = self.in_flight + MSS > self.cwnd;
        self.bbr.after_send(self.now, self.has_data(), full);
    }

    /// Runs for `time`, and returns the bytes that arrived.
    fn run(&mut self, time: Duration) -> u64 {
        let (end, before) = (self.now + time, self.bbr.delivery.delivered);
        let mut writes_at = self.now;
        loop {
            if self.writes != 0 && self.now >= writes_at {
                self.written = self.next.max(self.written) + self.writes;
                writes_at = self.now + RTT;
            }
            self.send();
            let arrives = self.sent.front().map_or(Instant::NEVER, |s| s.0);
            let mut next = arrives;
            if self.has_data() && self.in_flight + MSS <= self.cwnd {
                next = next.min(
                    self.bbr
                        .pacer
                        .next_send
                        .max(self.now + Duration::from_nanos(1)),
                );
            }
            if self.writes != 0 {
                next = next.min(writes_at);
            }
            if next > end {
                self.now = end;
                return self.bbr.delivery.delivered - before;
            }
            self.now = next;
            if arrives == next {
                self.acknowledge();
            }
            if self.stop == Some(self.bbr.state) {
                return self.bbr.delivery.delivered - before;
            }
        }
    }

    /// The first segment on the way arrives, or counts as lost.
    fn acknowledge(&mut self) {
        let (_, range, is_lost) = self.sent.pop_front().expect("one is on the way");
        self.in_flight -= MSS;
        if is_lost {
            let view = self.view();
            self.bbr.on_lost(&range, &view);
            if !view.recovering {
                self.recover = self.next;
            }
            return;
        }
        self.bbr.on_delivered(&range, self.now);
        self.cwnd = self.bbr.on_ack(&self.view(), INITIAL);
        if self.states.last() != Some(&self.bbr.state) {
            self.states.push(self.bbr.state);
        }
    }

    /// Runs until the state is `state`.
    fn until(&mut self, state: BbrState) {
        self.stop = Some(state);
        self.run(Duration::from_secs(20));
        self.stop = None;
        assert_eq!(self.bbr.state, state);
    }
}

/// Whether `is` is `should`, within 3 %.
fn near(is: u64, should: u64) -> bool {
    is.abs_diff(should) <= should * 3 / 100
}

#[test]
fn startup_finds_the_rate_in_a_few_rounds_and_drain_empties_the_queue() {
    let mut path = Path::new();
    path.until(BbrState::Drain);
    assert!(
        path.bbr.rounds.round_count <= 12,
        "{} rounds",
        path.bbr.rounds.round_count
    );
    assert!(near(path.bbr.max_bw(), RATE), "{}", path.bbr.max_bw());
    // The window bounds the queue to about one round trip.
    assert!(path.queue <= RTT.times(2), "{:?}", path.queue);
    path.until(BbrState::ProbeBwCruise);
    let most = path.bbr.inflight(100, &path.view());
    assert!(path.in_flight <= most, "{} in flight", path.in_flight);
    assert!(path.bbr.round_trip.min_rtt <= RTT + Duration::from_millis(1));
}

#[test]
fn probing_goes_through_its_phases_in_order_and_uses_the_whole_rate() {
    let mut path = Path::new();
    path.until(BbrState::ProbeBwDown);
    path.states = vec![BbrState::ProbeBwDown];
    let delivered = path.run(Duration::from_secs(4));
    let used = delivered * 100 / (4 * RATE);
    assert!(used >= 96, "{used} %");
    let cycle = [
        BbrState::ProbeBwDown,
        BbrState::ProbeBwCruise,
        BbrState::ProbeBwRefill,
        BbrState::ProbeBwUp,
    ];
    assert!(path.states.len() >= 8, "{:?}", path.states);
    for (is, should) in path.states.iter().zip(cycle.iter().cycle()) {
        assert_eq!(is, should, "{:?}", path.states);
    }
    assert!(path.queue <= RTT.times(2));
}

/// Section 5.3.3.8: after 63 round trips at most, or 3 seconds.
#[test]
fn the_next_probe_waits_for_two_to_three_seconds_or_sixty_three_rounds() {
    let mut path = Path::new();
    path.until(BbrState::ProbeBwCruise);
    let began = path.bbr.probe.cycle_stamp;
    path.until(BbrState::ProbeBwRefill);
    let rounds = path.bbr.rounds.rounds_since_probe_up;
    assert!((60..=64).contains(&rounds), "{rounds} rounds");
    assert!(path.now.since(began) < Duration::from_millis(900));
    for ms in 0..500 {
        path.bbr.start_down(Instant::from_millis(ms));
        let wait = path.bbr.probe.bw_probe_wait.as_millis();
        assert!((2000..3000).contains(&wait), "{wait} ms");
    }
}

#[test]
fn the_round_trip_is_probed_every_five_seconds_with_half_the_data_in_flight() {
    let mut path = Path::new();
    path.until(BbrState::ProbeRtt);
    let entered = path.now;
    assert!(entered.since(Instant::from_millis(1000)) >= PROBE_RTT_INTERVAL);
    path.run(Duration::from_millis(30));
    assert_eq!(path.bbr.state, BbrState::ProbeRtt);
    assert!(path.cwnd <= BDP * 55 / 100, "{} bytes", path.cwnd);
    let before = path.bbr.prior_cwnd;
    path.until(BbrState::ProbeBwCruise);
    let lasted = path.now.since(entered).as_millis();
    assert!((200..=240).contains(&lasted), "{lasted} ms");
    assert!(path.cwnd >= before * 9 / 10, "{} of {before}", path.cwnd);
    assert!(near(path.bbr.max_bw(), RATE));
}

/// One of `every` segments is lost, and the queue drops more when it is full.
#[test]
fn loss_is_the_paths_without_a_queue_and_up_to_five_percent() {
    for (every, buffer, used, path_loss) in [
        (100, 10 * BDP, 85..=100, 1..=15),
        (20, 10 * BDP, 80..=100, 25..=50),
        (5, 10 * BDP, 1..=50, 50..=50),
        // Startup, probes and what other flows send fill a queue; without one there is no loss.
        (0, BDP / 4, 90..=100, 0..=2),
        (0, BDP / 16, 60..=100, 0..=5),
    ] {
        let mut path = Path::new();
        (path.lose, path.buffer) = (every, buffer);
        path.run(Duration::from_secs(1));
        let is_used = path.run(Duration::from_secs(8)) * 100 / (8 * RATE);
        let is_lost = path.bbr.path_loss.per_mille;
        let case = format!("{every}, {buffer}: {is_used} %, {is_lost} per mille");
        assert!(
            used.contains(&is_used) && path_loss.contains(&is_lost),
            "{case}"
        );
    }
}

/// Section 5.5.10.2: max(InflightAtLoss, 0.7 * target).
#[test]
fn a_probe_that_loses_too_much_ends_and_bounds_what_is_in_flight() {
    let mut path = Path::new();
    path.until(BbrState::ProbeBwUp);
    assert!(path.bbr.probe.is_bw_probe_sample);
    assert_eq!(path.bbr.bounds.inflight_longterm, NO_BOUND);
    path.run(RTT);
    // 5 % of the data in flight are lost: first less than the threshold, then more.
    let target = path.bbr.target_inflight(&path.view());
    for (i, entry) in path.sent.iter_mut().enumerate() {
        entry.2 = i % 20 == 0;
    }
    let (_, range, _) = path.sent[0];
    path.acknowledge();
    assert_eq!(path.bbr.state, BbrState::ProbeBwUp, "{range:?}");
    path.run(RTT);
    assert_eq!(path.bbr.state, BbrState::ProbeBwDown);
    let bound = path.bbr.bounds.inflight_longterm;
    assert!(bound >= share(target, BETA) && bound < 3 * BDP, "{bound}");
    assert!(path.bbr.probe.prev_probe_too_high && !path.bbr.probe.is_bw_probe_sample);
    // Section 5.3.3.6: the next probe ends when it reaches that bound.
    path.until(BbrState::ProbeBwUp);
    path.until(BbrState::ProbeBwDown);
    let early = path.bbr.probe.prev_probe_precautionary;
    assert!(early || path.bbr.full_pipe.full_bw_now, "{:?}", path.bbr);
}

/// Section 5.5.10.3: no more than 0.7 in a round, and not below what arrives.
#[test]
fn loss_while_cruising_lowers_the_short_term_bounds_until_the_next_probe() {
    let mut path = Path::new();
    path.until(BbrState::ProbeBwCruise);
    path.bbr.note_loss(&path.view());
    let cwnd = path.cwnd;
    path.run(RTT.times(2));
    assert!(path.bbr.bounds.inflight_shortterm >= share(cwnd, BETA));
    assert!(path.bbr.bounds.inflight_shortterm < NO_BOUND);
    assert!(path.bbr.bandwidth.bw_shortterm >= path.bbr.max_bw() * BETA / 100);
    path.until(BbrState::ProbeBwRefill);
    assert_eq!(path.bbr.bandwidth.bw_shortterm, NO_RATE_BOUND);
    assert_eq!(path.bbr.bounds.inflight_shortterm, NO_BOUND);
}

/// Section 5.3.1.3: six gaps in a round of a recovery.
#[test]
fn high_loss_ends_startup_and_a_spurious_one_returns_to_it() {
    let mut path = Path::new();
    path.buffer = BDP / 10;
    path.until(BbrState::Drain);
    assert!(path.bbr.bounds.inflight_longterm < NO_BOUND);
    assert!(path.bbr.full_pipe.full_bw_count < FULL_BW_ROUNDS);
    path.bbr.on_spurious();
    assert_eq!(path.bbr.state, BbrState::Startup);
    assert_eq!(path.bbr.bounds.inflight_longterm, NO_BOUND);
    assert!(!path.bbr.full_pipe.full_bw_reached);
}

#[test]
fn what_an_application_writes_slowly_ends_no_startup_and_lowers_no_rate() {
    let mut path = Path::new();
    path.writes = 5 * MSS;
    path.run(Duration::from_secs(1));
    assert_eq!(path.bbr.state, BbrState::Startup);
    let mut path = Path::new();
    path.until(BbrState::ProbeBwDown);
    let rate = path.bbr.max_bw();
    path.writes = 5 * MSS;
    path.run(Duration::from_secs(3));
    assert_eq!(path.bbr.max_bw(), rate);
    assert!(path.bbr.delivery.is_app_limited());
}

#[test]
fn a_quantum_is_a_millisecond_of_two_segments_to_64_kibibytes() {
    for (rate, quantum) in [
        (1_000, 2 * MSS),
        (10_000_000, 10_000),
        (1_000_000_000, 64 << 10),
    ] {
        let mut bbr = Bbr::default();
        bbr.pacer.pacing_rate = rate;
        bbr.set_send_quantum(MSS);
        assert_eq!(bbr.pacer.send_quantum, quantum);
        let now = Instant::from_millis(5_000);
        assert_eq!(bbr.allowance(now), quantum);
        bbr.on_sent(now, quantum, quantum, || now);
        assert_eq!(bbr.allowance(now), 0);
        let takes = Duration::from_nanos(u64::from(quantum) * 1_000_000_000 / rate);
        // It left late, so half of its time is made up for.
        assert_eq!(bbr.pacer.next_send, now + takes.divided(2));
        assert_eq!(bbr.allowance(bbr.pacer.next_send), quantum);
    }
}

/// A window of the most segments and a peer that reports anything.
#[test]
fn no_report_of_what_arrived_or_was_lost_overflows() {
    let mut bbr = Bbr::default();
    bbr.begin(Instant::ZERO, Duration::ZERO, INITIAL, MSS);
    for i in 0..5_000_u64 {
        let now = Instant::from_nanos(i * i * 7);
        let view = PathView {
            now,
            mss: MSS,
            in_flight: (i as u32).wrapping_mul(0x9e37_79b9) % WINDOW_MAX,
            cwnd: WINDOW_MAX,
            recovering: i % 3 == 0,
        };
        bbr.before_send(&view);
        bbr.on_sent(now, MSS, view.in_flight, || Instant::ZERO);
        let range = SentRange {
            end: SeqNum(WINDOW_MAX),
            sent_at: now.before(Duration::from_nanos(i % 11)),
            ..SentRange::default()
        };
        match i % 5 {
            0 => bbr.on_lost(&range, &view),
            1 => bbr.on_timeout(&view),
            2 => bbr.on_spurious(),
            _ => bbr.on_delivered(&range, now),
        }
        let cwnd = bbr.on_ack(&view, INITIAL);
        assert!((MIN_PIPE * MSS..=WINDOW_MAX).contains(&cwnd));
        assert!(bbr.pacer.pacing_rate > 0 && bbr.pacer.send_quantum <= QUANTUM.0);
    }
}

#[test]
fn the_records_of_what_was_sent_are_bounded() {
    let mut bbr = Bbr::default();
    for i in 1..10_000_u64 {
        let now = Instant::from_nanos(i);
        bbr.on_sent(now, 1, 10_000, || Instant::ZERO);
    }
    let mut copy = bbr.clone();
    assert_eq!(copy, bbr);
    // The oldest data in flight is new: little remains.
    copy.on_sent(Instant::from_millis(1), 1, 10_000, || {
        Instant::from_nanos(9_990)
    });
    assert!(crate::tcp::fields::Flip::bits(&bbr.delivery) < 1024 * 600);
}
