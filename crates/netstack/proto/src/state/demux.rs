//! Maps a segment's addresses and ports to its connection, and chooses ports for flows that specify
//! none.

use core::hash::BuildHasher;
use std::collections::HashMap;

use crate::keys::{KeyUse, Keys, TableKey};
use crate::log::request::{ConnId, Flow};

/// Assigns flows to groups, if there are several. It has a separate key, because the chosen
/// ports reveal something about it.
#[derive(Clone, Copy, Debug)]
pub struct Grouping {
    key: [u64; 2],
    of: u16,
}

impl Grouping {
    /// Creates the assignment to `of` groups.
    pub fn new(keys: &Keys, of: u16) -> Self {
        Grouping {
            key: keys.derive(KeyUse::Group),
            of,
        }
    }

    /// The group of `flow`. Every frame needs it, so it is cheap and weaker than other hashes:
    /// an attacker able to predict it would only overload one group.
    #[inline]
    pub fn group(&self, flow: &Flow) -> u16 {
        let fold = |a: u64, b: u64| {
            let product = u128::from(a) * u128::from(b);
            product as u64 ^ (product >> 64) as u64
        };
        let remote = flow.remote.address;
        let word = u64::from(remote.v4_bits()) << 32 | u64::from(flow.ports());
        let mut mixed = fold(word ^ self.key[0], self.key[1] | 1);
        if !remote.is_v4() {
            let [high, low] = remote.words();
            mixed = fold(mixed ^ high, self.key[0] | 1);
            mixed = fold(mixed ^ low, self.key[1] | 1);
        }
        let mixed = fold(mixed ^ self.key[1], 0x9e37_79b9_7f4a_7c15);
        (((mixed >> 32) * u64::from(self.of)) >> 32) as u16
    }
}

/// The table of connections by flow. It is only used for lookups and never iterated for its
/// contents, so its order has no meaning.
#[derive(Clone, Debug, Default)]
pub struct Demux {
    table: HashMap<Flow, ConnId, TableKey>,
}

impl Demux {
    /// An empty table that hashes with `key`.
    pub fn new(key: TableKey) -> Self {
        Demux {
            table: HashMap::with_hasher(key),
        }
    }

    /// The connection that has `flow`.
    pub fn find(&self, flow: &Flow) -> Option<ConnId> {
        self.table.get(flow).copied()
    }

    /// Gives `flow` to `conn`.
    pub fn insert(&mut self, flow: Flow, conn: ConnId) {
        self.table.insert(flow, conn);
    }

    /// Forgets `flow`.
    pub fn remove(&mut self, flow: &Flow) {
        self.table.remove(flow);
    }

    /// A hash of all entries that does not depend on their order.
    pub fn fingerprint(&self) -> u64 {
        let key = self.table.hasher();
        let entries = self.table.iter().map(|entry| key.hash_one(entry));
        entries.fold(0, u64::wrapping_add)
    }
}

/// The first ephemeral port (RFC 6056 section 3.2 asks for a wide range).
pub const EPHEMERAL: u16 = 32_768;

/// All ephemeral ports, beginning with one that `start` selects.
pub fn ephemeral_from(start: u16) -> impl Iterator<Item = u16> {
    const COUNT: u16 = u16::MAX - EPHEMERAL + 1;
    (0..COUNT).map(move |i| EPHEMERAL + start.wrapping_add(i) % COUNT)
}
