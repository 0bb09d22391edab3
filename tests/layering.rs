//! Checks which room imports which, which files use `unsafe`, and that the path of a frame has no
//! lock.
//!
//! Sources are read as the compiler's tokens: comments, strings and character literals do not
//! count.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::source::{Token, read, sources, tokens, within_root};
use crate::support::root;

/// A top-level module of `dominoes-proto` or of `dominoes-netstack`.
struct Room {
    name: &'static str,
    /// The rooms that it may import. [`ROOMS`] lists all of them before this one, so there are no
    /// cycles.
    imports: Vec<&'static str>,
    access: Access,
}

/// What a room may import from outside its crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// No other crate of the workspace; no clock, thread, lock, atomic or file.
    Pure,
    /// No other crate of the workspace.
    Std,
    /// Also the log, whose counters are part of ours.
    Log,
    /// Also the log and the devices.
    All,
}

impl Access {
    /// Whether the room may import this crate of the workspace.
    fn allows(self, krate: &str) -> bool {
        self == Access::All || self == Access::Log && krate == "dominoes"
    }
}

/// The rooms, lowest first: what each may import from outside its crate, and the rooms that it may
/// import.
const ROOMS: &str = "\
hash     Pure
packet   Pure
seqnum   Pure
stats    Log
time     Std
config   Pure packet time
error    Std  config
keys     Pure packet
ip       Pure config hash keys packet time
log      Pure config ip packet seqnum stats time
tcp      Pure config hash ip log seqnum stats time
udp      Pure config hash ip keys log stats time
state    Pure config hash ip keys log seqnum stats tcp time udp
host     Pure ip keys log packet stats time
groups   All  keys log
io       All  config error groups host ip keys log packet seqnum state stats tcp time udp
socket   All  config error io ip keys log packet stats time udp
drive    All  config error io socket state stats time
group    All  config drive error io log socket state stats time
variants All  config drive error group groups io keys log socket state stats time
stack    All  config error group io ip log socket stats time variants
router   All  error host ip keys packet stack time
testkit  All  error group hash io log socket state stats time variants
lib      All  error hash packet seqnum stats time config keys ip log \
  tcp udp state host groups io socket drive group variants stack router testkit";

fn rooms() -> impl Iterator<Item = Room> {
    ROOMS.lines().map(|line| {
        let mut words = line.split_whitespace();
        let name = words.next().expect("each line has a room");
        let access = match words.next() {
            Some("Pure") => Access::Pure,
            Some("Std") => Access::Std,
            Some("Log") => Access::Log,
            Some("All") => Access::All,
            other => panic!("`{name}` has the access {other:?}"),
        };
        let imports = words.collect();
        Room {
            name,
            imports,
            access,
        }
    })
}

/// Tests of a room that import a higher one: the file, and its import.
const TESTED_FROM_ABOVE: [(&str, &str); 1] = [("crates/netstack/src/socket/framed.rs", "stack")];

/// Macros of the lower floors, which Rust places at the root of their crate.
const MACROS: [&str; 2] = ["counters", "settings"];

/// The crates whose modules are rooms: the lower floors, and the floors above.
const PROTO: &str = "dominoes_proto";
const NETSTACK: &str = "dominoes_netstack";
/// The crates of this workspace, and which of them each may import.
const CRATES: [(&str, &[&str]); 6] = [
    ("dominoes", &[]),
    ("dominoes_drivers", &[]),
    (PROTO, &[]),
    (NETSTACK, &["dominoes", "dominoes_drivers", PROTO]),
    (
        "dominoes_testkit",
        &["dominoes_drivers", "dominoes_netstack"],
    ),
    (
        "dominoes_bench",
        &[
            "dominoes",
            "dominoes_drivers",
            NETSTACK,
            PROTO,
            "dominoes_testkit",
        ],
    ),
];

/// The files that may use `unsafe`.
const UNSAFE: [&str; 35] = [
    "crates/dominoes/src/batches.rs",
    "crates/dominoes/src/try_lock.rs",
    "crates/dominoes/src/replicated/barrier.rs",
    "crates/dominoes/src/replicated/op_log.rs",
    "crates/dominoes/src/replicated/state_lock.rs",
    "crates/dominoes/src/ring.rs",
    "crates/dominoes/src/slots.rs",
    "crates/netstack/src/io/stream/byte_ring.rs",
    "crates/netstack/src/io/stream/delivery.rs",
    "crates/netstack/src/io/stream/send.rs",
    "crates/netstack/src/io/stream/table.rs",
    "crates/netstack/src/io/tx.rs",
    "crates/drivers/src/prefetch.rs",
    "crates/drivers/src/sys/bpf.rs",
    "crates/drivers/src/sys/interface.rs",
    "crates/drivers/src/sys/memory.rs",
    "crates/drivers/src/sys/mod.rs",
    "crates/drivers/src/sys/packet.rs",
    "crates/drivers/src/sys/tap.rs",
    "crates/drivers/src/sys/wait.rs",
    "crates/drivers/src/sys/xdp.rs",
    "crates/drivers/src/umem.rs",
    "crates/drivers/src/xsk_ring.rs",
    "crates/preload/src/addr.rs",
    "crates/preload/src/calls.rs",
    "crates/preload/src/calls/bytes.rs",
    "crates/preload/src/calls/descriptors.rs",
    "crates/preload/src/calls/linked.rs",
    "crates/preload/src/calls/messages.rs",
    "crates/preload/src/calls/open.rs",
    "crates/preload/src/calls/ready.rs",
    "crates/preload/src/sys.rs",
    "crates/preload/tests/programs/calls.rs",
    "crates/preload/tests/programs/peer.rs",
    "crates/preload/tests/programs/stress.rs",
];

/// What a frame passes through in the stack from one device to the other: files, and folders with
/// every file in them but tests and models.
const PATH_OF_A_FRAME: [&str; 37] = [
    "crates/dominoes/src/batches.rs",
    "crates/dominoes/src/try_lock.rs",
    "crates/dominoes/src/group/majority.rs",
    "crates/dominoes/src/group/membership.rs",
    "crates/dominoes/src/log.rs",
    "crates/dominoes/src/publisher.rs",
    "crates/dominoes/src/ring.rs",
    "crates/dominoes/src/slots.rs",
    "crates/dominoes/src/subscription.rs",
    "crates/dominoes/src/verdicts.rs",
    "crates/dominoes/src/work.rs",
    "crates/drivers/src/af_packet.rs",
    "crates/drivers/src/af_xdp.rs",
    "crates/drivers/src/checked.rs",
    "crates/drivers/src/fd_halves.rs",
    "crates/drivers/src/frame.rs",
    "crates/drivers/src/lib.rs",
    "crates/drivers/src/memory.rs",
    "crates/drivers/src/pool.rs",
    "crates/drivers/src/prefetch.rs",
    "crates/drivers/src/queues.rs",
    "crates/drivers/src/sys",
    "crates/drivers/src/tap.rs",
    "crates/drivers/src/tun.rs",
    "crates/drivers/src/umem.rs",
    "crates/drivers/src/vnet.rs",
    "crates/drivers/src/xsk_ring.rs",
    "crates/netstack/proto/src",
    "crates/netstack/src/drive",
    "crates/netstack/src/drive.rs",
    "crates/netstack/src/group",
    "crates/netstack/src/group.rs",
    "crates/netstack/src/groups.rs",
    "crates/netstack/src/io",
    "crates/netstack/src/stack/driven.rs",
    "crates/netstack/src/variants/pipelined",
    "crates/netstack/src/variants/single.rs",
];

/// Files in these folders with locks that no segment and no datagram takes.
const BESIDE_THE_PATH: [&str; 4] = [
    // Connections that begin or end.
    "crates/netstack/src/io/accept.rs",
    // Packets of echo sockets.
    "crates/netstack/src/io/rx/echo.rs",
    // Lists of connections, for a thread that asks.
    "crates/netstack/src/io/view.rs",
    // Threads that sleep, sockets, and what changes when an interface does.
    "crates/netstack/src/io/world.rs",
];

/// The most fields of a struct, except counters and configuration.
const MOST_FIELDS: usize = 20;
/// Structs that still have more, and have to be split by subject.
const TOO_WIDE: [&str; 5] = ["Host", "ReplicaState", "SendSpace", "Tcb", "World"];

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

/// A path that begins at the crate's root, or with another crate.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Import {
    /// `crate`, or the other crate's name.
    from: String,
    /// The first name after it.
    module: String,
    line: usize,
}

/// Every path of a source that begins with `crate`, `super` or the name of a crate of the
/// workspace. `module` is the source's path in its crate.
fn imports(tokens: &[Token], module: &[String]) -> Vec<Import> {
    let text = |i: usize| tokens.get(i).map_or("", |token| token.text.as_str());
    let mut out = Vec::new();
    // The depths of braces at which inline modules end.
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
                // Otherwise still within the top-level module of this file.
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
                if text(i + 2) == "{" {
                    heads(tokens, i + 2, name, &mut out);
                } else {
                    out.push(Import {
                        from: name.to_owned(),
                        module: text(i + 2).to_owned(),
                        line: tokens[i].line,
                    });
                }
            }
            _ => {}
        }
        i += 1;
    }
    out
}

/// Adds the first names of the path, or of the group of paths, that begins at `i`.
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

/// The module of `file` in its crate: `io/rx.rs` is `io::rx`, `tcp/mod.rs` is `tcp`.
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
        ("crates/netstack/proto/", PROTO),
        ("crates/netstack/", NETSTACK),
        ("crates/testkit/", "dominoes_testkit"),
        ("crates/bench/", "dominoes_bench"),
    ];
    let found = known.iter().find(|(folder, _)| file.starts_with(folder));
    found.map_or("", |(_, name)| name)
}

/// Every rule of the tables that this source breaks.
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
    let others = CRATES
        .iter()
        .find(|(name, _)| *name == krate)
        .map_or(&[][..], |(_, others)| others);
    let of_netstack = krate == NETSTACK || krate == PROTO;
    let room = rooms().find(|room| room.name == top);
    let room = room.as_ref().filter(|_| of_netstack);
    if of_netstack && room.is_none() {
        breach(1, format!("`{top}` is no room"));
    }
    for import in imports(&tokens, &module) {
        let to = import.module.as_str();
        let is_room = of_netstack && import.from == PROTO;
        let is_own = import.from == krate || import.from == "crate" || is_room;
        if is_own {
            let is_macro = MACROS.contains(&to);
            let may = room.is_none_or(|room| to == top || is_macro || room.imports.contains(&to));
            if !may && !TESTED_FROM_ABOVE.contains(&(file, to)) {
                breach(import.line, format!("`{top}` may not import `{to}`"));
            }
        } else if !others.contains(&import.from.as_str()) {
            breach(
                import.line,
                format!("`{krate}` may not import `{}`", import.from),
            );
        } else if room.is_some_and(|room| !room.access.allows(&import.from))
            && !TESTED_FROM_ABOVE.contains(&(file, import.from.as_str()))
        {
            breach(
                import.line,
                format!("`{top}` may not import `{}`", import.from),
            );
        }
    }
    let is_pure = room.is_some_and(|room| room.access == Access::Pure);
    for (i, token) in tokens.iter().enumerate() {
        let name = token.text.as_str();
        if name == "unsafe" && !UNSAFE.contains(&file) {
            breach(token.line, "`unsafe` stands elsewhere".to_owned());
        }
        if name == "smoltcp" && of_netstack && top != "packet" {
            breach(
                token.line,
                "only `packet` names the header-parsing crate".to_owned(),
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
        if is_pure && is_world {
            breach(token.line, format!("`{top}` sees no `{path}`"));
        }
    }
    out
}

/// The modules that each top-level module in `folders` imports. A path that begins with a name in
/// `own` counts as one that begins with `crate`.
fn graph(folders: &[&str], own: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
    let mut paths = Vec::new();
    for folder in folders {
        sources(&root().join(folder), &mut paths);
    }
    let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in paths.iter().map(|path| within_root(path)) {
        let module = module_of(&file);
        let from = module.first().map_or("lib", String::as_str);
        let to = graph.entry(from.to_owned()).or_default();
        let all = imports(&tokens(&read(&file)), &module);
        let is_own = |name: &str| name == "crate" || own.contains(&name);
        let within = all.into_iter().filter(|import| is_own(&import.from));
        let compared = |module: &str| TESTED_FROM_ABOVE.contains(&(file.as_str(), module));
        to.extend(
            within
                .map(|import| import.module)
                .filter(|module| module != from && !compared(module))
                .filter(|module| !MACROS.contains(&module.as_str())),
        );
    }
    graph
}

/// Rooms by floors: each room is one floor above the highest that it imports. Rooms in a cycle, and
/// rooms above them, have no floor and are returned separately.
fn floors(graph: &BTreeMap<String, BTreeSet<String>>) -> (Vec<Vec<&str>>, BTreeSet<&str>) {
    let mut left: BTreeSet<&str> = graph.keys().map(String::as_str).collect();
    let mut floors = Vec::new();
    loop {
        let stands = |room: &&str| graph[*room].iter().all(|to| !left.contains(to.as_str()));
        let floor: Vec<&str> = left.iter().copied().filter(stands).collect();
        if floor.is_empty() {
            return (floors, left);
        }
        left.retain(|room| !floor.contains(room));
        floors.push(floor);
    }
}

/// Every lock, and every use of the socket table outside `accept` and `free_sockets`, that this
/// source names outside its tests. Opening, listening and accepting take the lock of the socket
/// table; of all effects of a request, only `accept` uses it. (A sleeping thread is woken under a
/// lock that is never contended.)
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
        let may_use_table = matches!(function, "accept" | "free_sockets");
        let is_table = token.text.starts_with("socket_table") && !may_use_table;
        if names_lock || is_table {
            out.push(Breach {
                file: file.to_owned(),
                line: token.line,
                what: format!("`{}` in `{function}`, on the path of a frame", token.text),
            });
        }
    }
    out
}

/// The structs with named fields, and how many fields each has.
fn structs(source: &str) -> Vec<(String, usize)> {
    let tokens = tokens(source);
    let text = |i: usize| tokens.get(i).map_or("", |token| token.text.as_str());
    let mut out = Vec::new();
    for start in (0..tokens.len()).filter(|i| text(*i) == "struct") {
        let is_end = |i: &usize| matches!(text(*i), "{" | "(" | ";" | "");
        let Some(open) = (start..=tokens.len()).find(is_end) else {
            continue;
        };
        let (mut depth, mut fields) = (0, 0);
        for i in open..tokens.len() {
            match text(i) {
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" => depth -= 1,
                ":" if depth == 1 => fields += 1,
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
        out.push((text(start + 1).to_owned(), fields));
    }
    out
}

#[test]
fn structs_are_narrow_enough_to_be_about_one_thing() {
    let counted = structs("struct A<T: Copy> { a: u8, b: fn(x: u8) -> ::b::C, } struct D(u8);");
    assert_eq!(counted, [("A".to_owned(), 2), ("D".to_owned(), 0)]);
    let mut paths = Vec::new();
    sources(&root().join("crates/netstack"), &mut paths);
    let files = paths.iter().map(|path| within_root(path));
    let files =
        files.filter(|file| !matches!(file.rsplit('/').next(), Some("stats.rs" | "config.rs")));
    let all = files.flat_map(|file| structs(&read(&file)));
    let wide = all.filter(|(_, fields)| *fields > MOST_FIELDS);
    let wide: BTreeSet<String> = wide.map(|(name, _)| name).collect();
    assert_eq!(wide, TOO_WIDE.map(str::to_owned).into());
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
    let names = [
        "dominoes",
        "drivers",
        "netstack/proto",
        "netstack",
        "testkit",
        "bench",
    ];
    for name in names {
        sources(&root().join("crates").join(name).join("src"), &mut paths);
    }
    assert!(paths.len() > 30, "{} sources found", paths.len());
    let mut found = Vec::new();
    for path in paths {
        let file = within_root(&path);
        found.extend(breaches(&file, &read(&file)));
    }
    assert!(found.is_empty(), "{}", listed(&found));
    for file in UNSAFE {
        let uses = tokens(&read(file)).iter().any(|it| it.text == "unsafe");
        assert!(uses, "{file} does not use `unsafe`");
    }
}

#[test]
fn rooms_stand_on_floors_without_a_circle_and_each_import_in_the_table_is_used() {
    let folders = ["crates/netstack/proto/src", "crates/netstack/src"];
    let graph = graph(&folders, &[PROTO]);
    assert_no_circle(&graph);
    let names: Vec<&str> = rooms().map(|room| room.name).collect();
    for (number, room) in rooms().enumerate() {
        let used = &graph[room.name];
        for import in room.imports {
            let below = names[..number].contains(&import);
            assert!(
                below,
                "`{}` imports `{import}`, which is not above it",
                room.name
            );
            let used = room.name == "lib" || used.contains(import);
            assert!(used, "`{}` does not import `{import}`", room.name);
        }
    }
}

fn assert_no_circle(graph: &BTreeMap<String, BTreeSet<String>>) {
    let (floors, circle) = floors(graph);
    for (number, floor) in floors.iter().enumerate() {
        println!("floor {number}: {}", floor.join(" "));
    }
    assert!(circle.is_empty(), "these import each other: {circle:?}");
}

#[test]
fn modules_of_the_benchmarks_stand_on_floors_without_a_circle() {
    let graph = graph(&["crates/bench/src"], &["dominoes_bench"]);
    assert!(graph.len() > 20, "{} modules found", graph.len());
    assert_no_circle(&graph);
}

#[test]
fn a_circle_is_found() {
    let graph = [("a", "b"), ("b", "c"), ("c", "b"), ("d", "e"), ("e", "")];
    let graph = graph
        .iter()
        .map(|(from, to)| ((*from).to_owned(), BTreeSet::from([(*to).to_owned()])))
        .collect();
    let (floors, circle) = floors(&graph);
    assert_eq!(floors, [vec!["e"], vec!["d"]]);
    assert_eq!(circle, BTreeSet::from(["a", "b", "c"]));
}

/// The example file that drives the benchmarks' measurements.
const MEASURES: &str = "examples/throughput/measure.rs";

#[test]
fn examples_and_tests_say_unsafe_nowhere_and_one_file_alone_imports_the_benchmarks() {
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
    let mut paths = Vec::new();
    for part in PATH_OF_A_FRAME {
        let before = paths.len();
        match part.ends_with(".rs") {
            true => paths.push(root().join(part)),
            false => sources(&root().join(part), &mut paths),
        }
        assert!(paths.len() > before, "{part} was not found");
    }
    let mut found: Vec<Breach> = paths
        .iter()
        .map(|path| within_root(path))
        .filter(|file| !file.contains("/tests") && !file.contains("/loom_models"))
        .flat_map(|file| locks(&file, &read(&file)))
        .collect();
    for file in BESIDE_THE_PATH {
        let all = found.len();
        found.retain(|breach| breach.file != file);
        assert!(found.len() < all, "{file} names no lock any more");
    }
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
    let tcp = "crates/netstack/proto/src/tcp/send.rs";
    let bad = "use crate::log::request::Flow;\n\nuse crate::io::rx::RxPump;\n";
    assert_eq!(
        what(tcp, bad),
        [(3, "`tcp` may not import `io`".to_owned())]
    );
    assert_eq!(
        breaches(tcp, bad)[0].to_string(),
        format!("{tcp}:3: `tcp` may not import `io`")
    );
    let group = "use crate::{log::{Flow, Mac},\n    packet::{self, Tcp},\n    time};";
    assert_eq!(
        what(tcp, group),
        [(2, "`tcp` may not import `packet`".to_owned())]
    );
    let in_code = "fn f() {\n    crate::socket::Sockets::new();\n}";
    assert_eq!(
        what(tcp, in_code),
        [(2, "`tcp` may not import `socket`".to_owned())]
    );
    let upwards = "use super::super::io;\nuse super::receive_space::Rcv;\nmod tests {\n    use super::super::super::stack;\n}";
    assert_eq!(
        what(tcp, upwards),
        [
            (1, "`tcp` may not import `io`".to_owned()),
            (4, "`tcp` may not import `stack`".to_owned())
        ]
    );
    assert_eq!(
        what(
            "crates/netstack/proto/src/packet.rs",
            "use crate::log::Mac;"
        )
        .len(),
        1
    );
    assert_eq!(
        what(
            "crates/netstack/proto/src/log/request.rs",
            "use crate::tcp::Tcb;"
        )
        .len(),
        1
    );
    assert_eq!(what("crates/netstack/src/io/rx.rs", group), []);
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
        what("crates/netstack/proto/src/tcp/ack.rs", "use dominoes::Seq;").len(),
        1
    );
    assert_eq!(
        what("crates/netstack/src/stats.rs", "use dominoes::Seq;"),
        []
    );
    assert_eq!(
        what(
            "crates/netstack/src/stats.rs",
            "use dominoes_drivers::Frame;"
        )
        .len(),
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
        what("crates/netstack/src/io/gro.rs", "use smoltcp::wire;").len(),
        1
    );
}

#[test]
fn clocks_threads_and_unsafe_are_found_where_they_may_not_be() {
    let tcp = "crates/netstack/proto/src/tcp/mod.rs";
    assert_eq!(what(tcp, "let now = std::time::Instant::now();").len(), 1);
    assert_eq!(what(tcp, "use core::sync::atomic::AtomicU64;").len(), 1);
    let bad = "fn f() { unsafe { g() } }";
    assert_eq!(what("crates/netstack/src/io/rx.rs", bad).len(), 1);
    assert_eq!(what("crates/netstack/src/io/tx.rs", bad), []);
    let named = "// unsafe\n/* unsafe /* unsafe */ unsafe */ const S: &str = \"unsafe\"; const R: &str = r#\"un\"safe unsafe\"#; const C: char = '\"'; const D: char = '\\''; fn f<'a>() {}";
    assert_eq!(what("crates/netstack/src/io/rx.rs", named), []);
}

#[test]
fn a_lock_is_found_unless_it_guards_the_socket_table() {
    let file = "crates/netstack/src/io/perform.rs";
    let good =
        "fn accept() { world.socket_table(); }\n#[cfg(test)]\nmod tests { use std::sync::Mutex; }";
    assert_eq!(locks(file, good), []);
    let bad =
        "use std::sync::Mutex;\nfn deliver() {\n    state.lock();\n    world.socket_table();\n}";
    let lines: Vec<usize> = locks(file, bad).iter().map(|breach| breach.line).collect();
    assert_eq!(lines, [1, 3, 4]);
}
