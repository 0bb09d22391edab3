//! What a group is made of, and how its workers share their work.

use super::Primaries;
use crate::config::setters;
use crate::error::ConfigError;
use crate::time::Duration;
use dominoes::group::MAX_REPLICAS;

/// What a group is made of. Nothing here changes what the group computes.
///
/// ```
/// use dominoes_netstack::group::{Layout, Primaries, GroupTuning};
///
/// let layout = Layout::default()
///     .replicas(3)
///     .primaries(Primaries::Greedy)
///     .tuning(GroupTuning::default().log(1024));
/// assert_eq!((layout.replicas, layout.tuning.log), (3, 1024));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Layout {
    /// Workers at the beginning, each with a copy of the state; 1 to 56. Default 2.
    pub replicas: usize,
    /// The most workers at a time; at most 56, or 8 with [`Primaries::ByLoad`]. Values below
    /// `replicas` count as `replicas`. Default 0.
    pub replica_slots: usize,
    /// Whether the group chooses how many workers are active, 1 to all of its slots; it begins with
    /// `replicas`. The others are parked, without a state, until the active ones have too much to
    /// do and one more improves throughput. Default false: every worker is active.
    pub autoscale: bool,
    /// The policy that assigns requests and frames to workers. Default [`Primaries::ByPublisher`].
    pub primaries: Primaries,
    /// Whether a worker performs nothing before a majority of the workers has posted the same
    /// fingerprint as itself, at every position: [`Builder::confirm`](crate::Builder::confirm).
    /// Default false.
    pub confirm: bool,
    /// How the workers share their work.
    pub tuning: GroupTuning,
}

/// How the workers of a group share their work: sizes of chunks, and when a worker is late.
///
/// The defaults suit a worker per core of one machine. Other values change throughput, latency and
/// memory, and nothing that the group computes.
///
/// ```
/// use dominoes_drivers::memory::{self, MemoryConfig};
/// use dominoes_netstack::Stack;
/// use dominoes_netstack::group::GroupTuning;
/// use std::time::Duration;
///
/// let (device, _peer) = memory::pair(MemoryConfig::default());
/// let tuning = GroupTuning::default().log(1024).patience(Duration::from_millis(1));
/// let _stack = Stack::builder("10.0.0.1/24").replicas(2).tuning(tuning).start(device)?;
///
/// let (device, _peer) = memory::pair(MemoryConfig::default());
/// let wrong = Stack::builder("10.0.0.1/24").replicas(2).tuning(tuning.request_chunk(3));
/// let error = wrong.start(device).unwrap_err().to_string();
/// assert!(error.ends_with("set it to a power of two, at most half the log"), "{error}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupTuning {
    /// Requests that the log holds, a power of two, at least 16. More let the replicas be farther
    /// apart, and take more of the cache. Default 512.
    pub log: usize,
    /// Requests in a row that one worker prepares and performs, a power of two, at most half the
    /// log. Default 4.
    pub request_chunk: usize,
    /// Outgoing frames in a row that one worker builds, a power of two. Default 32.
    pub frame_chunk: usize,
    /// Payload that a worker prepares ahead of performing it, in bytes; part of its L2 cache. Any
    /// value. Default 256 KiB.
    pub ahead_bytes: usize,
    /// When others do the work of a late worker, in requests: once they have applied so many behind
    /// the chunk in question. Any value. Default 256.
    pub steal_after: usize,
    /// When others do the work of a late worker, in time: once nothing of what is due was done for
    /// so long, by the clock that the workers are given. Any value. Default 200 us.
    pub patience: Duration,
    /// Frames that are sent past one that is not built: so many must be ready behind it. Any value;
    /// above [`Limits::tx_slots`](crate::Limits::tx_slots), frames always wait for it. Default 256.
    pub past_hole: usize,
    /// Turns of the transmit pump that must also have found it missing, so that another worker has
    /// time to build it. Any value. Default 256.
    pub hole_turns: u32,
    /// Requests between two posted fingerprints, at least 1. Default 64.
    pub fingerprint_every: u64,
    /// Whether a worker that is alone uses the log nevertheless, for measuring what that costs.
    /// Default false: such a worker does everything at once, as [`single`](crate::variants::single)
    /// does, until another one joins.
    #[cfg(feature = "testkit")]
    #[doc(hidden)]
    pub always_log: bool,
    /// Whether a [`Stack`](crate::Stack) starts another thread for one that unwound. It gets its
    /// state from the others. Default true.
    pub revive: bool,
}

impl Default for Layout {
    fn default() -> Self {
        Layout {
            replicas: 2,
            replica_slots: 0,
            autoscale: false,
            primaries: Primaries::ByPublisher,
            confirm: false,
            tuning: GroupTuning::default(),
        }
    }
}

impl Default for GroupTuning {
    fn default() -> Self {
        GroupTuning {
            log: 512,
            request_chunk: 4,
            frame_chunk: 32,
            ahead_bytes: 256 << 10,
            steal_after: 256,
            patience: Duration::from_micros(200),
            past_hole: 256,
            hole_turns: 256,
            fingerprint_every: 64,
            #[cfg(feature = "testkit")]
            always_log: false,
            revive: true,
        }
    }
}

impl Layout {
    setters! {
        replicas: usize;
        replica_slots: usize;
        autoscale: bool;
        primaries: Primaries;
        confirm: bool;
        tuning: GroupTuning;
    }

    /// The number of replica slots, used or not.
    pub(super) fn slot_count(&self) -> usize {
        self.replica_slots.max(self.replicas)
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if !(1..=MAX_REPLICAS).contains(&self.replicas) {
            return fail("replicas", self.replicas, "1 to 56");
        }
        if self.replica_slots > MAX_REPLICAS {
            return fail("replica_slots", self.replica_slots, "0 to 56");
        }
        if (1..self.replicas).contains(&self.replica_slots) {
            return Err(ConfigError::Conflict {
                what: "so many `replicas`",
                with: "so few of `replicas_up_to` or `replica_slots`",
                instead: "raise these, or lower `replicas`",
            });
        }
        if self.primaries == Primaries::ByLoad && self.slot_count() > 8 {
            return fail(
                "replica_slots",
                self.slot_count(),
                "1 to 8 with primaries by load",
            );
        }
        self.tuning.check()
    }
}

impl GroupTuning {
    /// Whether a worker that is alone uses the log nevertheless.
    #[inline]
    pub(super) fn is_always_logged(&self) -> bool {
        #[cfg(feature = "testkit")]
        {
            self.always_log
        }
        #[cfg(not(feature = "testkit"))]
        false
    }

    setters! {
        log: usize;
        request_chunk: usize;
        frame_chunk: usize;
        ahead_bytes: usize;
        steal_after: usize;
        past_hole: usize;
        hole_turns: u32;
        fingerprint_every: u64;
        #[cfg(feature = "testkit")]
        #[doc(hidden)]
        always_log: bool;
        revive: bool;
    }

    /// Sets `patience`: see the [field](Self#structfield.patience).
    #[must_use]
    pub fn patience(mut self, patience: impl Into<Duration>) -> Self {
        self.patience = patience.into();
        self
    }

    fn check(&self) -> Result<(), ConfigError> {
        if !self.log.is_power_of_two() || self.log < 16 {
            return fail("Tuning::log", self.log, "a power of two, at least 16");
        }
        if !self.request_chunk.is_power_of_two() || self.request_chunk > self.log / 2 {
            return fail(
                "Tuning::request_chunk",
                self.request_chunk,
                "a power of two, at most half the log",
            );
        }
        if !self.frame_chunk.is_power_of_two() {
            return fail("Tuning::frame_chunk", self.frame_chunk, "a power of two");
        }
        if self.fingerprint_every == 0 {
            return fail("Tuning::fingerprint_every", 0, "at least 1");
        }
        Ok(())
    }
}

fn fail(field: &'static str, value: usize, allowed: &'static str) -> Result<(), ConfigError> {
    Err(ConfigError::OutOfRange {
        field,
        value: value as u64,
        allowed,
    })
}
