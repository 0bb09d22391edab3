//! Counters that users of `netstat -s` look for. All replicas together count an event once.

#![cfg(feature = "testkit")]

use std::net::{Shutdown, SocketAddr};

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::group::{Layout, ReplicatedGroup};
use dominoes_netstack::stats::{PumpStats, StateStats};
use dominoes_netstack::testkit::Variant;
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::Worker as _;
use dominoes_netstack::variants::single::Single;
use dominoes_netstack::{Keepalive, Limits, Settings, SocketError, TcpPolicy, TcpStream};
use dominoes_testkit::link::{Faults, LinkConfig};
use dominoes_testkit::net::{HostConfig, HostId, Net};

use crate::support::{connect, setup};

/// A server and a client.
struct Hosts {
    net: Net,
    ids: [HostId; 2],
}

impl Hosts {
    fn new(variant: Variant, limits: Limits, wire: LinkConfig) -> Hosts {
        println!("{variant}");
        let mut net = Net::new(11);
        let host = HostConfig::new(variant).limits(limits);
        let wired = host.clone().wires(wire.clone(), wire);
        let ids = [host, wired].map(|it| net.add(it).unwrap());
        Hosts { net, ids }
    }

    fn connected(variant: Variant) -> (Hosts, TcpStream, TcpStream) {
        let mut hosts = Hosts::new(variant, limits(), LinkConfig::default());
        let [server, client] = connect(&mut hosts.net, hosts.ids, 7);
        hosts.pass(1000);
        (hosts, server, client)
    }

    fn pass(&mut self, millis: u64) {
        self.net.pass(Duration::from_millis(millis));
    }

    /// The server's and the client's counters.
    fn states(&mut self) -> [StateStats; 2] {
        self.ids.map(|id| self.net.host(id).state_stats())
    }

    fn pumps(&mut self) -> [PumpStats; 2] {
        self.ids.map(|id| self.net.host(id).pump_stats())
    }
}

fn limits() -> Limits {
    Limits::default().connections(16).receive_buffer(1 << 15)
}

/// Threads post counters in any order.
#[test]
fn a_replica_that_is_behind_takes_no_counter_back() {
    let (left, right) = memory::pair(MemoryConfig::default());
    let layout = Layout::default().replicas(2);
    let mut group = ReplicatedGroup::new(setup(1), layout, Box::new(left)).unwrap();
    let mut peer = Single::new(setup(2), Box::new(right)).unwrap();
    let sockets = group.sockets();
    let _listener = sockets.listen(7, 4).unwrap();
    let at = SocketAddr::new([10, 0, 0, 1].into(), 7);
    let _opening = peer.sockets().begin_connect(at).unwrap();
    for millis in 1..=20 {
        let now = Instant::from_millis(millis);
        peer.turn(now);
        group.workers()[0].turn(now);
    }
    for worker in group.workers() {
        worker.post();
        assert_eq!(sockets.stats().state.established, 1);
    }
}

#[test]
fn connections_are_counted_by_how_they_begin_and_end() {
    for variant in Variant::ALL {
        let (mut hosts, server, client) = Hosts::connected(variant);
        let [ours, theirs] = hosts.states();
        assert_eq!((ours.passive_opens(), ours.opened_by_us), (1, 0));
        assert_eq!((theirs.passive_opens(), theirs.opened_by_us), (0, 1));
        for state in [ours, theirs] {
            assert_eq!((state.established, state.currently_established()), (1, 1));
            assert_eq!((state.failed_opens, state.closed), (0, 0));
        }
        // One end may be closed: the other is in CLOSE-WAIT.
        client.shutdown(Shutdown::Write).unwrap();
        hosts.pass(300);
        let [ours, theirs] = hosts.states();
        assert_eq!(ours.currently_established(), 1);
        assert_eq!(theirs.currently_established(), 0);
        server.abort();
        hosts.pass(300);
        let [ours, theirs] = hosts.states();
        assert_eq!((ours.resets_sent, ours.resets_received), (1, 0));
        assert_eq!((theirs.resets_sent, theirs.resets_received), (0, 1));
        for state in [ours, theirs] {
            assert_eq!((state.established, state.currently_established()), (1, 0));
        }
        drop(client);
        hosts.pass(300);

        // This port has no listener.
        let remote = hosts.net.address_of(hosts.ids[0], 8);
        let sockets = hosts.net.sockets(hosts.ids[1]).clone();
        let mut opening = sockets.begin_connect(remote).unwrap();
        hosts.pass(300);
        assert_eq!(opening.try_finish().unwrap_err(), SocketError::Refused);
        let [ours, theirs] = hosts.states();
        assert_eq!((ours.resets_sent, ours.no_connection), (2, 1));
        assert_eq!((theirs.failed_opens, theirs.resets_received), (1, 2));
        assert_eq!((theirs.established, ours.failed_opens), (1, 0));
    }
}

#[test]
fn probes_of_idle_and_closed_peers_are_counted_and_who_does_not_answer() {
    for variant in Variant::ALL {
        let (mut hosts, mut server, mut client) = Hosts::connected(variant);
        while client.try_write(&[1; 10_000]).is_ok() {
            hosts.pass(100);
        }
        hosts.pass(20_000);
        let [_, theirs] = hosts.states();
        assert!((3..20).contains(&theirs.window_probes), "{theirs:?}");
        assert_eq!((theirs.timed_out, theirs.timeouts), (0, 0));
        while server.try_read(&mut [0; 10_000]).is_ok() {
            hosts.pass(300);
        }
        hosts.pass(2000);

        let second = core::time::Duration::from_secs(1);
        let keepalive = Keepalive::default().idle(second).interval(second);
        client.set_keepalive(Some(keepalive.probes(3))).unwrap();
        hosts.pass(10_000);
        let [_, theirs] = hosts.states();
        assert!((5..=10).contains(&theirs.keepalive_probes), "{theirs:?}");
        assert_eq!((theirs.timed_out, theirs.retransmitted), (0, 0));
        // An address that was removed does not answer.
        let answered = theirs.keepalive_probes;
        let address = server.local_addr().unwrap().ip();
        let sockets = hosts.net.sockets(hosts.ids[0]);
        sockets.remove_address(address).unwrap();
        hosts.pass(10_000);
        let [_, theirs] = hosts.states();
        assert!(theirs.keepalive_probes >= answered + 3, "{theirs:?}");
        assert_eq!((theirs.timed_out, theirs.currently_established()), (1, 0));
    }
}

#[test]
fn probes_that_a_policy_asks_for_are_sent_of_either_end_unless_it_says_otherwise() {
    let second = core::time::Duration::from_secs(1);
    let keepalive = Some(Keepalive::default().idle(second).interval(second));
    let limits = limits().tcp(TcpPolicy::default().keepalive(keepalive));
    for variant in Variant::ALL {
        let mut hosts = Hosts::new(variant, limits, LinkConfig::default());
        let [server, client] = connect(&mut hosts.net, hosts.ids, 7);
        assert_eq!([server.keepalive(), client.keepalive()], [keepalive; 2]);
        server.set_keepalive(None).unwrap();
        hosts.pass(4000);
        let probes = hosts.states().map(|state| state.keepalive_probes);
        assert!(probes[0] == 0 && probes[1] > 1, "{probes:?}");

        drop((server, client));
        hosts.pass(300);
        let probes = hosts.states().map(|state| state.keepalive_probes);
        let [server, client] = connect(&mut hosts.net, hosts.ids, 9);
        client.set_settings(Settings::default()).unwrap();
        assert_eq!([server.keepalive(), client.keepalive()], [keepalive, None]);
        hosts.pass(4000);
        let later = hosts.states().map(|state| state.keepalive_probes);
        assert!(later[0] > 1 && later[1] == probes[1], "{later:?}");
    }
}

#[test]
fn what_is_sent_again_is_counted_by_its_reason() {
    for variant in Variant::ALL {
        let faults = Faults::new(0)
            .loss(30_000)
            .duplicate(20_000)
            .reorder(20_000, 5);
        let wire = LinkConfig::default().faults(faults);
        let mut hosts = Hosts::new(variant, Limits::default().connections(16), wire);
        let [mut server, mut client] = connect(&mut hosts.net, hosts.ids, 7);
        let mut read = 0;
        for _ in 0..400 {
            let _ = client.try_write(&[1; 30_000]);
            hosts.pass(20);
            while let Ok(len @ 1..) = server.try_read(&mut [0; 50_000]) {
                read += len;
            }
        }
        let [ours, theirs] = hosts.states();
        assert!(read > 1_000_000, "{read}");
        assert!(
            theirs.sack_recoveries > 0 && theirs.dsacks_received > 0,
            "{theirs:?}"
        );
        let fast = theirs.fast_retransmitted;
        assert!(0 < fast && fast <= theirs.retransmitted, "{theirs:?}");
        assert_eq!(theirs.reno_recoveries, 0);
        assert!(ours.out_of_order > 0 && ours.duplicates > 0, "{ours:?}");
        assert_eq!(ours.retransmitted, 0);
    }
}

#[test]
fn fragments_and_datagrams_that_miss_some_are_counted() {
    for variant in Variant::ALL {
        let mut hosts = Hosts::new(variant, limits(), LinkConfig::default());
        let [server, client] = hosts.ids;
        let mut receiving = hosts.net.sockets(server).bind_udp(7).unwrap();
        let mut sending = hosts.net.sockets(client).bind_udp(0).unwrap();
        let remote = hosts.net.address_of(server, 7);
        hosts.pass(100);
        // The next hop is known from now on.
        sending.try_send_to(&[1; 10], remote).unwrap();
        hosts.pass(100);
        for _ in 0..3 {
            sending.try_send_to(&[1; 4000], remote).unwrap();
        }
        hosts.pass(100);
        let ([_, theirs], [pump, _]) = (hosts.states(), hosts.pumps());
        assert_eq!((theirs.sent_datagrams, theirs.fragments_made), (3, 9));
        assert_eq!((pump.fragments, pump.reassembled), (9, 3));
        assert_eq!(pump.reassembly_timeouts, 0);
        while receiving.try_recv_from(&mut [0; 5000]).is_ok() {}
    }
}

#[test]
fn all_counters_have_names_and_none_is_left_out() {
    let [state, pump] = [
        StateStats::default().named().count(),
        PumpStats::default().named().count(),
    ];
    assert_eq!(size_of::<StateStats>(), 8 * state);
    assert_eq!(size_of::<PumpStats>(), 8 * pump);
}
