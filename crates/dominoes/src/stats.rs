//! Live statistics of domains and channels.
//!
//! A domain counts with relaxed loads and stores on its own cache line; readers add up.
//! [`Snapshot`] contains the statistics of several domains and channels.

use crate::{Log, Wait};
use crossbeam_utils::CachePadded;
use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

/// The counts of one domain, written by the thread that runs it and readable by any thread.
///
/// Each method does a load and a store, so only one thread at a time may count. A domain that
/// moves between contexts follows this rule.
#[derive(Debug, Default)]
pub struct Meter(CachePadded<Counts>);

#[derive(Debug, Default)]
struct Counts {
    handled: AtomicU64,
    primary: AtomicU64,
    steals: AtomicU64,
    waits: AtomicU64,
    parks: AtomicU64,
    lag: AtomicU64,
}

#[inline]
fn count(at: &AtomicU64, n: u64) {
    at.store(
        at.load(Ordering::Relaxed).wrapping_add(n),
        Ordering::Relaxed,
    );
}

impl Meter {
    /// A meter with all counts 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts `n` entries as handled.
    #[inline]
    pub fn handled(&self, n: u64) {
        count(&self.0.handled, n);
    }

    /// Counts `n` units of work that the domain did as their primary.
    #[inline]
    pub fn primary(&self, n: u64) {
        count(&self.0.primary, n);
    }

    /// Counts `n` units of work that the domain did in place of another primary.
    #[inline]
    pub fn stole(&self, n: u64) {
        count(&self.0.steals, n);
    }

    /// Counts an entry that had to wait.
    #[inline]
    pub fn waited(&self) {
        count(&self.0.waits, 1);
    }

    /// Counts a sleep of the domain's thread.
    #[inline]
    pub fn parked(&self) {
        count(&self.0.parks, 1);
    }

    /// Sets the number of entries that are published and not yet handled.
    #[inline]
    pub fn set_lag(&self, lag: u64) {
        self.0.lag.store(lag, Ordering::Relaxed);
    }

    /// The counts, with the domain's id and name. May already be out of date.
    pub fn stats(&self, id: u64, name: impl Into<String>) -> DomainStats {
        let get = |at: &AtomicU64| at.load(Ordering::Relaxed);
        DomainStats {
            id,
            name: name.into(),
            handled: get(&self.0.handled),
            primary: get(&self.0.primary),
            steals: get(&self.0.steals),
            waits: get(&self.0.waits),
            parks: get(&self.0.parks),
            lag: get(&self.0.lag),
        }
    }
}

/// The counts of a domain.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DomainStats {
    /// The domain's id, chosen by its user.
    pub id: u64,
    /// The domain's name.
    pub name: String,
    /// Entries handled since the start.
    pub handled: u64,
    /// Units of work done as their primary.
    pub primary: u64,
    /// Units of work done in place of another primary.
    pub steals: u64,
    /// How often an entry had to wait.
    pub waits: u64,
    /// How often the domain's thread slept.
    pub parks: u64,
    /// Entries published and not yet handled at the domain's last turn.
    pub lag: u64,
}

/// The state of a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelStats {
    /// The channel's name.
    pub name: String,
    /// Most entries that can be published and not yet released by every subscription.
    pub capacity: usize,
    /// Entries that the slowest subscription has not released.
    pub len: usize,
    /// Number of publishers.
    pub publishers: usize,
    /// The number and the lag, in entries, of each subscription.
    pub lags: Vec<(usize, u64)>,
}

impl<T: Send + Sync, W: Wait> Log<T, W> {
    /// The state of this channel under a name. May already be out of date.
    pub fn stats(&self, name: impl Into<String>) -> ChannelStats {
        ChannelStats {
            name: name.into(),
            capacity: self.capacity(),
            len: self.len(),
            publishers: self.publishers(),
            lags: self.lags(),
        }
    }
}

/// Statistics of domains and channels. The parts are read one after the other, not at one moment.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The domains, grouped by context.
    pub domains: Vec<DomainStats>,
    /// The channels.
    pub channels: Vec<ChannelStats>,
}

impl Snapshot {
    /// A snapshot of these domains and channels.
    pub fn new(domains: Vec<DomainStats>, channels: Vec<ChannelStats>) -> Self {
        Snapshot { domains, channels }
    }

    /// For each domain, the fraction (0 to 1) of all units of work of which it was primary, as in
    /// the dissertation's figure 6.1. All 0 before the first unit.
    pub fn primary_parts(&self) -> Vec<f64> {
        let total: u64 = self.domains.iter().map(|domain| domain.primary).sum();
        self.domains
            .iter()
            .map(|domain| domain.primary as f64 / total.max(1) as f64)
            .collect()
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.domains.is_empty() {
            writeln!(
                f,
                "{:>4} {:<16} {:>12} {:>12} {:>6} {:>8} {:>8} {:>8} {:>8}",
                "id", "domain", "handled", "primary", "share", "steals", "waits", "parks", "lag"
            )?;
        }
        for (domain, part) in self.domains.iter().zip(self.primary_parts()) {
            writeln!(
                f,
                "{:>4} {:<16} {:>12} {:>12} {:>5.1}% {:>8} {:>8} {:>8} {:>8}",
                domain.id,
                domain.name,
                domain.handled,
                domain.primary,
                part * 100.0,
                domain.steals,
                domain.waits,
                domain.parks,
                domain.lag
            )?;
        }
        for channel in &self.channels {
            writeln!(
                f,
                "channel {}: {} of {} entries, {} publishers, lags {:?}",
                channel.name, channel.len, channel.capacity, channel.publishers, channel.lags
            )?;
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{SpinYield, channel};

    #[test]
    fn a_snapshot_says_what_was_counted() {
        let (fast, slow) = (Meter::new(), Meter::new());
        fast.handled(7);
        fast.handled(3);
        fast.primary(3);
        slow.primary(1);
        slow.stole(2);
        slow.waited();
        slow.parked();
        slow.set_lag(9);
        let (mut publisher, log) = channel::<u8, SpinYield>(4);
        let _subscription = log.subscribe().unwrap();
        publisher.publish(1).unwrap();
        let domains = vec![fast.stats(1, "fast"), slow.stats(2, "slow")];
        let snapshot = Snapshot::new(domains, vec![log.stats("main")]);
        assert_eq!(snapshot.primary_parts(), [0.75, 0.25]);
        assert_eq!(snapshot.domains[0].handled, 10);
        let slow = &snapshot.domains[1];
        assert_eq!(
            (slow.steals, slow.waits, slow.parks, slow.lag),
            (2, 1, 1, 9)
        );
        assert_eq!(
            (snapshot.channels[0].len, &snapshot.channels[0].lags[..]),
            (1, &[(0, 1)][..])
        );
        assert!(
            snapshot
                .to_string()
                .contains("channel main: 1 of 4 entries")
        );
    }
}
