//! Chooses the thread that drives a worker: its own, or a thread of the application that waits.
//!
//! One thread at a time has the worker. The worker's own thread is the *deputy*: it drives when no
//! thread of the application does.
//!
//! - *A thread that waits* takes the worker, also from the deputy, which returns it after its turn.
//!   It returns the worker when it need not wait any more.
//! - *The deputy* takes the worker if that was unused for [`AWAY`]: the application computes, or
//!   waits for something else.
//! - *Several threads* that wait at a time cannot all drive: the deputy alone drives for
//!   [`CONTENDED`]. It also does while one thread waits that could not take the worker.
//! - *A thread that works on the bytes* of a stream would do its work and the stack's one after
//!   the other. If the stack had no pause in [`BUSY`] waits, the deputy drives for [`CONTENDED`].

use core::sync::atomic::Ordering;

#[cfg(netstack_loom)]
use loom::sync::{Condvar, Mutex, MutexGuard, atomic::AtomicBool};
use std::sync::PoisonError;
#[cfg(not(netstack_loom))]
use std::sync::{Condvar, Mutex, MutexGuard, atomic::AtomicBool};

use crate::time::{Duration, Instant};

/// After this time without a turn, the deputy drives.
const AWAY: Duration = Duration::from_millis(2);
/// The time for which the deputy drives after a second thread began to wait.
const CONTENDED: Duration = Duration::from_millis(100);
/// After so many waits of a thread in which the stack had no pause, the deputy drives.
const BUSY: usize = 16;
/// How long a thread waits for the deputy to return the worker.
const PATIENCE: Duration = Duration::from_millis(5);

/// The thread that has the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Nobody,
    Deputy,
    /// A thread of the application.
    Waiter,
    /// None ever again: the worker has ended, or a panic destroyed it.
    Gone,
}

/// What the deputy does next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due<W> {
    /// It drives.
    Drive(W),
    /// It looks again after this time, or, without one, when the worker is returned.
    Wait(Option<Duration>),
    /// It ends.
    End,
}

/// A worker, and the thread that has it.
#[derive(Debug)]
pub(super) struct Handover<W> {
    place: Mutex<Place<W>>,
    /// Notified when the worker is returned.
    returned: Condvar,
    /// Whether the thread that has the worker must return it.
    is_wanted: AtomicBool,
}

#[derive(Debug)]
struct Place<W> {
    /// The worker, while no thread has it.
    worker: Option<W>,
    holder: Holder,
    /// When it was returned last.
    returned_at: Instant,
    /// How many threads wait without driving.
    waiting: usize,
    contended_until: Instant,
    /// How many waits in a row had no pause.
    busy: usize,
    /// How many threads wait for the deputy to return the worker.
    takers: usize,
    /// Whether the deputy sleeps until the worker is returned.
    deputy_sleeps: bool,
    /// Whether the stack ends.
    is_ending: bool,
}

impl<W> Place<W> {
    /// Whether only the deputy may drive.
    fn is_contended(&self, now: Instant) -> bool {
        self.waiting > 0 || now < self.contended_until || self.is_ending
    }
}

impl<W> Handover<W> {
    /// The deputy has the worker.
    pub(super) fn new() -> Self {
        Handover {
            place: Mutex::new(Place {
                worker: None,
                holder: Holder::Deputy,
                returned_at: Instant::ZERO,
                waiting: 0,
                contended_until: Instant::ZERO,
                busy: 0,
                takers: 0,
                deputy_sleeps: false,
                is_ending: false,
            }),
            returned: Condvar::new(),
            is_wanted: AtomicBool::new(false),
        }
    }

    fn place(&self) -> MutexGuard<'_, Place<W>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_wanted(&self, is_wanted: bool) {
        // ORDERING: Relaxed: a thread that sleeps is woken after this, which orders it.
        self.is_wanted.store(is_wanted, Ordering::Relaxed);
    }

    /// Whether the thread that has the worker must return it.
    #[inline]
    pub(super) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }

    /// Takes the worker for a thread that waits, unless another one has it. If the deputy has it,
    /// calls `wake`, and waits for its return.
    pub(super) fn take(&self, now: Instant, wake: impl FnOnce()) -> Option<W> {
        let mut place = self.place();
        if place.is_contended(now) {
            return None;
        }
        if place.holder == Holder::Deputy {
            place.takers += 1;
            self.set_wanted(true);
            wake();
            let deputy_has_it = |place: &mut Place<W>| place.holder == Holder::Deputy;
            place = self.wait_while(place, deputy_has_it);
            place.takers -= 1;
            if place.takers == 0 && place.holder == Holder::Deputy {
                self.set_wanted(false);
            }
        }
        if place.holder != Holder::Nobody || place.waiting > 0 {
            return None;
        }
        place.holder = Holder::Waiter;
        place.worker.take()
    }

    /// Takes the worker for a thread that waits, if no thread has it and the deputy does not want
    /// it.
    pub(super) fn take_unused(&self, now: Instant) -> Option<W> {
        let mut place = self.place();
        if place.holder != Holder::Nobody || place.is_contended(now) {
            return None;
        }
        place.holder = Holder::Waiter;
        place.worker.take()
    }

    #[cfg(not(netstack_loom))]
    fn wait_while<'a>(
        &self,
        place: MutexGuard<'a, Place<W>>,
        condition: impl FnMut(&mut Place<W>) -> bool,
    ) -> MutexGuard<'a, Place<W>> {
        let waited = self
            .returned
            .wait_timeout_while(place, PATIENCE.into(), condition);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// loom has no time, so here patience is endless.
    #[cfg(netstack_loom)]
    fn wait_while<'a>(
        &self,
        mut place: MutexGuard<'a, Place<W>>,
        mut condition: impl FnMut(&mut Place<W>) -> bool,
    ) -> MutexGuard<'a, Place<W>> {
        let _ = PATIENCE;
        while condition(&mut place) {
            place = self.wait(place, None);
        }
        place
    }

    fn wait<'a>(
        &self,
        place: MutexGuard<'a, Place<W>>,
        timeout: Option<Duration>,
    ) -> MutexGuard<'a, Place<W>> {
        match timeout {
            None => (self.returned.wait(place)).unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => {
                let waited = self.returned.wait_timeout(place, timeout.into());
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }

    /// Returns the worker. Gives it back to the caller if the stack ends.
    pub(super) fn put(&self, worker: W, now: Instant) -> Option<W> {
        let mut place = self.place();
        self.set_wanted(false);
        place.holder = Holder::Nobody;
        place.returned_at = now;
        place.worker = Some(worker);
        let is_awaited = core::mem::take(&mut place.deputy_sleeps)
            || place.waiting > 0
            || place.takers > 0
            || place.is_ending;
        let unused = place.is_ending.then(|| place.worker.take()).flatten();
        drop(place);
        if is_awaited {
            self.returned.notify_all();
        }
        unused
    }

    /// Notes whether the stack had a pause while a thread that waits had the worker.
    pub(super) fn note_pause(&self, has_pause: bool, now: Instant) {
        let mut place = self.place();
        place.busy = if has_pause { 0 } else { place.busy + 1 };
        if place.busy >= BUSY {
            place.busy = 0;
            place.contended_until = now + CONTENDED;
            drop(place);
            self.returned.notify_all();
        }
    }

    /// Notes that the worker is gone with the thread that had it.
    pub(super) fn lose(&self) {
        self.place().holder = Holder::Gone;
        self.returned.notify_all();
    }

    /// Notes that a thread waits without driving. Returns whether a thread that waits has the
    /// worker, and must be woken.
    pub(super) fn begin_wait(&self, now: Instant) -> bool {
        let mut place = self.place();
        if place.waiting > 0 || place.holder == Holder::Waiter {
            place.contended_until = now + CONTENDED;
        }
        place.waiting += 1;
        match place.holder {
            Holder::Waiter => self.set_wanted(true),
            Holder::Nobody => self.returned.notify_all(),
            Holder::Deputy | Holder::Gone => {}
        }
        place.holder == Holder::Waiter
    }

    /// Ends [`begin_wait`](Self::begin_wait).
    pub(super) fn end_wait(&self) {
        self.place().waiting -= 1;
    }

    /// What the deputy does, which has returned the worker.
    fn due(place: &mut Place<W>, now: Instant) -> Due<W> {
        let unused = now.since(place.returned_at);
        match place.holder {
            Holder::Gone => Due::End,
            _ if place.is_ending => Due::End,
            Holder::Nobody if place.is_contended(now) || unused >= AWAY => {
                place.holder = Holder::Deputy;
                place.worker.take().map_or(Due::End, Due::Drive)
            }
            Holder::Nobody => {
                let left = AWAY.as_nanos() - unused.as_nanos();
                Due::Wait(Some(Duration::from_nanos(left)))
            }
            // The threads that wait are busy: the next return is near.
            Holder::Waiter if unused < AWAY.times(8) => Due::Wait(Some(AWAY)),
            Holder::Waiter | Holder::Deputy => {
                place.deputy_sleeps = true;
                Due::Wait(None)
            }
        }
    }

    /// Waits as the deputy until it has to drive. `None`: the worker is gone, or the stack ends.
    pub(super) fn stand_in(&self, clock: impl Fn() -> Instant) -> Option<W> {
        let mut place = self.place();
        loop {
            match Self::due(&mut place, clock()) {
                Due::Drive(worker) => return Some(worker),
                Due::Wait(timeout) => place = self.wait(place, timeout),
                Due::End => return None,
            }
        }
    }

    /// Ends the deputy, and keeps the worker from others.
    pub(super) fn end(&self) {
        let mut place = self.place();
        place.is_ending = true;
        self.set_wanted(true);
        drop(place);
        self.returned.notify_all();
    }

    /// After [`end`](Self::end): waits until no thread that waits has the worker, and takes it.
    pub(super) fn take_last(&self) -> Option<W> {
        let mut place = self.place();
        while place.holder == Holder::Waiter {
            place = self.wait(place, None);
        }
        place.worker.take()
    }
}

#[cfg(all(test, not(netstack_loom)))]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1_000)
    }

    /// Returned by the deputy at 0.
    fn unused() -> Handover<u8> {
        let handover = Handover::new();
        assert_eq!(handover.put(7, at(0)), None);
        handover
    }

    fn due(handover: &Handover<u8>, micros: u64) -> Due<u8> {
        Handover::due(&mut handover.place(), at(micros))
    }

    fn wait(micros: u64) -> Due<u8> {
        Due::Wait(Some(Duration::from_micros(micros)))
    }

    #[test]
    fn one_thread_at_a_time_has_the_worker() {
        let handover = Handover::new();
        assert_eq!(handover.take_unused(at(0)), None, "the deputy has it");
        handover.put(7, at(0));
        assert_eq!(handover.take_unused(at(0)), Some(7));
        assert_eq!(handover.take_unused(at(0)), None);
        assert_eq!(handover.take(at(0), || panic!("no deputy to wake")), None);
        assert_eq!(due(&handover, 0), wait(2_000));
    }

    #[test]
    fn the_deputy_drives_once_no_thread_has_driven_for_a_while() {
        let handover = unused();
        assert_eq!(due(&handover, 1_500), wait(500));
        assert_eq!(handover.take_unused(at(1_600)), Some(7));
        assert_eq!(due(&handover, 2_000), wait(2_000));
        handover.put(7, at(3_000));
        assert_eq!(due(&handover, 4_999), wait(1));
        assert_eq!(due(&handover, 5_000), Due::Drive(7));
        assert_eq!(handover.take_unused(at(5_000)), None);
    }

    #[test]
    fn the_deputy_sleeps_while_the_driver_does_and_the_return_wakes_it() {
        let handover = unused();
        handover.take_unused(at(0));
        assert_eq!(due(&handover, 15_999), wait(2_000));
        assert_eq!(due(&handover, 16_000), Due::Wait(None));
        std::thread::scope(|scope| {
            let deputy = scope.spawn(|| handover.stand_in(|| at(100_000)));
            while !handover.place().deputy_sleeps {
                std::thread::yield_now();
            }
            handover.put(7, at(20_000));
            assert_eq!(deputy.join().unwrap(), Some(7));
        });
    }

    #[test]
    fn a_second_thread_that_waits_makes_the_deputy_drive() {
        let handover = unused();
        assert_eq!(handover.take_unused(at(0)), Some(7));
        assert!(!handover.is_wanted());
        assert!(handover.begin_wait(at(10)), "the driver must be woken");
        assert!(handover.is_wanted());
        handover.put(7, at(20));
        assert_eq!(handover.take_unused(at(20)), None);
        assert_eq!(due(&handover, 20), Due::Drive(7));
        handover.end_wait();
        // Threads that come and go soon are still several.
        let no_wake = || panic!("it is not asked for");
        assert_eq!(handover.take(at(100_009), no_wake), None);
        handover.put(7, at(100_009));
        assert_eq!(handover.take_unused(at(100_010)), Some(7));
    }

    #[test]
    fn a_thread_that_works_beside_a_busy_stack_leaves_it_to_the_deputy() {
        let handover = unused();
        let wait_once = |has_pause| {
            let worker = handover.take_unused(at(10)).unwrap();
            assert_eq!(handover.put(worker, at(10)), None);
            handover.note_pause(has_pause, at(10));
        };
        (1..BUSY).for_each(|_| wait_once(false));
        wait_once(true);
        (1..BUSY).for_each(|_| wait_once(false));
        assert_eq!(due(&handover, 10), wait(2_000));
        wait_once(false);
        assert_eq!(handover.take_unused(at(10)), None);
        assert_eq!(due(&handover, 10), Due::Drive(7));
        handover.put(7, at(100_009));
        assert_eq!(handover.take_unused(at(100_009)), None);
        assert_eq!(handover.take_unused(at(100_010)), Some(7));
    }

    #[test]
    fn one_thread_that_waited_for_once_without_driving_drives_the_next_time() {
        let handover = Handover::new();
        assert!(!handover.begin_wait(at(0)), "no thread that waits has it");
        handover.end_wait();
        handover.put(7, at(1));
        assert_eq!(handover.take_unused(at(1)), Some(7));
    }

    #[test]
    fn a_thread_that_waits_takes_the_worker_from_the_deputy() {
        let handover: Handover<u8> = Handover::new();
        // The deputy is late: patience ends.
        let wake = || assert!(handover.is_wanted());
        assert_eq!(handover.take(at(0), wake), None);
        assert!(!handover.is_wanted());
        std::thread::scope(|scope| {
            let taker = scope.spawn(|| {
                // Asks until the deputy below is in time.
                loop {
                    if let Some(worker) = handover.take(at(0), || ()) {
                        return worker;
                    }
                }
            });
            while !handover.is_wanted() {
                std::thread::yield_now();
            }
            handover.put(7, at(0));
            assert_eq!(taker.join().unwrap(), 7);
        });
    }

    #[test]
    fn the_end_of_the_stack_keeps_the_worker_from_all() {
        let handover = unused();
        assert_eq!(handover.take_unused(at(0)), Some(7));
        handover.end();
        assert!(handover.is_wanted());
        assert_eq!(due(&handover, 0), Due::End);
        assert_eq!(handover.put(7, at(0)), Some(7));
        assert_eq!(handover.take_unused(at(0)), None);
        assert_eq!(handover.take_last(), None);
        let handover = unused();
        handover.end();
        assert_eq!(handover.take_last(), Some(7));
    }

    #[test]
    fn a_worker_that_is_lost_ends_the_deputy() {
        let handover = unused();
        handover.take_unused(at(0));
        handover.lose();
        assert_eq!(due(&handover, 1_000_000), Due::End);
        assert_eq!(handover.take_unused(at(0)), None);
    }
}

/// Models under every interleaving. The worker is a cell, so loom reports two threads that have it
/// at a time. A thread that is not woken stops the model.
#[cfg(all(test, netstack_loom))]
mod loom_models {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    type Worker = Arc<UnsafeCell<()>>;

    fn model(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
        builder.check(f);
    }

    fn turn(worker: &Worker) {
        worker.with_mut(|_| ());
    }

    /// Drives as the deputy does, which sleeps without an end, until the stack ends.
    fn deputy(handover: &Handover<Worker>, mut worker: Worker) {
        loop {
            turn(&worker);
            while !handover.is_wanted() {
                thread::yield_now();
            }
            handover.put(worker, Instant::ZERO);
            match handover.stand_in(|| Instant::ZERO) {
                Some(taken) => worker = taken,
                None => return,
            }
        }
    }

    /// Would catch a return that wakes no thread, and a worker that two threads take.
    #[test]
    fn a_thread_takes_the_worker_from_the_deputy_and_returns_it() {
        model(2, || {
            let handover = Arc::new(Handover::new());
            let own = Arc::clone(&handover);
            let worker = Arc::new(UnsafeCell::new(()));
            let deputy = thread::spawn(move || deputy(&own, worker));
            let worker = handover.take(Instant::ZERO, || ());
            let worker = worker.expect("the deputy returns it");
            turn(&worker);
            assert!(handover.put(worker, Instant::ZERO).is_none());
            handover.end();
            deputy.join().unwrap();
            handover.take_last();
        });
    }

    /// Would catch a driver that sleeps on although another thread began to wait.
    #[test]
    fn a_driver_sees_that_another_thread_waits() {
        model(3, || {
            let handover = Arc::new(Handover::new());
            handover.put(Arc::new(UnsafeCell::new(())), Instant::ZERO);
            let other = Arc::clone(&handover);
            let bell = Arc::new(AtomicBool::new(false));
            let ring = Arc::clone(&bell);
            let waits = thread::spawn(move || {
                if other.begin_wait(Instant::ZERO) {
                    // ORDERING: SeqCst, as the waker of a device.
                    ring.store(true, Ordering::SeqCst);
                }
                // In vain if the deputy does not drive now.
                let drives = other.stand_in(|| Instant::ZERO);
                turn(&drives.expect("the stack does not end"));
                other.end_wait();
            });
            if let Some(worker) = handover.take_unused(Instant::ZERO) {
                turn(&worker);
                // Sleeps in the device.
                while !handover.is_wanted() && !bell.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
                assert!(handover.is_wanted());
                handover.put(worker, Instant::ZERO);
            }
            waits.join().unwrap();
        });
    }
}
