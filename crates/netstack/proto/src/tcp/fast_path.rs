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
use crate::log::request::{Digest, Flags, RequestKind, Segment};
use crate::seqnum::SeqNum;
use crate::time::Instant;

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
    /// The same, and [`Tcb::finish`] need only deliver and acknowledge: everything is sent and
    /// released.
    Quiet,
}

field_variants!(FastPath {
    Off,
    Acks,
    Data,
    Quiet
});

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
    /// The fields that [`Tcb::take_expected`] reads or writes for data in order, timestamps
    /// included, and the number of the delivery.
    FOR_DATA, DATA_BYTES:
    expected_bits, fast_path, common.conn, rcv.nxt, rcv.edge, rcv.offset, rcv.read, rcv.limit,
    rcv.timestamps, rcv.ts_recent, rcv.ts_recent_at, rcv.last_ack_sent, rcv.ack, rcv.deliveries,
    snd.una, snd.max, snd.wnd, snd.wnd_max, snd.wl1, snd.wl2, snd.shift, timers.next, timers.at,
}

footprint! {
    /// ... and for an acknowledgment without data that leaves the window unchanged, while no
    /// round-trip measurement ends (one does per window), and while the written data does not
    /// end with our FIN.
    FOR_ACK, ACK_BYTES:
    expected_bits, rcv.nxt, rcv.timestamps, rcv.ts_recent, rcv.ts_recent_at, rcv.last_ack_sent,
    rcv.sack_permitted, snd.una, snd.max, snd.nxt, snd.una_offset, snd.mss, snd.fin, snd.wnd,
    snd.wnd_max, snd.wl1, snd.wl2, snd.shift, retransmit.timing, retransmit.timed,
    retransmit.retries, retransmit.expiry, retransmit.rto, retransmit.srtt, congestion.cwnd,
    congestion.phase, congestion.duplicates, timers.next, timers.at,
}

// As much as two cache lines each; they need not be beside each other.
const _: () = assert!(DATA_BYTES <= 128 && ACK_BYTES <= 128);

/// What no digest has as [`Digest::bits`].
pub(super) const NO_BITS: u8 = u8::MAX;

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
        (self.fast_path, self.expected_bits) = (FastPath::Off, NO_BITS);
    }

    /// There may be something to send or to release.
    #[inline(always)]
    pub(super) fn end_quiet(&mut self) {
        if self.fast_path == FastPath::Quiet {
            self.fast_path = FastPath::Data;
        }
    }

    /// The request is over, and everything is sent and released if `is_quiet`: sets the fast path
    /// from the resulting state.
    #[inline(always)]
    pub(super) fn update_fast_path(&mut self, is_quiet: bool) {
        if self.fast_path == FastPath::Off {
            self.fast_path = self.eligible_fast_path();
            self.expected_bits = match (self.fast_path, self.rcv.timestamps) {
                (FastPath::Off, _) => NO_BITS,
                (_, true) => Digest::TIMESTAMPS,
                (_, false) => 0,
            };
        }
        if self.fast_path == FastPath::Data && is_quiet {
            self.fast_path = FastPath::Quiet;
        }
    }

    /// Whether control bits and options of `digest` are those of the segments that the fast path
    /// takes now. `ACKS` are acknowledgments that share the request.
    #[inline(always)]
    pub const fn expects<const ACKS: bool>(&self, digest: &Digest) -> bool {
        let more = if ACKS { Digest::ACKS } else { 0 };
        let varying = Digest::PROGRESS | Digest::FOLLOWED | more;
        digest.bits & !varying == self.expected_bits
            && digest.flags.without(Flags::PSH).0 == Flags::ACK.0
            && matches!(digest.kind, RequestKind::Segments)
    }

    /// Whether the timestamp is outdated (PAWS, RFC 7323 section 5).
    #[inline(always)]
    fn is_outdated(&self, digest: &Digest) -> bool {
        let age = digest.ts_val.wrapping_sub(self.rcv.ts_recent) as i32;
        digest.bits & Digest::TIMESTAMPS != 0 && age < 0
    }

    /// Whether `ack` acknowledges something new, but not our FIN.
    #[inline(always)]
    fn is_new_ack(&self, ack: SeqNum) -> bool {
        let snd = &self.snd;
        let acked = ack.since(snd.una);
        acked != 0 && acked <= snd.max.since(snd.una) && !(snd.fin && ack == snd.end)
    }

    /// Takes the acknowledgment of an expected segment if it is new and its timestamp not outdated;
    /// otherwise returns false and changes nothing.
    #[inline(never)]
    fn take_new_ack(&mut self, digest: &Digest, now: Instant) -> bool {
        let is_new = self.is_new_ack(digest.seg_ack) && !self.is_outdated(digest);
        if is_new {
            self.end_quiet();
            let echoed = self.echoed(digest.timestamps());
            self.advance(digest.seg_ack, echoed, true, false, now);
        }
        is_new
    }

    /// Takes acknowledgments without data if all are as expected and each acknowledges more than
    /// the one before it; otherwise returns false and changes nothing. `first` is the first one,
    /// and each of `beyond` is what another one acknowledges beyond the one before it, in bytes.
    ///
    /// [`Tcb::try_fast_path`] for each of them leaves the same state, but for the time at which
    /// [`Tcb::next_deadline`] is too early.
    pub fn take_expected_acks<S: EffectSink>(
        &mut self,
        first: &Digest,
        beyond: &[u16],
        cx: &mut Cx<'_, S>,
    ) -> bool {
        let (mut more, mut advances) = (0, true);
        for step in beyond {
            more += u32::from(*step);
            advances &= *step != 0;
        }
        let (snd, last) = (&self.snd, first.seg_ack + more);
        let is_next = first.seg_seq == self.rcv.nxt && !self.is_outdated(first);
        let is_expected = is_next && self.is_new_ack(first.seg_ack);
        let is_sent = more <= snd.max.since(first.seg_ack) && !(snd.fin && last == snd.end);
        if !advances || !is_expected || !is_sent {
            return false;
        }
        self.end_quiet();
        let echoed = self.echoed(first.timestamps());
        self.advance_by_each((first.seg_ack, last), beyond, echoed, cx.now);
        self.take_numbers(first, last, cx.now)
    }

    /// Takes `seg` if it is as expected; otherwise returns false and changes nothing.
    pub fn try_fast_path<S: EffectSink>(&mut self, seg: &Segment<'_>, cx: &mut Cx<'_, S>) -> bool {
        let digest = seg.digest();
        self.expects::<false>(&digest) && self.take_expected(&digest, seg.run_offset, cx)
    }

    /// As [`Tcb::try_fast_path`], for the segments of a digest that [it expects](Tcb::expects).
    #[inline(always)]
    pub fn take_expected<S: EffectSink>(
        &mut self,
        digest: &Digest,
        run_offset: u32,
        cx: &mut Cx<'_, S>,
    ) -> bool {
        if digest.seg_seq != self.rcv.nxt {
            return false;
        }
        if digest.len == 0 {
            // An acknowledgment without data or news may be a duplicate.
            return self.take_new_ack(digest, cx.now)
                && self.take_numbers(digest, digest.seg_ack, cx.now);
        }
        let takes_data = matches!(self.fast_path, FastPath::Data | FastPath::Quiet);
        if !takes_data || !self.rcv.has_room(digest.len) {
            return false;
        }
        if digest.seg_ack != self.snd.una && !self.take_new_ack(digest, cx.now) {
            return false;
        }
        if !self.take_numbers(digest, digest.seg_ack, cx.now) {
            return false;
        }
        self.take_in_order(run_offset, digest.len, cx);
        let is_followed = digest.bits & Digest::FOLLOWED != 0;
        self.ack_soon(digest.count, digest.len, is_followed, cx);
        true
    }

    /// Takes the timestamp and the window of expected segments up to the acknowledgment `ack`. If
    /// the timestamp is outdated, returns false and changes nothing.
    #[inline(always)]
    fn take_numbers(&mut self, digest: &Digest, ack: SeqNum, now: Instant) -> bool {
        if digest.bits & Digest::TIMESTAMPS != 0 {
            if self.is_outdated(digest) {
                return false;
            }
            self.rcv
                .record_timestamp(digest.seg_seq, digest.ts_val, now);
        }
        // No newer segment has set the window: see `eligible_fast_path`.
        let wnd = u32::from(digest.seg_wnd) << self.snd.shift;
        self.snd.set_window(digest.seg_seq, ack, wnd);
        true
    }
}
