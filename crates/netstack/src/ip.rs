//! IPv4 beyond its header: what the pump does before a segment is one.

pub mod reassembly;
