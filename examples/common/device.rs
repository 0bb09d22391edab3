//! Options of the command line that choose the device of an example's stack.

use std::io::{self, IsTerminal};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use dominoes_drivers::Device;
use dominoes_drivers::af_packet::{AfPacket, AfPacketOptions, RxRing, Spread};
use dominoes_drivers::af_xdp::{AfXdp, AfXdpOptions, Redirect};
use dominoes_drivers::tap::Tap;
use dominoes_drivers::tun::Tun;
use dominoes_netstack::StackError;

use crate::program::{Arguments, Outcome};

/// The options that [`DeviceOptions::take`] takes.
pub(crate) const USAGE: &str = "  --tap NAME          use this TAP interface
  --tun NAME          use this TUN interface
  --packet NAME       use this network interface through AF_PACKET
  --xdp NAME          use this network interface through AF_XDP
  --queues N          open N queues of it, for as many replicas [1]
  --ring KIND         AF_PACKET: slots, blocks or none [slots]
  --slot-bytes N      AF_PACKET: one ring with slots of this length [by the interface]
  --no-offloads       leave no checksum and no segmentation to the device
  --trust-checksums   AF_XDP: do not verify checksums
  --guard             start though the kernel owns our address, and keep it silent
";

#[derive(Clone)]
pub(crate) enum Which {
    Memory,
    Tap(String),
    Tun(String),
    Packet(String),
    Xdp(String),
}

/// The device and its settings.
#[derive(Clone)]
pub(crate) struct DeviceOptions {
    pub(crate) which: Which,
    queues: usize,
    ring: RxRing,
    slot_bytes: Option<usize>,
    offloads: bool,
    trust: bool,
    guard: bool,
}

impl Default for DeviceOptions {
    fn default() -> DeviceOptions {
        DeviceOptions {
            which: Which::Memory,
            queues: 1,
            ring: RxRing::Slots,
            slot_bytes: None,
            offloads: true,
            trust: false,
            guard: false,
        }
    }
}

impl DeviceOptions {
    /// Takes the value of `option`. Returns false if the option is not one of these.
    pub(crate) fn take(&mut self, option: &str, arguments: &mut Arguments) -> Outcome<bool> {
        match option {
            "tap" => self.which = Which::Tap(arguments.text()?),
            "tun" => self.which = Which::Tun(arguments.text()?),
            "packet" => self.which = Which::Packet(arguments.text()?),
            "xdp" => self.which = Which::Xdp(arguments.text()?),
            "queues" => self.queues = arguments.number(1..=64)?,
            "ring" => {
                self.ring = arguments.parse_with(|ring| match ring {
                    "slots" => Ok(RxRing::Slots),
                    "blocks" => Ok(RxRing::Blocks),
                    "none" => Ok(RxRing::None),
                    _ => Err("no such ring"),
                })?;
            }
            "slot-bytes" => self.slot_bytes = Some(arguments.number(4096..=1 << 20)?),
            "no-offloads" => self.offloads = false,
            "trust-checksums" => self.trust = true,
            "guard" => self.guard = true,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Opens the device and returns it with its description; `None`: in memory. The drivers
    /// refuse to start if the kernel would also answer at `address`, which is ours, or at
    /// `address6`. `has_ipv6`: the stack also has addresses of IPv6.
    pub(crate) fn open(
        &self,
        address: Ipv4Addr,
        address6: Option<Ipv6Addr>,
        has_ipv6: bool,
    ) -> Outcome<Option<(Box<dyn Device>, String)>> {
        Ok(Some(match &self.which {
            Which::Memory => return Ok(None),
            Which::Tap(name) => {
                let options = Tap::options().offloads(self.offloads);
                let queues = match self.queues {
                    1 => vec![options.open(name)?],
                    count => Tap::open_queues(name, &options, count)?,
                };
                (Box::new(queues), format!("{name} (TAP)"))
            }
            Which::Tun(name) => {
                let options = Tun::options().offloads(self.offloads);
                let queues = match self.queues {
                    1 => vec![options.open(name)?],
                    count => Tun::open_queues(name, &options, count)?,
                };
                (Box::new(queues), format!("{name} (TUN)"))
            }
            Which::Packet(name) => {
                let mut options = AfPacketOptions::default()
                    .address(address)
                    .guard(self.guard)
                    .offloads(self.offloads)
                    .ring(self.ring);
                if let Some(address6) = address6 {
                    options = options.address6(address6);
                }
                if let Some(bytes) = self.slot_bytes {
                    options = options.slot_bytes(bytes);
                }
                let queues = match self.queues {
                    1 => vec![AfPacket::open(name, options)?],
                    count => AfPacket::open_queues(name, &options, count, Spread::Flow)?,
                };
                let text = format!("{name} (AF_PACKET, ring: {:?})", self.ring);
                (Box::new(queues), text)
            }
            Which::Xdp(name) => {
                let mut options = AfXdpOptions::default()
                    .address(address)
                    .guard(self.guard)
                    .offloads(self.offloads)
                    .trust_checksums(self.trust);
                if has_ipv6 {
                    // The link-local address and the addresses that routers announce are not
                    // known yet.
                    options = options.redirect(Redirect::Everything);
                }
                let queues = AfXdp::open_queues(name, &options, self.queues as u32)?;
                let device = &queues[0];
                let is_watched = io::stderr().is_terminal();
                if let Some(advice) = device.advice().filter(|_| is_watched) {
                    eprintln!("{name}: {advice}");
                }
                let copies = if device.is_zero_copy() {
                    "zero-copy"
                } else {
                    "copies"
                };
                (Box::new(queues), format!("{name} (AF_XDP, {copies})"))
            }
        }))
    }
}

/// Returns the address of an interface without its prefix, for example of `10.78.0.1/24`.
pub(crate) fn address<A: FromStr>(cidr: &str) -> Outcome<A> {
    let address = cidr.split('/').next().unwrap_or_default().parse();
    Ok(address.map_err(|_| StackError::Address(cidr.to_owned()))?)
}
