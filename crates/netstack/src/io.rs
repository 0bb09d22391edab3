//! How a request travels, and the memory that it meets.
//!
//! ```text
//! device -> rx: parse, merge, publish -> prepare -> apply -> perform -> tx -> device
//!                                                                \-> stream -> application
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | `claim` | takes batches of frames from the device, and gives them back |
//! | `gro` | parses a batch: its segments become runs |
//! | `rx` | publishes runs and all else that replicas must know; answers neighbours and ICMP |
//! | `control` | what `rx` sends, outside of the log |
//! | `run` | the frames behind a request |
//! | `prepare` | verifies checksums |
//! | `perform` | performs the effects of `apply` ([`crate::state`]) |
//! | `tx` | holds numbered frames until they are built, and sends them in order |
//! | `stream`, `udp_queues` | memory that primaries share with applications |
//! | `processor` | works on every byte of a stream while it is copied |
//! | `units` | pieces of a stream that any worker may process |
//! | `direct` | does all steps at once, for a thread that has the state to itself |
//! | `record` | records what is published, and replays it |
//! | `world`, `view` | what all threads of a stack share, and what they show of themselves |
//!
//! [`crate::variants`] decides which thread calls what, and whether there is a log in between.

pub(crate) mod accept;
pub(crate) mod claim;
pub(crate) mod control;
pub(crate) mod copy;
pub(crate) mod direct;
pub(crate) mod echo;
pub(crate) mod gro;
pub(crate) mod perform;
pub(crate) mod prepare;
pub mod processor;
pub(crate) mod record;
mod run;
pub(crate) mod rx;
pub(crate) mod setup;
pub(crate) mod sleep;
pub(crate) mod stream;
pub(crate) mod sync;
pub(crate) mod tx;
pub(crate) mod udp_queues;
#[cfg(feature = "framed")]
pub(crate) mod units;
pub(crate) mod view;
pub(crate) mod world;

pub(crate) use dominoes_drivers::prefetch;
pub(crate) use run::{Batch, FrameRecycler, Frames, Indices, MAX_BATCH, Payload, Run};
