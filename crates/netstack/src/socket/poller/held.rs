//! Delays wake-ups until the end of a worker's turn.
//!
//! A batch of frames has news for many connections. If the first news woke a thread that waits in
//! a poller, the thread would run beside the worker, or displace it, find one event, and sleep
//! again. So the thread is woken when the turn ends, and finds all events. A thread that does not
//! sleep finds them earlier. Wakers of tasks are used then, too: they are code of the program,
//! which may call the stack.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;

use super::PollerShared;

thread_local! {
    static IS_IN_TURN: Cell<bool> = const { Cell::new(false) };
    /// The pollers with news in this turn.
    static POLLERS: RefCell<Vec<Arc<PollerShared>>> = const { RefCell::new(Vec::new()) };
    /// The tasks with news in this turn.
    static TASKS: RefCell<Vec<Waker>> = const { RefCell::new(Vec::new()) };
}

/// Ends a turn, even when it unwinds.
struct TurnEnd;

impl Drop for TurnEnd {
    fn drop(&mut self) {
        IS_IN_TURN.set(false);
        while let Some(poller) = POLLERS.with_borrow_mut(Vec::pop) {
            poller.notify();
        }
        while let Some(waker) = TASKS.with_borrow_mut(Vec::pop) {
            wake(waker);
        }
    }
}

/// Runs a turn, then wakes the threads that wait for its news.
pub(crate) fn hold_wakeups<R>(turn: impl FnOnce() -> R) -> R {
    IS_IN_TURN.set(true);
    let _end = TurnEnd;
    turn()
}

/// Wakes a task, in a turn at its end.
pub(super) fn wake(waker: Waker) {
    if IS_IN_TURN.get() {
        TASKS.with_borrow_mut(|tasks| tasks.push(waker));
    } else if let Err(panic) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
        // A waker that panics ends neither a worker nor a call of a socket.
        core::mem::forget(panic);
    }
}

/// Whether the wake-up of `poller` is delayed to the end of this thread's turn.
pub(super) fn holds(poller: &Arc<PollerShared>) -> bool {
    if IS_IN_TURN.get() {
        POLLERS.with_borrow_mut(|pollers| {
            if !pollers.iter().any(|other| Arc::ptr_eq(other, poller)) {
                pollers.push(Arc::clone(poller));
            }
        });
    }
    IS_IN_TURN.get()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use core::sync::atomic::Ordering;

    use super::*;
    use crate::socket::poller::Poller;

    #[test]
    fn a_wakeup_comes_at_the_end_of_a_turn_even_of_one_that_unwinds() {
        let Poller { shared } = Poller::new().unwrap();
        // A wake-up also signals the descriptor, if it is used.
        shared.descriptor.is_used.store(true, Ordering::Relaxed);
        let was_woken = || {
            shared
                .descriptor
                .is_signalled
                .swap(false, Ordering::Relaxed)
        };
        assert!(!holds(&shared), "it is in no turn");
        let news = || (0..3).for_each(|_| assert!(holds(&shared) && !was_woken()));
        hold_wakeups(news);
        assert!(was_woken() && !holds(&shared));
        let unwinds = || {
            news();
            panic!("a mistake");
        };
        let turn = catch_unwind(AssertUnwindSafe(|| hold_wakeups(unwinds)));
        assert!(turn.is_err() && was_woken() && !holds(&shared));
        hold_wakeups(|| ());
        assert!(!was_woken(), "nothing happened in this turn");
    }
}
