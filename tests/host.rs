//! The whole stack against the kernel's: the examples `http_server` and `services` serve over a
//! device, and `curl`, `ping` and `iperf3` are their clients.
//!
//! Each test creates its own network namespaces and removes them, so it leaves the machine's own
//! network alone:
//!
//! - `tap`: the server opens a TAP interface, whose other end is the kernel of the same namespace.
//! - `packet`: the server opens one end of a veth pair through a packet socket. The kernel's stack
//!   has no address in the server's namespace; the kernel's stack in the namespace of the other end
//!   is the peer. On a veth pair the sender leaves checksums unfinished and segments undivided, so
//!   both ends must understand each other's virtio headers.
//!
//! - `clients` uses the services over a TAP with common programs: `ab`, `arping`, `hping3`, `nc`,
//!   `nmap`, `socat`, `wrk`.
//! - `services` runs on each kind of device, with and without mapped rings. `HOST_BYTES=1000000000`
//!   makes its files longer.
//!
//! - `datagrams`: frames that hold many UDP datagrams, from the kernel and to it; with `--ignored`,
//!   also the rate of datagrams with such frames and without.
//!
//! - `deaths`: replicas are killed and replaced during transfers. `HOST_BYTES` applies here, too;
//!   `SOAK_SECONDS` sets how long `iperf3` runs, and `SOAK_PERIOD` the seconds between two deaths:
//!   `.ci/soak` sets them to ten minutes and to ten seconds.
//!
//! - `router` runs the example of that name between two namespaces, on veth pairs and on TAPs, with
//!   and without programmable cards.
//!
//! - `floods` sends raw frames to a server over a TAP, and changes and deletes its link, during
//!   downloads with `curl`; in another test, Linux sends keepalives on hundreds of connections.
//!
//! - `ingest` uploads a file to the example of that name, while replicas are killed, too.
//!
//! - `ipv6` uses the services over IPv6 on each kind of device, with `radvd` as their router, and
//!   over a path with a smaller MTU than both ends expect.
//! - `leases`: the example `ping` gets its addresses and servers of names from `dnsmasq`.
//! - `libraries`: `rustls`, `tungstenite`, `ureq` and mio over our streams, with Linux at the other
//!   end.
//! - `tls`: the examples `https_server` and `https_get` with `curl`, `openssl`, rustls over a
//!   socket of the kernel and, if installed, `gnutls-cli` and a `wget` with GnuTLS; `transfers` has
//!   the tests with files. `HOST_BYTES=1000000000` makes the files longer. `REQUIRE=gnutls,wget`
//!   makes the last two programs mandatory.
//!
//! - `signals` ends the servers by SIGTERM and SIGINT while connections are open over a TAP.
//!
//! - `tunnel`: the example of that name between two namespaces, with `curl`, `dig`, `iperf3`, `wrk` and
//!   Dante, a SOCKS5 server.
//!
//! - `top` starts the live view without a terminal, and needs no privileges.
//!
//! Tests that cannot run are shown as ignored, with the reason and a command that helps;
//! `REQUIRE=packet,tap,xdp,tools` makes them fail instead. By default two tests run
//! at a time on each core, since most wait for a program's timeout; use `--test-threads 1` to
//! measure rates. They are printed at the end, with the congestion control of the sender: the peer
//! uses the machine's default. To measure with another one, set `net.ipv4.tcp_congestion_control`
//! before you start this program; new namespaces inherit it.
//!
//! ```text
//! sudo -E env "PATH=$PATH" cargo test --release -p dominoes-tests --test host
//! ```

#[path = "host/clients.rs"]
mod clients;
#[path = "host/datagrams.rs"]
mod datagrams;
#[path = "host/deaths.rs"]
mod deaths;
#[path = "host/examples.rs"]
mod examples;
#[path = "host/fixture.rs"]
mod fixture;
#[path = "host/floods.rs"]
mod floods;
#[path = "host/ingest.rs"]
mod ingest;
#[path = "host/ipv6.rs"]
mod ipv6;
#[path = "host/leases.rs"]
mod leases;
#[path = "host/libraries.rs"]
mod libraries;
#[path = "host/router.rs"]
mod router;
#[path = "host/services.rs"]
mod services;
#[path = "host/signals.rs"]
mod signals;
#[path = "host/tls.rs"]
mod tls;
#[path = "host/transfers.rs"]
mod transfers;
#[path = "host/tunnel.rs"]
mod tunnel;

use std::error::Error;
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use dominoes_drivers::DeviceError;
use dominoes_drivers::af_packet::{AfPacket, AfPacketOptions};
use fixture::{Device, Fixture, Namespace, OURS, Program, Temporary};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use transfers::Client;

/// Bytes of the large file.
pub(crate) const LARGE: usize = 200_000_000;

/// What this program does when a test starts it again, selected by its first argument.
type Peer = fn(&[String]) -> Result<(), Box<dyn Error + Send + Sync>>;

const PEERS: [(&str, Peer); 6] = [
    (datagrams::PEER, datagrams::peer),
    (libraries::PEER, libraries::peer),
    (signals::PEER, |words| Ok(signals::peer(words)?)),
    (floods::PEER, floods::peer),
    (transfers::PEER, transfers::peer),
    (tunnel::PEER, tunnel::peer),
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some((first, words)) = words.split_first()
        && let Some((_, peer)) = PEERS.iter().find(|(name, _)| name == first)
    {
        return match peer(words) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    let mut arguments = Arguments::from_args();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    arguments.test_threads.get_or_insert((2 * cores).min(8));
    let needs = if arguments.list {
        Needs::default()
    } else {
        Needs::look()
    };
    let mut trials = Trials::default();
    for device in [Device::Tap, Device::Packet] {
        for replicas in [1, 2] {
            for &(name, test) in TESTS {
                let prefix = device.option().trim_start_matches('-');
                let name = format!("{prefix}::replicas_{replicas}::{name}");
                let server = move || Fixture::new(device, replicas);
                trials.serve(name, needs.of(device, &[]), server, test);
            }
        }
    }
    for (kind, device, arguments) in services::DEVICES {
        for &(name, test) in services::TESTS {
            let missing = needs.of(device, &["services"]);
            let server = move || Fixture::services(device, arguments);
            trials.serve(format!("services::{kind}::{name}"), missing, server, test);
        }
    }
    for &(name, test) in clients::TESTS {
        // Without offloads our checksums are complete where `tshark` captures.
        let also = format!("{}/24", fixture::OURS_ALSO);
        let server = move || Fixture::services(Device::Tap, &["--no-offloads", "--also", &also]);
        let missing = needs.of(Device::Tap, &["clients", "services"]);
        trials.serve(format!("clients::{name}"), missing, server, test);
    }
    for &(name, device, arguments, test) in deaths::TESTS {
        let server = move || {
            let arguments = arguments()?;
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            Fixture::services(device, &arguments)
        };
        let missing = needs.of(device, &["services"]);
        trials.serve(format!("deaths::{name}"), missing, server, test);
    }
    for (name, arguments) in ingest::TESTS {
        let missing = needs.of(Device::Tap, &["clients", "services"]);
        let server = move || Fixture::ingest(Device::Tap, arguments);
        trials.serve(format!("ingest::{name}"), missing, server, ingest::upload);
    }
    for process in ["search", "blocks", "aes"] {
        let missing = needs.of(Device::Packet, &["services"]);
        let server = move || Fixture::services(Device::Packet, &["--process", process]);
        let test = services::iperf3_runs_each_way;
        trials.serve(
            format!("services::process_{process}"),
            missing,
            server,
            test,
        );
    }
    for &(name, device, replicas, arguments, test) in tls::SERVED.iter().chain([&tls::GNUTLS]) {
        let missing = match name == tls::GNUTLS.0 {
            true => needs.tools(&["gnutls"]).or_else(|| needs.tls(device)),
            false => needs.tls(device),
        };
        let server = move || {
            let arguments = [&["--replicas", replicas], arguments].concat();
            Fixture::https(device, &arguments)
        };
        trials.serve(format!("tls::{name}"), missing, server, test);
    }
    for (device, kind, replicas) in transfers::SERVERS {
        for client in transfers::CLIENTS {
            let missing = match client {
                Client::GnuTls => needs.tools(&["gnutls"]),
                // Only a `wget` with GnuTLS counts; other clients cover OpenSSL.
                Client::Wget => needs.missing("wget", needs.wget.as_ref()),
                _ => None,
            };
            let missing = missing.or_else(|| needs.tls(device));
            let name = client.name();
            let name = format!("tls::{kind}_{replicas}::{name}_gets_and_sends_the_same");
            trials.add(name, missing, move |figure| {
                transfers::run(device, replicas, client, figure)
            });
        }
    }
    for &(name, device, replicas) in tls::ASKING {
        let missing = needs.tls(device);
        trials.add(format!("tls::{name}"), missing, move |figure| {
            tls::openssl_serves(device, replicas, figure)
        });
    }
    let name = "tls::a_client_needs_a_certificate_where_one_is_asked_for".to_owned();
    trials.add(name, needs.tls(Device::Tap), |_| {
        let (mut fixture, folder) = tls::with_client_ca()?;
        tls::client_certificates(&fixture, &folder)
            .and_then(|()| fixture.check())
            .map_err(|failed| fixture.explain(&failed))
    });
    for &(name, replicas, test) in floods::TESTS {
        let server = move || {
            let arguments = [&floods::NETWORK[..], &["--replicas", replicas]].concat();
            Fixture::services(floods::DEVICE, &arguments)
        };
        let missing = needs.of(Device::Tap, &["clients", "services"]);
        trials.serve(format!("floods::{name}"), missing, server, test);
    }
    for &(name, what, replicas) in floods::ALONE {
        let missing = needs.of(Device::Tap, &[]);
        trials.report(format!("floods::{name}"), missing, move || {
            floods::alone(what, replicas)
        });
    }
    let servers = ipv6::DEVICES.map(|device| (device, Arc::<ipv6::Shared>::default()));
    let (captured, last) = ipv6::CAPTURED;
    // Consecutive tests have different servers, so that they can run at the same time.
    for &(name, test) in ipv6::TESTS.iter().chain([&last]) {
        for ((kind, device, arguments), shared) in &servers {
            if name == last.0 && !captured.contains(kind) {
                continue;
            }
            let (server, shared) = ((*device, *arguments), Arc::clone(shared));
            let missing = needs.of(*device, &["ipv6", "services"]);
            trials.add(format!("ipv6::{kind}::{name}"), missing, move |figure| {
                shared.run(server, test, figure)
            });
        }
    }
    for &(name, test) in ipv6::ALONE {
        let missing = needs.of(Device::Packet, &["ipv6", "services"]);
        trials.report(format!("ipv6::{name}"), missing, test);
    }
    for &(name, device) in leases::TESTS {
        let missing = needs.of(device, &["leases"]);
        trials.report(format!("leases::{name}"), missing, move || {
            leases::run(device)
        });
    }
    for (name, device) in datagrams::TESTS {
        let missing = needs.of(device, &["ipv6", "services"]);
        let test = format!("datagrams::{name}::many_share_a_frame_both_ways");
        trials.report(test, missing, move || datagrams::run(device));
        let missing = needs.of(device, &["ipv6", "services"]);
        let test = format!("datagrams::{name}::rate_in_frames_of_one_and_of_many");
        let measured = trials.trial(test, missing, move |figure| {
            figure(datagrams::measure(device)?);
            Ok(())
        });
        trials.list.push(measured.with_ignored_flag(true));
    }
    for (name, what, test) in libraries::TESTS {
        let missing = needs
            .tls(Device::Tap)
            .or_else(|| needs.of(Device::Tap, &["ipv6", "services"]));
        trials.add(format!("libraries::{name}"), missing, move |_| {
            libraries::run(what, test)
        });
    }
    for (kind, device, arguments) in router::KINDS {
        for &(name, test) in router::TESTS {
            // The server uses a packet socket with either device.
            let mut missing = needs.of(Device::Packet, &["router"]);
            if device == "tap" {
                missing = missing.or_else(|| needs.of(Device::Tap, &[]));
            }
            trials.add(format!("router::{kind}::{name}"), missing, move |figure| {
                let mut routed = router::Routed::new(device, arguments)?;
                test(&routed, figure).map_err(|failed| routed.explain(&failed))
            });
        }
    }
    for (name, arguments, test) in tunnel::TESTS {
        let missing = needs
            .of(Device::Tap, &["clients", "services"])
            .or_else(|| needs.of(Device::Tun, &[]));
        trials.add(format!("tunnel::{name}"), missing, move |figure| {
            let mut tunnelled = tunnel::Tunnelled::new(arguments)?;
            test(&mut tunnelled, figure).map_err(|failed| tunnelled.explain(&failed))
        });
    }
    for (name, silent) in [("refused", false), ("silent", true)] {
        let missing = needs.of(Device::Tap, &[]);
        let name = format!("tunnel::a_million_syns_to_{name}_destinations_hold_up_nobody");
        let flooded = trials.trial(name, missing, move |figure| tunnel::flooded(silent, figure));
        trials.list.push(flooded.with_ignored_flag(true));
    }
    trials.list.push(Trial::test(
        "top::without_a_terminal_it_names_once_and_fails",
        top_without_a_terminal,
    ));
    trials.list.push(Trial::test(
        "examples::each_has_help_and_names_what_is_wrong",
        examples::each_has_help_and_names_what_is_wrong,
    ));
    for &(name, test) in signals::TESTS {
        let missing = needs.of(Device::Tap, &[]);
        trials.report(format!("signals::{name}"), missing, test);
    }
    let conclusion = libtest_mimic::run(&arguments, trials.list);
    trials.figures.print();
    conclusion.exit_code()
}

// Tests
// -------------------------------------------------------------------------------------------------

/// A test of a running server; it may record a figure.
pub(crate) type Test = fn(&Fixture, &dyn Fn(String)) -> Result<(), Failed>;

const TESTS: &[(&str, Test)] = &[
    ("ping_loses_nothing", ping_loses_nothing),
    ("curl_downloads_200_mb", curl_downloads_200_mb),
    ("curl_uploads_200_mb", curl_uploads_200_mb),
    (
        "ten_curls_at_once_all_succeed",
        ten_curls_at_once_all_succeed,
    ),
    (
        "many_short_connections_each_get_their_own_file",
        many_short_connections_each_get_their_own_file,
    ),
];

/// Needs no privileges. The example must draw nothing, and its message must name `--once`.
fn top_without_a_terminal() -> Result<(), Failed> {
    let said = match fixture::start_top(&[])?.finish() {
        Ok(said) => return Err(format!("it succeeds:\n{said}").into()),
        Err(failed) => failed.to_string(),
    };
    if !said.contains("exit status: 1") || !said.contains("--once") || said.contains('\x1b') {
        return Err(said.into());
    }
    let said = fixture::start_top(&["--once"])?.finish()?;
    if said.contains("local ") && said.contains("10.78.0.1:19 ") {
        Ok(())
    } else {
        Err(said.into())
    }
}

fn ping_loses_nothing(fixture: &Fixture, figure: &dyn Fn(String)) -> Result<(), Failed> {
    // Of the last replies, `ping` does not wait for those that are late.
    let said = fixture.run("ping", &["-q", "-c", "100", "-i", "0.01", OURS])?;
    if said.contains("duplicates") {
        return Err(said.into());
    }
    figure(services::ping_singly(fixture, &[OURS], 20)?);
    Ok(())
}

fn curl_downloads_200_mb(fixture: &Fixture, figure: &dyn Fn(String)) -> Result<(), Failed> {
    let written = fixture.root.write("large", LARGE, 1)?;
    let peers = Temporary::new()?;
    let start = Instant::now();
    download(fixture, "large", &peers.file("got"))?.finish()?;
    figure(rate(LARGE, start.elapsed(), "ours"));
    same(peers.hash("got")? == written, "the file that curl got")
}

fn curl_uploads_200_mb(fixture: &Fixture, figure: &dyn Fn(String)) -> Result<(), Failed> {
    let peers = Temporary::new()?;
    let written = peers.write("large", LARGE, 2)?;
    let start = Instant::now();
    upload(fixture, &peers.file("large"), "got")?.finish()?;
    figure(rate(LARGE, start.elapsed(), &fixture.congestion_control()));
    same(
        fixture.root.hash("got")? == written,
        "the file that the server got",
    )
}

/// Five downloads and five uploads of several lengths, each on its own connection.
fn ten_curls_at_once_all_succeed(fixture: &Fixture, _: &dyn Fn(String)) -> Result<(), Failed> {
    let peers = Temporary::new()?;
    let mut transfers = Vec::new();
    for i in 0..10 {
        let from = if i % 2 == 0 { &fixture.root } else { &peers };
        let (name, len) = (format!("from{i}"), i * 1_234_567);
        transfers.push((i, from.write(&name, len, i as u64)?, name, format!("to{i}")));
    }
    let mut curls = Vec::new();
    for (i, _, from, to) in &transfers {
        curls.push(match i % 2 {
            0 => download(fixture, from, &peers.file(to))?,
            _ => upload(fixture, &peers.file(from), to)?,
        });
    }
    for curl in curls {
        curl.finish()?;
    }
    for (i, written, _, to) in &transfers {
        let at = if i % 2 == 0 { &peers } else { &fixture.root };
        same(at.hash(to)? == *written, to)?;
    }
    Ok(())
}

/// Runs several short connections at a time, which reuse the places of the connection table; the
/// server closes them first.
fn many_short_connections_each_get_their_own_file(
    fixture: &Fixture,
    figure: &dyn Fn(String),
) -> Result<(), Failed> {
    const FILES: usize = 400;
    let peers = Temporary::new()?;
    let mut written = Vec::new();
    for i in 0..FILES {
        written.push(fixture.root.write(&format!("from{i}"), i * 7, i as u64)?);
    }
    let range = format!("[0-{}]", FILES - 1);
    let parallel = [
        "--parallel",
        "--parallel-max",
        "8",
        "--header",
        "Connection: close",
    ];
    let start = Instant::now();
    let urls = format!("http://{OURS}/from{range}");
    let got = peers.file("got#1");
    curl(
        fixture,
        &[&parallel[..], &["--output", &got, &urls]].concat(),
    )?
    .finish()?;
    let sources = peers.file(&format!("got{range}"));
    let url = format!("http://{OURS}/");
    curl(
        fixture,
        &[&parallel[..], &["--upload-file", &sources, &url]].concat(),
    )?
    .finish()?;
    figure(format!(
        "{} connections in {} ms",
        2 * FILES,
        start.elapsed().as_millis()
    ));
    for (i, written) in written.iter().enumerate() {
        let name = format!("got{i}");
        same(
            peers.hash(&name)? == *written,
            &format!("the peer's {name}"),
        )?;
        same(
            fixture.root.hash(&name)? == *written,
            &format!("the server's {name}"),
        )?;
    }
    Ok(())
}

fn download(fixture: &Fixture, name: &str, to: &str) -> Result<Program, Failed> {
    curl(fixture, &["--output", to, &format!("http://{OURS}/{name}")])
}

fn upload(fixture: &Fixture, from: &str, name: &str) -> Result<Program, Failed> {
    curl(
        fixture,
        &["--upload-file", from, &format!("http://{OURS}/{name}")],
    )
}

/// The first arguments of every call of `curl`.
static CURL: LazyLock<[&str; 7]> = LazyLock::new(|| {
    // `curl` gives up before it is killed, so that it reports how far it came.
    static SECONDS: LazyLock<String> =
        LazyLock::new(|| (fixture::patience().as_secs() - 20).to_string());
    [
        "--silent",
        "--show-error",
        "--fail",
        "--noproxy",
        "*",
        "--max-time",
        &SECONDS,
    ]
});

fn curl(fixture: &Fixture, arguments: &[&str]) -> Result<Program, Failed> {
    fixture.start("curl", &[&CURL[..], arguments].concat())
}

pub(crate) fn same(same: bool, what: &str) -> Result<(), Failed> {
    if same {
        Ok(())
    } else {
        Err(format!("{what} has another SHA-256").into())
    }
}

pub(crate) fn rate(bytes: usize, took: Duration, congestion_control: &str) -> String {
    let gigabits = bytes as f64 * 8e-9 / took.as_secs_f64();
    format!(
        "{gigabits:.1} Gbit/s ({} ms, {congestion_control})",
        took.as_millis()
    )
}

/// Tests of a rate, and of memory that depends on how far replicas lag: they run alone.
const ALONE: [&str; 2] = [
    "deaths::a_connection_both_ways",
    "floods::downloads_arrive_whole",
];

/// Write-locked by a test that runs alone.
static MACHINE: RwLock<()> = RwLock::new(());

/// The tests and their figures.
#[derive(Default)]
struct Trials {
    list: Vec<Trial>,
    figures: Figures,
}

impl Trials {
    /// Adds a test; if a requirement is missing, it ends as `missing` says.
    fn add(
        &mut self,
        name: String,
        missing: Missing,
        test: impl FnOnce(&dyn Fn(String)) -> Result<(), Failed> + Send + 'static,
    ) {
        let trial = self.trial(name, missing, test);
        self.list.push(trial);
    }

    /// Adds a test that returns its figure.
    fn report(
        &mut self,
        name: String,
        missing: Missing,
        test: impl FnOnce() -> Result<String, Failed> + Send + 'static,
    ) {
        self.add(name, missing, |figure| test().map(figure));
    }

    fn trial(
        &self,
        name: String,
        missing: Missing,
        test: impl FnOnce(&dyn Fn(String)) -> Result<(), Failed> + Send + 'static,
    ) -> Trial {
        let figures = self.figures.clone();
        Trial::ignorable_test(name.clone(), move || {
            if let Some(missing) = missing {
                return missing;
            }
            let figure = |figure: String| figures.note(&name, &figure);
            if ALONE.iter().any(|alone| name.starts_with(alone)) {
                let _alone = MACHINE.write().unwrap_or_else(PoisonError::into_inner);
                test(&figure)?;
            } else {
                let _beside = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
                test(&figure)?;
            }
            Ok(Completion::Completed)
        })
    }

    /// Adds a test of a running server. The server must still run without errors when the test
    /// ends.
    fn serve(
        &mut self,
        name: String,
        missing: Missing,
        server: impl FnOnce() -> Result<Fixture, Failed> + Send + 'static,
        test: Test,
    ) {
        self.add(name, missing, move |figure| {
            let mut fixture = server()?;
            test(&fixture, figure)
                .and_then(|()| fixture.check())
                .map_err(|failed| fixture.explain(&failed))
        });
    }
}

/// Figures of the tests, printed after all tests.
#[derive(Clone, Default)]
struct Figures(Arc<Mutex<Vec<String>>>);

impl Figures {
    fn note(&self, test: &str, figure: &str) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.push(format!("{test:45} {figure}"));
    }

    fn print(&self) {
        for line in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            println!("{line}");
        }
    }
}

// Requirements
// -------------------------------------------------------------------------------------------------

/// Why tests cannot run on this machine, if so.
#[derive(Default)]
struct Needs {
    /// For each of [`TOOLS`].
    tools: Vec<Option<String>>,
    tap: Option<String>,
    packet: Option<String>,
    xdp: Option<String>,
    wget: Option<String>,
    /// The words of `REQUIRE`.
    required: String,
}

/// A test that cannot run: ignored, or failed if what is missing is in `REQUIRE`.
type Missing = Option<Result<Completion, Failed>>;

impl Needs {
    fn look() -> Needs {
        let mut needs = Needs {
            tools: TOOLS
                .iter()
                .map(|(_, tools)| missing_tools(tools))
                .collect(),
            wget: missing_wget(),
            required: std::env::var("REQUIRE").unwrap_or_default(),
            ..Needs::default()
        };
        if needs.tools[0].is_none() {
            match Namespace::new("probe") {
                Ok(probe) => {
                    needs.tap = missing_tap(&probe);
                    needs.packet = missing_packet(&probe);
                    needs.xdp = needs.packet.clone().or_else(missing_xdp);
                }
                Err(error) => {
                    let reason = format!(
                        "needs root for network namespaces: {}; \
                         try: sudo -E env \"PATH=$PATH\" cargo test -p dominoes-tests --test host",
                        one_line(&*error)
                    );
                    needs.tap = Some(reason.clone());
                    needs.xdp = Some(reason.clone());
                    needs.packet = Some(reason);
                }
            }
        }
        needs
    }

    /// What a test lacks that needs the device and these of [`TOOLS`], besides those that all need.
    fn of(&self, device: Device, tools: &[&str]) -> Missing {
        let (word, reason) = match device {
            Device::Tap | Device::Tun => ("tap", &self.tap),
            Device::Packet => ("packet", &self.packet),
            Device::Xdp => ("xdp", &self.xdp),
        };
        let of_device = || self.missing(word, reason.as_ref());
        self.tools(&[&["all"], tools].concat()).or_else(of_device)
    }

    fn tools(&self, wanted: &[&str]) -> Missing {
        let mut named = TOOLS.iter().zip(&self.tools);
        named.find_map(|((name, _), reason)| match wanted.contains(name) {
            true => self.missing(
                if *name == "gnutls" { name } else { "tools" },
                reason.as_ref(),
            ),
            false => None,
        })
    }

    fn tls(&self, device: Device) -> Missing {
        match device {
            // The peer needs `ethtool`.
            Device::Xdp => self.of(device, &["tls", "services"]),
            _ => self.of(device, &["tls"]),
        }
    }

    fn missing(&self, word: &str, reason: Option<&String>) -> Missing {
        let mut required = self.required.split(',');
        let is_required = required.any(|required| required.trim() == word);
        reason.map(|reason| match is_required {
            true => Err(format!("required, but {reason}").into()),
            false => Ok(Completion::ignored_with(reason)),
        })
    }
}

/// Programs that tests start: name, an argument with which the program ends at once, and its
/// package.
type Tool = (&'static str, &'static str, &'static str);

/// The tools of all tests, and of some, with a name. GnuTLS has its own word in `REQUIRE`. Some
/// have no argument with which they succeed at once, so their exit status is ignored.
const TOOLS: [(&str, &[Tool]); 8] = [
    (
        "all",
        &[
            ("curl", "--version", "curl"),
            ("ping", "-V", "iputils-ping"),
            ("ip", "-V", "iproute2"),
        ],
    ),
    ("router", &[("traceroute", "--version", "traceroute")]),
    (
        "ipv6",
        &[
            ("nc", "-h", "netcat-openbsd"),
            ("nmap", "-V", "nmap"),
            ("radvd", "--version", "radvd"),
            ("socat", "-V", "socat"),
            ("traceroute", "--version", "traceroute"),
        ],
    ),
    ("leases", &[("dnsmasq", "--version", "dnsmasq-base")]),
    ("gnutls", &[("gnutls-cli", "--version", "gnutls-bin")]),
    ("tls", &[("openssl", "version", "openssl")]),
    (
        "clients",
        &[
            ("ab", "-V", "apache2-utils"),
            ("arping", "-V", "iputils-arping"),
            ("b3sum", "--version", "b3sum"),
            ("hping3", "-v", "hping3"),
            ("nc", "-h", "netcat-openbsd"),
            ("nmap", "-V", "nmap"),
            ("socat", "-V", "socat"),
            ("wrk", "-v", "wrk"),
            ("dig", "-v", "dnsutils"),
            ("danted", "-v", "dante-server"),
        ],
    ),
    (
        "services",
        &[
            ("ethtool", "--version", "ethtool"),
            ("iperf3", "--version", "iperf3"),
            ("tshark", "--version", "tshark"),
        ],
    ),
];

fn missing_tools(tools: &[Tool]) -> Option<String> {
    let missing = tools.iter().filter(|&&(program, argument, _)| {
        let mut command = Command::new(program);
        command.arg(argument).stdin(Stdio::null());
        command.output().is_err()
    });
    let (programs, packages): (Vec<_>, Vec<_>) = missing
        .map(|&(program, _, package)| (program, package))
        .unzip();
    (!programs.is_empty()).then(|| {
        format!(
            "needs {}; try: sudo apt-get install {}",
            programs.join(", "),
            packages.join(" ")
        )
    })
}

fn missing_wget() -> Option<String> {
    let mut command = Command::new("wget");
    command.arg("--version").stdin(Stdio::null());
    let said = command.output().map(|output| output.stdout);
    let said = String::from_utf8_lossy(&said.unwrap_or_default()).into_owned();
    (!said.contains("ssl/gnutls")).then(|| "needs a wget with GnuTLS, as Debian has it".to_owned())
}

fn missing_tap(probe: &Namespace) -> Option<String> {
    let error = probe.ip("tuntap add dev probe0 mode tap").err()?;
    let why = one_line(&*error);
    Some(format!(
        "needs TAP interfaces: {why}; try: sudo modprobe tun"
    ))
}

fn missing_packet(probe: &Namespace) -> Option<String> {
    // The loopback interface is no Ethernet, which only a packet socket can find out.
    match AfPacket::open("lo", AfPacketOptions::default()) {
        Err(DeviceError::Unsuitable { .. }) => {}
        Err(error) => return Some(error.to_string()),
        Ok(_) => return Some("the loopback interface is an Ethernet".to_owned()),
    }
    let made = probe.ip("link add probe1 type veth peer name probe2");
    let why = one_line(&*made.err()?);
    Some(format!(
        "needs veth interfaces: {why}; try: sudo modprobe veth"
    ))
}

fn missing_xdp() -> Option<String> {
    // Bits of linux/capability.h. This process cannot open the interfaces of the namespace, so it
    // can only check its capabilities.
    const NET_ADMIN: u64 = 1 << 12;
    const SYS_ADMIN: u64 = 1 << 21;
    const BPF: u64 = 1 << 39;
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    let held = u64::from_str_radix(effective.trim(), 16).ok()?;
    let enough = held & NET_ADMIN != 0 && held & (BPF | SYS_ADMIN) != 0;
    (!enough).then(|| {
        "needs CAP_BPF and CAP_NET_ADMIN; \
         try: sudo -E env \"PATH=$PATH\" cargo test -p dominoes-tests --test host"
            .to_owned()
    })
}

fn one_line(error: &dyn Error) -> String {
    error.to_string().lines().collect::<Vec<_>>().join(", ")
}
