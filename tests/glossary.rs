//! Checks that names and documentation use the words of ARCHITECTURE.md's glossary.
//!
//! A name is the word after `fn`, `struct`, `mod` and the like; documentation is the output of
//! `cargo doc`, and the doc comments of private items. String literals are checked like
//! documentation; other comments are not checked.

use std::collections::BTreeMap;

use proc_macro2::{TokenStream, TokenTree};

use crate::source::{read, sources, tokens, within_root};
use crate::support::root;

/// Words that must not be used, and their replacements. No crate of this workspace uses them in
/// another meaning.
const NOT: [(&str, &str); 21] = [
    ("accuse", "report divergence"),
    ("bury", "reap"),
    ("crew", "replica slots"),
    ("desk", "socket table"),
    ("fuse", "fault plan"),
    ("judge", "divergence"),
    ("lab", "fixture"),
    ("ledger", "membership"),
    ("likeness", "header template"),
    ("nap", "coalescing delay"),
    ("octet", "byte"),
    ("octets", "bytes"),
    ("recruit", "activate"),
    ("seat", "replica slot"),
    ("seats", "replica slots"),
    ("shard", "group"),
    ("shards", "groups"),
    ("shelf", "frame recycler"),
    ("staff", "autoscale"),
    ("stranger", "no connection"),
    ("tenant", "connection"),
];

/// Uses in another meaning: the file, and the word.
const MEANS_ANOTHER_THING: [(&str, &str); 0] = [];

/// Words that precede a name.
const BEFORE_A_NAME: [&str; 9] = [
    "fn", "struct", "enum", "trait", "mod", "const", "static", "type", "union",
];

/// `word` in lower case with its replacement, if it must not be used.
fn forbidden(word: &str) -> Option<(&'static str, &'static str)> {
    let word = word.to_lowercase();
    NOT.into_iter().find(|(not, _)| *not == word)
}

/// The words of a name: of `snake_case`, `CamelCase` and `SCREAMING_CASE`.
fn words_of_name(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut previous = '_';
    for c in name.chars() {
        if !c.is_alphanumeric() || (c.is_uppercase() && !previous.is_uppercase()) {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| c.is_alphanumeric()) {
            word.push(c);
        }
        previous = c;
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Collects every declared name, and every line of documentation and every literal, with its line.
fn read_tokens(
    stream: TokenStream,
    names: &mut Vec<(String, usize)>,
    docs: &mut Vec<(String, usize)>,
) {
    let trees: Vec<TokenTree> = stream.into_iter().collect();
    for (i, tree) in trees.iter().enumerate() {
        let line = tree.span().start().line;
        match tree {
            TokenTree::Ident(word) if BEFORE_A_NAME.contains(&word.to_string().as_str()) => {
                if let Some(TokenTree::Ident(name)) = trees.get(i + 1) {
                    names.push((name.to_string(), line));
                }
            }
            // A string, or `#[doc = "..."]`, the form of a doc comment among tokens.
            TokenTree::Literal(text) => docs.push((text.to_string(), line)),
            TokenTree::Group(group) => read_tokens(group.stream(), names, docs),
            _ => {}
        }
    }
}

/// Whether a text keeps the words of an RFC, or of a media type.
fn is_quotation(text: &str) -> bool {
    text.contains("RFC") || text.contains("application/octet-stream")
}

/// Every use of a forbidden word in `source`.
fn breaches(source: &str) -> Vec<String> {
    let (mut names, mut docs) = (Vec::new(), Vec::new());
    let stream: TokenStream = source.parse().expect("a source that compiles");
    read_tokens(stream, &mut names, &mut docs);
    let of_names = names.iter().flat_map(|(name, line)| {
        let found = words_of_name(name)
            .into_iter()
            .find_map(|word| forbidden(&word));
        found.map(|(not, say)| (*line, not, format!("`{name}`: say {say}")))
    });
    let of_docs = docs.iter().flat_map(|(text, line)| {
        let mut words = text.split(|c: char| !c.is_alphanumeric());
        let found = words
            .find_map(forbidden)
            .filter(|(not, _)| !not.starts_with("octet") || !is_quotation(text));
        found.map(|(not, say)| {
            (
                *line,
                not,
                format!("{}: say {say} for {not}", text.trim_matches('"').trim()),
            )
        })
    });
    of_names
        .chain(of_docs)
        .map(|(line, _, what)| format!("{line}: {what}"))
        .collect()
}

#[test]
fn names_and_documentation_use_the_words_of_the_glossary() {
    let mut paths = Vec::new();
    for folder in [
        "crates",
        "examples",
        "tests",
        "fuzz/src",
        "fuzz/fuzz_targets",
    ] {
        sources(&root().join(folder), &mut paths);
    }
    assert!(paths.len() > 100, "{} sources found", paths.len());
    let mut found = BTreeMap::new();
    for path in paths {
        let file = within_root(&path);
        if file.contains("/target/") || file == "tests/glossary.rs" {
            continue;
        }
        let is_meant = |what: &String| {
            MEANS_ANOTHER_THING
                .iter()
                .any(|(place, word)| *place == file && what.contains(word))
        };
        let breaches: Vec<String> = breaches(&read(&file))
            .into_iter()
            .filter(|what| !is_meant(what))
            .collect();
        if !breaches.is_empty() {
            found.insert(file, breaches);
        }
    }
    let all: usize = found.values().map(Vec::len).sum();
    assert!(
        found.is_empty(),
        "{all} places use words that the glossary has others for: {found:#?}"
    );
}

/// `Recorder` has a second definition for builds without its feature.
const TWICE: [&str; 1] = ["Recorder"];

#[test]
fn no_two_public_types_of_the_published_crates_have_one_name() {
    let mut paths = Vec::new();
    for folder in [
        "dominoes/src",
        "drivers/src",
        "netstack/src",
        "netstack/proto/src",
    ] {
        sources(&root().join("crates").join(folder), &mut paths);
    }
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in paths.iter().map(|path| within_root(path)) {
        for window in tokens(&read(&file)).windows(3) {
            let [public, kind, name] = window else {
                unreachable!("windows of three")
            };
            let is_type = ["struct", "enum", "trait", "union"].contains(&&*kind.text);
            if public.text == "pub" && is_type && name.is_name() {
                let place = format!("{file}:{}", name.line);
                places.entry(name.text.clone()).or_default().push(place);
            }
        }
    }
    assert!(places.len() > 200, "{} types were found", places.len());
    places.retain(|_, places| places.len() > 1);
    let twice: Vec<&str> = places.keys().map(String::as_str).collect();
    assert_eq!(twice, TWICE, "{places:#?}");
}

#[test]
fn a_word_is_found_in_names_and_documentation_and_not_within_another_word() {
    let bad =
        "/// The seat of a worker.\nstruct A;\nfn free_seats() {}\nenum LabState {}\nmod nap;";
    assert_eq!(breaches(bad).len(), 4);
    let said = "fn f() { panic!(\"{len} octets\"); }";
    assert_eq!(breaches(said).len(), 1);
    let good = "/// A label for collaboration: snapshots.\nfn relabel() { let seat = 1; }\n// seat\nconst FUSED: u8 = 1;";
    assert!(breaches(good).is_empty());
    assert!(breaches("/// Bytes are octets in RFC 9293.\nstruct A;").is_empty());
    assert_eq!(
        words_of_name("TxSlotID_of_http2"),
        ["Tx", "Slot", "ID", "of", "http2"]
    );
}

#[test]
fn the_glossary_has_every_word_that_is_to_be_said() {
    let text = read("ARCHITECTURE.md");
    let head = text
        .split("\n## ")
        .find(|section| section.starts_with("Glossary"));
    let head = head
        .expect("ARCHITECTURE.md begins with a glossary")
        .to_lowercase();
    for (_, say) in NOT {
        for word in say.split(", ") {
            let first = word.trim_end_matches('s');
            assert!(
                head.contains(first),
                "the glossary does not say what `{word}` is"
            );
        }
    }
}
