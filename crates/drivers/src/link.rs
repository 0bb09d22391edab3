//! The state of a device's interface (up, down or gone), shared by the device's halves.

use crate::sys::AttachedProgram;
use crate::{DeviceError, sys};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

/// How often a waiting receiver checks whether a link that is down has come up or gone for good.
/// The kernel sends no notification of either.
const DOWN_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The socket, and the state of its interface as both halves know it.
#[derive(Debug)]
pub(crate) struct Link {
    /// The socket, and what lasts as long.
    fds: Closed,
    pub(crate) name: String,
    index: i32,
    /// Set when either half got an error from the kernel. The kernel reports it to one half only,
    /// and only once.
    down: AtomicBool,
    /// The descriptor for questions about the interface, if that is not the socket.
    control: Option<OwnedFd>,
}

/// What lasts as long as a link.
#[derive(Debug)]
pub(crate) enum Kept {
    Socket(OwnedFd),
    Program(AttachedProgram),
}

impl AsFd for Kept {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Kept::Socket(fd) => fd.as_fd(),
            Kept::Program(program) => program.as_fd(),
        }
    }
}

/// What is closed at the same time. To close a packet socket, its ring or a BPF link,
/// the kernel waits until no core uses it any more, which takes it milliseconds each time.
#[derive(Debug)]
struct Closed(Vec<Kept>);

impl Drop for Closed {
    fn drop(&mut self) {
        let mut all = self.0.drain(..);
        let first = all.next();
        thread::scope(|scope| {
            for kept in all {
                // If no thread can start, this closes it at once.
                let _ = thread::Builder::new().spawn_scoped(scope, move || drop(kept));
            }
            drop(first);
        });
    }
}

/// The state of an interface, queried after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkState {
    Up,
    Down,
    Gone,
}

impl Link {
    /// `others` last as long as the link.
    pub(crate) fn new(
        fd: OwnedFd,
        name: &str,
        index: i32,
        others: impl IntoIterator<Item = Kept>,
    ) -> Self {
        Self {
            fds: Closed([Kept::Socket(fd)].into_iter().chain(others).collect()),
            name: name.to_owned(),
            index,
            down: AtomicBool::new(false),
            control: None,
        }
    }

    /// Queries the interface through another socket.
    pub(crate) fn control(mut self, control: OwnedFd) -> Self {
        self.control = Some(control);
        self
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fds.0[0].as_fd()
    }

    /// Whether the link was down at the last query, or has had an error since.
    #[inline]
    pub(crate) fn may_be_down(&self) -> bool {
        // ORDERING: Relaxed, a hint to query the kernel; it orders nothing.
        self.down.load(Relaxed)
    }

    pub(crate) fn report_error(&self) {
        self.down.store(true, Relaxed);
    }

    /// Asks the kernel for the state of the interface.
    pub(crate) fn query_state(&self) -> LinkState {
        let control = self.control.as_ref().map_or(self.fd(), AsFd::as_fd);
        let state = match sys::interface_name(control, self.index) {
            Err(_) => LinkState::Gone,
            // The interface may have a new name.
            Ok(name) => match sys::interface_is_up(control, &name) {
                Ok(true) => LinkState::Up,
                Ok(false) => LinkState::Down,
                Err(_) => LinkState::Gone,
            },
        };
        self.down.store(state != LinkState::Up, Relaxed);
        state
    }

    pub(crate) fn down(&self) -> DeviceError {
        DeviceError::Down {
            interface: self.name.clone(),
        }
    }

    pub(crate) fn gone(&self) -> DeviceError {
        DeviceError::Gone {
            interface: self.name.clone(),
        }
    }
}

/// Reports the state of the link to the user of a receiving half.
#[derive(Debug)]
pub(crate) struct Reporter {
    link: Arc<Link>,
    down_reported: bool,
}

impl Reporter {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        Self {
            link,
            down_reported: false,
        }
    }

    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    /// Returns an error if the link is down or gone; asks the kernel only after an error.
    #[inline]
    pub(crate) fn check(&mut self) -> Result<(), DeviceError> {
        if self.link.may_be_down() {
            self.check_state()
        } else {
            Ok(())
        }
    }

    /// Reports a link that is down once, and one that is gone at every call.
    #[cold]
    pub(crate) fn check_state(&mut self) -> Result<(), DeviceError> {
        match self.link.query_state() {
            LinkState::Up => {
                self.down_reported = false;
                Ok(())
            }
            LinkState::Down if self.down_reported => Ok(()),
            LinkState::Down => {
                self.down_reported = true;
                Err(self.link.down())
            }
            LinkState::Gone => Err(self.link.gone()),
        }
    }

    /// Bounds a wait: while the link is down it lasts at most `DOWN_CHECK_INTERVAL`.
    pub(crate) fn bound(
        &mut self,
        timeout: Option<Duration>,
    ) -> Result<Option<Duration>, DeviceError> {
        self.check()?;
        Ok(if self.link.may_be_down() {
            Some(timeout.map_or(DOWN_CHECK_INTERVAL, |timeout| {
                timeout.min(DOWN_CHECK_INTERVAL)
            }))
        } else {
            timeout
        })
    }

    /// Fetches the pending error of a socket. Until it is fetched, every wait returns at once.
    pub(crate) fn fetch_error(&mut self) -> Result<(), DeviceError> {
        match sys::socket_error(self.link.fd()) {
            Ok(0) => Ok(()),
            _ => {
                self.link.report_error();
                self.check_state()
            }
        }
    }
}
