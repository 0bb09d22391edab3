//! Medians and quartiles.

/// A median with its quartiles.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "report", derive(serde::Serialize, serde::Deserialize))]
pub struct Spread {
    /// A quarter of the values is below.
    pub q1: f64,
    /// Half of the values is below.
    pub median: f64,
    /// Three quarters of the values are below.
    pub q3: f64,
}

impl Spread {
    /// The spread of one value.
    pub fn one(value: f64) -> Spread {
        Spread {
            q1: value,
            median: value,
            q3: value,
        }
    }

    /// Whether all three values are numbers.
    pub fn is_finite(self) -> bool {
        [self.q1, self.median, self.q3]
            .into_iter()
            .all(f64::is_finite)
    }

    /// Of quotients, if only the spreads of dividends and divisors are known: as far apart as
    /// they can be.
    pub fn over(self, divisor: Spread) -> Spread {
        Spread {
            q1: self.q1 / divisor.q3,
            median: self.median / divisor.median,
            q3: self.q3 / divisor.q1,
        }
    }

    /// All three values times `factor`.
    pub fn times(self, factor: f64) -> Spread {
        Spread {
            q1: self.q1 * factor,
            median: self.median * factor,
            q3: self.q3 * factor,
        }
    }

    /// The spread of at least one value.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)?;
        let at = |quarter: f64| {
            let place = quarter * last as f64;
            let (below, part) = (place.floor() as usize, place.fract());
            values[below] + part * (values[(below + 1).min(last)] - values[below])
        };
        Some(Spread {
            q1: at(0.25),
            median: at(0.5),
            q3: at(0.75),
        })
    }

    /// The spread as text, with this many decimal places; `?` without values.
    pub fn text(values: impl IntoIterator<Item = f64>, digits: usize) -> String {
        Spread::of(values).map_or_else(|| "?".to_owned(), |spread| format!("{spread:.digits$}"))
    }
}

/// A number with at most three decimal places, without zeros at its end.
pub fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    let end = text.trim_end_matches('0').trim_end_matches('.').len();
    text[..end].to_owned()
}

/// The median, and the quartiles in brackets, with two decimal places by default.
impl core::fmt::Display for Spread {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let digits = f.precision().unwrap_or(2);
        let Spread { q1, median, q3 } = self;
        write!(f, "{median:.digits$} [{q1:.digits$} {q3:.digits$}]")
    }
}
