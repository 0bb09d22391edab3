//! The streams of a group.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;
use std::sync::Once;

use super::byte_ring::RingBlocks;
use super::delivery::fewest_slots;
use super::send::FIRST_SEND;
use super::{Stream, StreamRef, UNKNOWN, flag};
use crate::config::{Limits, Settings};
use crate::io::sync::{AtomicU64, fence};
use crate::log::request::ConnId;

/// A closed connection leaves rings of which it used fewer than this many bytes to the next
/// connection with its stream: mapping them again would cost more than they do.
const KEPT: u64 = 64 << 10;

/// Memory of a stream that may not have been made yet.
struct Slot(UnsafeCell<MaybeUninit<Stream>>);

// SAFETY: a slot is written once, in `StreamTable::make`, and read only by threads that know that
// it was written (`Streams::entries`); from then on it is a `Stream`, which is `Sync`.
unsafe impl Sync for Slot where Stream: Sync {}

// SAFETY: as above; any thread may drop it, as it may drop a `Stream`.
unsafe impl Send for Slot where Stream: Send {}

/// The memory of a group's streams, one for each entry of its connection table.
///
/// A stream is made when its entry is first used. Until then its memory is reserved but not
/// touched, so an unused table costs little.
pub(super) struct StreamTable {
    slots: Box<[Slot]>,
    /// For each stream, whether it was made.
    once: Box<[Once]>,
    /// Memory of the receive rings.
    receive: RingBlocks,
    /// Memory of the send rings.
    send: RingBlocks,
    /// Memory of the delivery slots.
    delivery: RingBlocks,
    /// The initial settings of each stream.
    settings: Settings,
}

impl StreamTable {
    /// `delivery_slots` is a power of two, at least as large as the log. The table has more slots
    /// if stamps need them in a ring of this length.
    fn new(limits: &Limits, delivery_slots: usize) -> StreamTable {
        assert!(delivery_slots.is_power_of_two());
        let fewest = fewest_slots(u64::from(limits.receive_buffer)).next_power_of_two();
        let delivery_slots = delivery_slots.max(fewest as usize);
        let len = limits.connections as usize;
        let slots = Box::<[Slot]>::new_uninit_slice(len);
        StreamTable {
            // SAFETY: a slot is a `MaybeUninit`, which needs no value.
            slots: unsafe { slots.assume_init() },
            once: (0..len).map(|_| Once::new()).collect(),
            receive: RingBlocks::new(len, limits.receive_buffer as usize),
            send: RingBlocks::new(len, limits.send_buffer as usize),
            delivery: RingBlocks::new(len, delivery_slots * size_of::<u64>()),
            settings: limits.settings(),
        }
    }

    /// The stream of an entry.
    ///
    /// # Safety
    /// The stream was made, and the caller has synchronized with its making through a Release and
    /// an Acquire.
    #[inline]
    unsafe fn get(&self, index: u32) -> &Stream {
        debug_assert!((index as usize) < self.slots.len());
        // SAFETY: the caller guarantees that it was made, so the table has its slot; after that
        // only its fields are written, through shared references.
        unsafe { (*self.slots.get_unchecked(index as usize).0.get()).assume_init_ref() }
    }

    /// Makes the stream of an entry unless it exists. Returns it; `None` if there is no such entry.
    #[cold]
    pub(super) fn make(&self, index: u32) -> Option<&Stream> {
        let slot = self.slots.get(index as usize)?;
        self.once[index as usize].call_once(|| {
            // SAFETY: it was not made, so there is no reference to it, and `call_once` lets only
            // one thread do this, once.
            unsafe { (*slot.0.get()).write(Stream::new(index, self.settings)) };
        });
        // SAFETY: it was made above, by this thread or by one that `call_once` waited for.
        Some(unsafe { self.get(index) })
    }

    /// Memory of the receive rings, indexed by the entry of their stream.
    pub(super) fn receive_blocks(&self) -> &RingBlocks {
        &self.receive
    }

    /// Memory of the send rings, indexed by the entry of their stream.
    pub(super) fn send_blocks(&self) -> &RingBlocks {
        &self.send
    }

    /// Memory of the delivery slots, indexed by the entry of their stream.
    pub(super) fn slot_blocks(&self) -> &RingBlocks {
        &self.delivery
    }

    /// The streams that were made.
    pub(super) fn all(&self) -> impl Iterator<Item = &Stream> {
        let slots = self.once.iter().zip(&*self.slots);
        // ORDERING: the Acquire in `is_completed` pairs with the Release that ends `call_once` in
        // `make`.
        let made = slots.filter(|(once, _)| once.is_completed());
        // SAFETY: it was made.
        made.map(|(_, slot)| unsafe { (*slot.0.get()).assume_init_ref() })
    }
}

impl Drop for StreamTable {
    fn drop(&mut self) {
        for (once, slot) in self.once.iter().zip(&*self.slots) {
            if once.is_completed() {
                // SAFETY: it was made, and all references that the table lent are gone.
                unsafe { (*slot.0.get()).assume_init_drop() };
            }
        }
    }
}

/// The lower half of an entry's word: whether its stream is made.
const UNMADE: u32 = 0;
const MADE: u32 = 1;

/// The streams of a group.
pub(crate) struct Streams {
    /// For each entry of the connection table: in the upper half the generation of its connection,
    /// in the lower [`MADE`] or [`UNMADE`].
    entries: Box<[AtomicU64]>,
    pub(super) table: StreamTable,
    pub(super) receive_len: usize,
    pub(super) send_len: usize,
    /// Bytes that may be written before any is released.
    pub(crate) first_send: u64,
}

impl Streams {
    /// `delivery_slots` is a power of two, at least as large as the log.
    pub(crate) fn new(limits: &Limits, delivery_slots: usize) -> Self {
        let entries = (0..limits.connections).map(|_| AtomicU64::new(word(0, UNMADE)));
        Streams {
            entries: entries.collect(),
            table: StreamTable::new(limits, delivery_slots),
            receive_len: limits.receive_buffer as usize,
            send_len: limits.send_buffer as usize,
            first_send: FIRST_SEND,
        }
    }

    /// The stream of a connection, while the entry still belongs to it.
    #[inline]
    pub(crate) fn get(&self, conn: ConnId) -> Option<StreamRef<'_>> {
        let entry = self.entries.get(conn.index as usize)?;
        // ORDERING: Acquire, pairs with the Release in `recycle` and `first_use`: a thread that
        // sees the new connection sees its cursors, and a thread that sees that its stream is made
        // sees the stream.
        let found = entry.load(Ordering::Acquire);
        let stream = if found == word(conn.generation, MADE) {
            // SAFETY: it was made, as the word of the entry shows.
            unsafe { self.table.get(conn.index) }
        } else if found == word(conn.generation, UNMADE) {
            self.first_use(conn.index)?
        } else {
            return None;
        };
        Some(StreamRef {
            streams: self,
            stream,
            generation: conn.generation,
        })
    }

    /// Makes the stream of an entry that is used for the first time.
    #[cold]
    fn first_use(&self, index: u32) -> Option<&Stream> {
        let entry = self.entries.get(index as usize)?;
        let stream = self.table.make(index)?;
        let (unused, used) = (word(0, UNMADE), word(0, MADE));
        // Fails if another thread has done it meanwhile; the entry may even have been recycled.
        // ORDERING: Release, pairs with the Acquire in `get`.
        let _ = entry.compare_exchange(unused, used, Ordering::Release, Ordering::Relaxed);
        Some(stream)
    }

    /// Makes an entry available to its next connection. Returns the memory of heavily used rings to
    /// the system; returns whether there were any.
    ///
    /// Only the pump may call this, when all work of the former connection is done and its socket
    /// is gone.
    pub(crate) fn recycle(&self, conn: ConnId) -> bool {
        let Some(held) = self.get(conn) else {
            return false;
        };
        let stream = held.stream;
        // SAFETY: only the pump calls this, when all work of the connection is done and its socket
        // is gone, so no thread uses the rings. `assign` has not named the next connection yet.
        let is_discarded = unsafe { held.clear_rings() };
        stream.app.read.store(0, Ordering::Relaxed);
        stream.app.next.store(0, Ordering::Relaxed);
        stream.app.written.store(0, Ordering::Relaxed);
        stream.app.shortages.store(0, Ordering::Relaxed);
        stream.app.misses.store(0, Ordering::Relaxed);
        stream.app.requests.store(0, Ordering::Relaxed);
        stream.app.options.reset(self.table.settings);
        stream.app.send_limit.store(0, Ordering::Relaxed);
        stream.app.notsent_lowat.store(0, Ordering::Relaxed);
        stream.app.send_user.store(0, Ordering::Relaxed);
        let generation = held.generation.wrapping_add(1);
        stream
            .app
            .dirty
            .store(flag(generation, false), Ordering::Relaxed);
        stream.stack.released.store(0, Ordering::Relaxed);
        stream.stack.numbered.store(0, Ordering::Relaxed);
        stream.stack.peer_end.store(UNKNOWN, Ordering::Relaxed);
        stream.stack.advertised.store(0, Ordering::Relaxed);
        stream.stack.limit.store(0, Ordering::Relaxed);
        stream.stack.ended_at.store(0, Ordering::Relaxed);
        stream.stack.gap_end.store(0, Ordering::Relaxed);
        stream.stack.first.store(0, Ordering::Relaxed);
        stream.pump.published_end.store(0, Ordering::Relaxed);
        stream.stack.unstamped.store(0, Ordering::Relaxed);
        stream.pump.unwritten.store(0, Ordering::Relaxed);
        stream.stack.status.store(0, Ordering::Relaxed);
        if let Some(entry) = self.entries.get(conn.index as usize) {
            // ORDERING: Release, pairs with the Acquire in `get`.
            entry.store(word(generation, MADE), Ordering::Release);
        }
        is_discarded
    }

    /// The streams that were made.
    fn all(&self) -> impl Iterator<Item = StreamRef<'_>> {
        self.table.all().filter_map(|stream| {
            let entry = self.entries.get(stream.index as usize)?;
            Some(StreamRef {
                streams: self,
                stream,
                // ORDERING: Acquire, as in `get`.
                generation: (entry.load(Ordering::Acquire) >> 32) as u32,
            })
        })
    }

    /// The streams of established connections that are not closed.
    pub(crate) fn established(&self) -> impl Iterator<Item = StreamRef<'_>> {
        self.all().filter(|stream| {
            let status = stream.status();
            status.established() && !status.is_over()
        })
    }

    /// The streams with written bytes.
    pub(crate) fn written(&self) -> impl Iterator<Item = StreamRef<'_>> {
        self.all().filter(|stream| stream.cursors().1 > 0)
    }

    /// Wakes every waiting application, because the stack is shut down.
    pub(crate) fn wake_all(&self) {
        // ORDERING: the fence pairs with the one in `EventCount::prepare`: a thread that waits at a
        // stream which is being made now, and is not seen here, sees that the stack is shut down.
        fence(Ordering::SeqCst);
        for stream in self.table.all() {
            stream.notify();
        }
    }
}

impl StreamRef<'_> {
    /// Prepares the rings for the next connection. Returns the memory of heavily used rings to the
    /// system, since the next connection may come late and need less. Returns whether there was
    /// such a ring.
    ///
    /// # Safety
    /// All work of the connection is done, so no primary stores, stamps or sends; its socket is
    /// gone, so no application reads or writes; and the next connection begins after this call.
    #[cold]
    unsafe fn clear_rings(&self) -> bool {
        let (read, written) = self.cursors();
        let gap_end = self.stream.stack.gap_end.load(Ordering::Relaxed);
        let incoming = self.stream.incoming.get();
        let incoming = incoming.filter(|one| one.clear(read).max(gap_end) >= KEPT);
        let outgoing = self.stream.outgoing.get().filter(|_| written >= KEPT);
        // SAFETY: the caller's promise. The next connection has another generation, and relies on
        // no byte or stamp of this one.
        unsafe {
            if let Some(incoming) = incoming {
                incoming.discard();
            }
            if let Some(outgoing) = outgoing {
                outgoing.discard();
            }
        }
        incoming.is_some() || outgoing.is_some()
    }
}

/// The word of an entry.
const fn word(generation: u32, made: u32) -> u64 {
    (generation as u64) << 32 | made as u64
}
