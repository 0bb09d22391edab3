//! A library to preload, so that unmodified programs run over our TCP and UDP.
//!
//! `dominoes-run` sets `LD_PRELOAD` to this library and describes the stack in variables that begin
//! with `DOMINOES_`. The library defines the functions of libc that concern sockets
//! (`calls`); they serve the sockets that are ours, and pass all other calls on. The README
//! lists what works.
//!
//! - `table`: which descriptors are sockets.
//! - `socket`: how a socket of the kernel becomes ours.
//! - `mirror`: how `poll` and `epoll` of the kernel see a socket of ours.
//! - `stream`, `datagrams`: what the calls do.
//! - `stack`: the stack of the process.
//! - `drive`: which thread drives it.

#![cfg(target_os = "linux")]

mod addr;
mod calls;
mod config;
mod control;
mod datagrams;
mod device;
mod drive;
mod mirror;
mod options;
mod socket;
mod stack;
mod stream;
mod sys;
mod table;
