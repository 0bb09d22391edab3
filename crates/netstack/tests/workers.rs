//! The steps of a group's workers, one by one: how much each does, and for which share.

#![cfg(feature = "testkit")]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use dominoes_drivers::memory::{MemoryConfig, Script, pair, scripted_with};
use dominoes_netstack::Stack;
use dominoes_netstack::config::Limits;
use dominoes_netstack::group::{
    FaultHooks, GroupTuning, Layout, Primaries, ReplicatedGroup, ReplicatedWorker,
};
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::{Setup, Worker as _};
use dominoes_proto::log::effect::Effect;
use dominoes_testkit::packet::{self, ACK, SYN, TO_STACK};

use crate::support::setup;

const NOW: Instant = Instant::from_millis(5);

/// A group, and the far side of its device.
fn group(layout: Layout) -> (ReplicatedGroup, Script) {
    let mac = packet::mac_of([10, 0, 0, 1]);
    let (device, script) = scripted_with(MemoryConfig::default().mtu(65_000).macs(mac, mac));
    // Payload is stored ahead from the second window on.
    let limits = Limits::default().receive_buffer(1 << 16);
    let setup = Setup::new([10, 0, 0, 1].into(), 24, [1, 2]).limits(limits);
    (
        ReplicatedGroup::new(setup, layout, Box::new(device)).unwrap(),
        script,
    )
}

/// The two workers of a group, each driven by itself.
fn workers(tuning: GroupTuning) -> ([ReplicatedWorker; 2], Script) {
    let (group, script) = group(Layout::default().replicas(2).tuning(tuning));
    let workers = group.into_workers().try_into();
    (workers.expect("two workers"), script)
}

/// Lets a worker learn the link-layer address of the segments' sender, so that it can answer.
fn learn(worker: &mut ReplicatedWorker, script: &Script) {
    script.push(packet::arp_reply(TO_STACK));
    worker.pump(NOW);
}

/// Puts segments with `len` bytes of payload into the device, each of another flow. No socket
/// listens, so each becomes a request and is answered with a reset.
fn receive(script: &Script, ports: core::ops::Range<u16>, len: usize) {
    for port in ports {
        let segment = packet::Segment {
            src_port: 1000 + port,
            dst_port: 9,
            seq: 77,
            ack: 5,
            flags: ACK,
            payload: vec![0; len],
            ..packet::Segment::default()
        };
        script.push(segment.frame(TO_STACK));
    }
}

#[test]
fn a_turn_prepares_and_applies_all_that_is_published() {
    let ([first, second], script) = &mut workers(GroupTuning::default());
    learn(first, script);
    receive(script, 0..60, 10);
    assert_eq!(first.pump(NOW), Some(60));
    let published = first.lag();
    assert!(published >= 60, "{published}");

    // The second worker leaves the first worker's share to it, except one request in a turn without
    // other work.
    assert!(second.work() > 0);
    assert_eq!(second.stats().effects.prepared, 0);
    assert_eq!(second.work(), 1);
    assert_eq!(second.stats().effects.prepared, 1);
    first.work();
    assert_eq!((first.lag(), first.stats().effects.prepared), (0, 59));
    second.work();
    assert_eq!((second.lag(), second.stats().effects.prepared), (0, 1));
    assert_eq!(first.replica().stats(), second.replica().stats());
}

#[test]
fn a_worker_with_enough_to_do_prepares_no_more_and_takes_no_frames() {
    let ([first, second], script) = &mut workers(GroupTuning::default().ahead_bytes(2_000));
    learn(first, script);
    while first.work() + second.work() > 0 {}
    receive(script, 0..20, 500);
    assert_eq!(first.pump(NOW), Some(20));
    first.prepare_ahead();
    assert_eq!(first.stats().effects.prepared, 4);
    first.prepare_ahead();
    assert_eq!(
        first.stats().effects.prepared,
        4,
        "nothing was performed since"
    );
    receive(script, 20..30, 500);
    assert_eq!(first.claim(NOW), None);
    assert_eq!(first.pump_in_turn(NOW), 0);
    assert!(second.pump_in_turn(NOW) >= 10, "the other one has time");

    // Performing requests makes room for more.
    while first.work() + second.work() > 0 {}
    receive(script, 30..40, 500);
    assert!(first.pump_in_turn(NOW) >= 10);
}

#[test]
fn a_worker_claims_two_runs_or_half_a_log_at_a_time_and_no_more_before_they_are_parsed() {
    for (log, most) in [(512, 120), (128, 58), (64, 26)] {
        let ([first, second], script) = &mut workers(GroupTuning::default().log(log));
        receive(script, 0..250, 10);
        assert_eq!(first.claim(NOW), Some(most), "a log of {log}");
        assert_eq!(first.claim(NOW), None, "one is not parsed");
        assert_eq!(second.claim(NOW), Some(most));
        assert!(first.parse());
        assert_eq!(first.claim(NOW), Some(most.min(250 - 2 * most)));
    }
}

#[test]
fn a_batch_of_merged_frames_is_a_quarter_of_a_window() {
    let (mut workers, script) = workers(GroupTuning::default());
    receive(&script, 0..4, 10);
    receive(&script, 4..16, 60_000);
    receive(&script, 16..200, 1448);
    let claimed = (0..5).map(|turn| {
        let worker = &mut workers[turn % 2];
        let claimed = worker.claim(NOW);
        worker.parse();
        claimed
    });
    // 60,054 bytes fit four times into 256 KiB, and 1,502 bytes fit 14 times into the rest.
    let claimed = Vec::from_iter(claimed.flatten());
    assert_eq!(claimed, [8, 4, 18, 120, 50]);
}

#[test]
fn a_worker_performs_its_own_batch_as_it_applies_it_and_retains_nothing() {
    let ([first, second], script) = &mut workers(GroupTuning::default());
    learn(first, script);
    while first.work() + second.work() > 0 {}
    receive(script, 0..4, 10);
    assert_eq!(first.pump(NOW), Some(4));
    assert!(first.work() > 0);
    assert_eq!(first.pending_effects().count(), 0);
    assert_eq!(first.stats().effects.frames, 4);
    // Effects of a batch that is another worker's are retained until they are known to be done.
    second.apply();
    assert_eq!(second.pending_effects().count(), 1);
    while second.work() > 0 {}
    assert_eq!(second.pending_effects().count(), 0);
    assert_eq!(second.stats().effects.frames, 0);
}

#[test]
fn frames_of_another_worker_are_left_to_it() {
    let layout = Layout::default()
        .replicas(2)
        .primaries(Primaries::ByPosition);
    let (group, script) = group(layout.tuning(GroupTuning::default().frame_chunk(1)));
    let mut workers = group.into_workers();
    let [first, second] = &mut workers[..] else {
        panic!("two workers");
    };
    learn(first, &script);
    while first.work() + second.work() > 0 {}
    for round in 0..2 {
        receive(&script, 10 * round..10 * round + 10, 10);
        assert_eq!(first.pump(NOW), Some(10));
        while first.work() + second.work() > 0 {}
    }
    let frames = [&*first, &*second].map(|worker| worker.stats().effects.frames);
    assert_eq!(frames, [10, 10]);
    assert_eq!(
        first
            .pending_effects()
            .chain(second.pending_effects())
            .count(),
        0
    );
}

#[test]
fn two_workers_verify_and_copy_each_byte_once_and_each_does_the_batches_that_it_claims() {
    let (group, script) = group(Layout::default().replicas(2));
    let listener = group.sockets().listen(9, 1).unwrap();
    let mut workers = group.into_workers();
    learn(&mut workers[0], &script);
    // Worker `id` claims what comes. Returns the last answer, and what each worker has done. Frames
    // with IP options are not verified and copied in one pass.
    let mut receive = |id: usize, seq: u32, ack, flags, segments: &[&[u8]]| {
        for (i, payload) in (0u32..).zip(segments) {
            let segment = packet::Segment {
                src_port: 1000,
                dst_port: 9,
                seq: seq + 1000 * i,
                ack,
                flags,
                payload: payload.to_vec(),
                ..packet::Segment::default()
            };
            let mut frame = segment.frame(TO_STACK);
            if seq > 100_000 {
                (frame[14], _) = (0x46, frame.splice(34..34, [1; 4]));
                packet::finish(&mut frame, packet::Right::ALL);
            }
            script.push(frame);
        }
        workers[id].pump(NOW);
        while workers[id].work() + workers[1 - id].work() > 0 {}
        let sent = script.take_sent().into_iter();
        let mut answers = sent.filter_map(|(frame, _)| packet::Segment::read(&frame));
        (
            answers.next_back(),
            [0, 1].map(|id| workers[id].stats().effects),
        )
    };
    let (answer, _) = receive(0, 100, 0, SYN, &[&[]]);
    let ack = answer.unwrap().seq + 1;
    let (_, before) = receive(0, 101, ack, ACK, &[&[]]);
    let (mut stream, _) = listener.try_accept().unwrap();

    let mut after = before;
    for round in 0..20 {
        let (seq, payload) = (101 + 10_000 * round, [round as u8; 1000]);
        (_, after) = receive(round as usize % 2, seq, ack, ACK, &[&payload[..]; 10]);
        let mut bytes = [0xff; 10_001];
        assert_eq!(stream.try_read(&mut bytes), Ok(10_000));
        assert!(bytes[..10_000].iter().all(|byte| *byte == round as u8));
    }
    for (before, after) in before.iter().zip(after) {
        assert_eq!(after.prepared - before.prepared, 10, "a run in a batch");
        assert_eq!(after.delivered_bytes, 100_000);
        assert_eq!(after.stored_ahead + after.copied_bytes, 100_000);
        assert!(after.stored_ahead > 30_000, "{}", after.stored_ahead);
        assert_eq!(after.diverged, 0);
    }
}

/// Whenever the second worker looks, also just after a request has come: the first one publishes,
/// applies and performs the request, and builds and sends the answer. If it stops, the second one
/// takes over.
#[test]
fn an_idle_worker_leaves_a_lone_request_and_its_answer_to_the_one_that_claimed_the_last() {
    let (here, there) = pair(MemoryConfig::default());
    let group = ReplicatedGroup::new(setup(1), Layout::default().replicas(2), Box::new(here));
    let group: ReplicatedGroup = group.unwrap();
    let listener = group.sockets().listen(7, 1).unwrap();
    let mut workers = group.into_workers();
    let mut client = Stack::builder("10.0.0.2/24").by_hand(there).unwrap();
    let mut now = NOW;
    let mut opening = client
        .sockets()
        .begin_connect("10.0.0.1:7".parse().unwrap());
    let (mut asks, mut answers) = (None, None);
    while asks.is_none() || answers.is_none() {
        client.turn(now);
        for worker in &mut workers {
            worker.turn(now);
        }
        now += Duration::from_nanos(100);
        asks = asks.or_else(|| opening.as_mut().unwrap().try_finish().unwrap());
        answers = answers.or_else(|| listener.try_accept().ok());
    }
    let (mut asks, (mut answers, _)) = (asks.unwrap(), answers.unwrap());
    asks.set_nodelay(true).unwrap();
    answers.set_nodelay(true).unwrap();
    let share = |worker: &ReplicatedWorker| {
        let effects = worker.stats().effects;
        [
            effects.requests,
            effects.frames,
            effects.deliveries,
            effects.prepared,
        ]
    };
    for _ in 0..20 {
        workers[0].turn(now);
        workers[1].turn(now);
        now += Duration::from_nanos(100);
    }
    let before = [share(&workers[0]), share(&workers[1])];
    for exchange in 0..1000 {
        // The workers do not know when the next request comes.
        for _ in 0..exchange % 50 {
            workers[1].turn(now);
            workers[0].turn(now);
            now += Duration::from_nanos(100);
        }
        asks.try_write(&[7]).unwrap();
        let mut byte = [0; 2];
        while asks.try_read(&mut byte) != Ok(1) {
            client.turn(now);
            workers[1].turn(now);
            workers[0].pump(now);
            workers[1].turn(now);
            workers[0].turn(now);
            if answers.try_read(&mut byte) == Ok(1) {
                answers.try_write(&byte[..1]).unwrap();
            }
            now += Duration::from_nanos(100);
        }
    }
    while workers[0].turn(now) + workers[1].turn(now) > 0 {}
    assert_eq!(share(&workers[1]), before[1], "of the second worker");
    let [requests, frames, ..] = share(&workers[0]);
    assert!(requests >= before[0][0] + 2000 && frames >= before[0][1] + 1000);
    assert_eq!(workers[0].lag() + workers[1].lag(), 0);

    // The first one stops.
    let stopped = now;
    asks.try_write(&[7]).unwrap();
    client.turn(now);
    while answers.try_read(&mut [0; 2]) != Ok(1) {
        workers[1].turn(now);
        now += Duration::from_nanos(100);
    }
    let waited = now.since(stopped);
    assert!(waited < Duration::from_micros(30), "{waited:?}");
}

/// How the first worker stops.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stops {
    /// Before it applies its batch. It stays.
    Stalls,
    /// The same, and it is gone.
    Ends,
    /// At its second effect.
    Panics,
}

/// Panics at its second effect.
struct PanicsSecond(Option<u32>);

impl FaultHooks for PanicsSecond {
    const ACTIVE: bool = true;

    fn before_performing(&mut self, _seq: u64, _effect: &Effect) {
        if let Some(effects) = &mut self.0 {
            *effects += 1;
            if *effects == 2 {
                resume_unwind(Box::new("on purpose"));
            }
        }
    }
}

#[test]
fn whoever_does_a_batch_it_is_done_once_and_the_log_goes_on() {
    let tuning = GroupTuning::default().log(64);
    let scenes = Primaries::ALL.map(|primaries| {
        [Stops::Stalls, Stops::Ends, Stops::Panics].map(|stops| (primaries, stops))
    });
    for (primaries, stops) in scenes.concat() {
        let mac = packet::mac_of([10, 0, 0, 1]);
        let (device, script) = scripted_with(MemoryConfig::default().macs(mac, mac));
        let setup = Setup::new([10, 0, 0, 1].into(), 24, [1, 2]);
        let layout = Layout::default().primaries(primaries).tuning(tuning);
        let hooks = |id| PanicsSecond((id == 0 && stops == Stops::Panics).then_some(0));
        let group = ReplicatedGroup::with_fault_hooks(setup, layout, Box::new(device), hooks);
        let group = group.unwrap();
        let sockets = group.sockets();
        let mut workers = group.into_workers();
        let mut second = workers.pop().unwrap();
        let mut first = workers.pop();
        script.push(packet::arp_reply(TO_STACK));
        second.pump(NOW);
        let settle = |workers: [Option<&mut ReplicatedWorker<PanicsSecond>>; 2]| {
            let mut workers = Vec::from_iter(workers.into_iter().flatten());
            while workers
                .iter_mut()
                .map(|worker| worker.turn(NOW))
                .sum::<usize>()
                > 0
            {}
        };
        settle([None, Some(&mut second)]);

        // A batch with frames, and one of a command.
        let worker = first.as_mut().unwrap();
        receive(&script, 0..4, 10);
        assert_eq!(worker.claim(NOW), Some(4));
        assert!(worker.parse());
        let bound = sockets.bind_udp(7).unwrap();
        worker.publish(NOW);
        match stops {
            Stops::Stalls => {}
            Stops::Ends => first = None,
            Stops::Panics => {
                let work = AssertUnwindSafe(|| while worker.work() > 0 {});
                let panicked = catch_unwind(work).is_err();
                assert!(panicked || primaries != Primaries::ByPublisher);
                first = None;
            }
        }
        let mut resets = 0;
        for micros in 0..1000 {
            second.turn(NOW + Duration::from_micros(micros));
        }
        let count = |script: &Script| {
            let sent = script.take_sent().into_iter();
            let resets = sent.filter_map(|(frame, _)| packet::Segment::read(&frame));
            resets.count()
        };
        resets += count(&script);
        assert_eq!(resets, 4, "{primaries:?}, {stops:?}");
        assert_eq!(
            second.pending_effects().count(),
            0,
            "{primaries:?}, {stops:?}"
        );

        // Every slot of the log is used several times. A worker that stalls takes part again.
        drop(bound);
        for round in 0..20 {
            // The number of resets in a second is limited.
            let later = NOW + Duration::from_millis(1000 * u64::from(round + 1));
            receive(&script, 20 * round..20 * round + 20, 10);
            for _ in 0..10 {
                second.turn(later);
                if let Some(first) = &mut first {
                    first.turn(later);
                }
            }
            resets += count(&script);
        }
        assert_eq!(resets, 404, "{primaries:?}, {stops:?}");
        assert!(sockets.bind_udp(7).is_ok(), "{primaries:?}, {stops:?}");
        for worker in first.iter().chain([&second]) {
            assert_eq!(
                worker.stats().effects.diverged,
                0,
                "{primaries:?}, {stops:?}"
            );
        }
    }
}

#[test]
fn a_socket_is_free_again_though_a_replica_is_gone() {
    let mac = packet::mac_of([10, 0, 0, 1]);
    let (device, _script) = scripted_with(MemoryConfig::default().macs(mac, mac));
    let mut setup = Setup::new([10, 0, 0, 1].into(), 24, [1, 2]);
    setup.limits.udp_sockets = 1;
    let layout = Layout::default().tuning(GroupTuning::default().always_log(true));
    let group: ReplicatedGroup = ReplicatedGroup::new(setup, layout, Box::new(device)).unwrap();
    let sockets = group.sockets();
    let mut workers = group.into_workers();
    workers.truncate(1);
    for port in 1..10 {
        for _ in 0..20 {
            workers[0].turn(NOW);
        }
        let socket = sockets.bind_udp(port);
        assert!(socket.is_ok(), "{port}: {socket:?}");
        workers[0].turn(NOW);
    }
}

#[test]
fn a_worker_looks_again_while_another_may_send_frames() {
    let ([first, second], script) = &mut workers(GroupTuning::default());
    learn(first, script);
    while first.work() + second.work() > 0 {}
    receive(script, 0..4, 10);
    assert_eq!(first.pump(NOW), Some(4));
    first.prepare_ahead();
    for worker in [&mut *first, &mut *second] {
        while worker.apply() {}
        worker.perform_all();
    }
    assert!(first.waits_for_others(), "no reset is sent");
    assert_eq!(second.send(), Some(4));
    assert!(!first.waits_for_others());
}

#[test]
fn a_parked_worker_takes_no_frames() {
    let (mut group, script) = group(Layout::default().replicas(2).replica_slots(2));
    group.park();
    while group.turn(NOW) > 0 {}
    receive(&script, 0..10, 10);
    let [first, second] = group.workers() else {
        panic!("two workers");
    };
    assert_eq!((second.claim(NOW), second.pump(NOW)), (None, None));
    assert_eq!(first.claim(NOW), Some(10));
}

#[test]
fn fingerprints_of_replicas_are_compared_at_every_position_where_both_posted() {
    let tuning = GroupTuning::default().fingerprint_every(16);
    let (mut group, script) = group(Layout::default().replicas(2).tuning(tuning));
    assert_eq!(group.compare().unwrap(), 0);
    script.push(packet::arp_reply(TO_STACK));
    while group.turn(NOW) > 0 {}
    receive(&script, 0..200, 10);
    while group.turn(NOW) > 0 {}
    // A worker keeps the last 64 fingerprints.
    let compared = group.compare().unwrap();
    assert!((12..=64).contains(&compared), "{compared}");
}

#[test]
fn fields_of_the_tuning_that_take_any_value_take_the_least_and_the_greatest() {
    let greatest = GroupTuning::default()
        .ahead_bytes(usize::MAX)
        .steal_after(usize::MAX)
        .patience(Duration::from_nanos(u64::MAX))
        .past_hole(usize::MAX)
        .hole_turns(u32::MAX);
    let least = GroupTuning::default()
        .ahead_bytes(0)
        .steal_after(0)
        .patience(Duration::ZERO)
        .past_hole(0)
        .hole_turns(0);
    for tuning in [greatest, least] {
        let (mut group, script) = group(Layout::default().replicas(2).tuning(tuning));
        script.push(packet::arp_reply(TO_STACK));
        group.turn(NOW);
        receive(&script, 0..60, 10);
        for _ in 0..100 {
            group.turn(NOW);
        }
        let sent = script.take_sent().into_iter();
        let resets = sent.filter_map(|(frame, _)| packet::Segment::read(&frame));
        assert_eq!(resets.count(), 60, "{tuning:?}");
    }
}
