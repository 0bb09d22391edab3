//! What tests do to one worker. A program cannot: what a [`Tamper`] says of effects is believed by the code that writes into
//! rings.

use super::{Effect, Replica, Request};

/// A test's hand in one worker: lies that the checks must find. Production code uses `()`.
pub trait Tamper: Send + 'static {
    /// Whether any of the hooks does something.
    const ACTIVE: bool;
    /// Changes a request just before it is applied.
    fn request(&mut self, _seq: u64, _request: &mut Request) {}
    /// Gives a verdict for a request that has none yet, or replaces the one it has.
    fn verdict(&mut self, _seq: u64, verdict: Option<u16>, _request: &Request) -> Option<u16> {
        verdict
    }
    /// Changes what applying the request asked for.
    fn effects(&mut self, _seq: u64, _effects: &mut Vec<Effect>) {}
    /// An effect of the request is about to be performed, or a frame of it to be built; its unit is begun. May
    /// panic, and may come back much later.
    fn performing(&mut self, _seq: u64, _effect: &Effect) {}
    /// The payload of the request is about to be stored while it is verified; its verdict is begun. May panic, and may come
    /// back much later.
    fn preparing(&mut self, _seq: u64) {}
    /// Changes the state behind the worker's back, before it applies the request at `seq`.
    fn state(&mut self, _seq: u64, _replica: &mut Replica) {}
    /// Whether to take work of a late worker without beginning its unit.
    fn takes_unasked(&mut self, _seq: u64) -> bool {
        false
    }
}

impl Tamper for () {
    const ACTIVE: bool = false;
}
