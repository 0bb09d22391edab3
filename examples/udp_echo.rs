//! Datagrams there and back: a UDP echo server on several replicas, and a client that counts what
//! comes back.
//!
//! ```text
//! cargo run --release --example udp_echo            # two stacks, joined in memory; no privileges
//! ```
//!
//! It prints one line for each size of datagrams, those above 1472 bytes in fragments, and how long
//! they took, and ends after about a second. The package is `dominoes-examples`; the command works
//! from the workspace root.
//!
//! With the name of a TAP interface it serves there, as 10.78.0.1/24; the kernel at the other end
//! is the client:
//!
//! ```text
//! sudo ip tuntap add dev tap0 mode tap user $USER
//! sudo ip addr add 10.78.0.2/24 dev tap0
//! sudo ip link set tap0 up
//! cargo run --release --example udp_echo -- tap0
//! ```
//!
//! It prints `listening on 10.78.0.1, UDP port 7, 2 replicas, device tap0`. In another terminal,
//! `socat - UDP4:10.78.0.1:7` sends each line that is typed and prints the echo. Ctrl-C (SIGINT) or
//! SIGTERM ends it with code 0; a second signal ends it at once.

#[path = "common/signals.rs"]
mod signals;

use std::error::Error;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
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
/// What datagrams have to leave when the server ends.
const GRACE: Duration = Duration::from_secs(1);
/// How often the server looks whether a signal came.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(name) = std::env::args().nth(1) {
        let stack = Stack::builder("10.78.0.1/24")
            .replicas(REPLICAS)
            .start(Tap::open(&name)?)?;
        let end_requested = signals::end_requested()?;
        let socket = stack.bind_udp(ECHO)?;
        println!("listening on 10.78.0.1, UDP port {ECHO}, {REPLICAS} replicas, device {name}");
        let echo = thread::spawn(move || serve(socket));
        while !end_requested.load(Relaxed) && !echo.is_finished() {
            thread::sleep(POLL_INTERVAL);
        }
        stack.close(GRACE)?;
        return echo.join().map_err(|_| "the server panicked".into());
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
        println!("{COUNT} datagrams of {len} bytes came back in {took:.1?}");
    }
    server.compare()?;
    server.shutdown();
    echo.join().map_err(|_| "the server panicked")?;
    Ok(())
}

/// Sends back what comes, until the stack goes down.
fn serve(socket: UdpSocket) {
    let mut bytes = vec![0; 65_507];
    while let Ok((len, from)) = socket.recv_from(&mut bytes) {
        // A sender that no route leads to does not end the service.
        let _ = socket.send_to(&bytes[..len], from);
    }
}

/// Sends [`COUNT`] datagrams of `len` bytes, and looks at every answer.
fn ask(client: &Stack, len: usize) -> Result<Duration, Box<dyn Error>> {
    let socket = client.bind_udp(0)?;
    socket.connect(SocketAddr::new([10, 78, 0, 1].into(), ECHO))?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut bytes = vec![0x5a; len];
    let mut answer = vec![0; len];
    let begin = Instant::now();
    let (mut sent, mut heard) = (0, 0);
    while heard < COUNT {
        while sent < COUNT && sent - heard < WINDOW {
            bytes[..4].copy_from_slice(&sent.to_be_bytes());
            socket.send(&bytes)?;
            sent += 1;
        }
        let got = socket.recv(&mut answer)?;
        bytes[..4].copy_from_slice(&heard.to_be_bytes());
        if answer[..got] != bytes {
            return Err(format!("datagram {heard} came back as another").into());
        }
        heard += 1;
    }
    Ok(begin.elapsed())
}
