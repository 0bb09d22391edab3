//! Fixtures that the tests, fuzz targets and benchmarks of this workspace share.
//!
//! | module | contents |
//! |---|---|
//! | [`packet`] | writes and reads frames for the far side of a stack |
//! | [`named!`] | enumerations whose values have names |
//! | [`peer`] | a TCP peer that a test controls |
//! | [`link`] | bad wires: loss, reordering, duplication, corruption, delay, rate |
//! | [`device`] | a device around another one, some of whose calls a test changes |
//! | [`programs`] | namespaces, both ends of a device in them, and programs with a deadline |
//! | [`tally!`] | counters of events, summed over cases |
//! | `rng` | the seeded generator, and cases whose failure prints the seed that repeats it |
//! | `app` | applications that check every byte |
//! | `hand` | stacks of every shape, driven turn by turn |
//! | `host` | a stack whose time, frames and order of steps the caller controls |
//! | `net` | hosts on a switch, in virtual time |
//! | `faults` | workers that join, leave and fail, and bits that flip |
//!
//! A [`Net`] is an Ethernet switch with [`Host`]s. Each host has a separate wire in each direction,
//! with the faults of its [`LinkConfig`]. Time advances only from one event to the next. The
//! workers of a replicated stack take steps in random order; a stack whose threads would sleep
//! takes none. One seed determines every choice, so equal seeds give equal runs. [`Cases`] runs
//! many seeds and prints one line that repeats a failed one.
//!
//! [`Host`], [`FaultPlan`] and [`Rng`] are defined in `dominoes_netstack::testkit`, since they use
//! private parts of a stack; this crate reexports them. Without the feature `stack` it contains
//! only frames, peers and wires, and depends on no stack.
//!
#![cfg_attr(feature = "stack", doc = "```")]
#![cfg_attr(not(feature = "stack"), doc = "```ignore")]
//! use core::ops::ControlFlow;
//! use dominoes_netstack::time::Duration;
//! use dominoes_testkit::link::{Faults, LinkConfig};
//! use dominoes_testkit::{HostConfig, Net, Traffic, Variant};
//!
//! let mut net = Net::new(7);
//! let faults = Faults::new(1).loss(50_000);
//! let delay = core::time::Duration::from_millis(5);
//! let bad = LinkConfig::default().faults(faults).delay(delay);
//! let server = net.add(HostConfig::new(Variant::Replicated(2)))?;
//! let client = net.add(HostConfig::new(Variant::Single).wires(bad.clone(), bad))?;
//!
//! let listener = net.sockets(server).listen(7, 4)?;
//! let to = net.address_of(server, 7);
//! let mut connecting = net.sockets(client).begin_connect(to)?;
//! let (mut ours, mut theirs) = (None, None);
//! net.run(Duration::from_secs(60), |_| {
//!     if theirs.is_none()
//!         && let Ok((stream, _)) = listener.try_accept()
//!     {
//!         theirs = Some(Traffic::new(stream, 2, 1, 0, 20_000));
//!     }
//!     if ours.is_none()
//!         && let Some(stream) = connecting.try_finish()?
//!     {
//!         ours = Some(Traffic::new(stream, 1, 2, 20_000, 0));
//!     }
//!     let mut done = 0;
//!     for traffic in [&mut ours, &mut theirs].into_iter().flatten() {
//!         done += traffic.step().expect("what was written is what is read");
//!     }
//!     let is_over = |traffic: &Option<Traffic>| traffic.as_ref().is_some_and(Traffic::is_over);
//!     Ok(match is_over(&ours) && is_over(&theirs) {
//!         true => ControlFlow::Break(()),
//!         false => ControlFlow::Continue(done),
//!     })
//! })?;
//! assert!(theirs.is_some_and(|traffic| traffic.received() == 20_000));
//! net.check().expect("the replicas agree");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "stack")]
pub mod app;
pub mod device;
#[cfg(feature = "stack")]
pub mod hand;
pub mod link;
mod named;
#[cfg(feature = "stack")]
pub mod net;
pub mod packet;
pub mod peer;
pub mod programs;
#[cfg(feature = "stack")]
pub mod rng;
mod tally;

/// A stack whose time, frames and order of steps the caller controls.
#[cfg(feature = "stack")]
pub mod host {
    pub use dominoes_netstack::testkit::{Host, Stalls, Variant};
}

/// Workers that join, leave and fail, and bits that flip.
#[cfg(feature = "stack")]
pub mod faults {
    pub use dominoes_netstack::testkit::{FaultPlan, FaultPlanStats};
}

#[cfg(feature = "stack")]
#[doc(no_inline)]
pub use self::{
    app::{Traffic, TrafficError},
    faults::{FaultPlan, FaultPlanStats},
    host::{Host, Stalls, Variant},
    link::LinkConfig,
    net::{HostConfig, HostId, Moment, Net, Progress, RunError},
    rng::{Cases, Rng, mix, number},
};
