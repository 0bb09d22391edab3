//! The entries of a log (requests), and the results of applying them (effects).

pub mod effect;
pub mod request;
