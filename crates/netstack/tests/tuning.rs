//! Per-connection state: settings, tuning and statistics.

#![cfg(feature = "testkit")]

use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use dominoes_netstack::TcpState as State;
use dominoes_netstack::config::CongestionControl;
use dominoes_netstack::testkit::Variant;
use dominoes_netstack::{
    ConnectionStats, Limits, Settings, SocketError, Stack, TcpListener, TcpStream, Tuning,
};

use crate::support::{LONG, stacks};

const VARIANTS: [Variant; 3] = [Variant::Single, Variant::Locked(1), Variant::Replicated(2)];

/// The server's end and the client's end of a new connection to this listener.
fn connect(listener: &TcpListener, client: &Stack) -> (TcpStream, TcpStream) {
    let ours = client.connect("10.0.0.1:7").unwrap();
    (listener.accept().unwrap().0, ours)
}

/// Polls the statistics until they satisfy `is`.
fn until(stream: &TcpStream, is: impl Fn(&ConnectionStats) -> bool) -> ConnectionStats {
    let mut last = None;
    for _ in 0..LONG.as_millis() {
        match stream.info() {
            Some(stats) if is(&stats) => return stats,
            stats => last = stats,
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("{last:?}");
}

#[test]
fn connections_begin_with_what_their_listener_or_their_open_has() {
    for variant in VARIANTS {
        let [server, client] = stacks(variant);
        let listener = server.listen(7, 4).unwrap();
        let settings = Settings::default().nodelay(true).ttl(9);
        let tuning = Tuning::default().max_segment(600);
        listener.set_settings(settings).unwrap();
        listener.set_tuning(tuning).unwrap();
        assert_eq!(listener.ttl().unwrap(), 9);
        let none = Settings::default().ttl(0);
        assert_eq!(listener.set_settings(none), Err(SocketError::Invalid));

        let mut opening = client
            .sockets()
            .begin_connect("10.0.0.1:7".parse().unwrap())
            .unwrap();
        let reno = Tuning::default().congestion(Some(CongestionControl::NewReno));
        opening.set_settings(settings.tos(0xff)).unwrap();
        opening.set_tuning(reno).unwrap();
        let small = Tuning::default().max_segment(63);
        assert_eq!(opening.set_tuning(small), Err(SocketError::Invalid));
        let ours = opening.finish().unwrap();
        assert_eq!(ours.settings(), settings.tos(0xfc), "ECN has two bits");
        assert_eq!(ours.tuning(), reno);
        let theirs = listener.accept().unwrap().0;
        assert_eq!((theirs.settings(), theirs.tuning()), (settings, tuning));
        // The replicas apply it, and not only the socket.
        assert_eq!(
            until(&theirs, |stats| stats.info.mss == 600).state,
            State::Established
        );
    }
}

#[test]
fn a_receive_buffer_bounds_what_the_peer_may_send_ahead() {
    for variant in VARIANTS {
        let [server, client] = stacks(variant);
        let listener = server.listen(7, 4).unwrap();
        let (mut theirs, mut ours) = connect(&listener, &client);
        let tuning = theirs.tuning().receive_buffer(10_000);
        theirs.set_tuning(tuning).unwrap();
        let writing = thread::spawn(move || {
            ours.write_all(&vec![5; 3_000_000]).unwrap();
            ours
        });
        let mut got = vec![0; 3_000_000];
        theirs.read_exact(&mut got).unwrap();
        let _ours = writing.join().unwrap();
        assert!(got.iter().all(|byte| *byte == 5));
        // An advertised window is never taken back, so it shrinks only as data arrives.
        let stats = until(&theirs, |stats| stats.info.receive_limit == 10_000);
        assert!(stats.info.receive_window <= 10_000, "{stats:?}");
        theirs.set_tuning(tuning.receive_buffer(50_000)).unwrap();
        until(&theirs, |stats| stats.info.receive_limit == 50_000);
    }
}

#[test]
fn a_send_buffer_bounds_what_may_be_written_ahead() {
    let [server, client] = stacks(Variant::Replicated(2));
    let listener = server.listen(7, 4).unwrap();
    let (mut theirs, mut ours) = connect(&listener, &client);
    assert_eq!(ours.set_send_buffer(Some(1023)), Err(SocketError::Invalid));
    ours.set_send_buffer(Some(3000)).unwrap();
    assert_eq!(ours.send_buffer(), Ok(Some(3000)));
    let room = ours.halves().1.room().unwrap();
    assert_eq!(room, 3000);
    assert_eq!(ours.write(&[1; 10_000]).unwrap(), 3000);
    let mut got = [0; 3000];
    theirs.read_exact(&mut got).unwrap();
    ours.set_send_buffer(None).unwrap();
    assert_eq!(ours.send_buffer(), Ok(None));
    assert!(ours.halves().1.room().unwrap() > 60_000);
}

#[test]
fn a_write_that_waits_for_text_to_be_sent_goes_on_when_it_is() {
    for variant in VARIANTS {
        let [server, client] = stacks(variant);
        let listener = server.listen(7, 4).unwrap();
        let tuning = Tuning::default().receive_buffer(10_000);
        listener.set_tuning(tuning).unwrap();
        let (mut theirs, mut ours) = connect(&listener, &client);
        ours.set_notsent_lowat(Some(3000)).unwrap();
        let writing = thread::spawn(move || {
            ours.write_all(&vec![5; 3_000_000]).unwrap();
            ours
        });
        theirs.read_exact(&mut vec![0; 3_000_000]).unwrap();
        writing.join().unwrap();
    }
}

#[test]
fn what_a_connection_says_of_itself_follows_what_it_does() {
    for variant in VARIANTS {
        let [server, client] = stacks(variant);
        let listener = server.listen(7, 4).unwrap();
        let (mut theirs, mut ours) = connect(&listener, &client);
        ours.write_all(&[3; 20_000]).unwrap();
        let stats = until(&ours, |stats| stats.acknowledged == 20_000);
        let info = stats.info;
        assert_eq!((info.sent, info.in_flight, info.unsent), (20_000, 0, 0));
        assert_eq!((info.retries, info.is_recovering), (0, false));
        assert!(
            info.mss > 1000 && info.ssthresh > 0 && stats.cwnd > 0,
            "{stats:?}"
        );
        assert!(info.delivery_rate > 0 && stats.srtt.is_some(), "{stats:?}");
        assert!(
            info.rto >= info.rtt_variance && info.send_window > 0,
            "{stats:?}"
        );
        let unread = until(&theirs, |stats| stats.info.unread == 20_000);
        assert_eq!(unread.received, 20_000);
        assert_eq!(theirs.unread(), Ok(20_000));
        theirs.read_exact(&mut [0; 15_000]).unwrap();
        assert_eq!(theirs.unread(), Ok(5000));
    }
}

#[test]
fn threads_that_change_options_of_one_connection_do_not_undo_each_others() {
    let [server, client] = stacks(Variant::Single);
    let listener = server.listen(7, 4).unwrap();
    let (_theirs, ours) = connect(&listener, &client);
    let clone = ours.try_clone().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 1..=2000 {
                clone.set_linger(Some(Duration::from_secs(turn)));
                clone.set_ttl(1 + turn as u32 % 200).unwrap();
                assert_eq!(clone.linger(), Some(Duration::from_secs(turn)));
                assert_eq!(clone.ttl().unwrap(), 1 + turn as u32 % 200);
            }
        });
        for turn in 1..=2000u16 {
            ours.set_cork(turn % 2 == 0);
            ours.set_tos((turn % 60) as u8 * 4);
            assert_eq!(ours.tuning().cork, turn % 2 == 0);
            assert_eq!(ours.tos(), (turn % 60) as u8 * 4);
        }
    });
    // An invalid value changes nothing.
    let before = (ours.settings(), ours.tuning());
    assert!(ours.set_ttl(0).is_err() && ours.set_ttl(256).is_err());
    let invalid = Err(SocketError::Invalid);
    assert_eq!(ours.set_user_timeout(Some(Duration::ZERO)), invalid);
    assert_eq!(ours.set_settings(Settings::default().ttl(0)), invalid);
    assert_eq!(ours.set_tuning(Tuning::default().max_segment(63)), invalid);
    assert_eq!((ours.settings(), ours.tuning()), before);
}

/// Writes more than the peer's ring holds, while nothing is read.
fn fill(stream: &mut TcpStream) {
    let more = Limits::default().receive_buffer as usize / 2 * 3;
    stream.write_all(&vec![5; more]).unwrap();
}

#[test]
fn a_thread_that_drops_a_lingering_connection_does_not_wait_and_one_may() {
    let [server, client] = stacks(Variant::Replicated(2));
    let listener = server.listen(7, 4).unwrap();
    let (theirs, mut ours) = connect(&listener, &client);
    fill(&mut ours);
    // A drop that waited would take a day.
    ours.set_linger(Some(LONG * 300));
    drop(ours);
    drop(theirs);

    let (mut theirs, mut ours) = connect(&listener, &client);
    // The peer does not read. It is reset when the linger time is over, although the drop returns
    // at once.
    ours.set_linger(Some(Duration::from_millis(50)));
    fill(&mut ours);
    drop(ours);
    let ended = loop {
        thread::sleep(Duration::from_millis(1));
        if let Some(error) = theirs.take_error().unwrap() {
            break SocketError::of(&error);
        }
    };
    assert_eq!(ended, Some(SocketError::Reset));

    let (theirs_again, ours) = connect(&listener, &client);
    theirs = theirs_again;
    (&ours).write_all(b"all of it").unwrap();
    assert_eq!(ours.close_within(LONG), Ok(()));
    let mut all = String::new();
    theirs.read_to_string(&mut all).unwrap();
    assert_eq!(all, "all of it");
}
