//! A router for IPv4 (RFC 1812): forwards packets between several interfaces.
//!
//! Each interface has a device, an address and a table of neighbours. For each packet the router
//! finds the route with the longest prefix, decrements the time to live, and fragments the packet
//! if it exceeds the MTU of the next link. It reports a packet that it cannot forward to the
//! sender, within a host's limits of errors. It answers echo requests to its addresses, and has
//! no sockets.
//!
//! ```
//! use dominoes_drivers::memory::{self, MemoryConfig};
//! use dominoes_netstack::Stack;
//! use dominoes_netstack::router::Router;
//! use dominoes_netstack::time::{Duration, Instant};
//!
//! let (left, left_end) = memory::pair(MemoryConfig::default());
//! let (right, right_end) = memory::pair(MemoryConfig::default());
//! let mut router = Router::builder()
//!     .interface("10.0.1.254/24", left_end)
//!     .interface("10.0.2.254/24", right_end)
//!     .build()?;
//! let host = |address, gateway: [u8; 4], device| {
//!     Stack::builder(address).gateway(gateway.into()).by_hand(device)
//! };
//! let mut client = host("10.0.1.1/24", [10, 0, 1, 254], left)?;
//! let mut server = host("10.0.2.1/24", [10, 0, 2, 254], right)?;
//!
//! let listener = server.sockets().listen(7, 4)?;
//! let mut connecting = client.sockets().begin_connect("10.0.2.1:7".parse()?)?;
//! let mut now = Instant::ZERO;
//! while connecting.try_finish()?.is_none() {
//!     client.turn(now);
//!     router.turn(now);
//!     server.turn(now);
//!     now += Duration::from_micros(10);
//! }
//! assert!(router.stats().forwarded >= 2);
//! # drop(listener);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Router::turn`] drives it by hand, with time as an argument; [`Router::start`] starts a
//! thread for each interface, which forwards the packets that arrive there.
//!
//! # Departures from RFC 1812
//!
//! - There is no routing protocol, and no forwarding of multicast or directed broadcasts (RFC
//!   2644).
//! - Packets with a source route are dropped (RFC 7126 sections 4.3 and 4.4); other options pass
//!   unchanged, so a record of the route has no entry of this router. No parameter problem is
//!   reported.
//! - There is one queue for each interface, first in, first out; precedence does not count.
//! - Link-local packets are not forwarded (RFC 3927 section 7).
//! - A device that merges frames needs others that divide them.

mod input;
mod output;
mod stats;
mod threads;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dominoes_drivers::{Capabilities, Device, DeviceError, DeviceWaker};

use crate::error::{ConfigError, StackError, check_queues};
use crate::ip::rate_limit::Rate;
use crate::ip::route::{AddressKind, Route, RouteTable, Site};
use crate::keys::Keys;
use crate::packet::flow::{Address, Mac};
use crate::stack::{parse_cidr, random};
use crate::time::Instant;
use input::Input;
use output::Output;
use threads::Threads;

pub use stats::RouterStats;

/// Configures and builds a router.
#[derive(Default)]
pub struct RouterBuilder {
    interfaces: Vec<(String, Box<dyn Device>)>,
    routes: Vec<Route>,
    validate_source: bool,
    secret: Option<[u64; 2]>,
    rate: Option<Rate>,
}

impl RouterBuilder {
    dominoes_proto::settings! {
        /// Adds an interface with an address and the prefix of its network, as in `10.0.1.254/24`,
        /// and with it a route to that network.
        fn interface(self, address: &str, device: impl Device + 'static) {
            self.interfaces.push((address.to_owned(), Box::new(device)));
        }

        /// Adds a route. Among equal prefixes the networks of interfaces come first, then the
        /// lowest metric, then the route that was added first.
        fn route(self, route: Route) { self.routes.push(route) }

        /// Whether to drop packets whose source is not reached through the interface at which they
        /// arrive (RFC 1812 section 5.3.8, RFC 2827). Default: no.
        fn validate_source(self, validate: bool) { self.validate_source = validate }

        /// The approximate rates of ICMP errors per second at each interface: to all hosts, and to
        /// one host. Default 1000 and 10.
        ///
        /// Reports that a packet is too long (RFC 1191 section 4) are counted separately, and a
        /// quarter of the total may go to one host, because all its connections may wait for them.
        fn errors_per_second(self, total: u32, per_destination: u32) {
            self.rate = Some(Rate {
                total,
                per_destination,
            });
        }

        /// The key of numbers that outsiders must not predict. Default: random.
        fn secret(self, secret: [u64; 2]) { self.secret = Some(secret) }
    }

    /// Builds the router, which the caller drives by hand or starts.
    ///
    /// # Errors
    /// If there is no interface, an address is invalid, used twice or not the address of a host,
    /// a route's gateway is no neighbour, an interface merges frames that another cannot divide,
    /// or no random numbers can be read.
    pub fn build(self) -> Result<Router, StackError> {
        let secret = match self.secret {
            Some(secret) => secret,
            None => random()?,
        };
        let keys = Keys::new(secret);
        let (mut ports, mut receivers) = (Vec::new(), Vec::new());
        let mut table = RouteTable::new();
        for (index, (text, device)) in self.interfaces.into_iter().enumerate() {
            let (address, prefix) = parse_cidr(&text)?;
            if address.is_ipv6() {
                return Err(StackError::Address(text));
            }
            let address = Address::from(address);
            let site = Site::new(address, prefix, None, &[]);
            // Checks the address from the view of a neighbour, where it may be a broadcast
            // address.
            let neighbor = Address::v4(address.v4_bits() ^ 1);
            let neighbor = Site::new(neighbor, prefix, None, &[]);
            let is_host = neighbor.is_one_host(address) && !address.ip().is_loopback();
            if !is_host || ports.iter().any(|port: &Port| port.site.address == address) {
                return Err(StackError::Address(text));
            }
            table.insert(
                address,
                prefix,
                Hop {
                    port: index,
                    via: None,
                },
            );
            check_queues(device.queues())?;
            let (caps, mac) = (device.capabilities(), device.mac());
            let fixed_mac = caps.only_peer().map(Mac);
            let (rx, tx) = device.split();
            ports.push(Port {
                site,
                mac,
                mtu: u16::try_from(caps.mtu).unwrap_or(u16::MAX),
                caps,
                waker: rx.waker(),
                output: Mutex::new(Output::new(tx, fixed_mac)),
                stats: Mutex::default(),
            });
            receivers.push(rx);
        }
        check(&ports)?;
        let mut routes = self.routes;
        routes.sort_by_key(Route::order);
        for route in &routes {
            let via = Address::from(route.via);
            let port = ports
                .iter()
                .position(|port| port.site.next_hop(via).is_some() && !port.site.is_ourselves(via));
            let via = Some(via);
            match port {
                Some(port) if route.network.is_ipv4() && route.prefix <= 32 => {
                    table.insert(route.network.into(), route.prefix, Hop { port, via });
                }
                _ => {
                    return Err(StackError::Config(ConfigError::Conflict {
                        what: "a route",
                        with: "a gateway that is on no network of an interface",
                        instead: "name a neighbour, and an IPv4 network with a prefix of at most 32 bits",
                    }));
                }
            }
        }
        let shared = Arc::new(RouterShared {
            table,
            ports,
            validate_source: self.validate_source,
            rate: self.rate.unwrap_or(Rate {
                total: 1000,
                per_destination: 10,
            }),
        });
        let count = receivers.len() as u16;
        let inputs = receivers.into_iter().enumerate();
        let inputs =
            inputs.map(|(index, rx)| Input::new(Arc::clone(&shared), index, count, rx, &keys));
        Ok(Router {
            threads: None,
            inputs: inputs.collect(),
            shared,
        })
    }
}

/// Checks whether these interfaces can form a router.
fn check(ports: &[Port]) -> Result<(), ConfigError> {
    if ports.is_empty() {
        return Err(ConfigError::OutOfRange {
            field: "interfaces",
            value: 0,
            allowed: "1 or more",
        });
    }
    let merges = |caps: &Capabilities| caps.tso4_max_bytes > 0;
    if ports.iter().any(|port| merges(&port.caps)) && !ports.iter().all(|port| merges(&port.caps)) {
        return Err(ConfigError::Conflict {
            what: "an interface that merges frames",
            with: "one that cannot divide them",
            instead: "open all devices with offloads, or none",
        });
    }
    Ok(())
}

impl std::fmt::Debug for RouterBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RouterBuilder")
            .field("interfaces", &self.interfaces.len())
            .field("routes", &self.routes)
            .finish_non_exhaustive()
    }
}

/// The target of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hop {
    port: usize,
    /// The neighbour that forwards; `None`: the destination is a neighbour.
    via: Option<Address>,
}

/// The state of one interface that all others can access.
struct Port {
    site: Site,
    mac: [u8; 6],
    mtu: u16,
    caps: Capabilities,
    /// Wakes its thread.
    waker: DeviceWaker,
    output: Mutex<Output>,
    /// The counters of its input.
    stats: Mutex<RouterStats>,
}

impl Port {
    fn output(&self) -> MutexGuard<'_, Output> {
        // A queue of frames stays valid even if a holder of the lock panicked.
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stats(&self) -> MutexGuard<'_, RouterStats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state that the inputs share.
struct RouterShared {
    table: RouteTable<Hop>,
    ports: Vec<Port>,
    validate_source: bool,
    rate: Rate,
}

impl RouterShared {
    /// The interface and the next hop of packets to `destination`.
    fn route(&self, destination: Address) -> Option<(usize, Address)> {
        let hop = self.table.lookup(destination)?;
        Some((hop.port, hop.via.unwrap_or(destination)))
    }

    /// The rate of reports that a packet is too long.
    fn too_long_rate(&self) -> Rate {
        let Rate {
            total,
            per_destination,
        } = self.rate;
        Rate {
            total,
            per_destination: per_destination.max(total / 4),
        }
    }

    /// Whether an interface has this address.
    fn is_own(&self, address: Address) -> bool {
        self.ports.iter().any(|port| port.site.address == address)
    }

    /// Whether it is the broadcast address of a network that an interface is on.
    fn is_broadcast(&self, address: Address) -> bool {
        let is = |port: &Port| port.site.classify(address) == AddressKind::Broadcast;
        self.ports.iter().any(is)
    }

    fn stats(&self) -> RouterStats {
        let counted = self.ports.iter().map(|port| {
            let mut stats = *port.stats();
            port.output().count(&mut stats);
            stats
        });
        counted.fold(RouterStats::default(), RouterStats::and)
    }
}

/// A router, driven by hand, or by threads once it is started. Dropping it ends them.
pub struct Router {
    threads: Option<Threads>,
    /// Empty once it is started.
    inputs: Vec<Input>,
    shared: Arc<RouterShared>,
}

impl Router {
    /// A router without interfaces.
    pub fn builder() -> RouterBuilder {
        RouterBuilder::default()
    }

    /// Receives frames from every interface, forwards them, and runs timers. Returns the number
    /// of actions; 0 means that nothing will happen before [`Router::next_deadline`] unless a
    /// frame arrives or a busy device accepts more. Does nothing once the router is started.
    pub fn turn(&mut self, now: Instant) -> usize {
        self.inputs.iter_mut().map(|input| input.turn(now)).sum()
    }

    /// The time of the next timer; [`Instant::NEVER`] once the router is started.
    pub fn next_deadline(&self) -> Instant {
        let deadlines = self.inputs.iter().map(Input::next_deadline);
        deadlines.min().unwrap_or(Instant::NEVER)
    }

    /// The counters since the start.
    pub fn stats(&self) -> RouterStats {
        self.shared.stats()
    }

    /// Starts a thread for each interface, unless that is done.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(mut self) -> Result<Router, StackError> {
        if self.threads.is_none() {
            let inputs = core::mem::take(&mut self.inputs);
            self.threads = Some(Threads::start(inputs, Arc::clone(&self.shared))?);
        }
        Ok(self)
    }

    /// The last error of a device since the last call. An interface whose device is down
    /// continues when the device is up; an interface whose device is gone has ended. `None` while
    /// the router is driven by hand.
    pub fn take_device_error(&self) -> Option<DeviceError> {
        self.threads.as_ref()?.take_device_error()
    }
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Router")
            .field("interfaces", &self.shared.ports.len())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
