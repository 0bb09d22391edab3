//! The memory of connections that have carried data, measured by the pages that the kernel has
//! given to this process. So these tests have their own binary, with the default allocator. Linux
//! only.

#![cfg(target_os = "linux")]

use std::net::Ipv4Addr;
use std::process::Command;

use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::Setup;
use dominoes_netstack::{TcpListener, TcpStream};
use dominoes_testkit::packet::{self, ACK, Path, RST, SYN};
use dominoes_testkit::peer::Peer;
use dominoes_testkit::{Host, Rng, Variant};

const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PORT: u16 = 7;
const NOW: Instant = Instant::from_millis(1000);
const CONNECTIONS: u16 = 10_000;
/// Bytes that a connection may take more once it has carried data: a page of each ring, and the
/// delivery slots. The rest of a ring is not touched.
const CARRIED: usize = 14 << 10;
/// Bytes of a connection that has read once, answered once, and been idle since: its streams and
/// sockets, and its state in every replica.
const IDLE: usize = 4 << 10;

/// Resident bytes of this process.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    4096 * pages.unwrap_or(0_usize)
}

/// Resident bytes that each connection has added since `before`.
fn each_since(before: usize) -> usize {
    resident().saturating_sub(before) / usize::from(CONNECTIONS)
}

/// The variant that this process measures, by name. Each has its own process, since the memory that
/// the allocator keeps of one stack would disturb the next.
const VARIANT: &str = "RESIDENT_VARIANT";

#[test]
fn an_idle_connection_holds_little_whatever_it_has_carried() {
    in_processes_of_their_own(
        "an_idle_connection_holds_little_whatever_it_has_carried",
        measure,
    );
}

#[test]
fn bytes_behind_gaps_and_closed_connections_hold_little() {
    in_processes_of_their_own(
        "bytes_behind_gaps_and_closed_connections_hold_little",
        behind_gaps_and_closed,
    );
}

#[test]
fn memory_stays_flat_while_connections_come_flood_and_go() {
    in_processes_of_their_own(
        "memory_stays_flat_while_connections_come_flood_and_go",
        come_and_go,
    );
}

/// Runs `measure` for each variant, each in a process that runs only the test `name`.
fn in_processes_of_their_own(name: &str, measure: fn(Variant)) {
    let variants = [Variant::Single, Variant::Replicated(2)];
    if let Ok(variant) = std::env::var(VARIANT) {
        let named = variants.iter().find(|one| one.to_string() == variant);
        return measure(*named.expect("it is one of them"));
    }
    for variant in variants {
        let program = std::env::current_exe().expect("it is running");
        let status = Command::new(program)
            .args(["--nocapture", "--exact", name])
            .env(VARIANT, variant.to_string())
            .status();
        assert!(status.expect("it starts").success(), "{variant}");
    }
}

/// Connections with data out of order, and connections that carry much data.
const SPARSE: u16 = 1000;
const BULKY: u16 = 180;
/// Bytes that each of `BULKY` carries.
const BULK: usize = 1 << 20;

/// From every peer to us.
fn path() -> Path {
    Path::new([10, 0, 0, 9], US.octets()).from_mac([2, 0xee, 0, 0, 0, 1])
}

/// Opens a connection.
fn open(host: &mut Host, listener: &TcpListener, peer: &mut Peer) -> TcpStream {
    open_at(NOW, host, listener, peer)
}

fn open_at(now: Instant, host: &mut Host, listener: &TcpListener, peer: &mut Peer) -> TcpStream {
    // With a window scale option, our window is the whole ring.
    let mut syn = peer.segment(SYN, &[]);
    syn.scale = Some(0);
    peer.next = syn.end();
    host.inject(syn.frame(path()));
    host.turn(now);
    let sent = host.take_sent();
    // The stack may also have sent an ARP request for the peer.
    assert!(
        sent.iter().any(|frame| peer.hears(frame).is_some()),
        "no SYN-ACK in {sent:?}"
    );
    host.inject(peer.says(ACK, &[]));
    host.turn(now);
    let (stream, _) = listener.try_accept().expect("it is established");
    stream
}

fn behind_gaps_and_closed(variant: Variant) {
    let mut setup = Setup::new(US.into(), 24, [1, 2]);
    setup.limits.connections = 1 << 11;
    let budget = setup.limits.out_of_order as usize;
    let mut host = Host::new(variant, setup, 1).expect("its bounds are right");
    let listener = host.sockets().listen(PORT, u16::MAX);
    let listener = listener.expect("the port is free");
    host.inject(packet::arp_reply(path()));
    host.turn(NOW);
    let mut peers: Vec<_> = (0..SPARSE)
        .map(|i| Peer::new(path(), (4000 + i, PORT), 100))
        .collect();
    let mut streams: Vec<_> = peers
        .iter_mut()
        .map(|peer| open(&mut host, &listener, peer))
        .collect();

    let before = resident();
    for round in 1..=150 {
        for peer in &mut peers {
            let mut segment = peer.segment(ACK, b"x");
            segment.seq = segment.seq.wrapping_add(round * 4096);
            host.inject(segment.frame(path()));
        }
        host.turn(NOW);
        host.take_sent();
    }
    let taken = resident().saturating_sub(before);
    println!("{variant}: {} KiB behind gaps", taken >> 10);
    assert!(taken < budget + (16 << 20), "{variant}: {taken} bytes");

    // A connection that opens later can carry data, too.
    let mut late = Peer::new(path(), (3000, PORT), 100);
    let mut stream = open(&mut host, &listener, &mut late);
    let mut second = late.segment(ACK, b"world");
    second.seq = second.seq.wrapping_add(5);
    host.inject(second.frame(path()));
    host.turn(NOW);
    host.inject(late.says(ACK, b"hello"));
    host.turn(NOW);
    host.take_sent();
    let mut buffer = [0; 16];
    assert_eq!(stream.try_read(&mut buffer), Ok(10));
    assert_eq!(&buffer[..10], b"helloworld");

    for (stream, peer) in streams.drain(..).zip(&mut peers) {
        host.inject(peer.says(RST, &[]));
        drop(stream);
    }
    let mut now = NOW;
    let mut settle = |host: &mut Host| {
        for _ in 0..2000 {
            now += Duration::from_millis(5);
            host.turn(now);
            host.take_sent();
        }
    };
    settle(&mut host);

    let before = resident();
    for i in 0..BULKY {
        let mut peer = Peer::new(path(), (6000 + i, PORT), 100);
        let mut stream = open(&mut host, &listener, &mut peer);
        let mut carried = 0;
        while carried < BULK {
            host.inject(peer.says(ACK, &[7; 1400]));
            host.turn(NOW);
            host.take_sent();
            carried += stream.try_read(&mut [0; 2000]).expect("bytes arrived");
        }
        streams.push(stream);
        peers[usize::from(i)] = peer;
    }
    let open = resident().saturating_sub(before);
    for (stream, peer) in streams.drain(..).zip(&mut peers) {
        host.inject(peer.says(RST, &[]));
        drop(stream);
    }
    settle(&mut host);
    let closed = resident().saturating_sub(before);
    println!(
        "{variant}: {} KiB open, {} KiB closed",
        open >> 10,
        closed >> 10
    );
    assert!(
        open > usize::from(BULKY) * BULK / 2,
        "{variant}: {open} bytes"
    );
    assert!(closed < open / 16, "{variant}: {closed} of {open} bytes");
}

/// Rounds in which connections open and close, and connections per round: 2,000 in total.
const TIMES: u16 = 20;
const AT_A_TIME: u16 = 100;
/// Rounds after which memory no longer grows, and the permitted difference from then on.
const WARM: usize = 4;
const DIFFERENCE: usize = 4 << 20;

fn come_and_go(variant: Variant) {
    let mut setup = Setup::new(US.into(), 24, [1, 2]);
    setup.limits.connections = 1 << 9;
    let mut host = Host::new(variant, setup, 1).expect("its bounds are right");
    let listener = host.sockets().listen(PORT, u16::MAX);
    let listener = listener.expect("the port is free");
    let mut rng = Rng::new(35);
    let mut now = NOW;
    let mut after = Vec::new();
    for time in 0..TIMES {
        // The stack has forgotten the peer's address since the last round.
        host.inject(packet::arp_reply(path()));
        host.turn(now);
        host.take_sent();
        let mut all = Vec::new();
        for i in 0..AT_A_TIME {
            let mut peer = Peer::new(path(), (4000 + time * AT_A_TIME + i, PORT), 100);
            let stream = open_at(now, &mut host, &listener, &mut peer);
            all.push((peer, stream));
        }
        for _ in 0..40 {
            for (peer, stream) in &mut all {
                let bytes = vec![7; 1 + rng.below(1400) as usize];
                if rng.chance(100_000) {
                    host.inject(peer.says(ACK, &bytes));
                } else {
                    let mut segment = peer.segment(ACK, &bytes);
                    let gap = 1 + rng.below(60_000) as u32;
                    segment.seq = segment.seq.wrapping_add(gap);
                    host.inject(segment.frame(path()));
                }
                let _ = stream.try_read(&mut [0; 2000]);
            }
            now += Duration::from_millis(1);
            host.turn(now);
            host.take_sent();
        }
        for (mut peer, stream) in all {
            match rng.below(3) {
                0 => host.inject(peer.says(RST, &[])),
                1 => stream.set_linger(Some(core::time::Duration::ZERO)),
                _ => {}
            }
            drop(stream);
            host.turn(now);
            host.inject(peer.says(RST, &[]));
        }
        for _ in 0..500 {
            now += Duration::from_millis(20);
            host.turn(now);
            host.take_sent();
        }
        after.push(resident());
    }
    let (first, rest) = after.split_at(WARM);
    let most = |all: &[usize]| all.iter().copied().max().unwrap_or(0);
    let (before, now) = (most(first), most(rest));
    println!("{variant}: {} KiB, then {} KiB", before >> 10, now >> 10);
    assert!(now <= before + DIFFERENCE, "{variant}: {after:?}");
}

fn measure(variant: Variant) {
    let mut setup = Setup::new(US.into(), 24, [1, 2]);
    setup.limits.connections = 1 << 14;
    let mut host = Host::new(variant, setup, 1).expect("its bounds are right");
    let sockets = host.sockets();
    let listener = sockets.listen(PORT, u16::MAX).expect("the port is free");
    host.inject(packet::arp_reply(path()));
    host.turn(NOW);
    // Allocated before, so that only memory of the connections counts.
    let mut held = Vec::with_capacity(CONNECTIONS.into());
    let mut peers: Vec<_> = (0..CONNECTIONS)
        .map(|i| Peer::new(path(), (4000 + i, PORT), 100))
        .collect();
    let empty = resident();
    for peer in &mut peers {
        held.push(open(&mut host, &listener, peer));
    }
    let before = resident();
    for (stream, peer) in held.iter_mut().zip(&mut peers) {
        host.inject(peer.says(ACK, b"hello"));
        host.turn(NOW);
        assert_eq!(stream.try_read(&mut [0; 16]), Ok(5));
        assert_eq!(stream.try_write(b"hello"), Ok(5));
        host.turn(NOW);
        peer.ack = peer.ack.wrapping_add(5);
        host.inject(peer.says(ACK, &[]));
        host.turn(NOW);
        host.take_sent();
    }
    let carried = each_since(before);
    let mut now = NOW;
    loop {
        let next = host.next_event(now);
        if next == Instant::NEVER {
            break;
        }
        now = next;
        host.turn(now);
    }
    let idle = each_since(empty);
    let opened = before.saturating_sub(empty) / usize::from(CONNECTIONS);
    println!(
        "{variant}: each connection holds {opened} bytes when it is open, {carried} more when \
             it was read from once, {idle} in all when it is idle"
    );
    assert!(carried <= CARRIED, "{variant}: {carried} of {CARRIED}");
    assert!(idle <= IDLE, "{variant}: {idle} of {IDLE}");

    // Memory that was returned is available again when it is needed.
    let (stream, peer) = (&mut held[7], &mut peers[7]);
    host.inject(peer.says(ACK, b"again"));
    host.turn(now);
    let mut buffer = [0; 16];
    assert_eq!(stream.try_read(&mut buffer), Ok(5));
    assert_eq!(&buffer[..5], b"again");
}
