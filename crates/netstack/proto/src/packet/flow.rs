//! Addresses: link-layer, IP, and endpoints of connections.

use core::fmt;
use core::hash::{Hash, Hasher};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

/// An IPv4 or IPv6 address in 128 bits.
///
/// An IPv4 address is stored as its IPv4-mapped address (RFC 4291 section 2.5.5.2). No IPv6
/// packet may carry such an address, so the two families cannot be confused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Address([u8; 16]);

impl Address {
    /// The IPv4 address 0.0.0.0.
    pub const UNSPECIFIED: Address = Address::v4(0);

    /// The IPv4 address with these bits, the first byte the highest.
    #[inline(always)]
    pub const fn v4(bits: u32) -> Self {
        let bytes = (0xffff << 32 | bits as u128).to_be_bytes();
        Address(bytes)
    }

    /// The IPv4 address of these bytes.
    #[inline(always)]
    pub const fn ipv4(a: u8, b: u8, c: u8, d: u8) -> Self {
        Address::v4(u32::from_be_bytes([a, b, c, d]))
    }

    /// The IPv6 address of these bytes.
    #[inline(always)]
    pub const fn v6(bytes: [u8; 16]) -> Self {
        Address(bytes)
    }

    /// Whether it is an IPv4 address.
    #[inline(always)]
    pub const fn is_v4(self) -> bool {
        u128::from_be_bytes(self.0) >> 32 == 0xffff
    }

    /// The bits of an IPv4 address, the first byte the highest; the last 32 bits of an IPv6
    /// address.
    #[inline(always)]
    pub const fn v4_bits(self) -> u32 {
        u128::from_be_bytes(self.0) as u32
    }

    /// All 128 bits, the first byte the highest.
    #[inline(always)]
    pub const fn bits(self) -> u128 {
        u128::from_be_bytes(self.0)
    }

    /// All 128 bits as two numbers.
    #[inline(always)]
    pub const fn words(self) -> [u64; 2] {
        let bits = self.bits();
        [(bits >> 64) as u64, bits as u64]
    }

    /// The address with these [`Address::words`].
    #[inline]
    pub const fn of_words([high, low]: [u64; 2]) -> Self {
        Address(((high as u128) << 64 | low as u128).to_be_bytes())
    }

    /// The bytes of an IPv6 address, or of the IPv4-mapped address.
    #[inline(always)]
    pub const fn bytes(self) -> [u8; 16] {
        self.0
    }

    /// The type of the standard library.
    #[inline]
    pub const fn ip(self) -> IpAddr {
        if self.is_v4() {
            IpAddr::V4(Ipv4Addr::from_bits(self.v4_bits()))
        } else {
            IpAddr::V6(self.to_v6())
        }
    }

    /// The IPv4 address, if it is one.
    #[inline]
    pub const fn to_v4(self) -> Option<Ipv4Addr> {
        if self.is_v4() {
            Some(Ipv4Addr::from_bits(self.v4_bits()))
        } else {
            None
        }
    }

    /// The IPv6 address, or the IPv4-mapped one.
    #[inline]
    pub const fn to_v6(self) -> Ipv6Addr {
        Ipv6Addr::from_octets(self.0)
    }

    /// Whether it is 0.0.0.0 or `::`.
    pub const fn is_unspecified(self) -> bool {
        matches!(self.bits(), 0 | 0xffff_0000_0000)
    }

    /// Whether it is an IPv6 address that is valid only on its link (RFC 4291 section 2.5.6).
    pub const fn is_link_local(self) -> bool {
        self.words()[0] >> 54 == 0xfe80 >> 6
    }

    /// Whether it names a group of hosts (RFC 1112 section 4, RFC 4291 section 2.7).
    pub const fn is_multicast(self) -> bool {
        if self.is_v4() {
            self.v4_bits() >> 28 == 0xe
        } else {
            self.0[0] == 0xff
        }
    }
}

impl Default for Address {
    fn default() -> Self {
        Address::UNSPECIFIED
    }
}

impl Hash for Address {
    #[inline]
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        if self.is_v4() {
            hasher.write_u32(self.v4_bits());
        } else {
            for word in self.words() {
                hasher.write_u64(word);
            }
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.ip(), f)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.ip(), f)
    }
}

impl From<Ipv4Addr> for Address {
    #[inline(always)]
    fn from(address: Ipv4Addr) -> Self {
        Address::v4(address.to_bits())
    }
}

impl From<Ipv6Addr> for Address {
    #[inline(always)]
    fn from(address: Ipv6Addr) -> Self {
        Address(address.octets())
    }
}

impl From<IpAddr> for Address {
    #[inline]
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => address.into(),
        }
    }
}

impl From<Address> for IpAddr {
    #[inline]
    fn from(address: Address) -> Self {
        address.ip()
    }
}

impl From<[u8; 4]> for Address {
    fn from(bytes: [u8; 4]) -> Self {
        Address::v4(u32::from_be_bytes(bytes))
    }
}

impl PartialEq<IpAddr> for Address {
    fn eq(&self, other: &IpAddr) -> bool {
        *self == Address::from(*other)
    }
}

/// An address and a port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Endpoint {
    /// The host.
    pub address: Address,
    /// The port.
    pub port: u16,
}

impl Endpoint {
    /// Combines a host and a port.
    #[inline(always)]
    pub const fn new(address: Address, port: u16) -> Self {
        Endpoint { address, port }
    }

    /// The host, as the type of the standard library.
    #[inline]
    pub const fn ip(self) -> IpAddr {
        self.address.ip()
    }

    /// The type of the standard library. A stack has one link, so the scope is 0.
    #[inline]
    pub const fn socket_addr(self) -> SocketAddr {
        SocketAddr::new(self.ip(), self.port)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.socket_addr(), f)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.socket_addr(), f)
    }
}

impl From<SocketAddr> for Endpoint {
    #[inline]
    fn from(end: SocketAddr) -> Self {
        Endpoint::new(end.ip().into(), end.port())
    }
}

impl From<SocketAddrV4> for Endpoint {
    #[inline]
    fn from(end: SocketAddrV4) -> Self {
        Endpoint::new((*end.ip()).into(), end.port())
    }
}

impl From<Endpoint> for SocketAddr {
    #[inline]
    fn from(end: Endpoint) -> Self {
        end.socket_addr()
    }
}

impl PartialEq<SocketAddr> for Endpoint {
    fn eq(&self, other: &SocketAddr) -> bool {
        *self == Endpoint::from(*other)
    }
}

/// The IP header fields of a connection's segments that a user may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct IpFields {
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// DSCP in the upper six bits (RFC 2474), the others 0.
    pub tos: u8,
}

impl IpFields {
    /// The default: 64 hops (RFC 1700), no DSCP.
    pub const DEFAULT: IpFields = IpFields { ttl: 64, tos: 0 };
}

/// The two ends of a connection, ours first. Both are of one family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Flow {
    /// Our address and port.
    pub local: Endpoint,
    /// The peer's address and port.
    pub remote: Endpoint,
}

impl Flow {
    /// Both ports, the peer's in the upper half.
    #[inline(always)]
    pub const fn ports(&self) -> u32 {
        (self.remote.port as u32) << 16 | self.local.port as u32
    }
}

impl Hash for Flow {
    /// Writes three words of 32 bits for an IPv4 flow, and nine for an IPv6 flow.
    #[inline]
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.remote.address.hash(hasher);
        self.local.address.hash(hasher);
        hasher.write_u32(self.ports());
    }
}

/// The address families whose peers may use a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[non_exhaustive]
pub enum Families {
    /// IPv4 and IPv6.
    #[default]
    Both,
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Families {
    /// Whether the family of `address` is included.
    pub const fn include(self, address: Address) -> bool {
        match self {
            Families::Both => true,
            Families::V4 => address.is_v4(),
            Families::V6 => !address.is_v4(),
        }
    }

    /// The families of a socket that is bound to `address`: an IPv4 address (0.0.0.0 too)
    /// accepts IPv4, `::` accepts both, as on Linux, and any other IPv6 address accepts IPv6.
    pub const fn bound_to(address: Address) -> Self {
        match (address.is_v4(), address.is_unspecified()) {
            (true, _) => Families::V4,
            (false, true) => Families::Both,
            (false, false) => Families::V6,
        }
    }
}

/// The binding of a listener or a UDP socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Binding {
    /// The families of its peers.
    pub families: Families,
    /// The only local address that it accepts; `None`: all of them.
    pub address: Option<Address>,
}

impl Binding {
    /// Whether it accepts packets that are sent to `local`.
    #[inline]
    pub fn takes(&self, local: Address) -> bool {
        self.families.include(local) && self.address.is_none_or(|only| only == local)
    }

    /// Whether some local address is accepted by both.
    pub fn overlaps(&self, other: &Binding) -> bool {
        let both = [self.families, other.families];
        let share = both[0] == both[1] || both.contains(&Families::Both);
        let same = match (self.address, other.address) {
            (Some(one), Some(another)) => one == another,
            (Some(one), None) => other.takes(one),
            (None, Some(one)) => self.takes(one),
            (None, None) => true,
        };
        share && same
    }
}

impl From<Families> for Binding {
    fn from(families: Families) -> Self {
        Binding {
            families,
            address: None,
        }
    }
}

/// An Ethernet address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Mac(pub [u8; 6]);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bindings_overlap_where_something_could_be_for_both() {
        let at = |address: IpAddr| Binding {
            families: Families::bound_to(address.into()),
            address: Some(address.into()),
        };
        let four = [1, 2].map(|last| at([10, 0, 0, last].into()));
        let six = [1, 2].map(|last| at(Ipv6Addr::from(last).into()));
        let all = [Families::Both, Families::V4, Families::V6].map(Binding::from);
        let bindings = [all.as_slice(), &four, &six].concat();
        // For each binding, the ones that overlap it.
        let overlapping = [
            vec![0, 1, 2, 3, 4, 5, 6],
            vec![0, 1, 3, 4],
            vec![0, 2, 5, 6],
            vec![0, 1, 3],
            vec![0, 1, 4],
            vec![0, 2, 5],
            vec![0, 2, 6],
        ];
        for (one, expected) in bindings.iter().zip(overlapping) {
            let found = (0..).zip(&bindings);
            let found = found.filter(|(_, other)| one.overlaps(other));
            let found: Vec<usize> = found.map(|(at, _)| at).collect();
            assert_eq!(found, expected, "{one:?}");
        }
    }

    proptest! {
        #[test]
        fn both_families_come_back_as_they_went_in(four in any::<u32>(), six in any::<u128>()) {
            let four = Ipv4Addr::from_bits(four);
            let address = Address::from(four);
            prop_assert!(address.is_v4());
            prop_assert_eq!(address.ip(), IpAddr::V4(four));
            prop_assert_eq!(address.to_v6(), four.to_ipv6_mapped());
            prop_assert_eq!(address.is_multicast(), four.is_multicast());
            prop_assert_eq!(address.is_unspecified(), four.is_unspecified());
            let six = Ipv6Addr::from_bits(six);
            let address = Address::from(six);
            prop_assert_eq!(address.is_v4(), six.to_ipv4_mapped().is_some());
            prop_assert_eq!(address.to_v6(), six);
            prop_assert_eq!(address.is_multicast(), six.is_multicast());
        }
    }
}
