//! Libraries that accept any stream, over our streams, with Linux' TCP at the other end: `rustls`
//! with `curl`, `tungstenite`, an echo that waits in mio with `socat`, and `ureq` with a custom
//! transport.
//!
//! Our side is this program, which the tests start again in its namespace with [`PEER`] as its
//! first argument.

#[path = "../../crates/netstack/tests/clients/over_ours.rs"]
mod over_ours;

use std::collections::HashMap;
use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream as KernelStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dominoes_drivers::tap::Tap;
use dominoes_netstack::poller::{Interest, Poller, Token, Trigger};
use dominoes_netstack::{SocketError, Stack, TcpStream};
use libtest_mimic::Failed;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use sha2::{Digest, Sha256};
use tungstenite::Message;

use crate::fixture::{self, Device, Ends, OURS, Program, THEIRS, Temporary, explain};
use crate::{CURL, same};

/// The first argument of the program. The second is its task: `tls`, `web`, `mio` or `ureq` with a
/// stack over the TAP, `kernel` without a stack.
pub(crate) const PEER: &str = "--library-peer";

type Test = fn(&Ends, &Program) -> Result<(), Failed>;

/// Name of the test, task of the program, and the test.
pub(crate) const TESTS: [(&str, &str, Test); 4] = [
    ("rustls_answers_curl", "tls", tls),
    ("tungstenite_speaks_to_itself_over_the_kernel", "web", web),
    ("an_echo_that_sleeps_in_mio_serves_socat", "mio", echo),
    ("ureq_gets_what_socat_serves", "ureq", ureq),
];

/// Bytes in each direction: more than any buffer holds.
const LEN: usize = 3 << 20;
/// Concurrent clients.
const CLIENTS: usize = 4;
const HTTP: u16 = 80;
const HTTPS: u16 = 443;
const ECHO: u16 = 7;
const KERNELS: u16 = 8000;
const MESSAGES: u8 = 8;

pub(crate) fn run(what: &str, test: Test) -> Result<(), Failed> {
    let ends = Ends::new(Device::Tap)?;
    let program = std::env::current_exe()?;
    let mut command = ends.our_command(&program);
    command.args([PEER, what]);
    let mut server = fixture::serve(&mut command)?;
    ends.wait_until_running()?;
    test(&ends, &server).map_err(|failed| explain(&mut server, &failed))
}

fn tls(ends: &Ends, _: &Program) -> Result<(), Failed> {
    let folder = Temporary::new()?;
    let written = folder.write("sent", LEN, 5)?;
    let der = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../crates/netstack/tests/data/tls/ca.der"
    );
    let [pem, sent, got] = ["ca.pem", "sent", "got"].map(|name| folder.file(name));
    let convert = ["x509", "-inform", "der", "-in", der, "-out", &pem];
    ends.speak("openssl", &convert)?.finish()?;
    let place = format!("server.test:{HTTPS}:{OURS}");
    let data = format!("@{sent}");
    let asks = ["--cacert", &pem, "--resolve", &place, "--header", "Expect:"];
    let sends = ["--data-binary", &data, "--output", &got];
    let url = ["https://server.test/"];
    let arguments = [&CURL[..], &asks, &sends, &url].concat();
    ends.speak("curl", &arguments)?.finish()?;
    same(folder.hash("got")? == written, "what curl got")
}

fn web(ends: &Ends, _: &Program) -> Result<(), Failed> {
    let program = std::env::current_exe()?.display().to_string();
    let said = ends.speak(&program, &[PEER, "kernel"])?.finish()?;
    match said.trim() == format!("{MESSAGES} messages came back") {
        true => Ok(()),
        false => Err(said.into()),
    }
}

fn echo(ends: &Ends, _: &Program) -> Result<(), Failed> {
    let folder = Temporary::new()?;
    let mut asking = Vec::new();
    for client in 0..CLIENTS {
        let (sent, got) = (format!("sent{client}"), format!("got{client}"));
        let written = folder.write(&sent, LEN, client as u64)?;
        let [from, to] = [&sent, &got].map(|name| folder.file(name));
        let line = format!("socat -t 60 - TCP4:{OURS}:{ECHO} < {from} > {to}");
        asking.push((ends.speak("sh", &["-c", &line])?, got, written));
    }
    for (socat, got, written) in asking {
        socat.finish()?;
        same(folder.hash(&got)? == written, &got)?;
    }
    Ok(())
}

fn ureq(ends: &Ends, server: &Program) -> Result<(), Failed> {
    let folder = Temporary::new()?;
    folder.write("body", LEN, 9)?;
    let [head, body] = ["head", "body"].map(|name| folder.file(name));
    std::fs::write(
        &head,
        format!("HTTP/1.1 200 OK\r\nContent-Length: {LEN}\r\n\r\n"),
    )?;
    let answer = format!("SYSTEM:head -n 1 > {head}.asked; cat {head} {body}");
    let listens = format!("TCP4-LISTEN:{KERNELS},reuseaddr,fork");
    let serving = ends.speak("socat", &["-d", "-d", "-t", "60", &listens, &answer])?;
    serving.wait_for("listening on", 1)?;
    server.wait_for(&format!("got {}", folder.hex("body")?), 1)?;
    let asked = std::fs::read_to_string(format!("{head}.asked"))?;
    same(asked.starts_with("GET /something HTTP/1.1"), &asked)
}

/// The program; `arguments` follow [`PEER`].
pub(crate) fn peer(arguments: &[String]) -> Result<(), Box<dyn Error + Send + Sync>> {
    let [what] = arguments else {
        return Err("one argument".into());
    };
    if what == "kernel" {
        return web_client();
    }
    let device = Tap::open(Device::Tap.interface())?;
    let stack = Stack::builder(&format!("{OURS}/24")).start(device)?;
    match &**what {
        "tls" => serve_tls(&stack),
        "web" => serve_web(&stack),
        "mio" => serve_in_mio(&stack),
        _ => get_by_ureq(&stack),
    }
}

fn ready() {
    println!("listening on {OURS}");
}

/// Answers HTTP requests with their bodies.
fn answer(stream: &mut (impl Read + Write)) -> io::Result<()> {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            if stream.read(&mut byte)? == 0 {
                return Ok(());
            }
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head).to_lowercase();
        let len = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        let len = len.and_then(|len| len.parse().ok()).unwrap_or(0);
        let mut body = vec![0; len];
        stream.read_exact(&mut body)?;
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n")?;
        stream.write_all(&body)?;
        stream.flush()?;
    }
}

fn serve_tls(stack: &Stack) -> Result<(), Box<dyn Error + Send + Sync>> {
    const LEAF: &[u8] = include_bytes!("../../crates/netstack/tests/data/tls/leaf.der");
    const KEY: &[u8] = include_bytes!("../../crates/netstack/tests/data/tls/leaf.key.der");
    let config = ServerConfig::builder().with_no_client_auth();
    let key = PrivatePkcs8KeyDer::from(KEY);
    let config = config.with_single_cert(vec![CertificateDer::from(LEAF)], key.into())?;
    let config = Arc::new(config);
    let listener = stack.listen(HTTPS, 4)?;
    ready();
    loop {
        let (stream, _) = listener.accept()?;
        let session = ServerConnection::new(Arc::clone(&config))?;
        let mut stream = StreamOwned::new(session, stream);
        if let Err(error) = answer(&mut stream) {
            eprintln!("{error}");
        }
    }
}

fn serve_web(stack: &Stack) -> Result<(), Box<dyn Error + Send + Sync>> {
    let listener = stack.listen(HTTP, 4)?;
    ready();
    loop {
        let (stream, _) = listener.accept()?;
        let mut socket = tungstenite::accept(stream).map_err(|error| error.to_string())?;
        while let Ok(message) = socket.read() {
            if message.is_binary() {
                socket.send(message)?;
            }
        }
    }
}

/// Over a stream of the kernel.
fn web_client() -> Result<(), Box<dyn Error + Send + Sync>> {
    let stream = KernelStream::connect((OURS, HTTP))?;
    let opened = tungstenite::client(format!("ws://{OURS}/"), stream);
    let (mut socket, _) = opened.map_err(|error| error.to_string())?;
    for number in 0..MESSAGES {
        let message = Message::binary(vec![number; LEN / usize::from(MESSAGES)]);
        socket.send(message.clone())?;
        if socket.read()? != message {
            return Err("another message came back".into());
        }
    }
    socket.close(None)?;
    while socket.read().is_ok() {}
    println!("{MESSAGES} messages came back");
    Ok(())
}

/// A connection of the echo, and bytes that were read and not yet written.
struct Echo {
    stream: TcpStream,
    waiting: Vec<u8>,
    has_ended: bool,
}

impl Echo {
    /// Works until it would block. Returns whether the connection is over.
    fn go_on(&mut self, buffer: &mut [u8]) -> Result<bool, SocketError> {
        let blocks = |done: Result<usize, SocketError>| match done {
            Err(SocketError::WouldBlock) => Ok(None),
            done => done.map(Some),
        };
        loop {
            while !self.waiting.is_empty() {
                match blocks(self.stream.try_write(&self.waiting))? {
                    Some(len) => drop(self.waiting.drain(..len)),
                    None => return Ok(false),
                }
            }
            if self.has_ended {
                return Ok(true);
            }
            match blocks(self.stream.try_read(buffer))? {
                Some(0) => self.has_ended = true,
                Some(len) => self.waiting.extend_from_slice(&buffer[..len]),
                None => return Ok(false),
            }
        }
    }
}

/// mio waits and reports that the poller has events; no call of ours blocks.
fn serve_in_mio(stack: &Stack) -> Result<(), Box<dyn Error + Send + Sync>> {
    const LISTENER: Token = Token(usize::MAX);
    let listener = stack.listen(ECHO, 16)?;
    let mut poller = Poller::new()?;
    poller.register(&listener, LISTENER, Interest::READABLE, Trigger::Edge)?;
    let mut poll = mio::Poll::new()?;
    let registry = poll.registry();
    registry.register(&mut poller, mio::Token(0), mio::Interest::READABLE)?;
    let mut woken = mio::Events::with_capacity(8);
    let mut events = Vec::with_capacity(16);
    let (mut open, mut next, mut buffer) = (HashMap::new(), 0, vec![0; 64 << 10]);
    ready();
    loop {
        poll.poll(&mut woken, None)?;
        // mio reports edges, so all events must be handled.
        while poller.events(&mut events) > 0 {
            for event in &events {
                if event.token == LISTENER {
                    while let Ok((stream, _)) = listener.try_accept() {
                        let token = Token(next);
                        poller.register(&stream, token, Interest::BOTH, Trigger::Edge)?;
                        let echo = Echo {
                            stream,
                            waiting: Vec::new(),
                            has_ended: false,
                        };
                        open.insert(next, echo);
                        next += 1;
                    }
                } else if let Some(echo) = open.get_mut(&event.token.0)
                    && echo.go_on(&mut buffer)?
                {
                    open.remove(&event.token.0);
                }
            }
        }
    }
}

fn get_by_ureq(stack: &Stack) -> Result<(), Box<dyn Error + Send + Sync>> {
    let agent = ureq::Agent::with_parts(
        ureq::config::Config::default(),
        over_ours::Ours(stack.sockets()),
        ureq::unversioned::resolver::DefaultResolver::default(),
    );
    ready();
    let url = format!("http://{THEIRS}:{KERNELS}/something");
    // Repeats until `socat` serves there.
    let mut answer = loop {
        match agent.get(&url).call() {
            Err(ureq::Error::Io(error)) if error.kind() == ErrorKind::ConnectionRefused => {
                thread::sleep(Duration::from_millis(20));
            }
            done => break done?,
        }
    };
    let body = answer.body_mut().read_to_vec()?;
    let mut hex = String::new();
    for byte in Sha256::digest(&body) {
        write!(hex, "{byte:02x}")?;
    }
    println!("got {hex}");
    // The test ends this process once it has read the output.
    thread::sleep(Duration::from_secs(120));
    Ok(())
}
