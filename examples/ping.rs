//! Sends echo requests to another host from our stack.
//!
//! ```text
//! cargo run --release --example ping        # asks another stack in memory, and itself
//! cargo run --release --example ping -- --tap tap0 --count 3 --size 4000 10.78.0.2
//! ```
//!
//! [README.md](README.md) has the commands for this interface and others; the package is
//! `dominoes-services`. It prints a line for each reply. It repeats a request that gets no reply
//! within a second, up to four times.
//!
//! With `--addr dhcp` the network gives our address and its servers of names, so hosts may be given
//! by name; `--addr6 auto` adds IPv6.

#[path = "common/program.rs"]
mod program;
// Written for servers; this example needs a part of it.
#[allow(dead_code)]
#[path = "common/stack.rs"]
mod stack;
#[path = "common/while_replicas_die.rs"]
mod while_replicas_die;

use std::io::ErrorKind;
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::{EchoSocket, Resolver, Stack};

use program::{Arguments, Outcome, VALUE};
use stack::StackOptions;
use while_replicas_die::while_replicas_die;

/// How long a reply may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// The most bytes of data in a request; with its header they fill an IPv4 packet.
const MAX_SIZE: usize = 65_507;
/// The most attempts for one request, since packets may be lost.
const ATTEMPTS: u32 = 5;

const ABOUT: &str = "\
ping [OPTIONS] HOST...: echo requests of our own stack; without a device, in memory.

";

const USAGE: &str = "  --count N           requests to each host [4]
  --size N            bytes that each carries [56]
";

struct Options {
    stack: StackOptions,
    count: u16,
    size: usize,
    hosts: Vec<String>,
}

impl Options {
    fn take(&mut self, option: &str, arguments: &mut Arguments) -> Outcome<bool> {
        match option {
            "count" => self.count = arguments.parse()?,
            "size" => self.size = arguments.number(0..=MAX_SIZE)?,
            VALUE => self.hosts.push(arguments.parse_with(host)?),
            _ => return self.stack.take(option, arguments),
        }
        Ok(true)
    }
}

/// A host: its address, or a name, whose last label is not a number (RFC 1123 section 2.1).
fn host(text: &str) -> Result<String, &'static str> {
    let last = text.trim_end_matches('.').rsplit('.').next();
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse::<IpAddr>().is_err() && last.is_none_or(is_number) {
        true => Err("neither an address nor a name"),
        false => Ok(text.to_owned()),
    }
}

fn main() -> ExitCode {
    let usage = [ABOUT, stack::device::USAGE, stack::USAGE, USAGE];
    let options = Options {
        stack: StackOptions::default(),
        count: 4,
        size: 56,
        hosts: Vec::new(),
    };
    program::main("ping", &usage, options, Options::take, run)
}

fn run(options: &Options) -> Outcome<()> {
    let threads = options.stack.threads();
    let killer = options.stack.killer(threads.copies())?;
    if let Some((device, name)) = options.stack.open()? {
        let stack = options
            .stack
            .start(|addr| stack::builder(addr, threads), device)?;
        let from = options.stack.addresses(&stack, None)?;
        println!("from {from}, device {name}");
        let resolver = Resolver::new(stack.sockets(), []);
        let mut hosts = Vec::new();
        for host in &options.hosts {
            hosts.extend(resolver.resolve(host)?);
        }
        return while_replicas_die(&stack, killer, || ask(&stack, &hosts, options));
    }
    let (near, far) = memory::pair(MemoryConfig::default());
    let both = |last: u8| {
        let addr = format!("10.78.0.{last}/24");
        stack::builder(&addr, threads).address(&format!("fd00:78::{last}/64"))
    };
    let _other = both(1).start(near)?;
    let stack = both(2).start(far)?;
    // The stacks need a moment to learn that no other host has their addresses.
    let other: [IpAddr; 2] = ["10.78.0.1".parse()?, "fd00:78::1".parse()?];
    while stack.sockets().interfaces()[0].addresses.len() < 3 {
        std::thread::sleep(Duration::from_millis(10));
    }
    let own = ["127.0.0.1".parse()?, "::1".parse()?];
    let hosts = [&other[..], &own].concat();
    while_replicas_die(&stack, killer, || ask(&stack, &hosts, options))
}

fn ask(stack: &Stack, hosts: &[IpAddr], options: &Options) -> Outcome<()> {
    let socket = stack.sockets().open_echo()?;
    for host in hosts {
        for sequence in 1..=options.count {
            one(&socket, *host, sequence, options.size)?;
        }
    }
    Ok(())
}

/// Sends a request until its reply arrives, and prints the result. It ignores replies to earlier
/// requests, which may arrive late, even from another host.
fn one(socket: &EchoSocket, host: IpAddr, sequence: u16, size: usize) -> Outcome<()> {
    let data: Vec<u8> = (0..size).map(|at| at as u8).collect();
    for _ in 0..ATTEMPTS {
        socket.send(host, sequence, &data)?;
        let deadline = Instant::now() + PATIENCE;
        while let Some(left) = left_until(deadline) {
            socket.set_read_timeout(Some(left))?;
            let reply = match socket.recv() {
                Ok(reply) if (reply.from, reply.sequence) == (host, sequence) => reply,
                Ok(_) => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            };
            if reply.data != data {
                return Err(format!("{host} answers something else").into());
            }
            let (ttl, time) = (reply.ttl, reply.round_trip);
            println!("{size} bytes from {host}: number {sequence}, TTL {ttl}, {time:.1?}");
            return Ok(());
        }
    }
    Err(format!("{host} does not answer").into())
}

/// Returns `None` if the deadline has passed.
fn left_until(deadline: Instant) -> Option<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    (!left.is_zero()).then_some(left)
}
