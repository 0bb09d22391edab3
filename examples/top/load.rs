//! The built-in load: a second stack at the other end of a device in memory, and applications on
//! both stacks.

use std::io::{self, BufRead, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use dominoes_drivers::memory::{self, MemoryConfig, MemoryDevice};
use dominoes_netstack::{Limits, Stack, TcpListener, TcpStream};

/// The port of the service that reads and discards (RFC 863).
pub(crate) const DISCARD: u16 = 9;
/// The port of the service that sends without end (RFC 864).
pub(crate) const CHARGEN: u16 = 19;

/// Bytes per read or write of an application.
const CHUNK: usize = 64 << 10;
/// The pause of the slow client between two lines.
const PAUSE: Duration = Duration::from_millis(20);

/// The device of the displayed stack, and the device of its peer.
pub(crate) fn wire() -> (MemoryDevice, MemoryDevice) {
    memory::pair(MemoryConfig::default().queue_depth(1024))
}

/// Serves one connection.
type Serve = fn(TcpStream) -> io::Result<()>;

/// Serves all clients, on threads that end with the stack.
pub(crate) fn serve(stack: &Stack) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let services: [(u16, Serve); 2] = [(DISCARD, discard), (CHARGEN, generate)];
    for (port, service) in services {
        let listener = stack.listen(port, 64)?;
        thread::spawn(move || accept(&listener, service));
    }
    Ok(())
}

fn accept(listener: &TcpListener, service: Serve) {
    while let Ok((stream, _)) = listener.accept() {
        // The peer notices if its connection breaks.
        thread::spawn(move || service(stream));
    }
}

/// Connects a second stack to the stack at `address` (an address and its prefix). Two connections
/// send as fast as they can, one receives, and one sends a line now and then. They end with
/// either stack.
pub(crate) fn drive(
    device: MemoryDevice,
    address: &str,
) -> Result<Stack, Box<dyn std::error::Error + Send + Sync>> {
    let (ip, prefix) = address
        .split_once('/')
        .ok_or("an address without a prefix")?;
    let ip = ip.parse()?;
    let stack = Stack::builder(&format!("{}/{prefix}", neighbor(ip)))
        .limits(Limits::default())
        .start(device)?;
    let to = |port| SocketAddr::new(ip.into(), port);
    for _ in 0..2 {
        let stream = stack.connect(to(DISCARD))?;
        thread::spawn(move || generate(stream));
    }
    let stream = stack.connect(to(CHARGEN))?;
    thread::spawn(move || discard(stream));
    let stream = stack.connect(to(DISCARD))?;
    thread::spawn(move || chat(stream));
    Ok(stack)
}

/// Returns another address in the network that is neither the network's nor its broadcast
/// address. `ip` must be neither, and the network must have at least two hosts.
fn neighbor(ip: Ipv4Addr) -> Ipv4Addr {
    let ip = u32::from(ip);
    // The two hosts of a /30 are the second and third of four addresses.
    Ipv4Addr::from(if ip % 4 < 2 { ip + 1 } else { ip - 1 })
}

fn discard(mut stream: TcpStream) -> io::Result<()> {
    loop {
        let len = stream.fill_buf()?.len();
        if len == 0 {
            return Ok(());
        }
        BufRead::consume(&mut stream, len);
    }
}

fn generate(mut stream: TcpStream) -> io::Result<()> {
    let bytes = [b'.'; CHUNK];
    loop {
        stream.write_all(&bytes)?;
    }
}

fn chat(mut stream: TcpStream) -> io::Result<()> {
    loop {
        stream.write_all(b"still here\n")?;
        stream.set_read_timeout(Some(PAUSE))?;
        match stream.read(&mut [0]) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}
