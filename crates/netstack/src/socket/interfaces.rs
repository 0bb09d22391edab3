//! Which of several interfaces a packet leaves by.

use core::net::SocketAddr;
use std::sync::Arc;

use crate::io::world::World;
use crate::log::request::Address;

/// The interface towards `remote`, where there are several: the one that has this address, or that
/// its scope names (RFC 4007 section 6), or the one with the longest prefix that fits, of equal ones
/// the first. The first if no route leads there.
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
    if let Some(own) = with_address(worlds, address) {
        return Some(own);
    }
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

/// The interface that has `address`, or the first one if it is of this host alone.
pub(super) fn with_address(worlds: &[Arc<World>], address: Address) -> Option<usize> {
    worlds.iter().position(|world| {
        world.with_site_for(address, |site| {
            site.is_ourselves(address) || site.v6.tentative.contains(&address)
        })
    })
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
