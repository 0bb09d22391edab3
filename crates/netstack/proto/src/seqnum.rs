//! Arithmetic in TCP's sequence space, and nothing else (RFC 9293 section 3.4).

use core::ops::{Add, AddAssign, Sub};

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

/// Position in a 2^32 sequence space (RFC 9293 section 3.4).
///
/// Not `Ord`: "before" means something only between numbers less than 2^31 apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct SeqNum(pub u32);

impl SeqNum {
    /// Whether `self` precedes `other`.
    #[inline]
    pub const fn before(self, other: SeqNum) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// Whether `self` follows `other`.
    #[inline]
    pub const fn after(self, other: SeqNum) -> bool {
        other.before(self)
    }

    /// Whether `self` equals or precedes `other`.
    #[inline]
    pub const fn at_or_before(self, other: SeqNum) -> bool {
        !other.before(self)
    }

    /// Whether `self` equals or follows `other`.
    #[inline]
    pub const fn at_or_after(self, other: SeqNum) -> bool {
        !self.before(other)
    }

    /// Bytes from `earlier` to `self`; meaningful while `earlier` is not after `self`.
    #[inline]
    pub const fn since(self, earlier: SeqNum) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// The later of the two.
    #[inline]
    pub const fn max(self, other: SeqNum) -> SeqNum {
        if self.before(other) { other } else { self }
    }

    /// The earlier of the two.
    #[inline]
    pub const fn min(self, other: SeqNum) -> SeqNum {
        if self.before(other) { self } else { other }
    }
}

impl Add<u32> for SeqNum {
    type Output = SeqNum;
    #[inline]
    fn add(self, bytes: u32) -> SeqNum {
        SeqNum(self.0.wrapping_add(bytes))
    }
}

impl AddAssign<u32> for SeqNum {
    #[inline]
    fn add_assign(&mut self, bytes: u32) {
        *self = *self + bytes;
    }
}

impl Sub<u32> for SeqNum {
    type Output = SeqNum;
    #[inline]
    fn sub(self, bytes: u32) -> SeqNum {
        SeqNum(self.0.wrapping_sub(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_holds_across_the_wrap() {
        let before = SeqNum(u32::MAX - 1);
        let after = before + 4;
        assert_eq!(after, SeqNum(2));
        assert!(before.before(after) && after.after(before));
        assert_eq!(after.since(before), 4);
        assert_eq!(before.max(after), after);
        assert_eq!(before.min(after), before);
        assert_eq!(after - 4, before);
    }

    #[test]
    fn a_number_is_neither_before_nor_after_itself() {
        let here = SeqNum(7);
        assert!(!here.before(here) && !here.after(here));
        assert!(here.at_or_before(here) && here.at_or_after(here));
    }
}
