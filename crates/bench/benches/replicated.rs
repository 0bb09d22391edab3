//! `cargo bench replicated [-- --quick] [--rounds N] [--millis N] [--peer NAME]`
//!
//! A map of 64-bit keys and values in [`dominoes::Replicated`], beside the same map within locks
//! and beside concurrent maps: shares of writes from 0 to 50 %, uniform and Zipf keys, one
//! thread and two. All of them answer every read with a value that belongs to its key.
//!
//! Rounds are interleaved: each round measures every row once; figures are medians with quartiles.
//! Thread `t` is pinned to core `t`. A measurement in which a thread had to wait for its core is
//! repeated, up to twice, and left out if there are others. Measurements of two threads are kept
//! apart by the distance of the cores, which is measured before and after. Tables and pictures
//! become a section of `target/scalability/report.html`.

use arc_swap::ArcSwap;
use crossbeam_skiplist::SkipMap;
use dashmap::DashMap;
use dominoes::replicated::{MapOp, ReplicaHandle, Replicated};
use dominoes_bench::{
    named,
    report::Run,
    rounds::{self, Reading},
    spread::Spread,
    start,
    table::{Bar, Bars, Limit, Table, columns},
    topology::{self, Distance},
};
use std::{
    collections::HashMap,
    hint::black_box,
    process::ExitCode,
    sync::{
        Arc, Barrier, Mutex, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

type Map = HashMap<u64, u64>;

/// One thread's access to a map.
trait Access: Send {
    fn get(&mut self, key: u64) -> Option<u64>;
    fn insert(&mut self, key: u64, value: u64);
}

/// The map without anything around it.
impl Access for Map {
    fn get(&mut self, key: u64) -> Option<u64> {
        HashMap::get(self, &key).copied()
    }
    fn insert(&mut self, key: u64, value: u64) {
        HashMap::insert(self, key, value);
    }
}

impl Access for ReplicaHandle<Map> {
    fn get(&mut self, key: u64) -> Option<u64> {
        self.read(|map| map.get(&key).copied()).expect("it lives")
    }
    fn insert(&mut self, key: u64, value: u64) {
        self.write(MapOp::Insert(key, value)).expect("it lives");
    }
}

impl Access for Arc<RwLock<Map>> {
    fn get(&mut self, key: u64) -> Option<u64> {
        self.read().expect("no panic").get(&key).copied()
    }
    fn insert(&mut self, key: u64, value: u64) {
        self.write().expect("no panic").insert(key, value);
    }
}

impl Access for Arc<parking_lot::RwLock<Map>> {
    fn get(&mut self, key: u64) -> Option<u64> {
        self.read().get(&key).copied()
    }
    fn insert(&mut self, key: u64, value: u64) {
        self.write().insert(key, value);
    }
}

impl Access for Arc<DashMap<u64, u64>> {
    fn get(&mut self, key: u64) -> Option<u64> {
        DashMap::get(self, &key).map(|value| *value)
    }
    fn insert(&mut self, key: u64, value: u64) {
        DashMap::insert(self, key, value);
    }
}

impl Access for Arc<papaya::HashMap<u64, u64>> {
    fn get(&mut self, key: u64) -> Option<u64> {
        self.pin().get(&key).copied()
    }
    fn insert(&mut self, key: u64, value: u64) {
        self.pin().insert(key, value);
    }
}

/// The values are atomics: while `insert` replaces an entry, a reader may find none.
impl Access for Arc<SkipMap<u64, AtomicU64>> {
    fn get(&mut self, key: u64) -> Option<u64> {
        let entry = SkipMap::get(self, &key)?;
        Some(entry.value().load(Ordering::Acquire))
    }
    fn insert(&mut self, key: u64, value: u64) {
        let entry = self.get_or_insert_with(key, AtomicU64::default);
        entry.value().store(value, Ordering::Release);
    }
}

/// Replaces the whole map at each write.
struct Swapped(Arc<ArcSwap<Map>>, Arc<Mutex<()>>);

impl Access for Swapped {
    fn get(&mut self, key: u64) -> Option<u64> {
        self.0.load().get(&key).copied()
    }
    fn insert(&mut self, key: u64, value: u64) {
        let _writer = self.1.lock().expect("no panic");
        let mut map = Map::clone(&self.0.load());
        map.insert(key, value);
        self.0.store(Arc::new(map));
    }
}

struct Insert(u64, u64);

/// A map of which there are several copies.
#[derive(Clone)]
struct Copied(Map);

impl left_right::Absorb<Insert> for Copied {
    fn absorb_first(&mut self, op: &mut Insert, _: &Self) {
        self.0.insert(op.0, op.1);
    }
    fn sync_with(&mut self, first: &Self) {
        self.0.clone_from(&first.0);
    }
}

/// Each write is published at once, as the others' are.
struct LeftRight(
    left_right::ReadHandle<Copied>,
    Arc<Mutex<left_right::WriteHandle<Copied, Insert>>>,
);

impl Access for LeftRight {
    fn get(&mut self, key: u64) -> Option<u64> {
        self.0.enter()?.0.get(&key).copied()
    }
    fn insert(&mut self, key: u64, value: u64) {
        let mut writer = self.1.lock().expect("no panic");
        writer.append(Insert(key, value));
        writer.publish();
    }
}

/// In the published crate of node replication, the map as a whole is read and written.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Get(u64);

impl node_replication::Dispatch for Copied {
    type ReadOperation = Get;
    type WriteOperation = (u64, u64);
    type Response = Option<u64>;
    fn dispatch(&self, Get(key): Get) -> Option<u64> {
        self.0.get(&key).copied()
    }
    fn dispatch_mut(&mut self, (key, value): (u64, u64)) -> Option<u64> {
        self.0.insert(key, value)
    }
}

struct NodeReplicated(
    Arc<node_replication::Replica<'static, Copied>>,
    node_replication::ReplicaToken,
);

impl Access for NodeReplicated {
    fn get(&mut self, key: u64) -> Option<u64> {
        self.0.execute(Get(key), self.1)
    }
    fn insert(&mut self, key: u64, value: u64) {
        self.0.execute_mut((key, value), self.1);
    }
}

named! {
    /// A map.
    enum Peer {
        Plain = "plain",
        OneReplica = "dominoes, 1 replica",
        PerCore = "dominoes, per core",
        RwLock = "RwLock",
        ParkingLot = "parking_lot",
        DashMap = "dashmap",
        Papaya = "papaya",
        LeftRight = "left-right",
        ArcSwap = "arc-swap",
        SkipList = "crossbeam-skiplist",
        NodeReplication = "node-replication",
    }
}

named! {
    /// How often keys are drawn.
    enum Keys {
        Uniform = "uniform",
        Zipf = "Zipf 0.99",
    }
}

/// The shares of writes, in percent.
const WRITES: [u64; 4] = [0, 5, 10, 50];

type Rate = (f64, Option<Distance>);

/// One measured row.
#[derive(Clone, Debug, serde::Serialize)]
struct Row {
    peer: Peer,
    keys: Keys,
    writes: u64,
    threads: usize,
    /// Million operations per second of all threads, and how far apart the cores were; calm if no
    /// thread had to wait for its core.
    rates: Vec<Reading<Rate>>,
}

/// The top bit of a drawn operation: it is a write.
const WRITE: u32 = 1 << 31;

/// The operations of a thread, which it repeats: keys, some with [`WRITE`].
fn operations(keys: Keys, number: usize, writes: u64, thread: u64) -> Vec<u32> {
    let mut x = 0x9e37_79b9_7f4a_7c15 ^ (thread + 1) << 40;
    let mut random = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    let mut sum = 0.0;
    let cumulative: Vec<f64> = (1..=number)
        .map(|rank| {
            sum += (rank as f64).powf(-0.99);
            sum
        })
        .collect();
    (0..1 << 16)
        .map(|_| {
            let rank = match keys {
                Keys::Uniform => random() as usize,
                Keys::Zipf => {
                    let at = (random() >> 11) as f64 / (1u64 << 53) as f64 * sum;
                    cumulative.partition_point(|sum| *sum < at)
                }
            };
            // Spreads the frequent keys; the number of keys is a power of two.
            let key = rank.wrapping_mul(0x9e37_79b1) & (number - 1);
            let write = if random() % 100 < writes { WRITE } else { 0 };
            key as u32 | write
        })
        .collect()
}

/// Runs each access on its core for `window`. Returns million operations per second, calm if no
/// thread had to wait for its core.
fn drive<A: Access + 'static>(
    accesses: Vec<A>,
    row: &Row,
    number: usize,
    window: Duration,
) -> Reading<f64> {
    let start = Arc::new(Barrier::new(accesses.len()));
    let threads: Vec<_> = (0..)
        .zip(accesses)
        .map(|(id, mut access)| {
            let (start, operations) = (start.clone(), operations(row.keys, number, row.writes, id));
            thread::spawn(move || {
                topology::pin_to(id as usize);
                start.wait();
                let (waited, mut count) = (topology::waited_ns(), 0u64);
                let begin = Instant::now();
                for operations in operations.chunks(64).cycle() {
                    for operation in operations {
                        let key = u64::from(operation & !WRITE);
                        if operation & WRITE != 0 {
                            access.insert(key, key | count << 32);
                        } else {
                            let value = black_box(access.get(key)).expect("no key is removed");
                            assert_eq!(value as u32, key as u32, "the value of another key");
                        }
                    }
                    count += operations.len() as u64;
                    if begin.elapsed() >= window {
                        break;
                    }
                }
                let took = begin.elapsed();
                let waited = Duration::from_nanos(topology::waited_ns() - waited);
                (count as f64 / took.as_secs_f64(), waited < took / 50)
            })
        })
        .collect();
    let rates = threads.into_iter().map(|it| it.join().expect("no panic"));
    let sum = |(sum, calm): (f64, bool), (rate, is_calm)| (sum + rate / 1e6, calm && is_calm);
    let (value, is_calm) = rates.fold((0.0, true), sum);
    Reading { value, is_calm }
}

fn measure(row: &Row, number: usize, window: Duration) -> Reading<f64> {
    let pairs = || (0..number as u64).map(|key| (key, key));
    let map = || pairs().collect::<Map>();
    let drive_all = |replicas: usize| {
        let built = Replicated::builder(map()).replicas(replicas).build();
        let built = built.expect("the settings are right");
        let handle = |thread| built.handle_on(thread % replicas).expect("it is there");
        drive((0..row.threads).map(handle).collect(), row, number, window)
    };
    macro_rules! shared {
        ($map:expr) => {{
            let map = Arc::new($map);
            drive(vec![map; row.threads], row, number, window)
        }};
    }
    match row.peer {
        Peer::Plain => drive(vec![map()], row, number, window),
        Peer::OneReplica => drive_all(1),
        Peer::PerCore => drive_all(topology::cores().len().max(1)),
        Peer::RwLock => shared!(RwLock::new(map())),
        Peer::ParkingLot => shared!(parking_lot::RwLock::new(map())),
        Peer::DashMap => shared!(pairs().collect::<DashMap<u64, u64>>()),
        Peer::Papaya => shared!(pairs().collect::<papaya::HashMap<u64, u64>>()),
        Peer::SkipList => shared!(
            pairs()
                .map(|(key, value)| (key, AtomicU64::new(value)))
                .collect::<SkipMap<_, _>>()
        ),
        Peer::ArcSwap => {
            let (map, lock) = (Arc::new(ArcSwap::from_pointee(map())), Arc::default());
            let access = |_| Swapped(map.clone(), Arc::clone(&lock));
            drive((0..row.threads).map(access).collect(), row, number, window)
        }
        // A replica for each thread: nothing applies the log to one that no thread uses.
        Peer::NodeReplication => {
            let log = Arc::new(node_replication::Log::new(1 << 24));
            let access = |_| {
                let replica = node_replication::Replica::with_data(&log, Copied(map()));
                let token = replica.register().expect("it is the first");
                NodeReplicated(replica, token)
            };
            drive((0..row.threads).map(access).collect(), row, number, window)
        }
        Peer::LeftRight => {
            let (writer, reader) = left_right::new_from_empty(Copied(map()));
            let writer = Arc::new(Mutex::new(writer));
            let access = |_| LeftRight(reader.clone(), writer.clone());
            drive((0..row.threads).map(access).collect(), row, number, window)
        }
    }
}

#[derive(Debug, clap::Parser)]
struct Options {
    #[arg(long, default_value_t = 15, default_value_if("quick", "true", "7"))]
    rounds: usize,
    #[arg(long, default_value_t = 40, default_value_if("quick", "true", "12"))]
    millis: u64,
    #[arg(long)]
    quick: bool,
    /// As often as wanted.
    #[arg(long = "peer", default_values = Peer::ALL.map(Peer::name))]
    peers: Vec<Peer>,
}

/// Keys of the map: a power of two.
const KEYS: usize = 1 << 16;

fn main() -> ExitCode {
    start::main("replicated", run)
}

fn run(options: Options) -> Result<(), String> {
    let window = Duration::from_millis(options.millis);
    let run = Run::begin("replicated");
    let most = topology::cores().len().min(2);
    let mut rows = Vec::new();
    for keys in Keys::ALL {
        for writes in WRITES {
            for threads in 1..=most {
                for peer in options.peers.iter().copied() {
                    if peer != Peer::Plain || threads == 1 {
                        let rates = Vec::new();
                        rows.push(Row {
                            peer,
                            keys,
                            writes,
                            threads,
                            rates,
                        });
                    }
                }
            }
        }
    }
    let all = rounds::by_turns(&mut rows, options.rounds, &mut rounds::tell, |row, _| {
        let near = |row: &Row| (row.threads > 1).then(Distance::now);
        let measured = rounds::until_calm(3, || {
            let before = near(row);
            let rate = measure(row, KEYS, window);
            let distance = near(row).filter(|after| Some(*after) == before);
            Ok::<_, String>(Reading {
                value: (rate.value, distance),
                is_calm: rate.is_calm,
            })
        });
        measured.map(|(reading, _)| reading)
    })?;
    for (row, readings) in rows.iter_mut().zip(all) {
        row.rates = readings;
    }
    run.end(tables(&rows, KEYS))
}

impl Row {
    /// The rates at this distance, for two threads.
    fn spread(&self, distance: Option<Distance>) -> Option<Spread> {
        let at = |it: &&Reading<Rate>| it.value.1 == distance;
        let at = self.rates.iter().filter(at).map(|it| Reading {
            value: it.value.0,
            is_calm: it.is_calm,
        });
        rounds::spread(&at.collect::<Vec<_>>())
    }
}

fn find(rows: &[Row], peer: Peer, of: (Keys, u64, usize)) -> Option<&Row> {
    rows.iter()
        .find(|row| row.peer == peer && (row.keys, row.writes, row.threads) == of)
}

fn tables(rows: &[Row], keys: usize) -> Vec<Table> {
    let near = Some(Distance::Near);
    let places = [(1, None), (2, near), (2, Some(Distance::Far))];
    let mut tables = Vec::new();
    for (threads, distance) in places {
        let mut columns = vec!["keys, writes"];
        columns.extend(Peer::ALL.map(Peer::name));
        let place = distance.map_or_else(String::new, |it| format!(", cores {}", it.name()));
        let title = format!(
            "map of {keys} keys, {threads} thread(s){place}: million operations per second, median [quartiles]"
        );
        let mut table = Table::new(title, &columns);
        for mix in Keys::ALL
            .into_iter()
            .flat_map(|keys| WRITES.map(|writes| (keys, writes)))
        {
            let name = format!("{}, {} %", mix.0.name(), mix.1);
            let spread = |peer| find(rows, peer, (mix.0, mix.1, threads))?.spread(distance);
            let shown = Peer::ALL.map(|peer| spread(peer).map(|spread| (peer, spread)));
            if shown.iter().all(Option::is_none) {
                continue;
            }
            let cell =
                |it: &Option<(Peer, Spread)>| it.map_or("-".into(), |it| format!("{:.1}", it.1));
            let cells = shown.iter().map(cell);
            table.row([name.clone()].into_iter().chain(cells).collect());
            let bar =
                |(peer, spread): (Peer, Spread)| Bar::new(peer.name(), peer.name(), spread, 1);
            table.bars(Bars {
                heading: format!("{name} writes, {threads} thread(s){place}"),
                axis: "million operations per second, logarithmic: median and quartiles".to_owned(),
                logarithmic_from: Some(0.001),
                bars: shown.into_iter().flatten().map(bar).collect(),
            });
        }
        if !table.rows.is_empty() {
            tables.push(table);
        }
    }
    if let Some(table) = tables.last_mut() {
        bounds(table, rows);
        table.keep(&rows);
    }
    tables.extend(projection(rows));
    tables
}

/// Projects rates of more cores with a replica each. A core applies the writes of all others, each
/// at the cost that two near cores show, transfers included. The log's own limit is not modelled.
/// Without transfers two cores would be twice as fast as one, which applies to both replicas.
fn projection(rows: &[Row]) -> Option<Table> {
    let cores = [2.0, 4.0, 8.0, 16.0, 32.0, 64.0];
    let title = "dominoes, per core: million operations per second, projected from one and two";
    let columns = columns("keys, writes | 2 cores | 4 | 8 | 16 | 32 | 64 cores | near, ns a write");
    let mut table = Table::new(title.to_owned(), &columns);
    for keys in Keys::ALL {
        // The time of an operation of each core, in microseconds.
        let time = |writes, threads, distance| {
            let row = find(rows, Peer::PerCore, (keys, writes, threads))?;
            Some(threads as f64 / row.spread(distance)?.median)
        };
        for writes in WRITES.into_iter().filter(|writes| *writes > 0) {
            let one = time(writes, 1, None);
            let two = time(writes, 2, Some(Distance::Near));
            let (Some(one), Some(two)) = (one, two) else {
                continue;
            };
            let rate = |cores: f64| cores / (one + (cores - 1.0) * (two - one).max(0.0));
            let name = format!("{}, {writes} %", keys.name());
            let rates = cores.map(|cores| format!("{:.0}", rate(cores)));
            let between = format!("{:.0}", (two - one) * 1e5 / writes as f64);
            table.row([name].into_iter().chain(rates).chain([between]).collect());
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

/// The goals, each as the median of ratios within a round.
fn bounds(table: &mut Table, rows: &[Row]) {
    let ratios = |one: Option<&Row>, other: Option<&Row>, distance| {
        let (one, other) = (one?, other?);
        let is_here = |row: &Row, it: &Rate| row.threads == 1 || it.1 == distance;
        let pairs = one.rates.iter().zip(&other.rates);
        let here = pairs.filter(|it| is_here(one, &it.0.value) && is_here(other, &it.1.value));
        let ratio = |(one, other): (&Reading<Rate>, &Reading<Rate>)| Reading {
            value: one.value.0 / other.value.0,
            is_calm: one.is_calm && other.is_calm,
        };
        rounds::spread(&here.map(ratio).collect::<Vec<_>>())
    };
    let near = Some(Distance::Near);
    for keys in Keys::ALL {
        let at = |peer, writes, threads| find(rows, peer, (keys, writes, threads));
        let name = keys.name();
        let time = ratios(at(Peer::Plain, 0, 1), at(Peer::OneReplica, 0, 1), None);
        table.bound(
            &format!("{name}: time of a read over the plain map's"),
            time,
            Limit::AtMost(1.3),
        );
        for peer in [Peer::OneReplica, Peer::PerCore] {
            let speedup = ratios(at(peer, 5, 2), at(peer, 5, 1), near);
            let what = format!(
                "{name}, 5 % writes, near: two threads over one, {}",
                peer.name()
            );
            table.bound(&what, speedup, Limit::AtLeast(1.5));
        }
        let best = |peers: &[Peer]| {
            let rate = |peer: &Peer| Some((*peer, at(*peer, 5, 2)?.spread(near)?.median));
            peers
                .iter()
                .filter_map(rate)
                .max_by(|one, other| one.1.total_cmp(&other.1))
        };
        if let (Some(ours), Some(rival)) = (best(&Peer::ALL[1..3]), best(&Peer::ALL[3..])) {
            let ratio = ratios(at(ours.0, 5, 2), at(rival.0, 5, 2), near);
            let what = format!(
                "{name}, 5 % writes, near, 2 threads: {} over {}",
                ours.0.name(),
                rival.0.name()
            );
            table.bound(&what, ratio, Limit::AtLeast(1.0));
        }
        // COST (McSherry 2015): the threads that a concurrent map needs to beat the plain one.
        let mixes = WRITES.map(|writes| [(writes, Distance::Near), (writes, Distance::Far)]);
        for (writes, distance) in mixes.into_iter().flatten() {
            let rate = |peer, threads, distance| {
                let row = at(peer, writes, threads)?;
                Some(row.spread(distance)?.median)
            };
            let plain = rate(Peer::Plain, 1, None);
            let of = |peer: &Peer| {
                let two = rate(*peer, 2, Some(distance))?;
                let cost = match (rate(*peer, 1, None) >= plain, Some(two) >= plain) {
                    (true, _) => "1",
                    (_, true) => "2",
                    _ => "more",
                };
                Some(format!("{} {cost}", peer.name()))
            };
            let costs: Vec<String> = Peer::ALL[1..].iter().filter_map(of).collect();
            if plain.is_some() && !costs.is_empty() {
                let place = distance.name();
                let costs = costs.join("; ");
                table.note(format!("COST, {name}, {writes} % writes, {place}: {costs}"));
            }
        }
    }
}
