//! HyStart++ (RFC 9406): ends slow start before it causes losses.
//!
//! A longer round trip in one round than in the round before shows that a queue builds up. Slow
//! start then continues at a lower rate for five rounds, to see whether that lasts; if it does,
//! the window is large enough.

use super::Acked;
use crate::seqnum::SeqNum;
use crate::tcp::fields::fields;
use crate::time::Duration;

/// MIN_RTT_THRESH and MAX_RTT_THRESH: bounds of the required increase (RFC 9406 section 4.3).
const THRESHOLD: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(16));

/// MIN_RTT_DIVISOR: the required increase as a fraction of the round trip, within both bounds.
const PART: u64 = 8;

/// N_RTT_SAMPLE: measurements that a round needs to count.
const SAMPLES: u8 = 8;

/// CSS_GROWTH_DIVISOR: how much slower the window grows in conservative slow start.
const SLOWER: u32 = 4;

/// CSS_ROUNDS: the number of rounds of conservative slow start.
const ROUNDS: u8 = 5;

/// L: maximum number of segments by which an acknowledgment opens the window, without pacing.
const LIMIT: u32 = 8;

/// Not measured.
const UNKNOWN: Duration = Duration::from_nanos(u64::MAX);

/// State of RFC 9406 section 4.2, for the first slow start of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HyStart {
    /// windowEnd: a round ends when this is acknowledged; `None` before the first.
    end: Option<SeqNum>,
    /// lastRoundMinRTT.
    last: Duration,
    /// currentRoundMinRTT.
    current: Duration,
    /// rttSampleCount.
    samples: u8,
    /// cssBaselineMinRtt, while the window grows more slowly.
    baseline: Option<Duration>,
    /// Rounds of conservative slow start so far.
    rounds: u8,
}

fields!(HyStart, "hystart", { end, last, current, samples, baseline, rounds });

impl Default for HyStart {
    fn default() -> Self {
        HyStart {
            end: None,
            last: UNKNOWN,
            current: UNKNOWN,
            samples: 0,
            baseline: None,
            rounds: 0,
        }
    }
}

impl HyStart {
    /// By how many bytes the window grows after `ack`; `None` ends slow start.
    pub(super) fn grow(&mut self, ack: &Acked) -> Option<u32> {
        let end = *self.end.get_or_insert(ack.nxt);
        if let Some(rtt) = ack.rtt {
            self.current = self.current.min(rtt);
            self.samples = self.samples.saturating_add(1);
        }
        if self.samples >= SAMPLES {
            self.compare_rounds();
        }
        if ack.una.at_or_after(end) && self.begin_round(ack.nxt) {
            return None;
        }
        let slower = if self.baseline.is_some() { SLOWER } else { 1 };
        Some(ack.acked.min(LIMIT * ack.mss) / slower)
    }

    /// The round's data is acknowledged, and the next round ends at `nxt`. Returns whether
    /// enough rounds of conservative slow start have passed.
    fn begin_round(&mut self, nxt: SeqNum) -> bool {
        if self.baseline.is_some() {
            self.rounds += 1;
            if self.rounds >= ROUNDS {
                return true;
            }
        }
        self.end = Some(nxt);
        self.last = core::mem::replace(&mut self.current, UNKNOWN);
        self.samples = 0;
        false
    }

    /// Compares the round trips of this round with those before it.
    fn compare_rounds(&mut self) {
        match self.baseline {
            // The increase was not caused by a queue.
            Some(baseline) if self.current < baseline => self.baseline = None,
            None if self.last != UNKNOWN => {
                let part = self.last.divided(PART);
                let longer = part.max(THRESHOLD.0).min(THRESHOLD.1);
                if self.current >= self.last + longer {
                    self.baseline = Some(self.current);
                    self.rounds = 0;
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1000;

    /// A round of 20 acknowledgments of two segments each, all measured as `ms`. Returns the
    /// growth of the window; `None` if slow start ended.
    fn round(hystart: &mut HyStart, number: u32, ms: u64) -> Option<u32> {
        let mut grown = 0;
        for i in 0..20 {
            let una = SeqNum(40_000 * number + 2000 * (i + 1));
            grown += hystart.grow(&Acked {
                una,
                nxt: SeqNum(40_000 * (number + 1)) + 2000 * (i + 1),
                acked: 2 * MSS,
                flight: 40 * MSS,
                mss: MSS,
                srtt: Duration::from_millis(ms),
                rtt: Some(Duration::from_millis(ms)),
                ..Acked::default()
            })?;
        }
        Some(grown)
    }

    #[test]
    fn the_window_doubles_while_the_round_trip_stays_as_it_is() {
        let mut hystart = HyStart::default();
        for number in 0..20 {
            assert_eq!(
                round(&mut hystart, number, 50 + u64::from(number % 3)),
                Some(40_000)
            );
        }
    }

    #[test]
    fn a_longer_round_trip_slows_it_down_and_five_rounds_later_it_ends() {
        let mut hystart = HyStart::default();
        round(&mut hystart, 0, 50);
        round(&mut hystart, 1, 50);
        // An eighth of 50 ms is 6.25 ms: detected at the eighth measurement of the round.
        let grown = round(&mut hystart, 2, 57).unwrap();
        assert!((40_000 / SLOWER..40_000).contains(&grown), "{grown}");
        for number in 3..7 {
            assert_eq!(round(&mut hystart, number, 60), Some(10_000), "{number}");
        }
        assert_eq!(round(&mut hystart, 7, 60), None);
    }

    #[test]
    fn it_speeds_up_again_when_the_round_trip_is_what_it_was() {
        let mut hystart = HyStart::default();
        round(&mut hystart, 0, 50);
        round(&mut hystart, 1, 80);
        round(&mut hystart, 2, 80);
        assert!(hystart.baseline.is_some());
        round(&mut hystart, 3, 50);
        assert_eq!(round(&mut hystart, 4, 50), Some(40_000));
    }

    #[test]
    fn a_difference_counts_between_its_bounds_only() {
        for (before, after, slows) in [
            (1, 4, false),
            (1, 5, true),
            (1000, 1015, false),
            (1000, 1016, true),
        ] {
            let mut hystart = HyStart::default();
            round(&mut hystart, 0, before);
            round(&mut hystart, 1, after);
            assert_eq!(hystart.baseline.is_some(), slows, "{before} {after}");
        }
    }

    #[test]
    fn too_few_measurements_say_nothing() {
        let mut hystart = HyStart::default();
        let mut ack = Acked {
            una: SeqNum(1),
            nxt: SeqNum(2),
            acked: MSS,
            flight: MSS,
            mss: MSS,
            srtt: Duration::from_millis(1),
            rtt: Some(Duration::from_millis(1)),
            ..Acked::default()
        };
        for i in 0..100u64 {
            ack.una = ack.nxt;
            ack.nxt += 1;
            ack.rtt = Some(Duration::from_millis(i));
            assert_eq!(hystart.grow(&ack), Some(MSS));
        }
    }
}
