//! TAP devices.

use super::Missing;
use super::interfaces::{NEXT_SUBNET, TapInterface, bring_up, flows_are_spread, ip};
use super::support::packet::{self, Path};
use super::support::{Port, named};
use dominoes_drivers::tap::Tap;
use dominoes_drivers::{Device, DeviceError, RxChecksum};
use libtest_mimic::Trial;
use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;

pub(crate) fn trials(missing: &Missing) -> Vec<Trial> {
    let tests: [(&str, fn()); 5] = named! {
        a_second_opening_finds_it_busy
        several_queues_share_the_flows
        without_offloads_frames_stay_short
        addresses_on_both_sides_differ
        what_the_kernels_end_has_is_refused
    };
    let trial = |(name, test)| missing.tap(&format!("tap::{name}"), test);
    tests.map(trial).into()
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
    flows_are_spread(&peer.flows_by_queue(&mut ports, 4, None), 4);
    peer.hears_every_queue(&mut ports);
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
