//! The multicast groups that sockets listen to, and their reports to routers: IGMPv3 (RFC 3376)
//! for IPv4, MLDv2 (RFC 3810) for IPv6.
//!
//! A change is reported at once and, since reports may be lost, once more within a second. A
//! query is answered after a random delay. After a query of an older version, which has no
//! sources, we use that version until its router is gone (RFC 3376 section 7.2.1, RFC 3810 section
//! 8.2.1).

use std::collections::BTreeSet;

use crate::packet::flow::Address;
use crate::packet::igmp::{ALL_HOSTS, Mode, Record};
use crate::time::{Duration, Instant};

/// How often a change is reported (RFC 3376 section 8.1, RFC 3810 section 9.1).
const ROBUSTNESS: u8 = 2;
/// How long after the answer to its query a router of an older version counts as present (RFC 3376
/// section 8.12, RFC 3810 section 9.12).
pub const OLDER_PRESENT: Duration = Duration::from_secs(ROBUSTNESS as u64 * 125);
/// The longest time between these reports (RFC 3376 section 8.11, RFC 3810 section 9.11).
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum sources of a record and records of a report; all fit the minimum MTU of IPv6.
const MAX_SOURCES: usize = 50;
const MAX_RECORDS: usize = 20;
/// Maximum number of record bytes in a report.
const MAX_REPORT: usize = 1100;

/// A membership: the socket named by `S` listens to one source of a group, or to all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member<S> {
    /// The socket.
    pub socket: S,
    /// The group.
    pub group: Address,
    /// The only source that the socket accepts; `None` accepts all.
    pub source: Option<Address>,
}

/// A report to send. All addresses in it have one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipReport {
    /// Records of IGMPv3 or MLDv2.
    Records(Vec<Record>),
    /// One group, for a router of this version of IGMP, or of version 1 of MLD.
    Old(Address, u8),
    /// We have left this group; for a router of version 2 of IGMP, or of version 1 of MLD.
    Left(Address),
}

/// A record that will be sent `left` more times.
#[derive(Debug)]
struct PendingRecord {
    record: Record,
    left: u8,
    next: Instant,
}

/// The answer to queries of a family.
#[derive(Debug)]
struct Answer {
    is_v4: bool,
    at: Instant,
    groups: BTreeSet<Address>,
    /// The oldest version that asked; `None`: the newest.
    old: Option<u8>,
}

/// The sources of a group that are wanted; `None` means all.
type Sources = Option<BTreeSet<Address>>;

/// All memberships of sockets.
#[derive(Debug)]
pub struct Memberships<S> {
    members: Vec<Member<S>>,
    pending: Vec<PendingRecord>,
    answers: Vec<Answer>,
    /// The older versions of the routers of IPv6 and IPv4, and until when.
    older: [Option<(u8, Instant)>; 2],
}

/// Whether a group is reported to routers: the all-hosts group and groups of interface scope
/// are not (RFC 3376 section 6, RFC 3810 section 6).
fn is_reported(group: Address) -> bool {
    if group.is_v4() {
        return group != Address::from(ALL_HOSTS);
    }
    let bytes = group.bytes();
    let is_all_nodes =
        bytes[1] == 2 && bytes[2..15].iter().all(|byte| *byte == 0) && bytes[15] == 1;
    bytes[1] & 0xf > 1 && !is_all_nodes
}

/// The records of a change of a group's sources from `before` to `after` (RFC 3376 section 5.1).
fn changes(group: Address, before: &Sources, after: &Sources) -> Vec<Record> {
    let record = |mode, sources: Vec<Address>| Record {
        mode,
        group,
        sources,
    };
    match (before, after) {
        (None, None) => Vec::new(),
        (Some(_), None) => vec![record(Mode::ToExclude, Vec::new())],
        (None, Some(only)) => vec![record(Mode::ToInclude, only.iter().copied().collect())],
        (Some(before), Some(after)) => {
            let more: Vec<_> = after.difference(before).copied().collect();
            let less: Vec<_> = before.difference(after).copied().collect();
            let both = [record(Mode::Allow, more), record(Mode::Block, less)];
            let says = |record: &Record| !record.sources.is_empty();
            both.into_iter().filter(says).collect()
        }
    }
}

impl<S> Default for Memberships<S> {
    fn default() -> Self {
        Memberships {
            members: Vec::new(),
            pending: Vec::new(),
            answers: Vec::new(),
            older: [None; 2],
        }
    }
}

impl<S: Copy + PartialEq> Memberships<S> {
    /// Whether any socket listens to `group`.
    pub fn listens_to(&self, group: Address) -> bool {
        self.members.iter().any(|member| member.group == group)
    }

    /// The groups that sockets listen to.
    pub fn groups(&self) -> impl Iterator<Item = Address> {
        self.members.iter().map(|member| member.group)
    }

    /// Whether `socket` accepts packets from `source` to `group`.
    pub fn takes(&self, socket: S, group: Address, source: Address) -> bool {
        self.members.iter().any(|member| {
            let any = member.source.is_none_or(|only| only == source);
            (member.socket, member.group) == (socket, group) && any
        })
    }

    fn sources(&self, group: Address) -> Sources {
        let members = self.members.iter();
        let members = members.filter(|member| member.group == group);
        members.map(|member| member.source).collect()
    }

    /// A membership begins (`listens`) or ends.
    pub fn change(&mut self, member: Member<S>, listens: bool, now: Instant) {
        let before = self.sources(member.group);
        self.members.retain(|one| *one != member);
        if listens {
            self.members.push(member);
        }
        self.changed(member.group, &before, now);
    }

    /// Ends all memberships of a socket.
    pub fn leave_all(&mut self, socket: S, now: Instant) {
        let mine = self.members.iter();
        let mine = mine.filter(|member| member.socket == socket);
        let groups: BTreeSet<_> = mine.map(|member| member.group).collect();
        for group in groups {
            let before = self.sources(group);
            self.members
                .retain(|one| (one.socket, one.group) != (socket, group));
            self.changed(group, &before, now);
        }
    }

    fn changed(&mut self, group: Address, before: &Sources, now: Instant) {
        if !is_reported(group) {
            return;
        }
        let new = changes(group, before, &self.sources(group));
        self.pending
            .extend(new.into_iter().map(|record| PendingRecord {
                record,
                left: ROBUSTNESS,
                next: now,
            }));
    }

    /// The older version that we have to use, if any.
    fn older(&self, is_v4: bool, now: Instant) -> Option<u8> {
        let older = self.older[usize::from(is_v4)];
        older
            .filter(|(_, until)| now < *until)
            .map(|(version, _)| version)
    }

    /// A router queries `group`, or all groups if it is zeros, and expects answers within
    /// `most`. `old` is the router's version, unless it is the newest. `random` returns a
    /// random time below its argument.
    pub fn on_query(
        &mut self,
        group: Address,
        (most, old): (Duration, Option<u8>),
        now: Instant,
        mut random: impl FnMut(Duration) -> Duration,
    ) {
        let is_v4 = group.is_v4();
        let before = self.older(is_v4, now);
        if let Some(version) = old.filter(|old| before.is_none_or(|before| *old <= before)) {
            self.older[usize::from(is_v4)] = Some((version, now + most + OLDER_PRESENT));
        }
        let old = self.older(is_v4, now);
        let asked = self.groups().filter(|one| {
            one.is_v4() == is_v4 && is_reported(*one) && (group.is_unspecified() || *one == group)
        });
        let groups: BTreeSet<_> = asked.collect();
        if groups.is_empty() {
            return;
        }
        let at = now + random(most);
        // A pending answer serves this query too.
        match self.answers.iter_mut().find(|answer| answer.is_v4 == is_v4) {
            Some(answer) => {
                answer.at = answer.at.min(at);
                answer.old = match (answer.old, old) {
                    (Some(one), Some(other)) => Some(one.min(other)),
                    (one, other) => one.or(other),
                };
                answer.groups.extend(groups);
            }
            None => self.answers.push(Answer {
                is_v4,
                at,
                groups,
                old,
            }),
        }
    }

    /// When the next report is due.
    pub fn next_deadline(&self) -> Instant {
        let pending = self.pending.iter().map(|pending| pending.next);
        let answers = self.answers.iter().map(|answer| answer.at);
        pending.chain(answers).min().unwrap_or(Instant::NEVER)
    }

    /// The reports that are due, in order.
    pub fn on_time(
        &mut self,
        now: Instant,
        mut random: impl FnMut(Duration) -> Duration,
    ) -> Vec<MembershipReport> {
        let (mut records, mut reports) = (Vec::new(), Vec::new());
        let older = [false, true].map(|is_v4| self.older(is_v4, now));
        let members = &self.members;
        // The records of one group stay in order, so the last one sent is the current state.
        let again = now + random(REPORT_INTERVAL);
        self.pending.retain_mut(|pending| {
            if pending.next > now {
                return true;
            }
            let group = pending.record.group;
            let is_member = members.iter().any(|member| member.group == group);
            match older[usize::from(group.is_v4())] {
                None => records.push(pending.record.clone()),
                Some(version) if is_member => reports.push(MembershipReport::Old(group, version)),
                // Version 1 of IGMP has no such message, and one is enough.
                Some(1) if group.is_v4() => {}
                Some(_) if pending.left < ROBUSTNESS => {}
                Some(_) => reports.push(MembershipReport::Left(group)),
            }
            pending.left -= 1;
            pending.next = again;
            pending.left > 0
        });
        let due: Vec<_> = self
            .answers
            .extract_if(.., |answer| answer.at <= now)
            .collect();
        for answer in due {
            for group in answer.groups {
                match (answer.old, self.sources(group)) {
                    (Some(version), _) if self.listens_to(group) => {
                        reports.push(MembershipReport::Old(group, version));
                    }
                    (None, None) => records.push(Record {
                        mode: Mode::IsExclude,
                        group,
                        sources: Vec::new(),
                    }),
                    (None, Some(only)) if !only.is_empty() => records.push(Record {
                        mode: Mode::IsInclude,
                        group,
                        sources: only.into_iter().collect(),
                    }),
                    // The group was left meanwhile.
                    _ => {}
                }
            }
        }
        reports.extend(in_reports(records));
        reports
    }
}

/// Distributes records over reports that fit into a packet.
fn in_reports(records: Vec<Record>) -> Vec<MembershipReport> {
    let mut reports = Vec::new();
    for is_v4 in [true, false] {
        let size = |record: &Record| (1 + record.sources.len()) * if is_v4 { 4 } else { 16 } + 4;
        let of_family = records.iter().filter(|one| one.group.is_v4() == is_v4);
        let mut report: Vec<Record> = Vec::new();
        for record in of_family.flat_map(in_parts) {
            let len: usize = report.iter().map(size).sum();
            if report.len() == MAX_RECORDS || !report.is_empty() && len + size(&record) > MAX_REPORT
            {
                reports.push(MembershipReport::Records(core::mem::take(&mut report)));
            }
            report.push(record);
        }
        if !report.is_empty() {
            reports.push(MembershipReport::Records(report));
        }
    }
    reports
}

/// Splits a record with many sources (RFC 3376 section 4.2.16).
fn in_parts(record: &Record) -> Vec<Record> {
    if record.sources.len() <= MAX_SOURCES {
        return vec![record.clone()];
    }
    let part = |sources: &[Address]| Record {
        sources: sources.to_vec(),
        ..record.clone()
    };
    record.sources.chunks(MAX_SOURCES).map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_millis(5);

    fn group(last: u8) -> Address {
        [239, 0, 0, last].into()
    }

    fn host(last: u8) -> Address {
        [10, 0, 0, last].into()
    }

    fn member(socket: u32, group: Address, source: Option<Address>) -> Member<u32> {
        Member {
            socket,
            group,
            source,
        }
    }

    /// Half of the given time.
    fn half(most: Duration) -> Duration {
        Duration::from_nanos(most.as_nanos() / 2)
    }

    fn said(memberships: &mut Memberships<u32>, now: Instant) -> Vec<(Mode, Vec<Address>)> {
        let reports = memberships.on_time(now, half);
        let records = reports.into_iter().flat_map(|report| match report {
            MembershipReport::Records(records) => records,
            MembershipReport::Old(..) | MembershipReport::Left(_) => Vec::new(),
        });
        records.map(|one| (one.mode, one.sources)).collect()
    }

    #[test]
    fn every_change_of_what_all_sockets_want_is_said() {
        let mut all = Memberships::default();
        let one = group(1);
        let steps = [
            (
                member(1, one, Some(host(8))),
                true,
                vec![(Mode::Allow, vec![host(8)])],
            ),
            (
                member(2, one, Some(host(9))),
                true,
                vec![(Mode::Allow, vec![host(9)])],
            ),
            (member(3, one, Some(host(9))), true, vec![]),
            (member(4, one, None), true, vec![(Mode::ToExclude, vec![])]),
            (member(2, one, Some(host(9))), false, vec![]),
            (
                member(4, one, None),
                false,
                vec![(Mode::ToInclude, vec![host(8), host(9)])],
            ),
            (
                member(3, one, Some(host(9))),
                false,
                vec![(Mode::Block, vec![host(9)])],
            ),
            (
                member(1, one, Some(host(8))),
                false,
                vec![(Mode::Block, vec![host(8)])],
            ),
            (member(4, one, None), true, vec![(Mode::ToExclude, vec![])]),
            (member(4, one, None), false, vec![(Mode::ToInclude, vec![])]),
        ];
        for (at, (member, listens, expected)) in steps.into_iter().enumerate() {
            let now = NOW + Duration::from_secs(at as u64 * 10);
            all.change(member, listens, now);
            assert_eq!(said(&mut all, now), expected, "step {at}");
            let again = now + Duration::from_millis(500);
            assert_eq!(said(&mut all, again), expected, "step {at}, again");
            assert_eq!(all.next_deadline(), Instant::NEVER);
        }
    }

    #[test]
    fn a_socket_takes_what_it_asked_for() {
        let mut all = Memberships::default();
        all.change(member(1, group(1), Some(host(8))), true, NOW);
        all.change(member(2, group(2), None), true, NOW);
        assert!(all.listens_to(group(1)) && !all.listens_to(group(3)));
        assert!(all.takes(1, group(1), host(8)));
        assert!(!all.takes(1, group(1), host(9)));
        assert!(!all.takes(1, group(2), host(8)));
        assert!(all.takes(2, group(2), host(9)));
        all.leave_all(2, NOW);
        assert!(!all.listens_to(group(2)) && all.listens_to(group(1)));
    }

    #[test]
    fn queries_are_answered_together_in_the_oldest_version_that_asked() {
        let mut all = Memberships::default();
        let six = Address::of_words([0xff0e << 48, 7]);
        for (at, group) in [group(1), group(2), six, ALL_HOSTS.into()]
            .into_iter()
            .enumerate()
        {
            all.change(member(at as u32, group, None), true, NOW);
        }
        let later = NOW + Duration::from_secs(2);
        said(&mut all, NOW);
        said(&mut all, later);
        let second = Duration::from_secs(1);
        all.on_query(group(9), (second, None), later, half);
        assert_eq!(all.next_deadline(), Instant::NEVER);
        let any = Address::from([0; 4]);
        all.on_query(any, (Duration::from_secs(10), None), later, half);
        all.on_query(group(2), (second, None), later, half);
        let at = later + Duration::from_millis(500);
        assert_eq!(all.next_deadline(), at);
        let exclude = (Mode::IsExclude, Vec::new());
        assert_eq!(said(&mut all, at), [exclude.clone(), exclude.clone()]);
        all.on_query(any, (second, None), at, half);
        all.on_query(any, (second, Some(2)), at, half);
        let reports = all.on_time(at + second, half);
        assert_eq!(
            reports,
            [
                MembershipReport::Old(group(1), 2),
                MembershipReport::Old(group(2), 2)
            ]
        );
        all.on_query(Address::v6([0; 16]), (second, None), at, half);
        assert_eq!(said(&mut all, at + second), [exclude]);
    }

    #[test]
    fn while_a_router_of_an_older_version_is_there_changes_are_said_in_it() {
        let six = Address::of_words([0xff0e << 48, 7]);
        for (group, version, says_so) in [(group(1), 1, false), (group(1), 2, true), (six, 1, true)]
        {
            let any = match group.is_v4() {
                true => Address::from([0; 4]),
                false => Address::v6([0; 16]),
            };
            let ten = Duration::from_secs(10);
            let mut all = Memberships::default();
            all.on_query(any, (ten, Some(version)), NOW, half);
            let now = NOW + ten;
            let old = [MembershipReport::Old(group, version)];
            all.change(member(1, group, None), true, now);
            assert_eq!(all.on_time(now, half), old);
            assert_eq!(all.on_time(now + ten, half), old);
            all.on_query(any, (ten, None), now + ten, half);
            assert_eq!(
                all.on_time(now + ten.times(2), half),
                old,
                "a newer router besides"
            );
            let now = now + ten.times(2);
            all.change(member(1, group, None), false, now);
            let left = Vec::from_iter(says_so.then_some(MembershipReport::Left(group)));
            assert_eq!(all.on_time(now, half), left);
            assert_eq!(all.on_time(now + ten, half), []);
            let now = NOW + ten + OLDER_PRESENT;
            all.change(member(1, group, None), true, now);
            assert_eq!(
                said(&mut all, now),
                [(Mode::ToExclude, vec![])],
                "it is gone"
            );
        }
    }

    #[test]
    fn groups_that_end_here_are_not_reported() {
        for (words, expected) in [
            ([0xff01 << 48, 9], false),
            ([0xff02 << 48, 1], false),
            ([0xff02 << 48, 0xfb], true),
            ([0xff0e << 48, 1], true),
        ] {
            assert_eq!(is_reported(Address::of_words(words)), expected);
        }
    }

    #[test]
    fn many_sources_go_into_several_reports_that_each_fit() {
        let group = Address::of_words([0xff0e << 48, 7]);
        let mut all = Memberships::default();
        for at in 0..200 {
            let source = Address::of_words([0x2001 << 48, at]);
            all.change(member(at as u32, group, Some(source)), true, NOW);
        }
        let said = said(&mut all, NOW);
        assert_eq!(
            said.iter().map(|(_, sources)| sources.len()).sum::<usize>(),
            200
        );
        all.on_query(
            Address::v6([0; 16]),
            (Duration::from_secs(1), None),
            NOW,
            half,
        );
        for report in all.on_time(NOW + Duration::from_secs(2), half) {
            let MembershipReport::Records(records) = report else {
                panic!("an old report");
            };
            let mut bytes = Vec::new();
            records.iter().for_each(|record| record.write(&mut bytes));
            assert!(bytes.len() <= MAX_REPORT, "{} bytes", bytes.len());
        }
    }
}
