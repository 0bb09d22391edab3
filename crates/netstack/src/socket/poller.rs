//! Readiness: one thread waits for any number of sockets.
//!
//! A [`Poller`] reports which of the sockets that are registered with it have something for a call
//! that would not wait: [`Event`]s, each with the [`Token`] that the socket was registered with.
//!
//! - *Readable*: a read returns bytes, the end of the stream or an error; an accept returns a
//!   connection; a datagram, a reply to an echo request, or an error that the network reported, is
//!   there.
//! - *Writable*: a write takes bytes or returns an error, and at least a third of what may be
//!   written is free, so that a program does not write in small pieces; a connection that is being
//!   opened is established or has failed.
//!
//! With [`Trigger::Level`] an event is reported by every call until the socket is not ready any
//! more. With [`Trigger::Edge`] it is reported once for what is new since it was last reported:
//! bytes or connections that arrive, the end of either direction, or room after a write that found
//! too little of it. Then read until [`SocketError::WouldBlock`], and write until less is taken
//! than is offered. Both report a socket that is ready when it is registered. As with any poller an
//! event may be out of date when it is read, so calls should not block.
//!
//! A socket that is dropped is registered no more. A clone is registered by itself, with a token of
//! its own; what arrives is reported to all clones, and goes to the first that takes it. While one
//! of them is lent bytes in place, or has reserved room, the others are reported although their
//! calls would find nothing. With [`Trigger::Edge`] they are reported again when those are given
//! back. While nothing waits for a socket, or its news is not fetched yet, it costs its stack
//! nothing.
//!
//! A stack on threads is waited for with [`Poller::wait`]. A program that drives a stack by hand
//! asks with [`Poller::events`], which never sleeps. On Linux a poller is also a descriptor that is
//! readable while there are events, for programs that sleep in `epoll`, `poll`, or mio (feature
//! `mio`).
//!
//! ```
//! use dominoes_drivers::memory::{self, MemoryConfig};
//! use dominoes_netstack::Stack;
//! use dominoes_netstack::poller::{Events, Interest, Poller, Token, Trigger};
//!
//! let (left, right) = memory::pair(MemoryConfig::default());
//! let server = Stack::builder("10.0.0.1/24").start(left)?;
//! let client = Stack::builder("10.0.0.2/24").start(right)?;
//! let listener = server.listen(7, 16)?;
//!
//! let poller = Poller::new()?;
//! poller.register(&listener, Token(7), Interest::READABLE, Trigger::Level)?;
//! let _connection = client.connect("10.0.0.1:7")?;
//! let mut events = Events::with_capacity(64);
//! poller.wait(&mut events, None);
//! assert!(events.iter().all(|event| event.token == Token(7) && event.readable));
//! let (_stream, _) = listener.try_accept()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How it works
//! A registration is *armed* or *queued*. Armed, it is on the list of the event count that blocked
//! calls of the socket sleep on ([`EventCount::watch`]); so a notification costs a segment the same
//! instructions whether a poller is there or not, unless it has something to tell it. A notifier
//! that finds an armed registration looks whether there is news, and if so, moves it to the
//! poller's queue. A call of the poller takes registrations from the queue, arms them, looks, and
//! reports. Those that are reported by level stay queued until a look finds them not ready.
//!
//! *No news is lost.* A registration is armed before the look, so by the argument of
//! [`EventCount`] either the look sees a change or its notifier sees the registration. The notifier
//! compares with what was last seen, which the poller stores after its look: news that the look did
//! not see differs from it. Writability can come and go, so "not writable" is stored before the
//! look.
//!
//! [`SocketError::WouldBlock`]: crate::SocketError::WouldBlock

mod held;
mod registration;
mod source;

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_queue::SegQueue;
use dominoes::EventCount;
#[cfg(target_os = "linux")]
use dominoes_drivers::EventFd;

use self::registration::{Collected, Registration};
use super::WaitUntil;

pub(crate) use self::held::hold_wakeups;
#[cfg(feature = "framed")]
pub(super) use self::source::Sealed;
pub(super) use self::source::{Registered, Target, Watched};

pub use self::source::Source;

/// A number by which a program knows a socket again; several sockets may have the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub usize);

/// What a registration waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest(u8);

impl Interest {
    /// Bytes, datagrams, connections to accept, and the end of them.
    pub const READABLE: Interest = Interest(1);
    /// Room to write, a connection that is opened, and the end of writing.
    pub const WRITABLE: Interest = Interest(2);
    /// Either.
    pub const BOTH: Interest = Interest(3);

    /// Whether it includes reading.
    pub const fn is_readable(self) -> bool {
        self.0 & Self::READABLE.0 != 0
    }

    /// Whether it includes writing.
    pub const fn is_writable(self) -> bool {
        self.0 & Self::WRITABLE.0 != 0
    }
}

/// When an event is reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trigger {
    /// As long as the socket is ready.
    #[default]
    Level,
    /// Once for what is new.
    Edge,
}

/// A socket is ready. Of several that share a [`Token`], each has its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// What the socket was registered with.
    pub token: Token,
    /// A read or an accept would not wait. Never without interest in it.
    pub readable: bool,
    /// A write would not wait. Never without interest in it.
    pub writable: bool,
    /// The peer has sent the end of the stream, or the connection is closed. Bytes before it may
    /// not be read yet.
    pub read_closed: bool,
    /// Nothing can be written any more.
    pub write_closed: bool,
    /// The connection ended early, or the network reported an error; a call says which.
    pub error: bool,
}

/// The events that a call reports.
#[derive(Debug)]
pub struct Events {
    list: Vec<Event>,
    capacity: usize,
}

impl Events {
    /// Room for so many events of one call, at least 1. What does not fit is reported by the next.
    pub fn with_capacity(capacity: usize) -> Events {
        let capacity = capacity.max(1);
        Events {
            list: Vec::with_capacity(capacity),
            capacity,
        }
    }

    /// Those that the latest call reported.
    pub fn iter(&self) -> core::slice::Iter<'_, Event> {
        self.list.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are none: the time was over, or a [`Waker`] was used.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

impl<'a> IntoIterator for &'a Events {
    type Item = &'a Event;
    type IntoIter = core::slice::Iter<'a, Event>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Waits for sockets of any number of stacks. Any thread may call any function at any time.
#[derive(Debug)]
pub struct Poller {
    shared: Arc<PollerShared>,
}

/// What registrations and wakers refer to.
#[derive(Debug)]
struct PollerShared {
    /// Registrations that may have something to report.
    queue: SegQueue<Arc<Registration>>,
    /// Threads sleep here.
    event: EventCount,
    /// A waker was used.
    woken: AtomicBool,
    /// Held while events are collected. Those that stay queued wait here for the end of that.
    collector: Mutex<Vec<Arc<Registration>>>,
    #[cfg(target_os = "linux")]
    descriptor: Descriptor,
}

/// What a socket is to a poller, if it can be ready in a way that is asked for.
fn allowed(socket: &impl Source, interest: Interest) -> io::Result<Registered<'_>> {
    let registered = socket.registered();
    if registered.target.allows(interest) {
        Ok(registered)
    } else {
        Err(io::ErrorKind::InvalidInput.into())
    }
}

impl Poller {
    /// A poller without sockets.
    ///
    /// # Errors
    /// If the process has no descriptor left (Linux).
    pub fn new() -> io::Result<Poller> {
        Ok(Poller {
            shared: Arc::new(PollerShared {
                queue: SegQueue::new(),
                event: EventCount::new(),
                woken: AtomicBool::new(false),
                collector: Mutex::default(),
                #[cfg(target_os = "linux")]
                descriptor: Descriptor::new()?,
            }),
        })
    }

    /// Registers a socket. If it is ready, the next call reports it.
    ///
    /// A stream and either of its halves may be registered at the same time.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if it is registered with this poller;
    /// [`io::ErrorKind::InvalidInput`] if it cannot be ready in any way that is asked for: a half
    /// that writes is never readable, nor is a listener or an echo socket writable.
    pub fn register(
        &self,
        socket: &impl Source,
        token: Token,
        interest: Interest,
        trigger: Trigger,
    ) -> io::Result<()> {
        let Registered { target, watched } = allowed(socket, interest)?;
        let mut list = watched.lock();
        if list.iter().any(|one| one.is_with(&self.shared)) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let poller = Arc::downgrade(&self.shared);
        let new = Registration::new(poller, target, token, interest, trigger);
        list.push(Arc::clone(&new));
        drop(list);
        self.shared.push(new);
        Ok(())
    }

    /// Changes what a registered socket is waited for, and its token. If it is ready, the next call
    /// reports it.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if it is not registered with this poller;
    /// [`io::ErrorKind::InvalidInput`] as for [`Poller::register`].
    pub fn modify(
        &self,
        socket: &impl Source,
        token: Token,
        interest: Interest,
        trigger: Trigger,
    ) -> io::Result<()> {
        let Registered { watched, .. } = allowed(socket, interest)?;
        let list = watched.lock();
        let found = list.iter().find(|one| one.is_with(&self.shared));
        let found = found.ok_or(io::ErrorKind::NotFound)?;
        let collector = self.shared.collector();
        found.modify(token, interest, trigger);
        drop(collector);
        Arc::clone(found).enqueue();
        Ok(())
    }

    /// Forgets a socket. No call that begins afterwards reports it.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if it is not registered with this poller.
    pub fn deregister(&self, socket: &impl Source) -> io::Result<()> {
        let Registered { watched, .. } = socket.registered();
        let mut list = watched.lock();
        let found = list.iter().position(|one| one.is_with(&self.shared));
        let found = list.swap_remove(found.ok_or(io::ErrorKind::NotFound)?);
        found.end();
        Ok(())
    }

    /// Reports events, waiting for the first one for `timeout`, or for ever. `events` then holds
    /// these and no others. Returns how many there are: none if the time is over, or a [`Waker`]
    /// was used.
    ///
    /// The stack must be driven by other threads meanwhile.
    pub fn wait(&self, events: &mut Events, timeout: Option<Duration>) -> usize {
        let until = timeout.map_or(WaitUntil::Never, WaitUntil::after);
        let shared = &*self.shared;
        loop {
            let (len, woken) = self.collect(events);
            if len > 0 || woken {
                return len;
            }
            let Ok(left) = until.left() else { return 0 };
            let key = shared.event.prepare();
            if shared.queue.is_empty() && !shared.woken.load(Ordering::Relaxed) {
                shared.event.wait(key, left);
            }
        }
    }

    /// As [`Poller::wait`], without waiting.
    pub fn events(&self, events: &mut Events) -> usize {
        self.collect(events).0
    }

    /// Ends a [`Poller::wait`] from any thread.
    pub fn waker(&self) -> Waker {
        Waker {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Collects what is there; returns how many events, and whether a waker was used.
    fn collect(&self, events: &mut Events) -> (usize, bool) {
        let shared = &*self.shared;
        events.list.clear();
        let mut again = shared.collector();
        #[cfg(target_os = "linux")]
        shared.descriptor.clear();
        // ORDERING: Acquire, pairs with the Release in `Waker::wake`.
        let woken = shared.woken.swap(false, Ordering::Acquire);
        // Those that come meanwhile are left to the next call.
        for _ in 0..shared.queue.len() {
            if events.list.len() == events.capacity {
                break;
            }
            let Some(queued) = shared.queue.pop() else {
                break;
            };
            match queued.collect() {
                Collected::Nothing => {}
                Collected::Once(event) => events.list.push(event),
                Collected::Again(event) => {
                    events.list.push(event);
                    again.push(queued);
                }
            }
        }
        again.drain(..).for_each(|queued| shared.queue.push(queued));
        #[cfg(target_os = "linux")]
        if !shared.queue.is_empty() {
            shared.descriptor.signal();
        }
        (events.list.len(), woken)
    }
}

impl PollerShared {
    fn collector(&self) -> MutexGuard<'_, Vec<Arc<Registration>>> {
        let collector = self.collector.lock();
        collector.unwrap_or_else(PoisonError::into_inner)
    }

    /// A registration has been queued.
    fn push(self: &Arc<Self>, registration: Arc<Registration>) {
        self.queue.push(registration);
        if !held::holds(self) {
            self.notify();
        }
    }

    /// Wakes those that wait: in the poller, or for its descriptor.
    fn notify(&self) {
        self.event.notify_all();
        #[cfg(target_os = "linux")]
        self.descriptor.signal();
    }
}

/// Ends a [`Poller::wait`] from any thread.
///
/// A use that comes before the call makes the call return at once. Several before one call count
/// as one.
#[derive(Clone, Debug)]
pub struct Waker {
    shared: Arc<PollerShared>,
}

impl Waker {
    /// Ends the wait that goes on, or else the next one.
    pub fn wake(&self) {
        // ORDERING: Release, pairs with the Acquire in `collect`: a thread that was woken sees what
        // it was woken for.
        self.shared.woken.store(true, Ordering::Release);
        self.shared.notify();
    }
}

/// A descriptor that is readable while something is queued; unused until it is asked for.
#[cfg(target_os = "linux")]
#[derive(Debug)]
struct Descriptor {
    event: EventFd,
    is_used: AtomicBool,
    is_signalled: AtomicBool,
}

#[cfg(target_os = "linux")]
impl Descriptor {
    fn new() -> io::Result<Self> {
        Ok(Descriptor {
            event: EventFd::new()?,
            is_used: AtomicBool::new(false),
            is_signalled: AtomicBool::new(false),
        })
    }

    /// Something was queued.
    fn signal(&self) {
        // ORDERING: AcqRel: Release, pairs with the Acquire in `clear`: what was queued before is
        // found by a collector that takes this signal back.
        if self.is_used.load(Ordering::Relaxed) && !self.is_signalled.swap(true, Ordering::AcqRel) {
            self.event.signal();
        }
    }

    /// What is queued is about to be looked at. The flag is lowered after the signal is taken: were
    /// it the other way round, a signal that is newer than the look could be taken. The flag may be
    /// raised by a thread that has not signalled yet, so it does not say that there is nothing to
    /// take.
    fn clear(&self) {
        if self.is_used.load(Ordering::Relaxed) {
            self.event.clear();
            // ORDERING: AcqRel: Acquire, pairs with the Release in `signal`.
            self.is_signalled.swap(false, Ordering::AcqRel);
        }
    }
}

/// Readable while there may be events. [`Poller::events`] fetches them and makes it unreadable,
/// unless some are left.
#[cfg(target_os = "linux")]
impl std::os::fd::AsFd for Poller {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        let PollerShared {
            queue,
            woken,
            descriptor,
            ..
        } = &*self.shared;
        if !descriptor.is_used.swap(true, Ordering::Relaxed) {
            // ORDERING: SeqCst fence, pairs with the one in `EventCount::notify_all`, which every
            // notification calls before it signals: either it finds that the descriptor is used, or
            // what was queued is found here.
            core::sync::atomic::fence(Ordering::SeqCst);
            if !queue.is_empty() || woken.load(Ordering::Relaxed) {
                descriptor.signal();
            }
        }
        descriptor.event.as_fd()
    }
}

/// The poller's descriptor in mio's: an event says that [`Poller::events`] is to be called.
#[cfg(all(target_os = "linux", feature = "mio"))]
impl mio::event::Source for Poller {
    fn register(
        &mut self,
        registry: &mio::Registry,
        token: mio::Token,
        interests: mio::Interest,
    ) -> io::Result<()> {
        use std::os::fd::{AsFd, AsRawFd};
        let descriptor = self.as_fd().as_raw_fd();
        mio::unix::SourceFd(&descriptor).register(registry, token, interests)
    }

    fn reregister(
        &mut self,
        registry: &mio::Registry,
        token: mio::Token,
        interests: mio::Interest,
    ) -> io::Result<()> {
        use std::os::fd::{AsFd, AsRawFd};
        let descriptor = self.as_fd().as_raw_fd();
        mio::unix::SourceFd(&descriptor).reregister(registry, token, interests)
    }

    fn deregister(&mut self, registry: &mio::Registry) -> io::Result<()> {
        use std::os::fd::{AsFd, AsRawFd};
        let descriptor = self.as_fd().as_raw_fd();
        mio::unix::SourceFd(&descriptor).deregister(registry)
    }
}
