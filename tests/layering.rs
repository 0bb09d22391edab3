//! Who may import whom, where `unsafe` may stand, and that no lock lies on the path of a frame.
//!
//! The sources are read as tokens: comments, strings and character literals do not count.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::support::root;

/// Modules of `dominoes-netstack` that hold types and nothing else.
const TYPES: [&str; 10] = [
    "config",
    "digest",
    "effect",
    "error",
    "identification",
    "keys",
    "rate_limit",
    "seqnum",
    "stats",
    "time",
];
/// Modules that hold protocols, and what each may import besides the types and itself.
const PROTOCOLS: [(&str, &[&str]); 6] = [
    ("ip", &["wire"]),
    ("neighbor", &[]),
    ("icmp", &[]),
    ("igmp", &[]),
    ("udp", &["ip"]),
    ("tcp", &[]),
];
/// Modules that may import everything of their crate, the log and the devices.
const ENGINE: [&str; 8] = [
    "engine", "lib", "replay", "shards", "socket", "stack", "testkit", "variants",
];

/// The crates of this workspace, and which of them each may import.
const CRATES: [(&str, &[&str]); 4] = [
    ("dominoes", &[]),
    ("dominoes_drivers", &[]),
    ("dominoes_netstack", &["dominoes", "dominoes_drivers"]),
    (
        "dominoes_bench",
        &["dominoes", "dominoes_drivers", "dominoes_netstack"],
    ),
];

/// The files that may say `unsafe`.
const UNSAFE: [&str; 7] = [
    "crates/dominoes/src/ring.rs",
    "crates/dominoes/src/cell.rs",
    "crates/netstack/src/engine/stream.rs",
    "crates/netstack/src/engine/tx.rs",
    "crates/drivers/src/sys.rs",
    "crates/drivers/src/umem.rs",
    "crates/drivers/src/xsk_ring.rs",
];

/// What a frame meets in `replicated` between one device and the other.
const PATH_OF_A_FRAME: [&str; 37] = [
    "crates/dominoes/src/cell.rs",
    "crates/dominoes/src/log.rs",
    "crates/dominoes/src/publisher.rs",
    "crates/dominoes/src/ring.rs",
    "crates/dominoes/src/subscription.rs",
    "crates/dominoes/src/work.rs",
    "crates/netstack/src/engine/checksum.rs",
    "crates/netstack/src/engine/checksum/wide.rs",
    "crates/netstack/src/engine/copy.rs",
    "crates/netstack/src/engine/demux.rs",
    "crates/netstack/src/engine/direct.rs",
    "crates/netstack/src/engine/ingress.rs",
    "crates/netstack/src/engine/perform.rs",
    "crates/netstack/src/engine/perform/datagrams.rs",
    "crates/netstack/src/engine/prepare.rs",
    "crates/netstack/src/engine/processor.rs",
    "crates/netstack/src/engine/processor/cipher.rs",
    "crates/netstack/src/engine/processor/search.rs",
    "crates/netstack/src/engine/replica.rs",
    "crates/netstack/src/engine/replica/row.rs",
    "crates/netstack/src/engine/stream.rs",
    "crates/netstack/src/engine/tx.rs",
    "crates/netstack/src/groups.rs",
    "crates/netstack/src/udp.rs",
    "crates/netstack/src/udp/record.rs",
    "crates/netstack/src/udp/send.rs",
    "crates/netstack/src/variants/replicated.rs",
    "crates/netstack/src/variants/replicated/assign.rs",
    "crates/netstack/src/variants/replicated/autoscale.rs",
    "crates/netstack/src/variants/replicated/divergence.rs",
    "crates/netstack/src/variants/replicated/epochs.rs",
    "crates/netstack/src/variants/replicated/execute.rs",
    "crates/netstack/src/variants/replicated/membership.rs",
    "crates/netstack/src/variants/replicated/pending.rs",
    "crates/netstack/src/variants/replicated/solo.rs",
    "crates/netstack/src/variants/replicated/steal.rs",
    "crates/netstack/src/variants/replicated/worker.rs",
];

/// A rule that a source breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Breach {
    file: String,
    line: usize,
    what: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Token {
    text: String,
    line: usize,
}

impl Token {
    fn is_name(&self) -> bool {
        self.text
            .starts_with(|c: char| c.is_alphabetic() || c == '_')
    }
}

/// Identifiers, `::`, and single characters; nothing of comments and literals.
fn tokens(source: &str) -> Vec<Token> {
    let chars: Vec<char> = source.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let mut out = Vec::new();
    let (mut i, mut line) = (0, 1);
    while i < chars.len() {
        let start = i;
        match at(i) {
            '/' if at(i + 1) == '/' => {
                while i < chars.len() && at(i) != '\n' {
                    i += 1;
                }
            }
            '/' if at(i + 1) == '*' => {
                let mut depth = 0;
                loop {
                    match (at(i), at(i + 1)) {
                        ('/', '*') => (depth, i) = (depth + 1, i + 2),
                        ('*', '/') => (depth, i) = (depth - 1, i + 2),
                        _ => i += 1,
                    }
                    if depth == 0 || i >= chars.len() {
                        break;
                    }
                }
            }
            '"' => i = end_of_string(&chars, i + 1),
            'r' if at(i + 1) == '"' || at(i + 1) == '#' && matches!(at(i + 2), '"' | '#') => {
                i = end_of_raw_string(&chars, i + 1);
            }
            '\'' if at(i + 1) == '\\' || at(i + 2) == '\'' => {
                i += if at(i + 1) == '\\' { 3 } else { 2 };
                while i < chars.len() && at(i) != '\'' {
                    i += 1;
                }
                i += 1;
            }
            c if c.is_alphanumeric() || c == '_' => {
                while at(i).is_alphanumeric() || at(i) == '_' {
                    i += 1;
                }
                out.push(Token {
                    text: chars[start..i].iter().collect(),
                    line,
                });
            }
            ':' if at(i + 1) == ':' => {
                i += 2;
                out.push(Token {
                    text: "::".to_owned(),
                    line,
                });
            }
            c => {
                i += 1;
                if !c.is_whitespace() {
                    out.push(Token {
                        text: c.to_string(),
                        line,
                    });
                }
            }
        }
        line += chars[start..i.min(chars.len())]
            .iter()
            .filter(|c| **c == '\n')
            .count();
    }
    out
}

fn end_of_string(chars: &[char], mut i: usize) -> usize {
    while i < chars.len() && chars[i] != '"' {
        i += if chars[i] == '\\' { 2 } else { 1 };
    }
    i + 1
}

fn end_of_raw_string(chars: &[char], mut i: usize) -> usize {
    let from = i;
    while chars.get(i) == Some(&'#') {
        i += 1;
    }
    let hashes = i - from;
    i += 1;
    while i < chars.len() {
        let closes = chars[i] == '"'
            && chars[i + 1..]
                .iter()
                .take(hashes)
                .filter(|c| **c == '#')
                .count()
                == hashes;
        i += 1;
        if closes {
            return i + hashes;
        }
    }
    i
}

/// A path that leads somewhere: from the crate's root, or from another crate.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Import {
    /// `crate`, or the other crate's name.
    from: String,
    /// The first name behind it.
    module: String,
    line: usize,
}

/// Every path of a source that begins with `crate`, `super` or the name of a crate of the workspace. `module`
/// is where the source stands in its crate.
fn imports(tokens: &[Token], module: &[String]) -> Vec<Import> {
    let text = |i: usize| tokens.get(i).map_or("", |token| token.text.as_str());
    let mut out = Vec::new();
    // Modules that are written in place, and the depth of braces at which each ends.
    let mut inner: Vec<usize> = Vec::new();
    let mut depth = 0;
    let mut i = 0;
    while i < tokens.len() {
        match text(i) {
            "mod" if text(i + 2) == "{" => {
                depth += 1;
                inner.push(depth);
                i += 3;
                continue;
            }
            "{" => depth += 1,
            "}" => {
                if inner.last() == Some(&depth) {
                    inner.pop();
                }
                depth -= 1;
            }
            "crate" if text(i + 1) == "::" => heads(tokens, i + 2, "crate", &mut out),
            "super" if text(i + 1) == "::" && (i == 0 || text(i - 1) != "::") => {
                let mut up = 0;
                let mut behind = i;
                while text(behind) == "super" && text(behind + 1) == "::" {
                    up += 1;
                    behind += 2;
                }
                let levels = module.len() + inner.len();
                // Otherwise still within the top-level module that this file belongs to.
                if levels == up {
                    heads(tokens, behind, "crate", &mut out);
                }
                i = behind;
                continue;
            }
            name if (i == 0 || !matches!(text(i - 1), "::" | "."))
                && CRATES.iter().any(|(known, _)| *known == name)
                && (text(i + 1) == "::" || i > 0 && matches!(text(i - 1), "use" | "crate")) =>
            {
                out.push(Import {
                    from: name.to_owned(),
                    module: text(i + 2).to_owned(),
                    line: tokens[i].line,
                });
            }
            _ => {}
        }
        i += 1;
    }
    out
}

/// The first names of the path, or of the group of paths, that begins at `i`.
fn heads(tokens: &[Token], i: usize, from: &str, out: &mut Vec<Import>) {
    let mut push = |token: &Token| {
        out.push(Import {
            from: from.to_owned(),
            module: token.text.clone(),
            line: token.line,
        });
    };
    let Some(first) = tokens.get(i) else { return };
    if first.text != "{" {
        return push(first);
    }
    let mut depth = 0;
    for (before, token) in tokens[i..].iter().zip(&tokens[i + 1..]) {
        match before.text.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return;
        }
        if depth == 1 && matches!(before.text.as_str(), "{" | ",") && token.is_name() {
            push(token);
        }
    }
}

/// Where `file` stands in its crate: `engine/pump.rs` is `engine::pump`, `tcp/mod.rs` is `tcp`.
fn module_of(file: &str) -> Vec<String> {
    let within = file.split_once("/src/").map_or(file, |(_, within)| within);
    let within = within.trim_end_matches(".rs");
    let mut module: Vec<String> = within.split('/').map(str::to_owned).collect();
    if module
        .last()
        .is_some_and(|last| last == "mod" || last == "lib")
    {
        module.pop();
    }
    module
}

fn crate_of(file: &str) -> &'static str {
    let known = [
        ("crates/dominoes/", "dominoes"),
        ("crates/drivers/", "dominoes_drivers"),
        ("crates/netstack/", "dominoes_netstack"),
        ("crates/bench/", "dominoes_bench"),
    ];
    let found = known.iter().find(|(folder, _)| file.starts_with(folder));
    found.map_or("", |(_, name)| name)
}

/// What the modules of `dominoes-netstack` may import of their own crate; `None`: everything.
fn allowed_within(module: &str) -> Option<Vec<&'static str>> {
    if ENGINE.contains(&module) {
        return None;
    }
    let more = PROTOCOLS
        .iter()
        .find(|(name, _)| *name == module)
        .map(|(_, more)| *more);
    let types = if TYPES.contains(&module) || more.is_some() {
        &TYPES[..]
    } else {
        &[]
    };
    Some([types, more.unwrap_or_default()].concat())
}

/// Every rule of the table that this source breaks.
fn breaches(file: &str, source: &str) -> Vec<Breach> {
    let mut out = Vec::new();
    let mut breach = |line: usize, what: String| {
        out.push(Breach {
            file: file.to_owned(),
            line,
            what,
        });
    };
    let tokens = tokens(source);
    let krate = crate_of(file);
    let module = module_of(file);
    let top = module.first().map_or("lib", String::as_str);
    let of_netstack = krate == "dominoes_netstack";
    let others = CRATES
        .iter()
        .find(|(name, _)| *name == krate)
        .map_or(&[][..], |(_, others)| others);
    let within = if of_netstack {
        allowed_within(top)
    } else {
        None
    };
    for import in imports(&tokens, &module) {
        if import.from == "crate" {
            let is_own = import.module == top;
            if let Some(within) = &within
                && !is_own
                && !within.contains(&import.module.as_str())
            {
                breach(
                    import.line,
                    format!("`{top}` may not import `{}`", import.module),
                );
            }
        } else if import.from != krate && !others.contains(&import.from.as_str()) {
            breach(
                import.line,
                format!("`{krate}` may not import `{}`", import.from),
            );
        } else if within.is_some() && import.from != krate {
            breach(
                import.line,
                format!("`{top}` may not import `{}`", import.from),
            );
        }
    }
    let is_protocol = of_netstack && PROTOCOLS.iter().any(|(name, _)| *name == top);
    for (i, token) in tokens.iter().enumerate() {
        let name = token.text.as_str();
        if name == "unsafe" && !UNSAFE.contains(&file) {
            breach(token.line, "`unsafe` stands elsewhere".to_owned());
        }
        if name == "smoltcp" && of_netstack && top != "wire" {
            breach(
                token.line,
                "only `wire` names the header-parsing crate".to_owned(),
            );
        }
        let path: String = tokens[i..]
            .iter()
            .take(3)
            .map(|token| token.text.as_str())
            .collect();
        let is_world = ["sync", "thread", "time", "io", "fs"]
            .iter()
            .any(|part| path == format!("std::{part}") || path == format!("core::{part}"));
        if is_protocol && is_world {
            breach(token.line, format!("`{top}` sees no `{path}`"));
        }
    }
    out
}

/// Every lock that this source names outside its tests. Opening, listening and accepting go through the desk,
/// which is one; of all that a request can cause, only `accept` goes there. (A thread that sleeps is woken
/// under a lock of its own, which nobody else takes.)
fn locks(file: &str, source: &str) -> Vec<Breach> {
    let tokens = tokens(source);
    let end = tokens.windows(4).position(|w| {
        let text: Vec<&str> = w.iter().map(|token| token.text.as_str()).collect();
        text == ["cfg", "(", "test", ")"]
    });
    let mut out = Vec::new();
    let mut function = "";
    let tokens = &tokens[..end.unwrap_or(tokens.len())];
    for (i, token) in tokens.iter().enumerate() {
        let text = |i: usize| tokens.get(i).map_or("", |token| token.text.as_str());
        if i > 0 && text(i - 1) == "fn" {
            function = &token.text;
        }
        let names_lock = matches!(text(i), "Mutex" | "RwLock" | "Condvar")
            || text(i) == "lock" && text(i + 1) == "(";
        let asks_desk = token.text.starts_with("desk") && function != "accept";
        if names_lock || asks_desk {
            out.push(Breach {
                file: file.to_owned(),
                line: token.line,
                what: format!("`{}` in `{function}`, on the path of a frame", token.text),
            });
        }
    }
    out
}

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder);
    let mut paths: Vec<PathBuf> = entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn listed(breaches: &[Breach]) -> String {
    breaches
        .iter()
        .map(|breach| format!("\n{breach}"))
        .collect()
}

#[test]
fn every_source_imports_only_what_its_layer_may() {
    let mut paths = Vec::new();
    for name in ["dominoes", "drivers", "netstack", "bench"] {
        sources(&root().join("crates").join(name).join("src"), &mut paths);
    }
    assert!(paths.len() > 30, "{} sources found", paths.len());
    let mut found = Vec::new();
    for path in paths {
        let file = path.strip_prefix(root()).expect("it was found there");
        let file = file.to_string_lossy().replace('\\', "/");
        found.extend(breaches(&file, &read(&file)));
    }
    assert!(found.is_empty(), "{}", listed(&found));
}

/// The example that is a benchmark, and so drives the rows of the others.
const MEASURES: &str = "examples/throughput.rs";

#[test]
fn examples_and_tests_say_unsafe_nowhere_and_one_example_alone_imports_the_benchmarks() {
    let mut paths = Vec::new();
    sources(&root().join("examples"), &mut paths);
    sources(&root().join("tests"), &mut paths);
    for path in paths {
        let source = std::fs::read_to_string(&path).expect("it was found there");
        let measures = path == root().join(MEASURES);
        for token in tokens(&source) {
            let bad = match token.text.as_str() {
                "unsafe" => true,
                "dominoes_bench" => !measures,
                _ => false,
            };
            assert!(!bad, "{}:{}: `{}`", path.display(), token.line, token.text);
        }
    }
}

#[test]
fn no_lock_is_named_on_the_path_of_a_frame() {
    let found: Vec<Breach> = PATH_OF_A_FRAME
        .iter()
        .flat_map(|file| locks(file, &read(file)))
        .collect();
    assert!(found.is_empty(), "{}", listed(&found));
}

fn what(file: &str, source: &str) -> Vec<(usize, String)> {
    breaches(file, source)
        .into_iter()
        .map(|breach| (breach.line, breach.what))
        .collect()
}

#[test]
fn an_import_from_above_is_found_with_its_line() {
    let tcp = "crates/netstack/src/tcp/send.rs";
    let bad = "use crate::digest::Flow;\n\nuse crate::engine::pump::RxPump;\n";
    assert_eq!(
        what(tcp, bad),
        [(3, "`tcp` may not import `engine`".to_owned())]
    );
    assert_eq!(
        breaches(tcp, bad)[0].to_string(),
        format!("{tcp}:3: `tcp` may not import `engine`")
    );
    let group = "use crate::{digest::{Flow, Mac},\n    wire::{self, Tcp},\n    time};";
    assert_eq!(
        what(tcp, group),
        [(2, "`tcp` may not import `wire`".to_owned())]
    );
    let in_code = "fn f() {\n    crate::socket::Sockets::new();\n}";
    assert_eq!(
        what(tcp, in_code),
        [(2, "`tcp` may not import `socket`".to_owned())]
    );
    let upwards = "use super::super::engine;\nuse super::window::Rcv;\nmod tests {\n    use super::super::super::stack;\n}";
    assert_eq!(
        what(tcp, upwards),
        [
            (1, "`tcp` may not import `engine`".to_owned()),
            (4, "`tcp` may not import `stack`".to_owned())
        ]
    );
    assert_eq!(
        what("crates/netstack/src/wire.rs", "use crate::digest::Mac;").len(),
        1
    );
    assert_eq!(
        what("crates/netstack/src/digest.rs", "use crate::tcp::Tcb;").len(),
        1
    );
    assert_eq!(what("crates/netstack/src/engine/pump.rs", group), []);
}

#[test]
fn an_import_of_another_crate_is_found() {
    let ring = "crates/dominoes/src/ring.rs";
    assert_eq!(what(ring, "use dominoes_netstack::Limits;").len(), 1);
    assert_eq!(
        what(
            "crates/drivers/src/tap.rs",
            "fn f() { dominoes::channel(1); }"
        )
        .len(),
        1
    );
    assert_eq!(
        what("crates/netstack/src/tcp/ack.rs", "use dominoes::Seq;").len(),
        1
    );
    assert_eq!(
        what(
            "crates/netstack/src/variants/single.rs",
            "use dominoes_drivers::Device;"
        ),
        []
    );
    assert_eq!(
        what("crates/netstack/src/stack.rs", "use dominoes_bench::x;").len(),
        1
    );
    assert_eq!(
        what(
            "crates/netstack/src/engine/ingress.rs",
            "use smoltcp::wire;"
        )
        .len(),
        1
    );
}

#[test]
fn clocks_threads_and_unsafe_are_found_where_they_may_not_be() {
    let tcp = "crates/netstack/src/tcp/mod.rs";
    assert_eq!(what(tcp, "let now = std::time::Instant::now();").len(), 1);
    assert_eq!(what(tcp, "use core::sync::atomic::AtomicU64;").len(), 1);
    let bad = "fn f() { unsafe { g() } }";
    assert_eq!(what("crates/netstack/src/engine/pump.rs", bad).len(), 1);
    assert_eq!(what("crates/netstack/src/engine/tx.rs", bad), []);
    let named = "// unsafe\n/* unsafe /* unsafe */ unsafe */ const S: &str = \"unsafe\"; const R: &str = r#\"un\"safe unsafe\"#; const C: char = '\"'; const D: char = '\\''; fn f<'a>() {}";
    assert_eq!(what("crates/netstack/src/engine/pump.rs", named), []);
}

#[test]
fn a_lock_is_found_unless_it_guards_the_socket_table() {
    let file = "crates/netstack/src/engine/perform.rs";
    let good = "fn accept() { world.desk(); }\n#[cfg(test)]\nmod tests { use std::sync::Mutex; }";
    assert_eq!(locks(file, good), []);
    let bad = "use std::sync::Mutex;\nfn deliver() {\n    state.lock();\n    world.desk();\n}";
    let lines: Vec<usize> = locks(file, bad).iter().map(|breach| breach.line).collect();
    assert_eq!(lines, [1, 3, 4]);
}
