//! The Internet checksum (RFC 1071), alone and together with a copy.

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

/// Words of eight octets summed side by side.
///
/// Both halves of a word go to 64-bit accumulators, which cannot overflow below 2^32 words. This shape, with
/// four words, is one that compilers turn into vector code for every target; wider ones they may not.
const LANES: usize = 4;

fn sum_words(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let (groups, last) = words.as_chunks::<LANES>();
    let (mut low, mut high) = ([0u64; LANES], [0u64; LANES]);
    for group in groups {
        for (lane, word) in group.iter().enumerate() {
            let word = u64::from_ne_bytes(*word);
            low[lane] += word & 0xffff_ffff;
            high[lane] += word >> 32;
        }
    }
    let halves = |word: u64| (word >> 32) + (word & 0xffff_ffff);
    let last: u64 = last
        .iter()
        .map(|word| halves(u64::from_ne_bytes(*word)))
        .sum();
    low.iter().sum::<u64>() + high.iter().sum::<u64>() + last + sum_tail(rest)
}

/// The last octets, fewer than eight.
fn sum_tail(bytes: &[u8]) -> u64 {
    // Loads of their own lengths: a detour over the stack would wait for all stores before it.
    let (words, rest) = bytes.as_chunks::<4>();
    let (halves, last) = rest.as_chunks::<2>();
    let words = words
        .iter()
        .map(|word| u64::from(u32::from_ne_bytes(*word)));
    let halves = halves
        .iter()
        .map(|half| u64::from(u16::from_ne_bytes(*half)));
    let last = last
        .iter()
        .map(|octet| u64::from(u16::from_ne_bytes([*octet, 0])));
    words.chain(halves).chain(last).sum()
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

    proptest! {
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
