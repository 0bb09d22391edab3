//! Published figures as data: the place of each, and the measure of ours that it is compared with.
//!
//! Sizemore: Charles Donour Sizemore, *Parallel network protocol stacks using replication*,
//! University of New Mexico, 2011. Nahum: Erich M. Nahum, David J. Yates, James F. Kurose and Don
//! Towsley, *Performance issues in parallelized network protocols*, University of Massachusetts,
//! 1994. Mackerras: Paul Mackerras and David Sitsky, *A parallel TCP/IP protocol implementation*,
//! Australian National University, 1995. Kim, Sung: Hyok Kim, Hongki Sung and Hoonbock Lee,
//! *Performance analysis and feasibility study of a parallelized TCP/IP implementation*, Hallym
//! University, 1996. Kim, Pai: Hyong-youb Kim, Vijay S. Pai and Scott Rixner, *Exploiting
//! task-level concurrency in a programmable network interface*, PPoPP 2003. Curves that the text
//! describes without numbers are described here without numbers.

mod figures;

use core::fmt;
use std::collections::BTreeMap;

use serde::Serialize;

pub use self::figures::*;

/// Sizemore 2011.
pub const SIZEMORE: &str = "Sizemore 2011";
/// Nahum and others 1994.
pub const NAHUM: &str = "Nahum et al. 1994";
/// Mackerras and Sitsky 1995.
pub const MACKERRAS: &str = "Mackerras and Sitsky 1995";
/// Kim, Sung and Lee 1996.
pub const KIM_SUNG: &str = "Kim, Sung and Lee 1996";
/// Kim, Pai and Rixner 2003.
pub const KIM_PAI: &str = "Kim, Pai and Rixner 2003";

/// All papers, in the order of the report.
pub const PAPERS: [&str; 5] = [SIZEMORE, NAHUM, MACKERRAS, KIM_SUNG, KIM_PAI];

/// One published figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Authors and year: one of [`PAPERS`].
    pub source: &'static str,
    /// Figure, table or section.
    pub place: &'static str,
    /// The measured quantity, and the machine.
    pub what: &'static str,
    /// Cores or replicas, where the text gives a number for them.
    pub cores: Option<usize>,
    /// Throughput, where the text gives a number.
    pub mbit_per_s: Option<f64>,
    /// How the number is meant, or what the curve shows.
    pub note: &'static str,
    /// The checks by our measures. None: it is only reported.
    pub checks: &'static [Check],
    /// Why the two may differ: what our arrangement has that the paper's has not, or the reverse.
    pub differs: &'static str,
}

impl Figure {
    /// A figure whose text gives no throughput.
    const fn new(
        source: &'static str,
        place: &'static str,
        what: &'static str,
        note: &'static str,
    ) -> Figure {
        Figure {
            source,
            place,
            what,
            cores: None,
            mbit_per_s: None,
            note,
            checks: &[],
            differs: "",
        }
    }

    const fn cores(self, cores: usize) -> Figure {
        Figure {
            cores: Some(cores),
            ..self
        }
    }

    const fn mbit_per_s(self, rate: f64) -> Figure {
        Figure {
            mbit_per_s: Some(rate),
            ..self
        }
    }

    const fn checks(self, checks: &'static [Check]) -> Figure {
        Figure { checks, ..self }
    }

    const fn differs(self, differs: &'static str) -> Figure {
        Figure { differs, ..self }
    }

    /// The paper's words, without their place.
    pub fn says(&self) -> String {
        let mut out = self.what.to_owned();
        if let Some(cores) = self.cores {
            out += &format!(", {cores} core{}", if cores == 1 { "" } else { "s" });
        }
        if let Some(mbit) = self.mbit_per_s {
            out += &format!(": {mbit} Mbit/s");
        }
        if !self.note.is_empty() {
            out += &format!(" ({})", self.note);
        }
        out
    }

    /// What our measures say of it.
    pub fn compare(&self, measures: &Measures) -> Outcome {
        let found: Vec<Compared> = self.checks.iter().map(|c| c.compare(measures)).collect();
        let verdict = Verdict::of(&found);
        let mut sentences: Vec<String> = Vec::new();
        for (check, compared) in self.checks.iter().zip(&found) {
            sentences.push(check.sentence(compared, verdict));
        }
        Outcome {
            verdict,
            sentence: sentences.join("; "),
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}: {}", self.source, self.place, self.says())
    }
}

/// Everything that one experiment measured and that a figure may be compared with, by name.
pub type Measures = BTreeMap<String, Measure>;

/// One value of ours.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, serde::Deserialize)]
pub struct Measure {
    /// The value; a median where there are several.
    pub value: f64,
    /// Whether the machine was disturbed throughout, so that nothing is compared by it.
    pub disturbed: bool,
}

/// A comparison of a figure with ours, and when the two agree.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Check {
    /// The compared quantity, in a few words.
    pub what: &'static str,
    /// Name of our measure.
    pub measure: &'static str,
    /// The published number, in the unit of ours, if there is one.
    pub published: Option<f64>,
    /// Of both.
    pub unit: &'static str,
    /// The range of ours in which the two agree.
    pub range: [f64; 2],
}

/// A multiple: the unit of ratios.
pub const TIMES: &str = "x";
/// Hundredths.
pub const PERCENT: &str = "%";

impl Check {
    /// Ours, by the name of its measure, in some unit; nothing contradicts it.
    const fn new(what: &'static str, measure: &'static str, unit: &'static str) -> Check {
        Check {
            what,
            measure,
            published: None,
            unit,
            range: [f64::NEG_INFINITY, f64::INFINITY],
        }
    }

    /// A ratio.
    const fn ratio(what: &'static str, measure: &'static str) -> Check {
        Check::new(what, measure, TIMES)
    }

    const fn published(self, number: f64) -> Check {
        Check {
            published: Some(number),
            ..self
        }
    }

    const fn above(self, least: f64) -> Check {
        Check {
            range: [least, self.range[1]],
            ..self
        }
    }

    const fn below(self, most: f64) -> Check {
        Check {
            range: [self.range[0], most],
            ..self
        }
    }

    fn compare(&self, measures: &Measures) -> Compared {
        match measures.get(self.measure) {
            None => Compared::NotMeasured,
            Some(ours) if ours.disturbed => Compared::Disturbed(ours.value),
            Some(ours) if ours.value >= self.range[0] && ours.value <= self.range[1] => {
                Compared::Agrees(ours.value)
            }
            Some(ours) => Compared::Differs(ours.value),
        }
    }

    /// Ours beside the published number. Mentions a disturbance if the `verdict` does not.
    fn sentence(&self, compared: &Compared, verdict: Verdict) -> String {
        let number = |value: f64| shown(value, self.unit);
        let beside = self.published.map_or_else(String::new, |published| {
            format!(" (published {})", number(published))
        });
        let ours = match compared {
            Compared::NotMeasured => "not measured".to_owned(),
            Compared::Agrees(value) | Compared::Differs(value) => number(*value),
            Compared::Disturbed(value) if verdict == Verdict::Disturbed => number(*value),
            Compared::Disturbed(value) => format!("{}, disturbed", number(*value)),
        };
        format!("{} {ours}{beside}", self.what)
    }

    /// Ours, if it was measured.
    pub fn ours(&self, measures: &Measures) -> Option<f64> {
        measures.get(self.measure).map(|measure| measure.value)
    }
}

/// A number with its unit, and as many digits as say something.
pub fn shown(value: f64, unit: &str) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    match unit {
        TIMES => format!("{value:.digits$}x"),
        unit => format!("{value:.digits$} {unit}"),
    }
}

/// What became of one check.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Compared {
    NotMeasured,
    Disturbed(f64),
    Agrees(f64),
    Differs(f64),
}

/// Whether a published figure and ours say the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every check agrees.
    Agrees,
    /// Some do and some do not.
    InPart,
    /// None does.
    Differs,
    /// All that was measured was disturbed.
    Disturbed,
    /// Ours is reported, and there is nothing published to compare it with.
    Reported,
    /// This run did not measure it.
    NotMeasured,
}

impl Verdict {
    fn of(compared: &[Compared]) -> Verdict {
        let any = |is: fn(&Compared) -> bool| compared.iter().any(is);
        let agrees = any(|j| matches!(j, Compared::Agrees(_)));
        let differs = any(|j| matches!(j, Compared::Differs(_)));
        let disturbed = any(|j| matches!(j, Compared::Disturbed(_)));
        match (agrees, differs) {
            _ if compared.is_empty() => Verdict::Reported,
            (true, true) => Verdict::InPart,
            (true, false) => Verdict::Agrees,
            (false, true) => Verdict::Differs,
            (false, false) if disturbed => Verdict::Disturbed,
            (false, false) => Verdict::NotMeasured,
        }
    }

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Agrees => "agrees",
            Verdict::InPart => "in part",
            Verdict::Differs => "differs",
            Verdict::Disturbed => "disturbed",
            Verdict::Reported => "reported",
            Verdict::NotMeasured => "not run",
        }
    }
}

/// A published figure, compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Whether the two agree.
    pub verdict: Verdict,
    /// Our numbers beside those published.
    pub sentence: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIGURE: Figure = Figure::new(SIZEMORE, "figure 0", "something", "").checks(&[
        Check::ratio("two over one", "two / one")
            .published(1.5)
            .above(1.0),
        Check::new("share", "share", PERCENT).below(50.0),
    ]);

    fn measures(values: &[(&str, f64, bool)]) -> Measures {
        let one = |&(name, value, disturbed): &(&str, f64, bool)| {
            (name.to_owned(), Measure { value, disturbed })
        };
        values.iter().map(one).collect()
    }

    #[test]
    fn a_figure_agrees_if_every_check_does() {
        let of = |values| FIGURE.compare(&measures(values));
        let agrees = of(&[("two / one", 1.2, false), ("share", 40.0, false)]);
        assert_eq!(agrees.verdict, Verdict::Agrees);
        assert_eq!(
            agrees.sentence,
            "two over one 1.20x (published 1.50x); share 40.0 %"
        );
        let part = of(&[("two / one", 0.9, false), ("share", 40.0, false)]);
        assert_eq!(part.verdict, Verdict::InPart);
        assert_eq!(
            of(&[("two / one", 0.9, false)]).verdict,
            Verdict::Differs,
            "what was not measured contradicts nothing"
        );
    }

    #[test]
    fn nothing_is_judged_by_what_was_disturbed_or_not_measured() {
        let of = |values| FIGURE.compare(&measures(values)).verdict;
        assert_eq!(of(&[("two / one", 0.9, true)]), Verdict::Disturbed);
        assert_eq!(of(&[("another", 0.9, false)]), Verdict::NotMeasured);
        assert_eq!(
            Figure::new(SIZEMORE, "", "", "")
                .compare(&Measures::new())
                .verdict,
            Verdict::Reported
        );
    }
}
