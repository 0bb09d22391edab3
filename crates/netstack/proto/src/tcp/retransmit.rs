//! Timers: retransmission timeout (RFC 6298), window probes, delayed acknowledgments, TIME-WAIT.
//!
//! There is no queue of segments: retransmissions are cut again from the send stream, according
//! to the scoreboard.

use super::fields::{field_variants, fields};
use super::send_space::Due;
use super::undo::UndoCause;

use super::{Cx, DATA_RETRIES, SYN_ACK_RETRIES, SYN_RETRIES, State, Tcb};
use crate::log::effect::{ConnectionEvent, EffectSink};
use crate::seqnum::SeqNum;
use crate::time::{Duration, Instant};

/// Retransmission timeout before there is a measurement, 1 s (RFC 6298 section 2.1).
pub const RTO_INITIAL: Duration = Duration::from_secs(1);

/// Shortest retransmission timeout, 200 ms. RFC 6298 section 2.4 requires 1 s, from a time of
/// coarse clocks; this is still five times the longest delay of our own acknowledgments.
pub const RTO_MIN: Duration = Duration::from_millis(200);

/// Longest retransmission timeout and longest pause between two window probes, 60 s (RFC 6298
/// section 2.5).
pub const RTO_MAX: Duration = Duration::from_secs(60);

/// The time after which a path may have become longer (RFC 8985 section 6.2, step 1).
const MIN_RTT_LASTS: Duration = Duration::from_secs(300);

/// Initial timeout for data after a retransmitted SYN, which allowed no measurement (RFC 6298
/// section 5.7).
const RTO_AFTER_LOST_SYN: Duration = Duration::from_secs(3);

/// A timestamp tick is 2^20 ns, 1.05 ms: within the 1 ms to 1 s of RFC 7323 section 5.4.
const TICK_SHIFT: u32 = 20;

/// Our clock at `now`; TSval differs from it by an offset for each connection.
#[inline]
pub(super) const fn timestamp(now: Instant) -> u32 {
    (now.as_nanos() >> TICK_SHIFT) as u32
}

/// The time since our TSval was `echoed`, in whole ticks; `None` if it never had this value.
pub(super) fn measured_by(echoed: u32, now: Instant) -> Option<Duration> {
    let ticks = timestamp(now).wrapping_sub(echoed);
    (ticks < 1 << 31).then(|| Duration::from_nanos(u64::from(ticks) << TICK_SHIFT))
}

/// The event for which a connection waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// An acknowledgment of data in flight.
    Retransmit,
    /// A closed or too small window to open (RFC 9293 section 3.8.6.1).
    Persist,
    /// A second segment, which is acknowledged with the first.
    DelayedAck,
    /// The end of TIME-WAIT, the peer's FIN if there is no socket, or the end of lingering.
    Linger,
    /// A response of an idle peer (RFC 1122 section 4.2.3.6).
    Keepalive,
    /// A response within the user timeout (RFC 9293 section 3.8.3).
    User,
    /// The next quantum that the pacing rate allows.
    Pace,
}

impl Timer {
    /// The number of timers that start and stop with the segments of a transfer.
    const FAST_TIMERS: usize = 3;
    /// The number of other timers.
    const SLOW_TIMERS: usize = 4;
}

/// The meaning of an expiry of the retransmission timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Expiry {
    /// No acknowledgment arrived: RFC 6298.
    Timeout,
    /// The last segments may be lost (RFC 8985 section 7).
    TailProbe,
    /// Reordered segments did not arrive (RFC 8985 section 6.2).
    Reordering,
}

field_variants!(Expiry {
    Timeout,
    TailProbe,
    Reordering
});

/// The expiry time of each timer; [`Instant::NEVER`] if it does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Timers {
    /// A lower bound of `at`: a timer that stops or is postponed leaves it too early, until
    /// [`Tcb::on_time`] finds that nothing is due.
    pub(super) next: Instant,
    /// The fast timers, and the earliest of the slow ones.
    pub(super) at: [Instant; Timer::FAST_TIMERS + 1],
    slow: [Instant; Timer::SLOW_TIMERS],
}

fields!(Timers, "timers", { next, at, slow });

impl Timers {
    /// Creates the timers; none runs.
    pub(super) const fn new() -> Self {
        Timers {
            next: Instant::NEVER,
            at: [Instant::NEVER; Timer::FAST_TIMERS + 1],
            slow: [Instant::NEVER; Timer::SLOW_TIMERS],
        }
    }

    /// A time before which no timer expires.
    #[inline]
    pub(super) const fn next(&self) -> Instant {
        self.next
    }

    /// Sets `next` to when the earliest timer expires.
    pub(super) fn update_next(&mut self) {
        let [a, b, c, d] = self.at;
        self.next = a.min(b).min(c.min(d));
    }

    /// When `timer` expires.
    #[inline]
    fn at(&self, timer: Timer) -> Instant {
        match (timer as usize).checked_sub(Timer::FAST_TIMERS) {
            None => self.at[timer as usize],
            Some(slow) => self.slow[slow],
        }
    }

    /// Whether `timer` runs.
    #[inline]
    pub(super) fn runs(&self, timer: Timer) -> bool {
        self.at(timer) != Instant::NEVER
    }

    /// Starts `timer`, which does not run or is replaced.
    #[inline(always)]
    pub(super) fn start(&mut self, timer: Timer, at: Instant) {
        let mut at = at;
        let mut place = timer as usize;
        if let Some(slow) = place.checked_sub(Timer::FAST_TIMERS) {
            self.slow[slow] = at;
            let [a, b, c, d] = self.slow;
            (at, place) = (a.min(b).min(c.min(d)), Timer::FAST_TIMERS);
        }
        self.at[place] = at;
        if at < self.next {
            self.next = at;
        }
    }

    /// Stops `timer`, if it runs.
    #[inline(always)]
    pub(super) fn stop(&mut self, timer: Timer) {
        match timer as usize {
            fast @ 0..Timer::FAST_TIMERS => self.at[fast] = Instant::NEVER,
            _ => self.start(timer, Instant::NEVER),
        }
    }

    /// Stops every timer.
    pub(super) const fn stop_all(&mut self) {
        *self = Timers::new();
    }

    /// Stops `timer` if it is due, and returns whether it was.
    fn take(&mut self, timer: Timer, now: Instant) -> bool {
        let due = self.runs(timer) && self.at(timer) <= now;
        if due {
            self.start(timer, Instant::NEVER);
        }
        due
    }
}

/// Round-trip estimation and retries (RFC 6298).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Retransmit {
    /// Retransmission timeout, [`RTO_MIN`] to [`RTO_MAX`]. Doubles on each expiry.
    pub(super) rto: Duration,
    /// Smoothed round-trip time; zero before the first measurement.
    pub(super) srtt: Duration,
    /// Round-trip time variation.
    rttvar: Duration,
    /// Shortest round trip within the last minutes, by our own clock; zero before the first.
    pub(super) min_rtt: Duration,
    /// When `min_rtt` was measured.
    min_rtt_at: Instant,
    /// When `timed` was sent.
    timed_at: Instant,
    /// The acknowledgment that ends a measurement is after this number.
    pub(super) timed: SeqNum,
    /// Whether a measurement is in progress and its segment was sent only once (Karn's algorithm,
    /// RFC 6298 section 3).
    pub(super) timing: bool,
    measured: bool,
    /// The purpose of the running timer.
    pub(super) expiry: Expiry,
    /// Consecutive expiries without a response.
    pub(super) retries: u8,
    /// Consecutive window probes.
    pub(super) probes: u8,
    /// Since when the data for which `retries` counts has waited for a response.
    unanswered: Instant,
    /// Retransmitted bytes.
    pub(super) resent: u64,
    /// All expiries.
    pub(super) timeouts: u64,
    /// SND.UNA when the latest measurement began.
    timed_una: SeqNum,
    /// Bytes per second in the latest measured round trip.
    pub(super) delivery_rate: u64,
}

fields!(Retransmit, "retransmit", {
    rto, srtt, rttvar, min_rtt, min_rtt_at, timed_at, timed, timing, measured, expiry,
    retries, probes, unanswered, resent, timeouts, timed_una, delivery_rate,
});

impl Retransmit {
    /// The state before the first measurement.
    pub(super) const fn new() -> Self {
        Retransmit {
            rto: RTO_INITIAL,
            srtt: Duration::ZERO,
            rttvar: Duration::ZERO,
            min_rtt: Duration::ZERO,
            min_rtt_at: Instant::ZERO,
            timed_at: Instant::ZERO,
            timed: SeqNum(0),
            timing: false,
            measured: false,
            expiry: Expiry::Timeout,
            retries: 0,
            probes: 0,
            unanswered: Instant::ZERO,
            resent: 0,
            timeouts: 0,
            timed_una: SeqNum(0),
            delivery_rate: 0,
        }
    }

    /// A segment that begins at `seq` is sent for the first time: measures it, if no measurement is
    /// in progress.
    #[inline]
    pub(super) fn on_sent(&mut self, seq: SeqNum, una: SeqNum, now: Instant) {
        if !self.timing {
            self.timing = true;
            self.timed = seq;
            self.timed_una = una;
            self.timed_at = now;
        }
    }

    /// Computes the delivery rate: `una` ended a measurement that took `rtt`.
    #[inline(never)]
    fn measure_rate(&mut self, una: SeqNum, rtt: Duration) {
        let bytes = u128::from(una.since(self.timed_una));
        let rate = bytes * 1_000_000_000 / u128::from(rtt.as_nanos().max(1));
        self.delivery_rate = rate as u64;
    }

    /// RTTVAR.
    pub(super) const fn variance(&self) -> Duration {
        self.rttvar
    }

    /// Data is retransmitted: its acknowledgment will not show which copy it is for.
    pub(super) const fn on_resent(&mut self) {
        self.timing = false;
    }

    /// `una` was acknowledged. One segment per window is measured; `echoed` is TSecr if timestamps,
    /// which distinguish the copies of a segment, are in use (RFC 7323 section 4.1).
    #[inline]
    pub(super) fn on_ack(&mut self, una: SeqNum, echoed: Option<u32>, now: Instant) {
        if self.timing && una.after(self.timed) {
            self.timing = false;
            let rtt = now.since(self.timed_at);
            self.measure_rate(una, rtt);
            self.sample(rtt);
            let is_first = self.min_rtt == Duration::ZERO;
            if is_first || rtt <= self.min_rtt || now.since(self.min_rtt_at) > MIN_RTT_LASTS {
                self.min_rtt = rtt;
                self.min_rtt_at = now;
            }
        } else if !self.timing
            && let Some(echoed) = echoed
        {
            self.sample_echo(echoed, now);
        }
    }

    /// Measures by an echoed timestamp, if that is plausible.
    #[inline]
    fn sample_echo(&mut self, echoed: u32, now: Instant) {
        if let Some(rtt) = measured_by(echoed, now) {
            self.sample(rtt);
        }
    }

    /// RFC 6298 sections 2.2 and 2.3, with alpha 1/8, beta 1/4, and a clock granularity of one
    /// tick.
    #[inline]
    fn sample(&mut self, rtt: Duration) {
        // A peer that echoes arbitrary values must not raise the timeout without bound.
        let rtt = rtt.as_nanos().min(RTO_MAX.as_nanos());
        let (srtt, rttvar) = (self.srtt.as_nanos(), self.rttvar.as_nanos());
        let (srtt, rttvar) = if self.measured {
            ((7 * srtt + rtt) / 8, (3 * rttvar + srtt.abs_diff(rtt)) / 4)
        } else {
            (rtt, rtt / 2)
        };
        self.measured = true;
        self.srtt = Duration::from_nanos(srtt);
        self.rttvar = Duration::from_nanos(rttvar);
        let rto = self.srtt + Duration::from_nanos((4 * rttvar).max(1 << TICK_SHIFT));
        self.rto = rto.max(RTO_MIN).min(RTO_MAX);
    }

    /// The timer expired: RFC 6298 section 5.5.
    fn back_off(&mut self) {
        self.rto = self.rto.times(2).min(RTO_MAX);
        self.retries = self.retries.saturating_add(1);
        self.timeouts += 1;
        self.timing = false;
    }

    /// The handshake is complete; `syn_lost` if our SYN was sent more than once.
    pub(super) fn establish(&mut self, syn_lost: bool) {
        if syn_lost && !self.measured {
            self.rto = RTO_AFTER_LOST_SYN;
        }
        self.retries = 0;
    }

    /// The pause before the next window probe, doubling up to [`RTO_MAX`] (RFC 9293 section
    /// 3.8.6.1).
    pub(super) fn probe_pause(&self) -> Duration {
        self.rto
            .times(1 << u64::from(self.probes.min(10)))
            .min(RTO_MAX)
    }
}

impl Tcb {
    /// Handles every timer that is due at `cx.now`. [`Tcb::finish`] sends the resulting segments.
    pub fn on_time<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        let now = cx.now;
        self.timers.update_next();
        if self.timers.next() > now {
            return;
        }
        self.close_fast_path();
        self.handle_due_timers(cx);
        self.timers.update_next();
    }

    fn handle_due_timers<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        let now = cx.now;
        if self.timers.take(Timer::Linger, now) {
            match self.state {
                // The end of TIME-WAIT (RFC 9293 section 3.10.8), or of an orphan's FIN-WAIT-2.
                State::TimeWait | State::FinWait2 => self.enter(State::Closed),
                // Written data has lingered long enough.
                _ => self.reset(),
            }
            return;
        }
        if self.timers.take(Timer::User, now) {
            self.on_user_timeout(cx);
        }
        // `finish` sends.
        self.timers.take(Timer::Pace, now);
        if self.timers.take(Timer::Keepalive, now) {
            self.on_keepalive_timeout(cx);
        }
        if self.timers.take(Timer::DelayedAck, now) {
            self.ack_now();
        }
        if self.timers.take(Timer::Persist, now) {
            self.on_persist_timeout(cx);
        }
        if self.timers.take(Timer::Retransmit, now) {
            match self.retransmit.expiry {
                Expiry::Timeout => self.on_retransmit_timeout(cx),
                Expiry::TailProbe => self.on_tail_probe_timeout(cx),
                Expiry::Reordering => self.on_reordering_timeout(cx),
            }
        }
    }

    /// All data that was not reported as received counts as lost and is retransmitted,
    /// beginning with a window of one segment (RFC 6298 section 5.4, RFC 5681 section 3.1).
    fn on_retransmit_timeout<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        let handshake = !self.state.is_synchronized();
        let limit = match self.state {
            State::SynReceived if self.passive => SYN_ACK_RETRIES,
            State::SynSent | State::SynReceived => SYN_RETRIES,
            _ => DATA_RETRIES,
        };
        // The timer has run since the peer's latest acknowledgment, or since the oldest
        // unacknowledged data was sent.
        self.waits_since(cx.now.before(self.retransmit.rto), cx);
        self.retransmit.back_off();
        cx.frames.counts.timeouts += 1;
        if self.retransmit.retries > limit {
            return self.time_out(cx);
        }
        if !handshake {
            self.detect_black_hole(cx);
        }
        let snd = &mut self.snd;
        snd.due = Due::Nothing;
        if handshake {
            return snd.repeat_syn();
        }
        let first = self.retransmit.retries == 1;
        let flight = snd.max.since(snd.una);
        self.congestion
            .on_timeout(cx.now, snd.max, flight, u32::from(snd.mss), first);
        if first {
            self.on_reduction(UndoCause::Timeout);
        }
        self.count_all_lost(cx.now);
        self.mark_all_lost();
    }

    /// The window is still closed: probes it with one byte, or with as much as it allows (RFC
    /// 9293 section 3.8.6.1). A peer that responds may keep it closed forever; without a
    /// response the connection fails.
    fn on_persist_timeout<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        self.waits_since(cx.now, cx);
        let retransmit = &mut self.retransmit;
        retransmit.retries = retransmit.retries.saturating_add(1);
        retransmit.probes = retransmit.probes.saturating_add(1);
        if retransmit.retries > DATA_RETRIES {
            return self.time_out(cx);
        }
        if self.snd.una != self.snd.end {
            self.snd.due = Due::Probe;
        }
    }

    /// Counts a retry; before the first one, the response was due since `since`.
    fn waits_since<S: EffectSink>(&mut self, since: Instant, cx: &Cx<'_, S>) {
        if self.retransmit.retries == 0 {
            self.retransmit.unanswered = since;
            self.start_user_timeout(cx);
        }
    }

    /// Starts the user timeout, if the application has set one.
    pub(super) fn start_user_timeout<S: EffectSink>(&mut self, cx: &Cx<'_, S>) {
        if let Some(most) = self.settings.user_timeout {
            let at = self.retransmit.unanswered + most;
            self.timers.start(Timer::User, at.max(cx.now));
        }
    }

    /// USER TIMEOUT (RFC 9293 section 3.10.8), unless there was a response since it was started.
    fn on_user_timeout<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        if self.retransmit.retries > 0 {
            self.time_out(cx);
        }
    }

    /// The peer did not answer for too long.
    fn time_out<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        cx.frames.counts.timed_out += 1;
        self.fail_with(self.timeout_event(), cx);
    }

    /// Closes the connection and reports the reason to its socket.
    pub(super) fn fail_with<S: EffectSink>(&mut self, event: ConnectionEvent, cx: &mut Cx<'_, S>) {
        self.enter(State::Closed);
        self.notify(event, cx);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_acknowledged_in_a_measured_round_trip_is_the_delivery_rate() {
        let (una, at) = (SeqNum(0xffff_fff0), Instant::from_millis(1_000));
        let mut r = Retransmit::new();
        r.on_sent(una, una, at);
        r.on_sent(una + 1000, una, at + Duration::from_millis(1));
        r.on_ack(una + 3000, None, at + Duration::from_millis(20));
        assert_eq!(r.delivery_rate, 150_000);
        assert_eq!(r.min_rtt, Duration::from_millis(20));
    }

    #[test]
    fn the_timeout_stays_within_its_bounds() {
        let mut r = Retransmit::new();
        r.sample(Duration::ZERO);
        assert_eq!(r.rto, RTO_MIN);
        for _ in 0..20 {
            r.back_off();
        }
        assert_eq!(r.rto, RTO_MAX);
        r.sample(Duration::from_secs(1 << 33));
        assert_eq!(r.rto, RTO_MAX);
    }

    #[test]
    fn an_acknowledgment_of_something_sent_twice_is_no_measurement() {
        let mut r = Retransmit::new();
        r.on_sent(SeqNum(10), SeqNum(10), Instant::ZERO);
        r.on_resent();
        r.on_ack(SeqNum(20), None, Instant::from_millis(900));
        assert!(!r.measured);
        r.on_sent(SeqNum(20), SeqNum(20), Instant::from_millis(1000));
        r.on_ack(SeqNum(20), None, Instant::from_millis(1100));
        assert!(!r.measured, "its bytes are not acknowledged yet");
        r.on_ack(SeqNum(21), None, Instant::from_millis(1200));
        assert_eq!(r.srtt, Duration::from_millis(200));
    }

    #[test]
    fn the_shortest_round_trip_lasts_for_five_minutes_from_when_it_was_last_seen() {
        let mut r = Retransmit::new();
        let mut measure = |secs: u64, rtt: u64| {
            let sent = Instant::from_millis(secs * 1000);
            r.on_sent(SeqNum(10), SeqNum(10), sent);
            r.on_ack(SeqNum(11), None, sent + Duration::from_millis(rtt));
            r.min_rtt
        };
        let millis = Duration::from_millis;
        assert_eq!(measure(1, 10), millis(10));
        assert_eq!(measure(200, 10), millis(10));
        // The first measurement is older than the limit, the second one is not.
        assert_eq!(measure(400, 20), millis(10));
        assert_eq!(measure(501, 20), millis(20));
    }

    #[test]
    fn an_echo_of_what_was_not_said_yet_is_no_measurement() {
        let now = Instant::from_nanos(77 << TICK_SHIFT);
        let ago = |ticks: u32| measured_by(77_u32.wrapping_sub(ticks), now);
        let ticks = |count: u64| Some(Duration::from_nanos(count << TICK_SHIFT));
        assert_eq!((ago(0), ago(5)), (ticks(0), ticks(5)));
        assert_eq!(ago((1 << 31) - 1), ticks((1 << 31) - 1));
        assert_eq!((ago(1 << 31), ago(u32::MAX)), (None, None));
    }

    #[test]
    fn the_next_deadline_is_the_earliest_of_all() {
        let mut timers = Timers::new();
        timers.start(Timer::Linger, Instant::from_millis(5));
        timers.start(Timer::DelayedAck, Instant::from_millis(3));
        assert_eq!(timers.next(), Instant::from_millis(3));
        assert!(!timers.take(Timer::DelayedAck, Instant::from_millis(2)));
        assert!(timers.take(Timer::DelayedAck, Instant::from_millis(3)));
        timers.update_next();
        assert_eq!(timers.next(), Instant::from_millis(5));
        timers.stop(Timer::Linger);
        timers.update_next();
        assert_eq!(timers.next(), Instant::NEVER);
    }
}
