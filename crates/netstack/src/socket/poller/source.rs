//! The sockets that can be registered, and the state that a poller sees of them.

use core::fmt;
use core::sync::atomic::Ordering;
use std::sync::Weak;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::{io, task};

use dominoes::{EventCount, Watch};

use super::registration::{Recipient, Registration};
use super::{Interest, Token, Trigger, allowed};
use crate::io::accept::QueueNews;
use crate::io::echo::EchoQueues;
use crate::io::stream::Look;
use crate::io::stream::StreamRef;
use crate::io::world::{OpenResult, World};
use crate::log::request::ConnId;
use crate::socket::stage::Staged;
use crate::socket::{
    AnyListener, Connecting, EchoSocket, ReadHalf, TcpListener, TcpStream, UdpReceiver, UdpSender,
    UdpSocket, WriteHalf,
};

/// A socket that can be registered with a [`Poller`](super::Poller), or with the waker of a task.
///
/// | socket | can be |
/// |---|---|
/// | [`TcpStream`], [`UdpSocket`]; TLS and framed streams, TLS handshakes | readable, writable |
/// | [`ReadHalf`], [`UdpReceiver`], [`TcpListener`], [`AnyListener`], [`EchoSocket`]; halves that read | readable |
/// | [`WriteHalf`], [`UdpSender`]; halves that write | writable |
/// | [`Connecting`] | writable: established, or failed |
///
/// A TLS or framed stream is readable when it has text, or when a whole unit or record has
/// arrived. A record without text makes it readable, too; a read then returns
/// [`SocketError::WouldBlock`](crate::SocketError::WouldBlock).
pub trait Source: Sealed {
    /// Wakes a task once, when the socket is ready: with [`Trigger::Level`] at once if it is ready
    /// now, with [`Trigger::Edge`] only when there is more than at the last wake-up. So a future
    /// that got [`SocketError::WouldBlock`](crate::SocketError::WouldBlock) registers its waker
    /// with [`Trigger::Level`] and returns [`Poll::Pending`](std::task::Poll::Pending).
    ///
    /// A socket has one waker for each interest (reading, writing, both); the next one replaces
    /// it. A clone of a socket has separate wakers. The stack uses wakers at the end of a
    /// worker's turn, or in a call that makes the socket ready; it may wake too often, never too
    /// rarely. A panic of a waker is ignored.
    ///
    /// ```
    /// use std::future::poll_fn;
    /// use std::io;
    /// use std::task::Poll;
    /// use dominoes_netstack::poller::{Interest, Source, Trigger};
    /// use dominoes_netstack::{SocketError, TcpStream};
    ///
    /// async fn read(stream: &mut TcpStream, into: &mut [u8]) -> io::Result<usize> {
    ///     poll_fn(|context| match stream.try_read(into) {
    ///         Err(SocketError::WouldBlock) => {
    ///             stream.register_waker(context.waker(), Interest::READABLE, Trigger::Level)?;
    ///             Poll::Pending
    ///         }
    ///         done => Poll::Ready(done.map_err(io::Error::from)),
    ///     })
    ///     .await
    /// }
    /// ```
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] as for [`Poller::register`](super::Poller::register).
    fn register_waker(
        &self,
        waker: &task::Waker,
        interest: Interest,
        trigger: Trigger,
    ) -> io::Result<()> {
        let Registered { target, watched } = allowed(self.registered(), interest)?;
        let waker = waker.clone();
        let mut list = watched.lock();
        let known = list.iter().find(|one| one.is_for_tasks(interest));
        let registration = known.cloned().unwrap_or_else(|| {
            let task = Recipient::Task(Mutex::default());
            let new = Registration::new(task, target, Token::default(), interest, trigger);
            list.push(Arc::clone(&new));
            new
        });
        let (replaced, need_not_wait) = registration.wait(waker, trigger);
        drop(list);
        // Its destructor is code of the program, which may use the socket.
        drop(replaced);
        if need_not_wait {
            registration.wake();
        }
        Ok(())
    }
}

impl<S: Sealed> Source for S {}

/// Implemented only by sockets of this crate.
pub trait Sealed {
    /// The object that a poller checks, and its registrations.
    #[doc(hidden)]
    fn registered(&self) -> Registered<'_>;
}

/// A poller's view of a socket.
#[doc(hidden)]
pub struct Registered<'a> {
    pub(super) target: Target,
    pub(super) watched: &'a Watched,
}

impl<'a> Registered<'a> {
    pub(in crate::socket) fn new(target: Target, watched: &'a Watched) -> Registered<'a> {
        Registered { target, watched }
    }
}

/// The registrations of a socket. They end when it is dropped.
#[derive(Debug, Default)]
pub(in crate::socket) struct Watched(Mutex<Vec<Arc<Registration>>>);

impl Watched {
    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Arc<Registration>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all registrations, because the socket is gone or about to be.
    pub(in crate::socket) fn end(&mut self) {
        let list = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        list.drain(..).for_each(|registration| registration.end());
    }

    /// Reports that a connection that was being opened has a stream.
    pub(in crate::socket) fn opened(&self) {
        // A waker may use the socket.
        let list = self.lock().clone();
        list.iter().for_each(Registration::opened);
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.end();
    }
}

/// The object that a poller checks.
#[derive(Clone)]
pub(in crate::socket) enum Target {
    Stream {
        world: Arc<World>,
        conn: ConnId,
        /// The ways in which it can be ready.
        can: Interest,
        /// The units between the stream and the application.
        units: Option<Weak<dyn Staged>>,
    },
    Datagrams {
        /// One for each group.
        worlds: Arc<[Arc<World>]>,
        socket: ConnId,
        can: Interest,
    },
    Listener {
        world: Arc<World>,
        news: Arc<QueueNews>,
    },
    Echo {
        world: Arc<World>,
        queues: Arc<EchoQueues>,
    },
    Opening {
        world: Arc<World>,
        request_id: u64,
        /// Notified when the open is answered.
        answered: Arc<EventCount>,
        /// The connection, once there is one. The socket sets it, too.
        opened: Arc<OnceLock<ConnId>>,
    },
}

/// The state that a poller sees.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sight {
    pub(super) readable: bool,
    pub(super) writable: bool,
    pub(super) read_closed: bool,
    pub(super) write_closed: bool,
    pub(super) error: bool,
    /// Counts readable items, and reads that another user of the socket had to finish first.
    pub(super) arrived: u64,
    /// Counts writes that found too little room.
    pub(super) shortages: u64,
    /// Bits that stay set, except [`Sight::PASSING`].
    pub(super) status: u32,
}

impl Sight {
    /// The network reported an error.
    pub(super) const PASSING: u32 = 1 << 29;
    /// The stack is closing.
    const CLOSING: u32 = 1 << 28;
    const DOWN: u32 = 1 << 27;

    /// The state of a socket whose calls fail from now on.
    fn gone() -> Sight {
        Sight {
            readable: true,
            writable: true,
            read_closed: true,
            write_closed: true,
            ..Sight::default()
        }
    }

    /// The state of a group's queue for a UDP socket.
    fn of_datagrams(world: &World, socket: ConnId) -> Sight {
        let Some(queue) = world.queues.streams.get(socket) else {
            return Sight::gone();
        };
        let mut sight = Sight::of(world, &queue.look());
        if world.queues.has_error(socket) {
            sight.status |= Sight::PASSING;
            (sight.readable, sight.writable, sight.error) = (true, true, true);
        }
        sight
    }

    /// Combines two queues of a socket: it is writable if both have room, since the next datagram
    /// may need either.
    fn and(self, other: Sight) -> Sight {
        let error = self.error || other.error;
        Sight {
            readable: self.readable || other.readable,
            writable: self.writable && other.writable || error,
            read_closed: self.read_closed || other.read_closed,
            write_closed: self.write_closed || other.write_closed,
            error,
            arrived: self.arrived + other.arrived,
            shortages: self.shortages.wrapping_add(other.shortages),
            status: self.status | other.status,
        }
    }

    fn of(world: &World, look: &Look) -> Sight {
        let (down, closing) = (world.is_down(), world.is_closing());
        let write_closed = look.is_write_over() || closing;
        Sight {
            readable: look.has_bytes || look.is_at_end || down,
            writable: look.has_room || write_closed,
            read_closed: look.is_read_over() || down,
            write_closed,
            error: look.has_error(),
            arrived: look.received + look.misses,
            shortages: look.shortages,
            status: look.status
                | if down { Sight::DOWN } else { 0 }
                | if closing { Sight::CLOSING } else { 0 },
        }
    }
}

impl Sight {
    /// The state of a stream of units.
    fn of_units(world: &World, stream: &StreamRef<'_>, units: &dyn Staged) -> Sight {
        let below = stream.look();
        let look = units.look(stream, &below);
        let sight = Sight::of(world, &below);
        let write_closed = sight.write_closed || look.is_write_over;
        Sight {
            readable: look.is_readable || world.is_down(),
            writable: look.is_writable || write_closed,
            write_closed,
            ..sight
        }
    }
}

impl Target {
    /// Whether the socket can be ready in a requested way.
    pub(super) fn allows(&self, interest: Interest) -> bool {
        let can = match self {
            Target::Stream { can, .. } | Target::Datagrams { can, .. } => *can,
            Target::Listener { .. } | Target::Echo { .. } => Interest::READABLE,
            Target::Opening { .. } => Interest::WRITABLE,
        };
        can.0 & interest.0 != 0
    }

    /// The group, or the first of several.
    pub(super) fn world(&self) -> &Arc<World> {
        match self {
            Target::Datagrams { worlds, .. } => &worlds[0],
            Target::Stream { world, .. }
            | Target::Listener { world, .. }
            | Target::Echo { world, .. }
            | Target::Opening { world, .. } => world,
        }
    }

    /// Whether the source of news is known. It is unknown while a connection is being opened and
    /// has no stream.
    pub(super) fn is_resolved(&self) -> bool {
        !matches!(self, Target::Opening { opened, .. } if opened.get().is_none())
    }

    /// Finds the stream of a connection that is being opened.
    pub(super) fn resolve(&self) {
        if let Target::Opening {
            world,
            request_id,
            opened,
            ..
        } = self
            && opened.get().is_none()
            && let Some(Some(OpenResult::Opened { conn, .. })) =
                world.socket_table().open_results.get(request_id)
        {
            let _ = opened.set(*conn);
        }
    }

    /// Calls `each` with every event count of the socket; does nothing if the socket is gone.
    fn each_event(&self, each: impl Fn(&EventCount)) {
        let each_of = |world: &World, conn, can: Interest| {
            let Some(stream) = world.streams.get(conn) else {
                return;
            };
            if can.0 & Interest::READABLE.0 != 0 {
                each(stream.waiting());
            }
            if can.0 & Interest::WRITABLE.0 != 0 {
                each(stream.room());
            }
        };
        match self {
            Target::Stream {
                world, conn, can, ..
            } => each_of(world, *conn, *can),
            Target::Datagrams { worlds, socket, .. } => {
                let queues = worlds.iter().map(|world| world.queues.streams.get(*socket));
                queues.flatten().for_each(|queue| each(queue.waiting()));
            }
            Target::Listener { news, .. } => each(&news.event),
            Target::Echo { queues, .. } => each(&queues.event),
            Target::Opening {
                world,
                answered,
                opened,
                ..
            } => match opened.get() {
                Some(conn) => each_of(world, *conn, Interest::BOTH),
                None => each(answered),
            },
        }
    }

    /// Makes news call `watch`. The caller must check the socket next.
    pub(super) fn watch(&self, watch: &Arc<dyn Watch>) {
        loop {
            self.resolve();
            let was_resolved = self.is_resolved();
            self.each_event(|event| event.watch(watch));
            // This sees an answer that came before; a later answer finds the watch.
            self.resolve();
            if self.is_resolved() == was_resolved {
                break;
            }
        }
    }

    pub(super) fn unwatch(&self, watch: &Arc<dyn Watch>) {
        self.each_event(|event| event.unwatch(watch));
        if let Target::Opening { answered, .. } = self {
            answered.unwatch(watch);
        }
    }

    /// Reads the current state.
    pub(super) fn see(&self) -> Sight {
        match self {
            Target::Stream {
                world,
                conn,
                units: Some(units),
                ..
            } => match (world.streams.get(*conn), units.upgrade()) {
                (Some(held), Some(units)) => Sight::of_units(world, &held, &*units),
                _ => Sight::gone(),
            },
            Target::Stream { world, conn, .. } => match world.streams.get(*conn) {
                Some(held) => Sight::of(world, &held.look()),
                None => Sight::gone(),
            },
            Target::Datagrams { worlds, socket, .. } => {
                let sights = worlds
                    .iter()
                    .map(|world| Sight::of_datagrams(world, *socket));
                sights.reduce(Sight::and).unwrap_or_else(Sight::gone)
            }
            Target::Listener { world, news } => {
                // ORDERING: Relaxed, as in `QueueNews::push`.
                let closing = world.is_closing() || news.closed.load(Ordering::Relaxed);
                Sight {
                    readable: news.waiting.load(Ordering::Relaxed) > 0 || closing,
                    read_closed: closing,
                    arrived: news.arrived.load(Ordering::Relaxed),
                    status: if closing { Sight::CLOSING } else { 0 },
                    ..Sight::default()
                }
            }
            Target::Echo { world, queues } => {
                let down = world.is_down();
                Sight {
                    readable: queues.has_reply() || down,
                    read_closed: down,
                    arrived: queues.arrived(),
                    status: if down { Sight::DOWN } else { 0 },
                    ..Sight::default()
                }
            }
            Target::Opening {
                world,
                request_id,
                opened,
                ..
            } => match opened.get().map(|conn| world.streams.get(*conn)) {
                Some(Some(held)) => {
                    let look = held.look();
                    let sight = Sight::of(world, &look);
                    let is_over = look.is_over() || world.is_down();
                    Sight {
                        writable: look.is_established() || is_over,
                        ..sight
                    }
                }
                Some(None) => Sight::gone(),
                None if world.is_down() => Sight::gone(),
                None => {
                    let table = world.socket_table();
                    match table.open_results.get(request_id) {
                        Some(None | Some(OpenResult::Opened { .. })) => Sight::default(),
                        // The socket has taken the answer since the look above.
                        None if opened.get().is_some() => {
                            drop(table);
                            self.see()
                        }
                        _ => Sight {
                            error: true,
                            ..Sight::gone()
                        },
                    }
                }
            },
        }
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Target::Stream { .. } => "Stream",
            Target::Datagrams { .. } => "Datagrams",
            Target::Listener { .. } => "Listener",
            Target::Echo { .. } => "Echo",
            Target::Opening { .. } => "Opening",
        };
        f.debug_struct(name).finish_non_exhaustive()
    }
}

macro_rules! sources {
    ($($socket:ident: $this:ident => $watched:expr, $target:expr;)*) => {$(
        impl Sealed for $socket {
            fn registered(&self) -> Registered<'_> {
                let $this = self;
                Registered { target: $target, watched: $watched }
            }
        }
    )*};
}

sources! {
    TcpStream: this => &this.watched, this.half.target(Interest::BOTH);
    ReadHalf: this => &this.watched, this.half.target(Interest::READABLE);
    WriteHalf: this => &this.watched, this.half.target(Interest::WRITABLE);
    UdpSocket: this => &this.watched, this.target();
    UdpReceiver: this => &this.watched, this.shared.target(Interest::READABLE);
    UdpSender: this => &this.watched, this.shared.target(Interest::WRITABLE);
    TcpListener: this => &this.watched, this.target();
    AnyListener: this => &this.watched, this.target();
    EchoSocket: this => &this.watched, this.target();
    Connecting: this => &this.watched, this.target();
}
