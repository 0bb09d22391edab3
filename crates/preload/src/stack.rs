//! The stack of this process, which starts with the first socket that needs it.

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use dominoes_netstack::{Ipv6Config, Limits, Sockets, Stack};

use crate::config::Config;
use crate::sys::{self, Fd, Kept};
use crate::{device, drive, table};

/// The exit code of a program that cannot have its sockets.
const NO_STACK: i32 = 127;
/// How long the peers of a program that ends have to acknowledge its last bytes.
const LINGER: Duration = Duration::from_secs(3);
/// How long the stack checks whether another host has its IPv6 address.
const IPV6_PATIENCE: Duration = Duration::from_secs(5);

/// The settings; `None` without the launcher, or if they are wrong.
static CONFIG: LazyLock<Option<Config>> = LazyLock::new(|| {
    let value = |name: &str| std::env::var(format!("DOMINOES_{name}")).ok();
    value("DEVICE")?;
    let config = Config::read(value);
    config.inspect_err(|error| say(error)).ok()
});

/// The running stack; `None` if this process uses the kernel's sockets.
static STARTED: OnceLock<Option<Sockets>> = OnceLock::new();
/// The stack itself, until the process ends.
static STACK: Mutex<Option<Stack>> = Mutex::new(None);
/// Keeps other processes off the device.
static DEVICE_LOCK: OnceLock<UnixListener> = OnceLock::new();
/// The process that this copy of the library belongs to.
static PROCESS: AtomicI32 = AtomicI32::new(0);
/// Whether this process is a fork of one with a stack.
static IS_FORK: AtomicBool = AtomicBool::new(false);
/// Whether the stack closes its descriptors, on any thread.
static IS_ENDING: AtomicBool = AtomicBool::new(false);
static LEAST: OnceLock<Fd> = OnceLock::new();

/// Counters for `--stats`.
pub(crate) static OURS: AtomicU64 = AtomicU64::new(0);
/// The sockets of ours that are open.
pub(crate) static OPEN: AtomicU64 = AtomicU64::new(0);
pub(crate) static KERNELS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Whether this thread opens descriptors for the stack.
    static IS_STARTING: Cell<bool> = const { Cell::new(false) };
}

/// Prints a line to the standard error stream.
pub(crate) fn say(text: &str) {
    eprintln!("dominoes[{}]: {text}", sys::process());
}

/// As [`say`], if `DOMINOES_LOG` is set.
pub(crate) fn log(text: impl FnOnce() -> String) {
    if config().is_some_and(|config| config.logs) {
        say(&text());
    }
}

pub(crate) fn config() -> Option<&'static Config> {
    CONFIG.as_ref()
}

/// Remembers the process, and what happens at its end. Called when the library is loaded.
pub(crate) extern "C" fn load() {
    PROCESS.store(sys::process(), Ordering::Relaxed);
    is_preloaded();
    table::prepare();
    sys::call_at_exit_and_fork(end, in_child);
}

/// Runs in a forked child before `fork` returns.
extern "C" fn in_child() {
    PROCESS.store(sys::process(), Ordering::Relaxed);
    if STARTED.get().is_some_and(Option::is_some) {
        IS_FORK.store(true, Ordering::Relaxed);
    }
    // The parent holds the device as long as it lives, and no longer.
    if let Some(lock) = DEVICE_LOCK.get() {
        let _ = sys::close(lock.as_raw_fd());
    }
}

/// Whether the sockets of this process belong to its parent. They fail with `ENETDOWN`.
#[inline]
pub(crate) fn is_fork() -> bool {
    IS_FORK.load(Ordering::Relaxed)
}

/// Whether the caller is a child of `vfork`, which shares the memory of its parent.
pub(crate) fn is_borrowed() -> bool {
    sys::process() != PROCESS.load(Ordering::Relaxed)
}

/// Whether a new socket may become ours: not one of the stack itself, nor in a forked child.
pub(crate) fn takes_sockets() -> bool {
    config().is_some() && !IS_STARTING.get() && !is_fork()
}

/// Whether this process is the one that the launcher started, or there was none.
fn is_launched() -> bool {
    let launched = std::env::var("DOMINOES_LAUNCHED");
    launched.map_or(true, |launched| launched == sys::process().to_string())
}

/// Whether this library was preloaded, so that every socket may become ours; in a program that is
/// linked with it only those of `dominoes_socket`.
pub(crate) fn is_preloaded() -> bool {
    static IS_PRELOADED: LazyLock<bool> = LazyLock::new(|| {
        let all = std::env::var_os("LD_PRELOAD").unwrap_or_default();
        let mut paths = all.as_bytes().split(|byte| matches!(byte, b':' | b' '));
        paths.any(|path| path == sys::library_path(load as *const ()))
    });
    *IS_PRELOADED
}

/// The least number of this library's descriptors.
pub(crate) fn least_descriptor() -> Fd {
    *LEAST.get_or_init(sys::reserve_descriptors)
}

/// Whether a destination is ours, and the stack runs. Starts it.
pub(crate) fn for_remote(remote: SocketAddr) -> Option<&'static Sockets> {
    config().filter(|config| config.routes(remote.ip()))?;
    sockets()
}

/// As [`for_remote`], for a socket that is bound to `local`.
pub(crate) fn for_local(local: SocketAddr) -> Option<&'static Sockets> {
    config().filter(|config| config.binds(local.ip()))?;
    sockets()
}

/// Whether this thread may close descriptors of the stack: it starts, or the stack ends.
pub(crate) fn may_close_internal() -> bool {
    IS_STARTING.get() || IS_ENDING.load(Ordering::Relaxed)
}

/// The sockets of the stack, started if need be.
pub(crate) fn sockets() -> Option<&'static Sockets> {
    if is_fork() {
        return None;
    }
    let config = config()?;
    STARTED.get_or_init(|| start(config)).as_ref()
}

/// The sockets of the stack, if it runs.
pub(crate) fn running() -> Option<&'static Sockets> {
    STARTED.get()?.as_ref()
}

fn start(config: &Config) -> Option<Sockets> {
    IS_STARTING.set(true);
    let before = descriptors();
    let started = sys::without_signals(|| try_start(config));
    // The program must not close the descriptors of the stack. The list contains the descriptor by
    // which it was read, which is closed again.
    for fd in descriptors().difference(&before) {
        if sys::flags(*fd, libc::F_GETFD).is_ok() {
            table::mark_internal(*fd);
        }
    }
    IS_STARTING.set(false);
    match started {
        Ok(sockets) => {
            log(|| format!("the stack runs at {}", config.addresses[0]));
            Some(sockets)
        }
        Err(Failed::Taken) => {
            let text = || {
                let name = &config.interface;
                format!("another process runs the stack on {name}; the kernel's sockets are used")
            };
            if is_launched() {
                say(&text())
            } else {
                log(text)
            }
            None
        }
        Err(Failed::Other(error)) if config.falls_back => {
            log(|| format!("{error}; the kernel's sockets are used"));
            None
        }
        Err(Failed::Other(error)) => {
            say(&error);
            sys::exit_now(NO_STACK)
        }
    }
}

enum Failed {
    /// Another process has the device.
    Taken,
    Other(String),
}

/// The name of the abstract Unix socket by which processes exclude each other from a device. It
/// exists once per network namespace.
fn lock_name(config: &Config) -> String {
    format!("dominoes-preload/{}", config.interface)
}

fn try_start(config: &Config) -> Result<Sockets, Failed> {
    let other = |error: &dyn core::fmt::Display| Failed::Other(error.to_string());
    let name = UnixAddr::from_abstract_name(lock_name(config)).map_err(|error| other(&error))?;
    let lock = UnixListener::bind_addr(&name).map_err(|_| Failed::Taken)?;
    // Makes room for the high numbers. Once there are threads, the kernel would wait for them.
    let _ = Kept::duplicate(lock.as_raw_fd(), least_descriptor());
    let device = device::open(config)
        .map_err(|error| Failed::Other(format!("{}: {error}", config.interface)))?;
    let _ = DEVICE_LOCK.set(lock);
    let mut limits = Limits::default();
    limits.udp_sockets = 4096;
    let mut builder = Stack::builder(&config.addresses[0].to_string()).limits(limits);
    for address in &config.addresses[1..] {
        builder = builder.address(&address.to_string());
    }
    let has_ipv6 = config.addresses.iter().any(|cidr| cidr.address.is_ipv6());
    if config.trusts_addresses && has_ipv6 {
        builder = builder.ipv6(Ipv6Config::default().duplicate_probes(0));
    }
    for gateway in &config.gateways {
        builder = builder.gateway(*gateway);
    }
    builder = match config.replicas {
        0 => builder.replicas_up_to(thread::available_parallelism().map_or(1, usize::from)),
        1 => builder.replicas_up_to(1),
        replicas => builder.replicas(replicas),
    };
    let stack = builder.start(device).map_err(|error| other(&error))?;
    let sockets = stack.sockets();
    drive::start(&sockets);
    *STACK.lock().unwrap_or_else(PoisonError::into_inner) = Some(stack);
    await_ipv6(config, &sockets);
    Ok(sockets)
}

/// Waits until the stack knows that no other host has its IPv6 address.
fn await_ipv6(config: &Config, sockets: &Sockets) {
    let until = Instant::now() + IPV6_PATIENCE;
    for cidr in &config.addresses {
        let IpAddr::V6(wanted) = cidr.address else {
            continue;
        };
        while !sockets.ipv6_addresses().contains(&wanted) && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The open descriptors of this process.
fn descriptors() -> BTreeSet<Fd> {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter_map(|name| name.parse().ok()).collect()
}

/// Ends the stack in order when the process ends: its peers get the last bytes and a FIN.
pub(crate) extern "C" fn end() {
    if is_fork() || is_borrowed() {
        return;
    }
    if running().is_none() {
        if config().is_some_and(|config| config.prints_stats) && is_launched() {
            say("no socket used Dominoes");
        }
        return;
    }
    let stack = STACK.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(stack) = stack else { return };
    let Some(_waits) = drive::end() else {
        // Its end would wait for the thread that has it.
        core::mem::forget(stack);
        return;
    };
    if config().is_some_and(|config| config.prints_stats) {
        let stats = stack.stats();
        say(&format!(
            "{} sockets used Dominoes, {} are open; {} used the kernel",
            OURS.load(Ordering::Relaxed),
            OPEN.load(Ordering::Relaxed),
            KERNELS.load(Ordering::Relaxed)
        ));
        let counters = stats.pump.named().chain(stats.state.named());
        for (name, value) in counters.filter(|(_, value)| *value > 0) {
            say(&format!("{name} {value}"));
        }
    }
    IS_ENDING.store(true, Ordering::Relaxed);
    if let Err(error) = stack.close(LINGER) {
        log(|| error.to_string());
    }
}
