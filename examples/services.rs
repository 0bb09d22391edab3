//! Common network services on our TCP and UDP, over any device: echo, discard, HTTP, and iperf3.
//!
//! ```text
//! cargo run --release --example services                    # tests itself in memory
//! sudo target/release/examples/services --packet veth0
//! ```
//!
//! [README.md](README.md) has the commands for this interface, for others and for IPv6, and
//! explains Ctrl-C. The package is `dominoes-services`. `--grace N`: how many seconds connections
//! have at the end.
//!
//! `--variant locked`, `single` or `replicated` chooses how the stack runs; `--replicas 4` and
//! `--groups 2` choose its threads. A replica is a copy of the connection state, run by one thread;
//! a group is a set of replicas that serves a part of the connections. With `--second
//! veth1,10.79.0.1/24` it also serves the network of another interface. With `--join 239.1.2.3` it
//! also echoes datagrams to this group.
//!
//! It prints `listening on 10.78.0.1, 1 to 2 replicas, device ...`. Then run these in another
//! terminal, each after `sudo ip netns exec peer`:
//!
//! ```text
//! iperf3 -c 10.78.0.1            # the kernel sends; with -R it receives, with --bidir both
//! curl -o got http://10.78.0.1/bytes/1000000000
//! curl -T got http://10.78.0.1/sum
//! sha256sum got
//! ```
//!
//! | port | service |
//! |---|---|
//! | 7 | echo (RFC 862), over TCP and UDP |
//! | 9 | discard (RFC 863), over TCP and UDP |
//! | 15 | the counters of the stack, as lines of name and value (once the port of `netstat`) |
//! | 80 | HTTP: `GET /bytes/N` answers N bytes, `POST` or `PUT` to `/sum` the SHA-256 of the body |
//! | 5201 | iperf3 for TCP, one test at a time, any number of streams |

// Written for files; this example needs a part of it.
#[allow(dead_code)]
#[path = "http_server/http.rs"]
mod http;
#[path = "services/iperf.rs"]
mod iperf;
#[path = "common/net.rs"]
mod net;
#[path = "common/polled.rs"]
mod polled;
#[path = "services/process.rs"]
mod process;
#[path = "common/program.rs"]
mod program;
#[path = "services/self_test.rs"]
mod self_test;
#[path = "common/stack.rs"]
mod stack;
#[path = "common/watch.rs"]
mod watch;
#[path = "services/web.rs"]
mod web;
#[path = "common/work.rs"]
mod work;

use std::io::{self, BufRead, Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use dominoes_netstack::poller::{Interest, Token, Trigger};
use dominoes_netstack::stats::StackStats;
use dominoes_netstack::{
    Builder, SocketError, Sockets, Stack, TcpListener, TcpStream, UdpSocket, VariantKind,
};

use net::{Connection, Listener};
use polled::Server;
use process::Process;
use program::{Arguments, Outcome};
use stack::StackOptions;
use watch::watch;
use web::Web;

/// The most connections that wait for a service to accept them.
const BACKLOG: u16 = 1024;
/// The largest value of `--grace`, in seconds.
const MAX_GRACE: u64 = 3600;
/// The most bytes of a datagram.
const DATAGRAM: usize = 65_507;

const ECHO: u16 = 7;
const DISCARD: u16 = 9;
const NETSTAT: u16 = 15;
const HTTP: u16 = 80;
const IPERF: u16 = 5201;

/// What the front thread waits for: these, other listeners, and connections.
const WEB: Token = Token(0);
const ECHOES: Token = Token(1);
const DISCARDS: Token = Token(2);
const OTHERS: usize = 3;
const FIRST: usize = 100;

fn main() -> ExitCode {
    let usage = [ABOUT, stack::device::USAGE, stack::USAGE, USAGE];
    program::main("services", &usage, Options::default(), Options::take, run)
}

// Command line
// -------------------------------------------------------------------------------------------------------

const ABOUT: &str = "\
Echo, discard, HTTP and iperf3 on our own TCP and UDP; without a device, tests itself in memory.

";

const USAGE: &str = "  --variant NAME      single, locked, locked-mcs or replicated [by the number of threads]; single
                      has one thread unless told otherwise
  --join GROUP        echo what is sent to this multicast group, too; as often as wanted
  --process NAME      what workers do with the bytes of iperf3's streams: search, blocks or aes [nothing]
  --linux             serve HTTP and iperf3 over Linux' sockets, for comparison
  --seconds N         stop after this time [never]
  --grace N           seconds that peers have to acknowledge everything when it ends [1]
";

#[derive(Default)]
struct Options {
    stack: StackOptions,
    variant: Option<VariantKind>,
    groups: Vec<IpAddr>,
    process: Option<Process>,
    linux: bool,
    seconds: Option<u64>,
    grace: Option<Duration>,
}

impl Options {
    fn take(&mut self, option: &str, arguments: &mut Arguments) -> Outcome<bool> {
        match option {
            "variant" => self.variant = Some(arguments.parse()?),
            "join" => self.groups.push(arguments.parse()?),
            "process" => self.process = Some(arguments.parse()?),
            "linux" => self.linux = true,
            "seconds" => self.seconds = Some(arguments.parse()?),
            "grace" => self.grace = Some(Duration::from_secs(arguments.number(0..=MAX_GRACE)?)),
            _ => return self.stack.take(option, arguments),
        }
        Ok(true)
    }

    fn threads(&self) -> Threads {
        let threads = self.stack.threads();
        Threads {
            variant: self.variant,
            threads: match self.variant {
                None | Some(VariantKind::Replicated) => threads,
                Some(VariantKind::Single) => threads.or_fixed(1),
                Some(_) => threads.or_fixed(2),
            },
        }
    }
}

/// The variant that runs the stack.
#[derive(Clone, Copy)]
struct Threads {
    variant: Option<VariantKind>,
    threads: stack::Threads,
}

impl Threads {
    /// For example `2 replicas`, or `locked, 2 threads`.
    fn name(self) -> String {
        match self.variant {
            None => self.threads.name("replica"),
            Some(variant) => format!("{variant}, {}", self.threads.name("thread")),
        }
    }

    /// How many threads have a copy of the state.
    fn copies(self) -> usize {
        match self.variant {
            None | Some(VariantKind::Replicated) => self.threads.copies(),
            Some(_) => 1,
        }
    }

    fn builder(self, addr: &str) -> Builder {
        let builder = stack::builder(addr, self.threads);
        match self.variant {
            Some(variant) => builder.variant(variant),
            None => builder,
        }
    }
}

// Serving
// ------------------------------------------------------------------------------------------------------------

fn run(options: &Options) -> Outcome<()> {
    if options.linux {
        return serve_over_linux(options.process);
    }
    let threads = options.threads();
    let killer = options.stack.killer(threads.copies())?;
    let Some((device, name)) = options.stack.open()? else {
        return self_test::run(threads);
    };
    let stack = options.stack.start(|addr| threads.builder(addr), device)?;
    let end_requested = watch::signals::end_requested()?;
    let addresses = options.stack.addresses(&stack, None)?;
    let services = Services::start(&stack, &options.groups, options.process)?;
    println!(
        "listening on {addresses}, {}, device {name}",
        threads.name(),
    );
    let (seconds, grace) = (options.seconds, options.grace);
    let watched = watch("services", stack, &end_requested, seconds, killer, grace);
    services.join()?;
    watched
}

/// Serves over Linux' sockets until a signal ends the process.
fn serve_over_linux(process: Option<Process>) -> Outcome<()> {
    let (iperf, http) = (Listener::linux(IPERF)?, Listener::linux(HTTP)?);
    println!("listening on all addresses of Linux");
    thread::spawn(move || iperf::serve(&iperf, process));
    accept(&http, web::serve);
    Ok(())
}

/// Serves one connection.
type Serve = fn(Connection) -> io::Result<()>;

/// The threads of all services.
struct Services(Vec<thread::JoinHandle<()>>);

impl Services {
    /// Starts the services; echoes datagrams to `groups`, too. `process`: with iperf3's streams.
    fn start(stack: &Stack, groups: &[IpAddr], process: Option<Process>) -> Outcome<Services> {
        let mut front = Front::new(stack, groups)?;
        let mut threads = Vec::new();
        for (port, serve) in [(ECHO, echo as Serve), (DISCARD, discard)] {
            let listener = front.listen(stack, port)?;
            threads.push(thread::spawn(move || accept(&listener, serve)));
        }
        let (sockets, listener) = (stack.sockets(), front.listen(stack, NETSTAT)?);
        threads.push(thread::spawn(move || netstat(&sockets, &listener)));
        let listener = front.listen(stack, IPERF)?;
        threads.push(thread::spawn(move || iperf::serve(&listener, process)));
        threads.push(thread::spawn(move || front.run()));
        Ok(Services(threads))
    }

    /// Waits until the stack has gone down.
    fn join(self) -> Outcome<()> {
        for thread in self.0 {
            thread.join().map_err(|_| "a service panicked, see above")?;
        }
        Ok(())
    }
}

/// The only thread that waits for the stack while no other service is in use: so it drives the
/// stack itself. It serves HTTP and datagrams, and accepts for the others.
struct Front {
    server: Server<Web>,
    listener: TcpListener,
    echoes: UdpSocket,
    discards: UdpSocket,
    /// Listeners, and where their connections go.
    others: Vec<(TcpListener, Sender<TcpStream>)>,
}

impl Front {
    fn new(stack: &Stack, groups: &[IpAddr]) -> Outcome<Front> {
        let listener = stack.listen(HTTP, BACKLOG)?;
        let (echoes, discards) = (stack.bind_udp(ECHO)?, stack.bind_udp(DISCARD)?);
        for group in groups {
            match group {
                IpAddr::V4(group) => echoes.join_multicast_v4(group, &Ipv4Addr::UNSPECIFIED)?,
                IpAddr::V6(group) => echoes.join_multicast_v6(group, 0)?,
            }
        }
        let server = Server::new(FIRST, Web)?;
        let (poller, readable, edge) = (server.poller(), Interest::READABLE, Trigger::Edge);
        poller.register(&listener, WEB, readable, edge)?;
        poller.register(&echoes, ECHOES, readable, edge)?;
        poller.register(&discards, DISCARDS, readable, edge)?;
        Ok(Front {
            server,
            listener,
            echoes,
            discards,
            others: Vec::new(),
        })
    }

    /// Listens for a service with a separate thread.
    fn listen(&mut self, stack: &Stack, port: u16) -> Outcome<Listener> {
        let listener = stack.listen(port, BACKLOG)?;
        let token = Token(OTHERS + self.others.len());
        let poller = self.server.poller();
        poller.register(&listener, token, Interest::READABLE, Trigger::Edge)?;
        let (give, given) = mpsc::channel();
        self.others.push((listener, give));
        Ok(Listener::Given(given))
    }

    /// Serves until the stack goes down.
    fn run(mut self) {
        let mut events = Vec::with_capacity(256);
        let mut bytes = vec![0; DATAGRAM];
        loop {
            self.server.poller().wait(&mut events, None);
            for event in &events {
                let done = match event.token {
                    WEB => self.server.accept(&self.listener),
                    ECHOES => echo_datagrams(&mut self.echoes, &mut bytes),
                    DISCARDS => discard_datagrams(&mut self.discards),
                    Token(token) => match token.checked_sub(OTHERS) {
                        Some(other) if token < FIRST => self.accept(other),
                        _ => {
                            self.server.go_on(token);
                            Ok(())
                        }
                    },
                };
                if done.is_err() {
                    return;
                }
            }
        }
    }

    fn accept(&self, other: usize) -> Result<(), SocketError> {
        let (listener, give) = &self.others[other];
        loop {
            match listener.try_accept() {
                // Its thread ends with the stack.
                Ok((stream, _)) => drop(give.send(stream)),
                Err(SocketError::WouldBlock) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Accepts connections until the stack goes down, and serves each on a separate thread. The
/// stack's limit of connections bounds the threads.
fn accept(listener: &Listener, serve: Serve) {
    while let Ok(stream) = listener.accept() {
        // The client notices if its connection breaks.
        let spawned = thread::Builder::new().spawn(move || serve(stream));
        if let Err(error) = spawned {
            eprintln!("services: no thread for a connection: {error}");
        }
    }
}

/// Sends received bytes back until the client sends no more.
fn echo(stream: Connection) -> io::Result<()> {
    let (mut reader, mut writer) = stream.split()?;
    loop {
        let bytes = reader.fill_buf()?;
        let len = bytes.len();
        if len == 0 {
            break;
        }
        writer.write_all(bytes)?;
        BufRead::consume(&mut reader, len);
    }
    writer.shutdown();
    Ok(())
}

/// Sends every datagram back that has arrived.
fn echo_datagrams(socket: &mut UdpSocket, bytes: &mut [u8]) -> Result<(), SocketError> {
    loop {
        match socket.try_recv_from(bytes) {
            // A sender that cannot be reached gets no echo, and neither does port 0.
            Ok((len, from)) if from.port() != 0 => drop(socket.try_send_to(&bytes[..len], from)),
            Ok(_) => {}
            Err(SocketError::WouldBlock) => return Ok(()),
            Err(SocketError::Down) => return Err(SocketError::Down),
            Err(_) => {}
        }
    }
}

/// Discards the datagrams that have arrived.
fn discard_datagrams(socket: &mut UdpSocket) -> Result<(), SocketError> {
    loop {
        match socket.try_recv_from(&mut []) {
            Err(SocketError::WouldBlock) => return Ok(()),
            Err(SocketError::Down) => return Err(SocketError::Down),
            _ => {}
        }
    }
}

/// Sends the counters of the stack to each client.
fn netstat(sockets: &Sockets, listener: &Listener) {
    while let Ok(mut stream) = listener.accept() {
        let StackStats { pump, state, .. } = sockets.stats();
        let sums = [
            ("looked_at", pump.inputs()),
            ("accounted_for", pump.outcomes()),
            ("passive_opens", state.passive_opens()),
            ("currently_established", state.currently_established()),
        ];
        // The state counts the same events when it applies them.
        let both = ["segments", "requests", "datagrams"];
        let of_pump = pump.named().filter(|(name, _)| !both.contains(name));
        let lines = sums.into_iter().chain(of_pump).chain(state.named());
        let text: String = lines
            .map(|(name, value)| format!("{name} {value}\n"))
            .collect();
        // A client that leaves needs no answer.
        let _ = stream.write_all(text.as_bytes());
    }
}

/// Reads and discards bytes in place.
fn discard(stream: Connection) -> io::Result<()> {
    drain(stream, |_| ())
}

/// Reads to the end, and passes `take` the bytes of each read.
fn drain(mut from: impl BufRead, mut take: impl FnMut(&[u8])) -> io::Result<()> {
    loop {
        let bytes = from.fill_buf()?;
        let len = bytes.len();
        if len == 0 {
            return Ok(());
        }
        take(bytes);
        from.consume(len);
    }
}

/// Reads exactly `N` bytes.
fn read_array<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}
