//! Send space: the sequence space of the send side, and what the windows allow.

use super::fields::{field_variants, fields};

use crate::seqnum::SeqNum;
use crate::time::Instant;

/// Something to send in addition to new data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Due {
    /// Nothing.
    Nothing,
    /// The first lost segment, regardless of the window (RFC 6582).
    Resend,
    /// A tail loss probe (RFC 8985 section 7.3).
    TailProbe,
    /// A probe of the window (RFC 9293 section 3.8.6.1).
    Probe,
    /// A keepalive probe (RFC 1122 section 4.2.3.6).
    Keepalive,
    /// The reset of a connection that is already closed.
    Reset,
}

field_variants!(Due {
    Nothing,
    Resend,
    TailProbe,
    Probe,
    Keepalive,
    Reset
});

/// Send sequence space (RFC 9293 section 3.3.1).
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct SendSpace {
    /// SND.UNA.
    pub(super) una: SeqNum,
    /// The next number to send for the first time; our SYN's while it must be retransmitted.
    pub(super) nxt: SeqNum,
    /// SND.NXT of the RFC: the number after the highest that was sent.
    pub(super) max: SeqNum,
    /// The number after the last byte written, FIN included when our side is shut down.
    pub(super) end: SeqNum,
    /// Bytes of the stream before `una`; SYN and FIN are not counted.
    pub(super) una_offset: u64,
    /// Bytes that the application has written.
    pub(super) written: u64,
    /// Bytes that were released to the application.
    pub(super) released: u64,
    /// SND.WND, scaled.
    pub(super) wnd: u32,
    /// SND.WL1.
    pub(super) wl1: SeqNum,
    /// SND.WL2.
    pub(super) wl2: SeqNum,
    /// Largest payload of a segment, after options (Eff.snd.MSS, RFC 9293 section 3.7.1).
    pub(super) mss: u16,
    /// Snd.Wind.Shift (RFC 7323 section 2.3).
    pub(super) shift: u8,
    /// Whether `end` counts our FIN.
    pub(super) fin: bool,
    /// Something to send in addition to new data.
    pub(super) due: Due,
    /// Whether both sides take part in ECN (RFC 3168).
    pub(super) ecn: bool,
    /// The next new data carries CWR: the window was reduced (RFC 3168 section 6.1.2).
    pub(super) cwr: bool,
    /// Whether both sides offered to scale windows.
    pub(super) scaled: bool,
    /// Our SYN was sent more than once.
    pub(super) syn_lost: bool,
    /// Small segments are sent at once (RFC 9293 section 3.7.4).
    pub(super) nodelay: bool,
    /// Only full segments are sent.
    pub(super) cork: bool,
    /// If `end` is here, no data before it waits for more.
    pub(super) pushed: SeqNum,
    /// ISS.
    pub(super) iss: SeqNum,
    /// Largest window the peer ever offered: Max(SND.WND), MAX.SND.WND (RFC 5961 section 5.2).
    pub(super) wnd_max: u32,
    /// The end of the newest segment that was not full.
    pub(super) small: SeqNum,
    /// When data was last sent.
    pub(super) sent_at: Instant,
    /// Number of the frame after the newest one that carries data of this connection.
    pub(super) frames_end: u64,
    /// Bytes before this may be released once all frames before `release_frame` are sent.
    pub(super) release_upto: u64,
    pub(super) release_frame: u64,
}

fields!(SendSpace, "snd", {
    una, nxt, max, end, una_offset, written, released, wnd, wl1, wl2, mss, shift, fin, due,
    ecn, cwr, scaled, syn_lost, nodelay, cork, pushed, iss, wnd_max, small, sent_at, frames_end,
    release_upto, release_frame,
});

/// What the windows allow to be sent.
pub(super) struct Allowed {
    /// Bytes of data.
    pub(super) bytes: u32,
    /// Whether FIN is sent with or after the data.
    pub(super) fin: bool,
}

impl SendSpace {
    /// The state before anything is sent; the SYN counts as written.
    pub(super) fn new(iss: SeqNum, mss: u16, now: Instant) -> Self {
        SendSpace {
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
            ecn: false,
            cwr: false,
            scaled: true,
            syn_lost: false,
            nodelay: false,
            cork: false,
            pushed: iss,
            iss,
            wnd_max: 0,
            small: iss,
            sent_at: now,
            frames_end: 0,
            release_upto: 0,
            release_frame: 0,
        }
    }

    /// A segment with this `seq` and `ack` sets SND.WND, SND.WL1 and SND.WL2.
    #[inline(always)]
    pub(super) fn set_window(&mut self, seq: SeqNum, ack: SeqNum, wnd: u32) {
        (self.wl1, self.wl2) = (seq, ack);
        self.wnd = wnd;
        if wnd > self.wnd_max {
            self.wnd_max = wnd;
        }
    }

    /// Whether a reset waits for room.
    #[inline]
    pub(super) fn reset_pending(&self) -> bool {
        self.due == Due::Reset
    }

    /// Stops sending: the stream ends after the data that was sent.
    pub(super) const fn stop(&mut self) {
        self.due = Due::Nothing;
        self.nxt = self.max;
        self.end = self.max;
    }

    /// Our SYN was acknowledged by `una`; the data begins there.
    pub(super) const fn begin_data(&mut self, una: SeqNum, now: Instant) {
        self.una = una;
        self.nxt = una;
        self.small = una;
        self.sent_at = now;
    }

    /// Marks our SYN as lost.
    pub(super) const fn repeat_syn(&mut self) {
        self.nxt = self.iss;
        self.syn_lost = true;
    }

    /// Whether the peer acknowledged our FIN.
    #[inline]
    pub(super) fn is_fin_acknowledged(&self) -> bool {
        self.fin && self.una == self.end
    }

    /// Bytes of data between `from` and the end.
    #[inline]
    pub(super) fn data_from(&self, from: SeqNum) -> u32 {
        self.end.since(from).saturating_sub(u32::from(self.fin))
    }

    /// A number within the peer's window, for a segment without data: the highest sent, unless
    /// the peer has shrunk its window since.
    pub(super) fn control_seq(&self) -> SeqNum {
        if self.una == self.iss {
            // The window counts from the byte after our SYN.
            return self.max;
        }
        self.max.min(self.una + self.wnd)
    }

    /// Whether a small segment was sent and is not acknowledged, even if it is lost. (`small`
    /// may be so old that numbers have wrapped, so it counts only within the sent data.)
    fn has_small_in_flight(&self) -> bool {
        (1..=self.max.since(self.una)).contains(&self.small.since(self.una))
    }

    /// RFC 9293 section 3.8.6.2.1, with the end of the written data treated as pushed; Nagle's
    /// algorithm (section 3.7.4) delays a small segment only while another small one is in flight.
    ///
    /// `pipe` is the number of bytes in flight, except lost bytes and those that arrived.
    pub(super) fn allowed(&self, cwnd: u32, pipe: u32) -> Allowed {
        let mss = u32::from(self.mss);
        let left = self.data_from(self.nxt);
        let window = self.wnd.saturating_sub(self.nxt.since(self.una));
        let usable = window.min(cwnd.saturating_sub(pipe));
        if left <= usable {
            let small = left % mss;
            let held = self.cork || !self.nodelay && self.has_small_in_flight();
            let waits = !self.fin && held && self.pushed != self.end;
            let bytes = if small > 0 && waits {
                left - small
            } else {
                left
            };
            let fin = self.fin && self.nxt != self.end && window > left;
            return Allowed { bytes, fin };
        }
        let full = usable - usable % mss;
        // The byte of a window probe did not wait for the window when it was first sent, so its
        // repetition does not wait either.
        let again = self.nxt != self.max;
        let worth = again || usable >= (self.wnd_max / 2).max(1);
        let bytes = if full == 0 && pipe == 0 && worth {
            usable
        } else {
            full
        };
        Allowed { bytes, fin: false }
    }
}
