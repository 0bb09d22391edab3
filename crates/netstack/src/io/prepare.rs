//! The first costly step: checksums, a pure function of a run's frames.
//!
//! Any worker may do it, before anything else, and even twice unless payload is stored on the way.
//! It yields the verdict: one bit per segment, and all that `apply` learns about payload.

use dominoes_drivers::{Frame, RxChecksum};

use crate::io::RunFrames;
use crate::io::world::World;
use crate::log::request::{Digest, Request, RequestKind, Verdict};
use crate::packet as wire;
use crate::packet::UDP;
use crate::packet::checksum::{Copier, CopyLoop, Cpu, Sum};
use crate::stats::EffectStats;

const TCP: u8 = 6;
/// Bytes of both addresses and a TCP header without options.
const HEAD_V4: usize = 8 + 20;
const HEAD_V6: usize = 32 + 20;

/// As [`prepare`], and stores the payload on the way if the pump reserved bytes of the receive ring
/// for it: what was just summed is not fetched a second time. If bytes are reserved, no other
/// worker stores it: the caller has begun the verdict, or is the pump, which has not published the
/// request yet.
pub(crate) fn prepare_and_store(
    world: &World,
    request: &Request,
    run: &RunFrames,
    stats: &mut EffectStats,
) -> Verdict {
    stats.prepared += 1;
    let Digest { hint, len, .. } = request.digest;
    let reserved = run.reserved.zip(world.streams.get(hint));
    let Some((offset, stream)) = reserved else {
        return prepare(request, run);
    };
    stats.stored_ahead += u64::from(len);
    stream.store_ahead(offset, len, |to| {
        // All segments of a run are of one family.
        let cpu = world.cpu;
        let found = match run.consecutive() {
            Some([frame]) => {
                let frame = frame.bytes();
                let is_good = verify_and_copy_v4(cpu, frame, &mut *to);
                is_good
                    .or_else(|| verify_and_copy_v6(cpu, frame, &mut *to))
                    .map(Verdict::from)
            }
            _ => store::<false>(cpu, run, &mut *to).or_else(|| store::<true>(cpu, run, &mut *to)),
        };
        found.unwrap_or_else(|| verify_then_copy(request, run, to))
    })
}

/// As `store`, in two passes. A frame that is too short for its payload is bad.
#[cold]
fn verify_then_copy(request: &Request, run: &RunFrames, mut to: &mut [u8]) -> Verdict {
    let (seg_len, payload_offset) = (run.seg_len.into(), run.payload_offset.into());
    let mut verdict = prepare(request, run);
    for (i, frame) in run.iter().enumerate() {
        let here = match i + 1 < run.len() {
            true => to.len().min(seg_len),
            false => to.len(),
        };
        let (part, rest) = to.split_at_mut(here);
        match frame.bytes().get(payload_offset..payload_offset + here) {
            Some(payload) => part.copy_from_slice(payload),
            None => verdict &= !(1 << i),
        }
        to = rest;
    }
    verdict
}

/// Stores the payload of a run's frames as `verify_and_copy` does. `None` if it cannot.
#[inline(never)]
fn store<const IS_V6: bool>(cpu: Cpu, run: &RunFrames, to: &mut [u8]) -> Option<Verdict> {
    let seg_len = run.seg_len.into();
    match run.consecutive() {
        Some(frames) => cpu.run(Storing::<IS_V6, _> {
            frames: frames.iter(),
            seg_len,
            to,
        }),
        None => cpu.run(Storing::<IS_V6, _> {
            frames: run.iter(),
            seg_len,
            to,
        }),
    }
}

/// The loop over the frames of a run.
struct Storing<'t, const IS_V6: bool, I> {
    frames: I,
    seg_len: usize,
    to: &'t mut [u8],
}

impl<'f, const IS_V6: bool, I: Iterator<Item = &'f Frame>> CopyLoop for Storing<'_, IS_V6, I> {
    type Output = Option<Verdict>;

    #[inline(always)]
    fn run(self, copier: impl Copier) -> Option<Verdict> {
        let (mut left, mut verdict, mut bit) = (self.to, 0, 1);
        for frame in self.frames {
            let (to, rest) = left.split_at_mut(left.len().min(self.seg_len));
            let (sum, payload) = match IS_V6 {
                true => sum_of_head_v6(frame.bytes(), to.len())?,
                false => sum_of_head_v4(frame.bytes(), to.len())?,
            };
            let is_good = copier.add_copy(sum, payload, to).is_good();
            verdict |= if is_good { bit } else { 0 };
            (left, bit) = (rest, bit << 1);
        }
        Some(verdict)
    }
}

/// Copies the end of a frame (Ethernet, IP, TCP) to `to`, and says whether its TCP checksum is
/// right. `None` if it is not one that can be done in one pass.
#[cfg(feature = "testkit")]
#[inline(always)]
pub(crate) fn verify_and_copy(frame: &[u8], to: &mut [u8]) -> Option<bool> {
    match wire::is_ipv6(frame) {
        true => verify_and_copy_v6(Cpu::this(), frame, to),
        false => verify_and_copy_v4(Cpu::this(), frame, to),
    }
}

#[inline(always)]
fn verify_and_copy_v4(cpu: Cpu, frame: &[u8], to: &mut [u8]) -> Option<bool> {
    let (sum, payload) = sum_of_head_v4(frame, to.len())?;
    Some(sum.add_copy(cpu, payload, to).is_good())
}

/// The sum of the addresses and the header of a frame (Ethernet, IPv4, TCP) with `len` bytes of
/// payload, and the payload. `None` if the frame is another kind or shorter.
#[inline(always)]
fn sum_of_head_v4(frame: &[u8], len: usize) -> Option<(Sum, &[u8])> {
    let covered = wire::checksummed_at_once(frame)?;
    let (head, payload) = covered.split_at(covered.len().checked_sub(len)?);
    let sum = rest_of_pseudo_header::<8>(covered).add_head::<HEAD_V4>(head);
    Some((sum, payload))
}

#[inline(never)]
fn verify_and_copy_v6(cpu: Cpu, frame: &[u8], to: &mut [u8]) -> Option<bool> {
    let (sum, payload) = sum_of_head_v6(frame, to.len())?;
    Some(sum.add_copy(cpu, payload, to).is_good())
}

/// As [`sum_of_head_v4`], for IPv6.
#[inline(always)]
fn sum_of_head_v6(frame: &[u8], len: usize) -> Option<(Sum, &[u8])> {
    let covered = wire::ipv6::checksummed_at_once(frame)?;
    let (head, payload) = covered.split_at(covered.len().checked_sub(len)?);
    let sum = rest_of_pseudo_header::<32>(covered).add_head::<HEAD_V6>(head);
    Some((sum, payload))
}

/// Which segments of a run have a good checksum, one bit each.
pub(crate) fn prepare(request: &Request, run: &RunFrames) -> Verdict {
    match request.digest.kind {
        RequestKind::Segments => verdict(run.iter()),
        RequestKind::Datagrams => datagrams(run),
        RequestKind::Tick | RequestKind::Command => 0,
    }
}

/// As [`verdict`], of UDP datagrams.
fn datagrams(run: &RunFrames) -> Verdict {
    let good = |frame: &Frame| is_verified_by_device(frame) || datagram_is_good(frame.bytes());
    let bits = run.iter().enumerate().take(16);
    bits.fold(0, |verdict, (i, frame)| {
        verdict | Verdict::from(good(frame)) << i
    })
}

/// Whether the UDP checksum of a frame is right, or its sender computed none (RFC 768).
pub(crate) fn datagram_is_good(frame: &[u8]) -> bool {
    match wire::udp_checksummed(frame) {
        None => false,
        Some(None) => true,
        Some(Some((src, dst, datagram))) => Sum::default()
            .pseudo_header(src, dst, UDP, datagram.len())
            .with(datagram)
            .is_good(),
    }
}

/// The verdict on the frames of a run.
#[inline]
pub(crate) fn verdict<'a>(frames: impl Iterator<Item = &'a Frame>) -> Verdict {
    let mut verdict = 0;
    for (i, frame) in frames.enumerate() {
        if is_verified_by_device(frame) || is_good(frame.bytes()) {
            verdict |= 1 << i;
        }
    }
    verdict
}

/// Whether nothing is left to verify: the device did, or the data never crossed a wire.
pub(crate) fn is_verified_by_device(frame: &Frame) -> bool {
    !matches!(frame.meta.checksum, RxChecksum::Verify)
}

/// Whether a frame that was not parsed is a whole TCP segment or UDP datagram with a right
/// checksum.
#[cfg(feature = "pipelined")]
pub(crate) fn transport_is_good(frame: &[u8]) -> bool {
    const IPV4: [u8; 2] = [8, 0];
    if wire::is_ipv6(frame) {
        return match wire::parse(frame) {
            Ok(wire::Packet::Tcp(_)) => is_good(frame),
            Ok(wire::Packet::Udp(_)) => datagram_is_good(frame),
            _ => false,
        };
    }
    let Some((link, packet)) = frame.split_at_checked(wire::ETHERNET_HEADER) else {
        return false;
    };
    let Some(header) = packet.first_chunk::<20>() else {
        return false;
    };
    let is_fragment = (header[6] & 0x3f) | header[7] != 0;
    if link[12..14] != IPV4 || is_fragment {
        return false;
    }
    match header[9] {
        TCP => is_good(frame),
        UDP => datagram_is_good(frame),
        _ => false,
    }
}

/// Whether the TCP checksum of a frame is right.
#[inline]
pub(crate) fn is_good(frame: &[u8]) -> bool {
    match wire::checksummed_at_once(frame) {
        Some(covered) => rest_of_pseudo_header::<8>(covered).with(covered).is_good(),
        None => is_good_v6(frame),
    }
}

#[inline(never)]
fn is_good_v6(frame: &[u8]) -> bool {
    let Some(covered) = wire::ipv6::checksummed_at_once(frame) else {
        return is_good_in_parts(frame);
    };
    let sum = rest_of_pseudo_header::<32>(covered);
    // Most have no payload: others are summed while they are copied.
    let sum = match covered.len() {
        HEAD_V6 => sum.add_head::<HEAD_V6>(covered),
        _ => sum.with(covered),
    };
    sum.is_good()
}

/// The pseudo header of a TCP segment without both addresses, which are the first `ADDRESSES` bytes
/// of `covered`.
#[inline]
fn rest_of_pseudo_header<const ADDRESSES: usize>(covered: &[u8]) -> Sum {
    let len = covered.len().saturating_sub(ADDRESSES);
    Sum::default().number(u32::from(TCP) << 16 | len as u32)
}

#[cold]
fn is_good_in_parts(frame: &[u8]) -> bool {
    let Some((src, dst, segment)) = wire::checksummed(frame) else {
        return false;
    };
    Sum::default()
        .pseudo_header(src, dst, TCP, segment.len())
        .with(segment)
        .is_good()
}
