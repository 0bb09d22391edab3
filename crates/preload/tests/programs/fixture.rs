//! Network namespaces, and programs in them. Dropping a value removes them.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;

/// Longer than any program takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The addresses of our stack, and of the kernel at the other end.
pub(crate) const OURS: &str = "10.78.0.1";
pub(crate) const THEIRS: &str = "10.78.0.2";
pub(crate) const OURS_V6: &str = "fd78::1";
pub(crate) const THEIRS_V6: &str = "fd78::2";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// The kernel of the same namespace is the other end, as with `Tun`.
    Tap,
    Tun,
    /// The other end is in the peer's namespace, as with `Xdp`.
    Packet,
    Xdp,
}

impl Device {
    /// The option of the launcher, and the interface.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Device::Tap => ("tap", "tap0"),
            Device::Tun => ("tun", "tun0"),
            Device::Packet => ("packet", "veth0"),
            Device::Xdp => ("xdp", "veth0"),
        }
    }
}

/// Why a test cannot run, if so.
///
/// # Errors
/// A missing requirement that `REQUIRE` names.
pub(crate) fn missing(tools: &[&str]) -> Result<Option<String>, Failed> {
    let required = std::env::var("REQUIRE").unwrap_or_default();
    let is_required = |word: &str| required.split(',').any(|other| other.trim() == word);
    let lacks = |tool: &&&str| {
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("command -v {tool}")])
            .stdout(Stdio::null());
        !command.status().is_ok_and(|status| status.success())
    };
    let (word, reason) = match tools.iter().find(lacks) {
        Some(tool) => ("tools", format!("needs {tool}")),
        None => match Ends::new(Device::Tap).and_then(|_| Ends::new(Device::Packet)) {
            Ok(_) => return Ok(None),
            Err(failed) => {
                let why = failed.message().unwrap_or_default().replace('\n', ", ");
                ("packet", format!("needs root, TAP and veth: {why}"))
            }
        },
    };
    match is_required(word) {
        true => Err(format!("required, but {reason}").into()),
        false => Ok(Some(reason)),
    }
}

/// The two ends of a device.
pub(crate) struct Ends {
    pub(crate) ours: Namespace,
    pub(crate) peer: Namespace,
    device: Device,
}

impl Ends {
    pub(crate) fn new(device: Device) -> Result<Ends, Failed> {
        let peer = Namespace::new("peer")?;
        let (kind, interface) = device.names();
        let ours = match device {
            Device::Tap | Device::Tun => {
                peer.ip(&format!("tuntap add dev {interface} mode {kind}"))?;
                Namespace {
                    name: peer.name.clone(),
                    is_borrowed: true,
                }
            }
            Device::Packet | Device::Xdp => {
                let ours = Namespace::new("ours")?;
                let name = &peer.name;
                ours.ip(&format!(
                    "link add veth0 type veth peer name veth0 netns {name}"
                ))?;
                ours.ip("link set veth0 up")?;
                ours
            }
        };
        peer.ip(&format!("addr add {THEIRS}/24 dev {interface}"))?;
        peer.ip(&format!("link set {interface} up"))?;
        if device == Device::Xdp {
            // A frame that is redirected has the checksum of its sender.
            run(peer.command("ethtool").args(["-K", interface, "tx", "off"]))?;
        }
        Ok(Ends { ours, peer, device })
    }

    /// Gives the peer an address of IPv6, too.
    pub(crate) fn add_ipv6(&self) -> Result<(), Failed> {
        self.peer.add_ipv6(self.device.names().1, THEIRS_V6)
    }

    /// The launcher in our namespace; the caller adds the program.
    pub(crate) fn launcher(&self, options: &[&str]) -> Command {
        let mut command = self.ours.command(env!("CARGO_BIN_EXE_dominoes-run"));
        let (kind, interface) = self.device.names();
        let (kind, address) = (format!("--{kind}"), format!("{OURS}/24"));
        command.env("DOMINOES_LIBRARY", library());
        command.args([&kind, interface, "--addr", &address, "--stats"]);
        command.args(options).arg("--");
        command
    }
}

/// The library, in the profile of this program. Cargo builds it for no test. With `--workspace` it
/// has the features of `cargo test --workspace`, so this compiles nothing else a second time. A
/// library that exists already can be named in `DOMINOES_LIBRARY`.
pub(crate) fn library() -> &'static Path {
    static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
        if let Some(path) = std::env::var_os("DOMINOES_LIBRARY") {
            return path.into();
        }
        let folder = Path::new(env!("CARGO_BIN_EXE_dominoes-run")).parent();
        let folder = folder.unwrap_or(Path::new("."));
        let profile = match folder.file_name().and_then(|name| name.to_str()) {
            Some("debug") | None => "test",
            Some(profile) => profile,
        };
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args([
            "build",
            "--quiet",
            "--workspace",
            "--lib",
            "--profile",
            profile,
        ]);
        command
            .arg("--target-dir")
            .arg(folder.parent().unwrap_or(folder));
        command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let status = command.stdin(Stdio::null()).status();
        assert!(
            status.is_ok_and(|status| status.success()),
            "the library does not compile"
        );
        folder.join("libdominoes_preload.so")
    });
    &BUILT
}

/// A network namespace with a name that no other process uses.
pub(crate) struct Namespace {
    pub(crate) name: String,
    is_borrowed: bool,
}

impl Namespace {
    fn new(role: &str) -> Result<Namespace, Failed> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let name = format!("preload-{process}-{number}-{role}");
        run(Command::new("ip").args(["netns", "add", &name]))?;
        let namespace = Namespace {
            name,
            is_borrowed: false,
        };
        namespace.ip("link set lo up")?;
        // The kernel's neighbour discovery would mix its frames with ours.
        let quiet = "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6 || true";
        run(namespace.command("sh").args(["-c", quiet]))?;
        Ok(namespace)
    }

    pub(crate) fn add_ipv6(&self, interface: &str, address: &str) -> Result<(), Failed> {
        let on = format!("echo 0 > /proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
        run(self.command("sh").args(["-c", &on]))?;
        self.ip(&format!("addr add {address}/64 dev {interface} nodad"))
            .map(drop)
    }

    pub(crate) fn ip(&self, arguments: &str) -> Result<String, Failed> {
        let mut command = Command::new("ip");
        run(command.args(["-n", &self.name]).args(arguments.split(' ')))
    }

    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if !self.is_borrowed {
            let _ = run(Command::new("ip").args(["netns", "del", &self.name]));
        }
    }
}

/// Runs a program to its end, and returns its output.
///
/// # Errors
/// If it fails, or takes too long.
pub(crate) fn run(command: &mut Command) -> Result<String, Failed> {
    let mut server = Server::spawn(command)?;
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = server.child.try_wait()? {
            break status;
        }
        if Instant::now() > deadline {
            return Err(format!("{command:?} takes too long: {}", server.text()).into());
        }
        thread::sleep(Duration::from_millis(5));
    };
    server
        .readers
        .drain(..)
        .for_each(|reader| drop(reader.join()));
    match status.success() {
        true => Ok(server.text()),
        false => Err(format!("{command:?}: {status}: {}", server.text()).into()),
    }
}

/// A running program. It is killed on drop.
pub(crate) struct Server {
    child: Child,
    out: Arc<Mutex<String>>,
    err: Arc<Mutex<String>>,
    readers: Vec<thread::JoinHandle<()>>,
}

impl Server {
    /// Starts a program, and waits until it prints `words`.
    pub(crate) fn start(command: &mut Command, words: &str) -> Result<Server, Failed> {
        let mut server = Server::spawn(command)?;
        let deadline = Instant::now() + PATIENCE;
        while !server.text().contains(words) {
            if server.child.try_wait()?.is_some() || Instant::now() > deadline {
                return Err(format!("{command:?} does not serve: {}", server.text()).into());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    fn spawn(command: &mut Command) -> Result<Server, Failed> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let (out, err) = (Arc::default(), Arc::default());
        let readers = vec![
            collect(child.stdout.take().map(BufReader::new), &out),
            collect(child.stderr.take().map(BufReader::new), &err),
        ];
        Ok(Server {
            child,
            out,
            err,
            readers,
        })
    }

    /// All that it has printed.
    pub(crate) fn text(&self) -> String {
        let text =
            |text: &Mutex<String>| text.lock().unwrap_or_else(PoisonError::into_inner).clone();
        text(&self.out) + &text(&self.err)
    }

    /// Waits until it ends, and returns all that it has printed.
    pub(crate) fn wait(mut self) -> Result<String, Failed> {
        let deadline = Instant::now() + PATIENCE;
        while self.child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                return Err(format!("it does not end: {}", self.text()).into());
            }
            thread::sleep(Duration::from_millis(5));
        }
        self.readers
            .drain(..)
            .for_each(|reader| drop(reader.join()));
        Ok(self.text())
    }

    /// Ends it in order, with `SIGTERM`, and returns all that it has printed.
    pub(crate) fn end(self) -> Result<String, Failed> {
        let id = self.child.id().to_string();
        run(Command::new("kill").args(["-TERM", &id]))?;
        self.wait()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collect(
    pipe: Option<impl BufRead + Send + 'static>,
    into: &Arc<Mutex<String>>,
) -> thread::JoinHandle<()> {
    let into = Arc::clone(into);
    thread::spawn(move || {
        for line in pipe
            .into_iter()
            .flat_map(BufRead::lines)
            .map_while(Result::ok)
        {
            let mut text = into.lock().unwrap_or_else(PoisonError::into_inner);
            text.push_str(&line);
            text.push('\n');
        }
    })
}
