//! How the threads of a variant sleep: the last one in the device, the others on an event.

use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;

use dominoes::{EventCount, Exclusive};

use crate::io::tx::TxPump;
use crate::io::world::World;
use crate::time::Instant;

/// How long a worker sleeps at most while another one is awake, or has work, and may be held up.
pub(crate) const RECHECK: Duration = Duration::from_millis(1);

/// A worker that is about to sleep.
pub(crate) trait Sleeper {
    /// Whether a turn would find something to do, besides what the receive pump finds.
    fn has_work(&mut self) -> bool;
    /// Whether it must look again soon, since others may leave work to it.
    fn waits_for_others(&mut self) -> bool {
        false
    }
    /// When the state must be given the time.
    fn state_deadline(&self) -> Instant;
}

/// The receive pump and the device, which a worker has while it sleeps in the device.
pub(crate) trait Receiving {
    /// Whether there is something to do without waiting for the device.
    fn has_work(&mut self) -> bool;
    /// The next time at which the pump has something to do without input.
    fn next_deadline(&mut self) -> Instant;
    /// Sleeps in the device until a frame arrives, a waker is used, or `timeout` is over.
    fn wait(&mut self, timeout: Option<Duration>);
}

/// Where the workers of a variant sleep.
pub(crate) struct Sleep<'a, F> {
    pub(crate) world: &'a World,
    /// Takes the receive pump and the device, unless another worker has one of them.
    pub(crate) rx: F,
    pub(crate) tx: &'a Exclusive<TxPump>,
    /// Notified when something is published.
    pub(crate) event: &'a EventCount,
    /// How many workers sleep.
    pub(crate) asleep: &'a AtomicUsize,
    /// How many workers there are, without those that have nothing to do with the pumps.
    pub(crate) workers: usize,
}

impl<R: Receiving, F: FnOnce() -> Option<R>> Sleep<'_, F> {
    /// The last worker to sleep sleeps in the device, and holds the receive pump meanwhile. The
    /// others sleep on the event. Returns when there may be work.
    pub(crate) fn sleep(self, now: Instant, worker: &mut impl Sleeper) {
        let world = self.world;
        // A hint for choosing where to sleep: correctness relies on the pump being exclusive, and
        // on the event.
        let last = self.asleep.fetch_add(1, Ordering::Relaxed) + 1 >= self.workers;
        let rx = if last { (self.rx)() } else { None };
        if let Some(mut rx) = rx {
            world.before_sleep();
            if !worker.has_work() && !rx.has_work() && !world.is_down() {
                let deadline = worker.state_deadline().min(rx.next_deadline());
                let again = worker.waits_for_others().then_some(RECHECK);
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
                // While a worker is awake, none sleeps in the device. That worker may be held up,
                // so this one comes back for the pumps, and for late work.
                let again = !last || worker.waits_for_others();
                self.event.wait(key, again.then_some(RECHECK));
            }
        }
        self.asleep.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Sleeps in the device, of a variant whose pumps no other thread has, until `deadline` or until
/// `next_try` is over, unless there is work.
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

/// How long to sleep at most for a deadline; `None` for ever.
pub(crate) fn timeout(deadline: Instant, now: Instant) -> Option<Duration> {
    (deadline != Instant::NEVER).then(|| deadline.since(now).into())
}
