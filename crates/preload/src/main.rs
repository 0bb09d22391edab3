//! `dominoes-run`: runs a program with the library preloaded.

#[allow(dead_code, reason = "the library uses all of it")]
#[path = "config.rs"]
mod config;
#[path = "device.rs"]
mod device;

use std::error::Error;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use config::{Config, Kind, VARIABLES};
use dominoes_drivers::DeviceError;

/// The exit code without a device, as of a shell without the program.
const NOTHING: u8 = 127;

const USAGE: &str = "\
Runs a program whose TCP and UDP sockets use Dominoes, a TCP/IP stack in user space.

dominoes-run DEVICE --addr CIDR [OPTIONS] -- PROGRAM [ARGUMENTS]

  --tap NAME          use this TAP interface
  --tun NAME          use this TUN interface
  --packet NAME       use this network interface through AF_PACKET
  --xdp NAME          use this network interface through AF_XDP
  --addr CIDR         the stack's address and its prefix, as in 10.0.0.1/24, which the kernel
                      must not have; as often as wanted
  --addr6 CIDR        the same for IPv6
  --gateway IP        a gateway for other networks, once for each family [none]
  --replicas N        threads that run the stack, or auto [1]
  --only CIDR         use Dominoes for these destinations alone; as often as wanted
  --except CIDR       use the kernel for these destinations; as often as wanted
  --dns IP            ask this server for names; as often as wanted [libc looks them up]
  --loopback          use Dominoes for 127.0.0.0/8 and ::1, too
  --nodad             use addresses of IPv6 at once, whether or not another host has them
  --fallback          use the kernel's sockets if the stack cannot start
  --stats             print the counters of the stack when the program ends
  --log               print where the stack runs, and what each socket uses

Each option has a variable of its name, such as DOMINOES_LOG=1, which it replaces. The exit code is
the program's, or 127 with a message.

For example, with the kernel at 10.78.0.2 as the other end:
  ip tuntap add dev tap0 mode tap; ip addr add 10.78.0.2/24 dev tap0; ip link set tap0 up
  dominoes-run --tap tap0 --addr 10.78.0.1/24 -- python3 -m http.server 8000
";

/// The variables, in the order of [`VARIABLES`].
type Values = [String; VARIABLES.len()];

struct Run {
    values: Values,
    program: Vec<OsString>,
}

fn main() -> ExitCode {
    let run = match read() {
        Ok(Some(run)) => run,
        Ok(None) => {
            // A reader that has read enough closes the pipe.
            let _ = std::io::stdout().write_all(USAGE.as_bytes());
            return ExitCode::SUCCESS;
        }
        Err(error) => return fail(&*error),
    };
    match start(run) {
        Ok(never) => match never {},
        Err(error) => fail(&*error),
    }
}

fn fail(error: &dyn Error) -> ExitCode {
    eprintln!("dominoes-run: {error}");
    ExitCode::from(NOTHING)
}

/// Replaces this process by the program.
fn start(run: Run) -> Result<core::convert::Infallible, Box<dyn Error>> {
    let Run { values, program } = run;
    let [name, arguments @ ..] = &*program else {
        return Err("no program; write it after --".into());
    };
    let pairs: Vec<_> = VARIABLES.iter().zip(&values).collect();
    let value = |wanted: &str| {
        let mut pairs = pairs.iter();
        pairs
            .find(|(name, _)| **name == wanted)
            .map(|(_, value)| (*value).clone())
    };
    let config = Config::read(value)?;
    let mut command = Command::new(name);
    command.args(arguments);
    // The program opens it again. A message here is clearer than one from within the program.
    match device::check(&config) {
        Err(error) => {
            let text = format!("{}: {}", config.interface, explain(&error));
            if !config.falls_back {
                return Err(text.into());
            }
            eprintln!("dominoes-run: {text}; using the kernel's sockets");
        }
        Ok(()) => {
            let mut preload = library()?.into_os_string();
            if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|all| !all.is_empty()) {
                preload.push(":");
                preload.push(others);
            }
            command.env("LD_PRELOAD", preload);
            // The program has the number of this process.
            command.env("DOMINOES_LAUNCHED", std::process::id().to_string());
            for (name, value) in &pairs {
                command.env(format!("DOMINOES_{name}"), value);
            }
        }
    }
    Err(format!("{}: {}", name.display(), command.exec()).into())
}

/// What to do about an error. The program opens the device, so a capability of the launcher alone
/// would not do.
fn explain(error: &DeviceError) -> String {
    match error {
        DeviceError::Privilege {
            what, capability, ..
        } if capability.starts_with("CAP_") => {
            format!("{what}: the program needs {capability}; try: sudo dominoes-run ...")
        }
        error => error.to_string(),
    }
}

/// The library, which is beside this program, or at the path in `DOMINOES_LIBRARY`.
fn library() -> Result<PathBuf, Box<dyn Error>> {
    if let Some(path) = std::env::var_os("DOMINOES_LIBRARY") {
        return Ok(path.into());
    }
    let path = std::env::current_exe()?.with_file_name("libdominoes_preload.so");
    match path.exists() {
        true => Ok(path),
        false => Err(format!("{} is missing; build the package", path.display()).into()),
    }
}

/// Reads the command line; `None` if the user asks for help.
fn read() -> Result<Option<Run>, Box<dyn Error>> {
    use lexopt::Arg::{Long, Value};
    let mut values = Values::default();
    let mut set = |name: &str, text: &str| {
        let index = VARIABLES.iter().position(|other| *other == name);
        let value = &mut values[index.unwrap_or(0)];
        if !value.is_empty() {
            value.push(',');
        }
        value.push_str(text);
    };
    let mut parser = lexopt::Parser::from_env();
    let mut program = Vec::new();
    while let Some(argument) = parser.next()? {
        let option = match argument {
            Long("help") | lexopt::Arg::Short('h') => return Ok(None),
            Long(option) => option.to_owned(),
            Value(name) => {
                program.push(name);
                program.extend(parser.raw_args()?);
                break;
            }
            other => return Err(other.unexpected().into()),
        };
        let mut text = || {
            parser
                .value()?
                .into_string()
                .map_err(|_| "not UTF-8".into())
        };
        let text: &mut dyn FnMut() -> Result<String, Box<dyn Error>> = &mut text;
        match &*option {
            "addr" | "addr6" => set("ADDR", &text()?),
            "gateway" => set("GATEWAY", &text()?),
            "replicas" => set("REPLICAS", &text()?),
            "only" => set("ONLY", &text()?),
            "except" => set("EXCEPT", &text()?),
            "dns" => set("DNS", &text()?),
            "loopback" => set("LOOPBACK", "1"),
            "nodad" => set("NODAD", "1"),
            "fallback" => set("FALLBACK", "1"),
            "stats" => set("STATS", "1"),
            "log" => set("LOG", "1"),
            kind if Kind::ALL.iter().any(|(name, _)| *name == kind) => {
                set("DEVICE", &format!("{kind}:{}", text()?));
            }
            other => return Err(format!("`--{other}` is unknown; see --help").into()),
        }
    }
    for (name, value) in VARIABLES.iter().zip(&mut values) {
        if value.is_empty() {
            *value = std::env::var(format!("DOMINOES_{name}")).unwrap_or_default();
        }
    }
    Ok(Some(Run { values, program }))
}
