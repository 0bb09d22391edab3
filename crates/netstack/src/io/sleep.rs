//! How the threads of a variant sleep: the last one in the device, the others on an event; and their
//! clock.

use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::time;

use dominoes::{EventCount, Exclusive};

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

/// The places where the workers of a variant sleep.
pub(crate) struct Sleep<'a, F> {
    pub(crate) world: &'a World,
    /// Takes the receive pump and the device; `None` if another worker has one of them.
    pub(crate) rx: F,
    pub(crate) tx: &'a Exclusive<TxPump>,
    /// Notified when something is published.
    pub(crate) event: &'a EventCount,
    /// How many workers sleep.
    pub(crate) asleep: &'a AtomicUsize,
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
        let last = self.asleep.fetch_add(1, Ordering::Relaxed) + 1 >= self.workers;
        let _asleep = Asleep(self.asleep);
        let rx = if last { (self.rx)() } else { None };
        if let Some(mut rx) = rx {
            world.before_sleep();
            // Asked before the pump: frames that others send after this leave work to the pump.
            let again = worker.waits_for_others().then_some(RECHECK);
            if !worker.has_work() && !rx.has_work() && !world.is_down() {
                let deadline = worker.state_deadline().min(rx.next_deadline());
                let next_try = self.tx.try_take().and_then(|tx| tx.next_try());
                let times = again.into_iter().chain(next_try);
                rx.wait(times.chain(timeout(deadline, now)).min());
            }
            world.after_sleep();
        } else {
            let key = self.event.prepare();
            if worker.has_work() || world.is_down() {
                drop(key);
            } else {
                // While any worker is awake, none sleeps in the device. The worker that is awake
                // may be delayed, so this one returns to run the pumps, and to take over late work.
                let again = !last || worker.waits_for_others();
                self.event.wait(key, again.then_some(RECHECK));
            }
        }
    }
}

/// Counts a worker as asleep, until it is dropped, also by a panic of the device.
struct Asleep<'a>(&'a AtomicUsize);

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::setup::Setup;
    use dominoes_drivers::memory;
    use std::panic::{AssertUnwindSafe, catch_unwind};

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
        let (tx, event, asleep) = (
            Exclusive::new(base.tx),
            EventCount::new(),
            AtomicUsize::new(0),
        );
        let sleep = Sleep {
            world: &base.world,
            rx: || Some(Panics),
            tx: &tx,
            event: &event,
            asleep: &asleep,
            workers: 1,
        };
        let sleeps = || sleep.sleep(Instant::ZERO, &mut Idle);
        assert!(catch_unwind(AssertUnwindSafe(sleeps)).is_err());
        assert_eq!(asleep.load(Ordering::Relaxed), 0);
    }
}
