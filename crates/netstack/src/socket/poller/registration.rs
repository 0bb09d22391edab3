//! The registration of one socket with one poller.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use dominoes::Watch;

use super::source::{Sight, Target};
use super::{Event, Interest, PollerShared, Token, Trigger};

/// A socket that is registered with a poller.
#[derive(Debug)]
pub(super) struct Registration {
    poller: Weak<PollerShared>,
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
/// It is in the poller's queue, once.
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
    /// Begins in the queue, so that its first check happens in the poller.
    pub(super) fn new(
        poller: Weak<PollerShared>,
        target: Target,
        token: Token,
        interest: Interest,
        trigger: Trigger,
    ) -> Arc<Registration> {
        let new = Registration {
            poller,
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
        core::ptr::eq(self.poller.as_ptr(), Arc::as_ptr(poller))
    }

    /// Must be called while no thread collects events.
    pub(super) fn modify(&self, token: Token, interest: Interest, trigger: Trigger) {
        let edge = if trigger == Trigger::Edge { EDGE } else { 0 };
        self.token.store(token.0, Ordering::Relaxed);
        self.interest.store(interest.0 | edge, Ordering::Relaxed);
        self.is_new.store(true, Ordering::Relaxed);
    }

    /// Queues it, unless it is queued or has ended.
    pub(super) fn enqueue(self: Arc<Self>) {
        // ORDERING: AcqRel: Release, pairs with the Acquire in `collect`.
        let queued =
            self.state
                .compare_exchange(ARMED, QUEUED, Ordering::AcqRel, Ordering::Relaxed);
        if queued.is_ok()
            && let Some(poller) = self.poller.upgrade()
        {
            poller.push(self);
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
        if let Some(poller) = self.poller.upgrade() {
            let collector = poller.collector();
            self.state.store(ENDED, Ordering::Relaxed);
            drop(collector);
        } else {
            self.state.store(ENDED, Ordering::Relaxed);
        }
        self.target.unwatch(&self.as_watch());
    }

    fn as_watch(self: &Arc<Self>) -> Arc<dyn Watch> {
        Arc::clone(self) as Arc<dyn Watch>
    }

    pub(super) fn target(&self) -> &Target {
        &self.target
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
