//! Places where a test may switch threads, and faults that it may plant. Without `cfg(test)` there
//! is nothing here.

/// A fault that the linearizability checker must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A reader reads the tail of the log only after it chose the position up to which its replica
    /// is applied.
    TailTooLate,
    /// A reader takes its replica as it is.
    ReaderDoesNotHelp,
    /// A combiner takes the operations that others posted, and publishes only its own.
    LostCombiner,
}

#[cfg(not(test))]
#[inline(always)]
pub(super) fn step(_at: &'static str) {}

#[cfg(not(test))]
#[inline(always)]
pub(super) fn is_planted(_fault: Fault) -> bool {
    false
}

#[cfg(test)]
pub(super) use super::linearizable::{is_planted, step};
