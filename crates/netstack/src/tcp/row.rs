//! Segments that came together and are not merged: the short road, walked once for all of them.
//!
//! What comes of such a row is what comes of its segments one by one: every second one is acknowledged, each number and
//! each window is what it would be, and the state at the end is the same, bit for bit. What only the last of them
//! decides is written once, and what their acknowledgments have in common is said once. Where anything but that could
//! come of it, the row is refused, and its segments go one by one. A property test holds both equal.

use arrayvec::ArrayVec;

use super::retransmit::Timer;
use super::send::Outgoing;
use super::snd::Snd;
use super::window::{AckDue, Rcv, Tells};
use super::{Cx, DELAYED_ACK, Tcb, positions};
use crate::config::Limits;
use crate::digest::{Flags, Segment};
use crate::effect::{Deliver, EffectSink, MOST_TOLD, Row, Told};

/// Octets of the segments of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lengths {
    /// How many segments there are.
    pub(crate) count: u32,
    /// Of every segment but the last.
    pub(crate) each: u32,
    /// Of all.
    pub(crate) all: u32,
}

impl Lengths {
    /// Of the last one; 0 if they cannot be those of a row.
    #[inline(always)]
    const fn last(self) -> u32 {
        let before = self.each as u64 * self.count.saturating_sub(1) as u64;
        let last = (self.all as u64).saturating_sub(before);
        if last <= self.each as u64 {
            last as u32
        } else {
            0
        }
    }
}

impl Tcb {
    /// Takes a row of segments if each would be as expected when its turn comes; returns false, with nothing changed, if
    /// not. `whole` is what they would be as a run. `fold` goes over the state behind each of them, with the number of
    /// the next frame.
    #[inline(always)]
    pub(crate) fn predicted_row<S: EffectSink>(
        &mut self,
        whole: &Segment<'_>,
        lengths: Lengths,
        fold: &mut u64,
        cx: &mut Cx<'_, S>,
    ) -> bool {
        let last = lengths.last();
        let Lengths { count, each, .. } = lengths;
        // What acknowledges nothing new leaves the send side as it is.
        if self.expects(whole) != Some(0) || !self.has_sent_all() {
            return false;
        }
        let rcv = &self.rcv;
        if last == 0 || each > u32::from(cx.limits.mss()) || whole.followed {
            return false;
        }
        if rcv.ack == AckDue::Now || rcv.tells != Tells(0) {
            return false;
        }
        let owed = rcv.ack == AckDue::Delayed;
        let is_behind = whole.seq.after(rcv.last_ack_sent);
        // What the first acknowledgment echoes is what all of them echo, and the second segment's time is noted at the latest.
        if let Some((ts_val, _)) = whole.timestamps
            && is_behind
            && (ts_val != rcv.ts_recent || !owed || count < 2)
        {
            return false;
        }
        let most = u64::from(count).div_ceil(2);
        if cx.frames.room() < most || most > MOST_TOLD as u64 {
            return false;
        }

        self.set_window(
            whole.seq + each * (count - 1),
            whole.ack,
            u32::from(whole.wnd) << self.snd.shift,
        );
        let rcv = &mut self.rcv;
        if let Some((ts_val, _)) = whole.timestamps {
            rcv.note_timestamp(rcv.last_ack_sent, ts_val, cx.now);
        }
        let deliver = Deliver {
            conn: self.conn,
            run_offset: 0,
            len: each,
            stream_offset: rcv.offset,
            delivery: rcv.deliveries,
            end: rcv.offset + u64::from(each),
            last: true,
        };
        let what = Outgoing::bare(self.snd.control_seq(), Flags::ACK);
        let next = cx.frames.next;
        let mut row = Row {
            deliver,
            count,
            all: lengths.all,
            told: ArrayVec::new(),
            is_first_told: owed,
            like: self.transmit(what, next, (whole.seq, 0), None, cx.now),
        };
        let rcv = &mut self.rcv;
        *fold = rcv.walk(lengths, &self.snd, next, *fold, cx.limits, &mut row.told);
        cx.frames.next += row.told.len() as u64;
        if rcv.ack == AckDue::Delayed {
            // Should the rest have been damaged on its way, the timer brings the acknowledgment.
            self.timers.start(Timer::DelayedAck, cx.now + DELAYED_ACK);
        } else {
            self.timers.stop(Timer::DelayedAck);
        }
        cx.out.push_row(row);
        true
    }
}

impl Rcv {
    /// Takes the segments in, one by one, and says what the acknowledgments of every second one tell. `next` is the number
    /// of the next frame. Returns `fold` with all states on the way.
    #[inline(never)]
    fn walk(
        &mut self,
        lengths: Lengths,
        snd: &Snd,
        mut next: u64,
        mut fold: u64,
        limits: &Limits,
        told: &mut ArrayVec<Told, MOST_TOLD>,
    ) -> u64 {
        let mut owed = self.ack == AckDue::Delayed;
        let mut len = lengths.each;
        for left in (0..lengths.count).rev() {
            if left == 0 {
                len = lengths.last();
            }
            self.nxt += len;
            self.offset += u64::from(len);
            if owed {
                let wnd = self.advertise(limits, false);
                told.push(Told {
                    ack: self.nxt,
                    wnd,
                    window_end: self.offset + u64::from(self.wnd()),
                });
                next += 1;
            }
            owed = !owed;
            fold = positions(fold ^ next, self, snd);
        }
        self.ack = if owed { AckDue::Delayed } else { AckDue::None };
        self.deliveries += u64::from(lengths.count);
        if let Some(last) = told.last() {
            self.last_ack_sent = last.ack;
        }
        fold
    }
}
