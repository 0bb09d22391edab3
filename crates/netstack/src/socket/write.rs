//! The half of a connection that writes.

use core::time::Duration;
use std::io::{self, IoSlice, Write};
use std::sync::Arc;

use super::half::Half;
use super::wait::WaitPolicy;
use crate::error::SocketError;
use crate::io::stream::{AppRequest, StreamRef};

/// The half of a connection that writes.
pub struct WriteHalf {
    pub(super) half: Arc<Half>,
    wait: WaitPolicy,
    shut: bool,
}

impl WriteHalf {
    pub(super) fn new(half: &Arc<Half>) -> Self {
        WriteHalf {
            half: Arc::clone(half),
            wait: WaitPolicy::default(),
            shut: false,
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

    /// As [`WriteHalf::set_timeout`] set it.
    pub fn timeout(&self) -> Option<Duration> {
        self.wait.timeout
    }

    /// As [`TcpStream::set_nodelay`](super::TcpStream::set_nodelay).
    pub fn set_nodelay(&self, nodelay: bool) {
        self.half.set(|stream| stream.set_nodelay(nodelay));
    }

    /// Writes as much as there is room for, at least one byte.
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`] if there is no room, [`SocketError::ShutDown`], or how the
    /// connection ended.
    pub fn try_write(&mut self, from: &[u8]) -> Result<usize, SocketError> {
        let stream = self.check()?;
        let len = stream.write(from);
        if len == 0 && !from.is_empty() {
            return Err(SocketError::WouldBlock);
        }
        self.half.world.raise(&stream);
        Ok(len)
    }

    /// As [`WriteHalf::try_write`], from several places in turn; the stack hears of them together.
    ///
    /// # Errors
    /// As [`WriteHalf::try_write`].
    pub fn try_write_vectored(&mut self, from: &[IoSlice<'_>]) -> Result<usize, SocketError> {
        let stream = self.check()?;
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
        self.half.world.raise(&stream);
        Ok(len)
    }

    /// Writes up to `len` bytes again that this connection wrote one length of the send buffer
    /// ([`Limits::send_buffer`](crate::Limits::send_buffer)) before. They lie in the ring already,
    /// so nothing is copied: for measuring. Returns how many there was room for; 0 until the
    /// connection has written as much as the buffer holds.
    ///
    /// # Errors
    /// As [`WriteHalf::try_write`], but for `WouldBlock`.
    pub fn write_again(&mut self, len: usize) -> Result<usize, SocketError> {
        let stream = self.check()?;
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
        Ok(self.check()?.writable())
    }

    fn check(&self) -> Result<StreamRef<'_>, SocketError> {
        let stream = self.half.stream()?;
        if self.shut {
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
        Ok(stream)
    }

    /// Whether everything written, and the end of the stream, has been acknowledged.
    pub fn all_acknowledged(&self) -> bool {
        self.half
            .stream()
            .is_ok_and(|stream| stream.status().all_acknowledged())
    }

    /// Nothing more will be written.
    pub fn shutdown(&mut self) {
        self.shut = true;
        self.half.request(AppRequest {
            shutdown: true,
            ..AppRequest::default()
        });
    }
}

impl WriteHalf {
    /// Tries to write until something was written, or there is no time left.
    fn wait_for_room(
        &mut self,
        mut attempt: impl FnMut(&mut Self) -> Result<usize, SocketError>,
    ) -> io::Result<usize> {
        let until = self.wait.begin();
        loop {
            match attempt(self) {
                Err(SocketError::WouldBlock) => {}
                done => return Ok(done?),
            }
            let left = until.left()?;
            let half = Arc::clone(&self.half);
            let waiting = half.stream()?.waiting();
            let key = waiting.prepare();
            match attempt(self) {
                Err(SocketError::WouldBlock) => {
                    waiting.wait(key, left);
                }
                done => return Ok(done?),
            }
        }
    }
}

impl Write for WriteHalf {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.wait_for_room(|half| half.try_write(from))
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        self.wait_for_room(|half| half.try_write_vectored(from))
    }

    /// Returns at once: what was written is on its way whether flushed or not.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
