//! A thread that has the state to itself: what the pump brings is verified, applied and performed
//! at once, without a log.
//!
//! Where runs must not be merged, segments that are alike travel together as far as here all the
//! same: each is a request of its own. As a rule what comes of them can be told at once ([`Row`]);
//! if not, they are taken apart and applied one by one.

use core::slice;

use dominoes_drivers::Frame;

use super::perform::{self, Template};
use super::prepare::prepare_and_store;
use super::world::{Wakes, World};
use crate::io::rx::Log;
use crate::io::{Payload, Run};
use crate::log::effect::{Deliver, Effect, EffectSink, Row};
use crate::log::request::{Body, Digest, Flags, Options, Request};
use crate::state::apply::{Replica, Requests};
use crate::stats::EffectStats;
use crate::time::Instant;

/// Requests that may wait at once: there is no log, so no bound but this.
const ROOM: usize = 1 << 10;

/// What only the last segment of a run may say.
const LAST_ONLY: Flags = Flags::PSH.with(Flags::FIN);

/// A request that the pump published, with its frames.
struct Entry {
    request: Request,
    /// One bit per segment, once that is known.
    verdict: Option<u16>,
    /// The frames that it is about.
    run: Run,
    /// Whether its segments are requests of their own.
    apart: bool,
}

/// What one request asks for. Nearly every one with text asks first for its delivery, which has a
/// place of its own: whoever performs it finds it without a search.
#[derive(Default)]
struct RequestEffects {
    first: Option<Deliver>,
    others: Vec<Effect>,
    /// Nothing else, if this is there.
    row: Option<Row>,
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

    #[inline(always)]
    fn push_row(&mut self, row: Row) {
        self.row = Some(row);
    }

    fn mark(&self) -> usize {
        usize::from(self.first.is_some()) + self.others.len()
    }

    fn take_back(&mut self, mark: usize) {
        self.row = None;
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
    entries: Vec<Entry>,
    /// Requests that are done, whose frames go back.
    done: Vec<Entry>,
    effects: RequestEffects,
    /// Where the log stands that goes on later.
    position: u64,
}

impl Log for DirectLog {
    fn room(&mut self) -> usize {
        ROOM - self.entries.len()
    }

    fn publish(&mut self, request: &Request, verdict: Option<u16>, run: Run) {
        self.append(request, verdict, run, false);
    }

    fn takes_apart(&self) -> bool {
        true
    }

    fn publish_apart(&mut self, request: &Request, verdict: Option<u16>, run: Run) {
        self.append(request, verdict, run, true);
    }

    fn reclaim(&mut self, each: &mut dyn FnMut(Run)) {
        self.done.drain(..).for_each(|entry| each(entry.run));
        if self.entries.is_empty() {
            // Its memory serves again.
            core::mem::swap(&mut self.entries, &mut self.done);
        }
    }

    /// All waiting requests count as one.
    fn published(&self) -> u64 {
        self.position + u64::from(!self.entries.is_empty())
    }

    fn performed(&self) -> u64 {
        self.position + u64::from(self.entries.is_empty())
    }
}

impl DirectLog {
    /// Begins where a log stands, all of which is performed.
    pub(crate) fn begin(&mut self, position: u64) {
        self.position = position;
    }

    fn append(&mut self, request: &Request, verdict: Option<u16>, run: Run, apart: bool) {
        self.entries.push(Entry {
            request: *request,
            verdict,
            run,
            apart,
        });
    }

    /// Performs the waiting requests, one step after the other: all checksums first, as reading
    /// what a device wrote goes fastest when nothing comes between. Returns how many requests that
    /// were.
    pub(crate) fn work(
        &mut self,
        world: &World,
        replica: &mut Replica,
        template: &mut Template,
        stats: &mut EffectStats,
    ) -> usize {
        let DirectLog {
            entries, effects, ..
        } = self;
        for Entry {
            request,
            verdict,
            run,
            ..
        } in &mut *entries
        {
            if verdict.is_none() {
                stats.prepared += 1;
                let (found, stored) = prepare_and_store(world, request, run);
                match stored {
                    true => stats.stored_ahead += u64::from(request.digest.len),
                    false => run.place = None,
                }
                *verdict = Some(found);
            }
        }
        let nothing = Run::default();
        let mut performing = Performing {
            world,
            template,
            stats,
            wakes: Wakes::new(world),
            entries: entries.iter(),
            request: Request::tick(Instant::ZERO, 0),
            is_row: false,
            verdict: 0,
            payload: nothing.payload(false),
            layout: (0, 0),
            behind: 0,
            frames: nothing.frames.iter(),
            run: None,
            applied: 0,
        };
        replica.apply_each(&mut performing, effects);
        let applied = performing.applied;
        drop(performing);
        if self.done.is_empty() {
            core::mem::swap(entries, &mut self.done);
        } else {
            self.done.append(entries);
        }
        applied
    }
}

/// The waiting requests, each of which is performed when it is applied.
struct Performing<'a> {
    world: &'a World,
    template: &'a mut Template,
    stats: &'a mut EffectStats,
    wakes: Wakes<'a>,
    entries: slice::Iter<'a, Entry>,
    /// What is being applied. A run that is taken apart becomes one of its segments after the
    /// other.
    request: Request,
    /// Whether each of its segments is a request, and it is not taken apart yet.
    is_row: bool,
    verdict: u16,
    payload: Payload<'a>,
    /// How the text lies in its frames.
    layout: (u32, usize),
    /// How many segments of that run come behind this one, ...
    behind: usize,
    /// ... their frames, ...
    frames: slice::Iter<'a, Frame>,
    /// ... and the run.
    run: Option<&'a Entry>,
    applied: usize,
}

impl<'a> Requests<RequestEffects> for Performing<'a> {
    #[inline(always)]
    fn advance(&mut self) -> bool {
        if self.behind > 0
            && let Some(run) = self.run
        {
            self.behind -= 1;
            follow(&mut self.request.digest, &run.request, self.behind);
            self.verdict >>= 1;
            self.payload.seq = self.request.digest.seg_seq;
            self.payload.frames = self.frames.next().map_or(&[], slice::from_ref);
            return true;
        }
        let Some(entry) = self.entries.next() else {
            return false;
        };
        self.request = entry.request;
        self.verdict = entry.verdict.unwrap_or(0);
        self.payload = entry.run.payload(true);
        self.layout = entry.request.layout();
        self.is_row = entry.apart;
        self.run = Some(entry);
        true
    }

    #[inline(always)]
    fn current(&self) -> (&Request, u16) {
        (&self.request, self.verdict)
    }

    #[inline(always)]
    fn is_row(&self) -> bool {
        self.is_row
    }

    /// Makes the run its first segment.
    #[inline(always)]
    fn take_apart(&mut self) {
        if let (true, Some(run)) = (self.is_row, self.run) {
            self.is_row = false;
            self.behind = usize::from(run.request.digest.count) - 1;
            take_first(&mut self.request);
            self.frames = run.run.frames.iter();
            self.payload.frames = self.frames.next().map_or(&[], slice::from_ref);
        }
    }

    #[inline(always)]
    fn applied(&mut self, asked: &mut RequestEffects) {
        if let Some(row) = &asked.row {
            self.row(row);
            asked.row = None;
            return;
        }
        self.applied += 1;
        if let Some(deliver) = &asked.first {
            perform::deliver(self.world, deliver, self.layout, &self.payload, self.stats);
            self.wakes.add(deliver.conn);
            asked.first = None;
        }
        if !asked.others.is_empty() {
            self.others(&mut asked.others);
        }
    }
}

impl<'a> Performing<'a> {
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
        perform::all(
            self.world,
            &*effects,
            (&self.request, self.payload),
            self.template,
            self.stats,
            &mut self.wakes,
        );
        effects.clear();
    }

    /// Does what a row asked for.
    #[inline(never)]
    fn row(&mut self, row: &Row) {
        self.applied += row.count as usize;
        perform::deliver_row(self.world, row, self.layout, &self.payload, self.stats);
        self.wakes.add(row.deliver.conn);
        perform::build_row_acks(self.world, row, self.template, self.stats);
    }
}

/// Makes a run its first segment alone.
fn take_first(run: &mut Request) {
    let Request { digest, body } = run;
    digest.bits &= !Digest::ACKS;
    if let Body::Segment { options, .. } = body
        && let Options::Acks(_) = options
    {
        *options = Options::None;
    }
    if digest.count > 1 {
        digest.count = 1;
        digest.len = u32::from(digest.seg_len);
        digest.flags = digest.flags.without(LAST_ONLY);
    }
}

/// Makes a segment of `run` the next one, which has so many `behind` it.
#[inline(always)]
fn follow(alone: &mut Digest, run: &Request, behind: usize) {
    alone.seg_seq += alone.len;
    if alone.len == 0 {
        let index = usize::from(run.digest.count) - 1 - behind;
        if let Body::Segment { options, .. } = &run.body
            && let Options::Acks(acks) = options
        {
            alone.seg_ack = acks.ack[index - 1];
            alone.seg_wnd = acks.wnd[index - 1];
        }
    } else if behind == 0 {
        alone.len = run.digest.len - (alone.seg_seq.since(run.digest.seg_seq));
        alone.seg_len = alone.len as u16;
        alone.flags = run.digest.flags;
    }
}

/// The requests that a run is taken apart into.
#[cfg(test)]
pub(crate) fn taken_apart(run: &Request) -> Vec<Request> {
    let mut alone = *run;
    take_first(&mut alone);
    let mut all = vec![alone];
    for behind in (0..usize::from(run.digest.count) - 1).rev() {
        follow(&mut alone.digest, run, behind);
        all.push(alone);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::request::{Acks, Flow, Kind, MORE_ACKS, Mac};
    use crate::seqnum::SeqNum;
    use core::net::{Ipv4Addr, SocketAddrV4};

    fn run(options: Options) -> Request {
        let mut digest = Digest::bare(Kind::Segments, Instant::ZERO, 0);
        digest.seg_seq = SeqNum(u32::MAX - 9);
        digest.seg_ack = SeqNum(7);
        digest.flags = Flags::ACK;
        let nobody = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
        Request {
            digest,
            body: Body::Segment {
                flow: Flow {
                    local: nobody,
                    remote: nobody,
                },
                mac: Mac::default(),
                payload_offset: 54,
                options,
            },
        }
    }

    #[test]
    fn a_run_falls_apart_into_the_segments_that_it_came_from() {
        let mut three = run(Options::None);
        let digest = &mut three.digest;
        (digest.count, digest.seg_len, digest.len) = (3, 10, 24);
        digest.flags = Flags::ACK.with(Flags::FIN);
        let all = taken_apart(&three);
        let seen: Vec<_> = all.iter().map(|one| one.digest).collect();
        assert!(seen.iter().all(|digest| digest.count == 1));
        let of = |what: fn(&Digest) -> u32| seen.iter().map(what).collect::<Vec<_>>();
        assert_eq!(of(|digest| digest.seg_seq.0), [u32::MAX - 9, 0, 10]);
        assert_eq!(of(|digest| digest.len), [10, 10, 4]);
        assert_eq!(of(|digest| digest.seg_len.into()), [10, 10, 4]);
        let flags = [Flags::ACK, Flags::ACK, Flags::ACK.with(Flags::FIN)];
        assert_eq!(
            of(|digest| digest.flags.0.into()),
            flags.map(|f| f.0.into())
        );
    }

    #[test]
    fn a_run_of_one_stays_as_it_is() {
        let mut one = run(Options::None);
        let digest = &mut one.digest;
        (digest.count, digest.seg_len, digest.len) = (1, 10, 10);
        digest.flags = Flags::ACK.with(Flags::PSH);
        assert_eq!(taken_apart(&one), [one]);
    }

    #[test]
    fn acknowledgments_that_came_together_say_each_its_own() {
        let mut acks = Acks::default();
        acks.ack[..2].copy_from_slice(&[SeqNum(8), SeqNum(9)]);
        acks.wnd[..2].copy_from_slice(&[80, 90]);
        let mut three = run(Options::Acks(acks));
        three.digest.bits = Digest::ACKS;
        three.digest.count = 3;
        let all = taken_apart(&three);
        assert!(all.len() <= MORE_ACKS);
        for (one, (ack, wnd)) in all.iter().zip([(7, 0), (8, 80), (9, 90)]) {
            let digest = &one.digest;
            assert_eq!((digest.seg_ack.0, digest.seg_wnd), (ack, wnd));
            assert_eq!((digest.count, digest.bits), (1, 0));
            let Body::Segment { options, .. } = one.body else {
                panic!("no segment")
            };
            assert_eq!(options, Options::None);
        }
    }
}
