//! TLS whose records any worker seals and opens, with `rustls` as the peer: by hand over bad wires,
//! with workers that stall, die and unwind, and on threads. What the keys are is random; everything
//! else follows from the printed seed.

#![cfg(feature = "testkit")]

use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::thread;

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::testkit::{Variant, keeps_text, stall_in_record};
use dominoes_netstack::testkit::{stalled_in_record, unwind_in_record};
use dominoes_netstack::time::Duration;
use dominoes_netstack::tls::{TlsError, TlsHandshake, TlsListener, TlsStream};
use dominoes_netstack::{Limits, SocketError, Stack, TcpStream};
use dominoes_testkit::Rng;
use dominoes_testkit::faults::FaultPlan;
use dominoes_testkit::host::Stalls;
use dominoes_testkit::link::{Faults, LinkConfig};
use dominoes_testkit::net::{HostConfig, HostId, Net};
use dominoes_testkit::rng::Cases;
use rustls::crypto::aws_lc_rs as provider;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{AlertDescription, ClientConfig, ClientConnection, Connection, RootCertStore};
use rustls::{ServerConfig, ServerConnection, SupportedCipherSuite};

/// Every text begins so, every 64 bytes: what no frame may carry.
const MARK: &[u8] = b"this is text that nobody sees";
const PATIENCE: Duration = Duration::from_secs(600);

/// All suites that records are made with here.
const SUITES: [SupportedCipherSuite; 6] = [
    provider::cipher_suite::TLS13_AES_128_GCM_SHA256,
    provider::cipher_suite::TLS13_AES_256_GCM_SHA384,
    provider::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    provider::cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    provider::cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    provider::cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
];
const TLS13: SupportedCipherSuite = SUITES[1];
const TLS12: SupportedCipherSuite = SUITES[4];

fn configs(suite: SupportedCipherSuite) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let mut with = provider::default_provider();
    with.cipher_suites = vec![suite];
    let with = Arc::new(with);
    let version = suite.version();
    let [root, leaf] = [
        &include_bytes!("data/tls/ca.der")[..],
        &include_bytes!("data/tls/leaf.der")[..],
    ];
    let key = PrivatePkcs8KeyDer::from(&include_bytes!("data/tls/leaf.key.der")[..]);
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

fn name() -> ServerName<'static> {
    ServerName::try_from("server.test").unwrap()
}

fn text(len: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut text = Vec::with_capacity(len + 64);
    while text.len() < len {
        text.extend_from_slice(MARK);
        text.extend((MARK.len()..64).map(|_| rng.next() as u8));
    }
    text.truncate(len);
    text
}

/// Who speaks TLS at an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Ours,
    Rustls,
}

/// One end of a connection.
enum End {
    Begun(Box<TlsHandshake>),
    Ours(TlsStream),
    Rustls(Box<Connection>, TcpStream),
    Gone,
}

fn would_block<T>(done: Result<T, TlsError>) -> Result<Option<T>, TlsError> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(TlsError::Socket(SocketError::WouldBlock)) => Ok(None),
        Err(error) => Err(error),
    }
}

impl End {
    fn client(who: Who, stream: TcpStream, config: &Arc<ClientConfig>) -> End {
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

    fn server(who: Who, stream: TcpStream, config: &Arc<ServerConfig>) -> End {
        match who {
            Who::Ours => End::Begun(Box::new(TlsHandshake::server(stream, config).unwrap())),
            Who::Rustls => {
                let session = ServerConnection::new(Arc::clone(config)).unwrap();
                End::rustls(session.into(), stream)
            }
        }
    }

    fn rustls(mut session: Connection, stream: TcpStream) -> End {
        stream.set_nonblocking(true).unwrap();
        // What is not bounded is taken at once.
        session.set_buffer_limit(Some(64 << 10));
        End::Rustls(Box::new(session), stream)
    }

    /// Goes on with the handshake, or with what the session has to send. Returns whether it may
    /// be written to.
    fn go_on(&mut self) -> Result<bool, TlsError> {
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

    fn write(&mut self, from: &[u8]) -> Result<usize, TlsError> {
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

    /// `None`: nothing yet.
    fn read(&mut self, into: &mut [u8]) -> Result<Option<usize>, TlsError> {
        self.go_on()?;
        match self {
            End::Ours(stream) => would_block(stream.try_read(into)),
            End::Rustls(session, stream) => {
                if session.wants_read() {
                    match session.read_tls(stream) {
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

    fn shutdown(&mut self) {
        match self {
            End::Ours(stream) => stream.shutdown_write(),
            End::Rustls(session, stream) => {
                session.send_close_notify();
                while session.wants_write() && session.write_tls(stream).is_ok() {}
            }
            _ => panic!("the handshake is not finished"),
        }
    }

    /// Whether `rustls` has sent all.
    fn is_drained(&self) -> bool {
        match self {
            End::Rustls(session, _) => !session.wants_write(),
            _ => true,
        }
    }

    fn update_keys(&mut self) {
        match self {
            End::Ours(stream) => drop(stream.update_keys()),
            End::Rustls(session, _) => session.refresh_traffic_keys().unwrap(),
            _ => panic!("the handshake is not finished"),
        }
    }

    fn ours(&mut self) -> &mut TlsStream {
        match self {
            End::Ours(stream) => stream,
            _ => panic!("it is not ours"),
        }
    }

    fn rustls_parts(&mut self) -> (&mut Connection, &mut TcpStream) {
        match self {
            End::Rustls(session, stream) => (session, stream),
            _ => panic!("it is ours"),
        }
    }
}

/// Two hosts, a connection between them, and what its frames carry.
struct Pair {
    net: Net,
    hosts: [HostId; 2],
    /// The server's and the client's.
    ends: [End; 2],
    /// Frames that carry text.
    seen: Rc<Cell<usize>>,
}

struct Plan {
    variant: Variant,
    who: [Who; 2],
    suite: SupportedCipherSuite,
    wire: LinkConfig,
    stalls: Stalls,
    deaths: FaultPlan,
    limits: Limits,
}

impl Plan {
    fn new(variant: Variant, who: [Who; 2], suite: SupportedCipherSuite) -> Plan {
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

    fn build(&self, seed: u64) -> Pair {
        self.build_with(seed, &configs(self.suite))
    }

    fn build_with(&self, seed: u64, configs: &(Arc<ServerConfig>, Arc<ClientConfig>)) -> Pair {
        let mut net = Net::new(seed);
        let host = |net: &mut Net| {
            let config = HostConfig::new(self.variant)
                .limits(self.limits)
                .stalls(self.stalls)
                .fault_plan(self.deaths)
                .wires(self.wire.clone(), self.wire.clone());
            net.add(config).unwrap()
        };
        let hosts = [host(&mut net), host(&mut net)];
        let seen = Rc::new(Cell::new(0));
        let count = Rc::clone(&seen);
        net.watch(move |_, _, frame| {
            if frame.windows(MARK.len()).any(|part| part == MARK) {
                count.set(count.get() + 1);
            }
        });
        let listener = net.sockets(hosts[0]).listen(443, 4).unwrap();
        let remote = net.address_of(hosts[0], 443);
        let mut opening = net.sockets(hosts[1]).begin_connect(remote).unwrap();
        let mut streams = [None, None];
        net.run(PATIENCE, |_| {
            let [server, client] = &mut streams;
            *client = client.take().or(opening.try_finish()?);
            *server = server
                .take()
                .or(listener.try_accept().ok().map(|(stream, _)| stream));
            Ok(match (&server, &client) {
                (Some(_), Some(_)) => ControlFlow::Break(()),
                _ => ControlFlow::Continue(0),
            })
        })
        .unwrap();
        let [server, client] = streams.map(Option::unwrap);
        Pair {
            net,
            hosts,
            ends: [
                End::server(self.who[0], server, &configs.0),
                End::client(self.who[1], client, &configs.1),
            ],
            seen,
        }
    }
}

impl Pair {
    fn handshake(&mut self) {
        self.both(|ends| {
            let mut done = true;
            for end in ends {
                // `rustls` reads in order to go on.
                assert_eq!(end.read(&mut [0])?, None, "nobody writes");
                done &= end.go_on()?;
            }
            Ok(done)
        })
        .unwrap();
    }

    /// Calls `step` until it is over.
    fn both(
        &mut self,
        mut step: impl FnMut(&mut [End; 2]) -> Result<bool, TlsError>,
    ) -> Result<(), TlsError> {
        let mut failed = None;
        let ends = &mut self.ends;
        let ran = self.net.run(PATIENCE, |moment| {
            // Workers may have units that bring no frame.
            moment.wake_at(moment.now() + Duration::from_micros(500));
            match step(ends) {
                Ok(false) => Ok(ControlFlow::Continue(0)),
                Ok(true) => Ok(ControlFlow::Break(())),
                Err(error) => {
                    failed = Some(error);
                    Ok(ControlFlow::Break(()))
                }
            }
        });
        assert!(ran.is_ok(), "{ran:?}");
        failed.map_or(Ok(()), Err)
    }

    /// Both write `texts`, in writes of random length up to `at_once`, and read what the other
    /// writes, to the end. `between` is called before each step.
    fn exchange(
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

const OURS: [Who; 2] = [Who::Ours, Who::Ours];
const SERVER: [Who; 2] = [Who::Ours, Who::Rustls];
const CLIENT: [Who; 2] = [Who::Rustls, Who::Ours];

fn bad_wire() -> LinkConfig {
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

fn seed() -> u64 {
    let seed = dominoes_testkit::rng::number("TLS_SEED").unwrap_or(0x715);
    println!("TLS_SEED={seed}");
    seed
}

#[test]
fn every_variant_speaks_every_suite_with_rustls_and_with_itself_over_bad_wires() {
    let seed = seed();
    let mut case = 0;
    for variant in Variant::ALL {
        for who in [OURS, SERVER, CLIENT] {
            case += 1;
            let mut plan = Plan::new(variant, who, SUITES[case % SUITES.len()]);
            plan.wire = bad_wire();
            println!("{variant:?} {who:?} {:?}", plan.suite.suite());
            let seed = seed + case as u64;
            let texts = [text(150_000, seed), text(90_000, seed + 1)];
            let texts = [&texts[0][..], &texts[1][..]];
            plan.build(seed).exchange(texts, 40_000, seed, |_, _| {});
        }
    }
}

#[test]
fn keys_are_replaced_in_the_middle_of_both_streams() {
    let seed = seed();
    for (case, who) in [OURS, SERVER, CLIENT].into_iter().enumerate() {
        let mut plan = Plan::new(Variant::Replicated(2), who, SUITES[case]);
        plan.wire = bad_wire();
        let texts = [text(300_000, seed), text(300_000, seed + 1)];
        let mut rng = Rng::new(seed);
        let (mut before, mut updates) = ([0; 2], 0);
        let mut pair = plan.build(seed);
        let texts = [&texts[0][..], &texts[1][..]];
        pair.exchange(texts, 50_000, seed, |ends, written| {
            for i in 0..2 {
                // Behind something new, so that it is no flood.
                if written[i] > before[i] && written[i] < texts[i].len() && rng.below(2) == 0 {
                    ends[i].update_keys();
                    updates += 1;
                }
            }
            before = written;
        });
        assert!(updates > 5, "{updates}");
    }
}

#[test]
fn workers_stall_and_die_and_no_byte_changes() {
    let cases = Cases::new("TLS", "cargo test -p dominoes-netstack --test main tls", 24);
    let deaths = cases.run(|seed| {
        let case = seed as usize;
        let who = [OURS, SERVER, CLIENT][case % 3];
        let mut plan = Plan::new(Variant::Replicated(3), who, SUITES[case / 3 % SUITES.len()]);
        plan.wire = bad_wire();
        plan.stalls.ppm = 20_000;
        plan.stalls.longest = Duration::from_micros(500);
        plan.deaths.joins_ppm = 2_000;
        plan.deaths.leaves_ppm = 500;
        plan.deaths.failures_ppm = 500;
        plan.deaths.panics_ppm = 500;
        let texts = [text(120_000, seed), text(120_000, seed ^ 1)];
        let mut pair = plan.build(seed);
        pair.exchange([&texts[0], &texts[1]], 60_000, seed, |_, _| {});
        let stats = [0, 1].map(|i| pair.net.host(pair.hosts[i]).fault_stats());
        Ok(stats
            .map(|stats| stats.failures + stats.failures_performing)
            .iter()
            .sum::<u64>())
    });
    assert!(deaths.iter().sum::<u64>() > 0, "no worker died");
}

/// What `rustls` has to send, without sending it.
fn raw(session: &mut Connection) -> Vec<u8> {
    let mut bytes = Vec::new();
    while session.wants_write() {
        session.write_tls(&mut bytes).unwrap();
    }
    bytes
}

impl Pair {
    /// The end that is `rustls` sends `bytes` as they are, in writes of at most `at_once`, and the
    /// other reads until it has heard `until` bytes or fails.
    fn send_raw(
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
                // The connection may be over before all of it is sent.
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

    /// All that an end hears.
    fn read_to_end(&mut self, at: usize) -> Result<Vec<u8>, TlsError> {
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

    /// What the end that is `rustls` hears from the other one, until it fails.
    fn alert(&mut self, at: usize) -> TlsError {
        let mut buffer = [0; 1000];
        let heard = self.both(|ends| Ok(ends[at].read(&mut buffer)?.is_some()));
        heard.expect_err("an alert is heard")
    }
}

fn heard(alert: AlertDescription) -> TlsError {
    TlsError::Handshake(rustls::Error::AlertReceived(alert))
}

fn flipped(at: usize, bit: u8, suite: SupportedCipherSuite) {
    let mut pair = Plan::new(Variant::Single, SERVER, suite).build(at as u64);
    pair.handshake();
    let (session, _) = pair.ends[1].rustls_parts();
    session.writer().write_all(b"before").unwrap();
    let mut bytes = raw(session);
    let begin = bytes.len();
    session
        .writer()
        .write_all(b"what somebody changes")
        .unwrap();
    bytes.extend(raw(session));
    bytes[begin + at] ^= bit;
    // Behind it, as much as the longest length may ask for.
    session.writer().write_all(&[7; 17_000]).unwrap();
    bytes.extend(raw(session));
    let (read, done) = pair.send_raw(1, &bytes, usize::MAX, usize::MAX);
    assert_eq!(read, b"before", "byte {at}");
    let is_tls13 = suite.tls13().is_some();
    let long = usize::from(bytes[begin + 3]) << 8 > 16 << 10;
    let alert = match at {
        0 if is_tls13 => AlertDescription::UnexpectedMessage,
        1 if !is_tls13 => AlertDescription::ProtocolVersion,
        3 if long => AlertDescription::RecordOverflow,
        _ => AlertDescription::BadRecordMac,
    };
    assert_eq!(done, Err(TlsError::Refused(alert)), "byte {at}");
    assert_eq!(pair.alert(1), heard(alert), "byte {at}");
    let mut buffer = [0; 10];
    let ours = pair.ends[0].ours();
    assert_eq!(ours.try_read(&mut buffer), Err(TlsError::Refused(alert)));
    assert_eq!(ours.try_write(b"more"), Err(TlsError::Refused(alert)));
}

#[test]
fn a_record_that_is_changed_anywhere_ends_the_connection_with_its_alert() {
    for (suite, overhead) in [(TLS13, 22), (TLS12, 29)] {
        for at in 0..overhead + 21 {
            flipped(at, 1, suite);
        }
        flipped(3, 0x80, suite);
    }
}

#[test]
fn records_of_one_byte_and_records_that_come_byte_by_byte() {
    for suite in [TLS13, TLS12] {
        let mut pair = Plan::new(Variant::Replicated(2), SERVER, suite).build(seed());
        pair.handshake();
        let sent = text(3_000, 1);
        let (session, _) = pair.ends[1].rustls_parts();
        let mut bytes = Vec::new();
        for byte in &sent {
            session.writer().write_all(&[*byte]).unwrap();
            bytes.extend(raw(session));
        }
        let (read, done) = pair.send_raw(1, &bytes, usize::MAX, sent.len());
        assert!(done.is_ok() && read == sent, "{done:?}");
        let sent = text(16 << 10, 2);
        let (session, stream) = pair.ends[1].rustls_parts();
        stream.set_nodelay(true).unwrap();
        session.writer().write_all(&sent).unwrap();
        let bytes = raw(session);
        let (read, done) = pair.send_raw(1, &bytes, 1, sent.len());
        assert!(done.is_ok() && read == sent, "{done:?}");
        assert_eq!(pair.seen.get(), 0);
    }
}

#[test]
fn a_flood_of_key_updates_ends_the_connection() {
    let mut pair = Plan::new(Variant::Single, SERVER, TLS13).build(seed());
    pair.handshake();
    let (session, _) = pair.ends[1].rustls_parts();
    let mut bytes = Vec::new();
    for _ in 0..40 {
        session.refresh_traffic_keys().unwrap();
        bytes.extend(raw(session));
    }
    session.writer().write_all(b"behind").unwrap();
    bytes.extend(raw(session));
    let (read, done) = pair.send_raw(1, &bytes, usize::MAX, 6);
    let alert = AlertDescription::UnexpectedMessage;
    assert_eq!((read, done), (Vec::new(), Err(TlsError::Refused(alert))));
    assert_eq!(pair.alert(1), heard(alert));
}

#[test]
fn an_end_with_close_notify_and_one_without_are_told_apart() {
    for (is_whole, cut) in [(true, 0), (false, 0), (false, 1), (false, 5), (false, 25)] {
        let mut pair = Plan::new(Variant::Replicated(2), SERVER, TLS13).build(seed());
        pair.handshake();
        let (session, _) = pair.ends[1].rustls_parts();
        session.writer().write_all(b"some").unwrap();
        let mut bytes = raw(session);
        if cut > 0 {
            session.writer().write_all(b"last").unwrap();
            bytes.extend(&raw(session)[..cut]);
        }
        if is_whole {
            session.send_close_notify();
            bytes.extend(raw(session));
        }
        let (_, stream) = pair.ends[1].rustls_parts();
        assert_eq!(stream.try_write(&bytes), Ok(bytes.len()));
        stream.shutdown_write();
        let (read, done) = pair.send_raw(1, &[], 1, usize::MAX);
        let expected = match is_whole {
            true => Ok(()),
            false => Err(TlsError::Truncated),
        };
        assert_eq!((&read[..], done), (&b"some"[..], expected), "cut at {cut}");
    }
}

#[test]
fn a_key_is_replaced_before_it_has_sealed_too_much() {
    let sent = text(400_000, 3);
    for who in [OURS, SERVER] {
        let mut pair = Plan::new(Variant::Replicated(2), who, TLS13).build(seed());
        pair.handshake();
        pair.ends[0].ours().halves().1.set_record_limit(20);
        pair.exchange([&sent, b"x"], 40_000, 4, |_, _| {});
    }
    let mut pair = Plan::new(Variant::Single, SERVER, TLS12).build(seed());
    pair.handshake();
    let ours = pair.ends[0].ours();
    ours.halves().1.set_record_limit(20);
    let mut records = 0;
    let over = loop {
        match ours.try_write(b"a record") {
            Ok(_) => records += 1,
            Err(error) => break error,
        }
    };
    assert!(
        over == TlsError::KeyExhausted && records < 20,
        "{records} {over}"
    );
    assert_eq!(ours.update_keys(), Err(SocketError::Invalid.into()));
}

#[test]
fn a_session_is_resumed_with_the_ticket_that_came_after_the_handshake() {
    for suite in [TLS13, TLS12] {
        for who in [OURS, SERVER, CLIENT] {
            let configs = configs(suite);
            let plan = Plan::new(Variant::Single, who, suite);
            for is_resumed in [false, true] {
                let mut pair = plan.build_with(seed(), &configs);
                pair.exchange([b"one", b"two"], 100, 5, |_, _| {});
                for end in &mut pair.ends {
                    if let End::Ours(stream) = end {
                        assert_eq!(stream.info().is_resumed, is_resumed, "{who:?} {suite:?}");
                        assert_eq!(stream.info().suite, suite);
                    }
                }
            }
        }
    }
}

#[test]
fn a_worker_that_unwinds_in_a_record_leaves_it_to_the_next() {
    let sent = text(200_000, 6);
    for who in [OURS, SERVER, CLIENT] {
        for after in [0, 1, 5] {
            let mut pair = Plan::new(Variant::Single, who, SUITES[after]).build(seed());
            pair.handshake();
            for host in pair.hosts {
                unwind_in_record(pair.net.sockets(host), after as u64);
            }
            let mut unwound = 0;
            let (mut written, mut heard) = ([0; 2], [Vec::new(), Vec::new()]);
            let mut buffer = vec![0; 10_000];
            loop {
                let go_on = || {
                    pair.both(|ends| {
                        for i in 0..2 {
                            if written[i] < sent.len() {
                                written[i] += ends[i].write(&sent[written[i]..])?;
                            }
                            // It leaves the first look to the workers.
                            while let Some(len) = ends[i].read(&mut buffer)? {
                                heard[i].extend_from_slice(&buffer[..len]);
                            }
                        }
                        Ok(heard.iter().all(|heard| heard.len() == sent.len()))
                    })
                };
                let went = std::panic::catch_unwind(std::panic::AssertUnwindSafe(go_on));
                match went {
                    Ok(done) => break done.unwrap(),
                    Err(_) => unwound += 1,
                }
            }
            assert!(heard.iter().all(|heard| *heard == sent));
            assert!(unwound > 0, "{who:?} {after}");
            assert_eq!(pair.seen.get(), 0);
        }
    }
}

#[test]
fn what_is_no_tls_is_refused_and_nothing_panics() {
    let cases = Cases::new("TLS", "cargo test -p dominoes-netstack --test main tls", 60);
    cases.run(|seed| {
        let mut rng = Rng::new(seed);
        let suite = SUITES[rng.below(6) as usize];
        let mut pair = Plan::new(Variant::Single, SERVER, suite).build(seed);
        let is_finished = rng.below(4) > 0;
        if is_finished {
            pair.handshake();
        }
        // Records with headers that may be right, of any content, and what follows from that.
        let mut bytes = Vec::new();
        while bytes.len() < 2_000 {
            let len = rng.below(300) as usize;
            let kind = 20 + rng.below(5) as u8;
            bytes.extend([kind, 3, rng.below(5) as u8, (len >> 8) as u8, len as u8]);
            bytes.extend((0..len).map(|_| rng.next() as u8));
        }
        let at_once = 1 + rng.below(500) as usize;
        let mut sent = 0;
        let done = pair.both(|ends| {
            let (_, stream) = ends[1].rustls_parts();
            let left = &bytes[sent..];
            if !left.is_empty() {
                sent += stream
                    .try_write(&left[..left.len().min(at_once)])
                    .unwrap_or(0);
            } else {
                stream.shutdown_write();
            }
            let read = ends[0].read(&mut [0; 100])?;
            assert_eq!(read, None);
            Ok(false)
        });
        match done {
            Err(TlsError::Refused(_)) if is_finished => Ok(()),
            // It may wait for the rest of a message.
            Err(TlsError::Handshake(_) | TlsError::Truncated) if !is_finished => Ok(()),
            done => Err(format!("{done:?}, {is_finished}")),
        }
    });
}

#[test]
fn a_failed_handshake_sends_its_alert_and_says_why() {
    let (server, mut client) = configs(TLS13);
    Arc::make_mut(&mut client).alpn_protocols = vec![b"another".to_vec()];
    let mut server = server;
    Arc::make_mut(&mut server).alpn_protocols = vec![b"one".to_vec()];
    let mut pair = Plan::new(Variant::Single, SERVER, TLS13).build_with(1, &(server, client));
    let failed = pair.both(|ends| {
        let _ = ends[1].read(&mut [0]);
        ends[0].go_on()
    });
    let why = rustls::Error::NoApplicationProtocol;
    assert_eq!(failed, Err(TlsError::Handshake(why)));
    assert_eq!(
        pair.alert(1),
        heard(AlertDescription::NoApplicationProtocol)
    );
}

#[test]
fn a_stream_with_clones_and_a_buffer_that_is_too_short_are_refused() {
    let (server, _) = configs(TLS13);
    for (bytes, is_cloned) in [(1 << 17, true), (1 << 14, false)] {
        let mut plan = Plan::new(Variant::Single, [Who::Rustls; 2], TLS13);
        plan.limits.receive_buffer = bytes;
        let mut pair = plan.build(1);
        let End::Rustls(_, stream) = std::mem::replace(&mut pair.ends[0], End::Gone) else {
            panic!("it is ours");
        };
        let clone = is_cloned.then(|| stream.try_clone().unwrap());
        let refused = TlsHandshake::server(stream, &server).err().unwrap();
        match clone {
            Some(_) => assert_eq!(refused, TlsError::NotAlone),
            None => assert_eq!(refused, TlsError::BufferTooShort),
        }
    }
}

/// Both ends are ours, on threads of their own.
#[test]
fn on_threads_workers_are_killed_and_all_arrives() {
    let sent = Arc::new(text(6 << 20, 7));
    for suite in [TLS13, TLS12] {
        let (server_config, client_config) = configs(suite);
        let (left, right) = memory::pair(MemoryConfig::default());
        let server = Stack::builder("10.0.0.1/24")
            .replicas(2)
            .start(left)
            .unwrap();
        let client = Stack::builder("10.0.0.2/24")
            .replicas(2)
            .start(right)
            .unwrap();
        let listener = TlsListener::new(server.listen(443, 4).unwrap(), &server_config);
        let text = Arc::clone(&sent);
        let serving = thread::spawn(move || {
            let (handshake, _) = listener.accept().unwrap();
            let mut stream = handshake.finish().unwrap();
            let mut heard = vec![0; text.len()];
            stream.read_exact(&mut heard).unwrap();
            assert!(heard == *text);
            stream.write_all(&heard).unwrap();
        });
        let stream = client.connect("10.0.0.1:443").unwrap();
        let stream = TlsStream::connect(stream, &client_config, name()).unwrap();
        let (mut reader, mut writer) = stream.split();
        let text = Arc::clone(&sent);
        let writing = thread::spawn(move || {
            for (at, part) in text.chunks(1 << 20).enumerate() {
                writer.write_all(part).unwrap();
                if at < 5 && suite == TLS13 {
                    writer.update_keys().or_else(blocks).unwrap();
                }
            }
            writer
        });
        for stack in [&server, &client] {
            unwind_in_record(&stack.sockets(), 20);
        }
        let mut heard = Vec::new();
        let done = reader.read_to_end(&mut heard);
        assert!(done.is_ok() && heard == *sent, "{done:?} {}", heard.len());
        drop(writing.join().unwrap());
        serving.join().unwrap();
    }
}

/// How a writer ends its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Shutdown,
    Drop,
    Close,
}

/// Both workers stand in the middle of a record when the stream ends: the peer reads what was
/// written before, and close_notify. Then no text is left in the stack's memory.
#[test]
fn an_end_waits_for_records_that_workers_are_sealing() {
    let sent = text(60 << 10, 11);
    for (ending, suite) in [
        (Ending::Shutdown, TLS13),
        (Ending::Drop, TLS12),
        (Ending::Close, TLS13),
        (Ending::Close, TLS12),
    ] {
        let (server_config, client_config) = configs(suite);
        let (left, right) = memory::pair(MemoryConfig::default());
        let server = Stack::builder("10.0.0.1/24").start(left).unwrap();
        let client = Stack::builder("10.0.0.2/24").replicas(2);
        let client = client.start(right).unwrap();
        let sockets = client.sockets();
        let listener = TlsListener::new(server.listen(443, 4).unwrap(), &server_config);
        let (said, heard) = mpsc::channel();
        let serving = thread::spawn(move || {
            let (handshake, _) = listener.accept().unwrap();
            let mut stream = handshake.finish().unwrap();
            let mut text = Vec::new();
            let done = stream.read_to_end(&mut text);
            said.send((done.map_err(|error| error.kind()), text))
                .unwrap();
        });
        let stream = client.connect("10.0.0.1:443").unwrap();
        let mut stream = TlsStream::connect(stream, &client_config, name()).unwrap();
        stall_in_record(&sockets, true);
        stream.write_all(&sent).unwrap();
        while stalled_in_record(&sockets) < 2 {
            thread::yield_now();
        }
        let done = match ending {
            Ending::Shutdown => {
                stream.shutdown_write();
                None
            }
            Ending::Drop => {
                drop(stream);
                None
            }
            Ending::Close => Some(thread::spawn(move || {
                let done = client.close(std::time::Duration::from_secs(60));
                (done, stream)
            })),
        };
        // What ends without waiting has time to do so.
        assert!(
            heard
                .recv_timeout(std::time::Duration::from_millis(50))
                .is_err()
        );
        stall_in_record(&sockets, false);
        let (done_reading, text) = heard.recv().unwrap();
        assert_eq!(done_reading, Ok(sent.len()), "{ending:?}");
        assert!(text == sent, "{ending:?}");
        serving.join().unwrap();
        if let Some(closing) = done {
            let (closed, stream) = closing.join().unwrap();
            assert!(closed.is_ok(), "{closed:?}");
            drop(stream);
        }
        if ending == Ending::Drop {
            // The worker that had the connection last lets it go.
            let gone = (0..1_000_000).any(|_| {
                thread::yield_now();
                !keeps_text(&sockets)
            });
            assert!(gone, "text is left");
        }
    }
}

fn blocks(error: TlsError) -> Result<(), TlsError> {
    match error {
        TlsError::Socket(SocketError::WouldBlock) => Ok(()),
        error => Err(error),
    }
}

#[test]
fn a_key_update_that_is_not_read_resets_no_connection() {
    let sent = text(60_000, 9);
    let mut pair = Plan::new(Variant::Replicated(2), SERVER, TLS13).build(seed());
    pair.handshake();
    pair.ends[1].update_keys();
    let (session, _) = pair.ends[1].rustls_parts();
    let update = raw(session);
    let (read, done) = pair.send_raw(1, &update, usize::MAX, 0);
    assert!(read.is_empty() && done.is_ok(), "{done:?}");
    pair.net.pass(Duration::from_millis(100));
    assert_eq!(pair.ends[0].write(&sent), Ok(sent.len()));
    pair.ends[0] = End::Gone;
    assert_eq!(pair.read_to_end(1), Ok(sent));
}

#[test]
fn dropping_a_stream_sends_what_was_written_and_close_notify() {
    let sent = text(60_000, 8);
    let mut pair = Plan::new(Variant::Replicated(2), SERVER, TLS13).build(seed());
    pair.handshake();
    assert_eq!(pair.ends[0].write(&sent), Ok(sent.len()));
    pair.ends[0] = End::Gone;
    assert_eq!(pair.read_to_end(1), Ok(sent));
}
