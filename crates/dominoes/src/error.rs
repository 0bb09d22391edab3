//! One error type per operation. A rejected value always returns to the caller.

use std::{any::Any, error::Error, fmt};

/// The channel is closed. Contains the value, which was not published.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Closed<T>(pub T);

/// The reason why [`try_publish`](crate::Publisher::try_publish) did not publish.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TryPublishError<T> {
    /// The slowest subscriber lags by `capacity` entries.
    Full(T),
    /// The channel is closed.
    Closed(T),
}

impl<T> TryPublishError<T> {
    /// Returns the value that was not published.
    pub fn into_inner(self) -> T {
        match self {
            TryPublishError::Full(value) | TryPublishError::Closed(value) => value,
        }
    }

    /// Whether the channel was full, so that trying again later may succeed.
    pub fn is_full(&self) -> bool {
        matches!(self, TryPublishError::Full(_))
    }
}

/// The reason why a batch was not published. A batch is published whole or not at all.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum BatchError<B> {
    /// There is no room for the whole batch now (only from `try_` and deadline calls).
    Full(B),
    /// The channel is closed.
    Closed(B),
    /// The batch is longer than the capacity of the channel and can never be published.
    TooLong(B),
}

impl<B> BatchError<B> {
    /// Returns the batch that was not published.
    pub fn into_inner(self) -> B {
        match self {
            BatchError::Full(batch) | BatchError::Closed(batch) | BatchError::TooLong(batch) => {
                batch
            }
        }
    }
}

/// The channel has the maximum of subscriptions; see [`MAX_SUBSCRIBERS`](crate::MAX_SUBSCRIBERS).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubscribeError;

/// The reason why [`try_next_batch`](crate::Subscription::try_next_batch) has no batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoBatch {
    /// No new entry is published at the moment.
    Empty,
    /// The channel is closed and every entry was read.
    Closed,
    /// This subscription was asked to leave; see [`Log::evict`](crate::Log::evict).
    Evicted,
}

/// The reason why [`DomainHandle::join`](crate::DomainHandle::join) has no state.
#[derive(Debug)]
#[non_exhaustive]
pub enum JoinError {
    /// A domain of the context panicked, with this payload. All domains of the context are gone.
    Panicked(Box<dyn Any + Send>),
    /// The domain was not in the context when the context ended: it was removed, or moved to
    /// another.
    Elsewhere,
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let JoinError::Panicked(payload) = self else {
            return f.write_str("the domain left the context before that ended");
        };
        f.write_str("a domain of the context panicked")?;
        let text = payload.downcast_ref::<&str>().copied();
        match text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)) {
            Some(text) => write!(f, ": {text}"),
            None => Ok(()),
        }
    }
}

impl Error for JoinError {}

impl<T> fmt::Debug for Closed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Closed(..)")
    }
}

impl<T> fmt::Display for Closed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the channel is closed")
    }
}

impl<T> Error for Closed<T> {}

impl<T> fmt::Debug for TryPublishError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TryPublishError::Full(_) => "Full(..)",
            TryPublishError::Closed(_) => "Closed(..)",
        })
    }
}

impl<T> fmt::Display for TryPublishError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TryPublishError::Full(_) => "the channel is full",
            TryPublishError::Closed(_) => "the channel is closed",
        })
    }
}

impl<T> Error for TryPublishError<T> {}

impl<B> fmt::Debug for BatchError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BatchError::Full(_) => "Full(..)",
            BatchError::Closed(_) => "Closed(..)",
            BatchError::TooLong(_) => "TooLong(..)",
        })
    }
}

impl<B> fmt::Display for BatchError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BatchError::Full(_) => "the channel has no room for the batch",
            BatchError::Closed(_) => "the channel is closed",
            BatchError::TooLong(_) => "the batch is longer than the channel's capacity",
        })
    }
}

impl<B> Error for BatchError<B> {}

impl fmt::Display for SubscribeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("every place for a subscription is taken")
    }
}

impl Error for SubscribeError {}

impl fmt::Display for NoBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NoBatch::Empty => "nothing new is published",
            NoBatch::Closed => "the channel is closed and drained",
            NoBatch::Evicted => "the subscription was asked to leave",
        })
    }
}

impl Error for NoBatch {}
