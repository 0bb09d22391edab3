//! Counters of the replicated state, which are equal in all replicas at the same position.
//!
//! All begin with 0 and are never reset; 64 bits do not wrap in the life of a machine.

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

/// Counters that are declared once: a struct of numbers, their sum, and their names.
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
            /// Both together, counter by counter.
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
    /// What the replicated state went through; the same in every replica at the same position.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
    #[non_exhaustive]
    pub struct StateStats {
        /// Requests applied.
        pub requests: u64,
        /// Segments that arrived in them.
        pub segments: u64,
        /// Segments dropped because their checksum was wrong.
        pub bad_checksum: u64,
        /// Segments for which there was no connection.
        pub no_connection: u64,
        /// SYNs dropped, and returned cookies, because the accept queue or the connection table was
        /// full.
        pub refused_syn: u64,
        /// SYNs and returned cookies that were dropped, and opens that failed with
        /// `SocketError::NoRoom`, because the connection table was full:
        /// there were [`Limits::connections`](crate::config::Limits::connections) connections, TIME-WAIT and
        /// closing ones included. The peer is told nothing; its SYN comes again and may find room then,
        /// so one peer may be counted several times. If this grows, raise that limit. SYNs and cookies
        /// counted here are counted by `refused_syn`, too.
        pub table_full: u64,
        /// SYNs that were answered by a cookie because the SYN queue was full (RFC 4987 section 3.6).
        pub cookies_sent: u64,
        /// Cookies that came back, and became connections.
        pub cookies_returned: u64,
        /// Segments for a listener that return no cookie, though some were under way.
        pub cookies_failed: u64,
        /// Resets that were sent: of connections, and to segments that no connection accepts.
        pub resets_sent: u64,
        /// Resets of peers that ended a connection.
        pub resets_received: u64,
        /// Resets that did not leave because there were too many in that second.
        pub resets_withheld: u64,
        /// Challenge acknowledgments (RFC 5961).
        pub challenges_sent: u64,
        /// ... that did not leave because there were too many in that second (RFC 5961 section 7).
        pub challenges_withheld: u64,
        /// Segments behind a gap that were dropped because the pages of all such segments would have
        /// been too many ([`Limits::out_of_order`](crate::config::Limits::out_of_order)). Their peers send them
        /// again.
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
        /// Segments sent again, with text or a FIN (`RetransSegs`).
        pub retransmitted: u64,
        /// ... without a timeout: because acknowledgments showed a loss (RFC 5681 section 3.2, RFC 8985),
        /// or as a probe of the tail.
        pub fast_retransmitted: u64,
        /// Retransmission timeouts (RFC 6298 section 5).
        pub timeouts: u64,
        /// Recoveries that SACK began (RFC 6675, RFC 8985).
        pub sack_recoveries: u64,
        /// Recoveries that three duplicate acknowledgments began, without SACK (RFC 6582).
        pub reno_recoveries: u64,
        /// Acknowledgments that say that something came twice (RFC 2883): it was sent again, or
        /// duplicated on its way.
        pub dsacks_received: u64,
        /// Reductions of congestion windows that were taken back, since nothing was lost (RFC 4015).
        pub undone: u64,
        /// Probes of closed windows (RFC 9293 section 3.8.6.1).
        pub window_probes: u64,
        /// Keepalive probes (RFC 9293 section 3.8.4).
        pub keepalive_probes: u64,
        /// Connections that ended because their peer did not answer, keepalive probes among other
        /// segments.
        pub timed_out: u64,
        /// Segments that arrived before an earlier one.
        pub out_of_order: u64,
        /// Segments with text that had arrived before.
        pub duplicates: u64,
        /// Connections that ended.
        pub closed: u64,
        /// ICMP errors that quoted nothing in flight, or said nothing new, and were ignored (RFC 5927).
        pub ignored_errors: u64,
        /// Connections whose TIME-WAIT was cut short because the table was nearly full.
        pub time_wait_evicted: u64,
        /// Connections that were reset because the code that handles them panicked: each is a bug worth
        /// a report.
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
        /// Fragments that datagrams of sockets were cut into.
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
