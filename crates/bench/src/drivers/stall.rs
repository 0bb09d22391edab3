//! A driver that stalls for a while, and the others' throughput meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use dominoes_netstack::time::Instant;

use crate::drivers::samples::{Look, Samples, Watched};
use crate::drivers::{Driver, Row};

/// The length of a stall.
pub(crate) const STALL: Duration = Duration::from_millis(100);

/// No driver stalls.
const NOW: u64 = 0;

/// One stall.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct StallSample {
    /// How long it was, in milliseconds, as the application's driver saw it.
    pub(crate) ms: f64,
    /// Payload bytes that the application moved meanwhile.
    pub(crate) bytes: u64,
    /// The longest time without any, in milliseconds.
    pub(crate) longest_wait_ms: f64,
    /// Requests that the late replica had to apply when it came back: what the log has to hold.
    pub(crate) depth_requests: u64,
    /// Segments that were sent again meanwhile.
    pub(crate) sent_again: u64,
}

/// The stalls of a row so far. The last driver stalls, between two turns; the first one,
/// whose application receives or sends the payload, measures the throughput meanwhile.
#[derive(Debug)]
pub(crate) struct StallLog {
    /// Time between two stalls, at least, in nanoseconds; a part of it varies.
    every_ns: u64,
    seed: u64,
    /// When the stall began that lasts, by the row's clock, or [`NOW`].
    since: AtomicU64,
    /// Requests that the late driver had to apply when it came back.
    depth: AtomicU64,
    samples: Arc<Samples<StallSample>>,
}

impl StallLog {
    /// `wanted` stalls of the last driver of `row`.
    pub(crate) fn of(row: &mut Row, wanted: usize, seed: u64) -> Arc<Samples<StallSample>> {
        let log = Arc::new(StallLog {
            every_ns: 2 * STALL.as_nanos() as u64,
            seed,
            since: AtomicU64::new(NOW),
            depth: AtomicU64::new(0),
            samples: Arc::new(Samples::new(wanted)),
        });
        let last = row.drivers.len() - 1;
        let drivers = core::mem::take(&mut row.drivers);
        row.drivers = drivers
            .into_iter()
            .enumerate()
            .map(|(id, driver)| -> Box<dyn Driver> {
                if id == 0 {
                    Box::new(Watched {
                        driver,
                        look: Watching {
                            log: Arc::clone(&log),
                            stall: None,
                            last: (0, 0),
                        },
                    })
                } else if id == last {
                    Box::new(Stalling {
                        due: row.clock_ns + log.pause(0),
                        count: 0,
                        driver,
                        log: Arc::clone(&log),
                    })
                } else {
                    driver
                }
            })
            .collect();
        Arc::clone(&log.samples)
    }

    /// From one stall to the next, in nanoseconds: between one and two times `every_ns`.
    fn pause(&self, count: u64) -> u64 {
        let mixed = (self.seed ^ count).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.every_ns + (mixed >> 32) * self.every_ns / (1 << 32)
    }
}

/// Stalls from time to time.
struct Stalling {
    driver: Box<dyn Driver>,
    log: Arc<StallLog>,
    due: u64,
    count: u64,
}

/// Measures what the application gets while the other driver stalls.
struct Watching {
    log: Arc<StallLog>,
    /// The stall that is looked at.
    stall: Option<Looked>,
    /// Bytes and time of the last news.
    last: (u64, u64),
}

struct Looked {
    since: u64,
    bytes: u64,
    sent_again: u64,
    longest_wait_ns: u64,
}

impl Look for Watching {
    fn look(&mut self, driver: &dyn Driver, now: u64) {
        let bytes = driver.bytes();
        // ORDERING: Acquire, pairs with the Release in `Stalling::turn`: the depth is that of the
        // stall that ended.
        let since = self.log.since.load(Ordering::Acquire);
        if let Some(stall) = &mut self.stall {
            stall.longest_wait_ns = stall.longest_wait_ns.max(now - self.last.1);
            if since != stall.since {
                let sample = StallSample {
                    ms: (now - stall.since) as f64 / 1e6,
                    bytes: bytes - stall.bytes,
                    longest_wait_ms: stall.longest_wait_ns as f64 / 1e6,
                    depth_requests: self.log.depth.load(Ordering::Relaxed),
                    sent_again: driver.sent_again() - stall.sent_again,
                };
                self.log.samples.push(sample);
                self.stall = None;
            }
        } else if since != NOW {
            self.stall = Some(Looked {
                since,
                bytes,
                sent_again: driver.sent_again(),
                longest_wait_ns: 0,
            });
            self.last = (bytes, now);
        }
        if bytes != self.last.0 {
            self.last = (bytes, now);
        }
    }
}

impl Driver for Stalling {
    fn turn(&mut self, now: Instant) -> usize {
        if now.as_nanos() >= self.due {
            self.count += 1;
            self.due = now.as_nanos() + STALL.as_nanos() as u64 + self.log.pause(self.count);
            // ORDERING: Relaxed, nothing else is published by it.
            self.log.since.store(now.as_nanos(), Ordering::Relaxed);
            thread::sleep(STALL);
            let depth = self.driver.lag();
            self.log.depth.store(depth, Ordering::Relaxed);
            // ORDERING: Release, pairs with the Acquire in `Watching::look`.
            self.log.since.store(NOW, Ordering::Release);
        }
        self.driver.turn(now)
    }

    fn bytes(&self) -> u64 {
        self.driver.bytes()
    }

    fn check(&self) -> Result<(), String> {
        self.driver.check()
    }
}
