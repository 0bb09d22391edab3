//! Frames that the receive pump makes and the transmit pump sends: ARP, neighbour discovery, ICMP,
//! IGMP, and datagrams that waited for a neighbour. They have no frame number.
//!
//! One frame may need many frames in answer: a reply of 65,507 bytes takes 1,366 packets of 68. So
//! the queue accepts all answers to one batch; but while it holds more than [`FULL`] bytes, the
//! receive pump takes neither frames nor commands, which wait in the device and in their queues. If
//! the device takes nothing for [`PATIENCE`], the pump resumes, because the other host may be
//! waiting for us in the same way. Frames beyond [`MOST`] bytes are then dropped, and counted.

use core::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_queue::SegQueue;

use crate::ip::neighbor::FRAME_OVERHEAD;
use crate::time::{Duration, Instant};

/// The receive pump takes no more frames while more bytes than this wait, with the overhead of each
/// frame: 1,200 ARP frames, or three replies of 65,507 bytes.
const FULL: usize = 1 << 18;
/// Most bytes that may wait: the answers to a batch of 32 requests of 64 KB, and all datagrams that
/// wait for neighbours.
const MOST: usize = 8 << 20;
/// How long the pump waits for a device that takes nothing.
const PATIENCE: Duration = Duration::from_millis(10);

/// The queue.
#[derive(Debug, Default)]
pub(crate) struct ControlFrames {
    frames: SegQueue<Vec<u8>>,
    /// The cost of the frames that the device has not taken. The receive pump adds to it, the
    /// transmit pump subtracts.
    bytes: AtomicUsize,
}

fn cost(frame: &[u8]) -> usize {
    frame.len() + FRAME_OVERHEAD
}

impl ControlFrames {
    /// Adds a frame. Returns false if there is no room.
    pub(crate) fn push(&self, frame: Vec<u8>) -> bool {
        // ORDERING: Relaxed: only a bound; `SegQueue` orders the frames.
        let has_room = self.bytes.load(Ordering::Relaxed) + cost(&frame) <= MOST;
        if has_room {
            self.bytes.fetch_add(cost(&frame), Ordering::Relaxed);
            self.frames.push(frame);
        }
        has_room
    }

    /// The oldest frame, which the caller [offers](Self::sent) to the device.
    pub(crate) fn pop(&self) -> Option<Vec<u8>> {
        self.frames.pop()
    }

    /// The device has taken this frame.
    pub(crate) fn sent(&self, frame: &[u8]) {
        self.bytes.fetch_sub(cost(frame), Ordering::Relaxed);
    }

    /// Whether the device has taken all frames.
    #[inline]
    pub(crate) fn are_sent(&self) -> bool {
        // ORDERING: Relaxed: a thread that wants to sleep looks at the queue after a fence.
        self.bytes.load(Ordering::Relaxed) == 0
    }

    /// Whether no frame waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// How many frames wait.
    #[cfg(feature = "pipelined")]
    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }
}

/// How long the receive pump has waited for the transmit pump.
#[derive(Debug, Default)]
pub(crate) struct ControlWait {
    /// The bytes at the last look, and the time since which none have left.
    last_look: Option<(usize, Instant)>,
}

impl ControlWait {
    /// Whether the receive pump has to wait until `queue` is shorter.
    #[inline]
    pub(crate) fn has_to_wait(&mut self, queue: &ControlFrames, now: Instant) -> bool {
        let bytes = queue.bytes.load(Ordering::Relaxed);
        if bytes <= FULL {
            self.last_look = None;
            return false;
        }
        self.has_patience(bytes, now)
    }

    #[cold]
    fn has_patience(&mut self, bytes: usize, now: Instant) -> bool {
        let since = match self.last_look {
            Some((before, since)) if bytes >= before => since,
            _ => now,
        };
        self.last_look = Some((bytes, since));
        now < since + PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pump_waits_while_the_device_takes_frames_and_not_for_one_that_takes_none() {
        let (queue, mut wait) = (ControlFrames::default(), ControlWait::default());
        let at = Instant::from_millis;
        let large = || vec![0; 1 << 16];
        while !wait.has_to_wait(&queue, at(0)) {
            assert!(queue.push(large()));
        }
        assert_eq!(queue.frames.len(), 4);
        (0..9).for_each(|_| assert!(queue.push(large())));
        assert!(wait.has_to_wait(&queue, at(0)));
        let send = || queue.pop().map(|frame| queue.sent(&frame));
        for sent in 1..10 {
            send();
            assert!(wait.has_to_wait(&queue, at(9 * sent)), "{sent}");
        }
        assert!(wait.has_to_wait(&queue, at(90)));
        assert!(!wait.has_to_wait(&queue, at(91)), "it takes none for long");
        while queue.push(large()) {}
        assert_eq!(queue.frames.len(), MOST / cost(&large()));
        while send().is_some() {}
        assert!(queue.are_sent());
        assert!(!wait.has_to_wait(&queue, at(200)));
        assert_eq!(queue.bytes.load(Ordering::Relaxed), 0);
    }
}
