//! Changes of our addresses, of the link, and of routes while the stack runs.
//!
//! New connections and datagrams use a new address at once. When an address is lost, its
//! connections end by [`Body::AddressLost`], which sends nothing, because the address may belong to
//! another host by now. Listeners and UDP sockets stay, and can be reached at the remaining
//! addresses.
//!
//! If a connection's next hop changes, or gets another link-layer address, the connection follows
//! by [`Body::NextHop`] as soon as the link-layer address is known. A connection without a route
//! keeps its old next hop.

use core::net::IpAddr;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::io::rx::{Log, RESERVED, RxPump};
use crate::io::world::Command;
use crate::ip::rate_limit::TokenBucket;
use crate::ip::route::{Route, Site};
use crate::log::request::{Address, Body, ConnId, Flow};
use crate::time::{Duration, Instant};

/// The pump may learn of a connection this long after a change of routes or neighbours, although
/// the connection began before the change.
const LATE: Duration = Duration::from_secs(60);
/// Time to the next attempt if the neighbour table had no room to resolve a next hop.
const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of changes kept for late connections. The oldest are forgotten.
const MAX_CHANGES: usize = 16;
/// Rate of searches for connections whose next hops have moved: the burst, and the interval after
/// it. One search covers all moves since the last one.
const SEARCHES: (u64, Duration) = (16, Duration::from_millis(100));

/// Connections that must follow a change of their next hop.
#[derive(Debug)]
pub(crate) struct Rerouting {
    /// Neighbours with a new link-layer address, whose connections have not been searched yet.
    moved: BTreeSet<Address>,
    searches: TokenBucket,
    /// Our addresses and routes before each recent change, and how long late connections may need
    /// them.
    before: VecDeque<(Instant, Site)>,
    /// Connections to publish when the log has room. A set, so that each is published once even if
    /// its next hop changes several times, in an order independent of the hash table's.
    queue: BTreeSet<Flow>,
    /// Connections that wait for the link-layer address of their next hop. Each flow waits for one
    /// hop: every change of our addresses or routes moves all of them back into `queue`.
    waiting: BTreeMap<Address, BTreeSet<Flow>>,
    /// When to retry the next hops that could not be resolved for lack of room.
    ask_at: Option<Instant>,
}

impl Default for Rerouting {
    fn default() -> Self {
        Rerouting {
            moved: BTreeSet::new(),
            searches: TokenBucket::new(SEARCHES.0, SEARCHES.1),
            before: VecDeque::new(),
            queue: BTreeSet::new(),
            waiting: BTreeMap::new(),
            ask_at: None,
        }
    }
}

impl Rerouting {
    /// When the next search or retry is due.
    pub(super) fn next_deadline(&self) -> Instant {
        let search_at = match self.moved.is_empty() {
            true => Instant::NEVER,
            false => self.searches.next(),
        };
        search_at.min(self.ask_at.unwrap_or(Instant::NEVER))
    }

    /// Whether connections wait to be published.
    pub(super) fn is_due(&self) -> bool {
        !self.queue.is_empty()
    }
}

/// A change of an interface.
#[derive(Clone, Copy, Debug)]
pub(crate) enum InterfaceChange {
    /// Adds an address. Hosts that share its first `prefix` bits are neighbours.
    Add { address: IpAddr, prefix: u8 },
    /// Removes an address.
    Remove { address: IpAddr },
    /// Adds a route through a gateway.
    AddRoute(Route),
    /// Removes a route.
    RemoveRoute(Route),
    /// DHCP limits the bytes of a packet of IPv4, or limits them no more.
    Mtu(Option<u16>),
    /// DHCP begins to ask for a lease, or gives it back.
    Dhcp { is_on: bool },
    /// Opens wait for a lease no more.
    LeaseFails,
    /// The link goes up or down.
    Link { is_up: bool },
    /// The device accepts frames again, after it was down.
    Returned,
}

impl RxPump {
    pub(super) fn change_interface(&mut self, now: Instant, change: InterfaceChange) {
        match change {
            InterfaceChange::Add { address, prefix } => match address {
                IpAddr::V4(address) => self.add_v4(now, address.into(), prefix),
                IpAddr::V6(address) => {
                    self.change_link(now, |link| link.add_by_hand(address, prefix, now));
                }
            },
            InterfaceChange::Remove { address } => match address {
                IpAddr::V4(address) => self.remove_v4(now, address.into()),
                IpAddr::V6(address) => {
                    self.change_link(now, |link| link.remove(address.into()));
                }
            },
            InterfaceChange::AddRoute(route) => match route.network {
                IpAddr::V4(_) => self.change_v4(now, |site| site.add_route(route)),
                IpAddr::V6(_) => self.change_link(now, |link| link.add_route(route)),
            },
            InterfaceChange::RemoveRoute(route) => match route.network {
                IpAddr::V4(_) => self.change_v4(now, |site| site.remove_route(&route)),
                IpAddr::V6(_) => self.change_link(now, |link| link.remove_route(&route)),
            },
            InterfaceChange::Mtu(mtu) => self.change_v4_mtu(now, mtu),
            InterfaceChange::Dhcp { is_on } => {
                self.with_host(now, |host| host.set_dhcp(now, is_on))
            }
            InterfaceChange::LeaseFails => self.end_wait_for_lease(),
            InterfaceChange::Returned => self.link_is_up(now),
            InterfaceChange::Link { is_up } => {
                self.world.set_link_up(is_up);
                if is_up {
                    self.link_is_up(now);
                }
            }
        }
    }

    /// Adds an IPv4 address.
    fn add_v4(&mut self, now: Instant, address: Address, prefix: u8) {
        if !self.host.site.is_own_v4(address) {
            self.take_frames_to(address);
            self.change_v4(now, |site| site.add_v4(address, prefix));
            self.host.claim(address, now);
        }
        self.end_wait_for_lease();
    }

    /// Removes an IPv4 address.
    fn remove_v4(&mut self, now: Instant, address: Address) {
        self.change_v4(now, |site| site.remove_v4(address));
        self.leave_frames_to(address);
        self.host.end_claim(address);
        self.find_lost_connections();
    }

    /// Adds an address to the device's filter. A failure is reported as a device error.
    pub(super) fn take_frames_to(&self, address: Address) {
        let filter = self.world.filter.as_ref();
        if let Some(Err(error)) = filter.map(|filter| filter.add(address.ip())) {
            self.world.device_failed(error);
        }
    }

    /// Removes an address from the device's filter.
    pub(super) fn leave_frames_to(&self, address: Address) {
        let filter = self.world.filter.as_ref();
        if let Some(Err(error)) = filter.map(|filter| filter.remove(address.ip())) {
            self.world.device_failed(error);
        }
    }

    /// Changes our IPv4 addresses or routes.
    pub(super) fn change_v4(&mut self, now: Instant, change: impl FnOnce(&mut Site)) {
        let before = self.host.site.clone();
        change(&mut self.host.site);
        self.world.set_site(&self.host.site);
        self.find_rerouted(now, before);
    }

    /// The link is up, perhaps a different one: resolves neighbours again, and announces our
    /// addresses.
    fn link_is_up(&mut self, now: Instant) {
        self.host.neighbors.forget();
        self.host.announce_again(now);
        self.with_host(now, |host| host.dhcp_link_is_up(now));
        self.change_link(now, |link| link.ask_again(now));
    }

    /// Finds the connections of addresses that we lost. They end when the log has room (RFC 4862
    /// section 5.5.4).
    pub(super) fn find_lost_connections(&mut self) {
        let lost = self
            .connections
            .hints
            .iter()
            .filter(|(flow, _)| self.is_lost(flow.local.address));
        let lost: Vec<_> = lost.map(|(_, hint)| hint.conn).collect();
        self.connections.lost.extend(lost);
        if !self.connections.lost.is_empty() {
            // The next turn takes them.
            self.v6_due = Instant::ZERO;
        }
    }

    /// Adds a connection. It may have begun before our addresses or routes changed.
    pub(super) fn connection_begins(&mut self, now: Instant, flow: Flow, conn: ConnId) {
        self.connections.held.begins(&flow);
        let hop = self.hop_of(&flow);
        if let Some(hop) = hop.filter(|_| !self.connections.hints.contains_key(&flow)) {
            self.host.neighbors.need(hop);
        }
        self.add_hint(now, flow, conn);
        if self.is_lost(flow.local.address) {
            self.connections.lost.insert(conn);
            self.v6_due = Instant::ZERO;
        }
        self.path_begins(flow);
        let changes = &mut self.connections.rerouting.before;
        while changes.front().is_some_and(|(until, _)| *until <= now) {
            changes.pop_front();
        }
        let remote = flow.remote.address;
        let led = |before: &Site| before.next_hop(remote).is_some();
        let mut changes = self.connections.rerouting.before.iter();
        let is_rerouted =
            changes.any(|(_, before)| led(before) && self.is_rerouted(before, remote));
        let is_unknown = hop.is_some_and(|hop| !self.host.neighbors.is_known(hop));
        if is_rerouted || is_unknown || self.has_moved_lately(now, remote) {
            self.connections.rerouting.queue.insert(flow);
            self.v6_due = Instant::ZERO;
        }
    }

    /// Removes a connection.
    pub(super) fn connection_ends(&mut self, flow: &Flow) {
        self.connections.hints.remove(flow);
        if let Some(hop) = self.hop_of(flow) {
            self.host.neighbors.need_no_more(hop);
        }
    }

    /// The neighbour that a connection goes through, unless it stays on this host.
    fn hop_of(&self, flow: &Flow) -> Option<Address> {
        let remote = flow.remote.address;
        let hop = self.host.site.next_hop(remote);
        hop.filter(|_| !self.host.site.is_ourselves(remote))
    }

    /// Whether the next hop of packets to `remote` changed its link-layer address in the last
    /// [`LATE`].
    fn has_moved_lately(&self, now: Instant, remote: Address) -> bool {
        let since = now.before(LATE);
        let hop = self.host.site.next_hop(remote);
        hop.is_some_and(|hop| self.host.neighbors.has_moved(hop, since))
    }

    /// A neighbour has a new link-layer address. The connections with this next hop change to it;
    /// other neighbours with the old link-layer address are not affected.
    pub(super) fn neighbor_moved(&mut self, neighbor: Address) {
        self.connections.rerouting.moved.insert(neighbor);
        // The next turn searches.
        self.v6_due = Instant::ZERO;
    }

    /// Finds the connections whose next hops have moved, if a search is due.
    fn find_moved(&mut self, now: Instant) {
        let rerouting = &mut self.connections.rerouting;
        if rerouting.moved.is_empty() || !rerouting.searches.admits(now) {
            return;
        }
        let moved = core::mem::take(&mut rerouting.moved);
        let site = &self.host.site;
        let has_moved = |remote| {
            site.next_hop(remote)
                .is_some_and(|hop| moved.contains(&hop))
        };
        let flows = self.connections.hints.keys().copied();
        let flows = flows.filter(|flow| has_moved(flow.remote.address));
        rerouting.queue.extend(flows);
    }

    /// Whether packets to `remote` go through another neighbour than they did `before`.
    fn is_rerouted(&self, before: &Site, remote: Address) -> bool {
        let hop = self.host.site.next_hop(remote);
        hop.is_some() && hop != before.next_hop(remote) && !self.host.site.is_ourselves(remote)
    }

    /// Our addresses or routes have changed; `before` is the old state. Queues the connections
    /// whose next hop is another one now, and starts again the opens that wait for another one.
    pub(super) fn find_rerouted(&mut self, now: Instant, before: Site) {
        let flows = self.connections.hints.keys().copied();
        let flows = flows.filter(|flow| self.is_rerouted(&before, flow.remote.address));
        let flows: Vec<_> = flows.collect();
        let hops: Vec<_> = self
            .connections
            .hints
            .keys()
            .filter_map(|flow| self.hop_of(flow))
            .collect();
        self.host.neighbors.set_needed(hops.into_iter());
        let waiting = core::mem::take(&mut self.connections.rerouting.waiting);
        let waiting = waiting.into_values().flatten();
        self.connections
            .rerouting
            .queue
            .extend(waiting.chain(flows));
        let site = &self.host.site;
        let hop = |remote| site.next_hop(remote);
        let opens = self
            .host
            .neighbors
            .take_opens(|open| hop(open.remote.address));
        let resolved = core::mem::take(&mut self.connections.opens);
        for open in opens
            .into_iter()
            .chain(resolved.into_iter().map(|(open, _)| open))
        {
            // Starts again as a new command, because the log may have no room now.
            self.world.commands.push(Command::Open(open));
        }
        if self.connections.rerouting.before.len() == MAX_CHANGES {
            self.connections.rerouting.before.pop_front();
        }
        self.connections
            .rerouting
            .before
            .push_back((now + LATE, before));
        if self.connections.rerouting.is_due() {
            // The next turn takes them.
            self.v6_due = Instant::ZERO;
        }
    }

    /// Publishes the next hops of queued connections while the log has room. Resolves the hops
    /// whose link-layer addresses are not known.
    pub(super) fn follow_routes(&mut self, now: Instant, log: &mut impl Log) {
        self.find_moved(now);
        while log.room() > RESERVED
            && let Some(flow) = self.connections.rerouting.queue.pop_first()
        {
            let remote = flow.remote.address;
            let (conn, hop) = (
                self.connections.hints.get(&flow).map(|hint| hint.conn),
                self.host.site.next_hop(remote),
            );
            let (Some(conn), Some(hop)) = (conn, hop) else {
                continue;
            };
            if let Some(mac) = self.host.neighbors.lookup(hop, now) {
                self.publish_command(now, Body::NextHop { conn, mac }, log);
                continue;
            }
            let waiting = &mut self.connections.rerouting.waiting;
            waiting.entry(hop).or_default().insert(flow);
            self.ask_for_hop(hop, now);
        }
    }

    fn ask_for_hop(&mut self, hop: Address, now: Instant) {
        if self.host.neighbors.ask_for(hop, now) {
            self.with_host(now, |host| host.request_address(hop, None));
        } else if !self.host.neighbors.is_resolving(hop) {
            // Too many hops are being resolved.
            self.connections.rerouting.ask_at = Some(now + ASK_INTERVAL);
        }
    }

    /// Neighbour `hop` may have been resolved: queues the connections that wait for it.
    pub(super) fn routes_to(&mut self, hop: Address, now: Instant) {
        if !self.host.neighbors.is_resolving(hop) {
            self.answers_go_to(hop);
        }
        if self.connections.rerouting.waiting.contains_key(&hop)
            && self.host.neighbors.lookup(hop, now).is_some()
        {
            let flows = self.connections.rerouting.waiting.remove(&hop);
            self.connections
                .rerouting
                .queue
                .extend(flows.into_iter().flatten());
            self.v6_due = Instant::ZERO;
        }
    }

    /// Asks again for the next hops that connections wait for and that are not being resolved.
    pub(super) fn retry_routes(&mut self, now: Instant) {
        let (hints, neighbors) = (&self.connections.hints, &self.host.neighbors);
        let mut hops = Vec::new();
        self.connections.rerouting.waiting.retain(|hop, flows| {
            if !neighbors.is_resolving(*hop) {
                flows.retain(|flow| hints.contains_key(flow));
                hops.extend((!flows.is_empty()).then_some(*hop));
            }
            !flows.is_empty()
        });
        for hop in hops {
            self.ask_for_hop(hop, now);
        }
    }

    /// [`retry_routes`](Self::retry_routes), if it is due.
    pub(super) fn retry_routes_if_due(&mut self, now: Instant) {
        let ask_at = &mut self.connections.rerouting.ask_at;
        if ask_at.take_if(|at| *at <= now).is_some() {
            self.retry_routes(now);
        }
    }

    /// Whether `local` is not our address any more, so that its connections end.
    pub(super) fn is_lost(&self, local: Address) -> bool {
        !self.host.site.takes(local)
    }

    /// Ends connections of lost addresses.
    pub(super) fn end_lost_connections(&mut self, now: Instant, log: &mut impl Log) {
        while log.room() > RESERVED
            && let Some(conn) = self.connections.lost.pop_first()
        {
            self.publish_command(now, Body::AddressLost { conn }, log);
        }
    }
}
