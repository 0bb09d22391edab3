//! Members of the group that come, go, and die, at any step and in the middle of one.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use dominoes_netstack::digest::Request;
use dominoes_netstack::effect::Effect;
use dominoes_netstack::variants::replicated::Tamper;

use super::case::Case;
use super::check::Failure;
use crate::support::{Rng, mix};

/// How lively a group is. All rates are per mille of the stretches of [`STRETCH`] steps, but for `panics`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Living {
    /// Seats that nobody has at the beginning.
    pub(crate) free: usize,
    pub(crate) joins: u32,
    pub(crate) leaves: u32,
    pub(crate) deaths: u32,
    /// Steps that end in a panic, if they come to where one can, per mille of those that are tried.
    pub(crate) panics: u32,
}

/// Steps between two thoughts about it.
pub(crate) const STRETCH: usize = 32;

impl Living {
    /// That of the plan with `seed`: nothing ever happens in every second one.
    pub(crate) fn of(seed: u64) -> Living {
        let mut rng = Rng::new(mix(seed ^ 0x11fe));
        if rng.chance(500) {
            return Living::default();
        }
        Living {
            free: rng.index(4),
            joins: 100 + rng.below(500) as u32,
            leaves: rng.below(200) as u32,
            deaths: rng.below(200) as u32,
            panics: rng.below(300) as u32,
        }
    }

    pub(crate) fn is_still(&self) -> bool {
        self.joins == 0
    }
}

/// Where the worker that has its step is to panic.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fuse {
    Never,
    /// In the middle of an effect, behind so many others.
    Performing(u64),
    /// Behind a request that it applied, before what that asks for counts.
    Applying,
}

/// What a planted panic carries.
struct OnPurpose;

thread_local! {
    static FUSE: Cell<Fuse> = const { Cell::new(Fuse::Never) };
}

/// A worker that panics when the fuse says so.
pub(crate) struct Mortal<T>(pub(crate) T);

impl<T: Tamper> Tamper for Mortal<T> {
    const ACTIVE: bool = true;

    fn request(&mut self, seq: u64, request: &mut Request) {
        self.0.request(seq, request);
    }

    fn verdict(&mut self, seq: u64, verdict: Option<u16>, request: &Request) -> Option<u16> {
        self.0.verdict(seq, verdict, request)
    }

    fn effects(&mut self, seq: u64, effects: &mut Vec<Effect>) {
        self.0.effects(seq, effects);
        if FUSE.get() == Fuse::Applying {
            resume_unwind(Box::new(OnPurpose));
        }
    }

    fn performing(&mut self, seq: u64, effect: &Effect) {
        self.0.performing(seq, effect);
        match FUSE.get() {
            Fuse::Performing(0) => resume_unwind(Box::new(OnPurpose)),
            Fuse::Performing(left) => FUSE.set(Fuse::Performing(left - 1)),
            _ => {}
        }
    }
}

/// Does `what` with a fuse. Says whether that went off.
///
/// # Panics
/// If something else panics.
fn with_fuse<R>(fuse: Fuse, what: impl FnOnce() -> R) -> Option<R> {
    FUSE.set(fuse);
    let done = catch_unwind(AssertUnwindSafe(what));
    FUSE.set(Fuse::Never);
    match done {
        Ok(done) => Some(done),
        Err(panic) if panic.is::<OnPurpose>() => None,
        Err(panic) => resume_unwind(panic),
    }
}

impl<T: Tamper> Case<'_, T> {
    /// Workers that have a state, and were not asked to leave.
    fn staying(&mut self) -> usize {
        let workers = self.group.workers().iter();
        workers.filter(|worker| worker.is_member()).count()
    }

    /// Somebody may come, go or die before the next stretch of steps.
    pub(crate) fn live(&mut self) -> Result<(), Failure> {
        let plan = self.plan;
        let living = &plan.living;
        if living.is_still() {
            return Ok(());
        }
        if self.rng.chance(living.joins) {
            let tamper = (self.tamper)(self.group.workers().len());
            // With every seat taken, nobody joins.
            let _ = self.group.join(None, tamper);
        }
        if self.rng.chance(living.leaves) {
            let index = self.rng.index(self.group.workers().len());
            let seat = self.group.workers()[index].id();
            // The last one stays.
            let _ = self.group.leave(Some(seat));
        }
        if self.rng.chance(living.deaths) && self.staying() > 1 {
            let index = self.rng.index(self.group.workers().len());
            self.bury(index)?;
            self.seen.died = true;
        }
        self.come_and_go()
    }

    /// Those who were given a state sit down, and those who have left go.
    pub(crate) fn come_and_go(&mut self) -> Result<(), Failure> {
        if self.plan.living.is_still() {
            return Ok(());
        }
        if self.group.seat() > 0 {
            self.seen.joined = true;
        }
        while let Some(index) = self.group.workers().iter().position(|w| w.has_left()) {
            self.seen.left = true;
            self.bury(index)?;
        }
        Ok(())
    }

    /// Worker `index` is no more.
    fn bury(&mut self, index: usize) -> Result<(), Failure> {
        let worker = self.group.take(index);
        match worker.stats().diverged {
            0 => Ok(()),
            diverged => Err(Failure::new(format!(
                "worker {} counted {diverged} divergences",
                worker.id()
            ))),
        }
    }

    /// Lets `what` be done to worker `index`, which may panic in the middle of it.
    pub(crate) fn risk<R>(
        &mut self,
        index: usize,
        what: impl FnOnce(&mut Self) -> R,
    ) -> Result<Option<R>, Failure> {
        let panics = self.plan.living.panics;
        if panics == 0 || !self.rng.chance(panics / 16) || self.staying() < 2 {
            return Ok(Some(what(self)));
        }
        let fuse = if self.rng.chance(300) {
            Fuse::Applying
        } else {
            Fuse::Performing(self.rng.below(4))
        };
        let done = with_fuse(fuse, || what(self));
        if done.is_none() {
            match fuse {
                Fuse::Applying => self.seen.died_applying = true,
                _ => self.seen.died_performing = true,
            }
            self.bury(index)?;
        }
        Ok(done)
    }
}
