//! Datagrams there and back: a UDP echo server on several replicas, and a client that counts what comes back.
//!
//! ```text
//! cargo run --release --example udp_echo            # two stacks, joined in memory; no privileges
//! cargo run --release --example udp_echo -- tap0    # serves on a TAP interface, as 10.78.0.1/24
//! ```
//!
//! In memory it prints one line for each size of datagrams, those above 1472 octets in fragments, and how long they
//! took. On a TAP interface, `sudo ip addr add 10.78.0.2/24 dev tap0` and `socat - UDP4:10.78.0.1:7` talk to it.

use std::error::Error;
use std::net::SocketAddrV4;
use std::thread;
use std::time::{Duration, Instant};

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_drivers::tap::Tap;
use dominoes_netstack::{Stack, UdpSocket};

const ECHO: u16 = 7;
const REPLICAS: usize = 2;
/// Datagrams of each size.
const COUNT: u32 = 2_000;
/// Of them under way at a time, so that no queue overflows.
const WINDOW: u32 = 3;

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(name) = std::env::args().nth(1) {
        let stack = Stack::builder("10.78.0.1/24")
            .replicas(REPLICAS)
            .start(Tap::open(&name)?)?;
        println!("echo on 10.78.0.1, UDP port {ECHO}, {REPLICAS} replicas");
        serve(stack.bind_udp(ECHO)?);
        return Ok(());
    }
    let (near, far) = memory::pair(MemoryConfig::default());
    let server = Stack::builder("10.78.0.1/24")
        .replicas(REPLICAS)
        .start(near)?;
    let client = Stack::builder("10.78.0.2/24").start(far)?;
    let socket = server.bind_udp(ECHO)?;
    let echo = thread::spawn(move || serve(socket));
    for len in [16, 1472, 8_000, 65_507] {
        let took = ask(&client, len)?;
        println!("{COUNT} datagrams of {len} octets came back in {took:.1?}");
    }
    server.compare()?;
    server.shutdown();
    echo.join().map_err(|_| "the server panicked")?;
    Ok(())
}

/// Sends back what comes, until the stack goes down.
fn serve(mut socket: UdpSocket) {
    let mut octets = vec![0; 65_507];
    while let Ok((len, from)) = socket.recv_from(&mut octets) {
        if socket.send_to(&octets[..len], from).is_err() {
            return;
        }
    }
}

/// Sends [`COUNT`] datagrams of `len` octets, and looks at every answer.
fn ask(client: &Stack, len: usize) -> Result<Duration, Box<dyn Error>> {
    let mut socket = client.bind_udp(0)?;
    socket.connect(SocketAddrV4::new([10, 78, 0, 1].into(), ECHO))?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut octets = vec![0x5a; len];
    let mut answer = vec![0; len];
    let begin = Instant::now();
    let (mut sent, mut heard) = (0, 0);
    while heard < COUNT {
        while sent < COUNT && sent - heard < WINDOW {
            octets[..4].copy_from_slice(&sent.to_be_bytes());
            socket.send(&octets)?;
            sent += 1;
        }
        let got = socket.recv(&mut answer)?;
        octets[..4].copy_from_slice(&heard.to_be_bytes());
        if answer[..got] != octets {
            return Err(format!("datagram {heard} came back as another").into());
        }
        heard += 1;
    }
    Ok(begin.elapsed())
}
