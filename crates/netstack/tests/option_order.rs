//! Options take effect in the order of the calls, between the bytes written before and after them
//! (RFC 9293 section 3.9.1.8), and from the first segment on.

#![cfg(feature = "testkit")]

use std::cell::RefCell;
use std::rc::Rc;

use dominoes_netstack::testkit::Variant;
use dominoes_netstack::time::Duration;
use dominoes_netstack::{Limits, Settings, TcpStream, WriteMark};
use dominoes_testkit::net::{HostConfig, HostId, Net};
use dominoes_testkit::packet::Family;

use crate::support::connect;

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

/// A server and a client, and what they send.
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
                // Until IPv6 addresses are known to be unique.
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

    /// What was sent in so many milliseconds.
    fn after(&mut self, millis: u64) -> Vec<Seen> {
        self.net.pass(Duration::from_millis(millis));
        self.seen.take()
    }

    /// Lengths, hops and TOS of the segments with text that were sent.
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
            // Its segments are on their way when these are called.
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

#[test]
fn what_is_marked_to_be_followed_waits_for_the_next_write() {
    Hosts::connected(|mut hosts, _server, mut client| {
        client.try_write_marked(&[1; 100], WriteMark::More).unwrap();
        client.try_write_marked(&[1; 100], WriteMark::More).unwrap();
        assert_eq!(hosts.text_after(50), []);
        client.try_write(&[2; 50]).unwrap();
        assert_eq!(hosts.text_after(50), [(250, 64, 0)]);
        client.try_write(&[3; 40]).unwrap();
        client.try_write_marked(&[1; 20], WriteMark::More).unwrap();
        assert_eq!(hosts.text_after(50), [(40, 64, 0)]);
        client.shutdown_write();
        assert_eq!(hosts.text_after(50), [(20, 64, 0)]);
    });
}

#[test]
fn the_end_of_a_record_waits_for_nothing() {
    Hosts::connected(|mut hosts, _server, mut client| {
        client.set_cork(true);
        client.try_write_marked(&[1; 10], WriteMark::End).unwrap();
        client.try_write_marked(&[2; 20], WriteMark::End).unwrap();
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
    // The second SYN finds the SYN queue full, and is answered with a cookie.
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
        // Back to the defaults, which those in the queue learn when they are accepted.
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
