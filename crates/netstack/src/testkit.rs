//! The part of the test kit that needs a stack's internals; tests import it through the crate
//! `dominoes-testkit`, which contains the rest.
//!
//! A [`Host`] is a stack of any variant over a scripted device. Its workers take their steps in
//! random order, and may stall between any two steps. According to a [`FaultPlan`], they join,
//! leave, fail at any point, and have bits of their states flipped.
//!
//! A replica catches panics, and closes the connection
//! ([`StateStats::panicked`](crate::stats::StateStats::panicked)). With this feature every
//! stack, including one on threads, panics when it is dropped if one of its replicas has caught
//! a panic that no test planted. A test of a group with
//! [`FaultHooks`](crate::group::FaultHooks) has to check that itself.

mod fault_plan;
mod host;

pub use dominoes_proto::hash::Rng;
pub use fault_plan::{FaultPlan, FaultPlanStats};
pub use host::{Host, Stalls, Variant};

/// A bijective mix of 64 bits, the same on every machine.
pub const fn mix(x: u64) -> u64 {
    dominoes_proto::hash::mix(x)
}

/// Makes workers stop inside units of streams from now on (`stalls`), or continue.
pub fn stall_in_unit(sockets: &crate::socket::Sockets, stalls: bool) {
    for world in sockets.worlds() {
        world.units.stall(stalls);
    }
}

/// Bytes of address space of the rings of all stacks in this process, whether in memory or not.
/// The heap does not count them.
pub fn mapped_bytes() -> usize {
    crate::io::stream::MAPPED.load(core::sync::atomic::Ordering::Relaxed)
}

/// Makes pumps release memory that holds unread bytes: a fault that tests must detect. For
/// stacks that one thread drives.
pub fn lose_unread(sockets: &crate::socket::Sockets, loses: bool) {
    for world in sockets.worlds() {
        let flag = &world.loses_unread;
        flag.store(loses, core::sync::atomic::Ordering::Relaxed);
    }
}

/// Number of workers that have stopped in the middle of a unit.
pub fn stalled_in_unit(sockets: &crate::socket::Sockets) -> usize {
    sockets
        .worlds()
        .iter()
        .map(|world| world.units.stalled())
        .sum()
}

/// Whether a buffer that no connection uses holds data of units.
pub fn keeps_text(sockets: &crate::socket::Sockets) -> bool {
    sockets
        .worlds()
        .iter()
        .any(|world| world.units.holds_text())
}

/// Makes a worker unwind in the middle of a unit, after `units` further ones.
pub fn unwind_in_unit(sockets: &crate::socket::Sockets, units: u64) {
    for world in sockets.worlds() {
        world.units.fail_after(Some(units));
    }
}
