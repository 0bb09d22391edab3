//! The receive pump for a thread that claims its own frames: `single`, `pipelined`, solo mode, and a
//! worker of a group that expects lone requests (`Direct` in `group/intake.rs`).

use super::{BatchSource, FRAMES_A_TURN, Log, RESERVED, RxPump};
use crate::io::ClaimedFrames;
use crate::io::claim::Claimer;
use crate::io::sleep::Receiving;
use crate::state::apply::Awaited;
use crate::time::Instant;

/// Maximum number of batches that are published before the thread does other work.
const MAX_BATCHES: usize = 4;

/// Claims a batch from the device whenever the pump asks for one.
pub(crate) struct Claiming<'a> {
    claimer: &'a mut Claimer,
    /// Most frames of a batch.
    most: usize,
    /// Whether this claimer is for all queues of the device, or has found the others empty.
    others_empty: bool,
}

impl<'a> Claiming<'a> {
    /// Claims no more frames at once than this.
    pub(crate) const fn at_most(most: usize, claimer: &'a mut Claimer) -> Self {
        Claiming {
            claimer,
            most,
            others_empty: true,
        }
    }
}

impl<L: Log> BatchSource<L> for Claiming<'_> {
    fn publish(&mut self, pump: &mut RxPump, now: Instant, log: &mut L) -> (usize, bool) {
        // Every frame may need a request, and so may the gathered datagrams. Frames without room
        // stay in the device.
        let room = log.room().saturating_sub(RESERVED + 2).min(self.most);
        self.claimer.give_back(&mut pump.recycler);
        if room == 0 {
            pump.stats.log_full += 1;
            return (0, false);
        }
        // Reported as an empty device, so that the pump still publishes the time.
        if pump.waits_for_control(now) {
            return (0, true);
        }
        let mut frames = pump.recycler.spare();
        let claimed = self.claimer.claim(room, &mut frames);
        if claimed == 0 {
            pump.recycler.put_spare(frames);
            return (0, self.others_empty);
        }
        let commands = pump.commands_before_batch(now, log);
        let room = log.room().saturating_sub(RESERVED + 2);
        let Some(commands) = commands.filter(|_| claimed <= room) else {
            pump.stats.log_full += 1;
            self.claimer.unclaim(0, &mut frames);
            pump.recycler.put_spare(frames);
            return (0, false);
        };
        let batch = ClaimedFrames::new(frames);
        pump.stats.frames += claimed as u64;
        pump.parse_and_publish(now, &batch, log);
        pump.recycler.put_batch(batch);
        (commands + claimed, false)
    }
}

impl RxPump {
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
            let batches = &mut Claiming {
                others_empty,
                ..Claiming::at_most(FRAMES_A_TURN, claimer)
            };
            let now_done = self.turn(now, awaited, batches, log);
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
        let mut claiming = Claiming::at_most(FRAMES_A_TURN, &mut self.claimer);
        self.pump.turn(now, awaited, &mut claiming, log)
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
