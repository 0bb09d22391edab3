//! How often we report errors, and do other things that anybody can make us do: as often as a token bucket lets us,
//! whoever asks (RFC 1122 section 3.2.2, RFC 1812 section 4.3.2.8).

use crate::time::{Duration, Instant};

/// Reports in a row after a rest.
const BURST: u64 = 50;
/// Time after which one more may be sent: 1000 a second.
const PERIOD: Duration = Duration::from_millis(1);

/// A token bucket. The default is the one for reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limiter {
    burst: u64,
    period: Duration,
    tokens: u64,
    /// Until when tokens have been added.
    since: Instant,
}

impl Default for Limiter {
    fn default() -> Self {
        Limiter::new(BURST, PERIOD)
    }
}

impl Limiter {
    /// `burst` in a row after a rest, and one more for each `period`.
    pub(crate) const fn new(burst: u64, period: Duration) -> Self {
        Limiter {
            burst,
            period,
            tokens: burst,
            since: Instant::ZERO,
        }
    }

    /// Whether it may be done once more now.
    pub(crate) fn admits(&mut self, now: Instant) -> bool {
        let periods = now.since(self.since).as_nanos() / self.period.as_nanos();
        self.tokens = self.tokens.saturating_add(periods).min(self.burst);
        self.since += self.period.times(periods);
        let admits = self.tokens > 0;
        self.tokens -= u64::from(admits);
        admits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_one_each_period() {
        let mut limiter = Limiter::default();
        let mut count = |now| (0..1_000).filter(|_| limiter.admits(now)).count() as u64;
        assert_eq!(count(Instant::ZERO), BURST);
        assert_eq!(count(Instant::ZERO + PERIOD), 1);
        assert_eq!(count(Instant::ZERO + PERIOD.times(4)), 3);
        assert_eq!(count(Instant::ZERO + PERIOD.times(100_000)), BURST);
    }
}
