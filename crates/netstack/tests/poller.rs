//! Readiness: the events of a poller, compared with those from Linux `epoll` for the same actions;
//! guarantees beyond those; threads that register, drop and wake.

#![cfg(feature = "testkit")]

mod by_hand;
mod clones;
#[cfg(target_os = "linux")]
mod descriptors;
mod echo;
#[cfg(target_os = "linux")]
mod reference;
mod threads;
mod units;
mod wakers;

use dominoes_netstack::SocketError;
use dominoes_netstack::poller::{Event, Interest, Poller, Token, Trigger};

const TRIGGERS: [Trigger; 2] = [Trigger::Level, Trigger::Edge];

/// All current events, without waiting.
fn reported(poller: &Poller) -> Vec<Event> {
    let mut events = Vec::with_capacity(64);
    poller.events(&mut events);
    events
}

/// The tokens of readable sources, and of writable ones.
fn ready(poller: &Poller) -> (Vec<usize>, Vec<usize>) {
    let events = reported(poller);
    let tokens = |what: fn(&Event) -> bool| {
        let mut tokens: Vec<_> = events
            .iter()
            .filter(|e| what(e))
            .map(|e| e.token.0)
            .collect();
        tokens.sort_unstable();
        tokens
    };
    (tokens(|e| e.readable), tokens(|e| e.writable))
}
