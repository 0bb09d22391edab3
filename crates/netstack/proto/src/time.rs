//! Time as values. Nothing here reads a clock: the driver of the stack supplies the time.

use core::ops::{Add, AddAssign, Sub};

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

/// A point in time, in nanoseconds since a start that the driver of the stack chose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Instant(u64);

/// A span of time in whole nanoseconds.
///
/// One integer, unlike [`core::time::Duration`], because replicas compute with it on every segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Duration(u64);

impl Instant {
    /// The start of time.
    pub const ZERO: Instant = Instant(0);
    /// Later than every other instant; "no deadline".
    pub const NEVER: Instant = Instant(u64::MAX);

    /// The moment `nanos` nanoseconds after the start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Instant(nanos)
    }

    /// The moment `millis` milliseconds after the start.
    pub const fn from_millis(millis: u64) -> Self {
        Instant(millis * 1_000_000)
    }

    /// Nanoseconds since the start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The instant `span` earlier, but not before the start of time.
    pub const fn before(self, span: Duration) -> Instant {
        Instant(self.0.saturating_sub(span.0))
    }

    /// The span from `earlier` to `self`; zero if `earlier` is later.
    #[inline]
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration(self.0.saturating_sub(earlier.0))
    }
}

impl Duration {
    /// No time at all.
    pub const ZERO: Duration = Duration(0);

    /// A span of `nanos` nanoseconds.
    pub const fn from_nanos(nanos: u64) -> Self {
        Duration(nanos)
    }

    /// A span of `micros` microseconds.
    pub const fn from_micros(micros: u64) -> Self {
        Duration(micros * 1_000)
    }

    /// A span of `millis` milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Duration(millis * 1_000_000)
    }

    /// A span of `secs` seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Duration(secs * 1_000_000_000)
    }

    /// The span in nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The span in whole milliseconds, rounded down.
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// The span divided into `parts` equal parts, rounded down. Panics if `parts` is 0.
    #[inline]
    pub const fn divided(self, parts: u64) -> Duration {
        Duration(self.0 / parts)
    }

    /// The span times `factor`, saturating at the longest span.
    #[inline]
    pub const fn times(self, factor: u64) -> Duration {
        Duration(self.0.saturating_mul(factor))
    }
}

impl From<core::time::Duration> for Duration {
    /// Saturates at the longest span.
    fn from(span: core::time::Duration) -> Self {
        Duration(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Duration> for core::time::Duration {
    fn from(span: Duration) -> Self {
        core::time::Duration::from_nanos(span.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    #[inline]
    fn add(self, span: Duration) -> Instant {
        Instant(self.0.saturating_add(span.0))
    }
}

impl Add for Duration {
    type Output = Duration;
    #[inline]
    fn add(self, span: Duration) -> Duration {
        Duration(self.0.saturating_add(span.0))
    }
}

impl AddAssign<Duration> for Instant {
    #[inline]
    fn add_assign(&mut self, span: Duration) {
        *self = *self + span;
    }
}

impl Sub for Duration {
    type Output = Duration;
    #[inline]
    fn sub(self, span: Duration) -> Duration {
        Duration(self.0.saturating_sub(span.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_stays_never_whatever_is_added() {
        assert_eq!(Instant::NEVER + Duration::from_secs(60), Instant::NEVER);
        assert_eq!(Instant::ZERO.since(Instant::from_millis(1)), Duration::ZERO);
    }
}
