//! Header prediction: the fast path for the segments of a bulk transfer.
//!
//! The next segment in order, with no control bit but ACK and PSH, has exactly the same result
//! here as in [`arrive.rs`](super), but most of its checks have known results. That holds in
//! every state in which data may flow in one direction, up to the acknowledgment of our FIN. A
//! property test compares both paths.
//!
//! A run of acknowledgments without data, each of more than the one before it, is taken at once.
//! Estimates that depend on each of them see each ([`Tcb::advance_by_each`]); all else sees the
//! last. A property test compares that with one call for each.

use super::fields::field_variants;
use super::{Cx, Tcb};
use crate::log::effect::EffectSink;
use crate::log::request::{Flags, Options, Segment};

/// The segments that the fast path takes, until an event occurs that it does not handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum FastPath {
    /// None.
    Off,
    /// Acknowledgments without data.
    Acks,
    /// Data in order as well.
    Data,
}

field_variants!(FastPath { Off, Acks, Data });

const fn size<T>(_: fn(&Tcb) -> &T) -> usize {
    size_of::<T>()
}

/// Lists fields of a connection, and computes their size in bytes.
macro_rules! footprint {
    ($(#[$about:meta])* $names:ident, $bytes:ident: $($($part:ident).+),* $(,)?) => {
        $(#[$about])*
        #[cfg(test)]
        pub(super) const $names: &[&str] = &[$(stringify!($($part).+)),*];
        const $bytes: usize = 0 $(+ size(|tcb| &tcb.$($part).+))*;
    };
}

footprint! {
    /// The fields that the fast path reads or writes for data in order, timestamps included.
    FOR_DATA, DATA_BYTES:
    fast_path, conn, rcv.nxt, rcv.edge, rcv.offset, rcv.read, rcv.limit, rcv.timestamps, rcv.ts_recent,
    rcv.ts_recent_at, rcv.last_ack_sent, rcv.ack, rcv.deliveries, snd.una, snd.max, snd.wnd, snd.wnd_max,
    snd.wl1, snd.wl2, snd.shift, timers.next, timers.at,
}

footprint! {
    /// ... and for an acknowledgment without data that leaves the window unchanged, while no
    /// round-trip measurement ends (one does per window), and while the written data does not
    /// end with our FIN.
    FOR_ACK, ACK_BYTES:
    fast_path, rcv.nxt, rcv.timestamps, rcv.ts_recent, rcv.ts_recent_at, rcv.last_ack_sent, rcv.sack_permitted,
    snd.una, snd.max, snd.nxt, snd.una_offset, snd.mss, snd.fin, snd.wnd, snd.wnd_max, snd.wl1, snd.wl2,
    snd.shift, retransmit.timing, retransmit.timed, retransmit.retries, retransmit.expiry, retransmit.rto,
    retransmit.srtt, congestion.cwnd, congestion.phase, congestion.duplicates, timers.next, timers.at,
}

// Two cache lines each.
const _: () = assert!(DATA_BYTES <= 128 && ACK_BYTES <= 128);

impl Tcb {
    /// The segments that the fast path can take now. Taking them never changes the result.
    fn eligible_fast_path(&self) -> FastPath {
        let waits_for_old_window = self.snd.wl1.after(self.rcv.nxt);
        if !self.state.carries_data()
            || self.persists()
            || waits_for_old_window
            || self.is_measured()
            || !self.is_clean()
        {
            FastPath::Off
        } else if !self.reassembly.is_empty() || self.rcv.fin_at != u64::MAX || self.orphan {
            FastPath::Acks
        } else {
            FastPath::Data
        }
    }

    /// An event occurred that the fast path does not handle: [`Tcb::finish`] decides again.
    #[inline]
    pub(super) const fn close_fast_path(&mut self) {
        self.fast_path = FastPath::Off;
    }

    /// The request is over: sets the fast path from the resulting state.
    #[inline(always)]
    pub(super) fn update_fast_path(&mut self) {
        if self.fast_path == FastPath::Off {
            self.fast_path = self.eligible_fast_path();
        }
    }

    /// How many bytes `seg` acknowledges; `None` if it is not the expected segment.
    #[inline(always)]
    pub(super) fn expected_ack(&self, seg: &Segment<'_>) -> Option<u32> {
        let Tcb { rcv, snd, .. } = self;
        if self.fast_path == FastPath::Off
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
        if acked == 0 {
            // An acknowledgment without data or news may be a duplicate.
            if seg.len == 0 {
                return None;
            }
        } else if acked > snd.max.since(snd.una) || snd.fin && seg.ack == snd.end {
            return None;
        }
        if seg.len > 0 && (self.fast_path != FastPath::Data || seg.len > rcv.room()) {
            return None;
        }
        Some(acked)
    }

    /// Takes acknowledgments without data if all are as expected and each acknowledges more than
    /// the one before it; otherwise returns false and changes nothing. `first` is the first one,
    /// and each of `beyond` is what another one acknowledges beyond the one before it, in bytes.
    ///
    /// [`Tcb::try_fast_path`] for each of them leaves the same state.
    pub fn try_fast_path_of_acks<S: EffectSink>(
        &mut self,
        first: &Segment<'_>,
        beyond: &[u16],
        cx: &mut Cx<'_, S>,
    ) -> bool {
        let (mut more, mut advances) = (0, true);
        for step in beyond {
            more += u32::from(*step);
            advances &= *step != 0;
        }
        let (snd, last) = (&self.snd, first.ack + more);
        let is_expected = self.expected_ack(first).is_some_and(|acked| acked != 0);
        let is_sent = more <= snd.max.since(first.ack) && !(snd.fin && last == snd.end);
        if !advances || !is_expected || !is_sent {
            return false;
        }
        self.advance_by_each((first.ack, last), beyond, self.echoed(first), cx.now);
        self.snd
            .set_window(first.seq, last, u32::from(first.wnd) << self.snd.shift);
        if let Some((ts_val, _)) = first.timestamps {
            self.rcv.record_timestamp(first.seq, ts_val, cx.now);
        }
        true
    }

    /// Takes `seg` if it is as expected; otherwise returns false and changes nothing.
    #[inline(always)]
    pub fn try_fast_path<S: EffectSink>(&mut self, seg: &Segment<'_>, cx: &mut Cx<'_, S>) -> bool {
        let Some(acked) = self.expected_ack(seg) else {
            return false;
        };
        if acked != 0 {
            let echoed = self.echoed(seg);
            self.advance(seg.ack, echoed, true, false, cx.now);
        }
        // No newer segment has set the window: see `eligible_fast_path`.
        self.snd
            .set_window(seg.seq, seg.ack, u32::from(seg.wnd) << self.snd.shift);
        if let Some((ts_val, _)) = seg.timestamps {
            self.rcv.record_timestamp(seg.seq, ts_val, cx.now);
        }
        if seg.len > 0 {
            self.take_in_order(seg.run_offset, seg.len, cx);
            self.ack_soon(seg, seg.len, cx);
        }
        true
    }
}
