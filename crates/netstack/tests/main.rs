//! Tests of the stack as its users see it: whole stacks, by hand and on threads.

mod autoscale;
mod between;
mod by_hand;
mod close;
mod config;
mod groups;
mod idle;
mod inline;
mod joining;
mod late;
mod locked;
mod migration;
mod safe;
mod sockets;
mod support;
