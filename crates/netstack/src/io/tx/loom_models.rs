//! Loom models of the slots (`.ci/run`). Each names the faults that it would catch.

use core::ops::Range;

use loom::thread;

use super::*;

/// Builds these frames, unless another builder has one of them.
fn build(ring: &TxRing, frames: Range<u64>) -> bool {
    let count = frames.end - frames.start;
    let Ok(mut claim) = ring.claim(frames.start, count as u32) else {
        return false;
    };
    for frame in frames {
        claim.buffer()[0] = frame as u8;
        claim.built(0, 1, TxMeta::default());
    }
    claim.publish();
    true
}

/// Sends the ready frames once, and returns the first byte of each.
fn send(transmitter: &mut Transmitter) -> Vec<u8> {
    let mut frames = ArrayVec::<_, 4>::new();
    transmitter.ready(u64::MAX, &mut frames);
    let sent: Vec<u8> = frames.iter().map(|frame| frame.payload[0]).collect();
    drop(frames);
    if !sent.is_empty() {
        transmitter.advance(sent.len());
    }
    sent
}

/// Catches: a slot taken without its compare-and-swap; a frame sent before it is written,
/// because `publish` or `ready_in` is Relaxed.
#[test]
fn two_builders_of_one_frame_and_the_transmitter() {
    loom::model(|| {
        let (ring, mut transmitter) = TxRing::with_chunks(1, (64, 0), 1, None);
        let builders = [0; 2].map(|_| {
            let ring = Arc::clone(&ring);
            thread::spawn(move || build(&ring, 0..1))
        });
        let mut sent = send(&mut transmitter);
        let built = builders.map(|builder| builder.join().unwrap());
        assert!(built[0] != built[1]);
        sent.extend(send(&mut transmitter));
        assert_eq!(sent, [0]);
    });
}

/// Catches: bits of one builder lost to a change by another builder of the chunk; a transmitter
/// that sends one part of a chunk when another part is ready; frames that leave out of order.
#[test]
fn two_builders_of_parts_of_a_chunk_and_the_transmitter() {
    loom::model(|| {
        let (ring, mut transmitter) = TxRing::with_chunks(4, (64, 0), 4, None);
        let builders = [0..1, 1..3].map(|frames| {
            let ring = Arc::clone(&ring);
            thread::spawn(move || assert!(build(&ring, frames)))
        });
        let mut sent = send(&mut transmitter);
        for builder in builders {
            builder.join().unwrap();
        }
        sent.extend(send(&mut transmitter));
        assert_eq!(sent, [0, 1, 2]);
        assert_eq!(ring.sent(), 3);
    });
}

/// Catches: a frame that two builders with overlapping claims both have.
#[test]
fn of_two_builders_whose_frames_overlap_one_builds_them() {
    loom::model(|| {
        let (ring, mut transmitter) = TxRing::with_chunks(4, (64, 0), 4, None);
        let other = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || build(&ring, 1..3))
        };
        let own = build(&ring, 0..2);
        let other = other.join().unwrap();
        assert!(own != other);
        assert!(build(&ring, if own { 2..3 } else { 0..1 }));
        assert_eq!(send(&mut transmitter), [0, 1, 2]);
    });
}

/// Catches: a slot written again while the device still reads it, because `free_up_to` or
/// `claim` is Relaxed; a frame that claims the slot too early; bits of one lap that count in the
/// next.
#[test]
fn a_chunk_is_built_in_again_when_the_device_has_done_with_it() {
    loom::model(|| {
        let (ring, mut transmitter) = TxRing::with_chunks(2, (64, 0), 2, None);
        assert!(build(&ring, 0..2));
        let builder = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || build(&ring, 2..3))
        };
        let mut sent = send(&mut transmitter);
        if !builder.join().unwrap() {
            assert!(build(&ring, 2..3));
        }
        sent.extend(send(&mut transmitter));
        assert_eq!(sent, [0, 1, 2]);
    });
}

/// Catches: a builder that writes a slot at the same time as the one that gave it up, because
/// the drop of a claim is Relaxed; other frames of the chunk that are given up with the claim.
#[test]
fn a_claim_that_is_given_up_is_taken_over() {
    loom::model(|| {
        let (ring, mut transmitter) = TxRing::with_chunks(4, (64, 0), 4, None);
        let gives_up = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                if let Ok(mut claim) = ring.claim(0, 2) {
                    claim.buffer()[0] = 9;
                    claim.built(0, 1, TxMeta::default());
                }
            })
        };
        assert!(build(&ring, 2..3));
        let built = build(&ring, 0..2);
        gives_up.join().unwrap();
        assert!(built || build(&ring, 0..2));
        assert_eq!(send(&mut transmitter), [0, 1, 2]);
    });
}

/// The first byte of the prepared frame in each slot.
struct Prepared([AtomicU64; 2]);

impl TxPrepare for Prepared {
    fn prepare(&self, first: usize, frames: &[TxFrame<'_>]) {
        for (slot, frame) in self.0[first..].iter().zip(frames) {
            slot.store(u64::from(frame.payload[0]), Ordering::Relaxed);
        }
    }
}

/// Catches: a slot passed to the device before its frame is prepared, because `publish` comes
/// first; a frame prepared while the frame of the previous lap is still being sent from the slot.
#[test]
fn frames_are_prepared_before_they_are_sent_and_after_the_lap_before() {
    loom::model(|| {
        let prepared = Arc::new(Prepared([9, 9].map(AtomicU64::new)));
        let preparer: Arc<dyn TxPrepare> = prepared.clone();
        let (ring, mut transmitter) = TxRing::with_chunks(2, (64, 0), 2, Some(preparer));
        let mut sent = Vec::new();
        let mut send = || {
            let (first, count) = transmitter.ready_in_a_row(u64::MAX, 2);
            let slots = prepared.0[first..first + count].iter();
            sent.extend(slots.map(|slot| slot.load(Ordering::Relaxed)));
            if count > 0 {
                transmitter.advance(count);
            }
            count > 0
        };
        assert!(build(&ring, 0..1));
        let builder = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                assert!(build(&ring, 1..2));
                build(&ring, 2..3)
            })
        };
        send();
        if !builder.join().unwrap() {
            while send() {}
            assert!(build(&ring, 2..3));
        }
        while send() {}
        assert_eq!(sent, [0, 1, 2]);
    });
}
