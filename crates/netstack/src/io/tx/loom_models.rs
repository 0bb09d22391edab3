//! Models of the slots under loom (`.ci/run`). Each says what it would catch.

use core::ops::Range;

use loom::thread;

use super::*;

/// Builds these frames, unless somebody else has one of them.
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

/// Sends what is ready once, and returns the first byte of each frame.
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

/// Catches: bits of one builder that are lost because another one of the same chunk changes
/// them; a chunk of which a part is ready and another part is sent; frames that leave out of
/// order.
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

/// Catches: frames that two builders both have, where what they take overlaps.
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
/// `claim` is Relaxed; a frame that takes the slot before its time; bits of one lap that count
/// in the next.
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

/// Catches: what a builder that gave up had written being written over by the next one at the
/// same time, because the end of a claim is Relaxed; other frames of the chunk that are given up
/// with it.
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

/// Of the frame that is prepared in each slot, its first byte.
struct Prepared([AtomicU64; 2]);

impl TxPrepare for Prepared {
    fn prepare(&self, first: usize, frames: &[TxFrame<'_>]) {
        for (slot, frame) in self.0[first..].iter().zip(frames) {
            slot.store(u64::from(frame.payload[0]), Ordering::Relaxed);
        }
    }
}

/// Catches: a slot that is named to the device before its frame is prepared, because that comes
/// after `publish`; a frame that is prepared while the one a lap before is still sent from there.
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
