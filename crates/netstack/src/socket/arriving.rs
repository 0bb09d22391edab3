//! Listeners that let the application decide before the handshake goes on.

use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::io;
use std::sync::Arc;

use super::Sockets;
use super::open::Connecting;
use super::poller::{Target, Watched};
use super::wait::{WaitPolicy, WaitUntil};
use crate::error::SocketError;
use crate::io::accept::{ArrivingQueue, QueueNews};
use crate::io::world::{Command, Decision, SocketTable, World};
use crate::log::request::{ALL_PORTS, Flow};

/// How long a SYN is held by default. Most clients give up later.
const PATIENCE: Duration = Duration::from_secs(20);

impl Sockets {
    /// Listens on all ports, for connections to any of our addresses; with
    /// [`any_address`](crate::Builder::any_address), to every address. It gets those that no
    /// other listener takes. Each connection [arrives](AnyListener::next) before its handshake
    /// goes on. At most `backlog` SYNs of each group are held at a time. Never blocks.
    ///
    /// ```
    /// use dominoes_drivers::memory::{self, MemoryConfig};
    /// use dominoes_netstack::Stack;
    ///
    /// let (left, right) = memory::ip_pair(MemoryConfig::default());
    /// let proxy = Stack::builder("10.0.0.1/0").any_address().start(left)?;
    /// let client = Stack::builder("10.0.0.2/0").start(right)?;
    ///
    /// let arrivals = proxy.sockets().listen_any(1024)?;
    /// let connecting = client.sockets().begin_connect("203.0.113.9:443".parse()?)?;
    /// let arriving = arrivals.next()?;
    /// assert_eq!(arriving.destination(), "203.0.113.9:443".parse()?);
    /// // Here a proxy connects to the destination by other means, and refuses if it cannot.
    /// let stream = arriving.accept()?.finish()?;
    /// assert_eq!(stream.peer_addr()?, connecting.finish()?.local_addr()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`SocketError::PortTaken`] if there is such a listener; [`SocketError::Down`].
    pub fn listen_any(&self, backlog: u16) -> Result<AnyListener, SocketError> {
        self.listen_held(ALL_PORTS, backlog)
    }

    /// As [`Sockets::listen_any`], on one port.
    ///
    /// # Errors
    /// As [`Sockets::listen_any`], and [`SocketError::PortTaken`] if another listener has the
    /// port; [`SocketError::PortZero`].
    pub fn listen_any_port(&self, port: u16, backlog: u16) -> Result<AnyListener, SocketError> {
        match port {
            0 => Err(SocketError::PortZero),
            port => self.listen_held(port, backlog),
        }
    }

    fn listen_held(&self, port: u16, backlog: u16) -> Result<AnyListener, SocketError> {
        self.check_up()?;
        let mut table = self.world().socket_table();
        if table.arriving.contains_key(&port) || table.listeners.at(port).next().is_some() {
            return Err(SocketError::PortTaken);
        }
        let queue = ArrivingQueue::default();
        let news = Arc::clone(&queue.news);
        table.arriving.insert(port, queue);
        let listening = AnyListening {
            worlds: Arc::clone(&self.worlds),
            port,
            backlog: backlog.max(1),
            news,
            wait: WaitPolicy::default(),
            is_closed: AtomicBool::new(false),
        };
        // While the socket table is held, so that starts and ends reach the pumps in order.
        listening.tell(Some(PATIENCE));
        drop(table);
        Ok(AnyListener {
            watched: Watched::default(),
            shared: Arc::new(listening),
        })
    }
}

/// A listener whose connections wait for a decision before the handshake goes on; made by
/// [`Sockets::listen_any`]. When it is dropped, held SYNs get no answer.
pub struct AnyListener {
    pub(super) watched: Watched,
    shared: Arc<AnyListening>,
}

struct AnyListening {
    /// All groups of the stack.
    worlds: Arc<[Arc<World>]>,
    port: u16,
    backlog: u16,
    news: Arc<QueueNews>,
    wait: WaitPolicy,
    /// Written while the socket table is held.
    is_closed: AtomicBool,
}

impl AnyListening {
    /// Lets all pumps hold SYNs for this long, or no more.
    fn tell(&self, patience: Option<Duration>) {
        let holds = patience.map(|patience| {
            let nanos = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX / 2);
            (self.backlog, crate::time::Duration::from_nanos(nanos))
        });
        let port = self.port;
        for world in &*self.worlds {
            world.command(Command::HoldSyns { port, holds });
        }
    }

    fn close(&self) {
        let mut table = self.worlds[0].socket_table();
        if self.is_closed.swap(true, Ordering::Relaxed) {
            return;
        }
        table.arriving.remove(&self.port);
        self.tell(None);
        drop(table);
        self.worlds[0].shared.socket_table_changed.notify_all();
        self.news.closed.store(true, Ordering::Relaxed);
        self.news.event.notify_all();
    }
}

impl Drop for AnyListening {
    fn drop(&mut self) {
        self.close();
    }
}

impl AnyListener {
    /// Takes the next connection that arrives, and waits for it unless the listener is
    /// nonblocking. A retransmitted SYN does not arrive again while it is held.
    ///
    /// # Errors
    /// [`SocketError::Closed`] after [`AnyListener::close`], even if another thread calls it
    /// meanwhile; [`SocketError::Down`], [`SocketError::WouldBlock`].
    pub fn next(&self) -> io::Result<Arriving> {
        Ok(self.next_until(self.shared.wait.begin())?)
    }

    /// Takes the next connection that arrives if there is one.
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`], [`SocketError::Closed`], [`SocketError::Down`].
    pub fn try_next(&self) -> Result<Arriving, SocketError> {
        self.take(&mut self.shared.worlds[0].socket_table())
    }

    fn next_until(&self, until: WaitUntil) -> Result<Arriving, SocketError> {
        until.retry_in_table(&self.shared.worlds[0], |table| self.take(table))
    }

    fn take(&self, table: &mut SocketTable) -> Result<Arriving, SocketError> {
        let worlds = &self.shared.worlds;
        if worlds[0].is_closing() {
            return Err(SocketError::Down);
        }
        if self.shared.is_closed.load(Ordering::Relaxed) {
            return Err(SocketError::Closed);
        }
        let queue = table.arriving.get_mut(&self.shared.port);
        let next = queue.ok_or(SocketError::Down)?.pop();
        let (group, id, flow) = next.ok_or(SocketError::WouldBlock)?;
        Ok(Arriving {
            world: Arc::clone(&worlds[usize::from(group)]),
            id,
            flow,
            is_decided: false,
        })
    }

    /// Whether [`AnyListener::next`] returns [`SocketError::WouldBlock`] where it would wait.
    /// Default: no.
    ///
    /// # Errors
    /// None as yet.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.shared.wait.set_nonblocking(nonblocking);
        Ok(())
    }

    /// How long a SYN that arrives from now on is held. After that its peer gets no answer, and
    /// [accepting](Arriving::accept) it fails. Default: 20 seconds.
    pub fn set_patience(&self, patience: Duration) {
        self.shared.tell(Some(patience));
    }

    /// Stops listening. Held SYNs get no answer. Waiting calls return [`SocketError::Closed`].
    pub fn close(&self) {
        self.shared.close();
    }

    /// The object that a poller checks.
    pub(super) fn target(&self) -> Target {
        Target::Listener {
            world: Arc::clone(&self.shared.worlds[0]),
            news: Arc::clone(&self.shared.news),
        }
    }
}

impl core::fmt::Debug for AnyListener {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("AnyListener")
            .field("port", &self.shared.port)
            .finish_non_exhaustive()
    }
}

/// A connection whose SYN is held. Dropping it drops the SYN: the peer gets no answer, and its next
/// SYN arrives anew.
#[must_use = "dropping it drops the SYN"]
pub struct Arriving {
    /// The group that holds the SYN.
    world: Arc<World>,
    id: u64,
    flow: Flow,
    is_decided: bool,
}

impl Arriving {
    /// The end that opens the connection.
    pub fn peer(&self) -> SocketAddr {
        self.flow.remote.into()
    }

    /// The end that it wants to reach, which becomes our end.
    pub fn destination(&self) -> SocketAddr {
        self.flow.local.into()
    }

    /// Lets the handshake go on, beginning with our SYN-ACK. Data that the SYN brought is sent
    /// again by the peer. Dropping the result resets the connection.
    ///
    /// # Errors
    /// [`SocketError::Down`]. The result returns those of [`Connecting::try_finish`]:
    /// [`SocketError::TimedOut`] if the SYN was held too long or the peer does not answer,
    /// [`SocketError::Refused`] if the peer has given up, and [`SocketError::NoRoom`].
    pub fn accept(mut self) -> Result<Connecting, SocketError> {
        if self.world.is_closing() {
            return Err(SocketError::Down);
        }
        let settings = self.world.limits.settings();
        let request_id = self.world.socket_table().new_request(settings);
        self.decide(Decision::Accept { request_id });
        Ok(Connecting {
            world: Arc::clone(&self.world),
            request_id,
            watched: Watched::default(),
            conn: Arc::default(),
            opened: None,
        })
    }

    /// Refuses the connection: its peer gets a reset, unless the limit of resets is reached.
    pub fn refuse(mut self) {
        self.decide(Decision::Refuse);
    }

    fn decide(&mut self, decision: Decision) {
        self.is_decided = true;
        let (flow, id) = (self.flow, self.id);
        self.world.command(Command::Decide { flow, id, decision });
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        if !self.is_decided {
            self.decide(Decision::Drop);
        }
    }
}

impl core::fmt::Debug for Arriving {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Arriving")
            .field("peer", &self.peer())
            .field("destination", &self.destination())
            .finish_non_exhaustive()
    }
}
