//! Two hosts with a TLS connection between them, either end of which may be `rustls`, and helpers
//! for tests.

use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::rc::Rc;
use std::sync::Arc;

use dominoes_netstack::testkit::Variant;
use dominoes_netstack::tls::{TlsError, TlsHandshake, TlsStream};
use dominoes_netstack::{Limits, SocketError, TcpStream};
use dominoes_testkit::Rng;
use dominoes_testkit::faults::FaultPlan;
use dominoes_testkit::host::Stalls;
use dominoes_testkit::link::{Faults, LinkConfig};
use dominoes_testkit::net::{HostConfig, HostId, Net};
use rustls::crypto::aws_lc_rs as provider;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{AlertDescription, ClientConfig, ClientConnection, Connection, RootCertStore};
use rustls::{ServerConfig, ServerConnection, SupportedCipherSuite};

pub(super) use crate::support::text;
use crate::support::{carries_text, connect, go_on};

/// All cipher suites under test.
pub(super) const SUITES: [SupportedCipherSuite; 6] = [
    provider::cipher_suite::TLS13_AES_128_GCM_SHA256,
    provider::cipher_suite::TLS13_AES_256_GCM_SHA384,
    provider::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    provider::cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    provider::cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    provider::cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
];
pub(crate) const TLS13: SupportedCipherSuite = SUITES[1];
pub(crate) const TLS12: SupportedCipherSuite = SUITES[4];

pub(crate) fn configs(suite: SupportedCipherSuite) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let mut with = provider::default_provider();
    with.cipher_suites = vec![suite];
    let with = Arc::new(with);
    let version = suite.version();
    let [root, leaf] = [
        &include_bytes!("../data/tls/ca.der")[..],
        &include_bytes!("../data/tls/leaf.der")[..],
    ];
    let key = PrivatePkcs8KeyDer::from(&include_bytes!("../data/tls/leaf.key.der")[..]);
    let server = ServerConfig::builder_with_provider(Arc::clone(&with))
        .with_protocol_versions(&[version])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![CertificateDer::from(leaf)], key.into());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(root)).unwrap();
    let client = ClientConfig::builder_with_provider(with)
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (Arc::new(server.unwrap()), Arc::new(client))
}

pub(crate) fn name() -> ServerName<'static> {
    ServerName::try_from("server.test").unwrap()
}

/// The implementation of TLS at an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Ours,
    Rustls,
}

/// One end of a connection.
pub(super) enum End {
    Begun(Box<TlsHandshake>),
    Ours(TlsStream),
    Rustls(Box<Connection>, Wire),
    Gone,
}

/// The stream of a `rustls` end, on which a record may be changed.
pub(super) struct Wire {
    pub(super) stream: TcpStream,
    /// Position in the current record, its length, and the byte and bits to change.
    at: usize,
    len: usize,
    change: Option<(usize, u8)>,
    /// Selects the change of the next record.
    armed: Option<u64>,
    /// The alert that must answer the change.
    pub(super) alert: Option<AlertDescription>,
    is_tls13: bool,
}

impl Wire {
    fn new(stream: TcpStream) -> Wire {
        Wire {
            stream,
            at: 0,
            len: 0,
            change: None,
            armed: None,
            alert: None,
            is_tls13: false,
        }
    }

    /// Changes one bit of the next record.
    pub(super) fn forge_next(&mut self, choice: u64, suite: SupportedCipherSuite) {
        self.armed = Some(choice);
        self.is_tls13 = suite.tls13().is_some();
    }

    fn begin(&mut self, record: &[u8]) {
        self.len = 5 + usize::from(u16::from_be_bytes([record[3], record[4]]));
        let Some(choice) = self.armed.take() else {
            return;
        };
        let rest = choice / 8;
        let any_bit = 1 << (rest % 8);
        let (at, bit) = match choice % 8 {
            header @ 0..3 => (header as usize, any_bit),
            // Longer than any record, or shorter than this one: then the reader waits for no more
            // bytes.
            3 if rest.is_multiple_of(2) => (3, 0x80),
            3 if record[4] == 0 => (3, record[3] & record[3].wrapping_neg()),
            3 => (4, record[4] & record[4].wrapping_neg()),
            4 => (self.len - 1 - (rest / 8 % 16) as usize, any_bit),
            _ => (5 + (rest / 8 % (self.len as u64 - 5)) as usize, any_bit),
        };
        self.change = Some((at, bit));
        self.alert = Some(match at {
            0 if self.is_tls13 || !(21..24).contains(&(record[0] ^ bit)) => {
                AlertDescription::UnexpectedMessage
            }
            1 if !self.is_tls13 => AlertDescription::ProtocolVersion,
            3 if bit == 0x80 => AlertDescription::RecordOverflow,
            _ => AlertDescription::BadRecordMac,
        });
    }
}

/// `rustls` writes record by record.
impl Write for Wire {
    fn write(&mut self, from: &[u8]) -> std::io::Result<usize> {
        if self.at == 0 {
            self.begin(from);
        }
        let from = &from[..from.len().min(self.len - self.at)];
        let written = match self.change {
            Some((at, bit)) if (self.at..self.at + from.len()).contains(&at) => {
                let mut changed = from.to_vec();
                changed[at - self.at] ^= bit;
                self.stream.write(&changed)?
            }
            _ => self.stream.write(from)?,
        };
        self.at += written;
        if self.at == self.len {
            (self.at, self.change) = (0, None);
        }
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

pub(super) fn would_block<T>(done: Result<T, TlsError>) -> Result<Option<T>, TlsError> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(TlsError::Socket(SocketError::WouldBlock)) => Ok(None),
        Err(error) => Err(error),
    }
}

impl End {
    pub(super) fn client(who: Who, stream: TcpStream, config: &Arc<ClientConfig>) -> End {
        match who {
            Who::Ours => End::Begun(Box::new(
                TlsHandshake::client(stream, config, name()).unwrap(),
            )),
            Who::Rustls => {
                let session = ClientConnection::new(Arc::clone(config), name()).unwrap();
                End::rustls(session.into(), stream)
            }
        }
    }

    pub(super) fn server(who: Who, stream: TcpStream, config: &Arc<ServerConfig>) -> End {
        match who {
            Who::Ours => End::Begun(Box::new(TlsHandshake::server(stream, config).unwrap())),
            Who::Rustls => {
                let session = ServerConnection::new(Arc::clone(config)).unwrap();
                End::rustls(session.into(), stream)
            }
        }
    }

    pub(super) fn rustls(mut session: Connection, stream: TcpStream) -> End {
        stream.set_nonblocking(true).unwrap();
        // Without a bound, the session would take all bytes at once.
        session.set_buffer_limit(Some(64 << 10));
        End::Rustls(Box::new(session), Wire::new(stream))
    }

    /// Continues the handshake, or sends what the session has. Returns whether the end can be
    /// written to.
    pub(super) fn go_on(&mut self) -> Result<bool, TlsError> {
        match self {
            End::Begun(handshake) => {
                let Some(stream) = handshake.try_finish()? else {
                    return Ok(false);
                };
                *self = End::Ours(stream);
                Ok(true)
            }
            End::Ours(_) => Ok(true),
            End::Rustls(session, stream) => {
                while session.wants_write() {
                    match session.write_tls(stream) {
                        Ok(_) => {}
                        Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                        Err(error) => return Err(SocketError::of(&error).unwrap().into()),
                    }
                }
                Ok(!session.is_handshaking())
            }
            End::Gone => panic!("it is gone"),
        }
    }

    pub(super) fn write(&mut self, from: &[u8]) -> Result<usize, TlsError> {
        if !self.go_on()? {
            return Ok(0);
        }
        let written = match self {
            End::Ours(stream) => would_block(stream.try_write(from))?.unwrap_or(0),
            End::Rustls(session, _) => session.writer().write(from).unwrap(),
            _ => 0,
        };
        self.go_on()?;
        Ok(written)
    }

    /// `None` if nothing has arrived.
    pub(super) fn read(&mut self, into: &mut [u8]) -> Result<Option<usize>, TlsError> {
        self.go_on()?;
        match self {
            End::Ours(stream) => would_block(stream.try_read(into)),
            End::Rustls(session, stream) => {
                if session.wants_read() {
                    match session.read_tls(&mut stream.stream) {
                        Ok(_) => {}
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                        Err(error) => return Err(SocketError::of(&error).unwrap().into()),
                    }
                    session.process_new_packets().map_err(TlsError::Handshake)?;
                }
                match session.reader().read(into) {
                    Ok(len) => Ok(Some(len)),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
                    Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                        Err(TlsError::Truncated)
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            _ => Ok(None),
        }
    }

    pub(super) fn shutdown(&mut self) {
        match self {
            End::Ours(stream) => stream.shutdown_write(),
            End::Rustls(session, stream) => {
                session.send_close_notify();
                while session.wants_write() && session.write_tls(stream).is_ok() {}
            }
            _ => panic!("the handshake is not finished"),
        }
    }

    /// Whether `rustls` has sent all it has.
    pub(super) fn is_drained(&self) -> bool {
        match self {
            End::Rustls(session, _) => !session.wants_write(),
            _ => true,
        }
    }

    pub(super) fn update_keys(&mut self) {
        match self {
            End::Ours(stream) => drop(stream.update_keys()),
            End::Rustls(session, _) => session.refresh_traffic_keys().unwrap(),
            _ => panic!("the handshake is not finished"),
        }
    }

    pub(super) fn ours(&mut self) -> &mut TlsStream {
        match self {
            End::Ours(stream) => stream,
            _ => panic!("it is not ours"),
        }
    }

    pub(super) fn rustls_parts(&mut self) -> (&mut Connection, &mut TcpStream) {
        match self {
            End::Rustls(session, wire) => (session, &mut wire.stream),
            _ => panic!("it is ours"),
        }
    }
}

/// Two hosts, a connection between them, and what its frames carry.
pub(super) struct Pair {
    pub(super) net: Net,
    pub(super) hosts: [HostId; 2],
    /// The server's and the client's.
    pub(super) ends: [End; 2],
    /// Frames that carry text.
    pub(super) seen: Rc<Cell<usize>>,
}

pub(super) struct Plan {
    pub(super) variant: Variant,
    pub(super) who: [Who; 2],
    pub(super) suite: SupportedCipherSuite,
    pub(super) wire: LinkConfig,
    pub(super) stalls: Stalls,
    pub(super) deaths: FaultPlan,
    pub(super) limits: Limits,
}

impl Plan {
    pub(super) fn new(variant: Variant, who: [Who; 2], suite: SupportedCipherSuite) -> Plan {
        let mut limits = Limits::default();
        limits.connections = 4;
        limits.receive_buffer = 1 << 17;
        limits.send_buffer = 1 << 17;
        Plan {
            variant,
            who,
            suite,
            wire: LinkConfig::default(),
            stalls: Stalls::default(),
            deaths: FaultPlan::default(),
            limits,
        }
    }

    pub(super) fn build(&self, seed: u64) -> Pair {
        self.build_with(seed, &configs(self.suite))
    }

    pub(super) fn build_with(
        &self,
        seed: u64,
        configs: &(Arc<ServerConfig>, Arc<ClientConfig>),
    ) -> Pair {
        let host = HostConfig::new(self.variant)
            .limits(self.limits)
            .stalls(self.stalls)
            .fault_plan(self.deaths)
            .wires(self.wire.clone(), self.wire.clone());
        Pair::new(seed, [host.clone(), host], self.who, configs)
    }
}

impl Pair {
    /// Opens the connection. The first host has the server.
    pub(super) fn new(
        seed: u64,
        hosts: [HostConfig; 2],
        who: [Who; 2],
        configs: &(Arc<ServerConfig>, Arc<ClientConfig>),
    ) -> Pair {
        let mut net = Net::new(seed);
        let hosts = hosts.map(|host| net.add(host).unwrap());
        let seen = Rc::new(Cell::new(0));
        let count = Rc::clone(&seen);
        net.watch(move |_, _, frame| count.set(count.get() + usize::from(carries_text(frame))));
        let [server, client] = connect(&mut net, hosts, 443);
        Pair {
            net,
            hosts,
            ends: [
                End::server(who[0], server, &configs.0),
                End::client(who[1], client, &configs.1),
            ],
            seen,
        }
    }

    pub(super) fn handshake(&mut self) {
        self.both(|ends| {
            let mut done = true;
            for end in ends {
                // `rustls` makes progress by reading.
                assert_eq!(end.read(&mut [0])?, None, "nobody writes");
                done &= end.go_on()?;
            }
            Ok(done)
        })
        .unwrap();
    }

    /// Calls `step` until it returns true.
    pub(super) fn both(
        &mut self,
        mut step: impl FnMut(&mut [End; 2]) -> Result<bool, TlsError>,
    ) -> Result<(), TlsError> {
        let ends = &mut self.ends;
        go_on(&mut self.net, || step(ends))
    }

    /// Both ends write `texts`, in writes of random length up to `at_once`, and read the other's
    /// text to its end. `between` is called before each step.
    pub(super) fn exchange(
        &mut self,
        texts: [&[u8]; 2],
        at_once: u64,
        seed: u64,
        mut between: impl FnMut(&mut [End; 2], [usize; 2]),
    ) {
        let mut rng = Rng::new(seed);
        let (mut written, mut shut) = ([0; 2], [false; 2]);
        let mut heard = [Vec::new(), Vec::new()];
        let mut over = [false; 2];
        let mut buffer = vec![0; 20_000];
        self.both(|ends| {
            between(ends, written);
            for i in 0..2 {
                let end = &mut ends[i];
                let left = &texts[i][written[i]..];
                let len = left.len().min(1 + rng.below(at_once) as usize);
                if len > 0 {
                    written[i] += end.write(&left[..len])?;
                } else if !shut[i] && end.go_on()? && end.is_drained() {
                    end.shutdown();
                    shut[i] = true;
                }
                while !over[i]
                    && let Some(len) = end.read(&mut buffer)?
                {
                    over[i] = len == 0;
                    heard[i].extend_from_slice(&buffer[..len]);
                }
                let other = texts[1 - i];
                assert!(other.starts_with(&heard[i]), "end {i} reads something else");
            }
            Ok(over == [true; 2] && shut == [true; 2])
        })
        .unwrap();
        for i in 0..2 {
            assert_eq!(heard[i].len(), texts[1 - i].len(), "end {i}");
        }
        assert_eq!(self.seen.get(), 0, "frames carry text");
    }
}

pub(super) const OURS: [Who; 2] = [Who::Ours, Who::Ours];
pub(super) const SERVER: [Who; 2] = [Who::Ours, Who::Rustls];
pub(super) const CLIENT: [Who; 2] = [Who::Rustls, Who::Ours];

pub(super) fn bad_wire() -> LinkConfig {
    let mut faults = Faults::default();
    faults.loss_ppm = 5_000;
    faults.reorder_ppm = 20_000;
    faults.reorder_distance = 4;
    faults.duplicate_ppm = 5_000;
    faults.corrupt_ppm = 5_000;
    LinkConfig::default()
        .delay(core::time::Duration::from_micros(50))
        .jitter(core::time::Duration::from_micros(100))
        .faults(faults)
}

pub(super) fn seed() -> u64 {
    let seed = dominoes_testkit::rng::number("TLS_SEED").unwrap_or(0x715);
    println!("TLS_SEED={seed}");
    seed
}

/// Takes the bytes that `rustls` has to send, without sending them.
pub(super) fn raw(session: &mut Connection) -> Vec<u8> {
    let mut bytes = Vec::new();
    while session.wants_write() {
        session.write_tls(&mut bytes).unwrap();
    }
    bytes
}

impl Pair {
    /// The `rustls` end sends `bytes` as they are, in writes of at most `at_once`. The other end
    /// reads until it has `until` bytes or fails.
    pub(super) fn send_raw(
        &mut self,
        from: usize,
        bytes: &[u8],
        at_once: usize,
        until: usize,
    ) -> (Vec<u8>, Result<(), TlsError>) {
        let (mut sent, mut heard) = (0, Vec::new());
        let mut buffer = [0; 1000];
        let done = self.both(|ends| {
            let (_, stream) = ends[from].rustls_parts();
            let left = &bytes[sent..];
            match stream.try_write(&left[..left.len().min(at_once)]) {
                _ if left.is_empty() => {}
                Ok(len) => sent += len,
                Err(SocketError::WouldBlock) => {}
                // The connection may end before all is sent.
                Err(error) => assert!(error == SocketError::Reset, "{error}"),
            }
            while let Some(len) = ends[1 - from].read(&mut buffer)? {
                if len == 0 {
                    return Ok(true);
                }
                heard.extend_from_slice(&buffer[..len]);
            }
            Ok(heard.len() >= until && sent == bytes.len())
        });
        (heard, done)
    }

    /// Reads an end of the connection to its end.
    pub(super) fn read_to_end(&mut self, at: usize) -> Result<Vec<u8>, TlsError> {
        let (mut heard, mut buffer) = (Vec::new(), vec![0; 10_000]);
        self.both(|ends| {
            while let Some(len) = ends[at].read(&mut buffer)? {
                heard.extend_from_slice(&buffer[..len]);
                if len == 0 {
                    return Ok(true);
                }
            }
            Ok(false)
        })?;
        Ok(heard)
    }

    /// The error of the `rustls` end after it receives an alert.
    pub(super) fn alert(&mut self, at: usize) -> TlsError {
        let mut buffer = [0; 1000];
        let heard = self.both(|ends| Ok(ends[at].read(&mut buffer)?.is_some()));
        heard.expect_err("an alert is heard")
    }
}

pub(super) fn heard(alert: AlertDescription) -> TlsError {
    TlsError::Handshake(rustls::Error::AlertReceived(alert))
}
