//! Hooks by which tests change what one worker does. Programs cannot use them: the code that writes
//! into rings trusts what a [`FaultHooks`] returns.

use crate::group::{Effect, ReplicaState, Request};
use crate::log::request::Verdict;

/// Faults that a test plants in one worker, which the checks must find. Production code uses `()`,
/// which plants none.
pub trait FaultHooks: Send + 'static {
    /// Whether any of the hooks does something.
    const ACTIVE: bool;
    /// Changes a request just before it is applied.
    fn change_request(&mut self, _seq: u64, _request: &mut Request) {}
    /// Gives a verdict for a request that has none yet, or replaces the one it has.
    fn change_verdict(
        &mut self,
        _seq: u64,
        verdict: Option<Verdict>,
        _request: &Request,
    ) -> Option<Verdict> {
        verdict
    }
    /// Changes what applying the request asked for.
    fn change_effects(&mut self, _seq: u64, _effects: &mut Vec<Effect>) {}
    /// Called when an effect of the request is about to be performed, or a frame of it to be built;
    /// the worker has begun its batch or chunk. May panic, and may return much later.
    fn before_performing(&mut self, _seq: u64, _effect: &Effect) {}
    /// Called when the payload of the request is about to be stored while it is verified; its
    /// verdict is begun. May panic, and may return much later.
    fn before_preparing(&mut self, _seq: u64) {}
    /// Changes the worker's state before the worker applies the request at `seq`.
    fn change_state(&mut self, _seq: u64, _replica: &mut ReplicaState) {}
    /// Whether to take a late worker's work without beginning it.
    fn steals_unbegun(&mut self, _seq: u64) -> bool {
        false
    }
    /// Whether to mark the batch of the request as done before the next effect is performed.
    fn finishes_early(&mut self, _seq: u64) -> bool {
        false
    }
}

impl FaultHooks for () {
    const ACTIVE: bool = false;
}
