//! Whose work it was, over time: what each replica of a row was the primary of, sampled by
//! requests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_utils::CachePadded;
use dominoes_netstack::time::Instant;

use crate::drivers::Row;
use crate::record::{ShareSample, SharesRow};
use crate::spread::Spread;

/// Samples so far. Drivers post what they did; the first one takes the samples.
#[derive(Debug)]
pub(crate) struct ShareLog {
    every: u64,
    wanted: usize,
    /// Payload bytes that each driver was primary of.
    posted: Box<[CachePadded<AtomicU64>]>,
    taken: Mutex<Taken>,
    /// The first position at which the next sample is due.
    due: AtomicU64,
}

#[derive(Debug, Default)]
struct Taken {
    last: Vec<u64>,
    last_ns: u64,
    samples: Vec<ShareSample>,
}

impl ShareLog {
    /// For `wanted` samples, one every so many requests, of the drivers of `row`, which are told to
    /// post.
    pub(crate) fn of(row: &mut Row, every: u64, wanted: usize) -> Arc<ShareLog> {
        let log = Arc::new(ShareLog {
            every,
            wanted,
            posted: row.drivers.iter().map(|_| CachePadded::default()).collect(),
            taken: Mutex::default(),
            due: AtomicU64::new(0),
        });
        for (id, driver) in row.drivers.iter_mut().enumerate() {
            driver.log_shares(id, Arc::clone(&log));
        }
        log
    }

    /// Driver `id` says what it did so far, and which position it is at.
    #[inline]
    pub(crate) fn post(&self, id: usize, bytes: u64, position: u64, now: Instant) {
        // ORDERING: Relaxed all, counters that are right by themselves.
        self.posted[id].store(bytes, Ordering::Relaxed);
        if id == 0 && position >= self.due.load(Ordering::Relaxed) {
            self.due.store(position + self.every, Ordering::Relaxed);
            self.take(now.as_nanos());
        }
    }

    #[cold]
    fn take(&self, now_ns: u64) {
        let now: Vec<u64> = self
            .posted
            .iter()
            .map(|word| word.load(Ordering::Relaxed))
            .collect();
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let since: Vec<u64> = now.iter().zip(&taken.last).map(|(a, b)| a - b).collect();
        let whole: u64 = since.iter().sum();
        // The first look has nothing before it.
        if whole > 0 && taken.samples.len() < self.wanted {
            let share = since.iter().map(|part| *part as f64 / whole as f64);
            let sample = ShareSample {
                ms: (now_ns - taken.last_ns) as f64 / 1e6,
                share: share.collect(),
            };
            taken.samples.push(sample);
        }
        taken.last = now;
        taken.last_ns = now_ns;
    }

    /// How many samples there are.
    pub(crate) fn taken(&self) -> usize {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.samples.len()
    }

    /// Whether there are as many as were wanted.
    pub(crate) fn is_full(&self) -> bool {
        self.taken() >= self.wanted
    }

    /// The samples, of the row that is called so.
    pub(crate) fn result(
        &self,
        variant: &'static str,
        line_transfer_ns: Option<f64>,
        note: Option<String>,
    ) -> SharesRow {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let cores = self.posted.len();
        let of = |id: usize| Spread::of(taken.samples.iter().map(|sample| sample.share[id]));
        SharesRow {
            variant,
            cores,
            line_transfer_ns,
            share: (0..cores).filter_map(of).collect(),
            samples: taken.samples.clone(),
            note,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_what_was_done_since_the_one_before() {
        let log = ShareLog {
            every: 10,
            wanted: 2,
            posted: vec![CachePadded::default(), CachePadded::default()].into(),
            taken: Mutex::default(),
            due: AtomicU64::new(0),
        };
        let at = Instant::from_nanos;
        log.post(1, 1_000, 0, at(1));
        log.post(0, 1_000, 1, at(2));
        log.post(1, 1_300, 5, at(3));
        log.post(0, 1_100, 10, at(4));
        assert_eq!(log.taken(), 0, "not due");
        log.post(0, 1_100, 11, at(1_000_002));
        let row = log.result("x", None, None);
        assert_eq!(row.samples.len(), 1);
        assert_eq!(row.samples[0].share, [0.25, 0.75]);
        assert_eq!(row.samples[0].ms, 1.0);
        assert!(!log.is_full());
    }
}
