//! Libraries that accept any stream, over ours: TLS by `rustls`, WebSockets by `tungstenite`, HTTP
//! by `ureq` with our transport; blocking, and woken by a poller.

#![cfg(feature = "testkit")]

mod over_ours;

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddrV4;
use std::sync::Arc;
use std::thread;

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::poller::{Interest, Poller, Token, Trigger};
use dominoes_netstack::testkit::Variant;
use dominoes_netstack::{Stack, TcpStream};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use rustls::{Connection, StreamOwned};
use tungstenite::{HandshakeError, Message, WebSocket};

use crate::support::LONG;

/// Bytes in each direction: more than any buffer holds.
const LEN: usize = 3 << 20;

/// A server with a replicated stack, and a client's stack, joined in memory.
fn pair() -> (Stack, Stack) {
    let (left, right) = memory::pair(MemoryConfig::default());
    let server = Stack::builder("10.0.0.1/24").variant(Variant::Replicated(2).kind());
    let server = server.replicas(2).start(left).unwrap();
    let client = Stack::builder("10.0.0.2/24").start(right).unwrap();
    (server, client)
}

fn connected(server: &Stack, client: &Stack) -> (TcpStream, TcpStream) {
    let listener = server.listen(7, 4).unwrap();
    let to = SocketAddrV4::new([10, 0, 0, 1].into(), 7);
    let theirs = client.connect(to).unwrap();
    (listener.accept().unwrap().0, theirs)
}

fn pattern() -> Vec<u8> {
    (0..LEN).map(|at| (at * 31 + at / 977) as u8).collect()
}

fn tls() -> (ServerConnection, ClientConnection) {
    let [root, leaf] = [
        &include_bytes!("data/tls/ca.der")[..],
        &include_bytes!("data/tls/leaf.der")[..],
    ];
    let key = PrivatePkcs8KeyDer::from(&include_bytes!("data/tls/leaf.key.der")[..]);
    let server = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![CertificateDer::from(leaf)], key.into());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(root)).unwrap();
    let client = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("server.test").unwrap();
    (
        ServerConnection::new(Arc::new(server.unwrap())).unwrap(),
        ClientConnection::new(Arc::new(client), name).unwrap(),
    )
}

#[test]
fn tls_over_a_stream_that_blocks() {
    let (server, client) = pair();
    let (ours, theirs) = connected(&server, &client);
    let (session, opened) = tls();
    let serving = thread::spawn(move || {
        let mut stream = StreamOwned::new(session, ours);
        let mut all = vec![0; LEN];
        stream.read_exact(&mut all).unwrap();
        stream.write_all(&all).unwrap();
        stream.conn.send_close_notify();
        stream.flush().unwrap();
    });
    let mut stream = StreamOwned::new(opened, theirs);
    let sent = pattern();
    stream.write_all(&sent).unwrap();
    stream.flush().unwrap();
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).unwrap();
    assert!(heard == sent, "{} bytes", heard.len());
    serving.join().unwrap();
}

/// One end of TLS that never blocks: writes `sent`, and returns the bytes that it reads.
fn poll_tls(mut session: Connection, mut stream: TcpStream, sent: &[u8]) -> Vec<u8> {
    stream.set_nonblocking(true).unwrap();
    let poller = Poller::new().unwrap();
    let registered = poller.register(&stream, Token(0), Interest::BOTH, Trigger::Edge);
    registered.unwrap();
    let (mut written, mut heard) = (0, Vec::new());
    let mut events = Vec::with_capacity(1);
    while heard.len() < LEN || written < sent.len() || session.wants_write() {
        let mut is_blocked = true;
        let mut moved = |done: std::io::Result<usize>| match done {
            Ok(0) => panic!("the stream ends early"),
            Ok(_) => is_blocked = false,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        };
        if session.wants_write() {
            moved(session.write_tls(&mut stream));
        }
        if session.wants_read() {
            moved(session.read_tls(&mut stream));
            session.process_new_packets().unwrap();
        }
        let mut piece = [0; 16 << 10];
        while let Ok(len) = session.reader().read(&mut piece) {
            heard.extend_from_slice(&piece[..len]);
            is_blocked = false;
        }
        if !session.is_handshaking() && written < sent.len() {
            let len = session.writer().write(&sent[written..]).unwrap();
            written += len;
            is_blocked &= len == 0;
        }
        if is_blocked {
            assert!(
                poller.wait(&mut events, Some(LONG)) > 0,
                "{} bytes",
                heard.len()
            );
        }
    }
    heard
}

#[test]
fn tls_over_streams_that_a_poller_waits_for() {
    let (server, client) = pair();
    let (ours, theirs) = connected(&server, &client);
    let (session, opened) = tls();
    let sent = pattern();
    thread::scope(|scope| {
        let serving = scope.spawn(|| poll_tls(session.into(), ours, &sent));
        assert!(poll_tls(opened.into(), theirs, &sent) == sent);
        assert!(serving.join().unwrap() == sent);
    });
}

/// Calls `attempt` again, after waiting, until it does not want to wait.
fn until<T, E>(
    poller: &Poller,
    mut attempt: impl FnMut() -> Result<T, E>,
    waits: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let mut events = Vec::with_capacity(1);
    loop {
        match attempt() {
            Err(error) if waits(&error) => {
                assert!(poller.wait(&mut events, Some(LONG)) > 0, "nothing comes");
            }
            done => return done,
        }
    }
}

fn waits(error: &tungstenite::Error) -> bool {
    matches!(error, tungstenite::Error::Io(error) if error.kind() == ErrorKind::WouldBlock)
}

/// Echoes messages until the peer closes.
fn echo_messages(mut socket: WebSocket<TcpStream>, poller: &Poller) {
    loop {
        match until(poller, || socket.read(), waits) {
            Ok(message) if message.is_binary() || message.is_text() => {
                // A message that does not fit is kept, and leaves with the next flush.
                match socket.send(message) {
                    Err(error) if waits(&error) => {
                        until(poller, || socket.flush(), waits).unwrap();
                    }
                    done => done.unwrap(),
                }
            }
            Ok(_) => {}
            Err(_) => break,
        }
    }
}

#[test]
fn web_sockets_over_streams_that_block_and_that_a_poller_waits_for() {
    let (server, client) = pair();
    for nonblocking in [false, true] {
        let (ours, theirs) = connected(&server, &client);
        let serving = thread::spawn(move || {
            let poller = Poller::new().unwrap();
            ours.set_nonblocking(nonblocking).unwrap();
            poller
                .register(&ours, Token(0), Interest::BOTH, Trigger::Edge)
                .unwrap();
            let mut begun = Some(tungstenite::accept(ours));
            let mut events = Vec::with_capacity(1);
            let socket = loop {
                match begun.take().unwrap() {
                    Ok(socket) => break socket,
                    Err(HandshakeError::Interrupted(middle)) => {
                        assert!(nonblocking);
                        assert!(poller.wait(&mut events, Some(LONG)) > 0);
                        begun = Some(middle.handshake());
                    }
                    Err(HandshakeError::Failure(error)) => panic!("{error}"),
                }
            };
            echo_messages(socket, &poller);
        });
        let (mut socket, _) = tungstenite::client("ws://server.test/", theirs).unwrap();
        for len in [0, 1, 1000, 300_000] {
            let message = Message::binary(pattern()[..len].to_vec());
            socket.send(message.clone()).unwrap();
            assert!(socket.read().unwrap() == message, "{len} bytes");
        }
        socket.close(None).unwrap();
        while socket.read().is_ok() {}
        serving.join().unwrap();
    }
}

#[test]
fn http_by_a_client_with_its_own_transport() {
    let (server, client) = pair();
    let listener = server.listen(80, 4).unwrap();
    let serving = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let (mut reader, mut writer) = stream.split();
        for _ in 0..2 {
            // Both requests of a persistent connection: a head, and a body of the stated length.
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                reader.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            let head = String::from_utf8(head).unwrap().to_lowercase();
            let len = head.split("content-length: ").nth(1).map_or(0, |rest| {
                rest.split("\r\n").next().unwrap().parse().unwrap()
            });
            let mut body = vec![0; len];
            reader.read_exact(&mut body).unwrap();
            let answer = if len == 0 { pattern() } else { body };
            write!(
                writer,
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
                answer.len()
            )
            .unwrap();
            writer.write_all(&answer).unwrap();
        }
    });
    let agent = ureq::Agent::with_parts(
        ureq::config::Config::default(),
        over_ours::Ours(client.sockets()),
        ureq::unversioned::resolver::DefaultResolver::default(),
    );
    let url = "http://10.0.0.1/something";
    let mut answer = agent.get(url).call().unwrap();
    assert_eq!(answer.status(), 200);
    assert!(answer.body_mut().read_to_vec().unwrap() == pattern());
    let sent = pattern();
    let mut answer = agent.post(url).send(&sent[..]).unwrap();
    assert!(answer.body_mut().read_to_vec().unwrap() == sent);
    serving.join().unwrap();
}
