//! The option `--addr6` of the example servers, and addresses that the network gives.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::thread;
use std::time::{Duration, Instant};

use dominoes_netstack::{Builder, Ipv6Config, Stack};

/// How long an address may take: the stack checks whether another host has it, and asks a router
/// for its prefix up to three times, 4 s apart.
const PATIENCE: Duration = Duration::from_secs(15);
/// Time between two checks of the stack's addresses.
const GLANCE: Duration = Duration::from_millis(10);

/// Waits until a server of DHCP has given an address.
pub(crate) fn wait_for_lease(stack: &Stack) -> Result<Ipv4Addr, String> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let addresses = &stack.sockets().interfaces()[0].addresses;
        let v4 = addresses.iter().find_map(|address| match address {
            IpAddr::V4(address) => Some(*address),
            IpAddr::V6(_) => None,
        });
        if let Some(address) = v4 {
            return Ok(address);
        }
        thread::sleep(GLANCE);
    }
    Err("no DHCP server gives an address".to_owned())
}

/// The IPv6 addresses of the stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Addr6 {
    /// None.
    #[default]
    Nothing,
    /// An address of the prefix that a router advertises.
    Auto,
    /// This address and its prefix, as in `fd00:78::1/64`.
    Cidr(String),
}

impl Addr6 {
    pub(crate) fn parse(word: String) -> Addr6 {
        match &*word {
            "auto" => Addr6::Auto,
            _ => Addr6::Cidr(word),
        }
    }

    pub(crate) fn add_to(&self, builder: Builder) -> Builder {
        match self {
            Addr6::Nothing => builder,
            Addr6::Auto => builder.ipv6(Ipv6Config::default()),
            Addr6::Cidr(cidr) => builder.address(cidr),
        }
    }

    /// Waits until the stack knows that no other host has its address or its link-local address.
    /// Returns all IPv6 addresses of the stack, the link-local one first.
    ///
    /// # Errors
    /// No router advertises a prefix, or another host has the address.
    pub(crate) fn wait(&self, stack: &Stack) -> Result<Vec<Ipv6Addr>, String> {
        let wanted: Option<Ipv6Addr> = match self {
            Addr6::Nothing => return Ok(Vec::new()),
            Addr6::Auto => None,
            Addr6::Cidr(cidr) => cidr.split('/').next().and_then(|text| text.parse().ok()),
        };
        let is_it = |address: &Ipv6Addr| match wanted {
            Some(wanted) => *address == wanted,
            None => !address.is_unicast_link_local(),
        };
        let deadline = Instant::now() + PATIENCE;
        loop {
            let addresses = stack.sockets().ipv6_addresses();
            let has_local = addresses.iter().any(Ipv6Addr::is_unicast_link_local);
            if has_local && addresses.iter().any(&is_it) {
                return Ok(addresses);
            }
            if Instant::now() > deadline {
                return Err(match wanted {
                    Some(wanted) => format!("another host has {wanted}"),
                    None => "no router advertises a prefix".to_owned(),
                });
            }
            thread::sleep(GLANCE);
        }
    }
}
