//! Interfaces of two namespaces, and connections over them.

use std::net::SocketAddrV4;
use std::time::Duration;

use dominoes_bench::namespaces;
pub(crate) use dominoes_bench::namespaces::{CubicAllowed, Namespace, Outcome, Process};

use super::end::{Done, Task};
use super::{Frames, KERNEL, PEER, TAP_PEER};

/// How long an end may take beyond what it was asked for.
const TIMEOUT: Duration = Duration::from_secs(40);

/// Two namespaces, joined by a veth pair, with a TAP besides.
pub(crate) struct Fixture {
    /// Where our end is; the kernel there has an address, too.
    pub(crate) ours: Namespace,
    /// Where the other end is, and the TAP.
    pub(crate) peer: Namespace,
}

impl Fixture {
    /// Makes it.
    ///
    /// # Errors
    /// Something is missing.
    pub(crate) fn new() -> Outcome<Fixture> {
        let [ours, peer] = namespaces::pair(["ours", "peer"], [KERNEL, PEER])?;
        peer.ip("tuntap add dev tap0 mode tap")?;
        peer.ip(&format!("addr add {TAP_PEER}/24 dev tap0"))?;
        peer.ip("link set tap0 up")?;
        Ok(Fixture { ours, peer })
    }

    /// Sets the offloads of all interfaces.
    ///
    /// # Errors
    /// Those of `ethtool`.
    pub(crate) fn frames(&self, frames: Frames) -> Outcome<()> {
        let on = frames == Frames::Large;
        self.ours.offloads("veth0", on)?;
        self.peer.offloads("veth0", on)?;
        self.peer.offloads("tap0", on)
    }
}

/// Both ends of one connection: ours, or the kernel in its place, and the other.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub(crate) struct Both {
    /// The one that connects.
    pub(crate) near: Done,
    /// The one that listens.
    pub(crate) far: Done,
}

/// Runs one connection.
///
/// # Errors
/// An end fails, or does not end.
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

/// Where the other end listens.
pub(crate) fn server(address: std::net::Ipv4Addr) -> SocketAddrV4 {
    SocketAddrV4::new(address, super::PORT)
}
