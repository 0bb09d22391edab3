//! TAP devices.

use super::Missing;
use super::interfaces::{NEXT_SUBNET, TapInterface, bring_up, ip};
use super::support::packet::{self, Path};
use super::support::{Port, TIMEOUT};
use dominoes_drivers::tap::Tap;
use dominoes_drivers::{Device, DeviceError, RxChecksum};
use libtest_mimic::Trial;
use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

pub(crate) fn trials(missing: &Missing) -> Vec<Trial> {
    vec![
        missing.tap(
            "tap::a_second_opening_finds_it_busy",
            a_second_opening_finds_it_busy,
        ),
        missing.tap(
            "tap::several_queues_share_the_flows",
            several_queues_share_the_flows,
        ),
        missing.tap(
            "tap::without_offloads_frames_stay_short",
            without_offloads_frames_stay_short,
        ),
        missing.tap(
            "tap::addresses_on_both_sides_differ",
            addresses_on_both_sides_differ,
        ),
        missing.tap(
            "tap::what_the_kernels_end_has_is_refused",
            what_the_kernels_end_has_is_refused,
        ),
    ]
}

fn what_the_kernels_end_has_is_refused() {
    let subnet = NEXT_SUBNET.fetch_add(1, Relaxed);
    let name = format!("tap{subnet}");
    let tap = Tap::open(&name).unwrap();
    // IPv6 is off in the namespace of these tests.
    let switch = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
    std::fs::write(switch, "0").unwrap();
    ip(&format!("addr add 10.78.{subnet}.2/24 dev {name}"));
    ip(&format!("addr add fd78::{subnet}/64 dev {name}"));
    bring_up(&name);
    let address = |text: String| text.parse::<IpAddr>().unwrap();
    for own in [format!("10.78.{subnet}.2"), format!("fd78::{subnet}")] {
        let error = tap.check_address(address(own)).unwrap_err();
        let is_named =
            matches!(&error, DeviceError::AddressInUse { interface, .. } if *interface == name);
        assert!(is_named, "{error}");
    }
    // Addresses of other interfaces may be used on this link.
    for other in [
        format!("10.78.{subnet}.1"),
        "127.0.0.1".into(),
        "::1".into(),
    ] {
        assert_eq!(tap.check_address(address(other)), Ok(()));
    }
}

fn a_second_opening_finds_it_busy() {
    let (_tap, interface) = TapInterface::new(Tap::options());
    let error = Tap::open(&interface.name).unwrap_err();
    assert_eq!(
        error,
        DeviceError::Busy {
            interface: interface.name.clone()
        }
    );
}

fn several_queues_share_the_flows() {
    const FLOWS: u16 = 64;
    let subnet = NEXT_SUBNET.fetch_add(1, Relaxed);
    let name = format!("tap{subnet}");
    let devices = Tap::open_queues(&name, &Tap::options(), 4).unwrap();
    let mut ports: Vec<_> = devices.into_iter().map(Port::new).collect();
    let interface = TapInterface {
        name: name.clone(),
        subnet,
    };
    ip(&format!("addr add 10.78.{subnet}.2/24 dev {name}"));
    bring_up(&name);
    let peer = interface.peer();
    peer.introduce(ports[0].mac);
    for flow in 0..FLOWS {
        let socket = peer.socket();
        for _ in 0..4 {
            let payload = flow.to_be_bytes();
            socket.send_to(&payload, (peer.our_address(), 9)).unwrap();
        }
    }
    let mut seen = vec![[0; 4]; FLOWS.into()];
    let deadline = Instant::now() + TIMEOUT;
    while seen.iter().flatten().sum::<usize>() < 4 * usize::from(FLOWS) {
        for (queue, port) in ports.iter_mut().enumerate() {
            let mut frames = Vec::new();
            port.rx.claim(32, &mut frames).unwrap();
            for payload in frames.iter().filter_map(|frame| packet::parse_udp(frame)) {
                seen[usize::from(u16::from_be_bytes([payload[0], payload[1]]))][queue] += 1;
            }
        }
        assert!(Instant::now() < deadline, "{seen:?}");
    }
    assert!(seen.iter().all(|queues| queues.contains(&4)), "{seen:?}");
    let used = (0..4).filter(|&queue| seen.iter().any(|queues| queues[queue] > 0));
    assert!(used.count() > 1, "all flows share a queue: {seen:?}");
    let socket = peer.socket();
    for port in &mut ports {
        let path = peer.path(port, 7, socket.local_addr().unwrap().port());
        let packet = packet::udp(path, b"from every queue", None);
        assert_eq!(port.tx.transmit(&[packet.frame()]), Ok(1));
        let mut buffer = [0; 100];
        assert_eq!(socket.recv(&mut buffer).unwrap(), 16);
    }
    let error = Tap::open(&name).unwrap_err();
    assert!(error.to_string().contains("several"), "{error}");
}

fn without_offloads_frames_stay_short() {
    let (mut tap, interface) = TapInterface::new(Tap::options().offloads(false));
    assert!(!tap.caps.tx_checksum && tap.caps.tso4_max_bytes == 0 && tap.caps.uso_max_bytes == 0);
    let peer = interface.peer();
    peer.introduce(tap.mac);
    peer.socket()
        .send_to(&[7; 1000], (peer.our_address(), 9))
        .unwrap();
    let mut got = tap
        .claim_exactly(1, |frame| packet::parse_udp(frame).is_some())
        .remove(0);
    assert_eq!(
        (got.meta.checksum, got.meta.gso),
        (RxChecksum::Verify, None)
    );
    // The kernel has computed the checksum: computing it again over the pseudo-header's sum gives
    // the same result.
    let path = Path {
        from_mac: peer.mac(),
        to_mac: tap.mac,
        from: (peer.address(), u16::from_be_bytes([got[34], got[35]])),
        to: (peer.our_address(), 9),
    };
    let expected = packet::udp(path, &[7; 1000], None).completed();
    assert_eq!(got.bytes_mut()[34..], expected[34..]);
}

fn addresses_on_both_sides_differ() {
    let (tap, interface) = TapInterface::new(Tap::options());
    assert_ne!(tap.mac, interface.peer().mac());
    assert_eq!(tap.mac[0] & 3, 2, "local, and of one station");
    assert_eq!(tap.caps.mtu, 1500);
}
