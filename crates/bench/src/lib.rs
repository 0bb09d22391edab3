//! Scalability benchmarks of the Dominoes stack.
//!
//! An `experiments::Experiment` is a few panels of rows, a row one variant on so many cores. Rows
//! are driven by pinned threads of this crate, without any other thread; the network's far side
//! is simulated inside the device (`peer`), and the application is a few lines in one of the
//! threads. Rows take turns in slices of 100 ms ([`slices`]), so that whatever disturbs the machine
//! disturbs them alike, and are compared pair by pair within a round (`ratio`, `record`).
//!
//! The feature `report`, on by default, adds the other needs of the bench targets: experiments and
//! their records, the other variants, the frame of rows that take turns (`rounds`), the one form of
//! results (`table`) with its pictures (`plot`) and its page (`report`), counts of instructions
//! (`instructions`), single calls of the log (`micro`), and the list of bench targets (`targets`).
//! Without it there is what the example `throughput` compares, and nothing else, since that is the
//! first thing that people compile. The feature `tls` adds the ciphers and TLS of the example
//! `throughput_tls`.

#![forbid(unsafe_code)]

#[cfg(feature = "report")]
pub use dominoes_testkit::named;

pub mod drivers;
#[cfg(feature = "report")]
pub mod experiments;
#[cfg(feature = "report")]
pub mod instructions;
#[cfg(all(feature = "report", target_os = "linux"))]
pub mod kernel_echo;
#[cfg(feature = "report")]
mod lineup;
#[cfg(feature = "report")]
pub mod micro;
#[cfg(all(feature = "report", target_os = "linux"))]
pub mod namespaces;
#[cfg(feature = "report")]
pub mod paper;
#[cfg(feature = "report")]
pub mod plot;
#[cfg(feature = "report")]
pub mod ratio;
#[cfg(feature = "report")]
pub mod record;
#[cfg(feature = "report")]
pub mod report;
#[cfg(feature = "report")]
pub mod rounds;
#[cfg(all(feature = "report", target_os = "linux"))]
pub mod routed;
pub mod slices;
pub mod spread;
#[cfg(feature = "report")]
pub mod start;
#[cfg(feature = "report")]
mod svg;
#[cfg(feature = "report")]
pub mod table;
#[cfg(feature = "report")]
pub mod targets;
pub mod topology;
pub mod workload;

#[cfg(feature = "report")]
mod datagrams;
mod inline;
mod peer;
#[cfg(feature = "report")]
mod projection;
