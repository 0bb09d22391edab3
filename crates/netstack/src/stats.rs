//! Counters. State counters are equal in all replicas; each worker has separate effect counters,
//! and each pump has pump counters. All begin with 0 when the stack starts, and are never reset;
//! 64 bits do not wrap in the life of a machine.
//!
//! Their names in `nstat` and `netstat -s`; a field without a type belongs to [`StateStats`]:
//!
//! | Linux | here |
//! |---|---|
//! | `TcpActiveOpens`, `TcpPassiveOpens` | `opened_by_us`, [`StateStats::passive_opens`] |
//! | `TcpAttemptFails` | `failed_opens` |
//! | `TcpEstabResets` | `resets_received`, of connections in any state |
//! | `TcpCurrEstab` | [`StateStats::currently_established`] |
//! | `TcpInSegs`, `TcpRetransSegs` | `segments`, `retransmitted` |
//! | `TcpInCsumErrors`, `TcpOutRsts` | `bad_checksum`, `resets_sent` |
//! | `TcpExtTCPTimeouts`, `TcpExtTCPFastRetrans` | `timeouts`, `fast_retransmitted` |
//! | `TcpExtTCPSackRecovery`, `TcpExtTCPRenoRecovery` | `sack_recoveries`, `reno_recoveries` |
//! | `TcpExtTCPDSACKRecv`; `TcpExtTCPFullUndo` and its like | `dsacks_received`; `undone` |
//! | `TcpExtTCPOFOQueue` | `out_of_order` |
//! | `TcpExtTCPChallengeACK` | `challenges_sent` |
//! | `TcpExtTCPWinProbe`, `TcpExtTCPKeepAlive` | `window_probes`, `keepalive_probes` |
//! | `TcpExtTCPAbortOnTimeout` | `timed_out` |
//! | `TcpExtSyncookiesSent`, `-Recv`, `-Failed` | `cookies_sent`, `cookies_returned`, `cookies_failed` |
//! | `TcpExtListenDrops` | `refused_syn`; without `table_full`, `TcpExtListenOverflows` |
//! | `UdpInDatagrams`, `UdpOutDatagrams` | `datagrams`, `sent_datagrams` |
//! | `UdpNoPorts` | [`PumpStats::no_port`] |
//! | `UdpInCsumErrors`, `UdpRcvbufErrors` | `bad_datagrams`, `queue_full` |
//! | `IpFragCreates` | `fragments_made` |
//! | `IpReasmReqds`, `IpReasmOKs` | [`PumpStats::fragments`], [`PumpStats::reassembled`] |
//! | `IpReasmFails` | [`PumpStats::bad_fragments`], [`PumpStats::reassembly_timeouts`] |
//! | `IPReversePathFilter`, martians of the log | [`PumpStats::martians`] |

use core::sync::atomic::{AtomicU64, Ordering};

pub use dominoes::group::MembershipStats;
use dominoes_proto::counters;
pub use dominoes_proto::stats::{PumpStats, StateStats};

/// Counters of a running stack, from its last idle moment, or recent ones if it is busy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StackStats {
    /// Counts the receive pump's input.
    pub pump: PumpStats,
    /// Counts the events of the state.
    pub state: StateStats,
    /// Counts changes of the replicas; all zero in a stack that runs without a log. Only
    /// [`Stack::stats`](crate::Stack::stats) sets this.
    pub membership: MembershipStats,
    /// Trials of autoscaling, of one replica more or less. Only
    /// [`Stack::stats`](crate::Stack::stats) sets this.
    pub scale_trials: u64,
    /// The reason of autoscaling's last decision; `None` before the first. Of several groups, the
    /// last one with a reason counts.
    pub scale_reason: Option<ScaleReason>,
}

impl StackStats {
    /// The sums of two groups' counters.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        StackStats {
            pump: self.pump.and(other.pump),
            state: self.state.and(other.state),
            membership: self.membership.and(other.membership),
            scale_trials: self.scale_trials + other.scale_trials,
            scale_reason: match other.scale_reason {
                Some(reason) => Some(reason),
                None => self.scale_reason,
            },
        }
    }
}

/// What autoscaling of one group did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(hidden)]
#[non_exhaustive]
pub struct AutoscaleStats {
    /// As [`StackStats::scale_trials`].
    pub trials: u64,
    /// As [`StackStats::scale_reason`].
    pub reason: Option<ScaleReason>,
}

impl AutoscaleStats {
    /// As one word, for other threads.
    pub(crate) fn to_word(self) -> u64 {
        self.trials << 8 | self.reason.map_or(0, |reason| reason as u64 + 1)
    }

    pub(crate) fn from_word(word: u64) -> Self {
        let code = (word & 0xff).checked_sub(1);
        let reason = ScaleReason::ALL
            .into_iter()
            .find(|&one| Some(one as u64) == code);
        AutoscaleStats {
            trials: word >> 8,
            reason,
        }
    }
}

/// Why autoscaling decided as it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScaleReason {
    /// One replica less can do the work.
    Idle,
    /// The last replica improves throughput: two separate measurements agreed.
    Helps,
    /// Another replica does not improve throughput.
    HelpsNot,
    /// The threads of the active replicas wait for cores, which other threads use.
    CoreTaken,
}

impl ScaleReason {
    const ALL: [ScaleReason; 4] = [
        ScaleReason::Idle,
        ScaleReason::Helps,
        ScaleReason::HelpsNot,
        ScaleReason::CoreTaken,
    ];
}

impl core::fmt::Display for ScaleReason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(match self {
            ScaleReason::Idle => "little to do",
            ScaleReason::Helps => "the last one helps",
            ScaleReason::HelpsNot => "one more does not help",
            ScaleReason::CoreTaken => "others use the cores",
        })
    }
}

counters! {
    /// Counts the work of one worker.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct EffectStats {
        /// Requests whose checksums the worker verified; in `pipelined`, messages with frames whose
        /// checksums a data stage found correct.
        pub prepared: u64,
        /// Payload bytes in these requests that it copied during the verification.
        pub stored_ahead: u64,
        /// Deliveries that it completed.
        pub deliveries: u64,
        /// Bytes in these deliveries.
        pub delivered_bytes: u64,
        /// Bytes of these that were copied for the delivery, and not during the verification.
        pub copied_bytes: u64,
        /// Frames that it built.
        pub frames: u64,
        /// Payload bytes in these frames.
        pub sent_bytes: u64,
        /// Effects whose connection was gone or whose frame was already built: the replicas
        /// disagree.
        pub diverged: u64,
        /// Effects and frames in these counts whose primary was another worker that was late.
        pub stolen: u64,
        /// Requests that it was primary of and has finished.
        pub requests: u64,
    }
}

/// Counts a `locked` worker's use of the lock. All zero in other variants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(hidden)]
#[non_exhaustive]
pub struct LockStats {
    /// How often it took the lock.
    pub acquisitions: u64,
    /// How often another worker held the lock then.
    pub contended: u64,
    /// Nanoseconds that it waited in these cases. A free lock is not timed; a taken lock costs
    /// two reads of the clock.
    pub waited_ns: u64,
    /// Segments that it applied.
    pub segments: u64,
    /// Segments that it applied after a segment of any connection that the pump had taken later.
    pub misordered: u64,
}

/// Counts the work of a worker of any variant since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(hidden)]
#[non_exhaustive]
pub struct WorkerStats {
    /// Requests that it applied.
    pub applied: u64,
    /// Counts its effects.
    pub effects: EffectStats,
    /// Counts its use of the lock.
    pub lock: LockStats,
}

/// [`EffectStats`] that other threads can read.
///
/// Every counter is Relaxed: each is right alone, but a reader may see them at different moments.
#[derive(Debug, Default)]
pub(crate) struct PostedStats {
    words: [AtomicU64; EffectStats::COUNT],
}

impl PostedStats {
    pub(crate) fn post(&self, stats: &EffectStats) {
        for (word, value) in self.words.iter().zip(stats.words()) {
            word.store(value, Ordering::Relaxed);
        }
    }

    pub(crate) fn load(&self) -> EffectStats {
        let words = core::array::from_fn(|i| self.words[i].load(Ordering::Relaxed));
        EffectStats::from_words(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_posted_is_read_back() {
        let stats = EffectStats {
            prepared: 1,
            deliveries: 2,
            delivered_bytes: 3,
            frames: 4,
            sent_bytes: 5,
            diverged: 6,
            stolen: 7,
            requests: 8,
            stored_ahead: 9,
            copied_bytes: 10,
        };
        let posted = PostedStats::default();
        posted.post(&stats);
        assert_eq!(posted.load(), stats);
        let reasons = ScaleReason::ALL.into_iter().map(Some).chain([None]);
        for (trials, reason) in (7..).zip(reasons) {
            let stats = AutoscaleStats { trials, reason };
            assert_eq!(AutoscaleStats::from_word(stats.to_word()), stats);
        }
    }
}
