//! Copies of payload.
//!
//! For a segment of some 1,400 bytes, copying with the processor's widest vectors, detected at run
//! time, takes two thirds of the instructions of `memcpy`, which handles any length.

#[cfg(target_arch = "x86_64")]
use pulp::{
    NullaryFnOnce,
    x86::{V3, V4},
};

#[cfg(target_arch = "x86_64")]
use crate::packet::checksum::Vectors;

/// Number of vectors that one iteration copies.
#[cfg(target_arch = "x86_64")]
const GROUP: usize = 16;
/// Minimum length of copies for which wide vectors pay.
#[cfg(target_arch = "x86_64")]
const WIDE: usize = 256;

/// The fastest way to copy on this processor.
#[derive(Clone, Copy)]
pub(crate) enum Copier {
    #[cfg(target_arch = "x86_64")]
    Widest(V4),
    #[cfg(target_arch = "x86_64")]
    Wide(V3),
    Plain,
}

impl Copier {
    /// The fastest way on this processor.
    #[inline(always)]
    pub(crate) fn here() -> Copier {
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(cpu) = V4::try_new() {
                return Copier::Widest(cpu);
            }
            if let Some(cpu) = V3::try_new() {
                return Copier::Wide(cpu);
            }
        }
        Copier::Plain
    }

    /// Copies `from` to `to`.
    ///
    /// # Panics
    /// If their lengths differ.
    #[inline(always)]
    pub(crate) fn copy(self, from: &[u8], to: &mut [u8]) {
        #[cfg(target_arch = "x86_64")]
        if from.len() >= WIDE {
            assert_eq!(from.len(), to.len());
            match self {
                Copier::Widest(cpu) => return cpu.vectorize(Copied { cpu, from, to }),
                Copier::Wide(cpu) => return cpu.vectorize(Copied { cpu, from, to }),
                Copier::Plain => {}
            }
        }
        to.copy_from_slice(from);
    }
}

/// A copy of `from` to `to`, which have the same length.
#[cfg(target_arch = "x86_64")]
struct Copied<'a, C> {
    cpu: C,
    from: &'a [u8],
    to: &'a mut [u8],
}

#[cfg(target_arch = "x86_64")]
impl NullaryFnOnce for Copied<'_, V3> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        wide(self.cpu, self.from, self.to);
    }
}

#[cfg(target_arch = "x86_64")]
impl NullaryFnOnce for Copied<'_, V4> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        wide(self.cpu, self.from, self.to);
    }
}

/// Copies the first and the last vector unaligned, and the vectors between them so that no store
/// crosses a cache line.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn wide<const N: usize, C: Vectors<N>>(cpu: C, from: &[u8], to: &mut [u8]) {
    let to = &mut to[..from.len()];
    let (Some(first), Some(last)) = (from.first_chunk(), from.last_chunk()) else {
        return to.copy_from_slice(from);
    };
    let last = cpu.load(last);
    let skipped = N - to.as_ptr().addr() % N;
    if let Some(place) = to.first_chunk_mut() {
        cpu.store(cpu.load(first), place);
    }
    let (vectors, _) = from[skipped..].as_chunks::<N>();
    let (places, _) = to[skipped..].as_chunks_mut::<N>();
    let (vectors, places) = groups::<GROUP, N, C>(cpu, vectors, places);
    let (vectors, places) = groups::<{ GROUP / 4 }, N, C>(cpu, vectors, places);
    for (vector, place) in vectors.iter().zip(places) {
        cpu.store(cpu.load(vector), place);
    }
    if let Some(place) = to.last_chunk_mut() {
        cpu.store(last, place);
    }
}

/// Copies as many groups of `G` vectors as there are; returns the rest.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn groups<'f, 't, const G: usize, const N: usize, C: Vectors<N>>(
    cpu: C,
    from: &'f [[u8; N]],
    to: &'t mut [[u8; N]],
) -> (&'f [[u8; N]], &'t mut [[u8; N]]) {
    let (groups, vectors) = from.as_chunks::<G>();
    let (into, places) = to.as_chunks_mut::<G>();
    for (group, into) in groups.iter().zip(into) {
        for (vector, place) in group.iter().zip(into) {
            cpu.store(cpu.load(vector), place);
        }
    }
    (vectors, places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// All ways that this processor supports.
    fn all_ways() -> Vec<Copier> {
        let mut ways = vec![Copier::here(), Copier::Plain];
        #[cfg(target_arch = "x86_64")]
        {
            ways.extend(V3::try_new().map(Copier::Wide));
            ways.extend(V4::try_new().map(Copier::Widest));
        }
        ways
    }

    proptest! {
        #[test]
        fn every_byte_is_copied_wherever_both_lie(
            bytes in proptest::collection::vec(any::<u8>(), 0..3000),
            skip in 0usize..64,
            at in 0usize..64,
        ) {
            let from = &bytes[skip.min(bytes.len())..];
            let mut ring = vec![0xaa; at + from.len() + 64];
            let (before, rest) = ring.split_at_mut(at);
            let (to, behind) = rest.split_at_mut(from.len());
            for way in all_ways() {
                to.fill(0);
                way.copy(from, to);
                prop_assert_eq!(&*to, from);
            }
            prop_assert!(before.iter().chain(behind.iter()).all(|byte| *byte == 0xaa));
        }
    }

    #[test]
    #[should_panic(expected = "left == right")]
    fn a_place_of_another_length_is_refused() {
        Copier::here().copy(&[1; 600], &mut [0; 599]);
    }
}
