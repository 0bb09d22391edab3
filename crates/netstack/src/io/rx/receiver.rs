//! The receive pump for a thread that claims its own frames: `single`, `pipelined`, solo mode, and a
//! worker of a group that expects lone requests.

use super::{FRAMES_A_TURN, Log, RESERVED, RxPump};
use crate::io::ClaimedFrames;
use crate::io::claim::Claimer;
use crate::io::sleep::Receiving;
use crate::state::apply::Awaited;
use crate::time::Instant;

/// Maximum number of batches that are published before the thread does other work.
const MAX_BATCHES: usize = 4;

impl RxPump {
    /// Claims a batch of at most `most` frames, parses it, and publishes its requests, as far as the
    /// log has room. Returns how much was done, and whether the device had nothing.
    #[inline]
    pub(crate) fn claim_and_publish(
        &mut self,
        now: Instant,
        (claimer, most): (&mut Claimer, usize),
        log: &mut impl Log,
    ) -> (usize, bool) {
        // Every frame may need a request, and so may the gathered datagrams. Frames without room
        // stay in the device.
        let room = log.room().saturating_sub(RESERVED + 2).min(most);
        claimer.give_back(&mut self.recycler);
        if room == 0 {
            self.stats.log_full += 1;
            return (0, false);
        }
        // Reported as an empty device, so that the pump still publishes the time.
        if self.waits_for_control(now) {
            return (0, true);
        }
        let mut frames = self.recycler.spare();
        let claimed = claimer.claim(room, &mut frames);
        if claimed == 0 {
            self.recycler.put_spare(frames);
            return (0, true);
        }
        let commands = self.commands_before_batch(now, log);
        let room = log.room().saturating_sub(RESERVED + 2);
        let Some(commands) = commands.filter(|_| claimed <= room) else {
            self.stats.log_full += 1;
            claimer.unclaim(0, &mut frames);
            self.recycler.put_spare(frames);
            return (0, false);
        };
        let batch = ClaimedFrames::new(frames);
        self.stats.frames += claimed as u64;
        self.parse_and_publish(now, &batch, log);
        self.recycler.put_batch(batch);
        (commands + claimed, false)
    }

    /// Takes turns while batches are full, but at most [`MAX_BATCHES`]. Returns how much was done.
    /// `others_empty`: the claimer is for all queues of the device, or the others are empty.
    pub(crate) fn turns(
        &mut self,
        now: Instant,
        awaited: Awaited,
        (claimer, others_empty): (&mut Claimer, bool),
        log: &mut impl Log,
    ) -> usize {
        let mut done = 0;
        for _ in 0..MAX_BATCHES {
            let now_done = self.turn(now, awaited, log, |pump, log| {
                let about = (&mut *claimer, FRAMES_A_TURN);
                let (done, is_empty) = pump.claim_and_publish(now, about, log);
                (done, is_empty && others_empty)
            });
            done += now_done;
            if now_done < FRAMES_A_TURN {
                break;
            }
        }
        done
    }
}

/// A receive pump and its device, for a thread that owns both.
pub(crate) struct Receiver {
    pub(crate) pump: RxPump,
    claimer: Claimer,
}

impl Receiver {
    pub(crate) fn new(pump: RxPump, claimer: Claimer) -> Self {
        Receiver { pump, claimer }
    }

    /// As [`RxPump::turn`].
    #[cfg(feature = "pipelined")]
    pub(crate) fn turn(&mut self, now: Instant, awaited: Awaited, log: &mut impl Log) -> usize {
        self.pump.turn(now, awaited, log, |pump, log| {
            pump.claim_and_publish(now, (&mut self.claimer, FRAMES_A_TURN), log)
        })
    }

    /// As [`RxPump::turns`].
    pub(crate) fn turns(&mut self, now: Instant, awaited: Awaited, log: &mut impl Log) -> usize {
        self.pump
            .turns(now, awaited, (&mut self.claimer, true), log)
    }

    /// Whether there is something to publish other than frames in the device.
    pub(crate) fn has_work(&self) -> bool {
        self.claimer.has_rest() || self.pump.has_work()
    }
}

impl Receiving for Receiver {
    fn has_work(&mut self) -> bool {
        Receiver::has_work(self)
    }

    fn next_deadline(&mut self) -> Instant {
        self.pump.next_deadline()
    }

    fn wait(&mut self, timeout: Option<std::time::Duration>) {
        self.claimer.wait(timeout);
    }
}
