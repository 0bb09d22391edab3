//! Fragments of datagrams, until they are whole (RFC 791 section 3.2, RFC 815, RFC 8200 section
//! 4.5).
//!
//! It is not replicated: the pump keeps it, and passes on only whole datagrams. Everything in
//! it is bounded, and the oldest entries are displaced by new ones: a flood of fragments costs
//! honest datagrams only those in progress, and the first one after it is reassembled. Each
//! source also has a bound, so that a single source displaces its own datagrams first.
//!
//! Fragments that overlap make their datagram suspect. The whole datagram is dropped, including
//! fragments that arrive later (RFC 5722 section 3). Only an exact copy of a fragment, which
//! networks produce without malice, is ignored.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::config::Limits;
use crate::packet::flow::Address;
use crate::time::{Duration, Instant};

/// How long a datagram may take to become whole (RFC 8200 section 4.5; RFC 1122 section 3.3.2: 60 s
/// to 120 s).
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum payload in bytes of a fragmented IPv4 datagram: 65,535 minus the header.
const PAYLOAD_MAX: u32 = 65_515;
/// Maximum for IPv6, whose header does not count (RFC 8200 section 3).
const PAYLOAD_MAX_V6: u32 = 65_535;

/// Bytes that each stored piece or datagram counts in addition to its payload.
const OVERHEAD: usize = 64;

/// The fields that all fragments of one datagram share (RFC 791 section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DatagramId {
    /// Source address.
    pub src: Address,
    /// Destination address.
    pub dst: Address,
    /// Protocol field; 0 for IPv6, where it does not identify a datagram (RFC 8200 section 4.5).
    pub protocol: u8,
    /// Identification field.
    pub ident: u32,
}

/// A fragment that arrived.
#[derive(Clone, Copy, Debug)]
pub struct Fragment<'a> {
    /// The datagram to which it belongs.
    pub id: DatagramId,
    /// Its offset in the datagram in bytes, a multiple of 8.
    pub offset: u32,
    /// Whether others follow it.
    pub more: bool,
    /// Its ECN field (RFC 3168 section 5).
    pub ecn: u8,
    /// The bytes before the payload in its frame; the first fragment's become the datagram's.
    pub head: &'a [u8],
    /// The payload.
    pub payload: &'a [u8],
}

/// Bounds on everything that is stored, as in [`Limits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReassemblyLimits {
    /// [`Limits::reassembly_bytes`].
    pub bytes: usize,
    /// [`Limits::reassembly_datagrams`].
    pub datagrams: usize,
    /// [`Limits::reassembly_per_source`].
    pub per_source: usize,
    /// [`Limits::reassembly_pieces`].
    pub pieces: usize,
}

impl Default for ReassemblyLimits {
    fn default() -> Self {
        Self::from(&Limits::default())
    }
}

impl From<&Limits> for ReassemblyLimits {
    fn from(limits: &Limits) -> Self {
        ReassemblyLimits {
            bytes: limits.reassembly_bytes as usize,
            datagrams: limits.reassembly_datagrams as usize,
            per_source: limits.reassembly_per_source as usize,
            pieces: limits.reassembly_pieces as usize,
        }
    }
}

/// The outcome of a fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reassembled {
    /// It was the last missing one.
    Complete(WholeDatagram),
    /// Others are missing.
    Incomplete,
    /// An identical fragment has already arrived.
    Duplicate,
    /// It is empty, beyond the maximum length, or of odd length (RFC 791 section 3.2).
    Malformed,
    /// It overlaps another fragment, or contradicts the end (RFC 5722 section 3).
    Overlapping,
    /// Its datagram has more pieces than the limit.
    TooManyPieces,
    /// One fragment has a congestion mark, another is not ECN-capable (RFC 3168 section 5.3).
    Congested,
}

/// A datagram that is whole again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeDatagram {
    /// The bytes before the payload of its first fragment.
    pub head: Box<[u8]>,
    /// The payload.
    pub payload: Vec<u8>,
    /// Whether any of its fragments had a congestion mark (RFC 3168 section 5.3).
    pub ce: bool,
}

/// A datagram that timed out after its first fragment had arrived; its sender gets an error
/// (RFC 1122 section 3.3.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expired {
    /// The first fragment's frame, as far as an error quotes it.
    pub quoted: Vec<u8>,
}

/// Bytes of the payload that an error quotes (RFC 792).
const QUOTED: usize = 8;
/// Quoted bytes for IPv6: as many as fit into the minimum MTU (RFC 4443 section 2.4 (c)).
const QUOTED_V6: usize = 1280 - 40 - 8;

/// Congestion experienced, as a bit of [`Partial::ecn`] (RFC 3168 section 5).
const SAW_CE: u8 = 1 << 3;
/// Not capable of ECN.
const SAW_NOT_ECT: u8 = 1;

/// Counts of a [`Reassembly`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReassemblyStats {
    /// Datagrams that became whole.
    pub whole: u64,
    /// Datagrams that timed out.
    pub expired: u64,
    /// Datagrams that were displaced by others.
    pub displaced: u64,
    /// Datagrams that were dropped for overlaps, too many pieces, or inconsistent ECN.
    pub refused: u64,
}

/// A datagram that is not whole yet, or refused.
#[derive(Debug)]
struct Partial {
    id: DatagramId,
    deadline: Instant,
    /// Offsets and bytes, ascending, without overlap. Empty with `refused`.
    pieces: Vec<(u32, Box<[u8]>)>,
    /// Its length, once its last fragment has arrived.
    end: Option<u32>,
    /// The bytes before the payload of the first fragment.
    head: Box<[u8]>,
    /// The ECN fields of its fragments, one bit for each value.
    ecn: u8,
    /// Its cost against the limit.
    cost: usize,
    /// Bytes of its pieces.
    held: u32,
    /// Further fragments are dropped.
    refused: bool,
}

impl Partial {
    /// Whether it has an end and no holes.
    fn is_complete(&self) -> bool {
        self.end == Some(self.held)
    }

    /// The index at which `from..to` may be inserted; otherwise the outcome of the fragment.
    fn place(&self, fragment: &Fragment<'_>, to: u32) -> Result<usize, Reassembled> {
        let from = fragment.offset;
        let at = self.pieces.partition_point(|(begin, _)| *begin < from);
        if let Some((begin, piece)) = self.pieces.get(at)
            && *begin == from
            && **piece == *fragment.payload
            && (self.end == Some(to)) != fragment.more
        {
            return Err(Reassembled::Duplicate);
        }
        let before = at.checked_sub(1).and_then(|i| self.pieces.get(i));
        let runs_into = before.is_some_and(|(begin, piece)| begin + piece.len() as u32 > from);
        let runs_over = self.pieces.get(at).is_some_and(|(begin, _)| *begin < to);
        let last = self.pieces.last();
        let last = last.map_or(0, |(begin, piece)| begin + piece.len() as u32);
        let contradicts = match self.end {
            Some(end) => to > end || !fragment.more,
            None => !fragment.more && to < last,
        };
        if runs_into || runs_over || contradicts {
            return Err(Reassembled::Overlapping);
        }
        Ok(at)
    }
}

/// All datagrams that are not whole yet.
#[derive(Debug)]
pub struct Reassembly {
    limits: ReassemblyLimits,
    /// In the order in which they began, which is the order of their deadlines.
    partial: BTreeMap<u64, Partial>,
    index: HashMap<DatagramId, u64>,
    /// Numbers of each source's datagrams in progress, oldest first.
    sources: HashMap<Address, VecDeque<u64>>,
    expired: Vec<Expired>,
    next: u64,
    bytes: usize,
    stats: ReassemblyStats,
}

impl Reassembly {
    /// Creates an empty reassembly.
    pub fn new(limits: ReassemblyLimits) -> Self {
        Reassembly {
            limits,
            partial: BTreeMap::new(),
            index: HashMap::new(),
            sources: HashMap::new(),
            expired: Vec::new(),
            next: 0,
            bytes: 0,
            stats: ReassemblyStats::default(),
        }
    }

    /// A fragment arrived.
    pub fn insert(&mut self, fragment: &Fragment<'_>, now: Instant) -> Reassembled {
        self.expire(now);
        let len = fragment.payload.len() as u32;
        let to = fragment.offset.saturating_add(len);
        let odd = fragment.more && !len.is_multiple_of(8) || !fragment.offset.is_multiple_of(8);
        let most = if fragment.id.src.is_v4() {
            PAYLOAD_MAX
        } else {
            PAYLOAD_MAX_V6
        };
        if len == 0 || odd || to > most {
            return Reassembled::Malformed;
        }
        let number = self.begin(fragment.id, now);
        let Some(partial) = self.partial.get_mut(&number) else {
            return Reassembled::Malformed;
        };
        if partial.refused {
            return Reassembled::Overlapping;
        }
        let at = match partial.place(fragment, to) {
            Ok(at) if partial.pieces.len() < self.limits.pieces => at,
            Ok(_) => return self.refuse(number, Reassembled::TooManyPieces),
            Err(Reassembled::Duplicate) => return Reassembled::Duplicate,
            Err(what) => return self.refuse(number, what),
        };
        let mut cost = fragment.payload.len() + OVERHEAD;
        partial
            .pieces
            .insert(at, (fragment.offset, fragment.payload.into()));
        if fragment.offset == 0 {
            partial.head = fragment.head.into();
            cost += fragment.head.len();
        }
        partial.ecn |= 1 << (fragment.ecn & 3);
        if partial.ecn & (SAW_CE | SAW_NOT_ECT) == SAW_CE | SAW_NOT_ECT {
            return self.refuse(number, Reassembled::Congested);
        }
        partial.held += len;
        partial.cost += cost;
        self.bytes += cost;
        if !fragment.more {
            partial.end = Some(to);
        }
        if partial.is_complete() {
            self.stats.whole += 1;
            let ce = partial.ecn & SAW_CE != 0;
            let head = core::mem::take(&mut partial.head);
            let pieces = self.remove(number).map(|partial| partial.pieces);
            let pieces = pieces.unwrap_or_default();
            let pieces: Vec<&[u8]> = pieces.iter().map(|(_, piece)| &**piece).collect();
            let payload = pieces.concat();
            return Reassembled::Complete(WholeDatagram { head, payload, ce });
        }
        self.make_room();
        Reassembled::Incomplete
    }

    /// When the oldest datagram times out; [`Instant::NEVER`] if there is none.
    pub fn next_deadline(&self) -> Instant {
        let first = self.partial.first_key_value();
        first.map_or(Instant::NEVER, |(_, partial)| partial.deadline)
    }

    /// Drops the datagrams that timed out.
    pub fn expire(&mut self, now: Instant) {
        while let Some((&number, partial)) = self.partial.first_key_value()
            && partial.deadline <= now
        {
            self.stats.expired += u64::from(!partial.refused);
            if let Some((0, first)) = partial.pieces.first()
                && self.expired.len() < self.limits.datagrams
            {
                let most = if partial.id.src.is_v4() {
                    QUOTED
                } else {
                    QUOTED_V6
                };
                let quoted = &first[..first.len().min(most)];
                let quoted = [&*partial.head, quoted].concat();
                self.expired.push(Expired { quoted });
            }
            self.remove(number);
        }
    }

    /// Takes the datagrams that timed out since the last call, at most
    /// [`ReassemblyLimits::datagrams`].
    pub fn take_expired(&mut self) -> Vec<Expired> {
        core::mem::take(&mut self.expired)
    }

    /// Stored bytes with overhead; at most [`ReassemblyLimits::bytes`] between two calls.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts so far.
    pub const fn stats(&self) -> ReassemblyStats {
        self.stats
    }

    /// The number of the datagram, which is created if it is new.
    fn begin(&mut self, id: DatagramId, now: Instant) -> u64 {
        if let Some(&number) = self.index.get(&id) {
            return number;
        }
        let number = self.next;
        self.next += 1;
        let partial = Partial {
            id,
            deadline: now + TIMEOUT,
            pieces: Vec::new(),
            end: None,
            head: Box::default(),
            ecn: 0,
            cost: OVERHEAD,
            held: 0,
            refused: false,
        };
        self.bytes += partial.cost;
        self.partial.insert(number, partial);
        self.index.insert(id, number);
        let of_source = self.sources.entry(id.src).or_default();
        of_source.push_back(number);
        if of_source.len() > self.limits.per_source.max(1)
            && let Some(&oldest) = of_source.front()
        {
            self.stats.displaced += 1;
            self.remove(oldest);
        }
        self.make_room();
        number
    }

    /// Drops all pieces of a datagram, and marks it so that later ones are dropped too.
    fn refuse(&mut self, number: u64, what: Reassembled) -> Reassembled {
        self.stats.refused += 1;
        if let Some(partial) = self.partial.get_mut(&number) {
            self.bytes -= partial.cost - OVERHEAD;
            partial.cost = OVERHEAD;
            partial.refused = true;
            partial.pieces = Vec::new();
            partial.head = Box::default();
        }
        what
    }

    /// Drops datagrams, the oldest first, until the rest is within the limits.
    fn make_room(&mut self) {
        let limits = self.limits;
        while self.bytes > limits.bytes || self.partial.len() > limits.datagrams.max(1) {
            let Some((&oldest, _)) = self.partial.first_key_value() else {
                return;
            };
            self.stats.displaced += 1;
            self.remove(oldest);
        }
    }

    fn remove(&mut self, number: u64) -> Option<Partial> {
        let partial = self.partial.remove(&number)?;
        self.index.remove(&partial.id);
        if let Some(of_source) = self.sources.get_mut(&partial.id.src) {
            of_source.retain(|other| *other != number);
            if of_source.is_empty() {
                self.sources.remove(&partial.id.src);
            }
        }
        self.bytes -= partial.cost;
        Some(partial)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(ident: u32) -> DatagramId {
        DatagramId {
            src: Address::ipv4(10, 0, 0, 2),
            dst: Address::ipv4(10, 0, 0, 1),
            protocol: 17,
            ident,
        }
    }

    fn fragment(ident: u32, offset: u32, more: bool, payload: &[u8]) -> Fragment<'_> {
        Fragment {
            id: id(ident),
            offset,
            more,
            ecn: 0,
            head: &HEAD,
            payload,
        }
    }

    const HEAD: [u8; 34] = [6; 34];

    fn whole(payload: Vec<u8>) -> Reassembled {
        Reassembled::Complete(WholeDatagram {
            head: HEAD.into(),
            payload,
            ce: false,
        })
    }

    fn reassembly() -> Reassembly {
        Reassembly::new(ReassemblyLimits::default())
    }

    const NOW: Instant = Instant::ZERO;

    #[test]
    fn two_pieces_in_either_order_are_a_datagram() {
        for order in [[0, 1], [1, 0]] {
            let mut r = reassembly();
            let pieces = [
                fragment(1, 0, true, &[1; 16]),
                fragment(1, 16, false, &[2; 3]),
            ];
            assert_eq!(r.insert(&pieces[order[0]], NOW), Reassembled::Incomplete);
            let together = [vec![1; 16], vec![2; 3]].concat();
            assert_eq!(r.insert(&pieces[order[1]], NOW), whole(together));
            assert_eq!((r.bytes(), r.next_deadline()), (0, Instant::NEVER));
        }
    }

    #[test]
    fn an_exact_copy_is_ignored() {
        let mut r = reassembly();
        for piece in [
            fragment(1, 0, true, &[1; 16]),
            fragment(1, 24, false, &[3; 3]),
        ] {
            assert_eq!(r.insert(&piece, NOW), Reassembled::Incomplete);
            assert_eq!(r.insert(&piece, NOW), Reassembled::Duplicate);
        }
        assert!(
            matches!(r.insert(&fragment(1, 16, true, &[2; 8]), NOW), Reassembled::Complete(w) if w.payload.len() == 27)
        );
    }

    #[test]
    fn an_overlap_costs_the_datagram_and_all_that_still_comes_of_it() {
        let overlaps = [
            fragment(1, 8, true, &[9; 16]),
            fragment(1, 0, true, &[9; 16]),
            fragment(1, 0, false, &[9; 9]),
            fragment(1, 0, true, &[1; 24]),
        ];
        for overlap in overlaps {
            let mut r = reassembly();
            r.insert(&fragment(1, 0, true, &[1; 16]), NOW);
            assert_eq!(r.insert(&overlap, NOW), Reassembled::Overlapping);
            let rest = fragment(1, 16, false, &[2; 3]);
            assert_eq!(r.insert(&rest, NOW), Reassembled::Overlapping);
            // Its identification is valid again once the datagram is forgotten.
            let later = NOW + TIMEOUT;
            assert_eq!(r.insert(&rest, later), Reassembled::Incomplete);
            assert_eq!(r.stats().refused, 1);
        }
    }

    #[test]
    fn a_datagram_does_not_end_twice() {
        let mut r = reassembly();
        r.insert(&fragment(1, 16, false, &[2; 8]), NOW);
        let after_its_end = fragment(1, 24, true, &[2; 8]);
        assert_eq!(r.insert(&after_its_end, NOW), Reassembled::Overlapping);
        let mut r = reassembly();
        r.insert(&fragment(1, 16, true, &[2; 8]), NOW);
        assert_eq!(
            r.insert(&fragment(1, 0, false, &[2; 8]), NOW),
            Reassembled::Overlapping
        );
    }

    #[test]
    fn what_cannot_be_a_fragment_is_malformed() {
        let mut r = reassembly();
        let long = vec![0; 65_515];
        for bad in [
            fragment(1, 0, true, &[]),
            fragment(1, 0, true, &[0; 7]),
            fragment(1, 4, false, &[0; 8]),
            fragment(1, 8, false, &long),
            fragment(1, u32::MAX - 7, true, &[0; 8]),
        ] {
            assert_eq!(r.insert(&bad, NOW), Reassembled::Malformed);
        }
        assert_eq!(r.bytes(), 0);
        assert!(matches!(
            r.insert(&fragment(1, 0, false, &long), NOW),
            Reassembled::Complete(_)
        ));
    }

    #[test]
    fn what_takes_too_long_is_given_up() {
        let mut r = reassembly();
        r.insert(&fragment(1, 0, true, &[1; 16]), NOW);
        assert_eq!(r.next_deadline(), NOW + TIMEOUT);
        let late = fragment(1, 16, false, &[2; 3]);
        assert_eq!(r.insert(&late, NOW + TIMEOUT), Reassembled::Incomplete);
        assert_eq!(r.stats().expired, 1);
        let quoted = [&HEAD[..], &[1; 8]].concat();
        assert_eq!(r.take_expired(), [Expired { quoted }]);
        r.expire(NOW + TIMEOUT + TIMEOUT);
        assert_eq!(r.stats().expired, 2);
        assert_eq!(
            r.take_expired(),
            [],
            "of the second one the first fragment never came"
        );
    }

    #[test]
    fn a_mark_on_one_fragment_is_a_mark_on_the_datagram() {
        let marked = |first, second| {
            let mut r = reassembly();
            let mut fragments = [
                fragment(1, 0, true, &[1; 8]),
                fragment(1, 8, false, &[2; 8]),
            ];
            (fragments[0].ecn, fragments[1].ecn) = (first, second);
            r.insert(&fragments[0], NOW);
            r.insert(&fragments[1], NOW)
        };
        assert!(matches!(marked(2, 3), Reassembled::Complete(w) if w.ce));
        assert!(matches!(marked(2, 2), Reassembled::Complete(w) if !w.ce));
        assert_eq!(marked(0, 3), Reassembled::Congested);
    }

    #[test]
    fn one_source_displaces_its_own_datagrams_first() {
        let mut r = reassembly();
        let mut honest = fragment(7, 0, true, &[1; 8]);
        honest.id.src = Address::ipv4(10, 0, 0, 3);
        r.insert(&honest, NOW);
        let most = ReassemblyLimits::default().per_source as u16;
        for ident in 0..3 * most {
            r.insert(&fragment(ident.into(), 0, true, &[0; 8]), NOW);
        }
        assert_eq!(r.stats().displaced, u64::from(2 * most));
        (honest.offset, honest.more) = (8, false);
        assert!(matches!(r.insert(&honest, NOW), Reassembled::Complete(_)));
        assert!(r.sources.len() == 1 && r.sources.values().all(|of| of.len() == most as usize));
    }

    #[test]
    fn as_many_datagrams_are_kept_as_the_limit_says_and_as_many_are_told_of_when_they_expire() {
        let limits = ReassemblyLimits {
            datagrams: 3,
            ..ReassemblyLimits::default()
        };
        let mut r = Reassembly::new(limits);
        let mut now = NOW;
        for round in 0..3 {
            for ident in 0..4 {
                r.insert(&fragment(ident, 0, true, &[0; 8]), now);
                let displaced = round + u64::from(ident == 3);
                assert_eq!(r.stats().displaced, displaced, "{round}, {ident}");
            }
            now += TIMEOUT;
            r.expire(now);
        }
        assert_eq!(r.stats().expired, 9);
        assert_eq!(r.take_expired().len(), 3, "nobody took them meanwhile");
    }

    #[test]
    fn a_datagram_in_too_many_pieces_is_refused() {
        let mut r = reassembly();
        let limit = ReassemblyLimits::default().pieces as u32;
        for i in 0..limit {
            assert_eq!(
                r.insert(&fragment(1, 16 * i, true, &[0; 8]), NOW),
                Reassembled::Incomplete
            );
        }
        let more = fragment(1, 16 * limit, true, &[0; 8]);
        assert_eq!(r.insert(&more, NOW), Reassembled::TooManyPieces);
        assert!(r.bytes() <= OVERHEAD);
    }

    #[test]
    fn honest_datagrams_are_served_during_a_flood_and_right_after_it() {
        let mut r = reassembly();
        let mut now = NOW;
        let mut served = [0, 0];
        let payload = [7; 1480];
        for i in 0..200_000_u32 {
            // 10,000 first fragments a second from everywhere, for 20 seconds.
            now += Duration::from_micros(100);
            let mut flood = fragment(i, 0, true, &payload);
            flood.id.src = Address::v4(0x0b00_0000 + i);
            r.insert(&flood, now);
            assert!(r.bytes() <= ReassemblyLimits::default().bytes);
            // An honest datagram whose second half arrives ten milliseconds later.
            if i % 200 == 0 {
                r.insert(&fragment(i, 0, true, &payload), now);
            } else if i % 200 == 100 {
                let whole = r.insert(&fragment(i - 100, 1480, false, &payload), now);
                served[usize::from(matches!(whole, Reassembled::Complete(_)))] += 1;
            }
        }
        assert_eq!(served, [0, 1000]);
        now += Duration::from_millis(1);
        r.insert(&fragment(1, 0, true, &payload), now);
        // Without a flood, half a second between its halves does no harm.
        now += Duration::from_millis(500);
        let whole = r.insert(&fragment(1, 1480, false, &payload), now);
        assert!(matches!(whole, Reassembled::Complete(_)));
    }

    /// The byte-by-byte union of one datagram's fragments.
    #[derive(Default)]
    struct Oracle {
        octets: BTreeMap<u32, u8>,
        /// Fragments in order of arrival: offset, bytes, whether others follow.
        seen: Vec<(u32, Vec<u8>, bool)>,
        end: Option<u32>,
        refused: bool,
    }

    impl Oracle {
        fn insert(&mut self, f: &Fragment<'_>) -> Reassembled {
            let to = f.offset + f.payload.len() as u32;
            if self.refused {
                return Reassembled::Overlapping;
            }
            if self.seen.contains(&(f.offset, f.payload.to_vec(), f.more)) {
                return Reassembled::Duplicate;
            }
            let overlaps = (f.offset..to).any(|at| self.octets.contains_key(&at));
            let beyond = self.end.is_some_and(|end| to > end || !f.more);
            let last = self.octets.last_key_value().map_or(0, |(at, _)| at + 1);
            if overlaps || beyond || !f.more && to < last {
                self.refused = true;
                return Reassembled::Overlapping;
            }
            self.seen.push((f.offset, f.payload.to_vec(), f.more));
            self.octets
                .extend((f.offset..to).zip(f.payload.iter().copied()));
            if !f.more {
                self.end = Some(to);
            }
            if self.end != Some(self.octets.len() as u32) {
                return Reassembled::Incomplete;
            }
            let done = core::mem::take(self);
            whole(done.octets.into_values().collect())
        }
    }

    proptest! {
        /// Any fragmentation, in any order and with copies, yields the datagram once.
        #[test]
        fn every_cut_in_every_order_becomes_the_datagram(
            len in 9_u32..20_000,
            cuts in proptest::collection::btree_set(1_u32..2_500, 1..40),
            order in proptest::collection::vec(any::<u32>(), 41),
            copies in proptest::collection::vec(any::<bool>(), 41),
        ) {
            let datagram: Vec<u8> = (0..len).map(|i| (i.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
            let mut bounds = vec![0];
            bounds.extend(cuts.iter().map(|cut| cut * 8).filter(|cut| *cut < len));
            bounds.push(len);
            prop_assume!(bounds.len() > 2);
            let mut pieces: Vec<_> = bounds.windows(2).enumerate().map(|(i, b)| (order[i], i, b[0], b[1])).collect();
            pieces.sort_unstable();
            let last = pieces.len() - 1;
            let mut r = reassembly();
            for (n, &(_, i, from, to)) in pieces.iter().enumerate() {
                let piece = fragment(1, from, to < len, &datagram[from as usize..to as usize]);
                let outcome = r.insert(&piece, NOW);
                if n == last {
                    prop_assert_eq!(outcome, whole(datagram.clone()));
                } else {
                    prop_assert_eq!(outcome, Reassembled::Incomplete);
                    if copies[i] {
                        prop_assert_eq!(r.insert(&piece, NOW), Reassembled::Duplicate);
                    }
                }
            }
            prop_assert_eq!(r.bytes(), 0);
        }

        /// Compared with an oracle: a map from offset to byte, and whether any fragment disagreed.
        #[test]
        fn random_fragments_are_put_together_as_an_oracle_does(
            fragments in proptest::collection::vec((0_u32..6, 1_usize..4, any::<bool>(), 0_u8..2), 1..24),
        ) {
            let mut r = reassembly();
            let mut oracle = Oracle::default();
            for (place, units, more, fill) in fragments {
                // A last fragment may have any length.
                let len = if more { units * 8 } else { units * 8 - 3 };
                let payload = vec![fill; len];
                let piece = fragment(1, place * 8, more, &payload);
                prop_assert_eq!(r.insert(&piece, NOW), oracle.insert(&piece));
            }
        }

        /// Storage stays within the limits, and whole datagrams consist of bytes that arrived.
        #[test]
        fn nothing_breaks_the_limits(
            fragments in proptest::collection::vec(
                (0_u16..4, 0_u32..12, any::<bool>(), 0_usize..40, any::<u8>(), 0_u64..4_000),
                0..200,
            ),
        ) {
            let limits = ReassemblyLimits { bytes: 600, datagrams: 3, per_source: 3, pieces: 4 };
            let mut r = Reassembly::new(limits);
            let mut now = NOW;
            for (ident, place, more, len, fill, wait) in fragments {
                now += Duration::from_millis(wait);
                let payload = vec![fill; len];
                if let Reassembled::Complete(whole) = r.insert(&fragment(ident.into(), place * 8, more, &payload), now) {
                    prop_assert!(whole.payload.len() >= len);
                }
                prop_assert!(r.bytes() <= limits.bytes && r.partial.len() <= limits.datagrams);
                prop_assert_eq!(r.partial.len(), r.index.len());
                prop_assert_eq!(r.partial.len(), r.sources.values().map(VecDeque::len).sum::<usize>());
                prop_assert_eq!(r.bytes(), r.partial.values().map(|p| p.cost).sum::<usize>());
                prop_assert!(r.next_deadline() > now);
            }
        }
    }
}
