//! A panic in the code of TCP ends one connection, and nothing else.
//!
//! If a call of a connection unwinds, what it asked for is taken back, the numbers of its frames are free again, and it is
//! buried without being looked at any more: a reset leaves whose numbers were known before, its socket learns that it
//! was aborted, and no list keeps a trace of it. The code is the same in every replica, and so is what it was given:
//! all of them panic alike and stay equal. A panic in one of them only is a divergence, found as any other.
//!
//! Where a connection is made, and in the tables that connections share, nothing is caught: what is half done there
//! cannot be put right by forgetting one connection. In a program built with `panic = "abort"` nothing unwinds, and the
//! first panic ends the process.
//!
//! The short road is not guarded by itself, since a request would be a tenth dearer if it were. Whoever applies requests in
//! a row catches what unwinds once for all of them ([`Replica::unwound`]); what the short road needs in that case it
//! leaves in the replica, and all other roads say when they do what is not one connection's.

use core::any::Any;
use core::panic::AssertUnwindSafe;
use std::panic::{catch_unwind, resume_unwind};

use super::Replica;
use crate::digest::{ConnId, Request};
use crate::effect::{Effect, EffectSink, Event, mix};
#[cfg(feature = "testkit")]
use crate::keys::Domain;
use crate::seqnum::SeqNum;
use crate::tcp::{self, Cx, Finish, Tcb};

/// What was known before a call that may unwind.
#[derive(Clone, Copy, Debug)]
struct Before {
    /// Number of the next frame.
    next: u64,
    /// The number of a reset that the peer believes.
    seq: SeqNum,
}

impl Replica {
    /// Does `what` to a connection, if it is still there, and lets it send. `None` if it is gone, before or now.
    #[inline]
    pub(super) fn guarded<S: EffectSink>(
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
            mix((self.position + self.besides)
                ^ u64::from(conn.index) << 48
                ^ self.keys.of(Domain::PlannedPanic, []))
        } else {
            0
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut cx = Cx::new(self.now, &mut self.frames, &self.limits, &mut *out);
            #[cfg(feature = "testkit")]
            if planted {
                plant(at, 0, cx.limits);
            }
            what(tcb, &mut cx);
            #[cfg(feature = "testkit")]
            if planted {
                plant(at, 1, cx.limits);
            }
            let finish = tcb.finish(&mut cx);
            #[cfg(feature = "testkit")]
            if planted {
                plant(at, 2, cx.limits);
            }
            finish
        }));
        if let Err(_panic) = &outcome {
            #[cfg(feature = "testkit")]
            {
                self.planted += u64::from(is_planted(&**_panic));
            }
            out.take_back(mark);
            self.isolate(conn, before, received, out);
        }
        outcome.ok()
    }

    /// [`Replica::apply_in_batch`] unwound while it applied `request`; `out` holds what that had asked for. If the panic was
    /// of the connection on the short road, which was touched last, that one ends, and what follows from the request is
    /// done. Its segments count as none that arrived.
    ///
    /// # Panics
    /// With the same panic, if it is not one connection's. Nothing can be said of the replica then.
    #[cold]
    #[inline(never)]
    pub fn unwound(
        &mut self,
        panic: Box<dyn Any + Send>,
        request: &Request,
        out: &mut impl EffectSink,
    ) {
        let place = self.places.get(self.touched as usize);
        let Some(place) = place.filter(|_| !self.beyond_one) else {
            resume_unwind(panic);
        };
        let conn = ConnId {
            index: self.touched,
            generation: place.generation,
        };
        out.take_back(0);
        // How far the receive stream reached nobody has noted: the application may miss the end of what other workers
        // are still copying.
        let before = Before {
            next: self.next_before,
            seq: request.digest.seg_ack,
        };
        self.isolate(conn, before, 0, out);
        self.follow_up(out);
    }

    /// Ends a connection whose code has panicked, and whose receive stream reached to `received`.
    #[cold]
    fn isolate(&mut self, conn: ConnId, before: Before, received: u64, out: &mut impl EffectSink) {
        self.frames.next = before.next;
        self.stats.panicked += 1;
        let place = &mut self.places[conn.index as usize];
        let Some(tcb) = &place.tcb else { return };
        // No call of TCP changes these.
        let (flow, mac) = (tcb.flow(), tcb.mac());
        if let Some(port) = place.parent.take() {
            self.listeners.end(port, false);
        }
        let mut cx = Cx::new(self.now, &mut self.frames, &self.limits, &mut *out);
        // Without room for it the peer learns as soon as it says something.
        tcp::reset_at(before.seq, flow, mac, &mut cx);
        out.push(Effect::Event {
            conn,
            event: Event::Aborted,
            received,
        });
        self.bury(conn, out);
        let place = &mut self.places[conn.index as usize];
        place.waits_for_turn = false;
        place.waits_for_sent = false;
        place.waits_out = false;
        self.waiting.retain(|other| *other != conn);
        self.unsent.retain(|(_, other)| *other != conn);
        self.time_wait.retain(|other| *other != conn);
        self.fold = mix(self.fold ^ self.frames.next ^ mix(u64::from(conn.index)));
        self.touched = conn.index;
    }
}

/// Panics if `at` says so, at one of three places.
#[cfg(feature = "testkit")]
fn plant(at: u64, place: u64, limits: &crate::config::Limits) {
    let chosen = at % 1_000_000 < u64::from(limits.panics_ppm);
    if chosen && (at >> 32) % 3 == place {
        std::panic::panic_any(PLANTED);
    }
}

/// What a planted panic says.
#[cfg(feature = "testkit")]
const PLANTED: &str = "a planted panic";

#[cfg(feature = "testkit")]
fn is_planted(panic: &(dyn Any + Send)) -> bool {
    panic.downcast_ref::<&str>() == Some(&PLANTED)
}

#[cfg(all(test, feature = "testkit"))]
mod tests {
    use super::super::tests::Bench;
    use crate::digest::Flags;

    #[test]
    fn a_panic_that_no_test_planted_is_told_from_one_that_was() {
        let counts = |bench: &Bench| {
            let replica = &bench.replica;
            (replica.stats().panicked, replica.unplanned_panics())
        };
        let mut bench = Bench::listening(4);
        let (conn, _) = bench.open(4000, 100);
        assert_eq!(counts(&bench), (0, 0));
        bench
            .replica
            .with(conn, &mut bench.effects, |_, _| panic!("a mistake"));
        assert_eq!(counts(&bench), (1, 1));

        let mut bench = Bench::listening(4);
        bench.replica.limits.panics_ppm = 1_000_000;
        bench.segment(4000, 100, 0, Flags::SYN);
        assert_eq!(counts(&bench), (1, 0));
    }

    #[test]
    fn a_stack_does_not_end_well_if_a_panic_was_caught_that_no_test_planted() {
        use crate::variants::{Setup, single::Single};
        use dominoes_drivers::memory::{MemoryConfig, pair};
        use std::panic::{AssertUnwindSafe, catch_unwind};

        let (device, _) = pair(MemoryConfig::default());
        let setup = Setup::new([10, 0, 0, 1].into(), 24, [1, 2]);
        let single = Single::new(setup, Box::new(device)).unwrap();
        let world = single.world();
        let ends_well = |replica: &super::Replica| {
            catch_unwind(AssertUnwindSafe(|| world.assert_no_panics(replica))).is_ok()
        };
        let mut bench = Bench::listening(4);
        let (conn, _) = bench.open(4000, 100);
        assert!(ends_well(&bench.replica));
        bench
            .replica
            .with(conn, &mut bench.effects, |_, _| panic!("a mistake"));
        assert!(!ends_well(&bench.replica));
        assert_eq!(world.unplanned_panics(), 1, "its stack knows");

        let mut bench = Bench::listening(4);
        bench.replica.limits.panics_ppm = 1_000_000;
        bench.segment(4000, 100, 0, Flags::SYN);
        assert_eq!(bench.replica.stats().panicked, 1);
        assert!(ends_well(&bench.replica));
    }
}
