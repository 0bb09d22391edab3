//! Observes the frames on the wires.

use std::collections::HashMap;

use dominoes_testkit::packet::{Family, Header, RST, SYN};

/// One direction of a flow.
#[derive(Debug, Default)]
struct Way {
    /// The sequence number after the newest byte.
    newest: u32,
    /// Whether the newest window was zero.
    closed: bool,
}

/// Counts notable segments of all flows between two hosts.
#[derive(Debug, Default)]
pub(super) struct WireObserver {
    /// Segments in IPv6 packets.
    pub(super) over_ipv6: u64,
    pub(super) retransmissions: u64,
    pub(super) zero_windows: u64,
    pub(super) window_probes: u64,
    /// By sender, its port, and the other's port.
    ways: HashMap<(usize, u16, u16), Way>,
}

impl WireObserver {
    /// Host `from` (0 or 1) sends a frame.
    pub(super) fn see(&mut self, from: usize, frame: &[u8]) {
        let tcp = Header::read(frame).or_else(|| {
            let tcp = Header::read(&Family::V6.read(frame)?)?;
            self.over_ipv6 += 1;
            Some(tcp)
        });
        let Some(tcp) = tcp.filter(|tcp| !tcp.has(RST)) else {
            return;
        };
        let (source, destination, len) = (tcp.src_port, tcp.dst_port, tcp.payload_len());
        let back = self.ways.get(&(1 - from, destination, source));
        let shut = back.is_some_and(|way| way.closed);
        let way = self.ways.entry((from, source, destination)).or_default();
        let closed = tcp.wnd == 0 && !tcp.has(SYN);
        self.zero_windows += u64::from(closed && !way.closed);
        way.closed = closed;
        if tcp.has(SYN) {
            way.newest = tcp.seq.wrapping_add(1);
        } else if len > 0 {
            let end = tcp.seq.wrapping_add(len);
            self.window_probes += u64::from(len == 1 && shut);
            if (end.wrapping_sub(way.newest) as i32) > 0 {
                way.newest = end;
            } else {
                self.retransmissions += 1;
            }
        }
    }
}
