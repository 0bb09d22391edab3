//! Interfaces of two namespaces, and connections over them.

use std::net::SocketAddrV4;
use std::time::Duration;

use dominoes_bench::namespaces;
pub(crate) use dominoes_bench::namespaces::{CubicAllowed, Namespace, Outcome, Process};

use super::end::{Done, Task};
use super::{Device, Frames, KERNEL, PEER};

/// The longest time that an end may take in addition to its task.
const TIMEOUT: Duration = Duration::from_secs(40);

/// Two namespaces, joined by a veth pair, and a TAP and a TUN.
pub(crate) struct Fixture {
    /// The namespace of our end; its kernel has an address, too.
    pub(crate) ours: Namespace,
    /// The namespace of the other end, with the TAP and the TUN.
    pub(crate) peer: Namespace,
}

impl Fixture {
    /// Creates the namespaces and interfaces.
    pub(crate) fn new() -> Outcome<Fixture> {
        let [ours, peer] = namespaces::pair(["ours", "peer"], [KERNEL, PEER])?;
        for device in [Device::Tap, Device::Tun] {
            let (interface, _, address) = device.ends();
            let mode = device.name();
            peer.ip(&format!("tuntap add dev {interface} mode {mode}"))?;
            peer.ip(&format!("addr add {address}/24 dev {interface}"))?;
            peer.ip(&format!("link set {interface} up"))?;
        }
        Ok(Fixture { ours, peer })
    }

    /// Sets the offloads of all interfaces.
    pub(crate) fn frames(&self, frames: Frames) -> Outcome<()> {
        let on = frames == Frames::Large;
        namespaces::offloads(&self.ours, "veth0", on)?;
        namespaces::offloads(&self.peer, "veth0", on)?;
        namespaces::offloads(&self.peer, "tap0", on)?;
        namespaces::offloads(&self.peer, "tun0", on)
    }
}

/// The results of both ends of one connection: ours, or the kernel's instead, and the other.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub(crate) struct Both {
    /// The end that connects.
    pub(crate) near: Done,
    /// The end that listens.
    pub(crate) far: Done,
}

/// Runs one connection.
pub(crate) fn connection(near: (&Namespace, &Task), far: (&Namespace, &Task)) -> Outcome<Both> {
    let patience = TIMEOUT + Duration::from_millis(far.1.millis.iter().sum());
    let start = |(namespace, task): (&Namespace, &Task)| {
        Process::start(namespace, &["--end", &serde_json::to_string(task)?])
    };
    let far = start(far)?;
    far.line(TIMEOUT)?;
    let near = start(near)?;
    let near_done = serde_json::from_str(&near.line(patience)?)?;
    let far_done = serde_json::from_str(&far.line(patience)?)?;
    Ok(Both {
        near: near_done,
        far: far_done,
    })
}

/// The address at which the other end listens.
pub(crate) fn server(address: std::net::Ipv4Addr) -> SocketAddrV4 {
    SocketAddrV4::new(address, super::PORT)
}
