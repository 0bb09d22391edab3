//! One replica: connections, ports and timers, without shared memory.

pub mod apply;
pub mod demux;
