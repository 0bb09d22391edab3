//! Frames of many datagrams between our stack and a Linux kernel, in both directions and over both
//! families. `socat` sends with `UDP_SEGMENT`, so the kernel passes undivided frames to our stack;
//! frames of many datagrams from our stack are divided by the kernel for its sockets.
//!
//! A second test measures the gain. It is ignored by default, since other load on the machine
//! decides the result.
//!
//! Each device is opened once, for both families. Our side is this program, started again with
//! [`PEER`], the interface and the maximum datagrams per frame as arguments; with `kernel` as the
//! second argument, the program uses a socket of the kernel instead.

use std::error::Error;
use std::io;
use std::net::{SocketAddr, UdpSocket as KernelSocket};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use dominoes_drivers::af_packet::{AfPacket, AfPacketOptions};
use dominoes_drivers::tap::Tap;
use dominoes_netstack::{Ipv6Config, Limits, Stack, UdpSocket};
use dominoes_testkit::Rng;
use libtest_mimic::Failed;
use sha2::{Digest, Sha256};

use crate::fixture::{self, Device, Ends, KERNELS_V6, OURS, OURS_V6, Program, Temporary, explain};

/// The first argument of the program.
pub(crate) const PEER: &str = "--datagram-peer";

/// Each kind of device.
pub(crate) const TESTS: [(&str, Device); 2] = [("tap", Device::Tap), ("packet", Device::Packet)];

/// Ports of our stack: the one that answers, and the one that receives from `socat`.
const ASKED: u16 = 7000;
const TAKES: u16 = 7001;
/// Bytes of a datagram.
const SIZE: usize = 1200;
/// Bytes that `socat` sends at once, which become one frame.
const BLOCK: usize = 50 * SIZE;
/// Bytes that it sends in total; the last datagram is shorter.
const LEN: usize = 20 * BLOCK + SIZE / 2;
/// Datagrams sent per request of the kernel's socket, so that its buffer has room, and the number
/// of requests.
const BURST: usize = 40;
const BURSTS: usize = 50;
/// The longest time that a datagram takes, unless it is lost.
const PATIENCE: Duration = Duration::from_secs(120);
/// What begins a conversation, and the time after which it is repeated.
const HELLO: &[u8] = b"hello";
const AGAIN: Duration = Duration::from_millis(200);
const TRIES: u32 = 100;
/// Requests as many datagrams as leave in `MEASURED`, after a warm-up of `BEFORE`.
const FLOOD: &[u8] = b"flood";
const MEASURED: Duration = Duration::from_secs(1);
const BEFORE: Duration = Duration::from_millis(200);
const ROUNDS: usize = 7;
/// Bytes of each.
const FLOODED: usize = 1400;

/// Sends datagrams both ways, over both families. Returns the counts of datagrams and frames.
pub(crate) fn run(device: Device) -> Result<String, Failed> {
    let program = std::env::current_exe()?.display().to_string();
    let (ends, mut server) = start(device, &program, Limits::MAX_DATAGRAMS_PER_FRAME)?;
    let mut both_ways = |address: &str| {
        let address = SocketAddr::new(address.parse()?, 0);
        let taken = kernel_sends(&ends, &server, &program, address);
        let sent = taken.and_then(|taken| {
            let sent = kernel_receives(&ends, &program, address)?;
            Ok(format!("{taken}, {sent}"))
        });
        sent.map_err(|failed| explain(&mut server, &failed))
    };
    let (v4, v6) = (both_ways(OURS)?, both_ways(OURS_V6)?);
    Ok(format!("IPv4: {v4}; IPv6: {v6}"))
}

/// Starts our stack on a device whose other end is the kernel.
fn start(device: Device, program: &str, datagrams: u32) -> Result<(Ends, Program), Failed> {
    let ends = Ends::new(device)?;
    let (peer, interface) = (ends.peer(), ends.interface());
    peer.enable_v6(interface)?;
    peer.ip(&format!("addr add {KERNELS_V6}/64 dev {interface} nodad"))?;
    let mut command = ends.our_command(Path::new(program));
    command.args([PEER, interface, &datagrams.to_string()]);
    let server = fixture::serve(&mut command)?;
    ends.wait_until_running()?;
    Ok((ends, server))
}

/// Measures alternately how many datagrams leave per second with one datagram per frame and with up
/// to 64. Returns the medians and their ratio.
pub(crate) fn measure(device: Device) -> Result<String, Failed> {
    let mut rates = [Vec::new(), Vec::new()];
    for round in 0..2 * ROUNDS {
        // The order alternates, too.
        let which = (round + round / 2) % 2;
        rates[which].push(flood(device, [1, Limits::MAX_DATAGRAMS_PER_FRAME][which])?);
    }
    let [one, many] = rates.map(|mut rates| {
        rates.sort_unstable();
        rates[ROUNDS / 2]
    });
    let ratio = many as f64 / one as f64;
    Ok(format!(
        "{one} datagrams/s, {many} in shared frames: {ratio:.2}"
    ))
}

fn flood(device: Device, datagrams: u32) -> Result<u64, Failed> {
    let program = std::env::current_exe()?.display().to_string();
    let (ends, server) = start(device, &program, datagrams)?;
    let asked = format!("{OURS}:{ASKED}");
    ends.speak(&program, &[PEER, "kernel", &asked, "flood"])?
        .finish()?;
    server.wait_for(" datagrams/s\n", 1)?;
    let said = server.said();
    let rate = said
        .lines()
        .find_map(|line| line.strip_suffix(" datagrams/s"));
    Ok(rate.ok_or("no rate")?.parse()?)
}

/// Frames that an interface of the kernel has sent (`tx`) or received (`rx`).
fn frames(ends: &Ends, way: &str) -> Result<u64, Failed> {
    let interface = ends.interface();
    let path = format!("/sys/class/net/{interface}/statistics/{way}_packets");
    Ok(ends.speak("cat", &[&path])?.finish()?.trim().parse()?)
}

/// The kernel sends datagrams in undivided frames.
fn kernel_sends(
    ends: &Ends,
    server: &Program,
    program: &str,
    ours: SocketAddr,
) -> Result<String, Failed> {
    // After this exchange both ends know each other's link-layer address, and the link carries
    // frames.
    let asked = SocketAddr::new(ours.ip(), ASKED).to_string();
    let hello = [PEER, "kernel", &asked, "0"];
    ends.speak(program, &hello)?.finish()?;
    let folder = Temporary::new()?;
    folder.write("sent", LEN, u64::from(ours.is_ipv4()))?;
    let from = format!("OPEN:{}", folder.file("sent"));
    // SOL_UDP and UDP_SEGMENT.
    let family = if ours.is_ipv4() { "UDP4" } else { "UDP6" };
    let takes = SocketAddr::new(ours.ip(), TAKES);
    let to = format!("{family}:{takes},setsockopt-int=17:103:{SIZE}");
    let block = BLOCK.to_string();
    let before = frames(ends, "tx")?;
    let socat = ends.speak("socat", &["-u", "-b", &block, &from, &to])?;
    socat.finish()?;
    let datagrams = LEN.div_ceil(SIZE);
    server.wait_for(&format!("got {} in {datagrams}\n", folder.hex("sent")?), 1)?;
    let frames = frames(ends, "tx")? - before;
    few(frames, datagrams, "came")
}

/// Our stack sends many datagrams at once.
fn kernel_receives(ends: &Ends, program: &str, ours: SocketAddr) -> Result<String, Failed> {
    let asked = SocketAddr::new(ours.ip(), ASKED).to_string();
    let bursts = BURSTS.to_string();
    let before = frames(ends, "rx")?;
    let asks = [PEER, "kernel", &asked, &bursts];
    let said = ends.speak(program, &asks)?.finish()?;
    let frames = frames(ends, "rx")? - before;
    let datagrams = BURSTS * BURST;
    if said.trim() != format!("{datagrams} came") {
        return Err(said.into());
    }
    few(frames, datagrams, "left")
}

/// Fails unless at least two datagrams share a frame on average. Far more do, but the receiver may
/// find the first datagrams of a burst before the others are there.
fn few(frames: u64, datagrams: usize, did: &str) -> Result<String, Failed> {
    let what = format!("{datagrams} datagrams {did} in {frames} frames");
    match 2 * frames > datagrams as u64 {
        true => Err(what.into()),
        false => Ok(what),
    }
}

// The program
// -------------------------------------------------------------------------------------------------

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

/// What this program does; `arguments` follow [`PEER`].
pub(crate) fn peer(arguments: &[String]) -> Outcome {
    match arguments {
        [kernel, asked, flood] if kernel == "kernel" && flood == "flood" => sink(asked.parse()?),
        [kernel, asked, bursts] if kernel == "kernel" => ask(asked.parse()?, bursts.parse()?),
        [interface, datagrams] => serve(interface, datagrams.parse()?),
        _ => Err("an interface and a number".into()),
    }
}

/// Datagram `i` of a burst.
fn datagram(burst: usize, i: usize) -> Vec<u8> {
    let mut rng = Rng::new((burst * BURST + i) as u64);
    // The last datagram of a burst is shorter.
    let len = if i + 1 == BURST { SIZE / 3 } else { SIZE };
    (0..len).map(|_| rng.next() as u8).collect()
}

/// A socket of the kernel that has received an answer.
fn greet(asked: SocketAddr) -> Result<KernelSocket, Box<dyn Error + Send + Sync>> {
    let any = match asked.is_ipv4() {
        true => "0.0.0.0:0",
        false => "[::]:0",
    };
    let socket = KernelSocket::bind(any)?;
    socket.connect(asked)?;
    let mut buffer = [0; 64];
    socket.set_read_timeout(Some(AGAIN))?;
    let answered = (0..TRIES).any(|_| {
        let sent = socket.send(HELLO);
        sent.is_ok() && socket.recv(&mut buffer).is_ok()
    });
    if !answered {
        return Err("no answer".into());
    }
    Ok(socket)
}

/// Requests a flood and receives until nothing more arrives.
fn sink(asked: SocketAddr) -> Outcome {
    let socket = greet(asked)?;
    let mut buffer = [0; 2 * FLOODED];
    socket.send(FLOOD)?;
    while socket.recv(&mut buffer).is_ok() {}
    Ok(())
}

/// Requests bursts and checks that each datagram arrives whole and in order.
fn ask(asked: SocketAddr, bursts: usize) -> Outcome {
    let socket = greet(asked)?;
    let mut buffer = vec![0; 65_536];
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut came = 0;
    for burst in 0..bursts {
        socket.send(&(burst as u64).to_be_bytes())?;
        for i in 0..BURST {
            let mut next = || {
                let failed = |error: io::Error| {
                    let what = format!("burst {burst}, datagram {i}: {error}");
                    io::Error::new(error.kind(), what)
                };
                socket.recv(&mut buffer).map_err(failed)
            };
            let mut len = next()?;
            // Late answers, if the first one was repeated.
            while len == HELLO.len() {
                len = next()?;
            }
            if buffer[..len] != datagram(burst, i) {
                return Err(format!("burst {burst}, datagram {i} of {len} bytes differs").into());
            }
            came += 1;
        }
    }
    println!("{came} came");
    Ok(())
}

/// Runs our stack.
fn serve(interface: &str, datagrams: u32) -> Outcome {
    let v6 = Ipv6Config::default()
        .autoconfigure(false)
        .duplicate_probes(0)
        .address(OURS_V6.parse()?, 64);
    let limits = Limits::default()
        .udp_receive_buffer(1 << 23)
        .datagrams_per_frame(datagrams);
    let builder = Stack::builder(&format!("{OURS}/24"))
        .ipv6(v6)
        .limits(limits);
    let stack = match interface == Device::Tap.interface() {
        true => builder.start(Tap::open(interface)?)?,
        false => builder.start(AfPacket::open(interface, AfPacketOptions::default())?)?,
    };
    let asked = stack.bind_udp(ASKED)?;
    let takes = stack.bind_udp(TAKES)?;
    println!("listening on {OURS}");
    thread::spawn(|| answer(asked).unwrap_or_else(|error| eprintln!("{error}")));
    let mut buffer = vec![0; 65_536];
    loop {
        let (mut bytes, mut datagrams, mut hash) = (0, 0, Sha256::new());
        while bytes < LEN {
            let (len, _) = takes.recv_from(&mut buffer)?;
            // A wrongly divided datagram has another length.
            if len != SIZE.min(LEN - bytes) {
                return Err(format!("{len} bytes after {bytes}").into());
            }
            hash.update(&buffer[..len]);
            bytes += len;
            datagrams += 1;
        }
        let hash = hash.finalize();
        let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        println!("got {hash} in {datagrams}");
    }
}

/// Answers a greeting with an echo, and other requests with datagrams.
fn answer(socket: UdpSocket) -> Outcome {
    let mut buffer = [0; 64];
    loop {
        let (len, from) = socket.recv_from(&mut buffer)?;
        if buffer[..len] == *FLOOD {
            println!("{} datagrams/s", send_flood(&socket, from)?);
            continue;
        }
        let Ok(burst) = buffer[..len].try_into().map(u64::from_be_bytes) else {
            socket.send_to(&buffer[..len], from)?;
            continue;
        };
        let own: Vec<_> = (0..BURST).map(|i| datagram(burst as usize, i)).collect();
        let mut left = &own[..];
        while !left.is_empty() {
            let sent = socket.send_many(left.iter().map(|own| (&own[..], from)))?;
            left = &left[sent..];
        }
    }
}

/// Sends as fast as there is room, and returns the number of datagrams in a second.
fn send_flood(socket: &UdpSocket, to: SocketAddr) -> io::Result<u64> {
    let datagram = [7; FLOODED];
    let many = || [(&datagram[..], to); 64];
    let start = Instant::now();
    while start.elapsed() < BEFORE {
        socket.send_many(many())?;
    }
    let (start, mut sent) = (Instant::now(), 0);
    while start.elapsed() < MEASURED {
        sent += socket.send_many(many())?;
    }
    Ok((sent as f64 / start.elapsed().as_secs_f64()) as u64)
}
