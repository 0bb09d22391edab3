//! How a stack ends: [`Stack::close`] ends it in order, every other way ends it at once.
//!
//! A kernel completes its connections after their programs have ended. This stack ends with its
//! program, so the program has to wait: the caller of `close` sets how long. Then the stack resets
//! every connection that is left, so that no peer waits in vain (RFC 9293 section 3.10.5).

use core::time::Duration;
use std::collections::HashSet;
use std::sync::Arc;

use super::Stack;
use crate::error::StackError;
use crate::io::accept::Ready;
use crate::io::stream::{AppRequest, ConnectionStatus};
use crate::io::world::{Command, World};
use crate::log::request::{Body, ConnId};
use crate::socket::WaitUntil;

/// How long the last frames may take to leave. A device that accepts none delays the end by this
/// time.
const LAST_FRAMES: Duration = Duration::from_millis(100);

impl Stack {
    /// Ends the stack in order. From now on calls to listen, accept, connect and write fail. The
    /// stack resets the connections that no call has accepted. Every other connection sends a FIN
    /// after the bytes already written, as [`TcpStream::shutdown_write`] does (TLS sends
    /// close_notify first), and can still be read. The call waits, for `patience` at most, until
    /// peers have acknowledged all of that and the datagrams for neighbours that answer have left.
    /// Then the stack resets the connections that are still open, and ends the threads, within
    /// another 100 ms.
    ///
    /// # Errors
    /// [`StackError::Unacknowledged`]: `patience` ran out first, and some connections were cut
    /// short.
    ///
    /// [`TcpStream::shutdown_write`]: crate::TcpStream::shutdown_write
    pub fn close(mut self, patience: Duration) -> Result<(), StackError> {
        let until = WaitUntil::after(patience);
        let begun = self.ask_all(AppRequest {
            shutdown: true,
            ..AppRequest::default()
        });
        let done = |status: ConnectionStatus| status.all_acknowledged() || status.is_over();
        let late = |(world, conn): &(Arc<World>, ConnId)| !world.await_status(*conn, until, done);
        let cut_short = begun.iter().filter(|one| late(one)).count();
        for world in self.sockets.worlds() {
            world.await_datagrams(until);
        }
        self.stop();
        match cut_short {
            0 => Ok(()),
            connections => Err(StackError::Unacknowledged { connections }),
        }
    }

    /// Ends the stack at once, as dropping it does. Every blocked call returns an error, and every
    /// connection is reset, also one whose socket was dropped while it had bytes to send.
    /// [`Stack::close`] waits for such a connection.
    pub fn shutdown(mut self) {
        self.stop();
    }

    /// Resets all connections, waits until the resets have left, and ends the threads.
    pub(super) fn stop(&mut self) {
        if self
            .groups
            .iter()
            .all(|group| group.threads.contexts().is_empty())
        {
            return;
        }
        let left = self.ask_all(AppRequest {
            abort: true,
            ..AppRequest::default()
        });
        let until = WaitUntil::after(LAST_FRAMES);
        for (world, stream) in left {
            world.await_status(stream, until, ConnectionStatus::is_sent);
        }
        for world in self.sockets.worlds() {
            world.shut_down();
        }
        for group in &mut self.groups {
            group.end();
        }
        #[cfg(feature = "testkit")]
        if !std::thread::panicking() {
            let panics = self.sockets.worlds().iter().map(|w| w.unplanned_panics());
            assert_eq!(panics.sum::<u64>(), 0, "panics were caught");
        }
    }
}

impl Stack {
    /// Ends all listeners and open calls, in every group.
    fn begin_close(&self) {
        let worlds = self.sockets.worlds();
        for world in worlds {
            world.close();
        }
        // All groups share one socket table.
        let shared = &worlds[0].shared;
        let mut table = shared.socket_table();
        let mut closed = Vec::new();
        for (port, binding, queue) in table.listeners.take() {
            closed.push(queue.news);
            for world in worlds {
                world.command(Command::Publish(Body::Unlisten { port, binding }));
            }
            for Ready { group, conn, .. } in queue.ready {
                worlds[usize::from(group)].abandon(conn);
            }
        }
        drop(table);
        shared.wake_all();
        closed.iter().for_each(|news| news.event.notify_all());
        for world in worlds {
            world.streams.wake_all();
        }
    }

    /// Begins to close, makes request `what` of every established connection that is not over, and
    /// returns these connections.
    fn ask_all(&self, what: AppRequest) -> Vec<(Arc<World>, ConnId)> {
        self.begin_close();
        let worlds = self.sockets.worlds();
        let ended = match what.shutdown {
            true => worlds[0].shared.finish_units(),
            false => HashSet::new(),
        };
        let asked = worlds.iter().flat_map(|world| {
            let conns = world.ask_all(what, &ended).into_iter();
            conns.map(|conn| (Arc::clone(world), conn))
        });
        asked.collect()
    }
}

impl World {
    /// Makes request `what` of every established connection that is not over and not in `ended`.
    /// Returns all established connections that are not over.
    fn ask_all(&self, what: AppRequest, ended: &HashSet<(u16, ConnId)>) -> Vec<ConnId> {
        let asked = self.streams.established().map(|stream| {
            let conn = stream.conn();
            if !ended.contains(&(self.group, conn)) {
                stream.request(what);
                self.raise(&stream);
            }
            conn
        });
        asked.collect()
    }

    /// Waits until `conn` is gone or `is_so` holds for its status. Returns whether that happened in
    /// time.
    fn await_status(
        &self,
        conn: ConnId,
        until: WaitUntil,
        is_so: impl Fn(ConnectionStatus) -> bool,
    ) -> bool {
        let Some(stream) = self.streams.get(conn) else {
            return true;
        };
        let arrived = || self.streams.get(conn).is_none() || is_so(stream.status());
        loop {
            let key = stream.room().prepare();
            if arrived() {
                return true;
            }
            let Ok(left) = until.left() else {
                return false;
            };
            stream.room().wait(key, left);
        }
    }

    /// Waits until the send rings of all UDP sockets are empty.
    fn await_datagrams(&self, until: WaitUntil) {
        for queue in self.queues.streams.written() {
            loop {
                let key = queue.waiting().prepare();
                let Ok(left) = until.left() else { return };
                if queue.is_drained() {
                    break;
                }
                queue.waiting().wait(key, left);
            }
        }
    }
}
