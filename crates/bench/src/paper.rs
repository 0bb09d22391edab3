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
//! describes without numbers are described in `figures.toml` without numbers.

use core::fmt;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

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

/// The figures that an experiment or a bench target is compared with, in the order of
/// `figures.toml`.
///
/// # Panics
/// If the file cannot be read, which a test excludes.
pub fn published(experiment: &str) -> &'static [Figure] {
    FIGURES.get(experiment).map_or(&[], Vec::as_slice)
}

static FIGURES: LazyLock<BTreeMap<String, Vec<Figure>>> = LazyLock::new(|| {
    toml::from_str(include_str!("../figures.toml")).expect("the file is part of the program")
});

/// Percent of one processor's time that each handler takes, as a range by event (figure 5): 64-byte
/// frames both ways.
pub const NIC_EVENTS: [(f64, f64); 9] = [
    (4.0, 6.0),
    (14.0, 14.0),
    (4.0, 6.0),
    (30.0, 30.0),
    (4.0, 6.0),
    (30.0, 30.0),
    (0.6, 0.6),
    (4.0, 6.0),
    (4.0, 6.0),
];

/// Percent of segments out of order at TCP, receiving 4 KB packets with checksums, on 1 to 8
/// processors, with mutexes and with MCS locks: table 1 of Nahum et al.
pub const MISORDERED: [(u32, u32); 8] = [
    (0, 0),
    (2, 2),
    (4, 4),
    (5, 6),
    (11, 9),
    (25, 11),
    (42, 14),
    (54, 18),
];

/// One published figure.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Figure {
    /// Authors and year: one of [`PAPERS`].
    pub source: String,
    /// Figure, table or section.
    pub place: String,
    /// The measured quantity, and the machine.
    pub what: String,
    /// Cores or replicas, where the text gives a number for them.
    pub cores: Option<usize>,
    /// Throughput, where the text gives a number.
    pub mbit_per_s: Option<f64>,
    /// How the number is meant, or what the curve shows.
    pub note: String,
    /// The checks by our measures. None: it is only reported.
    pub checks: Vec<Check>,
    /// Why the two may differ: what our arrangement has that the paper's has not, or the reverse.
    pub differs: String,
    /// Whether that is what we intend.
    pub is_on_purpose: bool,
    /// What this machine or this bench lacks for a comparison; empty if nothing.
    pub lacks: String,
    /// The model that computes the paper's own numbers from the paper's own parameters, by its
    /// place in `projection/papers.rs`; empty if there is none. Without it nothing that is
    /// projected is compared.
    pub model: String,
}

/// The reason if no model of a figure is validated, and something of ours is projected.
const NO_MODEL: &str = "a model that computes the paper's own numbers";

impl Figure {
    /// The paper's words, without their place.
    pub fn says(&self) -> String {
        let mut out = self.what.clone();
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
                .map(|check| (check, measures.get(&check.measure)))
        };
        let judged: Vec<Verdict> = checks()
            .filter(|(check, _)| check.published != Published::Nothing)
            .map(|(check, ours)| match ours {
                Some(ours) if ours.projected && self.model.is_empty() => Verdict::NotComparable,
                _ => check.verdict(ours),
            })
            .collect();
        let verdict = match Verdict::of(&judged) {
            _ if !self.lacks.is_empty() => Verdict::NotComparable,
            Verdict::Differs if self.is_on_purpose => Verdict::OnPurpose,
            Verdict::Differs => Verdict::Differs,
            _ if judged.contains(&Verdict::NotComparable) => Verdict::NotComparable,
            verdict => verdict,
        };
        let mut sentences: Vec<String> = checks()
            .map(|(check, ours)| check.sentence(ours, verdict))
            .collect();
        let reason = match verdict {
            Verdict::NotComparable if self.lacks.is_empty() => format!("lacks {NO_MODEL}"),
            Verdict::NotComparable => format!("lacks {}", self.lacks),
            Verdict::Differs | Verdict::OnPurpose | Verdict::NoDifference => self.differs.clone(),
            Verdict::Reported if self.checks.is_empty() => self.differs.clone(),
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
    /// The spread of this number of values, or pairs of values.
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

/// The published value of a quantity.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Published {
    /// None that could be compared: ours is reported.
    #[default]
    Nothing,
    /// A number.
    Number(f64),
    /// Numbers from the first to the second. A ratio within them has a gain that was published, so
    /// its gain needs no other test.
    Between(f64, f64),
    /// No number, but more than this: a curve that rises, or "at least".
    MoreThan(f64),
    /// No number, but less than this, or "at most".
    LessThan(f64),
}

/// A comparison of a figure with ours.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// The compared quantity, in a few words.
    pub what: String,
    /// Name of our measure.
    pub measure: String,
    /// The paper's value, in the unit of ours.
    #[serde(default)]
    pub published: Published,
    /// What stands beside ours in place of a published number: the paper's words, or a number that
    /// the paper computed and did not measure.
    #[serde(default)]
    pub says: String,
    /// Of both.
    #[serde(default = "times")]
    pub unit: String,
}

fn times() -> String {
    TIMES.to_owned()
}

/// A multiple: the unit of ratios.
pub const TIMES: &str = "x";
/// Hundredths.
pub const PERCENT: &str = "%";

impl Check {
    /// Judges ours by both quartiles.
    ///
    /// A ratio whose quartiles are on both sides of 1, or at it, shows no difference; where the
    /// paper has a bound, this takes the place of 1. One on the other side of 1 than the published
    /// number differs from it, however near they are. A ratio agrees only if its gain or loss is
    /// also between half and twice the published one: 1.05 is near 1.14, and yet a third of that
    /// gain.
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
        let is_around = |bound: f64| q1 <= bound && q3 >= bound;
        let is_undecided = match self.published {
            Published::MoreThan(bound) | Published::LessThan(bound) => is_around(bound),
            _ => is_ratio && is_around(1.0),
        };
        if is_undecided {
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
        let number = |value: f64| shown(value, &self.unit);
        let beside = match self.published {
            _ if !self.says.is_empty() => format!(" ({})", self.says),
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
        if q1 != q3 && measure.pairs != Some(1) {
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
        measures.get(&self.measure).map(|measure| measure.ours)
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
    /// quartiles of ours are within a quarter of it, or in the paper's interval; the gain of a
    /// ratio is between half and twice the published gain.
    Agrees,
    /// Ours goes where the paper's does; the size is not the same, or the paper gives none.
    SameDirection,
    /// Ours is elsewhere.
    Differs,
    /// Ours is elsewhere, as it should be.
    OnPurpose,
    /// The quartiles of a ratio are on both sides of 1 or of the paper's bound, or at it.
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
    use Published::{LessThan, MoreThan, Nothing, Number};
    use Verdict::*;

    fn check(measure: &str, unit: &str, published: Published) -> Check {
        let [what, unit] = [measure, unit].map(str::to_owned);
        Check {
            measure: what.clone(),
            what,
            published,
            says: String::new(),
            unit,
        }
    }

    fn figure() -> Figure {
        let checks = [
            check("two / one", TIMES, Number(1.5)),
            check("share", PERCENT, LessThan(50.0)),
            check("besides", TIMES, Nothing),
        ];
        Figure {
            checks: checks.into(),
            ..Figure::default()
        }
    }

    /// The verdicts on three quartiles of a number of pairs.
    fn judged(published: Published, unit: &str, all: &[([f64; 3], usize, Verdict)]) {
        let check = check("", unit, published);
        for &([q1, median, q3], pairs, verdict) in all {
            let measure = Measure::of(Spread { q1, median, q3 }, pairs);
            let found = check.verdict(Some(&measure));
            assert_eq!(found, verdict, "{published:?}: {q1} {median} {q3}, {pairs}");
        }
    }

    #[test]
    fn a_number_agrees_if_both_quartiles_of_enough_pairs_are_within_a_quarter_of_it() {
        let cases = [
            ([1.5, 1.8, 2.5], 5, Agrees),
            ([1.49, 1.8, 2.5], 5, SameDirection),
            ([1.5, 1.8, 2.51], 5, SameDirection),
            ([1.5, 1.8, 2.5], 4, SameDirection),
            ([1.5, 1.5, 1.5], 1, Reported),
            ([0.7, 0.8, 0.9], 9, Differs),
            ([0.9, 1.2, 1.9], 9, NoDifference),
        ];
        judged(Number(2.0), TIMES, &cases);
        // Near, and on the other side of 1; near, and five times the gain.
        let cases = [
            ([0.97, 0.98, 0.99], 9, Differs),
            ([1.25; 3], 9, SameDirection),
        ];
        judged(Number(1.05), TIMES, &cases);
        // Near, and a third of the gain, or no gain at all.
        let cases = [([1.05; 3], 9, SameDirection), ([1.0; 3], 9, NoDifference)];
        judged(Number(1.14), TIMES, &cases);
        let cases = [
            ([0.1; 3], 9, Differs),
            ([80.0, 85.0, 90.0], 9, Agrees),
            ([80.0, 85.0, 90.0], 3, Reported),
        ];
        judged(Number(85.0), PERCENT, &cases);
        let exact = check("", TIMES, Number(2.0)).verdict(Some(&Measure::exact(2.0)));
        assert_eq!(exact, Agrees);
    }

    #[test]
    fn an_interval_is_as_wide_as_the_paper_has_it() {
        let cases = [
            ([2.0, 2.5, 3.0], 5, Agrees),
            ([4.1, 4.15, 4.2], 5, SameDirection),
        ];
        judged(Published::Between(2.0, 3.0), TIMES, &cases);
    }

    #[test]
    fn a_curve_without_numbers_has_a_direction_alone() {
        let cases = [
            ([1.1, 1.8, 1.9], 9, SameDirection),
            ([0.99, 1.0, 1.01], 9, NoDifference),
            ([0.7, 0.8, 0.9], 9, Differs),
        ];
        judged(MoreThan(1.0), TIMES, &cases);
        for (times, verdict) in [(2.0, Projected), (0.5, Differs)] {
            let measure = Measure::of(Spread::one(times), 5).projected();
            assert_eq!(
                check("", TIMES, MoreThan(1.0)).verdict(Some(&measure)),
                verdict
            );
        }
    }

    #[test]
    fn a_bound_other_than_one_decides_in_place_of_one() {
        let cases = [
            ([0.98, 1.0, 1.02], 5, SameDirection),
            ([1.1, 1.12, 1.2], 5, NoDifference),
            ([1.5; 3], 5, Differs),
        ];
        judged(LessThan(1.13), TIMES, &cases);
        judged(
            MoreThan(0.9),
            TIMES,
            &[([0.95, 1.0, 1.05], 5, SameDirection)],
        );
        judged(
            LessThan(45.0),
            PERCENT,
            &[([44.0, 45.0, 46.0], 5, NoDifference)],
        );
    }

    #[test]
    fn the_papers_words_and_single_values_are_shown_as_such() {
        let check = Check {
            says: "its formula 1.50x".to_owned(),
            ..check("two / one", TIMES, Number(1.5))
        };
        let sentence = |pairs| {
            let spread = Spread::of([1.4, 1.5, 1.6]).unwrap();
            check.sentence(Some(&Measure::of(spread, pairs)), SameDirection)
        };
        assert_eq!(
            sentence(5),
            "two / one 1.50x [1.45x 1.55x] (its formula 1.50x)"
        );
        assert_eq!(sentence(1), "two / one 1.50x, once (its formula 1.50x)");
    }

    /// The outcome of a figure by two of its measures.
    fn of(figure: &Figure, ratio: Measure, share: Option<Measure>) -> Outcome {
        let share = share.map(|share| ("share".to_owned(), share));
        let both = [("two / one".to_owned(), ratio)].into_iter().chain(share);
        figure.compare(&both.collect())
    }

    #[test]
    fn a_projection_is_compared_only_by_a_validated_model() {
        let calm = Measure::of(Spread::one(1.5), 5);
        let model = "figure 0".to_owned();
        let with = Figure { model, ..figure() };
        for (share, verdict) in [(40.0, Projected), (60.0, Differs)] {
            let share = Some(Measure::exact(share).projected());
            let without = of(&figure(), calm, share);
            assert_eq!(without.verdict, NotComparable);
            assert!(without.sentence.ends_with(NO_MODEL), "{}", without.sentence);
            assert_eq!(of(&with, calm, share).verdict, verdict);
        }
        // A measured quantity that differs still does.
        let share = Some(Measure::exact(40.0).projected());
        let differs = of(&figure(), Measure::of(Spread::one(0.5), 5), share);
        assert_eq!(differs.verdict, Differs);
    }

    #[test]
    fn a_figure_is_as_good_as_the_worst_of_its_checks() {
        let calm = |value| Measure::of(Spread::one(value), 5);
        let both = of(&figure(), calm(1.5), Some(calm(40.0)));
        assert_eq!(both.verdict, SameDirection);
        let sentence = "two / one 1.50x (published 1.50x); share 40.0 %; besides not measured";
        assert_eq!(both.sentence, sentence);
        let verdict = |share| of(&figure(), calm(1.5), share).verdict;
        assert_eq!(verdict(None), NotMeasured);
        assert_eq!(verdict(Some(calm(40.0).disturbed_if(true))), Disturbed);
        assert_eq!(verdict(Some(calm(60.0))), Differs);
        assert_eq!(
            Figure::default().compare(&Measures::new()).verdict,
            Reported
        );
    }
}
