//! Path MTUs that routers reported, for datagrams and connections (RFC 1191, RFC 8201).

use std::collections::HashMap;

use crate::hash::mix;
use crate::packet::IPV6_MIN_MTU;
use crate::packet::flow::Address;
use crate::time::{Duration, Instant};

/// Maximum number of destinations. Anyone can forge such a report, and choose its destination.
const MAX_PATHS: usize = 256;
/// How long until a larger packet is tried (RFC 8201 section 4).
const LIFETIME: Duration = Duration::from_secs(600);

/// Minimum path MTU of IPv4: the smallest plateau of RFC 1191 section 7 above 68 bytes (RFC 791).
pub const LEAST_V4: u16 = 296;

/// The cache of sent packets that belong to no connection, because a router may report them as
/// too big: the number of entries, a power of two, and their lifetime. A packet replaces
/// another one with the same hash, so that each costs equally much.
const MAX_SENT: usize = 4096;
const SENT_LATELY: Duration = Duration::from_secs(10);

/// Path MTUs below the MTU of the link.
#[derive(Debug, Default)]
pub struct PathMtus {
    paths: HashMap<Address, (u16, Instant)>,
    /// Destination and length in bytes of packets, by hash; empty until the first.
    sent: Box<[Option<(Address, u16, Instant)>]>,
}

impl PathMtus {
    /// Maximum bytes of a packet to `destination`, as far as routers reported.
    pub fn get(&self, destination: Address) -> u16 {
        let known = self.paths.get(&destination);
        known.map_or(u16::MAX, |(mtu, _)| *mtu)
    }

    /// When the next path MTU expires.
    pub fn next_deadline(&self) -> Instant {
        let ends = self.paths.values().map(|(_, until)| *until);
        ends.min().unwrap_or(Instant::NEVER)
    }

    /// A packet of `len` bytes that no connection sent leaves for `destination`.
    pub fn sent(&mut self, destination: Address, len: usize, now: Instant) {
        let len = u16::try_from(len).unwrap_or(u16::MAX);
        if len <= IPV6_MIN_MTU {
            return;
        }
        if self.sent.is_empty() {
            self.sent = vec![None; MAX_SENT].into();
        }
        self.sent[place(destination, len)] = Some((destination, len, now));
    }

    /// Whether such a packet has left within the last ten seconds.
    pub fn has_sent(&self, destination: Address, len: u16, now: Instant) -> bool {
        let sent = self.sent.get(place(destination, len)).copied().flatten();
        sent.is_some_and(|(to, known, at)| {
            (to, known) == (destination, len) && now < at + SENT_LATELY
        })
    }

    /// A router reports that a packet to `destination` exceeds `mtu` bytes. A value below the
    /// minimum MTU is ignored. Returns whether the known path MTU has fallen.
    pub fn too_big(&mut self, destination: Address, mtu: u16, now: Instant) -> bool {
        self.expire(now);
        let least = match destination.is_v4() {
            true => LEAST_V4,
            false => IPV6_MIN_MTU,
        };
        if mtu < least {
            return false;
        }
        if self.paths.len() >= MAX_PATHS && !self.paths.contains_key(&destination) {
            let oldest = self
                .paths
                .iter()
                .map(|(to, (_, until))| (*until, *to))
                .min();
            if let Some((_, oldest)) = oldest {
                self.paths.remove(&oldest);
            }
        }
        // A larger value does not count before the smaller one expires.
        let (known, until) = self.paths.entry(destination).or_insert((u16::MAX, now));
        let is_less = mtu < *known;
        if is_less {
            (*known, *until) = (mtu, now + LIFETIME);
        }
        is_less
    }

    /// Removes expired path MTUs.
    pub fn expire(&mut self, now: Instant) {
        self.paths.retain(|_, (_, until)| *until > now);
    }
}

/// The index of a packet in the cache.
fn place(destination: Address, len: u16) -> usize {
    let [high, low] = destination.words();
    mix(mix(high) ^ low ^ u64::from(len)) as usize & (MAX_SENT - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAR: Address = Address::of_words([0x2001_0db8_0000_0000, 1]);

    #[test]
    fn the_smallest_size_holds_for_ten_minutes() {
        let mut paths = PathMtus::default();
        assert_eq!(paths.get(FAR), u16::MAX);
        paths.too_big(FAR, 1400, Instant::ZERO);
        paths.too_big(FAR, 1450, Instant::from_millis(1));
        assert_eq!(paths.get(FAR), 1400);
        paths.expire(Instant::from_millis(599_999));
        assert_eq!(paths.get(FAR), 1400);
        paths.expire(Instant::from_millis(600_000));
        assert_eq!(paths.get(FAR), u16::MAX);
    }

    #[test]
    fn a_packet_is_remembered_for_ten_seconds_among_few() {
        let mut paths = PathMtus::default();
        paths.sent(FAR, 1280, Instant::ZERO);
        assert!(!paths.has_sent(FAR, 1280, Instant::ZERO));
        assert!(paths.sent.is_empty());
        paths.sent(FAR, 1500, Instant::ZERO);
        assert!(paths.has_sent(FAR, 1500, Instant::from_millis(9_999)));
        assert!(!paths.has_sent(FAR, 1500, Instant::from_millis(10_000)));
        assert!(!paths.has_sent(FAR, 1499, Instant::ZERO));
        // Packets to a thousand destinations displace few of each other.
        let host = |i: usize| Address::of_words([0x2001_0db8_0000_0001, i as u64]);
        (0..1000).for_each(|i| paths.sent(host(i), 1400, Instant::ZERO));
        let known = (0..1000).filter(|i| paths.has_sent(host(*i), 1400, Instant::ZERO));
        assert!(known.count() > 800);
        (0..8 * MAX_SENT).for_each(|len| paths.sent(FAR, 1281 + len, Instant::ZERO));
        assert_eq!(paths.sent.len(), MAX_SENT);
    }

    #[test]
    fn nothing_below_the_least_mtu_is_believed() {
        let mut paths = PathMtus::default();
        paths.too_big(FAR, 1279, Instant::ZERO);
        assert_eq!(paths.get(FAR), u16::MAX);
        paths.too_big(FAR, 1280, Instant::ZERO);
        assert_eq!(paths.get(FAR), 1280);
        let near = Address::ipv4(10, 0, 0, 2);
        assert!(!paths.too_big(near, LEAST_V4 - 1, Instant::ZERO));
        assert!(paths.too_big(near, LEAST_V4, Instant::ZERO));
    }

    #[test]
    fn what_is_remembered_is_bounded_and_the_oldest_goes_first() {
        let mut paths = PathMtus::default();
        for i in 0..2 * MAX_PATHS as u64 {
            let to = Address::of_words([1 << 61, i]);
            paths.too_big(to, 1300, Instant::from_millis(i));
            assert!(paths.paths.len() <= MAX_PATHS);
            assert_eq!(paths.get(to), 1300);
        }
        assert_eq!(paths.get(Address::of_words([1 << 61, 0])), u16::MAX);
    }
}
