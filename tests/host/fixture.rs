//! Network namespaces with a server in them, commands with a deadline, and files with hashes. Each
//! value removes on drop whatever it made, also after a panic.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use dominoes_testkit::Rng;
use libtest_mimic::Failed;
use sha2::{Digest, Sha256};

/// Longer than any command takes on a busy machine, except transfers that `HOST_BYTES` makes long.
const PATIENCE: Duration = Duration::from_secs(120);
/// A lower bound of any transfer's speed on a busy machine, in bytes per second.
const SLOWEST: u64 = 4_000_000;
/// Run time after which a server ends by itself, in case this program is killed. It grows by
/// `TRANSFERS` times [`longer`].
const SERVED: Duration = Duration::from_secs(600);
const TRANSFERS: u32 = 8;
/// Interval of polling.
const GLANCE: Duration = Duration::from_millis(2);

/// The bytes of a file that `HOST_BYTES` asks for, if set.
pub(crate) fn host_bytes() -> Result<Option<u64>, Failed> {
    match std::env::var("HOST_BYTES") {
        Ok(text) => Ok(Some(text.parse()?)),
        Err(_) => Ok(None),
    }
}

/// The time that `HOST_BYTES` adds to a transfer. A value that is not a number counts as 0 here;
/// the tests that use it report the error.
fn longer() -> Duration {
    let bytes = host_bytes().ok().flatten().unwrap_or(0);
    Duration::from_secs(bytes / SLOWEST)
}

/// Longer than any command takes on a busy machine.
pub(crate) fn patience() -> Duration {
    PATIENCE + longer()
}

/// Arguments of the servers over TCP.
fn common() -> [&'static str; 4] {
    static SECONDS: LazyLock<String> =
        LazyLock::new(|| (SERVED + TRANSFERS * longer()).as_secs().to_string());
    ["--addr", "10.78.0.1/24", "--seconds", &SECONDS]
}

/// The addresses of our stack, and of the kernel at the other end.
pub(crate) const OURS: &str = "10.78.0.1";
pub(crate) const THEIRS: &str = "10.78.0.2";
const KERNELS: &str = "10.78.0.2/24";
/// A second address of our stack, and one that the kernel may have in its network.
pub(crate) const OURS_ALSO: &str = "10.78.1.1";
pub(crate) const THEIRS_ALSO: &str = "10.78.1.2/24";
/// Our IPv6 address, and the kernel's.
pub(crate) const OURS_V6: &str = "fd00:78::1";
pub(crate) const KERNELS_V6: &str = "fd00:78::2";

/// The second interface at either end, and our addresses there.
const SECOND: &str = "second0";
pub(crate) const OURS_SECOND: &str = "10.79.0.1";
pub(crate) const OURS_SECOND_V6: &str = "fd00:79::1";

/// The IPv4 and the IPv6 group that a server over IPv6 joins, to echo their datagrams.
pub(crate) const GROUP: &str = "239.78.0.7";
pub(crate) const GROUP_V6: &str = "ff12::78:7";

/// The kind of device that the server uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// A TAP; the kernel in the same namespace is its other end.
    Tap,
    /// The same for a TUN.
    Tun,
    /// One end of a veth pair through a packet socket; the other end is in the peer's namespace.
    Packet,
    /// Like `Packet`, through AF_XDP, which needs a peer that computes checksums.
    Xdp,
}

impl Device {
    /// The name of the interface at either end.
    pub(crate) fn interface(self) -> &'static str {
        match self {
            Device::Tap => "tap0",
            Device::Tun => "tun0",
            Device::Packet | Device::Xdp => "veth0",
        }
    }

    /// The option with which the examples take the name of this interface.
    pub(crate) fn option(self) -> &'static str {
        match self {
            Device::Tap => "--tap",
            Device::Tun => "--tun",
            Device::Packet => "--packet",
            Device::Xdp => "--xdp",
        }
    }
}

/// The namespaces at both ends of a device, without a server of ours.
pub(crate) struct Ends {
    peer: Namespace,
    /// Our namespace, if it differs from the peer's.
    ours: Option<Namespace>,
    device: Device,
}

impl Ends {
    pub(crate) fn new(device: Device) -> Result<Ends, Failed> {
        Ends::with_queues(device, false)
    }

    /// As [`Ends::new`]; a TAP or TUN is for `several` queues, or for one.
    fn with_queues(device: Device, several: bool) -> Result<Ends, Failed> {
        let peer = Namespace::new("peer")?;
        let interface = device.interface();
        let ours = match device {
            Device::Tap | Device::Tun => {
                let mode = device.option().trim_start_matches('-');
                let queues = if several { " multi_queue" } else { "" };
                peer.ip(&format!("tuntap add dev {interface} mode {mode}{queues}"))?;
                None
            }
            Device::Packet | Device::Xdp => {
                let ours = Namespace::new("ours")?;
                let name = &peer.name;
                ours.ip(&format!(
                    "link add {interface} type veth peer name {interface} netns {name}"
                ))?;
                ours.ip(&format!("link set {interface} up"))?;
                Some(ours)
            }
        };
        peer.ip(&format!("addr add {KERNELS} dev {interface}"))?;
        peer.ip(&format!("link set {interface} up"))?;
        if device == Device::Xdp {
            let mut command = peer.command("ethtool");
            command.args(["-K", interface, "tx", "off"]);
            Running::start(command)?.finish()?;
        }
        Ok(Ends { peer, ours, device })
    }

    /// The peer's namespace.
    pub(crate) fn peer(&self) -> &Namespace {
        &self.peer
    }

    /// The name of the interface at either end.
    pub(crate) fn interface(&self) -> &'static str {
        self.device.interface()
    }

    /// A command that runs in our namespace.
    pub(crate) fn our_command(&self, program: &Path) -> Command {
        self.ours.as_ref().unwrap_or(&self.peer).command(program)
    }

    /// Runs the example `https_get` and returns its output on both streams.
    pub(crate) fn https_get(&self, arguments: &[&str]) -> Result<String, Failed> {
        let mut command = self.our_command(server_program("https_get", &HTTPS_GET)?);
        let option = [self.device.option(), self.device.interface()];
        command.args([&option, &["--addr", "10.78.0.1/24"], arguments].concat());
        Dialogue::start(command)?.finish()
    }

    /// Runs the example `ping` with an address of each family and returns its output.
    pub(crate) fn ping(&self, arguments: &[&str]) -> Result<String, Failed> {
        let mut command = self.our_command(server_program("ping", &PING)?);
        let option = [self.device.option(), self.device.interface()];
        let ours = format!("{OURS_V6}/64");
        let addresses = ["--addr", "10.78.0.1/24", "--addr6", &ours];
        command.args([&option[..], &addresses, arguments].concat());
        Running::start(command)?.finish()
    }

    /// Runs the example `ping` with the addresses that the network gives, and returns its output.
    pub(crate) fn ping_from_lease(&self, hosts: &[&str]) -> Result<String, Failed> {
        let mut command = self.our_command(server_program("ping", &PING)?);
        let option = [self.device.option(), self.device.interface()];
        let addresses = ["--addr", "dhcp", "--addr6", "auto", "--count", "3"];
        command.args([&option[..], &addresses, hosts].concat());
        Running::start(command)?.finish()
    }

    /// Starts a command in the peer's namespace.
    pub(crate) fn speak(&self, program: &str, arguments: &[&str]) -> Result<Dialogue, Failed> {
        let mut command = self.peer.command(program);
        command.args(arguments);
        Dialogue::start(command)
    }
}

/// A running server and the namespaces around it.
pub(crate) struct Fixture {
    server: Server,
    /// The process that advertises a prefix, if any.
    router: Option<Running>,
    pub(crate) peer: Namespace,
    /// Our namespace, if it differs from the peer's.
    _ours: Option<Namespace>,
    /// The folder that the server serves.
    pub(crate) root: Temporary,
    /// The kernel's interface.
    pub(crate) interface: &'static str,
    /// The number of lines that the server prints without errors; `None`: any number.
    lines: Option<usize>,
}

impl Fixture {
    /// The example `http_server`.
    pub(crate) fn new(device: Device, replicas: usize) -> Result<Fixture, Failed> {
        let root = Temporary::new()?;
        let replicas = replicas.to_string();
        let folder = root.file("");
        let arguments = ["--replicas", &replicas, "--root", &folder];
        let option = device.option();
        let program = server_program("http_server", &HTTP_SERVER)?;
        let arguments = [&[option, device.interface()][..], &common()[..], &arguments].concat();
        Fixture::start_server(device, program, &arguments, root, Some(1), |_| Ok(()))
    }

    /// The example `ingest`. It writes each upload to `taken` in its folder, and counts the lines
    /// of `strings` there.
    pub(crate) fn ingest(device: Device, arguments: &[&str]) -> Result<Fixture, Failed> {
        let root = Temporary::new()?;
        crate::ingest::write_file(&root)?;
        let [taken, strings] = ["taken", "strings"].map(|name| root.file(name));
        let program = server_program("ingest", &INGEST)?;
        let own = ["--to", &taken, "--strings", &strings];
        let option = [device.option(), device.interface()];
        let arguments = [&option[..], &common()[..], &own, arguments].concat();
        Fixture::start_server(device, program, &arguments, root, None, |_| Ok(()))
    }

    /// The example `services`.
    pub(crate) fn services(device: Device, arguments: &[&str]) -> Result<Fixture, Failed> {
        Fixture::services_after(device, arguments, |_| Ok(()))
    }

    /// The example `services`, with an IPv6 address at both ends.
    pub(crate) fn services_v6(device: Device, arguments: &[&str]) -> Result<Fixture, Failed> {
        let ours = format!("{OURS_V6}/64");
        let own = ["--addr6", &ours, "--join", GROUP, "--join", GROUP_V6];
        let arguments = [&own, arguments].concat();
        Fixture::services_after(device, &arguments, |peer| {
            let interface = device.interface();
            peer.enable_v6(interface)?;
            peer.ip(&format!("addr add {KERNELS_V6}/64 dev {interface} nodad"))?;
            Ok(())
        })
    }

    /// The example `services` in a network with `radvd`, which assigns the server's address.
    /// `settings` are the ones of `radvd`.
    pub(crate) fn services_behind_radvd(settings: &str) -> Result<Fixture, Failed> {
        let device = Device::Packet;
        let root = Temporary::new()?;
        let (file, id) = (root.file("radvd.conf"), root.file("radvd.pid"));
        fs::write(&file, settings)?;
        let mut router = None;
        let mut fixture = Fixture::services_after(device, &["--addr6", "auto"], |peer| {
            peer.enable_v6(device.interface())?;
            // `radvd` advertises only where the kernel forwards packets.
            peer.write("/proc/sys/net/ipv6/conf/all/forwarding", "1")?;
            let mut command = peer.command("radvd");
            command.args(["--nodaemon", "--logmethod", "stderr"]);
            command.args(["--config", &file, "--pidfile", &id]);
            router = Some(Running::start(command)?);
            Ok(())
        })?;
        (fixture.router, fixture.root) = (router, root);
        Ok(fixture)
    }

    /// The example `services` with an address of either family at each of two interfaces. One
    /// network is in the peer's namespace, the other in `far`.
    pub(crate) fn services_at_two(device: Device, far: &Namespace) -> Result<Fixture, Failed> {
        let ends = Ends::new(device)?;
        let interface = device.interface();
        let second = match (device, &ends.ours) {
            (Device::Tap, _) | (_, None) => {
                // Moves to `far` once the server has opened the other end.
                ends.peer.ip(&format!("tuntap add dev {SECOND} mode tap"))?;
                &ends.peer
            }
            (_, Some(ours)) => {
                let name = &far.name;
                ours.ip(&format!(
                    "link add {SECOND} type veth peer name {SECOND} netns {name}"
                ))?;
                ours.ip(&format!("link set {SECOND} up"))?;
                far
            }
        };
        let program = server_program("services", &SERVICES)?;
        let (v6, own) = (
            format!("{OURS_V6}/64"),
            format!("{SECOND},{OURS_SECOND}/24,{OURS_SECOND_V6}/64"),
        );
        let arguments = [
            &[device.option(), interface, "--addr6", &v6, "--second", &own][..],
            &common()[..],
        ]
        .concat();
        for (namespace, interface, addresses) in [
            (&ends.peer, interface, [None, Some(KERNELS_V6)]),
            (second, SECOND, [Some("10.79.0.2"), Some("fd00:79::2")]),
        ] {
            namespace.enable_v6(interface)?;
            for (address, prefix) in addresses.into_iter().zip([24, 64]) {
                let Some(address) = address else {
                    continue;
                };
                let nodad = if prefix == 64 { " nodad" } else { "" };
                namespace.ip(&format!(
                    "addr add {address}/{prefix} dev {interface}{nodad}"
                ))?;
            }
            namespace.ip(&format!("link set {interface} up"))?;
        }
        let root = Temporary::new()?;
        Fixture::start_between(ends, program, &arguments, root, None, |_| Ok(()))
    }

    /// The example `services`, started after `prepare` has set up the network.
    fn services_after(
        device: Device,
        arguments: &[&str],
        prepare: impl FnOnce(&Namespace) -> Result<(), Failed>,
    ) -> Result<Fixture, Failed> {
        let program = server_program("services", &SERVICES)?;
        let option = [device.option(), device.interface()];
        let arguments = [&option[..], &common()[..], arguments].concat();
        Fixture::start_server(
            device,
            program,
            &arguments,
            Temporary::new()?,
            None,
            prepare,
        )
    }

    /// The example `https_server`. Its certificate is `ca.pem` in the folder that it serves.
    pub(crate) fn https(device: Device, arguments: &[&str]) -> Result<Fixture, Failed> {
        let root = Temporary::new()?;
        let [folder, ca] = ["", "ca.pem"].map(|name| root.file(name));
        let program = server_program("https_server", &HTTPS_SERVER)?;
        let served = ["--root", &folder, "--save-certificate", &ca];
        let option = [device.option(), device.interface()];
        let lines = (!arguments.contains(&"--kill-every")).then_some(1);
        let arguments = [&option[..], &common()[..], &served, arguments].concat();
        Fixture::start_server(device, program, &arguments, root, lines, |_| Ok(()))
    }

    /// The example `udp_echo`, over a TAP.
    pub(crate) fn udp_echo() -> Result<Fixture, Failed> {
        let program = server_program("udp_echo", &UDP_ECHO)?;
        let arguments = ["--tap", Device::Tap.interface()];
        let root = Temporary::new()?;
        Fixture::start_server(Device::Tap, program, &arguments, root, Some(1), |_| Ok(()))
    }

    fn start_server(
        device: Device,
        program: &Path,
        arguments: &[&str],
        root: Temporary,
        lines: Option<usize>,
        prepare: impl FnOnce(&Namespace) -> Result<(), Failed>,
    ) -> Result<Fixture, Failed> {
        let ends = Ends::with_queues(device, arguments.contains(&"--queues"))?;
        Fixture::start_between(ends, program, arguments, root, lines, prepare)
    }

    fn start_between(
        ends: Ends,
        program: &Path,
        arguments: &[&str],
        root: Temporary,
        lines: Option<usize>,
        prepare: impl FnOnce(&Namespace) -> Result<(), Failed>,
    ) -> Result<Fixture, Failed> {
        prepare(&ends.peer)?;
        let mut command = ends.our_command(program);
        command.args(arguments);
        let server = Server::start(command)?;
        // The interface of a TAP can carry frames once the server has opened it, and the kernel
        // reports this a little later.
        let interface = ends.interface();
        ends.peer.wait_until_running(interface)?;
        Ok(Fixture {
            server,
            router: None,
            peer: ends.peer,
            _ours: ends.ours,
            root,
            interface,
            lines,
        })
    }

    /// Runs a command in the peer's namespace and returns its output.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> Result<String, Failed> {
        self.start(program, arguments)?.finish()
    }

    /// Starts a command in the peer's namespace.
    pub(crate) fn start(&self, program: &str, arguments: &[&str]) -> Result<Running, Failed> {
        let mut command = self.peer.command(program);
        command.args(arguments);
        Running::start(command)
    }

    /// Starts a command in the peer's namespace that gets input while it runs.
    pub(crate) fn speak(&self, program: &str, arguments: &[&str]) -> Result<Dialogue, Failed> {
        let mut command = self.peer.command(program);
        command.args(arguments);
        Dialogue::start(command)
    }

    /// Fails if the server has ended or printed an error: about its device, a divergence, or a
    /// panic.
    pub(crate) fn check(&mut self) -> Result<(), Failed> {
        let said = self.server.said().lines().count();
        let complained = self.lines.is_some_and(|lines| said > lines);
        match self.server.process.0.try_wait()? {
            None if !complained => Ok(()),
            _ => Err("the server has something to say".into()),
        }
    }

    /// Runs `ip` in the peer's namespace.
    pub(crate) fn ip(&self, arguments: &str) -> Result<String, Failed> {
        self.peer.ip(arguments)
    }

    /// Gives the peer's kernel another address.
    pub(crate) fn add_address(&self, address: &str) -> Result<(), Failed> {
        self.peer.ip(&format!("addr add {address} dev lo"))?;
        Ok(())
    }

    /// The process number of the server.
    pub(crate) fn server_id(&self) -> u32 {
        self.server.process.0.id()
    }

    /// Waits until the server ends by itself, and returns its status. Fails if that takes longer
    /// than `patience`.
    pub(crate) fn wait_for_end(&mut self, patience: Duration) -> Result<ExitStatus, Failed> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.server.process.0.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                return Err(format!("the server does not end within {patience:?}").into());
            }
            thread::sleep(GLANCE);
        }
    }

    /// The server's output so far.
    pub(crate) fn said(&self) -> String {
        self.server.said().clone()
    }

    /// Bytes of the server's resident memory.
    pub(crate) fn server_memory(&self) -> Result<u64, Failed> {
        self.server.memory()
    }

    /// Processor time of all threads of the server.
    pub(crate) fn server_cpu(&self) -> Result<Duration, Failed> {
        cpu_time(&self.server.process.0.id().to_string())
    }

    /// A failure with the server's output.
    pub(crate) fn explain(&mut self, failed: &Failed) -> Failed {
        self.server.explain(failed.message().unwrap_or("failed"))
    }

    /// The congestion control of the kernel, which applies to uploads.
    pub(crate) fn congestion_control(&self) -> String {
        let path = "/proc/sys/net/ipv4/tcp_congestion_control";
        let said = self.run("cat", &[path]).unwrap_or_default();
        said.trim().to_owned()
    }
}

/// Processor time of all threads of a process, user and system, in ticks of 10 ms (proc(5)).
pub(crate) fn cpu_time(process: &str) -> Result<Duration, Failed> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let (_, fields) = stat.rsplit_once(')').ok_or("no processor time")?;
    let ticks = fields.split_whitespace().skip(11).take(2);
    let sum: u64 = ticks.map_while(|ticks| ticks.parse::<u64>().ok()).sum();
    Ok(Duration::from_millis(10 * sum))
}

// Namespaces
// -------------------------------------------------------------------------------------------------

/// A network namespace with a name that no other process uses.
pub(crate) struct Namespace {
    pub(crate) name: String,
}

impl Namespace {
    pub(crate) fn new(role: &str) -> Result<Namespace, Failed> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Relaxed));
        let name = format!("dominoes-{process}-{number}-{role}");
        ip(&format!("netns add {name}"))?;
        let namespace = Namespace { name };
        namespace.ip("link set lo up")?;
        // The kernel's neighbour discovery would mix its frames with ours.
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

    /// A command that runs in this namespace and keeps its process number.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Enables IPv6 on an interface, without duplicate address detection.
    pub(crate) fn enable_v6(&self, interface: &str) -> Result<(), Failed> {
        let folder = format!("/proc/sys/net/ipv6/conf/{interface}");
        self.write(&format!("{folder}/accept_dad"), "0")?;
        self.write(&format!("{folder}/disable_ipv6"), "0")
    }

    /// Writes a file, by its path in this namespace.
    pub(crate) fn write(&self, path: &str, text: &str) -> Result<(), Failed> {
        let mut command = self.command("sh");
        command.args(["-c", &format!("echo {text} > {path}")]);
        Running::start(command)?.finish()?;
        Ok(())
    }

    /// Waits until an interface carries frames.
    pub(crate) fn wait_until_running(&self, interface: &str) -> Result<(), Failed> {
        let deadline = Instant::now() + patience();
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
        // Removes its interfaces, too.
        if let Err(failed) = ip(&format!("netns del {}", self.name)) {
            eprintln!(
                "{} stays: {}",
                self.name,
                failed.message().unwrap_or_default()
            );
        }
    }
}

/// Runs `ip` and returns its output.
fn ip(arguments: &str) -> Result<String, Failed> {
    let mut command = Command::new("ip");
    command.args(arguments.split(' '));
    Running::start(command)?.finish()
}

// Processes
// -------------------------------------------------------------------------------------------------

/// A process that is killed on drop.
struct Process(Child);

impl Process {
    fn start(command: &mut Command, stdin: Stdio) -> Result<Process, Failed> {
        Process::start_into(command, stdin, Stdio::piped())
    }

    fn start_into(command: &mut Command, stdin: Stdio, out: Stdio) -> Result<Process, Failed> {
        let spawned = command
            .stdin(stdin)
            .stdout(out)
            .stderr(Stdio::piped())
            .spawn();
        match spawned {
            Ok(child) => Ok(Process(child)),
            Err(error) => Err(format!("{}: {error}", describe(command)).into()),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails if the process has ended, which is fine.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A command line, for messages.
fn describe(command: &Command) -> String {
    format!("{command:?}").replace('"', "")
}

/// A command with a deadline.
pub(crate) struct Running {
    what: String,
    process: Process,
    deadline: Instant,
    out: thread::JoinHandle<String>,
    err: thread::JoinHandle<String>,
}

impl Running {
    pub(crate) fn start(command: Command) -> Result<Running, Failed> {
        Running::start_between(command, Stdio::null(), Stdio::piped())
    }

    /// Starts a command with a standard input, and with a standard output that may be a file.
    pub(crate) fn start_between(
        mut command: Command,
        stdin: Stdio,
        out: Stdio,
    ) -> Result<Running, Failed> {
        let mut process = Process::start_into(&mut command, stdin, out)?;
        Ok(Running {
            what: describe(&command),
            out: collect(process.0.stdout.take()),
            err: collect(process.0.stderr.take()),
            process,
            deadline: Instant::now() + patience(),
        })
    }

    /// Extends the deadline.
    pub(crate) fn allow(mut self, more: Duration) -> Running {
        self.deadline += more;
        self
    }

    /// Whether the command has ended by itself. Fails after the deadline.
    pub(crate) fn has_ended(&self) -> Result<bool, Failed> {
        if Instant::now() > self.deadline {
            return Err(format!("{}: after {} s", self.what, patience().as_secs()).into());
        }
        // The pipes are closed when the command ends.
        Ok(self.out.is_finished() && self.err.is_finished())
    }

    /// Waits until the command ends, and returns its output. A failure contains the standard error.
    pub(crate) fn finish(mut self) -> Result<String, Failed> {
        let outcome = loop {
            match self.process.0.try_wait()? {
                Some(status) if status.success() => break None,
                Some(status) => break Some(status.to_string()),
                None if Instant::now() < self.deadline => thread::sleep(GLANCE),
                None => break Some(format!("killed after {} s", patience().as_secs())),
            }
        };
        drop(self.process);
        let [out, err] = [self.out, self.err].map(|thread| thread.join().unwrap_or_default());
        match outcome {
            None => Ok(out),
            Some(outcome) => Err(format!("{}: {outcome}\n{out}{err}", self.what).into()),
        }
    }
}

/// Reads the output of a process in a thread, so that the process does not block on a full pipe.
fn collect(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // The output before a read error is still useful.
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// A command with a deadline that gets input while it runs.
pub(crate) struct Dialogue {
    what: String,
    process: Process,
    input: Option<ChildStdin>,
    /// The output so far, of both streams.
    said: Arc<Mutex<Vec<u8>>>,
    pipes: Vec<thread::JoinHandle<()>>,
    deadline: Instant,
}

impl Dialogue {
    pub(crate) fn start(mut command: Command) -> Result<Dialogue, Failed> {
        let mut process = Process::start(&mut command, Stdio::piped())?;
        let said = Arc::new(Mutex::new(Vec::new()));
        let listen = |pipe: Box<dyn Read + Send>| {
            let said = Arc::clone(&said);
            thread::spawn(move || {
                let (mut pipe, mut bytes) = (pipe, vec![0; 64 << 10]);
                // The output before a read error is still useful.
                while let Ok(len @ 1..) = pipe.read(&mut bytes) {
                    let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
                    said.extend_from_slice(&bytes[..len]);
                }
            })
        };
        let out = process.0.stdout.take().map(|pipe| listen(Box::new(pipe)));
        let err = process.0.stderr.take().map(|pipe| listen(Box::new(pipe)));
        Ok(Dialogue {
            what: describe(&command),
            input: process.0.stdin.take(),
            process,
            pipes: out.into_iter().chain(err).collect(),
            said,
            deadline: Instant::now() + patience(),
        })
    }

    /// The output so far.
    pub(crate) fn said(&self) -> String {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&said).into_owned()
    }

    /// Writes to the standard input of the command.
    pub(crate) fn say(&mut self, words: &str) -> Result<(), Failed> {
        if let Some(input) = &mut self.input {
            input.write_all(words.as_bytes())?;
            input.flush()?;
        }
        Ok(())
    }

    /// Waits until the output contains `words` `count` times.
    pub(crate) fn wait_for(&self, words: &str, count: usize) -> Result<(), Failed> {
        while self.said().matches(words).count() < count {
            if self.pipes.iter().all(|pipe| pipe.is_finished()) || Instant::now() > self.deadline {
                let (what, said) = (&self.what, self.said());
                return Err(format!("{what} does not say {words:?}:\n{said}").into());
            }
            thread::sleep(GLANCE);
        }
        Ok(())
    }

    /// Waits until the command ends, and returns its status and its output.
    fn end(mut self) -> Result<(ExitStatus, Vec<u8>), Failed> {
        let status = loop {
            match self.process.0.try_wait()? {
                Some(status) => break status,
                None if Instant::now() < self.deadline => thread::sleep(GLANCE),
                None => {
                    let (what, said) = (&self.what, self.said());
                    return Err(format!("{what} does not end:\n{said}").into());
                }
            }
        };
        for pipe in self.pipes {
            let _ = pipe.join();
        }
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((status, std::mem::take(&mut *said)))
    }

    /// Waits until the command succeeds, and returns the bytes of its output.
    pub(crate) fn finish_bytes(self) -> Result<Vec<u8>, Failed> {
        let what = self.what.clone();
        match self.end()? {
            (status, said) if status.success() => Ok(said),
            (status, said) => {
                let said = String::from_utf8_lossy(&said);
                Err(format!("{what}: {status}\n{said}").into())
            }
        }
    }

    /// Waits until the command succeeds, and returns its output as text.
    pub(crate) fn finish(self) -> Result<String, Failed> {
        let said = self.finish_bytes()?;
        Ok(String::from_utf8_lossy(&said).into_owned())
    }

    /// Waits until the command fails, and returns its output.
    pub(crate) fn fail(self) -> Result<String, Failed> {
        let what = self.what.clone();
        let (status, said) = self.end()?;
        let said = String::from_utf8_lossy(&said).into_owned();
        if status.success() {
            return Err(format!("{what} succeeds:\n{said}").into());
        }
        Ok(said)
    }
}

/// A running server example.
pub(crate) struct Server {
    process: Process,
    said: Arc<Mutex<String>>,
}

impl Server {
    /// Starts the server, and waits until it reports that it listens.
    pub(crate) fn start(mut command: Command) -> Result<Server, Failed> {
        let mut process = Process::start(&mut command, Stdio::null())?;
        let said = Arc::new(Mutex::new(String::new()));
        let (ready, is_ready) = mpsc::channel();
        let out = process.0.stdout.take();
        let err = process.0.stderr.take();
        let listen = |pipe: Option<Box<dyn Read + Send>>| {
            let (said, ready) = (Arc::clone(&said), ready.clone());
            thread::spawn(move || {
                for line in pipe
                    .into_iter()
                    .flat_map(|pipe| BufReader::new(pipe).lines())
                {
                    let Ok(line) = line else { break };
                    let is_ready = line.starts_with("listening on ");
                    let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
                    said.push_str(&line);
                    said.push('\n');
                    drop(said);
                    if is_ready {
                        // Nothing receives this any more if it comes late.
                        let _ = ready.send(());
                    }
                }
            });
        };
        listen(out.map(|pipe| Box::new(pipe) as Box<_>));
        listen(err.map(|pipe| Box::new(pipe) as Box<_>));
        drop(ready);
        let mut server = Server { process, said };
        // If the server ends, its pipes close, and the channel loses its senders.
        match is_ready.recv_timeout(patience()) {
            Ok(()) => Ok(server),
            Err(_) => Err(server.explain(&format!("{} is not ready", describe(&command)))),
        }
    }

    /// Waits until the output contains `words`.
    pub(crate) fn wait_for(&self, words: &str) -> Result<(), Failed> {
        let deadline = Instant::now() + patience();
        while !self.said().contains(words) {
            if Instant::now() > deadline {
                return Err(format!("it does not say {words:?}").into());
            }
            thread::sleep(GLANCE);
        }
        Ok(())
    }

    /// The process number.
    pub(crate) fn id(&self) -> u32 {
        self.process.0.id()
    }

    /// Bytes of resident memory.
    pub(crate) fn memory(&self) -> Result<u64, Failed> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilo = line.and_then(|line| line.trim().strip_suffix(" kB"));
        Ok(kilo.ok_or("no resident memory")?.trim().parse::<u64>()? << 10)
    }

    pub(crate) fn said(&self) -> MutexGuard<'_, String> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A failure with the server's output.
    pub(crate) fn explain(&mut self, failure: &str) -> Failed {
        let state = match self.process.0.try_wait() {
            Ok(None) => "still runs".to_owned(),
            Ok(Some(status)) => format!("ended with {status}"),
            Err(error) => error.to_string(),
        };
        let said = self.said();
        format!("{failure}\nThe server {state}. It said:\n{said}").into()
    }
}

/// Builds an example, once, and returns its path.
///
/// Cargo passes the paths of binaries to integration tests, but not the paths of examples, and may
/// not have built this one. So it is built here, in the profile of this program. With
/// `--workspace`, cargo selects the same features as `cargo test --workspace`, so it compiles
/// nothing a second time.
fn server_program(
    name: &str,
    built: &'static OnceLock<Result<PathBuf, String>>,
) -> Result<&'static Path, Failed> {
    match built.get_or_init(|| build_server(name).map_err(|error| error.to_string())) {
        Ok(path) => Ok(path),
        Err(error) => Err(error.into()),
    }
}

/// Builds an example that needs no fixture, and returns its path.
pub(crate) fn example(name: &str) -> Result<PathBuf, Failed> {
    Ok(build_server(name)?)
}

static HTTP_SERVER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
static HTTPS_SERVER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
static HTTPS_GET: OnceLock<Result<PathBuf, String>> = OnceLock::new();
static SERVICES: OnceLock<Result<PathBuf, String>> = OnceLock::new();
static INGEST: OnceLock<Result<PathBuf, String>> = OnceLock::new();
static ROUTER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
static TUNNEL: OnceLock<Result<PathBuf, String>> = OnceLock::new();
static UDP_ECHO: OnceLock<Result<PathBuf, String>> = OnceLock::new();
static PING: OnceLock<Result<PathBuf, String>> = OnceLock::new();
static TOP: OnceLock<Result<PathBuf, String>> = OnceLock::new();

/// Starts a server example in a namespace, and waits until it listens.
pub(crate) fn start_in(
    namespace: &Namespace,
    name: &str,
    arguments: &[&str],
) -> Result<Server, Failed> {
    let built = match name {
        "router" => &ROUTER,
        "tunnel" => &TUNNEL,
        _ => &HTTP_SERVER,
    };
    let mut command = namespace.command(server_program(name, built)?);
    command.args(arguments);
    Server::start(command)
}

/// Starts the example `top` in this program's own namespaces, without a terminal.
pub(crate) fn start_top(arguments: &[&str]) -> Result<Running, Failed> {
    let mut command = Command::new(server_program("top", &TOP)?);
    command.args(arguments);
    Running::start(command)
}

fn build_server(name: &str) -> io::Result<PathBuf> {
    // The path of this program is TARGET/PROFILE/deps/host-HASH.
    let this = std::env::current_exe()?;
    let folder = this.ancestors().nth(2).unwrap_or(&this);
    let target = folder.parent().unwrap_or(folder);
    // The profile `test` shares the folder of `dev`.
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "test",
        Some(profile) => profile,
    };
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--quiet", "--workspace", "--example", name])
        .args(["--profile", profile])
        .arg("--target-dir")
        .arg(target)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .stdin(Stdio::null())
        .status()?;
    if !status.success() {
        return Err(io::Error::other(format!(
            "cargo build --example {name}: {status}"
        )));
    }
    Ok(folder.join("examples").join(name))
}

// Files
// -------------------------------------------------------------------------------------------------

/// A folder that is removed on drop.
pub(crate) struct Temporary(PathBuf);

impl Temporary {
    pub(crate) fn new() -> io::Result<Temporary> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(format!("dominoes-host-{process}-{number}"));
        fs::create_dir(&path)?;
        Ok(Temporary(path))
    }

    /// The path of a file in the folder, as an argument.
    pub(crate) fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// Writes a file of `len` pseudorandom bytes that depend on `seed`, and returns its hash.
    pub(crate) fn write(&self, name: &str, len: usize, seed: u64) -> io::Result<Hash> {
        let mut file = File::create(self.0.join(name))?;
        let mut hash = Sha256::new();
        let mut rng = Rng::new(seed);
        let mut chunk = vec![0; len.min(1 << 20).next_multiple_of(8)];
        let mut left = len;
        while left > 0 {
            for word in chunk.chunks_exact_mut(8) {
                word.copy_from_slice(&rng.next().to_le_bytes());
            }
            let bytes = &chunk[..left.min(chunk.len())];
            file.write_all(bytes)?;
            hash.update(bytes);
            left -= bytes.len();
        }
        Ok(hash.finalize())
    }

    /// The hash of a file in the folder.
    pub(crate) fn hash(&self, name: &str) -> io::Result<Hash> {
        let mut hash = Sha256::new();
        io::copy(&mut File::open(self.0.join(name))?, &mut hash)?;
        Ok(hash.finalize())
    }

    /// The hash of a file in the folder, in hexadecimal as the servers print it.
    pub(crate) fn hex(&self, name: &str) -> io::Result<String> {
        let hash = self.hash(name)?;
        Ok(hash.iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// SHA-256.
pub(crate) type Hash = sha2::digest::Output<Sha256>;

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("{} stays: {error}", self.0.display());
        }
    }
}
