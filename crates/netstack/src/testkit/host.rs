//! A stack of any variant over a scripted device, whose workers take their steps in a seeded order.

use crate::log::request::Address;
use core::cell::Cell;
use core::fmt;
use core::net::IpAddr;
use core::ops::RangeInclusive;

use dominoes::Mismatch;
use dominoes_drivers::memory::{MemoryConfig, Script, scripted_with};
use dominoes_drivers::{Device, TxMeta};

use std::panic::resume_unwind;
use std::sync::Arc;

use super::Rng;
use super::fault_plan::{
    End, FaultPlan, FaultPlanStats, PanicPoint, PlannedFaults, with_flip, with_panic_at,
};
use crate::error::ConfigError;
use crate::group::{GroupTuning, Layout, Primaries, ReplicatedGroup, ReplicatedWorker};
use crate::io::world::World;
use crate::socket::Sockets;
use crate::state::apply::ReplicaState;
use crate::stats::{EffectStats, MembershipStats, PumpStats, StateStats};
use crate::time::{Duration, Instant};
use crate::variants::{ByHand, Setup, TurnStep, VariantKind, Worker as _, groups};

/// Steps without work per worker before a round in which each takes all of its steps.
const FRUITLESS: usize = 3;
/// How much more often a worker fails if there are units to process, which is rare.
const DEATHS_IN_UNITS: u32 = 8;
/// How long waiting workers stay idle, unless an event arrives from outside.
const STEAL_CHECK_INTERVAL: Duration = Duration::from_micros(100);

/// The variant of a stack, and its number of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Variant {
    /// One core, no log.
    Single,
    /// Workers around one state with a mutex.
    Locked(usize),
    /// Workers around one state with a queue lock.
    LockedMcs(usize),
    /// Workers around one state with two mutexes, and tickets.
    LockedTwo(usize),
    /// Workers around one state with two queue locks, and tickets.
    LockedTwoMcs(usize),
    /// Workers around one state with six mutexes, and tickets.
    LockedSix(usize),
    /// Workers around one state with six queue locks, and tickets.
    LockedSixMcs(usize),
    /// Workers that share the stages of a pipeline.
    Pipelined(usize),
    /// Replicas over one log.
    Replicated(usize),
}

impl Variant {
    /// The variants that every test of behaviour should pass.
    pub const ALL: [Variant; 10] = [
        Variant::Single,
        Variant::Locked(2),
        Variant::LockedMcs(1),
        Variant::LockedTwoMcs(2),
        Variant::LockedSix(3),
        Variant::Pipelined(1),
        Variant::Pipelined(4),
        Variant::Replicated(1),
        Variant::Replicated(2),
        Variant::Replicated(4),
    ];

    /// The variant of this kind with this many workers; `single` has one.
    pub const fn new(kind: VariantKind, workers: usize) -> Variant {
        match kind {
            VariantKind::Single => Variant::Single,
            VariantKind::Locked => Variant::Locked(workers),
            VariantKind::LockedMcs => Variant::LockedMcs(workers),
            VariantKind::LockedTwo => Variant::LockedTwo(workers),
            VariantKind::LockedTwoMcs => Variant::LockedTwoMcs(workers),
            VariantKind::LockedSix => Variant::LockedSix(workers),
            VariantKind::LockedSixMcs => Variant::LockedSixMcs(workers),
            VariantKind::Pipelined => Variant::Pipelined(workers),
            VariantKind::Replicated => Variant::Replicated(workers),
        }
    }

    /// The kind of the variant.
    pub const fn kind(self) -> VariantKind {
        match self {
            Variant::Single => VariantKind::Single,
            Variant::Locked(_) => VariantKind::Locked,
            Variant::LockedMcs(_) => VariantKind::LockedMcs,
            Variant::LockedTwo(_) => VariantKind::LockedTwo,
            Variant::LockedTwoMcs(_) => VariantKind::LockedTwoMcs,
            Variant::LockedSix(_) => VariantKind::LockedSix,
            Variant::LockedSixMcs(_) => VariantKind::LockedSixMcs,
            Variant::Pipelined(_) => VariantKind::Pipelined,
            Variant::Replicated(_) => VariantKind::Replicated,
        }
    }

    /// The number of workers.
    pub const fn workers(self) -> usize {
        match self {
            Variant::Single => 1,
            Variant::Locked(workers)
            | Variant::LockedMcs(workers)
            | Variant::LockedTwo(workers)
            | Variant::LockedTwoMcs(workers)
            | Variant::LockedSix(workers)
            | Variant::LockedSixMcs(workers)
            | Variant::Pipelined(workers) => workers,
            Variant::Replicated(replicas) => replicas,
        }
    }

    /// Builds the stack of this variant with the default layout.
    ///
    /// # Errors
    /// If a setting is out of its range.
    pub fn build(self, setup: Setup, device: Box<dyn Device>) -> Result<ByHand, ConfigError> {
        let layout = Layout::default().replicas(self.workers());
        self.kind().build(setup, layout, device)
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Variant::Single => f.write_str("single"),
            _ => write!(f, "{} x {}", self.kind(), self.workers()),
        }
    }
}

/// How often and for how long a worker stalls between two of its steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stalls {
    /// Stalls per million steps.
    pub ppm: u32,
    /// Maximum duration; all shorter ones are equally likely.
    pub longest: Duration,
}

/// A stack whose time, frames and order of steps the caller controls.
///
/// Unless the caller supplies another one, its device takes every frame and has no offloads;
/// the Ethernet address is 02:00 followed by the IP address.
pub struct Host {
    variant: Variant,
    engine: Engine,
    script: Script,
    sockets: Sockets,
    world: Arc<World>,
    rng: Rng,
    stalls: Stalls,
    /// For each slot, the time until which its worker stalls.
    stalled: Vec<Instant>,
    stall_count: u64,
    fault_plan: FaultPlan,
    fault_stats: FaultPlanStats,
    /// The slot whose state was changed and is not repaired yet.
    flipped: Option<usize>,
    /// Whether the change was detected, and the number of repairs before the change.
    found: bool,
    repaired: u64,
    /// Workers with an undetected change, and the positions of possibly wrong fingerprints.
    changed: Vec<(usize, RangeInclusive<u64>)>,
    /// The first position at which the changed worker's fingerprint may be wrong.
    wrong_from: u64,
    /// A bit for each slot whose worker failed and for which another one was requested.
    replacing: u64,
    /// Whether a worker may be about to join or leave.
    is_membership_changing: bool,
    flip_is_due: bool,
    /// Whether another group may have received frames for this one since it was last idle.
    is_disturbed: bool,
    /// There is no work before this time, unless an event arrives from outside.
    quiet_until: Cell<Instant>,
}

enum Engine {
    /// Its workers only stall.
    Plain(ByHand),
    /// Its workers also join, leave and fail.
    Group(Box<ReplicatedGroup<PlannedFaults>>),
}

/// Asks whichever stack it is.
macro_rules! ask {
    ($engine:expr, $stack:ident => $answer:expr) => {
        match $engine {
            Engine::Plain($stack) => $answer,
            Engine::Group($stack) => $answer,
        }
    };
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").finish_non_exhaustive()
    }
}

/// Every test also checks that nothing it sent caused a panic.
impl Drop for Host {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.unexpected_panics(), 0, "panics were caught");
        }
    }
}

impl Host {
    /// A stack from `setup`; `seed` determines the order of its steps.
    ///
    /// # Errors
    /// If a setting is out of its range.
    pub fn new(variant: Variant, setup: Setup, seed: u64) -> Result<Host, ConfigError> {
        let mac = Host::mac_of(setup.address());
        let mtu = usize::from(setup.limits.mtu);
        let config = MemoryConfig::default().mtu(mtu).macs(mac, mac);
        let (device, script) = scripted_with(config);
        let device = (Box::new(device) as Box<dyn Device>, script);
        Self::over_device(variant, setup, FaultPlan::default(), device, seed)
    }

    /// A stack over the caller's device; workers join, leave and fail according to `fault_plan`.
    ///
    /// # Errors
    /// If a setting is out of its range.
    pub fn over_device(
        variant: Variant,
        setup: Setup,
        fault_plan: FaultPlan,
        device: (Box<dyn Device>, Script),
        seed: u64,
    ) -> Result<Host, ConfigError> {
        Self::over(variant, setup, fault_plan, device, seed, seed)
    }

    /// A stack of several groups, each driven separately; every group receives and sends
    /// frames. Each host has the sockets of all groups.
    ///
    /// # Errors
    /// If a setting is out of its range.
    pub fn several(
        variant: Variant,
        setup: Setup,
        fault_plan: FaultPlan,
        (device, script): (Box<dyn Device>, Script),
        groups: usize,
        seed: u64,
    ) -> Result<Vec<Host>, ConfigError> {
        let parts = groups::divide(setup, groups, device, groups::INBOX)?;
        let mut seeds = Rng::new(seed);
        let hosts = parts.into_iter().map(|(setup, part)| {
            let own = (Box::new(part) as Box<dyn Device>, script.clone());
            Self::over(variant, setup, fault_plan, own, seed, seeds.next())
        });
        let mut hosts = hosts.collect::<Result<Vec<_>, _>>()?;
        let sockets = groups::sockets(hosts.iter().map(|host| host.sockets.clone()));
        for host in &mut hosts {
            host.sockets = sockets.clone();
        }
        Ok(hosts)
    }

    /// One seed determines its layout, the other the order of its steps.
    fn over(
        variant: Variant,
        setup: Setup,
        fault_plan: FaultPlan,
        (device, script): (Box<dyn Device>, Script),
        layout_seed: u64,
        seed: u64,
    ) -> Result<Host, ConfigError> {
        let mut rng = Rng::new(layout_seed);
        let (engine, slots) = match variant {
            Variant::Replicated(replicas) => {
                // Small sizes, so that a short run crosses many boundaries.
                let layout = Layout {
                    replicas,
                    replica_slots: replicas + fault_plan.free_slots,
                    confirm: fault_plan.flips_ppm > 0,
                    primaries: Primaries::ALL[rng.below(Primaries::ALL.len() as u64) as usize],
                    tuning: GroupTuning {
                        log: 64 << rng.below(3),
                        frame_chunk: 1 << rng.below(6),
                        ahead_bytes: 1 << (10 + rng.below(8)),
                        steal_after: rng.below(64) as usize,
                        fingerprint_every: 1 + rng.below(32),
                        ..GroupTuning::default()
                    },
                    ..Layout::default()
                };
                let group =
                    ReplicatedGroup::with_fault_hooks(setup, layout, device, |_| PlannedFaults)?;
                let slots = replicas + fault_plan.free_slots;
                (Engine::Group(Box::new(group)), slots)
            }
            _ => {
                let layout = Layout {
                    replicas: variant.workers(),
                    tuning: GroupTuning::default().log(64 << rng.below(3)),
                    ..Layout::default()
                };
                let plain = variant.kind().build(setup, layout, device)?;
                (Engine::Plain(plain), variant.workers())
            }
        };
        let sockets = ask!(&engine, stack => stack.sockets());
        if seed != layout_seed {
            rng = Rng::new(seed);
        }
        Ok(Host {
            variant,
            world: Arc::clone(&sockets.worlds()[0]),
            engine,
            script,
            sockets,
            rng,
            stalls: Stalls::default(),
            stalled: vec![Instant::ZERO; slots],
            stall_count: 0,
            fault_plan,
            fault_stats: FaultPlanStats::default(),
            flipped: None,
            found: false,
            repaired: 0,
            changed: Vec::new(),
            wrong_from: 0,
            replacing: 0,
            is_membership_changing: false,
            flip_is_due: false,
            is_disturbed: false,
            quiet_until: Cell::new(Instant::ZERO),
        })
    }

    /// The Ethernet address of the host at `address`: it ends with the last four bytes of
    /// `address`.
    pub fn mac_of(address: IpAddr) -> [u8; 6] {
        let [a, b, c, d] = Address::from(address).v4_bits().to_be_bytes();
        [2, 0, a, b, c, d]
    }

    /// Lets workers stall from now on.
    pub const fn set_stalls(&mut self, stalls: Stalls) {
        self.stalls = stalls;
    }

    /// Changes how workers join, leave and fail from now on. The number of slots, and the
    /// confirmation of states, do not change.
    pub fn set_fault_plan(&mut self, fault_plan: FaultPlan) {
        self.fault_plan = fault_plan;
        self.quiet_until.set(Instant::ZERO);
    }

    /// Events of the workers so far.
    pub const fn fault_stats(&self) -> FaultPlanStats {
        self.fault_stats
    }

    /// Flips a bit of a connection in some worker's state, as soon as there are a worker with a
    /// request to apply and another worker.
    pub fn flip_soon(&mut self) {
        self.flip_is_due = true;
        self.quiet_until.set(Instant::ZERO);
    }

    /// Events of the group's replicas so far, from its own counters.
    pub fn membership_stats(&self) -> MembershipStats {
        ask!(&self.engine, stack => stack.membership_stats())
    }

    /// The sockets.
    pub const fn sockets(&self) -> &Sockets {
        &self.sockets
    }

    /// A frame arrives.
    pub fn inject(&self, frame: Vec<u8>) {
        self.script.push(frame);
    }

    /// The frames sent since the last call, in order.
    pub fn take_sent(&self) -> Vec<Vec<u8>> {
        let sent = self.take_transmitted().into_iter();
        sent.map(|(frame, _)| frame).collect()
    }

    /// The frames sent since the last call, each with its instructions for the device.
    pub fn take_transmitted(&self) -> Vec<(Vec<u8>, TxMeta)> {
        self.script.take_sent()
    }

    /// The device takes at most `frames` further frames and is then busy; `None`: no limit.
    pub fn accept_at_most(&self, frames: Option<usize>) {
        self.script.accept_at_most(frames);
        self.quiet_until.set(Instant::ZERO);
    }

    /// Frames that arrived and that no group has claimed.
    pub fn unclaimed(&self) -> usize {
        self.script.unclaimed()
    }

    /// Another group of the same stack did something: there may be frames for this one.
    pub const fn disturb(&mut self) {
        self.is_disturbed = true;
    }

    /// Does all work at `now` of workers that do not stall. Returns the number of useful steps.
    pub fn turn(&mut self, now: Instant) -> usize {
        if self.is_quiet(now) {
            return 0;
        }
        let done = self.turn_all(now);
        let quiet_until = if self.may_sleep(now) {
            self.next_event(now)
        } else if done == 0 && self.flipped.is_none() {
            // A worker stalls, or is about to join: the others check again at intervals.
            self.next_event(now).min(now + STEAL_CHECK_INTERVAL)
        } else {
            now
        };
        self.quiet_until.set(quiet_until);
        done
    }

    /// Whether there is no work, by the criteria of a stack's threads before they sleep.
    fn is_quiet(&self, now: Instant) -> bool {
        !self.is_disturbed
            && now < self.quiet_until.get()
            && self.script.unclaimed() == 0
            && !self.world.has_work()
    }

    /// Whether all threads of this stack would sleep until its next event.
    fn may_sleep(&mut self, now: Instant) -> bool {
        let waits = self.is_membership_changing || self.flipped.is_some() || self.flip_is_due;
        if self.is_disturbed || waits || self.receives(now) {
            return false;
        }
        !ask!(&mut self.engine, stack => stack.has_work())
    }

    /// Whether the receive pump has something to receive or to publish.
    fn receives(&mut self, now: Instant) -> bool {
        let is_due = |deadline| deadline <= now;
        self.script.unclaimed() > 0
            || ask!(&self.engine, stack => is_due(stack.next_deadline()) || stack.is_pump_busy())
    }

    fn turn_all(&mut self, now: Instant) -> usize {
        if self.variant != Variant::Single {
            return self.turn_workers(now);
        }
        let mut done = 0;
        loop {
            if self.rng.chance(self.stalls.ppm) && self.stalled[0] <= now {
                self.stalled[0] = now + pause(&self.stalls, &mut self.rng);
                self.stall_count += 1;
            }
            if self.stalled[0] > now {
                return done;
            }
            if ask!(&mut self.engine, stack => stack.turn(now)) == 0 {
                self.is_disturbed = false;
                return done;
            }
            done += 1;
        }
    }

    fn turn_workers(&mut self, now: Instant) -> usize {
        let (mut done, mut fruitless) = (0, 0);
        let mut awake = self.awake(now);
        loop {
            // A worker that joins, leaves or stalls changes the set.
            let mut changed = self.apply_fault_plan();
            if changed {
                awake = self.awake(now);
            }
            let live = awake.count_ones() as usize;
            if live == 0 {
                return done;
            }
            if fruitless < FRUITLESS * live {
                let replica = nth(awake, self.rng.below(live as u64));
                if self.rng.chance(self.stalls.ppm) {
                    self.stalled[replica] = now + pause(&self.stalls, &mut self.rng);
                    self.stall_count += 1;
                    changed = true;
                } else if self.step(replica, now) {
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
                    let replica = nth(awake, i as u64);
                    round += match &mut self.engine {
                        Engine::Plain(plain) => {
                            usize::from(plain.step(replica, TurnStep::Turn, now))
                        }
                        Engine::Group(_) => {
                            self.run_with_fault(replica, PanicPoint::Never, |worker, _| {
                                worker.turn(now)
                            })
                        }
                    };
                }
                round += self.admit_and_remove();
                if round == 0 {
                    self.is_disturbed = false;
                    return done;
                }
                done += round;
                fruitless = 0;
                changed = true;
            }
            if self.is_membership_changing || changed {
                self.admit_and_remove();
                awake = self.awake(now);
            }
        }
    }

    /// The slots of workers that do not stall, a bit each.
    fn awake(&mut self, now: Instant) -> u64 {
        let stalled = &self.stalled;
        let bit = |mask: u64, id: usize| mask | u64::from(stalled[id] <= now) << id;
        match &mut self.engine {
            Engine::Plain(plain) => (0..plain.worker_count()).fold(0, bit),
            Engine::Group(group) => {
                let ids = group.workers().iter().map(|worker| worker.id());
                ids.fold(0, bit)
            }
        }
    }

    /// Runs one step of worker `replica`. Returns whether it did work.
    fn step(&mut self, replica: usize, now: Instant) -> bool {
        let mut panic_point = PanicPoint::Never;
        if self.rng.chance(self.fault_plan.panics_ppm)
            && self.flipped.is_none()
            && self.remaining() > 1
        {
            panic_point = match self.rng.below(3) {
                0 => PanicPoint::Applying,
                _ => PanicPoint::Performing(self.rng.below(4)),
            };
        }
        if self.world.has_units()
            && self
                .rng
                .chance(DEATHS_IN_UNITS * self.fault_plan.panics_ppm)
            && self.flipped.is_none()
            && self.remaining() > 1
        {
            return self.die_in_unit(replica, now);
        }
        let did = |count: Option<usize>| count.is_some_and(|count| count > 0);
        let step = self.rng.below(10);
        if let Engine::Plain(plain) = &mut self.engine {
            let step = match step {
                0 | 9 => TurnStep::Pump,
                1 => TurnStep::Prepare(0),
                2 | 3 => TurnStep::Apply,
                4 | 5 => TurnStep::Perform,
                6 => TurnStep::Send,
                _ => TurnStep::Turn,
            };
            return plain.step(replica, step, now);
        }
        if self.rng.below(8) > 0 && !self.may_find_work(replica, step, now) {
            return false;
        }
        let what = |worker: &mut ReplicatedWorker<PlannedFaults>, rng: &mut Rng| match step {
            0 if rng.percent(30) => did(worker.pump(now)),
            0 => did(worker.claim(now)),
            8 => worker.parse(),
            9 => did(worker.publish(now)),
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
        self.run_with_fault(replica, panic_point, what)
    }

    /// Runs one turn of worker `replica`, which fails in one of the first units that it
    /// processes. Returns whether it did work.
    fn die_in_unit(&mut self, replica: usize, now: Instant) -> bool {
        self.world.units.fail_after(Some(self.rng.below(4)));
        let turn = |worker: &mut ReplicatedWorker<PlannedFaults>, _: &mut Rng| worker.turn(now) > 0;
        let did = self.run_with_fault(replica, PanicPoint::Unit, turn);
        self.world.units.fail_after(None);
        did
    }

    /// Whether step `step` of worker `replica` may find work. Most other steps are skipped.
    fn may_find_work(&mut self, replica: usize, step: u64, now: Instant) -> bool {
        let Engine::Group(group) = &mut self.engine else {
            return false;
        };
        let mut workers = group.workers().iter_mut();
        let works = step > 0 && workers.any(|worker| worker.id() == replica && worker.has_work());
        works || matches!(step, 0 | 7 | 9) && self.receives(now)
    }

    /// Runs `what` on worker `replica`; if it ends in a panic, the worker is gone.
    fn run_with_fault<R: Default>(
        &mut self,
        replica: usize,
        panic_point: PanicPoint,
        what: impl FnOnce(&mut ReplicatedWorker<PlannedFaults>, &mut Rng) -> R,
    ) -> R {
        let (Engine::Group(group), rng) = (&mut self.engine, &mut self.rng) else {
            return R::default();
        };
        let workers = group.workers();
        let Some(worker) = workers.iter_mut().find(|worker| worker.id() == replica) else {
            return R::default();
        };
        if panic_point == PanicPoint::Never && self.flipped != Some(replica) {
            return what(worker, rng);
        }
        match with_panic_at(panic_point, || what(worker, rng)) {
            End::Done(done) => return done,
            End::Injected => match panic_point {
                PanicPoint::Applying => self.fault_stats.failures_applying += 1,
                PanicPoint::Unit => self.fault_stats.failures_in_unit += 1,
                _ => self.fault_stats.failures_performing += 1,
            },
            End::Other(panic) => self.after_panic(replica, panic),
        }
        self.remove_worker(replica);
        R::default()
    }

    /// Handles a panic of worker `replica`, which is legitimate if its state was changed.
    fn after_panic(&mut self, replica: usize, panic: Box<dyn core::any::Any + Send>) {
        if self.flipped != Some(replica) {
            resume_unwind(panic);
        }
        self.flipped = None;
        // The panic may have been in the middle of a request.
        let upto = self.position_of(replica) + 1;
        self.changed.push((replica, self.wrong_from..=upto));
        self.fault_stats.unwound += 1;
    }

    /// The position of worker `replica` in the log; 0 if there is no such worker.
    fn position_of(&mut self, replica: usize) -> u64 {
        let Engine::Group(group) = &mut self.engine else {
            return 0;
        };
        let mut workers = group.workers().iter();
        let worker = workers.find(|worker| worker.id() == replica);
        worker.map_or(0, |worker| worker.replica().position())
    }

    /// Removes worker `replica`. Usually another one is requested for its slot.
    fn remove_worker(&mut self, replica: usize) {
        let Engine::Group(group) = &mut self.engine else {
            return;
        };
        let found = group
            .workers()
            .iter()
            .position(|worker| worker.id() == replica);
        let Some(index) = found else { return };
        let left = group.workers()[index].has_left();
        self.is_membership_changing = true;
        drop(group.take(index));
        self.stalled[replica] = Instant::ZERO;
        if left {
            self.fault_stats.leaves += 1;
        } else if self.rng.chance(750_000) && group.join(Some(replica), PlannedFaults).is_ok() {
            self.replacing |= 1 << replica;
        }
    }

    /// Number of workers that have a state, and were not asked to leave.
    fn remaining(&mut self) -> usize {
        let Engine::Group(group) = &mut self.engine else {
            return 1;
        };
        let workers = group.workers().iter();
        workers.filter(|worker| worker.is_active()).count()
    }

    /// Lets a worker join, leave or fail before the next step. Returns whether one did.
    fn apply_fault_plan(&mut self) -> bool {
        if self.flipped.is_some() {
            // While one of three is wrong, no other worker may be gone; others may join.
            self.check_flipped_replica();
            return self.rng.chance(self.fault_plan.joins_ppm) && self.join();
        }
        if self.flip_is_due && self.remaining() > 1 {
            let before = self.fault_stats.flips;
            self.flip_any();
            self.flip_is_due = self.fault_stats.flips == before;
            return true;
        }
        let fault_plan = self.fault_plan;
        if fault_plan.is_empty() {
            return false;
        }
        let mut at = self.rng.below(1_000_000) as u32;
        let mut is = |ppm: u32| {
            let is = at < ppm;
            at = at.saturating_sub(ppm).max(if is { u32::MAX } else { 0 });
            is
        };
        let (joins, leaves) = (is(fault_plan.joins_ppm), is(fault_plan.leaves_ppm));
        let (dies, flips) = (is(fault_plan.failures_ppm), is(fault_plan.flips_ppm));
        if !(joins || leaves || dies || flips) {
            return false;
        }
        let staying = self.remaining();
        let Engine::Group(group) = &mut self.engine else {
            return false;
        };
        self.is_membership_changing = true;
        let any = self.rng.below(group.workers().len() as u64) as usize;
        let replica = group.workers()[any].id();
        if joins {
            self.join();
        } else if leaves {
            // The last worker stays.
            let _ = group.leave(Some(replica));
        } else if dies && staying > 1 {
            self.fault_stats.failures += 1;
            self.remove_worker(replica);
        } else if flips && staying == group.workers().len() && group.joining() == 0 {
            let position = group.workers()[any].replica().position();
            let voters = group.workers().iter();
            // Workers whose states begin after this position have no vote here.
            if voters.filter(|worker| worker.since() <= position).count() >= 3 {
                self.flip(replica);
            }
        }
        true
    }

    /// Lets a worker join, if a slot is free. Returns whether one does.
    fn join(&mut self) -> bool {
        let Engine::Group(group) = &mut self.engine else {
            return false;
        };
        let joins = group.join(None, PlannedFaults).is_ok();
        self.is_membership_changing |= joins;
        joins
    }

    fn flip_any(&mut self) {
        let Engine::Group(group) = &mut self.engine else {
            return;
        };
        let any = self.rng.below(group.workers().len() as u64) as usize;
        let replica = group.workers()[any].id();
        self.flip(replica);
    }

    /// Flips a bit in the state of worker `replica` before its next request, if there is one.
    fn flip(&mut self, replica: usize) {
        let Engine::Group(group) = &mut self.engine else {
            return;
        };
        self.repaired = group.membership_stats().repaired;
        let (nth, bit) = (self.rng.next(), self.rng.next() as u32);
        let workers = group.workers();
        let Some(worker) = workers.iter_mut().find(|worker| worker.id() == replica) else {
            return;
        };
        let before = worker.replica().position();
        let (flipped, end) = with_flip(nth, bit, || worker.apply());
        if flipped {
            (self.flipped, self.wrong_from) = (Some(replica), before + 1);
            self.found = false;
            self.fault_stats.flips += 1;
        }
        if let End::Other(panic) = end {
            self.after_panic(replica, panic);
            self.remove_worker(replica);
        }
    }

    /// Checks whether the changed worker is detected, repaired, or right again.
    fn check_flipped_replica(&mut self) {
        let (Some(id), Engine::Group(group)) = (self.flipped, &mut self.engine) else {
            return;
        };
        let workers = group.workers();
        let Some(flipped) = workers.iter().find(|worker| worker.id() == id) else {
            return;
        };
        if !flipped.is_active() {
            self.fault_stats.found += u64::from(!self.found);
            self.found = true;
            return;
        }
        if self.found {
            // It has a right state again.
            self.flipped = None;
            self.fault_stats.repairs += group.membership_stats().repaired - self.repaired;
            return;
        }
        // Rarely, because it is slow.
        if self.rng.below(64) == 0 {
            let replica = flipped.replica();
            let others = workers.iter().filter(|worker| worker.id() != id);
            let mut alike = others.filter(|other| other.replica().position() == replica.position());
            // Fingerprints that it posted meanwhile may still expose it.
            let overwritten = alike.next().is_some_and(|other| {
                other.replica().whole_fingerprint() == replica.whole_fingerprint()
                    && flipped.posted_alike(other, self.wrong_from)
            });
            if overwritten {
                self.flipped = None;
                self.changed
                    .push((id, self.wrong_from..=replica.position()));
                self.fault_stats.overwritten += 1;
            }
        }
    }

    /// Whether a worker waits for a state, or was asked to leave.
    fn is_membership_changing(&mut self) -> bool {
        let Engine::Group(group) = &mut self.engine else {
            return false;
        };
        group.joining() > 0 || group.workers().iter().any(|worker| !worker.is_active())
    }

    /// Admits workers that got a state, removes departed ones, and returns the admitted number.
    fn admit_and_remove(&mut self) -> usize {
        let Engine::Group(group) = &mut self.engine else {
            return 0;
        };
        if !self.is_membership_changing {
            return 0;
        }
        let before = group.workers().len();
        let came = group.admit();
        for worker in &group.workers()[before..] {
            let replacing = self.replacing >> worker.id() & 1;
            self.replacing &= !(1 << worker.id());
            self.fault_stats.joins += 1;
            self.fault_stats.replacements += replacing;
        }
        let left = group.workers().iter().filter(|worker| worker.has_left());
        let left = left.fold(0_u64, |mask, worker| mask | 1 << worker.id());
        for i in 0..left.count_ones() {
            self.remove_worker(nth(left, u64::from(i)));
        }
        self.is_membership_changing = self.is_membership_changing();
        came
    }

    /// When [`Host::turn`] next has work, after `now`, if no event arrives from outside.
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
            Engine::Plain(plain) => consider(plain.next_deadline()),
            Engine::Group(group) => {
                for worker in group.workers() {
                    consider(worker.next_deadline());
                }
            }
        }
        debug_assert!(all_awake || next != Instant::NEVER, "who stalls goes on");
        next
    }

    /// Results of `look` for each replica's current state, except a changed one.
    pub fn inspect<R>(&self, look: impl FnMut(&ReplicaState) -> R) -> Vec<R> {
        match &self.engine {
            Engine::Plain(plain) => plain.inspect(look),
            Engine::Group(group) => self.unchanged(group).map(look).collect(),
        }
    }

    /// The states of a group, except a changed one.
    fn unchanged<'a>(
        &self,
        group: &'a ReplicatedGroup<PlannedFaults>,
    ) -> impl Iterator<Item = &'a ReplicaState> + use<'a> {
        let flipped = self.flipped;
        let workers = group.all_workers().iter();
        let knowing =
            workers.filter(move |worker| worker.is_active() && Some(worker.id()) != flipped);
        knowing.map(|worker| worker.replica())
    }

    /// The number of applied requests of the most advanced replica.
    pub fn position(&self) -> u64 {
        match &self.engine {
            Engine::Plain(_) => self.inspect(ReplicaState::position)[0],
            Engine::Group(group) => {
                let workers = group.all_workers().iter();
                let positions = workers.map(|worker| worker.replica().position());
                positions.max().unwrap_or(0)
            }
        }
    }

    /// How many unplanned panics ended a connection: none, unless there is a bug. A replica
    /// with a changed state is skipped.
    pub fn unexpected_panics(&self) -> u64 {
        let counts = self.inspect(ReplicaState::unexpected_panics).into_iter();
        counts.max().unwrap_or(0)
    }

    /// Checks that the replicas agree: all posted fingerprints, and every field of replicas at
    /// equal positions. Also checks that no primary found impossible work, and that only
    /// planned panics were caught. Returns the number of comparisons.
    ///
    /// # Errors
    /// The difference.
    pub fn check(&mut self) -> Result<usize, String> {
        let diverged = self.effect_stats().diverged;
        if diverged > 0 {
            return Err(format!("{diverged} effects found their work impossible"));
        }
        let panics = self.unexpected_panics();
        if panics > 0 {
            return Err(format!("{panics} panics were caught"));
        }
        let mut compared = match ask!(&self.engine, stack => stack.compare()) {
            Ok(compared) => compared,
            // Fingerprints that were posted with a changed state may still be present.
            Err(differ) if self.was_changed(&differ) => 0,
            Err(differ) => return Err(format!("{differ:?}")),
        };
        let Engine::Group(group) = &self.engine else {
            return Ok(compared);
        };
        let replicas: Vec<_> = self.unchanged(group).collect();
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

    /// Whether a change explains the mismatch: the others agree without the changed workers.
    /// Workers that would form a majority with them may have left since.
    fn was_changed(&self, mismatch: &Mismatch) -> bool {
        let position = mismatch.position;
        let is_flipped = |replica| self.flipped == Some(replica) && position >= self.wrong_from;
        let changed = |replica: usize| {
            let was = |(who, when): &(usize, RangeInclusive<u64>)| {
                *who == replica && when.contains(&position)
            };
            is_flipped(replica) || self.changed.iter().any(was)
        };
        let posted = mismatch.fingerprints.iter();
        let mut others = posted.filter(|(replica, _)| !changed(*replica));
        let first = others.next().map(|(_, print)| *print);
        others.all(|(_, print)| Some(*print) == first)
    }

    /// Counters of the state.
    pub fn state_stats(&self) -> StateStats {
        self.inspect(ReplicaState::stats)[0]
    }

    /// Counters of effects over all workers, including those that are gone.
    pub fn effect_stats(&self) -> EffectStats {
        ask!(&self.engine, stack => stack.effect_stats())
    }

    /// Counters of the pump.
    pub fn pump_stats(&self) -> PumpStats {
        ask!(&self.engine, stack => stack.stats().pump)
    }

    /// How often a worker stalled.
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
