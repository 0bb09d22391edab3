//! A stack over a device whose far side is the target, driven by hand.

use dominoes_drivers::memory::{MemoryConfig, Script, scripted_with};
use dominoes_drivers::{Frame, RxMeta};
use dominoes_netstack::group::{Group, Layout, Tuning};
use dominoes_netstack::time::Instant;
use dominoes_netstack::variants::Setup;
use dominoes_netstack::variants::single::Single;
use dominoes_netstack::{Limits, Replica, Sockets};

use crate::packets::{STACK, STACK_MAC};

/// Turns at one moment after which the stack counts as spinning.
const SPINNING: usize = 100_000;

enum Engine {
    Single(Box<Single>),
    Group(Box<Group>),
}

/// How a stack is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Single,
    /// Two replicas, on logs of this length in requests.
    Pair(usize),
}

/// A stack, and what its device's far side has.
pub(crate) struct Stack {
    engine: Engine,
    pub(crate) script: Script,
    pub(crate) sockets: Sockets,
}

/// The bounds of every stack here: small ones, since each input makes a stack of its own.
pub(crate) fn limits() -> Limits {
    Limits::default()
        .connections(16)
        .receive_buffer(1 << 12)
        .send_buffer(1 << 12)
        .tx_slots(32)
        .udp_sockets(4)
        .udp_receive_buffer(1 << 11)
        .udp_send_buffer(1 << 11)
}

impl Stack {
    /// At 10.0.0.1, over a device of this configuration.
    pub(crate) fn new(kind: Kind, limits: Limits, device: MemoryConfig) -> Stack {
        Stack::at(STACK, STACK_MAC, kind, limits, device)
    }

    pub(crate) fn at(
        address: [u8; 4],
        mac: [u8; 6],
        kind: Kind,
        limits: Limits,
        device: MemoryConfig,
    ) -> Stack {
        let setup = Setup::new(address.into(), 24, [7, 11])
            .gateway([10, 0, 0, 254].into())
            .limits(limits);
        let (device, script) = scripted_with(device.macs(mac, mac));
        let (engine, sockets) = match kind {
            Kind::Single => {
                let single = Single::new(setup, Box::new(device)).expect("the bounds are valid");
                let sockets = single.sockets();
                (Engine::Single(Box::new(single)), sockets)
            }
            Kind::Pair(log) => {
                let tuning = Tuning::default()
                    .log(log)
                    .request_chunk(4)
                    .frame_chunk(4)
                    .steal_after(8)
                    .fingerprint_every(4);
                let layout = Layout::default().tuning(tuning);
                let group =
                    Group::new(setup, layout, Box::new(device)).expect("the bounds are valid");
                let sockets = group.sockets();
                (Engine::Group(Box::new(group)), sockets)
            }
        };
        Stack {
            engine,
            script,
            sockets,
        }
    }

    /// A frame arrives.
    pub(crate) fn push(&self, frame: Vec<u8>, meta: RxMeta) {
        let len = frame.len();
        self.script
            .push_frame(Frame::from_buffer(frame.into_boxed_slice(), 0, len, meta));
    }

    /// Everything that can be done at `now`.
    pub(crate) fn run_until_idle(&mut self, now: Instant) {
        let mut idle = 0;
        for _ in 0..SPINNING {
            let done = match &mut self.engine {
                Engine::Single(single) => single.turn(now),
                Engine::Group(group) => group.turn(now),
            };
            idle = if done == 0 { idle + 1 } else { 0 };
            let enough = match &self.engine {
                Engine::Single(_) => 1,
                Engine::Group(_) => 2,
            };
            if idle == enough {
                return;
            }
        }
        panic!("it spins at {now:?}");
    }

    /// One step of one worker, or one turn of a single stack: `which` says whose and what.
    pub(crate) fn step(&mut self, which: u8, now: Instant) {
        let group = match &mut self.engine {
            Engine::Single(single) => {
                single.turn(now);
                return;
            }
            Engine::Group(group) => group,
        };
        let worker = &mut group.workers()[usize::from(which & 1)];
        match which >> 1 & 7 {
            0 => {
                worker.pump(now);
            }
            1 => {
                let next = worker.replica().position();
                worker.prepare(next + u64::from(which >> 4));
            }
            2 | 3 => {
                worker.apply();
            }
            4 => {
                worker.perform();
            }
            5 => {
                worker.send();
            }
            6 => {
                worker.send_one();
            }
            _ => {
                worker.turn(now);
            }
        }
    }

    /// When time has to be told at the latest.
    pub(crate) fn next_deadline(&self) -> Instant {
        match &self.engine {
            Engine::Single(single) => single.next_deadline(),
            Engine::Group(group) => group.next_deadline(),
        }
    }

    /// What was sent since the last call.
    pub(crate) fn take_sent(&self) -> Vec<Vec<u8>> {
        let sent = self.script.take_sent();
        sent.into_iter().map(|(frame, _)| frame).collect()
    }

    /// A replica of the state.
    pub(crate) fn replica(&mut self) -> &Replica {
        match &mut self.engine {
            Engine::Single(single) => single.replica(),
            Engine::Group(group) => group.workers()[0].replica(),
        }
    }

    /// Checks, after [`run_until_idle`](Self::run_until_idle), that no connection panicked and that
    /// replicas are equal.
    pub(crate) fn check(&mut self) {
        assert_eq!(self.replica().unexpected_panics(), 0, "a panic was caught");
        let Engine::Group(group) = &mut self.engine else {
            return;
        };
        group.compare().expect("posted fingerprints are equal");
        let [first, second] = group.workers() else {
            panic!("two workers");
        };
        let (first, second) = (first.replica(), second.replica());
        assert_eq!(first.position(), second.position(), "one is behind");
        assert_eq!(
            first.fingerprint(),
            second.fingerprint(),
            "{:?}",
            first.first_difference(second)
        );
    }
}
