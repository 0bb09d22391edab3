//! Atomics of the transmit slots and of the streams.
//!
//! Normally these are the atomics of `core`. Under `cfg(netstack_loom)` they are loom's, so that
//! the models of `tx.rs` and of `stream/loom_models.rs` run the shipped code under every outcome
//! that the memory model allows. (Not `cfg(loom)`, by which other crates switch their own atomics.)
//! In unit tests each access is a step, and a test can run another thread's call before any step
//! (`interrupted`). If code has a load and a store in place of one compare-and-swap, such a test
//! fails on every machine.

#[cfg(not(any(netstack_loom, test)))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, fence};

#[cfg(netstack_loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, fence};

#[cfg(all(test, not(netstack_loom)))]
pub(crate) use self::steps::{AtomicU32, AtomicU64, fence, interrupted};

#[cfg(not(netstack_loom))]
pub(crate) use std::thread::yield_now;

#[cfg(netstack_loom)]
pub(crate) use loom::thread::yield_now;

/// Reports reads and writes of some memory to loom. Does nothing in a normal build.
///
/// The memory itself is contiguous in every build, because threads are lent slices of it; loom
/// watches this shadow instead.
#[cfg(not(netstack_loom))]
pub(crate) struct Shadow;

#[cfg(not(netstack_loom))]
impl Shadow {
    pub(crate) fn new(_len: usize) -> Self {
        Shadow
    }

    #[inline(always)]
    pub(crate) fn read(&self, _at: usize, _len: usize) {}

    #[inline(always)]
    pub(crate) fn write(&self, _at: usize, _len: usize) {}
}

#[cfg(netstack_loom)]
pub(crate) struct Shadow(Box<[loom::cell::UnsafeCell<()>]>);

#[cfg(netstack_loom)]
impl Shadow {
    pub(crate) fn new(len: usize) -> Self {
        Shadow((0..len).map(|_| loom::cell::UnsafeCell::new(())).collect())
    }

    pub(crate) fn read(&self, at: usize, len: usize) {
        for cell in &self.0[at..at + len] {
            cell.with(|_| ());
        }
    }

    pub(crate) fn write(&self, at: usize, len: usize) {
        for cell in &self.0[at..at + len] {
            cell.with_mut(|_| ());
        }
    }
}

#[cfg(all(test, not(netstack_loom)))]
mod steps {
    use core::cell::RefCell;
    use core::sync::atomic::Ordering;
    use std::rc::Rc;

    pub(crate) use core::sync::atomic::fence;

    /// A call to make before an access: the number of accesses that come first, and the call.
    type Planned = (usize, Box<dyn FnOnce()>);

    thread_local! {
        static PLANNED: RefCell<Option<Planned>> = const { RefCell::new(None) };
    }

    /// Called before each access to an atomic.
    fn step() {
        let due = PLANNED.with_borrow_mut(|planned| match planned {
            Some((0, _)) => planned.take(),
            Some((left, _)) => {
                *left -= 1;
                None
            }
            None => None,
        });
        if let Some((_, other)) = due {
            other();
        }
    }

    /// Calls `work`, and calls `other` in the middle of it: before access number `step` that `work`
    /// makes to an atomic of this module. Returns both results; the second is `None` if `work` made
    /// at most `step` accesses, so that `other` was not called.
    pub(crate) fn interrupted<A, B: 'static>(
        step: usize,
        other: impl FnOnce() -> B + 'static,
        work: impl FnOnce() -> A,
    ) -> (A, Option<B>) {
        let returned = Rc::new(RefCell::new(None));
        let place = Rc::clone(&returned);
        let other = move || {
            let value = other();
            *place.borrow_mut() = Some(value);
        };
        PLANNED.set(Some((step, Box::new(other))));
        let outcome = work();
        PLANNED.set(None);
        (outcome, returned.take())
    }

    macro_rules! stepped {
        ($name:ident, $value:ty) => {
            /// As the atomic of `core`, but every access is a step.
            #[derive(Debug, Default)]
            #[repr(transparent)]
            pub(crate) struct $name(core::sync::atomic::$name);

            #[allow(
                dead_code,
                reason = "one kind is changed in ways in which the other is not"
            )]
            impl $name {
                pub(crate) const fn new(value: $value) -> Self {
                    Self(core::sync::atomic::$name::new(value))
                }

                pub(crate) fn load(&self, order: Ordering) -> $value {
                    step();
                    self.0.load(order)
                }

                pub(crate) fn store(&self, value: $value, order: Ordering) {
                    step();
                    self.0.store(value, order);
                }

                pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                    step();
                    self.0.swap(value, order)
                }

                pub(crate) fn compare_exchange(
                    &self,
                    current: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    step();
                    self.0.compare_exchange(current, new, success, failure)
                }

                pub(crate) fn fetch_update(
                    &self,
                    success: Ordering,
                    failure: Ordering,
                    change: impl FnMut($value) -> Option<$value>,
                ) -> Result<$value, $value> {
                    step();
                    self.0.fetch_update(success, failure, change)
                }

                pub(crate) fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                    step();
                    self.0.fetch_and(value, order)
                }

                pub(crate) fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                    step();
                    self.0.fetch_or(value, order)
                }

                pub(crate) fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                    step();
                    self.0.fetch_add(value, order)
                }

                pub(crate) fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                    step();
                    self.0.fetch_max(value, order)
                }

                pub(crate) fn fetch_min(&self, value: $value, order: Ordering) -> $value {
                    step();
                    self.0.fetch_min(value, order)
                }
            }
        };
    }

    stepped!(AtomicU32, u32);
    stepped!(AtomicU64, u64);

    #[test]
    fn another_claimer_runs_before_the_access_that_is_named_and_once() {
        let word = Rc::new(AtomicU64::new(0));
        let twice = |word: &AtomicU64| {
            (
                word.load(Ordering::Relaxed),
                word.swap(7, Ordering::Relaxed),
            )
        };
        let add = |word: &Rc<AtomicU64>| {
            let word = Rc::clone(word);
            move || word.swap(word.load(Ordering::Relaxed) + 10, Ordering::Relaxed)
        };
        assert_eq!(
            interrupted(0, add(&word), || twice(&word)),
            ((10, 10), Some(0))
        );
        assert_eq!(
            interrupted(1, add(&word), || twice(&word)),
            ((7, 17), Some(7))
        );
        assert_eq!(interrupted(2, add(&word), || twice(&word)), ((7, 7), None));
        assert_eq!(twice(&word), (7, 7));
    }
}
