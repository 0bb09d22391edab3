//! The conformance scripts alone: a small binary for `.ci/mutants`, which links it once for every
//! rule it breaks. `tests/main.rs` has them too, so this is not run by default.

mod conformance;
mod support;
