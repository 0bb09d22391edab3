//! What a connection that has carried something holds of the machine's memory, by the pages that
//! the kernel has given to this process: so this is a binary of its own, on the allocator that
//! programs have by default. Linux only.

#![cfg(target_os = "linux")]

use std::net::Ipv4Addr;

use dominoes_netstack::Limits;
use dominoes_netstack::time::Instant;
use dominoes_netstack::variants::Setup;
use dominoes_testkit::packet::{ACK, Path, SYN};
use dominoes_testkit::peer::Peer;
use dominoes_testkit::{Host, Variant};

const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PORT: u16 = 7;
const NOW: Instant = Instant::from_millis(1000);
const CONNECTIONS: u16 = 1024;
const RING: u32 = 1 << 16;
/// Bytes that a connection with rings of 64 KiB may hold which was read from once and answered
/// once: a page of each ring, the delivery slots, the stream, and its state in every replica. The
/// rest of a ring is not touched.
const MOST: usize = 32 << 10;

/// Bytes of this process that are in memory.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    4096 * pages.unwrap_or(0_usize)
}

#[test]
fn a_connection_that_was_read_from_once_holds_few_pages_of_its_rings() {
    for variant in [Variant::Single, Variant::Replicated(2)] {
        let mut setup = Setup::new(US.into(), 24, [1, 2]);
        setup.limits = Limits::default()
            .connections(CONNECTIONS.into())
            .receive_buffer(RING)
            .send_buffer(RING);
        let mut host = Host::new(variant, setup, 1).expect("its bounds are right");
        let sockets = host.sockets();
        let listener = sockets.listen(PORT, u16::MAX).expect("the port is free");
        host.turn(NOW);
        let mut open = Vec::new();
        for i in 0..CONNECTIONS {
            let path = Path::new([10, 0, 1, 1], US.octets()).from_mac([2, 0xee, 0, 0, 0, 1]);
            let mut peer = Peer::new(path, (4000 + i, PORT), 100);
            host.inject(peer.says(SYN, &[]));
            host.turn(NOW);
            peer.hears(&host.take_sent()[0]).expect("a SYN-ACK");
            host.inject(peer.says(ACK, &[]));
            host.turn(NOW);
            let (stream, _) = listener.try_accept().expect("it is established");
            open.push((stream, peer));
        }
        let before = resident();
        for (stream, peer) in &mut open {
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
        let each = resident().saturating_sub(before) / usize::from(CONNECTIONS);
        println!("{variant}: {each} bytes for each connection that was read from once");
        assert!(each <= MOST, "{variant}: {each} of {MOST}");
    }
}
