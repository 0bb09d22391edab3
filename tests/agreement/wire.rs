//! The bad wire, and what happened on it.

use std::collections::VecDeque;

use dominoes_testkit::Rng;

use super::plan::LinkFaults;

/// What a case went through. The run counts the cases that had each.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Coverage {
    pub(crate) loss: bool,
    pub(crate) duplication: bool,
    pub(crate) reordering: bool,
    pub(crate) corruption: bool,
    pub(crate) overlap: bool,
    pub(crate) retransmission: bool,
    pub(crate) peer_window_closed: bool,
    pub(crate) our_window_closed: bool,
    pub(crate) merged: bool,
    pub(crate) opened_by_stack: bool,
    pub(crate) finished: bool,
    pub(crate) reset: bool,
    pub(crate) credit_ran_out: bool,
    pub(crate) reused: bool,
    pub(crate) stalled: bool,
    pub(crate) stolen: bool,
    pub(crate) past_hole: bool,
    pub(crate) datagrams: bool,
    pub(crate) fragments: bool,
    pub(crate) gathered: bool,
    pub(crate) queue_full: bool,
    pub(crate) network_error: bool,
    pub(crate) joined: bool,
    pub(crate) left: bool,
    pub(crate) died: bool,
    pub(crate) died_performing: bool,
    pub(crate) died_applying: bool,
    pub(crate) flipped: bool,
    pub(crate) repaired: bool,
    pub(crate) unwound: bool,
    pub(crate) solo: bool,
    pub(crate) unparked: bool,
    pub(crate) joined_beside_flipped: bool,
    pub(crate) helped: bool,
    pub(crate) over_ipv6: bool,
    pub(crate) odd: bool,
}

impl Coverage {
    pub(crate) const COUNT: usize = 36;

    /// What there is to count, and whether a run must have it in one case of twenty.
    pub(crate) const NAMES: [(&'static str, bool); Coverage::COUNT] = [
        ("loss", true),
        ("duplication", true),
        ("reordering", true),
        ("corruption", true),
        ("overlap", true),
        ("retransmission by the stack", true),
        ("a zero window of the peer", true),
        ("a zero window of the stack", true),
        ("runs of several segments", true),
        ("a connection opened by the stack", true),
        ("streams finished on both sides", true),
        ("a reset connection", true),
        ("transmit credit used up", true),
        ("a flow that came again", true),
        ("a worker held up for long", true),
        ("work done for a late worker", true),
        ("a frame sent past a hole", true),
        ("datagrams both ways", true),
        ("datagrams that left in fragments", true),
        ("datagrams that left in one frame", true),
        ("a full queue of datagrams", true),
        ("an ICMP error", true),
        ("a worker that joined", true),
        ("a worker that left", true),
        ("a worker that died between two steps", true),
        ("a worker that died performing", true),
        ("a worker that died applying", true),
        ("a bit of a state that flipped", true),
        ("a worker that was repaired", true),
        ("a worker whose changed state made it panic", false),
        ("a worker that was alone, and used no log", true),
        ("a worker that was parked and unparked", true),
        ("a worker that joined while a state was wrong", true),
        (
            "a batch that another worker parsed than the one that claimed it",
            true,
        ),
        ("segments of IPv6", true),
        ("what honest peers seldom send", true),
    ];

    pub(crate) fn all(&self) -> [bool; Coverage::COUNT] {
        [
            self.loss,
            self.duplication,
            self.reordering,
            self.corruption,
            self.overlap,
            self.retransmission,
            self.peer_window_closed,
            self.our_window_closed,
            self.merged,
            self.opened_by_stack,
            self.finished,
            self.reset,
            self.credit_ran_out,
            self.reused,
            self.stalled,
            self.stolen,
            self.past_hole,
            self.datagrams,
            self.fragments,
            self.gathered,
            self.queue_full,
            self.network_error,
            self.joined,
            self.left,
            self.died,
            self.died_performing,
            self.died_applying,
            self.flipped,
            self.repaired,
            self.unwound,
            self.solo,
            self.unparked,
            self.joined_beside_flipped,
            self.helped,
            self.over_ipv6,
            self.odd,
        ]
    }
}

/// A frame under way.
#[derive(Clone, Debug)]
pub(crate) struct OnWire {
    pub(crate) bytes: Vec<u8>,
    pub(crate) damaged: bool,
    /// Initial sequence number of the connection of the stack that it belongs to, if known.
    pub(crate) iss: Option<u32>,
    /// Payload bytes of the segments that a longer frame stands for.
    pub(crate) cut: Option<u16>,
}

/// One direction.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    under_way: VecDeque<OnWire>,
}

impl Wire {
    pub(crate) fn len(&self) -> usize {
        self.under_way.len()
    }

    pub(crate) fn put(
        &mut self,
        frame: OnWire,
        bad: &LinkFaults,
        rng: &mut Rng,
        seen: &mut Coverage,
    ) {
        if rng.per_mille(bad.loss) {
            seen.loss = true;
            return;
        }
        if rng.per_mille(bad.duplication) {
            seen.duplication = true;
            self.under_way.push_back(frame.clone());
        }
        let mut frame = frame;
        if rng.per_mille(bad.corruption) {
            seen.corruption = true;
            frame.damaged = true;
            damage(&mut frame, rng);
        }
        self.under_way.push_back(frame);
    }

    pub(crate) fn take(
        &mut self,
        bad: &LinkFaults,
        rng: &mut Rng,
        seen: &mut Coverage,
    ) -> Option<OnWire> {
        if self.under_way.len() > 1 && rng.per_mille(bad.reordering) {
            seen.reordering = true;
            let at = 1 + rng.index(self.under_way.len() - 1);
            return self.under_way.remove(at);
        }
        self.under_way.pop_front()
    }
}

/// One bit behind the Ethernet header, which a real wire would not let through; mostly of the TCP
/// payload.
fn damage(frame: &mut OnWire, rng: &mut Rng) {
    let bytes = &mut frame.bytes;
    let first = if bytes.len() > 80 && rng.per_mille(700) {
        80
    } else {
        14
    };
    let at = first + rng.index(bytes.len() - first);
    bytes[at] ^= 1 << rng.index(8);
}
