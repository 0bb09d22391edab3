//! The registration of one socket with one poller, or with a task.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task;

use dominoes::Watch;

use super::source::{Sight, Target};
use super::{Event, Interest, PollerShared, Token, Trigger, held};

/// The recipient of a socket's news.
#[derive(Debug)]
pub(super) enum Recipient {
    Poller(Weak<PollerShared>),
    /// A task is woken once. Each of its registrations sets the waker again.
    Task(Mutex<Option<task::Waker>>),
}

/// A socket that is registered.
#[derive(Debug)]
pub(super) struct Registration {
    recipient: Recipient,
    target: Target,
    token: AtomicUsize,
    /// [`Interest`], and [`EDGE`].
    interest: AtomicU8,
    /// [`ARMED`], [`QUEUED`] or [`ENDED`].
    state: AtomicU8,
    /// Whether to report the socket if it is ready, even without news.
    is_new: AtomicBool,
    seen: Seen,
}

/// The state that a poller saw at its last check. Values only grow, except `is_writable`.
#[derive(Debug, Default)]
struct Seen {
    arrived: AtomicU64,
    status: AtomicU32,
    shortages: AtomicU64,
    is_writable: AtomicBool,
}

/// A further bit, beside [`Interest`].
const EDGE: u8 = 4;

/// A notifier that has news will queue it.
const ARMED: u8 = 0;
/// It is in the poller's queue, once; or no task waits.
const QUEUED: u8 = 1;
/// Its registration has ended.
const ENDED: u8 = 2;

/// The result of a collection.
pub(super) enum Collected {
    Nothing,
    /// An event; the registration is armed.
    Once(Event),
    /// An event; the registration is still queued, to be checked again.
    Again(Event),
}

impl Registration {
    /// Begins in the queue, so that its first check happens in the poller, or when a task
    /// [waits](Self::wait).
    pub(super) fn new(
        recipient: Recipient,
        target: Target,
        token: Token,
        interest: Interest,
        trigger: Trigger,
    ) -> Arc<Registration> {
        let new = Registration {
            recipient,
            target,
            token: AtomicUsize::new(0),
            interest: AtomicU8::new(0),
            state: AtomicU8::new(QUEUED),
            is_new: AtomicBool::new(true),
            seen: Seen::default(),
        };
        new.modify(token, interest, trigger);
        Arc::new(new)
    }

    /// Whether it belongs to this poller.
    pub(super) fn is_with(&self, poller: &Arc<PollerShared>) -> bool {
        matches!(&self.recipient, Recipient::Poller(own) if own.as_ptr() == Arc::as_ptr(poller))
    }

    /// Whether it belongs to tasks that wait for this.
    pub(super) fn is_for_tasks(&self, interest: Interest) -> bool {
        let own = self.interest.load(Ordering::Relaxed) & !EDGE;
        matches!(self.recipient, Recipient::Task(_)) && own == interest.0
    }

    /// Lets a task wait in place of the one that waits, and returns the waker of that one. The
    /// caller must wake the new one if this returns true. Two threads must not call this at the
    /// same time.
    pub(super) fn wait(
        self: &Arc<Self>,
        waker: task::Waker,
        trigger: Trigger,
    ) -> (Option<task::Waker>, bool) {
        let edge = if trigger == Trigger::Edge { EDGE } else { 0 };
        let interest = self.interest.load(Ordering::Relaxed) & !EDGE;
        self.interest.store(interest | edge, Ordering::Relaxed);
        // Before it is armed, so that a notifier finds it. If it is armed already, either a
        // notifier that has news finds this waker, or there is no news.
        let replaced = self.swap_waker(Some(waker));
        (replaced, !matches!(self.collect(), Collected::Nothing))
    }

    /// Wakes the task that waits, if any.
    pub(super) fn wake(&self) {
        let Some(waker) = self.swap_waker(None) else {
            return;
        };
        if self.interest.load(Ordering::Relaxed) & EDGE != 0 && self.target.is_resolved() {
            // What the task can find when it is woken is no news afterwards.
            self.seen.store(&self.target.see());
        }
        held::wake(waker);
    }

    fn swap_waker(&self, new: Option<task::Waker>) -> Option<task::Waker> {
        let Recipient::Task(waker) = &self.recipient else {
            return None;
        };
        let mut waker = waker.lock().unwrap_or_else(PoisonError::into_inner);
        core::mem::replace(&mut *waker, new)
    }

    fn poller(&self) -> Option<Arc<PollerShared>> {
        match &self.recipient {
            Recipient::Poller(poller) => poller.upgrade(),
            Recipient::Task(_) => None,
        }
    }

    /// Must be called while no thread collects events.
    pub(super) fn modify(&self, token: Token, interest: Interest, trigger: Trigger) {
        let edge = if trigger == Trigger::Edge { EDGE } else { 0 };
        self.token.store(token.0, Ordering::Relaxed);
        self.interest.store(interest.0 | edge, Ordering::Relaxed);
        self.is_new.store(true, Ordering::Relaxed);
    }

    /// Queues it, unless it is queued or has ended; or wakes its task.
    pub(super) fn enqueue(self: Arc<Self>) {
        // ORDERING: AcqRel: Release, pairs with the Acquire in `collect`.
        let queued =
            self.state
                .compare_exchange(ARMED, QUEUED, Ordering::AcqRel, Ordering::Relaxed);
        if queued.is_ok() {
            match self.poller() {
                Some(poller) => poller.push(self),
                None => self.wake(),
            }
        }
    }

    /// A call of the application learned that the connection is established: from now on news
    /// comes from another place.
    pub(super) fn opened(self: &Arc<Self>) {
        Arc::clone(self).enqueue();
    }

    /// Ends the registration.
    pub(super) fn end(self: &Arc<Self>) {
        // A collector that holds it has checked already, and reports it in a call that has begun.
        if let Some(poller) = self.poller() {
            let collector = poller.collector();
            self.state.store(ENDED, Ordering::Relaxed);
            drop(collector);
        } else {
            self.state.store(ENDED, Ordering::Relaxed);
        }
        self.target.unwatch(&self.as_watch());
        drop(self.swap_waker(None));
    }

    fn as_watch(self: &Arc<Self>) -> Arc<dyn Watch> {
        Arc::clone(self) as Arc<dyn Watch>
    }

    /// Collects the event to report, after the poller took it from the queue.
    pub(super) fn collect(self: &Arc<Self>) -> Collected {
        let wanted = self.interest.load(Ordering::Relaxed);
        if wanted & EDGE != 0 {
            return self.collect_edge(Interest(wanted & !EDGE));
        }
        let interest = Interest(wanted);
        // While the socket is ready the registration need not be armed, so its news costs
        // nothing.
        if self.state.load(Ordering::Relaxed) == ENDED {
            return Collected::Nothing;
        }
        self.target.resolve();
        if let Some(event) = self.event(&self.target.see(), interest) {
            return Collected::Again(event);
        }
        if !self.arm() {
            return Collected::Nothing;
        }
        match self.event(&self.target.see(), interest) {
            None => Collected::Nothing,
            // ORDERING: AcqRel, as in `enqueue`.
            Some(event) => match self.state.compare_exchange(
                ARMED,
                QUEUED,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => Collected::Again(event),
                // It is queued again, and will be reported in its turn.
                Err(_) => Collected::Nothing,
            },
        }
    }

    fn collect_edge(self: &Arc<Self>, interest: Interest) -> Collected {
        let is_new = self.is_new.swap(false, Ordering::Relaxed);
        let was_writable = self.seen.is_writable.swap(false, Ordering::Relaxed);
        if !self.arm() {
            return Collected::Nothing;
        }
        let sight = self.target.see();
        let is_due = is_new || self.is_news(&sight, interest, was_writable);
        self.seen.store(&sight);
        match self.event(&sight, interest) {
            Some(event) if is_due => Collected::Once(event),
            _ => Collected::Nothing,
        }
    }

    /// Arms it; the caller must check the socket next. Returns false if it has ended.
    fn arm(self: &Arc<Self>) -> bool {
        // ORDERING: AcqRel: Acquire, pairs with the Release in `enqueue`.
        let armed = self
            .state
            .compare_exchange(QUEUED, ARMED, Ordering::AcqRel, Ordering::Relaxed);
        if armed.is_ok() {
            self.target.watch(&self.as_watch());
        }
        armed.is_ok()
    }

    /// The event for a state.
    fn event(&self, sight: &Sight, interest: Interest) -> Option<Event> {
        let event = Event {
            token: Token(self.token.load(Ordering::Relaxed)),
            readable: sight.readable && interest.is_readable(),
            writable: sight.writable && interest.is_writable(),
            read_closed: sight.read_closed,
            write_closed: sight.write_closed,
            error: sight.error,
        };
        (event.readable || event.writable).then_some(event)
    }

    /// Whether a state contains anything that the poller has not seen.
    fn is_news(&self, sight: &Sight, interest: Interest, was_writable: bool) -> bool {
        let Seen {
            arrived,
            status,
            shortages,
            ..
        } = &self.seen;
        let read = interest.is_readable() && sight.arrived != arrived.load(Ordering::Relaxed);
        let room = interest.is_writable()
            && sight.writable
            && (!was_writable || sight.shortages != shortages.load(Ordering::Relaxed));
        read || room || sight.status != status.load(Ordering::Relaxed)
    }
}

impl Seen {
    fn store(&self, sight: &Sight) {
        self.arrived.store(sight.arrived, Ordering::Relaxed);
        // Bits that can be reported again count as news the next time.
        let lasting = sight.status & !Sight::PASSING;
        self.status.store(lasting, Ordering::Relaxed);
        // A shortage ends when there is room.
        if sight.writable {
            self.shortages.store(sight.shortages, Ordering::Relaxed);
            self.is_writable.store(true, Ordering::Relaxed);
        }
    }
}

impl Watch for Registration {
    fn is_due(&self) -> bool {
        if self.state.load(Ordering::Relaxed) != ARMED || !self.target.is_resolved() {
            return true;
        }
        let wanted = self.interest.load(Ordering::Relaxed);
        let interest = Interest(wanted & !EDGE);
        let sight = self.target.see();
        let was_writable = self.seen.is_writable.load(Ordering::Relaxed);
        self.event(&sight, interest).is_some()
            && (wanted & EDGE == 0 || self.is_news(&sight, interest, was_writable))
    }

    fn fire(self: Arc<Self>) {
        self.enqueue();
    }
}
