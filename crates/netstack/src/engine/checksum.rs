//! The Internet checksum (RFC 1071), alone and together with a copy.
//!
//! The loops are compiled for AVX2 besides the baseline, and chosen by what the processor has. `pulp` keeps
//! that free of `unsafe`: its token [`V3`] is the proof that the instructions are there.

#[cfg(target_arch = "x86_64")]
use pulp::x86::V3;

/// A running one's-complement sum over 16-bit words, not folded yet.
///
/// Words are added in the machine's byte order, which RFC 1071 section 2(B) allows; [`Sum::finish`] gives
/// the number back in network order.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum(u64);

impl Sum {
    /// Adds an even number of octets, or the last ones.
    #[inline]
    #[must_use]
    pub(crate) fn add(self, bytes: &[u8]) -> Sum {
        Sum(fold64(self.0, sum_words(bytes)))
    }

    /// As [`Sum::add`], of not much more than headers.
    #[inline]
    #[must_use]
    pub(crate) fn add_few(self, bytes: &[u8]) -> Sum {
        Sum(fold64(self.0, sum_short(bytes)))
    }

    /// Copies `from` to `to` and adds it, in one pass. An even number of octets, or the last ones.
    ///
    /// # Panics
    /// If the two are not of one length.
    #[inline]
    #[must_use]
    pub(crate) fn add_copy(self, from: &[u8], to: &mut [u8]) -> Sum {
        Sum(fold64(self.0, copy_words(from, to)))
    }

    /// Copies `parts` to `to`, end to end, and adds them, wherever the first of them ends.
    ///
    /// # Panics
    /// If `to` is not as long as both.
    #[inline]
    #[must_use]
    pub(crate) fn add_copies(self, parts: (&[u8], &[u8]), to: &mut [u8]) -> Sum {
        let (a, b) = parts;
        let (front, back) = to.split_at_mut(a.len());
        let sum = self.add_copy(a, front);
        if b.is_empty() && back.is_empty() {
            return sum;
        }
        let second = Sum::default().add_copy(b, back);
        Sum(fold64(sum.0, second.behind(a.len()).0))
    }

    /// This sum, for octets that follow `len` others: behind an odd number every octet stands in the other
    /// half of its word (RFC 1071 section 2(B)).
    #[inline]
    #[must_use]
    fn behind(self, len: usize) -> Sum {
        if len.is_multiple_of(2) {
            self
        } else {
            Sum(u64::from(fold16(self.0).swap_bytes()))
        }
    }

    /// Adds 32 bits that stand at an even place of the whole, as a number.
    #[inline]
    #[must_use]
    pub(crate) fn number(self, number: u32) -> Sum {
        Sum(fold64(self.0, u64::from(number.to_be())))
    }

    /// Adds the pseudo header of TCP over IPv4 (RFC 9293 section 3.1).
    #[inline]
    #[must_use]
    pub(crate) fn pseudo_header(self, src: [u8; 4], dst: [u8; 4], protocol: u8, len: usize) -> Sum {
        let len = (len as u32).to_be_bytes();
        let words = u64::from(u32::from_ne_bytes(src))
            + u64::from(u32::from_ne_bytes(dst))
            + u64::from(u32::from_ne_bytes([0, protocol, 0, 0]))
            + u64::from(u32::from_ne_bytes(len));
        Sum(fold64(self.0, words))
    }

    /// The sum folded to 16 bits, in network order, not complemented.
    #[inline]
    pub(crate) fn folded(self) -> u16 {
        fold16(self.0).swap_bytes()
    }

    /// The checksum to store: the complement of the folded sum, in network order.
    #[inline]
    pub(crate) fn finish(self) -> u16 {
        !self.folded()
    }

    /// Whether a sum over data and its stored checksum says that the data is good.
    #[inline]
    pub(crate) fn is_good(self) -> bool {
        fold16(self.0) == 0xffff
    }
}

#[inline]
fn fold64(a: u64, b: u64) -> u64 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u64::from(carry)
}

#[inline]
fn fold16(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    sum as u16
}

/// From how many octets on the wide loops pay for choosing them.
#[cfg(target_arch = "x86_64")]
const WIDE: usize = 64;

#[inline]
fn sum_words(bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= WIDE
        && let Some(cpu) = V3::try_new()
    {
        return cpu.vectorize(wide::Words { cpu, bytes });
    }
    narrow::sum(bytes)
}

#[inline]
fn copy_words(from: &[u8], to: &mut [u8]) -> u64 {
    assert_eq!(from.len(), to.len());
    #[cfg(target_arch = "x86_64")]
    if from.len() >= WIDE
        && let Some(cpu) = V3::try_new()
    {
        return cpu.vectorize(wide::Copy { cpu, from, to });
    }
    to.copy_from_slice(from);
    narrow::sum(from)
}

/// For every processor.
mod narrow {
    /// Words of eight octets summed side by side.
    ///
    /// Both halves of a word go to 64-bit accumulators, which cannot overflow below 2^32 words. This shape,
    /// with four words, is one that compilers turn into vector code for every target; wider ones they may not.
    const LANES: usize = 4;

    pub(super) fn sum(bytes: &[u8]) -> u64 {
        let (groups, rest) = bytes.as_chunks::<{ 8 * LANES }>();
        let (mut low, mut high) = ([0u64; LANES], [0u64; LANES]);
        for group in groups {
            let (words, _) = group.as_chunks::<8>();
            for (lane, word) in words.iter().enumerate() {
                let word = u64::from_ne_bytes(*word);
                low[lane] += word & 0xffff_ffff;
                high[lane] += word >> 32;
            }
        }
        low.iter().sum::<u64>() + high.iter().sum::<u64>() + super::sum_short(rest)
    }
}

/// For x86-64 with AVX2: three instructions for 32 octets, five with a copy.
///
/// `vpmaddwd` adds pairs of signed 16-bit words into 32 bits. Words become signed by subtracting 2^15, which
/// is flipping their highest bit; what was taken away is added back at the end.
#[cfg(target_arch = "x86_64")]
mod wide {
    use core::arch::x86_64::__m256i;

    use pulp::x86::V3;

    const VECTOR: usize = 32;
    /// Vectors of a turn of the loop, each with an accumulator of its own, since an addition takes a cycle.
    const UNROLL: usize = 4;
    /// Vectors after which the accumulators are emptied: 2^11 of 16 words, each at most 2^15 in magnitude,
    /// add up to at most 2^30.
    const BLOCK: usize = 1 << 11;

    pub(super) struct Words<'a> {
        pub(super) cpu: V3,
        pub(super) bytes: &'a [u8],
    }

    impl pulp::NullaryFnOnce for Words<'_> {
        type Output = u64;

        #[inline(always)]
        fn call(self) -> u64 {
            let (vectors, tail) = self.bytes.as_chunks();
            // As a rule one block, and a tenth fewer instructions.
            let total = if vectors.len() <= BLOCK {
                sum(self.cpu, vectors)
            } else {
                let blocks = vectors.chunks(BLOCK);
                blocks.map(|block| sum(self.cpu, block)).sum()
            };
            total + super::sum_short(tail)
        }
    }

    pub(super) struct Copy<'a> {
        pub(super) cpu: V3,
        pub(super) from: &'a [u8],
        /// As long as `from`.
        pub(super) to: &'a mut [u8],
    }

    impl pulp::NullaryFnOnce for Copy<'_> {
        type Output = u64;

        #[inline(always)]
        fn call(self) -> u64 {
            let (from, tail) = self.from.as_chunks();
            let (to, last) = self.to.as_chunks_mut();
            last.copy_from_slice(tail);
            let total = if from.len() <= BLOCK {
                copy(self.cpu, from, to)
            } else {
                let blocks = from.chunks(BLOCK).zip(to.chunks_mut(BLOCK));
                blocks.map(|(from, to)| copy(self.cpu, from, to)).sum()
            };
            total + super::sum_short(tail)
        }
    }

    /// A running sum of signed words.
    #[derive(Clone, Copy)]
    struct Lanes {
        cpu: V3,
        flip: __m256i,
        ones: __m256i,
        sums: [__m256i; UNROLL],
    }

    impl Lanes {
        #[inline(always)]
        fn new(cpu: V3) -> Lanes {
            Lanes {
                cpu,
                flip: cpu.avx._mm256_set1_epi16(i16::MIN),
                ones: cpu.avx._mm256_set1_epi16(1),
                sums: [cpu.avx._mm256_setzero_si256(); UNROLL],
            }
        }

        #[inline(always)]
        fn add(&mut self, lane: usize, vector: &[u8; VECTOR]) {
            let avx2 = self.cpu.avx2;
            let words = avx2._mm256_xor_si256(pulp::cast(*vector), self.flip);
            let pairs = avx2._mm256_madd_epi16(words, self.ones);
            self.sums[lane] = avx2._mm256_add_epi32(self.sums[lane], pairs);
        }

        /// The sum of `words` unsigned words, which these were.
        #[inline(always)]
        fn total(self, words: usize) -> u64 {
            let V3 {
                avx, avx2, sse2, ..
            } = self.cpu;
            let [a, b, c, d] = self.sums;
            let sum =
                avx2._mm256_add_epi32(avx2._mm256_add_epi32(a, b), avx2._mm256_add_epi32(c, d));
            let sum = sse2._mm_add_epi32(
                avx._mm256_castsi256_si128(sum),
                avx2._mm256_extracti128_si256::<1>(sum),
            );
            let sum = sse2._mm_add_epi32(sum, sse2._mm_shuffle_epi32::<0b01_00_11_10>(sum));
            let sum = sse2._mm_add_epi32(sum, sse2._mm_shuffle_epi32::<0b10_11_00_01>(sum));
            (i64::from(sse2._mm_cvtsi128_si32(sum)) + ((words as i64) << 15)) as u64
        }
    }

    /// At most [`BLOCK`] octets.
    #[inline(always)]
    fn sum(cpu: V3, vectors: &[[u8; VECTOR]]) -> u64 {
        let mut lanes = Lanes::new(cpu);
        let (groups, last) = vectors.as_chunks::<UNROLL>();
        for group in groups {
            for (lane, vector) in group.iter().enumerate() {
                lanes.add(lane, vector);
            }
        }
        for vector in last {
            lanes.add(0, vector);
        }
        lanes.total(vectors.len() * (VECTOR / 2))
    }

    /// At most [`BLOCK`] octets, whole vectors.
    #[inline(always)]
    fn copy(cpu: V3, from: &[[u8; VECTOR]], to: &mut [[u8; VECTOR]]) -> u64 {
        let mut lanes = Lanes::new(cpu);
        let (groups, last) = from.as_chunks::<UNROLL>();
        let (into, rest) = to.as_chunks_mut::<UNROLL>();
        for (group, into) in groups.iter().zip(into) {
            for (lane, (vector, place)) in group.iter().zip(into).enumerate() {
                *place = *vector;
                lanes.add(lane, vector);
            }
        }
        for (vector, place) in last.iter().zip(rest) {
            *place = *vector;
            lanes.add(0, vector);
        }
        lanes.total(from.len() * (VECTOR / 2))
    }
}

/// Few octets: what is left behind whole vectors or groups of words.
#[inline]
fn sum_short(mut bytes: &[u8]) -> u64 {
    // Loads of their own lengths: a detour over the stack would wait for all stores before it.
    let mut sum = 0;
    while let Some((word, rest)) = bytes.split_first_chunk() {
        let word = u64::from_ne_bytes(*word);
        sum += (word >> 32) + (word & 0xffff_ffff);
        bytes = rest;
    }
    if let Some((word, rest)) = bytes.split_first_chunk() {
        sum += u64::from(u32::from_ne_bytes(*word));
        bytes = rest;
    }
    if let Some((word, rest)) = bytes.split_first_chunk() {
        sum += u64::from(u16::from_ne_bytes(*word));
        bytes = rest;
    }
    if let Some(last) = bytes.first() {
        sum += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition of RFC 1071 section 1, word by word.
    fn plain(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            let word = u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]);
            sum += u32::from(word);
            sum = (sum >> 16) + (sum & 0xffff);
        }
        !(sum as u16)
    }

    /// Octets without a pattern that a wrong loop could live with.
    fn octets(len: usize) -> Vec<u8> {
        let mut x = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 32) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn every_length_to_9000_is_summed_and_copied_right_by_both_loops() {
        let bytes = octets(9001 + 64);
        for len in 0..=9000usize {
            // Alignments of both ends change along the way, each meets each.
            let (at, into) = (len % 64, (len / 64 + len) % 64);
            let from = &bytes[at..at + len];
            let expected = plain(from);
            assert_eq!(Sum::default().add(from).finish(), expected, "{len} at {at}");
            assert_eq!(!Sum(narrow::sum(from)).folded(), expected, "{len} at {at}");
            let mut to = vec![0xa5; len + 128];
            let sum = Sum::default().add_copy(from, &mut to[into..into + len]);
            assert_eq!(sum.finish(), expected, "{len} from {at} to {into}");
            assert_eq!(&to[into..into + len], from);
            let around = to[..into].iter().chain(&to[into + len..]);
            assert!(
                around.copied().all(|octet| octet == 0xa5),
                "{len} to {into}"
            );
        }
    }

    #[test]
    fn every_alignment_of_either_end_is_the_same_to_a_full_segment() {
        let bytes = octets(1448 + 64);
        let mut to = vec![0; 1448 + 64];
        for at in 0..64 {
            let from = &bytes[at..at + 1448];
            for into in 0..64 {
                let sum = Sum::default().add_copy(from, &mut to[into..into + 1448]);
                assert_eq!(sum.finish(), plain(from), "from {at} to {into}");
                assert_eq!(&to[into..into + 1448], from);
            }
        }
    }

    #[test]
    fn the_largest_words_do_not_overflow_and_the_smallest_stay_zero() {
        for len in [64, 1448, 32 << 10, 65_535, (64 << 10) + 1, 1 << 20] {
            let ones = vec![0xff; len];
            assert_eq!(Sum::default().add(&ones).finish(), plain(&ones), "{len}");
            assert_eq!(Sum::default().add(&vec![0; len]).folded(), 0);
        }
    }

    proptest! {
        #[test]
        fn pieces_of_any_length_add_up_to_the_whole(
            bytes in proptest::collection::vec(any::<u8>(), 0..9000),
            cut in any::<prop::sample::Index>(),
        ) {
            let cut = cut.index(bytes.len() + 1);
            let mut to = vec![0; bytes.len()];
            let sum = Sum::default().add_copies(bytes.split_at(cut), &mut to);
            prop_assert_eq!(sum.finish(), plain(&bytes));
            prop_assert_eq!(to, bytes);
        }

        #[test]
        fn equals_the_definition(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
            prop_assert_eq!(Sum::default().add(&bytes).finish(), plain(&bytes));
        }

        #[test]
        fn numbers_count_as_their_octets(numbers in any::<[u32; 5]>()) {
            let octets: Vec<u8> = numbers.iter().flat_map(|n| n.to_be_bytes()).collect();
            let sum = numbers.into_iter().fold(Sum::default(), Sum::number);
            prop_assert_eq!(sum.finish(), plain(&octets));
        }

        #[test]
        fn data_with_its_checksum_is_good_and_a_flipped_bit_is_not(
            mut bytes in proptest::collection::vec(any::<u8>(), 2..300),
            bit in 0usize..2400,
        ) {
            if bytes.len() % 2 == 1 { bytes.pop(); }
            let sum = Sum::default().add(&bytes).finish();
            bytes.extend(sum.to_be_bytes());
            prop_assert!(Sum::default().add(&bytes).is_good());
            let bit = bit % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!Sum::default().add(&bytes).is_good());
        }
    }

    #[test]
    fn the_worked_example_of_rfc_1071() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::default().add(&bytes).folded(), 0xddf2);
    }
}
