//! Who does the costly work of a request: policies that every replica computes for itself.

/// Names the primary of a chunk of positions. Every replica asks the same question and must get the
/// same answer.
pub trait PrimaryPolicy {
    /// The replica, below `replicas`, that is primary for chunk number `chunk`.
    fn primary(&self, chunk: u64, replicas: usize) -> usize;
}

/// The chunks go round: chunk `c` belongs to replica `c % replicas`. No atomics at all.
///
/// ```
/// use dominoes::{ByPosition, PrimaryPolicy};
/// assert_eq!(ByPosition.primary(7, 3), 1);
/// ```
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ByPosition;

impl PrimaryPolicy for ByPosition {
    #[inline]
    fn primary(&self, chunk: u64, replicas: usize) -> usize {
        assert!(replicas > 0, "somebody must be primary");
        (chunk % replicas as u64) as usize
    }
}
