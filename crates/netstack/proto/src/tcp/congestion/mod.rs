//! How much may be in flight for the sake of the network (RFC 5681), in integer arithmetic.
//!
//! [`Congestion`] keeps the window and the phase of loss recovery: NewReno (RFC 6582) for peers
//! without SACK, proportional rate reduction (RFC 9937) for the others. An [`Algorithm`] decides
//! how fast the window opens and how far it falls: [`Reno`] or [`Cubic`]. [`Bbr`] sets the window
//! itself, also in a recovery, and paces; `tcp/pacing.rs` connects it to what is sent.

mod bbr;
mod cubic;
mod delivery;
mod hystart;
mod reno;

use crate::config::CongestionControl;
use crate::seqnum::SeqNum;
#[cfg(any(test, feature = "testkit"))]
use crate::tcp::fields::Flip;
use crate::tcp::fields::{Fields, field_variants, fields};
use crate::time::{Duration, Instant};

use bbr::{Bbr, BoxedBbr};
use cubic::Cubic;
use reno::Reno;

pub(super) use bbr::PathView;

/// No window grows beyond this: the largest that RFC 7323 section 2.3 can announce.
const WINDOW_MAX: u32 = 1 << 30;

/// Duplicate acknowledgments after which a segment counts as lost (RFC 5681 section 3.2).
const DUPLICATES: u8 = 3;

/// The sender's reaction to loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum CongestionPhase {
    /// None: no loss is known, or a timeout restarted the window.
    Open,
    /// Fast recovery (RFC 6582), no partial acknowledgment seen yet.
    Recovery,
    /// Fast recovery, after a partial acknowledgment.
    RecoveryPartial,
    /// Recovery with SACK: RFC 9937 sets the window.
    Reduction,
}

field_variants!(CongestionPhase {
    Open,
    Recovery,
    RecoveryPartial,
    Reduction
});

/// An acknowledgment of new data, as congestion control sees it.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(test, derive(Default))]
pub(super) struct Acked {
    /// SND.UNA after the acknowledgment.
    pub(super) una: SeqNum,
    /// The next number to send for the first time.
    pub(super) nxt: SeqNum,
    /// Newly acknowledged bytes.
    pub(super) acked: u32,
    /// Bytes that were in flight before the acknowledgment.
    pub(super) flight: u32,
    /// It reports congestion, so the window does not grow (RFC 3168 section 6.1.2).
    pub(super) marked: bool,
    /// Bytes of a full segment.
    pub(super) mss: u32,
    pub(super) now: Instant,
    /// Smoothed round-trip time.
    pub(super) srtt: Duration,
    /// The round-trip time that this acknowledgment measured, if it did: from timestamps, in
    /// ticks of about 1 ms, so it may be 0. `min_rtt` of `Tcb::retransmit` is the shortest
    /// recent one by our own clock.
    pub(super) rtt: Option<Duration>,
}

/// How a congestion window opens, and how far it falls.
///
/// It sees acknowledgments and losses, and sets the window and the threshold. It sees no
/// acknowledgment during recovery, with a congestion mark, or while less than half the window
/// is used. [`Bbr`], which also sets a rate, needs more than this trait.
trait Algorithm {
    /// The algorithm of a new connection with this setting.
    fn new(_control: CongestionControl) -> Self
    where
        Self: Default + Sized,
    {
        Self::default()
    }

    /// By how many bytes the window grows after `ack` in slow start; `None` ends slow start.
    /// `initial`: no loss has happened yet.
    fn slow_start(&mut self, ack: &Acked, _initial: bool) -> Option<u32> {
        // RFC 5681 section 3.1, at most L = 2 segments per acknowledgment (RFC 3465 section 2.2).
        Some(ack.acked.min(2 * ack.mss))
    }

    /// The new window after `ack`, when the old one, `cwnd`, was in use.
    fn increase(&mut self, cwnd: u32, ack: &Acked) -> u32;

    /// The new threshold after a loss, when `flight` bytes of `cwnd` were in flight.
    fn decrease(&mut self, cwnd: u32, flight: u32, mss: u32) -> u32;

    /// Called when the connection was idle.
    fn after_idle(&mut self);
}

/// Declares the algorithms of [`CongestionControl`]; a missing one is a compile error.
macro_rules! algorithms {
    ($($control:ident => $algorithm:ident),* $(,)?) => {
        const _: () = {
            let listed = [$(CongestionControl::$control),*];
            assert!(listed.len() == CongestionControl::ALL.len());
        };

        /// The algorithm of a connection.
        #[derive(Clone, Debug, PartialEq, Eq)]
        enum Growth {
            $($control($algorithm)),*
        }

        impl Growth {
            fn new(control: CongestionControl) -> Self {
                match control {
                    $(CongestionControl::$control => Growth::$control(Algorithm::new(control))),*
                }
            }

            fn control(&self) -> CongestionControl {
                match self {
                    $(Growth::$control(_) => CongestionControl::$control),*
                }
            }

            fn algorithm(&mut self) -> &mut dyn Algorithm {
                match self {
                    $(Growth::$control(algorithm) => algorithm),*
                }
            }

            /// [`Algorithm::increase`] without dynamic dispatch: it runs at nearly every ACK.
            #[inline]
            fn increase(&mut self, cwnd: u32, ack: &Acked) -> u32 {
                match self {
                    $(Growth::$control(algorithm) => algorithm.increase(cwnd, ack)),*
                }
            }
        }

        impl Fields for Growth {
            #[inline(always)]
            fn visit(&self, name: &'static str, each: &mut impl FnMut(&'static str, u64)) {
                self.control().visit(name, each);
                match self {
                    $(Growth::$control(algorithm) => algorithm.visit(name, each)),*
                }
            }

            #[cfg(any(test, feature = "testkit"))]
            fn flip(&mut self, name: &'static str, flip: &mut Flip) {
                let mut control = self.control();
                control.flip(name, flip);
                if control != self.control() {
                    *self = Growth::new(control);
                }
                match self {
                    $(Growth::$control(algorithm) => algorithm.flip(name, flip)),*
                }
            }
        }
    };
}

algorithms! {
    NewReno => Reno,
    Cubic => Cubic,
    Bbr => BoxedBbr,
}

impl Default for Growth {
    fn default() -> Self {
        Growth::new(CongestionControl::NewReno)
    }
}

/// Bytes sent and bytes that arrived since a recovery began (RFC 9937 section 6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Reduction {
    /// prr_delivered.
    delivered: u32,
    /// prr_out.
    out: u32,
    /// RecoverFS: the bytes in flight when recovery began.
    flight: u32,
}

fields!(Reduction, "congestion.reduction", { delivered, out, flight });

/// What the sender has to do after an acknowledgment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AckAction {
    /// Nothing in particular.
    Continue,
    /// Send the first unacknowledged segment again.
    Resend,
}

/// Congestion window and loss recovery of one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Congestion {
    /// `cwnd`, bytes (RFC 5681 section 2).
    pub(super) cwnd: u32,
    /// `ssthresh`, bytes (RFC 5681 section 2).
    ssthresh: u32,
    /// The highest number sent when loss was last noticed (RFC 6582 section 3.2).
    recover: SeqNum,
    pub(super) phase: CongestionPhase,
    /// Duplicate acknowledgments in a row.
    pub(super) duplicates: u8,
    /// Bytes in flight at the first duplicate acknowledgment, before limited transmit.
    flight: u32,
    reduction: Reduction,
    growth: Growth,
    /// The values before the last reduction for a loss, while it may be undone.
    before_reduction: Option<Box<BeforeReduction>>,
}

/// The values that a reduction of the window changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct BeforeReduction {
    cwnd: u32,
    ssthresh: u32,
    growth: Growth,
}

fields!(BeforeReduction, "congestion.before", { cwnd, ssthresh, growth });

fields!(Congestion, "congestion", {
    cwnd, ssthresh, recover, phase, duplicates, flight, reduction, growth, before_reduction,
});

impl Congestion {
    /// The state before the handshake.
    pub(super) fn new(iss: SeqNum, control: CongestionControl) -> Self {
        Congestion {
            cwnd: 0,
            ssthresh: WINDOW_MAX,
            recover: iss,
            phase: CongestionPhase::Open,
            duplicates: 0,
            flight: 0,
            reduction: Reduction::default(),
            growth: Growth::new(control),
            before_reduction: None,
        }
    }

    /// Continues with another algorithm and the current window.
    pub(super) fn switch(&mut self, control: CongestionControl) {
        if self.is_paced() {
            // BBR has no threshold.
            self.ssthresh = self.ssthresh.min(self.cwnd);
        }
        self.growth = Growth::new(control);
        self.before_reduction = None;
    }

    /// `ssthresh`, bytes.
    pub(super) const fn ssthresh(&self) -> u32 {
        self.ssthresh
    }

    /// `cwnd`, bytes.
    pub(super) const fn cwnd(&self) -> u32 {
        self.cwnd
    }

    /// The initial window of RFC 6928 section 2.
    fn initial(mss: u32) -> u32 {
        (10 * mss).min((2 * mss).max(14_600))
    }

    /// The handshake is complete. After a lost SYN the window starts at one segment (RFC 5681
    /// section 3.1).
    pub(super) fn establish(&mut self, mss: u32, syn_lost: bool) {
        self.cwnd = if syn_lost { mss } else { Self::initial(mss) };
    }

    /// Bytes that may be in flight. Each of the first two duplicate acknowledgments allows one
    /// new segment (limited transmit, RFC 3042).
    #[inline]
    pub(super) fn allowed(&self, mss: u32) -> u32 {
        if self.phase == CongestionPhase::Open {
            self.cwnd + u32::from(self.duplicates.min(DUPLICATES - 1)) * mss
        } else {
            self.cwnd
        }
    }

    /// Whether BBR sets window and rate.
    #[inline]
    pub(super) const fn is_paced(&self) -> bool {
        matches!(self.growth, Growth::Bbr(_))
    }

    /// BBR, if it sets window and rate.
    #[inline]
    pub(super) fn bbr(&mut self) -> Option<&mut Bbr> {
        match &mut self.growth {
            Growth::Bbr(bbr) => Some(bbr),
            _ => None,
        }
    }

    /// The handshake is complete, or the algorithm has changed since: begins to pace if it is BBR,
    /// which needs SACK; without that, CUBIC replaces it.
    pub(super) fn begin_pacing(&mut self, now: Instant, srtt: Duration, mss: u32, has_sack: bool) {
        let cwnd = self.cwnd;
        match self.bbr() {
            Some(bbr) if has_sack => bbr.begin(now, srtt, cwnd, mss),
            Some(_) => self.growth = Growth::new(CongestionControl::Cubic),
            None => {}
        }
    }

    /// The connection as BBR sees it.
    pub(super) fn view(&self, now: Instant, in_flight: u32, mss: u32) -> PathView {
        PathView {
            now,
            mss,
            in_flight,
            cwnd: self.cwnd,
            recovering: self.phase != CongestionPhase::Open,
        }
    }

    /// An acknowledgment up to `una` was processed: BBR sets the window.
    pub(super) fn set_by_bbr(&mut self, una: SeqNum, now: Instant, in_flight: u32, mss: u32) {
        let view = self.view(now, in_flight, mss);
        let is_repaired = una.at_or_after(self.recover);
        if let Growth::Bbr(bbr) = &mut self.growth {
            let mut view = view;
            if bbr.is_after_timeout() && is_repaired {
                view.cwnd = bbr.on_recovered(view.cwnd);
            }
            self.cwnd = bbr.on_ack(&view, Self::initial(mss));
        }
    }

    /// The congestion window.
    #[cfg(test)]
    pub(super) const fn window(&self) -> u32 {
        self.cwnd
    }

    /// Whether this acknowledgment leaves the retransmission timer running: in fast recovery
    /// only the first partial one restarts it (RFC 6582 section 3.2, step 3).
    pub(super) fn keeps_timer(&self) -> bool {
        self.phase == CongestionPhase::RecoveryPartial
    }

    /// Whether no recovery is under way.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.phase == CongestionPhase::Open
    }

    /// The highest number sent when loss was last noticed.
    pub(super) const fn recover(&self) -> SeqNum {
        self.recover
    }

    /// Whether an acknowledgment may open the window while `flight` bytes are in flight: a window
    /// that was not used is no evidence about the network (RFC 7661 section 4.3).
    #[inline(always)]
    pub(super) const fn may_grow(&self, flight: u32) -> bool {
        flight >= self.cwnd / 2
    }

    /// New data was acknowledged, with `flight` bytes in flight; `ack` yields the details.
    #[inline(always)]
    pub(super) fn on_ack(&mut self, flight: u32, ack: impl FnOnce() -> Acked) -> AckAction {
        self.duplicates = 0;
        if self.phase == CongestionPhase::Open && !self.may_grow(flight) {
            return AckAction::Continue;
        }
        self.on_ack_with_effect(&ack())
    }

    #[inline(never)]
    fn on_ack_with_effect(&mut self, ack: &Acked) -> AckAction {
        if self.phase != CongestionPhase::Open {
            return self.on_ack_in_recovery(ack);
        }
        if !ack.marked {
            self.grow(ack);
        }
        AckAction::Continue
    }

    #[inline]
    fn grow(&mut self, ack: &Acked) {
        let cwnd = if self.cwnd < self.ssthresh {
            let initial = self.ssthresh == WINDOW_MAX;
            let grown = self.growth.algorithm().slow_start(ack, initial);
            if grown.is_none() {
                self.ssthresh = self.cwnd;
            }
            self.cwnd + grown.unwrap_or(0)
        } else {
            self.growth.increase(self.cwnd, ack)
        };
        self.cwnd = cwnd.min(WINDOW_MAX);
    }

    /// RFC 6582 section 3.2, step 3; RFC 9937 section 6.
    fn on_ack_in_recovery(&mut self, ack: &Acked) -> AckAction {
        let Acked {
            una,
            acked,
            flight,
            mss,
            ..
        } = *ack;
        let is_over = una.at_or_after(self.recover);
        if self.phase == CongestionPhase::Reduction {
            if is_over {
                self.cwnd = match &mut self.growth {
                    Growth::Bbr(bbr) => bbr.on_recovered(self.cwnd),
                    _ => self.ssthresh,
                };
                self.phase = CongestionPhase::Open;
            }
            return AckAction::Continue;
        }
        if is_over {
            let left = flight.saturating_sub(acked);
            self.cwnd = self.ssthresh.min(left.max(mss) + mss);
            self.phase = CongestionPhase::Open;
            return AckAction::Continue;
        }
        self.cwnd = self.cwnd.saturating_sub(acked);
        if acked >= mss {
            self.cwnd += mss;
        }
        self.cwnd = self.cwnd.max(mss);
        self.phase = CongestionPhase::RecoveryPartial;
        AckAction::Resend
    }

    /// Data is lost: `flight` bytes were sent up to `nxt` (RFC 6675 section 5, step 4), of
    /// which `known` arrived before this acknowledgment (RFC 9937 section 6).
    pub(super) fn enter(&mut self, nxt: SeqNum, flight: u32, known: u32, mss: u32) {
        self.reduce_window(flight.min(self.cwnd), mss);
        self.recover = nxt;
        self.phase = CongestionPhase::Reduction;
        self.reduction = Reduction {
            flight: flight.saturating_sub(known).max(1),
            ..Reduction::default()
        };
    }

    /// Sets the window in a recovery (RFC 9937 section 6) after `delivered` more bytes have
    /// arrived, with `pipe` bytes in flight. `safe`: SND.UNA advanced, and no further loss was
    /// detected. At least one segment leaves in a recovery.
    pub(super) fn reduce(&mut self, delivered: u32, safe: bool, pipe: u32, mss: u32) {
        if self.is_paced() {
            return;
        }
        let begins = self.reduction.out == 0 && self.reduction.delivered == 0;
        if self.phase != CongestionPhase::Reduction || (delivered == 0 && !begins) {
            return;
        }
        let Reduction {
            delivered: all,
            out,
            flight,
        } = &mut self.reduction;
        *all = all.saturating_add(delivered);
        let left = if pipe > self.ssthresh {
            let share = u64::from(*all) * u64::from(self.ssthresh);
            let share = share
                .div_ceil(u64::from(*flight))
                .min(u64::from(WINDOW_MAX));
            (share as u32).saturating_sub(*out)
        } else {
            let more = if safe { mss } else { 0 };
            let limit = all.saturating_sub(*out).max(delivered);
            limit.saturating_add(more).min(self.ssthresh - pipe)
        };
        let least = if *out == 0 { mss } else { 0 };
        self.cwnd = pipe.saturating_add(left.max(least)).min(WINDOW_MAX);
    }

    /// `bytes` were sent, new or retransmitted.
    #[inline]
    pub(super) fn on_sent(&mut self, bytes: u32) {
        if self.phase == CongestionPhase::Reduction {
            self.reduction.out = self.reduction.out.saturating_add(bytes);
        }
    }

    /// There was congestion without loss: reduces the window, once for the data sent up to `nxt`.
    pub(super) fn on_congestion_mark(&mut self, now: Instant, nxt: SeqNum, mss: u32) {
        if self.phase == CongestionPhase::Open {
            let view = self.view(now, 0, mss);
            if let Some(bbr) = self.bbr() {
                bbr.note_loss(&view);
                self.recover = nxt;
                return;
            }
            self.reduce_window(self.cwnd, mss);
            // A mark is certain evidence of congestion, so this reduction is never undone.
            self.before_reduction = None;
            self.cwnd = self.ssthresh;
            self.recover = nxt;
        }
    }

    fn reduce_window(&mut self, flight: u32, mss: u32) {
        let cwnd = self.cwnd;
        self.before_reduction = Some(Box::new(BeforeReduction {
            cwnd,
            ssthresh: self.ssthresh,
            growth: match &self.growth {
                // BBR restores its own values.
                Growth::Bbr(_) => Growth::default(),
                growth => growth.clone(),
            },
        }));
        if self.is_paced() {
            return;
        }
        self.ssthresh = self.growth.algorithm().decrease(cwnd, flight, mss);
    }

    /// Whether the window was reduced for a loss, and the values before that are known.
    pub(super) const fn may_undo(&self) -> bool {
        self.before_reduction.is_some()
    }

    /// There was no loss: restores the window (RFC 4015 section 3.2, RFC 9438 section 4.9). The
    /// window opens at once to `pipe` and an initial window at most, and by slow start from
    /// there, so that no burst leaves.
    pub(super) fn undo(&mut self, una: SeqNum, pipe: u32, mss: u32) {
        let Some(before) = self.before_reduction.take() else {
            return;
        };
        let BeforeReduction {
            cwnd,
            ssthresh,
            growth,
        } = *before;
        if let Growth::Bbr(bbr) = &mut self.growth {
            bbr.on_spurious();
            self.cwnd = bbr.on_recovered(self.cwnd);
        } else {
            let is_open = self.phase == CongestionPhase::Open;
            let now = if is_open { self.cwnd } else { 0 };
            self.cwnd = cwnd.min(pipe + Self::initial(mss)).max(now).max(mss);
            self.ssthresh = ssthresh.max(cwnd);
            self.growth = growth;
        }
        self.recover = una;
        self.phase = CongestionPhase::Open;
        self.duplicates = 0;
    }

    /// A duplicate acknowledgment of `una` arrived while `flight` bytes up to `max` were in
    /// flight (RFC 5681 section 3.2, RFC 6582 section 3.2).
    pub(super) fn on_duplicate(
        &mut self,
        una: SeqNum,
        max: SeqNum,
        flight: u32,
        mss: u32,
    ) -> AckAction {
        self.duplicates = self.duplicates.saturating_add(1);
        if self.duplicates == 1 {
            self.flight = flight;
        }
        if self.phase != CongestionPhase::Open {
            // Another segment has left the network.
            self.cwnd = (self.cwnd + mss).min(WINDOW_MAX);
            return AckAction::Continue;
        }
        // After a timeout, acknowledgments of older copies must not count as another loss.
        if self.duplicates != DUPLICATES || !una.after(self.recover) {
            return AckAction::Continue;
        }
        // RFC 5681 section 3.2, step 2: the bytes that limited transmit sent do not count.
        self.reduce_window(self.flight, mss);
        self.recover = max;
        self.cwnd = (self.ssthresh + u32::from(DUPLICATES) * mss).min(WINDOW_MAX);
        self.phase = CongestionPhase::Recovery;
        AckAction::Resend
    }

    /// The retransmission timer expired, for the `first` time for this segment (RFC 5681 section
    /// 3.1, RFC 6582 section 3.2 step 4).
    pub(super) fn on_timeout(
        &mut self,
        now: Instant,
        max: SeqNum,
        flight: u32,
        mss: u32,
        first: bool,
    ) {
        if first {
            self.reduce_window(flight, mss);
        }
        let view = self.view(now, flight, mss);
        if let Some(bbr) = self.bbr() {
            bbr.on_timeout(&view);
        }
        self.cwnd = mss;
        self.recover = max;
        self.phase = CongestionPhase::Open;
        self.duplicates = 0;
    }

    /// Nothing was sent for longer than a timeout: the old window is no evidence any more (RFC
    /// 5681 section 4.1).
    pub(super) fn restart(&mut self, mss: u32) {
        if self.is_paced() {
            // It paces at the rate that it has measured.
            return;
        }
        self.cwnd = self.cwnd.min(Self::initial(mss));
        self.growth.algorithm().after_idle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1000;

    fn ack(una: SeqNum, acked: u32, flight: u32) -> Acked {
        Acked {
            una,
            nxt: una + flight,
            acked,
            flight,
            mss: MSS,
            now: Instant::from_millis(1),
            srtt: Duration::from_millis(1),
            ..Acked::default()
        }
    }

    fn on_ack(c: &mut Congestion, una: SeqNum, acked: u32, flight: u32) -> AckAction {
        c.on_ack(flight, || ack(una, acked, flight))
    }

    #[test]
    fn no_report_of_what_arrived_overflows_a_recovery() {
        for pipe in [0, MSS, WINDOW_MAX, u32::MAX] {
            for delivered in [0, 1, 1 << 31, u32::MAX] {
                for out in [0, MSS, u32::MAX] {
                    let mut c = open();
                    c.enter(SeqNum(9), MSS, 0, MSS);
                    c.on_sent(out);
                    // A peer may withdraw its report and repeat it again and again.
                    for _ in 0..3 {
                        c.reduce(delivered, true, pipe, MSS);
                        assert!((1..=WINDOW_MAX).contains(&c.cwnd()) || pipe == 0);
                    }
                }
            }
        }
        // A report of too many bytes has the effect of a report of all.
        let mut c = open();
        c.enter(SeqNum(9), MSS, 0, MSS);
        c.reduce(u32::MAX, true, 0, MSS);
        assert_eq!(c.cwnd(), c.ssthresh);
    }

    fn open() -> Congestion {
        let mut c = Congestion::new(SeqNum(0), CongestionControl::NewReno);
        c.establish(MSS, false);
        c
    }

    #[test]
    fn another_algorithm_goes_on_with_the_window_and_undoes_nothing() {
        let mut c = open();
        c.on_timeout(Instant::ZERO, SeqNum(9000), 8000, MSS, true);
        let (cwnd, ssthresh) = (c.cwnd(), c.ssthresh());
        assert!(c.may_undo());
        for control in CongestionControl::ALL {
            let mut c = c.clone();
            c.switch(*control);
            assert_eq!(c.growth.control(), *control);
            assert_eq!((c.cwnd(), c.ssthresh()), (cwnd, ssthresh));
            assert!(!c.may_undo());
        }
    }

    #[test]
    fn a_flipped_bit_makes_an_algorithm_another_one() {
        for control in CongestionControl::ALL {
            let mut growth = Growth::new(*control);
            let mut flip = Flip::new(0);
            growth.flip("growth", &mut flip);
            assert_ne!(growth.control(), *control);
        }
    }

    #[test]
    fn congestion_avoidance_adds_one_segment_a_window() {
        let mut c = open();
        c.ssthresh = 10 * MSS;
        for _ in 0..10 {
            on_ack(&mut c, SeqNum(1), MSS, 10 * MSS);
        }
        assert_eq!(c.window(), 11 * MSS);
    }

    #[test]
    fn the_third_duplicate_halves_and_resends_and_the_full_ack_ends_recovery() {
        let mut c = open();
        let (una, max) = (SeqNum(500), SeqNum(20_500));
        assert_eq!(c.on_duplicate(una, max, 20_000, MSS), AckAction::Continue);
        assert_eq!(c.allowed(MSS), 11 * MSS);
        assert_eq!(c.on_duplicate(una, max, 20_000, MSS), AckAction::Continue);
        assert_eq!(c.on_duplicate(una, max, 20_000, MSS), AckAction::Resend);
        assert_eq!((c.ssthresh, c.window()), (10 * MSS, 13 * MSS));
        assert_eq!(c.on_duplicate(una, max, 20_000, MSS), AckAction::Continue);
        assert_eq!(c.window(), 14 * MSS);
        // A partial one deflates by its bytes, adds one segment and sends the next hole.
        assert_eq!(on_ack(&mut c, una + 3000, 3000, 20_000), AckAction::Resend);
        assert_eq!(c.window(), 12 * MSS);
        assert_eq!(on_ack(&mut c, max, 17_000, 17_000), AckAction::Continue);
        assert_eq!(c.window(), 2 * MSS);
        assert_eq!((c.phase, c.duplicates), (CongestionPhase::Open, 0));
    }

    /// RFC 9937 section 7: with a threshold of half, one segment leaves for every two that arrive.
    #[test]
    fn in_a_reduction_segments_leave_in_proportion_to_what_arrives() {
        let mut c = open();
        c.cwnd = 20 * MSS;
        c.enter(SeqNum(20_000), 20 * MSS, 0, MSS);
        assert_eq!(c.ssthresh, 10 * MSS);
        let (mut pipe, mut sent) = (19 * MSS, 0);
        c.reduce(3 * MSS, false, pipe - 3 * MSS, MSS);
        pipe -= 3 * MSS;
        for _ in 0..16 {
            while c.cwnd >= pipe + MSS {
                c.on_sent(MSS);
                pipe += MSS;
                sent += 1;
            }
            pipe -= MSS;
            c.reduce(MSS, true, pipe, MSS);
        }
        assert!((9..=11).contains(&sent), "{sent} segments");
        on_ack(&mut c, SeqNum(20_000), 20_000, 20_000);
        assert_eq!((c.window(), c.is_open()), (10 * MSS, true));
    }

    /// RFC 9937 section 6: data that arrived before the recovery does not count as in flight.
    #[test]
    fn what_was_known_to_have_arrived_before_a_reduction_leaves_a_larger_share() {
        let mut c = open();
        c.cwnd = 20 * MSS;
        c.enter(SeqNum(20_000), 20 * MSS, 10 * MSS, MSS);
        assert_eq!((c.ssthresh, c.reduction.flight), (10 * MSS, 10 * MSS));
        c.reduce(2 * MSS, false, 15 * MSS, MSS);
        // All that arrives may be replaced, although more than the threshold is in flight.
        assert_eq!(c.window(), 17 * MSS);
    }

    /// RFC 4015 section 3.2: at most an initial window leaves at once, and growth since the
    /// timeout stays.
    #[test]
    fn a_loss_that_was_none_gives_back_what_may_leave_at_once_and_the_threshold() {
        let mut c = open();
        c.cwnd = 20 * MSS;
        c.enter(SeqNum(20_000), 20 * MSS, 0, MSS);
        c.cwnd = 40 * MSS;
        c.undo(SeqNum(500), 3 * MSS, MSS);
        assert_eq!((c.window(), c.ssthresh), (13 * MSS, WINDOW_MAX));
        assert!(c.is_open() && !c.may_undo());
        assert_eq!(c.recover(), SeqNum(500));

        c.cwnd = 20 * MSS;
        c.on_timeout(Instant::ZERO, SeqNum(20_000), 20 * MSS, MSS, true);
        c.cwnd = 15 * MSS;
        c.undo(SeqNum(500), 3 * MSS, MSS);
        assert_eq!(c.window(), 15 * MSS);
    }
}
