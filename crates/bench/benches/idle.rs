//! `cargo bench idle [-- --check]`
//!
//! The cost of a running stack that has nothing to do, and its time to wake up. A thousand
//! connections join it to a peer that this thread drives by hand; for some seconds nothing
//! is sent, or only what keepalive asks (each connection every two seconds, which is far more often
//! than anybody would). The share of a core is processor time of all threads but this one, user and
//! system, as getrusage(2) has it. Waking up is measured from a SYN to a port without a listener
//! to the reset that answers it: the stack's own work is in it, so the same is measured
//! while the stack is awake.
//!
//! The share has to be below 1 % without keepalive. It is measured up to three times, since another
//! process may have had a part in it; with `--check` the process fails if the least is not below.

use std::process::ExitCode;
use std::thread::{sleep, yield_now};
use std::time::{Duration, Instant};

use dominoes_bench::report::Run;
use dominoes_bench::rounds::{self, Reading};
use dominoes_bench::spread::Spread;
use dominoes_bench::start;
use dominoes_bench::table::{Bar, Bars, Limit, Table, columns};
use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::config::Keepalive;
use dominoes_netstack::time;
use dominoes_netstack::variants::Setup;
use dominoes_netstack::variants::single::Single;
use dominoes_netstack::{Limits, SocketError, Stack, TcpStream};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

const PORT: u16 = 7;
const CLOSED: u16 = 9;
/// Connections that are opened at a time.
const AT_ONCE: usize = 100;
/// How long the stack is left alone before it is woken: it sleeps by then.
const DELAY: Duration = Duration::from_millis(4);
/// The share of a core that an idle stack may use.
const MOST: f64 = 0.01;
/// How often that is measured at most.
const ATTEMPTS: usize = 3;

const CONNECTIONS: usize = 1000;
/// How long they are idle.
const SECONDS: u64 = 5;
/// Wake-ups.
const SAMPLES: usize = 200;

#[derive(Debug, clap::Parser)]
struct Options {
    /// Whether to fail if the share is not below.
    #[arg(long)]
    check: bool,
}

/// Processor time of the whole process without this thread.
fn processor_time() -> Duration {
    let of = |who| {
        let usage = getrusage(who).expect("the system tells");
        let us = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
        Duration::from_micros(us.unsigned_abs())
    };
    of(UsageWho::RUSAGE_SELF).saturating_sub(of(UsageWho::RUSAGE_THREAD))
}

/// A running stack, and its peer.
struct Fixture {
    stack: Stack,
    peer: Single,
    begin: Instant,
    held: Vec<TcpStream>,
}

impl Fixture {
    fn new(replicas: usize, connections: usize) -> Fixture {
        let (here, there) = memory::pair(MemoryConfig::default().queue_depth(4096));
        let mut limits = Limits::default();
        limits.connections = (2 * connections as u32).next_power_of_two().max(64);
        (limits.receive_buffer, limits.send_buffer) = (4096, 4096);
        let stack = Stack::builder("10.0.0.1/24").limits(limits);
        let stack = stack.replicas(replicas).start(here).expect("it starts");
        let mut setup = Setup::new([10, 0, 0, 2].into(), 24, [1, 2]);
        setup.limits = limits;
        let peer = Single::new(setup, Box::new(there)).expect("it starts");
        let mut fixture = Fixture {
            stack,
            peer,
            begin: Instant::now(),
            held: Vec::new(),
        };
        fixture.open(connections);
        fixture
    }

    fn turn(&mut self) {
        let age = self.begin.elapsed().as_nanos() as u64;
        self.peer.turn(time::Instant::from_nanos(age));
    }

    fn open(&mut self, connections: usize) {
        let listener = self.stack.listen(PORT, 1024).expect("nobody else listens");
        let sockets = self.peer.sockets();
        let to = "10.0.0.1:7".parse().expect("an address");
        let mut left = connections;
        while left > 0 {
            let some = left.min(AT_ONCE);
            let mut opening: Vec<_> = (0..some)
                .map(|_| sockets.begin_connect(to).expect("it is up"))
                .collect();
            while !opening.is_empty() {
                self.turn();
                opening.retain_mut(|one| match one.try_finish().expect("it is established") {
                    Some(stream) => {
                        self.held.push(stream);
                        false
                    }
                    None => true,
                });
            }
            left -= some;
        }
        for _ in 0..connections {
            loop {
                self.turn();
                if let Ok((stream, _)) = listener.try_accept() {
                    self.held.push(stream);
                    break;
                }
            }
        }
    }

    /// Lets some seconds pass: share of a core, and how often a thread went to sleep in a second.
    fn idle(&mut self, seconds: u64) -> (f64, f64) {
        let parks = |stack: &Stack| -> u64 {
            let domains = stack.snapshot().domains;
            domains.iter().map(|domain| domain.parks).sum()
        };
        let (begin, cpu, parked) = (Instant::now(), processor_time(), parks(&self.stack));
        while begin.elapsed() < Duration::from_secs(seconds) {
            self.turn();
            sleep(Duration::from_millis(1));
        }
        let took = begin.elapsed().as_secs_f64();
        let cpu = processor_time().saturating_sub(cpu).as_secs_f64();
        let parked = parks(&self.stack) - parked;
        (cpu / took, parked as f64 / took)
    }

    /// How long a closed port takes to say so, after a delay or without.
    fn answers(&mut self, samples: usize, nap: Option<Duration>) -> Vec<Duration> {
        let sockets = self.peer.sockets();
        let to = format!("10.0.0.1:{CLOSED}").parse().expect("an address");
        let one = |_| {
            if let Some(nap) = nap {
                self.turn();
                sleep(nap);
            }
            let mut opening = sockets.begin_connect(to).expect("it is up");
            let begin = Instant::now();
            loop {
                self.turn();
                match opening.try_finish() {
                    // A woken thread may be given this core, and would wait for the next tick of
                    // the kernel's clock.
                    Ok(None) => yield_now(),
                    Err(SocketError::Refused) => return begin.elapsed(),
                    other => panic!("somebody listens: {other:?}"),
                }
            }
        };
        let mut took: Vec<Duration> = (0..samples.max(1)).map(one).collect();
        took.sort();
        took
    }
}

/// Microseconds at some parts of all samples.
fn percentiles(sorted: &[Duration]) -> [String; 4] {
    let at = |part: f64| sorted[((sorted.len() - 1) as f64 * part) as usize].as_nanos() as f64;
    [0.5, 0.9, 0.99, 1.0].map(|part| format!("{:.1}", at(part) / 1e3))
}

fn main() -> ExitCode {
    start::main("idle", run)
}

fn run(options: Options) -> Result<(), String> {
    let run = Run::begin("idle");
    let title =
        format!("{CONNECTIONS} connections, {SECONDS} s each; wake-up in us, {SAMPLES} samples");
    let columns =
        columns("variant | keepalive | % of core | parks/s | answer | p50 | p90 | p99 | most");
    let mut table = Table::new(title, &columns);
    let mut bars = Bars {
        heading: "time to wake up and answer: median and quartiles".to_owned(),
        axis: "microseconds".to_owned(),
        ..Bars::default()
    };
    for (name, replicas) in [("single", 1), ("replicated", 2)] {
        let mut fixture = Fixture::new(replicas, CONNECTIONS);
        // What opening left to be done.
        fixture.idle(1);
        let every = time::Duration::from_secs(2);
        let keepalive = Keepalive::default().idle(every).interval(every);
        for asks in [false, true] {
            if asks {
                let ours = &fixture.held[CONNECTIONS..];
                for stream in ours {
                    stream.set_keepalive(Some(keepalive)).expect("it is valid");
                }
                fixture.idle(1);
            }
            let attempts = if asks { 1 } else { ATTEMPTS };
            let mut least = (f64::INFINITY, 0.0);
            let (_, again) = rounds::until_calm(attempts, || {
                let (share, parks) = fixture.idle(SECONDS);
                if share < least.0 {
                    least = (share, parks);
                }
                let is_calm = share < MOST;
                Ok::<_, String>(Reading {
                    value: share,
                    is_calm,
                })
            })?;
            let (share, parks) = least;
            if again > 0 {
                table.note(format!(
                    "{name}: measured {again} times again, the least is given"
                ));
            }
            if !asks {
                let what = format!("{name}: percent of a core that an idle stack uses");
                let percent = Some(Spread::one(100.0 * share));
                table.bound(&what, percent, Limit::AtMost(100.0 * MOST));
            }
            let asleep = fixture.answers(SAMPLES, Some(DELAY));
            let awake = fixture.answers(SAMPLES, None);
            let asks = if asks { "every 2 s" } else { "off" };
            let share = format!("{:.3}", share * 100.0);
            for (answer, took) in [("asleep", asleep), ("awake", awake)] {
                let cells = [name, asks, &share, &format!("{parks:.1}"), answer];
                let cells = cells.map(str::to_owned).into_iter();
                table.row(cells.chain(percentiles(&took)).collect());
                let micros = took.iter().map(|took| took.as_nanos() as f64 / 1e3);
                let micros = Spread::of(micros).ok_or("no sample")?;
                let bar = format!("{name}, keepalive {asks}, {answer}");
                bars.bars.push(Bar::new(bar, name, micros, 1));
            }
        }
    }
    table.bars(bars);
    let missed = table.bounds.iter().find(|bound| bound.is_met != Some(true));
    let missed = missed.map(|bound| bound.line.clone());
    run.end(vec![table])?;
    match missed.filter(|_| options.check) {
        Some(missed) => Err(missed),
        None => Ok(()),
    }
}
