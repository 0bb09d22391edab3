//! A worker that nobody else works with needs no log.
//!
//! While there is nobody else in a group, or all others rest, what the receive pump brings is applied and performed at
//! once, as `single` does. Nothing of it has a position: the log stands still meanwhile, with everything in it performed. As
//! soon as somebody is expected, and before a state is given away, the next turn uses the log again, from the
//! position on at which it stood. So whoever joins finds a state, a position, and nothing that is not done.
//!
//! The frames of the log's last chunk come back only when the chunk is full, so it is filled up on the way here, with
//! requests that say nothing.

use super::worker::Worker;
use super::{RxSide, Tamper};
use crate::engine::pump::Log;
use crate::time::Instant;

/// Turns in a row in which a worker takes nothing in, so that the log becomes empty.
const PATIENCE: u32 = 64;

/// How it stands with a worker and the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Company {
    /// There are others, or will be.
    Others,
    /// Nobody else is there; the log is not empty yet. So many turns have passed.
    Draining(u32),
    /// Nobody else is there, and nothing is in the log.
    Nobody,
}

impl<T: Tamper> Worker<T> {
    /// Whether others work, or are about to.
    #[inline]
    pub(super) fn is_in_company(&self) -> bool {
        self.shared.layout.always_log || !self.shared.roll.has_none_but(self.id)
    }

    /// One turn when nobody else works.
    pub(super) fn turn_without_others(&mut self, now: Instant) -> usize {
        if self.company == Company::Nobody {
            return self.turn_alone(now);
        }
        let turns = match self.company {
            Company::Draining(turns) => turns,
            _ => 0,
        };
        if self.lag() == 0 && !self.is_behind() && self.fill_up_log(now) {
            self.company = Company::Nobody;
            self.direct.begin(self.replica.position());
            return self.turn_alone(now);
        }
        if turns < PATIENCE {
            self.company = Company::Draining(turns + 1);
            return self.do_work();
        }
        self.company = Company::Draining(0);
        self.pump_in_turn(now) + self.do_work()
    }

    /// The log goes on where it stood.
    #[inline]
    pub(super) fn return_to_log(&mut self) {
        if core::mem::replace(&mut self.company, Company::Others) == Company::Nobody {
            self.direct.reclaim(&mut |run| self.shelf.put(run));
        }
    }

    /// Publishes what is missing before all frames of the log can come back. Says whether that is nothing.
    fn fill_up_log(&mut self, now: Instant) -> bool {
        let Some(mut side) = self.shared.rx.try_take() else {
            return false;
        };
        let (pump, mut log) = side.parts(&self.shared, self.id);
        log.reclaim(&mut |run| self.shelf.put(run));
        let is_full = log.gap() == 0;
        if !is_full {
            pump.fill_up(now, &mut log);
        }
        is_full
    }

    fn turn_alone(&mut self, now: Instant) -> usize {
        let shared = &*self.shared;
        let Some(mut side) = shared.rx.try_take() else {
            return 0;
        };
        let deadline = self.replica.next_deadline();
        let pump = &mut side.pump;
        core::mem::swap(&mut pump.shelf, &mut self.shelf);
        let done = pump.turns(now, deadline, &mut self.direct);
        pump.rebalance(&self.replica);
        core::mem::swap(&mut pump.shelf, &mut self.shelf);
        if shared.layout.adapt && side.staff.is_due(now) {
            let RxSide { pump, staff, .. } = &mut *side;
            shared.look_at_staff(staff, pump.balance.as_ref(), now);
        }
        drop(side);
        let position = self.replica.position();
        let requests = self.direct.work(
            &shared.world,
            &mut self.replica,
            &mut self.template,
            &mut self.stats,
        );
        if requests > 0 {
            self.replica.stay_at(position);
            self.stats.requests += requests as u64;
            shared.shares[self.id].post(&self.stats);
        }
        done + self.send().unwrap_or(0)
    }
}
