//! A panic in the TCP code closes one connection and affects no other.
//!
//! If a call of a connection unwinds, its effects are withdrawn, its frame numbers are free
//! again, and the connection is closed without further use: a reset with previously saved
//! numbers leaves, its socket reports that it was aborted, and no list keeps an entry for it.
//! Code and input are equal in every replica, so all of them panic identically and stay equal.
//! A panic in only one of them is a divergence, and is detected like any other.
//!
//! Panics are not caught while a connection is created, or in tables that connections share:
//! closing one connection cannot repair a half-done change there. In a program built with `panic =
//! "abort"` nothing unwinds, and the first panic ends the process.
//!
//! The fast path has no guard of its own. [`ReplicaState::apply`] catches panics of each request.
//! A caller of [`ReplicaState::apply_unguarded`] that applies several requests catches panics once
//! for all of them ([`ReplicaState::recover`]). The fast path stores the data for that case in the
//! replica, and all other paths mark work that concerns more than one connection.
//!
//! Deadlines and turns of other connections in the same request are processed as if there were
//! no panic.

use crate::hash::mix;
use core::any::Any;
use core::panic::AssertUnwindSafe;
use std::panic::{catch_unwind, resume_unwind};

#[cfg(feature = "testkit")]
use crate::keys::KeyUse;
use crate::log::effect::{ConnectionEvent, Effect, EffectSink};
use crate::log::request::{ConnId, Request};
use crate::seqnum::SeqNum;
use crate::state::apply::ReplicaState;
use crate::tcp::{self, Cx, Finish, Tcb};

/// The values to save before a call that may unwind.
#[derive(Clone, Copy, Debug)]
struct Before {
    /// Number of the next frame.
    next: u64,
    /// A sequence number for a reset that the peer accepts.
    seq: SeqNum,
}

impl ReplicaState {
    /// Calls `what` with a connection, if it still exists, and lets it send. `None` if the
    /// connection did not exist, or panicked.
    #[inline]
    pub fn guarded<S: EffectSink>(
        &mut self,
        conn: ConnId,
        out: &mut S,
        what: impl FnOnce(&mut Tcb, &mut Cx<'_, S>),
    ) -> Option<Finish> {
        let place = self.places.get_mut(conn.index as usize);
        let place = place.filter(|place| place.generation == conn.generation)?;
        let tcb = place.tcb.as_mut()?;
        let before = Before {
            next: self.frames.next,
            seq: tcb.reset_seq(),
        };
        let (received, mark) = (tcb.received(), out.mark());
        #[cfg(feature = "testkit")]
        let planted = self.limits.panics_ppm > 0;
        #[cfg(feature = "testkit")]
        let at = if planted {
            mix((self.position + self.applied_unlogged)
                ^ u64::from(conn.index) << 48
                ^ self.keys.of(KeyUse::InjectedPanic, []))
        } else {
            0
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut cx = Cx::new(self.now, &mut self.frames, &self.limits, &mut *out);
            #[cfg(feature = "testkit")]
            if planted {
                inject_panic(at, 0, cx.limits);
            }
            what(tcb, &mut cx);
            #[cfg(feature = "testkit")]
            if planted {
                inject_panic(at, 1, cx.limits);
            }
            let finish = tcb.finish(&mut cx);
            #[cfg(feature = "testkit")]
            if planted {
                inject_panic(at, 2, cx.limits);
            }
            finish
        }));
        if let Err(_panic) = &outcome {
            #[cfg(feature = "testkit")]
            {
                self.injected += u64::from(is_injected(&**_panic));
            }
            out.take_back(mark);
            self.isolate(conn, before, received, out);
        }
        outcome.ok()
    }

    /// [`ReplicaState::apply_unguarded`] unwound while it applied `request`; `out` holds the effects
    /// of that request. If the panic came from the fast path, its connection is closed, and the
    /// work that follows from the request is done. Its segments do not count as received.
    ///
    /// # Panics
    /// With the same panic, if it did not come from one connection. The replica must not
    /// be used afterwards.
    #[cold]
    #[inline(never)]
    pub fn recover(
        &mut self,
        panic: Box<dyn Any + Send>,
        request: &Request,
        out: &mut impl EffectSink,
    ) {
        let conn = request.digest.hint;
        let is_its_own = !self.concerns_several && self.touched == conn.index;
        if !is_its_own || self.current(conn).is_none() {
            resume_unwind(panic);
        }
        out.take_back(0);
        // The length of the receive stream is not known here: the application may not get the
        // last bytes, which other workers are still copying.
        let before = Before {
            next: self.first_frame,
            seq: request.digest.seg_ack,
        };
        self.isolate(conn, before, 0, out);
        self.follow_up(out);
    }

    /// Closes a connection whose code panicked, and whose receive stream was `received` bytes long.
    #[cold]
    fn isolate(&mut self, conn: ConnId, before: Before, received: u64, out: &mut impl EffectSink) {
        self.frames.next = before.next;
        self.stats.panicked += 1;
        let place = &mut self.places[conn.index as usize];
        let Some(tcb) = &place.tcb else { return };
        // No TCP call changes these.
        let (flow, mac) = (tcb.flow(), tcb.mac());
        if place.listener_port.take().is_some() {
            self.listeners.end(flow.local, false);
        }
        let mut cx = Cx::new(self.now, &mut self.frames, &self.limits, &mut *out);
        // Without room for the reset, the peer gets one in answer to its next segment.
        tcp::reset_at(before.seq, flow, mac, &mut cx);
        out.push(Effect::Event {
            conn,
            event: ConnectionEvent::Aborted,
            received,
        });
        self.close(conn, out);
        let place = &mut self.places[conn.index as usize];
        place.waits_for_turn = false;
        place.waits_for_sent = false;
        place.in_time_wait = false;
        self.waiting.retain(|other| *other != conn);
        self.unsent.retain(|(_, other)| *other != conn);
        self.time_wait.retain(|other| *other != conn);
        self.fold = mix(self.fold ^ self.frames.next ^ mix(u64::from(conn.index)));
        self.touched = conn.index;
    }
}

/// Panics if `at` selects this call, at one of three places.
#[cfg(feature = "testkit")]
fn inject_panic(at: u64, place: u64, limits: &crate::config::Limits) {
    let chosen = at % 1_000_000 < u64::from(limits.panics_ppm);
    if chosen && (at >> 32) % 3 == place {
        std::panic::panic_any(INJECTED);
    }
}

/// The message of an injected panic.
#[cfg(feature = "testkit")]
const INJECTED: &str = "an injected panic";

#[cfg(feature = "testkit")]
fn is_injected(panic: &(dyn Any + Send)) -> bool {
    panic.downcast_ref::<&str>() == Some(&INJECTED)
}

#[cfg(all(test, feature = "testkit"))]
mod tests {
    use crate::log::request::Flags;
    use crate::state::apply::tests::Fixture;

    #[test]
    fn an_unexpected_panic_is_distinguished_from_an_injected_one() {
        let counts = |fixture: &Fixture| {
            let replica = &fixture.replica;
            (replica.stats().panicked, replica.unexpected_panics())
        };
        let mut fixture = Fixture::listening(4);
        let (conn, _) = fixture.open(4000, 100);
        assert_eq!(counts(&fixture), (0, 0));
        fixture
            .replica
            .with(conn, &mut fixture.effects, |_, _| panic!("a mistake"));
        assert_eq!(counts(&fixture), (1, 1));

        let mut fixture = Fixture::listening(4);
        fixture.replica.limits.panics_ppm = 1_000_000;
        fixture.segment(4000, 100, 0, Flags::SYN);
        assert_eq!(counts(&fixture), (1, 0));
    }
}
