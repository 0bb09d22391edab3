//! For x86-64 with AVX2 or AVX-512: three instructions for a vector, five with a copy.
//!
//! `vpmaddwd` adds pairs of signed 16-bit words into 32 bits. Words become signed by subtracting 2^15, which is flipping
//! their highest bit; what was taken away is added back at the end.

use core::arch::x86_64::{__m256i, __m512i};

use pulp::NullaryFnOnce;
use pulp::x86::{V3, V4};

/// Vectors of a turn of the loop, each with an accumulator of its own, since an addition takes a cycle.
const UNROLL: usize = 4;
/// Octets after which the accumulators are emptied: 2^15 words, each at most 2^15 in magnitude, add up to at most 2^30.
const BLOCK: usize = 1 << 16;

/// What a processor can do with `N` octets at once.
pub(super) trait Vectors<const N: usize>: Copy {
    /// Sums of signed 32-bit numbers, side by side.
    type Sums: Copy;

    fn zero(self) -> Self::Sums;
    fn add(self, a: Self::Sums, b: Self::Sums) -> Self::Sums;
    /// Adds `octets`, pairs of words less 2^15 each.
    fn add_words(self, sums: Self::Sums, octets: &[u8; N]) -> Self::Sums;
    /// All of them in one, which fits.
    fn total(self, sums: Self::Sums) -> i32;
    /// Sums less than `N` octets.
    fn sum_last(self, octets: &[u8]) -> u64;
    /// Sums and copies them.
    fn copy_last(self, from: &[u8], to: &mut [u8]) -> u64;
}

impl Vectors<32> for V3 {
    type Sums = __m256i;

    #[inline(always)]
    fn zero(self) -> __m256i {
        self.avx._mm256_setzero_si256()
    }

    #[inline(always)]
    fn add(self, a: __m256i, b: __m256i) -> __m256i {
        self.avx2._mm256_add_epi32(a, b)
    }

    #[inline(always)]
    fn add_words(self, sums: __m256i, octets: &[u8; 32]) -> __m256i {
        let V3 { avx, avx2, .. } = self;
        let flip = avx._mm256_set1_epi16(i16::MIN);
        let words = avx2._mm256_xor_si256(pulp::cast(*octets), flip);
        let pairs = avx2._mm256_madd_epi16(words, avx._mm256_set1_epi16(1));
        avx2._mm256_add_epi32(sums, pairs)
    }

    #[inline(always)]
    fn total(self, sums: __m256i) -> i32 {
        let V3 {
            avx, avx2, sse2, ..
        } = self;
        let sum = sse2._mm_add_epi32(
            avx._mm256_castsi256_si128(sums),
            avx2._mm256_extracti128_si256::<1>(sums),
        );
        let sum = sse2._mm_add_epi32(sum, sse2._mm_shuffle_epi32::<0b01_00_11_10>(sum));
        let sum = sse2._mm_add_epi32(sum, sse2._mm_shuffle_epi32::<0b10_11_00_01>(sum));
        sse2._mm_cvtsi128_si32(sum)
    }

    #[inline(always)]
    fn sum_last(self, octets: &[u8]) -> u64 {
        super::sum_short(octets)
    }

    #[inline(always)]
    fn copy_last(self, from: &[u8], to: &mut [u8]) -> u64 {
        super::copy_short(from, to)
    }
}

impl Vectors<64> for V4 {
    type Sums = __m512i;

    #[inline(always)]
    fn zero(self) -> __m512i {
        self.avx512f._mm512_setzero_si512()
    }

    #[inline(always)]
    fn add(self, a: __m512i, b: __m512i) -> __m512i {
        self.avx512f._mm512_add_epi32(a, b)
    }

    #[inline(always)]
    fn add_words(self, sums: __m512i, octets: &[u8; 64]) -> __m512i {
        let V4 {
            avx512f, avx512bw, ..
        } = self;
        let flip = avx512f._mm512_set1_epi16(i16::MIN);
        let words = avx512f._mm512_xor_si512(pulp::cast(*octets), flip);
        let pairs = avx512bw._mm512_madd_epi16(words, avx512f._mm512_set1_epi16(1));
        avx512f._mm512_add_epi32(sums, pairs)
    }

    #[inline(always)]
    fn total(self, sums: __m512i) -> i32 {
        let low = self.avx512f._mm512_castsi512_si256(sums);
        let high = self.avx512f._mm512_extracti64x4_epi64::<1>(sums);
        let half: V3 = *self;
        half.total(half.add(low, high))
    }

    /// Half a vector is worth another one.
    #[inline(always)]
    fn sum_last(self, octets: &[u8]) -> u64 {
        let half: V3 = *self;
        words(half, octets)
    }

    #[inline(always)]
    fn copy_last(self, from: &[u8], to: &mut [u8]) -> u64 {
        let half: V3 = *self;
        copy(half, from, to)
    }
}

/// The sum of `bytes`.
pub(super) struct Words<'a, C> {
    pub(super) cpu: C,
    pub(super) bytes: &'a [u8],
}

/// The sum of `from`, which is copied.
pub(super) struct Copied<'a, C> {
    pub(super) cpu: C,
    pub(super) from: &'a [u8],
    /// As long as `from`.
    pub(super) to: &'a mut [u8],
}

impl NullaryFnOnce for Words<'_, V3> {
    type Output = u64;

    #[inline(always)]
    fn call(self) -> u64 {
        words(self.cpu, self.bytes)
    }
}

impl NullaryFnOnce for Words<'_, V4> {
    type Output = u64;

    #[inline(always)]
    fn call(self) -> u64 {
        words(self.cpu, self.bytes)
    }
}

impl NullaryFnOnce for Copied<'_, V3> {
    type Output = u64;

    #[inline(always)]
    fn call(self) -> u64 {
        copy(self.cpu, self.from, self.to)
    }
}

impl NullaryFnOnce for Copied<'_, V4> {
    type Output = u64;

    #[inline(always)]
    fn call(self) -> u64 {
        copy(self.cpu, self.from, self.to)
    }
}

#[inline(always)]
fn words<const N: usize, C: Vectors<N>>(cpu: C, bytes: &[u8]) -> u64 {
    let (vectors, tail) = bytes.as_chunks::<N>();
    // As a rule one block, and a tenth fewer instructions.
    let total = if vectors.len() <= BLOCK / N {
        sum_block(cpu, vectors)
    } else {
        let blocks = vectors.chunks(BLOCK / N);
        blocks.map(|block| sum_block(cpu, block)).sum()
    };
    total + cpu.sum_last(tail)
}

#[inline(always)]
fn copy<const N: usize, C: Vectors<N>>(cpu: C, from: &[u8], to: &mut [u8]) -> u64 {
    let (from, tail) = from.as_chunks::<N>();
    let (to, last) = to.as_chunks_mut::<N>();
    let total = if from.len() <= BLOCK / N {
        copy_block(cpu, from, to)
    } else {
        let blocks = from.chunks(BLOCK / N).zip(to.chunks_mut(BLOCK / N));
        blocks.map(|(from, to)| copy_block(cpu, from, to)).sum()
    };
    total + cpu.copy_last(tail, last)
}

/// At most [`BLOCK`] octets.
#[inline(always)]
fn sum_block<const N: usize, C: Vectors<N>>(cpu: C, vectors: &[[u8; N]]) -> u64 {
    let mut sums = [cpu.zero(); UNROLL];
    let (groups, last) = vectors.as_chunks::<UNROLL>();
    for group in groups {
        for (sum, vector) in sums.iter_mut().zip(group) {
            *sum = cpu.add_words(*sum, vector);
        }
    }
    for vector in last {
        sums[0] = cpu.add_words(sums[0], vector);
    }
    total(cpu, sums, vectors.len())
}

/// At most [`BLOCK`] octets.
#[inline(always)]
fn copy_block<const N: usize, C: Vectors<N>>(cpu: C, from: &[[u8; N]], to: &mut [[u8; N]]) -> u64 {
    let mut sums = [cpu.zero(); UNROLL];
    let (groups, last) = from.as_chunks::<UNROLL>();
    let (into, rest) = to.as_chunks_mut::<UNROLL>();
    for (group, into) in groups.iter().zip(into) {
        for (sum, (vector, place)) in sums.iter_mut().zip(group.iter().zip(into)) {
            *place = *vector;
            *sum = cpu.add_words(*sum, vector);
        }
    }
    for (vector, place) in last.iter().zip(rest) {
        *place = *vector;
        sums[0] = cpu.add_words(sums[0], vector);
    }
    total(cpu, sums, from.len())
}

/// The sum of the unsigned words that `vectors` vectors were.
#[inline(always)]
fn total<const N: usize, C: Vectors<N>>(cpu: C, sums: [C::Sums; UNROLL], vectors: usize) -> u64 {
    let [a, b, c, d] = sums;
    let signed = cpu.total(cpu.add(cpu.add(a, b), cpu.add(c, d)));
    (i64::from(signed) + ((vectors * (N / 2)) as i64 * (1 << 15))) as u64
}
