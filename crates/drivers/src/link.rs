//! What the halves of a device know about the interface behind it: up, down or gone.

use crate::{DeviceError, sys};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// How often a wait looks whether a link that is down has come back or gone for good: the kernel
/// does not tell.
const DOWN_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The socket and what both halves know about the interface behind it.
#[derive(Debug)]
pub(crate) struct Link {
    fd: OwnedFd,
    pub(crate) name: String,
    index: i32,
    /// One of the halves was told that the link is down. The kernel tells only one of them, and
    /// only once.
    down: AtomicBool,
    /// Keeps the kernel silent about our address, if that was asked for.
    _guard: Option<OwnedFd>,
    /// What the interface is asked through, if not the socket itself.
    control: Option<OwnedFd>,
}

/// The state of an interface, asked for after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkState {
    Up,
    Down,
    Gone,
}

impl Link {
    pub(crate) fn new(fd: OwnedFd, name: &str, index: i32, guard: Option<OwnedFd>) -> Self {
        Self {
            fd,
            name: name.to_owned(),
            index,
            down: AtomicBool::new(false),
            _guard: guard,
            control: None,
        }
    }

    /// Asks for the interface through another socket.
    pub(crate) fn control(mut self, control: OwnedFd) -> Self {
        self.control = Some(control);
        self
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Whether the link was down when somebody last looked.
    #[inline]
    pub(crate) fn may_be_down(&self) -> bool {
        // ORDERING: Relaxed, a hint to look closer that orders nothing.
        self.down.load(Relaxed)
    }

    pub(crate) fn report_error(&self) {
        self.down.store(true, Relaxed);
    }

    /// Asks the kernel.
    pub(crate) fn query_state(&self) -> LinkState {
        let control = self.control.as_ref().map_or(self.fd(), AsFd::as_fd);
        let state = match sys::interface_name(control, self.index) {
            Err(_) => LinkState::Gone,
            // It may have been renamed.
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

/// What a receiving half has told of its link.
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

    /// Reports trouble, if somebody has met any.
    #[inline]
    pub(crate) fn check(&mut self) -> Result<(), DeviceError> {
        if self.link.may_be_down() {
            self.check_state()
        } else {
            Ok(())
        }
    }

    /// Reports a link that is down, once, or gone, always.
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

    /// How long a wait may last: not for ever while the link is down.
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

    /// Fetches the error of a socket that reports one. Until that is done, every further wait would
    /// return at once.
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
