//! Sockets of our stack, or Linux' own for comparison.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use dominoes_netstack::framed::{FramedStream, FramedWriteHalf, UnitProcessor};
use dominoes_netstack::{TcpListener, TcpStream, WriteHalf};

use crate::http::Writer;
use crate::work::{InThread, Making};

/// Bytes that are read from Linux at once, as `iperf3` does.
const AT_ONCE: usize = 128 << 10;

impl Writer for WriteHalf {
    fn shutdown(&mut self) {
        WriteHalf::shutdown(self);
    }
}

impl Writer for FramedWriteHalf {
    fn shutdown(&mut self) {
        FramedWriteHalf::shutdown(self);
    }
}

impl Writer for std::net::TcpStream {
    fn shutdown(&mut self) {
        // Fails if the connection is gone, which is as good.
        let _ = std::net::TcpStream::shutdown(self, Shutdown::Write);
    }
}

impl Writer for Box<dyn Writer + Send> {
    fn shutdown(&mut self) {
        (**self).shutdown();
    }
}

impl<W: Writer> Writer for Making<W> {
    fn shutdown(&mut self) {
        self.inner.shutdown();
    }
}

/// Both halves of a connection.
pub(crate) type Halves = (Box<dyn BufRead + Send>, Box<dyn Writer + Send>);

/// A listening socket.
pub(crate) enum Listener {
    #[allow(dead_code, reason = "not every example listens here")]
    Ours(TcpListener),
    /// Another thread accepts.
    #[allow(dead_code, reason = "one example accepts so")]
    Given(Receiver<TcpStream>),
    Linux(std::net::TcpListener),
}

impl Listener {
    /// Listens at all of Linux' addresses.
    pub(crate) fn linux(port: u16) -> io::Result<Listener> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, port));
        Ok(Listener::Linux(listener?))
    }

    /// Waits for a connection. Fails when the stack goes down.
    pub(crate) fn accept(&self) -> io::Result<Connection> {
        Ok(match self {
            Listener::Ours(listener) => Connection::Ours(listener.accept()?.0),
            Listener::Given(accepted) => {
                let accepted = accepted.recv();
                Connection::Ours(accepted.map_err(|_| ErrorKind::NotConnected)?)
            }
            Listener::Linux(listener) => {
                let stream = listener.accept()?.0;
                stream.set_nodelay(true)?;
                Connection::Linux(BufReader::with_capacity(AT_ONCE, stream))
            }
        })
    }
}

/// A connection.
pub(crate) enum Connection {
    Ours(TcpStream),
    Linux(BufReader<std::net::TcpStream>),
}

impl Connection {
    #[allow(dead_code, reason = "not every example reads plain bytes")]
    pub(crate) fn split(self) -> io::Result<Halves> {
        Ok(match self {
            Connection::Ours(stream) => {
                let (reader, writer) = stream.split();
                (Box::new(reader), Box::new(writer))
            }
            Connection::Linux(reader) => {
                let writer = reader.get_ref().try_clone()?;
                (Box::new(reader), Box::new(writer))
            }
        })
    }

    /// Makes all further bytes units. Any worker of our stack does their work; over Linux the
    /// threads that read and write do it.
    pub(crate) fn units(self, processor: Arc<dyn UnitProcessor>) -> io::Result<Halves> {
        Ok(match self {
            Connection::Ours(stream) => {
                let (reader, writer) = FramedStream::new(stream, processor)?.split();
                (Box::new(reader), Box::new(writer))
            }
            Connection::Linux(reader) => {
                let writer = Making::new(reader.get_ref().try_clone()?, Arc::clone(&processor));
                (Box::new(InThread::new(reader, processor)), Box::new(writer))
            }
        })
    }
}

impl Read for Connection {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Connection::Ours(stream) => stream.read(into),
            Connection::Linux(reader) => reader.read(into),
        }
    }
}

impl BufRead for Connection {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        match self {
            Connection::Ours(stream) => stream.fill_buf(),
            Connection::Linux(reader) => reader.fill_buf(),
        }
    }

    fn consume(&mut self, len: usize) {
        match self {
            Connection::Ours(stream) => BufRead::consume(stream, len),
            Connection::Linux(reader) => reader.consume(len),
        }
    }
}

impl Write for Connection {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Connection::Ours(stream) => stream.write(from),
            Connection::Linux(reader) => reader.get_mut().write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
