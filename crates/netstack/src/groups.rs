//! Groups side by side: which one has a flow.

pub(crate) mod classify;
