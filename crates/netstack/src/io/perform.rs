//! Perform, the other costly step: turns effects of `apply` into copies, frames and notifications.
//!
//! An effect belongs to the primary of its batch, but the frames of a `Transmit` or `Send` belong
//! to the owners of their chunks, perhaps several workers. Each worker performs its share in
//! ascending order. Nothing here waits, but for the lock of the socket table when a connection
//! opens or ends, and `apply` gets no result back.

mod datagrams;

use core::num::NonZeroU32;
use core::ops::Range;

use dominoes_drivers::{Gso, GsoKind, TxChecksum, TxMeta};

use crate::error::SocketError;
use crate::io::RunFrames;
use crate::io::accept::Ready;
use crate::io::stream::{AppRequest, StreamRef};
use crate::io::tx::BegunFrames;
use crate::io::world::{HintUpdate, OpenResult, Wakes, World};
use crate::keys::KeyUse;
use crate::log::effect::{CommonHeaders, Deliver, Effect, Transmit};
use crate::log::request::{ConnId, Flags, Flow, IpFields, Sack};
use crate::packet as wire;
#[cfg(feature = "testkit")]
use crate::packet::checksum::Cpu;
use crate::packet::checksum::Sum;
use crate::packet::{ETHERNET_HEADER, MAX_HEADERS, SackBlocks, TcpHeaders};
use crate::seqnum::SeqNum;
use crate::stats::EffectStats;

#[cfg(feature = "testkit")]
pub(crate) use datagrams::fill_datagram;
use datagrams::queue;
pub(crate) use datagrams::{build_datagram, build_datagram_in, whole_datagram};

/// Performs all effects of a request that has the frames `run`.
#[inline]
pub(crate) fn all<'a>(
    world: &World,
    effects: impl IntoIterator<Item = &'a Effect>,
    run: &RunFrames,
    headers: &mut BuiltHeaders,
    stats: &mut EffectStats,
    wakes: &mut Wakes<'_>,
) {
    for effect in effects {
        match effect {
            Effect::Transmit(transmit) => {
                build(world, transmit, (0, transmit.count), headers, stats);
            }
            Effect::Send(send) => {
                for i in 0..send.count {
                    build_datagram(world, send, i, stats);
                }
            }
            other => one(world, other, Some(run), stats, wakes),
        }
    }
}

/// Performs an effect that transmits nothing, of a request with the frames `run`, which are known
/// unless its batch is done.
#[inline(always)]
pub(crate) fn one(
    world: &World,
    effect: &Effect,
    run: Option<&RunFrames>,
    stats: &mut EffectStats,
    wakes: &mut Wakes<'_>,
) {
    match (effect, run) {
        (Effect::Deliver(piece), Some(run)) => deliver(world, piece, run, stats),
        (Effect::Queue(datagrams), Some(run)) => queue(world, datagrams, run, stats),
        (Effect::Deliver(_) | Effect::Queue(_), None) => stats.diverged += 1,
        (other, _) => notify(world, other, stats),
    }
    wakes.after(effect);
}

/// Copies the range that `deliver` names out of `run`, unless the payload was stored there while it
/// was verified: where bytes were [`reserved`](RunFrames::reserved).
#[inline(always)]
pub(crate) fn deliver(world: &World, deliver: &Deliver, run: &RunFrames, stats: &mut EffectStats) {
    let Some(stream) = world.streams.get(deliver.conn) else {
        stats.diverged += 1;
        return;
    };
    let place = deliver
        .stream_offset
        .wrapping_sub(u64::from(deliver.run_offset));
    if run.reserved.map(NonZeroU32::get) != Some(place as u32) {
        stream.set_first_sequence(run.seq - place as u32);
        let is_one_piece = run.len() == 1 && deliver.run_offset == 0;
        let whole = is_one_piece.then(|| {
            let payload = run.get(0)?.bytes().get(run.payload_offset.into()..)?;
            payload.get(..deliver.len as usize)
        });
        if let Some(Some(payload)) = whole {
            stream.store(deliver, 0, payload);
        } else if copy_pieces(&stream, deliver, run).is_none() {
            stats.diverged += 1;
            return;
        }
        stats.copied_bytes += u64::from(deliver.len);
    }
    stats.delivered_bytes += u64::from(deliver.len);
    let stored_end = deliver.stream_offset + u64::from(deliver.len);
    if stored_end > deliver.end {
        stream.stored_behind_gap(stored_end);
    }
    if deliver.last {
        stats.deliveries += 1;
        stream.stamp(deliver);
    }
}

/// Copies from several frames. `None` if the frames are shorter than the run's layout requires.
#[inline(never)]
fn copy_pieces(stream: &StreamRef<'_>, deliver: &Deliver, run: &RunFrames) -> Option<()> {
    let (seg_len, payload_offset) = (u32::from(run.seg_len).max(1), run.payload_offset.into());
    let in_a_row = run.consecutive();
    let mut done = 0;
    while done < deliver.len {
        let at = deliver.run_offset + done;
        // Only a run of a single segment may end with its longest one, so the index is always
        // right.
        let index = ((at / seg_len) as usize).min(run.len().saturating_sub(1));
        let within = (at - index as u32 * seg_len) as usize;
        let frame = match in_a_row {
            Some(frames) => frames.get(index),
            None => run.get(index),
        };
        let frame = frame?.bytes();
        let payload = frame.get(payload_offset..)?.get(within..)?;
        // A short frame may have padding after its payload: each segment of a run except the
        // last has `seg_len` bytes.
        let left = (deliver.len - done) as usize;
        let here = if index + 1 < run.len() {
            left.min(seg_len as usize - within)
        } else {
            left
        };
        let bytes = payload.get(..here)?;
        stream.store(deliver, done, bytes);
        done += here as u32;
    }
    Some(())
}

/// Performs an effect that is neither a delivery nor a transmission: it informs applications or
/// the pump.
pub(crate) fn notify(world: &World, effect: &Effect, stats: &mut EffectStats) {
    match *effect {
        Effect::Deliver(_) | Effect::Transmit(_) | Effect::Queue(_) | Effect::Send(_) => {}
        Effect::Sent { socket, upto } => match world.queues.streams.get(socket) {
            Some(stream) => stream.release(upto),
            None => stats.diverged += 1,
        },
        Effect::Unbound { socket } => {
            world.queues.unbound.push(socket);
            world.wake_pump();
        }
        Effect::Release { conn, upto } => match world.streams.get(conn) {
            Some(stream) => stream.release(upto),
            None => stats.diverged += 1,
        },
        Effect::Numbered { conn, upto } => match world.streams.get(conn) {
            Some(stream) => stream.numbered(upto),
            None => stats.diverged += 1,
        },
        Effect::Event {
            conn,
            event,
            received,
        } => match world.streams.get(conn) {
            Some(stream) => stream.event(event, received),
            None => stats.diverged += 1,
        },
        Effect::Opened {
            request_id,
            conn,
            flow,
        } => {
            let answer = if conn == ConnId::NONE {
                OpenResult::Failed(SocketError::NoRoom)
            } else {
                OpenResult::Opened { conn, flow }
            };
            world.complete_open(request_id, answer);
        }
        Effect::NoPort { request_id, port } => {
            let error = match port {
                0 => SocketError::NoPort,
                _ => SocketError::PortTaken,
            };
            world.complete_open(request_id, OpenResult::Failed(error));
        }
        Effect::Accept { number, conn, flow } => {
            let ready = Ready {
                group: world.group,
                conn,
                flow,
            };
            world.established(number, ready);
        }
        Effect::Hint { conn, flow, open } => world.hints.push(HintUpdate { conn, flow, open }),
        Effect::PathMtu { remote, mtu } => world.tell_path(remote, mtu),
        Effect::Retire { conn, held, frames } => {
            if let Some(stream) = world.streams.get(conn) {
                if !held {
                    stream.request(AppRequest {
                        orphan: true,
                        ..AppRequest::default()
                    });
                }
                stream.retired();
            }
            world.retired.push((conn, frames));
            world.wake_pump();
        }
    }
}

const TCP: u8 = 6;
/// Offset of the checksum field in a TCP header.
const CHECKSUM_AT: u16 = 16;

/// The headers of the last frames built, for both address families.
#[derive(Debug, Default)]
pub(crate) struct BuiltHeaders {
    v4: Kept<PLAIN>,
    v6: Box<Kept<PLAIN_V6>>,
}

/// The headers of the last frame built. In a bulk transfer the next frame has equal headers,
/// except sequence and acknowledgment numbers, window and checksum. At most `N` bytes; the only
/// TCP option is timestamps.
#[derive(Debug)]
struct Kept<const N: usize> {
    /// The values that frames with these headers share; `ConnId::NONE` if there are none.
    conn: ConnId,
    header_version: u32,
    len: u32,
    flags: Flags,
    ect: bool,
    timestamps: Option<(u32, u32)>,
    bytes: [u8; N],
    /// `bytes` with zeros for the fields that vary.
    head: Head,
}

/// The headers of a frame.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    /// Length of all headers, in bytes.
    len: usize,
    /// The sum of the pseudo header, folded.
    pseudo: u16,
    /// The sum of pseudo header and TCP header.
    sum: Sum,
}

/// Most bytes of a TCP header with no options except timestamps.
const TCP_PLAIN: usize = 32;
/// Most bytes of all headers, with no options except timestamps.
const PLAIN: usize = ETHERNET_HEADER + 20 + TCP_PLAIN;
/// Offset of the TCP header.
const AT: usize = PLAIN - TCP_PLAIN;
/// Both for IPv6.
const AT_V6: usize = PLAIN_V6 - TCP_PLAIN;
const PLAIN_V6: usize = ETHERNET_HEADER + 40 + TCP_PLAIN;

impl<const N: usize> Default for Kept<N> {
    fn default() -> Self {
        Kept {
            conn: ConnId::NONE,
            header_version: 0,
            len: 0,
            flags: Flags(0),
            ect: false,
            timestamps: None,
            bytes: [0; N],
            head: Head::default(),
        }
    }
}

impl<const N: usize> Kept<N> {
    /// Writes the headers of a frame to the front of `buffer`.
    #[inline(always)]
    fn emit(
        &mut self,
        world: &World,
        t: &Transmit,
        seq: SeqNum,
        flags: Flags,
        len: u32,
        buffer: &mut [u8],
    ) -> Head {
        if t.syn.is_some() || t.sack.is_some() || t.common.conn == ConnId::NONE {
            return emit_once(world, t, seq, flags, len, buffer);
        }
        self.fit(world, t, flags, len);
        self.write(seq, t.ack, t.wnd, buffer)
    }

    /// Makes these the headers for frames of `t`.
    #[inline(always)]
    fn fit(&mut self, world: &World, t: &Transmit, flags: Flags, len: u32) {
        if !self.matches(t, flags, len) {
            self.make(world, t, flags, len);
        }
    }

    /// Makes these the headers for the next frames of `t`, acknowledgment number and window
    /// included, so each frame needs only its sequence number and checksum. Returns the headers
    /// without these two.
    #[inline(always)]
    fn fit_numbered(&mut self, world: &World, t: &Transmit, flags: Flags, len: u32) -> Head {
        self.fit(world, t, flags, len);
        match N {
            PLAIN_V6 => wire::set_tcp_numbers::<AT_V6>(&mut self.bytes, 0, t.ack.0, t.wnd),
            _ => wire::set_tcp_numbers::<AT>(&mut self.bytes, 0, t.ack.0, t.wnd),
        }
        let sum = self.head.sum.numbers([t.ack.0, u32::from(t.wnd)]);
        Head { sum, ..self.head }
    }

    /// Writes the headers that [`Kept::fit_numbered`] made to the front of `buffer`, for the
    /// segment at `seq`.
    #[inline(always)]
    fn write_next(&self, seq: SeqNum, buffer: &mut [u8]) {
        let buffer = buffer
            .first_chunk_mut::<N>()
            .expect("a slot holds all headers");
        *buffer = self.bytes;
        match N {
            PLAIN_V6 => wire::set_tcp_sequence::<AT_V6>(buffer, seq.0),
            _ => wire::set_tcp_sequence::<AT>(buffer, seq.0),
        }
    }

    /// Writes the headers with these numbers. A header field that differs between frames with
    /// one key must be written here and in `write_next`, or by `fit_numbered`, and be in the sums.
    #[inline(always)]
    fn write(&self, seq: SeqNum, ack: SeqNum, wnd: u16, buffer: &mut [u8]) -> Head {
        // Copies a fixed length: the payload overwrites anything after the headers.
        let buffer = buffer
            .first_chunk_mut::<N>()
            .expect("a slot holds all headers");
        *buffer = self.bytes;
        match N {
            PLAIN_V6 => wire::set_tcp_numbers::<AT_V6>(buffer, seq.0, ack.0, wnd),
            _ => wire::set_tcp_numbers::<AT>(buffer, seq.0, ack.0, wnd),
        }
        let sum = self.head.sum.numbers([seq.0, ack.0, u32::from(wnd)]);
        Head { sum, ..self.head }
    }

    #[cold]
    fn make(&mut self, world: &World, t: &Transmit, flags: Flags, len: u32) {
        let mut bytes = [0; MAX_HEADERS];
        let zeros = Transmit {
            ack: SeqNum(0),
            wnd: 0,
            ..*t
        };
        self.head = emit_once(world, &zeros, SeqNum(0), flags, len, &mut bytes);
        self.bytes.copy_from_slice(&bytes[..N]);
        (self.conn, self.header_version) = (t.common.conn, t.common.version);
        (self.len, self.flags) = (len, flags);
        (self.ect, self.timestamps) = (t.ect, t.timestamps);
    }

    /// Whether a frame of `t` has these headers.
    #[inline(always)]
    fn matches(&self, t: &Transmit, flags: Flags, len: u32) -> bool {
        self.conn == t.common.conn
            && self.header_version == t.common.version
            && self.len == len
            && self.flags == flags
            && self.ect == t.ect
            && self.timestamps == t.timestamps
    }
}

/// Stores the checksum of a frame with headers of at most `N` bytes.
#[inline(always)]
fn set_checksum<const N: usize>(frame: &mut [u8], checksum: u16) {
    match N {
        PLAIN_V6 => wire::set_tcp_checksum::<AT_V6>(frame, checksum),
        _ => wire::set_tcp_checksum::<AT>(frame, checksum),
    }
}

/// As [`Kept::emit`], for this frame only.
fn emit_once(
    world: &World,
    t: &Transmit,
    seq: SeqNum,
    flags: Flags,
    len: u32,
    buffer: &mut [u8],
) -> Head {
    let syn = t.syn.unwrap_or_default();
    let CommonHeaders { ip, mac, flow, .. } = t.common;
    let headers = TcpHeaders {
        src_mac: world.mac,
        dst_mac: mac.0,
        flow,
        seq: seq.0,
        ack: t.ack.0,
        wnd: t.wnd,
        flags: flags.0,
        ect: t.ect,
        ip: IpFields {
            ttl: world.hop_limit(flow.remote.address, ip.ttl),
            ..ip
        },
        label: flow_label(world, &flow),
        timestamps: t.timestamps,
        mss: syn.mss,
        window_scale: syn.window_scale,
        sack_permitted: syn.sack_permitted,
        sack: t.sack.as_ref().map_or_else(SackBlocks::default, blocks),
        payload_len: len as usize,
    };
    let head = wire::emit_tcp(buffer, &headers);
    let (src, dst) = (flow.local.address, flow.remote.address);
    let at = wire::ip_headers_len(dst, false);
    let tcp_len = head + len as usize - at;
    let pseudo = Sum::default().pseudo_header(src, dst, TCP, tcp_len);
    let written = &buffer[at..head];
    Head {
        len: head,
        pseudo: pseudo.folded(),
        sum: header_sum(pseudo, &headers, written),
    }
}

/// The flow label of packets of `flow` (RFC 6437 section 3): constant for a flow, and hard to
/// guess. 0 for IPv4, which has none.
fn flow_label(world: &World, flow: &Flow) -> u32 {
    if flow.remote.address.is_v4() {
        return 0;
    }
    // Never 0, which means "no label".
    (world.keys.of_flow(KeyUse::FlowLabel, flow, 0) as u32 & 0xf_ffff).max(1)
}

/// Metadata of a frame with headers of at most `N` bytes; the device completes its checksum.
fn unfinished<const N: usize>() -> TxMeta {
    TxMeta {
        checksum: TxChecksum::Partial {
            start: (N - TCP_PLAIN) as u16,
            offset: CHECKSUM_AT,
        },
        gso: None,
    }
}

/// Builds the frame of a transmit effect without payload, in its slot.
#[inline(always)]
pub(crate) fn build_bare(
    world: &World,
    t: &Transmit,
    headers: &mut BuiltHeaders,
    stats: &mut EffectStats,
) {
    match world.tx.begin(t.first_frame, 1) {
        Ok(begun) => build_bare_in(world, t, begun, headers, stats),
        Err(_) => stats.diverged += 1,
    }
}

#[inline(always)]
fn build_bare_in(
    world: &World,
    t: &Transmit,
    begun: BegunFrames<'_>,
    headers: &mut BuiltHeaders,
    stats: &mut EffectStats,
) {
    if t.common.flow.local.address.is_v4() {
        build_bare_as(world, t, begun, &mut headers.v4, stats);
    } else {
        build_bare_v6(world, t, begun, headers, stats);
    }
}

#[inline(never)]
fn build_bare_v6(
    world: &World,
    t: &Transmit,
    begun: BegunFrames<'_>,
    headers: &mut BuiltHeaders,
    stats: &mut EffectStats,
) {
    build_bare_as(world, t, begun, &mut *headers.v6, stats);
}

#[inline(always)]
fn build_bare_as<const N: usize>(
    world: &World,
    t: &Transmit,
    mut begun: BegunFrames<'_>,
    kept: &mut Kept<N>,
    stats: &mut EffectStats,
) {
    let buffer = begun.buffer();
    let head = kept.emit(world, t, t.seq, t.flags, 0, buffer);
    let meta = complete_bare::<N>(world, &head, buffer);
    begun.built(head.len, head.len, meta);
    begun.mark_ready();
    if let Some(stream) = world.streams.get(t.common.conn) {
        stream.advertised(t.window_end, t.window_limit);
    }
    stats.frames += 1;
}

/// Completes a frame that consists of headers only. Returns its metadata.
#[inline(always)]
fn complete_bare<const N: usize>(world: &World, head: &Head, buffer: &mut [u8]) -> TxMeta {
    let (checksum, meta) = if world.tx_checksum {
        (head.pseudo, unfinished::<N>())
    } else {
        (head.sum.finish(), TxMeta::default())
    };
    set_checksum::<N>(buffer, checksum);
    meta
}

/// Builds `count` frames of a transmit effect in their slots, beginning with frame `from`. No other
/// thread builds one of them.
#[inline]
pub(crate) fn build(
    world: &World,
    t: &Transmit,
    (from, count): (u32, u32),
    headers: &mut BuiltHeaders,
    stats: &mut EffectStats,
) {
    let (mut at, end) = (from, from + count);
    while at < end {
        match world.tx.begin(t.first_frame + u64::from(at), end - at) {
            Ok(begun) => {
                let from = at;
                at += begun.left();
                build_in(world, t, (from, begun), headers, stats, || ());
            }
            Err(_) => {
                stats.diverged += 1;
                at += 1;
            }
        }
    }
}

/// Builds the frames of a transmit effect that the caller has begun, the first of which is frame
/// `from`. Calls `before` before each. If that panics, they all stay unbuilt.
#[inline]
pub(crate) fn build_in(
    world: &World,
    t: &Transmit,
    (from, begun): (u32, BegunFrames<'_>),
    headers: &mut BuiltHeaders,
    stats: &mut EffectStats,
    mut before: impl FnMut(),
) {
    if t.payload_len == 0 {
        before();
        return build_bare_in(world, t, begun, headers, stats);
    }
    if t.common.flow.local.address.is_v4() {
        build_range(world, t, (from, begun), &mut headers.v4, stats, before);
    } else {
        build_range(world, t, (from, begun), &mut *headers.v6, stats, before);
    }
}

/// As [`build_in`], for frames with payload.
#[inline(always)]
fn build_range<const N: usize>(
    world: &World,
    t: &Transmit,
    (from, mut begun): (u32, BegunFrames<'_>),
    kept: &mut Kept<N>,
    stats: &mut EffectStats,
    mut before: impl FnMut(),
) {
    let count = begun.left();
    let Some(stream) = world.streams.get(t.common.conn) else {
        stats.diverged += u64::from(count);
        return;
    };
    let range = from..from + count;
    if world.tx_checksum {
        for i in range {
            before();
            build_with_payload(world, &stream, t, i, kept, &mut begun);
        }
    } else {
        build_copies(world, &stream, t, range, kept, &mut begun, &mut before);
    }
    begun.mark_ready();
    stats.frames += u64::from(count);
    let (offset, _) = t.payload_of(from);
    let (last, len) = t.payload_of(from + count - 1);
    stats.sent_bytes += last + u64::from(len) - offset;
    if from + count == t.count {
        stream.advertised(t.window_end, t.window_limit);
    }
}

/// Builds begun frames with payload: copies the payload and computes the checksums. The frames
/// differ in their sequence numbers; the last one of the effect differs in length and flags,
/// too.
#[inline(always)]
fn build_copies<const N: usize>(
    world: &World,
    stream: &StreamRef<'_>,
    t: &Transmit,
    range: Range<u32>,
    kept: &mut Kept<N>,
    begun: &mut BegunFrames<'_>,
    mut before: impl FnMut(),
) {
    let mut head = Head::default();
    let first = range.start;
    for i in range {
        before();
        let (offset, len) = t.payload_of(i);
        let frame = t.first_frame + u64::from(i);
        let is_last = i + 1 == t.count;
        if i == first || is_last {
            let flags = if is_last {
                t.flags
            } else {
                t.flags.without(Flags::PSH.with(Flags::FIN))
            };
            head = kept.fit_numbered(world, t, flags, len);
        }
        let total = head.len + len as usize;
        // This worker most likely builds the next frame, too, which has equal length.
        world.tx.fetch(frame + 1, total);
        let buffer = begun.buffer();
        let seq = t.seq + i * t.frame_len;
        kept.write_next(seq, buffer);
        let parts = stream.sending(offset, len as usize);
        let sum = head.sum.number(seq.0);
        let checksum = sum
            .add_copies(world.cpu, parts, &mut buffer[head.len..total])
            .finish();
        set_checksum::<N>(buffer, checksum);
        begun.built(head.len, total, TxMeta::default());
    }
}

/// Builds the begun frame `i`, with payload, for a device that computes checksums. The device
/// reads the payload in the stream's ring, or in the slot where the ring wraps.
#[inline(always)]
fn build_with_payload<const N: usize>(
    world: &World,
    stream: &StreamRef<'_>,
    t: &Transmit,
    i: u32,
    kept: &mut Kept<N>,
    begun: &mut BegunFrames<'_>,
) {
    let (offset, len) = t.payload_of(i);
    let frame = t.first_frame + u64::from(i);
    let carried = stream.borrow_payload(offset, len as usize);
    // This worker most likely builds the next frame, too, which has equal length.
    let copied = if carried.is_some() { 0 } else { len as usize };
    world.tx.fetch(frame + 1, wire::MAX_HEADERS + copied);
    let flags = if i + 1 == t.count {
        t.flags
    } else {
        t.flags.without(Flags::PSH.with(Flags::FIN))
    };
    let buffer = begun.buffer();
    let seq = t.seq + i * t.frame_len;
    let head = kept.emit(world, t, seq, flags, len, buffer);
    let total = head.len + len as usize;
    if carried.is_none() {
        let (a, b) = stream.sending(offset, len as usize);
        let (front, back) = buffer[head.len..total].split_at_mut(a.len());
        front.copy_from_slice(a);
        back.copy_from_slice(b);
    }
    let mut meta = unfinished::<N>();
    meta.gso = (len > u32::from(t.mss)).then_some(Gso {
        kind: if N == PLAIN_V6 {
            GsoKind::Tcp6
        } else {
            GsoKind::Tcp4
        },
        size: t.mss,
        header_len: head.len as u16,
    });
    set_checksum::<N>(buffer, head.pseudo);
    match carried {
        Some(carried) => begun.built_with_payload(head.len, carried, meta),
        None => begun.built(head.len, total, meta),
    }
}

/// The blocks of a SACK option.
#[cold]
fn blocks(sack: &Sack) -> SackBlocks {
    let mut blocks = SackBlocks::default();
    for ((left, right), edges) in sack.blocks().iter().zip(&mut blocks.edges) {
        *edges = (left.0, right.0);
        blocks.count += 1;
    }
    blocks
}

/// Adds a TCP header from the values that were written: to read it back would wait until the
/// slot's memory arrives in the cache. A header with options except timestamps is read back.
#[inline]
fn header_sum(sum: Sum, h: &TcpHeaders, written: &[u8]) -> Sum {
    if h.mss.is_some() || h.window_scale.is_some() || h.sack_permitted || h.sack.count > 0 {
        return sum.with(written);
    }
    let offset = (written.len() as u32 / 4) << 28;
    let sum = sum
        .number(u32::from(h.flow.local.port) << 16 | u32::from(h.flow.remote.port))
        .number(h.seq)
        .number(h.ack)
        .number(offset | u32::from(h.flags) << 16 | u32::from(h.wnd));
    match h.timestamps {
        Some((val, ecr)) => sum.number(0x0101_080a).number(val).number(ecr),
        None => sum,
    }
}

/// Copies `payload` after the headers at the start of `frame` (Ethernet, IPv4, TCP, none with
/// options; the TCP checksum field is zero), and stores the checksum: the cost of [`build`]
/// except for writing headers.
#[cfg(feature = "testkit")]
pub(crate) fn fill(frame: &mut [u8], payload: &[u8]) {
    let Some((head, rest)) = frame.split_first_chunk_mut() else {
        return;
    };
    let sum = sum_of_headers(head, payload.len()).add_copy(Cpu::this(), payload, rest);
    wire::set_tcp_checksum::<AT>(frame, sum.finish());
}

/// The sum of the headers before `payload_len` bytes of payload, and of the IPv4 pseudo header.
#[cfg(feature = "testkit")]
#[inline(always)]
fn sum_of_headers(head: &[u8; ETHERNET_HEADER + 40], payload_len: usize) -> Sum {
    let (link_and_ip, tcp) = head.split_at(ETHERNET_HEADER + 20);
    let [.., a, b, c, d, e, f, g, h] = link_and_ip else {
        return Sum::default();
    };
    let (src, dst) = ([*a, *b, *c, *d].into(), [*e, *f, *g, *h].into());
    Sum::default()
        .pseudo_header(src, dst, TCP, 20 + payload_len)
        .add_head::<20>(tcp)
}
