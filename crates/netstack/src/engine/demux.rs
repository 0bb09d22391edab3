//! From a segment's addresses and ports to its connection.

use core::hash::{BuildHasher, Hasher};
use std::collections::HashMap;

use siphasher::sip::SipHasher13;

use crate::digest::{ConnId, Flow};

/// Keyed, so that nobody outside can aim at one bucket; the same in all replicas, so it may decide.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Keyed {
    pub(crate) key: [u64; 2],
}

/// What a keyed hash of a flow is for: no use of it may tell anything about another.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// Initial sequence numbers (RFC 6528).
    Isn,
    /// Choosing ports (RFC 6056).
    Port,
    /// One of the hashes behind SYN cookies (RFC 4987).
    Cookie(u64),
}

impl Keyed {
    /// A keyed hash of `flow`.
    pub(crate) fn hash(&self, purpose: Purpose, flow: &Flow) -> u64 {
        let mut hasher = self.build_hasher();
        hasher.write_u64(match purpose {
            Purpose::Isn => 0,
            Purpose::Port => 1,
            Purpose::Cookie(use_of_it) => 2 + use_of_it,
        });
        write_flow(&mut hasher, flow);
        hasher.finish()
    }

    /// Which of `of` groups each flow belongs to.
    pub(crate) fn grouping(&self, of: u16) -> Grouping {
        Grouping {
            key: [self.secret(2), self.secret(3)],
            of,
        }
    }

    /// A secret number of its own for each `kind`.
    pub(crate) fn secret(&self, kind: u64) -> u64 {
        let mut hasher = self.build_hasher();
        hasher.write_u64(kind);
        hasher.finish()
    }
}

/// Which group a flow belongs to, where there are several. Its key is its own, since ports tell something about it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grouping {
    key: [u64; 2],
    of: u16,
}

impl Grouping {
    /// The group's number. Every frame asks, so it is cheap, and not as strong as other hashes: who could aim would
    /// overload one group, and no more than that.
    #[inline]
    pub(crate) fn group(&self, flow: &Flow) -> u16 {
        let ports = u32::from(flow.remote.port()) << 16 | u32::from(flow.local.port());
        let word = u64::from(flow.remote.ip().to_bits()) << 32 | u64::from(ports);
        let fold = |a: u64, b: u64| {
            let product = u128::from(a) * u128::from(b);
            product as u64 ^ (product >> 64) as u64
        };
        let mixed = fold(word ^ self.key[0], self.key[1] | 1);
        let mixed = fold(mixed ^ self.key[1], 0x9e37_79b9_7f4a_7c15);
        (((mixed >> 32) * u64::from(self.of)) >> 32) as u16
    }
}

fn write_flow(hasher: &mut impl Hasher, flow: &Flow) {
    hasher.write_u32(flow.remote.ip().to_bits());
    hasher.write_u32(flow.local.ip().to_bits());
    hasher.write_u32(u32::from(flow.remote.port()) << 16 | u32::from(flow.local.port()));
}

impl BuildHasher for Keyed {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.key[0], self.key[1])
    }
}

/// The table of connections by flow. It is only ever asked, and never walked for what it says: its order means nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Demux {
    table: HashMap<Flow, ConnId, Keyed>,
}

impl Demux {
    pub(crate) fn new(keyed: Keyed) -> Self {
        Demux {
            table: HashMap::with_hasher(keyed),
        }
    }

    pub(crate) fn find(&self, flow: &Flow) -> Option<ConnId> {
        self.table.get(flow).copied()
    }

    pub(crate) fn insert(&mut self, flow: Flow, conn: ConnId) {
        self.table.insert(flow, conn);
    }

    pub(crate) fn remove(&mut self, flow: &Flow) {
        self.table.remove(flow);
    }

    /// All of it as one number, whatever the order.
    pub(crate) fn fingerprint(&self) -> u64 {
        let keyed = self.table.hasher();
        let entries = self.table.iter().map(|entry| keyed.hash_one(entry));
        entries.fold(0, u64::wrapping_add)
    }
}
