//! Shares of the work over time: the bytes for which each replica of a row was primary, sampled by
//! requests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_utils::CachePadded;
use dominoes_netstack::time::Instant;

use crate::drivers::Row;
use crate::drivers::samples::Samples;

/// One sample of the shares.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct ShareSample {
    /// Milliseconds since the previous sample.
    pub(crate) ms: f64,
    /// Each replica's share of the payload bytes since then.
    pub(crate) share: Vec<f64>,
}

/// Collects the counts that drivers post; the first driver takes the samples.
#[derive(Debug)]
pub(crate) struct ShareLog {
    every: u64,
    /// Payload bytes for which each driver was primary.
    posted: Box<[CachePadded<AtomicU64>]>,
    last: Mutex<Last>,
    /// The first position at which the next sample is due.
    due: AtomicU64,
    samples: Arc<Samples<ShareSample>>,
}

/// The last sample.
#[derive(Debug, Default)]
struct Last {
    posted: Vec<u64>,
    ns: u64,
}

impl ShareLog {
    fn new(drivers: usize, every: u64, wanted: usize) -> ShareLog {
        ShareLog {
            every,
            posted: (0..drivers).map(|_| CachePadded::default()).collect(),
            last: Mutex::default(),
            due: AtomicU64::new(0),
            samples: Arc::new(Samples::new(wanted)),
        }
    }

    /// Takes `wanted` samples of the drivers of `row`, one every `every` requests, and lets the
    /// drivers post.
    pub(crate) fn of(row: &mut Row, every: u64, wanted: usize) -> Arc<Samples<ShareSample>> {
        let log = Arc::new(ShareLog::new(row.drivers.len(), every, wanted));
        for (id, driver) in row.drivers.iter_mut().enumerate() {
            driver.log_shares(id, Arc::clone(&log));
        }
        Arc::clone(&log.samples)
    }

    /// Posts the bytes of driver `id` so far, and its position.
    #[inline]
    pub(crate) fn post(&self, id: usize, bytes: u64, position: u64, now: Instant) {
        // ORDERING: Relaxed everywhere: each counter is correct by itself.
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
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let since: Vec<u64> = now.iter().zip(&last.posted).map(|(a, b)| a - b).collect();
        let whole: u64 = since.iter().sum();
        // The first sample has no previous one.
        if whole > 0 {
            let share = since.iter().map(|part| *part as f64 / whole as f64);
            self.samples.push(ShareSample {
                ms: (now_ns - last.ns) as f64 / 1e6,
                share: share.collect(),
            });
        }
        *last = Last {
            posted: now,
            ns: now_ns,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_what_was_done_since_the_one_before() {
        let log = ShareLog::new(2, 10, 2);
        let at = Instant::from_nanos;
        log.post(1, 1_000, 0, at(1));
        log.post(0, 1_000, 1, at(2));
        log.post(1, 1_300, 5, at(3));
        log.post(0, 1_100, 10, at(4));
        assert_eq!(log.samples.taken(), 0, "not due");
        log.post(0, 1_100, 11, at(1_000_002));
        let samples = log.samples.all();
        assert_eq!(samples.len(), 1);
        assert_eq!(
            (&samples[0].share[..], samples[0].ms),
            (&[0.25, 0.75][..], 1.0)
        );
        assert!(!log.samples.is_full());
    }
}
