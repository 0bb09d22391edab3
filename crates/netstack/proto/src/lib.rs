//! TCP/IP as plain data: time and bytes go in, effects come out.
//!
//! Nothing here touches a thread, an atomic, a clock, a file or a device, and nothing is
//! `unsafe`. The same calls produce equal states and effects. `dominoes-netstack` passes
//! requests to this state, and performs the effects.
//!
//! A [`Tcb`](tcp::Tcb) is one connection. A [`Replica`](state::apply::ReplicaState) is all
//! connections of a host: [`Request`](log::request::Request)s change it, and it answers with
//! [`Effect`](log::effect::Effect)s. Neither sees a byte of payload. An [`IpHost`](host::IpHost) is
//! the host below TCP: frames go in, and frames come out.
//!
//! The crate's README shows two ends of a connection, driven by hand.

#![forbid(unsafe_code)]

/// The README's example, compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod config;
pub mod hash;
pub mod host;
pub mod ip;
pub mod keys;
pub mod packet;
pub mod seqnum;
pub mod stats;
pub mod tcp;
pub mod time;
pub mod udp;

/// The entries of a log (requests), and the results of applying them (effects).
pub mod log {
    pub mod effect;
    pub mod request;
}

/// One replica: connections, ports and timers, without shared memory.
pub mod state {
    pub mod apply;
}
