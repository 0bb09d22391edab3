//! Loops for AVX2 or AVX-512: a little over three instructions per vector, four with a copy.
//!
//! Bytes are added as 64-bit numbers, which wrap around: a carry counts as one, as 2^16 does
//! (RFC 1071 section 1), but is lost. The magnitude of the added numbers yields the number of
//! carries, and an estimate suffices for that: the mean of a group's highest words, one
//! `vpavgw` per vector, is exact to far less than half a carry.

use core::arch::x86_64::{__m256i, __m512i};

use pulp::NullaryFnOnce;
use pulp::x86::{V3, V4};

use super::{Copier, CopyLoop};

/// Vectors of half a group. The vectors of a group share one mean.
const HALF: usize = 4;
/// Vectors that one iteration of a copy without a sum copies.
const GROUP: usize = 16;
/// Bytes after which the carries are counted. Half a carry is 2^15 in the highest words, and
/// the estimate is wrong by less than four per vector: thousands of vectors are possible.
const BLOCK: usize = 1 << 16;

/// Operations of a processor on `N` bytes at once, as 64-bit numbers in parallel.
pub(super) trait Vectors<const N: usize>: Copy {
    /// The register that holds `N` bytes.
    type Vector: Copy;

    /// A vector of zeros.
    fn zero(self) -> Self::Vector;
    /// Reads `bytes`, in the byte order of the processor.
    fn load(self, bytes: &[u8; N]) -> Self::Vector;
    /// Writes `vector` to `place`.
    fn store(self, vector: Self::Vector, place: &mut [u8; N]);
    /// Adds and wraps around.
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Means of the 16-bit words, rounded up.
    fn mean(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// The highest 16 bits of each number.
    fn highest(self, vector: Self::Vector) -> Self::Vector;
    /// The highest 17 bits: twice the highest 16, or one more.
    fn twice(self, vector: Self::Vector) -> Self::Vector;
    /// The highest 14 bits: the contribution of a number to the mean of half a group.
    fn share(self, vector: Self::Vector) -> Self::Vector;
    /// The sum of all numbers that were added to `sum`; `means` holds the sums of the highest
    /// words of the means of half groups.
    fn total(self, sum: Self::Vector, means: Self::Vector) -> u64;
    /// The bits that are set in both.
    fn and(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
}

impl Vectors<32> for V3 {
    type Vector = __m256i;

    #[inline(always)]
    fn zero(self) -> __m256i {
        self.avx._mm256_setzero_si256()
    }

    #[inline(always)]
    fn load(self, bytes: &[u8; 32]) -> __m256i {
        pulp::cast(*bytes)
    }

    #[inline(always)]
    fn store(self, vector: __m256i, place: &mut [u8; 32]) {
        *place = pulp::cast(vector);
    }

    #[inline(always)]
    fn add(self, a: __m256i, b: __m256i) -> __m256i {
        self.avx2._mm256_add_epi64(a, b)
    }

    #[inline(always)]
    fn mean(self, a: __m256i, b: __m256i) -> __m256i {
        self.avx2._mm256_avg_epu16(a, b)
    }

    #[inline(always)]
    fn highest(self, vector: __m256i) -> __m256i {
        self.avx2._mm256_srli_epi64::<48>(vector)
    }

    #[inline(always)]
    fn twice(self, vector: __m256i) -> __m256i {
        self.avx2._mm256_srli_epi64::<47>(vector)
    }

    #[inline(always)]
    fn share(self, vector: __m256i) -> __m256i {
        self.avx2._mm256_srli_epi64::<50>(vector)
    }

    #[inline(always)]
    fn total(self, sum: __m256i, means: __m256i) -> u64 {
        let V3 { avx, avx2, .. } = self;
        // In units of 2^48: added minus left, which rounds to the number of carries.
        let added = avx2._mm256_slli_epi64::<2>(means);
        let lost = avx2._mm256_sub_epi64(added, self.highest(sum));
        let half = avx._mm256_set1_epi64x(1 << 15);
        let carries = avx2._mm256_srli_epi64::<16>(self.add(lost, half));
        // Adds halves, so that the total fits.
        let high = avx2._mm256_srli_epi64::<32>(sum);
        let low = avx2._mm256_srli_epi64::<32>(avx2._mm256_slli_epi64::<32>(sum));
        across(self, self.add(self.add(low, high), carries))
    }

    #[inline(always)]
    fn and(self, a: __m256i, b: __m256i) -> __m256i {
        self.avx2._mm256_and_si256(a, b)
    }
}

/// The sum of four numbers that fits in 64 bits.
#[inline(always)]
fn across(cpu: V3, numbers: __m256i) -> u64 {
    let V3 {
        avx, avx2, sse2, ..
    } = cpu;
    let both = sse2._mm_add_epi64(
        avx._mm256_castsi256_si128(numbers),
        avx2._mm256_extracti128_si256::<1>(numbers),
    );
    let sum = sse2._mm_add_epi64(both, sse2._mm_unpackhi_epi64(both, both));
    let [sum, _]: [u64; 2] = pulp::cast(sum);
    sum
}

impl Vectors<64> for V4 {
    type Vector = __m512i;

    #[inline(always)]
    fn zero(self) -> __m512i {
        self.avx512f._mm512_setzero_si512()
    }

    #[inline(always)]
    fn load(self, bytes: &[u8; 64]) -> __m512i {
        pulp::cast(*bytes)
    }

    #[inline(always)]
    fn store(self, vector: __m512i, place: &mut [u8; 64]) {
        *place = pulp::cast(vector);
    }

    #[inline(always)]
    fn add(self, a: __m512i, b: __m512i) -> __m512i {
        self.avx512f._mm512_add_epi64(a, b)
    }

    #[inline(always)]
    fn mean(self, a: __m512i, b: __m512i) -> __m512i {
        self.avx512bw._mm512_avg_epu16(a, b)
    }

    #[inline(always)]
    fn highest(self, vector: __m512i) -> __m512i {
        self.avx512f._mm512_srli_epi64::<48>(vector)
    }

    #[inline(always)]
    fn twice(self, vector: __m512i) -> __m512i {
        self.avx512f._mm512_srli_epi64::<47>(vector)
    }

    #[inline(always)]
    fn share(self, vector: __m512i) -> __m512i {
        self.avx512f._mm512_srli_epi64::<50>(vector)
    }

    #[inline(always)]
    fn total(self, sum: __m512i, means: __m512i) -> u64 {
        let wide = self.avx512f;
        let half: V3 = *self;
        let sums = wide._mm512_extracti64x4_epi64::<1>(sum);
        let more = wide._mm512_extracti64x4_epi64::<1>(means);
        half.total(
            wide._mm512_castsi512_si256(sum),
            wide._mm512_castsi512_si256(means),
        ) + half.total(sums, more)
    }

    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        self.avx512f._mm512_and_si512(a, b)
    }
}

/// The sum of `bytes`.
pub(super) struct Words<'a, C> {
    pub cpu: C,
    pub bytes: &'a [u8],
}

/// The sum of `from`, which is copied to `to`.
pub(super) struct Copied<'a, C> {
    pub cpu: C,
    pub from: &'a [u8],
    /// As long as `from`.
    pub to: &'a mut [u8],
}

/// `from`, which is copied to `to` without a sum.
pub(super) struct CopiedAlone<'a, C> {
    pub cpu: C,
    pub from: &'a [u8],
    /// As long as `from`.
    pub to: &'a mut [u8],
}

/// A loop, for the vectors of `cpu`.
pub(super) struct Looping<C, L> {
    pub cpu: C,
    pub looping: L,
}

impl<C: Copier> NullaryFnOnce for Words<'_, C> {
    type Output = u64;

    #[inline(always)]
    fn call(self) -> u64 {
        self.cpu.sum(self.bytes)
    }
}

impl<C: Copier> NullaryFnOnce for Copied<'_, C> {
    type Output = u64;

    #[inline(always)]
    fn call(self) -> u64 {
        self.cpu.copy(self.from, self.to)
    }
}

impl NullaryFnOnce for CopiedAlone<'_, V3> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        copy_alone(self.cpu, self.from, self.to);
    }
}

impl NullaryFnOnce for CopiedAlone<'_, V4> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        copy_alone(self.cpu, self.from, self.to);
    }
}

impl<C: Copier, L: CopyLoop> NullaryFnOnce for Looping<C, L> {
    type Output = L::Output;

    #[inline(always)]
    fn call(self) -> L::Output {
        self.looping.run(self.cpu)
    }
}

impl Copier for V3 {
    #[inline(always)]
    fn sum(self, bytes: &[u8]) -> u64 {
        words(self, bytes)
    }

    #[inline(always)]
    fn copy(self, from: &[u8], to: &mut [u8]) -> u64 {
        copy(self, from, to)
    }
}

impl Copier for V4 {
    #[inline(always)]
    fn sum(self, bytes: &[u8]) -> u64 {
        words(self, bytes)
    }

    #[inline(always)]
    fn copy(self, from: &[u8], to: &mut [u8]) -> u64 {
        copy(self, from, to)
    }
}

/// Sums bytes, at least [`super::WIDE`].
#[inline(always)]
fn words<const N: usize, C: Vectors<N>>(cpu: C, bytes: &[u8]) -> u64 {
    let (mut total, bytes) = split_odd(bytes);
    let (mut vectors, tail) = bytes.as_chunks::<N>();
    // Usually there is one block.
    while let Some((block, rest)) = vectors.split_at_checked(BLOCK / N) {
        let sums = sum_block(cpu, block);
        total += cpu.total(sums.sum, sums.means);
        vectors = rest;
    }
    let mut sums = sum_block(cpu, vectors);
    let end = cpu.load(last(bytes));
    sums.single(cpu, cpu.and(end, cpu.load(mask(tail.len()))));
    total + cpu.total(sums.sum, sums.means)
}

/// As [`words`], and copies them.
#[inline(always)]
fn copy<const N: usize, C: Vectors<N>>(cpu: C, from: &[u8], to: &mut [u8]) -> u64 {
    // The slice shows the compiler that both have equal length.
    let to = &mut to[..from.len()];
    let (mut total, even) = split_odd(from);
    if even.len() < from.len() {
        to[even.len()] = from[even.len()];
    }
    let (from, to) = (even, &mut to[..even.len()]);
    let (mut vectors, tail) = from.as_chunks::<N>();
    let (mut places, _) = to.as_chunks_mut::<N>();
    while let Some((block, rest)) = vectors.split_at_checked(BLOCK / N) {
        let (into, left) = places.split_at_mut(BLOCK / N);
        let sums = copy_block(cpu, block, into);
        total += cpu.total(sums.sum, sums.means);
        (vectors, places) = (rest, left);
    }
    let mut sums = copy_block(cpu, vectors, places);
    let end = cpu.load(last(from));
    cpu.store(end, to.last_chunk_mut().expect("a vector and more"));
    sums.single(cpu, cpu.and(end, cpu.load(mask(tail.len()))));
    total + cpu.total(sums.sum, sums.means)
}

/// Copies without a sum: the first and the last vector unaligned, and the vectors between them so
/// that no store crosses a cache line.
#[inline(always)]
fn copy_alone<const N: usize, C: Vectors<N>>(cpu: C, from: &[u8], to: &mut [u8]) {
    let to = &mut to[..from.len()];
    let (Some(first), Some(last)) = (from.first_chunk(), from.last_chunk()) else {
        return to.copy_from_slice(from);
    };
    let last = cpu.load(last);
    let skipped = N - to.as_ptr().addr() % N;
    if let Some(place) = to.first_chunk_mut() {
        cpu.store(cpu.load(first), place);
    }
    let (vectors, _) = from[skipped..].as_chunks::<N>();
    let (places, _) = to[skipped..].as_chunks_mut::<N>();
    let (vectors, places) = copy_groups::<GROUP, N, C>(cpu, vectors, places);
    let (vectors, places) = copy_groups::<{ GROUP / 4 }, N, C>(cpu, vectors, places);
    for (vector, place) in vectors.iter().zip(places) {
        cpu.store(cpu.load(vector), place);
    }
    if let Some(place) = to.last_chunk_mut() {
        cpu.store(last, place);
    }
}

/// Copies as many groups of `G` vectors as there are; returns the rest.
#[inline(always)]
fn copy_groups<'f, 't, const G: usize, const N: usize, C: Vectors<N>>(
    cpu: C,
    from: &'f [[u8; N]],
    to: &'t mut [[u8; N]],
) -> (&'f [[u8; N]], &'t mut [[u8; N]]) {
    let (groups, vectors) = from.as_chunks::<G>();
    let (into, places) = to.as_chunks_mut::<G>();
    for (group, into) in groups.iter().zip(into) {
        for (vector, place) in group.iter().zip(into) {
            cpu.store(cpu.load(vector), place);
        }
    }
    (vectors, places)
}

/// The value of the last byte if their number is odd, and all bytes before it.
#[inline(always)]
fn split_odd(bytes: &[u8]) -> (u64, &[u8]) {
    match bytes.split_last() {
        Some((last, even)) if bytes.len() % 2 == 1 => {
            (u64::from(u16::from_ne_bytes([*last, 0])), even)
        }
        _ => (0, bytes),
    }
}

/// The last `N` bytes, which end with the bytes that no whole vector contains.
#[inline(always)]
fn last<const N: usize>(bytes: &[u8]) -> &[u8; N] {
    bytes.last_chunk().expect("a vector and more")
}

/// Ones in the last `len` bytes, fewer than `N`.
#[inline(always)]
fn mask<const N: usize>(len: usize) -> &'static [u8; N] {
    const LONGEST: usize = 64;
    static EDGE: [u8; 2 * LONGEST] = {
        let mut bytes = [0; 2 * LONGEST];
        let mut i = LONGEST;
        while i < 2 * LONGEST {
            (bytes[i], i) = (!0, i + 1);
        }
        bytes
    };
    EDGE[LONGEST + len - N..]
        .first_chunk()
        .expect("fewer than `N`")
}

/// The wrapped sum, and the estimate of its magnitude.
#[derive(Clone, Copy)]
struct Sums<V> {
    sum: V,
    means: V,
}

impl<V: Copy> Sums<V> {
    #[inline(always)]
    fn group<const N: usize>(&mut self, cpu: impl Vectors<N, Vector = V>, halves: [[V; HALF]; 2]) {
        let [first, second] = halves;
        let mean = cpu.mean(self.add_half(cpu, first), self.add_half(cpu, second));
        self.means = cpu.add(self.means, cpu.twice(mean));
    }

    #[inline(always)]
    fn half<const N: usize>(&mut self, cpu: impl Vectors<N, Vector = V>, half: [V; HALF]) {
        let mean = self.add_half(cpu, half);
        self.means = cpu.add(self.means, cpu.highest(mean));
    }

    /// Adds half a group to the sum alone. Returns its mean.
    #[inline(always)]
    fn add_half<const N: usize>(
        &mut self,
        cpu: impl Vectors<N, Vector = V>,
        [a, b, c, d]: [V; HALF],
    ) -> V {
        let sum = cpu.add(cpu.add(a, b), cpu.add(c, d));
        self.sum = cpu.add(self.sum, sum);
        cpu.mean(cpu.mean(a, b), cpu.mean(c, d))
    }

    /// Adds a vector that belongs to no group.
    #[inline(always)]
    fn single<const N: usize>(&mut self, cpu: impl Vectors<N, Vector = V>, vector: V) {
        self.sum = cpu.add(self.sum, vector);
        self.means = cpu.add(self.means, cpu.share(vector));
    }
}

#[inline(always)]
fn load<const N: usize, C: Vectors<N>>(cpu: C, half: &[[u8; N]; HALF]) -> [C::Vector; HALF] {
    let mut vectors = [cpu.zero(); HALF];
    for (vector, bytes) in vectors.iter_mut().zip(half) {
        *vector = cpu.load(bytes);
    }
    vectors
}

#[inline(always)]
fn load_and_store<const N: usize, C: Vectors<N>>(
    cpu: C,
    half: &[[u8; N]; HALF],
    places: &mut [[u8; N]; HALF],
) -> [C::Vector; HALF] {
    let mut vectors = [cpu.zero(); HALF];
    for (vector, (bytes, place)) in vectors.iter_mut().zip(half.iter().zip(places)) {
        *vector = cpu.load(bytes);
        cpu.store(*vector, place);
    }
    vectors
}

/// Sums at most [`BLOCK`] bytes.
#[inline(always)]
fn sum_block<const N: usize, C: Vectors<N>>(cpu: C, vectors: &[[u8; N]]) -> Sums<C::Vector> {
    let (sum, means) = (cpu.zero(), cpu.zero());
    let mut sums = Sums { sum, means };
    let (halves, last) = vectors.as_chunks::<HALF>();
    let (groups, half) = halves.as_chunks::<2>();
    for [a, b] in groups {
        sums.group(cpu, [load(cpu, a), load(cpu, b)]);
    }
    for half in half {
        sums.half(cpu, load(cpu, half));
    }
    for bytes in last {
        sums.single(cpu, cpu.load(bytes));
    }
    sums
}

/// As [`sum_block`], and copies the bytes.
#[inline(always)]
fn copy_block<const N: usize, C: Vectors<N>>(
    cpu: C,
    from: &[[u8; N]],
    to: &mut [[u8; N]],
) -> Sums<C::Vector> {
    let (sum, means) = (cpu.zero(), cpu.zero());
    let mut sums = Sums { sum, means };
    let (halves, last) = from.as_chunks::<HALF>();
    let (groups, half) = halves.as_chunks::<2>();
    let (into, rest) = to.as_chunks_mut::<HALF>();
    let (pairs, one) = into.as_chunks_mut::<2>();
    for ([a, b], [to_a, to_b]) in groups.iter().zip(pairs) {
        sums.group(
            cpu,
            [load_and_store(cpu, a, to_a), load_and_store(cpu, b, to_b)],
        );
    }
    for (half, into) in half.iter().zip(one) {
        sums.half(cpu, load_and_store(cpu, half, into));
    }
    for (bytes, place) in last.iter().zip(rest) {
        let vector = cpu.load(bytes);
        cpu.store(vector, place);
        sums.single(cpu, vector);
    }
    sums
}
