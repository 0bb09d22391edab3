//! Options take effect in the order of the calls, between the bytes written before and after them
//! (RFC 9293 section 3.9.1.8), and from the first segment on; also the limits that some of them
//! set.

#![cfg(feature = "testkit")]

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use dominoes_netstack::framed::{Failure, FramedStream, UnitProcessor};
use dominoes_netstack::poller::{Interest, Poller, Token, Trigger};
use dominoes_netstack::testkit::Variant;
use dominoes_netstack::time::Duration;
use dominoes_netstack::tls::{TlsHandshake, TlsStream};
use dominoes_netstack::{Limits, Settings, SocketError, TcpStream, TcpView, Tuning};
use dominoes_testkit::hand::{Scripted, setup};
use dominoes_testkit::net::{HostConfig, HostId, Net};
use dominoes_testkit::packet::{self, Family, TO_STACK};
use dominoes_testkit::peer::Peer;

use crate::support::connect;
use crate::tls::fixture::{TLS13, configs, name};

/// A segment on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    flags: u8,
    len: usize,
    ttl: u8,
    tos: u8,
}

const SYN: u8 = 2;
const ACK: u8 = 16;

fn segment(frame: &[u8]) -> Option<Seen> {
    let ip = &frame[14..];
    let (head, total, ttl, tos) = match frame[12..14] {
        [8, 0] if ip[9] == 6 => (20, u16::from_be_bytes([ip[2], ip[3]]), ip[8], ip[1]),
        [0x86, 0xdd] if ip[6] == 6 => (
            40,
            40 + u16::from_be_bytes([ip[4], ip[5]]),
            ip[7],
            ip[0] << 4 | ip[1] >> 4,
        ),
        _ => return None,
    };
    let tcp = &ip[head..];
    Some(Seen {
        flags: tcp[13] & (SYN | ACK),
        len: usize::from(total) - head - usize::from(tcp[12] >> 4) * 4,
        ttl,
        tos,
    })
}

/// A server and a client, and the segments that they send.
struct Hosts {
    net: Net,
    ids: [HostId; 2],
    seen: Rc<RefCell<Vec<Seen>>>,
}

impl Hosts {
    fn each(limits: Limits, test: impl Fn(Hosts)) {
        for variant in Variant::ALL {
            for family in [Family::V4, Family::V6] {
                println!("{variant}, {family:?}");
                let mut net = Net::new(7);
                let config = HostConfig::new(variant).family(family);
                let ids = [config.clone().limits(limits), config].map(|it| net.add(it).unwrap());
                let seen = Rc::new(RefCell::new(Vec::new()));
                let frames = Rc::clone(&seen);
                net.watch(move |_, _, frame| frames.borrow_mut().extend(segment(frame)));
                // Until the IPv6 addresses are known to be unique.
                net.pass(Duration::from_secs(3));
                test(Hosts { net, ids, seen });
            }
        }
    }

    fn connected(test: impl Fn(Hosts, TcpStream, TcpStream)) {
        Hosts::each(limits(), |mut hosts| {
            let [server, client] = connect(&mut hosts.net, hosts.ids, 7);
            hosts.after(300);
            test(hosts, server, client);
        });
    }

    /// The segments sent in the next `millis` milliseconds.
    fn after(&mut self, millis: u64) -> Vec<Seen> {
        self.net.pass(Duration::from_millis(millis));
        self.seen.take()
    }

    /// Length, TTL and TOS of the segments with text among them.
    fn text_after(&mut self, millis: u64) -> Vec<(usize, u8, u8)> {
        let seen = self.after(millis).into_iter();
        let text = seen.filter(|seen| seen.len > 0);
        text.map(|seen| (seen.len, seen.ttl, seen.tos)).collect()
    }
}

fn limits() -> Limits {
    Limits::default().connections(16)
}

#[test]
fn an_option_takes_effect_behind_what_was_written_before_the_call() {
    Hosts::connected(|mut hosts, _server, mut client| {
        client.set_nodelay(true).unwrap();
        client.try_write(&[1; 100]).unwrap();
        client.set_cork(true);
        client.try_write(&[2; 50]).unwrap();
        client.set_cork(false);
        client.set_tos(0x28);
        client.try_write(&[3; 30]).unwrap();
        client.set_ttl(5).unwrap();
        client.try_write(&[4; 20]).unwrap();
        client.set_ttl(64).unwrap();
        client.set_cork(true);
        client.try_write(&[5; 10]).unwrap();
        let sent = [(100, 64, 0), (50, 64, 0), (30, 64, 0x28), (20, 5, 0x28)];
        assert_eq!(hosts.text_after(20), sent);
        client.set_cork(false);
        assert_eq!(hosts.text_after(20), [(10, 64, 0x28)]);
    });
}

#[test]
fn an_option_is_in_order_also_while_segments_of_the_peer_arrive() {
    Hosts::connected(|mut hosts, mut server, mut client| {
        client.set_nodelay(true).unwrap();
        hosts.after(20);
        for round in 1..20 {
            server.try_write(&[9; 3000]).unwrap();
            // The server's segments are on their way during these calls.
            hosts.net.pass(Duration::from_micros(round));
            client.set_tos(4 * round as u8);
            client.try_write(&[1; 10]).unwrap();
            client.set_tos(0);
            client.try_write(&[2; 20]).unwrap();
            let text = hosts.text_after(20).into_iter();
            let text: Vec<_> = text.filter(|(len, ..)| *len < 100).collect();
            assert_eq!(text, [(10, 64, 4 * round as u8), (20, 64, 0)], "{round}");
            while server.try_read(&mut [0; 100]).is_ok() {}
            while client.try_read(&mut [0; 5000]).is_ok() {}
        }
    });
}

#[test]
fn of_more_changes_than_are_kept_the_latest_takes_effect_where_it_was_made() {
    Hosts::connected(|mut hosts, _server, mut client| {
        client.set_nodelay(true).unwrap();
        for _ in 0..100 {
            client.try_write(&[1; 10]).unwrap();
            client.set_cork(true);
            client.set_cork(false);
        }
        client.set_cork(true);
        client.try_write(&[2; 7]).unwrap();
        let sent: usize = hosts.text_after(50).iter().map(|(len, ..)| len).sum();
        assert_eq!(sent, 1000);
        client.set_cork(false);
        assert_eq!(hosts.text_after(50), [(7, 64, 0)]);
    });
}

/// Units with a header that holds their length, and the text.
#[derive(Debug)]
struct Units;

impl UnitProcessor for Units {
    fn max_payload(&self) -> usize {
        4000
    }

    fn max_unit(&self) -> usize {
        4002
    }

    fn header_len(&self) -> usize {
        2
    }

    fn received_len(&self, _: u64, header: &[u8], _: usize) -> Result<usize, Failure> {
        Ok(2 + usize::from(u16::from_be_bytes([header[0], header[1]])))
    }

    fn receive(&self, _: u64, unit: &[u8], payload: &mut [u8]) -> Result<usize, Failure> {
        payload[..unit.len() - 2].copy_from_slice(&unit[2..]);
        Ok(unit.len() - 2)
    }

    fn sent_len(&self, payload_len: usize) -> usize {
        2 + payload_len
    }

    fn send(&self, _: u64, payload: &[u8], unit: &mut [u8]) -> Result<(), Failure> {
        unit[..2].copy_from_slice(&(payload.len() as u16).to_be_bytes());
        unit[2..].copy_from_slice(payload);
        Ok(())
    }
}

/// Sets options of `view` between writes to its units. The first write is long enough to be sealed
/// by workers, and is not sealed yet. `sealed` computes the length of the units of a text.
fn options_between_units(
    mut hosts: Hosts,
    view: TcpView<'_>,
    mut write: impl FnMut(&[u8]),
    sealed: impl Fn(usize) -> usize,
) {
    view.set_nodelay(true).unwrap();
    hosts.after(20);
    write(&[1; 8000]);
    view.set_tos(0x28);
    write(&[2; 50]);
    view.set_ttl(5).unwrap();
    write(&[3; 30]);
    let settings = Settings::default().nodelay(true);
    view.set_settings(settings).unwrap();
    write(&[4; 20]);
    assert_eq!(view.settings(), settings);
    let mut sums: Vec<(usize, u8, u8)> = Vec::new();
    for (len, ttl, tos) in hosts.text_after(200) {
        match sums.last_mut() {
            Some(sum) if (sum.1, sum.2) == (ttl, tos) => sum.0 += len,
            _ => sums.push((len, ttl, tos)),
        }
    }
    let sent = [(8000, 64, 0), (50, 64, 0x28), (30, 5, 0x28), (20, 64, 0)];
    assert_eq!(sums, sent.map(|(len, ttl, tos)| (sealed(len), ttl, tos)));

    write(&[5; 8000]);
    view.set_cork(true);
    write(&[6; 10]);
    let sent: usize = hosts.text_after(50).iter().map(|(len, ..)| len).sum();
    assert_eq!(sent, sealed(8000));
    view.set_cork(false);
    assert_eq!(hosts.text_after(50), [(sealed(10), 64, 0)]);
}

#[test]
fn an_option_of_a_framed_stream_takes_effect_behind_what_workers_seal() {
    Hosts::connected(|hosts, _server, client| {
        let client = FramedStream::new(client, Arc::new(Units)).unwrap();
        let (read, mut write) = client.split();
        let written = |bytes: &[u8]| assert_eq!(write.try_write(bytes), Ok(bytes.len()));
        let sealed = |len: usize| len + 2 * len.div_ceil(4000);
        options_between_units(hosts, read.get_ref(), written, sealed);
    });
}

#[test]
fn an_option_of_a_tls_stream_takes_effect_behind_what_workers_seal() {
    let (server_config, client_config) = configs(TLS13);
    Hosts::connected(|mut hosts, server, client| {
        let mut server = TlsHandshake::server(server, &server_config).unwrap();
        let mut client = TlsHandshake::client(client, &client_config, name()).unwrap();
        let mut ends: [Option<TlsStream>; 2] = [None, None];
        while ends.iter().any(Option::is_none) {
            for (end, handshake) in ends.iter_mut().zip([&mut server, &mut client]) {
                if end.is_none() {
                    *end = handshake.try_finish().unwrap();
                }
            }
            hosts.after(5);
        }
        let [_server, client] = ends.map(Option::unwrap);
        let (read, mut write) = client.split();
        let written = |bytes: &[u8]| assert_eq!(write.try_write(bytes).unwrap(), bytes.len());
        options_between_units(hosts, read.get_ref(), written, |len| len + 22);
    });
}

/// A run arrives while a change waits for units to be sealed. Its payload may be stored before it
/// is verified; the payload of its duplicate must not be.
#[test]
fn a_damaged_duplicate_of_a_run_that_arrived_while_an_option_waited_changes_no_byte() {
    const SIZE: usize = 3000;
    for variant in [
        Variant::Single,
        Variant::Replicated(1),
        Variant::Replicated(2),
    ] {
        let limits = limits().receive_buffer(1 << 13);
        let mut host = Scripted::new(variant, setup(0, 1).limits(limits));
        let listener = host.sockets().listen(7, 4).unwrap();
        host.receive(packet::arp_reply(TO_STACK));
        let mut peer = Peer::new(TO_STACK, (4000, 7), 100);
        for frame in host.receive(peer.says(SYN, &[])) {
            peer.hears(&frame);
        }
        host.receive(peer.says(ACK, &[]));
        let stream = listener.try_accept().unwrap().0;
        let stream = FramedStream::new(stream, Arc::new(Units)).unwrap();
        let (mut read, mut write) = stream.split();
        write.get_ref().set_nodelay(true).unwrap();
        let mut payload = [0; SIZE];
        for byte in 0..5 {
            let unit = [&(SIZE as u16).to_be_bytes()[..], &[byte; SIZE]].concat();
            // The last unit comes later than the first window: bytes are reserved for its parts.
            for (at, part) in unit.chunks(SIZE / 3 + 1).enumerate() {
                if (byte, at) == (4, 0) {
                    assert_eq!(write.try_write(&[1; 8000]), Ok(8000));
                    write.get_ref().set_tos(0x28);
                }
                let mut frame = peer.says(ACK, part);
                host.receive(frame.clone());
                frame.iter_mut().rev().take(900).for_each(|it| *it = 99);
                host.receive(frame);
            }
            assert_eq!(read.try_read(&mut payload), Ok(SIZE), "{variant}: {byte}");
            assert!(payload == [byte; SIZE], "{variant}: {byte}");
        }
    }
}

#[test]
fn what_is_marked_to_be_followed_waits_for_the_next_write() {
    Hosts::connected(|mut hosts, _server, mut client| {
        client.try_write_more(&[1; 100]).unwrap();
        client.try_write_more(&[1; 100]).unwrap();
        assert_eq!(hosts.text_after(50), []);
        client.try_write(&[2; 50]).unwrap();
        assert_eq!(hosts.text_after(50), [(250, 64, 0)]);
        client.try_write(&[3; 40]).unwrap();
        client.try_write_more(&[1; 20]).unwrap();
        assert_eq!(hosts.text_after(50), [(40, 64, 0)]);
        client.shutdown_write();
        assert_eq!(hosts.text_after(50), [(20, 64, 0)]);
    });
}

#[test]
fn the_end_of_a_record_waits_for_nothing() {
    Hosts::connected(|mut hosts, _server, mut client| {
        client.set_cork(true);
        client.try_write_end(&[1; 10]).unwrap();
        client.try_write_end(&[2; 20]).unwrap();
        client.try_write(&[3; 30]).unwrap();
        assert_eq!(hosts.text_after(50), [(10, 64, 0), (20, 64, 0)]);
        client.set_cork(false);
        assert_eq!(hosts.text_after(50), [(30, 64, 0)]);
    });
}

#[test]
fn switching_nagles_algorithm_off_sends_what_a_cork_holds() {
    Hosts::connected(|mut hosts, _server, mut client| {
        client.set_cork(true);
        client.try_write(&[1; 100]).unwrap();
        assert_eq!(hosts.text_after(50), []);
        client.set_nodelay(true).unwrap();
        client.try_write(&[2; 10]).unwrap();
        assert_eq!(hosts.text_after(50), [(100, 64, 0)]);
    });
}

#[test]
fn an_open_has_its_settings_on_the_syn_and_later_without_being_asked() {
    Hosts::each(limits(), |mut hosts| {
        let listener = hosts.net.sockets(hosts.ids[0]).listen(7, 4).unwrap();
        let remote = hosts.net.address_of(hosts.ids[0], 7);
        let sockets = hosts.net.sockets(hosts.ids[1]).clone();
        let mut opening = sockets.begin_connect(remote).unwrap();
        opening
            .set_settings(Settings::default().ttl(9).tos(0x28))
            .unwrap();
        let seen = hosts.after(300);
        let ours = seen.iter().filter(|seen| seen.flags != SYN | ACK);
        assert!(ours.clone().any(|seen| seen.flags == SYN), "{seen:?}");
        assert!(
            ours.clone().all(|seen| (seen.ttl, seen.tos) == (9, 0x28)),
            "{seen:?}"
        );
        opening.set_settings(Settings::default().ttl(12)).unwrap();
        let mut server = listener.try_accept().unwrap().0;
        server.try_write(&[1; 10]).unwrap();
        let seen = hosts.after(300);
        let answer = seen.iter().find(|seen| seen.len == 0).unwrap();
        assert_eq!((answer.ttl, answer.tos), (12, 0), "{seen:?}");
        let client = opening.try_finish().unwrap().unwrap();
        assert_eq!(client.settings(), Settings::default().ttl(12));
    });
}

#[test]
fn a_listener_has_its_settings_on_the_syn_ack_with_a_place_and_without() {
    // The second SYN finds the SYN queue full, and is answered with a SYN cookie.
    Hosts::each(limits().syn_queue(1), |mut hosts| {
        let listener = hosts.net.sockets(hosts.ids[0]).listen(7, 4).unwrap();
        for ttl in [3, 4, 7] {
            listener.set_ttl(ttl).unwrap();
        }
        let remote = hosts.net.address_of(hosts.ids[0], 7);
        let sockets = hosts.net.sockets(hosts.ids[1]).clone();
        let mut opening = [0, 1].map(|_| sockets.begin_connect(remote).unwrap());
        let seen = hosts.after(300);
        let answers: Vec<_> = seen.iter().filter(|seen| seen.flags == SYN | ACK).collect();
        assert!(answers.len() >= 2, "{seen:?}");
        assert!(answers.iter().all(|seen| seen.ttl == 7), "{seen:?}");
        // Back to the defaults; queued connections get them when they are accepted.
        listener.set_settings(Settings::default()).unwrap();
        let servers = [0, 1].map(|_| listener.try_accept().unwrap().0);
        for server in &servers {
            assert_eq!(server.settings(), Settings::default());
        }
        hosts.after(300);
        for opening in &mut opening {
            let mut client = opening.try_finish().unwrap().unwrap();
            client.try_write(&[1; 10]).unwrap();
            let seen = hosts.after(300);
            assert!(seen.iter().all(|seen| seen.ttl == 64), "{seen:?}");
        }
    });
}

#[test]
fn a_user_timeout_bounds_an_open_from_its_syn_on() {
    Hosts::connected(|mut hosts, _server, _client| {
        let remote = hosts.net.address_of(hosts.ids[0], 7);
        let server = hosts.net.sockets(hosts.ids[0]);
        // The client still knows the server's link-layer address.
        server.remove_address(remote.ip()).unwrap();
        let sockets = hosts.net.sockets(hosts.ids[1]).clone();
        let mut opening = sockets.begin_connect(remote).unwrap();
        let settings = Settings::default().user_timeout(Some(Duration::from_secs(2)));
        opening.set_settings(settings).unwrap();
        let seen = hosts.after(1990);
        let syns = seen.iter().filter(|seen| seen.flags == SYN).count();
        assert!(syns > 1, "{seen:?}");
        assert!(opening.try_finish().unwrap().is_none());
        hosts.after(20);
        assert_eq!(opening.try_finish().unwrap_err(), SocketError::TimedOut);
    });
}

#[test]
fn a_bound_of_unsent_text_holds_for_writes_and_for_readiness_whatever_is_in_flight() {
    const BOUND: usize = 6000;
    let window = 1 << 14;
    Hosts::each(limits().receive_buffer(window as u32), |mut hosts| {
        let [mut server, mut client] = connect(&mut hosts.net, hosts.ids, 7);
        client.set_notsent_lowat(Some(BOUND as u32)).unwrap();
        assert_eq!(client.notsent_lowat(), Some(BOUND as u32));
        assert_eq!(client.set_notsent_lowat(Some(0)), Err(SocketError::Invalid));
        let poller = Poller::new().unwrap();
        let (writable, level) = (Interest::WRITABLE, Trigger::Level);
        poller.register(&client, Token(1), writable, level).unwrap();
        let mut events = Vec::with_capacity(4);
        let mut is_writable = || {
            poller.events(&mut events);
            !events.is_empty()
        };
        // Sent text makes room even if the peer does not read it.
        let mut written = 0;
        while let Ok(len) = client.try_write(&[1; 100_000]) {
            assert!(len <= BOUND);
            written += len;
            hosts.after(300);
        }
        assert_eq!(written, window + BOUND);
        assert!(!is_writable());
        // The poller reports room again when half of the text has left.
        assert_eq!(server.try_read(&mut [0; 4000]), Ok(4000));
        hosts.after(300);
        let room = client.halves().1.room().unwrap();
        assert!((4000 - 1460..=4000).contains(&room), "{room}");
        assert_eq!(is_writable(), 2 * (BOUND - room) < BOUND);
        while server.try_read(&mut [0; 4000]).is_ok() {
            hosts.after(300);
        }
        assert_eq!(client.halves().1.room(), Ok(BOUND));
        assert!(is_writable());
        // Without a bound, a write takes more.
        client.set_notsent_lowat(None).unwrap();
        assert!(client.try_write(&[1; 100_000]).unwrap() > 5 * BOUND);
    });
}

#[test]
fn accepted_and_opened_connections_and_streams_of_units_have_a_bound_of_unsent_text() {
    Hosts::each(limits(), |mut hosts| {
        let listener = hosts.net.sockets(hosts.ids[0]).listen(7, 4).unwrap();
        let tuning = Tuning::default().notsent_lowat(5000);
        listener.set_tuning(tuning).unwrap();
        let remote = hosts.net.address_of(hosts.ids[0], 7);
        let sockets = hosts.net.sockets(hosts.ids[1]).clone();
        let mut opening = sockets.begin_connect(remote).unwrap();
        opening.set_tuning(tuning).unwrap();
        hosts.after(300);
        let mut server = listener.try_accept().unwrap().0;
        let client = opening.try_finish().unwrap().unwrap();
        assert_eq!(server.try_write(&[1; 9000]), Ok(5000));
        let mut client = FramedStream::new(client, Arc::new(Units)).unwrap();
        let too_short = client.get_ref().set_notsent_lowat(Some(4001));
        assert_eq!(too_short, Err(SocketError::Invalid));
        assert_eq!(client.get_ref().notsent_lowat(), Some(5000));
        for _ in 0..5 {
            // One unit, and too little room for another.
            assert_eq!(client.try_write(&[1; 8000]), Ok(4000));
            hosts.after(300);
        }
    });
}

#[test]
fn a_call_that_moves_no_byte_gives_the_stack_nothing_to_do() {
    for variant in Variant::ALL {
        let mut net = Net::new(1);
        let hosts = [variant, Variant::Single];
        let hosts = hosts.map(|variant| net.add(HostConfig::new(variant)).unwrap());
        let [ours, _theirs] = connect(&mut net, hosts, 7);
        let (_reader, mut writer) = ours.split();
        assert_eq!(writer.try_write_more(b"a"), Ok(1));
        net.run_until_idle();
        let nothing = writer.try_write_more(&[]);
        assert_eq!((nothing, net.run_until_idle()), (Ok(0), 0), "{variant}");
        // This is not nothing: it ends the waiting for more.
        assert_eq!(writer.try_write(&[]), Ok(0));
        assert!(net.run_until_idle() > 0, "{variant}");
        assert_eq!(writer.try_write(&[]), Ok(0));
        assert_eq!(net.run_until_idle(), 0, "{variant}");
        writer.reserve(9).unwrap().commit(0).unwrap();
        assert_eq!(net.run_until_idle(), 0, "{variant}");
    }
}
