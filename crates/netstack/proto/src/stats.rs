//! Counters of the replicated state, which are equal in all replicas at the same position, and of
//! what arrives.
//!
//! All begin at 0 and are never reset; 64 bits do not wrap in the life of a machine.

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

/// Declares counters once: a struct of numbers, their sum, their names, and an array of them.
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

            #[doc(hidden)]
            pub const COUNT: usize = [$(stringify!($field)),*].len();

            /// The counters in the order of their declaration.
            #[doc(hidden)]
            pub const fn words(&self) -> [u64; Self::COUNT] {
                [$(self.$field),*]
            }

            #[doc(hidden)]
            pub const fn from_words([$($field),*]: [u64; Self::COUNT]) -> Self {
                $name { $($field),* }
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
        /// SYNs that were answered by a cookie because the SYN queue was full (RFC 4987 section
        /// 3.6).
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

counters! {
    /// Counts the input of the receive pump and of its IP host.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct PumpStats {
        /// Frames taken from the device.
        pub frames: u64,
        /// Segments in these frames that were written into the log.
        pub segments: u64,
        /// Runs of these segments: up to 60 segments of one flow that share a request.
        pub runs: u64,
        /// Requests of all kinds.
        pub requests: u64,
        /// Frames too short, or with fields that contradict each other.
        pub malformed: u64,
        /// Frames that we sent to our addresses, or to multicast groups that we joined, and that
        /// the stack delivered without sending them.
        pub looped: u64,
        /// Frames for other hosts.
        pub not_ours: u64,
        /// Frames from addresses that no single host may have, or that are ours.
        pub martians: u64,
        /// Frames of unsupported protocols.
        pub unknown: u64,
        /// SYNs that were held until the application decided.
        pub syns_held: u64,
        /// SYNs that were dropped instead, or later: too many were held, the checksum was wrong,
        /// the application dropped them, or did not decide in time.
        pub syns_dropped: u64,
        /// UDP datagrams that were written into the log.
        pub datagrams: u64,
        /// Frames of several UDP datagrams that the device had not divided.
        pub split: u64,
        /// UDP datagrams in these frames.
        pub pieces: u64,
        /// UDP datagrams for ports that no socket has.
        pub no_port: u64,
        /// UDP datagrams of ours that were dropped because their next hop did not answer; also
        /// answers to others, and segments of no connection that would have caused an answer.
        pub unresolved: u64,
        /// Fragments.
        pub fragments: u64,
        /// Datagrams reassembled from fragments.
        pub reassembled: u64,
        /// Fragments that no datagram can contain, or that contradict others.
        pub bad_fragments: u64,
        /// Datagrams whose fragments did not all arrive in time.
        pub reassembly_timeouts: u64,
        /// ICMP errors that we sent.
        pub reports: u64,
        /// ICMP errors that the rate limit suppressed.
        pub reports_limited: u64,
        /// ARP messages.
        pub arp: u64,
        /// Messages of other hosts that use our addresses.
        pub conflicts: u64,
        /// Claims of a new link-layer address for a neighbour, sooner than we accept a change.
        pub neighbor_moves_rejected: u64,
        /// Messages of neighbours, routers and multicast listeners of IPv6.
        pub neighbor_messages: u64,
        /// Redirects that did not come from the router in use for their destination, or that the
        /// configuration ignores (RFC 4861 section 8).
        pub redirects_ignored: u64,
        /// Answers of DHCP and DHCPv6 servers.
        pub dhcp_answers: u64,
        /// ... dropped because they were malformed, or did not answer a message of ours.
        pub dhcp_dropped: u64,
        /// IPv6 addresses that another host already had (RFC 4862 section 5.4).
        pub duplicate_addresses: u64,
        /// Segments for IPv6 addresses that are not ours, or for a former IPv4 address of ours.
        pub foreign: u64,
        /// Echo requests answered.
        pub echo: u64,
        /// Echo replies.
        pub echo_replies: u64,
        /// Echo replies that their socket lost because it read none while 256 newer ones arrived.
        pub echo_replies_unread: u64,
        /// Echo requests of sockets that were forgotten without a reply because 1,024 newer
        /// requests waited, too. Their replies reach no socket.
        pub echo_requests_forgotten: u64,
        /// ICMP errors about segments and datagrams of ours.
        pub network_errors: u64,
        /// Frames of ours (ARP, ICMP, ...) that were dropped because the device accepted none for
        /// long.
        pub control_dropped: u64,
        /// How often the log was full, so that frames waited.
        pub log_full: u64,
        /// Batches of frames that were claimed by one worker and parsed by another.
        pub helped: u64,
        /// How often an idle connection's memory was freed, or it had none to free.
        pub given_back: u64,
    }
}

impl PumpStats {
    /// All inputs: frames, packets reassembled from them, and packets extracted from them.
    pub const fn inputs(&self) -> u64 {
        self.frames + self.looped + self.reassembled + self.pieces
    }

    /// All outcomes; each of the [`inputs`](Self::inputs) is counted in one.
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
            dhcp_answers,
            dhcp_dropped,
            // Not outcomes: consequences of frames, and counts of other things than frames.
            frames: _,
            looped: _,
            pieces: _,
            conflicts: _,
            duplicate_addresses: _,
            foreign: _,
            syns_held: _,
            syns_dropped: _,
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
        let known = known + neighbor_messages + echo_replies + dhcp_answers + dhcp_dropped;
        known + split + malformed + not_ours + martians + unknown
    }
}
