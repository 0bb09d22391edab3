//! The half of a connection that reads.

use core::time::Duration;
use std::io::{self, BufRead, IoSliceMut, Read};
use std::sync::Arc;

use super::half::Half;
use super::wait::WaitPolicy;
use crate::error::SocketError;
use crate::io::stream::{DeliveryCursor, EndReason};

/// The half of a connection that reads.
pub struct ReadHalf {
    pub(super) half: Arc<Half>,
    seen: DeliveryCursor,
    wait: WaitPolicy,
    shut: bool,
    /// Bytes that were lent last, and not consumed since.
    lent: usize,
}

impl ReadHalf {
    pub(super) fn new(half: &Arc<Half>) -> Self {
        ReadHalf {
            half: Arc::clone(half),
            seen: DeliveryCursor::default(),
            wait: WaitPolicy::default(),
            shut: false,
            lent: 0,
        }
    }

    /// Whether calls return [`SocketError::WouldBlock`] where they would wait. Default: no.
    pub fn set_nonblocking(&mut self, nonblocking: bool) {
        self.wait.nonblocking = nonblocking;
    }

    /// How long a call waits at most before it returns [`SocketError::WouldBlock`]. Default: for
    /// ever.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if it is zero.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) -> Result<(), SocketError> {
        self.wait.set_timeout(timeout)
    }

    /// As [`ReadHalf::set_timeout`] set it.
    pub fn timeout(&self) -> Option<Duration> {
        self.wait.timeout
    }

    /// Nothing more will be read: from now on this is the end of the stream. The peer is not told;
    /// what it sends meets a window that closes, and a reset once the connection is let go of.
    pub fn shutdown(&mut self) {
        self.shut = true;
    }

    /// Received bytes in place, as many as lie in a row; empty at the end of the stream.
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`] if there are none yet, or how the connection ended.
    pub fn try_fill(&mut self) -> Result<&[u8], SocketError> {
        self.lent = 0;
        let (a, b) = fill_all(&self.half, &mut self.seen, self.shut)?;
        let part = if a.is_empty() { b } else { a };
        self.lent = part.len();
        Ok(part)
    }

    /// All received bytes in place: those that lie in a row, and those behind the place where the
    /// ring begins anew. Both are empty at the end of the stream. [`ReadHalf::consume`] counts them
    /// as one.
    ///
    /// # Errors
    /// As [`ReadHalf::try_fill`].
    pub fn try_fill_all(&mut self) -> Result<(&[u8], &[u8]), SocketError> {
        self.lent = 0;
        let (a, b) = fill_all(&self.half, &mut self.seen, self.shut)?;
        self.lent = a.len() + b.len();
        Ok((a, b))
    }

    /// The first `len` bytes of what the last call lent or showed have been used: of
    /// [`ReadHalf::try_fill`], [`ReadHalf::try_fill_all`], [`ReadHalf::try_peek`] or one of the
    /// waiting ones. Several calls may share them.
    ///
    /// # Panics
    /// If there were not so many.
    pub fn consume(&mut self, len: usize) {
        let lent = self.lent;
        assert!(len <= lent, "{len} bytes are given back of {lent}");
        self.lent = lent - len;
        let Ok(stream) = self.half.stream() else {
            return;
        };
        let mss = u32::from(self.half.world.limits.mss());
        if len > 0 && stream.read(len, &mut self.seen, mss) {
            self.half.world.raise(&stream);
        }
    }

    /// Copies received bytes; 0 at the end of the stream, or if `into` is empty.
    ///
    /// # Errors
    /// As [`ReadHalf::try_fill`].
    pub fn try_read(&mut self, into: &mut [u8]) -> Result<usize, SocketError> {
        let len = self.try_peek(into)?;
        self.consume(len);
        Ok(len)
    }

    /// As [`ReadHalf::try_read`], into several places in turn.
    ///
    /// # Errors
    /// As [`ReadHalf::try_fill`].
    pub fn try_read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> Result<usize, SocketError> {
        if into.iter().all(|part| part.is_empty()) {
            return Ok(0);
        }
        let (mut a, mut b) = self.try_fill_all()?;
        let mut len = 0;
        for part in into {
            len += copy(&mut a, &mut b, part);
        }
        self.consume(len);
        Ok(len)
    }

    /// As [`ReadHalf::try_read`], and the bytes stay to be read again.
    ///
    /// # Errors
    /// As [`ReadHalf::try_fill`].
    pub fn try_peek(&mut self, into: &mut [u8]) -> Result<usize, SocketError> {
        if into.is_empty() {
            return Ok(0);
        }
        let (mut a, mut b) = self.try_fill_all()?;
        let len = copy(&mut a, &mut b, into);
        self.lent = len;
        Ok(len)
    }

    /// As [`ReadHalf::try_peek`], and waits for bytes.
    ///
    /// # Errors
    /// As [`ReadHalf::try_fill`].
    pub fn peek(&mut self, into: &mut [u8]) -> Result<usize, SocketError> {
        if !into.is_empty() {
            self.wait_for_bytes()?;
        }
        self.try_peek(into)
    }

    fn wait_for_bytes(&mut self) -> Result<(), SocketError> {
        let until = self.wait.begin();
        loop {
            match self.try_fill() {
                Err(SocketError::WouldBlock) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error),
            }
            let left = until.left()?;
            let half = Arc::clone(&self.half);
            let waiting = half.stream()?.waiting();
            let key = waiting.prepare();
            match self.try_fill() {
                Err(SocketError::WouldBlock) => {
                    waiting.wait(key, left);
                }
                Ok(_) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

impl Read for ReadHalf {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if !into.is_empty() {
            self.wait_for_bytes()?;
        }
        Ok(self.try_read(into)?)
    }

    fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if into.iter().any(|part| !part.is_empty()) {
            self.wait_for_bytes()?;
        }
        Ok(self.try_read_vectored(into)?)
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

/// What [`ReadHalf::try_fill_all`] gives.
fn fill_all<'s>(
    half: &'s Half,
    seen: &'s mut DeliveryCursor,
    shut: bool,
) -> Result<(&'s [u8], &'s [u8]), SocketError> {
    if shut {
        return Ok((&[], &[]));
    }
    let stream = half.stream()?;
    let status = stream.status();
    let end = stream.peer_end();
    stream.follow(seen);
    let world = &*half.world;
    match &world.streams.inline {
        None => seen.end = seen.arrived,
        Some(inline) => inline.open(world, &stream, seen),
    }
    let (a, b) = stream.received(seen);
    if !a.is_empty() || !b.is_empty() {
        return Ok((a, b));
    }
    if end == Some(seen.end) {
        return Ok((&[], &[]));
    }
    if let Some(inline) = &world.streams.inline {
        if end == Some(seen.arrived) {
            inline.truncated(world, &stream, seen.end);
        }
        if stream.failed_at() <= seen.end {
            return Err(SocketError::Processing);
        }
    }
    if half.world.is_down() {
        return Err(SocketError::Down);
    }
    match status.end_reason() {
        // News of the end may overtake bytes that came before it.
        Some(ending) if stream.ended_at() <= seen.end => {
            // A unit that came early may fail before what it waits for is there.
            let failed = ending == EndReason::Aborted && stream.has_failed();
            Err(if failed {
                SocketError::Processing
            } else {
                ending.into()
            })
        }
        _ => Err(SocketError::WouldBlock),
    }
}

/// Copies as much as there is and fits, first of `a`, then of `b`, and leaves the rest in them.
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
