//! One thread, no log, direct calls. The baseline of every measurement and the oracle of every test.

use std::sync::Arc;

use dominoes_drivers::Device;

use crate::config::Limits;
use crate::digest::Request;
use crate::effect::Effect;
use crate::engine::Run;
use crate::engine::perform::{self, Template};
use crate::engine::prepare::prepare_and_store;
use crate::engine::pump::{BATCH, HOLDS, Log, RxPump, TxPump};
use crate::engine::record::{Entry, Recorder};
use crate::engine::replica::Replica;
use crate::engine::world::{Wakes, World};
use crate::error::ConfigError;
use crate::socket::Sockets;
use crate::stats::{EffectStats, PumpStats};
use crate::time::Instant;
use crate::variants::Setup;

/// Requests that may be published at once: there is no log, so no bound but this.
const ROOM: usize = 1 << 10;
/// Deliveries are performed at once and in order, so a few slots do.
const DELIVERY_SLOTS: usize = 64;

/// A request of the pump, its verdict if that is known, and the frames it is about.
type Brought = (Request, Option<u16>, Run);

/// A stack on one thread.
pub struct Single {
    rx: RxPump,
    tx: TxPump,
    core: Core,
}

/// The state, and who performs its effects.
struct Core {
    world: Arc<World>,
    replica: Replica,
    /// What the pump brought, with verdicts as far as they are known.
    brought: Vec<Brought>,
    /// What was brought before, whose frames go back.
    done: Vec<Brought>,
    effects: Vec<Effect>,
    template: Template,
    stats: EffectStats,
}

impl Log for Core {
    fn room(&mut self) -> usize {
        ROOM - self.brought.len()
    }

    fn publish(&mut self, request: &Request, verdict: Option<u16>, run: Run) {
        self.brought.push((*request, verdict, run));
    }

    fn reclaim(&mut self, each: &mut dyn FnMut(Run)) {
        self.done.drain(..).for_each(|(_, _, run)| each(run));
        if self.brought.is_empty() {
            // Its memory serves again.
            core::mem::swap(&mut self.brought, &mut self.done);
        }
    }

    fn published(&self) -> u64 {
        self.replica.position() + self.brought.len() as u64
    }

    fn performed(&self) -> u64 {
        self.replica.position()
    }
}

impl Core {
    /// Does what the pump brought, one step after the other: all checksums first, as reading what a device wrote
    /// goes fastest when nothing comes between.
    fn work(&mut self) {
        for (request, verdict, run) in &mut self.brought {
            if verdict.is_none() {
                self.stats.prepared += 1;
                *verdict = Some(prepare_and_store(&self.world, request, run));
            }
        }
        let world = Arc::clone(&self.world);
        let mut wakes = Wakes::new(&world);
        let brought = core::mem::take(&mut self.brought);
        let Core {
            replica,
            effects,
            template,
            stats,
            ..
        } = self;
        replica.apply_each(
            &brought,
            effects,
            |one| (&one.0, one.1.unwrap_or(0)),
            |(request, _, run), effects| {
                for effect in &*effects {
                    match effect {
                        Effect::Deliver(deliver) => {
                            let (seg_len, offset) = request.layout();
                            perform::deliver(&world, deliver, seg_len, offset, run, stats);
                            wakes.add(deliver.conn);
                        }
                        Effect::Transmit(transmit) => {
                            for i in 0..transmit.count {
                                perform::build(&world, transmit, i, template, stats);
                            }
                        }
                        Effect::Queue(queue) => {
                            perform::queue(&world, queue, run, stats);
                            wakes.add_socket(queue.socket);
                        }
                        Effect::Send(send) => {
                            for i in 0..send.count {
                                perform::build_datagram(&world, send, i, stats);
                            }
                        }
                        other => {
                            perform::tell(&world, other, stats);
                            wakes.after(other);
                        }
                    }
                }
                effects.clear();
            },
        );
        self.done = brought;
    }
}

impl Single {
    /// A stack over `device`.
    ///
    /// # Errors
    /// If a setting is out of its range.
    pub fn new(setup: Setup, device: Box<dyn Device>) -> Result<Single, ConfigError> {
        let mut base = setup.build(device, DELIVERY_SLOTS)?;
        base.rx.stores_ahead = base.world.streams.inline.is_none();
        let core = Core {
            replica: Replica::new(base.world.limits),
            world: base.world,
            brought: Vec::new(),
            done: Vec::new(),
            effects: Vec::new(),
            template: Template::default(),
            stats: EffectStats::default(),
        };
        Ok(Single {
            rx: base.rx,
            tx: base.tx,
            core,
        })
    }

    /// One turn: news, frames in, frames out. Returns how much was done; 0 means that nothing will happen
    /// before [`Single::next_deadline`] unless a frame or an application comes.
    pub fn turn(&mut self, now: Instant) -> usize {
        let deadline = self.core.replica.next_deadline();
        let mut done = 0;
        for _ in 0..HOLDS {
            let now_done = self.rx.turn(now, deadline, &mut self.core);
            done += now_done;
            if now_done < BATCH {
                break;
            }
        }
        self.core.work();
        done + self.tx.turn()
    }

    /// When time has to be told at the latest.
    pub fn next_deadline(&self) -> Instant {
        self.core
            .replica
            .next_deadline()
            .min(self.rx.next_deadline())
    }

    /// Applies an entry of a recorded log as if it came from the pump, and sends what it asks for.
    ///
    /// What the application wrote is put into the send rings first; what it had read by then is up to the
    /// caller, who reads through the sockets.
    pub fn replay(&mut self, entry: &Entry) {
        let run = entry.prepare_world(&self.core.world);
        self.core.publish(&entry.request, entry.verdict, run);
        self.core.work();
        self.core.done.clear();
        while self.tx.turn() > 0 {}
    }

    /// The sockets.
    pub fn sockets(&self) -> Sockets {
        Sockets::new(&self.core.world)
    }

    /// The state.
    pub fn replica(&self) -> &Replica {
        &self.core.replica
    }

    /// The recording so far, which ends with this.
    pub fn take_recorder(&mut self) -> Option<Recorder> {
        self.rx.take_recorder()
    }

    /// Octets of text that came in segments; and frames that came.
    pub(crate) fn received(&self) -> (u64, u64) {
        (self.rx.received, self.rx.stats.frames)
    }

    /// What the pump saw.
    pub fn pump_stats(&self) -> PumpStats {
        self.rx.stats
    }

    /// What was performed.
    pub fn effect_stats(&self) -> EffectStats {
        self.core.stats
    }

    /// The bounds in force, fitted to the device.
    pub fn limits(&self) -> Limits {
        self.core.world.limits
    }

    pub(crate) fn world(&self) -> &Arc<World> {
        &self.core.world
    }

    pub(crate) fn pumps(&mut self) -> (&mut RxPump, &mut TxPump) {
        (&mut self.rx, &mut self.tx)
    }
}
