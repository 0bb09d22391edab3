//! A router for IPv4: the longest matching prefix decides at which interface a packet leaves.
//!
//! Without an interface it tests itself in memory, needs no privileges and ends after a few
//! seconds: two stacks send bytes through two interfaces of a router, without and with
//! programmable cards.
//!
//! ```text
//! cargo run --release --example router
//! ```
//!
//! The package is `dominoes-examples`; the command works from the workspace root.
//!
//! With interfaces it routes between them until Ctrl-C (SIGINT), SIGTERM, or for `--seconds N`,
//! and prints its counters. This makes two hosts in separate network namespaces, and between them
//! a router on the ends of two veth pairs, where the kernel has no address:
//!
//! ```text
//! for i in 1 2; do
//!   sudo ip netns add host$i
//!   sudo ip link add veth$i type veth peer name eth0 netns host$i
//!   sudo sysctl net.ipv6.conf.veth$i.disable_ipv6=1
//!   sudo ip link set veth$i up
//!   sudo ip -n host$i addr add 10.78.$i.1/24 dev eth0
//!   sudo ip -n host$i link set eth0 up
//!   sudo ip -n host$i route add default via 10.78.$i.254
//! done
//! cargo build --release --example router
//! sudo target/release/examples/router packet:veth1=10.78.1.254/24 packet:veth2=10.78.2.254/24
//! ```
//!
//! It prints `listening on 10.78.1.254/24, 10.78.2.254/24`. Then, in another terminal,
//! `sudo ip netns exec host1 traceroute -n 10.78.2.1` shows one router on the way.

#[path = "common/program.rs"]
mod program;
#[path = "common/signals.rs"]
mod signals;

use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use dominoes_drivers::Device;
use dominoes_drivers::af_packet::{AfPacket, AfPacketOptions};
use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_drivers::nic::{Firmware, Nic, NicConfig};
use dominoes_drivers::tap::Tap;
use dominoes_netstack::Route;
use dominoes_netstack::Stack;
use dominoes_netstack::router::{Router, RouterStats};

use program::{Arguments, Outcome, VALUE};

/// Bytes that the test in memory sends.
const BYTES: usize = 64 << 20;
/// Time between two checks of the router.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

const USAGE: &str = "\
Routes IPv4 packets between interfaces; without one, tests itself in memory.

  tap:NAME=CIDR         route at this TAP interface, with this address and prefix
  packet:NAME=CIDR      route at this network interface
  --route CIDR=IP       packets for this network go to this neighbour
  --nic FIRMWARE        put a programmable card in front of every interface, whose firmware is
                        uniprocessor, partitioned, dynamic or copies
  --no-offloads         let interfaces neither merge frames nor leave checksums out
  --validate-source     drop packets whose source is behind another interface
  --seconds N           stop after this time [never]
";

#[derive(Default)]
struct Options {
    /// Kind, name, and address with prefix.
    interfaces: Vec<(String, String, String)>,
    routes: Vec<Route>,
    firmware: Option<Firmware>,
    no_offloads: bool,
    validate_source: bool,
    seconds: Option<u64>,
}

impl Options {
    fn take(&mut self, option: &str, arguments: &mut Arguments) -> Outcome<bool> {
        match option {
            VALUE => self.interfaces.push(arguments.parse_with(interface)?),
            "route" => self.routes.push(arguments.parse_with(route)?),
            "nic" => self.firmware = Some(arguments.parse_with(firmware)?),
            "no-offloads" => self.no_offloads = true,
            "validate-source" => self.validate_source = true,
            "seconds" => self.seconds = Some(arguments.parse()?),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn interface(text: &str) -> Result<(String, String, String), &'static str> {
    let parsed = text.split_once('=').and_then(|(device, address)| {
        let (kind, name) = device.split_once(':')?;
        let is_known = kind == "tap" || kind == "packet";
        is_known.then(|| (kind.to_owned(), name.to_owned(), address.to_owned()))
    });
    parsed.ok_or("no interface; write it like tap:tap0=10.0.1.254/24, or with packet:")
}

fn route(text: &str) -> Result<Route, &'static str> {
    let parsed = text.split_once('=').and_then(|(network, via)| {
        let (network, prefix) = network.split_once('/')?;
        Some(Route {
            network: network.parse().ok()?,
            prefix: prefix.parse().ok()?,
            via: via.parse().ok()?,
            metric: 0,
        })
    });
    parsed.ok_or("no route; write it like 192.0.2.0/24=10.0.1.1")
}

fn firmware(text: &str) -> Result<Firmware, &'static str> {
    match text {
        "uniprocessor" => Ok(Firmware::Uniprocessor),
        "partitioned" => Ok(Firmware::Partitioned),
        "dynamic" => Ok(Firmware::Dynamic(2)),
        "copies" => Ok(Firmware::Copies(2)),
        _ => Err("no such firmware"),
    }
}

fn main() -> ExitCode {
    program::main("router", &[USAGE], Options::default(), Options::take, run)
}

/// Returns a device, with a programmable card in front of it if the user asks for one.
fn behind_card(
    device: impl Device + 'static,
    firmware: Option<Firmware>,
) -> Outcome<Box<dyn Device>> {
    Ok(match firmware {
        None => Box::new(device),
        Some(firmware) => Box::new(Nic::start(
            &NicConfig::default().firmware(firmware),
            device,
        )?),
    })
}

fn run(options: &Options) -> Outcome<()> {
    if options.interfaces.is_empty() {
        return self_test();
    }
    let mut builder = Router::builder().validate_source(options.validate_source);
    let offloads = !options.no_offloads;
    for (kind, name, address) in &options.interfaces {
        let device: Box<dyn Device> = match kind.as_str() {
            "tap" => Box::new(Tap::options().offloads(offloads).open(name)?),
            _ => {
                let host = address.split('/').next().unwrap_or_default();
                let host: Ipv4Addr = host
                    .parse()
                    .map_err(|_| format!("`{host}` is no address"))?;
                let open = AfPacketOptions::default().address(host).offloads(offloads);
                Box::new(AfPacket::open(name, open)?)
            }
        };
        builder = builder.interface(address, behind_card(device, options.firmware)?);
    }
    for route in &options.routes {
        builder = builder.route(*route);
    }
    let end_requested = signals::end_requested()?;
    let router = builder.build()?.start()?;
    let addresses: Vec<_> = options
        .interfaces
        .iter()
        .map(|(.., address)| &**address)
        .collect();
    println!("listening on {}", addresses.join(", "));
    let end = options
        .seconds
        .and_then(|seconds| Instant::now().checked_add(Duration::from_secs(seconds)));
    while !end_requested.load(Relaxed) && end.is_none_or(|end| Instant::now() < end) {
        match router.take_device_error() {
            Some(error) if error.is_temporary() => eprintln!("router: {error}"),
            Some(error) => return Err(error.into()),
            None => {}
        }
        thread::sleep(POLL_INTERVAL);
    }
    print_stats(&router.stats());
    Ok(())
}

fn print_stats(stats: &RouterStats) {
    for (name, count) in stats.named().filter(|(_, count)| *count > 0) {
        println!("{name:16} {count}");
    }
}

// In memory
// -----------------------------------------------------------------------------------------------------------

fn self_test() -> Outcome<()> {
    for (firmware, name) in [
        (None, "without cards"),
        (Some(Firmware::Uniprocessor), "cards with one processor"),
        (Some(Firmware::Partitioned), "cards with two processors"),
    ] {
        let (took, stats) = pass_bytes(firmware)?;
        let rate = BYTES as f64 * 8e-9 / took.as_secs_f64();
        println!(
            "{name:26} {} MB in {took:.1?}, {rate:.2} Gbit/s, {} packets forwarded",
            BYTES >> 20,
            stats.forwarded
        );
    }
    Ok(())
}

/// Sends bytes from one stack through a router to another, and returns the time that they took.
fn pass_bytes(firmware: Option<Firmware>) -> Outcome<(Duration, RouterStats)> {
    let (near, near_end) = memory::pair(MemoryConfig::default());
    let (far, far_end) = memory::pair(MemoryConfig::default());
    let router = Router::builder()
        .interface("10.78.1.254/24", behind_card(near_end, firmware)?)
        .interface("10.78.2.254/24", behind_card(far_end, firmware)?)
        .build()?
        .start()?;
    let client = Stack::builder("10.78.1.1/24")
        .gateway([10, 78, 1, 254].into())
        .start(near)?;
    let server = Stack::builder("10.78.2.1/24")
        .gateway([10, 78, 2, 254].into())
        .start(far)?;
    let listener = server.listen(9, 1)?;
    let start = Instant::now();
    let reader = thread::spawn(move || -> Result<usize, std::io::Error> {
        let (mut stream, _) = listener.accept()?;
        let (mut got, mut buffer) = (0, vec![0; 256 << 10]);
        loop {
            match stream.read(&mut buffer)? {
                0 => return Ok(got),
                len if buffer[..len].iter().all(|byte| *byte == 0x5a) => got += len,
                _ => return Err(std::io::ErrorKind::InvalidData.into()),
            }
        }
    });
    let mut stream = client.connect("10.78.2.1:9")?;
    let chunk = vec![0x5a; 256 << 10];
    for _ in 0..BYTES / chunk.len() {
        stream.write_all(&chunk)?;
    }
    drop(stream);
    let got = reader.join().map_err(|_| "the reader panicked")??;
    if got != BYTES {
        return Err(format!("{got} of {BYTES} bytes arrived").into());
    }
    Ok((start.elapsed(), router.stats()))
}
