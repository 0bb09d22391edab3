//! Counters of the replicated state, which are equal in all replicas at the same position.
//!
//! All begin at 0 and are never reset; 64 bits do not wrap in the life of a machine.

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

/// Declares counters once: a struct of numbers, their sum, and their names.
#[doc(hidden)]
#[macro_export]
macro_rules! counters {
    ($(#[$about:meta])* pub struct $name:ident {
        $($(#[$doc:meta])* pub $field:ident: u64,)*
    }) => {
        $(#[$about])*
        pub struct $name {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl $name {
            /// The sum of both, counter by counter.
            #[must_use]
            pub const fn and(self, other: Self) -> Self {
                $name { $($field: self.$field + other.$field),* }
            }

            /// Every counter with its name.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field)),*].into_iter()
            }
        }
    };
}

counters! {
    /// Events of the replicated state; equal in every replica at the same position.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
    #[non_exhaustive]
    pub struct StateStats {
        /// Requests applied.
        pub requests: u64,
        /// Segments in these requests.
        pub segments: u64,
        /// Segments dropped because their checksum was wrong.
        pub bad_checksum: u64,
        /// Segments for which there was no connection.
        pub no_connection: u64,
        /// SYNs dropped, and returned cookies, because the accept queue or the connection table was
        /// full.
        pub refused_syn: u64,
        /// SYNs and returned cookies that were dropped, and opens that failed with
        /// `SocketError::NoRoom`, because the connection table was full: there were
        /// [`Limits::connections`](crate::config::Limits::connections) connections, including
        /// those in TIME-WAIT or closing. The peer gets no answer; it repeats its SYN, which
        /// may find room then, so one peer may be counted several times. If this grows, raise
        /// that limit. `refused_syn` also counts these SYNs and cookies.
        pub table_full: u64,
        /// SYNs that were answered by a cookie because the SYN queue was full (RFC 4987 section 3.6).
        pub cookies_sent: u64,
        /// Returned cookies that became connections.
        pub cookies_returned: u64,
        /// Segments for a listener without a valid cookie, while valid cookies were outstanding.
        pub cookies_failed: u64,
        /// Resets that were sent: for connections, and in answer to segments that no connection
        /// accepts.
        pub resets_sent: u64,
        /// Received resets that ended a connection.
        pub resets_received: u64,
        /// Resets that the rate limit of the second suppressed.
        pub resets_withheld: u64,
        /// Challenge acknowledgments (RFC 5961).
        pub challenges_sent: u64,
        /// ... that the rate limit of the second suppressed (RFC 5961 section 7).
        pub challenges_withheld: u64,
        /// Segments after a gap that were dropped because all such segments would have occupied
        /// too many pages ([`Limits::out_of_order`](crate::config::Limits::out_of_order)).
        /// Their peers retransmit them.
        pub gaps_refused: u64,
        /// Connections that were opened, by us or by a peer.
        pub opened: u64,
        /// Of these, by us (`ActiveOpens` of RFC 4022).
        pub opened_by_us: u64,
        /// Connections that ended in SYN-SENT or SYN-RECEIVED.
        pub failed_opens: u64,
        /// Connections whose handshake was completed.
        pub established: u64,
        /// ... that have left ESTABLISHED or CLOSE-WAIT since.
        pub no_longer_established: u64,
        /// Retransmitted segments with data or a FIN (`RetransSegs`).
        pub retransmitted: u64,
        /// ... without a timeout: because acknowledgments showed a loss (RFC 5681 section 3.2,
        /// RFC 8985), or as a tail loss probe.
        pub fast_retransmitted: u64,
        /// Retransmission timeouts (RFC 6298 section 5).
        pub timeouts: u64,
        /// Recoveries that SACK triggered (RFC 6675, RFC 8985).
        pub sack_recoveries: u64,
        /// Recoveries that three duplicate acknowledgments triggered, without SACK (RFC 6582).
        pub reno_recoveries: u64,
        /// Acknowledgments that report a range as received twice (RFC 2883): it was
        /// retransmitted, or duplicated in the network.
        pub dsacks_received: u64,
        /// Reductions of congestion windows that were undone, because nothing was lost (RFC 4015).
        pub undone: u64,
        /// Probes of closed windows (RFC 9293 section 3.8.6.1).
        pub window_probes: u64,
        /// Keepalive probes (RFC 9293 section 3.8.4).
        pub keepalive_probes: u64,
        /// Connections that ended because their peer did not answer segments, including
        /// keepalive probes.
        pub timed_out: u64,
        /// Segments that arrived before an earlier one.
        pub out_of_order: u64,
        /// Segments with data that had arrived before.
        pub duplicates: u64,
        /// Connections that ended.
        pub closed: u64,
        /// ICMP errors that were ignored because they quoted nothing in flight, or reported
        /// nothing new (RFC 5927).
        pub ignored_errors: u64,
        /// Connections whose TIME-WAIT was cut short because the table was nearly full.
        pub time_wait_evicted: u64,
        /// Connections that were reset because the code that handles them panicked: each is a
        /// bug worth a report.
        pub panicked: u64,
        /// UDP datagrams that arrived.
        pub datagrams: u64,
        /// ... dropped because their checksum was wrong.
        pub bad_datagrams: u64,
        /// ... dropped because their socket was gone.
        pub no_socket: u64,
        /// ... dropped because the socket's queue was full.
        pub queue_full: u64,
        /// UDP datagrams that sockets sent.
        pub sent_datagrams: u64,
        /// Fragments of datagrams of sockets.
        pub fragments_made: u64,
    }
}

impl StateStats {
    /// Connections that peers opened (`PassiveOpens` of RFC 4022).
    pub const fn passive_opens(&self) -> u64 {
        self.opened.saturating_sub(self.opened_by_us)
    }

    /// Connections in ESTABLISHED or CLOSE-WAIT (`CurrEstab` of RFC 4022).
    pub const fn currently_established(&self) -> u64 {
        self.established.saturating_sub(self.no_longer_established)
    }
}
