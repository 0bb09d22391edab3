//! What RFCs demand of an IPv6 host below TCP, as an outsider's suite asks for it: rows of packets
//! and answers.

use super::*;
use crate::ip::multicast::Member;
use crate::log::request::ConnId;

const ROUTER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const OTHER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 8];

fn v6(text: &str) -> Address {
    Address::from(text.parse::<Ipv6Addr>().expect("an address"))
}

/// A packet in a frame from `mac`.
fn packet(mac: [u8; 6], ends: (Address, Address), next: u8, hops: u8, payload: &[u8]) -> Vec<u8> {
    let dst_mac = match ends.1.is_multicast() {
        true => ndp::group_mac(ends.1),
        false => OWN_MAC,
    };
    let header = Ipv6Header {
        src_mac: mac,
        dst_mac,
        src: ends.0,
        dst: ends.1,
        next_header: next,
        hop_limit: hops,
        traffic_class: 0x40,
        label: 0x12345,
        payload_len: payload.len(),
    };
    if next == wire::ICMPV6 {
        return icmpv6::frame(&header, payload);
    }
    let mut frame = vec![0; wire::ipv6::IPV6_HEADERS];
    wire::ipv6::emit(&mut frame, &header);
    frame.extend(payload);
    frame
}

/// The owner delivers a frame. Returns the frames that it causes.
fn hears(host: &mut IpHost, now: Instant, frame: &[u8]) -> Vec<Vec<u8>> {
    let link = wire::link(frame).expect("a frame");
    if let Some((to_group, false)) = host.accept_v6(frame, link)
        && let Ok(packet) = wire::parse(frame)
        && let Left::Whole(whole) = host.packet(now, &packet, to_group, frame)
    {
        return hears(host, now, &whole);
    }
    turn(host, now);
    sent(host)
}

/// A host that knows the peer's link-layer address.
fn met() -> IpHost {
    let mut host = host();
    hears(&mut host, NOW, &question_of_peer(false));
    host
}

fn icmp(message: &[u8], ends: (Address, Address)) -> Vec<u8> {
    packet(PEER_MAC, ends, wire::ICMPV6, 64, message)[wire::ipv6::IPV6_HEADERS..].to_vec()
}

/// The type, code and pointer of each ICMPv6 message.
fn answers(frames: &[Vec<u8>]) -> Vec<(u8, u8, u32)> {
    let of = |frame: &Vec<u8>| {
        let message = &frame[wire::ipv6::IPV6_HEADERS..];
        let pointer = u32::from_be_bytes([message[4], message[5], message[6], message[7]]);
        let pointer = if message[0] == 4 { pointer } else { 0 };
        (message[0], message[1], pointer)
    };
    frames.iter().map(of).collect()
}

/// Reads hexadecimal digits; `-` is nothing.
fn hex(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks_exact(2);
    let byte = |pair| u8::from_str_radix(core::str::from_utf8(pair).expect("ASCII"), 16);
    pairs.map(|pair| byte(pair).expect("digits")).collect()
}

/// An answer in a row of a table: `-`, `echo`, `late`, or the code and pointer of a problem.
fn answer(word: &str) -> Option<(u8, u8, u32)> {
    match word.split_once('@') {
        Some((code, at)) => Some((
            4,
            code.parse().expect("a code"),
            at.parse().expect("a place"),
        )),
        None => match word {
            "echo" => Some((129, 0, 0)),
            "late" => Some((3, 1, 0)),
            _ => None,
        },
    }
}

/// The words of each row of a table; `|` separates the first column, which may have several.
fn rows(table: &str) -> impl Iterator<Item = (&str, Vec<&str>)> {
    let rows = table.lines().filter_map(|row| row.split_once('|'));
    rows.map(|(name, rest)| (name.trim(), rest.split_whitespace().collect()))
}

/// Extension headers in front of an echo request: the number of the first, its bytes, and the
/// answers if the request is for us and for a group (RFC 8200 sections 4.1 to 4.7, RFC 6946, RFC
/// 4443 section 3.4).
const HEADERS: &str = "
    no header              | 58  -                                 echo  echo
    padding                | 60  3a00010400000000                  echo  echo
    option 00              | 60  3a001e0400000000                  echo  echo
    option 01              | 60  3a005e0400000000                  -     -
    option 10              | 60  3a009e0400000000                  2@42  2@42
    option 11              | 60  3a00de0400000000                  2@42  -
    hop by hop 00          | 0   3a001e0400000000                  echo  echo
    hop by hop 01          | 0   3a005e0400000000                  -     -
    hop by hop 10          | 0   3a0001009e020000                  2@44  2@44
    hop by hop 11          | 0   3a00de0400000000                  2@42  -
    hop by hop, second     | 60  00000104000000003a00010400000000  1@40  -
    unknown header         | 150 -                                 1@6   -
    unknown header, second | 60  9600010400000000                  1@40  -
    no next header         | 60  3b00010400000000                  -     -
    route 0, no segments   | 43  3a00000000000000                  echo  echo
    route 0                | 43  3a00000100000000                  0@42  -
    unknown route          | 43  3a00210100000000                  0@42  -
    atomic fragment        | 44  3a09000601020304                  echo  echo
";

/// An error may have the same headers: it is never reported (RFC 4443 section 2.4 (e.1)).
#[test]
fn headers_and_options_have_the_answers_that_they_demand() {
    let (own, peer) = ends(false);
    for (name, row) in rows(HEADERS) {
        let [next, headers, to_us, to_group] = row[..] else {
            panic!("{name}")
        };
        let (next, headers) = (next.parse().expect("a number"), hex(headers));
        for (to, expected) in [(own, to_us), (ndp::ALL_NODES, to_group)] {
            let hears = |message: &[u8]| {
                let payload = [&headers[..], &icmp(message, (peer, to))].concat();
                // The hop limit does not matter to the last node.
                hears(
                    &mut met(),
                    NOW,
                    &packet(PEER_MAC, (peer, to), next, 0, &payload),
                )
            };
            let sent = hears(&[128, 0, 0, 0, 0, 1, 0, 1, 5]);
            assert_eq!(
                answers(&sent),
                Vec::from_iter(answer(expected)),
                "{name}, to {to}"
            );
            assert!(
                sent.iter()
                    .all(|frame| wire::ends(frame) == Some((own, peer)))
            );
            if !name.starts_with("unknown header") {
                let sent = hears(&[1, 0, 0, 0, 0, 0, 0, 0]);
                assert_eq!(answers(&sent), [], "{name}, an error");
            }
        }
    }
}

/// Fragments of an ICMPv6 message: offset, whether more follow, next header, and length; then the
/// answer, and the one a minute later (RFC 8200 section 4.5, RFC 5722, RFC 7112).
const FRAGMENTS: &str = "
    in order              | echo 0+58+8,8.58.9          echo  -
    in reverse            | echo 8.58.9,0+58+8          echo  -
    the first has the type| echo 8.17.9,0+58+8          echo  -
    a copy                | echo 0+58+8,0+58+8,8.58.9   echo  -
    only the first        | echo 0+58+8                 -     late
    only the second       | echo 8.58.9                 -     -
    an error              | error 0+58+8                -     -
    an overlap            | echo 0+58+16,8.58.9         -     -
    no multiple of 8      | echo 0+58+12                0@4   -
    too long together     | echo 65528.58.8             0@42  -
    half a chain          | chain 0+60+8                3@0   -
    half a header of TCP  | echo 0+6+8                  3@0   -
    a header of UDP       | echo 0+17+8                 -     late
";

#[test]
fn fragments_have_the_answers_that_they_demand() {
    let (own, peer) = ends(false);
    let echo = [128, 0, 0, 0, 0, 1, 0, 1, 5, 6, 7, 8, 9, 10, 11, 12, 13];
    for (name, row) in rows(FRAGMENTS) {
        let [what, fragments, expected, later] = row[..] else {
            panic!("{name}")
        };
        let message = match what {
            "echo" => icmp(&echo, (peer, own)),
            "error" => icmp(&[1, 0, 0, 0, 0, 0, 0, 0], (peer, own)),
            _ => vec![58, 1, 1, 12, 0, 0, 0, 0],
        };
        let mut host = met();
        let mut sent = Vec::new();
        for fragment in fragments.split(',') {
            let more = fragment.contains('+');
            let mut numbers = fragment.split(['+', '.']);
            let mut number = || -> u16 { numbers.next().expect("3").parse().expect("a number") };
            let (offset, next, len) = (number(), number() as u8, usize::from(number()));
            let from = usize::from(offset) % 65_528;
            let [a, b] = (offset | u16::from(more)).to_be_bytes();
            let header = [next, 0, a, b, 0, 0, 0, 7];
            let payload = [&header[..], &message[from..from + len]].concat();
            let frame = packet(PEER_MAC, (peer, own), 44, 64, &payload);
            sent.extend(hears(&mut host, NOW, &frame));
        }
        assert_eq!(answers(&sent), Vec::from_iter(answer(expected)), "{name}");
        host.on_time(NOW + Duration::from_secs(60));
        let sent = self::sent(&mut host);
        assert_eq!(
            answers(&sent),
            Vec::from_iter(answer(later)),
            "{name}, later"
        );
    }
}

/// Echo requests: source, destination, and the answer. Frames to us alone may carry packets to
/// groups (RFC 6085 section 3). The unspecified address is no destination, and groups of scope 0
/// and 1 are not on any link, even if a socket joins them (RFC 4291 sections 2.5.2 and 2.7).
const ENDS: &str = "
    |  2001:db8::2  2001:db8::1        echo
    |  2001:db8::2  ff02::1            echo
    |  2001:db8::2  ff02::1:ff00:1     echo
    |  2001:db8::2  ff02::1:ff00:2     -
    |  2001:db8::2  ff0e::7            echo
    |  2001:db8::2  ff01::7            -
    |  2001:db8::2  ff00::7            -
    |  2001:db8::2  ff02::2            -
    |  2001:db8::2  ::1                -
    |  2001:db8::2  2001:db8::9        -
    |  ::           ff02::1            -
    |  ::           2001:db8::1        -
    |  ::1          2001:db8::1        -
    |  ff0e::7      2001:db8::1        -
";

#[test]
fn groups_are_heard_in_frames_to_us_and_nobody_is_answered() {
    for (_, row) in rows(ENDS) {
        let ends = (v6(row[0]), v6(row[1]));
        let message = icmp(&[128, 0, 0, 0, 0, 1, 0, 1, 5], ends);
        let mut frame = packet(PEER_MAC, ends, wire::ICMPV6, 64, &message);
        for to_us in [false, true] {
            let mut host = met();
            hears(&mut host, NOW, &advertisement_of_router(1800, 0, &[]));
            for group in ["ff0e::7", "ff01::7", "ff00::7"] {
                let member = Member {
                    socket: ConnId::NONE,
                    group: v6(group),
                    source: None,
                };
                host.groups.change(member, true, NOW);
            }
            let sent = hears(&mut host, NOW, &frame);
            assert_eq!(
                answers(&sent),
                Vec::from_iter(answer(row[2])),
                "{row:?}, {to_us}"
            );
            frame[..6].copy_from_slice(&OWN_MAC);
        }
    }
}

/// The router at fe80::9 advertises itself, with a RetransTimer in ms and options.
fn advertisement_of_router(lifetime: u16, retransmit_ms: u32, options: &[u8]) -> Vec<u8> {
    router_says(("fe80::9", ROUTER_MAC, 0), lifetime, retransmit_ms, options)
}

fn router_says(
    (from, mac, flags): (&str, [u8; 6], u8),
    lifetime: u16,
    retransmit_ms: u32,
    options: &[u8],
) -> Vec<u8> {
    let [a, b] = lifetime.to_be_bytes();
    let mut message = vec![134, 0, 0, 0, 64, flags, a, b, 0, 0, 0, 0];
    message.extend(retransmit_ms.to_be_bytes());
    message.extend(options);
    packet(mac, (v6(from), ndp::ALL_NODES), wire::ICMPV6, 255, &message)
}

/// Messages: source, destination, hop limit, the first eight bytes, target, options, and whether
/// they count (RFC 4861 sections 7.1.1 and 7.1.2, RFC 2464 section 6). S and T are the options with
/// the link-layer address of the source or target.
const VALIDITY: &str = "
    it asks             | peer group 255 8700000000000000 own S 1
    unknown option      | peer group 255 87000000ffffffff own 0e01000000000000S 1
    it was forwarded    | peer group 254 8700000000000000 own S 0
    code                | peer group 255 8701000000000000 own S 0
    for a group         | peer group 255 8700000000000000 ff02::1 S 0
    option of no length | peer group 255 8700000000000000 own 0100020000000002 0
    option is cut       | peer group 255 8700000000000000 own 0102020000000002 0
    option is too long  | peer group 255 8700000000000000 own 01020200000000020000000000000000 0
    part of an option   | peer group 255 8700000000000000 own 01010200 0
    source and option   | ::          group 255 8700000000000000 own S 0
    probe to all        | ::          ff02::1        255 8700000000000000 own - 0
    it answers          | peer own 255 8800000060000000 peer T 1
    answer to all       | peer ff02::1        255 8800000060000000 peer T 0
    it announces        | peer ff02::1        255 8800000020000000 peer T 1
    answer about a group| peer own 255 8800000060000000 ff02::1 T 0
";

#[test]
fn invalid_messages_of_neighbours_are_discarded() {
    let (own, peer) = ends(false);
    let address = |word| match word {
        "own" => own,
        "peer" => peer,
        "group" => ndp::solicited_node(own),
        other => v6(other),
    };
    for (name, row) in rows(VALIDITY) {
        let mut host = host();
        host.send_frames(NOW, Cause::Ours, peer, vec![vec![0; 60]]);
        sent(&mut host);
        let target = address(row[4]).bytes();
        let options = row[5]
            .replace('S', "0101020000000002")
            .replace('T', "0201020000000002");
        let message = [&hex(row[3])[..], &target, &hex(&options)].concat();
        let hops = row[2].parse().expect("a number");
        let ends = (address(row[0]), address(row[1]));
        let answers = hears(
            &mut host,
            NOW,
            &packet(PEER_MAC, ends, wire::ICMPV6, hops, &message),
        );
        let counts = host.neighbors.is_known(peer);
        assert_eq!(
            (counts, !answers.is_empty()),
            (row[6] == "1", row[6] == "1"),
            "{name}"
        );
    }
}

/// RFC 4861 section 7.2.5: every advertisement in every state of the cache. An advertisement that
/// is ignored does not change the list of routers, either.
#[test]
fn an_advertisement_changes_the_cache_as_its_flags_say() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Cached {
        Nothing,
        Incomplete,
        Reachable,
        Stale,
    }
    use Cached::{Incomplete, Nothing, Reachable, Stale};
    let (router, own) = (v6("fe80::9"), ends(false).0);
    let far = v6("2001:db8:77::1");
    let says = |flags: u8, mac: Option<[u8; 6]>| {
        let mut message = vec![136, 0, 0, 0, flags, 0, 0, 0];
        message.extend(router.bytes());
        if let Some([a, b, c, d, e, f]) = mac {
            message.extend([2, 1, a, b, c, d, e, f]);
        }
        packet(ROUTER_MAC, (router, own), wire::ICMPV6, 255, &message)
    };
    for state in [Nothing, Incomplete, Reachable, Stale] {
        for flags in 0..8_u8 {
            for mac in [None, Some(ROUTER_MAC), Some(OTHER_MAC)] {
                let (is_router, solicited, overrides) =
                    (flags & 4 > 0, flags & 2 > 0, flags & 1 > 0);
                let mut host = host();
                let source = [1, 1, 2, 0, 0, 0, 0, 9];
                let option = if state == Stale { &source[..] } else { &[] };
                hears(&mut host, NOW, &advertisement_of_router(1800, 0, option));
                if matches!(state, Incomplete | Reachable) {
                    host.send_frames(NOW, Cause::Ours, far, vec![vec![0; 60]]);
                }
                if state == Reachable {
                    hears(&mut host, NOW, &says(0xe0, Some(ROUTER_MAC)));
                }
                let now = NOW + Duration::from_millis(10);
                hears(&mut host, now, &says(flags << 5, mac));
                let known = matches!(state, Reachable | Stale);
                let differs = known && mac == Some(OTHER_MAC);
                let ignored = match state {
                    Nothing => true,
                    Incomplete => mac.is_none(),
                    _ => differs && !overrides,
                };
                let before = known.then_some(ROUTER_MAC);
                let mac_after = if ignored { before } else { mac.or(before) };
                let reachable = match ignored {
                    true => state == Reachable && !differs,
                    false => solicited || state == Reachable && !differs,
                };
                let name =
                    format!("{state:?}, R {is_router}, S {solicited}, O {overrides}, {mac:?}");
                let is_default = host.site.v6.routers == [router];
                assert_eq!(is_default, ignored || is_router, "{name}");
                assert_eq!(
                    host.neighbors.lookup(router, now).map(|mac| mac.0),
                    mac_after,
                    "{name}"
                );
                if mac_after.is_some() {
                    let is_reachable = host.neighbors.next_deadline() == Instant::NEVER;
                    assert_eq!(is_reachable, reachable, "{name}");
                }
            }
        }
    }
}

/// RFC 4861 section 6.3.4: RetransTimer is the time between the solicitations of a neighbour
/// (sections 7.2.2 and 7.3.3), too.
#[test]
fn neighbours_are_asked_as_often_as_routers_say() {
    let peer = ends(false).1;
    for (said_ms, expected_ms) in [(0, 1_000), (5_000, 5_000), (1, 100), (u32::MAX, 10_000)] {
        let mut host = host();
        hears(&mut host, NOW, &advertisement_of_router(1800, said_ms, &[]));
        host.send_frames(NOW, Cause::Ours, peer, vec![vec![0; 60]]);
        for _ in 0..2 {
            assert_eq!(sent(&mut host).len(), 1);
            let next = host.neighbors.next_deadline();
            host.ask_again(next);
        }
        let expected = NOW + Duration::from_millis(3 * expected_ms);
        assert_eq!(host.neighbors.next_deadline(), expected, "{said_ms}");
        // A known one is probed by itself.
        let mut host = met();
        hears(&mut host, NOW, &advertisement_of_router(1800, said_ms, &[]));
        host.neighbors.lookup(peer, NOW);
        let first = host.neighbors.next_deadline();
        host.ask_again(first);
        let expected = first + Duration::from_millis(expected_ms);
        assert_eq!(host.neighbors.next_deadline(), expected, "{said_ms}");
    }
}

/// Advertisements: the router, its flags (08: high, 18: low, 10: reserved preference), its lifetime
/// and an option, where P begins 2001:db8:77::/48; then the router for 2001:db8:77::1 (RFC 4191
/// sections 2 and 3, hosts of type C).
const PREFERENCES: &str = "
    the first              | 1,00,60,  2,00,60,                                  1
    a better one           | 1,00,60,  2,08,60,                                  2
    a worse one            | 1,18,60,  2,00,60,                                  2
    reserved is medium     | 1,10,60,  2,00,60,                                  1
    it changes             | 1,08,60,  2,00,60,  1,18,60,                        2
    a route                | 1,08,60,  2,00,60,18023000000000feP0000  2
    of no default router   | 1,08,60,  2,00,0,18023000000000feP0000   2
    a better route         | 1,00,60,18023000000000feP0000  2,00,60,18023008000000feP0000  2
    a reserved preference  | 1,00,60,  2,00,60,18023010000000feP0000  1
    a route that ends| 1,00,60,  2,00,60,18023000000000feP0000  2,00,60,1802300000000000P0000  1
    a route everywhere     | 1,00,60,  2,00,0,18010008000000fe                   2
    a longer option        | 1,00,60,  2,00,60,18033000000000feP00000000000000000000  2
    a route to elsewhere   | 1,00,60,  2,00,60,18023000000000fe20010db800780000  1
    it does not fit        | 1,00,60,  2,00,60,18013000000000fe                  1
    a link-local route     | 1,00,60,  2,00,60,18020a00000000fefe80000000000000  1
";

#[test]
fn routers_are_chosen_by_preference_and_route() {
    for (name, row) in rows(PREFERENCES) {
        let (expected, said) = row.split_last().expect("a router");
        let mut host = host();
        for (at, said) in (0..).zip(said) {
            let said: Vec<&str> = said.split(',').collect();
            let [router, flags, lifetime, option] = said[..] else {
                panic!("{name}")
            };
            let from = format!("fe80::{router}");
            let lifetime = lifetime.parse().expect("seconds");
            let from = (&from[..], ROUTER_MAC, hex(flags)[0]);
            let frame = router_says(
                from,
                lifetime,
                0,
                &hex(&option.replace('P', "20010db80077")),
            );
            hears(&mut host, NOW + Duration::from_millis(at), &frame);
        }
        let hop = host.site.next_hop(v6("2001:db8:77::1"));
        assert_eq!(hop, Some(v6(&format!("fe80::{expected}"))), "{name}");
    }
}

/// RFC 3810 sections 5.1.14 and 8.1, RFC 2710 section 3.
#[test]
fn queries_of_routers_have_24_or_at_least_28_bytes() {
    let router = v6("fe80::9");
    for (len, expected) in [(23, 0), (24, 1), (25, 0), (27, 0), (28, 1), (44, 1)] {
        let mut message = vec![0; len];
        message[0] = 130;
        let message = icmp(&message, (router, ndp::ALL_NODES));
        let alert = [&[58, 0, 5, 2, 0, 0, 1, 0][..], &message].concat();
        let mut host = host();
        turn(&mut host, NOW + Duration::from_secs(2));
        sent(&mut host);
        let frame = packet(ROUTER_MAC, (router, ndp::ALL_NODES), 0, 1, &alert);
        let later = NOW + Duration::from_secs(3);
        let mut reports = hears(&mut host, later, &frame);
        turn(&mut host, later + Duration::from_secs(1));
        reports.extend(sent(&mut host));
        // Others solicit routers.
        reports.retain(|frame| frame[20] == 0);
        assert_eq!(reports.len().min(1), expected, "{len}");
    }
}

/// All hosts that share an address see messages of neighbours and fragments: the first reports.
#[test]
fn one_of_several_hosts_reports_a_problem() {
    let (own, peer) = ends(false);
    let options = |next| [next, 0, 0xde, 4, 0, 0, 0, 0];
    let datagram = [0, 5, 0, 9, 0, 8, 0, 0];
    let fragment = [17, 0, 0, 1, 0, 0, 0, 7];
    for (name, payload, seen_by_all) in [
        ("a datagram", [&options(17)[..], &datagram].concat(), false),
        (
            "a message",
            [
                &options(58)[..],
                &icmp(&[135, 0, 0, 0, 0, 0, 0, 0], (peer, own)),
            ]
            .concat(),
            true,
        ),
        (
            "a fragment",
            [&options(44)[..], &fragment, &datagram].concat(),
            true,
        ),
    ] {
        for is_first in [true, false] {
            let mut host = met();
            host.share(is_first, Identifications::default());
            let frame = packet(PEER_MAC, (peer, own), 60, 64, &payload);
            let reports = hears(&mut host, NOW, &frame).len();
            assert_eq!(
                reports,
                usize::from(is_first || !seen_by_all),
                "{name}, {is_first}"
            );
        }
    }
}
