//! Programs that others wrote, and small ones in Python.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use libtest_mimic::Failed;
use sha2::{Digest, Sha256};

use crate::fixture::{Device, Ends, OURS, Server, THEIRS, run};

/// A test: its name, the programs it needs, and its function.
type Test = (
    &'static str,
    &'static [&'static str],
    fn() -> Result<(), Failed>,
);

pub(crate) const ALL: [Test; 9] = [
    (
        "iperf3_runs_both_ways_as_client",
        &["iperf3"],
        iperf3_runs_both_ways_as_client,
    ),
    (
        "iperf3_runs_both_ways_as_server",
        &["iperf3"],
        iperf3_runs_both_ways_as_server,
    ),
    ("curl_gets_a_file", &["curl", "python3"], curl_gets_a_file),
    (
        "python_serves_a_file",
        &["curl", "python3"],
        python_serves_a_file,
    ),
    ("nc_sends_a_line", &["nc"], nc_sends_a_line),
    (
        "nginx_answers_many_requests",
        &["nginx", "curl"],
        nginx_answers_many_requests,
    ),
    (
        "redis_answers_its_benchmark",
        &["redis-server", "redis-benchmark"],
        redis_answers,
    ),
    (
        "a_forked_child_learns_that_the_network_is_down",
        &["python3"],
        a_forked_child,
    ),
    (
        "without_a_device_nothing_runs",
        &["python3"],
        without_a_device_nothing_runs,
    ),
];

/// The rates of programs over our stack and over the kernel's.
pub(crate) const RATES: &[&str] = &[
    "iperf3",
    "nginx",
    "wrk",
    "redis-server",
    "redis-benchmark",
    "curl",
    "wget",
];

/// A folder that is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Folder, Failed> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("preload-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path)?;
        Ok(Folder(path))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<PathBuf, Failed> {
        let path = self.0.join(name);
        std::fs::File::create(&path)?.write_all(bytes)?;
        Ok(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Bytes that do not repeat soon.
fn bytes(len: usize) -> Vec<u8> {
    let mut state: u64 = 7;
    let next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Fails unless the program, whose text this is, had sockets of ours.
fn had_ours(text: &str) -> Result<(), Failed> {
    match text.contains("sockets were ours") && !text.contains(" 0 sockets were ours") {
        true => Ok(()),
        false => Err(format!("no socket was ours: {text}").into()),
    }
}

fn iperf3_runs_both_ways_as_client() -> Result<(), Failed> {
    for device in [Device::Tap, Device::Packet] {
        let ends = Ends::new(device)?;
        let _server = Server::start(
            ends.peer.command("iperf3").args(["-s", "--forceflush"]),
            "listening",
        )?;
        for more in [&[][..], &["-R"], &["-P", "4"]] {
            let mut client = ends.launcher(&[]);
            client
                .args(["iperf3", "-c", THEIRS, "-n", "30M"])
                .args(more);
            had_ours(&run(client.args(["--logfile", "/dev/stderr"]))?)?;
        }
    }
    Ok(())
}

fn iperf3_runs_both_ways_as_server() -> Result<(), Failed> {
    let ends = Ends::new(Device::Packet)?;
    let server = Server::start(
        ends.launcher(&["--replicas", "2"])
            .args(["iperf3", "-s", "--forceflush"]),
        "listening",
    )?;
    for more in [&[][..], &["-R"], &["-P", "4"]] {
        let mut client = ends.peer.command("iperf3");
        run(client.args(["-c", OURS, "-n", "30M"]).args(more))?;
    }
    had_ours(&server.end()?)
}

fn curl_gets_a_file() -> Result<(), Failed> {
    let (ends, folder) = (Ends::new(Device::Tap)?, Folder::new()?);
    let sent = bytes(100 << 20);
    folder.write("sent", &sent)?;
    let mut server = ends.peer.command("python3");
    server
        .args(["-u", "-m", "http.server", "8000", "--directory"])
        .arg(&folder.0);
    let _server = Server::start(&mut server, "Serving")?;
    let got = folder.0.join("got");
    let mut client = ends.launcher(&[]);
    client
        .args(["curl", "-sSf", "--noproxy", "*", "-o"])
        .arg(&got);
    had_ours(&run(client.arg(format!("http://{THEIRS}:8000/sent")))?)?;
    same(&sent, &got)
}

/// Compares by SHA-256.
fn same(sent: &[u8], got: &Path) -> Result<(), Failed> {
    match Sha256::digest(sent) == Sha256::digest(std::fs::read(got)?) {
        true => Ok(()),
        false => Err("another SHA-256".into()),
    }
}

fn python_serves_a_file() -> Result<(), Failed> {
    let (ends, folder) = (Ends::new(Device::Tap)?, Folder::new()?);
    let sent = bytes(20 << 20);
    folder.write("sent", &sent)?;
    let mut server = ends.launcher(&[]);
    server
        .args(["python3", "-u", "-m", "http.server", "8000", "--directory"])
        .arg(&folder.0);
    let server = Server::start(&mut server, "Serving")?;
    for number in 0..3 {
        let got = folder.0.join(format!("got{number}"));
        let mut client = ends.peer.command("curl");
        client.args(["-sSf", "--noproxy", "*", "-o"]).arg(&got);
        run(client.arg(format!("http://{OURS}:8000/sent")))?;
        same(&sent, &got)?;
    }
    drop(server);
    Ok(())
}

fn nc_sends_a_line() -> Result<(), Failed> {
    let ends = Ends::new(Device::Tap)?;
    let server = Server::start(
        ends.launcher(&[])
            .args(["nc", "-n", "-v", "-l", "-p", "9000"]),
        "istening",
    )?;
    let words = format!("echo a line | nc -N {OURS} 9000");
    run(ends.peer.command("sh").args(["-c", &words]))?;
    let text = server.wait()?;
    had_ours(&text)?;
    match text.contains("a line") {
        true => Ok(()),
        false => Err(format!("no line: {text}").into()),
    }
}

/// Starts nginx with one process; `launch` runs it.
fn nginx(mut launch: Command, folder: &Folder) -> Result<Server, Failed> {
    let root = folder.0.display();
    let settings = format!(
        "daemon off; master_process off; pid {root}/pid; error_log stderr notice;
         events {{ worker_connections 1024; }}
         http {{ access_log off; sendfile on; keepalive_requests 1000000;
                 client_body_temp_path {root}/a; proxy_temp_path {root}/b;
                 fastcgi_temp_path {root}/c; uwsgi_temp_path {root}/d; scgi_temp_path {root}/e;
                 server {{ listen 80; root {root}; }} }}"
    );
    let file = folder.write("nginx.conf", settings.as_bytes())?;
    launch
        .args(["nginx", "-c"])
        .arg(file)
        .args(["-p"])
        .arg(&folder.0);
    // The last line that it prints before it serves.
    Server::start(&mut launch, "getrlimit")
}

fn nginx_answers_many_requests() -> Result<(), Failed> {
    let (ends, folder) = (Ends::new(Device::Packet)?, Folder::new()?);
    let sent = bytes(5 << 20);
    folder.write("sent", &sent)?;
    folder.write("small", b"hello\n")?;
    let server = nginx(ends.launcher(&[]), &folder)?;
    let got = folder.0.join("got");
    let mut client = ends.peer.command("curl");
    client.args([
        "-sSf",
        "--noproxy",
        "*",
        "--retry-connrefused",
        "--retry",
        "9",
        "-o",
    ]);
    run(client.arg(&got).arg(format!("http://{OURS}/sent")))?;
    same(&sent, &got)?;
    let mut client = ends.peer.command("curl");
    client.args(["-sSf", "--noproxy", "*", "--parallel", "-o", "/dev/null"]);
    run(client.arg(format!("http://{OURS}/small?[1-2000]")))?;
    had_ours(&server.end()?)
}

fn redis_answers() -> Result<(), Failed> {
    let ends = Ends::new(Device::Packet)?;
    let server = redis(ends.launcher(&[]))?;
    let mut client = ends.peer.command("redis-benchmark");
    client.args([
        "-h",
        OURS,
        "-n",
        "5000",
        "-c",
        "30",
        "-t",
        "ping,set,get,lpush",
        "-q",
    ]);
    run(&mut client)?;
    had_ours(&server.end()?)
}

fn redis(mut launch: Command) -> Result<Server, Failed> {
    launch.args([
        "redis-server",
        "--port",
        "6379",
        "--save",
        "",
        "--protected-mode",
        "no",
    ]);
    Server::start(&mut launch, "Ready to accept")
}

fn a_forked_child() -> Result<(), Failed> {
    const PROGRAM: &str = "
import errno, os, socket, subprocess, sys
peer = (sys.argv[1], 8000)
ours = socket.create_connection(peer)
def errno_of(call):
    try:
        call()
    except OSError as error:
        return error.errno
    return 0
child = os.fork()
if child == 0:
    ok = errno_of(lambda: ours.recv(1)) == errno_of(lambda: ours.send(b'x')) == errno.ENETDOWN
    ours.close()
    os._exit(0 if ok else 1)
assert os.waitpid(child, 0)[1] == 0
# A child that closes all descriptors, and whose process begins with `vfork`.
subprocess.run(['true'], check=True)
ours.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')
assert ours.recv(5, socket.MSG_WAITALL) == b'HTTP/'
os.closerange(3, ours.fileno())
os.closerange(ours.fileno() + 1, 4096)
assert ours.recv(1) != b''
print('passed')
";
    let (ends, folder) = (Ends::new(Device::Tap)?, Folder::new()?);
    let mut server = ends.peer.command("python3");
    server
        .args(["-u", "-m", "http.server", "8000", "--directory"])
        .arg(&folder.0);
    let _server = Server::start(&mut server, "Serving")?;
    let text = run(ends.launcher(&[]).args(["python3", "-c", PROGRAM, THEIRS]))?;
    had_ours(&text)?;
    match text.contains("passed") {
        true => Ok(()),
        false => Err(text.into()),
    }
}

fn without_a_device_nothing_runs() -> Result<(), Failed> {
    let launcher = env!("CARGO_BIN_EXE_dominoes-run");
    let start = |options: &[&str]| {
        let mut command = Command::new(launcher);
        command
            .args(["--packet", "nothing0", "--addr", "10.78.0.1/24"])
            .args(options);
        command
            .args(["--", "python3", "-c", "print('it runs')"])
            .output()
    };
    let refused = start(&[])?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    if refused.status.code() != Some(127) || !said.contains("nothing0") {
        return Err(format!("{}: {said}", refused.status).into());
    }
    let fallen = start(&["--fallback"])?;
    match fallen.status.success() && fallen.stdout.starts_with(b"it runs") {
        true => Ok(()),
        false => Err("the program does not run with --fallback".into()),
    }
}

/// The ways in which programs are measured: device, and replicas of our stack. The first is the
/// kernel's.
const WAYS: [(&str, Device, Option<&str>); 5] = [
    ("kernel", Device::Packet, None),
    ("packet-1", Device::Packet, Some("1")),
    ("packet-2", Device::Packet, Some("2")),
    ("packet-auto", Device::Packet, Some("auto")),
    ("tap-1", Device::Tap, Some("1")),
];

/// Prints the rates of programs over our stack and over the kernel's, in turn; also as JSON. Each
/// is the better of two runs.
pub(crate) fn rates() -> Result<(), Failed> {
    let mut best: Vec<(&str, [f64; WAYS.len()])> = Vec::new();
    for _ in 0..2 {
        for (way, (_, device, replicas)) in WAYS.into_iter().enumerate() {
            for (index, (name, rate)) in measure(device, replicas)?.into_iter().enumerate() {
                if index == best.len() {
                    best.push((name, [0.0; WAYS.len()]));
                }
                best[index].1[way] = best[index].1[way].max(rate);
            }
        }
    }
    let names = WAYS.map(|(name, ..)| name);
    print!("{:36} {:>12}", "program", names[0]);
    names[1..].iter().for_each(|name| print!(" {name:>19}"));
    println!();
    for (name, rates) in &best {
        print!("{name:36} {:12.2}", rates[0]);
        rates[1..]
            .iter()
            .for_each(|rate| print!(" {rate:12.2} {:6.2}", rate / rates[0]));
        println!();
    }
    let rows = best.iter().map(|(name, rates)| {
        let pairs = names
            .iter()
            .zip(rates)
            .map(|(way, rate)| format!("\"{way}\": {rate:.2}"));
        format!("  \"{name}\": {{{}}}", pairs.collect::<Vec<_>>().join(", "))
    });
    println!("{{\n{}\n}}", rows.collect::<Vec<_>>().join(",\n"));
    Ok(())
}

/// The rates of programs in one way.
fn measure(device: Device, replicas: Option<&str>) -> Result<Vec<(&'static str, f64)>, Failed> {
    let (ends, folder) = (Ends::new(device)?, Folder::new()?);
    let launch = || match replicas {
        Some(replicas) => ends.launcher(&["--replicas", replicas]),
        None => ends.ours.command("env"),
    };
    if replicas.is_none() {
        ends.ours.ip(&format!("addr add {OURS}/24 dev veth0"))?;
    }
    let mut measured = Vec::new();
    let server = Server::start(launch().args(["iperf3", "-s", "--forceflush"]), "listening")?;
    for (name, more) in [
        ("iperf3 receives, Gbit/s", &[][..]),
        ("iperf3 sends, Gbit/s", &["-R"]),
    ] {
        let mut client = ends.peer.command("iperf3");
        let text = run(client.args(["-c", OURS, "-t", "3", "-J"]).args(more))?;
        let sum = text.split("\"sum_received\"").nth(1).unwrap_or_default();
        measured.push((name, number_after(sum, "\"bits_per_second\":")? / 1e9));
    }
    drop(server);
    folder.write("small", b"hello\n")?;
    let server = nginx(launch(), &folder)?;
    for (name, connections) in [
        ("nginx, 1 connection, requests/s", "1"),
        ("nginx, 50 connections, requests/s", "50"),
        ("nginx, 1000 connections, requests/s", "1000"),
    ] {
        let mut client = ends.peer.command("wrk");
        client.args(["-t", "1", "-d", "3", "-c", connections]);
        let text = run(client.arg(format!("http://{OURS}/small")))?;
        measured.push((name, number_after(&text, "Requests/sec:")?));
    }
    drop(server);
    let server = redis(launch())?;
    let mut client = ends.peer.command("redis-benchmark");
    client.args(["-h", OURS, "-n", "50000", "-c", "50", "-t", "get", "--csv"]);
    let text = run(&mut client)?;
    measured.push(("redis, GET, requests/s", number_after(&text, "\"GET\",\"")?));
    drop(server);
    // A gigabyte, compared by SHA-256.
    let (piece, file) = (bytes(1 << 20), folder.0.join("large"));
    let mut large = std::fs::File::create(&file)?;
    (0..1024).try_for_each(|_| large.write_all(&piece))?;
    let sum = run(Command::new("sha256sum").arg(&file))?;
    let sum = sum.split(' ').next().unwrap_or_default();
    let _server = nginx(ends.peer.command("env"), &folder)?;
    for (name, program) in [
        ("curl, 1 GiB, Gbit/s", "curl -sSf --noproxy '*'"),
        ("wget, 1 GiB, Gbit/s", "wget -qO- --no-proxy"),
    ] {
        let words = format!("{program} http://{THEIRS}/large | sha256sum");
        let start = Instant::now();
        let text = run(launch().args(["sh", "-c", &words]))?;
        measured.push((name, 8.0 * 1.073_741_824 / start.elapsed().as_secs_f64()));
        if !text.contains(sum) {
            return Err(format!("{name}: another SHA-256: {text}").into());
        }
    }
    Ok(measured)
}

/// The number after these words.
fn number_after(text: &str, words: &str) -> Result<f64, Failed> {
    let found = text.split(words).nth(1).unwrap_or_default().trim_start();
    let end = found
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(found.len());
    found[..end]
        .parse()
        .map_err(|_| format!("no number after {words}: {text}").into())
}
