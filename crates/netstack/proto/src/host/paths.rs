//! What passes the path to a destination (RFC 1191, RFC 8201), of packets that are no segments.

use crate::host::IpHost;
use crate::log::request::Lengths;
use crate::packet as wire;
use crate::packet::flow::Address;
use crate::time::Instant;

impl IpHost {
    /// Maximum bytes of a packet to `remote` that is no segment.
    pub fn path_mtu(&self, remote: Address) -> u16 {
        match remote.is_v4() {
            true => self.mtu.min(self.site.mtu.unwrap_or(u16::MAX)),
            false => self.segment_mtu(remote),
        }
    }

    /// Maximum bytes of a packet to `remote` that no router may fragment.
    pub fn segment_mtu(&self, remote: Address) -> u16 {
        let link = match remote.is_v4() {
            true => self.site.mtu,
            false => self.site.v6.mtu,
        };
        let mtu = self.paths.get(remote).min(self.mtu);
        mtu.min(link.unwrap_or(u16::MAX))
    }

    /// Remembers a packet that leaves. `frame`: the bytes of its longest frame.
    pub fn remember_sent(&mut self, now: Instant, remote: Address, frame: Option<usize>) {
        if !remote.is_v4() {
            let len = frame.unwrap_or(0).saturating_sub(wire::ETHERNET_HEADER);
            self.paths.sent(remote, len, now);
        }
    }

    /// Remembers datagrams that leave, one in each packet.
    pub fn remember_datagrams(&mut self, now: Instant, remote: Address, lengths: &Lengths) {
        if remote.is_v4() {
            return;
        }
        let mut sent = |payload: u16| {
            let frame = wire::ipv6::IPV6_HEADERS + wire::UDP_HEADER + usize::from(payload);
            self.paths.sent(remote, frame - wire::ETHERNET_HEADER, now);
        };
        match lengths {
            Lengths::Each(each) => each.iter().for_each(|len| sent(*len)),
            Lengths::Merged(merged) => {
                sent(merged.size);
                sent(merged.split().1);
            }
        }
    }
}
