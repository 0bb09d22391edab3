//! The log's requests: all that the receive pump samples and `apply` may read.
//!
//! A [`Request`] is one entry of the log. Its first cache line, the [`Digest`], holds all that
//! `apply` reads for an in-order run of segments; the [`Body`] after it holds the rest. Both are
//! plain values: no pointer, no payload byte, nothing that could differ between two replicas.

pub use crate::packet::flow::{Address, Binding, Endpoint, Families, Flow, IpFields, Mac};

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::config::{Settings, Tuning};
use crate::seqnum::SeqNum;
use crate::time::Instant;

/// Most segments that share one request; each has one verdict bit.
pub const MAX_RUN: usize = 60;
/// Most datagrams that share a request and have a frame each.
pub const MAX_DATAGRAMS: usize = 16;
/// The segments of a run, or datagrams of a request, whose checksums are right: one bit each,
/// the lowest for the first.
pub type Verdict = u64;

/// Most acknowledgments that share a request with the first one of their run.
pub const MORE_ACKS: usize = 6;
/// The same limit when all have one window and each acknowledges at most 65,535 bytes more.
pub const MORE_ALIKE: usize = 31;

/// A connection: its entry in the connection table, and its generation there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct ConnId {
    /// The entry of the connection table.
    pub index: u32,
    /// Counts the connections that had the entry.
    pub generation: u32,
}

impl ConnId {
    /// Names no connection.
    pub const NONE: ConnId = ConnId {
        index: u32::MAX,
        generation: u32::MAX,
    };
}

/// TCP's control bits (RFC 9293 section 3.1), as in the header's 14th byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Flags(pub u8);

/// In place of a port: all of them.
pub const ALL_PORTS: u16 = 0;

impl Flags {
    /// No more data from the sender.
    pub const FIN: Flags = Flags(0x01);
    /// Synchronize sequence numbers.
    pub const SYN: Flags = Flags(0x02);
    /// Reset the connection.
    pub const RST: Flags = Flags(0x04);
    /// Push.
    pub const PSH: Flags = Flags(0x08);
    /// The acknowledgment field is significant.
    pub const ACK: Flags = Flags(0x10);
    /// The urgent pointer field is significant.
    pub const URG: Flags = Flags(0x20);
    /// Congestion experienced, echoed (RFC 3168).
    pub const ECE: Flags = Flags(0x40);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: Flags = Flags(0x80);

    /// Whether every bit of `other` is set.
    #[inline]
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any bit of `other` is set.
    #[inline]
    pub const fn any(self, other: Flags) -> bool {
        self.0 & other.0 != 0
    }

    /// Both sets of bits.
    #[inline]
    #[must_use]
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// Whether the segment opens a connection: a SYN without an acknowledgment.
    pub const fn opens(self) -> bool {
        self.has(Flags::SYN) && !self.any(Flags::ACK.with(Flags::RST))
    }

    /// Without the bits of `other`.
    #[inline]
    #[must_use]
    pub const fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[repr(u8)]
pub enum RequestKind {
    /// A run of TCP segments of one flow; [`Body::Segments`].
    Segments,
    /// Only time (a deadline is due) or transmit credit; [`Body::None`].
    Tick,
    /// A command of an application, the operator or the pump; see the [`Body`].
    Command,
    /// UDP datagrams for one socket, which [`Digest::hint`] names; [`Body::Datagrams`].
    Datagrams,
}

impl RequestKind {
    /// Whether requests of this kind have frames whose checksums must be verified.
    #[inline]
    pub const fn has_frames(self) -> bool {
        matches!(self, RequestKind::Segments | RequestKind::Datagrams)
    }
}

/// The pump's description of a run, in one cache line.
///
/// A run is up to [`MAX_RUN`] segments of one flow with equal headers except for sequence numbers,
/// or one frame that the device merged. All segments except the last carry `seg_len` bytes. Or a
/// run is acknowledgments without payload, which only share the request: the result is as if each
/// arrived by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[repr(C, align(64))]
pub struct Digest {
    /// When the pump published this request. `apply` takes the maximum of this and what it knew.
    pub now: Instant,
    /// Frames 0..`sent` have been taken by the device; the credit follows from this.
    pub sent: u64,
    /// The flow's connection as the pump knew it, or [`ConnId::NONE`]. It may have ended since.
    pub hint: ConnId,
    /// Sequence number of the first byte.
    pub seg_seq: SeqNum,
    /// Acknowledgment number, when `flags` has ACK.
    pub seg_ack: SeqNum,
    /// Payload bytes of the whole run.
    pub len: u32,
    /// TSval, equal in all segments of the run (RFC 7323), when [`Digest::TIMESTAMPS`] is set.
    pub ts_val: u32,
    /// TSecr, when [`Digest::TIMESTAMPS`] is set.
    pub ts_ecr: u32,
    /// Low half of the application's read cursor, when [`Digest::PROGRESS`] is set.
    pub app_read: u32,
    /// Low half of the application's write cursor, when [`Digest::PROGRESS`] is set.
    pub app_written: u32,
    /// Payload bytes of every segment except the last (of the only one, if there is one).
    pub seg_len: u16,
    /// Window field as received, not scaled.
    pub seg_wnd: u16,
    /// Control bits; PSH and FIN belong to the last segment.
    pub flags: Flags,
    /// Number of segments in the run, 1 to [`MAX_RUN`] (datagrams or sends of a request of
    /// these; 0 for ticks and commands).
    pub count: u8,
    /// The kind of request.
    pub kind: RequestKind,
    /// Optional fields that are set: [`Digest::TIMESTAMPS`] and so on.
    pub bits: u8,
}

const _: () = assert!(size_of::<Digest>() == 64 && size_of::<Request>() == 192);

impl Digest {
    /// `ts_val` and `ts_ecr` are set.
    pub const TIMESTAMPS: u8 = 1;
    /// `app_read` and `app_written` are set.
    pub const PROGRESS: u8 = 2;
    /// The body has options except timestamps (SYN options or SACK blocks).
    pub const OPTIONS: u8 = 4;
    /// The network marked congestion on a segment of the run (RFC 3168).
    pub const CE: u8 = 8;
    /// The run is acknowledgments without payload, of which [`Options::Acks`] or
    /// [`Options::AcksAlike`] has all but the first.
    pub const ACKS: u8 = 16;
    /// The run is full or a merged frame, and the parser found the segments that follow in the same
    /// batch: the next request of the flow has them.
    pub const FOLLOWED: u8 = 32;
    /// The socket of these datagrams wants their destination address and arrival time.
    pub const INFO: u8 = 64;

    /// A digest with only time and credit.
    pub const fn bare(kind: RequestKind, now: Instant, sent: u64) -> Self {
        Digest {
            now,
            sent,
            hint: ConnId::NONE,
            seg_seq: SeqNum(0),
            seg_ack: SeqNum(0),
            len: 0,
            ts_val: 0,
            ts_ecr: 0,
            app_read: 0,
            app_written: 0,
            seg_len: 0,
            seg_wnd: 0,
            flags: Flags(0),
            count: 0,
            kind,
            bits: 0,
        }
    }

    /// The verdict that every segment of the run is good.
    #[inline]
    pub const fn all_good(&self) -> Verdict {
        (1 << self.count) - 1
    }
}

/// TCP options except timestamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub enum Options {
    /// None of them.
    #[default]
    None,
    /// Options of a segment with SYN.
    Syn(SynOptions),
    /// Selective acknowledgments (RFC 2018).
    Sack(Sack),
    /// No options, but more acknowledgments without payload: all but the first of the digest's
    /// count.
    Acks(Acks),
    /// As `Acks`, with one window for all: how many bytes each acknowledges beyond the previous
    /// one.
    AcksAlike([u16; MORE_ALIKE]),
}

/// Blocks received beyond an acknowledgment (RFC 2018 section 3), or twice (RFC 2883 section 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Sack {
    /// Number of blocks, at most 4.
    count: u8,
    /// Left and right edges; zeros past `count`.
    blocks: [(SeqNum, SeqNum); Sack::MOST],
}

impl Sack {
    /// Most blocks that an option can hold.
    pub const MOST: usize = 4;

    /// No block yet.
    pub const NONE: Sack = Sack {
        count: 0,
        blocks: [(SeqNum(0), SeqNum(0)); Sack::MOST],
    };

    /// Left and right edges, in the order of the option.
    pub fn blocks(&self) -> &[(SeqNum, SeqNum)] {
        &self.blocks[..usize::from(self.count).min(Sack::MOST)]
    }

    /// Sorts the blocks by their distance from `una`, and returns them.
    pub fn sorted_from(&mut self, una: SeqNum) -> &[(SeqNum, SeqNum)] {
        let count = usize::from(self.count).min(Sack::MOST);
        let blocks = &mut self.blocks[..count];
        blocks.sort_unstable_by_key(|block| block.0.since(una) as i32);
        blocks
    }

    /// Adds a block after the others, if there is room.
    pub fn push(&mut self, left: SeqNum, right: SeqNum) {
        if let Some(block) = self.blocks.get_mut(usize::from(self.count)) {
            *block = (left, right);
            self.count += 1;
        }
    }
}

/// Values of the second and later acknowledgments of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Acks {
    /// Acknowledgment numbers.
    pub ack: [SeqNum; MORE_ACKS],
    /// Window fields, not scaled.
    pub wnd: [u16; MORE_ACKS],
}

/// Options of a SYN or SYN-ACK.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct SynOptions {
    /// Maximum segment size in bytes (RFC 9293 section 3.7.1).
    pub mss: Option<u16>,
    /// Window scale shift (RFC 7323 section 2).
    pub window_scale: Option<u8>,
    /// SACK permitted (RFC 2018).
    pub sack_permitted: bool,
}

/// The error that an ICMP message reports for a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[non_exhaustive]
pub enum NetworkError {
    /// It did not arrive, for a reason that may pass: network or host unreachable, time exceeded,
    /// parameter problem (RFC 1122 section 4.2.3.9).
    Unreachable,
    /// The host does not support TCP, or no socket has the port.
    Refused,
    /// A router or host on the path forbids it (RFC 1812 section 5.2.7.1).
    Prohibited,
    /// It was larger than the path MTU (RFC 1191).
    TooBig {
        /// The largest packet that would have passed, in bytes; 0 if not reported.
        mtu: u16,
    },
}

/// The index of a group among the groups of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct GroupIndex {
    /// Its number, below `count`. Group 0 answers where only one group may.
    pub index: u16,
    /// How many groups there are, at least 1.
    pub count: u16,
}

impl GroupIndex {
    /// The only one.
    pub const ONLY: GroupIndex = GroupIndex { index: 0, count: 1 };

    /// Whether this group answers for all.
    pub const fn is_first(self) -> bool {
        self.index == 0
    }
}

impl Default for GroupIndex {
    fn default() -> Self {
        GroupIndex::ONLY
    }
}

/// The part of a request after the digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub enum Body {
    /// No body.
    None,
    /// A run of segments.
    Segments {
        /// Their flow.
        flow: Flow,
        /// Link-layer address for answers.
        mac: Mac,
        /// Bytes of each frame before its payload; equal in every frame of a run.
        payload_offset: u16,
        /// Options except timestamps.
        options: Options,
    },
    /// Group and secret of the stack; the first request of every log.
    Configure {
        /// This group's index.
        group: GroupIndex,
        /// Key of the hashes for initial sequence numbers and port choice (RFC 6528, RFC 6056).
        secret: [u64; 2],
    },
    /// Active OPEN (RFC 9293 section 3.10.1).
    Open {
        /// The request id.
        request_id: u64,
        /// Our end; port 0 lets the stack choose one.
        local: Endpoint,
        /// The peer.
        remote: Endpoint,
        /// Link-layer address of the next hop.
        mac: Mac,
        /// The connection's initial settings; the SYN follows them, too.
        settings: Settings,
    },
    /// SYNs to a port are held outside until the application decides, or no more.
    HoldSyns {
        /// The port, or [`ALL_PORTS`].
        port: u16,
        /// Whether they are.
        holds: bool,
    },
    /// The application accepts a SYN that was held ([`Digest`] has its fields): the handshake goes
    /// on, as of an open of this request id.
    AcceptSyn {
        /// The request id.
        request_id: u64,
        /// The connection's flow.
        flow: Flow,
        /// Link-layer address of the next hop.
        mac: Mac,
        /// Options of the SYN, except timestamps.
        options: SynOptions,
        /// The connection's initial settings; the SYN-ACK follows them, too.
        settings: Settings,
    },
    /// The application refuses a SYN that was held ([`Digest`] has its fields).
    RefuseSyn {
        /// The flow of the refused connection.
        flow: Flow,
        /// Link-layer address of the next hop.
        mac: Mac,
    },
    /// Initial settings for connections of a listener; the SYN-ACK follows them, too.
    SetListener {
        /// The port.
        port: u16,
        /// The listener's binding.
        binding: Binding,
        /// The settings from now on.
        settings: Settings,
    },
    /// Passive OPEN.
    Listen {
        /// The port.
        port: u16,
        /// Most connections that may wait to be accepted.
        backlog: u16,
        /// The listener's binding.
        binding: Binding,
    },
    /// The application took `accepted` connections from the port's queue so far.
    Accepted {
        /// The listening port.
        port: u16,
        /// The listener's binding.
        binding: Binding,
        /// Connections accepted since it began to listen.
        accepted: u64,
    },
    /// The listening socket went away.
    Unlisten {
        /// The port.
        port: u16,
        /// The listener's binding.
        binding: Binding,
    },
    /// An application's cursors moved, or it closed.
    Progress {
        /// The connection.
        conn: ConnId,
        /// Bytes that it has read.
        app_read: u64,
        /// Bytes that it has written.
        app_written: u64,
        /// No more will be written (SHUT_WR; RFC 9293 section 3.10.4).
        shutdown: bool,
        /// No application holds the socket any more: bytes that arrive have no reader.
        orphan: bool,
    },
    /// An application changed settings of a connection.
    Set {
        /// The connection.
        conn: ConnId,
        /// All of its settings from now on.
        settings: Settings,
    },
    /// An application tuned a connection.
    Tune {
        /// The connection.
        conn: ConnId,
        /// All of its tuning from now on.
        tuning: Tuning,
        /// The bytes written last wait for more.
        more: bool,
        /// The bytes written so far do not wait for more.
        push: bool,
    },
    /// ABORT (RFC 9293 section 3.10.5).
    Abort {
        /// The connection.
        conn: ConnId,
    },
    /// The connection's local address is ours no longer.
    AddressLost {
        /// The connection.
        conn: ConnId,
    },
    /// All work of a closed connection is done and its socket gone: its entry is free again.
    Free {
        /// The connection.
        conn: ConnId,
    },
    /// An ICMP error about a segment of ours.
    NetworkError {
        /// The segment's flow.
        flow: Flow,
        /// Its sequence number.
        seq: SeqNum,
        /// The error.
        what: NetworkError,
    },
    /// UDP datagrams that arrived for one socket, in as many frames as the digest counts.
    Datagrams {
        /// Lengths of the datagrams.
        lengths: Lengths,
    },
    /// A UDP socket begins. The entry of a former one is free.
    Bind {
        /// Its name, in the table of UDP sockets.
        socket: ConnId,
        /// Its port.
        port: u16,
    },
    /// A UDP socket ends, as soon as all its datagrams have left.
    Unbind {
        /// The socket.
        socket: ConnId,
    },
    /// UDP datagrams to one destination: as many as the digest counts, or those of one frame.
    /// None: the send ring below `offset` is free.
    Sends {
        /// The socket.
        socket: ConnId,
        /// Our end, the source.
        local: Endpoint,
        /// The destination.
        remote: Endpoint,
        /// Link-layer address of the next hop.
        mac: Mac,
        /// The path MTU, in bytes.
        mtu: u16,
        /// Offset of the first record in the send ring.
        offset: u64,
        /// Lengths of the datagrams.
        lengths: Lengths,
        /// Time to live.
        ttl: u8,
        /// DSCP and ECN.
        tos: u8,
        /// Whether they must not be fragmented.
        dont_fragment: bool,
    },
    /// The frames of a connection go to another link-layer address from now on: the next hop or
    /// its address has changed.
    NextHop {
        /// The connection.
        conn: ConnId,
        /// The neighbour's link-layer address.
        mac: Mac,
    },
    /// The path MTU of a connection, as learned from other connections or from routers of the
    /// link (RFC 8201 section 4).
    PathMtu {
        /// The connection.
        conn: ConnId,
        /// Bytes of a packet.
        mtu: u16,
    },
    /// The MTU of the link for IPv6 from now on, as its routers advertise (RFC 4861 section
    /// 4.6.4).
    LinkMtu {
        /// Bytes of a packet; 0: the device's MTU.
        mtu: u16,
    },
}

/// Lengths of the datagrams that share a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub enum Lengths {
    /// Payload bytes of each datagram. Each has its own frame.
    Each([u16; MAX_DATAGRAMS]),
    /// One frame holds all of them.
    Merged(Merged),
}

/// Consecutive datagrams of one flow in a single frame. All have one length except the last,
/// which may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Merged {
    /// Payload bytes of all of them.
    pub len: u16,
    /// Payload bytes of each but the last; of none, if this is 0.
    pub size: u16,
}

impl Merged {
    /// Number of datagrams.
    #[inline]
    pub const fn count(self) -> u16 {
        match self.size {
            0 => 0,
            size => self.len.div_ceil(size),
        }
    }

    /// How many have `size` bytes, and the length of a shorter last one.
    #[inline]
    pub const fn split(self) -> (u16, u16) {
        match self.size {
            0 => (0, 0),
            size => (self.len / size, self.len % size),
        }
    }
}

/// The batch of a request, and its place there. `apply` does not read it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct InBatch {
    /// The worker that normally performs the effects.
    pub primary: u8,
    /// Requests before this one: 0 for the first.
    pub index: u8,
    /// Requests behind this one: 0 for the last.
    pub left: u8,
}

impl InBatch {
    /// The position of the first request, if this one is at `seq`.
    #[inline(always)]
    pub const fn first(self, seq: u64) -> u64 {
        seq - self.index as u64
    }

    /// Whether the batch has no other request.
    #[inline(always)]
    pub const fn is_alone(self) -> bool {
        self.index | self.left == 0
    }
}

/// One entry of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[repr(C)]
pub struct Request {
    /// What `apply` reads of a run, and time and credit of every request.
    pub digest: Digest,
    /// Its place in its batch.
    pub in_batch: InBatch,
    /// The part that depends on the kind.
    pub body: Body,
}

impl Request {
    /// A request by itself.
    pub const fn new(digest: Digest, body: Body) -> Self {
        Request {
            digest,
            in_batch: InBatch {
                primary: 0,
                index: 0,
                left: 0,
            },
            body,
        }
    }

    /// A command: a request without segments.
    pub const fn command(now: Instant, sent: u64, body: Body) -> Self {
        Request::new(Digest::bare(RequestKind::Command, now, sent), body)
    }

    /// The layout of a run's payload: bytes in every segment except the last, and bytes of each
    /// frame before its payload.
    #[inline]
    pub const fn layout(&self) -> (u16, u16) {
        match self.body {
            Body::Segments { payload_offset, .. } => (self.digest.seg_len, payload_offset),
            _ => (0, 0),
        }
    }

    /// A request with only time and credit.
    pub const fn tick(now: Instant, sent: u64) -> Self {
        Request::new(Digest::bare(RequestKind::Tick, now, sent), Body::None)
    }
}

/// A contiguous piece of a run whose checksums are good, as SEGMENT ARRIVES sees it.
///
/// A whole run is one piece; a run with a bad segment falls apart around it.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Sequence number of the first byte.
    pub seq: SeqNum,
    /// Acknowledgment number, meaningful with ACK.
    pub ack: SeqNum,
    /// Payload bytes.
    pub len: u32,
    /// Offset of the payload within the run's payloads, put end to end.
    pub run_offset: u32,
    /// How many received frames this piece is. One that the device merged counts once, so a rule
    /// that counts segments compares `len` with the MSS, too.
    pub count: u8,
    /// Window field, not scaled.
    pub wnd: u16,
    /// Control bits.
    pub flags: Flags,
    /// TSval and TSecr, if the option was there.
    pub timestamps: Option<(u32, u32)>,
    /// Whether congestion was marked.
    pub ce: bool,
    /// Whether the flow's next request has more payload: an acknowledgment may wait for that.
    pub followed: bool,
    /// Other options.
    pub options: &'a Options,
}

impl Segment<'_> {
    /// A digest with its numbers, control bits and kinds of options.
    pub const fn digest(&self) -> Digest {
        let (bits, (ts_val, ts_ecr)) = match self.timestamps {
            Some(stamps) => (Digest::TIMESTAMPS, stamps),
            None => (0, (0, 0)),
        };
        let bits = bits | if self.ce { Digest::CE } else { 0 };
        let bits = bits | if self.followed { Digest::FOLLOWED } else { 0 };
        let has_more = matches!(self.options, Options::Sack(_));
        let bits = bits | if has_more { Digest::OPTIONS } else { 0 };
        Digest {
            seg_seq: self.seq,
            seg_ack: self.ack,
            len: self.len,
            ts_val,
            ts_ecr,
            seg_wnd: self.wnd,
            flags: self.flags,
            count: self.count,
            bits,
            ..Digest::bare(RequestKind::Segments, Instant::ZERO, 0)
        }
    }

    /// SEG.LEN: payload plus one for SYN and one for FIN (RFC 9293 section 3.4).
    #[inline]
    pub const fn seg_len(&self) -> u32 {
        self.len + (self.flags.0 & 1) as u32 + ((self.flags.0 >> 1) & 1) as u32
    }
}

impl Request {
    /// Splits a run into its contiguous good pieces, in order. `verdict` has one bit per segment.
    #[inline]
    pub fn pieces(&self, verdict: Verdict, mut each: impl FnMut(&Segment<'_>)) {
        let Body::Segments { options, .. } = &self.body else {
            return;
        };
        match options {
            Options::Acks(acks) => return self.good_acks(verdict, acks, each),
            Options::AcksAlike(beyond) => return self.good_acks_alike(verdict, beyond, each),
            _ => {}
        }
        if verdict == self.digest.all_good() {
            each(&self.digest.segment(options));
        } else {
            self.good_pieces(verdict, options, &mut each);
        }
    }

    /// Acknowledgments that share the request, one by one.
    fn good_acks(&self, verdict: Verdict, acks: &Acks, mut each: impl FnMut(&Segment<'_>)) {
        let mut piece = Segment {
            count: 1,
            ..self.digest.segment(&Options::None)
        };
        for i in 0..usize::from(self.digest.count).min(1 + MORE_ACKS) {
            if i > 0 {
                piece.ack = acks.ack[i - 1];
                piece.wnd = acks.wnd[i - 1];
            }
            if verdict & (1 << i) != 0 {
                each(&piece);
            }
        }
    }

    /// Acknowledgments that share the request and the window, one by one.
    fn good_acks_alike(
        &self,
        verdict: Verdict,
        beyond: &[u16; MORE_ALIKE],
        mut each: impl FnMut(&Segment<'_>),
    ) {
        let mut piece = Segment {
            count: 1,
            ..self.digest.segment(&Options::None)
        };
        let more = usize::from(self.digest.count).saturating_sub(1);
        for (i, beyond) in (0..).zip([0].iter().chain(beyond.iter().take(more))) {
            piece.ack += u32::from(*beyond);
            if verdict & (1 << i) != 0 {
                each(&piece);
            }
        }
    }

    #[cold]
    fn good_pieces(&self, verdict: Verdict, options: &Options, each: &mut dyn FnMut(&Segment<'_>)) {
        let d = &self.digest;
        let count = u32::from(d.count);
        let mut first = 0;
        while first < count {
            let good = (verdict >> first).trailing_ones().min(count - first);
            let end = first + good;
            if good > 0 {
                let mut piece = d.segment(options);
                piece.followed = false;
                let offset = first * u32::from(d.seg_len);
                piece.seq += offset;
                piece.run_offset = offset;
                piece.count = good as u8;
                piece.len = d.len - offset;
                if end < count {
                    piece.len = good * u32::from(d.seg_len);
                    piece.flags = d.flags.without(Flags::PSH.with(Flags::FIN));
                }
                each(&piece);
            }
            first = end + 1;
        }
    }
}

impl Request {
    /// If it is acknowledgments with one window: what each but the first acknowledges beyond the
    /// one before it, in bytes.
    #[inline]
    pub fn acks_alike(&self) -> Option<&[u16]> {
        let more = usize::from(self.digest.count).checked_sub(1)?;
        match &self.body {
            Body::Segments {
                options: Options::AcksAlike(beyond),
                ..
            } => beyond.get(..more),
            _ => None,
        }
    }
}

impl Digest {
    /// TSval and TSecr, if the option was there.
    #[inline(always)]
    pub fn timestamps(&self) -> Option<(u32, u32)> {
        (self.bits & Digest::TIMESTAMPS != 0).then_some((self.ts_val, self.ts_ecr))
    }

    /// The whole run as one piece.
    #[inline(always)]
    pub fn segment<'a>(&self, options: &'a Options) -> Segment<'a> {
        Segment {
            seq: self.seg_seq,
            ack: self.seg_ack,
            len: self.len,
            run_offset: 0,
            count: self.count,
            wnd: self.seg_wnd,
            flags: self.flags,
            timestamps: self.timestamps(),
            ce: self.bits & Digest::CE != 0,
            followed: self.bits & Digest::FOLLOWED != 0,
            options,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(count: u8, seg_len: u16, len: u32, flags: Flags) -> Request {
        let mut digest = Digest::bare(RequestKind::Segments, Instant::ZERO, 0);
        digest.count = count;
        digest.seg_len = seg_len;
        digest.len = len;
        digest.flags = flags;
        digest.seg_seq = SeqNum(1000);
        let end = Endpoint::new(Address::ipv4(127, 0, 0, 1), 1);
        let body = Body::Segments {
            flow: Flow {
                local: end,
                remote: end,
            },
            mac: Mac::default(),
            payload_offset: 54,
            options: Options::None,
        };
        Request::new(digest, body)
    }

    fn pieces(request: &Request, verdict: Verdict) -> Vec<(u32, u32, u8, Flags)> {
        let mut seen = Vec::new();
        request.pieces(verdict, |s| seen.push((s.seq.0, s.len, s.count, s.flags)));
        seen
    }

    #[test]
    fn a_good_run_is_one_piece() {
        let flags = Flags::ACK.with(Flags::FIN);
        let request = run(4, 100, 350, flags);
        assert_eq!(pieces(&request, 0b1111), [(1000, 350, 4, flags)]);
    }

    #[test]
    fn a_bad_segment_splits_its_run_and_keeps_fin_with_the_last() {
        let flags = Flags::ACK.with(Flags::FIN);
        let request = run(4, 100, 350, flags);
        assert_eq!(
            pieces(&request, 0b1101),
            [(1000, 100, 1, Flags::ACK), (1200, 150, 2, flags)]
        );
        assert_eq!(pieces(&request, 0b0111), [(1000, 300, 3, Flags::ACK)]);
        assert_eq!(pieces(&request, 0), []);
    }

    #[test]
    fn acknowledgments_that_share_a_request_arrive_one_by_one() {
        let mut request = run(3, 0, 0, Flags::ACK);
        request.digest.seg_ack = SeqNum(7);
        let Body::Segments { options, .. } = &mut request.body else {
            unreachable!()
        };
        let mut acks = Acks::default();
        acks.ack[..2].copy_from_slice(&[SeqNum(8), SeqNum(9)]);
        acks.wnd[..2].copy_from_slice(&[80, 90]);
        *options = Options::Acks(acks);
        let seen = |verdict| {
            let mut seen = Vec::new();
            request.pieces(verdict, |s| seen.push((s.ack.0, s.wnd, s.count, s.len)));
            seen
        };
        assert_eq!(seen(0b111), [(7, 0, 1, 0), (8, 80, 1, 0), (9, 90, 1, 0)]);
        assert_eq!(seen(0b101), [(7, 0, 1, 0), (9, 90, 1, 0)]);
    }

    #[test]
    fn acknowledgments_with_one_window_share_a_request_and_arrive_one_by_one() {
        let mut request = run(4, 0, 0, Flags::ACK);
        (request.digest.seg_ack, request.digest.seg_wnd) = (SeqNum(u32::MAX - 1), 70);
        let Body::Segments { options, .. } = &mut request.body else {
            unreachable!()
        };
        let mut beyond = [9; MORE_ALIKE];
        beyond[..3].copy_from_slice(&[2, 0, u16::MAX]);
        *options = Options::AcksAlike(beyond);
        let seen = |verdict| {
            let mut seen = Vec::new();
            request.pieces(verdict, |s| seen.push((s.ack.0, s.wnd, s.count, s.len)));
            seen
        };
        let one = |ack| (ack, 70, 1, 0);
        let all = [u32::MAX - 1, 0, 0, 65_535].map(one);
        assert_eq!(seen(0b1111), all);
        assert_eq!(seen(0b1010), [all[1], all[3]]);
        assert_eq!(seen(0), []);
    }

    #[test]
    fn merged_datagrams_are_equally_long_but_the_last() {
        let merged = |len, size| Merged { len, size };
        let of = |merged: Merged| (merged.count(), merged.split());
        assert_eq!(of(merged(300, 100)), (3, (3, 0)));
        assert_eq!(of(merged(301, 100)), (4, (3, 1)));
        assert_eq!(of(merged(u16::MAX, 1)), (u16::MAX, (u16::MAX, 0)));
        assert_eq!(of(merged(7, 0)), (0, (0, 0)));
    }

    #[test]
    fn a_pure_ack_is_one_empty_piece() {
        let request = run(1, 0, 0, Flags::ACK);
        assert_eq!(pieces(&request, 1), [(1000, 0, 1, Flags::ACK)]);
    }
}
