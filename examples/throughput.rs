//! Measures one TCP connection in memory: on one core, on all cores, and with smoltcp. Needs no
//! privileges.
//!
//! ```text
//! cargo run --release --example throughput                  # ten seconds
//! cargo run --release --example throughput -- --rounds 3    # shorter, and less sure
//! ```
//!
//! One stack runs at a time. Its network device simulates the other end of the connection, which
//! costs little, and equally much for every row. The application reads and writes in place. So
//! the example measures the stack: TCP, checksums and copies. The example `throughput_tls`
//! measures ciphers and TLS the same way.
//!
//! Rows take turns of 100 ms, so that other work on the machine slows all rows equally. Before
//! its first turn each row moves 16 MiB, and every byte is compared. During the turns the stack
//! verifies the checksums of received segments, and the peer compares the checksums of the
//! stack's segments with known ones.
//!
//! The gain of a second core depends on the time that a cache line takes from one core to the
//! other. On a virtual machine this time can change at any moment, so the example measures it
//! between all turns and reports it. `cargo bench` has many more rows and workloads.

#[path = "throughput/measure.rs"]
mod measure;
#[path = "common/program.rs"]
mod program;

use std::process::ExitCode;

use measure::{Direction, Options, Processing, Table, drivers};

const ABOUT: &str = "\
One TCP connection in memory: on one core, on all cores, and smoltcp beside them.

";

const TABLES: &[Table] = &[
    Table {
        direction: Direction::Receive,
        processing: Processing::None,
        name: "receive: checksum and copy",
        variant: drivers::variant,
    },
    Table {
        direction: Direction::Send,
        processing: Processing::None,
        name: "send: copy and checksum",
        variant: drivers::variant,
    },
];

fn main() -> ExitCode {
    let usage = [ABOUT, measure::USAGE];
    program::main(
        "throughput",
        &usage,
        Options::default(),
        Options::take,
        |options| measure::run(TABLES, options),
    )
}
