//! Interfaces side by side: a stack over several devices.
//!
//! [`Interface`](crate::Interface) says what the interfaces of a stack share, and which of them a
//! packet leaves by.

use std::sync::Arc;

use dominoes_drivers::Device;
use dominoes_drivers::split::{SplitDevice, split};

use super::Setup;
use super::groups::{MAX_GROUPS, divide_interface};
use crate::error::{ConfigError, check_queues};
use crate::io::world::StackShared;
use crate::log::request::GroupIndex;

/// Joins setups, one for each device, to interfaces of one stack.
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
        (setup.number, setup.shared) = (place, Arc::clone(&shared));
        setup.limits.out_of_order /= shared.groups() as u32;
    }
    Ok(setups)
}

/// Joins setups to interfaces of one stack and divides each of them among `groups`, as
/// [`groups::divide`](super::groups::divide) does for one. Returns all groups of the first
/// interface, then the groups of the next, each with its part of the device. The inbox of a part
/// holds `inbox` frames ([`INBOX`](super::groups::INBOX) is a good default).
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
        check_queues(device.queues())?;
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
        let others = setup
            .interface
            .ipv6
            .iter()
            .flat_map(|config| &config.addresses);
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
