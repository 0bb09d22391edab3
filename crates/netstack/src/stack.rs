//! A running stack: threads that drive a variant over a device.

mod close;
mod core_clock;
mod driven;
mod handover;
mod threads;

use crate::io::sleep::now;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time;

use dominoes::{ContextHandle, Mismatch, Snapshot};
use dominoes_drivers::{Device, DeviceError};

use crate::config::{Limits, TcpPolicy};
use crate::error::{ConfigError, MembershipError, SocketError, StackError, check_queues};
use crate::group::{GroupTuning, Layout, Primaries};
use crate::io::record::Recorder;
use crate::io::view::ConnectionStats;
use crate::io::view::LIST_TIMEOUT;
use crate::io::world::World;
use crate::ip::route::Route;
use crate::ip::v6::Ipv6Config;
use crate::log::request::GroupIndex;
use crate::socket::{Sockets, TcpListener, TcpStream, UdpSocket};
use crate::stats::{EffectStats, StackStats};
use crate::time::Instant;
use crate::variants::groups::INBOX;
use crate::variants::{ByHand, Handle, Setup, VariantKind, interfaces};
use driven::DrivenWorker;
use threads::Threads;

pub use crate::io::setup::Interface;
pub(crate) use crate::io::setup::parse_cidr;

/// The most replicas of a group unless the user asks for more: each applies every request.
const MOST_REPLICAS: usize = 8;

/// An interface and its device.
struct Attached {
    interface: Interface,
    device: Box<dyn Device>,
}

impl core::fmt::Debug for Attached {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.interface.fmt(f)
    }
}

/// Puts a stack together.
///
/// ```
/// use dominoes_drivers::memory::{self, MemoryConfig};
/// use dominoes_netstack::Stack;
/// use std::io::{Read, Write};
///
/// let (left, right) = memory::pair(MemoryConfig::default());
/// let server = Stack::builder("10.0.0.1/24").replicas(2).start(left)?;
/// let client = Stack::builder("10.0.0.2/24").start(right)?;
///
/// let listener = server.listen(7, 16)?;
/// let mut ours = client.connect("10.0.0.1:7")?;
/// let (mut theirs, _) = listener.accept()?;
/// ours.write_all(b"hello")?;
/// let mut heard = [0; 5];
/// theirs.read_exact(&mut heard)?;
/// assert_eq!(&heard, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Builder {
    /// The interface of the device that `start` takes, and the added ones.
    interface: Interface,
    others: Vec<Attached>,
    variant: Option<VariantKind>,
    layout: Layout,
    /// Whether the user chose the threads, or something that decides about them.
    is_fixed: bool,
    groups: usize,
    limits: Limits,
    cores: Vec<usize>,
    secret: Option<[u64; 2]>,
    recorder: Option<Recorder>,
}

impl Builder {
    dominoes_proto::settings! {
        /// Adds an address with the prefix of its network, such as `2001:db8::1/64`; up to 64 of
        /// each family. `dhcp` stands for the address that a DHCP server gives (RFC 2131), with its
        /// gateways, servers of names and MTU: see [`Sockets::set_dhcp`]. With several IPv4
        /// addresses, a packet has the one on the network of its next hop, or else the first. The
        /// first IPv6 address turns IPv6 on, with [`Ipv6Config::default`] unless
        /// [`ipv6`](Self::ipv6) is called.
        ///
        /// ```
        /// use dominoes_drivers::memory::{self, MemoryConfig};
        /// use dominoes_netstack::Stack;
        ///
        /// let (left, right) = memory::pair(MemoryConfig::default());
        /// let server = Stack::builder("10.0.0.1/24").address("2001:db8::1/64").start(left)?;
        /// let client = Stack::builder("2001:db8::2/64").start(right)?;
        ///
        /// let listener = server.listen(7, 16)?;
        /// // It begins when it is known that no other host has the client's address.
        /// let ours = client.connect("[2001:db8::1]:7")?;
        /// let (_theirs, from) = listener.accept()?;
        /// assert_eq!(from, ours.local_addr()?);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        fn address(self, address: &str) { self.interface = self.interface.address(address) }

        /// Sets how the stack names itself to DHCP servers: by a name, up to 63 bytes (RFC 2132
        /// section 3.14), and an identifier of 2 to 255 bytes (RFC 2132 section 9.14). Default: no
        /// name, and the identifier of its link-layer address.
        fn dhcp_names(self, host_name: Option<&str>, client_id: Option<&[u8]>) {
            self.interface = self.interface.dhcp_names(host_name, client_id);
        }

        /// Sets how the stack takes part in IPv6. Default: not at all, unless it has an IPv6
        /// address.
        fn ipv6(self, ipv6: Ipv6Config) { self.interface = self.interface.ipv6(ipv6) }

        /// Sets the gateway for destinations without a route. The first gateway of each family
        /// counts. Starting fails if it is on no network of the interface. Default: none for IPv4,
        /// and the routers that advertise themselves for IPv6.
        fn gateway(self, gateway: IpAddr) { self.interface = self.interface.gateway(gateway) }

        /// Adds a network that a neighbour forwards to. The route with the longest prefix is taken,
        /// and among equal ones that with the lowest metric.
        fn route(self, route: Route) { self.interface = self.interface.route(route) }

        /// Takes packets to every address of a single host as ours, of each family in which the
        /// interface has an address: connections, datagrams and echo requests, also those to
        /// addresses of other interfaces of the stack. Link-local addresses, groups, and addresses
        /// that no host may have stay excluded. A listener that is bound to no address takes
        /// connections to all of them; [`Sockets::listen_any`] takes those to all ports. A
        /// connection may also come [from](Sockets::begin_connect_from) any address.
        ///
        /// The interface does not answer ARP and neighbor discovery for these addresses: on
        /// Ethernet, routers must lead to it, or see [`Builder::answer_for_any_address`]. On links
        /// without Ethernet (`tun`), a prefix of length 0 makes all hosts neighbors. AF_XDP must
        /// redirect everything. Default: no.
        ///
        /// Over a TUN interface of Linux, the device is `dominoes_drivers::tun::Tun::open("tun0")`.
        /// The kernel needs an address and routes (`ip addr add 10.78.0.2/24 dev tun0`, `ip link
        /// set tun0 up`, `ip route add 203.0.113.0/24 dev tun0`), and the stack has another address
        /// of that subnet, `10.78.0.1/24`. The proxy's own connections must take another route, such
        /// as one in a table for its user: `ip rule add uidrange 1000-1000 lookup 77`, `ip route add
        /// default via GATEWAY table 77`. Then it may open the interface without privileges, if `ip
        /// tuntap add dev tun0 mode tun user 1000` has made that.
        ///
        /// Here a transparent proxy is the gateway of a client and of a server. It ends the
        /// connections of both, and both see the address of the other.
        ///
        /// ```
        /// use std::io::{self, Read, Write};
        /// use std::thread;
        ///
        /// use dominoes_drivers::memory::{self, MemoryConfig};
        /// use dominoes_netstack::{Arriving, Interface, Sockets, Stack};
        ///
        /// fn carry(arriving: Arriving, sockets: &Sockets) -> io::Result<()> {
        ///     let (client, server) = (arriving.peer(), arriving.destination());
        ///     let Ok(far) = sockets.connect_from(client, server) else {
        ///         arriving.refuse();
        ///         return Ok(());
        ///     };
        ///     let near = arriving.accept()?.finish()?;
        ///     let (mut from_client, mut to_client) = near.split();
        ///     let (mut from_server, mut to_server) = far.split();
        ///     thread::scope(|scope| {
        ///         scope.spawn(move || {
        ///             io::copy(&mut from_client, &mut to_server)?;
        ///             to_server.shutdown();
        ///             io::Result::Ok(())
        ///         });
        ///         io::copy(&mut from_server, &mut to_client)?;
        ///         to_client.shutdown();
        ///         Ok(())
        ///     })
        /// }
        ///
        /// let pair = || memory::pair(MemoryConfig::default());
        /// let ((left, client), (right, server)) = (pair(), pair());
        /// let proxy = Stack::builder("10.0.1.1/24")
        ///     .any_address()
        ///     .interface(Interface::new("10.0.2.1/24").any_address(), right)
        ///     .start(left)?;
        /// let arrivals = proxy.sockets().listen_any(1024)?;
        /// let sockets = proxy.sockets();
        /// thread::spawn(move || {
        ///     while let Ok(arriving) = arrivals.next() {
        ///         let sockets = sockets.clone();
        ///         thread::spawn(move || carry(arriving, &sockets));
        ///     }
        /// });
        ///
        /// let client = Stack::builder("10.0.1.2/24").gateway([10, 0, 1, 1].into()).start(client)?;
        /// let server = Stack::builder("10.0.2.2/24").gateway([10, 0, 2, 1].into()).start(server)?;
        /// let listener = server.listen(80, 16)?;
        /// let mut asks = client.connect("10.0.2.2:80")?;
        /// let (mut answers, peer) = listener.accept()?;
        /// assert_eq!(peer, asks.local_addr()?);
        /// asks.write_all(b"hello")?;
        /// asks.shutdown_write();
        /// let mut heard = String::new();
        /// answers.read_to_string(&mut heard)?;
        /// assert_eq!(heard, "hello");
        /// // The server has no such port, so the proxy refuses.
        /// assert!(client.connect("10.0.2.2:81").is_err());
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        fn any_address(self) { self.interface = self.interface.any_address() }

        /// With [`any_address`](Self::any_address), also answers ARP and neighbor discovery for
        /// these addresses, as a proxy (RFC 1027, RFC 4861 section 7.2.8). Every host on the link
        /// that looks for one of them then sends to us: use it on links that only lead here, such
        /// as a sandbox's. Hosts keep addresses that they probe or announce, and IPv6 prefers the
        /// owner's answer. A device that filters groups must pass all of them. Default: no.
        fn answer_for_any_address(self) { self.interface = self.interface.answer_for_any_address() }

        /// Adds an interface with its own device, and with as many groups and threads as the first
        /// one. All interfaces share the sockets: see [`Interface`].
        ///
        /// ```
        /// use dominoes_drivers::memory::{self, MemoryConfig};
        /// use dominoes_netstack::{Interface, Stack};
        ///
        /// let pair = || memory::pair(MemoryConfig::default());
        /// let ((left, left_end), (right, right_end)) = (pair(), pair());
        /// let server = Stack::builder("10.0.1.1/24")
        ///     .interface(Interface::new("10.0.2.1/24").address("2001:db8:2::1/64"), right)
        ///     .start(left)?;
        /// let listener = server.listen(7, 16)?;
        /// let near = Stack::builder("10.0.1.2/24").start(left_end)?;
        /// let far = Stack::builder("10.0.2.2/24").start(right_end)?;
        /// let _clients = [near.connect("10.0.1.1:7")?, far.connect("10.0.2.1:7")?];
        /// let (_, first) = listener.accept()?;
        /// let (_, second) = listener.accept()?;
        /// assert_ne!(first.ip(), second.ip());
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        fn interface(self, interface: Interface, device: impl Device + 'static) {
            self.others.push(Attached {
                interface,
                device: Box::new(device),
            });
        }

        /// Sets the variant. Default: [`VariantKind::Single`] if there is one thread and no other
        /// can join or be unparked, else [`VariantKind::Replicated`].
        ///
        /// ```
        /// use dominoes_drivers::memory::{self, MemoryConfig};
        /// use dominoes_netstack::{Stack, VariantKind};
        ///
        /// let (device, _peer) = memory::pair(MemoryConfig::default());
        /// let builder = Stack::builder("10.0.0.1/24").variant(VariantKind::Single);
        /// let refused = builder.replicas(2).start(device).unwrap_err();
        /// assert_eq!(
        ///     refused.to_string(),
        ///     "more than one thread cannot be had with single; \
        ///      set `replicas` to 1, or choose another variant"
        /// );
        /// ```
        fn variant(self, variant: VariantKind) {
            self.variant = Some(variant);
            self.is_fixed = true;
        }

        /// Sets how many threads run the stack. Each has a copy of the state, unless another
        /// [`variant`](Self::variant) is chosen. One thread alone runs without a log. Default: the
        /// stack chooses, as with [`replicas_up_to`](Self::replicas_up_to); but one thread if it is
        /// driven by hand, recorded, or has [`replica_slots`](Self::replica_slots) or a variant
        /// set.
        fn replicas(self, replicas: usize) {
            self.layout.replicas = replicas;
            self.is_fixed = true;
        }

        /// Lets the stack choose how many of up to `most` threads work. It begins with
        /// [`replicas`](Self::replicas), or one. It adds a thread when these are busy and get the
        /// cores they need, and parks one that does not improve throughput;
        /// [`StackStats::autoscale`] says why. A parked thread sleeps and has no copy of the state,
        /// so if the only active thread fails, the connections end. Default: as many as the
        /// machine has cores for each group, at most 8.
        ///
        /// While one thread is active, and only one thread of the application waits for sockets,
        /// that thread does the active one's work. What it writes then leaves when it waits again,
        /// or within two milliseconds.
        fn replicas_up_to(self, most: usize) {
            self.layout.replica_slots = most;
            self.layout.autoscale = true;
            self.is_fixed = true;
        }

        /// Sets how many groups run side by side over each interface, each with `replicas` threads
        /// and its own connections. From 1 to [`MAX_GROUPS`](crate::MAX_GROUPS) over all
        /// interfaces. Default 1.
        ///
        /// Each group works as a complete stack, `single` or replicated. A keyed hash of a
        /// connection's flow selects its group, which gets all segments of the flow. Groups share
        /// only the socket table, where connections are opened and accepted, so light connections
        /// spread over cores without contention.
        ///
        /// ```text
        ///              +-> part 0 -> group 0: its pumps, state, streams --+
        /// device --+---+-> part 1 -> group 1                              +--> socket table
        ///   hash of the flow  ...                                         |
        ///              +-> all parts: ARP, ICMP errors, fragments         +
        /// ```
        ///
        /// - For an active open, the stack chooses a port whose flow hashes to the group that opens
        ///   the connection, so the answers arrive there. Groups take turns.
        /// - A UDP socket has queues in every group. The datagrams of a peer, sent and received, go
        ///   through the group of their flow; broadcast and multicast datagrams arrive in the first
        ///   group.
        /// - Frames of other protocols, such as ARP and ICMP errors, reach all groups, since each
        ///   group has its own neighbour cache and path MTUs; only the first group answers them.
        ///   Echo requests go to the first group alone.
        /// - Fragments reach all groups, since only the first fragment of a datagram names its
        ///   flow. After reassembly, a group drops a datagram that belongs to another group.
        ///
        /// Limits hold for each group, except that [`Limits::out_of_order`] is divided among them.
        fn groups(self, groups: usize) { self.groups = groups }

        /// Sets how many threads there can be after others are [added](Stack::add_replica).
        /// Default: as many as at the start.
        fn replica_slots(self, slots: usize) {
            self.layout.replica_slots = slots;
            self.is_fixed = true;
        }

        /// Pins thread i to core `cores[i]`, if that is given; the threads of the first group come
        /// first. Starting fails if this process may not use the core. Default: no thread is
        /// pinned.
        fn pin(self, cores: &[usize]) { self.cores = cores.to_vec() }

        /// Sets [`Limits::connections`] of each group: how many connections can exist at a time.
        /// Default 16,384.
        ///
        /// ```
        /// use dominoes_drivers::memory::{self, MemoryConfig};
        /// use dominoes_netstack::Stack;
        ///
        /// let (device, _peer) = memory::pair(MemoryConfig::default());
        /// let stack = Stack::builder("10.0.0.1/24").connections(50_000).start(device)?;
        /// assert_eq!(stack.limits().connections, 50_000);
        /// assert_eq!(stack.stats().state.table_full, 0);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        fn connections(self, connections: u32) { self.limits.connections = connections }

        /// Sets [`Limits::tcp`]: how connections behave where the standards leave a choice.
        fn tcp(self, policy: TcpPolicy) { self.limits.tcp = policy }

        /// Sets buffer sizes and other bounds of each group, and so replaces earlier values of
        /// [`connections`](Self::connections) and [`tcp`](Self::tcp).
        fn limits(self, limits: Limits) { self.limits = limits }

        /// Sets the policy that assigns requests and frames to replicas. Default:
        /// [`Primaries::ByPublisher`].
        fn primaries(self, primaries: Primaries) { self.layout.primaries = primaries }

        /// Sets whether replicas vote before they perform. If they do, a replica copies no payload
        /// and sends no frame until a majority has posted the same fingerprint of the state, at
        /// every position of the log. Default: no.
        ///
        /// With three or more replicas, a bit that flips in the memory of one does no harm outside,
        /// because that replica is not in the majority. Two replicas have no majority, and both
        /// continue. A vote costs one fingerprint per request, and a late replica delays the others
        /// if they are no majority without it.
        ///
        /// ```
        /// use dominoes_drivers::memory::{self, MemoryConfig};
        /// use dominoes_netstack::Stack;
        /// use std::io::{Read, Write};
        ///
        /// let (left, right) = memory::pair(MemoryConfig::default());
        /// let server = Stack::builder("10.0.0.1/24").replicas(3).confirm(true).start(left)?;
        /// let client = Stack::builder("10.0.0.2/24").start(right)?;
        ///
        /// let listener = server.listen(7, 16)?;
        /// let mut ours = client.connect("10.0.0.1:7")?;
        /// let (mut theirs, _) = listener.accept()?;
        /// ours.write_all(b"hello")?;
        /// theirs.read_exact(&mut [0; 5])?;
        /// assert_eq!(server.stats().membership.repaired, 0);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        fn confirm(self, confirm: bool) { self.layout.confirm = confirm }

        /// How replicas share their work: sizes of chunks, and when one is late. Default:
        /// [`GroupTuning::default`], for a replica per core of one machine.
        fn tuning(self, tuning: GroupTuning) { self.layout.tuning = tuning }

        /// Sets the key of every number that outsiders must not predict: sequence numbers,
        /// timestamps, identifications, ports of connections, cookies. With the same key a run can
        /// be repeated. Default: a new random key at every start, which a server needs. UDP ports
        /// always depend on a random number of the start as well.
        fn secret(self, secret: [u64; 2]) { self.secret = Some(secret) }

        /// Records the log.
        fn record(self, recorder: Recorder) {
            self.recorder = Some(recorder);
            self.is_fixed = true;
        }
    }

    /// Starts the stack over `device`.
    ///
    /// A list of devices is a device with several queues. Each replica receives from its own
    /// queue first, and from the others if that is empty; all queues feed one log.
    ///
    /// ```no_run
    /// use dominoes_drivers::tap::Tap;
    /// use dominoes_netstack::Stack;
    ///
    /// // ip tuntap add dev tap0 mode tap multi_queue
    /// let queues = Tap::open_queues("tap0", &Tap::options(), 2)?;
    /// let stack = Stack::builder("10.0.0.1/24").replicas(2).start(queues)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If a setting is wrong, an address belongs to another stack on this machine, or a thread
    /// cannot start.
    pub fn start(mut self, device: impl Device + 'static) -> Result<Stack, StackError> {
        if !self.is_fixed {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            let groups = self.groups.max(1) * (self.others.len() + 1);
            self.layout.replica_slots = (cores / groups).clamp(1, MOST_REPLICAS);
            self.layout.autoscale = true;
        }
        let mut cores = core::mem::take(&mut self.cores).into_iter();
        let (replicas, autoscale) = (self.layout.replicas, self.layout.autoscale);
        let parts = self.build(device, true)?;
        let clock = Clock::start();
        let is_only = parts.len() == 1;
        let start = |(name, variant)| {
            // Threads that join later belong to the only group, and take the rest.
            let own = match is_only {
                true => cores.by_ref().collect(),
                false => cores.by_ref().take(replicas).collect(),
            };
            Running::start(variant, name, own, clock, autoscale && is_only)
        };
        let groups = parts.into_iter().map(start);
        let groups = groups.collect::<Result<Vec<_>, _>>()?;
        let worlds = groups.iter().map(|group| Arc::clone(&group.world));
        Ok(Stack {
            clock,
            sockets: Sockets::over(worlds.collect()),
            groups,
        })
    }

    /// Builds the stack over `device`, to be driven by hand. With the same
    /// [`secret`](Self::secret) and the same calls it does the same.
    ///
    /// # Errors
    /// If a setting is wrong, an address belongs to another stack on this machine, or there are
    /// several groups or interfaces: see [`groups_by_hand`](Self::groups_by_hand).
    pub fn by_hand(self, device: impl Device + 'static) -> Result<ByHand, StackError> {
        let mut groups = self.groups_by_hand(device)?;
        match groups.pop() {
            Some(only) if groups.is_empty() => Ok(only),
            _ => Err(StackError::Config(ConfigError::Conflict {
                what: "several groups or interfaces",
                with: "`by_hand`",
                instead: "call `groups_by_hand`",
            })),
        }
    }

    /// Builds the stack over `device`, to be driven by hand: all groups of the first interface,
    /// then those of the next. Each is driven by itself, and has the sockets of all.
    ///
    /// ```
    /// use dominoes_drivers::memory::{self, MemoryConfig};
    /// use dominoes_netstack::{Stack, time::Instant};
    ///
    /// let (device, _peer) = memory::pair(MemoryConfig::default());
    /// let mut groups = Stack::builder("10.0.0.1/24").groups(2).groups_by_hand(device)?;
    /// let listener = groups[0].sockets().listen(7, 128)?;
    /// for group in &mut groups {
    ///     group.turn(Instant::ZERO);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If a setting is wrong, or an address belongs to another stack on this machine.
    pub fn groups_by_hand(self, device: impl Device + 'static) -> Result<Vec<ByHand>, StackError> {
        let groups = self.build(device, false)?;
        let worlds = groups
            .iter()
            .flat_map(|(_, group)| group.sockets().worlds().to_vec());
        let sockets = Sockets::over(worlds.collect());
        let all = groups.into_iter();
        Ok(all
            .map(|(_, group)| group.with_sockets(sockets.clone()))
            .collect())
    }

    /// Every group, with what names of its threads begin with. Whether it differs from what it
    /// was at an earlier start with the same secret is `salted`.
    fn build(
        mut self,
        device: impl Device + 'static,
        salted: bool,
    ) -> Result<Vec<(String, ByHand)>, StackError> {
        let secret = match self.secret {
            Some(secret) => secret,
            None => random()?,
        };
        let first = Attached {
            interface: core::mem::take(&mut self.interface),
            device: Box::new(device),
        };
        let mut setups = Vec::new();
        let mut devices = Vec::new();
        for Attached { interface, device } in [first].into_iter().chain(self.others) {
            check_queues(device.queues())?;
            let mut setup = Setup::of(interface.checked()?, secret);
            for (address, _) in setup.all_addresses() {
                let checked = device.check_address(address);
                checked.map_err(std::io::Error::other)?;
            }
            setup.limits = self.limits;
            setup.announce = true;
            setup.recorder = self.recorder.take();
            if salted {
                [setup.salt, _] = random()?;
            }
            setups.push(setup);
            devices.push(device);
        }
        let interfaces = setups.len();
        let mut parts: Vec<(Setup, Box<dyn Device>)> = Vec::new();
        if self.groups == 1 {
            parts.extend(interfaces::join(setups)?.into_iter().zip(devices));
        } else {
            let interfaces = setups.into_iter().zip(devices);
            for (setup, part) in interfaces::divide(interfaces, self.groups, INBOX)? {
                parts.push((setup, Box::new(part)));
            }
        }
        let variant = self.variant.unwrap_or(match self.layout {
            Layout {
                replicas: 1,
                replica_slots: 0..=1,
                ..
            } => VariantKind::Single,
            _ => VariantKind::Replicated,
        });
        let is_only = parts.len() == 1;
        let build = |(setup, device): (Setup, Box<dyn Device>)| {
            let GroupIndex { index, count } = setup.group;
            let name = match is_only {
                true => String::new(),
                false if count == 1 => format!("interface {} ", setup.number + 1),
                false if interfaces == 1 => format!("group {index} "),
                false => format!("interface {} group {index} ", setup.number / count + 1),
            };
            Ok((name, variant.build(setup, self.layout, device)?))
        };
        parts.into_iter().map(build).collect()
    }
}

/// A group of a running stack.
struct Running {
    world: Arc<World>,
    threads: Arc<Threads>,
    /// Replaces threads that die.
    watch: Option<JoinHandle<()>>,
}

impl Running {
    fn start(
        variant: ByHand,
        name_prefix: String,
        cores: Vec<usize>,
        clock: Clock,
        hands_over: bool,
    ) -> Result<Running, StackError> {
        let world = Arc::clone(&variant.sockets().worlds()[0]);
        let (workers, handle) = variant.into_parts();
        let driven =
            hands_over.then(|| DrivenWorker::new(Arc::clone(&world), Arc::clone(&handle), clock));
        if let Some(driven) = &driven {
            let weak = Arc::downgrade(driven);
            let _ = world.driven.set(weak);
        }
        let threads = Threads::new(
            name_prefix,
            cores,
            clock,
            Arc::clone(&world),
            handle,
            driven,
        );
        let mut running = Running {
            world,
            threads,
            watch: None,
        };
        let threads = &running.threads;
        if threads.handle().replaces_failed() {
            running.watch = Some(threads.watch()?);
        }
        for worker in workers {
            running.threads.spawn(worker)?;
        }
        Ok(running)
    }

    /// Ends its threads, once the world is down.
    fn end(&mut self) {
        self.threads.end_watch();
        if let Some(watch) = self.watch.take() {
            let _ = watch.join();
        }
        // From here on no thread starts.
        let contexts = core::mem::take(&mut *self.threads.contexts());
        for context in &contexts {
            context.stop();
        }
        if let Some(driven) = self.threads.driven() {
            driven.end();
        }
        for context in contexts {
            // A context that panicked has printed that to standard error.
            let _ = context.join();
        }
        if let Some(driven) = self.threads.driven() {
            driven.drop_worker();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.world.shut_down();
        self.end();
    }
}

/// Sixteen random bytes.
pub(crate) fn random() -> std::io::Result<[u64; 2]> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(std::io::Error::from)?;
    let [a, b] = [0, 8].map(|i| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[i..i + 8]);
        u64::from_le_bytes(word)
    });
    Ok([a, b])
}

/// A running stack. Dropping it ends its threads and resets its connections, as [`Stack::shutdown`]
/// does; [`Stack::close`] ends them in order.
pub struct Stack {
    clock: Clock,
    sockets: Sockets,
    groups: Vec<Running>,
}

impl Stack {
    /// Begins a stack with this address and prefix, as in `10.0.0.1/24` or `2001:db8::1/64`.
    pub fn builder(address: &str) -> Builder {
        Builder {
            interface: Interface::new(address),
            others: Vec::new(),
            variant: None,
            layout: Layout {
                replicas: 1,
                ..Layout::default()
            },
            is_fixed: false,
            limits: Limits::default(),
            groups: 1,
            cores: Vec::new(),
            secret: None,
            recorder: None,
        }
    }

    /// Starts another thread, which gets a copy of the state from a running one; the others do not
    /// stop for it. Returns the replica slot at once; the replica is active as soon as it has the
    /// copy. The thread joins the first group that has a free slot.
    ///
    /// # Errors
    /// If every slot is taken ([`Builder::replica_slots`]), the stack runs without a log, or no
    /// thread can be started.
    pub fn add_replica(&self) -> Result<usize, StackError> {
        self.first(|group| group.threads.add(None))
    }

    /// Lets the replica in the last slot leave: it performs its share, and its thread ends. Returns
    /// its slot, at once. Of several groups, the first that can do with one replica less loses it.
    ///
    /// # Errors
    /// If no other replica would be left.
    pub fn remove_replica(&self) -> Result<usize, StackError> {
        self.first(|group| Ok(group.threads.handle().leave(None)?))
    }

    /// The result of the first group that succeeds, or the last group's error.
    fn first(
        &self,
        mut ask: impl FnMut(&Running) -> Result<usize, StackError>,
    ) -> Result<usize, StackError> {
        let mut said = Err(MembershipError::NoLog.into());
        for group in &self.groups {
            said = ask(group);
            if said.is_ok() {
                break;
            }
        }
        said
    }

    /// Unwinds the thread of replica `replica` of the first group between two turns, as a bug
    /// would. For tests.
    #[cfg(feature = "kill")]
    pub fn kill_replica(&self, replica: usize) {
        self.groups[0].threads.kill(replica);
    }

    /// The age of the stack, by the clock that its [`PacketInfo`](crate::PacketInfo) has.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// The sockets, to be handed to other threads.
    pub fn sockets(&self) -> Sockets {
        self.sockets.clone()
    }

    /// As [`Sockets::listen`].
    ///
    /// # Errors
    /// As [`Sockets::listen`].
    pub fn listen(&self, port: u16, backlog: u16) -> Result<TcpListener, SocketError> {
        self.sockets.listen(port, backlog)
    }

    /// As [`Sockets::connect`].
    ///
    /// # Errors
    /// As [`Sockets::connect`].
    pub fn connect(&self, remote: impl ToSocketAddrs) -> Result<TcpStream, SocketError> {
        self.sockets.connect(remote)
    }

    /// As [`Sockets::bind_udp`].
    ///
    /// # Errors
    /// As [`Sockets::bind_udp`].
    pub fn bind_udp(&self, port: u16) -> Result<UdpSocket, SocketError> {
        self.sockets.bind_udp(port)
    }

    /// Where each group is asked.
    fn handles(&self) -> impl Iterator<Item = &dyn Handle> {
        self.groups.iter().map(|group| group.threads.handle())
    }

    /// Whether every thread that was to be pinned is.
    pub fn pinned(&self) -> bool {
        let pinned = |group: &Running| group.threads.contexts().iter().all(ContextHandle::pinned);
        self.groups.iter().all(pinned)
    }

    /// The bounds in force, fitted to the device; of [`Limits::out_of_order`] the share of a group.
    pub fn limits(&self) -> Limits {
        self.groups[0].world.limits
    }

    /// Compares the fingerprints that the replicas posted at equal positions of the log. Returns
    /// how many positions could be compared: 0 with one replica.
    ///
    /// # Errors
    /// The first position at which two replicas differ, and which.
    pub fn compare(&self) -> Result<usize, Mismatch> {
        self.handles().map(|group| group.compare()).sum()
    }

    /// Returns the work performed so far in each replica slot, by all workers that had it; empty
    /// without a log.
    pub fn shares(&self) -> Vec<EffectStats> {
        self.handles().flat_map(|group| group.shares()).collect()
    }

    /// Counters, as [`Sockets::stats`], and what became of the replicas.
    pub fn stats(&self) -> StackStats {
        let mut stats = self.sockets.stats();
        for group in self.handles() {
            stats.membership = stats.membership.and(group.membership_stats());
            let scaled = group.autoscale_stats();
            stats.scale_trials += scaled.trials;
            stats.scale_reason = scaled.reason.or(stats.scale_reason);
        }
        stats
    }

    /// Returns counts of each thread and of the log: requests applied, requests that the thread was
    /// primary of, work it took over from late threads, how often it waited or slept, and its
    /// distance from the end of the log. Cheap: threads post these counts from time to time.
    pub fn snapshot(&self) -> Snapshot {
        let domains = self.groups.iter().flat_map(|group| {
            let contexts = group.threads.contexts();
            let stats: Vec<_> = contexts.iter().flat_map(ContextHandle::stats).collect();
            stats
        });
        let several = self.groups.len() > 1;
        let logs = self.handles().enumerate().filter_map(|(i, group)| {
            group.log_stats(match several {
                true => format!("log {i}"),
                false => "log".to_owned(),
            })
        });
        Snapshot::new(domains.collect(), logs.collect())
    }

    /// Lists the connections, at most `most`. A thread of the stack makes the list between two of
    /// its turns; one that cannot within [`LIST_TIMEOUT`] leaves an older list. Otherwise no list
    /// shows an earlier moment than the one before.
    pub fn connections(&self, most: usize) -> Vec<ConnectionStats> {
        let mut all = Vec::new();
        for Running { world, .. } in &self.groups {
            let left = most - all.len();
            let list = world.view.list(left, || world.wake_pump(), LIST_TIMEOUT);
            all.extend(list);
        }
        all
    }

    /// What the device last complained of, once: it is down or gone, or was and came back.
    pub fn take_device_error(&self) -> Option<DeviceError> {
        // All groups have one socket table.
        self.groups[0].world.socket_table().device_error.take()
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        self.stop();
    }
}

impl core::fmt::Debug for Stack {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Stack")
            .field("address", &self.groups[0].world.v4().address)
            .field("groups", &self.groups.len())
            .finish_non_exhaustive()
    }
}

/// Where time enters: once per turn, as the age of the stack.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    start: time::Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Clock { start: now() }
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(now().duration_since(self.start).as_nanos() as u64)
    }
}
