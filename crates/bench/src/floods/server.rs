//! The server: the same lines of HTTP over our stack and over the kernel's, a thread for each
//! connection.
//!
//! It runs as another process. It prints `ready` once it listens, a line of JSON for each line that
//! it reads, and ends when it reads the end of its input.

use std::fs;
use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use core_affinity::CoreId;
use dominoes_bench::namespaces::{Outcome, resident};
use dominoes_drivers::Device;
use dominoes_drivers::af_packet::{AfPacket, AfPacketOptions};
use dominoes_drivers::tap::Tap;
use dominoes_netstack::stats::StackStats;
use dominoes_netstack::{Ipv6Config, Limits, Stack};
use serde::{Deserialize, Serialize};

use super::{CLIENT, INTERFACE, PORT, SERVER, SERVER_V6};

/// Connections that wait to be accepted.
const BACKLOG: u16 = 1_024;
/// Bytes of an answer that are written at once.
const CHUNK: usize = 128 << 10;
/// Longest head of a request in bytes.
const HEAD: usize = 8 << 10;
/// How often the stack is asked for an error of its device, and how often an interface that is gone
/// is looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// What serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Server {
    /// Our stack over a TAP.
    Tap {
        /// Threads that run it.
        replicas: usize,
    },
    /// Our stack over a packet socket.
    Packet {
        /// Threads that run it.
        replicas: usize,
    },
    /// The kernel.
    Linux,
}

/// How a server's process is started.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) server: Server,
    /// The core that all its threads run on; any, if there is none.
    pub(crate) core: Option<usize>,
}

/// The server's report.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Said {
    /// Resident memory in bytes.
    pub(crate) memory: u64,
    /// Times that its device was gone, and was opened again.
    pub(crate) reopened: u64,
    /// Panics that our stack caught.
    pub(crate) panicked: u64,
    /// Counters of our stack that say what became of a flood.
    pub(crate) counters: Vec<(String, u64)>,
}

/// What the thread that answers looks at.
#[derive(Default)]
struct Running {
    stack: Option<Stack>,
    reopened: u64,
}

type Shared = Arc<Mutex<Running>>;

fn lock(shared: &Shared) -> MutexGuard<'_, Running> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves as the JSON text asks.
pub(crate) fn run(start: &str) -> Outcome<()> {
    let Start { server, core } = serde_json::from_str(start)?;
    if let Some(id) = core {
        core_affinity::set_for_current(CoreId { id });
    }
    let shared = Shared::default();
    let answering = Arc::clone(&shared);
    thread::spawn(move || match server {
        Server::Linux => over_kernel(),
        _ => over_ours(server, &shared),
    });
    for line in io::stdin().lines() {
        line?;
        println!("{}", serde_json::to_string(&said(&answering)?)?);
    }
    Ok(())
}

fn over_kernel() {
    let listener = match std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)) {
        Ok(listener) => listener,
        Err(error) => return println!("no listener: {error}"),
    };
    println!("ready");
    loop {
        if let Ok((stream, _)) = listener.accept()
            && stream.set_nodelay(true).is_ok()
        {
            spawn(stream);
        }
    }
}

/// Opens the device again whenever it is gone.
fn over_ours(server: Server, shared: &Shared) {
    let mut first = true;
    loop {
        let stack = match start(server) {
            Ok(stack) => stack,
            Err(error) if first => return println!("no device: {error}"),
            Err(_) => {
                thread::sleep(POLL_INTERVAL);
                continue;
            }
        };
        let Ok(listener) = stack.listen(PORT, BACKLOG) else {
            return println!("no listener");
        };
        let accepting = thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let _ = stream.set_nodelay(true);
                spawn(stream);
            }
        });
        {
            let mut running = lock(shared);
            running.stack = Some(stack);
            running.reopened += u64::from(!first);
        }
        if first {
            println!("ready");
        }
        first = false;
        loop {
            let error = lock(shared)
                .stack
                .as_ref()
                .and_then(Stack::take_device_error);
            if let Some(error) = error
                && !error.is_temporary()
            {
                eprintln!("server: {error}");
                break;
            }
            thread::sleep(POLL_INTERVAL);
        }
        let gone = lock(shared).stack.take();
        drop(gone);
        // It ends with its stack.
        let _ = accepting.join();
    }
}

fn start(server: Server) -> Outcome<Stack> {
    let (replicas, device): (_, Box<dyn Device>) = match server {
        Server::Tap { replicas } => {
            // An interface that is not there would be made, and its peer would not know.
            fs::metadata(format!("/sys/class/net/{INTERFACE}"))?;
            (replicas, Box::new(Tap::open(INTERFACE)?))
        }
        Server::Packet { replicas } => {
            let options = AfPacketOptions::default().address(SERVER);
            (replicas, Box::new(AfPacket::open(INTERFACE, options)?))
        }
        Server::Linux => return Err("Linux needs no device".into()),
    };
    let limits = Limits::default()
        .receive_buffer(1 << 16)
        .send_buffer(1 << 20);
    let stack = Stack::builder(&format!("{SERVER}/16"))
        .gateway(CLIENT.into())
        .ipv6(
            Ipv6Config::default()
                .address(SERVER_V6, 64)
                .duplicate_probes(0),
        )
        .replicas(replicas)
        .limits(limits)
        .start(device)?;
    Ok(stack)
}

fn spawn(stream: impl Read + Write + Send + 'static) {
    // A client without a thread is one that is not served; one that breaks off knows it.
    let _ = thread::Builder::new()
        .stack_size(256 << 10)
        .spawn(move || serve(stream));
}

/// Answers `GET /bytes/N` with N bytes, until the client closes or asks for the end.
fn serve(mut stream: impl Read + Write) -> io::Result<()> {
    let mut head = Vec::new();
    let mut chunk = Vec::new();
    loop {
        let end = loop {
            let end = head.windows(4).position(|window| window == b"\r\n\r\n");
            if let Some(end) = end {
                break end + 4;
            }
            let mut bytes = [0; 2048];
            let len = stream.read(&mut bytes)?;
            if len == 0 || head.len() > HEAD {
                return Ok(());
            }
            head.extend_from_slice(&bytes[..len]);
        };
        let text = String::from_utf8_lossy(&head[..end]).into_owned();
        head.drain(..end);
        let path = text.strip_prefix("GET /bytes/");
        let len = path.and_then(|path| path.split(' ').next()?.parse::<u64>().ok());
        let len = len.ok_or(io::ErrorKind::InvalidData)?;
        let closes = text.to_ascii_lowercase().contains("connection: close");
        chunk.clear();
        write!(
            chunk,
            "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: {len}\r\n{}\r\n",
            if closes { "Connection: close\r\n" } else { "" },
        )?;
        let mut left = len;
        loop {
            let more = left.min((CHUNK - chunk.len()) as u64);
            chunk.resize(chunk.len() + more as usize, b'x');
            stream.write_all(&chunk)?;
            left -= more;
            if left == 0 {
                break;
            }
            chunk.clear();
        }
        if closes {
            return Ok(());
        }
    }
}

fn said(shared: &Shared) -> Outcome<Said> {
    let running = lock(shared);
    let mut said = Said {
        memory: resident("self")?,
        reopened: running.reopened,
        ..Said::default()
    };
    if let Some(stack) = &running.stack {
        let stats = stack.stats();
        said.panicked = stats.state.panicked;
        said.counters = counters(&stats);
    }
    Ok(said)
}

/// The counters that a flood may raise.
fn counters(stats: &StackStats) -> Vec<(String, u64)> {
    let StackStats { pump, state, .. } = stats;
    let named = [
        ("refused_syn", state.refused_syn),
        ("table_full", state.table_full),
        ("cookies_sent", state.cookies_sent),
        ("cookies_returned", state.cookies_returned),
        ("no_connection", state.no_connection),
        ("resets_withheld", state.resets_withheld),
        ("challenges_withheld", state.challenges_withheld),
        ("cut_short", state.time_wait_evicted),
        ("opened", state.opened),
        ("fragments", pump.fragments),
        ("bad_fragments", pump.bad_fragments),
        ("no_port", pump.no_port),
        ("reports", pump.reports),
        ("reports_limited", pump.reports_limited),
        ("arp", pump.arp),
        ("echo", pump.echo),
        ("control_dropped", pump.control_dropped),
        ("log_full", pump.log_full),
    ];
    let named = named.into_iter().filter(|(_, value)| *value > 0);
    named
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}
