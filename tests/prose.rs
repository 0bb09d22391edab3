//! Plain English: how often comments and pages use constructions that make a sentence hard to
//! read for somebody who sees it for the first time.
//!
//! A hit is not a mistake, and a page full of them is not plain. The rate is held here; the
//! sentence that says the same with a subject, a verb and an object is up to its author.

use std::path::PathBuf;

use crate::source::{read, sources, within_root};
use crate::support::root;

/// Words in sequence, with the alternatives of each place.
const HARD_TO_READ: [&[&[&str]]; 18] = [
    &[&["who", "whoever"]],
    &[&["nobody", "somebody", "everybody"]],
    &[&["tell", "tells", "told"]],
    &[&["says", "said"]],
    &[
        &["what"],
        &[
            "it", "is", "a", "they", "was", "comes", "else", "an", "has", "of",
        ],
    ],
    &[&["those"], &["that", "of"]],
    &[&["that"], &["of"]],
    &[&["so"], &["many", "long"]],
    &[&["stand", "stands"]],
    &[&["lie", "lies"]],
    &[&["go", "goes"], &["on"]],
    &[&["of"], &["its", "their"], &["own"]],
    &[&["besides"]],
    &[&["is", "are"], &["to"], &["be"]],
    &[&["behind"]],
    &[&["the"], &["same"], &["of", "as", "for", "in", "to"]],
    &[&["but"], &["for"]],
    &[&["brings"]],
];

/// Hits per 1,000 words of everything, at most.
const OVER_ALL: usize = 2;
/// A file of [`LONG`] words with more hits per 1,000 words than this is beyond.
const IN_A_FILE: usize = 8;
const LONG: usize = 200;
/// Files that are beyond, at most; to be none.
const BEYOND: usize = 20;

/// Words, and places where a construction begins.
#[derive(Default)]
struct Count {
    words: usize,
    hits: usize,
}

impl Count {
    fn rate(&self) -> usize {
        (1000 * self.hits).div_ceil(self.words.max(1))
    }

    fn add(&mut self, line: &str) {
        self.words += line.split_whitespace().count();
        let line = line.to_lowercase();
        // A word, and whether a single space is between it and the next one.
        let mut words = Vec::new();
        let is_inside = |c: char| c.is_alphanumeric() || c == '_';
        for word in line.split_inclusive(|c: char| !is_inside(c)) {
            let bare = word.trim_end_matches(|c: char| !is_inside(c));
            match words.last_mut() {
                Some((_, is_followed)) if bare.is_empty() => *is_followed = false,
                _ => words.push((bare, word.ends_with(' '))),
            }
        }
        self.hits += (0..words.len())
            .flat_map(|at| HARD_TO_READ.iter().map(move |places| (at, places)))
            .filter(|(at, places)| {
                places.iter().enumerate().all(|(i, alternatives)| {
                    let is_next = i == 0 || words[at + i - 1].1;
                    let word = words.get(at + i).map_or("", |(word, _)| word);
                    is_next && alternatives.contains(&word)
                })
            })
            .count();
    }
}

/// Counts a page's text without its code blocks, or a source's comments.
fn count(file: &str, text: &str) -> Count {
    let mut count = Count::default();
    let mut is_code = false;
    for line in text.lines() {
        let line = line.trim_start();
        if file.ends_with(".rs") {
            if let Some(comment) = line.strip_prefix("//") {
                count.add(comment.trim_start_matches(['/', '!']));
            }
        } else if line.starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            count.add(line);
        }
    }
    count
}

fn files() -> Vec<String> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for folder in [
        "crates",
        "examples",
        "tests",
        "fuzz/src",
        "fuzz/fuzz_targets",
    ] {
        sources(&root().join(folder), &mut paths);
    }
    let pages = [
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "crates/bench/README.md",
        "crates/dominoes/README.md",
        "crates/drivers/README.md",
        "crates/netstack/README.md",
        "crates/netstack/proto/README.md",
        "examples/README.md",
    ];
    let sources = paths.iter().map(|path| within_root(path));
    sources
        .filter(|file| !file.contains("/target/") && file != "tests/prose.rs")
        .chain(pages.map(String::from))
        .collect()
}

#[test]
fn comments_and_pages_are_plain() {
    let mut all = Count::default();
    let mut beyond = Vec::new();
    for file in files() {
        let count = count(&file, &read(&file));
        all.words += count.words;
        all.hits += count.hits;
        if count.words >= LONG && count.rate() > IN_A_FILE {
            beyond.push(format!("{file}: {}", count.rate()));
        }
    }
    println!(
        "{} places in {} words, {} per 1,000; {} files have more than {IN_A_FILE}",
        all.hits,
        all.words,
        all.rate(),
        beyond.len(),
    );
    assert!(all.words > 100_000, "{} words were found", all.words);
    assert!(all.rate() <= OVER_ALL, "{} of {OVER_ALL}", all.rate());
    assert!(beyond.len() <= BEYOND, "{}: {beyond:#?}", beyond.len());
}

/// The features of the nearest manifest above `file`; of all crates if that is the workspace's.
fn features_near(file: &str) -> Vec<String> {
    let crates = [
        "dominoes",
        "drivers",
        "netstack",
        "netstack/proto",
        "bench",
        "testkit",
    ];
    let own = crates
        .iter()
        .filter(|of| file.starts_with(&format!("crates/{of}/")));
    let near = own.max_by_key(|of| of.len());
    let manifests = crates
        .iter()
        .filter(|of| near.is_none_or(|near| near == *of));
    manifests
        .flat_map(|of| {
            let manifest: toml::Table = read(&format!("crates/{of}/Cargo.toml"))
                .parse()
                .expect("Cargo reads it");
            let features = manifest["features"].as_table().expect("a table");
            features.keys().cloned().collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn each_feature_that_a_text_names_exists() {
    let mut named = 0;
    let mut wrong = Vec::new();
    for file in files() {
        let text = read(&file);
        let after = text.split("eature `").skip(1);
        for name in after
            .filter_map(|rest| rest.split_once('`'))
            .map(|(name, _)| name)
        {
            // A message with a parameter names no feature.
            if name.starts_with('{') {
                continue;
            }
            named += 1;
            if !features_near(&file).iter().any(|feature| feature == name) {
                wrong.push(format!("{file}: {name}"));
            }
        }
    }
    assert!(named > 20, "{named} were found");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_construction_is_found_in_comments_alone() {
    let text = "// Who lies, and what it is.\nlet who = what_it; // who\n/// Those that go on.\n//! What, it goes  on";
    let found = count("a.rs", text);
    assert_eq!((found.words, found.hits), (14, 5));
    let page = "It is to be of its own.\n```\nwho\n```\nThe same as before, but for what.";
    assert_eq!(count("a.md", page).hits, 4);
}
