//! Keyed hashes: every number that leaves the stack and that an outsider must not predict is
//! derived here.
//!
//! A stack has one secret of 128 bits. It is used only as a key of SipHash-2-4 (J.-P. Aumasson,
//! D. J. Bernstein, *SipHash: a fast short-input PRF*, INDOCRYPT 2012), and the first word of
//! every input names the purpose of the output. So no output reveals a bit of the secret, and
//! an output of one [`KeyUse`] reveals nothing about those of another.

use core::hash::{BuildHasher, Hash, Hasher};

use siphasher::sip::{SipHasher13, SipHasher24};

use crate::packet::flow::{Address, Flow};

/// The purpose of a keyed hash: the first word of the input. Numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum KeyUse {
    /// Initial sequence numbers (RFC 6528 section 3).
    InitialSequenceNumber = 1,
    /// Offset of a connection's timestamps (RFC 7323 section 5.4).
    Timestamp = 2,
    /// Ports of active opens (RFC 6056).
    TcpPort = 3,
    /// Ports of UDP sockets (RFC 6056).
    UdpPort = 4,
    /// Identifications of IPv4 packets (RFC 6864, RFC 7739 section 5.3).
    Identification = 5,
    /// SYN cookies (RFC 4987 section 3.6).
    Cookie = 6,
    /// The rate limit of ICMP errors, and the destinations that share a bucket.
    ErrorLimit = 7,
    /// The rate limit of reports of packets that are too long.
    TooLongLimit = 19,
    /// The rate limit of resets.
    ResetLimit = 8,
    /// The rate limit of challenge acknowledgments.
    ChallengeLimit = 9,
    /// The group of a flow.
    Group = 10,
    /// The connection table. Only the time of a lookup is visible outside.
    Table = 12,
    /// Interface identifiers of IPv6 addresses (RFC 7217).
    InterfaceIdentifier = 16,
    /// Random delays of messages on a link (RFC 4861, RFC 4862).
    LinkDelay = 17,
    /// Flow labels (RFC 6437).
    FlowLabel = 18,
    /// Identifiers and delays of DHCP (RFC 2131 section 4.1).
    Dhcp = 20,
    /// Which calls of a connection panic in tests.
    #[cfg(feature = "testkit")]
    InjectedPanic = 13,
    /// A value for one destination, under a key derived for another domain.
    OneDestination = 14,
    /// A value for many destinations, under a key derived for another domain.
    AllDestinations = 15,
}

/// The secret of a stack. All replicas have the same one, so `apply` may depend on derived values.
#[derive(Clone, Copy, Default)]
pub struct Keys {
    secret: [u64; 2],
}

impl core::fmt::Debug for Keys {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Keys(..)")
    }
}

impl Keys {
    /// Keys that are derived from `secret`, which must be random and unknown to peers.
    pub const fn new(secret: [u64; 2]) -> Self {
        Keys { secret }
    }

    fn hasher(&self, domain: KeyUse) -> SipHasher24 {
        let mut hasher = SipHasher24::new_with_keys(self.secret[0], self.secret[1]);
        hasher.write_u64(domain as u64);
        hasher
    }

    /// A hash of a few numbers. Each `domain` always has the same `N`.
    pub fn of<const N: usize>(&self, domain: KeyUse, words: [u64; N]) -> u64 {
        let mut hasher = self.hasher(domain);
        for word in words {
            hasher.write_u64(word);
        }
        hasher.finish()
    }

    /// A hash of a host and a number.
    pub fn of_address(&self, domain: KeyUse, address: Address, number: u64) -> u64 {
        let mut hasher = self.hasher(domain);
        hasher.write_u64(number);
        if address.is_v4() {
            hasher.write_u64(u64::from(address.v4_bits()));
        } else {
            address.hash(&mut hasher);
        }
        hasher.finish()
    }

    /// A hash of a connection, and of a number if `domain` needs several hashes for each.
    pub fn of_flow(&self, domain: KeyUse, flow: &Flow, number: u64) -> u64 {
        let mut hasher = self.hasher(domain);
        hasher.write_u64(number);
        flow.hash(&mut hasher);
        hasher.finish()
    }

    /// A key for another hash.
    pub fn derive(&self, domain: KeyUse) -> [u64; 2] {
        [0, 1].map(|half| self.of(domain, [half]))
    }

    /// The hasher of the connection table: a faster one, because its outputs stay inside.
    pub fn table(&self) -> TableKey {
        TableKey(self.derive(KeyUse::Table))
    }
}

/// Keys of a hash table, so that an outsider cannot overload one bucket. Hashes with SipHash-1-3.
#[derive(Clone, Copy, Default)]
pub struct TableKey([u64; 2]);

impl core::fmt::Debug for TableKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("TableKey(..)")
    }
}

impl BuildHasher for TableKey {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0[0], self.0[1])
    }
}

/// Assigns flows to groups, if there are several. It has a separate key, because the chosen
/// ports reveal something about it.
#[derive(Clone, Copy, Debug)]
pub struct Grouping {
    key: [u64; 2],
    of: u16,
}

impl Grouping {
    /// Creates the assignment to `of` groups.
    pub fn new(keys: &Keys, of: u16) -> Self {
        Grouping {
            key: keys.derive(KeyUse::Group),
            of,
        }
    }

    /// The group of `flow`. Every frame needs it, so it is cheap and weaker than other hashes:
    /// an attacker able to predict it would only overload one group.
    #[inline]
    pub fn group(&self, flow: &Flow) -> u16 {
        let fold = |a: u64, b: u64| {
            let product = u128::from(a) * u128::from(b);
            product as u64 ^ (product >> 64) as u64
        };
        let remote = flow.remote.address;
        let word = u64::from(remote.v4_bits()) << 32 | u64::from(flow.ports());
        let mut mixed = fold(word ^ self.key[0], self.key[1] | 1);
        if !remote.is_v4() {
            let [high, low] = remote.words();
            mixed = fold(mixed ^ high, self.key[0] | 1);
            mixed = fold(mixed ^ low, self.key[1] | 1);
        }
        let mixed = fold(mixed ^ self.key[1], 0x9e37_79b9_7f4a_7c15);
        (((mixed >> 32) * u64::from(self.of)) >> 32) as u16
    }
}

/// The first ephemeral port (RFC 6056 section 3.2 asks for a wide range).
pub const EPHEMERAL: u16 = 32_768;

/// All ephemeral ports, beginning with one that `start` selects.
pub fn ephemeral_from(start: u16) -> impl Iterator<Item = u16> {
    const COUNT: u16 = u16::MAX - EPHEMERAL + 1;
    (0..COUNT).map(move |i| EPHEMERAL + start.wrapping_add(i) % COUNT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::flow::Endpoint;

    const FLOW: Flow = Flow {
        local: Endpoint::new(Address::ipv4(10, 0, 0, 1), 80),
        remote: Endpoint::new(Address::ipv4(10, 0, 0, 2), 4000),
    };

    /// All outputs for one flow and one number.
    fn outputs(secret: [u64; 2]) -> Vec<u64> {
        let keys = Keys::new(secret);
        let domains = [
            KeyUse::InitialSequenceNumber,
            KeyUse::Timestamp,
            KeyUse::TcpPort,
            KeyUse::UdpPort,
            KeyUse::Identification,
            KeyUse::Cookie,
            KeyUse::ErrorLimit,
            KeyUse::TooLongLimit,
            KeyUse::ResetLimit,
            KeyUse::ChallengeLimit,
            KeyUse::Group,
            KeyUse::Table,
            KeyUse::InterfaceIdentifier,
            KeyUse::LinkDelay,
            KeyUse::FlowLabel,
            #[cfg(feature = "testkit")]
            KeyUse::InjectedPanic,
            KeyUse::OneDestination,
            KeyUse::AllDestinations,
        ];
        let each = |domain| [keys.of_flow(domain, &FLOW, 0), keys.of(domain, [0])];
        domains.into_iter().flat_map(each).collect()
    }

    #[test]
    fn every_domain_has_outputs_of_its_own() {
        let mut outputs = outputs([1, 2]);
        let count = outputs.len();
        outputs.sort_unstable();
        outputs.dedup();
        assert_eq!(outputs.len(), count);
    }

    #[test]
    fn every_bit_of_the_secret_changes_about_half_of_every_output() {
        let base = outputs([7, 9]);
        let mut changed = vec![0; base.len()];
        for bit in 0..128 {
            let mut secret = [7, 9];
            secret[bit / 64] ^= 1 << (bit % 64);
            for (i, (a, b)) in base.iter().zip(outputs(secret)).enumerate() {
                changed[i] += (a ^ b).count_ones();
            }
        }
        // 128 * 64 bits were compared for each: 4096 expected, with a standard deviation of 45.
        assert!(
            changed.iter().all(|n| (3800..4400).contains(n)),
            "{changed:?}"
        );
    }

    #[test]
    fn nothing_prints_the_secret() {
        let keys = Keys::new([0x1234_5678, 0x9abc_def0]);
        assert_eq!(
            format!("{keys:?} {:?}", keys.table()),
            "Keys(..) TableKey(..)"
        );
    }
}
