//! A replicated key-value store without a network.
//!
//! `cargo run --release --example kv_store [-- --clients N --operations N --seed N]`
//!
//! Several clients put, add and delete keys. Their operations form one log, which three replicas
//! (copies of the store) apply, each on a separate thread; for each operation one of them, its
//! primary, replies. Some keys expire: the primary starts a timer, and the expiry goes through
//! the log, so all replicas apply it at the same position. During the run the example flips a bit
//! of one replica, which the group detects and repairs, and lets one thread panic, which then
//! joins again. At the end it compares each replica's store with a plain map to which it applied
//! the log once more, and each reply with the map's reply. It ends within a second and prints the
//! result, on standard error also the message of the panic; if a check fails, it exits with an
//! error. The package is `dominoes-examples`; the command works from the workspace root.

#[path = "common/program.rs"]
mod program;

use dominoes::{
    Clock, Context, Group, Observe, Replica, Seq, SystemClock, TimerControl, TimerPublisher,
    group::OnDivergence,
};
use std::{
    collections::HashMap,
    process::ExitCode,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use program::{Arguments, Outcome};

const KEYS: u64 = 500;

#[derive(Debug, Clone, Copy)]
enum Operation {
    /// Expires after `ttl` ms; 0: never.
    Put {
        key: u64,
        value: u64,
        ttl: u64,
    },
    Add {
        key: u64,
        amount: u64,
    },
    Delete {
        key: u64,
    },
    /// The key expires, unless it was put again since this position.
    Expire {
        key: u64,
        put: Seq,
    },
}

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The replicated state.
#[derive(Debug, Clone, Default, PartialEq)]
struct Store {
    /// Values, and the positions at which they were put.
    map: HashMap<u64, (u64, Seq)>,
    /// A digest of all replies.
    replies: u64,
}

/// The effect of an operation.
#[derive(Debug, Clone, Copy)]
struct Effect {
    /// The reply to the client: the previous value.
    reply: Option<u64>,
    /// A key, and the ms after which it expires.
    timer: Option<(u64, u64)>,
}

impl Store {
    fn apply(&mut self, seq: Seq, operation: &Operation) -> Effect {
        let (mut before, mut timer) = (None, None);
        match *operation {
            Operation::Put { key, value, ttl } => {
                before = self.map.insert(key, (value, seq));
                timer = (ttl > 0).then_some((key, ttl));
            }
            Operation::Add { key, amount } => {
                let (value, _) = self.map.entry(key).or_insert((0, seq));
                before = Some((*value, seq));
                *value = value.wrapping_add(amount);
            }
            Operation::Delete { key } => before = self.map.remove(&key),
            Operation::Expire { key, put } => {
                if self.map.get(&key).is_some_and(|(_, since)| *since == put) {
                    before = self.map.remove(&key);
                }
            }
        }
        let reply = before.map(|(value, _)| value);
        self.replies = mix(self.replies ^ mix(seq) ^ reply.unwrap_or(0));
        Effect { reply, timer }
    }
}

impl Observe for Store {
    const FIELDS: &'static [&'static str] = &["map", "replies"];
    fn fingerprints(&self, out: &mut [u64]) {
        // A sum over entries does not depend on the order of a hash map.
        let print = |(key, (value, put)): (&u64, &(u64, Seq))| mix(mix(mix(*key) ^ value) ^ put);
        out[0] = self.map.iter().map(print).fold(0, u64::wrapping_add);
        out[1] = self.replies;
    }
}

const USAGE: &str = "\
A replicated key-value store, without any network; one replica dies, one is corrupted.

  --clients N         threads that publish [3]
  --operations N      operations of all together [60000]
  --seed N            chooses them [1]
";

struct Options {
    clients: u64,
    operations: u64,
    seed: u64,
}

impl Options {
    fn take(&mut self, option: &str, arguments: &mut Arguments) -> Outcome<bool> {
        match option {
            "clients" => self.clients = arguments.number(1..=64)?,
            "operations" => self.operations = arguments.number(10_000..=100_000_000)?,
            "seed" => self.seed = arguments.parse()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn main() -> ExitCode {
    let options = Options {
        clients: 3,
        operations: 60_000,
        seed: 1,
    };
    program::main("kv_store", &[USAGE], options, Options::take, run)
}

fn run(options: &Options) -> Outcome<()> {
    let &Options {
        clients,
        operations,
        seed,
    } = options;

    // The map stands for a network: only the primary of an operation sends its reply.
    let replies = Arc::new(Mutex::new(HashMap::new()));
    let (corrupted, killed) = (AtomicBool::new(false), AtomicBool::new(false));
    let timers = Arc::new(OnceLock::new());
    let (sent, timer) = (replies.clone(), timers.clone());
    let group = Group::builder(Store::default(), 3)
        .observe(64)
        .on_divergence(|divergence| {
            println!("corrupted: {divergence}");
            OnDivergence::Repair
        })
        .spawn(
            move |store: &mut Store, seq, operation: &Operation| {
                // After a quarter of the operations, a bit of one replica flips.
                if seq >= operations / 4
                    && !corrupted.load(Ordering::Relaxed)
                    && let Some((value, _)) = store.map.values_mut().next()
                    && !corrupted.swap(true, Ordering::Relaxed)
                {
                    *value ^= 1 << 17;
                }
                store.apply(seq, operation)
            },
            move |effect, seq| {
                if seq >= operations / 2 && !killed.swap(true, Ordering::Relaxed) {
                    panic!("the replica that replies to operation {seq} is told to die");
                }
                let twice = sent.lock().expect("no panic").insert(seq, effect.reply);
                assert!(twice.is_none(), "operation {seq} has two replies");
                let timers: Option<&(SystemClock, TimerControl<u64>)> = timer.get();
                if let (Some((key, ttl)), Some((clock, control))) = (effect.timer, timers) {
                    control.start(seq, clock.now() + ttl, key);
                }
            },
        )?;
    let publisher = group.publisher();
    let clock = SystemClock::new(Duration::from_millis(1));
    let expire = |_, put, key| Operation::Expire { key, put };
    let (expiries, control) = TimerPublisher::new(clock, publisher.clone(), expire);
    timers.set((clock, control)).map_err(|_| "set once")?;
    let expiries = Context::spawn("expiries", None, vec![Box::new(expiries)])?;
    // Keeps the log for the checks at the end.
    let keep = |all: &mut Vec<_>, _, operation: &Operation| all.push(*operation);
    let witness = Replica::new("witness", Vec::new(), publisher.log().subscribe()?, keep);
    let witness = witness.spawn(None)?;

    thread::scope(|scope| {
        for client in 0..clients {
            let mut publisher = publisher.clone();
            scope.spawn(move || {
                let mut random = mix(seed ^ mix(client + 1));
                for n in 0..operations / clients {
                    random = mix(random.wrapping_add(n));
                    let (key, value) = (random % KEYS, random >> 20);
                    let operation = match random >> 60 {
                        0..7 => Operation::Put { key, value, ttl: 0 },
                        7 => Operation::Put {
                            key,
                            value,
                            ttl: 1 + value % 8,
                        },
                        8..14 => Operation::Add { key, amount: value },
                        _ => Operation::Delete { key },
                    };
                    publisher.publish(operation).expect("the log is open");
                }
            });
        }
    });
    let deadline = Instant::now() + Duration::from_secs(60);
    let membership = loop {
        let stats = group.stats();
        let membership = stats.membership;
        if (membership.repaired, membership.joined, membership.active) == (1, 1, 3) {
            break membership;
        }
        if Instant::now() > deadline {
            return Err(format!("a replica is not back: {stats:?}").into());
        }
        thread::sleep(Duration::from_millis(1));
    };
    let stores = group.shut_down()?;
    expiries.join().map_err(|_| "the timers panicked")?;

    // The oracle: a plain store, fed with the log that the witness kept.
    let log = witness.join().map_err(|_| "the witness panicked")?;
    let mut plain = Store::default();
    let effects = (0..)
        .zip(&log)
        .map(|(seq, operation)| plain.apply(seq, operation));
    let expected: Vec<_> = effects.map(|effect| effect.reply).collect();
    if stores.len() != 3 || stores.iter().any(|store| *store != plain) {
        return Err("a replica holds something else than the log says".into());
    }
    let replies = replies.lock().map_err(|_| "a replica panicked")?;
    // Replies may be wrong while a replica was corrupt; all others must be right.
    let wrong = (0..)
        .zip(&expected)
        .filter(|(seq, reply)| replies.get(seq) != Some(reply));
    let wrong: Vec<Seq> = wrong.map(|(seq, _)| seq).collect();
    if replies.len() != log.len() || wrong.first().is_some_and(|seq| *seq < operations / 4) {
        return Err(format!("{} replies, wrong {wrong:?}", replies.len()).into());
    }
    let expired = log
        .iter()
        .filter(|one| matches!(one, Operation::Expire { .. }));
    println!(
        "{} operations of {clients} clients, {} timers expired, {} keys at the end; three replicas \
         equal the log",
        log.len(),
        expired.count(),
        plain.map.len()
    );
    println!(
        "replicas: {} failed and joined again, {} repaired; every operation has one reply, {} of them \
         wrong, of the corrupt replica",
        membership.failed,
        membership.repaired,
        wrong.len()
    );
    Ok(())
}
