//! Units defined by a program: pieces of a stream that all workers of the stack process.
//!
//! A [`UnitProcessor`] finds the end of a unit and processes it. All units have the same length, or
//! their first bytes or their offset determine it, or they are the bytes that have arrived. A write
//! is cut into units, and any worker makes a unit in the send ring. Any worker also processes a
//! unit that has arrived. So one stream uses several cores. Units keep their order: the stack sends
//! no unit before all earlier ones are made, and the application reads none before all earlier ones
//! are processed. TLS uses the same stage, with records as units.
//!
//! An example: disguised messages of up to 4 KiB, after a length and before a checksum.
//!
//! ```
//! use dominoes_drivers::memory::{self, MemoryConfig};
//! use dominoes_netstack::Stack;
//! use dominoes_netstack::framed::{Failure, FramedStream, UnitProcessor};
//! use std::io::{BufRead, Read, Write};
//! use std::sync::Arc;
//!
//! #[derive(Debug)]
//! struct Messages;
//!
//! fn sum(bytes: &[u8]) -> [u8; 4] {
//!     let add = |sum: u32, byte: &u8| sum.wrapping_mul(31).wrapping_add(u32::from(*byte));
//!     bytes.iter().fold(7, add).to_be_bytes()
//! }
//!
//! impl UnitProcessor for Messages {
//!     fn max_payload(&self) -> usize {
//!         4096
//!     }
//!
//!     fn max_unit(&self) -> usize {
//!         2 + 4096 + 4
//!     }
//!
//!     fn header_len(&self) -> usize {
//!         2
//!     }
//!
//!     fn received_len(&self, _: u64, header: &[u8], _: usize) -> Result<usize, Failure> {
//!         let len = header.try_into().map(u16::from_be_bytes);
//!         Ok(2 + usize::from(len.unwrap_or(0)) + 4)
//!     }
//!
//!     fn receive(&self, offset: u64, unit: &[u8], payload: &mut [u8]) -> Result<usize, Failure> {
//!         let (message, found) = unit[2..].split_last_chunk().ok_or(Failure::Forged)?;
//!         if sum(message) != *found {
//!             return Err(Failure::Forged);
//!         }
//!         for (to, from) in payload.iter_mut().zip(message) {
//!             *to = from ^ offset as u8;
//!         }
//!         Ok(message.len())
//!     }
//!
//!     fn sent_len(&self, payload_len: usize) -> usize {
//!         2 + payload_len + 4
//!     }
//!
//!     fn send(&self, offset: u64, payload: &[u8], unit: &mut [u8]) -> Result<(), Failure> {
//!         let (header, rest) = unit.split_at_mut(2);
//!         header.copy_from_slice(&(payload.len() as u16).to_be_bytes());
//!         let (message, behind) = rest.split_at_mut(payload.len());
//!         for (to, from) in message.iter_mut().zip(payload) {
//!             *to = from ^ offset as u8;
//!         }
//!         behind.copy_from_slice(&sum(message));
//!         Ok(())
//!     }
//! }
//!
//! let (left, right) = memory::pair(MemoryConfig::default());
//! let stack = Stack::builder("10.0.0.1/24").replicas(2).start(left)?;
//! let peer = Stack::builder("10.0.0.2/24").start(right)?;
//! let listener = stack.listen(7, 16)?;
//! let mut ours = FramedStream::new(peer.connect("10.0.0.1:7")?, Arc::new(Messages))?;
//! ours.write_all(b"one message")?;
//! ours.write_all(b"another")?;
//! ours.shutdown_write();
//!
//! let mut theirs = FramedStream::new(listener.accept()?.0, Arc::new(Messages))?;
//! assert_eq!(theirs.fill_buf()?, b"one message");
//! theirs.consume(11);
//! let mut rest = String::new();
//! theirs.read_to_string(&mut rest)?;
//! assert_eq!(rest, "another");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Promises
//! - Every write makes its own units, of which the last may be shorter: a write of at most
//!   [`UnitProcessor::max_payload`] bytes that returns its whole length is one unit, and
//!   [`FramedReadHalf::try_fill`] lends the payload of one unit. Units without payload are skipped.
//! - Processing does not modify its input, so if a worker dies within a unit, the unit is processed
//!   again. No byte of a unit is sent before all of it is made.
//! - A [`Failure`], a unit longer than [`UnitProcessor::max_unit`], and a processor that panics end
//!   the connection with a reset and [`SocketError::Failed`]: no byte of the unit or of later units
//!   is sent or read; earlier units may be.
//! - A stream that ends within a unit ends for its reader with [`SocketError::Truncated`].
//! - Payload is in the stack's memory only between application and ring, and is zeroed before
//!   another connection gets that memory.

#[cfg(feature = "ciphers")]
mod cipher;
#[cfg(feature = "search")]
mod search;

use core::cell::Cell;
use core::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::TcpStream;
use super::alone::{Alone, TcpView};
use super::half::Least;
use super::poller::{Interest, Registered, Sealed, Watched};
use super::stage::{Codec, MAX_HEADER, Reader, Sender, Shared, Stage, stream_of_units};
use super::wait::WaitUntil;
pub use crate::error::Failure;
use crate::error::SocketError;
use crate::io::stream::StreamRef;
use crate::log::request::ConnId;

#[cfg(feature = "ciphers")]
pub use cipher::Aes256;
#[cfg(feature = "search")]
pub use search::Search;

/// The most payload bytes of a unit: 16 KiB.
pub const MAX_PAYLOAD: usize = 16 << 10;
/// The most bytes of a unit: 32 KiB.
pub const MAX_UNIT: usize = 32 << 10;

/// Finds the ends of a stream's units, and processes them.
///
/// Calls come from all threads of the stack and of the application, in any order, and perhaps twice
/// for one unit. The outcome must not change, so a processor must not keep state that affects later
/// calls. Calls must not block. Lengths must not change. While a processor runs, its thread can
/// neither read nor write framed streams: that fails with [`SocketError::InProcessor`], and a
/// stream whose sending half it shuts down or drops is reset.
///
/// All units are [`UnitProcessor::max_unit`] bytes long, unless `header_len`, `received_len` and
/// `sent_len` are overridden.
pub trait UnitProcessor: fmt::Debug + Send + Sync {
    /// The most payload bytes of a unit to be sent, 1 to [`MAX_PAYLOAD`].
    fn max_payload(&self) -> usize;

    /// The most bytes of a unit in both directions, 1 to [`MAX_UNIT`], at most half a receive
    /// buffer and at most the bytes that a new connection may write into its send buffer.
    fn max_unit(&self) -> usize;

    /// How many bytes at the start of a unit determine its length, at most 32.
    fn header_len(&self) -> usize {
        0
    }

    /// The length of the received unit that begins with `header`, header included; at least one.
    /// `offset`: the total length of all earlier units. `arrived` bytes have arrived, 1 to
    /// [`UnitProcessor::max_unit`], and more may follow: a processor that returns `arrived` takes
    /// bytes as they arrive.
    ///
    /// # Errors
    /// When no unit begins with `header`.
    fn received_len(&self, offset: u64, header: &[u8], arrived: usize) -> Result<usize, Failure> {
        let _ = (offset, header, arrived);
        Ok(self.max_unit())
    }

    /// Writes the payload of the received unit to the beginning of `payload`, which has
    /// [`MAX_PAYLOAD`] bytes, all 0. Returns the payload's length. `offset`: the total length of
    /// all earlier units; 0 for the first.
    ///
    /// # Errors
    /// When the peer cannot have sent this unit. `payload` is then never read.
    fn receive(&self, offset: u64, unit: &[u8], payload: &mut [u8]) -> Result<usize, Failure>;

    /// The length of a unit with `payload_len` bytes of payload, at least 1, at most
    /// [`UnitProcessor::max_unit`].
    fn sent_len(&self, payload_len: usize) -> usize {
        let _ = payload_len;
        self.max_unit()
    }

    /// Makes a unit of `payload` at `offset`, which counts as for [`UnitProcessor::receive`].
    /// `unit` has the length that [`UnitProcessor::sent_len`] returned, and is all 0.
    ///
    /// # Errors
    /// When it cannot be sent. `unit` is then never sent.
    fn send(&self, offset: u64, payload: &[u8], unit: &mut [u8]) -> Result<(), Failure>;

    /// Whether every successful call writes all bytes of its output that are read or sent, so that
    /// the stack need not zero it before. Only this crate can name the argument, so only its own
    /// processors can return true.
    #[doc(hidden)]
    fn writes_all(&self, _: sealed::Ours) -> bool {
        false
    }
}

mod sealed {
    /// Proves that a processor belongs to this crate.
    #[derive(Debug)]
    pub struct Ours;
}
use sealed::Ours;

/// A connection whose bytes are units; it carries their payload in both directions, in order. For
/// its guarantees see the [module's documentation](self).
///
/// Dropping it, or both halves, closes it as [`TcpStream`] does.
#[derive(Debug)]
pub struct FramedStream {
    watched: Watched,
    reader: FramedReadHalf,
    writer: FramedWriteHalf,
}

/// The half of a framed connection that reads.
pub struct FramedReadHalf {
    watched: Watched,
    // Dropped before the connection ends.
    reader: Reader<Units>,
    shared: Arc<Shared<Units>>,
}

/// The half of a framed connection that writes.
pub struct FramedWriteHalf {
    watched: Watched,
    shared: Arc<Shared<Units>>,
}

stream_of_units!(
    FramedStream,
    FramedReadHalf,
    FramedWriteHalf,
    Units,
    SocketError,
    "[`SocketError::Failed`], [`SocketError::Truncated`]."
);

impl FramedStream {
    /// Makes all further bytes units of `processor`.
    ///
    /// # Errors
    /// [`SocketError::NotAlone`], [`SocketError::BufferTooShort`]; [`SocketError::Invalid`] if a
    /// length of the processor is out of its range, [`SocketError::Failed`] if it panics.
    pub fn new(
        stream: TcpStream,
        processor: Arc<dyn UnitProcessor>,
    ) -> Result<FramedStream, SocketError> {
        let units = call(|| {
            Ok(Units {
                max_payload: processor.max_payload(),
                max_unit: processor.max_unit(),
                header_len: processor.header_len(),
                writes_all: processor.writes_all(Ours),
                processor: Arc::clone(&processor),
            })
        });
        let units = Arc::new(units.map_err(SocketError::Failed)?);
        if !units.is_valid() {
            return Err(SocketError::Invalid);
        }
        let least = Least {
            receive: 2 * units.max_unit as u32,
            send: units.max_unit as u32,
        };
        let alone = Alone::new(stream, least)?;
        let stage = Stage::new(alone, processor, (Arc::clone(&units), 0), (&units, 0))?;
        let reader = Reader::new(&stage, units, 0);
        Ok(FramedStream::over(&stage, reader))
    }

    /// The processor of its units.
    pub fn processor(&self) -> &Arc<dyn UnitProcessor> {
        &self.stage().extra
    }
}

/// The codec of a processor.
struct Units {
    processor: Arc<dyn UnitProcessor>,
    max_payload: usize,
    max_unit: usize,
    header_len: usize,
    /// [`UnitProcessor::writes_all`].
    writes_all: bool,
}

impl Units {
    fn is_valid(&self) -> bool {
        (1..=MAX_PAYLOAD).contains(&self.max_payload)
            && (1..=MAX_UNIT).contains(&self.max_unit)
            && self.header_len <= MAX_HEADER.min(self.max_unit)
    }

    /// The length that the processor returns for a unit, which has at least `least` bytes.
    fn len(
        &self,
        least: usize,
        len: impl FnOnce() -> Result<usize, Failure>,
    ) -> Result<usize, Failure> {
        let len = call(len)?;
        match (least..=self.max_unit).contains(&len) {
            true => Ok(len),
            false => Err(Failure::Other("no unit is that long")),
        }
    }
}

thread_local! {
    /// Whether this thread runs code of a processor.
    static IS_IN_PROCESSOR: Cell<bool> = const { Cell::new(false) };
}

/// While this exists, its thread runs code of a processor.
struct InProcessor {
    /// Whether the thread did so before.
    was: bool,
}

impl InProcessor {
    fn enter() -> Self {
        InProcessor {
            was: IS_IN_PROCESSOR.replace(true),
        }
    }
}

impl Drop for InProcessor {
    fn drop(&mut self) {
        IS_IN_PROCESSOR.set(self.was);
    }
}

/// Calls the processor; a panic is a failure.
fn call<T>(processor: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let _inside = InProcessor::enter();
    let said = catch_unwind(AssertUnwindSafe(processor));
    said.unwrap_or(Err(Failure::Other("the processor panicked")))
}

impl Codec for Units {
    type Fault = Failure;
    type Error = SocketError;
    type Extra = Arc<dyn UnitProcessor>;
    type Reading = ();

    const TEXT: u8 = 0;
    const AT_ONCE: usize = 1 << 10;
    const CONTROL_UNITS: usize = 0;

    fn check_caller() -> Result<(), SocketError> {
        match IS_IN_PROCESSOR.get() {
            true => Err(SocketError::InProcessor),
            false => Ok(()),
        }
    }

    fn header_len(&self) -> usize {
        self.header_len
    }

    fn unit_len(&self, offset: u64, header: &[u8], arrived: usize) -> Result<usize, Failure> {
        let arrived = arrived.min(self.max_unit);
        self.len(self.header_len.max(1), || {
            self.processor.received_len(offset, header, arrived)
        })
    }

    /// A unit's number is its offset.
    fn next_number(offset: u64, unit_len: usize) -> u64 {
        offset + unit_len as u64
    }

    fn open(&self, offset: u64, unit: &[u8], text: &mut [u8]) -> Result<(u8, usize), Failure> {
        let text = &mut text[..MAX_PAYLOAD];
        if !self.writes_all {
            // The payload of an earlier unit must not be read again.
            text.fill(0);
        }
        let len = call(|| self.processor.receive(offset, unit, text))?;
        match len <= MAX_PAYLOAD {
            true => Ok((Self::TEXT, len)),
            false => Err(Failure::Other(
                "the processor wrote more than there is room for",
            )),
        }
    }

    fn fit(&self, len: usize, room: usize) -> Result<(usize, usize), Failure> {
        let len = len.min(self.max_payload);
        let unit_len = self.len(1, || Ok(self.processor.sent_len(len)))?;
        Ok(if unit_len <= room {
            (len, unit_len)
        } else {
            (0, 0)
        })
    }

    fn least_room(&self) -> usize {
        self.max_unit
    }

    fn seal(&self, offset: u64, _: u8, text: &[u8], unit: &mut [u8]) -> Result<(), Failure> {
        if !self.writes_all {
            // Bytes that other connections wrote must not be sent.
            unit.fill(0);
        }
        call(|| self.processor.send(offset, text, unit))
    }

    fn refused(failure: Failure) -> SocketError {
        SocketError::Failed(failure)
    }

    fn end_of_stream(is_whole: bool) -> Result<(), SocketError> {
        match is_whole {
            true => Ok(()),
            false => Err(SocketError::Truncated),
        }
    }

    fn take(reader: &mut Reader<Units>, _: u8, len: usize) -> Result<(), Failure> {
        reader.show(len);
        Ok(())
    }

    fn end(stage: &Stage<Units>, _: &mut Sender<Units>, _: &StreamRef<'_>, why: Option<Failure>) {
        if why.is_some() {
            stage.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use dominoes_drivers::memory::{self, MemoryConfig};

    use super::*;
    use crate::stack::Stack;

    const UNIT: usize = 2048;

    /// The second unit cannot be made.
    #[derive(Debug)]
    struct SecondFails;

    impl UnitProcessor for SecondFails {
        fn max_payload(&self) -> usize {
            UNIT
        }

        fn max_unit(&self) -> usize {
            UNIT
        }

        fn receive(&self, _: u64, unit: &[u8], payload: &mut [u8]) -> Result<usize, Failure> {
            payload[..UNIT].copy_from_slice(unit);
            Ok(UNIT)
        }

        fn send(&self, offset: u64, payload: &[u8], unit: &mut [u8]) -> Result<(), Failure> {
            unit.copy_from_slice(payload);
            if offset == UNIT as u64 {
                return Err(Failure::Forged);
            }
            Ok(())
        }
    }

    #[test]
    fn what_is_published_ends_before_a_unit_that_failed() -> io::Result<()> {
        let (left, right) = memory::pair(MemoryConfig::default());
        let server = Stack::builder("10.0.0.1/24").start(left).unwrap();
        let client = Stack::builder("10.0.0.2/24").start(right).unwrap();
        let listener = server.listen(7, 16)?;
        // The order in which the three units are made.
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]] {
            let stream = client.connect("10.0.0.1:7")?;
            let _accepted = listener.accept()?;
            let framed = FramedStream::new(stream, Arc::new(SecondFails)).unwrap();
            let stage = framed.stage();
            let written = || stage.half.stream().map(|stream| stream.cursors().1);
            let begin = written()?;
            let mut sender = stage.sender();
            let connection = stage.half.stream()?;
            for _ in 0..3 {
                assert!(stage.push(&mut sender, &connection, (Units::TEXT, &[1; UNIT]), UNIT));
            }
            let mut units = [0, 1, 2].map(|_| stage.sealing.begin());
            for unit in order {
                let claimed = units[unit].take().expect("nobody else looks for units yet");
                stage.seal(claimed, false);
            }
            assert_eq!(
                stage.check_sealed(),
                Err(SocketError::Failed(Failure::Forged))
            );
            assert_eq!(written()? - begin, UNIT as u64, "{order:?}");
        }
        Ok(())
    }
}
