//! What connections cost in memory, idle or forged: every octet of the heap is counted, so this is a binary of its own.

use std::net::Ipv4Addr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dominoes_drivers::impair::LinkConfig;
use dominoes_netstack::testkit::{Host, HostConfig, Net, Rng, Talk, Variant};
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::Setup;
use dominoes_netstack::{Limits, TcpStream};
use peak_alloc::PeakAlloc;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// One test at a time, or each would count what the others take.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PORT: u16 = 7;
const SYN: u8 = 2;
const ACK: u8 = 16;
/// Where answers to forged segments go: nobody is there.
const NOBODY: [u8; 6] = [2, 0xee, 0, 0, 0, 1];

/// A segment without options and text, to our port.
fn segment(remote: (Ipv4Addr, u16), seq: u32, ack: u32, flags: u8) -> Vec<u8> {
    let mut frame = Vec::with_capacity(54);
    frame.extend(Host::mac_of(US));
    frame.extend(NOBODY);
    frame.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0]);
    frame.extend(remote.0.octets());
    frame.extend(US.octets());
    let header = !sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&header.to_be_bytes());
    frame.extend(remote.1.to_be_bytes());
    frame.extend(PORT.to_be_bytes());
    frame.extend(seq.to_be_bytes());
    frame.extend(ack.to_be_bytes());
    frame.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    // The pseudo header: addresses, protocol, length.
    let mut pseudo = frame[26..34].to_vec();
    pseudo.extend([0, 6, 0, 20]);
    pseudo.extend(&frame[34..]);
    let tcp = !sum(&pseudo);
    frame[50..52].copy_from_slice(&tcp.to_be_bytes());
    frame
}

/// RFC 1071, without the complement.
fn sum(bytes: &[u8]) -> u16 {
    let pairs = bytes.chunks(2);
    let sum: u32 = pairs
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum();
    let sum = (sum >> 16) + (sum & 0xffff);
    ((sum >> 16) + sum) as u16
}

/// Octets of the heap that a stack with room for so many connections takes, and that so many idle ones add.
fn idle(variant: Variant, connections: u32) -> (usize, usize) {
    let now = Instant::from_millis(1000);
    let before = HEAP.current_usage();
    let mut setup = Setup::new(US, 24, [1, 2]);
    setup.limits.connections = connections;
    let mut host = Host::new(variant, setup, 1).expect("its bounds are right");
    let listener = host
        .sockets()
        .listen(PORT, u16::MAX)
        .expect("nobody else listens");
    host.turn(now);
    let empty = HEAP.current_usage();
    let mut held: Vec<TcpStream> = Vec::with_capacity(connections as usize);
    for i in 0..connections {
        let remote = (Ipv4Addr::new(10, 0, 1 + (i >> 8) as u8, i as u8), 4000);
        host.inject(segment(remote, 100, 0, SYN));
        host.turn(now);
        let sent = host.take_sent();
        let iss = u32::from_be_bytes(sent[0][38..42].try_into().expect("four octets"));
        host.inject(segment(remote, 101, iss.wrapping_add(1), ACK));
        host.turn(now);
        held.push(listener.try_accept().expect("it is established").0);
    }
    host.turn(now);
    let full = HEAP.current_usage();
    assert_eq!(
        host.replicas()[0].connections().count(),
        connections as usize
    );
    (empty - before, full - empty)
}

/// What `Limits::connections` says of a connection that has not carried text.
#[test]
fn an_idle_connection_costs_what_is_written_down() {
    let _turn = turn();
    for (variant, replicas) in [(Variant::Single, 1), (Variant::Replicated(2), 2)] {
        let (small, _) = idle(variant, 256);
        let (large, open) = idle(variant, 1792);
        let place = (large - small) / (1792 - 256);
        let each = open / 1792;
        println!("{variant}: {place} octets for each place, {each} for each idle connection");
        let bound = Limits::CONNECTION_BASE + replicas * Limits::CONNECTION_PER_REPLICA;
        assert!(
            place + each <= bound,
            "{variant}: {place} + {each} of {bound}"
        );
        assert!(place + each > bound / 2, "the bound is far from the truth");
    }
}

/// Forged SYNs in a millisecond.
const FORGED: u64 = 10;
/// How long they come.
const FLOOD: Duration = Duration::from_secs(10);
/// When somebody connects meanwhile.
const CONNECTS_AT: Duration = Duration::from_secs(2);
const OCTETS: u64 = 10_000_000;

/// What an honest client sees, and what it costs: time until it is connected, time until its octets are there, and the
/// most of the heap that was in use.
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
    HEAP.reset_peak_usage();
    let start = net.now();
    let (mut connecting, mut connected, mut done) = (None, None, None);
    let (mut ours, mut theirs): (Option<Talk>, Option<Talk>) = (None, None);
    while net.now() < start + FLOOD {
        for _ in 0..forged {
            let remote = (
                Ipv4Addr::from_bits(0x0b00_0000 + rng.below(1 << 24) as u32),
                rng.next() as u16 | 1,
            );
            let syn = segment(remote, rng.next() as u32, 0, SYN);
            net.host(server).inject(syn);
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
            net.settle();
            let mut busy = 0;
            if theirs.is_none()
                && let Ok((stream, _)) = listener.try_accept()
            {
                theirs = Some(Talk::new(stream, 2, 1, 0, OCTETS));
            }
            if let Some(connecting) = &mut connecting
                && ours.is_none()
                && let Some(stream) = connecting.try_finish().expect("it gets in")
            {
                connected = Some(net.now().since(start + CONNECTS_AT));
                ours = Some(Talk::new(stream, 1, 2, OCTETS, 0));
            }
            for talk in [&mut ours, &mut theirs].into_iter().flatten() {
                busy += talk.step().expect("every octet is right");
            }
            let over = |talk: &Option<Talk>| talk.as_ref().is_some_and(Talk::is_over);
            if done.is_none() && over(&ours) && over(&theirs) {
                done = Some(net.now().since(start + CONNECTS_AT));
            }
            if busy == 0 && net.settle() == 0 && !net.advance(until) {
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
        done.expect("its octets are there"),
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
        // Tables double when they grow, and every worker has frames in hand.
        let each = Limits::CONNECTION_BASE + replicas * Limits::CONNECTION_PER_REPLICA;
        let bound = Limits::default().syn_queue as usize * each + ((1 + replicas) << 16);
        println!(
            "{variant}: connected after {connected:?}, 10 MB after {time:?} ({calm_time:?} without the flood), \
             {more} octets more of the heap, {bound} allowed"
        );
        assert!(connected <= Duration::from_millis(100));
        assert!(more <= bound, "{more} of {bound}");
    }
}
