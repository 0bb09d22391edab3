//! TUN devices, and sockets that carry bare packets.

use super::interfaces::{NEXT_SUBNET, Peer, bring_up, ip, tun};
use super::support::packet::{self, Path};
use super::support::{Port, TIMEOUT, behaviour};
use super::{Missing, Trial};
use dominoes_drivers::tap::Tap;
use dominoes_drivers::testkit::attached;
use dominoes_drivers::tun::Tun;
use dominoes_drivers::{Device, DeviceError, IP_MAC, IP_PEER_MAC, LinkType, RxChecksum};
use std::net::IpAddr;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

pub(crate) fn trials(missing: &Missing) -> Vec<Trial> {
    let mut trials = Vec::new();
    for &(name, test) in behaviour::ALL {
        for header in [0, 12] {
            let name = format!("sockets_with_header_of_{header}::{name}");
            // The namespace, in which sockets hold more packets, is all that they need.
            trials.push(missing.packet(&name, move || {
                let (left, right) = UnixDatagram::pair().unwrap();
                let options = Tun::options().vnet_header(header);
                let open =
                    |end: UnixDatagram| Port::new(Tun::from_fd(end.into(), &options).unwrap());
                test(open(left), open(right));
            }));
        }
    }
    type Named = (&'static str, fn());
    let tests: [Named; 7] = [
        ("a_second_opening_finds_it_busy", a_second_opening),
        (
            "several_queues_share_the_flows",
            several_queues_share_the_flows,
        ),
        ("without_offloads_packets_stay_short", without_offloads),
        (
            "what_the_kernels_end_has_is_refused",
            addresses_of_the_kernel,
        ),
        (
            "both_families_arrive_with_their_kinds",
            both_families_arrive,
        ),
        ("a_descriptor_of_a_tap_is_refused", a_tap_is_refused),
        (
            "packet_information_is_counted",
            packet_information_is_counted,
        ),
    ];
    trials.extend(tests.map(|(name, test)| missing.tap(&format!("tun::{name}"), test)));
    #[cfg(feature = "smoltcp")]
    trials.push(missing.tap("tun_of_smoltcp::a_datagram_passes_both_ways", smoltcps_tun));
    trials
}

/// Flags of an interface, as in `linux/if_tun.h`.
const TUN: i32 = 1;
const TAP: i32 = 2;
const NO_PI: i32 = 0x1000;
const VNET_HDR: i32 = 0x4000;

/// A device of a descriptor that another program has attached, with virtio headers or without.
pub(crate) fn adopted(headers: bool) -> (Port, Peer) {
    let subnet = NEXT_SUBNET.fetch_add(1, Relaxed);
    let name = format!("tun{subnet}");
    let flags = TUN | NO_PI | if headers { VNET_HDR } else { 0 };
    let fd = attached(&name, flags).unwrap();
    let port = Port::new(Tun::from_fd(fd, &Tun::options()).unwrap());
    assert_eq!(port.caps.name, name);
    assert_eq!((port.caps.link, port.caps.mtu), (LinkType::Ip, 1500));
    assert_eq!(port.caps.tx_checksum, headers);
    ip(&format!("addr add 10.78.{subnet}.2/24 dev {name}"));
    bring_up(&name);
    let kernels = name.clone();
    let peer = Peer {
        ours: name,
        kernels,
        subnet,
    };
    (port, peer)
}

fn a_tap_is_refused() {
    let name = format!("tap{}", NEXT_SUBNET.fetch_add(1, Relaxed));
    let fd = attached(&name, TAP | NO_PI).unwrap();
    let error = Tun::from_fd(fd, &Tun::options()).map(drop).unwrap_err();
    let is_named =
        matches!(&error, DeviceError::Unsuitable { interface, .. } if *interface == name);
    assert!(is_named, "{error}");
}

/// The kernel puts four bytes in front of each packet and does not report that.
fn packet_information_is_counted() {
    let subnet = NEXT_SUBNET.fetch_add(1, Relaxed);
    let name = format!("tun{subnet}");
    let fd = attached(&name, TUN).unwrap();
    let mut port = Port::new(Tun::from_fd(fd, &Tun::options()).unwrap());
    ip(&format!("addr add 10.78.{subnet}.2/24 dev {name}"));
    bring_up(&name);
    let peer = Peer {
        ours: name.clone(),
        kernels: name,
        subnet,
    };
    let socket = peer.socket();
    socket.send_to(b"hello", (peer.our_address(), 9)).unwrap();
    let deadline = Instant::now() + TIMEOUT;
    while port.rx.stats().truncated == 0 {
        assert_eq!(port.rx.claim(1, &mut Vec::new()), Ok(0));
        assert!(Instant::now() < deadline);
    }
}

fn a_second_opening() {
    let (_tun, peer) = tun(Tun::options());
    let interface = peer.ours;
    let error = Tun::open(&interface).map(drop).unwrap_err();
    assert_eq!(error, DeviceError::Busy { interface });
    let name = format!("tap{}", NEXT_SUBNET.fetch_add(1, Relaxed));
    let _tap = Tap::open(&name).unwrap();
    let error = Tun::open(&name).map(drop).unwrap_err();
    assert!(error.to_string().contains("no TUN"), "{error}");
}

fn without_offloads() {
    let (mut tun, peer) = tun(Tun::options().offloads(false).mtu(1200));
    assert!(!tun.caps.tx_checksum && tun.caps.tso4_max_bytes == 0 && tun.caps.uso_max_bytes == 0);
    assert_eq!(tun.caps.mtu, 1200);
    let socket = peer.socket();
    socket.send_to(&[7; 1000], (peer.our_address(), 9)).unwrap();
    let mut got = tun
        .claim_exactly(1, |frame| packet::parse_udp(frame).is_some())
        .remove(0);
    assert_eq!(
        (got.meta.checksum, got.meta.gso),
        (RxChecksum::Verify, None)
    );
    let path = Path {
        from_mac: IP_PEER_MAC,
        to_mac: IP_MAC,
        from: (peer.address(), socket.local_addr().unwrap().port()),
        to: (peer.our_address(), 9),
    };
    // The kernel has computed the checksum.
    let expected = packet::udp(path, &[7; 1000], None).completed();
    assert_eq!(got[..14], expected[..14]);
    assert_eq!(got.bytes_mut()[34..], expected[34..]);
}

fn addresses_of_the_kernel() {
    let subnet = NEXT_SUBNET.fetch_add(1, Relaxed);
    let name = format!("tun{subnet}");
    let tun = Tun::open(&name).unwrap();
    ip(&format!("addr add 10.78.{subnet}.2/24 dev {name}"));
    let address = |host: u8| IpAddr::from([10, 78, subnet, host]);
    let error = tun.check_address(address(2)).unwrap_err();
    assert!(matches!(error, DeviceError::AddressInUse { .. }), "{error}");
    assert_eq!(tun.check_address(address(1)), Ok(()));
}

/// What the kernel sends by itself, such as reports of groups, comes in frames for groups.
fn both_families_arrive() {
    let (mut tun, peer) = tun(Tun::options());
    let switch = format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", peer.ours);
    std::fs::write(switch, "0").unwrap();
    ip(&format!(
        "addr add fd78::{}/64 dev {}",
        peer.subnet, peer.ours
    ));
    let to_group = tun
        .claim_exactly(1, |frame| frame[..2] == [0x33, 0x33])
        .remove(0);
    assert_eq!(to_group[12..15], [0x86, 0xdd, 0x60]);
    peer.socket()
        .send_to(b"v4", (peer.our_address(), 9))
        .unwrap();
    let v4 = tun.claim_exactly(1, |frame| packet::parse_udp(frame) == Some(b"v4"));
    assert_eq!(
        v4[0][..15],
        [&IP_MAC[..], &IP_PEER_MAC, &[0x08, 0, 0x45]].concat()
    );
    assert_eq!(tun.rx.stats().truncated, 0);
}

fn several_queues_share_the_flows() {
    let subnet = NEXT_SUBNET.fetch_add(1, Relaxed);
    let name = format!("tun{subnet}");
    let devices = Tun::open_queues(&name, &Tun::options(), 4).unwrap();
    let mut ports: Vec<_> = devices.into_iter().map(Port::new).collect();
    ip(&format!("addr add 10.78.{subnet}.2/24 dev {name}"));
    bring_up(&name);
    let peer = Peer {
        ours: name.clone(),
        kernels: name,
        subnet,
    };
    let seen = peer.flows_by_queue(&mut ports, 4, None);
    assert!(seen.iter().all(|queues| queues.contains(&4)), "{seen:?}");
    peer.hears_every_queue(&mut ports);
}

#[cfg(feature = "smoltcp")]
fn smoltcps_tun() {
    use dominoes_drivers::TxFrame;
    use dominoes_drivers::phy::FromPhy;
    use smoltcp::phy::{Medium, TunTapInterface};
    let subnet = NEXT_SUBNET.fetch_add(1, Relaxed);
    let name = format!("tun{subnet}");
    let open = {
        let name = name.clone();
        move || TunTapInterface::new(&name, Medium::Ip)
    };
    let mut port = Port::new(FromPhy::with(open, [2; 6]).unwrap());
    assert_eq!((port.caps.link, port.mac), (LinkType::Ip, IP_MAC));
    ip(&format!("addr add 10.78.{subnet}.2/24 dev {name}"));
    bring_up(&name);
    let peer = Peer {
        ours: name.clone(),
        kernels: name,
        subnet,
    };
    let socket = peer.socket();
    let path = peer.path(&port, 7, socket.local_addr().unwrap().port());
    let bytes = packet::udp(path, b"there", None).completed();
    assert_eq!(port.tx.transmit(&[TxFrame::new(&bytes)]), Ok(1));
    let (len, from) = socket.recv_from(&mut [0; 100]).unwrap();
    assert_eq!(len, 5);
    socket.send_to(b"back", from).unwrap();
    port.claim_exactly(1, |frame| packet::parse_udp(frame) == Some(b"back"));
}
