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
//! Limits hold for each interface.

use std::sync::Arc;

use super::Setup;
use super::groups::MAX_GROUPS;
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
    let count = setups.len();
    if !(1..=MAX_GROUPS).contains(&count) {
        return Err(ConfigError::OutOfRange {
            field: "interfaces",
            value: count as u64,
            allowed: "1 to 64",
        });
    }
    let conflict = |with, instead| {
        Err(ConfigError::Conflict {
            what: "several interfaces",
            with,
            instead,
        })
    };
    let mut seen = Vec::new();
    for setup in &setups {
        let others = setup.ipv6.iter().flat_map(|config| &config.addresses);
        let others = others.map(|(address, _)| (*address).into());
        let own = others.chain(setup.all_addresses().map(|(address, _)| address));
        let own: Vec<_> = own.collect();
        if own.iter().any(|address| seen.contains(address)) {
            return conflict("one address", "give each interface addresses of its own");
        }
        seen.extend(own);
        if setup.group != GroupIndex::ONLY {
            return conflict("several groups", "set `groups` to 1");
        }
        if count > 1 && setup.recorder.is_some() {
            return conflict("a recording", "record a stack with one interface");
        }
    }
    let shared = match count {
        1 => StackShared::default(),
        _ => StackShared::of_interfaces(count as u16),
    };
    let shared = Arc::new(shared);
    for (place, setup) in (0..).zip(&mut setups) {
        (setup.place, setup.shared) = (place, Arc::clone(&shared));
    }
    Ok(setups)
}
