//! The device of an example's stack, from the command line.

use std::net::Ipv4Addr;

use dominoes_drivers::Device;
use dominoes_drivers::af_packet::{AfPacket, AfPacketOptions, RxRing};
use dominoes_drivers::af_xdp::{AfXdp, AfXdpOptions, Redirect};
use dominoes_drivers::tap::Tap;
use dominoes_netstack::StackError;

use crate::Outcome;

/// The options that [`DeviceOptions::take`] takes.
pub(crate) const USAGE: &str = "  --tap NAME          use this TAP interface
  --packet NAME       use this network interface through AF_PACKET
  --xdp NAME          use this network interface through AF_XDP
  --ring KIND         AF_PACKET: slots, blocks or none [slots]
  --no-offloads       leave no checksum and no segmentation to the device
  --trust-checksums   AF_XDP: do not verify checksums
  --guard             start though the kernel owns our address, and keep it silent
";

#[derive(Clone)]
pub(crate) enum Which {
    Memory,
    Tap(String),
    Packet(String),
    Xdp(String),
}

/// Which device is used, and how.
#[derive(Clone)]
pub(crate) struct DeviceOptions {
    pub(crate) which: Which,
    ring: RxRing,
    offloads: bool,
    trust: bool,
    guard: bool,
}

impl Default for DeviceOptions {
    fn default() -> DeviceOptions {
        DeviceOptions {
            which: Which::Memory,
            ring: RxRing::Slots,
            offloads: true,
            trust: false,
            guard: false,
        }
    }
}

impl DeviceOptions {
    /// Whether an option says something of the device.
    pub(crate) fn knows(option: &str) -> bool {
        let named = |line: &str| line.trim_start().split(' ').next() == Some(option);
        let lines = USAGE
            .lines()
            .filter_map(|line| line.trim().strip_prefix("--"));
        lines.into_iter().any(named)
    }

    /// Takes an option that it [knows](Self::knows), and its value.
    pub(crate) fn take(&mut self, option: &str, parser: &mut lexopt::Parser) -> Outcome<()> {
        use lexopt::ValueExt;
        match option {
            "tap" => self.which = Which::Tap(parser.value()?.string()?),
            "packet" => self.which = Which::Packet(parser.value()?.string()?),
            "xdp" => self.which = Which::Xdp(parser.value()?.string()?),
            "ring" => {
                self.ring = match &*parser.value()?.string()? {
                    "slots" => RxRing::Slots,
                    "blocks" => RxRing::Blocks,
                    "none" => RxRing::None,
                    other => return Err(format!("no such ring: {other}").into()),
                }
            }
            "no-offloads" => self.offloads = false,
            "trust-checksums" => self.trust = true,
            "guard" => self.guard = true,
            other => return Err(format!("no such option: --{other}").into()),
        }
        Ok(())
    }

    /// Opens the device, and says what it is; `None`: in memory. The drivers refuse to start if the
    /// kernel would answer at `address`, which is ours; `has_ipv6` says whether the stack has
    /// addresses of IPv6 besides.
    pub(crate) fn open(
        &self,
        address: Ipv4Addr,
        has_ipv6: bool,
    ) -> Outcome<Option<(Box<dyn Device>, String)>> {
        Ok(Some(match &self.which {
            Which::Memory => return Ok(None),
            Which::Tap(name) => {
                let tap = Tap::options().offloads(self.offloads).open(name)?;
                (Box::new(tap), format!("{name} (TAP)"))
            }
            Which::Packet(name) => {
                let options = AfPacketOptions::default()
                    .address(address)
                    .guard(self.guard)
                    .offloads(self.offloads)
                    .ring(self.ring);
                let device = AfPacket::open(name, options)?;
                let text = format!("{name} (AF_PACKET, ring: {:?})", self.ring);
                (Box::new(device), text)
            }
            Which::Xdp(name) => {
                let mut options = AfXdpOptions::default()
                    .address(address)
                    .guard(self.guard)
                    .offloads(self.offloads)
                    .trust_checksums(self.trust);
                if has_ipv6 {
                    // Nothing is known yet of the link-local address, and of those that routers
                    // give.
                    options = options.redirect(Redirect::Everything);
                }
                let device = AfXdp::open(name, &options)?;
                if let Some(advice) = device.advice() {
                    eprintln!("{name}: {advice}");
                }
                let copies = if device.is_zero_copy() {
                    "zero-copy"
                } else {
                    "copies"
                };
                (Box::new(device), format!("{name} (AF_XDP, {copies})"))
            }
        }))
    }
}

/// The address of an interface that is written with its prefix, as in `10.78.0.1/24`.
pub(crate) fn address(cidr: &str) -> Outcome<Ipv4Addr> {
    let address = cidr.split('/').next().unwrap_or_default().parse();
    Ok(address.map_err(|_| StackError::Address(cidr.to_owned()))?)
}
