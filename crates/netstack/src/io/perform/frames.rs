//! Frames of segments: their headers, what they carry, and checksums.

use dominoes_drivers::{Gso, GsoKind, TxChecksum, TxMeta};

use crate::io::processor;
use crate::io::processor::{Processor, StreamId};
use crate::io::stream::StreamRef;
use crate::io::world::World;
use crate::log::effect::Transmit;
use crate::log::request::{ConnId, Flags, Sack};
use crate::packet as wire;
use crate::packet::checksum::Sum;
use crate::packet::{ETHERNET_HEADER, MAX_HEADERS, SackBlocks, TcpHeaders};
use crate::seqnum::SeqNum;
use crate::stats::EffectStats;

const TCP: u8 = 6;
/// Where the checksum field stands within a TCP header.
const CHECKSUM_AT: u16 = 16;

/// The headers of the frame that was built last, but for sequence and acknowledgment numbers,
/// window and checksum: in a bulk transfer the next one has the same.
#[derive(Debug)]
pub(crate) struct Template {
    key: Option<TemplateKey>,
    bytes: [u8; PLAIN],
    /// What stands there, with zeros for these.
    head: Head,
}

/// The headers of a frame.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    /// Bytes of all of them.
    len: usize,
    /// The sum of the pseudo header, folded.
    pseudo: u16,
    /// The sum of pseudo header and TCP header.
    sum: Sum,
}

/// Bytes of all headers, at most, without options but timestamps.
const PLAIN: usize = ETHERNET_HEADER + 20 + 32;

/// What frames with the same headers have in common.
#[derive(Clone, Copy, Debug)]
struct TemplateKey {
    conn: ConnId,
    header_version: u32,
    len: u32,
    flags: Flags,
    ect: bool,
    timestamps: Option<(u32, u32)>,
}

impl Default for Template {
    fn default() -> Self {
        Template {
            key: None,
            bytes: [0; PLAIN],
            head: Head::default(),
        }
    }
}

impl Template {
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
        if t.syn.is_some() || t.sack.is_some() || t.conn == ConnId::NONE {
            return emit_once(world, t, seq, flags, len, buffer);
        }
        self.fit(world, t, flags, len);
        self.write(seq, t.ack, t.wnd, buffer)
    }

    /// Becomes the headers of frames of `t`.
    #[inline(always)]
    fn fit(&mut self, world: &World, t: &Transmit, flags: Flags, len: u32) {
        if !self.key.is_some_and(|of| of.matches(t, flags, len)) {
            self.make(world, t, flags, len);
        }
    }

    /// Writes the headers with these numbers. A header field that differs between frames of one
    /// template must be written here too, and be in the sums.
    #[inline(always)]
    fn write(&self, seq: SeqNum, ack: SeqNum, wnd: u16, buffer: &mut [u8]) -> Head {
        // Always as much: what stands behind the headers is overwritten by the text.
        let buffer = buffer
            .first_chunk_mut::<PLAIN>()
            .expect("a slot holds all headers");
        *buffer = self.bytes;
        wire::set_tcp_numbers(buffer, seq.0, ack.0, wnd);
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
        self.bytes.copy_from_slice(&bytes[..PLAIN]);
        self.key = Some(TemplateKey {
            conn: t.conn,
            header_version: t.header_version,
            len,
            flags,
            ect: t.ect,
            timestamps: t.timestamps,
        });
    }
}

impl TemplateKey {
    /// Whether a frame of `t` is one of them.
    #[inline(always)]
    fn matches(&self, t: &Transmit, flags: Flags, len: u32) -> bool {
        self.conn == t.conn
            && self.header_version == t.header_version
            && self.len == len
            && self.flags == flags
            && self.ect == t.ect
            && self.timestamps == t.timestamps
    }
}

/// As [`Template::emit`], for this frame alone.
fn emit_once(
    world: &World,
    t: &Transmit,
    seq: SeqNum,
    flags: Flags,
    len: u32,
    buffer: &mut [u8],
) -> Head {
    let syn = t.syn.unwrap_or_default();
    let headers = TcpHeaders {
        src_mac: world.mac,
        dst_mac: t.mac.0,
        src: *t.flow.local.ip(),
        dst: *t.flow.remote.ip(),
        src_port: t.flow.local.port(),
        dst_port: t.flow.remote.port(),
        seq: seq.0,
        ack: t.ack.0,
        wnd: t.wnd,
        flags: flags.0,
        ect: t.ect,
        ttl: t.ttl,
        tos: t.tos,
        timestamps: t.timestamps,
        mss: syn.mss,
        window_scale: syn.window_scale,
        sack_permitted: syn.sack_permitted,
        sack: t.sack.as_ref().map_or_else(SackBlocks::default, blocks),
        payload_len: len as usize,
    };
    let head = wire::emit_tcp(buffer, &headers);
    let tcp_len = head + len as usize - ETHERNET_HEADER - 20;
    let pseudo =
        Sum::default().pseudo_header(headers.src.octets(), headers.dst.octets(), TCP, tcp_len);
    let written = &buffer[ETHERNET_HEADER + 20..head];
    Head {
        len: head,
        pseudo: pseudo.folded(),
        sum: header_sum(pseudo, &headers, written),
    }
}

/// What is said of a frame that is left to the device to finish.
fn unfinished() -> TxMeta {
    TxMeta {
        checksum: TxChecksum::Partial {
            start: (ETHERNET_HEADER + 20) as u16,
            offset: CHECKSUM_AT,
        },
        gso: None,
    }
}

/// Builds the frame of a transmit effect without text in its slot.
#[inline]
pub(crate) fn build_bare(
    world: &World,
    t: &Transmit,
    template: &mut Template,
    stats: &mut EffectStats,
) {
    let Ok(mut claim) = world.tx.claim(t.first_frame) else {
        stats.diverged += 1;
        return;
    };
    let buffer = claim.buffer();
    let head = template.emit(world, t, t.seq, t.flags, 0, buffer);
    let meta = complete_bare(world, &head, buffer);
    claim.publish(head.len, head.len, meta);
    if let Some(stream) = world.streams.get(t.conn) {
        stream.advertised(t.window_end, t.window_limit);
    }
    stats.frames += 1;
}

/// Completes a frame that is nothing but headers. Returns what is said of it.
#[inline(always)]
fn complete_bare(world: &World, head: &Head, buffer: &mut [u8]) -> TxMeta {
    let (checksum, meta) = if world.tx_checksum {
        (head.pseudo, unfinished())
    } else {
        (head.sum.finish(), TxMeta::default())
    };
    wire::set_tcp_checksum(buffer, checksum);
    meta
}

/// Builds frame `i` of a transmit effect in its slot.
pub(crate) fn build(
    world: &World,
    t: &Transmit,
    i: u32,
    template: &mut Template,
    stats: &mut EffectStats,
) {
    if t.payload_len == 0 {
        return build_bare(world, t, template, stats);
    }
    build_with_payload(world, t, i, template, stats);
}

/// Builds frame `i`, which carries something.
fn build_with_payload(
    world: &World,
    t: &Transmit,
    i: u32,
    template: &mut Template,
    stats: &mut EffectStats,
) {
    let (offset, len) = t.payload_of(i);
    let Ok(mut claim) = world.tx.claim(t.first_frame + u64::from(i)) else {
        stats.diverged += 1;
        return;
    };
    let Some(stream) = world.streams.get(t.conn) else {
        stats.diverged += 1;
        return;
    };
    let inline = world.streams.inline.as_ref();
    // Nothing needs the text itself, so it can be sent from where it lies.
    let carried = if world.tx_checksum && inline.is_none() {
        stream.borrow_payload(offset, len as usize)
    } else {
        None
    };
    // Whoever builds this frame most likely builds the next one, which is as long.
    let copied = if carried.is_some() { 0 } else { len as usize };
    let next = t.first_frame + u64::from(i) + 1;
    world.tx.fetch(next, wire::MAX_HEADERS + copied);
    let last = i + 1 == t.count;
    let flags = if last {
        t.flags
    } else {
        t.flags.without(Flags::PSH.with(Flags::FIN))
    };
    let buffer = claim.buffer();
    let seq = t.seq + i * t.frame_len;
    let head = template.emit(world, t, seq, flags, len, buffer);
    let total = head.len + len as usize;
    let payload = &mut buffer[head.len..total];
    let mut meta = TxMeta::default();
    let checksum = if world.tx_checksum {
        if carried.is_none() {
            copy_payload(world, t, &stream, offset, payload);
        }
        meta = unfinished();
        meta.gso = (len > u32::from(t.mss)).then_some(Gso {
            kind: GsoKind::Tcp4,
            size: t.mss,
            header_len: head.len as u16,
        });
        head.pseudo
    } else if inline.is_some() {
        copy_payload(world, t, &stream, offset, payload);
        // What a processor wrote is in the nearest cache now.
        head.sum.add(payload).finish()
    } else {
        let parts = stream.sending(offset, len as usize);
        head.sum.add_copies(parts, payload).finish()
    };
    wire::set_tcp_checksum(buffer, checksum);
    match carried {
        Some(carried) => claim.publish_with_payload(head.len, carried, meta),
        None => claim.publish(head.len, total, meta),
    }
    if last {
        stream.advertised(t.window_end, t.window_limit);
    }
    stats.frames += 1;
    stats.sent_bytes += u64::from(len);
}

/// Copies what a frame carries into it, by way of the inline processor if there is one.
fn copy_payload(
    world: &World,
    t: &Transmit,
    stream: &StreamRef<'_>,
    offset: u64,
    payload: &mut [u8],
) {
    if let Some(inline) = &world.streams.inline {
        return inline.send(stream, &processor::sent(t), offset, payload);
    }
    let (a, b) = stream.sending(offset, payload.len());
    let (front, back) = payload.split_at_mut(a.len());
    front.copy_from_slice(a);
    back.copy_from_slice(b);
}

/// What the option says.
#[cold]
fn blocks(sack: &Sack) -> SackBlocks {
    let mut blocks = SackBlocks::default();
    for ((left, right), edges) in sack.blocks().iter().zip(&mut blocks.edges) {
        *edges = (left.0, right.0);
        blocks.count += 1;
    }
    blocks
}

/// Adds a TCP header, of the values that it was written from: reading it back would wait until the
/// slot's memory is there. One with other options than timestamps is read.
#[inline]
fn header_sum(sum: Sum, h: &TcpHeaders, written: &[u8]) -> Sum {
    if h.mss.is_some() || h.window_scale.is_some() || h.sack_permitted || h.sack.count > 0 {
        return sum.add(written);
    }
    let offset = (written.len() as u32 / 4) << 28;
    let sum = sum
        .number(u32::from(h.src_port) << 16 | u32::from(h.dst_port))
        .number(h.seq)
        .number(h.ack)
        .number(offset | u32::from(h.flags) << 16 | u32::from(h.wnd));
    match h.timestamps {
        Some((val, ecr)) => sum.number(0x0101_080a).number(val).number(ecr),
        None => sum,
    }
}

/// Copies `payload` behind the headers that `frame` begins with (Ethernet, IPv4, TCP, none with
/// options; the TCP checksum field is zero), and stores the checksum: what [`build`] costs besides
/// writing headers.
pub(crate) fn fill(frame: &mut [u8], payload: &[u8]) {
    let (head, rest) = frame.split_at_mut(ETHERNET_HEADER + 40);
    let [.., a, b, c, d, e, f, g, h] = head[ETHERNET_HEADER..ETHERNET_HEADER + 20] else {
        return;
    };
    let sum = Sum::default()
        .pseudo_header([a, b, c, d], [e, f, g, h], TCP, 20 + payload.len())
        .add(&head[ETHERNET_HEADER + 20..])
        .add_copy(payload, rest);
    wire::set_tcp_checksum(frame, sum.finish());
}

/// As [`fill`], with what `processor` makes of `payload`, which stands at `offset` of `stream`.
pub(crate) fn fill_processed(
    frame: &mut [u8],
    payload: &[u8],
    processor: &dyn Processor,
    stream: &StreamId,
    offset: u64,
) {
    let (head, rest) = frame.split_at_mut(ETHERNET_HEADER + 40);
    processor.send(stream, offset, payload, rest);
    let [.., a, b, c, d, e, f, g, h] = head[ETHERNET_HEADER..ETHERNET_HEADER + 20] else {
        return;
    };
    let sum = Sum::default()
        .pseudo_header([a, b, c, d], [e, f, g, h], TCP, 20 + payload.len())
        .add(&head[ETHERNET_HEADER + 20..])
        .add(rest);
    wire::set_tcp_checksum(frame, sum.finish());
}
