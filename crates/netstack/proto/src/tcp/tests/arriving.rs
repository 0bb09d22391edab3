//! The effects of arriving segments on one side.

use super::end::flow;
use super::one_side::OneSide;
use crate::config::Limits;
use crate::log::effect::{ConnectionEvent, Effect, FrameNumbers};
use crate::log::request::{Flags, Mac, Options, Segment};
use crate::seqnum::SeqNum;
use crate::tcp::{CHALLENGES_PER_SECOND, Cx, DELAYED_ACK, MSL, State, reset_at, reset_for};
use crate::time::Instant;

const ACK: Flags = Flags::ACK;
const SYN_ACK: Flags = Flags::SYN.with(Flags::ACK);
const FIN_ACK: Flags = Flags::FIN.with(Flags::ACK);

#[test]
fn an_active_open_is_established_by_the_syn_ack() {
    let mut one_side = OneSide::active(OneSide::limits());
    assert_eq!(one_side.sent(), [(Flags::SYN, 0, 0, 0)]);
    let options = OneSide::syn(Some(500), None);
    one_side.receive_with(SYN_ACK, 0, 1, 0, None, options);
    assert_eq!(one_side.state(), State::Established);
    assert_eq!(one_side.end.events, [ConnectionEvent::Established]);
    assert_eq!(one_side.sent(), [(ACK, 1, 1, 0)]);
    assert_eq!(one_side.tcb().snd.mss, 500);
}

#[test]
fn a_peer_without_options_gets_536_bytes_and_neither_scaling_nor_timestamps() {
    let mut one_side = OneSide::passive(Limits::default(), Options::None, None);
    let wires = one_side.sent_wires();
    let Options::Syn(options) = wires[0].options else {
        panic!("no options in {wires:?}");
    };
    assert_eq!((options.mss, options.window_scale), (Some(1460), None));
    assert_eq!((wires[0].flags, wires[0].timestamps), (SYN_ACK, None));
    assert_eq!((one_side.tcb().snd.mss, one_side.tcb().rcv.shift), (536, 0));
}

#[test]
fn timestamps_take_twelve_bytes_of_every_segment() {
    let one_side = OneSide::passive(
        Limits::default(),
        OneSide::syn(Some(1460), Some(7)),
        Some(9),
    );
    let tcb = one_side.tcb();
    assert_eq!(
        (tcb.snd.mss, tcb.snd.shift, tcb.rcv.ts_recent),
        (1448, 7, 9)
    );
}

#[test]
fn a_wrong_acknowledgment_in_syn_sent_is_reset_and_the_open_goes_on() {
    let mut one_side = OneSide::active(OneSide::limits());
    one_side.sent();
    one_side.receive(SYN_ACK, 0, 2, 0);
    let again = [(Flags::RST, 2, 0, 0), (Flags::SYN, 0, 0, 0)];
    assert_eq!(one_side.sent(), again);
    assert_eq!(one_side.state(), State::SynSent);
}

#[test]
fn a_reset_of_our_syn_is_a_refusal() {
    let mut one_side = OneSide::active(OneSide::limits());
    one_side.receive(Flags::RST, 0, 0, 0);
    assert_eq!(one_side.state(), State::SynSent, "it acknowledges nothing");
    one_side.receive(Flags::RST.with(ACK), 0, 1, 0);
    assert_eq!(one_side.end.events, [ConnectionEvent::Refused]);
    assert!(one_side.tcb().is_closed());
}

#[test]
fn a_repeated_syn_is_answered_by_the_same_syn_ack() {
    let mut one_side = OneSide::passive(OneSide::limits(), Options::None, None);
    let first = one_side.sent();
    one_side.receive_with(Flags::SYN, 0, 0, 0, None, Options::None);
    assert_eq!(one_side.sent(), first);
}

#[test]
fn a_reset_must_name_the_next_byte_exactly() {
    let mut one_side = OneSide::established();
    one_side.receive(Flags::RST, 2, 0, 0);
    assert_eq!(one_side.sent(), [(ACK, 1, 1, 0)], "a challenge (RFC 5961)");
    one_side.receive(Flags::RST, 40_000, 0, 0);
    assert_eq!(one_side.sent(), []);
    assert_eq!(one_side.state(), State::Established);
    one_side.receive(Flags::RST, 1, 0, 0);
    assert_eq!(
        one_side.end.events,
        [ConnectionEvent::Established, ConnectionEvent::Reset]
    );
    assert!(one_side.tcb().is_closed());
}

#[test]
fn a_syn_in_a_connection_is_challenged_ten_times_a_second() {
    let mut one_side = OneSide::established();
    for _ in 0..50 {
        one_side.receive(Flags::SYN, 100, 0, 0);
    }
    assert_eq!(one_side.sent().len(), usize::from(CHALLENGES_PER_SECOND));
    assert_eq!(one_side.state(), State::Established);
}

#[test]
fn an_acknowledgment_of_what_was_never_sent_is_challenged_and_its_text_dropped() {
    let mut one_side = OneSide::established();
    one_side.receive(ACK, 1, 2, 100);
    assert_eq!(one_side.sent(), [(ACK, 1, 1, 0)]);
    assert_eq!(one_side.tcb().received(), 0);
}

#[test]
fn text_behind_a_gap_is_delivered_at_once_and_acknowledged_as_a_duplicate() {
    let mut one_side = OneSide::established();
    one_side.receive(ACK, 1001, 1, 1000);
    assert_eq!(one_side.sent(), [(ACK, 1, 1, 0)]);
    assert_eq!(one_side.tcb().rcv.deliveries, 1);
    one_side.receive(ACK, 1, 1, 1500);
    assert_eq!(one_side.sent(), [(ACK, 1, 2001, 0)]);
    assert_eq!(one_side.tcb().received(), 2000);
}

#[test]
fn a_fin_behind_a_gap_waits_for_the_text_before_it() {
    let mut one_side = OneSide::established();
    one_side.receive(FIN_ACK, 1001, 1, 0);
    assert_eq!(one_side.state(), State::Established);
    one_side.receive(ACK, 1, 1, 1000);
    assert_eq!(one_side.state(), State::CloseWait);
    assert_eq!(
        one_side.end.events,
        [
            ConnectionEvent::Established,
            ConnectionEvent::PeerFinished { end: 1000 }
        ]
    );
    assert_eq!(one_side.sent().last(), Some(&(ACK, 1, 1002, 0)));
}

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
fn a_closed_window_opens_when_the_application_has_read_two_segments() {
    let mut one_side = OneSide::established();
    one_side.receive(ACK, 1, 1, 1 << 15);
    one_side.sent();
    one_side.read(1999);
    assert_eq!(one_side.sent(), []);
    one_side.read(2000);
    let wires = one_side.sent_wires();
    assert_eq!(wires.len(), 1);
    assert_eq!(wires[0].wnd, 2000);
}

#[test]
fn a_single_segment_is_acknowledged_after_40_ms_and_the_second_at_once() {
    let mut one_side = OneSide::established();
    one_side.receive(ACK, 1, 1, 1000);
    assert_eq!(one_side.sent(), []);
    assert_eq!(one_side.wait(), DELAYED_ACK);
    assert_eq!(one_side.sent(), [(ACK, 1, 1001, 0)]);
    one_side.receive(ACK, 1001, 1, 1000);
    assert_eq!(one_side.sent(), []);
    one_side.receive(ACK, 2001, 1, 10);
    assert_eq!(one_side.sent(), [(ACK, 1, 2011, 0)]);
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
fn an_older_timestamp_is_not_taken_but_answered() {
    let mut one_side =
        OneSide::passive(OneSide::limits(), OneSide::syn(Some(1000), None), Some(50));
    one_side.sent();
    one_side.receive_with(ACK, 1, 1, 0, Some((50, 0)), Options::None);
    one_side.receive_with(ACK, 1, 1, 100, Some((49, 0)), Options::None);
    assert_eq!(one_side.tcb().received(), 0);
    assert_eq!(one_side.sent(), [(ACK, 1, 1, 0)]);
    one_side.receive(ACK, 1, 1, 100);
    assert_eq!((one_side.tcb().received(), one_side.sent().len()), (0, 0));
    one_side.receive_with(Flags::RST, 1, 1, 0, Some((49, 0)), Options::None);
    assert!(one_side.tcb().is_closed(), "a reset needs no timestamp");
}

#[test]
fn time_wait_lasts_two_msl_from_the_last_fin() {
    let mut one_side = OneSide::established();
    one_side.call(|tcb, cx| tcb.shutdown(cx));
    assert_eq!(one_side.sent(), [(FIN_ACK, 1, 1, 0)]);
    one_side.receive(ACK, 1, 2, 0);
    assert_eq!(one_side.state(), State::FinWait2);
    one_side.receive(FIN_ACK, 1, 2, 0);
    assert_eq!(one_side.state(), State::TimeWait);
    assert_eq!(one_side.sent(), [(ACK, 2, 2, 0)]);
    one_side.now += MSL;
    one_side.receive(FIN_ACK, 1, 2, 0);
    assert_eq!(one_side.sent(), [(ACK, 2, 2, 0)]);
    assert_eq!(one_side.wait(), MSL.times(2));
    assert!(one_side.tcb().is_closed());
}

#[test]
fn fins_that_cross_go_through_closing() {
    let mut one_side = OneSide::established();
    one_side.call(|tcb, cx| tcb.shutdown(cx));
    one_side.receive(FIN_ACK, 1, 1, 0);
    assert_eq!(one_side.state(), State::Closing);
    one_side.receive(ACK, 2, 2, 0);
    assert_eq!(one_side.state(), State::TimeWait);
    assert!(
        one_side
            .end
            .events
            .contains(&ConnectionEvent::AllAcknowledged)
    );
}

#[test]
fn time_wait_may_be_reopened_by_a_later_syn_only() {
    let mut one_side = OneSide::established();
    one_side.call(|tcb, cx| tcb.shutdown(cx));
    one_side.receive(FIN_ACK, 1, 2, 0);
    let syn = |seq: SeqNum| Segment {
        seq,
        ack: SeqNum(0),
        len: 0,
        run_offset: 0,
        count: 1,
        wnd: 0,
        flags: Flags::SYN,
        timestamps: None,
        ce: false,
        followed: false,
        options: &Options::None,
    };
    let nxt = one_side.tcb().rcv.nxt;
    assert!(one_side.tcb().may_reopen(&syn(nxt + 1)));
    assert!(!one_side.tcb().may_reopen(&syn(nxt)));
}

#[test]
fn a_segment_without_a_connection_is_reset_as_the_rfc_says() {
    let mut frames = FrameNumbers {
        limit: 2,
        ..FrameNumbers::default()
    };
    let limits = Limits::default();
    let mut out = Vec::new();
    let mut cx = Cx::new(Instant::ZERO, &mut frames, &limits, &mut out);
    let mut seg = Segment {
        seq: SeqNum(u32::MAX),
        ack: SeqNum(77),
        len: 10,
        run_offset: 0,
        count: 1,
        wnd: 0,
        flags: Flags::SYN.with(Flags::FIN),
        timestamps: None,
        ce: false,
        followed: false,
        options: &Options::None,
    };
    let flow = flow(0);
    assert!(reset_for(&seg, flow, Mac::default(), &mut cx));
    seg.flags = ACK;
    assert!(reset_for(&seg, flow, Mac::default(), &mut cx));
    assert!(!reset_for(&seg, flow, Mac::default(), &mut cx), "no room");
    let said: Vec<_> = out
        .iter()
        .map(|e| match e {
            Effect::Transmit(t) => (t.flags, t.seq, t.ack),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        said,
        [
            (Flags::RST.with(ACK), SeqNum(0), SeqNum(11)),
            (Flags::RST, SeqNum(77), SeqNum(0)),
        ]
    );
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
        (t.first_frame, t.flags, t.seq, t.flow),
        (7, Flags::RST, SeqNum(77), flow(0))
    );
}

#[test]
fn text_behind_a_syn_ack_is_taken() {
    let mut one_side = OneSide::active(OneSide::limits());
    one_side.receive_with(SYN_ACK, 0, 1, 500, None, OneSide::syn(None, None));
    assert_eq!(one_side.tcb().received(), 500);
}

#[test]
fn in_a_simultaneous_open_both_syns_leave_again_and_their_windows_are_not_scaled() {
    let mut one_side = OneSide::active(OneSide::limits());
    one_side.sent();
    one_side.receive_with(Flags::SYN, 0, 0, 0, None, OneSide::syn(Some(1000), Some(3)));
    assert_eq!(one_side.state(), State::SynReceived);
    assert_eq!(one_side.sent(), [(SYN_ACK, 0, 1, 0)]);
    one_side.receive_with(SYN_ACK, 0, 1, 0, None, OneSide::syn(Some(1000), Some(3)));
    assert_eq!(one_side.state(), State::Established);
    assert_eq!(one_side.tcb().snd.wnd, 30_000);
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
