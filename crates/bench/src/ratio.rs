//! Ratios of throughput between the rows of a panel, with targets.
//!
//! A ratio is computed within each round, in which all rows had their slice within a second or so;
//! the result is the median over the rounds, with quartiles.

use core::fmt;

use serde::Serialize;

use crate::slices::Sample;
use crate::spread::{Spread, short};
use crate::topology::Distance;

/// A row of a panel by its name, or the fastest of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pick {
    /// Name of a variant; with an asterisk at its end, what the names of several begin with.
    pub variant: &'static str,
    /// Cores.
    pub cores: usize,
    /// Which of the panel's cases.
    pub case: String,
}

/// The row `variant` on `cores` cores of a panel without cases.
pub(crate) fn row(variant: &'static str, cores: usize) -> Pick {
    case(variant, cores, "")
}

/// The row `variant` on `cores` cores in a case of the panel.
pub(crate) fn case(variant: &'static str, cores: usize, case: &str) -> Pick {
    Pick {
        variant,
        cores,
        case: case.to_owned(),
    }
}

/// A quotient of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Quotient {
    /// Throughput by throughput.
    Of(Pick, Pick),
    /// A speed-up by another one: the quotient of two such ratios.
    OfRatios([Pick; 2], [Pick; 2]),
}

/// A ratio with its target.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// Its name.
    pub what: String,
    /// The ratio.
    pub quotient: Quotient,
    /// The least value that meets it; `None` for a ratio that is only reported.
    pub at_least: Option<f64>,
}

impl Target {
    /// Throughput of one row over another.
    pub(crate) fn of(
        what: impl Into<String>,
        one: Pick,
        other: Pick,
        at_least: impl Into<Option<f64>>,
    ) -> Target {
        Target {
            what: what.into(),
            quotient: Quotient::Of(one, other),
            at_least: at_least.into(),
        }
    }

    /// Speed-up of one pair over another.
    pub(crate) fn of_ratios(
        what: impl Into<String>,
        one: [Pick; 2],
        other: [Pick; 2],
        at_least: impl Into<Option<f64>>,
    ) -> Target {
        Target {
            what: what.into(),
            quotient: Quotient::OfRatios(one, other),
            at_least: at_least.into(),
        }
    }

    fn picks(&self) -> Vec<&Pick> {
        match &self.quotient {
            Quotient::Of(a, b) => vec![a, b],
            Quotient::OfRatios([a, b], [c, d]) => vec![a, b, c, d],
        }
    }
}

/// Targets, a line each: a name that is passed to a function, two rows with their cores, and the
/// least value.
macro_rules! ratios {
    ($name:expr; $($what:literal: $a:literal $m:literal / $b:literal $n:literal, $least:expr;)*) => {
        vec![$($crate::ratio::Target::of(
            $name($what),
            $crate::ratio::row($a, $m),
            $crate::ratio::row($b, $n),
            $least,
        ),)*]
    };
}
pub(crate) use ratios;

/// The result for a [`Target`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RatioLine {
    /// Its name.
    pub what: String,
    /// The row for each that the target names; the fastest, if it names several.
    pub rows: Vec<String>,
    /// The ratio; `None` if one of the rows was not measured.
    pub ratio: Option<Spread>,
    /// Pairs of slices it comes from.
    pub pairs: usize,
    /// Pairs that were left out since a thread had to wait for its core.
    pub disturbed: usize,
    /// Whether that would have left none. Then the ratio is of all pairs, and no target is
    /// judged by it.
    pub all_disturbed: bool,
    /// The least value that meets the target.
    pub at_least: Option<f64>,
    /// Whether its median does. A median of one pair is not judged.
    pub met: Option<bool>,
    /// The ratio of pairs in which the cores stayed equally far apart, if a row used several
    /// cores.
    pub at: Vec<AtDistance>,
}

/// A ratio while the cores were so far apart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AtDistance {
    /// How far.
    pub distance: Distance,
    /// The ratio.
    pub ratio: Spread,
    /// Pairs of slices it comes from.
    pub pairs: usize,
}

/// The fewest pairs whose median is judged.
const FEWEST: usize = 2;

/// Rounds that say something about some of their rows.
#[derive(Debug, Default)]
pub(crate) struct Kept<'a> {
    /// Those in which none of these rows was disturbed; all rounds if there is none.
    pub(crate) rounds: Vec<&'a Vec<Sample>>,
    /// Rounds that are not among them.
    pub(crate) left_out: usize,
    /// Whether every round was disturbed.
    pub(crate) all_disturbed: bool,
}

impl<'a> Kept<'a> {
    /// Of `samples`, with regard to `rows`.
    pub(crate) fn of(samples: &'a [Vec<Sample>], rows: &[usize]) -> Kept<'a> {
        let is_calm = |round: &&Vec<Sample>| !rows.iter().any(|&row| round[row].is_disturbed());
        let calm: Vec<&Vec<Sample>> = samples.iter().filter(is_calm).collect();
        if calm.is_empty() {
            return Kept {
                rounds: samples.iter().collect(),
                left_out: 0,
                all_disturbed: !samples.is_empty(),
            };
        }
        Kept {
            left_out: samples.len() - calm.len(),
            rounds: calm,
            all_disturbed: false,
        }
    }
}

/// Measured rows that targets are looked up in.
pub(crate) struct Rounds<'a> {
    /// For each row its variant, cores and case.
    pub(crate) names: &'a [(&'static str, usize, String)],
    /// For each round, a sample of each row.
    pub(crate) samples: &'a [Vec<Sample>],
}

impl Rounds<'_> {
    /// The row that is meant, the one with the highest median if several are.
    fn find(&self, pick: &Pick) -> Option<usize> {
        let rows = self.names.iter().enumerate().filter(|(_, row)| {
            let (name, cores, case) = row;
            matches(name, pick.variant) && *cores == pick.cores && *case == pick.case
        });
        let median = |row: usize| {
            let kept = Kept::of(self.samples, &[row]);
            let rates = kept.rounds.iter().map(|round| round[row].gbit_per_s());
            Spread::of(rates).map_or(0.0, |spread| spread.median)
        };
        rows.map(|(row, _)| row)
            .max_by(|a, b| median(*a).total_cmp(&median(*b)))
    }

    /// For each distance, the values of those `rounds` in which all these rows had it.
    fn at(rows: &[usize], rounds: &[&Vec<Sample>], values: &[f64]) -> Vec<AtDistance> {
        let of = |distance| {
            let was = |round: &Vec<Sample>| {
                let mut rows = rows.iter();
                rows.all(|&row| round[row].distance == Some(distance))
            };
            let rounds = rounds.iter().zip(values);
            let values = rounds
                .filter(|(round, _)| was(round))
                .map(|(_, &value)| value);
            let pairs = values.clone().count();
            Spread::of(values).map(|ratio| AtDistance {
                distance,
                ratio,
                pairs,
            })
        };
        Distance::ALL.into_iter().filter_map(of).collect()
    }

    /// What became of `target`.
    pub(crate) fn line(&self, target: &Target) -> RatioLine {
        let picks = target.picks();
        let several = picks.iter().any(|pick| pick.cores > 1);
        let rows: Option<Vec<usize>> = picks.iter().map(|pick| self.find(pick)).collect();
        let rows = rows.unwrap_or_default();
        // Rows of one round were measured one after the other: each is compared with the others of
        // its round.
        let value = |round: &Vec<Sample>| {
            let rate = |at: usize| round[rows[at]].gbit_per_s();
            match target.quotient {
                Quotient::Of(..) => rate(0) / rate(1),
                Quotient::OfRatios(..) => (rate(0) / rate(1)) / (rate(2) / rate(3)),
            }
        };
        let kept = match rows.is_empty() {
            true => Kept::default(),
            false => Kept::of(self.samples, &rows),
        };
        let values: Vec<f64> = kept.rounds.iter().map(|round| value(round)).collect();
        let at = match several {
            true => Self::at(&rows, &kept.rounds, &values),
            false => Vec::new(),
        };
        let ratio = Spread::of(values);
        let name = |pick: &&Pick| match self.find(pick) {
            Some(row) => {
                let (name, cores, case) = &self.names[row];
                label(name, *cores, case)
            }
            None => format!("no {}", label(pick.variant, pick.cores, &pick.case)),
        };
        RatioLine {
            what: target.what.clone(),
            rows: picks.iter().map(name).collect(),
            ratio,
            pairs: kept.rounds.len(),
            disturbed: kept.left_out,
            all_disturbed: kept.all_disturbed,
            at_least: target.at_least,
            met: ratio
                .zip(target.at_least)
                .filter(|_| !kept.all_disturbed && kept.rounds.len() >= FEWEST)
                .map(|(ratio, least)| ratio.median >= least),
            at,
        }
    }
}

/// Whether `name` is `pattern`, or begins with the part of it before a final asterisk.
pub(crate) fn matches(name: &str, pattern: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    }
}

/// A row's name for people.
pub(crate) fn label(variant: &str, cores: usize, case: &str) -> String {
    let comma = if case.is_empty() { "" } else { ", " };
    format!("{variant}/{cores}{comma}{case}")
}

impl fmt::Display for RatioLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.what)?;
        let Some(ratio) = &self.ratio else {
            let missing = self.rows.iter().filter(|row| row.starts_with("no "));
            let missing: Vec<&str> = missing.map(String::as_str).collect();
            return write!(f, "not measured ({})", missing.join(", "));
        };
        write!(f, "{ratio}, {} pairs", self.pairs)?;
        match self.disturbed {
            _ if self.all_disturbed => f.write_str(", ALL of them disturbed")?,
            0 => {}
            some => write!(f, " ({some} disturbed ones left out)")?,
        }
        if let Some(least) = self.at_least {
            let met = match self.met {
                Some(true) => "met",
                Some(false) => "NOT met",
                None => "not judged",
            };
            write!(f, "; target {}: {met}", short(least))?;
        }
        for at in &self.at {
            let Spread { q1, median, q3 } = at.ratio;
            let (name, pairs) = (at.distance.name(), at.pairs);
            write!(f, "; {name} {median:.2} [{q1:.2} {q3:.2}], {pairs}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(bytes: &[&[u64]]) -> Vec<Vec<Sample>> {
        let one = |&bytes: &u64| Sample {
            ns: 1000,
            bytes,
            waited: 0.0,
            distance: Some(Distance::Near),
        };
        bytes
            .iter()
            .map(|round| round.iter().map(one).collect())
            .collect()
    }

    fn names(names: &[(&'static str, usize)]) -> Vec<(&'static str, usize, String)> {
        names
            .iter()
            .map(|(name, cores)| (*name, *cores, String::new()))
            .collect()
    }

    #[test]
    fn a_target_is_met_by_the_median_of_the_pairs_and_not_by_their_mean() {
        let names = names(&[("single", 1), ("replicated", 2)]);
        let mut samples = samples(&[&[100, 120], &[50, 60], &[10, 90]]);
        samples[2][1].distance = Some(Distance::Far);
        let rounds = Rounds {
            names: &names,
            samples: &samples,
        };
        let target =
            |least: Option<f64>| Target::of("x", row("replicated", 2), row("single", 1), least);
        let line = rounds.line(&target(Some(1.3)));
        assert_eq!((line.met, line.pairs), (Some(false), 3));
        // In the last round the cores moved.
        assert_eq!(line.at.len(), 1);
        assert_eq!((line.at[0].distance, line.at[0].pairs), (Distance::Near, 2));
        assert!(line.to_string().contains("NOT met") && line.to_string().contains("; near 1.20"));
        assert_eq!(rounds.line(&target(Some(1.2))).met, Some(true));
        assert_eq!(rounds.line(&target(None)).met, None);
        let once = Rounds {
            samples: &samples[..1],
            ..rounds
        };
        assert_eq!(once.line(&target(Some(1.3))).met, None);
    }

    #[test]
    fn a_disturbed_pair_is_left_out_and_counted() {
        let names = names(&[("single", 1), ("replicated", 2)]);
        let mut samples = samples(&[&[100, 120], &[100, 130], &[100, 10]]);
        samples[2][1].waited = 0.5;
        let target = Target::of("x", row("replicated", 2), row("single", 1), 1.2);
        let line = |samples: &[Vec<Sample>]| {
            let rounds = Rounds {
                names: &names,
                samples,
            };
            rounds.line(&target)
        };
        let some = line(&samples);
        assert!((some.ratio.unwrap().median - 1.25).abs() < 1e-9, "{some}");
        assert_eq!((some.pairs, some.disturbed, some.met), (2, 1, Some(true)));
        assert!(
            some.to_string().contains("1 disturbed ones left out"),
            "{some}"
        );
        for round in &mut samples {
            round[0].waited = 0.5;
        }
        let all = line(&samples);
        assert_eq!((all.pairs, all.all_disturbed, all.met), (3, true, None));
        assert!(
            all.to_string()
                .contains("ALL of them disturbed; target 1.2: not judged"),
            "{all}"
        );
    }

    #[test]
    fn speed_ups_are_divided_within_a_round() {
        let names = names(&[("limit", 1), ("limit", 2), ("single", 1), ("replicated", 2)]);
        let samples = samples(&[&[100, 200, 50, 90], &[10, 15, 5, 9]]);
        let rounds = Rounds {
            names: &names,
            samples: &samples,
        };
        let ours = [row("replicated", 2), row("single", 1)];
        let theirs = [row("limit", 2), row("limit", 1)];
        let line = rounds.line(&Target::of_ratios("x", ours, theirs, 0.9));
        let ratio = line.ratio.unwrap();
        assert!((ratio.median - (0.9 + 1.2) / 2.0).abs() < 1e-9, "{ratio:?}");
    }

    #[test]
    fn of_several_rows_the_fastest_is_taken_and_a_missing_one_is_named() {
        let names = names(&[("locked-mutex", 2), ("locked-mcs", 2), ("replicated", 2)]);
        let samples = samples(&[&[100, 120, 240], &[100, 120, 240]]);
        let rounds = Rounds {
            names: &names,
            samples: &samples,
        };
        let line = rounds.line(&Target::of(
            "x",
            row("replicated", 2),
            row("locked*", 2),
            1.3,
        ));
        assert_eq!(line.ratio.unwrap().median, 2.0);
        assert_eq!(line.rows, ["replicated/2", "locked-mcs/2"]);
        let line = rounds.line(&Target::of(
            "x",
            row("replicated", 2),
            row("smoltcp", 1),
            3.0,
        ));
        assert!(line.to_string().contains("no smoltcp/1"));
        assert_eq!(line.met, None);
    }
}
