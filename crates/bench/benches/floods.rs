//! Honest clients of a server while floods reach it: our stack and Linux in turn.
//!
//! ```text
//! sudo -E env "PATH=$PATH" cargo bench floods [-- options]
//! ```
//!
//! Without root, `ip`, `curl` or `wrk` it names its requirements, and ends with success.
//!
//! | option | what | default |
//! |---|---|---|
//! | `--server tap-1,tap-2,packet-1,linux` | our stack over a TAP or a packet socket, with this number of replicas; Linux | tap-1,tap-2,linux |
//! | `--scenario syn,...` | see below | all |
//! | `--rounds N` | how often each server goes through a scenario, in turn | 3 |
//! | `--turns N` | how often a scenario begins and ends in a round | 3 |
//! | `--seconds N` | how long each client runs at a time | 1 |
//! | `--cores split,shared` | whether the server has the first core, and all else the last | split |
//! | `--rate N` | frames a second of a flood | 10000 |
//! | `--quick` | one round of one turn, and short connections for 5 s; server tap-1,linux | |
//!
//! | scenario | what happens |
//! |---|---|
//! | `calm` | nothing: what the measurement makes of that |
//! | `syn`, `ack`, `rst`, `fin` | segments to the server's port, of no connection, from 65,536 senders |
//! | `fragments` | pieces of datagrams that never become whole |
//! | `icmp`, `udp` | echo requests; datagrams for ports without a socket |
//! | `arp` | requests for the server's address, from 64,516 neighbours |
//! | `rs`, `ra`, `ns`, `na`, `mld` | over IPv6: questions for routers; routers and networks that come and go; questions for the server; unsolicited advertisements; questions for listeners; from 65,536 neighbours |
//! | `too-big`, `fragments6`, `extensions` | over IPv6: packets too big that were never sent; pieces of datagrams that never become whole; datagrams after eight headers |
//! | `readers` | 1,000 clients read one byte a second of a long answer |
//! | `windows` | 1,000 clients announce a window of zero, and answer every probe so |
//! | `connections` | 5,000 connections a second for 20 s, with a request and a short answer each |
//! | `down-up` | the client's interface is down for 100 ms in each second |
//! | `mtu` | the MTU is 1280 and 1500 bytes by turns |
//! | `deleted` | the link is deleted and made again; the server opens its device anew |
//!
//! Every server is a process that serves HTTP with the same code, a thread for each connection. The
//! client and the flood are on the other side of one link, in a network namespace made for it: our
//! stack has the far end of the client's TAP, or one end of a veth pair; Linux has one end of a
//! veth pair. Frames are sent through a packet socket on the client's interface,
//! paced by the clock, and equal for every server.
//!
//! A server goes through a scenario thus: `wrk` with 16 connections and then one `curl` before it,
//! during it, and from one second after its end, and so on by turns. The share is the mean rate
//! during it over the mean rate without it, and `back` the rate in the end over the first; the last
//! column is our share over Linux' in the same round. Figures are medians with quartiles over the
//! rounds. Memory is of the server's process, before, in the first turn and after; the kernel
//! memory of Linux is not in it.
//!
//! All processes share the machine's cores: a flood takes time from everything, whichever the
//! server is, so the rate before and during are compared within one server's own run, and the
//! shares between servers of one round. With `--cores shared` the scheduler places all threads; the
//! rate then differs by a third from one second to the next, as threads happen to be placed, and a
//! share takes many turns to be known. A second in which processes of others took a tenth of a core
//! is measured again, up to three times. What the flood leaves of the requests that a second of
//! processor time serves (`cpu`) is valid on a busy machine, too.

#[cfg(target_os = "linux")]
#[path = "../src/floods/mod.rs"]
mod floods;

#[cfg(target_os = "linux")]
mod run {
    use super::floods::fixture::{Fixture, Link, Task};
    use super::floods::frames::Kind;
    use super::floods::inject::Injector;
    use super::floods::processor::Watch;
    use super::floods::server::{self, Said, Server, Start};
    use super::floods::{INTERFACE, PORT, SERVER, Scenario, clients};
    use core_affinity::CoreId;
    use dominoes_bench::namespaces::{self, CubicAllowed, Outcome};
    use dominoes_bench::report::Run;
    use dominoes_bench::rounds::{self, Reading};
    use dominoes_bench::spread::Spread;
    use dominoes_bench::start;
    use dominoes_bench::table::{Bar, Bars, Table, columns};
    use dominoes_bench::targets;
    use dominoes_bench::topology;
    use serde::Serialize;
    use std::io::Read;
    use std::num::NonZero;
    use std::process::ExitCode;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::thread;
    use std::time::{Duration, Instant};

    /// Clients of `readers` and `windows`, and new ones in a second of `connections`.
    const SLOW: u64 = 1_000;
    const NEW: u64 = 5_000;
    /// Seconds after the end of a scenario at which rates are measured again.
    const AFTER: Duration = Duration::from_secs(1);
    /// How long a link is down, and an MTU lasts.
    const CHANGE: Duration = Duration::from_millis(100);
    /// How often something is measured while others disturb it.
    const ATTEMPTS: usize = 3;

    #[derive(Debug, clap::Parser)]
    struct Options {
        #[arg(
            long = "server",
            value_delimiter = ',',
            default_value = "tap-1,tap-2,linux",
            default_value_if("quick", "true", "tap-1,linux"),
            value_parser = server_named
        )]
        servers: Vec<Server>,
        #[arg(long = "scenario", value_delimiter = ',', default_values = Scenario::all().iter().map(|scenario| scenario.name()), value_parser = Scenario::named)]
        scenarios: Vec<Scenario>,
        #[arg(long, default_value_t = 3, default_value_if("quick", "true", "1"))]
        rounds: usize,
        #[arg(long, default_value = "3", default_value_if("quick", "true", "1"))]
        turns: NonZero<usize>,
        #[arg(long, default_value_t = 1)]
        seconds: u64,
        /// Whether the server has a core for itself.
        #[arg(long, default_value = "split")]
        cores: Cores,
        #[arg(long, default_value_t = 10_000)]
        rate: u64,
        #[arg(long)]
        quick: bool,
        /// Be another process.
        #[arg(long, hide = true)]
        serve: Option<String>,
        #[arg(long, hide = true)]
        disturb: Option<String>,
    }

    impl Options {
        /// How long the first turn of `connections` lasts at least.
        fn lasting(&self) -> Duration {
            Duration::from_secs(if self.quick { 5 } else { 20 })
        }
    }

    dominoes_bench::named! {
        /// What has the first core.
        enum Cores { Split = "split", Shared = "shared", }
    }

    /// What the frames follow from.
    const SEED: u64 = 1;

    /// Requests of `wrk` in a second, bytes of `curl` in a second, and requests of `wrk` in a
    /// second of processor time that all processes used meanwhile, the flooding one, too.
    type Rates = [f64; 3];

    /// One server in one scenario.
    #[derive(Serialize)]
    struct Sample {
        scenario: &'static str,
        server: String,
        round: usize,
        /// Before each turn and after the last.
        without: Vec<Rates>,
        /// The same, in each turn.
        during: Vec<Rates>,
        /// Bytes before, at the end of the first turn, and after.
        memory: [u64; 3],
        panicked: u64,
        /// Of our stack, during the first turn.
        counters: Vec<(String, u64)>,
        /// What the flooding process did, or how the link changed, in the last turn.
        note: String,
        /// Figures that were kept although others took time.
        disturbed: usize,
    }

    impl Sample {
        fn first(&self) -> Rates {
            self.without.first().copied().unwrap_or_default()
        }

        fn last(&self) -> Rates {
            self.without.last().copied().unwrap_or_default()
        }

        fn share(&self, client: usize) -> f64 {
            mean(&self.during)[client] / mean(&self.without)[client]
        }
    }

    fn mean(rates: &[Rates]) -> Rates {
        [0, 1, 2].map(|client| {
            let sum: f64 = rates.iter().map(|rates| rates[client]).sum();
            sum / rates.len() as f64
        })
    }

    fn server_name(server: Server) -> String {
        match server {
            Server::Tap { replicas } => format!("tap-{replicas}"),
            Server::Packet { replicas } => format!("packet-{replicas}"),
            Server::Linux => "linux".to_owned(),
        }
    }

    fn server_named(name: &str) -> Result<Server, String> {
        let (device, replicas) = name.split_once('-').unwrap_or((name, ""));
        match (device, replicas.parse()) {
            ("linux", Err(_)) => Ok(Server::Linux),
            ("tap", Ok(replicas)) => Ok(Server::Tap { replicas }),
            ("packet", Ok(replicas)) => Ok(Server::Packet { replicas }),
            _ => Err("tap-N, packet-N or linux".to_owned()),
        }
    }

    pub(crate) fn main() -> ExitCode {
        start::main("floods", run)
    }

    fn run(options: Options) -> Outcome<()> {
        if let Some(start) = &options.serve {
            return server::run(start);
        }
        if let Some(task) = &options.disturb {
            return disturb(task);
        }
        let needs = "CAP_NET_ADMIN, CAP_NET_RAW and CAP_SYS_ADMIN) and programs";
        if !targets::can_run(
            "floods",
            namespaces::can_run(&["ip", "curl", "wrk"]),
            needs,
            "iproute2 curl wrk",
        ) {
            return Ok(());
        }
        let mut this_run = Run::begin("floods");
        println!("kernels: CUBIC");
        println!(
            "{} rounds of {} turns, clients run for {} s; floods: {} frames a second, seed {}; {}",
            options.rounds,
            options.turns,
            options.seconds,
            options.rate,
            SEED,
            match options.cores == Cores::Split {
                true => "the server has a core for itself",
                false => "all threads share all cores",
            }
        );
        let last = topology::cores().len().saturating_sub(1);
        let is_split = options.cores == Cores::Split && last > 0;
        if is_split {
            // Every process that this one starts is there, too, except the server's.
            topology::pin_to(last);
        }
        let core = is_split.then(|| topology::cores()[0]);
        let _cubic = CubicAllowed::new()?;
        for &scenario in &options.scenarios {
            let mut servers = options.servers.clone();
            let (name, mut quiet) = (scenario.name(), |_, _| ());
            let readings =
                rounds::by_turns(&mut servers, options.rounds, &mut quiet, |server, n| {
                    let sample = measure(&options, scenario, *server, core, n);
                    let whose = server_name(*server);
                    let sample =
                        sample.map_err(|error| format!("{name}, {whose}, round {n}: {error}"))?;
                    let is_calm = sample.disturbed == 0;
                    Ok::<_, String>(Reading {
                        value: sample,
                        is_calm,
                    })
                })?;
            let readings = readings.into_iter().flatten();
            let samples: Vec<Sample> = readings.map(|reading| reading.value).collect();
            println!();
            this_run.add(table(&options, scenario, &samples))?;
        }
        Ok(this_run.end(Vec::new())?)
    }

    fn measure(
        options: &Options,
        scenario: Scenario,
        server: Server,
        core: Option<CoreId>,
        round: usize,
    ) -> Outcome<Sample> {
        let core = core.map(|core| core.id);
        let mut fixture = Fixture::new(Start { server, core })?;
        let mut disturbed = 0;
        let mut without = vec![clients(options, &fixture.link, ATTEMPTS, &mut disturbed)?];
        let said_before = fixture.said()?;
        let mut during = Vec::new();
        let mut first = None;
        let mut note = String::new();
        for turn in 0..options.turns.get() {
            let seed = SEED + (round * options.turns.get() + turn) as u64;
            let lasting = if turn == 0 {
                options.lasting()
            } else {
                Duration::ZERO
            };
            let (rates, said);
            (rates, said, note) = disturb_once(
                options,
                scenario,
                &mut fixture,
                &mut disturbed,
                seed,
                lasting,
            )?;
            during.push(rates);
            first.get_or_insert(said);
            let end = Instant::now();
            let back = fixture.link.wait_until_served()?;
            if back > CHANGE {
                note = format!("{note} answered again after {} ms", back.as_millis());
            }
            thread::sleep(AFTER.saturating_sub(end.elapsed()));
            without.push(clients(options, &fixture.link, ATTEMPTS, &mut disturbed)?);
        }
        let said_after = fixture.said()?;
        let said = first.unwrap_or_else(|| said_after.clone());
        Ok(Sample {
            scenario: scenario.name(),
            server: server_name(server),
            round,
            without,
            during,
            memory: [said_before.memory, said.memory, said_after.memory],
            panicked: said_after.panicked,
            counters: risen(&said_before, &said),
            note,
            disturbed,
        })
    }

    /// The rates of `wrk` and `curl`, each measured so often at most while others disturb that.
    fn clients(
        options: &Options,
        link: &Link,
        attempts: usize,
        disturbed: &mut usize,
    ) -> Outcome<Rates> {
        let mut rate = |client: &dyn Fn() -> Outcome<f64>| -> Outcome<(f64, f64)> {
            let (reading, _) = rounds::until_calm(attempts, || {
                let watch = Watch::begin();
                let rate = client()?;
                let used = watch.used();
                Outcome::Ok(Reading {
                    value: (rate, used.own.as_secs_f64()),
                    is_calm: !used.is_disturbed,
                })
            })?;
            *disturbed += usize::from(!reading.is_calm);
            Ok(reading.value)
        };
        let (requests, used) = rate(&|| link.wrk(options.seconds))?;
        let (bytes, _) = rate(&|| link.curl(options.seconds))?;
        Ok([requests, bytes, requests * options.seconds as f64 / used])
    }

    /// One turn of a scenario: the rates during it, the server's final output, and the
    /// disturbances.
    fn disturb_once(
        options: &Options,
        scenario: Scenario,
        fixture: &mut Fixture,
        disturbed: &mut usize,
        seed: u64,
        lasting: Duration,
    ) -> Outcome<(Rates, Said, String)> {
        let start = Instant::now();
        match scenario {
            Scenario::Idle => {
                let during = clients(options, &fixture.link, ATTEMPTS, disturbed)?;
                Ok((during, fixture.said()?, String::new()))
            }
            Scenario::DownAndUp | Scenario::Mtu | Scenario::Deleted => {
                let link = &fixture.link;
                let over = AtomicBool::new(false);
                // A link is deleted once.
                let attempts = if scenario == Scenario::Deleted {
                    1
                } else {
                    ATTEMPTS
                };
                let (during, changed) = thread::scope(|scope| {
                    let changing = scope.spawn(|| change(link, scenario, &over));
                    let during = clients(options, link, attempts, disturbed);
                    over.store(true, Relaxed);
                    (during, changing.join())
                });
                let note = changed.map_err(|_| "a thread panicked")??;
                Ok((during?, fixture.said()?, note))
            }
            _ => {
                let process = fixture.link.begin(&Task {
                    scenario: scenario.name().to_owned(),
                    server_mac: fixture.link.server_mac()?,
                    rate: match scenario {
                        Scenario::Flood(_) => options.rate,
                        Scenario::Connections => NEW,
                        _ => SLOW,
                    },
                    seed,
                })?;
                let during = clients(options, &fixture.link, ATTEMPTS, disturbed)?;
                if scenario == Scenario::Connections {
                    thread::sleep(lasting.saturating_sub(start.elapsed()));
                }
                let said = fixture.said()?;
                Ok((during, said, Link::end(process)?))
            }
        }
    }

    fn risen(before: &Said, after: &Said) -> Vec<(String, u64)> {
        let was = |name: &str| {
            let mut all = before.counters.iter();
            all.find(|(other, _)| other == name)
                .map_or(0, |(_, value)| *value)
        };
        let risen = after
            .counters
            .iter()
            .map(|(name, value)| (name.clone(), value.saturating_sub(was(name))));
        risen.filter(|(_, value)| *value > 0).collect()
    }

    /// Changes the link until it is `over`.
    fn change(link: &Link, scenario: Scenario, over: &AtomicBool) -> Outcome<String> {
        let mut changes = 0;
        if scenario == Scenario::Deleted {
            thread::sleep(5 * CHANGE);
            link.replace()?;
            let took = link.wait_until_served()?;
            return Ok(format!(
                "answered {} ms after it was made",
                took.as_millis()
            ));
        }
        while !over.load(Relaxed) {
            changes += 1;
            if scenario == Scenario::Mtu {
                link.set_mtu(if changes % 2 == 1 { 1280 } else { 1500 })?;
                thread::sleep(CHANGE);
            } else {
                thread::sleep(5 * CHANGE);
                link.set_up(false)?;
                thread::sleep(CHANGE);
                link.set_up(true)?;
                thread::sleep(4 * CHANGE);
            }
        }
        if scenario == Scenario::Mtu {
            link.set_mtu(1500)?;
        }
        Ok(format!("{changes} changes"))
    }

    /// Another process: floods, or clients, until its input ends. Prints its report.
    fn disturb(task: &str) -> Outcome<()> {
        let task: Task = serde_json::from_str(task)?;
        let scenario = Scenario::named(&task.scenario)?;
        let ends = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ends);
        thread::spawn(move || {
            // Nothing comes but the end.
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            end.store(true, Relaxed);
        });
        let inject = || Injector::open(INTERFACE, task.server_mac, SERVER, PORT, task.seed);
        let flood = |kind: Kind| -> Outcome<String> {
            let mut injector = inject()?;
            println!("ready");
            let sent = injector.flood(kind, task.rate, || ends.load(Relaxed))?;
            Ok(format!("{} frames, {} missed", sent.frames, sent.missed))
        };
        let note = match scenario {
            Scenario::Flood(kind) => flood(kind)?,
            Scenario::SlowReaders => clients::read_slowly(task.rate as usize, &ends)?,
            Scenario::Connections => clients::open_and_close(task.rate, &ends)?,
            Scenario::ZeroWindows => {
                let mut injector = inject()?;
                println!("ready");
                let request = b"GET /bytes/1000000 HTTP/1.1\r\nHost: x\r\n\r\n";
                let count = u16::try_from(task.rate)?;
                let sent = injector.close_windows(count, request, || ends.load(Relaxed))?;
                format!(
                    "{} windows closed, {} answers, {} reset",
                    sent.established, sent.answered, sent.reset
                )
            }
            other => return Err(format!("{} is done elsewhere", other.name()).into()),
        };
        println!("{note}");
        Ok(())
    }

    fn table(options: &Options, scenario: Scenario, samples: &[Sample]) -> Table {
        let title = format!(
            "{}; wrk: thousand requests a second; curl: Gbit/s; cpu: thousand requests of wrk in a \
             second of processor time",
            scenario.name()
        );
        let columns = columns("server | client | without | during | share | back | share/Linux's");
        let mut table = Table::new(title, &columns);
        let mut bars = Bars {
            heading: format!("{}: what clients keep of their rate", scenario.name()),
            axis: "rate during it / without: median and quartiles".to_owned(),
            ..Bars::default()
        };
        let linux = server_name(Server::Linux);
        for &server in &options.servers {
            let name = server_name(server);
            let own: Vec<&Sample> = samples
                .iter()
                .filter(|sample| sample.server == name)
                .collect();
            for (client, what, unit) in [(0, "wrk", 1e3), (1, "curl", 125e6), (2, "cpu", 1e3)] {
                let rates = |of: fn(&Sample) -> Rates| {
                    Spread::text(own.iter().map(|sample| of(sample)[client] / unit), 2)
                };
                let share = |sample: &Sample| sample.share(client);
                let ratios = own.iter().filter_map(|sample| {
                    let mut others = samples.iter();
                    let of_linux = others
                        .find(|other| other.round == sample.round && other.server == linux)?;
                    (name != linux).then(|| share(sample) / share(of_linux))
                });
                let back = own
                    .iter()
                    .map(|sample| sample.last()[client] / sample.first()[client]);
                let ratios = Spread::of(ratios).map(|ratio| ratio.to_string());
                if let Some(share) = Spread::of(own.iter().map(|sample| share(sample))) {
                    let bar = format!("{name}, {what}");
                    bars.bars.push(Bar::new(bar, &name, share, 2));
                }
                table.row(vec![
                    name.clone(),
                    what.to_owned(),
                    rates(|sample| mean(&sample.without)),
                    rates(|sample| mean(&sample.during)),
                    Spread::text(own.iter().map(|sample| share(sample)), 2),
                    Spread::of(back).map_or_else(String::new, |back| format!("{:.2}", back.median)),
                    ratios.unwrap_or_default(),
                ]);
            }
            for sample in own {
                let [before, during, after] = sample.memory.map(|bytes| bytes >> 20);
                let counters: Vec<String> = sample
                    .counters
                    .iter()
                    .map(|(name, value)| format!("{name} {value}"))
                    .collect();
                table.note(format!(
                    "{name}: memory {before}, {during}, {after} MiB; {} panics; {} disturbed; {}; {}",
                    sample.panicked,
                    sample.disturbed,
                    sample.note,
                    counters.join(", ")
                ));
            }
        }
        table.bars(bars);
        table.keep(&samples);
        table
    }
}

dominoes_bench::main_on_linux!();
