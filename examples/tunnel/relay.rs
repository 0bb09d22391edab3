//! Carries connections and datagrams between the stack and sockets of the kernel, in one thread.

use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{self, IpAddr, Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use dominoes_netstack::poller::{Interest, Poller, Token, Trigger};
use dominoes_netstack::{AnyListener, Arriving, Connecting, Datagram, Stack, TcpStream, UdpSocket};

use crate::socks::{self, ASSOCIATE, CONNECT, Upstream};

/// The most UDP sessions, and twice the most SYNs that wait for their destinations.
const MOST: u16 = 4096;
/// Moves of a socket before others have their turn.
const TURNS: usize = 64;
/// Bytes of a move, at least a datagram.
const BYTES: usize = 64 << 10;
const SECOND: Duration = Duration::from_secs(1);
const DNS: u16 = 53;
/// Datagrams of a session that wait for a SOCKS5 server, and the length of each, in bytes.
const EARLY: (usize, usize) = (8, 2048);
/// The sockets of the stack that serve all. The numbers of flows follow.
const ARRIVALS: usize = 0;
const DATAGRAMS: usize = 1;

/// Where to forward.
#[derive(Clone, Copy)]
pub(crate) struct Route {
    pub(crate) socks: Option<SocketAddr>,
    pub(crate) dns: Option<SocketAddr>,
    pub(crate) udp_idle: Duration,
}

/// A connection, from its SYN on, or a UDP session.
enum Flow {
    Held(Arriving, Upstream),
    Accepted(Connecting, net::TcpStream),
    /// Whether we have passed on the end of the client's bytes, and of the destination's.
    Open(TcpStream, net::TcpStream, [bool; 2]),
    Udp(Session),
}

struct Session {
    socket: net::UdpSocket,
    /// The client and the end that it asks.
    ends: (SocketAddr, SocketAddr),
    used: Instant,
    /// The connection that holds the association of the SOCKS5 server.
    server: Option<Upstream>,
    /// What the client sends before there is one.
    early: Vec<Vec<u8>>,
}

pub(crate) struct Relay {
    route: Route,
    poller: Poller,
    arrivals: AnyListener,
    datagrams: UdpSocket,
    /// Connections and UDP sessions.
    flows: HashMap<usize, Flow>,
    /// The flow of datagrams between a client and a destination.
    sessions: HashMap<(SocketAddr, SocketAddr), usize>,
    /// The latest connections, of which some are held.
    held: VecDeque<usize>,
    next_id: usize,
    buffer: Vec<u8>,
    arrived: Vec<Datagram>,
}

impl Relay {
    pub(crate) fn new(stack: &Stack, route: Route) -> io::Result<Relay> {
        let poller = Poller::new()?;
        let arrivals = stack.sockets().listen_any(MOST)?;
        let datagrams = stack.sockets().bind_any()?;
        datagrams.set_nonblocking(true)?;
        let (readable, level) = (Interest::READABLE, Trigger::Level);
        poller.register(&arrivals, Token(ARRIVALS), readable, level)?;
        poller.register(&datagrams, Token(DATAGRAMS), readable, level)?;
        Ok(Relay {
            route,
            poller,
            arrivals,
            datagrams,
            flows: HashMap::new(),
            sessions: HashMap::new(),
            held: VecDeque::new(),
            next_id: DATAGRAMS,
            buffer: vec![0; BYTES],
            arrived: vec![Datagram::new(BYTES); TURNS],
        })
    }

    /// Carries until the stack ends.
    pub(crate) fn run(&mut self) -> io::Result<()> {
        let (mut events, mut swept) = (Vec::with_capacity(1024), Instant::now());
        loop {
            self.poller.wait(&mut events, Some(SECOND));
            for event in events.iter() {
                match event.token.0 {
                    ARRIVALS => self.arrive()?,
                    DATAGRAMS => self.receive()?,
                    id => {
                        if let Some(flow) = self.flows.remove(&id)
                            && let Ok(Some(flow)) = self.turn(flow, id)
                        {
                            self.flows.insert(id, flow);
                        }
                    }
                }
            }
            if swept.elapsed() > SECOND {
                swept = Instant::now();
                let idle = self.route.udp_idle;
                self.flows.retain(|_, flow| match flow {
                    Flow::Udp(session) => session.used.elapsed() < idle,
                    _ => true,
                });
                self.sessions.retain(|_, id| self.flows.contains_key(id));
            }
        }
    }

    fn new_id(&mut self) -> usize {
        self.next_id += 1;
        self.next_id
    }

    fn watch(&self, socket: &impl AsFd, id: usize) -> io::Result<()> {
        let (token, both) = (Token(id), Interest::BOTH);
        self.poller
            .register_descriptor(socket, token, both, Trigger::Edge)
    }

    /// As if there were news of a socket, if it is ready.
    fn watch_again(&self, socket: &impl AsFd, id: usize) -> io::Result<()> {
        let (token, both) = (Token(id), Interest::BOTH);
        self.poller
            .modify_descriptor(socket, token, both, Trigger::Edge)
    }

    /// Takes SYNs, and begins to connect to their destinations.
    fn arrive(&mut self) -> io::Result<()> {
        for _ in 0..TURNS {
            let Some(arriving) = now(self.arrivals.try_next().map_err(io::Error::from))? else {
                break;
            };
            let id = self.new_id();
            let begun = Upstream::begin(self.route.socks, arriving.destination(), CONNECT);
            let watched = begun.and_then(|upstream| {
                self.watch(&upstream.stream, id)?;
                Ok(upstream)
            });
            match watched {
                Ok(upstream) => {
                    self.flows.insert(id, Flow::Held(arriving, upstream));
                    self.held.push_back(id);
                }
                Err(_) => arriving.refuse(),
            }
            // A flood to destinations that do not answer must not delay other connections.
            if self.held.len() > usize::from(MOST / 2)
                && let Some(oldest) = self.held.pop_front()
                && let Some(Flow::Held(..)) = self.flows.get(&oldest)
            {
                self.flows.remove(&oldest);
            }
        }
        Ok(())
    }

    /// Takes datagrams of clients, and sends them on; a full socket drops them.
    fn receive(&mut self) -> io::Result<()> {
        let count = now(self.datagrams.recv_many(&mut self.arrived))?.unwrap_or(0);
        for index in 0..count {
            let Some(info) = self.arrived[index].info else {
                continue;
            };
            let ends = (self.arrived[index].from, (info.local, info.port).into());
            let known = self.sessions.get(&ends).copied();
            let id = match known.filter(|id| self.flows.contains_key(id)) {
                Some(id) => id,
                None if self.sessions.len() < usize::from(MOST) => self.begin_session(ends),
                None => continue,
            };
            if let Some(Flow::Udp(session)) = self.flows.get_mut(&id)
                && session.send(self.arrived[index].bytes()).is_err()
            {
                self.flows.remove(&id);
            }
        }
        Ok(())
    }

    fn begin_session(&mut self, ends: (SocketAddr, SocketAddr)) -> usize {
        let id = self.new_id();
        let dns = self.route.dns.filter(|_| ends.1.port() == DNS);
        let socks = self.route.socks.filter(|_| dns.is_none());
        let open = || -> io::Result<Flow> {
            let to = dns.or(socks).unwrap_or(ends.1);
            let socket = net::UdpSocket::bind(any(to))?;
            socket.set_nonblocking(true)?;
            let mut server = None;
            if socks.is_some() {
                let begun = Upstream::begin(socks, any(to), ASSOCIATE)?;
                self.watch(&begun.stream, id)?;
                server = Some(begun);
            } else {
                socket.connect(to)?;
            }
            self.watch(&socket, id)?;
            let (used, early) = (Instant::now(), Vec::new());
            Ok(Flow::Udp(Session {
                socket,
                ends,
                used,
                server,
                early,
            }))
        };
        self.flows.extend(open().map(|flow| (id, flow)));
        self.sessions.insert(ends, id);
        id
    }

    /// Continues a flow, and returns its next state; `None` when it has ended.
    fn turn(&mut self, flow: Flow, id: usize) -> io::Result<Option<Flow>> {
        let (token, edge) = (Token(id), Trigger::Edge);
        Ok(Some(match flow {
            Flow::Held(arriving, mut upstream) => match upstream.is_ready() {
                Ok(false) => Flow::Held(arriving, upstream),
                Ok(true) => {
                    let accepted = arriving.accept()?;
                    let writable = Interest::WRITABLE;
                    self.poller.register(&accepted, token, writable, edge)?;
                    Flow::Accepted(accepted, upstream.stream)
                }
                Err(_) => {
                    arriving.refuse();
                    return Ok(None);
                }
            },
            Flow::Accepted(mut accepted, kernels) => match accepted.try_finish()? {
                None => Flow::Accepted(accepted, kernels),
                Some(stream) => {
                    stream.set_nodelay(true)?;
                    kernels.set_nodelay(true)?;
                    self.poller.register(&stream, token, Interest::BOTH, edge)?;
                    Flow::Open(stream, kernels, [false; 2])
                }
            },
            Flow::Open(mut ours, mut kernels, mut ended) => {
                match carry(&mut ours, &mut kernels, &mut ended, &mut self.buffer) {
                    Ok(true) => self.watch_again(&kernels, id)?,
                    Ok(false) if ended != [true; 2] => {}
                    Ok(false) => return Ok(None),
                    Err(_) => {
                        ours.abort();
                        return Ok(None);
                    }
                }
                Flow::Open(ours, kernels, ended)
            }
            Flow::Udp(mut session) => {
                let (client, far) = session.ends;
                for _ in 0..TURNS {
                    let Some(data) = session.receive(&mut self.buffer)? else {
                        return Ok(Some(Flow::Udp(session)));
                    };
                    // A full queue drops it.
                    let _ = self.datagrams.send_from(data, far, client);
                }
                self.watch_again(&session.socket, id)?;
                Flow::Udp(session)
            }
        }))
    }
}

impl Session {
    /// Sends a datagram to the far end; a full socket drops it.
    fn send(&mut self, data: &[u8]) -> io::Result<()> {
        self.used = Instant::now();
        match &self.server {
            Some(server) if server.bound.is_none() => {
                if self.early.len() < EARLY.0 && data.len() <= EARLY.1 {
                    self.early.push(data.to_vec());
                }
                Ok(())
            }
            Some(_) => {
                let wrapped = [&[0, 0, 0], &*socks::address(self.ends.1), data].concat();
                now(self.socket.send(&wrapped)).map(drop)
            }
            None => now(self.socket.send(data)).map(drop),
        }
    }

    /// The next datagram of the far end. An error ends the session.
    fn receive<'a>(&mut self, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        if let Some(server) = &mut self.server {
            if server.bound.is_none() {
                if !server.is_ready()? {
                    return Ok(None);
                }
                self.socket.connect(server.bound.expect("it is ready"))?;
                for data in core::mem::take(&mut self.early) {
                    self.send(&data)?;
                }
            } else if now(server.stream.read(&mut [0]))?.is_some() {
                // The association lasts as long as this connection.
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        while let Some(len) = now(self.socket.recv(buffer))? {
            self.used = Instant::now();
            let skipped = match &self.server {
                None => 0,
                Some(_) => match socks::far_end(&buffer[..len]) {
                    Some((from, skipped)) if from == self.ends.1 => skipped,
                    _ => continue,
                },
            };
            return Ok(Some(&buffer[skipped..len]));
        }
        Ok(None)
    }
}

/// Moves what can be moved. Returns whether there may be more.
fn carry(
    ours: &mut TcpStream,
    kernels: &mut net::TcpStream,
    [client_ended, far_ended]: &mut [bool; 2],
    buffer: &mut [u8],
) -> io::Result<bool> {
    let (reader, writer) = ours.halves();
    for _ in 0..TURNS {
        let mut moved = false;
        if !*client_ended && let Some((a, b)) = now(reader.try_fill_all().map_err(io::Error::from))?
        {
            if a.is_empty() {
                *client_ended = true;
                kernels.shutdown(Shutdown::Write)?;
            } else if let Some(len) = now(kernels.write_vectored(&[a, b].map(IoSlice::new)))? {
                reader.consume(len);
                moved = true;
            }
        }
        let room = if *far_ended { 0 } else { writer.room()? };
        let into = &mut buffer[..room.min(BYTES)];
        if !into.is_empty()
            && let Some(len) = now(kernels.read(into))?
        {
            moved = true;
            *far_ended = len == 0;
            match len {
                0 => writer.shutdown(),
                // There is room for all of it.
                len => drop(writer.try_write(&into[..len])?),
            }
        }
        if !moved {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Any address of the same family, and any port.
fn any(like: SocketAddr) -> SocketAddr {
    let ip = match like {
        SocketAddr::V4(_) => IpAddr::from([0; 4]),
        SocketAddr::V6(_) => IpAddr::from([0; 16]),
    };
    (ip, 0).into()
}

/// Returns nothing where a call would wait.
pub(crate) fn now<T>(done: io::Result<T>) -> io::Result<Option<T>> {
    match done {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) if error.kind() == ErrorKind::NotConnected => Ok(None),
        done => done.map(Some),
    }
}
