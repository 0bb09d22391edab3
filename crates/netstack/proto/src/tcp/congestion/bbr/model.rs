//! What BBR knows of the path: rates, round trips and losses (draft-ietf-ccwg-bbr-06 section 5.5).

use super::*;

impl Bbr {
    /// BBR.max_bw.
    pub(super) fn max_bw(&self) -> u64 {
        self.bandwidth.max_bw_filter[0].max(self.bandwidth.max_bw_filter[1])
    }

    /// Section 5.5.10.3.
    pub(super) fn update_latest_delivery_signals(&mut self, rs: &RateSample) {
        self.losses.loss_round_start = false;
        self.bandwidth.bw_latest = self.bandwidth.bw_latest.max(rs.rate);
        self.bounds.inflight_latest = self.bounds.inflight_latest.max(volume_of(rs.delivered));
        if rs.prior_delivered() >= Some(self.losses.loss_round_delivered) {
            self.losses.loss_round_delivered = self.delivery.delivered;
            self.losses.loss_round_start = true;
        }
    }

    /// Sections 5.5.5 and 5.5.10.3.
    pub(super) fn update_congestion_signals(&mut self, rs: &RateSample, view: &PathView) {
        self.update_round(rs);
        if rs.rate > 0 && (rs.rate >= self.max_bw() || !rs.is_app_limited()) {
            self.bandwidth.max_bw_filter[1] = self.bandwidth.max_bw_filter[1].max(rs.rate);
        }
        if self.losses.loss_round_start {
            let is_congested = self.losses.is_loss_in_round && self.is_more_than_path_loses(rs);
            if is_congested && !self.state.accelerates() {
                self.adapt_lower_bounds(view.cwnd);
            }
            self.losses.is_loss_in_round = false;
        }
    }

    /// UpdateRound() of section 5.5.1.
    pub(super) fn update_round(&mut self, rs: &RateSample) {
        self.rounds.round_start = rs.prior_delivered() >= Some(self.rounds.next_round_delivered);
        if self.rounds.round_start {
            self.start_round();
            self.rounds.round_count = self.rounds.round_count.wrapping_add(1);
            self.rounds.rounds_since_probe_up = self.rounds.rounds_since_probe_up.saturating_add(1);
            self.cwnd_limited = [false, self.cwnd_limited[0]];
        }
    }

    pub(super) fn start_round(&mut self) {
        self.rounds.next_round_delivered = self.delivery.delivered;
    }

    /// C.is_cwnd_limited.
    pub(super) const fn is_cwnd_limited(&self) -> bool {
        self.cwnd_limited[0] || self.cwnd_limited[1]
    }

    /// Section 5.5.9.
    pub(super) fn update_ack_aggregation(&mut self, rs: &RateSample, view: &PathView) {
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
    pub(super) fn check_full_bw_reached(&mut self, rs: &RateSample) {
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
    pub(super) const fn reset_full_bw(&mut self, rate: u64) {
        self.full_pipe.full_bw = rate;
        self.full_pipe.full_bw_count = 0;
        self.full_pipe.full_bw_now = false;
    }

    /// UpdateMinRTT() of section 5.3.4.3.
    pub(super) fn update_min_rtt(&mut self, rs: &RateSample, now: Instant) {
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

    /// BDPMultiple() of section 5.6.4.2.
    pub(super) fn bdp(&self, percent: u64, view: &PathView) -> u32 {
        if self.round_trip.min_rtt == UNKNOWN {
            return view.cwnd;
        }
        share(volume(self.bandwidth.bw, self.round_trip.min_rtt), percent)
    }

    /// QuantizationBudget().
    pub(super) fn quantize(&self, bytes: u32, mss: u32) -> u32 {
        let least = (3 * self.pacer.send_quantum).max(MIN_PIPE * mss);
        let more = if self.state == BbrState::ProbeBwUp {
            2 * mss
        } else {
            0
        };
        bytes.max(least).saturating_add(more)
    }

    /// Inflight().
    pub(super) fn inflight(&self, percent: u64, view: &PathView) -> u32 {
        self.quantize(self.bdp(percent, view), view.mss)
    }
}
