//! The configuration of a group: its replicas, and how its workers share their work.

use super::Primaries;
use crate::config::PowersOfTwo;
use crate::error::ConfigError;
use crate::time::Duration;
use dominoes::group::MAX_REPLICAS;

dominoes_proto::settings! {
    /// How many replicas a group has, and how they work. No field changes the result.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Layout {
        /// Workers at the start, each with a copy of the state; 1 to 56. Default 2.
        pub replicas: usize = 2, 1..=MAX_REPLICAS, "1 to 56";
        /// Maximum number of workers; at most 56, or 8 with [`Primaries::ByLoad`]. 0 means
        /// `replicas`. Default 0.
        pub replica_slots: usize = 0, 0..=MAX_REPLICAS, "0 to 56";
        /// Whether the group chooses how many workers are active, between 1 and all slots, starting
        /// with `replicas`. The others are parked and have no state. One is unparked when the
        /// active ones are all busy and get the cores they need, and stays active if it improves
        /// throughput. Default false: every worker is active. A [`Builder`](crate::Builder) sets it
        /// unless told otherwise.
        pub autoscale: bool = false;
        /// The policy that assigns requests and frames to workers. Default
        /// [`Primaries::ByPublisher`].
        pub primaries: Primaries = Primaries::ByPublisher;
        /// Whether a worker performs the effects of a position only after a majority of the workers
        /// has posted an equal fingerprint for it: [`Builder::confirm`](crate::Builder::confirm).
        /// Default false.
        pub confirm: bool = false;
        /// How the workers share their work.
        pub tuning: GroupTuning = GroupTuning::default();
    }
}

dominoes_proto::settings! {
    /// How the workers of a group share their work: sizes of chunks, and when a worker is late.
    ///
    /// The defaults suit one worker per core of one machine. Other values change throughput,
    /// latency and memory, but not the result.
    ///
    /// ```
    /// use dominoes_drivers::memory::{self, MemoryConfig};
    /// use dominoes_netstack::{GroupTuning, Stack};
    /// use std::time::Duration;
    ///
    /// let (device, _peer) = memory::pair(MemoryConfig::default());
    /// let tuning = GroupTuning::default().log(1024).patience(Duration::from_millis(1));
    /// let _stack = Stack::builder("10.0.0.1/24").replicas(2).tuning(tuning).start(device)?;
    ///
    /// let (device, _peer) = memory::pair(MemoryConfig::default());
    /// let wrong = Stack::builder("10.0.0.1/24").replicas(2).tuning(tuning.frame_chunk(3));
    /// let error = wrong.start(device).unwrap_err().to_string();
    /// assert!(error.ends_with("up to 2^20"), "{error}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct GroupTuning {
        /// Requests that the log holds, a power of two from 16 to 2^20; in `locked` and
        /// `pipelined`, requests in flight, 64 to 65536. A longer log lets replicas lag farther
        /// behind each other, and takes more cache. Default 512.
        pub log: usize = 512, PowersOfTwo(4..=20), "a power of two from 16 to 2^20";
        /// Consecutive outgoing frames that one worker builds, a power of two up to 2^20, and after
        /// how many it tries to send. A chunk has at most 32, and at most a 16th of
        /// [`Limits::tx_slots`](crate::Limits::tx_slots). Default 32.
        pub frame_chunk: usize = 32, PowersOfTwo(0..=20), "a power of two up to 2^20";
        /// Payload, in bytes, that a worker may prepare before it performs it. It should fit in
        /// part of the L2 cache. Any value; 0 counts as 1. Default 256 KiB.
        pub ahead_bytes: usize = 256 << 10;
        /// A batch is late, and others may steal its work, once they have applied this many
        /// requests after it. Any value. Default 256.
        pub steal_after: usize = 256;
        /// Pending work is late, and others may steal it, once the oldest pending request has not
        /// changed for this long, by the clock that the workers are given. Any value. Default 200
        /// us.
        pub patience: Duration = Duration::from_micros(200) => into;
        /// The transmit pump sends frames past a hole (a frame that is not built yet) only if this
        /// many later frames are ready. Any value; above
        /// [`Limits::tx_slots`](crate::Limits::tx_slots), frames always wait for the hole. Default
        /// 256.
        pub past_hole: usize = 256;
        /// The hole must also have been there for this many turns of the transmit pump, so that
        /// another worker has time to build the frame. Any value. Default 256.
        pub hole_turns: u32 = 256;
        /// Requests between two posted fingerprints, at least 1. Default 64.
        pub fingerprint_every: u64 = 64, 1.., "at least 1";
        /// Whether the only active worker uses the log too, to measure the cost. Default false: it
        /// works as `single` until another one joins.
        #[cfg(feature = "testkit")]
        pub always_log: bool = false;
        /// Whether a [`Stack`](crate::Stack) replaces a worker thread that panicked. The new thread
        /// gets its state from the other workers. Default true.
        pub revive: bool = true;
    }
}

impl Layout {
    /// The number of replica slots, used or not.
    pub(super) fn slot_count(&self) -> usize {
        self.replica_slots.max(self.replicas)
    }

    /// The same, with values that sums and comparisons can use.
    pub(super) fn checked(mut self) -> Result<Self, ConfigError> {
        self.check()?;
        let tuning = &mut self.tuning;
        // With 0, a worker would always have enough.
        tuning.ahead_bytes = tuning.ahead_bytes.max(1);
        // No log gets that long.
        tuning.steal_after = tuning.steal_after.min(usize::MAX / 2);
        Ok(self)
    }

    fn check(&self) -> Result<(), ConfigError> {
        // The methods of the builder have the names of these fields.
        let own = self
            .out_of_range()
            .map(|(field, value, allowed)| (field.trim_start_matches("Layout::"), value, allowed));
        ConfigError::check(own.or_else(|| self.tuning.out_of_range()))?;
        if (1..self.replicas).contains(&self.replica_slots) {
            return Err(ConfigError::Conflict {
                what: "so many `replicas`",
                with: "so few of `replicas_up_to` or `replica_slots`",
                instead: "raise these, or lower `replicas`",
            });
        }
        if self.primaries == Primaries::ByLoad && self.slot_count() > 8 {
            return Err(ConfigError::OutOfRange {
                field: "replica_slots",
                value: self.slot_count() as u64,
                allowed: "1 to 8 with primaries by load",
            });
        }
        Ok(())
    }
}

impl GroupTuning {
    /// Whether the only active worker uses the log too.
    #[inline]
    pub(super) fn is_always_logged(&self) -> bool {
        #[cfg(feature = "testkit")]
        {
            self.always_log
        }
        #[cfg(not(feature = "testkit"))]
        false
    }
}
