//! Each stage does its part of the work, and several protocol stages serve one application.

use std::net::SocketAddr;

use dominoes_drivers::memory::{self, MemoryConfig, scripted_with};
use dominoes_netstack::Limits;
use dominoes_netstack::SocketError;
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::pipelined::{Pipeline, PipelinedLayout, StageKind};
use dominoes_netstack::variants::single::Single;
use dominoes_netstack::variants::{Setup, Worker as _};
use dominoes_testkit::{Host, Variant, packet};

const BYTES: usize = 200_000;
const CONNECTIONS: usize = 6;

fn setup(last: u8) -> Setup {
    let limits = Limits::default().connections(64);
    Setup::new([10, 0, 0, last].into(), 24, [1, 2]).limits(limits)
}

/// Byte `at` that end `from` of connection `port` sends.
fn byte(port: u16, from: u8, at: usize) -> u8 {
    ((at as u64 * 0x9e37_79b9) >> 7) as u8 ^ port as u8 ^ from
}

/// Opens connections from `single` to a pipeline of this layout, and moves bytes both ways on each.
fn move_bytes(layout: PipelinedLayout) -> Pipeline {
    let (left, right) = memory::pair(MemoryConfig::default());
    let mut server = Pipeline::new(setup(1), layout, Box::new(left)).unwrap();
    let mut client = Single::new(setup(2), Box::new(right)).unwrap();
    let listener = server.sockets().listen(7, 16).unwrap();
    let to = SocketAddr::new([10, 0, 0, 1].into(), 7);
    let sockets = client.sockets();
    let mut opening: Vec<_> = (0..CONNECTIONS)
        .map(|_| sockets.begin_connect(to).unwrap())
        .collect();
    let mut ends = Vec::new();
    let mut now = Instant::ZERO;
    while ends.len() < 2 * CONNECTIONS {
        now += Duration::from_micros(10);
        client.turn(now);
        server.turn(now);
        opening.retain_mut(|opening| match opening.try_finish().unwrap() {
            Some(stream) => {
                let port = stream.local_addr().unwrap().port();
                ends.push((stream, port, 2));
                false
            }
            None => true,
        });
        while let Ok((stream, remote)) = listener.try_accept() {
            ends.push((stream, remote.port(), 1));
        }
    }
    let mut ends: Vec<_> = ends.into_iter().map(|end| (end, 0, 0)).collect();
    while ends.iter().any(|(_, read, _)| *read < BYTES) {
        now += Duration::from_micros(10);
        assert!(
            now < Instant::ZERO + Duration::from_secs(20),
            "it stands still"
        );
        client.turn(now);
        server.turn(now);
        for ((stream, port, own), read, written) in &mut ends {
            let len = 5000.min(BYTES - *written);
            let bytes: Vec<u8> = (0..len).map(|i| byte(*port, *own, *written + i)).collect();
            match stream.try_write(&bytes) {
                Ok(taken) => *written += taken,
                Err(SocketError::WouldBlock) => {}
                Err(other) => panic!("{other}"),
            }
            let mut buffer = [0; 4096];
            match stream.try_read(&mut buffer) {
                Ok(len) => {
                    for (i, found) in buffer[..len].iter().enumerate() {
                        assert_eq!(*found, byte(*port, 3 - *own, *read + i));
                    }
                    *read += len;
                }
                Err(SocketError::WouldBlock) => {}
                Err(other) => panic!("{other}"),
            }
        }
    }
    assert_eq!(server.effect_stats().diverged, 0);
    server
}

#[test]
fn payload_stays_with_the_data_stages_and_headers_with_the_protocol_stage() {
    let mut server = move_bytes(PipelinedLayout::default().workers(5));
    let stages = server.workers().iter().flat_map(|worker| worker.stages());
    let (mut delivered, mut sent) = (0, 0);
    for stats in stages {
        let effects = stats.effects;
        match stats.stage {
            StageKind::Data(index) => {
                assert!(
                    effects.delivered_bytes > 0,
                    "data stage {index}: {effects:?}"
                );
                assert!(effects.sent_bytes > 0, "data stage {index}: {effects:?}");
                delivered += effects.delivered_bytes;
                sent += effects.sent_bytes;
            }
            other => {
                let payload = effects.delivered_bytes + effects.sent_bytes + effects.prepared;
                assert_eq!(payload, 0, "{other:?}: {effects:?}");
            }
        }
    }
    assert_eq!(
        (delivered, sent),
        ((CONNECTIONS * BYTES) as u64, sent.max(delivered))
    );
}

#[test]
fn several_protocol_stages_share_the_connections() {
    for workers in [1, 2, 6] {
        let mut layout = PipelinedLayout::default().workers(workers).data_stages(2);
        layout = layout.protocol_stages(3);
        let mut server = move_bytes(layout);
        let segments = server.inspect(|replica| replica.stats().segments);
        assert_eq!(segments.len(), 3);
        let busy = segments.iter().filter(|segments| **segments > 100).count();
        assert!(busy >= 2, "{workers} workers: {segments:?}");
        assert_eq!(server.workers().len(), workers);
    }
}

/// The acknowledgment comes after more frames than the interface stage claims in a turn.
#[test]
fn a_timer_does_not_fire_before_frames_that_arrived_earlier() {
    let mac = packet::mac_of([10, 0, 0, 1]);
    let (device, script) = scripted_with(MemoryConfig::default().macs(mac, mac));
    let layout = PipelinedLayout::default().frames(1);
    let mut near = Pipeline::new(setup(1), layout, Box::new(device)).unwrap();
    let far_setup = Setup::new([10, 0, 0, 2].into(), 24, [3, 4]);
    let mut far = Host::new(Variant::Single, far_setup, 1).unwrap();
    let listener = far.sockets().listen(7, 1).unwrap();
    let to = SocketAddr::new([10, 0, 0, 2].into(), 7);
    let mut opening = near.sockets().begin_connect(to).unwrap();
    let mut now = Instant::from_millis(1);
    let send = |far: &Host| {
        let sent = script.take_sent().into_iter();
        sent.for_each(|(frame, _)| far.inject(frame));
    };
    let answer = |far: &Host| {
        far.take_sent()
            .into_iter()
            .for_each(|frame| script.push(frame))
    };
    let mut pass = |near: &mut Pipeline, far: &mut Host| {
        now += Duration::from_millis(1);
        near.turn(now);
        send(far);
        far.turn(now);
        answer(far);
        now
    };
    let mut stream = loop {
        pass(&mut near, &mut far);
        if let Some(stream) = opening.try_finish().unwrap() {
            break stream;
        }
    };
    let _other = loop {
        pass(&mut near, &mut far);
        if let Ok(other) = listener.try_accept() {
            break other;
        }
    };
    for _ in 0..10 {
        assert_eq!(stream.try_write(&[7; 100]), Ok(100));
        for _ in 0..100 {
            pass(&mut near, &mut far);
        }
    }
    assert_eq!(stream.try_write(&[7; 100]), Ok(100));
    for _ in 0..3 {
        near.turn(now);
    }
    send(&far);
    let prepared = near.effect_stats().prepared;
    // Frames of an experimental protocol cause no request.
    let noise = [&mac[..], &[2; 6], &[0x88, 0xb5], &[0; 46]].concat();
    (0..40).for_each(|_| script.push(noise.clone()));
    for _ in 0..100 {
        now += Duration::from_millis(20);
        far.turn(now);
    }
    answer(&far);
    assert!(script.unclaimed() > 40, "the acknowledgment comes last");
    for _ in 0..20 {
        // The other stages finish before the interface stage continues.
        near.workers()[0].turn(now);
        for _ in 0..20 {
            near.workers()[1].turn(now);
            near.workers()[2].turn(now);
        }
        send(&far);
    }
    assert_eq!(script.unclaimed(), 0);
    let stats = near.effect_stats();
    assert_eq!(stats.sent_bytes, 1100);
    assert_eq!(stats.prepared, prepared + 1, "noise has no checksum");
}
