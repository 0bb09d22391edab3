//! The example `services` while its replicas are killed in turn, and new ones join.

use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use serde_json::Value;

use crate::fixture::{Device, Fixture, OURS, Temporary};
use crate::services::{curl, expected};
use crate::{Test, same};

/// Name, device, further arguments of the example, and the test.
pub(crate) const TESTS: &[(&str, Device, Arguments, Test)] = &[
    (
        "a_download_outlives_the_replicas_that_serve_it",
        Device::Tap,
        often,
        a_download_outlives_the_replicas_that_serve_it,
    ),
    (
        "a_connection_both_ways_outlives_its_replicas_and_memory_does_not_grow",
        Device::Packet,
        now_and_then,
        a_connection_both_ways_outlives_its_replicas,
    ),
];

type Arguments = fn() -> Result<Vec<String>, Failed>;

/// Bytes of the download.
const BYTES: u64 = 1 << 30;
/// Failures that the download must outlive, and segments that must arrive between the first and the
/// last one.
const DEATHS: u64 = 5;
const SEGMENTS: u64 = 1_000;
/// Bytes by which memory may grow after the first two failures: a replica that joins before the
/// failed one's memory is free takes less.
const GROWTH: u64 = 3 << 20;
/// Seconds of warm-up at full speed, the most repetitions, and the growth that counts as none.
const WARM: &str = "3";
const WARM_ROUNDS: u32 = 10;
const STEADY: u64 = 256 << 10;
/// The rate in each direction, at which both ends sleep sometimes.
const RATE: &str = "500M";
/// `RATE` in bits per second. The mean must reach 90 % of it, or of half the full speed on a busy
/// machine, and no second may be empty.
const RATE_BITS: f64 = 500e6;
/// What `iperf3` calls the two directions, and who sends.
const WAYS: [(&str, &str); 2] = [("sum", "theirs"), ("sum_bidir_reverse", "ours")];

fn often() -> Result<Vec<String>, Failed> {
    Ok(vec!["--kill-every".into(), "0.05".into()])
}

fn now_and_then() -> Result<Vec<String>, Failed> {
    let (seconds, period) = (soak_seconds()?, soak_period()?);
    let kill = ["--kill-every".into(), period.to_string()];
    let end = ["--seconds".into(), (seconds + 300).to_string()];
    Ok([kill, end].concat())
}

fn number(name: &str, default: u64) -> Result<u64, Failed> {
    Ok(std::env::var(name).map_or(Ok(default), |text| text.parse())?)
}

fn soak_seconds() -> Result<u64, Failed> {
    number("SOAK_SECONDS", 20)
}

fn soak_period() -> Result<u64, Failed> {
    number("SOAK_PERIOD", 2)
}

/// The counters of its replicas that the server printed.
struct ReplicaCounts {
    failed: u64,
    joined: u64,
    active: u64,
    segments: u64,
}

/// All counters that the server has printed so far.
fn replica_counts(fixture: &Fixture) -> Vec<ReplicaCounts> {
    let said = fixture.said();
    let lines = said.lines().filter(|line| line.starts_with("replicas "));
    let read = |line: &str| {
        let before = |what: &str| {
            let words = line.split(what).next()?;
            words.rsplit(' ').next()?.parse().ok()
        };
        Some(ReplicaCounts {
            failed: before(" failed")?,
            joined: before(" joined")?,
            active: before(" active")?,
            segments: before(" segments")?,
        })
    };
    lines.filter_map(read).collect()
}

/// Checks the hash of the download, that replicas failed and joined meanwhile, and that segments
/// arrived between these events.
fn a_download_outlives_the_replicas_that_serve_it(
    fixture: &Fixture,
    figure: &dyn Fn(String),
) -> Result<(), Failed> {
    let bytes = number("HOST_BYTES", BYTES)?;
    let folder = Temporary::new()?;
    let got = folder.file("got");
    let before = replica_counts(fixture).len();
    let start = Instant::now();
    curl(
        fixture,
        &["--output", &got, &format!("http://{OURS}/bytes/{bytes}")],
    )?;
    let took = start.elapsed();
    let meanwhile = &replica_counts(fixture)[before..];
    same(
        std::fs::metadata(&got)?.len() == bytes,
        "what curl got, by its length",
    )?;
    same(folder.hash("got")? == expected(bytes), "what curl got")?;
    let [first, .., last] = meanwhile else {
        return Err("hardly a replica failed meanwhile".into());
    };
    let [failed, joined] = [last.failed - first.failed, last.joined - first.joined];
    let segments = last.segments - first.segments;
    figure(format!(
        "{bytes} bytes in {} ms: {failed} replicas failed, {joined} joined, {segments} segments between",
        took.as_millis()
    ));
    if failed < DEATHS || joined < DEATHS || segments < SEGMENTS {
        return Err(format!("{failed} failures, {joined} joined, {segments} segments").into());
    }
    Ok(())
}

/// One `iperf3` with a connection for each direction: both keep their rate all the time.
fn a_connection_both_ways_outlives_its_replicas(
    fixture: &Fixture,
    figure: &dyn Fn(String),
) -> Result<(), Failed> {
    let (seconds, period) = (soak_seconds()?, soak_period()?);
    // At full speed until every ring has been full once, which takes longer on a busy machine.
    let (mut before, mut full) = (0, 0.0);
    for _ in 0..WARM_ROUNDS {
        let said = fixture.run("iperf3", &["-c", OURS, "-t", WARM, "--bidir", "-J"])?;
        let said = serde_json::from_str(&said)?;
        full = f64::INFINITY;
        for (sum, _) in WAYS {
            full = mean(&rates(&said, sum)?).min(full);
        }
        let now = fixture.server_memory()?;
        if now < before + STEADY {
            break;
        }
        before = now;
    }
    let duration = seconds.to_string();
    let arguments = ["-c", OURS, "-t", &duration, "--bidir", "-b", RATE, "-J"];
    let start = Instant::now();
    let running = fixture.start("iperf3", &arguments)?;
    let running = running.allow(Duration::from_secs(seconds));
    let mut memory = Vec::new();
    while !running.has_ended()? {
        if start.elapsed() >= Duration::from_secs(period) * (memory.len() as u32 + 1) {
            memory.push(fixture.server_memory()?);
        }
        thread::sleep(Duration::from_millis(20));
    }
    let said: Value = serde_json::from_str(&running.finish()?)?;
    let counts = replica_counts(fixture);
    let last = counts.last().ok_or("no replica failed")?;
    figure(format!(
        "{seconds} s: {} replicas failed, {} joined, {} active",
        last.failed, last.joined, last.active
    ));
    // The last failure may have come after the end of the transfer.
    if last.failed + 2 < seconds / period || last.joined + 1 < last.failed {
        return Err(format!("{} failures, {} joined", last.failed, last.joined).into());
    }

    for (sum, whose) in WAYS {
        let rates = rates(&said, sum)?;
        let slowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
        let mean = mean(&rates);
        figure(format!(
            "{whose}: {:.0} Mbit/s of {RATE}bit/s, {:.0} in the slowest second of {}",
            mean / 1e6,
            slowest / 1e6,
            rates.len()
        ));
        if mean < 0.9 * RATE_BITS.min(full / 2.0) || slowest <= 0.0 {
            return Err(format!("{whose} was held up: {rates:?}").into());
        }
    }

    let mega: Vec<u64> = memory.iter().map(|bytes| bytes >> 20).collect();
    figure(format!("memory: {mega:?} MiB"));
    let [_, first, rest @ ..] = &memory[..] else {
        return Err("memory was hardly looked at".into());
    };
    let most = rest.iter().max().ok_or("memory was hardly looked at")?;
    if *most > first + GROWTH {
        return Err(format!("memory grows: {memory:?} bytes").into());
    }
    Ok(())
}

fn mean(rates: &[f64]) -> f64 {
    rates.iter().sum::<f64>() / rates.len() as f64
}

/// Bits per second, for each interval of a second.
fn rates(said: &Value, sum: &str) -> Result<Vec<f64>, Failed> {
    let intervals = said["intervals"].as_array().ok_or("no intervals")?;
    let whole = intervals
        .iter()
        .filter(|interval| interval[sum]["seconds"].as_f64().unwrap_or(0.0) > 0.5);
    let rates: Vec<f64> = whole
        .filter_map(|interval| interval[sum]["bits_per_second"].as_f64())
        .collect();
    if rates.is_empty() {
        return Err(format!("no intervals of {sum}").into());
    }
    Ok(rates)
}
