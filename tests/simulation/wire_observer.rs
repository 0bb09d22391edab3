//! What can be seen on the wires.

use std::collections::HashMap;

/// One direction of a flow.
#[derive(Debug, Default)]
struct Way {
    /// The number after the newest byte.
    newest: u32,
    /// Whether the newest window was zero.
    closed: bool,
}

/// Counts what is worth a look, of all flows between two hosts.
#[derive(Debug, Default)]
pub(super) struct WireObserver {
    pub(super) retransmissions: u64,
    pub(super) zero_windows: u64,
    pub(super) window_probes: u64,
    /// By sender, its port, and the other's.
    ways: HashMap<(usize, u16, u16), Way>,
}

impl WireObserver {
    /// A frame leaves host `from`, 0 or 1.
    pub(super) fn see(&mut self, from: usize, frame: &[u8]) {
        let Some(tcp) = frame
            .get(34..)
            .filter(|tcp| tcp.len() >= 20 && frame[23] == 6)
        else {
            return;
        };
        let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        let (source, destination) = (port(0), port(2));
        let seq = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        let (flags, len) = (tcp[13], (tcp.len() - usize::from(tcp[12] >> 4) * 4) as u32);
        if flags & 0x04 != 0 {
            return;
        }
        let back = self.ways.get(&(1 - from, destination, source));
        let shut = back.is_some_and(|way| way.closed);
        let way = self.ways.entry((from, source, destination)).or_default();
        let closed = port(14) == 0 && flags & 0x02 == 0;
        self.zero_windows += u64::from(closed && !way.closed);
        way.closed = closed;
        if flags & 0x02 != 0 {
            way.newest = seq.wrapping_add(1);
        } else if len > 0 {
            let end = seq.wrapping_add(len);
            self.window_probes += u64::from(len == 1 && shut);
            if (end.wrapping_sub(way.newest) as i32) > 0 {
                way.newest = end;
            } else {
                self.retransmissions += 1;
            }
        }
    }
}
