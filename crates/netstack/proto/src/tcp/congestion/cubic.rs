//! CUBIC (RFC 9438), in integers: time in microseconds, windows in bytes.
//!
//! The window follows a cubic function of the time since it was last reduced: it grows fast at
//! first, is flat at the size before the reduction, and grows fast again beyond. Where Reno's
//! window would be larger, it follows Reno.

use super::hystart::HyStart;
use super::{Acked, Algorithm, WINDOW_MAX};
use crate::tcp::fields::fields;
use crate::time::{Duration, Instant};

/// C = 0.4 segments/s^3 (RFC 9438 section 5), as a fraction.
const C: (i128, i128) = (2, 5);

/// beta_cubic = 0.7 (section 4.6), in tenths.
const BETA: u64 = 7;

/// alpha_cubic = 3 * (1 - beta) / (1 + beta) = 9/17 (section 4.3).
const ALPHA: u64 = 9;
const ALPHA_OF: u64 = 17;

/// Microseconds of a second, to the third.
const CUBE_OF_A_SECOND: i128 = 1_000_000_000_000_000_000;

/// The curve is computed again after this time, 1 ms.
const STEP: Duration = Duration::from_millis(1);

/// Longer times, over 35 minutes, are treated as this one: the window has reached its bound
/// long before.
const LONGEST: i128 = 1 << 31;

/// State of RFC 9438 section 4.1.2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cubic {
    /// W_max, bytes: the window before it was last reduced, or a smaller value after fast
    /// convergence.
    w_max: u32,
    /// cwnd_prior, bytes: the window before the last reduction. Below it, W_est grows by alpha.
    cwnd_prior: u32,
    /// W_est, bytes: the window that Reno would have.
    w_est: u32,
    /// Acknowledged bytes for which W_est did not grow yet, times [`ALPHA_OF`].
    est_acked: u64,
    /// Where the curve is flat, bytes.
    plateau: u32,
    /// K: microseconds from the epoch to the plateau.
    k_us: u64,
    /// Start of the stage of congestion avoidance; [`Instant::NEVER`]: the next acknowledgment.
    epoch: Instant,
    /// End of the time for which `needed` holds.
    until: Instant,
    /// Bytes that must be acknowledged before the window grows by a segment.
    needed: u32,
    /// Bytes acknowledged since the window last grew.
    acked: u32,
    hystart: HyStart,
}

fields!(Cubic, "cubic", {
    w_max, cwnd_prior, w_est, est_acked, plateau, k_us, epoch, until, needed, acked, hystart,
});

impl Default for Cubic {
    fn default() -> Self {
        Cubic {
            w_max: 0,
            cwnd_prior: 0,
            w_est: 0,
            est_acked: 0,
            plateau: 0,
            k_us: 0,
            epoch: Instant::NEVER,
            until: Instant::ZERO,
            needed: 0,
            acked: 0,
            hystart: HyStart::default(),
        }
    }
}

impl Cubic {
    /// A stage of congestion avoidance begins (RFC 9438 section 4.2).
    fn begin(&mut self, cwnd: u32, ack: &Acked) {
        self.epoch = ack.now;
        self.until = ack.now;
        self.plateau = self.w_max.max(cwnd);
        self.k_us = k_us(self.plateau - cwnd, ack.mss);
        self.w_est = cwnd;
        self.est_acked = 0;
        self.acked = 0;
    }

    /// W_cubic(t), bytes (section 4.2, figure 1).
    fn curve(&self, t: Duration, mss: u32) -> u32 {
        let d = i128::from(t.as_nanos() / 1000) - i128::from(self.k_us);
        let d = d.clamp(-LONGEST, LONGEST);
        let rise = i128::from(mss) * C.0 * d * d * d / (C.1 * CUBE_OF_A_SECOND);
        let window = i128::from(self.plateau) + rise;
        window.clamp(0, i128::from(WINDOW_MAX)) as u32
    }

    /// Computes how many bytes have to be acknowledged for the next segment, for the next [`STEP`].
    #[inline(never)]
    fn update_curve(&mut self, cwnd: u32, ack: &Acked) {
        let t = ack.now.since(self.epoch);
        self.until = ack.now + STEP;
        // Section 4.4: up to the curve's value one round trip ahead, but at most by half.
        let target = self.curve(t + ack.srtt, ack.mss);
        let target = target.min(cwnd.saturating_add(cwnd / 2));
        let ahead = target.saturating_sub(cwnd);
        self.needed = if ahead == 0 {
            cwnd.saturating_mul(100)
        } else {
            (u64::from(cwnd) * u64::from(ack.mss) / u64::from(ahead)) as u32
        };
    }
}

impl Algorithm for Cubic {
    /// Section 4.10.
    fn slow_start(&mut self, ack: &Acked, initial: bool) -> Option<u32> {
        if initial {
            self.hystart.grow(ack)
        } else {
            Some(ack.acked.min(2 * ack.mss))
        }
    }

    #[inline]
    fn increase(&mut self, cwnd: u32, ack: &Acked) -> u32 {
        if self.epoch == Instant::NEVER {
            self.begin(cwnd, ack);
        }
        if ack.now >= self.until {
            self.update_curve(cwnd, ack);
        }
        // Section 4.3: Reno's window, with a reduction as small as ours.
        let faster = self.w_est >= self.cwnd_prior;
        let alpha = if faster { ALPHA_OF } else { ALPHA };
        self.est_acked += u64::from(ack.acked) * alpha;
        let round = u64::from(cwnd) * ALPHA_OF;
        if self.est_acked >= round {
            self.est_acked -= round;
            self.w_est = (self.w_est + ack.mss).min(WINDOW_MAX);
        }
        self.acked = self.acked.saturating_add(ack.acked);
        let mut grown = cwnd;
        if self.acked >= self.needed {
            self.acked = 0;
            grown += ack.mss;
        }
        grown.max(self.w_est)
    }

    /// Sections 4.6 and 4.7 (fast convergence).
    fn decrease(&mut self, cwnd: u32, flight: u32, mss: u32) -> u32 {
        let part = |bytes: u32, tenths: u64, of: u64| (u64::from(bytes) * tenths / of) as u32;
        self.w_max = if cwnd < self.w_max {
            part(cwnd, 10 + BETA, 20)
        } else {
            cwnd
        };
        self.cwnd_prior = cwnd;
        self.epoch = Instant::NEVER;
        part(flight, BETA, 10).max(2 * mss)
    }

    fn after_idle(&mut self) {
        self.epoch = Instant::NEVER;
    }
}

/// K = cbrt(below / C) in microseconds, `below` bytes under the plateau (RFC 9438 section 4.2).
fn k_us(below: u32, mss: u32) -> u64 {
    let cube = u128::from(below) * (C.1 * CUBE_OF_A_SECOND) as u128;
    cube_root(cube / (u128::from(mss.max(1)) * C.0 as u128))
}

/// The largest number whose cube is at most `x`, below 2^42: bit by bit.
fn cube_root(x: u128) -> u64 {
    let mut root = 0u128;
    for bit in (0..42).rev() {
        let next = root | 1 << bit;
        if next * next * next <= x {
            root = next;
        }
    }
    root as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MSS: u32 = 1448;

    fn ack(now: Instant, acked: u32, flight: u32) -> Acked {
        Acked {
            acked,
            flight,
            mss: MSS,
            now,
            srtt: Duration::from_millis(100),
            ..Acked::default()
        }
    }

    /// W_cubic(t) in the form of RFC 9438 section 4.2, in segments and seconds.
    fn reference(w_max: f64, cwnd: f64, t: f64) -> f64 {
        let k = ((w_max - cwnd) / 0.4).cbrt();
        0.4 * (t - k).powi(3) + w_max
    }

    proptest! {
        #[test]
        fn the_curve_is_that_of_the_rfc(
            w_max in 2u32..20_000,
            tenths in 1u32..=10,
            ms in 0u64..60_000,
        ) {
            let cwnd = w_max * MSS / 10 * tenths;
            let mut cubic = Cubic { w_max: w_max * MSS, ..Cubic::default() };
            cubic.begin(cwnd, &ack(Instant::ZERO, 0, 0));
            let is = f64::from(cubic.curve(Duration::from_millis(ms), MSS)) / f64::from(MSS);
            let should = reference(f64::from(w_max), f64::from(cwnd) / f64::from(MSS), ms as f64 / 1e3);
            let should = should.clamp(0.0, f64::from(WINDOW_MAX) / f64::from(MSS));
            prop_assert!((is - should).abs() < 0.02 + should * 1e-4, "{is} for {should}");
        }

        #[test]
        fn the_root_is_the_largest_whose_cube_fits(x in 0u128..1 << 120) {
            let root = u128::from(cube_root(x));
            prop_assert!(root.pow(3) <= x && (root + 1).pow(3) > x);
        }
    }

    /// A window's worth of acknowledgments, two segments each, spread over each round trip.
    fn grow(cubic: &mut Cubic, mut cwnd: u32, from: u64, rounds: u64, rtt_us: u64) -> Vec<u32> {
        let mut seen = Vec::new();
        let mut now = from;
        for _ in 0..rounds {
            let acks = u64::from(cwnd / (2 * MSS)).max(1);
            for _ in 0..acks {
                now += rtt_us / acks;
                let mut acked = ack(Instant::from_nanos(now * 1000), 2 * MSS, cwnd);
                acked.srtt = Duration::from_micros(rtt_us);
                cwnd = cubic.increase(cwnd, &acked);
            }
            seen.push(cwnd);
        }
        seen
    }

    #[test]
    fn after_a_loss_the_window_falls_to_seven_tenths_and_follows_the_curve_back() {
        let mut cubic = Cubic::default();
        let w_max = 1000 * MSS;
        let cwnd = cubic.decrease(w_max, w_max, MSS);
        assert_eq!(cwnd, w_max / 10 * 7);
        // K = cbrt(300 / 0.4) = 9.09 s; with a round trip of 100 ms Reno is slower.
        let seen = grow(&mut cubic, cwnd, 1_000_000, 130, 100_000);
        for (round, &cwnd) in seen.iter().enumerate().skip(5) {
            let should = reference(1000.0, 700.0, (round + 1) as f64 / 10.0);
            let is = f64::from(cwnd) / f64::from(MSS);
            assert!(
                (is - should).abs() < 0.03 * should,
                "{is} for {should} in round {round}"
            );
        }
    }

    #[test]
    fn where_the_curve_is_slower_the_window_follows_reno() {
        let mut cubic = Cubic::default();
        let w_max = 20 * MSS;
        let cwnd = cubic.decrease(w_max, w_max, MSS);
        // With a round trip of 10 ms, K = cbrt(6 / 0.4) = 2.5 s is many round trips; W_est
        // grows by 9/17 in each until the window has its old size, and by 1 from there.
        let seen = grow(&mut cubic, cwnd, 1_000_000, 17, 10_000);
        let is = f64::from(seen[16]) / f64::from(MSS);
        assert!((is - 25.7).abs() < 2.0, "{is} segments");
    }

    #[test]
    fn what_is_acknowledged_beyond_a_step_of_reno_counts_for_the_next_one() {
        let mut cubic = Cubic::default();
        cubic.decrease(20 * MSS, 20 * MSS, MSS);
        // Section 4.3: W_est grows by alpha * acked / cwnd segments, 9/17 * 7/10 each time: 4.08
        // after eleven.
        let cwnd = 10 * MSS;
        for _ in 0..11 {
            cubic.increase(cwnd, &ack(Instant::from_millis(1), 7 * MSS, cwnd));
        }
        assert_eq!(cubic.w_est, cwnd + 4 * MSS);
    }

    #[test]
    fn a_window_that_falls_short_of_the_last_one_leaves_room_to_others() {
        let mut cubic = Cubic::default();
        cubic.decrease(1000 * MSS, 1000 * MSS, MSS);
        assert_eq!(cubic.w_max, 1000 * MSS);
        cubic.decrease(800 * MSS, 800 * MSS, MSS);
        assert_eq!(cubic.w_max, 680 * MSS);
        // Section 4.7: only if it is smaller.
        cubic.decrease(680 * MSS, 680 * MSS, MSS);
        assert_eq!(cubic.w_max, 680 * MSS);
    }

    #[test]
    fn a_window_does_not_fall_below_two_segments() {
        let mut cubic = Cubic::default();
        assert_eq!(cubic.decrease(2 * MSS, 2 * MSS, MSS), 2 * MSS);
        assert_eq!(cubic.decrease(3 * MSS, 3 * MSS, MSS), 3 * MSS * 7 / 10);
    }

    #[test]
    fn a_pause_is_no_time_in_which_the_curve_rises() {
        let at = |second: u64| ack(Instant::from_millis(1000 * second), MSS, 10 * MSS);
        let mut cubic = Cubic::default();
        cubic.increase(10 * MSS, &at(1));
        cubic.increase(10 * MSS, &at(2));
        assert_eq!(cubic.epoch, Instant::from_millis(1000));
        // Section 5.8: the time in which the application sent nothing is not counted.
        cubic.after_idle();
        cubic.increase(10 * MSS, &at(90));
        assert_eq!(cubic.epoch, Instant::from_millis(90_000));
    }

    #[test]
    fn no_input_overflows() {
        let mut cubic = Cubic::default();
        for cwnd in [1, MSS, WINDOW_MAX] {
            for mss in [1, 65_535] {
                for now in [Instant::ZERO, Instant::from_nanos(u64::MAX - 1)] {
                    let ack = Acked {
                        mss,
                        srtt: Duration::from_secs(60),
                        ..ack(now, u32::MAX, cwnd)
                    };
                    cubic.increase(cwnd, &ack);
                    cubic.increase(cwnd, &ack);
                }
                cubic.decrease(cwnd, cwnd, mss);
            }
        }
    }
}
