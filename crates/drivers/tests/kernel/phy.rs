//! The devices of smoltcp, each on a separate thread, against ours.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use dominoes_drivers::af_packet::{AfPacket, AfPacketOptions};
use dominoes_drivers::phy::FromPhy;
use dominoes_drivers::{Device, DeviceError};
use smoltcp::phy::{Medium, RawSocket, TunTapInterface};

use super::interfaces::{NEXT_SUBNET, Veth, bring_up, ip, try_ip};
use super::support::TIMEOUT;
use super::support::{Port, behaviour};
use super::{Missing, Trial};
use std::time::Instant;

const MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 7];

pub(crate) fn trials(missing: &Missing) -> Vec<Trial> {
    let mut trials = Vec::new();
    for &(name, test) in behaviour::ALL {
        trials.push(
            missing.packet(&format!("raw_socket_and_packet::{name}"), move || {
                let veth = Veth::new();
                test(raw_socket(&veth.left), packet(&veth.right));
            }),
        );
        trials.push(
            missing.packet(&format!("packet_and_raw_socket::{name}"), move || {
                let veth = Veth::new();
                test(packet(&veth.left), raw_socket(&veth.right));
            }),
        );
        trials.push(missing.tap(&format!("tuntap_and_packet::{name}"), move || {
            let (tap, interface) = tuntap();
            test(tap, packet(&interface));
        }));
        trials.push(missing.tap(&format!("packet_and_tuntap::{name}"), move || {
            let (tap, interface) = tuntap();
            test(packet(&interface), tap);
        }));
    }
    trials.push(missing.packet(
        "raw_socket::an_interface_that_goes_down_is_gone",
        an_interface_that_goes_down,
    ));
    trials.push(missing.tap(
        "tuntap::the_interface_goes_with_the_last_half",
        the_interface_goes_with_the_last_half,
    ));
    trials.push(missing.packet(
        "raw_socket::an_interface_that_is_not_there_is_an_error",
        an_interface_that_is_not_there,
    ));
    trials
}

fn raw_socket(interface: &str) -> Port {
    let interface = interface.to_owned();
    let open = move || RawSocket::new(&interface, Medium::Ethernet);
    Port::new(FromPhy::with(open, MAC).unwrap())
}

/// A TAP interface of smoltcp, and its name.
fn tuntap() -> (Port, String) {
    let name = format!("phy{}", NEXT_SUBNET.fetch_add(1, Relaxed));
    let open = {
        let name = name.clone();
        move || TunTapInterface::new(&name, Medium::Ethernet)
    };
    let port = Port::new(FromPhy::with(open, MAC).unwrap());
    bring_up(&name);
    (port, name)
}

/// A packet socket without offloads, since smoltcp does not support merged frames.
fn packet(interface: &str) -> Port {
    let options = AfPacketOptions::default().offloads(false);
    Port::new(AfPacket::open(interface, options).unwrap())
}

/// smoltcp panics, and both halves report the panic of its thread as an error.
fn an_interface_that_goes_down() {
    let veth = Veth::new();
    let mut port = raw_socket(&veth.left);
    ip(&format!("link set {} down", veth.left));
    let deadline = Instant::now() + TIMEOUT;
    let gone = loop {
        if let Err(error) = port.rx.wait(Some(Duration::from_millis(100))) {
            break error;
        }
        port.rx.claim(32, &mut Vec::new()).ok();
        assert!(Instant::now() < deadline, "nothing was reported");
    };
    assert!(matches!(gone, DeviceError::Gone { .. }), "{gone}");
    assert_eq!(port.tx.transmit(&[]), Err(gone));
}

fn the_interface_goes_with_the_last_half() {
    let (port, interface) = tuntap();
    let there = || try_ip(&format!("link show dev {interface}")).is_ok();
    drop(port.rx);
    assert!(there());
    drop(port.tx);
    // Programs that other tests start inherit smoltcp's descriptor.
    let deadline = Instant::now() + TIMEOUT;
    while there() {
        assert!(Instant::now() < deadline, "it stayed");
    }
}

fn an_interface_that_is_not_there() {
    let open = || RawSocket::new("no-such-iface", Medium::Ethernet);
    let error = FromPhy::with(open, MAC)
        .map(|device| device.mac())
        .unwrap_err();
    // ENODEV.
    assert_eq!(error.raw_os_error(), Some(19));
}
