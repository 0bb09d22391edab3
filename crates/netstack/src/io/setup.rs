//! The setup of a stack, in every variant, and the parts that are built from it.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use dominoes_drivers::{Device, DeviceRx, DeviceTx, queues};

use crate::config::Limits;
use crate::error::{ConfigError, StackError, check_queues};
use crate::host::DhcpConfig;
use crate::io::claim::Claimer;
use crate::io::record::Recorder;
use crate::io::rx::RxPump;
use crate::io::tx::TxPump;
use crate::io::tx::TxRing;
use crate::io::world::{StackShared, World};
use crate::ip::route::{MAX_ADDRESSES, Route, Site, may_be_ours_v4};
use crate::ip::v6::{Ipv6Config, is_in, may_be_ours};
use crate::keys::Keys;
use crate::log::request::{Address, GroupIndex};
use crate::packet::flow::Mac;
use crate::packet::{ETHERNET_HEADER, IPV6_MIN_MTU, MAX_HEADERS};
use crate::udp::gather::FrameBounds;

/// An interface after the first, for [`Builder::interface`](crate::Builder::interface).
///
/// Each interface works as a complete stack: it has a device, addresses, routes, neighbours, a path
/// MTU for each destination, and a state, run by the variant of the stack. Interfaces share the
/// socket table, so a listener accepts connections from any interface, and a UDP socket receives
/// from all.
///
/// - A connection that is opened, or a datagram that is sent, leaves by the interface with the
///   longest prefix that matches the destination; the first interface wins a tie. The scope of a
///   link-local address names an interface instead, counted from 1.
/// - An interface takes a packet only if the packet's destination is an address of that interface:
///   the strong end system model of RFC 1122 section 3.3.4.2. An answer leaves by the interface on
///   which the question arrived, whatever the routes say.
/// - A socket that is bound to an address is bound to its interface.
/// - A packet that the stack sends to one of its own addresses is looped back by the interface that
///   has the address; by the first interface for a loopback address (127.0.0.1, `::1`).
/// - Datagrams to a multicast group leave by the interface that the routes name, or else by the
///   first.
/// - The stack forwards nothing between interfaces; a [`Router`](crate::router::Router) does.
/// - With several [groups](crate::Builder::groups), each interface has that number of groups. Flows
///   divide among them as in a stack with one interface, and no connection leaves its interface.
///
/// Limits hold for each group of each interface, except that [`Limits::out_of_order`] is divided
/// equally among all groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// With the lengths of their prefixes in bits.
    addresses: Vec<(IpAddr, u8)>,
    /// The first that is no address with a prefix.
    wrong: Option<String>,
    /// Default: only if there is an IPv6 address.
    pub(crate) ipv6: Option<Ipv6Config>,
    routes: Vec<Route>,
    /// Whether DHCP gives an address, and how the client names itself.
    pub(crate) dhcp: bool,
    dhcp_config: DhcpConfig,
    any_address: bool,
    answers_any: bool,
}

impl Interface {
    /// An interface with this address and prefix, as in `10.0.0.1/24` or `2001:db8::1/64`, or with
    /// what DHCP gives (`dhcp`).
    pub fn new(address: &str) -> Self {
        Interface::default().address(address)
    }

    /// It, if its texts are addresses, and there is one.
    pub(crate) fn checked(mut self) -> Result<Self, StackError> {
        match self.wrong.take() {
            Some(text) => Err(StackError::Address(text)),
            None if self.addresses.is_empty() && !self.dhcp => {
                Err(StackError::Address(String::new()))
            }
            None => Ok(self),
        }
    }

    dominoes_proto::settings! {
        /// As [`Builder::address`](crate::Builder::address).
        fn address(self, address: &str) {
            match parse_cidr(address) {
                Ok(own) => self.addresses.push(own),
                Err(_) if address == DHCP => self.dhcp = true,
                Err(_) => self.wrong = self.wrong.take().or(Some(address.to_owned())),
            }
        }

        /// As [`Builder::ipv6`](crate::Builder::ipv6).
        fn ipv6(self, ipv6: Ipv6Config) { self.ipv6 = Some(ipv6) }

        /// As [`Builder::gateway`](crate::Builder::gateway).
        fn gateway(self, gateway: IpAddr) { self.routes.push(Route::default_via(gateway)) }

        /// As [`Builder::route`](crate::Builder::route).
        fn route(self, route: Route) { self.routes.push(route) }

        /// As [`Builder::dhcp_names`](crate::Builder::dhcp_names).
        fn dhcp_names(self, host_name: Option<&str>, client_id: Option<&[u8]>) {
            self.dhcp_config = DhcpConfig {
                host_name: host_name.map(str::to_owned),
                client_id: client_id.map(<[u8]>::to_vec),
            };
        }

        /// As [`Builder::any_address`](crate::Builder::any_address).
        fn any_address(self) { self.any_address = true }

        /// As [`Builder::answer_for_any_address`](crate::Builder::answer_for_any_address).
        fn answer_for_any_address(self) { self.answers_any = true }
    }
}

/// In place of an address: DHCP gives one.
const DHCP: &str = "dhcp";

/// An address and the length of its prefix, as in `10.0.0.1/24`.
pub(crate) fn parse_cidr(text: &str) -> Result<(IpAddr, u8), StackError> {
    let bad = || StackError::Address(text.to_owned());
    let (address, prefix) = text.split_once('/').ok_or_else(bad)?;
    let address: IpAddr = address.parse().map_err(|_| bad())?;
    let prefix: u8 = prefix.parse().map_err(|_| bad())?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    if prefix > most {
        return Err(bad());
    }
    Ok((address, prefix))
}

/// The setup of a group of a stack, in every variant.
#[derive(Debug)]
#[non_exhaustive]
pub struct Setup {
    /// Bounds on the contents of the log.
    pub limits: Limits,
    /// Addresses and routes.
    pub interface: Interface,
    /// Key of all numbers that attackers must not predict: sequence numbers, timestamps,
    /// identifications, ports, cookies. Should be random, and new at every start.
    pub secret: [u64; 2],
    /// Whether the address is announced at the start (RFC 5227 section 2.3). Default: no;
    /// [`Stack`](crate::Stack) does it.
    pub announce: bool,
    /// Records the log, if set.
    pub recorder: Option<Recorder>,
    /// The most outgoing frames that have one owner.
    pub(crate) frame_chunk: usize,
    /// A random number of this start of the stack.
    pub(crate) salt: u64,
    /// This group's index among the groups of its device.
    pub(crate) group: GroupIndex,
    /// This group's index among the groups of all devices, and the state that all of them share.
    pub(crate) number: u16,
    pub(crate) shared: Arc<StackShared>,
}

impl Setup {
    /// With this address and the length of its prefix in bits.
    pub fn new(address: IpAddr, prefix: u8, secret: [u64; 2]) -> Self {
        let addresses = vec![(address, prefix)];
        let interface = Interface {
            addresses,
            ..Interface::default()
        };
        Setup::of(interface, secret)
    }

    /// Default bounds, no recording.
    pub(crate) fn of(interface: Interface, secret: [u64; 2]) -> Self {
        Setup {
            limits: Limits::default(),
            interface,
            secret,
            announce: false,
            recorder: None,
            frame_chunk: usize::MAX,
            salt: 0,
            group: GroupIndex::ONLY,
            number: 0,
            shared: Arc::default(),
        }
    }

    dominoes_proto::settings! {
        /// Sets `limits`.
        fn limits(self, limits: Limits) { self.limits = limits }
        /// Adds an address of either family.
        fn also(self, address: IpAddr, prefix: u8) {
            self.interface.addresses.push((address, prefix));
        }
        /// As of an interface.
        fn ipv6(self, ipv6: Ipv6Config) { self.interface.ipv6 = Some(ipv6) }
        /// As of an interface.
        fn gateway(self, gateway: IpAddr) { self.interface = self.interface.gateway(gateway) }
        /// As of an interface.
        fn route(self, route: Route) { self.interface.routes.push(route) }
        /// As of an interface.
        fn any_address(self, any: bool) { self.interface.any_address = any }
        /// As of an interface.
        fn answer_for_any_address(self, any: bool) { self.interface.answers_any = any }
        /// Sets `recorder`.
        fn recorder(self, recorder: Recorder) { self.recorder = Some(recorder) }
        /// Sets `announce`.
        fn announce(self, announce: bool) { self.announce = announce }
    }

    /// The first address.
    ///
    /// # Panics
    /// If there is none.
    pub fn address(&self) -> IpAddr {
        self.interface.addresses[0].0
    }

    /// All addresses outside `ipv6`, with the lengths of their prefixes.
    pub(crate) fn all_addresses(&self) -> impl Iterator<Item = (IpAddr, u8)> + '_ {
        self.interface.addresses.iter().copied()
    }

    /// The IPv4 addresses among them.
    fn addresses_v4(&self) -> impl Iterator<Item = (Ipv4Addr, u8)> + '_ {
        self.all_addresses().filter_map(|own| match own {
            (IpAddr::V4(address), prefix) => Some((address, prefix)),
            _ => None,
        })
    }
}

/// Checks that no address occurs twice.
fn check_distinct<T: PartialEq>(addresses: impl Iterator<Item = T>) -> Result<(), ConfigError> {
    let mut seen = Vec::new();
    for address in addresses {
        if seen.contains(&address) {
            return Err(ConfigError::Conflict {
                what: "an address twice",
                with: "one interface",
                instead: "give it once",
            });
        }
        seen.push(address);
    }
    Ok(())
}

/// The parts that all variants share.
pub(crate) struct Base {
    pub(crate) world: Arc<World>,
    pub(crate) claimer: Claimer,
    /// For the further queues of the device, if the stack takes each by itself.
    pub(crate) more_claimers: Vec<Claimer>,
    pub(crate) rx: RxPump,
    pub(crate) tx: TxPump,
}

impl Setup {
    /// Checks prefixes and families of networks and routes.
    fn check_networks(&self) -> Result<(), ConfigError> {
        let networks = self.interface.routes.iter();
        let networks = networks.map(|route| (route.network, route.prefix));
        for (network, prefix) in networks.chain(self.all_addresses()) {
            let (most, allowed) = match network {
                IpAddr::V4(_) => (32, "0 to 32"),
                IpAddr::V6(_) => (128, "0 to 128 for IPv6"),
            };
            if prefix > most {
                return Err(ConfigError::OutOfRange {
                    field: "prefix",
                    value: u64::from(prefix),
                    allowed,
                });
            }
        }
        let mut routes = self.interface.routes.iter();
        if routes.any(|route| route.network.is_ipv4() != route.via.is_ipv4()) {
            return Err(ConfigError::Conflict {
                what: "a route to a network of one family",
                with: "a gateway of the other",
                instead: "name a gateway of the same family",
            });
        }
        Ok(())
    }

    /// The IPv6 configuration, with the IPv6 addresses of this setup added.
    fn take_ipv6(&mut self) -> Option<Ipv6Config> {
        let mut config = self.interface.ipv6.take();
        for (address, prefix) in self.all_addresses() {
            if let IpAddr::V6(address) = address {
                config = Some(config.unwrap_or_default().address(address, prefix));
            }
        }
        config
    }

    fn check_ipv4(&self) -> Result<(), ConfigError> {
        let own: Vec<_> = self.addresses_v4().map(|(address, _)| address).collect();
        if own.iter().any(|address| !may_be_ours_v4(*address)) {
            return Err(ConfigError::Conflict {
                what: "an address of no single host",
                with: "a stack",
                instead: "give a unicast address of IPv4",
            });
        }
        check_distinct(own.iter())?;
        match own.len() > MAX_ADDRESSES {
            true => Err(ConfigError::OutOfRange {
                field: "addresses",
                value: own.len() as u64,
                allowed: "64 of IPv4 at most",
            }),
            false => Ok(()),
        }
    }

    fn check_ipv6(&self, config: Option<&Ipv6Config>) -> Result<(), ConfigError> {
        let Some(config) = config else {
            let mut routes = self.interface.routes.iter();
            return match routes.any(|route| route.network.is_ipv6()) {
                true => Err(ConfigError::Conflict {
                    what: "a route of IPv6",
                    with: "a stack without IPv6",
                    instead: "set `ipv6`",
                }),
                false => Ok(()),
            };
        };
        for (address, prefix) in &config.addresses {
            if *prefix > 128 {
                return Err(ConfigError::OutOfRange {
                    field: "prefix",
                    value: u64::from(*prefix),
                    allowed: "0 to 128 for IPv6",
                });
            }
            if !may_be_ours(*address) {
                return Err(ConfigError::Conflict {
                    what: "an address of no single host",
                    with: "`Ipv6Config::addresses`",
                    instead: "give a unicast address of IPv6",
                });
            }
        }
        check_distinct(config.addresses.iter().map(|(address, _)| address))?;
        if config.addresses.len() > MAX_ADDRESSES {
            return Err(ConfigError::OutOfRange {
                field: "Ipv6Config::addresses",
                value: config.addresses.len() as u64,
                allowed: "64 at most",
            });
        }
        Ok(())
    }

    /// Checks that every gateway is a neighbour. In IPv6, routers may announce themselves later.
    fn check_gateways(&self, ipv6: Option<&Ipv6Config>) -> Result<(), ConfigError> {
        let v6 = ipv6.map_or([].as_slice(), |config| &config.addresses);
        let v6 = v6.iter().map(|(own, prefix)| (IpAddr::from(*own), *prefix));
        let v4 = self.addresses_v4();
        // IPv4 addresses are the last 32 bits.
        let v4 = v4.map(|(own, prefix)| (own.into(), 96 + prefix));
        let own: Vec<(IpAddr, u8)> = v4.chain(v6).collect();
        let learns = ipv6.is_some_and(|config| config.autoconfigure);
        let is_near = |via: IpAddr| {
            let address = Address::from(via);
            let is_ours = own.iter().any(|(own, _)| *own == via);
            let is_near = |(own, prefix): &(IpAddr, u8)| {
                own.is_ipv4() == via.is_ipv4() && is_in(address, (*own).into(), *prefix)
            };
            let may_be = via.is_ipv6() && (learns || address.is_link_local());
            !is_ours && (may_be || own.iter().any(is_near))
        };
        match self
            .interface
            .routes
            .iter()
            .find(|route| !is_near(route.via))
        {
            Some(Route { via, .. }) => Err(ConfigError::NotNeighbor { gateway: *via }),
            None => Ok(()),
        }
    }

    /// Adapts the limits to the device, and builds the parts that all variants share. With several
    /// `workers`, builders of frames also prepare them for the device.
    pub(crate) fn build(
        self,
        device: Box<dyn Device>,
        delivery_slots: usize,
        workers: usize,
    ) -> Result<Base, ConfigError> {
        self.build_divided(
            device,
            |device| vec![device.split()],
            delivery_slots,
            workers,
        )
    }

    /// As [`build`](Self::build), with a claimer for each pair of halves into which `divide`
    /// divides the device.
    pub(crate) fn build_divided(
        mut self,
        device: Box<dyn Device>,
        divide: impl FnOnce(Box<dyn Device>) -> Vec<(Box<dyn DeviceRx>, Box<dyn DeviceTx>)>,
        delivery_slots: usize,
        workers: usize,
    ) -> Result<Base, ConfigError> {
        check_queues(device.queues())?;
        self.check_networks()?;
        self.check_ipv4()?;
        let ipv6 = self.take_ipv6();
        self.check_ipv6(ipv6.as_ref())?;
        self.check_gateways(ipv6.as_ref())?;
        let addresses: Vec<_> = self.addresses_v4().collect();
        let caps = device.capabilities();
        let limits = &mut self.limits;
        limits.mtu = limits.mtu.min(u16::try_from(caps.mtu).unwrap_or(u16::MAX));
        // Only devices that cut frames take frames above the MTU.
        let cut = match ipv6 {
            Some(_) => caps.tso4_max_bytes.min(caps.tso6_max_bytes),
            None => caps.tso4_max_bytes,
        };
        let cut = cut.saturating_sub(MAX_HEADERS);
        limits.frame_payload = limits
            .frame_payload
            .min(u32::try_from(cut).unwrap_or(u32::MAX));
        limits.check()?;
        let divided = caps.uso_max_bytes.saturating_sub(ETHERNET_HEADER);
        let divides = caps.tx_checksum && divided >= usize::from(limits.mtu);
        if !divides || limits.udp_sockets == 0 {
            limits.datagrams_per_frame = 1;
        }
        let frame_bounds = match limits.datagrams_per_frame {
            1 => FrameBounds::NONE,
            datagrams => FrameBounds {
                datagrams: datagrams as u16,
                packet_len: u16::try_from(divided).unwrap_or(u16::MAX),
            },
        };
        if ipv6.is_some() && limits.mtu < IPV6_MIN_MTU {
            return Err(ConfigError::OutOfRange {
                field: "mtu",
                value: u64::from(limits.mtu),
                allowed: "at least 1280 with IPv6",
            });
        }
        let slot_len = MAX_HEADERS + usize::from(limits.mss()).max(limits.frame_payload as usize);
        let slot_len = slot_len.max(ETHERNET_HEADER + usize::from(frame_bounds.packet_len));
        let (mac, fixed_mac) = (device.mac(), caps.only_peer().map(Mac));
        // The first of several groups manages our addresses.
        let filter = device.address_filter().filter(|_| self.group.is_first());
        let (rx, tx): (Vec<_>, Vec<_>) = divide(device).into_iter().unzip();
        check_queues(rx.len())?;
        let mut tx = queues::join_tx(tx);
        let slots = limits.tx_slots as usize;
        let preparer = (workers > 1).then(|| tx.preparer(slots)).flatten();
        // Room for a segment of the MTU, or for a longer frame's headers: a device that cuts
        // frames reads their payload elsewhere.
        let touched = MAX_HEADERS + usize::from(limits.mss());
        let (lens, chunk) = ((slot_len, touched), self.frame_chunk);
        let (ring, transmitter) = TxRing::new(slots, lens, chunk, preparer);
        let mut site = Site::new(Site::NO_V4, 32, None, &self.interface.routes);
        site.takes_any = self.interface.any_address;
        site.answers_any = self.interface.answers_any;
        for (address, prefix) in addresses {
            site.add_v4(address.into(), prefix);
        }
        let mut world = World::new(
            *limits,
            (mac, caps.tx_checksum),
            site.clone(),
            delivery_slots,
            ring,
            rx[0].waker(),
            (self.shared, self.number),
        );
        world.workers = workers;
        world.has_descriptor = caps.has_descriptor;
        world.frame_bounds = frame_bounds;
        world.keys = Keys::new(self.secret);
        world.salt = self.salt;
        world.filter = filter;
        let world = Arc::new(world);
        world.register();
        let (several, longest) = (rx.len() > 1, caps.rx_max_frame);
        let claimers = rx.into_iter().enumerate().map(|(queue, rx)| {
            let claimer = Claimer::new(Arc::clone(&world), rx, longest);
            match several {
                true => claimer.for_queue(queue),
                false => claimer,
            }
        });
        let mut claimers: Vec<_> = claimers.collect();
        let mut rx = RxPump::new(
            Arc::clone(&world),
            (site, fixed_mac),
            self.secret,
            self.recorder,
        );
        if self.announce {
            rx.announce();
        }
        rx.join_groups(self.group);
        if let Some(config) = ipv6 {
            rx.enable_v6(config, &self.interface.routes);
        }
        if self.interface.dhcp {
            rx.enable_dhcp(core::mem::take(&mut self.interface.dhcp_config));
        }
        let tx = TxPump::new(Arc::clone(&world), tx, transmitter);
        Ok(Base {
            world,
            claimer: claimers.remove(0),
            more_claimers: claimers,
            rx,
            tx,
        })
    }
}
