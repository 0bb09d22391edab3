//! The half of a connection that writes.

use core::ops::{Deref, DerefMut};
use core::time::Duration;
use std::io::{self, IoSlice, Write};
use std::sync::Arc;

use super::half::Half;
use super::poller::Watched;
use super::shared::{Taken, UserId};
use crate::error::SocketError;
use crate::io::stream::{Change, StreamRef, Writing};

/// The half of a connection that writes.
///
/// Several may write to one connection: clones of its stream, or a half and a clone. What one call
/// writes stays together.
pub struct WriteHalf {
    pub(super) watched: Watched,
    pub(super) half: Arc<Half>,
    user: UserId,
}

/// A stream to write to, in the turn of one of its writers.
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

    /// How long a call waits at most before it returns [`SocketError::WouldBlock`]. Default: for
    /// ever.
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

    /// Writes as much as there is room for, at least one byte.
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`] if there is no room, [`SocketError::ShutDown`], or how the
    /// connection ended.
    pub fn try_write(&mut self, from: &[u8]) -> Result<usize, SocketError> {
        self.write_parts(&[IoSlice::new(from)])
    }

    /// As [`WriteHalf::try_write`], from several places in turn; the stack hears of them together.
    ///
    /// # Errors
    /// As [`WriteHalf::try_write`].
    pub fn try_write_vectored(&mut self, from: &[IoSlice<'_>]) -> Result<usize, SocketError> {
        self.write_parts(from)
    }

    /// As [`WriteHalf::try_write`], and says how what is written ends.
    ///
    /// # Errors
    /// As [`WriteHalf::try_write`].
    pub fn try_write_marked(&mut self, from: &[u8], mark: WriteMark) -> Result<usize, SocketError> {
        self.write_marked(from, mark)
    }

    pub(super) fn write_marked(&self, from: &[u8], mark: WriteMark) -> Result<usize, SocketError> {
        match mark {
            WriteMark::More => {
                // The pump must not see the bytes before the mark.
                let (stream, turn) = self.begin()?;
                if stream.writable() < from.len().min(1) && stream.fell_short() == 0 {
                    return Err(SocketError::WouldBlock);
                }
                if !stream.waits_for_more() {
                    stream.set_more(true);
                    stream.change(0, |before| Change {
                        more: true,
                        ..before
                    });
                }
                let len = stream.write(from);
                drop(turn);
                self.half.world.raise(&stream);
                Ok(len)
            }
            WriteMark::End => {
                let len = self.write_parts(&[IoSlice::new(from)])?;
                if len == from.len() {
                    self.half.change(|before| Change {
                        push: true,
                        ..before
                    })?;
                }
                Ok(len)
            }
        }
    }

    /// What was written waits for more no longer.
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
        if stream.waits_for_more() {
            WriteHalf::end_more(&stream);
        }
        self.half.world.raise(&stream);
        Ok(len)
    }

    /// Room for up to `len` bytes in the send ring, to be written in place, so that nothing is
    /// copied: as many as lie in a row, at least one. All are 0. They are sent once they are
    /// [committed](Reserved::commit); dropped, they are forgotten. Other writers wait meanwhile.
    ///
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

    /// Writes up to `len` bytes again that this connection wrote one length of the send buffer
    /// ([`Limits::send_buffer`](crate::Limits::send_buffer)) before. They lie in the ring already,
    /// so nothing is copied: for measuring. Returns how many there was room for; 0 until the
    /// connection has written as much as the buffer holds.
    ///
    /// # Errors
    /// As [`WriteHalf::try_write`], but for `WouldBlock`.
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

    /// How many bytes could be written now.
    ///
    /// # Errors
    /// How the connection ended.
    pub fn room(&self) -> Result<usize, SocketError> {
        Ok(self.begin()?.0.writable())
    }

    /// The stream, if it may be written to, in the turn of this writer.
    fn begin(&self) -> Result<Turn<'_>, SocketError> {
        let stream = self.half.stream()?;
        let turn = self.half.writer.take_or(self.user, stream.waiting(), || {
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

    /// Whether everything written, and the end of the stream, has been acknowledged.
    pub fn all_acknowledged(&self) -> bool {
        self.half
            .stream()
            .is_ok_and(|stream| stream.status().all_acknowledged())
    }

    /// Nothing more will be written. A call that waits for room ends with
    /// [`SocketError::ShutDown`].
    pub fn shutdown(&mut self) {
        self.half.shut_write();
    }

    /// Writes something, or waits for room.
    pub(super) fn write_waiting(&self, from: &[IoSlice<'_>]) -> Result<usize, SocketError> {
        let stream = self.half.stream()?;
        let until = self.half.write_wait.begin();
        until.retry(stream.waiting(), || self.write_parts(from))
    }
}

/// How what is written ends, as [`WriteHalf::try_write_marked`] takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WriteMark {
    /// More follows at once: what does not fill a segment waits for the next write without this
    /// mark, as if the connection were corked until then ([`Tuning::cork`](crate::Tuning::cork)).
    /// Linux calls it `MSG_MORE`.
    More,
    /// A record ends here, if all of it is written: it waits for nothing that follows, whatever
    /// Nagle's algorithm, a cork or an earlier mark says. Bytes written later share a segment with
    /// it only if the peer's window or congestion holds both up. Linux calls it `MSG_EOR`.
    End,
}

/// Room in the send ring, as [`WriteHalf::reserve`] gives it: bytes to be written in place.
pub struct Reserved<'a> {
    writer: &'a WriteHalf,
    bytes: &'a mut [u8],
    /// Keeps the memory. Dropped before another writer has its turn.
    writing: Option<Writing<'a>>,
}

impl Reserved<'_> {
    /// Sends the first `len` bytes, after all that was written before.
    ///
    /// # Errors
    /// As [`WriteHalf::try_write`]; [`SocketError::Invalid`] if there are not so many.
    pub fn commit(mut self, len: usize) -> Result<(), SocketError> {
        if len > self.bytes.len() {
            return Err(SocketError::Invalid);
        }
        let (stream, turn) = self.writer.begin()?;
        // Nobody else wrote while they were kept.
        debug_assert!(turn.was_kept());
        stream.commit_written(len);
        if stream.waits_for_more() {
            WriteHalf::end_more(&stream);
        }
        self.writing = None;
        self.writer.half.world.raise(&stream);
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
            drop(half.writer.take(self.writer.user, stream.waiting()));
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

    /// Returns at once: what was written is on its way whether flushed or not.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
