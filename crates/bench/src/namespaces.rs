//! Network namespaces, settings that go back when their owners do, and processes in them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

pub use dominoes_testkit::programs::{Namespace, Outcome, resident, run};

const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
const CHOSEN: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// A network namespace with CUBIC.
pub fn namespace(role: &str) -> Outcome<Namespace> {
    let namespace = Namespace::new(role)?;
    namespace.shell(&format!("echo cubic > {CHOSEN}"))?;
    Ok(namespace)
}

/// Turns offloads of an interface on or off.
pub fn offloads(namespace: &Namespace, interface: &str, on: bool) -> Outcome<()> {
    // GRO is off on these interfaces by default, and off it stays.
    let to = if on { "on" } else { "off" };
    namespace.shell(&format!("ethtool -K {interface} tso {to} gso {to} gro off"))
}

/// Whether namespaces, veth pairs and TAPs can be made here, and these programs started; leaves
/// nothing.
///
/// # Errors
/// Without a privilege or a program, with its name.
pub fn can_run(programs: &[&str]) -> Outcome<()> {
    for program in programs {
        // Each ends at once; not all succeed.
        let started = Command::new(program)
            .arg("-V")
            .stdin(Stdio::null())
            .output();
        started.map_err(|error| format!("{program}: {error}"))?;
    }
    let _cubic = CubicAllowed::new()?;
    let namespace = namespace("probe")?;
    namespace.ip("link add probe0 type veth peer name probe1")?;
    namespace.ip("tuntap add dev probe2 mode tap").map(drop)
}

/// Two namespaces that a veth pair joins, `veth0` in each, with these addresses; their interfaces
/// are up.
pub fn pair(roles: [&str; 2], addresses: [Ipv4Addr; 2]) -> Outcome<[Namespace; 2]> {
    let both = [namespace(roles[0])?, namespace(roles[1])?];
    both[0].join(&both[1], "veth0")?;
    for (namespace, address) in both.iter().zip(addresses) {
        namespace.ip(&format!("addr add {address}/24 dev veth0"))?;
        namespace.ip("link set veth0 up")?;
    }
    Ok(both)
}

/// `USER_HZ`, on every architecture with a `/proc` (proc(5)).
pub const TICK_NANOS: u64 = 10_000_000;

/// The work of all cores since the machine began, as `/proc/stat` has it: without waiting and what
/// a host took away.
pub fn machine_nanos() -> u64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let words = text.lines().next().unwrap_or_default().split_whitespace();
    let ticks: Vec<u64> = words.skip(1).map_while(|word| word.parse().ok()).collect();
    match ticks[..] {
        [user, nice, system, _idle, _iowait, irq, softirq, ..] => {
            (user + nice + system + irq + softirq) * TICK_NANOS
        }
        _ => 0,
    }
}

/// The requests in a second that `wrk` reports, if it does.
pub fn requests_per_second(said: &str) -> Option<f64> {
    let rate = said
        .lines()
        .find_map(|line| line.strip_prefix("Requests/sec:"));
    rate?.trim().parse().ok()
}

/// Leave for namespaces to use CUBIC, which only the first one can give.
#[derive(Debug)]
pub struct CubicAllowed {
    before: String,
}

impl CubicAllowed {
    /// Adds it to the list.
    pub fn new() -> Outcome<CubicAllowed> {
        let before = fs::read_to_string(ALLOWED)?.trim().to_owned();
        if !before.split(' ').any(|name| name == "cubic") {
            fs::write(ALLOWED, format!("{before} cubic"))
                .map_err(|error| format!("cannot allow CUBIC: {error}"))?;
        }
        Ok(CubicAllowed { before })
    }
}

impl Drop for CubicAllowed {
    fn drop(&mut self) {
        if let Err(error) = fs::write(ALLOWED, &self.before) {
            eprintln!(
                "{ALLOWED} was `{}` and stays otherwise: {error}",
                self.before
            );
        }
    }
}

/// A process in a namespace. Killed when its owner goes.
#[derive(Debug)]
pub struct Process {
    child: Child,
    lines: mpsc::Receiver<String>,
    what: String,
}

impl Process {
    /// Starts this program with these arguments.
    pub fn start(namespace: &Namespace, arguments: &[&str]) -> Outcome<Process> {
        Process::spawn(namespace.command(&this()?), arguments)
    }

    /// The same, before all processes that are not in real time.
    pub fn start_first(namespace: &Namespace, arguments: &[&str]) -> Outcome<Process> {
        let mut command = namespace.command("chrt");
        command.args(["--fifo", "1", &this()?]);
        Process::spawn(command, arguments)
    }

    /// Starts `command`, of another program perhaps, with these arguments.
    pub fn spawn(mut command: Command, arguments: &[&str]) -> Outcome<Process> {
        let mut child = command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let out = child.stdout.take();
        let (send, lines) = mpsc::channel();
        thread::spawn(move || {
            let lines = out.into_iter().flat_map(|out| BufReader::new(out).lines());
            // A receiver that is gone has no use for the rest.
            for line in lines.map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        let what = format!("{command:?}");
        Ok(Process { child, lines, what })
    }

    /// The next line that it prints.
    pub fn line(&self, patience: Duration) -> Outcome<String> {
        let line = self.lines.recv_timeout(patience);
        line.map_err(|_| format!("{} says nothing", self.what).into())
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its standard input; dropping that ends it.
    pub fn input(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }
}

/// This program.
fn this() -> Outcome<String> {
    Ok(std::env::current_exe()?.display().to_string())
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails if it has ended, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
