//! Bounds of lines and words. A change that needs more of them removes others, or raises the bound
//! here and gives the reason in the commit.

use std::path::PathBuf;

use crate::source::sources;
use crate::support::root;

/// A part of the workspace.
struct Part {
    folder: &'static str,
    /// A folder within it that has a separate budget.
    without: Option<&'static str>,
    /// The most lines of Rust.
    lines: usize,
    /// The lines to which it should shrink.
    goal: usize,
}

const fn part(folder: &'static str, lines: usize, goal: usize) -> Part {
    Part {
        folder,
        without: None,
        lines,
        goal,
    }
}

const PARTS: [Part; 10] = [
    part("crates/dominoes", 23_064, 17_000),
    part("crates/drivers", 24_971, 20_000),
    part("crates/netstack/proto", 37_032, 31_000),
    Part {
        without: Some("crates/netstack/proto"),
        ..part("crates/netstack", 69_200, 45_000)
    },
    part("crates/bench", 31_840, 21_000),
    part("crates/preload", 8_450, 4_000),
    part("crates/testkit", 4_055, 3_000),
    part("tests", 20_900, 11_500),
    part("examples", 9_150, 5_000),
    part("fuzz", 4_700, 3_500),
];

/// The most words of each page.
const PAGES: [(&str, usize); 2] = [("README.md", 700), ("CHANGELOG.md", 800)];

fn lines_of(part: &Part) -> usize {
    let mut paths: Vec<PathBuf> = Vec::new();
    sources(&root().join(part.folder), &mut paths);
    let is_in = |path: &PathBuf, folder: &str| path.starts_with(root().join(folder));
    let built = root().join(part.folder).join("target");
    paths
        .iter()
        .filter(|path| !part.without.is_some_and(|other| is_in(path, other)))
        .filter(|path| !path.starts_with(&built))
        .map(|path| std::fs::read_to_string(path).expect("it was found there"))
        .map(|text| text.lines().count())
        .sum()
}

#[test]
fn no_part_is_longer_than_its_budget() {
    let mut beyond = Vec::new();
    let mut all = 0;
    for part in &PARTS {
        let lines = lines_of(part);
        assert!(lines > 1_000, "{} was not found", part.folder);
        all += lines;
        println!(
            "{:24} {lines:6} of {:6}, to be {:6}",
            part.folder, part.lines, part.goal
        );
        if lines > part.lines {
            beyond.push(format!("{}: {lines} of {}", part.folder, part.lines));
        }
    }
    println!("{:24} {all:6}", "together");
    assert!(beyond.is_empty(), "too many lines: {beyond:?}");
}

#[test]
fn first_pages_are_short() {
    for (page, most) in PAGES {
        let text = std::fs::read_to_string(root().join(page)).expect("it is there");
        let words = text.split_whitespace().count();
        assert!(words <= most, "{page} has {words} words of {most}");
    }
}
