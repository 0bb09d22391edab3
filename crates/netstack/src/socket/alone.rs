//! Connections with one owner, and views of them.
//!
//! A stream of units reads and writes the rings of its connection without the turns that clones of
//! a [`TcpStream`] take. So it needs an [`Alone`], which is made in one step: [`Alone::new`] takes
//! the stream apart, and takes the connection out of the [`Arc`] that its clones and halves share.
//! This fails while a clone, or a half of one, exists. An [`Alone`] lends its stream only as a
//! [`TcpView`], which cannot read, write or clone.

use core::net::SocketAddr;
use core::time::Duration;
use std::io;
use std::net::Shutdown;
use std::sync::Arc;

use super::TcpStream;
use super::half::{Half, Least};
#[cfg(feature = "rustls")]
use super::poller;
use super::stage::Staged;
use crate::config::{Keepalive, Settings, Tuning};
use crate::error::SocketError;
use crate::io::view::ConnectionStats;
use crate::log::request::ConnId;

/// A connection that only its owner can read, write and end.
pub(super) struct Alone {
    stream: TcpStream,
}

impl Alone {
    /// Takes over a connection whose buffers are at least as long as `least`, and stay so.
    pub(super) fn new(stream: TcpStream, least: Least) -> Result<Alone, SocketError> {
        let TcpStream {
            half,
            reader,
            writer,
            watched,
        } = stream;
        // A program may have swapped them for halves of another connection. Bytes and room that
        // they borrowed are returned.
        drop((reader, writer, watched));
        // One step checks and takes: if several threads come here with a clone each, the last one
        // gets the connection, and sees everything that the others did to it.
        let mut half = Arc::into_inner(half).ok_or(SocketError::NotAlone)?;
        let ring = half.world.limits.send_buffer;
        let send = match half.stream()?.send_limit() {
            0 => ring,
            limit => limit.min(ring),
        };
        let is_too_short = half.receive_buffer() < least.receive || send < least.send;
        if is_too_short || !least.allows(&half.tuning()) {
            return Err(SocketError::BufferTooShort);
        }
        // Views must not make them shorter later.
        half.least = least;
        Ok(Alone {
            stream: TcpStream::over(&Arc::new(half)),
        })
    }

    pub(super) fn half(&self) -> &Arc<Half> {
        &self.stream.half
    }

    /// The connection, without access to its bytes. `stage` is set if the bytes are units.
    pub(super) fn view<'a>(&'a self, stage: Option<&'a dyn Staged>) -> TcpView<'a> {
        TcpView {
            stream: &self.stream,
            stage,
        }
    }
}

/// For a handshake.
#[cfg(feature = "rustls")]
impl Alone {
    /// A connection that is gone, to replace this one: calls fail, or do nothing.
    pub(super) fn gone(&self) -> Alone {
        let Half { world, flow, .. } = &*self.stream.half;
        Alone {
            stream: TcpStream::new(world, ConnId::NONE, *flow),
        }
    }

    pub(super) fn try_read(&mut self, into: &mut [u8]) -> Result<usize, SocketError> {
        self.stream.try_read(into)
    }

    pub(super) fn try_write(&mut self, from: &[u8]) -> Result<usize, SocketError> {
        self.stream.try_write(from)
    }

    /// The object that a poller checks, before the bytes are units.
    pub(super) fn registered(&self) -> poller::Registered<'_> {
        poller::Sealed::registered(&self.stream)
    }
}

impl core::fmt::Debug for Alone {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.stream.fmt(f)
    }
}

/// The connection below a TLS or framed stream, or a TLS handshake: options, information, shutdown.
///
/// It cannot read, write or clone, because the stream above owns the bytes:
///
/// ```compile_fail
/// # use dominoes_netstack::framed::FramedStream;
/// fn clone(stream: &FramedStream) {
///     stream.get_ref().try_clone();
/// }
/// ```
///
/// ```compile_fail
/// # use dominoes_netstack::framed::FramedStream;
/// fn write(stream: &FramedStream) {
///     std::io::Write::write(&mut stream.get_ref(), b"between two units");
/// }
/// ```
#[derive(Clone, Copy)]
pub struct TcpView<'a> {
    stream: &'a TcpStream,
    stage: Option<&'a dyn Staged>,
}

/// Methods that call their namesake in [`TcpStream`].
macro_rules! as_of_stream {
    ($($name:ident($($argument:ident: $type:ty)?) $(-> $returned:ty)?;)*) => {
        impl TcpView<'_> {$(
            #[doc = concat!("As [`TcpStream::", stringify!($name), "`].")]
            ///
            /// # Errors
            #[doc = concat!("As [`TcpStream::", stringify!($name), "`].")]
            pub fn $name(&self $(, $argument: $type)?) $(-> $returned)? {
                self.stream.$name($($argument)?)
            }
        )*}
    };
}

as_of_stream! {
    local_addr() -> io::Result<SocketAddr>;
    peer_addr() -> io::Result<SocketAddr>;
    conn() -> ConnId;
    group() -> usize;
    info() -> Option<ConnectionStats>;
    take_error() -> io::Result<Option<io::Error>>;
    set_nonblocking(nonblocking: bool) -> io::Result<()>;
    set_read_timeout(timeout: Option<Duration>) -> io::Result<()>;
    read_timeout() -> io::Result<Option<Duration>>;
    set_write_timeout(timeout: Option<Duration>) -> io::Result<()>;
    write_timeout() -> io::Result<Option<Duration>>;
    set_nodelay(nodelay: bool) -> io::Result<()>;
    nodelay() -> io::Result<bool>;
    set_keepalive(keepalive: Option<Keepalive>) -> Result<(), SocketError>;
    keepalive() -> Option<Keepalive>;
    set_user_timeout(timeout: Option<Duration>) -> Result<(), SocketError>;
    user_timeout() -> Option<Duration>;
    set_ttl(ttl: u32) -> io::Result<()>;
    ttl() -> io::Result<u32>;
    set_tos(tos: u8);
    tos() -> u8;
    set_settings(settings: Settings) -> Result<(), SocketError>;
    settings() -> Settings;
    set_tuning(tuning: Tuning) -> Result<(), SocketError>;
    tuning() -> Tuning;
    set_linger(linger: Option<Duration>);
    linger() -> Option<Duration>;
    set_cork(cork: bool);
    set_notsent_lowat(bytes: Option<u32>) -> Result<(), SocketError>;
    notsent_lowat() -> Option<u32>;
    set_send_buffer(bytes: Option<u32>) -> Result<(), SocketError>;
    send_buffer() -> Result<Option<u32>, SocketError>;
}

impl TcpView<'_> {
    /// As [`TcpStream::shutdown_write`]. The peer gets all bytes that the stream above wrote
    /// before, and its close_notify if the stream is TLS.
    pub fn shutdown_write(&self) {
        match self.stage {
            Some(stage) => stage.end_writing(),
            None => self.stream.shutdown_write(),
        }
    }

    /// As [`TcpStream::shutdown`], and as [`TcpView::shutdown_write`].
    ///
    /// # Errors
    /// As [`TcpStream::shutdown`].
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let ended = self.stream.half.stream()?.status().end_reason();
        if matches!(how, Shutdown::Read | Shutdown::Both) {
            self.stream.half.shut_read();
        }
        if matches!(how, Shutdown::Write | Shutdown::Both) {
            self.shutdown_write();
        }
        match ended {
            Some(_) => Err(SocketError::NotConnected.into()),
            None => Ok(()),
        }
    }
}

impl core::fmt::Debug for TcpView<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.stream.fmt(f)
    }
}
