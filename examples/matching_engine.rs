//! A replicated order-matching engine, without any network.
//!
//! `cargo run --release --example matching_engine [-- TRADERS ORDERS SEED]`
//!
//! Traders publish limit orders into one log; three replicas keep the book, each on a thread of its
//! own, and match by price, then by position in the log. One replica's book is corrupted on the
//! way, one replica's thread dies of a panic, and a fresh one takes its slot. At the end every
//! replica must hold the book, the trades and the volume that the log gives when it is matched once
//! more on one thread, and every share must be accounted for: bought, sold, or still in the book.
//! It ends within a second and prints what happened, on standard error also the message of that
//! panic; it exits with an error if anything is not as it should be. The package is
//! `dominoes-examples`; the command works from the workspace root.

use dominoes::{
    Joined, Manager, Observe, ReplicaHandle, Seq, SpinYield, Subscription, Turn, channel,
};
use std::{
    collections::BTreeMap,
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

const REPLICAS: usize = 3;
/// What a replica is told to do between two batches.
const CORRUPT: u64 = 1;
const DIE: u64 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Order {
    buy: bool,
    price: u64,
    shares: u64,
}

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The replicated state: what is offered, and a digest of what was traded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Book {
    /// By price, then position: the best offer is the first ask and the last bid. (A bid's position
    /// is kept as its complement, so that of equal bids the oldest is the last.)
    asks: BTreeMap<(u64, Seq), u64>,
    bids: BTreeMap<(u64, Seq), u64>,
    trades: u64,
    volume: u64,
}

impl Book {
    fn apply(&mut self, seq: Seq, order: &Order) {
        let mut open = order.shares;
        while open > 0 {
            let best = if order.buy {
                self.asks
                    .first_entry()
                    .filter(|ask| ask.key().0 <= order.price)
            } else {
                self.bids
                    .last_entry()
                    .filter(|bid| bid.key().0 >= order.price)
            };
            let Some(mut best) = best else { break };
            let traded = open.min(*best.get());
            open -= traded;
            *best.get_mut() -= traded;
            let (price, other) = *best.key();
            if *best.get() == 0 {
                best.remove();
            }
            self.volume += traded;
            self.trades = mix(self.trades ^ mix(seq) ^ other ^ (price << 32) ^ traded);
        }
        if open > 0 && order.buy {
            self.bids.insert((order.price, !seq), open);
        } else if open > 0 {
            self.asks.insert((order.price, seq), open);
        }
    }

    fn crossed(&self) -> bool {
        let (bid, ask) = (self.bids.last_key_value(), self.asks.first_key_value());
        bid.zip(ask)
            .is_some_and(|((bid, _), (ask, _))| bid.0 >= ask.0)
    }
}

impl Observe for Book {
    const FIELDS: &'static [&'static str] = &["asks", "bids", "trades", "volume"];
    fn fingerprints(&self, out: &mut [u64]) {
        let side = |side: &BTreeMap<(u64, Seq), u64>| {
            side.iter().fold(0, |sum, ((price, seq), shares)| {
                mix(sum ^ mix(*price) ^ mix(seq ^ (shares << 40)))
            })
        };
        out.copy_from_slice(&[side(&self.asks), side(&self.bids), self.trades, self.volume]);
    }
}

type Log = Subscription<Order, SpinYield>;

fn run(
    mut handle: ReplicaHandle<Book, Order, SpinYield>,
    mut book: Book,
    mut log: Log,
    told: &[AtomicU64],
) -> Book {
    let me = handle.replica();
    loop {
        match told[me].swap(0, Ordering::Relaxed) {
            DIE => panic!("replica {me} is told to die"),
            CORRUPT => {
                if let Some(mut bid) = book.bids.first_entry() {
                    *bid.get_mut() += 1; // a share from nowhere
                } else {
                    told[me].store(CORRUPT, Ordering::Relaxed); // when there is something to spoil
                }
            }
            _ => {}
        }
        let apply = |book: &mut Book, seq, order: &Order| book.apply(seq, order);
        match handle.turn(&mut book, &mut log, apply) {
            Turn::Finished => return book,
            Turn::Worked => {}
            _ => thread::yield_now(),
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).map(|n| n.parse::<u64>());
    let traders = arguments.next().transpose()?.unwrap_or(4).max(1);
    let orders = arguments.next().transpose()?.unwrap_or(40_000);
    let seed = arguments.next().transpose()?.unwrap_or(1);

    let (publisher, log) = channel::<Order, SpinYield>(512);
    let mut manager =
        Manager::<Book, Order, SpinYield>::new(REPLICAS, 64, 128).on_verdict(|verdict| {
            println!("verdict: {verdict}");
            dominoes::Action::Repair
        });
    let told: Arc<[AtomicU64]> = (0..REPLICAS).map(|_| AtomicU64::new(0)).collect();
    let mut witness = log.subscribe()?;
    let witness = thread::spawn(move || {
        let mut all = Vec::new();
        while let Some(batch) = witness.next_batch() {
            all.extend(batch.iter().map(|(_, order)| *order));
        }
        all
    });
    let spawn = |handle: ReplicaHandle<_, _, _>, book, log: Log| {
        let told = told.clone();
        thread::spawn(move || run(handle, book, log, &told))
    };
    let mut threads = Vec::new();
    for n in 0..REPLICAS {
        let handle = manager.replica(n).ok_or("the replica slot is taken")?;
        threads.push(Some(spawn(handle, Book::default(), log.subscribe()?)));
    }
    // Traders publish a quarter of their orders whenever the gate is raised by one.
    let (gate, published) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(0)));
    let each = orders / traders;
    let sources: Vec<_> = (0..traders)
        .map(|trader| {
            let (mut publisher, gate) = (publisher.clone(), gate.clone());
            let published = published.clone();
            thread::spawn(move || {
                for n in 0..each {
                    while n * 4 >= each * gate.load(Ordering::Relaxed) {
                        thread::yield_now();
                    }
                    let random = mix(seed ^ mix(trader << 32 | n));
                    let order = Order {
                        buy: random & 1 == 1,
                        price: 1000 + (random >> 8) % 40,
                        shares: 1 + (random >> 32) % 100,
                    };
                    publisher.publish(order).expect("the channel is open");
                    published.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let deadline = Instant::now() + Duration::from_secs(60);
    let pause = |what: &str| -> Result<(), String> {
        thread::sleep(Duration::from_micros(100));
        let late = Instant::now() > deadline;
        if late {
            Err(format!("waited too long for {what}"))
        } else {
            Ok(())
        }
    };

    while published.load(Ordering::Relaxed) < orders / 8 {
        pause("the first orders")?;
    }
    told[0].store(CORRUPT, Ordering::Relaxed);
    gate.store(2, Ordering::Relaxed);
    let verdict = loop {
        match manager.check() {
            Some(verdict) => break verdict,
            None => pause("the verdict")?,
        }
    };
    if verdict.minority.as_deref() != Some(&[0]) {
        return Err("the verdict names somebody else".into());
    }
    while manager.repairs() == 0 {
        manager.check();
        pause("the repair")?;
    }
    told[1].store(DIE, Ordering::Relaxed);
    gate.store(3, Ordering::Relaxed);
    let dead = threads[1].take().ok_or("it runs")?.join();
    println!(
        "replica 1 died: {}; {:?} go on",
        dead.is_err(),
        manager.active()
    );
    let mut joiner = manager.join().ok_or("no replica slot is free")?;
    let Joined {
        handle,
        state,
        subscription,
    } = loop {
        match joiner.poll() {
            Some(joined) => break joined,
            None => pause("the snapshot")?,
        }
        manager.check();
    };
    println!(
        "a fresh replica {} joined at position {}",
        handle.replica(),
        subscription.position()
    );
    threads[1] = Some(spawn(handle, state, subscription));
    gate.store(4, Ordering::Relaxed);
    for source in sources {
        source.join().map_err(|_| "a trader panicked")?;
    }
    drop(publisher);

    let all = witness.join().map_err(|_| "the witness panicked")?;
    let mut plain = Book::default();
    for (seq, order) in (0..).zip(&all) {
        plain.apply(seq, order);
    }
    for (n, thread) in threads.into_iter().flatten().enumerate() {
        let book = thread.join().map_err(|_| "a replica panicked")?;
        if book != plain {
            return Err(format!("replica {n} holds another book than the log gives").into());
        }
    }
    let total = |buy| {
        all.iter()
            .filter(|o| o.buy == buy)
            .map(|o| o.shares)
            .sum::<u64>()
    };
    let open: [u64; 2] = [plain.bids.values().sum(), plain.asks.values().sum()];
    if [total(true) - open[0], total(false) - open[1]] != [plain.volume; 2] || plain.crossed() {
        return Err("shares were lost or made, or the book is crossed".into());
    }
    println!(
        "{} orders of {traders} traders, {} shares traded, {} bids and {} asks open; three replicas equal the log",
        all.len(),
        plain.volume,
        plain.bids.len(),
        plain.asks.len()
    );
    Ok(())
}
