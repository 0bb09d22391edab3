//! Transmission and retransmission.

use super::one_side::OneSide;
use crate::config::Limits;
use crate::log::effect::ConnectionEvent;
use crate::log::request::Flags;
use crate::tcp::{DATA_RETRIES, RTO_INITIAL, RTO_MAX, SYN_RETRIES};
use crate::time::Duration;

const ACK: Flags = Flags::ACK;
const PSH_ACK: Flags = ACK.with(Flags::PSH);
const FIN_PSH_ACK: Flags = PSH_ACK.with(Flags::FIN);

#[test]
fn frames_longer_than_a_segment_hold_whole_segments() {
    let limits = Limits {
        frame_payload: 4500,
        ..OneSide::limits()
    };
    let mut one_side = OneSide::passive(limits, OneSide::syn(Some(1000), None), None);
    one_side.receive(ACK, 1, 1, 0);
    one_side.sent();
    let before = one_side.end.frames.next;
    one_side.write(9500);
    assert_eq!(one_side.end.frames.next - before, 3);
    let wires = one_side.sent();
    assert_eq!(wires.len(), 10);
    assert_eq!(wires[9], (PSH_ACK, 9001, 1, 500));
}

#[test]
fn no_frame_is_numbered_without_credit_and_all_leave_with_it() {
    let limits = Limits {
        tx_slots: 4,
        ..OneSide::limits()
    };
    let mut one_side = OneSide::passive(limits, OneSide::syn(Some(1000), None), None);
    one_side.receive(ACK, 1, 1, 0);
    one_side.write(6000);
    assert!(one_side.end.finish.is_blocked());
    assert_eq!(one_side.sent().len(), 4);
    one_side.finish();
    assert!(!one_side.end.finish.is_blocked());
    assert_eq!(one_side.sent().len(), 3);
}

#[test]
fn what_fills_the_credit_exactly_leaves_with_its_small_end_and_its_fin() {
    let limits = Limits {
        tx_slots: 4,
        ..OneSide::limits()
    };
    let mut one_side = OneSide::passive(limits, OneSide::syn(Some(1000), None), None);
    one_side.receive(ACK, 1, 1, 0);
    one_side.sent();
    one_side.end.written = 3500;
    one_side.call(|tcb, cx| {
        tcb.progress(0, 3500, cx);
        tcb.shutdown(cx);
    });
    assert!(!one_side.end.finish.is_blocked());
    let sent = one_side.sent();
    assert_eq!((sent.len(), sent[3]), (4, (FIN_PSH_ACK, 3001, 1, 500)));
}

#[test]
fn the_quantum_ends_a_turn() {
    let limits = Limits {
        quantum: 2,
        ..OneSide::limits()
    };
    let mut one_side = OneSide::passive(limits, OneSide::syn(Some(1000), None), None);
    one_side.receive(ACK, 1, 1, 0);
    one_side.sent();
    one_side.write(5000);
    assert_eq!(
        (one_side.sent().len(), one_side.end.finish.is_blocked()),
        (2, true)
    );
    one_side.finish();
    one_side.finish();
    assert_eq!(
        (one_side.sent().len(), one_side.end.finish.is_blocked()),
        (3, false)
    );
}

#[test]
fn bytes_return_when_the_frames_that_read_them_are_sent() {
    let mut one_side = OneSide::established();
    one_side.write(2000);
    one_side.receive(ACK, 1, 2001, 0);
    assert!(
        one_side.end.finish.waits_for_sent(),
        "the device has taken nothing yet"
    );
    assert_eq!(one_side.tcb().snd.released, 0);
    one_side.sent();
    one_side.finish();
    assert!(!one_side.end.finish.waits_for_sent());
    assert_eq!(one_side.tcb().snd.released, 2000);
}

#[test]
fn a_closed_window_is_probed_with_one_byte_for_as_long_as_it_is_answered() {
    let mut one_side = OneSide::established();
    one_side.wnd = 0;
    one_side.receive(ACK, 1, 1, 0);
    one_side.write(3000);
    assert_eq!(one_side.sent(), []);
    let mut pause = Duration::ZERO;
    for _ in 0..40 {
        let next = one_side.wait();
        assert!(next >= pause && next <= RTO_MAX);
        pause = next;
        assert_eq!(one_side.sent(), [(ACK, 1, 1, 1)]);
        one_side.receive(ACK, 1, 1, 0);
    }
    assert_eq!(pause, RTO_MAX);
    one_side.wnd = 30_000;
    one_side.receive(ACK, 1, 1, 0);
    assert_eq!(one_side.sent().len(), 3);
}

#[test]
fn a_probe_that_nobody_answers_ends_the_connection() {
    let mut one_side = OneSide::established();
    one_side.wnd = 0;
    one_side.receive(ACK, 1, 1, 0);
    one_side.write(3000);
    for _ in 0..=DATA_RETRIES {
        one_side.wait();
    }
    assert!(one_side.end.events.contains(&ConnectionEvent::TimedOut));
}

#[test]
fn an_open_without_an_answer_fails_after_six_retries() {
    let mut one_side = OneSide::active(OneSide::limits());
    let mut pause = RTO_INITIAL;
    for _ in 0..SYN_RETRIES {
        assert_eq!(one_side.wait(), pause);
        pause = pause.times(2).min(RTO_MAX);
    }
    assert_eq!(one_side.sent().len(), 1 + usize::from(SYN_RETRIES));
    one_side.wait();
    assert_eq!(one_side.end.events, [ConnectionEvent::TimedOut]);
    assert!(one_side.tcb().is_closed());
}
