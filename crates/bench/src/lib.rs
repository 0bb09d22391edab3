//! Scalability benchmarks of the Dominoes stack.
//!
//! An [`experiments::Experiment`] is a few panels of rows, a row one variant on so many cores. Rows are driven
//! by pinned threads of this crate, without any thread besides; the network's far side is simulated inside
//! the device (`peer`), and the application is a few lines in one of the threads. Rows take turns in
//! slices of 100 ms ([`slices`]), so that whatever disturbs the machine disturbs them alike, and are compared
//! pair by pair within a round ([`ratio`], [`record`]).

#![forbid(unsafe_code)]

pub mod experiments;
pub mod instructions;
pub mod micro;
pub mod paper;
pub mod plot;
pub mod ratio;
pub mod record;
pub mod seats;
pub mod slices;
pub mod topology;
pub mod workload;

mod datagrams;
mod inline;
mod peer;
