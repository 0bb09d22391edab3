//! One TCP connection in memory whose payload is enciphered: on one core, on all cores, and smoltcp
//! beside them. No privileges needed.
//!
//! ```text
//! cargo run --release -p dominoes-tls-examples --example throughput_tls
//! cargo run --release -p dominoes-tls-examples --example throughput_tls -- --rounds 3
//! ```
//!
//! It measures as `throughput` does, which says how. In two of the tables the stack enciphers every
//! segment by AES-256-GCM. In two more it is TLS 1.3: records that the replicas share, and with
//! smoltcp records that the application's thread has rustls open and seal. The stack verifies the
//! tags of what it receives; of what it is sent, the peer checks the sequence numbers only.
//!
//! rustls and the C code of its ciphers take as long to compile as the rest, so the package is not
//! that of the other examples.

#[path = "throughput/measure.rs"]
mod measure;
#[path = "common/program.rs"]
mod program;

use std::process::ExitCode;

use measure::{Direction, Options, Processing, Table, drivers};

const ABOUT: &str = "\
One TCP connection in memory with ciphers and TLS: on one core, on all cores, and smoltcp beside them.

";

const TABLES: &[Table] = &[
    Table {
        direction: Direction::Receive,
        processing: Processing::Aes256Gcm,
        name: "receive: checksum and AES-256-GCM",
        variant: drivers::variant,
    },
    Table {
        direction: Direction::Send,
        processing: Processing::Aes256Gcm,
        name: "send: AES-256-GCM and checksum",
        variant: drivers::variant,
    },
    Table {
        direction: Direction::Receive,
        processing: Processing::TlsAes256Gcm,
        name: "receive: one TLS 1.3 stream, AES-256-GCM",
        variant: drivers::tls_variant,
    },
    Table {
        direction: Direction::Send,
        processing: Processing::TlsAes256Gcm,
        name: "send: one TLS 1.3 stream, AES-256-GCM",
        variant: drivers::tls_variant,
    },
];

fn main() -> ExitCode {
    let usage = [ABOUT, measure::USAGE];
    program::main(
        "throughput_tls",
        &usage,
        Options::default(),
        Options::take,
        |options| measure::run(TABLES, options),
    )
}
