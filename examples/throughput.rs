//! One connection in memory, 1 GiB each way, on one core and replicated on two. No privileges needed.
//!
//! ```text
//! cargo run --release --example throughput            # 1 GiB each way
//! cargo run --release --example throughput -- 64      # 64 MiB each way
//! ```
//!
//! Two stacks are joined by a pair of in-memory devices. The far one always runs on one core; the near one is
//! first `single`, then `replicated` with two replicas of the connection's state. Every octet is compared with
//! what was sent, and the replicas' fingerprints with each other. The rates are those of the whole machine:
//! both stacks, both applications and the comparison share its cores. `cargo bench` measures one stack alone.

use std::error::Error;
use std::io::{BufRead, Write};
use std::net::SocketAddrV4;
use std::thread;
use std::time::{Duration, Instant};

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::{ReadHalf, Stack, WriteHalf};
use indicatif::{ProgressBar, ProgressStyle};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const NEAR: &str = "10.0.0.1/24";
const FAR: &str = "10.0.0.2/24";
const PORT: u16 = 5001;

/// One line of the table.
struct Row {
    variant: &'static str,
    replicas: usize,
    direction: &'static str,
    bytes: u64,
    took: Duration,
    compared: usize,
    shares: String,
}

fn main() -> Outcome<()> {
    let mib: u64 = match std::env::args().nth(1) {
        Some(text) => text
            .parse()
            .map_err(|_| format!("`{text}` is no number of MiB"))?,
        None => 1024,
    };
    let bytes = mib << 20;
    let bar = ProgressBar::new(4 * bytes).with_style(ProgressStyle::with_template(
        "{msg:24} [{bar:40}] {bytes}/{total_bytes} {binary_bytes_per_sec}",
    )?);
    let mut rows = Vec::new();
    for (variant, replicas) in [("single", 1), ("replicated", 2)] {
        rows.extend(run(variant, replicas, bytes, &bar)?);
    }
    bar.finish_and_clear();
    print(&rows);
    Ok(())
}

/// Moves `bytes` to the near stack and then as many from it.
fn run(variant: &'static str, replicas: usize, bytes: u64, bar: &ProgressBar) -> Outcome<Vec<Row>> {
    let config = MemoryConfig::default().queue_depth(1024);
    let (near, far) = memory::pair(config);
    let near = Stack::builder(NEAR).replicas(replicas).start(near)?;
    let far = Stack::builder(FAR).start(far)?;
    let listener = near.listen(PORT, 1)?;
    let theirs = far.connect(SocketAddrV4::new("10.0.0.1".parse()?, PORT))?;
    let (ours, _) = listener.accept()?;
    let (mut our_reader, mut our_writer) = ours.split();
    let (mut their_reader, mut their_writer) = theirs.split();

    let mut rows = Vec::new();
    for direction in ["receive", "send"] {
        bar.set_message(format!("{variant} {direction}"));
        let before = near.shares();
        let start = Instant::now();
        if direction == "receive" {
            transfer(&mut their_writer, &mut our_reader, bytes, bar)?;
        } else {
            transfer(&mut our_writer, &mut their_reader, bytes, bar)?;
        }
        let took = start.elapsed();
        let shares: Vec<u64> = near
            .shares()
            .iter()
            .zip(before)
            .map(|(now, before)| match direction {
                "receive" => now.delivered_bytes - before.delivered_bytes,
                _ => now.sent_bytes - before.sent_bytes,
            })
            .collect();
        rows.push(Row {
            variant,
            replicas,
            direction,
            bytes,
            took,
            compared: near
                .compare()
                .map_err(|mismatch| format!("replicas differ: {mismatch:?}"))?,
            shares: percentages(&shares),
        });
    }
    Ok(rows)
}

/// Writes `bytes` octets of the pattern on one thread and checks them on this one, in place.
fn transfer(
    writer: &mut WriteHalf,
    reader: &mut ReadHalf,
    bytes: u64,
    bar: &ProgressBar,
) -> Outcome<()> {
    thread::scope(|scope| {
        let sender = scope.spawn(move || -> Outcome<()> {
            let mut chunk = vec![0; 256 << 10];
            let mut offset = 0;
            while offset < bytes {
                let len = chunk.len().min((bytes - offset) as usize);
                fill(&mut chunk[..len], offset);
                writer.write_all(&chunk[..len])?;
                offset += len as u64;
            }
            Ok(())
        });
        let mut expected = vec![0; 256 << 10];
        let mut offset = 0;
        while offset < bytes {
            let got = reader.fill_buf()?;
            if got.is_empty() {
                return Err(format!("the stream ended after {offset} octets").into());
            }
            let len = got.len().min(expected.len());
            fill(&mut expected[..len], offset);
            if got[..len] != expected[..len] {
                let at = got.iter().zip(&expected).position(|(a, b)| a != b);
                let at = offset + at.unwrap_or(0) as u64;
                return Err(format!("octet {at} is not what was sent").into());
            }
            reader.consume(len);
            offset += len as u64;
            bar.inc(len as u64);
        }
        sender.join().map_err(|_| "the sending thread panicked")?
    })
}

/// The octets of the test stream from `offset` on: every one depends on its place.
fn fill(octets: &mut [u8], offset: u64) {
    let mut at = offset;
    let mut rest = octets;
    while !rest.is_empty() {
        let word = word(at / 8).to_le_bytes();
        let skip = (at % 8) as usize;
        let len = rest.len().min(8 - skip);
        let (now, later) = rest.split_at_mut(len);
        now.copy_from_slice(&word[skip..skip + len]);
        rest = later;
        at += len as u64;
    }
}

/// Word `index` of the test stream: one step of a multiplicative hash, so that no two regions look alike.
fn word(index: u64) -> u64 {
    let x = index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^ (x >> 29)
}

fn percentages(shares: &[u64]) -> String {
    let total = shares.iter().sum::<u64>().max(1);
    let parts: Vec<_> = shares
        .iter()
        .map(|s| format!("{}", s * 100 / total))
        .collect();
    if parts.is_empty() {
        "100".to_owned()
    } else {
        parts.join(":")
    }
}

fn print(rows: &[Row]) {
    println!(
        "variant     replicas  direction      MiB  verified   seconds   Gbit/s  share %  fingerprints equal"
    );
    for row in rows {
        let seconds = row.took.as_secs_f64();
        println!(
            "{:<11} {:>8}  {:<9} {:>8}  {:>8}  {:>8.2} {:>8.2}  {:>7}  {:>18}",
            row.variant,
            row.replicas,
            row.direction,
            row.bytes >> 20,
            "all",
            seconds,
            row.bytes as f64 * 8.0 / seconds / 1e9,
            row.shares,
            if row.replicas > 1 {
                row.compared.to_string()
            } else {
                "-".to_owned()
            },
        );
    }
}
