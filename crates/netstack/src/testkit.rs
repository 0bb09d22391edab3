//! A seeded simulation: hosts with stacks of any variant, bad wires, virtual time, one thread.
//!
//! A [`Net`] is an Ethernet switch with [`Host`]s on it. Each host has a wire of its own in each
//! direction, which loses, repeats, reorders, damages and delays frames as its [`LinkConfig`] says.
//! Time moves only from one event to the next. The workers of a replicated stack take their steps
//! in random order, and may stall at every boundary between two steps; a stack whose threads would
//! sleep takes none. As a [`FaultPlan`] says, they join, leave, fail anywhere, and have bits of
//! their states flipped. Every choice comes from one seed, so the same seed is the same run;
//! [`Cases`] runs many and says in one line how to repeat the one that failed.
//!
//! A replica catches panics, and a connection ends
//! ([`StateStats::panicked`](crate::stats::StateStats::panicked)). With this feature every stack
//! that is dropped, also one on threads, panics itself if a replica of it has caught one that no
//! test planted. Of a group with a [`FaultHooks`](crate::group::FaultHooks) its test
//! asks by itself.
//!
//! ```
//! use core::ops::ControlFlow;
//! use dominoes_drivers::impair::LinkConfig;
//! use dominoes_drivers::memory::Faults;
//! use dominoes_netstack::testkit::{HostConfig, Net, Traffic, Variant};
//! use dominoes_netstack::time::Duration;
//!
//! let mut net = Net::new(7);
//! let bad = LinkConfig::default().faults(Faults::new(1).loss(50_000)).delay(core::time::Duration::from_millis(5));
//! let server = net.add(HostConfig::new(Variant::Replicated(2)))?;
//! let client = net.add(HostConfig::new(Variant::Single).wires(bad.clone(), bad))?;
//!
//! let listener = net.sockets(server).listen(7, 4)?;
//! let mut connecting = net.sockets(client).begin_connect(net.address_of(server, 7))?;
//! let (mut ours, mut theirs) = (None, None);
//! net.run(Duration::from_secs(60), |_| {
//!     if theirs.is_none() && let Ok((stream, _)) = listener.try_accept() {
//!         theirs = Some(Traffic::new(stream, 2, 1, 0, 20_000));
//!     }
//!     if ours.is_none() && let Some(stream) = connecting.try_finish()? {
//!         ours = Some(Traffic::new(stream, 1, 2, 20_000, 0));
//!     }
//!     let all_traffic = [&mut ours, &mut theirs].into_iter().flatten();
//!     let mut done = 0;
//!     for traffic in all_traffic {
//!         done += traffic.step().expect("what was written is what is read");
//!     }
//!     let over = |traffic: &Option<Traffic>| traffic.as_ref().is_some_and(Traffic::is_over);
//!     Ok(if over(&ours) && over(&theirs) { ControlFlow::Break(()) } else { ControlFlow::Continue(done) })
//! })?;
//! assert!(theirs.is_some_and(|traffic| traffic.received() == 20_000));
//! net.check().expect("the replicas agree");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::hash::mix;

mod cases;
mod fault_plan;
mod host;
mod net;
mod traffic;

pub use cases::Cases;
pub use fault_plan::{FaultPlan, FaultStats};
pub use host::{Host, Stalls, Variant};
pub use net::{HostConfig, HostId, Moment, Net, Progress, RunError};
pub use traffic::{Traffic, TrafficError};

#[doc(no_inline)]
pub use dominoes_drivers::impair::LinkConfig;

/// A seeded generator: SplitMix64 (G. L. Steele, D. Lea, C. H. Flood, *Fast splittable pseudorandom
/// number generators*, 2014).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The numbers of `seed`.
    pub const fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `end`; 0 if there is none.
    pub const fn below(&mut self, end: u64) -> u64 {
        ((self.next() as u128 * end as u128) >> 64) as u64
    }

    /// True `ppm` times in a million.
    pub const fn chance(&mut self, ppm: u32) -> bool {
        self.below(1_000_000) < ppm as u64
    }

    /// A generator whose numbers have nothing to do with those of this one.
    pub const fn fork(&mut self) -> Rng {
        Rng(mix(self.next() ^ 0x5851_f42d_4c95_7f2d))
    }
}
