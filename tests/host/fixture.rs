//! Servers between the two ends of a device, and files with hashes.

use std::fs::{self, File};
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use dominoes_testkit::Rng;
use dominoes_testkit::programs::{self, Ends as Between, Folder, PATIENCE};
pub(crate) use dominoes_testkit::programs::{Device, Namespace, Program};
use libtest_mimic::Failed;
use sha2::{Digest, Sha256};

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
pub(crate) fn longer() -> Duration {
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

/// The ends of a device, without a server of ours.
pub(crate) struct Ends(Between);

impl Ends {
    pub(crate) fn new(device: Device) -> Result<Ends, Failed> {
        Ok(Ends(Between::new(device, KERNELS, false)?))
    }

    /// The peer's namespace.
    pub(crate) fn peer(&self) -> &Namespace {
        &self.0.peer
    }

    /// Waits until both ends carry frames.
    pub(crate) fn wait_until_running(&self) -> Result<(), Failed> {
        Ok(self.0.wait_until_running()?)
    }

    /// The name of the interface at either end.
    pub(crate) fn interface(&self) -> &'static str {
        self.0.interface()
    }

    /// A command that runs in our namespace.
    pub(crate) fn our_command(&self, program: &Path) -> Command {
        self.0.ours().command(program)
    }

    /// An example with the interface.
    fn example(&self, name: &str, arguments: &[&str]) -> Result<Program, Failed> {
        let mut command = self.our_command(&programs::example(name)?);
        command.args([self.0.device.option(), self.interface()]);
        start(command.args(arguments))
    }

    /// Runs the example `https_get` and returns its output on both streams.
    pub(crate) fn https_get(&self, arguments: &[&str]) -> Result<String, Failed> {
        let arguments = [&["--addr", "10.78.0.1/24"], arguments].concat();
        Ok(self.example("https_get", &arguments)?.finish_all(false)?)
    }

    /// Runs the example `ping` with an address of each family and returns its output.
    pub(crate) fn ping(&self, arguments: &[&str]) -> Result<String, Failed> {
        let ours = format!("{OURS_V6}/64");
        let addresses = ["--addr", "10.78.0.1/24", "--addr6", &ours];
        let arguments = [&addresses, arguments].concat();
        Ok(self.example("ping", &arguments)?.finish()?)
    }

    /// Runs the example `ping` with the addresses that the network gives, and returns its output.
    pub(crate) fn ping_from_lease(&self, hosts: &[&str]) -> Result<String, Failed> {
        let addresses = ["--addr", "dhcp", "--addr6", "auto", "--count", "3"];
        Ok(self
            .example("ping", &[&addresses, hosts].concat())?
            .finish()?)
    }

    /// Starts a command in the peer's namespace.
    pub(crate) fn speak(&self, program: &str, arguments: &[&str]) -> Result<Program, Failed> {
        speak(self.0.peer.command(program).args(arguments))
    }
}

/// Starts a command with a deadline.
pub(crate) fn start(command: &mut Command) -> Result<Program, Failed> {
    Ok(Program::start(command)?.allow(longer()))
}

/// Starts a command with a deadline that gets input while it runs.
pub(crate) fn speak(command: &mut Command) -> Result<Program, Failed> {
    Ok(Program::speak(command)?.allow(longer()))
}

/// Starts a server, and waits until it reports that it listens.
pub(crate) fn serve(command: &mut Command) -> Result<Program, Failed> {
    Ok(Program::serve(command, "listening on ")?)
}

/// A failure with the output of a server.
pub(crate) fn explain(server: &mut Program, failed: &Failed) -> Failed {
    let state = match server.status() {
        // It prints its counters when it ends in order.
        Ok(None) => match server.terminate() {
            Ok(_) => "ran".to_owned(),
            Err(error) => error.to_string(),
        },
        Ok(Some(status)) => format!("ended with {status}"),
        Err(error) => error.to_string(),
    };
    let (failure, said) = (failed.message().unwrap_or("failed"), server.said());
    format!("{failure}\nThe server {state}. It said:\n{said}").into()
}

/// Arguments of `traceroute`: three probes for each hop, one at a time, so that a frame that a
/// queue of the kernel drops on a busy machine costs a probe and not the hop.
pub(crate) const TRACEROUTE: [&str; 7] = ["-n", "-N", "1", "-q", "3", "-w", "20"];

/// The hops that `traceroute` found: of each the first address that answered.
pub(crate) fn hops(said: &str) -> Vec<IpAddr> {
    let nobody = IpAddr::from([0; 4]);
    let lines = said.lines().skip(1);
    let answered = |line: &str| line.split_whitespace().find_map(|word| word.parse().ok());
    lines.map(|line| answered(line).unwrap_or(nobody)).collect()
}

/// A running server and the namespaces around it.
pub(crate) struct Fixture {
    server: Program,
    /// The process that advertises a prefix, if any.
    router: Option<Program>,
    ends: Between,
    /// The folder that the server serves.
    pub(crate) root: Temporary,
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
        let program = &programs::example("http_server")?;
        let arguments = [&[option, device.interface()][..], &common()[..], &arguments].concat();
        Fixture::start_server(device, program, &arguments, root, Some(1), |_| Ok(()))
    }

    /// The example `ingest`. It writes each upload to `taken` in its folder, and counts the lines
    /// of `strings` there.
    pub(crate) fn ingest(device: Device, arguments: &[&str]) -> Result<Fixture, Failed> {
        let root = Temporary::new()?;
        crate::ingest::write_file(&root)?;
        let [taken, strings] = ["taken", "strings"].map(|name| root.file(name));
        let program = &programs::example("ingest")?;
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
            peer.shell("echo 1 > /proc/sys/net/ipv6/conf/all/forwarding")?;
            let mut command = peer.command("radvd");
            command.args(["--nodaemon", "--logmethod", "stderr"]);
            command.args(["--config", &file, "--pidfile", &id]);
            router = Some(start(&mut command)?);
            Ok(())
        })?;
        (fixture.router, fixture.root) = (router, root);
        Ok(fixture)
    }

    /// The example `services` with an address of either family at each of two interfaces. One
    /// network is in the peer's namespace, the other in `far`.
    pub(crate) fn services_at_two(device: Device, far: &Namespace) -> Result<Fixture, Failed> {
        let ends = Between::new(device, KERNELS, false)?;
        let interface = device.interface();
        let second = match ends.is_one() {
            true => {
                // Moves to `far` once the server has opened the other end.
                ends.peer.ip(&format!("tuntap add dev {SECOND} mode tap"))?;
                &ends.peer
            }
            false => {
                ends.ours().join(far, SECOND)?;
                ends.ours().ip(&format!("link set {SECOND} up"))?;
                far
            }
        };
        let program = &programs::example("services")?;
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
        let program = &programs::example("services")?;
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
        let program = &programs::example("https_server")?;
        let served = ["--root", &folder, "--save-certificate", &ca];
        let option = [device.option(), device.interface()];
        let lines = (!arguments.contains(&"--kill-every")).then_some(1);
        let arguments = [&option[..], &common()[..], &served, arguments].concat();
        Fixture::start_server(device, program, &arguments, root, lines, |_| Ok(()))
    }

    /// The example `udp_echo`, over a TAP.
    pub(crate) fn udp_echo() -> Result<Fixture, Failed> {
        let program = &programs::example("udp_echo")?;
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
        let ends = Between::new(device, KERNELS, arguments.contains(&"--queues"))?;
        Fixture::start_between(ends, program, arguments, root, lines, prepare)
    }

    fn start_between(
        ends: Between,
        program: &Path,
        arguments: &[&str],
        root: Temporary,
        lines: Option<usize>,
        prepare: impl FnOnce(&Namespace) -> Result<(), Failed>,
    ) -> Result<Fixture, Failed> {
        prepare(&ends.peer)?;
        let server = serve(ends.ours().command(program).args(arguments))?;
        // The interface of a TAP can carry frames once the server has opened it, and the kernel
        // reports this a little later.
        ends.wait_until_running()?;
        Ok(Fixture {
            server,
            router: None,
            ends,
            root,
            lines,
        })
    }

    /// The peer's namespace.
    pub(crate) fn peer(&self) -> &Namespace {
        &self.ends.peer
    }

    /// The kernel's interface.
    pub(crate) fn interface(&self) -> &'static str {
        self.ends.interface()
    }

    /// Runs a command in the peer's namespace and returns its output.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> Result<String, Failed> {
        Ok(self.start(program, arguments)?.finish()?)
    }

    /// Starts a command in the peer's namespace.
    pub(crate) fn start(&self, program: &str, arguments: &[&str]) -> Result<Program, Failed> {
        start(self.peer().command(program).args(arguments))
    }

    /// Starts a command in the peer's namespace that gets input while it runs.
    pub(crate) fn speak(&self, program: &str, arguments: &[&str]) -> Result<Program, Failed> {
        speak(self.peer().command(program).args(arguments))
    }

    /// Fails if the server has ended or printed an error: about its device, a divergence, or a
    /// panic.
    pub(crate) fn check(&mut self) -> Result<(), Failed> {
        let said = self.server.said().lines().count();
        let complained = self.lines.is_some_and(|lines| said > lines);
        match self.server.status()? {
            None if !complained => Ok(()),
            _ => Err("the server has something to say".into()),
        }
    }

    /// Runs `ip` in the peer's namespace.
    pub(crate) fn ip(&self, arguments: &str) -> Result<String, Failed> {
        Ok(self.peer().ip(arguments)?)
    }

    /// Gives the peer's kernel another address.
    pub(crate) fn add_address(&self, address: &str) -> Result<(), Failed> {
        self.ip(&format!("addr add {address} dev lo"))?;
        Ok(())
    }

    /// The process number of the server.
    pub(crate) fn server_id(&self) -> u32 {
        self.server.id()
    }

    /// Waits until the server ends by itself, and returns its status. Fails if that takes longer
    /// than `patience`.
    pub(crate) fn wait_for_end(&mut self, patience: Duration) -> Result<ExitStatus, Failed> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.server.status()? {
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
        self.server.said()
    }

    /// Bytes of the server's resident memory.
    pub(crate) fn server_memory(&self) -> Result<u64, Failed> {
        Ok(self.server.memory()?)
    }

    /// Processor time of all threads of the server.
    pub(crate) fn server_cpu(&self) -> Result<Duration, Failed> {
        cpu_time(&self.server.id().to_string())
    }

    /// A failure with the server's output.
    pub(crate) fn explain(&mut self, failed: &Failed) -> Failed {
        explain(&mut self.server, failed)
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

/// Starts a server example in a namespace, and waits until it listens.
pub(crate) fn start_in(
    namespace: &Namespace,
    name: &str,
    arguments: &[&str],
) -> Result<Program, Failed> {
    serve(namespace.command(programs::example(name)?).args(arguments))
}

/// Starts the example `top` in this program's own namespaces, without a terminal.
pub(crate) fn start_top(arguments: &[&str]) -> Result<Program, Failed> {
    start(Command::new(programs::example("top")?).args(arguments))
}

// Files
// -------------------------------------------------------------------------------------------------

/// A folder for files with hashes.
pub(crate) struct Temporary(Folder);

impl Temporary {
    pub(crate) fn new() -> io::Result<Temporary> {
        Folder::new().map(Temporary)
    }

    /// The path of a file in the folder, as an argument.
    pub(crate) fn file(&self, name: &str) -> String {
        self.0.file(name)
    }

    /// Writes a file of `len` pseudorandom bytes that depend on `seed`, and returns its hash.
    pub(crate) fn write(&self, name: &str, len: usize, seed: u64) -> io::Result<Hash> {
        let mut file = File::create(self.file(name))?;
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
        io::copy(&mut File::open(self.file(name))?, &mut hash)?;
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
