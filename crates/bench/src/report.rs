//! The report of all experiments as one page: `report.html`.
//!
//! Each experiment leaves a [`Section`] in the directory of the report, as JSON: its question,
//! its output, its picture, and its [`Measures`]. The page is made of all sections that are
//! there, after every experiment, so a run that is interrupted leaves a report of what it had. At
//! its head there is a row for each published figure, with the verdict of [`Figure::compare`].
//!
//! A section also names its settings, machine and commit. A run that resumes
//! takes sections with equal ones and measures the others.

mod html;
mod page;
mod stored;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::{Deserialize, Serialize};

pub use page::page;
pub use stored::FIELD_VALUES;
use stored::Stored;

use crate::experiments::EXPERIMENTS;
use crate::paper::{Figure, Measures, PAPERS, published};
use crate::plot;
use crate::record::ExperimentResult;
use crate::table::{Bound, Table};
use crate::targets::{self, TARGETS};
use crate::topology::Machine;

/// What one experiment has to say.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Section {
    /// Its name, as on the command line.
    pub name: String,
    /// Its question.
    pub about: String,
    /// Everything that its figures depend on, except machine and sources.
    pub settings: String,
    /// Where it ran, and from which sources.
    pub machine: Machine,
    /// Its tables, for people.
    pub table: String,
    /// Its picture, as an SVG document.
    pub picture: Option<String>,
    /// What published figures are compared with.
    pub measures: Measures,
    /// Ratios and other figures, with their goals and verdicts.
    pub bounds: Vec<Bound>,
    /// Panels without figures since the machine was disturbed.
    pub disturbed_panels: usize,
    /// What makes the run fail.
    pub failures: Vec<String>,
    /// All figures.
    pub figures: serde_json::Value,
    /// How long it took.
    pub seconds: f64,
}

impl Section {
    /// The section of an experiment of `scalability`.
    pub fn of(
        result: &ExperimentResult,
        settings: String,
        machine: &Machine,
    ) -> Result<Section, serde_json::Error> {
        let failures = result.panels.iter().filter_map(|panel| {
            let why = panel.failed.as_ref()?;
            Some(format!("{} {}: {why}", result.experiment, panel.name))
        });
        let disturbed = result.panels.iter().filter(|p| p.disturbed.is_some());
        Ok(Section {
            name: result.experiment.to_owned(),
            about: result.about.to_owned(),
            settings,
            machine: machine.clone(),
            table: result.to_string(),
            picture: plot::svg(result),
            measures: result.measures(),
            bounds: result.all_tables().flat_map(|table| table.bounds).collect(),
            disturbed_panels: disturbed.count(),
            failures: failures.chain(result.failures.clone()).collect(),
            figures: serde_json::to_value(result)?,
            seconds: result.seconds,
        })
    }

    /// Whether a run with these settings on this machine would give the same.
    fn is_of(&self, settings: &str, machine: &Machine) -> bool {
        let same = self.machine.cpu == machine.cpu && self.machine.cores == machine.cores;
        let known = machine.commit.is_some() && self.machine.commit == machine.commit;
        same && known && self.settings == settings
    }
}

/// Name, question and published figures of everything that has a section: experiments of
/// `scalability`, then other bench targets.
pub fn contents() -> impl Iterator<Item = (&'static str, &'static str, &'static [Figure])> {
    let experiments = EXPERIMENTS.iter().map(|e| (e.name, e.about));
    let targets = TARGETS.iter().filter(|target| target.has_section());
    let all = experiments.chain(targets.map(|t| (t.name, t.about)));
    all.map(|(name, about)| (name, about, published(name)))
}

/// All published figures with the name of what measures them, paper by paper.
pub fn figures() -> Vec<(&'static str, &'static Figure)> {
    let mut all: Vec<(&'static str, &'static Figure)> = contents()
        .flat_map(|(name, _, figures)| figures.iter().map(move |figure| (name, figure)))
        .collect();
    all.sort_by_key(|(_, figure)| {
        let paper = PAPERS.iter().position(|paper| *paper == figure.source);
        (paper, order(&figure.place))
    });
    all
}

/// Figures by their numbers, then tables, then sections.
fn order(place: &str) -> (usize, Vec<u32>) {
    let kinds = ["figure", "table", "section", "text"];
    let kind = kinds.iter().position(|kind| place.starts_with(kind));
    let digits = place.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits.find(|c: char| !c.is_ascii_digit() && c != '.');
    let number = &digits[..end.unwrap_or(digits.len())];
    let parts = number.split('.').filter_map(|part| part.parse().ok());
    (kind.unwrap_or(kinds.len()), parts.collect())
}

/// Whether the target `name` was measured with these arguments on this machine from these sources.
pub(crate) fn is_kept(name: &str, arguments: &[OsString]) -> bool {
    let directory = Directory::new(targets::directory());
    let settings = settings(arguments);
    directory
        .measured(name, &settings, &Machine::here())
        .is_some()
}

/// The settings of a target's run: its arguments, except `--resume`.
fn settings(arguments: &[OsString]) -> String {
    let words = arguments.iter().map(|word| word.to_string_lossy());
    let words: Vec<_> = words.filter(|word| word != "--resume").collect();
    words.join(" ")
}

/// Where sections and the page are.
#[derive(Clone, Debug)]
pub struct Directory(PathBuf);

impl Directory {
    /// This directory, which has to be there.
    pub fn new(path: impl Into<PathBuf>) -> Directory {
        Directory(path.into())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join("sections").join(name).with_extension("json")
    }

    /// The section of this name, if it is there and can be read.
    pub fn section(&self, name: &str) -> Option<Section> {
        serde_json::from_slice(&fs::read(self.file(name)).ok()?).ok()
    }

    /// The section of this name, if it was measured by the same settings on the same machine from
    /// the same sources, and did not fail.
    pub fn measured(&self, name: &str, settings: &str, machine: &Machine) -> Option<Section> {
        let section = self.section(name)?;
        (section.is_of(settings, machine) && section.failures.is_empty()).then_some(section)
    }

    /// Keeps a section, and makes the page anew.
    pub fn keep(&self, section: &Section) -> Result<(), String> {
        let file = self.file(&section.name);
        write_json(&file, section)?;
        if let Some(picture) = &section.picture {
            write(&self.0.join(&section.name).with_extension("svg"), picture)?;
        }
        write(&self.page(), &self.html())
    }

    /// Adds what its sections measured, of all bench targets or of one, to a stored run: what the
    /// outcomes in the READMEs come from.
    pub fn store(&self, path: &Path, only: Option<&str>) -> Result<(), String> {
        let names = contents().map(|(name, ..)| name);
        let names = names.filter(|name| only.is_none_or(|only| *name == only));
        Stored::of(names.filter_map(|name| self.section(name))).add_to(path)
    }

    /// The page.
    pub fn page(&self) -> PathBuf {
        self.0.join("report.html")
    }

    fn html(&self) -> String {
        let sections: Vec<Section> = contents()
            .filter_map(|(name, ..)| self.section(name))
            .collect();
        html::page(&sections)
    }
}

/// A run of a bench target other than `scalability`, which becomes a section of the usual report.
#[derive(Debug)]
pub struct Run {
    settings: String,
    machine: Machine,
    begin: Instant,
    result: ExperimentResult,
}

impl Run {
    /// Begins a run of the target `name`. Prints its question and the machine.
    ///
    /// # Panics
    /// If there is no such target.
    pub fn begin(name: &str) -> Run {
        let target = TARGETS.iter().find(|target| target.name == name);
        let target = target.expect("a target of this package");
        let machine = Machine::here();
        println!("== {}: {}\n{machine}", target.name, target.about);
        Run {
            settings: settings(&targets::arguments(name).unwrap_or_default()),
            machine,
            begin: Instant::now(),
            result: ExperimentResult::new(target.name, target.about),
        }
    }

    /// Prints a table and adds it to the report: an interrupted run keeps its first tables.
    pub fn add(&mut self, table: Table) -> Result<(), String> {
        print!("{table}");
        self.result.tables.push(table);
        self.keep(false).map(drop)
    }

    /// Keeps a table in the report that is not complete yet: an interrupted run has its samples.
    pub fn keep_begun(&mut self, table: &Table) -> Result<(), String> {
        self.result.tables.push(table.clone());
        let kept = self.keep(false);
        self.result.tables.pop();
        kept.map(drop)
    }

    /// Prints the last tables, the comparison with published figures, and the path of the report.
    pub fn end(mut self, tables: Vec<Table>) -> Result<(), String> {
        tables.iter().for_each(|table| print!("{table}"));
        self.result.tables.extend(tables);
        print!("{}", self.result.verdicts());
        match self.keep(true)? {
            Ok(page) => println!("a section of {}", page.display()),
            Err(error) => println!("no report is kept: {error}"),
        }
        Ok(())
    }

    /// Writes the report, if this user can. A run that is not over is measured again.
    fn keep(&mut self, is_over: bool) -> Result<Result<PathBuf, String>, String> {
        self.result.seconds = self.begin.elapsed().as_secs_f64();
        let section = Section::of(&self.result, self.settings.clone(), &self.machine);
        let mut section = section.map_err(|error| error.to_string())?;
        if !is_over {
            section.failures.push("it did not end".to_owned());
        }
        let directory = Directory::new(targets::directory());
        Ok(directory.keep(&section).map(|()| directory.page()))
    }
}

/// Writes figures as JSON that people can read.
pub fn write_json(path: &Path, figures: &impl Serialize) -> Result<(), String> {
    let json = serde_json::to_string_pretty(figures).map_err(|e| e.to_string())?;
    write(path, &(json + "\n"))
}

/// Writes a file, and makes its directory if need be.
pub fn write(path: &Path, content: &str) -> Result<(), String> {
    let directory = path.parent().unwrap_or(path);
    let made = fs::create_dir_all(directory).and_then(|()| fs::write(path, content));
    made.map_err(|e| format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::{
        Check, KIM_PAI, KIM_SUNG, MACKERRAS, Measure, NAHUM, Published, SIZEMORE, TIMES, Verdict,
    };
    use crate::projection::papers;
    use crate::spread::Spread;
    use crate::table::Limit;
    use std::collections::HashSet;

    pub(super) fn section(name: &str, settings: &str) -> Section {
        Section {
            name: name.to_owned(),
            about: "a < b".to_owned(),
            settings: settings.to_owned(),
            machine: Machine {
                commit: Some("abc".to_owned()),
                ..Machine::here()
            },
            table: "a table".to_owned(),
            picture: Some("<svg></svg>".to_owned()),
            measures: Measures::new(),
            bounds: [0.5, 2.0]
                .map(|ours| {
                    Bound::new("x < y", Some(Spread::one(ours)), Limit::AtLeast(1.0), false)
                })
                .into(),
            disturbed_panels: 0,
            failures: Vec::new(),
            figures: serde_json::Value::Null,
            seconds: 1.0,
        }
    }

    #[test]
    fn only_what_was_measured_alike_is_taken_again() {
        let path = std::env::temp_dir().join(format!("dominoes-report-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let directory = Directory::new(&path);
        let whole = section("warm", "so");
        directory.keep(&whole).unwrap();
        let here = &whole.machine;
        assert!(directory.measured("warm", "so", here).is_some());
        assert!(directory.measured("warm", "otherwise", here).is_none());
        assert!(directory.measured("tcp-rx", "so", here).is_none());
        let later = Machine {
            commit: Some("def".to_owned()),
            ..here.clone()
        };
        assert!(directory.measured("warm", "so", &later).is_none());
        let failed = Section {
            failures: vec!["wrong bytes".to_owned()],
            ..whole.clone()
        };
        directory.keep(&failed).unwrap();
        assert!(directory.measured("warm", "so", here).is_none());
        let page = fs::read_to_string(directory.page()).unwrap();
        assert!(page.contains("<svg></svg>") && page.contains("a &lt; b"));
        assert!(page.contains("1 of 2 targets met"));
        assert!(page.contains("x &lt; y: 0.50, at least 1: MISSED"));
        assert!(!page.contains("x &lt; y: 2.00"));
        fs::remove_dir_all(&path).unwrap();
    }

    /// The numbers after `word` in a place: 6, 7, 8 and 9 in "figures 6 to 9, table 1".
    fn numbers(place: &str, word: &str) -> Vec<String> {
        let (mut found, mut is_meant, mut from) = (Vec::new(), false, None::<u32>);
        let mut last = None;
        for token in place.split([' ', ',']).filter(|token| !token.is_empty()) {
            if token == "to" {
                from = last;
            } else if !token.starts_with(|first: char| first.is_ascii_digit()) {
                is_meant = token.trim_end_matches('s') == word;
            } else if is_meant {
                last = token.parse().ok();
                match (from.take(), last) {
                    (Some(from), Some(to)) => {
                        found.extend((from + 1..=to).map(|number| number.to_string()));
                    }
                    _ => found.push(token.to_owned()),
                }
            }
        }
        found
    }

    #[test]
    fn figures_are_in_the_order_of_their_numbers() {
        let sorted = ["figures 2, 3", "figure 10", "table 1", "section 3.1, send"];
        assert!(sorted.is_sorted_by_key(|place| order(place)));
    }

    #[test]
    fn places_are_read() {
        assert_eq!(
            numbers("figures 6 to 9, table 1", "figure"),
            ["6", "7", "8", "9"]
        );
        assert_eq!(numbers("section 6.3.4, figure 6.4", "figure"), ["6.4"]);
        assert_eq!(numbers("figures 4, 5", "figure"), ["4", "5"]);
        assert_eq!(numbers("table 1, section 4.2", "table"), ["1"]);
    }

    /// Every figure and table with results is somewhere, and no place is named twice.
    #[test]
    fn no_figure_of_a_paper_is_missing() {
        let all = figures();
        let places = all
            .iter()
            .map(|(_, figure)| (figure.source.as_str(), figure.place.as_str()));
        let different: HashSet<_> = places.clone().collect();
        assert_eq!(different.len(), all.len(), "a place is named twice");
        let range = |from: u32, to: u32| -> Vec<String> {
            (from..=to).map(|number| number.to_string()).collect()
        };
        let of_text = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
        let wanted = [
            (
                SIZEMORE,
                "figure",
                of_text("5.1 5.2 5.3 5.4 5.5 5.6 5.7 5.8 5.9 6.1 6.2 6.3 6.4"),
            ),
            (SIZEMORE, "table", of_text("5.2")),
            (NAHUM, "figure", range(2, 18)),
            (NAHUM, "table", range(1, 1)),
            (MACKERRAS, "figure", range(2, 6)),
            (KIM_SUNG, "figure", range(6, 9)),
            (KIM_PAI, "figure", range(5, 13)),
            (KIM_PAI, "table", of_text("1 3")),
        ];
        for (source, word, wanted) in wanted {
            let own = places.clone().filter(|(paper, _)| *paper == source);
            let found: HashSet<String> = own.flat_map(|(_, place)| numbers(place, word)).collect();
            for number in wanted {
                assert!(found.contains(&number), "{source}: no {word} {number}");
            }
        }
    }

    #[test]
    fn all_figures_are_of_experiments_and_bench_targets() {
        let all: toml::Table = toml::from_str(include_str!("../figures.toml")).unwrap();
        for name in all.keys() {
            assert!(contents().any(|(it, ..)| it == name), "{name}");
        }
    }

    /// A figure that names a model names one that is validated.
    #[test]
    fn figures_use_validated_models_alone() {
        let models = papers::all();
        for (_, figure) in figures() {
            let is_it =
                |it: &&papers::Scaled| it.source == figure.source && it.place == figure.model;
            let model = models.iter().find(is_it);
            let name = &figure.place;
            assert_eq!(model.is_some(), !figure.model.is_empty(), "{name}");
            assert!(model.is_none_or(papers::Scaled::is_validated), "{name}");
        }
    }

    /// Whoever reads a row can check it: a bound that no curve gives is explained, an interval of a
    /// ratio is a gain or a loss, and a reason is no guess.
    #[test]
    fn every_bound_is_explained_and_no_reason_is_a_guess() {
        for (name, figure) in figures() {
            let place = format!("{name}, {}", figure.place);
            for check in &figure.checks {
                let is_clear = match check.published {
                    Published::MoreThan(bound) | Published::LessThan(bound) => {
                        bound == 1.0 && check.unit == TIMES || !check.says.is_empty()
                    }
                    Published::Between(least, most) if check.unit == TIMES => {
                        least > 1.0 || most < 1.0
                    }
                    _ => true,
                };
                assert!(is_clear, "{place}: {}", check.what);
            }
            assert!(
                !figure.differs.contains(" may "),
                "{place}: {}",
                figure.differs
            );
            let is_judged = figure
                .checks
                .iter()
                .any(|c| c.published != Published::Nothing);
            let has_reason = !figure.differs.is_empty() || !figure.lacks.is_empty();
            assert!(!is_judged || has_reason || name == "pipeline", "{place}");
        }
    }

    /// A measure of ours that a check must pass, and one that it must fail.
    fn extremes(check: &Check) -> Option<[f64; 2]> {
        Some(match check.published {
            Published::Nothing => return None,
            Published::Number(number) if check.unit == TIMES && number > 1.0 => [number, 0.5],
            Published::Number(number) if check.unit == TIMES => [number, 2.0],
            Published::Number(number) => [number, 2.0 * number],
            Published::Between(least, most) if most > 1.0 => [(least + most) / 2.0, 0.5],
            Published::Between(least, most) => [(least + most) / 2.0, 2.0],
            Published::MoreThan(bound) => [2.0 * bound, bound / 2.0],
            Published::LessThan(bound) => [bound / 2.0, 2.0 * bound],
        })
    }

    #[test]
    fn every_figure_can_fail_and_can_pass() {
        let good = [Verdict::Agrees, Verdict::SameDirection];
        let bad = [Verdict::Differs, Verdict::OnPurpose];
        for (experiment, figure) in figures() {
            let name = format!("{experiment}: {}, {}", figure.source, figure.place);
            let judged = || {
                figure
                    .checks
                    .iter()
                    .filter_map(|check| Some((check, extremes(check)?)))
            };
            let all = |failing: Option<usize>| {
                let one = |(at, (check, values)): (usize, (&Check, [f64; 2]))| {
                    let value = values[usize::from(failing == Some(at))];
                    (check.measure.clone(), Measure::of(Spread::one(value), 5))
                };
                figure
                    .compare(&judged().enumerate().map(one).collect())
                    .verdict
            };
            if !figure.lacks.is_empty() {
                println!("{name}: {} ({})", all(None).name(), figure.lacks);
                assert_eq!(all(None), Verdict::NotComparable);
                continue;
            }
            println!(
                "{name}: {} checks that can fail, {}",
                judged().count(),
                all(None).name()
            );
            if judged().count() == 0 {
                assert_eq!(all(None), Verdict::Reported, "{name}");
                continue;
            }
            assert!(good.contains(&all(None)), "{name}");
            for failing in 0..judged().count() {
                assert!(bad.contains(&all(Some(failing))), "{name}: check {failing}");
            }
        }
    }
}
