use super::*;
use crate::io::setup::Setup;
use crate::io::sync::interrupted;
use dominoes_drivers::{DeviceError, memory};

fn build(ring: &TxRing, frame: u64, bytes: &[u8]) {
    let mut begun = ring.begin(frame, 1).unwrap();
    begun.buffer()[..bytes.len()].copy_from_slice(bytes);
    begun.built(1, bytes.len(), TxMeta::default());
    begun.mark_ready();
}

const CALLS: u32 = 16;

fn whole(frames: &[TxFrame<'_>]) -> Vec<Vec<u8>> {
    let both = frames.iter().map(|f| [f.head, f.payload].concat());
    both.collect()
}

fn send_all(transmitter: &mut Transmitter) -> Vec<Vec<u8>> {
    let mut frames = ArrayVec::<_, 8>::new();
    transmitter.ready((u64::MAX, transmitter.is_next_plain()), &mut frames);
    let mut sent = whole(&frames);
    drop(frames);
    if !sent.is_empty() {
        transmitter.advance(sent.len());
    } else if transmitter.look_behind() {
        let mut frames = ArrayVec::<_, 8>::new();
        let picked = transmitter.ready_behind(&mut frames);
        sent = whole(&frames);
        drop(frames);
        transmitter.pass(&picked);
    }
    sent
}

#[test]
fn frames_leave_past_a_hole_once_enough_are_ready_behind_it_and_each_once() {
    let (ring, mut transmitter) = TxRing::new(8, (64, 0), 32, None);
    transmitter.send_past(3, CALLS);
    assert_eq!(transmitter.journal(), []);
    for k in [1, 2, 4] {
        build(&ring, k, &[b'a', k as u8]);
    }
    for _ in 1..CALLS {
        assert_eq!(send_all(&mut transmitter), Vec::<Vec<u8>>::new());
    }
    assert_eq!(send_all(&mut transmitter).len(), 3);
    assert_eq!((ring.sent(), transmitter.passed()), (0, 3));
    // Their slots are not free, and nothing goes twice.
    assert_eq!(ring.begin(9, 1).err(), Some(WorkState::Free));
    assert_eq!(send_all(&mut transmitter), Vec::<Vec<u8>>::new());
    build(&ring, 0, b"a0");
    assert_eq!(send_all(&mut transmitter), [b"a0"]);
    assert_eq!(ring.sent(), 3);
    build(&ring, 5, b"a5");
    assert_eq!(send_all(&mut transmitter), Vec::<Vec<u8>>::new());
    build(&ring, 3, b"a3");
    assert_eq!(send_all(&mut transmitter), [b"a3"]);
    assert_eq!(send_all(&mut transmitter), [b"a5"]);
    assert_eq!((ring.sent(), transmitter.passed()), (6, 3));
    transmitter.note_unnumbered();
    let noted = [Some(1), Some(2), Some(4), Some(0), Some(3), Some(5), None];
    assert_eq!(transmitter.journal(), noted);
    build(&ring, 9, b"a9");
    build(&ring, 6, b"a6");
    assert_eq!(send_all(&mut transmitter), [b"a6"]);
}

#[test]
fn a_hole_is_as_old_as_the_first_frame_that_was_seen_behind_it() {
    let (ring, mut transmitter) = TxRing::with_chunks(8, (64, 0), 4, None);
    transmitter.send_past(1, CALLS);
    // No frame has a number yet.
    for _ in 0..2 * CALLS {
        assert!(!transmitter.look_behind());
    }
    build_range(&ring, 1..3);
    for _ in 1..CALLS {
        assert!(!transmitter.look_behind());
    }
    assert!(transmitter.look_behind());
    // The next frame is ready, but may not leave yet.
    build_range(&ring, 0..1);
    assert!(!transmitter.look_behind());
}

#[test]
fn a_hole_that_few_frames_wait_behind_is_waited_for() {
    let (ring, mut transmitter) = TxRing::new(8, (64, 0), 32, None);
    transmitter.send_past(3, CALLS);
    build(&ring, 1, b"b1");
    build(&ring, 7, b"b7");
    for _ in 0..4 * CALLS {
        assert_eq!(send_all(&mut transmitter), Vec::<Vec<u8>>::new());
    }
    build(&ring, 0, b"b0");
    assert_eq!(send_all(&mut transmitter), [b"b0", b"b1"]);
}

#[test]
fn frames_leave_in_the_order_of_their_numbers_however_they_were_built() {
    let (ring, mut transmitter) = TxRing::new(4, (64, 0), 32, None);
    build(&ring, 1, b"b1");
    assert_eq!(send_all(&mut transmitter), Vec::<Vec<u8>>::new());
    build(&ring, 0, b"a0");
    assert_eq!(send_all(&mut transmitter), [b"a0", b"b1"]);
    assert_eq!(ring.sent(), 2);
    for k in 2..6 {
        build(&ring, k, b"xx");
    }
    assert_eq!(send_all(&mut transmitter).len(), 4);
}

#[test]
fn a_second_builder_of_a_frame_is_found_out() {
    let (ring, mut transmitter) = TxRing::new(4, (64, 0), 32, None);
    build(&ring, 0, b"a0");
    assert_eq!(ring.begin(0, 1).err(), Some(WorkState::Done));
    assert_eq!(ring.begin(4, 1).err(), Some(WorkState::Free));
    send_all(&mut transmitter);
    assert_eq!(ring.begin(0, 1).err(), Some(WorkState::Done));
    let _begun = ring.begin(4, 1).unwrap();
    assert_eq!(ring.state(4), WorkState::Begun);
}

#[test]
fn of_two_builders_one_takes_the_slot_wherever_the_other_comes_in_between() {
    let begin = |ring: &TxRing| ring.begin(0, 1).map(core::mem::forget);
    for step in 0.. {
        let (ring, _transmitter) = TxRing::new(4, (64, 0), 32, None);
        let same = Arc::clone(&ring);
        let (one, other) = interrupted(step, move || begin(&same), || begin(&ring));
        let Some(other) = other else {
            assert!(step > 0, "a slot is taken without any access");
            break;
        };
        let both = [one, other];
        let taken = both.iter().filter(|begun| begun.is_ok()).count();
        assert_eq!(taken, 1, "interrupted before access {step}: {both:?}");
    }
}

#[test]
fn a_chunk_has_the_first_owner_that_was_named_until_all_of_it_has_left() {
    let (ring, mut transmitter) = TxRing::with_chunks(8, (64, 0), 4, None);
    for lap in 0..3 {
        let at = 8 * lap;
        assert_eq!(ring.owner(at + 3), Err(WorkState::Free));
        drop(ring.begin(at, 2).unwrap());
        assert_eq!(ring.assign(at + 3, 55), Ok(55));
        build_range(&ring, at..at + 4);
        assert_eq!(ring.assign(at, 0), Ok(55));
        assert_eq!(ring.assign(at + 8, 7), Ok(7), "it is not due");
        assert_eq!(ring.owner(at + 8), Err(WorkState::Free));
        build_range(&ring, at + 4..at + 8);
        assert_eq!(send_all(&mut transmitter).len(), 8);
        assert_eq!(ring.owner(at + 1), Err(WorkState::Done));
        assert_eq!(ring.assign(at + 1, 3), Err(WorkState::Done));
    }
}

#[test]
fn what_is_built_is_known_up_to_the_first_frame_that_is_not() {
    let (ring, mut transmitter) = TxRing::with_chunks(8, (64, 0), 4, None);
    let mut built = 0;
    build_range(&ring, 0..2);
    build_range(&ring, 4..6);
    assert!(!ring.has_built(&mut built, 6) && built == 2);
    build_range(&ring, 2..4);
    assert!(ring.has_built(&mut built, 6) && built == 6);
    build_range(&ring, 6..8);
    assert_eq!(send_all(&mut transmitter).len(), 8);
    assert!(ring.has_built(&mut 0, 8));
    assert!(!ring.has_built(&mut 0, 9));
}

#[test]
fn of_threads_that_want_every_frame_one_builds_each() {
    const FRAMES: u64 = 20_000;
    const SLOTS: u64 = 64;
    const CHUNK: u64 = tx_chunk(SLOTS);
    let (ring, mut transmitter) = TxRing::new(SLOTS as usize, (64, 0), 32, None);
    let build_all = || {
        let mut built = 0;
        for frame in 0..FRAMES {
            // A slot is free when all frames of its chunk have left, not before.
            while frame >= ring.sent() / CHUNK * CHUNK + SLOTS {
                std::thread::yield_now();
            }
            if let Ok(mut begun) = ring.begin(frame, 1) {
                begun.built(0, 8, TxMeta::default());
                begun.mark_ready();
                built += 1;
            }
        }
        built
    };
    let built: u64 = std::thread::scope(|scope| {
        let builders = [0; 3].map(|_| scope.spawn(build_all));
        let mut sent = 0;
        while sent < FRAMES {
            sent += send_all(&mut transmitter).len() as u64;
        }
        builders.map(|builder| builder.join().unwrap()).iter().sum()
    });
    assert_eq!(built, FRAMES);
}

#[test]
fn a_frame_that_is_begun_and_given_up_is_free_again() {
    let (ring, mut transmitter) = TxRing::new(4, (64, 0), 32, None);
    drop(ring.begin(0, 1).unwrap());
    build(&ring, 0, b"a0");
    assert_eq!(send_all(&mut transmitter), [b"a0"]);
}

/// Builds these frames, of one chunk, each of two bytes.
fn build_range(ring: &TxRing, frames: core::ops::Range<u64>) {
    let count = frames.end - frames.start;
    let mut begun = ring.begin(frames.start, count as u32).unwrap();
    for frame in frames {
        begun.buffer()[..2].copy_from_slice(&[b'a', frame as u8]);
        begun.built(1, 2, TxMeta::default());
    }
    begun.mark_ready();
}

fn numbers(sent: &[Vec<u8>]) -> Vec<u8> {
    sent.iter().map(|frame| frame[1]).collect()
}

#[test]
fn parts_of_a_chunk_leave_in_order_and_its_slots_are_free_when_all_have() {
    let (ring, mut transmitter) = TxRing::with_chunks(8, (64, 0), 4, None);
    for lap in 0..5 {
        let at = 8 * lap;
        build_range(&ring, at + 2..at + 4);
        assert!(send_all(&mut transmitter).is_empty());
        build_range(&ring, at..at + 1);
        assert_eq!(numbers(&send_all(&mut transmitter)), [at as u8]);
        // Its frames of the next lap have no slots yet.
        assert_eq!(ring.begin(at + 8, 1).err(), Some(WorkState::Free));
        build_range(&ring, at + 4..at + 6);
        build_range(&ring, at + 1..at + 2);
        let rest: Vec<u8> = (1..6).map(|i| (at + i) as u8).collect();
        assert_eq!(numbers(&send_all(&mut transmitter)), rest);
        assert_eq!(ring.sent(), at + 6);
        drop(ring.begin(at + 8, 4).unwrap());
        build_range(&ring, at + 6..at + 8);
        assert_eq!(send_all(&mut transmitter).len(), 2);
    }
}

#[test]
fn of_a_chunk_that_is_sent_past_a_hole_no_frame_leaves_twice() {
    let (ring, mut transmitter) = TxRing::with_chunks(8, (64, 0), 4, None);
    transmitter.send_past(3, 1);
    build_range(&ring, 1..3);
    build_range(&ring, 4..6);
    assert_eq!(numbers(&send_all(&mut transmitter)), [1, 2, 4, 5]);
    build_range(&ring, 0..1);
    assert_eq!(numbers(&send_all(&mut transmitter)), [0]);
    assert_eq!((ring.sent(), transmitter.passed()), (3, 4));
    build_range(&ring, 3..4);
    assert_eq!(numbers(&send_all(&mut transmitter)), [3]);
    assert_eq!(ring.sent(), 6);
    build_range(&ring, 8..12);
    build_range(&ring, 6..8);
    assert_eq!(numbers(&send_all(&mut transmitter)), [6, 7, 8, 9, 10, 11]);
}

#[test]
fn the_free_frames_in_a_row_are_begun_together_and_unwinding_gives_them_up() {
    let (ring, mut transmitter) = TxRing::with_chunks(8, (64, 0), 4, None);
    build_range(&ring, 1..2);
    let lens = [(0, 2, 1), (2, 9, 2), (4, 3, 3), (4, 9, 4)];
    for (first, most, len) in lens {
        assert_eq!(ring.begin(first, most).unwrap().left(), len);
    }
    assert_eq!(ring.begin(1, 3).err(), Some(WorkState::Done));
    let dies = std::panic::AssertUnwindSafe(|| {
        let mut begun = ring.begin(2, 2).unwrap();
        begun.built(0, 2, TxMeta::default());
        begun.mark_ready();
    });
    assert!(std::panic::catch_unwind(dies).is_err(), "3 is not built");
    build_range(&ring, 2..4);
    build_range(&ring, 0..1);
    assert_eq!(numbers(&send_all(&mut transmitter)), [0, 1, 2, 3]);
}

#[test]
#[should_panic(expected = "no frame is left to build")]
fn a_slot_that_is_not_begun_is_not_written() {
    let (ring, _transmitter) = TxRing::with_chunks(8, (64, 0), 4, None);
    let mut begun = ring.begin(0, 2).unwrap();
    for _ in 0..2 {
        begun.buffer();
        begun.built(0, 2, TxMeta::default());
    }
    begun.buffer();
}

#[test]
fn a_borrowed_payload_is_sent_from_the_send_ring() {
    use crate::config::Limits;
    use crate::io::stream::Streams;
    use crate::log::request::ConnId;
    let (ring, mut transmitter) = TxRing::new(4, (64, 0), 32, None);
    let limits = Limits::default().connections(1).send_buffer(1024);
    let streams = Streams::new(&limits, 4);
    let conn = ConnId {
        index: 0,
        generation: 0,
    };
    let stream = streams.get(conn).unwrap();
    assert_eq!(stream.write(b"carried"), 7);
    for (frame, head) in [(0, b"h0"), (1, b"h1")] {
        let mut begun = ring.begin(frame, 1).unwrap();
        begun.buffer()[..2].copy_from_slice(head);
        let carried = stream.borrow_payload(frame, 3).unwrap();
        begun.built_with_payload(2, carried, TxMeta::default());
        begun.mark_ready();
    }
    assert!(
        stream.borrow_payload(1023, 2).is_none(),
        "one at the end of the ring, and one at its beginning"
    );
    assert_eq!(ring.sent(), 0);
    assert_eq!(send_all(&mut transmitter), [b"h0car", b"h1arr"]);
    assert_eq!(ring.sent(), 2);
}

/// Notes the slots and bytes of prepared frames.
#[derive(Default)]
struct Noting(std::sync::Mutex<Vec<(usize, Vec<Vec<u8>>)>>);

impl TxPrepare for Noting {
    fn prepare(&self, first: usize, frames: &[TxFrame<'_>]) {
        self.0.lock().unwrap().push((first, whole(frames)));
    }
}

#[test]
fn frames_are_prepared_when_they_are_built_and_sent_by_slots_in_a_row() {
    const LEN: usize = MAX_PLAIN + 1;
    let noting = Arc::new(Noting::default());
    let preparer: Arc<dyn TxPrepare> = noting.clone();
    let (ring, mut transmitter) = TxRing::with_chunks(8, (2 * MAX_PLAIN, 0), 4, Some(preparer));
    let noted = || core::mem::take(&mut *noting.0.lock().unwrap());
    let build_some = |first: u64, count: u32| {
        let mut begun = ring.begin(first, count).unwrap();
        for frame in first..first + u64::from(count) {
            begun.buffer()[..LEN].copy_from_slice(&[frame as u8; LEN]);
            begun.built(1, LEN, TxMeta::default());
        }
        begun
    };
    let frames = |numbers: core::ops::Range<u8>| -> Vec<Vec<u8>> {
        numbers.map(|number| vec![number; LEN]).collect()
    };
    drop(build_some(1, 2));
    assert_eq!(noted(), [], "it is not ready");
    build_some(1, 3).mark_ready();
    assert_eq!(noted(), [(1, frames(1..4))]);
    assert_eq!(transmitter.ready_in_a_row(u64::MAX, 8), (0, 0));
    build_some(0, 1).mark_ready();
    build_some(4, 4).mark_ready();
    assert_eq!(noted(), [(0, frames(0..1)), (4, frames(4..8))]);
    assert_eq!(transmitter.ready_in_a_row(u64::MAX, 8), (0, 8));
    assert_eq!(transmitter.ready_in_a_row(3, 8), (0, 3));
    assert_eq!(transmitter.ready_in_a_row(u64::MAX, 6), (0, 6));
    transmitter.advance(6);
    build_some(8, 2).mark_ready();
    assert_eq!(noted(), [(0, frames(8..10))]);
    // The next ones begin with the ring.
    assert_eq!(transmitter.ready_in_a_row(u64::MAX, 8), (6, 2));
    transmitter.advance(2);
    assert_eq!(transmitter.ready_in_a_row(u64::MAX, 8), (0, 2));
}

#[test]
fn a_short_frame_that_is_built_by_itself_is_sent_as_it_is_between_prepared_ones() {
    let noting = Arc::new(Noting::default());
    let preparer: Arc<dyn TxPrepare> = noting.clone();
    let (ring, mut transmitter) = TxRing::with_chunks(4, (2 * MAX_PLAIN, 0), 4, Some(preparer));
    // In the second lap, each slot has a frame of the other kind.
    for (lap, long) in [
        (0, [false, true, false, false]),
        (4, [true, false, true, true]),
    ] {
        for (frame, is_long) in (lap..).zip(long) {
            let len = if is_long { MAX_PLAIN + 1 } else { MAX_PLAIN };
            build(&ring, frame, &vec![frame as u8; len]);
            assert_eq!(transmitter.prepared_slot(frame).is_some(), is_long);
        }
        for (count, is_long) in [(1, long[0]), (1, long[1]), (2, long[2])] {
            assert_eq!(transmitter.is_next_plain(), !is_long);
            let prepared = if is_long { count } else { 0 };
            assert_eq!(transmitter.ready_in_a_row(u64::MAX, 8).1, prepared);
            assert_eq!(send_all(&mut transmitter).len(), count);
        }
    }
    let noted = noting.0.lock().unwrap();
    let slots: Vec<usize> = noted.iter().map(|(slot, _)| *slot).collect();
    assert_eq!(slots, [1, 0, 2, 3]);
}

/// Pages that this thread was the first to touch, from what Linux counts for it.
#[cfg(target_os = "linux")]
fn first_touches() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("Linux has it");
    // The name may hold anything; `minflt` is the 8th field after it (proc(5)).
    let fields = stat.rsplit(')').next().expect("there is a rest");
    let minflt = fields.split_whitespace().nth(7).map(str::parse);
    minflt.expect("it has so many fields").expect("a number")
}

/// Slots as long as a frame of a segment, and slots for frames that a device cuts.
#[cfg(target_os = "linux")]
#[test]
fn building_the_first_frames_touches_no_page_for_the_first_time() {
    const FRAME: usize = 1600;
    for slot_len in [FRAME, 65_536] {
        let (ring, _transmitter) = TxRing::new(1024, (slot_len, FRAME), 32, None);
        let before = first_touches();
        for frame in 0..1024 {
            let mut begun = ring.begin(frame, 1).unwrap();
            begun.buffer()[..FRAME].fill(frame as u8);
            begun.built(64, FRAME, TxMeta::default());
            begun.mark_ready();
        }
        let touched = first_touches() - before;
        assert!(touched < 16, "{slot_len}: {touched} pages");
    }
}

#[test]
fn a_device_that_fails_past_a_hole_is_known_to_refuse_frames_until_it_takes_one() {
    let (device, script) = memory::scripted();
    let setup = Setup::new([10, 0, 0, 1].into(), 24, [1, 2]);
    let mut base = setup.build(Box::new(device), 16, 1).unwrap();
    base.tx.transmitter.send_past(1, 1);
    build(&base.world.tx, 1, &[0; 60]);
    let interface = "manual0".to_owned();
    script.fail_with(Some(DeviceError::Down { interface }));
    assert_eq!(base.tx.turn(), 0);
    assert!(base.world.is_device_refusing());
    script.fail_with(None);
    assert_eq!(base.tx.turn(), 1);
    assert!(!base.world.is_device_refusing());
}

#[test]
fn a_turn_sends_short_and_long_frames_in_order_also_past_a_hole() {
    let (device, script) = memory::scripted();
    let setup = Setup::new([10, 0, 0, 1].into(), 24, [1, 2]);
    let mut base = setup.build(Box::new(device), 16, 2).unwrap();
    base.tx.transmitter.send_past(1, 1);
    let long = [7; MAX_PLAIN + 1];
    let lens = |frames: &[(Vec<u8>, TxMeta)]| -> Vec<usize> {
        frames.iter().map(|(bytes, _)| bytes.len()).collect()
    };
    for (frame, len) in [
        (0, 60),
        (1, long.len()),
        (2, 61),
        (3, 62),
        (5, long.len()),
        (6, 63),
    ] {
        build(&base.world.tx, frame, &long[..len]);
    }
    assert_eq!(base.tx.turn(), 4);
    assert_eq!(lens(&script.take_sent()), [60, long.len(), 61, 62]);
    assert_eq!(base.tx.turn(), 2);
    assert_eq!(lens(&script.take_sent()), [long.len(), 63]);
    build(&base.world.tx, 4, &long);
    build(&base.world.tx, 7, &long[..60]);
    // Each turn ends where frames have gone.
    assert_eq!(base.tx.turn() + base.tx.turn(), 2);
    assert_eq!(lens(&script.take_sent()), [long.len(), 60]);
    assert_eq!(base.world.tx.sent(), 8);
}
