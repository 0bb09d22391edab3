//! What the simulations of this workspace need of a stack's insides; the crate `dominoes-testkit`
//! has the rest of it, and is what tests import.
//!
//! A [`Host`] is a stack of any variant over a scripted device, whose workers take their steps in
//! random order, and may stall at every boundary between two steps. As a [`FaultPlan`] says, they
//! join, leave, fail anywhere, and have bits of their states flipped.
//!
//! A replica catches panics, and a connection ends
//! ([`StateStats::panicked`](crate::stats::StateStats::panicked)). With this feature every stack
//! that is dropped, also one on threads, panics itself if a replica of it has caught one that no
//! test planted. Of a group with a [`FaultHooks`](crate::group::FaultHooks) its test
//! asks by itself.

mod fault_plan;
mod host;

pub use dominoes_proto::hash::Rng;
pub use fault_plan::{FaultPlan, FaultPlanStats};
pub use host::{Host, Stalls, Variant};

/// A bijective mix of 64 bits, the same on every machine.
pub const fn mix(x: u64) -> u64 {
    dominoes_proto::hash::mix(x)
}

/// Lets workers stop in the middle of units of streams from now on, or go on.
#[cfg(feature = "framed")]
pub fn stall_in_unit(sockets: &crate::socket::Sockets, stalls: bool) {
    for world in sockets.worlds() {
        world.units.stall(stalls);
    }
}

/// Bytes of address space that the rings of all stacks of this process have, whether or not they
/// are in memory, and which the heap does not count.
pub fn mapped_bytes() -> usize {
    crate::io::stream::MAPPED.load(core::sync::atomic::Ordering::Relaxed)
}

/// Makes pumps give memory back though bytes in it are not read, or not any more: a fault that
/// tests must notice. Of stacks that one thread drives.
pub fn lose_unread(sockets: &crate::socket::Sockets, loses: bool) {
    for world in sockets.worlds() {
        let flag = &world.loses_unread;
        flag.store(loses, core::sync::atomic::Ordering::Relaxed);
    }
}

/// How many workers have stopped in the middle of a unit.
#[cfg(feature = "framed")]
pub fn stalled_in_unit(sockets: &crate::socket::Sockets) -> usize {
    sockets
        .worlds()
        .iter()
        .map(|world| world.units.stalled())
        .sum()
}

/// Whether text of units is in a buffer that no connection uses.
#[cfg(feature = "framed")]
pub fn keeps_text(sockets: &crate::socket::Sockets) -> bool {
    sockets
        .worlds()
        .iter()
        .any(|world| world.units.holds_text())
}

/// Lets the worker unwind that is in the middle of the unit after the next `units`.
#[cfg(feature = "framed")]
pub fn unwind_in_unit(sockets: &crate::socket::Sockets, units: u64) {
    for world in sockets.worlds() {
        world.units.fail_after(Some(units));
    }
}
