//! What every device does, run for the devices in memory. `tests/kernel.rs` runs the same for those of the kernel.

mod support;

use dominoes_drivers::memory::{self, Faults, MemoryConfig};
use support::{Port, behaviour};

fn run(config: MemoryConfig) {
    for (name, test) in behaviour::ALL {
        println!("{name}");
        let (left, right) = memory::pair(config.clone());
        test(Port::new(left), Port::new(right));
    }
}

#[test]
fn a_plain_pair() {
    run(MemoryConfig::default());
}

#[test]
fn a_pair_with_offloads() {
    run(MemoryConfig::default()
        .tso4_max_bytes(65_549)
        .rx_checksum_valid(true));
}

#[test]
fn a_pair_with_one_buffer_and_a_short_queue() {
    // The longest burst that a behaviour sends before it receives is 100 frames.
    run(MemoryConfig::default().rx_pool(1).queue_depth(100));
}

#[test]
fn a_wire_whose_faults_never_happen() {
    // One in a million of a few thousand frames: this seed spares them all, but every frame goes the long way.
    run(MemoryConfig::default().faults(Faults::new(1).loss(1)));
}
