//! Which group a flow belongs to.

pub(crate) mod classify;
