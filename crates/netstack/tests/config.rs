//! Configuration types can be built outside the crate, field by field, although fields may be
//! added.

use std::net::IpAddr;

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::config::{CongestionControl, Ecn};
use dominoes_netstack::group as replicated;
use dominoes_netstack::group::Primaries;
use dominoes_netstack::time::Duration;
use dominoes_netstack::variants::single::Single;
use dominoes_netstack::variants::{Setup, locked};
use dominoes_netstack::{
    ConfigError, GroupTuning, Interface, Keepalive, Limits, Recorder, Route, Settings, Stack,
    StackError, TcpPolicy,
};

#[test]
fn limits_are_built_field_by_field() {
    let limits = Limits::default()
        .connections(1)
        .receive_buffer(1 << 11)
        .send_buffer(1 << 12)
        .tx_slots(8)
        .mtu(9000)
        .frame_payload(5)
        .quantum(6)
        .syn_queue(7)
        .resets_per_second(8)
        .challenges_per_second(9)
        .udp_sockets(10)
        .udp_receive_buffer(1 << 13)
        .udp_send_buffer(1 << 14)
        .datagrams_per_frame(11)
        .tcp(
            TcpPolicy::default()
                .congestion(CongestionControl::NewReno)
                .ecn(Ecn::Request)
                .receive_window(3 << 10),
        );
    assert_eq!(limits.check(), Ok(()));
    let numbers = [
        limits.connections,
        limits.receive_buffer,
        limits.tcp.receive_window,
        limits.send_buffer,
        limits.tx_slots,
        u32::from(limits.mtu),
        limits.frame_payload,
        limits.quantum,
        limits.syn_queue,
        limits.resets_per_second,
        limits.challenges_per_second,
        limits.udp_sockets,
        limits.udp_receive_buffer,
        limits.udp_send_buffer,
        limits.datagrams_per_frame,
    ];
    let (powers, window) = ([11, 12, 13, 14].map(|power| 1 << power), 3 << 10);
    let [receive, send, udp_receive, udp_send] = powers;
    assert_eq!(
        numbers,
        [
            1,
            receive,
            window,
            send,
            8,
            9000,
            5,
            6,
            7,
            8,
            9,
            10,
            udp_receive,
            udp_send,
            11
        ]
    );
    assert_eq!(limits.tcp.congestion, CongestionControl::NewReno);
    assert_eq!(limits.tcp.ecn, Ecn::Request);
}

#[test]
fn a_frame_has_up_to_64_datagrams() {
    let check = |datagrams| Limits::default().datagrams_per_frame(datagrams).check();
    assert_eq!((check(1), check(64)), (Ok(()), Ok(())));
    for datagrams in [0, 65] {
        let error = check(datagrams).expect_err("out of range").to_string();
        let remedy = "1 to 64, where 1 gives each datagram a frame of its own";
        assert!(error.contains("datagrams_per_frame"), "{error}");
        assert!(error.contains(remedy), "{error}");
    }
}

#[test]
fn settings_and_keepalive_are_built_field_by_field() {
    let keepalive = Keepalive::default()
        .idle(Duration::from_secs(1))
        .interval(Duration::from_secs(2))
        .probes(3);
    let settings = Settings::default()
        .nodelay(true)
        .keepalive(Some(keepalive))
        .user_timeout(Some(Duration::from_secs(4)))
        .ttl(5)
        .tos(8);
    assert_eq!(keepalive.idle, Duration::from_secs(1));
    assert_eq!(keepalive.interval, Duration::from_secs(2));
    assert_eq!(keepalive.probes.get(), 3);
    assert!(settings.nodelay);
    assert_eq!(settings.keepalive, Some(keepalive));
    assert_eq!(settings.user_timeout, Some(Duration::from_secs(4)));
    assert_eq!((settings.ttl, settings.tos), (5, 8));
}

#[test]
fn layouts_are_built_field_by_field() {
    let layout = locked::LockedLayout::default()
        .workers(3)
        .window(64)
        .hold(locked::Hold::Run)
        .keep_order(true);
    assert_eq!((layout.workers, layout.window), (3, 64));
    assert_eq!((layout.hold, layout.keep_order), (locked::Hold::Run, true));

    let tuning = replicated::GroupTuning::default()
        .always_log(true)
        .revive(false)
        .log(64)
        .frame_chunk(8)
        .ahead_bytes(5)
        .steal_after(6)
        .patience(Duration::from_micros(7))
        .past_hole(9)
        .hole_turns(10)
        .fingerprint_every(11);
    let layout = replicated::Layout::default()
        .replicas(1)
        .replica_slots(2)
        .autoscale(true)
        .primaries(Primaries::Greedy)
        .confirm(true)
        .tuning(tuning);
    let tuning = layout.tuning;
    let switches = [
        layout.autoscale,
        tuning.always_log,
        tuning.revive,
        layout.confirm,
    ];
    assert_eq!(switches, [true, true, false, true]);
    let sizes = [
        layout.replicas,
        layout.replica_slots,
        tuning.log,
        tuning.frame_chunk,
        tuning.ahead_bytes,
        tuning.steal_after,
        tuning.past_hole,
    ];
    assert_eq!(sizes, [1, 2, 64, 8, 5, 6, 9]);
    assert_eq!(layout.primaries, Primaries::Greedy);
    assert_eq!(tuning.patience, Duration::from_micros(7));
    assert_eq!((tuning.hole_turns, tuning.fingerprint_every), (10, 11));
}

/// Each would take all memory, which aborts a process.
#[test]
fn numbers_that_no_machine_holds_are_refused() {
    for many in [1 << 21, 1 << 40, 1 << 62] {
        let tuning = GroupTuning::default;
        for (tuning, field) in [
            (tuning().log(many), "GroupTuning::log"),
            (tuning().frame_chunk(many), "GroupTuning::frame_chunk"),
        ] {
            let (device, _peer) = memory::pair(MemoryConfig::default());
            let builder = Stack::builder("10.0.0.1/24").replicas(2).tuning(tuning);
            match builder.by_hand(device).unwrap_err() {
                StackError::Config(ConfigError::OutOfRange { field: named, .. }) => {
                    assert_eq!(named, field);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_setup_is_built_field_by_field_and_started() -> Result<(), ConfigError> {
    let gateway = IpAddr::from([10, 0, 0, 254]);
    let route = |third| Route {
        network: IpAddr::from([10, 1, third, 0]),
        prefix: 24,
        via: IpAddr::from([10, 0, 0, 253]),
        metric: 0,
    };
    let limits = Limits::default().connections(3).reassembly_bytes(1 << 16);
    let recorder = Recorder::new(Box::new(std::io::sink()), &limits).expect("a sink takes all");
    let setup = Setup::new([10, 0, 0, 1].into(), 24, [1, 2])
        .limits(limits)
        .gateway(gateway)
        .route(route(1))
        .route(route(2))
        .announce(true)
        .recorder(recorder);
    let interface = Interface::new("10.0.0.1/24").gateway(gateway);
    assert_eq!(setup.interface, interface.route(route(1)).route(route(2)));
    assert_eq!(setup.limits.reassembly_bytes, 1 << 16);
    assert!(setup.announce);
    assert!(setup.recorder.is_some());
    let (device, _peer) = memory::pair(MemoryConfig::default().mtu(1400).queue_depth(8));
    let single = Single::new(setup, Box::new(device))?;
    assert_eq!(
        (single.limits().connections, single.limits().mtu),
        (3, 1400)
    );
    Ok(())
}
