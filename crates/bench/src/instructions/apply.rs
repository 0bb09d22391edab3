//! `apply` alone: what every replica does with every request.
//!
//! A connection is recorded, and its log applied again by a replica that does nothing else. Counted
//! is everything from the digest to the last effect: finding the connection, its state, and the
//! share of the posted fingerprints. Catching a panic is not: it is paid once a batch of requests,
//! and is part of the counts of whole stacks.

use std::hint::black_box;
use std::io::{self, Write};
use std::sync::mpsc;

use dominoes::Fingerprints;
use dominoes_netstack::config::Limits;
use dominoes_netstack::variants::single::Single;
use dominoes_netstack::{Entry, Recorder, Recording, ReplicaState};
use dominoes_proto::log::effect::Effect;
use dominoes_proto::log::request::{Request, RequestKind};
use dominoes_testkit::packet::Family;

use crate::instructions::Case;
use crate::instructions::stack::{Lane, Setting, Use};

/// Segments of the shorter measurement.
const SEGMENTS: u64 = 256;
/// Segments that are recorded: for one warm-up, N and 2N, and some at first that the congestion
/// window holds back.
const RECORDED: u64 = 6 * SEGMENTS;
/// Segments that are written and on their way at a time: as many as leave in one turn, so that all
/// are gone when the first acknowledgment comes, and each acknowledgment lets go of its two.
const FLIGHT: u64 = 32;
/// Requests between two fingerprints, as a group has it by default.
const FINGERPRINT_EVERY: f64 = 64.0;

/// Where a recording goes.
struct Tape(mpsc::Sender<Vec<u8>>);

impl Write for Tape {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(bytes.to_vec()).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The log of one connection, with the bounds that belong to it.
fn record(setting: Setting) -> (Limits, Vec<Entry>) {
    let (sender, tape) = mpsc::channel();
    let mut setup = setting.setup();
    let recorder = Recorder::new(Box::new(Tape(sender)), &setup.limits);
    setup.recorder = Some(recorder.expect("a tape takes everything"));
    let mut lane = Lane::<Single>::with_setup(setting, setup);
    for _ in 0..RECORDED / FLIGHT {
        lane.run(FLIGHT);
    }
    let limits = lane.stack.limits();
    let finished = lane.stack.take_recorder().map(Recorder::finish);
    assert!(matches!(finished, Some(Ok(()))), "the tape ends well");
    let bytes: Vec<u8> = tape.try_iter().flatten().collect();
    let recording = Recording::open(&bytes[..]).expect("it was just written");
    (
        limits,
        recording
            .entries()
            .map(|entry| entry.expect("as before"))
            .collect(),
    )
}

/// A replica that applies a recorded log.
struct Replay {
    replica: ReplicaState,
    posts: Fingerprints,
    effects: Vec<Effect>,
    log: std::vec::IntoIter<(Request, u64)>,
}

impl Replay {
    fn new(setting: Setting) -> Self {
        let (limits, entries) = record(setting);
        let log: Vec<_> = entries
            .into_iter()
            .map(|entry| {
                let all_good = entry.request.digest.all_good();
                (entry.request, entry.verdict.unwrap_or(all_good))
            })
            .collect();
        let mut replay = Replay {
            replica: ReplicaState::new(limits),
            posts: Fingerprints::new(1, 64, 1),
            effects: Vec::with_capacity(1024),
            log: log.into_iter(),
        };
        replay.begin(setting.using);
        replay
    }

    /// Applies a quarter of the log, so that the connection is open and no congestion window holds
    /// anything back; and up to the next write, if it sends.
    fn begin(&mut self, using: Use) {
        let early = self.log.len() / 4;
        for _ in 0..early {
            self.step();
        }
        let is_write = |log: &[(Request, u64)]| matches!(what(&log[0].0), What::Other);
        while using == Use::Send && !is_write(self.log.as_slice()) {
            self.step();
        }
        self.effects.clear();
    }

    fn step(&mut self) -> Request {
        let (request, verdict) = self.log.next().expect("enough was recorded");
        match what(&request) {
            What::Data => {
                counted_apply_data(self, &request, verdict);
                counted_post(self);
            }
            What::Ack => {
                counted_apply_ack(self, &request, verdict);
                counted_post(self);
            }
            What::Other => counted_apply_other(self, &request, verdict),
        }
        request
    }

    /// Applies the log until `units` of what `of` counts are applied.
    fn run(&mut self, units: u64, of: impl Fn(&Request, &[Effect]) -> u64) {
        let mut done = 0;
        while done < units {
            let request = self.step();
            done += of(&request, &self.effects);
            self.effects.clear();
        }
        assert_eq!(done, units, "a request is part of the next measurement");
    }

    #[inline(always)]
    fn apply(&mut self, request: &Request, verdict: u64) {
        self.replica
            .apply_unguarded(request, verdict, &mut self.effects);
    }
}

/// The fingerprint that is due once in a while, posted after every request so that it need not be
/// waited for.
#[inline(never)]
fn counted_post(replay: &mut Replay) {
    let position = replay.replica.position();
    let post = replay.replica.post(position);
    replay.posts.post(0, position, post);
}

enum What {
    Data,
    Ack,
    Other,
}

fn what(request: &Request) -> What {
    match (request.digest.kind, request.digest.len) {
        (RequestKind::Segments, 0) => What::Ack,
        (RequestKind::Segments, _) => What::Data,
        _ => What::Other,
    }
}

// Functions that are equal become one, so each has a number.

#[inline(never)]
fn counted_apply_data(replay: &mut Replay, request: &Request, verdict: u64) {
    black_box(0u8);
    replay.apply(request, verdict);
}

#[inline(never)]
fn counted_apply_ack(replay: &mut Replay, request: &Request, verdict: u64) {
    black_box(1u8);
    replay.apply(request, verdict);
}

#[inline(never)]
fn counted_apply_other(replay: &mut Replay, request: &Request, verdict: u64) {
    black_box(2u8);
    replay.apply(request, verdict);
}

fn data_segments(request: &Request, _: &[Effect]) -> u64 {
    match what(request) {
        What::Data => u64::from(request.digest.count),
        _ => 0,
    }
}

/// Pure acknowledgments, each of two segments.
fn acks(request: &Request, _: &[Effect]) -> u64 {
    match what(request) {
        What::Ack => u64::from(request.digest.count),
        _ => 0,
    }
}

fn numbered(_: &Request, effects: &[Effect]) -> u64 {
    let frames = |effect: &Effect| match effect {
        Effect::Transmit(transmit) => u64::from(transmit.count),
        _ => 0,
    };
    effects.iter().map(frames).sum()
}

/// All cases of `apply`.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for timestamps in [false, true] {
        let words = if timestamps { "timestamps" } else { "plain" };
        let setting = move |using, merge| Setting {
            family: Family::V4,
            using,
            segment: 1448,
            merge,
            timestamps,
            verifies_checksums: false,
        };
        for (name, merge, target) in [("run of 32", true, 8), ("alone", false, 200)] {
            let case = Case::new(
                format!("apply/{name}/{words}"),
                "segment",
                SEGMENTS,
                move || {
                    let mut replay = Replay::new(setting(Use::InPlace, merge));
                    move |units| replay.run(units, data_segments)
                },
            );
            let case = case
                .within("::counted_apply_data")
                .partly_within("::counted_post", 1.0 / FINGERPRINT_EVERY)
                .key();
            cases.push(
                case.target(target)
                    .shares(&[("other requests", "::counted_apply_other")]),
            );
        }
        let sending = setting(Use::Send, true);
        let case = Case::new(
            format!("apply/acks of two in runs/{words}"),
            "ack",
            SEGMENTS / 2,
            move || {
                let mut replay = Replay::new(sending);
                move |units| replay.run(units, acks)
            },
        );
        cases.push(
            case.within("::counted_apply_ack")
                .partly_within("::counted_post", 1.0 / FINGERPRINT_EVERY)
                .key(),
        );
        // A write causes a numbering.
        let case = Case::new(
            format!("apply/write of 32/{words}"),
            "segment",
            SEGMENTS,
            move || {
                let mut replay = Replay::new(sending);
                move |units| replay.run(units, numbered)
            },
        );
        cases.push(case.within("::counted_apply_other").key());
    }
    cases
}
