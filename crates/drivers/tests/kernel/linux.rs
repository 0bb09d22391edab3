//! The tests by device, and their requirements.

#[path = "af_packet.rs"]
mod af_packet;
#[path = "af_xdp.rs"]
mod af_xdp;
#[path = "edges.rs"]
mod edges;
#[path = "interfaces.rs"]
mod interfaces;
#[path = "killed.rs"]
mod killed;
#[path = "peer.rs"]
mod peer;
#[cfg(feature = "smoltcp")]
#[path = "phy.rs"]
mod phy;
#[path = "rings.rs"]
mod rings;
#[path = "../support/mod.rs"]
mod support;
#[path = "tap.rs"]
mod tap;
#[path = "tun.rs"]
mod tun;

use af_xdp::{open_xdp, ring_options};
use dominoes_drivers::DeviceError;
use dominoes_drivers::af_packet::{AfPacket, AfPacketOptions, RxRing};
use dominoes_drivers::af_xdp::{AfXdp, AfXdpOptions, XdpMode};
use dominoes_drivers::tap::Tap;
use dominoes_drivers::tun::Tun;
use interfaces::{TapInterface, Veth, enter_namespace, ip, try_ip};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use std::env;
use std::process::{Command, ExitCode};
use support::{Port, behaviour};

/// Set in the copy of this program that runs inside the namespace.
const INSIDE: &str = "DOMINOES_TEST_INSIDE";

/// Set in a copy that only opens a device and prints the error (`packet:INTERFACE`,
/// `tap:INTERFACE` or `xdp:INTERFACE`), or in one that will be killed (`flood:KIND:INTERFACE`).
const OPEN: &str = "DOMINOES_TEST_OPEN";

pub(super) fn main() -> ExitCode {
    if let Ok(what) = env::var(OPEN) {
        return open_and_report(&what);
    }
    let trapped = if env::var_os(INSIDE).is_some() {
        // These interfaces may reorder frames from different cores, so all threads stay on one.
        if let Some(core) = core_affinity::get_core_ids().and_then(|cores| cores.last().copied()) {
            core_affinity::set_for_current(core);
        }
        // The kernel's neighbor discovery would mix with the tests' frames.
        let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
        // Sockets between two devices hold as many packets as a test sends at once.
        let _ = std::fs::write("/proc/sys/net/unix/max_dgram_qlen", "512");
        None
    } else {
        match enter_namespace() {
            Ok(code) => return code,
            Err(reason) => Some(reason),
        }
    };
    let mut arguments = Arguments::from_args();
    // Most of the time is that in which the kernel makes and removes interfaces.
    arguments.test_threads.get_or_insert(4);
    let missing = Missing {
        packet: trapped.clone().or_else(packet_missing),
        xdp: trapped.clone().or_else(packet_missing).or_else(xdp_missing),
        tap: trapped.or_else(tap_missing),
        required: env::var("REQUIRE").unwrap_or_default(),
    };
    libtest_mimic::run(&arguments, trials(&missing)).exit_code()
}

/// The ways to receive from a packet socket.
const RINGS: [(&str, RxRing); 3] = [
    ("copies", RxRing::None),
    ("slots", RxRing::Slots),
    ("blocks", RxRing::Blocks),
];

fn trials(missing: &Missing) -> Vec<Trial> {
    let mut trials = pairs(missing);
    trials.extend(peer::trials(missing));
    trials.extend(rings::trials(missing));
    trials.extend(af_packet::trials(missing));
    trials.extend(af_xdp::trials(missing));
    trials.extend(tap::trials(missing));
    trials.extend(tun::trials(missing));
    trials.extend(edges::trials(missing));
    trials.extend(killed::trials(missing));
    #[cfg(feature = "smoltcp")]
    trials.extend(phy::trials(missing));
    trials.extend([
        missing.trial(
            "xdp::a_missing_privilege_is_named",
            "tools",
            missing.xdp.clone(),
            || {
                privilege("xdp", "net_raw")?;
                // CAP_SYS_ADMIN would include it.
                privilege("xdp", "bpf,-sys_admin")
            },
        ),
        missing.trial(
            "packet::a_missing_privilege_is_named",
            "tools",
            missing.packet.clone(),
            || privilege("packet", "net_raw"),
        ),
        missing.trial(
            "tap::a_missing_privilege_is_named",
            "tools",
            missing.tap.clone(),
            || {
                privilege("tap", "net_admin")?;
                privilege("tun", "net_admin")
            },
        ),
    ]);
    trials
}

/// The behaviours that all devices share, for two devices of a kind and for two kinds.
fn pairs(missing: &Missing) -> Vec<Trial> {
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
                let options = ring_options().mode(mode);
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
                // `Pnet` could not detect that a frame is unfinished.
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
            let left = open_xdp(&veth.left, &ring_options());
            test(left, veth.open_right());
        }));
        trials.push(
            missing.xdp(&format!("xdp_sending_packets::{name}"), move || {
                let veth = Veth::new();
                let options = AfXdpOptions::default();
                let left = open_xdp(&veth.left, &options);
                test(left, veth.open_right());
            }),
        );
        trials.push(missing.xdp(&format!("packet_and_xdp::{name}"), move || {
            let veth = Veth::new();
            // The peer must not leave checksums or segments unfinished, as we could not detect it.
            let options = AfPacketOptions::default().offloads(false);
            let right = open_xdp(&veth.right, &ring_options());
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
    trials
}

/// The reasons why tests cannot run here, if there are any.
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
        // Some tests use a packet socket as the other end.
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

    /// A test that is ignored if `reason` is given, or if it returns a reason.
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
    // The loopback interface is not Ethernet; finding that out requires a packet socket.
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

fn open_and_report(what: &str) -> ExitCode {
    let error = match what.split_once(':') {
        Some(("packet", interface)) => AfPacket::open(interface, AfPacketOptions::default()).err(),
        Some(("tap", interface)) => Tap::open(interface).err(),
        Some(("tun", interface)) => Tun::open(interface).err(),
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
        // AF_XDP reads the interface's properties first, so it needs one that exists.
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
