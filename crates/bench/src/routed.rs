//! Packets a second through a router on the ends of two veth pairs: the example `router`, without
//! and with programmable cards, and Linux, in turn.
//!
//! A process sends datagrams of 18 bytes, as fast as one core can, into the first pair, for a
//! network that the other end of the second pair does not have: what arrives there is counted, and
//! dropped.

use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::named;
use crate::namespaces::{self, Namespace, Outcome, Process, machine_nanos};
use crate::paper::Measure;
use crate::rounds::{self, Reading};
use crate::spread::Spread;
use crate::table::{Table, columns};

/// First argument of the process that sends; the second is the number of seconds.
const INNER: &str = "--flood";
const SENDER: &str = "10.81.1.1:0";
const BEYOND: &str = "10.82.0.0/16";
const TO: &str = "10.82.0.1:9";
/// Payload of a frame of 64 bytes.
const SIZE: usize = 18;
/// What does not count: neighbours are looked up, and buffers touched.
const WARM: Duration = Duration::from_millis(300);
/// How long a router may take until it routes, and the sender beyond its time.
const PATIENCE: Duration = Duration::from_secs(10);

named! {
    /// What routes.
    enum Router {
        Linux = "Linux",
        Ours = "ours",
        /// The same with cards, whose firmware has one processor, or two.
        Uniprocessor = "uniprocessor",
        Partitioned = "partitioned",
    }
}

/// Packets that arrived and that were sent in a second, in thousands, and seconds of all cores for
/// a million that arrived.
#[derive(Clone, Copy, serde::Serialize)]
struct Rates {
    arrived: f64,
    sent: f64,
    cpu: f64,
}

/// Sends, if the arguments of this process ask for it.
pub fn play() -> Option<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [first, seconds, ..] = &arguments[..] else {
        return None;
    };
    (first == INNER).then(|| {
        let done = seconds.parse().map_err(Into::into).and_then(flood);
        let said = done.inspect_err(|error| eprintln!("{INNER}: {error}"));
        ExitCode::from(u8::from(said.is_err()))
    })
}

/// Sends for this number of seconds, and prints [`Rates`].
fn flood(seconds: f64) -> Outcome<()> {
    let arrived = || -> Outcome<u64> {
        let count = fs::read_to_string("/sys/class/net/r2/statistics/rx_packets")?;
        Ok(count.trim().parse()?)
    };
    let socket = UdpSocket::bind(SENDER)?;
    socket.connect(TO)?;
    let (begin, mut sent, mut from) = (Instant::now(), 0_u64, None);
    loop {
        for _ in 0..64 {
            // It fails while nothing routes yet, or if a queue is full.
            sent += u64::from(socket.send(&[0x5a; SIZE]).is_ok());
        }
        let elapsed = begin.elapsed();
        match from {
            None if elapsed >= WARM => {
                from = Some((elapsed, sent, arrived()?, machine_nanos()));
            }
            Some((since, before, there, work)) if (elapsed - since).as_secs_f64() >= seconds => {
                let milliseconds = (elapsed - since).as_secs_f64() * 1e3;
                let got = (arrived()? - there) as f64;
                let work = (machine_nanos() - work) as f64;
                let sent = (sent - before) as f64 / milliseconds;
                println!("{} {sent} {}", got / milliseconds, work / got / 1e3);
                return Ok(());
            }
            _ => {}
        }
    }
}

/// Two namespaces that two veth pairs join: routers are in `near`, both ends in `far`.
struct Fixture<'a> {
    near: Namespace,
    far: Namespace,
    examples: &'a Path,
    seconds: String,
}

impl Fixture<'_> {
    fn new(examples: &Path, seconds: u64) -> Outcome<Fixture<'_>> {
        let [near, far] = [
            namespaces::namespace("router")?,
            namespaces::namespace("ends")?,
        ];
        for (net, interface) in [(1, "r1"), (2, "r2")] {
            near.join(&far, interface)?;
            far.ip(&format!("addr add 10.81.{net}.1/24 dev {interface}"))?;
            near.ip(&format!("link set {interface} up"))?;
            far.ip(&format!("link set {interface} up"))?;
        }
        far.ip(&format!("route add {BEYOND} via 10.81.1.254"))?;
        let seconds = seconds.to_string();
        Ok(Fixture {
            near,
            far,
            examples,
            seconds,
        })
    }

    fn sample(&self, router: Router) -> Outcome<Rates> {
        if router == Router::Linux {
            for net in [1, 2] {
                let address = format!("addr add 10.81.{net}.254/24 dev r{net}");
                self.near.ip(&address)?;
            }
            self.near.ip(&format!("route add {BEYOND} via 10.81.2.1"))?;
            self.near.shell("echo 1 > /proc/sys/net/ipv4/ip_forward")?;
            let rates = self.rates();
            self.near.shell("echo 0 > /proc/sys/net/ipv4/ip_forward")?;
            self.near.ip("addr flush dev r1")?;
            self.near.ip("addr flush dev r2")?;
            return rates;
        }
        let route = format!("{BEYOND}=10.81.2.1");
        let ends = ["packet:r1=10.81.1.254/24", "packet:r2=10.81.2.254/24"];
        let mut arguments = [&ends[..], &["--route", &route]].concat();
        if router != Router::Ours {
            arguments.extend(["--nic", router.name()]);
        }
        let program = self.examples.join("router").display().to_string();
        let routing = Process::spawn(self.near.command(&program), &arguments)?;
        routing.line(PATIENCE)?;
        self.rates()
    }

    fn rates(&self) -> Outcome<Rates> {
        let sender = Process::start(&self.far, &[INNER, &self.seconds])?;
        let said = sender.line(PATIENCE + Duration::from_secs(self.seconds.parse()?))?;
        let numbers: Vec<f64> = said.split(' ').flat_map(str::parse).collect();
        match numbers[..] {
            [arrived, sent, cpu] if arrived > 0.0 => Ok(Rates { arrived, sent, cpu }),
            _ => Err(format!("nothing arrived: {said}").into()),
        }
    }
}

/// Measures all routers in turn. `examples` is the folder of the programs; `control` takes as long
/// as the machine is disturbed, and a sample for which it took more than `calm` times the median is
/// left out if others remain.
///
/// The measures are `router: NAME`, in thousand packets a second, and two ratios.
///
/// # Errors
/// Without a privilege or a program, or if nothing arrives.
pub fn measure(
    examples: &Path,
    (rounds, seconds): (usize, u64),
    (control, calm): (fn() -> f64, f64),
) -> Outcome<Table> {
    let fixture = Fixture::new(examples, seconds)?;
    let mut routers = Router::ALL;
    let samples = rounds::by_turns(&mut routers, rounds, &mut |_, _| (), |router, _| {
        let control = control();
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(Reading::calm((
            fixture.sample(*router)?,
            control,
        )))
    })?;
    let controls = samples.iter().flatten().map(|one| one.value.1);
    let most = Spread::of(controls).map_or(f64::INFINITY, |control| calm * control.median);
    let of = |router: Router, of: fn(&Rates) -> f64| -> Vec<Reading<f64>> {
        let own = samples[router as usize].iter();
        own.map(|one| Reading {
            value: of(&one.value.0),
            is_calm: one.value.1 <= most,
        })
        .collect()
    };
    let arrived = |router| of(router, |rates| rates.arrived);
    let title = format!("packets of {SIZE} bytes through a router, from one sender");
    let columns = columns("router | 1000/s | / Linux | sent, 1000/s | CPU s/million");
    let mut table = Table::new(title, &columns);
    let measure = |table: &mut Table, name: String, readings: &[Reading<f64>]| {
        let (values, left_out) = rounds::kept(readings);
        if let Some(ours) = rounds::spread(readings) {
            let measure = Measure::of(ours, values.len()).disturbed_if(left_out.is_none());
            table.measure(format!("router: {name}"), measure);
        }
    };
    for router in Router::ALL {
        let text = |of: Vec<Reading<f64>>, digits| {
            Spread::text(rounds::kept(&of).0.into_iter().copied(), digits)
        };
        let own = arrived(router);
        measure(&mut table, router.name().to_owned(), &own);
        table.row(vec![
            router.name().to_owned(),
            text(own.clone(), 0),
            text(rounds::over(&own, &arrived(Router::Linux)), 2),
            text(of(router, |rates| rates.sent), 0),
            text(of(router, |rates| rates.cpu), 2),
        ]);
    }
    for (one, other) in [
        (Router::Ours, Router::Linux),
        (Router::Partitioned, Router::Uniprocessor),
    ] {
        let name = format!("{} / {}", one.name(), other.name());
        measure(
            &mut table,
            name,
            &rounds::over(&arrived(one), &arrived(other)),
        );
    }
    table.note("Linux routes in the sender's time, ours on threads that share the cores with it");
    table.keep(&samples);
    Ok(table)
}
