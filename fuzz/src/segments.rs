//! Applies segments, calls and time to the connections of two stacks that run in different ways,
//! and must behave the same.
//!
//! After every operation both stacks have sent equal frames and returned equal results to the
//! application, and their connections are equal in every field. The application reads the bytes
//! that the far side sent, and the stack sends the bytes that the application wrote.

use std::net::{Shutdown, SocketAddr};

use arbitrary::{Arbitrary, Unstructured};
use dominoes_drivers::memory::MemoryConfig;
use dominoes_netstack::config::{CongestionControl, Ecn};
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::{Connecting, Keepalive, SocketError, TcpListener, TcpStream};

use crate::far::{Far, Near, Open, Segment, pattern_byte};
use crate::frames::pause;
use crate::input::{Input, assert_overflow_panics};
use crate::packets::{self, FAR, FAR_MAC, Family, Right, STACK};
use crate::stack::{Kind, Stack, limits};
use crate::tally;

const PORT: u16 = 80;
/// The port of the far side to which the stack connects.
const FAR_PORT: u16 = 4000;
/// The most frames that arrive at the stacks together.
const TOGETHER: usize = 8;
/// Operations after which the rest of an input is ignored, which bounds its time.
const STEPS: u64 = 6000;

type Drawn<T> = arbitrary::Result<T>;

#[derive(Debug)]
enum Op {
    Segment(Segment, Fate),
    Open(Open),
    /// An ICMP error about a number in flight.
    Error(Near, [u8; 2], u16),
    /// The far side answers an ARP request for its address.
    Arp,
    /// Lets time pass; `None`: up to the next deadline.
    Wait(Option<Duration>),
    /// The device accepts this many more frames; `None`: any number.
    Credit(Option<u8>),
    /// Steps of workers of the first and the second stack, before both do all possible work.
    Steps([[u8; 2]; 3]),
    App(App),
}

/// What happens to a segment on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Arrives,
    /// The segment arrives together with the next frame.
    Waits,
    Twice,
    /// A byte is changed, and the checksum is not updated.
    Damaged(u8),
}

/// A call of the application.
#[derive(Clone, Copy, Debug)]
enum App {
    Read(u16),
    /// Reads in place, and releases at most this many bytes.
    Consume(u16),
    Write(u16),
    Shutdown(Shutdown),
    Set(u8, u8),
    Drop,
    Abort,
    Connect,
    Accept,
}

impl<'a> Arbitrary<'a> for Op {
    fn arbitrary(u: &mut Unstructured<'a>) -> Drawn<Self> {
        let kind: u8 = u.arbitrary()?;
        let upper = kind >> 6;
        Ok(match kind & 0x3f {
            0..=25 => {
                let fate = match upper {
                    0 | 1 => Fate::Arrives,
                    2 => Fate::Waits,
                    _ => match u.arbitrary::<u8>()? {
                        0..=127 => Fate::Twice,
                        at => Fate::Damaged(at),
                    },
                };
                Op::Segment(u.arbitrary()?, fate)
            }
            26 | 27 => Op::Open(u.arbitrary()?),
            28 => {
                let kinds = [[3, 0], [3, 1], [3, 3], [3, 4]];
                Op::Error(u.arbitrary()?, kinds[usize::from(upper)], u.arbitrary()?)
            }
            29..=32 => Op::Wait(None),
            33..=36 => Op::Wait(Some(pause(u.arbitrary()?))),
            37 => Op::Credit(match u.arbitrary::<u8>()? {
                some @ 0..128 => Some(some & 0x1f),
                _ => None,
            }),
            38..=41 => Op::Steps(u.arbitrary()?),
            42..=45 => Op::App(App::Read(u.arbitrary()?)),
            46 | 47 => Op::App(App::Consume(u.arbitrary()?)),
            48..=53 => Op::App(App::Write(u.arbitrary()?)),
            54 => Op::App(App::Shutdown(match upper {
                0 | 1 => Shutdown::Write,
                2 => Shutdown::Read,
                _ => Shutdown::Both,
            })),
            55 | 56 => Op::App(App::Set(upper << 1 | kind & 1, u.arbitrary()?)),
            57 => Op::App(if upper == 0 { App::Abort } else { App::Drop }),
            58 | 59 => Op::App(App::Connect),
            60 => Op::Arp,
            _ => Op::App(App::Accept),
        })
    }
}

/// Whether the device may be busy. If so, the count of sent frames in a request can differ
/// between the two stacks, and so can all that depends on it.
const fn may_be_busy(rules: u8) -> bool {
    rules & 0x88 == 0x88
}

/// The byte at `offset` of what the application writes.
const fn written_byte(offset: u64) -> u8 {
    ((offset as u32).wrapping_mul(0x85eb_ca6b) >> 24) as u8
}

/// A stack with its application.
struct Side {
    stack: Stack,
    listener: TcpListener,
    opening: Option<Connecting>,
    stream: Option<TcpStream>,
    /// Bytes that the application has written to this connection, and read from it.
    written: u64,
    read: u64,
}

/// The result of a call: its return value, and the bytes that it read.
type Told = (Result<usize, SocketError>, Vec<u8>);

impl Side {
    fn new(kind: Kind, sizes: u8, rules: u8) -> Side {
        let mut limits = limits()
            .mtu([1500, 576, 1500, 68][usize::from(sizes & 3)])
            .receive_buffer(1 << (10 + (sizes >> 2 & 3) * 2))
            .send_buffer(1 << (10 + (sizes >> 4 & 3) * 2))
            .tx_slots(64 << (sizes >> 6));
        limits.tcp.ecn =
            [Ecn::Accept, Ecn::Request, Ecn::Never, Ecn::Accept][usize::from(rules & 3)];
        if rules & 4 != 0 {
            let controls = [CongestionControl::NewReno, CongestionControl::Bbr];
            limits.tcp.congestion = controls[usize::from(sizes & 1)];
        }
        if rules & 8 != 0 {
            limits = limits.quantum(1);
        }
        if rules & 16 != 0 {
            limits.tcp.receive_window = 1 << 10;
        }
        let family = if rules & 64 == 0 {
            Family::V4
        } else {
            Family::V6
        };
        let stack = Stack::new(family, kind, limits, MemoryConfig::default());
        Side {
            listener: stack.sockets.listen(PORT, 4).expect("no port is taken"),
            opening: None,
            stream: None,
            stack,
            written: 0,
            read: 0,
        }
    }

    fn hold(&mut self, stream: TcpStream) -> usize {
        (self.written, self.read) = (0, 0);
        self.stream = Some(stream);
        1
    }

    fn app(&mut self, app: App) -> Told {
        match app {
            App::Accept => {
                let Some(opening) = &mut self.opening else {
                    let accepted = self.listener.try_accept();
                    return (accepted.map(|(stream, _)| self.hold(stream)), Vec::new());
                };
                let finished = opening.try_finish();
                if !matches!(finished, Ok(None)) {
                    self.opening = None;
                }
                let held = finished.map(|stream| stream.map_or(0, |stream| self.hold(stream)));
                (held, Vec::new())
            }
            App::Connect => {
                let remote = SocketAddr::new(self.stack.family.address(FAR), FAR_PORT);
                self.opening = None;
                let begun = self.stack.sockets.begin_connect(remote);
                (
                    begun.map(|opening| {
                        usize::from(self.opening.insert(opening).try_finish().is_err())
                    }),
                    Vec::new(),
                )
            }
            App::Drop => {
                self.stream = None;
                (Ok(0), Vec::new())
            }
            App::Abort => {
                self.stream.take().into_iter().for_each(TcpStream::abort);
                (Ok(0), Vec::new())
            }
            call => match &mut self.stream {
                None => (Ok(0), Vec::new()),
                Some(stream) => {
                    let (said, bytes) = call_of(stream, call, self.written);
                    match (call, said) {
                        (App::Write(_), Ok(len)) => self.written += len as u64,
                        _ => self.read += bytes.len() as u64,
                    }
                    (said, bytes)
                }
            },
        }
    }
}

/// Makes a call of a stream.
fn call_of(stream: &mut TcpStream, call: App, written: u64) -> Told {
    let mut bytes = Vec::new();
    let said = match call {
        App::Read(len) => {
            bytes.resize(usize::from(len), 0);
            let read = stream.try_read(&mut bytes);
            bytes.truncate(read.unwrap_or(0));
            read
        }
        App::Consume(most) => {
            let (reader, _) = stream.halves();
            match reader.try_fill() {
                Ok(part) => {
                    let len = part.len().min(usize::from(most));
                    bytes.extend(&part[..len]);
                    reader.consume(len);
                    Ok(len)
                }
                Err(error) => Err(error),
            }
        }
        App::Write(len) => {
            let from: Vec<u8> = (written..written + u64::from(len % 20_000))
                .map(written_byte)
                .collect();
            stream.try_write(&from)
        }
        App::Shutdown(how) => {
            let _ = stream.shutdown(how);
            Ok(0)
        }
        App::Set(what, value) => set(stream, what, value).map(|()| 0),
        App::Drop | App::Abort | App::Connect | App::Accept => Ok(0),
    };
    (said, bytes)
}

fn set(stream: &TcpStream, what: u8, value: u8) -> Result<(), SocketError> {
    let span = || std::time::Duration::from_millis(u64::from(value) * 100);
    match what {
        0 | 1 => stream.set_nodelay(value & 1 == 0).expect("it never fails"),
        2 => {
            let keepalive = Keepalive::default()
                .idle(span())
                .interval(span())
                .probes(value & 7);
            return stream.set_keepalive(Some(keepalive));
        }
        3 => return stream.set_keepalive(None),
        4 => return stream.set_user_timeout(Some(span())),
        5 => return stream.set_user_timeout(None),
        6 => assert_eq!(stream.set_ttl(value.into()).is_ok(), value > 0),
        _ => stream.set_tos(value),
    }
    Ok(())
}

/// Compares every field of every connection.
fn compare(first: &Stack, second: &Stack) {
    let (first, second) = (&first.replicas()[0], &second.replicas()[0]);
    let mut others = second.connections();
    for (conn, tcb) in first.connections() {
        let (other_conn, other) = others.next().expect("as many connections");
        assert_eq!((conn, tcb.flow()), (other_conn, other.flow()));
        if tcb.fingerprint() != other.fingerprint() {
            panic!("{:?} differs", tcb.first_difference(other));
        }
    }
    assert!(others.next().is_none(), "more connections");
}

struct Pair {
    sides: [Side; 2],
    far: Far,
    now: Instant,
    segments: u64,
    may_be_busy: bool,
    /// Where the received stream may have begun; `None` before the application reads.
    begun: Option<Vec<u32>>,
}

/// Runs one input.
pub fn run(data: &[u8]) {
    assert_overflow_panics();
    let mut input = Input::new(data);
    let [kinds, sizes, rules, now]: [u8; 4] = input.any();
    // The logs have room for all waiting frames, because an overload is handled at a different
    // time in each stack. Frames arrive one at a time, or several at once.
    let (kinds, may_wait) = match kinds % 4 {
        0 | 1 => ([Kind::Single, Kind::Pair(64)], true),
        2 => ([Kind::Pair(64), Kind::Pair(64)], true),
        _ => ([Kind::Single, Kind::Pair(64)], false),
    };
    let side = |at: usize| Side::new(kinds[at], sizes, rules);
    let mut pair = Pair {
        sides: [side(0), side(1)],
        far: Far::default(),
        now: Instant::from_millis(1 + (u64::from(now) << 24)),
        segments: 0,
        may_be_busy: may_be_busy(rules),
        begun: None,
    };
    pair.run_until_idle();
    // One side opens a connection at the beginning.
    if rules & 32 == 0 {
        let open = Arbitrary::arbitrary(&mut Unstructured::new(&[0, 0]));
        pair.apply(Op::Open(open.expect("two bytes are enough")), may_wait);
        let acknowledgment = Arbitrary::arbitrary(&mut Unstructured::new(&[0; 4]));
        let acknowledgment = acknowledgment.expect("four bytes are enough");
        pair.apply(Op::Segment(acknowledgment, Fate::Arrives), may_wait);
    } else {
        pair.apply(Op::App(App::Connect), may_wait);
        pair.apply(Op::Arp, may_wait);
    }
    pair.apply(Op::App(App::Accept), may_wait);
    let mut steps = 0;
    while steps < STEPS
        && let Some(op) = input.next()
    {
        pair.apply(op, may_wait);
        steps += 1;
    }
    pair.apply(Op::Credit(None), true);
    pair.run_until_idle();
    for side in &mut pair.sides {
        side.stack.check();
    }
    tally::add("segments", pair.segments);
    if pair.sides[0].stack.family == Family::V6 {
        tally::add("segments_v6", pair.segments);
    }
    tally::add("steps", steps);
}

impl Pair {
    fn apply(&mut self, op: Op, may_wait: bool) {
        let mut run_now = true;
        match op {
            Op::Segment(segment, fate) => {
                if let Some(mut frame) = self.far.segment(&segment) {
                    packets::finish(&mut frame, Right::ALL);
                    if let Fate::Damaged(at) = fate {
                        let at = packets::LOWER + usize::from(at) % (frame.len() - packets::LOWER);
                        frame[at] = !frame[at];
                    }
                    let waiting = self.sides[0].stack.script.unclaimed();
                    run_now = fate != Fate::Waits || !may_wait || waiting + 2 > TOGETHER;
                    if fate == Fate::Twice && may_wait {
                        self.arrive(&frame);
                    }
                    self.arrive(&frame);
                }
            }
            Op::Open(open) => {
                let mut frame = self.far.open(&open, FAR, PORT);
                packets::finish(&mut frame, Right::ALL);
                self.arrive(&frame);
            }
            Op::Error(seq, kind, mtu) => {
                if let Some(mut frame) = self.far.error(0, seq, kind, mtu) {
                    packets::finish(&mut frame, Right::ALL);
                    self.arrive(&frame);
                }
            }
            Op::Arp => {
                let frame = packets::arp(2, FAR_MAC, FAR, STACK);
                self.arrive(&frame);
            }
            Op::Wait(span) => {
                // A side that already has news would otherwise report it at a different time.
                self.run_until_idle();
                let next = self.sides[0].stack.next_deadline();
                self.now = match span {
                    Some(span) => self.now + span,
                    None if next == Instant::NEVER => self.now,
                    None => self.now.max(next),
                };
            }
            Op::Credit(frames) => {
                let frames = frames.filter(|_| self.may_be_busy);
                for side in &mut self.sides {
                    side.stack.script.accept_at_most(frames.map(usize::from));
                }
            }
            Op::Steps(steps) => {
                for which in steps {
                    for (side, which) in self.sides.iter_mut().zip(which) {
                        side.stack.step(which, self.now);
                    }
                }
            }
            Op::App(app) => {
                // Waiting frames could give the application news on one side alone.
                self.run_until_idle();
                let [first, second] = &mut self.sides;
                let read = first.read;
                let told = first.app(app);
                let other = second.app(app);
                assert!(
                    self.may_be_busy || told == other,
                    "{app:?}: {told:?} / {other:?}"
                );
                if let (App::Accept, Ok(1)) = (app, told.0) {
                    self.begun = None;
                }
                self.check_read(read, &told.1);
            }
        }
        if run_now {
            self.run_until_idle();
        }
    }

    fn arrive(&mut self, frame: &[u8]) {
        self.segments += 1;
        for side in &self.sides {
            side.stack.push_in_family(frame);
        }
    }

    /// Checks that the application read the bytes that the far side sends after one of its SYNs.
    fn check_read(&mut self, from: u64, bytes: &[u8]) {
        let Some(stream) = self.sides[0].stream.as_ref().filter(|_| !bytes.is_empty()) else {
            return;
        };
        let port = stream.peer_addr().expect("it never fails").port();
        let begun = self.begun.get_or_insert_with(|| {
            let syns = self.far.syns.iter().filter(|(other, _)| *other == port);
            syns.map(|(_, seq)| *seq).collect()
        });
        begun.retain(|irs| {
            let first = irs.wrapping_add(1).wrapping_add(from as u32);
            let mut numbered = (0..).map(|at| pattern_byte(port, first.wrapping_add(at)));
            bytes.iter().all(|byte| Some(*byte) == numbered.next())
        });
        assert!(
            !begun.is_empty(),
            "{} bytes from {from} on were never sent",
            bytes.len()
        );
    }

    /// Both stacks do all possible work, and are compared.
    fn run_until_idle(&mut self) {
        let [first, second] = &mut self.sides;
        first.stack.run_until_idle(self.now);
        second.stack.run_until_idle(self.now);
        let sent = first.stack.take_sent();
        let other = second.stack.take_sent();
        if !self.may_be_busy {
            assert_eq!(sent, other, "what was sent");
            compare(&first.stack, &second.stack);
        }
        for frame in sent {
            let Some(heard) = packets::Header::read(&frame) else {
                continue;
            };
            // The payload equals the bytes written at its position.
            if let Some(offset) = self.far.hear(&heard) {
                let payload = &frame[heard.payload.0..heard.payload.1];
                for (at, byte) in (offset..).zip(payload) {
                    assert_eq!(*byte, written_byte(at.into()), "byte {at} that was sent");
                }
            }
        }
    }
}
