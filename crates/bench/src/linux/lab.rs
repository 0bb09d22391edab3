//! Namespaces, interfaces and settings, which all go back when their owners do; and processes in them.

use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddrV4;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::end::{Done, Task};
use super::{Frames, KERNEL, PEER, TAP_PEER};

/// What may go wrong.
pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// How long an end may take beyond what it was asked for.
const PATIENCE: Duration = Duration::from_secs(40);

const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
const CHOSEN: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// A network namespace, with a name that no other process uses.
pub(crate) struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes one, with CUBIC.
    ///
    /// # Errors
    /// Without root, or `ip`.
    pub(crate) fn new(role: &str) -> Outcome<Namespace> {
        let name = format!("dominoes-bench-{}-{role}", std::process::id());
        ip(&format!("netns add {name}"))?;
        let namespace = Namespace { name };
        namespace.ip("link set lo up")?;
        // Neighbour discovery would mix with our frames.
        namespace.shell("echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6 || true")?;
        namespace.shell(&format!("echo cubic > {CHOSEN}"))?;
        Ok(namespace)
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Runs `ip` for it.
    ///
    /// # Errors
    /// Its own.
    pub(crate) fn ip(&self, arguments: &str) -> Outcome<()> {
        ip(&format!("-n {} {arguments}", self.name))
    }

    /// Turns offloads of an interface on or off.
    ///
    /// # Errors
    /// Those of `ethtool`.
    pub(crate) fn offloads(&self, interface: &str, on: bool) -> Outcome<()> {
        // GRO is off on these interfaces by default, and off it stays.
        let to = if on { "on" } else { "off" };
        let arguments = format!("ethtool -K {interface} tso {to} gso {to} gro off");
        self.shell(&arguments)
    }

    fn shell(&self, line: &str) -> Outcome<()> {
        run(self.command("sh").args(["-c", line]))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The interfaces in it go with it.
        if let Err(error) = ip(&format!("netns del {}", self.name)) {
            eprintln!("{} stays: {error}", self.name);
        }
    }
}

/// Whether namespaces, interfaces and settings can be made here; leaves nothing behind.
///
/// # Errors
/// Without a privilege or a program, with its name.
pub(crate) fn can_run() -> Outcome<()> {
    for (program, version) in [("ip", "-V"), ("ethtool", "--version")] {
        run(Command::new(program).arg(version)).map_err(|error| format!("{program}: {error}"))?;
    }
    let _cubic = CubicAllowed::new()?;
    let namespace = Namespace::new("probe")?;
    namespace.ip("link add probe0 type veth peer name probe1")
}

fn ip(arguments: &str) -> Outcome<()> {
    run(Command::new("ip").args(arguments.split(' ')))
}

fn run(command: &mut Command) -> Outcome<()> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?}: {}", said.trim()).into())
}

/// Leave for namespaces to use CUBIC, which only the first one can give.
pub(crate) struct CubicAllowed {
    before: String,
}

impl CubicAllowed {
    /// Adds it to the list.
    ///
    /// # Errors
    /// The list cannot be written.
    pub(crate) fn new() -> Outcome<CubicAllowed> {
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

/// Two namespaces, joined by a veth pair, with a TAP besides.
pub(crate) struct Lab {
    /// Where our end is; the kernel there has an address, too.
    pub(crate) ours: Namespace,
    /// Where the other end is, and the TAP.
    pub(crate) peer: Namespace,
}

impl Lab {
    /// Makes it.
    ///
    /// # Errors
    /// Something is missing.
    pub(crate) fn new() -> Outcome<Lab> {
        let (ours, peer) = (Namespace::new("ours")?, Namespace::new("peer")?);
        let name = peer.name();
        ours.ip(&format!(
            "link add veth0 type veth peer name veth0 netns {name}"
        ))?;
        ours.ip(&format!("addr add {KERNEL}/24 dev veth0"))?;
        peer.ip(&format!("addr add {PEER}/24 dev veth0"))?;
        peer.ip("tuntap add dev tap0 mode tap")?;
        peer.ip(&format!("addr add {TAP_PEER}/24 dev tap0"))?;
        peer.ip("link set tap0 up")?;
        for namespace in [&ours, &peer] {
            namespace.ip("link set veth0 up")?;
        }
        Ok(Lab { ours, peer })
    }

    /// Sets the offloads of all interfaces.
    ///
    /// # Errors
    /// Those of `ethtool`.
    pub(crate) fn frames(&self, frames: Frames) -> Outcome<()> {
        let on = frames == Frames::Large;
        self.ours.offloads("veth0", on)?;
        self.peer.offloads("veth0", on)?;
        self.peer.offloads("tap0", on)
    }
}

/// A process of this program in a namespace. Killed when its owner goes.
pub(crate) struct Process {
    child: Child,
    lines: mpsc::Receiver<String>,
    what: String,
}

impl Process {
    /// Starts this program with these arguments.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start(namespace: &Namespace, arguments: &[&str]) -> Outcome<Process> {
        Process::spawn(namespace.command(&this()?), arguments)
    }

    /// The same, before all processes that are not in real time.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start_first(namespace: &Namespace, arguments: &[&str]) -> Outcome<Process> {
        let mut command = namespace.command("chrt");
        command.args(["--fifo", "1", &this()?]);
        Process::spawn(command, arguments)
    }

    fn spawn(mut command: Command, arguments: &[&str]) -> Outcome<Process> {
        let mut child = command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let out = child.stdout.take();
        let (send, lines) = mpsc::channel();
        thread::spawn(move || {
            let lines = out.into_iter().flat_map(|out| BufReader::new(out).lines());
            // Who does not listen any more has no use for the rest.
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
    ///
    /// # Errors
    /// None comes in time.
    pub(crate) fn line(&self, patience: Duration) -> Outcome<String> {
        let line = self.lines.recv_timeout(patience);
        line.map_err(|_| format!("{} says nothing", self.what).into())
    }

    /// Its standard input; dropping that ends it.
    pub(crate) fn input(&mut self) -> Option<ChildStdin> {
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

/// Both ends of one connection: ours, or the kernel in its place, and the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Both {
    /// The one that connects.
    pub(crate) near: Done,
    /// The one that listens.
    pub(crate) far: Done,
}

/// Runs one connection.
///
/// # Errors
/// An end fails, or does not end.
pub(crate) fn connection(near: (&Namespace, &Task), far: (&Namespace, &Task)) -> Outcome<Both> {
    let patience = PATIENCE + Duration::from_millis(far.1.millis.iter().sum());
    let start = |(namespace, task): (&Namespace, &Task)| {
        Process::start(namespace, &["--end", &serde_json::to_string(task)?])
    };
    let far = start(far)?;
    far.line(PATIENCE)?;
    let near = start(near)?;
    let near_done = serde_json::from_str(&near.line(patience)?)?;
    let far_done = serde_json::from_str(&far.line(patience)?)?;
    Ok(Both {
        near: near_done,
        far: far_done,
    })
}

/// Where the other end listens.
pub(crate) fn server(address: std::net::Ipv4Addr) -> SocketAddrV4 {
    SocketAddrV4::new(address, super::PORT)
}
