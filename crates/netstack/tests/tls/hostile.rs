//! Peers that break the rules of TLS: modified records and handshakes, and valid records with wrong
//! contents. Nothing panics; our end reads the written text up to the first modification; the error
//! names the fault, and the peer receives the alert.
//!
//! `TLS_HOSTILE=1000000` sets the approximate number of modifications, `TLS_HOSTILE_FIRST=0x...`
//! begins with fresh seeds, `TLS_HOSTILE_SEED=0x...` repeats one. `KIND=hostile .ci/schedules` runs
//! many, and resumes where it was stopped.

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;

use dominoes_netstack::testkit::Variant;
use dominoes_netstack::time::Duration;
use dominoes_netstack::tls::{PreparedTls, RecordKey, TlsError};
use dominoes_netstack::{SocketError, TcpStream};
use dominoes_testkit::{Cases, Rng, number};
use rustls::{AlertDescription, Connection, SupportedCipherSuite};

use super::fixture::*;
use crate::support::{PATIENCE, go_on};

/// Modifications in a usual run.
const FEW: u64 = 3_000;
/// Average modifications per case, at least.
const PER_CASE: u64 = 4;
/// Most memory of a process that runs cases on few threads: a connection has a receive ring of 128
/// KiB and units of 1 MiB at most.
const MEMORY: u64 = 512 << 20;

dominoes_testkit::tally! {
    cases,
    /// Modifications of records and of handshakes.
    mutated,
    handshakes,
    /// Handshakes that succeeded in spite of a modification.
    finished,
    refused,
    alerts,
    truncated,
    /// Streams that ended with close_notify.
    ended,
    bytes,
}

impl Tally {
    /// Counts how our end ended; any other error is a failure.
    fn ending(&mut self, done: &Result<(), TlsError>) -> Result<(), String> {
        match done {
            Ok(()) => self.ended += 1,
            Err(TlsError::Refused(_) | TlsError::Handshake(_)) => self.refused += 1,
            Err(TlsError::PeerAlert(_)) => self.alerts += 1,
            Err(TlsError::Truncated) => self.truncated += 1,
            Err(error) => return Err(format!("{error:?}")),
        }
        Ok(())
    }
}

/// The records of a flight; an incomplete last one counts as a record.
fn records(flight: &[u8]) -> Vec<Vec<u8>> {
    let (mut all, mut rest) = (Vec::new(), flight);
    while !rest.is_empty() {
        let len = match rest {
            [_, _, _, high, low, ..] => 5 + usize::from(u16::from_be_bytes([*high, *low])),
            _ => rest.len(),
        };
        let (record, behind) = rest.split_at(len.min(rest.len()));
        all.push(record.to_vec());
        rest = behind;
    }
    all
}

fn fabricated(rng: &mut Rng) -> Vec<u8> {
    let len = rng.below(64) * rng.below(2);
    let mut record = vec![
        20 + rng.below(5) as u8,
        3,
        1 + rng.below(4) as u8,
        0,
        len as u8,
    ];
    record.extend((0..len).map(|_| rng.next() as u8));
    record
}

/// Changes something in `records`.
fn change(rng: &mut Rng, records: &mut Vec<Vec<u8>>) {
    let at = rng.below(records.len() as u64) as usize;
    let len = records[at].len() as u64;
    let place = rng.below(len.max(1)) as usize;
    match rng.below(16) {
        0 => drop(records.remove(at)),
        1 => records.insert(at, records[at].clone()),
        2 => {
            let other = rng.below(records.len() as u64) as usize;
            records.swap(at, other);
        }
        // Shorter than its header claims.
        3 => records[at].truncate(place),
        4 => records.insert(at, fabricated(rng)),
        // A flood of empty records.
        5 => (0..rng.below(100)).for_each(|_| records.insert(at, vec![23, 3, 3, 0, 0])),
        6 => records.insert(at, (0..rng.below(40)).map(|_| rng.next() as u8).collect()),
        7 if len > 5 => {
            let bytes = [0, 1, 16, 17, 24, 0x40, 0x41, 0xff];
            records[at][3] = bytes[rng.below(8) as usize];
            records[at][4] = rng.next() as u8;
        }
        // Cut short, with a header that matches.
        8 if len > 6 => {
            let body = 1 + place.saturating_sub(6) as u16;
            records[at].truncate(5 + usize::from(body));
            records[at][3..5].copy_from_slice(&body.to_be_bytes());
        }
        // Split into two records.
        9 if len > 7 => {
            let body = 1 + rng.below(len - 6) as usize;
            let mut second = records[at][..5].to_vec();
            second.extend(records[at].drain(5 + body..));
            for record in [&mut records[at], &mut second] {
                let body = record.len() as u16 - 5;
                record[3..5].copy_from_slice(&body.to_be_bytes());
            }
            records.insert(at + 1, second);
        }
        // The type and length of a handshake message.
        10 | 11 if len > 9 => records[at][5 + rng.below(4) as usize] = rng.next() as u8,
        _ if len > 0 => records[at][place] ^= 1 << rng.below(8),
        _ => records.insert(at, fabricated(rng)),
    }
    if records.is_empty() {
        records.push(fabricated(rng));
    }
}

/// Changes `flight` 1 to 7 times. Returns how often.
fn mutate(rng: &mut Rng, flight: &mut Vec<u8>) -> u64 {
    let mut records = records(flight);
    let count = 1 + rng.below(7);
    (0..count).for_each(|_| change(rng, &mut records));
    *flight = records.concat();
    count
}

/// The `rustls` end, whose bytes a test modifies.
struct Peer {
    out: Vec<u8>,
    sent: usize,
    at_once: usize,
    idle: u32,
    shut: bool,
    /// The error that its session reports about our bytes.
    failed: Option<rustls::Error>,
}

impl Peer {
    fn new(rng: &mut Rng) -> Peer {
        Peer {
            out: Vec::new(),
            sent: 0,
            at_once: 1 << rng.below(16),
            idle: 0,
            shut: false,
            failed: None,
        }
    }

    /// Sends and receives as much as possible, and ends the stream when nothing happens any more.
    fn step(&mut self, session: &mut Connection, stream: &mut TcpStream) {
        let left = &self.out[self.sent..];
        let sent = match stream.try_write(&left[..left.len().min(self.at_once)]) {
            Ok(sent) => sent,
            Err(SocketError::WouldBlock) => 0,
            // Our end is gone.
            Err(_) => left.len(),
        };
        self.sent += sent;
        let read = session.read_tls(stream).unwrap_or_default();
        if read > 0 {
            let done = session.process_new_packets();
            self.failed = self.failed.take().or(done.err());
        }
        self.idle = if sent + read > 0 { 0 } else { self.idle + 1 };
        if self.idle > 100 && !self.shut && self.sent == self.out.len() {
            stream.shutdown_write();
            self.shut = true;
        }
    }
}

/// Lets our end read to its end, while `peer` drives the other one.
fn read_out(
    pair: &mut Pair,
    at: usize,
    mut peer: impl FnMut(&mut End),
) -> (Vec<u8>, Result<(), TlsError>) {
    let (mut heard, mut buffer) = (Vec::new(), vec![0; 5_000]);
    let ends = &mut pair.ends;
    let done = go_on(&mut pair.net, || {
        peer(&mut ends[1 - at]);
        while let Some(len) = ends[at].read(&mut buffer)? {
            heard.extend_from_slice(&buffer[..len]);
            if len == 0 {
                return Ok(true);
            }
        }
        Ok(false)
    });
    (heard, done)
}

fn plan(rng: &mut Rng) -> (Plan, usize) {
    let suite = SUITES[rng.below(6) as usize];
    let ours = rng.below(2) as usize;
    let variant = match rng.below(4) {
        0 => Variant::Replicated(2),
        _ => Variant::Single,
    };
    (Plan::new(variant, [SERVER, CLIENT][ours], suite), ours)
}

/// Modifies records of `rustls` on their way.
fn changed_records(rng: &mut Rng, tally: &mut Tally) -> Result<(), String> {
    let (plan, ours) = plan(rng);
    let mut pair = plan.build(rng.next());
    pair.handshake();
    let (session, _) = pair.ends[1 - ours].rustls_parts();
    let (mut sent, mut flight) = (Vec::new(), Vec::new());
    for _ in 0..1 + rng.below(8) {
        let len = [1, 3, 200, 3_000, 16 << 10][rng.below(5) as usize];
        let part = text(len, rng.next());
        session
            .writer()
            .write_all(&part)
            .map_err(|e| e.to_string())?;
        sent.extend(part);
        flight.extend(raw(session));
    }
    let is_whole = rng.below(2) == 0;
    if is_whole {
        session.send_close_notify();
        flight.extend(raw(session));
    }
    let before = flight.clone();
    tally.mutated += mutate(rng, &mut flight);
    let unchanged = flight.starts_with(&before);
    let mut peer = Peer::new(rng);
    peer.out = flight;
    let (read, done) = read_out(&mut pair, ours, |end| {
        let (session, stream) = end.rustls_parts();
        peer.step(session, stream);
    });
    tally.bytes += read.len() as u64;
    if !sent.starts_with(&read) {
        return Err(format!("{} bytes that were not written so", read.len()));
    }
    if done.is_ok() != (unchanged && is_whole) || (done.is_ok() && read != sent) {
        return Err(format!(
            "{done:?} of {} bytes, whole: {is_whole}",
            read.len()
        ));
    }
    if let Err(TlsError::Refused(alert)) = done {
        hears(peer, &mut pair, 1 - ours, alert)?;
    }
    tally.ending(&done)
}

/// Checks that the peer receives the alert, unless its session ended before.
fn hears(
    mut peer: Peer,
    pair: &mut Pair,
    at: usize,
    alert: AlertDescription,
) -> Result<(), String> {
    let mut left = 5_000;
    let ends = &mut pair.ends;
    let ran = pair.net.run(PATIENCE, |moment| {
        moment.wake_at(moment.now() + Duration::from_micros(500));
        let (session, stream) = ends[at].rustls_parts();
        peer.step(session, stream);
        left -= 1;
        match peer.failed.is_some() || left == 0 {
            true => Ok(ControlFlow::Break(())),
            false => Ok(ControlFlow::Continue(0)),
        }
    });
    match peer.failed {
        Some(rustls::Error::AlertReceived(heard)) if heard == alert => Ok(()),
        other => Err(format!("the peer hears {other:?}, not {alert:?}: {ran:?}")),
    }
}

/// Modifies records of `rustls` during the handshake.
fn changed_handshake(rng: &mut Rng, tally: &mut Tally) -> Result<(), String> {
    let (plan, ours) = plan(rng);
    let mut pair = plan.build(rng.next());
    let mut peer = Peer::new(rng);
    // One flight or several.
    let often = 30 + rng.below(71);
    let mut mutated = 0;
    let (_, done) = read_out(&mut pair, ours, |end| {
        let (session, stream) = end.rustls_parts();
        let mut flight = raw(session);
        if !flight.is_empty() && rng.below(100) < often {
            mutated += mutate(rng, &mut flight);
        }
        peer.out.extend(flight);
        peer.step(session, stream);
    });
    tally.handshakes += 1;
    tally.mutated += mutated;
    tally.finished += u64::from(matches!(pair.ends[ours], End::Ours(_)));
    match done {
        // Unread bytes reset the connection.
        Err(TlsError::Socket(SocketError::Reset)) => Ok(()),
        done => tally.ending(&done),
    }
}

/// A record with the right key and unusual content.
struct Odd {
    content: u8,
    text: Vec<u8>,
    /// Whether it must end the connection.
    is_wrong: bool,
}

fn odd(rng: &mut Rng) -> Odd {
    let some = |rng: &mut Rng, most: u64| -> Vec<u8> {
        let len = rng.below(most);
        (0..len).map(|_| rng.next() as u8).collect()
    };
    let (content, text, is_wrong) = match rng.below(24) {
        0..8 => (23, some(rng, 300), false),
        8 => (23, vec![0; 1 << 14], false),
        9 => (23, Vec::new(), false),
        // Zeros after the type.
        10 => {
            let mut padded = some(rng, 300);
            padded.push(23);
            padded.resize(padded.len() + rng.below(200) as usize, 0);
            (0, padded, false)
        }
        11 => (0, vec![0; rng.below(200) as usize], true),
        12 => (22, vec![24, 0, 0, 1, 2 + rng.below(254) as u8], true),
        13 => (22, vec![24, 0, 0, rng.below(200) as u8, 0, 0], false),
        14 => (
            22,
            vec![rng.next() as u8, 1 + rng.below(255) as u8, 0, 0],
            true,
        ),
        15 => (22, some(rng, 100), false),
        16 => (22, Vec::new(), true),
        17 => (22, vec![24, 0, 0, 1, rng.below(2) as u8], false),
        18 => (21, some(rng, 5), false),
        19 => (21, vec![1, 90], false),
        20 => (
            21,
            vec![
                1 + rng.below(2) as u8,
                rng.next() as u8 * rng.below(2) as u8,
            ],
            false,
        ),
        21 => (20, vec![1], true),
        _ => (24 + rng.below(230) as u8, some(rng, 100), true),
    };
    Odd {
        content,
        text,
        is_wrong,
    }
}

/// A pair with our server, the client's key, and the number of the client's next record.
fn with_key(suite: SupportedCipherSuite, seed: u64) -> Result<(Pair, RecordKey, u64), String> {
    let plan = Plan::new(Variant::Single, [Who::Rustls; 2], suite);
    let (server, mut client) = configs(suite);
    Arc::make_mut(&mut client).enable_secret_extraction = true;
    let prepared = PreparedTls::new(&server, &client, name());
    let (prepared, secrets) = prepared.map_err(|error| error.to_string())?;
    let key = RecordKey::new(&secrets.tx.1).ok_or("an unknown cipher")?;
    let mut pair = plan.build(seed);
    let End::Rustls(_, wire) = std::mem::replace(&mut pair.ends[0], End::Gone) else {
        return Err("it is ours".to_owned());
    };
    let ours = prepared.attach(wire.stream);
    pair.ends[0] = End::Ours(ours.map_err(|error| error.to_string())?);
    Ok((pair, key, secrets.tx.0))
}

/// Valid records whose contents no current peer would send.
fn odd_records(rng: &mut Rng, tally: &mut Tally) -> Result<(), String> {
    let suite = SUITES[rng.below(3) as usize];
    let (mut pair, key, first) = with_key(suite, rng.next())?;
    let mut peer = Peer::new(rng);
    // `sent` is the text that may be read: up to the first record that is surely wrong.
    let (mut sent, mut ends_by, mut has_message) = (Vec::new(), false, false);
    for number in 0..2 + rng.below(20) {
        let Odd {
            content,
            text,
            is_wrong,
        } = odd(rng);
        let mut record = vec![0; text.len() + RecordKey::OVERHEAD];
        key.seal_as(first + number, content, &text, &mut record);
        // After the beginning of a message, the record continues it, whatever its content.
        let is_message = content == 22 && !text.is_empty();
        ends_by |= is_wrong && !(is_message && has_message);
        has_message |= is_message;
        tally.mutated += 1;
        if rng.below(16) == 0 {
            let at = rng.below(record.len() as u64 - 5) as usize;
            record[5 + at] ^= 1 << rng.below(8);
            ends_by = true;
        }
        let text = match content {
            23 => &text[..],
            0 => {
                let end = text.iter().rposition(|byte| *byte != 0);
                end.map_or(&[][..], |end| &text[..end])
            }
            _ => &[],
        };
        if !ends_by {
            sent.extend_from_slice(text);
        }
        peer.out.extend(record);
    }
    let (read, done) = read_out(&mut pair, 0, |end| {
        let (session, stream) = end.rustls_parts();
        peer.step(session, stream);
    });
    tally.bytes += read.len() as u64;
    if !sent.starts_with(&read) {
        return Err(format!("{} bytes that were not written so", read.len()));
    }
    if ends_by && matches!(done, Err(TlsError::Truncated)) {
        return Err("a wrong record is taken for none".to_owned());
    }
    tally.ending(&done)
}

fn case(seed: u64) -> Result<Tally, String> {
    let mut rng = Rng::new(seed);
    let mut tally = Tally {
        cases: 1,
        ..Tally::default()
    };
    match rng.below(3) {
        0 => changed_records(&mut rng, &mut tally)?,
        1 => changed_handshake(&mut rng, &mut tally)?,
        _ => odd_records(&mut rng, &mut tally)?,
    }
    Ok(tally)
}

/// The peak memory of this process in bytes, if the system reports it.
fn most_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib << 10)
}

#[test]
fn no_change_of_a_record_or_a_handshake_does_harm() {
    let command = "cargo test -p dominoes-netstack --test main no_change_of_a_record";
    let count = number("TLS_HOSTILE").unwrap_or(FEW).div_ceil(PER_CASE);
    let mut sum = Tally::default();
    for tally in Cases::new("TLS_HOSTILE", command, count).run(case) {
        sum.add(&tally);
    }
    println!("tally {sum}");
    if sum.mutated >= FEW {
        assert_eq!(sum.missing(), Vec::<&str>::new(), "too calm: {sum}");
    }
    if let Some(most) = most_memory() {
        println!("memory: {} MiB at most", most >> 20);
        // A usual run shares the process with other tests.
        let is_alone = count > 2 * FEW / PER_CASE;
        assert!(!is_alone || most < MEMORY, "{most} bytes of memory");
    }
}

/// Our end reads records with these contents, sealed one after the other.
fn read_records(records: &[(u8, &[u8])]) -> (Vec<u8>, Result<(), TlsError>) {
    let (mut pair, key, first) = with_key(TLS13, 1).unwrap();
    let mut peer = Peer::new(&mut Rng::new(1));
    for (number, (content, text)) in records.iter().enumerate() {
        let mut record = vec![0; text.len() + RecordKey::OVERHEAD];
        key.seal_as(first + number as u64, *content, text, &mut record);
        peer.out.extend(record);
    }
    read_out(&mut pair, 0, |end| {
        let (session, stream) = end.rustls_parts();
        peer.step(session, stream);
    })
}

#[test]
fn a_flood_of_records_that_carry_nothing_ends_the_connection() {
    // Empty text, an empty message, only padding, a warning without effect.
    for (content, text) in [(23, &[][..]), (0, &[23, 0, 0]), (21, &[1, 90])] {
        let flood = |count| {
            let mut records = vec![(23, &b"before"[..])];
            records.extend((0..count).map(|_| (content, text)));
            records.push((23, b" behind"));
            read_records(&records)
        };
        let (read, done) = flood(32);
        assert_eq!(read, b"before behind", "{content}");
        assert_eq!(done, Err(TlsError::Truncated), "{content}");
        let (read, done) = flood(33);
        let alert = AlertDescription::UnexpectedMessage;
        assert_eq!(read, b"before", "{content}");
        assert_eq!(done, Err(TlsError::Refused(alert)), "{content}");
    }
}

#[test]
fn an_alert_in_the_middle_ends_the_stream_behind_what_came_before() {
    let (read, done) = read_records(&[(23, b"before"), (21, &[2, 80]), (23, b"behind")]);
    let alert = AlertDescription::InternalError;
    assert_eq!(
        (&read[..], done),
        (&b"before"[..], Err(TlsError::PeerAlert(alert)))
    );
}

#[test]
fn a_message_that_never_ends_is_refused_before_it_is_kept() {
    // A ticket of 2^24 - 1 bytes, and what follows it.
    let part = [0; 1 << 14];
    let mut records = vec![(22, &[4, 0xff, 0xff, 0xff][..])];
    records.extend((0..20).map(|_| (22, &part[..])));
    let alert = AlertDescription::DecodeError;
    assert_eq!(
        read_records(&records),
        (Vec::new(), Err(TlsError::Refused(alert)))
    );
}

#[test]
fn a_peer_whose_text_is_not_read_is_stopped() {
    const WRITTEN: usize = 8 << 20;
    let mut pair = Plan::new(Variant::Single, SERVER, TLS13).build(seed());
    pair.handshake();
    let ours = pair.hosts[0];
    let (session, stream) = pair.ends[1].rustls_parts();
    let (mut out, mut sent) = (Vec::new(), 0);
    session.set_buffer_limit(None);
    session.writer().write_all(&vec![7; WRITTEN]).unwrap();
    out.extend(raw(session));
    let ran = pair.net.run(Duration::from_secs(20), |moment| {
        moment.wake_at(moment.now() + Duration::from_millis(1));
        sent += stream.try_write(&out[sent..]).unwrap_or(0);
        Ok(ControlFlow::Continue(0))
    });
    assert!(ran.is_err(), "it waits for ever");
    // Both rings, and opened records.
    let most = 2 * (128 << 10) + 32 * (17 << 10);
    assert!((64 << 10..most).contains(&sent), "{sent} bytes are sent");
    assert_eq!(pair.net.host(ours).unexpected_panics(), 0);
}

/// Content type, version and length are checked before the reader waits for more bytes.
#[test]
fn what_is_not_tls_hears_an_alert_and_the_end_at_its_first_bytes() {
    const UNEXPECTED: AlertDescription = AlertDescription::UnexpectedMessage;
    for (said, alert) in [
        (
            &b"GET / HTTP/1.1\r\nHost: server.test\r\n\r\n"[..],
            UNEXPECTED,
        ),
        (b"S", UNEXPECTED),
        (b"\x18\x03\x03", UNEXPECTED),
        (b"\x17\x03\x03\x00\x20", UNEXPECTED),
        (b"\x16\x03\x01\x00\x00", UNEXPECTED),
        (b"\x16\x45", AlertDescription::ProtocolVersion),
        (b"\x16\x03\x01\x40\x01", AlertDescription::RecordOverflow),
    ] {
        for (who, at) in [(SERVER, 0), (CLIENT, 1)] {
            let mut pair = Plan::new(Variant::Single, who, TLS13).build(1);
            let (_, stream) = pair.ends[1 - at].rustls_parts();
            assert_eq!(stream.try_write(said), Ok(said.len()));
            let refused = pair.both(|ends| ends[at].go_on());
            assert_eq!(refused, Err(TlsError::Refused(alert)), "{said:?}");
            let again = pair.ends[at].go_on();
            assert_eq!(again, Err(TlsError::Refused(alert)), "for good");
            pair.ends[at] = End::Gone;
            let (_, stream) = pair.ends[1 - at].rustls_parts();
            let (mut heard, mut buffer) = (Vec::new(), [0; 5_000]);
            let done = go_on(&mut pair.net, || match stream.try_read(&mut buffer) {
                Ok(len) => {
                    heard.extend_from_slice(&buffer[..len]);
                    Ok(len == 0)
                }
                Err(SocketError::WouldBlock) => Ok(false),
                Err(error) => Err(error),
            });
            assert_eq!(done, Ok(()), "{said:?}");
            assert!(heard.ends_with(&[21, 3, 3, 0, 2, 2, alert.into()]));
        }
    }
}

/// Also once keys exist: then `rustls` seals the alert.
#[test]
fn what_is_not_tls_is_refused_in_the_middle_of_a_handshake() {
    for said in [&b"GET "[..], b"\x16\x45", b"\x16\x03\x03\x50\x01"] {
        let mut pair = Plan::new(Variant::Single, SERVER, TLS13).build(1);
        let mut begun = false;
        let done = pair.both(|ends| {
            let (session, stream) = ends[1].rustls_parts();
            if !begun {
                let hello = raw(session);
                assert_eq!(stream.try_write(&hello), Ok(hello.len()));
                begun = true;
            }
            // The server's flight.
            if stream.try_read(&mut [0; 5_000]).is_ok() {
                assert_eq!(stream.try_write(said), Ok(said.len()));
            }
            ends[0].go_on()
        });
        assert!(matches!(done, Err(TlsError::Handshake(_))), "{done:?}");
    }
}

#[test]
fn an_empty_alert_is_no_alert_that_could_be_decoded() {
    let alert = AlertDescription::UnexpectedMessage;
    let (read, done) = read_records(&[(23, b"before"), (21, &[])]);
    assert_eq!(
        (&read[..], done),
        (&b"before"[..], Err(TlsError::Refused(alert)))
    );
}

/// Each message of a record counts.
#[test]
fn a_flood_of_messages_in_one_record_ends_the_connection() {
    // A lifetime, an obfuscation of the age, no nonce, a ticket of one byte, no extensions.
    let ticket = [4, 0, 0, 14, 0, 0, 0, 9, 1, 2, 3, 4, 0, 0, 1, 7, 0, 0];
    for count in [32, 33, 600] {
        let (mut server, client) = configs(TLS13);
        let config = Arc::make_mut(&mut server);
        (config.enable_secret_extraction, config.send_tls13_tickets) = (true, 0);
        let plan = Plan::new(Variant::Single, CLIENT, TLS13);
        let mut pair = plan.build_with(1, &(server, client));
        pair.handshake();
        let End::Rustls(session, mut wire) = std::mem::replace(&mut pair.ends[0], End::Gone) else {
            panic!("it is ours");
        };
        let secrets = session.dangerous_extract_secrets().unwrap();
        let key = RecordKey::new(&secrets.tx.1).unwrap();
        for (number, (content, text)) in [(22, ticket.repeat(count)), (23, b"behind".to_vec())]
            .into_iter()
            .enumerate()
        {
            let mut record = vec![0; text.len() + RecordKey::OVERHEAD];
            let number = secrets.tx.0 + number as u64;
            key.seal_as(number, content, &text, &mut record);
            assert_eq!(wire.stream.try_write(&record), Ok(record.len()));
        }
        wire.stream.shutdown_write();
        let alert = AlertDescription::UnexpectedMessage;
        let expected: (&[u8], _) = match count {
            32 => (b"behind", Err(TlsError::Truncated)),
            _ => (b"", Err(TlsError::Refused(alert))),
        };
        let (read, done) = read_out(&mut pair, 1, |_| ());
        assert_eq!((&read[..], done), expected, "{count}");
    }
}
