//! Receive space: what the peer may send, and what it has sent (RFC 9293 section 3.8.6).
//!
//! The window ends at an edge that never moves left. It moves right by at least a segment, or half
//! of `limit` if that is less (RFC 9293 section 3.8.6.2.2). `limit` bounds unread bytes; it is at
//! most the length of the receive ring (`Limits::receive_buffer`). A scaled window field rounds the
//! edge down; data up to an edge advertised earlier is still accepted (RFC 7323 section 2.4).

use super::delayed_ack::AckDue;
use super::fields::fields;
use super::{Cx, PendingDelivery, Tcb};
use crate::config::Limits;
use crate::log::effect::EffectSink;
use crate::log::request::{ConnId, Sack, SynOptions};
use crate::seqnum::SeqNum;
use crate::time::{Duration, Instant};

/// Largest shift of a window field (RFC 7323 section 2.3).
pub(super) const SHIFT_MAX: u8 = 14;

/// The contents of acknowledgments in addition to numbers, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AckContents(pub(super) u8);

impl AckContents {
    /// Ranges that only SACK blocks can report.
    pub(super) const BLOCKS: AckContents = AckContents(1);
    /// A CE mark arrived, and no CWR since (RFC 3168 section 6.1.3).
    pub(super) const CONGESTION: AckContents = AckContents(2);

    /// Whether acknowledgments carry `what`.
    #[inline]
    pub(super) const fn has(self, what: AckContents) -> bool {
        self.0 & what.0 != 0
    }

    /// Acknowledgments carry `what` from now on.
    pub(super) const fn add(&mut self, what: AckContents) {
        self.0 |= what.0;
    }

    /// Acknowledgments do not carry `what` any more.
    pub(super) const fn remove(&mut self, what: AckContents) {
        self.0 &= !what.0;
    }
}

/// Time in units of 2^30 ns, 1.07 s.
const fn coarse_time(at: Instant) -> u32 {
    (at.as_nanos() >> 30) as u32
}

/// Receive sequence space (RFC 9293 section 3.3.1).
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct ReceiveSpace {
    /// RCV.NXT.
    pub(super) nxt: SeqNum,
    /// RCV.NXT + RCV.WND: the highest edge that was advertised.
    pub(super) edge: SeqNum,
    /// Bytes of the stream before `nxt`; FIN and SYN are not counted.
    pub(super) offset: u64,
    /// Bytes that the application has read.
    pub(super) read: u64,
    /// Requests so far with a delivery: the number of the pending one, or of the next.
    pub(super) deliveries: u64,
    /// When `ts_recent` was stored, in units of [`coarse_time`].
    pub(super) ts_recent_at: u32,
    /// The offset of our timestamps (RFC 7323 section 5.4).
    pub(super) ts_offset: u32,
    /// Stream offset of a FIN that arrived, `u64::MAX` while none has.
    pub(super) fin_at: u64,
    /// TS.Recent (RFC 7323 section 4.3).
    pub(super) ts_recent: u32,
    /// Last.ACK.sent (RFC 7323 section 4.3).
    pub(super) last_ack_sent: SeqNum,
    /// IRS.
    pub(super) irs: SeqNum,
    /// The limit of unread bytes, and so of the window; at most the receive ring's length.
    pub(super) limit: u32,
    /// Half of the widest window; while so much is open, reading causes no window update.
    pub(super) half: u32,
    /// Rcv.Wind.Shift (RFC 7323 section 2.3).
    pub(super) shift: u8,
    /// Snd.TS.OK: both sides offer timestamps (RFC 7323 section 3.2); we do before we know.
    pub(super) timestamps: bool,
    /// Whether an acknowledgment is owed.
    pub(super) ack: AckDue,
    /// Both sides permit SACK (RFC 2018 section 2); we offer it before we know.
    pub(super) sack_permitted: bool,
    /// The contents of acknowledgments in addition to numbers.
    pub(super) ack_contents: AckContents,
    /// A range that arrived twice and was not reported yet (RFC 2883), if the edges differ.
    pub(super) duplicate: (SeqNum, SeqNum),
}

fields!(ReceiveSpace, "rcv", {
    nxt, edge, offset, read, deliveries, ts_recent_at, ts_offset, fin_at, ts_recent, last_ack_sent,
    irs, limit, half, shift, timestamps, ack, sack_permitted, ack_contents, duplicate,
});

impl ReceiveSpace {
    /// The state before we know anything about the peer; the shift is the one that we offer.
    pub(super) fn new(limits: &Limits) -> Self {
        let shift = (0..SHIFT_MAX)
            .find(|&shift| limits.receive_buffer >> shift <= 0xffff)
            .unwrap_or(SHIFT_MAX);
        let limit = limits.tcp.receive_window.min(limits.receive_buffer);
        ReceiveSpace {
            nxt: SeqNum(0),
            edge: SeqNum(0),
            offset: 0,
            read: 0,
            deliveries: 0,
            ts_recent_at: 0,
            ts_offset: 0,
            fin_at: u64::MAX,
            ts_recent: 0,
            last_ack_sent: SeqNum(0),
            irs: SeqNum(0),
            limit,
            half: limit.min(0xffff << shift) / 2,
            shift,
            timestamps: true,
            ack: AckDue::None,
            sack_permitted: true,
            ack_contents: AckContents(0),
            duplicate: (SeqNum(0), SeqNum(0)),
        }
    }

    /// The peer's SYN arrived: its sequence number, its timestamp, its options.
    pub(super) fn begin(
        &mut self,
        irs: SeqNum,
        timestamps: Option<(u32, u32)>,
        options: &SynOptions,
        now: Instant,
    ) {
        // If we sent a SYN, its window had no beginning yet: it begins after the peer's SYN.
        let announced = self.wnd();
        self.irs = irs;
        self.nxt = irs + 1;
        self.edge = self.nxt + announced;
        self.last_ack_sent = self.nxt;
        if options.window_scale.is_none() {
            self.shift = 0;
            self.half = self.half.min(0xffff / 2);
        }
        self.sack_permitted = options.sack_permitted;
        self.timestamps = timestamps.is_some();
        if let Some((ts_val, _)) = timestamps {
            self.ts_recent = ts_val;
            self.ts_recent_at = coarse_time(now);
        }
    }

    /// RCV.WND: bytes that the peer may send from `nxt` on.
    #[inline]
    pub(super) const fn wnd(&self) -> u32 {
        self.edge.since(self.nxt)
    }

    /// Bytes from `nxt` on until unread bytes reach their limit.
    #[inline]
    const fn capacity(&self) -> u32 {
        (self.read + self.limit as u64).saturating_sub(self.offset) as u32
    }

    /// Bytes from `nxt` on that are accepted: advertised, and within the limit of unread bytes.
    #[inline(always)]
    pub(super) fn room(&self) -> u32 {
        self.wnd().min(self.capacity())
    }

    /// Whether [`ReceiveSpace::room`] is at least `len`.
    #[inline(always)]
    pub(super) fn has_room(&self, len: u32) -> bool {
        len <= self.wnd() && self.offset + u64::from(len) <= self.read + u64::from(self.limit)
    }

    /// Delivers `len` bytes, `run_offset` bytes into the run's payload. They are pending until more
    /// follow (then `false`: not the last) or the request ends.
    #[inline(always)]
    pub(super) fn deliver<S: EffectSink>(
        &self,
        conn: ConnId,
        run_offset: u32,
        stream_offset: u64,
        len: u32,
        cx: &mut Cx<'_, S>,
    ) {
        if cx.pending_delivery.len != 0 {
            cx.push_pending_delivery(conn, self.deliveries, self.offset, false);
        }
        cx.pending_delivery = PendingDelivery {
            stream_offset,
            run_offset,
            len,
        };
    }

    /// The window field of a segment now, not scaled with `syn` (RFC 7323 section 2.2), and the
    /// offset in the stream up to which the peer may send then.
    #[inline(always)]
    pub(super) fn advertise(&mut self, limits: &Limits, syn: bool) -> (u16, u64) {
        let shift = if syn { 0 } else { self.shift };
        let mut open = self.wnd();
        let capacity = self.capacity();
        let step = limits.mss_len().min(self.limit / 2);
        let wanted = if u64::from(capacity) >= u64::from(open) + u64::from(step) {
            capacity
        } else {
            open
        };
        let field = (wanted >> shift).min(0xffff);
        let announced = self.nxt + (field << shift);
        if announced.after(self.edge) {
            self.edge = announced;
            open = field << shift;
        }
        (field as u16, self.offset + u64::from(open))
    }

    /// Whether the window is less than half open, and can open by two segments or by half of it.
    fn needs_window_update(&self, limits: &Limits) -> bool {
        let open = self.wnd();
        if open >= self.half {
            return false;
        }
        let step = (2 * u32::from(limits.mss())).min(self.half);
        self.capacity().min(0xffff << self.shift) >= open + step
    }

    /// Sets the limit of unread bytes, and so the widest window.
    pub(super) fn widen(&mut self, limit: u32) {
        self.limit = limit;
        self.half = limit.min(0xffff << self.shift) / 2;
    }

    /// Lowers the limit to `limit`, but not below the bytes that are unread or advertised.
    pub(super) fn narrow(&mut self, limit: u32) {
        let promised = (self.offset - self.read) + u64::from(self.wnd());
        let promised = u32::try_from(promised).unwrap_or(u32::MAX);
        if promised < self.limit {
            self.widen(limit.max(promised));
        }
    }

    /// Whether `ts_val` is older than TS.Recent (PAWS, RFC 7323 section 5). False if TS.Recent was
    /// stored 24 days ago, since the comparison is undecidable then.
    pub(super) fn is_outdated(&self, ts_val: u32, now: Instant) -> bool {
        const OUTDATED: u32 = coarse_time(Instant::from_nanos(24 * 24 * 3600 * 1_000_000_000));
        (ts_val.wrapping_sub(self.ts_recent) as i32) < 0
            && coarse_time(now).saturating_sub(self.ts_recent_at) < OUTDATED
    }

    /// Updates TS.Recent if a segment begins at or before Last.ACK.sent (RFC 7323 section 4.3, rule
    /// 2). The caller knows that `ts_val` is not outdated.
    #[inline(always)]
    pub(super) fn record_timestamp(&mut self, seq: SeqNum, ts_val: u32, now: Instant) {
        if !seq.after(self.last_ack_sent) {
            self.ts_recent = ts_val;
            self.ts_recent_at = coarse_time(now);
        }
    }

    /// Data `left..right` arrived again. The next acknowledgment reports the last such range (RFC
    /// 2883 section 4), up to RCV.NXT only if it begins before that.
    pub(super) fn record_duplicate(&mut self, left: SeqNum, right: SeqNum) {
        if !self.sack_permitted || left == right {
            return;
        }
        let right = if left.before(self.nxt) {
            right.min(self.nxt)
        } else {
            right
        };
        self.duplicate = (left, right);
        self.ack_contents.add(AckContents::BLOCKS);
    }

    /// Updates whether SACK blocks are needed. `gaps`: whether data was received out of order.
    pub(super) fn update_sack(&mut self, gaps: bool) {
        if self.sack_permitted && (gaps || self.duplicate.0 != self.duplicate.1) {
            self.ack_contents.add(AckContents::BLOCKS);
        } else {
            self.ack_contents.remove(AckContents::BLOCKS);
        }
    }
}

impl Tcb {
    /// Accepts data at RCV.NXT while nothing is out of order.
    #[inline(always)]
    pub(super) fn take_in_order<S: EffectSink>(
        &mut self,
        run_offset: u32,
        len: u32,
        cx: &mut Cx<'_, S>,
    ) {
        let rcv = &mut self.rcv;
        rcv.deliver(self.common.conn, run_offset, rcv.offset, len, cx);
        rcv.nxt += len;
        rcv.offset += u64::from(len);
    }

    /// The SACK option of an acknowledgment that is sent now: first the range that arrived
    /// twice, then the ranges beyond RCV.NXT, the latest change first (RFC 2018 section 4, RFC
    /// 2883 section 4).
    #[cold]
    pub(super) fn take_sack(&mut self) -> Option<Sack> {
        let rcv = &mut self.rcv;
        // Timestamps leave room for three blocks.
        let mut room = Sack::MOST - usize::from(rcv.timestamps);
        let mut sack = Sack::NONE;
        if rcv.duplicate.0 != rcv.duplicate.1 {
            sack.push(rcv.duplicate.0, rcv.duplicate.1);
            room -= 1;
            rcv.duplicate.1 = rcv.duplicate.0;
        }
        let (nxt, offset) = (rcv.nxt, rcv.offset);
        let seq = |at: u64| nxt + (at - offset) as u32;
        for (left, right) in self.reassembly.newest().take(room) {
            sack.push(seq(left), seq(right));
        }
        rcv.update_sack(!self.reassembly.is_empty());
        (!sack.blocks().is_empty()).then_some(sack)
    }

    /// The application has read up to `app_read`, which is ignored if it moves back. If less than
    /// half of the window is open, widens and opens it if that is due.
    #[inline(always)]
    pub(super) fn on_read<S: EffectSink>(&mut self, app_read: u64, cx: &Cx<'_, S>) {
        let rcv = &mut self.rcv;
        rcv.read = rcv.read.max(app_read.min(rcv.offset));
        if rcv.wnd() < rcv.half {
            self.schedule_window_update(cx.now, cx.limits);
        }
    }

    /// Widens the window if that is due, and demands an acknowledgment if it can open enough.
    #[inline(never)]
    fn schedule_window_update(&mut self, now: Instant, limits: &Limits) {
        self.autotune(now, limits);
        if self.state.accepts_data() && self.rcv.needs_window_update(limits) {
            self.ack_now();
        }
    }
}

/// The shortest time that counts as a round trip; applications do not read more often.
const MIN_ROUND_TRIP: Duration = Duration::from_millis(1);

/// Measures how much the application reads in a round trip.
///
/// Receive-window autotuning: the window grows with the amount of data that the application
/// reads in a round trip.
///
/// A window that is too small costs throughput; one that is too large costs memory and cache space.
/// The peer cannot send more than a window in a round trip. So when an application reads more than
/// half a window in that time, the window may limit the transfer, and is widened to twice that
/// amount (M. Fisk and W. Feng, *Dynamic right-sizing in TCP*, 2001). It never narrows. Rings have
/// their full length from the beginning; this only determines how much of a ring is advertised.
///
/// Only a window that is less than half open is considered, off the fast path. The read cursor and
/// the time come from the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Autotune {
    /// When the measurement began.
    since: Instant,
    /// The read cursor at that time.
    read: u64,
}

fields!(Autotune, "autotune", { since, read });

impl Tcb {
    /// The largest limit of the window: the ring's length, or the application's setting if that
    /// is smaller.
    fn most_unread(&self, limits: &Limits) -> u32 {
        match self.tuning.receive_buffer {
            0 => limits.receive_buffer,
            most => most.min(limits.receive_buffer),
        }
    }

    /// The application has changed the maximum of the window: the window opens to a larger one
    /// at once, and closes to a smaller one as data arrives.
    pub(super) fn bound_receive_window(&mut self, limits: &Limits) {
        let most = self.most_unread(limits);
        if self.rcv.limit > most {
            self.rcv.narrow(most);
        } else if self.tuning.receive_buffer != 0 {
            self.rcv.widen(most);
        }
    }

    /// The application has read, and the window is less than half open.
    pub(super) fn autotune(&mut self, now: Instant, limits: &Limits) {
        let most = self.most_unread(limits);
        if self.rcv.limit >= most {
            if self.rcv.limit > most {
                self.rcv.narrow(most);
            }
            return;
        }
        let round = self.retransmit.srtt.max(MIN_ROUND_TRIP);
        let took = now.since(self.autotune.since);
        if took < round {
            return;
        }
        let read = self.rcv.read - self.autotune.read;
        self.autotune = Autotune {
            since: now,
            read: self.rcv.read,
        };
        let a_round = u128::from(read) * u128::from(round.as_nanos()) / u128::from(took.as_nanos());
        let wanted = (2 * a_round).min(u128::from(most)) as u32;
        if wanted > self.rcv.limit {
            self.rcv.widen(wanted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rcv(limits: &Limits) -> ReceiveSpace {
        let mut rcv = ReceiveSpace::new(limits);
        let options = SynOptions {
            window_scale: Some(0),
            ..SynOptions::default()
        };
        rcv.begin(SeqNum(u32::MAX), None, &options, Instant::ZERO);
        rcv
    }

    #[test]
    fn half_of_a_window_is_half_of_what_can_be_advertised() {
        let mut rcv = rcv(&Limits::default());
        for (shift, limit, half) in [
            (0, 60_000, 30_000),
            (0, 90_000, 32_767),
            (1, 90_000, 45_000),
        ] {
            rcv.shift = shift;
            rcv.widen(limit);
            assert_eq!((rcv.limit, rcv.half), (limit, half));
        }
    }

    #[test]
    fn a_window_is_not_narrowed_below_what_was_advertised() {
        for (limit, is) in [(2_000, 6_000), (6_000, 6_000), (7_000, 7_000)] {
            let mut rcv = rcv(&Limits::default());
            rcv.widen(50_000);
            (rcv.offset, rcv.read) = (1_000, 0);
            rcv.edge = rcv.nxt + 5_000;
            rcv.narrow(limit);
            assert_eq!(rcv.limit, is, "{limit}");
        }
    }

    #[test]
    fn the_shift_is_the_smallest_that_names_the_whole_ring() {
        let shift = |receive_buffer| {
            ReceiveSpace::new(&Limits {
                receive_buffer,
                ..Limits::default()
            })
            .shift
        };
        assert_eq!((shift(1 << 15), shift(1 << 16), shift(1 << 20)), (0, 1, 5));
        assert_eq!(shift(1 << 30), SHIFT_MAX);
    }

    #[test]
    fn the_window_of_a_syn_is_not_scaled_and_the_next_one_names_the_ring() {
        let limits = Limits::default();
        let mut rcv = rcv(&limits);
        assert_eq!(rcv.advertise(&limits, true).0, 0xffff);
        assert_eq!(rcv.wnd(), 0xffff);
        assert_eq!(rcv.advertise(&limits, false), (1 << 15, 1 << 20));
        assert_eq!(rcv.wnd(), 1 << 20);
    }

    #[test]
    fn a_closed_window_is_updated_after_two_segments() {
        let limits = Limits {
            receive_buffer: 1 << 14,
            ..Limits::default()
        };
        let mut rcv = rcv(&limits);
        rcv.advertise(&limits, false);
        rcv.nxt = rcv.edge;
        rcv.offset = 1 << 14;
        rcv.read = 2919;
        assert!(!rcv.needs_window_update(&limits));
        rcv.read = 2920;
        assert!(rcv.needs_window_update(&limits));
    }

    #[test]
    fn an_older_timestamp_is_old_for_24_days() {
        let mut rcv = rcv(&Limits::default());
        rcv.record_timestamp(rcv.nxt, 5, Instant::ZERO);
        let day = crate::time::Duration::from_secs(24 * 3600);
        assert!(rcv.is_outdated(4, Instant::ZERO + day.times(23)));
        assert!(!rcv.is_outdated(4, Instant::ZERO + day.times(24)));
        assert!(!rcv.is_outdated(5, Instant::ZERO) && !rcv.is_outdated(6, Instant::ZERO));
    }
}
