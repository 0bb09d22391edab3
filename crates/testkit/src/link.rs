//! Bad wires: loss, reordering, duplication, corruption, delay, jitter, rate and bursts.
//!
//! Devices of every kind use them, so `dominoes-drivers` defines them. An [`ImpairedLink`] is one
//! direction as plain data, for simulations in virtual time; [`Faults`] are its faults.

pub use dominoes_drivers::impair::{ImpairedLink, LinkConfig, LinkStats};
pub use dominoes_drivers::memory::Faults;
