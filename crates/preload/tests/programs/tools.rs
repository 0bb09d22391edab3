//! Programs that others wrote, and small ones in Python.

use std::path::Path;
use std::process::Command;

use libtest_mimic::Failed;
use sha2::{Digest, Sha256};

use crate::fixture::{Device, Folder, OURS, Program, THEIRS, ends, launcher, run};

/// A test: its name, the programs it needs, and its function.
pub(crate) type Test = (
    &'static str,
    &'static [&'static str],
    fn() -> Result<(), Failed>,
);

/// Tests whose names are those of their functions.
macro_rules! tests {
    ($($test:ident: $($tool:literal)*;)*) => {
        &[$((stringify!($test), &[$($tool),*], $test)),*]
    };
}

pub(crate) use tests;

pub(crate) const ALL: &[Test] = tests! {
    iperf3_runs_both_ways_as_client: "iperf3";
    iperf3_runs_both_ways_as_server: "iperf3";
    curl_gets_a_file: "curl" "python3";
    python_serves_a_file: "curl" "python3";
    nc_sends_a_line: "nc";
    nginx_answers_many_requests: "nginx" "curl";
    redis_answers_its_benchmark: "redis-server" "redis-benchmark";
    a_forked_child_learns_that_the_network_is_down: "python3";
    a_child_of_many_threads_does_not_wait_for_their_locks: "python3";
};

/// Adds arguments that contain no spaces.
pub(crate) fn words<'a>(command: &'a mut Command, line: &str) -> &'a mut Command {
    command.args(line.split_whitespace())
}

/// Bytes that do not repeat soon.
pub(crate) fn bytes(len: usize) -> Vec<u8> {
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
pub(crate) fn had_ours(text: &str) -> Result<(), Failed> {
    match text.contains("sockets used Dominoes") && !text.contains(" 0 sockets used") {
        true => Ok(()),
        false => Err(format!("no socket used Dominoes: {text}").into()),
    }
}

fn iperf3_runs_both_ways_as_client() -> Result<(), Failed> {
    for device in [Device::Tap, Device::Packet] {
        let ends = ends(device)?;
        let _server = Program::serve(
            ends.peer.command("iperf3").args(["-s", "--forceflush"]),
            "listening",
        )?;
        for more in [&[][..], &["-R"], &["-P", "4"]] {
            let mut client = launcher(&ends, &[]);
            client
                .args(["iperf3", "-c", THEIRS, "-n", "30M"])
                .args(more);
            had_ours(&run(client.args(["--logfile", "/dev/stderr"]))?)?;
        }
    }
    Ok(())
}

fn iperf3_runs_both_ways_as_server() -> Result<(), Failed> {
    let ends = ends(Device::Packet)?;
    let server = Program::serve(
        launcher(&ends, &["--replicas", "2"]).args(["iperf3", "-s", "--forceflush"]),
        "listening",
    )?;
    // With datagrams, the server connects one socket to the client, and binds the next to its port.
    for more in ["", "-R", "-P 4", "-u -b 100M", "-u -b 100M -R -P 2"] {
        let mut client = ends.peer.command("iperf3");
        run(words(&mut client, &format!("-c {OURS} -n 30M {more}")))?;
    }
    had_ours(&server.stop()?)
}

fn curl_gets_a_file() -> Result<(), Failed> {
    let (ends, folder) = (ends(Device::Tap)?, Folder::new()?);
    let sent = bytes(100 << 20);
    folder.write("sent", &sent)?;
    let mut server = ends.peer.command("python3");
    server
        .args(["-u", "-m", "http.server", "8000", "--directory"])
        .arg(&folder.0);
    let _server = Program::serve(&mut server, "Serving")?;
    let got = folder.0.join("got");
    let mut client = launcher(&ends, &[]);
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
    let (ends, folder) = (ends(Device::Tap)?, Folder::new()?);
    let sent = bytes(20 << 20);
    folder.write("sent", &sent)?;
    let mut server = launcher(&ends, &[]);
    server
        .args(["python3", "-u", "-m", "http.server", "8000", "--directory"])
        .arg(&folder.0);
    let server = Program::serve(&mut server, "Serving")?;
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
    let ends = ends(Device::Tap)?;
    let server = Program::serve(
        launcher(&ends, &[]).args(["nc", "-n", "-v", "-l", "-p", "9000"]),
        "istening",
    )?;
    let words = format!("echo a line | nc -N {OURS} 9000");
    run(ends.peer.command("sh").args(["-c", &words]))?;
    let text = server.finish_all(false)?;
    had_ours(&text)?;
    match text.contains("a line") {
        true => Ok(()),
        false => Err(format!("no line: {text}").into()),
    }
}

/// Starts nginx with one process; `launch` runs it, and `more` are further directives.
pub(crate) fn nginx(mut launch: Command, folder: &Folder, more: &str) -> Result<Program, Failed> {
    let root = folder.0.display();
    let settings = format!(
        "daemon off; master_process off; pid {root}/pid; error_log stderr notice;
         events {{ worker_connections 2048; }}
         http {{ access_log off; sendfile on; keepalive_requests 1000000;
                 client_body_temp_path {root}/a; proxy_temp_path {root}/b;
                 fastcgi_temp_path {root}/c; uwsgi_temp_path {root}/d; scgi_temp_path {root}/e;
                 server {{ listen 80; root {root}; {more} }} }}"
    );
    let file = folder.write("nginx.conf", settings.as_bytes())?;
    launch
        .args(["nginx", "-c"])
        .arg(file)
        .args(["-p"])
        .arg(&folder.0);
    // The last line that it prints before it serves.
    Ok(Program::serve(&mut launch, "getrlimit")?)
}

fn nginx_answers_many_requests() -> Result<(), Failed> {
    let (ends, folder) = (ends(Device::Packet)?, Folder::new()?);
    let sent = bytes(5 << 20);
    folder.write("sent", &sent)?;
    folder.write("small", b"hello\n")?;
    let server = nginx(launcher(&ends, &[]), &folder, "")?;
    let got = folder.0.join("got");
    let mut client = ends.peer.command("curl");
    words(
        &mut client,
        "-sSf --noproxy * --retry-connrefused --retry 9 -o",
    );
    run(client.arg(&got).arg(format!("http://{OURS}/sent")))?;
    same(&sent, &got)?;
    let mut client = ends.peer.command("curl");
    client.args(["-sSf", "--noproxy", "*", "--parallel", "-o", "/dev/null"]);
    run(client.arg(format!("http://{OURS}/small?[1-2000]")))?;
    had_ours(&server.stop()?)
}

fn redis_answers_its_benchmark() -> Result<(), Failed> {
    let ends = ends(Device::Packet)?;
    let server = redis(launcher(&ends, &[]))?;
    let mut client = ends.peer.command("redis-benchmark");
    let line = format!("-h {OURS} -n 5000 -c 30 -t ping,set,get,lpush -q");
    run(words(&mut client, &line))?;
    had_ours(&server.stop()?)
}

pub(crate) fn redis(mut launch: Command) -> Result<Program, Failed> {
    words(&mut launch, "redis-server --port 6379 --protected-mode no");
    Ok(Program::serve(
        launch.args(["--save", ""]),
        "Ready to accept",
    )?)
}

fn a_forked_child_learns_that_the_network_is_down() -> Result<(), Failed> {
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
    let (ends, folder) = (ends(Device::Tap)?, Folder::new()?);
    let mut server = ends.peer.command("python3");
    server
        .args(["-u", "-m", "http.server", "8000", "--directory"])
        .arg(&folder.0);
    let _server = Program::serve(&mut server, "Serving")?;
    let text = run(launcher(&ends, &[]).args(["python3", "-c", PROGRAM, THEIRS]))?;
    had_ours(&text)?;
    match text.contains("passed") {
        true => Ok(()),
        false => Err(text.into()),
    }
}

/// Other threads use sockets whenever the process forks, so their locks are often taken then. The
/// child closes all descriptors before its `exec`.
fn a_child_of_many_threads_does_not_wait_for_their_locks() -> Result<(), Failed> {
    const PROGRAM: &str = "
import os, socket, subprocess, threading
server = socket.create_server(('127.0.0.1', 0))
def answer():
    while True:
        stream, _ = server.accept()
        while stream.recv(100):
            pass
        stream.close()
def ask():
    while True:
        with socket.create_connection(server.getsockname()) as stream:
            os.close(os.dup(stream.fileno()))
            for _ in range(20):
                stream.send(b'x' * 100)
for work in [answer, ask, ask]:
    threading.Thread(target=work, daemon=True).start()
for _ in range(60):
    subprocess.run(['/bin/true'], preexec_fn=lambda: None, check=True)
print('passed', flush=True)
os._exit(0)
";
    let ends = ends(Device::Packet)?;
    let text = run(launcher(&ends, &["--loopback"]).args(["python3", "-c", PROGRAM]))?;
    had_ours(&text)?;
    match text.contains("passed") {
        true => Ok(()),
        false => Err(text.into()),
    }
}
