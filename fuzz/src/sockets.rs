//! Calls sockets in any order, on two stacks joined by a wire that loses frames when the input
//! asks for it.
//!
//! A call panics only where its documentation allows that, and the target does not make those
//! calls. A stream reads a prefix of the bytes that the other end wrote; a UDP socket receives
//! only datagrams that were sent to it, and whole.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::task::Waker;

use arbitrary::{Arbitrary, Unstructured};
use dominoes_drivers::RxMeta;
use dominoes_drivers::memory::MemoryConfig;
use dominoes_netstack::poller::{Interest, Source, Trigger};
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::{
    AnyListener, Connecting, Keepalive, SocketError, TcpListener, TcpStream, UdpSocket,
};

use crate::frames::pause;
use crate::input::{Input, assert_overflow_panics};
use crate::packets::{FAR, FAR_MAC, Family, STACK, STACK_MAC};
use crate::stack::{Kind, Stack, limits};
use crate::tally;

/// The most objects of each kind on one side.
const MOST: usize = 6;
/// Operations after which the rest of an input is ignored, which bounds its time.
const STEPS: u64 = 3000;
/// The most bytes that are sent one by one.
const SINGLE_BYTES: usize = 64;
/// The most rounds of exchanged frames at one moment.
const ROUNDS: usize = 200;

/// A call: the side, the socket, the operation and a parameter.
#[derive(Clone, Copy, Debug)]
struct Call {
    side: usize,
    which: u8,
    what: What,
    number: u16,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Listen,
    Accept,
    Unlisten,
    /// Listens on all ports, and holds SYNs.
    ListenAny,
    /// Accepts, refuses or drops a held SYN.
    Decide,
    Connect,
    Finish,
    GiveUp,
    Read,
    ReadVectored,
    Peek,
    Fill,
    Write,
    WriteVectored,
    /// Writes each byte in a separate segment.
    WriteBytes,
    WriteAgain,
    Shutdown,
    Settings,
    Look,
    Drop,
    Abort,
    SplitAndDrop,
    Bind,
    Unbind,
    UdpConnect,
    SendTo,
    Send,
    Receive,
    UdpPeek,
    UdpSettings,
    /// A task that is never polled waits for a socket.
    Await,
}

const CALLS: [What; 43] = [
    What::Write,
    What::Read,
    What::Fill,
    What::Accept,
    What::Connect,
    What::Finish,
    What::Listen,
    What::Write,
    What::Read,
    What::Write,
    What::Read,
    What::Fill,
    What::Accept,
    What::Finish,
    What::Unlisten,
    What::GiveUp,
    What::ReadVectored,
    What::Peek,
    What::WriteVectored,
    What::WriteAgain,
    What::Shutdown,
    What::WriteBytes,
    What::Settings,
    What::Settings,
    What::Look,
    What::Drop,
    What::Drop,
    What::Abort,
    What::SplitAndDrop,
    What::Bind,
    What::Bind,
    What::Unbind,
    What::UdpConnect,
    What::SendTo,
    What::SendTo,
    What::Send,
    What::Receive,
    What::Receive,
    What::UdpPeek,
    What::UdpSettings,
    What::ListenAny,
    What::Decide,
    What::Await,
];

#[derive(Debug)]
enum Op {
    Call(Call),
    /// Exchanges frames; a frame is lost if its bit is set. The bits repeat.
    Wire(u8),
    /// Lets time pass; `None`: up to the next deadline.
    Wait(Option<Duration>),
    /// A step of a worker of the first stack.
    Step(u8),
}

impl<'a> Arbitrary<'a> for Op {
    fn arbitrary(u: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let kind: u8 = u.arbitrary()?;
        Ok(match kind & 0x3f {
            at @ 0..43 => Op::Call(Call {
                side: usize::from(kind >> 6 & 1),
                what: CALLS[usize::from(at)],
                which: u.arbitrary()?,
                number: u.arbitrary()?,
            }),
            43..=51 => Op::Wire(0),
            52 | 53 => Op::Wire(u.arbitrary()?),
            54..=56 => Op::Wait(None),
            57..=60 => Op::Wait(Some(pause(u.arbitrary()?))),
            _ => Op::Step(u.arbitrary()?),
        })
    }
}

/// The byte at `offset` of the stream to `to`.
const fn pattern_byte(to: u16, offset: u64) -> u8 {
    ((offset as u32 ^ (to as u32) << 16).wrapping_mul(0x85eb_ca6b) >> 24) as u8
}

/// Writer and reader of a stream, each as side and port. A side may connect to itself.
type Way = [(usize, u16); 2];

struct Stream {
    stream: TcpStream,
    /// The direction of its own bytes.
    way: Way,
    written: u64,
    read: u64,
    /// Bytes that the last call lent to the application.
    lent: usize,
    /// Some bytes were written twice, so the bytes after them are unknown.
    again: bool,
}

struct Side {
    stack: Option<Stack>,
    sockets: dominoes_netstack::Sockets,
    listeners: Vec<TcpListener>,
    any: Option<AnyListener>,
    opening: Vec<Connecting>,
    streams: Vec<Stream>,
    udp: Vec<UdpSocket>,
}

struct World {
    sides: [Side; 2],
    now: Instant,
    /// The most bytes that one connection wrote in each direction; `None` if bytes were written
    /// twice.
    written: HashMap<Way, Option<u64>>,
    /// The datagrams that were sent.
    datagrams: HashSet<(u16, u16)>,
    /// Datagrams of unknown content were sent, too.
    mixed: bool,
    frames: u64,
}

/// Runs one input.
pub fn run(data: &[u8]) {
    assert_overflow_panics();
    let mut input = Input::new(data);
    let [kind, sizes]: [u8; 2] = input.any();
    let kind = [Kind::Single, Kind::Pair(16), Kind::Pair(64), Kind::Single][usize::from(kind & 3)];
    // Rarely large enough for many segments that the application does not read.
    let receive_buffer = match sizes & 0xc3 {
        0xc3 => 1 << 20,
        sizes => 1 << (10 + (sizes & 3)),
    };
    let limits = limits()
        .receive_buffer(receive_buffer)
        .send_buffer(1 << (10 + (sizes >> 2 & 3)))
        .udp_receive_buffer(1 << (10 + (sizes >> 4 & 1)))
        .connections([16, 3][usize::from(sizes >> 5 & 1)]);
    let side = |address, mac, kind| {
        let stack = Stack::at(
            (address, mac),
            Family::V4,
            kind,
            limits,
            MemoryConfig::default(),
        );
        Side {
            sockets: stack.sockets.clone(),
            stack: Some(stack),
            listeners: Vec::new(),
            any: None,
            opening: Vec::new(),
            streams: Vec::new(),
            udp: Vec::new(),
        }
    };
    let mut world = World {
        sides: [
            side(STACK, STACK_MAC, kind),
            side(FAR, FAR_MAC, Kind::Single),
        ],
        now: Instant::from_millis(1),
        written: HashMap::new(),
        datagrams: HashSet::new(),
        mixed: false,
        frames: 0,
    };
    let mut calls = 0;
    let mut steps = 0;
    while steps < STEPS
        && let Some(op) = input.next()
    {
        steps += 1;
        match op {
            Op::Call(call) => {
                calls += 1;
                world.call(call);
            }
            Op::Wire(lost) => world.wire(lost),
            Op::Wait(span) => world.wait(span),
            Op::Step(which) => {
                if let Some(stack) = &mut world.sides[0].stack {
                    stack.step(which, world.now);
                }
            }
        }
    }
    world.wire(0);
    for stack in world
        .sides
        .iter_mut()
        .filter_map(|side| side.stack.as_mut())
    {
        stack.check();
    }
    // Sockets outlive their stack.
    for side in 0..2 {
        world.sides[side].stack = None;
        for (at, what) in CALLS.into_iter().enumerate() {
            world.call(Call {
                side,
                which: at as u8,
                what,
                number: 77,
            });
        }
    }
    tally::add("calls", calls);
    tally::add("steps", steps);
    tally::add("frames", world.frames);
}

impl World {
    /// Exchanges frames until nothing happens.
    fn wire(&mut self, lost: u8) {
        let mut lost = lost;
        for _ in 0..ROUNDS {
            let mut done = 0;
            for from in 0..2 {
                let Some(stack) = &mut self.sides[from].stack else {
                    return;
                };
                stack.run_until_idle(self.now);
                let sent = stack.take_sent();
                done += sent.len();
                let Some(to) = &self.sides[1 - from].stack else {
                    return;
                };
                for frame in sent {
                    self.frames += 1;
                    lost = lost.rotate_right(1);
                    if lost & 0x80 == 0 {
                        to.push(frame, RxMeta::default());
                    }
                }
            }
            if done == 0 {
                return;
            }
        }
    }

    fn wait(&mut self, span: Option<Duration>) {
        let stacks = self.sides.iter().filter_map(|side| side.stack.as_ref());
        let next = stacks
            .map(Stack::next_deadline)
            .min()
            .unwrap_or(Instant::NEVER);
        self.now = match span {
            Some(span) => self.now + span,
            None if next == Instant::NEVER => self.now,
            None => self.now.max(next),
        };
        self.wire(0);
    }

    fn call(&mut self, call: Call) {
        let Call {
            side: number_of_side,
            which,
            what,
            number,
        } = call;
        let side = &mut self.sides[number_of_side];
        let remote = |port| SocketAddr::new([FAR, STACK][number_of_side].into(), port);
        let port = 1 + number % 3;
        let pick = |count: usize| usize::from(which).checked_rem(count);
        match what {
            What::Listen => {
                if side.listeners.len() < MOST
                    && let Ok(listener) = side.sockets.listen(port, u16::from(which & 3))
                {
                    let local = listener.local_addr().expect("it never fails");
                    assert_eq!(local.port(), port);
                    side.listeners.push(listener);
                }
            }
            What::Accept => {
                let Some(at) = pick(side.listeners.len()) else {
                    return;
                };
                let listener = &side.listeners[at];
                listener.set_nonblocking(true).expect("it never fails");
                let accepted = match number & 1 {
                    0 => listener.try_accept().ok(),
                    _ => listener.accept().ok(),
                };
                if let Some((stream, peer)) = accepted {
                    assert_eq!(stream.peer_addr().expect("it never fails"), peer);
                    self.hold(number_of_side, stream);
                }
            }
            What::Unlisten => {
                if let Some(at) = pick(side.listeners.len()) {
                    side.listeners.swap_remove(at);
                }
            }
            What::ListenAny => {
                side.any = match number & 7 {
                    0 => None,
                    1..=3 => side.sockets.listen_any_port(port, u16::from(which)).ok(),
                    _ => side.sockets.listen_any(u16::from(which & 3)).ok(),
                }
                .or_else(|| side.any.take().filter(|_| number & 7 > 0));
            }
            What::Decide => {
                if side.opening.len() >= MOST {
                    return;
                }
                let Some(Ok(arriving)) = side.any.as_ref().map(AnyListener::try_next) else {
                    return;
                };
                match number & 7 {
                    0 => arriving.refuse(),
                    1 => drop(arriving),
                    _ => side.opening.extend(arriving.accept().ok()),
                }
            }
            What::Await => {
                let interest = [Interest::READABLE, Interest::WRITABLE, Interest::BOTH];
                let interest = interest[usize::from(number % 3)];
                let trigger = [Trigger::Edge, Trigger::Level][usize::from(port & 1)];
                // Not every socket knows each interest.
                macro_rules! wait {
                    ($($socket:expr),*) => {
                        $(let _ = $socket.map(|one| {
                            one.register_waker(Waker::noop(), interest, trigger)
                        });)*
                    };
                }
                let at = usize::from(which);
                wait!(
                    side.streams.get(at % MOST).map(|one| &one.stream),
                    side.listeners.get(at % MOST),
                    side.opening.get(at % MOST),
                    side.udp.get(at % MOST),
                    side.any.as_ref()
                );
            }
            What::Connect => {
                let to = match which {
                    0..=250 => remote(port),
                    251 => SocketAddr::new([10, 0, 0, 1 + number_of_side as u8].into(), port),
                    252 => SocketAddr::new([127, 0, 0, 1].into(), port),
                    253 => SocketAddr::new([255; 4].into(), port),
                    254 => SocketAddr::new([0; 4].into(), port),
                    255 => SocketAddr::new([10, 0, 0, 99].into(), 0),
                };
                if side.opening.len() < MOST
                    && let Ok(opening) = side.sockets.begin_connect(to)
                {
                    side.opening.push(opening);
                }
            }
            What::Finish => {
                let Some(at) = pick(side.opening.len()) else {
                    return;
                };
                match side.opening[at].try_finish() {
                    Ok(None) => {}
                    Ok(Some(stream)) => {
                        side.opening.swap_remove(at);
                        self.hold(number_of_side, stream);
                    }
                    // The call may be repeated.
                    Err(_) if number & 1 == 0 => {}
                    Err(_) => drop(side.opening.swap_remove(at)),
                }
            }
            What::GiveUp => {
                if let Some(at) = pick(side.opening.len()) {
                    side.opening.swap_remove(at);
                }
            }
            What::Drop | What::Abort | What::SplitAndDrop => {
                let Some(at) = pick(side.streams.len()) else {
                    return;
                };
                let Stream { stream, .. } = side.streams.swap_remove(at);
                match what {
                    What::Drop => drop(stream),
                    What::Abort => stream.abort(),
                    _ => {
                        let (mut reader, mut writer) = stream.split();
                        if number & 1 == 0 {
                            drop(reader);
                            let _ = writer.try_write(b"");
                            writer.shutdown();
                        } else {
                            drop(writer);
                            let _ = reader.try_read(&mut [0; 3]);
                        }
                    }
                }
            }
            What::Read
            | What::ReadVectored
            | What::Peek
            | What::Fill
            | What::Write
            | What::WriteVectored
            | What::WriteBytes
            | What::WriteAgain
            | What::Shutdown
            | What::Settings
            | What::Look => {
                let Some(at) = pick(side.streams.len()) else {
                    return;
                };
                self.stream_call(number_of_side, at, what, number);
            }
            What::Bind
            | What::Unbind
            | What::UdpConnect
            | What::SendTo
            | What::Send
            | What::Receive
            | What::UdpPeek
            | What::UdpSettings => self.udp_call(call, remote(port)),
        }
    }

    fn hold(&mut self, side: usize, stream: TcpStream) {
        stream.set_nonblocking(true).expect("it never fails");
        let ends = [stream.local_addr(), stream.peer_addr()];
        let [ours, theirs] = ends.map(|end| end.expect("it never fails"));
        let other_side = match theirs.ip() == ours.ip() {
            true => side,
            false => 1 - side,
        };
        let way = [(side, ours.port()), (other_side, theirs.port())];
        self.written.entry(way).or_insert(Some(0));
        let streams = &mut self.sides[side].streams;
        if streams.len() == MOST {
            streams.remove(0);
        }
        streams.push(Stream {
            stream,
            way,
            written: 0,
            read: 0,
            lent: 0,
            again: false,
        });
    }

    fn stream_call(&mut self, side: usize, at: usize, what: What, number: u16) {
        let this = &mut self.sides[side].streams[at];
        let len = usize::from(number % 5000);
        let [own, other] = this.way;
        let mut bytes = vec![0; len];
        let mut looked = 0;
        match what {
            What::Read => {
                let read = match number & 0x4000 {
                    0 => this.stream.try_read(&mut bytes).ok(),
                    _ => this.stream.read(&mut bytes).ok(),
                };
                bytes.truncate(read.unwrap_or(0));
                (looked, this.lent) = (bytes.len(), 0);
            }
            What::ReadVectored => {
                let (a, b) = bytes.split_at_mut(len / 3);
                let read = this
                    .stream
                    .read_vectored(&mut [IoSliceMut::new(a), IoSliceMut::new(b)]);
                bytes.truncate(read.unwrap_or(0));
                (looked, this.lent) = (bytes.len(), 0);
            }
            What::Peek => {
                let peeked = this.stream.halves().0.peek(&mut bytes);
                bytes.truncate(peeked.unwrap_or(0));
                // The next call may consume up to this many bytes.
                this.lent = bytes.len();
            }
            What::Fill => {
                // Consumes a part of the bytes that the previous call lent; then reads again.
                let back = len.min(this.lent);
                BufRead::consume(&mut this.stream, back);
                this.read += back as u64;
                this.lent = 0;
                bytes.clear();
                let (reader, _) = this.stream.halves();
                match number & 0x4000 {
                    0 => {
                        if let Ok(part) = reader.fill_buf() {
                            bytes.extend(part);
                        }
                    }
                    _ => {
                        if let Ok((a, b)) = reader.try_fill_all() {
                            bytes.extend(a);
                            bytes.extend(b);
                        }
                    }
                }
                this.lent = bytes.len();
            }
            What::Write | What::WriteVectored => {
                let from = this.written;
                let bytes: Vec<u8> = (from..from + len as u64)
                    .map(|at| pattern_byte(other.1, at))
                    .collect();
                let (a, b) = bytes.split_at(len / 3);
                let written = match what {
                    What::Write if number & 0x4000 == 0 => this.stream.try_write(&bytes).ok(),
                    What::Write => this.stream.write(&bytes).ok(),
                    _ => this
                        .stream
                        .write_vectored(&[IoSlice::new(a), IoSlice::new(b)])
                        .ok(),
                };
                this.written += written.unwrap_or(0) as u64;
                self.note_written(side, at);
                return;
            }
            What::WriteBytes => {
                this.stream.set_nodelay(true).expect("it never fails");
                for _ in 0..len.min(SINGLE_BYTES) {
                    let this = &mut self.sides[side].streams[at];
                    let byte = pattern_byte(other.1, this.written);
                    let written = this.stream.try_write(&[byte]).ok();
                    this.written += written.unwrap_or(0) as u64;
                    self.note_written(side, at);
                    self.wire(0);
                }
                return;
            }
            What::WriteAgain => {
                let (_, writer) = this.stream.halves();
                if writer.write_again(len).is_ok_and(|len| len > 0) {
                    this.again = true;
                    self.note_written(side, at);
                }
                return;
            }
            What::Shutdown => {
                let how =
                    [Shutdown::Read, Shutdown::Write, Shutdown::Both][usize::from(number % 3)];
                let _ = this.stream.shutdown(how);
                return;
            }
            What::Settings => {
                settings(&mut this.stream, number);
                return;
            }
            _ => {
                let stream = &mut this.stream;
                let _ = format!("{stream:?} {:?} {}", stream.conn(), stream.group());
                let (_, writer) = stream.halves();
                let _ = (writer.room(), writer.all_acknowledged(), writer.timeout());
                return;
            }
        }
        // Checks that the other end wrote these bytes.
        let from = this.read;
        this.read += looked as u64;
        let end = from + bytes.len() as u64;
        match self.written.get(&[other, own]) {
            Some(None) => {}
            Some(Some(written)) => {
                assert!(end <= *written, "{end} bytes were read of {written}");
                for (at, byte) in (from..).zip(&bytes) {
                    assert_eq!(*byte, pattern_byte(own.1, at), "byte {at}");
                }
            }
            None => assert_eq!(end, 0, "nothing was written"),
        }
    }

    /// Records the most bytes written in this direction.
    fn note_written(&mut self, side: usize, at: usize) {
        let Stream {
            way,
            written,
            again,
            ..
        } = self.sides[side].streams[at];
        let most = self.written.entry(way).or_insert(Some(0));
        *most = most.filter(|_| !again).map(|most| most.max(written));
    }

    fn udp_call(&mut self, call: Call, remote: SocketAddr) {
        let Call {
            side: number_of_side,
            which,
            what,
            number,
        } = call;
        let side = &mut self.sides[number_of_side];
        if let What::Bind = what {
            if side.udp.len() < MOST
                && let Ok(socket) = side.sockets.bind_udp(number % 4)
            {
                socket.set_nonblocking(true).expect("it never fails");
                side.udp.push(socket);
            }
            return;
        }
        let Some(at) = usize::from(which).checked_rem(side.udp.len()) else {
            return;
        };
        let socket = &mut side.udp[at];
        // Its length determines its contents.
        let datagram = vec![number as u8; usize::from(number % 4000)];
        match what {
            What::Unbind => drop(side.udp.swap_remove(at)),
            What::UdpConnect => {
                let _ = socket.connect(remote);
                if number & 0x1000 != 0 {
                    socket.halves().1.disconnect();
                }
            }
            What::SendTo => {
                let to = match which {
                    0..=250 => remote,
                    251 => SocketAddr::new([255; 4].into(), remote.port()),
                    252 => SocketAddr::new([10, 0, 0, 255].into(), remote.port()),
                    253 => SocketAddr::new([224, 0, 0, 1].into(), remote.port()),
                    _ => SocketAddr::new([0; 4].into(), 0),
                };
                if socket.try_send_to(&datagram, to).is_ok() {
                    self.datagrams
                        .insert((datagram.len() as u16, number & 0xff));
                }
            }
            What::Send => {
                if socket.try_send(&datagram).is_ok() {
                    self.datagrams
                        .insert((datagram.len() as u16, number & 0xff));
                }
            }
            What::Receive => {
                let mut buffer = vec![0; 5000];
                let received = match number & 1 {
                    0 => socket.try_recv_from(&mut buffer).ok(),
                    _ => socket.recv_from(&mut buffer).ok(),
                };
                if let Some((len, _)) = received {
                    self.check_datagram(&buffer[..len]);
                }
            }
            What::UdpPeek => {
                let (receiver, _) = socket.halves();
                let peeked = receiver.try_peek().map(|datagram| {
                    let (a, b) = datagram.parts;
                    [a, b].concat()
                });
                if number & 1 == 0 {
                    receiver.consume();
                }
                if let Ok(bytes) = peeked {
                    self.check_datagram(&bytes);
                }
            }
            _ => {
                let _ = socket.set_broadcast(number & 1 == 0);
                assert_eq!(
                    socket.set_ttl(number.into()).is_ok(),
                    (1..256).contains(&number)
                );
                socket.set_tos((number >> 8) as u8);
                let zero = socket.set_read_timeout(Some(std::time::Duration::ZERO));
                assert_eq!(
                    zero.err().and_then(|e| SocketError::of(&e)),
                    Some(SocketError::Invalid)
                );
                let _ = (socket.local_addr(), socket.peer_addr());
                // Bytes that are sent again may join the end of one datagram and the beginning of
                // the next.
                self.mixed |= socket
                    .halves()
                    .1
                    .try_send_again(usize::from(number))
                    .is_ok();
            }
        }
    }

    fn check_datagram(&self, bytes: &[u8]) {
        if self.mixed {
            return;
        }
        let first = bytes.first().copied();
        assert!(bytes.iter().all(|byte| Some(*byte) == first));
        let sent = |(len, byte): &(u16, u16)| {
            usize::from(*len) == bytes.len() && first.is_none_or(|first| u16::from(first) == *byte)
        };
        assert!(
            self.datagrams.iter().any(sent),
            "{} bytes were never sent",
            bytes.len()
        );
    }
}

fn settings(stream: &mut TcpStream, number: u16) {
    let value = (number >> 4) as u8;
    let span = std::time::Duration::from_millis(u64::from(value) * 50);
    match number % 11 {
        0 => {
            stream.set_nodelay(value & 1 == 0).expect("it never fails");
            assert_eq!(stream.nodelay().expect("it never fails"), value & 1 == 0);
        }
        1 => {
            let keepalive = Keepalive::default().idle(span).interval(span).probes(value);
            let set = stream.set_keepalive(Some(keepalive));
            assert_eq!(set.is_err(), span.is_zero());
        }
        2 => stream
            .set_keepalive(None)
            .expect("no value is out of its range"),
        3 => {
            let set = stream.set_user_timeout(Some(span));
            assert_eq!(set.is_err(), span.is_zero());
        }
        4 => stream
            .set_user_timeout(None)
            .expect("no value is out of its range"),
        5 => assert_eq!(stream.set_ttl(value.into()).is_ok(), value > 0),
        6 => stream.set_tos(value),
        // No thread drives the stack while a call waits.
        7 => stream.set_linger(Some(std::time::Duration::ZERO)),
        8 => stream.set_linger(None),
        9 => {
            let set = stream.set_notsent_lowat(Some(value.into()));
            assert_eq!(set.is_ok(), value > 0);
        }
        _ => {
            let zero = stream.set_read_timeout(Some(std::time::Duration::ZERO));
            assert_eq!(
                zero.err().and_then(|e| SocketError::of(&e)),
                Some(SocketError::Invalid)
            );
            let _ = (
                stream.keepalive(),
                stream.user_timeout(),
                stream.linger(),
                stream.ttl(),
                stream.tos(),
            );
        }
    }
}
