//! The Internet checksum (RFC 1071), alone and combined with a copy.
//!
//! The loops are compiled for AVX2 and AVX-512 in addition to the baseline, and selected by the
//! processor's features. `pulp` makes that possible without `unsafe`: its tokens [`V3`] and
//! [`V4`] prove that the instructions are available.

#[cfg(target_arch = "x86_64")]
mod wide;

use crate::packet::flow::Address;

#[cfg(target_arch = "x86_64")]
use pulp::x86::{V3, V4};

/// A running one's-complement sum over 16-bit words, not folded yet.
///
/// Words are added in the machine's byte order, which RFC 1071 section 2(B) allows;
/// [`Sum::finish`] returns the checksum in network order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// Adds an even number of bytes, or the last ones.
    #[inline]
    #[must_use]
    pub fn with(self, bytes: &[u8]) -> Sum {
        Sum(fold64(self.0, sum_words(bytes)))
    }

    /// [`Sum::with`] for addresses and a TCP header, `PLAIN` bytes if it has no options.
    #[inline]
    #[must_use]
    pub fn add_head<const PLAIN: usize>(self, bytes: &[u8]) -> Sum {
        let sum = match <&[u8; PLAIN]>::try_from(bytes) {
            Ok(plain) => {
                let (words, last) = plain.as_chunks::<8>();
                let words = words.iter().map(|word| u64::from_ne_bytes(*word));
                fold64(words.fold(0, fold64), sum_short(last))
            }
            Err(_) => sum_rare(bytes),
        };
        Sum(fold64(self.0, sum))
    }

    /// Copies `from` to `to` and adds it in one pass. The length is even, except for the last part.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline(always)]
    #[must_use]
    pub fn add_copy(self, cpu: Cpu, from: &[u8], to: &mut [u8]) -> Sum {
        Sum(fold64(self.0, cpu.copy_words(from, to)))
    }

    /// Copies `parts` to `to` and adds them; the first may have an odd length.
    ///
    /// # Panics
    /// If the length of `to` is not the sum of both.
    #[inline(always)]
    #[must_use]
    pub fn add_copies(self, cpu: Cpu, parts: (&[u8], &[u8]), to: &mut [u8]) -> Sum {
        match parts.1 {
            [] => self.add_copy(cpu, parts.0, to),
            _ => self.add_both(cpu, parts, to),
        }
    }

    #[inline(never)]
    fn add_both(self, cpu: Cpu, (a, b): (&[u8], &[u8]), to: &mut [u8]) -> Sum {
        let (front, back) = to.split_at_mut(a.len());
        let sum = self.add_copy(cpu, a, front);
        let second = Sum::default().add_copy(cpu, b, back);
        Sum(fold64(sum.0, second.behind(a.len()).0))
    }

    /// This sum, for bytes that follow `len` others: after an odd number, every byte is in the
    /// other half of its word (RFC 1071 section 2(B)).
    #[inline]
    #[must_use]
    fn behind(self, len: usize) -> Sum {
        if len.is_multiple_of(2) {
            self
        } else {
            Sum(u64::from(fold16(self.0).swap_bytes()))
        }
    }

    /// Adds 32 bits at an even offset of the whole, as a number.
    #[inline]
    #[must_use]
    pub fn number(self, number: u32) -> Sum {
        Sum(fold64(self.0, u64::from(number.to_be())))
    }

    /// [`Sum::number`] for a few numbers.
    #[inline]
    #[must_use]
    pub fn numbers<const N: usize>(self, numbers: [u32; N]) -> Sum {
        let sum = numbers.iter().map(|number| u64::from(number.to_be())).sum();
        Sum(fold64(self.0, sum))
    }

    /// Adds the pseudo header of TCP or UDP, over IPv4 (RFC 9293 section 3.1) or IPv6 (RFC 8200
    /// section 8.1).
    #[inline]
    #[must_use]
    pub fn pseudo_header(self, src: Address, dst: Address, protocol: u8, len: usize) -> Sum {
        let len = (len as u32).to_be_bytes();
        let words = u64::from(u32::from_ne_bytes([0, protocol, 0, 0]))
            + u64::from(u32::from_ne_bytes(len))
            + sum_of(src)
            + sum_of(dst);
        Sum(fold64(self.0, words))
    }

    /// The sum folded to 16 bits, in network order, not complemented.
    #[inline]
    pub fn folded(self) -> u16 {
        fold16(self.0).swap_bytes()
    }

    /// The checksum to store: the complement of the folded sum, in network order.
    #[inline]
    pub fn finish(self) -> u16 {
        !self.folded()
    }

    /// Whether this sum, over data and its stored checksum, shows that the data is good.
    #[inline]
    pub fn is_good(self) -> bool {
        // A sum that folds to all ones.
        self.0 != 0 && self.0.is_multiple_of(0xffff)
    }
}

#[inline]
fn fold64(a: u64, b: u64) -> u64 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u64::from(carry)
}

#[inline]
fn fold16(sum: u64) -> u16 {
    let (sum, carry) = (sum as u32).overflowing_add((sum >> 32) as u32);
    let sum = sum + u32::from(carry);
    let (word, carry) = (sum as u16).overflowing_add((sum >> 16) as u16);
    word + u16::from(carry)
}

/// Length in bytes from which the wide loops repay their selection.
const WIDE: usize = 64;
/// The same of copies without a sum.
#[cfg(target_arch = "x86_64")]
const WIDE_COPY: usize = 256;

#[inline]
fn sum_words(bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= WIDE {
        if let Some(cpu) = V4::try_new() {
            return cpu.vectorize(wide::Words { cpu, bytes });
        }
        if let Some(cpu) = V3::try_new() {
            return cpu.vectorize(wide::Words { cpu, bytes });
        }
    }
    narrow::sum(bytes)
}

/// The vectors of this processor, selected once for all copies.
#[derive(Clone, Copy, Debug)]
pub struct Cpu(Selected);

#[derive(Clone, Copy, Debug)]
enum Selected {
    #[cfg(target_arch = "x86_64")]
    Avx512(V4),
    #[cfg(target_arch = "x86_64")]
    Avx2(V3),
    Any,
}

impl Cpu {
    /// This processor.
    #[inline(always)]
    pub fn this() -> Cpu {
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(cpu) = V4::try_new() {
                return Cpu(Selected::Avx512(cpu));
            }
            if let Some(cpu) = V3::try_new() {
                return Cpu(Selected::Avx2(cpu));
            }
        }
        Cpu(Selected::Any)
    }

    /// Runs a loop that is compiled for these vectors.
    #[inline(always)]
    pub fn run<L: CopyLoop>(self, looping: L) -> L::Output {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Selected::Avx512(cpu) => cpu.vectorize(wide::Looping { cpu, looping }),
            #[cfg(target_arch = "x86_64")]
            Selected::Avx2(cpu) => cpu.vectorize(wide::Looping { cpu, looping }),
            Selected::Any => looping.run(Narrow),
        }
    }

    /// Copies `from` to `to`, without a sum. For a segment of some 1,400 bytes, this takes two thirds
    /// of the instructions of `memcpy`, which handles any length.
    ///
    /// # Panics
    /// If their lengths differ.
    #[inline(always)]
    pub fn copy(self, from: &[u8], to: &mut [u8]) {
        #[cfg(target_arch = "x86_64")]
        if from.len() >= WIDE_COPY {
            assert_eq!(from.len(), to.len());
            match self.0 {
                Selected::Avx512(cpu) => {
                    return cpu.vectorize(wide::CopiedAlone { cpu, from, to });
                }
                Selected::Avx2(cpu) => return cpu.vectorize(wide::CopiedAlone { cpu, from, to }),
                Selected::Any => {}
            }
        }
        to.copy_from_slice(from);
    }

    #[inline(always)]
    fn copy_words(self, from: &[u8], to: &mut [u8]) -> u64 {
        assert_eq!(from.len(), to.len());
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Selected::Avx512(cpu) if from.len() >= WIDE => {
                cpu.vectorize(wide::Copied { cpu, from, to })
            }
            #[cfg(target_arch = "x86_64")]
            Selected::Avx2(cpu) if from.len() >= WIDE => {
                cpu.vectorize(wide::Copied { cpu, from, to })
            }
            _ => copy_narrow(from, to),
        }
    }
}

/// A loop with a copy in each round. As a whole it is compiled for each kind of vectors, so no round
/// pays for a call.
pub trait CopyLoop {
    /// The result of the loop.
    type Output;
    /// Runs the loop. Must be `#[inline(always)]`, as all that it calls with `copier`.
    fn run(self, copier: impl Copier) -> Self::Output;
}

/// Copies with the vectors of one kind of processor.
pub trait Copier: Copy {
    /// The sum of `bytes`, at least 64 of them.
    fn sum(self, bytes: &[u8]) -> u64;
    /// Copies `from`, at least 64 bytes, to `to`. Returns the sum.
    fn copy(self, from: &[u8], to: &mut [u8]) -> u64;

    /// As [`Sum::add_copy`].
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline(always)]
    #[must_use]
    fn add_copy(self, sum: Sum, from: &[u8], to: &mut [u8]) -> Sum {
        assert_eq!(from.len(), to.len());
        let copied = match from.len() >= WIDE {
            true => self.copy(from, to),
            false => copy_narrow(from, to),
        };
        Sum(fold64(sum.0, copied))
    }
}

/// A copier for every processor.
#[derive(Clone, Copy)]
struct Narrow;

impl Copier for Narrow {
    fn sum(self, bytes: &[u8]) -> u64 {
        narrow::sum(bytes)
    }

    fn copy(self, from: &[u8], to: &mut [u8]) -> u64 {
        copy_narrow(from, to)
    }
}

#[inline(never)]
fn copy_narrow(from: &[u8], to: &mut [u8]) -> u64 {
    to.copy_from_slice(from);
    narrow::sum(from)
}

/// Loops for every processor.
mod narrow {
    /// Number of eight-byte words that are summed in parallel.
    ///
    /// Both halves of a word go to 64-bit accumulators, which cannot overflow below 2^32 words.
    /// Compilers vectorize this shape, with four words, for every target; wider ones not always.
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

/// Sums a few bytes: the rest after whole vectors or groups of words.
#[inline]
fn sum_short(mut bytes: &[u8]) -> u64 {
    // Each load has exactly its length: a copy to the stack would wait for all earlier stores.
    let mut sum = 0;
    while let Some((word, rest)) = bytes.split_first_chunk() {
        sum += halves(*word);
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

/// [`sum_short`] as a call, for rare lengths.
#[cold]
#[inline(never)]
fn sum_rare(bytes: &[u8]) -> u64 {
    sum_short(bytes)
}

/// Both halves of a word, added.
#[inline(always)]
fn halves(word: [u8; 8]) -> u64 {
    let word = u64::from_ne_bytes(word);
    (word >> 32) + (word & 0xffff_ffff)
}

/// The sum of an address's words as in a header.
#[inline(always)]
fn sum_of(address: Address) -> u64 {
    if address.is_v4() {
        return u64::from(address.v4_bits().to_be());
    }
    let bytes = address.bytes();
    let (words, _) = bytes.as_chunks::<4>();
    let words = words
        .iter()
        .map(|word| u64::from(u32::from_ne_bytes(*word)));
    words.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    #[cfg(target_arch = "x86_64")]
    use pulp::NullaryFnOnce;

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

    /// Bytes without a pattern that could hide a wrong loop.
    fn pattern(len: usize) -> Vec<u8> {
        let byte = |at: usize| (at as u32).wrapping_mul(0x9e37_79b1) >> 24;
        (0..len).map(|at| byte(at) as u8).collect()
    }

    /// This processor with each kind of vectors that it has, and with none.
    fn all_cpus() -> Vec<Cpu> {
        let mut all = vec![Selected::Any];
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(V3::try_new().map(Selected::Avx2));
            all.extend(V4::try_new().map(Selected::Avx512));
        }
        all.into_iter().map(Cpu).collect()
    }

    /// Results of all loops of this processor on `from`, with a copy to `to` if the loop copies.
    fn by_every_loop(from: &[u8], to: &mut [u8]) -> Vec<u16> {
        let mut sums = vec![Sum::default().with(from), Sum(narrow::sum(from))];
        #[cfg(target_arch = "x86_64")]
        if from.len() >= WIDE {
            fn both<C: Copy>(cpu: C, from: &[u8], to: &mut [u8]) -> [Sum; 2]
            where
                for<'a> wide::Words<'a, C>: NullaryFnOnce<Output = u64>,
                for<'a> wide::Copied<'a, C>: NullaryFnOnce<Output = u64>,
            {
                to.fill(0);
                let words = wide::Words { cpu, bytes: from }.call();
                [words, wide::Copied { cpu, from, to }.call()].map(Sum)
            }
            sums.extend(
                V3::try_new()
                    .into_iter()
                    .flat_map(|cpu| both(cpu, from, to)),
            );
            sums.extend(
                V4::try_new()
                    .into_iter()
                    .flat_map(|cpu| both(cpu, from, to)),
            );
        }
        to.fill(0xa5);
        sums.push(Sum::default().add_copy(Cpu::this(), from, to));
        sums.into_iter().map(Sum::finish).collect()
    }

    #[test]
    fn every_length_to_9000_is_summed_and_copied_right_by_every_loop() {
        let bytes = pattern(9001 + 64);
        for len in 0..=9000usize {
            // The alignments of both ends change along the way, so all combinations occur.
            let (at, into) = (len % 64, (len / 64 + len) % 64);
            let from = &bytes[at..at + len];
            let expected = plain(from);
            let mut to = vec![0xa5; len + 128];
            let sums = by_every_loop(from, &mut to[into..into + len]);
            assert!(
                sums.iter().all(|sum| *sum == expected),
                "{len} from {at} to {into}: {sums:x?}, not {expected:x}"
            );
            assert_eq!(&to[into..into + len], from);
            for cpu in all_cpus() {
                to[into..into + len].fill(0);
                cpu.copy(from, &mut to[into..into + len]);
                assert_eq!(&to[into..into + len], from);
            }
            let around = to[..into].iter().chain(&to[into + len..]);
            assert!(around.copied().all(|byte| byte == 0xa5), "{len} to {into}");
        }
    }

    #[test]
    #[should_panic(expected = "left == right")]
    fn a_place_of_another_length_is_refused() {
        Cpu::this().copy(&[1; 600], &mut [0; 599]);
    }

    #[test]
    fn every_alignment_of_either_end_is_the_same_to_a_full_segment() {
        let bytes = pattern(1448 + 64);
        let mut to = vec![0; 1448 + 64];
        for at in 0..64 {
            let from = &bytes[at..at + 1448];
            for into in 0..64 {
                let sum = Sum::default().add_copy(Cpu::this(), from, &mut to[into..into + 1448]);
                assert_eq!(sum.finish(), plain(from), "from {at} to {into}");
                assert_eq!(&to[into..into + 1448], from);
            }
        }
    }

    #[test]
    fn the_largest_words_do_not_overflow_and_the_smallest_stay_zero() {
        for len in [64, 1448, 32 << 10, 65_535, (64 << 10) + 1, 1 << 20] {
            let ones = vec![0xff; len];
            assert_eq!(Sum::default().with(&ones).finish(), plain(&ones), "{len}");
            assert_eq!(Sum::default().with(&vec![0; len]).folded(), 0);
        }
    }

    /// Carries are counted by rounded means: they are rounded up when half the words are odd,
    /// down when all bits below the highest word are set.
    #[test]
    fn words_whose_means_are_rounded_most_are_summed_right() {
        for size in [32, 64] {
            let mut odd = vec![0u8; 1 << 17];
            for vector in odd.chunks_mut(2 * size) {
                vector[..size].fill(1);
            }
            let mut low = vec![0xffu8; 1 << 17];
            for (i, word) in low.chunks_mut(8).enumerate() {
                word[6..].fill(if i % 3 == 0 { 0x80 } else { 0x7f });
            }
            let mut edge = vec![0u8; 1 << 17];
            for (i, word) in edge.chunks_mut(8).enumerate() {
                // The sums reach exactly a carry, or one less.
                word.fill(if i / (size / 8) % 2 == 0 { 0xff } else { 0 });
                word[0] = (i % 3) as u8;
            }
            for bytes in [odd, low, edge] {
                for len in [64, 1448, 9000, 65_536, 1 << 17] {
                    let (from, mut to) = (&bytes[..len], vec![0; len]);
                    let sums = by_every_loop(from, &mut to);
                    assert!(sums.iter().all(|sum| *sum == plain(from)), "{size} {len}");
                }
            }
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
            let sum = Sum::default().add_copies(Cpu::this(), bytes.split_at(cut), &mut to);
            prop_assert_eq!(sum.finish(), plain(&bytes));
            prop_assert_eq!(to, bytes);
        }

        #[test]
        fn equals_the_definition(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
            prop_assert_eq!(Sum::default().with(&bytes).finish(), plain(&bytes));
        }

        #[test]
        fn numbers_count_as_their_bytes(numbers in any::<[u32; 5]>()) {
            let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_be_bytes()).collect();
            let sum = numbers.into_iter().fold(Sum::default(), Sum::number);
            prop_assert_eq!(sum.finish(), plain(&bytes));
            prop_assert_eq!(Sum::default().numbers(numbers).finish(), plain(&bytes));
        }

        #[test]
        fn data_with_its_checksum_is_good_and_a_flipped_bit_is_not(
            mut bytes in proptest::collection::vec(any::<u8>(), 2..300),
            bit in 0usize..2400,
        ) {
            if bytes.len() % 2 == 1 { bytes.pop(); }
            let sum = Sum::default().with(&bytes).finish();
            bytes.extend(sum.to_be_bytes());
            prop_assert!(Sum::default().with(&bytes).is_good());
            let bit = bit % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!Sum::default().with(&bytes).is_good());
        }
    }

    /// 2^16 counts as one, so even the last step of folding may lose no carry.
    #[test]
    fn every_carry_of_folding_counts() {
        let parts = [0, 1, 2, 0x7fff, 0x8000, 0xfffe, 0xffff];
        for (i, j) in (0..7 * 7).map(|n| (n / 7, n % 7)) {
            for (k, l) in (0..7 * 7).map(|n| (n / 7, n % 7)) {
                let words: [u64; 4] = [parts[i], parts[j], parts[k], parts[l]];
                let sum = words.iter().fold(0, |sum, word| sum << 16 | word);
                let plain: u64 = words.iter().sum();
                let worth = |sum: u64| (sum % 0xffff, sum == 0);
                assert_eq!(worth(u64::from(fold16(sum))), worth(plain), "{sum:#x}");
                for other in [1, 0xffff, sum, !sum, u64::MAX] {
                    let both = (u128::from(sum) + u128::from(other)) % 0xffff;
                    let folded = fold64(sum, other);
                    assert_eq!(u128::from(folded % 0xffff), both, "{sum:#x} + {other:#x}");
                }
            }
        }
    }

    #[test]
    fn the_worked_example_of_rfc_1071() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::default().with(&bytes).folded(), 0xddf2);
    }
}
