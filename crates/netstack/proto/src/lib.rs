//! The TCP/IP of Dominoes without input and output.

#![forbid(unsafe_code)]

pub mod config;
pub mod hash;
pub mod ip;
pub mod keys;
pub mod log;
pub mod packet;
pub mod seqnum;
pub mod state;
pub mod stats;
pub mod tcp;
pub mod time;
pub mod udp;
