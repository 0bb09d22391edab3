//! The results of every bench: a table with its bounds and pictures.
//!
//! A bench fills [`Table`]s and nothing else. The terminal prints them, the report shows them with
//! their pictures, and published figures are compared with their measures.

use core::fmt::{self, Write};

use serde::{Deserialize, Serialize};

use crate::paper::{Measure, Measures};
use crate::ratio::RatioLine;
use crate::spread::{Spread, short};

/// Figures in rows and columns.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Table {
    /// Its heading.
    pub title: String,
    /// What all rows have in common.
    pub conditions: Vec<String>,
    /// Names of the columns.
    pub columns: Vec<&'static str>,
    /// A value for each column.
    pub rows: Vec<Vec<String>>,
    /// Lines below the rows.
    pub notes: Vec<String>,
    /// Goals of some figures, and whether they are met.
    pub bounds: Vec<Bound>,
    /// Values by name, for comparison with published figures.
    pub measures: Measures,
    /// Its pictures.
    pub charts: Vec<Chart>,
    /// The values that its figures are made of, where the rows do not say them.
    #[serde(skip_serializing_if = "serde_json::Value::is_null")]
    pub samples: serde_json::Value,
}

/// A ratio or another figure in words, with its goal and the verdict.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Bound {
    /// Name, figure, goal and verdict.
    pub line: String,
    /// Whether it has a goal.
    pub has_target: bool,
    /// Whether it meets the goal; `None` if it was not measured or cannot be judged.
    pub is_met: Option<bool>,
    /// Whether there is a figure.
    pub is_measured: bool,
    /// Whether the machine was disturbed throughout.
    pub is_disturbed: bool,
    /// Number of pairs of samples used, and of pairs left out.
    pub pairs: [usize; 2],
}

/// The goal of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// This value or more.
    AtLeast(f64),
    /// This value or less.
    AtMost(f64),
}

impl Limit {
    /// Whether a value meets it.
    pub fn holds(self, value: f64) -> bool {
        match self {
            Limit::AtLeast(least) => value >= least,
            Limit::AtMost(most) => value <= most,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::AtLeast(least) => write!(f, "at least {}", short(*least)),
            Limit::AtMost(most) => write!(f, "at most {}", short(*most)),
        }
    }
}

impl Bound {
    /// Judges a figure by its median, unless the machine was disturbed.
    pub fn new(what: &str, ours: Option<Spread>, limit: Limit, is_disturbed: bool) -> Bound {
        let judged = ours.filter(|_| !is_disturbed);
        let is_met = judged.map(|ours| limit.holds(ours.median));
        let shown = match ours {
            None => "?".to_owned(),
            Some(Spread { q1, median, q3 }) if q1 == q3 => format!("{median:.2}"),
            Some(spread) => spread.to_string(),
        };
        let verdict = match is_met {
            Some(true) => "met",
            Some(false) => "MISSED",
            None if is_disturbed => "not judged, ALL of it disturbed",
            None => "not measured",
        };
        Bound {
            line: format!("{what}: {shown}, {limit}: {verdict}"),
            has_target: true,
            is_met,
            is_measured: ours.is_some(),
            is_disturbed,
            pairs: [0; 2],
        }
    }
}

impl From<&RatioLine> for Bound {
    fn from(line: &RatioLine) -> Bound {
        Bound {
            line: line.to_string(),
            has_target: line.at_least.is_some(),
            is_met: line.met,
            is_measured: line.ratio.is_some(),
            is_disturbed: line.all_disturbed,
            pairs: [line.pairs, line.disturbed],
        }
    }
}

/// A picture.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Chart {
    /// Lines over a common axis.
    Lines(Lines),
    /// A bar for each row.
    Bars(Bars),
}

/// Lines over a common axis.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lines {
    /// Label of the horizontal axis, with its unit.
    pub x: String,
    /// Label of the vertical axis, with its unit.
    pub y: String,
    /// Whether each step of the horizontal axis is a doubling.
    pub doubling: bool,
    /// Name of each line, and its points.
    pub lines: Vec<(String, Vec<(f64, f64)>)>,
}

/// Bars from top to bottom.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Bars {
    /// Heading of the picture.
    pub heading: String,
    /// Label of the axis, with its unit. If it is empty, the picture has no axis.
    pub axis: String,
    /// The value at the left end of a logarithmic axis; `None` for a linear one that begins at 0.
    pub logarithmic_from: Option<f64>,
    /// The bars.
    pub bars: Vec<Bar>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bar {
    /// Its label, on the left.
    pub name: String,
    /// Bars of one series have one colour.
    pub series: String,
    /// Its length, and a line over it from quartile to quartile.
    pub ours: Spread,
    /// Length of the thin bar below it, for comparison.
    pub beside: Option<f64>,
    /// Its value in words, on the right.
    pub text: String,
}

impl Bar {
    /// A bar of this series, labelled with its median to `digits` decimal places.
    pub fn new(name: impl Into<String>, series: &str, ours: Spread, digits: usize) -> Bar {
        Bar {
            name: name.into(),
            series: series.to_owned(),
            ours,
            beside: None,
            text: format!("{:.digits$}", ours.median),
        }
    }
}

/// The names of columns, which are separated by bars.
pub fn columns(names: &'static str) -> Vec<&'static str> {
    names.split('|').map(str::trim).collect()
}

impl Table {
    /// Without rows.
    pub fn new(title: impl Into<String>, columns: &[&'static str]) -> Table {
        Table {
            title: title.into(),
            columns: columns.to_vec(),
            ..Table::default()
        }
    }

    /// Adds a quantity that published figures are compared with, unless it is no number.
    pub fn measure(&mut self, name: impl Into<String>, measure: Measure) {
        if measure.ours.is_finite() {
            self.measures.insert(name.into(), measure);
        }
    }

    /// Adds a row.
    pub fn row(&mut self, values: Vec<String>) {
        self.rows.push(values);
    }

    /// Adds a line below the rows.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Adds a goal, and judges the figure by it.
    pub fn bound(&mut self, what: &str, ours: Option<Spread>, limit: Limit) {
        self.bounds.push(Bound::new(what, ours, limit, false));
    }

    /// Adds a picture of lines.
    pub fn lines(&mut self, lines: Lines) {
        self.charts.push(Chart::Lines(lines));
    }

    /// Adds a picture of bars, if there are any.
    pub fn bars(&mut self, bars: Bars) {
        if !bars.bars.is_empty() {
            self.charts.push(Chart::Bars(bars));
        }
    }

    /// Keeps the values that its figures are made of.
    pub fn keep(&mut self, samples: &impl Serialize) {
        // Samples without a JSON form are dropped; the rows still have the figures.
        self.samples = serde_json::to_value(samples).unwrap_or_default();
    }
}

/// A column of numbers ends at its right, one of words begins at its left.
impl fmt::Display for Table {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "-- {}", self.title)?;
        for condition in &self.conditions {
            writeln!(out, "{condition}")?;
        }
        let cells = |column: usize| self.rows.iter().filter_map(move |row| row.get(column));
        let columns: Vec<(usize, bool)> = (self.columns.iter().enumerate())
            .map(|(i, name)| {
                let length = |text: &str| text.chars().count();
                let width = cells(i)
                    .map(|cell| length(cell))
                    .fold(length(name), usize::max);
                let is_word = |cell: &String| cell.starts_with(char::is_alphabetic);
                (width, cells(i).any(is_word))
            })
            .collect();
        let mut line = |values: &mut dyn Iterator<Item = &str>| {
            let mut text = String::new();
            for (value, (width, are_words)) in values.zip(&columns) {
                // Writing to a string cannot fail.
                let _ = match are_words {
                    true => write!(text, "{value:<width$}  "),
                    false => write!(text, "{value:>width$}  "),
                };
            }
            writeln!(out, "{}", text.trim_end())
        };
        if !self.columns.is_empty() {
            line(&mut self.columns.iter().copied())?;
        }
        for row in &self.rows {
            line(&mut row.iter().map(String::as_str))?;
        }
        for note in &self.notes {
            writeln!(out, "{note}")?;
        }
        for bound in &self.bounds {
            writeln!(out, "{}", bound.line)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_judged_by_its_median_and_not_on_a_disturbed_machine() {
        let ours = Spread::of([0.7, 0.8, 1.2]);
        let of = |limit, disturbed| Bound::new("ours over theirs", ours, limit, disturbed);
        assert_eq!(of(Limit::AtLeast(0.9), false).is_met, Some(false));
        let met = of(Limit::AtMost(0.9), false);
        assert_eq!(met.is_met, Some(true));
        assert_eq!(
            met.line,
            "ours over theirs: 0.80 [0.75 1.00], at most 0.9: met"
        );
        assert_eq!(of(Limit::AtMost(0.9), true).is_met, None);
        let missing = Bound::new("x", None, Limit::AtLeast(1.0), false);
        assert_eq!((missing.is_met, missing.is_measured), (None, false));
    }

    #[test]
    fn words_begin_at_the_left_of_a_column_and_numbers_end_at_its_right() {
        let mut table = Table::new("a title", &["server", "rate"]);
        table.row(vec!["ours".to_owned(), "9".to_owned()]);
        table.row(vec!["theirs".to_owned(), "10.5".to_owned()]);
        table.note("a note");
        let shown = "-- a title\nserver  rate\nours       9\ntheirs  10.5\na note\n";
        assert_eq!(table.to_string(), shown);
    }
}
