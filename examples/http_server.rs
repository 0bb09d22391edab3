//! Serves a folder over HTTP/1.1 with our own TCP, and takes files by `PUT`.
//!
//! Without a device it tests itself in memory, needs no privileges and ends after a few seconds
//! with a table:
//!
//! ```text
//! cargo run --release --example http_server
//! ```
//!
//! The package is `dominoes-services`; the command works from the workspace root.
//!
//! With a device it serves until Ctrl-C (SIGINT), SIGTERM, or for `--seconds N`. Then it accepts no
//! connection any more, sends FIN on every open one, resets after a second those that are left, and
//! exits with code 0. A second signal ends it at once. The kernel of this machine is the client.
//! Over a TAP, whose other end is the kernel:
//!
//! ```text
//! sudo ip tuntap add dev tap0 mode tap user $USER
//! sudo ip addr add 10.78.0.2/24 dev tap0
//! sudo ip link set tap0 up
//! cargo run --release --example http_server -- --tap tap0 --root /tmp --replicas 2
//! ```
//!
//! Over a network interface, here one end of a veth pair whose other end has a network namespace of
//! its own. Ours keeps no address, or the kernel would answer in our place:
//!
//! ```text
//! sudo ip netns add peer
//! sudo ip link add veth0 type veth peer name veth0 netns peer
//! sudo sysctl net.ipv6.conf.veth0.disable_ipv6=1
//! sudo ip link set veth0 up
//! sudo ip -n peer addr add 10.78.0.2/24 dev veth0
//! sudo ip -n peer link set veth0 up
//! cargo build --release --example http_server
//! sudo target/release/examples/http_server --interface veth0 --root /tmp --replicas 2
//! ```
//!
//! It prints `listening on 10.78.0.1:80, 2 replicas, device ...`. Then, in another terminal, and
//! with `sudo ip netns exec peer` before them in the second case:
//!
//! ```text
//! ping 10.78.0.1
//! curl -O http://10.78.0.1/some_file
//! curl -T some_file http://10.78.0.1/
//! ```
//!
//! With `--addr6 fd00:78::1/64` it serves over IPv6 as well, and with `--addr6 auto` at an address
//! that it makes of what a router advertises: `curl -O http://[fd00:78::1]/some_file`.
//!
//! With `--poller` one thread serves all connections, 10,000 and more, instead of a thread for each;
//! it answers GET and HEAD alone.
//!
//! GET, HEAD and PUT, connections that are kept, bodies with `Content-Length` or in chunks,
//! `Expect: 100-continue`. Paths that leave the folder are refused, be it by `..` or by a symbolic
//! link; whoever may change the folder while it is served is trusted. Not there: ranges,
//! conditions, dates, time-outs. The example `https_server` does the same over TLS.

#[path = "http_server/client.rs"]
mod client;
#[path = "http_server/files.rs"]
mod files;
#[path = "http_server/http.rs"]
mod http;
#[path = "common/ipv6.rs"]
mod ipv6;
#[path = "http_server/polled.rs"]
mod polled;
#[path = "http_server/self_test.rs"]
mod self_test;
#[path = "http_server/serve.rs"]
mod serve;
#[path = "common/signals.rs"]
mod signals;
#[path = "common/watch.rs"]
mod watch;

use std::error::Error;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use dominoes_drivers::af_packet::{AfPacket, AfPacketOptions};
use dominoes_drivers::tap::Tap;
use dominoes_netstack::{Builder, Limits, ReadHalf, Stack, StackError};
use dominoes_netstack::{TcpListener, TcpStream, WriteHalf};

use crate::ipv6::Addr6;
use crate::watch::{POLL_INTERVAL, watch};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// What peers have to acknowledge everything when the server ends.
const GRACE: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let done = Options::from_command_line().and_then(|options| match options {
        None => {
            print!("{USAGE}");
            Ok(())
        }
        Some(options) => run(&options),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("http_server: {error}");
            ExitCode::FAILURE
        }
    }
}

// Command line
// -------------------------------------------------------------------------------------------------------

const USAGE: &str = "\
Serves a folder over HTTP; without a device, tests itself in memory.

  --tap NAME          use this TAP interface
  --interface NAME    use this network interface, beside the kernel's own stack
  --addr CIDR         our address and its prefix [10.78.0.1/24]
  --addr6 CIDR        the same of IPv6, or auto: as routers advertise [no IPv6]
  --gateway IP        who forwards to other networks, once for each family [nobody]
  --port N            port to listen on [80]
  --replicas N        threads that run the stack, each with a copy of its state [2]
  --root DIR          folder to serve [.]
  --poller            serve all connections on one thread
  --seconds N         stop after this time [never]
";

enum Device {
    Memory,
    Tap(String),
    Interface(String),
}

struct Options {
    device: Device,
    addr: String,
    addr6: Addr6,
    gateways: Vec<IpAddr>,
    port: u16,
    replicas: usize,
    root: PathBuf,
    poller: bool,
    seconds: Option<u64>,
}

impl Options {
    /// `None`: help is asked for.
    fn from_command_line() -> Outcome<Option<Options>> {
        use lexopt::prelude::*;
        let mut options = Options {
            device: Device::Memory,
            addr: "10.78.0.1/24".to_owned(),
            addr6: Addr6::default(),
            gateways: Vec::new(),
            port: 80,
            replicas: 2,
            root: PathBuf::from("."),
            poller: false,
            seconds: None,
        };
        let mut parser = lexopt::Parser::from_env();
        while let Some(arg) = parser.next()? {
            match arg {
                Long("tap") => options.device = Device::Tap(parser.value()?.string()?),
                Long("interface") => options.device = Device::Interface(parser.value()?.string()?),
                Long("addr") => options.addr = parser.value()?.string()?,
                Long("addr6") => options.addr6 = Addr6::parse(parser.value()?.string()?),
                Long("gateway") => options.gateways.push(parser.value()?.parse()?),
                Long("port") => options.port = parser.value()?.parse()?,
                Long("replicas") => options.replicas = parser.value()?.parse()?,
                Long("root") => options.root = PathBuf::from(parser.value()?),
                Long("poller") => options.poller = true,
                Long("seconds") => options.seconds = Some(parser.value()?.parse()?),
                Long("help") | Short('h') => return Ok(None),
                other => return Err(other.unexpected().into()),
            }
        }
        Ok(Some(options))
    }
}

fn builder(addr: &str, replicas: usize, poller: bool) -> Builder {
    let mut limits = Limits::default();
    if !poller {
        // Connections that we close first stay for a minute, in TIME-WAIT.
        limits.connections = 2048;
    }
    Stack::builder(addr).replicas(replicas).limits(limits)
}

// Serving
// ------------------------------------------------------------------------------------------------------------

fn run(options: &Options) -> Outcome<()> {
    let builder = builder(&options.addr, options.replicas, options.poller);
    let mut builder = options.addr6.add_to(builder);
    for gateway in &options.gateways {
        builder = builder.gateway(*gateway);
    }
    let root = files::open_root(&options.root)?;
    let (stack, device) = match &options.device {
        Device::Memory => return self_test::run(options.replicas),
        Device::Tap(name) => (builder.start(Tap::open(name)?)?, format!("{name} (TAP)")),
        Device::Interface(name) => {
            // The driver then refuses to start if the kernel would answer in our place.
            let address = options.addr.split('/').next().unwrap_or_default().parse();
            let address = address.map_err(|_| StackError::Address(options.addr.clone()))?;
            let device = AfPacket::open(name, AfPacketOptions::default().address(address))?;
            (builder.start(device)?, format!("{name} (AF_PACKET)"))
        }
    };
    let end_requested = signals::end_requested()?;
    let listener = stack.listen(options.port, if options.poller { 1024 } else { 64 })?;
    let mut addresses = listener.local_addr()?.to_string();
    for address in options.addr6.wait(&stack)? {
        addresses += &format!(" and [{address}]:{}", options.port);
    }
    println!(
        "listening on {addresses}, {} replica{}, device {device}",
        options.replicas,
        if options.replicas == 1 { "" } else { "s" },
    );
    let poller = options.poller;
    let server = thread::spawn(move || {
        if poller {
            polled::serve(&listener, &root)
        } else {
            accept(&listener, &root);
            Ok(())
        }
    });
    let end = options
        .seconds
        .map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let watched = watch("http_server", &stack, &end_requested, end, |_| {
        POLL_INTERVAL
    });
    // Ends the listener, sends FIN on every connection, and after the grace resets those that are
    // left.
    if let Err(error) = stack.close(GRACE) {
        eprintln!("http_server: {error}");
    }
    server
        .join()
        .map_err(|_| "the server panicked, see above")??;
    watched
}

/// Serves until the stack goes down.
fn accept(listener: &TcpListener, root: &Path) {
    let next = || Some(listener.accept().ok()?.0);
    let begin = |stream: TcpStream| Ok(stream.split());
    serve::accept::<_, ReadHalf, _>("http_server", next, begin, root);
}

impl serve::Writer for WriteHalf {
    fn shutdown(&mut self) {
        WriteHalf::shutdown(self);
    }
}
