//! SEGMENT ARRIVES, in the order of RFC 9293 section 3.10.7; each function has the name of its
//! step.

use super::reassembly::{Refused, most_pages};
use super::receive_space::SHIFT_MAX;
use super::send_space::Due;
use super::{Cx, State, Tcb};
use crate::config::Limits;
use crate::ip::rate_limit::Rate;
use crate::log::effect::{CommonHeaders, ConnectionEvent, Effect, EffectSink, Transmit};
use crate::log::request::{ConnId, Flags, Flow, IpFields, Mac, Options, Segment, SynOptions};
use crate::seqnum::SeqNum;
use crate::time::Instant;

/// MSS of a peer that announces none (RFC 9293 section 3.7.1).
pub(super) const MSS_DEFAULT: u16 = 536;
/// MSS of an IPv6 peer that announces none.
const MSS_DEFAULT_V6: u16 = 1220;

/// The smallest MSS that is accepted from a peer: smaller ones only multiply frames.
const MSS_MIN: u16 = 64;

/// Bytes of the timestamp option in every segment (RFC 7323 appendix A).
const TIMESTAMP_LEN: u16 = 12;

/// A segment that passed the first step: some of its data, or at least its acknowledgment, counts.
pub(super) struct Acceptable<'s, 'o> {
    seg: &'s Segment<'o>,
    /// Where its data begins, relative to RCV.NXT.
    from: i64,
}

impl<'s, 'o> Acceptable<'s, 'o> {
    /// The segment.
    pub(super) const fn segment(&self) -> &'s Segment<'o> {
        self.seg
    }
}

/// CLOSED (RFC 9293 section 3.10.7.1): sends the reset that answers a segment without a connection,
/// if the RFC requires one. Returns whether it was sent. No reset is sent without room for a frame,
/// or above the rate limit; segments that we send to ourselves are exempt from the limit.
pub fn reset_for<S: EffectSink>(
    seg: &Segment<'_>,
    flow: Flow,
    mac: Mac,
    cx: &mut Cx<'_, S>,
) -> bool {
    let rate = Rate {
        total: cx.limits.resets_per_second,
        per_destination: cx.limits.resets_per_destination,
    };
    let peer = flow.remote.address;
    // No other host can send from these addresses: such packets are martian.
    let is_looped = peer == flow.local.address || peer.ip().is_loopback();
    let may_reset =
        may_reset(seg, cx) && (is_looped || cx.frames.resets.admits(cx.now, peer, rate));
    if may_reset {
        push_reset(seg, flow, mac, cx);
    }
    may_reset
}

/// Whether the RFC allows a reset in answer to the segment, and there is room for a frame.
fn may_reset<S: EffectSink>(seg: &Segment<'_>, cx: &Cx<'_, S>) -> bool {
    !seg.flags.has(Flags::RST) && cx.frames.room() > 0
}

/// Sends the reset that answers `seg`.
fn push_reset<S: EffectSink>(seg: &Segment<'_>, flow: Flow, mac: Mac, cx: &mut Cx<'_, S>) {
    let (seq, ack, flags) = if seg.flags.has(Flags::ACK) {
        (seg.ack, SeqNum(0), Flags::RST)
    } else {
        let controls = u32::from(seg.flags.has(Flags::SYN)) + u32::from(seg.flags.has(Flags::FIN));
        let end = seg.seq + seg.len + controls;
        (SeqNum(0), end, Flags::RST.with(Flags::ACK))
    };
    cx.out
        .push(bare(cx.frames.next, flow, mac, seq, ack, flags));
    cx.frames.next += 1;
    cx.frames.counts.resets_sent += 1;
}

/// Sends the reset of a connection whose state may be corrupted, from numbers that were saved
/// before. Returns whether there was room. No rate limit applies: the cause is a fault on our side.
pub fn reset_at<S: EffectSink>(seq: SeqNum, flow: Flow, mac: Mac, cx: &mut Cx<'_, S>) -> bool {
    let room = cx.frames.room() > 0;
    if room {
        let frame = cx.frames.next;
        cx.out
            .push(bare(frame, flow, mac, seq, SeqNum(0), Flags::RST));
        cx.frames.next += 1;
        cx.frames.counts.resets_sent += 1;
    }
    room
}

/// A frame without data, options and connection.
fn bare(frame: u64, flow: Flow, mac: Mac, seq: SeqNum, ack: SeqNum, flags: Flags) -> Effect {
    Effect::Transmit(Transmit {
        first_frame: frame,
        count: 1,
        payload_len: 0,
        payload_offset: 0,
        frame_len: u32::from(MSS_DEFAULT),
        seq,
        ack,
        mss: MSS_DEFAULT,
        wnd: 0,
        window_end: 0,
        window_limit: 0,
        flags,
        ect: false,
        common: CommonHeaders {
            conn: ConnId::NONE,
            version: 0,
            ip: IpFields::DEFAULT,
            mac,
            flow,
        },
        timestamps: None,
        syn: None,
        sack: None,
    })
}

impl Tcb {
    /// The slow path, for every segment that [`Tcb::try_fast_path`] does not take.
    #[inline(never)]
    pub(super) fn on_segment<S: EffectSink>(&mut self, seg: &Segment<'_>, cx: &mut Cx<'_, S>) {
        match self.state {
            State::Closed | State::Listen => {}
            State::SynSent => self.on_segment_in_syn_sent(seg, cx),
            _ => self.on_segment_otherwise(seg, cx),
        }
    }

    /// RFC 9293 section 3.10.7.3.
    fn on_segment_in_syn_sent<S: EffectSink>(&mut self, seg: &Segment<'_>, cx: &mut Cx<'_, S>) {
        // First, the ACK bit. Only our SYN can have been acknowledged.
        let acknowledges = seg.flags.has(Flags::ACK);
        if acknowledges && (seg.ack != self.snd.iss + 1 || self.snd.max == self.snd.iss) {
            // The reset ends the older connection that the peer still keeps, so our SYN is
            // repeated without waiting, if it was sent only once so far (a SYN is timed until
            // it is repeated).
            if self.refuse(seg, cx) && self.retransmit.timing {
                self.snd.nxt = self.snd.iss;
            }
            return;
        }
        // Second, the RST bit.
        if seg.flags.has(Flags::RST) {
            if acknowledges {
                cx.frames.counts.resets_received += 1;
                self.fail_with(ConnectionEvent::Refused, cx);
            }
            return;
        }
        // Third, security: none. Fourth, the SYN bit.
        if !seg.flags.has(Flags::SYN) {
            return;
        }
        self.synchronize(seg, cx.limits, cx.now);
        if !acknowledges {
            // Simultaneous open: our SYN is sent again, as a SYN-ACK.
            self.enter(State::SynReceived);
            self.snd.nxt = self.snd.iss;
            self.retransmit.retries = 0;
            self.keep_text_of_syn(seg, cx);
            return;
        }
        self.establish(seg, cx);
        // The window of a segment with SYN is never scaled (RFC 7323 section 2.2).
        self.snd.set_window(seg.seq, seg.ack, u32::from(seg.wnd));
        self.ack_now();
        // Sixth to eighth step, for the rest of the segment after the SYN.
        let behind = Segment {
            seq: seg.seq + 1,
            flags: seg.flags.without(Flags::SYN),
            ..*seg
        };
        let acceptable = Acceptable {
            seg: &behind,
            from: 0,
        };
        self.check_urg();
        let complete = self.process_payload(&acceptable, cx);
        self.check_fin(&acceptable, complete, cx);
    }

    /// Answers an unacceptable ACK of a handshake by a reset. Returns whether it did. Only the
    /// limit of this connection applies: answers that others provoke in the peer's name cannot
    /// use it up.
    fn refuse<S: EffectSink>(&mut self, seg: &Segment<'_>, cx: &mut Cx<'_, S>) -> bool {
        let refuses = may_reset(seg, cx) && self.challenges.allow_forged(cx.now);
        if refuses {
            push_reset(seg, self.common.flow, self.common.mac, cx);
        }
        refuses
    }

    /// Keeps data and FIN of a SYN that led from SYN-SENT to SYN-RECEIVED: the data is stored, but
    /// is not readable before ESTABLISHED, and the FIN counts then (RFC 9293 section 3.10.7.3).
    fn keep_text_of_syn<S: EffectSink>(&mut self, syn: &Segment<'_>, cx: &mut Cx<'_, S>) {
        let len = syn.len.min(self.rcv.room());
        if len > 0 {
            self.take_in_order(syn.run_offset, len, cx);
        }
        if syn.flags.has(Flags::FIN) && len == syn.len {
            self.rcv.fin_at = self.rcv.offset;
        }
    }

    /// Takes IRS and the options from the peer's SYN; of each option the smaller value applies.
    pub(super) fn synchronize(&mut self, syn: &Segment<'_>, limits: &Limits, now: Instant) {
        let options = match syn.options {
            Options::Syn(options) => *options,
            _ => SynOptions::default(),
        };
        self.rcv.begin(syn.seq, syn.timestamps, &options, now);
        self.agree_on_ecn(syn, limits);
        let most = super::mss_for(&self.common.flow, limits);
        let snd = &mut self.snd;
        snd.scaled = options.window_scale.is_some();
        snd.shift = options.window_scale.unwrap_or(0).min(SHIFT_MAX);
        let unsaid = match self.common.flow.remote.address.is_v4() {
            true => MSS_DEFAULT,
            false => MSS_DEFAULT_V6,
        };
        let announced = options.mss.unwrap_or(unsaid).max(MSS_MIN);
        let taken = if self.rcv.timestamps {
            TIMESTAMP_LEN
        } else {
            0
        };
        snd.mss = announced.min(most).saturating_sub(taken).max(1);
        snd.wnd = u32::from(syn.wnd);
        snd.wnd_max = snd.wnd;
        snd.wl1 = syn.seq;
        snd.wl2 = snd.iss;
        self.pmtu.set_negotiated(snd.mss);
        if self.pmtu.is_path_known() {
            self.fit_path(now);
        }
    }

    /// RFC 9293 section 3.10.7.4.
    fn on_segment_otherwise<S: EffectSink>(&mut self, seg: &Segment<'_>, cx: &mut Cx<'_, S>) {
        if self.state == State::SynReceived
            && seg.flags.has(Flags::SYN)
            && !seg.flags.has(Flags::RST)
            && seg.seq == self.rcv.irs
        {
            return self.repeated_syn(seg, cx);
        }
        let Some(acceptable) = self.check_sequence(seg, cx) else {
            return;
        };
        if !self.check_rst(&acceptable, cx) || !self.check_syn(&acceptable, cx) {
            return;
        }
        if !self.check_ack(&acceptable, cx) {
            return;
        }
        self.record_ce_mark(seg);
        self.check_urg();
        let complete = self.process_payload(&acceptable, cx);
        self.check_fin(&acceptable, complete, cx);
    }

    /// Handles a repetition of the SYN that led to SYN-RECEIVED. Without ACK, either our answer
    /// was lost or an attacker wants many answers. With ACK it is the peer's answer in a
    /// simultaneous open, and the rest of the segment counts.
    fn repeated_syn<S: EffectSink>(&mut self, seg: &Segment<'_>, cx: &mut Cx<'_, S>) {
        if !seg.flags.has(Flags::ACK) {
            if self.challenges.allow_forged(cx.now) {
                self.snd.repeat_syn();
            }
            return;
        }
        let first = seg.seq + 1;
        // The peer may omit data here that its first SYN carried.
        let known = seg.len.min(self.rcv.nxt.since(first));
        self.rcv.record_duplicate(first, first + known);
        let behind = Segment {
            seq: self.rcv.nxt,
            len: seg.len - known,
            run_offset: seg.run_offset.wrapping_add(known),
            flags: seg.flags.without(Flags::SYN),
            // The window of a segment with SYN is never scaled (RFC 7323 section 2.2).
            wnd: seg.wnd >> self.snd.shift,
            ..*seg
        };
        self.on_segment_otherwise(&behind, cx);
        if self.state != State::Closed {
            // The SYN in it is not new, so we acknowledge it (RFC 9293 section 3.10.7.4): our
            // answer to the first one may be lost.
            self.ack_now();
        }
    }

    /// First, the sequence number; before it the timestamp (RFC 7323 section 5.3).
    fn check_sequence<'s, 'o, S: EffectSink>(
        &mut self,
        seg: &'s Segment<'o>,
        cx: &mut Cx<'_, S>,
    ) -> Option<Acceptable<'s, 'o>> {
        let reset = seg.flags.has(Flags::RST);
        if self.rcv.timestamps && !reset {
            match seg.timestamps {
                // RFC 7323 section 3.2: once negotiated, every segment has the option.
                None => return None,
                Some((ts_val, _)) if self.rcv.is_outdated(ts_val, cx.now) => {
                    self.reject(seg, cx);
                    return None;
                }
                Some(_) => {}
            }
        }
        let from = i64::from(seg.seq.since(self.rcv.nxt) as i32);
        let controls = i64::from(seg.flags.any(Flags::SYN)) + i64::from(seg.flags.any(Flags::FIN));
        let seg_len = i64::from(seg.len) + controls;
        let wnd = i64::from(self.rcv.wnd());
        let acceptable = if seg_len == 0 {
            (0..=wnd).contains(&from)
        } else {
            // A closed window accepts no data, but the next segment's ACK, RST and FIN count.
            (from < wnd || (wnd == 0 && from == 0)) && from + seg_len > 0
        };
        if !acceptable {
            if !reset {
                if from < 0 {
                    self.on_old_segment(seg, from, cx);
                    self.rcv.record_duplicate(seg.seq, seg.seq + seg.len);
                }
                self.reject(seg, cx);
            }
            return None;
        }
        Some(Acceptable { seg, from })
    }

    /// Handles a segment without data from before RCV.NXT. A peer that has more in flight than
    /// our window seems to allow sends from the window's edge, and we may have received all of
    /// its data: an older window update may overtake a newer one, and the byte of a window
    /// probe is past every edge. If both sides did so, each would ignore the other forever, so
    /// the acknowledgment has to count.
    fn on_old_segment<S: EffectSink>(&mut self, seg: &Segment<'_>, from: i64, cx: &mut Cx<'_, S>) {
        let is_bare = seg.len == 0 && !seg.flags.any(Flags::SYN.with(Flags::FIN));
        // No window edge is farther back than this.
        let may_be_edge = from >= -i64::from(self.rcv.limit.max(1));
        let is_ack = seg.flags.has(Flags::ACK) && self.state.is_synchronized();
        let is_new = seg.ack.after(self.snd.una) && !seg.ack.after(self.snd.max);
        if is_bare && may_be_edge && is_ack && is_new {
            self.acknowledge(&Acceptable { seg, from }, cx);
        }
    }

    /// Answers an unacceptable segment with our current numbers. A segment with data is always
    /// answered, because its sender waits for that; two hosts could answer each other's
    /// segments without data forever.
    fn reject<S: EffectSink>(&mut self, seg: &Segment<'_>, cx: &mut Cx<'_, S>) {
        if self.state == State::Closed {
            return;
        }
        if self.state == State::TimeWait && seg.flags.has(Flags::FIN) {
            // The eighth step there: our acknowledgment of the FIN was lost.
            self.enter_time_wait(cx);
        }
        if seg.len > 0 || seg.flags.has(Flags::FIN) {
            return self.ack_now();
        }
        // A keepalive or window probe (RFC 1122 sections 4.2.2.17 and 4.2.3.6), or a segment
        // whose acknowledgment shows that its sender knows the connection.
        let is_question = seg.seq + 1 == self.rcv.nxt;
        let knows = seg.flags.has(Flags::ACK) && self.may_acknowledge(seg.ack);
        if !seg.flags.has(Flags::SYN) && (is_question || knows) {
            if self.challenges.allow_honest(cx.now) {
                self.ack_now();
            }
        } else {
            self.challenge(cx);
        }
    }

    /// Whether `ack` acknowledges neither unsent data nor data older than any window (RFC 5961
    /// section 5.2).
    pub(super) fn may_acknowledge(&self, ack: SeqNum) -> bool {
        let snd = &self.snd;
        !ack.after(snd.max) && !ack.before(snd.una - snd.wnd_max)
    }

    /// Sends a challenge acknowledgment (RFC 5961) in answer to a segment that anyone may have
    /// forged, within the limits of this connection, of its peer's address, and of all
    /// connections. Answers to segments that only the peer is likely to send have a limit per
    /// connection alone, which neither a flood nor many honest peers at one address can use up.
    pub(super) fn challenge<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        let rate = Rate {
            total: cx.limits.challenges_per_second,
            per_destination: cx.limits.challenges_per_destination,
        };
        let peer = self.common.flow.remote.address;
        if self.challenges.allow_forged(cx.now) && cx.frames.challenges.admits(cx.now, peer, rate) {
            cx.frames.counts.challenges_sent += 1;
            self.ack_now();
        }
    }

    /// Second, the RST bit (RFC 5961 section 3.2). Returns whether processing continues.
    fn check_rst<S: EffectSink>(
        &mut self,
        acceptable: &Acceptable<'_, '_>,
        cx: &mut Cx<'_, S>,
    ) -> bool {
        if !acceptable.seg.flags.has(Flags::RST) {
            return true;
        }
        if acceptable.from != 0 {
            // Only a reset within the window deserves an answer: one exactly at the right edge
            // is outside.
            if (0..i64::from(self.rcv.wnd())).contains(&acceptable.from) {
                self.challenge(cx);
            }
            return false;
        }
        cx.frames.counts.resets_received += 1;
        let unacknowledged = self.snd.data_from(self.snd.una) > 0;
        match self.state {
            // Back to LISTEN: the application never saw this connection.
            State::SynReceived if self.passive => self.enter(State::Closed),
            State::SynReceived => self.fail_with(ConnectionEvent::Refused, cx),
            // Written data may not have arrived, which the application should know (RFC 9293
            // section 3.9.1).
            State::Closing | State::LastAck if unacknowledged => {
                self.fail_with(ConnectionEvent::Reset, cx)
            }
            State::Closing | State::LastAck | State::TimeWait => self.enter(State::Closed),
            _ => self.fail_with(ConnectionEvent::Reset, cx),
        }
        false
    }

    /// Fourth, the SYN bit (RFC 5961 section 4.2). Returns whether processing continues.
    fn check_syn<S: EffectSink>(
        &mut self,
        acceptable: &Acceptable<'_, '_>,
        cx: &mut Cx<'_, S>,
    ) -> bool {
        if !acceptable.seg.flags.has(Flags::SYN) {
            return true;
        }
        if self.state == State::SynReceived && self.passive {
            self.enter(State::Closed);
        } else {
            self.challenge(cx);
        }
        false
    }

    /// Fifth, the ACK field. Returns whether processing continues.
    fn check_ack<S: EffectSink>(
        &mut self,
        acceptable: &Acceptable<'_, '_>,
        cx: &mut Cx<'_, S>,
    ) -> bool {
        let seg = acceptable.seg;
        if !seg.flags.has(Flags::ACK) {
            return false;
        }
        if self.state == State::SynReceived {
            if seg.ack != self.snd.iss + 1 || self.snd.max == self.snd.iss {
                self.refuse(seg, cx);
                return false;
            }
            self.establish(seg, cx);
            self.snd
                .set_window(seg.seq, seg.ack, u32::from(seg.wnd) << self.snd.shift);
        } else if !self.acknowledge(acceptable, cx) {
            return false;
        }
        if let (true, Some((ts_val, _))) = (self.rcv.timestamps, seg.timestamps) {
            self.rcv.record_timestamp(seg.seq, ts_val, cx.now);
        }
        self.state != State::Closed
    }

    /// Sixth, the URG bit: urgent data is data (RFC 6093 section 6).
    const fn check_urg(&self) {}

    /// Seventh, the data. Returns whether all of it was accepted, now or earlier.
    fn process_payload<S: EffectSink>(
        &mut self,
        acceptable: &Acceptable<'_, '_>,
        cx: &mut Cx<'_, S>,
    ) -> bool {
        let Acceptable { seg, from } = *acceptable;
        if !self.state.accepts_data() || seg.len == 0 {
            return true;
        }
        let end = from + i64::from(seg.len);
        let before_fin = self.rcv.fin_at.saturating_sub(self.rcv.offset);
        let room = i64::from(self.rcv.room()).min(before_fin.min(1 << 32) as i64);
        let (first, last) = (from.max(0), end.min(room));
        if self.orphan && end > 0 {
            // There is no reader, and the sender must know (RFC 9293 section 3.6.1).
            self.reset();
            return false;
        }
        if from < 0 {
            self.rcv.record_duplicate(seg.seq, seg.seq + seg.len);
            cx.frames.counts.duplicates += u64::from(seg.count);
        }
        if first >= last {
            self.ack_now();
            return end <= room;
        }
        let run_offset = seg.run_offset.wrapping_add((first - from) as u32);
        let len = (last - first) as u32;
        let cut = (first, last) != (from, end);
        if first == 0 && self.reassembly.is_empty() {
            self.take_in_order(run_offset, len, cx);
            self.ack_soon(seg.count, len, seg.followed, cx);
            if cut {
                self.ack_now();
            }
            return last == end;
        }
        // RFC 5681 section 4.2: data out of order, or data that fills a gap, is acknowledged at
        // once.
        self.ack_now();
        cx.frames.counts.out_of_order += u64::from(seg.count) * u64::from(first > 0);
        let place = (first as u64, last as u64);
        self.take_out_of_order(run_offset, place, from < 0, cx) && last == end
    }

    /// Accepts data `first..last`, relative to RCV.NXT, with one delivery for each gap that it
    /// fills. If some of it came twice, the first such part is reported (RFC 2883 section 4),
    /// unless the segment `is_partly_old`: then the caller reported the part before RCV.NXT.
    /// Returns false if the data was dropped because there was no room for another range or its
    /// pages.
    fn take_out_of_order<S: EffectSink>(
        &mut self,
        run_offset: u32,
        (first, last): (u64, u64),
        is_partly_old: bool,
        cx: &mut Cx<'_, S>,
    ) -> bool {
        let own = self.reassembly.pages();
        let others = cx.frames.gap_pages.saturating_sub(own);
        let most = most_pages(cx.limits, cx.frames.gap_pages, own, self.rcv.offset);
        let rcv = &mut self.rcv;
        let (start, end) = (rcv.offset + first, rcv.offset + last);
        let deliver = |from: u64, to: u64| {
            let at = run_offset.wrapping_add((from - start) as u32);
            rcv.deliver(self.common.conn, at, from, (to - from) as u32, cx);
        };
        let twice = self.reassembly.overlap(start, end);
        let (taken, reached) = if first > 0 {
            let taken = self.reassembly.insert(start, end, most, deliver);
            cx.frames.gaps_refused += u64::from(taken == Err(Refused::Pages));
            (taken.is_ok(), rcv.offset)
        } else {
            (true, self.reassembly.advance(start, end, deliver))
        };
        cx.frames.gap_pages = others + self.reassembly.pages();
        if let Some((from, to)) = twice
            && !is_partly_old
        {
            let seq = |at: u64| rcv.nxt + (at - rcv.offset) as u32;
            let (left, right) = (seq(from), seq(to));
            rcv.record_duplicate(left, right);
        }
        rcv.nxt += (reached - rcv.offset) as u32;
        rcv.offset = reached;
        rcv.update_sack(!self.reassembly.is_empty());
        taken
    }

    /// Eighth, the FIN bit; a FIN after a gap is stored. `complete` means that no data before
    /// it was cut off.
    fn check_fin<S: EffectSink>(
        &mut self,
        acceptable: &Acceptable<'_, '_>,
        complete: bool,
        cx: &mut Cx<'_, S>,
    ) {
        let seg = acceptable.seg;
        if self.state == State::TimeWait {
            if seg.flags.has(Flags::FIN) {
                self.ack_now();
                self.enter_time_wait(cx);
            }
            return;
        }
        if !self.state.accepts_data() {
            return;
        }
        if seg.flags.has(Flags::FIN) && complete && self.rcv.fin_at == u64::MAX {
            // The end of the data relative to the old RCV.NXT; its sequence number would do as
            // well.
            let end = i64::from((seg.seq + seg.len).since(self.rcv.nxt) as i32);
            let at = self.rcv.offset.saturating_add_signed(end);
            if end >= 0 && at >= self.reassembly.end() {
                self.rcv.fin_at = at;
            }
            self.ack_now();
        }
        if self.rcv.fin_at == self.rcv.offset {
            self.peer_finished(cx);
        }
    }

    /// RCV.NXT has reached the peer's FIN.
    fn peer_finished<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        let rcv = &mut self.rcv;
        rcv.nxt += 1;
        rcv.edge = rcv.edge.max(rcv.nxt);
        let end = rcv.offset;
        self.ack_now();
        self.notify(ConnectionEvent::PeerFinished { end }, cx);
        match self.state {
            State::Established => self.enter(State::CloseWait),
            State::FinWait1 => self.enter(State::Closing),
            State::FinWait2 => self.enter_time_wait(cx),
            state => debug_assert!(false, "text was taken in {state:?}"),
        }
    }

    /// Closes the connection with an RST.
    pub(super) fn reset(&mut self) {
        self.enter(State::Closed);
        self.snd.due = Due::Reset;
    }

    /// Whether `syn` may begin a new connection in place of this one in TIME-WAIT (RFC 9293
    /// section 3.6.1, RFC 6191 section 2), because it cannot be an old SYN.
    pub fn may_reopen(&self, syn: &Segment<'_>) -> bool {
        let controls = Flags::SYN
            .with(Flags::ACK)
            .with(Flags::RST)
            .with(Flags::FIN);
        if self.state != State::TimeWait || syn.flags.0 & controls.0 != Flags::SYN.0 {
            return false;
        }
        match syn.timestamps {
            // No old segment still on its way has timestamps.
            Some(_) if !self.rcv.timestamps => true,
            Some((ts_val, _)) if ts_val != self.rcv.ts_recent => {
                (ts_val.wrapping_sub(self.rcv.ts_recent) as i32) > 0
            }
            _ => syn.seq.after(self.rcv.nxt),
        }
    }
}
