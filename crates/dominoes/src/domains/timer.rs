//! Timers as a channel: O(1) start and cancel, expiries as entries.
//!
//! The dissertation (C. D. Sizemore, *Parallel network protocol stacks using replication*,
//! University of New Mexico, 2011, section 3.2.5) has two modes, and so has this module:
//!
//! * A domain owns its timers: it keeps a [`Wheel`] in its state, or a [`TimerFeed`] among its
//!   subscriptions.
//! * A third party owns the timers and publishes expiries into the domain's main channel:
//!   [`TimerPublisher`]. An expiry then has a position in the log like any other entry, so all
//!   replicas see it between the same two entries. Use this mode for replicated state, and the
//!   other one for state of a single domain.
//!
//! Time is a number of *ticks* from any origin, read from a [`Clock`]: one that runs, or one that
//! a test moves by hand.

mod channel;
mod wheel;

pub use channel::{Clock, ManualClock, SystemClock, TimerControl, TimerFeed, TimerPublisher};
pub use wheel::{TimerId, Wheel};

/// A point in time, in ticks. The user chooses the length of a tick, for example in
/// [`SystemClock::new`].
pub type Tick = u64;
