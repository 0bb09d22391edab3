//! Workers that join, leave and fail, between steps and in the middle of one.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use dominoes::Mismatch;
use dominoes_netstack::ReplicaState;
use dominoes_netstack::group::FaultHooks;
use dominoes_netstack::variants::Worker as _;
use dominoes_proto::log::effect::Effect;
use dominoes_proto::log::request::{Request, Verdict};
use dominoes_testkit::{Rng, mix};

use super::case::Case;
use super::check::Failure;

/// How often the workers of a group change. Rates are per mille of the stretches of
/// [`STEPS_BETWEEN_FAULTS`] steps, except `panics`.
#[derive(Clone, Debug, Default)]
pub(crate) struct MembershipFaults {
    /// Replica slots that are free at the beginning.
    pub(crate) free: usize,
    pub(crate) joins: u32,
    pub(crate) leaves: u32,
    pub(crate) failures: u32,
    /// Per mille of the steps for which a panic is planned. The panic happens only if the step
    /// reaches a place where it can.
    pub(crate) panics: u32,
    /// Bits of a replica's state that flip without its knowledge. Only used when a majority
    /// confirms states before anything is performed.
    pub(crate) flips: u32,
}

/// Steps from one chance of a fault to the next.
pub(crate) const STEPS_BETWEEN_FAULTS: usize = 32;

impl MembershipFaults {
    /// The faults of the plan with `seed`. Half of the plans have none.
    pub(crate) fn of(seed: u64) -> MembershipFaults {
        let mut rng = Rng::new(mix(seed ^ 0x11fe));
        if rng.per_mille(500) {
            return MembershipFaults::default();
        }
        MembershipFaults {
            free: rng.index(4),
            joins: 100 + rng.below(500) as u32,
            leaves: rng.below(200) as u32,
            failures: rng.below(200) as u32,
            panics: rng.below(300) as u32,
            flips: if rng.per_mille(400) { 600 } else { 0 },
        }
    }

    /// Whether a majority has to agree before anything is performed.
    pub(crate) fn confirms(&self) -> bool {
        self.flips > 0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.joins == 0
    }
}

/// Where the worker that runs a step panics.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PanicPoint {
    Never,
    /// In the middle of an effect, after this many others.
    Performing(u64),
    /// After it has applied a request, before the resulting effects count.
    Applying,
}

/// The payload of a planned panic.
struct InjectedPanic;

thread_local! {
    static PANIC_POINT: Cell<PanicPoint> = const { Cell::new(PanicPoint::Never) };
    /// The connection and the bit that flip before the next request is applied.
    static FLIP: Cell<Option<(usize, u32)>> = const { Cell::new(None) };
}

/// A worker's hooks, which panic and change its state at the planned points.
pub(crate) struct PlannedFaults<T>(pub(crate) T);

impl<T: FaultHooks> FaultHooks for PlannedFaults<T> {
    const ACTIVE: bool = true;

    fn change_state(&mut self, _seq: u64, replica: &mut ReplicaState) {
        let Some((nth, bit)) = FLIP.take() else {
            return;
        };
        let open: Vec<u32> = replica.connections().map(|(conn, _)| conn.index).collect();
        match nth.checked_rem(open.len()) {
            Some(at) => {
                let bits = replica.bits(open[at]).max(1);
                replica.flip(open[at], bit % bits);
            }
            None => FLIP.set(Some((nth, bit))),
        }
    }

    fn change_request(&mut self, seq: u64, request: &mut Request) {
        self.0.change_request(seq, request);
    }

    fn change_verdict(
        &mut self,
        seq: u64,
        verdict: Option<Verdict>,
        request: &Request,
    ) -> Option<Verdict> {
        self.0.change_verdict(seq, verdict, request)
    }

    fn change_effects(&mut self, seq: u64, effects: &mut Vec<Effect>) {
        self.0.change_effects(seq, effects);
        if PANIC_POINT.get() == PanicPoint::Applying {
            resume_unwind(Box::new(InjectedPanic));
        }
    }

    fn before_performing(&mut self, seq: u64, effect: &Effect) {
        self.0.before_performing(seq, effect);
        match PANIC_POINT.get() {
            PanicPoint::Performing(0) => resume_unwind(Box::new(InjectedPanic)),
            PanicPoint::Performing(left) => PANIC_POINT.set(PanicPoint::Performing(left - 1)),
            _ => {}
        }
    }
}

/// Whether all replicas agree but for those in `lost`, of which there is one.
fn agree_without(lost: &[usize], mismatch: &Mismatch) -> bool {
    let posted = mismatch.fingerprints.iter().copied();
    let (wrong, right): (Vec<(usize, u64)>, Vec<_>) =
        posted.partition(|(slot, _)| lost.contains(slot));
    !wrong.is_empty() && right.windows(2).all(|two| two[0].1 == two[1].1)
}

/// Runs `what` with a planned panic. Returns `None` if the panic happened.
///
/// # Panics
/// If something else panics.
fn with_panic_at<R>(panic_point: PanicPoint, what: impl FnOnce() -> R) -> Option<R> {
    PANIC_POINT.set(panic_point);
    let done = catch_unwind(AssertUnwindSafe(what));
    PANIC_POINT.set(PanicPoint::Never);
    match done {
        Ok(done) => Some(done),
        Err(panic) if panic.is::<InjectedPanic>() => None,
        Err(panic) => resume_unwind(panic),
    }
}

impl<T: FaultHooks> Case<'_, T> {
    /// Number of active workers: those with a state that were not asked to leave.
    fn remaining(&mut self) -> usize {
        let workers = self.group.workers().iter();
        workers.filter(|worker| worker.is_active()).count()
    }

    /// May let a worker join, leave or fail before the next stretch of steps.
    pub(crate) fn inject_faults(&mut self) -> Result<(), Failure> {
        let plan = self.plan;
        let living = &plan.membership;
        if living.is_empty() {
            return Ok(());
        }
        if self.flipped.is_some() {
            // One of three replicas is wrong, so the other two must stay; workers may still join.
            self.maybe_join();
            return self.admit_and_remove();
        }
        if self.rng.per_mille(living.flips) {
            self.flip()?;
            if self.flipped.is_some() {
                return Ok(());
            }
        }
        self.maybe_join();
        if self.rng.per_mille(living.leaves) {
            let index = self.rng.index(self.group.workers().len());
            let replica = self.group.workers()[index].id();
            // A group refuses to lose its last worker.
            let _ = self.group.leave(Some(replica));
        }
        if self.rng.per_mille(living.leaves / 2) {
            self.group.park();
        }
        if self.rng.per_mille(living.joins / 2) {
            self.group.unpark();
        }
        if self.rng.per_mille(living.failures) && self.remaining() > 1 {
            let index = self.rng.index(self.group.workers().len());
            self.remove_worker(index)?;
            self.seen.died = true;
        }
        self.admit_and_remove()
    }

    /// Perhaps lets a worker join.
    fn maybe_join(&mut self) {
        if self.rng.per_mille(self.plan.membership.joins) {
            let hooks = (self.hooks)(self.group.workers().len());
            // Fails if every replica slot is taken.
            let _ = self.group.join(None, hooks);
        }
    }

    /// Flips a bit of a random worker's state, if enough others remain to outvote it.
    fn flip(&mut self) -> Result<(), Failure> {
        let workers = self.group.workers().len();
        if self.remaining() < 3 || self.remaining() < workers || self.group.joining() > 0 {
            return Ok(());
        }
        let index = self.rng.index(workers);
        let position = self.group.workers()[index].replica().position();
        let voters = self.group.workers().iter();
        if voters.filter(|worker| worker.since() <= position).count() < 3 {
            // Some of the others got their state at a later position, perhaps from one of the two.
            return Ok(());
        }
        let id = self.group.workers()[index].id();
        self.repaired = self.group.membership_stats().repaired;
        FLIP.set(Some((self.rng.index(8), self.rng.next() as u32)));
        self.flipped = Some(id);
        let applied = catch_unwind(AssertUnwindSafe(|| {
            self.group.workers()[index].apply();
        }));
        if FLIP.take().is_some() {
            // There was nothing to apply, or no connection.
            self.flipped = None;
            return self.mark(index);
        }
        self.seen.flipped = true;
        if applied.is_err() {
            self.lose_flipped(index)?;
        }
        Ok(())
    }

    /// Removes a worker that panicked because of its changed state.
    fn lose_flipped(&mut self, index: usize) -> Result<(), Failure> {
        self.lost.extend(self.flipped.take());
        self.seen.unwound = true;
        self.remove_worker(index)
    }

    /// Whether replicas with a flipped bit that failed before they were found explain `mismatch`.
    pub(crate) fn is_explained_by_lost_workers(&self, mismatch: &Mismatch) -> bool {
        agree_without(&self.lost, mismatch)
    }

    /// Whether worker `index` still has a flipped bit.
    pub(crate) fn is_flipped(&mut self, index: usize) -> bool {
        let Some(id) = self.flipped else {
            return false;
        };
        if self.group.membership_stats().repaired > self.repaired {
            self.seen.repaired = true;
            self.flipped = None;
            return false;
        }
        self.group.workers()[index].id() == id
    }

    /// Activates workers that have received a state, and removes workers that have left.
    pub(crate) fn admit_and_remove(&mut self) -> Result<(), Failure> {
        if self.plan.membership.is_empty() {
            return Ok(());
        }
        if self.group.admit() > 0 {
            self.seen.joined = true;
            self.seen.joined_beside_flipped |= self.flipped.is_some();
        }
        self.seen.unparked |= self.group.membership_stats().unparked > 0;
        while let Some(index) = self.group.workers().iter().position(|w| w.has_left()) {
            self.seen.left = true;
            self.remove_worker(index)?;
        }
        Ok(())
    }

    /// Removes worker `index`, and fails if it counted divergences.
    fn remove_worker(&mut self, index: usize) -> Result<(), Failure> {
        let worker = self.group.take(index);
        match worker.stats().effects.diverged {
            0 => Ok(()),
            diverged => Err(Failure::new(format!(
                "worker {} counted {diverged} divergences",
                worker.id()
            ))),
        }
    }

    /// Runs `what` on worker `index`, perhaps with a panic in the middle of it.
    pub(crate) fn run_with_fault<R>(
        &mut self,
        index: usize,
        what: impl FnOnce(&mut Self) -> R,
    ) -> Result<Option<R>, Failure> {
        if self.is_flipped(index) {
            return match catch_unwind(AssertUnwindSafe(|| what(self))) {
                Ok(done) => Ok(Some(done)),
                Err(_) => {
                    self.lose_flipped(index)?;
                    Ok(None)
                }
            };
        }
        let panics = self.plan.membership.panics;
        if panics == 0
            || self.flipped.is_some()
            || !self.rng.per_mille(panics / 16)
            || self.remaining() < 2
        {
            return Ok(Some(what(self)));
        }
        let panic_point = if self.rng.per_mille(300) {
            PanicPoint::Applying
        } else {
            PanicPoint::Performing(self.rng.below(4))
        };
        let done = with_panic_at(panic_point, || what(self));
        if done.is_none() {
            match panic_point {
                PanicPoint::Applying => self.seen.died_applying = true,
                _ => self.seen.died_performing = true,
            }
            self.remove_worker(index)?;
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_replica_explains_its_own_fingerprint_alone() {
        let posted = |fingerprints: &[(usize, u64)]| Mismatch {
            position: 166,
            fingerprints: fingerprints.to_vec(),
        };
        // Two replicas have no majority.
        assert!(agree_without(&[1], &posted(&[(1, 7), (2, 8)])));
        assert!(agree_without(&[1], &posted(&[(0, 8), (1, 7), (2, 8)])));
        assert!(!agree_without(&[], &posted(&[(1, 7), (2, 8)])));
        assert!(!agree_without(&[1], &posted(&[(0, 8), (2, 9)])));
        assert!(!agree_without(&[1], &posted(&[(0, 8), (1, 7), (2, 9)])));
    }
}
