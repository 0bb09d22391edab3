//! Groups side by side: which one has a flow.

pub(crate) mod classify;
pub(crate) mod migrated_flows;
