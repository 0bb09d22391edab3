//! When a thread that has nothing to do sleeps for a moment, instead of looking for the next frame.
//!
//! Who looks all the time finds every frame of a bulk transfer alone: acknowledges it alone, which
//! is a system call or two, and tells the application of it alone. It also keeps a core that the
//! application or the sender may need. So while bytes come fast, the thread sleeps for less than a
//! tenth of a millisecond and finds several frames then, as network cards that moderate their
//! interrupts have it. Who sends fast does not: there it is the peer that should not wait.
//!
//! A peer that waits for our answer must not wait for this. It shows itself: no frame arrives while
//! we sleep. After that the thread stays awake for a number of idle moments, which doubles each
//! time this happens.

use core::time::Duration;

use crate::time::Instant;

/// How long a delay is at least. Kernels add up to 50 us to that (see `PR_SET_TIMERSLACK` in
/// prctl(2)).
pub(super) const MIN_DELAY: Duration = Duration::from_micros(20);

/// Nanoseconds for each byte, at most, where delays are worth it: 1 Gbit/s.
const NANOS_PER_BYTE: u64 = 8;
/// Idle moments in a row with bytes arriving as fast as that, before the first delay.
const STREAK: u32 = 16;
/// Idle moments without a delay after one in which nothing came: at first, and at most.
const SKIPPED: [u32; 2] = [16, 1 << 14];

/// What has come since the beginning.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Received {
    /// Bytes of text, in segments.
    pub(super) bytes: u64,
    /// Frames of any kind.
    pub(super) frames: u64,
}

/// Decides about delays, at every idle moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CoalescingDelay {
    /// The last idle moment before which bytes had come, and what had been received by then.
    since: Instant,
    seen: Received,
    streak: u32,
    /// Frames that had come before the delay that was taken at the last idle moment.
    delayed: Option<u64>,
    /// Idle moments that are still to be spent awake, and how many those were the last time.
    skip: u32,
    penalty: u32,
}

impl CoalescingDelay {
    /// There is nothing to do, after so much has come. Whether to delay.
    pub(super) fn is_due(&mut self, now: Instant, received: Received) -> bool {
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

    /// What drives it: each idle moment is so much later, and so much came before it.
    #[derive(Default)]
    struct Fixture {
        coalescing: CoalescingDelay,
        nanos: u64,
        received: Received,
    }

    impl Fixture {
        /// Whether a delay is due after so many bytes and frames, 20 us later.
        fn idle(&mut self, bytes: u64, frames: u64) -> bool {
            self.nanos += 20_000;
            self.received.bytes += bytes;
            self.received.frames += frames;
            self.coalescing
                .is_due(Instant::from_nanos(self.nanos), self.received)
        }

        /// How many of so many moments end in delays.
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
        // A slow one is not, nor is idleness.
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
                // A long question, and a long answer, which is given while we sleep.
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
