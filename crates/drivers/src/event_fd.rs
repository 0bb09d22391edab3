//! A descriptor that a program makes readable.

use crate::sys;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A descriptor that is readable while it is signalled (`eventfd`), to be waited for beside others
/// with `poll` or `epoll`.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// A descriptor that is not signalled.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        sys::eventfd().map(Self)
    }

    /// Makes it readable. An `epoll` that reports edges reports each call.
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
