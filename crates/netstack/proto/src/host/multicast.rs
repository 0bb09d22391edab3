//! Multicast groups: which datagrams sockets take, and the reports to routers.
//!
//! Of several hosts that share their addresses, the first sends the reports. The others also know
//! the memberships, because they send datagrams.

use crate::host::{IpHost, News};
use crate::ip::multicast::MembershipReport;
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

impl IpHost {
    /// When the next report is due.
    pub(super) fn group_deadline(&self) -> Instant {
        self.groups.next_deadline()
    }

    /// Whether frames to `mac` are for a group of IPv4 that a socket listens to, or for the group
    /// of all hosts, in which routers ask.
    #[cold]
    pub fn listens_at(&self, mac: [u8; 6]) -> bool {
        let mut groups = self.groups.groups();
        let all = igmp::group_mac(igmp::ALL_HOSTS.into());
        groups.any(|group| group.is_v4() && (mac == all || igmp::group_mac(group) == mac))
    }

    /// Whether `socket` takes a datagram for several hosts: a broadcast, or one for a group that it
    /// joined.
    #[cold]
    pub fn takes_of_group(&self, socket: Option<ConnId>, udp: &wire::Udp) -> bool {
        let groups = &self.groups;
        !groups.listens_to(udp.dst)
            || socket.is_some_and(|socket| groups.takes(socket, udp.dst, udp.src))
    }

    /// A router asks which groups we listen to, over IPv4.
    #[cold]
    pub(super) fn group_query(&mut self, now: Instant, frame: &[u8]) {
        match igmp::parse(frame) {
            Some(query) => {
                let old = (query.version < 3).then_some(query.version);
                let most = Duration::from_millis(query.most_ms);
                self.asked_for_groups(now, query.group, (most, old));
            }
            None => self.stats.unknown += 1,
        }
    }

    pub(super) fn asked_for_groups(
        &mut self,
        now: Instant,
        group: Address,
        how: (Duration, Option<u8>),
    ) {
        let keys = &self.keys;
        let random = |most| random(keys, now, ANSWER, most);
        self.groups.on_query(group, how, now, random);
        self.news.push_back(News::Deadline);
    }

    /// Sends the reports that are due.
    pub fn report_groups(&mut self, now: Instant) {
        if self.group_deadline() > now {
            return;
        }
        let keys = &self.keys;
        let random = |most| random(keys, now, AGAIN, most);
        let reports = self.groups.on_time(now, random);
        if !self.is_first {
            return;
        }
        let (mac, local) = (self.mac, self.link_local());
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
                MembershipReport::Left(group) if group.is_v4() => {
                    igmp::leave(mac, self.site.address, group)
                }
                MembershipReport::Left(group) => mld::done(mac, local, group),
            };
            self.control(frame);
        }
    }
}
