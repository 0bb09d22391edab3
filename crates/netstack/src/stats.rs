//! Counters. State counters are equal in all replicas; effect and pump counters belong to who
//! counted. All begin with 0 when the stack starts, and are never reset; 64 bits do not wrap in the
//! life of a machine.
//!
//! Their names in `nstat` and `netstat -s`; fields without a type are [`StateStats`]':
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
pub use dominoes_proto::stats::StateStats;

counters! {
    /// What the receive pump saw.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct PumpStats {
        /// Frames taken from the device.
        pub frames: u64,
        /// Segments among them that went into the log.
        pub segments: u64,
        /// Runs that these made up.
        pub runs: u64,
        /// Requests of all kinds.
        pub requests: u64,
        /// Frames too short, or with fields that contradict each other.
        pub malformed: u64,
        /// Frames that we sent to ourselves, or to groups in which we are, and that came back without
        /// having left.
        pub looped: u64,
        /// Frames for somebody else.
        pub not_ours: u64,
        /// Frames from addresses that no single host has, or that are ours.
        pub martians: u64,
        /// Frames of protocols that are not handled.
        pub unknown: u64,
        /// UDP datagrams that went into the log.
        pub datagrams: u64,
        /// Frames that the device had not divided, of several UDP datagrams.
        pub split: u64,
        /// UDP datagrams in them.
        pub pieces: u64,
        /// UDP datagrams for ports at which nobody is.
        pub no_port: u64,
        /// UDP datagrams of ours that were dropped because their next hop did not answer, and so
        /// answers to others, among them segments of no connection that would have had one.
        pub unresolved: u64,
        /// Fragments.
        pub fragments: u64,
        /// Datagrams that were put together from them.
        pub reassembled: u64,
        /// Fragments that no datagram can have, or that contradict others.
        pub bad_fragments: u64,
        /// Datagrams of which not all fragments came in time.
        pub reassembly_timeouts: u64,
        /// ICMP errors that we reported.
        pub reports: u64,
        /// ICMP errors that were not reported because there were too many.
        pub reports_limited: u64,
        /// ARP messages.
        pub arp: u64,
        /// Messages of others that use our addresses.
        pub conflicts: u64,
        /// ... that say a neighbour has another link-layer address, sooner than we believe it.
        pub neighbor_moves_rejected: u64,
        /// Messages of neighbours, routers and multicast listeners of IPv6.
        pub neighbor_messages: u64,
        /// Redirects that did not come from who forwards to their destination, or that are not heeded
        /// (RFC 4861 section 8).
        pub redirects_ignored: u64,
        /// Addresses of IPv6 that were another host's already (RFC 4862 section 5.4).
        pub duplicate_addresses: u64,
        /// Segments for addresses that are not ours: of IPv6, or of an address of IPv4 that was.
        pub foreign: u64,
        /// Echo requests answered.
        pub echo: u64,
        /// Echo replies.
        pub echo_replies: u64,
        /// ... that their socket lost because it read none while 256 newer ones came.
        pub echo_replies_unread: u64,
        /// Echo requests of sockets that were forgotten before a reply came, because 1,024 newer ones
        /// had none either: their replies reach no socket.
        pub echo_requests_forgotten: u64,
        /// ICMP errors about segments and datagrams of ours.
        pub network_errors: u64,
        /// Frames of ours (ARP, ICMP, ...) that were dropped because the device took none for long.
        pub control_dropped: u64,
        /// Times the log had no room, and frames waited.
        pub log_full: u64,
        /// Batches of frames that another worker parsed than the one that claimed them.
        pub helped: u64,
        /// Times that an idle connection had its memory given back, or had none to give.
        pub given_back: u64,
    }
}

impl PumpStats {
    /// What was looked at: frames, what was put together from them, and what was taken out of them.
    pub const fn inputs(&self) -> u64 {
        self.frames + self.looped + self.reassembled + self.pieces
    }

    /// What some counter accounts for: all of [`inputs`](Self::inputs).
    pub const fn outcomes(&self) -> u64 {
        let PumpStats {
            segments,
            datagrams,
            split,
            no_port,
            malformed,
            not_ours,
            martians,
            unknown,
            fragments,
            arp,
            neighbor_messages,
            echo,
            echo_replies,
            network_errors,
            // Counted besides: what a frame led to, and what is no frame.
            frames: _,
            looped: _,
            pieces: _,
            conflicts: _,
            duplicate_addresses: _,
            foreign: _,
            neighbor_moves_rejected: _,
            redirects_ignored: _,
            echo_replies_unread: _,
            echo_requests_forgotten: _,
            runs: _,
            requests: _,
            unresolved: _,
            reassembled: _,
            bad_fragments: _,
            reassembly_timeouts: _,
            reports: _,
            reports_limited: _,
            control_dropped: _,
            log_full: _,
            helped: _,
            given_back: _,
        } = *self;
        let known = segments + datagrams + no_port + fragments + arp + echo + network_errors;
        let known = known + neighbor_messages + echo_replies;
        known + split + malformed + not_ours + martians + unknown
    }
}

/// Counters of a running stack, from when it last had nothing to do, or lately if it is busy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StackStats {
    /// What the receive pump saw.
    pub pump: PumpStats,
    /// What the state went through.
    pub state: StateStats,
    /// What happened to the replicas, all zero in a stack that runs without a log. Only
    /// [`Stack::stats`](crate::Stack::stats) fills this in.
    pub membership: MembershipStats,
}

impl StackStats {
    /// Those of two groups together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        StackStats {
            pump: self.pump.and(other.pump),
            state: self.state.and(other.state),
            membership: self.membership.and(other.membership),
        }
    }
}

counters! {
    /// What one worker did.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct EffectStats {
        /// Requests whose checksums it verified.
        pub prepared: u64,
        /// Payload bytes among them that it copied while it verified them.
        pub stored_ahead: u64,
        /// Deliveries it completed.
        pub deliveries: u64,
        /// Bytes in them.
        pub delivered_bytes: u64,
        /// Frames it built.
        pub frames: u64,
        /// Payload bytes in them.
        pub sent_bytes: u64,
        /// Effects that found their connection gone or their frame built: replicas that disagree.
        pub diverged: u64,
        /// Effects and frames among them whose primary was another worker, which was late with them.
        pub stolen: u64,
        /// Requests that it was primary of, and has finished.
        pub requests: u64,
    }
}

/// What a worker of `locked` met at the lock. All zero in other variants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockStats {
    /// Times it took the lock.
    pub acquisitions: u64,
    /// ... of which somebody else held it.
    pub contended: u64,
    /// Nanoseconds that it waited in these. A free lock is not timed; a taken one costs two looks
    /// at the clock.
    pub waited_ns: u64,
    /// Segments that it applied.
    pub segments: u64,
    /// ... of which a segment that the pump took later, of any connection, had gone through the
    /// lock before.
    pub misordered: u64,
}

/// What a worker of any variant has done since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerStats {
    /// Requests that it applied.
    pub applied: u64,
    /// What it performed.
    pub effects: EffectStats,
    /// What it met at the lock.
    pub lock: LockStats,
}

/// [`EffectStats`] where other threads can read them.
///
/// Every counter is Relaxed: each is right by itself, and a reader may see them a moment apart.
#[derive(Debug, Default)]
pub(crate) struct PostedStats {
    words: [AtomicU64; 9],
}

impl PostedStats {
    pub(crate) fn post(&self, stats: &EffectStats) {
        for (word, value) in self.words.iter().zip(stats.words()) {
            word.store(value, Ordering::Relaxed);
        }
    }

    pub(crate) fn load(&self) -> EffectStats {
        let mut words = self.words.iter().map(|word| word.load(Ordering::Relaxed));
        let mut next = || words.next().unwrap_or(0);
        // In the order of `EffectStats::words`.
        EffectStats {
            prepared: next(),
            stored_ahead: next(),
            deliveries: next(),
            delivered_bytes: next(),
            frames: next(),
            sent_bytes: next(),
            diverged: next(),
            stolen: next(),
            requests: next(),
        }
    }
}

impl EffectStats {
    fn words(&self) -> [u64; 9] {
        let EffectStats {
            prepared,
            stored_ahead,
            deliveries,
            delivered_bytes,
            frames,
            sent_bytes,
            diverged,
            stolen,
            requests,
        } = *self;
        [
            prepared,
            stored_ahead,
            deliveries,
            delivered_bytes,
            frames,
            sent_bytes,
            diverged,
            stolen,
            requests,
        ]
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
        };
        let posted = PostedStats::default();
        posted.post(&stats);
        assert_eq!(posted.load(), stats);
    }
}
