//! The calls of the application.

use super::one_side::OneSide;
use crate::config::Limits;
use crate::log::effect::{ConnectionEvent, FrameNumbers};
use crate::log::request::Flags;
use crate::tcp::{Cx, State};

const ACK: Flags = Flags::ACK;
const RST_ACK: Flags = Flags::RST.with(Flags::ACK);
const FIN_ACK: Flags = Flags::FIN.with(Flags::ACK);

#[test]
fn abort_resets_at_once_and_reports_why() {
    let mut one_side = OneSide::established();
    one_side.write(100);
    one_side.sent();
    one_side.call(|tcb, cx| tcb.abort(cx));
    assert_eq!(one_side.sent(), [(RST_ACK, 101, 1, 0)]);
    assert_eq!(
        one_side.end.events,
        [ConnectionEvent::Established, ConnectionEvent::Aborted]
    );
    assert!(one_side.tcb().is_closed());
}

#[test]
fn a_connection_that_is_over_remembers_nothing_of_what_was_in_flight() {
    let mut one_side = OneSide::established();
    one_side.write(8000);
    assert!(one_side.tcb().scoreboard.first().is_some());
    one_side.call(|tcb, cx| tcb.abort(cx));
    assert!(one_side.tcb().scoreboard.first().is_none());
}

#[test]
fn a_reset_without_credit_waits_and_the_connection_is_not_closed_before() {
    let limits = Limits {
        tx_slots: 4,
        ..OneSide::limits()
    };
    let mut one_side = OneSide::passive(limits, OneSide::syn(Some(1000), None), None);
    one_side.receive(ACK, 1, 1, 0);
    one_side.write(4000);
    one_side.call(|tcb, cx| tcb.abort(cx));
    assert!(one_side.end.finish.is_blocked() && !one_side.tcb().is_closed());
    assert_eq!(one_side.sent().len(), 4);
    one_side.finish();
    assert_eq!(one_side.sent().len(), 1);
    assert!(one_side.tcb().is_closed());
}

#[test]
fn what_is_written_before_the_handshake_leaves_after_it_with_fin() {
    let mut one_side = OneSide::active(OneSide::limits());
    one_side.write(100);
    one_side.call(|tcb, cx| tcb.shutdown(cx));
    one_side.sent();
    let syn_ack = Flags::SYN.with(ACK);
    one_side.receive_with(syn_ack, 0, 1, 0, None, OneSide::syn(Some(1000), None));
    assert_eq!(one_side.state(), State::FinWait1);
    let fin = FIN_ACK.with(Flags::PSH);
    assert_eq!(one_side.sent(), [(fin, 1, 1, 100)]);
}

#[test]
fn cursors_never_go_back_and_their_low_halves_are_enough() {
    let mut one_side = OneSide::established();
    let tcb = one_side.end.tcb.as_mut().expect("it has one");
    // As if 4 GiB minus 500 bytes had passed in both directions.
    let passed = (1u64 << 32) - 500;
    (tcb.rcv.read, tcb.rcv.offset) = (passed, passed + 1000);
    tcb.rcv.deliveries = 1;
    tcb.snd.written = passed;
    tcb.snd.una_offset = passed;
    one_side.end.written = passed + 1000;
    let high = passed + 1000;
    let end = tcb.snd.end;
    let mut frames = FrameNumbers::default();
    let limits = OneSide::limits();
    let mut out = Vec::new();
    let mut cx = Cx::new(one_side.now, &mut frames, &limits, &mut out);
    tcb.progress_low(high as u32, high as u32, &mut cx);
    assert_eq!((tcb.rcv.read, tcb.snd.written), (high, high));
    assert_eq!(tcb.snd.end, end + 1000);
    tcb.progress_low(passed as u32, passed as u32, &mut cx);
    tcb.progress(0, 0, &mut cx);
    assert_eq!((tcb.rcv.read, tcb.snd.written), (high, high));
}
