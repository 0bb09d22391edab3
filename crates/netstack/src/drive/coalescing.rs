//! Decides when an idle thread sleeps for a moment instead of polling for the next frame.
//!
//! A thread that polls continuously finds every frame of a bulk transfer alone. It then
//! acknowledges each frame alone, at the cost of a system call or two, and wakes the application
//! for each. It also occupies a core that the application or the sender may need. So while bytes
//! arrive fast, the thread sleeps for less than a tenth of a millisecond and then finds several
//! frames, like interrupt moderation in a network card. A thread that sends fast does not sleep,
//! since its peer should not wait for it.
//!
//! This must not delay a peer that waits for our answer. Such a peer sends nothing while the thread
//! sleeps. If no frame arrived during a delay, the thread skips the delays of the next idle
//! moments; their number doubles each time this happens.

use core::time::Duration;

use crate::io::rx::RxPump;
use crate::time::Instant;

/// The shortest delay. Kernels add up to 50 us to it (see `PR_SET_TIMERSLACK` in prctl(2)).
const MIN_DELAY: Duration = Duration::from_micros(20);

/// Delays are taken only if bytes arrive at least this fast, in nanoseconds per byte: 1 Gbit/s.
const NANOS_PER_BYTE: u64 = 8;
/// Idle moments in a row, with bytes arriving at least that fast, before the first delay.
const STREAK: u32 = 16;
/// Idle moments without a delay after a delay in which nothing arrived: initially, and at most.
const SKIPPED: [u32; 2] = [16, 1 << 14];

/// Totals received since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Received {
    /// Bytes of text, in segments.
    pub(crate) bytes: u64,
    /// Frames of any kind.
    pub(crate) frames: u64,
}

/// Decides at every idle moment whether to delay.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CoalescingDelay {
    /// The last idle moment before which bytes had arrived, and the totals by then.
    since: Instant,
    seen: Received,
    streak: u32,
    /// The number of frames received before the delay at the last idle moment, if there was one.
    delayed: Option<u64>,
    /// Idle moments for which the thread still stays awake, and their number when they last began.
    skip: u32,
    penalty: u32,
}

impl Received {
    /// The totals of a receive pump.
    pub(crate) fn by(pump: &RxPump) -> Received {
        Received {
            bytes: pump.received,
            frames: pump.stats.frames,
        }
    }
}

impl CoalescingDelay {
    /// Called at an idle moment with the totals received so far. Delays if that is due, and returns
    /// whether it was.
    pub(crate) fn rest(&mut self, now: Instant, received: Received) -> bool {
        let is_due = self.is_due(now, received);
        if is_due {
            std::thread::sleep(MIN_DELAY);
        }
        is_due
    }

    /// Whether to delay.
    fn is_due(&mut self, now: Instant, received: Received) -> bool {
        if let Some(before) = self.delayed.take() {
            let [first, most] = SKIPPED;
            if received.frames == before {
                self.penalty = (self.penalty * 2).clamp(first, most);
                self.skip = self.penalty;
            } else {
                self.penalty /= 2;
            }
        }
        let bytes = received.bytes - self.seen.bytes;
        if bytes == 0 {
            return false;
        }
        let took = now.since(self.since).as_nanos();
        (self.since, self.seen) = (now, received);
        let fast = took <= bytes.saturating_mul(NANOS_PER_BYTE);
        self.streak = if fast {
            self.streak.saturating_add(1)
        } else {
            0
        };
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        self.delayed = (self.streak >= STREAK).then_some(received.frames);
        self.delayed.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Drives it: each idle moment comes 20 us after the one before, with the given amount
    /// received.
    #[derive(Default)]
    struct Fixture {
        coalescing: CoalescingDelay,
        nanos: u64,
        received: Received,
    }

    impl Fixture {
        /// Whether a delay is due after `bytes` and `frames` arrived, 20 us later.
        fn idle(&mut self, bytes: u64, frames: u64) -> bool {
            self.nanos += 20_000;
            self.received.bytes += bytes;
            self.received.frames += frames;
            self.coalescing
                .is_due(Instant::from_nanos(self.nanos), self.received)
        }

        /// How many of `moments` idle moments end in delays.
        fn count(&mut self, moments: u32, bytes: u64, frames: u64) -> u32 {
            (0..moments)
                .map(|_| u32::from(self.idle(bytes, frames)))
                .sum()
        }
    }

    #[test]
    fn a_bulk_transfer_is_coalesced_once_it_lasts() {
        let mut status = Fixture::default();
        assert_eq!(status.count(STREAK - 1, 65_536, 1), 0);
        assert_eq!(status.count(100, 65_536, 1), 100);
        // A slow transfer is not delayed, and idleness is not.
        assert_eq!(status.count(100, 1_448, 1), 0);
        assert_eq!(status.count(100, 0, 0), 0);
    }

    #[test]
    fn a_peer_that_waits_for_answers_is_delayed_ever_less_often() {
        let mut status = Fixture::default();
        let mut slept = Vec::new();
        for _ in 0..8 {
            let mut count = 0;
            for _ in 0..1_000 {
                // A long question arrives in one frame, and the peer waits for a long answer during
                // the delay.
                if status.idle(65_536, 1) {
                    count += 1;
                    status.idle(65_536, 0);
                }
            }
            slept.push(count);
        }
        assert!(
            slept[0] < 10 && slept[4..].iter().sum::<u32>() <= 2,
            "{slept:?}"
        );
    }

    #[test]
    fn coalescing_resumes_when_the_peer_streams_again() {
        let mut status = Fixture::default();
        for _ in 0..5 {
            while !status.idle(65_536, 1) {}
            status.idle(0, 0);
        }
        assert!(status.count(STREAK + SKIPPED[0] * 32, 65_536, 1) > 0);
        assert_eq!(status.count(50, 65_536, 1), 50);
    }
}
