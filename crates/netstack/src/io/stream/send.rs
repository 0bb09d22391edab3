//! Bytes that the application writes and primaries send.
//!
//! The head of `stream.rs` says who may access which byte.

use core::sync::atomic::Ordering;

use super::StreamRef;
use super::byte_ring::{ByteRing, Parts};
use crate::io::sync::{AtomicU32, fence, yield_now};

/// Bytes that a connection may write before its peer has acknowledged any: more than two first
/// congestion windows of ten segments (RFC 6928).
pub(super) const FIRST_SEND: u64 = 64 << 10;

/// Payload of a numbered frame, borrowed from a send ring. It does not change until the frame is
/// sent: `apply` releases no byte before, and the pump does not recycle the entry.
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

/// No thread writes to the send ring.
const UNUSED: u32 = 0;
/// Its writer may do so.
const WRITING: u32 = 1;
/// The pump gives its memory back.
const DISCARDING: u32 = 2;

/// While this lives, the memory of the send ring is not given back.
pub(crate) struct Writing<'a> {
    user: &'a AtomicU32,
}

impl Drop for Writing<'_> {
    #[inline]
    fn drop(&mut self) {
        // ORDERING: Release, pairs with the Acquire in `give_back_sent`: what was written, and the
        // cursor behind it, are seen there.
        self.user.store(UNUSED, Ordering::Release);
    }
}

impl<'a> StreamRef<'a> {
    /// The send ring, made if these are the first bytes that are written or sent.
    pub(super) fn outgoing(&self) -> &'a ByteRing {
        let make = || self.streams.table.send_blocks().make(self.stream.index);
        self.stream.outgoing.get_or_init(make)
    }

    // The primaries' side.

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
    /// A connection may hold [`Streams::first_send`](super::Streams) bytes and twice what its peer
    /// has acknowledged so far, up to the ring's length. In slow start the congestion window is at
    /// most the first window and what was acknowledged, so this is always more than two windows; a
    /// peer that reads nothing costs no more than the first bytes.
    pub(crate) fn writable(&self) -> usize {
        self.writable_behind(self.stream.app.written.load(Ordering::Relaxed))
    }

    /// As [`StreamRef::writable`], behind `written`, which is not below what was written.
    #[inline]
    pub(crate) fn writable_behind(&self, written: u64) -> usize {
        let room = self.ring_room_behind(written);
        match self.stream.app.notsent_lowat.load(Ordering::Relaxed) {
            0 => room,
            bound => room.min(self.unsent_room_behind(written, bound)),
        }
    }

    /// As [`StreamRef::writable_behind`], however much of it is not sent.
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

    /// Bytes before `written` that have no frames yet, of a connection that bounds them.
    #[cold]
    fn unsent_before(&self, written: u64) -> u64 {
        // ORDERING: Relaxed both: a bound for a number. Frames are released after they are numbered.
        let released = self.stream.stack.released.load(Ordering::Relaxed);
        let numbered = self.stream.stack.numbered.load(Ordering::Relaxed);
        written.saturating_sub(numbered.max(released))
    }

    /// Whether `least` bytes after `written`, and at least a third of the room, are free, and fewer
    /// than half of those wait that may wait to be sent.
    pub(crate) fn has_room_behind(&self, written: u64, least: usize) -> bool {
        let room = self.writable_behind(written);
        if room < least {
            return false;
        }
        // ORDERING: Relaxed: see `fell_short`. It may have gone on since `written` was read.
        let bound = self.stream.app.notsent_lowat.load(Ordering::Relaxed);
        if bound != 0 {
            return 2 * self.unsent_before(written) < u64::from(bound);
        }
        let released = self.stream.stack.released.load(Ordering::Relaxed);
        room as u64 >= written.saturating_sub(released) / 2
    }

    /// The first `upto` bytes of the send stream have frames. The caller wakes the application
    /// afterwards.
    pub(crate) fn numbered(&self, upto: u64) {
        // ORDERING: Relaxed: see `unsent_before`.
        let numbered = &self.stream.stack.numbered;
        numbered.fetch_max(upto, Ordering::Relaxed);
    }

    /// Bounds what may be written ahead of what is released; 0: by the ring alone.
    pub(crate) fn set_send_limit(&self, bytes: u32) {
        // ORDERING: Relaxed: only its own value counts.
        self.stream.app.send_limit.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn send_limit(&self) -> u32 {
        self.stream.app.send_limit.load(Ordering::Relaxed)
    }

    /// Notes that there is less room than is wanted, for those that wait for more. Returns how much
    /// there is now.
    #[cold]
    pub(crate) fn fell_short(&self) -> usize {
        let shortages = &self.stream.app.shortages;
        shortages.fetch_add(1, Ordering::Relaxed);
        // ORDERING: SeqCst fence, pairs with the one in `EventCount::notify_all`, which comes
        // between a release and its notifier's look: either that finds the shortage, or we find the
        // room.
        fence(Ordering::SeqCst);
        self.writable()
    }

    /// The connection's one writer begins to write to the send ring. Waits while the pump gives its
    /// memory back, which takes some microseconds.
    #[inline]
    pub(crate) fn begin_writing(&self) -> Writing<'a> {
        let user = &self.stream.app.send_user;
        // ORDERING: Acquire, pairs with the Release in `give_back_sent`: its memory is new by then.
        let begun = user.compare_exchange(UNUSED, WRITING, Ordering::Acquire, Ordering::Relaxed);
        if begun.is_err() {
            self.await_memory();
        }
        Writing { user }
    }

    /// As [`StreamRef::begin_writing`], if the ring is used.
    #[cold]
    fn await_memory(&self) {
        let user = &self.stream.app.send_user;
        // ORDERING: as there. `WRITING` is found if a writer forgot what it had: it has ended.
        while user.compare_exchange(UNUSED, WRITING, Ordering::Acquire, Ordering::Relaxed)
            == Err(DISCARDING)
        {
            yield_now();
        }
    }

    /// As [`StreamRef::begin_writing`], for a stream of units, which may be written by several
    /// threads until the connection ends.
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

    /// Copies the part of `from` for which there is room; returns its length.
    pub(crate) fn write(&self, from: &[u8]) -> usize {
        self.write_in(&self.begin_writing(), from)
    }

    /// As [`StreamRef::write`], of a writer that has begun.
    pub(crate) fn write_in(&self, _: &Writing<'_>, from: &[u8]) -> usize {
        if from.is_empty() {
            return 0;
        }
        let len = self.room_for(from.len());
        let written = self.stream.app.written.load(Ordering::Relaxed);
        // SAFETY: above `written` and below `released` plus the ring's length no frame refers to
        // anything, and the connection's one writer is here.
        unsafe { self.outgoing().write(written, &from[..len]) };
        // ORDERING: Release, pairs with the Acquire in `progress`.
        self.stream
            .app
            .written
            .store(written + len as u64, Ordering::Release);
        len
    }

    /// Room for up to `len` bytes behind what was written, as many as lie in a row; `None` without
    /// room. They are 0: what other connections wrote there does not show. The connection's one
    /// writer calls this, and nothing else until it drops them and then the other value.
    pub(crate) fn reserve_to_write(&self, len: usize) -> Option<(&'a mut [u8], Writing<'a>)> {
        let len = self.room_for(len);
        let writing = self.begin_writing();
        let written = self.stream.app.written.load(Ordering::Relaxed);
        let ring = self.outgoing();
        let [(_, len), _] = ring.spans(written, len);
        // SAFETY: above `written` and below `released` plus the ring's length no frame refers to
        // anything, and the connection's one writer is here and makes no other slice of them.
        let bytes = (len > 0).then(|| unsafe { ring.slice_mut(written, len) })?;
        bytes.fill(0);
        Some((bytes, writing))
    }

    /// The first `len` bytes that were reserved are written.
    pub(crate) fn commit_written(&self, len: usize) {
        let written = self.stream.app.written.load(Ordering::Relaxed);
        // ORDERING: Release, pairs with the Acquire in `progress`.
        let words = &self.stream.app.written;
        words.store(written + len as u64, Ordering::Release);
    }

    /// Lets `fill` write the `len` bytes at `offset`, which are not written yet as far as the stack
    /// knows: they lie behind what was written, within what was [writable](Self::writable_behind)
    /// when their one writer chose them. That names each byte to one unit, and a unit is processed
    /// by the thread that has claimed it.
    pub(crate) fn write_ahead(&self, offset: u64, len: usize, fill: impl FnOnce(&mut [u8])) {
        let ring = self.outgoing();
        let [_, (_, rest)] = ring.spans(offset, len);
        if rest == 0 {
            // SAFETY: above `written` and below `released` plus the ring's length no frame refers
            // to anything, and of those who write ahead only the one claimant of the unit writes
            // here.
            return unsafe { ring.write_at(offset, len, fill) };
        }
        // Where the ring begins anew.
        let mut whole = vec![0; len];
        fill(&mut whole);
        // SAFETY: as above.
        unsafe { ring.write(offset, &whole) };
    }

    /// All bytes below `end` are written.
    pub(crate) fn publish_written(&self, end: u64) {
        // ORDERING: Release, pairs with the Acquire in `progress`.
        self.stream.app.written.fetch_max(end, Ordering::Release);
    }

    /// Declares the send ring written up to `offset`, whatever it contains and however little was
    /// released. For replays, in which no earlier byte is sent.
    pub(crate) fn skip_to(&self, offset: u64) {
        // ORDERING: Release, pairs with the Acquire in `progress`.
        self.stream.app.written.fetch_max(offset, Ordering::Release);
    }

    /// Whether the whole send ring was written in this stream, so that it contains no byte of
    /// another one, and its memory was not given back since.
    pub(crate) fn was_filled(&self) -> bool {
        let written = self.stream.app.written.load(Ordering::Relaxed);
        let unwritten = self.stream.pump.unwritten.load(Ordering::Relaxed);
        written.saturating_sub(unwritten) >= self.streams.send_len as u64
    }

    /// As [`StreamRef::write_again_in`], of a writer that has not begun. None before there was such
    /// a round.
    #[cfg(feature = "testkit")]
    pub(crate) fn write_again(&self, len: usize) -> usize {
        let writing = self.begin_writing();
        match self.was_filled() {
            true => self.write_again_in(&writing, len),
            false => 0,
        }
    }

    /// Declares `len` more bytes of the send ring written, with the contents of one round before, of
    /// a writer that has begun and found that it [was filled](Self::was_filled). Returns how many
    /// fit.
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

    /// Whether all that was written is released.
    pub(crate) fn is_drained(&self) -> bool {
        // ORDERING: Relaxed: nothing but the number counts.
        let released = self.stream.stack.released.load(Ordering::Relaxed);
        released >= self.cursors().1
    }

    // The pump's side.

    /// Gives the memory of the send ring back to the system, unless a thread writes to it or
    /// something is not released. Returns whether nothing is left to be given back. Only the pump
    /// may call this, when all is performed that was published about the connection:
    /// `io/rx/idle.rs` says why that suffices.
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
        // ORDERING: Acquire, pairs with the Release in `release`: the bytes were read before.
        let released = self.stream.stack.released.load(Ordering::Acquire);
        let is_drained = released >= written;
        let unwritten = &self.stream.pump.unwritten;
        if is_drained && unwritten.load(Ordering::Relaxed) != written {
            unwritten.store(written, Ordering::Relaxed);
            // SAFETY: frames read bytes that are not released, and there are none; the writer, and
            // any that begins now, waits for the store below.
            unsafe { ring.discard() };
        }
        // ORDERING: Release, pairs with the Acquire in `begin_writing`.
        user.store(UNUSED, Ordering::Release);
        is_drained
    }

    /// Bytes written between two cursors, for recording.
    pub(crate) fn recorded(&self, from: u64, to: u64) -> Parts<'a> {
        // The pump read `to` with Acquire and publishes it after this, so the bytes are not
        // released yet.
        self.sending(from, (to - from) as usize)
    }
}
