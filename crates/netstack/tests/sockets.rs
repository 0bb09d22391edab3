//! Sockets as an application sees them, over running stacks in memory.

#![cfg(feature = "testkit")]

use std::io::{BufRead, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::thread;
use std::time::Duration;

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::group::{Layout, ReplicatedGroup};
use dominoes_netstack::testkit::Variant;
use dominoes_netstack::variants::single::Single;
use dominoes_netstack::variants::{Setup, VariantKind};
use dominoes_netstack::{
    Builder, Ipv6Config, Keepalive, MembershipError, SocketError, Stack, StackError, TcpStream,
};

use crate::support::{LONG, in_time, stacks};

/// The variants whose threads behave differently.
const VARIANTS: [Variant; 4] = [
    Variant::Single,
    Variant::Locked(2),
    Variant::Replicated(2),
    Variant::Replicated(3),
];

fn server_at(port: u16) -> SocketAddr {
    SocketAddr::new([10, 0, 0, 1].into(), port)
}

#[test]
fn bytes_go_both_ways_and_each_side_reads_the_end_of_the_other() {
    for variant in VARIANTS {
        let [server, client] = stacks(variant);
        let listener = server.listen(7, 4).unwrap();
        let echo = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).unwrap();
            stream.write_all(&all).unwrap();
        });
        let heard = in_time(move || {
            let mut stream = client.connect(server_at(7)).unwrap();
            let sent: Vec<u8> = (0..300_000u32).map(|i| (i * 7 + i / 256) as u8).collect();
            stream.write_all(&sent).unwrap();
            stream.shutdown_write();
            let mut heard = Vec::new();
            stream.read_to_end(&mut heard).unwrap();
            assert_eq!(stream.fill_buf().unwrap(), &[0u8; 0]);
            heard == sent
        });
        assert!(heard, "{variant}");
        echo.join().unwrap();
        assert!(server.compare().is_ok());
    }
}

#[test]
fn a_port_where_nobody_listens_refuses() {
    let [_server, client] = stacks(Variant::Single);
    let refused = in_time(move || client.connect(server_at(9)).err());
    assert_eq!(refused, Some(SocketError::Refused));
}

#[test]
fn an_address_that_nobody_has_is_unreachable() {
    let [_server, client] = stacks(Variant::Single);
    let nobody = SocketAddr::new([10, 0, 0, 77].into(), 7);
    let far = SocketAddr::new([10, 9, 0, 1].into(), 7);
    let (near, far) = in_time(move || (client.connect(nobody).err(), client.connect(far).err()));
    assert_eq!(near, Some(SocketError::Unreachable));
    assert_eq!(far, Some(SocketError::NoRoute));
}

#[test]
fn a_port_is_listened_on_once_until_its_listener_is_dropped() {
    let [server, _client] = stacks(Variant::Single);
    let first = server.listen(7, 1).unwrap();
    assert_eq!(server.listen(7, 1).err(), Some(SocketError::PortTaken));
    drop(first);
    assert!(server.listen(7, 1).is_ok());
}

#[test]
fn shutting_the_stack_down_wakes_every_blocked_call_with_an_error() {
    for variant in VARIANTS.into_iter().take(3) {
        let [server, client] = stacks(variant);
        let listener = server.listen(7, 4).unwrap();
        let (_silent, mut full, client) = in_time(move || {
            let silent = client.connect(server_at(7)).unwrap();
            (silent, client.connect(server_at(7)).unwrap(), client)
        });
        let (mut unread, mut quiet) = (listener.accept().unwrap().0, listener.accept().unwrap().0);
        if unread.peer_addr().unwrap() != full.local_addr().unwrap() {
            std::mem::swap(&mut unread, &mut quiet);
        }
        let reader = thread::spawn(move || quiet.read(&mut [0; 10]).map_err(|e| e.kind()));
        let acceptor =
            thread::spawn(move || listener.accept().err().and_then(|e| SocketError::of(&e)));
        // Nothing reads what this thread writes, so it fills both rings and blocks.
        let writer = thread::spawn(move || {
            loop {
                if let Err(error) = full.write(&[0; 1000]) {
                    return error.kind();
                }
            }
        });
        // The shutdown must end each thread, however far it got.
        thread::sleep(Duration::from_millis(50));
        in_time(move || {
            server.shutdown();
            client.shutdown();
        });
        let down = std::io::ErrorKind::ConnectionAborted;
        assert_eq!(reader.join().unwrap(), Err(down));
        assert_eq!(acceptor.join().unwrap(), Some(SocketError::Down));
        // Its stack shut down second, so it may have seen the other one's end.
        let reset = std::io::ErrorKind::ConnectionReset;
        assert!([down, reset].contains(&writer.join().unwrap()));
    }
}

#[test]
fn many_connections_at_once_are_all_served() {
    for variant in VARIANTS.into_iter().take(3) {
        let [server, client] = stacks(variant);
        let listener = server.listen(7, 64).unwrap();
        let serving = thread::spawn(move || {
            let streams: Vec<_> = (0..40).map(|_| listener.accept().unwrap().0).collect();
            for mut stream in streams {
                let mut all = Vec::new();
                stream.read_to_end(&mut all).unwrap();
                stream.write_all(&all).unwrap();
            }
        });
        let served = in_time(move || {
            let mut streams: Vec<_> = (0..40)
                .map(|_| client.connect(server_at(7)).unwrap())
                .collect();
            for (i, stream) in streams.iter_mut().enumerate() {
                stream.write_all(&vec![i as u8; 5000]).unwrap();
                stream.shutdown_write();
            }
            streams.iter_mut().enumerate().all(|(i, stream)| {
                let mut all = Vec::new();
                stream.read_to_end(&mut all).unwrap();
                all == vec![i as u8; 5000]
            })
        });
        assert!(served);
        serving.join().unwrap();
    }
}

#[test]
fn places_of_closed_connections_are_used_again() {
    const PLACES: u32 = 64;
    let (left, right) = memory::pair(MemoryConfig::default());
    let [server, client] = [("10.0.0.1/24", left), ("10.0.0.2/24", right)].map(|(at, device)| {
        let builder = Stack::builder(at).replicas(2).connections(PLACES);
        builder.start(device).unwrap()
    });
    let listener = server.listen(7, 16).unwrap();
    let rounds = 3 * PLACES as usize;
    let serving = thread::spawn(move || {
        for _ in 0..rounds {
            let (stream, _) = listener.accept().unwrap();
            // Both ends abort, so that no connection stays in TIME-WAIT.
            stream.abort();
        }
    });
    in_time(move || {
        for round in 0..rounds {
            let mut stream = client
                .connect(server_at(7))
                .unwrap_or_else(|e| panic!("round {round}: {e}"));
            assert!(stream.read(&mut [0; 1]).is_err());
        }
    });
    serving.join().unwrap();
}

#[test]
fn settings_out_of_range_are_refused_with_what_would_do() {
    let (left, _) = memory::pair(MemoryConfig::default());
    let error = Stack::builder("10.0.0.1").start(left).unwrap_err();
    assert!(error.to_string().contains("10.0.0.1/24"));
    let (left, _) = memory::pair(MemoryConfig::default());
    let mut setup = Setup::new([10, 0, 0, 1].into(), 24, [1, 2]);
    setup.limits.receive_buffer = 1000;
    let error = Single::new(setup, Box::new(left)).err().unwrap();
    assert!(error.to_string().contains("power of two"), "{error}");
    let (left, _) = memory::pair(MemoryConfig::default());
    let setup = Setup::new([10, 0, 0, 1].into(), 24, [1, 2]);
    let mut layout = Layout::default();
    layout.replicas = 0;
    assert!(ReplicatedGroup::new(setup, layout, Box::new(left)).is_err());
}

#[test]
fn a_variant_that_a_setting_excludes_is_refused_with_what_to_do() {
    type Change = fn(Builder) -> Builder;
    let start = |kind, change: Change| {
        let (device, _) = memory::pair(MemoryConfig::default());
        let started = change(Stack::builder("10.0.0.1/24").variant(kind)).start(device);
        started.map(drop).map_err(|error| error.to_string())
    };
    let refused: [(VariantKind, Change, &str); 8] = [
        (
            VariantKind::Single,
            |b| b.replicas(2),
            "set `replicas` to 1",
        ),
        (VariantKind::Single, |b| b.replica_slots(2), "`replicated`"),
        (VariantKind::Locked, |b| b.replicas_up_to(3), "`replicated`"),
        (VariantKind::Locked, |b| b.replica_slots(2), "`replicated`"),
        (
            VariantKind::LockedMcs,
            |b| b.groups(2),
            "`single` or `replicated`",
        ),
        (
            VariantKind::Locked,
            |b| b.replicas(2).confirm(true),
            "`replicated`",
        ),
        (VariantKind::Locked, |b| b.replicas(57), "1 to 56"),
        (VariantKind::Single, |b| b.replicas(0), "1 to 56"),
    ];
    for (kind, change, what_to_do) in refused {
        let error = start(kind, change).unwrap_err();
        let fields = ["workers", "`replicas` is 0"];
        let names =
            error.contains(&kind.to_string()) || fields.iter().any(|field| error.contains(field));
        assert!(names && error.contains(what_to_do), "{kind}: {error}");
    }
    for kind in VariantKind::ALL {
        assert_eq!(start(*kind, |builder| builder), Ok(()), "{kind}");
    }
    // A program may ask for this on a machine with one core.
    let one = |builder: Builder| builder.replicas_up_to(1);
    assert_eq!(start(VariantKind::Single, one), Ok(()));
    assert_eq!(start(VariantKind::Locked, one), Ok(()));
    let (device, _) = memory::pair(MemoryConfig::default());
    assert!(one(Stack::builder("10.0.0.1/24")).start(device).is_ok());
    let groups = |builder: Builder| builder.groups(2);
    assert_eq!(start(VariantKind::Single, groups), Ok(()));
    assert_eq!(start(VariantKind::Replicated, groups), Ok(()));
}

#[test]
fn what_cannot_be_is_refused_with_an_error_that_names_it() {
    type Change = fn(Builder) -> Builder;
    let start = |change: Change| {
        let (device, _) = memory::pair(MemoryConfig::default());
        let stack = change(Stack::builder("10.0.0.1/24")).start(device);
        stack.map_err(|error| error.to_string())
    };
    let refused: [(Change, &str); 7] = [
        (|b| b.gateway([10, 0, 1, 9].into()), "10.0.1.9"),
        (|b| b.gateway([10, 0, 0, 1].into()), "10.0.0.1"),
        (|b| b.gateway("2001:db8::9".parse().unwrap()), "`ipv6`"),
        (
            |b| {
                let ipv6 = Ipv6Config::default().autoconfigure(false);
                let b = b.address("2001:db8::1/64").ipv6(ipv6);
                b.gateway("2001:db8:1::9".parse().unwrap())
            },
            "2001:db8:1::9",
        ),
        (|b| b.replicas(3).replicas_up_to(2), "`replicas_up_to`"),
        (|b| b.pin(&[99]), "`pin` is 99"),
        (|b| b.pin(&[5000]), "`pin` is 5000"),
    ];
    for (change, named) in refused {
        let error = start(change).unwrap_err();
        assert!(error.contains(named), "{error}");
    }
    let fine: [Change; 4] = [
        |b| b.gateway([10, 0, 0, 9].into()),
        |b| {
            b.address("2001:db8::1/64")
                .gateway("fe80::9".parse().unwrap())
        },
        |b| {
            b.address("2001:db8::1/64")
                .gateway("2001:db8:1::9".parse().unwrap())
        },
        |b| b.replicas(2).replicas_up_to(2),
    ];
    for change in fine {
        let stack = start(change).unwrap();
        let sockets = stack.sockets();
        for text in ["nonsense", "10.0.0.2", ""] {
            let error = sockets.connect(text).unwrap_err();
            assert_eq!(error, SocketError::NoAddress, "{text}");
        }
        let error = sockets.connect("10.0.0.2:0").unwrap_err();
        assert_eq!(error, SocketError::PortZero);
        assert!(error.to_string().contains("port 0"));
        let listener = stack.listen(7, 1).unwrap();
        let late = listener
            .accept_within(Duration::from_millis(1))
            .unwrap_err();
        assert_eq!(late, SocketError::WaitedTooLong);
        assert_eq!(late.kind(), std::io::ErrorKind::WouldBlock, "as on Unix");
        assert!(late.to_string().contains("has waited"));
    }
    let error = "two-locks".parse::<VariantKind>().unwrap_err().to_string();
    for kind in VariantKind::ALL {
        assert!(error.contains(&kind.to_string()), "{error}");
        assert_eq!(kind.to_string().parse(), Ok(*kind));
    }
}

#[test]
fn nobody_joins_a_stack_without_a_log() {
    for variant in VARIANTS.into_iter().take(2) {
        let [server, _client] = stacks(variant);
        let no_log =
            |error: StackError| matches!(error, StackError::Membership(MembershipError::NoLog));
        assert!(server.add_replica().is_err_and(no_log), "{variant}");
        assert!(server.remove_replica().is_err_and(no_log), "{variant}");
        assert_eq!(server.shares().len(), 0);
        let names: Vec<_> = server
            .snapshot()
            .domains
            .iter()
            .map(|one| one.name.clone())
            .collect();
        assert_eq!(names.len(), variant.workers(), "{names:?}");
    }
}

/// Two ends of a connection, the client's first, and their stacks.
fn connected(variant: Variant) -> (TcpStream, TcpStream, [Stack; 2]) {
    let stacks = stacks(variant);
    let listener = stacks[0].listen(7, 4).unwrap();
    let ours = stacks[1].connect(server_at(7)).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    (ours, theirs, stacks)
}

#[test]
fn a_call_with_a_timeout_gives_up_and_one_that_may_not_wait_does_so_at_once() {
    let soon = Some(Duration::from_millis(20));
    let (mut ours, theirs, _stacks) = connected(Variant::Replicated(2));
    ours.set_read_timeout(soon).unwrap();
    let error = ours.read(&mut [0; 10]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    ours.set_write_timeout(soon).unwrap();
    // Nothing is read, so both rings fill.
    let error = loop {
        if let Err(error) = ours.write(&[7; 100_000]) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert_eq!(
        ours.set_read_timeout(Some(Duration::ZERO))
            .map_err(|error| error.kind()),
        Err(ErrorKind::InvalidInput)
    );
    ours.set_read_timeout(None).unwrap();
    ours.set_nonblocking(true).unwrap();
    let error = ours.peek(&mut [0; 10]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    // The stack may have moved bytes since.
    let error = loop {
        if let Err(error) = ours.write(&[7; 100_000]) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    drop(theirs);
}

#[test]
fn an_open_with_a_timeout_gives_up_and_a_listener_that_may_not_wait_says_so() {
    let [server, client] = stacks(Variant::Single);
    let nobody = SocketAddr::new([10, 0, 0, 77].into(), 7);
    let sockets = client.sockets();
    let given_up = sockets.connect_timeout(nobody, Duration::from_millis(20));
    assert_eq!(given_up.err(), Some(SocketError::TimedOut));
    let listener = server.listen(7, 4).unwrap();
    listener.set_nonblocking(true).unwrap();
    let error = listener.accept().unwrap_err();
    assert_eq!(SocketError::of(&error), Some(SocketError::WouldBlock));
    let opened = sockets.connect_timeout(server_at(7), LONG).unwrap();
    listener.set_nonblocking(false).unwrap();
    assert_eq!(listener.accept().unwrap().1, opened.local_addr().unwrap());
}

#[test]
fn what_was_peeked_at_is_read_again_and_parts_are_filled_in_turn() {
    let (mut ours, mut theirs, _stacks) = connected(Variant::Replicated(2));
    let parts = [&b"ab"[..], b"", b"cdefg"].map(IoSlice::new);
    assert_eq!(ours.write_vectored(&parts).unwrap(), 7);
    ours.shutdown(Shutdown::Write).unwrap();
    let mut all = [0; 7];
    while theirs.peek(&mut all).unwrap() < 7 {}
    assert_eq!(&all, b"abcdefg");
    let (mut a, mut b) = ([0; 3], [0; 10]);
    let mut into = [&mut a[..], &mut [], &mut b[..]].map(IoSliceMut::new);
    assert_eq!(theirs.read_vectored(&mut into).unwrap(), 7);
    assert_eq!((&a, &b[..4]), (b"abc", &b"defg"[..]));
    assert_eq!(
        theirs
            .read_vectored(&mut [IoSliceMut::new(&mut a)])
            .unwrap(),
        0
    );
}

#[test]
fn who_shuts_its_reading_side_down_reads_the_end_and_may_write_on() {
    let (mut ours, mut theirs, _stacks) = connected(Variant::Single);
    theirs.write_all(b"never read").unwrap();
    ours.shutdown(Shutdown::Read).unwrap();
    assert_eq!(ours.read(&mut [0; 10]).unwrap(), 0);
    ours.write_all(b"x").unwrap();
    assert_eq!(theirs.read(&mut [0; 10]).unwrap(), 1);
    ours.shutdown(Shutdown::Both).unwrap();
    assert_eq!(theirs.read(&mut [0; 10]).unwrap(), 0);
    assert_eq!(ours.write(b"y").unwrap_err().kind(), ErrorKind::BrokenPipe);
}

#[test]
fn dropping_a_connection_resets_it_waits_for_its_peer_or_does_neither() {
    let (ours, mut theirs, _stacks) = connected(Variant::Replicated(2));
    ours.set_linger(Some(Duration::ZERO));
    drop(ours);
    let error = theirs.read(&mut [0; 10]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);

    let (mut ours, mut theirs, _stacks) = connected(Variant::Replicated(2));
    ours.write_all(&[5; 10_000]).unwrap();
    ours.set_linger(Some(LONG));
    drop(ours);
    let mut all = Vec::new();
    theirs.read_to_end(&mut all).unwrap();
    assert_eq!(all, [5; 10_000]);

    // The peer reads nothing, so lingering ends with its time.
    let (mut ours, theirs, _stacks) = connected(Variant::Single);
    ours.set_nonblocking(true).unwrap();
    while ours.write(&[5; 10_000]).is_ok() {}
    ours.set_linger(Some(Duration::from_millis(20)));
    drop((ours, theirs));
}

#[test]
fn settings_are_kept_and_those_out_of_range_refused() {
    let (ours, _theirs, _stacks) = connected(Variant::Replicated(2));
    assert!(
        !ours.nodelay().unwrap() && ours.keepalive().is_none() && ours.user_timeout().is_none()
    );
    ours.set_nodelay(true).unwrap();
    let often = Keepalive::default().idle(LONG).interval(LONG).probes(3);
    ours.set_keepalive(Some(often)).unwrap();
    ours.set_user_timeout(Some(LONG)).unwrap();
    ours.set_linger(Some(LONG));
    assert_eq!((ours.ttl().unwrap(), ours.tos()), (64, 0));
    for no_ttl in [0, 256] {
        assert!(ours.set_ttl(no_ttl).is_err());
    }
    ours.set_ttl(1).unwrap();
    ours.set_tos(0xff);
    assert_eq!((ours.ttl().unwrap(), ours.tos()), (1, 0xfc));
    assert!(ours.nodelay().unwrap());
    assert_eq!(ours.keepalive(), Some(often));
    assert_eq!(
        (ours.user_timeout(), ours.linger()),
        (Some(LONG), Some(LONG))
    );
    ours.set_linger(None);
    let too_often = Keepalive::default().idle(Duration::ZERO);
    assert_eq!(
        ours.set_keepalive(Some(too_often)),
        Err(SocketError::Invalid)
    );
    assert_eq!(
        ours.set_user_timeout(Some(Duration::ZERO)),
        Err(SocketError::Invalid)
    );
    assert_eq!(ours.keepalive(), Some(often));
}

#[test]
fn an_io_error_keeps_the_typed_one_and_its_number() {
    let error = std::io::Error::from(SocketError::Reset);
    let typed = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<SocketError>());
    assert_eq!(typed.map(|error| error.errno()), Some(104));
    for error in [
        SocketError::Refused,
        SocketError::Reset,
        SocketError::TimedOut,
        SocketError::Aborted,
        SocketError::Unreachable,
        SocketError::PortTaken,
        SocketError::ShutDown,
        SocketError::WouldBlock,
        SocketError::Invalid,
        SocketError::NotOurs,
    ] {
        let theirs = std::io::Error::from_raw_os_error(error.errno());
        assert_eq!(theirs.kind(), error.kind(), "{error}");
    }
}

#[test]
fn datagrams_are_echoed_by_a_thread_that_waits_for_them() {
    for variant in VARIANTS {
        let [server, client] = stacks(variant);
        let theirs = server.bind_udp(7).unwrap();
        let echo = thread::spawn(move || {
            let mut buffer = [0; 9_000];
            while let Ok((len, from)) = theirs.recv_from(&mut buffer) {
                theirs.send_to(&buffer[..len], from).unwrap();
            }
        });
        in_time(move || {
            let mut ours = client.bind_udp(0).unwrap();
            ours.connect(server_at(7)).unwrap();
            let mut buffer = [0; 9_000];
            for i in 0..300_usize {
                let sent: Vec<u8> = (0..i * 29).map(|at| (at * i) as u8).collect();
                ours.send(&sent).unwrap();
                let len = ours.recv(&mut buffer).unwrap();
                assert!(buffer[..len] == sent, "datagram {i}");
            }
            client.shutdown();
            assert_eq!(ours.try_send(b"x"), Err(SocketError::Down));
        });
        server.compare().unwrap();
        server.shutdown();
        echo.join().unwrap();
    }
}

#[test]
fn the_first_datagram_may_be_the_longest() {
    for variant in VARIANTS {
        let [server, client] = stacks(variant);
        let theirs = server.bind_udp(7).unwrap();
        in_time(move || {
            let ours = client.bind_udp(0).unwrap();
            let sent: Vec<u8> = (0..65_507).map(|at| (at * 7 / 3) as u8).collect();
            ours.send_to(&sent, server_at(7)).unwrap();
            let mut received = vec![0; 65_507];
            assert_eq!(theirs.recv(&mut received).unwrap(), sent.len());
            assert!(received == sent);
            client.shutdown();
        });
        server.shutdown();
    }
}

#[test]
fn a_call_for_datagrams_ends_with_its_timeout_and_with_the_socket_that_does_not_block() {
    let [server, _client] = stacks(Variant::Single);
    let socket = server.bind_udp(7).unwrap();
    assert_eq!(
        socket
            .set_read_timeout(Some(Duration::ZERO))
            .map_err(|error| error.kind()),
        Err(ErrorKind::InvalidInput)
    );
    socket
        .set_read_timeout(Some(Duration::from_millis(20)))
        .unwrap();
    let error = socket.recv_from(&mut [0; 10]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    socket.set_read_timeout(None).unwrap();
    socket.set_nonblocking(true).unwrap();
    let error = socket.recv_from(&mut [0; 10]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
}

/// However busy a stack is, a connection that has ended makes room for the next one.
#[test]
fn places_are_freed_while_an_application_opens_a_connection_in_every_turn() {
    use dominoes_netstack::Limits;
    use dominoes_netstack::time::Instant;

    for kind in VariantKind::ALL {
        let (here, there) = memory::pair(MemoryConfig::default());
        let workers = if *kind == VariantKind::Single { 1 } else { 2 };
        let mut ends = [(1, here), (2, there)].map(|(last, device)| {
            let mut setup = Setup::new([10, 0, 0, last].into(), 24, [1, u64::from(last)]);
            setup.limits = Limits::default().connections(8);
            let layout = Layout::default().replicas(workers);
            let variant = kind.build(setup, layout, Box::new(device));
            variant.expect("the bounds are valid")
        });
        let listener = ends[0].sockets().listen(7, 8).unwrap();
        let client = ends[1].sockets();
        let to = "10.0.0.1:7".parse().unwrap();
        let (mut opening, mut served, mut closed) = (Vec::new(), Vec::new(), 0);
        // Too short a time for any timer to help.
        for turn in 0..5000 {
            if let Ok(connecting) = client.begin_connect(to) {
                opening.push(connecting);
            }
            for end in &mut ends {
                for _ in 0..end.worker_count() {
                    end.turn(Instant::from_nanos(turn * 10_000));
                }
            }
            while let Ok((stream, _)) = listener.try_accept() {
                served.push(stream);
            }
            served.retain_mut(|stream: &mut TcpStream| {
                stream.try_read(&mut [0; 1]) == Err(SocketError::WouldBlock)
            });
            opening.retain_mut(|connecting| match connecting.try_finish() {
                Ok(None) => true,
                Ok(Some(_)) => {
                    closed += 1;
                    false
                }
                // The stack has no room at the moment.
                Err(_) => false,
            });
        }
        assert!(closed > 100, "{kind}: {closed} connections");
    }
}
