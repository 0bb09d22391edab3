//! Descriptors of the kernel that a poller watches beside the sockets of a stack.

use crate::{EventFd, sys};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// A set of descriptors (`epoll`). A descriptor leaves it when it is closed with all its
/// duplicates.
#[derive(Debug)]
pub struct Descriptors(OwnedFd);

/// The events to report of a descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// That it can be read from.
    pub readable: bool,
    /// That it can be written to.
    pub writable: bool,
    /// Each change once.
    pub edge: bool,
}

/// The state of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorState {
    /// The number with which it was added.
    pub number: u64,
    /// A read would not wait.
    pub readable: bool,
    /// A write would not wait.
    pub writable: bool,
    /// No more bytes will arrive.
    pub read_closed: bool,
    /// Nothing more can be written.
    pub write_closed: bool,
    /// It has an error.
    pub error: bool,
}

impl Descriptors {
    /// An empty set.
    ///
    /// # Errors
    /// The process has no file descriptor left.
    pub fn new() -> io::Result<Self> {
        sys::epoll().map(Self)
    }

    /// Adds a descriptor.
    ///
    /// # Errors
    /// It is in the set, cannot be waited for (a file), or the kernel has no memory.
    pub fn add(&self, fd: BorrowedFd<'_>, number: u64, wanted: Wanted) -> io::Result<()> {
        sys::epoll_change(self.as_fd(), fd, true, (wanted.events(), number))
    }

    /// Changes the events to report of a descriptor, and its number.
    ///
    /// # Errors
    /// It is not in the set.
    pub fn change(&self, fd: BorrowedFd<'_>, number: u64, wanted: Wanted) -> io::Result<()> {
        sys::epoll_change(self.as_fd(), fd, false, (wanted.events(), number))
    }

    /// Removes a descriptor.
    ///
    /// # Errors
    /// It is not in the set.
    pub fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        sys::epoll_forget(self.as_fd(), fd)
    }

    /// Calls `each` for up to `most` ready descriptors, and does not wait.
    pub fn ready(&self, most: usize, mut each: impl FnMut(DescriptorState)) {
        sys::epoll_ready(self.as_fd(), most, |number, events| {
            let has = |bits: libc::c_int| events & bits as u32 != 0;
            let is_broken = has(libc::EPOLLHUP | libc::EPOLLERR);
            let (can_read, can_write) = (
                has(libc::EPOLLIN | libc::EPOLLPRI | libc::EPOLLRDHUP),
                has(libc::EPOLLOUT),
            );
            each(DescriptorState {
                number,
                readable: can_read || is_broken && !can_write,
                writable: can_write || is_broken && !can_read,
                read_closed: has(libc::EPOLLHUP | libc::EPOLLRDHUP),
                write_closed: has(libc::EPOLLHUP | libc::EPOLLERR),
                error: has(libc::EPOLLERR),
            });
        });
    }

    /// Waits until a descriptor is ready, `event` is signalled, or the timeout is over. Returns
    /// whether `event` is signalled.
    pub fn wait(&self, event: &EventFd, timeout: Option<Duration>) -> bool {
        let ready = sys::wait_readable(&[self.as_fd()], event.as_fd(), [None; 2], timeout);
        ready.is_ok_and(|ready| ready.event)
    }
}

impl Wanted {
    fn events(self) -> u32 {
        sys::epoll_events([self.readable, self.writable, self.edge])
    }
}

/// Readable while a descriptor of the set is ready.
impl AsFd for Descriptors {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
