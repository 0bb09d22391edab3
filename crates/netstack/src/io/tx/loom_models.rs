//! Loom models of the slots (`.ci/run`). Each names the faults that it would catch.

use core::ops::Range;

use loom::thread;

use super::*;

/// Builds those of these frames that are free, up to the first that is not. Returns whether that
/// was all of them.
fn build(ring: &TxRing, frames: Range<u64>) -> bool {
    count_built(ring, frames.clone(), 1) == frames.end - frames.start
}

/// As `build`, of frames of `len` bytes, but returns how many there were.
fn count_built(ring: &TxRing, frames: Range<u64>, len: usize) -> u64 {
    let Ok(mut begun) = ring.begin(frames.start, (frames.end - frames.start) as u32) else {
        return 0;
    };
    let count = u64::from(begun.left());
    for frame in frames.start..frames.start + count {
        begun.buffer()[0] = frame as u8;
        begun.built(0, len, TxMeta::default());
    }
    begun.mark_ready();
    count
}

/// Sends the ready frames once, and returns the first byte of each.
fn send(transmitter: &mut Transmitter) -> Vec<u8> {
    let mut frames = ArrayVec::<_, 4>::new();
    transmitter.ready((u64::MAX, transmitter.is_next_plain()), &mut frames);
    let sent: Vec<u8> = frames.iter().map(|frame| frame.payload[0]).collect();
    drop(frames);
    if !sent.is_empty() {
        transmitter.advance(sent.len());
    }
    sent
}

/// Catches: a slot taken without its compare-and-swap; a frame sent before it is written,
/// because `mark_ready` or `ready_in` is Relaxed.
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

/// Catches: a frame that two builders have whose frames overlap, or that none of them has.
#[test]
fn of_two_builders_whose_frames_overlap_one_builds_each() {
    loom::model(|| {
        let (ring, mut transmitter) = TxRing::with_chunks(4, (64, 0), 4, None);
        let other = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || count_built(&ring, 1..3, 1))
        };
        let own = count_built(&ring, 0..2, 1);
        let other = other.join().unwrap();
        assert!([(2, 0), (1, 2)].contains(&(own, other)));
        assert!(own == 1 || build(&ring, 2..3));
        assert_eq!(send(&mut transmitter), [0, 1, 2]);
    });
}

/// Catches: an owner that a builder's change of the word loses, or a second owner; a frame that
/// counts as built before it can be sent.
#[test]
fn two_workers_name_an_owner_while_one_builds() {
    loom::model(|| {
        let (ring, mut transmitter) = TxRing::with_chunks(2, (64, 0), 2, None);
        let other = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                let owner = ring.assign(0, 1);
                assert!(build(&ring, 0..1));
                owner
            })
        };
        let owner = ring.assign(1, 0);
        if ring.has_built(&mut 0, 1) {
            assert_eq!(ring.state(0), WorkState::Done);
            assert_eq!(send(&mut transmitter), [0]);
        }
        assert_eq!(other.join().unwrap(), owner);
        assert_eq!(ring.owner(0), owner);
    });
}

/// Catches: a slot written again while the device still reads it, because `free_up_to` or
/// `begin` is Relaxed; a frame that begins in the slot too early; bits of one lap that count in the
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
/// the drop is Relaxed; other frames of the chunk that are given up with them.
#[test]
fn frames_that_are_given_up_are_taken_over() {
    loom::model(|| {
        let (ring, mut transmitter) = TxRing::with_chunks(4, (64, 0), 4, None);
        let gives_up = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                if let Ok(mut begun) = ring.begin(0, 2) {
                    begun.buffer()[0] = 9;
                    begun.built(0, 1, TxMeta::default());
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

/// Catches: a slot passed to the device before its frame is prepared, because `mark_ready` comes
/// first, or although its frame is plain; a frame prepared while the frame of the previous lap is
/// still being sent from the slot.
#[test]
fn frames_are_prepared_before_they_are_sent_and_after_the_lap_before() {
    loom::model(|| {
        let prepared = Arc::new(Prepared([9, 9].map(AtomicU64::new)));
        let preparer: Arc<dyn TxPrepare> = prepared.clone();
        let (ring, mut transmitter) = TxRing::with_chunks(2, (2 * MAX_PLAIN, 0), 2, Some(preparer));
        let mut sent = Vec::new();
        let mut send_some = || {
            if transmitter.is_next_plain() {
                sent.extend(send(&mut transmitter).into_iter().map(u64::from));
                return true;
            }
            let (first, count) = transmitter.ready_in_a_row(u64::MAX, 2);
            let slots = prepared.0[first..first + count].iter();
            sent.extend(slots.map(|slot| slot.load(Ordering::Relaxed)));
            if count > 0 {
                transmitter.advance(count);
            }
            count > 0
        };
        assert!(build(&ring, 0..1));
        // Not plain.
        let build = |ring: &TxRing, frame| count_built(ring, frame..frame + 1, MAX_PLAIN + 1) == 1;
        let builder = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                assert!(build(&ring, 1));
                build(&ring, 2)
            })
        };
        send_some();
        if !builder.join().unwrap() {
            while send_some() {}
            assert!(build(&ring, 2));
        }
        while send_some() {}
        assert_eq!(sent, [0, 1, 2]);
    });
}
