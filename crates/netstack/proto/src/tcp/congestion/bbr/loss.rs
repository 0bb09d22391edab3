//! What BBR concludes from losses (draft-ietf-ccwg-bbr-06 sections 5.5.10 and 5.5.11).

use super::*;

impl Bbr {
    /// NoteLoss() of section 5.5.10.2. The first loss of a recovery saves the state (section
    /// 5.5.11.1).
    pub(in crate::tcp) fn note_loss(&mut self, view: &PathView) {
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
        self.measure_path_loss(len, true, view.mss);
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
        let threshold = self.loss_threshold();
        let allowed = u64::from(before) * threshold;
        let prefix = allowed.saturating_sub(lost_before.saturating_mul(1000)) / (1000 - threshold);
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
    pub(in crate::tcp) fn on_timeout(&mut self, view: &PathView) {
        self.note_loss(view);
        self.after_timeout = true;
    }

    /// All losses are repaired: RestoreCwnd() of section 5.6.4.4.
    pub(in crate::tcp) fn on_recovered(&mut self, cwnd: u32) -> u32 {
        self.after_timeout = false;
        cwnd.max(self.prior_cwnd)
    }

    /// Whether a timeout reduced the window, and some loss is not repaired yet.
    pub(in crate::tcp) const fn is_after_timeout(&self) -> bool {
        self.after_timeout
    }

    /// There was no loss: HandleSpuriousLossDetection() of section 5.5.11.2.
    pub(in crate::tcp) fn on_spurious(&mut self) {
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

    /// BBR.LossThresh, per mille, beyond twice what the path loses.
    pub(super) const fn loss_threshold(&self) -> u64 {
        LOSS_THRESHOLD + 2 * self.path_loss.per_mille
    }

    /// IsInflightTooHigh() of section 5.5.10.2.
    pub(super) fn is_too_high(&self, lost: u64, in_flight: u32) -> bool {
        lost.saturating_mul(1000) > u64::from(in_flight) * self.loss_threshold()
    }

    /// Whether the last round trip lost at least twice what the path loses.
    pub(super) fn is_more_than_path_loses(&self, rs: &RateSample) -> bool {
        let of_path = u64::from(rs.in_flight()) * 2 * self.path_loss.per_mille;
        rs.lost.saturating_mul(1000) >= of_path
    }

    /// `len` bytes arrived, or were lost. A loss without a queue is the path's: congestion has one.
    /// A timeout does not show which data was lost.
    pub(super) fn measure_path_loss(&mut self, len: u32, is_lost: bool, mss: u32) {
        let (path, min_rtt) = (&mut self.path_loss, self.round_trip.min_rtt);
        if self.after_timeout {
            return;
        }
        let is_queued = path.rtt > min_rtt + min_rtt.divided(QUEUE_SEEN);
        path.sent = path.sent.saturating_add(len);
        if is_lost && !is_queued {
            path.lost = path.lost.saturating_add(len);
        }
        let enough = PATH_LOSS_SEGMENTS * mss;
        if path.sent > enough {
            path.sent /= 2;
            path.lost /= 2;
        }
        let share = u64::from(path.lost) * 1000 / u64::from(path.sent.max(enough / 2).max(1));
        path.per_mille = share.min(PATH_LOSS);
    }

    /// InitLowerBounds() and LossLowerBounds() of section 5.5.10.3.
    pub(super) fn adapt_lower_bounds(&mut self, cwnd: u32) {
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
    pub(super) const fn reset_short_term_model(&mut self) {
        self.bandwidth.bw_shortterm = NO_RATE_BOUND;
        self.bounds.inflight_shortterm = NO_BOUND;
    }
}
