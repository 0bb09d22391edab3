//! Solo mode: the only active worker works without the log.
//!
//! Like [`single`](crate::variants::single), a solo worker applies and performs each request as
//! soon as the receive pump produces it. These requests get no position: the log is fully performed
//! and does not move. When another worker asks to join, the next turn uses the log again, from its
//! old position. The request to join is visible before any snapshot is taken, so the joiner gets a
//! state and a position, but no pending effects.
//!
//! A parked replica has no state, so during solo mode there is only one copy. A solo worker
//! executes within 1 % of the instructions of `single`; with the log it executes 1.1 to 2 times as
//! many (most for small requests).

use super::worker::ReplicatedWorker;
use crate::drive::Worker as _;
use crate::drive::coalescing::Received;
use crate::group::FaultHooks;
use crate::io::rx::Log as _;
use crate::time::Instant;

/// Consecutive turns in which the worker receives no frames, so that the log can drain.
const DRAIN_TURNS: u32 = 64;

/// Whether a worker uses the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogMode {
    /// Other workers are active, or about to be.
    Logged,
    /// No other worker is active, and the log is not empty yet. Counts the turns of draining.
    Draining(u32),
    /// No other worker is active, and the log is empty: the worker does not use it.
    Solo,
}

impl<T: FaultHooks> ReplicatedWorker<T> {
    /// Whether this worker is the only active one, and works without the log.
    pub fn is_solo(&self) -> bool {
        self.log_mode == LogMode::Solo
    }

    /// Whether other workers are active, or about to be.
    #[inline]
    pub(crate) fn needs_log(&self) -> bool {
        !self.shared.membership.is_only_active(self.id)
            || self.shared.layout.tuning.is_always_logged()
    }

    /// Receives frames while no other worker is active. Uses the log until the log has drained.
    pub(crate) fn pump_alone(&mut self, now: Instant) -> usize {
        if self.is_solo() {
            return self.pump_solo(now);
        }
        let turns = match self.log_mode {
            LogMode::Draining(turns) => turns,
            _ => 0,
        };
        let is_drained = self.lag() == 0 && !self.shared.batches.is_any_waiting();
        if is_drained && !self.has_pending_effects() {
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

    /// Leaves solo mode: the log continues at its old position.
    #[inline]
    pub(crate) fn return_to_log(&mut self) {
        if core::mem::replace(&mut self.log_mode, LogMode::Logged) == LogMode::Solo {
            let recycler = &mut self.share.recycler;
            self.direct.reclaim(&mut |batch| recycler.put_batch(batch));
        }
    }

    /// Sleeps for a moment, in solo mode, if it is likely that several frames come meanwhile.
    /// Otherwise other workers would wait for this one. Returns whether it did.
    pub fn rest_alone(&mut self, now: Instant) -> bool {
        if !self.is_solo() {
            return false;
        }
        let side = self.shared.rx.try_take();
        let received = side.map(|side| Received::by(&side.pump));
        received.is_some_and(|received| self.coalescing.rest(now, received))
    }

    fn pump_solo(&mut self, now: Instant) -> usize {
        let queues = self.queues();
        let (shared, awaited) = (&*self.shared, self.replica.awaited());
        let (direct, recycler) = (&mut self.direct, &mut self.share.recycler);
        let done = shared.with_pump((self.id, now), recycler, None, |pump, _| {
            let (mut done, mut unseen) = (0, shared.queues.len());
            for queue in queues {
                let Some(mut claimer) = shared.queues.try_take(queue) else {
                    continue;
                };
                unseen -= 1;
                // Only the last queue shows whether the device is empty.
                let about = (&mut *claimer, unseen == 0 && done == 0);
                done += pump.turns(now, awaited, about, direct);
            }
            done
        });
        done.unwrap_or(0)
    }

    /// Applies and performs the pump's requests. Returns 0, since the pump has counted them.
    #[inline]
    pub(super) fn process_solo(&mut self) -> usize {
        let position = self.replica.position();
        let shared = &*self.shared;
        let requests = self.direct.work(
            &shared.world,
            &mut self.replica,
            &mut self.share.headers,
            &mut self.share.stats,
        );
        if requests > 0 {
            self.replica.continue_log_at(position);
            self.share.stats.requests += requests as u64;
            shared.slot_stats[self.id].post(&self.share.stats);
        }
        0
    }
}
