//! Changes of our addresses, of the link, and of routes while the stack runs.
//!
//! An address is used for what begins from the change on. What is under way from one that is lost
//! ends: connections by [`Body::AddressLost`], which sends nothing, as the address may be another
//! host's by now. Listeners and UDP sockets stay, and are reached at the addresses that are there.
//!
//! Connections whose next hop is another one by a change, or has another link-layer address, follow
//! it, by [`Body::NextHop`], once that address is known. One that no route leads to any more keeps
//! the next hop that it has.

use core::net::IpAddr;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::io::rx::{Log, RESERVED, RxPump};
use crate::io::world::Command;
use crate::ip::rate_limit::TokenBucket;
use crate::ip::route::{Route, Site};
use crate::log::request::{Address, Body, ConnId, Flow};
use crate::time::{Duration, Instant};

/// How long after a change of routes or neighbours a connection may be heard of that began before
/// it.
const LATE: Duration = Duration::from_secs(60);
/// How long until a next hop is asked for again while too many are.
const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// Changes that are kept for that, at most; the oldest are forgotten.
const MAX_CHANGES: usize = 16;
/// Searches for connections whose next hops have moved, in a row, and how long until one more may
/// be. All that moved meanwhile are looked for together.
const SEARCHES: (u64, Duration) = (16, Duration::from_millis(100));

/// Connections that are to follow their routes.
#[derive(Debug)]
pub(crate) struct Rerouting {
    /// Neighbours that have another link-layer address, whose connections are to be found.
    moved: BTreeSet<Address>,
    searches: TokenBucket,
    /// What our place was before it changed, and until when that matters.
    before: VecDeque<(Instant, Site)>,
    /// Those that follow as the log has room, each once, however often its next hop changes before.
    /// Their order does not depend on that of the table.
    queue: BTreeSet<Flow>,
    /// Those that wait for the link-layer address of their next hop. A flow waits for one: a change
    /// of our place queues all of them anew.
    waiting: BTreeMap<Address, BTreeSet<Flow>>,
    /// When a next hop is asked for that could not be asked for.
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
    /// When something is to be asked for, or searched.
    pub(super) fn next_deadline(&self) -> Instant {
        let search_at = match self.moved.is_empty() {
            true => Instant::NEVER,
            false => self.searches.next(),
        };
        search_at.min(self.ask_at.unwrap_or(Instant::NEVER))
    }

    /// Whether some follow as the log has room.
    pub(super) fn is_due(&self) -> bool {
        !self.queue.is_empty()
    }
}

/// A change of an interface.
#[derive(Clone, Copy, Debug)]
pub(crate) enum InterfaceChange {
    /// It has this address from now on, and neighbours whose addresses begin with so many bits of
    /// it.
    Add { address: IpAddr, prefix: u8 },
    /// It has this address no longer.
    Remove { address: IpAddr },
    /// Packets for a network go through a gateway from now on.
    AddRoute(Route),
    /// They do not any more.
    RemoveRoute(Route),
    /// Its link is up or down from now on.
    Link { is_up: bool },
    /// Its device takes frames again, after it was down.
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
            InterfaceChange::Returned => self.link_is_up(now),
            InterfaceChange::Link { is_up } => {
                self.world.set_link_up(is_up);
                if is_up {
                    self.link_is_up(now);
                }
            }
        }
    }

    /// We have this address of IPv4 from now on, besides those that we have.
    fn add_v4(&mut self, now: Instant, address: Address, prefix: u8) {
        if !self.host.site.is_own_v4(address) {
            self.take_frames_to(address);
            self.change_v4(now, |site| site.add_v4(address, prefix));
            self.host.claim(address, now);
        }
    }

    /// An address of IPv4 is ours no longer.
    fn remove_v4(&mut self, now: Instant, address: Address) {
        self.change_v4(now, |site| site.remove_v4(address));
        self.leave_frames_to(address);
        self.host.end_claim(address);
        self.find_lost_connections();
    }

    /// Lets the device take frames to an address. What it says against that is told as its other
    /// errors are.
    pub(super) fn take_frames_to(&self, address: Address) {
        let filter = self.world.filter.as_ref();
        if let Some(Err(error)) = filter.map(|filter| filter.add(address.ip())) {
            self.world.device_failed(error);
        }
    }

    /// Lets the device leave frames to an address to others.
    pub(super) fn leave_frames_to(&self, address: Address) {
        let filter = self.world.filter.as_ref();
        if let Some(Err(error)) = filter.map(|filter| filter.remove(address.ip())) {
            self.world.device_failed(error);
        }
    }

    /// Changes our place in IPv4.
    fn change_v4(&mut self, now: Instant, change: impl FnOnce(&mut Site)) {
        let before = self.host.site.clone();
        change(&mut self.host.site);
        self.world.set_site(&self.host.site);
        self.find_rerouted(now, before);
    }

    /// The link is there, perhaps another one than before: neighbours are asked anew, and told of
    /// us.
    fn link_is_up(&mut self, now: Instant) {
        self.host.neighbors.forget();
        self.host.announce_again(now);
        self.change_link(now, |link| link.ask_again(now));
    }

    /// Finds connections of addresses that are not ours any more. They end as the log has room (RFC
    /// 4862 section 5.5.4).
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

    /// A connection is known from now on, which may have begun before our addresses or routes
    /// changed.
    pub(super) fn connection_begins(&mut self, now: Instant, flow: Flow, conn: ConnId) {
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

    /// A connection is over.
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

    /// Whether the next hop of packets to `remote` had another link-layer address a while ago.
    fn has_moved_lately(&self, now: Instant, remote: Address) -> bool {
        let since = now.before(LATE);
        let hop = self.host.site.next_hop(remote);
        hop.is_some_and(|hop| self.host.neighbors.has_moved(hop, since))
    }

    /// A neighbour has a new link-layer address. The connections with this next hop change to it;
    /// other neighbours with the old link-layer address are not affected.
    pub(super) fn neighbor_moved(&mut self, neighbor: Address) {
        self.connections.rerouting.moved.insert(neighbor);
        // The next turn looks for them.
        self.v6_due = Instant::ZERO;
    }

    /// Finds the connections whose next hops have moved, if that is due.
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

    /// Whether packets to `remote` go through another neighbour than they did.
    fn is_rerouted(&self, before: &Site, remote: Address) -> bool {
        let hop = self.host.site.next_hop(remote);
        hop.is_some() && hop != before.next_hop(remote) && !self.host.site.is_ourselves(remote)
    }

    /// Our place was this until now. Finds connections that have another next hop by what it is,
    /// and opens that wait for another one.
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
            // As if it were asked for now: the log may have no room at this moment.
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

    /// Lets connections go through their next hops, as far as the log has room. Who is not known is
    /// asked for.
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
            // So many are asked for that there is no room.
            self.connections.rerouting.ask_at = Some(now + ASK_INTERVAL);
        }
    }

    /// Somebody said which link-layer address `hop` has: connections that waited for that follow.
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

    /// Asks again for the next hops of connections that nobody is asked for.
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

    /// The same, if that is due.
    pub(super) fn retry_routes_if_due(&mut self, now: Instant) {
        let ask_at = &mut self.connections.rerouting.ask_at;
        if ask_at.take_if(|at| *at <= now).is_some() {
            self.retry_routes(now);
        }
    }

    /// Whether connections of this address end.
    pub(super) fn is_lost(&self, local: Address) -> bool {
        !self.host.site.is_ourselves(local)
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
