//! The example `tunnel` between two network namespaces: one whose only way out is a TUN interface,
//! with `curl`, `dig`, `iperf3` and `wrk`, and one with the destinations.
//!
//! This program is what the destinations run, and further clients: the tests start it again with
//! [`PEER`] as its first argument.

use std::error::Error;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, SocketAddrV4};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use dominoes_testkit::Rng;
use dominoes_testkit::packet::{Path, SYN, Segment};
use libtest_mimic::Failed;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto};
use rustix::net::{sendto_v4, socket_with};

use crate::fixture::{Namespace, Program, explain, speak, start, start_in};
use crate::{CURL, rate, same};

/// The first argument of the program. The second is its task.
pub(crate) const PEER: &str = "--tunnel-peer";

/// A test of a running tunnel.
type Test = fn(&mut Tunnelled, &dyn Fn(String)) -> Result<(), Failed>;

/// Names, options of the tunnel, and tests.
pub(crate) const TESTS: [(&str, &[&str], Test); 7] = [
    (
        "curl_and_datagrams_reach_both_families",
        &["--dns", RESOLVER, "--udp-idle", "1"],
        reach,
    ),
    (
        "a_capture_shows_that_the_destination_answers_first",
        &[],
        captured,
    ),
    ("iperf3_and_wrk_see_no_error", &[], load),
    (
        "iperf3_and_wrk_see_no_error_without_offloads",
        &["--no-offloads"],
        load,
    ),
    (
        "a_syn_is_held_until_the_socks5_server_answers",
        &["--socks", SOCKS, "--dns", RESOLVER],
        held,
    ),
    (
        "connections_and_datagrams_pass_the_socks5_server_dante",
        &["--socks", DANTE, "--udp-idle", "1"],
        over_dante,
    ),
    ("ten_thousand_connections_are_idle", &[], idle),
];

const FAR: &str = "203.0.113.9";
const FAR_V6: &str = "2001:db8:9::9";
const RESOLVER: &str = "203.0.113.53:53";
const SOCKS: &str = "203.0.113.9:1080";
const DANTE: &str = "203.0.113.9:1081";
const DANTE_CONFIG: &str = "logoutput: stderr
internal: 203.0.113.9 port = 1081
external: 203.0.113.9
socksmethod: none
clientmethod: none
client pass { from: 0/0 to: 0/0 }
socks pass { from: 0/0 to: 0/0 }
";
/// What each name has in our resolver.
const ANSWER: [u8; 4] = [203, 0, 113, 9];
const ECHO: u16 = 7;
const HTTP: u16 = 80;
/// A port without a listener.
const CLOSED: u16 = 81;
/// The SOCKS5 server connects to [`HTTP`] instead, when the test allows it.
const LATE: u16 = 82;
/// Bytes of a download.
const LEN: usize = 20_000_000;
const CONNECTIONS: usize = 10_000;
const SECOND: Duration = Duration::from_secs(1);

/// The namespaces, with everything that runs in them.
pub(crate) struct Tunnelled {
    // The processes are dropped before their namespaces.
    tunnel: Program,
    serving: Program,
    inside: Namespace,
    outside: Namespace,
}

impl Tunnelled {
    pub(crate) fn new(arguments: &[&str]) -> Result<Tunnelled, Failed> {
        let (inside, outside) = (Namespace::new("inside")?, Namespace::new("outside")?);
        outside.enable_v6("lo")?;
        for address in ["203.0.113.9/32", "203.0.113.53/32", "2001:db8:9::9/128"] {
            outside.ip(&format!("addr add {address} dev lo"))?;
        }
        let program = std::env::current_exe()?;
        let serving = speak(outside.command(program).args([PEER, "serve"]))?;
        serving.wait_for("serving", 1)?;
        outside.ip("tuntap add dev tun0 mode tun")?;
        let own = [
            "--tun",
            "tun0",
            "--addr6",
            "fd00:78::1/64",
            "--seconds",
            "600",
        ];
        let tunnel = start_in(&outside, "tunnel", &[&own, arguments].concat())?;
        outside.ip(&format!("link set tun0 netns {}", inside.name))?;
        inside.enable_v6("tun0")?;
        inside.ip("addr add 10.78.0.2/24 dev tun0")?;
        inside.ip("addr add fd00:78::2/64 dev tun0 nodad")?;
        inside.ip("link set tun0 up")?;
        inside.ip("route add default dev tun0")?;
        inside.ip("-6 route add default dev tun0")?;
        Ok(Tunnelled {
            tunnel,
            serving,
            inside,
            outside,
        })
    }

    /// A failure with the output of the tunnel.
    pub(crate) fn explain(&mut self, failed: &Failed) -> Failed {
        explain(&mut self.tunnel, failed)
    }

    /// Starts a command of the clients.
    fn start(&self, program: &str, arguments: &[&str]) -> Result<Program, Failed> {
        start(self.inside.command(program).args(arguments))
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<String, Failed> {
        Ok(self.start(program, arguments)?.finish()?)
    }

    /// Starts this program as a client.
    fn peer(&self, arguments: &[&str]) -> Result<String, Failed> {
        let program = std::env::current_exe()?.display().to_string();
        self.run(&program, &[&[PEER], arguments].concat())
    }

    /// Descriptors of the tunnel.
    fn descriptors(&self) -> Result<usize, Failed> {
        Ok(fs::read_dir(format!("/proc/{}/fd", self.tunnel.id()))?.count())
    }
}

fn url(host: &str, port: u16, len: usize) -> String {
    let host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    };
    format!("http://{host}:{port}/{len}")
}

/// Fails unless `curl` is refused.
fn is_refused(tunnelled: &Tunnelled, host: &str) -> Result<(), Failed> {
    let url = url(host, CLOSED, 1);
    match tunnelled.run("curl", &[&CURL[..], &[&url]].concat()) {
        Err(failed)
            if failed
                .message()
                .unwrap_or_default()
                .contains("exit status: 7") =>
        {
            Ok(())
        }
        Err(failed) => Err(failed),
        Ok(said) => Err(format!("it is accepted: {said}").into()),
    }
}

fn downloads(tunnelled: &Tunnelled, host: &str, figure: &dyn Fn(String)) -> Result<(), Failed> {
    let start = Instant::now();
    let url = url(host, HTTP, LEN);
    let said = tunnelled.run("curl", &[&CURL[..], &[&url]].concat())?;
    figure(rate(LEN, start.elapsed(), "ours"));
    let same = said.len() == LEN && said.bytes().zip(pattern()).all(|(is, wanted)| is == wanted);
    if same {
        Ok(())
    } else {
        Err(format!("{} bytes, or others", said.len()).into())
    }
}

fn reach(tunnelled: &mut Tunnelled, figure: &dyn Fn(String)) -> Result<(), Failed> {
    for host in [FAR, FAR_V6] {
        downloads(tunnelled, host, figure)?;
        is_refused(tunnelled, host)?;
        tunnelled.run("ping", &["-q", "-c", "3", "-i", "0.01", host])?;
    }
    // No route leads there.
    is_refused(tunnelled, "198.51.100.1")?;
    let before = tunnelled.descriptors()?;
    let said = tunnelled.peer(&[
        "ask",
        "192.0.2.1:53",
        "[2001:db8:53::1]:53",
        "203.0.113.9:7",
        "[2001:db8:9::9]:7",
    ])?;
    figure(said.trim().to_owned());
    digs(tunnelled, "192.0.2.1")?;
    sessions_end(tunnelled, before)
}

/// Fails unless `dig` gets our resolver's answer from this server.
fn digs(tunnelled: &Tunnelled, server: &str) -> Result<(), Failed> {
    let server = format!("@{server}");
    let said = tunnelled.run("dig", &["+short", "+noedns", &server, "test"])?;
    same(said.trim() == FAR, &format!("dig gets {said}"))
}

/// Waits until the tunnel has no more descriptors than before.
fn sessions_end(tunnelled: &Tunnelled, before: usize) -> Result<(), Failed> {
    let deadline = Instant::now() + crate::fixture::patience();
    while tunnelled.descriptors()? > before {
        if Instant::now() > deadline {
            return Err("the sessions last".into());
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// On both sides of the tunnel: a connection to [`HTTP`], and one that is refused.
fn captured(tunnelled: &mut Tunnelled, figure: &dyn Fn(String)) -> Result<(), Failed> {
    const REFUSED: u16 = 83;
    let capture = |namespace: &Namespace, interface| {
        let mut command = namespace.command("tshark");
        command.args(["-l", "-n", "-i", interface, "-T", "fields"]);
        command.args(["-f", "tcp[tcpflags] & (tcp-syn|tcp-rst) != 0"]);
        let columns = [
            "frame.time_epoch",
            "ip.src",
            "tcp.srcport",
            "ip.dst",
            "tcp.dstport",
        ];
        for column in columns.into_iter().chain(["tcp.flags.str"]) {
            command.args(["-e", column]);
        }
        speak(&mut command)
    };
    let sides = [
        ("inside", capture(&tunnelled.inside, "tun0")?),
        ("outside", capture(&tunnelled.outside, "lo")?),
    ];
    let packets = |port: u16| {
        let port = port.to_string();
        let mut packets = Vec::new();
        for (name, side) in &sides {
            for line in side.said().lines() {
                let words: Vec<&str> = line.split_whitespace().collect();
                if let &[time, from, from_port, to, to_port, flags] = &words[..]
                    && [from_port, to_port].contains(&&*port)
                {
                    let flags = flags.replace('\u{b7}', "");
                    let what = format!("{name}: {from}:{from_port} > {to}:{to_port} {flags}");
                    packets.push((time.to_owned(), what, format!("{name} {flags}")));
                }
            }
        }
        packets.sort();
        packets
    };
    let deadline = Instant::now() + crate::fixture::patience();
    let wait_for = |port: u16, count: usize| loop {
        let packets = packets(port);
        if packets.len() >= count {
            return Ok(packets);
        }
        if Instant::now() > deadline {
            return Err(Failed::from(format!("too few packets: {packets:?}")));
        }
        thread::sleep(Duration::from_millis(20));
    };
    // `tshark` prints nothing when a capture begins.
    while sides.iter().any(|(_, side)| !side.said().contains(FAR)) {
        if Instant::now() > deadline {
            return Err("tshark sees nothing".into());
        }
        is_refused(tunnelled, FAR)?;
    }
    for (port, answer) in [(HTTP, "AS"), (REFUSED, "AR")] {
        let fetched = tunnelled.run("curl", &[&CURL[..], &[&url(FAR, port, 1)]].concat());
        same(fetched.is_ok() == (port == HTTP), "curl is answered")?;
        let packets = wait_for(port, 4)?;
        for (time, what, _) in &packets {
            figure(format!("{time} {what}"));
        }
        // The destination answers first.
        let order: Vec<&str> = packets.iter().map(|(.., what)| &**what).collect();
        let [far, near] = ["outside", "inside"].map(|side| format!("{side} {answer}"));
        same(
            order[..4] == ["inside S", "outside S", &far, &near],
            "the order",
        )?;
    }
    Ok(())
}

fn over_dante(tunnelled: &mut Tunnelled, figure: &dyn Fn(String)) -> Result<(), Failed> {
    let config = std::env::temp_dir().join(format!("dominoes-dante-{}", std::process::id()));
    fs::write(&config, DANTE_CONFIG)?;
    let mut command = tunnelled.outside.command("danted");
    command.arg("-f").arg(&config);
    let dante = speak(&mut command)?;
    dante.wait_for("running", 1)?;
    fs::remove_file(config)?;
    downloads(tunnelled, FAR, figure)?;
    is_refused(tunnelled, FAR)?;
    let before = tunnelled.descriptors()?;
    digs(tunnelled, "203.0.113.53")?;
    let said = tunnelled.peer(&["ask", "203.0.113.9:7"])?;
    figure(said.trim().to_owned());
    sessions_end(tunnelled, before)
}

fn load(tunnelled: &mut Tunnelled, figure: &dyn Fn(String)) -> Result<(), Failed> {
    let mut command = tunnelled.outside.command("iperf3");
    let serving = speak(command.args(["-s", "--forceflush"]))?;
    serving.wait_for("Server listening", 1)?;
    for (way, more) in [
        ("sends", None),
        ("receives", Some("-R")),
        ("both", Some("--bidir")),
    ] {
        for host in [FAR, FAR_V6] {
            let arguments = ["-c", host, "-t", "1", "-f", "g"];
            let said = tunnelled.run("iperf3", &[&arguments[..], more.as_slice()].concat())?;
            let sums = said.lines().filter(|line| line.ends_with("receiver"));
            let rates = sums.filter_map(|line| line.split_whitespace().rev().nth(2));
            let rates = rates.collect::<Vec<_>>().join(" and ");
            figure(format!("iperf3 {way} {rates} Gbit/s at {host}"));
        }
    }
    let url = url(FAR, HTTP, 100);
    let said = tunnelled.run("wrk", &["-t1", "-c1000", "-d2s", "--timeout", "30s", &url])?;
    let done = said.lines().find(|line| line.starts_with("Requests/sec"));
    figure(format!("wrk -c 1000: {}", done.unwrap_or_default()));
    if said.contains("Socket errors") || said.contains("Non-2xx") {
        return Err(said.into());
    }
    Ok(())
}

fn held(tunnelled: &mut Tunnelled, figure: &dyn Fn(String)) -> Result<(), Failed> {
    downloads(tunnelled, FAR_V6, figure)?;
    is_refused(tunnelled, FAR)?;
    // Datagrams go to the resolver only.
    tunnelled.peer(&["ask", "192.0.2.1:53"])?;
    let late = tunnelled.start("curl", &[&CURL[..], &[&url(FAR, LATE, 5)]].concat())?;
    tunnelled.serving.wait_for("asked for a late one", 1)?;
    let states = tunnelled.run("ss", &["-tn", "state", "all", "dport", "=", "82"])?;
    if !states.contains("SYN-SENT") || states.contains("ESTAB") {
        return Err(states.into());
    }
    tunnelled.serving.say("go on\n")?;
    late.finish()?;
    Ok(())
}

fn idle(tunnelled: &mut Tunnelled, figure: &dyn Fn(String)) -> Result<(), Failed> {
    // Every process has a descriptor for each connection.
    let limit = tunnelled.run("sh", &["-c", "ulimit -n"])?;
    let most = limit
        .trim()
        .parse()
        .map_or(CONNECTIONS, |limit: usize| limit.saturating_sub(100));
    let count = most.min(CONNECTIONS);
    let mut program = tunnelled.inside.command(std::env::current_exe()?);
    let mut clients = speak(program.args([PEER, "idle", &count.to_string()]))?;
    clients.wait_for("connected", 1)?;
    let status = fs::read_to_string(format!("/proc/{}/status", tunnelled.tunnel.id()))?;
    let facts = status
        .lines()
        .filter(|line| line.starts_with("VmRSS") || line.starts_with("Threads"));
    let facts = facts.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    figure(format!(
        "{count} connections: {}",
        facts.collect::<Vec<_>>().join(", ")
    ));
    clients.say("speak\n")?;
    clients.finish()?;
    Ok(())
}

/// A million SYNs to random ends, in a minute. With `silent`, no destination answers or refuses.
pub(crate) fn flooded(silent: bool, figure: &dyn Fn(String)) -> Result<(), Failed> {
    const SYNS: u64 = 1_000_000;
    const SECONDS: u64 = 60;
    let mut tunnelled = Tunnelled::new(&[])?;
    if silent {
        let outside = &tunnelled.outside;
        outside.ip("tuntap add dev hole mode tun")?;
        outside.ip("addr add 10.99.0.1/24 dev hole")?;
        outside.ip("link set hole up")?;
        outside.ip("route add default dev hole")?;
    }
    let fetch = |seconds: u64| -> Result<(f64, String), Failed> {
        let said = tunnelled.peer(&["fetch", &seconds.to_string()])?;
        let (rate, facts) = said.trim().split_once(' ').ok_or("no rate")?;
        Ok((rate.parse()?, facts.to_owned()))
    };
    let (before, facts) = fetch(20)?;
    let memory_before = tunnelled.tunnel.memory()?;
    figure(format!("before: {facts}, {} KB", memory_before >> 10));
    let mut command = tunnelled.inside.command(std::env::current_exe()?);
    command.args([PEER, "flood", &SYNS.to_string(), &SECONDS.to_string()]);
    let flooding = start(&mut command)?;
    // The queues fill up.
    thread::sleep(5 * SECOND);
    let memory_early = tunnelled.tunnel.memory()?;
    let (during, facts) = fetch(SECONDS - 10)?;
    let memory_late = tunnelled.tunnel.memory()?;
    let ratio = during / before;
    let [early, late] = [memory_early, memory_late].map(|bytes| bytes >> 10);
    figure(format!(
        "during: {facts}, {ratio:.2} of before, {early} KB after 5 s, {late} KB at the end"
    ));
    figure(flooding.finish()?.trim().to_owned());
    if ratio < 0.9 || memory_late > memory_early + (16 << 20) {
        return Err(tunnelled.explain(&"too slow, or memory grows".into()));
    }
    Ok(())
}

// The program
// -------------------------------------------------------------------------------------------------

type Done = Result<(), Box<dyn Error + Send + Sync>>;

/// The program; `arguments` follow [`PEER`].
pub(crate) fn peer(arguments: &[String]) -> Done {
    match arguments {
        [what] if what == "serve" => serve(),
        [what, destinations @ ..] if what == "ask" => {
            destinations.iter().try_for_each(|to| ask(to.parse()?))
        }
        [what, count] if what == "idle" => stay_idle(count.parse()?),
        [what, count, seconds] if what == "flood" => flood(count.parse()?, seconds.parse()?),
        [what, seconds] if what == "fetch" => fetch(seconds.parse()?),
        _ => Err("no such task".into()),
    }
}

/// The bytes that the server sends; they are text.
fn pattern() -> impl Iterator<Item = u8> {
    (b'!'..=b'z').cycle()
}

fn serve() -> Done {
    let any = Ipv6Addr::UNSPECIFIED;
    let serve = |port: u16, each: fn(TcpStream) -> io::Result<()>| {
        let listener = TcpListener::bind((any, port))?;
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || each(stream));
            }
        });
        io::Result::Ok(())
    };
    serve(HTTP, answer_requests)?;
    serve(1080, socks)?;
    let listener = TcpListener::bind((any, ECHO))?;
    thread::spawn(move || echo_once(&listener));
    for socket in [UdpSocket::bind((any, ECHO))?, UdpSocket::bind(RESOLVER)?] {
        let port = socket.local_addr()?.port();
        thread::spawn(move || {
            let mut bytes = [0; 2048];
            while let Ok((len, from)) = socket.recv_from(&mut bytes) {
                let mut answer = bytes[..len].to_vec();
                if port != ECHO {
                    // An answer with one record, for the name of the question.
                    answer[2..8].copy_from_slice(&[0x81, 0x80, 0, 1, 0, 1]);
                    answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
                    answer.extend(ANSWER);
                }
                let _ = socket.send_to(&answer, from);
            }
        });
    }
    println!("serving");
    loop {
        thread::park();
    }
}

/// `GET /5` gets five bytes.
fn answer_requests(stream: TcpStream) -> io::Result<()> {
    let mut writer = stream.try_clone()?;
    let mut lines = BufReader::new(stream).lines();
    while let Some(request) = lines.next() {
        let request = request?;
        let len = request
            .split(['/', ' '])
            .nth(2)
            .and_then(|len| len.parse().ok());
        let len: usize = len.unwrap_or(0);
        while lines
            .next()
            .transpose()?
            .is_some_and(|line| !line.is_empty())
        {}
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n");
        let bytes = head.bytes().chain(pattern().take(len)).collect::<Vec<_>>();
        writer.write_all(&bytes)?;
    }
    Ok(())
}

/// Echoes a byte on each of many connections, when all of them are there. The first one brings
/// their number.
fn echo_once(listener: &TcpListener) -> io::Result<()> {
    let mut all = vec![listener.accept()?.0];
    let mut count = [0; 4];
    all[0].read_exact(&mut count)?;
    for _ in 1..u32::from_be_bytes(count) {
        all.push(listener.accept()?.0);
    }
    for stream in &mut all {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        stream.write_all(&byte)?;
    }
    Ok(())
}

/// A SOCKS5 server without authentication (RFC 1928).
fn socks(mut client: TcpStream) -> io::Result<()> {
    client.read_exact(&mut [0; 3])?;
    client.write_all(&[5, 0])?;
    let (mut request, mut port) = ([0; 4], [0; 2]);
    client.read_exact(&mut request)?;
    let ip: IpAddr = if request[3] == 1 {
        let mut ip = [0; 4];
        client.read_exact(&mut ip)?;
        ip.into()
    } else {
        let mut ip = [0; 16];
        client.read_exact(&mut ip)?;
        ip.into()
    };
    client.read_exact(&mut port)?;
    let mut port = u16::from_be_bytes(port);
    if port == LATE {
        println!("asked for a late one");
        io::stdin().read_line(&mut String::new())?;
        port = HTTP;
    }
    let Ok(far) = TcpStream::connect((ip, port)) else {
        return client.write_all(&[5, 5, 0, 1, 0, 0, 0, 0, 0, 0]);
    };
    // The server may name its end in any form.
    client.write_all(match ip {
        IpAddr::V4(_) => &[5, 0, 0, 1, 0, 0, 0, 0, 0, 0],
        IpAddr::V6(_) => &[5, 0, 0, 3, 4, b'h', b'e', b'r', b'e', 0, 0],
    })?;
    let carry = |mut from: TcpStream, mut to: TcpStream| {
        let carried = io::copy(&mut from, &mut to);
        carried.and_then(|_| to.shutdown(Shutdown::Write))
    };
    let (back, forth) = (far.try_clone()?, client.try_clone()?);
    thread::spawn(move || carry(back, forth));
    carry(client, far)
}

/// Sends a datagram until its answer comes.
fn ask(to: SocketAddr) -> Done {
    let any = if to.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        IpAddr::from([0; 16])
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    // A question for the address of `test` (RFC 1035 section 4.1).
    let question = b"id\x01\0\0\x01\0\0\0\0\0\0\x04test\0\0\x01\0\x01";
    for _ in 0..30 {
        socket.send_to(question, to)?;
        let mut answer = [0; 2048];
        let Ok((len, from)) = socket.recv_from(&mut answer) else {
            continue;
        };
        let is_right = match to.port() {
            ECHO => answer[..len] == question[..],
            _ => answer[..len].ends_with(&ANSWER),
        };
        if from != to || !is_right {
            return Err(format!("{from} answers {:?}", &answer[..len]).into());
        }
        println!("{to} answers");
        return Ok(());
    }
    Err(format!("{to} does not answer").into())
}

fn stay_idle(count: usize) -> Done {
    let to = |number| if number % 2 == 0 { FAR } else { FAR_V6 };
    let mut all = Vec::new();
    for number in 0..count {
        let mut stream = TcpStream::connect((to(number), ECHO))?;
        if number == 0 {
            stream.write_all(&u32::try_from(count)?.to_be_bytes())?;
        }
        all.push(stream);
    }
    println!("connected");
    io::stdin().read_line(&mut String::new())?;
    for stream in &mut all {
        stream.write_all(b"x")?;
    }
    all.iter_mut()
        .try_for_each(|stream| stream.read_exact(&mut [0]))?;
    Ok(())
}

/// Sends SYNs to random ends, evenly within this time.
fn flood(count: u64, seconds: f64) -> Done {
    let (kind, flags) = (SocketType::RAW, SocketFlags::empty());
    let socket = socket_with(AddressFamily::INET, kind, flags, Some(ipproto::RAW))?;
    let mut rng = Rng::new(3);
    let start = Instant::now();
    let mut sent = 0;
    while sent < count {
        let due = (start.elapsed().as_secs_f64() / seconds * count as f64) as u64;
        let due = due.min(count);
        for _ in sent..due {
            let (to, from_port) = (rng.next(), rng.next());
            // Unicast addresses that no host here has.
            let to_ip = [11 + to as u8 % 80, (to >> 8) as u8, (to >> 16) as u8, 1];
            let path = Path {
                from_mac: [2; 6],
                to_mac: [2; 6],
                from: [10, 78, 0, 2],
                to: to_ip,
            };
            let syn = Segment {
                src_port: 1024 | from_port as u16,
                dst_port: 1 | (to >> 24) as u16,
                seq: (from_port >> 16) as u32,
                flags: SYN,
                wnd: 65_535,
                mss: Some(1460),
                ..Segment::default()
            };
            let packet = &syn.frame(path)[14..];
            let to = SocketAddrV4::new(to_ip.into(), 0);
            // The interface may be full.
            let _ = sendto_v4(&socket, packet, SendFlags::empty(), &to);
        }
        sent = due;
        thread::sleep(Duration::from_millis(1));
    }
    println!("{sent} SYNs in {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// Asks twenty times a second for 100 KB, each time with another connection.
fn fetch(seconds: f64) -> Done {
    let start = Instant::now();
    let (mut served, mut slowest) = (0, Duration::ZERO);
    let asked = (seconds * 20.0) as u32;
    for number in 0..asked {
        let due = start + number * Duration::from_millis(50);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let begun = Instant::now();
        let mut stream =
            TcpStream::connect_timeout(&SocketAddr::new(FAR.parse()?, HTTP), 5 * SECOND)?;
        stream.write_all(b"GET /100000 HTTP/1.1\r\n\r\n")?;
        stream.shutdown(Shutdown::Write)?;
        let mut got = Vec::new();
        served += u32::from(stream.read_to_end(&mut got).is_ok() && got.len() > 100_000);
        slowest = slowest.max(begun.elapsed());
    }
    let rate = f64::from(served) / start.elapsed().as_secs_f64();
    println!(
        "{rate:.2} {served} of {asked} served, the slowest in {} ms",
        slowest.as_millis()
    );
    Ok(())
}
