//! Received bytes: primaries store them in any order, and the application reads them in order.
//!
//! Each delivery has a slot, which is stamped once its bytes are in the ring. The docs of
//! `stream.rs` define which thread may access which byte.

use core::num::NonZeroU32;
use core::sync::atomic::Ordering;

use super::byte_ring::{ByteRing, Parts, Words};
use super::{IS_KNOWN, StreamRef};
use crate::log::effect::Deliver;
use crate::seqnum::SeqNum;

/// Bits of a delivery stamp that hold the stream's end, modulo 2^35; the other bits distinguish
/// rounds.
const END_BITS: u32 = 35;

/// The receive side of a stream, made when its first byte arrives.
pub(super) struct Incoming {
    ring: ByteRing,
    /// The delivery slots.
    pub(super) delivered: Words,
}

impl Incoming {
    /// The end of the delivered bytes according to the newest stamp, even if earlier stamps are
    /// missing; at least `read`.
    #[cold]
    pub(super) fn delivered_end(&self, read: u64) -> u64 {
        // ORDERING: Relaxed: the caller knows that no thread is about to stamp.
        let found = self
            .delivered
            .iter()
            .map(|slot| slot.load(Ordering::Relaxed));
        let stamps = found.filter(|&found| found != 0);
        stamps.fold(read, |end, found| end.max(end_of(found, read)))
    }

    /// Clears the slots for the next connection. Returns the end of the delivered bytes; at least
    /// `read`.
    pub(super) fn clear(&self, read: u64) -> u64 {
        let mut end = read;
        for slot in self.delivered.iter() {
            // ORDERING: Relaxed both, as above. Loading from a page that was returned to the system
            // allocates none; storing would.
            let found = slot.load(Ordering::Relaxed);
            if found != 0 {
                end = end_of(found, end);
                slot.store(0, Ordering::Relaxed);
            }
        }
        end
    }

    /// Returns the memory of the ring and of the slots to the system.
    ///
    /// # Safety
    /// No primary stores or stamps meanwhile, and no reader has a slice of the ring, or relies on
    /// its bytes or on a slot.
    pub(super) unsafe fn discard(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            self.delivered.discard();
            self.ring.discard();
        }
    }
}

#[cfg(all(test, not(netstack_loom)))]
impl Incoming {
    /// Bytes in the ring, for a test whose only thread has no slice of it.
    pub(super) fn bytes_at(&self, offset: u64, len: usize) -> Vec<u8> {
        // SAFETY: the caller's promise.
        let (a, b) = unsafe { self.ring.read(offset, len) };
        [a, b].concat()
    }
}

impl<'a> StreamRef<'a> {
    /// The receive side; makes it for the first bytes that arrive.
    #[inline]
    pub(super) fn incoming(&self) -> &'a Incoming {
        self.stream.incoming.get_or_init(|| Incoming {
            ring: self.streams.table.receive_blocks().make(self.stream.index),
            delivered: self
                .streams
                .table
                .slot_blocks()
                .make_words(self.stream.index),
        })
    }

    /// Sets the sequence number of the first byte of the receive stream.
    #[inline]
    pub(crate) fn set_first_sequence(&self, seq: SeqNum) {
        let word = &self.stream.stack.first;
        if word.load(Ordering::Relaxed) == 0 {
            // ORDERING: Relaxed: a number that is valid whenever it is seen.
            word.store(IS_KNOWN | u64::from(seq.0), Ordering::Relaxed);
        }
    }

    /// Reserves bytes of the ring for the payload of a run before the run is applied, if possible:
    /// `len` bytes from `seq` on. `app_read` is the application's cursor. Returns the low half of
    /// their offset. Only the pump may call this, once for every run with payload that it publishes
    /// for this stream. The worker that determines the verdict of the run stores the payload with
    /// [`StreamRef::store_ahead`] before the verdict; no other thread does.
    #[inline]
    pub(crate) fn reserve(&self, seq: SeqNum, len: u32, app_read: u64) -> Option<NonZeroU32> {
        let first = self.stream.stack.first.load(Ordering::Relaxed);
        if first == 0 {
            return None;
        }
        // A power of two.
        let size = self.streams.receive_len as u64;
        let edge = app_read + size;
        let mark = match self.stream.pump.published_end.load(Ordering::Relaxed) {
            0 => edge,
            mark => mark,
        };
        // Of all offsets that `seq` may mean, take the one nearest to the mark.
        let ahead = seq.0.wrapping_sub(first as u32).wrapping_sub(mark as u32) as i32;
        let offset = mark.checked_add_signed(i64::from(ahead))?;
        let end = offset + u64::from(len);
        let fits = ahead == 0 && end <= edge && (offset & (size - 1)) + u64::from(len) <= size;
        // Bytes after a gap are not reserved: `apply` may refuse them, and storing them would touch
        // a page for nothing. Bytes beyond the edge are refused.
        self.stream
            .pump
            .published_end
            .store(mark.max(end.min(edge)), Ordering::Relaxed);
        NonZeroU32::new(offset as u32).filter(|_| fits)
    }

    /// Lets `fill` write the `len` bytes at `offset`, which [`StreamRef::reserve`] reserved for
    /// this run.
    #[inline]
    pub(crate) fn store_ahead<R>(
        &self,
        offset: NonZeroU32,
        len: u32,
        fill: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        // SAFETY: `reserve` gave these bytes to one run. Only one thread calls this for it: the one
        // that has begun its verdict, the pump before it publishes the run, or the one that owns
        // the state alone (docs of `stream.rs`).
        unsafe {
            self.incoming()
                .ring
                .write_at(u64::from(offset.get()), len as usize, fill)
        }
    }

    // The primaries' side.

    /// Copies `from`, the part of the delivery `deliver` that begins `skip` bytes into it, into the
    /// ring.
    #[inline]
    pub(crate) fn store(&self, deliver: &Deliver, skip: u32, from: &[u8]) {
        debug_assert!(skip as usize + from.len() <= deliver.len as usize);
        // SAFETY: `apply` names each byte of a stream in exactly one Deliver, below `app_read` plus
        // the ring's length, and one thread at a time performs a Deliver: in a group, the worker
        // that has begun its batch (docs of `stream.rs`).
        unsafe {
            self.incoming()
                .ring
                .write(deliver.stream_offset + u64::from(skip), from);
        }
    }

    /// Notes that bytes before `end` were stored after a gap in the stream. Must be called before
    /// their delivery is stamped.
    #[cold]
    pub(crate) fn stored_behind_gap(&self, end: u64) {
        // ORDERING: Relaxed: the pump reads it only when all published requests are performed.
        self.stream.stack.gap_end.fetch_max(end, Ordering::Relaxed);
    }

    /// Stamps delivery number `deliver.delivery`: all its bytes are in the ring. The caller wakes
    /// the application afterwards.
    #[inline]
    pub(crate) fn stamp(&self, deliver: &Deliver) {
        let incoming = self.incoming();
        let slots = incoming.delivered.len() as u64;
        let slot = &incoming.delivered[(deliver.delivery & (slots - 1)) as usize];
        // ORDERING: Release, pairs with the Acquire in `follow`: a thread that sees the stamp sees
        // the bytes.
        slot.store(
            stamp(deliver.delivery, slots, deliver.end),
            Ordering::Release,
        );
    }

    // The application's side.

    /// Advances `seen` along the delivery slots; afterwards `seen.arrived` is the end of the
    /// received stream.
    pub(crate) fn follow(&self, seen: &mut DeliveryCursor) {
        // ORDERING: the Acquire in `get` pairs with the Release that ends `get_or_init`. Nothing is
        // lost if the ring is not seen yet: a waiting thread has called `prepare` before this look,
        // and its fence pairs with the one of the wake-up, which follows the first stamp.
        let Some(incoming) = self.stream.incoming.get() else {
            return;
        };
        let slots = incoming.delivered.len() as u64;
        let DeliveryCursor {
            mut next,
            mut arrived,
            ..
        } = *seen;
        // The last stamp that was followed; only its end counts.
        let mut last = arrived;
        'round: loop {
            let tag = lap_tag(next, slots);
            for slot in &incoming.delivered[(next & (slots - 1)) as usize..] {
                // ORDERING: Acquire, pairs with the Release in `stamp`.
                let found = slot.load(Ordering::Acquire);
                if found >> END_BITS != tag {
                    let Some(laps) = laps_ahead(found, next, slots) else {
                        let Some(skipped) = self.skip_unstamped(found, next) else {
                            break 'round;
                        };
                        arrived = end_of(last, arrived).max(skipped.1);
                        (next, last) = (skipped.0, arrived);
                        continue 'round;
                    };
                    // A newer stamp: all deliveries up to one round before it are complete,
                    // including this one.
                    next += (laps.max(1) - 1) * slots + 1;
                    continue 'round;
                }
                last = found;
                next += 1;
            }
        }
        (seen.next, seen.arrived) = (next, end_of(last, arrived));
    }

    /// If `found` is blank because the stamp of delivery `next` was lost when its slot's memory was
    /// returned: the first delivery after all lost ones, and an offset that the stream reaches at
    /// least.
    #[inline]
    fn skip_unstamped(&self, found: u64, next: u64) -> Option<(u64, u64)> {
        if found != 0 {
            return None;
        }
        // ORDERING: Acquire, pairs with the Release in `give_back_received`, which comes before
        // the slots change.
        let unstamped = self.stream.stack.unstamped.load(Ordering::Acquire);
        // All bytes of those deliveries had been read by then.
        (next < unstamped).then(|| (unstamped, self.stream.app.read.load(Ordering::Relaxed)))
    }

    // The pump's side.

    /// Whether there are received bytes that are not read: they may be readable, come after a gap
    /// or be part of a unit. Also returns the number of the next delivery. Only the pump may call
    /// this, when every published request about the connection is performed.
    fn unread(&self) -> (bool, u64) {
        let app = &self.stream.app;
        // ORDERING: Acquire, pairs with the Release in `read`: bytes that were given up are not
        // accessed.
        let read = app.read.load(Ordering::Acquire);
        // Start from the delivery that the reader saw last: its stamp has the end of those before
        // it.
        let mut seen = DeliveryCursor {
            next: app.next.load(Ordering::Relaxed).saturating_sub(1),
            arrived: read,
            end: read,
        };
        self.follow(&mut seen);
        let gap_end = self.stream.stack.gap_end.load(Ordering::Relaxed);
        (seen.arrived > read || gap_end > read, seen.next)
    }

    /// Returns the memory of the receive ring and of its slots to the system, unless there are
    /// unread bytes. Returns whether nothing is left to be returned. Only the pump may call this,
    /// when every published request about the connection is performed; `io/rx/connections.rs` explains why
    /// that suffices.
    #[cold]
    pub(crate) fn give_back_received(&self) -> bool {
        let Some(incoming) = self.stream.incoming.get() else {
            return true;
        };
        let (is_unread, next) = self.unread();
        // Bytes may be there even if a reader would find none, since a stamp may be missing.
        let read = self.stream.app.read.load(Ordering::Relaxed);
        if is_unread || incoming.delivered_end(read) > read {
            return false;
        }
        let unstamped = &self.stream.stack.unstamped;
        if unstamped.load(Ordering::Relaxed) != next {
            // ORDERING: Release, pairs with the Acquire in `skip_unstamped`.
            unstamped.store(next, Ordering::Release);
            // SAFETY: no primary stores or stamps, and the pump, which runs this, publishes nothing
            // that would let one do so. The application reads no byte of the ring, since all
            // received bytes are read. It treats a blank stamp as missing or, below `unstamped`, as
            // read.
            unsafe { incoming.discard() };
        }
        true
    }

    /// As [`StreamRef::give_back_received`], but loses unread bytes: a fault that a test injects.
    #[cfg(feature = "testkit")]
    pub(crate) fn lose_received(&self) {
        if let Some(incoming) = self.stream.incoming.get() {
            // SAFETY: the test's only thread runs this, and has no slice of the ring.
            unsafe { incoming.ring.discard() };
        }
    }

    /// Makes the next read notify the pump, until a frame advertises a window again. Returns the
    /// edge of the advertised window, for [`StreamRef::advertised`].
    pub(crate) fn ask_for_read(&self) -> u64 {
        // ORDERING: Relaxed: a hint, as in `advertised`.
        let advertised = &self.stream.stack.advertised;
        advertised.swap(0, Ordering::Relaxed)
    }

    // The application's side.

    /// Received bytes below `seen.end` that are not read yet, in place.
    ///
    /// The slices borrow `seen`, so they end before [`StreamRef::read`] gives their bytes up.
    pub(crate) fn received<'s>(&self, seen: &'s DeliveryCursor) -> Parts<'s>
    where
        'a: 's,
    {
        let Some(incoming) = self.stream.incoming.get() else {
            return (&[], &[]);
        };
        let from = self.stream.app.read.load(Ordering::Relaxed);
        // SAFETY: bytes below `seen.end` are stamped, and bytes above `read` are not given up, so
        // no Deliver names them again (module docs). The slices end before `read` moves, which
        // takes `seen` mutably.
        unsafe { incoming.ring.read(from, (seen.end - from) as usize) }
    }

    /// The `len` received bytes at `offset`, in place, for a thread that works on them. They must
    /// be above the application's read cursor and below `arrived` of a cursor that was
    /// [followed](StreamRef::follow); their reader must not [give them up](StreamRef::read) before
    /// that thread is done.
    pub(crate) fn arrived(&self, offset: u64, len: usize) -> Parts<'a> {
        match self.stream.incoming.get() {
            // SAFETY: they are stamped and not given up, so no Deliver names them again (module
            // docs), and the caller guarantees that this holds while it has the slices.
            Some(incoming) => unsafe { incoming.ring.read(offset, len) },
            None => (&[], &[]),
        }
    }

    /// Gives `len` more bytes up. Returns whether the pump should be notified, because the window
    /// is less than half open and can be opened by a worthwhile amount.
    pub(crate) fn read(&self, len: usize, seen: &mut DeliveryCursor, mss: u32) -> bool {
        let read = self.stream.app.read.load(Ordering::Relaxed) + len as u64;
        // Memory above `seen.end` is still being written, so this check is needed for every caller.
        assert!(read <= seen.end, "more is given back than was received");
        // ORDERING: Release, pairs with the Acquire in `progress`: the slices end before this
        // store.
        self.stream.app.read.store(read, Ordering::Release);
        // ORDERING: Relaxed: an older number only makes a look begin earlier.
        self.stream.app.next.store(seen.next, Ordering::Relaxed);
        let size = u64::from(self.stream.stack.limit.load(Ordering::Relaxed));
        let advertised = self.stream.stack.advertised.load(Ordering::Relaxed);
        let gain = (read + size).saturating_sub(advertised);
        let left = advertised.saturating_sub(seen.end);
        gain >= u64::from(2 * mss).min(size / 2) && left < size / 2
    }
}

/// How far the application followed the delivery slots.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DeliveryCursor {
    /// Number of the next delivery to look for.
    pub(super) next: u64,
    /// All bytes below this offset are in the ring.
    pub(crate) arrived: u64,
    /// Bytes below this offset are readable.
    pub(crate) end: u64,
}

impl DeliveryCursor {
    /// A copy, for slices that outlive the call that found their bytes. The caller must not let
    /// [`StreamRef::read`] give any of them up while the slices live.
    pub(crate) fn lent_copy(&self) -> DeliveryCursor {
        DeliveryCursor { ..*self }
    }
}

/// Tag 0 means "never stamped", so laps are counted from 1.
fn stamp(delivery: u64, slots: u64, end: u64) -> u64 {
    (lap_tag(delivery, slots) << END_BITS) | (end & ((1 << END_BITS) - 1))
}

/// The end that `stamp` names, for a reader that knows the stream up to `arrived`: the nearest
/// offset with these bits, but at least `arrived`.
#[inline(always)]
fn end_of(stamp: u64, arrived: u64) -> u64 {
    let ahead = (stamp.wrapping_sub(arrived) << (64 - END_BITS)) as i64 >> (64 - END_BITS);
    arrived.wrapping_add(ahead.max(0) as u64)
}

/// A power of two, so that division is fast, and less than the number of tags.
const LAP_TAGS: u64 = 1 << (63 - END_BITS);

/// The fewest delivery slots with which a reader can distinguish every stamp from an older one, in
/// a ring of `receive_len` bytes. Each unread delivery has at least one byte in the ring.
pub(super) const fn fewest_slots(receive_len: u64) -> u64 {
    receive_len / (LAP_TAGS / 2 - 1) + 1
}

fn lap_tag(delivery: u64, slots: u64) -> u64 {
    (delivery >> slots.trailing_zeros()) % LAP_TAGS + 1
}

/// How many rounds after `delivery` the stamp `found` was made; `None` if it is older.
fn laps_ahead(found: u64, delivery: u64, slots: u64) -> Option<u64> {
    let tag = found >> END_BITS;
    if tag == 0 {
        return None;
    }
    let ahead = (tag + LAP_TAGS - lap_tag(delivery, slots)) % LAP_TAGS;
    (ahead < LAP_TAGS / 2).then_some(ahead)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_told_from_one_of_the_round_before_whatever_is_not_read_between_them() {
        for len in [1 << 10, 1 << 20, 1 << 23, 1 << 30] {
            let fewest = fewest_slots(len).next_power_of_two();
            for slots in [fewest, 16, 128, 512, 1 << 16].map(|slots| slots.max(fewest)) {
                // One byte per delivery, and the delivery that the reader saw last.
                let most = (len + 1) / slots;
                for next in [slots, 3 * slots + 1, LAP_TAGS * slots - 1, 1 << 60] {
                    for laps in [0, 1, 2, most / 2, most.saturating_sub(1), most] {
                        let found = stamp(next + laps * slots, slots, 7);
                        let ahead = laps_ahead(found, next, slots);
                        assert_eq!(ahead, Some(laps), "{slots} slots for {len} bytes, {next}");
                    }
                    let older = stamp(next - slots, slots, 7);
                    assert_eq!(laps_ahead(older, next, slots), None, "{slots} slots");
                }
            }
        }
        assert_eq!(fewest_slots(1 << 30).next_power_of_two(), 16);
        assert_eq!(laps_ahead(0, 5, 16), None);
    }

    #[test]
    fn an_end_is_the_nearest_one_that_is_not_behind() {
        for arrived in [0, 5, (1 << 35) - 1, 1 << 35, (1 << 48) - 1, (1 << 60) + 7] {
            for more in [0, 1, 1 << 30, (1 << 34) - 1] {
                let found = stamp(9, 16, arrived + more);
                assert_eq!(end_of(found, arrived), arrived + more);
                assert_eq!(
                    end_of(stamp(9, 16, arrived), arrived + more),
                    arrived + more
                );
            }
        }
    }
}
