//! Interfaces side by side: a stack over several devices.
//!
//! Each interface works as a complete stack: it has a device, addresses, routes, neighbours, a path
//! MTU for each destination, and a state, run by any variant. Interfaces share the socket table, so
//! a listener accepts connections from any interface, and a UDP socket receives from all.
//!
//! - A connection that is opened, or a datagram that is sent, leaves by the interface with the
//!   longest prefix that matches the destination; the first interface wins a tie. The scope of a
//!   link-local address names an interface instead, counted from 1.
//! - An interface takes a packet only if the packet's destination is an address of that interface:
//!   the strong end system model of RFC 1122 section 3.3.4.2. An answer leaves by the interface on
//!   which the question arrived, whatever the routes say.
//! - A socket that is bound to an address is bound to its interface.
//! - A packet that the stack sends to one of its own addresses is looped back by the interface that
//!   has the address; by the first interface for a loopback address (127.0.0.1, `::1`).
//! - Datagrams to a multicast group leave by the interface that the routes name, or else by the
//!   first.
//! - The stack forwards nothing between interfaces; [`router`](crate::router) does.
//! - With several groups ([`divide`]), each interface has that number of groups. Flows divide among
//!   them as in a stack with one interface, and no connection leaves its interface.
//!
//! Limits hold for each group of each interface, except that `Limits::out_of_order` is divided
//! equally among all groups.

use std::sync::Arc;

use dominoes_drivers::Device;
use dominoes_drivers::split::{SplitDevice, split};

use super::Setup;
use super::groups::{MAX_GROUPS, divide_interface};
use crate::error::ConfigError;
use crate::io::world::StackShared;
use crate::log::request::GroupIndex;

/// Joins setups, one for each device, to interfaces of one stack. A stack with two interfaces by
/// hand:
///
/// ```
/// use dominoes_drivers::memory::{self, MemoryConfig};
/// use dominoes_netstack::variants::{Setup, groups, interfaces, single::Single};
///
/// let setup = |net| Setup::new([10, 0, net, 1].into(), 24, [1, 2]);
/// let stacks = interfaces::join([setup(1), setup(2)])?
///     .into_iter()
///     .map(|setup| {
///         let (device, _peer) = memory::pair(MemoryConfig::default());
///         Single::new(setup, Box::new(device))
///     })
///     .collect::<Result<Vec<_>, _>>()?;
/// let sockets = groups::sockets(stacks.iter().map(Single::sockets));
/// let listener = sockets.listen(7, 128)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// If there are none or more than [`MAX_GROUPS`], two have the same address, one already is a group
/// of a divided stack, or there are several and one has a recorder: each has its own log.
pub fn join(setups: impl IntoIterator<Item = Setup>) -> Result<Vec<Setup>, ConfigError> {
    let mut setups: Vec<_> = setups.into_iter().collect();
    check(&setups, 1)?;
    let shared = match setups.len() {
        1 => StackShared::default(),
        count => StackShared::of(count as u16, 1),
    };
    let shared = Arc::new(shared);
    for (place, setup) in (0..).zip(&mut setups) {
        (setup.place, setup.shared) = (place, Arc::clone(&shared));
        setup.limits.out_of_order /= shared.groups() as u32;
    }
    Ok(setups)
}

/// Joins setups to interfaces of one stack and divides each of them among `groups`, as
/// [`groups::divide`](super::groups::divide) does for one. Returns all groups of the first
/// interface, then the groups of the next, each with its part of the device. The inbox of a part
/// holds `inbox` frames ([`INBOX`](super::groups::INBOX) is a good default). A stack of two
/// interfaces by hand, with two groups each:
///
/// ```
/// use dominoes_drivers::Device;
/// use dominoes_drivers::memory::{self, MemoryConfig};
/// use dominoes_netstack::variants::groups::{self, INBOX};
/// use dominoes_netstack::variants::{Setup, interfaces, single::Single};
///
/// let interface = |net| -> (_, Box<dyn Device>) {
///     let (device, _peer) = memory::pair(MemoryConfig::default());
///     (Setup::new([10, 0, net, 1].into(), 24, [1, 2]), Box::new(device))
/// };
/// let stacks = interfaces::divide([interface(1), interface(2)], 2, INBOX)?
///     .into_iter()
///     .map(|(setup, device)| Single::new(setup, Box::new(device)))
///     .collect::<Result<Vec<_>, _>>()?;
/// assert_eq!(stacks.len(), 4);
/// let sockets = groups::sockets(stacks.iter().map(Single::sockets));
/// let listener = sockets.listen(7, 128)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`join`]; if there are no groups or more than [`MAX_GROUPS`] in all, or there are several and
/// a setup has a recorder.
pub fn divide(
    interfaces: impl IntoIterator<Item = (Setup, Box<dyn Device>)>,
    groups: usize,
    inbox: usize,
) -> Result<Vec<(Setup, SplitDevice)>, ConfigError> {
    let (setups, devices): (Vec<_>, Vec<_>) = interfaces.into_iter().unzip();
    check(&setups, groups)?;
    let count = groups as u16;
    let shared = Arc::new(StackShared::of(setups.len() as u16, count));
    let mut divided = Vec::new();
    for (setup, device) in setups.into_iter().zip(devices) {
        let place = (divided.len() as u16, &shared);
        let (setups, classify) = divide_interface(setup, count, place);
        divided.extend(
            setups
                .into_iter()
                .zip(split(device, groups, inbox, classify)),
        );
    }
    Ok(divided)
}

/// Checks that these setups can be interfaces of one stack, with `groups` groups each.
fn check(setups: &[Setup], groups: usize) -> Result<(), ConfigError> {
    let count = setups.len();
    let range = |field, value: usize, allowed| {
        Err(ConfigError::OutOfRange {
            field,
            value: value as u64,
            allowed,
        })
    };
    if !(1..=MAX_GROUPS).contains(&count) {
        return range("interfaces", count, "1 to 64");
    }
    if !(1..=MAX_GROUPS / count).contains(&groups) {
        return range("groups", groups, "1 to 64 over all interfaces");
    }
    let conflict = |what, with, instead| {
        Err(ConfigError::Conflict {
            what,
            with,
            instead,
        })
    };
    let several = "several interfaces";
    let mut seen = Vec::new();
    for setup in setups {
        let others = setup.ipv6.iter().flat_map(|config| &config.addresses);
        let others = others.map(|(address, _)| (*address).into());
        let own = others.chain(setup.all_addresses().map(|(address, _)| address));
        let own: Vec<_> = own.collect();
        if own.iter().any(|address| seen.contains(address)) {
            let instead = "give each interface addresses of its own";
            return conflict(several, "one address", instead);
        }
        seen.extend(own);
        if setup.group != GroupIndex::ONLY {
            let instead = "divide all of them by `divide`";
            return conflict(several, "one that is divided already", instead);
        }
        if count * groups > 1 && setup.recorder.is_some() {
            let instead = "record a stack with one interface and one group";
            return conflict("several interfaces or groups", "a recording", instead);
        }
    }
    Ok(())
}
