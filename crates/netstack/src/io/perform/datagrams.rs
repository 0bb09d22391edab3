//! Effects of UDP sockets: copies received datagrams into queues and builds frames of sent ones.

use dominoes_drivers::{Gso, GsoKind, TxChecksum, TxMeta};

use super::flow_label;
use crate::io::RunFrames;
use crate::io::stream::{Parts, StreamRef};
use crate::io::tx::BegunFrames;
use crate::io::world::World;
use crate::ip::fragment::{Cut, Piece};
use crate::log::effect::{Deliver, Queue, SendDatagrams};
use crate::log::request::{Address, Endpoint, Flow, Lengths, MAX_DATAGRAMS, Merged};
use crate::packet as wire;
use crate::packet::checksum::{Cpu, Sum};
use crate::packet::{IpHeaders, UDP, UDP_HEADER, UdpDatagram, UdpHeaders};
use crate::stats::EffectStats;
use crate::time::Instant;
use crate::udp::record::{self, More, RecordHeader};

/// Offset of the checksum field in a UDP header.
const CHECKSUM_AT: u16 = 6;

/// Copies the datagrams that `queue` names from the frames of `run` into the queue, each after its
/// record header.
pub(crate) fn queue(world: &World, queue: &Queue, run: &RunFrames, stats: &mut EffectStats) {
    match queue.arrived {
        None => queue_as::<false>(world, queue, run, stats),
        Some(_) => queue_as::<true>(world, queue, run, stats),
    }
}

/// As [`queue`]; with `MORE`, each record has the further values that the socket asked for.
#[inline(always)]
fn queue_as<const MORE: bool>(
    world: &World,
    queue: &Queue,
    run: &RunFrames,
    stats: &mut EffectStats,
) {
    let Some(stream) = world.queues.streams.get(queue.socket) else {
        stats.diverged += 1;
        return;
    };
    let mut offset = queue.offset;
    match &queue.lengths {
        Lengths::Each(lens) => {
            for i in (0..MAX_DATAGRAMS).filter(|i| queue.take & 1 << i != 0) {
                let frame = run.get(i).map_or(&[][..], |frame| frame.bytes());
                let datagram = wire::udp_datagram(frame);
                let datagram = datagram.filter(|found| found.payload.len() == lens[i].into());
                let Some(datagram) = datagram else {
                    stats.diverged += 1;
                    return;
                };
                offset = store_record::<MORE>(&stream, queue, offset, frame, &datagram);
                stats.delivered_bytes += u64::from(lens[i]);
            }
        }
        Lengths::Merged(merged) => {
            let frame = run.get(0).map_or(&[][..], |frame| frame.bytes());
            let Some(datagrams) = datagrams_of(frame, *merged) else {
                stats.diverged += 1;
                return;
            };
            for datagram in datagrams {
                offset = store_record::<MORE>(&stream, queue, offset, frame, &datagram);
            }
            stats.delivered_bytes += u64::from(merged.len);
        }
    }
    stats.deliveries += 1;
    stream.stamp(&Deliver {
        conn: queue.socket,
        run_offset: 0,
        len: 0,
        stream_offset: offset,
        delivery: queue.delivery,
        end: queue.end,
        last: true,
    });
}

/// The datagrams in `frame`, as `merged` divides them. `None` if the frame is too short.
fn datagrams_of(frame: &[u8], merged: Merged) -> Option<impl Iterator<Item = UdpDatagram<'_>>> {
    let whole = wire::udp_datagram(frame)?;
    let payload = whole.payload.get(..merged.len.into())?;
    let pieces = payload.chunks(usize::from(merged.size).max(1));
    Some(pieces.map(move |payload| UdpDatagram { payload, ..whole }))
}

/// Stores the record of a datagram in `frame` at `offset` of a queue. Returns the end of the
/// record.
#[inline(always)]
fn store_record<const MORE: bool>(
    stream: &StreamRef<'_>,
    queue: &Queue,
    offset: u64,
    frame: &[u8],
    datagram: &UdpDatagram<'_>,
) -> u64 {
    let header = RecordHeader {
        remote: datagram.source,
        len: datagram.payload.len() as u16,
        ttl: datagram.ttl,
        tos: datagram.tos,
        has_more: MORE,
        loops: false,
        dont_fragment: false,
    };
    let place = Deliver {
        conn: queue.socket,
        run_offset: 0,
        len: header.record_len() as u32,
        stream_offset: offset,
        delivery: queue.delivery,
        end: queue.end,
        last: true,
    };
    stream.store(&place, 0, &header.to_bytes());
    let mut behind = record::HEADER as u32;
    if MORE {
        let more = More {
            local: Endpoint::new(
                wire::ends(frame).map_or(Address::UNSPECIFIED, |(_, local)| local),
                datagram.port,
            ),
            arrived: queue.arrived.unwrap_or(Instant::ZERO),
        };
        stream.store(&place, behind, &more.to_bytes());
        behind += record::MORE as u32;
    }
    stream.store(&place, behind, datagram.payload);
    offset + header.record_len()
}

/// Builds frame `i` of sent datagrams in its slot.
pub(crate) fn build_datagram(world: &World, s: &SendDatagrams, i: u32, stats: &mut EffectStats) {
    match world.tx.begin(s.first_frame + u64::from(i), 1) {
        Ok(begun) => build_datagram_in(world, s, (i, begun), stats),
        Err(_) => stats.diverged += 1,
    }
}

/// As [`build_datagram`], of a frame that the caller has begun.
pub(crate) fn build_datagram_in(
    world: &World,
    s: &SendDatagrams,
    (i, mut begun): (u32, BegunFrames<'_>),
    stats: &mut EffectStats,
) {
    let Some(stream) = world.queues.streams.get(s.socket) else {
        stats.diverged += 1;
        return;
    };
    let lens = match &s.lengths {
        Lengths::Each(lens) => lens,
        Lengths::Merged(merged) => return build_merged(world, s, *merged, (stream, begun), stats),
    };
    // The frame's datagram, and the fragment of it that the frame carries.
    let (index, fragment) = match s.fragment {
        None => (i as usize % MAX_DATAGRAMS, 0),
        Some(first) => (0, first + i),
    };
    let len = lens[index];
    let cut = Cut::new(s.remote.address, s.mtu);
    let piece = cut.piece(fragment, UDP_HEADER as u32 + u32::from(len));
    let frame = s.first_frame + u64::from(i);
    let records = lens[..index].iter().map(|len| record::len(*len));
    let payload_at = s.offset + records.sum::<u64>() + record::HEADER as u64;
    let header = RecordHeader {
        remote: s.remote,
        len,
        ttl: s.ttl,
        tos: s.tos,
        has_more: false,
        loops: false,
        dont_fragment: s.dont_fragment,
    };
    let ident = match s.remote.address.is_v4() {
        true => s.idents.nth(index as u16).into(),
        false => s.idents.nth_wide(index as u16),
    };
    let headers = ip_headers(world, s.mac.0, s.local, &header, ident, piece);
    let before = headers.headers_len();
    let total = before + piece.len as usize;
    world.tx.fetch(frame + 1, total);
    let buffer = &mut begun.buffer()[..total];
    emit(buffer, &headers, &header);
    let mut meta = TxMeta::default();
    if piece.offset > 0 {
        let from = payload_at + u64::from(piece.offset) - UDP_HEADER as u64;
        copy(
            stream.sending(from, piece.len as usize),
            &mut buffer[before..],
        );
    } else {
        let payload = stream.sending(payload_at, usize::from(len));
        let partial = world.tx_checksum && !piece.more;
        first_piece(s.local, &header, payload, partial, &mut buffer[before..]);
        if partial {
            meta.checksum = TxChecksum::Partial {
                start: before as u16,
                offset: CHECKSUM_AT,
            };
        }
    }
    begun.built(
        if piece.offset > 0 {
            before
        } else {
            before + UDP_HEADER
        },
        total,
        meta,
    );
    begun.mark_ready();
    stats.frames += 1;
    stats.sent_bytes += u64::from(piece.len);
    if piece.offset == 0 {
        stats.sent_bytes -= UDP_HEADER as u64;
    }
}

/// Builds one frame of several datagrams, which the device divides.
fn build_merged(
    world: &World,
    s: &SendDatagrams,
    merged: Merged,
    (stream, mut begun): (StreamRef<'_>, BegunFrames<'_>),
    stats: &mut EffectStats,
) {
    let header = RecordHeader {
        remote: s.remote,
        len: merged.len,
        ttl: s.ttl,
        tos: s.tos,
        has_more: false,
        loops: false,
        dont_fragment: s.dont_fragment,
    };
    let whole = Piece {
        offset: 0,
        len: UDP_HEADER as u32 + u32::from(merged.len),
        more: false,
    };
    // The device gives the following datagrams the next identifiers.
    let ident = s.idents.nth(0).into();
    let headers = ip_headers(world, s.mac.0, s.local, &header, ident, whole);
    let before = headers.headers_len();
    let total = before + whole.len as usize;
    // A recording may come from a device with longer frames.
    let Some(buffer) = begun.buffer().get_mut(..total) else {
        stats.diverged += 1;
        return;
    };
    emit(buffer, &headers, &header);
    let (head, text) = buffer[before..].split_at_mut(UDP_HEADER);
    first_piece(s.local, &header, (&[], &[]), true, head);
    let mut offset = s.offset;
    for piece in text.chunks_mut(usize::from(merged.size).max(1)) {
        copy(
            stream.sending(offset + record::HEADER as u64, piece.len()),
            piece,
        );
        offset += record::len(piece.len() as u16);
    }
    let meta = TxMeta {
        checksum: TxChecksum::Partial {
            start: before as u16,
            offset: CHECKSUM_AT,
        },
        gso: Some(Gso {
            kind: GsoKind::Udp,
            size: merged.size,
            header_len: (before + UDP_HEADER) as u16,
        }),
    };
    begun.built(before + UDP_HEADER, total, meta);
    begun.mark_ready();
    stats.frames += 1;
    stats.sent_bytes += u64::from(merged.len);
}

/// A whole datagram from `local` in a frame of any length, with a zero destination address.
pub(crate) fn whole_datagram(
    world: &World,
    local: Endpoint,
    header: &RecordHeader,
    ident: u32,
    payload: Parts<'_>,
) -> Vec<u8> {
    let len = UDP_HEADER as u32 + u32::from(header.len);
    let whole = Piece {
        offset: 0,
        len,
        more: false,
    };
    let headers = ip_headers(world, [0; 6], local, header, ident, whole);
    let mut frame = vec![0; headers.headers_len() + len as usize];
    emit(&mut frame, &headers, header);
    first_piece(
        local,
        header,
        payload,
        false,
        &mut frame[headers.headers_len()..],
    );
    frame
}

/// Writes the headers of a packet, or of a fragment.
fn emit(buffer: &mut [u8], headers: &IpHeaders, datagram: &RecordHeader) {
    wire::emit_ip(buffer, headers);
    if datagram.dont_fragment && headers.dst.is_v4() {
        wire::set_dont_fragment(buffer);
    }
}

fn ip_headers(
    world: &World,
    dst_mac: [u8; 6],
    local: Endpoint,
    header: &RecordHeader,
    ident: u32,
    piece: Piece,
) -> IpHeaders {
    IpHeaders {
        src_mac: world.mac,
        dst_mac,
        src: local.address,
        dst: header.remote.address,
        protocol: UDP,
        ttl: world.hop_limit(header.remote.address, header.ttl),
        tos: header.tos,
        ident,
        label: flow_label(
            world,
            &Flow {
                local,
                remote: header.remote,
            },
        ),
        offset: piece.offset,
        more: piece.more,
        payload_len: piece.len as usize,
    }
}

/// Writes the UDP header and the start of the payload, as much as `piece`, the rest of the
/// frame, has room for. The checksum covers the whole datagram; with `partial`, only its pseudo
/// header, for a device that adds the rest.
fn first_piece(
    local: Endpoint,
    header: &RecordHeader,
    payload: Parts<'_>,
    partial: bool,
    piece: &mut [u8],
) {
    let len = usize::from(header.len);
    let (head, text) = piece.split_at_mut(UDP_HEADER);
    let udp = UdpHeaders {
        src_port: local.port,
        dst_port: header.remote.port,
        payload_len: len,
    };
    wire::emit_udp(head, &udp);
    let (src, dst) = (local.address, header.remote.address);
    let pseudo = Sum::default().pseudo_header(src, dst, UDP, UDP_HEADER + len);
    if partial {
        copy(payload, text);
        head[6..8].copy_from_slice(&pseudo.folded().to_be_bytes());
        return;
    }
    // A record's payload begins at an even offset, so its first part has an even length.
    let sum = pseudo.with(head);
    let sum = if text.len() == len {
        sum.add_copies(Cpu::this(), payload, text)
    } else {
        copy(payload, text);
        sum.with(payload.0).with(payload.1)
    };
    wire::set_udp_checksum(head, sum.finish());
}

/// Copies `payload` after the headers at the start of `frame`, and stores the checksum: the cost
/// of [`build_datagram`] except for writing headers.
#[cfg(feature = "testkit")]
pub(crate) fn fill_datagram(frame: &mut [u8], payload: &[u8]) {
    use crate::packet::IP_HEADERS;

    let (head, rest) = frame.split_at_mut(IP_HEADERS + UDP_HEADER);
    let [.., a, b, c, d, e, f, g, h] = head[..IP_HEADERS] else {
        return;
    };
    let udp = &mut head[IP_HEADERS..];
    udp[6..8].fill(0);
    let sum = Sum::default()
        .pseudo_header(
            [a, b, c, d].into(),
            [e, f, g, h].into(),
            UDP,
            UDP_HEADER + payload.len(),
        )
        .with(udp)
        .add_copy(Cpu::this(), payload, rest);
    wire::set_udp_checksum(udp, sum.finish());
}

/// Copies the two parts, as far as there is room.
fn copy((a, b): Parts<'_>, to: &mut [u8]) {
    let (front, back) = to.split_at_mut(a.len().min(to.len()));
    front.copy_from_slice(&a[..front.len()]);
    back.copy_from_slice(&b[..back.len()]);
}
