//! A recorded log in a file.
//!
//! A recording begins with a magic word and the [`Limits`]. One [`Entry`] per request follows. The
//! limits and each entry are preceded by their length in bytes.

use std::io::{self, Read, Write};

use dominoes_drivers::checked::Sink;
use serde::{Deserialize, Serialize};

use super::Entry;
use crate::config::Limits;

const MAGIC: [u8; 8] = *b"dominoM0";
/// Larger than any entry, which has at most the frames of a run and the bytes of a send ring.
const MAX_ENTRY: u32 = 1 << 31;

/// Writes a log.
pub struct Recorder {
    out: Sink<Box<dyn Write + Send>>,
    failed: Option<io::Error>,
}

impl core::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Recorder")
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

impl Recorder {
    /// Begins a recording.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn new(out: Box<dyn Write + Send>, limits: &Limits) -> io::Result<Self> {
        let mut out = Sink(out);
        out.write_all(&MAGIC)?;
        write_one(&mut out, limits)?;
        Ok(Recorder { out, failed: None })
    }

    /// Adds an entry. The first failure ends the recording; [`Recorder::finish`] returns it.
    pub(crate) fn add(&mut self, entry: &Entry) {
        if self.failed.is_none() {
            self.failed = write_one(&mut self.out, entry).err();
        }
    }

    /// Writes out buffered bytes.
    ///
    /// # Errors
    /// The first failure of the recording.
    pub fn finish(mut self) -> io::Result<()> {
        match self.failed.take() {
            Some(error) => Err(error),
            None => self.out.flush(),
        }
    }
}

fn write_one(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let bytes = postcard::to_stdvec(value).map_err(io::Error::other)?;
    out.write_all(&(bytes.len() as u32).to_le_bytes())?;
    out.write_all(&bytes)
}

/// Reads a log back, for [`ByHand::replay`](crate::ByHand::replay).
#[derive(Debug)]
pub struct Recording<R> {
    from: R,
    limits: Limits,
}

impl<R: Read> Recording<R> {
    /// Opens a recording.
    ///
    /// # Errors
    /// If it cannot be read or is no recording.
    pub fn open(mut from: R) -> io::Result<Self> {
        let mut magic = [0; 8];
        from.read_exact(&mut magic)?;
        if magic != MAGIC {
            return Err(invalid("this is no recorded log of this version"));
        }
        let limits = read_one(&mut from)?.ok_or_else(|| invalid("the recording ends too early"))?;
        Ok(Recording { from, limits })
    }

    /// The limits that applied while recording; a replay must use them.
    pub fn limits(&self) -> Limits {
        self.limits
    }
}

#[doc(hidden)]
impl<R: Read> Recording<R> {
    /// The next entry; `None` at the end.
    pub fn next_entry(&mut self) -> io::Result<Option<Entry>> {
        read_one(&mut self.from)
    }

    /// All that follow.
    pub fn entries(mut self) -> impl Iterator<Item = io::Result<Entry>> {
        core::iter::from_fn(move || self.next_entry().transpose())
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Reads a value after its length. `None` at the end of the file.
fn read_one<T: for<'de> Deserialize<'de>>(from: &mut impl Read) -> io::Result<Option<T>> {
    let mut len = Vec::new();
    if from.take(4).read_to_end(&mut len)? == 0 {
        return Ok(None);
    }
    let cut_short = || invalid("the recording ends in the middle of an entry");
    let len = u32::from_le_bytes(len.try_into().map_err(|_| cut_short())?);
    if len > MAX_ENTRY {
        return Err(invalid("an entry is longer than any can be"));
    }
    let mut bytes = Vec::new();
    let got = from.take(u64::from(len)).read_to_end(&mut bytes)?;
    if got < len as usize {
        return Err(cut_short());
    }
    postcard::from_bytes(&bytes)
        .map(Some)
        .map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::request::Request;
    use crate::time::Instant;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct RecordShared(Arc<Mutex<Vec<u8>>>);

    impl Write for RecordShared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct InterruptEveryOther<'a>(&'a [u8], bool);

    impl Read for InterruptEveryOther<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.1 = !self.1;
            match self.1 {
                true => Err(io::ErrorKind::Interrupted.into()),
                false => {
                    let most = into.len().min(1);
                    self.0.read(&mut into[..most])
                }
            }
        }
    }

    fn entry(i: u64) -> Entry {
        Entry {
            request: Request::tick(Instant::from_nanos(i), i),
            verdict: Some(3),
            frames: vec![vec![1, 2, 3]],
            written: None,
        }
    }

    #[test]
    fn what_was_recorded_is_read_back() {
        let file = RecordShared::default();
        let mut recorder = Recorder::new(Box::new(file.clone()), &Limits::default()).unwrap();
        for i in 0..5 {
            recorder.add(&entry(i));
        }
        recorder.finish().unwrap();
        let bytes = file.0.lock().unwrap().clone();
        let recording = Recording::open(&bytes[..]).unwrap();
        assert_eq!(recording.limits(), Limits::default());
        let entries: Vec<_> = recording.entries().map(Result::unwrap).collect();
        assert_eq!(entries, (0..5).map(entry).collect::<Vec<_>>());

        let last = 4 + postcard::to_stdvec(&entry(4)).unwrap().len();
        for missing in 1..last {
            let cut = Recording::open(&bytes[..bytes.len() - missing]).unwrap();
            let error = cut.entries().last().unwrap().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{missing}");
        }
        // A signal interrupts every other call, and each gives one byte.
        let slow = InterruptEveryOther(&bytes, false);
        let recording = Recording::open(slow).unwrap();
        let entries: Vec<_> = recording.entries().map(Result::unwrap).collect();
        assert_eq!(entries, (0..5).map(entry).collect::<Vec<_>>());
        assert!(Recording::open(&b"something else"[..]).is_err());
    }
}
