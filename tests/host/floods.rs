//! The example `services` over a TAP while raw frames flood it, and while its link changes.
//! `cargo bench floods` measures its speed; these tests check that downloads arrive whole, memory
//! stays bounded and nothing panics.
//!
//! The flooding program is this one: the tests start it again in the peer's namespace, with
//! [`PEER`] as its first argument.

#[path = "../../crates/bench/src/floods/frames.rs"]
mod frames;
#[path = "../../crates/bench/src/floods/inject.rs"]
mod inject;

use std::error::Error;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use dominoes_drivers::tap::Tap;
use dominoes_drivers::{Device as _, DeviceError};
use dominoes_netstack::Stack;
use libtest_mimic::Failed;
use rustix::net::sockopt;

use crate::fixture::{self, Device, Fixture, Namespace, OURS, Program, Temporary};
use crate::services::{curl, expected};
use crate::{Test, same};
use frames::Kind;
use inject::Injector;

/// The first argument of this program when it floods, or runs a stack.
pub(crate) const PEER: &str = "--flood-peer";

/// Tests of the example: name, replicas, and test.
pub(crate) const TESTS: &[(&str, &str, Test)] = &[
    (
        "downloads_arrive_whole_under_every_flood_with_one_replica",
        "1",
        downloads_arrive_whole_under_every_flood,
    ),
    (
        "downloads_arrive_whole_under_every_flood_with_two_replicas",
        "2",
        downloads_arrive_whole_under_every_flood,
    ),
    (
        "downloads_arrive_whole_beside_windows_that_stay_closed",
        "2",
        downloads_arrive_whole_beside_closed_windows,
    ),
    (
        "a_download_outlives_a_link_that_changes_with_one_replica",
        "1",
        a_download_outlives_a_link_that_changes,
    ),
    (
        "a_download_outlives_a_link_that_changes_with_two_replicas",
        "2",
        a_download_outlives_a_link_that_changes,
    ),
];

/// Tests of a stack in this program: name, the action, replicas.
pub(crate) const ALONE: &[(&str, &str, &str)] = &[
    (
        "a_deleted_link_is_reported_and_a_new_one_served_with_one_replica",
        REOPEN,
        "1",
    ),
    (
        "a_deleted_link_is_reported_and_a_new_one_served_with_two_replicas",
        REOPEN,
        "2",
    ),
    (
        "no_connection_that_linux_asks_whether_it_lives_is_given_up_with_one_replica",
        KEEP,
        "1",
    ),
    (
        "no_connection_that_linux_asks_whether_it_lives_is_given_up_with_two_replicas",
        KEEP,
        "2",
    ),
];
const REOPEN: &str = "reopen";
const KEEP: &str = "keep";

/// Arguments of the server. The forged senders are its neighbours; the peer forwards to all other
/// senders.
pub(crate) const NETWORK: [&str; 6] = [
    "--addr",
    "10.78.0.1/16",
    "--gateway",
    "10.78.0.2",
    "--addr6",
    "fd78::1/64",
];
/// The server's IPv6 address.
const SERVER_V6: Ipv6Addr = Ipv6Addr::new(0xfd78, 0, 0, 0, 0, 0, 0, 1);

/// Frames per second of a flood, and frames that a test waits for.
const RATE: u64 = 10_000;
const FRAMES: u64 = 3_000;
/// Bytes of a short download, and of a long one.
const SHORT: u64 = 100_000;
const LONG: u64 = 4_000_000;
/// Bytes by which the server's memory may grow: the pools of its device, fragments, and the rings
/// of connections in TIME-WAIT.
const GROWTH: u64 = 64 << 20;
/// Connections whose windows stay closed, and probes that a test waits for. The example serves 64
/// at a time.
const CLOSED: u64 = 40;
const PROBES: u64 = 20;
/// A limit for events that normally take moments.
const PATIENCE: Duration = Duration::from_secs(60);
const GLANCE: Duration = Duration::from_millis(5);

/// A process of this program that floods until it is dropped.
struct Flood {
    running: Option<Program>,
    folder: Temporary,
}

impl Flood {
    fn start(fixture: &Fixture, what: &str) -> Result<Flood, Failed> {
        let folder = Temporary::new()?;
        let said = fixture.run("ip", &["neigh", "show", OURS, "dev", fixture.interface()])?;
        let mac = said.split(" lladdr ").nth(1);
        let mac = mac.and_then(|rest| rest.split_whitespace().next());
        let mac = mac.ok_or("the peer does not know the server's address")?;
        let program = std::env::current_exe()?.display().to_string();
        let end = folder.file("end");
        let arguments = [PEER, what, mac, fixture.interface(), &end];
        Ok(Flood {
            running: Some(fixture.start(&program, &arguments)?),
            folder,
        })
    }

    /// Ends the flood and returns the program's output.
    fn end(mut self) -> Result<String, Failed> {
        fs::write(self.folder.file("end"), "")?;
        match self.running.take() {
            Some(running) => Ok(running.finish()?),
            None => Ok(String::new()),
        }
    }
}

/// A counter of the server's stack.
fn counter(fixture: &Fixture, name: &str) -> Result<u64, Failed> {
    let said = fixture.run("nc", &["-d", OURS, "15"])?;
    let mut lines = said.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    Ok(value.ok_or_else(|| format!("no {name}"))?.parse()?)
}

/// Downloads `bytes` bytes and compares their hash.
fn download(fixture: &Fixture, folder: &Temporary, bytes: u64) -> Result<(), Failed> {
    let got = folder.file("got");
    let url = format!("http://{OURS}/bytes/{bytes}");
    curl(fixture, &["--output", &got, &url])?;
    same(folder.hash("got")? == expected(bytes), "what curl got")
}

/// The counter that shows that a flood arrives.
fn shown_by(kind: Kind) -> &'static str {
    match kind {
        Kind::Syn => "cookies_sent",
        Kind::Ack | Kind::Rst | Kind::Fin => "segments",
        Kind::Fragment | Kind::FragmentV6 => "fragments",
        Kind::Icmp => "echo",
        Kind::Arp => "arp",
        Kind::Udp | Kind::Extensions => "no_port",
        // A host does not join the group of all routers.
        Kind::RouterSolicitation => "not_ours",
        Kind::RouterAdvertisement
        | Kind::NeighborSolicitation
        | Kind::NeighborAdvertisement
        | Kind::Mld => "neighbor_messages",
        Kind::TooBig => "network_errors",
    }
}

/// Fails if something panicked, or memory grew too much.
fn is_well(fixture: &Fixture, memory: u64) -> Result<u64, Failed> {
    if counter(fixture, "panicked")? > 0 || fixture.said().contains("panicked") {
        return Err("something panicked".into());
    }
    let now = fixture.server_memory()?;
    if now > memory + GROWTH {
        return Err(format!("memory grows from {memory} to {now} bytes").into());
    }
    Ok(now)
}

fn downloads_arrive_whole_under_every_flood(
    fixture: &Fixture,
    figure: &dyn Fn(String),
) -> Result<(), Failed> {
    let folder = Temporary::new()?;
    download(fixture, &folder, LONG)?;
    let memory = fixture.server_memory()?;
    for kind in Kind::ALL {
        let name = shown_by(kind);
        let before = counter(fixture, name)?;
        let flood = Flood::start(fixture, kind.name())?;
        let deadline = Instant::now() + PATIENCE;
        while counter(fixture, name)? < before + FRAMES {
            download(fixture, &folder, SHORT)?;
            if Instant::now() > deadline {
                return Err(format!("{}: {name} does not rise", kind.name()).into());
            }
        }
        download(fixture, &folder, LONG)?;
        let said = flood.end()?;
        download(fixture, &folder, SHORT)?;
        let now = is_well(fixture, memory)?;
        figure(format!(
            "{}: {}, memory {} MiB and {} MiB",
            kind.name(),
            said.trim(),
            memory >> 20,
            now >> 20
        ));
    }
    Ok(())
}

fn downloads_arrive_whole_beside_closed_windows(
    fixture: &Fixture,
    figure: &dyn Fn(String),
) -> Result<(), Failed> {
    let folder = Temporary::new()?;
    download(fixture, &folder, LONG)?;
    let memory = fixture.server_memory()?;
    let probes = counter(fixture, "window_probes")?;
    let flood = Flood::start(fixture, "windows")?;
    let deadline = Instant::now() + PATIENCE;
    // Those that wait in TIME-WAIT, as each question's own does, are not counted.
    while counter(fixture, "currently_established")? < CLOSED {
        download(fixture, &folder, SHORT)?;
        if Instant::now() > deadline {
            return Err("connections are not opened".into());
        }
    }
    // A window's first probe is sent after at most a second (RFC 9293 section 3.8.6.1).
    while counter(fixture, "window_probes")? < probes + CLOSED {
        download(fixture, &folder, SHORT)?;
        if Instant::now() > deadline {
            return Err("closed windows are not probed".into());
        }
    }
    let said = flood.end()?;
    let answered = said.split(' ').next().unwrap_or_default();
    if answered.parse::<u64>()? < PROBES {
        return Err(format!("too few probes: {said}").into());
    }
    // Resets end all of the connections; the question's own is left.
    while counter(fixture, "currently_established")? > 1 {
        download(fixture, &folder, SHORT)?;
        if Instant::now() > deadline {
            return Err("connections stay open".into());
        }
    }
    let now = is_well(fixture, memory)?;
    figure(format!(
        "{}, memory {} MiB and {} MiB",
        said.trim(),
        memory >> 20,
        now >> 20
    ));
    Ok(())
}

/// Bytes of the download, and a rate at which it outlives several changes.
const LIMITED_BYTES: u64 = 40_000_000;
const LIMITED: &str = "15M";
/// How long the link is down at first. Meanwhile the server may be busy for at most 1 / `BUSY` of
/// that time.
const DOWN: Duration = Duration::from_millis(800);
const BUSY: u32 = 2;

fn a_download_outlives_a_link_that_changes(
    fixture: &Fixture,
    figure: &dyn Fn(String),
) -> Result<(), Failed> {
    let folder = Temporary::new()?;
    let got = folder.file("got");
    let url = format!("http://{OURS}/bytes/{LIMITED_BYTES}");
    let limited = ["--silent", "--show-error", "--fail", "--noproxy", "*"];
    let asked = ["--limit-rate", LIMITED, "--output", &got, &url];
    let running = fixture.start("curl", &[&limited[..], &asked].concat())?;
    let deadline = Instant::now() + PATIENCE;
    while fs::metadata(&got).map_or(0, |file| file.len()) < LIMITED_BYTES / 8 {
        if running.has_ended()? || Instant::now() > deadline {
            return Err("the download does not begin".into());
        }
        thread::sleep(GLANCE);
    }
    let set = |what: &str| fixture.ip(&format!("link set {} {what}", fixture.interface()));
    let mut changes = 0;
    let mut busy = Duration::ZERO;
    while !running.has_ended()? {
        set("down")?;
        if changes == 0 {
            let before = fixture.server_cpu()?;
            thread::sleep(DOWN);
            busy = fixture.server_cpu()? - before;
        }
        thread::sleep(20 * GLANCE);
        set("up")?;
        thread::sleep(20 * GLANCE);
        for mtu in ["mtu 576", "mtu 1280", "mtu 9000", "mtu 1500"] {
            set(mtu)?;
            thread::sleep(10 * GLANCE);
        }
        changes += 1;
    }
    running.finish()?;
    figure(format!(
        "{changes} times down and up; {} ms of a core in {} ms without a link",
        busy.as_millis(),
        DOWN.as_millis()
    ));
    same(
        folder.hash("got")? == expected(LIMITED_BYTES),
        "what curl got",
    )?;
    if busy > DOWN / BUSY {
        return Err(format!("{busy:?} of a core in {DOWN:?} without a link").into());
    }
    download(fixture, &folder, SHORT)
}

// A stack in this program
// --------------------------------------------------------------------------------------

/// Runs this program with `what` in a new namespace.
pub(crate) fn alone(what: &str, replicas: &str) -> Result<String, Failed> {
    let namespace = Namespace::new("alone")?;
    let program = std::env::current_exe()?;
    let mut command = namespace.command(program);
    command.args([PEER, what, replicas]);
    Ok(fixture::start(&mut command)?.finish()?.trim().to_owned())
}

const INTERFACE: &str = "tap0";

/// A stack over a new TAP, whose other end is the kernel's.
fn start(replicas: usize) -> Result<Stack, Box<dyn Error + Send + Sync>> {
    ip(&format!("tuntap add dev {INTERFACE} mode tap"))?;
    ip(&format!("addr add 10.78.0.2/24 dev {INTERFACE}"))?;
    ip(&format!("link set {INTERFACE} up"))?;
    let tap = Tap::open(INTERFACE)?;
    if tap.capabilities().name != INTERFACE {
        return Err("the device has another name".into());
    }
    Ok(Stack::builder("10.78.0.1/24")
        .replicas(replicas)
        .start(tap)?)
}

/// The kernel sends keepalives on many connections, each once a second.
fn keep(replicas: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    const CONNECTIONS: usize = 600;
    const EVERY: Duration = Duration::from_secs(1);
    /// Unanswered keepalives after which the kernel ends a connection.
    const QUESTIONS: u32 = 5;
    const KEPT: Duration = Duration::from_secs(10);
    let stack = start(replicas.parse()?)?;
    let listener = stack.listen(7, 16)?;
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..CONNECTIONS {
        let stream = TcpStream::connect_timeout(&"10.78.0.1:7".parse()?, PATIENCE)?;
        sockopt::set_tcp_keepidle(&stream, EVERY)?;
        sockopt::set_tcp_keepintvl(&stream, EVERY)?;
        sockopt::set_tcp_keepcnt(&stream, QUESTIONS)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        stream.set_nonblocking(true)?;
        theirs.push(stream);
        ours.push(listener.accept()?);
    }
    let before = stack.stats().pump.segments;
    thread::sleep(KEPT);
    let asked = stack.stats().pump.segments - before;
    let lives = |stream: &mut TcpStream| {
        let read = stream.read(&mut [0]);
        read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    let given_up = theirs
        .iter_mut()
        .filter_map(|it| (!lives(it)).then_some(()));
    let given_up = given_up.count();
    println!("{asked} questions over {CONNECTIONS} connections, {given_up} given up");
    // Each connection sends several, however slow the machine is.
    if given_up > 0 || asked < 3 * CONNECTIONS as u64 {
        return Err(format!("{asked} questions, {given_up} given up").into());
    }
    Ok(())
}

/// A stack loses its link, and a new stack serves on a new link.
fn reopen(replicas: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    /// How long the stack keeps a device that is gone.
    const UNSERVED: Duration = Duration::from_millis(800);
    let replicas = replicas.parse()?;
    ip("link set lo up")?;
    let mut busy = Duration::ZERO;
    for round in 0..3 {
        let stack = start(replicas)?;
        let listener = stack.listen(7, 16)?;
        let mut theirs = TcpStream::connect_timeout(&"10.78.0.1:7".parse()?, PATIENCE)?;
        let (mut ours, _) = listener.accept()?;
        theirs.write_all(b"hello")?;
        let mut bytes = [0; 5];
        ours.read_exact(&mut bytes)?;
        ours.write_all(&bytes)?;
        theirs.read_exact(&mut bytes)?;
        if bytes != *b"hello" {
            return Err("other bytes came back".into());
        }
        // Frames are queued for the device when it is deleted.
        let written = ours.try_write(&vec![7; 500_000])?;
        ip(&format!("link del {INTERFACE}"))?;
        let deadline = Instant::now() + PATIENCE;
        let error = loop {
            match stack.take_device_error() {
                Some(error) if !error.is_temporary() => break error,
                _ if Instant::now() > deadline => return Err("no error is reported".into()),
                _ => thread::sleep(GLANCE),
            }
        };
        if !matches!(error, DeviceError::Gone { .. }) {
            return Err(format!("{error:?}").into());
        }
        let before = own_cpu()?;
        thread::sleep(UNSERVED);
        busy = busy.max(own_cpu()? - before);
        drop(stack);
        if listener.accept().is_ok() {
            return Err("the listener outlives its stack".into());
        }
        println!("round {round}: {written} bytes were written; {error}");
    }
    println!(
        "{} ms of a core in {} ms without a device",
        busy.as_millis(),
        UNSERVED.as_millis()
    );
    if busy > UNSERVED / BUSY {
        return Err(format!("{busy:?} of a core in {UNSERVED:?} without a device").into());
    }
    Ok(())
}

fn ip(arguments: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    let output = Command::new("ip").args(arguments.split(' ')).output()?;
    if output.status.success() {
        Ok(())
    } else {
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("ip {arguments}: {}", said.trim()).into())
    }
}

fn own_cpu() -> Result<Duration, Box<dyn Error + Send + Sync>> {
    crate::fixture::cpu_time("self").map_err(|failed| {
        failed
            .message()
            .unwrap_or("no processor time")
            .to_owned()
            .into()
    })
}

/// Floods, or runs a stack; `arguments` follow [`PEER`].
pub(crate) fn peer(arguments: &[String]) -> Result<(), Box<dyn Error + Send + Sync>> {
    let [what, mac, interface, end] = match arguments {
        [what, replicas] if what == REOPEN => return reopen(replicas),
        [what, replicas] if what == KEEP => return keep(replicas),
        [what, mac, interface, end] => [what, mac, interface, end],
        _ => return Err("two arguments or four".into()),
    };
    let mut bytes = [0; 6];
    for (byte, text) in bytes.iter_mut().zip(mac.split(':')) {
        *byte = u8::from_str_radix(text, 16)?;
    }
    let server: Ipv4Addr = OURS.parse()?;
    let mut injector = Injector::open(interface, bytes, server, 80, 1)?;
    let mut looks = 0u32;
    let ends = || {
        // Checks for the file only sometimes.
        looks += 1;
        looks.is_multiple_of(16) && Path::new(end).exists()
    };
    match Kind::named(what) {
        Some(kind) => {
            let sent = injector.flood(kind, RATE, ends)?;
            println!("{} frames, {} missed", sent.frames, sent.missed);
        }
        None => {
            let request = b"GET /bytes/100000 HTTP/1.1\r\nHost: x\r\n\r\n";
            let sent = injector.close_windows(CLOSED as u16, request, ends)?;
            println!(
                "{} probes answered, {} windows closed, {} reset",
                sent.answered, sent.established, sent.reset
            );
        }
    }
    Ok(())
}

/// The device of the tests in [`TESTS`].
pub(crate) const DEVICE: Device = Device::Tap;
