//! Measures one TCP connection in memory with an encrypted payload: on one core, on all cores,
//! and with smoltcp. Needs no privileges.
//!
//! ```text
//! cargo run --release -p dominoes-tls-examples --example throughput_tls
//! cargo run --release -p dominoes-tls-examples --example throughput_tls -- --rounds 3
//! ```
//!
//! It measures as the example `throughput` does. In two of the tables the stack enciphers every
//! segment by AES-256-GCM. Two more tables are for TLS 1.3: in our stack, the replicas (threads
//! with a copy of the connection state) share the records; with smoltcp the application's thread
//! opens and seals them with rustls. The stack verifies the tags of received data; the peer
//! checks only the sequence numbers of the stack's data.
//!
//! rustls and the C code of its ciphers double the compile time, so the TLS examples have a
//! separate package.

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
