//! Positions in a log.

/// Position in a log: the first entry published is 0, the next 1, without gaps and without ever
/// wrapping.
pub type Seq = u64;
