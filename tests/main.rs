//! Tests of the whole stack that need no privileges.

mod agreement;
mod layering;
mod stall;
mod support;
