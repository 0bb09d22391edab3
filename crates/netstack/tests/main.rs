//! Tests of the stack as its users see it: whole stacks, by hand and on threads.

mod autoscale;
mod between;
mod by_hand;
mod clients;
mod close;
mod config;
mod framed;
mod groups;
mod idle;
mod inline;
mod interfaces;
mod ipv6;
mod joining;
mod late;
mod locked;
mod migration;
mod multicast;
mod pipelined;
mod poller;
mod router;
mod safe;
mod sockets;
mod std_shape;
mod support;
mod tls;
mod tuning;
