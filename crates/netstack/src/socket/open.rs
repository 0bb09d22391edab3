//! How connections begin: listeners, and connections that are being opened.

use core::net::SocketAddrV4;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::Arc;

use super::TcpStream;
use super::wait::{WaitUntil, wait_for_socket_table};
use crate::error::SocketError;
use crate::io::stream::EndReason;
use crate::io::world::{Command, OpenResult, Ready, SocketTable, World};
use crate::log::request::Flow;

/// A port that connections arrive at. Dropping it stops listening and resets what was not accepted.
pub struct TcpListener {
    /// Those of all groups of the stack.
    pub(super) worlds: Arc<[Arc<World>]>,
    pub(super) port: u16,
    pub(super) nonblocking: AtomicBool,
}

impl TcpListener {
    /// Whether [`TcpListener::accept`] returns [`SocketError::WouldBlock`] where it would wait.
    /// Default: no.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    /// Takes the next established connection, waiting for it unless that is switched off.
    ///
    /// # Errors
    /// [`SocketError::Down`], [`SocketError::WouldBlock`].
    pub fn accept(&self) -> Result<(TcpStream, SocketAddrV4), SocketError> {
        let world = self.world();
        let mut table = world.socket_table();
        loop {
            match self.take(&mut table) {
                Err(SocketError::WouldBlock) if !self.nonblocking.load(Ordering::Relaxed) => {
                    table = wait_for_socket_table(world, table, None);
                }
                other => return other,
            }
        }
    }

    /// Takes the next established connection if there is one.
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`], [`SocketError::Down`].
    pub fn try_accept(&self) -> Result<(TcpStream, SocketAddrV4), SocketError> {
        self.take(&mut self.world().socket_table())
    }

    fn take(&self, table: &mut SocketTable) -> Result<(TcpStream, SocketAddrV4), SocketError> {
        if self.world().is_closing() {
            return Err(SocketError::Down);
        }
        let queue = table.listeners.get_mut(&self.port);
        let queue = queue.ok_or(SocketError::Down)?;
        let Some(Ready {
            group,
            stream,
            remote,
        }) = queue.ready.pop_front()
        else {
            return Err(SocketError::WouldBlock);
        };
        let accepted = &mut queue.accepted[usize::from(group)];
        *accepted += 1;
        let world = &self.worlds[usize::from(group)];
        world.command(Command::Accepted {
            port: self.port,
            accepted: *accepted,
        });
        let flow = Flow {
            local: self.local_addr(),
            remote,
        };
        Ok((TcpStream::new(world, stream, flow), remote))
    }

    /// Our end.
    pub fn local_addr(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.world().address, self.port)
    }

    /// The first group's.
    fn world(&self) -> &World {
        &self.worlds[0]
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        let mut table = self.world().socket_table();
        let queue = table.listeners.remove(&self.port).unwrap_or_default();
        for world in &*self.worlds {
            world.command(Command::Unlisten { port: self.port });
        }
        drop(table);
        for Ready { group, stream, .. } in queue.ready {
            self.worlds[usize::from(group)].abandon(stream);
        }
    }
}

/// A connection that is being opened. Dropping it gives up.
pub struct Connecting {
    pub(super) world: Arc<World>,
    pub(super) request_id: u64,
    pub(super) opened: Option<TcpStream>,
}

impl Connecting {
    /// The connection, once it is established. `None`: not yet.
    ///
    /// # Errors
    /// [`SocketError::Refused`], [`SocketError::TimedOut`], [`SocketError::Unreachable`],
    /// [`SocketError::NoRoom`], [`SocketError::Down`]. After an error or a stream it has nothing
    /// more to say.
    pub fn try_finish(&mut self) -> Result<Option<TcpStream>, SocketError> {
        if self.opened.is_none() {
            let mut table = self.world.socket_table();
            if self.world.is_down() {
                return Err(SocketError::Down);
            }
            let Some(&Some(answer)) = table.open_results.get(&self.request_id) else {
                return Ok(None);
            };
            table.open_results.remove(&self.request_id);
            match answer {
                OpenResult::Opened { stream, flow } => {
                    self.opened = Some(TcpStream::new(&self.world, stream, flow));
                }
                OpenResult::NoRoom => return Err(SocketError::NoRoom),
                OpenResult::Unreachable => return Err(SocketError::Unreachable),
            }
        }
        let Some(stream) = &self.opened else {
            return Ok(None);
        };
        let status = stream.half.stream()?.status();
        // A reset ends only what was established, though its news may overtake that. What ended the
        // connection since is for the stream to tell.
        if status.established() || status.end_reason() == Some(EndReason::Reset) {
            return Ok(self.opened.take());
        }
        match status.end_reason() {
            Some(ending) => Err(ending.into()),
            None => Ok(None),
        }
    }

    /// Waits until the connection is established.
    ///
    /// # Errors
    /// As [`Connecting::try_finish`].
    pub fn finish(self) -> Result<TcpStream, SocketError> {
        self.finish_until(WaitUntil::Never)
    }

    /// As [`Connecting::finish`], and gives up after `timeout`.
    ///
    /// # Errors
    /// As [`Connecting::try_finish`]; [`SocketError::TimedOut`] then, too.
    pub fn finish_within(self, timeout: Duration) -> Result<TcpStream, SocketError> {
        let finished = self.finish_until(WaitUntil::after(timeout));
        finished.map_err(|error| match error {
            SocketError::WouldBlock => SocketError::TimedOut,
            other => other,
        })
    }

    fn finish_until(mut self, until: WaitUntil) -> Result<TcpStream, SocketError> {
        loop {
            if let Some(stream) = self.try_finish()? {
                return Ok(stream);
            }
            let left = until.left()?;
            match &self.opened {
                Some(stream) => {
                    let half = Arc::clone(&stream.half);
                    let key = half.stream()?.waiting().prepare();
                    if let Some(stream) = self.try_finish()? {
                        return Ok(stream);
                    }
                    half.stream()?.waiting().wait(key, left);
                }
                None => {
                    let table = self.world.socket_table();
                    let unanswered = matches!(table.open_results.get(&self.request_id), Some(None));
                    if unanswered && !self.world.is_down() {
                        drop(wait_for_socket_table(&self.world, table, left));
                    }
                }
            }
        }
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        let answer = self
            .world
            .socket_table()
            .open_results
            .remove(&self.request_id);
        if let Some(Some(OpenResult::Opened { stream, .. })) = answer {
            self.world.abandon(stream);
        }
    }
}
