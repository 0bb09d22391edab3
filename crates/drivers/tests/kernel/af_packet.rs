//! Packet sockets.

use super::Missing;
use super::interfaces::{Veth, ip};
use super::support::packet::{self, ACK, Path, Tcp, experiment, is_experiment};
use super::support::{Port, TIMEOUT, named};
use dominoes_drivers::Device;
use dominoes_drivers::af_packet::{AfPacket, AfPacketOptions, MacChoice, RxRing};
use dominoes_drivers::{DeviceError, RxChecksum, TxChecksum, TxFrame};
use libtest_mimic::Trial;
use std::net::Ipv6Addr;
use std::time::Instant;

pub(crate) fn trials(missing: &Missing) -> Vec<Trial> {
    let tests: [(&str, fn()); 6] = named! {
        an_address_of_the_kernel_is_refused
        an_interface_that_is_not_there_is_named
        a_frame_beyond_a_shrunken_mtu_is_dropped
        our_own_frames_do_not_come_back
        frames_to_an_address_of_ours_arrive
        a_full_receive_buffer_counts_what_it_drops
    };
    let trial = |(name, test)| missing.packet(&format!("packet::{name}"), test);
    let mut trials: Vec<_> = tests.map(trial).into();
    let tagged = || a_vlan_tag_is_kept(RxRing::None);
    trials.push(missing.packet("packet::a_vlan_tag_is_kept", tagged));
    let name = "packet::the_kernel_does_not_route_what_is_ours";
    trials.push(missing.xdp(name, the_kernel_does_not_route_what_is_ours));
    let name = "packet::the_kernel_does_not_get_what_is_sent_to_our_ipv6_address";
    let test = the_kernel_does_not_get_what_is_sent_to_our_ipv6_address;
    trials.push(missing.xdp(name, test));
    trials
}

fn an_address_of_the_kernel_is_refused() {
    let veth = Veth::new();
    let address = veth.peer().address();
    let options = AfPacketOptions::default().address(address);
    let checked = AfPacket::check(&veth.left, &options);
    let error = AfPacket::open(&veth.left, options).unwrap_err();
    assert_eq!(checked, Err(error.clone()));
    let expected = DeviceError::AddressInUse {
        address: address.into(),
        interface: veth.right.clone(),
        prefix_len: 24,
    };
    assert_eq!(error, expected);
    assert!(
        error
            .to_string()
            .contains(&format!("ip addr del {address}/24 dev {}", veth.right)),
        "{error}"
    );
    let address = Ipv6Addr::new(0xfd00, 0x78, veth.subnet.into(), 0, 0, 0, 0, 2);
    let disabled = format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", veth.right);
    std::fs::write(disabled, "0").unwrap();
    ip(&format!("addr add {address}/64 dev {} nodad", veth.right));
    let options = AfPacketOptions::default().address6(address);
    // No guard keeps the kernel from answering there.
    let error = AfPacket::open(&veth.left, options.guard(true)).unwrap_err();
    let text = error.to_string();
    let advice = format!("ip addr del {address}/64 dev {}", veth.right);
    assert!(text.ends_with(&advice), "{text}");
}

fn an_interface_that_is_not_there_is_named() {
    let options = AfPacketOptions::default();
    assert_eq!(AfPacket::check(&Veth::new().left, &options), Ok(()));
    let checked = AfPacket::check("not-there", &options);
    let error = AfPacket::open("not-there", options).unwrap_err();
    assert_eq!(checked, Err(error.clone()));
    assert_eq!(
        error,
        DeviceError::NoSuchInterface {
            interface: "not-there".to_owned()
        }
    );
}

fn a_frame_beyond_a_shrunken_mtu_is_dropped() {
    let veth = Veth::new();
    let mut port = veth.open_left();
    let mut other = Port::new(AfPacket::open(&veth.right, AfPacketOptions::default()).unwrap());
    ip(&format!("link set {} mtu 1000", veth.left));
    let long = experiment(other.mac, port.mac, 1, 1514);
    let short = experiment(other.mac, port.mac, 2, 1014);
    assert_eq!(
        port.tx
            .transmit(&[TxFrame::new(&long), TxFrame::new(&short)]),
        Ok(2)
    );
    assert_eq!((port.tx.stats().frames, port.tx.stats().dropped), (1, 1));
    assert_eq!(
        other.claim_exactly(1, |frame| is_experiment(frame))[0].bytes(),
        short
    );
}

fn our_own_frames_do_not_come_back() {
    let veth = Veth::new();
    let mut port = veth.open_left();
    let mut other = Port::new(AfPacket::open(&veth.right, AfPacketOptions::default()).unwrap());
    let ours = experiment(other.mac, port.mac, 1, 60);
    let theirs = experiment(port.mac, other.mac, 2, 60);
    assert_eq!(port.tx.transmit(&[TxFrame::new(&ours)]), Ok(1));
    assert_eq!(other.tx.transmit(&[TxFrame::new(&theirs)]), Ok(1));
    assert_eq!(
        port.claim_exactly(1, |frame| is_experiment(frame))[0].bytes(),
        theirs
    );
    assert_eq!(
        other.claim_exactly(1, |frame| is_experiment(frame))[0].bytes(),
        ours
    );
}

fn frames_to_an_address_of_ours_arrive() {
    let veth = Veth::new();
    let options = || AfPacketOptions::default().qdisc_bypass(true);
    let local = AfPacket::open(&veth.left, options().mac(MacChoice::Local)).unwrap();
    let plain = AfPacket::open(&veth.left, options()).unwrap();
    assert_ne!(local.mac(), plain.mac());
    assert!(local.receive_buffer() > 0);
    let mut port = Port::new(local);
    let peer = veth.peer();
    peer.introduce(port.mac);
    peer.socket()
        .send_to(b"to the local address", (peer.our_address(), 9))
        .unwrap();
    let got = port
        .claim_exactly(1, |frame| packet::parse_udp(frame).is_some())
        .remove(0);
    assert_eq!(got[..6], port.mac);
}

fn the_kernel_does_not_route_what_is_ours() {
    const FRAMES: usize = 5_000;
    // The count includes other tests' packets, far fewer than ours.
    let received_by_ip = || {
        let counts = std::fs::read_to_string("/proc/self/net/snmp").unwrap();
        let [names, numbers] = [0, 1].map(|line| {
            let of_ip = counts.lines().filter(|line| line.starts_with("Ip:"));
            of_ip.skip(line).take(1).flat_map(str::split_whitespace)
        });
        let (_, number) = names
            .zip(numbers)
            .find(|(name, _)| *name == "InReceives")
            .unwrap();
        number.parse::<usize>().unwrap()
    };
    let veth = Veth::new();
    let mut right = veth.open_right();
    let (peer, interface) = (veth.peer(), &veth.left);
    for address in [None, Some(peer.our_address())] {
        let mut options = AfPacketOptions::default();
        options.address = address;
        let mut port = Port::new(AfPacket::open(interface, options).unwrap());
        let path = Path {
            from_mac: right.mac,
            to_mac: port.mac,
            from: (peer.address(), 9),
            to: (peer.our_address(), 9),
        };
        let fields = Tcp {
            seq: 1,
            ack: 1,
            flags: ACK,
        };
        let packet = packet::tcp(path, fields, &[], None);
        let before = received_by_ip();
        for _ in 0..FRAMES {
            assert_eq!(right.tx.transmit(&[packet.frame()]), Ok(1));
            port.claim_exactly(1, |frame| packet::parse_tcp(frame).is_some());
        }
        let received = received_by_ip() - before;
        assert_eq!(
            received < FRAMES / 2,
            address.is_some(),
            "{received} of {FRAMES} frames got as far as a route with {address:?}"
        );
    }
}

fn the_kernel_does_not_get_what_is_sent_to_our_ipv6_address() {
    const FRAMES: usize = 500;
    let veth = Veth::new();
    let ours = Ipv6Addr::new(0xfd00, 0x78, veth.subnet.into(), 0, 0, 0, 0, 1);
    let received_by_ip = || {
        let counts = format!("/proc/self/net/dev_snmp6/{}", veth.left);
        let counts = std::fs::read_to_string(counts).unwrap();
        let (_, number) = counts.split_once("Ip6InReceives").unwrap();
        number
            .split_whitespace()
            .next()
            .unwrap()
            .parse::<usize>()
            .unwrap()
    };
    let mut right = veth.open_right();
    for address in [None, Some(ours)] {
        let mut options = AfPacketOptions::default();
        options.address6 = address;
        let mut port = Port::new(AfPacket::open(&veth.left, options).unwrap());
        let mut packet = [&port.mac[..], &right.mac, &[0x86, 0xdd, 0x60]].concat();
        packet.resize(62, 0);
        // Eight bytes for no protocol, one hop.
        packet[18..22].copy_from_slice(&[0, 8, 59, 1]);
        packet[38..54].copy_from_slice(&ours.octets());
        let before = received_by_ip();
        for _ in 0..FRAMES {
            assert_eq!(right.tx.transmit(&[TxFrame::new(&packet)]), Ok(1));
            port.claim_exactly(1, |frame| frame.get(38..54) == Some(&ours.octets()));
        }
        let received = received_by_ip() - before;
        assert_eq!(
            received < FRAMES / 2,
            address.is_some(),
            "{received} with {address:?}"
        );
    }
}

fn a_full_receive_buffer_counts_what_it_drops() {
    let veth = Veth::new();
    let options = AfPacketOptions::default()
        .ring(RxRing::None)
        .receive_buffer(4096);
    let mut small = Port::new(AfPacket::open(&veth.left, options).unwrap());
    let mut other = Port::new(AfPacket::open(&veth.right, AfPacketOptions::default()).unwrap());
    let bytes = experiment(small.mac, other.mac, 1, 1000);
    let mut sent = 0;
    while sent < 500 {
        sent += other.tx.transmit(&[TxFrame::new(&bytes); 10]).unwrap();
    }
    let deadline = Instant::now() + TIMEOUT;
    let mut frames = Vec::new();
    while frames.len() as u64 + small.rx.stats().dropped < 500 {
        small.rx.claim(32, &mut frames).unwrap();
        assert!(
            Instant::now() < deadline,
            "{} frames, {:?}",
            frames.len(),
            small.rx.stats()
        );
    }
    assert!(small.rx.stats().dropped > 100, "{:?}", small.rx.stats());
}

pub(crate) fn a_vlan_tag_is_kept(ring: RxRing) {
    let veth = Veth::new();
    let mut port = veth.open_left_with(AfPacketOptions::default().ring(ring));
    let mut other = Port::new(AfPacket::open(&veth.right, AfPacketOptions::default()).unwrap());
    let path = Path {
        to_mac: port.mac,
        from_mac: other.mac,
        ..veth.peer().path(&port, 7, 8)
    };
    let mut packet = packet::udp(path, b"tagged", None);
    packet.head.splice(12..12, [0x81, 0, 0, 7]);
    packet.meta.checksum = TxChecksum::Partial {
        start: 38,
        offset: 6,
    };
    assert_eq!(other.tx.transmit(&[packet.frame()]), Ok(1));
    let got = port
        .claim_exactly(1, |frame| frame.ends_with(b"tagged"))
        .remove(0);
    assert_eq!(got.bytes(), [&packet.head[..], &packet.payload].concat());
    assert_eq!(
        got.meta.checksum,
        RxChecksum::Partial {
            start: 38,
            offset: 6
        }
    );
}
