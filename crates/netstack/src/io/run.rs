//! The frames behind a request.
//!
//! All frames that are claimed from the device at once are a batch. They stay together and lie
//! still until the last request that needs one of them is done: a request holds the batch, and
//! says which of its frames it is about. So any worker may parse a batch or verify a request while
//! another worker does the same, and no frame is moved until the whole batch goes back.

use core::num::NonZeroU64;
use std::sync::Arc;

use dominoes_drivers::Frame;

use crate::log::request::MAX_RUN;
use crate::seqnum::SeqNum;

/// Frames that were claimed from the device at once.
pub(crate) type Batch = Arc<Vec<Frame>>;

/// The most frames of a batch: [`Indices`] are bytes.
pub(crate) const MAX_BATCH: usize = 1 << 8;

/// The most frames of a request.
const MOST: usize = MAX_RUN;

/// Which frames of a batch a request is about, in its order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Indices {
    count: u8,
    list: [u8; MOST],
}

impl Default for Indices {
    fn default() -> Self {
        Indices {
            count: 0,
            list: [0; MOST],
        }
    }
}

impl Indices {
    /// How many there are.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Adds one. Requires room.
    #[inline(always)]
    pub(crate) fn push(&mut self, index: usize) {
        self.list[self.len()] = index as u8;
        self.count += 1;
    }

    /// Adds those of frames that follow one another. Requires room for all.
    #[inline(always)]
    pub(crate) fn extend(&mut self, range: core::ops::Range<usize>) {
        let (len, more) = (self.len(), range.len());
        let places = &mut self.list[len..len + more];
        places
            .iter_mut()
            .zip(range)
            .for_each(|(place, index)| *place = index as u8);
        self.count += more as u8;
    }

    /// The indices.
    #[inline(always)]
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.list[..self.len()]
    }
}

/// The frames behind a request: those of a run, in order; none for other requests.
#[derive(Debug, Default)]
pub(crate) struct Run {
    batch: Option<Batch>,
    indices: Indices,
    /// Sequence number of the first payload byte.
    pub(crate) seq: SeqNum,
    /// Where in the receive stream the payload may be stored while its checksums are verified, if
    /// it may ([`StreamRef::reserve`](crate::io::stream::StreamRef::reserve)).
    pub(crate) place: Option<NonZeroU64>,
}

impl Run {
    /// These frames of `batch`. The first payload byte has sequence number `seq`.
    #[inline(always)]
    pub(crate) fn new(batch: &Batch, indices: Indices, seq: SeqNum) -> Run {
        Run {
            batch: Some(Arc::clone(batch)),
            indices,
            seq,
            place: None,
        }
    }

    /// At most [`MAX_RUN`] frames, all of a batch of their own.
    pub(crate) fn of(frames: Vec<Frame>, seq: SeqNum) -> Run {
        let mut indices = Indices::default();
        (0..frames.len().min(MOST)).for_each(|index| indices.push(index));
        Run::new(&Arc::new(frames), indices, seq)
    }

    /// Its frames.
    #[inline(always)]
    pub(crate) fn frames(&self) -> Frames<'_> {
        Frames {
            batch: self.batch.as_ref().map_or(&[], |batch| &batch[..]),
            indices: self.indices.as_slice(),
        }
    }

    /// All of it, which lies at its place if that is what `is_stored` says.
    #[inline(always)]
    pub(crate) fn payload(&self, is_stored: bool) -> Payload<'_> {
        let place = self.place.filter(|_| is_stored);
        Payload {
            frames: self.frames(),
            seq: self.seq,
            stored: place.map(|place| (place, self.seq)),
        }
    }
}

/// The frames of a request, where they lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frames<'a> {
    batch: &'a [Frame],
    indices: &'a [u8],
}

impl<'a> Frames<'a> {
    /// How many there are.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.indices.len()
    }

    /// Frame `i` of the request.
    #[inline(always)]
    pub(crate) fn get(&self, i: usize) -> Option<&'a Frame> {
        self.batch.get(usize::from(*self.indices.get(i)?))
    }

    /// The frames, in the order of the request.
    #[inline(always)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &'a Frame> + use<'a> {
        let batch = self.batch;
        let frames = self.indices.iter();
        frames.filter_map(|index| batch.get(usize::from(*index)))
    }
}

/// The payload of one request: of a run, or of one segment of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Payload<'a> {
    pub(crate) frames: Frames<'a>,
    /// Sequence number of the first byte.
    pub(crate) seq: SeqNum,
    /// If the run is stored already: where it begins, in the stream and in sequence numbers.
    pub(crate) stored: Option<(NonZeroU64, SeqNum)>,
}

impl Payload<'_> {
    /// Whether it lies at offset `place` of the receive stream already.
    #[inline(always)]
    pub(crate) fn lies_at(&self, place: u64) -> bool {
        self.stored.is_some_and(|(begin, seq)| {
            let before = self.seq.since(seq);
            begin.get() + u64::from(before) == place
        })
    }
}

/// Frames that are no longer needed. The worker that used them last keeps them: they are in its
/// core's cache.
#[derive(Debug, Default)]
pub(crate) struct FrameRecycler {
    /// To be returned to the device.
    pub(crate) frames: Vec<Frame>,
    /// Empty, for the next batches.
    spare: Vec<Vec<Frame>>,
}

/// Empty vectors that a recycler keeps: more than a worker has batches.
const MAX_SPARE: usize = 64;

impl FrameRecycler {
    /// Takes the frames of a run that is no longer needed, if it was the last of its batch.
    #[inline]
    pub(crate) fn put(&mut self, run: Run) {
        // A command has none.
        if let Some(batch) = run.batch {
            self.put_batch(batch);
        }
    }

    /// Takes the frames of a batch, if no request needs them any more.
    #[inline]
    pub(crate) fn put_batch(&mut self, batch: Batch) {
        if let Some(mut frames) = Arc::into_inner(batch) {
            if self.frames.is_empty() {
                core::mem::swap(&mut self.frames, &mut frames);
            } else {
                self.frames.append(&mut frames);
            }
            self.put_spare(frames);
        }
    }

    /// Takes a vector that no batch was made of.
    #[inline]
    pub(crate) fn put_spare(&mut self, frames: Vec<Frame>) {
        if self.spare.len() < MAX_SPARE && frames.capacity() > 0 {
            self.spare.push(frames);
        }
    }

    /// An empty vector, for a batch.
    #[inline]
    pub(crate) fn spare(&mut self) -> Vec<Frame> {
        self.spare.pop().unwrap_or_default()
    }
}
