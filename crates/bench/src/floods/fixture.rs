//! A client and a server, each with its end of one link; all of it goes when its owner does.

use std::io::Write;
use std::process::{ChildStdin, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use dominoes_bench::namespaces::{self, Namespace, Outcome, Process, requests_per_second, run};
use serde::{Deserialize, Serialize};

use super::server::{Said, Server, Start};
use super::{CLIENT, INTERFACE, SERVER, SERVER_V6};

/// How long something may take that takes moments.
const TIMEOUT: Duration = Duration::from_secs(20);
/// How often `wrk` is started.
const ATTEMPTS: usize = 5;
/// Connections of `wrk`.
const KEPT: &str = "-c16";

/// A task for a process that sends.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    /// `Scenario::name`.
    pub(crate) scenario: String,
    /// The server's Ethernet address.
    pub(crate) server_mac: [u8; 6],
    /// Frames or connections in a second, or connections in all.
    pub(crate) rate: u64,
    /// What the frames follow from.
    pub(crate) seed: u64,
}

/// A running server, and its link to a client.
pub(crate) struct Fixture {
    process: Process,
    input: Option<ChildStdin>,
    /// It goes when the server has ended.
    pub(crate) link: Link,
}

/// The two ends of a link.
pub(crate) struct Link {
    server: Server,
    client: Namespace,
    /// Where the server is, unless it has the other end of a TAP.
    far: Option<Namespace>,
}

impl Fixture {
    /// Makes the link and starts the server.
    pub(crate) fn new(start: Start) -> Outcome<Fixture> {
        let link = Link::new(start.server)?;
        let place = link.far.as_ref().unwrap_or(&link.client);
        let mut process = Process::start(place, &["--serve", &serde_json::to_string(&start)?])?;
        let line = process.line(TIMEOUT)?;
        if line != "ready" {
            return Err(line.into());
        }
        let input = process.input();
        link.wait_until_served()?;
        Ok(Fixture {
            process,
            input,
            link,
        })
    }

    /// Asks the server for its report.
    pub(crate) fn said(&mut self) -> Outcome<Said> {
        let input = self.input.as_mut().ok_or("the server has no input")?;
        input.write_all(b"\n")?;
        Ok(serde_json::from_str(&self.process.line(TIMEOUT)?)?)
    }
}

impl Link {
    fn new(server: Server) -> Outcome<Link> {
        let client = namespaces::namespace("client")?;
        client.shell("echo 1024 65535 > /proc/sys/net/ipv4/ip_local_port_range")?;
        let far = match server {
            Server::Tap { .. } => None,
            Server::Packet { .. } | Server::Linux => Some(namespaces::namespace("server")?),
        };
        let link = Link {
            server,
            client,
            far,
        };
        link.make()?;
        Ok(link)
    }

    /// Waits until the server answers; returns how long that took.
    pub(crate) fn wait_until_served(&self) -> Outcome<Duration> {
        let start = Instant::now();
        loop {
            let url = format!("http://{SERVER}/bytes/1");
            let mut curl = self.client.command("curl");
            // A SYN that is lost comes again after a second: another attempt comes sooner.
            curl.args(["-s", "-f", "--noproxy", "*", "--connect-timeout", "0.1"]);
            curl.args(["--max-time", "1"]);
            let asked = run(curl.args(["-o", "/dev/null", &url]));
            match asked {
                Ok(_) => return Ok(start.elapsed()),
                Err(error) if start.elapsed() > TIMEOUT => return Err(error),
                Err(_) => thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// Requests of `wrk` that were answered in a second, over `seconds`.
    pub(crate) fn wrk(&self, seconds: u64) -> Outcome<f64> {
        let duration = format!("-d{seconds}s");
        let url = format!("http://{SERVER}/bytes/1000");
        let arguments = ["-t1", KEPT, &duration, "--timeout", "9s", &url];
        // It gives up at once when its first connection cannot be opened, as while a link is down.
        for _ in 0..ATTEMPTS {
            let said = self.output("wrk", &arguments)?;
            if let Some(rate) = requests_per_second(&said) {
                return Ok(rate);
            }
            self.wait_until_served()?;
        }
        Err("wrk is not served".into())
    }

    /// Bytes of one long answer that `curl` gets in a second, over `seconds`.
    pub(crate) fn curl(&self, seconds: u64) -> Outcome<f64> {
        let seconds = seconds.to_string();
        let url = format!("http://{SERVER}/bytes/1000000000000");
        let format = "%{size_download} %{time_total}";
        let bounded = ["-s", "--noproxy", "*", "--max-time", &seconds];
        let asked = ["-o", "/dev/null", "-w", format, &url];
        // It is ended by its time, which counts as a failure.
        let said = self.output("curl", &[&bounded[..], &asked].concat())?;
        let (bytes, seconds) = said.split_once(' ').ok_or("curl says nothing")?;
        Ok(bytes.trim().parse::<f64>()? / seconds.trim().parse::<f64>()?.max(1e-3))
    }

    fn output(&self, program: &str, arguments: &[&str]) -> Outcome<String> {
        let mut command = self.client.command(program);
        let output = command.args(arguments).stdin(Stdio::null()).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Starts a process of this program in the client's namespace, and waits until it is ready.
    pub(crate) fn begin(&self, task: &Task) -> Outcome<Process> {
        let text = serde_json::to_string(task)?;
        let process = Process::start(&self.client, &["--disturb", &text])?;
        let line = process.line(TIMEOUT)?;
        if line == "ready" {
            Ok(process)
        } else {
            Err(line.into())
        }
    }

    /// Ends it, and returns its report.
    pub(crate) fn end(mut process: Process) -> Outcome<String> {
        drop(process.input());
        process.line(TIMEOUT)
    }

    /// The server's Ethernet address, as the client's kernel knows it.
    pub(crate) fn server_mac(&self) -> Outcome<[u8; 6]> {
        let server = SERVER.to_string();
        let said = self.output("ip", &["neigh", "show", &server, "dev", INTERFACE])?;
        let word = said.split(" lladdr ").nth(1);
        let word = word.and_then(|rest| rest.split_whitespace().next());
        let bytes = word.ok_or("the client does not know the server's address")?;
        let bytes: Result<Vec<u8>, _> = bytes
            .split(':')
            .map(|byte| u8::from_str_radix(byte, 16))
            .collect();
        bytes?.try_into().map_err(|_| "no Ethernet address".into())
    }

    /// The client's interface goes down, or comes up.
    pub(crate) fn set_up(&self, up: bool) -> Outcome<()> {
        let state = if up { "up" } else { "down" };
        self.client
            .ip(&format!("link set {INTERFACE} {state}"))
            .map(drop)
    }

    /// Sets the MTU of both ends; a TAP has one.
    pub(crate) fn set_mtu(&self, mtu: u16) -> Outcome<()> {
        for end in [Some(&self.client), self.far.as_ref()]
            .into_iter()
            .flatten()
        {
            end.ip(&format!("link set {INTERFACE} mtu {mtu}"))?;
        }
        Ok(())
    }

    /// Deletes the link, and makes it again.
    pub(crate) fn replace(&self) -> Outcome<()> {
        self.client.ip(&format!("link del {INTERFACE}"))?;
        self.make()
    }

    /// Makes the link, and gives its ends their addresses.
    fn make(&self) -> Outcome<()> {
        let Link {
            server,
            client,
            far,
        } = self;
        match far {
            None => drop(client.ip(&format!("tuntap add dev {INTERFACE} mode tap"))?),
            Some(far) => {
                client.join(far, INTERFACE)?;
                far.ip(&format!("link set {INTERFACE} up"))?;
            }
        }
        client.ip(&format!("addr add {CLIENT}/16 dev {INTERFACE}"))?;
        client.ip(&format!("link set {INTERFACE} up"))?;
        if let (Server::Linux, Some(far)) = (server, far) {
            far.ip(&format!("addr add {SERVER}/16 dev {INTERFACE}"))?;
            far.ip(&format!("route add 10.99.0.0/16 via {CLIENT}"))?;
            far.shell(&format!(
                "echo 0 > /proc/sys/net/ipv6/conf/{INTERFACE}/disable_ipv6"
            ))?;
            far.ip(&format!("addr add {SERVER_V6}/64 dev {INTERFACE} nodad"))?;
        }
        Ok(())
    }
}
