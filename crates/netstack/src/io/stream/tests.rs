use core::num::NonZeroU32;
use std::sync::Arc;

use super::*;
use crate::config::Limits;
use crate::io::sync::interrupted;
use crate::log::effect::{ConnectionEvent, Deliver};
use crate::seqnum::SeqNum;

const CONN: ConnId = ConnId {
    index: 0,
    generation: 0,
};

fn streams() -> Streams {
    let limits = Limits::default()
        .connections(1)
        .receive_buffer(1024)
        .send_buffer(1024);
    Streams::new(&limits, 4)
}

fn deliver(delivery: u64, stream_offset: u64, len: u32, end: u64) -> Deliver {
    Deliver {
        conn: CONN,
        run_offset: 0,
        len,
        stream_offset,
        delivery,
        end,
        last: true,
    }
}

fn readable(stream: &StreamRef<'_>, seen: &mut DeliveryCursor) -> Vec<u8> {
    stream.follow(seen);
    seen.end = seen.arrived;
    let (a, b) = stream.received(seen);
    [a, b].concat()
}

#[test]
fn bytes_become_readable_when_every_earlier_delivery_is_complete() {
    let streams = streams();
    let stream = streams.get(CONN).unwrap();
    let mut seen = DeliveryCursor::default();
    let (first, second) = (deliver(0, 0, 3, 3), deliver(1, 3, 3, 6));
    stream.store(&second, 0, b"def");
    stream.stamp(&second);
    assert_eq!(readable(&stream, &mut seen), b"");
    stream.store(&first, 0, b"abc");
    stream.stamp(&first);
    assert_eq!(readable(&stream, &mut seen), b"abcdef");
}

#[test]
fn a_reader_that_missed_a_round_of_stamps_goes_on_behind_it() {
    let streams = streams();
    let stream = streams.get(CONN).unwrap();
    let mut seen = DeliveryCursor::default();
    for j in 0..11 {
        let d = deliver(j, j, 1, j + 1);
        stream.store(&d, 0, &[j as u8]);
        stream.stamp(&d);
    }
    assert_eq!(readable(&stream, &mut seen).len(), 11);
}

/// A stream with a ring of `receive_len` bytes that begins at `start`, after delivery `next - 1`.
fn begun_at(receive_len: u32, start: u64, next: u64) -> (Streams, DeliveryCursor) {
    let limits = Limits::default().connections(1).receive_buffer(receive_len);
    let streams = Streams::new(&limits, 4);
    let stream = streams.get(CONN).unwrap();
    stream.stream.app.read.store(start, Ordering::Relaxed);
    stream.stream.app.next.store(next, Ordering::Relaxed);
    if next > 0 {
        stream.stamp(&deliver(next - 1, start - 1, 1, start));
    }
    let seen = DeliveryCursor {
        next,
        arrived: start,
        end: start,
    };
    (streams, seen)
}

#[test]
fn a_reader_that_looks_after_many_rounds_of_one_byte_each_finds_all_of_them() {
    // One delivery for each byte of the ring.
    const LEN: u64 = 1 << 18;
    let (streams, mut seen) = begun_at(LEN as u32, 0, 0);
    let stream = streams.get(CONN).unwrap();
    for j in 0..LEN {
        let d = deliver(j, j, 1, j + 1);
        stream.store(&d, 0, &[j as u8]);
        stream.stamp(&d);
    }
    assert!(stream.look().has_bytes);
    assert!(!stream.give_back_received(), "nothing is read");
    let bytes = readable(&stream, &mut seen);
    assert_eq!(bytes.len() as u64, LEN);
    assert!(bytes.iter().zip(0u8..=255).all(|(byte, j)| *byte == j));
    stream.read(LEN as usize, &mut seen, 1000);
    assert!(stream.give_back_received());
}

#[test]
fn what_was_delivered_is_not_given_back_where_a_reader_finds_nothing() {
    let (streams, mut seen) = begun_at(1024, 0, 0);
    let stream = streams.get(CONN).unwrap();
    // The stamp of the first delivery is missing.
    let second = deliver(1, 1, 1, 2);
    stream.store(&second, 0, b"b");
    stream.stamp(&second);
    assert_eq!(readable(&stream, &mut seen), b"");
    assert!(!stream.give_back_received());
    let first = deliver(0, 0, 1, 1);
    stream.store(&first, 0, b"a");
    stream.stamp(&first);
    assert_eq!(readable(&stream, &mut seen), b"ab");
}

#[test]
fn positions_go_on_where_the_bits_of_a_stamp_end() {
    for bits in [32, 34, 35, 47, 48, 52] {
        let start = (1u64 << bits) - 3;
        for next in [5, (1 << 28) * 4 - 2, (1 << 33) - 2] {
            let (streams, mut seen) = begun_at(1024, start, next);
            let stream = streams.get(CONN).unwrap();
            for j in 0..6 {
                let d = deliver(next + j, start + j, 1, start + j + 1);
                stream.store(&d, 0, &[j as u8]);
                stream.stamp(&d);
                assert!(stream.look().has_bytes, "2^{bits}, {next}");
                assert_eq!(readable(&stream, &mut seen), [j as u8], "2^{bits}, {next}");
                assert_eq!(seen.arrived, start + j + 1);
                stream.read(1, &mut seen, 1000);
                assert!(!stream.look().has_bytes);
            }
            assert!(stream.give_back_received());
        }
    }
}

/// Whether a stream has a receive ring and a send ring.
fn has(stream: &StreamRef<'_>) -> (bool, bool) {
    let stream = stream.stream;
    (
        stream.incoming.get().is_some(),
        stream.outgoing.get().is_some(),
    )
}

#[test]
fn looking_makes_no_ring_and_each_direction_makes_its_own() {
    let limits = Limits::default()
        .connections(2)
        .receive_buffer(1024)
        .send_buffer(1024);
    let streams = Streams::new(&limits, 4);
    let conn = |index| ConnId {
        index,
        generation: 0,
    };
    let [reads, writes] = [0, 1].map(|index| streams.get(conn(index)).unwrap());
    let mut seen = DeliveryCursor::default();
    for stream in [&reads, &writes] {
        assert_eq!(readable(stream, &mut seen), b"");
        assert!(!stream.read(0, &mut seen, 1000));
        assert_eq!((stream.writable(), stream.write(b"")), (1024, 0));
        assert_eq!(has(stream), (false, false));
    }
    let first = deliver(0, 0, 3, 3);
    reads.store(&first, 0, b"abc");
    reads.stamp(&first);
    assert_eq!(readable(&reads, &mut seen), b"abc");
    assert_eq!(has(&reads), (true, false));
    writes.write(b"x");
    assert_eq!(has(&writes), (false, true));
}

#[test]
fn a_stream_is_made_once_when_its_entry_is_used_first() {
    let limits = Limits::default().connections(200);
    let streams = Streams::new(&limits, 4);
    let conn = |index| ConnId {
        index,
        generation: 0,
    };
    assert_eq!(streams.table.all().count(), 0);
    assert!(streams.get(conn(200)).is_none());
    assert!(streams.get(ConnId::NONE).is_none());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for index in (0..200).step_by(3) {
                    assert_eq!(streams.get(conn(index)).unwrap().conn(), conn(index));
                }
            });
        }
    });
    let made: Vec<u32> = streams.table.all().map(|stream| stream.index).collect();
    let expected: Vec<u32> = (0..200).step_by(3).collect();
    assert_eq!(made, expected);
}

#[test]
fn rings_wrap_and_room_returns_with_release() {
    let streams = streams();
    let stream = streams.get(CONN).unwrap();
    let bytes: Vec<u8> = (0..1500u32).map(|i| i as u8).collect();
    assert_eq!(stream.write(&bytes), 1024);
    assert_eq!(stream.write(&bytes), 0);
    stream.release(1000);
    assert_eq!(stream.write(&bytes[1024..]), 476);
    let (a, b) = stream.sending(1000, 500);
    assert_eq!([a, b].concat(), &bytes[1000..1500]);
}

#[test]
fn what_may_be_written_grows_by_twice_what_was_acknowledged_up_to_the_ring() {
    let limits = Limits::default().connections(1).send_buffer(1 << 18);
    let streams = Streams::new(&limits, 4);
    let stream = streams.get(CONN).unwrap();
    assert_eq!(stream.write(&vec![0; 1 << 20]), 65_536);
    assert_eq!(stream.writable(), 0);
    stream.release(10_000);
    // 10,000 bytes are released, and the limit grows by twice as much.
    assert_eq!(stream.writable(), 3 * 10_000);
    assert_eq!(stream.write(&vec![0; 1 << 20]), 30_000);
    stream.release(95_536);
    assert_eq!(stream.writable(), 65_536 + 2 * 95_536);
    assert_eq!(stream.write(&vec![0; 1 << 20]), 65_536 + 2 * 95_536);
    stream.release(200_000);
    assert_eq!(stream.writable(), (1 << 18) - (352_144 - 200_000));
}

#[test]
fn nothing_is_reserved_before_the_stream_is_known_and_nothing_that_may_have_been_taken_then() {
    let streams = streams();
    let stream = streams.get(CONN).unwrap();
    assert_eq!(stream.reserve(SeqNum(9), 10, 0), None);
    stream.set_first_sequence(SeqNum(9));
    assert_eq!(stream.reserve(SeqNum(9), 10, 0), None);
    // Earlier runs may have filled the first window.
    let behind = SeqNum(9 + 1024);
    assert_eq!(stream.reserve(behind, 10, 100), NonZeroU32::new(1024));
    assert_eq!(stream.reserve(behind, 10, 100), None);
    // Bytes after a gap are not reserved.
    assert_eq!(stream.reserve(behind + 11, 5, 100), None);
    assert_eq!(stream.reserve(behind + 16, 5, 100), NonZeroU32::new(1040));
}

#[test]
fn a_closed_connection_gives_back_a_ring_of_which_much_was_used() {
    const LEN: u64 = 1 << 17;
    let limits = Limits::default()
        .connections(1)
        .receive_buffer(LEN as u32)
        .send_buffer(LEN as u32);
    let streams = Streams::new(&limits, 4);
    let mut conn = CONN;
    for (offset, is_gap, is_kept) in [
        (0, false, true),
        (LEN / 2 - 1, false, false),
        (0, true, true),
        (LEN / 2 - 1, true, false),
    ] {
        let stream = streams.get(conn).unwrap();
        // The connection ends there, in order or after a gap.
        let end = offset + 1;
        let d = deliver(0, offset, 1, if is_gap { 0 } else { end });
        stream.store(&d, 0, b"x");
        if is_gap {
            stream.stored_behind_gap(end);
        }
        stream.stamp(&d);
        let incoming = stream.stream.incoming.get().unwrap();
        assert_eq!(incoming.bytes_at(offset, 1), b"x");
        assert_eq!(streams.recycle(conn), !is_kept);
        if !is_kept && cfg!(target_os = "linux") {
            assert_eq!(incoming.bytes_at(offset, 1), [0]);
        }
        conn.generation += 1;
    }
    let stream = streams.get(conn).unwrap();
    assert_eq!(stream.write(&[1; 60_000]), 60_000);
    stream.release(60_000);
    assert_eq!(stream.write(&[2; 6_000]), 6_000);
    assert!(streams.recycle(conn));
    conn.generation += 1;
    let stream = streams.get(conn).unwrap();
    assert_eq!(stream.write(b"abc"), 3);
    assert_eq!(stream.sending(0, 3).0, b"abc");
    if cfg!(target_os = "linux") {
        assert_eq!(stream.sending(100, 1).0, [0]);
    }
}

proptest::proptest! {
    /// In whatever order segments arrive, a reserved range was in no earlier segment, ends
    /// within the window, and does not wrap.
    #[test]
    fn a_reserved_range_was_in_no_earlier_segment(
        first in proptest::prelude::any::<u32>(),
        steps in proptest::collection::vec((0u64..3000, 1u32..600, 0u64..800), 1..80),
    ) {
        let streams = streams();
        let stream = streams.get(CONN).unwrap();
        stream.set_first_sequence(SeqNum(first));
        let (mut read, mut base) = (0u64, 0u64);
        let mut had = Vec::<(u64, u64)>::new();
        for (ahead, len, gain) in steps {
            // Around the end of the bytes seen so far.
            let offset = match ahead % 3 {
                0 => base,
                _ => (base + ahead).saturating_sub(1000),
            };
            let (end, edge) = (offset + u64::from(len), read + 1024);
            let seq = SeqNum(first.wrapping_add(offset as u32));
            let stored = stream.reserve(seq, len, read);
            if let Some(place) = stored {
                proptest::prop_assert_eq!(place.get(), offset as u32);
                proptest::prop_assert!(end <= edge && offset % 1024 + u64::from(len) <= 1024);
                for &(from, to) in &had {
                    proptest::prop_assert!(end <= from || to <= offset, "{offset} to {end}: {from} to {to}");
                }
            }
            had.push((offset.min(edge), end.min(edge)));
            base = base.max(end.min(edge));
            read = (read + gain).min(base);
        }
    }
}

#[test]
fn the_pump_is_notified_when_two_segments_were_read_and_the_window_is_less_than_half_open() {
    let streams = streams();
    let stream = streams.get(CONN).unwrap();
    stream.advertised(1024, 1024);
    let mut seen = DeliveryCursor {
        end: 512,
        ..DeliveryCursor::default()
    };
    assert!(!stream.read(200, &mut seen, 100), "half of it is open");
    let streams = super::tests::streams();
    let stream = streams.get(CONN).unwrap();
    stream.advertised(1024, 1024);
    seen.end = 513;
    assert!(!stream.read(199, &mut seen, 100));
    assert!(stream.read(1, &mut seen, 100));
}

#[test]
fn a_recycled_entry_is_fresh_and_its_former_connection_gone() {
    let streams = streams();
    let former = streams.get(CONN).unwrap();
    former.write(b"x");
    former.event(ConnectionEvent::Reset, 0);
    former.stamp(&deliver(0, 0, 1, 1));
    streams.recycle(CONN);
    assert!(streams.get(CONN).is_none());
    let next = ConnId {
        generation: 1,
        ..CONN
    };
    let stream = streams.get(next).unwrap();
    assert_eq!(stream.cursors(), (0, 0));
    assert_eq!(stream.status().end_reason(), None);
    let mut seen = DeliveryCursor::default();
    assert_eq!(readable(&stream, &mut seen), b"");
    assert!(
        !former.raise(),
        "a socket that comes late raises nobody's flag"
    );
    assert!(stream.raise());
    assert!(!stream.raise());
    stream.progress();
    assert!(stream.raise());
}

#[test]
fn of_two_that_raise_the_flag_one_notifies_the_pump_in_every_interleaving() {
    for step in 0.. {
        let streams = Arc::new(streams());
        let stream = streams.get(CONN).unwrap();
        let same = Arc::clone(&streams);
        let other = move || same.get(CONN).unwrap().raise();
        let (one, other) = interrupted(step, other, || stream.raise());
        let Some(other) = other else {
            assert!(step > 0, "a flag is raised without any access");
            break;
        };
        assert!(one != other, "interrupted before access {step}");
    }
}

#[test]
fn a_write_during_the_pump_s_look_is_seen_or_raises_the_flag() {
    for step in 0.. {
        let streams = Arc::new(streams());
        let stream = streams.get(CONN).unwrap();
        stream.write(b"a");
        assert!(stream.raise());
        let same = Arc::clone(&streams);
        let other = move || {
            let stream = same.get(CONN).unwrap();
            stream.write(b"b");
            stream.request(AppRequest {
                shutdown: true,
                ..AppRequest::default()
            });
            stream.raise()
        };
        let ((_, written, asked), raised) = interrupted(step, other, || stream.progress());
        let Some(raised) = raised else {
            assert!(step > 0, "the pump looks without any access");
            break;
        };
        let seen = written == 2 && asked.shutdown;
        assert!(seen || raised, "interrupted before access {step}");
        assert!(
            written == 2 || !asked.shutdown,
            "interrupted before access {step}: an end before all that was written"
        );
    }
}

#[test]
fn an_entry_that_was_recycled_while_its_stream_was_made_stays_recycled() {
    for step in 0.. {
        let streams = Arc::new(streams());
        // `interrupted` must not run the other call while the stream's memory is written.
        streams.table.make(0);
        let same = Arc::clone(&streams);
        let (_, other) = interrupted(
            step,
            move || same.recycle(CONN),
            || streams.get(CONN).is_some(),
        );
        if other.is_none() {
            assert!(step > 0, "a stream is found without any access");
            break;
        }
        let next = ConnId {
            generation: 1,
            ..CONN
        };
        assert!(
            streams.get(CONN).is_none() && streams.get(next).is_some(),
            "interrupted before access {step}"
        );
    }
}

#[test]
fn memory_is_given_back_when_all_that_was_stored_is_read() {
    let streams = streams();
    let stream = streams.get(CONN).unwrap();
    let mut seen = DeliveryCursor::default();
    assert!(stream.give_back_received(), "there is none");
    let store = |delivery, at, bytes: &[u8], end| {
        let deliver = deliver(delivery, at, bytes.len() as u32, end);
        stream.store(&deliver, 0, bytes);
        if deliver.stream_offset + u64::from(deliver.len) > end {
            stream.stored_behind_gap(deliver.stream_offset + u64::from(deliver.len));
        }
        stream.stamp(&deliver);
    };
    store(0, 0, b"abc", 3);
    assert!(!stream.give_back_received(), "not read");
    assert_eq!(readable(&stream, &mut seen), b"abc");
    stream.read(2, &mut seen, 1000);
    assert!(!stream.give_back_received(), "a byte is not read");
    assert_eq!(readable(&stream, &mut seen), b"c");
    stream.read(1, &mut seen, 1000);
    store(1, 5, b"fgh", 3);
    assert!(
        !stream.give_back_received(),
        "there is something behind a gap"
    );
    store(2, 3, b"de", 8);
    assert_eq!(readable(&stream, &mut seen), b"defgh");
    stream.read(5, &mut seen, 1000);
    assert!(stream.give_back_received());
    // The bytes are gone, and so are the stamps.
    let incoming = stream.stream.incoming.get().unwrap();
    assert!(
        incoming
            .delivered
            .iter()
            .all(|slot| slot.load(Ordering::Relaxed) == 0)
    );
    assert_eq!(incoming.bytes_at(0, 8), [0xa5; 8]);

    // Later deliveries are found by a look, ...
    assert!(!stream.look().has_bytes);
    store(3, 8, b"ij", 10);
    assert!(stream.look().has_bytes);
    assert_eq!(readable(&stream, &mut seen), b"ij");
    // ... and also by a reader that has not looked since, or never did.
    let mut late = DeliveryCursor::default();
    stream.follow(&mut late);
    assert_eq!((late.next, late.arrived), (4, 10));
    stream.read(2, &mut seen, 1000);
    assert!(stream.give_back_received());
    let mut late = DeliveryCursor::default();
    stream.follow(&mut late);
    assert_eq!((late.next, late.arrived), (4, 10));
}

#[test]
fn memory_is_given_back_when_all_that_was_written_is_released_and_no_writer_is_at_work() {
    let streams = streams();
    let stream = streams.get(CONN).unwrap();
    assert!(stream.give_back_sent(), "there is none");
    assert_eq!(stream.write(b"abc"), 3);
    stream.release(2);
    assert!(!stream.give_back_sent(), "a byte is not released");
    stream.release(3);
    let (bytes, writing) = stream.reserve_to_write(4).unwrap();
    bytes.copy_from_slice(b"defg");
    assert!(!stream.give_back_sent(), "there is a reservation");
    assert_eq!(bytes, b"defg");
    stream.commit_written(4);
    drop(writing);
    stream.release(7);
    assert!(stream.give_back_sent());
    assert_eq!(stream.sending(0, 7).0, [0xa5; 7]);
    assert_eq!(stream.write(b"hi"), 2);
    assert_eq!(stream.sending(7, 2).0, b"hi");

    // Bytes of the round before are lost.
    assert_eq!(stream.write(&[1; 1015]), 1015);
    assert!(!stream.was_filled(), "7 bytes of this round are missing");
    stream.release(1024);
    assert!(stream.give_back_sent());
    assert!(!stream.was_filled());
    assert_eq!(stream.write_again(1), 0);
    assert_eq!(stream.write(&[2; 1024]), 1024);
    assert!(stream.was_filled());
}

#[test]
fn a_forgotten_reservation_holds_up_no_writer() {
    let streams = streams();
    let stream = streams.get(CONN).unwrap();
    core::mem::forget(stream.reserve_to_write(4));
    assert!(!stream.give_back_sent());
    assert_eq!(stream.write(b"abc"), 3);
    stream.release(3);
    assert!(stream.give_back_sent());
}

#[test]
fn no_byte_of_a_write_is_given_back_in_any_interleaving() {
    for step in 0.. {
        let streams = Arc::new(streams());
        let stream = streams.get(CONN).unwrap();
        stream.write(b"a");
        stream.release(1);
        let same = Arc::clone(&streams);
        let other = move || same.get(CONN).unwrap().give_back_sent();
        let (_, given_back) = interrupted(step, other, || stream.write(b"b"));
        assert_eq!(
            stream.sending(1, 1).0,
            b"b",
            "interrupted before access {step}"
        );
        if given_back.is_none() {
            assert!(step > 0, "a byte is written without any access");
            break;
        }
    }
}

#[test]
fn the_first_read_that_is_asked_for_notifies_the_pump() {
    let streams = streams();
    let stream = streams.get(CONN).unwrap();
    stream.advertised(1024, 1024);
    let mut seen = DeliveryCursor {
        end: 10,
        ..DeliveryCursor::default()
    };
    assert!(!stream.read(1, &mut seen, 100));
    assert_eq!(stream.ask_for_read(), 1024);
    assert!(stream.read(1, &mut seen, 100));
    stream.advertised(1024, 0);
    assert!(!stream.read(1, &mut seen, 100));
}
