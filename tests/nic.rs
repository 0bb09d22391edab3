//! Stacks on both sides of programmable cards: megabytes come back with equal SHA-256.

use std::io::{Read, Write};
use std::net::SocketAddrV4;
use std::thread;

use dominoes_drivers::memory::{self, Faults, MemoryConfig};
use dominoes_drivers::nic::{Firmware, Nic, NicConfig};
use dominoes_netstack::Stack;
use dominoes_testkit::Rng;
use sha2::{Digest, Sha256};

/// Bytes of an echo.
const BYTES: usize = 4 << 20;
/// Bytes of one write.
const CHUNK: usize = 64 << 10;

/// Sends `BYTES` from a stack at one end of `wire` to a stack at the other, and back.
fn echo(config: &NicConfig, wire: MemoryConfig) {
    println!("{:?}", config.firmware);
    let (left, right) = memory::pair(wire);
    let over = |device| Nic::start(config, device).expect("threads");
    let stack = |address, replicas, device| {
        let builder = Stack::builder(address).replicas(replicas);
        builder.start(over(device)).expect("a stack")
    };
    let client = stack("10.0.0.2/24", 1, right);
    let server = stack("10.0.0.1/24", 2, left);
    let listener = server.listen(7, 4).expect("a listener");
    let remote: SocketAddrV4 = "10.0.0.1:7".parse().expect("an address");
    thread::scope(|scope| {
        scope.spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut buffer = vec![0; CHUNK];
            while let Ok(len @ 1..) = stream.read(&mut buffer) {
                stream.write_all(&buffer[..len]).expect("the peer reads");
            }
        });
        let stream = client.connect(remote).expect("a connection");
        let (mut read, mut write) = stream.split();
        let writer = scope.spawn(move || {
            let (mut rng, mut hash) = (Rng::new(1), Sha256::new());
            let mut chunk = vec![0; CHUNK];
            for _ in 0..BYTES / CHUNK {
                for word in chunk.chunks_exact_mut(8) {
                    word.copy_from_slice(&rng.next().to_le_bytes());
                }
                write.write_all(&chunk).expect("the server reads");
                hash.update(&chunk);
            }
            // The stream stays open until everything is back.
            (write, hash.finalize())
        });
        let (mut hash, mut left) = (Sha256::new(), BYTES);
        let mut buffer = vec![0; CHUNK];
        while left > 0 {
            let len = read.read(&mut buffer).expect("the echo");
            assert!(len > 0, "{left} bytes are missing");
            hash.update(&buffer[..len]);
            left -= len;
        }
        let (write, written) = writer.join().expect("the writer");
        assert_eq!(hash.finalize(), written, "the echo has another SHA-256");
        drop((write, read));
    });
}

#[test]
fn stacks_over_cards_with_every_firmware_echo_the_same_bytes() {
    for firmware in [
        Firmware::Uniprocessor,
        Firmware::Partitioned,
        Firmware::Dynamic(2),
        Firmware::Copies(3),
    ] {
        let config = NicConfig::default().firmware(firmware);
        echo(&config, MemoryConfig::default());
    }
}

#[test]
fn stacks_over_cards_on_a_bad_wire_echo_the_same_bytes() {
    let config = NicConfig::default()
        .firmware(Firmware::Partitioned)
        .ring(64)
        .buffered(32);
    echo(
        &config,
        MemoryConfig::default().faults(Faults::new(7).loss(2_000).reorder(2_000, 3)),
    );
}

#[test]
fn stacks_over_cards_use_the_offloads_of_the_wire() {
    let config = NicConfig::default().firmware(Firmware::Partitioned);
    echo(&config, MemoryConfig::default().tso4_max_bytes(65_549));
}
