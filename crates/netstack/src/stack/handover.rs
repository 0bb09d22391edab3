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
//!   the other. If the stack had no pause in [`BUSY`] waits, or moved much, the deputy drives for [`CONTENDED`];
//!   while a thread waits for many sockets, only if the stack also filled its frames. Whether two
//!   threads move more bytes per second depends on the work and on how far apart their cores are,
//!   so that is measured. Each time it helps, the deputy drives for longer; each time it does not,
//!   the next attempt comes later.

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
/// Bytes of payload of a wait of a stream in bulk.
const MUCH: u64 = 32 << 10;
/// The shortest time over which the bytes are counted before the deputy drives.
const WINDOW: Duration = Duration::from_millis(20);
/// After this time they are counted anew.
const LONGEST_WINDOW: Duration = Duration::from_millis(100);
/// The part by which the stack must move more bytes per second with the deputy.
const MARGIN: u64 = 32;
/// The longest time that the deputy drives after a success, and then half of the longest time to
/// the next attempt after a failure.
const LONGEST: Duration = Duration::from_millis(800);
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

/// What the stack has done so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done {
    /// The frames that it built.
    pub(super) frames: u64,
    /// Bytes of payload in these frames.
    pub(super) sent: u64,
    /// Bytes of payload that it delivered.
    pub(super) received: u64,
}

impl Done {
    /// Bytes of payload moved since.
    fn since(self, before: Done) -> u64 {
        let received = self.received.saturating_sub(before.received);
        received + self.sent.saturating_sub(before.sent)
    }

    /// Whether that was so much that a wait counts as one without a pause: in the pause the stack
    /// waited for the peer's window or bytes, which come sooner if it works meanwhile.
    pub(super) fn is_much_since(self, before: Done) -> bool {
        self.since(before) >= MUCH
    }
}

/// Finds out whether the stack does more if the deputy drives.
#[derive(Debug)]
struct Trial {
    /// How many waits in a row had no pause.
    busy: usize,
    /// Begin of the measurement, and the counts then.
    from: (Instant, Done),
    /// While the deputy drives: the bytes per second before.
    before: Option<u64>,
    /// How long the deputy drives the next time.
    drives: Duration,
    /// The time from the next failure to the attempt after it.
    pause: Duration,
    not_before: Instant,
}

impl Trial {
    fn new() -> Trial {
        Trial {
            busy: 0,
            from: (Instant::ZERO, Done::default()),
            before: None,
            drives: CONTENDED,
            pause: CONTENDED,
            not_before: Instant::ZERO,
        }
    }

    /// Notes the end of a wait. If the stack was busy throughout, `least` is the mean payload of a
    /// frame from which on the deputy should drive. Returns until when it drives, if it does.
    fn note(&mut self, least: Option<u64>, done: Done, now: Instant) -> Option<Instant> {
        let (began, then) = self.from;
        let took = now.since(began);
        let sent = done.sent.saturating_sub(then.sent);
        let micros = (took.as_nanos() / 1_000).max(1);
        let rate = || done.since(then).saturating_mul(1_000_000) / micros;
        self.busy = least.map_or(0, |_| self.busy + 1);
        if let Some(before) = self.before.take() {
            // Else the application did something else meanwhile.
            if took < self.drives + WINDOW {
                self.conclude(rate() > before + before / MARGIN, now);
            }
            self.busy = 0;
            self.from = (now, done);
        } else if took > LONGEST_WINDOW || now < self.not_before {
            if took > LONGEST_WINDOW {
                // A stream begins slowly: with its first bytes, any attempt would help.
                self.not_before = self.not_before.max(now + WINDOW);
            }
            self.from = (now, done);
        } else if self.busy >= BUSY && took >= WINDOW {
            self.busy = 0;
            self.from = (now, done);
            let frames = done.frames.saturating_sub(then.frames).max(1);
            least.filter(|least| sent >= least * frames)?;
            self.before = Some(rate());
            return Some(now + self.drives);
        }
        None
    }

    fn conclude(&mut self, helps: bool, now: Instant) {
        if helps {
            self.drives = self.drives.times(2).min(LONGEST);
            self.pause = CONTENDED;
        } else {
            self.drives = CONTENDED;
            self.pause = self.pause.times(2).min(LONGEST.times(2));
            self.not_before = now + self.pause;
        }
    }
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
    trial: Trial,
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
                trial: Trial::new(),
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

    /// Notes the end of a wait of a thread that had the worker, as [`Trial::note`].
    pub(super) fn note_wait(&self, least: Option<u64>, done: Done, now: Instant) {
        let mut place = self.place();
        if let Some(until) = place.trial.note(least, done, now) {
            place.contended_until = until;
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

    /// A thread that waits without a pause, and what the stack moves meanwhile.
    struct Busy {
        handover: Handover<u8>,
        micros: u64,
        done: Done,
        /// Bytes of payload of a frame that it sends, and of one that it receives.
        frame: (u64, u64),
        least: u64,
    }

    impl Busy {
        fn new(least: u64, frame: (u64, u64)) -> Busy {
            Busy {
                handover: unused(),
                micros: 0,
                done: Done::default(),
                frame,
                least,
            }
        }

        /// Lets the stack move `frames` frames, and then waits for once.
        fn wait(&mut self, micros: u64, frames: u64) {
            self.micros += micros;
            self.done.frames += frames;
            self.done.sent += frames * self.frame.0;
            self.done.received += frames * self.frame.1;
            let now = at(self.micros);
            let worker = self.handover.take_unused(now).expect("nobody has it");
            assert_eq!(self.handover.put(worker, now), None);
            (self.handover).note_wait(Some(self.least), self.done, now);
        }

        /// Waits until the deputy drives, and returns how long that took.
        fn until_deputy(&mut self) -> u64 {
            let begin = self.micros;
            while self.micros < begin + 5_000_000 {
                self.wait(1_000, 10);
                if due(&self.handover, self.micros) == Due::Drive(7) {
                    return self.micros - begin;
                }
            }
            panic!("the deputy does not drive");
        }

        /// Lets the deputy move `frames` frames per millisecond. Returns the microseconds it drives.
        fn deputy(&mut self, frames: u64) -> u64 {
            let mut place = self.handover.place();
            let drives = place.contended_until.since(at(self.micros)).as_nanos() / 1_000;
            (place.holder, place.worker) = (Holder::Nobody, Some(7));
            drop(place);
            self.wait(drives, frames * drives / 1_000);
            drives
        }
    }

    #[test]
    fn a_thread_that_works_beside_a_busy_stack_leaves_it_to_the_deputy() {
        for frame in [(0, 1), (1_448, 0)] {
            let mut thread = Busy::new(0, frame);
            (1..BUSY).for_each(|_| thread.wait(2_000, 20));
            let now = at(thread.micros);
            (thread.handover).note_wait(None, thread.done, now);
            (1..BUSY).for_each(|_| thread.wait(2_000, 20));
            assert_eq!(due(&thread.handover, thread.micros), wait(2_000));
            thread.wait(2_000, 20);
            assert_eq!(thread.handover.take_unused(at(thread.micros)), None);
            assert_eq!(due(&thread.handover, thread.micros), Due::Drive(7));
            let back = thread.micros + 100_000;
            thread.handover.put(7, at(back - 1));
            assert_eq!(thread.handover.take_unused(at(back - 1)), None);
            assert_eq!(thread.handover.take_unused(at(back)), Some(7));
        }
    }

    #[test]
    fn a_wait_that_moves_much_counts_as_busy_though_the_stack_paused() {
        let done = |sent, received| Done {
            sent,
            received,
            frames: 1,
        };
        let before = done(7, 7);
        assert!(!done(1_000, 1_000).is_much_since(before), "an exchange");
        assert!(done(32_775, 7).is_much_since(before));
        assert!(done(20_000, 20_000).is_much_since(before));
    }

    #[test]
    fn pauses_of_the_stack_do_not_make_the_measurement_longer() {
        let mut thread = Busy::new(0, (0, 1));
        for _ in 0..2 {
            (0..BUSY).for_each(|_| thread.wait(500, 5));
            let now = at(thread.micros);
            (thread.handover).note_wait(None, thread.done, now);
        }
        (0..BUSY).for_each(|_| thread.wait(500, 5));
        assert_eq!(due(&thread.handover, thread.micros), Due::Drive(7));
    }

    #[test]
    fn a_thread_that_waits_for_many_sockets_leaves_a_busy_stack_if_frames_are_full() {
        let mut thread = Busy::new(1_000, (231, 0));
        (0..100).for_each(|_| thread.wait(1_000, 10));
        assert_eq!(due(&thread.handover, thread.micros), wait(2_000));
        thread.frame = (1_448, 0);
        thread.until_deputy();
    }

    #[test]
    fn the_deputy_drives_for_longer_while_that_moves_more_bytes() {
        for (least, frame) in [(1_000, (1_448, 0)), (0, (0, 1_448))] {
            let mut thread = Busy::new(least, frame);
            for drives in [100_000, 200_000, 400_000, 800_000, 800_000] {
                assert!(thread.until_deputy() < 25_000);
                assert_eq!(thread.deputy(11), drives);
            }
        }
    }

    #[test]
    fn the_deputy_drives_less_often_while_that_moves_no_more_bytes() {
        let mut thread = Busy::new(1_000, (1_448, 0));
        let mut pauses = [0; 6];
        for pause in &mut pauses {
            *pause = thread.until_deputy() / 100_000;
            assert_eq!(thread.deputy(10), 100_000);
        }
        assert_eq!(pauses, [0, 2, 4, 8, 16, 16]);
        // Once it helps, the next attempt comes soon.
        thread.until_deputy();
        thread.deputy(11);
        assert!(thread.until_deputy() < 25_000);
    }

    #[test]
    fn the_slow_begin_of_a_stream_is_not_what_an_attempt_is_compared_with() {
        let mut thread = Busy::new(0, (0, 1_448));
        // Nothing came for a second.
        thread.wait(1_000_000, 0);
        (0..20).for_each(|_| thread.wait(1_000, 5));
        assert!(thread.until_deputy() <= 21_000);
        thread.deputy(10);
        assert!(thread.until_deputy() > 200_000, "it did not help");
    }

    #[test]
    fn an_attempt_during_which_the_application_did_something_else_says_nothing() {
        let mut thread = Busy::new(1_000, (1_448, 0));
        thread.until_deputy();
        thread.micros += 500_000;
        thread.deputy(0);
        assert!(thread.until_deputy() < 25_000);
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
