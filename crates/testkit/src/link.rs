//! Bad wires: loss, reordering, duplication, corruption, delay, jitter, rate and bursts.
//!
//! Devices of every kind need them, so they stand in `dominoes-drivers`. A [`ImpairedLink`] is one
//! direction as plain data, for simulations in virtual time; [`Faults`] are what goes wrong on it.

pub use dominoes_drivers::impair::{ImpairedLink, LinkConfig, LinkStats};
pub use dominoes_drivers::memory::Faults;
