//! Streams of units and of TLS records as sources: readable if they hold payload or a whole unit,
//! writable if there is room for a unit.

use std::sync::Arc;

use dominoes_netstack::framed::{Failure, FramedStream, UnitProcessor};
use dominoes_netstack::tls::{TlsHandshake, TlsStream};

use dominoes_testkit::hand::Wired;

use super::by_hand::{VARIANTS, connected, drain, fill};
use super::*;
use crate::tls::fixture::{TLS12, TLS13, configs, name};

const UNIT: usize = 1000;

/// Units that equal their payload.
#[derive(Debug)]
struct Plain;

impl UnitProcessor for Plain {
    fn max_payload(&self) -> usize {
        UNIT
    }

    fn max_unit(&self) -> usize {
        UNIT
    }

    fn receive(&self, _: u64, unit: &[u8], payload: &mut [u8]) -> Result<usize, Failure> {
        payload[..UNIT].copy_from_slice(unit);
        Ok(UNIT)
    }

    fn send(&self, _: u64, payload: &[u8], unit: &mut [u8]) -> Result<(), Failure> {
        unit[..payload.len()].copy_from_slice(payload);
        Ok(())
    }
}

/// The tokens of a second report.
fn again(trigger: Trigger, tokens: &[usize]) -> Vec<usize> {
    match trigger {
        Trigger::Level => tokens.to_vec(),
        Trigger::Edge => vec![],
    }
}

#[test]
fn a_framed_stream_is_readable_when_a_unit_is_there_and_until_all_of_it_is_read() {
    for variant in VARIANTS {
        for trigger in TRIGGERS {
            let (mut pair, _listener, ours, mut theirs) = connected(variant);
            let mut ours = FramedStream::new(ours, Arc::new(Plain)).unwrap();
            let poller = Poller::new().unwrap();
            let register = |interest| poller.register(&ours, Token(1), interest, trigger);
            register(Interest::READABLE).unwrap();
            assert_eq!(ready(&poller), (vec![], vec![]));
            // Half a unit is not readable.
            assert_eq!(theirs.try_write(&[7; UNIT / 2]), Ok(UNIT / 2));
            pair.settle();
            assert_eq!(ready(&poller), (vec![], vec![]), "{variant}, {trigger:?}");
            assert_eq!(theirs.try_write(&[7; UNIT]), Ok(UNIT));
            pair.settle();
            assert_eq!(ready(&poller), (vec![1], vec![]), "{variant}, {trigger:?}");
            assert_eq!(ready(&poller).0, again(trigger, &[1]));
            // The ring is empty, but the stream holds payload.
            assert_eq!(ours.try_read(&mut [0; 10]), Ok(10));
            assert_eq!(ready(&poller).0, again(trigger, &[1]), "{variant}");
            assert_eq!(ours.try_read(&mut [0; UNIT]), Ok(UNIT - 10));
            assert_eq!(ready(&poller).0, vec![]);
            assert_eq!(theirs.try_write(&[7; UNIT / 2]), Ok(UNIT / 2));
            theirs.shutdown_write();
            pair.settle();
            let events = reported(&poller);
            assert!(events[0].readable && events[0].read_closed, "{events:?}");
            assert_eq!(ours.try_read(&mut [0; UNIT]), Ok(UNIT));
            assert_eq!(ours.try_read(&mut [0; UNIT]), Ok(0));
            assert_eq!(ready(&poller).0, again(trigger, &[1]), "the end stays");
            drop(ours);
            assert_eq!(ready(&poller), (vec![], vec![]), "it is gone");
        }
    }
}

#[test]
fn the_halves_of_a_framed_stream_are_sources_and_room_is_room_for_a_unit() {
    for variant in VARIANTS {
        for trigger in TRIGGERS {
            let (mut pair, _listener, ours, mut theirs) = connected(variant);
            let ours = FramedStream::new(ours, Arc::new(Plain)).unwrap();
            let (mut reader, mut writer) = ours.split();
            let poller = Poller::new().unwrap();
            let read = poller.register(&reader, Token(1), Interest::READABLE, trigger);
            let write = poller.register(&writer, Token(2), Interest::WRITABLE, trigger);
            assert!(read.is_ok() && write.is_ok());
            let other = poller.register(&reader, Token(1), Interest::WRITABLE, trigger);
            assert!(other.is_err(), "it reads");
            assert_eq!(ready(&poller), (vec![], vec![2]), "{variant}, {trigger:?}");
            fill(&mut pair, |from| {
                let written = writer.try_write(from);
                written.map_err(|_| SocketError::WouldBlock)
            });
            assert_eq!(ready(&poller), (vec![], vec![]), "{variant}, {trigger:?}");
            while drain(&mut theirs) > 0 {
                pair.settle();
            }
            assert_eq!(ready(&poller), (vec![], vec![2]), "{variant}, {trigger:?}");
            assert!(writer.try_write(&[1; UNIT]).is_ok());
            assert_eq!(theirs.try_write(&[1; UNIT]), Ok(UNIT));
            pair.settle();
            assert_eq!(ready(&poller).0, [1], "{variant}, {trigger:?}");
            assert_eq!(reader.try_read(&mut [0; UNIT]), Ok(UNIT));
            writer.get_ref().shutdown_write();
            let events = reported(&poller);
            let closed = events.iter().any(|event| event.write_closed);
            assert!(closed, "{variant}, {trigger:?}: {events:?}");
        }
    }
}

/// A TLS handshake in which each end is called only when it is ready.
fn handshake(pair: &mut Wired, mut ours: TlsHandshake, mut theirs: TlsHandshake) -> [TlsStream; 2] {
    let poller = Poller::new().unwrap();
    for (token, end) in [&ours, &theirs].into_iter().enumerate() {
        let register = poller.register(end, Token(token), Interest::READABLE, Trigger::Edge);
        register.unwrap();
    }
    let (mut server, mut client) = (None, theirs.try_finish().unwrap());
    for _ in 0..10 {
        pair.settle();
        for token in ready(&poller).0 {
            match token {
                0 => server = ours.try_finish().unwrap(),
                _ => client = theirs.try_finish().unwrap(),
            }
        }
        if server.is_some() && client.is_some() {
            break;
        }
    }
    [server.unwrap(), client.unwrap()]
}

#[test]
fn tls_is_polled_from_its_handshake_to_its_end() {
    for (variant, suite) in VARIANTS.into_iter().zip([TLS13, TLS12, TLS13]) {
        for trigger in TRIGGERS {
            let (mut pair, _listener, ours, theirs) = connected(variant);
            let (server, client) = configs(suite);
            let ours = TlsHandshake::server(ours, &server).unwrap();
            let theirs = TlsHandshake::client(theirs, &client, name()).unwrap();
            let [mut ours, mut theirs] = handshake(&mut pair, ours, theirs);
            let poller = Poller::new().unwrap();
            let register = |interest| poller.register(&ours, Token(1), interest, trigger);
            register(Interest::BOTH).unwrap();
            assert_eq!(ready(&poller), (vec![], vec![1]), "{variant}, {trigger:?}");
            assert_eq!(theirs.try_write(b"some text"), Ok(9));
            pair.settle();
            assert_eq!(ready(&poller).0, [1], "{variant}, {trigger:?}");
            assert_eq!(ours.try_read(&mut [0; 4]), Ok(4));
            assert_eq!(ready(&poller).0, again(trigger, &[1]), "{variant}");
            assert_eq!(ours.try_read(&mut [0; 9]), Ok(5));
            assert_eq!(ready(&poller).0, vec![], "{variant}, {trigger:?}");
            theirs.shutdown_write();
            pair.settle();
            assert_eq!(ready(&poller).0, [1], "{variant}, {trigger:?}");
            assert_eq!(ours.try_read(&mut [0; 9]), Ok(0));
            assert_eq!(ready(&poller).0, again(trigger, &[1]), "{variant}");
        }
    }
}
