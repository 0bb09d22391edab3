//! A TCP/IP stack whose connections run on all cores, replicated over one log.

pub mod config;
pub mod digest;
pub mod effect;
pub mod error;
pub mod seqnum;
pub mod stats;
pub mod tcp;
pub mod time;
pub mod variants;

mod engine;
mod socket;
mod stack;
mod wire;

pub use config::Limits;
pub use engine::record::{Entry, Recorder, Recording, Written};
pub use engine::replica::Replica;
pub use error::{ConfigError, SocketError, StackError};
pub use socket::{Connecting, ReadHalf, Sockets, TcpListener, TcpStream, WriteHalf};
pub use stack::{Builder, Stack};
