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
use crate::spread::Spread;

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
    /// Whether that is what we intend.
    pub is_on_purpose: bool,
    /// What this machine or this bench lacks for a comparison; empty if nothing.
    pub lacks: &'static str,
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
            is_on_purpose: false,
            lacks: "",
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

    const fn differs_on_purpose(self, differs: &'static str) -> Figure {
        Figure {
            is_on_purpose: true,
            ..self.differs(differs)
        }
    }

    const fn lacks(self, lacks: &'static str) -> Figure {
        Figure { lacks, ..self }
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

    /// Judges it by our measures.
    pub fn compare(&self, measures: &Measures) -> Outcome {
        let checks = || {
            self.checks
                .iter()
                .map(|check| (check, measures.get(check.measure)))
        };
        let judged: Vec<Verdict> = checks()
            .filter(|(check, _)| check.published != Published::Nothing)
            .map(|(check, ours)| check.verdict(ours))
            .collect();
        let verdict = match Verdict::of(&judged) {
            _ if !self.lacks.is_empty() => Verdict::NotComparable,
            Verdict::Differs if self.is_on_purpose => Verdict::OnPurpose,
            verdict => verdict,
        };
        let mut sentences: Vec<String> = checks()
            .map(|(check, ours)| check.sentence(ours, verdict))
            .collect();
        let reason = match verdict {
            Verdict::NotComparable => format!("lacks {}", self.lacks),
            Verdict::Differs | Verdict::OnPurpose => self.differs.to_owned(),
            Verdict::Reported if self.checks.is_empty() => self.differs.to_owned(),
            _ => String::new(),
        };
        sentences.extend(Some(reason).filter(|reason| !reason.is_empty()));
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

/// One quantity of ours.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, serde::Deserialize)]
pub struct Measure {
    /// Its values.
    pub ours: Spread,
    /// How many values that are, or pairs of values; `None` if every run has the same one.
    pub pairs: Option<usize>,
    /// Whether the machine was disturbed throughout, so that nothing is compared by it.
    pub disturbed: bool,
    /// Whether a model gives it, for a machine that is not here.
    pub projected: bool,
}

impl Measure {
    /// The median of so many values, or pairs of values.
    pub fn of(ours: Spread, pairs: usize) -> Measure {
        Measure {
            ours,
            pairs: Some(pairs),
            disturbed: false,
            projected: false,
        }
    }

    /// A count that every run repeats.
    pub fn exact(value: f64) -> Measure {
        Measure {
            pairs: None,
            ..Measure::of(Spread::one(value), 0)
        }
    }

    /// Nothing is compared by it if `disturbed`.
    #[must_use]
    pub fn disturbed_if(self, disturbed: bool) -> Measure {
        Measure { disturbed, ..self }
    }

    /// It comes from a model.
    #[must_use]
    pub fn projected(self) -> Measure {
        Measure {
            projected: true,
            ..self
        }
    }

    fn has(&self, pairs: usize) -> bool {
        self.pairs.is_none_or(|has| has >= pairs)
    }
}

/// Pairs from which a number is confirmed.
const ENOUGH_PAIRS: usize = 5;
/// How far ours may be from a published number, as a part of it.
const NEAR: f64 = 0.25;

/// What a paper says of a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum Published {
    /// Nothing that could be compared: ours is reported.
    Nothing,
    /// A number.
    Number(f64),
    /// Numbers from the first to the second.
    Between(f64, f64),
    /// No number, but more than this: a curve that rises.
    MoreThan(f64),
    /// No number, but less than this.
    LessThan(f64),
}

/// A comparison of a figure with ours.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Check {
    /// The compared quantity, in a few words.
    pub what: &'static str,
    /// Name of our measure.
    pub measure: &'static str,
    /// What the paper says of it, in the unit of ours.
    pub published: Published,
    /// Of both.
    pub unit: &'static str,
}

/// A multiple: the unit of ratios.
pub const TIMES: &str = "x";
/// Hundredths.
pub const PERCENT: &str = "%";

impl Check {
    /// Ours, by the name of its measure, in some unit.
    const fn new(what: &'static str, measure: &'static str, unit: &'static str) -> Check {
        Check {
            what,
            measure,
            published: Published::Nothing,
            unit,
        }
    }

    /// A ratio.
    const fn ratio(what: &'static str, measure: &'static str) -> Check {
        Check::new(what, measure, TIMES)
    }

    const fn says(self, published: Published) -> Check {
        Check { published, ..self }
    }

    const fn number(self, number: f64) -> Check {
        self.says(Published::Number(number))
    }

    const fn between(self, least: f64, most: f64) -> Check {
        self.says(Published::Between(least, most))
    }

    const fn more_than(self, bound: f64) -> Check {
        self.says(Published::MoreThan(bound))
    }

    const fn less_than(self, bound: f64) -> Check {
        self.says(Published::LessThan(bound))
    }

    /// Judges ours by both quartiles.
    ///
    /// A ratio whose quartiles are on both sides of 1, or at it, says nothing. One on the other
    /// side of 1 than the published number differs from it, however near they are, and one agrees
    /// only if what it gains or loses is also at least half of, and at most twice, what is
    /// published: 1.05 is near 1.14, and yet a third of that gain.
    fn verdict(&self, ours: Option<&Measure>) -> Verdict {
        let Some(measure) = ours else {
            return Verdict::NotMeasured;
        };
        if measure.disturbed {
            return Verdict::Disturbed;
        }
        if !measure.has(2) {
            return Verdict::Reported;
        }
        let Spread { q1, q3, .. } = measure.ours;
        let is_ratio = self.unit == TIMES;
        if is_ratio && q1 <= 1.0 && q3 >= 1.0 {
            return Verdict::NoDifference;
        }
        let number = |least: f64, most: f64, published: f64| {
            let gain = |ours: f64| (ours - 1.0) / (published - 1.0);
            let is_same_side = is_ratio && gain(q1) > 0.0;
            let is_like = match self.published {
                Published::Number(_) if is_ratio => [q1, q3]
                    .map(gain)
                    .iter()
                    .all(|gain| (0.5..=2.0).contains(gain)),
                _ => is_same_side || !is_ratio,
            };
            match least <= q1 && q3 <= most && is_like {
                true if measure.has(ENOUGH_PAIRS) => Verdict::Agrees,
                true if !is_ratio => Verdict::Reported,
                _ if is_same_side => Verdict::SameDirection,
                _ => Verdict::Differs,
            }
        };
        let direction = |holds: bool| match holds {
            true => Verdict::SameDirection,
            false => Verdict::Differs,
        };
        let verdict = match self.published {
            Published::Nothing => Verdict::Reported,
            Published::Number(published) => {
                let near = NEAR * published;
                number(published - near, published + near, published)
            }
            Published::Between(least, most) => number(least, most, (least + most) / 2.0),
            Published::MoreThan(bound) => direction(q1 > bound),
            Published::LessThan(bound) => direction(q3 < bound),
        };
        match verdict {
            Verdict::Agrees | Verdict::SameDirection if measure.projected => Verdict::Projected,
            verdict => verdict,
        }
    }

    /// Ours beside the published number. Mentions what `verdict`, of the whole figure, does not.
    fn sentence(&self, ours: Option<&Measure>, verdict: Verdict) -> String {
        let number = |value: f64| shown(value, self.unit);
        let beside = match self.published {
            Published::Number(published) => format!(" (published {})", number(published)),
            Published::Between(least, most) => {
                format!(" (published {} to {})", number(least), number(most))
            }
            _ => String::new(),
        };
        let Some(measure) = ours else {
            return format!("{} not measured{beside}", self.what);
        };
        let Spread { q1, median, q3 } = measure.ours;
        let mut shown = number(median);
        if q1 != q3 {
            shown += &format!(" [{} {}]", number(q1), number(q3));
        }
        if measure.disturbed && verdict != Verdict::Disturbed {
            shown += ", disturbed";
        }
        if measure.projected && verdict != Verdict::Projected {
            shown += ", projected";
        }
        if measure.pairs == Some(1) {
            shown += ", once";
        }
        format!("{} {shown}{beside}", self.what)
    }

    /// Ours, if it was measured.
    pub fn ours(&self, measures: &Measures) -> Option<Spread> {
        measures.get(self.measure).map(|measure| measure.ours)
    }

    /// The published number, or the middle of an interval.
    pub fn number_published(&self) -> Option<f64> {
        match self.published {
            Published::Number(number) => Some(number),
            Published::Between(least, most) => Some((least + most) / 2.0),
            _ => None,
        }
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

/// Whether a published figure and ours say the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every published number was measured, at least five times on a calm machine, and both
    /// quartiles of ours are within a quarter of it, or in the paper's interval; what a ratio
    /// gains is within half and twice what is published.
    Agrees,
    /// Ours goes where the paper's does; the size is not the same, or the paper gives none.
    SameDirection,
    /// Ours is elsewhere.
    Differs,
    /// Ours is elsewhere, as it should be.
    OnPurpose,
    /// The quartiles of a ratio are on both sides of 1, or at it.
    NoDifference,
    /// There is nothing to be judged by.
    Reported,
    /// Something is not here that a comparison needs.
    NotComparable,
    /// The machine was disturbed while it was measured.
    Disturbed,
    /// A model of other machines agrees, or goes where the paper's figure does.
    Projected,
    /// This run did not measure all of it.
    NotMeasured,
}

impl Verdict {
    /// The worst first.
    pub const ALL: [Verdict; 10] = [
        Verdict::Differs,
        Verdict::Disturbed,
        Verdict::NotMeasured,
        Verdict::NoDifference,
        Verdict::Reported,
        Verdict::SameDirection,
        Verdict::Projected,
        Verdict::Agrees,
        Verdict::OnPurpose,
        Verdict::NotComparable,
    ];

    /// Of a figure, from its checks: the worst.
    fn of(judged: &[Verdict]) -> Verdict {
        let worst = Verdict::ALL.into_iter().find(|one| judged.contains(one));
        worst.unwrap_or(Verdict::Reported)
    }

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Agrees => "agrees",
            Verdict::SameDirection => "same direction",
            Verdict::Differs => "differs",
            Verdict::OnPurpose => "differs on purpose",
            Verdict::NoDifference => "no difference",
            Verdict::Reported => "reported",
            Verdict::NotComparable => "not comparable here",
            Verdict::Disturbed => "disturbed",
            Verdict::Projected => "projected",
            Verdict::NotMeasured => "not measured",
        }
    }
}

/// A published figure, compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Whether the two agree.
    pub verdict: Verdict,
    /// Our numbers beside those published, and the reason for a difference.
    pub sentence: String,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sentence.is_empty() {
            true => f.write_str(self.verdict.name()),
            false => write!(f, "{}: {}", self.verdict.name(), self.sentence),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIGURE: Figure = Figure::new(SIZEMORE, "figure 0", "something", "").checks(&[
        Check::ratio("two over one", "two / one").number(1.5),
        Check::new("share", "share", PERCENT).less_than(50.0),
        Check::ratio("besides", "besides"),
    ]);

    fn spread(q1: f64, median: f64, q3: f64) -> Spread {
        Spread { q1, median, q3 }
    }

    fn verdict_of(check: Check, ours: Spread, pairs: usize) -> Verdict {
        check.verdict(Some(&Measure::of(ours, pairs)))
    }

    #[test]
    fn a_number_agrees_if_both_quartiles_of_enough_pairs_are_within_a_quarter_of_it() {
        let check = Check::ratio("", "").number(2.0);
        assert_eq!(verdict_of(check, spread(1.5, 1.8, 2.5), 5), Verdict::Agrees);
        assert_eq!(
            verdict_of(check, spread(1.49, 1.8, 2.5), 5),
            Verdict::SameDirection
        );
        assert_eq!(
            verdict_of(check, spread(1.5, 1.8, 2.51), 5),
            Verdict::SameDirection
        );
        assert_eq!(
            verdict_of(check, spread(1.5, 1.8, 2.5), 4),
            Verdict::SameDirection
        );
        assert_eq!(
            verdict_of(check, spread(1.5, 1.5, 1.5), 1),
            Verdict::Reported
        );
        assert_eq!(
            verdict_of(check, spread(0.7, 0.8, 0.9), 9),
            Verdict::Differs
        );
        assert_eq!(
            verdict_of(check, spread(0.9, 1.2, 1.9), 9),
            Verdict::NoDifference
        );
        assert_eq!(check.verdict(Some(&Measure::exact(2.0))), Verdict::Agrees);
        // Near, and on the other side of 1.
        let little = Check::ratio("", "").number(1.05);
        assert_eq!(
            verdict_of(little, spread(0.97, 0.98, 0.99), 9),
            Verdict::Differs
        );
        // Near, and a third of the gain, or five times as much, or no gain at all.
        let gain = Check::ratio("", "").number(1.14);
        assert_eq!(
            verdict_of(gain, spread(1.05, 1.05, 1.05), 9),
            Verdict::SameDirection
        );
        assert_eq!(
            verdict_of(little, spread(1.25, 1.25, 1.25), 9),
            Verdict::SameDirection
        );
        assert_eq!(
            gain.verdict(Some(&Measure::exact(1.0))),
            Verdict::NoDifference
        );

        let share = Check::new("", "", PERCENT).number(85.0);
        assert_eq!(
            verdict_of(share, spread(0.1, 0.1, 0.1), 9),
            Verdict::Differs
        );
        assert_eq!(
            verdict_of(share, spread(80.0, 85.0, 90.0), 9),
            Verdict::Agrees
        );
        assert_eq!(
            verdict_of(share, spread(80.0, 85.0, 90.0), 3),
            Verdict::Reported
        );
    }

    #[test]
    fn an_interval_is_as_wide_as_the_paper_has_it() {
        let check = Check::ratio("", "").between(2.0, 3.0);
        assert_eq!(verdict_of(check, spread(2.0, 2.5, 3.0), 5), Verdict::Agrees);
        assert_eq!(
            verdict_of(check, spread(4.1, 4.15, 4.2), 5),
            Verdict::SameDirection
        );
    }

    #[test]
    fn a_curve_without_numbers_has_a_direction_alone() {
        let check = Check::ratio("", "").more_than(1.0);
        assert_eq!(
            verdict_of(check, spread(1.1, 1.8, 1.9), 9),
            Verdict::SameDirection
        );
        assert_eq!(
            verdict_of(check, spread(0.99, 1.0, 1.01), 9),
            Verdict::NoDifference
        );
        assert_eq!(
            verdict_of(check, spread(0.7, 0.8, 0.9), 9),
            Verdict::Differs
        );
        let projected = Measure::of(Spread::one(2.0), 5).projected();
        assert_eq!(check.verdict(Some(&projected)), Verdict::Projected);
        let projected = Measure::of(Spread::one(0.5), 5).projected();
        assert_eq!(check.verdict(Some(&projected)), Verdict::Differs);
    }

    fn measures(values: &[(&str, Measure)]) -> Measures {
        let named = values
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value));
        named.collect()
    }

    #[test]
    fn a_figure_is_as_good_as_the_worst_of_its_checks() {
        let calm = |value| Measure::of(Spread::one(value), 5);
        let of = |values: &[(&str, Measure)]| FIGURE.compare(&measures(values));
        let both = of(&[("two / one", calm(1.5)), ("share", calm(40.0))]);
        assert_eq!(both.verdict, Verdict::SameDirection);
        let sentence = "two over one 1.50x (published 1.50x); share 40.0 %; besides not measured";
        assert_eq!(both.sentence, sentence);
        let one = of(&[("two / one", calm(1.5))]);
        assert_eq!(one.verdict, Verdict::NotMeasured);
        let disturbed = calm(40.0).disturbed_if(true);
        let one = of(&[("two / one", calm(1.5)), ("share", disturbed)]);
        assert_eq!(one.verdict, Verdict::Disturbed);
        let none = of(&[("two / one", calm(1.5)), ("share", calm(60.0))]);
        assert_eq!(none.verdict, Verdict::Differs);
        let reported = Figure::new(SIZEMORE, "", "", "").compare(&Measures::new());
        assert_eq!(reported.verdict, Verdict::Reported);
    }
}
