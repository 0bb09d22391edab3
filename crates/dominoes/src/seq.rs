//! Positions in a log.

/// A position in a log: the first entry has 0, the next 1, without gaps. Positions never wrap.
pub type Seq = u64;
