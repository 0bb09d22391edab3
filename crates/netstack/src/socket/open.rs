//! Opens connections: listeners, and connections that are being opened.

use core::iter::FusedIterator;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::io;
use std::sync::{Arc, OnceLock};

use super::poller::{Target, Watched};
use super::wait::{WaitPolicy, WaitUntil};
use super::{TcpStream, valid_ttl};
use crate::config::{Settings, Tuning};
use crate::error::SocketError;
use crate::io::accept::{AcceptQueue, QueueNews, Ready};
use crate::io::stream::EndReason;
use crate::io::world::{Command, OpenResult, Options, SocketTable, World};
use crate::log::request::{Binding, Body, ConnId};

/// A port at which connections arrive. When it and its clones are dropped, it stops listening and
/// resets connections that were not accepted.
pub struct TcpListener {
    pub(super) watched: Watched,
    shared: Arc<Listening>,
}

/// The state that the clones of a listener share.
struct Listening {
    /// All groups of the stack.
    worlds: Arc<[Arc<World>]>,
    port: u16,
    binding: Binding,
    news: Arc<QueueNews>,
    wait: WaitPolicy,
    /// Written while the socket table is held.
    closed: AtomicBool,
}

impl TcpListener {
    /// Creates a listener for a port on which all groups listen.
    pub(super) fn new(
        worlds: &Arc<[Arc<World>]>,
        (port, binding): (u16, Binding),
        news: Arc<QueueNews>,
    ) -> Self {
        TcpListener::over(Arc::new(Listening {
            worlds: Arc::clone(worlds),
            port,
            binding,
            news,
            wait: WaitPolicy::default(),
            closed: AtomicBool::new(false),
        }))
    }

    fn over(shared: Arc<Listening>) -> Self {
        TcpListener {
            watched: Watched::default(),
            shared,
        }
    }

    /// Another handle of the same port: each connection goes to one handle.
    ///
    /// # Errors
    /// None as yet.
    pub fn try_clone(&self) -> io::Result<TcpListener> {
        Ok(TcpListener::over(Arc::clone(&self.shared)))
    }

    /// Whether [`TcpListener::accept`] returns [`SocketError::WouldBlock`] where it would wait.
    /// Default: no.
    ///
    /// # Errors
    /// None as yet.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.shared.wait.set_nonblocking(nonblocking);
        Ok(())
    }

    /// How long [`TcpListener::accept`] waits at most before it returns
    /// [`SocketError::WouldBlock`]. Default: no limit.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if it is zero.
    pub fn set_accept_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        Ok(self.shared.wait.set_timeout(timeout)?)
    }

    /// Takes the next established connection, and waits for it unless the listener is
    /// nonblocking. The connections of one group arrive in the order in which they were
    /// established; different groups have no order.
    ///
    /// # Errors
    /// [`SocketError::Closed`] after [`TcpListener::close`], even if another thread calls it
    /// meanwhile; [`SocketError::Down`], [`SocketError::WouldBlock`].
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        Ok(self.accept_until(self.shared.wait.begin())?)
    }

    /// As [`TcpListener::accept`], but waits no longer than `timeout`.
    ///
    /// # Errors
    /// As [`TcpListener::accept`]; [`SocketError::WaitedTooLong`] after `timeout`.
    pub fn accept_within(&self, timeout: Duration) -> Result<(TcpStream, SocketAddr), SocketError> {
        self.accept_until(WaitUntil::after(timeout))
    }

    fn accept_until(&self, until: WaitUntil) -> Result<(TcpStream, SocketAddr), SocketError> {
        until.retry_in_table(self.shared.world(), |table| self.take(table))
    }

    /// Takes the next established connection if there is one.
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`], [`SocketError::Closed`], [`SocketError::Down`].
    pub fn try_accept(&self) -> Result<(TcpStream, SocketAddr), SocketError> {
        self.take(&mut self.shared.world().socket_table())
    }

    fn take(&self, table: &mut SocketTable) -> Result<(TcpStream, SocketAddr), SocketError> {
        let Listening {
            worlds,
            port,
            binding,
            ..
        } = &*self.shared;
        if self.shared.world().is_closing() {
            return Err(SocketError::Down);
        }
        if self.shared.closed.load(Ordering::Relaxed) {
            return Err(SocketError::Closed);
        }
        let queue = table.listeners.get_mut(*port, *binding);
        let queue = queue.ok_or(SocketError::Down)?;
        let Some(Ready { group, conn, flow }) = queue.pop() else {
            return Err(SocketError::WouldBlock);
        };
        let (options, has_options) = (queue.options, queue.has_options);
        let accepted = &mut queue.accepted[usize::from(group)];
        *accepted += 1;
        let world = &worlds[usize::from(group)];
        world.command(Command::Publish(Body::Accepted {
            port: *port,
            binding: *binding,
            accepted: *accepted,
        }));
        let stream = TcpStream::new(world, conn, flow);
        if has_options {
            stream.half.begin_with(&options);
        }
        Ok((stream, flow.remote.into()))
    }

    /// An endless iterator over connections, as returned by [`TcpListener::accept`].
    pub fn incoming(&self) -> impl FusedIterator<Item = io::Result<TcpStream>> {
        core::iter::repeat_with(|| self.accept().map(|(stream, _)| stream))
    }

    /// Stops listening, and resets connections that were not accepted. Waiting calls return
    /// [`SocketError::Closed`], even in other threads and clones.
    pub fn close(&self) {
        self.shared.close();
    }

    /// Our end.
    ///
    /// # Errors
    /// None as yet.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.shared.local_addr())
    }

    /// Sets the settings of connections whose SYN arrives from now on (their SYN-ACK included),
    /// and of those that are accepted from now on.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if a value is out of its range, [`SocketError::Closed`].
    pub fn set_settings(&self, settings: Settings) -> Result<(), SocketError> {
        let settings = settings.checked().ok_or(SocketError::Invalid)?;
        self.change_settings(|before| *before = settings)
    }

    /// As [`TcpListener::set_settings`], for the tuning, which applies when a connection is
    /// accepted.
    ///
    /// # Errors
    /// As [`TcpListener::set_settings`].
    pub fn set_tuning(&self, tuning: Tuning) -> Result<(), SocketError> {
        let tuning = tuning.checked().ok_or(SocketError::Invalid)?;
        self.queue(|queue| {
            queue.options.tuning = tuning;
            queue.has_options = true;
        })
    }

    /// As [`Settings::ttl`], for the connections of [`TcpListener::set_settings`].
    ///
    /// # Errors
    /// As [`TcpListener::set_settings`].
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        let ttl = valid_ttl(ttl)?;
        Ok(self.change_settings(|settings| settings.ttl = ttl)?)
    }

    /// As [`TcpListener::set_ttl`] set it.
    ///
    /// # Errors
    /// [`SocketError::Closed`].
    pub fn ttl(&self) -> io::Result<u32> {
        Ok(self.queue(|queue| queue.options.settings.ttl.into())?)
    }

    fn change_settings(&self, change: impl FnOnce(&mut Settings)) -> Result<(), SocketError> {
        let Listening {
            port,
            binding,
            worlds,
            ..
        } = &*self.shared;
        let (port, binding) = (*port, *binding);
        let untold = self.queue(|queue| {
            change(&mut queue.options.settings);
            queue.has_options = true;
            // A group that has not processed the previous settings reads the new ones when it
            // does.
            let told = queue.is_told.iter_mut();
            let told = told.map(|is_told| core::mem::replace(is_told, false));
            told.collect::<Vec<_>>()
        })?;
        for ((world, was_told), group) in worlds.iter().zip(untold).zip(0..) {
            if was_told {
                world.command(Command::SetListener {
                    port,
                    binding,
                    group,
                });
            }
        }
        Ok(())
    }

    fn queue<T>(&self, look: impl FnOnce(&mut AcceptQueue) -> T) -> Result<T, SocketError> {
        let mut table = self.shared.world().socket_table();
        if self.shared.closed.load(Ordering::Relaxed) {
            return Err(SocketError::Closed);
        }
        let Listening { port, binding, .. } = *self.shared;
        let queue = table.listeners.get_mut(port, binding);
        Ok(look(queue.ok_or(SocketError::Down)?))
    }

    /// Always `None`: only calls of a listener return errors.
    ///
    /// # Errors
    /// None as yet.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(None)
    }
}

impl TcpListener {
    /// The object that a poller checks.
    pub(super) fn target(&self) -> Target {
        Target::Listener {
            world: Arc::clone(&self.shared.worlds[0]),
            news: Arc::clone(&self.shared.news),
        }
    }
}

impl Listening {
    /// The first group.
    fn world(&self) -> &World {
        &self.worlds[0]
    }

    fn local_addr(&self) -> SocketAddr {
        SocketAddr::new(self.world().local_address(self.binding).ip(), self.port)
    }

    fn close(&self) {
        let mut table = self.world().socket_table();
        if self.closed.swap(true, Ordering::Relaxed) {
            return;
        }
        let (port, binding) = (self.port, self.binding);
        let queue = table.listeners.remove(port, binding);
        let queue = queue.unwrap_or_default();
        for world in &*self.worlds {
            world.command(Command::Publish(Body::Unlisten { port, binding }));
        }
        drop(table);
        self.world().shared.socket_table_changed.notify_all();
        self.news.closed.store(true, Ordering::Relaxed);
        self.news.event.notify_all();
        for Ready { group, conn, .. } in queue.ready {
            self.worlds[usize::from(group)].abandon(conn);
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.close();
    }
}

impl core::fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("TcpListener")
            .field("port", &self.shared.port)
            .finish_non_exhaustive()
    }
}

/// A connection that is being opened. Dropping it cancels the open.
pub struct Connecting {
    pub(super) world: Arc<World>,
    pub(super) request_id: u64,
    pub(super) watched: Watched,
    /// The connection, once a call has taken the answer, which is then nowhere else.
    pub(super) conn: Arc<OnceLock<ConnId>>,
    pub(super) opened: Option<TcpStream>,
}

impl Connecting {
    /// Sets the settings of the connection. Its SYN uses them if it was not sent yet: a stack
    /// sends it in its next turn, or when it knows the link-layer address of the next hop.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if a value is out of its range.
    pub fn set_settings(&mut self, settings: Settings) -> Result<(), SocketError> {
        let settings = settings.checked().ok_or(SocketError::Invalid)?;
        match self.set(|options| options.settings = settings) {
            Some(stream) => stream.set_settings(settings),
            None => Ok(()),
        }
    }

    /// As [`Connecting::set_settings`], for the tuning, which does not change the SYN.
    ///
    /// # Errors
    /// [`SocketError::Invalid`] if a value is out of its range.
    pub fn set_tuning(&mut self, tuning: Tuning) -> Result<(), SocketError> {
        let tuning = tuning.checked().ok_or(SocketError::Invalid)?;
        match self.set(|options| options.tuning = tuning) {
            Some(stream) => stream.set_tuning(tuning),
            None => Ok(()),
        }
    }

    /// Changes the initial options; if the connection exists already, returns its stream instead.
    fn set(&mut self, change: impl FnOnce(&mut Options)) -> Option<&TcpStream> {
        if self.opened.is_none() {
            let mut table = self.world.socket_table();
            if let Some(begins) = table.open_options.get_mut(&self.request_id) {
                change(&mut begins.options);
                return None;
            }
            let answer = table.open_results.get(&self.request_id);
            let has_failed = matches!(answer, Some(Some(OpenResult::Failed(_))));
            drop(table);
            if !has_failed {
                // A later call returns the error again.
                let _ = self.look();
            }
        }
        self.opened.as_ref()
    }

    /// Checks whether the open has been answered. If the connection exists, `opened` names it.
    fn look(&mut self) -> Result<(), SocketError> {
        if self.opened.is_some() {
            return Ok(());
        }
        let mut table = self.world.socket_table();
        if self.world.is_down() {
            return Err(SocketError::Down);
        }
        let Some(&Some(answer)) = table.open_results.get(&self.request_id) else {
            return Ok(());
        };
        if let OpenResult::Opened { conn, .. } = answer {
            // Before the answer is gone: a watch that finds neither would report a failure.
            let _ = self.conn.set(conn);
        }
        table.open_results.remove(&self.request_id);
        drop(table);
        match answer {
            OpenResult::Opened { conn, flow } => {
                self.watched.opened();
                self.opened = Some(TcpStream::new(&self.world, conn, flow));
                Ok(())
            }
            OpenResult::Failed(error) => Err(error),
        }
    }

    /// Returns the connection once it is established, and `None` before.
    ///
    /// # Errors
    /// [`SocketError::Refused`], [`SocketError::TimedOut`], [`SocketError::Unreachable`],
    /// [`SocketError::NoRoom`], [`SocketError::NoPort`], [`SocketError::Down`]; for a connection
    /// with a [local end](super::Sockets::begin_connect_from) [`SocketError::PortTaken`],
    /// [`SocketError::NotOurs`]. After an error or a stream, further calls return nothing useful.
    pub fn try_finish(&mut self) -> Result<Option<TcpStream>, SocketError> {
        self.look()?;
        let Some(stream) = &self.opened else {
            return Ok(None);
        };
        let status = stream.half.stream()?.status();
        // A reset ends only established connections, though the news of it may arrive first. The
        // stream reports how the connection ended.
        if status.established() || status.end_reason() == Some(EndReason::Reset) {
            return Ok(self.opened.take());
        }
        match status.end_reason() {
            Some(ending) => Err(ending.into()),
            // A peer whose SYN was held has given up.
            None if status.retired() => Err(SocketError::Refused),
            None => Ok(None),
        }
    }

    /// The object that a poller checks.
    pub(super) fn target(&self) -> Target {
        let mut table = self.world.socket_table();
        let is_open = matches!(table.open_results.get(&self.request_id), Some(None));
        let answered = if is_open {
            Arc::clone(table.open_events.entry(self.request_id).or_default())
        } else {
            Arc::default()
        };
        Target::Opening {
            world: Arc::clone(&self.world),
            request_id: self.request_id,
            answered,
            opened: Arc::clone(&self.conn),
        }
    }

    /// Waits until the connection is established.
    ///
    /// # Errors
    /// As [`Connecting::try_finish`].
    pub fn finish(self) -> Result<TcpStream, SocketError> {
        self.finish_until(WaitUntil::Never)
    }

    /// As [`Connecting::finish`], but gives up after `timeout`.
    ///
    /// # Errors
    /// As [`Connecting::try_finish`]; also [`SocketError::TimedOut`] after `timeout`.
    pub fn finish_within(self, timeout: Duration) -> Result<TcpStream, SocketError> {
        let finished = self.finish_until(WaitUntil::after(timeout));
        finished.map_err(|error| match error {
            SocketError::WaitedTooLong => SocketError::TimedOut,
            other => other,
        })
    }

    fn finish_until(mut self, until: WaitUntil) -> Result<TcpStream, SocketError> {
        loop {
            if let Some(stream) = self.try_finish()? {
                return Ok(stream);
            }
            until.left()?;
            match &self.opened {
                Some(stream) => {
                    let half = Arc::clone(&stream.half);
                    let waiting = half.stream()?.waiting();
                    let mut found = None;
                    until.wait(&half.world, waiting, &mut || {
                        found = self.try_finish().transpose();
                        found.is_some()
                    });
                    if let Some(found) = found {
                        return found;
                    }
                }
                None => until.retry_in_table(&self.world, |table| {
                    let answer = table.open_results.get(&self.request_id);
                    match matches!(answer, Some(None)) && !self.world.is_down() {
                        true => Err(SocketError::WouldBlock),
                        false => Ok(()),
                    }
                })?,
            }
        }
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        self.watched.end();
        let mut table = self.world.socket_table();
        let answer = table.open_results.remove(&self.request_id);
        table.open_events.remove(&self.request_id);
        table.open_options.remove(&self.request_id);
        drop(table);
        if let Some(Some(OpenResult::Opened { conn, .. })) = answer {
            self.world.abandon(conn);
        }
    }
}
