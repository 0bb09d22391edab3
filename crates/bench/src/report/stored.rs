//! A run that is kept with the sources: what the outcomes of the READMEs come from.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Section, figures};
use crate::paper::{Figure, Measures};
use crate::topology::Machine;

/// What the sections of a report measured, by their names.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Stored {
    /// The sections.
    pub sections: BTreeMap<String, StoredSection>,
}

/// What one of them measured.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct StoredSection {
    /// Where it ran, and from which sources.
    pub machine: Machine,
    /// What published figures are compared with, and [`HEADLINES`].
    pub measures: Measures,
}

/// The root README's figures: the words before each, its section, and its measure.
const HEADLINES: [(&str, &str, &str); 8] = [
    (
        "Receiving on two cores is ",
        "tcp-rx",
        "receive on 2 cores / single, near",
    ),
    (
        "times as fast as on one, ",
        "tcp-rx",
        "receive on 2 cores / the better locked, near",
    ),
    (
        "times as fast as a lock on two, and ",
        "tcp-rx",
        "receive on 2 cores / smoltcp, near",
    ),
    (
        "Sending on two cores is ",
        "tcp-tx",
        "send on 2 cores / single, near",
    ),
    (
        "times as fast as on one, ",
        "tcp-tx",
        "send on 2 cores / the better locked, near",
    ),
    (
        "times as fast as that lock, and ",
        "tcp-tx",
        "send on 2 cores / smoltcp, near",
    ),
    (
        "Two cores receive a TLS stream ",
        "tls",
        "receive, AES-256-GCM: 2 workers / 1, near",
    ),
    (
        "times as fast as one, and send it ",
        "tls",
        "send, AES-256-GCM: 2 workers / 1, near",
    ),
];

impl Stored {
    pub(super) fn of(sections: impl Iterator<Item = Section>) -> Stored {
        let figures = figures();
        let one = |mut section: Section| {
            let (name, measures) = (&section.name, &mut section.measures);
            measures.retain(|measure, _| {
                let checks = |figure: &Figure| figure.checks.iter().any(|c| c.measure == measure);
                figures
                    .iter()
                    .any(|(of, figure)| of == name && checks(figure))
                    || HEADLINES
                        .iter()
                        .any(|&(_, of, is)| of == name && is == measure)
            });
            let stored = StoredSection {
                machine: section.machine,
                measures: section.measures,
            };
            (section.name, stored)
        };
        Stored {
            sections: sections.map(one).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::{Path, PathBuf};

    const UPDATE: &str = "UPDATE_README";

    fn path(of: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join(of)
    }

    fn stored() -> Stored {
        let text = std::fs::read_to_string(path("results.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// The README's table of a paper: a row for each of its figures.
    fn rows(stored: &Stored, paper: &str) -> String {
        let mut rows = String::from("| figure, table | experiment | outcome |\n|---|---|---|\n");
        let none = Measures::new();
        for (name, figure) in figures()
            .iter()
            .filter(|(_, figure)| figure.source == paper)
        {
            let section = stored.sections.get(*name);
            let outcome = figure.compare(section.map_or(&none, |section| &section.measures));
            rows += &format!("| {} | `{name}` | {outcome} |\n", figure.place);
        }
        rows
    }

    /// Compares, or writes with `UPDATE_README=1 cargo test -p dominoes-bench --lib stored`.
    #[test]
    fn outcomes_in_the_readme_are_those_of_the_stored_run() {
        let stored = stored();
        let file = path("README.md");
        let mut readme = std::fs::read_to_string(&file).unwrap();
        let mut wrong = Vec::new();
        for paper in crate::paper::PAPERS {
            let heading = format!("**{paper}**\n\n");
            let from = readme.find(&heading).unwrap_or_else(|| panic!("{paper}")) + heading.len();
            let len = readme[from..]
                .find("\n\n")
                .map_or(readme.len() - from, |len| len + 1);
            let rows = rows(&stored, paper);
            if readme[from..][..len] != rows {
                wrong.push(paper);
                readme.replace_range(from..from + len, &rows);
            }
        }
        compare(&file, &readme, &wrong);
    }

    /// Writes the README of the stored run if `UPDATE_README` is set; else nothing may be wrong.
    fn compare(file: &Path, readme: &str, wrong: &[impl core::fmt::Debug]) {
        if std::env::var_os(UPDATE).is_some() {
            return std::fs::write(file, readme).unwrap();
        }
        let help = format!("run again with {UPDATE}=1 and read what changes");
        assert!(wrong.is_empty(), "{wrong:?} in {}: {help}", file.display());
    }

    /// The position in `text` after `words`, between which there may be any white space.
    fn after(text: &str, words: &str) -> usize {
        let first = words.split(' ').next().unwrap();
        let mut ends = text.match_indices(first).filter_map(|(mut at, _)| {
            for word in words.split_whitespace() {
                at += text[at..].len() - text[at..].trim_start().len();
                at = text[at..].starts_with(word).then_some(at + word.len())?;
            }
            Some(at + text[at..].len() - text[at..].trim_start().len())
        });
        ends.next()
            .unwrap_or_else(|| panic!("the README lacks: {words}"))
    }

    /// As above; each number follows its words in the README, in the order of [`HEADLINES`].
    #[test]
    fn headlines_in_the_root_readme_are_those_of_the_stored_run() {
        let stored = stored();
        let file = path("../../README.md");
        let mut readme = std::fs::read_to_string(&file).unwrap();
        let (mut at, mut wrong) = (0, Vec::new());
        for (before, section, measure) in HEADLINES {
            let measured = stored.sections[section].measures.get(measure);
            let measured = measured.unwrap_or_else(|| panic!("{measure}"));
            let few = measured.disturbed || measured.pairs.is_none_or(|pairs| pairs < 5);
            assert!(!few, "{measure}: at least five calm pairs make a headline");
            at += after(&readme[at..], before);
            let end = readme[at..].find(' ').unwrap();
            let is = format!("{:.2}", measured.ours.median);
            if readme[at..][..end] != is {
                wrong.push(format!("{before}{is}"));
                readme.replace_range(at..at + end, &is);
            }
        }
        compare(&file, &readme, &wrong);
    }
}
