//! A route table that every core looks up in its own copy while routes change.
//!
//! `cargo run --release --example route_table [-- --routes N --bursts N --burst N --seed N]`
//!
//! A binary trie finds the longest prefix that matches an IPv4 address. Each core has a replica of
//! the trie. A thread on each core looks up random addresses; one more thread withdraws and
//! announces routes in bursts, as a BGP neighbour does. A burst is one operation, so every lookup
//! sees all of it or nothing. At the end each replica must find the same routes as an ordered map
//! of all prefixes. With a million routes it needs some seconds and 150 MB for each core; it
//! prints the lookups and changes per second, and exits with an error if a check fails. The package
//! is `dominoes-examples`; the command works from the workspace root.

#[path = "common/program.rs"]
mod program;

use dominoes::{Replicated, StateMachine};
use std::{
    collections::BTreeMap,
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Instant,
};

use program::{Arguments, Outcome};

/// The upper bits of an address, and how many of them.
type Prefix = (u32, u8);
/// The number of a neighbour; 0 means none.
type Hop = u32;

/// A route that is announced, or withdrawn if it has no hop.
type Change = (Prefix, Hop);

#[derive(Clone, Copy, Default)]
struct Node {
    /// By the next bit; 0 means none, since no node has the root as a child.
    children: [u32; 2],
    hop: Hop,
}

/// A binary trie.
#[derive(Clone)]
struct RouteTable {
    /// The root is the first.
    nodes: Vec<Node>,
    free: Vec<u32>,
}

fn bit(address: u32, depth: u8) -> usize {
    (address >> (31 - depth) & 1) as usize
}

impl RouteTable {
    fn new() -> Self {
        RouteTable {
            nodes: vec![Node::default()],
            free: Vec::new(),
        }
    }

    /// The hop of the longest prefix that matches the address.
    fn find(&self, address: u32) -> Hop {
        let (mut node, mut hop) = (self.nodes[0], self.nodes[0].hop);
        for depth in 0..32 {
            let child = node.children[bit(address, depth)];
            if child == 0 {
                break;
            }
            node = self.nodes[child as usize];
            if node.hop != 0 {
                hop = node.hop;
            }
        }
        hop
    }

    fn change(&mut self, ((address, len), hop): Change) {
        let mut path = [0u32; 33];
        for depth in 0..len {
            let (at, bit) = (path[usize::from(depth)] as usize, bit(address, depth));
            let mut child = self.nodes[at].children[bit];
            if child == 0 {
                child = self.free.pop().unwrap_or(self.nodes.len() as u32);
                if child as usize == self.nodes.len() {
                    self.nodes.push(Node::default());
                }
                self.nodes[at].children[bit] = child;
            }
            path[usize::from(depth) + 1] = child;
        }
        self.nodes[path[usize::from(len)] as usize].hop = hop;
        // Nodes without routes below them are used again.
        for depth in (0..len).rev() {
            let child = path[usize::from(depth) + 1];
            let Node { children, hop } = self.nodes[child as usize];
            if hop != 0 || children != [0, 0] {
                break;
            }
            let parent = path[usize::from(depth)] as usize;
            self.nodes[parent].children[bit(address, depth)] = 0;
            self.free.push(child);
        }
    }
}

impl StateMachine for RouteTable {
    type Op = Vec<Change>;
    type Answer = ();

    fn apply(&mut self, burst: &Vec<Change>) {
        burst.iter().for_each(|change| self.change(*change));
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Prefixes of 8 to 24 bits, most of them long, as in the tables of the internet.
    fn route(&mut self) -> Change {
        let random = self.next();
        let len = 24 - (random % 17).min(random >> 8 & 7) as u8;
        let address = (random >> 32) as u32 >> (32 - len) << (32 - len);
        ((address, len), 1 + (random >> 16) as u32 % 1000)
    }
}

/// The oracle: the longest of all prefixes that match.
fn find_in(routes: &BTreeMap<Prefix, Hop>, address: u32) -> Hop {
    let prefix = |len: u8| {
        (
            address >> (32 - u32::from(len)) << (32 - u32::from(len)),
            len,
        )
    };
    let found = (1..=32).rev().find_map(|len| routes.get(&prefix(len)));
    found.copied().unwrap_or(0)
}

struct Options {
    routes: usize,
    bursts: usize,
    burst: usize,
    seed: u64,
}

fn main() -> ExitCode {
    let options = Options {
        routes: 1_000_000,
        bursts: 2_000,
        burst: 100,
        seed: 1,
    };
    let usage = [
        "route_table [--routes N] [--bursts N] [--burst N] [--seed N]\n",
        "Routes at the start, bursts of changes, changes of a burst.\n",
    ];
    program::main("route_table", &usage, options, take, run)
}

fn take(options: &mut Options, word: &str, arguments: &mut Arguments) -> Outcome<bool> {
    match word {
        "routes" => options.routes = arguments.number(1..=10_000_000)?,
        "bursts" => options.bursts = arguments.number(1..=1_000_000)?,
        "burst" => options.burst = arguments.number(1..=100_000)?,
        "seed" => options.seed = arguments.parse()?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn run(options: &Options) -> Outcome<()> {
    let mut random = Random(options.seed);
    let mut routes: BTreeMap<Prefix, Hop> = BTreeMap::new();
    let mut table = RouteTable::new();
    while routes.len() < options.routes {
        let (prefix, hop) = random.route();
        routes.insert(prefix, hop);
        table.change((prefix, hop));
    }
    let bytes = table.nodes.len() * size_of::<Node>();
    let replicas = Replicated::builder(table).per_core().build()?;
    let cores = replicas.stats().replicas.len();

    let ends = AtomicBool::new(false);
    let begin = Instant::now();
    let lookups = thread::scope(|scope| {
        let mut readers = Vec::new();
        for core in 0..cores {
            let (mut handle, ends) = (replicas.handle_on(core)?, &ends);
            let mut random = Random(!options.seed ^ core as u64);
            readers.push(scope.spawn(move || {
                let (mut lookups, mut found) = (0u64, 0u64);
                while !ends.load(Ordering::Relaxed) {
                    let address = random.next() as u32;
                    let hop = handle.read(|table| table.find(address));
                    found += u64::from(hop.expect("no replica fails") != 0);
                    lookups += 1;
                }
                (lookups, found)
            }));
        }
        let mut handle = replicas.handle()?;
        for _ in 0..options.bursts {
            let burst: Vec<Change> = (0..options.burst)
                .map(|n| match (n % 2, routes.range(random.route().0..).next()) {
                    (0, Some((prefix, _))) => (*prefix, 0),
                    _ => random.route(),
                })
                .collect();
            for (prefix, hop) in &burst {
                match hop {
                    0 => routes.remove(prefix),
                    hop => routes.insert(*prefix, *hop),
                };
            }
            handle.write(burst)?;
        }
        ends.store(true, Ordering::Relaxed);
        let readers = readers.into_iter().map(|reader| reader.join());
        readers
            .collect::<Result<Vec<_>, _>>()
            .map_err(|_| "a reader panicked".into())
    });
    let lookups: Vec<(u64, u64)> =
        lookups.map_err(|error: Box<dyn std::error::Error + Send + Sync>| error)?;
    let seconds = begin.elapsed().as_secs_f64();

    for core in 0..cores {
        let mut handle = replicas.handle_on(core)?;
        for _ in 0..100_000 {
            let address = random.next() as u32;
            if handle.read(|table| table.find(address))? != find_in(&routes, address) {
                return Err(format!("replica {core} finds another route to {address:#x}").into());
            }
        }
    }
    let all: u64 = lookups.iter().map(|(lookups, _)| lookups).sum();
    let found: u64 = lookups.iter().map(|(_, found)| found).sum();
    let changes = options.bursts * options.burst;
    println!(
        "{} routes, {} MB in each of {cores} replicas; {:.2} million lookups a second, {:.0} % of \
         them with a route, during {:.0} changes a second",
        routes.len(),
        bytes >> 20,
        all as f64 / seconds / 1e6,
        100.0 * found as f64 / all.max(1) as f64,
        changes as f64 / seconds,
    );
    println!("every replica finds what the ordered map of all prefixes finds");
    Ok(())
}
