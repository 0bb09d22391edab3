//! BBR (draft-ietf-ccwg-bbr-06), in integers: rates in bytes per second, gains in percent.
//!
//! BBR measures the delivery rate and the round trip of the path. The rate paces the data, and the
//! product of both bounds the data in flight. BBR probes for more bandwidth every few seconds. A
//! probe ends when more than [`LOSS_PERCENT`] of the data in flight is lost. Between probes, each
//! round trip with a loss lowers the rate to what arrived, so random loss costs as much as the
//! rounds until the next probe have lost. [`tcp`](crate::tcp) lists the departures.

use super::Algorithm;
use super::delivery::{Delivery, RateSample, UNKNOWN};
use crate::config::CongestionControl;
use crate::hash::mix;
use crate::seqnum::SeqNum;
use crate::tcp::congestion::{Acked, WINDOW_MAX};
use crate::tcp::fields::{field_variants, fields};
use crate::tcp::scoreboard::SentRange;
use crate::time::{Duration, Instant};

/// BBR.LossThresh, percent of the bytes in flight (section 2.4).
const LOSS_PERCENT: u64 = 2;

/// Percent of the data that `CongestionControl::BbrLossy` lets the path lose.
const LOSSY: u8 = 10;

/// BBR.Beta, percent: what congestion leaves of a bound in a round trip (section 2.4).
const BETA: u64 = 70;

/// BBR.Headroom, percent of `inflight_longterm` that is left to other flows (section 2.4).
const HEADROOM: u64 = 15;

/// BBR.PacingMarginPercent: how far the pacing rate is below the bandwidth (section 5.6.2).
const PACING_MARGIN: u64 = 1;

/// BBRStartupFullLossCnt: gaps in a round trip that end Startup (section 5.3.1.3).
const STARTUP_GAPS: u8 = 6;

/// Rounds without a quarter more bandwidth after which the pipe is full (section 5.3.1.2).
const FULL_BW_ROUNDS: u8 = 3;

/// Rounds after which Drain ends in any case (section 5.3.2).
const DRAIN_ROUNDS: u32 = 3;

/// BBR.MinPipeCwnd, in segments (section 5.6.4.3).
const MIN_PIPE: u32 = 4;

/// The most rounds between two probes for bandwidth (section 5.3.3.8).
const RENO_ROUNDS: u32 = 63;

/// BBR.MinRTTFilterLen (section 5.5.7.2).
const MIN_RTT_LASTS: Duration = Duration::from_secs(10);

/// BBR.ProbeRTTInterval (section 5.3.4.1).
const PROBE_RTT_INTERVAL: Duration = Duration::from_secs(5);

/// BBR.ProbeRTTDuration (section 5.3.4.1).
const PROBE_RTT_DURATION: Duration = Duration::from_millis(200);

/// Rounds for which half of the filter of `extra_acked` lasts (section 5.5.9).
const EXTRA_ACKED_ROUNDS: u8 = 5;

/// The largest C.send_quantum, bytes, and the time that a quantum may take (section 5.6.3).
const QUANTUM: (u32, Duration) = (64 << 10, Duration::from_millis(1));

/// The round trip that is assumed before the first measurement (section 5.6.2).
const FIRST_RTT: Duration = Duration::from_millis(1);

/// No bound: Infinity of the draft, for volumes and for rates.
const NO_BOUND: u32 = u32::MAX;
const NO_RATE_BOUND: u64 = u64::MAX;

/// BBR.state (section 5.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
enum BbrState {
    /// Doubles the rate in each round trip.
    #[default]
    Startup,
    /// Empties the queue that Startup has built.
    Drain,
    /// Sends less than the path delivers.
    ProbeBwDown,
    /// Sends as much as the path delivers.
    ProbeBwCruise,
    /// Fills the pipe before the probe.
    ProbeBwRefill,
    /// Probes for more bandwidth.
    ProbeBwUp,
    /// Has little in flight, to see the round trip without a queue.
    ProbeRtt,
}

field_variants!(BbrState {
    Startup,
    Drain,
    ProbeBwDown,
    ProbeBwCruise,
    ProbeBwRefill,
    ProbeBwUp,
    ProbeRtt
});

impl BbrState {
    /// Pacing gain and window gain in percent: the table of section 5.6.1.
    const fn gains(self) -> (u64, u64) {
        match self {
            BbrState::Startup => (277, 200),
            BbrState::Drain => (50, 200),
            BbrState::ProbeBwDown => (90, 200),
            BbrState::ProbeBwCruise | BbrState::ProbeBwRefill => (100, 200),
            BbrState::ProbeBwUp => (125, 225),
            BbrState::ProbeRtt => (100, 50),
        }
    }

    /// IsInAProbeBWState().
    const fn probes_bw(self) -> bool {
        !matches!(
            self,
            BbrState::Startup | BbrState::Drain | BbrState::ProbeRtt
        )
    }

    /// IsProbingBW(): the states that accelerate.
    const fn accelerates(self) -> bool {
        matches!(
            self,
            BbrState::Startup | BbrState::ProbeBwRefill | BbrState::ProbeBwUp
        )
    }
}

/// The connection, as BBR sees it at an acknowledgment or a loss.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct PathView {
    pub(in crate::tcp) now: Instant,
    /// Bytes of a full segment.
    pub(in crate::tcp) mss: u32,
    /// C.inflight.
    pub(in crate::tcp) in_flight: u32,
    /// C.cwnd.
    pub(in crate::tcp) cwnd: u32,
    /// Whether a loss is being recovered from.
    pub(in crate::tcp) recovering: bool,
}

/// BBR and its pacing: the state of section 2, by the names of the draft.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::tcp) struct Bbr {
    delivery: Delivery,
    state: BbrState,
    pacer: Pacer,
    rounds: Rounds,
    bandwidth: Bandwidth,
    bounds: Bounds,
    full_pipe: FullPipe,
    round_trip: RoundTrip,
    losses: Losses,
    probe: Probe,
    aggregation: Aggregation,
    undo: UndoLoss,
    /// Percent of the data whose loss is no sign of congestion; 0 in the draft.
    tolerated: u8,
    prior_cwnd: u32,
    /// A timeout reduced the window, and some loss is not repaired yet.
    after_timeout: bool,
    idle_restart: bool,
    /// Whether the window was used up in this round and in the one before (C.is_cwnd_limited).
    cwnd_limited: [bool; 2],
    /// All data was sent.
    ran_out: bool,
}

fields!(Bbr, "bbr", {
    delivery, state, pacer, rounds, bandwidth, bounds, full_pipe, round_trip, losses, probe,
    aggregation, undo, tolerated, prior_cwnd, after_timeout, idle_restart, cwnd_limited, ran_out,
});

/// Declares parts of the state, with the values that they begin with.
macro_rules! parts {
    ($(
        $(#[$about:meta])*
        $part:ident { $($(#[$doc:meta])* $field:ident: $type:ty = $value:expr,)* }
    )*) => {$(
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        struct $part {
            $($(#[$doc])* $field: $type,)*
        }

        fields!($part, "bbr", { $($field),* });

        impl Default for $part {
            fn default() -> Self {
                $part { $($field: $value),* }
            }
        }
    )*};
}

parts! {
    /// How fast data leaves (sections 5.6.2 and 5.6.3).
    Pacer {
        /// C.pacing_rate.
        pacing_rate: u64 = 1,
        /// C.next_send_time.
        next_send: Instant = Instant::ZERO,
        /// When data was last sent.
        burst_at: Instant = Instant::ZERO,
        /// Bytes of the quantum that left then.
        burst: u32 = 0,
        /// C.send_quantum.
        send_quantum: u32 = QUANTUM.0,
        /// The pacing rate is based on a measured round trip.
        rtt_seen: bool = false,
    }

    /// Packet-timed round trips (section 5.5.1).
    Rounds {
        next_round_delivered: u64 = 0,
        round_start: bool = false,
        round_count: u32 = 0,
        drain_start_round: u32 = 0,
        rounds_since_probe_up: u32 = 0,
    }

    /// The rate that the path delivers (sections 5.5.2 to 5.5.6).
    Bandwidth {
        /// The highest rate of the last cycle and of this one.
        max_bw_filter: [u64; 2] = [0; 2],
        bw: u64 = 0,
        bw_shortterm: u64 = NO_RATE_BOUND,
        bw_latest: u64 = 0,
    }

    /// Bounds of the data in flight, from losses (section 5.5.10).
    Bounds {
        inflight_longterm: u32 = NO_BOUND,
        inflight_shortterm: u32 = NO_BOUND,
        inflight_latest: u32 = 0,
    }

    /// Whether a higher rate still finds more bandwidth (section 5.3.1.2).
    FullPipe {
        full_bw: u64 = 0,
        full_bw_count: u8 = 0,
        full_bw_now: bool = false,
        full_bw_reached: bool = false,
    }

    /// The round trip without a queue (sections 5.3.4 and 5.5.7).
    RoundTrip {
        min_rtt: Duration = UNKNOWN,
        min_rtt_stamp: Instant = Instant::ZERO,
        probe_rtt_min_delay: Duration = UNKNOWN,
        probe_rtt_min_stamp: Instant = Instant::ZERO,
        probe_rtt_expired: bool = false,
        probe_rtt_done_stamp: Option<Instant> = None,
        probe_rtt_round_done: bool = false,
    }

    /// The losses of a round (section 5.5.10).
    Losses {
        is_loss_in_round: bool = false,
        loss_round_delivered: u64 = 0,
        loss_round_start: bool = false,
        /// Gaps among the losses of this round.
        gaps: u8 = 0,
        /// The end of the latest gap.
        gap_end: SeqNum = SeqNum(0),
    }

    /// The probes for more bandwidth (section 5.3.3).
    Probe {
        is_bw_probe_sample: bool = false,
        prev_probe_too_high: bool = false,
        prev_probe_precautionary: bool = false,
        probe_up_acked_per_inc: u32 = NO_BOUND,
        bw_probe_up_acked: u32 = 0,
        bw_probe_up_rounds: u8 = 0,
        cycle_stamp: Instant = Instant::ZERO,
        bw_probe_wait: Duration = Duration::ZERO,
        /// BBR.ack_phase is ACKS_PROBE_STOPPING; the draft reads no other value of it.
        probe_stopping: bool = false,
    }

    /// How much more than expected is acknowledged at once (section 5.5.9).
    Aggregation {
        /// The largest value of the last few rounds, and of those before.
        extra_acked: [u32; 2] = [0; 2],
        extra_acked_rounds: u8 = 0,
        extra_acked_interval_start: Instant = Instant::ZERO,
        extra_acked_delivered: u64 = 0,
    }

    /// The values that a spurious loss restores (section 5.5.11).
    UndoLoss {
        /// Startup or ProbeBwUp, if a loss ended it.
        undo_state: Option<BbrState> = None,
        undo_bw_shortterm: u64 = 0,
        undo_inflight_shortterm: u32 = 0,
        undo_inflight_longterm: u32 = 0,
    }
}

/// BBR with its memory, which other connections do not need.
pub(super) type BoxedBbr = Box<Bbr>;

impl Algorithm for BoxedBbr {
    fn new(control: CongestionControl) -> Self {
        let tolerated = match control {
            CongestionControl::BbrLossy => LOSSY,
            _ => 0,
        };
        Box::new(Bbr {
            tolerated,
            ..Bbr::default()
        })
    }

    /// [`Bbr::on_ack`] sets the window.
    fn slow_start(&mut self, _ack: &Acked, _initial: bool) -> Option<u32> {
        Some(0)
    }

    fn increase(&mut self, cwnd: u32, _ack: &Acked) -> u32 {
        cwnd
    }

    fn decrease(&mut self, cwnd: u32, _flight: u32, _mss: u32) -> u32 {
        cwnd
    }

    fn after_idle(&mut self) {}
}

/// `percent` of `bytes`.
fn share(bytes: u32, percent: u64) -> u32 {
    (u64::from(bytes) * percent / 100).min(u64::from(NO_BOUND)) as u32
}

/// Bytes that `rate` delivers in `time`, at most a window.
fn volume(rate: u64, time: Duration) -> u32 {
    let bytes = u128::from(rate) * u128::from(time.as_nanos()) / 1_000_000_000;
    bytes.min(u128::from(WINDOW_MAX)) as u32
}

impl Bbr {
    /// Data may be sent from `now` on, with a window of `cwnd` bytes: OnInit() of section 5.2.1.
    pub(super) fn begin(&mut self, now: Instant, srtt: Duration, cwnd: u32, mss: u32) {
        if srtt != Duration::ZERO {
            self.round_trip.min_rtt = srtt;
        }
        self.round_trip.min_rtt_stamp = now;
        self.round_trip.probe_rtt_min_delay = self.round_trip.min_rtt;
        self.round_trip.probe_rtt_min_stamp = now;
        self.aggregation.extra_acked_interval_start = now;
        self.pacer.next_send = now;
        self.init_pacing_rate(srtt, cwnd, mss);
    }

    /// InitPacingRate() of section 5.6.2.
    fn init_pacing_rate(&mut self, srtt: Duration, cwnd: u32, mss: u32) {
        self.pacer.rtt_seen = srtt != Duration::ZERO;
        let rtt = if self.pacer.rtt_seen { srtt } else { FIRST_RTT };
        let nominal = u64::from(cwnd) * 1_000_000_000 / rtt.as_nanos();
        let (gain, _) = BbrState::Startup.gains();
        self.pacer.pacing_rate = nominal.saturating_mul(gain) / 100;
        self.set_send_quantum(mss);
    }

    /// An acknowledgment was processed: UpdateOnACK() of section 5.2.3. Returns C.cwnd.
    pub(super) fn on_ack(&mut self, view: &PathView, initial: u32) -> u32 {
        let rs = self
            .delivery
            .take_sample(view.in_flight, self.round_trip.min_rtt);
        if !self.pacer.rtt_seen && rs.rtt != UNKNOWN && rs.rtt != Duration::ZERO {
            self.init_pacing_rate(rs.rtt, initial, view.mss);
        }
        let mut cwnd = view.cwnd;
        self.update_latest_delivery_signals(&rs);
        self.update_congestion_signals(&rs, view);
        self.update_ack_aggregation(&rs, view);
        self.check_full_bw_reached(&rs);
        self.check_startup_done(&rs, view);
        self.check_drain_done(view);
        self.update_probe_bw_cycle(&rs, view);
        self.update_min_rtt(&rs, view.now);
        self.check_probe_rtt(&rs, view, &mut cwnd);
        if self.losses.loss_round_start {
            (self.bandwidth.bw_latest, self.bounds.inflight_latest) =
                self.delivered_or_tolerated(&rs);
        }
        self.bandwidth.bw = self.max_bw().min(self.bandwidth.bw_shortterm);
        let (gain, _) = self.state.gains();
        self.set_pacing_rate(gain, view.mss);
        self.set_send_quantum(view.mss);
        self.set_cwnd(&rs, view, initial, cwnd)
    }

    /// BBR.LossThresh, percent.
    fn loss_percent(&self) -> u64 {
        LOSS_PERCENT.max(u64::from(self.tolerated))
    }

    /// IsInflightTooHigh() of section 5.5.10.2.
    fn is_too_high(&self, lost: u64, in_flight: u32) -> bool {
        lost.saturating_mul(100) > u64::from(in_flight) * self.loss_percent()
    }

    /// BBR.max_bw.
    fn max_bw(&self) -> u64 {
        self.bandwidth.max_bw_filter[0].max(self.bandwidth.max_bw_filter[1])
    }

    /// Section 5.5.10.3.
    fn update_latest_delivery_signals(&mut self, rs: &RateSample) {
        self.losses.loss_round_start = false;
        let (rate, volume) = self.delivered_or_tolerated(rs);
        self.bandwidth.bw_latest = self.bandwidth.bw_latest.max(rate);
        self.bounds.inflight_latest = self.bounds.inflight_latest.max(volume);
        if rs.prior_delivered() >= Some(self.losses.loss_round_delivered) {
            self.losses.loss_round_delivered = self.delivery.delivered;
            self.losses.loss_round_start = true;
        }
    }

    /// RS.delivery_rate and RS.delivered, as if the tolerated part of the losses had arrived.
    fn delivered_or_tolerated(&self, rs: &RateSample) -> (u64, u32) {
        if self.tolerated == 0 || rs.delivered == 0 {
            return (rs.rate, volume_of(rs.delivered));
        }
        let sent = rs.delivered.saturating_add(rs.lost);
        let tolerated = sent.saturating_mul(u64::from(self.tolerated)) / 100;
        let volume = rs.delivered.saturating_add(rs.lost.min(tolerated));
        let rate = u128::from(rs.rate) * u128::from(volume) / u128::from(rs.delivered);
        (
            rate.min(u128::from(NO_RATE_BOUND)) as u64,
            volume_of(volume),
        )
    }

    /// Sections 5.5.5 and 5.5.10.3.
    fn update_congestion_signals(&mut self, rs: &RateSample, view: &PathView) {
        self.update_round(rs);
        if rs.rate > 0 && (rs.rate >= self.max_bw() || !rs.is_app_limited()) {
            self.bandwidth.max_bw_filter[1] = self.bandwidth.max_bw_filter[1].max(rs.rate);
        }
        if self.losses.loss_round_start {
            if self.losses.is_loss_in_round && !self.state.accelerates() {
                self.adapt_lower_bounds(view.cwnd);
            }
            self.losses.is_loss_in_round = false;
        }
    }

    /// UpdateRound() of section 5.5.1.
    fn update_round(&mut self, rs: &RateSample) {
        self.rounds.round_start = rs.prior_delivered() >= Some(self.rounds.next_round_delivered);
        if self.rounds.round_start {
            self.start_round();
            self.rounds.round_count = self.rounds.round_count.wrapping_add(1);
            self.rounds.rounds_since_probe_up = self.rounds.rounds_since_probe_up.saturating_add(1);
            self.cwnd_limited = [false, self.cwnd_limited[0]];
        }
    }

    fn start_round(&mut self) {
        self.rounds.next_round_delivered = self.delivery.delivered;
    }

    /// C.is_cwnd_limited.
    const fn is_cwnd_limited(&self) -> bool {
        self.cwnd_limited[0] || self.cwnd_limited[1]
    }

    /// InitLowerBounds() and LossLowerBounds() of section 5.5.10.3.
    fn adapt_lower_bounds(&mut self, cwnd: u32) {
        if self.bandwidth.bw_shortterm == NO_RATE_BOUND {
            self.bandwidth.bw_shortterm = self.max_bw();
        }
        if self.bounds.inflight_shortterm == NO_BOUND {
            self.bounds.inflight_shortterm = cwnd;
        }
        let least = self.bandwidth.bw_shortterm.saturating_mul(BETA) / 100;
        self.bandwidth.bw_shortterm = self.bandwidth.bw_latest.max(least);
        let least = share(self.bounds.inflight_shortterm, BETA);
        self.bounds.inflight_shortterm = self.bounds.inflight_latest.max(least);
    }

    /// ResetShortTermModel() of section 5.5.10.3.
    const fn reset_short_term_model(&mut self) {
        self.bandwidth.bw_shortterm = NO_RATE_BOUND;
        self.bounds.inflight_shortterm = NO_BOUND;
    }

    /// Section 5.5.9.
    fn update_ack_aggregation(&mut self, rs: &RateSample, view: &PathView) {
        if self.rounds.round_start {
            self.aggregation.extra_acked_rounds =
                self.aggregation.extra_acked_rounds.saturating_add(1);
            let lasts = if self.full_pipe.full_bw_reached {
                EXTRA_ACKED_ROUNDS
            } else {
                1
            };
            if self.aggregation.extra_acked_rounds >= lasts {
                self.aggregation.extra_acked_rounds = 0;
                self.aggregation.extra_acked = [0, self.aggregation.extra_acked[0]];
            }
        }
        let interval = view.now.since(self.aggregation.extra_acked_interval_start);
        let mut expected = u64::from(volume(self.bandwidth.bw, interval));
        if self.aggregation.extra_acked_delivered <= expected {
            self.aggregation.extra_acked_delivered = 0;
            self.aggregation.extra_acked_interval_start = view.now;
            expected = 0;
        }
        self.aggregation.extra_acked_delivered += u64::from(rs.acked);
        let extra = self
            .aggregation
            .extra_acked_delivered
            .saturating_sub(expected);
        let extra = extra.min(u64::from(view.cwnd)) as u32;
        self.aggregation.extra_acked[0] = self.aggregation.extra_acked[0].max(extra);
    }

    /// Section 5.3.1.2.
    fn check_full_bw_reached(&mut self, rs: &RateSample) {
        if self.full_pipe.full_bw_now || !self.rounds.round_start || rs.is_app_limited() {
            return;
        }
        if rs.rate >= self.full_pipe.full_bw.saturating_mul(5) / 4 {
            self.reset_full_bw(rs.rate);
            return;
        }
        self.full_pipe.full_bw_count = self.full_pipe.full_bw_count.saturating_add(1);
        self.full_pipe.full_bw_now = self.full_pipe.full_bw_count >= FULL_BW_ROUNDS;
        self.full_pipe.full_bw_reached |= self.full_pipe.full_bw_now;
    }

    /// ResetFullBW(), with `rate` as the new baseline.
    const fn reset_full_bw(&mut self, rate: u64) {
        self.full_pipe.full_bw = rate;
        self.full_pipe.full_bw_count = 0;
        self.full_pipe.full_bw_now = false;
    }

    /// Sections 5.3.1.1 and 5.3.1.3.
    fn check_startup_done(&mut self, rs: &RateSample, view: &PathView) {
        if self.losses.loss_round_start {
            let too_high = self.is_too_high(rs.lost, rs.in_flight());
            if !self.full_pipe.full_bw_reached
                && view.recovering
                && self.losses.gaps >= STARTUP_GAPS
                && too_high
            {
                self.undo.undo_state = Some(BbrState::Startup);
                self.full_pipe.full_bw_reached = true;
                self.bounds.inflight_longterm =
                    self.bdp(100, view).max(self.bounds.inflight_latest);
            }
            self.losses.gaps = 0;
        }
        if self.state == BbrState::Startup && self.full_pipe.full_bw_reached {
            self.state = BbrState::Drain;
            self.rounds.drain_start_round = self.rounds.round_count;
        }
    }

    /// Section 5.3.2.
    fn check_drain_done(&mut self, view: &PathView) {
        let rounds = self
            .rounds
            .round_count
            .wrapping_sub(self.rounds.drain_start_round);
        let drained = view.in_flight <= self.inflight(100, view) || rounds > DRAIN_ROUNDS;
        if self.state == BbrState::Drain && drained {
            self.start_down(view.now);
        }
    }

    /// StartProbeBW_DOWN() of section 5.3.3.9.
    fn start_down(&mut self, now: Instant) {
        self.losses.is_loss_in_round = false;
        self.bandwidth.bw_latest = 0;
        self.bounds.inflight_latest = 0;
        self.probe.probe_up_acked_per_inc = NO_BOUND;
        // PickProbeWait(), from a hash of the state: each replica draws the same numbers.
        let random = mix(now.as_nanos() ^ self.delivery.delivered.rotate_left(32));
        self.rounds.rounds_since_probe_up = random as u32 & 1;
        self.probe.bw_probe_wait = Duration::from_millis(2000 + (random >> 32) % 1000);
        self.probe.cycle_stamp = now;
        self.probe.probe_stopping = true;
        self.start_round();
        self.state = BbrState::ProbeBwDown;
    }

    /// StartProbeBW_REFILL().
    const fn start_refill(&mut self) {
        self.reset_short_term_model();
        self.probe.bw_probe_up_rounds = 0;
        self.probe.bw_probe_up_acked = 0;
        self.probe.prev_probe_precautionary = false;
        self.probe.probe_stopping = false;
        self.rounds.next_round_delivered = self.delivery.delivered;
        self.state = BbrState::ProbeBwRefill;
    }

    /// StartProbeBW_UP().
    fn start_up(&mut self, rs: &RateSample, view: &PathView) {
        self.start_round();
        self.reset_full_bw(rs.rate);
        self.state = BbrState::ProbeBwUp;
        self.raise_longterm_slope(view);
    }

    /// UpdateProbeBWCyclePhase() of section 5.3.3.9.
    fn update_probe_bw_cycle(&mut self, rs: &RateSample, view: &PathView) {
        if !self.full_pipe.full_bw_reached || self.adapt_long_term_model(rs, view) {
            return;
        }
        let state = self.state;
        match state {
            BbrState::ProbeBwDown | BbrState::ProbeBwCruise if self.is_time_to_probe(view) => {
                self.start_refill();
            }
            BbrState::ProbeBwDown if self.is_time_to_cruise(view) => {
                self.state = BbrState::ProbeBwCruise;
            }
            BbrState::ProbeBwRefill if self.rounds.round_start => {
                self.probe.is_bw_probe_sample = true;
                self.start_up(rs, view);
            }
            BbrState::ProbeBwUp if self.is_time_to_go_down(rs, view) => {
                self.probe.prev_probe_too_high = false;
                self.start_down(view.now);
            }
            _ => {}
        }
    }

    /// IsTimeToProbeBW() of section 5.3.3.8.
    fn is_time_to_probe(&self, view: &PathView) -> bool {
        let reno = self.target_inflight(view) / view.mss.max(1);
        view.now > self.probe.cycle_stamp + self.probe.bw_probe_wait
            || self.rounds.rounds_since_probe_up >= reno.min(RENO_ROUNDS)
    }

    /// TargetInflight().
    fn target_inflight(&self, view: &PathView) -> u32 {
        self.bdp(100, view).min(view.cwnd)
    }

    /// IsTimeToCruise().
    fn is_time_to_cruise(&self, view: &PathView) -> bool {
        let most = self.inflight_with_headroom(view.mss);
        view.in_flight <= most.min(self.inflight(100, view))
    }

    /// IsTimeToGoDown(), with the precaution of section 5.3.3.6.
    fn is_time_to_go_down(&mut self, rs: &RateSample, view: &PathView) -> bool {
        if self.probe.prev_probe_too_high && view.in_flight >= self.bounds.inflight_longterm {
            self.probe.prev_probe_precautionary = true;
            return true;
        }
        if self.is_cwnd_limited() && view.cwnd >= self.bounds.inflight_longterm {
            self.reset_full_bw(rs.rate);
            return false;
        }
        self.full_pipe.full_bw_now
    }

    /// InflightWithHeadroom().
    fn inflight_with_headroom(&self, mss: u32) -> u32 {
        if self.bounds.inflight_longterm == NO_BOUND {
            return NO_BOUND;
        }
        let headroom = share(self.bounds.inflight_longterm, HEADROOM).max(mss);
        let rest = self.bounds.inflight_longterm.saturating_sub(headroom);
        rest.max(MIN_PIPE * mss)
    }

    /// RaiseInflightLongtermSlope().
    fn raise_longterm_slope(&mut self, view: &PathView) {
        let growth = 1 << self.probe.bw_probe_up_rounds.min(30);
        self.probe.bw_probe_up_rounds = (self.probe.bw_probe_up_rounds.saturating_add(1)).min(30);
        self.probe.probe_up_acked_per_inc = (view.cwnd / growth).max(view.mss);
    }

    /// ProbeInflightLongtermUpward().
    fn probe_longterm_upward(&mut self, rs: &RateSample, view: &PathView) {
        if !self.is_cwnd_limited() || view.cwnd < self.bounds.inflight_longterm {
            return;
        }
        self.probe.bw_probe_up_acked = self.probe.bw_probe_up_acked.saturating_add(rs.acked);
        let steps = self.probe.bw_probe_up_acked / self.probe.probe_up_acked_per_inc.max(1);
        self.probe.bw_probe_up_acked -= steps * self.probe.probe_up_acked_per_inc;
        let more = steps.saturating_mul(view.mss);
        self.bounds.inflight_longterm = self.bounds.inflight_longterm.saturating_add(more);
        if self.rounds.round_start {
            self.raise_longterm_slope(view);
        }
    }

    /// AdaptLongTermModel(): whether it has changed the state.
    fn adapt_long_term_model(&mut self, rs: &RateSample, view: &PathView) -> bool {
        if self.probe.probe_stopping && self.rounds.round_start {
            self.probe.is_bw_probe_sample = false;
            self.probe.probe_stopping = false;
            if self.state.probes_bw() {
                if !rs.is_app_limited() && self.bandwidth.max_bw_filter[1] != 0 {
                    // AdvanceMaxBwFilter() of section 5.5.6.
                    self.bandwidth.max_bw_filter = [self.bandwidth.max_bw_filter[1], 0];
                }
                if self.probe.prev_probe_precautionary && !self.probe.prev_probe_too_high {
                    self.start_refill();
                    return true;
                }
            }
        }
        if !self.is_too_high(rs.lost, rs.in_flight()) && self.bounds.inflight_longterm != NO_BOUND {
            self.bounds.inflight_longterm = self.bounds.inflight_longterm.max(rs.in_flight());
            if self.state == BbrState::ProbeBwUp {
                self.probe_longterm_upward(rs, view);
            }
        }
        false
    }

    /// UpdateMinRTT() of section 5.3.4.3.
    fn update_min_rtt(&mut self, rs: &RateSample, now: Instant) {
        self.round_trip.probe_rtt_expired =
            now > self.round_trip.probe_rtt_min_stamp + PROBE_RTT_INTERVAL;
        let is_lower =
            rs.rtt < self.round_trip.probe_rtt_min_delay || self.round_trip.probe_rtt_expired;
        if rs.rtt != UNKNOWN && is_lower {
            self.round_trip.probe_rtt_min_delay = rs.rtt;
            self.round_trip.probe_rtt_min_stamp = now;
        }
        let is_over = now > self.round_trip.min_rtt_stamp + MIN_RTT_LASTS;
        if self.round_trip.probe_rtt_min_delay < self.round_trip.min_rtt || is_over {
            self.round_trip.min_rtt = self.round_trip.probe_rtt_min_delay;
            self.round_trip.min_rtt_stamp = self.round_trip.probe_rtt_min_stamp;
        }
    }

    /// CheckProbeRTT() and HandleProbeRTT() of section 5.3.4.3.
    fn check_probe_rtt(&mut self, rs: &RateSample, view: &PathView, cwnd: &mut u32) {
        if self.state != BbrState::ProbeRtt
            && self.round_trip.probe_rtt_expired
            && !self.idle_restart
        {
            self.save_cwnd(view);
            self.state = BbrState::ProbeRtt;
            self.round_trip.probe_rtt_done_stamp = None;
            self.probe.probe_stopping = true;
            self.start_round();
        }
        if self.state == BbrState::ProbeRtt {
            self.delivery.mark_app_limited(view.in_flight);
            match self.round_trip.probe_rtt_done_stamp {
                None if view.in_flight <= self.probe_rtt_cwnd(view) => {
                    self.round_trip.probe_rtt_done_stamp = Some(view.now + PROBE_RTT_DURATION);
                    self.round_trip.probe_rtt_round_done = false;
                    self.start_round();
                }
                None => {}
                Some(_) => {
                    self.round_trip.probe_rtt_round_done |= self.rounds.round_start;
                    if self.round_trip.probe_rtt_round_done {
                        self.check_probe_rtt_done(view.now, cwnd);
                    }
                }
            }
        }
        if rs.delivered > 0 {
            self.idle_restart = false;
        }
    }

    /// CheckProbeRTTDone() and ExitProbeRTT().
    fn check_probe_rtt_done(&mut self, now: Instant, cwnd: &mut u32) {
        if self
            .round_trip
            .probe_rtt_done_stamp
            .is_none_or(|done| now <= done)
        {
            return;
        }
        self.round_trip.probe_rtt_min_stamp = now;
        *cwnd = self.prior_cwnd.max(*cwnd);
        self.reset_short_term_model();
        if self.full_pipe.full_bw_reached {
            self.start_down(now);
            self.state = BbrState::ProbeBwCruise;
        } else {
            self.state = BbrState::Startup;
        }
    }

    /// BDPMultiple() of section 5.6.4.2.
    fn bdp(&self, percent: u64, view: &PathView) -> u32 {
        if self.round_trip.min_rtt == UNKNOWN {
            return view.cwnd;
        }
        share(volume(self.bandwidth.bw, self.round_trip.min_rtt), percent)
    }

    /// QuantizationBudget().
    fn quantize(&self, bytes: u32, mss: u32) -> u32 {
        let least = (3 * self.pacer.send_quantum).max(MIN_PIPE * mss);
        let more = if self.state == BbrState::ProbeBwUp {
            2 * mss
        } else {
            0
        };
        bytes.max(least).saturating_add(more)
    }

    /// Inflight().
    fn inflight(&self, percent: u64, view: &PathView) -> u32 {
        self.quantize(self.bdp(percent, view), view.mss)
    }

    /// ProbeRTTCwnd() of section 5.6.4.5.
    fn probe_rtt_cwnd(&self, view: &PathView) -> u32 {
        let (_, gain) = BbrState::ProbeRtt.gains();
        self.bdp(gain, view).max(MIN_PIPE * view.mss)
    }

    /// SetPacingRateWithGain() of section 5.6.2; never below a segment in a second. The margin is
    /// below BBR.max_bw: below a bound that follows what arrives, it would lower that bound again
    /// in each round trip with a loss.
    fn set_pacing_rate(&mut self, gain: u64, mss: u32) {
        let most = u128::from(self.max_bw()) * u128::from(100 - PACING_MARGIN) / 100;
        let rate = most.min(u128::from(self.bandwidth.bw_shortterm)) * u128::from(gain) / 100;
        let rate = rate.clamp(u128::from(mss), u128::from(NO_RATE_BOUND)) as u64;
        if self.full_pipe.full_bw_reached || rate > self.pacer.pacing_rate {
            self.pacer.pacing_rate = rate;
        }
    }

    /// SetSendQuantum() of section 5.6.3.
    fn set_send_quantum(&mut self, mss: u32) {
        let quantum = volume(self.pacer.pacing_rate, QUANTUM.1).min(QUANTUM.0);
        self.pacer.send_quantum = quantum.max(2 * mss);
    }

    /// SetCwnd() of section 5.6.4.6 and BoundCwndForModel() of section 5.6.4.7.
    fn set_cwnd(&self, rs: &RateSample, view: &PathView, initial: u32, mut cwnd: u32) -> u32 {
        let (_, gain) = self.state.gains();
        let extra = self.aggregation.extra_acked[0].max(self.aggregation.extra_acked[1]);
        let most = self.bdp(gain, view).saturating_add(extra);
        let most = self.quantize(most, view.mss);
        let more = cwnd.saturating_add(rs.acked);
        if self.full_pipe.full_bw_reached {
            cwnd = more.min(most);
        } else if cwnd < most || self.delivery.delivered < u64::from(initial) {
            cwnd = more;
        }
        let least = MIN_PIPE * view.mss;
        cwnd = cwnd.max(least);
        if self.state == BbrState::ProbeRtt {
            cwnd = cwnd.min(self.probe_rtt_cwnd(view));
        }
        let longterm = match self.state {
            BbrState::Startup | BbrState::Drain => NO_BOUND,
            BbrState::ProbeRtt | BbrState::ProbeBwCruise => self.inflight_with_headroom(view.mss),
            _ => self.bounds.inflight_longterm,
        };
        let most = longterm.min(self.bounds.inflight_shortterm).max(least);
        cwnd.min(most).min(WINDOW_MAX)
    }

    /// SaveCwnd() of section 5.6.4.4.
    fn save_cwnd(&mut self, view: &PathView) {
        let in_use = !view.recovering && !self.after_timeout && self.state != BbrState::ProbeRtt;
        let before = if in_use { 0 } else { self.prior_cwnd };
        self.prior_cwnd = view.cwnd.max(before);
    }

    /// `range` has arrived.
    pub(in crate::tcp) fn on_delivered(&mut self, range: &SentRange, now: Instant) {
        self.delivery.on_delivered(range, now);
    }

    /// NoteLoss() of section 5.5.10.2. The first loss of a recovery saves the state (section
    /// 5.5.11.1).
    pub(super) fn note_loss(&mut self, view: &PathView) {
        if self.losses.is_loss_in_round {
            return;
        }
        self.losses.is_loss_in_round = true;
        self.losses.loss_round_delivered = self.delivery.delivered;
        let is_first = !view.recovering && !self.after_timeout;
        self.save_cwnd(view);
        if is_first {
            self.undo.undo_state = None;
            self.undo.undo_bw_shortterm = self.bandwidth.bw_shortterm;
            self.undo.undo_inflight_shortterm = self.bounds.inflight_shortterm;
            self.undo.undo_inflight_longterm = self.bounds.inflight_longterm;
        }
    }

    /// `range` counts as lost: HandleLostPacket() of section 5.5.10.2.
    pub(in crate::tcp) fn on_lost(&mut self, range: &SentRange, view: &PathView) {
        let len = range.len();
        self.delivery.lost = self.delivery.lost.saturating_add(u64::from(len));
        self.note_loss(view);
        let is_gap = range.begin != self.losses.gap_end;
        self.losses.gaps = self.losses.gaps.saturating_add(u8::from(is_gap));
        self.losses.gap_end = range.end;
        if !self.probe.is_bw_probe_sample {
            return;
        }
        let Some(record) = self.delivery.record(range.sent_at) else {
            return;
        };
        let lost = self.delivery.lost.saturating_sub(record.lost);
        if !self.is_too_high(lost, record.in_flight) {
            return;
        }
        // InflightAtLoss().
        let before = record.in_flight.saturating_sub(len);
        let lost_before = lost.saturating_sub(u64::from(len));
        let percent = self.loss_percent();
        let allowed = u64::from(before) * percent;
        let prefix = allowed.saturating_sub(lost_before.saturating_mul(100)) / (100 - percent);
        let safe = before.saturating_add(prefix as u32);
        // HandleInflightTooHigh().
        self.probe.prev_probe_too_high = true;
        self.probe.is_bw_probe_sample = false;
        if !record.app_limited {
            self.bounds.inflight_longterm = safe.max(share(self.target_inflight(view), BETA));
        }
        if self.state == BbrState::ProbeBwUp {
            self.undo.undo_state = Some(BbrState::ProbeBwUp);
            self.start_down(view.now);
        }
    }

    /// The retransmission timer expired: OnEnterRTO() of section 5.6.4.4.
    pub(super) fn on_timeout(&mut self, view: &PathView) {
        self.note_loss(view);
        self.after_timeout = true;
    }

    /// All losses are repaired: RestoreCwnd() of section 5.6.4.4.
    pub(super) fn on_recovered(&mut self, cwnd: u32) -> u32 {
        self.after_timeout = false;
        cwnd.max(self.prior_cwnd)
    }

    /// Whether a timeout reduced the window, and some loss is not repaired yet.
    pub(super) const fn is_after_timeout(&self) -> bool {
        self.after_timeout
    }

    /// There was no loss: HandleSpuriousLossDetection() of section 5.5.11.2.
    pub(super) fn on_spurious(&mut self) {
        self.losses.is_loss_in_round = false;
        self.reset_full_bw(0);
        self.bandwidth.bw_shortterm = self.bandwidth.bw_shortterm.max(self.undo.undo_bw_shortterm);
        self.bounds.inflight_shortterm = self
            .bounds
            .inflight_shortterm
            .max(self.undo.undo_inflight_shortterm);
        self.bounds.inflight_longterm = self
            .bounds
            .inflight_longterm
            .max(self.undo.undo_inflight_longterm);
        let is_probing_rtt = self.state == BbrState::ProbeRtt;
        match self.undo.undo_state.take() {
            Some(BbrState::Startup) => {
                self.full_pipe.full_bw_reached = false;
                if !is_probing_rtt {
                    self.state = BbrState::Startup;
                }
            }
            Some(_) if !is_probing_rtt && self.state != BbrState::ProbeBwUp => self.start_refill(),
            _ => {}
        }
    }

    /// Data is about to be sent: HandleRestartFromIdle() of section 5.4.1, and
    /// CheckIfApplicationLimited() of section 4.1.2.4. Returns C.cwnd.
    pub(in crate::tcp) fn before_send(&mut self, view: &PathView) -> u32 {
        let mut cwnd = view.cwnd;
        let was_idle = core::mem::take(&mut self.ran_out) && view.now >= self.pacer.next_send;
        if was_idle && view.in_flight < cwnd {
            self.delivery.mark_app_limited(view.in_flight);
        }
        if view.in_flight == 0 && self.delivery.is_app_limited() {
            self.idle_restart = true;
            self.aggregation.extra_acked_interval_start = view.now;
            if self.state.probes_bw() {
                self.set_pacing_rate(100, view.mss);
            } else if self.state == BbrState::ProbeRtt {
                self.check_probe_rtt_done(view.now, &mut cwnd);
            }
        }
        cwnd
    }

    /// `len` bytes were sent, with which `in_flight` are in flight (sections 4.1.2.2 and 5.6.2).
    pub(in crate::tcp) fn on_sent(
        &mut self,
        now: Instant,
        len: u32,
        in_flight: u32,
        oldest: impl FnOnce() -> Instant,
    ) {
        self.delivery.on_sent(now, len, in_flight, oldest);
        if self.pacer.burst_at != now {
            self.pacer.burst_at = now;
            self.pacer.burst = 0;
        }
        self.pacer.burst = self.pacer.burst.saturating_add(len);
        let nanos = u64::from(len) * 1_000_000_000 / self.pacer.pacing_rate.max(1);
        let delay = Duration::from_nanos(nanos);
        // A timer never fires early: half of the delay makes up for one that fired late.
        self.pacer.next_send = self.pacer.next_send.max(now.before(delay.divided(2))) + delay;
    }

    /// Bytes that may be sent at `now` for the sake of the pacing rate.
    pub(in crate::tcp) fn allowance(&self, now: Instant) -> u32 {
        if self.pacer.burst_at == now && self.pacer.burst > 0 {
            self.pacer.send_quantum.saturating_sub(self.pacer.burst)
        } else if now >= self.pacer.next_send {
            self.pacer.send_quantum
        } else {
            0
        }
    }

    /// The sender is done at `now`; `rest`: data remains; `full`: the window keeps it. Returns when
    /// the next quantum may leave, if pacing keeps it.
    pub(in crate::tcp) fn after_send(
        &mut self,
        now: Instant,
        rest: bool,
        full: bool,
    ) -> Option<Instant> {
        self.ran_out = !rest;
        self.cwnd_limited[0] |= rest && full;
        (rest && !full).then(|| self.pacer.next_send.max(now + Duration::from_nanos(1)))
    }
}

/// At most a window.
fn volume_of(bytes: u64) -> u32 {
    bytes.min(u64::from(WINDOW_MAX)) as u32
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn loss_below_the_threshold_costs_little() {
        for (every, tolerated, least) in [(100, 0, 85), (20, LOSSY, 85)] {
            let mut path = Path::new();
            path.bbr.tolerated = tolerated;
            path.lose = every;
            path.run(Duration::from_secs(1));
            let used = path.run(Duration::from_secs(8)) * 100 / (8 * RATE);
            assert!(used >= least, "{used} % with one of {every} lost");
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
}
