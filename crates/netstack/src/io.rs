//! How a request travels, and the memory that it meets.
//!
//! ```text
//! device -> rx: parse, merge, publish -> prepare -> apply -> perform -> tx -> device
//!                                                                \-> stream -> application
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | `rx`, `gro` | make requests of frames and publish them; send numbered frames |
//! | `prepare` | verifies checksums |
//! | `perform` | performs the effects of `apply` ([`crate::state`]) |
//! | `stream`, `udp_queues`, `tx` | memory that primaries share with applications and devices |
//! | `processor` | works on every byte of a stream while it is copied |
//! | `direct` | does all steps at once, for a thread that has the state to itself |
//! | `record` | records what is published, and replays it |
//! | `world`, `view` | what all threads of a stack share, and what they show of themselves |
//!
//! [`crate::variants`] decides which thread calls what, and whether there is a log in between.

pub(crate) mod copy;
pub(crate) mod direct;
pub(crate) mod gro;
pub(crate) mod perform;
pub(crate) mod prefetch;
pub(crate) mod prepare;
pub mod processor;
pub(crate) mod record;
pub(crate) mod rx;
pub(crate) mod setup;
pub(crate) mod sleep;
pub(crate) mod stream;
pub(crate) mod sync;
pub(crate) mod tx;
pub(crate) mod udp_queues;
pub(crate) mod view;
pub(crate) mod world;

use core::num::NonZeroU64;

use dominoes_drivers::Frame;

use crate::seqnum::SeqNum;

/// The frames behind a request: those of a run, in order; none for other requests.
///
/// Runs travel from hand to hand and come back to be filled again, so that neither costs a large
/// copy or an allocation.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(crate) frames: Vec<Frame>,
    /// Sequence number of the first payload byte.
    pub(crate) seq: SeqNum,
    /// Where in the receive stream the payload may be stored while its checksums are verified, if
    /// it may ([`StreamRef::reserve`](stream::StreamRef::reserve)).
    pub(crate) place: Option<NonZeroU64>,
}

/// The payload of one request: of a run, or of one segment of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Payload<'a> {
    pub(crate) frames: &'a [Frame],
    /// Sequence number of the first byte.
    pub(crate) seq: SeqNum,
    /// If the run is stored already: where it begins, in the stream and in sequence numbers.
    pub(crate) stored: Option<(NonZeroU64, SeqNum)>,
}

impl Run {
    /// All of it, which lies at its place if that is what `is_stored` says.
    #[inline(always)]
    pub(crate) fn payload(&self, is_stored: bool) -> Payload<'_> {
        let place = self.place.filter(|_| is_stored);
        Payload {
            frames: &self.frames,
            seq: self.seq,
            stored: place.map(|place| (place, self.seq)),
        }
    }
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

/// Frames and runs that are no longer needed. The worker that used them last keeps them: they are
/// in its core's cache.
#[derive(Debug, Default)]
pub(crate) struct FrameRecycler {
    /// To be returned to the device.
    pub(crate) frames: Vec<Frame>,
    /// Empty, to be filled again.
    pub(crate) runs: Vec<Run>,
}

/// Empty runs that a recycler keeps: more than a hold of the pump fills.
const MAX_RUNS: usize = 256;

impl FrameRecycler {
    /// Takes a run that is no longer needed.
    pub(crate) fn put(&mut self, mut run: Run) {
        // A command has none.
        if run.frames.capacity() > 0 {
            self.frames.append(&mut run.frames);
            run.place = None;
            if self.runs.len() < MAX_RUNS {
                self.runs.push(run);
            }
        }
    }
}
