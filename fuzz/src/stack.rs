//! A stack over a device whose far side is the target, driven by hand.

use dominoes_drivers::memory::{MemoryConfig, Script, scripted_with};
use dominoes_drivers::{Frame, RxMeta};
use dominoes_netstack::group::{Layout, Tuning};
use dominoes_netstack::time::Instant;
use dominoes_netstack::variants::{Setup, TurnStep, Variant, VariantKind};
use dominoes_netstack::{Ipv6Config, Limits, ReplicaState, Sockets};
use dominoes_testkit::packet::v6_of;

use crate::packets::{Family, STACK, STACK_MAC};

/// Turns at one moment after which the stack counts as spinning.
const SPINNING: usize = 100_000;

/// What every link of IPv6 carries (RFC 8200 section 5).
pub(crate) const LEAST_V6: u16 = 1280;

/// How a stack is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Single,
    /// Two workers around one state.
    Locked,
    /// Two replicas, on logs of this length in requests.
    Pair(usize),
}

/// A stack, and what its device's far side has.
pub(crate) struct Stack {
    /// What its far side speaks.
    pub(crate) family: Family,
    variant: Box<dyn Variant>,
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
    /// At 10.0.0.1, and at the address that stands for it if the far side speaks IPv6, over a
    /// device of this configuration.
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
        let tuning = Tuning::default()
            .request_chunk(4)
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

    /// A frame of IPv4 or ARP arrives in the family of the far side, if it can be said there.
    pub(crate) fn push_in_family(&self, frame: &[u8]) {
        if let Some(frame) = self.family.write(frame) {
            self.push(frame, RxMeta::default());
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
            let done = self.variant.turn(now);
            idle = if done == 0 { idle + 1 } else { 0 };
            if idle == self.variant.worker_count() {
                return;
            }
        }
        panic!("it spins at {now:?}");
    }

    /// One step of one worker, or one turn of a single stack: `which` says whose and what.
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

    /// When time has to be told at the latest.
    pub(crate) fn next_deadline(&self) -> Instant {
        self.variant.next_deadline()
    }

    /// What was sent since the last call, in the terms of IPv4. What has none stays as it is.
    pub(crate) fn take_sent(&self) -> Vec<Vec<u8>> {
        let sent = self.script.take_sent();
        let frames = sent.into_iter().map(|(frame, _)| frame);
        frames
            .map(|frame| self.family.read(&frame).unwrap_or(frame))
            .collect()
    }

    /// Every copy of the state.
    pub(crate) fn replicas(&self) -> Vec<ReplicaState> {
        let mut replicas = Vec::new();
        self.variant
            .inspect(&mut |replica| replicas.push(replica.clone()));
        replicas
    }

    /// Checks, after [`run_until_idle`](Self::run_until_idle), that no connection panicked and that
    /// replicas are equal.
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
