//! The parts of a case: the device, the limits and the layout of its plan, and a log in memory.

use std::io::Write;
use std::sync::{Arc, Mutex};

use dominoes_drivers::Device;
use dominoes_drivers::memory::{MemoryConfig, Script, scripted_queues};
use dominoes_netstack::group::Layout;
use dominoes_netstack::time::Duration;
use dominoes_netstack::variants::Setup;
use dominoes_netstack::{Entry, Ipv6Config, Limits, Recording};
use dominoes_testkit::packet::{Family, STACK, v6_of};

use super::plan::Plan;

/// The device of a plan and its far side.
pub(crate) fn device(plan: &Plan) -> (Box<dyn Device>, Script) {
    let config = MemoryConfig::default()
        .tso4_max_bytes(plan.device.cuts)
        .uso_max_bytes(plan.device.cuts);
    let (device, script) = scripted_queues(config, plan.queues());
    (Box::new(device), script)
}

/// Address, secret and limits of a plan.
pub(crate) fn setup(plan: &Plan) -> Setup {
    let mut setup = Setup::new(STACK.into(), 24, [plan.seed, !plan.seed]);
    let limits = &mut setup.limits;
    limits.connections = plan.limits.connections;
    limits.receive_buffer = plan.limits.receive_buffer;
    limits.send_buffer = plan.limits.send_buffer;
    limits.tx_slots = plan.limits.tx_slots;
    limits.mtu = plan.limits.mtu;
    limits.quantum = plan.limits.quantum;
    limits.udp_receive_buffer = 1 << (10 + plan.seed % 4);
    limits.udp_send_buffer = 1 << (11 + plan.seed % 3);
    limits.frame_payload = plan.device.cuts as u32;
    limits.tcp.congestion = plan.congestion();
    if plan.family() == Family::V6 {
        // 1280 to 1480, where IPv4 has 200 to 600.
        limits.mtu = 1280 + (plan.limits.mtu - 200) / 2;
        let quiet = Ipv6Config::default().autoconfigure(false);
        setup = setup.ipv6(quiet.duplicate_probes(0).address(v6_of(STACK), 120));
    }
    setup
}

pub(crate) fn layout(plan: &Plan) -> Layout {
    let mut layout = Layout::default();
    layout.replicas = plan.replicas;
    layout.replica_slots = plan.replicas + plan.membership.free;
    layout.confirm = plan.membership.confirms();
    layout.tuning.always_log = plan.always_log;
    layout.tuning.log = plan.log;
    layout.tuning.frame_chunk = plan.frame_chunk;
    layout.tuning.ahead_bytes = plan.ahead_bytes;
    layout.primaries = plan.primaries;
    layout.tuning.steal_after = plan.late.steal_after;
    layout.tuning.patience = Duration::from_micros(plan.late.steal_after_us);
    layout.tuning.past_hole = plan.late.past_hole;
    layout.tuning.hole_turns = plan.late.hole_turns;
    layout.tuning.fingerprint_every = plan.fingerprint_every;
    layout
}

/// A log in memory.
#[derive(Clone, Default)]
pub(crate) struct Memory(Arc<Mutex<Vec<u8>>>);

impl Memory {
    pub(crate) fn entries(&self) -> (Limits, Vec<Entry>) {
        let bytes = self.0.lock().expect("no writer panics");
        let recording = Recording::open(&bytes[..]).expect("the recorder wrote it");
        let limits = recording.limits();
        let entries: Result<Vec<Entry>, _> = recording.entries().collect();
        (limits, entries.expect("the recorder wrote it"))
    }
}

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no writer panics").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
