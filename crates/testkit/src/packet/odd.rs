//! Frames that peers, neighbours and routers may send, but rarely do.

use core::net::Ipv6Addr;

use super::v6::{self, ICMPV6, Packet, group_mac};
use super::{Address, ETHERNET, ICMP, LOWER, Mac, Path, icmp_error, ip, mac_of, v6_of};

/// Options of illegal length, which end the options of a segment (RFC 9293 section 3.1, MUST-7).
pub const ILLEGAL_OPTIONS: [&[u8]; 4] = [&[0xfd, 0], &[3, 1], &[8, 40, 1], &[2]];
/// The address of the router that sends messages here. No host has it.
pub const ROUTER: Address = [10, 0, 0, 254];
/// Its link-local address.
pub const ROUTER_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 254);
/// The number of the fragment header (RFC 8200 section 4.5).
const FRAGMENT: u8 = 44;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Adds a tag to a frame (IEEE 802.1Q): its priority, 0 to 7, and its VLAN; 0 means none.
pub fn tag(frame: &mut Vec<u8>, priority: u8, vlan: u16) {
    if frame.len() >= ETHERNET {
        let [high, low] = (u16::from(priority) << 13 | vlan & 0xfff).to_be_bytes();
        frame.splice(12..12, [0x81, 0, high, low]);
    }
}

/// Adds a fragment header to a whole packet of IPv6 (RFC 6946). Returns false for other frames.
pub fn make_atomic(frame: &mut Vec<u8>) -> bool {
    if frame.len() < v6::LOWER || frame[12..14] != [0x86, 0xdd] {
        return false;
    }
    let len = u16::from_be_bytes([frame[18], frame[19]]).wrapping_add(8);
    frame[18..20].copy_from_slice(&len.to_be_bytes());
    let next = core::mem::replace(&mut frame[20], FRAGMENT);
    frame.splice(v6::LOWER..v6::LOWER, [next, 0, 0, 0, 0, 0, 0, 1]);
    true
}

/// The router's error to the sender of `frame`, whose packet is longer than `mtu` bytes (RFC 1191
/// section 4, RFC 4443 section 3.2). `None` if the frame holds no packet.
pub fn too_big(frame: &[u8], mtu: u16) -> Option<Vec<u8>> {
    if let Some(packet) = Packet::read(frame) {
        let mut message = vec![2, 0, 0, 0];
        message.extend(u32::from(mtu).to_be_bytes());
        message.extend(&frame[ETHERNET..frame.len().min(ETHERNET + 1232)]);
        let path = from_router(v6_of(ROUTER), &packet);
        return Some(v6::frame(path, ICMPV6, &message));
    }
    let quoted = frame.get(ETHERNET..LOWER + 8)?;
    if frame[12..14] != [8, 0] {
        return None;
    }
    let mut to: Address = [0; 4];
    to.copy_from_slice(&frame[26..30]);
    let mut to_mac: Mac = [0; 6];
    to_mac.copy_from_slice(&frame[6..12]);
    let path = Path::new(ROUTER, to).to_mac(to_mac);
    Some(ip(path, ICMP, &icmp_error([3, 4], mtu, quoted)))
}

/// The router's redirect to the sender of `frame`, a packet of IPv6: the destination is a neighbour
/// (RFC 4861 section 8.2).
pub fn redirect(frame: &[u8]) -> Option<Vec<u8>> {
    let packet = Packet::read(frame)?;
    let mut message = vec![137, 0, 0, 0, 0, 0, 0, 0];
    message.extend(packet.path.to.octets());
    message.extend(packet.path.to.octets());
    message.extend([2, 1]);
    message.extend(packet.path.to_mac);
    Some(v6::frame(from_router(ROUTER_V6, &packet), ICMPV6, &message))
}

const fn from_router(from: Ipv6Addr, about: &Packet<'_>) -> v6::Path {
    v6::Path {
        from_mac: mac_of(ROUTER),
        to_mac: about.path.from_mac,
        from,
        to: about.path.from,
        hop_limit: 255,
    }
}

/// The contents of a router advertisement (RFC 4861 section 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advertisement {
    /// The hop limit of packets; 0: unspecified.
    pub hop_limit: u8,
    /// For how many seconds it forwards packets.
    pub lifetime: u16,
    /// Milliseconds for which a neighbour counts as reachable; 0: unspecified.
    pub reachable: u32,
    /// The link's MTU in bytes.
    pub mtu: u32,
    /// It names the prefix 2001:db8:`prefix`::/64 as on the link.
    pub prefix: u16,
}

impl Advertisement {
    /// The router's frame to all nodes of the link.
    pub fn frame(&self) -> Vec<u8> {
        let mut message = vec![134, 0, 0, 0, self.hop_limit, 0];
        message.extend(self.lifetime.to_be_bytes());
        message.extend(self.reachable.to_be_bytes());
        message.extend([0; 4]);
        message.extend([1, 1]);
        message.extend(mac_of(ROUTER));
        message.extend([5, 1, 0, 0]);
        message.extend(self.mtu.to_be_bytes());
        message.extend([
            3, 4, 64, 0x80, 0, 0, 0x0e, 0x10, 0, 0, 0x0e, 0x10, 0, 0, 0, 0,
        ]);
        message.extend(Ipv6Addr::new(0x2001, 0xdb8, self.prefix, 0, 0, 0, 0, 0).octets());
        let path = v6::Path {
            from_mac: mac_of(ROUTER),
            to_mac: group_mac(ALL_NODES),
            from: ROUTER_V6,
            to: ALL_NODES,
            hop_limit: 255,
        };
        v6::frame(path, ICMPV6, &message)
    }
}

/// Replaces the sender's Ethernet address by `mac` wherever the frame names it.
pub fn move_sender(frame: &mut Vec<u8>, mac: Mac) {
    if frame.len() < ETHERNET {
        return;
    }
    frame[6..12].copy_from_slice(&mac);
    if frame[12..14] == [8, 6] && frame.len() >= 28 {
        frame[22..28].copy_from_slice(&mac);
    }
    let Some(packet) = Packet::read(frame) else {
        return;
    };
    if packet.next != ICMPV6 || !matches!(packet.payload, [135 | 136, ..]) {
        return;
    }
    let mut message = packet.payload.to_vec();
    // In both, the options follow the target.
    let mut options = message.get_mut(24..).unwrap_or_default();
    while let [kind, len, rest @ ..] = options {
        let len = (8 * usize::from(*len)).saturating_sub(2);
        if matches!(kind, 1 | 2) && len == mac.len() && rest.len() >= len {
            rest[..len].copy_from_slice(&mac);
        }
        options = rest.get_mut(len..).unwrap_or_default();
    }
    let path = packet.path;
    *frame = v6::frame(path, ICMPV6, &message);
}
