//! Equal logs give equal states, in all replicas, and in `replicated` as in `single`.
//!
//! A case is one stack with one to four workers over a bad wire, driven on one thread: pump,
//! prepare, apply, perform and send run in random order, while peers and applications act at
//! random. In half of the cases, workers join, leave and fail meanwhile, between two steps or in
//! the middle of one. A quarter of the cases use IPv6. The log of the case is recorded. These must
//! hold:
//!
//! 1. At equal positions all replicas have equal fingerprints, and `single` has the same one when
//!    it replays the log.
//! 2. The frames that left and the bytes that applications read equal the replay's; in some cases
//!    also the ones of a replay in other groups, in `locked`, and in `pipelined`.
//! 3. Both streams of every connection arrive in order and unharmed, and complete once the faults
//!    have ended.
//! 4. No primary found an effect that it could not perform. In a quarter of the cases, also: no
//!    byte is delivered twice, and no frame or delivery has a wrong number.
//! 5. When both ends have dropped their connections, every connection ends, and its place is free
//!    again.
//!
//! `AGREEMENT_CASES=10000` sets the number of cases, `AGREEMENT_FIRST=0x...` begins with fresh
//! seeds, and `AGREEMENT_SEED=0x...` repeats one. `AGREEMENT_SHRINKS=0` does not simplify a failing
//! plan.

mod app;
mod case;
mod check;
mod effect_log;
mod faults;
mod membership;
mod peer;
mod plan;
mod queues;
mod stack;
mod watch;
mod wire;

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, Once};
use std::time::Instant;

use dominoes_netstack::CongestionControl;
use dominoes_netstack::group::Primaries;
use dominoes_testkit::{Rng, mix, number};
use proptest::strategy::ValueTree;

use check::Failure;
use effect_log::{EffectLog, EffectRecorder};
use faults::{Fault, Faulty};
use membership::PlannedFaults;
use plan::Plan;
use wire::Coverage;

/// Cases under `cargo test`.
const CASES: u64 = 1500;
/// The most cases tried to simplify a failing one.
const SHRINKS: u64 = 400;
/// The first seed of a run.
const FIRST_SEED: u64 = 0x5eed;

fn seed_of(case: u64) -> u64 {
    mix(FIRST_SEED.wrapping_add(case))
}

/// Runs a case and checks it.
fn examine(plan: &Plan) -> Result<Coverage, Failure> {
    let mut rng = Rng::new(!plan.seed);
    // A replica with a changed state produces other effects.
    let effect_record = rng.per_mille(250).then(EffectLog::default);
    let effect_record = effect_record.filter(|_| !plan.membership.confirms());
    // The record holds only effects of requests in the log.
    let mut plan = plan.clone();
    plan.always_log |= effect_record.is_some();
    let plan = &plan;
    let has_panics = plan.membership.panics > 0 || plan.membership.flips > 0;
    let report = match &effect_record {
        None if has_panics => case::run(plan, |_| PlannedFaults(()), None),
        None => case::run(plan, |_| (), None),
        Some(effect_record) => {
            let witness = |id| EffectRecorder {
                id,
                log: effect_record.clone(),
            };
            if has_panics {
                case::run(plan, |id| PlannedFaults(witness(id)), None)
            } else {
                case::run(plan, witness, None)
            }
        }
    };
    let mut outcome = report.result?;
    check::replay(plan, &report.entries, &mut outcome)?;
    if let Some(effect_record) = effect_record {
        effect_record.check()?;
    }
    if rng.per_mille(125) {
        let replicas = 1 + (plan.replicas + rng.index(3)) % 4;
        check::replay_in_group(plan, replicas, &report.entries, &mut outcome)?;
    }
    if rng.per_mille(250) {
        let others = check::others();
        let kind = others[rng.index(others.len())];
        let other = (kind, 1 + rng.index(8));
        check::replay_in_other(plan, other, &report.entries, &mut outcome)?;
    }
    Ok(outcome.seen)
}

/// Names the first field in which the replicas of a failure differ.
fn difference(plan: &Plan, failure: &Failure) -> Option<String> {
    let (first, second, position) = failure.at?;
    [second, first].into_iter().find_map(|id| {
        let report = case::run(plan, |_| PlannedFaults(()), Some((id, position)));
        let oracle = check::oracle_at(plan, &report.entries, position)?;
        let field = report.found?.first_difference(&oracle)?;
        Some(format!("replica {id} / single: {field}"))
    })
}

thread_local! {
    /// Whether a panic of this thread is a result, and must not be printed.
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Turns a panic into a failure.
fn panic_free<R>(what: impl FnOnce() -> Result<R, Failure>) -> Result<R, Failure> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if EXPECTED.get() {
                PANIC.set(info.to_string());
            } else {
                usual(info);
            }
        }));
    });
    EXPECTED.set(true);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(what));
    EXPECTED.set(false);
    caught.unwrap_or_else(|_| Err(Failure::new(PANIC.take())))
}

/// Checks the case of `seed`. If it fails, simplifies it and returns a full report.
fn examine_seed(seed: u64) -> Result<Coverage, String> {
    let mut tree = plan::tree(seed, 1..=4);
    let mut failure = match panic_free(|| examine(&tree.current())) {
        Ok(seen) => return Ok(seen),
        Err(failure) => failure,
    };
    let original = failure.what.clone();
    let mut plan = tree.current();
    let mut moved = tree.simplify();
    for _ in 0..number("AGREEMENT_SHRINKS").unwrap_or(SHRINKS) {
        if !moved {
            break;
        }
        let candidate = tree.current();
        moved = match panic_free(|| examine(&candidate)) {
            Err(again) => {
                (failure, plan) = (again, candidate);
                tree.simplify()
            }
            Ok(_) => tree.complicate(),
        };
    }
    let field = panic_free(|| Ok(difference(&plan, &failure)))
        .ok()
        .flatten();
    Err(format!(
        "{original}\n\nAGREEMENT_SEED={seed:#x} cargo test --release agreement\n\nplainest plan: {plan:#?}\n\
         which fails so: {}\n{}",
        failure.what,
        field.unwrap_or_default()
    ))
}

/// Runs `each` for `cases` cases on all cores, until one of them returns a result.
fn in_parallel<R: Send>(cases: u64, each: impl Fn(u64) -> Option<R> + Sync) -> Option<R> {
    let next = AtomicU64::new(0);
    let over = AtomicBool::new(false);
    let said = Mutex::new(None);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let case = next.fetch_add(1, Ordering::Relaxed);
                    if case >= cases {
                        break;
                    }
                    if let Some(word) = each(case) {
                        over.store(true, Ordering::Relaxed);
                        said.lock().expect("nobody panics here").get_or_insert(word);
                    }
                }
            });
        }
    });
    said.into_inner().expect("nobody panics here")
}

#[test]
fn replicas_agree_with_each_other_and_with_single_whatever_the_order_of_steps() {
    if let Some(seed) = number("AGREEMENT_SEED") {
        if let Err(text) = examine_seed(seed) {
            panic!("{text}");
        }
        return;
    }
    let cases = number("AGREEMENT_CASES").unwrap_or(CASES);
    let first = number("AGREEMENT_FIRST").unwrap_or(FIRST_SEED);
    let start = Instant::now();
    let counts = [const { AtomicU64::new(0) }; Coverage::COUNT];
    let seed = |case| mix(first.wrapping_add(case));
    let failure = in_parallel(cases, |case| match examine_seed(seed(case)) {
        Ok(seen) => {
            for (count, seen) in counts.iter().zip(seen.all()) {
                count.fetch_add(u64::from(seen), Ordering::Relaxed);
            }
            None
        }
        Err(text) => Some(format!("case {case}: {text}")),
    });
    if let Some(text) = failure {
        panic!("{text}");
    }
    println!(
        "{cases} cases in {:.1} s, of which had",
        start.elapsed().as_secs_f64()
    );
    let mut missing = Vec::new();
    for ((name, wanted), count) in Coverage::NAMES.iter().zip(&counts) {
        let count = count.load(Ordering::Relaxed);
        println!("  {:5.1} %  {name}", 100.0 * count as f64 / cases as f64);
        if *wanted && count * 20 < cases {
            missing.push(name);
        }
    }
    assert!(
        cases < 100 || missing.is_empty(),
        "too few cases had {missing:?}"
    );
}

/// Cases within which a planted fault must be noticed.
const NOTICED_WITHIN: u64 = 1000;

/// Runs a case in which one worker has a fault, or all of them.
fn examine_faulty(seed: u64, fault: Fault) -> Result<(), Failure> {
    let plan = plan::tree(seed, 2..=4)
        .current()
        .without_membership_changes();
    let culprit = seed as usize % plan.replicas;
    let report = case::run(&plan, |id| Faulty::new(fault, id, culprit, seed), None);
    let mut outcome = report.result?;
    check::replay(&plan, &report.entries, &mut outcome)
}

#[test]
fn every_planted_fault_is_noticed_within_a_thousand_cases() {
    let mut missed = Vec::new();
    for fault in Fault::ALL {
        let noticed = (0..NOTICED_WITHIN).find_map(|case| {
            let examined = panic_free(|| examine_faulty(seed_of(case), fault));
            Some((case + 1, examined.err()?))
        });
        match noticed {
            Some((cases, failure)) => {
                let what = failure.what.lines().next().unwrap_or_default();
                let what: String = what.chars().take(90).collect();
                println!("{fault:?} is noticed after {cases} cases: {what}");
            }
            None => missed.push(fault),
        }
    }
    assert!(
        missed.is_empty(),
        "{NOTICED_WITHIN} cases do not show {missed:?}"
    );
}

#[test]
fn separate_queues_for_frames_and_writes_part_the_replicas_within_a_thousand_cases() {
    let (mut states, mut frames) = (None, None);
    for case in 0..NOTICED_WITHIN {
        let plan = plan::tree(seed_of(case), 1..=1)
            .current()
            .without_membership_changes();
        let report = case::run(&plan, |_| (), None);
        let outcome = report.result.map_err(|failure| failure.what).unwrap();
        let rng = |id| Rng::new(plan.seed ^ id);
        let alike = &mut [rng(0), rng(0)];
        let together = queues::part(&report.entries, outcome.limits, alike);
        assert!(together.states.is_none() && !together.frames, "{plan:?}");
        let parted = queues::part(&report.entries, outcome.limits, &mut [rng(0), rng(1)]);
        if states.is_none()
            && let Some(failure) = parted.states
        {
            println!(
                "separate queues are noticed after {} cases: {}",
                case + 1,
                failure.what
            );
            states = Some(case);
        }
        if frames.is_none() && parted.frames {
            println!("and after {} cases different frames would leave", case + 1);
            frames = Some(case);
        }
        if states.is_some() && frames.is_some() {
            return;
        }
    }
    panic!("separate queues were not noticed: {states:?} {frames:?}");
}

#[test]
fn the_frames_of_a_run_have_several_primaries() {
    let (mut judged, mut robbed) = (0, 0);
    for case in 0..40 {
        let plan = plan::tree(seed_of(case), 2..=4)
            .current()
            .without_membership_changes();
        let report = case::run(&plan, |_| (), None);
        let stats = report.result.map_err(|failure| failure.what).unwrap().stats;
        let frames: u64 = stats.iter().map(|stats| stats.frames).sum();
        let deliveries: u64 = stats.iter().map(|stats| stats.deliveries).sum();
        // One round is a chunk for each worker.
        let round = (plan.replicas * plan.frame_chunk) as u64;
        // Pacing numbers two frames at a time, and whoever is first may build them all.
        let is_paced = plan.congestion() == CongestionControl::Bbr;
        if is_paced || frames < 2 * round || deliveries < 2 * round {
            continue;
        }
        judged += 1;
        // What a worker is late with, others do.
        let stolen: u64 = stats.iter().map(|stats| stats.stolen).sum();
        let is_much_stolen = stolen >= deliveries / plan.replicas as u64;
        for (id, stats) in stats.iter().enumerate() {
            assert!(
                stats.frames > 0,
                "worker {id} built none of {frames} frames: {plan:?}"
            );
            // With `ByKind`, the lower half of the workers delivers payload.
            let delivers = plan.primaries != Primaries::ByKind || id < plan.replicas.div_ceil(2);
            let made_none = delivers && stats.deliveries == 0;
            robbed += u32::from(made_none && is_much_stolen);
            assert!(
                !made_none || is_much_stolen,
                "worker {id} made none of {deliveries} deliveries: {plan:?}"
            );
            assert!(
                stats.frames < frames && stats.deliveries < deliveries,
                "worker {id} did everything"
            );
        }
    }
    assert!(judged >= 10, "only {judged} cases had enough to do");
    assert!(
        robbed * 10 <= judged,
        "{robbed} workers made no delivery in {judged} cases"
    );
}
