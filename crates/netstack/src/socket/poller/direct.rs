//! Watching one socket without a poller, for `dominoes-preload`. Not part of the interface.

use std::sync::{Arc, Weak, atomic::AtomicBool, atomic::Ordering};
use std::time::Instant;

use dominoes::Watch;

use super::source::{Source, Target};
use crate::io::sleep::{Driven, FULL, Wait};
use crate::socket::Sockets;

pub use crate::io::sleep::Waits;

/// What the calls of a socket would find.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// A read or an accept would not wait.
    pub readable: bool,
    /// A write would not wait, or the connection is established or has failed.
    pub writable: bool,
    /// The peer has sent the end of the stream, or the connection is closed.
    pub read_closed: bool,
    /// No more bytes can be written.
    pub write_closed: bool,
    /// The connection ended early, or the network reported an error.
    pub error: bool,
    /// Grows with each arrival.
    pub arrived: u64,
}

/// A socket that a [`Watch`] can watch. It does not keep the socket open.
#[derive(Debug)]
pub struct Watchable {
    target: Target,
    /// Whether the last watch is where the news of the socket arrives.
    is_placed: AtomicBool,
}

impl Watchable {
    /// The view of `socket`.
    pub fn new(socket: &impl Source) -> Watchable {
        Watchable {
            target: socket.registered().target,
            is_placed: AtomicBool::new(false),
        }
    }

    /// Makes the next news for which `watch` is due fire it, once. Look at the socket afterwards.
    pub fn watch(&self, watch: &Arc<dyn Watch>) {
        self.target.watch(watch);
        self.is_placed
            .store(self.target.is_resolved(), Ordering::Relaxed);
    }

    /// Undoes [`Watchable::watch`].
    pub fn unwatch(&self, watch: &Arc<dyn Watch>) {
        self.target.unwatch(watch);
    }

    /// Whether [`Watch::is_due`] may call [`Watchable::look`]. If not, all news is due, since a
    /// connection that is being opened had no stream when it was watched.
    pub fn may_look(&self) -> bool {
        self.is_placed.load(Ordering::Relaxed)
    }

    /// The current state of the socket.
    pub fn look(&self) -> Readiness {
        self.target.resolve();
        let sight = self.target.see();
        Readiness {
            readable: sight.readable,
            writable: sight.writable,
            read_closed: sight.read_closed,
            write_closed: sight.write_closed,
            error: sight.error,
            arrived: sight.arrived,
        }
    }
}

/// The stack of some sockets, which a thread that waits may drive, as blocking calls do. It does
/// not keep the stack.
pub struct Driver(Weak<dyn Driven>);

impl Driver {
    /// `None` if only threads of the stack drive it.
    pub fn new(sockets: &Sockets) -> Option<Driver> {
        let driven = sockets.world().driven()?;
        Some(Driver(Arc::downgrade(&driven)))
    }

    /// Drives until `is_over`, which is asked after each turn and before each sleep in the device,
    /// or until this time. Returns false if this thread cannot drive (any more).
    pub fn drive(&self, until: Option<Instant>, is_over: &mut dyn FnMut() -> bool) -> bool {
        let mut wait = Wait {
            event: None,
            until,
            beside: None,
            leaves: Some(FULL),
            is_over,
        };
        self.0.upgrade().is_some_and(|it| it.drive(&mut wait))
    }

    /// Runs a turn if no thread drives at this moment.
    pub fn pass(&self) {
        if let Some(driven) = self.0.upgrade() {
            driven.pass();
        }
    }

    /// Notes that this thread waits without driving, until the result is dropped.
    pub fn wait_without(&self) -> Option<Waits> {
        self.0.upgrade().as_ref().map(Waits::new)
    }
}

impl core::fmt::Debug for Driver {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}
