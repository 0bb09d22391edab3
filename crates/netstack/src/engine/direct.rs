//! A thread that has the state to itself: what the pump brings is verified, applied and performed at once, without a log.

use super::Run;
use super::perform::{self, Template};
use super::prepare::prepare_and_store;
use super::pump::Log;
use super::replica::Replica;
use super::world::{Wakes, World};
use crate::digest::Request;
use crate::effect::Effect;
use crate::stats::EffectStats;

/// Requests that may be brought at once: there is no log, so no bound but this.
const ROOM: usize = 1 << 10;

/// A request of the pump, its verdict if that is known, and the frames it is about.
type Brought = (Request, Option<u16>, Run);

/// What the pump brought, and what became of it.
#[derive(Default)]
pub(crate) struct Direct {
    brought: Vec<Brought>,
    /// What was brought before, whose frames go back.
    done: Vec<Brought>,
    effects: Vec<Effect>,
    /// Where the log stands that goes on later.
    position: u64,
}

impl Log for Direct {
    fn room(&mut self) -> usize {
        ROOM - self.brought.len()
    }

    fn publish(&mut self, request: &Request, verdict: Option<u16>, run: Run) {
        self.brought.push((*request, verdict, run));
    }

    fn reclaim(&mut self, each: &mut dyn FnMut(Run)) {
        self.done.drain(..).for_each(|(_, _, run)| each(run));
        if self.brought.is_empty() {
            // Its memory serves again.
            core::mem::swap(&mut self.brought, &mut self.done);
        }
    }

    /// All that is brought together counts as one.
    fn published(&self) -> u64 {
        self.position + u64::from(!self.brought.is_empty())
    }

    fn performed(&self) -> u64 {
        self.position + u64::from(self.brought.is_empty())
    }
}

impl Direct {
    /// Begins where a log stands, all of which is performed.
    pub(crate) fn begin(&mut self, position: u64) {
        self.position = position;
    }

    /// Does what the pump brought, one step after the other: all checksums first, as reading what a device wrote
    /// goes fastest when nothing comes between. Returns how many requests that were.
    pub(crate) fn work(
        &mut self,
        world: &World,
        replica: &mut Replica,
        template: &mut Template,
        stats: &mut EffectStats,
    ) -> usize {
        let Direct {
            brought, effects, ..
        } = self;
        for (request, verdict, run) in &mut *brought {
            if verdict.is_none() {
                stats.prepared += 1;
                *verdict = Some(prepare_and_store(world, request, run));
            }
        }
        let mut wakes = Wakes::new(world);
        replica.apply_each(
            &*brought,
            effects,
            |one| (&one.0, one.1.unwrap_or(0)),
            |(request, _, run), effects| {
                perform::all(
                    world,
                    &*effects,
                    (request, run),
                    template,
                    stats,
                    &mut wakes,
                );
                effects.clear();
            },
        );
        let count = brought.len();
        if self.done.is_empty() {
            core::mem::swap(brought, &mut self.done);
        } else {
            self.done.append(brought);
        }
        count
    }
}
