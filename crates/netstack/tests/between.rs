//! What comes for a connection while it is between two groups, at every step of a move: errors that
//! the network reports, and SYNs. And moves of connections that wait to be accepted.

use core::ops::ControlFlow;
use std::net::{Ipv4Addr, SocketAddr};

use dominoes_drivers::memory::{MemoryConfig, Script, scripted_with};
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::groups;
use dominoes_netstack::variants::groups::INBOX;
use dominoes_netstack::variants::single::Single;
use dominoes_netstack::variants::{Setup, VariantKind};
use dominoes_netstack::{Limits, SocketError, Sockets, TcpListener, TcpStream};
use dominoes_testkit::packet::{self, ACK, FAR, FIN, ICMP, RST, STACK, SYN, Segment, TO_STACK};
use dominoes_testkit::peer::Peer;
use dominoes_testkit::{HostConfig, Net, Traffic, Variant};

const PORT: u16 = 7;
/// Turns of single groups after which a move that nothing holds up is over.
const MOVE: usize = 12;

/// An ICMP error of a router about a frame of ours: destination unreachable, `code`.
fn error(about: &[u8], code: u8, mtu: u16) -> Vec<u8> {
    let router = TO_STACK.source([10, 0, 0, 9]);
    let about = &about[packet::ETHERNET..packet::LOWER + 8];
    packet::ip(router, ICMP, &packet::icmp_error([3, code], mtu, about))
}

/// The TCP segments among these frames.
fn segments(frames: &[Vec<u8>]) -> Vec<Segment> {
    frames
        .iter()
        .filter_map(|frame| Segment::read(frame))
        .collect()
}

/// Two groups of one, by hand.
struct Groups {
    now: Instant,
    groups: Vec<Single>,
    wire: Script,
    sockets: Sockets,
}

impl Groups {
    fn new() -> Groups {
        let mac = TO_STACK.to_mac;
        let (device, wire) = scripted_with(MemoryConfig::default().macs(mac, mac));
        let setup = Setup::new(STACK.into(), 24, [1, 1]);
        let parts = groups::divide(setup, 2, Box::new(device), INBOX).unwrap();
        let group = |(setup, part)| Single::new(setup, Box::new(part)).unwrap();
        let groups: Vec<_> = parts.into_iter().map(group).collect();
        Groups {
            now: Instant::from_millis(1),
            sockets: groups::sockets(groups.iter().map(Single::sockets)),
            groups,
            wire,
        }
    }

    /// Lets groups have `turns` turns, one after the other, beginning with `first`. Returns what
    /// they sent.
    fn turns(&mut self, first: usize, turns: usize) -> Vec<Vec<u8>> {
        for i in 0..turns {
            let at = (first + i) % self.groups.len();
            self.groups[at].turn(self.now);
        }
        let sent = self.wire.take_sent();
        sent.into_iter().map(|(frame, _)| frame).collect()
    }

    /// Everything that can be done in the next millisecond.
    fn settle(&mut self) -> Vec<Vec<u8>> {
        self.now += Duration::from_millis(1);
        self.turns(0, 2 * MOVE)
    }

    /// The same; what the segments that were sent say.
    fn answers(&mut self) -> Vec<Segment> {
        segments(&self.settle())
    }

    /// Requests that waited for a connection.
    fn held_back(&self) -> u64 {
        let held = self.groups.iter().map(|group| group.pump_stats().deferred);
        held.sum()
    }

    fn moves(&self) -> u64 {
        let came = self
            .groups
            .iter()
            .map(|group| group.replica().stats().migrated_in);
        came.sum()
    }

    /// Has the connection in another group.
    fn move_over(&mut self, stream: &TcpStream) {
        let from = stream.group();
        stream.migrate_to(1 - from);
        self.settle();
        assert_eq!(stream.group(), 1 - from);
    }
}

/// A connection from us to another stack.
struct Pair {
    ours: Groups,
    far: Single,
    far_wire: Script,
    near: TcpStream,
    other: TcpStream,
}

impl Pair {
    fn new() -> Pair {
        let mac = TO_STACK.from_mac;
        let (device, far_wire) = scripted_with(MemoryConfig::default().macs(mac, mac));
        let far = Single::new(Setup::new(FAR.into(), 24, [1, 2]), Box::new(device)).unwrap();
        let listener = far.sockets().listen(PORT, 1).unwrap();
        let ours = Groups::new();
        let to = SocketAddr::new(Ipv4Addr::from(FAR).into(), PORT);
        let mut opening = ours.sockets.begin_connect(to).unwrap();
        let (mut ours, mut far) = (ours, far);
        let (mut near, mut other) = (None, None);
        while near.is_none() || other.is_none() {
            carry(&mut ours, &mut far, &far_wire);
            if near.is_none() {
                near = opening.try_finish().unwrap();
            }
            if other.is_none() {
                other = listener.try_accept().ok().map(|(stream, _)| stream);
            }
        }
        Pair {
            ours,
            far,
            far_wire,
            near: near.unwrap(),
            other: other.unwrap(),
        }
    }

    /// Moves a connection that has full segments in flight, and brings it an error after so many
    /// turns. Returns what was sent before, and after.
    fn hears(&mut self, away: bool, turns: usize, code: u8, mtu: u16) -> [Vec<Vec<u8>>; 2] {
        if away {
            self.ours.move_over(&self.near);
        }
        let from = self.near.group();
        assert_eq!(self.near.try_write(&[7; 8000]), Ok(8000));
        let before = self.ours.settle();
        let full = before.iter().find(|frame| frame.len() > 1400).unwrap();
        self.near.migrate_to(1 - from);
        let mut after = self.ours.turns(from, turns);
        self.ours.wire.push(error(full, code, mtu));
        after.extend(self.ours.settle());
        assert_eq!(self.near.group(), 1 - from);
        [before, after]
    }
}

/// A millisecond of both stacks.
fn carry(ours: &mut Groups, far: &mut Single, wire: &Script) {
    for frame in ours.settle() {
        wire.push(frame);
    }
    while far.turn(ours.now) > 0 {}
    for (frame, _) in wire.take_sent() {
        ours.wire.push(frame);
    }
}

#[test]
fn a_path_that_takes_less_is_heard_of_at_every_step_of_a_move() {
    let mut held = 0;
    for (away, turns) in (0..MOVE).flat_map(|turns| [(false, turns), (true, turns)]) {
        let mut pair = Pair::new();
        let [before, after] = pair.hears(away, turns, 4, 1000);
        let text = |frames: &[Vec<u8>]| -> usize {
            let segments = segments(frames);
            segments.iter().map(|segment| segment.payload.len()).sum()
        };
        let cut: Vec<usize> = after.iter().map(|frame| frame.len()).collect();
        let (again, unread) = (text(&after), text(&before));
        assert_eq!((away, turns, again), (away, turns, unread), "{cut:?}");
        let longest = packet::ETHERNET + 1000;
        assert!(cut.iter().all(|len| *len <= longest), "{cut:?}");
        held += pair.ours.held_back();
        // And what is cut anew is what was written.
        for frame in after {
            pair.far_wire.push(frame);
        }
        let mut read = 0;
        while read < 8000 {
            carry(&mut pair.ours, &mut pair.far, &pair.far_wire);
            let mut piece = [0; 4096];
            let len = pair.other.try_read(&mut piece).unwrap_or(0);
            assert!(piece[..len].iter().all(|octet| *octet == 7));
            read += len;
        }
    }
    assert!(held > 0, "no error came while the connection was between");
}

#[test]
fn a_peer_out_of_reach_is_remembered_at_every_step_of_a_move() {
    for (away, turns) in (0..MOVE).flat_map(|turns| [(false, turns), (true, turns)]) {
        let mut pair = Pair::new();
        pair.hears(away, turns, 1, 0);
        // Nobody answers any more. Whoever was told why says so in the end, and not that time was
        // over.
        let end = loop {
            let groups = pair.ours.groups.iter();
            let next = groups.map(Single::next_deadline).min().unwrap();
            assert!(next < Instant::NEVER, "it never gives up");
            pair.ours.now = pair.ours.now.max(next);
            pair.ours.settle();
            match pair.near.try_read(&mut [0; 16]) {
                Err(SocketError::WouldBlock) => {}
                end => break end,
            }
        };
        let when = (away, turns);
        assert_eq!((when, end), (when, Err(SocketError::Unreachable)));
    }
}

/// A connection from a peer that is written by hand.
struct ScriptedPeer {
    ours: Groups,
    listener: TcpListener,
    stream: TcpStream,
    peer: Peer,
}

/// A peer whose next sequence number is this.
fn peer(next: u32) -> Peer {
    Peer::new(TO_STACK, (4000, PORT), next)
}

impl ScriptedPeer {
    fn new() -> ScriptedPeer {
        let mut ours = Groups::new();
        let listener = ours.sockets.listen(PORT, 4).unwrap();
        let mut peer = peer(100);
        let stream = Self::open(&mut ours, &listener, &mut peer);
        ScriptedPeer {
            ours,
            listener,
            stream,
            peer,
        }
    }

    /// The peer opens.
    fn open(ours: &mut Groups, listener: &TcpListener, peer: &mut Peer) -> TcpStream {
        ours.wire.push(peer.says(SYN, &[]));
        let answers = ours.answers();
        let [answer] = &answers[..] else {
            panic!("{answers:?}")
        };
        assert_eq!((answer.flags, answer.ack), (SYN | ACK, peer.next));
        peer.ack = answer.end();
        ours.wire.push(peer.says(ACK, &[]));
        assert_eq!(ours.answers(), []);
        listener.try_accept().unwrap().0
    }

    fn says(&mut self, flags: u8) {
        self.ours.wire.push(self.peer.says(flags, &[]));
    }

    /// We close first: FIN-WAIT-2.
    fn close(&mut self) {
        self.stream.shutdown_write();
        let answers = self.ours.answers();
        let [fin] = &answers[..] else {
            panic!("{answers:?}")
        };
        assert!(fin.has(FIN));
        self.peer.ack = fin.end();
        self.says(ACK);
        assert_eq!(self.ours.answers(), []);
    }

    /// The peer opens anew; its SYN may get lost, so it repeats it. Nobody resets it.
    fn opens_anew(mut self, from: usize) -> (Groups, TcpStream) {
        let seq = self.peer.next + 70_000;
        let mut anew = peer(seq);
        self.ours.wire.push(anew.says(SYN, &[]));
        let mut first = segments(&self.ours.turns(from, MOVE));
        first.extend(self.ours.answers());
        let resets = first.iter().any(|segment| segment.has(RST));
        assert!(!resets, "{first:?}");
        self.ours.now += Duration::from_secs(1);
        let (ours, listener) = (&mut self.ours, &self.listener);
        let is_open = first.iter().find(|segment| segment.flags == SYN | ACK);
        let stream = match is_open {
            None => Self::open(ours, listener, &mut peer(seq)),
            Some(answer) => {
                assert_eq!(answer.ack, anew.next);
                anew.ack = answer.end();
                ours.wire.push(anew.says(ACK, &[]));
                ours.settle();
                listener.try_accept().unwrap().0
            }
        };
        drop(self.stream);
        self.ours.settle();
        (self.ours, stream)
    }
}

/// Text goes both ways, before and behind one more move.
fn is_alive(ours: &mut Groups, mut stream: TcpStream) {
    for _ in 0..2 {
        assert_eq!(stream.try_write(b"here"), Ok(4));
        let answers = ours.answers();
        let [text] = &answers[..] else {
            panic!("{answers:?}")
        };
        assert_eq!(text.payload, b"here");
        let mut peer = peer(text.ack);
        peer.ack = text.end();
        ours.wire.push(peer.says(ACK, &[]));
        ours.settle();
        ours.move_over(&stream);
    }
}

#[test]
fn a_connection_that_moved_and_waits_is_opened_anew_where_it_began() {
    for moves in 0..3 {
        let mut scripted = ScriptedPeer::new();
        let home = scripted.stream.group();
        for _ in 0..moves {
            scripted.ours.move_over(&scripted.stream);
        }
        scripted.close();
        scripted.says(FIN | ACK);
        scripted.ours.settle();
        // In TIME-WAIT it stays where it is.
        let group = scripted.stream.group();
        scripted.stream.migrate_to(1 - group);
        let (mut ours, stream) = scripted.opens_anew(0);
        assert_eq!((stream.group(), ours.moves()), (home, moves));
        is_alive(&mut ours, stream);
    }
}

#[test]
fn a_syn_behind_a_fin_opens_anew_at_every_step_of_a_move() {
    let mut held = 0;
    for (away, turns) in (0..MOVE).flat_map(|turns| [(false, turns), (true, turns)]) {
        let mut scripted = ScriptedPeer::new();
        let home = scripted.stream.group();
        if away {
            scripted.ours.move_over(&scripted.stream);
        }
        scripted.close();
        let from = scripted.stream.group();
        scripted.stream.migrate_to(1 - from);
        scripted.ours.turns(from, turns);
        scripted.says(FIN | ACK);
        let (mut ours, stream) = scripted.opens_anew(from + turns);
        assert_eq!((away, turns, stream.group()), (away, turns, home));
        held += ours.held_back();
        is_alive(&mut ours, stream);
    }
    assert!(held > 0, "nothing came while the connection was between");
}

#[test]
fn a_syn_for_a_connection_between_groups_is_challenged_and_changes_nothing() {
    let mut held = 0;
    for (away, turns) in (0..MOVE).flat_map(|turns| [(false, turns), (true, turns)]) {
        let mut scripted = ScriptedPeer::new();
        if away {
            scripted.ours.move_over(&scripted.stream);
        }
        let from = scripted.stream.group();
        scripted.stream.migrate_to(1 - from);
        let mut sent = scripted.ours.turns(from, turns);
        let mut anew = peer(scripted.peer.next + 5000);
        scripted.ours.wire.push(anew.says(SYN, &[]));
        sent.extend(scripted.ours.settle());
        // RFC 5961 section 4.
        let answers = segments(&sent);
        let [challenge] = &answers[..] else {
            panic!("{away} {turns}: {answers:?}")
        };
        let expected = (ACK, scripted.peer.ack, scripted.peer.next);
        assert_eq!((challenge.flags, challenge.seq, challenge.ack), expected);
        assert_eq!(scripted.stream.group(), 1 - from);
        held += scripted.ours.held_back();
        is_alive(&mut scripted.ours, scripted.stream);
    }
    assert!(held > 0, "no SYN came while the connection was between");
}

#[test]
fn connections_that_wait_to_be_accepted_may_move_and_leave_room_for_others() {
    const AT_ONCE: usize = 4;
    let has_groups = |variant: &Variant| {
        matches!(
            variant.kind(),
            VariantKind::Single | VariantKind::Replicated
        )
    };
    for variant in Variant::ALL.into_iter().filter(has_groups) {
        let mut net = Net::new(7);
        let mut limits = Limits::default();
        limits.connections = 64;
        let near = HostConfig::new(variant).limits(limits).groups(2, 300_000);
        let near = net.add(near).unwrap();
        let far = net.add(HostConfig::new(Variant::Single)).unwrap();
        // No group has more of them at a time, wherever they are when they are accepted.
        let listener = net.sockets(near).listen(PORT, AT_ONCE as u16).unwrap();
        let to = net.address_of(near, PORT);
        let moved = |net: &mut Net| {
            let all = net.groups(near).iter_mut().map(|host| host.state_stats());
            all.fold((0, 0), |(left, came), stats| {
                (left + stats.migrated_out, came + stats.migrated_in)
            })
        };
        let mut all_traffic: Vec<Traffic> = Vec::new();
        for _ in 0..5 {
            let before = moved(&mut net).0;
            let mut opening: Vec<_> = (0..AT_ONCE)
                .map(|_| net.sockets(far).begin_connect(to).unwrap())
                .collect();
            net.pass(Duration::from_millis(50));
            for connecting in &mut opening {
                let stream = connecting.try_finish().unwrap().unwrap();
                all_traffic.push(Traffic::new(stream, 1, 2, 20_000, 20_000));
            }
            for _ in 0..200 {
                // Somebody has something to do.
                net.groups(near)[0].migrate_any(2);
                net.groups(near)[1].migrate_any(2);
                net.pass(Duration::from_micros(100));
            }
            assert!(moved(&mut net).0 > before, "{variant}: nobody moved");
            for _ in 0..AT_ONCE {
                let (stream, _) = listener.try_accept().unwrap();
                all_traffic.push(Traffic::new(stream, 2, 1, 20_000, 20_000));
            }
        }
        let ended = net.run(Duration::from_secs(100), |_| {
            let steps = all_traffic
                .iter_mut()
                .map(|traffic| traffic.step().unwrap());
            let done = steps.sum();
            let over = all_traffic.iter().all(Traffic::is_over);
            Ok(match over {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(done),
            })
        });
        assert_eq!((variant, ended), (variant, Ok(())));
        net.clear_faults();
        net.pass(Duration::from_secs(1));
        let (left, came) = moved(&mut net);
        assert_eq!((variant, left), (variant, came));
    }
}
