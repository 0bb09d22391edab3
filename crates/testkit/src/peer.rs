//! A TCP peer that sends the segments that a test asks for, one at a time, with right numbers.
//!
//! ```
//! use dominoes_testkit::packet::{ACK, Path, SYN};
//! use dominoes_testkit::peer::Peer;
//!
//! let path = Path::new([10, 0, 0, 2], [10, 0, 0, 1]);
//! let (mut near, mut far) = (Peer::new(path, (4000, 80), 100), Peer::new(path.reversed(), (80, 4000), 500));
//! far.hears(&near.says(SYN, &[])).expect("it is for this port");
//! near.hears(&far.says(SYN | ACK, &[])).expect("it is for this port");
//! assert_eq!((near.next, near.ack), (101, 501));
//! ```

use crate::packet::{ACK, Path, Segment};

/// One end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    path: Path,
    /// The ports of the peer and of the stack.
    ports: (u16, u16),
    /// The sequence number of its next segment.
    pub next: u32,
    /// Its acknowledgment number: the number after the last received segment.
    pub ack: u32,
}

impl Peer {
    /// A peer whose initial number is `next`; `path` and `ports` begin with its own address and
    /// port.
    pub const fn new(path: Path, ports: (u16, u16), next: u32) -> Peer {
        Peer {
            path,
            ports,
            next,
            ack: 0,
        }
    }

    /// The segment that it would send now, with the widest window.
    pub fn segment(&self, flags: u8, payload: &[u8]) -> Segment {
        Segment {
            src_port: self.ports.0,
            dst_port: self.ports.1,
            seq: self.next,
            ack: if flags & ACK != 0 { self.ack } else { 0 },
            flags,
            wnd: u16::MAX,
            payload: payload.to_vec(),
            ..Segment::default()
        }
    }

    /// Sends a segment; returns the frame for the stack.
    pub fn says(&mut self, flags: u8, payload: &[u8]) -> Vec<u8> {
        let segment = self.segment(flags, payload);
        self.next = segment.end();
        segment.frame(self.path)
    }

    /// Receives a frame of the stack, and acknowledges it from now on; `None` if it holds no
    /// segment of this connection.
    pub fn hears(&mut self, frame: &[u8]) -> Option<Segment> {
        let segment = Segment::read(frame)?;
        let is_ours = (segment.dst_port, segment.src_port) == self.ports;
        is_ours.then(|| {
            self.ack = segment.end();
            segment
        })
    }
}
