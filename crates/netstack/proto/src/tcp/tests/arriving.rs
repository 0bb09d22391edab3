//! The effects of arriving segments on one side.

use super::end::flow;
use super::one_side::OneSide;
use crate::config::Limits;
use crate::log::effect::{Effect, FrameNumbers};
use crate::log::request::{Flags, Mac, Options, Segment};
use crate::seqnum::SeqNum;
use crate::tcp::{Cx, DELAYED_ACK, State, reset_at, reset_for};
use crate::time::Instant;

const ACK: Flags = Flags::ACK;
const FIN_ACK: Flags = Flags::FIN.with(Flags::ACK);

#[test]
fn text_beyond_the_ring_is_cut_off_and_its_fin_with_it() {
    let mut one_side = OneSide::established();
    one_side.receive(FIN_ACK, 1, 1, 40_000);
    assert_eq!(one_side.tcb().received(), 1 << 15);
    assert_eq!(one_side.state(), State::Established);
    let wires = one_side.sent_wires();
    assert_eq!(wires.last().map(|w| w.wnd), Some(0));
    one_side.receive(FIN_ACK, 32_769, 1, 0);
    assert_eq!(one_side.state(), State::CloseWait, "a FIN needs no room");
}

#[test]
fn text_that_more_follows_is_acknowledged_with_that_or_after_40_ms() {
    let mut one_side = OneSide::established();
    for (seq, followed) in [(1, true), (8001, true), (16_001, false)] {
        one_side.receive_run(seq, 8, 1000, followed);
        let sent: &[_] = if followed {
            &[]
        } else {
            &[(ACK, 1, 24_001, 0)]
        };
        assert_eq!(one_side.sent(), sent);
    }
    one_side.receive_run(24_001, 2, 1000, true);
    assert_eq!(one_side.sent(), []);
    assert_eq!(one_side.wait(), DELAYED_ACK);
    assert_eq!(one_side.sent(), [(ACK, 1, 26_001, 0)]);
}

#[test]
fn a_segment_without_a_connection_is_not_reset_without_room() {
    let (mut frames, mut out) = (FrameNumbers::default(), Vec::new());
    let limits = Limits::default();
    let mut cx = Cx::new(Instant::ZERO, &mut frames, &limits, &mut out);
    let seg = Segment {
        seq: SeqNum(u32::MAX),
        ack: SeqNum(77),
        len: 10,
        run_offset: 0,
        count: 1,
        wnd: 0,
        flags: ACK,
        timestamps: None,
        ce: false,
        followed: false,
        options: &Options::None,
    };
    assert!(!reset_for(&seg, flow(0), Mac::default(), &mut cx));
    assert!(out.is_empty());
}

#[test]
fn a_reset_that_our_own_mistake_asks_for_leaves_if_there_is_room_and_no_limit_holds_it() {
    let mut frames = FrameNumbers {
        next: 7,
        limit: 8,
        ..FrameNumbers::default()
    };
    let limits = Limits {
        resets_per_second: 0,
        ..Limits::default()
    };
    let mut out = Vec::new();
    let mut cx = Cx::new(Instant::ZERO, &mut frames, &limits, &mut out);
    assert!(reset_at(SeqNum(77), flow(0), Mac::default(), &mut cx));
    assert!(!reset_at(SeqNum(77), flow(0), Mac::default(), &mut cx));
    assert_eq!(frames.next, 8);
    let [Effect::Transmit(t)] = out.as_slice() else {
        panic!("{out:?}");
    };
    assert_eq!(
        (t.first_frame, t.flags, t.seq, t.common.flow),
        (7, Flags::RST, SeqNum(77), flow(0))
    );
}

#[test]
fn nothing_counts_behind_a_fin_and_no_fin_before_what_arrived() {
    let mut one_side = OneSide::established();
    one_side.receive(FIN_ACK, 501, 1, 500);
    one_side.receive(ACK, 901, 1, 500);
    one_side.receive(ACK, 1, 1, 500);
    assert_eq!(one_side.tcb().received(), 1000);
    assert_eq!(one_side.state(), State::CloseWait);

    let mut one_side = OneSide::established();
    one_side.receive(ACK, 501, 1, 500);
    one_side.receive(FIN_ACK, 101, 1, 100);
    one_side.receive(ACK, 1, 1, 500);
    assert_eq!(one_side.tcb().received(), 1000);
    assert_eq!(one_side.state(), State::Established);
}

#[test]
fn an_acknowledgment_stands_within_a_window_that_was_taken_back() {
    let mut one_side = OneSide::established();
    one_side.write(8000);
    one_side.sent();
    one_side.wnd = 500;
    one_side.receive(ACK, 1, 1001, 2000);
    assert_eq!(one_side.sent(), [(ACK, 1501, 2001, 0)]);
}
