//! Streams: the memory that the application and the primaries of a connection share.
//!
//! Every entry of the connection table has one [`Stream`]: two byte rings, the cursors of both
//! sides, and the status of the connection as the application sees it. None of this is protocol
//! state: a replica never reads it.
//!
//! | file | contents |
//! |---|---|
//! | `byte_ring.rs` | bytes in a ring |
//! | `delivery.rs` | received bytes: stored in any order, read in order |
//! | `send.rs` | bytes that the application writes and primaries send |
//! | `options.rs` | socket options |
//! | `table.rs` | all streams of a group, and the connections that they belong to |
//!
//! Memory is allocated with use. A stream is made when its entry is first used (`table.rs`), its
//! receive ring and delivery slots when the first byte arrives, and its send ring when the first
//! byte is written. Looking for received bytes allocates nothing: without a receive ring none has
//! arrived. The rings stay with their stream for its next connection. Short rings of neighbours in
//! the table share a block, so a page of a ring takes memory only once it is written. The pages of
//! an idle connection return to the system.
//!
//! # Access to bytes
//! *Receive ring.* Offset `seq - irs - 1` of the stream has that position modulo the ring's length.
//! `apply` names each byte of a stream in exactly one [`Deliver`](crate::log::effect::Deliver), and
//! only bytes below `app_read + length`, where `app_read` is a cursor that the application has
//! already stored. So a writer has exclusive access to its range: no other primary writes there,
//! and the application has released it. The application reads below the end of the completed
//! deliveries.
//!
//! *Stored ahead.* The pump may let the payload of a run be stored while its checksums are
//! verified, before `apply` names it. For this it reserves bytes for one run each, and only bytes
//! that no earlier request of the log can have named or stored: those at `published_end`. (Bytes
//! after a gap could be reserved as well, but `apply` may refuse them, and a page would be touched
//! for nothing.) `published_end` is never below the end of any published run, up to the edge of
//! what `apply` accepts. It starts at `app_read + length` of the first run for which the pump
//! reserves, so all bytes of earlier runs are below it. The worker that determines the verdict of
//! such a run makes the copy; no other does: it has begun the verdict
//! ([`dominoes::Verdicts::begin`]), or it is the pump, before it publishes the run. Later requests
//! may be given the same bytes, because a checksum was wrong or the run was outside its window.
//! They are applied after the run, whose verdict exists only when its copy is complete.
//!
//! *Delivery slots.* Delivery j is stamped into slot j modulo their number once its bytes are in
//! the ring. The stream is readable up to the end of the longest sequence of stamped deliveries
//! from 0. A slot may be stamped again before the application has seen it: a request j+D enters the
//! log only when request j is done, and D is at least the log's length, so a newer stamp implies
//! that all deliveries up to D before it are complete.
//!
//! *Send ring.* The application writes above its write cursor and below `released + length`;
//! primaries read between. `Effect::Release` moves `released` only when every frame that was
//! numbered before it is sent, so frames may be sent from the ring without a copy.
//!
//! *Written ahead.* A stream of units (TLS, or a program's own) has one writer, which assigns
//! ranges above `written` to units, within the room that an ordinary write would have. The thread
//! that has begun a unit (`io/units.rs`) writes its range, any number of times; `written` moves
//! over the range when it is done (`StreamRef::publish_written`). No frame reads above `written`.
//!
//! *Opened from the ring.* Threads that have begun units read them in place from the receive
//! ring, between `app_read` and the end of stamped deliveries (`StreamRef::arrived`). Their reader
//! moves `app_read` over a unit when it is done.
//!
//! *Given back.* The memory of rings and slots returns to the system where no byte is left that
//! will be read, and while no thread can write one: `io/rx/connections.rs` explains when that holds.

mod byte_ring;
mod delivery;
#[cfg(all(test, netstack_loom))]
mod loom_models;
mod options;
mod send;
mod table;
#[cfg(all(test, not(netstack_loom)))]
mod tests;

use core::sync::atomic::Ordering;
use std::sync::OnceLock;

use crossbeam_utils::CachePadded;
use dominoes::EventCount;

use self::byte_ring::ByteRing;
#[cfg(feature = "testkit")]
pub(crate) use self::byte_ring::MAPPED;
pub(crate) use self::byte_ring::Parts;
pub(crate) use self::delivery::DeliveryCursor;
use self::delivery::Incoming;
pub(crate) use self::options::Change;
use self::options::SharedOptions;
pub(crate) use self::send::{BorrowedPayload, Writing};
pub(crate) use self::table::Streams;
use crate::config::Settings;
use crate::io::sync::{AtomicU32, AtomicU64};
use crate::log::effect::ConnectionEvent;
use crate::log::request::ConnId;

/// An offset that is not known.
const UNKNOWN: u64 = u64::MAX;

/// The state that applications and primaries share about one connection.
pub(crate) struct Stream {
    /// Index of its entry in the connection table.
    index: u32,
    pump: CachePadded<PumpSide>,
    app: CachePadded<AppSide>,
    stack: CachePadded<StackSide>,
    /// Made when the first byte arrives.
    incoming: OnceLock<Incoming>,
    /// The send ring, made when the first byte is written.
    outgoing: OnceLock<ByteRing>,
    /// The application waits here for bytes, or for another status.
    waiting: EventCount,
    /// The application waits here for room, or for another status.
    room: EventCount,
}

/// The values that the pump stores.
#[derive(Default)]
struct PumpSide {
    /// Nothing that `apply` may accept of a published run lies past this offset of the receive
    /// stream. 0 until the pump needs it.
    published_end: AtomicU64,
    /// Bytes of the send stream before this offset may have been lost with the memory of their
    /// ring; all of them had been released.
    unwritten: AtomicU64,
}

/// The values that the application of one connection stores.
struct AppSide {
    /// Bytes read.
    read: AtomicU64,
    /// Number of the delivery that the last read would have looked for next.
    next: AtomicU64,
    /// Bytes written.
    written: AtomicU64,
    /// How often a write found too little room, or another user held the room.
    shortages: AtomicU64,
    /// How often a read failed because another user held the bytes.
    misses: AtomicU64,
    /// SHUTDOWN, ORPHAN, ABORT, SET, for the pump; SHUT_READ and MORE, for applications alone.
    requests: AtomicU32,
    options: SharedOptions,
    /// Bytes that may be written ahead of the released ones; 0: only the ring bounds them.
    send_limit: AtomicU32,
    /// As [`Tuning::notsent_lowat`](crate::Tuning::notsent_lowat).
    notsent_lowat: AtomicU32,
    /// The user of the send ring: none, its writer, or the pump while it returns the ring's memory
    /// (`send.rs`).
    send_user: AtomicU32,
    /// Whether the pump has been notified of a change above and has not looked yet: a flag, with
    /// the entry's generation, so that the application of a former connection cannot raise it.
    dirty: AtomicU64,
}

/// The values that workers store for the application when they perform effects, and one of the
/// pump's.
struct StackSide {
    /// The end of the bytes in the send ring that may be overwritten.
    released: AtomicU64,
    /// The end of the bytes that have frames, if the connection bounds unsent bytes.
    numbered: AtomicU64,
    /// The end of the receive stream, once the peer has finished.
    peer_end: AtomicU64,
    /// Right edge of the latest advertised window.
    advertised: AtomicU64,
    /// The limit of unread bytes at that time.
    limit: AtomicU32,
    /// How many bytes had been received when the connection was closed.
    ended_at: AtomicU64,
    /// The end of the bytes that were stored after a gap.
    gap_end: AtomicU64,
    /// Stamps of deliveries before this one may have been lost with the memory of their slots; all
    /// of their bytes had been read. The pump stores it.
    unstamped: AtomicU64,
    /// Sequence number of the receive stream's first byte, with [`IS_KNOWN`] once it is known.
    first: AtomicU64,
    /// Status bits.
    status: AtomicU32,
}

/// Set together with a known sequence number.
const IS_KNOWN: u64 = 1 << 32;

/// The stream of one connection.
#[derive(Clone, Copy)]
pub(crate) struct StreamRef<'a> {
    streams: &'a Streams,
    stream: &'a Stream,
    generation: u32,
}

/// Requests of the application about a connection, in addition to its cursors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AppRequest {
    pub(crate) shutdown: bool,
    pub(crate) orphan: bool,
    pub(crate) abort: bool,
    /// Its options have changed.
    pub(crate) set: bool,
}

const SHUTDOWN: u32 = 1;
const ORPHAN: u32 = 2;
const ABORT: u32 = 4;
const SET: u32 = 8;
const SHUT_READ: u32 = 16;
const MORE: u32 = 32;

impl Stream {
    fn new(index: u32, settings: Settings) -> Self {
        Stream {
            index,
            pump: CachePadded::default(),
            app: CachePadded::new(AppSide {
                read: AtomicU64::new(0),
                next: AtomicU64::new(0),
                written: AtomicU64::new(0),
                shortages: AtomicU64::new(0),
                misses: AtomicU64::new(0),
                requests: AtomicU32::new(0),
                options: SharedOptions::new(settings),
                send_limit: AtomicU32::new(0),
                notsent_lowat: AtomicU32::new(0),
                send_user: AtomicU32::new(0),
                dirty: AtomicU64::new(flag(0, false)),
            }),
            stack: CachePadded::new(StackSide {
                released: AtomicU64::new(0),
                numbered: AtomicU64::new(0),
                peer_end: AtomicU64::new(UNKNOWN),
                advertised: AtomicU64::new(0),
                limit: AtomicU32::new(0),
                ended_at: AtomicU64::new(0),
                gap_end: AtomicU64::new(0),
                unstamped: AtomicU64::new(0),
                first: AtomicU64::new(0),
                status: AtomicU32::new(0),
            }),
            incoming: OnceLock::new(),
            outgoing: OnceLock::new(),
            waiting: EventCount::new(),
            room: EventCount::new(),
        }
    }

    fn notify(&self) {
        self.waiting.notify_all();
        self.room.notify_all();
    }
}

impl<'a> StreamRef<'a> {
    /// Notified of arrived bytes and of another status; of a UDP socket's queue also of room.
    pub(crate) fn waiting(&self) -> &'a EventCount {
        &self.stream.waiting
    }

    /// Notified of room for more bytes and of another status. It is apart, since a thread that
    /// reads would wake in vain for all room that another one waits for.
    pub(crate) fn room(&self) -> &'a EventCount {
        &self.stream.room
    }

    /// Wakes all who wait for anything.
    pub(crate) fn notify(&self) {
        self.stream.notify();
    }

    // What a worker that performs effects stores.

    /// A frame advertises the window edge `edge`, with `limit` as the limit of unread bytes.
    #[inline]
    pub(crate) fn advertised(&self, edge: u64, limit: u32) {
        let known = &self.stream.stack.limit;
        if known.load(Ordering::Relaxed) < limit {
            known.fetch_max(limit, Ordering::Relaxed);
        }
        let word = &self.stream.stack.advertised;
        // Only a hint for when to raise the flag: Relaxed, and the maximum because frames are built
        // out of order.
        if word.load(Ordering::Relaxed) < edge {
            word.fetch_max(edge, Ordering::Relaxed);
        }
    }

    // What the application stores.

    pub(crate) fn request(&self, what: AppRequest) {
        let bits = if what.shutdown { SHUTDOWN } else { 0 }
            | if what.orphan { ORPHAN } else { 0 }
            | if what.abort { ABORT } else { 0 }
            | if what.set { SET } else { 0 };
        // ORDERING: Release, pairs with the Acquire in `progress`, which then sees cursors stored
        // before this.
        self.stream.app.requests.fetch_or(bits, Ordering::Release);
    }

    /// Notes whether the last bytes written wait for more.
    pub(crate) fn set_more(&self, more: bool) {
        // ORDERING: Relaxed: only the connection's one writer reads it.
        let requests = &self.stream.app.requests;
        match more {
            true => requests.fetch_or(MORE, Ordering::Relaxed),
            false => requests.fetch_and(!MORE, Ordering::Relaxed),
        };
    }

    /// Whether the last bytes written wait for more.
    #[inline]
    pub(crate) fn waits_for_more(&self) -> bool {
        self.stream.app.requests.load(Ordering::Relaxed) & MORE != 0
    }

    /// Notes that nothing more will be read. The caller then wakes all readers that wait.
    pub(crate) fn shut_read(&self) {
        // ORDERING: Release, pairs with the Acquire in `is_read_shut`.
        let requests = &self.stream.app.requests;
        requests.fetch_or(SHUT_READ, Ordering::Release);
    }

    pub(crate) fn is_read_shut(&self) -> bool {
        self.stream.app.requests.load(Ordering::Acquire) & SHUT_READ != 0
    }

    /// Raises the flag; returns true if it was down, in which case the pump must be notified. Does
    /// nothing once the stream belongs to another connection, as may happen after the application
    /// has released this one.
    pub(crate) fn raise(&self) -> bool {
        let dirty = &self.stream.app.dirty;
        let [down, up] = [false, true].map(|raised| flag(self.generation, raised));
        // Stored even if it is up, since otherwise the pump could lower it without seeing the
        // change.
        // ORDERING: AcqRel: Release, pairs with the Acquire in `progress`, which then sees the
        // cursors.
        let raised = dirty.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |found| {
            (found == down || found == up).then_some(up)
        });
        raised == Ok(down)
    }

    // What the pump does.

    /// Lowers the flag and reads the values that the application stored: its read and write
    /// cursors, and its requests.
    pub(crate) fn progress(&self) -> (u64, u64, AppRequest) {
        // ORDERING: AcqRel: Acquire, pairs with the update in `raise`; the flag is lowered first,
        // so that a later store raises it again.
        let down = flag(self.generation, false);
        self.stream.app.dirty.swap(down, Ordering::AcqRel);
        // ORDERING: Acquire, pairs with the Release in `request`. Read before the cursors: an
        // application that shuts down or releases the connection has written its last byte before,
        // so the last cursor must be seen with that request.
        let asked = self.stream.app.requests.load(Ordering::Acquire);
        let (read, written) = self.cursors();
        (
            read,
            written,
            AppRequest {
                shutdown: asked & SHUTDOWN != 0,
                orphan: asked & ORPHAN != 0,
                abort: asked & ABORT != 0,
                set: self.has_changes(),
            },
        )
    }

    /// Read and write cursor.
    #[inline]
    pub(crate) fn cursors(&self) -> (u64, u64) {
        // ORDERING: Acquire both, pair with the Release in `read` and in `write`: a frame that is
        // numbered from these cursors sees the written bytes, and a delivery that is named from
        // them sees that the bytes it overwrites were given up.
        (
            self.stream.app.read.load(Ordering::Acquire),
            self.stream.app.written.load(Ordering::Acquire),
        )
    }

    /// Whether the application has released the connection.
    pub(crate) fn is_orphan(&self) -> bool {
        // ORDERING: Acquire, pairs with the Release in `request`: its last reads are over.
        self.stream.app.requests.load(Ordering::Acquire) & ORPHAN != 0
    }

    /// The connection's id in its group.
    pub(crate) fn conn(&self) -> ConnId {
        ConnId {
            index: self.stream.index,
            generation: self.generation,
        }
    }
}

/// The value of the flag of a generation.
const fn flag(generation: u32, raised: bool) -> u64 {
    (generation as u64) << 1 | raised as u64
}

const ESTABLISHED: u32 = 1;
const ACKNOWLEDGED: u32 = 2;
const RETIRED: u32 = 4;
const RESET: u32 = 8;
const REFUSED: u32 = 16;
const TIMED_OUT: u32 = 32;
const ABORTED: u32 = 64;
const UNREACHABLE: u32 = 128;
const SENT: u32 = 256;
const LOST: u32 = 512;
/// The bits of a connection that ended early.
const ERRORS: u32 = RESET | REFUSED | TIMED_OUT | ABORTED | UNREACHABLE | LOST;

/// Why a connection ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndReason {
    Reset,
    Refused,
    TimedOut,
    Unreachable,
    Aborted,
    AddressLost,
}

/// The status of a connection as far as its application may know it.
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

    /// The bits that affect reads and writes.
    fn lasting(self) -> u32 {
        self.bits & (ESTABLISHED | RETIRED | ERRORS)
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
            (LOST, EndReason::AddressLost),
        ];
        table
            .into_iter()
            .find(|(bit, _)| self.bits & bit != 0)
            .map(|(_, ending)| ending)
    }
}

impl StreamRef<'_> {
    /// Stores an event of the connection, which happened when the receive stream was `received`
    /// bytes long.
    pub(crate) fn event(&self, event: ConnectionEvent, received: u64) {
        let ends = !matches!(
            event,
            ConnectionEvent::Established
                | ConnectionEvent::AllAcknowledged
                | ConnectionEvent::PeerFinished { .. }
        );
        if ends {
            // Stored before the bit that makes it valid, which is stored with Release.
            self.stream
                .stack
                .ended_at
                .store(received, Ordering::Relaxed);
        }
        let bit = match event {
            ConnectionEvent::Established => ESTABLISHED,
            ConnectionEvent::AllAcknowledged => ACKNOWLEDGED,
            ConnectionEvent::PeerFinished { end } => {
                // ORDERING: Release, pairs with the Acquire in `peer_end`.
                self.stream.stack.peer_end.store(end, Ordering::Release);
                0
            }
            ConnectionEvent::Reset => RESET,
            ConnectionEvent::Refused => REFUSED,
            ConnectionEvent::TimedOut => TIMED_OUT,
            ConnectionEvent::Unreachable => UNREACHABLE,
            ConnectionEvent::Aborted => ABORTED,
            ConnectionEvent::AddressLost => LOST,
        };
        self.set_status(bit);
    }

    pub(crate) fn retired(&self) {
        self.set_status(RETIRED);
    }

    /// Notes that all frames of a closed connection were sent.
    pub(crate) fn all_sent(&self) {
        self.set_status(SENT);
    }

    fn set_status(&self, bits: u32) {
        // ORDERING: Release, pairs with the Acquire in `status`.
        self.stream.stack.status.fetch_or(bits, Ordering::Release);
        self.notify();
    }

    pub(crate) fn status(&self) -> ConnectionStatus {
        ConnectionStatus {
            // ORDERING: Acquire, pairs with the Release in `set_status`.
            bits: self.stream.stack.status.load(Ordering::Acquire),
        }
    }

    /// How many bytes had been received when the connection was closed; valid once
    /// [`ConnectionStatus::end_reason`] returns a reason.
    pub(crate) fn ended_at(&self) -> u64 {
        self.stream.stack.ended_at.load(Ordering::Relaxed)
    }

    /// The end of the receive stream, once known.
    pub(crate) fn peer_end(&self) -> Option<u64> {
        // ORDERING: Acquire, pairs with the Release in `event`.
        let end = self.stream.stack.peer_end.load(Ordering::Acquire);
        (end != UNKNOWN).then_some(end)
    }
}

/// The state of a stream for its application, at one moment, as a poller asks on any thread:
/// whether a read or a write would succeed. It needs neither half of the socket: it follows the
/// delivery slots from the position of the last read, which the reader publishes for this purpose.
/// From there to the newest delivery there are never more deliveries than bytes in the receive
/// ring. Each field except `is_writable` changes when there is news, and never returns to an
/// earlier value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look {
    /// The end of the received bytes.
    pub(crate) received: u64,
    /// How many reads failed because another user held the bytes.
    pub(crate) misses: u64,
    /// How many writes found too little room.
    pub(crate) shortages: u64,
    /// The life of the connection: [`Look::END`] and other bits.
    pub(crate) status: u32,
    /// There are bytes to read.
    pub(crate) has_bytes: bool,
    /// No more bytes will be received, and all received bytes are read.
    pub(crate) is_at_end: bool,
    /// At least a third of the room for writing is free. (With less, writes would be small.)
    pub(crate) has_room: bool,
}

impl Look {
    /// The peer has sent the end of the stream.
    pub(crate) const END: u32 = 1 << 30;
    /// The application will not read any more.
    const SHUT_READ: u32 = 1 << 26;
    /// The application will not write any more.
    const SHUT_WRITE: u32 = 1 << 25;

    /// Whether the connection is established.
    pub(crate) fn is_established(&self) -> bool {
        self.status & ESTABLISHED != 0
    }

    /// Whether it was closed early.
    pub(crate) fn has_error(&self) -> bool {
        self.status & ERRORS != 0
    }

    /// Whether the connection is closed.
    pub(crate) fn is_over(&self) -> bool {
        self.status & (ERRORS | RETIRED) != 0
    }

    /// Whether nothing will be received any more.
    pub(crate) fn is_read_over(&self) -> bool {
        self.is_over() || self.status & (Self::END | Self::SHUT_READ) != 0
    }

    /// Whether nothing can be written any more.
    pub(crate) fn is_write_over(&self) -> bool {
        self.is_over() || self.status & Self::SHUT_WRITE != 0
    }
}

impl StreamRef<'_> {
    /// Notes that a read failed because another user held the bytes. That user may leave some of
    /// them.
    #[cold]
    pub(crate) fn missed(&self) {
        self.stream.app.misses.fetch_add(1, Ordering::Relaxed);
    }

    /// The result of a read and of a write now.
    pub(crate) fn look(&self) -> Look {
        let status = self.status();
        let peer_end = self.peer_end();
        let app = &self.stream.app;
        let asked = app.requests.load(Ordering::Acquire);
        let is_read_shut = asked & SHUT_READ != 0;
        // ORDERING: Relaxed both. If the reader advances meanwhile, this may report bytes that were
        // read, as a poller may. It misses no unread bytes.
        let next = app.next.load(Ordering::Relaxed);
        let read = app.read.load(Ordering::Relaxed);
        // Start from the delivery that the reader saw last: its stamp has the end of those before
        // it.
        let mut seen = DeliveryCursor {
            next: next.saturating_sub(1),
            arrived: read,
            end: read,
        };
        self.follow(&mut seen);
        let received = seen.arrived;
        let ended = status.end_reason().is_some() && self.ended_at() <= received;
        let written = app.written.load(Ordering::Relaxed);
        Look {
            received,
            misses: app.misses.load(Ordering::Relaxed),
            shortages: app.shortages.load(Ordering::Relaxed),
            status: status.lasting()
                | if peer_end.is_some() { Look::END } else { 0 }
                | if is_read_shut { Look::SHUT_READ } else { 0 }
                | if asked & SHUTDOWN != 0 {
                    Look::SHUT_WRITE
                } else {
                    0
                },
            has_bytes: received > read,
            is_at_end: peer_end == Some(received) || ended || is_read_shut,
            has_room: self.has_room_behind(written, 1),
        }
    }
}
