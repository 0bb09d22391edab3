//! Settings and limits: defaults, ranges, and the reasons for them.
//!
//! `config.rs` of dominoes-netstack lists the bounds that are fixed.

use core::fmt;
use core::net::IpAddr;
use core::num::NonZero;
use core::ops::RangeBounds;

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

mod settings;

use crate::packet::flow::IpFields;
use crate::time::Duration;

/// The powers of two whose exponents are within a range.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct PowersOfTwo<R>(pub R);

impl<R: RangeBounds<u32>> PowersOfTwo<R> {
    /// Whether `value` is one of them.
    pub fn contains<T: Copy + TryInto<u64>>(&self, value: &T) -> bool {
        let value = (*value).try_into().unwrap_or(0);
        value.is_power_of_two() && self.0.contains(&value.trailing_zeros())
    }
}

crate::settings! {
    /// How an idle connection probes whether its peer still answers (RFC 1122 section 4.2.3.6).
    ///
    /// ```
    /// use dominoes_proto::config::Keepalive;
    /// use std::time::Duration;
    ///
    /// let keepalive = Keepalive::default().idle(Duration::from_secs(60)).probes(3);
    /// assert_eq!(keepalive.probes.get(), 3);
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
    pub struct Keepalive {
        /// How long a connection is idle before the first probe, 1 ms to 1 year. Default 2 hours,
        /// the minimum default that the RFC allows. The first probe may leave an eighth of this
        /// later.
        pub idle: Duration = Duration::from_secs(7200) => into;
        /// Pause between two probes without an answer, 1 ms to 1 year. Default 75 s.
        pub interval: Duration = Duration::from_secs(75) => into;
        /// Probes without an answer before the connection fails. Default 9.
        pub probes: NonZero<u8> = const { NonZero::new(9).unwrap() } => none;
    }
}

impl Keepalive {
    crate::settings! {
        /// Sets [`probes`](Self::probes); 0 counts as 1.
        fn probes(self, probes: u8) {
                self.probes = NonZero::new(probes).unwrap_or(NonZero::<u8>::MIN);
        }
    }

    /// Whether every value is within its range.
    pub fn is_valid(&self) -> bool {
        let range = Duration::from_millis(1)..=Duration::from_secs(365 * 24 * 3600);
        range.contains(&self.idle) && range.contains(&self.interval)
    }
}

crate::settings! {
    /// Settings of one connection, which the application changes by methods of its socket. The log
    /// carries them to the connection, like every change.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
    pub struct Settings {
        /// Whether Nagle's algorithm is off (RFC 9293 section 3.7.4).
        pub nodelay: bool = false;
        /// Probes of an idle peer. Default: none.
        pub keepalive: Option<Keepalive> = None;
        /// How long data or a probe may stay unacknowledged before the connection fails (RFC 9293
        /// section 3.8.3, RFC 5482 section 3). Default: none; the connection fails after
        /// [`DATA_RETRIES`](crate::tcp::DATA_RETRIES) retransmissions.
        pub user_timeout: Option<Duration> = None;
        /// TTL or hop limit of packets, 1 to 255 (RFC 1122 section 3.2.1.7). Default
        /// [`Settings::TTL`].
        pub ttl: u8 = Self::TTL, 1..=u8::MAX, "1 to 255";
        /// DSCP in the upper six bits (RFC 2474); the lower two belong to ECN, which TCP sets
        /// itself, and are 0 here. Default 0.
        pub tos: u8 = IpFields::DEFAULT.tos;
    }
}

impl Settings {
    /// The default TTL of packets: 64 (RFC 1700).
    pub const TTL: u8 = IpFields::DEFAULT.ttl;

    /// The fields of IP headers.
    pub fn ip(&self) -> IpFields {
        IpFields {
            ttl: self.ttl,
            tos: self.tos,
        }
    }

    /// Returns the settings with the ECN bits cleared, if every value is within its range.
    pub fn checked(mut self) -> Option<Settings> {
        self.tos &= !0b11;
        let keepalive = self.keepalive.is_none_or(|keepalive| keepalive.is_valid());
        let ranges = self.out_of_range().is_none();
        let valid = ranges && keepalive && self.user_timeout != Some(Duration::ZERO);
        valid.then_some(self)
    }
}

crate::settings! {
    /// Further settings of one connection, about memory and network. The log carries them to it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
    pub struct Tuning {
        /// Only full segments are sent, until this is switched off, the connection is shut down, or
        /// a retransmission timeout has passed. Default: no.
        pub cork: bool = false;
        /// Congestion control. Default: [`TcpPolicy::congestion`].
        pub congestion: Option<CongestionControl> = None;
        /// Maximum payload of a segment that we send, in bytes (RFC 9293 section 3.7.1), at least
        /// 64; peer and path may limit it further. 0, the default: no other limit. 536 passes
        /// everywhere (RFC 1122 section 4.2.2.6), even where ICMP errors of the path are lost.
        pub max_segment: u16 = 0;
        /// Bytes that the peer may send ahead of what the application has read, at least 1024; 0,
        /// the default: [`TcpPolicy::receive_window`] at first, then the result of autotuning. It
        /// bounds autotuning, and [`Limits::receive_buffer`] bounds it. An advertised window is not
        /// taken back (RFC 9293 section 3.8.6.2.1), so a smaller one takes effect as data arrives.
        pub receive_buffer: u32 = 0;
        /// Maximum number of written bytes that are not sent yet, at least 1; 0, the default: only
        /// the send ring limits them. Writes accept no more, and pollers report room while fewer
        /// than half of these bytes wait, like `TCP_NOTSENT_LOWAT` on Linux. A program that writes
        /// late can still choose its next message when much is in flight. Data counts as sent once
        /// windows and transmit slots allow it to leave.
        pub notsent_lowat: u32 = 0;
        /// How long a connection whose socket was dropped continues to send written data before it
        /// is reset. Zero: not at all. Default: until the peer has the data or stops answering.
        pub linger: Option<Duration> = None;
    }
}

impl Tuning {
    /// Returns the tuning, if every value is within its range.
    pub fn checked(self) -> Option<Tuning> {
        let valid = (self.max_segment == 0 || self.max_segment >= 64)
            && (self.receive_buffer == 0 || self.receive_buffer >= 1 << 10);
        valid.then_some(self)
    }
}

/// How a congestion window grows, and how it is reduced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[non_exhaustive]
pub enum CongestionControl {
    /// The window grows by one segment each round trip and halves after a loss (RFC 5681, RFC
    /// 6582).
    NewReno,
    /// The window grows by a cubic function of time towards its size before the last loss, and
    /// falls to seven tenths after one (RFC 9438).
    #[default]
    Cubic,
    /// BBR version 3 (draft-ietf-ccwg-bbr-06): paces at the rate that the path delivers, and keeps
    /// about twice the bandwidth-delay product in flight at most. For paths that lose without
    /// congestion: radio, tunnels, long distances. Up to 5 % of loss that comes without a queue
    /// costs little; above that, and beside flows that fill the queue, it slows down as the draft
    /// says. Queues stay shorter than with the others.
    ///
    /// Each acknowledgment costs more time than with the others, and a connection takes 700 bytes
    /// more. A peer without SACK gets CUBIC.
    Bbr,
}

impl CongestionControl {
    /// All algorithms, in order.
    pub const ALL: &'static [CongestionControl] = &[
        CongestionControl::NewReno,
        CongestionControl::Cubic,
        CongestionControl::Bbr,
    ];
}

/// Whether routers may mark packets instead of dropping them (RFC 3168).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[non_exhaustive]
pub enum Ecn {
    /// No.
    Never,
    /// If the peer asks for it.
    #[default]
    Accept,
    /// If the peer agrees: our SYN asks for it.
    Request,
}

crate::settings! {
    /// The behaviour of every connection of a stack where the standards leave a choice.
    /// [`Settings`] apply to one connection.
    ///
    /// ```
    /// use dominoes_proto::config::{CongestionControl, Ecn, Limits, TcpPolicy};
    ///
    /// let policy = TcpPolicy::default().congestion(CongestionControl::NewReno).ecn(Ecn::Request);
    /// Limits::default().tcp(policy).check()?;
    /// # Ok::<(), dominoes_proto::config::ConfigError>(())
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
    pub struct TcpPolicy {
        /// Congestion control. Default: CUBIC, like most hosts on the Internet.
        pub congestion: CongestionControl = CongestionControl::default();
        /// Explicit congestion notification. Default: if the peer asks for it.
        pub ecn: Ecn = Ecn::default();
        /// Initial receive window of a connection, in bytes, 2^10 to 2^30;
        /// [`Limits::receive_buffer`] bounds it. It grows up to that bound while the application
        /// reads more than half of it in a round trip. Default 2^30: the whole ring from the
        /// beginning.
        pub receive_window: u32 = 1 << 30, 1 << 10..=1 << 30, "1024 to 2^30";
        /// Probes of an idle peer, unless [`Settings::keepalive`] overrides it. Default: none.
        pub keepalive: Option<Keepalive> = None;
    }
}

crate::settings! {
    /// Limits of a group, equal in every replica. They belong to the log: a replay needs the same
    /// ones.
    ///
    /// ```
    /// use dominoes_proto::config::Limits;
    ///
    /// let limits = Limits::default().connections(10_000).mtu(9000);
    /// assert_eq!((limits.connections, limits.mss()), (10_000, 8960));
    /// limits.check()?;
    /// # Ok::<(), dominoes_proto::config::ConfigError>(())
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
    pub struct Limits {
        /// Maximum number of connections in each group, including those in TIME-WAIT or closing, 1
        /// to 2^20. Default 16,384.
        ///
        /// At the limit, a SYN is dropped, and an open fails with `SocketError::NoRoom`;
        /// [`StateStats::table_full`](crate::stats::StateStats::table_full) counts both. The same
        /// number of opens may also wait until a neighbour's link-layer address is known.
        ///
        /// Memory is allocated with use:
        ///
        /// - When it starts, a stack takes 44 bytes for each of these connections: 0.7 MiB by
        ///   default, 2.8 MiB for 65,536. It reserves address space for at most another
        ///   [`Limits::CONNECTION_BASE`] bytes each, which the first connection of a table entry
        ///   touches.
        /// - A connection that has carried no payload takes at most these bytes and
        ///   [`Limits::CONNECTION_PER_REPLICA`] in every replica.
        /// - The first byte that arrives allocates the connection's `receive_buffer`, and 8 bytes
        ///   for each request that the log holds. The first byte that is written allocates its
        ///   `send_buffer`. The next connection with the same table entry reuses both, so a stack
        ///   never has more than `connections` of each. Their pages come into memory as they are
        ///   used (Linux). When a connection has been idle for one or two seconds, its pages return
        ///   to the system if all received data is read and all written data acknowledged; the send
        ///   ring of a stream of units (TLS) stays. The pages of a closed connection return if it
        ///   has carried 64 KiB in their direction.
        /// - A replica that joins a running group gets a copy of the state, about 1 KiB for each
        ///   open connection. The replica that makes the copy does nothing else meanwhile.
        pub connections: u32 = 16_384, 1..=1 << 20, "1 to 2^20";
        /// Receive ring of a connection in bytes, a power of two from 2^10 to 2^30. Default 1 MiB.
        pub receive_buffer: u32 = 1 << 20, PowersOfTwo(10..=30), "a power of two from 1024 to 2^30";
        /// Send ring of a connection in bytes, a power of two from 2^10 to 2^30. A connection may
        /// use 64 KiB of it plus twice the number of bytes that its peer has acknowledged so far,
        /// so a peer that reads nothing takes little memory. Default 1 MiB.
        pub send_buffer: u32 = 1 << 20, PowersOfTwo(10..=30), "a power of two from 1024 to 2^30";
        /// Bytes that segments after a gap may occupy in the receive rings of all connections of
        /// the stack, in whole pages of 4 KiB: a single byte may occupy one. Each group has an
        /// equal share, which counts as at least twice `receive_buffer`. Any value. Default 32 MiB.
        ///
        /// A connection may take all of the free remainder once it has received more data in order
        /// than it holds after gaps, before that a sixteenth of it. Further segments are dropped
        /// and [counted](crate::stats::StateStats::gaps_refused).
        pub out_of_order: u32 = 32 << 20;
        /// Limit of frames that are numbered and unsent, a power of two from 4 to 2^20. Default
        /// 512.
        pub tx_slots: u32 = 512, PowersOfTwo(2..=20), "a power of two from 4 to 2^20";
        /// Largest IP packet in bytes, 68 to 65,535 (RFC 791). Default 1500.
        pub mtu: u16 = 1500, 68..=u16::MAX, "68 to 65535";
        /// Largest TCP payload of one outgoing frame in bytes, up to 65,475. A value above the MSS
        /// has an effect only if the device cuts frames into segments, and is lowered to the limit
        /// of the device. Default: 65,475.
        pub frame_payload: u32 = Self::MAX_FRAME_PAYLOAD, 0..=Self::MAX_FRAME_PAYLOAD, "0 to 65475";
        /// Frames that a connection or UDP socket may number in a turn, 1 to 2^20. Default 64.
        pub quantum: u32 = 64, 1..=1 << 20, "1 to 2^20";
        /// Maximum number of half-open connections, over all ports: the SYN queue (RFC 4987 section
        /// 2). SYNs beyond it, or beyond the backlog of their port, are answered with cookies,
        /// which take no memory. Never more than seven eighths of `connections`. 1 to 2^20. Default
        /// 128.
        pub syn_queue: u32 = 128, 1..=1 << 20, "1 to 2^20";
        /// Approximate limit of resets per second in answer to segments that no connection accepts;
        /// 0: none. Default 1000. Answers to ourselves do not count, here and below.
        ///
        /// All limits of answers are approximate: each second has another limit, between half of
        /// the configured number and one and a half times it.
        pub resets_per_second: u32 = 1000;
        /// Resets per second to one destination; 0: none. Default 250.
        pub resets_per_destination: u32 = 250;
        /// Approximate limit of challenge acknowledgments per second, over all connections (RFC
        /// 5961 section 7); 0: none. Default 1000. They answer segments that anyone may have
        /// forged: RST, SYN, and acknowledgments of data that was never sent. Other unacceptable
        /// segments, such as keepalive and window probes, are answered at most ten times a second
        /// for each connection.
        pub challenges_per_second: u32 = 1000;
        /// Challenge acknowledgments per second to one destination; 0: none. Default 100.
        pub challenges_per_destination: u32 = 100;
        /// Approximate limit of ICMP errors per second (RFC 1122 section 3.2.2); 0: none. Default
        /// 1000.
        pub errors_per_second: u32 = 1000;
        /// ICMP errors per second to one destination; 0: none. Default 10.
        pub errors_per_destination: u32 = 10;
        /// Maximum number of UDP sockets, 0 to 2^16. Default 64.
        pub udp_sockets: u32 = 64, 0..=1 << 16, "0 to 2^16";
        /// Receive queue of a UDP socket in bytes, including 32 for each datagram, a power of two
        /// from 2^10 to 2^30. Default 256 KiB.
        pub udp_receive_buffer: u32 = 1 << 18,
            PowersOfTwo(10..=30), "a power of two from 1024 to 2^30";
        /// Send queue of a UDP socket, in bytes as above. Default 256 KiB.
        pub udp_send_buffer: u32 = 1 << 18,
            PowersOfTwo(10..=30), "a power of two from 1024 to 2^30";
        /// Maximum number of datagrams of a UDP socket in one frame, if the device divides such
        /// frames; otherwise this is lowered to 1. They are adjacent in the send ring, go to one
        /// destination, and have equal lengths, except that the last one may be shorter. Every
        /// frame that is numbered and not sent yet has room for the longest such frame,
        /// independently of `frame_payload`. 1 to 64, where 1 puts each datagram into a separate
        /// frame. Default 64.
        pub datagrams_per_frame: u32 = Self::MAX_DATAGRAMS_PER_FRAME,
            1..=Self::MAX_DATAGRAMS_PER_FRAME, "1 to 64, where 1 gives each datagram a frame of its own";
        /// Bytes of incomplete datagrams that are kept, including overhead. Any value. Default 4
        /// MiB.
        pub reassembly_bytes: u32 = 4 << 20;
        /// Maximum number of incomplete datagrams. Any value. Default 1024.
        pub reassembly_datagrams: u32 = 1024;
        /// Maximum number of incomplete datagrams of one source. Any value. Default 64.
        pub reassembly_per_source: u32 = 64;
        /// Maximum number of fragments of one datagram. Any value. Default 2048: 64 KB in packets
        /// of 68 bytes, which every network accepts, are 1366 fragments.
        pub reassembly_pieces: u32 = 2048;
        /// Policy where the standards leave a choice. It is not a limit, but a replay needs it too.
        pub tcp: TcpPolicy = TcpPolicy::default();
        /// For tests: how many of a million uses of a connection off the fast path panic. The log
        /// determines which ones, so all replicas choose the same. Not recorded.
        #[cfg(feature = "testkit")]
        #[cfg_attr(feature = "serde", serde(skip))]
        pub panics_ppm: u32 = 0;
    }
}

/// Number of consecutive frames that share a chunk of `slots` transmit slots (a power of two):
/// the slots of a chunk are reused when all of its frames are sent. A power of two up to 32.
pub const fn tx_chunk(slots: u64) -> u64 {
    match slots / 16 {
        0 => 1,
        32.. => 32,
        chunk => chunk,
    }
}

impl Limits {
    /// Upper bound of the bytes of an idle connection that all replicas share, without rings.
    pub const CONNECTION_BASE: usize = 1024;
    /// Upper bound of the bytes of an idle connection in every replica.
    pub const CONNECTION_PER_REPLICA: usize = 2048;
    /// Payload of a 64 KB packet after 60 bytes of IP and TCP headers.
    pub const MAX_FRAME_PAYLOAD: u32 = 65_535 - 60;
    /// The maximum that Linux had for UDP segmentation when it introduced it.
    pub const MAX_DATAGRAMS_PER_FRAME: u32 = 64;
    /// Bytes of IPv4 and TCP headers without options.
    pub const HEADERS: u16 = 40;
    /// Bytes of IPv6 and TCP headers without extension headers and options.
    pub const HEADERS_V6: u16 = 60;

    /// The MSS that we announce: the MTU minus headers (RFC 9293 section 3.7.1).
    pub const fn mss(&self) -> u16 {
        self.mss_len() as u16
    }

    /// [`Limits::mss`] as a number of bytes.
    #[inline]
    pub const fn mss_len(&self) -> u32 {
        self.mtu as u32 - Self::HEADERS as u32
    }

    /// The MSS for an IPv6 peer; the IPv6 header is 20 bytes longer.
    pub const fn mss_v6(&self) -> u16 {
        self.mtu.saturating_sub(Self::HEADERS_V6)
    }

    /// The default settings of a connection.
    pub fn settings(&self) -> Settings {
        Settings::default().keepalive(self.tcp.keepalive)
    }

    /// Checks every bound.
    ///
    /// # Errors
    /// Which field is out of its range, and the range.
    pub fn check(&self) -> Result<(), ConfigError> {
        ConfigError::check(self.out_of_range().or_else(|| self.tcp.out_of_range()))?;
        if let Some(keepalive) = self.tcp.keepalive.filter(|it| !it.is_valid()) {
            return Err(ConfigError::OutOfRange {
                field: "TcpPolicy::keepalive",
                value: keepalive.idle.as_nanos(),
                allowed: "times from 1 ms to 1 year",
            });
        }
        Ok(())
    }
}

/// The names of the variants, in the order of `dominoes_netstack::variants::VariantKind`.
pub const VARIANT_NAMES: [&str; 9] = [
    "single",
    "locked",
    "locked-mcs",
    "locked-2",
    "locked-2-mcs",
    "locked-6",
    "locked-6-mcs",
    "pipelined",
    "replicated",
];

/// An invalid setting.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// A field is outside its range.
    OutOfRange {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The allowed values.
        allowed: &'static str,
    },
    /// Two settings exclude each other.
    Conflict {
        /// The requested setting.
        what: &'static str,
        /// The setting that excludes it.
        with: &'static str,
        /// The alternative.
        instead: &'static str,
    },
    /// A gateway is on no network of its interface, or is the stack itself.
    NotNeighbor {
        /// The gateway.
        gateway: IpAddr,
    },
    /// This build omits a feature that a setting needs.
    MissingFeature {
        /// The requested setting.
        what: &'static str,
        /// The feature of dominoes-netstack that provides it.
        feature: &'static str,
    },
    /// No variant has this name.
    UnknownVariant(String),
}

impl ConfigError {
    /// An error if there is a value that is not allowed: its field, it, and what is allowed.
    #[doc(hidden)]
    pub fn check(found: Option<(&'static str, u64, &'static str)>) -> Result<(), ConfigError> {
        match found {
            None => Ok(()),
            Some((field, value, allowed)) => Err(ConfigError::OutOfRange {
                field,
                value,
                allowed,
            }),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::OutOfRange {
                field,
                value,
                allowed,
            } => write!(f, "`{field}` is {value}; set it to {allowed}"),
            ConfigError::Conflict {
                what,
                with,
                instead,
            } => write!(f, "{what} cannot be had with {with}; {instead}"),
            ConfigError::NotNeighbor { gateway } => write!(
                f,
                "the gateway {gateway} is on no network of the interface; give it an address there"
            ),
            ConfigError::MissingFeature { what, feature } => write!(
                f,
                "{what} is not in this build; enable the feature `{feature}` of dominoes-netstack"
            ),
            ConfigError::UnknownVariant(name) => {
                let [others @ .., last] = VARIANT_NAMES;
                let others = others.join(", ");
                write!(f, "no variant is called `{name}`; say {others} or {last}")
            }
        }
    }
}

impl std::error::Error for ConfigError {}
