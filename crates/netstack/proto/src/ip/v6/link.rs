//! The IPv6 state of one link: addresses, routers, and groups.

use core::net::Ipv6Addr;

use super::names::LinkNames;
use super::{Ipv6Config, Own, SiteV6};
use crate::ip::multicast::OLDER_PRESENT;
use crate::ip::neighbor::RETRANS_BOUNDS;
use crate::ip::route::{Route, Way};
use crate::keys::{KeyUse, Keys};
use crate::packet::IPV6_MIN_MTU;
use crate::packet::dhcp::Information;
use crate::packet::flow::Address;
use crate::packet::igmp::Mode;
use crate::packet::mld::MldQuery;
use crate::packet::ndp::{self, Prefix, RouteInformation, RouterAdvertisement};
use crate::time::{Duration, Instant};

/// Time between two solicitations (`RetransTimer` of RFC 4861 section 10).
const RETRANS_TIMER: Duration = Duration::from_secs(1);
/// The first message of an interface is delayed by a random time below this, so that hosts that
/// start together do not all send at once (RFC 4861 section 6.3.7, RFC 4862 section 5.4.2).
const MAX_DELAY: Duration = Duration::from_secs(1);
/// How often routers are solicited, and the interval (RFC 4861 section 10).
const MAX_ROUTER_SOLICITATIONS: u8 = 3;
const ROUTER_SOLICITATION_INTERVAL: Duration = Duration::from_secs(4);
/// How often a change of our groups is reported (RFC 3810 section 9.1).
const ROBUSTNESS: u8 = 2;
/// The longest time between two of these reports (RFC 3810 section 9.11).
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Other addresses that are tried if one is a duplicate (`IDGEN_RETRIES` of RFC 7217 section 7).
const IDGEN_RETRIES: u64 = 3;
/// Limits of the state that advertisements create, since anyone on the link can send them.
const MAX_ADDRESSES: usize = 16;
const MAX_PREFIXES: usize = 16;
const MAX_ROUTERS: usize = 8;
const MAX_REDIRECTS: usize = 64;
const MAX_ADVERTISED: usize = 32;
/// An unauthenticated message reduces no lifetime below this (RFC 4862 section 5.5.3 (e)).
const TWO_HOURS: Duration = Duration::from_secs(7200);
/// The prefix of all link-local addresses (RFC 4291 section 2.5.6).
const LINK_LOCAL: Address = Address::of_words([0xfe80 << 48, 0]);
/// The prefix length for formed addresses (RFC 4291 section 2.5.1, RFC 2464 section 4).
const PREFIX: u8 = 64;

/// A message that the pump should send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A probe: does another host have this address (RFC 4862 section 5.4.2)?
    Probe(Address),
    /// A router solicitation.
    SolicitRouters,
    /// A report of groups, after a change or in answer to a query.
    Report {
        /// The groups.
        groups: Vec<Address>,
        /// Whether we have begun to listen to them, have stopped, or still do. All sources are
        /// meant.
        mode: Mode,
    },
    /// A report of one group for a router of version 1.
    ReportV1(Address),
    /// We stopped to listen to a group; for a router of version 1.
    DoneV1(Address),
    /// A request for information from DHCPv6 servers.
    AskInformation {
        /// The number that its answers repeat.
        xid: u32,
        /// Hundredths of a second since the first request with it.
        elapsed: u16,
    },
}

/// Where an address comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    ByHand,
    /// Formed from a prefix, after `tried` duplicates.
    Made {
        prefix: Address,
        tried: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddressState {
    /// Probes sent so far, and the time of the next; after the last, of the assignment.
    Tentative {
        probes: u8,
        next: Instant,
    },
    Assigned,
    /// Another host has it.
    Duplicate,
}

/// An address that is or may become ours.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    address: Address,
    origin: Origin,
    state: AddressState,
    valid_until: Instant,
    preferred_until: Instant,
    is_deprecated: bool,
}

#[derive(Clone, Copy, Debug)]
struct OnLink {
    prefix: Address,
    len: u8,
    until: Instant,
}

#[derive(Clone, Copy, Debug)]
struct DefaultRouter {
    address: Address,
    until: Instant,
    preference: i8,
}

/// A route that a router advertises (RFC 4191).
#[derive(Clone, Copy, Debug)]
struct Advertised {
    route: Route,
    until: Instant,
}

/// A change of our groups that is being reported.
#[derive(Clone, Copy, Debug)]
struct Change {
    group: Address,
    /// [`Mode::ToExclude`]: we listen to it; [`Mode::ToInclude`]: we do not any more.
    mode: Mode,
    left: u8,
    next: Instant,
}

/// How often routers were solicited, and when next.
#[derive(Clone, Copy, Debug)]
struct Solicit {
    sent: u8,
    next: Instant,
}

/// The answer to a query.
#[derive(Clone, Debug)]
struct Answer {
    at: Instant,
    groups: Vec<Address>,
    is_v1: bool,
}

/// The state of the link, and its timers.
#[derive(Debug)]
pub struct Ipv6Link {
    keys: Keys,
    mac: u64,
    config: Ipv6Config,
    routes: Vec<Route>,
    candidates: Vec<Candidate>,
    on_link: Vec<OnLink>,
    /// The highest preference first; a router that does not answer moves to the end.
    routers: Vec<DefaultRouter>,
    advertised: Vec<Advertised>,
    /// Destinations with the neighbours that forward to them, oldest first.
    redirects: Vec<(Address, Address)>,
    hop_limit: Option<u8>,
    mtu: Option<u16>,
    names: LinkNames,
    retransmit: Duration,
    solicit: Solicit,
    changes: Vec<Change>,
    answer: Option<Answer>,
    /// Until when a router of version 1 counts as present (RFC 3810 section 8.2.1).
    v1_until: Instant,
    /// Number of random delays so far.
    delays: u64,
    has_changed: bool,
    duplicates: u64,
}

/// The end of a lifetime in seconds; [`u32::MAX`] never ends (RFC 4861 section 4.6.2).
pub(super) fn end_of(now: Instant, seconds: u32) -> Instant {
    match seconds {
        u32::MAX => Instant::NEVER,
        seconds => now + Duration::from_secs(seconds.into()),
    }
}

/// Whether an interface identifier is reserved (RFC 5453, RFC 7217 section 5).
const fn is_reserved(identifier: u64) -> bool {
    identifier == 0
        || identifier >> 24 == 0x02_005e_fffe
        || identifier >= 0xfdff_ffff_ffff_ff80 && identifier <= 0xfdff_ffff_ffff_ffff
}

impl Ipv6Link {
    /// Creates the state without starting anything. `routes` are the configured routes of both
    /// families; `keys` are the keys of the stack.
    pub fn new(mac: [u8; 6], config: Ipv6Config, routes: &[Route], keys: &Keys) -> Self {
        let keys = config.stable_secret.map_or(*keys, Keys::new);
        let [a, b, c, d, e, f] = mac;
        let mut routes: Vec<_> = routes
            .iter()
            .filter(|route| route.network.is_ipv6())
            .copied()
            .collect();
        routes.sort_by_key(Route::order);
        let mac = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        Ipv6Link {
            names: LinkNames::new(keys, mac),
            keys,
            mac,
            config,
            routes,
            candidates: Vec::new(),
            on_link: Vec::new(),
            routers: Vec::new(),
            advertised: Vec::new(),
            redirects: Vec::new(),
            hop_limit: None,
            mtu: None,
            retransmit: RETRANS_TIMER,
            solicit: Solicit {
                sent: 0,
                next: Instant::NEVER,
            },
            changes: Vec::new(),
            answer: None,
            v1_until: Instant::ZERO,
            delays: 0,
            has_changed: false,
            duplicates: 0,
        }
    }

    /// The link is up.
    pub fn begin(&mut self, now: Instant) {
        let forever = (Instant::NEVER, Instant::NEVER);
        self.make(LINK_LOCAL, 0, forever, now);
        for (address, len) in self.config.addresses.clone() {
            let address = Address::from(address);
            self.on_link.push(OnLink {
                prefix: address,
                len,
                until: Instant::NEVER,
            });
            self.add(address, Origin::ByHand, forever, now);
        }
        if self.config.autoconfigure {
            self.solicit.next = now + self.delay(MAX_DELAY);
        }
    }

    /// Adds a configured address, on the network of its first `len` bits.
    pub fn add_by_hand(&mut self, address: Ipv6Addr, len: u8, now: Instant) {
        let own = Address::from(address);
        let mut known = self.candidates.iter();
        if known.any(|one| one.address == own && one.state != AddressState::Duplicate) {
            return;
        }
        // It was a duplicate and is probed again.
        self.remove(own);
        // Configured networks come first.
        let on_link = OnLink {
            prefix: own,
            len,
            until: Instant::NEVER,
        };
        self.on_link.insert(self.config.addresses.len(), on_link);
        self.config.addresses.push((address, len));
        let forever = (Instant::NEVER, Instant::NEVER);
        self.add(own, Origin::ByHand, forever, now);
    }

    /// Removes an address. A router's next advertisement restores one that was formed.
    pub fn remove(&mut self, address: Address) {
        self.candidates.retain(|one| one.address != address);
        self.leave_group_of(address);
        let mut by_hand = self.config.addresses.iter();
        if let Some(at) = by_hand.position(|(own, _)| Address::from(*own) == address) {
            self.config.addresses.remove(at);
            self.on_link.remove(at);
        }
        self.has_changed = true;
    }

    /// Adds a route.
    pub fn add_route(&mut self, route: Route) {
        if !self.routes.iter().any(|known| known.is_same(&route)) {
            route.add_to(&mut self.routes);
            self.has_changed = true;
        }
    }

    /// Removes a route.
    pub fn remove_route(&mut self, route: &Route) {
        self.routes.retain(|known| !known.is_same(route));
        self.has_changed = true;
    }

    /// The link is up again, and may be another one: routers are solicited again.
    pub fn ask_again(&mut self, now: Instant) {
        self.names.ask_again(now);
        if self.config.autoconfigure {
            self.solicit.sent = 0;
            self.solicit.next = now + self.delay(MAX_DELAY);
        }
    }

    /// A random time below `most`, a new one at each call.
    fn delay(&mut self, most: Duration) -> Duration {
        self.delays += 1;
        let random = self.keys.of(KeyUse::LinkDelay, [self.mac, self.delays]);
        Duration::from_nanos(random % most.as_nanos().max(1))
    }

    /// A stable, opaque interface identifier for `prefix` (RFC 7217 section 5).
    fn identifier(&self, prefix: Address, tried: u64) -> u64 {
        let words = [prefix.words()[0], self.mac, tried];
        self.keys.of(KeyUse::InterfaceIdentifier, words)
    }

    /// Forms an address from a prefix of 64 bits, after `tried` duplicates.
    fn make(&mut self, prefix: Address, tried: u64, lifetimes: (Instant, Instant), now: Instant) {
        let free = (tried..).map(|tried| (tried, self.identifier(prefix, tried)));
        let found = free
            .take(64)
            .find(|(_, identifier)| !is_reserved(*identifier));
        if let Some((tried, identifier)) = found {
            let address = Address::of_words([prefix.words()[0], identifier]);
            self.add(address, Origin::Made { prefix, tried }, lifetimes, now);
        }
    }

    fn add(
        &mut self,
        address: Address,
        origin: Origin,
        (valid_until, preferred_until): (Instant, Instant),
        now: Instant,
    ) {
        let state = match self.config.duplicate_probes {
            0 => AddressState::Assigned,
            _ => AddressState::Tentative {
                probes: 0,
                next: now + self.delay(MAX_DELAY),
            },
        };
        let next = match state {
            AddressState::Tentative { next, .. } => next,
            _ => now,
        };
        self.candidates.push(Candidate {
            address,
            origin,
            state,
            valid_until,
            preferred_until,
            is_deprecated: preferred_until <= now,
        });
        let group = ndp::solicited_node(address);
        self.changes.retain(|change| change.group != group);
        self.changes.push(Change {
            group,
            mode: Mode::ToExclude,
            left: ROBUSTNESS,
            next,
        });
        self.has_changed = true;
    }

    /// An address is not ours any more: its group is left, unless another address is in it.
    fn leave_group_of(&mut self, address: Address) {
        let group = ndp::solicited_node(address);
        let mut all = self.candidates.iter();
        let is_in = |one: &Candidate| {
            one.state != AddressState::Duplicate && ndp::solicited_node(one.address) == group
        };
        if !all.any(is_in) {
            self.changes.retain(|change| change.group != group);
            self.changes.push(Change {
                group,
                mode: Mode::ToInclude,
                left: ROBUSTNESS,
                next: Instant::ZERO,
            });
        }
    }

    /// The next time at which something is due.
    pub fn next_deadline(&self) -> Instant {
        let of_candidate = |candidate: &Candidate| {
            let next = match candidate.state {
                AddressState::Tentative { next, .. } => next,
                _ => Instant::NEVER,
            };
            let deprecated = match candidate.is_deprecated {
                true => Instant::NEVER,
                false => candidate.preferred_until,
            };
            next.min(candidate.valid_until).min(deprecated)
        };
        let candidates = self.candidates.iter().map(of_candidate);
        let on_link = self.on_link.iter().map(|on_link| on_link.until);
        let routers = self.routers.iter().map(|router| router.until);
        let routers = routers.chain(self.advertised.iter().map(|route| route.until));
        let changes = self.changes.iter().map(|change| change.next);
        let answer = self.answer.iter().map(|answer| answer.at);
        let all = candidates.chain(on_link).chain(routers);
        let all = all.chain(changes).chain(answer);
        let first = self.solicit.next.min(self.names.next_deadline());
        all.fold(first, Instant::min)
    }

    /// Does the work that is due. Returns the messages to send, in order.
    pub fn on_time(&mut self, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.next_deadline() > now {
            return actions;
        }
        self.end_lifetimes(now);
        self.report(now, &mut actions);
        self.probe(now, &mut actions);
        self.has_changed |= self.names.on_time(now, &mut actions);
        if self.solicit.next <= now {
            self.solicit.sent += 1;
            self.solicit.next = match self.solicit.sent {
                MAX_ROUTER_SOLICITATIONS.. => Instant::NEVER,
                _ => now + ROUTER_SOLICITATION_INTERVAL,
            };
            actions.push(Action::SolicitRouters);
        }
        actions
    }

    /// Probes for tentative addresses; the ones without an answer become ours.
    fn probe(&mut self, now: Instant, actions: &mut Vec<Action>) {
        for candidate in &mut self.candidates {
            let AddressState::Tentative { probes, next } = &mut candidate.state else {
                continue;
            };
            if *next > now {
                continue;
            }
            if *probes < self.config.duplicate_probes {
                *probes += 1;
                *next = now + self.retransmit;
                actions.push(Action::Probe(candidate.address));
            } else {
                candidate.state = AddressState::Assigned;
                self.has_changed = true;
            }
        }
    }

    fn end_lifetimes(&mut self, now: Instant) {
        let changed = &mut self.has_changed;
        let mut lost = Vec::new();
        self.candidates.retain_mut(|candidate| {
            let ends = candidate.valid_until <= now;
            if ends {
                lost.push(candidate.address);
            }
            let deprecated = candidate.preferred_until <= now;
            *changed |= ends || deprecated != candidate.is_deprecated;
            candidate.is_deprecated = deprecated;
            !ends
        });
        for address in lost {
            self.leave_group_of(address);
        }
        let before = self.on_link.len() + self.advertised.len();
        self.on_link.retain(|on_link| on_link.until > now);
        self.advertised.retain(|route| route.until > now);
        self.has_changed |= self.on_link.len() + self.advertised.len() != before;
        let ends = |router: &mut DefaultRouter| router.until <= now;
        for ended in self.routers.extract_if(.., ends).collect::<Vec<_>>() {
            self.forwards_no_more(ended.address);
            self.has_changed = true;
        }
    }

    fn report(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let is_v1 = now < self.v1_until;
        let (mut new, mut left) = (Vec::new(), Vec::new());
        let mut changes = core::mem::take(&mut self.changes);
        changes.retain_mut(|change| {
            if change.next > now {
                return true;
            }
            let groups = match change.mode {
                Mode::ToInclude => &mut left,
                _ => &mut new,
            };
            // One message of version 1 is enough.
            if !is_v1 || change.mode != Mode::ToInclude || change.left == ROBUSTNESS {
                groups.push(change.group);
            }
            change.left -= 1;
            change.next = now + self.delay(REPORT_INTERVAL);
            change.left > 0
        });
        self.changes = changes;
        for (groups, mode) in [(new, Mode::ToExclude), (left, Mode::ToInclude)] {
            match mode {
                _ if groups.is_empty() => {}
                Mode::ToExclude if is_v1 => {
                    actions.extend(groups.into_iter().map(Action::ReportV1))
                }
                _ if is_v1 => actions.extend(groups.into_iter().map(Action::DoneV1)),
                mode => actions.push(Action::Report { groups, mode }),
            }
        }
        if let Some(answer) = self.answer.take_if(|answer| answer.at <= now) {
            if answer.is_v1 {
                actions.extend(answer.groups.into_iter().map(Action::ReportV1));
            } else {
                let (groups, mode) = (answer.groups, Mode::IsExclude);
                actions.push(Action::Report { groups, mode });
            }
        }
    }

    /// A router queries our groups (RFC 3810 section 6.2).
    pub fn on_query(&mut self, query: &MldQuery, now: Instant) {
        if query.is_v1 {
            self.v1_until = now + Duration::from_millis(query.most_ms) + OLDER_PRESENT;
        }
        let is_v1 = now < self.v1_until;
        let listening = self.candidates.iter();
        let listening = listening.filter(|candidate| candidate.state != AddressState::Duplicate);
        let mut groups: Vec<_> = listening
            .map(|candidate| ndp::solicited_node(candidate.address))
            .filter(|group| query.group.bits() == 0 || query.group == *group)
            .collect();
        groups.sort_unstable();
        groups.dedup();
        if groups.is_empty() {
            return;
        }
        let at = now + self.delay(Duration::from_millis(query.most_ms));
        // A pending answer serves this query too.
        let answer = self.answer.get_or_insert(Answer {
            at,
            groups: Vec::new(),
            is_v1,
        });
        answer.at = answer.at.min(at);
        answer.is_v1 |= is_v1;
        answer.groups.extend(groups);
        answer.groups.sort_unstable();
        answer.groups.dedup();
    }

    /// Whether we are probing for this address.
    pub fn is_tentative(&self, address: Address) -> bool {
        let mut all = self.candidates.iter();
        all.any(|one| one.address == address && matches!(one.state, AddressState::Tentative { .. }))
    }

    /// Another host has the tentative `address`, or probes for it too: it does not become ours.
    /// If it was formed from a prefix, another one is formed (RFC 4862 section 5.4.5, RFC 7217
    /// section 6).
    pub fn on_duplicate(&mut self, address: Address, now: Instant) {
        let mut all = self.candidates.iter_mut();
        let Some(found) = all.find(|one| one.address == address) else {
            return;
        };
        found.state = AddressState::Duplicate;
        self.duplicates += 1;
        self.has_changed = true;
        let (origin, lifetimes) = (found.origin, (found.valid_until, found.preferred_until));
        self.leave_group_of(address);
        if let Origin::Made { prefix, tried } = origin
            && tried < IDGEN_RETRIES
        {
            self.candidates.retain(|one| one.address != address);
            self.make(prefix, tried + 1, lifetimes, now);
        }
    }

    /// Number of duplicate addresses so far.
    pub const fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// A router advertisement arrived (RFC 4861 section 6.3.4, RFC 4862 section 5.5.3).
    pub fn on_router(&mut self, said: &RouterAdvertisement, now: Instant) {
        if !self.config.autoconfigure {
            return;
        }
        // A route to all destinations replaces the fields of the header (RFC 4191 section 3.1).
        let (preference, until) = match said.routes.iter().rfind(|route| route.len == 0) {
            Some(route) => (route.preference, end_of(now, route.lifetime_s)),
            None => {
                let until = now + Duration::from_secs(said.lifetime_s.into());
                (said.preference, until)
            }
        };
        self.on_default_router(said.router, preference, (until, now));
        for route in said.routes.iter().filter(|route| route.len > 0) {
            self.on_route(said.router, route, now);
        }
        if said.lifetime_s > 0 && self.solicit.sent > 0 {
            self.solicit.next = Instant::NEVER;
        }
        if said.retransmit_ms > 0 {
            let (least, most) = RETRANS_BOUNDS;
            let said = Duration::from_millis(said.retransmit_ms.into());
            self.retransmit = said.clamp(least, most);
        }
        let hop_limit = Some(said.hop_limit).filter(|limit| *limit > 0);
        let mtu = said.mtu.map(|mtu| u16::try_from(mtu).unwrap_or(u16::MAX));
        let mtu = mtu.filter(|mtu| *mtu >= IPV6_MIN_MTU);
        // Unspecified values stay unchanged.
        let before = (self.hop_limit, self.mtu);
        (self.hop_limit, self.mtu) = (hop_limit.or(self.hop_limit), mtu.or(self.mtu));
        self.has_changed |= before != (self.hop_limit, self.mtu);
        for prefix in &said.prefixes {
            self.on_prefix(prefix, now);
        }
        self.has_changed |= self.names.on_router(said, now);
    }

    /// A DHCPv6 server answers. Returns whether we had asked.
    pub fn on_information(&mut self, said: Information, now: Instant) -> bool {
        let has_changed = self.names.on_information(said, now);
        self.has_changed |= has_changed == Some(true);
        has_changed.is_some()
    }

    fn on_default_router(&mut self, address: Address, preference: i8, times: (Instant, Instant)) {
        let (until, now) = times;
        let known = self.routers.iter().position(|one| one.address == address);
        match known {
            Some(at) if until <= now => {
                self.routers.remove(at);
                self.forwards_no_more(address);
                self.has_changed = true;
            }
            Some(at) if self.routers[at].preference == preference => self.routers[at].until = until,
            _ if until > now && (known.is_some() || self.routers.len() < MAX_ROUTERS) => {
                self.routers.retain(|one| one.address != address);
                let worse = |one: &DefaultRouter| one.preference < preference;
                let at = self.routers.iter().position(worse);
                let at = at.unwrap_or(self.routers.len());
                let router = DefaultRouter {
                    address,
                    until,
                    preference,
                };
                self.routers.insert(at, router);
                self.has_changed = true;
            }
            _ => {}
        }
    }

    /// A router advertises a route (RFC 4191 section 3.1).
    fn on_route(&mut self, router: Address, said: &RouteInformation, now: Instant) {
        if said.prefix.is_link_local() || said.prefix.is_multicast() {
            return;
        }
        let route = Route {
            network: super::network(said.prefix, said.len).ip(),
            prefix: said.len,
            via: router.ip(),
            metric: Way::ADVERTISED - (said.preference + 1) as u32,
        };
        let to = |route: &Route| (route.network, route.prefix, route.via);
        let until = end_of(now, said.lifetime_s);
        let same = |one: &&mut Advertised| to(&one.route) == to(&route);
        match self.advertised.iter_mut().find(same) {
            Some(known) if known.route == route && until > now => known.until = until,
            known => {
                self.has_changed |= known.is_some();
                self.advertised.retain(|one| to(&one.route) != to(&route));
                if until > now && self.advertised.len() < MAX_ADVERTISED {
                    self.advertised.push(Advertised { route, until });
                    self.has_changed = true;
                }
            }
        }
    }

    /// Forgets the routes that `router` advertised, until it advertises them again.
    fn forget_routes(&mut self, router: Address) {
        let before = self.advertised.len();
        self.advertised
            .retain(|one| Address::from(one.route.via) != router);
        self.has_changed |= self.advertised.len() != before;
    }

    /// A redirect arrived: `target` is a better next hop to `destination`; if both are equal,
    /// the destination is a neighbour (RFC 4861 section 8.3).
    pub fn on_redirect(&mut self, destination: Address, target: Address) {
        if self.redirects.contains(&(destination, target)) {
            return;
        }
        self.redirects.retain(|(to, _)| *to != destination);
        if self.redirects.len() == MAX_REDIRECTS {
            self.redirects.remove(0);
        }
        self.redirects.push((destination, target));
        self.has_changed = true;
    }

    /// Deletes the redirects to `neighbor`; routes and routers apply again.
    fn forwards_no_more(&mut self, neighbor: Address) {
        let before = self.redirects.len();
        self.redirects.retain(|(_, hop)| *hop != neighbor);
        self.has_changed |= self.redirects.len() != before;
    }

    fn on_prefix(&mut self, said: &Prefix, now: Instant) {
        if said.prefix.is_link_local() || said.prefix.is_multicast() || said.len > 128 {
            return;
        }
        let valid_until = end_of(now, said.valid_s);
        if said.on_link {
            let is = |one: &OnLink| {
                one.len == said.len && super::is_in(one.prefix, said.prefix, said.len)
            };
            match self.on_link.iter().position(is) {
                // Configured prefixes stay.
                Some(at) if self.on_link[at].until == Instant::NEVER && self.is_by_hand(at) => {}
                Some(at) if said.valid_s == 0 => {
                    self.on_link.remove(at);
                    self.has_changed = true;
                }
                Some(at) => self.on_link[at].until = valid_until,
                None if said.valid_s > 0 && self.on_link.len() < MAX_PREFIXES => {
                    self.has_changed = true;
                    self.on_link.push(OnLink {
                        prefix: said.prefix,
                        len: said.len,
                        until: valid_until,
                    });
                }
                None => {}
            }
        }
        if said.autonomous && said.len == PREFIX && said.preferred_s <= said.valid_s {
            self.on_autonomous(said, valid_until, now);
        }
    }

    fn is_by_hand(&self, at: usize) -> bool {
        at < self.config.addresses.len()
    }

    /// Forms an address, or updates its lifetimes (RFC 4862 section 5.5.3 (d) and (e)).
    fn on_autonomous(&mut self, said: &Prefix, valid_until: Instant, now: Instant) {
        let network = Address::of_words([said.prefix.words()[0], 0]);
        let preferred_until = end_of(now, said.preferred_s);
        let is = |one: &&mut Candidate| matches!(one.origin, Origin::Made { prefix, .. } if prefix == network);
        let Some(known) = self.candidates.iter_mut().find(is) else {
            if said.valid_s > 0
                && self.candidates.len() < MAX_ADDRESSES + self.config.addresses.len()
            {
                self.make(network, 0, (valid_until, preferred_until), now);
            }
            return;
        };
        let in_two_hours = now + TWO_HOURS;
        if valid_until > in_two_hours || valid_until > known.valid_until {
            known.valid_until = valid_until;
        } else if known.valid_until > in_two_hours {
            known.valid_until = in_two_hours;
        }
        known.preferred_until = preferred_until.min(known.valid_until);
        let is_deprecated = known.preferred_until <= now;
        self.has_changed |= is_deprecated != known.is_deprecated;
        known.is_deprecated = is_deprecated;
    }

    /// A router does not answer, so another one is preferred (RFC 4861 section 6.3.6).
    pub fn on_router_silent(&mut self, address: Address) {
        self.forwards_no_more(address);
        self.forget_routes(address);
        if let Some(at) = self.routers.iter().position(|one| one.address == address) {
            let silent = self.routers.remove(at);
            self.routers.push(silent);
            self.has_changed = true;
        }
    }

    /// A neighbour reports that it is not a router (RFC 4861 section 7.2.5).
    pub fn on_no_router(&mut self, address: Address) {
        self.forget_routes(address);
        let before = (self.routers.len(), self.redirects.len());
        self.routers.retain(|one| one.address != address);
        // A redirect that marks its destination as a neighbour needs no router.
        self.redirects
            .retain(|(to, hop)| *hop != address || to == hop);
        self.has_changed |= (self.routers.len(), self.redirects.len()) != before;
    }

    /// Whether [`Ipv6Link::place`] may have changed since [`Ipv6Link::take_changed`].
    pub const fn has_changed(&self) -> bool {
        self.has_changed
    }

    /// Resets [`Ipv6Link::has_changed`], and returns its old value.
    pub const fn take_changed(&mut self) -> bool {
        core::mem::replace(&mut self.has_changed, false)
    }

    /// Our current addresses and routes.
    pub fn place(&self) -> SiteV6 {
        let own = |one: &Candidate| Own {
            address: one.address,
            is_deprecated: one.is_deprecated,
        };
        let is_own = |one: &&Candidate| one.state == AddressState::Assigned;
        let tentative = self.candidates.iter();
        let tentative = tentative.filter(|one| matches!(one.state, AddressState::Tentative { .. }));
        let mut routes = self.routes.clone();
        for advertised in &self.advertised {
            advertised.route.add_to(&mut routes);
        }
        SiteV6 {
            addresses: self.candidates.iter().filter(is_own).map(own).collect(),
            tentative: tentative.map(|one| one.address).collect(),
            on_link: self
                .on_link
                .iter()
                .map(|one| (one.prefix, one.len))
                .collect(),
            routes,
            routers: self.routers.iter().map(|one| one.address).collect(),
            redirects: self.redirects.clone(),
            hop_limit: self.hop_limit,
            mtu: self.mtu,
            names: self.names.now(),
        }
    }
}

/// Whether a user may assign this address to the stack.
pub fn may_be_ours(address: Ipv6Addr) -> bool {
    let address = Address::from(address);
    let is_nowhere = address.is_unspecified() || address.ip().is_loopback();
    !(is_nowhere || address.is_v4() || address.is_multicast())
}

#[cfg(test)]
mod tests;
