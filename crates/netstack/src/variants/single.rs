//! One thread, no log, direct calls. The baseline of every measurement and the oracle of every
//! test.

use std::sync::Arc;

use dominoes_drivers::Device;

use crate::drive::coalescing::{CoalescingDelay, Received};
use crate::drive::{ByHand, Worker};
use crate::error::ConfigError;
use crate::io::direct::{DirectLog, Receiver};
use crate::io::perform::BuiltHeaders;
use crate::io::record::{Entry, Recorder};
use crate::io::rx::Log;
use crate::io::setup::Setup;
use crate::io::sleep::sleep_alone;
use crate::io::tx::TxPump;
use crate::io::world::World;
use crate::state::apply::ReplicaState;
use crate::stats::{EffectStats, PumpStats, WorkerStats};
use crate::time::Instant;

/// Deliveries are performed immediately and in order. A reader that finds its slots used again goes
/// on at the newest delivery, so any number would do; it costs memory for each connection.
const DELIVERY_SLOTS: usize = 128;

/// A stack on one thread.
pub type Single = ByHand<SingleWorker>;

/// The worker of a stack on one thread: owns all of it.
pub struct SingleWorker {
    rx: Receiver,
    tx: TxPump,
    world: Arc<World>,
    replica: ReplicaState,
    direct: DirectLog,
    headers: BuiltHeaders,
    stats: EffectStats,
    coalescing: CoalescingDelay,
}

/// Fails a test in which the state caught an unexpected panic, however the test drove the stack.
#[cfg(feature = "testkit")]
impl Drop for SingleWorker {
    fn drop(&mut self) {
        self.world
            .assert_no_panics(self.replica.unexpected_panics());
    }
}

impl Single {
    /// A stack over `device`.
    ///
    /// # Errors
    /// If a setting is out of its range.
    pub fn new(setup: Setup, device: Box<dyn Device>) -> Result<Single, ConfigError> {
        let mut base = setup.build(device, DELIVERY_SLOTS, 1)?;
        base.rx.stores_ahead = true;
        let handle = Arc::new(Arc::clone(&base.world));
        let worker = SingleWorker {
            replica: ReplicaState::new(base.world.limits),
            world: base.world,
            direct: DirectLog::default(),
            headers: BuiltHeaders::default(),
            stats: EffectStats::default(),
            coalescing: CoalescingDelay::default(),
            rx: Receiver::new(base.rx, base.claimer),
            tx: base.tx,
        };
        Ok(ByHand::new_over([worker], handle))
    }

    /// The state.
    pub fn replica(&self) -> &ReplicaState {
        &self.all_workers()[0].replica
    }
}

impl Worker for SingleWorker {
    fn name(&self) -> String {
        "single".to_owned()
    }

    fn receive(&mut self, now: Instant) -> usize {
        let awaited = self.replica.awaited();
        self.rx.turns(now, awaited, &mut self.direct)
    }

    fn process(&mut self) -> usize {
        let SingleWorker {
            world,
            replica,
            direct,
            headers,
            stats,
            ..
        } = self;
        direct.work(world, replica, headers, stats);
        // The receive pump has already counted this work.
        0
    }

    fn transmit(&mut self, _is_idle: bool) -> usize {
        match self.world.has_sent_all(self.replica.frames().next) {
            true => 0,
            false => self.tx.turn(),
        }
    }

    fn serve_units(&mut self) -> usize {
        self.world.serve_units(|| ())
    }

    fn next_deadline(&self) -> Instant {
        self.state_deadline().min(self.rx.pump.next_deadline())
    }

    fn state_deadline(&self) -> Instant {
        self.replica.next_deadline()
    }

    fn has_work(&mut self) -> bool {
        self.tx.has_work()
    }

    fn needs_pump(&self) -> bool {
        self.world.is_awaited(self.replica.awaited())
    }

    fn is_pump_busy(&self) -> bool {
        self.rx.has_work() || self.needs_pump()
    }

    fn stats(&self) -> WorkerStats {
        let applied = self.replica.position();
        // This worker is the primary of every request, so it need not count them.
        let mut effects = self.stats;
        effects.requests = applied;
        WorkerStats {
            applied,
            effects,
            ..WorkerStats::default()
        }
    }

    fn is_alone(&self) -> bool {
        true
    }

    fn pump_stats(&self) -> Option<PumpStats> {
        Some(self.rx.pump.stats())
    }

    fn inspect(&self, look: &mut dyn FnMut(&ReplicaState)) {
        look(&self.replica);
    }

    fn attend(&mut self) -> bool {
        let goes_on = !self.world.is_down();
        if goes_on && self.world.view.is_asked() {
            self.world.view.answer(&self.replica);
        }
        goes_on
    }

    fn post(&mut self) {
        let (pump, state) = (self.rx.pump.stats(), self.replica.stats());
        self.world
            .post(|posted| (posted.pump, posted.state) = (pump, state));
    }

    fn rest(&mut self, now: Instant) -> bool {
        self.coalescing.rest(now, Received::by(&self.rx.pump))
    }

    fn wait(&mut self, now: Instant) {
        let deadline = self.next_deadline();
        self.wait_alone((deadline, now), &mut || false);
    }

    fn wait_alone(&mut self, when: (Instant, Instant), others_have_work: &mut dyn FnMut() -> bool) {
        let SingleWorker {
            rx,
            tx,
            world,
            replica,
            ..
        } = self;
        sleep_alone(world, rx, when, tx.next_try(), || {
            tx.has_work() || world.is_awaited(replica.awaited()) || others_have_work()
        });
    }

    fn replay(&mut self, entry: &Entry) -> bool {
        let mut run = entry.prepare_world(&self.world);
        self.direct.publish(&mut run);
        self.process();
        self.direct.reclaim(&mut drop);
        true
    }

    fn take_recorder(&mut self) -> Option<Recorder> {
        self.rx.pump.take_recorder()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dominoes_drivers::memory::{self, MemoryConfig, scripted_with};

    /// A turn reads commands before it polls sockets; an application may act between the two.
    #[test]
    fn what_a_socket_sends_before_the_pump_knows_it_is_sent_when_it_does() {
        let (device, script) = scripted_with(MemoryConfig::default());
        let setup = Setup::new([10, 0, 0, 1].into(), 24, [1, 2]);
        let mut single = Single::new(setup, Box::new(device)).expect("a valid setup");
        let now = Instant::from_millis(1);
        while single.turn(now) > 0 {}
        script.take_sent();

        let peer = ([10, 0, 0, 2], 9).into();
        let mut socket = single.sockets().bind_udp(7).expect("a free port");
        socket.try_send_to(b"x", peer).expect("room");
        let worker = &mut single.workers()[0];
        worker.rx.pump.poll_sockets(now, &mut worker.direct);
        while single.turn(now) > 0 {}
        // It sends an ARP request for the peer's address.
        let sent = script.take_sent();
        assert!(
            matches!(&sent[..], [(frame, _)] if frame[12..14] == [8, 6]),
            "{sent:?}"
        );
    }

    /// The bytes of a datagram may be overwritten once its frame is sent, which the state must learn.
    #[test]
    fn the_pump_tells_a_state_that_waits_that_frames_are_sent_and_does_not_sleep_before() {
        let (here, there) = memory::pair(MemoryConfig::default());
        let stack = |last: u8, device| {
            let setup = Setup::new([10, 0, 0, last].into(), 24, [1, u64::from(last)]);
            Single::new(setup, Box::new(device)).expect("a valid setup")
        };
        let (mut single, mut peer) = (stack(1, here), stack(2, there));
        let mut socket = single.sockets().bind_udp(7).expect("a free port");
        let _receiver = peer.sockets().bind_udp(9).expect("a free port");
        let (now, to) = (Instant::from_millis(1), ([10, 0, 0, 2], 9).into());
        socket.try_send_to(b"x", to).expect("room");
        while single.turn(now) + peer.turn(now) > 0 {}

        let before = single.pump_stats().requests;
        socket.try_send_to(b"y", to).expect("room");
        assert!(single.turn(now) > 0 && single.is_pump_busy());
        assert_eq!(single.turn(now), 1);
        assert!(!single.is_pump_busy() && single.turn(now) == 0);
        assert_eq!(single.pump_stats().requests - before, 2);
    }

    #[cfg(feature = "testkit")]
    #[test]
    fn a_stack_that_caught_an_unexpected_panic_fails_at_its_end() {
        use std::panic::{AssertUnwindSafe, catch_unwind};

        let (device, _) = scripted_with(MemoryConfig::default());
        let setup = Setup::new([10, 0, 0, 1].into(), 24, [1, 2]);
        let single = Single::new(setup, Box::new(device)).expect("a valid setup");
        let sockets = single.sockets();
        let world = &sockets.worlds()[0];
        let ends_well =
            |panics| catch_unwind(AssertUnwindSafe(|| world.assert_no_panics(panics))).is_ok();
        assert!(ends_well(0));
        assert!(!ends_well(1));
        assert_eq!(world.unplanned_panics(), 1, "its stack knows");
    }
}
