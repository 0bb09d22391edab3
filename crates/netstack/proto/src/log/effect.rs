//! The effects that `apply` can ask for.
//!
//! An effect holds its inputs as values, except bytes in frames of its run or the send ring, which
//! stay there until it is done, and how the run lies in its frames. So it means the same on any
//! worker, until it is done.
//! Performing it returns nothing to `apply`, so the state cannot depend on it.

use crate::config::{Limits, tx_chunk};
use crate::ip::identification::Sequence;
use crate::ip::rate_limit::RateLimit;
use crate::log::request::{
    Address, ConnId, Endpoint, Flags, Flow, IpFields, Lengths, Mac, Options, Sack, Segment,
    SynOptions,
};
use crate::seqnum::SeqNum;
use crate::stats::StateStats;
use crate::time::Instant;

/// Takes the effects of `apply`. Write-only: it returns nothing but their number, which no state
/// depends on, so skipping it cannot change state.
pub trait EffectSink {
    /// Adds `effect` after the others.
    fn push(&mut self, effect: Effect);

    /// Has room for another effect. An effect that is made after this is made in place: no call
    /// comes between its parts and the end of [`EffectSink::push`].
    #[inline(always)]
    fn make_room(&mut self) {}

    /// The number of effects of this request.
    fn mark(&self) -> usize;

    /// Drops all but the first `mark` effects of this request, whose `apply` panicked.
    fn take_back(&mut self, mark: usize);
}

#[cold]
#[inline(never)]
fn grow(effects: &mut Vec<Effect>) {
    effects.reserve(1);
}

impl EffectSink for Vec<Effect> {
    #[inline(always)]
    fn make_room(&mut self) {
        // A loop, so that the compiler knows the condition to be false behind it.
        while self.len() == self.capacity() {
            grow(self);
        }
    }

    #[inline(always)]
    fn push(&mut self, effect: Effect) {
        Vec::push(self, effect);
    }

    fn mark(&self) -> usize {
        self.len()
    }

    fn take_back(&mut self, mark: usize) {
        self.truncate(mark);
    }
}

/// An action outside the protocol state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Copy received bytes into the stream, unless that was done when they were verified; the last
    /// one of a request stamps the delivery. Exactly one of them names each byte of a stream.
    Deliver(Deliver),
    /// Build and send numbered frames.
    Transmit(Transmit),
    /// The first `upto` bytes that the application wrote will never be read again.
    Release {
        /// The connection.
        conn: ConnId,
        /// Stream offset.
        upto: u64,
    },
    /// The first `upto` bytes that the application wrote have frames. Only for a connection that
    /// bounds unsent bytes.
    Numbered {
        /// The connection.
        conn: ConnId,
        /// Stream offset.
        upto: u64,
    },
    /// The connection changed in a way that its socket sees.
    Event {
        /// The connection.
        conn: ConnId,
        /// The change.
        event: ConnectionEvent,
        /// How far the receive stream reaches without a gap at this point.
        received: u64,
    },
    /// An active open got its place; or, with [`ConnId::NONE`], failed because no place is free.
    Opened {
        /// The request id.
        request_id: u64,
        /// The connection.
        conn: ConnId,
        /// Both ends.
        flow: Flow,
    },
    /// An active open failed: a listener has the local port that it names, or a connection
    /// between its two ends exists; if it names no port, all ports are taken.
    NoPort {
        /// The request id.
        request_id: u64,
        /// The port that it names, or 0.
        port: u16,
    },
    /// A connection to a listening port is established and waits to be accepted.
    Accept {
        /// How many connections of the group were established before it. They are accepted in this
        /// order.
        number: u64,
        /// The connection.
        conn: ConnId,
        /// Both ends.
        flow: Flow,
    },
    /// Segments of `flow` belong to `conn` from now on (`open`), or no longer: a hint for the pump.
    Hint {
        /// The connection.
        conn: ConnId,
        /// Both ends.
        flow: Flow,
        /// Whether it begins or ends.
        open: bool,
    },
    /// The path MTU to `remote` is at most `mtu`, as a router reported for a segment in flight.
    PathMtu {
        /// The destination.
        remote: Address,
        /// Bytes of a packet.
        mtu: u16,
    },
    /// The connection is over. Its place becomes free when all earlier work is done and its socket
    /// gone.
    Retire {
        /// The connection.
        conn: ConnId,
        /// Whether an application ever got the connection; if not, no socket has to end first.
        held: bool,
        /// All frames of the connection have lower numbers.
        frames: u64,
    },
    /// Copy received datagrams into a socket's queue. Exactly one of these effects names each
    /// byte of a queue.
    Queue(Queue),
    /// Build and send numbered frames of datagrams.
    Send(SendDatagrams),
    /// The first `upto` bytes of a UDP socket's send ring will never be read again.
    Sent {
        /// The socket.
        socket: ConnId,
        /// Offset in its send ring.
        upto: u64,
    },
    /// A UDP socket is over. Its place becomes free when all earlier work is done.
    Unbound {
        /// The socket.
        socket: ConnId,
    },
}

impl Effect {
    /// The number of the first frame that it asks for, and how many these are.
    #[inline(always)]
    pub const fn frames(&self) -> Option<(u64, u32)> {
        match self {
            Effect::Transmit(transmit) => Some((transmit.first_frame, transmit.count)),
            Effect::Send(send) => Some((send.first_frame, send.count)),
            _ => None,
        }
    }
}

/// Copies of the run's datagrams into a socket's queue, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Queue {
    /// The socket.
    pub socket: ConnId,
    /// The frames of the run to copy, one bit each.
    pub take: u16,
    /// Lengths of the run's datagrams. For merged ones only those that fit, the first ones of
    /// their frame.
    pub lengths: Lengths,
    /// Offset of the first record: bytes since the socket began.
    pub offset: u64,
    /// Offset of the last record's end.
    pub end: u64,
    /// Number of this delivery, 0 on.
    pub delivery: u64,
    /// When they arrived, if the socket wants that and their destination address.
    pub arrived: Option<Instant>,
}

/// Frames `first_frame .. first_frame + count` of the group: datagrams to one destination, one
/// frame of several, or fragments of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SendDatagrams {
    /// The socket whose send ring holds them.
    pub socket: ConnId,
    /// Number of the first frame.
    pub first_frame: u64,
    /// How many frames, at least 1.
    pub count: u32,
    /// Our end.
    pub local: Endpoint,
    /// The destination.
    pub remote: Endpoint,
    /// Link-layer destination.
    pub mac: Mac,
    /// Bytes of a packet on the path; longer datagrams are sent in fragments.
    pub mtu: u16,
    /// Time to live.
    pub ttl: u8,
    /// DSCP and ECN.
    pub tos: u8,
    /// Whether they must not be fragmented: they fit `mtu`.
    pub dont_fragment: bool,
    /// Lengths of the datagrams.
    pub lengths: Lengths,
    /// Offset of the first one's record in the send ring.
    pub offset: u64,
    /// Identifications, beginning with the first datagram's.
    pub idents: Sequence,
    /// If frames are fragments of the first datagram: the index of the first frame's fragment.
    pub fragment: Option<u32>,
}

/// A copy from the run's payloads into the receive ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Deliver {
    /// The connection.
    pub conn: ConnId,
    /// Offset of the bytes within the run's payloads, put end to end.
    pub run_offset: u32,
    /// How many bytes.
    pub len: u32,
    /// Destination: offset from the start of the receive stream (the byte after the SYN is 0).
    pub stream_offset: u64,
    /// Number of this delivery within its connection, 0 on. All pieces of one request share it.
    pub delivery: u64,
    /// End of the gapless part of the stream, after this request if it is the last piece.
    pub end: u64,
    /// Whether this is the request's last piece for the connection: now the delivery is complete.
    pub last: bool,
}

/// Frames `first_frame .. first_frame + count` of the group, equal except for sequence number,
/// length, PSH and FIN.
///
/// Frame i carries `frame_len` bytes, the last one maybe fewer, beginning at `payload_offset + i
/// * frame_len`. A device cuts frames longer than `mss`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Transmit {
    /// Number of the first frame.
    pub first_frame: u64,
    /// How many frames, at least 1.
    pub count: u32,
    /// Payload bytes of all frames together.
    pub payload_len: u32,
    /// Offset of the payload in the send stream (the byte after our SYN is 0).
    pub payload_offset: u64,
    /// Payload bytes of every frame except the last.
    pub frame_len: u32,
    /// Sequence number of the first frame.
    pub seq: SeqNum,
    /// Acknowledgment number; 0 without ACK.
    pub ack: SeqNum,
    /// Most payload bytes of a segment.
    pub mss: u16,
    /// Window field, scaled already.
    pub wnd: u16,
    /// How far that lets the peer send: offset in the receive stream. For the application's reader,
    /// which tells of room only where it matters; 0 without a connection.
    pub window_end: u64,
    /// Most bytes that may be unread, for that reader, too.
    pub window_limit: u32,
    /// Control bits; PSH and FIN go to the last frame only.
    pub flags: Flags,
    /// Whether routers may mark the frames (ECT, RFC 3168 section 5).
    pub ect: bool,
    /// What the headers of all frames of the connection have in common.
    pub common: CommonHeaders,
    /// TSval and TSecr, if timestamps are in use (RFC 7323).
    pub timestamps: Option<(u32, u32)>,
    /// Options of a SYN.
    pub syn: Option<SynOptions>,
    /// Blocks received beyond `ack`, or twice (RFC 2018, RFC 2883); never in a segment with
    /// payload.
    pub sack: Option<Sack>,
}

/// The values that the headers of all frames of a connection have in common. A connection keeps
/// them as each [`Transmit`] needs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct CommonHeaders {
    /// The connection of the send stream; [`ConnId::NONE`] for frames without a connection.
    pub conn: ConnId,
    /// Changes whenever one of the others does: equal versions of one connection mean equal values.
    pub version: u32,
    /// The IP header fields that the user set.
    pub ip: IpFields,
    /// Link-layer destination.
    pub mac: Mac,
    /// Both ends.
    pub flow: Flow,
}

impl Transmit {
    /// Payload of frame `i`: offset in the send stream and number of bytes.
    #[inline]
    pub fn payload_of(&self, i: u32) -> (u64, u32) {
        let before = i * self.frame_len;
        (
            self.payload_offset + u64::from(before),
            (self.payload_len - before).min(self.frame_len),
        )
    }

    /// Passes frame `i` to `look` as its receiver sees it, if nothing marks it on the way. A
    /// frame longer than `mss` appears as segments that a device merged.
    ///
    /// # Panics
    /// If there is no frame `i`.
    pub fn with_segment<R>(&self, i: u32, look: impl FnOnce(&Segment<'_>) -> R) -> R {
        assert!(i < self.count, "frame {i} of {}", self.count);
        let (_, len) = self.payload_of(i);
        let options = match (self.syn, self.sack) {
            (Some(syn), _) => Options::Syn(syn),
            (_, Some(sack)) => Options::Sack(sack),
            _ => Options::None,
        };
        let is_last = i + 1 == self.count;
        let at_end = Flags::PSH.with(Flags::FIN);
        look(&Segment {
            seq: self.seq + i * self.frame_len,
            ack: self.ack,
            len,
            run_offset: 0,
            count: len.div_ceil(u32::from(self.mss).max(1)).clamp(1, 255) as u8,
            wnd: self.wnd,
            flags: match is_last {
                true => self.flags,
                false => self.flags.without(at_end),
            },
            timestamps: self.timestamps,
            ce: false,
            followed: false,
            options: &options,
        })
    }
}

/// Changes of a connection that its socket learns of. Each occurs at most once, in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnectionEvent {
    /// The handshake is complete.
    Established,
    /// The peer will send nothing after stream offset `end`.
    PeerFinished {
        /// End of the receive stream.
        end: u64,
    },
    /// Everything written, and our FIN, has been acknowledged.
    AllAcknowledged,
    /// The peer reset an established connection.
    Reset,
    /// The peer refused to open it.
    Refused,
    /// The peer did not answer for too long.
    TimedOut,
    /// The peer did not answer, and the network reported it as unreachable.
    Unreachable,
    /// We aborted it.
    Aborted,
    /// Our address was removed.
    AddressLost,
}

/// Numbers outgoing frames, as far as the transmit ring has room, and has what else all connections
/// of a group share: limits of rates, the MTU of the link, pages for data out of order, counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameNumbers {
    /// Number of the next frame.
    pub next: u64,
    /// Frames are numbered below this only: the frames that the device took, in whole chunks of
    /// transmit slots, plus the ring's length.
    pub limit: u64,
    /// Frames 0..`sent` have been taken by the device.
    pub sent: u64,
    /// `limit` grows once so many are sent.
    pub next_credit: u64,
    /// Limits resets in answer to segments that no connection accepts.
    pub resets: RateLimit,
    /// Limits challenge ACKs (RFC 5961).
    pub challenges: RateLimit,
    /// Bytes of a packet of IPv6, at most, as routers of the link say (RFC 4861 section 4.6.4); 0
    /// if they do not. What SYNs announce follows it.
    pub link_mtu_v6: u16,
    /// Pages with payload after gaps in the receive rings of all connections.
    pub gap_pages: u64,
    /// Segments that were dropped because of too many such pages.
    pub gaps_refused: u64,
    /// Counts of connection events off the fast path.
    pub counts: StateStats,
}

impl FrameNumbers {
    /// How many frames may be numbered now.
    #[inline]
    pub const fn room(&self) -> u64 {
        self.limit.saturating_sub(self.next)
    }

    /// Notes that the device has taken frames 0..`sent`. `limits` has the ring's length.
    #[inline]
    pub fn update_sent(&mut self, sent: u64, limits: &Limits) {
        if sent > self.sent {
            self.sent = sent;
            if sent >= self.next_credit {
                self.update_limit(limits);
            }
        }
    }

    /// At most once a chunk: nearly every request of a bulk transfer carries a new count.
    #[cold]
    fn update_limit(&mut self, limits: &Limits) {
        let slots = u64::from(limits.tx_slots);
        let chunk = tx_chunk(slots);
        let sent = self.sent & !(chunk - 1);
        (self.limit, self.next_credit) = (sent + slots, sent + chunk);
    }
}
