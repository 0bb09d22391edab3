//! The calls of the application.

use super::solo::Solo;
use crate::config::Limits;
use crate::digest::Flags;
use crate::effect::{Event, FrameNumbers};
use crate::tcp::{Cx, FIN_WAIT_2, State};

const ACK: Flags = Flags::ACK;
const RST_ACK: Flags = Flags::RST.with(Flags::ACK);
const FIN_ACK: Flags = Flags::FIN.with(Flags::ACK);

#[test]
fn abort_resets_at_once_and_tells_why() {
    let mut solo = Solo::established();
    solo.write(100);
    solo.sent();
    solo.call(|tcb, cx| tcb.abort(cx));
    assert_eq!(solo.sent(), [(RST_ACK, 101, 1, 0)]);
    assert_eq!(solo.end.events, [Event::Established, Event::Aborted]);
    assert!(solo.tcb().is_closed());
}

#[test]
fn a_connection_that_is_over_remembers_nothing_of_what_was_in_flight() {
    let mut solo = Solo::established();
    solo.write(8000);
    assert!(solo.tcb().flight.first().is_some());
    solo.call(|tcb, cx| tcb.abort(cx));
    assert!(solo.tcb().flight.first().is_none());
}

#[test]
fn a_reset_without_credit_waits_and_the_connection_is_not_closed_before() {
    let limits = Limits {
        tx_slots: 4,
        ..Solo::limits()
    };
    let mut solo = Solo::passive(limits, Solo::syn(Some(1000), None), None);
    solo.hear(ACK, 1, 1, 0);
    solo.write(4000);
    solo.call(|tcb, cx| tcb.abort(cx));
    assert!(solo.end.finish.blocked && !solo.tcb().is_closed());
    assert_eq!(solo.sent().len(), 4);
    solo.finish();
    assert_eq!(solo.sent().len(), 1);
    assert!(solo.tcb().is_closed());
}

#[test]
fn abort_in_syn_sent_says_nothing_to_the_peer() {
    let mut solo = Solo::active(Solo::limits());
    solo.sent();
    solo.call(|tcb, cx| tcb.abort(cx));
    assert_eq!(solo.sent(), []);
    assert!(solo.tcb().is_closed());
}

#[test]
fn a_connection_that_nobody_holds_resets_what_arrives() {
    let mut solo = Solo::established();
    solo.call(|tcb, cx| tcb.orphan(cx));
    assert_eq!(solo.sent(), [(FIN_ACK, 1, 1, 0)]);
    solo.hear(ACK, 1, 2, 0);
    solo.hear(ACK, 1, 2, 10);
    assert_eq!(solo.sent(), [(RST_ACK, 2, 1, 0)]);
    assert!(solo.tcb().is_closed());
}

#[test]
fn a_connection_left_with_unread_octets_is_reset() {
    let mut solo = Solo::established();
    solo.hear(ACK, 1, 1, 10);
    solo.call(|tcb, cx| tcb.orphan(cx));
    assert_eq!(solo.sent(), [(RST_ACK, 1, 11, 0)]);
}

#[test]
fn a_connection_that_nobody_holds_waits_a_minute_for_the_peer_s_fin() {
    let mut solo = Solo::established();
    solo.call(|tcb, cx| tcb.orphan(cx));
    solo.hear(ACK, 1, 2, 0);
    assert_eq!(solo.state(), State::FinWait2);
    assert_eq!(solo.wait(), FIN_WAIT_2);
    assert!(solo.tcb().is_closed());
}

#[test]
fn what_is_written_before_the_handshake_leaves_after_it_with_fin() {
    let mut solo = Solo::active(Solo::limits());
    solo.write(100);
    solo.call(|tcb, cx| tcb.shutdown(cx));
    solo.sent();
    let syn_ack = Flags::SYN.with(ACK);
    solo.hear_with(syn_ack, 0, 1, 0, None, Solo::syn(Some(1000), None));
    assert_eq!(solo.state(), State::FinWait1);
    let fin = FIN_ACK.with(Flags::PSH);
    assert_eq!(solo.sent(), [(fin, 1, 1, 100)]);
}

#[test]
fn cursors_never_go_back_and_their_low_halves_are_enough() {
    let mut solo = Solo::established();
    let tcb = solo.end.tcb.as_mut().expect("it has one");
    // As if 4 GiB less 500 octets had passed in both directions.
    let passed = (1u64 << 32) - 500;
    (tcb.rcv.read, tcb.rcv.offset) = (passed, passed + 1000);
    tcb.rcv.deliveries = 1;
    tcb.snd.written = passed;
    tcb.snd.una_offset = passed;
    solo.end.written = passed + 1000;
    let high = passed + 1000;
    let end = tcb.snd.end;
    let mut frames = FrameNumbers::default();
    let limits = Solo::limits();
    let mut out = Vec::new();
    let mut cx = Cx::new(solo.now, &mut frames, &limits, &mut out);
    tcb.progress_low(high as u32, high as u32, &mut cx);
    assert_eq!((tcb.rcv.read, tcb.snd.written), (high, high));
    assert_eq!(tcb.snd.end, end + 1000);
    tcb.progress_low(passed as u32, passed as u32, &mut cx);
    tcb.progress(0, 0, &mut cx);
    assert_eq!((tcb.rcv.read, tcb.snd.written), (high, high));
}
