//! The seeded generator; runs many seeds on all cores, and prints a line that repeats a failed
//! one.

use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use dominoes_netstack::testkit::{Rng, mix};

/// Runs a test for many seeds.
///
/// `NAME_SEED=0x...` in the environment repeats one seed, `NAME_CASES=10000` runs this many, and
/// `NAME_FIRST=0x...` sets the first seed; NAME is the name given to [`Cases::new`].
#[derive(Clone, Debug)]
pub struct Cases {
    name: &'static str,
    command: &'static str,
    count: u64,
}

impl Cases {
    /// `count` cases unless the environment sets another number; `command` repeats one case when
    /// the variable is set.
    pub const fn new(name: &'static str, command: &'static str, count: u64) -> Self {
        Cases {
            name,
            command,
            count,
        }
    }

    /// Runs the cases on all cores, each on one thread, and returns their results in any order.
    ///
    /// # Panics
    /// If a case returns an error or panics (with the line that repeats it), or if a variable is
    /// no number.
    pub fn run<T: Send>(&self, case: impl Fn(u64) -> Result<T, String> + Sync) -> Vec<T> {
        if let Some(seed) = self.number("SEED") {
            match case(seed) {
                Ok(value) => return vec![value],
                Err(what) => panic!("{what}"),
            }
        }
        let first = self.number("FIRST").unwrap_or(0);
        let count = self.number("CASES").unwrap_or(self.count);
        let (next, over) = (AtomicU64::new(0), AtomicBool::new(false));
        let (values, failure) = (Mutex::new(Vec::new()), Mutex::new(None));
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        std::thread::scope(|scope| {
            for _ in 0..cores {
                scope.spawn(|| {
                    let mut mine = Vec::new();
                    // ORDERING: Relaxed both; the scope's end makes all results visible.
                    while !over.load(Ordering::Relaxed) {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= count {
                            break;
                        }
                        let seed = mix(first.wrapping_add(number));
                        let outcome = catch_unwind(AssertUnwindSafe(|| case(seed)));
                        match outcome.unwrap_or_else(|_| Err("it panicked, see above".to_owned())) {
                            Ok(value) => mine.push(value),
                            Err(what) => {
                                over.store(true, Ordering::Relaxed);
                                if let Ok(mut failure) = failure.lock() {
                                    failure.get_or_insert((seed, what));
                                }
                            }
                        }
                    }
                    if let Ok(mut values) = values.lock() {
                        values.append(&mut mine);
                    }
                });
            }
        });
        if let Ok(Some((seed, what))) = failure.into_inner() {
            panic!("{what}\n\n{}_SEED={seed:#x} {}", self.name, self.command);
        }
        values.into_inner().unwrap_or_default()
    }

    fn number(&self, what: &str) -> Option<u64> {
        number(&format!("{}_{what}", self.name))
    }
}

/// A number from the environment, decimal or hexadecimal.
///
/// # Panics
/// If the variable is set to anything else.
pub fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    match parsed {
        Ok(number) => Some(number),
        Err(error) => panic!("{name}={text}: {error}"),
    }
}
