//! The sources of a service's entries.

use super::Handled;
use crate::{Inactive, Meter, NoBatch, Receive, Seq, Subscription, Wait, WaitSet};
use std::{marker::PhantomData, sync::Arc};

/// The state of a [`Feed`] after the entries that were handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// There may be more entries.
    More,
    /// There are no more entries now.
    Empty,
    /// The next entry waits for something.
    Waiting,
    /// There will never be another entry.
    Ended,
}

/// The result of serving a [`Feed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// Number of entries handled.
    pub handled: usize,
    /// The state after them.
    pub then: Then,
}

/// A source of entries for a [`Service`](crate::Service) with state `S`: a subscription with a
/// handler, a timer channel, or your own kind.
pub trait Feed<S>: Send {
    /// Handles up to `limit` entries. Never blocks.
    fn serve(&mut self, state: &mut S, limit: usize) -> Served;

    /// Number of unhandled entries. May already be out of date.
    fn lag(&self) -> u64;

    /// Stops or resumes taking entries; see [`Service::deactivate`](crate::Service::deactivate).
    /// False, as by default, if the feed cannot.
    fn set_active(&mut self, active: bool) -> bool {
        let _ = active;
        false
    }

    /// Adds to `set` all sources that notify when there may be entries. Called while the feed has
    /// none.
    ///
    /// By default the set becomes [unknown](WaitSet::unknown), so the context of the service
    /// yields where it could sleep.
    fn wake_sources(&mut self, state: &mut S, set: &mut WaitSet) {
        let _ = state;
        set.unknown();
    }
}

/// A subscription and the handler of its entries.
pub(super) struct LogFeed<T, W: Wait, F, R> {
    active: Option<Subscription<T, W>>,
    inactive: Option<Inactive<T, W>>,
    handler: F,
    meter: Arc<Meter>,
    result: PhantomData<fn() -> R>,
}

impl<T, W: Wait, F, R> LogFeed<T, W, F, R> {
    pub(super) fn new(subscription: Subscription<T, W>, handler: F, meter: Arc<Meter>) -> Self {
        LogFeed {
            active: Some(subscription),
            inactive: None,
            handler,
            meter,
            result: PhantomData,
        }
    }
}

impl<S, T, W, F, R> Feed<S> for LogFeed<T, W, F, R>
where
    T: Send + Sync,
    W: Wait,
    F: FnMut(&mut S, Seq, &T) -> R + Send,
    R: Into<Handled>,
{
    fn serve(&mut self, state: &mut S, limit: usize) -> Served {
        let Some(subscription) = &mut self.active else {
            return Served {
                handled: 0,
                then: Then::Empty,
            };
        };
        let mut batch = match subscription.try_next_batch() {
            Ok(batch) => batch,
            Err(reason) => {
                let then = match reason {
                    NoBatch::Empty => Then::Empty,
                    NoBatch::Closed | NoBatch::Evicted => Then::Ended,
                };
                return Served { handled: 0, then };
            }
        };
        let first = batch.first_seq();
        let (mut end, mut then) = (first, Then::More);
        let (mut primary, mut stolen) = (0, 0);
        for (seq, entry) in batch.iter().take(limit) {
            match (self.handler)(state, seq, entry).into() {
                Handled::Done => {}
                Handled::Primary(units) => primary += u64::from(units),
                Handled::Stolen(units) => stolen += u64::from(units),
                Handled::Wait => {
                    then = Then::Waiting;
                    break;
                }
            }
            end = seq + 1;
        }
        // Unhandled entries stay for the next call.
        batch.truncate(end);
        drop(batch);
        if primary > 0 {
            self.meter.primary(primary);
        }
        if stolen > 0 {
            self.meter.stole(stolen);
        }
        Served {
            handled: (end - first) as usize,
            then,
        }
    }

    fn lag(&self) -> u64 {
        self.active.as_ref().map_or(0, Subscription::lag)
    }

    fn set_active(&mut self, active: bool) -> bool {
        if active && let Some(inactive) = self.inactive.take() {
            self.active = Some(inactive.activate());
        } else if !active && let Some(subscription) = self.active.take() {
            self.inactive = Some(subscription.deactivate());
        }
        true
    }

    fn wake_sources(&mut self, _: &mut S, set: &mut WaitSet) {
        if let Some(subscription) = &self.active {
            subscription.wake_sources(set);
        }
    }
}

/// The reading side of a channel of any kind, and the handler of its entries.
pub(super) struct ChannelFeed<T, C, F> {
    source: C,
    handler: F,
    entry: PhantomData<fn(&T)>,
}

impl<T, C, F> ChannelFeed<T, C, F> {
    pub(super) fn new(source: C, handler: F) -> Self {
        ChannelFeed {
            source,
            handler,
            entry: PhantomData,
        }
    }
}

impl<S, T, C: Receive<T>, F: FnMut(&mut S, &T) + Send> Feed<S> for ChannelFeed<T, C, F> {
    fn serve(&mut self, state: &mut S, limit: usize) -> Served {
        let handler = &mut self.handler;
        let found = self.source.receive(limit, |entry| handler(state, entry));
        let then = match found {
            Ok(_) => Then::More,
            Err(NoBatch::Empty) => Then::Empty,
            Err(NoBatch::Closed | NoBatch::Evicted) => Then::Ended,
        };
        Served {
            handled: found.unwrap_or(0),
            then,
        }
    }

    fn lag(&self) -> u64 {
        0
    }

    fn wake_sources(&mut self, _: &mut S, set: &mut WaitSet) {
        self.source.wake_sources(set);
    }
}
