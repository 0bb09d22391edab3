//! The only source of atomics, cells, locks and threads in this crate.
//!
//! Normally this is `std`. Under `cfg(loom)` it is loom's model of the same types, so that the
//! models in `tests/loom.rs` run the code as shipped, including fences. Under
//! `cfg(netstack_loom)`, for the models of `dominoes-netstack`, only the parts of [`TryLock`]
//! are loom's. ThreadSanitizer does not support fences: under `cfg(tsan)` the two orderings below
//! turn "release fence, relaxed stores" into release stores and "relaxed loads, acquire fence"
//! into acquire loads. It does not see the slow path of std's mutex either, so that is replaced.

#[cfg(not(any(loom, tsan)))]
pub(crate) use std::sync::Mutex;

#[cfg(not(loom))]
pub(crate) use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, AtomicUsize, fence},
    },
    thread,
};

#[cfg(not(any(loom, netstack_loom)))]
pub(crate) use std::sync::atomic::AtomicBool;

#[cfg(loom)]
pub(crate) use loom::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, AtomicU64, AtomicUsize, fence},
    },
    thread,
};

#[cfg(any(loom, netstack_loom))]
pub(crate) use loom::sync::atomic::AtomicBool;

pub(crate) use std::sync::atomic::Ordering;

/// The slow path of std's mutex is compiled into std, which is not instrumented. ThreadSanitizer
/// sees all of this one.
#[cfg(tsan)]
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(crate::try_lock::TryLock<T>);

#[cfg(tsan)]
impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Mutex(crate::try_lock::TryLock::new(value))
    }
    pub(crate) fn lock(&self) -> std::sync::LockResult<crate::try_lock::TryLockGuard<'_, T>> {
        loop {
            match self.0.try_take() {
                Some(guard) => return Ok(guard),
                None => thread::yield_now(),
            }
        }
    }
}

/// Ordering of a store after a `fence(Release)`.
pub(crate) const STORE_AFTER_FENCE: Ordering = if cfg!(tsan) {
    Ordering::Release
} else {
    Ordering::Relaxed
};

/// Ordering of a load before a `fence(Acquire)`.
pub(crate) const LOAD_BEFORE_FENCE: Ordering = if cfg!(tsan) {
    Ordering::Acquire
} else {
    Ordering::Relaxed
};

/// Raises a flag before every later SeqCst load of this thread: of two threads that each raise a
/// flag and then load the other's, one sees the other. Returns whether it was raised before. On x86
/// an exchange costs less than a store and a fence.
#[inline(always)]
pub(crate) fn raise_before_loads(flag: &AtomicBool) -> bool {
    if cfg!(loom) {
        // Loom orders SeqCst operations by fences only.
        let before = flag.swap(true, Ordering::Acquire);
        fence(Ordering::SeqCst);
        before
    } else {
        // ORDERING: SeqCst, pairs with itself on the other thread.
        flag.swap(true, Ordering::SeqCst)
    }
}

/// Changes a word from one value to another before every later SeqCst load of this thread, as
/// [`raise_before_loads`] does. Returns false, and orders nothing, if it has another value.
#[inline(always)]
pub(crate) fn exchange_before_loads(word: &AtomicU8, from: u8, to: u8) -> bool {
    // ORDERING: SeqCst, pairs with the one of `raise_before_loads` on the other thread.
    let found = word.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed);
    if cfg!(loom) {
        fence(Ordering::SeqCst);
    }
    found.is_ok()
}

/// One iteration of a loop that waits for another thread.
#[inline]
pub(crate) fn spin_loop() {
    #[cfg(not(loom))]
    std::hint::spin_loop();
    #[cfg(loom)]
    loom::hint::spin_loop();
}

/// Reports reads and writes of slots to loom. Does nothing in a normal build.
///
/// The slots themselves are plain contiguous memory in every build, because subscribers borrow
/// slices of it; loom watches this shadow instead.
#[cfg(not(any(loom, netstack_loom)))]
pub(crate) struct Shadow;

#[cfg(not(any(loom, netstack_loom)))]
impl Shadow {
    pub(crate) fn new(_len: usize) -> Self {
        Shadow
    }
    #[inline(always)]
    pub(crate) fn read(&self, _index: usize) {}
    #[inline(always)]
    pub(crate) fn write(&self, _index: usize) {}
}

#[cfg(any(loom, netstack_loom))]
pub(crate) struct Shadow(Box<[loom::cell::UnsafeCell<()>]>);

#[cfg(any(loom, netstack_loom))]
impl Shadow {
    pub(crate) fn new(len: usize) -> Self {
        Shadow((0..len).map(|_| loom::cell::UnsafeCell::new(())).collect())
    }
    pub(crate) fn read(&self, index: usize) {
        self.0[index].with(|_| ());
    }
    pub(crate) fn write(&self, index: usize) {
        self.0[index].with_mut(|_| ());
    }
}
