//! How far the receive window opens: as far as what the application reads in a round trip asks for.
//!
//! A window that is too small costs rate, one that is too large memory and caches. The peer cannot send more than a
//! window in a round trip, so when an application reads more than half of one in that time, the window may be what
//! limits the transfer, and widens to twice what was read (M. Fisk and W. Feng, *Dynamic right-sizing in TCP*, 2001).
//! It never narrows. Rings have their full length from the beginning, so all this decides is how much of them is
//! announced.
//!
//! Only a window that is less than half open is looked at, off the short road; reading and time stand in the log.

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use super::Tcb;
use super::walk::walk;
use crate::config::Limits;
use crate::time::{Duration, Instant};

/// The shortest time that counts as a round trip: an application does not read more often.
const ROUND_LEAST: Duration = Duration::from_millis(1);

/// Measures how much is read in a round trip.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub(super) struct Tuning {
    /// When the measurement began.
    since: Instant,
    /// How much had been read by then.
    read: u64,
}

walk!(Tuning, "tuning", { since, read });

impl Tcb {
    /// The application has read, and the window is less than half open.
    pub(super) fn tune(&mut self, now: Instant, limits: &Limits) {
        let most = limits.receive_buffer;
        if self.rcv.limit >= most {
            return;
        }
        let round = self.retransmit.srtt.max(ROUND_LEAST);
        let took = now.since(self.tuning.since);
        if took < round {
            return;
        }
        let read = self.rcv.read - self.tuning.read;
        self.tuning = Tuning {
            since: now,
            read: self.rcv.read,
        };
        let a_round = u128::from(read) * u128::from(round.as_nanos()) / u128::from(took.as_nanos());
        let wanted = (2 * a_round).min(u128::from(most)) as u32;
        if wanted > self.rcv.limit {
            self.rcv.widen(wanted);
        }
    }
}
