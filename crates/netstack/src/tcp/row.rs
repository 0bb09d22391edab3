//! Rows: segments that arrive together and are not merged, on the fast path at once.
//!
//! The result of a row equals that of its segments one by one: every second one is acknowledged,
//! with the same numbers and windows, and the final state is the same, bit for bit. What only the
//! last segment decides is computed once, and what the acknowledgments have in common is stored
//! once. If anything else could result, the row is refused, and its segments are processed one by
//! one. A property test compares both.

use arrayvec::ArrayVec;

use super::delayed_ack::AckDue;
use super::receive_space::{AckContents, ReceiveSpace};
use super::send::Outgoing;
use super::send_space::SendSpace;
use super::{Cx, Tcb, positions};
use crate::config::Limits;
use crate::log::effect::{Deliver, EffectSink, MAX_ROW_ACKS, Row, RowAck};
use crate::log::request::{Flags, Segment};

/// Bytes of the segments of a row.
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
    /// Takes a row of segments if each of them would be as expected in its turn; otherwise returns
    /// false and changes nothing. `whole` is the row as one run. `fold` is updated with the state
    /// after each segment and the number of the next frame.
    #[inline(always)]
    pub(crate) fn try_fast_path_row<S: EffectSink>(
        &mut self,
        whole: &Segment<'_>,
        lengths: Lengths,
        fold: &mut u64,
        cx: &mut Cx<'_, S>,
    ) -> bool {
        let last = lengths.last();
        let Lengths { count, each, .. } = lengths;
        // An acknowledgment of nothing new leaves the send side unchanged.
        if self.expected_ack(whole) != Some(0) || !self.has_sent_all() {
            return false;
        }
        let rcv = &self.rcv;
        if last == 0 || each > u32::from(cx.limits.mss()) || whole.followed {
            return false;
        }
        if rcv.ack == AckDue::Now || rcv.ack_contents != AckContents(0) {
            return false;
        }
        let owed = rcv.ack == AckDue::Delayed;
        let is_behind = whole.seq.after(rcv.last_ack_sent);
        // All acknowledgments echo the timestamp that the first one echoes, and the timestamp of
        // the second segment is recorded at the latest.
        if let Some((ts_val, _)) = whole.timestamps
            && is_behind
            && (ts_val != rcv.ts_recent || !owed || count < 2)
        {
            return false;
        }
        let most = u64::from(count).div_ceil(2);
        if cx.frames.room() < most || most > MAX_ROW_ACKS as u64 {
            return false;
        }

        self.set_window(
            whole.seq + each * (count - 1),
            whole.ack,
            u32::from(whole.wnd) << self.snd.shift,
        );
        let rcv = &mut self.rcv;
        if let Some((ts_val, _)) = whole.timestamps {
            rcv.record_timestamp(rcv.last_ack_sent, ts_val, cx.now);
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
            acks: ArrayVec::new(),
            is_first_acked: owed,
            like: self.transmit(what, next, (whole.seq, 0), None, cx.now),
        };
        let rcv = &mut self.rcv;
        *fold = rcv.apply_row(lengths, &self.snd, next, *fold, cx.limits, &mut row.acks);
        cx.frames.next += row.acks.len() as u64;
        if rcv.ack == AckDue::Delayed {
            // If the following segments were damaged, the timer triggers the acknowledgment.
            self.start_delayed_ack(cx.now);
        } else {
            self.stop_delayed_ack();
        }
        cx.out.push_row(row);
        true
    }
}

impl ReceiveSpace {
    /// Takes the segments one by one, and returns in `acks` what the acknowledgments of every
    /// second one contain. `next` is the number of the next frame. Returns `fold`, updated with all
    /// states in between.
    #[inline(never)]
    fn apply_row(
        &mut self,
        lengths: Lengths,
        snd: &SendSpace,
        mut next: u64,
        mut fold: u64,
        limits: &Limits,
        acks: &mut ArrayVec<RowAck, MAX_ROW_ACKS>,
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
                acks.push(RowAck {
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
        if let Some(last) = acks.last() {
            self.last_ack_sent = last.ack;
        }
        fold
    }
}
