//! Network namespaces with a server in them, commands with a deadline, files with their hashes. All that is made here
//! goes with its owner, be it by a panic.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use sha2::{Digest, Sha256};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// After this a server ends by itself, should this program be killed.
const SERVER_SECONDS: &str = "300";
/// How often something is looked at that does not call.
const GLANCE: Duration = Duration::from_millis(2);

/// The address of our stack, and of the kernel that talks to it.
pub(crate) const OURS: &str = "10.78.0.1";
const KERNELS: &str = "10.78.0.2/24";

/// Which device the server uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// A TAP in the namespace of the kernel that is its other end.
    Tap,
    /// One end of a veth pair through a packet socket; the other end is in the peer's namespace.
    Packet,
}

/// A running server and the namespaces around it.
pub(crate) struct Lab {
    server: Server,
    peer: Namespace,
    /// Ours, if it is not the peer's.
    _ours: Option<Namespace>,
    /// What the server serves.
    pub(crate) root: Temporary,
}

impl Lab {
    pub(crate) fn new(device: Device, replicas: usize) -> Result<Lab, Failed> {
        let program = server_program()?;
        let root = Temporary::new()?;
        let peer = Namespace::new("peer")?;
        let (ours, option, interface) = match device {
            Device::Tap => {
                peer.ip("tuntap add dev tap0 mode tap")?;
                (None, "--tap", "tap0")
            }
            Device::Packet => {
                let ours = Namespace::new("ours")?;
                let name = &peer.name;
                ours.ip(&format!("link add veth0 type veth peer name veth0 netns {name}"))?;
                ours.ip("link set veth0 up")?;
                (Some(ours), "--interface", "veth0")
            }
        };
        peer.ip(&format!("addr add {KERNELS} dev {interface}"))?;
        peer.ip(&format!("link set {interface} up"))?;
        let mut command = ours.as_ref().unwrap_or(&peer).command(program);
        command.args([option, interface, "--addr", &format!("{OURS}/24")]);
        command.args(["--replicas", &replicas.to_string(), "--seconds", SERVER_SECONDS]);
        command.arg("--root").arg(&root.0);
        let server = Server::start(command)?;
        // The interface of a TAP carries frames once its other end is open, and a moment later says so.
        peer.wait_until_running(interface)?;
        Ok(Lab { server, peer, _ours: ours, root })
    }

    /// Runs a command where the peer is, and returns what it prints.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> Result<String, Failed> {
        self.start(program, arguments)?.finish()
    }

    /// Starts a command where the peer is.
    pub(crate) fn start(&self, program: &str, arguments: &[&str]) -> Result<Running, Failed> {
        let mut command = self.peer.command(program);
        command.args(arguments);
        Running::start(command)
    }

    /// What the server said, for a failure.
    pub(crate) fn explain(&mut self, failed: Failed) -> Failed {
        let mut text = failed.message().unwrap_or("failed").to_owned();
        let said = self.server.said.lock().unwrap_or_else(PoisonError::into_inner);
        let state = match self.server.child.try_wait() {
            Ok(None) => "runs".to_owned(),
            Ok(Some(status)) => format!("ended with {status}"),
            Err(error) => error.to_string(),
        };
        let _ = write!(text, "\nthe server {state}, and said:\n{said}");
        text.into()
    }

    /// Which congestion control the kernel uses, that is for uploads.
    pub(crate) fn congestion_control(&self) -> String {
        let path = "/proc/sys/net/ipv4/tcp_congestion_control";
        let said = self.run("cat", &[path]).unwrap_or_default();
        said.trim().to_owned()
    }
}

// Namespaces ---------------------------------------------------------------------------------------------------------

/// A network namespace, with a name that no other process uses.
pub(crate) struct Namespace {
    name: String,
}

impl Namespace {
    pub(crate) fn new(role: &str) -> Result<Namespace, Failed> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Relaxed));
        let name = format!("dominoes-{process}-{number}-{role}");
        ip(&format!("netns add {name}"))?;
        let namespace = Namespace { name };
        namespace.ip("link set lo up")?;
        // Neighbour discovery of the kernel would mix with our frames.
        let quiet = "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6 || true";
        let mut command = namespace.command("sh");
        command.args(["-c", quiet]);
        Running::start(command)?.finish()?;
        Ok(namespace)
    }

    /// Runs `ip` for this namespace.
    pub(crate) fn ip(&self, arguments: &str) -> Result<String, Failed> {
        ip(&format!("-n {} {arguments}", self.name))
    }

    /// A command to be run in this namespace, under its own process number.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    fn wait_until_running(&self, interface: &str) -> Result<(), Failed> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let line = self.ip(&format!("-o link show dev {interface}"))?;
            if line.contains(" state UP ") {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("it does not come up: {line}").into());
            }
            thread::sleep(GLANCE);
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The interfaces in it go with it.
        if let Err(failed) = ip(&format!("netns del {}", self.name)) {
            eprintln!("{} stays: {}", self.name, failed.message().unwrap_or_default());
        }
    }
}

/// Runs `ip`, and returns what it prints.
fn ip(arguments: &str) -> Result<String, Failed> {
    let mut command = Command::new("ip");
    command.args(arguments.split(' '));
    Running::start(command)?.finish()
}

// Processes ----------------------------------------------------------------------------------------------------------

/// A command with a deadline, which is killed when nobody waits for it any more.
pub(crate) struct Running {
    /// What it is, for messages.
    what: String,
    child: Child,
    deadline: Instant,
    said: [thread::JoinHandle<String>; 2],
}

impl Running {
    fn start(mut command: Command) -> Result<Running, Failed> {
        let what = format!("{command:?}").replace('"', "");
        let spawned = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = spawned.map_err(|error| format!("{what}: {error}"))?;
        let said = [collect(child.stdout.take()), collect(child.stderr.take())];
        Ok(Running { what, child, deadline: Instant::now() + PATIENCE, said })
    }

    /// Waits until it ends, and returns what it printed. A failure holds what it complained about.
    pub(crate) fn finish(mut self) -> Result<String, Failed> {
        let status = loop {
            match self.child.try_wait()? {
                Some(status) => break status.to_string(),
                None if Instant::now() < self.deadline => thread::sleep(GLANCE),
                None => break format!("killed after {} s", PATIENCE.as_secs()),
            }
        };
        end(&mut self.child);
        let [out, err] = self.said.map(|thread| thread.join().unwrap_or_default());
        if status == "exit status: 0" {
            return Ok(out);
        }
        Err(format!("{}: {status}\n{out}{err}", self.what).into())
    }
}

