//! Serves a folder over HTTP/1.1 on our TCP, and accepts files by `PUT`.
//!
//! ```text
//! cargo run --release --example http_server                 # tests itself in memory
//! cargo run --release --example http_server -- --tap tap0 --root /tmp --replicas 2
//! sudo target/release/examples/http_server --packet veth0 --root /tmp --replicas 2
//! ```
//!
//! [README.md](README.md) has the commands for these interfaces and for IPv6, and explains Ctrl-C.
//! The package is `dominoes-services`. It prints `listening on 10.78.0.1:80, ...`. Then, in another
//! terminal:
//!
//! ```text
//! ping 10.78.0.1
//! curl -O http://10.78.0.1/some_file
//! curl -T some_file http://10.78.0.1/
//! ```
//!
//! It serves 1,000 connections at a time, or `--connections N`, and answers further ones with 503.
//! With `--poller` one thread serves all connections (10,000 and more) instead of one thread each;
//! only a request with a body gets a separate thread.
//!
//! It supports GET, HEAD and PUT, persistent connections, bodies with `Content-Length` or in
//! chunks, and `Expect: 100-continue`. It refuses paths that leave the folder by `..` or by a
//! symbolic link, but trusts users that may change the folder while it is served. It lacks ranges,
//! conditions, dates and time-outs. The example `https_server` is the same over TLS.

#[path = "http_server/client.rs"]
mod client;
#[path = "http_server/files.rs"]
mod files;
#[path = "http_server/http.rs"]
mod http;
#[path = "common/polled.rs"]
mod polled;
#[path = "common/program.rs"]
mod program;
#[path = "http_server/self_test.rs"]
mod self_test;
#[path = "http_server/serve.rs"]
mod serve;
#[path = "common/stack.rs"]
mod stack;
#[path = "common/watch.rs"]
mod watch;

use std::io::{self, Cursor, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use dominoes_netstack::poller::{Interest, Token, Trigger};
use dominoes_netstack::{Builder, ReadHalf, Stack, TcpListener, TcpStream, WriteHalf};

use crate::program::{Arguments, Outcome};
use crate::stack::{StackOptions, Threads};
use crate::watch::watch;

fn main() -> ExitCode {
    let usage = [ABOUT, stack::device::USAGE, stack::USAGE, USAGE];
    let options = Options {
        port: 80,
        root: ".".into(),
        connections: serve::CONNECTIONS,
        ..Options::default()
    };
    program::main("http_server", &usage, options, Options::take, run)
}

// Command line
// -------------------------------------------------------------------------------------------------------

const ABOUT: &str = "\
Serves a folder over HTTP; without a device, tests itself in memory.

";

const USAGE: &str = "  --port N            port to listen on [80]
  --root DIR          folder to serve [.]
  --poller            serve all connections on one thread
  --connections N     otherwise, serve so many at a time, a thread each; more are told to come back [1000]
  --seconds N         stop after this time [never]
";

#[derive(Default)]
struct Options {
    stack: StackOptions,
    port: u16,
    root: PathBuf,
    poller: bool,
    connections: usize,
    seconds: Option<u64>,
}

impl Options {
    fn take(&mut self, option: &str, arguments: &mut Arguments) -> Outcome<bool> {
        match option {
            "port" => self.port = arguments.number(1..=u16::MAX)?,
            "root" => self.root = arguments.path()?,
            "poller" => self.poller = true,
            "connections" => self.connections = arguments.number(1..=2 * serve::CONNECTIONS)?,
            "seconds" => self.seconds = Some(arguments.parse()?),
            _ => return self.stack.take(option, arguments),
        }
        Ok(true)
    }
}

fn builder(addr: &str, threads: Threads, poller: bool) -> Builder {
    if poller {
        threads.set_on(Stack::builder(addr))
    } else {
        stack::builder(addr, threads)
    }
}

// Serving
// ------------------------------------------------------------------------------------------------------------

fn run(options: &Options) -> Outcome<()> {
    let (threads, poller) = (options.stack.threads(), options.poller);
    let killer = options.stack.killer(threads.copies())?;
    let root = files::open_root(&options.root)?;
    let Some((device, name)) = options.stack.open()? else {
        return self_test::run(threads);
    };
    let stack = options
        .stack
        .start(|addr| builder(addr, threads, poller), device)?;
    let end_requested = watch::signals::end_requested()?;
    let listener = stack.listen(options.port, 1024)?;
    let most = options.connections;
    println!(
        "listening on {}, {}, device {name}",
        options.stack.addresses(&stack, Some(options.port))?,
        threads.name("replica"),
    );
    let server = thread::spawn(move || {
        if poller {
            poll(&listener, &root, most)
        } else {
            accept(&listener, &root, most);
            Ok(())
        }
    });
    let seconds = options.seconds;
    let watched = watch("http_server", stack, &end_requested, seconds, killer, None);
    server
        .join()
        .map_err(|_| "the server panicked, see above")??;
    watched
}

/// Serves until the stack goes down, at most `most` connections at a time.
fn accept(listener: &TcpListener, root: &Path, most: usize) {
    let next = || Some(listener.accept().ok()?.0);
    let begin = |stream: TcpStream| Ok(stream.split());
    serve::accept::<_, ReadHalf, _>(("http_server", most), next, begin, root);
}

/// Serves on one thread until the stack goes down; bodies on at most `most` others.
fn poll(listener: &TcpListener, root: &Path, most: usize) -> io::Result<()> {
    const LISTENER: Token = Token(0);
    let files = Files {
        root: Arc::from(root),
        threads: serve::Threads::new("http_server", most),
    };
    let mut server = polled::Server::new(1, files)?;
    let (readable, edge) = (Interest::READABLE, Trigger::Edge);
    server
        .poller()
        .register(listener, LISTENER, readable, edge)?;
    let mut events = Vec::with_capacity(256);
    loop {
        server.poller().wait(&mut events, None);
        for event in &events {
            match event.token {
                LISTENER if server.accept(listener).is_err() => return Ok(()),
                LISTENER => {}
                Token(connection) => server.go_on(connection),
            }
        }
    }
}

/// The served folder.
struct Files {
    root: Arc<Path>,
    threads: serve::Threads,
}

impl polled::Site for Files {
    fn get(&self, path: &str) -> Result<http::Answer, http::Status> {
        files::get(&self.root, path)
    }

    fn serve_body(&self, stream: TcpStream, input: Vec<u8>) {
        self.threads.serve(&self.root, || {
            let (reader, writer) = stream.split();
            Ok((Cursor::new(input).chain(reader), writer))
        });
    }
}

impl http::Writer for WriteHalf {
    fn shutdown(&mut self) {
        WriteHalf::shutdown(self);
    }
}
