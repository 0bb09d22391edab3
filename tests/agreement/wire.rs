//! The bad wire, and the events of a case.

use std::collections::VecDeque;

use dominoes_testkit::Rng;

use super::plan::LinkFaults;

/// Declares [`Coverage`]. A run must have each event in a twentieth of its cases, except seldom
/// ones.
macro_rules! coverage {
    ($($field:ident: $name:literal $(, $seldom:ident)?;)*) => {
        /// The events of a case. The run counts the cases with each.
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct Coverage {
            $(pub(crate) $field: bool,)*
        }

        impl Coverage {
            pub(crate) const COUNT: usize = Coverage::NAMES.len();
            /// The names, and whether a run must have each.
            pub(crate) const NAMES: &[(&'static str, bool)] =
                &[$(($name, true $(&& stringify!($seldom).is_empty())?)),*];

            pub(crate) fn all(&self) -> [bool; Coverage::COUNT] {
                [$(self.$field),*]
            }
        }
    };
}

coverage! {
    loss: "loss";
    duplication: "duplication";
    reordering: "reordering";
    corruption: "corruption";
    overlap: "overlap";
    retransmission: "retransmission by the stack";
    peer_window_closed: "a zero window of the peer";
    our_window_closed: "a zero window of the stack";
    merged: "runs of several segments";
    opened_by_stack: "a connection opened by the stack";
    finished: "streams finished on both sides";
    reset: "a reset connection";
    credit_ran_out: "transmit credit used up";
    reused: "a flow that came again";
    stalled: "a worker held up for long";
    stolen: "work done for a late worker";
    past_hole: "a frame sent past a hole";
    datagrams: "datagrams both ways";
    fragments: "datagrams that left in fragments";
    gathered: "datagrams that left in one frame";
    queue_full: "a full queue of datagrams";
    network_error: "an ICMP error";
    joined: "a worker that joined";
    left: "a worker that left";
    died: "a worker that died between two steps";
    died_performing: "a worker that died performing";
    died_applying: "a worker that died applying";
    flipped: "a bit of a state that flipped";
    repaired: "a worker that was repaired";
    unwound: "a worker whose changed state made it panic", seldom;
    solo: "a worker that was alone, and used no log";
    unparked: "a worker that was parked and unparked";
    joined_beside_flipped: "a worker that joined while a state was wrong";
    log_full: "a batch that waited for room in the log";
    helped: "a batch that another worker parsed than the one that claimed it";
    other_queue: "frames in several queues of the device";
    over_ipv6: "segments of IPv6";
    odd: "what honest peers seldom send";
}

/// A frame on the wire.
#[derive(Clone, Debug)]
pub(crate) struct OnWire {
    pub(crate) bytes: Vec<u8>,
    pub(crate) damaged: bool,
    /// Initial sequence number of the stack's connection to which it belongs, if known.
    pub(crate) iss: Option<u32>,
    /// Payload bytes of the segments that are merged in a longer frame.
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

/// Flips a bit after the Ethernet header, mostly of the TCP payload. A real link's checksum would
/// find it.
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
