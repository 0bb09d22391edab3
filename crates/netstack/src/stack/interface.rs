//! An interface of a running stack: its addresses and routes.

use core::fmt;
use core::str::FromStr;
use std::net::IpAddr;

use dominoes_drivers::Device;

use crate::error::StackError;
use crate::ip::route::Route;
use crate::ip::v6::Ipv6Config;
use crate::variants::Setup;

/// An interface after the first, for [`Builder::interface`](super::Builder::interface).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// At least one.
    addresses: Vec<String>,
    ipv6: Option<Ipv6Config>,
    gateways: Vec<IpAddr>,
    routes: Vec<Route>,
    any_address: bool,
}

/// An interface and its device.
pub(super) struct Attached {
    pub(super) interface: Interface,
    pub(super) device: Box<dyn Device>,
}

impl fmt::Debug for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.interface.fmt(f)
    }
}

impl Interface {
    /// An interface with this address and prefix, as in `10.0.0.1/24` or `2001:db8::1/64`.
    pub fn new(address: &str) -> Self {
        Interface {
            addresses: vec![address.to_owned()],
            ..Interface::default()
        }
    }

    /// As [`Builder::address`](super::Builder::address).
    #[must_use]
    pub fn address(mut self, address: &str) -> Self {
        self.addresses.push(address.to_owned());
        self
    }

    /// As [`Builder::ipv6`](super::Builder::ipv6).
    #[must_use]
    pub fn ipv6(mut self, ipv6: Ipv6Config) -> Self {
        self.ipv6 = Some(ipv6);
        self
    }

    /// As [`Builder::gateway`](super::Builder::gateway).
    #[must_use]
    pub fn gateway(mut self, gateway: IpAddr) -> Self {
        self.gateways.push(gateway);
        self
    }

    /// As [`Builder::route`](super::Builder::route).
    #[must_use]
    pub fn route(mut self, route: Route) -> Self {
        self.routes.push(route);
        self
    }

    /// As [`Builder::any_address`](super::Builder::any_address).
    #[must_use]
    pub fn any_address(mut self) -> Self {
        self.any_address = true;
        self
    }

    /// The setup of the interface's groups.
    pub(super) fn setup(self, secret: [u64; 2]) -> Result<Setup, StackError> {
        let addresses = self.addresses.iter().map(|text| parse_cidr(text));
        let mut addresses = addresses.collect::<Result<Vec<_>, _>>()?;
        if addresses.is_empty() {
            return Err(StackError::Address(String::new()));
        }
        let (address, prefix) = addresses.remove(0);
        let mut setup = Setup::new(address, prefix, secret).addresses(addresses);
        setup.ipv6 = self.ipv6;
        setup.any_address = self.any_address;
        setup.routes = self.routes;
        let gateways = self.gateways.into_iter();
        setup.routes.extend(gateways.map(Route::default_via));
        Ok(setup)
    }
}

pub(crate) fn parse_cidr(text: &str) -> Result<(IpAddr, u8), StackError> {
    let bad = || StackError::Address(text.to_owned());
    let (address, prefix) = text.split_once('/').ok_or_else(bad)?;
    let address = IpAddr::from_str(address).map_err(|_| bad())?;
    let prefix: u8 = prefix.parse().map_err(|_| bad())?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    if prefix > most {
        return Err(bad());
    }
    Ok((address, prefix))
}
