//! The first costly step: checksums, a pure function of a run's frames.
//!
//! It may be done twice, by anybody, ahead of everything else. Its answer is the verdict, one bit per
//! segment, and the only thing about payload that `apply` gets to know.

use dominoes_drivers::{Frame, RxChecksum};

use crate::digest::{Kind, Request};
use crate::engine::Run;
use crate::engine::checksum::Sum;
use crate::wire;

const TCP: u8 = 6;

/// Which segments of a run have a good checksum, one bit each.
pub(crate) fn prepare(request: &Request, run: &Run) -> u16 {
    if request.digest.kind != Kind::Segments {
        return 0;
    }
    verdict(&run.frames)
}

/// The verdict on frames, at most 16.
#[inline]
pub(crate) fn verdict(frames: &[Frame]) -> u16 {
    let mut verdict = 0;
    for (i, frame) in frames.iter().enumerate() {
        if vouched(frame) || is_good(frame.bytes()) {
            verdict |= 1 << i;
        }
    }
    verdict
}

/// The verdict, if the device vouches for every frame of the run.
pub(crate) fn vouched_for(request: &Request, run: &Run) -> Option<u16> {
    let all = run.frames.iter().all(vouched);
    all.then(|| request.digest.all_good())
}

/// Whether nothing is left to verify: the device did, or the data never crossed a wire.
pub(crate) fn vouched(frame: &Frame) -> bool {
    !matches!(frame.meta.checksum, RxChecksum::Verify)
}

/// Whether the TCP checksum of a frame is right.
pub(crate) fn is_good(frame: &[u8]) -> bool {
    let Some((src, dst, segment)) = wire::checksummed(frame) else {
        return false;
    };
    Sum::default()
        .pseudo_header(src.octets(), dst.octets(), TCP, segment.len())
        .add(segment)
        .is_good()
}
