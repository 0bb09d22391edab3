//! A stub resolver (RFC 1034 section 5.3.1): sockets for the questions of a `Lookup`.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use super::wait::wait_for_socket_table;
use super::{Connecting, Sockets, TcpStream, UdpSocket};
use crate::error::SocketError;
use crate::io::sleep;
use crate::packet::dns::{Lookup, LookupError, Step};
use crate::time::Instant;

/// Longest answer in a datagram without EDNS (RFC 1035 section 4.2.1), and room for a server that
/// ignores that.
const DATAGRAM: usize = 4096;

/// Datagrams that one call looks at.
const AT_ONCE: usize = 64;

/// How often a thread that waits for a server looks for one by itself.
const GLANCE: Duration = Duration::from_millis(50);

/// Turns names into addresses, by asking DNS servers over the sockets of a stack.
///
/// It asks for IPv4 and IPv6 addresses (A, AAAA), follows aliases (CNAME), tries the domains of a
/// search list, and repeats a question over TCP if its answer does not fit a datagram. Each
/// question has its own random port, identifier and case of letters (RFC 5452); datagrams that do
/// not answer it are dropped. Nothing is cached.
///
/// ```no_run
/// use dominoes_netstack::{Resolver, Stack};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (device, _) = dominoes_drivers::memory::pair(Default::default());
/// let stack = Stack::builder("10.0.0.2/24").start(device)?;
/// let resolver = Resolver::new(stack.sockets(), ["10.0.0.1:53".parse()?]);
/// let stream = resolver.search(["corp.example"]).connect("www:80")?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Resolver {
    sockets: Sockets,
    servers: Vec<SocketAddr>,
    search: Vec<String>,
    attempts: u8,
    timeout: Duration,
}

impl Resolver {
    /// A resolver that asks these servers, in order. Port 53 is usual. Without a server, each
    /// lookup asks those that the links have at its time (see [`InterfaceStatus::dns_servers`]),
    /// and also looks in their domains; it waits until there is one.
    ///
    /// [`InterfaceStatus::dns_servers`]: crate::InterfaceStatus::dns_servers
    pub fn new(sockets: Sockets, servers: impl IntoIterator<Item = SocketAddr>) -> Resolver {
        Resolver {
            sockets,
            servers: servers.into_iter().collect(),
            search: Vec::new(),
            attempts: 3,
            timeout: Duration::from_secs(2),
        }
    }

    /// Domains in which a name is looked up as well: before the name itself if it has no dot, after
    /// it otherwise, and not at all if it ends with a dot. Default: none.
    #[must_use]
    pub fn search<T: Into<String>>(mut self, domains: impl IntoIterator<Item = T>) -> Resolver {
        self.search = domains.into_iter().map(T::into).collect();
        self
    }

    /// How often each server is asked before a lookup fails, at least 1. Default 3.
    #[must_use]
    pub fn attempts(mut self, attempts: u8) -> Resolver {
        self.attempts = attempts.max(1);
        self
    }

    /// How long a question waits for its answer. Default 2 s.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Resolver {
        self.timeout = timeout;
        self
    }

    /// Begins to look up the addresses of a name. Never blocks. The name is ASCII, up to 253 bytes
    /// (RFC 1035 section 2.3.4); a program converts other letters first (RFC 5890).
    ///
    /// # Errors
    /// [`SocketError::Down`]: the stack was shut down, or the system has no random numbers.
    pub fn begin_resolve(&self, name: &str) -> Result<Resolving, SocketError> {
        let mut secret = [0; 16];
        getrandom::fill(&mut secret).map_err(|_| SocketError::Down)?;
        self.sockets.check_up()?;
        let secret = u128::from_ne_bytes(secret);
        let mut resolving = Resolving {
            resolver: self.clone(),
            name: name.to_owned(),
            secret: [secret as u64, (secret >> 64) as u64],
            lookup: None,
            exchange: None,
            deadline: Instant::NEVER,
        };
        if !self.servers.is_empty() {
            resolving.begin();
        }
        Ok(resolving)
    }

    /// The addresses of a name, or the address that the text is; IPv6 comes first. Waits for the
    /// servers.
    ///
    /// # Errors
    /// As [`Resolving::try_finish`].
    pub fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, SocketError> {
        if let Ok(address) = name.parse() {
            return Ok(vec![address]);
        }
        let (mut resolving, began) = (self.begin_resolve(name)?, sleep::now());
        loop {
            let now = sleep::now().saturating_duration_since(began);
            let now = Instant::ZERO + now.into();
            if let Some(found) = resolving.try_finish(now)? {
                return Ok(found);
            }
            resolving.wait(now);
        }
    }

    /// Opens a connection to `remote`, a name or address with a port (`"www.example.org:80"`):
    /// tries the addresses in order until one accepts. Waits for servers and peer.
    ///
    /// # Errors
    /// As [`Resolver::resolve`]; [`SocketError::NoAddress`] without a port; and as
    /// [`Connecting::finish`] for the last address.
    pub fn connect(&self, remote: &str) -> Result<TcpStream, SocketError> {
        if let Ok(remote) = remote.parse::<SocketAddr>() {
            return self.sockets.begin_connect(remote)?.finish();
        }
        let (name, port) = remote.rsplit_once(':').ok_or(SocketError::NoAddress)?;
        let port = port.parse().map_err(|_| SocketError::NoAddress)?;
        let mut last = SocketError::NoAddress;
        for address in self.resolve(name)? {
            let remote = SocketAddr::new(address, port);
            let opened = self.sockets.begin_connect(remote);
            match opened.and_then(Connecting::finish) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// A lookup under way: [`Resolver::begin_resolve`] creates it.
pub struct Resolving {
    resolver: Resolver,
    name: String,
    secret: [u64; 2],
    /// `None` until a server is known.
    lookup: Option<Lookup>,
    /// The question that waits for an answer.
    exchange: Option<Exchange>,
    /// When it gives the question up, or the wait for a server.
    deadline: Instant,
}

/// A question and its socket.
enum Exchange {
    Datagram {
        socket: UdpSocket,
        server: SocketAddr,
        is_sent: bool,
    },
    Opening(Connecting),
    Stream {
        stream: TcpStream,
        sent: usize,
        received: Vec<u8>,
    },
}

impl Resolving {
    /// The addresses, or `None` if the lookup is not over. Never blocks. `now` is any clock that
    /// does not go back, such as the clock of a stack by hand: the first call after
    /// [`Resolver::timeout`] repeats a question without an answer.
    ///
    /// # Errors
    /// [`SocketError::NoAddress`]: the text is no name, or the name has no address.
    /// [`SocketError::TimedOut`]: no server answered, all refused, or none was known for
    /// [`Resolver::timeout`] times [`Resolver::attempts`]. [`SocketError::Down`].
    pub fn try_finish(&mut self, now: Instant) -> Result<Option<Vec<IpAddr>>, SocketError> {
        loop {
            let Some(lookup) = &mut self.lookup else {
                match self.learn(now)? {
                    true => continue,
                    false => return Ok(None),
                }
            };
            let (server, over_tcp, message) = match lookup.step() {
                Step::Ask {
                    server,
                    over_tcp,
                    message,
                } => (self.resolver.servers[server], over_tcp, message),
                Step::Done(Ok(found)) => return Ok(Some(found)),
                Step::Done(Err(LookupError::NoName)) => return Err(SocketError::NoAddress),
                Step::Done(Err(LookupError::NoAnswer)) => return Err(SocketError::TimedOut),
            };
            if self.exchange.is_none() {
                self.deadline = now + self.resolver.timeout.into();
                match Exchange::begin(&self.resolver.sockets, server, over_tcp) {
                    Ok(exchange) => self.exchange = Some(exchange),
                    Err(error) => self.fail(error)?,
                }
            }
            let (Some(exchange), Some(lookup)) = (&mut self.exchange, &mut self.lookup) else {
                continue;
            };
            match exchange.advance(&message, lookup) {
                Ok(true) => self.exchange = None,
                Ok(false) if now < self.deadline => return Ok(None),
                Ok(false) => self.fail(SocketError::TimedOut)?,
                Err(error) => self.fail(error)?,
            }
        }
    }

    /// Begins to ask the resolver's servers.
    fn begin(&mut self) {
        let resolver = &self.resolver;
        let search = resolver.search.iter().map(String::as_str);
        let servers = resolver.servers.len();
        let lookup = Lookup::new(&self.name, search, servers, resolver.attempts, self.secret);
        self.lookup = Some(lookup);
    }

    /// Begins to ask the servers that the links have. Returns whether there is one.
    fn learn(&mut self, now: Instant) -> Result<bool, SocketError> {
        self.resolver.sockets.check_up()?;
        let (servers, domains) = self.resolver.sockets.names();
        if !servers.is_empty() {
            self.resolver.servers = servers;
            self.resolver.search.extend(domains);
            self.begin();
            return Ok(true);
        }
        if self.deadline == Instant::NEVER {
            let attempts = u64::from(self.resolver.attempts);
            let wait = crate::time::Duration::from(self.resolver.timeout);
            self.deadline = now + wait.times(attempts);
        }
        match now < self.deadline {
            true => Ok(false),
            false => Err(SocketError::TimedOut),
        }
    }

    /// The question has no answer: the next server is asked, unless the stack is down.
    fn fail(&mut self, error: SocketError) -> Result<(), SocketError> {
        self.exchange = None;
        if error == SocketError::Down {
            return Err(error);
        }
        self.lookup.as_mut().map(Lookup::no_answer);
        Ok(())
    }

    /// Waits until the socket has news, or the question has waited long enough.
    fn wait(&mut self, now: Instant) {
        let left = Duration::from(self.deadline.since(now)).max(Duration::from_micros(1));
        // Whatever happens, the next call of `try_finish` sees it.
        match self.exchange.take() {
            Some(Exchange::Opening(connecting)) => {
                self.exchange = connecting.finish_within(left).ok().map(Exchange::stream);
                if self.exchange.is_none() {
                    self.lookup.as_mut().map(Lookup::no_answer);
                }
                return;
            }
            exchange => self.exchange = exchange,
        }
        match &self.exchange {
            Some(Exchange::Datagram { socket, .. }) => {
                let _ = socket.set_read_timeout(Some(left));
                let _ = socket.peek_from(&mut [0]);
            }
            Some(Exchange::Stream { stream, .. }) => {
                let _ = stream.set_read_timeout(Some(left));
                let _ = stream.peek(&mut [0]);
            }
            // The link has no server yet, or the question is about to be repeated.
            _ if self.lookup.is_none() => {
                let world = self.resolver.sockets.world();
                // A server may have come before this thread sleeps.
                let left = Some(left.min(GLANCE));
                drop(wait_for_socket_table(world, world.socket_table(), left));
            }
            _ => {}
        }
    }
}

impl Exchange {
    fn begin(
        sockets: &Sockets,
        server: SocketAddr,
        over_tcp: bool,
    ) -> Result<Exchange, SocketError> {
        if over_tcp {
            return sockets.begin_connect(server).map(Exchange::Opening);
        }
        Ok(Exchange::Datagram {
            socket: sockets.bind_udp(0)?,
            server,
            is_sent: false,
        })
    }

    const fn stream(stream: TcpStream) -> Exchange {
        Exchange::Stream {
            stream,
            sent: 0,
            received: Vec::new(),
        }
    }

    /// Sends and receives as much as is possible now. Returns whether the answer has arrived.
    fn advance(&mut self, message: &[u8], lookup: &mut Lookup) -> Result<bool, SocketError> {
        if let Exchange::Opening(connecting) = self {
            match connecting.try_finish()? {
                Some(stream) => *self = Exchange::stream(stream),
                None => return Ok(false),
            }
        }
        let outcome = match self {
            Exchange::Datagram {
                socket,
                server,
                is_sent,
            } => exchange_datagrams(socket, *server, is_sent, message, lookup),
            Exchange::Stream {
                stream,
                sent,
                received,
            } => exchange_bytes(stream, sent, received, message, lookup),
            Exchange::Opening(_) => Ok(false),
        };
        match outcome {
            Err(SocketError::WouldBlock) => Ok(false),
            outcome => outcome,
        }
    }
}

fn exchange_datagrams(
    socket: &mut UdpSocket,
    server: SocketAddr,
    is_sent: &mut bool,
    message: &[u8],
    lookup: &mut Lookup,
) -> Result<bool, SocketError> {
    if !*is_sent {
        socket.try_send_to(message, server)?;
        *is_sent = true;
    }
    let mut bytes = [0; DATAGRAM];
    for _ in 0..AT_ONCE {
        let (len, from) = socket.try_recv_from(&mut bytes)?;
        if from == server && lookup.answer(&bytes[..len]) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Two bytes with the length precede a message (RFC 1035 section 4.2.2).
fn exchange_bytes(
    stream: &mut TcpStream,
    sent: &mut usize,
    received: &mut Vec<u8>,
    message: &[u8],
    lookup: &mut Lookup,
) -> Result<bool, SocketError> {
    let mut framed = (message.len() as u16).to_be_bytes().to_vec();
    framed.extend(message);
    while *sent < framed.len() {
        *sent += stream.try_write(&framed[*sent..])?;
    }
    let mut bytes = [0; DATAGRAM];
    loop {
        if let Some((len, rest)) = received.split_first_chunk()
            && let Some(answer) = rest.get(..usize::from(u16::from_be_bytes(*len)))
        {
            // Only the server writes to this connection, so another answer will not follow.
            return match lookup.answer(answer) {
                true => Ok(true),
                false => Err(SocketError::Truncated),
            };
        }
        match stream.try_read(&mut bytes)? {
            0 => return Err(SocketError::Truncated),
            len => received.extend_from_slice(&bytes[..len]),
        }
    }
}
