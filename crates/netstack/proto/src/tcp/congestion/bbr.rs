//! BBR (draft-ietf-ccwg-bbr-06), in integers: rates in bytes per second, gains in percent.
//!
//! BBR measures the delivery rate and the round trip of the path. The rate paces the data, and the
//! product of both bounds the data in flight. BBR probes for more bandwidth every few seconds. A
//! probe ends when more than [`LOSS_THRESHOLD`] of the data in flight is lost. Between probes, each
//! round trip with a loss lowers the rate to what arrived.
//!
//! The draft takes each loss for congestion. Here a path may have a loss of its own, up to
//! [`PATH_LOSS`]: the share of the data that is lost while the round trip shows no queue. Only
//! loss of more than twice this share ends a probe (beyond the threshold) or lowers the rate. A
//! flow that shares a full queue sees one at each loss, and so behaves as in the draft.
//! [`tcp`](crate::tcp) lists the departures.

mod loss;
mod model;
mod pace;
mod probe;
#[cfg(test)]
mod tests;

use super::Algorithm;
use super::delivery::{Delivery, RateSample, UNKNOWN};
use crate::config::CongestionControl;
use crate::hash::mix;
use crate::seqnum::SeqNum;
use crate::tcp::congestion::{Acked, WINDOW_MAX};
use crate::tcp::fields::{field_variants, fields};
use crate::tcp::scoreboard::SentRange;
use crate::time::{Duration, Instant};

/// BBR.LossThresh, per mille of the bytes in flight (section 2.4).
const LOSS_THRESHOLD: u64 = 20;

/// The largest share of lost data, per mille, that counts as the path's own loss.
const PATH_LOSS: u64 = 50;

/// Segments over which the loss of the path is averaged, about.
const PATH_LOSS_SEGMENTS: u32 = 256;

/// A round trip this part longer than the shortest shows a queue.
const QUEUE_SEEN: u64 = 32;

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
    path_loss: PathLoss,
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
    aggregation, undo, path_loss, prior_cwnd, after_timeout, idle_restart, cwnd_limited, ran_out,
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

    /// Loss of the path itself: bytes that are lost while the round trip shows no queue.
    PathLoss {
        /// The latest round trip.
        rtt: Duration = UNKNOWN,
        /// Bytes that arrived or were lost, and those lost without a queue. Both fade.
        sent: u32 = 0,
        lost: u32 = 0,
        /// The share of the latter, at most `PATH_LOSS`.
        per_mille: u64 = 0,
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
    fn new(_: CongestionControl) -> Self {
        Box::default()
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

    /// An acknowledgment was processed: UpdateOnACK() of section 5.2.3. Returns C.cwnd.
    pub(super) fn on_ack(&mut self, view: &PathView, initial: u32) -> u32 {
        let rs = self
            .delivery
            .take_sample(view.in_flight, self.round_trip.min_rtt);
        if !self.pacer.rtt_seen && rs.rtt != UNKNOWN && rs.rtt != Duration::ZERO {
            self.init_pacing_rate(rs.rtt, initial, view.mss);
        }
        let mut cwnd = view.cwnd;
        self.measure_path_loss(rs.acked, false, view.mss);
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
            self.bandwidth.bw_latest = rs.rate;
            self.bounds.inflight_latest = volume_of(rs.delivered);
        }
        self.bandwidth.bw = self.max_bw().min(self.bandwidth.bw_shortterm);
        let (gain, _) = self.state.gains();
        self.set_pacing_rate(gain, view.mss);
        self.set_send_quantum(view.mss);
        self.set_cwnd(&rs, view, initial, cwnd)
    }

    /// `range` has arrived.
    pub(in crate::tcp) fn on_delivered(&mut self, range: &SentRange, now: Instant) {
        self.delivery.on_delivered(range, now);
        if !range.retransmitted {
            self.path_loss.rtt = now.since(range.sent_at);
        }
    }
}

/// At most a window.
fn volume_of(bytes: u64) -> u32 {
    bytes.min(u64::from(WINDOW_MAX)) as u32
}
