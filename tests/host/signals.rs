//! SIGTERM and SIGINT end the servers in order: every connection is closed, or reset if it cannot
//! be closed.
//!
//! This program holds the connections: the tests start it again in the peer's namespace with
//! [`PEER`] as its first argument. It opens the connections, sends the signals, and prints one line
//! about the end of each connection.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;

use crate::fixture::{Device, Fixture, OURS};

/// The first argument of the program that holds the connections. The others are the signals,
/// separated by commas, the server's process number, the path of a resource that is larger than any
/// test reads, and a port that discards, or 0. For `udp_echo` an address without a route from our
/// stack replaces the last two.
pub(crate) const PEER: &str = "--signal-peer";

/// A server ends about a second after the signal. A connection that is neither closed nor reset
/// lasts for minutes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interval of polling.
const GLANCE: Duration = Duration::from_millis(2);
/// Bytes after which a transfer counts as under way.
const UNDER_WAY: usize = 1 << 20;

/// A test of a server that ends; it returns a figure.
pub(crate) type Test = fn() -> Result<String, Failed>;

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("sigterm_closes_the_connections_of_services", || {
        services_end("TERM")
    }),
    ("sigint_closes_the_connections_of_services", || {
        services_end("INT")
    }),
    ("sigterm_closes_the_connections_of_http_server", || {
        http_server_ends("TERM")
    }),
    ("sigint_closes_the_connections_of_http_server", || {
        http_server_ends("INT")
    }),
    (
        "sigterm_ends_udp_echo_and_an_unreachable_sender_does_not",
        sigterm_ends_udp_echo,
    ),
    (
        "a_second_signal_ends_services_at_once",
        a_second_signal_ends_services_at_once,
    ),
];

fn services_end(signal: &str) -> Result<String, Failed> {
    let mut fixture = Fixture::services(Device::Tap, &[])?;
    let ends = [
        ("idle", &["EOF"][..]),
        ("idle echo", &["EOF"]),
        ("download", &["EOF", "reset"]),
        ("upload", &["reset", "broken pipe"]),
        ("unread download", &["reset"]),
    ];
    closes_its_connections(&mut fixture, signal, "/bytes/1000000000000", 9, &ends)
        .map_err(|failed| fixture.explain(&failed))
}

fn http_server_ends(signal: &str) -> Result<String, Failed> {
    let mut fixture = Fixture::new(Device::Tap, 2)?;
    // The file is sparse: it has no blocks on the disk.
    std::fs::File::create(fixture.root.file("large"))?.set_len(1 << 37)?;
    let ends = [
        ("idle", &["EOF"][..]),
        ("download", &["EOF", "reset"]),
        ("unread download", &["reset"]),
    ];
    closes_its_connections(&mut fixture, signal, "/large", 0, &ends)
        .map_err(|failed| fixture.explain(&failed))
}

/// Sends `signal` to the server, and compares the end of each connection with the permitted ends.
fn closes_its_connections(
    fixture: &mut Fixture,
    signal: &str,
    path: &str,
    discard: u16,
    ends: &[(&str, &[&str])],
) -> Result<String, Failed> {
    let said = start_peer(fixture, signal, path, discard)?;
    let status = fixture.wait_for_end(PATIENCE)?;
    let as_expected = |(name, ends): &(&str, &[&str])| {
        let line = said.lines().find_map(|line| line.strip_prefix(name));
        let end = line.and_then(|line| line.strip_prefix(": "));
        end.is_some_and(|end| ends.contains(&end))
    };
    if status.code() != Some(0) || !ends.iter().all(as_expected) {
        return Err(format!("the server: {status}; its peers:\n{said}").into());
    }
    Ok(said.lines().last().unwrap_or_default().to_owned())
}

/// A peer that does not read delays the end for the whole grace period, which is longer here than
/// the test.
fn a_second_signal_ends_services_at_once() -> Result<String, Failed> {
    let mut fixture = Fixture::services(Device::Tap, &["--grace", "600"])?;
    // An upload would continue during the grace period, so there is none here.
    let said = start_peer(&fixture, "TERM,INT", "/bytes/1000000000000", 0)?;
    let status = fixture.wait_for_end(PATIENCE)?;
    if status.signal() != Some(SIGINT) || !said.contains("\nidle: EOF\n") {
        let failure = format!("the server: {status}; its peers:\n{said}");
        return Err(fixture.explain(&failure.into()));
    }
    Ok(status.to_string())
}

/// A datagram from an address without a route comes first, then one from the server's own network.
fn sigterm_ends_udp_echo() -> Result<String, Failed> {
    const UNREACHABLE: &str = "10.99.0.1";
    let mut fixture = Fixture::udp_echo()?;
    fixture.add_address(&format!("{UNREACHABLE}/32"))?;
    let program = std::env::current_exe()?.display().to_string();
    let server = fixture.server_id().to_string();
    let said = fixture
        .run(&program, &[PEER, "TERM", &server, UNREACHABLE])
        .map_err(|failed| fixture.explain(&failed))?;
    let status = fixture.wait_for_end(PATIENCE)?;
    if status.code() != Some(0) {
        return Err(fixture.explain(&format!("the server: {status}").into()));
    }
    Ok(said.trim().to_owned())
}

/// The number of SIGINT (signal(7)).
const SIGINT: i32 = 2;

fn start_peer(
    fixture: &Fixture,
    signals: &str,
    path: &str,
    discard: u16,
) -> Result<String, Failed> {
    let program = std::env::current_exe()?.display().to_string();
    let (server, discard) = (fixture.server_id().to_string(), discard.to_string());
    fixture.run(&program, &[PEER, signals, &server, path, &discard])
}

// The peer
// -------------------------------------------------------------------------------------------------

/// Holds the connections; `arguments` follow [`PEER`].
pub(crate) fn peer(arguments: &[String]) -> io::Result<()> {
    let [signals, server, path, discard] = match arguments {
        [signal, server, unreachable] => return datagrams(signal, server, unreachable),
        [signals, server, path, discard] => [signals, server, path, discard],
        _ => return Err(io::Error::other("three arguments or four")),
    };
    let discard: u16 = discard.parse().map_err(io::Error::other)?;
    let mut signals = signals.split(',');

    // Opened first, because other connections would fill the receive buffer of this one.
    let mut unread = connect(80)?;
    unread.write_all(get(path).as_bytes())?;
    wait_until("a window is closed", || Ok(closed_windows()? > 0))?;

    let mut idle = connect(80)?;
    idle.write_all(format!("HEAD {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())?;
    read_head(&mut idle)?;
    let (started, starts) = mpsc::channel();
    let mut connections = vec![("idle", thread::spawn(move || read_to_end(idle, |_| ())))];
    let mut under_way = 1;
    let download = connect(80)?;
    let (request, progress) = (get(path), report(started.clone()));
    connections.push((
        "download",
        thread::spawn(move || {
            (&download).write_all(request.as_bytes())?;
            read_to_end(download, progress)
        }),
    ));
    if discard != 0 {
        let mut echo = connect(7)?;
        echo.write_all(b"x")?;
        echo.read_exact(&mut [0])?;
        connections.push(("idle echo", thread::spawn(|| read_to_end(echo, |_| ()))));
        let upload = connect(discard)?;
        let progress = report(started.clone());
        connections.push(("upload", thread::spawn(|| write_to_end(upload, progress))));
        under_way += 1;
    }
    for _ in 0..under_way {
        let waited = starts.recv_timeout(PATIENCE);
        waited.map_err(|_| io::Error::other("a transfer does not begin"))?;
    }

    send(signals.next().unwrap_or_default(), server)?;
    let begin = Instant::now();
    let mut ends = vec![String::new()];
    for (name, connection) in connections {
        let end = connection.join().map_err(|_| io::Error::other("a panic"))?;
        ends.push(format!("{name}: {}", describe(&end)));
    }
    if let Some(second) = signals.next() {
        send(second, server)?;
        // Keeps the connection that is not read until then.
        wait_until("the end of the server", || Ok(!runs(server)))?;
    } else {
        // Finds the reset without a read, which would let the bytes before the reset leave.
        let end = wait_until("a reset", || unread.take_error()?.map_or(Ok(false), Err));
        ends.push(format!("unread download: {}", describe(&end)));
    }
    ends.push(format!("{} ms", begin.elapsed().as_millis()));
    println!("{}", ends.join("\n"));
    Ok(())
}

/// Sends one datagram from `unreachable`, then one from another address, and the signal once the
/// second one is echoed.
fn datagrams(signal: &str, server: &str, unreachable: &str) -> io::Result<()> {
    let to = (OURS, 7);
    UdpSocket::bind((unreachable, 0))?.send_to(b"first", to)?;
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.send_to(b"second", to)?;
    let mut bytes = [0; 16];
    let len = retry(|| socket.recv(&mut bytes))?;
    if bytes[..len] != *b"second" {
        return Err(io::Error::other("another datagram came back"));
    }
    let begin = Instant::now();
    send(signal, server)?;
    wait_until("the end of the server", || Ok(!runs(server)))?;
    println!("{} ms", begin.elapsed().as_millis());
    Ok(())
}

fn connect(port: u16) -> io::Result<TcpStream> {
    let address: SocketAddr = format!("{OURS}:{port}").parse().map_err(io::Error::other)?;
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")
}

/// Reads the head of an answer without a body.
fn read_head(stream: &mut TcpStream) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    if head.starts_with(b"HTTP/1.1 200 ") {
        Ok(())
    } else {
        Err(io::Error::other(
            String::from_utf8_lossy(&head).into_owned(),
        ))
    }
}

/// Returns a function that takes the length of each piece, and reports once when the transfer is
/// under way.
fn report(started: mpsc::Sender<()>) -> impl FnMut(usize) {
    let mut moved = 0;
    let mut started = Some(started);
    move |len| {
        moved += len;
        if moved >= UNDER_WAY
            && let Some(started) = started.take()
        {
            // The receiver is gone if another transfer did not begin.
            let _ = started.send(());
        }
    }
}

/// Repeats a call that a signal interrupted: the kernel does not restart calls with a timeout.
fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

/// Reads until the peer closes.
fn read_to_end(mut stream: TcpStream, mut progress: impl FnMut(usize)) -> io::Result<()> {
    let mut bytes = vec![0; 64 << 10];
    loop {
        match retry(|| stream.read(&mut bytes))? {
            0 => return Ok(()),
            len => progress(len),
        }
    }
}

/// Writes until the connection ends, which is always an error.
fn write_to_end(mut stream: TcpStream, mut progress: impl FnMut(usize)) -> io::Result<()> {
    let bytes = vec![7; 64 << 10];
    loop {
        progress(retry(|| stream.write(&bytes))?);
    }
}

/// How many times this namespace's kernel has announced a zero window.
fn closed_windows() -> io::Result<u64> {
    let counters = std::fs::read_to_string("/proc/self/net/netstat")?;
    let mut lines = counters.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().unwrap_or(""), lines.next().unwrap_or(""));
    let mut both = names.split(' ').zip(values.split(' '));
    let value = both.find_map(|(name, value)| (name == "TCPToZeroWindowAdv").then_some(value));
    let value = value.ok_or_else(|| io::Error::other("no counter of closed windows"))?;
    value.parse().map_err(io::Error::other)
}

fn wait_until(what: &str, mut holds: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !holds()? {
        if Instant::now() > deadline {
            let text = format!("waited in vain for {what}");
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        thread::sleep(GLANCE);
    }
    Ok(())
}

fn send(signal: &str, process: &str) -> io::Result<()> {
    let line = format!("kill -{signal} {process}");
    let status = Command::new("sh").args(["-c", &line]).status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("{line}: {status}")))
    }
}

/// Whether a process exists and has not ended. A process that has ended exists until its parent
/// reads its status.
fn runs(process: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    state.is_some_and(|state| !state.trim_start().starts_with(['Z', 'X']))
}

fn describe(end: &io::Result<()>) -> String {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, TimedOut, WouldBlock};
    match end.as_ref().map_err(io::Error::kind) {
        Ok(()) => "EOF".to_owned(),
        Err(ConnectionReset) => "reset".to_owned(),
        Err(BrokenPipe) => "broken pipe".to_owned(),
        Err(TimedOut | WouldBlock) => format!("nothing within {} s", PATIENCE.as_secs()),
        Err(kind) => kind.to_string(),
    }
}
