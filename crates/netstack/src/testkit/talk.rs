//! An application that checks every octet.

use core::fmt;

use super::{Rng, mix};
use crate::error::SocketError;
use crate::socket::TcpStream;

/// Octets that are read or written at once, at most.
const PIECE: u64 = 8192;

/// One end of a conversation: writes so many octets, then no more; reads as many as the other end writes, and the
/// end behind them. It reads and writes in pieces of random sizes.
pub struct Talk {
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
    /// What is written next, and how much of it was.
    piece: Vec<u8>,
    taken: usize,
    /// What was read last, and what should have been.
    got: Vec<u8>,
    wanted: Vec<u8>,
}

/// What is wrong with a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trouble {
    /// An octet is not what was written.
    WrongOctet {
        /// Its place in the stream.
        at: u64,
        /// What was read.
        is: u8,
        /// What was written.
        should_be: u8,
    },
    /// There were more octets than were written.
    TooMuch,
    /// The stream ended early, at this place.
    TooLittle {
        /// Octets that came.
        at: u64,
    },
    /// The connection ended in another way.
    Socket(SocketError),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::WrongOctet { at, is, should_be } => {
                write!(f, "octet {at} is {is:#04x}, should be {should_be:#04x}")
            }
            Trouble::TooMuch => f.write_str("there were more octets than were written"),
            Trouble::TooLittle { at } => write!(f, "the stream ended after {at} octets"),
            Trouble::Socket(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Trouble {}

impl fmt::Debug for Talk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Talk")
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

impl Talk {
    /// Writes `to_write` octets of the pattern `ours` and expects `to_read` of the pattern `theirs`.
    pub fn new(stream: TcpStream, ours: u64, theirs: u64, to_write: u64, to_read: u64) -> Self {
        Talk {
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
            got: vec![0; PIECE as usize],
            wanted: Vec::new(),
        }
    }

    /// Octets `from..from + len` of the pattern `key`, for another kind of application at the other end.
    pub fn octets(key: u64, from: u64, len: u64) -> Vec<u8> {
        let mut octets = Vec::new();
        fill(&mut octets, key, from, len);
        octets
    }

    /// Whether both ends have said all and heard all. The socket is let go of then.
    pub const fn is_over(&self) -> bool {
        self.shut && self.eof
    }

    /// Octets that were read.
    pub const fn received(&self) -> u64 {
        self.read
    }

    /// Octets that were written.
    pub const fn written(&self) -> u64 {
        self.written
    }

    /// Reads and writes a piece each, if that is possible now. Returns how much was done.
    ///
    /// # Errors
    /// What is wrong.
    pub fn step(&mut self) -> Result<usize, Trouble> {
        let Some(stream) = &mut self.stream else {
            return Ok(0);
        };
        let mut done = 0;
        if self.written < self.to_write {
            if self.taken == self.piece.len() {
                let len = (1 + self.rng.below(PIECE)).min(self.to_write - self.written);
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
                Err(error) => return Err(Trouble::Socket(error)),
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
                    return Err(Trouble::TooLittle { at: self.read });
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
                Err(error) => return Err(Trouble::Socket(error)),
            }
        }
        if self.is_over() {
            self.stream = None;
        }
        Ok(done)
    }

    fn compare(&mut self, len: usize) -> Result<(), Trouble> {
        fill(&mut self.wanted, self.theirs, self.read, len as u64);
        let (got, wanted) = (&self.got[..len], &self.wanted[..]);
        if got != wanted {
            let i = got.iter().zip(wanted).take_while(|(a, b)| a == b).count();
            return Err(Trouble::WrongOctet {
                at: self.read + i as u64,
                is: got[i],
                should_be: wanted[i],
            });
        }
        self.read += len as u64;
        if self.read > self.to_read {
            return Err(Trouble::TooMuch);
        }
        Ok(())
    }
}

/// Octets `from..from + len` of a pattern: each depends on its place.
fn fill(into: &mut Vec<u8>, key: u64, from: u64, len: u64) {
    // Whole words, then without what lies before the first octet.
    let skip = (from % 8) as usize;
    let len = skip + len as usize;
    into.resize(len.next_multiple_of(8), 0);
    for (octets, word) in into.chunks_exact_mut(8).zip(from / 8..) {
        octets.copy_from_slice(&mix(key ^ word).to_le_bytes());
    }
    into.truncate(len);
    into.drain(..skip);
}
