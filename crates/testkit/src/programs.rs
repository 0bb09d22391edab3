//! Network namespaces, both ends of a device in them, programs with a deadline, and folders. Each
//! value removes on drop whatever it made, also after a panic.

use std::borrow::BorrowMut;
use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// A value, or what went wrong.
pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Longer than any program takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// Interval of polling.
const GLANCE: Duration = Duration::from_millis(2);

/// A number that this process has not used, after its own.
fn unique(name: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Relaxed);
    format!("dominoes-{}-{number}-{name}", std::process::id())
}

/// A network namespace with a name that no other process uses.
#[derive(Debug)]
pub struct Namespace {
    /// Its name.
    pub name: String,
}

impl Namespace {
    /// Makes a namespace. IPv6 is off until [`enable_v6`](Self::enable_v6): the kernel's neighbour
    /// discovery would mix its frames with ours.
    pub fn new(role: &str) -> Outcome<Namespace> {
        let name = unique(role);
        ip(&format!("netns add {name}"))?;
        let namespace = Namespace { name };
        namespace.ip("link set lo up")?;
        namespace.shell("echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6 || true")?;
        Ok(namespace)
    }

    /// Runs `ip` for this namespace, and returns its output.
    pub fn ip(&self, arguments: &str) -> Outcome<String> {
        ip(&format!("-n {} {arguments}", self.name))
    }

    /// Joins it to another one by two interfaces of this name, a veth pair.
    pub fn join(&self, other: &Namespace, interface: &str) -> Outcome<()> {
        let name = &other.name;
        let pair = format!("link add {interface} type veth peer name {interface} netns {name}");
        self.ip(&pair).map(drop)
    }

    /// A command that runs in this namespace and keeps its process number.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Runs a line of shell.
    pub fn shell(&self, line: &str) -> Outcome<()> {
        run(self.command("sh").args(["-c", line])).map(drop)
    }

    /// Enables IPv6 on an interface, without duplicate address detection.
    pub fn enable_v6(&self, interface: &str) -> Outcome<()> {
        let folder = format!("/proc/sys/net/ipv6/conf/{interface}");
        self.shell(&format!(
            "echo 0 > {folder}/accept_dad && echo 0 > {folder}/disable_ipv6"
        ))
    }

    /// Waits until an interface carries frames.
    pub fn wait_until_running(&self, interface: &str) -> Outcome<()> {
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
        // Removes its interfaces, too.
        if let Err(error) = ip(&format!("netns del {}", self.name)) {
            eprintln!("{} stays: {error}", self.name);
        }
    }
}

fn ip(arguments: &str) -> Outcome<String> {
    run(Command::new("ip").args(arguments.split(' ')))
}

/// The kind of device that our stack uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// A TAP; the kernel in the same namespace is its other end.
    Tap,
    /// A TUN; the kernel in the same namespace is its other end.
    Tun,
    /// One end of a veth pair through a packet socket; the other end is in the peer's namespace.
    Packet,
    /// Like `Packet`, through AF_XDP, which needs a peer that computes checksums.
    Xdp,
}

impl Device {
    /// The name of the interface at either end.
    pub fn interface(self) -> &'static str {
        match self {
            Device::Tap => "tap0",
            Device::Tun => "tun0",
            Device::Packet | Device::Xdp => "veth0",
        }
    }

    /// The option with which our programs take the name of this interface.
    pub fn option(self) -> &'static str {
        match self {
            Device::Tap => "--tap",
            Device::Tun => "--tun",
            Device::Packet => "--packet",
            Device::Xdp => "--xdp",
        }
    }
}

/// The namespaces at both ends of a device.
#[derive(Debug)]
pub struct Ends {
    /// The peer's namespace.
    pub peer: Namespace,
    /// Our namespace, if it differs from the peer's.
    own: Option<Namespace>,
    /// The device between them.
    pub device: Device,
}

impl Ends {
    /// Makes the namespaces and the interfaces. The peer's kernel has `address`; a TAP or TUN is
    /// for `several` queues, or for one.
    pub fn new(device: Device, address: &str, several: bool) -> Outcome<Ends> {
        let peer = Namespace::new("peer")?;
        let interface = device.interface();
        let own = match device {
            Device::Tap | Device::Tun => {
                let mode = device.option().trim_start_matches('-');
                let queues = if several { " multi_queue" } else { "" };
                peer.ip(&format!("tuntap add dev {interface} mode {mode}{queues}"))?;
                None
            }
            Device::Packet | Device::Xdp => {
                let ours = Namespace::new("ours")?;
                ours.join(&peer, interface)?;
                ours.ip(&format!("link set {interface} up"))?;
                Some(ours)
            }
        };
        peer.ip(&format!("addr add {address} dev {interface}"))?;
        peer.ip(&format!("link set {interface} up"))?;
        if device == Device::Xdp {
            // A frame that is redirected has the checksum of its sender.
            run(peer.command("ethtool").args(["-K", interface, "tx", "off"]))?;
        }
        Ok(Ends { peer, own, device })
    }

    /// Our namespace.
    pub fn ours(&self) -> &Namespace {
        self.own.as_ref().unwrap_or(&self.peer)
    }

    /// Whether the kernel of our own namespace is the peer.
    pub fn is_one(&self) -> bool {
        self.own.is_none()
    }

    /// The name of the interface at either end.
    pub fn interface(&self) -> &'static str {
        self.device.interface()
    }

    /// Waits until both ends carry frames: the kernel drops what one sends before.
    pub fn wait_until_running(&self) -> Outcome<()> {
        let both = [self.ours(), &self.peer];
        both.iter()
            .try_for_each(|end| end.wait_until_running(self.interface()))
    }
}

/// A program that was started. It is killed on drop.
#[derive(Debug)]
pub struct Program {
    what: String,
    child: Child,
    input: Option<ChildStdin>,
    /// Its output so far: the standard output, and the standard error.
    said: [Arc<Mutex<Vec<u8>>>; 2],
    pipes: Vec<thread::JoinHandle<()>>,
    deadline: Instant,
}

impl Program {
    /// Starts a program without input.
    pub fn start(command: impl BorrowMut<Command>) -> Outcome<Program> {
        Program::start_between(command, Stdio::null(), Stdio::piped())
    }

    /// Starts a program with an input that [`say`](Self::say) writes.
    pub fn speak(command: impl BorrowMut<Command>) -> Outcome<Program> {
        Program::start_between(command, Stdio::piped(), Stdio::piped())
    }

    /// Starts a program with a standard input, and with a standard output that may be a file.
    pub fn start_between(
        mut command: impl BorrowMut<Command>,
        input: Stdio,
        out: Stdio,
    ) -> Outcome<Program> {
        let command = command.borrow_mut();
        let what = format!("{command:?}").replace('"', "");
        let spawned = command
            .stdin(input)
            .stdout(out)
            .stderr(Stdio::piped())
            .spawn();
        let mut child = spawned.map_err(|error| format!("{what}: {error}"))?;
        let said: [Arc<Mutex<Vec<u8>>>; 2] = Default::default();
        // Threads read, so that the program does not block on a full pipe.
        let listen = |mut pipe: Box<dyn Read + Send>, into: &Arc<Mutex<Vec<u8>>>| {
            let into = Arc::clone(into);
            thread::spawn(move || {
                let mut bytes = vec![0; 64 << 10];
                // The output before a read error is still useful.
                while let Ok(len @ 1..) = pipe.read(&mut bytes) {
                    let mut said = into.lock().unwrap_or_else(PoisonError::into_inner);
                    said.extend_from_slice(&bytes[..len]);
                }
            })
        };
        let out = child
            .stdout
            .take()
            .map(|pipe| listen(Box::new(pipe), &said[0]));
        let err = child
            .stderr
            .take()
            .map(|pipe| listen(Box::new(pipe), &said[1]));
        Ok(Program {
            what,
            input: child.stdin.take(),
            child,
            said,
            pipes: out.into_iter().chain(err).collect(),
            deadline: Instant::now() + PATIENCE,
        })
    }

    /// Starts a server, and waits until it prints `words`.
    pub fn serve(command: impl BorrowMut<Command>, words: &str) -> Outcome<Program> {
        let program = Program::start(command)?;
        program.wait_for(words, 1)?;
        Ok(program)
    }

    /// Extends the deadline.
    #[must_use]
    pub fn allow(mut self, more: Duration) -> Program {
        self.deadline += more;
        self
    }

    /// Its process number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Bytes of its resident memory.
    pub fn memory(&self) -> Outcome<u64> {
        resident(&self.id().to_string())
    }

    /// Its output so far, the standard error after the standard output.
    pub fn said(&self) -> String {
        self.said.each_ref().map(text).concat()
    }

    /// Writes to its standard input.
    pub fn say(&mut self, words: &str) -> Outcome<()> {
        if let Some(input) = &mut self.input {
            input.write_all(words.as_bytes())?;
            input.flush()?;
        }
        Ok(())
    }

    /// Waits until the output contains `words` `count` times.
    pub fn wait_for(&self, words: &str, count: usize) -> Outcome<()> {
        loop {
            // Looked at before its output, which is then whole.
            let has_ended = self.has_ended()?;
            let said = self.said();
            if said.matches(words).count() >= count {
                return Ok(());
            }
            if has_ended {
                return Err(format!("{} does not say {words:?}:\n{said}", self.what).into());
            }
            thread::sleep(GLANCE);
        }
    }

    /// Its status, if it has ended.
    pub fn status(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&self) -> Outcome<bool> {
        // The pipes are closed when the program ends.
        let has_ended = self.pipes.iter().all(|pipe| pipe.is_finished());
        match !has_ended && Instant::now() > self.deadline {
            true => Err(format!("{}: too long; it said:\n{}", self.what, self.said()).into()),
            false => Ok(has_ended),
        }
    }

    /// Waits until it ends, and returns its status.
    pub fn end(&mut self) -> Outcome<ExitStatus> {
        let status = loop {
            match self.child.try_wait()? {
                Some(status) => break status,
                None if Instant::now() < self.deadline => thread::sleep(GLANCE),
                None => {
                    let (what, said) = (&self.what, self.said());
                    return Err(format!("{what} does not end:\n{said}").into());
                }
            }
        };
        for pipe in self.pipes.drain(..) {
            let _ = pipe.join();
        }
        Ok(status)
    }

    /// Ends it in order, with `SIGTERM`, and returns its status.
    pub fn terminate(&mut self) -> Outcome<ExitStatus> {
        run(Command::new("kill").args(["-TERM", &self.id().to_string()]))?;
        self.end()
    }

    /// Ends it in order, with `SIGTERM`, and returns its output on both streams.
    pub fn stop(mut self) -> Outcome<String> {
        self.terminate()?;
        Ok(self.said())
    }

    /// Waits until it succeeds, and returns the bytes of its standard output.
    pub fn finish_bytes(mut self) -> Outcome<Vec<u8>> {
        let status = self.end()?;
        if !status.success() {
            return Err(format!("{}: {status}\n{}", self.what, self.said()).into());
        }
        let mut out = self.said[0].lock().unwrap_or_else(PoisonError::into_inner);
        Ok(std::mem::take(&mut *out))
    }

    /// As [`finish_bytes`](Self::finish_bytes), as text.
    pub fn finish(self) -> Outcome<String> {
        Ok(String::from_utf8_lossy(&self.finish_bytes()?).into_owned())
    }

    /// Waits until it succeeds, or with `fails` until it fails; returns its output on both streams.
    pub fn finish_all(mut self, fails: bool) -> Outcome<String> {
        let (status, said) = (self.end()?, self.said());
        match status.success() != fails {
            true => Ok(said),
            false => Err(format!("{}: {status}\n{said}", self.what).into()),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Fails if the program has ended, which is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text(said: &Arc<Mutex<Vec<u8>>>) -> String {
    let said = said.lock().unwrap_or_else(PoisonError::into_inner);
    String::from_utf8_lossy(&said).into_owned()
}

/// Runs a program to its end, and returns its standard output.
pub fn run(command: &mut Command) -> Outcome<String> {
    Program::start(command)?.finish()
}

/// Bytes of memory that process `id` has resident; `self` is this one.
pub fn resident(id: &str) -> Outcome<u64> {
    let status = fs::read_to_string(format!("/proc/{id}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilo = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(kilo.ok_or("no resident memory")?.trim().parse::<u64>()? << 10)
}

/// Builds something of the workspace in the profile of this program, as `arguments` of `cargo
/// build` say, and returns the folder of the profile.
///
/// Cargo passes the paths of binaries to integration tests, but no others, and may not have built
/// them. With `--workspace`, it selects the same features as `cargo test --workspace`, so it
/// compiles nothing a second time.
pub fn build(arguments: &[&str]) -> Outcome<PathBuf> {
    // The path of this program is TARGET/PROFILE/deps/NAME-HASH.
    let this = std::env::current_exe()?;
    let folder = this.ancestors().nth(2).unwrap_or(&this);
    // The profile `test` shares the folder of `dev`.
    let profile = match folder.file_name().and_then(OsStr::to_str) {
        Some("debug") | None => "test",
        Some(profile) => profile,
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--quiet", "--workspace", "--profile", profile])
        .args(arguments)
        .arg("--target-dir")
        .arg(folder.parent().unwrap_or(folder))
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .stdin(Stdio::null())
        .status()?;
    match status.success() {
        true => Ok(folder.to_owned()),
        false => Err(format!("cargo build {arguments:?}: {status}").into()),
    }
}

/// Builds an example, once, and returns its path.
pub fn example(name: &str) -> Outcome<PathBuf> {
    static BUILT: Mutex<BTreeMap<String, Result<PathBuf, String>>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let path = built.entry(name.to_owned()).or_insert_with(|| {
        let folder = build(&["--example", name]).map_err(|error| error.to_string())?;
        Ok(folder.join("examples").join(name))
    });
    Ok(path.clone()?)
}

/// A folder for files, which is removed on drop.
#[derive(Debug)]
pub struct Folder(pub PathBuf);

impl Folder {
    /// Makes a folder.
    pub fn new() -> io::Result<Folder> {
        let path = std::env::temp_dir().join(unique("files"));
        fs::create_dir(&path)?;
        Ok(Folder(path))
    }

    /// Writes a file, and returns its path.
    pub fn write(&self, name: &str, bytes: &[u8]) -> io::Result<PathBuf> {
        let path = self.0.join(name);
        fs::write(&path, bytes)?;
        Ok(path)
    }

    /// The path of a file in the folder, as an argument.
    pub fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("{} stays: {error}", self.0.display());
        }
    }
}
