//! A running stack: threads, pinned, that drive a variant over a device.

mod close;
mod interface;
mod threads;

use crate::clock::now;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time;

use dominoes::{ContextHandle, Mismatch, Snapshot};
use dominoes_drivers::{Device, DeviceError};

use crate::config::{Limits, TcpPolicy};
use crate::error::{MembershipError, SocketError, StackError};
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
use threads::Threads;

use interface::Attached;
pub use interface::Interface;
pub(crate) use interface::parse_cidr;

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
    /// The interface of the device that the stack is started over, and others.
    interface: Interface,
    others: Vec<Attached>,
    variant: Option<VariantKind>,
    layout: Layout,
    groups: usize,
    limits: Limits,
    cores: Vec<usize>,
    secret: Option<[u64; 2]>,
    recorder: Option<Recorder>,
}

impl Builder {
    /// Adds an address with the prefix of its network, as in `2001:db8::1/64`, up to 64 of each
    /// family. Of several of IPv4, packets come from that on the network of the neighbour that gets
    /// them, or else from the first. With one of IPv6 the stack takes part in that as
    /// [`Ipv6Config::default`] says, unless [`ipv6`](Self::ipv6) says something else.
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
    #[must_use]
    pub fn address(mut self, address: &str) -> Self {
        self.interface = self.interface.address(address);
        self
    }

    /// How the stack takes part in IPv6. Default: not at all without an address of IPv6.
    #[must_use]
    pub fn ipv6(mut self, ipv6: Ipv6Config) -> Self {
        self.interface = self.interface.ipv6(ipv6);
        self
    }

    /// The gateway of networks that have no route of their own, of either family; the first of each
    /// counts. It is on a network of the interface, or starting fails. Default: none, and of IPv6
    /// those that advertise themselves.
    #[must_use]
    pub fn gateway(mut self, gateway: IpAddr) -> Self {
        self.interface = self.interface.gateway(gateway);
        self
    }

    /// Adds a network that a neighbour forwards to. The longest prefix decides, of equal ones the
    /// lowest metric.
    #[must_use]
    pub fn route(mut self, route: Route) -> Self {
        self.interface = self.interface.route(route);
        self
    }

    /// Adds an interface with a device of its own, and as many groups and threads as the first has.
    /// Sockets are those of all interfaces: see
    /// [`variants::interfaces`](crate::variants::interfaces).
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
    #[must_use]
    pub fn interface(mut self, interface: Interface, device: impl Device + 'static) -> Self {
        self.others.push(Attached {
            interface,
            device: Box::new(device),
        });
        self
    }

    /// Which variant runs. Default: [`VariantKind::Single`] if there is one thread and no other can
    /// join, else [`VariantKind::Replicated`].
    ///
    /// ```
    /// use dominoes_drivers::memory::{self, MemoryConfig};
    /// use dominoes_netstack::Stack;
    /// use dominoes_netstack::variants::VariantKind;
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
    #[must_use]
    pub fn variant(mut self, variant: VariantKind) -> Self {
        self.variant = Some(variant);
        self
    }

    /// How many threads run the stack, each with a copy of its state unless another
    /// [`variant`](Self::variant) is chosen. One runs without a log, as long as nobody joins.
    /// Default 1.
    #[must_use]
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.layout.replicas = replicas;
        self
    }

    /// Lets the stack choose how many of up to `most` threads work. It begins with
    /// [`replicas`](Self::replicas) of them, starts another one when those have too much to do, and
    /// parks one that does not improve throughput. A parked thread sleeps, and has no copy of the
    /// state: if the only active one fails, its connections end with it. Default: as many as there
    /// are work.
    #[must_use]
    pub fn replicas_up_to(mut self, most: usize) -> Self {
        self.layout.replica_slots = most;
        self.layout.autoscale = true;
        self
    }

    /// How many groups run side by side over each interface, each with `replicas` threads and
    /// connections of its own; see [`groups`](crate::variants::groups). 1 to
    /// [`MAX_GROUPS`](crate::variants::groups::MAX_GROUPS) in all. Default 1.
    #[must_use]
    pub fn groups(mut self, groups: usize) -> Self {
        self.groups = groups;
        self
    }

    /// How many threads there may be when others are [added](Stack::add_replica). Default: as many
    /// as at first.
    #[must_use]
    pub fn replica_slots(mut self, slots: usize) -> Self {
        self.layout.replica_slots = slots;
        self
    }

    /// Pins thread i to `cores[i]`, as far as there are any; those of the first group come first.
    /// Default: none is pinned. A core that this process may not use is an error.
    #[must_use]
    pub fn pin(mut self, cores: &[usize]) -> Self {
        self.cores = cores.to_vec();
        self
    }

    /// Sets [`Limits::connections`], of each group: how many connections there can be at a time.
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
    #[must_use]
    pub fn connections(mut self, connections: u32) -> Self {
        self.limits.connections = connections;
        self
    }

    /// Sets [`Limits::tcp`]: what connections do where the standards leave a choice.
    #[must_use]
    pub fn tcp(mut self, policy: TcpPolicy) -> Self {
        self.limits.tcp = policy;
        self
    }

    /// Buffer sizes and other bounds, of each group. Replaces what
    /// [`connections`](Self::connections) and [`tcp`](Self::tcp) set before.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The policy that assigns requests and frames to replicas. Default:
    /// [`Primaries::ByPublisher`].
    #[must_use]
    pub fn primaries(mut self, primaries: Primaries) -> Self {
        self.layout.primaries = primaries;
        self
    }

    /// Whether replicas vote before they perform: a replica copies no payload and sends no frame
    /// before a majority has posted the same fingerprint of the state as itself, at every position
    /// of the log. Default: no.
    ///
    /// With three or more replicas, a bit of memory that flips in one of them then does no harm
    /// outside, because that replica is no part of a majority. With two there is no majority, and
    /// both go on. It costs a fingerprint for every request, and a late replica holds up the others
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
    #[must_use]
    pub fn confirm(mut self, confirm: bool) -> Self {
        self.layout.confirm = confirm;
        self
    }

    /// How replicas share their work: sizes of chunks, and when one is late. Default:
    /// [`GroupTuning::default`], for a replica per core of one machine.
    #[must_use]
    pub fn tuning(mut self, tuning: GroupTuning) -> Self {
        self.layout.tuning = tuning;
        self
    }

    /// The key of every number that outsiders must not predict, for runs that are to be repeated:
    /// sequence numbers, timestamps, identifications, ports of connections, cookies. Default: the
    /// operating system gives a new one at every start, as a server wants it. UDP ports have a
    /// random number of every start in them in any case.
    #[must_use]
    pub fn secret(mut self, secret: [u64; 2]) -> Self {
        self.secret = Some(secret);
        self
    }

    /// Records the log.
    #[must_use]
    pub fn record(mut self, recorder: Recorder) -> Self {
        self.recorder = Some(recorder);
        self
    }

    /// Starts the stack over `device`.
    ///
    /// # Errors
    /// If a setting is wrong, somebody else on this machine has an address, or a thread cannot be
    /// started.
    pub fn start(mut self, device: impl Device + 'static) -> Result<Stack, StackError> {
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
            let mut setup = interface.setup(secret)?;
            for (address, _) in setup.all_addresses() {
                let checked = device.check_address(address);
                checked.map_err(std::io::Error::other)?;
            }
            setup.limits = self.limits;
            setup.announce = true;
            setup.recorder = self.recorder.take();
            [setup.salt, _] = random()?;
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
        let clock = Clock::start();
        let variant = self.variant.unwrap_or(match self.layout {
            Layout {
                replicas: 1,
                replica_slots: 0..=1,
                ..
            } => VariantKind::Single,
            _ => VariantKind::Replicated,
        });
        let mut cores = self.cores.into_iter();
        let is_only = parts.len() == 1;
        let start = |(setup, device): (Setup, Box<dyn Device>)| {
            let GroupIndex { index, count } = setup.group;
            // What is left is for those that join the only group.
            let own = match is_only {
                true => cores.by_ref().collect(),
                false => cores.by_ref().take(self.layout.replicas).collect(),
            };
            let name = match is_only {
                true => String::new(),
                false if count == 1 => format!("interface {} ", setup.place + 1),
                false if interfaces == 1 => format!("group {index} "),
                false => format!("interface {} group {index} ", setup.place / count + 1),
            };
            let variant = variant.build(setup, self.layout, device)?;
            Running::start(variant, name, own, clock)
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
}

/// A group of a running stack.
struct Running {
    world: Arc<World>,
    threads: Arc<Threads>,
    /// Replaces those that die.
    watch: Option<JoinHandle<()>>,
}

impl Running {
    fn start(
        variant: ByHand,
        name_prefix: String,
        cores: Vec<usize>,
        clock: Clock,
    ) -> Result<Running, StackError> {
        let world = Arc::clone(&variant.sockets().worlds()[0]);
        let (workers, handle) = variant.into_parts();
        let threads = Threads::new(name_prefix, cores, clock, Arc::clone(&world), handle);
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
        // Nobody starts a thread any more.
        let contexts = core::mem::take(&mut *self.threads.contexts());
        for context in &contexts {
            context.stop();
        }
        for context in contexts {
            // A context that panicked has said so on standard error.
            let _ = context.join();
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
            limits: Limits::default(),
            groups: 1,
            cores: Vec::new(),
            secret: None,
            recorder: None,
        }
    }

    /// Starts another thread with a copy of the state, which it gets from one of those that run;
    /// they go on meanwhile. Returns its replica slot, at once; the replica is active as soon as it
    /// has the copy. Of several groups, the first that has a free slot gets it.
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

    /// What the first group says that can, or the last one's reason why not.
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

    /// Compares what the replicas posted of their states at equal positions of the log. Says how
    /// many positions could be compared: 0 with one replica, which has nothing to disagree with.
    ///
    /// # Errors
    /// The first position at which two replicas differ, and which.
    pub fn compare(&self) -> Result<usize, Mismatch> {
        self.handles().map(|group| group.compare()).sum()
    }

    /// What was performed in each replica slot so far, by all workers that had it; empty without a
    /// log.
    pub fn shares(&self) -> Vec<EffectStats> {
        self.handles().flat_map(|group| group.shares()).collect()
    }

    /// Counters, as [`Sockets::stats`], and what became of the replicas.
    pub fn stats(&self) -> StackStats {
        let mut stats = self.sockets.stats();
        for group in self.handles() {
            stats.membership = stats.membership.and(group.membership_stats());
        }
        stats
    }

    /// What each thread has done, and what is in the log: requests applied, those it was primary
    /// of, work it stole from others that were late, how often it had to wait or slept, and how far
    /// it is behind. Cheap: counts that are posted now and then.
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
    /// its turns; one that cannot within [`LIST_TIMEOUT`] leaves an older list.
    pub fn connections(&self, most: usize) -> Vec<ConnectionStats> {
        let mut all = Vec::new();
        for Running { world, .. } in &self.groups {
            let left = most - all.len();
            all.extend(
                world
                    .view
                    .ask(left, None, || world.wake_pump(), LIST_TIMEOUT),
            );
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
