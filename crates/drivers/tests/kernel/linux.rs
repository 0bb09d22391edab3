//! The tests, and the interfaces that they need.

#[path = "edges.rs"]
mod edges;
#[path = "killed.rs"]
mod killed;
#[cfg(feature = "smoltcp")]
#[path = "phy.rs"]
mod phy;
#[path = "../support/mod.rs"]
mod support;

use dominoes_drivers::af_packet::{AfPacket, AfPacketOptions, MacChoice, RxRing, Spread};
use dominoes_drivers::af_xdp::{AfXdp, AfXdpOptions, Redirect, XdpBind, XdpMode, XdpTransmit};
use dominoes_drivers::tap::Tap;
use dominoes_drivers::{
    Device, DeviceError, GsoKind, RxChecksum, RxChecksumSupport, TxChecksum, TxFrame,
};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use std::env;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::ops::RangeInclusive;
use std::process::{Command, ExitCode};
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};
use support::packet::{self, ACK, Path, RST, SYN, Tcp, experiment, is_experiment};
use support::{Port, TIMEOUT, behaviour};

/// Set in the copy of this program that runs inside the namespace.
const INSIDE: &str = "DOMINOES_TEST_INSIDE";

/// Set in a copy that only opens a device and prints the error: `packet:INTERFACE`, `tap:INTERFACE`
/// or `xdp:INTERFACE`; or one that is to be killed: `flood:KIND:INTERFACE`.
const OPEN: &str = "DOMINOES_TEST_OPEN";

pub(super) fn main() -> ExitCode {
    if let Ok(what) = env::var(OPEN) {
        return open_and_report(&what);
    }
    let trapped = if env::var_os(INSIDE).is_some() {
        // Interfaces of the kind used here may reorder what different cores send, so all stays on
        // one.
        if let Some(core) = core_affinity::get_core_ids().and_then(|cores| cores.last().copied()) {
            core_affinity::set_for_current(core);
        }
        // Neighbour discovery of the kernel would mix with the tests' own frames.
        let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
        None
    } else {
        match enter_namespace() {
            Ok(code) => return code,
            Err(reason) => Some(reason),
        }
    };
    let arguments = Arguments::from_args();
    let missing = Missing {
        packet: trapped.clone().or_else(packet_missing),
        xdp: trapped.clone().or_else(packet_missing).or_else(xdp_missing),
        tap: trapped.or_else(tap_missing),
        required: env::var("REQUIRE").unwrap_or_default(),
    };
    libtest_mimic::run(&arguments, trials(&missing)).exit_code()
}

/// A test of a mapped ring.
type RingTest = fn(RxRing);

/// The ways to receive from a packet socket.
const RINGS: [(&str, RxRing); 3] = [
    ("copies", RxRing::None),
    ("slots", RxRing::Slots),
    ("blocks", RxRing::Blocks),
];

/// A test of a device whose other end is the kernel.
type PeerTest = fn(Port, Peer);

fn trials(missing: &Missing) -> Vec<Trial> {
    let mut trials = Vec::new();
    for &(name, test) in behaviour::ALL {
        for (kind, ring) in RINGS {
            trials.push(
                missing.packet(&format!("packet_{kind}_pair::{name}"), move || {
                    let veth = Veth::new();
                    let options = || AfPacketOptions::default().ring(ring);
                    test(
                        Port::new(AfPacket::open(&veth.left, options()).unwrap()),
                        Port::new(AfPacket::open(&veth.right, options()).unwrap()),
                    );
                }),
            );
        }
        for mode in [XdpMode::Native, XdpMode::Generic] {
            let prefix = format!("{mode:?}").to_lowercase();
            trials.push(missing.xdp(&format!("xdp_{prefix}_pair::{name}"), move || {
                let veth = Veth::new();
                let options = AfXdpOptions::default().mode(mode);
                let left = open_xdp(&veth.left, &options);
                test(left, open_xdp(&veth.right, &options));
            }));
        }
        #[cfg(feature = "pnet")]
        trials.push(missing.packet(&format!("pnet_pair::{name}"), move || {
            use dominoes_drivers::pnet::Pnet;
            let veth = Veth::new();
            test(
                Port::new(Pnet::open(&veth.left).unwrap()),
                Port::new(Pnet::open(&veth.right).unwrap()),
            );
        }));
        #[cfg(feature = "pnet")]
        trials.push(
            missing.packet(&format!("packet_and_pnet::{name}"), move || {
                let veth = Veth::new();
                // It could not tell that something is left to be done.
                let options = AfPacketOptions::default().offloads(false);
                let right = dominoes_drivers::pnet::Pnet::open(&veth.right).unwrap();
                test(
                    Port::new(AfPacket::open(&veth.left, options).unwrap()),
                    Port::new(right),
                );
            }),
        );
        trials.push(missing.xdp(&format!("xdp_and_packet::{name}"), move || {
            let veth = Veth::new();
            let left = open_xdp(&veth.left, &AfXdpOptions::default());
            test(left, veth.open_right());
        }));
        trials.push(
            missing.xdp(&format!("xdp_sending_packets::{name}"), move || {
                let veth = Veth::new();
                let options = AfXdpOptions::default().transmit(XdpTransmit::Packet);
                let left = open_xdp(&veth.left, &options);
                test(left, veth.open_right());
            }),
        );
        trials.push(missing.xdp(&format!("packet_and_xdp::{name}"), move || {
            let veth = Veth::new();
            // The peer must not leave to us what we cannot see.
            let options = AfPacketOptions::default().offloads(false);
            let right = open_xdp(&veth.right, &AfXdpOptions::default());
            test(
                Port::new(AfPacket::open(&veth.left, options).unwrap()),
                right,
            );
        }));
        trials.push(missing.tap(&format!("tap_and_packet::{name}"), move || {
            let (tap, interface) = TapInterface::new(Tap::options());
            test(
                tap,
                Port::new(AfPacket::open(&interface.name, AfPacketOptions::default()).unwrap()),
            );
        }));
        trials.push(missing.tap(&format!("packet_and_tap::{name}"), move || {
            let (tap, interface) = TapInterface::new(Tap::options());
            test(
                Port::new(AfPacket::open(&interface.name, AfPacketOptions::default()).unwrap()),
                tap,
            );
        }));
    }
    let with_peer: &[(&str, PeerTest)] = &[
        (
            "the_kernel_asks_for_our_address",
            the_kernel_asks_for_our_address,
        ),
        (
            "a_datagram_reaches_the_kernel",
            a_datagram_reaches_the_kernel,
        ),
        (
            "one_frame_becomes_fifty_datagrams",
            one_frame_becomes_fifty_datagrams,
        ),
        (
            "tcp_moves_in_large_frames_both_ways",
            tcp_moves_in_large_frames_both_ways,
        ),
        (
            "a_link_that_goes_down_says_so_and_comes_back",
            a_link_that_goes_down_says_so_and_comes_back,
        ),
        ("a_deleted_interface_is_gone", a_deleted_interface_is_gone),
    ];
    for &(name, test) in with_peer {
        for (kind, ring) in RINGS {
            trials.push(missing.packet(&format!("packet_{kind}::{name}"), move || {
                let veth = Veth::new();
                let port = veth.open_left_with(AfPacketOptions::default().ring(ring));
                test(port, veth.peer());
            }));
        }
        // AF_XDP has no frames that stand for several segments.
        if name != "tcp_moves_in_large_frames_both_ways" {
            trials.push(missing.xdp(&format!("xdp::{name}"), move || {
                let veth = Veth::new();
                let peer = veth.peer();
                let options = AfXdpOptions::default().address(peer.our_address());
                test(open_xdp(&veth.left, &options), peer);
            }));
        }
        if name != "tcp_moves_in_large_frames_both_ways" {
            trials.push(
                missing.xdp(&format!("xdp_sending_packets::{name}"), move || {
                    let veth = Veth::new();
                    let peer = veth.peer();
                    let options = AfXdpOptions::default()
                        .address(peer.our_address())
                        .transmit(XdpTransmit::Packet);
                    test(open_xdp(&veth.left, &options), peer);
                }),
            );
        }
        #[cfg(feature = "pnet")]
        // It has no checksums and no segments to leave to others.
        if [
            "the_kernel_asks_for_our_address",
            "a_deleted_interface_is_gone",
        ]
        .contains(&name)
        {
            trials.push(missing.packet(&format!("pnet::{name}"), move || {
                let veth = Veth::new();
                let port = dominoes_drivers::pnet::Pnet::open(&veth.left).unwrap();
                test(Port::new(port), veth.peer());
            }));
        }
        trials.push(missing.tap(&format!("tap::{name}"), move || {
            let (tap, interface) = TapInterface::new(Tap::options());
            test(tap, interface.peer());
        }));
    }
    for (kind, ring) in [RINGS[1], RINGS[2]] {
        let tests: &[(&str, RingTest)] = &[
            (
                "several_threads_read_a_frame_where_it_lies",
                several_threads_read_a_frame_where_it_lies,
            ),
            (
                "nobody_can_write_where_a_frame_lies",
                nobody_can_write_where_a_frame_lies,
            ),
            (
                "a_frame_that_is_kept_does_not_stop_the_ring",
                a_frame_that_is_kept_does_not_stop_the_ring,
            ),
            (
                "frames_that_are_all_kept_stay_as_they_came",
                frames_that_are_all_kept_stay_as_they_came,
            ),
            ("frames_outlive_their_device", frames_outlive_their_device),
            (
                "the_kernel_notes_when_a_frame_came",
                the_kernel_notes_when_a_frame_came,
            ),
            (
                "a_full_ring_counts_what_it_drops",
                a_full_ring_counts_what_it_drops,
            ),
            ("a_vlan_tag_is_kept", a_vlan_tag_is_kept),
        ];
        for &(name, test) in tests {
            trials.push(missing.packet(&format!("packet_{kind}::{name}"), move || test(ring)));
        }
    }
    trials.extend([
        missing.packet(
            "packet_slots::long_frames_keep_their_turn",
            long_frames_keep_their_turn,
        ),
        missing.packet(
            "packet::flows_stay_with_one_of_several_queues",
            flows_stay_with_one_of_several_queues,
        ),
        missing.packet(
            "packet::an_address_of_the_kernel_is_refused",
            an_address_of_the_kernel_is_refused,
        ),
        missing.packet(
            "packet::an_interface_that_is_not_there_is_named",
            an_interface_that_is_not_there_is_named,
        ),
        missing.packet(
            "packet::a_frame_beyond_a_shrunken_mtu_is_dropped",
            a_frame_beyond_a_shrunken_mtu_is_dropped,
        ),
        missing.packet(
            "packet::our_own_frames_do_not_come_back",
            our_own_frames_do_not_come_back,
        ),
        missing.packet(
            "packet::frames_to_an_address_of_ours_arrive",
            frames_to_an_address_of_ours_arrive,
        ),
        missing.packet(
            "packet::a_full_receive_buffer_counts_what_it_drops",
            a_full_receive_buffer_counts_what_it_drops,
        ),
        missing.packet("packet::a_vlan_tag_is_kept", || {
            a_vlan_tag_is_kept(RxRing::None);
        }),
        missing.xdp(
            "packet::the_kernel_does_not_route_what_is_ours",
            the_kernel_does_not_route_what_is_ours,
        ),
        missing.trial(
            "packet::tcp_arrives_merged_by_our_interface",
            "tools",
            missing.packet.clone(),
            tcp_arrives_merged_by_our_interface,
        ),
        missing.tap("tap_merged::tcp_leaves_in_large_frames", || {
            let options = Tap::options().segmentation(false).merged(true);
            let (tap, interface) = TapInterface::new(options);
            tcp_leaves_in_large_frames(tap, interface.peer());
        }),
        missing.xdp("xdp_sending_packets::tcp_leaves_in_large_frames", || {
            let veth = Veth::new();
            let peer = veth.peer();
            let options = AfXdpOptions::default()
                .address(peer.our_address())
                .trust_checksums(true)
                .transmit(XdpTransmit::Packet);
            tcp_leaves_in_large_frames(Port::new(AfXdp::open(&veth.left, &options).unwrap()), peer);
        }),
        missing.xdp(
            "packet::a_guarded_address_may_be_the_kernels",
            a_guarded_address_may_be_the_kernels,
        ),
        missing.xdp(
            "xdp::the_kernel_keeps_what_is_not_ours",
            the_kernel_keeps_what_is_not_ours,
        ),
        missing.xdp(
            "xdp::several_queues_share_their_memory",
            several_queues_share_their_memory,
        ),
        missing.xdp(
            "xdp::long_frames_pass_in_pieces",
            long_frames_pass_in_pieces,
        ),
        missing.xdp(
            "xdp::frames_lie_where_nobody_can_write_and_may_be_kept",
            frames_lie_where_nobody_can_write_and_may_be_kept,
        ),
        missing.xdp(
            "xdp::a_burst_beyond_the_ring_is_counted",
            a_burst_beyond_the_ring_is_counted,
        ),
        missing.xdp(
            "xdp::opened_and_closed_again_and_again",
            opened_and_closed_again_and_again,
        ),
        missing.xdp(
            "xdp::what_cannot_be_had_is_named",
            what_cannot_be_had_is_named,
        ),
        missing.trial(
            "xdp::a_missing_privilege_is_named",
            "tools",
            missing.xdp.clone(),
            || {
                privilege("xdp", "net_raw")?;
                // CAP_SYS_ADMIN stands for it.
                privilege("xdp", "bpf,-sys_admin")
            },
        ),
        missing.trial(
            "packet::a_missing_privilege_is_named",
            "tools",
            missing.packet.clone(),
            || privilege("packet", "net_raw"),
        ),
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
        missing.trial(
            "tap::a_missing_privilege_is_named",
            "tools",
            missing.tap.clone(),
            || privilege("tap", "net_admin"),
        ),
    ]);
    trials.extend(edges::trials(missing));
    trials.extend(killed::trials(missing));
    #[cfg(feature = "smoltcp")]
    trials.extend(phy::trials(missing));
    trials
}

// What can run
// -------------------------------------------------------------------------------------------------------

/// Why tests cannot run here, if so.
struct Missing {
    packet: Option<String>,
    tap: Option<String>,
    xdp: Option<String>,
    required: String,
}

impl Missing {
    fn packet(&self, name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
        self.trial(name, "packet", self.packet.clone(), || {
            test();
            Ok(())
        })
    }

    fn tap(&self, name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
        // The other end of some is a packet socket.
        self.trial(
            name,
            "tap",
            self.tap.clone().or_else(|| self.packet.clone()),
            || {
                test();
                Ok(())
            },
        )
    }

    fn xdp(&self, name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
        self.trial(name, "xdp", self.xdp.clone(), || {
            test();
            Ok(())
        })
    }

    /// A test that is ignored for the reason that is known beforehand, or for the one it returns.
    fn trial(
        &self,
        name: &str,
        needs: &str,
        reason: Option<String>,
        test: impl FnOnce() -> Result<(), String> + Send + 'static,
    ) -> Trial {
        let required = self
            .required
            .split(',')
            .any(|required| required.trim() == needs);
        Trial::ignorable_test(name, move || match reason.map_or_else(test, Err) {
            Ok(()) => Ok(Completion::Completed),
            Err(reason) if required => Err(Failed::from(format!("required, but {reason}"))),
            Err(reason) => Ok(Completion::ignored_with(reason)),
        })
    }
}

fn packet_missing() -> Option<String> {
    if Command::new("ip").arg("-V").output().is_err() {
        return Some("needs the command ip (iproute2)".to_owned());
    }
    // The loopback interface is no Ethernet; finding that out takes a packet socket.
    match AfPacket::open("lo", AfPacketOptions::default()) {
        Err(DeviceError::Unsuitable { .. }) => {}
        Err(error) => return Some(error.to_string()),
        Ok(_) => return Some("the loopback interface is an Ethernet".to_owned()),
    }
    try_ip("link add probe0 type veth peer name probe1")
        .and_then(|()| try_ip("link del probe0"))
        .err()
}

fn xdp_missing() -> Option<String> {
    try_ip("link add probe3 type veth peer name probe4")
        .err()
        .or_else(|| {
            let error = AfXdp::open("probe3", &AfXdpOptions::default()).err();
            ip("link del probe3");
            error.map(|error| error.to_string())
        })
}

fn tap_missing() -> Option<String> {
    Tap::open("probe2").err().map(|error| error.to_string())
}

/// Runs this program again in a network namespace of its own.
fn enter_namespace() -> Result<ExitCode, String> {
    let program = env::current_exe().map_err(|error| error.to_string())?;
    // As root a network namespace is enough; others become root of a user namespace first.
    let flags = ["-n", "-Urn"].into_iter().find(|flags| {
        Command::new("unshare")
            .args([flags, "true"])
            .output()
            .is_ok_and(|output| output.status.success())
    });
    let flags = flags.ok_or("needs CAP_SYS_ADMIN, or user namespaces: unshare -Urn fails")?;
    let status = Command::new("unshare")
        .arg(flags)
        .arg(program)
        .args(env::args_os().skip(1))
        .env(INSIDE, "1")
        .status();
    let status = status.map_err(|error| error.to_string())?;
    Ok(status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .map_or(ExitCode::FAILURE, ExitCode::from))
}

fn try_ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "ip {arguments}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    ))
}

fn ip(arguments: &str) {
    try_ip(arguments).unwrap();
}

/// Sets an interface up and waits until it carries frames.
fn bring_up(interface: &str) {
    ip(&format!("link set {interface} up"));
    wait_until_running(interface);
}

/// An interface that was just set up still drops what is sent for a moment, without a word.
fn wait_until_running(interface: &str) {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let output = Command::new("ip")
            .args(["-o", "link", "show", "dev", interface])
            .output()
            .unwrap();
        let line = String::from_utf8(output.stdout).unwrap();
        // A TAP interface does not tell.
        if line.contains(" state UP ")
            || line.contains(",LOWER_UP> ") && line.contains(" state UNKNOWN ")
        {
            return;
        }
        assert!(Instant::now() < deadline, "it does not come up: {line}");
        thread::sleep(Duration::from_millis(5));
    }
}

// Interfaces
// ---------------------------------------------------------------------------------------------------------

/// The kernel at the other end.
struct Peer {
    /// The interface on our side, to be set down or deleted.
    ours: String,
    /// The interface that has the kernel's address.
    kernels: String,
    subnet: u8,
}

impl Peer {
    fn address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 78, self.subnet, 2)
    }

    /// The address that the tests use as ours. No interface has it.
    fn our_address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 78, self.subnet, 1)
    }

    fn mac(&self) -> [u8; 6] {
        let text = std::fs::read_to_string(format!("/sys/class/net/{}/address", self.kernels));
        // The file system still shows the namespace that it was mounted in, so ask otherwise if
        // need be.
        let text = text.unwrap_or_else(|_| {
            let output = Command::new("ip")
                .args(["-o", "link", "show", "dev", &self.kernels])
                .output()
                .unwrap();
            let line = String::from_utf8(output.stdout).unwrap();
            line.split("link/ether ")
                .nth(1)
                .unwrap()
                .split(' ')
                .next()
                .unwrap()
                .to_owned()
        });
        let mut mac = [0; 6];
        for (place, byte) in mac.iter_mut().zip(text.trim().split(':')) {
            *place = u8::from_str_radix(byte, 16).unwrap();
        }
        mac
    }

    /// Tells the kernel our Ethernet address, so that it need not ask.
    fn introduce(&self, mac: [u8; 6]) {
        let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
        ip(&format!(
            "neigh replace {} lladdr {mac} dev {}",
            self.our_address(),
            self.kernels
        ));
    }

    fn path(&self, port: &Port, from: u16, to: u16) -> Path {
        Path {
            from_mac: port.mac,
            to_mac: self.mac(),
            from: (self.our_address(), from),
            to: (self.address(), to),
        }
    }

    fn socket(&self) -> UdpSocket {
        let socket = UdpSocket::bind((self.address(), 0)).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket
    }
}

static NEXT_SUBNET: AtomicU8 = AtomicU8::new(1);

/// Two joined interfaces: the left is ours, the right has the kernel's address. Deleted in the end.
struct Veth {
    left: String,
    right: String,
    subnet: u8,
}

impl Veth {
    fn new() -> Self {
        Self::with("", "")
    }

    /// Two interfaces that are down and have no address.
    fn named(left: &str, right: &str) -> Self {
        ip(&format!("link add {left} type veth peer name {right}"));
        Self {
            left: left.to_owned(),
            right: right.to_owned(),
            subnet: 0,
        }
    }

    /// With more to say about both interfaces, and about the right one's kind.
    fn with(both: &str, peer: &str) -> Self {
        let subnet = NEXT_SUBNET.fetch_add(1, Relaxed);
        let (left, right) = (format!("left{subnet}"), format!("right{subnet}"));
        let both = if both.is_empty() {
            String::new()
        } else {
            format!("{both} ")
        };
        let peer = if peer.is_empty() {
            String::new()
        } else {
            format!(" {peer}")
        };
        ip(&format!(
            "link add {left} {both}type veth peer name {right}{peer}"
        ));
        let veth = Self {
            left,
            right,
            subnet,
        };
        ip(&format!("addr add 10.78.{subnet}.2/24 dev {}", veth.right));
        ip(&format!("link set {} up", veth.right));
        bring_up(&veth.left);
        wait_until_running(&veth.right);
        veth
    }

    fn open_left(&self) -> Port {
        self.open_left_with(AfPacketOptions::default())
    }

    fn open_left_with(&self, options: AfPacketOptions) -> Port {
        let options = options.address(self.peer().our_address());
        Port::new(AfPacket::open(&self.left, options).unwrap())
    }

    fn open_right(&self) -> Port {
        Port::new(AfPacket::open(&self.right, AfPacketOptions::default()).unwrap())
    }

    fn peer(&self) -> Peer {
        Peer {
            ours: self.left.clone(),
            kernels: self.right.clone(),
            subnet: self.subnet,
        }
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        let _ = try_ip(&format!("link del {}", self.left));
    }
}

/// A TAP interface that has the kernel's address; goes with its device.
struct TapInterface {
    name: String,
    subnet: u8,
}

impl TapInterface {
    fn new(options: dominoes_drivers::tap::TapOptions) -> (Port, Self) {
        let subnet = NEXT_SUBNET.fetch_add(1, Relaxed);
        let name = format!("tap{subnet}");
        let port = Port::new(options.open(&name).unwrap());
        ip(&format!("addr add 10.78.{subnet}.2/24 dev {name}"));
        bring_up(&name);
        (port, Self { name, subnet })
    }

    fn peer(&self) -> Peer {
        Peer {
            ours: self.name.clone(),
            kernels: self.name.clone(),
            subnet: self.subnet,
        }
    }
}

// Against the kernel's stack
// -----------------------------------------------------------------------------------------

fn the_kernel_asks_for_our_address(mut port: Port, peer: Peer) {
    let ours = peer.our_address();
    peer.socket().send_to(b"hello", (ours, 9)).unwrap();
    let request = port
        .claim_exactly(1, |frame| packet::is_arp_request(frame, ours))
        .remove(0);
    assert_eq!(request[..6], [0xff; 6]);
    assert_eq!(request[6..12], peer.mac());
}

fn a_datagram_reaches_the_kernel(mut port: Port, peer: Peer) {
    peer.introduce(port.mac);
    let socket = peer.socket();
    let path = peer.path(&port, 7, socket.local_addr().unwrap().port());
    let mut buffer = [0; 2000];

    // The device does the checksum, then we do.
    let packet = packet::udp(path, b"left to the device", None);
    assert_eq!(port.tx.transmit(&[packet.frame()]), Ok(1));
    let (len, from) = socket.recv_from(&mut buffer).unwrap();
    assert_eq!(
        (&buffer[..len], from.port()),
        (&b"left to the device"[..], 7)
    );
    let bytes = packet::udp(path, b"done by us", None).completed();
    assert_eq!(port.tx.transmit(&[TxFrame::new(&bytes)]), Ok(1));
    assert_eq!(socket.recv(&mut buffer).unwrap(), 10);

    // And back: the kernel leaves the checksum to us, and says so.
    socket.send_to(b"answer", from).unwrap();
    let answer = port
        .claim_exactly(1, |frame| packet::parse_udp(frame) == Some(b"answer"))
        .remove(0);
    let expected = match port.caps.rx_checksum {
        RxChecksumSupport::PerFrame => RxChecksum::Partial {
            start: 34,
            offset: 6,
        },
        _ => RxChecksum::Verify,
    };
    assert_eq!(answer.meta.checksum, expected);
    assert_eq!(answer.meta.gso, None);
}

fn one_frame_becomes_fifty_datagrams(mut port: Port, peer: Peer) {
    if port.caps.uso_max_bytes == 0 {
        return;
    }
    let socket = peer.socket();
    let path = peer.path(&port, 7, socket.local_addr().unwrap().port());
    let payload: Vec<u8> = (0..50_000u32).map(|at| (at / 1000) as u8).collect();
    let packet = packet::udp(path, &payload, Some(1000));
    assert_eq!(port.tx.transmit(&[packet.frame()]), Ok(1));
    let mut buffer = [0; 2000];
    for number in 0..50 {
        let len = socket.recv(&mut buffer).unwrap();
        assert_eq!(buffer[..len], [number; 1000]);
    }
}

/// A TCP connection from the kernel to us: it sends a megabyte, we acknowledge and send one large
/// frame back.
fn tcp_moves_in_large_frames_both_ways(port: Port, peer: Peer) {
    tcp_moves(port, peer, 40_000..=65_549);
}

/// The kernel sends frames that the link carries, and takes larger ones.
fn tcp_leaves_in_large_frames(port: Port, peer: Peer) {
    tcp_moves(port, peer, 1514..=1514);
}

/// Our interface merges what the kernel at the other end has divided.
fn tcp_arrives_merged_by_our_interface() -> Result<(), String> {
    let veth = Veth::new();
    let (left, right) = (veth.left.clone(), veth.right.clone());
    for arguments in [
        ["-K", &right, "tso", "off", "gso", "off"],
        ["-K", &left, "gro", "on", "gso", "on"],
    ] {
        let done = Command::new("ethtool").args(arguments).output();
        let done = done.map_err(|error| format!("needs the command ethtool: {error}"))?;
        assert!(done.status.success(), "{done:?}");
    }
    let port = veth.open_left();
    tcp_moves(port, veth.peer(), 2_000..=65_549);
    Ok(())
}

/// A megabyte from the kernel, in frames of which the longest is one of `longest`; and an answer in
/// one frame.
fn tcp_moves(mut port: Port, peer: Peer, expected: RangeInclusive<usize>) {
    const BYTES: usize = 1 << 20;
    const ANSWER: usize = 40 * 1460;
    let byte_at = |at: usize| (at / 7) as u8;
    peer.introduce(port.mac);
    let ours = (peer.our_address(), 9000);
    let kernel = thread::spawn(move || {
        let mut stream = TcpStream::connect(ours).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
            .write_all(&(0..BYTES).map(byte_at).collect::<Vec<_>>())
            .unwrap();
        let mut answer = vec![0; ANSWER];
        stream.read_exact(&mut answer).unwrap();
        answer
    });

    let Port { rx, tx, caps, mac } = port;
    let mut path = Path {
        from_mac: mac,
        to_mac: peer.mac(),
        from: ours,
        to: (peer.address(), 0),
    };
    let mut tx = tx;
    let mut send = |path, fields, payload: &[u8], size| {
        let packet = packet::tcp(path, fields, payload, size);
        assert_eq!(tx.transmit(&[packet.frame()]), Ok(1));
        assert_eq!(tx.stats().dropped, 0);
    };
    port = Port {
        rx,
        tx: Box::new(Mute),
        caps,
        mac,
    };
    let mut next = 0; // what we expect of the kernel's sequence space
    let mut received = 0;
    let mut longest = 0;
    let mut large = 0;
    port.claim_while(|frame| {
        let Some((from, fields, payload)) = packet::parse_tcp(&frame) else {
            return true;
        };
        assert_ne!(
            frame.meta.checksum,
            RxChecksum::Verify,
            "the kernel leaves checksums to us"
        );
        if fields.flags & SYN != 0 {
            path.to.1 = from;
            next = fields.seq.wrapping_add(1);
            send(
                path,
                Tcp {
                    seq: 1000,
                    ack: next,
                    flags: SYN | ACK,
                },
                &[],
                None,
            );
        } else if fields.seq == next && !payload.is_empty() {
            assert!(
                payload
                    .iter()
                    .enumerate()
                    .all(|(at, &byte)| byte == byte_at(received + at))
            );
            received += payload.len();
            next = next.wrapping_add(payload.len() as u32);
            longest = longest.max(frame.len());
            if let Some(gso) = frame.meta.gso {
                assert_eq!((gso.kind, gso.size), (GsoKind::Tcp4, 1460));
                assert!(frame.len() > 1514);
                large += 1;
            }
            send(
                path,
                Tcp {
                    seq: 1001,
                    ack: next,
                    flags: ACK,
                },
                &[],
                None,
            );
        } else if !payload.is_empty() {
            // Lost or out of order: ask for what is missing.
            send(
                path,
                Tcp {
                    seq: 1001,
                    ack: next,
                    flags: ACK,
                },
                &[],
                None,
            );
        }
        received < BYTES
    });
    assert!(
        expected.contains(&longest) && (large > 0) == (longest > 1514),
        "{large} merged frames, the longest {longest} bytes"
    );

    let answer: Vec<u8> = (0..ANSWER).map(byte_at).collect();
    send(
        path,
        Tcp {
            seq: 1001,
            ack: next,
            flags: ACK,
        },
        &answer,
        Some(1460),
    );
    assert!(kernel.join().unwrap() == answer);
    send(
        path,
        Tcp {
            seq: 1001 + ANSWER as u32,
            ack: next,
            flags: RST | ACK,
        },
        &[],
        None,
    );
}

/// Stands in for a sending half that is used elsewhere.
struct Mute;

impl dominoes_drivers::DeviceTx for Mute {
    fn transmit(&mut self, _: &[TxFrame<'_>]) -> Result<usize, DeviceError> {
        unreachable!("the sending half is elsewhere")
    }

    fn stats(&self) -> dominoes_drivers::TxStats {
        dominoes_drivers::TxStats::default()
    }
}

/// Waits until the device reports an error.
fn error_of(port: &mut Port) -> DeviceError {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let result = port.rx.wait(Some(Duration::from_millis(200)));
        match result.and_then(|()| port.rx.claim(32, &mut Vec::new()).map(drop)) {
            Err(error) => return error,
            Ok(()) => assert!(Instant::now() < deadline, "no error was reported"),
        }
    }
}

fn a_link_that_goes_down_says_so_and_comes_back(mut port: Port, peer: Peer) {
    let is_tap = peer.ours == peer.kernels;
    let mac = peer.mac();
    let bytes = experiment(mac, port.mac, 1, 60);
    ip(&format!("link set {} down", peer.ours));
    let down = DeviceError::Down {
        interface: peer.ours.clone(),
    };
    if !is_tap {
        assert_eq!(error_of(&mut port), down);
    }
    assert_eq!(port.tx.transmit(&[TxFrame::new(&bytes)]), Err(down.clone()));
    assert!(down.is_temporary());

    // Said once; then waiting waits.
    let begin = Instant::now();
    for _ in 0..3 {
        port.rx.wait(Some(Duration::from_millis(50))).unwrap();
        assert_eq!(port.rx.claim(32, &mut Vec::new()), Ok(0));
    }
    assert!(
        begin.elapsed() > Duration::from_millis(140),
        "a wait on a link that is down returned too soon"
    );

    bring_up(&peer.ours);
    wait_until_running(&peer.kernels);
    a_datagram_reaches_the_kernel(port, peer);
}

fn a_deleted_interface_is_gone(mut port: Port, peer: Peer) {
    let bytes = experiment(peer.mac(), port.mac, 1, 60);
    let gone = DeviceError::Gone {
        interface: peer.ours.clone(),
    };
    let ours = peer.ours.clone();
    let deleter = thread::spawn(move || {
        thread::sleep(Duration::from_millis(30));
        ip(&format!("link del {ours}"));
    });
    // It goes down first, which may be seen.
    let mut error = error_of(&mut port);
    if error.is_temporary() {
        error = error_of(&mut port);
    }
    deleter.join().unwrap();
    assert_eq!(error, gone);
    assert_eq!(error_of(&mut port), gone, "and stays so");
    assert_eq!(port.tx.transmit(&[TxFrame::new(&bytes)]), Err(gone));
}

// AF_PACKET
// ----------------------------------------------------------------------------------------------------------

fn an_address_of_the_kernel_is_refused() {
    let veth = Veth::new();
    let address = veth.peer().address();
    let error =
        AfPacket::open(&veth.left, AfPacketOptions::default().address(address)).unwrap_err();
    let expected = DeviceError::AddressInUse {
        address,
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
}

fn an_interface_that_is_not_there_is_named() {
    let error = AfPacket::open("not-there", AfPacketOptions::default()).unwrap_err();
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
    // Other tests' packets are among them, far fewer than ours.
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

fn a_vlan_tag_is_kept(ring: RxRing) {
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

// Mapped rings
// -------------------------------------------------------------------------------------------------------

/// A device with a ring as small as they get, its interfaces, and a device at the other end.
fn small_ring(ring: RxRing) -> (Veth, Port, Port) {
    let veth = Veth::new();
    let port = veth.open_left_with(AfPacketOptions::default().ring(ring).ring_bytes(0));
    let other = veth.open_right();
    (veth, port, other)
}

/// Sends frames for experiments with these numbers.
fn send_experiments(from: &mut Port, to: &Port, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let bytes = experiment(to.mac, from.mac, number, 1514);
        assert_eq!(from.tx.transmit(&[TxFrame::new(&bytes)]), Ok(1));
    }
}

fn several_threads_read_a_frame_where_it_lies(ring: RxRing) {
    let (_veth, mut port, mut other) = small_ring(ring);
    send_experiments(&mut other, &port, 0..2);
    let frames = port.claim_exactly(2, |frame| is_experiment(frame));
    assert!(frames.iter().all(|frame| frame.is_in_place()));
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for (number, frame) in (0..).zip(&frames) {
                    assert_eq!(frame.bytes(), experiment(port.mac, other.mac, number, 1514));
                }
            });
        }
    });
    // A copy is one's own.
    let mut copy = frames[0].clone();
    assert!(!copy.is_in_place());
    copy.bytes_mut()[20] ^= 1;
    assert_ne!(copy.bytes(), frames[0].bytes());
    assert_eq!(port.rx.stats().copied, 0);
}

fn nobody_can_write_where_a_frame_lies(ring: RxRing) {
    let (_veth, mut port, mut other) = small_ring(ring);
    send_experiments(&mut other, &port, 0..1);
    let frame = port
        .claim_exactly(1, |frame| is_experiment(frame))
        .remove(0);
    assert!(frame.is_in_place());
    let mapping = mapping_of(frame.bytes().as_ptr().addr());
    assert!(mapping.contains(" r--s "), "{mapping}");
}

/// The line of `/proc/self/maps` about an address.
fn mapping_of(address: usize) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mapping = maps.lines().find(|line| {
        let range = line.split(' ').next().unwrap().split_once('-').unwrap();
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        (number(range.0)..number(range.1)).contains(&address)
    });
    mapping.expect("the frame lies in a mapping").to_owned()
}

/// Sends many times what the ring holds while one frame is kept, several times over.
fn a_frame_that_is_kept_does_not_stop_the_ring(ring: RxRing) {
    let (_veth, mut port, mut other) = small_ring(ring);
    let mut kept: Vec<dominoes_drivers::Frame> = Vec::new();
    let (rounds, each) = (6, 4000);
    for round in 0..rounds {
        for at in 0..each / 2 {
            let number = round * each + at * 2;
            send_experiments(&mut other, &port, number..number + 2);
            let mut got = port.claim_exactly(2, |frame| is_experiment(frame));
            for (number, frame) in (number..).zip(&got) {
                assert_eq!(frame.bytes()[14..18], number.to_be_bytes());
            }
            if at == 0 {
                kept.push(got.remove(0));
            }
            port.rx.release(&mut got);
            // V3 hands a block over per millisecond, so hurrying does not help.
            if ring == RxRing::Blocks && at == each / 16 {
                break;
            }
        }
        for (round, frame) in (0..).zip(&kept) {
            let expected = experiment(port.mac, other.mac, round * each, 1514);
            assert_eq!(frame.bytes(), expected, "a frame that was kept has changed");
        }
    }
    let stats = port.rx.stats();
    assert!(stats.copied_out > 0, "{stats:?}");
    assert_eq!(stats.dropped, 0, "{stats:?}");

    // Once they are released, the ring is as good as new.
    port.rx.release(&mut kept);
    let lap = 10;
    for number in 0..lap {
        send_experiments(&mut other, &port, number..number + 1);
        let mut got = port.claim_exactly(1, |frame| is_experiment(frame));
        assert_eq!(
            got[0].bytes(),
            experiment(port.mac, other.mac, number, 1514)
        );
        assert!(
            number < lap / 2 || got[0].is_in_place(),
            "frame {number} was copied: {:?}",
            port.rx.stats()
        );
        port.rx.release(&mut got);
    }
}

fn frames_that_are_all_kept_stay_as_they_came(ring: RxRing) {
    let (_veth, mut port, mut other) = small_ring(ring);
    let mut kept = Vec::new();
    for number in 0..100 {
        send_experiments(&mut other, &port, number..number + 1);
        kept.extend(port.claim_exactly(1, |frame| is_experiment(frame)));
    }
    for (number, frame) in (0..).zip(&kept) {
        assert_eq!(
            frame.bytes(),
            experiment(port.mac, other.mac, number, 1514),
            "frame {number}"
        );
    }
    let stats = port.rx.stats();
    assert!(stats.copied > 0 && stats.dropped == 0, "{stats:?}");
}

fn frames_outlive_their_device(ring: RxRing) {
    let (veth, mut port, mut other) = small_ring(ring);
    let mac = port.mac;
    send_experiments(&mut other, &port, 0..1);
    let frame = port
        .claim_exactly(1, |frame| is_experiment(frame))
        .remove(0);
    drop(port);
    drop(veth);
    assert!(frame.is_in_place());
    assert_eq!(frame.bytes(), experiment(mac, other.mac, 0, 1514));
}

fn the_kernel_notes_when_a_frame_came(ring: RxRing) {
    let (_veth, mut port, mut other) = small_ring(ring);
    let before = std::time::SystemTime::now();
    send_experiments(&mut other, &port, 0..1);
    let frame = port
        .claim_exactly(1, |frame| is_experiment(frame))
        .remove(0);
    let noted = frame.timestamp().expect("the ring has timestamps");
    // The kernel may take the time by a coarser clock.
    let slack = Duration::from_millis(20);
    assert!(
        noted + slack >= before && noted <= std::time::SystemTime::now() + slack,
        "{before:?} {noted:?}"
    );
    assert_eq!(frame.clone().timestamp(), None);
}

fn a_full_ring_counts_what_it_drops(ring: RxRing) {
    let (_veth, mut port, mut other) = small_ring(ring);
    let count = 6_000;
    send_experiments(&mut other, &port, 0..count);
    let mut frames = Vec::new();
    let deadline = Instant::now() + TIMEOUT;
    let mut got = 0;
    while got + port.rx.stats().dropped < count.into() {
        port.rx.claim(32, &mut frames).unwrap();
        got += frames.iter().filter(|frame| is_experiment(frame)).count() as u64;
        port.rx.release(&mut frames);
        assert!(Instant::now() < deadline, "{got} {:?}", port.rx.stats());
    }
    assert!(port.rx.stats().dropped > 100, "{:?}", port.rx.stats());
}

fn long_frames_keep_their_turn() {
    let veth = Veth::new();
    for interface in [&veth.left, &veth.right] {
        ip(&format!("link set {interface} mtu 9000"));
    }
    let mut right = veth.open_right();
    let lens = [60, 4006, 4007, 9014, 1514, 5000, 5000, 60];
    for (slot, in_place) in [(0, 3990), (12_000, 9014)] {
        let options = AfPacketOptions::default().slot_bytes(slot);
        let mut left = veth.open_left_with(options);
        let sent: Vec<_> = (0..)
            .zip(lens.iter().cycle().take(80))
            .map(|(number, &len)| experiment(left.mac, right.mac, number, len))
            .collect();
        for frame in &sent {
            assert_eq!(right.tx.transmit(&[TxFrame::new(frame)]), Ok(1));
        }
        let got = left.claim_exactly(sent.len(), |frame| is_experiment(frame));
        for (got, sent) in got.iter().zip(&sent) {
            assert_eq!(got.bytes(), sent, "{} bytes", sent.len());
            assert!(
                got.is_in_place() || sent.len() > in_place,
                "{} bytes",
                sent.len()
            );
        }
        let copied = got.iter().filter(|frame| !frame.is_in_place()).count() as u64;
        assert_eq!(left.rx.stats().copied, copied);
        assert_eq!(copied > 0, slot == 0);
    }
}

fn flows_stay_with_one_of_several_queues() {
    const FLOWS: u16 = 64;
    const EACH: usize = 5;
    let veth = Veth::new();
    let peer = veth.peer();
    let devices = AfPacket::open_queues(&veth.left, &AfPacketOptions::default(), 4, Spread::Flow);
    let mut ports: Vec<_> = devices.unwrap().into_iter().map(Port::new).collect();
    peer.introduce(ports[0].mac);
    for flow in 0..FLOWS {
        let socket = peer.socket();
        for _ in 0..EACH {
            socket
                .send_to(&flow.to_be_bytes(), (peer.our_address(), 9))
                .unwrap();
        }
    }
    let mut seen = vec![[0; 4]; FLOWS.into()];
    let deadline = Instant::now() + TIMEOUT;
    let mut frames = Vec::new();
    while seen.iter().flatten().sum::<usize>() < EACH * usize::from(FLOWS) {
        for (queue, port) in ports.iter_mut().enumerate() {
            port.rx.claim(32, &mut frames).unwrap();
            for payload in frames.iter().filter_map(|frame| packet::parse_udp(frame)) {
                seen[usize::from(u16::from_be_bytes([payload[0], payload[1]]))][queue] += 1;
            }
            port.rx.release(&mut frames);
        }
        assert!(Instant::now() < deadline, "{seen:?}");
    }
    assert!(
        seen.iter().all(|queues| queues.contains(&EACH)),
        "a flow is spread: {seen:?}"
    );
    let used = (0..4).filter(|&queue| seen.iter().any(|queues| queues[queue] > 0));
    assert!(used.count() > 1, "all flows share a queue: {seen:?}");
}

// AF_XDP
// -------------------------------------------------------------------------------------------------------------

fn open_xdp(interface: &str, options: &AfXdpOptions) -> Port {
    let device = AfXdp::open(interface, options).unwrap();
    assert!(!device.is_zero_copy(), "veth has none");
    assert!(
        device
            .advice()
            .is_some_and(|advice| advice.contains("ethtool -K"))
    );
    Port::new(device)
}

/// An ARP request for `target` by an address that nobody has.
fn arp_request(from: [u8; 6], subnet: u8, target: Ipv4Addr) -> Vec<u8> {
    let mut frame = [&[0xff; 6][..], &from, &[0x08, 0x06]].concat();
    frame.extend([0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(from);
    frame.extend([10, 78, subnet, 77]);
    frame.extend([0; 6]);
    frame.extend(target.octets());
    frame
}

/// Whether this is an ARP reply from `sender`.
fn is_arp_reply(frame: &[u8], sender: Ipv4Addr) -> bool {
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
    // The kernel answers for the address that is not guarded, and did not for the one asked for
    // before.
    right.claim_while(|frame| {
        assert!(
            !is_arp_reply(&frame, guarded),
            "the kernel answered in our place"
        );
        !is_arp_reply(&frame, other)
    });
    drop(port);
    let request = arp_request(right.mac, veth.subnet, guarded);
    assert_eq!(right.tx.transmit(&[TxFrame::new(&request)]), Ok(1));
    right.claim_while(|frame| !is_arp_reply(&frame, guarded));
}

fn the_kernel_keeps_what_is_not_ours() {
    let veth = Veth::new();
    let ours = veth.peer().our_address();
    let kernels = Ipv4Addr::new(10, 78, veth.subnet, 3);
    ip(&format!("addr add {kernels}/24 dev {}", veth.left));
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let options = AfXdpOptions::default().mode(mode).address(ours);
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
    let error = AfXdp::open(&veth.left, &AfXdpOptions::default().address(kernels)).unwrap_err();
    assert!(matches!(error, DeviceError::AddressInUse { .. }), "{error}");
    let options = AfXdpOptions::default().address(kernels).guard(true);
    drop(open_xdp(&veth.left, &options));
}

fn several_queues_share_their_memory() {
    const FLOWS: u16 = 64;
    let queues = "numtxqueues 4 numrxqueues 4";
    let veth = Veth::with(queues, queues);
    let peer = veth.peer();
    let options = AfXdpOptions::default().address(peer.our_address());
    let devices = AfXdp::open_queues(&veth.left, &options, 4).unwrap();
    let mut ports: Vec<_> = devices.into_iter().map(Port::new).collect();
    peer.introduce(ports[0].mac);
    for flow in 0..FLOWS {
        let socket = peer.socket();
        for _ in 0..5 {
            socket
                .send_to(&flow.to_be_bytes(), (peer.our_address(), 9))
                .unwrap();
        }
    }
    let mut seen = vec![[0; 4]; FLOWS.into()];
    let mut kept = Vec::new();
    let deadline = Instant::now() + TIMEOUT;
    while seen.iter().flatten().sum::<usize>() < 5 * usize::from(FLOWS) {
        for (queue, port) in ports.iter_mut().enumerate() {
            let before = kept.len();
            port.rx.claim(32, &mut kept).unwrap();
            for payload in kept[before..]
                .iter()
                .filter_map(|frame| packet::parse_udp(frame))
            {
                seen[usize::from(u16::from_be_bytes([payload[0], payload[1]]))][queue] += 1;
            }
        }
        assert!(Instant::now() < deadline, "{seen:?}");
    }
    // Released by another device than theirs, frames find their queue.
    ports[3].rx.release(&mut kept);
    let socket = peer.socket();
    for port in &mut ports {
        let path = peer.path(port, 7, socket.local_addr().unwrap().port());
        let packet = packet::udp(path, b"from every queue", None);
        assert_eq!(port.tx.transmit(&[packet.frame()]), Ok(1));
        let mut buffer = [0; 100];
        assert_eq!(socket.recv(&mut buffer).unwrap(), 16);
    }
    let error = AfXdp::open_queues(&veth.right, &AfXdpOptions::default(), 9).unwrap_err();
    assert!(error.to_string().contains("no such queue"), "{error}");
}

fn long_frames_pass_in_pieces() {
    let veth = Veth::new();
    for interface in [&veth.left, &veth.right] {
        ip(&format!("link set {interface} mtu 9000"));
    }
    let options = AfXdpOptions::default();
    let mut left = open_xdp(&veth.left, &options);
    let mut right = veth.open_right();
    assert_eq!(left.caps.mtu, 9000);
    for (number, len) in (0..).zip([60, 4072, 4073, 4096, 8144, 8145, 9014]) {
        let there = experiment(right.mac, left.mac, number, len);
        let back = experiment(left.mac, right.mac, number, len);
        // In two parts, so that pieces end in either.
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
    let mut port = open_xdp(&veth.left, &AfXdpOptions::default().rx_chunks(64));
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
    let mut port = open_xdp(&veth.left, &AfXdpOptions::default().rx_chunks(64));
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
    // What came later finds room again.
    send_experiments(&mut other, &port, 7..8);
    let got = port.claim_exactly(1, |frame| is_experiment(frame));
    assert_eq!(got[0].bytes(), experiment(port.mac, other.mac, 7, 1514));
}

/// Whether an XDP program is attached.
fn has_program(interface: &str) -> bool {
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
            let options = AfXdpOptions::default().mode(mode);
            let mut port = open_xdp(&veth.left, &options);
            assert!(has_program(&veth.left));
            let mut other = veth.open_right();
            send_experiments(&mut other, &port, 0..1);
            port.claim_exactly(1, |frame| is_experiment(frame));
            // The halves hold the program together.
            drop(port.rx);
            assert!(has_program(&veth.left));
            drop(port.tx);
            assert!(!has_program(&veth.left));
        }
    }
}

fn what_cannot_be_had_is_named() {
    let veth = Veth::new();
    let open = |options: AfXdpOptions| AfXdp::open(&veth.left, &options).unwrap_err().to_string();
    let error = open(AfXdpOptions::default().bind(XdpBind::ZeroCopy));
    assert!(error.contains("XdpBind::Copy"), "{error}");
    let _first = open_xdp(
        &veth.left,
        &AfXdpOptions::default().redirect(Redirect::Everything),
    );
    let error = open(AfXdpOptions::default());
    assert!(error.contains("xdp off"), "{error}");
    let error = AfXdp::open("not-there", &AfXdpOptions::default()).unwrap_err();
    assert!(matches!(error, DeviceError::NoSuchInterface { .. }));
}

// TAP
// ----------------------------------------------------------------------------------------------------------------

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
    // The kernel has done the checksum: doing it again over the pseudo-header's sum gives the same.
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

// Privileges
// ---------------------------------------------------------------------------------------------------------

fn open_and_report(what: &str) -> ExitCode {
    let error = match what.split_once(':') {
        Some(("packet", interface)) => AfPacket::open(interface, AfPacketOptions::default()).err(),
        Some(("tap", interface)) => Tap::open(interface).err(),
        Some(("xdp", interface)) => AfXdp::open(interface, &AfXdpOptions::default()).err(),
        Some(("flood", what)) => what
            .split_once(':')
            .and_then(|(kind, interface)| killed::flood(kind, interface).err()),
        _ => None,
    };
    println!(
        "{}",
        error.map_or("opened".to_owned(), |error| error.to_string())
    );
    ExitCode::SUCCESS
}

/// Opens a device in a process that lacks one capability.
fn privilege(device: &str, capability: &str) -> Result<(), String> {
    let _interface = (device == "xdp").then(|| Veth::named("lacking1", "lacking2"));
    let without = format!("-{capability}");
    let output = Command::new("setpriv")
        .args(["--bounding-set", &without, "--inh-caps", &without, "--"])
        .arg(env::current_exe().map_err(|error| error.to_string())?)
        // AF_XDP looks at the interface first.
        .env(
            OPEN,
            format!(
                "{device}:{}",
                if device == "xdp" {
                    "lacking1"
                } else {
                    "lacking0"
                }
            ),
        )
        .output()
        .map_err(|error| format!("needs the command setpriv (util-linux): {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "setpriv: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ));
    }
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let capability = capability.split(',').next().unwrap_or_default();
    let name = format!("CAP_{}", capability.to_uppercase());
    assert!(told.contains(&name) && told.contains("try: sudo"), "{told}");
    Ok(())
}
