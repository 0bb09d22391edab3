//! Header prediction: the short road for the segments of a bulk transfer.
//!
//! A segment that comes next, with nothing out of order and no control bit but ACK and PSH,
//! does exactly what [`arrive.rs`](super) would do with it, and most of the questions asked there have
//! known answers. That holds in every state in which text may flow in one direction, up to the
//! acknowledgment of our FIN. A property test holds the two roads equal.

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use super::walk::walk_variants;
use super::{Cx, Tcb};
use crate::digest::{Flags, Options, Segment};
use crate::effect::EffectSink;

/// Which segments the short road is open for, until something else than such a segment happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[repr(u8)]
pub(super) enum Road {
    /// None.
    Long,
    /// Acknowledgments without text.
    Acks,
    /// Text that comes next, too.
    Text,
}

walk_variants!(Road { Long, Acks, Text });

const fn size<T>(_: fn(&Tcb) -> &T) -> usize {
    size_of::<T>()
}

/// Names fields of a connection, and says how many octets they have.
macro_rules! fields {
    ($(#[$about:meta])* $names:ident, $octets:ident: $($($part:ident).+),* $(,)?) => {
        $(#[$about])*
        #[cfg(test)]
        pub(super) const $names: &[&str] = &[$(stringify!($($part).+)),*];
        const $octets: usize = 0 $(+ size(|tcb| &tcb.$($part).+))*;
    };
}

fields! {
    /// What the short road reads or writes for text that comes next, timestamps included.
    FOR_TEXT, TEXT_OCTETS:
    road, conn, rcv.nxt, rcv.edge, rcv.offset, rcv.read, rcv.limit, rcv.timestamps, rcv.ts_recent,
    rcv.ts_recent_at, rcv.last_ack_sent, rcv.ack, rcv.deliveries, snd.una, snd.max, snd.wnd, snd.wnd_max,
    snd.wl1, snd.wl2, snd.shift, timers.next, timers.at,
}

fields! {
    /// ... and for an acknowledgment without text that lets the window as it is, while no measurement of the round trip
    /// ends, as one does once a window, and the end of what is written is not our FIN.
    FOR_ACK, ACK_OCTETS:
    road, rcv.nxt, rcv.timestamps, rcv.ts_recent, rcv.ts_recent_at, rcv.last_ack_sent, rcv.sack_permitted,
    snd.una, snd.max, snd.nxt, snd.una_offset, snd.mss, snd.fin, snd.wnd, snd.wnd_max, snd.wl1, snd.wl2,
    snd.shift, retransmit.timing, retransmit.timed, retransmit.retries, retransmit.expiry, retransmit.rto,
    retransmit.srtt, congestion.cwnd, congestion.phase, congestion.duplicates, timers.next, timers.at,
}

// Two cache lines' worth each.
const _: () = assert!(TEXT_OCTETS <= 128 && ACK_OCTETS <= 128);

impl Tcb {
    /// What the short road is open for as things stand. Nothing that it does itself changes the answer.
    fn open_road(&self) -> Road {
        let waits_for_old_window = self.snd.wl1.after(self.rcv.nxt);
        if !self.state.carries_text() || self.persists() || waits_for_old_window || !self.is_calm()
        {
            Road::Long
        } else if !self.reassembly.is_empty() || self.rcv.fin_at != u64::MAX || self.orphan {
            Road::Acks
        } else {
            Road::Text
        }
    }

    /// Something happened that the short road does not know: [`Tcb::finish`] looks anew.
    #[inline]
    pub(super) const fn leave_road(&mut self) {
        self.road = Road::Long;
    }

    /// The request is over: the road is what its end left.
    #[inline(always)]
    pub(super) fn look_for_road(&mut self) {
        if self.road == Road::Long {
            self.road = self.open_road();
        }
    }

    /// Whether `seg` is as expected: then how many octets it acknowledges.
    #[inline(always)]
    pub(super) fn expects(&self, seg: &Segment<'_>) -> Option<u32> {
        let Tcb { rcv, snd, .. } = self;
        if self.road == Road::Long
            || seg.flags.without(Flags::PSH) != Flags::ACK
            || seg.seq != rcv.nxt
            || seg.timestamps.is_some() != rcv.timestamps
            || seg.ce
            || matches!(seg.options, Options::Sack(_))
        {
            return None;
        }
        if let Some((ts_val, _)) = seg.timestamps
            && (ts_val.wrapping_sub(rcv.ts_recent) as i32) < 0
        {
            return None;
        }
        let acked = seg.ack.since(snd.una);
        if acked > snd.max.since(snd.una) {
            return None;
        }
        if acked == 0 {
            // A bare acknowledgment of nothing new may be a duplicate.
            if seg.len == 0 {
                return None;
            }
        } else if snd.fin && seg.ack == snd.end {
            return None;
        }
        if seg.len > 0 && (self.road != Road::Text || seg.len > rcv.room()) {
            return None;
        }
        Some(acked)
    }

    /// Takes `seg` if it is as expected; returns false, with nothing changed, if it is not.
    #[inline(always)]
    pub(crate) fn predicted<S: EffectSink>(
        &mut self,
        seg: &Segment<'_>,
        cx: &mut Cx<'_, S>,
    ) -> bool {
        let Some(acked) = self.expects(seg) else {
            return false;
        };
        if acked != 0 {
            let echoed = self.echoed(seg);
            self.advance(seg.ack, echoed, true, false, cx.now);
        }
        // Nothing newer has told a window: see `open_road`.
        self.set_window(seg.seq, seg.ack, u32::from(seg.wnd) << self.snd.shift);
        if let Some((ts_val, _)) = seg.timestamps {
            self.rcv.note_timestamp(seg.seq, ts_val, cx.now);
        }
        if seg.len > 0 {
            self.take_in_order(seg.run_offset, seg.len, cx);
            self.ack_soon(seg, seg.len, cx);
        }
        true
    }
}
