//! A hash of integers, the same on every machine. Fingerprints and keyed permutations use it.

/// A bijective mix of 64 bits, from the finalizer of MurmurHash3 by way of splitmix64.
#[inline]
pub(crate) const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
