//! DHCP in the receive pump: the client's lease changes all groups of the interface.

use super::RxPump;
use crate::host::{DhcpConfig, Lease};
use crate::io::ClaimedFrames;
use crate::io::prepare::{datagram_is_good, is_verified_by_device};
use crate::io::rx::addresses::InterfaceChange;
use crate::io::world::Command;
use crate::ip::route::Route;
use crate::packet as wire;
use crate::packet::flow::Endpoint;
use crate::time::Instant;

/// The routes of a lease, after configured ones: their metrics begin at 1.
fn routes(lease: &Lease) -> Vec<Route> {
    let routers = (1..).zip(&lease.routers);
    let routes = routers.map(|(metric, router)| Route {
        metric,
        ..Route::default_via(router.ip())
    });
    routes.collect()
}

/// The changes of an interface that another lease causes.
fn changes(before: Option<&Lease>, lease: Option<&Lease>) -> Vec<InterfaceChange> {
    let place = |lease: &Lease| (lease.address.ip(), lease.prefix);
    let [old, new] = [before, lease].map(|lease| lease.map(place));
    let [old_routes, new_routes] = [before, lease].map(|lease| lease.map_or(Vec::new(), routes));
    let mut changes = Vec::new();
    let lost = old_routes
        .iter()
        .filter(|route| !new_routes.contains(route));
    changes.extend(lost.copied().map(InterfaceChange::RemoveRoute));
    if old != new {
        changes.extend(old.map(|(address, _)| InterfaceChange::Remove { address }));
        changes.extend(new.map(|(address, prefix)| InterfaceChange::Add { address, prefix }));
    }
    let found = new_routes
        .iter()
        .filter(|route| !old_routes.contains(route));
    changes.extend(found.copied().map(InterfaceChange::AddRoute));
    let [old_mtu, mtu] = [before, lease].map(|lease| lease.and_then(|lease| lease.mtu));
    changes.extend((old_mtu != mtu).then_some(InterfaceChange::Mtu(mtu)));
    changes
}

impl RxPump {
    /// Asks DHCP servers for an address. Only the first group does; opens of all groups wait for
    /// the lease.
    pub(crate) fn enable_dhcp(&mut self, config: DhcpConfig) {
        self.host.enable_dhcp(config);
        self.world.set_awaits_lease(true);
        self.datagrams.has_dhcp = true;
        self.v6_due = Instant::ZERO;
    }

    /// The client has another lease, or none: all groups of the interface learn it.
    pub(super) fn take_lease(&mut self) {
        let (before, lease) = self.host.take_lease();
        let mut changes = changes(before.as_ref(), lease.as_ref());
        if lease.is_none() && !self.host.awaits_lease() {
            changes.push(InterfaceChange::LeaseFails);
        }
        let names = lease.map(|lease| lease.names).unwrap_or_default();
        self.world.set_lease(&changes, names);
    }

    /// Opens that waited for a lease begin, or fail.
    pub(super) fn end_wait_for_lease(&mut self) {
        if self.world.set_awaits_lease(false) {
            for open in core::mem::take(&mut self.connections.sourceless) {
                // Starts again as a new command, because the log may have no room now.
                self.world.commands.push(Command::Open(open));
            }
        }
    }

    /// The MTU for IPv4 has changed: connections learn it.
    pub(super) fn change_v4_mtu(&mut self, now: Instant, mtu: Option<u16>) {
        self.change_v4(now, |site| site.mtu = mtu);
        self.follow_v4_mtu();
    }

    /// A datagram that no socket takes: if it is for a client of DHCP, handles it. Returns whether
    /// it is.
    #[cold]
    pub(super) fn takes_dhcp(
        &mut self,
        now: Instant,
        udp: &wire::Udp,
        (batch, index): (&ClaimedFrames, usize),
    ) -> bool {
        let frame = &batch[index];
        if !self.host.asks_at(Endpoint::new(udp.dst, udp.dst_port)) {
            return false;
        }
        if is_verified_by_device(frame) || datagram_is_good(frame.bytes()) {
            self.with_host(now, |host| host.dhcp_datagram(now, frame.bytes()));
        } else {
            self.stats.malformed += 1;
        }
        true
    }
}
