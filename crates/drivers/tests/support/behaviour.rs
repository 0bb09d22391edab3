//! The behaviours that all devices share. Each test gets two joined devices, whatever joins them.

use super::packet::{self, Path, experiment, is_experiment};
use super::{Port, TIMEOUT, named};
use dominoes_drivers::{DeviceError, Frame, RxChecksum, TxChecksum, TxFrame, TxMeta};
use std::net::Ipv4Addr;
use std::thread;
use std::time::{Duration, Instant};

/// A behaviour: its name and its test.
pub type Behaviour = (&'static str, fn(Port, Port));

/// All behaviours.
pub const ALL: &[Behaviour] = &named! {
    frames_arrive_whole_and_in_order
    head_and_payload_are_joined
    prepared_frames_arrive_in_order_among_others
    both_ways_work_at_once
    a_claim_takes_no_more_than_it_may_and_appends
    a_claim_with_nothing_there_returns_at_once
    a_frame_that_can_never_be_sent_is_dropped_and_counted
    merged_frames_keep_their_metadata
    a_wait_ends_when_a_frame_comes
    a_wait_without_frames_ends_in_time
    a_waker_ends_a_wait_early_or_late
    frames_may_be_released_dropped_or_kept
    the_halves_may_go_in_any_order
};

/// Sends all frames, and retries while the device is busy.
fn send_all(port: &mut Port, frames: &[Vec<u8>]) {
    let frames: Vec<_> = frames.iter().map(|bytes| TxFrame::new(bytes)).collect();
    let mut rest = &frames[..];
    let deadline = Instant::now() + TIMEOUT;
    while !rest.is_empty() {
        let taken = port.tx.transmit(rest).expect("the device is up");
        rest = &rest[taken..];
        assert!(Instant::now() < deadline, "the device stays busy");
        thread::yield_now();
    }
}

fn frames(to: &Port, from: &Port, count: u32) -> Vec<Vec<u8>> {
    (0..count)
        .map(|number| experiment(to.mac, from.mac, number, 60 + (number as usize * 97) % 1455))
        .collect()
}

fn frames_arrive_whole_and_in_order(mut left: Port, mut right: Port) {
    let sent = frames(&right, &left, 100);
    send_all(&mut left, &sent);
    let got = right.claim_exactly(100, |frame| is_experiment(frame));
    for (got, sent) in got.iter().zip(&sent) {
        assert_eq!(got.bytes(), sent);
    }
    let bytes: usize = sent.iter().map(Vec::len).sum();
    assert_eq!(
        (left.tx.stats().frames, left.tx.stats().bytes),
        (100, bytes as u64)
    );
    assert!(right.rx.stats().frames >= 100 && right.rx.stats().bytes >= bytes as u64);
}

fn head_and_payload_are_joined(mut left: Port, mut right: Port) {
    let whole = experiment(right.mac, left.mac, 1, 100);
    for cut in [14, 15, 99, 100] {
        let (head, payload) = whole.split_at(cut);
        let frame = TxFrame {
            head,
            payload,
            meta: TxMeta::default(),
        };
        assert_eq!(left.tx.transmit(&[frame]), Ok(1));
        assert_eq!(
            right.claim_exactly(1, |frame| is_experiment(frame))[0].bytes(),
            whole
        );
    }
}

fn prepared_frames_arrive_in_order_among_others(mut left: Port, mut right: Port) {
    // More slots than any device here has memory for.
    const SLOTS: usize = 2000;
    const BATCH: usize = 50;
    let Some(preparer) = left.tx.preparer(SLOTS) else {
        assert_eq!(left.tx.transmit_prepared(0, 1), Ok(0));
        return;
    };
    let sent = frames(&right, &left, SLOTS as u32);
    let other = experiment(right.mac, left.mac, u32::MAX, 60);
    let long = experiment(right.mac, left.mac, 2, left.caps.mtu + 15);
    for round in 0..3 {
        // The two threads alternate in batches. The frame that is prepared first is abandoned.
        thread::scope(|scope| {
            for thread in 0..2 {
                let (preparer, sent, long) = (&*preparer, &sent, &long);
                scope.spawn(move || {
                    for batch in (thread..SLOTS / BATCH).step_by(2) {
                        let first = batch * BATCH;
                        preparer.prepare(first, &[TxFrame::new(long)]);
                        for (at, bytes) in (first..first + BATCH).zip(&sent[first..]) {
                            let (head, payload) = bytes.split_at(14 + at % 40);
                            let frame = TxFrame {
                                head,
                                payload,
                                meta: TxMeta::default(),
                            };
                            preparer.prepare(at, &[frame]);
                            preparer.prepare(at, &[frame]);
                        }
                    }
                });
            }
        });
        // This slot does not exist.
        preparer.prepare(SLOTS, &[TxFrame::new(&other)]);
        let deadline = Instant::now() + TIMEOUT;
        for (batch, sent) in sent.chunks(BATCH).enumerate() {
            send_all(&mut left, std::slice::from_ref(&other));
            let mut taken = 0;
            while taken < BATCH {
                let first = batch * BATCH + taken;
                let more = left.tx.transmit_prepared(first, BATCH - taken);
                taken += more.expect("the device is up");
                assert!(Instant::now() < deadline, "round {round}: it stays busy");
            }
            let got = right.claim_exactly(BATCH + 1, |frame| is_experiment(frame));
            assert_eq!(got[0].bytes(), other);
            for (got, sent) in got[1..].iter().zip(sent) {
                assert_eq!(got.bytes(), sent);
            }
        }
    }
    let before = left.tx.stats();
    preparer.prepare(3, &[TxFrame::new(&long)]);
    // Nothing has been prepared in the neighboring slots since their frames were sent.
    assert_eq!(left.tx.transmit_prepared(2, 3), Ok(3));
    let after = left.tx.stats();
    assert_eq!(
        (after.frames, after.dropped),
        (before.frames, before.dropped + 3)
    );
    assert_eq!(after.frames as usize, 3 * (SLOTS + SLOTS / BATCH));
}

fn both_ways_work_at_once(left: Port, right: Port) {
    let there = frames(&right, &left, 200);
    let back = frames(&left, &right, 200);
    let work = |mut port: Port, send: &[Vec<u8>], expect: &[Vec<u8>]| {
        let mut got = Vec::new();
        for (send, expect) in send.chunks(50).zip(expect.chunks(50)) {
            send_all(&mut port, send);
            got.extend(port.claim_exactly(expect.len(), |frame| is_experiment(frame)));
        }
        assert!(
            got.iter()
                .map(|frame| frame.bytes())
                .eq(expect.iter().map(Vec::as_slice))
        );
        port
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| work(right, &back, &there));
        // The other end must live until this one has received everything.
        let _ports = (
            work(left, &there, &back),
            other.join().expect("the other end succeeds"),
        );
    });
}

fn a_claim_takes_no_more_than_it_may_and_appends(mut left: Port, mut right: Port) {
    let sent = frames(&right, &left, 10);
    send_all(&mut left, &sent);
    let mut got = right.claim_exactly(1, |frame| is_experiment(frame));
    let deadline = Instant::now() + TIMEOUT;
    while got.len() < 10 {
        let before = got.len();
        let claimed = right.rx.claim(2, &mut got).expect("the device is up");
        assert!(claimed <= 2);
        assert_eq!(got.len(), before + claimed);
        got.retain(|frame| is_experiment(frame));
        assert!(Instant::now() < deadline);
    }
    assert!(
        got.iter()
            .map(|frame| frame.bytes())
            .eq(sent.iter().map(Vec::as_slice))
    );
    assert_eq!(right.rx.claim(0, &mut got), Ok(0));
}

fn a_claim_with_nothing_there_returns_at_once(_left: Port, mut right: Port) {
    let begin = Instant::now();
    for _ in 0..10 {
        let mut frames = Vec::new();
        right.rx.claim(32, &mut frames).expect("the device is up");
        assert!(!frames.iter().any(|frame| is_experiment(frame)));
    }
    assert!(begin.elapsed() < TIMEOUT / 2);
}

fn a_frame_that_can_never_be_sent_is_dropped_and_counted(mut left: Port, mut right: Port) {
    let good = experiment(right.mac, left.mac, 1, 60);
    let long = experiment(right.mac, left.mac, 2, left.caps.mtu + 15);
    let outside = TxMeta {
        checksum: TxChecksum::Partial {
            start: 50,
            offset: 9,
        },
        gso: None,
    };
    let batch = [
        TxFrame::new(&good),
        TxFrame::new(&long),
        TxFrame::new(&good[..13]),
        TxFrame {
            meta: outside,
            ..TxFrame::new(&good)
        },
        TxFrame::new(&good),
    ];
    assert_eq!(left.tx.transmit(&batch), Ok(5));
    let stats = left.tx.stats();
    assert_eq!((stats.frames, stats.dropped), (2, 3));
    for frame in right.claim_exactly(2, |frame| is_experiment(frame)) {
        assert_eq!(frame.bytes(), good);
    }
    assert_eq!(left.tx.transmit(&[]), Ok(0));
}

fn merged_frames_keep_their_metadata(mut left: Port, mut right: Port) {
    let path = Path {
        from_mac: left.mac,
        to_mac: right.mac,
        from: (Ipv4Addr::new(198, 18, 0, 1), 1000),
        to: (Ipv4Addr::new(198, 18, 0, 2), 2000),
    };
    let payload: Vec<u8> = (0..40_000u32).map(|at| at as u8).collect();
    let fields = packet::Tcp {
        seq: 1,
        ack: 2,
        flags: packet::ACK,
    };
    let packet = packet::tcp(path, fields, &payload, Some(1448));
    assert_eq!(left.tx.transmit(&[packet.frame()]), Ok(1));
    if left.caps.tso4_max_bytes < packet.frame().len() {
        assert_eq!(left.tx.stats().dropped, 1, "not offered, so not sent");
        return;
    }
    let got = right
        .claim_exactly(1, |frame| packet::parse_tcp(frame).is_some())
        .remove(0);
    assert_eq!(got.len(), packet.frame().len());
    assert_eq!(
        packet::parse_tcp(&got).map(|(_, _, payload)| payload),
        Some(&payload[..])
    );
    assert_eq!(
        got.meta.gso.map(|gso| (gso.kind, gso.size)),
        packet.meta.gso.map(|gso| (gso.kind, gso.size))
    );
    assert_eq!(
        got.meta.checksum,
        RxChecksum::Partial {
            start: 34,
            offset: 16
        }
    );
}

fn a_wait_ends_when_a_frame_comes(mut left: Port, mut right: Port) {
    let bytes = experiment(right.mac, left.mac, 1, 60);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(30));
            send_all(&mut left, std::slice::from_ref(&bytes));
        });
        let mut frames = Vec::new();
        let deadline = Instant::now() + TIMEOUT;
        while !frames.iter().any(|frame: &Frame| is_experiment(frame)) {
            right.rx.wait(Some(TIMEOUT)).expect("the device is up");
            right.rx.claim(32, &mut frames).expect("the device is up");
            assert!(Instant::now() < deadline, "the frame did not end the wait");
        }
    });
    send_all(&mut left, &[bytes]);
    right
        .rx
        .wait(None)
        .expect("a frame that is there ends the wait");
}

fn a_wait_without_frames_ends_in_time(_left: Port, mut right: Port) {
    let begin = Instant::now();
    for _ in 0..3 {
        right
            .rx
            .wait(Some(Duration::from_millis(10)))
            .expect("the device is up");
        right
            .rx
            .wait(Some(Duration::ZERO))
            .expect("the device is up");
    }
    assert!(begin.elapsed() < TIMEOUT / 2);
    assert_eq!(right.rx.stats().wakes, 0);
}

fn a_waker_ends_a_wait_early_or_late(_left: Port, mut right: Port) {
    let waker = right.rx.waker();
    waker.wake();
    waker.clone().wake();
    let until_woken = |right: &mut Port, wakes| {
        let deadline = Instant::now() + TIMEOUT;
        while right.rx.stats().wakes < wakes {
            right.rx.wait(Some(TIMEOUT)).expect("the device is up");
            right
                .rx
                .claim(32, &mut Vec::new())
                .expect("the device is up");
            assert!(Instant::now() < deadline, "the wake did not end the wait");
        }
    };
    until_woken(&mut right, 1);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(30));
            waker.wake();
        });
        until_woken(&mut right, 2);
    });
    right
        .rx
        .wait(Some(Duration::from_millis(1)))
        .expect("the device is up");
    assert_eq!(
        right.rx.stats().wakes,
        2,
        "several wakes before one wait count as one"
    );
}

fn frames_may_be_released_dropped_or_kept(mut left: Port, mut right: Port) {
    let sent = frames(&right, &left, 60);
    let mut kept = Vec::new();
    for round in 0..10 {
        send_all(&mut left, &sent);
        let mut got = right.claim_exactly(60, |frame| is_experiment(frame));
        match round % 3 {
            0 => right.rx.release(&mut got),
            1 => got.clear(),
            _ => kept.append(&mut got),
        }
        assert!(got.is_empty());
    }
    for (at, frame) in kept.iter().enumerate() {
        assert_eq!(
            frame.bytes(),
            sent[at % 60],
            "a frame that was kept has changed"
        );
    }
    kept.reverse();
    right.rx.release(&mut kept);
    assert!(kept.is_empty());
}

fn the_halves_may_go_in_any_order(left: Port, right: Port) {
    let Port {
        rx, mut tx, mac, ..
    } = left;
    drop(rx);
    let mut right = right;
    let bytes = experiment(right.mac, mac, 1, 60);
    assert_eq!(tx.transmit(&[TxFrame::new(&bytes)]), Ok(1));
    assert_eq!(
        right.claim_exactly(1, |frame| is_experiment(frame)).len(),
        1
    );
    drop(tx);
    // In some devices the other end is gone as well.
    let result = right.rx.claim(1, &mut Vec::new());
    assert!(
        matches!(result, Ok(0) | Err(DeviceError::Gone { .. })),
        "{result:?}"
    );
}
