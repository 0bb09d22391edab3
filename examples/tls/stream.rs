//! The reading and writing halves of TLS streams for HTTP: ours, and plain `rustls`.

use std::cell::RefCell;
use std::io::{self, BufReader, Read, Write};
use std::rc::Rc;

use dominoes_netstack::SocketError;
use dominoes_netstack::TcpStream;
use dominoes_netstack::tls::{TlsError, TlsReadHalf, TlsStream, TlsWriteHalf};
use rustls::Connection;

use crate::http::Writer;

/// Writes, and changes the key after every `every` bytes.
pub(crate) struct KeyUpdates {
    half: TlsWriteHalf,
    every: u64,
    since: u64,
}

/// Splits a stream. `every`: bytes written between two KeyUpdates; `u64::MAX`: no KeyUpdates.
pub(crate) fn split(stream: TlsStream, every: u64) -> (TlsReadHalf, KeyUpdates) {
    let (reader, half) = stream.split();
    let writer = KeyUpdates {
        half,
        every,
        since: 0,
    };
    (reader, writer)
}

impl Write for KeyUpdates {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        if self.since >= self.every {
            match self.half.update_keys() {
                Ok(()) => self.since = 0,
                // TLS 1.2 has no KeyUpdates.
                Err(TlsError::Socket(SocketError::Invalid)) => self.every = u64::MAX,
                // Tries again after the next write, which waits for room.
                Err(TlsError::Socket(SocketError::WouldBlock)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let left = self.every.saturating_sub(self.since).max(1);
        let most = from.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let len = self.half.write(&from[..most])?;
        self.since += len as u64;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.half.flush()
    }
}

impl Writer for KeyUpdates {
    fn shutdown(&mut self) {
        self.half.shutdown();
    }
}

/// One half of a connection whose records `rustls` seals and opens in the calling thread.
pub(crate) struct RustlsHalf(Rc<RefCell<Rustls>>);

struct Rustls {
    connection: Connection,
    stream: TcpStream,
}

/// Splits a connection of `rustls`, for one thread. The half that is used first does the
/// handshake.
pub(crate) fn split_rustls(
    connection: impl Into<Connection>,
    stream: TcpStream,
) -> (BufReader<RustlsHalf>, RustlsHalf) {
    let both = Rc::new(RefCell::new(Rustls {
        connection: connection.into(),
        stream,
    }));
    let reader = BufReader::new(RustlsHalf(Rc::clone(&both)));
    (reader, RustlsHalf(both))
}

impl Rustls {
    fn send(&mut self) -> io::Result<()> {
        while self.connection.wants_write() {
            self.connection.write_tls(&mut self.stream)?;
        }
        Ok(())
    }

    fn receive(&mut self) -> io::Result<()> {
        self.send()?;
        self.connection.read_tls(&mut self.stream)?;
        if let Err(error) = self.connection.process_new_packets() {
            // Sends the alert; the peer may be gone.
            let _ = self.send();
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        Ok(())
    }
}

impl Read for RustlsHalf {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut both = self.0.borrow_mut();
        loop {
            match both.connection.reader().read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => both.receive()?,
                done => return done,
            }
        }
    }
}

impl Write for RustlsHalf {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let mut both = self.0.borrow_mut();
        while both.connection.is_handshaking() {
            both.receive()?;
        }
        let len = both.connection.writer().write(from)?;
        both.send()?;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.borrow_mut().send()
    }
}

impl Writer for RustlsHalf {
    fn shutdown(&mut self) {
        let mut both = self.0.borrow_mut();
        both.connection.send_close_notify();
        // The peer may be gone.
        let _ = both.send();
        both.stream.shutdown_write();
    }
}
