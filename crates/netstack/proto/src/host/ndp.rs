//! IPv6 on the link: neighbours, routers, and our addresses.
//!
//! Of several hosts that share their addresses, the first keeps the [`Ipv6Link`] and publishes
//! their place in the network. The others follow.

use crate::host::{IpHost, News};
use crate::ip::neighbor::Cause;
use crate::ip::rate_limit::TokenBucket;
use crate::ip::route::{Route, Site, is_martian_v6};
use crate::ip::v6::{Action, Ipv6Config, Ipv6Link, SiteV6};
use crate::packet as wire;
use crate::packet::dhcp::{self, Information};
use crate::packet::flow::{Address, Endpoint, Flow, Mac};
use crate::packet::igmp::Record;
use crate::packet::mld;
use crate::packet::ndp::{self, NdpMessage};
use crate::time::{Duration, Instant};

/// Minimum time between two defences of an address that a neighbour claims (as RFC 5227 section
/// 1.1).
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// Changes of our place that messages of others cause, in a row, and how long until one more may:
/// every group looks at all connections for each. What changes meanwhile is one change.
const PLACE_CHANGES: (u64, Duration) = (16, Duration::from_millis(100));

/// IPv6 on the link of a host.
#[derive(Debug)]
pub(super) struct LinkState {
    /// `None` in all hosts that share the addresses but the first.
    link: Option<Ipv6Link>,
    /// The version of our place that is known; 0: none is.
    version: u64,
    heeds_routers: bool,
    heeds_redirects: bool,
    defended: Option<Instant>,
    changes: TokenBucket,
}

impl IpHost {
    /// The host has IPv6. `routes` are all that are configured. Returns its place at the start, if
    /// it is the first of several hosts.
    pub fn enable_v6(&mut self, mut config: Ipv6Config, routes: &[Route]) -> Option<SiteV6> {
        if !self.neighbors.asks() {
            // No host on this link can have our address.
            config.duplicate_probes = 0;
        }
        let (heeds_routers, heeds_redirects) = (config.autoconfigure, config.redirects);
        let mut link = Ipv6Link::new(self.mac, config, routes, &self.keys);
        // The age of the stack is its time. Sockets may ask before the first turn.
        link.begin(Instant::ZERO);
        let link = self.is_first.then_some(link);
        let place = link.as_ref().map(Ipv6Link::place);
        self.link = Some(Box::new(LinkState {
            link,
            version: 0,
            heeds_routers,
            heeds_redirects,
            defended: None,
            changes: TokenBucket::new(PLACE_CHANGES.0, PLACE_CHANGES.1),
        }));
        place
    }

    /// Whether the host has IPv6.
    pub fn has_v6(&self) -> bool {
        self.link.is_some()
    }

    /// The version of our place that is known, if another host keeps it.
    pub fn followed_version(&self) -> Option<u64> {
        let link = self.link.as_ref().filter(|link| link.link.is_none());
        link.map(|link| link.version)
    }

    fn ipv6_link(&mut self) -> Option<&mut Ipv6Link> {
        self.link.as_mut()?.link.as_mut()
    }

    /// When the link, a group or DHCP has something to say.
    pub fn link_deadline(&self) -> Instant {
        let groups = self.groups.next_deadline().min(self.dhcp_deadline());
        let Some(state) = &self.link else {
            return groups;
        };
        let link = state.link.as_ref();
        let change = match link.is_some_and(Ipv6Link::has_changed) {
            true => state.changes.next(),
            false => Instant::NEVER,
        };
        let link = link.map_or(Instant::NEVER, Ipv6Link::next_deadline);
        link.min(change).min(groups)
    }

    /// The actions that are due on the link. The owner takes the new place, and then passes them to
    /// [`act`](Self::act). `None` if another host keeps the link.
    pub fn link_on_time(&mut self, now: Instant) -> Option<Vec<Action>> {
        self.ipv6_link().map(|link| link.on_time(now))
    }

    /// Another place than the one that is known, if it may be taken now. `limited`: messages of
    /// others may have changed it, so the rate of changes is limited.
    pub fn changed_place(&mut self, now: Instant, limited: bool) -> Option<SiteV6> {
        let state = self.link.as_mut()?;
        let link = state.link.as_mut()?;
        self.stats.duplicate_addresses = link.duplicates();
        if !link.has_changed() {
            return None;
        }
        let place = link.place();
        if place == self.site.v6 && state.version > 0 {
            link.take_changed();
            return None;
        }
        if limited && !state.changes.admits(now) {
            return None;
        }
        link.take_changed();
        Some(place)
    }

    /// Takes the place of this version, unless it is known. Returns the place before.
    pub fn take_place(&mut self, version: u64, place: impl FnOnce() -> SiteV6) -> Option<Site> {
        let state = self.link.as_mut()?;
        if state.version == version {
            return None;
        }
        state.version = version;
        let before = self.site.clone();
        self.site.v6 = place();
        Some(before)
    }

    /// Where reports and questions for routers come from: our link-local address, once we have it.
    pub(super) fn link_local(&self) -> Address {
        let local = self.site.source(ndp::ALL_ROUTERS);
        local
            .filter(|local| local.is_link_local())
            .unwrap_or(Address::v6([0; 16]))
    }

    /// Sends what the link wants sent.
    pub fn act(&mut self, action: Action) {
        let mac = self.mac;
        let nowhere = Address::v6([0; 16]);
        let local = self.link_local();
        let frame = match action {
            Action::Probe(target) => ndp::solicitation(mac, nowhere, None, target),
            Action::SolicitRouters => ndp::router_solicitation(mac, local),
            Action::Report { mut groups, mode } => {
                if !self.neighbors.asks() {
                    // No host solicits us.
                    groups.retain(|group| !ndp::is_solicited_node(*group));
                }
                if groups.is_empty() {
                    return;
                }
                let record = |group| Record {
                    mode,
                    group,
                    sources: Vec::new(),
                };
                let records: Vec<_> = groups.into_iter().map(record).collect();
                mld::report(mac, local, &records)
            }
            // No host solicits us.
            Action::ReportV1(_) | Action::DoneV1(_) if !self.neighbors.asks() => return,
            Action::ReportV1(group) => mld::report_v1(mac, local, group),
            Action::DoneV1(group) => mld::done(mac, local, group),
            // The next request is sent from a link-local address.
            Action::AskInformation { .. } if local.is_unspecified() => return,
            Action::AskInformation { xid, elapsed } => {
                let ends = (
                    Endpoint::new(local, dhcp::CLIENT_PORT_V6),
                    Endpoint::new(dhcp::ALL_SERVERS, dhcp::SERVER_PORT_V6),
                );
                let macs = (mac, ndp::group_mac(dhcp::ALL_SERVERS));
                dhcp::datagram(macs, ends, 0, &dhcp::information_request(mac, xid, elapsed))
            }
        };
        self.control(frame);
    }

    /// Looks at the ends of an IPv6 frame with these link-layer addresses. Returns whether it was
    /// sent to a group, and whether its source is an address of ours; `None`: it is dropped and
    /// counted.
    pub fn accept_v6(
        &mut self,
        frame: &[u8],
        (src, dst): ([u8; 6], [u8; 6]),
    ) -> Option<(bool, bool)> {
        if self.link.is_none() {
            self.stats.unknown += 1;
            return None;
        }
        let Some((from, to)) = wire::ipv6::ends(frame) else {
            self.stats.malformed += 1;
            return None;
        };
        // A frame to us alone may carry a packet to a group (RFC 6085 section 3).
        let to_group = to.is_multicast() && (dst == self.mac || dst[..2] == [0x33, 0x33]);
        if dst != self.mac && !to_group {
            self.stats.not_ours += 1;
            return None;
        }
        // Groups of scope 0 and 1 are not on any link (RFC 4291 section 2.7).
        let is_nowhere = to.is_multicast() && to.bytes()[1] & 0xf < 2;
        let is_martian = is_nowhere || is_martian_v6(from, to);
        if src[0] & 1 != 0 || !self.is_looping && is_martian {
            self.stats.martians += 1;
            return None;
        }
        let is_from_us = !self.is_looping && self.site.v6.has(from);
        Some((to_group, is_from_us))
    }

    /// A message of a neighbour, a router, or a router that asks for listeners.
    pub(super) fn link_message(&mut self, now: Instant, frame: &[u8]) {
        self.stats.neighbor_messages += 1;
        if let Some(query) = mld::parse(frame) {
            if let Some(link) = self.ipv6_link() {
                link.on_query(&query, now);
                let most = Duration::from_millis(query.most_ms);
                self.asked_for_groups(now, query.group, (most, query.is_v1.then_some(1)));
            }
            return;
        }
        let from_mac = wire::link(frame).map(|(src, _)| src);
        // Ignores frames of ours that a device hands back.
        if from_mac == Some(self.mac) {
            return;
        }
        match ndp::parse(frame) {
            Some(NdpMessage::Solicitation { .. } | NdpMessage::Advertisement { .. })
                if !self.neighbors.asks() =>
            {
                self.stats.neighbor_messages -= 1;
                self.stats.unknown += 1;
            }
            Some(NdpMessage::Solicitation { src, target, mac }) => {
                self.solicited(now, src, target, mac.map(Mac));
            }
            Some(NdpMessage::Advertisement {
                target,
                mac,
                solicited,
                overrides,
                router,
            }) => {
                let mac = mac.map(Mac).filter(|mac| mac.0[0] & 1 == 0);
                if self.is_conflict(now, target) {
                    return;
                }
                let flags = (solicited, overrides);
                let Some(learned) = self.neighbors.advertised(target, mac, flags, now) else {
                    return;
                };
                match mac {
                    Some(mac) => self.learned((target, mac), learned),
                    None => self.news.push_back(News::Heard(target)),
                }
                if !router {
                    self.tell_link(|link| link.on_no_router(target));
                }
            }
            Some(NdpMessage::Router(said)) => {
                if let Some(mac) = said.mac.map(Mac).filter(|mac| mac.0[0] & 1 == 0) {
                    let learned = self.neighbors.heard(said.router, mac, now);
                    self.learned((said.router, mac), learned);
                }
                let heeds = self.link.as_ref().is_some_and(|link| link.heeds_routers);
                if heeds && said.reachable_ms > 0 {
                    let reachable = Duration::from_millis(said.reachable_ms.into());
                    self.neighbors.set_reachable(reachable);
                }
                if heeds && said.retransmit_ms > 0 {
                    let retransmit = Duration::from_millis(said.retransmit_ms.into());
                    self.neighbors.set_retransmit(retransmit);
                }
                self.tell_link(|link| link.on_router(&said, now));
            }
            Some(NdpMessage::Redirect {
                router,
                target,
                destination,
                mac,
            }) if self.may_redirect(router, [target, destination]) => {
                if let Some(mac) = mac.map(Mac).filter(|mac| mac.0[0] & 1 == 0) {
                    let learned = self.neighbors.heard(target, mac, now);
                    self.learned((target, mac), learned);
                }
                self.tell_link(|link| link.on_redirect(destination, target));
            }
            Some(NdpMessage::Redirect { .. }) => self.stats.redirects_ignored += 1,
            None => {
                self.stats.neighbor_messages -= 1;
                self.stats.unknown += 1;
            }
        }
    }

    /// Passes a message to the link.
    fn tell_link(&mut self, what: impl FnOnce(&mut Ipv6Link)) {
        if self.ipv6_link().map(what).is_some() {
            self.news.push_back(News::LinkTold);
        }
    }

    /// A DHCPv6 server answers. Returns whether the link had asked.
    pub(super) fn hears_information(&mut self, now: Instant, said: Information) -> bool {
        let mut has_asked = false;
        self.tell_link(|link| has_asked = link.on_information(said, now));
        has_asked
    }

    /// Changes the link as the owner wants it. Returns whether there is one.
    pub fn change_link(&mut self, what: impl FnOnce(&mut Ipv6Link)) -> bool {
        self.ipv6_link().map(what).is_some()
    }

    /// Handles a solicitation for `target` (RFC 4861 section 7.2.3, RFC 4862 section 5.4.3).
    fn solicited(&mut self, now: Instant, src: Address, target: Address, mac: Option<Mac>) {
        let is_probe = src.is_unspecified();
        let link = self.link.as_ref().and_then(|state| state.link.as_ref());
        if link.is_some_and(|link| link.is_tentative(target)) {
            // The sender of a probe wants the address for itself. Others get no answer yet.
            if is_probe {
                self.tell_link(|link| link.on_duplicate(target, now));
            }
            return;
        }
        // What came from an address of ours would be answered to ourselves.
        let is_ours = self.site.v6.has(target);
        let is_foreign = !is_probe && src != target && self.site.answers_for(target);
        let may_answer = is_ours || is_foreign;
        if !may_answer || self.site.v6.has(src) {
            return;
        }
        let mac = mac.filter(|mac| mac.0[0] & 1 == 0);
        if let Some(mac) = mac.filter(|_| !is_probe) {
            let learned = self.neighbors.heard(src, mac, now);
            self.learned((src, mac), learned);
        }
        if !self.is_first {
            return;
        }
        let own = self.mac;
        if is_probe {
            return self.control(ndp::advertisement(own, target, None, true));
        }
        // One that did not say how it is reached may have to be asked first (section 7.2.4).
        // A host that has the address itself overrides our answer (section 7.2.8).
        let answer = ndp::advertisement(own, target, Some(src), is_ours);
        match self.neighbors.lookup_for(Cause::Answer, src, now) {
            Some(mac) => self.deliver([answer], mac),
            None => self.hold(now, Cause::Answer, src, vec![answer]),
        }
    }

    /// Whether a redirect is valid: it comes from the router that forwards to its destination now
    /// (RFC 4861 section 8.1).
    fn may_redirect(&self, router: Address, [target, destination]: [Address; 2]) -> bool {
        let heeds = self.link.as_ref().is_some_and(|link| link.heeds_redirects);
        heeds
            && !self.site.is_ourselves(target)
            && !self.site.is_ourselves(destination)
            && self.site.next_hop(destination) == Some(router)
    }

    /// Whether an advertisement is about an address that is ours, or may become ours. A tentative
    /// one is given up (RFC 4862 section 5.4.4). One that is ours we keep, and defend it at most
    /// every ten seconds.
    fn is_conflict(&mut self, now: Instant, target: Address) -> bool {
        let link = self.link.as_ref().and_then(|state| state.link.as_ref());
        if link.is_some_and(|link| link.is_tentative(target)) {
            self.tell_link(|link| link.on_duplicate(target, now));
            return true;
        }
        if !self.site.v6.has(target) {
            return false;
        }
        if let Some(state) = self.link.as_mut().filter(|state| state.link.is_some()) {
            self.stats.conflicts += 1;
            if state
                .defended
                .is_none_or(|last| last + DEFEND_INTERVAL <= now)
            {
                state.defended = Some(now);
                let frame = ndp::advertisement(self.mac, target, None, true);
                self.control(frame);
            }
        }
        true
    }

    /// A neighbour does not answer: if it is a router, another one is used.
    pub(super) fn neighbor_is_silent(&mut self, address: Address) {
        if let Some(link) = self.ipv6_link() {
            link.on_router_silent(address);
            self.news.push_back(News::LinkChanges);
        }
    }

    /// Whether a flow that no connection has is none of ours. The parser knows
    /// only our first IPv4 address, perhaps an older one, and no IPv6 address.
    #[cold]
    pub fn is_foreign(&self, flow: &Flow) -> bool {
        let (local, remote) = (flow.local.address, flow.remote.address);
        if self.is_looping {
            return !self.is_ours(local) || !self.is_ours(remote);
        }
        match local.is_v4() {
            true => {
                let ends = (remote, local);
                let is_foreign = !self.site.is_own_v4(local) && !self.site.takes(local);
                let has_several = self.site.has_several_v4() || self.site.takes_any;
                is_foreign || has_several && self.site.is_martian(ends)
            }
            false => {
                let is_foreign = !self.site.v6.has(local) && !self.site.takes(local);
                is_foreign || self.site.v6.has(remote)
            }
        }
    }
}
