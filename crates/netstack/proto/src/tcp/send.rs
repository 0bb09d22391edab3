//! Sending: how much may be sent now, and the frames for it (RFC 9293 section 3.8).
//!
//! Only [`Tcb::finish`] numbers frames of a connection. Lost data is sent before new data,
//! which is between `snd_nxt` and the end of the written data. SYN and FIN are bytes of that
//! sequence space too.

use super::delayed_ack::AckDue;
use super::fast_path::FastPath;
use super::receive_space::AckContents;
use super::recovery::TailProbe;
use super::retransmit::{Expiry, Timer, timestamp};
use super::send_space::{Allowed, Due};
use super::{Cx, State, Tcb};
use crate::config::Limits;
use crate::log::effect::{Effect, EffectSink, Transmit};
use crate::log::request::{Flags, Sack, SynOptions};
use crate::seqnum::SeqNum;
use crate::time::Instant;

/// The outcome of a request for a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Finish(u8);

impl Finish {
    #[inline(always)]
    fn new(blocked: bool, waits_for_sent: bool) -> Self {
        Finish(u8::from(blocked) | u8::from(waits_for_sent) << 1)
    }

    /// More frames could be sent, but there are no numbers left (credit or quantum): call again
    /// when there is credit.
    #[inline]
    pub const fn is_blocked(self) -> bool {
        self.0 & 1 != 0
    }

    /// Acknowledged bytes wait for frames to be sent: call again when `sent` has advanced.
    #[inline]
    pub const fn waits_for_sent(self) -> bool {
        self.0 & 2 != 0
    }
}

/// The outcome of retransmitting lost data.
enum Resent {
    /// All of it was sent, and this many further frames may be.
    All(u32),
    /// The windows do not allow more.
    WindowClosed,
    /// There is no room for more.
    NoRoom,
}

/// Frames to be sent, without the values that every segment of the connection shares.
pub(super) struct Outgoing {
    seq: SeqNum,
    flags: Flags,
    count: u32,
    payload_len: u32,
    payload_offset: u64,
    frame_len: u32,
    ect: bool,
    syn: Option<SynOptions>,
}
impl Outgoing {
    /// One frame without data.
    pub(super) const fn bare(seq: SeqNum, flags: Flags) -> Self {
        Outgoing {
            seq,
            flags,
            count: 1,
            payload_len: 0,
            payload_offset: 0,
            frame_len: 0,
            ect: false,
            syn: None,
        }
    }
}

impl Tcb {
    /// Finishes a request for this connection: completes its delivery, releases acknowledged
    /// bytes, sends what the windows allow, and acknowledges what is due.
    #[inline(always)]
    pub fn finish<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) -> Finish {
        if cx.pending_delivery.len != 0 {
            let rcv = &mut self.rcv;
            cx.push_pending_delivery(self.common.conn, rcv.deliveries, rcv.offset, true);
            rcv.deliveries += 1;
        }
        if self.fast_path != FastPath::Quiet {
            return self.finish_otherwise(&mut cx.outside_fast_path());
        }
        debug_assert!(self.has_sent_all());
        Finish::new(self.is_ack_due() && !self.send_ack(cx), false)
    }

    /// [`Tcb::finish`] if there may be more to do than to acknowledge: releases and sends first.
    #[inline(never)]
    fn finish_otherwise<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) -> Finish {
        let (mut blocked, mut waits_for_sent) = (false, false);
        if self.snd.una_offset != self.snd.released {
            waits_for_sent = self.release(cx);
        }
        if self.snd.nxt != self.snd.end || self.has_control_to_send() {
            blocked = self.send(cx);
        }
        if self.is_ack_due() && !blocked {
            blocked = !self.send_ack(cx);
        }
        if self.fast_path == FastPath::Off {
            self.count_state(&mut cx.frames.counts);
        }
        self.update_fast_path(self.has_sent_all());
        Finish::new(blocked, waits_for_sent)
    }

    /// Whether there is nothing to send, and nothing to release to the application.
    #[inline(always)]
    pub(super) fn has_sent_all(&self) -> bool {
        let snd = &self.snd;
        snd.nxt == snd.end && snd.una_offset == snd.released && !self.has_control_to_send()
    }

    /// Whether something other than new data has to be sent.
    #[inline(always)]
    fn has_control_to_send(&self) -> bool {
        self.snd.due != Due::Nothing
            || (self.fast_path == FastPath::Off && self.scoreboard.lost() > 0)
    }

    /// Releases acknowledged bytes once no frame that is still to be built reads them, which is
    /// when all frames numbered before the acknowledgment are sent. Returns whether some bytes
    /// have to wait.
    fn release<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) -> bool {
        let snd = &mut self.snd;
        if self.state == State::Closed {
            // The whole stream is freed with the connection's table entry.
            return false;
        }
        let mut upto = snd.released;
        if snd.release_upto > upto && cx.frames.sent >= snd.release_frame {
            upto = snd.release_upto;
        }
        if snd.release_upto <= upto && snd.una_offset > upto {
            // More bytes were acknowledged since; `frames_end` bounds their frames.
            if cx.frames.sent >= snd.frames_end {
                upto = snd.una_offset;
            } else {
                snd.release_upto = snd.una_offset;
                snd.release_frame = snd.frames_end;
            }
        }
        if upto > snd.released {
            snd.released = upto;
            cx.out.push(Effect::Release {
                conn: self.common.conn,
                upto,
            });
        }
        snd.una_offset != snd.released
    }

    /// Sends what the state allows. Returns whether more could be sent if there were room.
    #[inline(never)]
    fn send<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) -> bool {
        let room = cx.frames.limit.saturating_sub(cx.frames.next);
        let room = room.min(u64::from(cx.limits.quantum)) as u32;
        match self.state {
            State::Closed => self.send_reset(room, cx),
            State::SynSent | State::SynReceived => self.send_syn(room, cx),
            _ => {
                let is_blocked = if self.congestion.is_paced() {
                    self.send_paced(room, cx)
                } else {
                    self.send_payload(room, cx)
                };
                if self.tuning.notsent_lowat != 0 {
                    self.tell_numbered(cx);
                }
                is_blocked
            }
        }
    }

    /// Reports to the socket how many of the written bytes have frames.
    #[cold]
    pub(super) fn tell_numbered<S: EffectSink>(&self, cx: &mut Cx<'_, S>) {
        let snd = &self.snd;
        cx.out.push(Effect::Numbered {
            conn: self.common.conn,
            upto: snd.una_offset + u64::from(snd.nxt.since(snd.una)),
        });
    }

    /// Numbers the frames of `what` and emits the effect. The frames carry the current receive
    /// state, so no acknowledgment is due afterwards, unless SACK blocks take a frame of their own.
    #[inline(always)]
    fn emit<S: EffectSink>(&mut self, what: Outgoing, cx: &mut Cx<'_, S>) {
        if self.rcv.ack_contents == AckContents(0) {
            self.number(what, AckDue::None, None, cx);
        } else {
            self.emit_with_options(what, &mut cx.outside_fast_path());
        }
    }

    /// [`Tcb::emit`] when the acknowledgment carries more than numbers.
    #[inline(never)]
    fn emit_with_options<S: EffectSink>(&mut self, mut what: Outgoing, cx: &mut Cx<'_, S>) {
        let (mut sack, mut owed) = (None, AckDue::None);
        if what.flags.0 & (Flags::ACK.0 | Flags::SYN.0 | Flags::RST.0) == Flags::ACK.0 {
            let contents = self.rcv.ack_contents;
            if contents.has(AckContents::CONGESTION) {
                what.flags = what.flags.with(Flags::ECE);
            }
            if what.payload_len == 0 {
                sack = self.take_sack();
            } else if contents.has(AckContents::BLOCKS) && self.is_ack_due() {
                // The blocks would take room from the payload: a separate segment carries them.
                owed = AckDue::Now;
            }
        }
        self.number(what, owed, sack, cx);
    }

    /// Numbers the frames of `what`; `owed` is the acknowledgment that is still due afterwards.
    #[inline(always)]
    fn number<S: EffectSink>(
        &mut self,
        what: Outgoing,
        owed: AckDue,
        sack: Option<Sack>,
        cx: &mut Cx<'_, S>,
    ) {
        let ack = if what.flags.has(Flags::ACK) {
            self.ack_is_numbered(owed);
            self.rcv.last_ack_sent = self.rcv.nxt;
            self.rcv.nxt
        } else {
            SeqNum(0)
        };
        let wnd = self.rcv.advertise(cx.limits, what.flags.has(Flags::SYN));
        let first_frame = cx.frames.next;
        cx.frames.next += u64::from(what.count);
        if what.payload_len > 0 {
            self.snd.frames_end = cx.frames.next;
        }
        cx.out.make_room();
        let transmit = self.transmit(what, first_frame, (ack, wnd), sack, cx.now);
        cx.out.push(Effect::Transmit(transmit));
    }

    /// The transmit effect of `what`, with this acknowledgment, window and receive state.
    #[inline(always)]
    pub(super) fn transmit(
        &self,
        what: Outgoing,
        first_frame: u64,
        (ack, (wnd, window_end)): (SeqNum, (u16, u64)),
        sack: Option<Sack>,
        now: Instant,
    ) -> Transmit {
        let rcv = &self.rcv;
        Transmit {
            first_frame,
            count: what.count,
            payload_len: what.payload_len,
            payload_offset: what.payload_offset,
            frame_len: what.frame_len,
            seq: what.seq,
            ack,
            mss: self.snd.mss,
            wnd,
            window_end,
            window_limit: rcv.limit,
            flags: what.flags,
            ect: what.ect,
            common: self.common,
            timestamps: if rcv.timestamps {
                Some((timestamp(now).wrapping_add(rcv.ts_offset), rcv.ts_recent))
            } else {
                None
            },
            syn: what.syn,
            sack,
        }
    }

    /// Sends a separate acknowledgment. Returns false if there is no room for it.
    #[inline(always)]
    fn send_ack<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) -> bool {
        if cx.frames.next >= cx.frames.limit {
            return false;
        }
        if self.rcv.ack_contents == AckContents(0) {
            let ack = Outgoing::bare(self.snd.control_seq(), Flags::ACK);
            self.number(ack, AckDue::None, None, cx);
        } else {
            self.send_ack_with_options(&mut cx.outside_fast_path());
        }
        true
    }

    #[inline(never)]
    fn send_ack_with_options<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        self.emit_with_options(Outgoing::bare(self.snd.control_seq(), Flags::ACK), cx);
    }

    /// Sends the reset that ends an aborted connection (RFC 9293 section 3.10.5). It has ACK,
    /// as has every segment of a connection once both SYNs are known (section 3.1).
    fn send_reset<S: EffectSink>(&mut self, room: u32, cx: &mut Cx<'_, S>) -> bool {
        if self.snd.due != Due::Reset {
            return false;
        }
        if room == 0 {
            return true;
        }
        let flags = Flags::RST.with(Flags::ACK);
        self.snd.due = Due::Nothing;
        cx.frames.counts.resets_sent += 1;
        self.emit(Outgoing::bare(self.snd.control_seq(), flags), cx);
        false
    }

    /// Sends a SYN, or a SYN-ACK with the options that the peer offered (RFC 9293 section 3.5).
    fn send_syn<S: EffectSink>(&mut self, room: u32, cx: &mut Cx<'_, S>) -> bool {
        if self.snd.nxt != self.snd.iss {
            return false;
        }
        if room == 0 {
            return true;
        }
        let answers = self.state != State::SynSent;
        let flags = if answers {
            Flags::SYN.with(Flags::ACK)
        } else {
            Flags::SYN
        };
        let flags = flags.with(self.ecn_setup(answers, cx.limits));
        let options = SynOptions {
            mss: Some(super::announced_mss(
                &self.common.flow,
                cx.limits,
                cx.frames.link_mtu_v6,
            )),
            window_scale: self.snd.scaled.then_some(self.rcv.shift),
            sack_permitted: self.rcv.sack_permitted,
        };
        let snd = &mut self.snd;
        if snd.max == snd.iss {
            self.retransmit.on_sent(snd.iss, snd.iss, cx.now);
        } else {
            self.retransmit.on_resent();
        }
        snd.nxt = snd.iss + 1;
        snd.max = snd.nxt;
        self.timers
            .start(Timer::Retransmit, cx.now + self.retransmit.rto);
        let syn = Outgoing {
            syn: Some(options),
            ..Outgoing::bare(self.snd.iss, flags)
        };
        self.emit(syn, cx);
        false
    }

    /// Sends data, FIN, retransmissions, and probes.
    pub(super) fn send_payload<S: EffectSink>(
        &mut self,
        mut room: u32,
        cx: &mut Cx<'_, S>,
    ) -> bool {
        match self.snd.due {
            Due::Nothing | Due::Reset => {}
            _ if room == 0 => return true,
            Due::Resend => {
                self.resend_first(cx);
                room -= 1;
            }
            Due::Probe => {
                self.probe(cx);
                room -= 1;
            }
            Due::TailProbe => {
                self.probe_tail(cx);
                room -= 1;
            }
            Due::Keepalive => {
                self.send_keepalive(cx);
                room -= 1;
            }
        }
        if cx.now >= self.pmtu.raise_at {
            self.probe_larger();
        }
        let mss = u32::from(self.snd.mss);
        let frame_len = match cx.limits.frame_payload {
            most if most > mss => most - most % mss,
            _ => mss,
        };
        if self.scoreboard.lost() > 0 {
            match self.send_lost(room, frame_len, cx) {
                Resent::All(left) => room = left,
                Resent::WindowClosed => return false,
                Resent::NoRoom => return true,
            }
        }
        let snd = &self.snd;
        if snd.nxt == snd.end {
            return false;
        }
        if snd.una == snd.max && cx.now.since(snd.sent_at) > self.retransmit.rto {
            self.congestion.restart(mss);
        }
        let pipe = self.pipe();
        let Allowed { mut bytes, fin } = self.snd.allowed(self.congestion.allowed(mss), pipe);
        if bytes == 0 && !fin {
            bytes = self.held_in_vain(cx.limits);
            if bytes == 0 {
                self.wait_for_window(cx);
                return false;
            }
        }
        let (mut bytes, mut fin) = (bytes, fin);
        if self.congestion.is_paced() {
            let allowance = self.allowance(cx.now);
            if allowance < mss {
                // `send_paced` starts a timer.
                return false;
            }
            if bytes > allowance {
                (bytes, fin) = (allowance - allowance % mss, false);
            }
        }
        if room == 0 {
            return true;
        }
        if self.snd.cwr && bytes > mss {
            // CWR belongs in one segment, which no device divides.
            self.send_frames(1, mss, mss, false, cx);
            return self.send_payload(room - 1, cx);
        }
        let frames = bytes.div_ceil(frame_len).max(1);
        if frames > room {
            self.send_frames(room, room * frame_len, frame_len, false, cx);
            true
        } else {
            self.send_frames(frames, bytes, frame_len, fin, cx);
            false
        }
    }

    /// Sends `count` frames with the next `bytes`, and FIN in the last one.
    fn send_frames<S: EffectSink>(
        &mut self,
        count: u32,
        bytes: u32,
        frame_len: u32,
        fin: bool,
        cx: &mut Cx<'_, S>,
    ) {
        let seq = self.snd.nxt;
        let again = seq != self.snd.max;
        self.transmit_payload(seq, count, bytes, frame_len, fin, !again, cx);
        let snd = &mut self.snd;
        let len = bytes + u32::from(fin);
        snd.nxt = seq + len;
        self.scoreboard.sent(snd.una, seq, snd.nxt, cx.now);
        self.congestion.on_sent(len);
        if self.congestion.is_paced() {
            self.count_paced(len, cx.now);
        }
        let snd = &mut self.snd;
        if !bytes.is_multiple_of(u32::from(snd.mss)) {
            snd.small = snd.nxt;
        }
        snd.max = snd.max.max(snd.nxt);
        snd.sent_at = cx.now;
        if !again {
            self.retransmit.on_sent(seq, snd.una, cx.now);
        }
        self.retransmit.probes = 0;
        self.timers.stop(Timer::Persist);
        let expects_end = self.retransmit.expiry == Expiry::TailProbe;
        if !self.timers.runs(Timer::Retransmit) || expects_end {
            self.arm(self.is_clean(), cx.now);
        }
    }

    /// Retransmits lost data in order, as far as the windows allow.
    #[inline(never)]
    fn send_lost<S: EffectSink>(
        &mut self,
        mut room: u32,
        frame_len: u32,
        cx: &mut Cx<'_, S>,
    ) -> Resent {
        let mss = u32::from(self.snd.mss);
        while let Some((begin, end)) = self.scoreboard.first_lost() {
            let snd = &self.snd;
            let pipe = self.pipe();
            let window = snd.wnd.saturating_sub(begin.since(snd.una));
            let usable = window.min(self.congestion.allowed(mss).saturating_sub(pipe));
            let allowance = self.allowance(cx.now);
            if allowance < mss {
                return Resent::WindowClosed;
            }
            let usable = usable.min(allowance);
            let mut bytes = end.since(begin);
            if bytes > usable {
                bytes = usable - usable % mss;
                if bytes == 0 && pipe == 0 {
                    bytes = usable;
                }
            }
            if bytes == 0 {
                self.wait_for_window(cx);
                return Resent::WindowClosed;
            }
            if room == 0 {
                return Resent::NoRoom;
            }
            let bytes = bytes.min(room.saturating_mul(frame_len));
            room -= bytes.div_ceil(frame_len);
            self.resend_range(begin, bytes, frame_len, cx);
        }
        Resent::All(room)
    }

    /// Retransmits `len` bytes of sequence space.
    fn resend_range<S: EffectSink>(
        &mut self,
        begin: SeqNum,
        len: u32,
        frame_len: u32,
        cx: &mut Cx<'_, S>,
    ) {
        let snd = &self.snd;
        let bytes = snd.data_from(begin).min(len);
        let fin = bytes < len;
        let count = bytes.div_ceil(frame_len).max(1);
        self.retransmit.on_resent();
        self.retransmit.resent += u64::from(bytes);
        let segments = bytes.div_ceil(u32::from(snd.mss).max(1)).max(1);
        cx.frames.counts.retransmitted += u64::from(segments);
        if !self.undo.is_for_timeout(begin) {
            cx.frames.counts.fast_retransmitted += u64::from(segments);
        }
        self.transmit_payload(begin, count, bytes, frame_len, fin, false, cx);
        self.scoreboard.on_retransmitted(begin, begin + len, cx.now);
        self.undo.resent(len, timestamp(cx.now));
        self.congestion.on_sent(len);
        if self.congestion.is_paced() {
            self.count_paced(len, cx.now);
        }
        self.snd.sent_at = cx.now;
        self.retransmit.probes = 0;
        self.timers.stop(Timer::Persist);
        if !self.timers.runs(Timer::Retransmit) {
            self.arm(false, cx.now);
        }
    }

    /// Emits the frames. The last written byte is pushed (RFC 9293 section 3.9.1). Only `new`
    /// data may be ECT (RFC 3168 sections 6.1.5 and 6.1.6) and carry CWR.
    #[expect(clippy::too_many_arguments, reason = "all of them say what leaves")]
    fn transmit_payload<S: EffectSink>(
        &mut self,
        seq: SeqNum,
        count: u32,
        bytes: u32,
        frame_len: u32,
        fin: bool,
        new: bool,
        cx: &mut Cx<'_, S>,
    ) {
        let mut flags = Flags::ACK;
        let ect = new && self.snd.ecn && bytes > 0;
        if ect && self.snd.cwr {
            self.snd.cwr = false;
            flags = flags.with(Flags::CWR);
        }
        if bytes > 0 && bytes == self.snd.data_from(seq) {
            flags = flags.with(Flags::PSH);
        }
        if fin {
            flags = flags.with(Flags::FIN);
        }
        let payload = Outgoing {
            seq,
            flags,
            count,
            payload_len: bytes,
            payload_offset: self.snd.una_offset + u64::from(seq.since(self.snd.una)),
            frame_len,
            ect,
            syn: None,
        };
        self.emit(payload, cx);
    }

    /// Retransmits the first lost segment, regardless of the windows (RFC 6582 section 3.2).
    fn resend_first<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        self.snd.due = Due::Nothing;
        let mss = u32::from(self.snd.mss);
        if let Some((begin, end)) = self.scoreboard.first_lost() {
            self.resend_range(begin, end.since(begin).min(mss), mss, cx);
        }
    }

    /// Bytes that a cork holds in vain, since there is no room to write more after them.
    #[cold]
    fn held_in_vain(&self, limits: &Limits) -> u32 {
        let snd = &self.snd;
        let left = snd.data_from(snd.nxt);
        let most = match self.tuning.notsent_lowat {
            0 => limits.send_buffer,
            bound => bound.min(limits.send_buffer),
        };
        let is_alone = snd.nxt == snd.una && left < u32::from(snd.mss) && left <= snd.wnd;
        match is_alone && left >= most {
            true => left,
            false => 0,
        }
    }

    /// Sends a segment of new data if there is any, regardless of the congestion window;
    /// otherwise repeats the last one (RFC 8985 section 7.3).
    fn probe_tail<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        self.snd.due = Due::Nothing;
        if !self.may_probe() {
            return;
        }
        let snd = &self.snd;
        self.scoreboard.acked(snd.una, |_| ());
        let mss = u32::from(snd.mss);
        let Allowed { bytes, fin } = snd.allowed(u32::MAX, self.pipe());
        let new = bytes.min(mss);
        if new > 0 || fin {
            self.send_frames(1, new, mss, fin && new == bytes, cx);
            self.probed(TailProbe::New, self.snd.nxt);
        } else if let Some(last) = self.scoreboard.last().copied() {
            let len = last.len() - (last.len() - 1) / mss * mss;
            self.resend_range(last.end - len, len, mss, cx);
            self.probed(TailProbe::Retransmit, last.end);
        }
        self.arm(false, cx.now);
    }

    /// Sends as much as the window allows, however little, or one byte beyond it. That byte
    /// does not count as sent, but may be acknowledged.
    fn probe<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        let snd = &mut self.snd;
        snd.due = Due::Nothing;
        let (nxt, mss) = (snd.nxt, u32::from(snd.mss));
        if nxt != snd.una {
            return self.probe_with_lost(cx);
        }
        let snd = &mut self.snd;
        if nxt == snd.end {
            return;
        }
        let left = snd.data_from(nxt);
        if snd.wnd > 0 && left > 0 {
            let bytes = left.min(snd.wnd).min(mss);
            let fin = snd.fin && bytes == left && snd.wnd > left;
            return self.send_frames(1, bytes, mss, fin, cx);
        }
        let bytes = left.min(1);
        let fin = bytes == 0;
        cx.frames.counts.window_probes += 1;
        snd.max = snd.max.max(nxt + 1);
        self.retransmit.on_resent();
        self.transmit_payload(nxt, 1, bytes, mss, fin, false, cx);
    }

    /// [`Tcb::probe`] with lost data, which was sent before the window closed.
    fn probe_with_lost<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        if self.pipe() > 0 {
            return;
        }
        self.mark_all_lost();
        let Some((begin, end)) = self.scoreboard.first_lost() else {
            return;
        };
        let snd = &self.snd;
        let window = snd.wnd.saturating_sub(begin.since(snd.una));
        let len = end.since(begin).min(window).min(u32::from(snd.mss));
        if len > 0 {
            return self.resend_range(begin, len, u32::from(snd.mss), cx);
        }
        let bytes = snd.data_from(begin).min(1);
        cx.frames.counts.window_probes += 1;
        self.retransmit.on_resent();
        self.transmit_payload(begin, 1, bytes, 1, bytes == 0, false, cx);
    }

    /// Sends a segment without data from before the peer's window, to which the peer replies
    /// with its current numbers.
    fn send_keepalive<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        self.snd.due = Due::Nothing;
        cx.frames.counts.keepalive_probes += 1;
        self.emit(Outgoing::bare(self.snd.una - 1, Flags::ACK), cx);
    }

    /// Nothing may be sent. If nothing is in flight either, no acknowledgment will change that,
    /// so window probing starts.
    fn wait_for_window<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        if self.pipe() == 0 && !self.timers.runs(Timer::Persist) {
            self.close_fast_path();
            self.timers.stop(Timer::Retransmit);
            self.timers
                .start(Timer::Persist, cx.now + self.retransmit.probe_pause());
        }
    }
}
