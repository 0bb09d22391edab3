//! Workers that die and states that change, because a schedule says so.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::effect::Effect;
use crate::engine::replica::Replica;
use crate::variants::replicated::Tamper;

/// How often workers come, go and fail: before so many steps in a million each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Life {
    /// Seats that nobody has at the beginning.
    pub free: usize,
    /// Somebody joins, if a seat is free.
    pub joins_ppm: u32,
    /// Somebody is asked to leave.
    pub leaves_ppm: u32,
    /// Somebody dies between two steps. In three of four cases another one is to take its seat.
    pub deaths_ppm: u32,
    /// The next step is to end in a panic: in an effect, or behind a request that was applied. It comes to nothing if the
    /// step has none.
    pub panics_ppm: u32,
    /// A bit of a connection flips in somebody's state, if two others at least know what is right there, and nobody else is
    /// missing, wrong, or about to come; others may come later. Nothing is performed then that is not [confirmed](crate::variants::replicated::Layout).
    pub flips_ppm: u32,
}

impl Life {
    /// Whether nothing ever happens.
    pub fn is_still(&self) -> bool {
        *self
            == Life {
                free: self.free,
                ..Life::default()
            }
    }
}

/// What became of the workers of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LifeStats {
    /// Workers that joined.
    pub joins: u64,
    /// Those among them that took the seat of one that died.
    pub revivals: u64,
    /// Workers that left, having done their share.
    pub leaves: u64,
    /// Workers that died between two steps.
    pub deaths: u64,
    /// Workers that died in the middle of an effect.
    pub deaths_performing: u64,
    /// Workers that died behind a request that they applied.
    pub deaths_applying: u64,
    /// Bits that flipped.
    pub flips: u64,
    /// Workers that differed and were found out.
    pub found: u64,
    /// Workers that differed and were given the state of the others.
    pub repairs: u64,
    /// Flips that were overwritten before anybody saw them.
    pub overwritten: u64,
    /// Workers whose changed state made them panic.
    pub unwound: u64,
}

/// Where the worker that has its step is to panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fuse {
    Never,
    /// In the middle of an effect, or of storing payload ahead, behind so many others.
    Performing(u64),
    /// Behind a request that it applied, before what that asks for counts.
    Applying,
}

/// What a planted panic carries.
struct Planted;

thread_local! {
    static FUSE: Cell<Fuse> = const { Cell::new(Fuse::Never) };
    /// The connection and the bit that are to flip before the next request is applied.
    static FLIP: Cell<Option<(u64, u32)>> = const { Cell::new(None) };
}

/// A worker that panics when the fuse says so, and whose state changes when it is its turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mortal;

impl Tamper for Mortal {
    const ACTIVE: bool = true;

    fn state(&mut self, _seq: u64, replica: &mut Replica) {
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

    fn effects(&mut self, _seq: u64, _effects: &mut Vec<Effect>) {
        if FUSE.get() == Fuse::Applying {
            resume_unwind(Box::new(Planted));
        }
    }

    fn performing(&mut self, seq: u64, _effect: &Effect) {
        self.preparing(seq);
    }

    fn preparing(&mut self, _seq: u64) {
        match FUSE.get() {
            Fuse::Performing(0) => resume_unwind(Box::new(Planted)),
            Fuse::Performing(left) => FUSE.set(Fuse::Performing(left - 1)),
            _ => {}
        }
    }
}

/// How a step ended.
pub(super) enum End<R> {
    Done(R),
    /// The fuse went off.
    Planted,
    /// Something else panicked.
    Other(Box<dyn Any + Send>),
}

/// Does `what` with a fuse.
pub(super) fn with_fuse<R>(fuse: Fuse, what: impl FnOnce() -> R) -> End<R> {
    FUSE.set(fuse);
    let done = catch_unwind(AssertUnwindSafe(what));
    FUSE.set(Fuse::Never);
    match done {
        Ok(done) => End::Done(done),
        Err(panic) if panic.is::<Planted>() => End::Planted,
        Err(panic) => End::Other(panic),
    }
}

/// Does `what`, before which bit `bit` of the `nth` connection flips, as both are counted modulo what there is. Says
/// whether it did; and how that ended.
pub(super) fn with_flip<R>(nth: u64, bit: u32, what: impl FnOnce() -> R) -> (bool, End<R>) {
    FLIP.set(Some((nth, bit)));
    let end = with_fuse(Fuse::Never, what);
    (FLIP.take().is_none(), end)
}
