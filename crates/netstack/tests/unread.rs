//! A peer that sends a byte in each segment, and an application that reads late.

#![cfg(feature = "testkit")]

use std::net::Ipv4Addr;

use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::Setup;
use dominoes_testkit::packet::{self, ACK, Path, SYN};
use dominoes_testkit::peer::Peer;
use dominoes_testkit::{Host, Variant};

const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PORT: u16 = 7;

/// Reads the `segments` bytes that arrived one by one into a ring of `ring` bytes, late.
fn read_late(variant: Variant, ring: u32, segments: u32) {
    let mut setup = Setup::new(US.into(), 24, [1, 2]);
    setup.limits.connections = 4;
    setup.limits.receive_buffer = ring;
    let mut host = Host::new(variant, setup, 1).expect("its bounds are right");
    let listener = host.sockets().listen(PORT, 4).expect("the port is free");
    let mut now = Instant::from_millis(1000);
    host.turn(now);
    let path = Path::new([10, 0, 0, 9], US.octets()).from_mac([2, 0xee, 0, 0, 0, 1]);
    host.inject(packet::arp_reply(path));
    host.turn(now);
    let mut peer = Peer::new(path, (4000, PORT), 100);
    let mut syn = peer.segment(SYN, &[]);
    syn.scale = Some(0);
    peer.next = syn.end();
    host.inject(syn.frame(path));
    host.turn(now);
    peer.hears(&host.take_sent()[0]).expect("a SYN-ACK");
    host.inject(peer.says(ACK, &[]));
    host.turn(now);
    let (mut stream, _) = listener.try_accept().expect("it is established");

    for i in 0..segments {
        // Different windows keep segments from being merged into one run.
        let mut segment = peer.segment(ACK, &[i as u8]);
        segment.wnd -= (i % 2) as u16;
        peer.next = segment.end();
        host.inject(segment.frame(path));
        if i % 64 == 63 || i + 1 == segments {
            host.turn(now);
            host.take_sent();
        }
    }
    let mut buffer = vec![0; 1 << 16];
    let mut read = 0;
    // Pauses in which an idle connection would give back memory that is read.
    while read < segments {
        let idle_until = now + Duration::from_secs(10);
        while now < idle_until {
            now = host.next_event(now).min(idle_until);
            host.turn(now);
        }
        let len = match read {
            0 => 1000,
            _ => buffer.len(),
        };
        let got = stream.try_read(&mut buffer[..len]);
        let got = got.unwrap_or_else(|error| panic!("{variant}: {error} after {read} bytes"));
        for byte in &buffer[..got] {
            assert_eq!(*byte, read as u8, "{variant}: byte {read}");
            read += 1;
        }
        if read > segments / 2 {
            // Read the rest without pauses.
            while let Ok(got) = stream.try_read(&mut buffer) {
                for byte in &buffer[..got] {
                    assert_eq!(*byte, read as u8, "{variant}: byte {read}");
                    read += 1;
                }
            }
        }
    }
    assert_eq!(read, segments, "{variant}");
}

#[test]
fn a_reader_that_does_not_read_for_two_million_segments_of_a_byte_finds_all_of_them() {
    read_late(Variant::Single, 1 << 22, 2_300_000);
}

#[test]
fn with_the_shortest_log_it_finds_all_of_300_000_segments() {
    for variant in [Variant::Replicated(1), Variant::Replicated(2)] {
        read_late(variant, 1 << 19, 300_000);
    }
}
