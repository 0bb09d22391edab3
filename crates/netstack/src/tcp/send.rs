//! What may leave now, and the frames that carry it (RFC 9293 section 3.8).
//!
//! [`Tcb::finish`] is the only place where frames of a connection get their numbers. What is lost leaves before what
//! was never sent, which stands between `snd_nxt` and the end of what was written. SYN and FIN are octets of that
//! sequence space too.

use super::predict::Road;
use super::recovery::Tail;
use super::retransmit::{Expiry, Timer, timestamp};
use super::snd::{Allowed, Due};
use super::window::{AckDue, Tells};
use super::{Cx, State, Tcb};
use crate::digest::{Flags, Sack, SynOptions};
use crate::effect::{Effect, EffectSink, Transmit};
use crate::seqnum::SeqNum;
use crate::time::Instant;

/// How a request ended for a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Finish {
    /// More frames could leave, but numbers ran out (credit or quantum): call again when there is credit.
    pub blocked: bool,
    /// Acknowledged octets wait for frames to be sent: call again when `sent` has moved.
    pub waits_for_sent: bool,
}

/// What became of what was lost.
enum Lost {
    /// All of it has left, and so many frames more may.
    Left(u32),
    /// The windows do not let more leave.
    Waits,
    /// There is no room for more.
    Blocked,
}

/// Frames that are to leave, but for what every segment of the connection says.
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
    /// One frame without text.
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
    /// Ends a request for this connection: completes its delivery, gives acknowledged octets back, lets
    /// leave what may, acknowledges what must be.
    #[inline(always)]
    pub fn finish<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) -> Finish {
        if cx.held.len != 0 {
            let rcv = &mut self.rcv;
            cx.push_held(self.conn, rcv.deliveries, rcv.offset, true);
            rcv.deliveries += 1;
        }
        let mut finish = Finish::default();
        if !self.has_sent_all() {
            finish = self.finish_sending(&mut cx.aside());
        } else if self.rcv.ack == AckDue::Now {
            finish.blocked = !self.send_ack(cx);
        }
        self.look_for_road();
        finish
    }

    /// Whether there is nothing to send, and nothing to give back to the application.
    #[inline(always)]
    pub(super) fn has_sent_all(&self) -> bool {
        let snd = &self.snd;
        snd.nxt == snd.end && snd.una_offset == snd.released && !self.owes_more()
    }

    /// Whether something leaves besides new text.
    #[inline(always)]
    fn owes_more(&self) -> bool {
        self.snd.due != Due::Nothing || (self.road == Road::Long && self.flight.lost() > 0)
    }

    /// The rest of [`Tcb::finish`], if there is any.
    #[inline(never)]
    fn finish_sending<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) -> Finish {
        let mut finish = Finish::default();
        if self.snd.una_offset != self.snd.released {
            finish.waits_for_sent = self.release(cx);
        }
        if self.snd.nxt != self.snd.end || self.owes_more() {
            finish.blocked = self.send(cx);
        }
        if self.rcv.ack == AckDue::Now && !finish.blocked {
            finish.blocked = !self.send_ack(cx);
        }
        finish
    }

    /// Gives acknowledged octets back when no frame that is still to be built reads them: when all that
    /// were numbered before the acknowledgment are sent. Returns whether some must wait.
    fn release<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) -> bool {
        let snd = &mut self.snd;
        if self.state == State::Closed {
            // The whole stream goes when the connection's place does.
            return false;
        }
        let mut upto = snd.released;
        if snd.release_upto > upto && cx.frames.sent >= snd.release_frame {
            upto = snd.release_upto;
        }
        if snd.release_upto <= upto && snd.una_offset > upto {
            // What was acknowledged behind a pair that waited: its frames are those known by now.
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
                conn: self.conn,
                upto,
            });
        }
        snd.una_offset != snd.released
    }

    /// Lets leave what the state allows. Returns whether more would if there were room.
    #[inline(never)]
    fn send<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) -> bool {
        let room = cx.frames.limit.saturating_sub(cx.frames.next);
        let room = room.min(u64::from(cx.limits.quantum)) as u32;
        match self.state {
            State::Closed => self.send_reset(room, cx),
            State::SynSent | State::SynReceived => self.send_syn(room, cx),
            _ => self.send_text(room, cx),
        }
    }

    /// Numbers the frames of `what` and asks for them. What they say of our receive side is fixed here;
    /// whatever acknowledgment was owed is paid.
    #[inline(always)]
    fn emit<S: EffectSink>(&mut self, what: Outgoing, cx: &mut Cx<'_, S>) {
        if self.rcv.tells == Tells(0) {
            self.number(what, AckDue::None, None, cx);
        } else {
            self.emit_and_tell(what, &mut cx.aside());
        }
    }

    /// [`Tcb::emit`] when there is more to tell than numbers.
    #[inline(never)]
    fn emit_and_tell<S: EffectSink>(&mut self, mut what: Outgoing, cx: &mut Cx<'_, S>) {
        let (mut sack, mut owed) = (None, AckDue::None);
        if what.flags.0 & (Flags::ACK.0 | Flags::SYN.0 | Flags::RST.0) == Flags::ACK.0 {
            let tells = self.rcv.tells;
            if tells.has(Tells::CONGESTION) {
                what.flags = what.flags.with(Flags::ECE);
            }
            if what.payload_len == 0 {
                sack = self.take_sack();
            } else if tells.has(Tells::BLOCKS) && self.rcv.ack == AckDue::Now {
                // The blocks would take room that text was cut for: a segment of their own carries them.
                owed = AckDue::Now;
            }
        }
        self.number(what, owed, sack, cx);
    }

    /// The frames of `what` get their numbers; `owed` is what is left to be acknowledged by itself.
    #[inline(always)]
    fn number<S: EffectSink>(
        &mut self,
        what: Outgoing,
        owed: AckDue,
        sack: Option<Sack>,
        cx: &mut Cx<'_, S>,
    ) {
        let rcv = &mut self.rcv;
        let ack = if what.flags.has(Flags::ACK) {
            rcv.ack = owed;
            rcv.last_ack_sent = rcv.nxt;
            self.timers.stop(Timer::DelayedAck);
            rcv.nxt
        } else {
            SeqNum(0)
        };
        let wnd = rcv.advertise(cx.limits, what.flags.has(Flags::SYN));
        let first_frame = cx.frames.next;
        cx.frames.next += u64::from(what.count);
        if what.payload_len > 0 {
            self.snd.frames_end = cx.frames.next;
        }
        let transmit = self.transmit(what, first_frame, (ack, wnd), sack, cx.now);
        cx.out.push(Effect::Transmit(transmit));
    }

    /// Frames that say `what`, acknowledge and let the peer send what `told` says, and tell of our receive side as it
    /// stands.
    #[inline(always)]
    pub(super) fn transmit(
        &self,
        what: Outgoing,
        first_frame: u64,
        (ack, wnd): (SeqNum, u16),
        sack: Option<Sack>,
        now: Instant,
    ) -> Transmit {
        let rcv = &self.rcv;
        Transmit {
            first_frame,
            count: what.count,
            payload_len: what.payload_len,
            payload_offset: what.payload_offset,
            conn: self.conn,
            frame_len: what.frame_len,
            seq: what.seq,
            ack,
            mss: self.snd.mss,
            wnd,
            window_end: rcv.offset + u64::from(rcv.wnd()),
            window_limit: rcv.limit,
            heading: self.heading,
            flags: what.flags,
            ect: what.ect,
            ttl: self.snd.ttl,
            tos: self.snd.tos,
            mac: self.mac,
            flow: self.flow,
            timestamps: if rcv.timestamps {
                Some((timestamp(now).wrapping_add(rcv.ts_offset), rcv.ts_recent))
            } else {
                None
            },
            syn: what.syn,
            sack,
        }
    }

    /// An acknowledgment by itself. Returns false if there is no room for it.
    #[inline(always)]
    fn send_ack<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) -> bool {
        if cx.frames.next >= cx.frames.limit {
            return false;
        }
        self.emit(Outgoing::bare(self.snd.control_seq(), Flags::ACK), cx);
        true
    }

    /// The reset that ends an aborted connection (RFC 9293 section 3.10.5). It has ACK, as every segment
    /// of a connection once both SYNs are known (section 3.1).
    fn send_reset<S: EffectSink>(&mut self, room: u32, cx: &mut Cx<'_, S>) -> bool {
        if self.snd.due != Due::Reset {
            return false;
        }
        if room == 0 {
            return true;
        }
        let flags = Flags::RST.with(Flags::ACK);
        self.snd.due = Due::Nothing;
        self.emit(Outgoing::bare(self.snd.control_seq(), flags), cx);
        false
    }

    /// SYN or SYN-ACK (RFC 9293 section 3.5), with the options of the other side's in the latter.
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
            mss: Some(cx.limits.mss()),
            window_scale: self.snd.scaled.then_some(self.rcv.shift),
            sack_permitted: self.rcv.sack_permitted,
        };
        let snd = &mut self.snd;
        if snd.max == snd.iss {
            self.retransmit.on_sent(snd.iss, cx.now);
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

    /// Text, FIN, what is sent again, and probes.
    fn send_text<S: EffectSink>(&mut self, mut room: u32, cx: &mut Cx<'_, S>) -> bool {
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
        if cx.now >= self.path.raise_at {
            self.try_larger();
        }
        let mss = u32::from(self.snd.mss);
        let frame_len = match cx.limits.frame_payload {
            most if most > mss => most - most % mss,
            _ => mss,
        };
        if self.flight.lost() > 0 {
            match self.send_lost(room, frame_len, cx) {
                Lost::Left(left) => room = left,
                Lost::Waits => return false,
                Lost::Blocked => return true,
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
        let Allowed { octets, fin } = self.snd.allowed(self.congestion.allowed(mss), pipe);
        if octets == 0 && !fin {
            self.wait_for_window(cx);
            return false;
        }
        if room == 0 {
            return true;
        }
        if self.snd.cwr && octets > mss {
            // CWR is for one segment, which no device cuts.
            self.send_frames(1, mss, mss, false, cx);
            return self.send_text(room - 1, cx);
        }
        let frames = octets.div_ceil(frame_len).max(1);
        if frames > room {
            self.send_frames(room, room * frame_len, frame_len, false, cx);
            true
        } else {
            self.send_frames(frames, octets, frame_len, fin, cx);
            false
        }
    }

    /// `count` frames that carry the next `octets`, the last one FIN too.
    fn send_frames<S: EffectSink>(
        &mut self,
        count: u32,
        octets: u32,
        frame_len: u32,
        fin: bool,
        cx: &mut Cx<'_, S>,
    ) {
        let seq = self.snd.nxt;
        let again = seq != self.snd.max;
        self.transmit_text(seq, count, octets, frame_len, fin, !again, cx);
        let snd = &mut self.snd;
        let len = octets + u32::from(fin);
        snd.nxt = seq + len;
        self.flight.sent(snd.una, seq, snd.nxt, cx.now);
        self.congestion.on_sent(len);
        if !octets.is_multiple_of(u32::from(snd.mss)) {
            snd.small = snd.nxt;
        }
        snd.max = snd.max.max(snd.nxt);
        snd.sent_at = cx.now;
        if !again {
            self.retransmit.on_sent(seq, cx.now);
        }
        self.retransmit.probes = 0;
        self.timers.stop(Timer::Persist);
        let expects_end = self.retransmit.expiry == Expiry::TailProbe;
        if !self.timers.runs(Timer::Retransmit) || expects_end {
            self.arm(self.is_calm(), cx.now);
        }
    }

    /// What is lost leaves again, the first of it first, as the windows allow.
    #[inline(never)]
    fn send_lost<S: EffectSink>(
        &mut self,
        mut room: u32,
        frame_len: u32,
        cx: &mut Cx<'_, S>,
    ) -> Lost {
        let mss = u32::from(self.snd.mss);
        while let Some((begin, end)) = self.flight.first_lost() {
            let snd = &self.snd;
            let pipe = self.pipe();
            let window = snd.wnd.saturating_sub(begin.since(snd.una));
            let usable = window.min(self.congestion.allowed(mss).saturating_sub(pipe));
            let mut octets = end.since(begin);
            if octets > usable {
                octets = usable - usable % mss;
                if octets == 0 && pipe == 0 {
                    octets = usable;
                }
            }
            if octets == 0 {
                self.wait_for_window(cx);
                return Lost::Waits;
            }
            if room == 0 {
                return Lost::Blocked;
            }
            let octets = octets.min(room.saturating_mul(frame_len));
            room -= octets.div_ceil(frame_len);
            self.send_again(begin, octets, frame_len, cx);
        }
        Lost::Left(room)
    }

    /// `len` octets of sequence space that were sent leave again.
    fn send_again<S: EffectSink>(
        &mut self,
        begin: SeqNum,
        len: u32,
        frame_len: u32,
        cx: &mut Cx<'_, S>,
    ) {
        let snd = &self.snd;
        let octets = snd.data_from(begin).min(len);
        let fin = octets < len;
        let count = octets.div_ceil(frame_len).max(1);
        self.retransmit.on_resent();
        self.transmit_text(begin, count, octets, frame_len, fin, false, cx);
        self.flight.resent(begin, begin + len, cx.now);
        self.undo.resent(len, timestamp(cx.now));
        self.congestion.on_sent(len);
        self.snd.sent_at = cx.now;
        self.retransmit.probes = 0;
        self.timers.stop(Timer::Persist);
        if !self.timers.runs(Timer::Retransmit) {
            self.arm(false, cx.now);
        }
    }

    /// The frames themselves. The last octet written is pushed (RFC 9293 section 3.9.1). Only `new` text may be marked on
    /// its way (RFC 3168 sections 6.1.5 and 6.1.6), and says CWR.
    #[expect(clippy::too_many_arguments, reason = "all of them say what leaves")]
    fn transmit_text<S: EffectSink>(
        &mut self,
        seq: SeqNum,
        count: u32,
        octets: u32,
        frame_len: u32,
        fin: bool,
        new: bool,
        cx: &mut Cx<'_, S>,
    ) {
        let mut flags = Flags::ACK;
        let ect = new && self.snd.ecn && octets > 0;
        if ect && self.snd.cwr {
            self.snd.cwr = false;
            flags = flags.with(Flags::CWR);
        }
        if octets > 0 && octets == self.snd.data_from(seq) {
            flags = flags.with(Flags::PSH);
        }
        if fin {
            flags = flags.with(Flags::FIN);
        }
        let text = Outgoing {
            seq,
            flags,
            count,
            payload_len: octets,
            payload_offset: self.snd.una_offset + u64::from(seq.since(self.snd.una)),
            frame_len,
            ect,
            syn: None,
        };
        self.emit(text, cx);
    }

    /// The first segment that is lost, whatever the windows say (RFC 6582 section 3.2).
    fn resend_first<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        self.snd.due = Due::Nothing;
        let mss = u32::from(self.snd.mss);
        if let Some((begin, end)) = self.flight.first_lost() {
            self.send_again(begin, end.since(begin).min(mss), mss, cx);
        }
    }

    /// A segment of new text if there is one, whatever the congestion window, else the last one again
    /// (RFC 8985 section 7.3).
    fn probe_tail<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        self.snd.due = Due::Nothing;
        if !self.may_probe() {
            return;
        }
        let snd = &self.snd;
        self.flight.acked(snd.una, |_| ());
        let mss = u32::from(snd.mss);
        let Allowed { octets, fin } = snd.allowed(u32::MAX, self.pipe());
        let new = octets.min(mss);
        if new > 0 || fin {
            self.send_frames(1, new, mss, fin && new == octets, cx);
            self.probed(Tail::New, self.snd.nxt);
        } else if let Some(last) = self.flight.last().copied() {
            let len = last.len() - (last.len() - 1) / mss * mss;
            self.send_again(last.end - len, len, mss, cx);
            self.probed(Tail::Again, last.end);
        }
        self.arm(false, cx.now);
    }

    /// What the window allows, however little, or one octet that it does not allow. The octet is not
    /// counted as sent, only as one that may be acknowledged.
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
            let octets = left.min(snd.wnd).min(mss);
            let fin = snd.fin && octets == left && snd.wnd > left;
            return self.send_frames(1, octets, mss, fin, cx);
        }
        let octets = left.min(1);
        let fin = octets == 0;
        snd.max = snd.max.max(nxt + 1);
        self.retransmit.on_resent();
        self.transmit_text(nxt, 1, octets, mss, fin, false, cx);
    }

    /// [`Tcb::probe`] with what was sent before the window closed, and is lost.
    fn probe_with_lost<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        if self.pipe() > 0 {
            return;
        }
        self.lose_all();
        let Some((begin, end)) = self.flight.first_lost() else {
            return;
        };
        let snd = &self.snd;
        let window = snd.wnd.saturating_sub(begin.since(snd.una));
        let len = end.since(begin).min(window).min(u32::from(snd.mss));
        if len > 0 {
            return self.send_again(begin, len, u32::from(snd.mss), cx);
        }
        let octets = snd.data_from(begin).min(1);
        self.retransmit.on_resent();
        self.transmit_text(begin, 1, octets, 1, octets == 0, false, cx);
    }

    /// A segment without text from before the peer's window, which it answers with where it stands.
    fn send_keepalive<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        self.snd.due = Due::Nothing;
        self.emit(Outgoing::bare(self.snd.una - 1, Flags::ACK), cx);
    }

    /// Nothing may leave. If nothing is in flight either, no acknowledgment will come to change that: the
    /// window must be probed.
    fn wait_for_window<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        if self.pipe() == 0 && !self.timers.runs(Timer::Persist) {
            self.leave_road();
            self.timers.stop(Timer::Retransmit);
            self.timers
                .start(Timer::Persist, cx.now + self.retransmit.probe_pause());
        }
    }
}
