//! What leaves, when, and when again.

use super::solo::Solo;
use crate::config::Limits;
use crate::digest::Flags;
use crate::effect::Event;
use crate::tcp::{DATA_RETRIES, RTO_INITIAL, RTO_MAX, RTO_MIN, SYN_RETRIES, State};
use crate::time::Duration;

const ACK: Flags = Flags::ACK;
const PSH_ACK: Flags = ACK.with(Flags::PSH);
const FIN_PSH_ACK: Flags = PSH_ACK.with(Flags::FIN);

#[test]
fn a_large_write_leaves_whole_with_its_small_end() {
    let mut solo = Solo::established();
    solo.write(2500);
    assert_eq!(
        solo.sent(),
        [
            (ACK, 1, 1, 1000),
            (ACK, 1001, 1, 1000),
            (PSH_ACK, 2001, 1, 500)
        ]
    );
}

#[test]
fn a_small_write_waits_for_the_small_one_before_it() {
    let mut solo = Solo::established();
    solo.write(10);
    assert_eq!(solo.sent(), [(PSH_ACK, 1, 1, 10)]);
    solo.write(20);
    assert_eq!(solo.sent(), []);
    solo.write(1020);
    assert_eq!(solo.sent(), [(ACK, 11, 1, 1000)]);
    solo.hear(ACK, 1, 11, 0);
    assert_eq!(solo.sent(), [(PSH_ACK, 1011, 1, 10)]);
}

#[test]
fn fin_rides_on_the_last_octets() {
    let mut solo = Solo::established();
    solo.end.written = 1500;
    solo.call(|tcb, cx| {
        tcb.progress(0, 1500, cx);
        tcb.shutdown(cx);
    });
    assert_eq!(
        solo.sent(),
        [(ACK, 1, 1, 1000), (FIN_PSH_ACK, 1001, 1, 500)]
    );
    solo.hear(ACK, 1, 1502, 0);
    assert_eq!(solo.state(), State::FinWait2);
    assert!(solo.end.events.contains(&Event::AllAcknowledged));
}

#[test]
fn frames_longer_than_a_segment_hold_whole_segments() {
    let limits = Limits {
        frame_payload: 4500,
        ..Solo::limits()
    };
    let mut solo = Solo::passive(limits, Solo::syn(Some(1000), None), None);
    solo.hear(ACK, 1, 1, 0);
    solo.sent();
    let before = solo.end.frames.next;
    solo.write(9500);
    assert_eq!(solo.end.frames.next - before, 3);
    let wires = solo.sent();
    assert_eq!(wires.len(), 10);
    assert_eq!(wires[9], (PSH_ACK, 9001, 1, 500));
}

#[test]
fn no_frame_is_numbered_without_credit_and_all_leave_with_it() {
    let limits = Limits {
        tx_slots: 4,
        ..Solo::limits()
    };
    let mut solo = Solo::passive(limits, Solo::syn(Some(1000), None), None);
    solo.hear(ACK, 1, 1, 0);
    solo.write(6000);
    assert!(solo.end.finish.blocked);
    assert_eq!(solo.sent().len(), 4);
    solo.finish();
    assert!(!solo.end.finish.blocked);
    assert_eq!(solo.sent().len(), 3);
}

#[test]
fn what_fills_the_credit_exactly_leaves_with_its_small_end_and_its_fin() {
    let limits = Limits {
        tx_slots: 4,
        ..Solo::limits()
    };
    let mut solo = Solo::passive(limits, Solo::syn(Some(1000), None), None);
    solo.hear(ACK, 1, 1, 0);
    solo.sent();
    solo.end.written = 3500;
    solo.call(|tcb, cx| {
        tcb.progress(0, 3500, cx);
        tcb.shutdown(cx);
    });
    assert!(!solo.end.finish.blocked);
    let sent = solo.sent();
    assert_eq!((sent.len(), sent[3]), (4, (FIN_PSH_ACK, 3001, 1, 500)));
}

#[test]
fn the_quantum_ends_a_turn() {
    let limits = Limits {
        quantum: 2,
        ..Solo::limits()
    };
    let mut solo = Solo::passive(limits, Solo::syn(Some(1000), None), None);
    solo.hear(ACK, 1, 1, 0);
    solo.sent();
    solo.write(5000);
    assert_eq!((solo.sent().len(), solo.end.finish.blocked), (2, true));
    solo.finish();
    solo.finish();
    assert_eq!((solo.sent().len(), solo.end.finish.blocked), (3, false));
}

#[test]
fn octets_return_when_the_frames_that_read_them_are_sent() {
    let mut solo = Solo::established();
    solo.write(2000);
    solo.hear(ACK, 1, 2001, 0);
    assert!(
        solo.end.finish.waits_for_sent,
        "the device has taken nothing yet"
    );
    assert_eq!(solo.tcb().snd.released, 0);
    solo.sent();
    solo.finish();
    assert!(!solo.end.finish.waits_for_sent);
    assert_eq!(solo.tcb().snd.released, 2000);
}

#[test]
fn a_lost_segment_is_sent_again_after_the_timeout_and_then_twice_as_late() {
    let mut solo = Solo::established();
    solo.write(1000);
    let first = solo.sent();
    assert_eq!(solo.wait(), RTO_MIN);
    assert_eq!(solo.sent(), first);
    assert_eq!(solo.wait(), RTO_MIN.times(2));
    assert_eq!(solo.sent(), first);
}

#[test]
fn after_a_timeout_everything_leaves_again_from_the_first_lost_octet() {
    let mut solo = Solo::established();
    solo.write(4000);
    solo.sent();
    solo.wait();
    assert_eq!(solo.sent(), [(ACK, 1, 1, 1000)]);
    solo.hear(ACK, 1, 1001, 0);
    assert_eq!(solo.sent(), [(ACK, 1001, 1, 1000), (ACK, 2001, 1, 1000)]);
    // The rest had arrived.
    solo.hear(ACK, 1, 4001, 0);
    assert_eq!(solo.sent(), []);
}

#[test]
fn the_third_duplicate_sends_the_first_segment_again() {
    let mut solo = Solo::established();
    solo.write(8000);
    solo.sent();
    for _ in 0..2 {
        solo.hear(ACK, 1, 1, 0);
        assert_eq!(solo.sent(), []);
    }
    solo.hear(ACK, 1, 1, 0);
    assert_eq!(solo.sent(), [(ACK, 1, 1, 1000)]);
    // A partial acknowledgment names the next hole.
    solo.hear(ACK, 1, 3001, 0);
    assert_eq!(solo.sent(), [(ACK, 3001, 1, 1000)]);
    solo.hear(ACK, 1, 8001, 0);
    assert_eq!(solo.sent(), []);
}

#[test]
fn a_closed_window_is_probed_with_one_octet_for_as_long_as_it_is_answered() {
    let mut solo = Solo::established();
    solo.wnd = 0;
    solo.hear(ACK, 1, 1, 0);
    solo.write(3000);
    assert_eq!(solo.sent(), []);
    let mut pause = Duration::ZERO;
    for _ in 0..40 {
        let next = solo.wait();
        assert!(next >= pause && next <= RTO_MAX);
        pause = next;
        assert_eq!(solo.sent(), [(ACK, 1, 1, 1)]);
        solo.hear(ACK, 1, 1, 0);
    }
    assert_eq!(pause, RTO_MAX);
    solo.wnd = 30_000;
    solo.hear(ACK, 1, 1, 0);
    assert_eq!(solo.sent().len(), 3);
}

#[test]
fn a_probe_that_nobody_answers_ends_the_connection() {
    let mut solo = Solo::established();
    solo.wnd = 0;
    solo.hear(ACK, 1, 1, 0);
    solo.write(3000);
    for _ in 0..=DATA_RETRIES {
        solo.wait();
    }
    assert!(solo.end.events.contains(&Event::TimedOut));
}

#[test]
fn a_window_smaller_than_a_segment_is_used_only_when_it_is_half_of_the_largest() {
    let mut solo = Solo::established();
    solo.wnd = 900;
    solo.hear(ACK, 1, 1, 0);
    solo.write(3000);
    assert_eq!(solo.sent(), [], "a silly window");
    solo.wait();
    assert_eq!(solo.sent(), [(ACK, 1, 1, 900)], "until the timer overrides");
}

#[test]
fn fin_waits_for_a_window_and_probes_it() {
    let mut solo = Solo::established();
    solo.wnd = 0;
    solo.hear(ACK, 1, 1, 0);
    solo.call(|tcb, cx| tcb.shutdown(cx));
    assert_eq!(solo.sent(), []);
    solo.wait();
    assert_eq!(solo.sent(), [(ACK.with(Flags::FIN), 1, 1, 0)]);
    solo.hear(ACK, 1, 2, 0);
    assert_eq!(solo.state(), State::FinWait2);
}

#[test]
fn an_open_without_an_answer_fails_after_six_retries() {
    let mut solo = Solo::active(Solo::limits());
    let mut pause = RTO_INITIAL;
    for _ in 0..SYN_RETRIES {
        assert_eq!(solo.wait(), pause);
        pause = pause.times(2).min(RTO_MAX);
    }
    assert_eq!(solo.sent().len(), 1 + usize::from(SYN_RETRIES));
    solo.wait();
    assert_eq!(solo.end.events, [Event::TimedOut]);
    assert!(solo.tcb().is_closed());
}

#[test]
fn after_a_lost_syn_one_segment_leaves_first_and_the_timeout_is_three_seconds() {
    let mut solo = Solo::passive(Solo::limits(), Solo::syn(Some(1000), None), None);
    solo.wait();
    solo.hear(ACK, 1, 1, 0);
    solo.sent();
    solo.write(5000);
    assert_eq!(solo.sent(), [(ACK, 1, 1, 1000)]);
    assert_eq!(solo.wait(), Duration::from_secs(3));
}

#[test]
fn after_a_pause_the_window_is_the_initial_one_again() {
    let mut solo = Solo::established();
    let mut una = 0;
    for _ in 0..3 {
        solo.write(una + 30_000);
        while una < solo.end.written {
            let last = solo.sent().last().map_or(0, |s| s.1 + s.3);
            assert_ne!(last, 0);
            una = u64::from(last) - 1;
            solo.hear(ACK, 1, last, 0);
        }
    }
    assert!(solo.tcb().congestion.window() > 20_000);
    solo.now += Duration::from_secs(10);
    solo.write(una + 30_000);
    assert_eq!(solo.sent().len(), 10);
}
