//! What can be set: defaults, ranges, and the reasons for them.
//!
//! `config.rs` of dominoes-netstack lists the bounds that nothing sets.

use core::num::NonZero;

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

mod error;

use crate::packet::flow::IpFields;
use crate::time::Duration;
pub use error::{ConfigError, VARIANT_NAMES};

/// One method for each field of a struct that sets it and returns the struct: so it can be built
/// outside this crate, though fields may be added to it.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    ($($(#[$attribute:meta])* $field:ident: $kind:ty $(as $wrap:path)?;)*) => {$(
        #[doc = concat!(
            "Sets `", stringify!($field), "`: see the [field](Self#structfield.", stringify!($field), ").",
        )]
        $(#[$attribute])*
        #[must_use]
        pub fn $field(mut self, $field: $kind) -> Self {
            self.$field = $($wrap)? ($field);
            self
        }
    )*};
}
pub use crate::setters;

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
#[non_exhaustive]
pub struct Keepalive {
    /// How long a connection is idle before the first probe, 1 ms to 1 year. Default 2 hours, the
    /// least default that the RFC allows. The first probe may leave an eighth of this later.
    pub idle: Duration,
    /// Pause between two probes without an answer, 1 ms to 1 year. Default 75 s.
    pub interval: Duration,
    /// Probes without an answer before the connection fails. Default 9.
    pub probes: NonZero<u8>,
}

impl Default for Keepalive {
    fn default() -> Self {
        Keepalive {
            idle: Duration::from_secs(7200),
            interval: Duration::from_secs(75),
            probes: const { NonZero::new(9).unwrap() },
        }
    }
}

impl Keepalive {
    /// Sets [`idle`](Self::idle).
    #[must_use]
    pub fn idle(mut self, idle: impl Into<Duration>) -> Self {
        self.idle = idle.into();
        self
    }

    /// Sets [`interval`](Self::interval).
    #[must_use]
    pub fn interval(mut self, interval: impl Into<Duration>) -> Self {
        self.interval = interval.into();
        self
    }

    /// Sets [`probes`](Self::probes); 0 counts as 1.
    #[must_use]
    pub fn probes(mut self, probes: u8) -> Self {
        self.probes = NonZero::new(probes).unwrap_or(NonZero::<u8>::MIN);
        self
    }

    /// Whether every value is within its range.
    pub fn is_valid(&self) -> bool {
        let range = Duration::from_millis(1)..=Duration::from_secs(365 * 24 * 3600);
        range.contains(&self.idle) && range.contains(&self.interval)
    }
}

/// What an application sets for one connection, by the methods of its socket. The log carries it to
/// the connection, as all else that changes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[non_exhaustive]
pub struct Settings {
    /// Nagle's algorithm is off (RFC 9293 section 3.7.4).
    pub nodelay: bool,
    /// Probes of an idle peer. Default: none.
    pub keepalive: Option<Keepalive>,
    /// How long data or a probe may stay unacknowledged before the connection fails (RFC 9293
    /// section 3.8.3, RFC 5482 section 3). Default: none; the connection fails after
    /// [`DATA_RETRIES`](crate::tcp::DATA_RETRIES) retransmissions.
    pub user_timeout: Option<Duration>,
    /// Hops that packets may make, 1 to 255 (RFC 1122 section 3.2.1.7). Default [`Settings::TTL`].
    pub ttl: u8,
    /// DSCP in the upper six bits (RFC 2474); the lower two are ECN's, which TCP sets itself, and 0
    /// here. Default 0.
    pub tos: u8,
}

impl Settings {
    /// Hops that packets may make unless something else is set: 64 (RFC 1700).
    pub const TTL: u8 = IpFields::DEFAULT.ttl;

    setters! {
        nodelay: bool;
        keepalive: Option<Keepalive>;
        user_timeout: Option<Duration>;
        ttl: u8;
        tos: u8;
    }
}

impl Settings {
    /// What of them stands in IP headers.
    pub fn ip(&self) -> IpFields {
        IpFields {
            ttl: self.ttl,
            tos: self.tos,
        }
    }

    /// The same as connections have them, if every value is within its range.
    pub fn checked(mut self) -> Option<Settings> {
        self.tos &= !0b11;
        let keepalive = self.keepalive.is_none_or(|keepalive| keepalive.is_valid());
        let valid = keepalive && self.ttl > 0 && self.user_timeout != Some(Duration::ZERO);
        valid.then_some(self)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            nodelay: false,
            keepalive: None,
            user_timeout: None,
            ttl: IpFields::DEFAULT.ttl,
            tos: IpFields::DEFAULT.tos,
        }
    }
}

/// What an application sets for one connection besides its [`Settings`]: how much of memory and
/// network it takes. The log carries it to the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[non_exhaustive]
pub struct Tuning {
    /// Only full segments leave, until this is switched off, the connection is shut down, or a
    /// retransmission timeout has passed. Default: no.
    pub cork: bool,
    /// Congestion control. Default: [`TcpPolicy::congestion`].
    pub congestion: Option<CongestionControl>,
    /// Largest payload of a segment that we send, in bytes (RFC 9293 section 3.7.1), at least 64;
    /// 0, the default: what peer and path take, which it does not exceed. 536 passes everywhere (RFC
    /// 1122 section 4.2.2.6), also where ICMP errors of the path are lost.
    pub max_segment: u16,
    /// Bytes that the peer may send ahead of what the application has read, at least 1024; 0, the
    /// default: [`TcpPolicy::receive_window`] at first, and what autotuning finds. It bounds
    /// autotuning, and is itself bounded by [`Limits::receive_buffer`]. A window that was
    /// advertised is not taken back (RFC 9293 section 3.8.6.2.1), so a smaller one takes effect as
    /// data arrives.
    pub receive_buffer: u32,
    /// Bytes that may be written and not sent yet, at least 1; 0, the default: the send ring alone is
    /// the bound. Writes take no more, and pollers report room while fewer than half of these bytes
    /// wait, as Linux does it for `TCP_NOTSENT_LOWAT`. A program that writes late can still choose
    /// its next message when much is in flight. Text counts as sent when windows and transmit slots
    /// let it leave.
    pub notsent_lowat: u32,
    /// How long a connection that was let go of goes on with what was written, before it is reset.
    /// Zero: not at all. Default: until the peer has it or does not answer any more.
    pub linger: Option<Duration>,
}

impl Tuning {
    setters! {
        cork: bool;
        congestion: Option<CongestionControl>;
        max_segment: u16;
        receive_buffer: u32;
        notsent_lowat: u32;
        linger: Option<Duration>;
    }

    /// The same, if every value is within its range.
    pub fn checked(self) -> Option<Tuning> {
        let valid = (self.max_segment == 0 || self.max_segment >= 64)
            && (self.receive_buffer == 0 || self.receive_buffer >= 1 << 10);
        valid.then_some(self)
    }
}

/// How a congestion window opens and falls.
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
}

impl CongestionControl {
    /// All of them, in order.
    pub const ALL: &'static [CongestionControl] =
        &[CongestionControl::NewReno, CongestionControl::Cubic];
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

/// What every connection of a stack does where the standards leave a choice. What one connection
/// does is in [`Settings`].
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
#[non_exhaustive]
pub struct TcpPolicy {
    /// Congestion control. Default: CUBIC, as most hosts on the Internet do it.
    pub congestion: CongestionControl,
    /// Explicit congestion notification. Default: when the peer asks for it.
    pub ecn: Ecn,
    /// How far a connection lets its peer send when it begins, in bytes, 2^10 to 2^30; what is more
    /// than [`Limits::receive_buffer`] counts as that. It widens up to there when the application
    /// reads more in a round trip than half of it. Default 2^30: all of the ring from the
    /// beginning.
    pub receive_window: u32,
    /// Probes of an idle peer, unless [`Settings::keepalive`] of a connection says something else.
    /// Default: none.
    pub keepalive: Option<Keepalive>,
}

impl TcpPolicy {
    setters! {
        congestion: CongestionControl;
        ecn: Ecn;
        receive_window: u32;
        keepalive: Option<Keepalive>;
    }
}

impl Default for TcpPolicy {
    fn default() -> Self {
        TcpPolicy {
            congestion: CongestionControl::default(),
            ecn: Ecn::default(),
            receive_window: 1 << 30,
            keepalive: None,
        }
    }
}

/// Bounds of a group, the same in every replica. They belong to the log: replaying needs the same
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
#[non_exhaustive]
pub struct Limits {
    /// Connections at a time in each group, TIME-WAIT and closing ones included, 1 to 2^20. Default
    /// 16,384.
    ///
    /// When so many are open, a SYN is dropped, and an open fails with
    /// `SocketError::NoRoom`;
    /// [`StateStats::table_full`](crate::stats::StateStats::table_full) counts both. As many opens
    /// may wait besides until a neighbour's link-layer address is known.
    ///
    /// Memory is allocated with use:
    ///
    /// - When it starts, a stack takes 44 bytes for each of these connections: 0.7 MiB by default,
    ///   2.8 MiB for 65,536. It reserves address space for another [`Limits::CONNECTION_BASE`]
    ///   bytes each at most, which the first connection of a table entry touches.
    /// - A connection that has carried no payload takes at most these bytes and
    ///   [`Limits::CONNECTION_PER_REPLICA`] in every replica.
    /// - The first byte that arrives allocates the connection's `receive_buffer` and 8 bytes for
    ///   each request that the log holds. The first byte that is written allocates its
    ///   `send_buffer`. The next connection with the same entry of the table uses both again, so a
    ///   stack never has more than `connections` of each. They are in memory page by page as they
    ///   are used (Linux). The pages of a connection that has been idle for one or two seconds
    ///   return to the system if all is read that arrived, and acknowledged that was written; the
    ///   send ring of a stream of units (TLS) stays. Of a closed connection they return if it has
    ///   carried 64 KiB in their direction.
    /// - A replica that joins a running group gets a copy of the state, about 1 KiB for each open
    ///   connection. The replica that makes the copy does nothing else meanwhile.
    pub connections: u32,
    /// Receive ring of a connection in bytes, a power of two from 2^10 to 2^30. Default 1 MiB.
    pub receive_buffer: u32,
    /// Send ring of a connection in bytes, a power of two from 2^10 to 2^30. A connection may hold
    /// 64 KiB of it and twice what its peer has acknowledged so far, so a peer that reads nothing
    /// takes little memory. Default 1 MiB.
    pub send_buffer: u32,
    /// Bytes that segments behind a gap may take in the receive rings of all connections of the
    /// stack, in whole pages of 4 KiB, of which a byte may take one. Each group has an equal share
    /// of it, which counts as at least twice `receive_buffer`. Any value. Default 32 MiB.
    ///
    /// A connection may take as much as is left, or a sixteenth of that before it has received as
    /// much in order. More is dropped, and [counted](crate::stats::StateStats::gaps_refused).
    pub out_of_order: u32,
    /// Frames that are numbered and not sent yet, a power of two from 4 to 2^20. Default 512.
    pub tx_slots: u32,
    /// Largest IP packet in bytes, 68 to 65,535 (RFC 791). Default 1500.
    pub mtu: u16,
    /// Largest TCP payload of one outgoing frame in bytes, up to 65,475. Above the MSS it counts
    /// only where the device cuts frames into segments, and is lowered to what the device takes.
    /// Default: 65,475.
    pub frame_payload: u32,
    /// Frames that one connection or UDP socket may number before others that wait, 1 to 2^20.
    /// Default 64.
    pub quantum: u32,
    /// Connections that may be half open at a time, over all ports: the SYN queue (RFC 4987 section
    /// 2). SYNs beyond it, or beyond the backlog of their port, are answered by cookies, which take
    /// no memory. Never more than seven eighths of `connections`. 1 to 2^20. Default 128.
    pub syn_queue: u32,
    /// Resets per second of segments that no connection accepts, about; 0: none. Default 1000. What
    /// we send to ourselves is not counted, here and below.
    ///
    /// "About" holds for all limits of answers: each second has another limit, between half of this
    /// number and one and a half times it.
    pub resets_per_second: u32,
    /// Of these, to one destination; 0: none. Default 250.
    pub resets_per_destination: u32,
    /// Challenge acknowledgments per second, over all connections, about (RFC 5961 section 7); 0:
    /// none. Default 1000. They answer what anybody may have forged: RST, SYN, and acknowledgments
    /// of what was never sent. Other segments that are not acceptable, such as keepalive and window
    /// probes, are answered ten times a second for each connection.
    pub challenges_per_second: u32,
    /// Of these, to one destination; 0: none. Default 100.
    pub challenges_per_destination: u32,
    /// ICMP errors per second, about (RFC 1122 section 3.2.2); 0: none. Default 1000.
    pub errors_per_second: u32,
    /// Of these, to one destination; 0: none. Default 10.
    pub errors_per_destination: u32,
    /// UDP sockets at a time, 0 to 2^16. Default 64.
    pub udp_sockets: u32,
    /// Queue of a UDP socket in bytes, with 32 for each datagram, a power of two from 2^10 to 2^30.
    /// Default 256 KiB.
    pub udp_receive_buffer: u32,
    /// Datagrams of a UDP socket that are not sent yet, in bytes as above. Default 256 KiB.
    pub udp_send_buffer: u32,
    /// Datagrams of a UDP socket that leave in one frame, at most, if the device divides such
    /// frames; otherwise this is lowered to 1. They lie one behind the other, go to one
    /// destination, and all have one length but the last, which may be shorter. Every frame that is
    /// numbered and not sent yet has room for the longest of them, whatever `frame_payload` says. 1
    /// to 64, where 1 gives each datagram a frame of its own. Default 64.
    pub datagrams_per_frame: u32,
    /// What connections do where the standards leave a choice. No bound, but replaying needs it,
    /// too.
    pub tcp: TcpPolicy,
    /// For tests: how many of a million uses of a connection off the fast path panic. Which ones
    /// follows from the log, so all replicas choose the same. Not recorded.
    #[cfg(feature = "testkit")]
    #[doc(hidden)]
    #[cfg_attr(feature = "serde", serde(skip))]
    pub panics_ppm: u32,
}

/// Frames in a row that share a chunk of `slots` transmit slots (a power of two): their slots are
/// used again when all of them are sent. A power of two up to 32.
pub const fn tx_chunk(slots: u64) -> u64 {
    match slots / 16 {
        0 => 1,
        32.. => 32,
        chunk => chunk,
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 16_384,
            receive_buffer: 1 << 20,
            send_buffer: 1 << 20,
            out_of_order: 32 << 20,
            tx_slots: 512,
            mtu: 1500,
            frame_payload: Self::MAX_FRAME_PAYLOAD,
            quantum: 64,
            syn_queue: 128,
            resets_per_second: 1000,
            resets_per_destination: 250,
            challenges_per_second: 1000,
            challenges_per_destination: 100,
            errors_per_second: 1000,
            errors_per_destination: 10,
            udp_sockets: 64,
            udp_receive_buffer: 1 << 18,
            udp_send_buffer: 1 << 18,
            datagrams_per_frame: Self::MAX_DATAGRAMS_PER_FRAME,
            tcp: TcpPolicy::default(),
            #[cfg(feature = "testkit")]
            panics_ppm: 0,
        }
    }
}

impl Limits {
    /// Bytes of an idle connection that all replicas share, without rings: a bound.
    pub const CONNECTION_BASE: usize = 1024;
    /// Bytes of an idle connection in every replica: a bound.
    pub const CONNECTION_PER_REPLICA: usize = 2048;
    /// What a 64 KB packet holds besides IPv4 and TCP headers.
    pub const MAX_FRAME_PAYLOAD: u32 = 65_535 - 60;
    /// What Linux divided a frame into at most when it learned that for UDP.
    pub const MAX_DATAGRAMS_PER_FRAME: u32 = 64;
    /// Bytes of IPv4 and TCP headers without options.
    pub const HEADERS: u16 = 40;
    /// Bytes of IPv6 and TCP headers without extension headers and options.
    pub const HEADERS_V6: u16 = 60;

    setters! {
        connections: u32;
        receive_buffer: u32;
        send_buffer: u32;
        out_of_order: u32;
        tx_slots: u32;
        mtu: u16;
        frame_payload: u32;
        quantum: u32;
        syn_queue: u32;
        resets_per_second: u32;
        resets_per_destination: u32;
        challenges_per_second: u32;
        challenges_per_destination: u32;
        errors_per_second: u32;
        errors_per_destination: u32;
        udp_sockets: u32;
        udp_receive_buffer: u32;
        udp_send_buffer: u32;
        datagrams_per_frame: u32;
        tcp: TcpPolicy;
        #[cfg(feature = "testkit")]
        #[doc(hidden)]
        panics_ppm: u32;
    }

    /// The MSS that we announce: what fits the MTU (RFC 9293 section 3.7.1).
    pub const fn mss(&self) -> u16 {
        self.mtu - Self::HEADERS
    }

    /// The same to a peer of IPv6, whose header is 20 bytes longer.
    pub const fn mss_v6(&self) -> u16 {
        self.mtu.saturating_sub(Self::HEADERS_V6)
    }

    /// What a connection has unless something else is set.
    pub fn settings(&self) -> Settings {
        Settings::default().keepalive(self.tcp.keepalive)
    }

    /// Checks every bound.
    ///
    /// # Errors
    /// Says which field is out of its range, and the range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let ring = |field, value: u32| {
            if value.is_power_of_two() && (1 << 10..=1 << 30).contains(&value) {
                Ok(())
            } else {
                Err(ConfigError::OutOfRange {
                    field,
                    value: u64::from(value),
                    allowed: "a power of two from 1024 to 2^30",
                })
            }
        };
        ring("receive_buffer", self.receive_buffer)?;
        ring("send_buffer", self.send_buffer)?;
        ring("udp_receive_buffer", self.udp_receive_buffer)?;
        ring("udp_send_buffer", self.udp_send_buffer)?;
        let within = |field, value: u64, low: u64, high: u64, allowed| {
            if (low..=high).contains(&value) {
                Ok(())
            } else {
                Err(ConfigError::OutOfRange {
                    field,
                    value,
                    allowed,
                })
            }
        };
        within(
            "TcpPolicy::receive_window",
            u64::from(self.tcp.receive_window),
            1 << 10,
            1 << 30,
            "1024 to 2^30",
        )?;
        if let Some(keepalive) = self.tcp.keepalive.filter(|it| !it.is_valid()) {
            return Err(ConfigError::OutOfRange {
                field: "TcpPolicy::keepalive",
                value: keepalive.idle.as_nanos(),
                allowed: "times from 1 ms to 1 year",
            });
        }
        within("mtu", u64::from(self.mtu), 68, 65_535, "68 to 65535")?;
        within(
            "connections",
            u64::from(self.connections),
            1,
            1 << 20,
            "1 to 2^20",
        )?;
        within(
            "udp_sockets",
            u64::from(self.udp_sockets),
            0,
            1 << 16,
            "0 to 2^16",
        )?;
        within(
            "datagrams_per_frame",
            u64::from(self.datagrams_per_frame),
            1,
            u64::from(Self::MAX_DATAGRAMS_PER_FRAME),
            "1 to 64, where 1 gives each datagram a frame of its own",
        )?;
        within("quantum", u64::from(self.quantum), 1, 1 << 20, "1 to 2^20")?;
        within(
            "syn_queue",
            u64::from(self.syn_queue),
            1,
            1 << 20,
            "1 to 2^20",
        )?;
        within(
            "frame_payload",
            u64::from(self.frame_payload),
            0,
            u64::from(Self::MAX_FRAME_PAYLOAD),
            "0 to 65475",
        )?;
        if !self.tx_slots.is_power_of_two() || !(4..=1 << 20).contains(&self.tx_slots) {
            return Err(ConfigError::OutOfRange {
                field: "tx_slots",
                value: u64::from(self.tx_slots),
                allowed: "a power of two from 4 to 2^20",
            });
        }
        Ok(())
    }
}
