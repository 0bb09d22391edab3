//! Requests on their way to the log, and their frames.
//!
//! All frames that a worker claims from the device at once are a batch. They stay together in
//! place until the last request that needs one of them is done: its [`RunFrames`] hold the batch
//! and the indices of its frames. So any worker may parse a batch or verify a request while another
//! worker does so, too, and no frame moves until the whole batch goes back.

use core::num::NonZeroU32;
use core::ops::Range;
use std::sync::Arc;

use dominoes::ReadBatch;
use dominoes_drivers::Frame;

use crate::io::claim::MAX_CLAIM;
use crate::log::request::{Body, Flow, MAX_RUN, Request, Verdict};
use crate::seqnum::SeqNum;

/// Frames that were claimed from the device at once.
pub(crate) type ClaimedFrames = Arc<Vec<Frame>>;

/// Most frames of a request.
const MOST: usize = MAX_RUN;

/// The indices of a request's frames in their batch, in ascending order.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Indices {
    first: u8,
    count: u8,
    /// One bit each, unless they are consecutive.
    scattered: Option<[u64; 2]>,
}

const _: () = assert!(MAX_CLAIM <= 128);

impl Indices {
    /// How many frames.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Replaces all by one frame.
    #[inline(always)]
    pub(crate) fn begin_with(&mut self, index: usize) {
        (self.first, self.count, self.scattered) = (index as u8, 1, None);
    }

    /// Appends a frame. Requires room.
    #[inline(always)]
    pub(crate) fn push(&mut self, index: usize) {
        self.extend(index..index + 1);
    }

    /// Appends consecutive frames. Requires room for all.
    #[inline(always)]
    pub(crate) fn extend(&mut self, range: Range<usize>) {
        if self.count == 0 {
            self.first = range.start as u8;
        }
        let end = usize::from(self.first) + self.len();
        let follows = self.scattered.is_none() && range.start == end;
        if !follows && !range.is_empty() {
            self.scatter(range.clone());
        }
        self.count += range.len() as u8;
    }

    #[inline(never)]
    fn scatter(&mut self, range: Range<usize>) {
        let first = usize::from(self.first);
        let end = first + self.len();
        let bits = self.scattered.get_or_insert_with(|| {
            let mut bits = [0; 2];
            (first..end).for_each(|index| bits[index / 64] |= 1 << (index % 64));
            bits
        });
        range.for_each(|index| bits[index / 64] |= 1 << (index % 64));
    }

    /// The indices.
    #[inline(always)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + use<> {
        let Indices {
            first,
            count,
            mut scattered,
        } = *self;
        (0..usize::from(count)).map(move |i| match &mut scattered {
            None => usize::from(first) + i,
            Some(bits) => {
                let half = usize::from(bits[0] == 0);
                let lowest = bits[half].trailing_zeros() as usize;
                bits[half] &= bits[half].wrapping_sub(1);
                64 * half + lowest
            }
        })
    }
}

/// A request on its way to the log, with its frames. The parser fills in what headers say, and the
/// pump what it samples.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) request: Request,
    /// If it is known.
    pub(crate) verdict: Option<Verdict>,
    /// The version of the table of connections at the look-up of the digest's hint. 0: it was not
    /// looked up, or the table was empty.
    pub(crate) hint_version: u64,
    pub(crate) frames: RunFrames,
}

impl Run {
    /// A request with its frames.
    #[inline(always)]
    pub(crate) fn new(request: Request, verdict: Option<Verdict>, frames: RunFrames) -> Run {
        Run {
            request,
            verdict,
            hint_version: 0,
            frames,
        }
    }

    /// A request that has no frames.
    #[inline(always)]
    pub(crate) fn bare(request: Request) -> Run {
        Run::new(request, None, RunFrames::default())
    }

    /// Takes over the hint of a run of the same flow.
    #[inline]
    pub(crate) fn set_hint(&mut self, known: &Run) {
        self.request.digest.hint = known.request.digest.hint;
        self.hint_version = known.hint_version;
    }

    /// The flow of its segments.
    #[inline]
    pub(crate) fn flow(&self) -> Flow {
        match self.request.body {
            Body::Segments { flow, .. } => flow,
            _ => Flow::default(),
        }
    }

    /// Becomes `run`, and takes its frames. Not as a whole: the compiler would call `memcpy`.
    #[inline(always)]
    pub(crate) fn set(&mut self, run: &mut Run) {
        self.request.digest = run.request.digest;
        self.request.body = run.request.body;
        self.verdict = run.verdict;
        self.hint_version = run.hint_version;
        self.frames.batch = run.frames.batch.take();
        self.frames.indices = run.frames.indices;
        self.frames.seq = run.frames.seq;
        self.frames.seg_len = run.frames.seg_len;
        self.frames.payload_offset = run.frames.payload_offset;
        self.frames.reserved = run.frames.reserved;
    }
}

/// The frames of a run or of datagrams, in order; none for acknowledgments and other requests. With
/// these, an effect has all that it needs of its request.
#[derive(Debug, Default)]
pub(crate) struct RunFrames {
    pub(crate) batch: Option<ClaimedFrames>,
    pub(crate) indices: Indices,
    /// Sequence number of the first payload byte.
    pub(crate) seq: SeqNum,
    /// Payload bytes of every segment of the run except the last.
    pub(crate) seg_len: u16,
    /// Bytes of each frame before its payload.
    pub(crate) payload_offset: u16,
    /// Low half of the payload's offset in the receive stream, if bytes are reserved for it there:
    /// it is stored while it is verified.
    pub(crate) reserved: Option<NonZeroU32>,
}

impl RunFrames {
    /// These frames of `batch`.
    #[inline(always)]
    pub(crate) fn new(batch: &ClaimedFrames, indices: Indices) -> RunFrames {
        RunFrames {
            batch: Some(Arc::clone(batch)),
            indices,
            ..RunFrames::default()
        }
    }

    /// The frames of `request`, at most [`MAX_RUN`], which are a whole batch.
    pub(crate) fn of(frames: Vec<Frame>, request: &Request) -> RunFrames {
        let mut indices = Indices::default();
        (0..frames.len().min(MOST)).for_each(|index| indices.push(index));
        let mut run = RunFrames::new(&Arc::new(frames), indices);
        run.lie_as(request);
        run
    }

    /// Notes how the payload of `request` lies in these frames.
    #[inline(always)]
    pub(crate) fn lie_as(&mut self, request: &Request) {
        self.seq = request.digest.seg_seq;
        (self.seg_len, self.payload_offset) = request.layout();
    }

    /// How many frames.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.indices.len()
    }

    /// Frame `i`.
    #[inline(always)]
    pub(crate) fn get(&self, i: usize) -> Option<&Frame> {
        match self.indices.scattered {
            None => self.consecutive()?.get(i),
            Some(_) => self.iter().nth(i),
        }
    }

    /// The frames, in order, if they are consecutive in their batch.
    #[inline(always)]
    pub(crate) fn consecutive(&self) -> Option<&[Frame]> {
        let first = usize::from(self.indices.first);
        let frames = self.all().get(first..first + self.len())?;
        self.indices.scattered.is_none().then_some(frames)
    }

    /// The frames, in order.
    #[inline(always)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Frame> {
        let batch = self.all();
        self.indices.iter().filter_map(|index| batch.get(index))
    }

    /// The frames of its batch.
    #[inline(always)]
    fn all(&self) -> &[Frame] {
        self.batch.as_ref().map_or(&[], |batch| &batch[..])
    }
}

/// The frames of the requests that are published together.
#[derive(Debug)]
pub(crate) enum BatchFrames {
    /// Of a request by itself.
    One(RunFrames),
    /// Of the runs of a batch that was parsed.
    Parsed(Vec<RunFrames>),
}

impl BatchFrames {
    /// The frames of the request at `index`.
    #[inline(always)]
    pub(crate) fn get(&self, index: u8) -> Option<&RunFrames> {
        match self {
            BatchFrames::One(run) => (index == 0).then_some(run),
            BatchFrames::Parsed(runs) => runs.get(usize::from(index)),
        }
    }
}

/// Frames that are no longer needed. The worker that used them last keeps them, since they are
/// in its core's cache.
#[derive(Debug, Default)]
pub(crate) struct FrameRecycler {
    /// Frames that go back to the device.
    pub(crate) frames: Vec<Frame>,
    /// Empty, for the next batches.
    spare: Vec<Vec<Frame>>,
    spare_runs: Vec<Vec<RunFrames>>,
}

/// Most empty vectors that a recycler keeps: more than a worker has batches.
const MAX_SPARE: usize = 64;

impl FrameRecycler {
    /// Takes the frames of the batch of a run, if that was the batch's last run.
    #[inline]
    pub(crate) fn put(&mut self, run: RunFrames) {
        // A command has no batch.
        if let Some(batch) = run.batch {
            self.put_batch(batch);
        }
    }

    /// Takes the frames of a batch, if no request needs them any more.
    #[inline(always)]
    pub(crate) fn put_batch(&mut self, batch: ClaimedFrames) {
        if let Some(frames) = Arc::into_inner(batch) {
            self.put_frames(frames);
        }
    }

    #[inline(never)]
    fn put_frames(&mut self, mut frames: Vec<Frame>) {
        if self.frames.is_empty() {
            core::mem::swap(&mut self.frames, &mut frames);
        } else {
            self.frames.append(&mut frames);
        }
        self.put_spare(frames);
    }

    /// Ends reading the frames of a batch, and takes them if the batch is done.
    #[inline]
    pub(crate) fn put_read(&mut self, reading: Option<ReadBatch<'_, BatchFrames>>) {
        if let Some(runs) = reading.and_then(ReadBatch::release) {
            self.put_runs(runs);
        }
    }

    /// As [`put`](Self::put), for all requests that were published together.
    pub(crate) fn put_runs(&mut self, runs: BatchFrames) {
        match runs {
            BatchFrames::One(run) => self.put(run),
            BatchFrames::Parsed(mut runs) => {
                for batch in runs.iter_mut().filter_map(|run| run.batch.take()) {
                    self.put_batch(batch);
                }
                runs.clear();
                if self.spare_runs.len() < MAX_SPARE {
                    self.spare_runs.push(runs);
                }
            }
        }
    }

    /// An empty vector, for the runs of a batch.
    #[inline]
    pub(crate) fn spare_runs(&mut self) -> Vec<RunFrames> {
        self.spare_runs.pop().unwrap_or_default()
    }

    /// Takes back a vector that did not become a batch.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_a_run_are_found_in_order_whether_or_not_they_are_consecutive() {
        let frame = |i: u8| Frame::from_bytes(&[i]);
        let batch = ClaimedFrames::new((0..MAX_CLAIM as u8).map(frame).collect());
        let found = |indices: Indices| {
            let run = RunFrames::new(&batch, indices);
            let each = Vec::from_iter(run.iter().map(|frame| frame.bytes()[0]));
            let by_number = (0..run.len()).map(|i| run.get(i).unwrap().bytes()[0]);
            assert!(by_number.eq(each.iter().copied()));
            assert!(run.get(run.len()).is_none());
            (each, run.consecutive().is_some())
        };
        let mut indices = Indices::default();
        assert_eq!(found(indices), (vec![], true));
        indices.push(60);
        indices.extend(61..66);
        indices.extend(70..70);
        assert_eq!(found(indices), ((60..66).collect(), true));
        indices.push(67);
        indices.extend(118..120);
        let scattered = (60..66).chain([67, 118, 119]).collect();
        assert_eq!(found(indices), (scattered, false));
        indices.begin_with(3);
        assert_eq!(found(indices), (vec![3], true));
    }
}
