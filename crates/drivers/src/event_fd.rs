//! A descriptor that a program makes readable.

use crate::sys;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A descriptor that is readable while it is signalled (`eventfd`), for use with `poll` or `epoll`.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// A new descriptor, not signalled.
    ///
    /// # Errors
    /// The process has no file descriptor left.
    pub fn new() -> io::Result<Self> {
        sys::eventfd().map(Self)
    }

    /// Makes it readable. An edge-triggered `epoll` reports every call.
    pub fn signal(&self) {
        sys::signal(self.0.as_fd());
    }

    /// Makes it unreadable.
    pub fn clear(&self) {
        sys::clear(self.0.as_fd());
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
