//! One thread, no log, direct calls. The baseline of every measurement and the oracle of every
//! test.

use std::sync::Arc;

use dominoes_drivers::Device;

use crate::config::Limits;
use crate::error::ConfigError;
use crate::io::direct::DirectLog;
use crate::io::perform::Template;
use crate::io::record::{Entry, Recorder};
use crate::io::rx::{Log, RxPump, TxPump};
use crate::io::world::World;
use crate::socket::Sockets;
use crate::state::apply::Replica;
use crate::stats::{EffectStats, PumpStats};
use crate::time::Instant;
use crate::variants::Setup;

/// Deliveries are performed at once and in order: as many slots do as there may be of them before
/// the application looks.
const DELIVERY_SLOTS: usize = 128;

/// A stack on one thread.
pub struct Single {
    rx: RxPump,
    tx: TxPump,
    world: Arc<World>,
    replica: Replica,
    direct: DirectLog,
    template: Template,
    stats: EffectStats,
}

/// However a test drives it, what it was sent made nothing panic.
#[cfg(feature = "testkit")]
impl Drop for Single {
    fn drop(&mut self) {
        self.world.assert_no_panics(&self.replica);
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
        Ok(Single {
            replica: Replica::new(base.world.limits),
            world: base.world,
            direct: DirectLog::default(),
            template: Template::default(),
            stats: EffectStats::default(),
            rx: base.rx,
            tx: base.tx,
        })
    }

    /// One turn: news, frames in, frames out. Returns how much was done; 0 means that nothing will
    /// happen before [`Single::next_deadline`] unless a frame or an application comes.
    pub fn turn(&mut self, now: Instant) -> usize {
        let deadline = self.replica.next_deadline();
        let done = self.rx.turns(now, deadline, &mut self.direct);
        self.rx.rebalance(&self.replica);
        self.work();
        done + self.tx.turn()
    }

    fn work(&mut self) {
        let Single {
            world,
            replica,
            direct,
            template,
            stats,
            ..
        } = self;
        direct.work(world, replica, template, stats);
    }

    /// When time has to be told at the latest.
    pub fn next_deadline(&self) -> Instant {
        self.replica.next_deadline().min(self.rx.next_deadline())
    }

    /// Applies an entry of a recorded log as if it came from the pump, and sends what it asks for.
    ///
    /// What the application wrote is put into the send rings first; what it had read by then is up
    /// to the caller, who reads through the sockets.
    pub fn replay(&mut self, entry: &Entry) {
        let run = entry.prepare_world(&self.world);
        self.direct.publish(&entry.request, entry.verdict, run);
        self.work();
        self.direct.reclaim(&mut drop);
        while self.tx.turn() > 0 {}
    }

    /// The sockets.
    pub fn sockets(&self) -> Sockets {
        Sockets::new(&self.world)
    }

    /// The state.
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// The recording so far, which ends with this.
    pub fn take_recorder(&mut self) -> Option<Recorder> {
        self.rx.take_recorder()
    }

    /// Bytes of text that came in segments; and frames that came.
    pub(crate) fn received(&self) -> (u64, u64) {
        (self.rx.received, self.rx.stats.frames)
    }

    /// What the pump saw.
    pub fn pump_stats(&self) -> PumpStats {
        self.rx.stats
    }

    /// What was performed.
    pub fn effect_stats(&self) -> EffectStats {
        self.stats
    }

    /// The bounds in force, fitted to the device.
    pub fn limits(&self) -> Limits {
        self.world.limits
    }

    pub(crate) fn world(&self) -> &Arc<World> {
        &self.world
    }

    pub(crate) fn pumps(&mut self) -> (&mut RxPump, &mut TxPump) {
        (&mut self.rx, &mut self.tx)
    }
}
