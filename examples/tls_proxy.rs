//! Ends TLS for a server that speaks plain TCP: decrypts what clients send, passes it on, and
//! encrypts the answers. All replicas (threads with a copy of the connection state) seal and open
//! the TLS records of one stream.
//!
//! Without a device it tests itself in memory. Here a server of plain TCP is at the other end of a
//! veth pair; [README.md](README.md) has the commands for that, and explains Ctrl-C. `--linux` does
//! the same over Linux' sockets and plain `rustls`, for comparison:
//!
//! ```text
//! cargo run --release -p dominoes-tls-examples --example tls_proxy
//! sudo ip netns exec peer python3 -m http.server 8080 &
//! sudo target/release/examples/tls_proxy --packet veth0 --to 10.78.0.2:8080
//! sudo ip netns exec peer curl -k https://10.78.0.1/
//! ```

#[path = "tls/certificate.rs"]
#[allow(dead_code, reason = "this example needs a part of it")]
mod certificate;
#[path = "common/program.rs"]
mod program;
#[path = "common/stack.rs"]
mod stack;
#[path = "common/watch.rs"]
mod watch;
#[path = "common/while_replicas_die.rs"]
mod while_replicas_die;

use std::io::{self, BufRead, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::tls::{TlsHandshake, TlsListener, TlsStream, TlsWriteHalf};
use dominoes_netstack::{Sockets, WriteHalf};
use rustls::pki_types::ServerName;
use rustls::{ServerConfig, ServerConnection};

use certificate::SelfSigned;
use program::{Arguments, Outcome};
use stack::killer::Killer;
use stack::{StackOptions, Threads, builder};

const ABOUT: &str = "\
Ends TLS for a server of plain TCP; without a device, tests itself in memory.

";

const USAGE: &str = "  --port N            port to listen on [443]
  --to IP:PORT        the server to which connections are passed [10.78.0.2:8080]
  --linux             use Linux' sockets and plain rustls, for comparison
  --seconds N         stop after this time [never]
";

struct Options {
    stack: StackOptions,
    port: u16,
    to: SocketAddr,
    linux: bool,
    seconds: Option<u64>,
}

impl Options {
    fn take(&mut self, option: &str, arguments: &mut Arguments) -> Outcome<bool> {
        match option {
            "port" => self.port = arguments.number(1..=u16::MAX)?,
            "to" => self.to = arguments.parse()?,
            "linux" => self.linux = true,
            "seconds" => self.seconds = Some(arguments.parse()?),
            _ => return self.stack.take(option, arguments),
        }
        Ok(true)
    }
}

fn main() -> ExitCode {
    let usage = [ABOUT, stack::device::USAGE, stack::USAGE, USAGE];
    let options = Options {
        stack: StackOptions::default(),
        port: 443,
        to: (Ipv4Addr::new(10, 78, 0, 2), 8080).into(),
        linux: false,
        seconds: None,
    };
    program::main("tls_proxy", &usage, options, Options::take, run)
}

fn run(options: &Options) -> Outcome<()> {
    let config = SelfSigned::new(&options.stack.address()?.to_string())?;
    if options.linux {
        return over_linux(options, &config.server(None)?);
    }
    let threads = options.stack.threads();
    let killer = options.stack.killer(threads.copies())?;
    let Some((device, name)) = options.stack.open()? else {
        return test(threads, killer, &config);
    };
    let stack = options.stack.start(|addr| builder(addr, threads), device)?;
    let end_requested = watch::signals::end_requested()?;
    let listener = TlsListener::new(stack.listen(options.port, 64)?, &config.server(None)?);
    println!(
        "listening on {}, {}, device {name}",
        options.stack.addresses(&stack, Some(options.port))?,
        threads.name("replica"),
    );
    let (sockets, to, seconds) = (stack.sockets(), options.to, options.seconds);
    thread::spawn(move || accept(&listener, &sockets, to));
    watch::watch("tls_proxy", stack, &end_requested, seconds, killer, None)
}

/// Passes connections on until the stack goes down.
fn accept(listener: &TlsListener, sockets: &Sockets, to: SocketAddr) {
    while let Ok((handshake, _)) = listener.accept() {
        let sockets = sockets.clone();
        thread::spawn(move || report(pass_both(handshake, &sockets, to)));
    }
}

fn report(done: io::Result<()>) {
    if let Err(error) = done {
        eprintln!("tls_proxy: {error}");
    }
}

/// Passes bytes of a connection on, both ways.
fn pass_both(handshake: TlsHandshake, sockets: &Sockets, to: SocketAddr) -> io::Result<()> {
    let (from_client, to_client) = handshake.finish()?.split();
    let (from_server, to_server) = sockets.connect(to)?.split();
    thread::scope(|scope| {
        let out = scope.spawn(|| pass(from_client, to_server, WriteHalf::shutdown));
        pass(from_server, to_client, TlsWriteHalf::shutdown)?;
        out.join()
            .map_err(|_| io::Error::other("a thread panicked"))?
    })
}

/// Passes bytes on to their end.
fn pass<W: Write>(mut from: impl BufRead, mut to: W, end: impl FnOnce(&mut W)) -> io::Result<()> {
    loop {
        let bytes = from.fill_buf()?;
        if bytes.is_empty() {
            end(&mut to);
            return Ok(());
        }
        let len = to.write(bytes)?;
        from.consume(len);
    }
}

// Linux' sockets and plain rustls
// ------------------------------------------------------------------------------------------------

/// Bytes that are read from Linux at once.
const AT_ONCE: usize = 128 << 10;

fn over_linux(options: &Options, config: &Arc<ServerConfig>) -> Outcome<()> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, options.port))?;
    println!("listening on port {} of Linux", options.port);
    for client in listener.incoming() {
        let (client, to, config) = (client?, options.to, Arc::clone(config));
        thread::spawn(move || report(pass_both_by_rustls(client, to, config)));
    }
    Ok(())
}

fn pass_both_by_rustls(
    mut client: TcpStream,
    to: SocketAddr,
    config: Arc<ServerConfig>,
) -> io::Result<()> {
    let mut tls = ServerConnection::new(config).map_err(io::Error::other)?;
    tls.set_buffer_limit(None);
    while tls.is_handshaking() {
        tls.complete_io(&mut client)?;
    }
    let mut server = TcpStream::connect(to)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let tls = Mutex::new(tls);
    let lock = || tls.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    thread::scope(|scope| {
        let out = scope.spawn(move || -> io::Result<()> {
            let (mut sealed, mut opened) = (vec![0; AT_ONCE], Vec::new());
            let mut unread = 0..0;
            loop {
                let mut tls = lock();
                let mut rest = &sealed[unread.clone()];
                if !rest.is_empty() {
                    tls.read_tls(&mut rest)?;
                }
                unread.start = unread.end - rest.len();
                // In the first turn this is what came with the handshake.
                let state = tls.process_new_packets().map_err(io::Error::other)?;
                opened.resize(state.plaintext_bytes_to_read(), 0);
                tls.reader().read_exact(&mut opened)?;
                drop(tls);
                to_server.write_all(&opened)?;
                if unread.is_empty() {
                    unread = match state.peer_has_closed() {
                        true => 0..0,
                        false => 0..from_client.read(&mut sealed)?,
                    };
                    if unread.is_empty() {
                        return end(&to_server);
                    }
                }
            }
        });
        let (mut plain, mut sealed) = (vec![0; AT_ONCE], Vec::new());
        loop {
            let len = server.read(&mut plain)?;
            let mut tls = lock();
            match len {
                0 => tls.send_close_notify(),
                _ => tls.writer().write_all(&plain[..len])?,
            }
            sealed.clear();
            while tls.wants_write() {
                tls.write_tls(&mut sealed)?;
            }
            drop(tls);
            client.write_all(&sealed)?;
            if len == 0 {
                end(&client)?;
                break;
            }
        }
        out.join()
            .map_err(|_| io::Error::other("a thread panicked"))?
    })
}

/// Ends a direction. A client that has all its bytes may be gone, and reset what comes after them.
fn end(socket: &TcpStream) -> io::Result<()> {
    match socket.shutdown(Shutdown::Write) {
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
        done => done,
    }
}

// Without a device
// ------------------------------------------------------------------------------------------------

/// Bytes that the self-test sends and gets back.
const ECHOED: usize = 4 << 20;

/// Joins the stacks of a proxy and of its client and server in memory.
fn test(threads: Threads, killer: Option<Killer>, own: &SelfSigned) -> Outcome<()> {
    let (near, far) = memory::pair(MemoryConfig::default().tso4_max_bytes(65_549));
    let proxy = builder("10.78.0.1/24", threads).start(near)?;
    let peer = builder("10.78.0.2/24", Threads::fixed(1)).start(far)?;
    let listener = TlsListener::new(proxy.listen(443, 16)?, &own.server(None)?);
    let (sockets, server) = (proxy.sockets(), peer.listen(8080, 16)?);
    let to = server.local_addr()?;
    let echoing = thread::spawn(move || -> io::Result<()> {
        let (reader, writer) = server.accept()?.0.split();
        pass(reader, writer, WriteHalf::shutdown)
    });
    let passing = thread::spawn(move || accept(&listener, &sockets, to));
    while_replicas_die::while_replicas_die(&proxy, killer, || {
        let config = Arc::new(certificate::client(own.roots()?, false));
        let name = ServerName::try_from(certificate::NAME)?;
        let stream = peer.connect((Ipv4Addr::new(10, 78, 0, 1), 443))?;
        let (mut reader, mut writer) = TlsStream::connect(stream, &config, name)?.split();
        let sent: Vec<u8> = (0..ECHOED).map(|at| (at / 7) as u8).collect();
        let mut received = Vec::new();
        thread::scope(|scope| -> Outcome<()> {
            let sending = scope.spawn(|| {
                writer.write_all(&sent)?;
                writer.shutdown();
                Ok::<_, io::Error>(())
            });
            reader.read_to_end(&mut received)?;
            sending.join().map_err(|_| "a thread panicked")??;
            Ok(())
        })?;
        match received == sent {
            true => Ok(()),
            false => Err("the answer differs".into()),
        }
    })?;
    echoing.join().map_err(|_| "a thread panicked")??;
    proxy.shutdown();
    passing.join().map_err(|_| "a thread panicked")?;
    println!("{ECHOED} bytes went through the proxy and back");
    Ok(())
}
