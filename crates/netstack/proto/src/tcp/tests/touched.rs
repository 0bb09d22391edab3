//! The fast path reads and writes only the fields that it lists.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::one_side::OneSide;
use crate::log::effect::{Effect, FrameNumbers};
use crate::log::request::{Flags, Options, Segment};
use crate::tcp::fast_path::{FOR_ACK, FOR_DATA};
use crate::tcp::fields::Fields;
use crate::tcp::{Cx, PendingDelivery, Tcb};

type FieldValues = Vec<(&'static str, u64)>;

/// The fields of a connection.
fn fields(tcb: &Tcb) -> FieldValues {
    let mut all = Vec::new();
    tcb.visit("", &mut |name, value| all.push((name, value)));
    all
}

/// A step of a connection, and whether it is the one that is meant.
type Step<'a> = &'a dyn Fn(&mut Tcb, &mut Cx<'_, Vec<Effect>>) -> bool;

/// The result of a step.
fn outcome(
    one_side: &OneSide,
    tcb: &Tcb,
    step: Step<'_>,
) -> (bool, PendingDelivery, Vec<Effect>, FieldValues) {
    let (mut tcb, mut out) = (tcb.clone(), Vec::new());
    let mut frames = FrameNumbers {
        limit: 200,
        ..FrameNumbers::default()
    };
    let limits = OneSide::limits();
    let mut cx = Cx::new(one_side.now, &mut frames, &limits, &mut out);
    let fast = step(&mut tcb, &mut cx);
    let held = cx.pending_delivery;
    (fast, held, out, fields(&tcb))
}

/// The fields that `seg` touches on the fast path.
fn touched(one_side: &OneSide, seg: &Segment<'_>) -> BTreeSet<&'static str> {
    touched_by(one_side, &|tcb, cx| tcb.try_fast_path(seg, cx))
}

/// The fields that a step writes, and those with a bit that changes its effect on others.
fn touched_by(one_side: &OneSide, step: Step<'_>) -> BTreeSet<&'static str> {
    let tcb = one_side.tcb();
    let before = fields(tcb);
    let (fast, held, out, after) = outcome(one_side, tcb, step);
    assert!(fast);
    let changed = before.iter().zip(&after).filter(|(was, is)| was != is);
    let mut names: BTreeSet<_> = changed.map(|(_, is)| is.0).collect();
    for bit in 0..tcb.bits() {
        let mut other = tcb.clone();
        let name = other.flip(bit).expect("there are so many bits");
        if fields(&other).len() != before.len() {
            // The flip changed the length of a collection, such as the gaps.
            continue;
        }
        let others = |all: &FieldValues| -> FieldValues {
            let all = all.iter().copied();
            all.filter(|(field, _)| *field != name).collect()
        };
        // A value that no real connection has may cause a panic.
        let same = catch_unwind(AssertUnwindSafe(|| {
            let (too, held_too, out_too, after_too) = outcome(one_side, &other, step);
            (too, held_too, out_too) == (true, held, out.clone())
                && others(&after_too) == others(&after)
        }));
        if !same.unwrap_or(false) {
            names.insert(name);
        }
    }
    names
}

fn check(found: &BTreeSet<&'static str>, said: &[&str]) {
    let said: BTreeSet<String> = said
        .iter()
        .map(|name| match name.contains('.') {
            true => (*name).to_owned(),
            false => format!("tcb.{name}"),
        })
        .collect();
    let unnamed: Vec<_> = found.iter().filter(|name| !said.contains(**name)).collect();
    assert!(unnamed.is_empty(), "{unnamed:?} are touched, too");
}

#[test]
fn the_fast_path_touches_no_field_that_it_does_not_name() {
    let mut one_side = OneSide::passive(OneSide::limits(), OneSide::syn(Some(1000), None), Some(5));
    let stamp = |at| Some((at, 1));
    one_side.receive_with(Flags::ACK, 1, 1, 0, stamp(6), Options::None);
    one_side.receive_with(Flags::ACK, 1, 1, 500, stamp(6), Options::None);
    let payload = Segment {
        seq: one_side.tcb().rcv.nxt,
        ack: one_side.tcb().snd.una,
        run_offset: 0,
        len: 500,
        count: 1,
        wnd: 30_000,
        flags: Flags::ACK,
        timestamps: stamp(7),
        ce: false,
        followed: false,
        options: &Options::None,
    };
    let found = touched(&one_side, &payload);
    assert!(
        found.contains("rcv.nxt") && found.contains("snd.una"),
        "{found:?}"
    );
    check(&found, FOR_DATA);

    one_side.write(2_000);
    let first = one_side.tcb().snd.una;
    // The first acknowledgment ends a measurement.
    one_side.receive_with(Flags::ACK, 501, 1001, 0, stamp(7), Options::None);
    assert_eq!(one_side.tcb().snd.una, first + 1000);
    // ... and the next measurement ends after the data acknowledged now.
    one_side.write(4_000);
    let ack = Segment {
        ack: first + 2000,
        len: 0,
        ..payload
    };
    let ack = Segment {
        seq: one_side.tcb().rcv.nxt,
        ..ack
    };
    let found = touched(&one_side, &ack);
    assert!(found.contains("snd.una_offset"), "{found:?}");
    check(&found, FOR_ACK);

    // Receiving is a segment with data. Sending is an acknowledgment, or a write and its frames.
    let data = Segment {
        seq: one_side.tcb().rcv.nxt,
        ack: one_side.tcb().snd.una,
        ..payload
    };
    let receiving = touched(&one_side, &data);
    let written = touched_by(&one_side, &|tcb, cx| {
        tcb.progress(500, 8_000, cx);
        tcb.finish(cx);
        true
    });
    let sending = &found | &written;
    // Of the 10 fields that receiving touches, sending touches 7: each frame has both numbers.
    let shared = "rcv.limit rcv.nxt rcv.offset rcv.ts_recent snd.shift snd.una tcb.expected_bits";
    assert_eq!(&receiving & &sending, shared.split(' ').collect());
    assert_eq!(receiving.len(), 10, "{receiving:?}");
}
