//! The tests that need no privileges, in one program.

mod devices;
mod lying;
mod nic;
mod support;
