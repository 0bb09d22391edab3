//! The client against scripted servers.

use super::*;
use proptest::prelude::*;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const OTHER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const SERVER: Address = Address::ipv4(10, 0, 0, 1);
const OTHER: Address = Address::ipv4(10, 0, 0, 2);
const OURS: Address = Address::ipv4(10, 0, 0, 50);
/// The times of a lease: T1, T2, and its end, in seconds.
const TIMES: [u32; 3] = [500, 875, 1000];

fn client() -> DhcpClient {
    let mut client = DhcpClient::new(MAC, DhcpConfig::default(), Keys::new([1, 2]), true);
    client.begin(Instant::ZERO);
    client
}

/// A message of the client, as far as servers look.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Asked {
    kind: u8,
    xid: u32,
    /// From its header: its address, and whether it wants an answer to all.
    ours: Address,
    broadcast: bool,
    /// The options 50 and 54.
    about: Option<Address>,
    server: Option<Address>,
    /// The addresses of the packet.
    from: Address,
    to: Address,
}

fn asked(output: &Output) -> Option<Asked> {
    let Output::Message(bytes, from, to) = output else {
        return None;
    };
    let v4 = |bytes: &[u8]| Address::v4(u32::from_be_bytes(bytes.try_into().expect("4 bytes")));
    let mut options = std::collections::BTreeMap::new();
    let mut rest = &bytes[240..];
    while let [kind @ 1..=254, len, ..] = *rest {
        options.insert(kind, &rest[2..2 + usize::from(len)]);
        rest = &rest[2 + usize::from(len)..];
    }
    assert_eq!(bytes[28..34], MAC);
    assert_eq!(options[&61], [1, 2, 0, 0, 0, 0, 1]);
    Some(Asked {
        kind: options[&53][0],
        xid: v4(&bytes[4..8]).v4_bits(),
        ours: v4(&bytes[12..16]),
        broadcast: bytes[10] & 0x80 != 0,
        about: options.get(&50).copied().map(v4),
        server: options.get(&54).copied().map(v4),
        from: *from,
        to: *to,
    })
}

const DISCOVER: u8 = 1;
const REQUEST: u8 = 3;
const DECLINE: u8 = 4;
const RELEASE: u8 = 7;

/// Runs the client until `until`; returns the messages with their times.
fn run(client: &mut DhcpClient, until: Instant) -> Vec<(Instant, Output)> {
    let mut all = Vec::new();
    while client.next <= until {
        let now = client.next;
        client.on_time(now);
        all.extend(client.outputs.drain(..).map(|output| (now, output)));
        assert!(client.next > now, "it is done");
    }
    all
}

/// Runs until the client has sent a message; returns it, and the time.
fn next_message(client: &mut DhcpClient) -> (Instant, Asked) {
    loop {
        let now = client.next;
        assert_ne!(now, Instant::NEVER, "it has more to send");
        for (_, output) in run(client, now) {
            if let Some(asked) = asked(&output) {
                return (now, asked);
            }
        }
    }
}

/// An answer of [`SERVER`] to a message of the client.
fn answer(kind: DhcpKind, asked: &Asked) -> DhcpAnswer {
    DhcpAnswer {
        kind,
        xid: asked.xid,
        mac: MAC,
        server: Some(SERVER),
        yours: OURS,
        prefix: 24,
        routers: vec![SERVER],
        names: Names {
            servers: vec![SERVER],
            domains: vec!["corp.example".to_owned()],
        },
        mtu: Some(1400),
        lease_s: Some(TIMES[2]),
        renew_s: None,
        rebind_s: None,
    }
}

fn hear(client: &mut DhcpClient, now: Instant, said: &DhcpAnswer) -> bool {
    let heard = client.hear(now, said, |_| false);
    assert!(client.outputs.len() <= 1, "an answer causes one message");
    heard
}

/// Takes the client to its lease; returns when it has it, and when that began.
fn bind(client: &mut DhcpClient) -> (Instant, Instant) {
    let (now, discover) = next_message(client);
    assert!(hear(client, now, &answer(DhcpKind::Offer, &discover)));
    let request = asked(&client.outputs.pop().expect("a request")).expect("a message");
    assert!(hear(client, now, &answer(DhcpKind::Ack, &request)));
    let first = client.outputs.pop();
    assert_eq!(first, Some(Output::Probe(OURS)));
    assert!(client.lease().is_none() && !core::mem::take(&mut client.has_changed));
    let bound = now + Duration::from_millis(900);
    assert_eq!(run(client, bound).len(), 2);
    assert!(client.lease().is_some() && core::mem::take(&mut client.has_changed));
    (bound, now)
}

fn seconds(from: Instant, to: Instant) -> u64 {
    to.since(from).as_millis() / 1000
}

#[test]
fn an_address_is_discovered_requested_probed_and_used() {
    let mut client = client();
    let (now, discover) = next_message(&mut client);
    assert!(now < Instant::from_millis(1000));
    let expected = Asked {
        kind: DISCOVER,
        xid: discover.xid,
        ours: Address::UNSPECIFIED,
        broadcast: true,
        about: None,
        server: None,
        from: Address::UNSPECIFIED,
        to: ALL_HOSTS,
    };
    assert_eq!(discover, expected);
    assert!(hear(&mut client, now, &answer(DhcpKind::Offer, &discover)));
    let request = asked(&client.outputs.pop().expect("a request"));
    let expected = Asked {
        kind: REQUEST,
        about: Some(OURS),
        server: Some(SERVER),
        ..expected
    };
    assert_eq!(request, Some(expected));
    let mut again = super::tests::client();
    bind(&mut again);
    let lease = Lease {
        address: OURS,
        prefix: 24,
        routers: vec![SERVER],
        names: Names {
            servers: vec![SERVER],
            domains: vec!["corp.example".to_owned()],
        },
        mtu: Some(1400),
    };
    assert_eq!(again.lease(), Some(&lease));
}

/// RFC 2131 section 4.1: 4 s, then twice as long up to 64 s, each changed by up to a second.
#[test]
fn silence_makes_the_client_ask_less_often() {
    let mut client = client();
    let sent = run(&mut client, Instant::from_millis(400_000));
    let gaps = sent
        .windows(2)
        .map(|pair| pair[1].0.since(pair[0].0).as_millis());
    let gaps: Vec<_> = gaps.collect();
    for (gap, expected) in gaps
        .iter()
        .zip([4000, 8000, 16_000, 32_000, 64_000, 64_000])
    {
        assert!(gap.abs_diff(expected) <= 1000, "{gaps:?}");
    }
    let xids = sent
        .iter()
        .map(|(_, output)| asked(output).map(|asked| asked.xid));
    assert_eq!(xids.collect::<std::collections::BTreeSet<_>>().len(), 1);
    // Opens wait for a minute.
    assert!(!client.is_awaited && client.has_changed);
    assert!(client.lease().is_none());
}

#[test]
fn a_request_without_an_answer_is_repeated_and_then_given_up() {
    let mut client = client();
    let (now, discover) = next_message(&mut client);
    assert!(hear(&mut client, now, &answer(DhcpKind::Offer, &discover)));
    client.outputs.clear();
    let sent = run(&mut client, now + Duration::from_secs(70));
    let kinds = sent
        .iter()
        .map(|(_, output)| asked(output).map(|asked| asked.kind));
    let expected = [REQUEST, REQUEST, REQUEST, DISCOVER].map(Some);
    assert!(kinds.take(4).eq(expected), "{sent:?}");
}

#[test]
fn a_lease_is_renewed_then_rebound_and_then_lost() {
    let mut client = client();
    let (_, began) = bind(&mut client);
    // At T1 it asks its server; up to a sixteenth earlier, so that hosts do not ask at once.
    let (now, renew) = next_message(&mut client);
    assert!((468..=500).contains(&seconds(began, now)), "{now:?}");
    let expected = Asked {
        kind: REQUEST,
        ours: OURS,
        broadcast: false,
        about: None,
        server: None,
        from: OURS,
        to: SERVER,
        ..renew.clone()
    };
    assert_eq!(renew, expected);
    // After half of the time to T2, but at least a minute.
    let mut at = Vec::new();
    let all = loop {
        let (now, asked) = next_message(&mut client);
        at.push(seconds(began, now));
        if asked.to == ALL_HOSTS {
            break asked;
        }
    };
    assert_eq!(at.pop(), Some(u64::from(TIMES[1])));
    assert!(at.windows(2).all(|pair| pair[1] - pair[0] >= 59), "{at:?}");
    assert_eq!((all.kind, all.ours, all.from), (REQUEST, OURS, OURS));
    assert_ne!(all.xid, renew.xid);
    // No server answers.
    let end = began + Duration::from_secs(TIMES[2].into());
    run(&mut client, end.before(Duration::from_millis(1)));
    assert!(client.lease().is_some());
    run(&mut client, end);
    assert!(client.lease().is_none() && client.has_changed);
    let (_, discover) = next_message(&mut client);
    assert_eq!(discover.kind, DISCOVER);
}

#[test]
fn a_renewed_lease_begins_with_its_request_and_changes_only_what_the_server_changes() {
    let mut client = client();
    bind(&mut client);
    let (now, renew) = next_message(&mut client);
    let late = now + Duration::from_secs(2);
    assert!(hear(&mut client, late, &answer(DhcpKind::Ack, &renew)));
    assert!(!client.has_changed);
    assert_eq!(client.lease().map(|lease| lease.address), Some(OURS));
    let (next, renew) = next_message(&mut client);
    assert!((468..=500).contains(&seconds(now, next)));
    let changed = DhcpAnswer {
        routers: vec![OTHER],
        ..answer(DhcpKind::Ack, &renew)
    };
    assert!(hear(&mut client, next, &changed));
    assert!(client.has_changed);
}

#[test]
fn a_lease_without_end_is_never_renewed_and_times_that_contradict_are_not_taken() {
    for (times, at) in [
        ([u32::MAX, 0, 0], None),
        ([1000, 900, 800], Some(468..=500)),
        ([1000, 100, 800], Some(93..=100)),
    ] {
        let mut client = client();
        let (now, discover) = next_message(&mut client);
        let [lease_s, renew_s, rebind_s] = times.map(Some);
        let said = |kind| DhcpAnswer {
            lease_s,
            renew_s,
            rebind_s,
            ..answer(kind, &discover)
        };
        assert!(hear(&mut client, now, &said(DhcpKind::Offer)));
        client.outputs.clear();
        assert!(hear(&mut client, now, &said(DhcpKind::Ack)));
        run(&mut client, now + SECOND);
        match at {
            None => assert_eq!(client.next, Instant::NEVER),
            Some(range) => assert!(range.contains(&seconds(now, client.next)), "{times:?}"),
        }
    }
}

#[test]
fn a_refusal_takes_the_address_away_and_the_client_waits_longer_each_time() {
    let mut client = client();
    bind(&mut client);
    let (now, renew) = next_message(&mut client);
    assert!(hear(&mut client, now, &answer(DhcpKind::Nak, &renew)));
    assert!(client.lease().is_none() && client.has_changed);
    let mut before = now;
    for least in [3, 7, 15, 31] {
        let (now, discover) = next_message(&mut client);
        assert!(seconds(before, now) >= least, "{least}");
        assert!(hear(&mut client, now, &answer(DhcpKind::Offer, &discover)));
        client.outputs.clear();
        assert!(hear(&mut client, now, &answer(DhcpKind::Nak, &discover)));
        before = now;
    }
}

/// RFC 5227 section 2.1.1, RFC 2131 section 4.4.4.
#[test]
fn an_address_that_another_host_has_is_declined() {
    let arp = |sender, sender_mac, target| wire::Arp {
        sender,
        sender_mac,
        target,
        request: true,
    };
    let probe = arp(Address::UNSPECIFIED, OTHER_MAC, OURS);
    for (heard, is_taken, is_conflict) in [
        (Some(arp(OURS, OTHER_MAC, OTHER)), false, true),
        (Some(probe), false, true),
        (Some(arp(OTHER, OTHER_MAC, OURS)), false, false),
        (Some(arp(Address::UNSPECIFIED, MAC, OURS)), false, false),
        (None, true, true),
    ] {
        let mut client = client();
        let (now, discover) = next_message(&mut client);
        assert!(hear(&mut client, now, &answer(DhcpKind::Offer, &discover)));
        client.outputs.clear();
        let ack = answer(DhcpKind::Ack, &discover);
        assert!(client.hear(now, &ack, |_| is_taken));
        if let Some(heard) = &heard {
            assert_eq!(client.outputs.pop(), Some(Output::Probe(OURS)));
            client.hear_arp(now, heard);
        }
        if !is_conflict {
            assert_eq!(client.outputs, []);
            continue;
        }
        let decline = asked(&client.outputs.pop().expect("a message")).expect("a message");
        let about = (decline.kind, decline.about, decline.server, decline.to);
        assert_eq!(about, (DECLINE, Some(OURS), Some(SERVER), ALL_HOSTS));
        assert_eq!(decline.ours, Address::UNSPECIFIED);
        let (next, discover) = next_message(&mut client);
        assert_eq!(discover.kind, DISCOVER);
        assert!(next >= now + AFTER_CONFLICT);
    }
}

#[test]
fn answers_to_other_questions_are_dropped() {
    let wrong = |good: &DhcpAnswer| {
        let with = |change: fn(&mut DhcpAnswer)| {
            let mut bad = good.clone();
            change(&mut bad);
            bad
        };
        vec![
            with(|bad| bad.xid ^= 1),
            with(|bad| bad.mac = OTHER_MAC),
            with(|bad| bad.server = None),
            with(|bad| bad.server = Some(Address::UNSPECIFIED)),
            with(|bad| bad.lease_s = Some(LEAST_LEASE_S - 1)),
            with(|bad| bad.yours = Address::ipv4(127, 0, 0, 1)),
        ]
    };
    let mut client = client();
    let (now, discover) = next_message(&mut client);
    let offer = answer(DhcpKind::Offer, &discover);
    let ack = answer(DhcpKind::Ack, &discover);
    for bad in wrong(&offer).iter().chain([&ack]) {
        assert!(!hear(&mut client, now, bad), "{bad:?}");
    }
    assert!(hear(&mut client, now, &offer));
    client.outputs.clear();
    let another = |said: &DhcpAnswer| DhcpAnswer {
        server: Some(OTHER),
        ..said.clone()
    };
    let nak = answer(DhcpKind::Nak, &discover);
    for bad in wrong(&ack)
        .iter()
        .chain([&offer, &another(&ack), &another(&nak)])
    {
        assert!(!hear(&mut client, now, bad), "{bad:?}");
    }
    assert!(hear(&mut client, now, &ack));
    client.outputs.clear();
    run(&mut client, now + SECOND);
    for bad in [&offer, &ack, &nak] {
        assert!(!hear(&mut client, now + SECOND, bad), "{bad:?}");
    }
    let (now, renew) = next_message(&mut client);
    for bad in [DhcpKind::Ack, DhcpKind::Nak].map(|kind| another(&answer(kind, &renew))) {
        assert!(!hear(&mut client, now, &bad), "{bad:?}");
    }
    let moved = DhcpAnswer {
        yours: OTHER,
        ..answer(DhcpKind::Ack, &renew)
    };
    assert!(!hear(&mut client, now, &moved));
    assert_eq!(client.outputs, []);
}

#[test]
fn a_lease_that_is_given_back_ends_and_another_is_asked_for_on_demand() {
    let mut client = client();
    let (now, _) = bind(&mut client);
    client.begin(now);
    assert!(client.lease().is_some());
    client.release(now);
    let release = asked(&client.outputs.pop().expect("a message")).expect("a message");
    let about = (release.kind, release.ours, release.server, release.to);
    assert_eq!(about, (RELEASE, OURS, Some(SERVER), SERVER));
    assert!(client.lease().is_none() && core::mem::take(&mut client.has_changed));
    assert_eq!(run(&mut client, now + Duration::from_secs(10_000)), []);
    client.begin(now);
    assert_eq!(next_message(&mut client).1.kind, DISCOVER);
}

#[test]
fn after_the_link_is_up_again_any_server_confirms_the_lease() {
    let mut client = client();
    let (now, _) = bind(&mut client);
    client.link_is_up(now);
    let (at, all) = next_message(&mut client);
    assert_eq!(
        (at, all.kind, all.ours, all.to),
        (now, REQUEST, OURS, ALL_HOSTS)
    );
    let nak = DhcpAnswer {
        server: Some(OTHER),
        ..answer(DhcpKind::Nak, &all)
    };
    assert!(hear(&mut client, now, &nak));
    assert!(client.lease().is_none());
}

#[test]
fn a_seed_repeats_all_numbers_and_another_seed_has_others() {
    let sent = |seed| {
        let mut client = DhcpClient::new(MAC, DhcpConfig::default(), Keys::new(seed), true);
        client.begin(Instant::ZERO);
        run(&mut client, Instant::from_millis(100_000))
    };
    assert_eq!(sent([1, 2]), sent([1, 2]));
    assert_ne!(sent([1, 2]), sent([1, 3]));
}

/// What the network does with an answer.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Lost,
    Good,
    Twice,
    /// It arrives after the next one.
    Late,
    /// This byte is changed so.
    Damaged(usize, u8),
    OtherXid,
    Refused,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        Just(Fate::Lost),
        Just(Fate::Good),
        Just(Fate::Twice),
        Just(Fate::Late),
        (0_usize..300, 1_u8..).prop_map(|(at, flip)| Fate::Damaged(at, flip)),
        Just(Fate::OtherXid),
        Just(Fate::Refused),
    ]
}

/// The bytes of a server's answer.
fn message(kind: u8, asked: &Asked) -> Vec<u8> {
    let mut bytes = vec![0; 240];
    bytes[..3].copy_from_slice(&[2, 1, 6]);
    bytes[4..8].copy_from_slice(&asked.xid.to_be_bytes());
    bytes[16..20].copy_from_slice(&OURS.v4_bits().to_be_bytes());
    bytes[28..34].copy_from_slice(&MAC);
    bytes[236..].copy_from_slice(&[0x63, 0x82, 0x53, 0x63]);
    bytes.extend([53, 1, kind, 54, 4, 10, 0, 0, 1, 51, 4, 0, 0, 3, 0xe8]);
    bytes.extend([1, 4, 255, 255, 255, 0, 3, 8, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend([
        6, 4, 10, 0, 0, 1, 15, 4, b'c', b'o', b'r', b'p', 26, 2, 5, 120, 255,
    ]);
    bytes
}

proptest! {
    /// Whatever the network does, the client keeps no lease beyond its end, sends few messages, and
    /// has a lease soon after the network becomes good.
    #[test]
    fn a_bad_network_only_delays_the_lease(fates in proptest::collection::vec(fate(), 0..60)) {
        let mut client = client();
        let (mut now, mut late) = (Instant::ZERO, None);
        let mut until = Instant::ZERO;
        let mut messages = 0;
        let good = core::iter::repeat_n(Fate::Good, 12);
        for fate in fates.into_iter().chain(good) {
            // Until the client sends a message.
            let heard = loop {
                now = client.next;
                if now == Instant::NEVER { break None; }
                client.on_time(now);
                prop_assert!(client.next > now);
                prop_assert!(client.outputs.len() <= 2);
                prop_assert!(client.lease().is_none() || now < until);
                let outputs = core::mem::take(&mut client.outputs);
                if let Some(heard) = outputs.iter().find_map(asked) {
                    messages += 1;
                    break Some(heard);
                }
            };
            let Some(mut heard) = heard else { break };
            let is_answered = |heard: &Asked| [DISCOVER, REQUEST].contains(&heard.kind);
            for _ in 0..2 {
                if !is_answered(&heard) { break; }
                let kind = match (heard.kind, fate) {
                    (DISCOVER, _) => 2,
                    (_, Fate::Refused) => 6,
                    _ => 5,
                };
                let mut bytes = message(kind, &heard);
                let mut arrive = Vec::new();
                match fate {
                    Fate::Lost => break,
                    Fate::Late => { late = Some(bytes); break; }
                    Fate::Damaged(at, flip) => {
                        let at = at % bytes.len();
                        bytes[at] ^= flip;
                        arrive.push(bytes);
                    }
                    Fate::OtherXid => { bytes[7] ^= 1; arrive.push(bytes); }
                    Fate::Twice => arrive.extend([bytes.clone(), bytes]),
                    Fate::Good | Fate::Refused => arrive.push(bytes),
                }
                arrive.extend(late.take());
                for bytes in arrive {
                    if let Some(said) = DhcpAnswer::parse(&bytes) {
                        client.hear(now, &said, |_| false);
                    }
                }
                until = until.max(now + Duration::from_secs(u32::MAX.into()));
                prop_assert!(client.outputs.len() <= 3);
                let outputs = core::mem::take(&mut client.outputs);
                match outputs.iter().find_map(asked) {
                    Some(next) => heard = next,
                    None => break,
                }
            }
        }
        run(&mut client, now + SECOND);
        let lease = client.lease();
        prop_assert!(lease.is_some(), "{:?} after {messages}", client.state);
        prop_assert!(lease.is_some_and(|lease| lease.routers.len() <= 4));
    }
}
