//! IPv6 in the receive pump: neighbours, routers, and our addresses.
//!
//! The first group keeps the [`Ipv6Link`], and says where we are in the network. The others follow.

use std::collections::VecDeque;

use crate::io::Batch;
use crate::io::rx::{Log, RxPump};
use crate::io::world::Command;
use crate::ip::neighbor::{Cause, WaitingOpen};
use crate::ip::rate_limit::TokenBucket;
use crate::ip::route::is_martian_v6;
use crate::ip::v6::{Action, Ipv6Config, Ipv6Link, Place};
use crate::keys::Keys;
use crate::log::request::{Address, Flow, Mac};
use crate::packet as wire;
use crate::packet::igmp::{Mode, Record};
use crate::packet::mld;
use crate::packet::ndp::{self, NdpMessage};
use crate::time::{Duration, Instant};

/// How often a neighbour is told that an address is ours that it claims (as RFC 5227 section 1.1).
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// Changes of our place that messages of others cause, in a row, and how long until one more may:
/// every group looks at all connections for each. What changes meanwhile is one change.
const PLACE_CHANGES: (u64, Duration) = (16, Duration::from_millis(100));

/// IPv6 on the link of a pump.
pub(crate) struct LinkV6 {
    /// `None` in all groups but the first.
    link: Option<Ipv6Link>,
    /// The version of our place that is known.
    version: u64,
    heeds_routers: bool,
    heeds_redirects: bool,
    /// Opens without an address to come from.
    opens: VecDeque<WaitingOpen>,
    defended: Option<Instant>,
    changes: TokenBucket,
}

impl RxPump {
    /// The stack has IPv6. `routes` are all that are configured.
    pub(crate) fn enable_v6(
        &mut self,
        config: Ipv6Config,
        routes: &[crate::ip::route::Route],
        keys: &Keys,
    ) {
        let (heeds_routers, heeds_redirects) = (config.autoconfigure, config.redirects);
        let mut link = Ipv6Link::new(self.world.mac, config, routes, keys);
        // The age of the stack is its time. Sockets may ask before the first turn.
        link.begin(Instant::ZERO);
        if self.group.is_first() {
            self.world.set_v6(link.place());
        }
        // The other groups look at every turn whether our place has changed.
        self.v6_due = Instant::ZERO;
        self.v6 = Some(Box::new(LinkV6 {
            link: self.group.is_first().then_some(link),
            version: 0,
            heeds_routers,
            heeds_redirects,
            opens: VecDeque::new(),
            defended: None,
            changes: TokenBucket::new(PLACE_CHANGES.0, PLACE_CHANGES.1),
        }));
    }

    /// When the link wants a turn.
    pub(crate) fn v6_deadline(&self) -> Instant {
        if !self.lost.is_empty() || self.rerouting.is_due() {
            return Instant::ZERO;
        }
        let groups = self
            .group_deadline()
            .min(self.rerouting.next_deadline())
            .min(self.paths.next_deadline());
        let Some(v6) = &self.v6 else {
            return groups;
        };
        let link = v6.link.as_ref();
        let change = match link.is_some_and(Ipv6Link::has_changed) {
            true => v6.changes.next(),
            false => Instant::NEVER,
        };
        let link = link.map_or(Instant::NEVER, Ipv6Link::next_deadline);
        link.min(change).min(groups)
    }

    /// Does what is due on the link, and follows where it puts us.
    #[cold]
    pub(crate) fn turn_v6(&mut self, now: Instant, log: &mut impl Log) {
        self.report_groups(now);
        self.end_lost_connections(now, log);
        self.follow_routes(now, log);
        self.retry_routes_if_due(now);
        self.follow_paths(now, log);
        let Some(v6) = &mut self.v6 else {
            self.v6_due = self.v6_deadline();
            return;
        };
        let Some(link) = &mut v6.link else {
            return self.follow_v6(now);
        };
        let actions = link.on_time(now);
        self.take_place(now, true);
        for action in actions {
            self.act(action);
        }
    }

    /// Our place, if it has changed: for us, sockets, and the other groups. `limited`: it may be
    /// others who change it, so it is taken only so often.
    fn take_place(&mut self, now: Instant, limited: bool) {
        if let Some(place) = self.changed_place(now, limited) {
            self.filter_v6(&place);
            self.world.set_v6(place);
            self.follow_v6(now);
        }
        self.v6_due = self.v6_deadline();
    }

    /// Another place than the one that is known, if it may be taken now.
    fn changed_place(&mut self, now: Instant, limited: bool) -> Option<Place> {
        let v6 = self.v6.as_mut()?;
        let link = v6.link.as_mut()?;
        self.stats.duplicate_addresses = link.duplicates();
        if !link.has_changed() {
            return None;
        }
        let place = link.place();
        if place == self.site.v6 && v6.version > 0 {
            link.take_changed();
            return None;
        }
        if limited && !v6.changes.admits(now) {
            return None;
        }
        link.take_changed();
        Some(place)
    }

    /// Lets the device take frames to our addresses of IPv6, and those that may become ours; and
    /// leave those to others that are not ours any more.
    fn filter_v6(&self, place: &Place) {
        if self.world.filter.is_none() {
            return;
        }
        let before = self.world.v6();
        let (before, now) = (before.all(), place.all());
        for own in before.iter().filter(|own| !now.contains(own)) {
            self.leave_frames_to(*own);
        }
        for own in now.iter().filter(|own| !before.contains(own)) {
            self.take_frames_to(*own);
        }
    }

    /// Whether the first group knows of another place than this one.
    pub(super) fn follows_place(&self) -> bool {
        let v6 = self.v6.as_ref().filter(|v6| v6.link.is_none());
        v6.is_some_and(|v6| v6.version != self.world.shared.v6_version())
    }

    /// Takes the place that the first group knows.
    fn follow_v6(&mut self, now: Instant) {
        let version = self.world.shared.v6_version();
        let Some(v6) = &mut self.v6 else {
            return;
        };
        if v6.version == version {
            return;
        }
        v6.version = version;
        let opens = core::mem::take(&mut v6.opens);
        let before = self.site.clone();
        self.site.v6 = self.world.v6();
        self.world.set_hop_limit(self.site.v6.hop_limit);
        if self.site.v6.mtu != before.v6.mtu {
            self.follow_link_mtu();
        }
        self.find_lost_connections();
        self.find_rerouted(now, before);
        for open in opens {
            // As if it were asked for now: the log may have no room at this moment.
            self.world.commands.push(Command::Open(open));
        }
    }

    /// Where reports and questions for routers come from: our link-local address, once we have it.
    pub(crate) fn link_local(&self) -> Address {
        let local = self.site.source(ndp::ALL_ROUTERS);
        local
            .filter(|local| local.is_link_local())
            .unwrap_or(Address::v6([0; 16]))
    }

    fn act(&mut self, action: Action) {
        let mac = self.world.mac;
        let nowhere = Address::v6([0; 16]);
        let local = self.link_local();
        let frame = match action {
            Action::Probe(target) => ndp::solicitation(mac, nowhere, None, target),
            Action::SolicitRouters => ndp::router_solicitation(mac, local),
            Action::Report { groups, is_new } => {
                let mode = if is_new {
                    Mode::ToExclude
                } else {
                    Mode::IsExclude
                };
                let record = |group| Record {
                    mode,
                    group,
                    sources: Vec::new(),
                };
                let records: Vec<_> = groups.into_iter().map(record).collect();
                mld::report(mac, local, &records)
            }
            Action::ReportV1(group) => mld::report_v1(mac, local, group),
        };
        self.control(frame);
    }

    /// Handles a frame of IPv6 that is no segment for us.
    pub(crate) fn frame_v6(
        &mut self,
        now: Instant,
        (batch, index): (&Batch, usize),
        (src, dst): ([u8; 6], [u8; 6]),
        log: &mut impl Log,
    ) {
        if self.v6.is_none() {
            self.stats.unknown += 1;
            return;
        }
        let Some((from, to)) = wire::ipv6::ends(batch[index].bytes()) else {
            self.stats.malformed += 1;
            return;
        };
        let to_group = dst[..2] == [0x33, 0x33] && to.is_multicast();
        if dst != self.world.mac && !to_group {
            self.stats.not_ours += 1;
            return;
        }
        if src[0] & 1 != 0 || !self.is_looping() && is_martian_v6(from, to) {
            self.stats.martians += 1;
            return;
        }
        let is_from_us = !self.is_looping() && self.site.v6.has(from);
        self.parsed(now, (to_group, is_from_us), (batch, index), log);
    }

    /// A message of a neighbour, a router, or a router that asks for listeners.
    pub(crate) fn link_message(&mut self, now: Instant, frame: &[u8]) {
        self.stats.neighbor_messages += 1;
        if let Some(query) = mld::parse(frame) {
            if let Some(link) = self.v6.as_mut().and_then(|v6| v6.link.as_mut()) {
                link.on_query(&query, now);
                let most = Duration::from_millis(query.most_ms);
                self.asked_for_groups(now, query.group, (most, query.is_v1.then_some(1)));
            }
            return;
        }
        let from_mac = wire::link(frame).map(|(src, _)| src);
        // What a device hands back of ours says nothing.
        if from_mac == Some(self.world.mac) {
            return;
        }
        match ndp::parse(frame) {
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
                let learned = self.neighbors.advertised(target, mac, flags, now);
                self.routes_to(target, now);
                if let Some(mac) = mac {
                    self.learned((target, mac), learned);
                }
                if !router {
                    self.with_link(now, |link| link.on_no_router(target));
                }
            }
            Some(NdpMessage::Router(said)) => {
                if let Some(mac) = said.mac.map(Mac).filter(|mac| mac.0[0] & 1 == 0) {
                    let learned = self.neighbors.heard(said.router, mac, now);
                    self.routes_to(said.router, now);
                    self.learned((said.router, mac), learned);
                }
                let heeds = self.v6.as_ref().is_some_and(|v6| v6.heeds_routers);
                if heeds && said.reachable_ms > 0 {
                    let reachable = Duration::from_millis(said.reachable_ms.into());
                    self.neighbors.set_reachable(reachable);
                }
                self.with_link(now, |link| link.on_router(&said, now));
            }
            Some(NdpMessage::Redirect {
                router,
                target,
                destination,
                mac,
            }) if self.may_redirect(router, [target, destination]) => {
                if let Some(mac) = mac.map(Mac).filter(|mac| mac.0[0] & 1 == 0) {
                    let learned = self.neighbors.heard(target, mac, now);
                    self.routes_to(target, now);
                    self.learned((target, mac), learned);
                }
                self.with_link(now, |link| link.on_redirect(destination, target));
            }
            Some(NdpMessage::Redirect { .. }) => self.stats.redirects_ignored += 1,
            None => {
                self.stats.neighbor_messages -= 1;
                self.stats.unknown += 1;
            }
        }
    }

    /// Tells the link what others say.
    fn with_link(&mut self, now: Instant, what: impl FnOnce(&mut Ipv6Link)) {
        if let Some(link) = self.v6.as_mut().and_then(|v6| v6.link.as_mut()) {
            what(link);
            self.take_place(now, true);
        }
    }

    /// Changes the link as the application wants it.
    pub(super) fn change_link(&mut self, now: Instant, what: impl FnOnce(&mut Ipv6Link)) {
        if let Some(link) = self.v6.as_mut().and_then(|v6| v6.link.as_mut()) {
            what(link);
            self.take_place(now, false);
        }
    }

    /// Somebody asks for `target` (RFC 4861 section 7.2.3, RFC 4862 section 5.4.3).
    fn solicited(&mut self, now: Instant, src: Address, target: Address, mac: Option<Mac>) {
        let is_probe = src.is_unspecified();
        let link = self.v6.as_ref().and_then(|v6| v6.link.as_ref());
        if link.is_some_and(|link| link.is_tentative(target)) {
            // Who asks as we do wants it for itself. Others are not answered yet.
            if is_probe {
                self.with_link(now, |link| link.on_duplicate(target, now));
            }
            return;
        }
        // What came from an address of ours would be answered to ourselves.
        if !self.site.v6.has(target) || self.site.v6.has(src) {
            return;
        }
        let mac = mac.filter(|mac| mac.0[0] & 1 == 0);
        if let Some(mac) = mac.filter(|_| !is_probe) {
            let learned = self.neighbors.heard(src, mac, now);
            self.routes_to(src, now);
            self.learned((src, mac), learned);
        }
        if !self.group.is_first() {
            return;
        }
        let own = self.world.mac;
        if is_probe {
            return self.control(ndp::advertisement(own, target, None));
        }
        // One that did not say how it is reached may have to be asked first (section 7.2.4).
        let answer = ndp::advertisement(own, target, Some(src));
        match self.neighbors.lookup_for(Cause::Answer, src, now) {
            Some(mac) => self.deliver([answer], mac),
            None => self.hold(now, Cause::Answer, src, vec![answer]),
        }
    }

    /// Whether a redirect counts: from who forwards to its destination now (RFC 4861 section 8.1).
    fn may_redirect(&self, router: Address, [target, destination]: [Address; 2]) -> bool {
        let heeds = self.v6.as_ref().is_some_and(|v6| v6.heeds_redirects);
        heeds
            && !self.site.is_ourselves(target)
            && !self.site.is_ourselves(destination)
            && self.site.next_hop(destination) == Some(router)
    }

    /// Whether somebody advertises an address that is ours, or may become ours. One that may does
    /// not (RFC 4862 section 5.4.4); one that is we keep, and say so at most every ten seconds.
    fn is_conflict(&mut self, now: Instant, target: Address) -> bool {
        let link = self.v6.as_ref().and_then(|v6| v6.link.as_ref());
        if link.is_some_and(|link| link.is_tentative(target)) {
            self.with_link(now, |link| link.on_duplicate(target, now));
            return true;
        }
        if !self.site.v6.has(target) {
            return false;
        }
        if let Some(v6) = self.v6.as_mut().filter(|v6| v6.link.is_some()) {
            self.stats.conflicts += 1;
            if v6.defended.is_none_or(|last| last + DEFEND_INTERVAL <= now) {
                v6.defended = Some(now);
                let frame = ndp::advertisement(self.world.mac, target, None);
                self.control(frame);
            }
        }
        true
    }

    /// A neighbour does not answer: if it is a router, another one is used.
    pub(crate) fn neighbor_is_silent(&mut self, address: Address) {
        if let Some(link) = self.v6.as_mut().and_then(|v6| v6.link.as_mut()) {
            link.on_router_silent(address);
            // The next turn takes the change.
            self.v6_due = Instant::ZERO;
        }
    }

    /// Whether an open waits, because we have no address yet that is ours alone.
    pub(crate) fn waits_for_source(&mut self, open: WaitingOpen) -> bool {
        let remote = open.remote.address;
        if remote.is_v4() || self.v6.is_none() {
            return false;
        }
        let waits = self.site.source(remote).is_none() && !self.site.v6.tentative.is_empty();
        if waits
            && self.may_wait(open)
            && let Some(v6) = &mut self.v6
        {
            v6.opens.push_back(open);
        }
        waits
    }

    /// How many such opens wait.
    pub(super) fn without_source(&self) -> usize {
        self.v6.as_ref().map_or(0, |v6| v6.opens.len())
    }

    /// Whether a flow that no connection has is none of ours. Who parsed it does not know our
    /// addresses of IPv6, nor those of IPv4 but for the first, and may have seen an older one.
    #[cold]
    pub(crate) fn is_foreign(&self, flow: &Flow) -> bool {
        let (local, remote) = (flow.local.address, flow.remote.address);
        if self.is_looping() {
            return !self.is_ours(local) || !self.is_ours(remote);
        }
        match local.is_v4() {
            true => {
                let ends = (remote, local);
                !self.site.is_own_v4(local)
                    || self.site.has_several_v4() && self.site.is_martian(ends)
            }
            false => !self.site.v6.has(local) || self.site.v6.has(remote),
        }
    }
}
