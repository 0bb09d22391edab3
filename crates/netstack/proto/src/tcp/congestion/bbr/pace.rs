//! What leaves, and how fast (draft-ietf-ccwg-bbr-06 section 5.6).

use super::*;

impl Bbr {
    /// InitPacingRate() of section 5.6.2.
    pub(super) fn init_pacing_rate(&mut self, srtt: Duration, cwnd: u32, mss: u32) {
        self.pacer.rtt_seen = srtt != Duration::ZERO;
        let rtt = if self.pacer.rtt_seen { srtt } else { FIRST_RTT };
        let nominal = u64::from(cwnd) * 1_000_000_000 / rtt.as_nanos();
        let (gain, _) = BbrState::Startup.gains();
        self.pacer.pacing_rate = nominal.saturating_mul(gain) / 100;
        self.set_send_quantum(mss);
    }

    /// SetPacingRateWithGain() of section 5.6.2; never below a segment in a second. The margin is
    /// below BBR.max_bw: below a bound that follows what arrives, it would lower that bound again
    /// in each round trip with a loss.
    pub(super) fn set_pacing_rate(&mut self, gain: u64, mss: u32) {
        let most = u128::from(self.max_bw()) * u128::from(100 - PACING_MARGIN) / 100;
        let rate = most.min(u128::from(self.bandwidth.bw_shortterm)) * u128::from(gain) / 100;
        let rate = rate.clamp(u128::from(mss), u128::from(NO_RATE_BOUND)) as u64;
        if self.full_pipe.full_bw_reached || rate > self.pacer.pacing_rate {
            self.pacer.pacing_rate = rate;
        }
    }

    /// SetSendQuantum() of section 5.6.3.
    pub(super) fn set_send_quantum(&mut self, mss: u32) {
        let quantum = volume(self.pacer.pacing_rate, QUANTUM.1).min(QUANTUM.0);
        self.pacer.send_quantum = quantum.max(2 * mss);
    }

    /// SetCwnd() of section 5.6.4.6 and BoundCwndForModel() of section 5.6.4.7.
    pub(super) fn set_cwnd(
        &self,
        rs: &RateSample,
        view: &PathView,
        initial: u32,
        mut cwnd: u32,
    ) -> u32 {
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
    pub(super) fn save_cwnd(&mut self, view: &PathView) {
        let in_use = !view.recovering && !self.after_timeout && self.state != BbrState::ProbeRtt;
        let before = if in_use { 0 } else { self.prior_cwnd };
        self.prior_cwnd = view.cwnd.max(before);
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
