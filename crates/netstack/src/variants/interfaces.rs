//! Interfaces side by side: a stack over several devices.
//!
//! An interface is a stack in itself: a device with addresses, routes, neighbours, a path MTU for
//! each destination, and a state, which is `single`, replicated or any other variant. Interfaces
//! share the socket table, so a listener accepts what comes to any of them, and a UDP socket hears
//! all.
//!
//! - A connection that is opened, and a datagram that is sent, leave by the interface with the
//!   longest prefix that fits their destination, of equal ones by the first; or by that which the
//!   scope of a link-local address names, where 1 is the first.
//! - A host that several interfaces belong to takes a packet only where its destination is an
//!   address of that interface: the strong model of RFC 1122 section 3.3.4.2. An answer leaves by
//!   the interface that the question came to, whatever the routes say.
//! - A socket that is bound to an address is bound to its interface.
//! - What the stack sends to an address of its own comes back by the interface that has it; by the
//!   first, if it is of this host alone (127.0.0.1, `::1`).
//! - Datagrams to a multicast group leave by the interface that the routes name, or the first.
//! - Nothing is forwarded from one to another; [`router`](crate::router) does that.
//!
//! - With several groups ([`divide`]) each interface has so many of its own: flows divide among
//!   them as among those of a stack with one interface, and no connection leaves its interface.
//!
//! Limits hold for each interface, and for each group; of `Limits::out_of_order`, each group of
//! them all has an equal share.

use std::sync::Arc;

use dominoes_drivers::Device;
use dominoes_drivers::split::{SplitDevice, split};

use super::Setup;
use super::groups::{MAX_GROUPS, divide_interface};
use crate::error::ConfigError;
use crate::io::world::StackShared;
use crate::log::request::GroupIndex;

/// Makes interfaces of what would be stacks by themselves, a device each. A stack with two of them
/// by hand:
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
/// If there are none or more than [`MAX_GROUPS`], two have the same address, one is a group of a
/// stack already, or several are to be recorded: each has a log of its own.
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

/// Makes interfaces of what would be stacks by themselves, and divides each of them among `groups`
/// as [`groups::divide`](super::groups::divide) does one: returns all groups of the first, then
/// those of the next, each with its part of the device. The inbox of a part holds `inbox` frames
/// ([`INBOX`](super::groups::INBOX) will do). A stack of two interfaces by hand, with two groups
/// each:
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
/// As [`join`]; if there are no groups or more than [`MAX_GROUPS`] in all, or any is to be recorded
/// and there are several.
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

/// Checks that interfaces can be had together, with so many groups each.
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
