//! Compares the devices with bare loops over the same sockets, in alternating slices of one run,
//! over a veth pair in a network namespace that is removed at the end. Needs root. Prints packets
//! per second and the ratio of each pair of slices (median and quartiles).
//!
//! ```text
//! sudo -E env "PATH=$PATH" cargo bench -p dominoes-drivers --features bare rings
//! ```

use std::collections::VecDeque;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use dominoes_drivers::af_packet::{AfPacket, AfPacketOptions, RxRing};
use dominoes_drivers::af_xdp::{AfXdp, AfXdpOptions};
use dominoes_drivers::bare::{BareXdp, LiveSource};
use dominoes_drivers::{Device, Frame, TxFrame};

/// Set in the copy of this program that runs inside the namespace.
const INSIDE: &str = "DOMINOES_BENCH_INSIDE";
/// Length of a slice, and number of pairs of slices.
const SLICE: Duration = Duration::from_millis(200);
const PAIRS: usize = 20;
/// Frames claimed or sent at once.
const BATCH: usize = 64;

fn main() {
    if std::env::var_os(INSIDE).is_none() {
        // Cargo passes the same arguments to the bench targets of all packages.
        let words = || {
            std::env::args()
                .skip(1)
                .filter(|word| !word.starts_with('-'))
        };
        if words().next().is_some() && !words().any(|word| word == "rings") {
            return;
        }
        if std::env::args().any(|word| word == "--list") {
            println!("rings: the devices against bare loops over the same sockets; needs root");
            return;
        }
        let may = Command::new("unshare").args(["-n", "true"]).output();
        if !may.is_ok_and(|output| output.status.success()) {
            println!("rings: nothing is measured: it needs root and `unshare` (util-linux):");
            println!(
                "  sudo -E env \"PATH=$PATH\" cargo bench -p dominoes-drivers --features bare rings"
            );
            return;
        }
        let program = std::env::current_exe().expect("this program has a path");
        let status = Command::new("unshare")
            .arg("-n")
            .arg(program)
            .env(INSIDE, "1")
            .status();
        let done = status.is_ok_and(|status| status.success());
        assert!(done, "what runs in the namespace failed");
        return;
    }
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    println!(
        "{} cores, {} ms slices, {PAIRS} pairs; load {}",
        cores.len(),
        SLICE.as_millis(),
        std::fs::read_to_string("/proc/loadavg")
            .unwrap_or_default()
            .trim()
    );
    println!("{:42} {:>9} {:>9}  ratio (quartiles)", "", "device", "bare");
    for len in [60, 1514] {
        xdp_receive(len);
        xdp_send(len);
    }
    println!(
        "{:42} {:>9} {:>9}  ratio (quartiles)",
        "", "3 readers", "1 reader"
    );
    blocks_with_readers(60);
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "ip {arguments}"
    );
}

/// Creates two joined interfaces and removes earlier ones.
fn veth() {
    let _ = Command::new("ip").args(["link", "del", "left"]).output();
    ip("link add left type veth peer name right");
    for interface in ["left", "right"] {
        let path = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
        let _ = std::fs::write(path, "1");
        ip(&format!("link set {interface} up"));
    }
    thread::sleep(Duration::from_millis(300));
}

fn pin(core: usize) {
    if let Some(&core) = core_affinity::get_core_ids()
        .and_then(|cores| cores.get(core).copied())
        .as_ref()
    {
        core_affinity::set_for_current(core);
    }
}

fn frame(len: usize) -> Vec<u8> {
    let mut frame = vec![0xff; 12];
    frame.extend([0x88, 0xb5]);
    frame.resize(len, 7);
    frame
}

/// Runs both functions in turn, and prints their rates and ratios. Each returns the number of
/// packets that it moved in a slice.
fn compare(name: &str, mut ours: impl FnMut() -> u64, mut bare: impl FnMut() -> u64) {
    // One uncounted run each, to warm up.
    ours();
    bare();
    let mut rows: Vec<(f64, f64)> = Vec::new();
    let rate = |run: &mut dyn FnMut() -> u64| {
        let begin = Instant::now();
        let packets = run();
        packets as f64 / begin.elapsed().as_secs_f64() / 1e6
    };
    for pair in 0..PAIRS {
        // Alternates the order, since the first of a pair may have an advantage.
        rows.push(if pair % 2 == 0 {
            let first = rate(&mut ours);
            (first, rate(&mut bare))
        } else {
            let first = rate(&mut bare);
            (rate(&mut ours), first)
        });
    }
    let quantile = |mut values: Vec<f64>, part: usize| {
        values.sort_by(f64::total_cmp);
        values[values.len() * part / 4]
    };
    let column = |of: fn(&(f64, f64)) -> f64| rows.iter().map(of).collect::<Vec<_>>();
    let ratios = column(|row| row.0 / row.1);
    println!(
        "{name:42} {:6.2} M {:6.2} M  {:.2} ({:.2} to {:.2})",
        quantile(column(|row| row.0), 2),
        quantile(column(|row| row.1), 2),
        quantile(ratios.clone(), 2),
        quantile(ratios.clone(), 1),
        quantile(ratios, 3),
    );
}

/// Sends as fast as the kernel can until `done` is set.
fn source(interface: &'static str, len: usize, done: Arc<AtomicBool>) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        pin(0);
        let source = LiveSource::new(interface).expect("a source of frames");
        // Each call takes 24 ms to begin, so long calls keep the pauses few.
        while !done.load(Relaxed) {
            source.run(&frame(len), 500_000).expect("the source runs");
        }
    })
}

fn xdp_receive(len: usize) {
    veth();
    let device = AfXdp::open("left", &AfXdpOptions::default()).expect("AF_XDP");
    // The sending end needs a program, too, so that its frames are handed over at once.
    let _peer = AfXdp::open("right", &AfXdpOptions::default()).expect("AF_XDP");
    let done = Arc::new(AtomicBool::new(false));
    let source = source("right", len, Arc::clone(&done));
    pin(1);
    let device = std::cell::RefCell::new(BareXdp::new(device));
    let mut frames = Vec::new();
    compare(
        &format!("AF_XDP receive, {len} B"),
        || {
            let mut device = device.borrow_mut();
            let (begin, mut packets, mut sum) = (Instant::now(), 0, 0u64);
            while begin.elapsed() < SLICE {
                let claimed = device.rx().claim(BATCH, &mut frames).expect("it is up");
                for frame in &frames {
                    sum = sum.wrapping_add(head(frame));
                }
                device.rx().release(&mut frames);
                packets += claimed as u64;
            }
            std::hint::black_box(sum);
            packets
        },
        || {
            let mut device = device.borrow_mut();
            let (begin, mut packets, mut sum) = (Instant::now(), 0, 0u64);
            while begin.elapsed() < SLICE {
                let (received, bytes) = device.receive(BATCH);
                sum = sum.wrapping_add(bytes);
                packets += received as u64;
            }
            std::hint::black_box(sum);
            packets
        },
    );
    done.store(true, Relaxed);
    source.join().expect("the source ends");
}

fn head(frame: &Frame) -> u64 {
    u64::from_ne_bytes(frame.bytes()[..8].try_into().expect("8 bytes"))
}

fn xdp_send(len: usize) {
    veth();
    let device = AfXdp::open("left", &AfXdpOptions::default()).expect("AF_XDP");
    pin(1);
    let device = std::cell::RefCell::new(BareXdp::new(device));
    let frame = frame(len);
    compare(
        &format!("AF_XDP send, {len} B"),
        || {
            let mut device = device.borrow_mut();
            let batch = [TxFrame::new(&frame); BATCH];
            let (begin, mut packets) = (Instant::now(), 0);
            while begin.elapsed() < SLICE {
                packets += device.tx().transmit(&batch).expect("it is up") as u64;
            }
            packets
        },
        || {
            let mut device = device.borrow_mut();
            let (begin, mut packets) = (Instant::now(), 0);
            while begin.elapsed() < SLICE {
                packets += device.send(&frame, BATCH) as u64;
            }
            packets
        },
    );
}

/// Compares three threads that read a TPACKET_V3 ring in place with one. The first thread claims
/// and releases the frames.
fn blocks_with_readers(len: usize) {
    veth();
    let device = AfPacket::open("left", AfPacketOptions::default().ring(RxRing::Blocks));
    let (rx, _tx) = Box::new(device.expect("AF_PACKET")).split();
    let done = Arc::new(AtomicBool::new(false));
    let sender = {
        let done = Arc::clone(&done);
        thread::spawn(move || {
            pin(0);
            let options = AfPacketOptions::default()
                .ring(RxRing::None)
                .qdisc_bypass(true);
            let device = AfPacket::open("right", options).expect("AF_PACKET");
            let (_rx, mut tx) = Box::new(device).split();
            let frame = frame(len);
            while !done.load(Relaxed) {
                tx.transmit(&[TxFrame::new(&frame); BATCH])
                    .expect("it is up");
            }
        })
    };
    let rx = std::cell::RefCell::new(rx);
    compare(
        &format!("TPACKET_V3 receive in place, {len} B"),
        || read_by(3, &mut **rx.borrow_mut()),
        || read_by(1, &mut **rx.borrow_mut()),
    );
    done.store(true, Relaxed);
    sender.join().expect("the sender ends");
}

/// Frames that all readers read. The thread that claims them waits for the others before it
/// releases them.
type Batch = Arc<Vec<Frame>>;

fn read_by(readers: usize, rx: &mut dyn dominoes_drivers::DeviceRx) -> u64 {
    let over = AtomicBool::new(false);
    let counted = AtomicU64::new(0);
    let queues: Vec<ArrayQueue<Batch>> = (1..readers).map(|_| ArrayQueue::new(64)).collect();
    let mut packets = 0;
    thread::scope(|scope| {
        for queue in &queues {
            let (over, counted) = (&over, &counted);
            scope.spawn(move || {
                pin(1);
                let (mut sum, mut seen) = (0u64, 0);
                loop {
                    match queue.pop() {
                        Some(batch) => {
                            sum = batch.iter().map(head).fold(sum, u64::wrapping_add);
                            seen += batch.len() as u64;
                        }
                        None if over.load(Relaxed) => break,
                        None => thread::yield_now(),
                    }
                }
                std::hint::black_box(sum);
                counted.fetch_add(seen, Relaxed);
            });
        }
        pin(1);
        let mut out: VecDeque<Batch> = VecDeque::new();
        let (begin, mut sum) = (Instant::now(), 0u64);
        while begin.elapsed() < SLICE {
            let mut frames = Vec::new();
            let claimed = rx.claim(512, &mut frames).expect("it is up");
            if claimed == 0 {
                rx.wait(Some(Duration::from_millis(2))).expect("it is up");
                continue;
            }
            let batch = Arc::new(frames);
            for queue in &queues {
                let mut mine = Arc::clone(&batch);
                while let Err(back) = queue.push(mine) {
                    mine = back;
                    thread::yield_now();
                }
            }
            sum = batch.iter().map(head).fold(sum, u64::wrapping_add);
            packets += claimed as u64;
            out.push_back(batch);
            while out
                .front()
                .is_some_and(|batch| Arc::strong_count(batch) == 1)
            {
                let batch = out
                    .pop_front()
                    .and_then(|batch| Arc::try_unwrap(batch).ok());
                rx.release(&mut batch.unwrap_or_default());
            }
        }
        over.store(true, Relaxed);
        std::hint::black_box(sum);
    });
    assert_eq!(
        counted.load(Relaxed),
        packets * (readers as u64 - 1),
        "all read all"
    );
    packets
}
