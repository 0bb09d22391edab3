//! A run that is kept with the sources: what the outcomes of the READMEs come from.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Section;
use crate::paper::Measures;
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
    /// What published figures are compared with.
    pub measures: Measures,
}

impl Stored {
    pub(super) fn of(sections: impl Iterator<Item = Section>) -> Stored {
        let one = |section: Section| {
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
    use crate::paper::Measure;
    use crate::report::figures;
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

    /// A test that can be told to write: `UPDATE_README=1 cargo test -p dominoes-bench readme`.
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
        if std::env::var_os(UPDATE).is_some() {
            std::fs::write(&file, readme).unwrap();
        } else {
            let help = format!("run again with {UPDATE}=1 and read what changes");
            assert!(wrong.is_empty(), "{wrong:?} in the README: {help}");
        }
    }

    /// The root README's figures are medians of the stored run.
    #[test]
    fn headlines_are_those_of_the_stored_run() {
        let stored = stored();
        let readme = std::fs::read_to_string(path("../../README.md")).unwrap();
        let readme = readme.replace('\n', " ");
        let of = |section: &str, measure: &str| -> Measure {
            let section = &stored.sections[section];
            *section
                .measures
                .get(measure)
                .unwrap_or_else(|| panic!("{measure}"))
        };
        for (before, section, measure) in [
            (
                "Receiving on two cores is ",
                "tcp-rx",
                "receive on 2 cores / single",
            ),
            (
                "times as fast as on one, ",
                "tcp-rx",
                "receive on 2 cores / the better locked",
            ),
            (
                "Sending on two cores is ",
                "tcp-tx",
                "send on 2 cores / single",
            ),
        ] {
            let median = of(section, measure).ours.median;
            let said = format!("{before}{median:.2} times as fast as");
            assert!(readme.contains(&said), "the README lacks: {said}");
        }
    }
}
