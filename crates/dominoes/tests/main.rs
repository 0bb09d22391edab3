//! All tests but the models of `loom.rs`, in one program.
#![cfg(not(loom))]

mod adversarial;
mod beside;
mod group;
mod idle;
mod model;
mod order;
mod pitfalls;
mod replicated;
