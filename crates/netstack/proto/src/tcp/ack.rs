//! Acknowledgments: the effects of an acceptable one (RFC 9293 section 3.10.7.4, fifth step).

use super::arrive::Acceptable;
use super::congestion::{AckAction, Acked};
use super::recovery::Recovery;
use super::retransmit::{Timer, measured_by};
use super::{Cx, FIN_WAIT_2, MSL, State, Tcb};
use crate::log::effect::{ConnectionEvent, Effect, EffectSink};
use crate::log::request::{Flags, Options, Segment};
use crate::seqnum::SeqNum;
use crate::time::Instant;

impl Tcb {
    /// Notifies the connection's socket of an event.
    pub(super) fn notify<S: EffectSink>(&self, event: ConnectionEvent, cx: &mut Cx<'_, S>) {
        cx.out.push(Effect::Event {
            conn: self.common.conn,
            event,
            received: self.rcv.offset,
        });
    }

    /// `seg` acknowledged our SYN: enters ESTABLISHED, and FIN-WAIT-1 if our side is shut down.
    pub(super) fn establish<S: EffectSink>(&mut self, seg: &Segment<'_>, cx: &mut Cx<'_, S>) {
        self.enter(State::Established);
        if self.tuning.max_segment != 0 {
            self.bound_segments(self.tuning.max_segment);
        }
        let echoed = self.echoed(seg.timestamps);
        let snd = &mut self.snd;
        self.retransmit.on_ack(seg.ack, echoed, cx.now);
        self.retransmit.establish(snd.syn_lost);
        self.congestion.establish(u32::from(snd.mss), snd.syn_lost);
        self.begin_pacing(cx.now);
        let snd = &mut self.snd;
        self.timers.stop(Timer::Retransmit);
        snd.begin_data(seg.ack, cx.now);
        self.recovery = Recovery::new(seg.ack);
        self.notify(ConnectionEvent::Established, cx);
        if self.snd.fin {
            self.enter(State::FinWait1);
        }
    }

    /// Fifth step in the synchronized states. Returns whether processing of the segment continues.
    pub(super) fn acknowledge<S: EffectSink>(
        &mut self,
        acceptable: &Acceptable<'_, '_>,
        cx: &mut Cx<'_, S>,
    ) -> bool {
        let seg = acceptable.segment();
        if !self.may_acknowledge(seg.ack) {
            self.challenge(cx);
            return false;
        }
        if seg.len == 0 && seg.ack == self.snd.una {
            self.on_peer_response(cx.now);
        }
        if self.persists() {
            // The peer responds: window probes may continue.
            self.retransmit.retries = 0;
        }
        let (clean, una) = (self.is_clean(), self.snd.una);
        let has_sack = self.rcv.sack_permitted && matches!(seg.options, Options::Sack(_));
        let is_measured = self.is_measured();
        let report = (!clean || has_sack || is_measured).then(|| self.process_blocks(seg, cx));
        if seg.ack.after(self.snd.una) {
            let echoed = self.echoed(seg.timestamps);
            let marked = self.echoes_congestion(seg);
            self.advance(seg.ack, echoed, clean, marked, cx.now);
            if marked {
                self.slow_down(cx.now);
            }
        } else if !self.rcv.sack_permitted && self.is_duplicate(seg) {
            self.duplicate(cx);
        }
        if let Some(report) = &report {
            let is_spurious = self.detect_spurious(seg, report, una, cx.now);
            cx.frames.counts.undone += u64::from(is_spurious);
        }
        if let (Some(report), true) = (report, self.rcv.sack_permitted) {
            self.respond(seg, report, cx);
            if is_measured {
                self.update_pacing(cx.now);
            }
        }
        self.update_window(seg);
        if self.snd.is_fin_acknowledged() {
            self.on_fin_acknowledged(cx);
        }
        true
    }

    /// Whether a closed window is being probed.
    #[inline]
    pub(super) fn persists(&self) -> bool {
        self.timers.runs(Timer::Persist)
    }

    /// TSecr of the `timestamps` of a segment, if they are in use, in terms of our clock.
    #[inline(always)]
    pub(super) fn echoed(&self, timestamps: Option<(u32, u32)>) -> Option<u32> {
        match timestamps {
            Some((_, ts_ecr)) if self.rcv.timestamps => {
                Some(ts_ecr.wrapping_sub(self.rcv.ts_offset))
            }
            _ => None,
        }
    }

    /// `una` acknowledges new data; `echoed` is TSecr, if timestamps are in use; `clean`:
    /// nothing is known to be lost; `marked`: congestion was reported nevertheless.
    #[inline]
    pub(super) fn advance(
        &mut self,
        una: SeqNum,
        echoed: Option<u32>,
        clean: bool,
        marked: bool,
        now: Instant,
    ) {
        let before = self.snd.una;
        let keeps_timer = self.congestion.keeps_timer();
        let action = self.measure_and_grow(una, echoed, marked, now);
        self.after_advance(before, keeps_timer, clean, now);
        self.apply_action(action);
    }

    /// As [`Tcb::advance`] for `first` and then for one acknowledgment after the other, each
    /// `beyond` the one before it by so many bytes, the last one `last`. Nothing is known to be
    /// lost.
    #[inline]
    pub(super) fn advance_by_each(
        &mut self,
        (first, last): (SeqNum, SeqNum),
        beyond: &[u16],
        echoed: Option<u32>,
        now: Instant,
    ) {
        let before = self.snd.una;
        let mut una = first;
        let mut later = beyond.iter();
        loop {
            let is_measured = self.retransmit.timing || echoed.is_some();
            let may_grow = self.congestion.may_grow(self.snd.max.since(self.snd.una));
            self.measure_and_grow(una, echoed, false, now);
            // Fewer bytes are in flight after each, so none of the others has an effect.
            let Some(more) = later.next().filter(|_| is_measured || may_grow) else {
                break;
            };
            una += u32::from(*more);
        }
        self.reach(last);
        self.after_advance(before, false, true, now);
    }

    /// SND.UNA is `una` now.
    #[inline(always)]
    fn reach(&mut self, una: SeqNum) {
        let snd = &mut self.snd;
        snd.una = una;
        if snd.nxt.before(una) {
            snd.nxt = una;
        }
    }

    /// The effects of an acknowledgment on the estimates of the round trip and of the network.
    #[inline(always)]
    fn measure_and_grow(
        &mut self,
        una: SeqNum,
        echoed: Option<u32>,
        marked: bool,
        now: Instant,
    ) -> AckAction {
        let (acked, flight) = (una.since(self.snd.una), self.snd.max.since(self.snd.una));
        self.reach(una);
        self.retransmit.on_ack(una, echoed, now);
        self.congestion.on_ack(flight, || Acked {
            una,
            nxt: self.snd.nxt,
            acked,
            flight,
            marked,
            mss: u32::from(self.snd.mss),
            now,
            srtt: self.retransmit.srtt,
            rtt: echoed.and_then(|echoed| measured_by(echoed, now)),
        })
    }

    /// SND.UNA was `before`: counts the acknowledged bytes, and restarts or stops the timers.
    #[inline(always)]
    fn after_advance(&mut self, before: SeqNum, keeps_timer: bool, clean: bool, now: Instant) {
        let snd = &mut self.snd;
        let fin = snd.fin && snd.una == snd.end;
        snd.una_offset += u64::from(snd.una.since(before) - u32::from(fin));
        self.retransmit.retries = 0;
        // RFC 6298 sections 5.2 and 5.3.
        if snd.una == snd.max {
            self.timers.stop(Timer::Retransmit);
        } else if self.timers.runs(Timer::Retransmit)
            && !(keeps_timer && self.congestion.keeps_timer())
        {
            self.arm(clean, now);
        }
        self.timers.stop(Timer::Persist);
    }

    /// Whether an acknowledgment is a duplicate in the sense of RFC 5681 section 2.
    fn is_duplicate(&self, seg: &Segment<'_>) -> bool {
        let snd = &self.snd;
        seg.len == 0
            && seg.ack == snd.una
            && snd.nxt != snd.una
            && !seg.flags.any(Flags::SYN.with(Flags::FIN))
            && u32::from(seg.wnd) << snd.shift == snd.wnd
    }

    /// Takes the window of `seg` unless a newer segment has set it. A segment that acknowledges
    /// more is newer even if its data is old: without its window, SND.UNA + SND.WND would exceed
    /// every edge that the peer advertised.
    #[inline(always)]
    pub(super) fn update_window(&mut self, seg: &Segment<'_>) {
        let snd = &mut self.snd;
        let newer = snd.wl1.before(seg.seq)
            || snd.wl2.before(seg.ack)
            || (snd.wl1 == seg.seq && snd.wl2 == seg.ack);
        if newer && seg.ack.at_or_after(snd.una) {
            snd.set_window(seg.seq, seg.ack, u32::from(seg.wnd) << snd.shift);
        }
    }

    /// The peer has received everything, our FIN included.
    fn on_fin_acknowledged<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        match self.state {
            State::FinWait1 => {
                self.notify(ConnectionEvent::AllAcknowledged, cx);
                self.enter(State::FinWait2);
                self.start_fin_wait_2_timer(cx);
            }
            State::Closing => {
                self.notify(ConnectionEvent::AllAcknowledged, cx);
                self.enter_time_wait(cx);
            }
            State::LastAck => {
                self.notify(ConnectionEvent::AllAcknowledged, cx);
                self.enter(State::Closed);
            }
            _ => {}
        }
    }

    /// Limits the time in FIN-WAIT-2 of a connection without a socket.
    pub(super) fn start_fin_wait_2_timer<S: EffectSink>(&mut self, cx: &Cx<'_, S>) {
        if self.orphan && self.state == State::FinWait2 {
            self.timers.start(Timer::Linger, cx.now + FIN_WAIT_2);
        }
    }

    /// Enters TIME-WAIT for two MSL.
    pub(super) fn enter_time_wait<S: EffectSink>(&mut self, cx: &Cx<'_, S>) {
        if self.state != State::TimeWait {
            self.enter(State::TimeWait);
        }
        self.timers.start(Timer::Linger, cx.now + MSL.times(2));
    }
}
