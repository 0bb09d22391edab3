//! The state that both halves of a connection and all its clones share.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

use super::poller::{Interest, Target};
use super::shared::{Shared, Taken, UserId};
use super::wait::{WaitPolicy, WaitUntil};
use crate::config::{Settings, Tuning};
use crate::error::SocketError;
use crate::io::stream::{AppRequest, Change, DeliveryCursor, StreamRef};
use crate::io::world::{Options, World};
use crate::log::request::{ConnId, Flow};

/// The state that both halves of a connection and all its clones share. When the last of them is
/// dropped, the application's hold on the connection ends.
pub(super) struct Half {
    /// The group of the connection.
    pub(super) world: Arc<World>,
    /// The connection's identifier in its group.
    pub(super) conn: ConnId,
    pub(super) flow: Flow,
    pub(super) reader: Shared<DeliveryCursor>,
    /// Whether the sending side was shut down.
    pub(super) writer: Shared<bool>,
    pub(super) read_wait: WaitPolicy,
    pub(super) write_wait: WaitPolicy,
    /// The minimum of its buffers; 0 for streams without units.
    pub(super) least: Least,
    /// For a stream of units, the end of the last unit that was made, sealed or not; otherwise 0.
    pub(super) ahead: AtomicU64,
    /// Whether `take_error` has returned how the connection ended.
    told: AtomicBool,
}

/// The shortest buffers that a connection may have, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Least {
    pub(super) receive: u32,
    pub(super) send: u32,
}

impl Least {
    /// Whether units fit into buffers of these settings.
    pub(super) fn allows(&self, tuning: &Tuning) -> bool {
        let allows = |bytes: u32, least: u32| bytes == 0 || bytes >= least;
        allows(tuning.receive_buffer, self.receive) && allows(tuning.notsent_lowat, self.send)
    }
}

impl Half {
    pub(super) fn new(world: &Arc<World>, conn: ConnId, flow: Flow) -> Self {
        Half {
            world: Arc::clone(world),
            conn,
            flow,
            reader: Shared::new(DeliveryCursor::default()),
            writer: Shared::new(false),
            read_wait: WaitPolicy::default(),
            write_wait: WaitPolicy::default(),
            least: Least::default(),
            ahead: AtomicU64::new(0),
            told: AtomicBool::new(false),
        }
    }

    pub(super) fn stream(&self) -> Result<StreamRef<'_>, SocketError> {
        // The connection's place stays reserved until this is dropped.
        self.world
            .streams
            .get(self.conn)
            .ok_or(SocketError::Aborted)
    }

    /// The object that a poller checks.
    pub(super) fn target(&self, can: Interest) -> Target {
        Target::Stream {
            world: Arc::clone(&self.world),
            conn: self.conn,
            can,
            units: None,
        }
    }

    pub(super) fn request(&self, asked: AppRequest) {
        if let Ok(stream) = self.stream() {
            stream.request(asked);
            self.world.raise(&stream);
        }
    }

    /// Returns the cursor of its readers, reserved for the call of `user`.
    pub(super) fn begin_read<'a>(
        &'a self,
        user: UserId,
        stream: &StreamRef<'a>,
    ) -> Result<Taken<'a, DeliveryCursor>, SocketError> {
        let reader = &self.reader;
        reader.take_or(user, stream.waiting(), || stream.missed())
    }

    /// Counts `len` more bytes as read.
    pub(super) fn consume(&self, stream: &StreamRef<'_>, seen: &mut DeliveryCursor, len: usize) {
        let mss = u32::from(self.world.limits.mss());
        if stream.read(len, seen, mss) {
            self.world.raise(stream);
        }
    }

    /// Ends reading; wakes calls that wait for bytes.
    pub(super) fn shut_read(&self) {
        if let Ok(stream) = self.stream() {
            stream.shut_read();
            stream.waiting().notify_all();
        }
    }

    /// Ends writing; wakes calls that wait for room.
    pub(super) fn shut_write(&self) {
        // Takes the writers' turn, so that the pump reads the last cursor with the request.
        self.writer.with(|shut| *shut = true);
        self.request(AppRequest {
            shutdown: true,
            ..AppRequest::default()
        });
        if let Ok(stream) = self.stream() {
            stream.room().notify_all();
        }
    }

    /// Returns how the connection ended, unless it was returned before.
    pub(super) fn take_error(&self) -> Option<SocketError> {
        let ended = match self.stream() {
            Ok(stream) => stream.status().end_reason()?.into(),
            Err(error) => error,
        };
        (!self.told.swap(true, Ordering::Relaxed)).then_some(ended)
    }

    /// Changes settings, and notifies the pump. Does nothing if the connection is gone.
    pub(super) fn set(&self, change: impl Fn(Settings) -> Settings) -> Result<(), SocketError> {
        self.change(|before| {
            let settings = change(before.settings);
            // Disabling Nagle's algorithm sends waiting bytes, as on Linux.
            let push = before.push || settings.nodelay && !before.settings.nodelay;
            Change {
                settings,
                push,
                ..before
            }
        })
    }

    /// As [`Half::set`], for all options.
    pub(super) fn change(&self, change: impl FnOnce(Change) -> Change) -> Result<(), SocketError> {
        let is_valid = match self.stream() {
            Ok(stream) => {
                let ahead = self.ahead.load(Ordering::Relaxed);
                let is_valid = stream.change(ahead, change);
                self.world.raise(&stream);
                is_valid
            }
            Err(_) => {
                let changed = change(Change::default());
                changed.settings.checked().is_some() && changed.tuning.checked().is_some()
            }
        };
        is_valid.then_some(()).ok_or(SocketError::Invalid)
    }

    pub(super) fn settings(&self) -> Settings {
        self.stream().map_or_else(
            |_| self.world.limits.settings(),
            |stream| stream.options().settings,
        )
    }

    /// The current tuning.
    pub(super) fn tuning(&self) -> Tuning {
        self.stream()
            .map_or_else(|_| Tuning::default(), |stream| stream.options().tuning)
    }

    /// The most bytes of its receive buffer.
    pub(super) fn receive_buffer(&self) -> u32 {
        let most = self.world.limits.receive_buffer;
        match self.tuning().receive_buffer {
            0 => most,
            tuned => tuned.min(most),
        }
    }

    /// As [`Half::set`], for the tuning.
    pub(super) fn tune(&self, change: impl Fn(Tuning) -> Tuning) -> Result<(), SocketError> {
        if !self.least.allows(&change(self.tuning())) {
            return Err(SocketError::Invalid);
        }
        self.change(|before| Change {
            tuning: change(before.tuning),
            ..before
        })
    }

    /// Applies the connection's initial options.
    pub(super) fn begin_with(&self, options: &Options) {
        let Options { settings, tuning } = *options;
        // The options were checked before.
        let _ = self.change(|before| Change {
            settings,
            tuning,
            ..before
        });
    }

    /// Waits until the peer has all written bytes and our FIN, which was requested before, or
    /// until the connection has ended.
    pub(super) fn await_end(&self, until: WaitUntil) -> Result<(), SocketError> {
        let stream = self.stream()?;
        let over = || {
            let status = stream.status();
            let ended =
                status.all_acknowledged() || status.retired() || status.end_reason().is_some();
            ended || self.world.is_down()
        };
        while !over() {
            until.left()?;
            until.wait(&self.world, stream.room(), &mut || over());
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
        let linger = self.tuning().linger;
        let at_once = linger.is_some_and(|linger| linger.as_nanos() == 0);
        self.request(AppRequest {
            orphan: true,
            abort: at_once && !self.is_finished(),
            ..AppRequest::default()
        });
    }
}
