//! How a stack ends: [`Stack::close`] in order, everything else at once.
//!
//! A host that goes on runs its connections to their end when their programs are gone. This stack goes with its
//! program, so somebody has to wait: whoever closes it says for how long. What is still there then is reset, so that
//! no peer waits for somebody who is gone (RFC 9293 section 3.10.5).

use core::time::Duration;

use super::Stack;
use crate::digest::ConnId;
use crate::engine::stream::{Asked, Life};
use crate::engine::world::{Command, World};
use crate::error::CloseError;
use crate::socket::Until;

/// How long the last frames may take to leave, 100 ms. A device that takes none must not hold up the end for longer.
const LAST_FRAMES: Duration = Duration::from_millis(100);

impl Stack {
    /// Ends the stack in order. Nobody can listen, accept, connect or write any more; connections that nobody accepted
    /// are reset; every other one says FIN behind what was written, as [`TcpStream::shutdown_write`] does, and may
    /// still be read. Waits until all of that is acknowledged and all datagrams for neighbours that answer have left, for `patience` at most.
    /// Then connections whose peers still talk are reset, since nobody is there to hear them, and the threads end.
    /// That takes 100 ms more, at most.
    ///
    /// # Errors
    /// [`CloseError::Unacknowledged`]: `patience` was over before, and some connections were cut short.
    ///
    /// [`TcpStream::shutdown_write`]: crate::TcpStream::shutdown_write
    pub fn close(mut self, patience: Duration) -> Result<(), CloseError> {
        let until = Until::after(patience);
        self.world.begin_close();
        let begun = self.world.ask_all(Asked {
            shutdown: true,
            ..Asked::default()
        });
        let done = |life: Life| life.all_acknowledged() || life.is_over();
        let late = |conn: &&ConnId| !self.world.await_life(**conn, until, done);
        let cut_short = begun.iter().filter(late).count();
        self.world.await_datagrams(until);
        self.stop();
        match cut_short {
            0 => Ok(()),
            connections => Err(CloseError::Unacknowledged { connections }),
        }
    }

    /// Ends the stack at once: every blocked call returns an error, and every connection is reset, also those whose
    /// sockets were dropped and that still have something to send. As dropping the stack does; [`Stack::close`] waits
    /// for them.
    pub fn shutdown(mut self) {
        self.stop();
    }

    /// Resets what is left, lets that leave, and ends the threads.
    pub(super) fn stop(&mut self) {
        if self.contexts.is_empty() {
            return;
        }
        self.world.begin_close();
        let left = self.world.ask_all(Asked {
            abort: true,
            ..Asked::default()
        });
        let until = Until::after(LAST_FRAMES);
        for conn in left {
            self.world.await_life(conn, until, Life::has_left);
        }
        self.world.shut_down();
        for context in &self.contexts {
            context.stop();
        }
        for context in self.contexts.drain(..) {
            // A context that panicked has said so on standard error.
            let _ = context.join();
        }
    }
}

impl World {
    /// From now on nothing begins.
    fn begin_close(&self) {
        self.close();
        let mut desk = self.desk();
        for (port, queue) in desk.listeners.drain() {
            self.command(Command::Unlisten { port });
            for (conn, _) in queue.ready {
                self.abandon(conn);
            }
        }
        drop(desk);
        self.desk_bell.notify_all();
        self.streams.wake_all();
    }

    /// Asks this of every connection that is established and not over, and says which those are.
    fn ask_all(&self, what: Asked) -> Vec<ConnId> {
        let asked = self.streams.begun().map(|stream| {
            stream.ask(what);
            self.raise(&stream);
            stream.conn()
        });
        asked.collect()
    }

    /// Waits until `conn` has gone, or `is_so` of its life. Returns whether that happened in time.
    fn await_life(&self, conn: ConnId, until: Until, is_so: impl Fn(Life) -> bool) -> bool {
        let Some(stream) = self.streams.get(conn) else {
            return true;
        };
        let arrived = || self.streams.get(conn).is_none() || is_so(stream.life());
        loop {
            let key = stream.waiting().prepare();
            if arrived() {
                return true;
            }
            let Ok(left) = until.left() else {
                return false;
            };
            stream.waiting().wait(key, left);
        }
    }

    /// Waits until the send rings of all UDP sockets are empty.
    fn await_datagrams(&self, until: Until) {
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
