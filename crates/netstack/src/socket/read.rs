//! The reading half of a connection.

use core::time::Duration;
use std::io::{self, BufRead, IoSliceMut, Read};
use std::sync::Arc;

use super::half::Half;
use super::poller::Watched;
use super::shared::{Taken, UserId};
use crate::error::SocketError;
use crate::io::stream::DeliveryCursor;

/// The reading half of a connection.
///
/// Several readers may share a connection: clones of its stream, or a half and a clone. Each byte
/// goes to one of them. While one reader has borrowed bytes in place and not consumed them all,
/// the others wait.
pub struct ReadHalf {
    pub(super) watched: Watched,
    pub(super) half: Arc<Half>,
    user: UserId,
    /// The end of the bytes that were lent last.
    lent: DeliveryCursor,
    /// Bytes that were lent last, and not consumed yet.
    left: usize,
}

impl ReadHalf {
    pub(super) fn new(half: &Arc<Half>) -> Self {
        ReadHalf {
            watched: Watched::default(),
            half: Arc::clone(half),
            user: half.reader.new_user(),
            lent: DeliveryCursor::default(),
            left: 0,
        }
    }

    /// Whether calls return [`SocketError::WouldBlock`] where they would wait. Default: no.
    pub fn set_nonblocking(&mut self, nonblocking: bool) {
        self.half.read_wait.set_nonblocking(nonblocking);
    }

    /// How long a call waits at most before it returns [`SocketError::WouldBlock`]. Default: no
    /// limit.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if it is zero.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) -> Result<(), SocketError> {
        self.half.read_wait.set_timeout(timeout)
    }

    /// As [`ReadHalf::set_timeout`] set it.
    pub fn timeout(&self) -> Option<Duration> {
        self.half.read_wait.timeout()
    }

    /// Ends reading: from now on calls return the end of the stream, even calls that already
    /// wait. The peer gets no message; its window closes while it sends more, and it gets a reset
    /// when the connection is dropped.
    pub fn shutdown(&mut self) {
        self.half.shut_read();
    }

    /// The number of bytes that have arrived and are unread.
    ///
    /// # Errors
    /// How the connection ended, if there are no more bytes.
    pub fn unread(&self) -> Result<usize, SocketError> {
        let found = self.half.reader.with(|seen| {
            let (a, b) = fill_all(&self.half, seen)?;
            Ok(a.len() + b.len())
        });
        match found {
            Err(SocketError::WouldBlock) => Ok(0),
            found => found,
        }
    }

    /// Received bytes in place, as many as are contiguous; empty at the end of the stream.
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`] if there are none yet, or how the connection ended.
    pub fn try_fill(&mut self) -> Result<&[u8], SocketError> {
        self.lend(false)?;
        let (part, _) = self.lent()?;
        Ok(part)
    }

    /// All received bytes in place, in two slices, since the ring wraps around. Both are empty at
    /// the end of the stream. [`ReadHalf::consume`] counts their bytes together.
    ///
    /// # Errors
    /// As [`ReadHalf::try_fill`].
    pub fn try_fill_all(&mut self) -> Result<(&[u8], &[u8]), SocketError> {
        self.lend(true)?;
        self.lent()
    }

    /// Keeps the cursor, and records the bytes to lend: all of them, or the contiguous ones.
    fn lend(&mut self, all: bool) -> Result<(), SocketError> {
        self.left = 0;
        let stream = self.half.stream()?;
        let mut seen = self.half.begin_read(self.user, &stream)?;
        let (a, b) = fill_all(&self.half, &mut seen)?;
        self.left = match (a.len(), b.len()) {
            (a, b) if all => a + b,
            (0, b) => b,
            (a, _) => a,
        };
        if self.left > 0 {
            self.lent = seen.lent_copy();
            seen.keep(self.user);
        }
        Ok(())
    }

    /// The bytes that [`ReadHalf::lend`] recorded, in place. The slices borrow `self`. Every call
    /// that releases their bytes either takes `self` mutably or has to wait for the cursor that
    /// this half keeps.
    fn lent(&self) -> Result<(&[u8], &[u8]), SocketError> {
        if self.left == 0 {
            return Ok((&[], &[]));
        }
        let (a, b) = self.half.stream()?.received(&self.lent);
        let (a, b) = if a.is_empty() { (b, a) } else { (a, b) };
        let front = a.len().min(self.left);
        let back = b.len().min(self.left - front);
        Ok((&a[..front], &b[..back]))
    }

    /// Consumes the first `len` of the bytes that the last call lent or showed, such as
    /// [`ReadHalf::try_fill`], [`ReadHalf::try_fill_all`], [`ReadHalf::try_peek`] or a waiting
    /// call. Several calls may consume them in parts.
    ///
    /// # Panics
    /// If `len` exceeds these bytes, or the same stream was read by reference since.
    pub fn consume(&mut self, len: usize) {
        let lent = self.left;
        assert!(len <= lent, "{len} bytes are given back of {lent}");
        if len == 0 {
            return;
        }
        let Ok(stream) = self.half.stream() else {
            return;
        };
        let seen = self.half.reader.take(self.user, stream.waiting());
        let kept = seen.ok().filter(Taken::was_kept);
        let mut seen = kept.expect("the bytes were read by reference meanwhile");
        self.left = lent - len;
        self.half.consume(&stream, &mut seen, len);
        if self.left > 0 {
            seen.keep(self.user);
        }
    }

    /// Copies received bytes; 0 at the end of the stream, or if `into` is empty.
    ///
    /// # Errors
    /// As [`ReadHalf::try_fill`].
    pub fn try_read(&mut self, into: &mut [u8]) -> Result<usize, SocketError> {
        self.left = 0;
        self.copy(&mut [IoSliceMut::new(into)], true)
    }

    /// As [`ReadHalf::try_read`], into several buffers in order.
    ///
    /// # Errors
    /// As [`ReadHalf::try_fill`].
    pub fn try_read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> Result<usize, SocketError> {
        self.left = 0;
        self.copy(into, true)
    }

    /// As [`ReadHalf::try_read`], but the bytes can be read again.
    ///
    /// # Errors
    /// As [`ReadHalf::try_fill`].
    pub fn try_peek(&mut self, into: &mut [u8]) -> Result<usize, SocketError> {
        if into.is_empty() {
            return Ok(0);
        }
        let (mut a, mut b) = self.try_fill_all()?;
        let len = copy(&mut a, &mut b, into);
        self.left = len;
        Ok(len)
    }

    /// As [`ReadHalf::try_peek`], but waits for bytes.
    ///
    /// # Errors
    /// As [`ReadHalf::try_fill`].
    pub fn peek(&mut self, into: &mut [u8]) -> Result<usize, SocketError> {
        if !into.is_empty() {
            self.wait_for_bytes()?;
        }
        self.try_peek(into)
    }

    /// Copies received bytes, and counts them as read if `consumes`. It lends nothing, so a
    /// shared reference is enough.
    fn copy(&self, into: &mut [IoSliceMut<'_>], consumes: bool) -> Result<usize, SocketError> {
        if into.iter().all(|part| part.is_empty()) {
            return Ok(0);
        }
        let stream = self.half.stream()?;
        let mut seen = self.half.begin_read(self.user, &stream)?;
        let (mut a, mut b) = fill_all(&self.half, &mut seen)?;
        let mut len = 0;
        for part in into {
            len += copy(&mut a, &mut b, part);
        }
        if consumes && len > 0 {
            self.half.consume(&stream, &mut seen, len);
        }
        Ok(len)
    }

    /// As [`ReadHalf::copy`], but waits.
    pub(super) fn copy_waiting(
        &self,
        into: &mut [IoSliceMut<'_>],
        consumes: bool,
    ) -> Result<usize, SocketError> {
        let stream = self.half.stream()?;
        let until = self.half.read_wait.begin();
        until.retry(&self.half.world, stream.waiting(), || {
            self.copy(into, consumes)
        })
    }

    fn wait_for_bytes(&mut self) -> Result<(), SocketError> {
        let half = Arc::clone(&self.half);
        let stream = half.stream()?;
        let until = half.read_wait.begin();
        until.retry(&half.world, stream.waiting(), || self.lend(true))
    }
}

impl Drop for ReadHalf {
    fn drop(&mut self) {
        if self.left > 0
            && let Ok(stream) = self.half.stream()
        {
            // Releases the cursor that this half kept, for the other readers.
            drop(self.half.reader.take(self.user, stream.waiting()));
        }
    }
}

impl Read for ReadHalf {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(into)])
    }

    fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.left = 0;
        Ok(self.copy_waiting(into, true)?)
    }
}

impl BufRead for ReadHalf {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.wait_for_bytes()?;
        Ok(self.try_fill()?)
    }

    fn consume(&mut self, len: usize) {
        ReadHalf::consume(self, len);
    }
}

/// The implementation of [`ReadHalf::try_fill_all`].
fn fill_all<'s>(
    half: &'s Half,
    seen: &'s mut DeliveryCursor,
) -> Result<(&'s [u8], &'s [u8]), SocketError> {
    let stream = half.stream()?;
    if stream.is_read_shut() {
        return Ok((&[], &[]));
    }
    let status = stream.status();
    let end = stream.peer_end();
    stream.follow(seen);
    seen.end = seen.arrived;
    let (a, b) = stream.received(seen);
    if !a.is_empty() || !b.is_empty() {
        return Ok((a, b));
    }
    if end == Some(seen.end) {
        return Ok((&[], &[]));
    }
    if half.world.is_down() {
        return Err(SocketError::Down);
    }
    match status.end_reason() {
        // News of the end may arrive before bytes that precede it.
        Some(ending) if stream.ended_at() <= seen.end => Err(ending.into()),
        _ => Err(SocketError::WouldBlock),
    }
}

/// Copies as many bytes as fit, first from `a`, then from `b`, and leaves the rest in them.
fn copy<'a>(a: &mut &'a [u8], b: &mut &'a [u8], into: &mut [u8]) -> usize {
    let mut done = 0;
    for from in [a, b] {
        let len = from.len().min(into.len() - done);
        let (now, later) = from.split_at(len);
        into[done..done + len].copy_from_slice(now);
        *from = later;
        done += len;
    }
    done
}
