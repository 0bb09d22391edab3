//! One application thread with many connections: our poller and Linux' `epoll` in turn.
//!
//! ```text
//! sudo -E env "PATH=$PATH" cargo bench -p dominoes-bench --bench poller [-- options]
//! ```
//!
//! Without root, `ip` or `wrk` it measures wake-ups alone, names its requirements, and ends with
//! success.
//!
//! | option | what | default |
//! |---|---|---|
//! | `--server hand,threads` | our stack driven by the thread that serves, or by its own | both |
//! | `--connections N` | of `wrk` | 1000 |
//! | `--idle N` | connections that were read from once and stay open meanwhile | 10000 |
//! | `--rounds N` | how often each server is asked, in turn with Linux | 5 |
//! | `--seconds N` | how long `wrk` runs each time | 3 |
//! | `--tap` | over a TAP in place of a veth pair (Linux' server stays on the pair) | |
//!
//! *Requests.* Servers are processes that run the same code, generic over what accepts, reads,
//! writes and waits: sockets of Linux under mio, or ours under a poller, both by edge. Each answers
//! with 128 bytes. `wrk` asks from another network namespace. A ratio is ours over Linux' in the
//! same round; given are its median and quartiles over the rounds.
//!
//! *Processor time.* `wrk` asks once more, now with a core to itself: the server has another, and
//! each side's packets are received on its own core (receive packet steering). What the server's
//! core has worked is what the requests cost. Without that, Linux receives a packet in a soft
//! interrupt of the sender, and counts it as the sender's time: nearly all that its server
//! spends on receiving would be `wrk`'s. On a machine with one core there is no such figure.
//!
//! *Memory.* By how much the server's resident memory has grown with each connection that has been
//! idle for some seconds, what the server itself stores for it included. The kernel's memory for
//! Linux' sockets is not in that, so it is compared with the goal alone.
//!
//! *Wake-ups.* Two threads wake each other by turns, through two pollers or two `epoll`s with an
//! `eventfd` each; given is the time of a wake-up.
//!
//! In the end there is a line for each goal: the ratio that was found, that which is asked for, and
//! whether it is met.

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    run::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
mod run {
    use std::collections::HashMap;
    use std::fs;
    use std::io::{self, ErrorKind, Read, Write};
    use std::net::{Ipv4Addr, SocketAddr};
    use std::process::{Command, ExitCode};
    use std::thread;
    use std::time::{Duration, Instant};

    use core_affinity::CoreId;
    use dominoes_bench::namespaces::{self, CubicAllowed, Namespace, Outcome, Process};
    use dominoes_bench::report::Run;
    use dominoes_bench::rounds::{self, Reading};
    use dominoes_bench::spread::Spread;
    use dominoes_bench::start;
    use dominoes_bench::table::{Bar, Bars, Limit, Table};
    use dominoes_bench::targets::list;
    use dominoes_bench::topology;
    use dominoes_drivers::Device;
    use dominoes_drivers::af_packet::{AfPacket, AfPacketOptions};
    use dominoes_drivers::tap::Tap;
    use dominoes_netstack::group::Layout;
    use dominoes_netstack::poller::{Event, Interest, Poller, Token, Trigger};
    use dominoes_netstack::variants::{ByHand, Setup, VariantKind};
    use dominoes_netstack::{SocketError, Stack, TcpListener, TcpStream};
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    use nix::sys::socket::{setsockopt, sockopt};

    const OURS: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
    const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
    const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 3);
    const PORT: u16 = 80;
    const BACKLOG: u16 = 4096;
    /// How long a server may take to start.
    const PATIENCE: Duration = Duration::from_secs(20);
    /// After which an idle connection has given back what memory it can.
    const IDLE: Duration = Duration::from_secs(4);
    /// Wake-ups of one measurement, in each direction.
    const WAKE_UPS: u32 = 5_000;
    /// Bytes that a connection may hold which was read from once.
    const EACH: f64 = 4096.0;

    pub(super) fn main() -> ExitCode {
        start::main("poller", |arguments| Options::parse(arguments)?.run())
    }

    dominoes_bench::named! {
        /// A server.
        enum Server {
            Hand = "hand",
            Threads = "threads",
            Linux = "linux",
        }
    }

    #[derive(Debug)]
    struct Options {
        servers: Vec<Server>,
        connections: u32,
        idle: usize,
        rounds: usize,
        seconds: u64,
        tap: bool,
        serve: Option<Server>,
        /// The address of a server, to hold `idle` connections of.
        hold: Option<Ipv4Addr>,
    }

    impl Options {
        fn parse(mut parser: lexopt::Parser) -> Outcome<Options> {
            use lexopt::prelude::*;
            let mut options = Options {
                servers: vec![Server::Hand, Server::Threads],
                connections: 1000,
                idle: 10_000,
                rounds: 5,
                seconds: 3,
                tap: false,
                serve: None,
                hold: None,
            };
            while let Some(argument) = parser.next()? {
                match argument {
                    Long("server") => {
                        options.servers = list(&parser.value()?.string()?, Server::named)?;
                    }
                    Long("connections") => options.connections = parser.value()?.parse()?,
                    Long("idle") => options.idle = parser.value()?.parse()?,
                    Long("hold") => options.hold = Some(parser.value()?.parse()?),
                    Long("rounds") => options.rounds = parser.value()?.parse()?,
                    Long("seconds") => options.seconds = parser.value()?.parse()?,
                    Long("tap") => options.tap = true,
                    Long("serve") => {
                        options.serve = list(&parser.value()?.string()?, Server::named)?.pop();
                    }
                    other => return Err(other.unexpected().into()),
                }
            }
            Ok(options)
        }

        fn run(&self) -> Outcome<()> {
            if let Some(server) = self.serve {
                return serve(server, self);
            }
            if let Some(address) = self.hold {
                return hold(address, self.idle);
            }
            let run = Run::begin("poller");
            let mut tables = vec![wake_ups_of_both(self.rounds.max(3))?];
            match Fixture::new(self.tap) {
                Ok(fixture) => tables.push(self.measure_requests(&fixture)?),
                Err(error) => {
                    let mut table = Table::new("requests", &[]);
                    table.note(format!("not measured: {error}"));
                    tables.push(table);
                }
            }
            Ok(run.end(tables)?)
        }

        fn measure_requests(&self, fixture: &Fixture) -> Outcome<Table> {
            let title = format!(
                "{} connections and {} idle ones, {} s, {} rounds; ratios are ours over Linux'",
                self.connections, self.idle, self.seconds, self.rounds
            );
            let columns = [
                "server", "req/s", "Linux", "ratio", "us/req", "Linux", "ratio", "bytes",
            ];
            let mut table = Table::new(title, &columns);
            let mut bars = Bars {
                heading: "requests a second: ours, and thin Linux'".to_owned(),
                ..Bars::default()
            };
            let mut all = Vec::new();
            for server in &self.servers {
                let mut pair = [*server, Server::Linux];
                let found =
                    rounds::by_turns(&mut pair, self.rounds, &mut rounds::tell, |row, _| {
                        fixture.ask(*row, self).map(Reading::calm)
                    })?;
                let values = |pick: fn(Asked, Asked) -> f64| {
                    let rounds = found[0].iter().zip(&found[1]);
                    let values = rounds.map(move |(ours, theirs)| pick(ours.value, theirs.value));
                    Spread::of(values.filter(|value| !value.is_nan()))
                };
                let of = |pick, digits: usize| {
                    values(pick).map_or_else(|| "?".to_owned(), |value| format!("{value:.digits$}"))
                };
                let name = server.name();
                table.row(vec![
                    name.to_owned(),
                    of(|ours, _| ours.rate, 0),
                    of(|_, theirs| theirs.rate, 0),
                    of(|ours, theirs| ours.rate / theirs.rate, 2),
                    of(|ours, _| ours.micros, 1),
                    of(|_, theirs| theirs.micros, 1),
                    of(|ours, theirs| ours.micros / theirs.micros, 2),
                    of(|ours, _| ours.bytes, 0),
                ]);
                let mut goal = |what: &str, ratio, limit| {
                    table.bound(&format!("{name}: {what}"), ratio, limit);
                };
                goal(
                    "requests a second, ours over Linux'",
                    values(|ours, theirs| ours.rate / theirs.rate),
                    Limit::AtLeast(0.9),
                );
                goal(
                    "processor time of a request, ours over Linux'",
                    values(|ours, theirs| ours.micros / theirs.micros),
                    Limit::AtMost(1.1),
                );
                if self.idle > 0 {
                    goal(
                        "memory of an idle connection over 4 KiB",
                        values(|ours, _| ours.bytes / EACH),
                        Limit::AtMost(1.0),
                    );
                }
                if let Some(rate) = values(|ours, _| ours.rate) {
                    bars.bars.push(Bar {
                        beside: values(|_, theirs| theirs.rate).map(|rate| rate.median),
                        ..Bar::new(name, name, rate, 0)
                    });
                }
                all.push((name, found));
            }
            table.bars(bars);
            table.keep(&all);
            Ok(table)
        }
    }

    // Servers.

    /// What the server is made of: connections, and waiting for them by edge.
    trait Net {
        type Stream;
        /// The next connection, which is reported as `token` from now on.
        fn accept(&mut self, token: usize) -> io::Result<Option<Self::Stream>>;
        /// Waits until something is ready; `None` is the listener.
        fn wait(&mut self, ready: &mut Vec<Option<usize>>) -> io::Result<()>;
        /// Bytes; 0 at the end; `None` if there are none yet.
        fn read(stream: &mut Self::Stream, into: &mut [u8]) -> io::Result<Option<usize>>;
        /// How many bytes were taken; `None` if there is no room.
        fn write(stream: &mut Self::Stream, from: &[u8]) -> io::Result<Option<usize>>;
    }

    struct Connection<S> {
        stream: S,
        /// How many bytes of the end of a head were found last.
        matched: usize,
        output: Vec<u8>,
    }

    const END: &[u8; 4] = b"\r\n\r\n";

    /// Continues until a call would wait. False at the end.
    fn go_on<N: Net>(
        connection: &mut Connection<N::Stream>,
        answer: &[u8],
        buffer: &mut [u8],
    ) -> bool {
        loop {
            while !connection.output.is_empty() {
                match N::write(&mut connection.stream, &connection.output) {
                    Ok(Some(len)) => drop(connection.output.drain(..len)),
                    Ok(None) => return true,
                    Err(_) => return false,
                }
            }
            match N::read(&mut connection.stream, buffer) {
                Ok(Some(0)) | Err(_) => return false,
                Ok(None) => return true,
                Ok(Some(len)) => {
                    for byte in &buffer[..len] {
                        connection.matched = match connection.matched {
                            at if *byte == END[at] => at + 1,
                            _ => usize::from(*byte == END[0]),
                        };
                        if connection.matched == END.len() {
                            connection.matched = 0;
                            connection.output.extend_from_slice(answer);
                        }
                    }
                }
            }
        }
    }

    /// The answer of a server.
    fn answer() -> String {
        let body = "x".repeat(128);
        format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    }

    fn run_server<N: Net>(mut net: N) -> Outcome<()> {
        let answer = answer();
        let mut connections = HashMap::new();
        let (mut ready, mut next, mut buffer) = (Vec::new(), 0, vec![0; 16 << 10]);
        println!("ready");
        loop {
            ready.clear();
            net.wait(&mut ready)?;
            for token in &ready {
                let Some(token) = token else {
                    while let Some(stream) = net.accept(next)? {
                        let connection = Connection {
                            stream,
                            matched: 0,
                            output: Vec::new(),
                        };
                        connections.insert(next, connection);
                        next += 1;
                    }
                    continue;
                };
                if let Some(connection) = connections.get_mut(token)
                    && !go_on::<N>(connection, answer.as_bytes(), &mut buffer)
                {
                    connections.remove(token);
                }
            }
        }
    }

    /// Sockets of Linux.
    struct Epoll {
        poll: mio::Poll,
        events: mio::Events,
        listener: mio::net::TcpListener,
    }

    const LISTENER: usize = usize::MAX;

    fn name(token: usize) -> Option<usize> {
        (token != LISTENER).then_some(token)
    }

    impl Epoll {
        fn new() -> io::Result<Epoll> {
            let poll = mio::Poll::new()?;
            let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT));
            let mut listener = mio::net::TcpListener::bind(address)?;
            let token = mio::Token(LISTENER);
            poll.registry()
                .register(&mut listener, token, mio::Interest::READABLE)?;
            Ok(Epoll {
                poll,
                events: mio::Events::with_capacity(256),
                listener,
            })
        }
    }

    fn unless_blocked<T>(done: io::Result<T>) -> io::Result<Option<T>> {
        match done {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    impl Net for Epoll {
        type Stream = mio::net::TcpStream;

        fn accept(&mut self, token: usize) -> io::Result<Option<Self::Stream>> {
            let Some((mut stream, _)) = unless_blocked(self.listener.accept())? else {
                return Ok(None);
            };
            stream.set_nodelay(true)?;
            let both = mio::Interest::READABLE | mio::Interest::WRITABLE;
            self.poll
                .registry()
                .register(&mut stream, mio::Token(token), both)?;
            Ok(Some(stream))
        }

        fn wait(&mut self, ready: &mut Vec<Option<usize>>) -> io::Result<()> {
            self.poll.poll(&mut self.events, None)?;
            ready.extend(self.events.iter().map(|event| name(event.token().0)));
            Ok(())
        }

        fn read(stream: &mut Self::Stream, into: &mut [u8]) -> io::Result<Option<usize>> {
            unless_blocked(stream.read(into))
        }

        fn write(stream: &mut Self::Stream, from: &[u8]) -> io::Result<Option<usize>> {
            unless_blocked(stream.write(from))
        }
    }

    /// Ours, however the stack is driven.
    struct Ours<D> {
        poller: Poller,
        events: Vec<Event>,
        listener: TcpListener,
        driven: D,
    }

    impl<D> Ours<D> {
        fn new(listener: TcpListener, driven: D) -> io::Result<Ours<D>> {
            let poller = Poller::new()?;
            poller.register(
                &listener,
                Token(LISTENER),
                Interest::READABLE,
                Trigger::Edge,
            )?;
            Ok(Ours {
                poller,
                events: Vec::with_capacity(256),
                listener,
                driven,
            })
        }
    }

    /// How the thread that serves waits.
    trait Driven {
        fn wait(&mut self, poller: &Poller, events: &mut Vec<Event>);
    }

    impl Driven for Stack {
        fn wait(&mut self, poller: &Poller, events: &mut Vec<Event>) {
            poller.wait(events, None);
        }
    }

    impl Driven for (ByHand, Instant) {
        fn wait(&mut self, poller: &Poller, events: &mut Vec<Event>) {
            let (stack, begin) = self;
            let now = || {
                let nanos = begin.elapsed().as_nanos() as u64;
                dominoes_netstack::time::Instant::from_nanos(nanos)
            };
            loop {
                let done = stack.turn(now());
                if poller.events(events) > 0 {
                    return;
                }
                if done == 0 {
                    stack.wait(now(), dominoes_netstack::time::Instant::NEVER);
                }
            }
        }
    }

    fn unless_waiting<T>(done: Result<T, SocketError>) -> io::Result<Option<T>> {
        unless_blocked(done.map_err(io::Error::from))
    }

    impl<D: Driven> Net for Ours<D> {
        type Stream = TcpStream;

        fn accept(&mut self, token: usize) -> io::Result<Option<Self::Stream>> {
            let Some((stream, _)) = unless_waiting(self.listener.try_accept())? else {
                return Ok(None);
            };
            let _ = stream.set_nodelay(true);
            let both = Interest::BOTH;
            self.poller
                .register(&stream, Token(token), both, Trigger::Edge)?;
            Ok(Some(stream))
        }

        fn wait(&mut self, ready: &mut Vec<Option<usize>>) -> io::Result<()> {
            self.driven.wait(&self.poller, &mut self.events);
            ready.extend(self.events.iter().map(|event| name(event.token.0)));
            Ok(())
        }

        fn read(stream: &mut Self::Stream, into: &mut [u8]) -> io::Result<Option<usize>> {
            unless_waiting(stream.try_read(into))
        }

        fn write(stream: &mut Self::Stream, from: &[u8]) -> io::Result<Option<usize>> {
            unless_waiting(stream.try_write(from))
        }
    }

    fn serve(server: Server, options: &Options) -> Outcome<()> {
        allow_files()?;
        let tap = options.tap;
        // Ends with the process that asks for it.
        thread::spawn(|| {
            let _ = io::stdin().read(&mut [0]);
            std::process::exit(0);
        });
        let device = || -> Outcome<Box<dyn Device>> {
            if tap {
                return Ok(Box::new(Tap::open("tap0")?));
            }
            let options = AfPacketOptions::default().address(OURS);
            Ok(Box::new(AfPacket::open("veth0", options)?))
        };
        let connections = (options.idle as u32 + options.connections) * 2;
        let limits = |limits: dominoes_netstack::Limits| {
            let limits = limits.receive_buffer(1 << 16).send_buffer(1 << 16);
            limits.connections(connections.max(16_384))
        };
        match server {
            Server::Linux => run_server(Epoll::new()?),
            Server::Threads => {
                let builder = Stack::builder(&format!("{OURS}/24")).variant(VariantKind::Single);
                let builder = builder.limits(limits(Default::default()));
                let stack = builder.start(device()?)?;
                let listener = stack.listen(PORT, BACKLOG)?;
                run_server(Ours::new(listener, stack)?)
            }
            Server::Hand => {
                let mut setup = Setup::new(OURS.into(), 24, [1, 2]);
                setup.limits = limits(setup.limits);
                let stack =
                    VariantKind::Single.build(setup, Layout::default().replicas(1), device()?)?;
                let listener = stack.sockets().listen(PORT, BACKLOG)?;
                run_server(Ours::new(listener, (stack, Instant::now()))?)
            }
        }
    }

    // Clients.

    /// As many open files as this process may have.
    fn allow_files() -> Outcome<()> {
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
        Ok(setrlimit(Resource::RLIMIT_NOFILE, most, most)?)
    }

    /// Opens `count` connections, has each answered once, and holds them until its input ends.
    fn hold(address: Ipv4Addr, count: usize) -> Outcome<()> {
        allow_files()?;
        let mut held = Vec::with_capacity(count);
        for _ in 0..count {
            let mut stream = std::net::TcpStream::connect((address, PORT))?;
            // It is reset when this ends: in order it would keep its port for a minute, and a few
            // rounds would use up all ports.
            let reset = nix::libc::linger {
                l_onoff: 1,
                l_linger: 0,
            };
            setsockopt(&stream, sockopt::Linger, &reset)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(b"GET / HTTP/1.1\r\nHost: server\r\n\r\n")?;
            let mut answer = vec![0; answer().len()];
            stream.read_exact(&mut answer)?;
            held.push(stream);
        }
        println!("held");
        let _ = io::stdin().read(&mut [0]);
        Ok(())
    }

    /// Namespaces of both sides, joined by a veth pair, or by a TAP of the client's.
    struct Fixture {
        ours: Namespace,
        peer: Namespace,
        tap: bool,
        _cubic: CubicAllowed,
    }

    /// What `wrk` and the machine's clocks say.
    #[derive(Clone, Copy, Debug, serde::Serialize)]
    struct Asked {
        /// Requests a second.
        rate: f64,
        /// Processor time of a request at the server, in microseconds; not a number on one core.
        micros: f64,
        /// Bytes of memory that an idle connection adds.
        bytes: f64,
    }

    impl Fixture {
        fn new(tap: bool) -> Outcome<Fixture> {
            let cubic = CubicAllowed::new()?;
            let [ours, peer] = namespaces::pair(["ours", "peer"], [KERNEL, CLIENT])?;
            peer.shell("command -v wrk >/dev/null || { echo wrk is missing >&2; false; }")?;
            if tap {
                peer.ip("tuntap add dev tap0 mode tap")?;
                peer.ip("link set tap0 up")?;
            }
            for namespace in [&ours, &peer] {
                namespace.shell("sysctl -qw net.core.somaxconn=4096")?;
            }
            if tap {
                peer.ip(&format!("route add {OURS}/32 dev tap0 src {CLIENT}"))?;
            }
            Ok(Fixture {
                ours,
                peer,
                tap,
                _cubic: cubic,
            })
        }

        fn ask(&self, server: Server, options: &Options) -> Outcome<Asked> {
            let (namespace, address) = match server {
                Server::Linux => (&self.ours, KERNEL),
                _ if self.tap => (&self.peer, OURS),
                _ => (&self.ours, OURS),
            };
            let [idle, active] =
                [options.idle, options.connections as usize].map(|number| number.to_string());
            let mut arguments = vec!["--serve", server.name()];
            arguments.extend(["--idle", &idle, "--connections", &active]);
            arguments.extend(self.tap.then_some("--tap"));
            let process = Process::start(namespace, &arguments)?;
            process.line(PATIENCE)?;
            // Neighbours find each other, and pages are there.
            self.wrk(address, 50, 1, None)?;
            let resident = || namespaces::resident(&process.id().to_string());
            let empty = resident()?;
            let place = address.to_string();
            let held = match options.idle {
                0 => None,
                _ => Some(Process::start(
                    &self.peer,
                    &["--hold", &place, "--idle", &idle],
                )?),
            };
            held.as_ref()
                .map_or(Ok(String::new()), |held| held.line(PATIENCE))?;
            if held.is_some() {
                thread::sleep(IDLE);
            }
            let grown = resident()?.saturating_sub(empty);
            let bytes = grown as f64 / options.idle.max(1) as f64;
            let rate = self.wrk(address, options.connections, options.seconds, None)?;
            let micros = match *topology::cores() {
                [client, server, ..] => {
                    self.steer(Some([client, server]))?;
                    pin(process.id(), server)?;
                    let before = busy(server)?;
                    let rate =
                        self.wrk(address, options.connections, options.seconds, Some(client))?;
                    let spent = busy(server)? - before;
                    self.steer(None)?;
                    spent * 1e6 / (rate * options.seconds as f64)
                }
                _ => f64::NAN,
            };
            drop(process);
            Ok(Asked {
                rate,
                micros,
                bytes,
            })
        }

        /// Has the packets for the client and the server received on these cores, or on whichever
        /// core they were sent from.
        fn steer(&self, cores: Option<[CoreId; 2]>) -> Outcome<()> {
            let tap = self.tap.then_some((&self.peer, "tap0", 0));
            let pair = [(&self.peer, "veth0", 0), (&self.ours, "veth0", 1)];
            for (namespace, interface, side) in pair.into_iter().chain(tap) {
                let mask = cores.map_or_else(|| "0".to_owned(), |cores| mask(cores[side]));
                let file = format!("/sys/class/net/{interface}/queues/rx-0/rps_cpus");
                namespace.shell(&format!("echo {mask} > {file}"))?;
            }
            Ok(())
        }

        /// Requests a second, asked from `core` alone if one is given.
        fn wrk(
            &self,
            address: Ipv4Addr,
            connections: u32,
            seconds: u64,
            core: Option<CoreId>,
        ) -> Outcome<f64> {
            let mut command = self.peer.command("sh");
            let pinned = core.map_or_else(String::new, |core| format!("taskset -c {}", core.id));
            let line = format!(
                "ulimit -n 65536; \
                 exec {pinned} wrk -t1 -c{connections} -d{seconds}s http://{address}:{PORT}/"
            );
            let output = command.args(["-c", &line]).output()?;
            let text = String::from_utf8_lossy(&output.stdout);
            let failed = || format!("wrk: {text}{}", String::from_utf8_lossy(&output.stderr));
            let rate = namespaces::requests_per_second(&text);
            Ok(rate.filter(|rate| *rate > 0.0).ok_or_else(failed)?)
        }
    }

    /// Has all threads of a process run on `core` alone from now on.
    fn pin(process: u32, core: CoreId) -> Outcome<()> {
        let [core, process] = [core.id.to_string(), process.to_string()];
        namespaces::run(Command::new("taskset").args(["-a", "-c", "-p", &core, &process]))
    }

    /// One core, as Linux reads a set of them: groups of 32, the highest first.
    fn mask(core: CoreId) -> String {
        format!("{:x}{}", 1_u32 << (core.id % 32), ",0".repeat(core.id / 32))
    }

    /// Seconds that a core has worked.
    fn busy(core: CoreId) -> Outcome<f64> {
        let name = format!("cpu{} ", core.id);
        let stat = fs::read_to_string("/proc/stat")?;
        let line = stat.lines().find_map(|line| line.strip_prefix(&name));
        let ticks: Vec<f64> = line
            .ok_or("the core is not in /proc/stat")?
            .split(' ')
            .filter_map(|word| word.parse().ok())
            .collect();
        // User, nice, system, idle, waiting, interrupts, soft ones.
        let worked = [0, 1, 2, 5, 6].map(|at| ticks.get(at).copied().unwrap_or(0.0));
        Ok(worked.iter().sum::<f64>() / 100.0)
    }

    // Wake-ups.

    /// Two threads that wake each other; microseconds of a wake-up.
    fn wake_ups<W: Fn() + Sync, S: FnMut() + Send>(ends: [(W, S); 2]) -> f64 {
        let [(wake_here, mut sleep_here), (wake_there, mut sleep_there)] = ends;
        // An `eventfd` that is closed takes its last signal with it, so both outlive the threads.
        let (wake_here, wake_there) = (&wake_here, &wake_there);
        // On a core each: on one they would wake each other by giving it up.
        let begin = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| {
                topology::pin_to(1);
                for _ in 0..WAKE_UPS {
                    sleep_there();
                    wake_here();
                }
            });
            scope.spawn(|| {
                topology::pin_to(0);
                for _ in 0..WAKE_UPS {
                    wake_there();
                    sleep_here();
                }
            });
        });
        begin.elapsed().as_secs_f64() * 1e6 / f64::from(2 * WAKE_UPS)
    }

    fn by_poller() -> io::Result<f64> {
        let end = || {
            let poller = Poller::new()?;
            let waker = poller.waker();
            let mut events = Vec::with_capacity(1);
            let sleep = move || {
                poller.wait(&mut events, None);
            };
            io::Result::Ok((move || waker.wake(), sleep))
        };
        Ok(wake_ups([end()?, end()?]))
    }

    fn by_epoll() -> io::Result<f64> {
        let end = || {
            let mut poll = mio::Poll::new()?;
            let waker = mio::Waker::new(poll.registry(), mio::Token(0))?;
            let mut events = mio::Events::with_capacity(1);
            let sleep = move || while poll.poll(&mut events, None).is_err() {};
            let wake = move || {
                let _ = waker.wake();
            };
            io::Result::Ok((wake, sleep))
        };
        Ok(wake_ups([end()?, end()?]))
    }

    /// Both, by turns.
    fn wake_ups_of_both(rounds: usize) -> Outcome<Table> {
        let mut rows: [fn() -> io::Result<f64>; 2] = [by_poller, by_epoll];
        let found = rounds::by_turns(&mut rows, rounds, &mut |_, _| (), |row, _| {
            row().map(Reading::calm)
        })?;
        let ratio = rounds::spread(&rounds::over(&found[0], &found[1]));
        let mut table = Table::new("wake-ups, us", &["poller", "epoll", "ratio"]);
        let times = found.iter().map(|times| rounds::spread(times));
        let cells = times.chain([ratio]).flatten();
        table.row(cells.map(|cell| cell.to_string()).collect());
        table.bound("a wake-up, ours over Linux'", ratio, Limit::AtMost(1.2));
        table.keep(&found);
        Ok(table)
    }
}
