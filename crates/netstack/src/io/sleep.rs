//! How the threads of a variant sleep: the last one in the device, the others on an event; and their
//! clock.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::time::Duration;
use std::sync::Arc;
use std::time;

use dominoes::{EventCount, TryLock};
use dominoes_drivers::Beside;

use crate::io::tx::TxPump;
use crate::io::world::World;
use crate::time::Instant;

/// A worker sleeps at most this long while another one is awake, or has work, and may be delayed.
pub(crate) const RECHECK: Duration = Duration::from_millis(1);

/// The clock of threads.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place where the stack looks at a clock; sockets ask here how long they have waited"
)]
pub(crate) fn now() -> time::Instant {
    time::Instant::now()
}

/// A worker that is about to sleep.
pub(crate) trait Sleeper {
    /// Whether a turn would find work other than the receive pump's.
    fn has_work(&mut self) -> bool;
    /// Whether it must look again soon, since other workers may leave work to it.
    fn waits_for_others(&mut self) -> bool {
        false
    }
    /// Whether the pump has to publish a count of sent frames for it.
    fn needs_pump(&self) -> bool {
        false
    }
    /// The next deadline of the state.
    fn state_deadline(&self) -> Instant;
}

/// The receive pump and the device, which a worker holds while it sleeps in the device.
pub(crate) trait Receiving {
    /// Whether there is something to do without waiting for the device.
    fn has_work(&mut self) -> bool;
    /// The next time at which the pump has work without input.
    fn next_deadline(&mut self) -> Instant;
    /// Sleeps in the device until a frame arrives, a waker is called, or `timeout` has passed.
    fn wait(&mut self, timeout: Option<Duration>);
}

/// The workers of a variant that sleep.
#[derive(Debug, Default)]
pub(crate) struct Sleepers {
    count: AtomicUsize,
    /// Whether one of them waits in the device.
    has_watch: AtomicBool,
}

/// The places where the workers of a variant sleep.
pub(crate) struct Sleep<'a, F> {
    pub(crate) world: &'a World,
    /// Takes the receive pump and the device; `None` if another worker has one of them.
    pub(crate) rx: F,
    pub(crate) tx: &'a TryLock<TxPump>,
    /// Notified when something is published that others may work on, and for membership.
    pub(crate) event: &'a EventCount,
    pub(crate) sleepers: &'a Sleepers,
    /// The number of workers that may run a pump.
    pub(crate) workers: usize,
}

impl<R: Receiving, F: FnOnce() -> Option<R>> Sleep<'_, F> {
    /// Sleeps until there may be work. The last worker to fall asleep sleeps in the device, and
    /// holds the receive pump meanwhile; the others sleep on the event.
    pub(crate) fn sleep(self, now: Instant, worker: &mut impl Sleeper) {
        let world = self.world;
        // A hint for choosing where to sleep: correctness depends only on the exclusive pump and on
        // the event.
        let last = self.sleepers.count.fetch_add(1, Ordering::Relaxed) + 1 >= self.workers;
        let _asleep = Asleep(self.sleepers);
        let rx = if last { (self.rx)() } else { None };
        if let Some(mut rx) = rx {
            world.before_sleep();
            // Asked before the pump: frames that others send after this leave work to the pump.
            let again = worker.waits_for_others().then_some(RECHECK);
            let has_work = worker.has_work() || worker.needs_pump() || rx.has_work();
            if !has_work && !world.is_down() {
                let deadline = worker.state_deadline().min(rx.next_deadline());
                let next_try = self.tx.try_take().and_then(|tx| tx.next_try());
                let times = again.into_iter().chain(next_try);
                self.sleepers.has_watch.store(true, Ordering::Relaxed);
                let _watches = Watches(self.sleepers);
                rx.wait(times.chain(timeout(deadline, now)).min());
            }
            world.after_sleep();
        } else {
            let key = self.event.prepare();
            if worker.has_work() || world.is_down() {
                drop(key);
            } else {
                // A worker goes to sleep in the device only if all others sleep. The worker that is
                // awake may be delayed, so this one returns to run the pumps, and to take over late
                // work. It also returns if the pump is taken, but by none that waits in the device:
                // a worker that parks has it for a moment, and does not go there. A worker that
                // does wait there goes there again, or wakes this one when it parks.
                // ORDERING: Relaxed; a worker that parks notifies the event, whose fence pairs with
                // the one in `prepare`.
                let has_watch = self.sleepers.has_watch.load(Ordering::Relaxed);
                let again = !last || !has_watch || worker.waits_for_others();
                self.event.wait(key, again.then_some(RECHECK));
            }
        }
    }
}

/// A worker that waits in the device, until it is dropped, also by a panic of the device.
struct Watches<'a>(&'a Sleepers);

impl Drop for Watches<'_> {
    fn drop(&mut self) {
        self.0.has_watch.store(false, Ordering::Relaxed);
    }
}

/// Counts a worker as asleep, until it is dropped, also by a panic of the device.
struct Asleep<'a>(&'a Sleepers);

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Sleeps in the device, for a variant in which no other thread has the pumps, until `deadline` or
/// for `next_try`, unless there is work.
pub(crate) fn sleep_alone(
    world: &World,
    rx: &mut impl Receiving,
    (deadline, now): (Instant, Instant),
    next_try: Option<Duration>,
    has_work: impl FnOnce() -> bool,
) {
    world.before_sleep();
    if !has_work() && !rx.has_work() && !world.is_down() {
        let times = timeout(deadline, now).into_iter().chain(next_try);
        rx.wait(times.min());
    }
    world.after_sleep();
}

/// How long to sleep at most until a deadline; `None`: without limit.
pub(crate) fn timeout(deadline: Instant, now: Instant) -> Option<Duration> {
    (deadline != Instant::NEVER).then(|| deadline.since(now).into())
}

// A thread that waits for a socket may drive the stack meanwhile.

/// The only active worker of a stack. A thread that waits may drive it: run its turns, and sleep in
/// the device.
pub(crate) trait Driven: Send + Sync {
    /// Drives until `wait` is over. Returns false if this thread cannot drive (any more).
    fn drive(&self, wait: &mut Wait<'_>) -> bool;

    /// Runs a turn if no thread drives at this moment, but one did just before.
    fn pass(&self);

    /// Notes that a thread waits and does not drive, until [`end_wait`](Self::end_wait).
    fn begin_wait(&self);

    /// See [`begin_wait`](Self::begin_wait).
    fn end_wait(&self);
}

/// Bytes of payload in a full frame. Threads whose frames are full leave the driving to others; a
/// thread that answers many small requests does more if it drives.
pub(crate) const FULL: u64 = 1_000;

/// The end of a wait.
pub(crate) struct Wait<'a> {
    /// Notified of news, which may come from threads that do not drive. `None`: such threads wake
    /// the pump.
    pub(crate) event: Option<&'a EventCount>,
    /// When the time of the call is over.
    pub(crate) until: Option<time::Instant>,
    /// Ends the wait when it is readable.
    pub(crate) beside: Option<Beside<'a>>,
    /// The mean payload of a frame, in bytes, from which on the thread leaves the driving of a stack
    /// without pauses to the worker's own thread: it works on the bytes that it waits for, so two
    /// cores do more. `None`: it never does.
    pub(crate) leaves: Option<u64>,
    /// Whether the thread need not wait any more.
    pub(crate) is_over: &'a mut dyn FnMut() -> bool,
}

impl Wait<'_> {
    /// How long to wait yet; `None` without limit.
    pub(crate) fn left(&self, now: time::Instant) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(now))
    }
}

/// A thread that waits without driving.
pub struct Waits(Arc<dyn Driven>);

impl Waits {
    pub(crate) fn new(driven: &Arc<dyn Driven>) -> Waits {
        driven.begin_wait();
        Waits(Arc::clone(driven))
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.end_wait();
    }
}

impl World {
    /// The worker that waiting threads may drive.
    pub(crate) fn driven(&self) -> Option<Arc<dyn Driven>> {
        self.driven.get()?.upgrade()
    }

    /// Notes that this thread waits without driving, until the result is dropped.
    pub(crate) fn wait_without(&self) -> Option<Waits> {
        self.driven().as_ref().map(Waits::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::setup::Setup;
    use dominoes_drivers::memory;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc;
    use std::thread;

    struct Idle;

    impl Sleeper for Idle {
        fn has_work(&mut self) -> bool {
            false
        }

        fn state_deadline(&self) -> Instant {
            Instant::NEVER
        }
    }

    /// A device that panics.
    struct Panics;

    impl Receiving for Panics {
        fn has_work(&mut self) -> bool {
            false
        }

        fn next_deadline(&mut self) -> Instant {
            Instant::NEVER
        }

        fn wait(&mut self, _: Option<Duration>) {
            panic!("planted");
        }
    }

    #[test]
    fn a_worker_whose_device_panics_does_not_sleep_any_more() {
        let (device, _) = memory::scripted();
        let setup = Setup::new([10, 0, 0, 1].into(), 24, [1, 2]);
        let base = setup.build(Box::new(device), 64, 1).unwrap();
        let (tx, event, sleepers) = (
            TryLock::new(base.tx),
            EventCount::new(),
            Sleepers::default(),
        );
        let sleep = Sleep {
            world: &base.world,
            rx: || Some(Panics),
            tx: &tx,
            event: &event,
            sleepers: &sleepers,
            workers: 1,
        };
        let sleeps = || sleep.sleep(Instant::ZERO, &mut Idle);
        assert!(catch_unwind(AssertUnwindSafe(sleeps)).is_err());
        assert_eq!(sleepers.count.load(Ordering::Relaxed), 0);
        assert!(!sleepers.has_watch.load(Ordering::Relaxed));
    }

    /// A worker that parks or counts has the pump for a moment. The only other one must not sleep
    /// until something is published: nobody would, since nobody sees frames.
    #[test]
    fn the_last_worker_looks_again_if_the_pump_was_taken_and_nobody_waits_in_the_device() {
        let (device, _) = memory::scripted();
        let setup = Setup::new([10, 0, 0, 1].into(), 24, [1, 2]);
        let base = setup.build(Box::new(device), 64, 1).unwrap();
        let (tx, event) = (TryLock::new(base.tx), EventCount::new());
        let sleep = Sleep {
            world: &base.world,
            rx: || None::<Panics>,
            tx: &tx,
            event: &event,
            sleepers: &Sleepers::default(),
            workers: 1,
        };
        let (ended, end) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(move || {
                sleep.sleep(Instant::ZERO, &mut Idle);
                ended.send(())
            });
            let has_ended = end.recv_timeout(Duration::from_secs(60)).is_ok();
            event.notify_all();
            assert!(has_ended, "it sleeps for ever");
        });
    }
}
