//! The example `services` with an address of each family. A Linux kernel and common programs use it
//! over IPv6: `ping`, `curl`, `iperf3`, `socat`, `nc`, `traceroute`, `nmap`, while `tshark`
//! captures. Two more tests have a network with `radvd`, which assigns the address, and a router
//! whose other link has a smaller MTU.

use std::fs;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use serde_json::Value;

use crate::fixture::{
    Device, Ends, Fixture, GROUP, GROUP_V6, KERNELS_V6, Namespace, OURS, OURS_SECOND,
    OURS_SECOND_V6, OURS_V6, THEIRS, TRACEROUTE, Temporary, hops, start,
};
use crate::services::{curl, curl_gets_and_sends, expected, ping_singly, until_echoed};
use crate::{CURL, Test, same};

/// Each kind of device: its name, the device, and arguments for the example.
pub(crate) const DEVICES: [(&str, Device, &[&str]); 5] = [
    ("tap", Device::Tap, &[]),
    ("tun", Device::Tun, &[]),
    ("tap_no_offloads", Device::Tap, &["--no-offloads"]),
    ("packet", Device::Packet, &[]),
    ("xdp", Device::Xdp, &[]),
];

/// Tests that use one server in turn.
pub(crate) const TESTS: &[(&str, Test)] = &[
    ("the_kernel_finds_its_neighbor", neighbor_is_found),
    ("ping_loses_nothing", ping_loses_nothing),
    ("curl_gets_and_sends_the_same", curl_gets_and_sends_the_same),
    ("iperf3_runs_each_way", iperf3_runs_each_way),
    ("datagrams_are_echoed", datagrams_are_echoed),
    ("groups_are_heard", groups_are_heard),
    ("nobody_at_a_port_is_told", a_closed_port_is_reported),
    ("traceroute_and_nmap_find_us", traceroute_and_nmap_find_us),
];

/// A long test, so it runs on two devices only: one with complete checksums of ours, and one
/// without.
pub(crate) const CAPTURED: (&[&str], (&str, Test)) = (
    &["tap_no_offloads", "packet"],
    ("no_frame_is_malformed", no_frame_is_malformed),
);

/// A test with its own server; it returns a figure.
type Alone = fn() -> Result<String, Failed>;

pub(crate) const ALONE: &[(&str, Alone)] = &[
    ("radvd_gives_an_address", radvd_gives_an_address),
    ("a_narrow_path_is_learned", a_narrow_path_is_learned),
    ("two_interfaces_over_tap", two_interfaces_over_tap),
    ("two_interfaces_over_packet", two_interfaces_over_packet),
    ("the_kernel_answers_our_pings_over_tap", pings_over_tap),
    (
        "the_kernel_answers_our_pings_over_packet",
        pings_over_packet,
    ),
];

/// Bytes of a file that crosses routers.
const LARGE: u64 = 20_000_000;
/// Bytes that must have arrived of the 64 MiB that `iperf3` sends.
const LEAST: f64 = (32u32 << 20) as f64;
/// Frames to capture.
const FRAMES: &str = "1500";
/// Longer than address resolution takes.
const PATIENCE: Duration = Duration::from_secs(120);
const GLANCE: Duration = Duration::from_millis(2);

/// A server that several tests share: it needs up to two seconds to verify that its address is
/// unique.
#[derive(Default)]
pub(crate) struct Shared(Mutex<Option<Fixture>>);

impl Shared {
    /// Runs a test with the server. The server starts before the first test, and again after a test
    /// that failed.
    pub(crate) fn run(
        &self,
        (device, arguments): (Device, &[&str]),
        test: Test,
        figure: &dyn Fn(String),
    ) -> Result<(), Failed> {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut fixture = match shared.take() {
            Some(fixture) => fixture,
            None => Fixture::services_v6(device, arguments)?,
        };
        test(&fixture, figure)
            .and_then(|()| fixture.check())
            .map_err(|failed| fixture.explain(&failed))?;
        *shared = Some(fixture);
        Ok(())
    }
}

fn check(fine: bool, what: &str) -> Result<(), Failed> {
    if fine { Ok(()) } else { Err(what.into()) }
}

/// The server's own addresses, the link-local one first.
fn addresses(fixture: &Fixture) -> Result<Vec<String>, Failed> {
    let said = fixture.said();
    let line = said
        .lines()
        .find_map(|line| line.strip_prefix("listening on "));
    let list = line.and_then(|line| line.split(',').next());
    let list = list.ok_or("it does not say where it listens")?;
    Ok(list.split(" and ").skip(1).map(str::to_owned).collect())
}

fn ping(fixture: &Fixture, to: &str, size: &str) -> Result<String, Failed> {
    ping_singly(fixture, &["-6", "-s", size, to], 20)
}

/// The kernel's neighbour entry for us, once the entry contains `state`.
fn neighbor_in(fixture: &Fixture, state: &str) -> Result<String, Failed> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let said = fixture.ip(&format!("-6 neigh show to {OURS_V6}"))?;
        if said.contains(state) {
            return Ok(said);
        }
        check(Instant::now() < deadline, &format!("not {state}: {said}"))?;
        thread::sleep(GLANCE);
    }
}

/// The kernel resolves our address by multicast; later, when told to probe, by unicast.
fn neighbor_is_found(fixture: &Fixture, figure: &dyn Fn(String)) -> Result<(), Failed> {
    let interface = fixture.interface();
    if interface == Device::Tun.interface() {
        // A TUN has no neighbors.
        return Ok(());
    }
    fixture.ip(&format!("-6 neigh flush dev {interface}"))?;
    ping(fixture, OURS_V6, "56")?;
    let found = neighbor_in(fixture, " REACHABLE")?;
    fixture.ip(&format!(
        "-6 neigh change {OURS_V6} dev {interface} nud probe"
    ))?;
    let again = neighbor_in(fixture, " REACHABLE")?;
    let mac = |said: &str| {
        let mut words = said.split_whitespace();
        words.find(|word| *word == "lladdr");
        words.next().map(str::to_owned)
    };
    check(mac(&found).is_some() && mac(&found) == mac(&again), &again)?;
    figure(again.trim().to_owned());
    Ok(())
}

/// Also in fragments, and at the link-local address. Also pings all nodes of the link.
fn ping_loses_nothing(fixture: &Fixture, figure: &dyn Fn(String)) -> Result<(), Failed> {
    for size in ["56", "4000", "60000"] {
        figure(ping(fixture, OURS_V6, size)?);
    }
    let own = addresses(fixture)?;
    let local = own.first().ok_or("no link-local address")?;
    check(local.starts_with("fe80:"), local)?;
    let interface = fixture.interface();
    ping(fixture, &format!("{local}%{interface}"), "4000")?;
    let all = format!("ff02::1%{interface}");
    // The kernel answers, too, and `ping` does not wait for both.
    for _ in 0..100 {
        let said = fixture.run("ping", &["-6", "-c", "3", "-i", "0.05", &all])?;
        if said.contains(&format!("from {local}%")) {
            return Ok(());
        }
    }
    Err("no answer to all nodes".into())
}

fn curl_gets_and_sends_the_same(fixture: &Fixture, figure: &dyn Fn(String)) -> Result<(), Failed> {
    figure(curl_gets_and_sends(fixture, &format!("[{OURS_V6}]"))?);
    // The server still serves IPv4.
    let folder = Temporary::new()?;
    let (got, url) = (folder.file("got"), format!("http://{OURS}/bytes/1000"));
    let length = ["--output", &got, "--write-out", "%{size_download}", &url];
    check(curl(fixture, &length)? == "1000", "IPv4")
}

fn iperf3_runs_each_way(fixture: &Fixture, figure: &dyn Fn(String)) -> Result<(), Failed> {
    for (direction, more) in [
        ("theirs", &[][..]),
        ("ours", &["-R"]),
        ("both", &["--bidir"]),
    ] {
        let arguments = [&["-6", "-c", OURS_V6, "-n", "64M", "-J"], more].concat();
        let said = fixture.run("iperf3", &arguments)?;
        let end = serde_json::from_str::<Value>(&said)?["end"].take();
        // With both directions at once, the test ends when one of them is done.
        let received = |what| {
            ["sum_received", "sum_received_bidir_reverse"]
                .iter()
                .filter_map(|sum| end[sum][what].as_f64())
                .sum::<f64>()
        };
        // The rest may be in flight when the client reports that it has sent everything.
        if received("bytes") < LEAST {
            return Err(format!("{direction}: too little was received\n{said}").into());
        }
        let rate = received("bits_per_second") / 1e9;
        figure(format!("{direction}: {rate:.2} Gbit/s"));
    }
    Ok(())
}

/// `socat` sends datagrams of several sizes, whole and in fragments; so does `nc`.
fn datagrams_are_echoed(fixture: &Fixture, _: &dyn Fn(String)) -> Result<(), Failed> {
    let folder = Temporary::new()?;
    let mut asking = Vec::new();
    for len in [1, 6, 1452, 1453, 8_000, 60_000] {
        let (sent, got) = (format!("sent{len}"), format!("got{len}"));
        let written = folder.write(&sent, len, 3)?;
        let client = match len {
            6 => format!("nc -6 -u -w 120 {OURS_V6} 7"),
            _ => format!("socat -b 65507 -t 120 - UDP6:[{OURS_V6}]:7"),
        };
        let ask = until_echoed(&client, len, (&folder.file(&sent), &folder.file(&got)));
        asking.push((fixture.start("sh", &["-c", &ask])?, got, written));
    }
    for (client, got, written) in asking {
        client.finish()?;
        same(folder.hash(&got)? == written, &got)?;
    }
    Ok(())
}

/// The server echoes what `socat` sends to a group of either family that it joined, and ignores
/// another group.
fn groups_are_heard(fixture: &Fixture, figure: &dyn Fn(String)) -> Result<(), Failed> {
    let interface = fixture.interface();
    let folder = Temporary::new()?;
    let (sent, got) = (folder.file("sent"), folder.file("got"));
    let v4 = |group: &str| format!("UDP4-DATAGRAM:{group}:7,ip-multicast-if={THEIRS}");
    let v6 = |group: &str| format!("UDP6-DATAGRAM:[{group}%{interface}]:7");
    for group in [v4(GROUP), v6(GROUP_V6)] {
        fs::write(&sent, &group)?;
        let client = format!("socat -t 120 - {group}");
        let ask = until_echoed(&client, group.len(), (&sent, &got));
        fixture.run("sh", &["-c", &ask])?;
        let said = fs::read_to_string(&got)?;
        check(said == group, &format!("{group}: {said:?}"))?;
    }
    for beside in [v4("239.78.0.8"), v6("ff12::78:8")] {
        let ask = format!("echo {beside} | socat -t 0.5 - {beside} 2>&1");
        let said = fixture.run("sh", &["-c", &ask])?;
        check(said.is_empty(), &format!("{beside}: {said:?}"))?;
    }
    figure(format!("{GROUP} and {GROUP_V6}"));
    Ok(())
}

fn a_closed_port_is_reported(fixture: &Fixture, _: &dyn Fn(String)) -> Result<(), Failed> {
    for address in ["UDP6", "TCP6"] {
        let ask = format!("echo hello | socat -t 60 - {address}:[{OURS_V6}]:77 2>&1 || true");
        let said = fixture.run("sh", &["-c", &ask])?;
        check(said.contains("Connection refused"), &said)?;
    }
    Ok(())
}

fn traceroute_and_nmap_find_us(fixture: &Fixture, _: &dyn Fn(String)) -> Result<(), Failed> {
    for method in ["--udp", "--icmp", "--tcp"] {
        let arguments = [&TRACEROUTE[..], &["-6", method, OURS_V6]].concat();
        let said = fixture.run("traceroute", &arguments)?;
        let is_us = hops(&said) == [OURS_V6.parse::<IpAddr>()?];
        check(is_us, &format!("{method}: {said}"))?;
    }
    let scan = ["-6", "-n", "-Pn", "-sT", "-p", "1-100", OURS_V6];
    let said = fixture.run("nmap", &scan)?;
    let open = said.lines().filter_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let is_open = words.get(1) == Some(&"open");
        words.first()?.strip_suffix("/tcp").filter(|_| is_open)
    });
    let open: Vec<_> = open.collect();
    check(open == ["7", "9", "15", "80"], &format!("{open:?}: {said}"))?;
    let lines = &mut said.lines();
    let others = lines.any(|line| line.starts_with("Not shown: 96 closed"));
    check(others, &said)
}

/// Captures at the kernel's end and causes more traffic until there are enough frames.
fn no_frame_is_malformed(fixture: &Fixture, figure: &dyn Fn(String)) -> Result<(), Failed> {
    let folder = Temporary::new()?;
    let (file, got) = (folder.file("capture"), folder.file("got"));
    let interface = fixture.interface();
    let capture = ["-q", "-i", interface, "-c", FRAMES, "-w", &file];
    let watching = fixture.start("tshark", &capture)?;
    while !watching.has_ended()? {
        fixture.ip(&format!("-6 neigh flush dev {interface}"))?;
        ping(fixture, OURS_V6, "4000")?;
        // Gets an error, unless the rate limit of errors is exceeded.
        let ask = format!("echo hello | socat -t 0.1 - UDP6:[{OURS_V6}]:77 2>&1 || true");
        fixture.run("sh", &["-c", &ask])?;
        let url = format!("http://[{OURS_V6}]/bytes/100000");
        curl(fixture, &["--output", &got, &url])?;
        let url = format!("http://[{OURS_V6}]/sum");
        curl(fixture, &["--upload-file", &got, &url])?;
    }
    watching.finish()?;
    // Checksums of TCP and UDP are complete only without offloads; those of ICMPv6 always are.
    // Another test checks IPv4.
    let bad = format!(
        "ipv6.src == {OURS_V6} && (_ws.malformed || icmpv6.checksum.status == 0 \
         || (tcp.checksum.status == 0 && tcp.checksum_calculated != tcp.checksum && {0}) \
         || (tcp.flags.reset == 1 && tcp.srcport != 77))",
        if offloads_nothing(fixture)? {
            "tcp"
        } else {
            "!tcp"
        },
    );
    // When the capture misses the first segment of a connection, `tshark` would parse random bytes
    // as HTTP; so it must not parse the data of TCP.
    let opaque = ["-d", "tcp.port==80,data", "-o", "tcp.check_checksum:TRUE"];
    let look = ["-r", &file, "-Y", &bad];
    let said = fixture.run("tshark", &[&opaque[..], &look].concat())?;
    if !said.trim().is_empty() {
        return Err(format!("these should not be there:\n{said}").into());
    }
    let fields = ["ipv6.src", "icmpv6.type", "ipv6.fraghdr.nxt"];
    let fields: Vec<_> = fields.iter().flat_map(|field| ["-e", field]).collect();
    let seen = fixture.run(
        "tshark",
        &[&["-r", &file, "-T", "fields"], &fields[..]].concat(),
    )?;
    let rows = || {
        seen.lines()
            .map(|line| line.split('\t').collect::<Vec<_>>())
    };
    let ours = rows().filter(|row| row[0] == OURS_V6).count();
    let asked = rows().filter(|row| row.get(1) == Some(&"136")).count();
    let is_piece = |row: &Vec<&str>| row.get(2).is_some_and(|next| !next.is_empty());
    let cut = rows().filter(is_piece).count();
    figure(format!(
        "{ours} frames of ours, {asked} advertisements, {cut} fragments"
    ));
    check(ours > 100 && asked > 0 && cut > 0, "too few of them")
}

/// Whether the server computes all of its checksums.
fn offloads_nothing(fixture: &Fixture) -> Result<bool, Failed> {
    let words = std::fs::read_to_string(format!("/proc/{}/cmdline", fixture.server_id()))?;
    Ok(words.split('\0').any(|word| word == "--no-offloads"))
}

/// The server's address is stable and opaque, and its router is the one that advertised itself.
fn radvd_gives_an_address() -> Result<String, Failed> {
    const SETTINGS: &str = "interface veth0 {
        AdvSendAdvert on;
        MinRtrAdvInterval 3;
        MaxRtrAdvInterval 4;
        prefix fd00:79::/64 { AdvOnLink on; AdvAutonomous on; };
    };";
    let mut fixture = Fixture::services_behind_radvd(SETTINGS)?;
    behind_radvd(&fixture)
        .and_then(|address| fixture.check().map(|()| address))
        .map_err(|failed| fixture.explain(&failed))
}

fn behind_radvd(fixture: &Fixture) -> Result<String, Failed> {
    let own = addresses(fixture)?;
    let made = own.iter().find(|address| address.starts_with("fd00:79:"));
    let made = made.ok_or_else(|| format!("no address of the prefix: {own:?}"))?;
    fixture.ip(&format!(
        "addr add fd00:79::2/64 dev {} nodad",
        fixture.interface()
    ))?;
    ping(fixture, made, "4000")?;
    // Only the router leads there.
    fixture.peer().enable_v6("lo")?;
    fixture.ip("addr add fd00:99::9/128 dev lo nodad")?;
    let beyond = [
        "-6",
        "-q",
        "-c",
        "5",
        "-i",
        "0.05",
        "-I",
        "fd00:99::9",
        made,
    ];
    let said = fixture.run("ping", &beyond)?;
    check(said.contains(" 5 received, 0% packet loss"), &said)?;
    let got = fixture.root.file("got");
    let url = format!("http://[{made}]/bytes/{LARGE}");
    curl(
        fixture,
        &["--interface", "fd00:99::9", "--output", &got, &url],
    )?;
    same(
        fixture.root.hash("got")? == expected(LARGE),
        "what curl got",
    )?;
    Ok(format!("{made} is ours"))
}

fn pings_over_tap() -> Result<String, Failed> {
    pings(Device::Tap)
}

fn pings_over_packet() -> Result<String, Failed> {
    pings(Device::Packet)
}

/// The kernel answers our echo requests over both families, also in fragments, and so do we.
fn pings(device: Device) -> Result<String, Failed> {
    const COUNT: &str = "5";
    let ends = Ends::new(device)?;
    let interface = ends.interface();
    let add = format!("addr add {KERNELS_V6}/64 dev {interface} nodad");
    ends.peer().enable_v6(interface)?;
    ends.peer().ip(&add)?;
    let hosts = [THEIRS, KERNELS_V6, OURS, OURS_V6, "127.0.0.1", "::1"];
    let mut replies = 0;
    for size in ["0", "56", "20000"] {
        let arguments = [&["--count", COUNT, "--size", size][..], &hosts].concat();
        let said = ends.ping(&arguments)?;
        for host in hosts {
            let of_host = format!("{size} bytes from {host}: number {COUNT}, TTL 64, ");
            check(said.contains(&of_host), &said)?;
        }
        replies += said.lines().count() - 1;
    }
    Ok(format!("{replies} replies"))
}

fn two_interfaces_over_tap() -> Result<String, Failed> {
    two_interfaces(Device::Tap)
}

fn two_interfaces_over_packet() -> Result<String, Failed> {
    two_interfaces(Device::Packet)
}

/// One stack serves the networks of two interfaces over both families, and does not answer in one
/// network for its address in the other.
fn two_interfaces(device: Device) -> Result<String, Failed> {
    let far = Namespace::new("far")?;
    let mut fixture = Fixture::services_at_two(device, &far)?;
    let far = match device {
        Device::Tap => fixture.peer(),
        _ => &far,
    };
    both_are_served(&fixture, far)
        .and_then(|said| fixture.check().map(|()| said))
        .map_err(|failed| fixture.explain(&failed))
}

fn both_are_served(fixture: &Fixture, far: &Namespace) -> Result<String, Failed> {
    let run = |namespace: &Namespace, program: &str, arguments: &[&str]| {
        let mut command = namespace.command(program);
        command.args(arguments);
        Ok::<_, Failed>(start(&mut command)?.finish()?)
    };
    let folder = Temporary::new()?;
    let (got, sent) = (folder.file("got"), folder.file("sent"));
    let written = folder.write("sent", 4_000, 3)?;
    for (namespace, address, family) in [
        (fixture.peer(), OURS, "4"),
        (fixture.peer(), OURS_V6, "6"),
        (far, OURS_SECOND, "4"),
        (far, OURS_SECOND_V6, "6"),
    ] {
        let place = match family {
            "4" => address.to_owned(),
            _ => format!("[{address}]"),
        };
        // One at a time, as in `ping_singly`.
        let ping = ["-q", "-c", "1", "-W", "60", "-s", "4000", address];
        for _ in 0..20 {
            run(namespace, "ping", &ping)?;
        }
        let url = format!("http://{place}/bytes/{LARGE}");
        let down = [&CURL[..], &["--output", &got, &url]].concat();
        run(namespace, "curl", &down)?;
        same(folder.hash("got")? == expected(LARGE), "what curl got")?;
        let url = format!("http://{place}/sum");
        let up = [&CURL[..], &["--upload-file", &got, &url]].concat();
        let said = run(namespace, "curl", &up)?;
        same(said.trim() == folder.hex("got")?, "what the server got")?;
        let client = format!("socat -b 65507 -t 120 - UDP{family}:{place}:7");
        let ask = until_echoed(&client, 4_000, (&sent, &got));
        run(namespace, "sh", &["-c", &ask])?;
        same(folder.hash("got")? == written, "the echo that socat got")?;
    }
    // Via the first interface, no host answers for the address of the second.
    let ours = format!("{OURS_SECOND}/32");
    let interface = fixture.interface();
    fixture.ip(&format!("route replace {ours} via {OURS} dev {interface}"))?;
    let ask = ["-c", "2", "-W", "1", "-i", "0.2", "-I", THEIRS, OURS_SECOND];
    let said = run(
        fixture.peer(),
        "sh",
        &["-c", &format!("ping {} || true", ask.join(" "))],
    )?;
    check(said.contains(" 0 received"), &said)?;
    Ok(format!("{LARGE} bytes each way, at four addresses"))
}

/// A namespace beyond the peer's. The peer forwards packets of up to 1280 bytes to it.
struct Beyond(Namespace);

impl Beyond {
    const ADDRESS: &str = "fd00:99::2";

    fn new(fixture: &Fixture) -> Result<Beyond, Failed> {
        let (far, peer) = (Namespace::new("far")?, fixture.peer());
        let name = &far.name;
        peer.ip(&format!(
            "link add far0 type veth peer name far0 netns {name}"
        ))?;
        for (namespace, address) in [(peer, "fd00:99::1"), (&far, Beyond::ADDRESS)] {
            namespace.ip("link set far0 up")?;
            namespace.enable_v6("far0")?;
            namespace.ip(&format!("addr add {address}/64 dev far0 nodad"))?;
        }
        peer.shell("echo 1 > /proc/sys/net/ipv6/conf/all/forwarding")?;
        peer.ip(&format!(
            "-6 route add {}/128 dev far0 mtu lock 1280",
            Beyond::ADDRESS
        ))?;
        far.ip("-6 route add default via fd00:99::1")?;
        Ok(Beyond(far))
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<String, Failed> {
        let mut command = self.0.command(program);
        command.args(arguments);
        Ok::<_, Failed>(start(&mut command)?.finish()?)
    }
}

/// Both ends start with an MTU of 1500 bytes, until the router reports a smaller one (RFC 8201).
fn a_narrow_path_is_learned() -> Result<String, Failed> {
    let arguments = ["--gateway", KERNELS_V6];
    let mut fixture = Fixture::services_v6(Device::Packet, &arguments)?;
    narrow_path(&fixture)
        .and_then(|said| fixture.check().map(|()| said))
        .map_err(|failed| fixture.explain(&failed))
}

fn narrow_path(fixture: &Fixture) -> Result<String, Failed> {
    let far = Beyond::new(fixture)?;
    let folder = Temporary::new()?;
    let got = folder.file("got");
    let arguments = [&TRACEROUTE[..], &["-6", OURS_V6]].concat();
    let said = far.run("traceroute", &arguments)?;
    let path = ["fd00:99::1".parse()?, OURS_V6.parse::<IpAddr>()?];
    check(hops(&said) == path, &said)?;

    let url = format!("http://[{OURS_V6}]/bytes/{LARGE}");
    let down = [&CURL[..], &["--output", &got, &url]].concat();
    far.run("curl", &down)?;
    same(folder.hash("got")? == expected(LARGE), "what curl got")?;
    let url = format!("http://[{OURS_V6}]/sum");
    let up = [&CURL[..], &["--upload-file", &got, &url]].concat();
    let said = far.run("curl", &up)?;
    same(said.trim() == folder.hex("got")?, "what the server got")?;

    // Datagrams use the path MTU that a connection learned: the first one arrives.
    let by_tcp = told(fixture)?;
    check(by_tcp > 0, "the router had nothing to say")?;
    let written = folder.write("sent", 1400, 3)?;
    let sent = folder.file("sent");
    let ask = format!("socat -b 65507 -t 1 - UDP6:[{OURS_V6}]:7 < {sent} > {got}");
    far.run("sh", &["-c", &ask])?;
    same(folder.hash("got")? == written, "the echo")?;
    check(told(fixture)? == by_tcp, "the router had to say it again")?;
    Ok(format!("told {by_tcp} times that a packet is too big"))
}

/// Number of Packet Too Big messages that the peer has sent.
fn told(fixture: &Fixture) -> Result<u64, Failed> {
    let said = fixture.run("cat", &["/proc/net/snmp6"])?;
    let line = said
        .lines()
        .find_map(|line| line.strip_prefix("Icmp6OutPktTooBigs"));
    Ok(line.ok_or("no such counter")?.trim().parse()?)
}
