//! Multicast groups in the receive pump: which datagrams sockets take, and what routers are told.
//!
//! What arrives for a group goes to the first group of the interface, and that one tells routers.
//! The others know who listens, too, since they send: see [`loopback`](super::loopback).

use crate::io::rx::RxPump;
use crate::ip::multicast::{Member, MembershipReport};
use crate::keys::{KeyUse, Keys};
use crate::log::request::ConnId;
use crate::packet as wire;
use crate::packet::flow::Address;
use crate::packet::{igmp, mld};
use crate::time::{Duration, Instant};

/// A random time below `most`, at this time and for this purpose.
fn random(keys: &Keys, now: Instant, purpose: u64, most: Duration) -> Duration {
    let random = keys.of(KeyUse::LinkDelay, [now.as_nanos(), purpose]);
    Duration::from_nanos(random % most.as_nanos().max(1))
}

/// Purposes of random times: between the reports of a change, and before answers.
const AGAIN: u64 = 1 << 63;
const ANSWER: u64 = AGAIN | 1;

impl RxPump {
    /// A socket listens to a group, or does not any more.
    pub(crate) fn member(&mut self, now: Instant, member: Member<ConnId>, listens: bool) {
        self.datagrams.groups.change(member, listens, now);
        self.v6_due = self.v6_due.min(self.group_deadline());
    }

    pub(crate) fn leave_groups(&mut self, now: Instant, socket: ConnId) {
        self.datagrams.groups.leave_all(socket, now);
        self.v6_due = self.v6_due.min(self.group_deadline());
    }

    /// When routers are to be told something.
    pub(crate) fn group_deadline(&self) -> Instant {
        self.datagrams.groups.next_deadline()
    }

    /// Whether a socket listens to this group.
    pub(crate) fn listens_to(&self, group: Address) -> bool {
        self.datagrams.groups.listens_to(group)
    }

    /// Whether frames to `mac` are for a group of IPv4 that a socket listens to, or for the group
    /// of all hosts, in which routers ask.
    #[cold]
    pub(crate) fn listens_at(&self, mac: [u8; 6]) -> bool {
        let mut groups = self.datagrams.groups.groups();
        let all = igmp::group_mac(igmp::ALL_HOSTS.into());
        groups.any(|group| group.is_v4() && (mac == all || igmp::group_mac(group) == mac))
    }

    /// Whether the socket at `place` takes a datagram that was not sent to us alone: what is for
    /// all hosts, and what is for a group that it asked for.
    #[cold]
    pub(crate) fn takes_of_group(&self, place: u32, udp: &wire::Udp) -> bool {
        let groups = &self.datagrams.groups;
        let socket = self.datagrams.socket_at(place);
        !groups.listens_to(udp.dst)
            || socket.is_some_and(|socket| groups.takes(socket, udp.dst, udp.src))
    }

    /// A router asks which groups we listen to, over IPv4.
    #[cold]
    pub(crate) fn group_query(&mut self, now: Instant, frame: &[u8]) {
        match igmp::parse(frame) {
            Some(query) => {
                let old = (query.version < 3).then_some(query.version);
                let most = Duration::from_millis(query.most_ms);
                self.asked_for_groups(now, query.group, (most, old));
            }
            None => self.stats.unknown += 1,
        }
    }

    pub(crate) fn asked_for_groups(
        &mut self,
        now: Instant,
        group: Address,
        how: (Duration, Option<u8>),
    ) {
        let keys = &self.world.keys;
        let random = |most| random(keys, now, ANSWER, most);
        self.datagrams.groups.on_query(group, how, now, random);
        self.v6_due = self.v6_deadline();
    }

    /// Tells routers what is due.
    pub(crate) fn report_groups(&mut self, now: Instant) {
        if self.group_deadline() > now {
            return;
        }
        let keys = &self.world.keys;
        let random = |most| random(keys, now, AGAIN, most);
        let reports = self.datagrams.groups.on_time(now, random);
        if !self.group.is_first() {
            return;
        }
        let (mac, local) = (self.world.mac, self.link_local());
        for report in reports {
            let frame = match report {
                MembershipReport::Records(records) if records[0].group.is_v4() => {
                    igmp::report(mac, self.site.address, &records)
                }
                MembershipReport::Records(records) => mld::report(mac, local, &records),
                MembershipReport::Old(group, version) if group.is_v4() => {
                    igmp::report_old(mac, self.site.address, group, version)
                }
                MembershipReport::Old(group, _) => mld::report_v1(mac, local, group),
            };
            self.control(frame);
        }
    }
}
