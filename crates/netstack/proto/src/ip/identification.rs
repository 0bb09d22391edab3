//! Identifications of packets that may be fragmented (RFC 791 section 3.1, RFC 8200 section 4.5).

use crate::hash::mix;
use crate::packet::flow::Address;

use crate::keys::{KeyUse, Keys};

/// Number of packet counters, each for many destinations; a power of two.
const COUNTERS: usize = 256;

/// Numbers the packets to every destination such that no number is reused while its first
/// packet may still be in the network (RFC 6864 section 4.2), and that a receiver cannot infer
/// how many packets others get (RFC 7739 section 5).
///
/// Each counter counts the packets to several destinations. The identification is the count
/// after a permutation of the 16 bits that is keyed for the destination and the protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identifications {
    key: [u64; 2],
    /// Number of generators that count independently; `index` is the number of this one.
    of: u16,
    index: u16,
    /// Empty until first use.
    counters: Vec<u32>,
}

impl Identifications {
    /// Creates generator `index` of `of`, which share no number within 65,536 / `of` packets.
    pub fn new(keys: &Keys, index: u16, of: u16) -> Self {
        Identifications {
            key: keys.derive(KeyUse::Identification),
            of,
            index,
            counters: Vec::new(),
        }
    }

    /// The identifications of the next `count` packets to `destination`.
    pub fn take(&mut self, destination: Address, protocol: u8, count: u16) -> Sequence {
        if self.counters.is_empty() {
            self.counters = vec![0; COUNTERS];
        }
        let keys = Keys::new(self.key);
        let hash = |domain| keys.of_address(domain, destination, u64::from(protocol));
        let key = hash(KeyUse::OneDestination);
        let bucket = hash(KeyUse::AllDestinations);
        let counter = &mut self.counters[bucket as usize % COUNTERS];
        let first = counter
            .wrapping_mul(self.of.into())
            .wrapping_add(self.index.into());
        *counter = counter.wrapping_add(count.into());
        Sequence {
            key,
            first,
            step: self.of,
        }
    }

    /// The whole state as one number.
    pub fn fingerprint(&self) -> u64 {
        let counts = self.counters.iter().map(|count| u64::from(*count));
        let seed = u64::from(self.of) << 16 | u64::from(self.index);
        counts.fold(seed ^ self.key[0] ^ self.key[1], |h, count| mix(h ^ count))
    }
}

/// Identifications of packets to one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sequence {
    key: u64,
    first: u32,
    step: u16,
}

impl Sequence {
    /// The identification of the packet after `before` others.
    #[inline]
    pub const fn nth(self, before: u16) -> u16 {
        permute(self.key, self.number(before) as u16)
    }

    /// The 32-bit identification for IPv6 (RFC 8200 section 4.5).
    #[inline]
    pub const fn nth_wide(self, before: u16) -> u32 {
        permute_wide(self.key, self.number(before))
    }

    const fn number(self, before: u16) -> u32 {
        let steps = (before as u32).wrapping_mul(self.step as u32);
        self.first.wrapping_add(steps)
    }

    /// Skips the first `count`.
    pub const fn skip(&mut self, count: u16) {
        self.first = self.number(count);
    }

    /// The whole state as one number.
    pub const fn fingerprint(self) -> u64 {
        self.key ^ mix((self.first as u64) << 16 | self.step as u64)
    }
}

/// A permutation of 16 bits, selected by `key`: a Feistel network of four rounds.
#[inline]
const fn permute(key: u64, number: u16) -> u16 {
    let [mut left, mut right] = number.to_be_bytes();
    let mut round = 0;
    while round < 4 {
        let mixed = mix(key ^ (round << 8 | right as u64));
        (left, right) = (right, left ^ mixed as u8);
        round += 1;
    }
    u16::from_be_bytes([left, right])
}

/// [`permute`] for 32 bits.
#[inline]
const fn permute_wide(key: u64, number: u32) -> u32 {
    let (mut left, mut right) = ((number >> 16) as u16, number as u16);
    let mut round = 0;
    while round < 4 {
        // These round numbers do not occur in the narrow permutation.
        let mixed = mix(key ^ ((round + 4) << 16 | right as u64));
        (left, right) = (right, left ^ mixed as u16);
        round += 1;
    }
    (left as u32) << 16 | right as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const UDP: u8 = 17;
    const A: Address = Address::ipv4(10, 0, 0, 1);

    fn host(number: u32) -> Address {
        Address::v4(0x0a00_0000 + number)
    }

    fn identifications(secret: u64) -> Identifications {
        Identifications::new(&Keys::new([secret, 5]), 0, 1)
    }

    #[test]
    fn no_identification_comes_twice_within_65536_packets_to_one_destination() {
        for of in [1, 2, 4, 16] {
            let mut seen = vec![false; 65_536];
            for index in 0..of {
                let mut idents = Identifications::new(&Keys::new([1, 2]), index, of);
                for _ in 0..65_536 / u32::from(of) / 8 {
                    let sequence = idents.take(A, UDP, 8);
                    for i in 0..8 {
                        let ident = usize::from(sequence.nth(i));
                        assert!(!core::mem::replace(&mut seen[ident], true), "{ident}");
                    }
                }
            }
            assert!(seen.iter().all(|seen| *seen));
        }
    }

    #[test]
    fn no_wide_identification_comes_twice() {
        let mut idents = identifications(3);
        let all = (0..20_000).flat_map(|_| {
            let sequence = idents.take(A, UDP, 10);
            (0..10).map(move |i| sequence.nth_wide(i))
        });
        let mut all: Vec<_> = all.collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 200_000);
    }

    #[test]
    fn what_one_destination_gets_does_not_show_how_many_others_got() {
        // Packets go to all destinations, so some share a counter with the observer's.
        let gaps = |others: u16| {
            let mut idents = identifications(9);
            let mut before = 0;
            let each = (0..2000).map(|_| {
                (0..300).for_each(|to| idents.take(host(to), UDP, others).skip(0));
                let ident = idents.take(A, UDP, 1).nth(0);
                core::mem::replace(&mut before, ident).abs_diff(ident)
            });
            let mut gaps: Vec<_> = each.collect();
            gaps.sort_unstable();
            gaps[1000]
        };
        // The median difference of two random numbers is 65,536 * (1 - 1 / sqrt(2)) = 19,195.
        for others in [0, 1, 7] {
            let median = gaps(others);
            assert!((17_000..21_500).contains(&median), "{others}: {median}");
        }
    }

    #[test]
    fn the_first_identifications_are_others_for_every_secret_and_destination() {
        let first = |secret, to| identifications(secret).take(host(to), UDP, 1).nth(0);
        let mut of_secrets: Vec<_> = (0..1000).map(|secret| first(secret, 1)).collect();
        let mut of_hosts: Vec<_> = (0..1000).map(|to| first(1, to)).collect();
        for numbers in [&mut of_secrets, &mut of_hosts] {
            numbers.sort_unstable();
            numbers.dedup();
            // Among 1,000 random numbers, 8 repetitions are expected.
            assert!(numbers.len() > 970, "{}", numbers.len());
        }
    }
}
