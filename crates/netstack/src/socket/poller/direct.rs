//! Watching one socket without a poller, for `dominoes-preload`. Not part of the interface.

use std::sync::{Arc, atomic::AtomicBool, atomic::Ordering};

use dominoes::Watch;

use super::source::{Source, Target};

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
