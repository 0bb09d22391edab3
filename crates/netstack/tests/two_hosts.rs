//! A stack of any kind that is driven by hand, beside another host on its network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use dominoes_drivers::Device;
use dominoes_drivers::memory::{self, MemoryConfig, MemoryDevice};
use dominoes_netstack::testkit::Variant;
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::groups::{self, INBOX};
use dominoes_netstack::variants::{self, Setup, single::Single};
use dominoes_netstack::{Ipv6Config, Sockets};

/// The groups of a stack, each driven by hand.
pub(crate) type Groups = Vec<Box<dyn variants::Variant>>;

/// The address of a host in a family.
pub(crate) fn address(is_v4: bool, host: u8) -> IpAddr {
    match is_v4 {
        true => Ipv4Addr::new(10, 0, 0, host).into(),
        false => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host.into()).into(),
    }
}

/// A host with its address of either family.
pub(crate) fn setup(host: u8) -> Setup {
    let config = Ipv6Config::default()
        .autoconfigure(false)
        .duplicate_probes(0);
    let setup = Setup::new(address(true, host), 24, [u64::from(host), 7]);
    match address(false, host) {
        IpAddr::V6(v6) => setup.ipv6(config.address(v6, 64)),
        IpAddr::V4(_) => setup,
    }
}

/// A stack of three groups.
pub(crate) fn three_groups(setup: Setup, device: impl Device + 'static) -> Groups {
    let parts = groups::divide(setup, 3, Box::new(device), INBOX).unwrap();
    let group = |(setup, device)| -> Box<dyn variants::Variant> {
        Box::new(Single::new(setup, Box::new(device)).unwrap())
    };
    parts.into_iter().map(group).collect()
}

/// The stack, which is host 1, and host 2.
pub(crate) struct TwoHosts {
    pub(crate) stacks: Groups,
    pub(crate) host: Single,
    pub(crate) now: Instant,
}

impl TwoHosts {
    /// In every variant, and in three groups.
    pub(crate) fn all(setup: fn(u8) -> Setup) -> impl Iterator<Item = TwoHosts> {
        let by_variant = Variant::ALL.into_iter().map(move |variant| {
            TwoHosts::over(setup, |setup, device| {
                vec![variant.build(setup, Box::new(device)).unwrap()]
            })
        });
        by_variant.chain([TwoHosts::over(setup, three_groups)])
    }

    /// With the stack that `build` makes.
    pub(crate) fn over(
        setup: fn(u8) -> Setup,
        build: impl Fn(Setup, MemoryDevice) -> Groups,
    ) -> TwoHosts {
        let (here, there) = memory::pair(MemoryConfig::default());
        let mut hosts = TwoHosts {
            stacks: build(setup(1), here),
            host: Single::new(setup(2), Box::new(there)).unwrap(),
            now: Instant::from_millis(1),
        };
        hosts.turn();
        hosts
    }

    pub(crate) fn sockets(&self) -> Sockets {
        groups::sockets(self.stacks.iter().map(|stack| stack.sockets()))
    }

    /// Lets what is on its way arrive. Replicas agree afterwards.
    pub(crate) fn turn(&mut self) {
        for _ in 0..60 {
            self.now += Duration::from_micros(50);
            for stack in &mut self.stacks {
                stack.turn(self.now);
            }
            self.host.turn(self.now);
        }
        for stack in &self.stacks {
            stack.compare().unwrap();
        }
    }
}
