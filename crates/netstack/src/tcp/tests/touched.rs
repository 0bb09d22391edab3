//! What the short road reads and writes of a connection is what it says.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::solo::Solo;
use crate::digest::{Flags, Options, Segment};
use crate::effect::{Effect, FrameNumbers};
use crate::tcp::predict::{FOR_ACK, FOR_TEXT};
use crate::tcp::walk::Walk;
use crate::tcp::{Cx, Held, Tcb};

type Fields = Vec<(&'static str, u64)>;

/// What a connection consists of.
fn fields(tcb: &Tcb) -> Fields {
    let mut all = Vec::new();
    tcb.walk("", &mut |name, value| all.push((name, value)));
    all
}

/// What comes of `seg`, on the short road.
fn outcome(solo: &Solo, tcb: &Tcb, seg: &Segment<'_>) -> (bool, Held, Vec<Effect>, Fields) {
    let (mut tcb, mut out) = (tcb.clone(), Vec::new());
    let mut frames = FrameNumbers {
        limit: 200,
        ..FrameNumbers::default()
    };
    let limits = Solo::limits();
    let mut cx = Cx::new(solo.now, &mut frames, &limits, &mut out);
    let predicted = tcb.predicted(seg, &mut cx);
    let held = cx.held;
    (predicted, held, out, fields(&tcb))
}

/// Fields that are written, and those of which some bit changes what comes of `seg` besides the field itself.
fn touched(solo: &Solo, seg: &Segment<'_>) -> BTreeSet<&'static str> {
    let tcb = solo.tcb();
    let before = fields(tcb);
    let (predicted, held, out, after) = outcome(solo, tcb, seg);
    assert!(predicted);
    let changed = before.iter().zip(&after).filter(|(was, is)| was != is);
    let mut names: BTreeSet<_> = changed.map(|(_, is)| is.0).collect();
    for bit in 0..tcb.bits() {
        let mut other = tcb.clone();
        let name = other.flip(bit).expect("there are so many bits");
        if fields(&other).len() != before.len() {
            // Something there is one more or less of, such as gaps.
            continue;
        }
        let others = |all: &Fields| -> Fields {
            let all = all.iter().copied();
            all.filter(|(field, _)| *field != name).collect()
        };
        // What comes of a value that no connection has may be a panic.
        let same = catch_unwind(AssertUnwindSafe(|| {
            let (too, held_too, out_too, after_too) = outcome(solo, &other, seg);
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
    let untold: Vec<_> = found.iter().filter(|name| !said.contains(**name)).collect();
    assert!(untold.is_empty(), "{untold:?} are touched, too");
}

#[test]
fn the_short_road_touches_no_field_that_it_does_not_name() {
    let mut solo = Solo::passive(Solo::limits(), Solo::syn(Some(1000), None), Some(5));
    let stamp = |at| Some((at, 1));
    solo.hear_with(Flags::ACK, 1, 1, 0, stamp(6), Options::None);
    solo.hear_with(Flags::ACK, 1, 1, 500, stamp(6), Options::None);
    let text = Segment {
        seq: solo.tcb().rcv.nxt,
        ack: solo.tcb().snd.una,
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
    let found = touched(&solo, &text);
    assert!(
        found.contains("rcv.nxt") && found.contains("snd.una"),
        "{found:?}"
    );
    check(&found, FOR_TEXT);

    solo.write(2_000);
    let first = solo.tcb().snd.una;
    // A measurement ends with the first acknowledgment.
    solo.hear_with(Flags::ACK, 501, 1001, 0, stamp(7), Options::None);
    assert_eq!(solo.tcb().snd.una, first + 1000);
    // ... and the next one ends behind what is acknowledged now.
    solo.write(4_000);
    let ack = Segment {
        ack: first + 2000,
        len: 0,
        ..text
    };
    let ack = Segment {
        seq: solo.tcb().rcv.nxt,
        ..ack
    };
    let found = touched(&solo, &ack);
    assert!(found.contains("snd.una_offset"), "{found:?}");
    check(&found, FOR_ACK);
}
