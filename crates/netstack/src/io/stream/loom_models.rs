//! Models of streams under loom (`.ci/run`). Each names the bugs that it would catch.

use std::sync::Arc;

use loom::thread;

use super::*;
use crate::config::Limits;
use crate::io::sync::fence;
use crate::log::effect::{ConnectionEvent, Deliver};

const CONN: ConnId = ConnId {
    index: 0,
    generation: 0,
};

/// One stream with rings of two bytes. The rings are made in advance, so that no thread blocks in
/// std while another makes them.
fn streams() -> Arc<Streams> {
    let limits = Limits::default()
        .connections(1)
        .receive_buffer(2)
        .send_buffer(2);
    let streams = Streams::new(&limits, 2);
    let stream = streams.get(CONN).unwrap();
    stream.incoming();
    stream.outgoing();
    Arc::new(streams)
}

fn spawn<R: 'static>(
    streams: &Arc<Streams>,
    work: impl FnOnce(StreamRef<'_>) -> R + 'static,
) -> thread::JoinHandle<R> {
    let streams = Arc::clone(streams);
    thread::spawn(move || work(streams.get(CONN).unwrap()))
}

/// All interleavings with at most two involuntary switches.
fn model(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(2));
    builder.check(model);
}

fn deliver(stream: StreamRef<'_>, delivery: u64) {
    let deliver = Deliver {
        conn: CONN,
        run_offset: 0,
        len: 1,
        stream_offset: delivery,
        delivery,
        end: delivery + 1,
        last: true,
    };
    stream.store(&deliver, 0, &[delivery as u8]);
    stream.stamp(&deliver);
}

/// Reads all available bytes.
fn read(stream: StreamRef<'_>, seen: &mut DeliveryCursor) -> Vec<u8> {
    stream.follow(seen);
    seen.end = seen.arrived;
    let bytes = {
        let (a, b) = stream.received(seen);
        [a, b].concat()
    };
    stream.read(bytes.len(), seen, 1);
    bytes
}

/// Catches: bytes read before they are written, because `stamp` or `follow` is Relaxed.
#[test]
fn two_primaries_deliver_and_the_application_reads() {
    model(|| {
        let streams = streams();
        let primaries = [0, 1].map(|j| spawn(&streams, move |stream| deliver(stream, j)));
        let (stream, mut seen) = (streams.get(CONN).unwrap(), DeliveryCursor::default());
        let mut bytes = read(stream, &mut seen);
        let _ = primaries.map(|primary| primary.join().unwrap());
        bytes.extend(read(stream, &mut seen));
        assert_eq!(bytes, [0, 1]);
    });
}

/// Catches: bytes sent before they are written, because the cursor or the flag is Relaxed; an
/// end that overtakes the last write; a write that the pump neither sees nor is notified of.
#[test]
fn the_application_writes_and_the_pump_looks() {
    model(|| {
        let streams = streams();
        let writer = spawn(&streams, |stream| {
            stream.write(b"a");
            stream.request(AppRequest {
                shutdown: true,
                ..AppRequest::default()
            });
            stream.raise()
        });
        let stream = streams.get(CONN).unwrap();
        let (_, written, asked) = stream.progress();
        assert!(written == 1 || !asked.shutdown);
        if written == 1 {
            assert_eq!(stream.sending(0, 1).0, b"a");
        }
        assert!(writer.join().unwrap(), "nobody else raised it");
    });
}

/// Catches: a flag that is lowered after the cursors are read.
#[test]
fn a_second_write_is_seen_or_raises_the_flag() {
    model(|| {
        let streams = streams();
        let stream = streams.get(CONN).unwrap();
        stream.write(b"a");
        assert!(stream.raise());
        let writer = spawn(&streams, |stream| {
            stream.write(b"b");
            stream.raise()
        });
        let (_, written, _) = stream.progress();
        assert!(writer.join().unwrap() || written == 2);
    });
}

/// Catches: bytes written over while a frame is built from them, because `release` or
/// `writable` is Relaxed.
#[test]
fn what_was_released_is_written_over() {
    model(|| {
        let streams = streams();
        let stream = streams.get(CONN).unwrap();
        assert_eq!(stream.write(b"ab"), 2);
        let primary = spawn(&streams, |stream| {
            let sent = stream.sending(0, 2).0.to_vec();
            stream.release(2);
            sent
        });
        stream.write(b"c");
        assert_eq!(primary.join().unwrap(), b"ab");
    });
}

/// Catches: the end of the stream, or of the connection, seen without the values stored before it.
#[test]
fn how_much_arrived_before_a_reset_is_known_with_it() {
    model(|| {
        let streams = streams();
        let primary = spawn(&streams, |stream| {
            deliver(stream, 0);
            stream.event(ConnectionEvent::PeerFinished { end: 1 }, 1);
            stream.event(ConnectionEvent::Reset, 1);
        });
        let stream = streams.get(CONN).unwrap();
        if stream.status().end_reason().is_some() {
            assert_eq!((stream.ended_at(), stream.peer_end()), (1, Some(1)));
        }
        if stream.peer_end().is_some() {
            assert_eq!(read(stream, &mut DeliveryCursor::default()), [0]);
        }
        primary.join().unwrap();
    });
}

/// Catches: a writer that finds no room while the primary that makes room does not see it waiting,
/// because a fence is missing or the writer does not look again.
#[test]
fn a_write_that_falls_short_finds_the_room_or_is_found() {
    model(|| {
        let streams = streams();
        let stream = streams.get(CONN).unwrap();
        assert_eq!(stream.write(b"ab"), 2);
        let primary = spawn(&streams, |stream| {
            stream.release(2);
            // A notification begins with this fence.
            fence(Ordering::SeqCst);
            let look = stream.look();
            (look.shortages, look.has_room)
        });
        let written = stream.write(b"c");
        let (shortages, has_room) = primary.join().unwrap();
        assert!(has_room || written == 1);
        assert!(written == 1 || shortages == 1);
    });
}

/// Catches: memory returned during a write, or a write to memory that is being returned, because
/// beginning or ending one of them is Relaxed or not atomic.
#[test]
fn a_write_and_giving_memory_back_exclude_each_other() {
    model(|| {
        let streams = streams();
        let stream = streams.get(CONN).unwrap();
        stream.write(b"a");
        stream.release(1);
        let pump = spawn(&streams, |stream| {
            stream.give_back_sent();
            stream.progress().1
        });
        stream.write(b"b");
        stream.raise();
        let written = pump.join().unwrap();
        assert!((1..=2).contains(&written));
        assert_eq!(stream.sending(1, 1).0, b"b");
    });
}

/// Catches: a reservation that does not prevent its memory from being returned.
#[test]
fn reserved_bytes_are_not_given_back() {
    model(|| {
        let streams = streams();
        let stream = streams.get(CONN).unwrap();
        stream.write(b"a");
        stream.release(1);
        let pump = spawn(&streams, |stream| stream.give_back_sent());
        let (bytes, writing) = stream.reserve_to_write(1).expect("the ring is empty");
        bytes[0] = b'b';
        stream.commit_written(1);
        drop(writing);
        pump.join().unwrap();
        assert_eq!(stream.sending(1, 1).0, b"b");
    });
}

/// Catches: memory returned while a frame is built from it, because `release`, or the load that
/// pairs with it, is Relaxed.
#[test]
fn what_a_frame_is_built_from_is_not_given_back() {
    model(|| {
        let streams = streams();
        let stream = streams.get(CONN).unwrap();
        stream.write(b"ab");
        let primary = spawn(&streams, |stream| {
            let sent = stream.sending(0, 2).0.to_vec();
            stream.release(2);
            sent
        });
        stream.give_back_sent();
        assert_eq!(primary.join().unwrap(), b"ab");
    });
}

/// Catches: memory returned under a reader, because its cursor or the load of it is Relaxed; a
/// delivery that is not found, because the stamps before it are lost and nothing records that.
#[test]
fn what_arrives_after_stamps_were_given_back_is_found() {
    model(|| {
        let streams = streams();
        let stream = streams.get(CONN).unwrap();
        deliver(stream, 0);
        let pump = spawn(&streams, |stream| {
            let given_back = stream.give_back_received();
            deliver(stream, 1);
            given_back
        });
        let mut seen = DeliveryCursor::default();
        let mut bytes = read(stream, &mut seen);
        let has_bytes = stream.look().has_bytes;
        let given_back = pump.join().unwrap();
        assert!(!given_back || !bytes.is_empty());
        assert!(!has_bytes || bytes.len() < 2);
        assert_eq!(stream.look().has_bytes, bytes.len() < 2);
        bytes.extend(read(stream, &mut seen));
        assert_eq!(bytes, [0, 1]);
    });
}
