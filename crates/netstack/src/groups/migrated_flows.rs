//! Which connections live in another group than the one that the hash of their flow names.

use core::sync::atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering};

use crate::log::request::Flow;

/// Flows whose connections moved away from the group that the hash names: a small table that any
/// thread may ask at any time, and that the pumps of the groups change, one at a time for each
/// flow.
///
/// Who asks while it changes may get the old answer, or no better one than the hash. The group that
/// hears of such a flow knows whose it is.
pub(crate) struct MigratedFlows {
    /// So that nobody looks while it is empty.
    count: AtomicUsize,
    buckets: Box<[[Exception; BUCKET]]>,
}

#[derive(Default)]
struct Exception {
    /// Some of the flow; 0 if there is none, [`CLAIMED`] while it is being written.
    flow: AtomicU64,
    /// The rest of it.
    rest: [AtomicU64; REST],
    group: AtomicU16,
}

impl Exception {
    /// Whether it is of this flow, as far as `flow` does not say that.
    fn has(&self, rest: [u64; REST]) -> bool {
        // ORDERING: Relaxed: what was read of `flow` before orders these.
        self.rest
            .each_ref()
            .map(|word| word.load(Ordering::Relaxed))
            == rest
    }
}

/// Words of the rest of a flow.
const REST: usize = 4;
const BUCKET: usize = 8;
const BUCKETS: usize = 256;
const NO_FLOW: u64 = 0;
const CLAIMED: u64 = u64::MAX;

impl Default for MigratedFlows {
    fn default() -> Self {
        MigratedFlows {
            count: AtomicUsize::new(0),
            buckets: (0..BUCKETS).map(|_| Default::default()).collect(),
        }
    }
}

impl MigratedFlows {
    /// The ports of a flow with the lower bits of the peer's address; and its upper bits, and our
    /// address. Its peer may have the same port at several addresses of ours.
    fn words(flow: &Flow) -> (u64, [u64; REST]) {
        let remote = flow.remote.address;
        let word = u64::from(remote.v4_bits()) << 32 | u64::from(flow.ports());
        let ([high, low], own) = (remote.words(), flow.local.address.words());
        (word, [high, low >> 32, own[0], own[1]])
    }

    fn bucket(&self, word: u64) -> &[Exception; BUCKET] {
        let hash = word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.buckets[hash as usize % BUCKETS]
    }

    /// Where the connection of this flow lives, if that is not where its hash says.
    #[inline]
    pub(crate) fn find(&self, flow: &Flow) -> Option<u16> {
        // ORDERING: Relaxed: what is not seen yet is as if it were asked a little earlier.
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.find_words(Self::words(flow))
    }

    #[cold]
    fn find_words(&self, (word, rest): (u64, [u64; REST])) -> Option<u16> {
        // ORDERING: Acquire, pairs with the Release in `set`: the group is that of this flow, or of
        // one that took its place since.
        let is_it = |one: &&Exception| one.flow.load(Ordering::Acquire) == word && one.has(rest);
        let found = self.bucket(word).iter().find(is_it)?;
        Some(found.group.load(Ordering::Relaxed))
    }

    /// From now on the connection of `flow` lives in `group`. Says whether there is room to
    /// remember that.
    pub(crate) fn set(&self, flow: &Flow, group: u16) -> bool {
        let (word, rest) = Self::words(flow);
        let bucket = self.bucket(word);
        let is = |one: &&Exception| one.flow.load(Ordering::Relaxed) == word && one.has(rest);
        if let Some(known) = bucket.iter().find(is) {
            known.group.store(group, Ordering::Relaxed);
            return true;
        }
        let claim = |one: &&Exception| {
            let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
            // ORDERING: Acquire: nobody else writes it any more.
            let claimed = one
                .flow
                .compare_exchange(NO_FLOW, CLAIMED, success, failure);
            claimed.is_ok()
        };
        let Some(free) = bucket.iter().find(claim) else {
            return false;
        };
        free.group.store(group, Ordering::Relaxed);
        for (place, word) in free.rest.iter().zip(rest) {
            place.store(word, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        // ORDERING: Release, pairs with the Acquire in `find_words`.
        free.flow.store(word, Ordering::Release);
        true
    }

    /// From now on the hash alone says where a connection of `flow` lives.
    pub(crate) fn remove(&self, flow: &Flow) {
        let (word, rest) = Self::words(flow);
        let is = |one: &&Exception| one.flow.load(Ordering::Relaxed) == word && one.has(rest);
        if let Some(known) = self.bucket(word).iter().find(is) {
            // ORDERING: Release, pairs with the Acquire in `set`.
            known.flow.store(NO_FLOW, Ordering::Release);
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::request::Endpoint;

    fn flow(port: u16) -> Flow {
        Flow {
            local: Endpoint::new([10, 0, 0, 1].into(), 80),
            remote: Endpoint::new([10, 0, 0, 2].into(), port),
        }
    }

    #[test]
    fn flows_that_moved_are_found_until_they_are_forgotten() {
        let moved = MigratedFlows::default();
        assert_eq!(moved.find(&flow(1)), None);
        assert!((1..=100).all(|port| moved.set(&flow(port), port)));
        assert!(moved.set(&flow(7), 3));
        moved.remove(&flow(8));
        moved.remove(&flow(8));
        for port in 1..=101 {
            let group = match port {
                7 => Some(3),
                8 | 101 => None,
                port => Some(port),
            };
            assert_eq!(moved.find(&flow(port)), group);
        }
    }

    #[test]
    fn flows_that_differ_in_our_address_alone_are_told_apart() {
        let moved = MigratedFlows::default();
        let mut other = flow(7);
        other.local.address = [10, 0, 1, 1].into();
        assert!(moved.set(&flow(7), 3));
        assert_eq!(moved.find(&other), None);
        assert!(moved.set(&other, 4));
        moved.remove(&flow(7));
        assert_eq!((moved.find(&flow(7)), moved.find(&other)), (None, Some(4)));
    }

    #[test]
    fn a_table_that_is_full_says_so_and_has_room_again() {
        let moved = MigratedFlows::default();
        let full = (1..=u16::MAX).find(|port| !moved.set(&flow(*port), 1));
        let full = full.expect("it is bounded");
        assert!(usize::from(full) > BUCKETS, "{full}");
        (1..full).for_each(|port| moved.remove(&flow(port)));
        assert!(moved.set(&flow(full), 1));
    }
}
