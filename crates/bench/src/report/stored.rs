//! A run that is kept with the sources: what the outcomes of the READMEs come from.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Section, figures};
use crate::paper::{Figure, Measures};
use crate::topology::Machine;

/// What the sections of a report measured, by their names.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Stored {
    /// The sections.
    pub sections: BTreeMap<String, StoredSection>,
}

/// What one of them measured.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct StoredSection {
    /// Where it ran, and from which sources.
    pub machine: Machine,
    /// What published figures are compared with, and [`HEADLINES`].
    pub measures: Measures,
}

impl StoredSection {
    fn is_within(&self, measures: &Measures) -> bool {
        self.measures.keys().all(|name| measures.contains_key(name))
    }
}

/// The root README's figures of `scalability`: the words before each, its section, and its measure.
const HEADLINES: [(&str, &str, &str); 8] = [
    ("| receive |", "tcp-rx", "receive on 2 cores / single, near"),
    (
        "|",
        "tcp-rx",
        "receive on 2 cores / the better locked, near",
    ),
    ("|", "tcp-rx", "receive on 2 cores / smoltcp, near"),
    ("| send |", "tcp-tx", "send on 2 cores / single, near"),
    ("|", "tcp-tx", "send on 2 cores / the better locked, near"),
    ("|", "tcp-tx", "send on 2 cores / smoltcp, near"),
    (
        "| receive TLS |",
        "tls",
        "receive, AES-256-GCM: 2 workers / 1, near",
    ),
    (
        "| send TLS |",
        "tls",
        "send, AES-256-GCM: 2 workers / 1, near",
    ),
];

/// What follows the name of a row in the names of the measures of `field`.
pub const FIELD_VALUES: [&str; 4] = ["Linux", "one", "auto", "auto / Linux"];

impl Stored {
    /// Adds its sections to the file at `path`, if there is one. Where the file has a section from
    /// the same sources, this replaces the measures that were measured again; also in `field`, some
    /// of whose rows may be measured alone, and then both commits are named.
    pub(super) fn add_to(self, path: &Path) -> Result<(), String> {
        let mut all = match fs::read(path) {
            Ok(text) => serde_json::from_slice(&text)
                .map_err(|error| format!("{}: {error}", path.display()))?,
            Err(_) => Stored::default(),
        };
        for (name, section) in self.sections {
            match all.sections.get_mut(&name) {
                Some(old) if old.machine.commit == section.machine.commit => {
                    old.measures.extend(section.measures);
                }
                Some(old) if name == "field" && !old.is_within(&section.measures) => {
                    let [was, is] = [&old.machine.commit, &section.machine.commit]
                        .map(|commit| commit.clone().unwrap_or_default());
                    if !was.ends_with(&is) {
                        old.machine.commit = Some(format!("{was}, in part {is}"));
                    }
                    old.measures.extend(section.measures);
                }
                _ => {
                    all.sections.insert(name, section);
                }
            }
        }
        super::write_json(path, &all)
    }

    pub(super) fn of(sections: impl Iterator<Item = Section>) -> Stored {
        let figures = figures();
        let one = |mut section: Section| {
            let (name, measures) = (&section.name, &mut section.measures);
            measures.retain(|measure, _| {
                let checks = |figure: &Figure| figure.checks.iter().any(|c| c.measure == *measure);
                figures
                    .iter()
                    .any(|(of, figure)| of == name && checks(figure))
                    || HEADLINES
                        .iter()
                        .any(|&(_, of, is)| of == name && is == measure)
                    || name == "field"
            });
            let stored = StoredSection {
                machine: section.machine,
                measures: section.measures,
            };
            (section.name, stored)
        };
        let measured = |(_, section): &(String, StoredSection)| !section.measures.is_empty();
        Stored {
            sections: sections.map(one).filter(measured).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    const UPDATE: &str = "UPDATE_README";

    fn path(of: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join(of)
    }

    fn stored() -> Stored {
        let text = std::fs::read_to_string(path("results.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    const COMMITS: &str = "Commits of the sections: ";

    /// The commit of most sections, and the sections of others.
    fn commits(stored: &Stored) -> String {
        let commit = |section: &StoredSection| section.machine.commit.clone().unwrap_or_default();
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for section in stored.sections.values() {
            *counts.entry(commit(section)).or_default() += 1;
        }
        let most = counts.iter().max_by_key(|(_, count)| **count);
        let most = most.map_or(String::new(), |(commit, _)| commit.clone());
        let others = stored
            .sections
            .iter()
            .filter(|(_, section)| commit(section) != most);
        let others: Vec<String> = others
            .map(|(name, section)| format!("`{name}` {}", commit(section)))
            .collect();
        match others.is_empty() {
            true => format!("{COMMITS}{most}, all of them.\n"),
            false => format!("{COMMITS}{most}, but {}.\n", others.join(", ")),
        }
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

    /// Parts of the names of the rows of `field`, in the README's order and words.
    type Words = &'static [(&'static str, &'static str)];
    const DEVICES: Words = &[("packet", ""), ("tap", "TAP: "), ("xdp", "AF_XDP: ")];
    const FRAMES: Words = &[("large", ""), ("small", ", frames up to the MTU")];
    const WAYS: Words = &[("receive", ", we receive"), ("send", ", we send")];
    const LOADS: Words = &[
        ("iperf3", "`iperf3`"),
        ("iperf3-zero-copy", "`iperf3 -Z`"),
        ("iperf3-v6", "`iperf3` over IPv6"),
        ("curl", "`curl`"),
        ("https", "`curl` over TLS"),
        ("openssl", "`openssl s_client`"),
        ("proxy", "`curl` through a proxy that ends TLS"),
        ("wrk", "`wrk`, 100 connections (Linux: nginx)"),
        ("wrk-1000", "`wrk`, 1000 connections (Linux: nginx)"),
        (
            "connects",
            "`wrk`, a connection for each request (Linux: nginx)",
        ),
        (
            "http_server",
            "`wrk`, 1000 connections, `http_server` (Linux: nginx)",
        ),
        ("search", "`iperf3`, a search for 100 strings"),
        ("blocks", "`iperf3`, SHA-256 of blocks of 16 KB"),
        ("aes", "`iperf3`, AES-256-CTR"),
        ("ingest", "`curl -T` to `ingest`: BLAKE3 and a search"),
    ];

    /// All rows that `field` may have: names and words.
    fn rows_of_field() -> impl Iterator<Item = (String, String)> {
        let rows = DEVICES.iter().flat_map(|device| {
            let rest = FRAMES
                .iter()
                .flat_map(|frames| LOADS.iter().map(move |load| (frames, load)));
            rest.flat_map(move |(frames, load)| {
                WAYS.iter().map(move |way| [device, frames, load, way])
            })
        });
        rows.map(|[device, frames, load, way]| {
            let name = format!("{}, {}: {}, {}", device.0, frames.0, load.0, way.0);
            (name, format!("{}{}{}{}", device.1, load.1, frames.1, way.1))
        })
    }

    /// Linux' rate, ours with one replica and by default, and the ratio, if `row` was measured.
    fn field_values(measures: &Measures, row: &str) -> Option<[String; 4]> {
        let values = FIELD_VALUES.map(|value| measures.get(&format!("{row}: {value}")));
        let [Some(linux), Some(one), Some(auto), Some(ratio)] = values else {
            return None;
        };
        let [linux, one, auto] = [linux, one, auto].map(|rate| match rate.ours.median {
            rate if rate < 100.0 => format!("{rate:.1}"),
            rate => format!("{rate:.0}"),
        });
        let ratio = match ratio.disturbed {
            true => format!("{:.2} (disturbed)", ratio.ours.median),
            false => ratio.ours.to_string(),
        };
        Some([linux, one, auto, ratio])
    }

    /// The README's table of `field`: the rows that were measured.
    fn field_rows(measures: &Measures) -> String {
        let mut rows = String::from(FIELD_HEAD);
        for (row, words) in rows_of_field() {
            if let Some(values) = field_values(measures, &row) {
                rows += &format!("| {words} | {} |\n", values.join(" | "));
            }
        }
        rows
    }

    /// The root README's table of `field`.
    fn root_rows(measures: &Measures) -> String {
        let mut rows = String::from(ROOT_HEAD);
        for (row, words) in ROOT_ROWS {
            let values = field_values(measures, &format!("packet, large: {row}"));
            let values = values.unwrap_or_else(|| panic!("{row} is not measured"));
            rows += &format!("| {words} | {} |\n", values[..3].join(" | "));
        }
        rows
    }

    /// The rows of `field` in the root README, and its words for them.
    const ROOT_ROWS: [(&str, &str); 5] = [
        ("iperf3, receive", "`iperf3`, we receive"),
        ("iperf3, send", "`iperf3`, we send"),
        ("wrk-1000, send", "`wrk`, 1000 connections (Linux: nginx)"),
        (
            "search, receive",
            "`iperf3`, we receive and search for 100 strings",
        ),
        (
            "ingest, receive",
            "`curl -T`, the server hashes (BLAKE3), searches",
        ),
    ];
    const ROOT_HEAD: &str = "\
        | client | Linux | 1 replica | default |\n\
        |---|---|---|---|\n";

    const FIELD_HEAD: &str = "\
        | client | Linux | ours, one replica | ours, default | default over Linux |\n\
        |---|---|---|---|---|\n";

    #[test]
    fn a_row_of_field_needs_all_its_values() {
        let row = "packet, large: iperf3, receive";
        let mut measures = Measures::new();
        let mut add = |value: &str, ours| {
            let measure = crate::paper::Measure::of(crate::spread::Spread::one(ours), 5);
            measures.insert(format!("{row}: {value}"), measure);
        };
        add("Linux", 57.81);
        add("one", 42.44);
        add("auto", 141.4);
        assert_eq!(field_rows(&measures), FIELD_HEAD);
        measures.insert(
            format!("{row}: auto / Linux"),
            crate::paper::Measure::of(crate::spread::Spread::one(2.5), 5),
        );
        let expected = "| `iperf3`, we receive | 57.8 | 42.4 | 141 | 2.50 [2.50 2.50] |\n";
        assert_eq!(field_rows(&measures), FIELD_HEAD.to_owned() + expected);
    }

    /// One section, with one measure.
    fn section_of(commit: &str, measure: &str) -> StoredSection {
        let machine = Machine {
            commit: Some(commit.to_owned()),
            ..Machine::here()
        };
        let measures = [(measure.to_owned(), crate::paper::Measure::exact(1.0))].into();
        StoredSection { machine, measures }
    }

    #[test]
    fn a_section_of_another_commit_is_named() {
        let mut stored = Stored::default();
        for (name, commit) in [("warm", "a"), ("tls", "b"), ("field", "b")] {
            let section = section_of(commit, "x");
            stored.sections.insert(name.to_owned(), section);
        }
        assert_eq!(commits(&stored), format!("{COMMITS}b, but `warm` a.\n"));
        stored.sections.remove("warm");
        assert_eq!(commits(&stored), format!("{COMMITS}b, all of them.\n"));
    }

    #[test]
    fn sections_are_added_to_those_of_a_file() {
        let path = std::env::temp_dir().join(format!("dominoes-stored-{}", std::process::id()));
        let kept = |name: &str, commit: &str, measure: &str| {
            let section = section_of(commit, measure);
            let stored = Stored {
                sections: [(name.to_owned(), section)].into(),
            };
            stored.add_to(&path).unwrap();
            let text = fs::read_to_string(&path).unwrap();
            let all: Stored = serde_json::from_str(&text).unwrap();
            let section = &all.sections[name];
            let names: Vec<&str> = section.measures.keys().map(String::as_str).collect();
            let commit = section.machine.commit.as_deref().unwrap_or_default();
            format!("{commit}: {}", names.join(" "))
        };
        assert_eq!(kept("warm", "a", "x"), "a: x");
        assert_eq!(kept("warm", "a", "y"), "a: x y");
        assert_eq!(kept("warm", "b", "z"), "b: z");
        // Some of its rows, measured alone, twice.
        assert_eq!(kept("field", "a", "x"), "a: x");
        assert_eq!(kept("field", "b", "y"), "a, in part b: x y");
        assert_eq!(kept("field", "b", "y"), "a, in part b: x y");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn nothing_that_a_figure_is_judged_by_is_missing_from_the_stored_run() {
        let stored = stored();
        for (name, figure) in figures() {
            let section = stored.sections.get(name);
            for check in &figure.checks {
                let is_there = section.is_some_and(|s| s.measures.contains_key(&check.measure));
                assert!(is_there, "measure again: {name}, {}", check.measure);
            }
        }
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
        if replace(&mut readme, COMMITS, &commits(&stored)) {
            wrong.push("the commits");
        }
        if let Some(field) = stored.sections.get("field") {
            let rows = field_rows(&field.measures);
            if replace(&mut readme, FIELD_HEAD, &rows) {
                wrong.push("the table of `field`");
            }
        }
        compare(&file, &readme, &wrong);
    }

    /// Replaces the table with this head. Returns whether that changed it.
    fn replace(page: &mut String, head: &str, rows: &str) -> bool {
        let from = page.find(head).expect("the table is there");
        let len = page[from..].find("\n\n").expect("text after it") + 1;
        let differs = page[from..][..len] != *rows;
        page.replace_range(from..from + len, rows);
        differs
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
        if let Some(field) = stored.sections.get("field")
            && replace(&mut readme, ROOT_HEAD, &root_rows(&field.measures))
        {
            wrong.push("the table of `field`".to_owned());
        }
        compare(&file, &readme, &wrong);
    }
}
