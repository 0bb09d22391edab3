//! The streams that applications and primaries share: byte rings, cursors and delivery slots.
//!
//! Every place of the connection table has one [`Stream`]: two byte rings, the cursors of both
//! sides, and the status of the connection as the application sees it. None of this is protocol
//! state: a replica never reads it.
//!
//! Memory is allocated with use. A stream is made when its place is used first ([`StreamTable`]);
//! its receive ring and delivery slots when the first byte arrives, its send ring when the first
//! byte is written. Looking for received bytes allocates nothing: without a receive ring none has
//! arrived. The rings stay with their stream for its next connection.
//!
//! The streams of all groups of a stack are in one table, and each group has a list of the stream
//! of each place. A connection that migrates to another group takes its stream along by exchanging
//! list entries; no byte is copied. The application holds the stream itself ([`Handle`]), which
//! says which group has the connection now.
//!
//! # Access to bytes
//! *Receive ring.* Offset `seq - irs - 1` of the stream lies at that offset modulo the ring's
//! length. `apply` names each byte of a stream in exactly one [`Deliver`], and only bytes below
//! `app_read + length`, where `app_read` is a cursor that the application has stored already. So a
//! writer has exclusive access to its range: no other primary writes there, and the application has
//! released it. The application reads below the end of the completed deliveries.
//!
//! *Stored ahead.* The pump may let the payload of a run be stored while its checksums are
//! verified, before `apply` names it. For that it reserves, for one run each, only bytes that no
//! earlier request of the log can have named or stored: those at and above `published_end`. This is
//! never below the end of any published run, and begins at `app_read + length` of the moment when
//! the pump first knew the connection, so everything before is below it. The pump of another group,
//! to which the connection migrates, begins in the same way. The worker that determines the verdict
//! of such a run makes the copy; it has begun the verdict, so no other worker does
//! ([`dominoes::Verdicts::begin`]). Later requests that are given the same bytes, because a
//! checksum was wrong or the run was outside its window, are applied after the run, whose verdict
//! exists only when its copy is complete.
//!
//! *Delivery slots.* Delivery j is stamped into slot j modulo their number once its bytes are in
//! the ring. The stream is readable up to the end of the longest sequence of stamped deliveries
//! from 0. A slot may be stamped again before the application has seen it: a request j+D enters the
//! log only when request j is done, and D is at least the log's length, so a newer stamp implies
//! that all deliveries D before it are complete.
//!
//! *Send ring.* The application writes above what it wrote and below `released + length`; primaries
//! read between. `Effect::Release` moves `released` only when every frame that was numbered before
//! is sent, so frames may be sent from the ring without a copy. If an inline processor needs whole
//! units, `released` stops at the beginning of a unit.
//!
//! *Split units.* The pieces of a unit that no segment carries whole are stored unprocessed. The
//! reader finds all of them below the end of completed deliveries and above what it was lent
//! before, so it has exclusive access, as a writer would, and processes them in place.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::net::{Ipv4Addr, SocketAddrV4};
use core::num::{NonZero, NonZeroU64};
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Once, OnceLock};

use crossbeam_utils::CachePadded;
use dominoes::EventCount;

use crate::config::{Keepalive, Limits, Settings};
use crate::io::copy::Copier;
use crate::io::processor::{Failure, Inline, StreamId};
use crate::io::sync::{AtomicU32, AtomicU64, Shadow, fence};
use crate::log::effect::{Deliver, Event};
use crate::log::request::ConnId;
use crate::seqnum::SeqNum;
use crate::time::Duration;

/// Asks the processor to fetch `bytes` into its nearest cache, on processors that can. Does not
/// wait.
#[inline]
pub(crate) fn prefetch(bytes: &[u8]) {
    prefetch_at(bytes.as_ptr(), bytes.len());
}

/// As [`prefetch`], of `len` bytes from `start` on, even while another thread writes them.
#[inline]
pub(crate) fn prefetch_at(start: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        const LINE: usize = 64;
        let fetch = |at| {
            // SAFETY: a prefetch is a hint for any address, and never faults; SSE is in every
            // x86-64.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(at).cast()) };
        };
        let mut at = 0;
        // Four lines per iteration: counting lines would cost more than prefetching some.
        while at + 4 * LINE <= len {
            fetch(at);
            fetch(at + LINE);
            fetch(at + 2 * LINE);
            fetch(at + 3 * LINE);
            at += 4 * LINE;
        }
        while at < len {
            fetch(at);
            at += LINE;
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, len);
}

/// As [`prefetch`], for the first line of `value`.
#[inline]
pub(crate) fn prefetch_of<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: as in `prefetch`.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(core::ptr::from_ref(value).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// Bytes that a connection may write before its peer has acknowledged any: more than two first
/// congestion windows of ten segments (RFC 6928).
const FIRST_SEND: u64 = 64 << 10;

/// Bytes shared between threads that agreed on who has which.
struct ByteRing {
    bytes: Box<[UnsafeCell<u8>]>,
    mask: u64,
    /// Access checks for each byte (loom).
    shadow: Shadow,
}

// SAFETY: the bytes are accessed only through the `unsafe` functions below, whose callers guarantee
// that no two threads access one byte at the same time unless both read it.
unsafe impl Sync for ByteRing {}

impl ByteRing {
    /// `len` is a power of two.
    fn new(len: usize) -> Self {
        let zeros = vec![0u8; len].into_boxed_slice();
        // SAFETY: `UnsafeCell<u8>` has the layout of `u8`, and the box is the only owner.
        let bytes = unsafe { Box::from_raw(Box::into_raw(zeros) as *mut [UnsafeCell<u8>]) };
        ByteRing {
            bytes,
            mask: len as u64 - 1,
            shadow: Shadow::new(len),
        }
    }

    /// The one or two places where `[offset, offset + len)` lies: index and length each.
    #[inline]
    fn spans(&self, offset: u64, len: usize) -> [(usize, usize); 2] {
        debug_assert!(
            len as u64 <= self.mask + 1,
            "{len} bytes in a ring of {}",
            self.mask + 1
        );
        let at = (offset & self.mask) as usize;
        let first = len.min(self.bytes.len() - at);
        [(at, first), (0, len - first)]
    }

    /// Copies `from` to `offset`.
    ///
    /// # Safety
    /// Nobody else reads or writes these bytes meanwhile, and `from` is no longer than the ring.
    #[inline(always)]
    unsafe fn write(&self, offset: u64, from: &[u8]) {
        assert!(from.len() <= self.bytes.len());
        let [(at, len), (_, rest)] = self.spans(offset, from.len());
        self.shadow.write(at, len);
        self.shadow.write(0, rest);
        let (front, back) = from.split_at(len);
        // SAFETY: `at + len` is within the ring, and so is the rest, at its beginning. The caller
        // has exclusive access to both ranges, so each slice is the only reference to its bytes
        // while it lives. The cells were initialised in `new`.
        unsafe {
            let ring = UnsafeCell::raw_get(self.bytes.as_ptr());
            Copier::here().copy(front, core::slice::from_raw_parts_mut(ring.add(at), len));
            if rest > 0 {
                Copier::here().copy(back, core::slice::from_raw_parts_mut(ring, rest));
            }
        }
    }

    /// Lets `fill` write the bytes at `offset`, in up to two parts; its first argument is the
    /// number of bytes before the part.
    ///
    /// # Safety
    /// Nobody else reads or writes these bytes meanwhile, and they are no more than the ring has.
    #[inline]
    unsafe fn write_by(&self, offset: u64, len: usize, mut fill: impl FnMut(usize, &mut [u8])) {
        assert!(len <= self.bytes.len());
        let mut done = 0;
        for (at, len) in self.spans(offset, len) {
            if len == 0 {
                continue;
            }
            self.shadow.write(at, len);
            // SAFETY: `at + len` is within the ring, and the caller has exclusive access to the
            // range, so the slice is the only reference to its bytes while it lives. The cells were
            // initialised in `new`.
            let part = unsafe {
                let first = UnsafeCell::raw_get(self.bytes.as_ptr().add(at));
                core::slice::from_raw_parts_mut(first, len)
            };
            fill(done, part);
            done += len;
        }
    }

    /// Lets `fill` write the bytes at `offset`, which do not wrap.
    ///
    /// # Safety
    /// Nobody else reads or writes these bytes meanwhile.
    #[inline]
    unsafe fn write_at<R>(&self, offset: u64, len: usize, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        let at = (offset & self.mask) as usize;
        let part = &self.bytes[at..][..len];
        self.shadow.write(at, len);
        // SAFETY: the caller has exclusive access to the range, so the slice is the only reference
        // to its bytes while it lives. The cells were initialised in `new`.
        fill(unsafe {
            core::slice::from_raw_parts_mut(UnsafeCell::raw_get(part.as_ptr()), part.len())
        })
    }

    /// The bytes at `offset`, in up to two parts.
    ///
    /// # Safety
    /// Nobody writes these bytes while the slices live.
    #[inline]
    unsafe fn read(&self, offset: u64, len: usize) -> (&[u8], &[u8]) {
        assert!(len <= self.bytes.len());
        let [(a, a_len), (b, b_len)] = self.spans(offset, len);
        self.shadow.read(a, a_len);
        self.shadow.read(b, b_len);
        // SAFETY: both ranges are within the ring, and the caller guarantees that no thread writes
        // them.
        unsafe {
            (
                core::slice::from_raw_parts(self.bytes.as_ptr().add(a).cast::<u8>(), a_len),
                core::slice::from_raw_parts(self.bytes.as_ptr().add(b).cast::<u8>(), b_len),
            )
        }
    }
}

/// Offset that stands for "not known".
const UNKNOWN: u64 = u64::MAX;

/// Bits of a delivery stamp that hold the stream's end; the other bits distinguish rounds.
const END_BITS: u32 = 48;
const END_MASK: u64 = (1 << END_BITS) - 1;

/// The receive side of a stream, made for the first byte that arrives.
struct Incoming {
    ring: ByteRing,
    /// The delivery slots.
    delivered: Box<[AtomicU64]>,
    /// One bit per unit in the receive ring: whether the unit came in pieces. Empty without units.
    split: Box<[AtomicU64]>,
}

/// Requests of the application about a connection, besides moving its cursors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AppRequest {
    pub(crate) shutdown: bool,
    pub(crate) orphan: bool,
    pub(crate) abort: bool,
    /// Its [`Settings`] have changed.
    pub(crate) set: bool,
}

const SHUTDOWN: u32 = 1;
const ORPHAN: u32 = 2;
const ABORT: u32 = 4;
const SET: u32 = 8;

const ESTABLISHED: u32 = 1;
const ACKNOWLEDGED: u32 = 2;
const RETIRED: u32 = 4;
const RESET: u32 = 8;
const REFUSED: u32 = 16;
const TIMED_OUT: u32 = 32;
const ABORTED: u32 = 64;
const UNREACHABLE: u32 = 128;
const SENT: u32 = 256;

/// Why a connection ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndReason {
    Reset,
    Refused,
    TimedOut,
    Unreachable,
    Aborted,
}

/// The status of a connection as its application may know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionStatus {
    bits: u32,
}

impl ConnectionStatus {
    pub(crate) fn established(self) -> bool {
        self.bits & ESTABLISHED != 0
    }

    pub(crate) fn all_acknowledged(self) -> bool {
        self.bits & ACKNOWLEDGED != 0
    }

    pub(crate) fn retired(self) -> bool {
        self.bits & RETIRED != 0
    }

    /// Whether the connection is closed, for whatever reason.
    pub(crate) fn is_over(self) -> bool {
        self.retired() || self.end_reason().is_some()
    }

    /// Whether it is closed, and all its frames were sent.
    pub(crate) fn is_sent(self) -> bool {
        self.bits & SENT != 0
    }

    pub(crate) fn end_reason(self) -> Option<EndReason> {
        let table = [
            (REFUSED, EndReason::Refused),
            (RESET, EndReason::Reset),
            (TIMED_OUT, EndReason::TimedOut),
            (UNREACHABLE, EndReason::Unreachable),
            (ABORTED, EndReason::Aborted),
        ];
        table
            .into_iter()
            .find(|(bit, _)| self.bits & bit != 0)
            .map(|(_, ending)| ending)
    }
}

/// The values that the application of one connection stores.
struct AppSide {
    /// Bytes read.
    read: AtomicU64,
    /// Bytes written.
    written: AtomicU64,
    /// SHUTDOWN, ORPHAN, ABORT, SET.
    requests: AtomicU32,
    settings: SharedSettings,
    /// Whether the pump has been notified of a change above and has not looked yet: the flag, with
    /// the stream's generation, so that the application of a former connection cannot raise it.
    dirty: AtomicU64,
}

/// [`Settings`] in atomics, which threads may change independently. Times are in nanoseconds.
struct SharedSettings {
    nodelay: AtomicBool,
    /// Keepalive probes before the connection fails; 0 disables keepalive.
    probes: AtomicU32,
    idle: AtomicU64,
    interval: AtomicU64,
    /// 0: none.
    user_timeout: AtomicU64,
    ttl: AtomicU8,
    tos: AtomicU8,
}

impl SharedSettings {
    /// The defaults.
    fn new() -> Self {
        let settings = SharedSettings {
            nodelay: AtomicBool::new(false),
            probes: AtomicU32::new(0),
            idle: AtomicU64::new(0),
            interval: AtomicU64::new(0),
            user_timeout: AtomicU64::new(0),
            ttl: AtomicU8::new(0),
            tos: AtomicU8::new(0),
        };
        settings.store(&Settings::default());
        settings
    }

    fn store(&self, settings: &Settings) {
        self.nodelay.store(settings.nodelay, Ordering::Relaxed);
        self.keepalive(settings.keepalive);
        self.user_timeout(settings.user_timeout);
        self.ttl.store(settings.ttl, Ordering::Relaxed);
        self.tos.store(settings.tos, Ordering::Relaxed);
    }

    fn keepalive(&self, keepalive: Option<Keepalive>) {
        if let Some(Keepalive { idle, interval, .. }) = keepalive {
            self.idle.store(idle.as_nanos(), Ordering::Relaxed);
            self.interval.store(interval.as_nanos(), Ordering::Relaxed);
        }
        let probes = keepalive.map_or(0, |keepalive| u32::from(keepalive.probes.get()));
        self.probes.store(probes, Ordering::Relaxed);
    }

    fn user_timeout(&self, user_timeout: Option<Duration>) {
        let nanos = user_timeout.map_or(0, Duration::as_nanos);
        self.user_timeout.store(nanos, Ordering::Relaxed);
    }

    fn load(&self) -> Settings {
        let nanos = |word: &AtomicU64| Duration::from_nanos(word.load(Ordering::Relaxed));
        let probes = self.probes.load(Ordering::Relaxed) as u8;
        let user_timeout = nanos(&self.user_timeout);
        Settings {
            nodelay: self.nodelay.load(Ordering::Relaxed),
            keepalive: NonZero::new(probes).map(|probes| Keepalive {
                idle: nanos(&self.idle),
                interval: nanos(&self.interval),
                probes,
            }),
            user_timeout: (user_timeout > Duration::ZERO).then_some(user_timeout),
            ttl: self.ttl.load(Ordering::Relaxed),
            tos: self.tos.load(Ordering::Relaxed),
        }
    }
}

/// The values that primaries store for the application.
struct StackSide {
    /// The end of the bytes in the send ring that may be overwritten.
    released: AtomicU64,
    /// Where the receive stream ends, once the peer finished.
    peer_end: AtomicU64,
    /// Right edge of the latest advertised window.
    advertised: AtomicU64,
    /// The limit of unread bytes at that time.
    limit: AtomicU32,
    /// How many bytes had been received when the connection was closed.
    ended_at: AtomicU64,
    /// Where the first unit begins that could not be processed.
    failed_at: AtomicU64,
    /// The receive stream's [`StreamId`], set once a unit came in pieces: source and number, ports.
    origin: [AtomicU64; 2],
    /// Sequence number of the receive stream's first byte, and [`IS_KNOWN`] once it is.
    first: AtomicU64,
    /// Status bits.
    status: AtomicU32,
}

/// Set beside a sequence number that is known.
const IS_KNOWN: u64 = 1 << 32;

/// The state that applications and primaries share about one connection.
pub(crate) struct Stream {
    /// Its number in the table.
    number: u32,
    /// Counts the connections that had this stream.
    generation: AtomicU32,
    home: HomeSlot,
    /// No published run reaches beyond this offset of the receive stream. 0 until the pump, its
    /// only user, needs it.
    published_end: CachePadded<AtomicU64>,
    app: CachePadded<AppSide>,
    stack: CachePadded<StackSide>,
    /// Made for the first byte that arrives.
    incoming: OnceLock<Incoming>,
    /// The send ring, made for the first byte that is written.
    outgoing: OnceLock<ByteRing>,
    /// The application waits here.
    pub(crate) waiting: EventCount,
}

/// The place that has a stream. A reader during a change may see half of the old and half of the
/// new value: no connection is found there, and the pump that moved the stream checks for updates
/// afterwards.
struct HomeSlot {
    /// The group in the upper half, the place's index in the lower.
    place: AtomicU64,
    generation: AtomicU32,
}

/// A stream as its application refers to it, whichever group has the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    stream: u32,
    generation: u32,
}

impl Handle {
    /// Names no stream.
    pub(crate) const NONE: Handle = Handle {
        stream: u32::MAX,
        generation: u32::MAX,
    };
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
/// A stream is made when its place is used first. Before that its memory is reserved and not
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
    /// Places of each group.
    each: u32,
}

impl StreamTable {
    pub(crate) fn new(limits: &Limits, groups: u16) -> StreamTable {
        let each = limits.connections;
        let len = usize::from(groups) * each as usize;
        let slots = Arc::<[Slot]>::new_uninit_slice(len);
        // SAFETY: a slot is a `MaybeUninit`, which needs no value.
        let slots = unsafe { slots.assume_init() };
        let made = MadeStreams {
            slots: Arc::clone(&slots),
            once: (0..len).map(|_| Once::new()).collect(),
            each,
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
    /// there: by a Release and an Acquire, or because it has stood in a place, a [`Handle`] or a
    /// message since.
    #[inline]
    unsafe fn get(&self, number: u32) -> Option<&Stream> {
        let slot = self.slots.get(number as usize)?;
        // SAFETY: the caller guarantees that it was made, and nothing writes it as a whole after
        // that.
        Some(unsafe { (*slot.0.get()).assume_init_ref() })
    }

    /// Makes the stream of place `index` of a group, unless it was made. Returns its number; `None`
    /// if there is none.
    #[cold]
    fn make(&self, group: u16, index: u32) -> Option<u32> {
        let number = u32::from(group) * self.made.each + index;
        let slot = self.slots.get(number as usize)?;
        self.made.once[number as usize].call_once(|| {
            // SAFETY: it was not made, so there is no reference to it, and `call_once` lets one
            // thread do this, once.
            unsafe { (*slot.0.get()).write(Stream::new(number, group, index)) };
        });
        Some(number)
    }

    /// Those that are made.
    fn all(&self) -> impl Iterator<Item = &Stream> {
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

/// Number of the stream of a place that was not used yet.
const UNMADE: u32 = u32::MAX;

/// The streams of a group.
pub(crate) struct Streams {
    /// For each place, the generation of its connection in the upper half, and the number of its
    /// stream in the lower, which is [`UNMADE`] or made.
    places: Box<[AtomicU64]>,
    table: StreamTable,
    group: u16,
    receive_len: usize,
    send_len: usize,
    delivery_slots: usize,
    /// What is done to every byte, if anything.
    pub(crate) inline: Option<Inline>,
    /// Our address, which is part of the name of a stream.
    address: Ipv4Addr,
}

impl Streams {
    /// `delivery_slots` is a power of two, at least as large as the log.
    pub(crate) fn new(limits: &Limits, delivery_slots: usize, address: Ipv4Addr) -> Self {
        let row = StreamTable::new(limits, 1);
        Self::of_group(limits, delivery_slots, address, row, 0)
    }

    /// Those of group `group`, in the row of all.
    pub(crate) fn of_group(
        limits: &Limits,
        delivery_slots: usize,
        address: Ipv4Addr,
        table: StreamTable,
        group: u16,
    ) -> Self {
        assert!(delivery_slots.is_power_of_two());
        assert!(table.made.each == limits.connections);
        let places = (0..limits.connections).map(|_| AtomicU64::new(entry(0, UNMADE)));
        Streams {
            places: places.collect(),
            table,
            group,
            receive_len: limits.receive_buffer as usize,
            send_len: limits.send_buffer as usize,
            delivery_slots,
            inline: None,
            address,
        }
    }

    /// Words of split bits that a ring needs.
    fn split_words(&self) -> usize {
        match &self.inline {
            Some(inline) if inline.unit > 1 => self.split_bits(inline.unit).div_ceil(64) as usize,
            _ => 0,
        }
    }

    /// Units that may have a bit at a time: those that the ring holds, in whole or in part, and one
    /// more, so that the reader has passed a unit before the next one with its bit can arrive.
    fn split_bits(&self, unit: u64) -> u64 {
        self.receive_len as u64 / unit + 3
    }

    /// The stream of a connection, while the place still belongs to it.
    #[inline]
    pub(crate) fn get(&self, conn: ConnId) -> Option<StreamRef<'_>> {
        let place = self.places.get(conn.index as usize)?;
        // ORDERING: Acquire, pairs with the Release in `recycle`, `assign` and `first_use`: a
        // thread that sees the new connection sees its cursors, and a thread that sees a number
        // sees a stream that was made.
        let place = place.load(Ordering::Acquire);
        if (place >> 32) as u32 != conn.generation {
            return None;
        }
        // SAFETY: a place has numbers of streams that were made, see above.
        let place = match unsafe { self.table.get(place as u32) } {
            Some(place) => place,
            None => self.first_use(conn.index)?,
        };
        Some(StreamRef {
            streams: self,
            place,
            // ORDERING: Relaxed: it changed before the place got this generation.
            generation: place.generation.load(Ordering::Relaxed),
        })
    }

    /// Makes the stream of a place that is used for the first time.
    #[cold]
    fn first_use(&self, index: u32) -> Option<&Stream> {
        let place = self.places.get(index as usize)?;
        let number = self.table.make(self.group, index)?;
        let (unused, used) = (entry(0, UNMADE), entry(0, number));
        // Unless another thread has done it meanwhile, and the place was perhaps handed on since.
        // ORDERING: Release, pairs with the Acquire in `get`.
        let _ = place.compare_exchange(unused, used, Ordering::Release, Ordering::Relaxed);
        // SAFETY: it was made above.
        unsafe { self.table.get(number) }
    }

    /// The stream of a handle, while it belongs to the same connection.
    #[inline]
    pub(crate) fn held(&self, handle: Handle) -> Option<StreamRef<'_>> {
        // SAFETY: handles are made of streams, and of a number that the row does not have.
        let place = unsafe { self.table.get(handle.stream) }?;
        // ORDERING: Acquire, pairs with the Release in `recycle`.
        let generation = place.generation.load(Ordering::Acquire);
        (generation == handle.generation).then_some(StreamRef {
            streams: self,
            place,
            generation,
        })
    }

    /// The handle for the application of `conn`.
    pub(crate) fn handle(&self, conn: ConnId) -> Handle {
        self.get(conn).map_or(Handle::NONE, |held| held.handle())
    }

    /// The number of the stream that a place has.
    pub(crate) fn stream_of(&self, conn: ConnId) -> u32 {
        let place = self.places.get(conn.index as usize);
        let number = place.map_or(UNMADE, |place| place.load(Ordering::Relaxed) as u32);
        if number != UNMADE {
            return number;
        }
        let first = self.first_use(conn.index);
        first.map_or(UNMADE, |stream| stream.number)
    }

    /// Gives the place of `conn`, which no other thread knows yet, the stream with number `stream`,
    /// which [`Streams::stream_of`] of some group returned. Only the pump may call this.
    pub(crate) fn assign(&self, conn: ConnId, stream: u32) {
        // SAFETY: `stream_of` gives numbers of streams that were made, and one that no row has;
        // they reach other groups through a queue.
        let moved = unsafe { self.table.get(stream) };
        let (Some(place), Some(moved)) = (self.places.get(conn.index as usize), moved) else {
            return;
        };
        // What was stored before is behind no mark of this pump.
        moved.published_end.store(0, Ordering::Relaxed);
        moved.home.set(self.group, conn);
        // ORDERING: Release, pairs with the Acquire in `get`.
        place.store(entry(conn.generation, stream), Ordering::Release);
    }

    /// The connection of a place is gone with its stream; the next one will have stream number
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

    /// Makes a place available to its next connection.
    ///
    /// Only the pump may call this, when all work of the former connection is done and its socket
    /// is gone.
    pub(crate) fn recycle(&self, conn: ConnId) {
        let Some(stream) = self.get(conn) else { return };
        let place = stream.place;
        if let Some(incoming) = place.incoming.get() {
            for slot in incoming.delivered.iter().chain(&incoming.split) {
                slot.store(0, Ordering::Relaxed);
            }
        }
        place.app.read.store(0, Ordering::Relaxed);
        place.app.written.store(0, Ordering::Relaxed);
        place.app.requests.store(0, Ordering::Relaxed);
        place.app.settings.store(&Settings::default());
        let generation = stream.generation.wrapping_add(1);
        place
            .app
            .dirty
            .store(flag(generation, false), Ordering::Relaxed);
        place.stack.released.store(0, Ordering::Relaxed);
        place.stack.peer_end.store(UNKNOWN, Ordering::Relaxed);
        place.stack.advertised.store(0, Ordering::Relaxed);
        place.stack.limit.store(0, Ordering::Relaxed);
        place.stack.ended_at.store(0, Ordering::Relaxed);
        place.stack.failed_at.store(UNKNOWN, Ordering::Relaxed);
        place.stack.first.store(0, Ordering::Relaxed);
        place.published_end.store(0, Ordering::Relaxed);
        place.stack.status.store(0, Ordering::Relaxed);
        // ORDERING: Release, pairs with the Acquire in `held`.
        place.generation.store(generation, Ordering::Release);
        let next = ConnId {
            generation: conn.generation.wrapping_add(1),
            ..conn
        };
        self.assign(next, self.stream_of(conn));
    }

    /// The streams of this group's connections, including those that have left and not arrived
    /// elsewhere.
    fn all(&self) -> impl Iterator<Item = StreamRef<'_>> {
        let ours = |place: &&Stream| place.home.group() == self.group;
        self.table.all().filter(ours).map(|place| StreamRef {
            streams: self,
            place,
            // ORDERING: Acquire, as in `held`.
            generation: place.generation.load(Ordering::Acquire),
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
        for place in self.table.all() {
            place.waiting.notify_all();
        }
    }
}

/// The stream of one connection.
#[derive(Clone, Copy)]
pub(crate) struct StreamRef<'a> {
    streams: &'a Streams,
    place: &'a Stream,
    generation: u32,
}

/// Payload of a numbered frame, borrowed from a send ring. It does not change until the frame is
/// sent: `apply` releases no byte before, and the pump does not recycle the place.
#[derive(Clone, Copy)]
pub(crate) struct BorrowedPayload {
    start: *const u8,
    len: usize,
}

impl BorrowedPayload {
    /// The bytes.
    ///
    /// # Safety
    /// The frame has not been sent while they are used, and the streams that they come from are not
    /// dropped.
    #[inline]
    pub(crate) unsafe fn bytes<'a>(self) -> &'a [u8] {
        // SAFETY: they were a slice, and the caller guarantees that no thread writes or frees them.
        unsafe { core::slice::from_raw_parts(self.start, self.len) }
    }
}

/// Bytes that the application may read in place, oldest first, in up to two parts.
pub(crate) type Parts<'a> = (&'a [u8], &'a [u8]);

impl<'a> StreamRef<'a> {
    /// The receive side, made if these are the first bytes that arrive.
    fn incoming(&self) -> &'a Incoming {
        self.place.incoming.get_or_init(|| Incoming {
            ring: ByteRing::new(self.streams.receive_len),
            delivered: (0..self.streams.delivery_slots)
                .map(|_| AtomicU64::new(0))
                .collect(),
            split: (0..self.streams.split_words())
                .map(|_| AtomicU64::new(0))
                .collect(),
        })
    }

    /// The send ring, made if these are the first bytes that are written or sent.
    fn outgoing(&self) -> &'a ByteRing {
        let len = self.streams.send_len;
        self.place.outgoing.get_or_init(|| ByteRing::new(len))
    }

    pub(crate) fn waiting(&self) -> &'a EventCount {
        &self.place.waiting
    }

    // Storing ahead.

    /// Sets the sequence number of the first byte of the receive stream.
    #[inline]
    pub(crate) fn set_first_sequence(&self, seq: SeqNum) {
        let word = &self.place.stack.first;
        if word.load(Ordering::Relaxed) == 0 {
            // ORDERING: Relaxed: a number that means the same whenever it is seen.
            word.store(IS_KNOWN | u64::from(seq.0), Ordering::Relaxed);
        }
    }

    /// Reserves a place for the payload of a run before the run is applied, if possible: `len`
    /// bytes from `seq` on. `app_read` is the application's cursor. Only the pump may call this,
    /// once for every run that it publishes. The primary that gets a place for a run stores the
    /// payload with [`StreamRef::store_ahead`] before the run's verdict is stored; no other thread
    /// does.
    #[inline]
    pub(crate) fn reserve(&self, seq: SeqNum, len: u32, app_read: u64) -> Option<NonZeroU64> {
        let first = self.place.stack.first.load(Ordering::Relaxed);
        if first == 0 {
            return None;
        }
        let size = self.streams.receive_len as u64;
        let edge = app_read + size;
        let mark = match self.place.published_end.load(Ordering::Relaxed) {
            0 => edge,
            mark => mark,
        };
        // `seq` is the one next to the mark of all offsets that it may mean.
        let ahead = seq.0.wrapping_sub(first as u32).wrapping_sub(mark as u32) as i32;
        let offset = mark.checked_add_signed(i64::from(ahead))?;
        let end = offset + u64::from(len);
        let fits = ahead >= 0 && end <= edge && offset % size + u64::from(len) <= size;
        // What lies beyond the edge is not taken.
        self.place
            .published_end
            .store(mark.max(end.min(edge)), Ordering::Relaxed);
        NonZeroU64::new(offset).filter(|_| fits)
    }

    /// Lets `fill` write the `len` bytes at `place`, which [`StreamRef::reserve`] gave to this run.
    #[inline]
    pub(crate) fn store_ahead<R>(
        &self,
        place: NonZeroU64,
        len: u32,
        fill: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        // SAFETY: `reserve` gave these bytes to one run, and only the primary that prepares that
        // run calls this (module docs).
        unsafe {
            self.incoming()
                .ring
                .write_at(place.get(), len as usize, fill)
        }
    }

    // The primaries' side.

    /// Copies `from`, a part of the delivery `deliver` that begins `skip` bytes into it, to its
    /// place.
    #[inline]
    pub(crate) fn store(&self, deliver: &Deliver, skip: u32, from: &[u8]) {
        debug_assert!(skip as usize + from.len() <= deliver.len as usize);
        // SAFETY: `apply` names each byte of a stream in exactly one Deliver, below `app_read` plus
        // the ring's length, and a Deliver is performed by its request's only primary (module
        // docs).
        unsafe {
            self.incoming()
                .ring
                .write(deliver.stream_offset + u64::from(skip), from);
        }
    }

    /// As [`StreamRef::store`], of `len` bytes that `fill` writes, in up to two parts.
    #[inline]
    pub(crate) fn store_by(
        &self,
        deliver: &Deliver,
        skip: u32,
        len: usize,
        fill: impl FnMut(usize, &mut [u8]),
    ) {
        assert!(skip as usize + len <= deliver.len as usize);
        let offset = deliver.stream_offset + u64::from(skip);
        // SAFETY: as in `store`; a primary calls `fill` within one effect, and what it is lent ends
        // with it.
        unsafe { self.incoming().ring.write_by(offset, len, fill) };
    }

    /// Marks unit number `unit` as received in pieces, one of which has been stored. Must be called
    /// before its stamp.
    pub(crate) fn split(&self, unit: u64, stream: &StreamId) {
        let incoming = self.incoming();
        let [ends, ports] = &self.place.stack.origin;
        let source = u64::from(stream.source.ip().to_bits());
        ends.store(source << 32 | u64::from(stream.isn), Ordering::Relaxed);
        let both = u64::from(stream.source.port()) << 16 | u64::from(stream.destination.port());
        ports.store(both, Ordering::Relaxed);
        let (word, bit) = self.split_bit(incoming, unit);
        // ORDERING: Relaxed, as the two above: the stamp behind them is a Release, and the reader
        // looks at it first.
        word.fetch_or(bit, Ordering::Relaxed);
    }

    fn split_bit<'r>(&self, incoming: &'r Incoming, unit: u64) -> (&'r AtomicU64, u64) {
        let bits = incoming.split.len() as u64 * 64;
        let at = unit % bits;
        (&incoming.split[(at / 64) as usize], 1 << (at % 64))
    }

    /// Makes the stream unreadable from `offset` on. False if it was already. Must be called before
    /// the stamp of the bytes there.
    pub(crate) fn fail(&self, offset: u64) -> bool {
        let known = self
            .place
            .stack
            .failed_at
            .fetch_min(offset, Ordering::Relaxed);
        // ORDERING: Relaxed, as in `split`; a reader that finds the failure itself knows it.
        self.waiting().notify_all();
        known > offset
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

    /// The payload of a numbered frame in the send ring.
    #[inline]
    pub(crate) fn sending(&self, offset: u64, len: usize) -> Parts<'a> {
        // SAFETY: the frame was numbered, so its bytes are written and published (the log carried
        // the cursor), and not released before every frame numbered with them is sent (module
        // docs).
        unsafe { self.outgoing().read(offset, len) }
    }

    /// The same, for a frame that is sent from the ring; `None` if the bytes are not contiguous.
    #[inline]
    pub(crate) fn borrow_payload(&self, offset: u64, len: usize) -> Option<BorrowedPayload> {
        let (bytes, rest) = self.sending(offset, len);
        rest.is_empty().then_some(BorrowedPayload {
            start: bytes.as_ptr(),
            len: bytes.len(),
        })
    }

    /// The first `upto` bytes of the send stream will not be read again. The caller wakes the
    /// application afterwards.
    #[inline]
    pub(crate) fn release(&self, upto: u64) {
        // A frame with a piece of a unit is built from the beginning of the unit.
        let upto = match &self.streams.inline {
            Some(inline) => upto - upto % inline.unit,
            None => upto,
        };
        // ORDERING: Release, pairs with the Acquire in `writable`: a thread that sees the new value
        // may overwrite the bytes.
        self.place.stack.released.fetch_max(upto, Ordering::Release);
    }

    /// A frame advertises the window edge `edge`, with `limit` as the limit of unread bytes.
    #[inline]
    pub(crate) fn advertised(&self, edge: u64, limit: u32) {
        let known = &self.place.stack.limit;
        if known.load(Ordering::Relaxed) < limit {
            known.fetch_max(limit, Ordering::Relaxed);
        }
        let word = &self.place.stack.advertised;
        // A hint for when to raise the flag, no more: Relaxed, and the maximum because frames are
        // built out of order.
        if word.load(Ordering::Relaxed) < edge {
            word.fetch_max(edge, Ordering::Relaxed);
        }
    }

    /// Stores an event of the connection, which happened when the receive stream was `received`
    /// bytes long.
    pub(crate) fn event(&self, event: Event, received: u64) {
        let ends = !matches!(
            event,
            Event::Established | Event::AllAcknowledged | Event::PeerFinished { .. }
        );
        if ends {
            // Before the bit that says so, which is a Release.
            self.place.stack.ended_at.store(received, Ordering::Relaxed);
        }
        let bit = match event {
            Event::Established => ESTABLISHED,
            Event::AllAcknowledged => ACKNOWLEDGED,
            Event::PeerFinished { end } => {
                // ORDERING: Release, pairs with the Acquire in `peer_end`.
                self.place.stack.peer_end.store(end, Ordering::Release);
                0
            }
            Event::Reset => RESET,
            Event::Refused => REFUSED,
            Event::TimedOut => TIMED_OUT,
            Event::Unreachable => UNREACHABLE,
            Event::Aborted => ABORTED,
        };
        self.set_status(bit);
    }

    pub(crate) fn retired(&self) {
        self.set_status(RETIRED);
    }

    /// All frames of a closed connection were sent.
    pub(crate) fn all_sent(&self) {
        self.set_status(SENT);
    }

    fn set_status(&self, bits: u32) {
        // ORDERING: Release, pairs with the Acquire in `status`.
        self.place.stack.status.fetch_or(bits, Ordering::Release);
        self.waiting().notify_all();
    }

    // The application's side.

    pub(crate) fn status(&self) -> ConnectionStatus {
        ConnectionStatus {
            // ORDERING: Acquire, pairs with the Release in `set_status`.
            bits: self.place.stack.status.load(Ordering::Acquire),
        }
    }

    /// How many bytes had been received when the connection was closed; valid once
    /// [`ConnectionStatus::end_reason`] says so.
    pub(crate) fn ended_at(&self) -> u64 {
        self.place.stack.ended_at.load(Ordering::Relaxed)
    }

    /// Where the receive stream ends, once known.
    pub(crate) fn peer_end(&self) -> Option<u64> {
        // ORDERING: Acquire, pairs with the Release in `event`.
        let end = self.place.stack.peer_end.load(Ordering::Acquire);
        (end != UNKNOWN).then_some(end)
    }

    /// Advances `seen` along the delivery slots; afterwards `seen.arrived` is the end of the
    /// received stream.
    pub(crate) fn follow(&self, seen: &mut DeliveryCursor) {
        // ORDERING: the Acquire in `get` pairs with the Release that ends `get_or_init`. Nothing is
        // lost if the ring is not seen yet: a waiting thread has called `prepare` before this look,
        // and its fence pairs with the one of the wake-up, which follows the first stamp.
        let Some(incoming) = self.place.incoming.get() else {
            return;
        };
        let slots = incoming.delivered.len() as u64;
        let DeliveryCursor {
            mut next,
            mut arrived,
            ..
        } = *seen;
        'round: loop {
            let tag = lap_tag(next, slots);
            for slot in &incoming.delivered[(next & (slots - 1)) as usize..] {
                // ORDERING: Acquire, pairs with the Release in `stamp`.
                let found = slot.load(Ordering::Acquire);
                if found >> END_BITS != tag {
                    let Some(laps) = laps_ahead(found, next, slots) else {
                        break 'round;
                    };
                    // A newer stamp: all deliveries up to one round before it are complete, and so
                    // is this one.
                    next += (laps.max(1) - 1) * slots + 1;
                    continue 'round;
                }
                arrived = arrived.max(found & END_MASK);
                next += 1;
            }
        }
        (seen.next, seen.arrived) = (next, arrived);
    }

    /// Advances `seen.end` over whole received units, at most to where the stream failed. Units
    /// that came in pieces are passed to `open` first.
    ///
    /// # Errors
    /// The position at which `open` failed, and the reason; `seen.end` stays there.
    pub(crate) fn complete(
        &self,
        seen: &mut DeliveryCursor,
        unit: u64,
        mut open: impl FnMut(&StreamId, u64, &[u8], &mut [u8]) -> Result<(), Failure>,
    ) -> Result<(), (u64, Failure)> {
        let arrived = seen.arrived.min(self.failed_at());
        if unit == 1 {
            seen.end = seen.end.max(arrived);
            return Ok(());
        }
        let Some(incoming) = self.place.incoming.get() else {
            return Ok(());
        };
        while arrived.saturating_sub(seen.end) >= unit {
            let (word, bit) = self.split_bit(incoming, seen.end / unit);
            if word.load(Ordering::Relaxed) & bit != 0 {
                let len = unit as usize;
                let mut processed = vec![0; len];
                // SAFETY: the whole unit is below `seen.arrived`, so its pieces are stored and
                // stamped, and no Deliver names them again; it is not below `seen.end`, so it was
                // not lent to the application. The reader is the only one to call this, with its
                // `seen`.
                let (a, b) = unsafe { incoming.ring.read(seen.end, len) };
                let from = [a, b].concat();
                open(&self.origin(), seen.end, &from, &mut processed)
                    .map_err(|failure| (seen.end, failure))?;
                // SAFETY: as above; the slices `a` and `b` are not used any more.
                unsafe { incoming.ring.write(seen.end, &processed) };
                word.fetch_and(!bit, Ordering::Relaxed);
            }
            seen.end += unit;
        }
        Ok(())
    }

    /// The receive stream's name, as [`StreamRef::split`] stored it.
    fn origin(&self) -> StreamId {
        let [ends, ports] = &self.place.stack.origin;
        let (ends, ports) = (ends.load(Ordering::Relaxed), ports.load(Ordering::Relaxed));
        StreamId {
            source: SocketAddrV4::new(((ends >> 32) as u32).into(), (ports >> 16) as u16),
            destination: SocketAddrV4::new(self.streams.address, ports as u16),
            isn: ends as u32,
        }
    }

    /// Whether a part of the stream could not be processed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed_at() != UNKNOWN
    }

    /// The position from which on the stream could not be processed.
    pub(crate) fn failed_at(&self) -> u64 {
        // ORDERING: Relaxed: a reader beyond this position has seen a later stamp, with Acquire,
        // and so sees it.
        self.place.stack.failed_at.load(Ordering::Relaxed)
    }

    /// Received bytes below `seen.end` that are not read yet, in place.
    ///
    /// The slices borrow `seen`, so they are gone before [`StreamRef::read`] gives their bytes up.
    pub(crate) fn received<'s>(&self, seen: &'s DeliveryCursor) -> Parts<'s>
    where
        'a: 's,
    {
        let Some(incoming) = self.place.incoming.get() else {
            return (&[], &[]);
        };
        let from = self.place.app.read.load(Ordering::Relaxed);
        // SAFETY: bytes below `seen.end` are stamped, above `read` they are not given up; no
        // Deliver names them again (module docs). The slices end before `read` moves, which takes
        // `seen` mutably.
        unsafe { incoming.ring.read(from, (seen.end - from) as usize) }
    }

    /// The application is done with `len` more bytes. Returns whether the pump should be notified,
    /// because the window is less than half open and can be opened by a worthwhile amount.
    pub(crate) fn read(&self, len: usize, seen: &mut DeliveryCursor, mss: u32) -> bool {
        let read = self.place.app.read.load(Ordering::Relaxed) + len as u64;
        // The memory above `seen.end` is still written to, so this is checked for every caller.
        assert!(read <= seen.end, "more is given back than was received");
        // ORDERING: Release, pairs with the Acquire in `progress`: the slices are given up before
        // it.
        self.place.app.read.store(read, Ordering::Release);
        let size = u64::from(self.place.stack.limit.load(Ordering::Relaxed));
        let advertised = self.place.stack.advertised.load(Ordering::Relaxed);
        let gain = (read + size).saturating_sub(advertised);
        let left = advertised.saturating_sub(seen.end);
        gain >= u64::from(2 * mss).min(size / 2) && left < size / 2
    }

    /// Bytes that may be written now.
    ///
    /// A connection may hold [`FIRST_SEND`] bytes and twice what its peer has acknowledged so far,
    /// up to the ring's length. In slow start the congestion window is at most the first window and
    /// what was acknowledged, so this is always more than two windows; a peer that reads nothing
    /// costs no more than the first bytes.
    pub(crate) fn writable(&self) -> usize {
        // ORDERING: Acquire, pairs with the Release in `release`.
        let released = self.place.stack.released.load(Ordering::Acquire);
        let written = self.place.app.written.load(Ordering::Relaxed);
        // A unit is released as a whole, so one must fit that has only begun.
        let unit = self.streams.inline.as_ref().map_or(0, |inline| inline.unit);
        let first = FIRST_SEND.max(2 * unit);
        let most = (self.streams.send_len as u64).min(first.saturating_add(2 * released));
        most.saturating_sub(written - released) as usize
    }

    /// Copies as much of `from` as there is room for; returns how much that is.
    pub(crate) fn write(&self, from: &[u8]) -> usize {
        if from.is_empty() {
            return 0;
        }
        let len = from.len().min(self.writable());
        let written = self.place.app.written.load(Ordering::Relaxed);
        // SAFETY: above `written` and below `released` plus the ring's length no frame refers to
        // anything, and the connection's one writer is here.
        unsafe { self.outgoing().write(written, &from[..len]) };
        // ORDERING: Release, pairs with the Acquire in `progress`.
        self.place
            .app
            .written
            .store(written + len as u64, Ordering::Release);
        len
    }

    /// Declares the send ring written up to `offset`, whatever it contains and however little was
    /// released. For replays, in which no earlier byte is sent.
    pub(crate) fn skip_to(&self, offset: u64) {
        // ORDERING: Release, pairs with the Acquire in `progress`.
        self.place.app.written.fetch_max(offset, Ordering::Release);
    }

    /// Whether the whole send ring was written in this stream, so that it contains no byte of
    /// another one.
    pub(crate) fn was_filled(&self) -> bool {
        self.place.app.written.load(Ordering::Relaxed) >= self.streams.send_len as u64
    }

    /// Declares `len` more bytes of the send ring written, with the contents of one round before;
    /// returns how many fit. None before there was such a round.
    pub(crate) fn write_again(&self, len: usize) -> usize {
        if !self.was_filled() {
            return 0;
        }
        let len = len.min(self.writable());
        let written = self.place.app.written.load(Ordering::Relaxed);
        // ORDERING: Release, pairs with the Acquire in `progress`.
        self.place
            .app
            .written
            .store(written + len as u64, Ordering::Release);
        len
    }

    /// Whether nothing that was written is to be read any more.
    pub(crate) fn is_drained(&self) -> bool {
        // ORDERING: Relaxed: nothing but the number counts.
        let released = self.place.stack.released.load(Ordering::Relaxed);
        released >= self.cursors().1
    }

    pub(crate) fn request(&self, what: AppRequest) {
        let bits = if what.shutdown { SHUTDOWN } else { 0 }
            | if what.orphan { ORPHAN } else { 0 }
            | if what.abort { ABORT } else { 0 }
            | if what.set { SET } else { 0 };
        // ORDERING: Release, pairs with the Acquire in `progress`: cursors stored before are seen
        // with it.
        self.place.app.requests.fetch_or(bits, Ordering::Release);
    }

    /// What the application has set.
    pub(crate) fn settings(&self) -> Settings {
        self.place.app.settings.load()
    }

    /// Nagle's algorithm off or on. To be followed by an [`StreamRef::request`], as all below.
    pub(crate) fn set_nodelay(&self, nodelay: bool) {
        // ORDERING: Relaxed, as all wishes: the Release in `request` stands behind them.
        let wish = &self.place.app.settings.nodelay;
        wish.store(nodelay, Ordering::Relaxed);
    }

    pub(crate) fn set_keepalive(&self, keepalive: Option<Keepalive>) {
        self.place.app.settings.keepalive(keepalive);
    }

    pub(crate) fn set_user_timeout(&self, user_timeout: Option<Duration>) {
        self.place.app.settings.user_timeout(user_timeout);
    }

    pub(crate) fn set_ttl(&self, ttl: u8) {
        self.place.app.settings.ttl.store(ttl, Ordering::Relaxed);
    }

    pub(crate) fn set_tos(&self, tos: u8) {
        self.place.app.settings.tos.store(tos, Ordering::Relaxed);
    }

    /// Raises the flag; true if it was down, that is if the pump must be notified. Does nothing
    /// once the stream belongs to another connection, which may happen after the application has
    /// released this one.
    pub(crate) fn raise(&self) -> bool {
        let dirty = &self.place.app.dirty;
        let [down, up] = [false, true].map(|raised| flag(self.generation, raised));
        // Stored although it is up, or else the pump could lower it without seeing what is new.
        // ORDERING: AcqRel: Release, pairs with the Acquire in `progress`, which then sees the
        // cursors.
        let raised = dirty.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |found| {
            (found == down || found == up).then_some(up)
        });
        raised == Ok(down)
    }

    // What the pump does.

    /// Lowers the flag and reads what the application stored: read and write cursor, and what it
    /// asked.
    pub(crate) fn progress(&self) -> (u64, u64, AppRequest) {
        // ORDERING: AcqRel: Acquire, pairs with the update in `raise`; lowering first means that a
        // later store raises it again.
        let down = flag(self.generation, false);
        self.place.app.dirty.swap(down, Ordering::AcqRel);
        // ORDERING: Acquire, pairs with the Release in `request`. Read before the cursors: an
        // application that shuts down or releases the connection has written its last byte, and the
        // last cursor must be seen with that request.
        let mut asked = self.place.app.requests.load(Ordering::Acquire);
        if asked & SET != 0 {
            // Cleared before the settings are read: a setting changed after that raises the request
            // again.
            asked = self.place.app.requests.fetch_and(!SET, Ordering::Acquire);
        }
        let (read, written) = self.cursors();
        (
            read,
            written,
            AppRequest {
                shutdown: asked & SHUTDOWN != 0,
                orphan: asked & ORPHAN != 0,
                abort: asked & ABORT != 0,
                set: asked & SET != 0,
            },
        )
    }

    /// Read and write cursor.
    #[inline]
    pub(crate) fn cursors(&self) -> (u64, u64) {
        // ORDERING: Acquire both, pair with the Release in `read` and in `write`: frames that the
        // log lets be numbered see the bytes, deliveries that it lets be named see them given up.
        (
            self.place.app.read.load(Ordering::Acquire),
            self.place.app.written.load(Ordering::Acquire),
        )
    }

    /// Whether the application has let go of it.
    pub(crate) fn is_orphan(&self) -> bool {
        // ORDERING: Acquire, pairs with the Release in `request`: its last reads are over.
        self.place.app.requests.load(Ordering::Acquire) & ORPHAN != 0
    }

    /// Bytes written between two cursors, for recording.
    pub(crate) fn recorded(&self, from: u64, to: u64) -> Parts<'a> {
        // The pump read `to` with Acquire and publishes it after this, so the bytes are not
        // released yet.
        self.sending(from, (to - from) as usize)
    }

    /// What its application is to know.
    pub(crate) fn handle(&self) -> Handle {
        Handle {
            stream: self.place.number,
            generation: self.generation,
        }
    }

    /// Which group has the connection now, and its name there.
    pub(crate) fn home(&self) -> (u16, ConnId) {
        (self.place.home.group(), self.place.home.conn())
    }

    /// The connection's name in the group that has it.
    pub(crate) fn conn(&self) -> ConnId {
        self.place.home.conn()
    }
}

/// The value of the flag of a generation.
const fn flag(generation: u32, raised: bool) -> u64 {
    (generation as u64) << 1 | raised as u64
}

/// What a place's word says.
const fn entry(generation: u32, stream: u32) -> u64 {
    (generation as u64) << 32 | stream as u64
}

impl HomeSlot {
    fn new(group: u16, index: u32) -> Self {
        HomeSlot {
            place: AtomicU64::new(entry(group as u32, index)),
            generation: AtomicU32::new(0),
        }
    }

    fn set(&self, group: u16, conn: ConnId) {
        self.generation.store(conn.generation, Ordering::Relaxed);
        // ORDERING: Relaxed both: the pump that moves a stream lowers its flag after this, and a
        // thread that raises the flag reads after that. Either the thread finds all of this, or
        // what it stored is found when the flag is lowered.
        self.place
            .store(entry(u32::from(group), conn.index), Ordering::Relaxed);
    }

    fn group(&self) -> u16 {
        (self.place.load(Ordering::Relaxed) >> 32) as u16
    }

    fn conn(&self) -> ConnId {
        ConnId {
            index: self.place.load(Ordering::Relaxed) as u32,
            generation: self.generation.load(Ordering::Relaxed),
        }
    }
}

impl Stream {
    fn new(number: u32, group: u16, index: u32) -> Self {
        Stream {
            number,
            generation: AtomicU32::new(0),
            home: HomeSlot::new(group, index),
            published_end: CachePadded::default(),
            app: CachePadded::new(AppSide {
                read: AtomicU64::new(0),
                written: AtomicU64::new(0),
                requests: AtomicU32::new(0),
                settings: SharedSettings::new(),
                dirty: AtomicU64::new(flag(0, false)),
            }),
            stack: CachePadded::new(StackSide {
                released: AtomicU64::new(0),
                peer_end: AtomicU64::new(UNKNOWN),
                advertised: AtomicU64::new(0),
                limit: AtomicU32::new(0),
                ended_at: AtomicU64::new(0),
                failed_at: AtomicU64::new(UNKNOWN),
                origin: [AtomicU64::new(0), AtomicU64::new(0)],
                first: AtomicU64::new(0),
                status: AtomicU32::new(0),
            }),
            incoming: OnceLock::new(),
            outgoing: OnceLock::new(),
            waiting: EventCount::new(),
        }
    }
}

/// How far the application followed the delivery slots.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DeliveryCursor {
    /// Number of the delivery to look for.
    next: u64,
    /// Everything up to here is in the ring.
    pub(crate) arrived: u64,
    /// The stream is readable up to here.
    pub(crate) end: u64,
}

/// Tag 0 is "never stamped", so laps are counted from 1.
fn stamp(delivery: u64, slots: u64, end: u64) -> u64 {
    (lap_tag(delivery, slots) << END_BITS) | (end & END_MASK)
}

/// A power of two, which is quick to divide by, and less than there are tags.
const LAP_TAGS: u64 = 1 << (63 - END_BITS);

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

#[cfg(all(test, not(netstack_loom)))]
mod tests {
    use super::*;
    use crate::io::sync::interrupted;

    const CONN: ConnId = ConnId {
        index: 0,
        generation: 0,
    };

    fn streams() -> Streams {
        let limits = Limits {
            connections: 1,
            receive_buffer: 1024,
            send_buffer: 1024,
            ..Limits::default()
        };
        Streams::new(&limits, 4, Ipv4Addr::LOCALHOST)
    }

    fn deliver(delivery: u64, stream_offset: u64, len: u32, end: u64) -> Deliver {
        Deliver {
            conn: CONN,
            run_offset: 0,
            len,
            stream_offset,
            delivery,
            end,
            last: true,
        }
    }

    fn readable(stream: &StreamRef<'_>, seen: &mut DeliveryCursor) -> Vec<u8> {
        stream.follow(seen);
        seen.end = seen.arrived;
        let (a, b) = stream.received(seen);
        [a, b].concat()
    }

    #[test]
    fn bytes_become_readable_when_every_earlier_delivery_is_complete() {
        let streams = streams();
        let stream = streams.get(CONN).unwrap();
        let mut seen = DeliveryCursor::default();
        let (first, second) = (deliver(0, 0, 3, 3), deliver(1, 3, 3, 6));
        stream.store(&second, 0, b"def");
        stream.stamp(&second);
        assert_eq!(readable(&stream, &mut seen), b"");
        stream.store(&first, 0, b"abc");
        stream.stamp(&first);
        assert_eq!(readable(&stream, &mut seen), b"abcdef");
    }

    #[test]
    fn a_reader_that_missed_a_round_of_stamps_goes_on_behind_it() {
        let streams = streams();
        let stream = streams.get(CONN).unwrap();
        let mut seen = DeliveryCursor::default();
        for j in 0..11 {
            let d = deliver(j, j, 1, j + 1);
            stream.store(&d, 0, &[j as u8]);
            stream.stamp(&d);
        }
        assert_eq!(readable(&stream, &mut seen).len(), 11);
    }

    /// Whether a stream has what it needs for bytes that arrive, and for those that are written.
    fn has(stream: &StreamRef<'_>) -> (bool, bool) {
        let place = stream.place;
        (
            place.incoming.get().is_some(),
            place.outgoing.get().is_some(),
        )
    }

    #[test]
    fn looking_makes_no_ring_and_each_direction_makes_its_own() {
        let limits = Limits {
            connections: 2,
            receive_buffer: 1024,
            send_buffer: 1024,
            ..Limits::default()
        };
        let streams = Streams::new(&limits, 4, Ipv4Addr::LOCALHOST);
        let conn = |index| ConnId {
            index,
            generation: 0,
        };
        let [reads, writes] = [0, 1].map(|index| streams.get(conn(index)).unwrap());
        let mut seen = DeliveryCursor::default();
        for stream in [&reads, &writes] {
            assert_eq!(readable(stream, &mut seen), b"");
            assert_eq!(stream.complete(&mut seen, 16, |_, _, _, _| Ok(())), Ok(()));
            assert!(!stream.read(0, &mut seen, 1000));
            assert_eq!((stream.writable(), stream.write(b"")), (1024, 0));
            assert_eq!(has(stream), (false, false));
        }
        let first = deliver(0, 0, 3, 3);
        reads.store(&first, 0, b"abc");
        reads.stamp(&first);
        assert_eq!(readable(&reads, &mut seen), b"abc");
        assert_eq!(has(&reads), (true, false));
        writes.write(b"x");
        assert_eq!(has(&writes), (false, true));
    }

    #[test]
    fn a_stream_is_made_once_when_its_place_is_used_first() {
        let limits = Limits {
            connections: 200,
            ..Limits::default()
        };
        let table = StreamTable::new(&limits, 2);
        let groups = [0, 1]
            .map(|group| Streams::of_group(&limits, 4, Ipv4Addr::LOCALHOST, table.clone(), group));
        let conn = |index| ConnId {
            index,
            generation: 0,
        };
        assert_eq!(table.all().count(), 0);
        assert!(groups[0].get(conn(200)).is_none());
        assert!(groups[0].held(Handle::NONE).is_none());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for index in (0..200).step_by(3) {
                        let stream = groups[1].get(conn(index)).unwrap();
                        assert_eq!(stream.home(), (1, conn(index)));
                        assert_eq!(stream.handle().stream, 200 + index);
                    }
                });
            }
        });
        let numbers: Vec<u32> = table.all().map(|stream| stream.number).collect();
        let expected: Vec<u32> = (200..400).step_by(3).collect();
        assert_eq!(numbers, expected);
        // A connection moves to a place that was not used before.
        let moved = groups[1].stream_of(conn(3));
        let instead = groups[0].stream_of(conn(5));
        assert_eq!((moved, instead), (203, 5));
        groups[0].assign(conn(5), moved);
        groups[1].unassign(conn(3), instead);
        assert_eq!(groups[0].get(conn(5)).unwrap().handle().stream, 203);
        assert!(groups[1].get(conn(3)).is_none());
        assert_eq!(table.all().count(), expected.len() + 1);
    }

    #[test]
    fn rings_wrap_and_room_returns_with_release() {
        let streams = streams();
        let stream = streams.get(CONN).unwrap();
        let bytes: Vec<u8> = (0..1500u32).map(|i| i as u8).collect();
        assert_eq!(stream.write(&bytes), 1024);
        assert_eq!(stream.write(&bytes), 0);
        stream.release(1000);
        assert_eq!(stream.write(&bytes[1024..]), 476);
        let (a, b) = stream.sending(1000, 500);
        assert_eq!([a, b].concat(), &bytes[1000..1500]);
    }

    #[test]
    fn what_may_be_written_grows_by_twice_what_was_acknowledged_up_to_the_ring() {
        let limits = Limits {
            connections: 1,
            send_buffer: 1 << 18,
            ..Limits::default()
        };
        let streams = Streams::new(&limits, 4, Ipv4Addr::LOCALHOST);
        let stream = streams.get(CONN).unwrap();
        assert_eq!(stream.write(&vec![0; 1 << 20]), 65_536);
        assert_eq!(stream.writable(), 0);
        stream.release(10_000);
        // What was acknowledged made room, and twice as much is allowed besides.
        assert_eq!(stream.writable(), 3 * 10_000);
        assert_eq!(stream.write(&vec![0; 1 << 20]), 30_000);
        stream.release(95_536);
        assert_eq!(stream.writable(), 65_536 + 2 * 95_536);
        assert_eq!(stream.write(&vec![0; 1 << 20]), 65_536 + 2 * 95_536);
        stream.release(200_000);
        assert_eq!(stream.writable(), (1 << 18) - (352_144 - 200_000));
    }

    #[test]
    fn nothing_is_reserved_before_the_stream_is_known_and_nothing_that_may_have_been_taken_then() {
        let streams = streams();
        let stream = streams.get(CONN).unwrap();
        assert_eq!(stream.reserve(SeqNum(9), 10, 0), None);
        stream.set_first_sequence(SeqNum(9));
        assert_eq!(stream.reserve(SeqNum(9), 10, 0), None);
        // The first window may be full of what came before.
        let behind = SeqNum(9 + 1024);
        assert_eq!(stream.reserve(behind, 10, 100), NonZeroU64::new(1024));
        assert_eq!(stream.reserve(behind, 10, 100), None);
    }

    proptest::proptest! {
        /// In whatever order segments arrive, a reserved range was in no earlier segment, ends
        /// within the window, and does not wrap.
        #[test]
        fn a_reserved_range_was_in_no_earlier_segment(
            first in proptest::prelude::any::<u32>(),
            steps in proptest::collection::vec((0u64..3000, 1u32..600, 0u64..800), 1..80),
        ) {
            let streams = streams();
            let stream = streams.get(CONN).unwrap();
            stream.set_first_sequence(SeqNum(first));
            let (mut read, mut base) = (0u64, 0u64);
            let mut had = Vec::<(u64, u64)>::new();
            for (ahead, len, gain) in steps {
                // Around what was seen last, before and behind it.
                let offset = (base + ahead).saturating_sub(1000);
                let (end, edge) = (offset + u64::from(len), read + 1024);
                let seq = SeqNum(first.wrapping_add(offset as u32));
                let stored = stream.reserve(seq, len, read);
                if let Some(place) = stored {
                    proptest::prop_assert_eq!(place.get(), offset);
                    proptest::prop_assert!(end <= edge && offset % 1024 + u64::from(len) <= 1024);
                    for &(from, to) in &had {
                        proptest::prop_assert!(end <= from || to <= offset, "{offset} to {end}: {from} to {to}");
                    }
                }
                had.push((offset.min(edge), end.min(edge)));
                base = base.max(end.min(edge));
                read = (read + gain).min(base);
            }
        }
    }

    #[test]
    fn the_pump_is_notified_when_two_segments_were_read_and_the_window_is_less_than_half_open() {
        let streams = streams();
        let stream = streams.get(CONN).unwrap();
        stream.advertised(1024, 1024);
        let mut seen = DeliveryCursor {
            end: 512,
            ..DeliveryCursor::default()
        };
        assert!(!stream.read(200, &mut seen, 100), "half of it is open");
        let streams = super::tests::streams();
        let stream = streams.get(CONN).unwrap();
        stream.advertised(1024, 1024);
        seen.end = 513;
        assert!(!stream.read(199, &mut seen, 100));
        assert!(stream.read(1, &mut seen, 100));
    }

    #[test]
    fn a_recycled_place_is_fresh_and_its_former_connection_gone() {
        let streams = streams();
        let former = streams.get(CONN).unwrap();
        former.write(b"x");
        former.event(Event::Reset, 0);
        former.stamp(&deliver(0, 0, 1, 1));
        streams.recycle(CONN);
        assert!(streams.get(CONN).is_none());
        let next = ConnId {
            generation: 1,
            ..CONN
        };
        let stream = streams.get(next).unwrap();
        assert_eq!(stream.cursors(), (0, 0));
        assert_eq!(stream.status().end_reason(), None);
        let mut seen = DeliveryCursor::default();
        assert_eq!(readable(&stream, &mut seen), b"");
        assert!(
            !former.raise(),
            "a socket that comes late raises nobody's flag"
        );
        assert!(stream.raise());
        assert!(!stream.raise());
        stream.progress();
        assert!(stream.raise());
    }

    #[test]
    fn of_two_that_raise_the_flag_one_notifies_the_pump_in_every_interleaving() {
        for step in 0.. {
            let streams = Arc::new(streams());
            let stream = streams.get(CONN).unwrap();
            let same = Arc::clone(&streams);
            let other = move || same.get(CONN).unwrap().raise();
            let (one, other) = interrupted(step, other, || stream.raise());
            let Some(other) = other else {
                assert!(step > 0, "a flag is raised without any access");
                break;
            };
            assert!(one != other, "interrupted before access {step}");
        }
    }

    #[test]
    fn a_write_during_the_pump_s_look_is_seen_or_raises_the_flag() {
        for step in 0.. {
            let streams = Arc::new(streams());
            let stream = streams.get(CONN).unwrap();
            stream.write(b"a");
            assert!(stream.raise());
            let same = Arc::clone(&streams);
            let other = move || {
                let stream = same.get(CONN).unwrap();
                stream.write(b"b");
                stream.request(AppRequest {
                    shutdown: true,
                    ..AppRequest::default()
                });
                stream.raise()
            };
            let ((_, written, asked), raised) = interrupted(step, other, || stream.progress());
            let Some(raised) = raised else {
                assert!(step > 0, "the pump looks without any access");
                break;
            };
            let seen = written == 2 && asked.shutdown;
            assert!(seen || raised, "interrupted before access {step}");
            assert!(
                written == 2 || !asked.shutdown,
                "interrupted before access {step}: an end before all that was written"
            );
        }
    }

    #[test]
    fn a_place_that_was_handed_on_while_its_stream_was_made_stays_handed_on() {
        for step in 0.. {
            let streams = Arc::new(streams());
            // Nobody comes in while its memory is written.
            streams.table.make(0, 0);
            let same = Arc::clone(&streams);
            let (_, other) = interrupted(
                step,
                move || same.recycle(CONN),
                || streams.get(CONN).is_some(),
            );
            if other.is_none() {
                assert!(step > 0, "a stream is found without any access");
                break;
            }
            let next = ConnId {
                generation: 1,
                ..CONN
            };
            assert!(
                streams.get(CONN).is_none() && streams.get(next).is_some(),
                "interrupted before access {step}"
            );
        }
    }
}

/// Models of streams under loom (`.ci/run`). Each says what it would catch.
#[cfg(all(test, netstack_loom))]
mod loom_models {
    use loom::thread;

    use super::*;

    const CONN: ConnId = ConnId {
        index: 0,
        generation: 0,
    };

    /// One stream of rings of two bytes, which are made, so that no thread waits in std while
    /// another makes them.
    fn streams() -> Arc<Streams> {
        let limits = Limits {
            connections: 1,
            receive_buffer: 2,
            send_buffer: 2,
            ..Limits::default()
        };
        let streams = Streams::new(&limits, 2, Ipv4Addr::LOCALHOST);
        let stream = streams.get(CONN).unwrap();
        stream.incoming();
        stream.outgoing();
        Arc::new(streams)
    }

    fn spawn<R: 'static>(
        streams: &Arc<Streams>,
        work: impl FnOnce(StreamRef<'_>) -> R + 'static,
    ) -> thread::JoinHandle<R> {
        let streams = Arc::clone(streams);
        thread::spawn(move || work(streams.get(CONN).unwrap()))
    }

    /// All interleavings with at most two involuntary switches.
    fn model(model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(2));
        builder.check(model);
    }

    fn deliver(stream: StreamRef<'_>, delivery: u64) {
        let deliver = Deliver {
            conn: CONN,
            run_offset: 0,
            len: 1,
            stream_offset: delivery,
            delivery,
            end: delivery + 1,
            last: true,
        };
        stream.store(&deliver, 0, &[delivery as u8]);
        stream.stamp(&deliver);
    }

    /// Reads all that is there.
    fn read(stream: StreamRef<'_>, seen: &mut DeliveryCursor) -> Vec<u8> {
        stream.follow(seen);
        seen.end = seen.arrived;
        let bytes = {
            let (a, b) = stream.received(seen);
            [a, b].concat()
        };
        stream.read(bytes.len(), seen, 1);
        bytes
    }

    /// Catches: bytes read before they are written, because `stamp` or `follow` is Relaxed.
    #[test]
    fn two_primaries_deliver_and_the_application_reads() {
        model(|| {
            let streams = streams();
            let primaries = [0, 1].map(|j| spawn(&streams, move |stream| deliver(stream, j)));
            let (stream, mut seen) = (streams.get(CONN).unwrap(), DeliveryCursor::default());
            let mut bytes = read(stream, &mut seen);
            let _ = primaries.map(|primary| primary.join().unwrap());
            bytes.extend(read(stream, &mut seen));
            assert_eq!(bytes, [0, 1]);
        });
    }

    /// Catches: bytes sent before they are written, because the cursor or the flag is Relaxed; an
    /// end that overtakes the last write; a write that the pump neither sees nor is notified of.
    #[test]
    fn the_application_writes_and_the_pump_looks() {
        model(|| {
            let streams = streams();
            let writer = spawn(&streams, |stream| {
                stream.write(b"a");
                stream.request(AppRequest {
                    shutdown: true,
                    ..AppRequest::default()
                });
                stream.raise()
            });
            let stream = streams.get(CONN).unwrap();
            let (_, written, asked) = stream.progress();
            assert!(written == 1 || !asked.shutdown);
            if written == 1 {
                assert_eq!(stream.sending(0, 1).0, b"a");
            }
            assert!(writer.join().unwrap(), "nobody else raised it");
        });
    }

    /// Catches: a flag that is lowered after the cursors are read.
    #[test]
    fn a_second_write_is_seen_or_raises_the_flag() {
        model(|| {
            let streams = streams();
            let stream = streams.get(CONN).unwrap();
            stream.write(b"a");
            assert!(stream.raise());
            let writer = spawn(&streams, |stream| {
                stream.write(b"b");
                stream.raise()
            });
            let (_, written, _) = stream.progress();
            assert!(writer.join().unwrap() || written == 2);
        });
    }

    /// Catches: bytes written over while a frame is built from them, because `release` or
    /// `writable` is Relaxed.
    #[test]
    fn what_was_released_is_written_over() {
        model(|| {
            let streams = streams();
            let stream = streams.get(CONN).unwrap();
            assert_eq!(stream.write(b"ab"), 2);
            let primary = spawn(&streams, |stream| {
                let sent = stream.sending(0, 2).0.to_vec();
                stream.release(2);
                sent
            });
            stream.write(b"c");
            assert_eq!(primary.join().unwrap(), b"ab");
        });
    }

    /// Catches: the end of the stream, or of the connection, seen without what was stored before
    /// it.
    #[test]
    fn how_much_arrived_before_a_reset_is_known_with_it() {
        model(|| {
            let streams = streams();
            let primary = spawn(&streams, |stream| {
                deliver(stream, 0);
                stream.event(Event::PeerFinished { end: 1 }, 1);
                stream.event(Event::Reset, 1);
            });
            let stream = streams.get(CONN).unwrap();
            if stream.status().end_reason().is_some() {
                assert_eq!((stream.ended_at(), stream.peer_end()), (1, Some(1)));
            }
            if stream.peer_end().is_some() {
                assert_eq!(read(stream, &mut DeliveryCursor::default()), [0]);
            }
            primary.join().unwrap();
        });
    }
}
