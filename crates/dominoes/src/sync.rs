//! The one place that atomics, cells, locks and threads come from.
//!
//! Normally this is `std`. Under `cfg(loom)` it is loom's model of the same things, so that the
//! models in `tests/loom.rs` run the code as shipped, fences included. Under `cfg(netstack_loom)`,
//! in which `dominoes-netstack` runs models of its own, only what [`Exclusive`] is made of is
//! loom's. ThreadSanitizer does not
//! know fences: under `cfg(tsan)` the two orderings below turn "release fence, relaxed stores" into
//! release stores and "relaxed loads, acquire fence" into acquire loads; std's mutex, whose slow
//! path it does not see either, is replaced.

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

/// The slow path of std's mutex is compiled into std, which is not instrumented; ThreadSanitizer
/// sees through this one.
#[cfg(tsan)]
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(crate::exclusive::Exclusive<T>);

#[cfg(tsan)]
impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Mutex(crate::exclusive::Exclusive::new(value))
    }
    pub(crate) fn lock(&self) -> std::sync::LockResult<crate::exclusive::ExclusiveGuard<'_, T>> {
        loop {
            match self.0.try_take() {
                Some(guard) => return Ok(guard),
                None => thread::yield_now(),
            }
        }
    }
}

/// Ordering of a store that stands behind a `fence(Release)`.
pub(crate) const STORE_AFTER_FENCE: Ordering = if cfg!(tsan) {
    Ordering::Release
} else {
    Ordering::Relaxed
};

/// Ordering of a load that stands before a `fence(Acquire)`.
pub(crate) const LOAD_BEFORE_FENCE: Ordering = if cfg!(tsan) {
    Ordering::Acquire
} else {
    Ordering::Relaxed
};

/// One turn of a loop that waits for another thread.
#[inline]
pub(crate) fn spin_loop() {
    #[cfg(not(loom))]
    std::hint::spin_loop();
    #[cfg(loom)]
    loom::hint::spin_loop();
}

/// Tells loom which slots are read and written. Nothing at all in a normal build.
///
/// The slots themselves are plain contiguous memory in every build, because subscribers are lent
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
