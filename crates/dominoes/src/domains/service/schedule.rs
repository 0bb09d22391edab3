//! Schedulers: which subscription is served next.

use super::FeedId;

/// A scheduler's view of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct FeedView {
    /// Its identifier.
    pub id: FeedId,
    /// Its priority; larger is more urgent.
    pub priority: u8,
    /// Number of its entries when the turn began.
    pub lag: u64,
    /// Whether its next entry had to wait at the last attempt.
    pub waiting: bool,
    /// Whether it was asked in this turn, and had no entries.
    pub asked: bool,
}

impl FeedView {
    pub(super) fn new(id: FeedId, priority: u8) -> Self {
        FeedView {
            id,
            priority,
            lag: 0,
            waiting: false,
            asked: false,
        }
    }
}

/// Chooses the subscription whose entries a [`Service`](crate::Service) handles next
/// (dissertation, section 3.2.4: the scheduler callback). A closure over the views will do:
///
/// ```
/// use dominoes::{FeedView, Service};
/// // The one with most to do.
/// let longest = |feeds: &[FeedView]| {
///     let open = feeds.iter().enumerate().filter(|(_, feed)| !feed.asked);
///     open.max_by_key(|(_, feed)| feed.lag).map(|(at, _)| at)
/// };
/// let service = Service::new(0, "busy", ()).with_scheduler(longest);
/// ```
pub trait Scheduler: Send {
    /// The index in `feeds` of the subscription to ask, which must not have been asked in this
    /// turn. `None` ends the turn.
    fn next(&mut self, feeds: &[FeedView]) -> Option<usize>;
}

impl<F: FnMut(&[FeedView]) -> Option<usize> + Send> Scheduler for F {
    fn next(&mut self, feeds: &[FeedView]) -> Option<usize> {
        self(feeds)
    }
}

/// Serves all subscriptions in turn.
#[derive(Debug, Default, Clone)]
pub struct RoundRobin {
    /// The subscription that was asked last.
    last: Option<FeedId>,
}

impl Scheduler for RoundRobin {
    fn next(&mut self, feeds: &[FeedView]) -> Option<usize> {
        let last = self.last;
        // Ids ascend, so the next one is the first that is larger.
        let after = |feed: &FeedView| last.is_some_and(|last| feed.id <= last);
        let next = (0..feeds.len())
            .filter(|at| !feeds[*at].asked)
            .min_by_key(|at| (after(&feeds[*at]), *at))?;
        self.last = Some(feeds[next].id);
        Some(next)
    }
}

/// Serves the most urgent subscription that has entries; among equals, the one that was added
/// first. A subscription that is never empty starves less urgent ones.
#[derive(Debug, Default, Clone, Copy)]
pub struct Priority;

impl Scheduler for Priority {
    fn next(&mut self, feeds: &[FeedView]) -> Option<usize> {
        (0..feeds.len())
            .filter(|at| !feeds[*at].asked)
            .max_by_key(|at| (feeds[*at].priority, std::cmp::Reverse(*at)))
    }
}
