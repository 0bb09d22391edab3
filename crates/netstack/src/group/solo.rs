//! Solo mode: a worker that is alone works without the log.
//!
//! While no other worker is active, the worker applies and performs at once what the receive pump
//! brings, as [`single`](crate::variants::single) does. None of that gets a position: the log
//! stands still, and everything in it is performed. As soon as another worker joins, and before any
//! state is given away, the next turn uses the log again, from the position where it stood. So the
//! joiner gets a state and a position, and no pending effects.
//!
//! The frames of the log's last chunk are recycled only when the chunk is full. So before it enters
//! solo mode, the worker fills the chunk up with requests that change nothing.
//!
//! A worker that wants to join announces that before a state is given away, so a snapshot is always
//! of a position below which nothing is pending. A parked replica has no state: while one worker is
//! solo, no other replica has a copy. Counted in instructions, a solo worker is within 1 % of
//! `single`; with a log it takes 1.1 to 2 times as many, more the smaller
//! the requests are.

use super::worker::ReplicatedWorker;
use crate::drive::Worker as _;
use crate::group::FaultHooks;
use crate::io::rx::Log;
use crate::time::Instant;

/// Consecutive turns in which a worker takes in no frames, so that the log becomes empty.
const DRAIN_TURNS: u32 = 64;

/// Whether a worker uses the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogMode {
    /// Other workers are active, or about to be.
    Logged,
    /// No other worker is active, and the log is not empty yet. Counts the turns so far.
    Draining(u32),
    /// No other worker is active, and the log is empty: the worker does not use it.
    Solo,
}

impl<T: FaultHooks> ReplicatedWorker<T> {
    /// Whether other workers are active, or about to be.
    #[inline]
    pub(crate) fn needs_log(&self) -> bool {
        self.shared.layout.tuning.is_always_logged()
            || !self.shared.membership.is_only_active(self.id)
    }

    /// Takes in frames while no other worker is active: for the log, until that is empty.
    pub(crate) fn pump_alone(&mut self, now: Instant) -> usize {
        if self.is_solo() {
            return self.pump_solo(now);
        }
        let turns = match self.log_mode {
            LogMode::Draining(turns) => turns,
            _ => 0,
        };
        let is_drained = self.lag() == 0 && !self.shared.batches.is_any_waiting();
        if is_drained && !self.has_pending_effects() && self.fill_up_log(now) {
            self.log_mode = LogMode::Solo;
            self.direct.begin(self.replica.position());
            return self.pump_solo(now);
        }
        if turns < DRAIN_TURNS {
            self.log_mode = LogMode::Draining(turns + 1);
            if !self.shared.batches.is_any_waiting() {
                return 0;
            }
            self.parse();
            return self.publish_parsed(now).unwrap_or(0);
        }
        self.log_mode = LogMode::Draining(0);
        self.pump_in_turn(now)
    }

    /// Leaves solo mode: the log goes on where it stood.
    #[inline]
    pub(crate) fn return_to_log(&mut self) {
        if core::mem::replace(&mut self.log_mode, LogMode::Logged) == LogMode::Solo {
            self.direct.reclaim(&mut |run| self.recycler.put(run));
        }
    }

    /// Publishes the requests that the log's last chunk lacks, after which all of its frames can be
    /// recycled. Returns whether none were lacking.
    fn fill_up_log(&mut self, now: Instant) -> bool {
        let Some(mut side) = self.shared.rx.try_take() else {
            return false;
        };
        let (pump, mut log) = side.parts(&self.shared, self.id);
        log.reclaim(&mut |run| self.recycler.put(run));
        let is_full = log.gap() == 0;
        if !is_full {
            pump.pad_chunk(now, &mut log);
        }
        is_full
    }

    fn pump_solo(&mut self, now: Instant) -> usize {
        let shared = &*self.shared;
        let Some(mut side) = shared.rx.try_take() else {
            return 0;
        };
        let Some(mut claimer) = shared.claimer.try_take() else {
            return 0;
        };
        let deadline = self.replica.next_deadline();
        let pump = &mut side.pump;
        core::mem::swap(&mut pump.recycler, &mut self.recycler);
        let done = pump.turns(now, deadline, &mut claimer, &mut self.direct);
        drop(claimer);
        core::mem::swap(&mut pump.recycler, &mut self.recycler);
        if shared.layout.autoscale && side.autoscaler.is_due(now) {
            shared.autoscale(&mut side.autoscaler, now);
        }
        done
    }

    /// Applies and performs what the pump brought. The pump has counted it.
    #[inline]
    pub(super) fn process_solo(&mut self) -> usize {
        let position = self.replica.position();
        let shared = &*self.shared;
        let requests = self.direct.work(
            &shared.world,
            &mut self.replica,
            &mut self.template,
            &mut self.stats,
        );
        if requests > 0 {
            self.replica.continue_log_at(position);
            self.stats.requests += requests as u64;
            shared.slot_stats[self.id].post(&self.stats);
        }
        0
    }
}
