//! A Linux client asks a server over a veth pair, one byte each way: our stack on AF_PACKET, or
//! Linux itself.
//!
//! Client and server are processes of this program in two network namespaces, started with
//! [`INNER`]; [`main`] plays their parts. Each has a core, if there are two.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use dominoes_drivers::af_packet::{AfPacket, AfPacketOptions};
use dominoes_netstack::variants::VariantKind;
use dominoes_netstack::{Stack, TcpStream};
use serde::{Deserialize, Serialize};

use crate::namespaces::{self, CubicAllowed, Outcome, Process};
use crate::topology;

/// First argument of a process that plays a part.
pub const INNER: &str = "--echo";

const PORT: u16 = 7;
/// Where our stack is.
const OURS: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
/// Where the kernel of the client is.
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
/// Where the kernel of the server is.
const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 3);
/// How long a part may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// Requests that are timed.
const ASKED: usize = 2_000;

/// The servers: name, variant (`None` for Linux) and workers.
const SERVERS: [(&str, Option<VariantKind>, usize); 5] = [
    ("Linux", None, 1),
    ("single", Some(VariantKind::Single), 1),
    ("replicated/2", Some(VariantKind::Replicated), 2),
    ("locked-mutex/2", Some(VariantKind::Locked), 2),
    ("locked-mcs/2", Some(VariantKind::LockedMcs), 2),
];

/// What the client found.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Asked {
    /// Of a request and its answer: the time that half, nine tenths and 99 % are below, in
    /// microseconds.
    pub(crate) micros: [f64; 3],
}

/// Asks every server so often, by turns.
///
/// # Errors
/// Without a privilege or a program, with its name.
pub(crate) fn measure(rounds: usize) -> Outcome<Vec<(&'static str, Vec<Asked>)>> {
    namespaces::can_run(&["ip", "ethtool"])?;
    let _cubic = CubicAllowed::new()?;
    let [ours, client] = namespaces::pair(["echo", "asks"], [KERNEL, CLIENT])?;
    for namespace in [&ours, &client] {
        // Frames without a checksum never reach a wire.
        namespace.shell("ethtool -K veth0 tx off tso off gso off gro off")?;
    }
    let mut rows: Vec<(&'static str, Vec<Asked>)> = SERVERS
        .iter()
        .map(|(name, ..)| (*name, Vec::new()))
        .collect();
    for _ in 0..rounds {
        for ((server, kind, _), (_, asked)) in SERVERS.into_iter().zip(&mut rows) {
            let part = Process::start(&ours, &[INNER, server])?;
            part.line(PATIENCE)?;
            let address = if kind.is_none() { KERNEL } else { OURS };
            let asks = Process::start(&client, &[INNER, &address.to_string()])?;
            asked.push(serde_json::from_str(&asks.line(PATIENCE)?)?);
        }
    }
    Ok(rows)
}

/// Plays the part that the arguments after [`INNER`] name: a server, or the client of an address.
pub fn main(arguments: &[String]) -> Outcome<()> {
    let Some(part) = arguments.first() else {
        return Err("no part is named".into());
    };
    if let Ok(address) = part.parse::<Ipv4Addr>() {
        topology::pin_to(0);
        let asked = ask((address, PORT).into())?;
        println!("{}", serde_json::to_string(&asked)?);
        return Ok(());
    }
    let server = SERVERS.iter().find(|(name, ..)| name == part);
    let (_, kind, workers) = server.ok_or_else(|| format!("no server is called {part}"))?;
    match kind {
        None => {
            topology::pin_to(1);
            let listener = std::net::TcpListener::bind((KERNEL, PORT))?;
            println!("ready");
            for stream in listener.incoming() {
                let stream = stream?;
                stream.set_nodelay(true)?;
                echo(stream);
            }
        }
        Some(kind) => {
            let device = AfPacket::open("veth0", AfPacketOptions::default().address(OURS))?;
            let stack = Stack::builder(&format!("{OURS}/24"))
                .variant(*kind)
                .replicas(*workers)
                .start(device)?;
            let listener = stack.listen(PORT, 1024)?;
            println!("ready");
            loop {
                let (stream, _): (TcpStream, SocketAddr) = listener.accept()?;
                stream.set_nodelay(true)?;
                echo(stream);
            }
        }
    }
    Ok(())
}

/// Sends received bytes back, until the end; an error of a connection is its end.
fn echo(mut stream: impl Read + Write) {
    let mut buffer = [0; 64];
    while let Ok(len @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..len]).is_err() {
            break;
        }
    }
}

fn connect(to: SocketAddr) -> Outcome<std::net::TcpStream> {
    let begin = Instant::now();
    loop {
        match std::net::TcpStream::connect_timeout(&to, PATIENCE / 4) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(PATIENCE / 4))?;
                return Ok(stream);
            }
            // The server's interface may not be up yet.
            Err(_) if begin.elapsed() < PATIENCE / 2 => thread::sleep(Duration::from_millis(20)),
            Err(error) => return Err(error.into()),
        }
    }
}

/// One byte each way.
fn once(stream: &mut std::net::TcpStream) -> Outcome<()> {
    stream.write_all(&[1])?;
    Ok(stream.read_exact(&mut [0])?)
}

fn ask(to: SocketAddr) -> Outcome<Asked> {
    let mut stream = connect(to)?;
    // The first requests find nothing in the caches.
    for _ in 0..ASKED / 10 {
        once(&mut stream)?;
    }
    let mut took = Vec::with_capacity(ASKED);
    for _ in 0..ASKED {
        let begin = Instant::now();
        once(&mut stream)?;
        took.push(begin.elapsed().as_nanos() as f64 / 1e3);
    }
    drop(stream);
    took.sort_by(f64::total_cmp);
    let part = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
    Ok(Asked {
        micros: [part(0.5), part(0.9), part(0.99)],
    })
}
