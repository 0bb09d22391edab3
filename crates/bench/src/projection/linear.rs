//! Times that grow with the segments of a step.

use serde::Serialize;

/// Nanoseconds of a step: a fixed part, and a part for each segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Linear {
    pub(crate) fixed: f64,
    pub(crate) each: f64,
}

impl Linear {
    /// Nanoseconds of a step with this many segments.
    pub(crate) fn of(self, segments: f64) -> f64 {
        self.fixed + self.each * segments
    }

    /// A time proportional to the segments.
    pub(crate) fn each(each: f64) -> Linear {
        Linear { fixed: 0.0, each }
    }

    /// The difference to `other`; neither part is negative.
    pub(crate) fn less(self, other: Linear) -> Linear {
        Linear {
            fixed: (self.fixed - other.fixed).max(0.0),
            each: (self.each - other.each).max(0.0),
        }
    }

    /// The sum of both.
    pub(crate) fn and(self, other: Linear) -> Linear {
        Linear {
            fixed: self.fixed + other.fixed,
            each: self.each + other.each,
        }
    }

    /// The line through two measured points; neither part is negative.
    pub(crate) fn through(few: (f64, f64), many: (f64, f64)) -> Linear {
        let apart = many.0 - few.0;
        if apart < 1.0 {
            return Linear::each(many.1 / many.0.max(1.0));
        }
        let each = ((many.1 - few.1) / apart).clamp(0.0, many.1 / many.0);
        Linear {
            fixed: (many.1 - each * many.0).max(0.0),
            each,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_through_both_points_if_it_can() {
        let line = Linear::through((32.0, 132.0), (128.0, 228.0));
        assert_eq!((line.fixed, line.each), (100.0, 1.0));
        assert_eq!(line.of(64.0), 164.0);
        // A cost that falls with more segments is all fixed.
        let flat = Linear::through((32.0, 300.0), (128.0, 228.0));
        assert_eq!((flat.fixed, flat.each), (228.0, 0.0));
        // A cost that grows faster than the segments has no fixed part.
        let steep = Linear::through((32.0, 10.0), (128.0, 256.0));
        assert_eq!((steep.fixed, steep.each), (0.0, 2.0));
        assert_eq!(Linear::through((8.0, 16.0), (8.0, 16.0)), Linear::each(2.0));
    }
}
