//! Timers as a channel: O(1) start and cancel, expiries as entries.
//!
//! The dissertation (C. D. Sizemore, *Parallel network protocol stacks using replication*,
//! University of New Mexico, 2011, section 3.2.5) has two modes, and so has this module:
//!
//! * A domain has timers of its own: it keeps a [`Wheel`] in its state, or a [`TimerFeed`] among
//!   its subscriptions.
//! * A third party keeps the timers and publishes expiries into the domain's main channel:
//!   [`TimerPublisher`]. Then an expiry has a position in the log like everything else, so all
//!   replicas see it between the same two entries. State that is replicated wants this mode; the
//!   other one is for what a domain has to itself.
//!
//! Time is a number of *ticks* that somebody says, from any origin: a [`Clock`] that runs, or one
//! that a test moves by hand.

mod channel;
mod wheel;

pub use channel::{Clock, ManualClock, SystemClock, TimerControl, TimerFeed, TimerPublisher};
pub use wheel::{TimerId, Wheel};

/// A point in time, in ticks. What a tick is, the user decides: a [`SystemClock`] is told.
pub type Tick = u64;
