//! Addresses of DHCP, and servers of names that links have, in stacks that are driven by hand.

#![cfg(feature = "testkit")]

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use dominoes_drivers::memory::MemoryConfig;
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::Setup;
use dominoes_netstack::{Interface, Ipv6Config, Resolver, SocketError, Sockets};
use dominoes_testkit::hand::{Scripted, Shape};
use dominoes_testkit::packet::{self, Path};

const MAC: [u8; 6] = [2, 0, 10, 0, 0, 50];
const OURS: [u8; 4] = [10, 0, 0, 50];
const SERVER: [u8; 4] = [10, 0, 0, 1];
const FAR: [u8; 4] = [192, 0, 2, 7];
const LEASE_S: u64 = 1000;

fn stack(shape: Shape, interface: Interface) -> Scripted {
    let mut setup = Setup::new([10, 0, 0, 9].into(), 24, [5, 7]);
    setup.interface = interface;
    let config = MemoryConfig::default().macs(MAC, MAC);
    Scripted::over(shape, setup, config)
}

/// A message of the client, if the frame has one: its bytes from the header of DHCP on, and its
/// type.
fn asked(frame: &[u8]) -> Option<(Vec<u8>, u8)> {
    let is_dhcp = packet::protocol(frame) == Some(17) && frame[36..38] == [0, 67];
    let bytes = is_dhcp.then(|| frame[42..].to_vec())?;
    assert_eq!(bytes[240..242], [53, 1]);
    let kind = bytes[242];
    Some((bytes, kind))
}

/// The server's answer of this kind: to all hosts, or to the client's address.
fn answer(kind: u8, asked: &[u8], to: [u8; 4], ours: [u8; 4]) -> Vec<u8> {
    let mut bytes = asked[..240].to_vec();
    bytes[0] = 2;
    bytes[16..20].copy_from_slice(&ours);
    bytes.extend([53, 1, kind, 54, 4, 10, 0, 0, 1, 51, 4, 0, 0, 3, 0xe8]);
    bytes.extend([1, 4, 255, 255, 255, 0, 3, 4, 10, 0, 0, 1, 6, 4, 10, 0, 0, 1]);
    bytes.extend([15, 4, b'c', b'o', b'r', b'p', 26, 2, 5, 120, 255]);
    let path = Path::new(SERVER, to);
    let path = match to {
        OURS => path.to_mac(MAC),
        _ => path.to_mac([0xff; 6]),
    };
    packet::udp(path, (67, 68), &bytes)
}

/// Lets time pass until the client asks; returns the message, and its type.
fn next_asked(stack: &mut Scripted) -> (Vec<u8>, u8) {
    for _ in 0..10_000 {
        let sent = stack.turn();
        if let Some(asked) = sent.iter().find_map(|frame| asked(frame)) {
            return asked;
        }
        stack.now = stack.next_deadline().max(stack.now);
    }
    panic!("it asks no more");
}

/// Takes the stack to its lease.
fn lease(stack: &mut Scripted, ours: [u8; 4]) {
    let (discover, kind) = next_asked(stack);
    assert_eq!(kind, 1);
    let sent = stack.receive(answer(2, &discover, [255; 4], ours));
    let (request, kind) = sent
        .iter()
        .find_map(|frame| asked(frame))
        .expect("a request");
    assert_eq!(kind, 3);
    let mut sent = stack.receive(answer(5, &request, [255; 4], ours));
    assert_eq!(stack.sockets().interfaces()[0].addresses, [] as [IpAddr; 0]);
    sent.extend(stack.pass(Duration::from_secs(1)));
    // Probes from no address.
    let probes = sent
        .iter()
        .filter(|frame| packet::asked(frame) == Some(ours));
    let probes = probes.filter(|frame| frame[28..32] == [0; 4]).count();
    assert_eq!(probes, 3);
    assert_eq!(
        stack.sockets().interfaces()[0].addresses,
        [IpAddr::from(ours)]
    );
}

/// The server answers ARP.
fn answer_arp(stack: &mut Scripted, sent: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let asks = sent
        .iter()
        .any(|frame| packet::asked(frame) == Some(SERVER));
    assert!(asks, "it asks for its gateway");
    stack.receive(packet::arp_reply(Path::new(SERVER, OURS).to_mac(MAC)))
}

#[test]
fn opens_wait_for_the_lease_and_its_gateway_leads_everywhere() {
    for shape in Shape::all() {
        let mut stack = stack(shape, Interface::new("dhcp"));
        let sockets = stack.sockets();
        let mut opening = sockets.begin_connect(SocketAddr::from((FAR, 80))).unwrap();
        assert!(opening.try_finish().unwrap().is_none());
        let mut any = sockets.bind_udp(0).unwrap();
        let to = SocketAddr::from((FAR, 53));
        assert_eq!(any.try_send_to(b"x", to), Err(SocketError::NoRoute));
        lease(&mut stack, OURS);
        let status = &sockets.interfaces()[0];
        assert_eq!(status.dns_servers, [IpAddr::from(SERVER)], "{shape}");
        assert_eq!(status.search_domains, ["corp"]);
        assert_eq!(sockets.routes()[1].1.via, IpAddr::from(SERVER));
        let sent = stack.pass(Duration::from_secs(2));
        let sent = answer_arp(&mut stack, &sent);
        let syn = sent.iter().find(|frame| packet::protocol(frame) == Some(6));
        let syn = syn.expect("a SYN");
        assert_eq!((&syn[26..30], &syn[30..34]), (&OURS[..], &FAR[..]));
        assert_eq!(syn[..6], packet::mac_of(SERVER));
        assert_eq!(any.try_send_to(b"x", to), Ok(()));
        assert!(opening.try_finish().unwrap().is_none());

        // A server that answers no renewal: the lease ends, and what used it.
        stack.pass(Duration::from_secs(LEASE_S));
        assert_eq!(sockets.interfaces()[0].addresses, [] as [IpAddr; 0]);
        assert_eq!(sockets.interfaces()[0].dns_servers, [] as [IpAddr; 0]);
        assert_eq!(sockets.routes(), []);
        let ended = opening.try_finish().map(drop);
        assert!(ended.is_err(), "{shape}: {ended:?}");
        let error = sockets.begin_connect(SocketAddr::from((FAR, 80))).err();
        assert_eq!(error, Some(SocketError::NoRoute));
    }
}

#[test]
fn an_answer_to_our_address_renews_the_lease_in_every_group() {
    for shape in Shape::all() {
        let mut stack = stack(shape, Interface::new("dhcp"));
        lease(&mut stack, OURS);
        let sockets = stack.sockets();
        // It takes everything, but not the answers to the client.
        for _ in 0..5 {
            let began = stack.now;
            let sent = loop {
                stack.now = stack.next_deadline().max(stack.now);
                let sent = stack.turn();
                if sent.iter().any(|frame| asked(frame).is_some()) {
                    break sent;
                }
                if sent
                    .iter()
                    .any(|frame| packet::asked(frame) == Some(SERVER))
                {
                    let sent =
                        stack.receive(packet::arp_reply(Path::new(SERVER, OURS).to_mac(MAC)));
                    if sent.iter().any(|frame| asked(frame).is_some()) {
                        break sent;
                    }
                }
            };
            let (renew, kind) = sent.iter().find_map(|frame| asked(frame)).unwrap();
            assert_eq!(kind, 3);
            assert!(stack.now.since(began) < Duration::from_secs(LEASE_S / 2 + 1));
            assert_eq!(renew[12..16], OURS);
            stack.receive(answer(5, &renew, OURS, OURS));
            assert_eq!(sockets.interfaces()[0].addresses, [IpAddr::from(OURS)]);
        }
        let stats = stack.stacks.iter().map(|stack| stack.stats().pump);
        let answers: u64 = stats.clone().map(|stats| stats.dhcp_answers).sum();
        let dropped: u64 = stats.map(|stats| stats.dhcp_dropped).sum();
        assert_eq!((answers, dropped), (7, 0), "{shape}");
    }
}

#[test]
fn connections_end_with_a_lease_that_is_given_back_and_begin_with_the_next() {
    for shape in Shape::all() {
        let mut stack = stack(shape, Interface::new("dhcp"));
        let sockets = stack.sockets();
        lease(&mut stack, OURS);
        let mut opening = sockets
            .begin_connect(SocketAddr::from((SERVER, 80)))
            .unwrap();
        let sent = stack.turn();
        answer_arp(&mut stack, &sent);
        assert_eq!(sockets.set_dhcp(2, false), Err(SocketError::Invalid));
        sockets.set_dhcp(1, false).unwrap();
        let sent = stack.turn();
        let release = sent.iter().find_map(|frame| asked(frame));
        assert_eq!(release.map(|(_, kind)| kind), Some(7), "{shape}");
        assert!(opening.try_finish().is_err());
        assert!(sockets.interfaces()[0].addresses.is_empty());
        let sent = stack.pass(Duration::from_secs(10_000));
        assert!(sent.iter().all(|frame| asked(frame).is_none()));
        sockets.set_dhcp(1, true).unwrap();
        lease(&mut stack, [10, 0, 0, 51]);
    }
}

#[test]
fn without_a_server_opens_fail_and_what_sockets_take_is_not_for_the_client() {
    let mut stack = stack(Shape::THREE_GROUPS, Interface::new("dhcp").any_address());
    let sockets = stack.sockets();
    let mut opening = sockets.begin_connect(SocketAddr::from((FAR, 80))).unwrap();
    stack.pass(Duration::from_secs(50));
    assert!(opening.try_finish().unwrap().is_none());
    stack.pass(Duration::from_secs(40));
    assert_eq!(opening.try_finish().err(), Some(SocketError::Unreachable));
    let mut any = sockets.bind_any().unwrap();
    stack.turn();
    lease(&mut stack, OURS);
    assert!(any.try_recv_from(&mut [0; 600]).is_err());
    let to_client = packet::udp(Path::new(SERVER, OURS).to_mac(MAC), (67, 68), b"no message");
    stack.receive(to_client);
    assert!(any.try_recv_from(&mut [0; 600]).is_err());
    let dropped: u64 = stack
        .stacks
        .iter()
        .map(|stack| stack.stats().pump.dhcp_dropped)
        .sum();
    assert_eq!(dropped, 1);
}

/// A lease limits what we send.
#[test]
fn datagrams_are_cut_to_the_mtu_of_the_lease() {
    let mut stack = stack(Shape::THREE_GROUPS, Interface::new("dhcp"));
    lease(&mut stack, OURS);
    let mut socket = stack.sockets().bind_udp(0).unwrap();
    socket
        .try_send_to(&[7; 1472], SocketAddr::from((SERVER, 9)))
        .unwrap();
    let sent = stack.turn();
    let sent = answer_arp(&mut stack, &sent);
    let lens: Vec<_> = sent.iter().map(|frame| frame.len() - 14).collect();
    assert_eq!(lens, [1396, 124], "1,400 bytes are the most");
}

// IPv6.

const ROUTER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xfe];

fn router() -> Ipv6Addr {
    "fe80::fe".parse().unwrap()
}

/// An IPv6 packet in a frame from the router, with its checksum.
fn from_router(to: Ipv6Addr, protocol: u8, upper: &[u8]) -> Vec<u8> {
    let mac = match to.octets() {
        [0xff, .., a, b, c, d] => [0x33, 0x33, a, b, c, d],
        _ => MAC,
    };
    let mut frame = [&mac[..], &ROUTER_MAC, &[0x86, 0xdd, 0x60, 0, 0, 0]].concat();
    frame.extend((upper.len() as u16).to_be_bytes());
    frame.extend([protocol, 255]);
    frame.extend(router().octets());
    frame.extend(to.octets());
    let at = frame.len() + if protocol == 17 { 6 } else { 2 };
    frame.extend(upper);
    let mut pseudo = frame[22..54].to_vec();
    pseudo.extend((upper.len() as u32).to_be_bytes());
    pseudo.extend([0, 0, 0, protocol]);
    pseudo.extend(upper);
    let sum = !packet::sum(&pseudo);
    frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// A router advertisement with the O flag, and a server of names for a minute.
fn advertisement(server: Ipv6Addr) -> Vec<u8> {
    let mut bytes = vec![134, 0, 0, 0, 64, 0x40, 0, 60, 0, 0, 0, 0, 0, 0, 0, 0];
    // The network fd00::/64, from which hosts form addresses.
    bytes.extend([
        3, 4, 64, 0xc0, 0, 0, 0x0e, 0x10, 0, 0, 0x0e, 0x10, 0, 0, 0, 0,
    ]);
    bytes.extend([&[0xfd][..], &[0; 15]].concat());
    bytes.extend([25, 3, 0, 0, 0, 0, 0, 60]);
    bytes.extend(server.octets());
    bytes.extend([31, 2, 0, 0, 0, 0, 0, 60]);
    bytes.extend(b"\x04home\0\0\0");
    from_router("ff02::1".parse().unwrap(), 58, &bytes)
}

/// The answer to the request for information in a frame, with a server of names.
fn information(frame: &[u8], server: Ipv6Addr) -> Option<Vec<u8>> {
    let is_request = frame[12..14] == [0x86, 0xdd] && frame[20] == 17;
    if !is_request || frame[56..58] != [2, 35] {
        return None;
    }
    let request = &frame[62..];
    assert_eq!(request[0], 11);
    let source: [u8; 16] = frame[22..38].try_into().unwrap();
    let mut bytes = [&[7], &request[1..4]].concat();
    bytes.extend([0, 1, 0, 10, 0, 3, 0, 1]);
    bytes.extend(MAC);
    bytes.extend([0, 2, 0, 4, 0, 3, 0, 9, 0, 23, 0, 16]);
    bytes.extend(server.octets());
    let mut udp = [2, 35, 2, 34].to_vec();
    udp.extend((bytes.len() as u16 + 8).to_be_bytes());
    udp.extend([0, 0]);
    udp.extend(bytes);
    Some(from_router(source.into(), 17, &udp))
}

fn names(sockets: &Sockets) -> (Vec<IpAddr>, Vec<String>) {
    let [status] = &sockets.interfaces()[..] else {
        panic!("one interface")
    };
    (status.dns_servers.clone(), status.search_domains.clone())
}

#[test]
fn routers_and_servers_of_the_link_name_the_servers_that_the_resolver_asks() {
    let servers = ["fd00::53", "fd00::54"].map(|text| text.parse::<Ipv6Addr>().unwrap());
    for shape in Shape::all() {
        let ipv6 = Ipv6Config::default().duplicate_probes(0);
        let mut stack = stack(shape, Interface::new("dhcp").ipv6(ipv6));
        let sockets = stack.sockets();
        let resolver = Resolver::new(sockets.clone(), []);
        let mut resolving = resolver.begin_resolve("www").unwrap();
        assert_eq!(resolving.try_finish(stack.now), Ok(None));
        stack.receive(advertisement(servers[1]));
        assert_eq!(
            names(&sockets),
            (vec![servers[1].into()], vec!["home".to_owned()])
        );
        let sent = stack.pass(Duration::from_secs(1));
        let answer = sent.iter().find_map(|frame| information(frame, servers[0]));
        stack.receive(answer.expect("it asks for information"));
        let both = servers.map(IpAddr::from).to_vec();
        assert_eq!(names(&sockets).0, both, "{shape}");

        // The lookup begins now, in the domain of the link.
        assert_eq!(resolving.try_finish(stack.now), Ok(None));
        stack.turn();
        assert!(names(&sockets).0 == both);
        // A router's server ends with its lifetime.
        stack.pass(Duration::from_secs(60));
        assert_eq!(names(&sockets), (vec![servers[0].into()], Vec::new()));
    }
}

#[test]
fn a_resolver_gives_up_if_no_server_becomes_known() {
    let stack = stack(Shape::THREE_GROUPS, Interface::new("dhcp"));
    let resolver = Resolver::new(stack.sockets(), []).timeout(Duration::from_secs(2).into());
    let mut resolving = resolver.attempts(3).begin_resolve("www").unwrap();
    for seconds in [0, 3, 5] {
        assert_eq!(
            resolving.try_finish(Instant::from_millis(1000 * seconds)),
            Ok(None)
        );
    }
    let late = resolving.try_finish(Instant::from_millis(6000));
    assert_eq!(late, Err(SocketError::TimedOut));
}
