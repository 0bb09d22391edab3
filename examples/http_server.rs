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
//! conditions, dates, time-outs, TLS.

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
#[path = "common/signals.rs"]
mod signals;

use std::error::Error;
use std::fs;
use std::io::{self, BufRead, BufWriter, Read, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use dominoes_drivers::af_packet::{AfPacket, AfPacketOptions};
use dominoes_drivers::tap::Tap;
use dominoes_netstack::{Builder, Limits, Stack, StackError, TcpListener, TcpStream};

use crate::files::Put;
use crate::http::{Answer, Body, Request, Status};
use crate::ipv6::Addr6;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Connections served at a time, a thread each; more are told to come back.
const CONNECTIONS: usize = 64;
/// Bytes moved at once between a file and a connection.
const CHUNK: usize = 256 << 10;
/// Bytes that are read and thrown away after a final answer, so that the client gets to see it.
const LINGER: u64 = 16 << 20;
/// What peers have to acknowledge everything when the server ends.
const GRACE: Duration = Duration::from_secs(1);
/// How often the stack is looked after.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

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
    let root = open_root(&options.root)?;
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
    let watched = watch(&stack, &end_requested, end);
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

/// Looks after a stack until a signal asks for the end, the time is over, its device is gone, or
/// its replicas disagree.
fn watch(stack: &Stack, end_requested: &AtomicBool, end: Option<Instant>) -> Outcome<()> {
    while !end_requested.load(Relaxed) && end.is_none_or(|end| Instant::now() < end) {
        match stack.take_device_error() {
            Some(error) if error.is_temporary() => eprintln!("http_server: {error}"),
            Some(error) => return Err(error.into()),
            None => {}
        }
        stack.compare()?;
        if stack.shares().iter().any(|share| share.diverged > 0) {
            return Err("replicas differ in the work they found to do".into());
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// The folder by its real name, which all that is served lies under.
fn open_root(root: &Path) -> Outcome<PathBuf> {
    match fs::canonicalize(root) {
        Ok(root) if root.is_dir() => Ok(root),
        Ok(_) => Err(format!("{} is no folder", root.display()).into()),
        Err(error) => Err(format!("{}: {error}", root.display()).into()),
    }
}

/// Accepts connections until the stack goes down, and serves each on a thread of its own.
fn accept(listener: &TcpListener, root: &Path) {
    let root: Arc<Path> = Arc::from(root);
    let busy = Arc::new(AtomicUsize::new(0));
    while let Ok((stream, _)) = listener.accept() {
        let (root, busy) = (Arc::clone(&root), Arc::clone(&busy));
        // Only this thread adds, so the bound holds.
        let full = busy.fetch_add(1, Relaxed) >= CONNECTIONS;
        let slot = Slot(busy);
        let spawned = thread::Builder::new()
            .name("connection".to_owned())
            .spawn(move || {
                // A connection that breaks is the client's business, and it knows.
                let _ = if full {
                    turn_away(stream)
                } else {
                    serve(stream, &root)
                };
                drop(slot);
            });
        if let Err(error) = spawned {
            eprintln!("http_server: no thread for a connection: {error}");
        }
    }
}

/// A connection's place among [`CONNECTIONS`].
struct Slot(Arc<AtomicUsize>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Answers one request after the other.
fn serve(stream: TcpStream, root: &Path) -> io::Result<()> {
    let (mut reader, writer) = stream.split();
    let mut writer = BufWriter::with_capacity(CHUNK, writer);
    loop {
        let request = match Request::read(&mut reader) {
            Ok(Some(request)) => request,
            Ok(None) => break,
            Err(status) => {
                Answer::from(status).send(&mut writer, false, false)?;
                break;
            }
        };
        let mut body = Body::new(&mut reader, request.framing);
        let answer = answer(&request, &mut body, &mut writer, root).unwrap_or_else(Answer::from);
        let keep = request.keep && body.is_read();
        answer.send(&mut writer, request.method == "HEAD", keep)?;
        if !keep {
            break;
        }
    }
    // Bytes that nobody reads would make a reset of our closing, and the answer might be lost with
    // it.
    writer.get_mut().shutdown();
    io::copy(&mut reader.take(LINGER), &mut io::sink())?;
    Ok(())
}

fn turn_away(stream: TcpStream) -> io::Result<()> {
    let (_, mut writer) = stream.split();
    Answer::from(Status::UNAVAILABLE).send(&mut writer, false, false)
}

fn answer(
    request: &Request,
    body: &mut Body<'_, impl BufRead>,
    writer: &mut impl Write,
    root: &Path,
) -> Result<Answer, Status> {
    match &*request.method {
        // Should there be a body, it means nothing (RFC 9110 section 9.3.1).
        "GET" | "HEAD" => files::get(root, &request.path),
        "PUT" => {
            let (folder, name) = files::place(root, &request.path)?;
            let put = Put::begin(&folder, &name)?;
            if request.expects_continue && !body.is_read() {
                writer.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
                writer.flush()?;
            }
            put.finish(body)
        }
        _ => Err(Status::METHOD),
    }
}
