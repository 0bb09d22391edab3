//! One replica: connections, ports and timers, without shared memory.

pub(crate) mod apply;
pub(crate) mod demux;
pub(crate) mod ports;
