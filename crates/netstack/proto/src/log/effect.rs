//! All that `apply` can ask for.
//!
//! An effect carries what it needs as values, so it means the same whenever and by whomever it is
//! performed, and performing it tells nothing back: state cannot depend on it.

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

/// Takes what `apply` asks for. Write-only: nothing comes back but a mark that means something to
/// the sink alone, so skipping it cannot change state.
pub trait EffectSink {
    /// Adds `effect` behind those that are there.
    fn push(&mut self, effect: Effect);

    /// How many effects of this request there are.
    fn mark(&self) -> usize;

    /// Forgets all but the first `mark` effects of this request: whoever asked for them panicked.
    fn take_back(&mut self, mark: usize);
}

impl EffectSink for Vec<Effect> {
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

/// Something to be done outside the protocol state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Copy received bytes into the stream. Every byte of a stream is named by exactly one of
    /// these.
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
    /// The first `upto` bytes that the application wrote have frames. Only of a connection that
    /// bounds unsent bytes.
    Numbered {
        /// The connection.
        conn: ConnId,
        /// Stream offset.
        upto: u64,
    },
    /// The connection's life moved on, as its socket sees it.
    Event {
        /// The connection.
        conn: ConnId,
        /// How.
        event: ConnectionEvent,
        /// How far the receive stream reaches without a gap at this point.
        received: u64,
    },
    /// An active open got its place; or, with [`ConnId::NONE`], failed for want of room or ports.
    Opened {
        /// Who asked.
        request_id: u64,
        /// The connection.
        conn: ConnId,
        /// Its ends.
        flow: Flow,
    },
    /// An active open failed: a listener has the port that it names, or there is a connection
    /// between its two ends; or it names none, and that is so with all.
    NoPort {
        /// Who asked.
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
        /// Its ends.
        flow: Flow,
    },
    /// Segments of `flow` belong to `conn` from now on (`open`), or no longer: a hint for the pump.
    Hint {
        /// The connection.
        conn: ConnId,
        /// Its ends.
        flow: Flow,
        /// Whether it begins or ends.
        open: bool,
    },
    /// No more than `mtu` bytes pass to `remote`, as a router said of what was in flight.
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
        /// Whether an application was ever told of it; if not, there is no socket to wait for.
        held: bool,
    },
    /// Copy received datagrams into a socket's queue. Every byte of a queue is named by exactly one
    /// of these.
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

/// Copies of the run's datagrams into a socket's queue, one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Queue {
    /// The socket.
    pub socket: ConnId,
    /// Which frames of the run, a bit each.
    pub take: u16,
    /// How long the datagrams of the run are. Of merged ones these are only those that fit, the
    /// first ones of their frame.
    pub lengths: Lengths,
    /// Where the first record goes: bytes since the socket began.
    pub offset: u64,
    /// Where the last record ends.
    pub end: u64,
    /// Number of this delivery, 0 on.
    pub delivery: u64,
    /// When they came, if the socket asked for that and for the address that they were sent to.
    pub arrived: Option<Instant>,
}

/// Frames `first_frame .. first_frame + count` of the group: datagrams to one destination, one
/// frame of several, or fragments of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SendDatagrams {
    /// Whose send ring holds them.
    pub socket: ConnId,
    /// Number of the first frame.
    pub first_frame: u64,
    /// How many frames, at least 1.
    pub count: u32,
    /// Our end.
    pub local: Endpoint,
    /// Where they go.
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
    /// How long the datagrams are.
    pub lengths: Lengths,
    /// Where the first one's record begins in the send ring.
    pub offset: u64,
    /// Identifications, of the first one on.
    pub idents: Sequence,
    /// If frames are fragments of the first datagram: which of them the first frame is.
    pub fragment: Option<u32>,
}

/// A copy from the run's payloads into the receive ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Deliver {
    /// The connection.
    pub conn: ConnId,
    /// Where the bytes begin within the run's payloads put end to end.
    pub run_offset: u32,
    /// How many bytes.
    pub len: u32,
    /// Where they go: offset from the start of the receive stream (the byte after the SYN is 0).
    pub stream_offset: u64,
    /// Number of this delivery within its connection, 0 on. All pieces of one request share it.
    pub delivery: u64,
    /// How far the stream reaches without a gap after this request.
    pub end: u64,
    /// Whether this is the request's last piece for the connection: now the delivery is complete.
    pub last: bool,
}

/// Frames `first_frame .. first_frame + count` of the group, alike but for sequence number and
/// length.
///
/// Frame i carries the bytes from `payload_offset + i * frame_len` on, `frame_len` of them but for
/// the last. A frame longer than `mss` is for the device to cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Transmit {
    /// Number of the first frame.
    pub first_frame: u64,
    /// How many frames, at least 1.
    pub count: u32,
    /// Payload bytes of all of them.
    pub payload_len: u32,
    /// Where the payload begins in the send stream (the byte after our SYN is 0).
    pub payload_offset: u64,
    /// The connection whose send stream is meant; [`ConnId::NONE`] for frames without a connection.
    pub conn: ConnId,
    /// Payload bytes of every frame but the last.
    pub frame_len: u32,
    /// Sequence number of the first frame.
    pub seq: SeqNum,
    /// Acknowledgment number; 0 without ACK.
    pub ack: SeqNum,
    /// Payload bytes of a segment, at most.
    pub mss: u16,
    /// Window field, scaled already.
    pub wnd: u16,
    /// How far that lets the peer send: offset in the receive stream. For the application's reader,
    /// which tells of room only where it matters; 0 without a connection.
    pub window_end: u64,
    /// Bytes that may lie unread, for the same reader.
    pub window_limit: u32,
    /// Changes whenever `mac`, `flow` or `ip` of the connection do: while it is the same, so are
    /// they.
    pub header_version: u32,
    /// Control bits; PSH and FIN go to the last frame only.
    pub flags: Flags,
    /// Whether routers may mark them (ECT, RFC 3168 section 5).
    pub ect: bool,
    /// What the user set in IP headers.
    pub ip: IpFields,
    /// Link-layer destination.
    pub mac: Mac,
    /// Both ends.
    pub flow: Flow,
    /// TSval and TSecr, if timestamps are in use (RFC 7323).
    pub timestamps: Option<(u32, u32)>,
    /// Options of a SYN.
    pub syn: Option<SynOptions>,
    /// What is there beyond `ack`, or came twice (RFC 2018, RFC 2883); never in a segment with
    /// text.
    pub sack: Option<Sack>,
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

    /// Shows frame `i` to `look` as its receiver has it, if nothing marks it on the way. A frame
    /// longer than `mss` is there as segments that a device merged.
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

/// What a socket learns of its connection. Each can be told once, in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnectionEvent {
    /// The handshake is complete.
    Established,
    /// The peer will send nothing after stream offset `end`.
    PeerFinished {
        /// Where the receive stream ends.
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
    /// The peer did not answer, and the network says that it cannot be reached.
    Unreachable,
    /// We aborted it.
    Aborted,
    /// Our address was taken from us.
    AddressLost,
}

/// Numbers outgoing frames, within the room that the transmit ring is known to have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameNumbers {
    /// Number of the next frame.
    pub next: u64,
    /// No frame is numbered at or past this: what the device took, in whole chunks of transmit
    /// slots, plus the ring's length.
    pub limit: u64,
    /// Frames 0..`sent` have been taken by the device.
    pub sent: u64,
    /// Resets of segments that no connection wants.
    pub resets: RateLimit,
    /// Acknowledgments that nobody had a right to (RFC 5961).
    pub challenges: RateLimit,
    /// Bytes of a packet of IPv6, at most, as routers of the link say (RFC 4861 section 4.6.4); 0
    /// if they do not. What SYNs announce follows it.
    pub link_mtu_v6: u16,
    /// Pages that text behind gaps takes in the receive rings of all connections.
    pub gap_pages: u64,
    /// Segments that were dropped because these were too many.
    pub gaps_refused: u64,
    /// What connections met, off the fast path.
    pub counts: StateStats,
}

impl FrameNumbers {
    /// How many frames may be numbered now.
    #[inline]
    pub const fn room(&self) -> u64 {
        self.limit.saturating_sub(self.next)
    }

    /// Frames 0..`sent` have been taken by the device, of whose ring `limits` tell.
    #[inline]
    pub fn update_sent(&mut self, sent: u64, limits: &Limits) {
        if sent > self.sent {
            let slots = u64::from(limits.tx_slots);
            self.sent = sent;
            self.limit = (sent & !(tx_chunk(slots) - 1)) + slots;
        }
    }
}
