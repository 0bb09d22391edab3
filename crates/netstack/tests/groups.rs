//! Groups side by side: every byte arrives whichever group a connection belongs to, and whoever
//! opened it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::thread;

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_drivers::{Device, DeviceRx, DeviceTx, TxFrame};
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::Setup;
use dominoes_netstack::variants::groups;
use dominoes_netstack::variants::groups::INBOX;
use dominoes_netstack::variants::single::Single;
use dominoes_netstack::{Limits, SocketError, Stack, StackError, TcpStream};

/// Connections that each side opens.
const EACH: usize = 32;
/// Bytes that each connection carries each way.
const BYTES: usize = 96 << 10;
const PORT: u16 = 7;

fn address(last: u8) -> SocketAddr {
    SocketAddr::new([10, 0, 0, last].into(), PORT)
}

fn limits() -> Limits {
    let mut limits = Limits::default();
    (limits.receive_buffer, limits.send_buffer) = (16 << 10, 16 << 10);
    limits
}

/// The last byte of an address.
fn last_byte(end: SocketAddr) -> u8 {
    match end.ip() {
        IpAddr::V4(address) => address.octets()[3],
        IpAddr::V6(address) => address.octets()[15],
    }
}

/// What one end of a connection says: byte `at` of the end at `local`.
fn pattern_byte(local: SocketAddr, remote: SocketAddr, at: usize) -> u8 {
    let ends = u32::from(local.port()) * 31 + u32::from(remote.port()) * 7;
    (ends as usize + usize::from(last_byte(local)) + at / 3 + at) as u8
}

/// An end with how far it has read and written.
struct End {
    stream: TcpStream,
    read: usize,
    written: usize,
}

impl End {
    /// Reads and writes what can be; says whether that was something.
    fn turn(&mut self) -> bool {
        let (local, remote) = (
            self.stream.local_addr().unwrap(),
            self.stream.peer_addr().unwrap(),
        );
        let mut some = false;
        if self.written < BYTES {
            let len = (BYTES - self.written).min(5000);
            let text: Vec<u8> = (0..len)
                .map(|i| pattern_byte(local, remote, self.written + i))
                .collect();
            match self.stream.try_write(&text) {
                Ok(written) => {
                    self.written += written;
                    some |= written > 0;
                }
                Err(error) => assert_eq!(error, SocketError::WouldBlock),
            }
        }
        let mut text = [0; 5000];
        match self.stream.try_read(&mut text) {
            Ok(len) => {
                assert!(len > 0, "{local} ended after {} octets", self.read);
                for (i, got) in text[..len].iter().enumerate() {
                    let wanted = pattern_byte(remote, local, self.read + i);
                    assert_eq!(*got, wanted, "pattern_byte {} from {remote}", self.read + i);
                }
                self.read += len;
                some = true;
            }
            Err(error) => assert_eq!(error, SocketError::WouldBlock),
        }
        some
    }

    fn is_done(&self) -> bool {
        self.read == BYTES && self.written == BYTES
    }
}

/// Moves everything over all of one side's connections. Of a stack with `groups`, if they are told,
/// each connection is asked to go to the next one whenever it has come to one.
fn serve(streams: Vec<TcpStream>, groups: usize) -> Vec<TcpStream> {
    let mut ends: Vec<End> = streams
        .into_iter()
        .map(|stream| End {
            stream,
            read: 0,
            written: 0,
        })
        .collect();
    let mut rounds = 0_u32;
    while !ends.iter().all(End::is_done) {
        let mut some = false;
        rounds += 1;
        for end in &mut ends {
            some |= end.turn();
            if groups > 0 && rounds.is_multiple_of(16) {
                end.stream.migrate_to((end.stream.group() + 1) % groups);
            }
        }
        if !some {
            thread::yield_now();
        }
    }
    ends.into_iter().map(|end| end.stream).collect()
}

#[test]
fn sixty_four_connections_arrive_whole_over_any_number_of_groups() {
    for (groups, replicas) in [(1, 1), (2, 1), (4, 1), (2, 2)] {
        let (here, there) = memory::pair(MemoryConfig::default().queue_depth(2048));
        let near = Stack::builder("10.0.0.1/24").limits(limits());
        let near = near.groups(groups).replicas(replicas).start(here).unwrap();
        let far = Stack::builder("10.0.0.2/24").limits(limits());
        let far = far.start(there).unwrap();
        let ours = near.listen(PORT, EACH as u16).unwrap();
        let theirs = far.listen(PORT, EACH as u16).unwrap();
        let (mut here, mut there) = (Vec::new(), Vec::new());
        for _ in 0..EACH {
            there.push(far.connect(address(1)).unwrap());
            here.push(ours.accept().unwrap().0);
            here.push(near.connect(address(2)).unwrap());
            there.push(theirs.accept().unwrap().0);
        }
        let mut spread = BTreeMap::new();
        for stream in &here {
            *spread.entry(stream.group()).or_insert(0) += 1;
        }
        assert_eq!(spread.len(), groups, "{spread:?}");
        // Those that we open take turns.
        assert!(spread.values().all(|n| *n >= EACH / groups), "{spread:?}");
        let there = thread::spawn(move || serve(there, 0));
        let here = serve(here, 0);
        let there = there.join().unwrap();
        assert_eq!(near.connections(usize::MAX).len(), 2 * EACH);
        assert_eq!(near.snapshot().domains.len(), groups * replicas);
        near.compare().unwrap();
        let stats = near.stats().state;
        assert_eq!((stats.no_connection, stats.bad_checksum), (0, 0));
        drop((here, there));
    }
}

#[test]
fn connections_arrive_whole_though_they_move_between_running_groups_all_the_time() {
    for (groups, replicas) in [(2, 1), (3, 1), (2, 2)] {
        let (here, there) = memory::pair(MemoryConfig::default().queue_depth(2048));
        let near = Stack::builder("10.0.0.1/24").limits(limits());
        let near = near.groups(groups).replicas(replicas).start(here).unwrap();
        let far = Stack::builder("10.0.0.2/24").limits(limits());
        let far = far.start(there).unwrap();
        let ours = near.listen(PORT, EACH as u16).unwrap();
        let (mut here, mut there) = (Vec::new(), Vec::new());
        for _ in 0..EACH / 2 {
            there.push(far.connect(address(1)).unwrap());
            here.push(ours.accept().unwrap().0);
        }
        let there = thread::spawn(move || serve(there, 0));
        let here = serve(here, groups);
        let there = there.join().unwrap();
        // Idle ones come where they are to be, too.
        for stream in &here {
            while stream.group() != 1 {
                stream.migrate_to(1);
                thread::sleep(std::time::Duration::from_millis(1));
            }
        }
        near.compare().unwrap();
        // A stream is told before the last replica has heard of it, and a list is of one replica at
        // its position.
        let listed = || near.connections(usize::MAX).len();
        let mut looks = 0;
        while listed() != EACH / 2 {
            looks += 1;
            assert!(looks < 10_000, "{} are listed", listed());
            thread::sleep(std::time::Duration::from_millis(1));
        }
        drop((here, there));
        near.close(std::time::Duration::from_secs(10)).unwrap();
    }
}

#[test]
fn how_many_groups_there_may_be_is_told() {
    for groups in [0, 65] {
        let (here, _there) = memory::pair(MemoryConfig::default());
        let started = Stack::builder("10.0.0.1/24").groups(groups).start(here);
        let error = started.expect_err("that many are refused");
        assert!(matches!(error, StackError::Config(_)), "{error}");
        assert!(error.to_string().contains("`groups`"), "{error}");
    }
}

/// Two groups by hand, and the far end of their device.
struct Fixture {
    now: Instant,
    groups: Vec<Single>,
    rx: Box<dyn DeviceRx>,
    tx: Box<dyn DeviceTx>,
}

const PEER: [u8; 6] = [2, 0xee, 0, 0, 0, 1];

impl Fixture {
    fn new() -> Fixture {
        let (here, there) = memory::pair(MemoryConfig::default());
        let mac = here.mac();
        assert_ne!(mac, PEER);
        let setup = Setup::new([10, 0, 0, 1].into(), 24, [1, 2]);
        let parts = groups::divide(setup, 2, Box::new(here), INBOX).unwrap();
        let groups = parts
            .into_iter()
            .map(|(setup, part)| Single::new(setup, Box::new(part)).unwrap());
        let (rx, tx) = Box::new(there).split();
        Fixture {
            now: Instant::from_millis(1),
            groups: groups.collect(),
            rx,
            tx,
        }
    }

    /// Sends a frame to the groups, and returns what they send then.
    fn ask(&mut self, frame: &[u8]) -> Vec<Vec<u8>> {
        assert_eq!(self.tx.transmit(&[TxFrame::new(frame)]), Ok(1));
        for _ in 0..8 {
            self.now += Duration::from_micros(1);
            for group in &mut self.groups {
                group.turn(self.now);
            }
        }
        let mut frames = Vec::new();
        self.rx.claim(64, &mut frames).unwrap();
        frames.iter().map(|frame| frame.bytes().to_vec()).collect()
    }
}

/// An ARP request for 10.0.0.1 (RFC 826).
fn who_has() -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend(PEER);
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(PEER);
    frame.extend([10, 0, 0, 2, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1]);
    frame
}

#[test]
fn one_answer_comes_to_what_reaches_all_groups() {
    let mut fixture = Fixture::new();
    let answers = fixture.ask(&who_has());
    assert_eq!(answers.len(), 1, "{answers:02x?}");
    assert_eq!(answers[0][20..22], [0, 2], "an ARP reply");
    let arp: u64 = fixture
        .groups
        .iter()
        .map(|group| group.pump_stats().arp)
        .sum();
    assert_eq!(arp, 2, "both have heard it");
    // So both know the neighbour: an open asks nobody, whichever group it is.
    let sockets = groups::sockets(fixture.groups.iter().map(Single::sockets));
    let opening: Vec<_> = (0..2)
        .map(|_| sockets.begin_connect(address(2)).unwrap())
        .collect();
    let sent = fixture.ask(&who_has());
    let syns = sent.iter().filter(|frame| frame[12..14] == [8, 0]).count();
    assert_eq!((syns, sent.len()), (2, 3));
    drop(opening);
}
