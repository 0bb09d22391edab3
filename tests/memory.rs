//! The memory that connections take, idle or forged. Every byte of the heap is counted, so these
//! tests have their own binary.

use std::io::{BufRead, ErrorKind, Read};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dominoes_netstack::Route;
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::Setup;
use dominoes_netstack::{Ipv6Config, Limits, SocketError, TcpListener, TcpStream, testkit};
use dominoes_testkit::packet::{self, ACK, Path, SYN, v6};
use dominoes_testkit::peer::Peer;
use dominoes_testkit::{Host, HostConfig, LinkConfig, Net, Rng, Traffic, Variant};
use peak_alloc::PeakAlloc;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Runs one test at a time: otherwise each would count the memory of the others.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PORT: u16 = 7;

/// The router that forwards to all peers.
const ROUTER: [u8; 4] = [10, 0, 0, 9];

/// From a peer to us. Its Ethernet address belongs to no host, so answers go nowhere.
fn path(from: [u8; 4]) -> Path {
    Path::new(from, US.octets()).from_mac([2, 0xee, 0, 0, 0, 1])
}

/// A peer that opens a connection to our port.
fn peer(from: Ipv4Addr, port: u16, seq: u32) -> Peer {
    Peer::new(path(from.octets()), (port, PORT), seq)
}

const NOW: Instant = Instant::from_millis(1000);

/// A length that no other ring has.
const SEND_BUFFER: u32 = 1 << 22;

/// A stack with room for `connections` connections, and its listener.
fn listening(variant: Variant, connections: u32) -> (Host, TcpListener) {
    let mut setup = Setup::new(US.into(), 24, [1, 2]).gateway(ROUTER.into());
    setup.limits.connections = connections;
    setup.limits.send_buffer = SEND_BUFFER;
    let mut host = Host::new(variant, setup, 1).expect("its bounds are right");
    let listener = host
        .sockets()
        .listen(PORT, u16::MAX)
        .expect("nobody else listens");
    host.inject(packet::arp_reply(path(ROUTER)));
    host.turn(NOW);
    (host, listener)
}

/// Lets peer number `i` open a connection. Returns both ends of it.
fn open(host: &mut Host, listener: &TcpListener, i: u32) -> (TcpStream, Peer) {
    let from = Ipv4Addr::new(10, 0, 1 + (i >> 8) as u8, i as u8);
    let mut peer = peer(from, 4000, 100);
    host.inject(peer.says(SYN, &[]));
    host.turn(NOW);
    let sent = host.take_sent();
    peer.hears(&sent[0]).expect("a SYN-ACK");
    host.inject(peer.says(ACK, &[]));
    host.turn(NOW);
    let (stream, _) = listener.try_accept().expect("it is established");
    (stream, peer)
}

/// Makes every call that an application can make on a connection which has nothing to read and has
/// written nothing.
fn look(stream: &mut TcpStream, waits: bool) {
    let would_block = SocketError::WouldBlock;
    let mut buffer = [0; 16];
    assert_eq!(stream.try_read(&mut buffer), Err(would_block));
    let (reader, writer) = stream.halves();
    assert_eq!(reader.try_fill_all(), Err(would_block));
    assert_eq!(reader.try_peek(&mut buffer), Err(would_block));
    reader.consume(0);
    let room = writer.room().expect("the connection is established");
    // 64 KiB plus twice the bytes that the peer has acknowledged, which are few.
    assert!((64 << 10..65 << 10).contains(&room), "{room} bytes");
    assert_eq!(writer.try_write(&[]), Ok(0));
    if waits {
        // However long this waits, nothing arrives.
        let short = core::time::Duration::from_millis(1);
        stream.set_read_timeout(Some(short)).expect("not zero");
        let read = stream.read(&mut buffer).map_err(|error| error.kind());
        assert_eq!(read, Err(ErrorKind::WouldBlock));
        let filled = stream.fill_buf().map_err(|error| error.kind());
        assert_eq!(filled, Err(ErrorKind::WouldBlock));
        let peeked = stream.peek(&mut buffer).map_err(|error| error.kind());
        assert_eq!(peeked, Err(ErrorKind::WouldBlock));
    }
}

/// Bytes of heap that a stack with room for `connections` connections takes, and bytes that
/// `connections` idle connections add when their applications have polled them.
fn idle(variant: Variant, connections: u32) -> (usize, usize) {
    let before = HEAP.current_usage();
    let (mut host, listener) = listening(variant, connections);
    let empty = HEAP.current_usage();
    let mut held: Vec<TcpStream> = Vec::with_capacity(connections as usize);
    for i in 0..connections {
        let (mut stream, _) = open(&mut host, &listener, i);
        look(&mut stream, i % 256 == 0);
        held.push(stream);
    }
    host.turn(NOW);
    let full = HEAP.current_usage();
    assert_eq!(
        host.inspect(|replica| replica.connections().count())[0],
        connections as usize
    );
    (empty - before, full - empty)
}

/// Any host on the link can advertise routers. Memory stays bounded, however many connections there
/// are and however many advertisements arrive.
#[test]
fn routers_that_come_and_go_and_never_answer_take_no_memory() {
    let _turn = turn();
    let config = Ipv6Config::default().duplicate_probes(0);
    let setup = Setup::new(US.into(), 24, [1, 2]).ipv6(config);
    let mut host = Host::new(Variant::Single, setup, 1).expect("its bounds are right");
    let [network, far] = [0x5, 0xf].map(|net| Ipv6Addr::new(0x2001, 0xdb8, 0, net, 0, 0, 0, 1));
    let mut now = NOW;
    let mut say = |host: &mut Host, router: u16, lifetime: u8| {
        let mut says = vec![134, 0, 0, 0, 64, 0, 0, lifetime, 0, 0, 0, 0, 0, 0, 0, 0];
        says.extend([3, 4, 64, 0xc0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        says.extend(network.octets());
        if router == 1 {
            says.extend([1, 1, 2, 0xee, 0, 0, 0, 1]);
        }
        let path = v6::Path {
            from_mac: [2, 0xee, 0, 0, 0, router as u8],
            to_mac: [0x33, 0x33, 0, 0, 0, 1],
            from: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, router),
            to: Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1),
            hop_limit: 255,
        };
        host.inject(v6::frame(path, v6::ICMPV6, &says));
        now += Duration::from_millis(2);
        host.turn(now);
        host.take_sent();
    };
    say(&mut host, 1, 200);
    let opening = |port| host.sockets().begin_connect((far, port).into());
    let opening: Vec<_> = (1..=1000).map(opening).collect();
    assert!(opening.iter().all(Result::is_ok));
    let mut grown = 0;
    for round in 0..1_200 {
        for router in [1, 2, 3] {
            say(&mut host, router, 200);
            say(&mut host, router, 0);
        }
        if round == 100 {
            grown = HEAP.current_usage();
        }
    }
    let grown = HEAP.current_usage().saturating_sub(grown);
    println!("{grown} bytes for 6,600 advertisements");
    assert!(grown < 1 << 20, "{grown} bytes");
}

/// The figure in the documentation of `Limits::connections` for a connection that has carried no
/// text.
#[test]
fn an_idle_connection_costs_what_is_written_down() {
    let _turn = turn();
    for (variant, replicas) in [
        (Variant::Single, 1),
        (Variant::Locked(2), 1),
        (Variant::Replicated(2), 2),
    ] {
        let (small, _) = idle(variant, 256);
        let (large, open) = idle(variant, 1792);
        let place = large.saturating_sub(small) / (1792 - 256);
        let each = open / 1792;
        println!("{variant}: {place} bytes for each place, {each} for each idle connection");
        let bound = Limits::CONNECTION_BASE + replicas * Limits::CONNECTION_PER_REPLICA;
        assert!(
            place + each <= bound,
            "{variant}: {place} + {each} of {bound}"
        );
        assert!(place + each > bound / 2, "the bound is far from the truth");
    }
}

/// Resident bytes of this process.
#[cfg(target_os = "linux")]
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    4096 * pages.unwrap_or(0_usize)
}

/// The figure in the documentation of `Limits::connections` for a new stack.
#[test]
fn room_for_connections_costs_little_until_it_is_used() {
    let _turn = turn();
    let start = |connections| {
        let before = HEAP.current_usage();
        #[cfg(target_os = "linux")]
        let pages = resident();
        let stack = listening(Variant::Single, connections);
        #[cfg(target_os = "linux")]
        let pages = resident().saturating_sub(pages);
        #[cfg(not(target_os = "linux"))]
        let pages = 0;
        let heap = HEAP.current_usage() - before;
        drop(stack);
        println!("{connections} connections: {heap} bytes of the heap, {pages} in memory");
        (heap, pages)
    };
    let (base, base_pages) = start(256);
    assert_eq!(Limits::default().connections, 16_384);
    for connections in [4096, 16_384, 65_536] {
        let (heap, pages) = start(connections);
        let more = (connections - 256) as usize;
        assert!(heap - base <= more * Limits::CONNECTION_BASE);
        // Memory that the allocator kept from earlier stacks makes this less, never more.
        assert!(pages.saturating_sub(base_pages) <= more * 48 + (1 << 20));
    }
}

/// Bytes that a connection with one ring takes in addition to the ring: frames, tables that grow.
const BESIDES_A_RING: usize = 1 << 16;
/// Address space of the delivery slots of many connections, mapped when the first one receives.
const SLOTS: usize = 1 << 20;

/// Bytes of the heap and of all rings.
fn taken() -> usize {
    HEAP.current_usage() + testkit::mapped_bytes()
}

#[test]
fn what_arrives_makes_the_receive_ring_alone_and_what_is_written_the_send_ring_alone() {
    let _turn = turn();
    let limits = Limits::default();
    for variant in [Variant::Single, Variant::Locked(2), Variant::Replicated(2)] {
        let (mut host, listener) = listening(variant, 256);
        let (mut reads, mut sender) = open(&mut host, &listener, 0);
        let (mut writes, mut reader) = open(&mut host, &listener, 1);
        let before = taken();

        host.inject(sender.says(ACK, b"hi"));
        host.turn(NOW);
        let mut buffer = [0; 16];
        assert_eq!(reads.try_read(&mut buffer), Ok(2));
        look(&mut reads, false);
        let read = taken() - before;

        assert_eq!(writes.try_write(b"hello"), Ok(5));
        host.turn(NOW);
        reader.ack = reader.ack.wrapping_add(5);
        host.inject(reader.says(ACK, &[]));
        host.turn(NOW);
        look(&mut writes, false);
        let written = taken() - before - read;

        println!("{variant}: {read} bytes for reading, {written} for writing");
        let around = |ring: u32, more| ring as usize..ring as usize + more + BESIDES_A_RING;
        assert!(around(limits.receive_buffer, SLOTS).contains(&read));
        assert!(around(SEND_BUFFER, 0).contains(&written));
    }
}

#[test]
fn a_udp_socket_has_no_rings_before_it_carries_something() {
    let _turn = turn();
    let limits = Limits::default();
    for variant in [Variant::Single, Variant::Locked(2), Variant::Replicated(2)] {
        let (mut host, _listener) = listening(variant, 256);
        let before = taken();
        let mut sockets: Vec<_> = (0..8)
            .map(|i| host.sockets().bind_udp(5000 + i).expect("it is free"))
            .collect();
        host.turn(NOW);
        let mut buffer = [0; 16];
        for socket in &mut sockets {
            let received = socket.try_recv_from(&mut buffer);
            assert_eq!(received, Err(SocketError::WouldBlock));
            let short = core::time::Duration::from_millis(1);
            socket.set_read_timeout(Some(short)).expect("not zero");
            let waited = socket.recv_from(&mut buffer).map_err(|error| error.kind());
            assert_eq!(waited.map(|_| ()), Err(ErrorKind::WouldBlock));
        }
        let bound = taken() - before;
        let to = std::net::SocketAddr::new(Ipv4Addr::new(10, 0, 0, 9).into(), 9);
        sockets[0].try_send_to(b"hello", to).expect("there is room");
        let sent = taken() - before - bound;
        println!("{variant}: {bound} bytes for eight sockets, {sent} for sending");
        assert!(bound < BESIDES_A_RING);
        assert!(sent < limits.udp_send_buffer as usize + BESIDES_A_RING);
    }
}

/// Forged SYNs per millisecond.
const FORGED: u64 = 10;
/// Length of the flood.
const FLOOD: Duration = Duration::from_secs(10);
/// When the honest client connects.
const CONNECTS_AT: Duration = Duration::from_secs(2);
const BYTES: u64 = 10_000_000;

/// Runs an honest client during a flood. Returns the time until it is connected, the time until all
/// of its bytes have arrived, and the peak use of the heap.
fn honest(variant: Variant, forged: u64) -> (Duration, Duration, usize) {
    let mut rng = Rng::new(0x5eed);
    let mut net = Net::new(rng.next());
    let wire = || LinkConfig::default().delay(core::time::Duration::from_millis(5));
    let mut add = |variant| net.add(HostConfig::new(variant).wires(wire(), wire()));
    let server = add(variant).expect("its bounds are right");
    let client = add(Variant::Single).expect("its bounds are right");
    let listener = net
        .sockets(server)
        .listen(PORT, 128)
        .expect("nobody else listens");
    let route = Route {
        network: Ipv4Addr::UNSPECIFIED.into(),
        prefix: 0,
        via: ROUTER.into(),
        metric: 0,
    };
    let added = net.sockets(server).add_route(1, route);
    added.expect("it is on the link");
    net.host(server).inject(packet::arp_reply(path(ROUTER)));
    HEAP.reset_peak_usage();
    let start = net.now();
    let (mut connecting, mut connected, mut done) = (None, None, None);
    let (mut ours, mut theirs): (Option<Traffic>, Option<Traffic>) = (None, None);
    while net.now() < start + FLOOD {
        for _ in 0..forged {
            let from = Ipv4Addr::from_bits(0x0b00_0000 + rng.below(1 << 24) as u32);
            let mut forged = peer(from, rng.next() as u16 | 1, rng.next() as u32);
            net.host(server).inject(forged.says(SYN, &[]));
        }
        if connecting.is_none() && net.now() >= start + CONNECTS_AT {
            let to = net.address_of(server, PORT);
            connecting = Some(
                net.sockets(client)
                    .begin_connect(to)
                    .expect("the stack is up"),
            );
        }
        let until = net.now() + Duration::from_millis(1);
        loop {
            net.run_until_idle();
            let mut busy = 0;
            if theirs.is_none()
                && let Ok((stream, _)) = listener.try_accept()
            {
                theirs = Some(Traffic::new(stream, 2, 1, 0, BYTES));
            }
            if let Some(connecting) = &mut connecting
                && ours.is_none()
                && let Some(stream) = connecting.try_finish().expect("it gets in")
            {
                connected = Some(net.now().since(start + CONNECTS_AT));
                ours = Some(Traffic::new(stream, 1, 2, BYTES, 0));
            }
            for traffic in [&mut ours, &mut theirs].into_iter().flatten() {
                busy += traffic.step().expect("every byte is right");
            }
            let over = |traffic: &Option<Traffic>| traffic.as_ref().is_some_and(Traffic::is_over);
            if done.is_none() && over(&ours) && over(&theirs) {
                done = Some(net.now().since(start + CONNECTS_AT));
            }
            if busy == 0 && net.run_until_idle() == 0 && !net.advance(until) {
                break;
            }
        }
    }
    net.check().expect("replicas agree");
    let stats = net.host(server).state_stats();
    println!("{variant}, {forged} forged SYNs a millisecond: {stats:?}");
    if forged > 0 {
        assert!(stats.cookies_sent > 99_000 && stats.cookies_returned == 1);
    }
    let connected = connected.expect("it is connected");
    (
        connected,
        done.expect("its bytes are there"),
        HEAP.peak_usage(),
    )
}

#[test]
fn a_flood_of_forged_syns_takes_little_memory_and_keeps_nobody_out() {
    let _turn = turn();
    for (variant, replicas) in [(Variant::Single, 1), (Variant::Replicated(2), 2)] {
        let (_, calm_time, calm) = honest(variant, 0);
        let (connected, time, most) = honest(variant, FORGED);
        let more = most.saturating_sub(calm);
        // Tables double when they grow, and every worker holds frames.
        let each = Limits::CONNECTION_BASE + replicas * Limits::CONNECTION_PER_REPLICA;
        let bound = Limits::default().syn_queue as usize * each + ((1 + replicas) << 16);
        println!(
            "{variant}: connected after {connected:?}, 10 MB after {time:?} ({calm_time:?} without the flood), \
             {more} bytes more of the heap, {bound} allowed"
        );
        assert!(connected <= Duration::from_millis(100));
        assert!(more <= bound, "{more} of {bound}");
    }
}

#[test]
fn reads_and_writes_of_replicated_state_do_not_allocate() {
    let _turn = turn();
    let numbers = dominoes::Replicated::builder(Numbers([0; 8])).replicas(2);
    let numbers = numbers.build().expect("the settings are right");
    let mut handles = [0, 1].map(|replica| numbers.handle_on(replica).expect("it is there"));
    let mut round = |n: u64| {
        for handle in &mut handles {
            handle.write(n).expect("no replica fails");
            handle.submit(n).expect("no replica fails");
            assert!(handle.read(|numbers| numbers.0[0]).is_ok());
            assert!(handle.read_stale(|numbers| numbers.0[0]).is_ok());
        }
    };
    (0..10).for_each(&mut round);
    HEAP.reset_peak_usage();
    let before = HEAP.peak_usage();
    // More than the log holds.
    (0..5_000).for_each(&mut round);
    assert_eq!(HEAP.peak_usage(), before);
}

#[derive(Clone)]
struct Numbers([u64; 8]);

impl dominoes::StateMachine for Numbers {
    type Op = u64;
    type Answer = u64;
    fn apply(&mut self, n: &u64) -> u64 {
        self.0[(*n % 8) as usize] += n;
        self.0[0]
    }
}
