//! What routers said of the path to a destination, be it about datagrams or connections, for
//! datagrams of IPv6 (RFC 8201). Connections know for themselves.

use std::collections::{HashMap, VecDeque};

use crate::packet::IPV6_MIN_MTU;
use crate::packet::flow::Address;
use crate::time::{Duration, Instant};

/// Destinations that are remembered. Anybody can forge such a message, and names the destination.
const MAX_PATHS: usize = 256;
/// How long, before a larger packet is tried (RFC 8201 section 4).
const LIFETIME: Duration = Duration::from_secs(600);

/// Packets that are remembered, and for how long, since a router may say of them that they were too
/// big: those that no socket and no connection knows of.
const MAX_SENT: usize = 64;
const SENT_LATELY: Duration = Duration::from_secs(10);

/// Path MTUs that are less than that of the link.
#[derive(Debug, Default)]
pub(crate) struct PathMtus {
    paths: HashMap<Address, (u16, Instant)>,
    /// Destination and bytes of packets, oldest first.
    sent: VecDeque<(Address, u16, Instant)>,
}

impl PathMtus {
    /// Bytes of a packet to `destination`, as far as routers said.
    pub(crate) fn get(&self, destination: Address) -> u16 {
        let known = self.paths.get(&destination);
        known.map_or(u16::MAX, |(mtu, _)| *mtu)
    }

    /// When the next is forgotten.
    pub(crate) fn next_deadline(&self) -> Instant {
        let ends = self.paths.values().map(|(_, until)| *until);
        ends.min().unwrap_or(Instant::NEVER)
    }

    /// A packet of `len` bytes leaves for `destination`, and nothing else remembers it.
    pub(crate) fn sent(&mut self, destination: Address, len: usize, now: Instant) {
        let len = u16::try_from(len).unwrap_or(u16::MAX);
        if len <= IPV6_MIN_MTU {
            return;
        }
        let is = |(to, known, _): &(Address, u16, Instant)| (*to, *known) == (destination, len);
        if let Some(at) = self.sent.iter().position(is) {
            self.sent.remove(at);
        } else if self.sent.len() == MAX_SENT {
            self.sent.pop_front();
        }
        self.sent.push_back((destination, len, now));
    }

    /// Whether such a packet has left lately.
    pub(crate) fn has_sent(&self, destination: Address, len: u16, now: Instant) -> bool {
        self.sent
            .iter()
            .any(|(to, known, at)| (*to, *known) == (destination, len) && now < *at + SENT_LATELY)
    }

    /// A router says that a packet to `destination` was larger than `mtu` bytes. What is less than
    /// every link carries is ignored. Returns whether less is known to pass than before.
    pub(crate) fn too_big(&mut self, destination: Address, mtu: u16, now: Instant) -> bool {
        self.expire(now);
        if mtu < IPV6_MIN_MTU {
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
        // A larger one is not believed before the smaller one is forgotten.
        let (known, until) = self.paths.entry(destination).or_insert((u16::MAX, now));
        let is_less = mtu < *known;
        if is_less {
            (*known, *until) = (mtu, now + LIFETIME);
        }
        is_less
    }

    /// Forgets what is too old.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.paths.retain(|_, (_, until)| *until > now);
    }
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
        for _ in 0..1000 {
            paths.sent(FAR, 1500, Instant::ZERO);
        }
        assert_eq!(paths.sent.len(), 1);
        assert!(paths.has_sent(FAR, 1500, Instant::from_millis(9_999)));
        assert!(!paths.has_sent(FAR, 1500, Instant::from_millis(10_000)));
        assert!(!paths.has_sent(FAR, 1499, Instant::ZERO));
        for len in 0..2 * MAX_SENT {
            paths.sent(FAR, 1300 + len, Instant::ZERO);
            assert!(paths.sent.len() <= MAX_SENT);
        }
        assert!(!paths.has_sent(FAR, 1500, Instant::ZERO));
    }

    #[test]
    fn nothing_below_the_least_mtu_is_believed() {
        let mut paths = PathMtus::default();
        paths.too_big(FAR, 1279, Instant::ZERO);
        assert_eq!(paths.get(FAR), u16::MAX);
        paths.too_big(FAR, 1280, Instant::ZERO);
        assert_eq!(paths.get(FAR), 1280);
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
