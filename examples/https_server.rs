//! Serves a folder over HTTPS: HTTP/1.1 like [`http_server`](http_server.rs), over TLS. All
//! replicas (threads with a copy of the connection state) seal and open the TLS records.
//!
//! ```text
//! cargo run --release -p dominoes-tls-examples --example https_server    # tests itself in memory
//! cargo run --release -p dominoes-tls-examples --example https_server -- --tap tap0 \
//!     --root /tmp --save-certificate /tmp/ca.pem
//! sudo target/release/examples/https_server --packet veth0 --root /tmp \
//!     --save-certificate /tmp/ca.pem
//! ```
//!
//! [README.md](README.md) has the commands for these interfaces, and explains Ctrl-C. In memory its
//! clients use our TLS and plain `rustls`, with TLS 1.3 and 1.2. At each start it makes a
//! certificate for its address and for the name `server.test`; `--save-certificate FILE` lets
//! clients trust it. It prints `listening on 10.78.0.1:443, ...`. Then, in another terminal:
//!
//! ```text
//! curl --cacert /tmp/ca.pem -O https://10.78.0.1/some_file
//! curl -k -T some_file https://10.78.0.1/
//! openssl s_client -connect 10.78.0.1:443 -servername server.test -alpn http/1.1
//! ```
//!
//! With `--update-keys N` it changes its key after every N bytes of an answer (TLS 1.3). With
//! `--client-ca FILE` clients need a certificate signed by one in the file. Clients can resume
//! sessions. `http_server.rs` lists the supported parts of HTTP.

#[path = "tls/certificate.rs"]
mod certificate;
#[path = "http_server/client.rs"]
mod client;
#[path = "http_server/files.rs"]
mod files;
#[path = "http_server/http.rs"]
mod http;
#[path = "common/program.rs"]
mod program;
#[path = "http_server/serve.rs"]
mod serve;
#[path = "common/stack.rs"]
mod stack;
#[path = "tls/stream.rs"]
mod stream;
#[path = "common/watch.rs"]
mod watch;
#[path = "common/while_replicas_die.rs"]
mod while_replicas_die;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::Stack;
use dominoes_netstack::tls::{TlsHandshake, TlsListener, TlsReadHalf, TlsStream};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::certificate::SelfSigned;
use crate::client::{Client, Temporary, expect};
use crate::http::Status;
use crate::program::{Arguments, Outcome};
use crate::stack::killer::Killer;
use crate::stack::{StackOptions, Threads, builder};
use crate::watch::watch;
use crate::while_replicas_die::while_replicas_die;

// Command line
// -------------------------------------------------------------------------------------------------------

const ABOUT: &str = "\
Serves a folder over HTTPS; without a device, tests itself in memory.

";

const USAGE: &str = "  --port N            port to listen on [443]
  --root DIR          folder to serve [.]
  --save-certificate FILE  write the server's certificate to this file, in PEM [nowhere]
  --client-ca FILE    clients need a certificate that one of these vouches for, in PEM [they need none]
  --connections N     serve so many at a time, a thread each; more are told to come back [1000]
  --update-keys N     go on with another key after each N bytes that are sent [never]
  --seconds N         stop after this time [never]
";

#[derive(Default)]
struct Options {
    stack: StackOptions,
    port: u16,
    root: PathBuf,
    certificate: Option<PathBuf>,
    clients: Option<PathBuf>,
    connections: usize,
    update_keys: u64,
    seconds: Option<u64>,
}

impl Options {
    fn take(&mut self, option: &str, arguments: &mut Arguments) -> Outcome<bool> {
        match option {
            "port" => self.port = arguments.number(1..=u16::MAX)?,
            "root" => self.root = arguments.path()?,
            "save-certificate" => self.certificate = Some(arguments.path()?),
            "client-ca" => self.clients = Some(arguments.path()?),
            "connections" => self.connections = arguments.number(1..=2 * serve::CONNECTIONS)?,
            "update-keys" => self.update_keys = arguments.number(1..=u64::MAX)?,
            "seconds" => self.seconds = Some(arguments.parse()?),
            _ => return self.stack.take(option, arguments),
        }
        Ok(true)
    }
}

// Serving
// ------------------------------------------------------------------------------------------------------------

fn main() -> ExitCode {
    let usage = [ABOUT, stack::device::USAGE, stack::USAGE, USAGE];
    let options = Options {
        port: 443,
        root: ".".into(),
        connections: serve::CONNECTIONS,
        update_keys: u64::MAX,
        ..Options::default()
    };
    program::main("https_server", &usage, options, Options::take, run)
}

fn run(options: &Options) -> Outcome<()> {
    let threads = options.stack.threads();
    let killer = options.stack.killer(threads.copies())?;
    let own = SelfSigned::new(&options.stack.address()?.to_string())?;
    let Some((device, name)) = options.stack.open()? else {
        return test(threads, killer, &own);
    };
    let clients = match &options.clients {
        None => None,
        Some(file) => Some(certificate::read_roots(&fs::read(file)?)?),
    };
    let config = own.server(clients)?;
    if let Some(file) = &options.certificate {
        fs::write(file, &own.pem)?;
    }
    let root = files::open_root(&options.root)?;
    let stack = options.stack.start(|addr| builder(addr, threads), device)?;
    let end_requested = watch::signals::end_requested()?;
    let listener = TlsListener::new(stack.listen(options.port, 1024)?, &config);
    println!(
        "listening on {}, {}, device {name}",
        options.stack.addresses(&stack, Some(options.port))?,
        threads.name("replica"),
    );
    let (update_keys, most) = (options.update_keys, options.connections);
    let server = thread::spawn(move || accept(&listener, &root, update_keys, most));
    let seconds = options.seconds;
    let watched = watch("https_server", stack, &end_requested, seconds, killer, None);
    server
        .join()
        .map_err(|_| "the server panicked, see above")?;
    watched
}

/// Serves until the stack goes down. The thread of each connection does its handshake.
fn accept(listener: &TlsListener, root: &Path, update_keys: u64, most: usize) {
    let next = || Some(listener.accept().ok()?.0);
    let begin = move |handshake: TlsHandshake| Ok(stream::split(handshake.finish()?, update_keys));
    serve::accept::<_, TlsReadHalf, _>(("https_server", most), next, begin, root);
}

// Without a device
// -----------------------------------------------------------------------------------------------------

/// Bytes between two KeyUpdates of the self-test.
const UPDATES: u64 = 1 << 20;

/// Joins the stacks of a server and its clients in memory.
fn test(threads: Threads, killer: Option<Killer>, own: &SelfSigned) -> Outcome<()> {
    let (_folder, root) = Temporary::with_files()?;
    let (near, far) = memory::pair(MemoryConfig::default().tso4_max_bytes(65_549));
    let server = builder("10.78.0.1/24", threads).start(near)?;
    let peer = builder("10.78.0.2/24", Threads::fixed(1)).start(far)?;
    let listener = TlsListener::new(server.listen(443, 64)?, &own.server(None)?);
    let at = listener.get_ref().local_addr()?;
    println!(
        "listening on {at}, {}, device in memory",
        threads.name("replica")
    );
    let serving = {
        let root = root.clone();
        thread::spawn(move || accept(&listener, &root, UPDATES, serve::CONNECTIONS))
    };
    while_replicas_die(&server, killer, || {
        [false, true]
            .into_iter()
            .try_for_each(|tls12| ask(&peer, at, own.roots()?, tls12, &root))
    })?;
    ask_as_many(&peer, at, own.roots()?)?;
    let compared = server.compare()?;
    server.shutdown();
    serving
        .join()
        .map_err(|_| "the server panicked, see above")?;
    println!("all as it should be; the log's {compared} last fingerprints agree");
    Ok(())
}

/// Simultaneous connections of the self-test.
const MANY: usize = 100;

/// Checks that the server answers [`MANY`] simultaneous connections.
fn ask_as_many(peer: &Stack, at: SocketAddr, roots: RootCertStore) -> Outcome<()> {
    let config: Arc<ClientConfig> = Arc::new(certificate::client(roots, false));
    let name = ServerName::try_from(certificate::NAME)?;
    let open = || -> Outcome<_> {
        let stream = TlsStream::connect(peer.connect(at)?, &config, name.clone())?;
        let (reader, writer) = stream::split(stream, UPDATES);
        Ok(Client::new(reader, writer))
    };
    let mut clients: Vec<_> = (0..MANY).map(|_| open()).collect::<Outcome<_>>()?;
    for client in &mut clients {
        client.ask("GET", "/one", "")?;
        let (status, len) = client.answer()?;
        expect(status == Status::OK.0 && len == 1, "GET", "/one")?;
    }
    println!("{MANY} connections at a time");
    Ok(())
}

/// Makes all requests with our TLS, and then with `rustls`.
fn ask(
    peer: &Stack,
    at: SocketAddr,
    roots: RootCertStore,
    tls12: bool,
    root: &Path,
) -> Outcome<()> {
    let config: Arc<ClientConfig> = Arc::new(certificate::client(roots, tls12));
    let name = ServerName::try_from(certificate::NAME)?;
    let ours = TlsStream::connect(peer.connect(at)?, &config, name.clone())?;
    let info = ours.info();
    let (version, suite) = (info.version, info.suite.suite());
    if info.alpn.as_deref() != Some(certificate::HTTP) {
        return Err("the server speaks another protocol".into());
    }
    println!("\nour TLS as the client, {version:?}, {suite:?}");
    let (reader, writer) = stream::split(ours, UPDATES);
    Client::new(reader, writer).ask_for_all(root)?;

    println!("\nrustls as the client, {version:?}, {suite:?}");
    let theirs = ClientConnection::new(config, name)?;
    let (reader, writer) = stream::split_rustls(theirs, peer.connect(at)?);
    Client::new(reader, writer).ask_for_all(root)
}
