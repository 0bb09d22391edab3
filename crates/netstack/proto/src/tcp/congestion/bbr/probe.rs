//! The states of BBR (draft-ietf-ccwg-bbr-06 section 5.3).

use super::*;

impl Bbr {
    /// Sections 5.3.1.1 and 5.3.1.3.
    pub(super) fn check_startup_done(&mut self, rs: &RateSample, view: &PathView) {
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
    pub(super) fn check_drain_done(&mut self, view: &PathView) {
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
    pub(super) fn start_down(&mut self, now: Instant) {
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
    pub(super) const fn start_refill(&mut self) {
        self.reset_short_term_model();
        self.probe.bw_probe_up_rounds = 0;
        self.probe.bw_probe_up_acked = 0;
        self.probe.prev_probe_precautionary = false;
        self.probe.probe_stopping = false;
        self.rounds.next_round_delivered = self.delivery.delivered;
        self.state = BbrState::ProbeBwRefill;
    }

    /// StartProbeBW_UP().
    pub(super) fn start_up(&mut self, rs: &RateSample, view: &PathView) {
        self.start_round();
        self.reset_full_bw(rs.rate);
        self.state = BbrState::ProbeBwUp;
        self.raise_longterm_slope(view);
    }

    /// UpdateProbeBWCyclePhase() of section 5.3.3.9.
    pub(super) fn update_probe_bw_cycle(&mut self, rs: &RateSample, view: &PathView) {
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
    pub(super) fn is_time_to_probe(&self, view: &PathView) -> bool {
        let reno = self.target_inflight(view) / view.mss.max(1);
        view.now > self.probe.cycle_stamp + self.probe.bw_probe_wait
            || self.rounds.rounds_since_probe_up >= reno.min(RENO_ROUNDS)
    }

    /// TargetInflight().
    pub(super) fn target_inflight(&self, view: &PathView) -> u32 {
        self.bdp(100, view).min(view.cwnd)
    }

    /// IsTimeToCruise().
    pub(super) fn is_time_to_cruise(&self, view: &PathView) -> bool {
        let most = self.inflight_with_headroom(view.mss);
        view.in_flight <= most.min(self.inflight(100, view))
    }

    /// IsTimeToGoDown(), with the precaution of section 5.3.3.6.
    pub(super) fn is_time_to_go_down(&mut self, rs: &RateSample, view: &PathView) -> bool {
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
    pub(super) fn inflight_with_headroom(&self, mss: u32) -> u32 {
        if self.bounds.inflight_longterm == NO_BOUND {
            return NO_BOUND;
        }
        let headroom = share(self.bounds.inflight_longterm, HEADROOM).max(mss);
        let rest = self.bounds.inflight_longterm.saturating_sub(headroom);
        rest.max(MIN_PIPE * mss)
    }

    /// RaiseInflightLongtermSlope().
    pub(super) fn raise_longterm_slope(&mut self, view: &PathView) {
        let growth = 1 << self.probe.bw_probe_up_rounds.min(30);
        self.probe.bw_probe_up_rounds = (self.probe.bw_probe_up_rounds.saturating_add(1)).min(30);
        self.probe.probe_up_acked_per_inc = (view.cwnd / growth).max(view.mss);
    }

    /// ProbeInflightLongtermUpward().
    pub(super) fn probe_longterm_upward(&mut self, rs: &RateSample, view: &PathView) {
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
    pub(super) fn adapt_long_term_model(&mut self, rs: &RateSample, view: &PathView) -> bool {
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

    /// CheckProbeRTT() and HandleProbeRTT() of section 5.3.4.3.
    pub(super) fn check_probe_rtt(&mut self, rs: &RateSample, view: &PathView, cwnd: &mut u32) {
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
    pub(super) fn check_probe_rtt_done(&mut self, now: Instant, cwnd: &mut u32) {
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

    /// ProbeRTTCwnd() of section 5.6.4.5.
    pub(super) fn probe_rtt_cwnd(&self, view: &PathView) -> u32 {
        let (_, gain) = BbrState::ProbeRtt.gains();
        self.bdp(gain, view).max(MIN_PIPE * view.mss)
    }
}
