//! A host that is driven by hand: a frame goes in, frames come out.

mod conformance;

use core::net::Ipv6Addr;

use super::*;
use crate::ip::v6::Ipv6Config;
use crate::packet::ipv6::Ipv6Header;
use crate::packet::ndp::{self, NdpMessage};
use crate::packet::{IcmpError, Packet, UDP_HEADER, UdpHeaders, icmpv6};
use crate::time::Duration;

const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const NOW: Instant = Instant::from_nanos(1_000_000_000);

/// Our address, and a neighbour's, of one family.
fn ends(is_v4: bool) -> (Address, Address) {
    let v6 = |text: &str| Address::from(text.parse::<Ipv6Addr>().expect("an address"));
    match is_v4 {
        true => (Address::ipv4(10, 0, 0, 1), Address::ipv4(10, 0, 0, 2)),
        false => (v6("2001:db8::1"), v6("2001:db8::2")),
    }
}

/// A host with an address of each family.
fn host() -> IpHost {
    let mut host = IpHost::new(IpHostConfig {
        fixed_mac: None,
        mac: OWN_MAC,
        site: Site::new(ends(true).0, 24, None, &[]),
        keys: Keys::new([1, 2]),
        mtu: 1500,
        error_rate: Rate {
            total: 3,
            per_destination: 2,
        },
        reassembly: ReassemblyLimits::default(),
        send_buffer: 1 << 16,
    });
    let config = Ipv6Config::default()
        .address("2001:db8::1".parse().expect("an address"), 64)
        .duplicate_probes(0);
    let place = host.enable_v6(config, &[]).expect("it keeps its link");
    host.take_place(1, || place).expect("another place");
    turn(&mut host, NOW);
    sent(&mut host);
    host
}

/// What its owner does when time has passed.
fn turn(host: &mut IpHost, now: Instant) {
    let actions = host.link_on_time(now).expect("it keeps its link");
    if let Some(place) = host.changed_place(now, true) {
        host.take_place(now.as_nanos(), || place);
    }
    for action in actions {
        host.act(action);
    }
}

fn sent(host: &mut IpHost) -> Vec<Vec<u8>> {
    core::iter::from_fn(|| host.take_frame()).collect()
}

fn news(host: &mut IpHost) -> Vec<News> {
    core::iter::from_fn(|| host.take_news()).collect()
}

/// A neighbour's frame arrives.
fn arrives(host: &mut IpHost, now: Instant, frame: &[u8]) -> Left {
    let to_all = wire::link(frame).is_some_and(|(_, dst)| dst[0] & 1 != 0);
    match wire::parse(frame).expect("a packet") {
        Packet::Arp(arp) => {
            host.arp(now, &arp);
            Left::Nothing
        }
        packet => host.packet(now, &packet, to_all, frame),
    }
}

/// A request of the neighbour for our address, which also names its address.
fn question_of_peer(is_v4: bool) -> Vec<u8> {
    let (own, peer) = ends(is_v4);
    match is_v4 {
        true => wire::arp_frame(PEER_MAC, peer, None, own),
        false => ndp::solicitation(PEER_MAC, peer, None, own),
    }
}

#[test]
fn who_asks_for_our_address_is_answered_and_known() {
    for is_v4 in [true, false] {
        let (own, peer) = ends(is_v4);
        let mut host = host();
        arrives(&mut host, NOW, &question_of_peer(is_v4));
        let [reply] = &sent(&mut host)[..] else {
            panic!("one answer")
        };
        assert_eq!(wire::link(reply), Some((OWN_MAC, PEER_MAC)));
        match is_v4 {
            true => {
                let Ok(Packet::Arp(arp)) = wire::parse(reply) else {
                    panic!("no ARP")
                };
                let ends = (arp.sender, arp.sender_mac, arp.target);
                assert_eq!((arp.request, ends), (false, (own, OWN_MAC, peer)));
            }
            false => assert_eq!(
                ndp::parse(reply),
                Some(NdpMessage::Advertisement {
                    target: own,
                    mac: Some(OWN_MAC),
                    solicited: true,
                    overrides: true,
                    router: false,
                })
            ),
        }
        assert_eq!(news(&mut host), [News::Heard(peer)]);
        assert!(host.neighbors.is_known(peer));
        // Of several hosts with this address, the first answers.
        host.share(false, Identifications::default());
        arrives(&mut host, NOW, &question_of_peer(is_v4));
        assert_eq!(sent(&mut host), Vec::<Vec<u8>>::new());
    }
}

/// Only with both options; and neither to a host that probes or announces the address, nor for one
/// that no host may have.
#[test]
fn who_asks_for_a_foreign_address_is_answered_only_as_a_proxy() {
    let nowhere = |is_v4| match is_v4 {
        true => Address::ipv4(0, 0, 0, 0),
        false => Address::v6([0; 16]),
    };
    let far = |text: &str| Address::from(text.parse::<core::net::IpAddr>().expect("an address"));
    let asks = |source: Address, target| match source.is_v4() {
        true => wire::arp_frame(PEER_MAC, source, None, target),
        false => ndp::solicitation(PEER_MAC, source, None, target),
    };
    for (takes, answers) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut host = host();
        (host.site.takes_any, host.site.answers_any) = (takes, answers);
        for (is_v4, target) in [(true, far("203.0.113.9")), (false, far("2001:db8:9::9"))] {
            let (_, peer) = ends(is_v4);
            arrives(&mut host, NOW, &asks(peer, target));
            let replies = sent(&mut host);
            assert_eq!(replies.len(), usize::from(takes && answers), "{target:?}");
            for reply in replies {
                assert_eq!(wire::link(&reply), Some((OWN_MAC, PEER_MAC)));
                if let Some(said) = ndp::parse(&reply) {
                    let NdpMessage::Advertisement { overrides, .. } = said else {
                        panic!("{said:?}")
                    };
                    assert!(!overrides, "the owner's answer is preferred");
                }
            }
            arrives(&mut host, NOW, &asks(nowhere(is_v4), target));
            arrives(&mut host, NOW, &asks(target, target));
            for target in ["224.0.0.1", "10.0.0.255", "127.0.0.1", "0.0.0.0", "fe80::9"] {
                let target = far(target);
                if target.is_v4() == is_v4 {
                    arrives(&mut host, NOW, &asks(peer, target));
                }
            }
            assert_eq!(sent(&mut host), Vec::<Vec<u8>>::new());
        }
    }
}

#[test]
fn a_neighbour_that_asked_us_is_stale_and_is_probed_by_itself_when_it_is_needed() {
    let (_, peer) = ends(false);
    let mut host = host();
    arrives(&mut host, NOW, &question_of_peer(false));
    sent(&mut host);
    let delay = Duration::from_secs(5);
    host.neighbors.lookup(peer, NOW);
    host.ask_again((NOW + delay).before(Duration::from_nanos(1)));
    assert_eq!(sent(&mut host), Vec::<Vec<u8>>::new());
    host.ask_again(NOW + delay);
    let [probe] = &sent(&mut host)[..] else {
        panic!("one probe")
    };
    assert_eq!(wire::link(probe), Some((OWN_MAC, PEER_MAC)));
    // It never answers.
    let mut silent = Vec::new();
    for second in 1..=4 {
        silent.extend(
            host.ask_again(NOW + delay + Duration::from_secs(second))
                .silent,
        );
    }
    assert_eq!(silent, [peer]);
    assert!(news(&mut host).contains(&News::LinkChanges));
}

#[test]
fn an_echo_request_is_answered_from_the_address_that_it_was_sent_to() {
    for is_v4 in [true, false] {
        let (own, peer) = ends(is_v4);
        let mut host = host();
        arrives(&mut host, NOW, &question_of_peer(is_v4));
        sent(&mut host);
        let ask = |to| wire::echo_request((PEER_MAC, peer), (to, 64), 1, (7, 8), b"text");
        arrives(&mut host, NOW, &ask(own));
        let [reply] = &sent(&mut host)[..] else {
            panic!("one reply")
        };
        let echo = wire::echo_of(reply).expect("an echo reply");
        assert_eq!((echo.from, echo.ident, echo.sequence), (own, 7, 8));
        assert_eq!(
            (echo.data, wire::ends(reply)),
            (&b"text"[..], Some((own, peer)))
        );
        // Another host's is not.
        arrives(&mut host, NOW, &ask(peer));
        assert_eq!((sent(&mut host).len(), host.stats.not_ours), (0, 1));
    }
}

#[test]
fn errors_are_limited_for_each_sender() {
    let (own, peer) = ends(false);
    let mut host = host();
    arrives(&mut host, NOW, &question_of_peer(false));
    sent(&mut host);
    let header = Ipv6Header {
        src_mac: PEER_MAC,
        dst_mac: OWN_MAC,
        src: peer,
        dst: own,
        next_header: 17,
        hop_limit: 64,
        traffic_class: 0,
        label: 0,
        payload_len: UDP_HEADER,
    };
    let mut datagram = vec![0; wire::ipv6::IPV6_HEADERS + UDP_HEADER];
    wire::ipv6::emit(&mut datagram, &header);
    let udp = UdpHeaders {
        src_port: 1,
        dst_port: 2,
        payload_len: 0,
    };
    wire::emit_udp(&mut datagram[wire::ipv6::IPV6_HEADERS..], &udp);
    for _ in 0..5 {
        host.report(NOW, &datagram, IcmpError::PortUnreachable);
    }
    let errors = sent(&mut host);
    assert_eq!((errors.len(), host.stats.reports_limited), (2, 3));
    assert_eq!(wire::ends(&errors[0]), Some((own, peer)));
}

#[test]
fn a_router_advertises_a_prefix_and_we_have_an_address_in_it() {
    let mut host = host();
    let router = Address::from("fe80::9".parse::<Ipv6Addr>().expect("an address"));
    let prefix = Address::from("2001:db8:5::".parse::<Ipv6Addr>().expect("an address"));
    // Lifetime 1800 s; the prefix is on link and for addresses, valid and preferred for an hour.
    let mut message = vec![134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    message.extend([3, 4, 64, 0xc0, 0, 0, 14, 16, 0, 0, 14, 16, 0, 0, 0, 0]);
    message.extend(prefix.bytes());
    let header = Ipv6Header {
        src_mac: PEER_MAC,
        dst_mac: ndp::group_mac(ndp::ALL_NODES),
        src: router,
        dst: ndp::ALL_NODES,
        next_header: wire::ICMPV6,
        hop_limit: 255,
        traffic_class: 0,
        label: 0,
        payload_len: 0,
    };
    arrives(&mut host, NOW, &icmpv6::frame(&header, &message));
    assert_eq!(news(&mut host), [News::LinkTold]);
    turn(&mut host, NOW);
    let own: Vec<Address> = host.site.v6.all();
    let is_new = |own: &&Address| own.bytes()[..8] == prefix.bytes()[..8];
    assert_eq!(own.iter().filter(is_new).count(), 1, "{own:?}");
    let far = Address::from("2001:db8:77::1".parse::<Ipv6Addr>().expect("an address"));
    assert_eq!(host.site.next_hop(far), Some(router));
    assert_eq!(host.site.v6.hop_limit, Some(64));
}
