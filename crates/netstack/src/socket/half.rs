//! What both halves of a connection share.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::Arc;

use super::wait::WaitUntil;
use crate::config::Settings;
use crate::error::SocketError;
use crate::io::stream::{AppRequest, Handle, StreamRef};
use crate::io::world::World;
use crate::log::request::Flow;

/// What both halves of a connection share. When the last of them goes, so does the connection's
/// holder.
pub(super) struct Half {
    /// The group that the connection began in.
    pub(super) world: Arc<World>,
    /// What is its own wherever it moves.
    pub(super) stream: Handle,
    pub(super) flow: Flow,
    /// In nanoseconds, [`NO_LINGER`] without.
    linger: AtomicU64,
}

const NO_LINGER: u64 = u64::MAX;

impl Half {
    pub(super) fn new(world: &Arc<World>, stream: Handle, flow: Flow) -> Self {
        Half {
            world: Arc::clone(world),
            stream,
            flow,
            linger: AtomicU64::new(NO_LINGER),
        }
    }

    pub(super) fn stream(&self) -> Result<StreamRef<'_>, SocketError> {
        // It stays ours until we let go of it.
        self.world
            .streams
            .held(self.stream)
            .ok_or(SocketError::Aborted)
    }

    pub(super) fn request(&self, asked: AppRequest) {
        if let Ok(stream) = self.stream() {
            stream.request(asked);
            self.world.raise(&stream);
        }
    }

    /// Stores a setting, and tells the pump.
    pub(super) fn set(&self, store: impl FnOnce(&StreamRef<'_>)) {
        if let Ok(stream) = self.stream() {
            store(&stream);
        }
        self.request(AppRequest {
            set: true,
            ..AppRequest::default()
        });
    }

    pub(super) fn settings(&self) -> Settings {
        self.stream()
            .map_or_else(|_| Settings::default(), |stream| stream.settings())
    }

    pub(super) fn set_linger(&self, linger: Option<Duration>) {
        let nanos = linger.map_or(NO_LINGER, |linger| {
            u64::try_from(linger.as_nanos()).unwrap_or(NO_LINGER - 1)
        });
        self.linger.store(nanos, Ordering::Relaxed);
    }

    pub(super) fn linger(&self) -> Option<Duration> {
        let nanos = self.linger.load(Ordering::Relaxed);
        (nanos != NO_LINGER).then(|| Duration::from_nanos(nanos))
    }

    /// Waits until the peer has all that was written and our FIN, or nothing more will come of it.
    fn await_end(&self, until: WaitUntil) -> Result<(), SocketError> {
        self.request(AppRequest {
            shutdown: true,
            ..AppRequest::default()
        });
        let stream = self.stream()?;
        let over = || {
            let status = stream.status();
            let ended =
                status.all_acknowledged() || status.retired() || status.end_reason().is_some();
            ended || self.world.is_down()
        };
        while !over() {
            let left = until.left()?;
            let key = stream.waiting().prepare();
            if over() {
                break;
            }
            stream.waiting().wait(key, left);
        }
        Ok(())
    }

    /// Whether both directions were closed, so that there is nothing to reset.
    fn is_finished(&self) -> bool {
        self.stream()
            .is_ok_and(|stream| stream.status().all_acknowledged() && stream.peer_end().is_some())
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        let linger = self.linger();
        if let Some(linger) = linger.filter(|linger| !linger.is_zero()) {
            // What is not acknowledged by then goes on by itself.
            let _ = self.await_end(WaitUntil::after(linger));
        }
        self.request(AppRequest {
            orphan: true,
            abort: linger == Some(Duration::ZERO) && !self.is_finished(),
            ..AppRequest::default()
        });
    }
}
