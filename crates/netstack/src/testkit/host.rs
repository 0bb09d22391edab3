//! A stack of any variant over a scripted device, whose workers take their steps in a seeded order.

use core::cell::Cell;
use core::fmt;
use core::net::Ipv4Addr;
use core::ops::RangeInclusive;

use dominoes::Mismatch;
use dominoes_drivers::Device;
use dominoes_drivers::memory::{MemoryConfig, Script, scripted_with};

use std::panic::resume_unwind;

use super::Rng;
use super::life::{End, Fuse, Life, LifeStats, Mortal, with_flip, with_fuse};
use crate::engine::pump::moves::Note;
use crate::engine::replica::Replica;
use crate::error::ConfigError;
use crate::shards;
use crate::socket::Sockets;
use crate::stats::{EffectStats, MemberStats, PumpStats, StateStats};
use crate::time::{Duration, Instant};
use crate::variants::Setup;
use crate::variants::replicated::{Group, Layout, Primaries, Worker};
use crate::variants::single::Single;

/// Fruitless steps per worker before a round in which each takes all of its steps.
const FRUITLESS: usize = 3;
/// How long those who wait for another worker have nothing to do, unless something comes from outside.
const LOOK_AGAIN: Duration = Duration::from_micros(100);

/// How a stack is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Variant {
    /// One core, no log.
    Single,
    /// So many replicas over one log.
    Replicated(usize),
}

impl Variant {
    /// Those that every test of behaviour should pass.
    pub const ALL: [Variant; 4] = [
        Variant::Single,
        Variant::Replicated(1),
        Variant::Replicated(2),
        Variant::Replicated(4),
    ];
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Variant::Single => f.write_str("single"),
            Variant::Replicated(replicas) => write!(f, "replicated x {replicas}"),
        }
    }
}

/// How often a worker stands still between two of its steps, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stalls {
    /// Before so many steps in a million.
    pub ppm: u32,
    /// For so long, at most; each shorter time is as likely.
    pub longest: Duration,
}

/// A stack whose time, frames and order of steps are in the caller's hands.
///
/// The device takes every frame and has no offloads; its Ethernet address is 02:00 followed by the IP address.
pub struct Host {
    engine: Engine,
    script: Script,
    sockets: Sockets,
    rng: Rng,
    stalls: Stalls,
    /// Until when the worker on each seat stands still.
    stalled: Vec<Instant>,
    stall_count: u64,
    life: Life,
    life_stats: LifeStats,
    /// The seat whose state was changed and not repaired yet.
    flipped: Option<usize>,
    /// Whether it was found, and how many had been repaired when it changed.
    found: bool,
    repaired: u64,
    /// Workers whose changed state nobody found, and between which positions what they posted may be wrong.
    changed: Vec<(usize, RangeInclusive<u64>)>,
    /// The first position at which what the flipped one posts may be wrong.
    wrong_from: u64,
    /// Seats whose worker died, and for which another one was asked.
    revived: u64,
    /// Whether somebody may be about to come or go.
    is_moving: bool,
    flip_is_due: bool,
    /// Whether another group of the same stack may have taken in frames for it since it last found nothing to do.
    stirred: bool,
    /// Before when nothing is to be done unless something comes from outside.
    quiet_until: Cell<Instant>,
}

fn device_for(setup: &Setup) -> (Box<dyn Device>, Script) {
    let mac = Host::mac_of(setup.address);
    let mtu = usize::from(setup.limits.mtu);
    let config = MemoryConfig::default().mtu(mtu).macs(mac, mac);
    let (device, script) = scripted_with(config);
    (Box::new(device), script)
}

enum Engine {
    Single(Box<Single>),
    Group(Box<Group<Mortal>>),
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").finish_non_exhaustive()
    }
}

/// However a test uses it, what it was sent made nothing panic.
impl Drop for Host {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.unplanned_panics(), 0, "panics were caught");
        }
    }
}

impl Host {
    /// A stack made of `setup`; the order of its steps comes from `seed`.
    ///
    /// # Errors
    /// If a setting is out of its range.
    pub fn new(variant: Variant, setup: Setup, seed: u64) -> Result<Host, ConfigError> {
        Self::with_life(variant, setup, Life::default(), seed)
    }

    /// The same; workers come, go and fail as `life` says.
    ///
    /// # Errors
    /// If a setting is out of its range.
    pub fn with_life(
        variant: Variant,
        setup: Setup,
        life: Life,
        seed: u64,
    ) -> Result<Host, ConfigError> {
        let (device, script) = device_for(&setup);
        Self::over(variant, setup, life, (device, script), seed, seed)
    }

    /// A stack of several groups, each driven by itself; frames go in and out at any of them. The sockets of any are those
    /// of all.
    ///
    /// # Errors
    /// If a setting is out of its range.
    pub fn several(
        variant: Variant,
        setup: Setup,
        life: Life,
        groups: usize,
        seed: u64,
    ) -> Result<Vec<Host>, ConfigError> {
        let (device, script) = device_for(&setup);
        let parts = shards::divide(setup, groups, device, shards::INBOX)?;
        let mut seeds = Rng::new(seed);
        let hosts = parts.into_iter().map(|(setup, part)| {
            let own = (Box::new(part) as Box<dyn Device>, script.clone());
            Self::over(variant, setup, life, own, seed, seeds.next())
        });
        let mut hosts = hosts.collect::<Result<Vec<_>, _>>()?;
        let sockets = shards::sockets(hosts.iter().map(|host| host.sockets.clone()));
        for host in &mut hosts {
            host.sockets = sockets.clone();
        }
        Ok(hosts)
    }

    /// Its layout comes from one seed, the order of its steps from the other.
    fn over(
        variant: Variant,
        setup: Setup,
        life: Life,
        (device, script): (Box<dyn Device>, Script),
        layout_seed: u64,
        seed: u64,
    ) -> Result<Host, ConfigError> {
        let mut rng = Rng::new(layout_seed);
        let (engine, sockets, seats) = match variant {
            Variant::Single => {
                let single = Single::new(setup, device)?;
                let sockets = single.sockets();
                (Engine::Single(Box::new(single)), sockets, 1)
            }
            Variant::Replicated(replicas) => {
                // Small pieces, so that a short run crosses many boundaries.
                let layout = Layout {
                    replicas,
                    seats: replicas + life.free,
                    confirm: life.flips_ppm > 0,
                    primaries: Primaries::ALL[rng.below(Primaries::ALL.len() as u64) as usize],
                    log: 64 << rng.below(3),
                    request_chunk: 1 << rng.below(5),
                    frame_chunk: 1 << rng.below(6),
                    ahead_bytes: 1 << (10 + rng.below(8)),
                    steal_after: rng.below(64) as usize,
                    fingerprint_every: 1 + rng.below(32),
                    ..Layout::default()
                };
                let group = Group::with_tampers(setup, layout, device, |_| Mortal)?;
                let sockets = group.sockets();
                let seats = replicas + life.free;
                (Engine::Group(Box::new(group)), sockets, seats)
            }
        };
        if seed != layout_seed {
            rng = Rng::new(seed);
        }
        Ok(Host {
            engine,
            script,
            sockets,
            rng,
            stalls: Stalls::default(),
            stalled: vec![Instant::ZERO; seats],
            stall_count: 0,
            life,
            life_stats: LifeStats::default(),
            flipped: None,
            found: false,
            repaired: 0,
            changed: Vec::new(),
            wrong_from: 0,
            revived: 0,
            is_moving: false,
            flip_is_due: false,
            stirred: false,
            quiet_until: Cell::new(Instant::ZERO),
        })
    }

    /// The Ethernet address of the host at `address`.
    pub const fn mac_of(address: Ipv4Addr) -> [u8; 6] {
        let [a, b, c, d] = address.octets();
        [2, 0, a, b, c, d]
    }

    /// Lets workers stand still now and then, from now on.
    pub const fn set_stalls(&mut self, stalls: Stalls) {
        self.stalls = stalls;
    }

    /// How workers come, go and fail from now on. Seats, and whether states are confirmed, stay as they are.
    pub fn set_life(&mut self, life: Life) {
        self.life = life;
        self.quiet_until.set(Instant::ZERO);
    }

    /// What became of the workers so far.
    pub const fn life_stats(&self) -> LifeStats {
        self.life_stats
    }

    /// Flips a bit of a connection in the state of some worker, as soon as there is one with a request to apply, and
    /// another worker.
    pub fn flip_soon(&mut self) {
        self.flip_is_due = true;
        self.quiet_until.set(Instant::ZERO);
    }

    /// What became of the group's members so far, as it says itself.
    pub fn member_stats(&self) -> MemberStats {
        match &self.engine {
            Engine::Single(_) => MemberStats::default(),
            Engine::Group(group) => group.member_stats(),
        }
    }

    /// Asks for some connection to go to another of `groups` groups.
    pub fn move_any(&mut self, groups: usize) {
        let at = self.rng.next();
        let to = self.rng.below(groups as u64) as u16;
        let found = self.replicas().first().and_then(|replica| {
            let connections: Vec<_> = replica.connections().collect();
            let at = at.checked_rem(connections.len() as u64)?;
            let (conn, tcb) = connections[at as usize];
            Some((conn, tcb.flow()))
        });
        if let Some((conn, flow)) = found {
            let world = match &self.engine {
                Engine::Single(single) => single.world(),
                Engine::Group(group) => &group.shared().world,
            };
            world.door.notes.push(Note::Go { conn, flow, to });
        }
    }

    /// The sockets.
    pub const fn sockets(&self) -> &Sockets {
        &self.sockets
    }

    /// A frame arrives.
    pub fn inject(&self, frame: Vec<u8>) {
        self.script.push(frame);
    }

    /// What was sent since the last call, in order.
    pub fn take_sent(&self) -> Vec<Vec<u8>> {
        let sent = self.script.take_sent();
        sent.into_iter().map(|(frame, _)| frame).collect()
    }

    /// The device takes so many more frames and is then busy; `None`: no limit.
    pub fn accept_at_most(&self, frames: Option<usize>) {
        self.script.accept_at_most(frames);
        self.quiet_until.set(Instant::ZERO);
    }

    /// Frames that arrived and that no group has taken.
    pub(super) fn unclaimed(&self) -> usize {
        self.script.unclaimed()
    }

    /// Another group of the same stack did something: there may be frames for this one.
    pub(super) const fn stir(&mut self) {
        self.stirred = true;
    }

    /// Everything that can be done at `now` by workers that do not stand still. Returns how many steps did
    /// something.
    pub fn turn(&mut self, now: Instant) -> usize {
        if self.is_quiet(now) {
            return 0;
        }
        let done = self.turn_all(now);
        let quiet_until = if self.may_sleep(now) {
            self.next_event(now)
        } else if done == 0 && self.flipped.is_none() {
            // Somebody stands still, or is about to come: the others look again now and then.
            self.next_event(now).min(now + LOOK_AGAIN)
        } else {
            now
        };
        self.quiet_until.set(quiet_until);
        done
    }

    /// Whether there is nothing to do, as a stack's threads know before they sleep.
    fn is_quiet(&self, now: Instant) -> bool {
        let world = match &self.engine {
            Engine::Single(single) => single.world(),
            Engine::Group(group) => &group.shared().world,
        };
        !self.stirred
            && now < self.quiet_until.get()
            && self.script.unclaimed() == 0
            && !world.has_news()
    }

    /// Whether threads that ran this stack would sleep until its next event, all of them.
    fn may_sleep(&mut self, now: Instant) -> bool {
        let waits = self.is_moving || self.flipped.is_some() || self.flip_is_due;
        if self.stirred || waits || self.receives(now) {
            return false;
        }
        match &mut self.engine {
            Engine::Single(single) => !single.pumps().1.has_work(),
            Engine::Group(group) => {
                let mut workers = group.workers().iter_mut();
                !workers.any(|worker| worker.has_work() || worker.is_behind())
            }
        }
    }

    /// Whether there is something for the receive pump to take, or to tell.
    fn receives(&mut self, now: Instant) -> bool {
        if self.script.unclaimed() > 0 {
            return true;
        }
        match &mut self.engine {
            Engine::Single(single) => single.next_deadline() <= now || single.pumps().0.has_work(),
            Engine::Group(group) => {
                let mut workers = group.workers().iter();
                workers.any(|worker| worker.next_deadline() <= now)
                    || group
                        .shared()
                        .rx
                        .try_take()
                        .is_none_or(|side| side.pump.has_work() || side.pump.next_deadline() <= now)
            }
        }
    }

    fn turn_all(&mut self, now: Instant) -> usize {
        let mut done = 0;
        match &mut self.engine {
            Engine::Single(single) => loop {
                if self.rng.chance(self.stalls.ppm) && self.stalled[0] <= now {
                    self.stalled[0] = now + pause(&self.stalls, &mut self.rng);
                    self.stall_count += 1;
                }
                if self.stalled[0] > now {
                    return done;
                }
                if single.turn(now) == 0 {
                    self.stirred = false;
                    return done;
                }
                done += 1;
            },
            Engine::Group(_) => self.turn_group(now),
        }
    }

    fn turn_group(&mut self, now: Instant) -> usize {
        let (mut done, mut fruitless) = (0, 0);
        let mut awake = self.awake(now);
        loop {
            // Whoever comes, goes or falls asleep is news.
            let mut changed = self.live();
            if changed {
                awake = self.awake(now);
            }
            let live = awake.count_ones() as usize;
            if live == 0 {
                return done;
            }
            if fruitless < FRUITLESS * live {
                let seat = nth(awake, self.rng.below(live as u64));
                if self.rng.chance(self.stalls.ppm) {
                    self.stalled[seat] = now + pause(&self.stalls, &mut self.rng);
                    self.stall_count += 1;
                    changed = true;
                } else if self.step(seat, now) {
                    done += 1;
                    fruitless = 0;
                } else {
                    fruitless += 1;
                }
            } else if self.may_sleep(now) {
                return done;
            } else {
                let mut round = 0;
                for i in 0..live {
                    let seat = nth(awake, i as u64);
                    round += self.risk(seat, Fuse::Never, |worker, _| worker.turn(now));
                }
                round += self.come_and_go();
                if round == 0 {
                    self.stirred = false;
                    return done;
                }
                done += round;
                fruitless = 0;
                changed = true;
            }
            if self.is_moving || changed {
                self.come_and_go();
                awake = self.awake(now);
            }
        }
    }

    /// The seats of workers that do not stand still, a bit each.
    fn awake(&mut self, now: Instant) -> u64 {
        let Engine::Group(group) = &mut self.engine else {
            return 0;
        };
        let ids = group.workers().iter().map(Worker::id);
        let awake = ids.filter(|id| self.stalled[*id] <= now);
        awake.fold(0_u64, |mask, id| mask | 1 << id)
    }

    /// One step of the worker on seat `seat`. Says whether it did something.
    fn step(&mut self, seat: usize, now: Instant) -> bool {
        let mut fuse = Fuse::Never;
        if self.rng.chance(self.life.panics_ppm) && self.flipped.is_none() && self.staying() > 1 {
            fuse = match self.rng.below(3) {
                0 => Fuse::Applying,
                _ => Fuse::Performing(self.rng.below(4)),
            };
        }
        let did = |count: Option<usize>| count.is_some_and(|count| count > 0);
        let step = self.rng.below(8);
        if self.rng.below(8) > 0 && !self.promises(seat, step, now) {
            return false;
        }
        let what = |worker: &mut Worker<Mortal>, rng: &mut Rng| match step {
            0 => did(worker.pump(now)),
            1 => {
                let from = worker.replica().position();
                let published = worker.published();
                worker.prepare(from + rng.below(published.saturating_sub(from)))
            }
            2 | 3 => worker.apply(),
            4 => worker.perform(),
            5 => did(worker.send()),
            6 => did(worker.send_one()),
            _ => worker.turn(now) > 0,
        };
        self.risk(seat, fuse, what)
    }

    /// Whether step `step` of the worker on seat `seat` may find something to do. Most of the others are spared.
    fn promises(&mut self, seat: usize, step: u64, now: Instant) -> bool {
        let Engine::Group(group) = &mut self.engine else {
            return false;
        };
        let mut workers = group.workers().iter_mut();
        let works = step > 0 && workers.any(|worker| worker.id() == seat && worker.has_work());
        works || matches!(step, 0 | 7) && self.receives(now)
    }

    /// Lets the worker on seat `seat` do `what`, which may end in a panic: then it is no more.
    fn risk<R: Default>(
        &mut self,
        seat: usize,
        fuse: Fuse,
        what: impl FnOnce(&mut Worker<Mortal>, &mut Rng) -> R,
    ) -> R {
        let (Engine::Group(group), rng) = (&mut self.engine, &mut self.rng) else {
            return R::default();
        };
        let workers = group.workers();
        let Some(worker) = workers.iter_mut().find(|worker| worker.id() == seat) else {
            return R::default();
        };
        if fuse == Fuse::Never && self.flipped != Some(seat) {
            return what(worker, rng);
        }
        match with_fuse(fuse, || what(worker, rng)) {
            End::Done(done) => return done,
            End::Planted if fuse == Fuse::Applying => self.life_stats.deaths_applying += 1,
            End::Planted => self.life_stats.deaths_performing += 1,
            End::Other(panic) => self.unwound(seat, panic),
        }
        self.bury(seat);
        R::default()
    }

    /// The worker on seat `seat` panicked, as one may whose state was changed.
    fn unwound(&mut self, seat: usize, panic: Box<dyn core::any::Any + Send>) {
        if self.flipped != Some(seat) {
            resume_unwind(panic);
        }
        self.flipped = None;
        // It may have been in the middle of a request.
        let upto = self.position_of(seat) + 1;
        self.changed.push((seat, self.wrong_from..=upto));
        self.life_stats.unwound += 1;
    }

    /// How far the worker on seat `seat` has applied the log; 0 if there is none.
    fn position_of(&mut self, seat: usize) -> u64 {
        let Engine::Group(group) = &mut self.engine else {
            return 0;
        };
        let mut workers = group.workers().iter();
        let worker = workers.find(|worker| worker.id() == seat);
        worker.map_or(0, |worker| worker.replica().position())
    }

    /// The worker on seat `seat` is no more. Mostly another one is to take its place.
    fn bury(&mut self, seat: usize) {
        let Engine::Group(group) = &mut self.engine else {
            return;
        };
        let found = group
            .workers()
            .iter()
            .position(|worker| worker.id() == seat);
        let Some(index) = found else { return };
        let left = group.workers()[index].has_left();
        self.is_moving = true;
        drop(group.take(index));
        self.stalled[seat] = Instant::ZERO;
        if left {
            self.life_stats.leaves += 1;
        } else if self.rng.chance(750_000) && group.join(Some(seat), Mortal).is_ok() {
            self.revived |= 1 << seat;
        }
    }

    /// Workers that have a state, and were not asked to leave.
    fn staying(&mut self) -> usize {
        let Engine::Group(group) = &mut self.engine else {
            return 1;
        };
        let workers = group.workers().iter();
        workers.filter(|worker| worker.is_member()).count()
    }

    /// Somebody may come, go or fail before the next step. Says whether somebody did.
    fn live(&mut self) -> bool {
        if self.flipped.is_some() {
            // With one of three wrong, nobody else may go missing; others may come.
            self.look_after_the_flipped();
            return self.rng.chance(self.life.joins_ppm) && self.join();
        }
        if self.flip_is_due && self.staying() > 1 {
            let before = self.life_stats.flips;
            self.flip_any();
            self.flip_is_due = self.life_stats.flips == before;
            return true;
        }
        let life = self.life;
        if life.is_still() {
            return false;
        }
        let mut at = self.rng.below(1_000_000) as u32;
        let mut is = |ppm: u32| {
            let is = at < ppm;
            at = at.saturating_sub(ppm).max(if is { u32::MAX } else { 0 });
            is
        };
        let (joins, leaves) = (is(life.joins_ppm), is(life.leaves_ppm));
        let (dies, flips) = (is(life.deaths_ppm), is(life.flips_ppm));
        if !(joins || leaves || dies || flips) {
            return false;
        }
        let staying = self.staying();
        let Engine::Group(group) = &mut self.engine else {
            return false;
        };
        self.is_moving = true;
        let any = self.rng.below(group.workers().len() as u64) as usize;
        let seat = group.workers()[any].id();
        if joins {
            self.join();
        } else if leaves {
            // The last one stays.
            let _ = group.leave(Some(seat));
        } else if dies && staying > 1 {
            self.life_stats.deaths += 1;
            self.bury(seat);
        } else if flips && staying == group.workers().len() && group.joining() == 0 {
            let position = group.workers()[any].replica().position();
            let voters = group.workers().iter();
            // Those who were given their states farther on cannot say who is right here.
            if voters.filter(|worker| worker.since() <= position).count() >= 3 {
                self.flip(seat);
            }
        }
        true
    }

    /// Somebody joins, if a seat is free. Says whether somebody does.
    fn join(&mut self) -> bool {
        let Engine::Group(group) = &mut self.engine else {
            return false;
        };
        let joins = group.join(None, Mortal).is_ok();
        self.is_moving |= joins;
        joins
    }

    fn flip_any(&mut self) {
        let Engine::Group(group) = &mut self.engine else {
            return;
        };
        let any = self.rng.below(group.workers().len() as u64) as usize;
        let seat = group.workers()[any].id();
        self.flip(seat);
    }

    /// A bit of the state of the worker on seat `seat` flips before it applies its next request, if it can.
    fn flip(&mut self, seat: usize) {
        let Engine::Group(group) = &mut self.engine else {
            return;
        };
        self.repaired = group.member_stats().repaired;
        let (nth, bit) = (self.rng.next(), self.rng.next() as u32);
        let workers = group.workers();
        let Some(worker) = workers.iter_mut().find(|worker| worker.id() == seat) else {
            return;
        };
        let before = worker.replica().position();
        let (flipped, end) = with_flip(nth, bit, || worker.apply());
        if flipped {
            (self.flipped, self.wrong_from) = (Some(seat), before + 1);
            self.found = false;
            self.life_stats.flips += 1;
        }
        if let End::Other(panic) = end {
            self.unwound(seat, panic);
            self.bury(seat);
        }
    }

    /// Whether the worker whose state was changed is right again.
    fn look_after_the_flipped(&mut self) {
        let (Some(seat), Engine::Group(group)) = (self.flipped, &mut self.engine) else {
            return;
        };
        let workers = group.workers();
        let Some(flipped) = workers.iter().find(|worker| worker.id() == seat) else {
            return;
        };
        if !flipped.is_member() {
            self.life_stats.found += u64::from(!self.found);
            self.found = true;
            return;
        }
        if self.found {
            // It has a state again.
            self.flipped = None;
            self.life_stats.repairs += group.member_stats().repaired - self.repaired;
            return;
        }
        // Seldom, since it takes long.
        if self.rng.below(64) == 0 {
            let replica = flipped.replica();
            let others = workers.iter().filter(|worker| worker.id() != seat);
            let mut there = others.filter(|other| other.replica().position() == replica.position());
            // What it posted meanwhile may still be held against it.
            let overwritten = there.next().is_some_and(|other| {
                other.replica().whole_fingerprint() == replica.whole_fingerprint()
                    && flipped.posted_alike(other, self.wrong_from)
            });
            if overwritten {
                self.flipped = None;
                self.changed
                    .push((seat, self.wrong_from..=replica.position()));
                self.life_stats.overwritten += 1;
            }
        }
    }

    /// Whether somebody waits for a state, or was asked to leave.
    fn is_anybody_about_to_move(&mut self) -> bool {
        let Engine::Group(group) = &mut self.engine else {
            return false;
        };
        group.joining() > 0 || group.workers().iter().any(|worker| !worker.is_member())
    }

    /// Those who were given a state sit down, and those who have left go. Returns how many sat down.
    fn come_and_go(&mut self) -> usize {
        let Engine::Group(group) = &mut self.engine else {
            return 0;
        };
        if !self.is_moving {
            return 0;
        }
        let before = group.workers().len();
        let came = group.seat();
        for worker in &group.workers()[before..] {
            let revived = self.revived >> worker.id() & 1;
            self.revived &= !(1 << worker.id());
            self.life_stats.joins += 1;
            self.life_stats.revivals += revived;
        }
        let left = group.workers().iter().filter(|worker| worker.has_left());
        let left = left.fold(0_u64, |mask, worker| mask | 1 << worker.id());
        for i in 0..left.count_ones() {
            self.bury(nth(left, u64::from(i)));
        }
        self.is_moving = self.is_anybody_about_to_move();
        came
    }

    /// The first moment after `now` at which [`Host::turn`] has something to do though nothing comes from
    /// outside.
    pub fn next_event(&mut self, now: Instant) -> Instant {
        let (mut next, all_awake) = self
            .stalled
            .iter()
            .filter(|&&until| until > now)
            .fold((Instant::NEVER, true), |(next, _), &until| {
                (next.min(until), false)
            });
        let mut consider = |deadline: Instant| {
            if deadline > now {
                next = next.min(deadline);
            }
        };
        match &mut self.engine {
            Engine::Single(single) => consider(single.next_deadline()),
            Engine::Group(group) => {
                for worker in group.workers() {
                    consider(worker.next_deadline());
                }
                if let Some(side) = group.shared().rx.try_take() {
                    consider(side.pump.next_deadline());
                }
            }
        }
        debug_assert!(all_awake || next != Instant::NEVER, "who stalls goes on");
        next
    }

    /// The states, as far as each replica has come, but for one that was changed.
    pub fn replicas(&mut self) -> Vec<&Replica> {
        match &mut self.engine {
            Engine::Single(single) => vec![single.replica()],
            Engine::Group(group) => {
                let flipped = self.flipped;
                let workers = group.workers().iter();
                let knowing =
                    workers.filter(|worker| worker.is_member() && Some(worker.id()) != flipped);
                knowing.map(Worker::replica).collect()
            }
        }
    }

    /// How many requests were applied, by who has come farthest.
    pub fn position(&mut self) -> u64 {
        match &mut self.engine {
            Engine::Single(single) => single.replica().position(),
            Engine::Group(group) => {
                let positions = group
                    .workers()
                    .iter()
                    .map(|worker| worker.replica().position());
                positions.max().unwrap_or(0)
            }
        }
    }

    /// How many panics ended a connection that were not planted: none, unless there is a bug. Not asked of a replica whose
    /// state was changed.
    pub fn unplanned_panics(&mut self) -> u64 {
        let replicas = self.replicas().into_iter();
        let counts = replicas.map(Replica::unplanned_panics);
        counts.max().unwrap_or(0)
    }

    /// Checks that the replicas agree: all posted fingerprints, every field of those that have come equally far, that
    /// no primary found work that could not be, and that no panic was caught but those that were planted. Returns how
    /// much was compared.
    ///
    /// # Errors
    /// What differs.
    pub fn check(&mut self) -> Result<usize, String> {
        let diverged = self.effect_stats().diverged;
        if diverged > 0 {
            return Err(format!("{diverged} effects found their work impossible"));
        }
        let panics = self.unplanned_panics();
        if panics > 0 {
            return Err(format!("{panics} panics were caught"));
        }
        let mut compared = match &self.engine {
            Engine::Single(_) => 0,
            Engine::Group(group) => match group.compare() {
                Ok(compared) => compared,
                // What was posted with a changed state may still be there.
                Err(differ) if self.was_changed(&differ) => 0,
                Err(differ) => return Err(format!("{differ:?}")),
            },
        };
        let replicas = self.replicas();
        for pair in replicas.windows(2) {
            if pair[0].position() == pair[1].position() {
                if let Some(field) = pair[0].first_difference(pair[1]) {
                    return Err(format!("replicas differ: {field}"));
                }
                compared += 1;
            }
        }
        Ok(compared)
    }

    /// Whether a change explains it: the others agree without those who were changed. Who would make up a majority with
    /// them may have left since.
    fn was_changed(&self, mismatch: &Mismatch) -> bool {
        let position = mismatch.position;
        let is_flipped = |seat| self.flipped == Some(seat) && position >= self.wrong_from;
        let changed = |seat: usize| {
            let was = |(who, when): &(usize, RangeInclusive<u64>)| {
                *who == seat && when.contains(&position)
            };
            is_flipped(seat) || self.changed.iter().any(was)
        };
        let posted = mismatch.fingerprints.iter();
        let mut others = posted.filter(|(seat, _)| !changed(*seat));
        let first = others.next().map(|(_, print)| *print);
        others.all(|(_, print)| Some(*print) == first)
    }

    /// Counters of the state.
    pub fn state_stats(&mut self) -> StateStats {
        let replicas = self.replicas();
        replicas[0].stats()
    }

    /// What was performed, by all workers together.
    pub fn effect_stats(&mut self) -> EffectStats {
        match &mut self.engine {
            Engine::Single(single) => single.effect_stats(),
            Engine::Group(group) => {
                let mut sum = EffectStats::default();
                // Of those who are gone, too.
                for stats in group.shared().shares() {
                    sum.prepared += stats.prepared;
                    sum.stored_ahead += stats.stored_ahead;
                    sum.deliveries += stats.deliveries;
                    sum.delivered_bytes += stats.delivered_bytes;
                    sum.frames += stats.frames;
                    sum.sent_bytes += stats.sent_bytes;
                    sum.diverged += stats.diverged;
                    sum.stolen += stats.stolen;
                }
                sum
            }
        }
    }

    /// What the pump saw.
    pub fn pump_stats(&self) -> PumpStats {
        match &self.engine {
            Engine::Single(single) => single.pump_stats(),
            Engine::Group(group) => group.pump_stats().unwrap_or_default(),
        }
    }

    /// How often a worker stood still.
    pub const fn stall_count(&self) -> u64 {
        self.stall_count
    }
}

fn pause(stalls: &Stalls, rng: &mut Rng) -> Duration {
    Duration::from_nanos(1 + rng.below(stalls.longest.as_nanos()))
}

/// The number of the `n`th bit that is set.
fn nth(mut mask: u64, n: u64) -> usize {
    for _ in 0..n {
        mask &= mask - 1;
    }
    mask.trailing_zeros() as usize
}
