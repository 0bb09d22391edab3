//! ICMP errors reach all groups, and the group that owns the connection acts on them.

use std::net::{Ipv4Addr, SocketAddr};

use dominoes_drivers::memory::{MemoryConfig, Script, scripted_with};
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::Setup;
use dominoes_netstack::variants::groups;
use dominoes_netstack::variants::groups::INBOX;
use dominoes_netstack::variants::single::Single;
use dominoes_netstack::{SocketError, Sockets, TcpStream};
use dominoes_testkit::packet::{self, FAR, ICMP, STACK, Segment, TO_STACK};

const PORT: u16 = 7;
/// Groups of our stack.
const GROUPS: usize = 2;
/// Turns of each group in a millisecond: enough to finish all work.
const TURNS: usize = 12;

/// An ICMP destination unreachable with `code`, sent by a router about a frame of ours.
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

/// Groups of one worker, driven by hand.
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
        let parts = groups::divide(setup, GROUPS, Box::new(device), INBOX).unwrap();
        let group = |(setup, part)| Single::new(setup, Box::new(part)).unwrap();
        let groups: Vec<_> = parts.into_iter().map(group).collect();
        Groups {
            now: Instant::from_millis(1),
            sockets: groups::sockets(groups.iter().map(Single::sockets)),
            groups,
            wire,
        }
    }

    /// Runs all work of the next millisecond. Returns the frames that were sent.
    fn settle(&mut self) -> Vec<Vec<u8>> {
        self.now += Duration::from_millis(1);
        for _ in 0..TURNS {
            for group in &mut self.groups {
                group.turn(self.now);
            }
        }
        let sent = self.wire.take_sent();
        sent.into_iter().map(|(frame, _)| frame).collect()
    }
}

/// A connection from our stack to another one.
struct Pair {
    ours: Groups,
    far: Single,
    far_wire: Script,
    near: TcpStream,
    other: TcpStream,
}

impl Pair {
    /// Opens connections until one belongs to group `group`.
    fn new(group: usize) -> Pair {
        let mac = TO_STACK.from_mac;
        let (device, far_wire) = scripted_with(MemoryConfig::default().macs(mac, mac));
        let mut far = Single::new(Setup::new(FAR.into(), 24, [1, 2]), Box::new(device)).unwrap();
        let listener = far.sockets().listen(PORT, 16).unwrap();
        let mut ours = Groups::new();
        let to = SocketAddr::new(Ipv4Addr::from(FAR).into(), PORT);
        let (mut near, mut other) = (None, None);
        while near
            .as_ref()
            .is_none_or(|near: &TcpStream| near.group() != group)
        {
            let mut opening = ours.sockets.begin_connect(to).unwrap();
            (near, other) = (None, None);
            while near.is_none() || other.is_none() {
                carry(&mut ours, &mut far, &far_wire);
                if near.is_none() {
                    near = opening.try_finish().unwrap();
                }
                if other.is_none() {
                    other = listener.try_accept().ok().map(|(stream, _)| stream);
                }
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

    /// Writes full segments and injects an error about one of them. Returns the frames sent before
    /// the error, and after it.
    fn hears(&mut self, code: u8, mtu: u16) -> [Vec<Vec<u8>>; 2] {
        assert_eq!(self.near.try_write(&[7; 8000]), Ok(8000));
        let before = self.ours.settle();
        let full = before.iter().find(|frame| frame.len() > 1400).unwrap();
        self.ours.wire.push(error(full, code, mtu));
        [before.clone(), self.ours.settle()]
    }
}

/// Runs both stacks for a millisecond.
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
fn a_path_that_takes_less_is_heard_of_in_every_group() {
    for group in 0..GROUPS {
        let mut pair = Pair::new(group);
        let [before, after] = pair.hears(4, 1000);
        let text = |frames: &[Vec<u8>]| -> usize {
            let segments = segments(frames);
            segments.iter().map(|segment| segment.payload.len()).sum()
        };
        let cut: Vec<usize> = after.iter().map(|frame| frame.len()).collect();
        let (again, unread) = (text(&after), text(&before));
        assert_eq!((group, again), (group, unread), "{cut:?}");
        let longest = packet::ETHERNET + 1000;
        assert!(cut.iter().all(|len| *len <= longest), "{cut:?}");
        // The stream is intact after it is cut anew.
        for frame in after {
            pair.far_wire.push(frame);
        }
        let mut read = 0;
        while read < 8000 {
            carry(&mut pair.ours, &mut pair.far, &pair.far_wire);
            let mut piece = [0; 4096];
            let len = pair.other.try_read(&mut piece).unwrap_or(0);
            assert!(piece[..len].iter().all(|byte| *byte == 7));
            read += len;
        }
    }
}

#[test]
fn a_peer_out_of_reach_is_remembered_in_every_group() {
    for group in 0..GROUPS {
        let mut pair = Pair::new(group);
        pair.hears(1, 0);
        // The peer answers no more. The connection ends with the reported error, not with a
        // timeout.
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
        assert_eq!((group, end), (group, Err(SocketError::Unreachable)));
    }
}
