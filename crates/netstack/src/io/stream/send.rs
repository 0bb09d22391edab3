//! Bytes that the application writes and primaries send.
//!
//! The docs of `stream.rs` define which thread may access which byte.

use core::sync::atomic::Ordering;

use super::StreamRef;
use super::byte_ring::{ByteRing, Parts};
use crate::io::sync::{AtomicU32, fence, yield_now};

/// Bytes that a connection may write before its peer has acknowledged any: more than two initial
/// congestion windows of ten segments (RFC 6928).
pub(super) const FIRST_SEND: u64 = 64 << 10;

/// Payload of a numbered frame, borrowed from a send ring. It does not change until the frame is
/// sent: until then `apply` does not release the bytes, and the pump does not recycle the entry.
#[derive(Clone, Copy)]
pub(crate) struct BorrowedPayload {
    start: *const u8,
    len: usize,
}

impl BorrowedPayload {
    /// The bytes.
    ///
    /// The frame is not sent while they are used, and the streams they come from are not dropped.
    #[inline]
    pub(crate) unsafe fn bytes<'a>(self) -> &'a [u8] {
        // SAFETY: they were a slice, and the caller guarantees that no thread writes or frees them.
        unsafe { core::slice::from_raw_parts(self.start, self.len) }
    }
}

/// No thread writes to the send ring.
const UNUSED: u32 = 0;
/// The writer may write to it.
const WRITING: u32 = 1;
/// The pump is returning its memory.
const DISCARDING: u32 = 2;

/// While this lives, the memory of the send ring is not returned to the system.
pub(crate) struct Writing<'a> {
    user: &'a AtomicU32,
}

impl Drop for Writing<'_> {
    #[inline]
    fn drop(&mut self) {
        // ORDERING: Release, pairs with the Acquire in `give_back_sent`, which then sees the
        // written bytes and the cursor after them.
        self.user.store(UNUSED, Ordering::Release);
    }
}

impl<'a> StreamRef<'a> {
    /// The send ring; makes it for the first bytes that are written or sent.
    pub(super) fn outgoing(&self) -> &'a ByteRing {
        let make = || self.streams.table.send_blocks().make(self.stream.index);
        self.stream.outgoing.get_or_init(make)
    }

    // The primaries' side.

    /// The payload of a numbered frame in the send ring.
    #[inline]
    pub(crate) fn sending(&self, offset: u64, len: usize) -> Parts<'a> {
        // SAFETY: the frame was numbered, so its bytes are written and published (the log carried
        // the cursor), and they are not released until every frame numbered with them is sent
        // (module docs).
        unsafe { self.outgoing().read(offset, len) }
    }

    /// As [`StreamRef::sending`], for a frame that is sent from the ring; `None` if the bytes are
    /// not contiguous.
    #[inline]
    pub(crate) fn borrow_payload(&self, offset: u64, len: usize) -> Option<BorrowedPayload> {
        let (bytes, rest) = self.sending(offset, len);
        rest.is_empty().then_some(BorrowedPayload {
            start: bytes.as_ptr(),
            len: bytes.len(),
        })
    }

    /// Notes that the first `upto` bytes of the send stream will not be read again. The caller then
    /// wakes the application.
    #[inline]
    pub(crate) fn release(&self, upto: u64) {
        // ORDERING: Release, pairs with the Acquire in `writable`: a thread that sees the new value
        // may overwrite the bytes.
        self.stream
            .stack
            .released
            .fetch_max(upto, Ordering::Release);
    }

    // The application's side.

    /// Bytes that may be written now.
    ///
    /// A connection may hold [`Streams::first_send`](super::Streams) bytes plus twice the bytes
    /// that its peer has acknowledged so far, up to the ring's length. In slow start the congestion
    /// window is at most the initial window plus the acknowledged bytes, so this is always more
    /// than two windows. A peer that reads nothing costs no more than the first bytes.
    pub(crate) fn writable(&self) -> usize {
        self.writable_behind(self.stream.app.written.load(Ordering::Relaxed))
    }

    /// As [`StreamRef::writable`], after `written`, which is at least the write cursor.
    #[inline]
    pub(crate) fn writable_behind(&self, written: u64) -> usize {
        let room = self.ring_room_behind(written);
        match self.stream.app.notsent_lowat.load(Ordering::Relaxed) {
            0 => room,
            bound => room.min(self.unsent_room_behind(written, bound)),
        }
    }

    /// As [`StreamRef::writable_behind`], ignoring the bound of unsent bytes.
    #[inline]
    pub(crate) fn ring_room_behind(&self, written: u64) -> usize {
        // ORDERING: Acquire, pairs with the Release in `release`.
        let released = self.stream.stack.released.load(Ordering::Acquire);
        let first = self.streams.first_send;
        let most = (self.streams.send_len as u64).min(first.saturating_add(2 * released));
        let most = match self.stream.app.send_limit.load(Ordering::Relaxed) {
            0 => most,
            limit => most.min(u64::from(limit)),
        };
        most.saturating_sub(written.saturating_sub(released)) as usize
    }

    #[cold]
    fn unsent_room_behind(&self, written: u64, bound: u32) -> usize {
        u64::from(bound).saturating_sub(self.unsent_before(written)) as usize
    }

    /// Bytes before `written` that have no frames yet, for a connection that bounds them.
    #[cold]
    fn unsent_before(&self, written: u64) -> u64 {
        // ORDERING: Relaxed both: a bound for a number. Frames are numbered before they are
        // released.
        let released = self.stream.stack.released.load(Ordering::Relaxed);
        let numbered = self.stream.stack.numbered.load(Ordering::Relaxed);
        written.saturating_sub(numbered.max(released))
    }

    /// Whether `least` bytes after `written` and at least a third of the room are free, and the
    /// unsent bytes are less than half of their bound, if there is one.
    pub(crate) fn has_room_behind(&self, written: u64, least: usize) -> bool {
        let room = self.writable_behind(written);
        if room < least {
            return false;
        }
        // ORDERING: Relaxed: see `fell_short`. The numbers may have changed since `written` was
        // read.
        let bound = self.stream.app.notsent_lowat.load(Ordering::Relaxed);
        if bound != 0 {
            return 2 * self.unsent_before(written) < u64::from(bound);
        }
        let released = self.stream.stack.released.load(Ordering::Relaxed);
        room as u64 >= written.saturating_sub(released) / 2
    }

    /// Notes that the first `upto` bytes of the send stream have frames. The caller then wakes the
    /// application.
    pub(crate) fn numbered(&self, upto: u64) {
        // ORDERING: Relaxed: see `unsent_before`.
        let numbered = &self.stream.stack.numbered;
        numbered.fetch_max(upto, Ordering::Relaxed);
    }

    /// Bounds the bytes that may be written ahead of the released ones; 0: only the ring bounds
    /// them.
    pub(crate) fn set_send_limit(&self, bytes: u32) {
        // ORDERING: Relaxed: only its own value counts.
        self.stream.app.send_limit.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn send_limit(&self) -> u32 {
        self.stream.app.send_limit.load(Ordering::Relaxed)
    }

    /// Notes a shortage of room, so that a later release notifies the waiting writer. Returns the
    /// room that there is now.
    #[cold]
    pub(crate) fn fell_short(&self) -> usize {
        let shortages = &self.stream.app.shortages;
        shortages.fetch_add(1, Ordering::Relaxed);
        // ORDERING: SeqCst fence, pairs with the one in `EventCount::notify_all`, which runs
        // between a release and its notifier's look: either that look finds the shortage, or this
        // thread finds the room.
        fence(Ordering::SeqCst);
        self.writable()
    }

    /// Begins to write to the send ring; only the connection's one writer may call this. Waits
    /// while the pump returns the ring's memory, which takes some microseconds.
    #[inline]
    pub(crate) fn begin_writing(&self) -> Writing<'a> {
        let user = &self.stream.app.send_user;
        // ORDERING: Acquire, pairs with the Release in `give_back_sent`: the memory is fresh by
        // then.
        let begun = user.compare_exchange(UNUSED, WRITING, Ordering::Acquire, Ordering::Relaxed);
        if begun.is_err() {
            self.await_memory();
        }
        Writing { user }
    }

    /// Waits while the pump returns the ring's memory, then begins as [`StreamRef::begin_writing`].
    #[cold]
    fn await_memory(&self) {
        let user = &self.stream.app.send_user;
        // ORDERING: as there. `WRITING` is found if a writer leaked its guard; that writer has
        // ended.
        while user.compare_exchange(UNUSED, WRITING, Ordering::Acquire, Ordering::Relaxed)
            == Err(DISCARDING)
        {
            yield_now();
        }
    }

    /// As [`StreamRef::begin_writing`], for a stream of units, which several threads may write
    /// until the connection ends.
    pub(crate) fn write_units(&self) {
        core::mem::forget(self.begin_writing());
    }

    /// How many of `len` bytes may be written now.
    #[inline]
    fn room_for(&self, len: usize) -> usize {
        let mut room = self.writable();
        if room < len {
            room = self.fell_short();
        }
        len.min(room)
    }

    /// Copies the part of `from` that there is room for; returns its length.
    pub(crate) fn write(&self, from: &[u8]) -> usize {
        self.write_in(&self.begin_writing(), from)
    }

    /// As [`StreamRef::write`], for a writer that has begun.
    pub(crate) fn write_in(&self, _: &Writing<'_>, from: &[u8]) -> usize {
        if from.is_empty() {
            return 0;
        }
        let len = self.room_for(from.len());
        let written = self.stream.app.written.load(Ordering::Relaxed);
        // SAFETY: no frame refers to bytes above `written` and below `released` plus the ring's
        // length, and only the connection's one writer runs this.
        unsafe { self.outgoing().write(written, &from[..len]) };
        // ORDERING: Release, pairs with the Acquire in `progress`.
        self.stream
            .app
            .written
            .store(written + len as u64, Ordering::Release);
        len
    }

    /// Room for up to `len` contiguous bytes after the write cursor; `None` without room. The bytes
    /// are 0, so that they never show data of other connections. The connection's one writer calls
    /// this, and nothing else until it drops the slice and then the guard.
    pub(crate) fn reserve_to_write(&self, len: usize) -> Option<(&'a mut [u8], Writing<'a>)> {
        let len = self.room_for(len);
        let writing = self.begin_writing();
        let written = self.stream.app.written.load(Ordering::Relaxed);
        let ring = self.outgoing();
        let [(_, len), _] = ring.spans(written, len);
        // SAFETY: no frame refers to bytes above `written` and below `released` plus the ring's
        // length, and only the connection's one writer runs this, and makes no other slice of them.
        let bytes = (len > 0).then(|| unsafe { ring.slice_mut(written, len) })?;
        bytes.fill(0);
        Some((bytes, writing))
    }

    /// Advances the write cursor over the first `len` bytes that were reserved.
    pub(crate) fn commit_written(&self, len: usize) {
        let written = self.stream.app.written.load(Ordering::Relaxed);
        // ORDERING: Release, pairs with the Acquire in `progress`.
        let words = &self.stream.app.written;
        words.store(written + len as u64, Ordering::Release);
    }

    /// Lets `fill` write the `len` bytes at `offset`. They must be above the write cursor, and have
    /// been [writable](Self::writable_behind) when their one writer chose them. The writer gives
    /// each byte to one unit, and only the thread that has begun a unit processes it.
    pub(crate) fn write_ahead(&self, offset: u64, len: usize, fill: impl FnOnce(&mut [u8])) {
        let ring = self.outgoing();
        let [_, (_, rest)] = ring.spans(offset, len);
        if rest == 0 {
            // SAFETY: no frame refers to bytes above `written` and below `released` plus the ring's
            // length, and of all threads that write ahead only the claimant of the unit writes
            // here.
            return unsafe { ring.write_at(offset, len, fill) };
        }
        // The range wraps around the end of the ring.
        let mut whole = vec![0; len];
        fill(&mut whole);
        // SAFETY: as above.
        unsafe { ring.write(offset, &whole) };
    }

    /// Declares all bytes below `end` written.
    pub(crate) fn publish_written(&self, end: u64) {
        // ORDERING: Release, pairs with the Acquire in `progress`.
        self.stream.app.written.fetch_max(end, Ordering::Release);
    }

    /// Declares the send ring written up to `offset`, whatever its contents and however few bytes
    /// were released. For replays, in which no earlier byte is sent.
    pub(crate) fn skip_to(&self, offset: u64) {
        // ORDERING: Release, pairs with the Acquire in `progress`.
        self.stream.app.written.fetch_max(offset, Ordering::Release);
    }

    /// Whether this stream has written the whole send ring, so that the ring contains no byte of
    /// another stream, and its memory was not returned since.
    pub(crate) fn was_filled(&self) -> bool {
        let written = self.stream.app.written.load(Ordering::Relaxed);
        let unwritten = self.stream.pump.unwritten.load(Ordering::Relaxed);
        written.saturating_sub(unwritten) >= self.streams.send_len as u64
    }

    /// As [`StreamRef::write_again_in`], for a writer that has not begun. Writes nothing unless the
    /// ring [was filled](Self::was_filled).
    #[cfg(feature = "testkit")]
    pub(crate) fn write_again(&self, len: usize) -> usize {
        let writing = self.begin_writing();
        match self.was_filled() {
            true => self.write_again_in(&writing, len),
            false => 0,
        }
    }

    /// Declares `len` more bytes of the send ring written, with the contents of one round before.
    /// The writer has begun, and found that the ring [was filled](Self::was_filled). Returns how
    /// many fit.
    pub(crate) fn write_again_in(&self, _: &Writing<'_>, len: usize) -> usize {
        let len = self.room_for(len);
        let written = self.stream.app.written.load(Ordering::Relaxed);
        // ORDERING: Release, pairs with the Acquire in `progress`.
        self.stream
            .app
            .written
            .store(written + len as u64, Ordering::Release);
        len
    }

    /// Whether all written bytes are released.
    pub(crate) fn is_drained(&self) -> bool {
        // ORDERING: Relaxed: only the number counts.
        let released = self.stream.stack.released.load(Ordering::Relaxed);
        released >= self.cursors().1
    }

    // The pump's side.

    /// Returns the memory of the send ring to the system, unless a thread writes to it or some
    /// bytes are not released. Returns whether nothing is left to be returned. Only the pump may
    /// call this, when every published request about the connection is performed; `io/rx/connections.rs`
    /// explains why that suffices.
    #[cold]
    pub(crate) fn give_back_sent(&self) -> bool {
        let Some(ring) = self.stream.outgoing.get() else {
            return true;
        };
        let app = &self.stream.app;
        let user = &app.send_user;
        // ORDERING: Acquire, pairs with the Release of the last writer: its cursor is seen below.
        let begun = user.compare_exchange(UNUSED, DISCARDING, Ordering::Acquire, Ordering::Relaxed);
        if begun.is_err() {
            return false;
        }
        let written = app.written.load(Ordering::Relaxed);
        // ORDERING: Acquire, pairs with the Release in `release`: all reads of the bytes come
        // before.
        let released = self.stream.stack.released.load(Ordering::Acquire);
        let is_drained = released >= written;
        let unwritten = &self.stream.pump.unwritten;
        if is_drained && unwritten.load(Ordering::Relaxed) != written {
            unwritten.store(written, Ordering::Relaxed);
            // SAFETY: frames read only bytes that are not released, and there are none. The writer,
            // if it begins now, waits for the store below.
            unsafe { ring.discard() };
        }
        // ORDERING: Release, pairs with the Acquire in `begin_writing`.
        user.store(UNUSED, Ordering::Release);
        is_drained
    }

    /// The bytes written between two cursors, for recording.
    pub(crate) fn recorded(&self, from: u64, to: u64) -> Parts<'a> {
        // The pump read `to` with Acquire and publishes it after this, so the bytes are not
        // released yet.
        self.sending(from, (to - from) as usize)
    }
}
