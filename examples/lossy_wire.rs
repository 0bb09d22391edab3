//! A bad wire between two TAP devices: loss, bursts, duplicates, reordering, bit errors, delay, a
//! limited rate, and a queue.
//!
//! ```text
//! cargo run --release --example lossy_wire                      # a test of itself, in memory, no privileges
//! cargo build --release --example lossy_wire
//! sudo target/release/examples/lossy_wire tap0 tap1 --loss 1% --delay 5ms --rate 100Mbit --queue 125kB --seed 7
//! ```
//!
//! The package is `dominoes-examples`; the commands work from the workspace root. It creates the
//! two interfaces and prints `carrying frames until Ctrl-C or SIGTERM`. Then run these in another
//! terminal:
//!
//! ```text
//! sudo ip netns add left;  sudo ip link set tap0 netns left
//! sudo ip netns add right; sudo ip link set tap1 netns right
//! sudo ip -n left  addr add 10.9.0.1/24 dev tap0;  sudo ip -n left  link set tap0 up
//! sudo ip -n right addr add 10.9.0.2/24 dev tap1;  sudo ip -n right link set tap1 up
//! sudo ip netns exec left ping -c 100 10.9.0.2                  # about 2 % lost, 10 ms
//! ```
//!
//! The seed and the number of earlier frames in its direction decide the fate of a frame, so
//! equal traffic has an equal fate. On Ctrl-C (SIGINT) or SIGTERM the example prints the counts
//! of each direction and exits with code 0; the interfaces disappear with it. A second signal
//! ends it at once.

#[path = "common/program.rs"]
mod program;
#[cfg(target_os = "linux")]
#[path = "common/signals.rs"]
mod signals;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dominoes_drivers::impair::{LinkConfig, LinkStats, bridge};
use dominoes_drivers::memory::{self, Faults, MemoryConfig};
use dominoes_netstack::Stack;

use program::{Arguments, Outcome, VALUE};

const USAGE: &str = "\
lossy_wire [OPTIONS] TAP TAP: a bad wire between two TAP devices; without any, tests itself in memory.

  --loss SHARE        frames lost: 1%, or as many of a million [none]
  --bursts SHARE      frames at which a burst of losses begins [none]
  --duplicate SHARE   frames that arrive twice [none]
  --reorder SHARE     frames that later ones overtake [none]
  --corrupt SHARE     frames of which a bit is flipped [none]
  --delay TIME        as 5ms [none]
  --jitter TIME       added to the delay, at most [none]
  --rate BITS         a second, as 100Mbit [no limit]
  --queue BYTES       that wait for the rate, as 125kB
  --seed N            chooses the frames
";

#[derive(Default)]
struct Options {
    config: LinkConfig,
    /// Whether an option describes the wire.
    faulty: bool,
    taps: Vec<String>,
}

impl Options {
    fn take(&mut self, option: &str, arguments: &mut Arguments) -> Outcome<bool> {
        let (config, mut faulty) = (&mut self.config, true);
        let faults = &mut config.faults;
        match option {
            "loss" => faults.loss_ppm = arguments.parse_with(ppm)?,
            "bursts" => {
                faults.burst_ppm = arguments.parse_with(ppm)?;
                faults.burst_frames = 8;
            }
            "duplicate" => faults.duplicate_ppm = arguments.parse_with(ppm)?,
            "reorder" => {
                faults.reorder_ppm = arguments.parse_with(ppm)?;
                faults.reorder_distance = 3;
            }
            "corrupt" => faults.corrupt_ppm = arguments.parse_with(ppm)?,
            "seed" => faults.seed = arguments.parse()?,
            "delay" => config.delay = arguments.parse_with(time)?,
            "jitter" => config.jitter = arguments.parse_with(time)?,
            "rate" => config.rate = arguments.parse_with(|text| amount(text, "bit"))?,
            "queue" => config.queue = arguments.parse_with(|text| amount(text, "B"))?,
            VALUE => {
                self.taps.push(arguments.text()?);
                faulty = false;
            }
            _ => return Ok(false),
        }
        self.faulty |= faulty;
        Ok(true)
    }
}

fn main() -> ExitCode {
    program::main(
        "lossy_wire",
        &[USAGE],
        Options::default(),
        Options::take,
        run,
    )
}

fn run(options: &Options) -> Outcome<()> {
    match options.taps.as_slice() {
        [] if !options.faulty => test_itself(),
        [first, second] => bridge_taps(first, second, &options.config),
        _ => Err("name two TAP devices, or give no arguments at all".into()),
    }
}

#[cfg(target_os = "linux")]
fn bridge_taps(first: &str, second: &str, config: &LinkConfig) -> Outcome<()> {
    use dominoes_drivers::tap::Tap;
    // Without offloads every segment is a separate frame, with a separate fate.
    let open = |name: &str| Tap::options().offloads(false).open(name);
    let (first, second) = (open(first)?, open(second)?);
    let over = signals::end_requested()?;
    println!("carrying frames until Ctrl-C or SIGTERM");
    print(&bridge(Box::new(first), Box::new(second), config, &over)?);
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn bridge_taps(_: &str, _: &str, _: &LinkConfig) -> Outcome<()> {
    Err("TAP devices are Linux's".into())
}

/// Moves a mebibyte from one stack to another over a wire that loses 1 %, and checks every byte.
fn test_itself() -> Outcome<()> {
    const BYTES: usize = 1 << 20;
    let faults = Faults::new(7)
        .loss(10_000)
        .duplicate(5_000)
        .reorder(10_000, 3)
        .corrupt(2_000);
    let config = LinkConfig::default()
        .faults(faults)
        .delay(Duration::from_millis(2))
        .rate(100_000_000, 125_000);
    let mac = |last| [2, 0, 0, 0, 0, last];
    let (left, left_end) = memory::pair(MemoryConfig::default().macs(mac(1), mac(11)));
    let (right, right_end) = memory::pair(MemoryConfig::default().macs(mac(2), mac(12)));
    let over = AtomicBool::new(false);
    let stats = thread::scope(|scope| -> Outcome<_> {
        let wire = scope.spawn(|| bridge(Box::new(left_end), Box::new(right_end), &config, &over));
        let moved = move_bytes(left, right, BYTES);
        over.store(true, Ordering::Relaxed);
        let stats = wire.join().map_err(|_| "the wire panicked")?;
        println!(
            "1 MiB arrived unharmed in {:.2} s: 1 % lost, 0.5 % twice, 1 % reordered, 0.2 % damaged, 4 ms round trip",
            moved?.as_secs_f64()
        );
        Ok(stats?)
    })?;
    print(&stats);
    let lost: u64 = stats.iter().map(|way| way.faults.lost).sum();
    if lost == 0 {
        return Err("the wire lost nothing".into());
    }
    Ok(())
}

fn move_bytes(
    left: memory::MemoryDevice,
    right: memory::MemoryDevice,
    bytes: usize,
) -> Outcome<Duration> {
    let left = Stack::builder("10.0.0.1/24").replicas(2).start(left)?;
    let right = Stack::builder("10.0.0.2/24").start(right)?;
    let sent: Vec<u8> = (0..bytes as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let listener = right.listen(7, 1)?;
    let start = Instant::now();
    let got = thread::scope(|scope| -> Outcome<Vec<u8>> {
        let reader = scope.spawn(|| -> Outcome<Vec<u8>> {
            let (stream, _) = listener.accept()?;
            let mut got = Vec::new();
            stream.split().0.read_to_end(&mut got)?;
            Ok(got)
        });
        let stream = left.connect(SocketAddr::new("10.0.0.2".parse()?, 7))?;
        let (_reader, mut writer) = stream.split();
        writer.write_all(&sent)?;
        writer.shutdown();
        reader.join().map_err(|_| "the reader panicked")?
    })?;
    if got != sent {
        return Err("what arrived is not what was sent".into());
    }
    Ok(start.elapsed())
}

fn print(stats: &[LinkStats; 2]) {
    println!("direction  offered  delivered  lost  bursts  twice  reordered  damaged  overflowed");
    for (name, way) in ["there", "back"].iter().zip(stats) {
        println!(
            "{name:<9} {:>8} {:>10} {:>5} {:>7} {:>6} {:>10} {:>8} {:>11}",
            way.offered,
            way.delivered,
            way.faults.lost,
            way.faults.bursts,
            way.faults.duplicated,
            way.faults.reordered,
            way.faults.corrupted,
            way.overflowed
        );
    }
}

/// Parses `1%`, `0.05%`, or parts per million.
fn ppm(text: &str) -> Outcome<u32> {
    let parts: f64 = match text.strip_suffix('%') {
        Some(percent) => percent.parse::<f64>()? * 10_000.0,
        None => text.parse()?,
    };
    if (0.0..=1_000_000.0).contains(&parts) {
        Ok(parts as u32)
    } else {
        Err("no share of a whole".into())
    }
}

/// Parses `5ms`, `200us`, `1s`.
fn time(text: &str) -> Outcome<Duration> {
    let at = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let count = text[..at].parse()?;
    match &text[at..] {
        "us" => Ok(Duration::from_micros(count)),
        "ms" => Ok(Duration::from_millis(count)),
        "s" => Ok(Duration::from_secs(count)),
        _ => Err("no time; write it like 5ms".into()),
    }
}

/// Parses `100Mbit`, `125kB`.
fn amount(text: &str, unit: &str) -> Outcome<u64> {
    let number = text.strip_suffix(unit).unwrap_or(text);
    let (digits, factor) = match number.chars().last() {
        Some('k') => (&number[..number.len() - 1], 1_000),
        Some('M') => (&number[..number.len() - 1], 1_000_000),
        Some('G') => (&number[..number.len() - 1], 1_000_000_000),
        _ => (number, 1),
    };
    let count: u64 = digits.parse()?;
    count.checked_mul(factor).ok_or_else(|| "too much".into())
}
