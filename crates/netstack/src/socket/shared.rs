//! Values that the clones of a socket share, and use one after another.

use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU64, Ordering};

use dominoes::{EventCount, TryLock, TryLockGuard};

use crate::error::SocketError;

/// A value of a socket that one user (a clone or half) holds for one call. A user may keep it
/// between two calls, after it borrowed bytes in place.
pub(super) struct Shared<T> {
    inner: TryLock<Inner<T>>,
    users: AtomicU64,
}

struct Inner<T> {
    value: T,
    /// The user that keeps it.
    keeper: Option<UserId>,
    /// Whether another user waits for the keeper.
    wanted: bool,
}

/// A user of a [`Shared`]; its number is unique for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UserId(u64);

impl<T: Default> Default for Shared<T> {
    fn default() -> Self {
        Shared::new(T::default())
    }
}

impl<T> Shared<T> {
    pub(super) fn new(value: T) -> Self {
        Shared {
            inner: TryLock::new(Inner {
                value,
                keeper: None,
                wanted: false,
            }),
            users: AtomicU64::new(0),
        }
    }

    /// Creates a user.
    pub(super) fn new_user(&self) -> UserId {
        UserId(self.users.fetch_add(1, Ordering::Relaxed))
    }

    /// Takes the value for a call of `user`, which no longer keeps it afterwards. Waits only
    /// while another user copies bytes. Users that want the value later are woken at `waiting`.
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`] if another user keeps it.
    pub(super) fn take<'a>(
        &'a self,
        user: UserId,
        waiting: &'a EventCount,
    ) -> Result<Taken<'a, T>, SocketError> {
        self.take_or(user, waiting, || {})
    }

    /// As [`Shared::take`]. If another user keeps the value, calls `kept` before that user can
    /// return it. So all threads that are woken by the return see the effects of `kept`.
    ///
    /// # Errors
    /// As [`Shared::take`].
    pub(super) fn take_or<'a>(
        &'a self,
        user: UserId,
        waiting: &'a EventCount,
        kept: impl FnOnce(),
    ) -> Result<Taken<'a, T>, SocketError> {
        let mut inner = self.inner();
        if inner.keeper.is_some_and(|keeper| keeper != user) {
            inner.wanted = true;
            kept();
            return Err(SocketError::WouldBlock);
        }
        let was_kept = inner.keeper.take().is_some();
        Ok(Taken {
            inner: Some(inner),
            was_kept,
            waiting,
        })
    }

    /// Reads or changes the value, even while a user keeps it.
    pub(super) fn with<R>(&self, look: impl FnOnce(&mut T) -> R) -> R {
        look(&mut self.inner().value)
    }

    fn inner(&self) -> TryLockGuard<'_, Inner<T>> {
        loop {
            match self.inner.try_take() {
                Some(inner) => return inner,
                None => std::thread::yield_now(),
            }
        }
    }
}

/// A [`Shared`] value that a user has taken.
pub(super) struct Taken<'a, T> {
    /// `None` while this is being dropped.
    inner: Option<TryLockGuard<'a, Inner<T>>>,
    was_kept: bool,
    waiting: &'a EventCount,
}

impl<T> Taken<'_, T> {
    /// Whether the user had kept the value until this call.
    pub(super) fn was_kept(&self) -> bool {
        self.was_kept
    }

    /// Lets `user` keep the value until it takes it again.
    pub(super) fn keep(mut self, user: UserId) {
        if let Some(inner) = &mut self.inner {
            inner.keeper = Some(user);
        }
    }
}

impl<T> Deref for Taken<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        let inner = self.inner.as_ref();
        &inner.expect("only dropping takes it out").value
    }
}

impl<T> DerefMut for Taken<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        let inner = self.inner.as_mut();
        &mut inner.expect("only dropping takes it out").value
    }
}

impl<T> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        let Some(mut inner) = self.inner.take() else {
            return;
        };
        if inner.wanted && inner.keeper.is_none() {
            inner.wanted = false;
            drop(inner);
            self.waiting.notify_all();
        }
    }
}
