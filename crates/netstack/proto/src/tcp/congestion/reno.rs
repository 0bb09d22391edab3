//! Congestion avoidance of RFC 5681, with appropriate byte counting (RFC 3465).

use super::{Acked, Algorithm};
use crate::tcp::fields::fields;

/// Adds one segment for each acknowledged window; halves the window after a loss.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reno {
    /// Bytes acknowledged since the window last grew.
    acked: u32,
}

fields!(Reno, "reno", { acked });

impl Algorithm for Reno {
    /// RFC 3465 section 2.1.
    #[inline]
    fn increase(&mut self, cwnd: u32, ack: &Acked) -> u32 {
        self.acked = self.acked.saturating_add(ack.acked);
        if self.acked < cwnd {
            return cwnd;
        }
        self.acked -= cwnd;
        cwnd + ack.mss
    }

    /// RFC 5681 section 3.1, equation 4.
    fn decrease(&mut self, _cwnd: u32, flight: u32, mss: u32) -> u32 {
        self.acked = 0;
        (flight / 2).max(2 * mss)
    }

    fn after_idle(&mut self) {
        self.acked = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1000;

    fn ack(acked: u32) -> Acked {
        Acked {
            acked,
            flight: 10 * MSS,
            mss: MSS,
            ..Acked::default()
        }
    }

    #[test]
    fn what_is_acknowledged_beyond_a_window_counts_for_the_next_segment() {
        let mut reno = Reno::default();
        assert_eq!(reno.increase(10 * MSS, &ack(7 * MSS)), 10 * MSS);
        assert_eq!(reno.increase(10 * MSS, &ack(7 * MSS)), 11 * MSS);
        // Four are left over, and with seven more it is eleven.
        assert_eq!(reno.increase(11 * MSS, &ack(7 * MSS)), 12 * MSS);
        assert_eq!(reno.acked, 0);
    }

    #[test]
    fn a_loss_halves_what_was_in_flight_and_it_and_a_pause_begin_the_count_anew() {
        let mut reno = Reno::default();
        reno.increase(10 * MSS, &ack(7 * MSS));
        assert_eq!(reno.decrease(10 * MSS, 9 * MSS, MSS), 9 * MSS / 2);
        assert_eq!(reno.acked, 0);
        assert_eq!(reno.decrease(10 * MSS, 3 * MSS, MSS), 2 * MSS);
        reno.increase(10 * MSS, &ack(7 * MSS));
        reno.after_idle();
        assert_eq!(reno.acked, 0);
    }
}
