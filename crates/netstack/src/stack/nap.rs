//! When a thread that has nothing to do sleeps for a moment, instead of looking for the next frame.
//!
//! Who looks all the time finds every frame of a bulk transfer alone: acknowledges it alone, which is a system call or
//! two, and tells the application of it alone. It also keeps a core that the application or the sender may need. So
//! while octets come fast, the thread sleeps for less than a tenth of a millisecond and finds several frames then, as network
//! cards that moderate their interrupts have it. Who sends fast does not: there it is the peer that should not wait.
//!
//! A peer that waits for our answer must not wait for this. It shows itself: no frame arrives while we sleep. After
//! that the thread stays awake for a number of idle moments, which doubles each time this happens.

use core::time::Duration;

use crate::time::Instant;

/// How long a nap is at least. Kernels add up to 50 us to that (see `PR_SET_TIMERSLACK` in prctl(2)).
pub(super) const NAP: Duration = Duration::from_micros(20);

/// Nanoseconds for each octet, at most, where naps are worth it: 1 Gbit/s.
const NANOS_PER_OCTET: u64 = 8;
/// Idle moments in a row with octets arriving as fast as that, before the first nap.
const STREAK: u32 = 16;
/// Idle moments without a nap after one in which nothing came: at first, and at most.
const WAKEFUL: [u32; 2] = [16, 1 << 14];

/// What has come since the beginning.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Received {
    /// Octets of text, in segments.
    pub(crate) octets: u64,
    /// Frames of any kind.
    pub(crate) frames: u64,
}

/// Decides about naps, at every idle moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Naps {
    /// The last idle moment before which octets had come, and what had been received by then.
    since: Instant,
    seen: Received,
    streak: u32,
    /// Frames that had come before the nap that was taken at the last idle moment.
    napped: Option<u64>,
    /// Idle moments that are still to be spent awake, and how many those were the last time.
    wakeful: u32,
    penalty: u32,
}

impl Naps {
    /// There is nothing to do, after so much has come. Whether to nap.
    pub(super) fn is_due(&mut self, now: Instant, received: Received) -> bool {
        if let Some(before) = self.napped.take() {
            let [first, most] = WAKEFUL;
            if received.frames == before {
                self.penalty = (self.penalty * 2).clamp(first, most);
                self.wakeful = self.penalty;
            } else {
                self.penalty /= 2;
            }
        }
        let octets = received.octets - self.seen.octets;
        if octets == 0 {
            return false;
        }
        let took = now.since(self.since).as_nanos();
        (self.since, self.seen) = (now, received);
        let fast = took <= octets.saturating_mul(NANOS_PER_OCTET);
        self.streak = if fast {
            self.streak.saturating_add(1)
        } else {
            0
        };
        if self.wakeful > 0 {
            self.wakeful -= 1;
            return false;
        }
        self.napped = (self.streak >= STREAK).then_some(received.frames);
        self.napped.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What drives it: each idle moment is so much later, and so much came before it.
    #[derive(Default)]
    struct Life {
        naps: Naps,
        nanos: u64,
        received: Received,
    }

    impl Life {
        /// Whether a nap is due after so many octets and frames, 20 us later.
        fn idle(&mut self, octets: u64, frames: u64) -> bool {
            self.nanos += 20_000;
            self.received.octets += octets;
            self.received.frames += frames;
            self.naps
                .is_due(Instant::from_nanos(self.nanos), self.received)
        }

        /// How many of so many moments end in naps.
        fn count(&mut self, moments: u32, octets: u64, frames: u64) -> u32 {
            (0..moments)
                .map(|_| u32::from(self.idle(octets, frames)))
                .sum()
        }
    }

    #[test]
    fn a_bulk_transfer_is_slept_through_once_it_lasts() {
        let mut life = Life::default();
        assert_eq!(life.count(STREAK - 1, 65_536, 1), 0);
        assert_eq!(life.count(100, 65_536, 1), 100);
        // A slow one is not, nor is idleness.
        assert_eq!(life.count(100, 1_448, 1), 0);
        assert_eq!(life.count(100, 0, 0), 0);
    }

    #[test]
    fn a_peer_that_waits_for_answers_is_kept_waiting_ever_less_often() {
        let mut life = Life::default();
        let mut slept = Vec::new();
        for _ in 0..8 {
            let mut count = 0;
            for _ in 0..1_000 {
                // A long question, and a long answer, which is given while we sleep.
                if life.idle(65_536, 1) {
                    count += 1;
                    life.idle(65_536, 0);
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
    fn naps_come_back_when_the_peer_streams_again() {
        let mut life = Life::default();
        for _ in 0..5 {
            while !life.idle(65_536, 1) {}
            life.idle(0, 0);
        }
        assert!(life.count(STREAK + WAKEFUL[0] * 32, 65_536, 1) > 0);
        assert_eq!(life.count(50, 65_536, 1), 50);
    }
}
