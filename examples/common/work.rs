//! Work on the bytes of a stream, in units that any worker of the stack may process, or the calling
//! thread.

use std::fmt;
use std::io::{self, BufRead, Read, Write};
use std::sync::Arc;

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use dominoes_netstack::framed::{Failure, MAX_PAYLOAD, UnitProcessor};

/// A search for several strings at once. Occurrences may overlap.
pub(crate) struct Search {
    automaton: AhoCorasick,
    /// The bytes of the longest string, less one.
    overlap: usize,
}

impl Search {
    /// Searches for these strings.
    ///
    /// # Errors
    /// One of them is empty, or they make too large an automaton.
    pub(crate) fn new(strings: &[Vec<u8>]) -> io::Result<Search> {
        if strings.iter().any(Vec::is_empty) {
            return Err(io::Error::other("an empty string is everywhere"));
        }
        let automaton = AhoCorasick::builder()
            .kind(Some(AhoCorasickKind::DFA))
            .build(strings)
            .map_err(io::Error::other)?;
        let longest = strings.iter().map(Vec::len).max();
        Ok(Search {
            automaton,
            overlap: longest.unwrap_or(1) - 1,
        })
    }

    /// A search for a hundred strings of 8 to 15 letters, the same each time.
    pub(crate) fn for_a_hundred() -> io::Result<Search> {
        let letter = |at: u64| b'a' + (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59) as u8 % 26;
        let string = |number: u64| (0..8 + number % 8).map(move |at| letter(number * 16 + at));
        let strings: Vec<Vec<u8>> = (0..100).map(|number| string(number).collect()).collect();
        Search::new(&strings)
    }

    /// How often the strings occur in `bytes`.
    pub(crate) fn count(&self, bytes: &[u8]) -> u64 {
        self.automaton.find_overlapping_iter(bytes).count() as u64
    }
}

impl fmt::Debug for Search {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Search").finish_non_exhaustive()
    }
}

/// Finds the occurrences that begin in one piece of a stream and end in a later one. Others search
/// within the pieces, in any order.
pub(crate) struct Crossing {
    search: Arc<Search>,
    /// The last bytes of the pieces so far.
    tail: Vec<u8>,
}

impl Crossing {
    pub(crate) fn new(search: Arc<Search>) -> Crossing {
        let tail = Vec::new();
        Crossing { search, tail }
    }

    /// How many occurrences begin in an earlier piece and end in this one.
    pub(crate) fn count(&mut self, piece: &[u8]) -> u64 {
        let (before, overlap) = (self.tail.len(), self.search.overlap);
        self.tail.extend(&piece[..piece.len().min(overlap)]);
        let found = self.search.automaton.find_overlapping_iter(&self.tail);
        let crosses = |start: usize, end: usize| start < before && before < end;
        let found = found.filter(|found| crosses(found.start(), found.end()));
        let found = found.count() as u64;
        self.tail.extend(piece.iter().skip(overlap));
        let surplus = self.tail.len().saturating_sub(overlap);
        self.tail.drain(..surplus);
        found
    }
}

/// Reads the payload of units, and does their work in the calling thread. Their headers are empty.
pub(crate) struct InThread<R> {
    inner: R,
    processor: Arc<dyn UnitProcessor>,
    offset: u64,
    /// A unit that is not whole in the inner reader's buffer.
    unit: Vec<u8>,
    payload: Vec<u8>,
    /// The unread part of the payload.
    unread: std::ops::Range<usize>,
}

impl<R> InThread<R> {
    pub(crate) fn new(inner: R, processor: Arc<dyn UnitProcessor>) -> InThread<R> {
        InThread {
            inner,
            processor,
            offset: 0,
            unit: Vec::new(),
            payload: vec![0; MAX_PAYLOAD],
            unread: 0..0,
        }
    }
}

fn failed(failure: Failure) -> io::Error {
    io::Error::other(format!("{failure:?}"))
}

impl<R: BufRead> BufRead for InThread<R> {
    /// The payload of one unit, as far as it is unread.
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.unread.is_empty() {
            let bytes = self.inner.fill_buf()?;
            let most = self.processor.max_unit();
            let (processor, offset) = (&self.processor, self.offset);
            if bytes.is_empty() {
                return Ok(&[]);
            }
            let len = processor.received_len(offset, &[], bytes.len().min(most));
            let len = len.map_err(failed)?;
            let payload = &mut self.payload;
            let read = if let Some(unit) = bytes.get(..len) {
                let read = processor.receive(offset, unit, payload);
                self.inner.consume(len);
                read
            } else {
                self.unit.resize(len, 0);
                self.inner.read_exact(&mut self.unit)?;
                processor.receive(offset, &self.unit, payload)
            };
            self.offset += len as u64;
            self.unread = 0..read.map_err(failed)?;
        }
        Ok(&self.payload[self.unread.clone()])
    }

    fn consume(&mut self, len: usize) {
        self.unread.start += len;
    }
}

impl<R: BufRead> Read for InThread<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let len = self.fill_buf()?.read(into)?;
        self.consume(len);
        Ok(len)
    }
}

/// Makes units of the written bytes in the calling thread.
pub(crate) struct Making<W> {
    pub(crate) inner: W,
    processor: Arc<dyn UnitProcessor>,
    offset: u64,
    units: Vec<u8>,
}

impl<W> Making<W> {
    pub(crate) fn new(inner: W, processor: Arc<dyn UnitProcessor>) -> Making<W> {
        Making {
            inner,
            processor,
            offset: 0,
            units: Vec::new(),
        }
    }
}

impl<W: Write> Write for Making<W> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.units.clear();
        for payload in from.chunks(self.processor.max_payload()) {
            let begin = self.units.len();
            let end = begin + self.processor.sent_len(payload.len());
            self.units.resize(end, 0);
            let unit = &mut self.units[begin..];
            let made = self.processor.send(self.offset, payload, unit);
            made.map_err(failed)?;
            self.offset += unit.len() as u64;
        }
        self.inner.write_all(&self.units)?;
        Ok(from.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
