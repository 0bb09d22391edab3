//! Planned faults: workers that fail, and states that change.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::group::FaultHooks;
use crate::log::effect::Effect;
use crate::state::apply::ReplicaState;

/// How often workers join, leave and fail, each in steps per million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Replica slots that are free at first.
    pub free_slots: usize,
    /// A worker joins, if a slot is free.
    pub joins_ppm: u32,
    /// A worker is asked to leave.
    pub leaves_ppm: u32,
    /// A worker fails between two steps. Three of four are replaced in their slot.
    pub failures_ppm: u32,
    /// The next step ends in a panic: in an effect, after a request was applied, or in a TLS
    /// record. Has no effect if the step reaches no such point.
    pub panics_ppm: u32,
    /// A bit of a connection flips in a worker's state, if at least two others have the right
    /// state there, and no other worker is gone, wrong, or about to join; others may join
    /// later. Then only [confirmed](crate::group::Layout) effects are performed.
    pub flips_ppm: u32,
}

impl FaultPlan {
    /// Whether no fault ever happens.
    pub fn is_empty(&self) -> bool {
        *self
            == FaultPlan {
                free_slots: self.free_slots,
                ..FaultPlan::default()
            }
    }
}

/// Events of a host's workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FaultPlanStats {
    /// Workers that joined.
    pub joins: u64,
    /// Workers among them that took the slot of a failed one.
    pub replacements: u64,
    /// Workers that left after they had performed their share.
    pub leaves: u64,
    /// Workers that failed between two steps.
    pub failures: u64,
    /// Workers that failed in the middle of an effect.
    pub failures_performing: u64,
    /// Workers that failed after applying a request, before its effects counted.
    pub failures_applying: u64,
    /// Workers that failed in the middle of a unit of a stream.
    pub failures_in_unit: u64,
    /// Bits that flipped.
    pub flips: u64,
    /// Diverged workers that were detected.
    pub found: u64,
    /// Diverged workers that got the state of the others.
    pub repairs: u64,
    /// Flips that were overwritten before they were detected.
    pub overwritten: u64,
    /// Workers whose changed state made them panic.
    pub unwound: u64,
}

/// The point at which the worker of the next step panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PanicPoint {
    Never,
    /// In the middle of an effect, or of storing payload ahead, after this many others.
    Performing(u64),
    /// After it applied a request, before that request's effects count.
    Applying,
    /// In the middle of a unit of a stream.
    Unit,
}

/// The payload of a planted panic.
struct Injected;

thread_local! {
    static PANIC_POINT: Cell<PanicPoint> = const { Cell::new(PanicPoint::Never) };
    /// The connection and the bit that flip before the next request is applied.
    static FLIP: Cell<Option<(u64, u32)>> = const { Cell::new(None) };
}

/// Panics where planned, and changes the worker's state at the planned request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PlannedFaults;

impl FaultHooks for PlannedFaults {
    const ACTIVE: bool = true;

    fn change_state(&mut self, _seq: u64, replica: &mut ReplicaState) {
        let Some((nth, bit)) = FLIP.get() else { return };
        let count = replica.connections().count() as u64;
        let Some(nth) = nth.checked_rem(count) else {
            return;
        };
        let place = replica.connections().nth(nth as usize);
        if let Some(index) = place.map(|(conn, _)| conn.index) {
            replica.flip(index, bit % replica.bits(index).max(1));
            FLIP.set(None);
        }
    }

    fn change_effects(&mut self, _seq: u64, _effects: &mut Vec<Effect>) {
        if PANIC_POINT.get() == PanicPoint::Applying {
            resume_unwind(Box::new(Injected));
        }
    }

    fn before_performing(&mut self, seq: u64, _effect: &Effect) {
        self.before_preparing(seq);
    }

    fn before_preparing(&mut self, _seq: u64) {
        match PANIC_POINT.get() {
            PanicPoint::Performing(0) => resume_unwind(Box::new(Injected)),
            PanicPoint::Performing(left) => PANIC_POINT.set(PanicPoint::Performing(left - 1)),
            _ => {}
        }
    }
}

/// How a step ended.
pub(super) enum End<R> {
    Done(R),
    /// The planned panic happened.
    Injected,
    /// Another panic happened.
    Other(Box<dyn Any + Send>),
}

/// Runs `what` with a planned panic.
pub(super) fn with_panic_at<R>(panic_point: PanicPoint, what: impl FnOnce() -> R) -> End<R> {
    PANIC_POINT.set(panic_point);
    let done = catch_unwind(AssertUnwindSafe(what));
    PANIC_POINT.set(PanicPoint::Never);
    match done {
        Ok(done) => End::Done(done),
        Err(panic) if panic.is::<Injected>() => End::Injected,
        Err(panic) if panic.is::<crate::io::units::KilledInUnit>() => End::Injected,
        Err(panic) => End::Other(panic),
    }
}

/// Runs `what`, which flips bit `bit` of the `nth` connection at its first request; both are
/// taken modulo their number. Returns whether the bit flipped, and how `what` ended.
pub(super) fn with_flip<R>(nth: u64, bit: u32, what: impl FnOnce() -> R) -> (bool, End<R>) {
    FLIP.set(Some((nth, bit)));
    let end = with_panic_at(PanicPoint::Never, what);
    (FLIP.take().is_none(), end)
}
