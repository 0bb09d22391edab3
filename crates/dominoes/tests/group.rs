//! Groups of replicas: with all steps interleaved by hand from a seed, and on threads.

#[path = "group/by_hand.rs"]
mod by_hand;
#[path = "group/repair.rs"]
mod repair;
#[path = "group/threads.rs"]
mod threads;

use dominoes::{Observe, Seq};
use std::panic::resume_unwind;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A state that depends on the order of all requests.
#[derive(Debug, Clone, Default, PartialEq)]
struct Chain {
    last: u64,
    sum: u64,
    applied: u64,
}

impl Chain {
    /// The effect is the new value of the chain.
    fn apply(&mut self, seq: Seq, request: u64) -> u64 {
        assert_eq!(self.applied, seq, "requests are applied in order");
        self.last = mix(self.last ^ request);
        self.sum = self.sum.wrapping_add(request);
        self.applied += 1;
        self.last
    }

    /// The chain after these requests, and the effect of each.
    fn of(requests: &[u64]) -> (Chain, Vec<u64>) {
        let mut chain = Chain::default();
        let effects = (0..).zip(requests).map(|(seq, n)| chain.apply(seq, *n));
        let effects = effects.collect();
        (chain, effects)
    }
}

impl Observe for Chain {
    const FIELDS: &'static [&'static str] = &["last", "sum"];
    fn fingerprints(&self, out: &mut [u64]) {
        out.copy_from_slice(&[self.last, self.sum]);
    }
}

/// The payload of a planned fault.
struct Planned;

/// Unwinds without a message.
fn die() -> ! {
    resume_unwind(Box::new(Planned));
}
