//! A UDP echo server on several replicas (copies of the stack's state, one per thread), and a
//! client that counts the echoes.
//!
//! ```text
//! cargo run --release --example udp_echo                    # two stacks, joined in memory
//! cargo run --release --example udp_echo -- --tap tap0      # serves only
//! ```
//!
//! In memory it prints one line for each size of datagrams, with the time that they took; datagrams
//! above 1472 bytes are sent in fragments. It ends after about a second.
//!
//! [README.md](README.md) has the commands for the interface, and explains Ctrl-C; the package is
//! `dominoes-services`. In another terminal, `socat - UDP4:10.78.0.1:7` sends each line that you
//! type and prints the echo.

#[path = "common/program.rs"]
mod program;
// Written for servers of any kind; this example needs a part of it.
#[allow(dead_code)]
#[path = "common/stack.rs"]
mod stack;
#[path = "common/watch.rs"]
mod watch;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::{Stack, UdpSocket};

use program::{Arguments, Outcome};
use stack::StackOptions;
use watch::watch;

const ECHO: u16 = 7;
/// Datagrams of each size.
const COUNT: u32 = 2_000;
/// The most datagrams under way at a time, so that no queue overflows.
const WINDOW: u32 = 3;

const ABOUT: &str = "\
Sends datagrams back, on port 7; without a device, tests itself in memory.

";

const USAGE: &str = "  --seconds N         stop after this time [never]
";

#[derive(Default)]
struct Options {
    stack: StackOptions,
    seconds: Option<u64>,
}

impl Options {
    fn take(&mut self, option: &str, arguments: &mut Arguments) -> Outcome<bool> {
        match option {
            "seconds" => self.seconds = Some(arguments.parse()?),
            _ => return self.stack.take(option, arguments),
        }
        Ok(true)
    }
}

fn main() -> ExitCode {
    let usage = [ABOUT, stack::device::USAGE, stack::USAGE, USAGE];
    program::main("udp_echo", &usage, Options::default(), Options::take, run)
}

fn run(options: &Options) -> Outcome<()> {
    let threads = options.stack.threads();
    let killer = options.stack.killer(threads.copies())?;
    let builder = |addr: &str| stack::builder(addr, threads);
    if let Some((device, name)) = options.stack.open()? {
        let stack = options.stack.start(builder, device)?;
        let end_requested = watch::signals::end_requested()?;
        let socket = stack.bind_udp(ECHO)?;
        println!(
            "listening on {}, {}, device {name}",
            options.stack.addresses(&stack, Some(ECHO))?,
            threads.name("replica"),
        );
        let echo = thread::spawn(move || serve(socket));
        let seconds = options.seconds;
        let watched = watch("udp_echo", stack, &end_requested, seconds, killer, None);
        echo.join().map_err(|_| "the server panicked, see above")?;
        return watched;
    }
    let (near, far) = memory::pair(MemoryConfig::default());
    let server = builder("10.78.0.1/24").start(near)?;
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

/// Sends datagrams back until the stack goes down.
fn serve(socket: UdpSocket) {
    let mut bytes = vec![0; 65_507];
    while let Ok((len, from)) = socket.recv_from(&mut bytes) {
        // The service continues if no route leads to a sender.
        let _ = socket.send_to(&bytes[..len], from);
    }
}

/// Sends [`COUNT`] datagrams of `len` bytes, and checks every echo.
fn ask(client: &Stack, len: usize) -> Outcome<Duration> {
    let socket = client.bind_udp(0)?;
    socket.connect(SocketAddr::new([10, 78, 0, 1].into(), ECHO))?;
    socket.set_read_timeout(Some(Duration::from_secs(60)))?;
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
