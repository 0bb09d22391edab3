//! A replicated key-value store, without any network.
//!
//! `cargo run --release --example kv_store [-- CLIENTS OPERATIONS SEED]`
//!
//! Several clients put, add and delete keys through one log; three replicas apply it, each on a
//! thread of its own. On the way one replica's thread is killed by a panic and a fresh one joins,
//! and a bit of another one's store is flipped behind its back, which the consistency manager
//! finds and repairs. At the end each replica's store is compared with what the log says, applied
//! once more to a plain map, and each reply with what that map replied. It ends within a second and
//! prints what happened, on standard error also the message of that panic; it exits with an error
//! if anything is not as it should be. The package is `dominoes-examples`; the command works from
//! the workspace root.

use dominoes::{
    ByPosition, Joined, Manager, Observe, PrimaryPolicy, ReplicaHandle, Seq, Shares, SpinYield,
    Subscription, Turn, channel,
};
use std::{
    collections::HashMap,
    error::Error,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

const REPLICAS: usize = 3;
const KEYS: u64 = 500;
/// Positions between two comparisons.
const EVERY: u64 = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Put {
        key: u64,
        value: u64,
    },
    Add {
        key: u64,
        amount: u64,
    },
    Delete {
        key: u64,
    },
    /// The last one.
    End,
}

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The replicated state.
#[derive(Debug, Clone, Default)]
struct Store {
    map: HashMap<u64, u64>,
    applied: u64,
    /// All replies, folded.
    replies: u64,
}

impl Store {
    /// Applies an operation and returns what the client gets: the value before.
    fn apply(&mut self, operation: &Operation) -> u64 {
        let before = match *operation {
            Operation::Put { key, value } => self.map.insert(key, value),
            Operation::Add { key, amount } => {
                let value = self.map.entry(key).or_default();
                let before = *value;
                *value = value.wrapping_add(amount);
                Some(before)
            }
            Operation::Delete { key } => self.map.remove(&key),
            Operation::End => None,
        };
        let reply = before.map_or(0, |value| mix(value).max(1));
        self.applied += 1;
        self.replies = mix(self.replies ^ reply);
        reply
    }
}

impl Observe for Store {
    const FIELDS: &'static [&'static str] = &["map", "replies"];
    fn fingerprints(&self, out: &mut [u64]) {
        // A sum over entries does not depend on the order of a hash map.
        let map = self.map.iter().map(|(key, value)| mix(mix(*key) ^ value));
        out[0] = map.fold(0, u64::wrapping_add);
        out[1] = self.replies ^ mix(self.applied);
    }
}

/// Replies go round in chunks of 16.
fn primary_of(seq: Seq) -> usize {
    ByPosition.primary(seq / 16, REPLICAS)
}

type Log = Subscription<Operation, SpinYield>;

/// What threads share beside the log. The replies stand for a network: only the primary of an
/// operation sends its reply.
struct World {
    shares: Shares,
    replies: Mutex<HashMap<Seq, u64>>,
    kill: [AtomicBool; REPLICAS],
    corrupt: [AtomicBool; REPLICAS],
}

/// A replica's thread: until the end of the log.
fn run(
    mut handle: ReplicaHandle<Store, Operation, SpinYield>,
    mut store: Store,
    mut log: Log,
    world: &World,
) -> Store {
    let me = handle.replica();
    let mut sent = Vec::new();
    loop {
        if world.kill[me].swap(false, Ordering::Relaxed) {
            panic!("replica {me} is told to die");
        }
        if world.corrupt[me].swap(false, Ordering::Relaxed) {
            match store.map.values_mut().next() {
                Some(value) => *value ^= 1 << 17,
                // When there is something to spoil.
                None => world.corrupt[me].store(true, Ordering::Relaxed),
            }
        }
        let turn = handle.turn(&mut store, &mut log, |store, seq, operation| {
            let reply = store.apply(operation);
            if primary_of(seq) == me {
                sent.push((seq, reply));
            }
        });
        if !sent.is_empty() {
            world.shares.add(me, sent.len() as u64);
            world
                .replies
                .lock()
                .expect("no panic")
                .extend(sent.drain(..));
        }
        match turn {
            Turn::Finished => return store,
            Turn::Worked => {}
            _ => thread::yield_now(),
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).map(|n| n.parse::<u64>());
    let clients = arguments.next().transpose()?.unwrap_or(3);
    let operations = arguments.next().transpose()?.unwrap_or(60_000);
    let seed = arguments.next().transpose()?.unwrap_or(1);

    let (publisher, log) = channel::<Operation, SpinYield>(1024);
    let mut manager = Manager::<Store, Operation, SpinYield>::new(REPLICAS, 64, EVERY);
    let world = Arc::new(World {
        shares: Shares::new(REPLICAS),
        replies: Mutex::default(),
        kill: Default::default(),
        corrupt: Default::default(),
    });
    // What the log says, for the verification afterwards.
    let mut witness = log.subscribe()?;
    let witness = thread::spawn(move || {
        let mut all = Vec::new();
        while let Some(batch) = witness.next_batch() {
            all.extend(batch.iter().map(|(_, operation)| *operation));
        }
        all
    });
    let spawn = |handle: ReplicaHandle<_, _, _>, store, log: Log| {
        let world = world.clone();
        thread::spawn(move || run(handle, store, log, &world))
    };
    let mut threads = Vec::new();
    for n in 0..REPLICAS {
        let handle = manager.replica(n).expect("a free slot");
        threads.push(Some(spawn(handle, Store::default(), log.subscribe()?)));
    }
    let published = Arc::new(AtomicU64::new(0));
    let gate = Arc::new(AtomicU64::new(0));
    let sources: Vec<_> = (0..clients)
        .map(|client| {
            let mut publisher = publisher.clone();
            let (published, gate) = (published.clone(), gate.clone());
            thread::spawn(move || {
                let mut random = mix(seed ^ mix(client + 1));
                for n in 0..operations / clients.max(1) {
                    // The second half comes when the faults of the first are seen to.
                    while n * 4 >= operations / clients.max(1) * (gate.load(Ordering::Relaxed) + 1)
                    {
                        thread::yield_now();
                    }
                    random = mix(random.wrapping_add(n));
                    let (key, value) = (random % KEYS, random >> 20);
                    let operation = match random >> 60 {
                        0..8 => Operation::Put { key, value },
                        8..14 => Operation::Add { key, amount: value },
                        _ => Operation::Delete { key },
                    };
                    publisher.publish(operation).expect("the channel is open");
                    published.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();

    // Faults, each at its time; the clients go on meanwhile, a quarter at a time.
    let deadline = Instant::now() + Duration::from_secs(60);
    let patience = |what: &str| -> Result<(), String> {
        thread::sleep(Duration::from_micros(100));
        let late = Instant::now() > deadline;
        if late {
            Err(format!("no end of waiting for: {what}"))
        } else {
            Ok(())
        }
    };
    while published.load(Ordering::Relaxed) < operations / 8 {
        patience("the first operations")?;
    }
    world.corrupt[1].store(true, Ordering::Relaxed);
    gate.store(1, Ordering::Relaxed);
    let verdict = loop {
        if let Some(verdict) = manager.check() {
            break verdict;
        }
        patience("the verdict on replica 1")?;
    };
    println!("corrupted: {verdict}");
    if verdict.minority.as_deref() != Some(&[1]) {
        return Err("the verdict names somebody else".into());
    }
    while manager.repairs() < 1 {
        manager.check();
        patience("the repair")?;
    }
    println!("repaired by a snapshot of another replica");
    gate.store(2, Ordering::Relaxed);
    world.kill[2].store(true, Ordering::Relaxed);
    let died = threads[2].take().expect("it runs").join();
    if died.is_ok() {
        return Err("replica 2 should have died".into());
    }
    println!("replica 2 died of a panic; {:?} go on", manager.active());
    let mut joiner = manager.join().ok_or("no replica slot is free")?;
    let Joined {
        handle,
        state,
        subscription,
    } = loop {
        if let Some(joined) = joiner.poll() {
            break joined;
        }
        manager.check();
        patience("the snapshot for a fresh replica")?;
    };
    println!(
        "a fresh replica {} joined at position {}",
        handle.replica(),
        subscription.position()
    );
    let joined_at = subscription.position();
    threads[2] = Some(spawn(handle, state, subscription));
    gate.store(4, Ordering::Relaxed);

    for source in sources {
        source.join().map_err(|_| "a client panicked")?;
    }
    let mut publisher = publisher;
    publisher.publish(Operation::End).map_err(|_| "closed")?;
    drop(publisher);
    let stores: Vec<Store> = threads
        .into_iter()
        .flatten()
        .map(|thread| thread.join().map_err(|_| "a replica panicked"))
        .collect::<Result<_, _>>()?;
    if let Some(verdict) = manager.check() {
        return Err(verdict.into());
    }

    // The oracle: one plain store, fed with what the witness saw.
    let said = witness.join().map_err(|_| "the witness panicked")?;
    let mut plain = Store::default();
    let replies: Vec<u64> = said
        .iter()
        .map(|operation| plain.apply(operation))
        .collect();
    for (n, store) in stores.iter().enumerate() {
        if (&store.map, store.replies) != (&plain.map, plain.replies) {
            return Err(format!("replica {n} holds something else than the log says").into());
        }
    }
    let sent = world.replies.lock().map_err(|_| "a replica panicked")?;
    // While replica 1 was corrupt its replies may be wrong, and those of a primary that was not
    // there are missing; a real store has its clients ask again. All others must be there, and
    // right.
    let (mut wrong, mut missing) = (0, 0);
    for (seq, reply) in (0..).zip(&replies) {
        let primary = primary_of(seq);
        match sent.get(&seq) {
            Some(sent) if sent == reply => {}
            Some(_) if primary == 1 && seq < joined_at => wrong += 1,
            None if primary != 0 && seq < joined_at => missing += 1,
            other => return Err(format!("reply {seq} of replica {primary}: {other:?}").into()),
        }
    }
    println!(
        "{} operations of {clients} clients, {} keys at the end; three replicas equal the log",
        said.len(),
        plain.map.len()
    );
    println!(
        "replies: {} sent, shares {:.2?}; {wrong} wrong while replica 1 was corrupt, {missing} missing of primaries that were away",
        sent.len(),
        world.shares.parts()
    );
    Ok(())
}
