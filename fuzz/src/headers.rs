//! Fills the headers that the kernel writes before frames (virtio headers, slots of TPACKET_V2
//! and blocks of TPACKET_V3) with any bytes.
//!
//! A frame that a device returns is inside its unit (slot, block or message), or a copy of bytes
//! that were there. It does not change while it is held, even if its unit changes.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;

use arbitrary::{Arbitrary, Unstructured};
use dominoes_drivers::testkit::{self, Ring};
use dominoes_drivers::{DeviceRx, Frame, RxChecksum, complete_checksum};

use crate::input::{Input, assert_overflow_panics};
use crate::tally;

const UNIT: usize = 4096;
/// Operations after which the rest of an input is ignored, which bounds its time.
const STEPS: u64 = 2000;
/// The most frames that are held at a time.
const HELD: usize = 64;

type Drawn<T> = arbitrary::Result<T>;

#[derive(Debug)]
enum Op<'a> {
    /// The kernel hands over the next unit.
    Fill(Unit<'a>),
    Claim(u8),
    /// Releases frames, beginning with the oldest or the newest.
    Release(u8),
    /// One frame is dropped.
    Drop(u8),
    /// Changes a frame as users do.
    Use(u8),
    Stats,
}

/// The contents of a unit.
#[derive(Debug)]
struct Unit<'a> {
    status: u32,
    /// For a block: by how much its count of frames is wrong, and the reported offset of the
    /// first frame.
    count: i8,
    first: Option<u16>,
    /// Frames; a slot uses the first.
    frames: Vec<Packet>,
    /// Positions and values that are written last.
    patches: Vec<(u16, u32)>,
    raw: Option<&'a [u8]>,
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    len: u16,
    /// How many bytes of it the header reports as missing.
    cut: u8,
    mac: u16,
    status: u32,
    /// By how much the offset of the next frame is wrong.
    next: i8,
    virtio: [u8; 10],
    vlan: u16,
}

impl<'a> Arbitrary<'a> for Packet {
    fn arbitrary(u: &mut Unstructured<'a>) -> Drawn<Self> {
        let [bits, len]: [u8; 2] = u.arbitrary()?;
        let mut packet = Packet {
            len: 14 + u16::from(len),
            cut: 0,
            mac: 82,
            status: 0,
            next: 0,
            virtio: [0; 10],
            vlan: 0,
        };
        if bits & 1 != 0 {
            packet.len = u.arbitrary()?;
        }
        if bits & 2 != 0 {
            packet.cut = u.arbitrary()?;
        }
        if bits & 4 != 0 {
            packet.mac = u.arbitrary()?;
        }
        if bits & 8 != 0 {
            // Whether the frame was cut, and whether tags were removed.
            packet.status = u32::from(u.arbitrary::<u8>()?);
            packet.vlan = u.arbitrary()?;
        }
        if bits & 16 != 0 {
            packet.next = u.arbitrary()?;
        }
        if bits & 32 != 0 {
            packet.virtio = u.arbitrary()?;
        }
        Ok(packet)
    }
}

impl<'a> Arbitrary<'a> for Unit<'a> {
    fn arbitrary(u: &mut Unstructured<'a>) -> Drawn<Self> {
        let bits: u8 = u.arbitrary()?;
        let mut unit = Unit {
            status: 0,
            count: 0,
            first: None,
            frames: Vec::new(),
            patches: Vec::new(),
            raw: None,
        };
        for _ in 0..=bits & 7 {
            unit.frames.push(u.arbitrary()?);
        }
        if bits & 8 != 0 {
            unit.count = u.arbitrary()?;
            unit.first = Some(u.arbitrary()?);
        }
        if bits & 16 != 0 {
            unit.patches = vec![
                (u.arbitrary()?, u.arbitrary()?),
                (u.arbitrary()?, u.arbitrary()?),
            ];
        }
        if bits & 32 != 0 {
            unit.status = u.arbitrary()?;
        }
        if bits & 0xc0 == 0xc0 {
            let len = usize::from(u.arbitrary::<u8>()?).min(u.len());
            unit.raw = Some(u.bytes(len)?);
        }
        Ok(unit)
    }
}

impl<'a> Arbitrary<'a> for Op<'a> {
    fn arbitrary(u: &mut Unstructured<'a>) -> Drawn<Self> {
        let kind: u8 = u.arbitrary()?;
        Ok(match kind & 0xf {
            0..=6 => Op::Fill(u.arbitrary()?),
            7..=10 => Op::Claim(kind >> 4),
            11 | 12 => Op::Release(kind >> 4),
            13 => Op::Drop(u.arbitrary()?),
            14 => Op::Use(u.arbitrary()?),
            _ => Op::Stats,
        })
    }
}

/// Runs one input.
pub fn run(data: &[u8]) {
    assert_overflow_panics();
    let mut input = Input::new(data);
    let kind = input.byte();
    let units = 2 + u32::from(kind >> 2 & 7);
    let (units, steps) = match kind & 3 {
        0 => over_socket(&mut input, true),
        1 => over_socket(&mut input, false),
        kind => over_ring(&mut input, kind == 3, units),
    };
    tally::add("units", units);
    tally::add("steps", steps);
}

/// Frames that a user holds, and their bytes when they were received.
#[derive(Default)]
struct Held(VecDeque<(Frame, Vec<u8>)>);

impl Held {
    fn check(&self) {
        for (frame, bytes) in &self.0 {
            assert_eq!(frame.bytes(), bytes, "a frame changed while it was held");
        }
    }

    fn take(&mut self, count: usize, newest: bool) -> Vec<Frame> {
        let mut taken = Vec::new();
        for _ in 0..count {
            let next = if newest {
                self.0.pop_back()
            } else {
                self.0.pop_front()
            };
            taken.extend(next.map(|(frame, _)| frame));
        }
        taken
    }

    fn at(&mut self, which: u8) -> Option<usize> {
        usize::from(which).checked_rem(self.0.len())
    }

    /// Changes a frame as users do; a changed frame is no longer compared.
    fn use_one(&mut self, which: u8) {
        let Some(at) = self.at(which) else { return };
        let (frame, bytes) = &mut self.0[at];
        let _ = (
            frame.timestamp(),
            frame.as_tx().len(),
            format!("{frame:?}"),
            frame.capacity(),
        );
        assert_eq!(frame.clone().bytes(), bytes);
        match which >> 6 {
            0 => frame.copy_out(),
            1 => {
                if let RxChecksum::Partial { start, offset } = frame.meta.checksum {
                    let before = frame.len();
                    complete_checksum(frame.bytes_mut(), start, offset);
                    assert_eq!(frame.len(), before);
                    *bytes = frame.bytes().to_vec();
                }
            }
            2 => {
                let len = frame.len().min(20);
                frame.set_len(len);
                bytes.truncate(len);
            }
            _ => {}
        }
    }
}

/// Tests a ring that is filled by hand. Returns the numbers of filled units and of operations.
fn over_ring(input: &mut Input<'_>, blocks: bool, units: u32) -> (u64, u64) {
    let (mut rx, ring) = testkit::ring_rx(units, UNIT, blocks).expect("memory for a ring");
    let mut images = vec![vec![0; UNIT]; units as usize];
    let mut held = Held::default();
    let (mut next, mut filled, mut steps) = (0, 0, 0);
    while steps < STEPS
        && let Some(op) = input.next()
    {
        steps += 1;
        match op {
            Op::Fill(unit) => {
                let image = unit.image(blocks);
                // The kernel fills the ring in order, and waits while the user holds the next
                // unit.
                if ring
                    .fill(next, &image, unit.status)
                    .expect("the memory can be written")
                {
                    images[next as usize] = image;
                    next = (next + 1) % units;
                    filled += 1;
                }
            }
            Op::Claim(max) => claim(&mut *rx, &ring, max, &images, &mut held),
            Op::Release(bits) => {
                let mut frames = held.take(usize::from(bits >> 1) + 1, bits & 1 != 0);
                rx.release(&mut frames);
            }
            Op::Drop(which) => {
                if let Some(at) = held.at(which) {
                    held.0.remove(at);
                }
            }
            Op::Use(which) => held.use_one(which),
            Op::Stats => {
                let _ = rx.stats();
            }
        }
        if held.0.len() > HELD {
            held.take(HELD / 2, false);
        }
        held.check();
    }
    // Frames outlive their device.
    drop((rx, ring));
    held.check();
    (filled, steps)
}

fn claim(rx: &mut dyn DeviceRx, ring: &Ring, max: u8, images: &[Vec<u8>], held: &mut Held) {
    let mut frames = Vec::new();
    let max = usize::from(max) + 1;
    let claimed = rx.claim(max, &mut frames).expect("the link is up");
    assert!(claimed == frames.len() && claimed <= max);
    for frame in frames {
        assert!(frame.len() >= 14, "shorter than an Ethernet header");
        if frame.is_in_place() {
            let (unit, place) = ring.place(&frame).expect("it lies in a unit");
            assert_eq!(frame.bytes(), &images[unit as usize][place]);
        } else {
            assert!(
                images.iter().any(|image| holds(image, &frame)),
                "a copy of nothing"
            );
        }
        let bytes = frame.bytes().to_vec();
        held.0.push_back((frame, bytes));
    }
}

/// Whether a unit contains the bytes of a frame, with or without a VLAN tag that was put back.
fn holds(image: &[u8], frame: &[u8]) -> bool {
    let (addresses, rest) = frame.split_at(12);
    let untagged = &rest[rest.len().min(4)..];
    (0..image.len().saturating_sub(12)).any(|at| {
        let there = &image[at..];
        there.starts_with(addresses)
            && (there[12..].starts_with(rest) || there[12..].starts_with(untagged))
    })
}

impl Unit<'_> {
    fn image(&self, blocks: bool) -> Vec<u8> {
        let mut image: Vec<u8> = (0..UNIT).map(|at| ((at * 7) >> 3) as u8).collect();
        let mut at = if blocks { 48 } else { 0 };
        let count = if blocks { self.frames.len() } else { 1 };
        for packet in &self.frames[..count] {
            let end = packet.write(&mut image, at, blocks);
            at = end.next_multiple_of(8);
        }
        if blocks {
            let says = (count as u32).wrapping_add_signed(self.count.into());
            write(&mut image, 12, &says.to_ne_bytes());
            write(
                &mut image,
                16,
                &u32::from(self.first.unwrap_or(48)).to_ne_bytes(),
            );
        }
        for (at, word) in &self.patches {
            write(&mut image, usize::from(*at) % UNIT, &word.to_ne_bytes());
        }
        if let Some(raw) = self.raw {
            image[..raw.len()].copy_from_slice(raw);
        }
        image
    }
}

impl Packet {
    /// Writes the header, the virtio header and the frame. Returns the end of the frame.
    fn write(&self, image: &mut [u8], at: usize, blocks: bool) -> usize {
        let (len, snaplen) = (
            u32::from(self.len),
            u32::from(self.len).wrapping_sub(self.cut.into()),
        );
        let end = at + usize::from(self.mac) + usize::from(self.len);
        let status = self.status.to_ne_bytes();
        let (mac, net) = (
            self.mac.to_ne_bytes(),
            (self.mac.wrapping_add(14)).to_ne_bytes(),
        );
        let (control, protocol) = (self.vlan.to_ne_bytes(), 0x88a8_u16.to_ne_bytes());
        let word = u32::to_ne_bytes;
        let header: Vec<u8> = if blocks {
            let next = (end.next_multiple_of(8) - at) as u32;
            let next = next.wrapping_add_signed(self.next.into());
            [
                &word(next)[..],
                &[0; 8],
                &word(snaplen),
                &word(len),
                &status,
                &mac,
                &net,
                &[0; 4],
                &control,
                &[0; 2],
                &protocol,
                &[0; 2],
            ]
            .concat()
        } else {
            [
                &status[..],
                &word(len),
                &word(snaplen),
                &mac,
                &net,
                &[0; 8],
                &control,
                &protocol,
            ]
            .concat()
        };
        write(image, at, &header);
        if let Some(virtio) = (at + usize::from(self.mac)).checked_sub(10) {
            write(image, virtio, &self.virtio);
        }
        end
    }
}

/// Writes as many bytes as there is room for.
fn write(image: &mut [u8], at: usize, bytes: &[u8]) {
    for (to, from) in image.iter_mut().skip(at).zip(bytes) {
        *to = *from;
    }
}

/// Tests frames that are read from a socket, each after a virtio header. Returns the numbers of
/// frames and of operations.
fn over_socket(input: &mut Input<'_>, tap: bool) -> (u64, u64) {
    let (kernel, ours) = UnixDatagram::pair().expect("two sockets");
    kernel.set_nonblocking(true).expect("a socket");
    ours.set_nonblocking(true).expect("a socket");
    let ours = OwnedFd::from(ours);
    let (rx, header) = match tap {
        true => (testkit::tap_rx(ours), 12),
        false => (testkit::packet_rx(ours), 10),
    };
    let mut rx = rx.expect("a device");
    let mut sent: VecDeque<Vec<u8>> = VecDeque::new();
    let mut held = Held::default();
    let (mut count, mut steps) = (0, 0);
    while steps < STEPS && !input.is_empty() {
        steps += 1;
        match input.byte() {
            0..=150 => {
                let bits = input.byte();
                let mut datagram = input.take(usize::from(bits & 0x3f)).to_vec();
                let len = match bits >> 6 {
                    0 => datagram.len(),
                    1 => usize::from(input.byte()),
                    2 => usize::from(input.any::<u16>()),
                    // About the size of a buffer.
                    _ => 65_500 + usize::from(input.byte()) * 10,
                };
                datagram.resize(len, count as u8);
                if kernel.send(&datagram).is_ok() {
                    sent.push_back(datagram);
                    count += 1;
                }
            }
            step @ 151..=220 => {
                let mut frames = Vec::new();
                let claimed = rx
                    .claim(usize::from(step % 8), &mut frames)
                    .expect("a socket is up");
                assert_eq!(claimed, frames.len());
                for frame in frames {
                    // The device refused the datagrams in between.
                    let is_this =
                        |datagram: &Vec<u8>| datagram.get(header..) == Some(frame.bytes());
                    let at = sent.iter().position(is_this).expect("it was sent");
                    sent.drain(..=at);
                    assert!(frame.len() >= 14);
                    let bytes = frame.bytes().to_vec();
                    held.0.push_back((frame, bytes));
                }
            }
            step @ 221..=245 => {
                let mut frames = held.take(usize::from(step % 5), step & 1 == 0);
                rx.release(&mut frames);
            }
            step => held.use_one(step.wrapping_mul(37)),
        }
        if held.0.len() > HELD {
            held.take(HELD / 2, false);
        }
        held.check();
    }
    (count, steps)
}
