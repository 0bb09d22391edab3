//! A tunnel in the manner of tun2socks: it forwards connections and datagrams, which the kernel
//! routes into a TUN interface, through sockets of the kernel, directly or by a SOCKS5 server. A
//! SYN is held until its destination has answered, so a client is refused if we are. One thread
//! waits for all sockets.
//!
//! Here a namespace without another interface reaches everything through the tunnel. The tunnel
//! opens the interface before `ip` moves it there:
//!
//! ```text
//! cargo build --release --example tunnel
//! sudo ip netns add inside
//! sudo ip tuntap add dev tun0 mode tun
//! sudo sh -c 'ulimit -n 65536; target/release/examples/tunnel --tun tun0 --dns 9.9.9.9:53' &
//! sudo ip link set tun0 netns inside
//! sudo ip -n inside addr add 10.78.0.2/24 dev tun0
//! sudo ip -n inside link set tun0 up
//! sudo ip -n inside route add default dev tun0
//! sudo ip netns exec inside curl http://example.com/
//! ```
//!
//! `sudo -E env "PATH=$PATH" cargo test -p dominoes-tests --test host tunnel::` does this with
//! `curl`, `dig`, `iperf3`, `wrk`, 10,000 connections and a SOCKS5 server. It prints rates, and a
//! capture of a SYN that is held and of one that is refused.

#[path = "common/program.rs"]
mod program;
#[path = "tunnel/relay.rs"]
mod relay;
#[path = "tunnel/socks.rs"]
mod socks;
#[allow(dead_code, reason = "its replicas do not fail for trial")]
#[path = "common/stack.rs"]
mod stack;
#[path = "common/watch.rs"]
mod watch;

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use dominoes_netstack::{Limits, SocketError, Stack};

use program::{Arguments, Outcome};
use relay::{Relay, Route};
use stack::StackOptions;

const ABOUT: &str = "Forwards what arrives at a TUN interface, directly or through SOCKS5.\n\n";
const USAGE: &str = "  --socks IP:PORT     a SOCKS5 server for connections and datagrams
  --dns IP:PORT       who gets all questions to port 53, directly [who was asked]
  --udp-idle N        seconds after which an idle UDP session ends [120]
  --seconds N         stop after this time [never]
";

struct Options {
    stack: StackOptions,
    route: Route,
    seconds: Option<u64>,
}

impl Options {
    fn take(&mut self, option: &str, arguments: &mut Arguments) -> Outcome<bool> {
        match option {
            "socks" => self.route.socks = Some(arguments.parse()?),
            "dns" => self.route.dns = Some(arguments.parse()?),
            "udp-idle" => self.route.udp_idle = Duration::from_secs(arguments.number(1..=86_400)?),
            "seconds" => self.seconds = Some(arguments.parse()?),
            _ => return self.stack.take(option, arguments),
        }
        Ok(true)
    }
}

fn main() -> ExitCode {
    let (socks, dns, udp_idle) = (None, None, Duration::from_secs(120));
    let options = Options {
        stack: StackOptions::default(),
        route: Route {
            socks,
            dns,
            udp_idle,
        },
        seconds: None,
    };
    let usage = [ABOUT, stack::device::USAGE, stack::USAGE, USAGE];
    program::main("tunnel", &usage, options, Options::take, run)
}

fn run(options: &Options) -> Outcome<()> {
    let end_requested = watch::signals::end_requested()?;
    let Some((device, name)) = options.stack.open()? else {
        return Err("where does anything arrive? --tun NAME, for example".into());
    };
    let threads = options.stack.threads();
    // One UDP socket has the datagrams of all sessions.
    let limits = Limits::default().connections(1 << 16);
    let limits = limits.udp_receive_buffer(1 << 22).udp_send_buffer(1 << 22);
    let builder = |addr: &str| threads.set_on(Stack::builder(addr)).limits(limits);
    let stack = options
        .stack
        .start(|addr| builder(addr).any_address(), device)?;
    let mut relay = Relay::new(&stack, options.route)?;
    thread::spawn(move || match relay.run() {
        Err(error) if SocketError::of(&error) != Some(SocketError::Down) => {
            eprintln!("tunnel: {error}");
        }
        _ => {}
    });
    println!(
        "listening on all addresses, {}, device {name}",
        threads.name("replica")
    );
    watch::watch("tunnel", stack, &end_requested, options.seconds, None, None)
}
