//! Sends frames of any kind to a stack that listens, has a UDP socket, and opens connections.
//!
//! After any input the stack still serves a well-behaved host: it answers the host's echo
//! request, and its connection works.

use std::net::SocketAddr;

use arbitrary::{Arbitrary, Unstructured};
use dominoes_drivers::memory::MemoryConfig;
use dominoes_drivers::{Gso, GsoKind, RxChecksum, RxMeta};
use dominoes_netstack::config::{CongestionControl, Ecn};
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::{SocketError, TcpListener, TcpStream, UdpSocket};
use dominoes_testkit::packet::odd;

use crate::far::{Far, Near, Open, Segment};
use crate::input::{Input, assert_overflow_panics};
use crate::packets::{
    self, ACK, FAR, Family, HONEST, Header, ICMP, LOWER, Right, STACK, SYN, TCP, UDP,
};
use crate::stack::{Kind, LEAST_V6, Stack, limits};
use crate::tally;

/// The port on which the stack listens, and the port of its UDP socket.
const PORT: u16 = 80;
const UDP_PORT: u16 = 53;
/// The port on which it listens in the end, for a well-behaved host.
const LAST_PORT: u16 = 81;
/// Frames after which the rest of an input is ignored, which bounds its time.
const FRAMES: u64 = 4000;
/// The number of past frames that can be sent again.
const AGAIN: usize = 8;
/// How often a well-behaved host retries: over half an hour.
const ATTEMPTS: u32 = 34;
/// The most streams that the application holds.
const STREAMS: usize = 8;

type Drawn<T> = arbitrary::Result<T>;

/// The next operation.
#[derive(Debug)]
enum Op<'a> {
    Frame(Sent<'a>, Shape),
    /// Lets time pass; `None`: up to the next deadline.
    Wait(Option<Duration>),
    /// The device accepts this many more frames; `None`: any number.
    Credit(Option<u8>),
    /// One step of one worker.
    Step(u8),
    App(App),
}

/// A frame before its [`Shape`] is applied.
#[derive(Debug)]
enum Sent<'a> {
    Segment(Segment),
    Open(Open),
    Datagram {
        ports: (u16, u16),
        len: u16,
    },
    Echo(u16),
    /// An ICMP error about a segment.
    Error {
        flow: u8,
        seq: Near,
        kind: [u8; 2],
        mtu: u16,
    },
    /// An ICMP error about the last frame that the stack sent.
    ErrorAboutLast {
        kind: [u8; 2],
        mtu: u16,
    },
    /// A fragment of a datagram: identification, offset in units of eight bytes, whether more
    /// fragments follow, length.
    Fragment {
        ident: u8,
        offset: u16,
        more: bool,
        protocol: u8,
        len: u16,
    },
    Arp {
        operation: u8,
        mac: u8,
        host: u8,
        target: u8,
    },
    /// One of the last frames, again.
    Again(u8),
    /// The last frame that the stack sent, with source and destination exchanged.
    Reflected,
    /// A packet of any protocol.
    Packet {
        protocol: u8,
        payload: &'a [u8],
    },
    Raw(&'a [u8]),
}

/// Changes to a frame before it arrives.
#[derive(Debug, Default)]
struct Shape {
    /// The frame waits until another frame arrives.
    waits: bool,
    /// The position and value of a byte to write, before the checksums are made right.
    patch: Option<(u8, u8)>,
    /// Bytes to cut off, or to append if negative.
    cut: i8,
    wrong: Option<u8>,
    from: u8,
    /// The VLAN of the tag; 0 makes it a priority tag.
    tag: Option<u8>,
    /// Whether an unfragmented packet of IPv6 has a fragment header (RFC 6946).
    is_atomic: bool,
    meta: Option<[u8; 6]>,
}

/// A call of the application.
#[derive(Debug)]
enum App {
    Accept,
    Read(u8, u16),
    Write(u8, u16),
    Shutdown(u8),
    Drop(u8),
    Abort(u8),
    Connect(u8),
    Receive,
    Send(u8, u16),
    /// Stops listening if it listens; otherwise listens.
    Listen,
}

impl<'a> Arbitrary<'a> for Op<'a> {
    fn arbitrary(u: &mut Unstructured<'a>) -> Drawn<Self> {
        let kind: u8 = u.arbitrary()?;
        Ok(match kind & 0x3f {
            0..=19 => Op::Frame(Sent::Segment(u.arbitrary()?), Shape::drawn(kind, u)?),
            20..=23 => Op::Frame(Sent::Open(u.arbitrary()?), Shape::drawn(kind, u)?),
            24..=26 => {
                let [ports, len]: [u8; 2] = u.arbitrary()?;
                let to = [UDP_PORT, UDP_PORT, UDP_PORT, 7][usize::from(ports & 3)];
                let ports = (u16::from(ports >> 2), to);
                // Most datagrams are short; some need fragments.
                let len = if len < 200 {
                    u16::from(len)
                } else {
                    u.arbitrary::<u16>()? % 1500
                };
                Op::Frame(Sent::Datagram { ports, len }, Shape::drawn(kind, u)?)
            }
            27 => Op::Frame(Sent::Echo(u.arbitrary()?), Shape::drawn(kind, u)?),
            28 | 29 => {
                let [flow, choice]: [u8; 2] = u.arbitrary()?;
                let (kind_and_code, mtu) = trouble(choice, u)?;
                let seq = u.arbitrary()?;
                let error = Sent::Error {
                    flow,
                    seq,
                    kind: kind_and_code,
                    mtu,
                };
                Op::Frame(error, Shape::drawn(kind, u)?)
            }
            30 => {
                let choice = u.arbitrary()?;
                let (kind_and_code, mtu) = trouble(choice, u)?;
                let error = Sent::ErrorAboutLast {
                    kind: kind_and_code,
                    mtu,
                };
                Op::Frame(error, Shape::drawn(kind, u)?)
            }
            31..=33 => {
                let [ident, place, len]: [u8; 3] = u.arbitrary()?;
                // Most fragments are pieces of 64 bytes that fit together.
                let (offset, len) = match place & 0x40 {
                    0 => (
                        u16::from(place & 0xf) * 8,
                        if len < 0xe0 { 64 } else { u16::from(len) },
                    ),
                    _ => (u.arbitrary::<u16>()? & 0x1fff, u16::from(len) * 8),
                };
                let fragment = Sent::Fragment {
                    ident: ident & 3,
                    offset,
                    more: place & 0x80 == 0,
                    protocol: [UDP, TCP, ICMP, ident][usize::from(ident >> 6)],
                    len,
                };
                Op::Frame(fragment, Shape::drawn(kind, u)?)
            }
            34 | 35 => {
                let [operation, mac, host, target]: [u8; 4] = u.arbitrary()?;
                let arp = Sent::Arp {
                    operation,
                    mac,
                    host,
                    target,
                };
                Op::Frame(arp, Shape::drawn(kind, u)?)
            }
            36..=38 => Op::Frame(Sent::Again(u.arbitrary()?), Shape::drawn(kind, u)?),
            39 => Op::Frame(Sent::Reflected, Shape::drawn(kind, u)?),
            40 | 41 => {
                let [protocol, len]: [u8; 2] = u.arbitrary()?;
                let len = usize::from(len).min(u.len());
                let packet = Sent::Packet {
                    protocol: [TCP, UDP, ICMP, protocol][usize::from(protocol & 3)],
                    payload: u.bytes(len)?,
                };
                Op::Frame(packet, Shape::drawn(kind, u)?)
            }
            42 | 43 => {
                let len = usize::from(u.arbitrary::<u8>()?).min(u.len());
                Op::Frame(Sent::Raw(u.bytes(len)?), Shape::drawn(kind, u)?)
            }
            44 | 45 => Op::Wait(None),
            46..=49 => Op::Wait(Some(pause(u.arbitrary()?))),
            50 => Op::Credit(match u.arbitrary::<u8>()? {
                many @ 32.. if many > 127 => None,
                some => Some(some & 0x1f),
            }),
            51..=53 => Op::Step(u.arbitrary()?),
            54 => Op::App(App::Accept),
            55 | 56 => Op::App(App::Read(kind >> 6, u.arbitrary()?)),
            57 | 58 => Op::App(App::Write(kind >> 6, u.arbitrary()?)),
            59 => Op::App(App::Connect(u.arbitrary()?)),
            60 => Op::App(App::Receive),
            61 => Op::App(App::Send(u.arbitrary()?, u.arbitrary()?)),
            62 => match u.arbitrary::<u8>()? {
                which @ 0..=99 => Op::App(App::Shutdown(which)),
                which @ 100..=180 => Op::App(App::Drop(which)),
                which => Op::App(App::Abort(which)),
            },
            _ => Op::App(App::Listen),
        })
    }
}

/// Draws type and code of an ICMP error, and the MTU that it reports.
fn trouble(choice: u8, u: &mut Unstructured<'_>) -> Drawn<([u8; 2], u16)> {
    let kinds = [
        [3, 0],
        [3, 1],
        [3, 2],
        [3, 3],
        [3, 4],
        [3, 4],
        [11, 0],
        [12, 0],
    ];
    let mtu = match choice >> 3 & 7 {
        0 => 0,
        1 => 68,
        2 => 296,
        3 => 576,
        4 => 1006,
        5 => 1499,
        _ => u.arbitrary()?,
    };
    Ok((kinds[usize::from(choice & 7)], mtu))
}

/// From a microsecond to two minutes; each step is half as long again as the previous one.
pub(crate) fn pause(code: u8) -> Duration {
    let micros = (0..code % 46).fold(1_u64, |micros, _| micros + micros.div_ceil(2));
    Duration::from_micros(micros)
}

impl Shape {
    /// The upper two bits of the operation decide whether a shape is drawn: most frames have
    /// none.
    fn drawn(kind: u8, u: &mut Unstructured<'_>) -> Drawn<Shape> {
        let mut shape = Shape {
            waits: kind & 0x40 != 0,
            ..Shape::default()
        };
        if kind & 0x80 == 0 {
            return Ok(shape);
        }
        let bits: u8 = u.arbitrary()?;
        if bits & 1 != 0 {
            shape.patch = Some((u.arbitrary()?, u.arbitrary()?));
        }
        if bits & 2 != 0 {
            shape.cut = u.arbitrary()?;
        }
        if bits & 4 != 0 {
            shape.wrong = Some(u.arbitrary()?);
        }
        if bits & 8 != 0 {
            shape.from = u.arbitrary()?;
        }
        shape.tag = (bits & 16 != 0).then_some(if bits & 64 != 0 { 0 } else { 5 });
        shape.is_atomic = bits & 128 != 0;
        if bits & 32 != 0 {
            shape.meta = Some(u.arbitrary()?);
        }
        Ok(shape)
    }

    /// Changes a frame, and returns the metadata that the device reports with it. Unless raw, the
    /// frame is first translated to `family`, if it has a translation.
    fn apply(&self, frame: &mut Vec<u8>, family: Family, is_raw: bool) -> RxMeta {
        if self.from != 0 && frame.len() >= LOWER {
            frame[28] = self.from >> 4;
            frame[29] = self.from;
        }
        if !is_raw && family == Family::V6 {
            packets::finish(frame, Right::ALL);
            if let Some(said) = family.write(frame) {
                *frame = said;
            }
        }
        if let Some((at, byte)) = self.patch
            && !frame.is_empty()
        {
            // In most frames this hits a header.
            let at = usize::from(at) % frame.len();
            frame[at] = byte;
        }
        match usize::try_from(self.cut) {
            Ok(cut) => frame.truncate(frame.len().saturating_sub(cut)),
            Err(_) => frame.resize(frame.len() + usize::from(self.cut.unsigned_abs()), 0xa5),
        }
        let wrong = self.wrong.unwrap_or(0);
        let right = Right {
            lengths: wrong & 1 == 0 && !is_raw,
            network: wrong & 2 == 0 && !is_raw,
            transport: wrong & 4 == 0 && !is_raw,
        };
        let is_v6 = frame.get(12..14) == Some(&[0x86, 0xdd]);
        let family = if is_v6 { Family::V6 } else { Family::V4 };
        family.finish(frame, right);
        if self.is_atomic {
            odd::make_atomic(frame);
        }
        if let Some(vlan) = self.tag {
            odd::tag(frame, 5, vlan.into());
        }
        let mut meta = RxMeta::default();
        if let Some([kind, size, a, b, c, d]) = self.meta {
            meta.checksum = match kind & 3 {
                0 => RxChecksum::Verify,
                1 => RxChecksum::Valid,
                2 => RxChecksum::Partial {
                    start: family.lower() as u16,
                    offset: if a & 1 == 0 { 16 } else { 6 },
                },
                _ => RxChecksum::Partial {
                    start: u16::from_be_bytes([a, b]),
                    offset: u16::from_be_bytes([c, d]),
                },
            };
            let kinds = [
                None,
                Some(GsoKind::Tcp4),
                Some(GsoKind::Udp),
                Some(GsoKind::Tcp6),
            ];
            meta.gso = kinds[usize::from(kind >> 2 & 3)].map(|kind| Gso {
                kind,
                // A device reports the length of the segments, and never 0.
                size: (u16::from(size) << (a & 7)).max(1),
                header_len: u16::from(b),
            });
        }
        meta
    }
}

/// Decodes the configuration of the stack from the first bytes of an input.
fn stack_of(input: &mut Input<'_>) -> Stack {
    let [kind, device, sizes, rules]: [u8; 4] = input.any();
    let kind = match kind % 4 {
        0 => Kind::Single,
        1 => Kind::Locked,
        2 => Kind::Pair(16),
        _ => Kind::Pair(64),
    };
    let (family, least) = match rules & 64 {
        0 => (Family::V4, 0),
        _ => (Family::V6, LEAST_V6),
    };
    let mtu = [1500, 576, 9000, 1500][usize::from(device & 3)].max(usize::from(least));
    let config = MemoryConfig::default().mtu(mtu);
    let config = match device >> 2 & 3 {
        0 | 1 => config,
        2 => config.tx_checksum(true),
        _ => config.tso4_max_bytes(16_000).uso_max_bytes(16_000),
    };
    let mut limits = limits()
        .mtu([1500, 1500, 1500, 68][usize::from(device >> 4 & 3)])
        .receive_buffer(1 << (10 + (sizes & 3)))
        .send_buffer(1 << (10 + (sizes >> 2 & 3)))
        .tx_slots(4 << (sizes >> 4 & 3))
        .frame_payload([0, 8000][usize::from(sizes >> 6 & 1)])
        .syn_queue([64, 1][usize::from(sizes >> 7)]);
    limits.tcp.ecn = [Ecn::Accept, Ecn::Request, Ecn::Never, Ecn::Accept][usize::from(rules & 3)];
    if rules & 4 != 0 {
        let controls = [CongestionControl::NewReno, CongestionControl::Bbr];
        limits.tcp.congestion = controls[usize::from(rules >> 5 & 1)];
    }
    if rules & 8 != 0 {
        limits = limits.quantum(1);
    }
    if rules & 16 != 0 {
        limits = limits.connections(2);
    }
    Stack::new(family, kind, limits, config)
}

struct World {
    stack: Stack,
    far: Far,
    now: Instant,
    listener: Option<TcpListener>,
    opening: Vec<dominoes_netstack::Connecting>,
    streams: Vec<TcpStream>,
    udp: UdpSocket,
    /// The last frames that arrived.
    last: Vec<Vec<u8>>,
    /// The last frame that the stack sent.
    sent: Vec<u8>,
    frames: u64,
}

/// Runs one input.
pub fn run(data: &[u8]) {
    assert_overflow_panics();
    let mut input = Input::new(data);
    let stack = stack_of(&mut input);
    let mut world = World {
        listener: stack.sockets.listen(PORT, 4).ok(),
        udp: stack.sockets.bind_udp(UDP_PORT).expect("no port is taken"),
        stack,
        far: Far::default(),
        now: Instant::from_millis(1),
        opening: Vec::new(),
        streams: Vec::new(),
        last: Vec::new(),
        sent: Vec::new(),
        frames: 0,
    };
    world.run_until_idle();
    // Opens a connection at the beginning; the first operation can make the stack forget it.
    let open = Arbitrary::arbitrary(&mut Unstructured::new(&[0, 0])).expect("two bytes are enough");
    world.arrive(Sent::Open(open), &Shape::default());
    let acknowledgment = Arbitrary::arbitrary(&mut Unstructured::new(&[0; 4]));
    world.arrive(
        Sent::Segment(acknowledgment.expect("four bytes are enough")),
        &Shape::default(),
    );
    world.app(App::Accept);
    let mut steps = 0;
    while world.frames < FRAMES
        && let Some(op) = input.next()
    {
        world.apply(op);
        steps += 1;
    }
    world.end();
    tally::add("frames", world.frames);
    if world.stack.family == Family::V6 {
        tally::add("frames_v6", world.frames);
    }
    tally::add("steps", steps);
}

impl World {
    fn apply(&mut self, op: Op<'_>) {
        match op {
            Op::Frame(sent, shape) => self.arrive(sent, &shape),
            Op::Wait(span) => {
                let next = self.stack.next_deadline();
                self.now = match span {
                    Some(span) => self.now + span,
                    None if next == Instant::NEVER => self.now,
                    None => self.now.max(next),
                };
                self.run_until_idle();
            }
            Op::Credit(frames) => self.stack.script.accept_at_most(frames.map(usize::from)),
            Op::Step(which) => self.stack.step(which, self.now),
            Op::App(app) => self.app(app),
        }
    }

    fn arrive(&mut self, sent: Sent<'_>, shape: &Shape) {
        let is_raw = matches!(sent, Sent::Raw(_) | Sent::Again(_));
        let Some(mut frame) = self.frame(sent) else {
            return;
        };
        let meta = shape.apply(&mut frame, self.stack.family, is_raw);
        if self.last.len() == AGAIN {
            self.last.remove(0);
        }
        self.last.push(frame.clone());
        self.stack.push(frame, meta);
        self.frames += 1;
        if !shape.waits {
            self.run_until_idle();
        }
    }

    fn frame(&mut self, sent: Sent<'_>) -> Option<Vec<u8>> {
        Some(match sent {
            Sent::Segment(segment) => self.far.segment(&segment)?,
            Sent::Open(open) => self.far.open(&open, FAR, PORT),
            Sent::Datagram { ports, len } => {
                let mut frame = packets::headers(FAR, STACK, UDP);
                frame.extend(ports.0.to_be_bytes());
                frame.extend(ports.1.to_be_bytes());
                frame.extend((8 + len).to_be_bytes());
                frame.extend([0, 0]);
                frame.extend((0..len).map(|at| at as u8));
                frame
            }
            Sent::Echo(number) => packets::echo(FAR, number),
            Sent::Error {
                flow,
                seq,
                kind,
                mtu,
            } => self.far.error(flow, seq, kind, mtu)?,
            Sent::ErrorAboutLast { kind, mtu } if self.stack.family == Family::V6 => {
                let about = self.sent.get(14..).filter(|about| about.len() >= 40)?;
                let numbers = match kind {
                    [3, 2] => [137, 0],
                    [3, 3] => [1, 4],
                    [3, 4] => [2, 0],
                    [11, code] => [3, code],
                    [12, _] => [4, 0],
                    _ => [1, 0],
                };
                let mut message = vec![numbers[0], numbers[1], 0, 0, 0, 0];
                message.extend(mtu.to_be_bytes());
                if numbers[0] == 137 {
                    // For a redirect: the destination is a neighbour (RFC 4861 section 8).
                    message.extend(&about[24..40]);
                    message.extend(&about[24..40]);
                } else {
                    message.extend(&about[..about.len().min(96)]);
                }
                packets::packet_v6(ICMP, &message)
            }
            Sent::ErrorAboutLast { kind, mtu } => {
                let about = self
                    .sent
                    .get(14..)
                    .filter(|_| self.sent.get(12..14) == Some(&[8, 0]))?;
                let mut frame = packets::headers(FAR, STACK, ICMP);
                frame.extend([kind[0], kind[1], 0, 0, 0, 0]);
                frame.extend(mtu.to_be_bytes());
                frame.extend(&about[..about.len().min(28)]);
                frame
            }
            Sent::Fragment {
                ident,
                offset,
                more,
                protocol,
                len,
            } => {
                let mut frame = packets::headers(FAR, STACK, protocol);
                frame[19] = ident;
                let place = (offset & 0x1fff) | u16::from(more) << 13;
                frame[20..22].copy_from_slice(&place.to_be_bytes());
                if offset == 0 && protocol == UDP {
                    // A UDP header without a checksum.
                    frame.extend([0, 9, 0, UDP_PORT as u8, 0, 136, 0, 0]);
                }
                frame.resize(LOWER + usize::from(len), ident);
                frame
            }
            Sent::Arp {
                operation,
                mac,
                host,
                target,
            } => {
                let sender = [10, 0, 0, [2, 1, 254, host][usize::from(host & 3)]];
                let target = [10, 0, 0, [1, 1, 1, target][usize::from(target & 3)]];
                let mac = [2, 0, 10, 0, mac >> 6, [2, 2, 3, mac][usize::from(mac & 3)]];
                packets::arp(1 + u16::from(operation & 1), mac, sender, target)
            }
            Sent::Again(back) => {
                let at = usize::from(back).checked_rem(self.last.len())?;
                self.last.iter().rev().nth(at)?.clone()
            }
            Sent::Reflected => {
                let mut frame = self.sent.clone();
                if frame.len() >= LOWER + 4 {
                    for (a, b, len) in [(0, 6, 6), (26, 30, 4), (LOWER, LOWER + 2, 2)] {
                        (0..len).for_each(|at| frame.swap(a + at, b + at));
                    }
                }
                frame
            }
            Sent::Packet { protocol, payload } => {
                if self.stack.family == Family::V6 {
                    return Some(packets::packet_v6(protocol, payload));
                }
                let mut frame = packets::headers(FAR, STACK, protocol);
                frame.extend(payload);
                frame
            }
            Sent::Raw(bytes) => bytes.to_vec(),
        })
    }

    /// Does all work that is possible now; the far side reads the sent frames.
    fn run_until_idle(&mut self) {
        self.stack.run_until_idle(self.now);
        for frame in self.stack.take_sent() {
            if let Some(heard) = Header::read(&frame) {
                self.far.hear(&heard);
            }
            self.sent = frame;
        }
    }

    fn app(&mut self, app: App) {
        let stream = |which: u8, count: usize| usize::from(which).checked_rem(count);
        let count = self.streams.len();
        match app {
            App::Accept => {
                let accepted = self.listener.as_ref().map(TcpListener::try_accept);
                if let Some(Ok((stream, _))) = accepted {
                    self.hold(stream);
                }
                for mut opening in std::mem::take(&mut self.opening) {
                    match opening.try_finish() {
                        Ok(Some(stream)) => self.hold(stream),
                        Ok(None) => self.opening.push(opening),
                        Err(_) => {}
                    }
                }
            }
            App::Read(which, len) => {
                if let Some(at) = stream(which, count) {
                    let mut buffer = [0; 4096];
                    let len = usize::from(len).min(buffer.len());
                    let _ = self.streams[at].try_read(&mut buffer[..len]);
                }
            }
            App::Write(which, len) => {
                if let Some(at) = stream(which, count) {
                    let _ = self.streams[at].try_write(&vec![3; usize::from(len)]);
                }
            }
            App::Shutdown(which) => {
                if let Some(at) = stream(which, count) {
                    self.streams[at].shutdown_write();
                }
            }
            App::Drop(which) => {
                if let Some(at) = stream(which, count) {
                    drop(self.streams.swap_remove(at));
                }
            }
            App::Abort(which) => {
                if let Some(at) = stream(which, count) {
                    self.streams.swap_remove(at).abort();
                }
            }
            App::Connect(host) => {
                let host = [2, 2, 3, host][usize::from(host & 3)];
                let host = self.stack.family.address([10, 0, host >> 7, host]);
                let remote = SocketAddr::new(host, 4000);
                if self.opening.len() < STREAMS
                    && let Ok(opening) = self.stack.sockets.begin_connect(remote)
                {
                    self.opening.push(opening);
                }
            }
            App::Receive => {
                let mut buffer = [0; 2048];
                let _ = self.udp.try_recv_from(&mut buffer);
            }
            App::Send(host, len) => {
                let remote = SocketAddr::new(self.stack.family.address([10, 0, 0, host]), 53);
                let len = usize::from(len % 2048);
                let _ = self.udp.try_send_to(&vec![5; len], remote);
            }
            App::Listen => {
                self.listener = match self.listener.take() {
                    Some(_) => None,
                    None => self.stack.sockets.listen(PORT, 4).ok(),
                };
            }
        }
        self.run_until_idle();
    }

    fn hold(&mut self, stream: TcpStream) {
        if self.streams.len() == STREAMS {
            self.streams.remove(0);
        }
        self.streams.push(stream);
    }

    /// Checks that the stack serves a well-behaved host in the end.
    fn end(&mut self) {
        self.stack.script.accept_at_most(None);
        self.run_until_idle();
        self.stack.check();
        // An ARP message announces the host's address, so the stack need not ask for it.
        let arp = packets::arp(1, packets::FAR_MAC, HONEST, STACK);
        self.stack.push_in_family(&arp);
        self.stack.push_in_family(&packets::echo(HONEST, 0x1234));
        self.stack.run_until_idle(self.now);
        let is_answer = |frame: &Vec<u8>| {
            frame.len() >= LOWER + 8
                && frame[30..34] == HONEST
                && frame[23] == ICMP
                && frame[LOWER] == 0
                && frame[LOWER + 4..LOWER + 6] == [0x12, 0x34]
        };
        assert!(
            self.stack.take_sent().iter().any(is_answer),
            "no answer to an echo request"
        );

        // The application drops all sockets, so that nothing holds places of the connection table
        // for ever.
        self.listener = None;
        self.opening.clear();
        for stream in self.streams.drain(..) {
            stream.abort();
        }
        self.run_until_idle();
        let listener = self
            .stack
            .sockets
            .listen(LAST_PORT, 4)
            .expect("the port is free");
        self.run_until_idle();
        let mut honest = Honest {
            next: 0x0bad_cafe,
            ..Honest::default()
        };
        // The table may be full, so the stack may first have to give up dropped connections.
        // Meanwhile it forgets neighbours that do not answer it, so the host announces itself again.
        let answered = (0..ATTEMPTS).any(|attempt| {
            self.stack.push_in_family(&arp);
            self.say(&mut honest, SYN, b"");
            if honest.answered.is_none() {
                self.pass(Duration::from_secs(1 << attempt.min(6)));
            }
            honest.answered.is_some()
        });
        assert!(answered, "no answer to a SYN");
        honest.next = honest.next.wrapping_add(1);
        self.say(&mut honest, ACK, b"");
        self.say(&mut honest, ACK, b"hello");
        let (mut stream, peer) = listener.try_accept().expect("an established connection");
        let address = self.stack.family.address(HONEST);
        assert_eq!(peer, SocketAddr::new(address, 61_000));
        let mut heard = [0; 8];
        let read = stream.try_read(&mut heard);
        assert_eq!((read, &heard[..5]), (Ok(5), &b"hello"[..]));
        drop(stream);
        self.stack.run_until_idle(self.now);
        self.stack.check();
        assert_eq!(self.udp.try_send(b"x"), Err(SocketError::NotConnected));
    }

    /// Lets time pass, from one deadline to the next.
    fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        while self.now < end {
            let next = self
                .stack
                .next_deadline()
                .max(self.now + Duration::from_millis(1));
            self.now = next.min(end);
            self.run_until_idle();
        }
    }

    fn say(&mut self, honest: &mut Honest, flags: u8, payload: &[u8]) {
        let mut frame = packets::headers(HONEST, STACK, TCP);
        let ack = honest.answered.map_or(0, |heard| heard.end());
        packets::tcp_header(
            &mut frame,
            (61_000, LAST_PORT),
            (honest.next, ack),
            flags,
            60_000,
            &[],
        );
        frame.extend(payload);
        packets::finish(&mut frame, Right::ALL);
        self.stack.push_in_family(&frame);
        self.stack.run_until_idle(self.now);
        let sent = self.stack.take_sent();
        let heard = sent.iter().filter_map(|frame| Header::read(frame));
        let to_us = heard.filter(|heard| {
            heard.to == HONEST && (heard.src_port, heard.dst_port) == (LAST_PORT, 61_000)
        });
        let mut answers = to_us.filter(|heard| heard.has(SYN | ACK));
        honest.answered = honest.answered.or_else(|| answers.next());
    }
}

/// A well-behaved host.
#[derive(Default)]
struct Honest {
    next: u32,
    /// The SYN-ACK.
    answered: Option<Header>,
}
