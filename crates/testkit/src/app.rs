//! Test traffic: an application that checks every byte.

use core::fmt;

use dominoes_netstack::{SocketError, TcpStream};

use crate::rng::{Rng, mix};

/// The most bytes per read or write.
const PIECE: u64 = 8192;

/// One end of a connection with test traffic. It writes a given number of bytes, then shuts down
/// writing; it reads the bytes that the other end writes, and then the end of the stream. Reads
/// and writes have random sizes.
pub struct Traffic {
    stream: Option<TcpStream>,
    rng: Rng,
    ours: u64,
    theirs: u64,
    to_write: u64,
    to_read: u64,
    written: u64,
    read: u64,
    shut: bool,
    eof: bool,
    /// The next bytes to write, and how many of them are written.
    piece: Vec<u8>,
    taken: usize,
    /// The most bytes per write.
    most: u64,
    /// The bytes read last, and the expected bytes.
    got: Vec<u8>,
    wanted: Vec<u8>,
}

/// An error in the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TrafficError {
    /// A byte differs from the written byte.
    WrongByte {
        /// Its position in the stream.
        at: u64,
        /// The byte that was read.
        is: u8,
        /// The byte that was written.
        should_be: u8,
    },
    /// More bytes arrived than were written.
    TooMuch,
    /// The stream ended early, at this position.
    TooLittle {
        /// The number of bytes that arrived.
        at: u64,
    },
    /// The connection ended with an error.
    Socket(SocketError),
}

impl fmt::Display for TrafficError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TrafficError::WrongByte { at, is, should_be } => {
                write!(f, "byte {at} is {is:#04x}, should be {should_be:#04x}")
            }
            TrafficError::TooMuch => f.write_str("there were more bytes than were written"),
            TrafficError::TooLittle { at } => write!(f, "the stream ended after {at} bytes"),
            TrafficError::Socket(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for TrafficError {}

impl fmt::Debug for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traffic")
            .field(
                "written",
                &format_args!("{} of {}", self.written, self.to_write),
            )
            .field("read", &format_args!("{} of {}", self.read, self.to_read))
            .field("shut", &self.shut)
            .field("eof", &self.eof)
            .finish_non_exhaustive()
    }
}

impl Traffic {
    /// Writes `to_write` bytes of the pattern `ours` and expects `to_read` of the pattern `theirs`.
    pub fn new(stream: TcpStream, ours: u64, theirs: u64, to_write: u64, to_read: u64) -> Self {
        Traffic {
            stream: Some(stream),
            rng: Rng::new(ours ^ theirs.rotate_left(32)),
            ours,
            theirs,
            to_write,
            to_read,
            written: 0,
            read: 0,
            shut: false,
            eof: false,
            piece: Vec::new(),
            taken: 0,
            most: PIECE,
            got: vec![0; PIECE as usize],
            wanted: Vec::new(),
        }
    }

    /// Bytes `from..from + len` of the pattern `key`, for a different application at the other
    /// end.
    pub fn pattern(key: u64, from: u64, len: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        fill(&mut bytes, key, from, len);
        bytes
    }

    /// Limits each write to `bytes` bytes, or to one if it is 0.
    pub fn write_at_most(mut self, bytes: u64) -> Self {
        self.most = bytes.clamp(1, PIECE);
        self
    }

    /// The connection, until both directions have ended.
    pub const fn stream(&self) -> Option<&TcpStream> {
        self.stream.as_ref()
    }

    /// Whether both ends have written and read all bytes. The socket is closed then.
    pub const fn is_over(&self) -> bool {
        self.shut && self.eof
    }

    /// Bytes that were read.
    pub const fn received(&self) -> u64 {
        self.read
    }

    /// Bytes that were written.
    pub const fn written(&self) -> u64 {
        self.written
    }

    /// Reads and writes a piece each, if possible now. Returns the amount of progress, 0 if there
    /// is none.
    ///
    /// # Errors
    /// The error in the traffic.
    pub fn step(&mut self) -> Result<usize, TrafficError> {
        let Some(stream) = &mut self.stream else {
            return Ok(0);
        };
        let mut done = 0;
        if self.written < self.to_write {
            if self.taken == self.piece.len() {
                let len = (1 + self.rng.below(self.most)).min(self.to_write - self.written);
                fill(&mut self.piece, self.ours, self.written, len);
                self.taken = 0;
            }
            match stream.try_write(&self.piece[self.taken..]) {
                Ok(taken) => {
                    self.written += taken as u64;
                    self.taken += taken;
                    done += 1;
                }
                Err(SocketError::WouldBlock) => {}
                Err(error) => return Err(TrafficError::Socket(error)),
            }
        }
        if self.written == self.to_write && !self.shut {
            stream.shutdown_write();
            self.shut = true;
            done += 1;
        }
        if !self.eof {
            let most = 1 + self.rng.below(PIECE) as usize;
            match stream.try_read(&mut self.got[..most]) {
                Ok(0) if self.read < self.to_read => {
                    return Err(TrafficError::TooLittle { at: self.read });
                }
                Ok(0) => {
                    self.eof = true;
                    done += 1;
                }
                Ok(len) => {
                    self.compare(len)?;
                    done += 1;
                }
                Err(SocketError::WouldBlock) => {}
                Err(error) => return Err(TrafficError::Socket(error)),
            }
        }
        if self.is_over() {
            self.stream = None;
        }
        Ok(done)
    }

    fn compare(&mut self, len: usize) -> Result<(), TrafficError> {
        fill(&mut self.wanted, self.theirs, self.read, len as u64);
        let (got, wanted) = (&self.got[..len], &self.wanted[..]);
        if got != wanted {
            let i = got.iter().zip(wanted).take_while(|(a, b)| a == b).count();
            return Err(TrafficError::WrongByte {
                at: self.read + i as u64,
                is: got[i],
                should_be: wanted[i],
            });
        }
        self.read += len as u64;
        if self.read > self.to_read {
            return Err(TrafficError::TooMuch);
        }
        Ok(())
    }
}

/// Appends bytes `from..from + len` of a pattern, in which each byte depends on its position.
fn fill(into: &mut Vec<u8>, key: u64, from: u64, len: u64) {
    // Writes whole words, then removes the bytes before the first one.
    let skip = (from % 8) as usize;
    let len = skip + len as usize;
    into.resize(len.next_multiple_of(8), 0);
    for (bytes, word) in into.chunks_exact_mut(8).zip(from / 8..) {
        bytes.copy_from_slice(&mix(key ^ word).to_le_bytes());
    }
    into.truncate(len);
    into.drain(..skip);
}
