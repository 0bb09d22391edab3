//! One end of a connection: a process that moves bytes as fast as it can and reports the rate
//! and its cost.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use dominoes_bench::namespaces::machine_nanos;
use dominoes_bench::topology;
use dominoes_drivers::af_packet::{AfPacket, AfPacketOptions, RxRing};
use dominoes_drivers::af_xdp::{AfXdp, AfXdpOptions, XdpTransmit};
use dominoes_drivers::tap::Tap;
use dominoes_drivers::tun::Tun;
use dominoes_netstack::{Limits, Stack};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::fixture::Outcome;
use super::timed::{Times, timed};
use super::{Device, Frames, Way};

/// Bytes written and read at once.
const CHUNK: usize = 128 << 10;
/// The sender continues for this time after the measurement, so that both ends measure
/// under way.
const TAIL: Duration = Duration::from_millis(100);

/// A task for one end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    /// Over our stack, or else the kernel's.
    pub(crate) ours: Option<Ours>,
    /// Whether this end listens, or else connects.
    pub(crate) listens: bool,
    /// Whether this end sends.
    pub(crate) sends: bool,
    /// The end that listens.
    pub(crate) server: SocketAddrV4,
    /// The time before the measurement, and the time of the measurement.
    pub(crate) millis: [u64; 2],
    /// Whether all bytes are hashed.
    pub(crate) hash: bool,
    /// The core that all of it stays on; `None`: where it likes.
    pub(crate) core: Option<Core>,
}

/// One of two cores, which may be the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Core {
    /// The machine's first.
    First,
    /// The machine's last.
    Last,
}

impl Core {
    /// Keeps this thread there, and the threads that it starts from here on.
    fn take(self) -> Outcome<()> {
        let core = match self {
            Core::First => 0,
            Core::Last => topology::cores().len().saturating_sub(1),
        };
        if topology::pin_to(core) {
            Ok(())
        } else {
            Err("cannot stay on one core".into())
        }
    }
}

/// How our stack is set up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Ours {
    /// `Device::name`.
    pub(crate) device: String,
    /// The interface.
    pub(crate) interface: String,
    /// Our address.
    pub(crate) address: Ipv4Addr,
    /// `Frames::name`.
    pub(crate) frames: String,
    /// Whether checksums may be left to the device.
    pub(crate) offloads: bool,
    /// Whether AF_XDP and TAP are handed frames that are longer than the MTU, whatever the kernel
    /// sends.
    pub(crate) merged: bool,
    /// Threads that run the stack.
    pub(crate) replicas: usize,
    /// Send and receive buffer of the connection, in bytes.
    pub(crate) buffer: u32,
    /// Ring of a packet socket, in bytes.
    pub(crate) ring: usize,
}

/// The result of one end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Done {
    /// Bytes that were moved while measuring, and how long that was.
    pub(crate) bytes: u64,
    /// Nanoseconds.
    pub(crate) nanos: u64,
    /// Time on any core, of all threads of this process, in nanoseconds.
    pub(crate) cpu_nanos: u64,
    /// The time of the kernel's threads that do the network's work when no other thread does.
    pub(crate) softirq_nanos: u64,
    /// Time in which any core of the machine did anything, for whomever; in nanoseconds, to the
    /// tick.
    pub(crate) machine_nanos: u64,
    /// Of our stack's device.
    pub(crate) device: DeviceTimes,
    /// Of all bytes from the beginning to the end, and how many.
    pub(crate) hash: Option<(u64, String)>,
}

/// How long calls of the device took, in nanoseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct DeviceTimes {
    /// Claiming and releasing frames.
    pub(crate) receiving: u64,
    /// Sending frames.
    pub(crate) sending: u64,
    /// Asleep.
    pub(crate) asleep: u64,
    /// Frames for each call that received any, and for each that sent any.
    pub(crate) batch: [f64; 2],
}

/// Runs the task of the JSON text, and prints the result.
pub(crate) fn run(task: &str) -> Outcome<()> {
    let task: Task = serde_json::from_str(task)?;
    if let Some(core) = task.core {
        core.take()?;
    }
    let done = match &task.ours {
        None => over_kernel(&task)?,
        Some(ours) => over_ours(&task, ours)?,
    };
    println!("{}", serde_json::to_string(&done)?);
    Ok(())
}

fn over_kernel(task: &Task) -> Outcome<Done> {
    let mut stream = if task.listens {
        let listener = TcpListener::bind(task.server)?;
        println!("ready");
        listener.accept()?.0
    } else {
        TcpStream::connect(task.server)?
    };
    let mut meter = Meter::new(task, None);
    if task.sends {
        send(&mut stream, &mut meter)?;
        // The kernel delivers the rest, even if this process has ended.
        stream.shutdown(std::net::Shutdown::Write)?;
    } else {
        receive(BufReader::with_capacity(CHUNK, stream), &mut meter)?;
    }
    meter.done()
}

fn over_ours(task: &Task, ours: &Ours) -> Outcome<Done> {
    let (stack, times) = start(ours)?;
    let stream = if task.listens {
        let listener = stack.listen(task.server.port(), 1)?;
        println!("ready");
        listener.accept()?.0
    } else {
        stack.connect(task.server)?
    };
    let (mut reader, mut writer) = stream.split();
    let mut meter = Meter::new(task, Some(times));
    if task.sends {
        send(&mut writer, &mut meter)?;
        writer.shutdown();
        // Our stack ends with this process, so the other end has to be done.
        reader.read_to_end(&mut Vec::new())?;
    } else {
        receive(&mut reader, &mut meter)?;
    }
    meter.done()
}

fn start(ours: &Ours) -> Outcome<(Stack, Arc<Times>)> {
    let device = Device::named(&ours.device).ok_or("no such device")?;
    let large = ours.frames == Frames::Large.name();
    let mut limits = Limits::default();
    limits.connections = 16;
    (limits.receive_buffer, limits.send_buffer) = (ours.buffer, ours.buffer);
    if large {
        // Each is up to 64 KB; more than a window of them would only cool the caches.
        limits.tx_slots = 64;
    }
    let builder = Stack::builder(&format!("{}/24", ours.address))
        .replicas(ours.replicas)
        .limits(limits);
    let device: Box<dyn dominoes_drivers::Device> = match device {
        Device::Slots | Device::Blocks => {
            let ring = match device {
                Device::Slots => RxRing::Slots,
                _ => RxRing::Blocks,
            };
            let options = AfPacketOptions::default()
                .address(ours.address)
                .offloads(ours.offloads)
                .ring_bytes(ours.ring)
                .slot_bytes(if large { 69_632 } else { 2_048 })
                .ring(ring);
            Box::new(AfPacket::open(&ours.interface, options)?)
        }
        Device::Xdp => {
            // The peer on a veth leaves checksums unfinished, and nothing damages a frame there.
            let options = AfXdpOptions::default()
                .address(ours.address)
                .offloads(ours.offloads)
                .transmit(if ours.merged {
                    XdpTransmit::Packet
                } else {
                    XdpTransmit::Ring
                })
                .trust_checksums(true);
            Box::new(AfXdp::open(&ours.interface, &options)?)
        }
        Device::Tap => Box::new(
            Tap::options()
                .offloads(ours.offloads)
                .segmentation(large)
                .merged(ours.merged)
                .open(&ours.interface)?,
        ),
        Device::Tun => Box::new(
            Tun::options()
                .offloads(ours.offloads)
                .segmentation(large)
                .merged(ours.merged)
                .open(&ours.interface)?,
        ),
    };
    let (device, times) = timed(device);
    Ok((builder.start(device)?, times))
}

/// Sends until the time is over.
fn send(to: &mut impl Write, meter: &mut Meter) -> Outcome<()> {
    // Without a pattern that a slip of the stream by some bytes would hide.
    let chunk: Vec<u8> = (0..CHUNK as u64)
        .map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect();
    while !meter.is_over() {
        to.write_all(&chunk)?;
        meter.moved(&chunk)?;
    }
    Ok(())
}

/// Receives until the other end has no more, reading in place where that is possible.
fn receive(mut from: impl BufRead, meter: &mut Meter) -> Outcome<()> {
    loop {
        let bytes = from.fill_buf()?;
        if bytes.is_empty() {
            return Ok(());
        }
        meter.moved(bytes)?;
        let len = bytes.len();
        from.consume(len);
    }
}

/// Counts bytes and processor time.
struct Meter {
    start: Instant,
    begin: Duration,
    end: Duration,
    times: Option<Arc<Times>>,
    softirq: Vec<String>,
    moved: u64,
    /// When measuring began, and when it ended.
    marks: Vec<Mark>,
    hash: Option<Sha256>,
}

#[derive(Clone)]
struct Mark {
    at: Duration,
    bytes: u64,
    cpu: u64,
    softirq: u64,
    machine: u64,
    device: [u64; 3],
    counts: [u64; 4],
}

impl Meter {
    fn new(task: &Task, times: Option<Arc<Times>>) -> Meter {
        let [before, during] = task.millis.map(Duration::from_millis);
        Meter {
            start: Instant::now(),
            begin: before,
            end: before + during,
            times,
            softirq: softirq_threads(),
            moved: 0,
            marks: Vec::new(),
            hash: task.hash.then(Sha256::new),
        }
    }

    fn is_over(&self) -> bool {
        self.start.elapsed() >= self.end + TAIL
    }

    fn moved(&mut self, bytes: &[u8]) -> Outcome<()> {
        self.moved += bytes.len() as u64;
        if let Some(hash) = &mut self.hash {
            hash.update(bytes);
        }
        let due = match self.marks.len() {
            0 => self.begin,
            1 => self.end,
            _ => return Ok(()),
        };
        if self.start.elapsed() >= due {
            self.mark()?;
        }
        Ok(())
    }

    fn mark(&mut self) -> Outcome<()> {
        let mut mark = Mark {
            at: self.start.elapsed(),
            bytes: self.moved,
            cpu: 0,
            softirq: 0,
            machine: machine_nanos(),
            device: [0; 3],
            counts: [0; 4],
        };
        for task in fs::read_dir("/proc/self/task")? {
            mark.cpu += on_core(&task?.path().join("schedstat"));
        }
        for thread in &self.softirq {
            mark.softirq += on_core(thread.as_ref());
        }
        if let Some(times) = &self.times {
            let [received, sent] = &times.frames;
            let [claims, sends] = &times.calls;
            mark.device =
                [&times.receiving, &times.sending, &times.asleep].map(|of| of.load(Relaxed));
            mark.counts = [received, claims, sent, sends].map(|of| of.load(Relaxed));
        }
        self.marks.push(mark);
        Ok(())
    }

    fn done(mut self) -> Outcome<Done> {
        while self.marks.len() < 2 {
            // The other end had to say too little.
            self.mark()?;
        }
        let [begin, end] = [self.marks[0].clone(), self.marks[1].clone()];
        let device = |i: usize| end.device[i] - begin.device[i];
        let count = |i: usize| (end.counts[i] - begin.counts[i]) as f64;
        Ok(Done {
            bytes: end.bytes - begin.bytes,
            nanos: (end.at - begin.at).as_nanos() as u64,
            cpu_nanos: end.cpu - begin.cpu,
            softirq_nanos: end.softirq - begin.softirq,
            machine_nanos: end.machine - begin.machine,
            device: DeviceTimes {
                receiving: device(0),
                sending: device(1),
                asleep: device(2),
                batch: [count(0) / count(1).max(1.0), count(2) / count(3).max(1.0)],
            },
            hash: self
                .hash
                .map(|hash| (self.moved, format!("{:x}", hash.finalize()))),
        })
    }
}

/// Nanoseconds on a core, by a thread's `schedstat`.
fn on_core(path: &std::path::Path) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let word = text.split_whitespace().next();
    word.and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// The files with the times of `ksoftirqd`, a path for each core.
fn softirq_threads() -> Vec<String> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        .filter(|name| {
            fs::read_to_string(format!("/proc/{name}/comm"))
                .is_ok_and(|comm| comm.starts_with("ksoftirqd"))
        })
        .map(|name| format!("/proc/{name}/schedstat"))
        .collect()
}

/// A task for one end.
pub(crate) fn task(ours: Option<Ours>, listens: bool, way: Way, server: SocketAddrV4) -> Task {
    Task {
        ours,
        listens,
        sends: way == Way::Send,
        server,
        millis: [0, 0],
        hash: false,
        core: None,
    }
}
