//! XDP sockets.

use super::Missing;
use super::interfaces::{Veth, ip};
use super::killed::{wait_until, wait_until_kernel_answers};
use super::rings::{mapping_of, send_experiments};
use super::support::packet::{self, experiment, is_experiment};
use super::support::{Port, TIMEOUT, named};
use dominoes_drivers::af_packet::{AfPacket, AfPacketOptions};
use dominoes_drivers::af_xdp::{AfXdp, AfXdpOptions, Redirect, XdpBind, XdpMode, XdpTransmit};
use dominoes_drivers::tap::Tap;
use dominoes_drivers::{Device, DeviceError, TxFrame};
use dominoes_testkit::packet::v6;
use libtest_mimic::Trial;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

pub(crate) fn trials(missing: &Missing) -> Vec<Trial> {
    let tests: [(&str, fn()); 10] = named! {
        the_kernel_keeps_what_is_not_ours
        the_kernel_keeps_what_is_not_ours_of_ipv6
        the_program_follows_addresses_that_come_and_go
        several_queues_share_their_memory
        long_frames_pass_in_pieces
        frames_lie_where_nobody_can_write_and_may_be_kept
        a_burst_beyond_the_ring_is_counted
        opened_and_closed_again_and_again
        a_program_that_starts_meanwhile_keeps_none_open
        what_cannot_be_had_is_named
    };
    let trial = |(name, test)| missing.xdp(&format!("xdp::{name}"), test);
    let mut trials: Vec<_> = tests.map(trial).into();
    let name = "packet::a_guarded_address_may_be_the_kernels";
    trials.push(missing.xdp(name, a_guarded_address_may_be_the_kernels));
    trials
}

/// Options for a device that sends through its ring.
pub(crate) fn ring_options() -> AfXdpOptions {
    AfXdpOptions::default().transmit(XdpTransmit::Ring)
}

pub(crate) fn open_xdp(interface: &str, options: &AfXdpOptions) -> Port {
    let device = AfXdp::open(interface, options).unwrap();
    assert!(!device.is_zero_copy(), "veth has none");
    assert!(
        device
            .advice()
            .is_some_and(|advice| advice.contains("ethtool -K"))
    );
    Port::new(device)
}

/// An ARP request for `target` from an address that no host has.
pub(crate) fn arp_request(from: [u8; 6], subnet: u8, target: Ipv4Addr) -> Vec<u8> {
    let mut frame = [&[0xff; 6][..], &from, &[0x08, 0x06]].concat();
    frame.extend([0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(from);
    frame.extend([10, 78, subnet, 77]);
    frame.extend([0; 6]);
    frame.extend(target.octets());
    frame
}

/// Whether this is an ARP reply from `sender`.
pub(crate) fn is_arp_reply(frame: &[u8], sender: Ipv4Addr) -> bool {
    frame.get(12..14) == Some(&[0x08, 0x06])
        && frame.get(20..22) == Some(&[0, 2])
        && frame.get(28..32) == Some(&sender.octets())
}

fn a_guarded_address_may_be_the_kernels() {
    let veth = Veth::new();
    let (guarded, other) = (
        Ipv4Addr::new(10, 78, veth.subnet, 1),
        Ipv4Addr::new(10, 78, veth.subnet, 3),
    );
    for address in [guarded, other] {
        ip(&format!("addr add {address}/24 dev {}", veth.left));
    }
    let options = AfPacketOptions::default().address(guarded);
    let error = AfPacket::open(&veth.left, options.clone()).unwrap_err();
    assert!(matches!(error, DeviceError::AddressInUse { .. }));
    let mut port = Port::new(AfPacket::open(&veth.left, options.guard(true)).unwrap());
    let mut right = veth.open_right();
    for address in [guarded, other] {
        let request = arp_request(right.mac, veth.subnet, address);
        assert_eq!(right.tx.transmit(&[TxFrame::new(&request)]), Ok(1));
        port.claim_exactly(1, |frame| packet::is_arp_request(frame, address));
    }
    // The kernel answers for the address that is not guarded, and did not answer the earlier
    // request for the guarded one.
    right.claim_while(|frame| {
        assert!(
            !is_arp_reply(&frame, guarded),
            "the kernel answered in our place"
        );
        !is_arp_reply(&frame, other)
    });
    drop(port);
    wait_until_kernel_answers(&mut right, veth.subnet, guarded);
}

fn the_kernel_keeps_what_is_not_ours() {
    let veth = Veth::new();
    let ours = veth.peer().our_address();
    let kernels = Ipv4Addr::new(10, 78, veth.subnet, 3);
    ip(&format!("addr add {kernels}/24 dev {}", veth.left));
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let options = ring_options().mode(mode).address(ours);
        let mut port = open_xdp(&veth.left, &options);
        let mut right = veth.open_right();
        for address in [kernels, ours] {
            let request = arp_request(right.mac, veth.subnet, address);
            assert_eq!(right.tx.transmit(&[TxFrame::new(&request)]), Ok(1));
        }
        right.claim_exactly(1, |frame| is_arp_reply(frame, kernels));
        port.claim_while(|frame| {
            assert!(
                !packet::is_arp_request(&frame, kernels),
                "it is the kernel's"
            );
            !packet::is_arp_request(&frame, ours)
        });
    }
    let error = AfXdp::open(&veth.left, &ring_options().address(kernels)).unwrap_err();
    assert!(matches!(error, DeviceError::AddressInUse { .. }), "{error}");
    let options = ring_options().address(kernels).guard(true);
    drop(open_xdp(&veth.left, &options));
}

/// A neighbor solicitation from `from` about `target`, sent to the solicited-node group.
fn solicitation(from: ([u8; 6], Ipv6Addr), target: Ipv6Addr) -> Vec<u8> {
    let group = v6::solicited_node(target);
    let path = v6::Path {
        from_mac: from.0,
        to_mac: v6::group_mac(group),
        from: from.1,
        to: group,
        hop_limit: 255,
    };
    let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
    message.extend(target.octets());
    message.extend([1, 1]);
    message.extend(from.0);
    v6::frame(path, v6::ICMPV6, &message)
}

/// The type and the target of a neighbor discovery message.
fn neighbor_message(frame: &[u8]) -> Option<(u8, Ipv6Addr)> {
    let packet = v6::Packet::read(frame)?;
    let target: &[u8; 16] = packet.payload.get(8..)?.first_chunk()?;
    let is_one = packet.next == v6::ICMPV6 && packet.is_right();
    is_one.then(|| (packet.payload[0], (*target).into()))
}

/// `ours` and `kernels` have the same solicited-node group.
fn the_kernel_keeps_what_is_not_ours_of_ipv6() {
    let veth = Veth::new();
    std::fs::write(
        format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", veth.left),
        "0",
    )
    .unwrap();
    let address = |host| Ipv6Addr::new(0xfd00, 0x78, 0, veth.subnet.into(), 0, 0, host, 1);
    let (ours, kernels, asking) = (address(1), address(2), address(3));
    ip(&format!("addr add {kernels}/64 dev {} nodad", veth.left));
    // The kernel joins the group of its address some time after the command.
    let group = u128::from(v6::solicited_node(kernels));
    let entry = format!(" {group:032x} ");
    wait_until("the kernel does not listen", || {
        let groups = std::fs::read_to_string("/proc/net/igmp6").unwrap();
        groups
            .lines()
            .any(|line| line.contains(&veth.left) && line.contains(&entry))
    });
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let ipv4 = veth.peer().our_address();
        let options = ring_options().mode(mode).address(ipv4).address(ours);
        let mut port = open_xdp(&veth.left, &options);
        let mut right = veth.open_right();
        for target in [kernels, ours] {
            let frame = solicitation((right.mac, asking), target);
            assert_eq!(right.tx.transmit(&[TxFrame::new(&frame)]), Ok(1));
        }
        let request = arp_request(right.mac, veth.subnet, ipv4);
        assert_eq!(right.tx.transmit(&[TxFrame::new(&request)]), Ok(1));
        right.claim_exactly(1, |frame| neighbor_message(frame) == Some((136, kernels)));
        let mut seen = Vec::new();
        port.claim_while(|frame| {
            seen.extend(neighbor_message(&frame));
            !packet::is_arp_request(&frame, ipv4)
        });
        assert_eq!(seen, [(135, ours)]);
    }
    for (addresses, complaint) in [
        (
            vec![ours.into(), kernels.into()],
            "the kernel owns fd00:78:",
        ),
        (vec![], "1 to 64 addresses"),
        (vec![ours.into(); 65], "1 to 64 addresses"),
    ] {
        let options = ring_options().redirect(Redirect::Addresses(addresses));
        let error = AfXdp::open(&veth.left, &options).unwrap_err();
        assert!(error.to_string().contains(complaint), "{error}");
    }
    let most = Redirect::Addresses(vec![ours.into(); 64]);
    drop(open_xdp(&veth.left, &ring_options().redirect(most)));
}

fn the_program_follows_addresses_that_come_and_go() {
    let veth = Veth::new();
    let address = |last| Ipv4Addr::new(10, 78, veth.subnet, last);
    let (first, second, kernels) = (address(1), address(4), address(3));
    ip(&format!("addr add {kernels}/24 dev {}", veth.left));
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let options = ring_options().mode(mode).address(first);
        let device = AfXdp::open(&veth.left, &options).unwrap();
        let filter = device.address_filter().unwrap();
        let mut port = Port::new(device);
        let mut right = veth.open_right();
        let ask = |right: &mut Port, target: Ipv4Addr| {
            let request = arp_request(right.mac, veth.subnet, target);
            assert_eq!(right.tx.transmit(&[TxFrame::new(&request)]), Ok(1));
        };
        // Whether a request for `asked` reaches us. A later request for `ours`, which always does,
        // marks the end.
        let mut hears = |right: &mut Port, asked: Ipv4Addr, ours: Ipv4Addr| {
            ask(right, asked);
            ask(right, ours);
            let mut heard = false;
            port.claim_while(|frame| {
                heard |= packet::is_arp_request(&frame, asked);
                !packet::is_arp_request(&frame, ours)
            });
            heard
        };
        assert!(!hears(&mut right, second, first));
        filter.add(second.into()).unwrap();
        filter.add(second.into()).unwrap();
        assert!(hears(&mut right, second, first));
        filter.remove(first.into()).unwrap();
        assert!(!hears(&mut right, first, second));
        let error = filter.add(kernels.into()).unwrap_err();
        assert!(matches!(error, DeviceError::AddressInUse { .. }), "{error}");
        for last in 100..163 {
            filter.add(address(last).into()).unwrap();
        }
        let error = filter.add(address(163).into()).unwrap_err();
        assert!(error.to_string().contains("64 addresses"), "{error}");
        assert!(hears(&mut right, address(162), second));
        // Without any of our addresses, the kernel gets all frames.
        for last in [4].into_iter().chain(100..163) {
            filter.remove(address(last).into()).unwrap();
        }
        ask(&mut right, kernels);
        right.claim_exactly(1, |frame| is_arp_reply(frame, kernels));
        filter.add(first.into()).unwrap();
        assert!(!hears(&mut right, second, first));
        // The filter changes the program, but does not keep it attached.
        drop(port);
        wait_until("the program stays", || !has_program(&veth.left));
        filter.add(second.into()).unwrap();
    }
}

fn several_queues_share_their_memory() {
    let queues = "numtxqueues 4 numrxqueues 4";
    let veth = Veth::with(queues, queues);
    let peer = veth.peer();
    let options = ring_options().address(peer.our_address());
    let devices = AfXdp::open_queues(&veth.left, &options, 4).unwrap();
    let mut ports: Vec<_> = devices.into_iter().map(Port::new).collect();
    let mut kept = Vec::new();
    peer.flows_by_queue(&mut ports, 5, Some(&mut kept));
    // Frames return to their own queue even if another device releases them.
    ports[3].rx.release(&mut kept);
    peer.hears_every_queue(&mut ports);
    let error = AfXdp::open_queues(&veth.right, &ring_options(), 9).unwrap_err();
    assert!(error.to_string().contains("no such queue"), "{error}");
}

fn long_frames_pass_in_pieces() {
    let veth = Veth::new();
    for interface in [&veth.left, &veth.right] {
        ip(&format!("link set {interface} mtu 9000"));
    }
    let options = ring_options();
    let mut left = open_xdp(&veth.left, &options);
    let mut right = veth.open_right();
    assert_eq!(left.caps.mtu, 9000);
    for (number, len) in (0..).zip([60, 4072, 4073, 4096, 8144, 8145, 9014]) {
        let there = experiment(right.mac, left.mac, number, len);
        let back = experiment(left.mac, right.mac, number, len);
        // In two parts, so that pieces end in either part.
        let frame = TxFrame {
            head: &there[..54],
            payload: &there[54..],
            meta: Default::default(),
        };
        assert_eq!(left.tx.transmit(&[frame]), Ok(1));
        assert_eq!(right.tx.transmit(&[TxFrame::new(&back)]), Ok(1));
        let got = right.claim_exactly(1, |frame| is_experiment(frame));
        assert_eq!(got[0].bytes(), there, "{len} bytes sent");
        let got = left.claim_exactly(1, |frame| is_experiment(frame));
        assert_eq!(got[0].bytes(), back, "{len} bytes received");
    }
}

fn frames_lie_where_nobody_can_write_and_may_be_kept() {
    let veth = Veth::new();
    let mut port = open_xdp(&veth.left, &ring_options().rx_chunks(64));
    let mut other = veth.open_right();
    let mut kept = Vec::new();
    for number in 0..500 {
        send_experiments(&mut other, &port, number..number + 1);
        let mut got = port.claim_exactly(1, |frame| is_experiment(frame));
        if number < 100 {
            kept.append(&mut got);
        }
    }
    for (number, frame) in (0..).zip(&kept) {
        assert_eq!(frame.bytes(), experiment(port.mac, other.mac, number, 1514));
    }
    let stats = port.rx.stats();
    assert!(kept[0].is_in_place() && stats.copied > 0, "{stats:?}");
    assert_eq!(stats.dropped, 0, "{stats:?}");
    let address = kept[0].bytes().as_ptr().addr();
    assert!(mapping_of(address).contains(" r--s "));
    let mac = port.mac;
    drop(port);
    assert_eq!(kept[0].bytes(), experiment(mac, other.mac, 0, 1514));
}

fn a_burst_beyond_the_ring_is_counted() {
    let veth = Veth::new();
    let mut port = open_xdp(&veth.left, &ring_options().rx_chunks(64));
    let mut other = veth.open_right();
    let count = 300;
    send_experiments(&mut other, &port, 0..count);
    let mut got = 0;
    let deadline = Instant::now() + TIMEOUT;
    while got + port.rx.stats().dropped < count.into() {
        let mut frames = Vec::new();
        port.rx.claim(32, &mut frames).unwrap();
        got += frames.iter().filter(|frame| is_experiment(frame)).count() as u64;
        assert!(Instant::now() < deadline, "{got} {:?}", port.rx.stats());
    }
    assert!(port.rx.stats().dropped > 100, "{:?}", port.rx.stats());
    // Later frames find room again.
    send_experiments(&mut other, &port, 7..8);
    let got = port.claim_exactly(1, |frame| is_experiment(frame));
    assert_eq!(got[0].bytes(), experiment(port.mac, other.mac, 7, 1514));
}

/// Whether an XDP program is attached.
pub(crate) fn has_program(interface: &str) -> bool {
    let output = Command::new("ip")
        .args(["-d", "link", "show", "dev", interface])
        .output()
        .unwrap();
    String::from_utf8(output.stdout)
        .unwrap()
        .contains("prog/xdp")
}

fn opened_and_closed_again_and_again() {
    let veth = Veth::new();
    for mode in [XdpMode::Native, XdpMode::Generic, XdpMode::Auto] {
        for _ in 0..3 {
            let options = ring_options().mode(mode);
            let mut port = open_xdp(&veth.left, &options);
            assert!(has_program(&veth.left));
            let mut other = veth.open_right();
            send_experiments(&mut other, &port, 0..1);
            port.claim_exactly(1, |frame| is_experiment(frame));
            // Each half keeps the program attached.
            drop(port.rx);
            assert!(has_program(&veth.left));
            drop(port.tx);
            assert!(!has_program(&veth.left));
        }
    }
}

/// Between fork(2) and execve(2), a child process has copies of all descriptors.
fn a_program_that_starts_meanwhile_keeps_none_open() {
    let veth = Veth::new();
    let tap = format!("{}t", veth.left);
    ip(&format!("tuntap add dev {tap} mode tap"));
    let is_over = AtomicBool::new(false);
    // The child looks for its program in each of these folders.
    let folders = "/no:".repeat(4_000);
    thread::scope(|scope| {
        scope.spawn(|| {
            // It ends also if the other thread fails.
            for _ in (0..1_000).take_while(|_| !is_over.load(Relaxed)) {
                let error = Command::new("none").env("PATH", &folders).status();
                assert!(error.is_err());
            }
        });
        for _ in 0..10 {
            drop(AfXdp::open(&veth.left, &ring_options()).unwrap());
            assert!(!has_program(&veth.left));
            for _ in 0..3 {
                let _held = Tap::open(&tap).unwrap();
                // The other thread begins a child process meanwhile.
                thread::sleep(Duration::from_millis(10));
            }
        }
        is_over.store(true, Relaxed);
    });
    ip(&format!("link del {tap}"));
}

fn what_cannot_be_had_is_named() {
    let veth = Veth::new();
    let open = |options: AfXdpOptions| AfXdp::open(&veth.left, &options).unwrap_err().to_string();
    let error = open(ring_options().bind(XdpBind::ZeroCopy));
    assert!(error.contains("XdpBind::Copy"), "{error}");
    let _first = open_xdp(&veth.left, &ring_options().redirect(Redirect::Everything));
    let error = open(ring_options());
    assert!(error.contains("xdp off"), "{error}");
    let error = AfXdp::open("not-there", &ring_options()).unwrap_err();
    assert!(matches!(error, DeviceError::NoSuchInterface { .. }));
}
