//! TLS whose records any worker seals and opens, with `rustls` as the peer: by hand over bad wires,
//! with workers that stall, die and unwind, and on threads. Keys are random; the printed seed
//! determines everything else.

#![cfg(feature = "testkit")]

pub(crate) mod fixture;
mod hostile;
mod schedules;

use std::io::{Read, Write};
use std::sync::{Arc, mpsc};
use std::thread;

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::testkit::{Variant, keeps_text, stall_in_unit};
use dominoes_netstack::testkit::{stalled_in_unit, unwind_in_unit};
use dominoes_netstack::time::Duration;
use dominoes_netstack::tls::{TlsError, TlsHandshake, TlsListener, TlsStream};
use dominoes_netstack::{SocketError, Stack};
use dominoes_testkit::Rng;
use dominoes_testkit::rng::Cases;
use rustls::{AlertDescription, SupportedCipherSuite};

use self::fixture::*;

#[test]
fn every_variant_speaks_every_suite_with_rustls_and_with_itself_over_bad_wires() {
    let seed = seed();
    let mut case = 0;
    for variant in Variant::ALL {
        for who in [OURS, SERVER, CLIENT] {
            case += 1;
            let mut plan = Plan::new(variant, who, SUITES[case % SUITES.len()]);
            plan.wire = bad_wire();
            println!("{variant:?} {who:?} {:?}", plan.suite.suite());
            let seed = seed + case as u64;
            let texts = [text(150_000, seed), text(90_000, seed + 1)];
            let texts = [&texts[0][..], &texts[1][..]];
            plan.build(seed).exchange(texts, 40_000, seed, |_, _| {});
        }
    }
}

#[test]
fn keys_are_replaced_in_the_middle_of_both_streams() {
    let seed = seed();
    for (case, who) in [OURS, SERVER, CLIENT].into_iter().enumerate() {
        let mut plan = Plan::new(Variant::Replicated(2), who, SUITES[case]);
        plan.wire = bad_wire();
        let texts = [text(300_000, seed), text(300_000, seed + 1)];
        let mut rng = Rng::new(seed);
        let (mut before, mut updates) = ([0; 2], 0);
        let mut pair = plan.build(seed);
        let texts = [&texts[0][..], &texts[1][..]];
        pair.exchange(texts, 50_000, seed, |ends, written| {
            for i in 0..2 {
                // After new text, so that the updates are no flood.
                if written[i] > before[i] && written[i] < texts[i].len() && rng.below(2) == 0 {
                    ends[i].update_keys();
                    updates += 1;
                }
            }
            before = written;
        });
        assert!(updates > 5, "{updates}");
    }
}

#[test]
fn workers_stall_and_die_and_no_byte_changes() {
    let cases = Cases::new("TLS", "cargo test -p dominoes-netstack --test main tls", 24);
    let deaths = cases.run(|seed| {
        let case = seed as usize;
        let who = [OURS, SERVER, CLIENT][case % 3];
        let mut plan = Plan::new(Variant::Replicated(3), who, SUITES[case / 3 % SUITES.len()]);
        plan.wire = bad_wire();
        plan.stalls.ppm = 20_000;
        plan.stalls.longest = Duration::from_micros(500);
        plan.deaths.joins_ppm = 2_000;
        plan.deaths.leaves_ppm = 500;
        plan.deaths.failures_ppm = 500;
        plan.deaths.panics_ppm = 500;
        let texts = [text(120_000, seed), text(120_000, seed ^ 1)];
        let mut pair = plan.build(seed);
        pair.exchange([&texts[0], &texts[1]], 60_000, seed, |_, _| {});
        let stats = [0, 1].map(|i| pair.net.host(pair.hosts[i]).fault_stats());
        Ok(stats
            .map(|stats| stats.failures + stats.failures_performing)
            .iter()
            .sum::<u64>())
    });
    assert!(deaths.iter().sum::<u64>() > 0, "no worker died");
}

fn flipped(at: usize, bit: u8, suite: SupportedCipherSuite) {
    let mut pair = Plan::new(Variant::Single, SERVER, suite).build(at as u64);
    pair.handshake();
    let (session, _) = pair.ends[1].rustls_parts();
    session.writer().write_all(b"before").unwrap();
    let mut bytes = raw(session);
    let begin = bytes.len();
    session
        .writer()
        .write_all(b"what somebody changes")
        .unwrap();
    bytes.extend(raw(session));
    bytes[begin + at] ^= bit;
    // After it, as many bytes as the longest length may ask for.
    session.writer().write_all(&[7; 17_000]).unwrap();
    bytes.extend(raw(session));
    let (read, done) = pair.send_raw(1, &bytes, usize::MAX, usize::MAX);
    assert_eq!(read, b"before", "byte {at}");
    let is_tls13 = suite.tls13().is_some();
    let long = usize::from(bytes[begin + 3]) << 8 > 16 << 10;
    let alert = match at {
        0 if is_tls13 => AlertDescription::UnexpectedMessage,
        1 if !is_tls13 => AlertDescription::ProtocolVersion,
        3 if long => AlertDescription::RecordOverflow,
        _ => AlertDescription::BadRecordMac,
    };
    assert_eq!(done, Err(TlsError::Refused(alert)), "byte {at}");
    assert_eq!(pair.alert(1), heard(alert), "byte {at}");
    let mut buffer = [0; 10];
    let ours = pair.ends[0].ours();
    assert_eq!(ours.try_read(&mut buffer), Err(TlsError::Refused(alert)));
    assert_eq!(ours.try_write(b"more"), Err(TlsError::Refused(alert)));
}

#[test]
fn a_record_that_is_changed_anywhere_ends_the_connection_with_its_alert() {
    for (suite, overhead) in [(TLS13, 22), (TLS12, 29)] {
        for at in 0..overhead + 21 {
            flipped(at, 1, suite);
        }
        flipped(3, 0x80, suite);
    }
}

#[test]
fn records_of_one_byte_and_records_that_come_byte_by_byte() {
    for suite in [TLS13, TLS12] {
        let mut pair = Plan::new(Variant::Replicated(2), SERVER, suite).build(seed());
        pair.handshake();
        let sent = text(3_000, 1);
        let (session, _) = pair.ends[1].rustls_parts();
        let mut bytes = Vec::new();
        for byte in &sent {
            session.writer().write_all(&[*byte]).unwrap();
            bytes.extend(raw(session));
        }
        let (read, done) = pair.send_raw(1, &bytes, usize::MAX, sent.len());
        assert!(done.is_ok() && read == sent, "{done:?}");
        let sent = text(16 << 10, 2);
        let (session, stream) = pair.ends[1].rustls_parts();
        stream.set_nodelay(true).unwrap();
        session.writer().write_all(&sent).unwrap();
        let bytes = raw(session);
        let (read, done) = pair.send_raw(1, &bytes, 1, sent.len());
        assert!(done.is_ok() && read == sent, "{done:?}");
        assert_eq!(pair.seen.get(), 0);
    }
}

#[test]
fn text_that_is_not_sealed_is_seen_in_its_frames() {
    for len in [23, 24, 3_000] {
        let mut pair = Plan::new(Variant::Single, SERVER, TLS13).build(seed());
        let (_, stream) = pair.ends[1].rustls_parts();
        // The text begins within a block, the worst place for `carries_text`.
        let part = &text(len + 9, 1)[9..];
        assert_eq!(stream.try_write(part), Ok(len));
        pair.net.pass(Duration::from_millis(100));
        assert!(pair.seen.get() > 0, "{len}");
    }
}

#[test]
fn a_flood_of_key_updates_ends_the_connection() {
    let mut pair = Plan::new(Variant::Single, SERVER, TLS13).build(seed());
    pair.handshake();
    let (session, _) = pair.ends[1].rustls_parts();
    let mut bytes = Vec::new();
    for _ in 0..40 {
        session.refresh_traffic_keys().unwrap();
        bytes.extend(raw(session));
    }
    session.writer().write_all(b"behind").unwrap();
    bytes.extend(raw(session));
    let (read, done) = pair.send_raw(1, &bytes, usize::MAX, 6);
    let alert = AlertDescription::UnexpectedMessage;
    assert_eq!((read, done), (Vec::new(), Err(TlsError::Refused(alert))));
    assert_eq!(pair.alert(1), heard(alert));
}

/// A writer that updates its keys now and then reads the answers only after all its writes.
#[test]
fn answers_to_key_updates_that_were_asked_for_are_no_flood() {
    const UPDATES: usize = 100;
    // Header, message, content type and tag.
    const ANSWER: usize = 5 + 5 + 1 + 16;
    let mut pair = Plan::new(Variant::Single, SERVER, TLS13).build(seed());
    pair.handshake();
    let mut bytes = Vec::new();
    for _ in 0..UPDATES {
        pair.ends[0].ours().update_keys().unwrap();
        assert_eq!(pair.ends[0].write(b"x"), Ok(1));
        pair.net.pass(Duration::from_millis(100));
        assert_eq!(pair.ends[1].read(&mut [0; 8]), Ok(Some(1)));
        let (session, _) = pair.ends[1].rustls_parts();
        // The answer precedes the next text.
        assert_eq!(session.writer().write(b"").unwrap(), 0);
        bytes.extend(raw(session));
    }
    assert_eq!(bytes.len(), UPDATES * ANSWER);
    let (session, _) = pair.ends[1].rustls_parts();
    session.writer().write_all(b"behind").unwrap();
    bytes.extend(raw(session));
    let (read, done) = pair.send_raw(1, &bytes, usize::MAX, 6);
    assert_eq!((&read[..], done), (&b"behind"[..], Ok(())));
}

#[test]
fn an_end_with_close_notify_and_one_without_are_told_apart() {
    for (is_whole, cut) in [(true, 0), (false, 0), (false, 1), (false, 5), (false, 25)] {
        let mut pair = Plan::new(Variant::Replicated(2), SERVER, TLS13).build(seed());
        pair.handshake();
        let (session, _) = pair.ends[1].rustls_parts();
        session.writer().write_all(b"some").unwrap();
        let mut bytes = raw(session);
        if cut > 0 {
            session.writer().write_all(b"last").unwrap();
            bytes.extend(&raw(session)[..cut]);
        }
        if is_whole {
            session.send_close_notify();
            bytes.extend(raw(session));
        }
        let (_, stream) = pair.ends[1].rustls_parts();
        assert_eq!(stream.try_write(&bytes), Ok(bytes.len()));
        stream.shutdown_write();
        let (read, done) = pair.send_raw(1, &[], 1, usize::MAX);
        let expected = match is_whole {
            true => Ok(()),
            false => Err(TlsError::Truncated),
        };
        assert_eq!((&read[..], done), (&b"some"[..], expected), "cut at {cut}");
    }
}

#[test]
fn a_key_is_replaced_before_it_has_sealed_too_much() {
    let sent = text(400_000, 3);
    for who in [OURS, SERVER] {
        let mut pair = Plan::new(Variant::Replicated(2), who, TLS13).build(seed());
        pair.handshake();
        pair.ends[0].ours().halves().1.set_record_limit(20);
        pair.exchange([&sent, b"x"], 40_000, 4, |_, _| {});
    }
    let mut pair = Plan::new(Variant::Single, SERVER, TLS12).build(seed());
    pair.handshake();
    let ours = pair.ends[0].ours();
    ours.halves().1.set_record_limit(20);
    let mut records = 0;
    let over = loop {
        match ours.try_write(b"a record") {
            Ok(_) => records += 1,
            Err(error) => break error,
        }
    };
    assert!(
        over == TlsError::KeyExhausted && records < 20,
        "{records} {over}"
    );
    assert_eq!(ours.update_keys(), Err(SocketError::Invalid.into()));
}

#[test]
fn a_session_is_resumed_with_the_ticket_that_came_after_the_handshake() {
    for suite in [TLS13, TLS12] {
        for who in [OURS, SERVER, CLIENT] {
            let configs = configs(suite);
            let plan = Plan::new(Variant::Single, who, suite);
            for is_resumed in [false, true] {
                let mut pair = plan.build_with(seed(), &configs);
                pair.exchange([b"one", b"two"], 100, 5, |_, _| {});
                for end in &mut pair.ends {
                    if let End::Ours(stream) = end {
                        assert_eq!(stream.info().is_resumed, is_resumed, "{who:?} {suite:?}");
                        assert_eq!(stream.info().suite, suite);
                    }
                }
            }
        }
    }
}

#[test]
fn a_worker_that_unwinds_in_a_record_leaves_it_to_the_next() {
    let sent = text(200_000, 6);
    for who in [OURS, SERVER, CLIENT] {
        for after in [0, 1, 5] {
            let mut pair = Plan::new(Variant::Replicated(2), who, SUITES[after]).build(seed());
            pair.handshake();
            for host in pair.hosts {
                unwind_in_unit(pair.net.sockets(host), after as u64);
            }
            let mut unwound = 0;
            let (mut written, mut heard) = ([0; 2], [Vec::new(), Vec::new()]);
            let mut buffer = vec![0; 10_000];
            loop {
                let go_on = || {
                    pair.both(|ends| {
                        for i in 0..2 {
                            if written[i] < sent.len() {
                                written[i] += ends[i].write(&sent[written[i]..])?;
                            }
                            // Leaves the first check to the workers.
                            while let Some(len) = ends[i].read(&mut buffer)? {
                                heard[i].extend_from_slice(&buffer[..len]);
                            }
                        }
                        Ok(heard.iter().all(|heard| heard.len() == sent.len()))
                    })
                };
                let went = std::panic::catch_unwind(std::panic::AssertUnwindSafe(go_on));
                match went {
                    Ok(done) => break done.unwrap(),
                    Err(_) => unwound += 1,
                }
            }
            assert!(heard.iter().all(|heard| *heard == sent));
            assert!(unwound > 0, "{who:?} {after}");
            assert_eq!(pair.seen.get(), 0);
        }
    }
}

#[test]
fn what_is_no_tls_is_refused_and_nothing_panics() {
    let cases = Cases::new("TLS", "cargo test -p dominoes-netstack --test main tls", 60);
    cases.run(|seed| {
        let mut rng = Rng::new(seed);
        let suite = SUITES[rng.below(6) as usize];
        let mut pair = Plan::new(Variant::Single, SERVER, suite).build(seed);
        let is_finished = rng.below(4) > 0;
        if is_finished {
            pair.handshake();
        }
        // Records with plausible headers and arbitrary content, and whatever follows from them.
        let mut bytes = Vec::new();
        while bytes.len() < 2_000 {
            let len = rng.below(300) as usize;
            let kind = 20 + rng.below(5) as u8;
            bytes.extend([kind, 3, rng.below(5) as u8, (len >> 8) as u8, len as u8]);
            bytes.extend((0..len).map(|_| rng.next() as u8));
        }
        let at_once = 1 + rng.below(500) as usize;
        let mut sent = 0;
        let done = pair.both(|ends| {
            let (_, stream) = ends[1].rustls_parts();
            let left = &bytes[sent..];
            if !left.is_empty() {
                sent += stream
                    .try_write(&left[..left.len().min(at_once)])
                    .unwrap_or(0);
            } else {
                stream.shutdown_write();
            }
            let read = ends[0].read(&mut [0; 100])?;
            assert_eq!(read, None);
            Ok(false)
        });
        match done {
            Err(TlsError::Refused(_)) if is_finished => Ok(()),
            // The handshake may wait for the rest of a message.
            Err(TlsError::Handshake(_) | TlsError::Refused(_) | TlsError::Truncated)
                if !is_finished =>
            {
                Ok(())
            }
            done => Err(format!("{done:?}, {is_finished}")),
        }
    });
}

#[test]
fn a_failed_handshake_sends_its_alert_and_says_why() {
    let (server, mut client) = configs(TLS13);
    Arc::make_mut(&mut client).alpn_protocols = vec![b"another".to_vec()];
    let mut server = server;
    Arc::make_mut(&mut server).alpn_protocols = vec![b"one".to_vec()];
    let mut pair = Plan::new(Variant::Single, SERVER, TLS13).build_with(1, &(server, client));
    let failed = pair.both(|ends| {
        let _ = ends[1].read(&mut [0]);
        ends[0].go_on()
    });
    let why = rustls::Error::NoApplicationProtocol;
    assert_eq!(failed, Err(TlsError::Handshake(why)));
    assert_eq!(
        pair.alert(1),
        heard(AlertDescription::NoApplicationProtocol)
    );
}

#[test]
fn a_stream_with_clones_and_a_buffer_that_is_too_short_are_refused() {
    let (server, _) = configs(TLS13);
    for (bytes, is_cloned) in [(1 << 17, true), (1 << 14, false)] {
        let mut plan = Plan::new(Variant::Single, [Who::Rustls; 2], TLS13);
        plan.limits.receive_buffer = bytes;
        let mut pair = plan.build(1);
        let End::Rustls(_, wire) = std::mem::replace(&mut pair.ends[0], End::Gone) else {
            panic!("it is ours");
        };
        let stream = wire.stream;
        let clone = is_cloned.then(|| stream.try_clone().unwrap());
        let refused = TlsHandshake::server(stream, &server).err().unwrap();
        match clone {
            Some(_) => assert_eq!(refused, SocketError::NotAlone.into()),
            None => assert_eq!(refused, SocketError::BufferTooShort.into()),
        }
    }
}

/// Both ends are ours, on separate threads.
#[test]
fn on_threads_workers_are_killed_and_all_arrives() {
    let sent = Arc::new(text(6 << 20, 7));
    for suite in [TLS13, TLS12] {
        let (server_config, client_config) = configs(suite);
        let (left, right) = memory::pair(MemoryConfig::default());
        let server = Stack::builder("10.0.0.1/24")
            .replicas(2)
            .start(left)
            .unwrap();
        let client = Stack::builder("10.0.0.2/24")
            .replicas(2)
            .start(right)
            .unwrap();
        let listener = TlsListener::new(server.listen(443, 4).unwrap(), &server_config);
        let text = Arc::clone(&sent);
        let serving = thread::spawn(move || {
            let (handshake, _) = listener.accept().unwrap();
            let mut stream = handshake.finish().unwrap();
            let mut heard = vec![0; text.len()];
            stream.read_exact(&mut heard).unwrap();
            assert!(heard == *text);
            stream.write_all(&heard).unwrap();
        });
        let stream = client.connect("10.0.0.1:443").unwrap();
        let stream = TlsStream::connect(stream, &client_config, name()).unwrap();
        let (mut reader, mut writer) = stream.split();
        let text = Arc::clone(&sent);
        let writing = thread::spawn(move || {
            for (at, part) in text.chunks(1 << 20).enumerate() {
                writer.write_all(part).unwrap();
                if at < 5 && suite == TLS13 {
                    writer.update_keys().or_else(blocks).unwrap();
                }
            }
            writer
        });
        for stack in [&server, &client] {
            unwind_in_unit(&stack.sockets(), 20);
        }
        let mut heard = Vec::new();
        let done = reader.read_to_end(&mut heard);
        assert!(done.is_ok() && heard == *sent, "{done:?} {}", heard.len());
        drop(writing.join().unwrap());
        serving.join().unwrap();
    }
}

/// How a writer ends its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Shutdown,
    Drop,
    Close,
    CloseWithin,
}

/// Both workers are within a record when the stream ends: the peer must still read all text written
/// before, and close_notify. Afterwards the stack's memory holds no text.
#[test]
fn an_end_waits_for_records_that_workers_are_sealing() {
    let sent = text(60 << 10, 11);
    for (ending, suite) in [
        (Ending::Shutdown, TLS13),
        (Ending::Drop, TLS12),
        (Ending::Close, TLS13),
        (Ending::Close, TLS12),
        (Ending::CloseWithin, TLS13),
        (Ending::CloseWithin, TLS12),
    ] {
        let (server_config, client_config) = configs(suite);
        let (left, right) = memory::pair(MemoryConfig::default());
        let server = Stack::builder("10.0.0.1/24").start(left).unwrap();
        let client = Stack::builder("10.0.0.2/24").replicas(2);
        let client = client.start(right).unwrap();
        let sockets = client.sockets();
        let listener = TlsListener::new(server.listen(443, 4).unwrap(), &server_config);
        let (said, heard) = mpsc::channel();
        let serving = thread::spawn(move || {
            let (handshake, _) = listener.accept().unwrap();
            let mut stream = handshake.finish().unwrap();
            let mut text = Vec::new();
            let done = stream.read_to_end(&mut text);
            said.send((done.map_err(|error| error.kind()), text))
                .unwrap();
        });
        let stream = client.connect("10.0.0.1:443").unwrap();
        let mut stream = TlsStream::connect(stream, &client_config, name()).unwrap();
        stall_in_unit(&sockets, true);
        stream.write_all(&sent).unwrap();
        while stalled_in_unit(&sockets) < 2 {
            thread::yield_now();
        }
        let done = match ending {
            Ending::Shutdown => {
                stream.shutdown_write();
                None
            }
            Ending::Drop => {
                drop(stream);
                None
            }
            Ending::Close => Some(thread::spawn(move || {
                let closed = client.close(std::time::Duration::from_secs(60));
                assert!(closed.is_ok(), "{closed:?}");
                drop(stream);
            })),
            Ending::CloseWithin => Some(thread::spawn(move || {
                let closed = stream.close_within(std::time::Duration::from_secs(60));
                assert_eq!(closed, Ok(()));
            })),
        };
        // Time enough for an end that does not wait.
        assert!(
            heard
                .recv_timeout(std::time::Duration::from_millis(50))
                .is_err()
        );
        stall_in_unit(&sockets, false);
        let (done_reading, text) = heard.recv().unwrap();
        assert_eq!(done_reading, Ok(sent.len()), "{ending:?}");
        assert!(text == sent, "{ending:?}");
        serving.join().unwrap();
        if let Some(closing) = done {
            closing.join().unwrap();
        }
        if ending == Ending::Drop {
            // The worker that last held the connection releases it.
            let gone = (0..60_000).any(|_| {
                thread::sleep(std::time::Duration::from_millis(1));
                !keeps_text(&sockets)
            });
            assert!(gone, "text is left");
        }
    }
}

fn blocks(error: TlsError) -> Result<(), TlsError> {
    match error {
        TlsError::Socket(SocketError::WouldBlock) => Ok(()),
        error => Err(error),
    }
}

#[test]
fn a_key_update_that_is_not_read_resets_no_connection() {
    let sent = text(60_000, 9);
    let mut pair = Plan::new(Variant::Replicated(2), SERVER, TLS13).build(seed());
    pair.handshake();
    pair.ends[1].update_keys();
    let (session, _) = pair.ends[1].rustls_parts();
    let update = raw(session);
    let (read, done) = pair.send_raw(1, &update, usize::MAX, 0);
    assert!(read.is_empty() && done.is_ok(), "{done:?}");
    pair.net.pass(Duration::from_millis(100));
    assert_eq!(pair.ends[0].write(&sent), Ok(sent.len()));
    pair.ends[0] = End::Gone;
    assert_eq!(pair.read_to_end(1), Ok(sent));
}

#[test]
fn dropping_a_stream_sends_what_was_written_and_close_notify() {
    let sent = text(60_000, 8);
    let mut pair = Plan::new(Variant::Replicated(2), SERVER, TLS13).build(seed());
    pair.handshake();
    assert_eq!(pair.ends[0].write(&sent), Ok(sent.len()));
    pair.ends[0] = End::Gone;
    assert_eq!(pair.read_to_end(1), Ok(sent));
}

#[test]
fn a_handshake_that_takes_too_long_fails_and_its_connection_is_closed() {
    let late = TlsError::Socket(SocketError::TimedOut);
    for (who, at) in [(SERVER, 0), (CLIENT, 1)] {
        for waits in [false, true] {
            let mut pair = Plan::new(Variant::Single, who, TLS13).build(1);
            assert_eq!(pair.ends[at].go_on(), Ok(false), "it has time");
            let End::Begun(mut handshake) = std::mem::replace(&mut pair.ends[at], End::Gone) else {
                panic!("it is not ours");
            };
            let left = handshake.time_left().unwrap();
            let usual = std::time::Duration::from_secs(30);
            assert!(left <= usual && !left.is_zero(), "{left:?}");
            handshake.set_timeout(Some(std::time::Duration::from_nanos(1)));
            // Bytes that have arrived do not extend the time.
            let (session, stream) = pair.ends[1 - at].rustls_parts();
            let _ = stream.try_write(&raw(session));
            pair.net.pass(Duration::from_millis(100));
            let done = match waits {
                false => {
                    let done = handshake.try_finish().map(drop);
                    assert_eq!(handshake.try_finish().map(drop), done);
                    drop(handshake);
                    done
                }
                true => handshake.finish().map(drop),
            };
            assert_eq!(done, Err(late.clone()));
            pair.net.pass(Duration::from_millis(100));
            let (_, stream) = pair.ends[1 - at].rustls_parts();
            let ended = loop {
                match stream.try_read(&mut [0; 5_000]) {
                    Ok(1..) => {}
                    ended => break ended,
                }
            };
            assert!(
                matches!(ended, Ok(0) | Err(SocketError::Reset)),
                "{ended:?}"
            );
        }
    }
}
