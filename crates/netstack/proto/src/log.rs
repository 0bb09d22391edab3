//! What stands in a log, and what comes out of it.

pub mod effect;
pub mod request;
