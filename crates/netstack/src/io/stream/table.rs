//! The streams of a stack, and which entry of which connection table has each.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;
use std::sync::{Arc, Once};

use super::byte_ring::RingBlocks;
use super::delivery::fewest_slots;
use super::send::FIRST_SEND;
use super::{Stream, StreamRef, UNKNOWN, flag};
use crate::config::{Limits, Settings};
use crate::io::processor::Inline;
use crate::io::sync::{AtomicU32, AtomicU64, fence};
use crate::log::request::ConnId;

/// Bytes of a ring that a closed connection leaves to the next one with its stream: to take them
/// from the system once more costs more than they are.
const KEPT: u64 = 64 << 10;

/// A stream as its application refers to it, whichever group has the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Handle {
    pub(super) stream: u32,
    pub(super) generation: u32,
}

impl Handle {
    /// Names no stream.
    pub(crate) const NONE: Handle = Handle {
        stream: u32::MAX,
        generation: u32::MAX,
    };
}

/// The entry of a connection table that has a stream. A reader during a change may see half of the
/// old and half of the new value: it finds no connection there, and the pump that moved the stream
/// checks for updates afterwards.
pub(super) struct HomeSlot {
    /// The group in the upper half, the entry's index in the lower.
    entry: AtomicU64,
    generation: AtomicU32,
}

impl HomeSlot {
    pub(super) fn new(group: u16, index: u32) -> Self {
        HomeSlot {
            entry: AtomicU64::new(word(group as u32, index)),
            generation: AtomicU32::new(0),
        }
    }

    fn set(&self, group: u16, conn: ConnId) {
        self.generation.store(conn.generation, Ordering::Relaxed);
        // ORDERING: Relaxed both: the pump that moves a stream lowers its flag after this, and a
        // thread that raises the flag reads after that. Either the thread finds all of this, or
        // what it stored is found when the flag is lowered.
        self.entry
            .store(word(u32::from(group), conn.index), Ordering::Relaxed);
    }

    pub(super) fn group(&self) -> u16 {
        (self.entry.load(Ordering::Relaxed) >> 32) as u16
    }

    pub(super) fn conn(&self) -> ConnId {
        ConnId {
            index: self.entry.load(Ordering::Relaxed) as u32,
            generation: self.generation.load(Ordering::Relaxed),
        }
    }
}

/// Memory of a stream that may not be made yet.
struct Slot(UnsafeCell<MaybeUninit<Stream>>);

// SAFETY: a slot is written once, in `StreamTable::make`, and read only by threads that know that
// it was written (`StreamTable::made`); after that it is a `Stream`, which is `Sync`.
unsafe impl Sync for Slot where Stream: Sync {}

// SAFETY: as above; it may be dropped on any thread, as a `Stream` may.
unsafe impl Send for Slot where Stream: Send {}

/// The streams of all groups of a stack: `limits.connections` for each, group by group.
///
/// A stream is made when its entry is used first. Before that its memory is reserved and not
/// touched, so an unused table costs little.
#[derive(Clone)]
pub(crate) struct StreamTable {
    slots: Arc<[Slot]>,
    made: Arc<MadeStreams>,
}

/// Records which streams of a table are made.
struct MadeStreams {
    slots: Arc<[Slot]>,
    /// For each stream, whether it is made.
    once: Box<[Once]>,
    /// Entries of each group.
    each: u32,
    /// Memory of the receive rings.
    receive: RingBlocks,
    /// Memory of the send rings.
    send: RingBlocks,
    /// Memory of the delivery slots.
    delivery: RingBlocks,
    /// What each begins with.
    settings: Settings,
}

impl StreamTable {
    /// `delivery_slots` is a power of two, at least as large as the log; there are more if stamps
    /// in a ring of this length need them.
    pub(crate) fn new(limits: &Limits, delivery_slots: usize, groups: u16) -> StreamTable {
        assert!(delivery_slots.is_power_of_two());
        let fewest = fewest_slots(u64::from(limits.receive_buffer)).next_power_of_two();
        let delivery_slots = delivery_slots.max(fewest as usize);
        let each = limits.connections;
        let len = usize::from(groups) * each as usize;
        let slots = Arc::<[Slot]>::new_uninit_slice(len);
        // SAFETY: a slot is a `MaybeUninit`, which needs no value.
        let slots = unsafe { slots.assume_init() };
        let made = MadeStreams {
            slots: Arc::clone(&slots),
            once: (0..len).map(|_| Once::new()).collect(),
            each,
            receive: RingBlocks::new(len, limits.receive_buffer as usize),
            send: RingBlocks::new(len, limits.send_buffer as usize),
            delivery: RingBlocks::new(len, delivery_slots * size_of::<u64>()),
            settings: limits.settings(),
        };
        StreamTable {
            slots,
            made: Arc::new(made),
        }
    }

    /// The stream with this number; `None` for [`UNMADE`] and other numbers outside the table.
    ///
    /// # Safety
    /// A number that the row has was given by [`StreamTable::make`], and the caller knows it from
    /// there: by a Release and an Acquire, or because it has stood in an entry, a [`Handle`] or a
    /// message since.
    #[inline]
    unsafe fn get(&self, number: u32) -> Option<&Stream> {
        let slot = self.slots.get(number as usize)?;
        // SAFETY: the caller guarantees that it was made, and nothing writes it as a whole after
        // that.
        Some(unsafe { (*slot.0.get()).assume_init_ref() })
    }

    /// Makes the stream of entry `index` of a group, unless it was made. Returns its number; `None`
    /// if there is none.
    #[cold]
    pub(super) fn make(&self, group: u16, index: u32) -> Option<u32> {
        let number = u32::from(group) * self.made.each + index;
        let slot = self.slots.get(number as usize)?;
        self.made.once[number as usize].call_once(|| {
            // SAFETY: it was not made, so there is no reference to it, and `call_once` lets one
            // thread do this, once.
            unsafe {
                (*slot.0.get()).write(Stream::new((number, group, index), self.made.settings))
            };
        });
        Some(number)
    }

    /// Memory of the receive rings, by the number of their stream.
    pub(super) fn receive_blocks(&self) -> &RingBlocks {
        &self.made.receive
    }

    /// Memory of the send rings, by the number of their stream.
    pub(super) fn send_blocks(&self) -> &RingBlocks {
        &self.made.send
    }

    /// Memory of the delivery slots, by the number of their stream.
    pub(super) fn slot_blocks(&self) -> &RingBlocks {
        &self.made.delivery
    }

    /// Those that are made.
    pub(super) fn all(&self) -> impl Iterator<Item = &Stream> {
        let slots = self.made.once.iter().zip(&*self.slots);
        // ORDERING: the Acquire in `is_completed` pairs with the Release that ends `call_once` in
        // `make`.
        let made = slots.filter(|(once, _)| once.is_completed());
        // SAFETY: it was made.
        made.map(|(_, slot)| unsafe { (*slot.0.get()).assume_init_ref() })
    }
}

impl Drop for MadeStreams {
    fn drop(&mut self) {
        for (once, slot) in self.once.iter().zip(&*self.slots) {
            if once.is_completed() {
                // SAFETY: it was made. Every `StreamTable` shares this `MadeStreams`, so the last
                // of them is dropped now, and with it all references that it lent.
                unsafe { (*slot.0.get()).assume_init_drop() };
            }
        }
    }
}

/// Number of the stream of an entry that was not used yet.
const UNMADE: u32 = u32::MAX;

/// The streams of a group.
pub(crate) struct Streams {
    /// For each entry of the connection table: in the upper half the generation of its connection,
    /// in the lower the number of its stream, which is [`UNMADE`] or made.
    entries: Box<[AtomicU64]>,
    pub(super) table: StreamTable,
    group: u16,
    pub(super) receive_len: usize,
    pub(super) send_len: usize,
    /// Bytes that may be written before any is released.
    pub(crate) first_send: u64,
    /// What is done to every byte, if anything.
    pub(crate) inline: Option<Inline>,
}

impl Streams {
    /// `delivery_slots` is a power of two, at least as large as the log.
    pub(crate) fn new(limits: &Limits, delivery_slots: usize) -> Self {
        let row = StreamTable::new(limits, delivery_slots, 1);
        Self::of_group(limits, row, 0)
    }

    /// Those of group `group`, in the row of all.
    pub(crate) fn of_group(limits: &Limits, table: StreamTable, group: u16) -> Self {
        assert!(table.made.each == limits.connections);
        let entries = (0..limits.connections).map(|_| AtomicU64::new(word(0, UNMADE)));
        Streams {
            entries: entries.collect(),
            table,
            group,
            receive_len: limits.receive_buffer as usize,
            send_len: limits.send_buffer as usize,
            first_send: FIRST_SEND,
            inline: None,
        }
    }

    /// The stream of a connection, while the entry still belongs to it.
    #[inline]
    pub(crate) fn get(&self, conn: ConnId) -> Option<StreamRef<'_>> {
        let entry = self.entries.get(conn.index as usize)?;
        // ORDERING: Acquire, pairs with the Release in `recycle`, `assign` and `first_use`: a
        // thread that sees the new connection sees its cursors, and a thread that sees a number
        // sees a stream that was made.
        let found = entry.load(Ordering::Acquire);
        if (found >> 32) as u32 != conn.generation {
            return None;
        }
        // SAFETY: an entry holds numbers of streams that were made, see above.
        let stream = match unsafe { self.table.get(found as u32) } {
            Some(stream) => stream,
            None => self.first_use(conn.index)?,
        };
        Some(StreamRef {
            streams: self,
            stream,
            // ORDERING: Relaxed: it changed before the entry got this generation.
            generation: stream.generation.load(Ordering::Relaxed),
        })
    }

    /// Makes the stream of an entry that is used for the first time.
    #[cold]
    fn first_use(&self, index: u32) -> Option<&Stream> {
        let entry = self.entries.get(index as usize)?;
        let number = self.table.make(self.group, index)?;
        let (unused, used) = (word(0, UNMADE), word(0, number));
        // Unless another thread has done it meanwhile; the entry may have got another stream since.
        // ORDERING: Release, pairs with the Acquire in `get`.
        let _ = entry.compare_exchange(unused, used, Ordering::Release, Ordering::Relaxed);
        // SAFETY: it was made above.
        unsafe { self.table.get(number) }
    }

    /// The stream of a handle, while it belongs to the same connection.
    #[inline]
    pub(crate) fn held(&self, handle: Handle) -> Option<StreamRef<'_>> {
        // SAFETY: handles are made of streams, and of a number that the row does not have.
        let stream = unsafe { self.table.get(handle.stream) }?;
        // ORDERING: Acquire, pairs with the Release in `recycle`.
        let generation = stream.generation.load(Ordering::Acquire);
        (generation == handle.generation).then_some(StreamRef {
            streams: self,
            stream,
            generation,
        })
    }

    /// The handle for the application of `conn`.
    pub(crate) fn handle(&self, conn: ConnId) -> Handle {
        self.get(conn).map_or(Handle::NONE, |held| held.handle())
    }

    /// The number of the stream that an entry has.
    pub(crate) fn stream_of(&self, conn: ConnId) -> u32 {
        let entry = self.entries.get(conn.index as usize);
        let number = entry.map_or(UNMADE, |entry| entry.load(Ordering::Relaxed) as u32);
        if number != UNMADE {
            return number;
        }
        let first = self.first_use(conn.index);
        first.map_or(UNMADE, |stream| stream.number)
    }

    /// Gives the entry of `conn`, which no other thread knows yet, the stream with number `stream`,
    /// which [`Streams::stream_of`] of some group returned. Only the pump may call this.
    pub(crate) fn assign(&self, conn: ConnId, stream: u32) {
        // SAFETY: `stream_of` gives numbers of streams that were made, and one that no row has;
        // they reach other groups through a queue.
        let moved = unsafe { self.table.get(stream) };
        let (Some(entry), Some(moved)) = (self.entries.get(conn.index as usize), moved) else {
            return;
        };
        // What was stored before is behind no mark of this pump.
        moved.pump.published_end.store(0, Ordering::Relaxed);
        moved.home.set(self.group, conn);
        // ORDERING: Release, pairs with the Acquire in `get`.
        entry.store(word(conn.generation, stream), Ordering::Release);
    }

    /// The connection of an entry is gone with its stream; the next one will have stream number
    /// `stream`, which is unused. Only the pump may call this, when all work of the former
    /// connection is done.
    pub(crate) fn unassign(&self, conn: ConnId, stream: u32) {
        let next = ConnId {
            generation: conn.generation.wrapping_add(1),
            ..conn
        };
        if self.get(conn).is_some() {
            self.assign(next, stream);
        }
    }

    /// Makes an entry available to its next connection. The memory of a ring returns to the system
    /// if much of it was used; returns whether that was so.
    ///
    /// Only the pump may call this, when all work of the former connection is done and its socket
    /// is gone.
    pub(crate) fn recycle(&self, conn: ConnId) -> bool {
        let Some(held) = self.get(conn) else {
            return false;
        };
        let stream = held.stream;
        // SAFETY: the pump alone calls this, when all work of the connection is done and its socket
        // is gone, so no thread uses the rings. `assign` has not named the next connection yet.
        let is_discarded = unsafe { held.clear_rings() };
        stream.app.read.store(0, Ordering::Relaxed);
        stream.app.next.store(0, Ordering::Relaxed);
        stream.app.written.store(0, Ordering::Relaxed);
        stream.app.shortages.store(0, Ordering::Relaxed);
        stream.app.misses.store(0, Ordering::Relaxed);
        stream.app.requests.store(0, Ordering::Relaxed);
        stream.app.options.reset(self.table.made.settings);
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
        stream.stack.failed_at.store(UNKNOWN, Ordering::Relaxed);
        stream.stack.gap_end.store(0, Ordering::Relaxed);
        stream.stack.first.store(0, Ordering::Relaxed);
        stream.pump.published_end.store(0, Ordering::Relaxed);
        stream.stack.unstamped.store(0, Ordering::Relaxed);
        stream.pump.unwritten.store(0, Ordering::Relaxed);
        stream.stack.status.store(0, Ordering::Relaxed);
        // ORDERING: Release, pairs with the Acquire in `held`.
        stream.generation.store(generation, Ordering::Release);
        let next = ConnId {
            generation: conn.generation.wrapping_add(1),
            ..conn
        };
        self.assign(next, self.stream_of(conn));
        is_discarded
    }

    /// The streams of this group's connections, including those that have left and not arrived
    /// elsewhere.
    fn all(&self) -> impl Iterator<Item = StreamRef<'_>> {
        let ours = |stream: &&Stream| stream.home.group() == self.group;
        self.table.all().filter(ours).map(|stream| StreamRef {
            streams: self,
            stream,
            // ORDERING: Acquire, as in `held`.
            generation: stream.generation.load(Ordering::Acquire),
        })
    }

    /// The streams of established connections that are not closed.
    pub(crate) fn established(&self) -> impl Iterator<Item = StreamRef<'_>> {
        self.all().filter(|stream| {
            let status = stream.status();
            status.established() && !status.is_over()
        })
    }

    /// The streams that were written to.
    pub(crate) fn written(&self) -> impl Iterator<Item = StreamRef<'_>> {
        self.all().filter(|stream| stream.cursors().1 > 0)
    }

    /// Wakes every waiting application, because the stack is shut down.
    pub(crate) fn wake_all(&self) {
        // ORDERING: the fence pairs with the one in `EventCount::prepare`: a thread that waits at a
        // stream which is made at this moment and not seen here sees that the stack is shut down.
        fence(Ordering::SeqCst);
        for stream in self.table.all() {
            stream.waiting.notify_all();
        }
    }
}

impl StreamRef<'_> {
    /// Prepares the rings for the next connection. Gives the memory of those back of which this one
    /// has used much: the next one may be long in coming, and need less. Returns whether there is
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
        // SAFETY: the caller's promise. The next connection has another generation, and relies on no
        // byte or stamp of this one.
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
const fn word(generation: u32, stream: u32) -> u64 {
    (generation as u64) << 32 | stream as u64
}
