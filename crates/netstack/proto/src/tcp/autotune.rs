//! Receive-window autotuning: the window grows with the amount of data that the application
//! reads in a round trip.
//!
//! A window that is too small costs throughput; one that is too large costs memory and cache space.
//! The peer cannot send more than a window in a round trip. So when an application reads more than
//! half a window in that time, the window may limit the transfer, and is widened to twice that
//! amount (M. Fisk and W. Feng, *Dynamic right-sizing in TCP*, 2001). It never narrows. Rings have
//! their full length from the beginning; this only determines how much of a ring is advertised.
//!
//! Only a window that is less than half open is considered, off the fast path. The read cursor and
//! the time come from the log.

use super::Tcb;
use super::fields::fields;
use crate::config::Limits;
use crate::time::{Duration, Instant};

/// The shortest time that counts as a round trip; applications do not read more often.
const MIN_ROUND_TRIP: Duration = Duration::from_millis(1);

/// Measures how much the application reads in a round trip.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Autotune {
    /// When the measurement began.
    since: Instant,
    /// The read cursor at that time.
    read: u64,
}

fields!(Autotune, "autotune", { since, read });

impl Tcb {
    /// The largest limit of the window: the ring's length, or the application's setting if that
    /// is smaller.
    fn most_unread(&self, limits: &Limits) -> u32 {
        match self.tuning.receive_buffer {
            0 => limits.receive_buffer,
            most => most.min(limits.receive_buffer),
        }
    }

    /// The application has changed the maximum of the window: the window opens to a larger one
    /// at once, and closes to a smaller one as data arrives.
    pub(super) fn bound_receive_window(&mut self, limits: &Limits) {
        let most = self.most_unread(limits);
        if self.rcv.limit > most {
            self.rcv.narrow(most);
        } else if self.tuning.receive_buffer != 0 {
            self.rcv.widen(most);
        }
    }

    /// The application has read, and the window is less than half open.
    pub(super) fn autotune(&mut self, now: Instant, limits: &Limits) {
        let most = self.most_unread(limits);
        if self.rcv.limit >= most {
            if self.rcv.limit > most {
                self.rcv.narrow(most);
            }
            return;
        }
        let round = self.retransmit.srtt.max(MIN_ROUND_TRIP);
        let took = now.since(self.autotune.since);
        if took < round {
            return;
        }
        let read = self.rcv.read - self.autotune.read;
        self.autotune = Autotune {
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
