//! The example `router` between two network namespaces: a kernel with `curl`, `ping` and
//! `traceroute` in one, the example `http_server` in the other, whose link has a smaller MTU.

use std::net::IpAddr;
use std::time::Instant;

use libtest_mimic::Failed;

use crate::fixture::{Namespace, Program, TRACEROUTE, Temporary, explain, hops, start, start_in};
use crate::{CURL, LARGE, rate, same};

/// Names, devices and further arguments of the router.
pub(crate) const KINDS: [(&str, &str, &[&str]); 5] = [
    ("veth", "packet", &[]),
    ("veth_cards", "packet", &["--nic", "partitioned"]),
    ("tap", "tap", &[]),
    ("tap_cards", "tap", &["--nic", "dynamic"]),
    ("tap_no_offloads", "tap", &["--no-offloads"]),
];

/// A test of a running router.
type Test = fn(&Routed, &dyn Fn(String)) -> Result<(), Failed>;

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("curl_downloads_200_mb", curl_downloads_200_mb),
    ("curl_uploads_20_mb", curl_uploads_20_mb),
    ("traceroute_shows_one_router", traceroute_shows_one_router),
    ("a_time_to_live_of_1_is_exceeded", a_time_to_live_of_1),
    ("what_is_too_long_is_cut_or_reported", too_long),
    ("what_has_no_route_is_reported", no_route),
];

const SERVER: &str = "10.78.2.1";
/// The router's address in the client's network.
const ROUTER: &str = "10.78.1.254";
/// The MTU of the server's link.
const NARROW: &str = "1280";

/// Two namespaces and a router between them.
pub(crate) struct Routed {
    // The processes are dropped before their namespaces.
    router: Program,
    server: Program,
    root: Temporary,
    client: Namespace,
    _others: [Namespace; 2],
}

impl Routed {
    pub(crate) fn new(kind: &str, arguments: &[&str]) -> Result<Routed, Failed> {
        let [client, server, router] = ["client", "server", "router"].map(Namespace::new);
        let (client, server, router) = (client?, server?, router?);
        let ends = [("r1", &client), ("r2", &server)];
        for (name, end) in ends {
            if kind == "tap" {
                router.ip(&format!("tuntap add dev {name} mode tap"))?;
            } else {
                router.join(end, name)?;
            }
        }
        router.ip(&format!("link set r2 mtu {NARROW}"))?;
        for (name, _) in ends {
            router.ip(&format!("link set {name} up"))?;
        }
        let [first, second] =
            [1, 2].map(|number| format!("{kind}:r{number}=10.78.{number}.254/24"));
        let all = [&[&first, &second, "--seconds", "600"], arguments].concat();
        let routing = start_in(&router, "router", &all)?;
        for (name, end) in ends {
            if kind == "tap" {
                let peer = &end.name;
                router.ip(&format!("link set {name} netns {peer}"))?;
            }
        }
        server.ip(&format!("link set r2 mtu {NARROW}"))?;
        client.ip("addr add 10.78.1.1/24 dev r1")?;
        for (name, end) in ends {
            end.ip(&format!("link set {name} up"))?;
            end.wait_until_running(name)?;
            // The kernel drops what the router sends before.
            if kind != "tap" {
                router.wait_until_running(name)?;
            }
        }
        client.ip("route add default via 10.78.1.254")?;
        let root = Temporary::new()?;
        let folder = root.file("");
        let cidr = format!("{SERVER}/24");
        let serving = start_in(
            &server,
            "http_server",
            &[
                "--packet",
                "r2",
                "--addr",
                &cidr,
                "--gateway",
                "10.78.2.254",
                "--root",
                &folder,
                "--seconds",
                "600",
            ],
        )?;
        Ok(Routed {
            router: routing,
            server: serving,
            root,
            client,
            _others: [server, router],
        })
    }

    /// Starts a command in the client's namespace.
    fn start(&self, program: &str, arguments: &[&str]) -> Result<Program, Failed> {
        start(self.client.command(program).args(arguments))
    }

    /// A failure with the output of the router and the server.
    pub(crate) fn explain(&mut self, failed: &Failed) -> Failed {
        let failed = explain(&mut self.server, failed);
        explain(&mut self.router, &failed)
    }

    /// The output of `ping`, answered or not.
    fn ping(&self, arguments: &str) -> Result<String, Failed> {
        let line = format!("ping -n -c 1 -W 60 {arguments} 2>&1 || true");
        Ok(self.start("sh", &["-c", &line])?.finish()?)
    }
}

fn check(said: &str, part: &str) -> Result<(), Failed> {
    if said.contains(part) {
        Ok(())
    } else {
        Err(format!("no `{part}` in\n{said}").into())
    }
}

fn curl_downloads_200_mb(net: &Routed, figure: &dyn Fn(String)) -> Result<(), Failed> {
    let written = net.root.write("large", LARGE, 1)?;
    let peers = Temporary::new()?;
    let (url, got) = (format!("http://{SERVER}/large"), peers.file("got"));
    let start = Instant::now();
    net.start("curl", &[&CURL[..], &["--output", &got, &url]].concat())?
        .finish()?;
    figure(rate(LARGE, start.elapsed(), "ours"));
    same(peers.hash("got")? == written, "the file that curl got")
}

fn curl_uploads_20_mb(net: &Routed, figure: &dyn Fn(String)) -> Result<(), Failed> {
    let peers = Temporary::new()?;
    let written = peers.write("large", LARGE / 10, 2)?;
    let (url, from) = (format!("http://{SERVER}/got"), peers.file("large"));
    let start = Instant::now();
    net.start(
        "curl",
        &[&CURL[..], &["--upload-file", &from, &url]].concat(),
    )?
    .finish()?;
    figure(rate(LARGE / 10, start.elapsed(), "the kernel's"));
    same(
        net.root.hash("got")? == written,
        "the file that the server got",
    )
}

fn traceroute_shows_one_router(net: &Routed, _: &dyn Fn(String)) -> Result<(), Failed> {
    // By ICMP: the server has no UDP socket, so it would answer UDP with an error, too.
    let arguments = [&TRACEROUTE[..], &["-I", SERVER]].concat();
    let said = net.start("traceroute", &arguments)?.finish()?;
    let path: [IpAddr; 2] = [ROUTER.parse()?, SERVER.parse()?];
    if hops(&said) == path {
        Ok(())
    } else {
        Err(said.into())
    }
}

fn a_time_to_live_of_1(net: &Routed, _: &dyn Fn(String)) -> Result<(), Failed> {
    let said = net.ping(&format!("-t 1 {SERVER}"))?;
    check(&said, "From 10.78.1.254 icmp_seq=1 Time to live exceeded")?;
    check(&net.ping(&format!("-t 2 {SERVER}"))?, " 1 received")
}

fn too_long(net: &Routed, _: &dyn Fn(String)) -> Result<(), Failed> {
    // Without the don't-fragment bit, the router fragments the request, and the server's reply.
    check(
        &net.ping(&format!("-s 1400 -M dont {SERVER}"))?,
        "1408 bytes from",
    )?;
    let said = net.ping(&format!("-s 1400 -M do {SERVER}"))?;
    check(
        &said,
        &format!("From 10.78.1.254 icmp_seq=1 Frag needed and DF set (mtu = {NARROW})"),
    )?;
    check(
        &net.ping(&format!("-s 1252 -M do {SERVER}"))?,
        " 1 received",
    )
}

fn no_route(net: &Routed, _: &dyn Fn(String)) -> Result<(), Failed> {
    let said = net.ping("203.0.113.1")?;
    check(
        &said,
        "From 10.78.1.254 icmp_seq=1 Destination Net Unreachable",
    )?;
    // A missing neighbour: the router sends three ARP requests, a second apart.
    let said = net.ping("10.78.2.77")?;
    check(
        &said,
        "From 10.78.1.254 icmp_seq=1 Destination Host Unreachable",
    )?;
    check(&net.ping("10.78.2.254")?, " 1 received")
}
