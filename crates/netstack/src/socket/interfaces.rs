//! Which of several interfaces a packet leaves by.

use core::net::SocketAddr;
use std::sync::Arc;

use crate::io::world::World;
use crate::log::request::Address;

/// The interface towards `remote`, where there are several: the one that its scope names (RFC 4007
/// section 6), or the one with the longest prefix that fits, of equal ones the first. The first if
/// no route leads there.
pub(super) fn towards(worlds: &[Arc<World>], remote: SocketAddr) -> Option<usize> {
    if !worlds[0].shared.has_interfaces() {
        return None;
    }
    if let SocketAddr::V6(remote) = remote
        && let Some(index) = index_of(worlds, remote.scope_id())
    {
        return Some(index);
    }
    let address = Address::from(remote.ip());
    let mut best = (0, None);
    for (index, world) in worlds.iter().enumerate() {
        let way = world.with_site_for(address, |site| site.way(address));
        let prefix = way.map(|(_, prefix)| prefix);
        if prefix > best.1 {
            best = (index, prefix);
        }
    }
    Some(best.0)
}

/// The interface with this number: 1 is the first.
pub(super) fn index_of(worlds: &[Arc<World>], number: u32) -> Option<usize> {
    let index = usize::try_from(number).ok()?.checked_sub(1)?;
    (index < worlds.len()).then_some(index)
}

/// The interface that has `address`.
pub(super) fn with_address(worlds: &[Arc<World>], address: Address) -> Option<usize> {
    worlds.iter().position(|world| {
        world.with_site_for(address, |site| match address.is_v4() {
            true => site.has_v4() && address == site.address,
            false => site.v6.has(address) || site.v6.tentative.contains(&address),
        })
    })
}

/// Whether packets for `address` would come back to us.
pub(super) fn is_ourselves(worlds: &[Arc<World>], address: Address) -> bool {
    // Groups of one device have the same addresses.
    let count = match worlds[0].shared.has_interfaces() {
        true => worlds.len(),
        false => 1,
    };
    let mut worlds = worlds[..count].iter();
    worlds.any(|world| world.with_site_for(address, |site| site.is_ourselves(address)))
}

/// An address as the application may use it again: with the number of the interface, if only that
/// knows it.
pub(super) fn scoped(worlds: &[Arc<World>], address: SocketAddr, index: usize) -> SocketAddr {
    match address {
        SocketAddr::V6(mut v6)
            if v6.ip().is_unicast_link_local() && worlds[0].shared.has_interfaces() =>
        {
            v6.set_scope_id(index as u32 + 1);
            v6.into()
        }
        other => other,
    }
}
