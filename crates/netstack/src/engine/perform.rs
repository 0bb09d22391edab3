//! The other costly step: what `apply` asked for becomes copies, frames and news.
//!
//! Each effect has one primary, and is performed in ascending order by it. Nothing here waits, and nothing
//! tells anything back to `apply`.

mod datagrams;

use core::net::SocketAddrV4;

use dominoes_drivers::{Gso, GsoKind, TxChecksum, TxMeta};

use crate::digest::{ConnId, Flags, Flow, Mac, Request, Sack};
use crate::effect::{Deliver, Effect, Transmit};
use crate::engine::Run;
use crate::engine::checksum::Sum;
use crate::engine::processor::{self, Processor, StreamId};
use crate::engine::stream::{Asked, StreamRef};
use crate::engine::world::{Answer, HintNews, Ready, Wakes, World};
use crate::seqnum::SeqNum;
use crate::stats::EffectStats;
use crate::wire::{self, ETHERNET_HEADER, MAX_HEADERS, SackBlocks, TcpHeaders};

pub(crate) use datagrams::{build_datagram, fill_datagram, queue, whole_datagram};

const TCP: u8 = 6;
/// Where the checksum field stands within a TCP header.
const CHECKSUM_AT: u16 = 16;

/// Does all that a request asked for, whose frames are `run`.
pub(crate) fn all<'a>(
    world: &World,
    effects: impl IntoIterator<Item = &'a Effect>,
    (request, run): (&Request, &Run),
    template: &mut Template,
    stats: &mut EffectStats,
    wakes: &mut Wakes<'_>,
) {
    for effect in effects {
        match effect {
            Effect::Deliver(piece) => {
                let (seg_len, offset) = request.layout();
                deliver(world, piece, seg_len, offset, run, stats);
                wakes.add(piece.conn);
            }
            Effect::Transmit(transmit) => {
                for i in 0..transmit.count {
                    build(world, transmit, i, template, stats);
                }
            }
            Effect::Queue(datagrams) => {
                queue(world, datagrams, run, stats);
                wakes.add_socket(datagrams.socket);
            }
            Effect::Send(send) => {
                for i in 0..send.count {
                    build_datagram(world, send, i, stats);
                }
            }
            other => {
                tell(world, other, stats);
                wakes.after(other);
            }
        }
    }
}

/// Copies what `deliver` names out of the run's frames.
pub(crate) fn deliver(
    world: &World,
    deliver: &Deliver,
    seg_len: u32,
    payload_offset: usize,
    run: &Run,
    stats: &mut EffectStats,
) {
    let Some(stream) = world.streams.get(deliver.conn) else {
        stats.diverged += 1;
        return;
    };
    let seg_len = seg_len.max(1);
    let place = deliver
        .stream_offset
        .wrapping_sub(u64::from(deliver.run_offset));
    // Nothing is left to copy of what lies there already.
    let mut done = match run.place {
        Some(stored) if stored.get() == place => deliver.len,
        _ => {
            stream.begins_at(run.seq - place as u32);
            0
        }
    };
    while done < deliver.len {
        let at = deliver.run_offset + done;
        // The last segment may be the longest only when it is the only one, so the index is always right.
        let index = ((at / seg_len) as usize).min(run.frames.len().saturating_sub(1));
        let within = (at - index as u32 * seg_len) as usize;
        let Some(payload) = run
            .frames
            .get(index)
            .and_then(|frame| frame.bytes().get(payload_offset + within..))
        else {
            stats.diverged += 1;
            return;
        };
        // Behind the payload a short frame may carry padding: a run's segments but the last are `seg_len`.
        let left = (deliver.len - done) as usize;
        let here = if index + 1 < run.frames.len() {
            left.min(seg_len as usize - within)
        } else {
            left
        };
        let Some(bytes) = payload.get(..here) else {
            stats.diverged += 1;
            return;
        };
        match &world.streams.inline {
            None => stream.store(deliver, done, bytes),
            Some(inline) => {
                let place = (run.frames[index].bytes(), within as u32);
                inline.receive(world, &stream, deliver, done, bytes, place);
            }
        }
        done += here as u32;
    }
    stats.delivered_bytes += u64::from(deliver.len);
    if deliver.last {
        stats.deliveries += 1;
        stream.stamp(deliver);
    }
}

/// The headers of the frame that was built last, but for sequence and acknowledgment numbers, window and checksum: in a
/// bulk transfer the next one has the same.
#[derive(Debug)]
pub(crate) struct Template {
    of: Option<Alike>,
    bytes: [u8; PLAIN],
    /// How long they are.
    head: usize,
    /// Pseudo header and TCP header, with zeros for these.
    sum: Sum,
}

/// Octets of all headers, at most, without options but timestamps.
const PLAIN: usize = ETHERNET_HEADER + 20 + 32;

/// What frames with the same headers have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Alike {
    flow: Flow,
    mac: Mac,
    flags: Flags,
    timestamps: Option<(u32, u32)>,
    ect: bool,
    ttl: u8,
    tos: u8,
    len: u32,
}

impl Default for Template {
    fn default() -> Self {
        Template {
            of: None,
            bytes: [0; PLAIN],
            head: 0,
            sum: Sum::default(),
        }
    }
}

impl Template {
    /// Writes the headers of a frame to the front of `buffer`. Returns how many octets they take, and the sum of TCP
    /// header and pseudo header.
    #[inline]
    fn emit(
        &mut self,
        world: &World,
        t: &Transmit,
        seq: SeqNum,
        flags: Flags,
        len: u32,
        buffer: &mut [u8],
    ) -> (usize, Sum) {
        if t.syn.is_some() || t.sack.is_some() {
            return emit_once(world, t, seq, flags, len, buffer);
        }
        let alike = Alike {
            flow: t.flow,
            mac: t.mac,
            flags,
            timestamps: t.timestamps,
            ect: t.ect,
            ttl: t.ttl,
            tos: t.tos,
            len,
        };
        if self.of != Some(alike) {
            let mut bytes = [0; MAX_HEADERS];
            let t = Transmit {
                ack: SeqNum(0),
                wnd: 0,
                ..*t
            };
            (self.head, self.sum) = emit_once(world, &t, SeqNum(0), flags, len, &mut bytes);
            self.bytes.copy_from_slice(&bytes[..PLAIN]);
            self.of = Some(alike);
        }
        // Always as much: what stands behind the headers is overwritten by the text.
        buffer[..PLAIN].copy_from_slice(&self.bytes);
        wire::set_tcp_numbers(buffer, seq.0, t.ack.0, t.wnd);
        let sum = self.sum.number(seq.0).number(t.ack.0);
        (self.head, sum.number(u32::from(t.wnd)))
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
) -> (usize, Sum) {
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
    (head, header_sum(pseudo, &headers, written))
}

/// Builds frame `i` of a transmit effect in its slot.
pub(crate) fn build(
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
    let stream = match world.streams.get(t.conn) {
        None if len > 0 => {
            stats.diverged += 1;
            return;
        }
        stream => stream,
    };
    let inline = world.streams.inline.as_ref();
    // Nothing needs the text itself, so it can be sent from where it lies.
    let carried = match &stream {
        Some(stream) if len > 0 && world.tx_checksum && inline.is_none() => {
            stream.carried(offset, len as usize)
        }
        _ => None,
    };
    if len > 0 {
        // Whoever builds this frame most likely builds the next one, which is as long.
        let copied = if carried.is_some() { 0 } else { len as usize };
        let next = t.first_frame + u64::from(i) + 1;
        world.tx.fetch(next, wire::MAX_HEADERS + copied);
    }
    let last = i + 1 == t.count;
    let flags = if last {
        t.flags
    } else {
        t.flags.without(Flags::PSH.with(Flags::FIN))
    };
    let buffer = claim.buffer();
    let seq = t.seq + i * t.frame_len;
    let (head, sum) = template.emit(world, t, seq, flags, len, buffer);
    let total = head + len as usize;
    let text = &mut buffer[head..total];
    let mut meta = TxMeta::default();
    let checksum = if world.tx_checksum {
        if carried.is_none() {
            copy_text(world, t, stream.as_ref(), offset, text);
        }
        meta.checksum = TxChecksum::Partial {
            start: (ETHERNET_HEADER + 20) as u16,
            offset: CHECKSUM_AT,
        };
        meta.gso = (len > u32::from(t.mss)).then_some(Gso {
            kind: GsoKind::Tcp4,
            size: t.mss,
            header_len: head as u16,
        });
        let (src, dst) = (t.flow.local.ip().octets(), t.flow.remote.ip().octets());
        let tcp_len = total - ETHERNET_HEADER - 20;
        let pseudo = Sum::default().pseudo_header(src, dst, TCP, tcp_len);
        pseudo.folded()
    } else if inline.is_some() {
        copy_text(world, t, stream.as_ref(), offset, text);
        // What a processor wrote is in the nearest cache now.
        sum.add(text).finish()
    } else if let Some(stream) = stream.as_ref().filter(|_| len > 0) {
        let parts = stream.sending(offset, len as usize);
        sum.add_copies(parts, text).finish()
    } else {
        sum.finish()
    };
    wire::set_tcp_checksum(buffer, checksum);
    match carried {
        Some(carried) => claim.publish_carried(head, carried, meta),
        None => claim.publish(head, total, meta),
    }
    if last && let Some(stream) = stream {
        stream.advertised(t.window_end, t.window_limit);
    }
    stats.frames += 1;
    stats.sent_bytes += u64::from(len);
}

/// Copies what a frame carries into it, by way of the inline processor if there is one.
fn copy_text(
    world: &World,
    t: &Transmit,
    stream: Option<&StreamRef<'_>>,
    offset: u64,
    text: &mut [u8],
) {
    let Some(stream) = stream.filter(|_| !text.is_empty()) else {
        return;
    };
    if let Some(inline) = &world.streams.inline {
        return inline.send(stream, &processor::sent(t), offset, text);
    }
    let (a, b) = stream.sending(offset, text.len());
    let (front, back) = text.split_at_mut(a.len());
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

/// Adds a TCP header, of the values that it was written from: reading it back would wait until the slot's
/// memory is there. One with other options than timestamps is read.
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

/// Copies `text` behind the headers that `frame` begins with (Ethernet, IPv4, TCP, none with options; the
/// TCP checksum field is zero), and stores the checksum: what [`build`] costs besides writing headers.
pub(crate) fn fill(frame: &mut [u8], text: &[u8]) {
    let (head, rest) = frame.split_at_mut(ETHERNET_HEADER + 40);
    let [.., a, b, c, d, e, f, g, h] = head[ETHERNET_HEADER..ETHERNET_HEADER + 20] else {
        return;
    };
    let sum = Sum::default()
        .pseudo_header([a, b, c, d], [e, f, g, h], TCP, 20 + text.len())
        .add(&head[ETHERNET_HEADER + 20..])
        .add_copy(text, rest);
    wire::set_tcp_checksum(frame, sum.finish());
}

/// As [`fill`], with what `processor` makes of `text`, which stands at `offset` of `stream`.
pub(crate) fn fill_processed(
    frame: &mut [u8],
    text: &[u8],
    processor: &dyn Processor,
    stream: &StreamId,
    offset: u64,
) {
    let (head, rest) = frame.split_at_mut(ETHERNET_HEADER + 40);
    processor.send(stream, offset, text, rest);
    let [.., a, b, c, d, e, f, g, h] = head[ETHERNET_HEADER..ETHERNET_HEADER + 20] else {
        return;
    };
    let sum = Sum::default()
        .pseudo_header([a, b, c, d], [e, f, g, h], TCP, 20 + text.len())
        .add(&head[ETHERNET_HEADER + 20..])
        .add(rest);
    wire::set_tcp_checksum(frame, sum.finish());
}

/// Performs an effect that is neither a delivery nor a transmission: news for applications and the pump.
pub(crate) fn tell(world: &World, effect: &Effect, stats: &mut EffectStats) {
    match *effect {
        Effect::Deliver(_) | Effect::Transmit(_) | Effect::Queue(_) | Effect::Send(_) => {}
        Effect::Sent { socket, upto } => match world.queues.streams.get(socket) {
            Some(stream) => stream.release(upto),
            None => stats.diverged += 1,
        },
        Effect::Unbound { socket } => {
            world.queues.unbound.push(socket);
            world.ring();
        }
        Effect::Release { conn, upto } => match world.streams.get(conn) {
            Some(stream) => stream.release(upto),
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
        Effect::Opened { ticket, conn, flow } => {
            let answer = if conn == ConnId::NONE {
                Answer::NoRoom
            } else {
                Answer::Opened { conn, flow }
            };
            world.answer(ticket, answer);
        }
        Effect::Accept { port, conn, remote } => accept(world, port, conn, remote),
        Effect::Hint { conn, flow, open } => world.hints.push(HintNews { conn, flow, open }),
        Effect::Retire { conn, held } => {
            if let Some(stream) = world.streams.get(conn) {
                if !held {
                    stream.ask(Asked {
                        orphan: true,
                        ..Asked::default()
                    });
                }
                stream.retired();
            }
            world.retired.push(conn);
            world.ring();
        }
    }
}

/// Queues an established connection for the port's listener; without one, nobody will ever read it.
fn accept(world: &World, port: u16, conn: ConnId, remote: SocketAddrV4) {
    if let Some(queue) = world.desk().listeners.get_mut(&port) {
        let group = world.group;
        queue.ready.push_back(Ready {
            group,
            conn,
            remote,
        });
        world.front.bell.notify_all();
    } else {
        world.abandon(conn);
    }
}
