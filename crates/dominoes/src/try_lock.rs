//! A value that one thread takes at a time.

use crate::sync::{AtomicBool, Ordering, Shadow};
use std::{
    cell::UnsafeCell,
    fmt,
    ops::{Deref, DerefMut},
};

/// A value that at most one thread has at a time. Taking it never blocks: another thread holds it,
/// or the caller does.
///
/// ```
/// let pump = dominoes::TryLock::new(0);
/// let mut mine = pump.try_take().unwrap();
/// *mine += 1;
/// assert!(pump.try_take().is_none());
/// drop(mine);
/// assert_eq!(*pump.try_take().unwrap(), 1);
/// ```
///
/// Threads share it, and the value passes from one to another, so it must be [`Send`]:
///
/// ```compile_fail,E0277
/// fn sync<T: Sync>() {}
/// sync::<dominoes::TryLock<std::rc::Rc<u32>>>();
/// ```
#[repr(C)] // A small value is in the cache line of the flag.
pub struct TryLock<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
    shadow: Shadow,
}

// SAFETY: `taken` lets one thread at a time access the value, through `&mut`, so `T: Send` is
// enough (as for a mutex).
unsafe impl<T: Send> Sync for TryLock<T> {}

impl<T> TryLock<T> {
    /// Creates the value; no thread holds it.
    pub fn new(value: T) -> Self {
        TryLock {
            taken: AtomicBool::new(false),
            value: UnsafeCell::new(value),
            shadow: Shadow::new(1),
        }
    }

    /// Takes the value unless another thread holds it. Dropping the guard releases it.
    #[inline]
    pub fn try_take(&self) -> Option<TryLockGuard<'_, T>> {
        // Load before the compare-and-swap: a plain load leaves the cache line shared while another
        // thread holds the value.
        if self.taken.load(Ordering::Relaxed) {
            return None;
        }
        // ORDERING: Acquire, pairs with the Release in `TryLockGuard::drop`.
        match self
            .taken
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
        {
            Ok(_) => Some(TryLockGuard {
                lock: self,
                _lends: std::marker::PhantomData,
            }),
            Err(_) => None,
        }
    }

    /// Whether a thread holds the value now.
    pub fn is_taken(&self) -> bool {
        self.taken.load(Ordering::Relaxed)
    }

    /// Returns the value. No guard can exist any more.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T> fmt::Debug for TryLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TryLock")
            .field("taken", &self.is_taken())
            .finish()
    }
}

impl<T: Default> Default for TryLock<T> {
    fn default() -> Self {
        TryLock::new(T::default())
    }
}

/// Access to the value of a [`TryLock`]. Threads may share a guard only if they may share the
/// value:
///
/// ```compile_fail,E0277
/// fn sync<T: Sync>() {}
/// sync::<dominoes::TryLockGuard<'_, std::cell::Cell<u32>>>();
/// ```
pub struct TryLockGuard<'a, T> {
    lock: &'a TryLock<T>,
    /// A guard lends `&T` like a `&mut T` would, so it is `Sync` and `Send` exactly when that is.
    _lends: std::marker::PhantomData<&'a mut T>,
}

impl<T> Deref for TryLockGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        self.lock.shadow.read(0);
        // SAFETY: this guard is the only one (the compare and swap in `try_take`), and it is
        // borrowed.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for TryLockGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.lock.shadow.write(0);
        // SAFETY: as above, and borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for TryLockGuard<'_, T> {
    fn drop(&mut self) {
        // ORDERING: Release, pairs with the Acquire in `try_take`.
        self.lock.taken.store(false, Ordering::Release);
    }
}

impl<T: fmt::Debug> fmt::Debug for TryLockGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
