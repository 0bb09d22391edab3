//! Floods: raw frames at a fixed rate, slow clients and a changing link, while honest clients load
//! a server.
//!
//! [`frames`] makes the frames, [`inject`] sends them, [`clients`] are slow or many, [`server`] is
//! under load, [`fixture`] is the link between them, and [`processor`] measures their use of the
//! machine.

pub(crate) mod clients;
pub(crate) mod fixture;
pub(crate) mod frames;
pub(crate) mod inject;
pub(crate) mod processor;
pub(crate) mod server;

use std::net::{Ipv4Addr, Ipv6Addr};

use frames::Kind;

/// The server's address, in a network with a prefix of 16 bits.
pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
/// The client's address; it forwards to the senders of floods, 10.99.0.0/16, or so the server
/// believes.
pub(crate) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
/// The server's address of IPv6, in a network with a prefix of 64 bits.
pub(crate) const SERVER_V6: Ipv6Addr = Ipv6Addr::new(0xfd78, 0, 0, 0, 0, 0, 0, 1);
/// Where the server listens.
pub(crate) const PORT: u16 = 80;
/// The name of the interface at each end.
pub(crate) const INTERFACE: &str = "link0";

/// What happens while honest clients load the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// Nothing: the noise of the measurement.
    Idle,
    /// Raw frames of one kind.
    Flood(Kind),
    /// Readers of one byte a second.
    SlowReaders,
    /// Clients whose windows stay closed.
    ZeroWindows,
    /// Short connections.
    Connections,
    /// The client's interface goes down for 100 ms in each second.
    DownAndUp,
    /// The MTU is 1280 bytes and 1500 bytes by turns, 100 ms each.
    Mtu,
    /// The link is deleted and made again.
    Deleted,
}

impl Scenario {
    /// All of them, in the order in which they run.
    pub(crate) fn all() -> Vec<Scenario> {
        use Scenario::{
            Connections, Deleted, DownAndUp, Flood, Idle, Mtu, SlowReaders, ZeroWindows,
        };
        let others = [
            SlowReaders,
            ZeroWindows,
            Connections,
            DownAndUp,
            Mtu,
            Deleted,
        ];
        let floods = Kind::ALL.into_iter().map(Flood);
        [Idle].into_iter().chain(floods).chain(others).collect()
    }

    /// As on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Scenario::Idle => "calm",
            Scenario::Flood(kind) => kind.name(),
            Scenario::SlowReaders => "readers",
            Scenario::ZeroWindows => "windows",
            Scenario::Connections => "connections",
            Scenario::DownAndUp => "down-up",
            Scenario::Mtu => "mtu",
            Scenario::Deleted => "deleted",
        }
    }

    /// The scenario of this name.
    pub(crate) fn named(name: &str) -> Result<Scenario, String> {
        let found = Scenario::all().into_iter().find(|one| one.name() == name);
        found.ok_or_else(|| "no such scenario".to_owned())
    }
}
