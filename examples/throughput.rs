//! One TCP connection in memory: on one core, on all cores, and smoltcp beside them. No privileges
//! needed.
//!
//! ```text
//! cargo run --release --example throughput                  # ten seconds
//! cargo run --release --example throughput -- --rounds 3    # shorter, and less sure
//! ```
//!
//! One stack runs at a time. The other end of the connection is simulated inside its network
//! device: it costs little, and the same for every row. The application reads and writes in place.
//! So what is measured is the stack: TCP, checksums and copies. The example `throughput_tls` measures
//! ciphers and TLS the same way.
//!
//! Rows take turns of 100 ms, so that other work on the machine slows all of them alike. Before its
//! first turn each row moves 16 MiB of which every byte is compared. During its turns the stack
//! verifies the checksums of what it receives, and the peer compares the checksums of what it is sent
//! with those it knows.
//!
//! How much a second core brings depends on how long a cache line takes from one core to the other.
//! On a virtual machine that changes at any time; the example measures it between all turns and
//! reports what it found. `cargo bench` has many more rows and workloads.

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
