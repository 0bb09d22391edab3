use super::*;
use crate::packet::dhcp::Names;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const ROUTER: Address = Address::of_words([0xfe80 << 48, 0xa]);
const PREFIX_A: Address = Address::of_words([0x2001_0db8_0000_000a, 0]);

fn keys() -> Keys {
    Keys::new([1, 2])
}

fn link_with(config: Ipv6Config) -> Ipv6Link {
    let mut link = Ipv6Link::new(MAC, config, &[], &keys());
    link.begin(Instant::ZERO);
    link
}

/// A link whose addresses are used at once.
fn at_once() -> Ipv6Link {
    link_with(Ipv6Config::default().duplicate_probes(0))
}

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

/// Runs the link until `until`; returns the messages and their times.
fn run(link: &mut Ipv6Link, until: Instant) -> Vec<(Instant, Action)> {
    let mut all = Vec::new();
    while link.next_deadline() <= until {
        let now = link.next_deadline();
        all.extend(link.on_time(now).into_iter().map(|action| (now, action)));
        assert!(link.next_deadline() > now, "it is done");
    }
    all
}

fn prefix(valid_s: u32, preferred_s: u32) -> Prefix {
    Prefix {
        prefix: PREFIX_A,
        len: 64,
        on_link: true,
        autonomous: true,
        valid_s,
        preferred_s,
    }
}

fn said(lifetime_s: u16, prefixes: &[Prefix]) -> RouterAdvertisement {
    RouterAdvertisement {
        router: ROUTER,
        mac: None,
        hop_limit: 0,
        lifetime_s,
        reachable_ms: 0,
        retransmit_ms: 0,
        mtu: None,
        prefixes: prefixes.to_vec(),
        preference: 0,
        routes: Vec::new(),
        has_dhcp: false,
        servers: Vec::new(),
        domains: Vec::new(),
    }
}

/// The address formed from prefix A, if there is one, and whether it is deprecated.
fn made(link: &Ipv6Link) -> Option<(Address, bool)> {
    let place = link.place();
    let mut own = place.addresses.iter();
    let own = own.find(|own| super::super::is_in(own.address, PREFIX_A, 64));
    own.map(|own| (own.address, own.is_deprecated))
}

/// The remaining lifetime of the address formed from prefix A.
fn valid_for(link: &Ipv6Link, now: Instant) -> u64 {
    let mut all = link.candidates.iter();
    let one = all.find(|one| super::super::is_in(one.address, PREFIX_A, 64));
    let until = one.expect("an address").valid_until;
    until.since(now).as_millis() / 1000
}

#[test]
fn an_address_is_ours_a_second_after_nobody_was_asked_in_vain() {
    let mut link = link_with(Ipv6Config::default().autoconfigure(false));
    assert!(link.place().addresses.is_empty());
    let tentative = link.place().tentative[0];
    assert!(tentative.is_link_local() && link.is_tentative(tentative));
    let sent = run(&mut link, at(5));
    let probes: Vec<_> = sent
        .iter()
        .filter(|(_, action)| matches!(action, Action::Probe(_)))
        .collect();
    let [(asked, Action::Probe(target))] = probes[..] else {
        panic!("{probes:?}")
    };
    assert_eq!(*target, tentative);
    assert!(*asked < at(1), "RFC 4862 section 5.4.2");
    assert!(link.place().has(tentative));
    // The group is reported before the probe, and once more (RFC 3810 section 6.1).
    let group = ndp::solicited_node(tentative);
    let reports: Vec<_> = sent
        .iter()
        .filter(|(_, action)| {
            *action
                == Action::Report {
                    groups: vec![group],
                    mode: Mode::ToExclude,
                }
        })
        .collect();
    assert_eq!(reports.len(), 2);
    assert_eq!(reports[0].0, *asked);
}

#[test]
fn with_more_probes_each_waits_a_second() {
    let mut link = link_with(
        Ipv6Config::default()
            .autoconfigure(false)
            .duplicate_probes(3),
    );
    let sent = run(&mut link, at(10));
    let times: Vec<_> = sent
        .iter()
        .filter(|(_, action)| matches!(action, Action::Probe(_)))
        .map(|(time, _)| *time)
        .collect();
    assert_eq!(times.len(), 3);
    assert!(times.windows(2).all(|two| two[0] + RETRANS_TIMER == two[1]));
}

#[test]
fn a_made_address_that_is_taken_is_made_anew_three_times_and_one_by_hand_is_not() {
    let ours: Ipv6Addr = "2001:db8::7".parse().expect("an address");
    let mut link = link_with(Ipv6Config::default().address(ours, 64));
    link.on_duplicate(ours.into(), at(0));
    assert!(!link.place().tentative.contains(&ours.into()));
    let mut tried = Vec::new();
    while let [next] = link.place().tentative[..] {
        assert!(next.is_link_local() && !tried.contains(&next));
        tried.push(next);
        link.on_duplicate(next, at(0));
    }
    assert_eq!(tried.len() as u64, 1 + IDGEN_RETRIES);
    run(&mut link, at(20));
    assert!(link.place().addresses.is_empty());
    assert_eq!(link.duplicates(), 2 + IDGEN_RETRIES);
}

/// RFC 7217 section 5: stable for a key, a link and a prefix, and otherwise unrelated.
#[test]
fn identifiers_are_stable_and_differ_by_key_interface_and_prefix() {
    let first = |mac, secret| {
        let config = Ipv6Config::default().stable_secret(secret);
        let mut link = Ipv6Link::new(mac, config, &[], &keys());
        link.begin(at(0));
        link.on_router(&said(0, &[prefix(100, 100)]), at(0));
        let place = link.place();
        [0, 1].map(|i| place.tentative[i].words()[1])
    };
    let [local, global] = first(MAC, [3, 4]);
    assert_eq!([local, global], first(MAC, [3, 4]));
    assert_ne!(local, global);
    assert_ne!(local, first([2; 6], [3, 4])[0]);
    assert_ne!(local, first(MAC, [3, 5])[0]);
}

#[test]
fn reserved_identifiers_are_known() {
    for reserved in [
        0,
        0x0200_5eff_fe00_5213,
        0xfdff_ffff_ffff_ff80,
        0xfdff_ffff_ffff_ffff,
    ] {
        assert!(is_reserved(reserved), "{reserved:x}");
    }
    for free in [
        1,
        0x0200_5eff_ff00_0000,
        0xfdff_ffff_ffff_ff7f,
        0xfe00_0000_0000_0000,
    ] {
        assert!(!is_reserved(free), "{free:x}");
    }
}

#[test]
fn routers_are_asked_three_times_until_one_answers() {
    let asks = |link: &mut Ipv6Link, until| {
        let sent = run(link, until);
        sent.iter()
            .filter(|(_, action)| *action == Action::SolicitRouters)
            .count()
    };
    assert_eq!(asks(&mut at_once(), at(60)), 3);
    let mut link = at_once();
    assert_eq!(asks(&mut link, at(1)), 1);
    link.on_router(&said(0, &[]), at(1));
    assert_eq!(asks(&mut link, at(6)), 1, "who is no router does not count");
    link.on_router(&said(1800, &[]), at(6));
    assert_eq!(asks(&mut link, at(60)), 0);
    assert_eq!(
        asks(
            &mut link_with(Ipv6Config::default().autoconfigure(false)),
            at(60)
        ),
        0
    );
}

#[test]
fn routers_come_and_go_as_they_say_or_with_their_lifetime() {
    let mut link = at_once();
    link.on_router(&said(10, &[]), at(0));
    let other = RouterAdvertisement {
        router: Address::of_words([0xfe80 << 48, 0xb]),
        ..said(20, &[])
    };
    link.on_router(&other, at(0));
    assert_eq!(link.place().routers, [ROUTER, other.router]);
    link.on_router_silent(ROUTER);
    assert_eq!(link.place().routers, [other.router, ROUTER]);
    run(&mut link, at(10));
    assert_eq!(link.place().routers, [other.router]);
    link.on_router(
        &RouterAdvertisement {
            lifetime_s: 0,
            ..other.clone()
        },
        at(11),
    );
    assert!(link.place().routers.is_empty());
    link.on_router(&other, at(12));
    link.on_no_router(other.router);
    assert!(link.place().routers.is_empty());
}

/// RFC 4861 section 6.3.4: unspecified or invalid values leave earlier ones unchanged.
#[test]
fn hop_limit_mtu_and_time_between_questions_are_what_routers_say() {
    let mut link = link_with(Ipv6Config::default());
    let say = |hop_limit, mtu, retransmit_ms| RouterAdvertisement {
        hop_limit,
        mtu,
        retransmit_ms,
        ..said(0, &[])
    };
    link.on_router(&say(5, Some(1400), 3000), at(0));
    for nothing in [say(0, None, 0), say(0, Some(1279), 0)] {
        link.on_router(&nothing, at(0));
        let place = link.place();
        assert_eq!((place.hop_limit, place.mtu), (Some(5), Some(1400)));
    }
    let probes = run(&mut link, at(10));
    let probe = probes
        .iter()
        .find(|(_, action)| matches!(action, Action::Probe(_)));
    let (asked, _) = probe.expect("a probe");
    let mut link = link_with(Ipv6Config::default());
    link.on_router(&say(0, None, 3000), at(0));
    run(&mut link, *asked + Duration::from_millis(2_999));
    assert!(link.place().addresses.is_empty());
    run(&mut link, *asked + Duration::from_millis(3_000));
    assert!(!link.place().addresses.is_empty());
}

#[test]
fn redirects_are_bounded_and_end_with_who_forwards() {
    let mut link = at_once();
    let to = |i| Address::of_words([0x2001_0db8_0000_000f, i]);
    for i in 0..200 {
        link.on_redirect(to(i), ROUTER);
    }
    assert_eq!(link.place().redirects.len(), MAX_REDIRECTS);
    link.take_changed();
    link.on_redirect(to(199), ROUTER);
    assert!(!link.has_changed());
    link.on_redirect(to(199), to(199));
    link.on_no_router(to(199));
    link.on_no_router(ROUTER);
    assert_eq!(link.place().redirects, [(to(199), to(199))]);
    link.on_router_silent(to(199));
    assert!(link.place().redirects.is_empty());
}

#[test]
fn an_address_is_deprecated_and_lost_in_time() {
    let mut link = at_once();
    link.on_router(&said(0, &[prefix(7200, 3600)]), at(0));
    let (address, _) = made(&link).expect("an address");
    run(&mut link, at(3599));
    assert_eq!(made(&link), Some((address, false)));
    run(&mut link, at(3600));
    assert_eq!(made(&link), Some((address, true)));
    assert!(link.take_changed());
    run(&mut link, at(7200));
    assert_eq!(made(&link), None);
    assert!(link.place().on_link.is_empty());
}

/// RFC 4862 section 5.5.3 (e): an unauthenticated router cannot remove an address at once.
#[test]
fn a_valid_lifetime_falls_to_two_hours_at_once_and_below_them_by_itself() {
    let mut link = at_once();
    link.on_router(&said(0, &[prefix(86_400, 86_400)]), at(0));
    assert_eq!(valid_for(&link, at(0)), 86_400);
    link.on_router(&said(0, &[prefix(60, 0)]), at(0));
    assert_eq!(valid_for(&link, at(0)), 7200);
    assert_eq!(made(&link).map(|(_, deprecated)| deprecated), Some(true));
    link.on_router(&said(0, &[prefix(60, 60)]), at(3600));
    assert_eq!(valid_for(&link, at(3600)), 3600);
    // A value above the remaining lifetime counts, and one above two hours.
    link.on_router(&said(0, &[prefix(5000, 0)]), at(3600));
    assert_eq!(valid_for(&link, at(3600)), 5000);
    link.on_router(&said(0, &[prefix(8000, 8000)]), at(3600));
    assert_eq!(valid_for(&link, at(3600)), 8000);
    // Zero is not an exception.
    link.on_router(&said(0, &[prefix(0, 0)]), at(3600));
    assert_eq!(valid_for(&link, at(3600)), 7200);
}

#[test]
fn prefixes_that_no_address_can_be_made_of_are_ignored() {
    let ignored = [
        Prefix {
            prefix: LINK_LOCAL,
            ..prefix(100, 100)
        },
        Prefix {
            len: 63,
            ..prefix(100, 100)
        },
        Prefix {
            autonomous: false,
            ..prefix(100, 100)
        },
        prefix(100, 101),
        prefix(0, 0),
    ];
    for prefix in ignored {
        let mut link = at_once();
        let before = link.place().addresses.len();
        link.on_router(&said(0, &[prefix]), at(0));
        assert_eq!(link.place().addresses.len(), before, "{prefix:?}");
    }
}

#[test]
fn what_advertisements_make_us_keep_is_bounded() {
    let mut link = at_once();
    for i in 0..100 {
        let prefix = Prefix {
            prefix: Address::of_words([0x2001_0db8_0000_0000 + i, 0]),
            ..prefix(u32::MAX, u32::MAX)
        };
        let router = Address::of_words([0xfe80 << 48, i]);
        link.on_router(
            &RouterAdvertisement {
                router,
                ..said(1800, &[prefix])
            },
            at(0),
        );
    }
    let place = link.place();
    assert_eq!(place.addresses.len(), MAX_ADDRESSES);
    assert_eq!(place.on_link.len(), MAX_PREFIXES);
    assert_eq!(place.routers.len(), MAX_ROUTERS);
}

#[test]
fn networks_by_hand_stay_whatever_routers_say() {
    let ours: Ipv6Addr = "2001:db8:0:a::7".parse().expect("an address");
    let config = Ipv6Config::default().duplicate_probes(0).address(ours, 64);
    let mut link = link_with(config);
    link.on_router(&said(0, &[prefix(10, 10)]), at(0));
    link.on_router(&said(0, &[prefix(0, 0)]), at(1));
    run(&mut link, at(100));
    assert_eq!(link.place().on_link, [(ours.into(), 64)]);
    assert!(link.place().has(ours.into()));
}

#[test]
fn a_query_is_answered_once_in_the_version_of_the_router() {
    let mut link = at_once();
    run(&mut link, at(60));
    let group = ndp::solicited_node(link.place().addresses[0].address);
    let query = |group, is_v1| MldQuery {
        group,
        most_ms: 1000,
        is_v1,
    };
    let any = Address::v6([0; 16]);
    for (asked, is_v1) in [(any, false), (group, false), (group, true)] {
        link.on_query(&query(asked, is_v1), at(100));
        link.on_query(&query(asked, is_v1), at(100));
        let sent = run(&mut link, at(101));
        let expected = match is_v1 {
            true => Action::ReportV1(group),
            false => Action::Report {
                groups: vec![group],
                mode: Mode::IsExclude,
            },
        };
        assert_eq!(
            sent.into_iter()
                .map(|(_, action)| action)
                .collect::<Vec<_>>(),
            [expected]
        );
    }
    link.on_query(&query(ROUTER, false), at(200));
    assert!(
        run(&mut link, at(300)).is_empty(),
        "we do not listen to that"
    );
}

/// RFC 3810 section 6.1, and section 8.2.1 while a router of version 1 is there.
#[test]
fn the_group_of_a_lost_address_is_left() {
    for is_v1 in [false, true] {
        let mut link = at_once();
        link.on_router(&said(1800, &[prefix(7200, 7200)]), at(0));
        let own = made(&link).expect("an address").0;
        run(&mut link, at(5));
        if is_v1 {
            let query = MldQuery {
                group: Address::v6([0; 16]),
                most_ms: 1000,
                is_v1,
            };
            link.on_query(&query, at(7000));
        }
        let group = ndp::solicited_node(own);
        let sent = run(&mut link, at(7300));
        let left: Vec<_> = sent
            .into_iter()
            .filter(|(now, _)| *now >= at(7200))
            .collect();
        let expected = match is_v1 {
            true => Action::DoneV1(group),
            false => Action::Report {
                groups: vec![group],
                mode: Mode::ToInclude,
            },
        };
        let times: Vec<_> = left
            .iter()
            .filter(|(_, action)| *action == expected)
            .collect();
        let expected = if is_v1 { 1 } else { 2 };
        assert_eq!(
            (times.len(), left.len(), left[0].0),
            (expected, expected, at(7200))
        );
        // One that comes again is said to be there again.
        link.on_router(&said(1800, &[prefix(7200, 7200)]), at(7400));
        let sent = run(&mut link, at(7400));
        assert!(!sent.is_empty(), "{is_v1}");
    }
}

/// RFC 4861 section 6.3.5: redirects to a router end with it.
#[test]
fn the_redirects_of_a_router_that_is_no_more_end() {
    let far = Address::of_words([0x2001_0db8_0077_0000, 1]);
    let mut link = at_once();
    link.on_router(&said(60, &[]), at(0));
    let other = Address::of_words([0xfe80 << 48, 0xb]);
    link.on_router(
        &RouterAdvertisement {
            router: other,
            ..said(1800, &[])
        },
        at(0),
    );
    link.on_redirect(far, ROUTER);
    run(&mut link, at(59));
    assert_eq!(link.place().next_hop(far), Some(ROUTER));
    run(&mut link, at(60));
    assert_eq!(link.place().next_hop(far), Some(other));
}

/// RFC 4191 section 3.2: a route through a router that does not answer is not used.
#[test]
fn routes_of_a_silent_router_are_forgotten_until_it_speaks() {
    let far = Address::of_words([0x2001_0db8_0077_0000, 1]);
    let other = Address::of_words([0xfe80 << 48, 0xb]);
    let route = RouteInformation {
        prefix: far,
        len: 48,
        preference: 0,
        lifetime_s: 600,
    };
    let says = RouterAdvertisement {
        router: other,
        routes: vec![route],
        ..said(0, &[])
    };
    let mut link = at_once();
    link.on_router(&said(1800, &[]), at(0));
    link.on_router(&says, at(0));
    assert_eq!(link.place().next_hop(far), Some(other));
    link.on_router_silent(other);
    assert_eq!(link.place().next_hop(far), Some(ROUTER));
    link.on_router(&says, at(9));
    assert_eq!(link.place().next_hop(far), Some(other));
    run(&mut link, at(609));
    assert_eq!(link.place().next_hop(far), Some(ROUTER));
}

fn with_names(servers: &[(Address, u32)], domains: &[(&str, u32)]) -> RouterAdvertisement {
    let domains = domains
        .iter()
        .map(|(name, life)| ((*name).to_owned(), *life));
    RouterAdvertisement {
        servers: servers.to_vec(),
        domains: domains.collect(),
        ..said(0, &[])
    }
}

/// RFC 8106.
#[test]
fn servers_of_names_are_kept_for_their_lifetimes() {
    let server = |i| Address::of_words([0x2001_0db8 << 32, i]);
    let mut link = at_once();
    link.take_changed();
    let forever = u32::MAX;
    let all = [(server(1), 10), (server(2), forever), (ndp::ALL_NODES, 10)];
    link.on_router(&with_names(&all, &[("corp", 10), ("home", 20)]), at(0));
    assert!(link.take_changed());
    let names = link.place().names;
    assert_eq!(names.servers, [server(1), server(2)]);
    assert_eq!(names.domains, ["corp", "home"]);
    // A new lifetime is no change of our place.
    run(&mut link, at(5));
    link.take_changed();
    link.on_router(&with_names(&[(server(1), 10)], &[]), at(5));
    assert!(!link.has_changed());
    run(&mut link, at(14));
    assert_eq!(link.place().names.domains, ["home"]);
    run(&mut link, at(15));
    assert_eq!(link.place().names.servers, [server(2)]);
    link.on_router(&with_names(&[(server(2), 0)], &[("home", 0)]), at(16));
    assert!(link.take_changed());
    assert_eq!(link.place().names, Names::default());
    // In a full list the one that ends first gives way.
    for i in 0..100 {
        let lifetime = 1000 - i as u32;
        link.on_router(&with_names(&[(server(i), lifetime)], &[]), at(17));
    }
    let mut kept = link.place().names.servers;
    kept.sort_unstable();
    let mut expected: Vec<_> = (0..7).chain([99]).map(server).collect();
    expected.sort_unstable();
    assert_eq!(kept, expected);
}

fn requests(sent: &[(Instant, Action)]) -> Vec<(Instant, u32)> {
    let requests = sent.iter().filter_map(|(at, action)| match action {
        Action::AskInformation { xid, .. } => Some((*at, *xid)),
        _ => None,
    });
    requests.collect()
}

/// RFC 8415 sections 15 and 18.2.6.
#[test]
fn a_router_with_the_flag_makes_us_ask_servers_for_information() {
    let server = Address::of_words([0x2001_0db8 << 32, 53]);
    let mut link = at_once();
    link.on_router(&said(0, &[]), at(0));
    assert_eq!(requests(&run(&mut link, at(100))), []);
    let asks = RouterAdvertisement {
        has_dhcp: true,
        ..said(0, &[])
    };
    link.on_router(&asks, at(100));
    let sent = requests(&run(&mut link, at(140)));
    assert!(sent[0].0 < at(101));
    let gaps = sent.windows(2).map(|pair| pair[1].0.since(pair[0].0));
    for (gap, expected) in gaps.zip([1000, 2000, 4000, 8000]) {
        let off = gap.as_millis().abs_diff(expected);
        assert!(off <= expected / 10, "{gap:?} {expected}");
    }
    let xid = sent[0].1;
    assert!(xid < 1 << 24 && sent.iter().all(|(_, other)| *other == xid));
    let answer = |xid| Information {
        xid,
        names: Names {
            servers: vec![server, ndp::ALL_NODES],
            domains: vec!["corp".to_owned()],
        },
        refresh_s: Some(1),
    };
    link.take_changed();
    assert!(!link.on_information(answer(xid ^ 1), at(140)));
    assert!(!link.has_changed());
    assert!(link.on_information(answer(xid), at(140)));
    assert!(link.take_changed());
    assert_eq!(link.place().names.servers, [server]);
    assert!(!link.on_information(answer(xid), at(140)), "it comes twice");
    // They come before those of routers. It asks again, at least ten minutes later.
    link.on_router(&with_names(&[(ROUTER, u32::MAX)], &[]), at(141));
    assert_eq!(link.place().names.servers, [server, ROUTER]);
    let again = requests(&run(&mut link, at(740)));
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].0, at(740));
    assert_ne!(again[0].1, xid);
}
