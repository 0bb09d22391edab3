//! A replicated order-matching engine without a network.
//!
//! `cargo run --release --example matching_engine [-- --traders N --orders N --seed N]`
//!
//! Traders publish limit orders into one log. Three replicas (copies of the order book), each on
//! a separate thread, match the orders by price, then by position in the log. For each order one
//! replica, its primary, reports the trades to a gateway and gives each trade to one of two
//! settlement workers. The gateway sends reports while its client grants credit, and counts the
//! volume of every millisecond. During the run the example corrupts one replica's book, and one
//! replica's thread panics and joins again. At the end it matches the log once more on one
//! thread. Every replica must hold that book, those trades and that volume. Every share must be
//! bought, sold, or still in the book, and each trade reported once and settled once. Then one
//! thread writes the same orders to a `Replicated` book, while another one reads the best prices
//! from its own copy. It ends within a second and prints the result, on standard error also the
//! message of the panic; if a check fails, it exits with an error. The package is
//! `dominoes-examples`; the command works from the workspace root.

#[path = "common/program.rs"]
mod program;

use dominoes::{
    Channel, Group, Handled, NoBatch, Observe, Park, Priority, Publish, Replica, Replicated,
    Semaphore, Seq, Service, StateMachine, SystemClock, TimerFeed, Unordered, Wheel, WorkShare,
    channel, group::OnDivergence,
};
use std::{
    collections::BTreeMap,
    process::ExitCode,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use program::{Arguments, Outcome};

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

/// The replicated state: the open offers, and a digest of the trades.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Book {
    /// Ordered by price, then position: the best offer is the first ask and the last bid. (A
    /// bid's position is stored as its complement, so that the oldest of equal bids is the last.)
    asks: BTreeMap<(u64, Seq), u64>,
    bids: BTreeMap<(u64, Seq), u64>,
    trades: u64,
    volume: u64,
}

impl Book {
    /// Returns the shares of each trade.
    fn apply(&mut self, seq: Seq, order: &Order) -> Vec<u64> {
        let (mut open, mut trades) = (order.shares, Vec::new());
        while open > 0 {
            let best = if order.buy {
                let ask = self.asks.first_entry();
                ask.filter(|ask| ask.key().0 <= order.price)
            } else {
                let bid = self.bids.last_entry();
                bid.filter(|bid| bid.key().0 >= order.price)
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
            trades.push(traded);
        }
        if open > 0 && order.buy {
            self.bids.insert((order.price, !seq), open);
        } else if open > 0 {
            self.asks.insert((order.price, seq), open);
        }
        trades
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

/// A book that is read while it is written: the book, and how many orders it has matched.
#[derive(Clone, Default)]
struct ReadBook(Book, Seq);

impl StateMachine for ReadBook {
    type Op = Order;
    /// The shares that the order traded.
    type Answer = u64;
    fn apply(&mut self, order: &Order) -> u64 {
        self.1 += 1;
        self.0.apply(self.1 - 1, order).iter().sum()
    }
}

/// Writes the orders on one thread while another one reads the best prices. Both must end with the
/// book `plain`. Returns the number of reads.
fn read_while_written(orders: &[Order], plain: &Book) -> Outcome<u64> {
    let books = Replicated::builder(ReadBook::default()).replicas(2);
    let books = books.build()?;
    let (mut writer, mut reader) = (books.handle_on(0)?, books.handle_on(1)?);
    thread::scope(|scope| {
        let reading = scope.spawn(move || -> Outcome<u64> {
            let (mut reads, mut matched) = (0, 0);
            while matched < orders.len() as Seq {
                let seen = reader.read(|book| (book.1, book.0.crossed()))?;
                if seen.0 < matched || seen.1 {
                    return Err(format!("a reader saw {seen:?} after {matched} orders").into());
                }
                (reads, matched) = (reads + 1, seen.0);
            }
            match reader.read(|book| book.0 == *plain)? {
                true => Ok(reads),
                false => Err("the book that was read differs".into()),
            }
        });
        let mut volume = 0;
        for order in orders {
            volume += writer.write(*order).map_err(|error| error.why)?;
        }
        let reads = reading.join().map_err(|_| "the reader panicked")??;
        match volume == plain.volume && writer.read(|book| book.0 == *plain)? {
            true => Ok(reads),
            false => Err("the book that was written differs".into()),
        }
    })
}

/// The shares that the gateway sent, in total and in each ms of its timer.
struct Gateway {
    sent: u64,
    since_tick: u64,
    ticks: Vec<u64>,
    timers: Wheel<()>,
}

const USAGE: &str = "\
A replicated order-matching engine, without any network; one replica dies, one is corrupted.

  --traders N         threads that publish [4]
  --orders N          orders of all together [40000]
  --seed N            chooses them [1]
";

struct Options {
    traders: u64,
    orders: u64,
    seed: u64,
}

impl Options {
    fn take(&mut self, option: &str, arguments: &mut Arguments) -> Outcome<bool> {
        match option {
            "traders" => self.traders = arguments.number(1..=64)?,
            "orders" => self.orders = arguments.number(10_000..=100_000_000)?,
            "seed" => self.seed = arguments.parse()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn main() -> ExitCode {
    let options = Options {
        traders: 4,
        orders: 40_000,
        seed: 1,
    };
    program::main("matching_engine", &[USAGE], options, Options::take, run)
}

fn run(options: &Options) -> Outcome<()> {
    let &Options {
        traders,
        orders,
        seed,
    } = options;

    // The gateway's reports wait for credit; its timer does not.
    let (reports, report_log) = channel::<u64, Park>(256);
    let credit = Arc::new(Semaphore::new(0));
    let permits = credit.clone();
    let state = Gateway {
        sent: 0,
        since_tick: 0,
        ticks: Vec::new(),
        timers: Wheel::new(0),
    };
    let mut gateway = Service::new(0, "gateway", state)
        .with_scheduler(Priority)
        .with_wake_source(credit.wake_source());
    let send = move |gateway: &mut Gateway, _, shares: &u64| {
        if !permits.try_take() {
            return Handled::Wait;
        }
        gateway.sent += shares;
        gateway.since_tick += shares;
        Handled::Done
    };
    gateway.subscribe(0, report_log.subscribe()?, send);
    let tick = |gateway: &mut Gateway, now, ()| {
        gateway.ticks.push(std::mem::take(&mut gateway.since_tick));
        gateway.timers.start(now + 1, ());
    };
    let clock = SystemClock::new(Duration::from_millis(1));
    gateway.state_mut().timers.start(1, ());
    gateway.add_feed(
        1,
        TimerFeed::new(clock, |gateway: &mut Gateway| &mut gateway.timers, tick),
    );
    let gateway = gateway.spawn(None)?;

    // One of two workers settles each trade.
    let (settlements, share) = WorkShare::<u64, Unordered<u64>, Park>::open(256);
    let settle = || -> Outcome<_> {
        let mut worker = share.join()?;
        Ok(thread::spawn(move || {
            let mut settled = 0;
            loop {
                match worker.take(None) {
                    Ok(shares) => settled += shares,
                    Err(NoBatch::Empty) => {}
                    Err(_) => return settled,
                }
            }
        }))
    };
    let settling = [settle()?, settle()?];

    // Only one thread may use a publisher at a time, so a thread of the group locks it while it
    // needs it.
    let outputs = Mutex::new((reports, settlements));
    let (corrupted, killed) = (AtomicBool::new(false), AtomicBool::new(false));
    let group = Group::builder(Book::default(), 3)
        .observe(128)
        .on_divergence(|divergence| {
            println!("divergence: {divergence}");
            OnDivergence::Repair
        })
        .spawn(
            move |book: &mut Book, seq, order: &Order| {
                if seq >= orders / 4 && !corrupted.swap(true, Ordering::Relaxed) {
                    book.volume += 1; // a share from nowhere
                }
                book.apply(seq, order)
            },
            move |trades: Vec<u64>, seq| {
                if seq >= orders / 2 && !killed.swap(true, Ordering::Relaxed) {
                    panic!("the replica that reports order {seq} is told to die");
                }
                let mut outputs = outputs.lock().expect("no panic while it is locked");
                let (reports, settlements) = &mut *outputs;
                for shares in trades {
                    credit.release(1); // the client takes each report at once
                    reports.publish(shares).expect("the gateway is open");
                    settlements.put(shares).expect("a worker is there");
                }
            },
        )?;
    let publisher = group.publisher();
    let keep = |all: &mut Vec<_>, _, order: &Order| all.push(*order);
    let witness = Replica::new("witness", Vec::new(), publisher.log().subscribe()?, keep);
    let witness = witness.spawn(None)?;
    thread::scope(|scope| {
        for trader in 0..traders {
            let mut publisher = publisher.clone();
            scope.spawn(move || {
                for n in 0..orders / traders {
                    let random = mix(seed ^ mix(trader << 32 | n));
                    let order = Order {
                        buy: random & 1 == 1,
                        price: 1000 + (random >> 8) % 40,
                        shares: 1 + (random >> 32) % 100,
                    };
                    publisher.publish(order).expect("the log is open");
                }
            });
        }
    });
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let membership = group.stats().membership;
        if (membership.repaired, membership.joined, membership.active) == (1, 1, 3) {
            break println!("one replica was repaired, one failed and joined again");
        }
        if Instant::now() > deadline {
            return Err(format!("a replica is not back: {membership:?}").into());
        }
        thread::sleep(Duration::from_millis(1));
    }
    // This drops the publishers, which ends the settlement workers.
    let books = group.shut_down()?;

    let all = witness.join().map_err(|_| "the witness panicked")?;
    let mut plain = Book::default();
    for (seq, order) in (0..).zip(&all) {
        plain.apply(seq, order);
    }
    if books.len() != 3 || books.iter().any(|book| *book != plain) {
        return Err("a replica holds another book than the log gives".into());
    }
    let total = |buy| {
        let orders = all.iter().filter(|order| order.buy == buy);
        orders.map(|order| order.shares).sum::<u64>()
    };
    let open: [u64; 2] = [plain.bids.values().sum(), plain.asks.values().sum()];
    if [total(true) - open[0], total(false) - open[1]] != [plain.volume; 2] || plain.crossed() {
        return Err("shares were lost or made, or the book is crossed".into());
    }
    while !report_log.is_empty() {
        thread::sleep(Duration::from_millis(1));
    }
    gateway.stop();
    let gateway = gateway.join().map_err(|_| "the gateway panicked")?;
    let settled = settling.map(|worker| worker.join().unwrap_or(0));
    if [gateway.sent, settled.iter().sum()] != [plain.volume; 2] {
        return Err(format!("sent {}, settled {settled:?}", gateway.sent).into());
    }
    println!(
        "{} orders of {traders} traders, {} shares traded, {} bids and {} asks open; three \
         replicas equal the log; reported within {} ms, settled {settled:?}; {} reads of the best \
         prices",
        all.len(),
        plain.volume,
        plain.bids.len(),
        plain.asks.len(),
        gateway.ticks.len(),
        read_while_written(&all, &plain)?
    );
    Ok(())
}
