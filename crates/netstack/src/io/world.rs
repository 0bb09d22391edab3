//! The state that applications, pumps and primaries share: streams, transmit slots, queues.
//!
//! None of it is protocol state. No data frame goes through a queue on its way from or to the
//! device; only frames to ourselves do (`Mailbox::looped`). The mutexes guard the socket table,
//! changed addresses, registered units and posted counters. No worker takes one for each segment or
//! datagram, and none waits to post counters.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use crossbeam_queue::{ArrayQueue, SegQueue};
use dominoes::EventCount;
use dominoes_drivers::split::Target;
use dominoes_drivers::{
    AddressFilter, DeviceError, DeviceWaker, Frame, Gso, RxChecksum, RxMeta, TxFrame,
};

use crate::config::{Limits, Settings, Tuning};
use crate::error::SocketError;
use crate::groups;
use crate::io::accept::{Arrivals, ArrivingQueue, Listeners};
use crate::io::echo::EchoQueues;
use crate::io::rx::ControlFrames;
use crate::io::rx::addresses::InterfaceChange;
use crate::io::sleep::Driven;
use crate::io::stream::{AppRequest, StreamRef, Streams};
use crate::io::tx::TxRing;
use crate::io::udp_queues::{Bindings, Queues};
use crate::io::units::{UnitQueue, UnitWork};
use crate::io::view::{View, try_lock};
use crate::ip::multicast::Member;
use crate::ip::neighbor::WaitingOpen;
use crate::ip::route::{PlaceV4, Site};
use crate::ip::v6::SiteV6;
use crate::keys::{Grouping, KeyUse, Keys};
use crate::log::effect::Effect;
use crate::log::request::{Body, ConnId, Flow};
use crate::packet::checksum::Cpu;
use crate::packet::dhcp::Names;
use crate::packet::flow::{Address, Binding, Endpoint, Families, IpFields};
use crate::state::apply::Awaited;
use crate::stats::StackStats;
use crate::time::Duration;
use crate::udp::gather::FrameBounds;

/// A flag in `World::v4`: we have several IPv4 addresses, or take packets to all.
const SEVERAL_V4: u64 = 1 << 63;
/// A flag in `World::detours`: there may be frames to ourselves.
const LOOPED: u8 = 1;
/// A flag in `World::detours`: an application has set the link down.
const LINK_DOWN: u8 = 2;
/// Maximum number of path MTUs that wait for a group's pump.
const MOST_PATHS: usize = 256;
/// Maximum number of frames to ourselves that wait for a group's pump.
const MOST_LOOPED: usize = 1024;

/// A command of an application to the receive pump. Progress of a stream is not a command.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Command {
    Open(WaitingOpen),
    /// A body to publish unchanged: a listener begins, accepts, or ends.
    Publish(Body),
    /// The settings of a listener changed, and the log of a group does not have them yet.
    SetListener {
        port: u16,
        binding: Binding,
        group: u16,
    },
    /// A listener holds SYNs for a port (or all) until the application decides: at most so many,
    /// and so long. `None`: it ends.
    HoldSyns {
        port: u16,
        holds: Option<(u16, Duration)>,
    },
    /// The application decided about a held SYN.
    Decide {
        flow: Flow,
        id: u64,
        decision: Decision,
    },
    Bind {
        socket: ConnId,
        port: u16,
        /// The datagrams that it takes, and whether it shares them with others by a hash of the
        /// sender. `None` if it takes none, because it is bound to another interface.
        binding: Option<(Binding, bool)>,
    },
    Connect {
        socket: ConnId,
        remote: Option<Endpoint>,
    },
    /// Whether a socket wants further values with its datagrams.
    Info {
        socket: ConnId,
        wants_info: bool,
    },
    Unbind {
        socket: ConnId,
    },
    /// An echo socket has requests to send.
    Echo {
        ident: u16,
    },
    /// An interface gets or loses an address, a route or its link.
    Interface(InterfaceChange),
    /// A socket joins or leaves a multicast group.
    Member {
        member: Member<ConnId>,
        listens: bool,
    },
}

/// What an application does with a held SYN.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Decision {
    /// The handshake goes on, as the open of this request id.
    Accept { request_id: u64 },
    /// The peer gets a reset.
    Refuse,
    /// The peer gets no answer.
    Drop,
}

/// An update for the pump: the connection of a flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HintUpdate {
    pub(crate) conn: ConnId,
    pub(crate) flow: Flow,
    pub(crate) open: bool,
}

/// The result of an active open.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OpenResult {
    Opened { conn: ConnId, flow: Flow },
    Failed(SocketError),
}

/// The options of a connection that is being opened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OpenOptions {
    pub(crate) options: Options,
    /// The settings in its request in the log.
    published: Settings,
}

/// The options that a connection begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) settings: Settings,
    pub(crate) tuning: Tuning,
}

#[derive(Debug, Default)]
pub(crate) struct SocketTable {
    pub(crate) open_results: HashMap<u64, Option<OpenResult>>,
    /// The options of opens that have no result yet.
    pub(crate) open_options: HashMap<u64, OpenOptions>,
    /// For each pending open that a poller waits for: the event to notify.
    pub(crate) open_events: HashMap<u64, Arc<EventCount>>,
    /// By port and binding. No connection matches two of them.
    pub(crate) listeners: Listeners,
    /// The held SYNs of listeners, by port.
    pub(crate) arriving: BTreeMap<u16, ArrivingQueue>,
    /// For each group, its established connections that are not in an accept queue yet.
    pub(crate) arrivals: HashMap<u16, Arrivals>,
    /// The sockets bound to UDP ports.
    pub(crate) bindings: Bindings,
    /// The queues of echo sockets, by their identifiers.
    pub(crate) echoes: HashMap<u16, Arc<EchoQueues>>,
    /// The latest error of the device.
    pub(crate) device_error: Option<DeviceError>,
    /// Our IPv6 addresses and routes on each interface, by the interface's number, as its first
    /// group last published them.
    v6: HashMap<u16, SiteV6>,
    /// The servers of names of each interface's lease.
    leased_names: HashMap<u16, Names>,
    next_request_id: u64,
}

/// The state that all groups of a stack share.
#[derive(Default)]
pub(crate) struct StackShared {
    socket_table: Mutex<SocketTable>,
    /// Notified when an entry of the socket table changes.
    pub(crate) socket_table_changed: Condvar,
    /// The mailbox of each group; empty if there is only one group.
    mailboxes: Box<[OnceLock<Arc<Mailbox>>]>,
    /// The groups, where there are mailboxes.
    worlds: Box<[OnceLock<std::sync::Weak<World>>]>,
    /// How often our IPv6 addresses and routes changed.
    v6_version: AtomicU64,
    /// The number of groups of each interface; 0 if there is only one group in all. Groups are
    /// numbered by interface, from the first interface on.
    groups_each: u16,
    /// Whether there are several interfaces.
    has_interfaces: bool,
    /// Work that has units, in the order of registration.
    with_units: Mutex<Vec<std::sync::Weak<dyn UnitWork>>>,
}

/// The queues that wake a group's receive pump.
pub(crate) struct Mailbox {
    /// Connections whose flag is raised; each at most once.
    pub(crate) dirty: ArrayQueue<ConnId>,
    /// Frames that we sent to ourselves.
    pub(crate) looped: SegQueue<Frame>,
    /// Whether `looped` may have frames. The pump checks this in every turn.
    pub(crate) has_looped: AtomicBool,
    /// Path MTUs in bytes by destination, as groups and connections learned them.
    pub(crate) paths: ArrayQueue<(Address, u16)>,
    /// Used when `dirty` is full, which entries of closed connections can cause.
    pub(crate) overflow: SegQueue<ConnId>,
    waker: DeviceWaker,
    /// Whether a thread sleeps in the device and must be woken.
    asleep: AtomicBool,
}

impl Mailbox {
    /// Notes that the application of `conn` moved a cursor or asked for something.
    fn notify(&self, conn: ConnId) {
        if self.dirty.push(conn).is_err() {
            self.overflow.push(conn);
        }
        self.wake();
    }

    /// The next connection that [`notify`](Self::notify) noted. If `overflow` is not empty, the
    /// queues take turns, so that neither waits until the other is empty.
    pub(crate) fn next_notified(&self, overflow_first: &mut bool) -> Option<ConnId> {
        let (dirty, overflow) = (&self.dirty, &self.overflow);
        if overflow.is_empty() {
            return dirty.pop();
        }
        *overflow_first ^= true;
        if *overflow_first {
            overflow.pop().or_else(|| dirty.pop())
        } else {
            dirty.pop().or_else(|| overflow.pop())
        }
    }

    /// Whether there may be frames that we sent to ourselves.
    #[inline]
    pub(crate) fn has_looped(&self) -> bool {
        // ORDERING: Acquire, pairs with the Release in `World::loop_back`.
        self.has_looped.load(Ordering::Acquire)
    }

    /// Wakes the pump after a queue got an entry.
    pub(crate) fn wake(&self) {
        // ORDERING: the fence pairs with the one in `before_sleep`: either the sleeper sees the
        // queue's new entry, or we see that it sleeps.
        core::sync::atomic::fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) {
            self.waker.wake();
        }
    }
}

/// The word in which [`World`] keeps our first IPv4 address.
fn v4_bits(site: &Site) -> u64 {
    let several = site.has_several_v4() || site.takes_any;
    let several = if several { SEVERAL_V4 } else { 0 };
    site.v4().to_bits() | several
}

impl core::fmt::Debug for StackShared {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("StackShared").finish_non_exhaustive()
    }
}

impl StackShared {
    fn registered_units(&self) -> MutexGuard<'_, Vec<std::sync::Weak<dyn UnitWork>>> {
        let registered = self.with_units.lock();
        registered.unwrap_or_else(PoisonError::into_inner)
    }

    /// Finishes all registered work with units. Returns the groups and connections of the work that
    /// `finish` ended.
    pub(crate) fn finish_units(&self) -> HashSet<(u16, ConnId)> {
        let registered = core::mem::take(&mut *self.registered_units());
        let works = registered.iter().filter_map(std::sync::Weak::upgrade);
        works.filter_map(|work| work.finish()).collect()
    }

    /// For `interfaces` interfaces with `groups_each` groups each.
    pub(crate) fn of(interfaces: u16, groups_each: u16) -> Self {
        let groups = interfaces * groups_each;
        StackShared {
            mailboxes: (0..groups).map(|_| OnceLock::new()).collect(),
            worlds: (0..groups).map(|_| OnceLock::new()).collect(),
            groups_each,
            has_interfaces: interfaces > 1,
            ..StackShared::default()
        }
    }

    /// Whether there are several interfaces.
    pub(crate) fn has_interfaces(&self) -> bool {
        self.has_interfaces
    }

    /// How many groups each interface has.
    pub(crate) fn groups_each(&self) -> usize {
        usize::from(self.groups_each.max(1))
    }

    /// How many groups there are.
    pub(crate) fn groups(&self) -> usize {
        self.mailboxes.len().max(1)
    }

    /// Sets our IPv6 addresses and routes on an interface.
    fn set_v6(&self, interface: u16, place: SiteV6) {
        self.socket_table().v6.insert(interface, place);
        self.socket_table_changed.notify_all();
        // ORDERING: Relaxed: a reader that sees it takes the lock, and finds the stored value.
        self.v6_version.fetch_add(1, Ordering::Relaxed);
        // Wakes the pumps of sleeping groups, which must take the change.
        let mailboxes = self.mailboxes.iter().filter_map(OnceLock::get);
        mailboxes.for_each(|mailbox| mailbox.wake());
    }

    /// How often our IPv6 addresses and routes changed.
    pub(crate) fn v6_version(&self) -> u64 {
        self.v6_version.load(Ordering::Relaxed)
    }

    pub(crate) fn socket_table(&self) -> MutexGuard<'_, SocketTable> {
        self.socket_table
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes every thread that waits for the socket table, because the stack shuts down.
    pub(crate) fn wake_all(&self) {
        let table = self.socket_table();
        let held = table.arriving.values().map(|queue| queue.news.clone());
        let queues = table.listeners.queues().map(|queue| queue.news.clone());
        let queues: Vec<_> = queues.chain(held).collect();
        let opens: Vec<_> = table.open_events.values().cloned().collect();
        let echoes: Vec<_> = table.echoes.values().cloned().collect();
        drop(table);
        self.socket_table_changed.notify_all();
        queues.iter().for_each(|news| news.event.notify_all());
        opens.iter().for_each(|event| event.notify_all());
        echoes.iter().for_each(|queues| queues.event.notify_all());
    }
}

impl SocketTable {
    /// Returns another number each time.
    pub(crate) fn next_request_id(&mut self) -> u64 {
        self.next_request_id += 1;
        self.next_request_id
    }

    pub(crate) fn new_request(&mut self, settings: Settings) -> u64 {
        let request_id = self.next_request_id();
        self.open_results.insert(request_id, None);
        let options = Options {
            settings,
            ..Options::default()
        };
        let begins = OpenOptions {
            options,
            ..OpenOptions::default()
        };
        self.open_options.insert(request_id, begins);
        request_id
    }
}

/// Shared by all parts of one group of a stack; [`StackShared`] is shared by all groups.
pub(crate) struct World {
    pub(crate) limits: Limits,
    /// Maximum number of workers.
    pub(crate) workers: usize,
    pub(crate) mac: [u8; 6],
    /// Our addresses and routes at the start, without IPv6. [`World::with_site`] returns the
    /// current ones.
    site: Site,
    /// Our current addresses and routes without IPv6, once they have changed.
    changed_site: Mutex<Option<Arc<Site>>>,
    has_changed_site: AtomicBool,
    /// The keys of the hash that chooses ports.
    pub(crate) keys: Keys,
    /// A random number, new at each start of the stack, that is also hashed to choose ports.
    pub(crate) salt: u64,
    /// The device's address filter, if it has one. The pump keeps our addresses in it.
    pub(crate) filter: Option<Arc<dyn AddressFilter>>,
    /// Whether the device finishes partial checksums.
    pub(crate) tx_checksum: bool,
    /// Whether threads sleep in the device until a descriptor is readable.
    pub(crate) has_descriptor: bool,
    /// The processor, for copies that are summed.
    pub(crate) cpu: Cpu,
    /// Limits of a frame that the device divides into datagrams.
    pub(crate) frame_bounds: FrameBounds,
    pub(crate) streams: Streams,
    /// The rings of UDP sockets.
    pub(crate) queues: Queues,
    pub(crate) tx: Arc<TxRing>,
    /// Commands of applications; drained by the pump.
    pub(crate) commands: SegQueue<Command>,
    /// Further queues that the pump drains.
    pub(crate) mailbox: Arc<Mailbox>,
    /// The primaries' reports of connections that begin and end; drained by the pump.
    pub(crate) hints: SegQueue<HintUpdate>,
    /// Closed connections that may have unfinished work, and a number above those of their frames;
    /// drained by the pump.
    pub(crate) retired: SegQueue<(ConnId, u64)>,
    /// Used frames of workers that sleep; the next worker that claims frames drains it.
    pub(crate) returned: SegQueue<Frame>,
    /// Whole frames outside the log: ARP and echo replies.
    pub(crate) control: ControlFrames,
    /// The state for opening, listening and accepting, which is rare and never on the path of a
    /// frame.
    pub(crate) shared: Arc<StackShared>,
    /// Which of the stack's groups this is.
    pub(crate) group: u16,
    /// The counters that were last posted. Posting never waits.
    posted: Mutex<StackStats>,
    /// Most panics that one ended replica caught, without planted ones.
    #[cfg(feature = "testkit")]
    panics: AtomicU64,
    /// Whether the pump frees memory with unread bytes: a planted fault.
    #[cfg(feature = "testkit")]
    pub(crate) loses_unread: AtomicBool,
    /// Connections to list.
    pub(crate) view: View,
    /// Units that any worker may process.
    pub(crate) units: UnitQueue,
    pub(crate) down: AtomicBool,
    /// The worker that waiting threads may drive, if there is such a one.
    pub(crate) driven: OnceLock<std::sync::Weak<dyn Driven>>,
    /// Our first IPv4 address, in the format of [`PlaceV4::to_bits`], and [`SEVERAL_V4`].
    v4: AtomicU64,
    /// Reasons why frames may not go to the device: [`LOOPED`], [`LINK_DOWN`].
    detours: AtomicU8,
    /// The hop limit that routers advertise for IPv6; 0: none.
    hop_limit: AtomicU8,
    /// Whether the device returned an error when it was last offered frames: it is down or gone.
    device_refuses: AtomicBool,
    /// Whether the stack is closing, so that nothing new may begin.
    closing: AtomicBool,
    /// Whether opens wait for the first lease of DHCP.
    awaits_lease: AtomicBool,
    /// The user of the rings: [`UNUSED`], until [`SOCKETS`] or a [`REPLAY`] use them.
    user: AtomicU8,
}

const UNUSED: u8 = 0;
const SOCKETS: u8 = 1;
#[cfg(feature = "record")]
const REPLAY: u8 = 2;

/// Collects wakeups of applications, so that several events of one connection cause one wakeup:
/// when another connection has an event, or when this is dropped.
///
/// A wakeup needs a fence, which waits for all earlier stores, perhaps of payload.
pub(crate) struct Wakes<'a> {
    world: &'a World,
    /// [`ConnId::NONE`] while there is none.
    conn: ConnId,
    has_bytes: bool,
    has_room: bool,
    socket: Option<ConnId>,
}

impl<'a> Wakes<'a> {
    pub(crate) fn new(world: &'a World) -> Self {
        Wakes {
            world,
            conn: ConnId::NONE,
            has_bytes: false,
            has_room: false,
            socket: None,
        }
    }

    #[inline]
    fn begin(&mut self, conn: ConnId) {
        if self.conn != conn {
            self.wake();
            self.conn = conn;
        }
    }

    /// Notes a delivery for the application of `conn`.
    #[inline]
    pub(crate) fn add(&mut self, conn: ConnId) {
        self.begin(conn);
        self.has_bytes = true;
    }

    /// Notes a datagram or released room for the application of a UDP socket.
    #[inline]
    fn add_socket(&mut self, socket: ConnId) {
        if self.socket != Some(socket) {
            self.wake_socket();
            self.socket = Some(socket);
        }
    }

    /// Notes a performed effect that transmits nothing.
    #[inline(always)]
    pub(crate) fn after(&mut self, effect: &Effect) {
        match effect {
            Effect::Deliver(piece) => self.add(piece.conn),
            Effect::Queue(datagrams) => self.add_socket(datagrams.socket),
            Effect::Release { conn, .. } | Effect::Numbered { conn, .. } => {
                self.begin(*conn);
                self.has_room = true;
            }
            Effect::Sent { socket, .. } => self.add_socket(*socket),
            _ => {}
        }
    }

    fn wake_socket(&mut self) {
        let socket = self.socket.take();
        if let Some(queue) = socket.and_then(|socket| self.world.queues.streams.get(socket)) {
            queue.waiting().notify_all();
        }
    }

    fn wake(&mut self) {
        let conn = core::mem::replace(&mut self.conn, ConnId::NONE);
        let bytes = core::mem::take(&mut self.has_bytes);
        let room = core::mem::take(&mut self.has_room);
        if let Some(stream) = self.world.streams.get(conn) {
            if bytes {
                stream.waiting().notify_all();
            }
            if room {
                stream.room().notify_all();
            }
        }
    }
}

impl Drop for Wakes<'_> {
    fn drop(&mut self) {
        self.wake();
        self.wake_socket();
    }
}

impl World {
    /// The random number of the `count`th port choice. It is hard to guess even from all other such
    /// numbers and the secret.
    pub(crate) fn random_port(&self, domain: KeyUse, count: u64) -> u64 {
        self.keys.of(domain, [self.salt, count])
    }

    pub(crate) fn new(
        limits: Limits,
        (mac, tx_checksum): ([u8; 6], bool),
        site: Site,
        delivery_slots: usize,
        tx: Arc<TxRing>,
        waker: DeviceWaker,
        (shared, group): (Arc<StackShared>, u16),
    ) -> World {
        let v4 = v4_bits(&site);
        let mailbox = Arc::new(Mailbox {
            dirty: ArrayQueue::new(2 * limits.connections as usize),
            looped: SegQueue::new(),
            has_looped: AtomicBool::new(false),
            paths: ArrayQueue::new(MOST_PATHS),
            overflow: SegQueue::new(),
            waker,
            asleep: AtomicBool::new(false),
        });
        if let Some(place) = shared.mailboxes.get(usize::from(group)) {
            let _ = place.set(Arc::clone(&mailbox));
        }
        World {
            limits,
            workers: 1,
            mac,
            site,
            changed_site: Mutex::default(),
            has_changed_site: AtomicBool::new(false),
            keys: Keys::default(),
            salt: 0,
            filter: None,
            tx_checksum,
            has_descriptor: false,
            cpu: Cpu::this(),
            frame_bounds: FrameBounds::NONE,
            streams: Streams::new(&limits, delivery_slots),
            queues: Queues::new(&limits, delivery_slots),
            tx,
            commands: SegQueue::new(),
            mailbox,
            hints: SegQueue::new(),
            retired: SegQueue::new(),
            returned: SegQueue::new(),
            control: ControlFrames::default(),
            shared,
            group,
            posted: Mutex::default(),
            #[cfg(feature = "testkit")]
            panics: AtomicU64::new(0),
            #[cfg(feature = "testkit")]
            loses_unread: AtomicBool::new(false),
            view: View::default(),
            units: UnitQueue::new(),
            down: AtomicBool::new(false),
            driven: OnceLock::new(),
            v4: AtomicU64::new(v4),
            detours: AtomicU8::new(0),
            hop_limit: AtomicU8::new(0),
            device_refuses: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            awaits_lease: AtomicBool::new(false),
            user: AtomicU8::new(UNUSED),
        }
    }

    pub(crate) fn socket_table(&self) -> MutexGuard<'_, SocketTable> {
        self.shared.socket_table()
    }

    /// Calls `ask` with our current addresses and routes.
    pub(crate) fn with_site<T>(&self, ask: impl FnOnce(&Site) -> T) -> T {
        // There is no IPv6 until the first group publishes its addresses.
        match self.shared.v6_version() {
            0 => self.with_site_v4(ask),
            _ => self.with_site_v4(|site| {
                let mut site = site.clone();
                site.v6 = self.v6();
                ask(&site)
            }),
        }
    }

    /// As [`World::with_site`], but only for the family of `address`. For IPv4 it takes no lock
    /// unless our addresses or routes have changed.
    pub(crate) fn with_site_for<T>(&self, address: Address, ask: impl FnOnce(&Site) -> T) -> T {
        match address.is_v4() {
            true => self.with_site_v4(ask),
            false => self.with_site(ask),
        }
    }

    /// As [`World::with_site`], without IPv6.
    fn with_site_v4<T>(&self, ask: impl FnOnce(&Site) -> T) -> T {
        // ORDERING: Relaxed: a reader that sees it takes the lock, and finds the stored value.
        if !self.has_changed_site.load(Ordering::Relaxed) {
            return ask(&self.site);
        }
        let changed = self.changed_site().clone();
        ask(changed.as_deref().unwrap_or(&self.site))
    }

    fn changed_site(&self) -> MutexGuard<'_, Option<Arc<Site>>> {
        let changed = self.changed_site.lock();
        changed.unwrap_or_else(PoisonError::into_inner)
    }

    /// Our current first IPv4 address.
    #[inline(always)]
    pub(crate) fn v4(&self) -> PlaceV4 {
        // ORDERING: Relaxed: one word holds the whole value, and a segment that is parsed with
        // an old one is checked again when it is published.
        PlaceV4::of_bits(self.v4.load(Ordering::Relaxed))
    }

    /// Whether we currently have several IPv4 addresses.
    pub(crate) fn has_several_v4(&self) -> bool {
        // ORDERING: as above.
        self.v4.load(Ordering::Relaxed) & SEVERAL_V4 != 0
    }

    /// Publishes the IPv4 addresses and routes of `site` to other threads.
    pub(crate) fn set_site(&self, site: &Site) {
        *self.changed_site() = Some(Arc::new(site.clone()));
        self.has_changed_site.store(true, Ordering::Relaxed);
        self.v4.store(v4_bits(site), Ordering::Relaxed);
    }

    /// Our current IPv4 addresses.
    pub(crate) fn addresses_v4(&self) -> Vec<Address> {
        self.with_site_v4(|site| site.places_v4().map(|own| own.address).collect())
    }

    /// The number of our interface; 0 is the first.
    fn interface(&self) -> u16 {
        self.group / self.shared.groups_each.max(1)
    }

    /// The range of our interface's groups among all groups.
    fn own_groups(&self) -> core::ops::Range<usize> {
        let each = self.shared.groups_each();
        let first = usize::from(self.interface()) * each;
        first..first + each
    }

    /// The mailbox of a group of our interface, by its number there, if it exists already.
    pub(crate) fn mailbox_of(&self, group: u16) -> Option<&Arc<Mailbox>> {
        let mailboxes = self.shared.mailboxes.get(self.own_groups())?;
        mailboxes.get(usize::from(group))?.get()
    }

    /// Reports the path MTU `mtu`, in bytes, for `remote` to all groups of our interface. A
    /// group whose queue is full misses it, and learns it by itself.
    pub(crate) fn tell_path(&self, remote: Address, mtu: u16) {
        let tell = |mailbox: &Mailbox| {
            if mailbox.paths.push((remote, mtu)).is_ok() {
                mailbox.wake();
            }
        };
        match self.shared.mailboxes.get(self.own_groups()) {
            Some(all) => all
                .iter()
                .filter_map(OnceLock::get)
                .for_each(|mailbox| tell(mailbox)),
            None => tell(&self.mailbox),
        }
    }

    /// The last published IPv6 addresses and routes of our interface.
    pub(crate) fn v6(&self) -> SiteV6 {
        let table = self.socket_table();
        let known = table.v6.get(&self.interface());
        known.cloned().unwrap_or_default()
    }

    /// Whether the stack takes part in IPv6 on our interface.
    pub(crate) fn has_v6(&self) -> bool {
        self.socket_table().v6.contains_key(&self.interface())
    }

    /// The hop limit of packets to `destination`: `own`, the sender's, unless that is the default
    /// and routers advertise another one (RFC 4861 section 6.3.4).
    #[inline]
    pub(crate) fn hop_limit(&self, destination: Address, own: u8) -> u8 {
        if destination.is_v4() || own != IpFields::DEFAULT.ttl {
            return own;
        }
        // ORDERING: Relaxed: no other data depends on it, and any frame may have the older one.
        match self.hop_limit.load(Ordering::Relaxed) {
            0 => own,
            said => said,
        }
    }

    /// Sets the hop limit that routers advertise, or none.
    pub(crate) fn set_hop_limit(&self, said: Option<u8>) {
        // ORDERING: Relaxed, as in `hop_limit`.
        self.hop_limit.store(said.unwrap_or(0), Ordering::Relaxed);
    }

    /// Sets our IPv6 addresses and routes on our interface.
    pub(crate) fn set_v6(&self, place: SiteV6) {
        self.shared.set_v6(self.interface(), place);
    }

    /// Makes it known to the other groups.
    pub(crate) fn register(self: &Arc<Self>) {
        if let Some(place) = self.shared.worlds.get(usize::from(self.group)) {
            let _ = place.set(Arc::downgrade(self));
        }
    }

    /// The lease of our interface changed: all of its groups change, in the order of calls of
    /// applications.
    pub(crate) fn set_lease(&self, changes: &[InterfaceChange], names: Names) {
        let mut table = self.socket_table();
        table.leased_names.insert(self.interface(), names);
        let groups = self.shared.worlds.get(self.own_groups());
        let groups = groups.unwrap_or_default().iter().filter_map(OnceLock::get);
        let groups: Vec<_> = groups.filter_map(std::sync::Weak::upgrade).collect();
        for change in changes {
            match groups.is_empty() {
                true => self.command(Command::Interface(*change)),
                false => {
                    let change = Command::Interface(*change);
                    groups.iter().for_each(|world| world.command(change));
                }
            }
        }
        drop(table);
        self.shared.socket_table_changed.notify_all();
    }

    /// Whether opens wait for the first lease of DHCP.
    pub(crate) fn awaits_lease(&self) -> bool {
        // ORDERING: Relaxed: the pump decides about each open.
        self.awaits_lease.load(Ordering::Relaxed)
    }

    /// Sets whether they wait. Returns the old value.
    pub(crate) fn set_awaits_lease(&self, awaits: bool) -> bool {
        self.awaits_lease.swap(awaits, Ordering::Relaxed)
    }

    /// The servers of names and domains that our interface learned: of IPv4, then of IPv6.
    pub(crate) fn names(&self) -> Names {
        let table = self.socket_table();
        let leased = table.leased_names.get(&self.interface());
        let learned = table.v6.get(&self.interface()).map(|place| &place.names);
        let mut all = Names::default();
        for names in leased.into_iter().chain(learned) {
            all.servers.extend(&names.servers);
            all.domains.extend(names.domains.iter().cloned());
        }
        all
    }

    /// The local address that a socket reports: the address that it is bound to; otherwise `::` if
    /// it takes only IPv6, 0.0.0.0 if we have several IPv4 addresses, or else our IPv4 address.
    pub(crate) fn local_address(&self, binding: Binding) -> Address {
        match (binding.address, binding.families) {
            (Some(address), _) => address,
            (None, Families::V6) => Address::v6([0; 16]),
            (None, _) if self.shared.has_interfaces || self.has_several_v4() => {
                Address::UNSPECIFIED
            }
            (None, _) => self.v4().address,
        }
    }

    /// Processes units of one waiting connection, if there is one. Calls `more` if other units
    /// remain. Returns how many were processed.
    #[inline(always)]
    pub(crate) fn serve_units(&self, more: impl Fn()) -> usize {
        self.units.serve(&more)
    }

    /// Whether a connection with units waits.
    #[inline(always)]
    pub(crate) fn has_units(&self) -> bool {
        !self.units.is_empty()
    }

    /// Registers work for [`StackShared::finish_units`].
    pub(crate) fn register_units(&self, work: std::sync::Weak<dyn UnitWork>) {
        let mut registered = self.shared.registered_units();
        if registered.len() == registered.capacity() {
            registered.retain(|work| work.strong_count() > 0);
        }
        registered.push(work);
    }

    /// Queues a connection that has units, and wakes a worker.
    pub(crate) fn push_units(&self, work: Arc<dyn UnitWork>) {
        self.units.push(work);
        // ORDERING: the fence pairs with the one in `shut_down`: at least one of the two threads
        // sees the other's store, so nothing is left in the queue.
        core::sync::atomic::fence(Ordering::SeqCst);
        if self.is_down() {
            self.units.clear();
        } else {
            self.wake_pump();
        }
    }

    /// Wakes the pump after a queue got an entry.
    pub(crate) fn wake_pump(&self) {
        self.mailbox.wake();
    }

    /// Whether frames below `numbered` wait to be sent, by a device that accepts frames. Another
    /// worker may send them, and leave it to the receive pump to publish the credit.
    pub(crate) fn has_unsent(&self, numbered: u64) -> bool {
        self.tx.sent() < numbered && !self.is_device_refusing()
    }

    /// Whether the device has taken as many frames as a state has awaited.
    #[inline]
    pub(crate) fn is_awaited(&self, awaited: Awaited) -> bool {
        self.tx.sent() >= awaited.sent
    }

    /// Whether the device has taken the frames below `numbered` and no more, and all those without
    /// numbers.
    #[inline]
    pub(crate) fn has_sent_all(&self, numbered: u64) -> bool {
        self.tx.sent() == numbered && self.control.are_sent()
    }

    /// Makes the transmit pump return frames to our own link-layer address to us. Must be called
    /// before the first of them is numbered.
    pub(crate) fn enable_loopback(&self) {
        // ORDERING: Relaxed: a thread that sends such a frame saw the request that numbered it, and
        // thus this store.
        self.detours.fetch_or(LOOPED, Ordering::Relaxed);
    }

    /// Sets the link up or down for an application. While it is down, frames go neither way.
    pub(crate) fn set_link_up(&self, is_up: bool) {
        // ORDERING: Relaxed, a frame may go in either order.
        match is_up {
            true => self.detours.fetch_and(!LINK_DOWN, Ordering::Relaxed),
            false => self.detours.fetch_or(LINK_DOWN, Ordering::Relaxed),
        };
    }

    /// Whether an application has set the link down.
    #[inline]
    pub(crate) fn is_link_down(&self) -> bool {
        self.detours.load(Ordering::Relaxed) & LINK_DOWN != 0
    }

    /// Whether a frame is for ourselves.
    #[inline]
    pub(crate) fn comes_back(&self, frame: &TxFrame<'_>) -> bool {
        let detours = self.detours.load(Ordering::Relaxed);
        detours & LOOPED != 0 && frame.head.starts_with(&self.mac)
    }

    /// Whether some frames do not go to the device.
    #[inline]
    pub(crate) fn has_detours(&self) -> bool {
        // ORDERING: as above.
        self.detours.load(Ordering::Relaxed) != 0
    }

    /// Puts a frame for ourselves into the mailbox of its group. Returns false, and does nothing,
    /// while too many frames wait there.
    pub(crate) fn loop_back(&self, frame: &TxFrame<'_>) -> bool {
        let bytes = [frame.head, frame.payload].concat();
        self.give_to_ourselves(bytes, frame.meta.gso)
    }

    /// As [`World::loop_back`], for bytes.
    pub(crate) fn give_to_ourselves(&self, bytes: Vec<u8>, gso: Option<Gso>) -> bool {
        let each = self.shared.groups_each();
        let target = (each > 1).then(|| {
            let grouping = Grouping::new(&self.keys, each as u16);
            groups::target(&grouping, &bytes)
        });
        let give = |mailbox: &Mailbox, bytes: Vec<u8>| {
            let len = bytes.len();
            let mut looped = Frame::from_buffer(bytes.into(), 0, len, RxMeta::default());
            // The frame cannot be damaged, and its checksum may be incomplete.
            looped.meta.checksum = RxChecksum::Valid;
            looped.meta.gso = gso;
            mailbox.looped.push(looped);
            // ORDERING: Release, pairs with the Acquire in `Mailbox::has_looped`.
            mailbox.has_looped.store(true, Ordering::Release);
            mailbox.wake();
        };
        let is_full = |mailbox: &Mailbox| mailbox.looped.len() >= MOST_LOOPED;
        let all = || (0..each as u16).filter_map(|group| self.mailbox_of(group));
        match target {
            Some(Target::All) if all().any(|mailbox| is_full(mailbox)) => return false,
            Some(Target::All) => all().for_each(|mailbox| give(mailbox, bytes.clone())),
            Some(Target::One(group)) => match self.mailbox_of(group as u16) {
                Some(mailbox) if is_full(mailbox) => return false,
                Some(mailbox) => give(mailbox, bytes),
                None => {}
            },
            None if is_full(&self.mailbox) => return false,
            None => give(&self.mailbox, bytes),
        }
        true
    }

    /// Queues used frames, which the worker that next claims frames returns to the device.
    pub(crate) fn give_back(&self, frames: &mut Vec<Frame>) {
        frames.drain(..).for_each(|frame| self.returned.push(frame));
        self.wake_pump();
    }

    /// Wakes the thread that sleeps in the device, or ends the next sleep.
    pub(crate) fn wake_device(&self) {
        self.mailbox.waker.wake();
    }

    /// The caller is about to sleep in the device and will check every queue once more.
    pub(crate) fn before_sleep(&self) {
        self.mailbox.asleep.store(true, Ordering::Relaxed);
        // ORDERING: the fence pairs with the one in `Mailbox::wake`.
        core::sync::atomic::fence(Ordering::SeqCst);
    }

    pub(crate) fn after_sleep(&self) {
        self.mailbox.asleep.store(false, Ordering::Relaxed);
    }

    /// Whether sockets may use the rings, that is, no log was replayed.
    pub(crate) fn admits_sockets(&self) -> bool {
        self.is_used_by(SOCKETS)
    }

    /// Whether a log may be replayed: no socket may use the rings. The effects of a replay follow
    /// the cursors of the recorded application, not those of sockets here.
    #[cfg(feature = "record")]
    pub(crate) fn admits_replay(&self) -> bool {
        self.is_used_by(REPLAY)
    }

    fn is_used_by(&self, user: u8) -> bool {
        // ORDERING: Relaxed: the word is the whole decision.
        let exchanged =
            self.user
                .compare_exchange(UNUSED, user, Ordering::Relaxed, Ordering::Relaxed);
        exchanged.is_ok() || exchanged == Err(user)
    }

    pub(crate) fn command(&self, command: Command) {
        self.commands.push(command);
        self.wake_pump();
    }

    /// Raises the flag of a connection whose application moved a cursor or asked for something.
    pub(crate) fn raise(&self, stream: &StreamRef<'_>) {
        if stream.raise() {
            self.mailbox.notify(stream.conn());
        }
    }

    /// As [`World::raise`], for a UDP socket that sent something.
    pub(crate) fn raise_socket(&self, stream: &StreamRef<'_>) {
        if stream.raise() {
            let _ = self.queues.dirty.push(stream.conn());
            self.wake_pump();
        }
    }

    pub(crate) fn is_down(&self) -> bool {
        // ORDERING: Acquire, pairs with the Release in `shut_down`.
        self.down.load(Ordering::Acquire)
    }

    /// Whether the stack is closing or shut down, so that nothing new may begin.
    pub(crate) fn is_closing(&self) -> bool {
        // ORDERING: Relaxed: a concurrent call may come before or after the change.
        self.closing.load(Ordering::Relaxed) || self.is_down()
    }

    /// Announces that the stack will shut down.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    /// Shuts the stack down: every blocked call returns an error.
    pub(crate) fn shut_down(&self) {
        // ORDERING: Release, pairs with the Acquire in `is_down`.
        self.down.store(true, Ordering::Release);
        self.shared.wake_all();
        self.streams.wake_all();
        self.queues.streams.wake_all();
        // Queued work holds a reference to this world.
        // ORDERING: the fence pairs with the one in `push_units`.
        core::sync::atomic::fence(Ordering::SeqCst);
        self.units.clear();
        self.wake_device();
    }

    pub(crate) fn complete_open(&self, request_id: u64, answer: OpenResult) {
        let mut table = self.socket_table();
        if let Some(place) = table.open_results.get_mut(&request_id) {
            *place = Some(answer);
            let begins = table.open_options.remove(&request_id);
            if let (Some(begins), OpenResult::Opened { conn, .. }) = (begins, answer)
                && let Some(stream) = self.streams.get(conn)
            {
                let Options { settings, tuning } = begins.options;
                stream.begin_with(settings, tuning, begins.published);
                self.raise(&stream);
            }
            let event = table.open_events.remove(&request_id);
            drop(table);
            self.shared.socket_table_changed.notify_all();
            event.inspect(|event| event.notify_all());
        } else if let OpenResult::Opened { conn, .. } = answer {
            drop(table);
            self.abandon(conn);
        }
    }

    /// The settings for the request of an open, which are recorded as published.
    pub(crate) fn settings_of_open(&self, request_id: u64) -> Settings {
        let mut table = self.socket_table();
        let begins = table.open_options.get_mut(&request_id);
        begins.map_or_else(Settings::default, |begins| {
            begins.published = begins.options.settings;
            begins.published
        })
    }

    /// The settings for connections of a listener, if they are not published in group `group` yet.
    /// Marks them as published.
    pub(crate) fn settings_of_listener(
        &self,
        port: u16,
        binding: Binding,
        group: u16,
    ) -> Option<Settings> {
        let mut table = self.socket_table();
        let queue = table.listeners.get_mut(port, binding)?;
        let is_told = queue.is_told.get_mut(usize::from(group))?;
        (!core::mem::replace(is_told, true)).then_some(queue.options.settings)
    }

    /// Aborts a connection that no application holds. Its place can be reused afterwards.
    pub(crate) fn abandon(&self, conn: ConnId) {
        if let Some(stream) = self.streams.get(conn) {
            stream.request(AppRequest {
                orphan: true,
                abort: true,
                ..AppRequest::default()
            });
            self.raise(&stream);
        }
    }

    /// Posts counters, unless another thread reads or posts them at this moment.
    pub(crate) fn post(&self, post: impl FnOnce(&mut StackStats)) {
        if let Some(mut posted) = try_lock(&self.posted) {
            post(&mut posted);
        }
    }

    /// Checks, when a replica ends, that it caught no panics except those planted by a test.
    ///
    /// # Panics
    /// If `panics` is not 0, unless the thread is already unwinding.
    #[cfg(feature = "testkit")]
    pub(crate) fn assert_no_panics(&self, panics: u64) {
        self.panics.fetch_max(panics, Ordering::Relaxed);
        if !std::thread::panicking() {
            assert_eq!(panics, 0, "panics were caught");
        }
    }

    /// The highest number of panics, not planted by a test, that one ended replica caught.
    #[cfg(feature = "testkit")]
    pub(crate) fn unplanned_panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// The counters that were last posted.
    pub(crate) fn stats(&self) -> StackStats {
        *self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn device_failed(&self, error: DeviceError) {
        self.socket_table().device_error = Some(error);
    }

    /// Notes whether the device took the frames that it was offered, or refused them with an error.
    #[inline]
    pub(crate) fn set_device_refuses(&self, refuses: bool) {
        // ORDERING: Relaxed, a hint when to try again.
        if self.device_refuses.load(Ordering::Relaxed) != refuses {
            self.device_changes(refuses);
        }
    }

    /// Notes that the device began to refuse frames, or that it accepts them again. In the second
    /// case, the link may be a different one.
    #[cold]
    fn device_changes(&self, refuses: bool) {
        self.device_refuses.store(refuses, Ordering::Relaxed);
        if !refuses {
            self.command(Command::Interface(InterfaceChange::Returned));
        }
    }

    /// Whether frames wait for a device that is down or gone.
    pub(crate) fn is_device_refusing(&self) -> bool {
        // ORDERING: as above.
        self.device_refuses.load(Ordering::Relaxed)
    }

    /// Whether any queue needs the pump, or a thread waits for a list of connections.
    pub(crate) fn has_work(&self) -> bool {
        !self.commands.is_empty()
            || !self.mailbox.dirty.is_empty()
            || !self.mailbox.overflow.is_empty()
            || !self.mailbox.paths.is_empty()
            || self.mailbox.has_looped()
            || !self.retired.is_empty()
            || !self.queues.dirty.is_empty()
            || !self.queues.unbound.is_empty()
            || !self.control.is_empty() && !self.is_device_refusing()
            || self.view.is_asked()
            || !self.returned.is_empty()
            || self.has_units()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::setup::Setup;

    #[test]
    fn no_connection_waits_until_others_stop_notifying_the_pump() {
        let (device, _) = dominoes_drivers::memory::scripted();
        let limits = Limits::default().connections(1);
        let setup = Setup::new([10, 0, 0, 1].into(), 24, [1, 2]).limits(limits);
        let world = setup.build(Box::new(device), 64, 1).unwrap().world;
        let (mailbox, mut overflow_first) = (&world.mailbox, false);
        // The first two fill `dirty`.
        for index in 0..3 {
            let generation = 0;
            mailbox.notify(ConnId { index, generation });
        }
        let turns = [(); 12].map(|()| {
            let next = mailbox.next_notified(&mut overflow_first).unwrap();
            mailbox.notify(next);
            next.index
        });
        for four in turns.windows(4) {
            assert!((0..3).all(|index| four.contains(&index)), "{turns:?}");
        }
    }
}
