//! Rate limits for actions that anyone can provoke.

use crate::hash::mix;
use crate::packet::flow::Address;

use crate::keys::{KeyUse, Keys};
use crate::time::{Duration, Instant};

/// Number of buckets; a power of two. A keyed hash maps each destination to a bucket, and to
/// another one in each second.
const BUCKETS: usize = 1024;

/// The limits of answers of one kind per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// To all destinations together, approximately.
    pub total: u32,
    /// To one destination, approximately.
    pub per_destination: u32,
}

/// A limit of answers of one kind: ICMP errors (RFC 1122 section 3.2.2, RFC 1812 section
/// 4.3.2.8), resets, or challenge acknowledgments (RFC 5961 section 7). It bounds the answers
/// per second to each destination, and to all.
///
/// A known limit that all destinations share is a side channel. An attacker sends packets in
/// another host's name, then provokes answers to himself and counts them: the count reveals how
/// many of the forged packets were answered. Such counts have revealed ports of UDP sockets
/// (Man et al., *DNS Cache Poisoning Attack Reloaded*, CCS 2020) and connections (Cao et al.,
/// *Off-Path TCP Exploits*, USENIX Security 2016). So
///
/// - answers to one destination hardly ever cost another its own: the limit of one destination is
///   reached long before the limit of all, and two destinations share a bucket for one second only;
/// - every limit changes each second, between half and one and a half of the configured value,
///   by a keyed hash. A count reveals only that random number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Differs for each kind.
    key: [u64; 2],
    /// The second to which `left` applies, from 1.
    second: u64,
    /// Remaining answers to all destinations in this second.
    left: u32,
    /// Refused answers so far.
    refused: u64,
    /// Remaining answers, by bucket of destinations. Empty until first use.
    buckets: Vec<Bucket>,
    /// The sum of all buckets as numbers.
    sum: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bucket {
    /// The low half of the second to which `left` applies.
    second: u32,
    left: u32,
}

impl Bucket {
    fn number(self, index: usize) -> u64 {
        let word = u64::from(self.second) << 32 | u64::from(self.left);
        mix(word.wrapping_add((index as u64 + 1) << 52))
    }
}

impl Default for RateLimit {
    fn default() -> Self {
        RateLimit::new(&Keys::default(), KeyUse::ErrorLimit)
    }
}

/// Between half and one and a half of `rate`, selected by 32 bits of a hash.
fn jittered(rate: u32, hash: u32) -> u32 {
    let more = (u64::from(rate) * u64::from(hash)) >> 32;
    rate.div_ceil(2).saturating_add(more as u32)
}

impl RateLimit {
    /// Creates the limit of the kind that `domain` names.
    pub fn new(keys: &Keys, domain: KeyUse) -> Self {
        RateLimit {
            key: keys.derive(domain),
            second: 0,
            left: 0,
            refused: 0,
            buckets: Vec::new(),
            sum: 0,
        }
    }

    /// Whether one more answer may leave to `destination` at `now`.
    pub fn admits(&mut self, now: Instant, destination: Address, rate: Rate) -> bool {
        let admits = self.take(now, destination, rate);
        self.refused += u64::from(!admits);
        admits
    }

    fn take(&mut self, now: Instant, destination: Address, rate: Rate) -> bool {
        let keys = Keys::new(self.key);
        let second = now.as_nanos() / 1_000_000_000 + 1;
        if second != self.second {
            self.second = second;
            let hash = keys.of(KeyUse::AllDestinations, [second]);
            self.left = jittered(rate.total, hash as u32);
        }
        if self.left == 0 {
            return false;
        }
        if self.buckets.is_empty() {
            self.buckets = vec![Bucket::default(); BUCKETS];
        }
        let hash = keys.of_address(KeyUse::OneDestination, destination, second);
        let index = hash as usize % BUCKETS;
        let bucket = &mut self.buckets[index];
        let before = bucket.number(index);
        if bucket.second != second as u32 {
            bucket.second = second as u32;
            bucket.left = jittered(rate.per_destination, (hash >> 32) as u32);
        }
        let admits = bucket.left > 0;
        bucket.left -= u32::from(admits);
        self.left -= u32::from(admits);
        let after = bucket.number(index);
        self.sum = self.sum.wrapping_sub(before).wrapping_add(after);
        admits
    }

    /// Refused answers so far.
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// The whole state as one number.
    pub fn fingerprint(&self) -> u64 {
        let RateLimit {
            key: [a, b],
            second,
            left,
            refused,
            buckets: _,
            sum,
        } = self;
        let words = [*a, *b, *second, u64::from(*left), *refused, *sum];
        words.iter().fold(0, |h, word| mix(h ^ word))
    }
}

/// A token bucket.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    burst: u64,
    period: Duration,
    tokens: u64,
    /// Tokens have been added up to this time.
    since: Instant,
}

impl TokenBucket {
    /// Admits `burst` in a row after a pause, and one more for each `period`.
    pub const fn new(burst: u64, period: Duration) -> Self {
        TokenBucket {
            burst,
            period,
            tokens: burst,
            since: Instant::ZERO,
        }
    }

    /// Whether one more is admitted now.
    pub fn admits(&mut self, now: Instant) -> bool {
        let periods = now.since(self.since).as_nanos() / self.period.as_nanos();
        self.tokens = self.tokens.saturating_add(periods).min(self.burst);
        self.since += self.period.times(periods);
        let admits = self.tokens > 0;
        self.tokens -= u64::from(admits);
        admits
    }

    /// A time by which one more is admitted.
    pub fn next(&self) -> Instant {
        match self.tokens {
            0 => self.since + self.period,
            _ => Instant::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate {
        total: 1000,
        per_destination: 10,
    };

    fn limit(secret: u64) -> RateLimit {
        RateLimit::new(&Keys::new([secret, 0]), KeyUse::ErrorLimit)
    }

    fn at(second: u64) -> Instant {
        Instant::from_millis(second * 1000 + 500)
    }

    fn host(number: u32) -> Address {
        Address::v4(0x0a00_0000 + number)
    }

    /// How many of `many` answers to `host` are admitted.
    fn leave(limit: &mut RateLimit, second: u64, to: u32, many: u32) -> u32 {
        let admitted = (0..many).filter(|_| limit.admits(at(second), host(to), RATE));
        admitted.count() as u32
    }

    #[test]
    fn one_destination_and_all_get_between_half_and_one_and_a_half_and_never_twice_the_same() {
        let mut limit = limit(1);
        let one: Vec<_> = (0..50).map(|s| leave(&mut limit, s, 7, 100)).collect();
        assert!(one.iter().all(|n| (5..15).contains(n)), "{one:?}");
        let all = (50..100).map(|s| (0..1000).map(|to| leave(&mut limit, s, to, 3)).sum());
        let mut all: Vec<u32> = all.collect();
        assert!(all.iter().all(|n| (500..1500).contains(n)), "{all:?}");
        all.sort_unstable();
        all.dedup();
        assert!(all.len() > 40, "{all:?}");
        let given = one.iter().sum::<u32>() + all.iter().sum::<u32>();
        assert_eq!(given, 50 * 100 + 50 * 3000 - limit.refused() as u32);
    }

    #[test]
    fn what_one_host_is_sent_does_not_show_in_what_another_gets() {
        // The attacker sends a hundred packets of his own each second, after 1,000 in the name
        // of a victim, of which one more or less is answered.
        let mut differences = 0;
        for secret in 0..20 {
            let [mut all_closed, mut one_open] = [limit(secret), limit(secret)];
            for second in 0..50 {
                leave(&mut all_closed, second, 1, 1000);
                leave(&mut one_open, second, 1, 999);
                let seen = leave(&mut all_closed, second, 2, 100);
                differences += u32::from(seen != leave(&mut one_open, second, 2, 100));
            }
        }
        assert_eq!(differences, 0, "of 1,000 seconds");
    }

    #[test]
    fn not_even_the_limit_of_all_tells_whether_one_more_was_answered() {
        // Here the attacker spreads 1,000 packets over as many names, as near to the limit as
        // he can know, before his own packets.
        let mut differences = 0;
        for secret in 0..20 {
            let [mut all_closed, mut one_open] = [limit(secret), limit(secret)];
            for second in 0..50 {
                (10..1010).for_each(|to| _ = leave(&mut all_closed, second, to, 1));
                (10..1009).for_each(|to| _ = leave(&mut one_open, second, to, 1));
                let seen = leave(&mut all_closed, second, 2, 100);
                differences += u32::from(seen != leave(&mut one_open, second, 2, 100));
            }
        }
        assert!(differences < 25, "{differences} of 1,000 seconds");
    }

    #[test]
    fn two_hosts_that_share_a_count_do_so_for_a_second() {
        let mut limit = limit(3);
        let mut together = vec![0_u64; 5000];
        for second in 0..20 {
            leave(&mut limit, second, 1, 100);
            for other in 100..400 {
                let starved = leave(&mut limit, second, other, 1) == 0;
                together[other as usize] += u64::from(starved);
            }
        }
        assert!(together.iter().all(|seconds| *seconds <= 2));
    }

    #[test]
    fn fingerprints_of_equal_limits_are_equal_and_differ_by_who_was_answered() {
        let [mut a, mut b] = [limit(1), limit(1)];
        leave(&mut a, 0, 1, 3);
        leave(&mut b, 0, 1, 3);
        assert_eq!((a.fingerprint(), &a), (b.fingerprint(), &b));
        leave(&mut a, 0, 2, 1);
        leave(&mut b, 0, 3, 1);
        assert_ne!(a.fingerprint(), b.fingerprint());
    }

    #[test]
    fn a_burst_passes_and_then_one_each_period() {
        const PERIOD: Duration = Duration::from_millis(1);
        let mut bucket = TokenBucket::new(50, PERIOD);
        let mut count = |now| (0..1_000).filter(|_| bucket.admits(now)).count();
        assert_eq!(count(Instant::ZERO), 50);
        assert_eq!(count(Instant::ZERO + PERIOD), 1);
        assert_eq!(count(Instant::ZERO + PERIOD.times(4)), 3);
        assert_eq!(count(Instant::ZERO + PERIOD.times(100_000)), 50);
    }
}
