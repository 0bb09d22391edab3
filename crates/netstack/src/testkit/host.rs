//! A stack of any variant over a scripted device, whose workers take their steps in a seeded order.

use core::fmt;
use core::net::Ipv4Addr;

use dominoes_drivers::memory::{MemoryConfig, Script, scripted_with};

use super::Rng;
use crate::engine::replica::Replica;
use crate::error::ConfigError;
use crate::socket::Sockets;
use crate::stats::{EffectStats, PumpStats, StateStats};
use crate::time::{Duration, Instant};
use crate::variants::Setup;
use crate::variants::replicated::{Group, Layout, Primaries};
use crate::variants::single::Single;

/// Fruitless steps per worker before a round in which each takes all of its steps.
const FRUITLESS: usize = 3;

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
    /// Until when each worker stands still.
    stalled: Vec<Instant>,
    stall_count: u64,
}

enum Engine {
    Single(Box<Single>),
    Group(Box<Group>),
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").finish_non_exhaustive()
    }
}

impl Host {
    /// A stack made of `setup`; the order of its steps comes from `seed`.
    ///
    /// # Errors
    /// If a setting is out of its range.
    pub fn new(variant: Variant, setup: Setup, seed: u64) -> Result<Host, ConfigError> {
        let mac = Self::mac_of(setup.address);
        let mtu = usize::from(setup.limits.mtu);
        let config = MemoryConfig::default().mtu(mtu).macs(mac, mac);
        let (device, script) = scripted_with(config);
        let device = Box::new(device);
        let mut rng = Rng::new(seed);
        let (engine, sockets, workers) = match variant {
            Variant::Single => {
                let single = Single::new(setup, device)?;
                let sockets = single.sockets();
                (Engine::Single(Box::new(single)), sockets, 1)
            }
            Variant::Replicated(replicas) => {
                // Small pieces, so that a short run crosses many boundaries.
                let layout = Layout {
                    replicas,
                    primaries: Primaries::ALL[rng.below(Primaries::ALL.len() as u64) as usize],
                    log: 64 << rng.below(3),
                    request_chunk: 1 << rng.below(5),
                    frame_chunk: 1 << rng.below(6),
                    ahead_bytes: 1 << (10 + rng.below(8)),
                    steal_after: rng.below(64) as usize,
                    fingerprint_every: 1 + rng.below(32),
                    ..Layout::default()
                };
                let group = Group::new(setup, layout, device)?;
                let sockets = group.sockets();
                (Engine::Group(Box::new(group)), sockets, replicas)
            }
        };
        Ok(Host {
            engine,
            script,
            sockets,
            rng,
            stalls: Stalls::default(),
            stalled: vec![Instant::ZERO; workers],
            stall_count: 0,
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
    }

    /// Everything that can be done at `now` by workers that do not stand still. Returns how many steps did
    /// something.
    pub fn turn(&mut self, now: Instant) -> usize {
        let mut done = 0;
        match &mut self.engine {
            Engine::Single(single) => loop {
                if self.rng.chance(self.stalls.ppm) && self.stalled[0] <= now {
                    self.stalled[0] = now + pause(&self.stalls, &mut self.rng);
                    self.stall_count += 1;
                }
                if self.stalled[0] > now || single.turn(now) == 0 {
                    return done;
                }
                done += 1;
            },
            Engine::Group(_) => {
                let mut fruitless = 0;
                loop {
                    let live: Vec<usize> = (0..self.stalled.len())
                        .filter(|&id| self.stalled[id] <= now)
                        .collect();
                    if live.is_empty() {
                        return done;
                    }
                    if fruitless < FRUITLESS * live.len() {
                        let id = live[self.rng.below(live.len() as u64) as usize];
                        if self.rng.chance(self.stalls.ppm) {
                            self.stalled[id] = now + pause(&self.stalls, &mut self.rng);
                            self.stall_count += 1;
                        } else if self.step(id, now) {
                            done += 1;
                            fruitless = 0;
                        } else {
                            fruitless += 1;
                        }
                        continue;
                    }
                    let Engine::Group(group) = &mut self.engine else {
                        return done;
                    };
                    let workers = group.workers();
                    let round: usize = live.iter().map(|&id| workers[id].turn(now)).sum();
                    if round == 0 {
                        return done;
                    }
                    done += round;
                    fruitless = 0;
                }
            }
        }
    }

    /// One step of worker `id`. Says whether it did something.
    fn step(&mut self, id: usize, now: Instant) -> bool {
        let Engine::Group(group) = &mut self.engine else {
            return false;
        };
        let worker = &mut group.workers()[id];
        let did = |count: Option<usize>| count.is_some_and(|count| count > 0);
        match self.rng.below(8) {
            0 => did(worker.pump(now)),
            1 => {
                let from = worker.replica().position();
                let published = worker.published();
                worker.prepare(from + self.rng.below(published.saturating_sub(from)))
            }
            2 | 3 => worker.apply(),
            4 => worker.perform(),
            5 => did(worker.send()),
            6 => did(worker.send_one()),
            _ => worker.turn(now) > 0,
        }
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

    /// The states, as far as each replica has come.
    pub fn replicas(&mut self) -> Vec<&Replica> {
        match &mut self.engine {
            Engine::Single(single) => vec![single.replica()],
            Engine::Group(group) => {
                let workers = group.workers();
                workers.iter().map(|worker| worker.replica()).collect()
            }
        }
    }

    /// Checks that the replicas agree: all posted fingerprints, every field of those that have come equally far, and
    /// that no primary found work that could not be. Returns how much was compared.
    ///
    /// # Errors
    /// What differs.
    pub fn check(&mut self) -> Result<usize, String> {
        let diverged = self.effect_stats().diverged;
        if diverged > 0 {
            return Err(format!("{diverged} effects found their work impossible"));
        }
        let mut compared = match &self.engine {
            Engine::Single(_) => 0,
            Engine::Group(group) => group.compare().map_err(|differ| format!("{differ:?}"))?,
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
                for stats in group.workers().iter().map(|worker| worker.stats()) {
                    sum.prepared += stats.prepared;
                    sum.deliveries += stats.deliveries;
                    sum.delivered_bytes += stats.delivered_bytes;
                    sum.frames += stats.frames;
                    sum.sent_bytes += stats.sent_bytes;
                    sum.diverged += stats.diverged;
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
