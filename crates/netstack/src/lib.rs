//! A TCP/IP stack whose connections run on all cores, replicated over one log.
//!
//! Each core keeps a copy of the connection state, a *replica*. Everything that can change the
//! state (segments, calls of applications, time, room to send) is written into one totally
//! ordered log, and every replica applies the whole log. Only one replica for each entry, its
//! *primary*, does the costly work: checksums, copies and building frames. So one connection uses
//! several cores, and no lock is on its path.
//!
//! # Running it
//!
//! ```no_run
//! use dominoes_drivers::tap::Tap;
//! use dominoes_netstack::Stack;
//! use std::io::{Read, Write};
//!
//! let stack = Stack::builder("10.78.0.1/24")
//!     .replicas(2)
//!     .pin(&[0, 1])
//!     .start(Tap::open("tap0")?)?;
//! let listener = stack.listen(7, 128)?;
//! loop {
//!     let (mut stream, _peer) = listener.accept()?;
//!     std::thread::spawn(move || {
//!         let mut buffer = [0; 65536];
//!         while let Ok(len @ 1..) = stream.read(&mut buffer) {
//!             if stream.write_all(&buffer[..len]).is_err() {
//!                 break;
//!             }
//!         }
//!     });
//! }
//! # #[allow(unreachable_code)]
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Stack`] runs threads, which sleep while there is nothing to do. With one replica there is no
//! log, and the stack is an ordinary single-core one.
//!
//! A VPN client, a sandbox or a transparent proxy takes packets of a TUN interface to any address:
//! see [`Builder::any_address`], which shows a proxy, and [`Sockets::listen_any`].
//!
//! # Driving it by hand
//!
//! Tests, simulations and programs with an event loop build a [`ByHand`] instead: time is an
//! argument, every step is a call, and the `try_` calls of sockets never wait.
//!
//! ```
//! use dominoes_drivers::memory::{self, MemoryConfig};
//! use dominoes_netstack::Stack;
//! use dominoes_netstack::time::{Duration, Instant};
//!
//! let (left, right) = memory::pair(MemoryConfig::default());
//! let mut server = Stack::builder("10.0.0.1/24").replicas(2).by_hand(left)?;
//! let mut client = Stack::builder("10.0.0.2/24").by_hand(right)?;
//!
//! let listener = server.sockets().listen(7, 4)?;
//! let mut connecting = client.sockets().begin_connect("10.0.0.1:7".parse()?)?;
//! let mut now = Instant::ZERO;
//! let mut stream = loop {
//!     client.turn(now);
//!     server.turn(now);
//!     now += Duration::from_micros(10);
//!     if let Some(stream) = connecting.try_finish()? {
//!         break stream;
//!     }
//! };
//! stream.try_write(b"hello")?;
//! # while server.turn(now) + client.turn(now) > 0 {}
//! # let (mut accepted, _) = listener.try_accept()?;
//! # let mut heard = [0; 5];
//! # assert_eq!(accepted.try_read(&mut heard)?, 5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Routing
//!
//! A [`router::Router`] has several interfaces and forwards packets between them. It has no
//! sockets.
//!
//! # Recording and replaying
//!
//! A [`Recorder`] writes the log to a file. With the feature `record`, `Recording` reads it back,
//! and `ByHand::replay` applies it again, with any number of replicas: it sends the same bytes.

#![cfg_attr(
    not(feature = "testkit"),
    allow(
        dead_code,
        unreachable_pub,
        unused_imports,
        reason = "what only tests and benchmarks use"
    )
)]

/// The README's example, compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use dominoes_proto::time;

pub(crate) use dominoes_proto::{host, ip, keys, log, packet, seqnum, state, tcp, udp};

pub mod config;
mod drive;
mod error;
mod groups;
mod io;
pub mod router;
pub mod stats;

mod socket;
mod stack;

// The engine is public for tests and benchmarks of this workspace only.
#[cfg(feature = "testkit")]
#[doc(hidden)]
pub mod group;
#[cfg(not(feature = "testkit"))]
mod group;
#[cfg(feature = "testkit")]
#[doc(hidden)]
pub mod testkit;
#[cfg(feature = "testkit")]
#[doc(hidden)]
pub mod variants;
#[cfg(not(feature = "testkit"))]
mod variants;

pub use crate::io::echo::EchoReply;
#[cfg(feature = "testkit")]
#[doc(hidden)]
pub use crate::io::record::Entry;
pub use crate::io::record::Recorder;
#[cfg(feature = "record")]
pub use crate::io::record::Recording;
pub use crate::io::view::{ConnectionStats, LIST_TIMEOUT};
pub use crate::ip::route::Route;
pub use crate::ip::v6::Ipv6Config;
pub use crate::log::request::Families;
#[cfg(feature = "testkit")]
#[doc(hidden)]
pub use crate::state::apply::ReplicaState;
pub use crate::tcp::{Info as TcpInfo, State as TcpState};
pub use config::{CongestionControl, Ecn, Keepalive, Limits, Settings, TcpPolicy, Tuning};
pub use drive::ByHand;
pub use error::{ConfigError, MembershipError, SocketError, StackError};
pub use group::{GroupTuning, Primaries};
pub use socket::poller;
#[cfg(feature = "rustls")]
pub use socket::tls;
pub use socket::{AnyListener, Arriving};
pub use socket::{Connecting, Entered, ReadHalf, Reserved, Sockets, TcpListener};
pub use socket::{
    Datagram, EchoSocket, InterfaceStatus, PacketInfo, Received, UdpReceiver, UdpSender, UdpSocket,
};
#[cfg(feature = "dns")]
pub use socket::{Resolver, Resolving};
pub use socket::{TcpStream, WriteHalf};
pub use socket::{TcpView, framed};
pub use stack::{Builder, Interface, Stack};
pub use variants::VariantKind;
pub use variants::groups::MAX_GROUPS;
