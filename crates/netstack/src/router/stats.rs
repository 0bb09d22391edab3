//! The counters of a router.

dominoes_proto::counters! {
    /// Counts the work of a router, in packets unless a counter differs.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct RouterStats {
        /// Frames that arrived.
        pub received: u64,
        /// Passed to the queue of an interface, or to packets that wait for a neighbour's address.
        pub forwarded: u64,
        /// Cut into fragments.
        pub fragmented: u64,
        /// Addressed to the router.
        pub local: u64,
        /// Echo requests that the router answered.
        pub echo: u64,
        /// ARP messages.
        pub arp: u64,
        /// ARP messages of other hosts that claim an address of the router (RFC 5227 section 2.4).
        pub conflicts: u64,
        /// ICMP errors and redirects that the router sent.
        pub reports: u64,
        /// ICMP errors and redirects that the limits suppressed.
        pub reports_limited: u64,
        /// Dropped: the frame was for another station.
        pub not_ours: u64,
        /// Dropped: the header is wrong.
        pub malformed: u64,
        /// Dropped: no valid packet has this source or this destination.
        pub martians: u64,
        /// Dropped: the source is not reached through the interface at which the packet arrived.
        pub spoofed: u64,
        /// Dropped: multicast, broadcast, link-local, or in a frame to all stations.
        pub not_forwarded: u64,
        /// Dropped: the header contains a source route.
        pub source_routed: u64,
        /// Dropped: its time to live has expired.
        pub expired: u64,
        /// Dropped: no route leads there.
        pub no_route: u64,
        /// Dropped: too long for the next link, and must not be fragmented.
        pub too_long: u64,
        /// Dropped: the next link's device cannot send such a frame.
        pub unsupported: u64,
        /// Dropped: the next hop did not answer, or too many waited for it.
        pub unresolved: u64,
        /// Frames dropped: the interface's queue was full.
        pub overflowed: u64,
    }
}
