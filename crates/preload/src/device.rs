//! Opens the device that the settings name.

use std::net::{IpAddr, Ipv4Addr};

use dominoes_drivers::Device;
use dominoes_drivers::DeviceError;
use dominoes_drivers::af_packet::{AfPacket, AfPacketOptions};
use dominoes_drivers::af_xdp::{AfXdp, AfXdpOptions, Redirect};
use dominoes_drivers::tap::Tap;
use dominoes_drivers::tun::Tun;

use crate::config::{Config, Kind};

/// Looks whether a program could open the device.
///
/// # Errors
/// As for [`open`].
#[allow(dead_code, reason = "only the launcher uses it")]
pub(crate) fn check(config: &Config) -> Result<(), DeviceError> {
    let interface = &config.interface;
    match config.kind {
        Kind::Packet => AfPacket::check(interface, &packet_options(config)),
        // To open it would make one that nobody else uses.
        Kind::Tap | Kind::Tun if !exists(interface) => Err(DeviceError::NoSuchInterface {
            interface: interface.clone(),
        }),
        _ => open(config).map(drop),
    }
}

/// Whether this network namespace has an interface of that name, as far as `/proc` says.
#[allow(dead_code, reason = "only the launcher uses it")]
fn exists(name: &str) -> bool {
    let list = std::fs::read_to_string("/proc/self/net/dev");
    let is_it = |line: &str| line.trim_start().split(':').next() == Some(name);
    list.map_or(true, |list| list.lines().any(is_it))
}

fn packet_options(config: &Config) -> AfPacketOptions {
    let options = AfPacketOptions::default().address(first(config));
    let v6 = config.addresses.iter().find_map(|cidr| match cidr.address {
        IpAddr::V6(address) => Some(address),
        IpAddr::V4(_) => None,
    });
    match v6 {
        Some(address) => options.address6(address),
        None => options,
    }
}

/// Our first address of IPv4.
fn first(config: &Config) -> Ipv4Addr {
    match config.addresses[0].address {
        IpAddr::V4(address) => address,
        IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
    }
}

/// Opens the device.
///
/// # Errors
/// If it does not exist, is in use, or this process lacks the privilege.
pub(crate) fn open(config: &Config) -> Result<Box<dyn Device>, DeviceError> {
    let name = &*config.interface;
    Ok(match config.kind {
        Kind::Tap => Box::new(Tap::options().open(name)?),
        Kind::Tun => Box::new(Tun::options().open(name)?),
        Kind::Packet => Box::new(AfPacket::open(name, packet_options(config))?),
        Kind::Xdp => {
            let mut options = AfXdpOptions::default().address(first(config));
            if config.addresses.iter().any(|cidr| cidr.address.is_ipv6()) {
                // The link-local address is not known yet.
                options = options.redirect(Redirect::Everything);
            }
            Box::new(AfXdp::open(name, &options)?)
        }
    })
}
