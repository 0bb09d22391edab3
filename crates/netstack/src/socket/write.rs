//! The writing half of a connection.

use core::ops::{Deref, DerefMut};
use core::time::Duration;
use std::io::{self, IoSlice, Write};
use std::sync::Arc;

use super::half::Half;
use super::poller::Watched;
use super::shared::{Taken, UserId};
use crate::error::SocketError;
use crate::io::stream::{Change, StreamRef, Writing};

/// The writing half of a connection.
///
/// Several writers may share a connection: clones of its stream, or a half and a clone. The bytes
/// of one call stay together.
pub struct WriteHalf {
    pub(super) watched: Watched,
    pub(super) half: Arc<Half>,
    user: UserId,
}

/// A stream, reserved for one of its writers.
type Turn<'a> = (StreamRef<'a>, Taken<'a, bool>);

impl WriteHalf {
    pub(super) fn new(half: &Arc<Half>) -> Self {
        WriteHalf {
            watched: Watched::default(),
            half: Arc::clone(half),
            user: half.writer.new_user(),
        }
    }

    /// Whether calls return [`SocketError::WouldBlock`] where they would wait. Default: no.
    pub fn set_nonblocking(&mut self, nonblocking: bool) {
        self.half.write_wait.set_nonblocking(nonblocking);
    }

    /// How long a call waits at most before it returns [`SocketError::WouldBlock`]. Default: no
    /// limit.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if it is zero.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) -> Result<(), SocketError> {
        self.half.write_wait.set_timeout(timeout)
    }

    /// As [`WriteHalf::set_timeout`] set it.
    pub fn timeout(&self) -> Option<Duration> {
        self.half.write_wait.timeout()
    }

    /// As [`TcpStream::set_nodelay`](super::TcpStream::set_nodelay).
    pub fn set_nodelay(&self, nodelay: bool) {
        // A flag is always valid.
        let _ = self.half.set(|settings| settings.nodelay(nodelay));
    }

    /// Writes as many bytes as there is room for, at least one.
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`] if there is no room, [`SocketError::ShutDown`], or how the
    /// connection ended.
    pub fn try_write(&mut self, from: &[u8]) -> Result<usize, SocketError> {
        self.write_parts(&[IoSlice::new(from)])
    }

    /// As [`WriteHalf::try_write`], from several buffers in order; the stack is notified once.
    ///
    /// # Errors
    /// As [`WriteHalf::try_write`].
    pub fn try_write_vectored(&mut self, from: &[IoSlice<'_>]) -> Result<usize, SocketError> {
        self.write_parts(from)
    }

    /// As [`WriteHalf::try_write`], and more follows at once: a partial segment waits for the next
    /// other write, as if the connection were corked until then
    /// ([`Tuning::cork`](crate::Tuning::cork)). Linux calls this `MSG_MORE`.
    ///
    /// # Errors
    /// As [`WriteHalf::try_write`].
    pub fn try_write_more(&mut self, from: &[u8]) -> Result<usize, SocketError> {
        self.write_more(from)
    }

    pub(super) fn write_more(&self, from: &[u8]) -> Result<usize, SocketError> {
        // The pump must not see the bytes before the change.
        let (stream, turn) = self.begin()?;
        if stream.writable() < from.len().min(1) && stream.fell_short() == 0 {
            return Err(SocketError::WouldBlock);
        }
        let begins = !stream.waits_for_more();
        if begins {
            stream.set_more(true);
            stream.change(0, |before| Change {
                more: true,
                ..before
            });
        }
        let len = stream.write(from);
        drop(turn);
        if begins || len > 0 {
            self.half.world.raise(&stream);
        }
        Ok(len)
    }

    /// As [`WriteHalf::try_write`]; if all of it is written, a record ends here. It is sent without
    /// waiting for more, regardless of Nagle's algorithm, a cork or
    /// [`WriteHalf::try_write_more`]. Later bytes share a segment with it only if the peer's window
    /// or congestion delays both. Linux calls this `MSG_EOR`.
    ///
    /// # Errors
    /// As [`WriteHalf::try_write`].
    pub fn try_write_end(&mut self, from: &[u8]) -> Result<usize, SocketError> {
        self.write_end(from)
    }

    pub(super) fn write_end(&self, from: &[u8]) -> Result<usize, SocketError> {
        let len = self.write_parts(&[IoSlice::new(from)])?;
        if len == from.len() {
            self.half.change(|before| Change {
                push: true,
                ..before
            })?;
        }
        Ok(len)
    }

    /// Tells the stack that `len` bytes were written, and are not to wait for more.
    #[inline]
    fn wrote(&self, stream: &StreamRef<'_>, len: usize) {
        let waits = stream.waits_for_more();
        if waits {
            WriteHalf::end_more(stream);
        }
        if waits || len > 0 {
            self.half.world.raise(stream);
        }
    }

    /// Ends the waiting of written bytes for more.
    #[cold]
    fn end_more(stream: &StreamRef<'_>) {
        stream.set_more(false);
        stream.change(0, |before| Change {
            more: false,
            ..before
        });
    }

    fn write_parts(&self, from: &[IoSlice<'_>]) -> Result<usize, SocketError> {
        let (stream, _turn) = self.begin()?;
        let mut len = 0;
        for part in from {
            let written = stream.write(part);
            len += written;
            if written < part.len() {
                break;
            }
        }
        if len == 0 && from.iter().any(|part| !part.is_empty()) {
            return Err(SocketError::WouldBlock);
        }
        self.wrote(&stream, len);
        Ok(len)
    }

    /// Reserves up to `len` bytes of the send ring to write in place, without a copy: as many as
    /// are contiguous, at least one. All are 0. [`commit`](Reserved::commit) sends them; dropping
    /// the reservation discards them. Other writers wait meanwhile.
    /// # Errors
    /// As [`WriteHalf::try_write`]; [`SocketError::Invalid`] for `len` 0.
    pub fn reserve(&mut self, len: usize) -> Result<Reserved<'_>, SocketError> {
        if len == 0 {
            return Err(SocketError::Invalid);
        }
        let writer = &*self;
        let (stream, turn) = writer.begin()?;
        let (bytes, writing) = stream
            .reserve_to_write(len)
            .ok_or(SocketError::WouldBlock)?;
        turn.keep(writer.user);
        Ok(Reserved {
            writer,
            bytes,
            writing: Some(writing),
        })
    }

    /// Writes up to `len` bytes again that this connection wrote one send buffer
    /// ([`Limits::send_buffer`](crate::Limits::send_buffer)) earlier. They are still in the ring,
    /// so nothing is copied; this is for measurements. Returns the number of bytes written, which
    /// is 0 until the connection has written a full buffer.
    ///
    /// # Errors
    /// As [`WriteHalf::try_write`], except `WouldBlock`.
    #[cfg(feature = "testkit")]
    #[doc(hidden)]
    pub fn write_again(&mut self, len: usize) -> Result<usize, SocketError> {
        let (stream, _turn) = self.begin()?;
        let len = stream.write_again(len);
        if len > 0 {
            self.half.world.raise(&stream);
        }
        Ok(len)
    }

    /// How many bytes can be written now. 0 counts as a write that found no room, so a poller
    /// reports room from then on.
    ///
    /// # Errors
    /// How the connection ended.
    pub fn room(&self) -> Result<usize, SocketError> {
        let (stream, _turn) = self.begin()?;
        Ok(match stream.writable() {
            0 => stream.fell_short(),
            room => room,
        })
    }

    /// Returns the stream, reserved for this writer, if it may be written to.
    fn begin(&self) -> Result<Turn<'_>, SocketError> {
        let stream = self.half.stream()?;
        let turn = self.half.writer.take_or(self.user, stream.room(), || {
            stream.fell_short();
        })?;
        if *turn {
            return Err(SocketError::ShutDown);
        }
        let status = stream.status();
        if let Some(ending) = status.end_reason() {
            return Err(ending.into());
        }
        if status.retired() {
            return Err(SocketError::ShutDown);
        }
        if self.half.world.is_closing() {
            return Err(SocketError::Down);
        }
        Ok((stream, turn))
    }

    /// Whether the peer has acknowledged all written bytes and the end of the stream.
    pub fn all_acknowledged(&self) -> bool {
        self.half
            .stream()
            .is_ok_and(|stream| stream.status().all_acknowledged())
    }

    /// Ends writing. A call that waits for room returns [`SocketError::ShutDown`].
    pub fn shutdown(&mut self) {
        self.half.shut_write();
    }

    /// Writes at least one byte, or waits for room.
    pub(super) fn write_waiting(&self, from: &[IoSlice<'_>]) -> Result<usize, SocketError> {
        let stream = self.half.stream()?;
        let until = self.half.write_wait.begin();
        until.retry(&self.half.world, stream.room(), || self.write_parts(from))
    }
}

/// Reserved room in the send ring, to write in place; see [`WriteHalf::reserve`].
pub struct Reserved<'a> {
    writer: &'a WriteHalf,
    bytes: &'a mut [u8],
    /// Keeps the memory alive. Dropped before the next writer's turn.
    writing: Option<Writing<'a>>,
}

impl Reserved<'_> {
    /// Sends the first `len` bytes, after all bytes that were written before.
    ///
    /// # Errors
    /// As [`WriteHalf::try_write`]; [`SocketError::Invalid`] if `len` exceeds the reserved bytes.
    pub fn commit(mut self, len: usize) -> Result<(), SocketError> {
        if len > self.bytes.len() {
            return Err(SocketError::Invalid);
        }
        let (stream, turn) = self.writer.begin()?;
        // No other writer wrote while the bytes were reserved.
        debug_assert!(turn.was_kept());
        stream.commit_written(len);
        self.writing = None;
        self.writer.wrote(&stream, len);
        Ok(())
    }
}

impl Deref for Reserved<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl DerefMut for Reserved<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.writing = None;
        let half = &self.writer.half;
        if let Ok(stream) = half.stream() {
            drop(half.writer.take(self.writer.user, stream.room()));
        }
    }
}

impl core::fmt::Debug for Reserved<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Reserved")
            .field("len", &self.bytes.len())
            .finish_non_exhaustive()
    }
}

impl Write for WriteHalf {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        Ok(self.write_waiting(&[IoSlice::new(from)])?)
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(self.write_waiting(from)?)
    }

    /// Returns at once: written bytes are sent without a flush.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
