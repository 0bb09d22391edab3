//! The log of a thread that owns the state alone. It has no ring: the thread verifies, applies and
//! performs the pump's requests at once.

use core::iter::Zip;
use core::slice::Iter;

use super::perform::{self, Template};
use super::prepare::prepare_and_store_by;
use super::world::{Wakes, World};
use crate::io::Run;
use crate::io::rx::Log;
use crate::log::effect::{Deliver, Effect, EffectSink};
use crate::log::request::{Request, Verdict};
use crate::packet::checksum::{Copier, Copying, with_copier};
use crate::state::apply::{ReplicaState, Requests};
use crate::stats::EffectStats;

/// Maximum number of requests that wait at one time.
const ROOM: usize = 1 << 10;

/// Verdict and frames of a request.
struct Entry {
    /// One bit per segment, once verified.
    verdict: Option<Verdict>,
    /// The frames of the request.
    run: Run,
}

/// The effects of one request. The first effect of a request with payload is nearly always a
/// delivery. It has a separate field, so `take_effects` finds it without a search.
#[derive(Default)]
struct RequestEffects {
    first: Option<Deliver>,
    others: Vec<Effect>,
}

impl EffectSink for RequestEffects {
    #[inline(always)]
    fn push(&mut self, effect: Effect) {
        match effect {
            Effect::Deliver(deliver) if self.first.is_none() && self.others.is_empty() => {
                self.first = Some(deliver);
            }
            other => self.others.push(other),
        }
    }

    fn mark(&self) -> usize {
        usize::from(self.first.is_some()) + self.others.len()
    }

    fn take_back(&mut self, mark: usize) {
        if mark == 0 {
            self.first = None;
        }
        self.others
            .truncate(mark - usize::from(self.first.is_some()));
    }
}

/// The requests that the pump published since the last call of [`DirectLog::work`].
#[derive(Default)]
pub(crate) struct DirectLog {
    requests: Vec<Request>,
    /// As many as `requests`.
    entries: Vec<Entry>,
    /// Entries of performed requests; the pump reclaims their frames.
    done: Vec<Entry>,
    effects: RequestEffects,
    /// The position at which the group's log will continue.
    position: u64,
}

impl Log for DirectLog {
    fn room(&mut self) -> usize {
        ROOM - self.entries.len()
    }

    #[inline]
    fn publish(&mut self, request: &Request, verdict: Option<Verdict>, run: Run) {
        self.requests.push(*request);
        self.entries.push(Entry { verdict, run });
    }

    fn reclaim(&mut self, each: &mut dyn FnMut(Run)) {
        self.done.drain(..).for_each(|entry| each(entry.run));
        if self.entries.is_empty() {
            // Keeps the allocation for later requests.
            core::mem::swap(&mut self.entries, &mut self.done);
        }
    }

    /// All waiting requests count as one position.
    fn published(&self) -> u64 {
        self.position + u64::from(!self.entries.is_empty())
    }

    fn performed(&self) -> u64 {
        self.position + u64::from(self.entries.is_empty())
    }
}

impl DirectLog {
    /// Begins at the position of a log that is completely performed.
    pub(crate) fn begin(&mut self, position: u64) {
        self.position = position;
    }

    /// Prepares all waiting requests, then applies and performs them. All checksums come first:
    /// reading bytes that a device wrote is fastest without other work in between. Returns how
    /// many requests were applied.
    pub(crate) fn work(
        &mut self,
        world: &World,
        replica: &mut ReplicaState,
        template: &mut Template,
        stats: &mut EffectStats,
    ) -> usize {
        let DirectLog {
            requests,
            entries,
            effects,
            ..
        } = self;
        with_copier(PrepareAll {
            world,
            requests,
            entries,
            stats,
        });
        let mut performing = Performing {
            world,
            template,
            stats,
            wakes: Wakes::new(world),
            waiting: requests.iter().zip(&*entries),
            now: None,
            applied: 0,
        };
        replica.apply_each(&mut performing, effects);
        let applied = performing.applied;
        drop(performing);
        requests.clear();
        if self.done.is_empty() {
            core::mem::swap(entries, &mut self.done);
        } else {
            self.done.append(entries);
        }
        applied
    }
}

/// Prepares all waiting requests.
struct PrepareAll<'a> {
    world: &'a World,
    requests: &'a [Request],
    entries: &'a mut [Entry],
    stats: &'a mut EffectStats,
}

impl Copying for PrepareAll<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self, copier: impl Copier) {
        for (request, Entry { verdict, run }) in self.requests.iter().zip(self.entries) {
            if verdict.is_none() {
                self.stats.prepared += 1;
                let (found, stored) = prepare_and_store_by(copier, self.world, request, run);
                match stored {
                    true => self.stats.stored_ahead += u64::from(request.digest.len),
                    false => run.place = None,
                }
                *verdict = Some(found);
            }
        }
    }
}

/// The waiting requests; each is performed as soon as it is applied.
struct Performing<'a> {
    world: &'a World,
    template: &'a mut Template,
    stats: &'a mut EffectStats,
    wakes: Wakes<'a>,
    waiting: Zip<Iter<'a, Request>, Iter<'a, Entry>>,
    /// The request that is being applied.
    now: Option<(&'a Request, &'a Entry)>,
    applied: usize,
}

impl<'a> Performing<'a> {
    #[inline(always)]
    fn now(&self) -> (&'a Request, &'a Entry) {
        self.now.expect("a request is being applied")
    }
}

impl Requests<RequestEffects> for Performing<'_> {
    #[inline(always)]
    fn advance(&mut self) -> bool {
        self.now = self.waiting.next();
        self.now.is_some()
    }

    #[inline(always)]
    fn current(&self) -> (&Request, Verdict) {
        let (request, entry) = self.now();
        (request, entry.verdict.unwrap_or(0))
    }

    #[inline(always)]
    fn take_effects(&mut self, asked: &mut RequestEffects) {
        self.applied += 1;
        if let Some(deliver) = &asked.first {
            let (request, entry) = self.now();
            let (layout, payload) = (request.layout(), entry.run.payload(true));
            perform::deliver(self.world, deliver, layout, &payload, self.stats);
            self.wakes.add(deliver.conn);
            asked.first = None;
        }
        if !asked.others.is_empty() {
            self.others(&mut asked.others);
        }
    }
}

impl Performing<'_> {
    #[inline(never)]
    fn others(&mut self, effects: &mut Vec<Effect>) {
        if let [Effect::Transmit(transmit)] = &effects[..]
            && transmit.payload_len == 0
        {
            // An acknowledgment.
            perform::build_bare(self.world, transmit, self.template, self.stats);
            effects.clear();
            return;
        }
        let (request, entry) = self.now();
        perform::all(
            self.world,
            &*effects,
            (request, entry.run.payload(true)),
            self.template,
            self.stats,
            &mut self.wakes,
        );
        effects.clear();
    }
}
