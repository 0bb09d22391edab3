//! Congestion avoidance of RFC 5681, with appropriate byte counting (RFC 3465).

use serde::{Deserialize, Serialize};

use super::{Acked, Algorithm};
use crate::tcp::walk::walk;

/// One segment more for each window that is acknowledged; half after a loss.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Reno {
    /// Octets acknowledged since the window last grew.
    acked: u32,
}

walk!(Reno, "reno", { acked });

impl Algorithm for Reno {
    /// RFC 3465 section 2.1.
    #[inline]
    fn grown(&mut self, cwnd: u32, ack: &Acked) -> u32 {
        self.acked = self.acked.saturating_add(ack.acked);
        if self.acked < cwnd {
            return cwnd;
        }
        self.acked -= cwnd;
        cwnd + ack.mss
    }

    /// RFC 5681 section 3.1, equation 4.
    fn fallen(&mut self, _cwnd: u32, flight: u32, mss: u32) -> u32 {
        self.acked = 0;
        (flight / 2).max(2 * mss)
    }

    fn restarted(&mut self) {
        self.acked = 0;
    }
}
