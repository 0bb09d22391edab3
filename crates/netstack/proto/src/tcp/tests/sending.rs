//! Transmission and retransmission.

use super::one_side::OneSide;
use crate::config::Limits;
use crate::log::effect::ConnectionEvent;
use crate::log::request::Flags;
use crate::tcp::{DATA_RETRIES, RTO_INITIAL, RTO_MAX, RTO_MIN, SYN_RETRIES, State};
use crate::time::Duration;

const ACK: Flags = Flags::ACK;
const PSH_ACK: Flags = ACK.with(Flags::PSH);
const FIN_PSH_ACK: Flags = PSH_ACK.with(Flags::FIN);

#[test]
fn a_large_write_leaves_whole_with_its_small_end() {
    let mut one_side = OneSide::established();
    one_side.write(2500);
    assert_eq!(
        one_side.sent(),
        [
            (ACK, 1, 1, 1000),
            (ACK, 1001, 1, 1000),
            (PSH_ACK, 2001, 1, 500)
        ]
    );
}

#[test]
fn a_small_write_waits_for_the_small_one_before_it() {
    let mut one_side = OneSide::established();
    one_side.write(10);
    assert_eq!(one_side.sent(), [(PSH_ACK, 1, 1, 10)]);
    one_side.write(20);
    assert_eq!(one_side.sent(), []);
    one_side.write(1020);
    assert_eq!(one_side.sent(), [(ACK, 11, 1, 1000)]);
    one_side.receive(ACK, 1, 11, 0);
    assert_eq!(one_side.sent(), [(PSH_ACK, 1011, 1, 10)]);
}

#[test]
fn fin_rides_on_the_last_bytes() {
    let mut one_side = OneSide::established();
    one_side.end.written = 1500;
    one_side.call(|tcb, cx| {
        tcb.progress(0, 1500, cx);
        tcb.shutdown(cx);
    });
    assert_eq!(
        one_side.sent(),
        [(ACK, 1, 1, 1000), (FIN_PSH_ACK, 1001, 1, 500)]
    );
    one_side.receive(ACK, 1, 1502, 0);
    assert_eq!(one_side.state(), State::FinWait2);
    assert!(
        one_side
            .end
            .events
            .contains(&ConnectionEvent::AllAcknowledged)
    );
}

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
    assert!(one_side.end.finish.blocked);
    assert_eq!(one_side.sent().len(), 4);
    one_side.finish();
    assert!(!one_side.end.finish.blocked);
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
    assert!(!one_side.end.finish.blocked);
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
        (one_side.sent().len(), one_side.end.finish.blocked),
        (2, true)
    );
    one_side.finish();
    one_side.finish();
    assert_eq!(
        (one_side.sent().len(), one_side.end.finish.blocked),
        (3, false)
    );
}

#[test]
fn bytes_return_when_the_frames_that_read_them_are_sent() {
    let mut one_side = OneSide::established();
    one_side.write(2000);
    one_side.receive(ACK, 1, 2001, 0);
    assert!(
        one_side.end.finish.waits_for_sent,
        "the device has taken nothing yet"
    );
    assert_eq!(one_side.tcb().snd.released, 0);
    one_side.sent();
    one_side.finish();
    assert!(!one_side.end.finish.waits_for_sent);
    assert_eq!(one_side.tcb().snd.released, 2000);
}

#[test]
fn a_lost_segment_is_sent_again_after_the_timeout_and_then_twice_as_late() {
    let mut one_side = OneSide::established();
    one_side.write(1000);
    let first = one_side.sent();
    assert_eq!(one_side.wait(), RTO_MIN);
    assert_eq!(one_side.sent(), first);
    assert_eq!(one_side.wait(), RTO_MIN.times(2));
    assert_eq!(one_side.sent(), first);
}

#[test]
fn after_a_timeout_everything_leaves_again_from_the_first_lost_byte() {
    let mut one_side = OneSide::established();
    one_side.write(4000);
    one_side.sent();
    one_side.wait();
    assert_eq!(one_side.sent(), [(ACK, 1, 1, 1000)]);
    one_side.receive(ACK, 1, 1001, 0);
    assert_eq!(
        one_side.sent(),
        [(ACK, 1001, 1, 1000), (ACK, 2001, 1, 1000)]
    );
    // The rest had arrived.
    one_side.receive(ACK, 1, 4001, 0);
    assert_eq!(one_side.sent(), []);
}

#[test]
fn the_third_duplicate_sends_the_first_segment_again() {
    let mut one_side = OneSide::established();
    one_side.write(8000);
    one_side.sent();
    for _ in 0..2 {
        one_side.receive(ACK, 1, 1, 0);
        assert_eq!(one_side.sent(), []);
    }
    one_side.receive(ACK, 1, 1, 0);
    assert_eq!(one_side.sent(), [(ACK, 1, 1, 1000)]);
    // A partial acknowledgment names the next hole.
    one_side.receive(ACK, 1, 3001, 0);
    assert_eq!(one_side.sent(), [(ACK, 3001, 1, 1000)]);
    one_side.receive(ACK, 1, 8001, 0);
    assert_eq!(one_side.sent(), []);
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
fn a_window_smaller_than_a_segment_is_used_only_when_it_is_half_of_the_largest() {
    let mut one_side = OneSide::established();
    one_side.wnd = 900;
    one_side.receive(ACK, 1, 1, 0);
    one_side.write(3000);
    assert_eq!(one_side.sent(), [], "a silly window");
    one_side.wait();
    assert_eq!(
        one_side.sent(),
        [(ACK, 1, 1, 900)],
        "until the timer overrides"
    );
}

#[test]
fn fin_waits_for_a_window_and_probes_it() {
    let mut one_side = OneSide::established();
    one_side.wnd = 0;
    one_side.receive(ACK, 1, 1, 0);
    one_side.call(|tcb, cx| tcb.shutdown(cx));
    assert_eq!(one_side.sent(), []);
    one_side.wait();
    assert_eq!(one_side.sent(), [(ACK.with(Flags::FIN), 1, 1, 0)]);
    one_side.receive(ACK, 1, 2, 0);
    assert_eq!(one_side.state(), State::FinWait2);
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

#[test]
fn after_a_lost_syn_one_segment_leaves_first_and_the_timeout_is_three_seconds() {
    let mut one_side = OneSide::passive(OneSide::limits(), OneSide::syn(Some(1000), None), None);
    one_side.wait();
    one_side.receive(ACK, 1, 1, 0);
    one_side.sent();
    one_side.write(5000);
    assert_eq!(one_side.sent(), [(ACK, 1, 1, 1000)]);
    assert_eq!(one_side.wait(), Duration::from_secs(3));
}

#[test]
fn after_a_pause_the_window_is_the_initial_one_again() {
    let mut one_side = OneSide::established();
    let mut una = 0;
    for _ in 0..3 {
        one_side.write(una + 30_000);
        while una < one_side.end.written {
            let last = one_side.sent().last().map_or(0, |s| s.1 + s.3);
            assert_ne!(last, 0);
            una = u64::from(last) - 1;
            one_side.receive(ACK, 1, last, 0);
        }
    }
    assert!(one_side.tcb().congestion.window() > 20_000);
    one_side.now += Duration::from_secs(10);
    one_side.write(una + 30_000);
    assert_eq!(one_side.sent().len(), 10);
}
