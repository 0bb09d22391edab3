//! Echo requests to another host, by a stack of ours.
//!
//! Without a device it asks another stack in memory, and itself, over both families:
//!
//! ```text
//! cargo run --release --example ping
//! ```
//!
//! It prints a line for each reply, and ends within seconds. The package is `dominoes-services`;
//! the command works from the workspace root.
//!
//! With a device it asks the hosts that are named, here the kernel's end of a TAP:
//!
//! ```text
//! sudo ip tuntap add dev tap0 mode tap user $USER
//! sudo ip addr add 10.78.0.2/24 dev tap0
//! sudo ip link set tap0 up
//! cargo run --release --example ping -- --tap tap0 --count 3 --size 4000 10.78.0.2
//! ```
//!
//! `--packet NAME` and `--xdp NAME` use a network interface instead. A request without a reply
//! within a second is sent again, four times.

#[path = "common/program.rs"]
mod program;
// Made for servers; this needs a part of it.
#[allow(dead_code)]
#[path = "common/stack.rs"]
mod stack;

use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::{EchoSocket, Stack};

use program::Outcome;
use stack::StackOptions;

/// How long a reply may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often a request is sent, at most: it may be lost.
const ATTEMPTS: u32 = 5;

const ABOUT: &str = "\
ping [OPTIONS] ADDRESS...: echo requests of our own stack; without a device, in memory.

";

const USAGE: &str = "  --count N           requests to each host [4]
  --size N            bytes that each carries [56]
";

struct Options {
    stack: StackOptions,
    count: u16,
    size: usize,
    hosts: Vec<IpAddr>,
}

fn main() -> ExitCode {
    let usage = [ABOUT, stack::device::USAGE, stack::USAGE, USAGE];
    program::main("ping", &usage, from_command_line(), run)
}

/// `None`: help is asked for.
fn from_command_line() -> Outcome<Option<Options>> {
    use lexopt::prelude::*;
    let (mut count, mut size, mut hosts) = (4, 56, Vec::new());
    let stack = StackOptions::from_command_line(|arg, parser| {
        match arg {
            Long("count") => count = parser.value()?.parse()?,
            Long("size") => size = parser.value()?.parse()?,
            Value(host) => hosts.push(host.parse()?),
            other => return Err(other.unexpected().into()),
        }
        Ok(())
    })?;
    Ok(stack.map(|stack| Options {
        stack,
        count,
        size,
        hosts,
    }))
}

fn run(options: &Options) -> Outcome<()> {
    let replicas = options.stack.replicas(2);
    if let Some((device, name)) = options.stack.open()? {
        let stack = options
            .stack
            .start(|addr| stack::builder(addr, replicas), device)?;
        let from = options.stack.addresses(&stack, None)?;
        println!("from {from}, device {name}");
        return ask(&stack, &options.hosts, options);
    }
    let (near, far) = memory::pair(MemoryConfig::default());
    let both = |last: u8| {
        let addr = format!("10.78.0.{last}/24");
        stack::builder(&addr, replicas).address(&format!("fd00:78::{last}/64"))
    };
    let _other = both(1).start(near)?;
    let stack = both(2).start(far)?;
    // They take a moment to learn that no other host has their addresses.
    let other: [IpAddr; 2] = ["10.78.0.1".parse()?, "fd00:78::1".parse()?];
    while stack.sockets().interfaces()[0].addresses.len() < 3 {
        std::thread::sleep(Duration::from_millis(10));
    }
    let own = ["127.0.0.1".parse()?, "::1".parse()?];
    ask(&stack, &[&other[..], &own].concat(), options)
}

fn ask(stack: &Stack, hosts: &[IpAddr], options: &Options) -> Outcome<()> {
    let socket = stack.sockets().open_echo()?;
    socket.set_read_timeout(Some(PATIENCE))?;
    for host in hosts {
        for sequence in 1..=options.count {
            one(&socket, *host, sequence, options.size)?;
        }
    }
    Ok(())
}

/// Sends a request until its reply comes, and says how that went.
fn one(socket: &EchoSocket, host: IpAddr, sequence: u16, size: usize) -> Outcome<()> {
    let data: Vec<u8> = (0..size).map(|at| at as u8).collect();
    for _ in 0..ATTEMPTS {
        socket.send(host, sequence, &data)?;
        match socket.recv() {
            Ok(reply) if reply.data == data && reply.from == host => {
                let (ttl, time) = (reply.ttl, reply.round_trip);
                println!("{size} bytes from {host}: number {sequence}, TTL {ttl}, {time:.1?}");
                return Ok(());
            }
            Ok(_) => return Err(format!("{host} answers something else").into()),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(format!("{host} does not answer").into())
}
