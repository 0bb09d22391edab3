//! What may leave now, and the frames that carry it (RFC 9293 section 3.8).
//!
//! [`Tcb::finish`] is the only place where frames of a connection get their numbers. Data that was never
//! sent and data that a timeout declared lost leave by the same road: both stand between `snd_nxt` and
//! the end of what was written. SYN and FIN are octets of that sequence space too.

use serde::{Deserialize, Serialize};

use super::retransmit::{Timer, timestamp};
use super::window::AckDue;
use super::{Cx, State, Tcb};
use crate::digest::{Flags, SynOptions};
use crate::effect::{Effect, EffectSink, Transmit};
use crate::seqnum::SeqNum;
use crate::time::Instant;

/// Something that leaves besides new data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub(super) enum Due {
    /// Nothing.
    Nothing,
    /// The first unacknowledged segment, again (RFC 6582).
    Resend,
    /// A probe of the window (RFC 9293 section 3.8.6.1).
    Probe,
    /// The reset of a connection that is closed already.
    Reset,
}

/// How a request ended for a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Finish {
    /// More frames could leave, but numbers ran out (credit or quantum): call again when there is credit.
    pub blocked: bool,
    /// Acknowledged octets wait for frames to be sent: call again when `sent` has moved.
    pub waits_for_sent: bool,
}

/// Send sequence space (RFC 9293 section 3.3.1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(C)]
pub(super) struct Snd {
    /// SND.UNA.
    pub(super) una: SeqNum,
    /// The next number to send. A timeout pulls it back to `una`.
    pub(super) nxt: SeqNum,
    /// SND.NXT of the RFC: the number after the highest that was sent.
    pub(super) max: SeqNum,
    /// The number after the last octet written, FIN included when our side is shut down.
    pub(super) end: SeqNum,
    /// Octets of the stream before `una`; SYN and FIN are not counted.
    pub(super) una_offset: u64,
    /// Octets that the application has written.
    pub(super) written: u64,
    /// Octets that were given back to the application.
    released: u64,
    /// SND.WND, scaled.
    pub(super) wnd: u32,
    /// SND.WL1.
    pub(super) wl1: SeqNum,
    /// SND.WL2.
    pub(super) wl2: SeqNum,
    /// Largest payload of a segment, options deducted (Eff.snd.MSS, RFC 9293 section 3.7.1).
    pub(super) mss: u16,
    /// Snd.Wind.Shift (RFC 7323 section 2.3).
    pub(super) shift: u8,
    /// Whether `end` counts our FIN.
    pub(super) fin: bool,
    /// What leaves besides data.
    pub(super) due: Due,
    /// Whether both sides offered to scale windows.
    pub(super) scaled: bool,
    /// A SYN of ours was sent more than once.
    pub(super) syn_lost: bool,
    /// ISS.
    pub(super) iss: SeqNum,
    /// Largest window the peer ever offered: Max(SND.WND), MAX.SND.WND (RFC 5961 section 5.2).
    pub(super) wnd_max: u32,
    /// Where the newest segment that was not full ended.
    small: SeqNum,
    /// When data last left.
    sent_at: Instant,
    /// Number of the frame after the newest one of ours that carries data.
    frames_end: u64,
    /// Octets before this may be given back when the frames before `release_frame` are sent.
    release_upto: u64,
    release_frame: u64,
}

/// Frames that are to leave, but for what every segment of the connection says.
struct Outgoing {
    seq: SeqNum,
    flags: Flags,
    count: u32,
    payload_len: u32,
    payload_offset: u64,
    frame_len: u32,
    syn: Option<SynOptions>,
}

impl Outgoing {
    /// One frame without text.
    const fn bare(seq: SeqNum, flags: Flags) -> Self {
        Outgoing {
            seq,
            flags,
            count: 1,
            payload_len: 0,
            payload_offset: 0,
            frame_len: 0,
            syn: None,
        }
    }
}

/// What the windows let leave.
struct Allowed {
    /// Octets of data.
    octets: u32,
    /// FIN with or behind them.
    fin: bool,
}

impl Snd {
    /// With nothing sent; the SYN counts as written.
    pub(super) fn new(iss: SeqNum, mss: u16, now: Instant) -> Self {
        Snd {
            una: iss,
            nxt: iss,
            max: iss,
            end: iss + 1,
            una_offset: 0,
            written: 0,
            released: 0,
            wnd: 0,
            wl1: iss,
            wl2: iss,
            mss,
            shift: 0,
            fin: false,
            due: Due::Nothing,
            scaled: true,
            syn_lost: false,
            iss,
            wnd_max: 0,
            small: iss,
            sent_at: now,
            frames_end: 0,
            release_upto: 0,
            release_frame: 0,
        }
    }

    /// Whether a reset waits for room.
    #[inline]
    pub(super) fn owes_reset(&self) -> bool {
        self.due == Due::Reset
    }

    /// Nothing leaves any more: what was sent is all there is.
    pub(super) const fn stop(&mut self) {
        self.due = Due::Nothing;
        self.nxt = self.max;
        self.end = self.max;
    }

    /// Our SYN was acknowledged by `una`; text begins there.
    pub(super) const fn begin_text(&mut self, una: SeqNum, now: Instant) {
        self.una = una;
        self.nxt = una;
        self.small = una;
        self.sent_at = now;
    }

    /// What was in flight counts as lost.
    pub(super) const fn go_back(&mut self) {
        self.nxt = self.una;
        self.small = self.una;
        self.due = Due::Nothing;
    }

    /// Whether the peer acknowledged our FIN.
    #[inline]
    pub(super) fn is_fin_acknowledged(&self) -> bool {
        self.fin && self.una == self.end
    }

    /// Octets of data between `from` and the end.
    #[inline]
    fn data_from(&self, from: SeqNum) -> u32 {
        self.end.since(from).saturating_sub(u32::from(self.fin))
    }

    /// A number that the peer's window contains, for a segment without text: the highest sent, unless the
    /// peer took back its window since.
    fn control_seq(&self) -> SeqNum {
        if self.una == self.iss {
            // The window counts from the octet after our SYN.
            return self.max;
        }
        self.max.min(self.una + self.wnd)
    }

    /// RFC 9293 section 3.8.6.2.1, with the end of what was written counting as pushed; Nagle's algorithm
    /// (section 3.7.4) holds a small segment only behind another small one.
    fn allowed(&self, cwnd: u32) -> Allowed {
        let mss = u32::from(self.mss);
        let flight = self.nxt.since(self.una);
        let left = self.data_from(self.nxt);
        let window = self.wnd.saturating_sub(flight);
        let usable = window.min(cwnd.saturating_sub(flight));
        if left <= usable {
            let small = left % mss;
            let octets = if small > 0 && !self.fin && self.small.after(self.una) {
                left - small
            } else {
                left
            };
            let fin = self.fin && self.nxt != self.end && window > left;
            return Allowed { octets, fin };
        }
        let full = usable - usable % mss;
        let octets = if full == 0 && flight == 0 && usable >= (self.wnd_max / 2).max(1) {
            usable
        } else {
            full
        };
        Allowed { octets, fin: false }
    }

    /// Names and values of every field.
    pub(super) fn fields(&self, each: &mut dyn FnMut(&'static str, u64)) {
        let Snd {
            una,
            nxt,
            max,
            end,
            una_offset,
            written,
            released,
            wnd,
            wl1,
            wl2,
            mss,
            shift,
            fin,
            due,
            scaled,
            syn_lost,
            iss,
            wnd_max,
            small,
            sent_at,
            frames_end,
            release_upto,
            release_frame,
        } = self;
        each("snd.una", u64::from(una.0));
        each("snd.nxt", u64::from(nxt.0));
        each("snd.max", u64::from(max.0));
        each("snd.end", u64::from(end.0));
        each("snd.una_offset", *una_offset);
        each("snd.written", *written);
        each("snd.released", *released);
        each("snd.wnd", u64::from(*wnd));
        each("snd.wl1", u64::from(wl1.0));
        each("snd.wl2", u64::from(wl2.0));
        each("snd.mss", u64::from(*mss));
        each("snd.shift", u64::from(*shift));
        each("snd.fin", u64::from(*fin));
        each("snd.due", *due as u64);
        each("snd.scaled", u64::from(*scaled));
        each("snd.syn_lost", u64::from(*syn_lost));
        each("snd.iss", u64::from(iss.0));
        each("snd.wnd_max", u64::from(*wnd_max));
        each("snd.small", u64::from(small.0));
        each("snd.sent_at", sent_at.as_nanos());
        each("snd.frames_end", *frames_end);
        each("snd.release_upto", *release_upto);
        each("snd.release_frame", *release_frame);
    }
}

impl Tcb {
    /// Ends a request for this connection: completes its delivery, gives acknowledged octets back, lets
    /// leave what may, acknowledges what must be.
    #[inline]
    pub fn finish<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) -> Finish {
        if cx.held.len != 0 {
            let rcv = &mut self.rcv;
            cx.push_held(self.conn, rcv.deliveries, rcv.offset, true);
            rcv.deliveries += 1;
        }
        let snd = &self.snd;
        if snd.nxt == snd.end
            && snd.una_offset == snd.released
            && snd.due == Due::Nothing
            && self.rcv.ack != AckDue::Now
        {
            return Finish::default();
        }
        self.finish_sending(cx)
    }

    /// The rest of [`Tcb::finish`], if there is any.
    #[inline(never)]
    fn finish_sending<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) -> Finish {
        let mut finish = Finish::default();
        if self.snd.una_offset != self.snd.released {
            finish.waits_for_sent = self.release(cx);
        }
        if self.snd.nxt != self.snd.end || self.snd.due != Due::Nothing {
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
        let rcv = &mut self.rcv;
        let ack = if what.flags.has(Flags::ACK) {
            rcv.ack = AckDue::None;
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
        cx.out.push(Effect::Transmit(Transmit {
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
            flags: what.flags,
            mac: self.mac,
            flow: self.flow,
            timestamps: if rcv.timestamps {
                Some((timestamp(cx.now), rcv.ts_recent))
            } else {
                None
            },
            syn: what.syn,
        }));
    }

    /// An acknowledgment by itself. Returns false if there is no room for it.
    #[inline]
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
        let flags = if self.state == State::SynSent {
            Flags::SYN
        } else {
            Flags::SYN.with(Flags::ACK)
        };
        let options = SynOptions {
            mss: Some(cx.limits.mss()),
            window_scale: self.snd.scaled.then_some(self.rcv.shift),
            sack_permitted: false,
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
        }
        let snd = &self.snd;
        if snd.nxt == snd.end {
            return false;
        }
        let mss = u32::from(snd.mss);
        if snd.una == snd.max && cx.now.since(snd.sent_at) > self.retransmit.rto {
            self.congestion.restart(mss);
        }
        let Allowed { octets, fin } = snd.allowed(self.congestion.allowed(mss));
        if octets == 0 && !fin {
            self.wait_for_window(cx);
            return false;
        }
        if room == 0 {
            return true;
        }
        let frame_len = match cx.limits.frame_payload {
            most if most > mss => most - most % mss,
            _ => mss,
        };
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
        self.transmit_text(seq, count, octets, frame_len, fin, cx);
        let snd = &mut self.snd;
        snd.nxt = seq + octets + u32::from(fin);
        if octets % u32::from(snd.mss) != 0 {
            snd.small = snd.nxt;
        }
        snd.max = snd.max.max(snd.nxt);
        snd.sent_at = cx.now;
        if !again {
            self.retransmit.on_sent(seq, cx.now);
        }
        self.retransmit.probes = 0;
        self.timers.stop(Timer::Persist);
        if !self.timers.runs(Timer::Retransmit) {
            self.timers
                .start(Timer::Retransmit, cx.now + self.retransmit.rto);
        }
    }

    /// The frames themselves. The last octet written is pushed (RFC 9293 section 3.9.1).
    fn transmit_text<S: EffectSink>(
        &mut self,
        seq: SeqNum,
        count: u32,
        octets: u32,
        frame_len: u32,
        fin: bool,
        cx: &mut Cx<'_, S>,
    ) {
        let mut flags = Flags::ACK;
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
            syn: None,
        };
        self.emit(text, cx);
    }

    /// The first unacknowledged segment again, and the timer from the start (RFC 6582 section 3.2).
    fn resend_first<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        let snd = &mut self.snd;
        snd.due = Due::Nothing;
        let sent = snd.max.since(snd.una);
        let octets = snd.data_from(snd.una).min(sent).min(u32::from(snd.mss));
        let fin = snd.fin && octets < sent && snd.una + octets + 1 == snd.end;
        if octets == 0 && !fin {
            return;
        }
        let (una, mss) = (snd.una, u32::from(snd.mss));
        self.retransmit.on_resent();
        self.transmit_text(una, 1, octets, mss, fin, cx);
    }

    /// What the window allows, however little, or one octet that it does not allow. The octet is not
    /// counted as sent, only as one that may be acknowledged.
    fn probe<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        let snd = &mut self.snd;
        snd.due = Due::Nothing;
        let (nxt, mss) = (snd.nxt, u32::from(snd.mss));
        if nxt == snd.end || nxt != snd.una {
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
        self.transmit_text(nxt, 1, octets, mss, fin, cx);
    }

    /// Nothing may leave. If nothing is in flight either, no acknowledgment will come to change that: the
    /// window must be probed.
    fn wait_for_window<S: EffectSink>(&mut self, cx: &mut Cx<'_, S>) {
        if self.snd.nxt == self.snd.una && !self.timers.runs(Timer::Persist) {
            self.timers.stop(Timer::Retransmit);
            self.timers
                .start(Timer::Persist, cx.now + self.retransmit.probe_pause());
        }
    }
}
