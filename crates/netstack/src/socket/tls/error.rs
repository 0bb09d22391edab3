//! Errors of TLS connections.

use core::fmt;
use std::io;

use rustls::AlertDescription;

use crate::error::SocketError;

/// Why a call on a [`TlsStream`](super::TlsStream) failed.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum TlsError {
    /// The connection below, or the call would have to wait.
    Socket(SocketError),
    /// The handshake failed, and the peer was sent the corresponding alert.
    Handshake(rustls::Error),
    /// The peer ended the connection with this alert.
    PeerAlert(AlertDescription),
    /// The peer broke a rule of TLS, or does not speak TLS. It was sent this alert, and the stream
    /// ends before that record. [`BadRecordMac`](AlertDescription::BadRecordMac): the record is not
    /// authentic.
    Refused(AlertDescription),
    /// The stream ended without the peer's close_notify: an attacker may have cut it (RFC 8446
    /// section 6.1).
    Truncated,
    /// A key has sealed as many records as it may, and this version cannot replace it.
    KeyExhausted,
}

impl TlsError {
    /// The corresponding kind of `std::io` error.
    pub const fn kind(&self) -> io::ErrorKind {
        match self {
            TlsError::Socket(error) => error.kind(),
            TlsError::Handshake(_) | TlsError::Refused(_) => io::ErrorKind::InvalidData,
            TlsError::PeerAlert(_) => io::ErrorKind::ConnectionAborted,
            TlsError::Truncated => io::ErrorKind::UnexpectedEof,
            TlsError::KeyExhausted => io::ErrorKind::BrokenPipe,
        }
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TlsError::Socket(error) => error.fmt(f),
            TlsError::Handshake(error) => write!(f, "the handshake failed: {error}"),
            TlsError::PeerAlert(alert) => write!(f, "the peer ended the connection: {alert:?}"),
            TlsError::Refused(alert) => write!(f, "the peer's record was refused: {alert:?}"),
            TlsError::Truncated => f.write_str("the stream ended without a close_notify"),
            TlsError::KeyExhausted => f.write_str("the key has sealed all it may"),
        }
    }
}

impl std::error::Error for TlsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            TlsError::Socket(error) => Some(error),
            TlsError::Handshake(error) => Some(error),
            _ => None,
        }
    }
}

impl From<SocketError> for TlsError {
    fn from(error: SocketError) -> Self {
        TlsError::Socket(error)
    }
}

impl From<TlsError> for io::Error {
    fn from(error: TlsError) -> Self {
        match error {
            TlsError::Socket(error) => error.into(),
            error => io::Error::new(error.kind(), error),
        }
    }
}
