//! Readiness: one thread waits for any number of sockets.
//!
//! A [`Poller`] reports which of its registered sockets are ready, that is, have a call that
//! would not wait. It reports [`Event`]s, each with the [`Token`] of the socket's registration.
//!
//! - *Readable*: a read returns bytes, the end of the stream or an error; an accept returns a
//!   connection; a datagram, an echo reply, or an error that the network reported has arrived.
//! - *Writable*: a write accepts bytes or returns an error, and at least a third of the room is
//!   free, so that a program does not write in small pieces; a connection that is being opened is
//!   established or has failed.
//!
//! With [`Trigger::Level`] every call reports an event while the socket is ready. With
//! [`Trigger::Edge`] a call reports only what is new since the last report: bytes or connections
//! that arrive, the end of either direction, or room after a write that found too little of it.
//! Then read until [`SocketError::WouldBlock`], and write until a write accepts less than it is
//! given. Both report a socket that is ready when it is registered. As with any poller an event
//! may be out of date when it is read, so calls should be nonblocking.
//!
//! Dropping a socket ends its registration. A clone is registered separately, with a separate
//! token; all clones report an arrival, and the first that takes it gets it. While one of them
//! has borrowed bytes in place, or has reserved room, the others are still reported, although
//! their calls would find nothing. With [`Trigger::Edge`] they are reported again when the first
//! returns the bytes or room. A socket costs its stack nothing while no poller waits for it, or
//! while its news is not fetched yet.
//!
//! [`Poller::wait`] waits for a stack on threads. A program that drives a stack by hand uses
//! [`Poller::events`], which never sleeps. On Linux a poller is also a descriptor that is
//! readable while there are events, for programs that sleep in `epoll`, `poll`, or mio (feature
//! `mio`).
//!
//! On Linux a poller also watches descriptors of the kernel ([`Poller::register_descriptor`]).
//!
//! A future needs no poller: [`Source::register_waker`] registers the waker of its task
//! ([`std::task::Waker`]) with the socket, so every executor can run it.
//!
//! ```
//! use dominoes_drivers::memory::{self, MemoryConfig};
//! use dominoes_netstack::Stack;
//! use dominoes_netstack::poller::{Interest, Poller, Token, Trigger};
//!
//! let (left, right) = memory::pair(MemoryConfig::default());
//! let server = Stack::builder("10.0.0.1/24").start(left)?;
//! let client = Stack::builder("10.0.0.2/24").start(right)?;
//! let listener = server.listen(7, 16)?;
//!
//! let poller = Poller::new()?;
//! poller.register(&listener, Token(7), Interest::READABLE, Trigger::Level)?;
//! let _connection = client.connect("10.0.0.1:7")?;
//! let mut events = Vec::with_capacity(64);
//! poller.wait(&mut events, None);
//! assert!(events.iter().all(|event| event.token == Token(7) && event.readable));
//! let (_stream, _) = listener.try_accept()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How it works
//! A registration is *armed* or *queued*. An armed registration is on the list of the event count
//! on which blocked calls of the socket sleep ([`EventCount::watch`]). So a notification costs a
//! segment the same instructions with or without a poller, unless there is news for the poller. A
//! notifier that finds an armed registration checks for news, and if there is some, moves the
//! registration to the poller's queue. A call of the poller takes registrations from the queue,
//! arms them, checks their sockets, and reports. With [`Trigger::Level`] a registration stays
//! queued until a check finds its socket not ready.
//!
//! *No news is lost.* A registration is armed before the check, so by the argument of
//! [`EventCount`] either the check sees a change or its notifier sees the registration. The
//! notifier compares with the last seen state, which the poller stores after its check: news that
//! the check missed differs from it. Writability can come and go, so "not writable" is stored
//! before the check.
//!
//! [`SocketError::WouldBlock`]: crate::SocketError::WouldBlock

#[cfg(target_os = "linux")]
mod descriptors;
#[doc(hidden)]
pub mod direct;
mod held;
mod registration;
mod source;

#[cfg(target_os = "linux")]
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use crossbeam_queue::SegQueue;
use dominoes::EventCount;
#[cfg(target_os = "linux")]
use dominoes_drivers::{Descriptors, EventFd};

use self::registration::{Collected, Recipient, Registration};
use super::WaitUntil;
use crate::io::sleep::FULL;
use crate::io::world::World;

pub(crate) use self::held::hold_wakeups;
pub(super) use self::source::Sealed;
pub(super) use self::source::{Registered, Target, Watched};

pub use self::source::Source;

/// A number by which a program identifies a socket; several sockets may have the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub usize);

/// The events that a registration waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest(u8);

impl Interest {
    /// Bytes, datagrams, connections to accept, and their end.
    pub const READABLE: Interest = Interest(1);
    /// Room to write, a connection that is established, and the end of writing.
    pub const WRITABLE: Interest = Interest(2);
    /// Both.
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
    /// While the socket is ready.
    #[default]
    Level,
    /// Once for each change.
    Edge,
}

/// A socket is ready. Sockets that share a [`Token`] have separate events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// The token of the socket's registration.
    pub token: Token,
    /// A read or an accept would not wait. Set only for a registration that waits for it.
    pub readable: bool,
    /// A write would not wait. Set only for a registration that waits for it.
    pub writable: bool,
    /// The peer has sent the end of the stream, or the connection is closed. Bytes before it may
    /// not be read yet.
    pub read_closed: bool,
    /// No more bytes can be written.
    pub write_closed: bool,
    /// The connection ended early, or the network reported an error; a call returns it.
    pub error: bool,
}

/// Waits for sockets of any number of stacks. Any thread may call any function at any time.
#[derive(Debug)]
pub struct Poller {
    shared: Arc<PollerShared>,
}

/// The state that registrations and wakers refer to.
#[derive(Debug)]
struct PollerShared {
    /// Registrations that may have something to report.
    queue: SegQueue<Arc<Registration>>,
    /// Threads sleep here.
    event: EventCount,
    /// The group of the first registered socket.
    world: OnceLock<Weak<World>>,
    /// Whether sockets of other groups are registered, too.
    has_several: AtomicBool,
    /// A waker was used.
    woken: AtomicBool,
    /// Locked while events are collected. Holds the registrations that stay queued until the end
    /// of the collection.
    collector: Mutex<Vec<Arc<Registration>>>,
    #[cfg(target_os = "linux")]
    descriptor: Descriptor,
    /// The registered descriptors of the kernel.
    #[cfg(target_os = "linux")]
    descriptors: OnceLock<Descriptors>,
    /// Whether the next collection begins with descriptors: they and sockets take turns.
    #[cfg(target_os = "linux")]
    begins_with_descriptors: AtomicBool,
}

/// Returns the view of a socket if it can be ready in a requested way.
fn allowed(registered: Registered<'_>, interest: Interest) -> io::Result<Registered<'_>> {
    if registered.target.allows(interest) {
        Ok(registered)
    } else {
        Err(io::ErrorKind::InvalidInput.into())
    }
}

impl Poller {
    /// Creates a poller without sockets.
    ///
    /// # Errors
    /// If the process has no descriptor left (Linux).
    pub fn new() -> io::Result<Poller> {
        Ok(Poller {
            shared: Arc::new(PollerShared {
                queue: SegQueue::new(),
                event: EventCount::new(),
                world: OnceLock::new(),
                has_several: AtomicBool::new(false),
                woken: AtomicBool::new(false),
                collector: Mutex::default(),
                #[cfg(target_os = "linux")]
                descriptor: Descriptor::new()?,
                #[cfg(target_os = "linux")]
                descriptors: OnceLock::new(),
                #[cfg(target_os = "linux")]
                begins_with_descriptors: AtomicBool::new(true),
            }),
        })
    }

    /// Registers a socket. If it is ready, the next call reports it.
    ///
    /// A stream and either of its halves may be registered at the same time.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if it is registered with this poller;
    /// [`io::ErrorKind::InvalidInput`] if it cannot be ready in any requested way: a writing half
    /// is never readable, and neither a listener nor an echo socket is writable.
    pub fn register(
        &self,
        socket: &impl Source,
        token: Token,
        interest: Interest,
        trigger: Trigger,
    ) -> io::Result<()> {
        let Registered { target, watched } = allowed(socket.registered(), interest)?;
        let mut list = watched.lock();
        if list.iter().any(|one| one.is_with(&self.shared)) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let world = Arc::downgrade(target.world());
        if !Weak::ptr_eq(self.shared.world.get_or_init(|| world.clone()), &world) {
            self.shared.has_several.store(true, Ordering::Relaxed);
        }
        let poller = Recipient::Poller(Arc::downgrade(&self.shared));
        let new = Registration::new(poller, target, token, interest, trigger);
        list.push(Arc::clone(&new));
        drop(list);
        self.shared.push(new);
        Ok(())
    }

    /// Changes the interest, trigger and token of a registered socket. If it is ready, the next
    /// call reports it.
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
        let Registered { watched, .. } = allowed(socket.registered(), interest)?;
        let list = watched.lock();
        let found = list.iter().find(|one| one.is_with(&self.shared));
        let found = found.ok_or(io::ErrorKind::NotFound)?;
        let collector = self.shared.collector();
        found.modify(token, interest, trigger);
        drop(collector);
        Arc::clone(found).enqueue();
        Ok(())
    }

    /// Ends a registration. No later call reports the socket.
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

    /// Reports events; waits for the first one for `timeout`, or without limit. Replaces the
    /// contents of `events`, up to its capacity (64 if it has none); the next call reports events
    /// that do not fit. Returns the number of events: 0 if the time is over, or if a [`Waker`] was
    /// used.
    ///
    /// The stack must run on threads. If it chooses their number, all sockets are of this stack,
    /// and no other thread waits for one, this thread does the work of the stack's thread
    /// meanwhile, so no other thread need be woken.
    pub fn wait(&self, events: &mut Vec<Event>, timeout: Option<Duration>) -> usize {
        let until = timeout.map_or(WaitUntil::Never, WaitUntil::after);
        let shared = &*self.shared;
        let world = shared.world();
        // What the thread has written since the last call leaves now.
        if let Some(driven) = world.as_ref().and_then(|world| world.driven()) {
            driven.pass();
        }
        loop {
            let (len, woken) = self.collect(events);
            if len > 0 || woken {
                return len;
            }
            let Ok(left) = until.left() else { return 0 };
            let beside = shared.beside();
            // Another thread may register the first descriptor meanwhile.
            let mut is_over = || shared.has_news() || shared.beside().is_some() != beside.is_some();
            let world = world.as_deref();
            if world.is_some_and(|world| {
                until.drive(world, Some(&shared.event), beside, Some(FULL), &mut is_over)
            }) {
                continue;
            }
            let _waits = world.map(World::wait_without);
            if shared.sleep_on_descriptors(until) {
                continue;
            }
            let key = shared.event.prepare();
            if !is_over() {
                shared.event.wait(key, left);
            }
        }
    }

    /// As [`Poller::wait`], but does not wait.
    pub fn events(&self, events: &mut Vec<Event>) -> usize {
        self.collect(events).0
    }

    /// Ends a [`Poller::wait`] from any thread.
    pub fn waker(&self) -> Waker {
        Waker {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Collects the current events; returns their number, and whether a waker was used.
    fn collect(&self, events: &mut Vec<Event>) -> (usize, bool) {
        let shared = &*self.shared;
        events.clear();
        if events.capacity() == 0 {
            events.reserve(64);
        }
        let capacity = events.capacity();
        let mut again = shared.collector();
        #[cfg(target_os = "linux")]
        shared.descriptor.clear();
        // ORDERING: Acquire, pairs with the Release in `Waker::wake`.
        let woken = shared.woken.swap(false, Ordering::Acquire);
        #[cfg(target_os = "linux")]
        let descriptors_first = shared
            .begins_with_descriptors
            .fetch_xor(true, Ordering::Relaxed);
        #[cfg(target_os = "linux")]
        if descriptors_first {
            shared.collect_descriptors(capacity, events);
        }
        // Leaves registrations that are queued meanwhile to the next call.
        for _ in 0..shared.queue.len() {
            if events.len() == capacity {
                break;
            }
            let Some(queued) = shared.queue.pop() else {
                break;
            };
            match queued.collect() {
                Collected::Nothing => {}
                Collected::Once(event) => events.push(event),
                Collected::Again(event) => {
                    events.push(event);
                    again.push(queued);
                }
            }
        }
        again.drain(..).for_each(|queued| shared.queue.push(queued));
        #[cfg(target_os = "linux")]
        if !descriptors_first && events.len() < capacity {
            let room = capacity - events.len();
            shared.collect_descriptors(room, events);
        }
        #[cfg(target_os = "linux")]
        if !shared.queue.is_empty() {
            shared.descriptor.signal();
        }
        (events.len(), woken)
    }
}

/// Without descriptors of the kernel.
#[cfg(not(target_os = "linux"))]
impl PollerShared {
    fn beside(&self) -> Option<dominoes_drivers::Beside<'_>> {
        None
    }

    fn sleep_on_descriptors(&self, _: WaitUntil) -> bool {
        false
    }
}

impl PollerShared {
    /// The group of the registered sockets, if it is one.
    fn world(&self) -> Option<Arc<World>> {
        let has_one = !self.has_several.load(Ordering::Relaxed);
        self.world.get().filter(|_| has_one)?.upgrade()
    }

    /// Whether a registration is queued, or a waker was used.
    fn has_news(&self) -> bool {
        !self.queue.is_empty() || self.woken.load(Ordering::Relaxed)
    }

    fn collector(&self) -> MutexGuard<'_, Vec<Arc<Registration>>> {
        let collector = self.collector.lock();
        collector.unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a registration.
    fn push(self: &Arc<Self>, registration: Arc<Registration>) {
        self.queue.push(registration);
        if !held::holds(self) {
            self.notify();
        }
    }

    /// Wakes threads that wait in the poller or for its descriptor.
    fn notify(&self) {
        self.event.notify_all();
        #[cfg(target_os = "linux")]
        self.descriptor.signal();
    }
}

/// Ends a [`Poller::wait`] from any thread.
///
/// A use before the call makes the call return at once. Several uses before one call count as
/// one.
#[derive(Clone, Debug)]
pub struct Waker {
    shared: Arc<PollerShared>,
}

impl Waker {
    /// Ends the current wait, or else the next one.
    pub fn wake(&self) {
        // ORDERING: Release, pairs with the Acquire in `collect`: a woken thread sees the reason
        // for which it was woken.
        self.shared.woken.store(true, Ordering::Release);
        self.shared.notify();
    }
}

/// A descriptor that is readable while a registration is queued; unused until a program asks for
/// it.
#[cfg(target_os = "linux")]
#[derive(Debug)]
struct Descriptor {
    event: EventFd,
    is_used: AtomicBool,
    is_signalled: AtomicBool,
    /// How many threads sleep on it in [`Poller::wait`].
    sleepers: AtomicUsize,
}

#[cfg(target_os = "linux")]
impl Descriptor {
    fn new() -> io::Result<Self> {
        Ok(Descriptor {
            event: EventFd::new()?,
            is_used: AtomicBool::new(false),
            is_signalled: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
        })
    }

    /// Signals that a registration was queued.
    fn signal(&self) {
        // ORDERING: AcqRel: Release, pairs with the Acquire in `clear`: a collector that clears
        // this signal finds the registration that was queued before.
        let is_used =
            self.is_used.load(Ordering::Relaxed) || self.sleepers.load(Ordering::Relaxed) > 0;
        if is_used && !self.is_signalled.swap(true, Ordering::AcqRel) {
            self.event.signal();
        }
    }

    /// Clears the signal, if a program uses it, before the queue is checked. The signal is cleared before the flag: in
    /// the other order, a signal that is newer than the check could be cleared. A thread may
    /// raise the flag before it signals, so the flag does not mean that there is a signal to
    /// clear.
    fn clear(&self) {
        if self.is_used.load(Ordering::Relaxed) {
            self.reset();
        }
    }
}

#[cfg(target_os = "linux")]
impl Descriptor {
    fn reset(&self) {
        self.event.clear();
        // ORDERING: AcqRel: Acquire, pairs with the Release in `signal`.
        self.is_signalled.swap(false, Ordering::AcqRel);
    }
}

/// Readable while there may be events of sockets; registered descriptors do not show. [`Poller::events`] fetches them and makes it unreadable,
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
            // notification calls before it signals: either the notification finds the descriptor
            // in use, or this check finds the queued registration.
            core::sync::atomic::fence(Ordering::SeqCst);
            if !queue.is_empty() || woken.load(Ordering::Relaxed) {
                descriptor.signal();
            }
        }
        descriptor.event.as_fd()
    }
}

/// Registers the poller's descriptor with mio: an event means that the program should call
/// [`Poller::events`].
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
