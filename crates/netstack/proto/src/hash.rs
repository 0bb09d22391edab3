//! An integer hash, equal on every machine, for fingerprints, keyed permutations and tests.

/// A bijective mix of 64 bits, from the finalizer of MurmurHash3 by way of splitmix64.
#[inline]
pub const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A seeded generator: SplitMix64 (G. L. Steele, D. Lea, C. H. Flood, *Fast splittable pseudorandom
/// number generators*, 2014). Every choice of a test comes from one, so a seed repeats the test.
#[cfg(any(test, feature = "testkit"))]
#[derive(Clone, Debug)]
pub struct Rng(u64);

#[cfg(any(test, feature = "testkit"))]
impl Rng {
    /// The numbers of `seed`.
    pub const fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `end`; 0 if there is none.
    pub const fn below(&mut self, end: u64) -> u64 {
        ((self.next() as u128 * end as u128) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub const fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// An index into something of length `len`.
    pub const fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True `ppm` times in a million.
    pub const fn chance(&mut self, ppm: u32) -> bool {
        self.below(1_000_000) < ppm as u64
    }

    /// True `percent` times in a hundred.
    pub const fn percent(&mut self, percent: u32) -> bool {
        self.below(100) < percent as u64
    }

    /// True `per_mille` times in a thousand.
    pub const fn per_mille(&mut self, per_mille: u32) -> bool {
        self.below(1000) < per_mille as u64
    }

    /// A new generator whose numbers are independent of this one's.
    pub const fn fork(&mut self) -> Rng {
        Rng(mix(self.next() ^ 0x5851_f42d_4c95_7f2d))
    }
}
