//! Killing a process while it sends and receives leaves no trace.

use std::env;
use std::io::Read;
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use dominoes_drivers::af_packet::{AfPacket, AfPacketOptions, MacChoice, RxRing};
use dominoes_drivers::af_xdp::{AfXdp, AfXdpOptions, XdpMode};
use dominoes_drivers::tap::Tap;
use dominoes_drivers::{DeviceError, TxFrame};

use super::af_xdp::{arp_request, has_program, is_arp_reply, ring_options};
use super::interfaces::{Veth, bring_up, ip, try_ip};
use super::support::packet::{experiment, is_experiment};
use super::support::{Port, TIMEOUT};
use super::{Missing, OPEN, Trial};

/// Kinds of devices on a veth.
const ON_VETH: [&str; 7] = [
    "packet_copies",
    "packet_slots",
    "packet_blocks",
    "packet_guarded",
    "xdp_native",
    "xdp_generic",
    "xdp_promiscuous",
];

pub(crate) fn trials(missing: &Missing) -> Vec<Trial> {
    let mut trials: Vec<Trial> = ON_VETH
        .into_iter()
        .map(|kind| {
            let name = format!("killed::{kind}_leaves_the_interface_as_it_was");
            missing.xdp(&name, move || on_veth(kind))
        })
        .collect();
    trials.extend([
        missing.tap("killed::tap_takes_its_interface_along", a_tap_of_its_own),
        missing.tap(
            "killed::tap_leaves_the_queues_of_a_lasting_interface",
            a_lasting_tap,
        ),
    ]);
    trials
}

/// Runs in the process that will be killed: opens the device, then sends and receives without end.
pub(crate) fn flood(kind: &str, interface: &str) -> Result<(), DeviceError> {
    let packet = |ring| {
        let options = AfPacketOptions::default()
            .ring(ring)
            .mac(MacChoice::Local)
            .qdisc_bypass(true);
        AfPacket::open(interface, options).map(Port::new)
    };
    let xdp = |options: AfXdpOptions| AfXdp::open(interface, &options).map(Port::new);
    let mut ports = match kind {
        "packet_copies" => vec![packet(RxRing::None)?],
        "packet_slots" => vec![packet(RxRing::Slots)?],
        "packet_blocks" => vec![packet(RxRing::Blocks)?],
        "packet_guarded" => {
            // The addresses that `Veth` assigns.
            let subnet = interface.trim_start_matches("left").parse().unwrap_or(0);
            let address = std::net::Ipv4Addr::new(10, 78, subnet, 1);
            let options = AfPacketOptions::default().address(address).guard(true);
            vec![Port::new(AfPacket::open(interface, options)?)]
        }
        "xdp_native" => vec![xdp(ring_options().mode(XdpMode::Native))?],
        "xdp_generic" => vec![xdp(ring_options().mode(XdpMode::Generic))?],
        "xdp_promiscuous" => vec![xdp(ring_options().mac(MacChoice::Local))?],
        "tap" => vec![Port::new(Tap::open(interface)?)],
        _ => {
            let devices = Tap::open_queues(interface, &Tap::options(), 2)?;
            devices.into_iter().map(Port::new).collect()
        }
    };
    println!("opened");
    let mut frames = Vec::new();
    for number in 0.. {
        for port in &mut ports {
            let bytes = experiment([0xff; 6], port.mac, number, 1000);
            // The interface of a TAP comes up later, so early errors are ignored.
            let _ = port.tx.transmit(&[TxFrame::new(&bytes); 8]);
            let _ = port.rx.claim(64, &mut frames);
            port.rx.release(&mut frames);
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Starts such a process, and waits until it has opened its device.
fn start(kind: &str, interface: &str) -> Child {
    let mut child = Command::new(env::current_exe().unwrap())
        .env(OPEN, format!("flood:{kind}:{interface}"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = [0; 7];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut said)
        .unwrap();
    assert_eq!(&said, b"opened\n");
    child
}

/// Lets frames pass in both directions, and kills the process meanwhile.
fn kill_under_way(mut child: Child, other: &mut Port) {
    for number in 0..50 {
        let bytes = experiment([0xff; 6], other.mac, number, 1514);
        assert_eq!(other.tx.transmit(&[TxFrame::new(&bytes)]), Ok(1));
        let mac = other.mac;
        other.claim_exactly(2, move |frame| is_experiment(frame) && frame[6..12] != mac);
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

fn said(command: &str, arguments: &[&str]) -> String {
    let output = Command::new(command).args(arguments).output();
    // Without `ethtool`, fewer settings are compared.
    output.map_or(String::new(), |output| {
        String::from_utf8_lossy(&output.stdout).into_owned()
    })
}

/// All settings of an interface.
fn settings(interface: &str) -> String {
    let mut text = said("ip", &["-d", "-o", "link", "show", "dev", interface]);
    text += &said("ip", &["-o", "addr", "show", "dev", interface]);
    text += &said("ethtool", &["-k", interface]);
    text
}

/// Waits until something holds that the kernel does a moment after the last descriptor is closed. A
/// thread that starts a program has copies of all descriptors for a moment.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until no guard of a device keeps the kernel from answering for `address`.
pub(crate) fn wait_until_kernel_answers(other: &mut Port, subnet: u8, address: Ipv4Addr) {
    let request = arp_request(other.mac, subnet, address);
    let mut frames = Vec::new();
    wait_until("the guard stays", || {
        assert_eq!(other.tx.transmit(&[TxFrame::new(&request)]), Ok(1));
        other.rx.claim(64, &mut frames).unwrap();
        frames.drain(..).any(|frame| is_arp_reply(&frame, address))
    });
}

fn on_veth(kind: &'static str) {
    let veth = Veth::new();
    let ours = veth.peer().our_address();
    if kind == "packet_guarded" {
        ip(&format!("addr add {ours}/24 dev {}", veth.left));
    }
    let both = || [&veth.left, &veth.right].map(|interface| settings(interface));
    // While this device is open, the interface receives multicast.
    let mut other = veth.open_right();
    let before = both();
    let child = start(kind, &veth.left);
    assert_eq!(has_program(&veth.left), kind.starts_with("xdp"));
    if kind != "packet_guarded" {
        assert_ne!(both(), before, "the test sees what is set");
    }
    kill_under_way(child, &mut other);
    wait_until("something stays set", || both() == before);
    assert!(!has_program(&veth.left));
    if kind == "packet_guarded" {
        wait_until_kernel_answers(&mut other, veth.subnet, ours);
    }
    // Its queue is free, after the moment that the kernel needs.
    if kind.starts_with("xdp") {
        drop(AfXdp::open(&veth.left, &ring_options()).unwrap());
    }
}

fn a_tap_of_its_own() {
    let name = "killed0";
    let child = start("tap", name);
    bring_up(name);
    let mut other = Port::new(AfPacket::open(name, AfPacketOptions::default()).unwrap());
    kill_under_way(child, &mut other);
    drop(other);
    wait_until("the interface stays", || {
        try_ip(&format!("link show dev {name}")).is_err()
    });
}

fn a_lasting_tap() {
    let name = "killed1";
    ip(&format!("tuntap add dev {name} mode tap multi_queue"));
    ip(&format!("link set {name} up"));
    // The other settings shown (offloads and virtio headers) stay as the last user set them, and
    // the next user sets its own.
    let queues = || {
        let line = said("ip", &["-d", "-o", "link", "show", "dev", name]);
        let mut words = line.split_whitespace();
        words.find(|word| *word == "numqueues");
        words.next().map(str::to_owned)
    };
    let before = queues();
    let child = start("queues", name);
    assert_ne!(queues(), before, "the test sees queues");
    let mut other = Port::new(AfPacket::open(name, AfPacketOptions::default()).unwrap());
    kill_under_way(child, &mut other);
    drop(other);
    wait_until("queues stay", || queues() == before);
    assert_eq!(Tap::open_queues(name, &Tap::options(), 2).unwrap().len(), 2);
    ip(&format!("tuntap del dev {name} mode tap multi_queue"));
}
