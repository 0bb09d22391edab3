//! The half of a connection that reads.

use core::time::Duration;
use std::io::{self, BufRead, IoSliceMut, Read};
use std::sync::Arc;

use super::half::Half;
use super::wait::Patience;
use crate::engine::stream::{Ending, Seen};
use crate::error::SocketError;

/// The half of a connection that reads.
pub struct ReadHalf {
    pub(super) half: Arc<Half>,
    seen: Seen,
    patience: Patience,
    shut: bool,
}

impl ReadHalf {
    pub(super) fn new(half: &Arc<Half>) -> Self {
        ReadHalf {
            half: Arc::clone(half),
            seen: Seen::default(),
            patience: Patience::default(),
            shut: false,
        }
    }

    /// Whether calls return [`SocketError::WouldBlock`] where they would wait. Default: no.
    pub fn set_nonblocking(&mut self, nonblocking: bool) {
        self.patience.nonblocking = nonblocking;
    }

    /// How long a call waits at most before it returns [`SocketError::WouldBlock`]. Default: for ever.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if it is zero.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) -> Result<(), SocketError> {
        self.patience.set_timeout(timeout)
    }

    /// As [`ReadHalf::set_timeout`] set it.
    pub fn timeout(&self) -> Option<Duration> {
        self.patience.timeout
    }

    /// Nothing more will be read: from now on this is the end of the stream. The peer is not told; what it
    /// sends meets a window that closes, and a reset once the connection is let go of.
    pub fn shutdown(&mut self) {
        self.shut = true;
    }

    /// Received octets in place, as many as lie in a row; empty at the end of the stream.
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`] if there are none yet, or how the connection ended.
    pub fn try_fill(&mut self) -> Result<&[u8], SocketError> {
        let (a, b) = self.try_fill_all()?;
        Ok(if a.is_empty() { b } else { a })
    }

    /// All received octets in place: those that lie in a row, and those behind the place where the ring begins
    /// anew. Both are empty at the end of the stream. [`ReadHalf::consume`] counts them as one.
    ///
    /// # Errors
    /// As [`ReadHalf::try_fill`].
    pub fn try_fill_all(&mut self) -> Result<(&[u8], &[u8]), SocketError> {
        if self.shut {
            return Ok((&[], &[]));
        }
        let stream = self.half.stream()?;
        let life = stream.life();
        let end = stream.peer_end();
        stream.look(&mut self.seen);
        let world = &*self.half.world;
        match &world.streams.inline {
            None => self.seen.end = self.seen.arrived,
            Some(inline) => inline.open(world, &stream, &mut self.seen),
        }
        let (a, b) = stream.received(&self.seen);
        if !a.is_empty() || !b.is_empty() {
            return Ok((a, b));
        }
        if end == Some(self.seen.end) {
            return Ok((&[], &[]));
        }
        if let Some(inline) = &world.streams.inline {
            if end == Some(self.seen.arrived) {
                inline.truncated(world, &stream, self.seen.end);
            }
            if stream.failed_at() <= self.seen.end {
                return Err(SocketError::Processing);
            }
        }
        if self.half.world.is_down() {
            return Err(SocketError::Down);
        }
        match life.ending() {
            // News of the end may overtake octets that came before it.
            Some(ending) if stream.ended_at() <= self.seen.end => {
                // A unit that came early may fail before what it waits for is there.
                let failed = ending == Ending::Aborted && stream.has_failed();
                Err(if failed {
                    SocketError::Processing
                } else {
                    ending.into()
                })
            }
            _ => Err(SocketError::WouldBlock),
        }
    }

    /// The first `len` octets of what [`ReadHalf::try_fill`] gave have been used.
    ///
    /// # Panics
    /// If there were not so many.
    pub fn consume(&mut self, len: usize) {
        let Ok(stream) = self.half.stream() else {
            return;
        };
        let mss = u32::from(self.half.world.limits.mss());
        if len > 0 && stream.read(len, &mut self.seen, mss) {
            self.half.world.raise(&stream);
        }
    }

    /// Copies received octets; 0 at the end of the stream, or if `into` is empty.
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

    /// As [`ReadHalf::try_read`], and the octets stay to be read again.
    ///
    /// # Errors
    /// As [`ReadHalf::try_fill`].
    pub fn try_peek(&mut self, into: &mut [u8]) -> Result<usize, SocketError> {
        if into.is_empty() {
            return Ok(0);
        }
        let (mut a, mut b) = self.try_fill_all()?;
        Ok(copy(&mut a, &mut b, into))
    }

    /// As [`ReadHalf::try_peek`], and waits for octets.
    ///
    /// # Errors
    /// As [`ReadHalf::try_fill`].
    pub fn peek(&mut self, into: &mut [u8]) -> Result<usize, SocketError> {
        if !into.is_empty() {
            self.wait_for_octets()?;
        }
        self.try_peek(into)
    }

    fn wait_for_octets(&mut self) -> Result<(), SocketError> {
        let until = self.patience.begin();
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
            self.wait_for_octets()?;
        }
        Ok(self.try_read(into)?)
    }

    fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if into.iter().any(|part| !part.is_empty()) {
            self.wait_for_octets()?;
        }
        Ok(self.try_read_vectored(into)?)
    }
}

impl BufRead for ReadHalf {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.wait_for_octets()?;
        Ok(self.try_fill()?)
    }

    fn consume(&mut self, len: usize) {
        ReadHalf::consume(self, len);
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
