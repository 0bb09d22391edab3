//! Interfaces that the tests create in their namespace, with the kernel as the other end.

use super::INSIDE;
use super::support::packet::{self, Path};
use super::support::{Port, TIMEOUT};
use dominoes_drivers::af_packet::{AfPacket, AfPacketOptions};
use dominoes_drivers::tun::TunOptions;
use dominoes_drivers::{Frame, IP_MAC, IP_PEER_MAC};
use std::env;
use std::net::{Ipv4Addr, UdpSocket};
use std::process::{Command, ExitCode};
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

/// The kernel as the other end of a link.
pub(crate) struct Peer {
    /// The interface on our side, which tests set down or delete.
    pub(crate) ours: String,
    /// The interface that has the kernel's address.
    pub(crate) kernels: String,
    pub(crate) subnet: u8,
}

impl Peer {
    pub(crate) fn address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 78, self.subnet, 2)
    }

    /// The address that the tests use. No interface has it.
    pub(crate) fn our_address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 78, self.subnet, 1)
    }

    pub(crate) fn mac(&self) -> [u8; 6] {
        if self.kernels.starts_with("tun") {
            return IP_PEER_MAC;
        }
        let text = std::fs::read_to_string(format!("/sys/class/net/{}/address", self.kernels));
        // Before sysfs is mounted in the new namespace, it shows the old one; ask `ip` then.
        let text = text.unwrap_or_else(|_| {
            let output = Command::new("ip")
                .args(["-o", "link", "show", "dev", &self.kernels])
                .output()
                .unwrap();
            let line = String::from_utf8(output.stdout).unwrap();
            line.split("link/ether ")
                .nth(1)
                .unwrap()
                .split(' ')
                .next()
                .unwrap()
                .to_owned()
        });
        let mut mac = [0; 6];
        for (place, byte) in mac.iter_mut().zip(text.trim().split(':')) {
            *place = u8::from_str_radix(byte, 16).unwrap();
        }
        mac
    }

    /// Adds our Ethernet address to the kernel's neighbor table, so that it need not ask.
    pub(crate) fn introduce(&self, mac: [u8; 6]) {
        if mac == IP_MAC {
            return;
        }
        let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
        ip(&format!(
            "neigh replace {} lladdr {mac} dev {}",
            self.our_address(),
            self.kernels
        ));
    }

    /// Sends `each` datagrams of each of 64 flows to the queues of a device. Returns how many of
    /// each flow came to which queue. The frames stay in `kept` if there is one.
    pub(crate) fn flows_by_queue(
        &self,
        ports: &mut [Port],
        each: usize,
        mut kept: Option<&mut Vec<Frame>>,
    ) -> Vec<[usize; 4]> {
        self.introduce(ports[0].mac);
        let mut seen = vec![[0; 4]; 64];
        for flow in 0..64_u16 {
            let socket = self.socket();
            for _ in 0..each {
                let payload = flow.to_be_bytes();
                socket.send_to(&payload, (self.our_address(), 9)).unwrap();
            }
        }
        let deadline = Instant::now() + TIMEOUT;
        let mut frames = Vec::new();
        while seen.iter().flatten().sum::<usize>() < each * seen.len() {
            for (queue, port) in ports.iter_mut().enumerate() {
                port.rx.claim(32, &mut frames).unwrap();
                for payload in frames.iter().filter_map(|frame| packet::parse_udp(frame)) {
                    seen[usize::from(u16::from_be_bytes([payload[0], payload[1]]))][queue] += 1;
                }
                match &mut kept {
                    Some(kept) => kept.append(&mut frames),
                    None => port.rx.release(&mut frames),
                }
            }
            assert!(Instant::now() < deadline, "{seen:?}");
        }
        seen
    }

    /// A datagram that each queue sends arrives.
    pub(crate) fn hears_every_queue(&self, ports: &mut [Port]) {
        let socket = self.socket();
        for port in ports {
            let path = self.path(port, 7, socket.local_addr().unwrap().port());
            let packet = packet::udp(path, b"from every queue", None);
            assert_eq!(port.tx.transmit(&[packet.frame()]), Ok(1));
            assert_eq!(socket.recv(&mut [0; 100]).unwrap(), 16);
        }
    }

    pub(crate) fn path(&self, port: &Port, from: u16, to: u16) -> Path {
        Path {
            from_mac: port.mac,
            to_mac: self.mac(),
            from: (self.our_address(), from),
            to: (self.address(), to),
        }
    }

    pub(crate) fn socket(&self) -> UdpSocket {
        let socket = UdpSocket::bind((self.address(), 0)).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket
    }
}

pub(crate) static NEXT_SUBNET: AtomicU8 = AtomicU8::new(1);

/// Two joined interfaces: the left one is ours, the right one has the kernel's address. Deleted
/// when dropped.
pub(crate) struct Veth {
    pub(crate) left: String,
    pub(crate) right: String,
    pub(crate) subnet: u8,
}

impl Veth {
    pub(crate) fn new() -> Self {
        Self::with("", "")
    }

    /// Two interfaces that are down and have no address.
    pub(crate) fn named(left: &str, right: &str) -> Self {
        ip(&format!("link add {left} type veth peer name {right}"));
        Self {
            left: left.to_owned(),
            right: right.to_owned(),
            subnet: 0,
        }
    }

    /// As [`new`](Self::new), with more arguments for both interfaces, and for the right one's
    /// type.
    pub(crate) fn with(both: &str, peer: &str) -> Self {
        let subnet = NEXT_SUBNET.fetch_add(1, Relaxed);
        let (left, right) = (format!("left{subnet}"), format!("right{subnet}"));
        let both = if both.is_empty() {
            String::new()
        } else {
            format!("{both} ")
        };
        let peer = if peer.is_empty() {
            String::new()
        } else {
            format!(" {peer}")
        };
        ip(&format!(
            "link add {left} {both}type veth peer name {right}{peer}"
        ));
        let veth = Self {
            left,
            right,
            subnet,
        };
        ip(&format!("addr add 10.78.{subnet}.2/24 dev {}", veth.right));
        ip(&format!("link set {} up", veth.right));
        bring_up(&veth.left);
        wait_until_running(&veth.right);
        veth
    }

    pub(crate) fn open_left(&self) -> Port {
        self.open_left_with(AfPacketOptions::default())
    }

    pub(crate) fn open_left_with(&self, options: AfPacketOptions) -> Port {
        let options = options.address(self.peer().our_address());
        Port::new(AfPacket::open(&self.left, options).unwrap())
    }

    pub(crate) fn open_right(&self) -> Port {
        Port::new(AfPacket::open(&self.right, AfPacketOptions::default()).unwrap())
    }

    pub(crate) fn peer(&self) -> Peer {
        Peer {
            ours: self.left.clone(),
            kernels: self.right.clone(),
            subnet: self.subnet,
        }
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        let _ = try_ip(&format!("link del {}", self.left));
    }
}

/// A TAP interface that has the kernel's address. Removed with its device.
pub(crate) struct TapInterface {
    pub(crate) name: String,
    pub(crate) subnet: u8,
}

impl TapInterface {
    pub(crate) fn new(options: dominoes_drivers::tap::TapOptions) -> (Port, Self) {
        let subnet = NEXT_SUBNET.fetch_add(1, Relaxed);
        let name = format!("tap{subnet}");
        let port = Port::new(options.open(&name).unwrap());
        ip(&format!("addr add 10.78.{subnet}.2/24 dev {name}"));
        bring_up(&name);
        (port, Self { name, subnet })
    }

    pub(crate) fn peer(&self) -> Peer {
        Peer {
            ours: self.name.clone(),
            kernels: self.name.clone(),
            subnet: self.subnet,
        }
    }
}

/// A TUN interface that has the kernel's address. Removed with its device.
pub(crate) fn tun(options: TunOptions) -> (Port, Peer) {
    let subnet = NEXT_SUBNET.fetch_add(1, Relaxed);
    let name = format!("tun{subnet}");
    let port = Port::new(options.open(&name).unwrap());
    let kernels = name.clone();
    ip(&format!("addr add 10.78.{subnet}.2/24 dev {name}"));
    bring_up(&name);
    let peer = Peer {
        ours: name,
        kernels,
        subnet,
    };
    (port, peer)
}

/// Runs this program again in a new network namespace.
pub(crate) fn enter_namespace() -> Result<ExitCode, String> {
    let program = env::current_exe().map_err(|error| error.to_string())?;
    // For root a network namespace is enough; other users become root of a user namespace first.
    let flags = ["-n", "-Urn"].into_iter().find(|flags| {
        Command::new("unshare")
            .args([flags, "true"])
            .output()
            .is_ok_and(|output| output.status.success())
    });
    let flags = flags.ok_or("needs CAP_SYS_ADMIN, or user namespaces: unshare -Urn fails")?;
    let status = Command::new("unshare")
        .arg(flags)
        .arg(program)
        .args(env::args_os().skip(1))
        .env(INSIDE, "1")
        .status();
    let status = status.map_err(|error| error.to_string())?;
    Ok(status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .map_or(ExitCode::FAILURE, ExitCode::from))
}

pub(crate) fn try_ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "ip {arguments}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    ))
}

pub(crate) fn ip(arguments: &str) {
    try_ip(arguments).unwrap();
}

/// Sets an interface up and waits until it carries frames.
pub(crate) fn bring_up(interface: &str) {
    ip(&format!("link set {interface} up"));
    wait_until_running(interface);
}

/// An interface that was just set up silently drops frames for a moment.
pub(crate) fn wait_until_running(interface: &str) {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let output = Command::new("ip")
            .args(["-o", "link", "show", "dev", interface])
            .output()
            .unwrap();
        let line = String::from_utf8(output.stdout).unwrap();
        // A TAP interface does not report its state.
        if line.contains(" state UP ")
            || line.contains(",LOWER_UP> ") && line.contains(" state UNKNOWN ")
        {
            return;
        }
        assert!(Instant::now() < deadline, "it does not come up: {line}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Checks that each flow has one queue, and that they share the queues.
pub(crate) fn flows_are_spread(seen: &[[usize; 4]], each: usize) {
    assert!(seen.iter().all(|queues| queues.contains(&each)), "{seen:?}");
    let used = (0..4).filter(|&queue| seen.iter().any(|queues| queues[queue] > 0));
    assert!(used.count() > 1, "all flows share a queue: {seen:?}");
}
