//! A stack, driven by hand, over a device whose other end is the fuzz target.

use dominoes_drivers::memory::{MemoryConfig, Script, scripted_with};
use dominoes_drivers::{Frame, RxMeta};
use dominoes_netstack::group::{GroupTuning, Layout};
use dominoes_netstack::time::Instant;
use dominoes_netstack::variants::{ByHand, Setup, TurnStep, VariantKind};
use dominoes_netstack::{Ipv6Config, Limits, ReplicaState, Sockets};
use dominoes_testkit::packet::v6_of;

use crate::packets::{Family, STACK, STACK_MAC};

/// Turns at one moment after which a stack counts as spinning.
const SPINNING: usize = 100_000;

/// The smallest MTU of a link of IPv6 (RFC 8200 section 5).
pub(crate) const LEAST_V6: u16 = 1280;

/// How a stack is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Single,
    /// Two workers that share one state.
    Locked,
    /// Two replicas (copies of the state), with a log of this many requests.
    Pair(usize),
}

/// A stack, and the other end of its device.
pub(crate) struct Stack {
    /// The IP family of the far side.
    pub(crate) family: Family,
    variant: ByHand,
    pub(crate) script: Script,
    pub(crate) sockets: Sockets,
}

/// The limits of every stack here, small because each input creates new stacks.
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
    /// Creates a stack at 10.0.0.1, or for IPv6 at the address that corresponds to it, over a
    /// device with this configuration.
    pub(crate) fn new(family: Family, kind: Kind, limits: Limits, device: MemoryConfig) -> Stack {
        Stack::at((STACK, STACK_MAC), family, kind, limits, device)
    }

    pub(crate) fn at(
        (address, mac): ([u8; 4], [u8; 6]),
        family: Family,
        kind: Kind,
        limits: Limits,
        device: MemoryConfig,
    ) -> Stack {
        let mut setup = Setup::new(address.into(), 24, [7, 11])
            .gateway(family.address([10, 0, 0, 254]))
            .limits(limits);
        if family == Family::V6 {
            setup.limits.mtu = limits.mtu.max(LEAST_V6);
            let config = Ipv6Config::default().duplicate_probes(0);
            setup = setup.ipv6(config.address(v6_of(address), 120));
        }
        let (device, script) = scripted_with(device.macs(mac, mac));
        let tuning = GroupTuning::default()
            .frame_chunk(4)
            .steal_after(8)
            .fingerprint_every(4);
        let (kind, replicas, log) = match kind {
            Kind::Single => (VariantKind::Single, 1, 64),
            Kind::Locked => (VariantKind::Locked, 2, 64),
            Kind::Pair(log) => (VariantKind::Replicated, 2, log),
        };
        let layout = Layout::default().replicas(replicas).tuning(tuning.log(log));
        let variant = kind.build(setup, layout, Box::new(device));
        let variant = variant.expect("the bounds are valid");
        Stack {
            family,
            sockets: variant.sockets(),
            variant,
            script,
        }
    }

    /// Delivers a frame of IPv4 or ARP, translated to the family of the far side, if it has a
    /// translation.
    pub(crate) fn push_in_family(&self, frame: &[u8]) {
        if let Some(frame) = self.family.write(frame) {
            self.push(frame, RxMeta::default());
        }
    }

    /// Delivers a frame.
    pub(crate) fn push(&self, frame: Vec<u8>, meta: RxMeta) {
        let len = frame.len();
        self.script
            .push_frame(Frame::from_buffer(frame.into_boxed_slice(), 0, len, meta));
    }

    /// Does all work that is possible at `now`.
    pub(crate) fn run_until_idle(&mut self, now: Instant) {
        let mut idle = 0;
        for _ in 0..SPINNING {
            let done = self.variant.turn(now);
            idle = if done == 0 { idle + 1 } else { 0 };
            if idle == self.variant.worker_count() {
                return;
            }
        }
        panic!("it spins at {now:?}");
    }

    /// Runs one step of one worker, or one turn of a single stack; `which` chooses worker and
    /// step.
    pub(crate) fn step(&mut self, which: u8, now: Instant) {
        let worker = usize::from(which & 1) % self.variant.worker_count();
        let step = match which >> 1 & 7 {
            0 => [
                TurnStep::Pump,
                TurnStep::Claim,
                TurnStep::Parse,
                TurnStep::Publish,
            ][usize::from(which >> 4 & 3)],
            1 => TurnStep::Prepare(u64::from(which >> 4)),
            2 | 3 => TurnStep::Apply,
            4 => TurnStep::Perform,
            5 => TurnStep::Send,
            6 => TurnStep::SendOne,
            _ => TurnStep::Turn,
        };
        self.variant.step(worker, step, now);
    }

    /// The time of the next turn, if nothing else happens.
    pub(crate) fn next_deadline(&self) -> Instant {
        self.variant.next_deadline()
    }

    /// Returns the frames sent since the last call, translated to IPv4 where possible.
    pub(crate) fn take_sent(&self) -> Vec<Vec<u8>> {
        let sent = self.script.take_sent();
        let frames = sent.into_iter().map(|(frame, _)| frame);
        frames
            .map(|frame| self.family.read(&frame).unwrap_or(frame))
            .collect()
    }

    /// Every copy of the state.
    pub(crate) fn replicas(&self) -> Vec<ReplicaState> {
        self.variant.inspect(ReplicaState::clone)
    }

    /// Checks, after [`run_until_idle`](Self::run_until_idle), that no connection panicked and
    /// that the replicas are equal.
    pub(crate) fn check(&self) {
        let compared = self.variant.compare();
        compared.expect("posted fingerprints are equal");
        let replicas = self.replicas();
        assert_eq!(replicas[0].unexpected_panics(), 0, "a panic was caught");
        for pair in replicas.windows(2) {
            assert_eq!(pair[0].position(), pair[1].position(), "one is behind");
            assert_eq!(
                pair[0].fingerprint(),
                pair[1].fingerprint(),
                "{:?}",
                pair[0].first_difference(&pair[1])
            );
        }
    }
}
