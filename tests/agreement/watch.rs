//! Checks every frame of the stack as it leaves, before the wire can damage it.

use std::collections::BTreeMap;

use dominoes_testkit::packet::{ACK, RST, SYN, Segment};

use super::peer::FIRST_PORT;
use super::wire::Coverage;

/// The frames sent to one port of the far side.
#[derive(Clone, Debug, Default)]
struct Flow {
    /// Sequence number of each connection's SYN, and the stack's port, by the lowest frame number
    /// with that SYN: a late frame may belong to an earlier connection.
    syns: BTreeMap<u64, (u32, u16)>,
    /// The sequence number after the highest byte that left.
    left: Option<u32>,
    /// The right edge of the stack's window.
    edge: Option<u32>,
}

/// The frames sent to each port of the far side.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    flows: Vec<Flow>,
}

impl Watch {
    /// Adds a port of the far side, and returns its index.
    pub(crate) fn add(&mut self) -> usize {
        self.flows.push(Flow::default());
        self.flows.len() - 1
    }

    /// A new watch of the same ports.
    pub(crate) fn again(&self) -> Watch {
        Watch {
            flows: vec![Flow::default(); self.flows.len()],
        }
    }

    /// Checks frame `number` as it leaves. It is `late` if frames with higher numbers have left.
    /// Returns the initial sequence number of its connection.
    ///
    /// # Errors
    /// If no stack may send the frame.
    pub(crate) fn look(
        &mut self,
        bytes: &[u8],
        number: u64,
        late: bool,
        seen: &mut Coverage,
    ) -> Result<Option<u32>, String> {
        if bytes[12..14] == [0x08, 0x06] {
            return Ok(None);
        }
        let Some(seg) = Segment::sent(bytes) else {
            return Err(format!("a damaged frame left: {bytes:02x?}"));
        };
        let port = usize::from(seg.dst_port.wrapping_sub(FIRST_PORT));
        let Some(flow) = self.flows.get_mut(port) else {
            return Ok(None);
        };
        if seg.has(SYN) {
            flow.greet(number, (seg.seq, seg.src_port));
        }
        let Some((_, &(iss, stack_port))) = flow.syns.range(..=number).next_back() else {
            return Ok(None);
        };
        if seg.src_port != stack_port {
            return Ok(None);
        }
        if !seg.has(RST) && !late {
            let known = flow.edge;
            flow.note(&seg, seen);
            let back = known.zip(flow.edge);
            let back = back.map_or(0, |(known, edge)| known.wrapping_sub(edge) as i32);
            if back > 0 {
                return Err(format!(
                    "the right edge of the window for port {port} moved back by {back}: {seg:?}"
                ));
            }
        }
        Ok(Some(iss))
    }
}

impl Flow {
    /// Notes the SYN of frame `number`, which may be a retransmission.
    fn greet(&mut self, number: u64, syn: (u32, u16)) {
        if let Some((&known, _)) = self.syns.iter().find(|(_, known)| **known == syn) {
            if number < known {
                self.syns.remove(&known);
                self.syns.insert(number, syn);
            }
            return;
        }
        if self.syns.range(number..).next().is_none() {
            (self.left, self.edge) = (None, None);
        }
        self.syns.insert(number, syn);
    }

    fn note(&mut self, seg: &Segment, seen: &mut Coverage) {
        let len = seg.payload.len() as u32 + u32::from(seg.has(SYN));
        let end = seg.seq.wrapping_add(len);
        let is_new = self
            .left
            .is_none_or(|left| (end.wrapping_sub(left) as i32) > 0);
        if is_new {
            self.left = Some(end);
        } else {
            seen.retransmission |= len > 0;
        }
        if seg.has(ACK) {
            seen.our_window_closed |= seg.wnd == 0;
            // The receive buffer is small, so windows are not scaled.
            self.edge = Some(seg.ack.wrapping_add(u32::from(seg.wnd)));
        }
    }
}
