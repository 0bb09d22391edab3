//! Hosts on a switch, each with two wires, and their common clock.

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::ops::ControlFlow;

use dominoes_drivers::memory::{MemoryConfig, Script, scripted_with};
use dominoes_drivers::{Device, Frame};
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::Setup;
use dominoes_netstack::{ConfigError, Ipv6Config, Limits, ReplicaState, SocketError, Sockets};

use crate::faults::FaultPlan;
use crate::host::{Host, Stalls, Variant};
use crate::link::{ImpairedLink, LinkConfig, LinkStats};
use crate::packet::{Family, Mac, odd, on_wire, v6_of};
use crate::rng::{Rng, mix};

/// The most rounds at one moment; more count as spinning.
const SPINNING: usize = 1_000_000;

/// The configuration of a host for a [`Net`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HostConfig {
    /// The variant of its stack.
    pub variant: Variant,
    /// The limits of its stack.
    pub limits: Limits,
    /// The family of its [address](Net::address_of). With V6 it has IPv6 and IPv4. Default: IPv4
    /// alone.
    pub family: Family,
    /// The pauses of its workers. Default: none.
    pub stalls: Stalls,
    /// The joins, departures and failures of its workers. Default: none.
    pub fault_plan: FaultPlan,
    /// The number of groups of its stack. Default 1.
    pub groups: usize,
    /// Whether its device completes checksums and divides frames of several datagrams. Default:
    /// no.
    pub divides: bool,
    /// The faults of its wire to the switch. The net chooses the seed.
    pub up: LinkConfig,
    /// The faults of its wire from the switch. The net chooses the seed.
    pub down: LinkConfig,
}

impl HostConfig {
    /// A host with default limits and perfect wires.
    pub fn new(variant: Variant) -> Self {
        HostConfig {
            variant,
            limits: Limits::default(),
            family: Family::V4,
            stalls: Stalls::default(),
            fault_plan: FaultPlan::default(),
            groups: 1,
            divides: false,
            up: LinkConfig::default(),
            down: LinkConfig::default(),
        }
    }

    /// Sets [`limits`](Self::limits).
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets [`family`](Self::family).
    pub fn family(mut self, family: Family) -> Self {
        self.family = family;
        self
    }

    /// Sets [`stalls`](Self::stalls).
    pub fn stalls(mut self, stalls: Stalls) -> Self {
        self.stalls = stalls;
        self
    }

    /// Sets [`fault_plan`](Self::fault_plan).
    pub fn fault_plan(mut self, fault_plan: FaultPlan) -> Self {
        self.fault_plan = fault_plan;
        self
    }

    /// Sets [`groups`](Self::groups).
    pub fn groups(mut self, groups: usize) -> Self {
        self.groups = groups;
        self
    }

    /// Sets [`divides`](Self::divides).
    pub fn divides(mut self, divides: bool) -> Self {
        self.divides = divides;
        self
    }

    /// Sets [`up`](Self::up) and [`down`](Self::down).
    pub fn wires(mut self, up: LinkConfig, down: LinkConfig) -> Self {
        self.up = up;
        self.down = down;
        self
    }
}

/// Identifies a host of a [`Net`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostId(usize);

/// Counts the events in all hosts of a net so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Pauses of workers.
    pub stalls: u64,
    /// Workers that joined or died.
    pub changes: u64,
    /// Requests that the replicas of all logs applied.
    pub positions: u64,
}

/// A moment at which applications act.
#[derive(Debug)]
pub struct Moment {
    now: Instant,
    wake_at: Instant,
    progress: Progress,
}

impl Moment {
    /// The time.
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// The events so far.
    pub const fn progress(&self) -> Progress {
        self.progress
    }

    /// Asks for a call at `at` even if nothing happens. A moment in the past is ignored.
    pub fn wake_at(&mut self, at: Instant) {
        if at > self.now {
            self.wake_at = self.wake_at.min(at);
        }
    }
}

/// Why [`Net::run`] failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunError {
    /// The time is over, but the applications are not done.
    OutOfTime,
    /// No event is left, but the applications are not done.
    Stuck,
    /// A socket call of the applications failed.
    Socket(SocketError),
}

impl From<SocketError> for RunError {
    fn from(error: SocketError) -> Self {
        RunError::Socket(error)
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::OutOfTime => f.write_str("the time is over and the applications are not"),
            RunError::Stuck => f.write_str("nothing will ever happen again"),
            RunError::Socket(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RunError {}

struct Station {
    /// One for each group of its stack.
    hosts: Vec<Host>,
    address: IpAddr,
    /// Its address, in the family of its configuration.
    name: IpAddr,
    /// The Ethernet address that others see from a given time on.
    moves: Option<(Instant, Mac)>,
    up: ImpairedLink,
    down: ImpairedLink,
}

impl Station {
    /// Runs all possible steps of its groups, beginning with a random group. Returns the number
    /// of steps that did anything.
    fn turn(&mut self, now: Instant, rng: &mut Rng) -> usize {
        let groups = self.hosts.len();
        if groups == 1 {
            return self.hosts[0].turn(now);
        }
        let mut all = 0;
        loop {
            let first = rng.below(groups as u64) as usize;
            let mut done = 0;
            for i in 0..groups {
                let at = (first + i) % groups;
                let host = &mut self.hosts[at];
                let waiting = host.unclaimed();
                let did = host.turn(now) + waiting - host.unclaimed().min(waiting);
                if did > 0 {
                    // The group that receives frames receives them for all groups.
                    let others = self.hosts.iter_mut().enumerate();
                    let others = others.filter(|(other, _)| *other != at);
                    others.for_each(|(_, other)| other.disturb());
                }
                done += did;
            }
            if done == 0 {
                return all;
            }
            all += done;
        }
    }
}

/// An Ethernet switch with hosts, in virtual time. Host `i`, counted from 1, has the address
/// 10.0.0.`i`/24, and with IPv6 `fd00::a00:i`/120, once no other host is known to have it.
pub struct Net {
    now: Instant,
    seed: u64,
    rng: Rng,
    stations: Vec<Station>,
    watcher: Option<Watcher>,
    meddler: Option<Meddler>,
}

/// Sees every frame that a host sends, before its wire.
type Watcher = Box<dyn FnMut(Instant, HostId, &[u8])>;
/// May change a frame after that. Returns frames for the frame's sender.
type Meddler = Box<dyn FnMut(Instant, HostId, &mut Vec<u8>) -> Vec<Vec<u8>>>;

impl fmt::Debug for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Net")
            .field("seed", &self.seed)
            .field("now", &self.now)
            .field("hosts", &self.stations.len())
            .finish_non_exhaustive()
    }
}

impl Net {
    /// A net without hosts. `seed` determines every choice.
    pub fn new(seed: u64) -> Self {
        Net {
            now: Instant::ZERO,
            seed,
            rng: Rng::new(seed),
            stations: Vec::new(),
            watcher: None,
            meddler: None,
        }
    }

    /// Shows every frame that a host sends from now on to `watcher`, before it is changed.
    pub fn watch(&mut self, watcher: impl FnMut(Instant, HostId, &[u8]) + 'static) {
        self.watcher = Some(Box::new(watcher));
    }

    /// Lets `meddler` change every frame that a host sends from now on, before its wire. The
    /// frames that it returns go to the sender of the frame.
    pub fn meddle(
        &mut self,
        meddler: impl FnMut(Instant, HostId, &mut Vec<u8>) -> Vec<Vec<u8>> + 'static,
    ) {
        self.meddler = Some(Box::new(meddler));
    }

    /// From `at` on, the host's frames come from the Ethernet address `mac`. Frames to either
    /// address reach it then.
    pub fn move_host(&mut self, id: HostId, at: Instant, mac: Mac) {
        self.stations[id.0].moves = Some((at, mac));
    }

    /// Adds a host; a net has at most 254.
    ///
    /// # Errors
    /// If a setting is out of its range.
    pub fn add(&mut self, config: HostConfig) -> Result<HostId, ConfigError> {
        let index = self.stations.len();
        let Some(number) = u8::try_from(index + 1).ok().filter(|&number| number < 255) else {
            return Err(ConfigError::OutOfRange {
                field: "hosts",
                value: index as u64 + 1,
                allowed: "1 to 254",
            });
        };
        let bytes = [10, 0, 0, number];
        let address = IpAddr::from(bytes);
        let mut setup = Setup::new(address, 24, [self.rng.next(), self.rng.next()]);
        setup.limits = config.limits;
        if config.family == Family::V6 {
            let alone = Ipv6Config::default().autoconfigure(false);
            setup = setup.ipv6(alone.address(v6_of(bytes), 120));
        }
        let (variant, fault_plan, seed) = (config.variant, config.fault_plan, self.rng.next());
        let device = host_device(&setup, config.divides);
        let mut hosts = match config.groups {
            1 => vec![Host::over_device(variant, setup, fault_plan, device, seed)?],
            groups => Host::several(variant, setup, fault_plan, device, groups, seed)?,
        };
        for host in &mut hosts {
            host.set_stalls(config.stalls);
        }
        self.stations.push(Station {
            hosts,
            address,
            name: config.family.address(bytes),
            moves: None,
            up: ImpairedLink::new(config.up.seed(self.rng.next())),
            down: ImpairedLink::new(config.down.seed(self.rng.next())),
        });
        Ok(HostId(index))
    }

    /// The time.
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// A host; with several groups, the first group.
    pub fn host(&mut self, id: HostId) -> &mut Host {
        &mut self.stations[id.0].hosts[0]
    }

    /// All groups of a host.
    pub fn groups(&mut self, id: HostId) -> &mut [Host] {
        &mut self.stations[id.0].hosts
    }

    /// The sockets of a host.
    pub fn sockets(&self, id: HostId) -> &Sockets {
        self.stations[id.0].hosts[0].sockets()
    }

    /// An address of a host, with this port.
    pub fn address_of(&self, id: HostId, port: u16) -> SocketAddr {
        SocketAddr::new(self.stations[id.0].name, port)
    }

    /// Counts of a host's wires: to the switch, and from it.
    pub fn link_stats(&self, id: HostId) -> [LinkStats; 2] {
        let station = &self.stations[id.0];
        [station.up.stats(), station.down.stats()]
    }

    /// The events so far.
    fn progress(&mut self) -> Progress {
        let mut sum = Progress::default();
        for host in self.stations.iter_mut().flat_map(|one| &mut one.hosts) {
            let fault_plan = host.fault_stats();
            let failures = fault_plan.failures
                + fault_plan.failures_performing
                + fault_plan.failures_applying
                + fault_plan.failures_in_unit;
            sum.stalls += host.stall_count();
            sum.changes += fault_plan.joins + failures;
            sum.positions += host.position();
        }
        sum
    }

    /// From now on wires have no faults, and no worker pauses, joins, leaves or fails; delays and
    /// rates stay.
    pub fn clear_faults(&mut self) {
        for station in &mut self.stations {
            station.up.clear_faults();
            station.down.clear_faults();
            for host in &mut station.hosts {
                host.set_stalls(Stalls::default());
                host.set_fault_plan(FaultPlan::default());
            }
        }
    }

    /// Runs all events of this moment. Returns their number.
    ///
    /// # Panics
    /// If the events do not end.
    pub fn run_until_idle(&mut self) -> usize {
        let mut all = 0;
        for _ in 0..SPINNING {
            let mut done = 0;
            let now = span(self.now);
            // Begins with a random station.
            let first = self.rng.below(self.stations.len() as u64) as usize;
            for i in 0..self.stations.len() {
                let index = (first + i) % self.stations.len();
                let station = &mut self.stations[index];
                while let Some(frame) = station.down.take(now) {
                    station.hosts[0].inject(frame.to_vec());
                    done += 1;
                }
                done += station.turn(self.now, &mut self.rng);
                let sent = station.hosts[0].take_transmitted().into_iter();
                for mut frame in sent.flat_map(|(frame, meta)| on_wire(frame, &meta)) {
                    if let Some(watcher) = &mut self.watcher {
                        watcher(self.now, HostId(index), &frame);
                    }
                    if let Some(meddler) = &mut self.meddler {
                        for answer in meddler(self.now, HostId(index), &mut frame) {
                            station.down.offer(now, Frame::from_bytes(&answer));
                        }
                    }
                    if let Some((at, mac)) = station.moves
                        && at <= self.now
                    {
                        odd::move_sender(&mut frame, mac);
                    }
                    station.up.offer(now, Frame::from_bytes(&frame));
                    done += 1;
                }
                while let Some(frame) = self.stations[index].up.take(now) {
                    self.forward(index, &frame);
                    done += 1;
                }
            }
            if done == 0 {
                return all;
            }
            all += done;
        }
        panic!(
            "seed {:#x}: the net spins at {} ns",
            self.seed,
            self.now.as_nanos()
        );
    }

    /// Forwards a frame as a switch that knows all addresses.
    fn forward(&mut self, from: usize, frame: &Frame) {
        let now = span(self.now);
        for (index, station) in self.stations.iter_mut().enumerate() {
            let mac = Host::mac_of(station.address);
            let to_group = frame.first().is_some_and(|byte| byte & 1 != 0);
            if index == from {
                continue;
            }
            if to_group || frame.get(..6) == Some(&mac) {
                station.down.offer(now, frame.clone());
            } else if let Some((_, other)) = station.moves
                && frame.get(..6) == Some(&other)
            {
                let mut bytes = frame.to_vec();
                bytes[..6].copy_from_slice(&mac);
                station.down.offer(now, Frame::from_bytes(&bytes));
            }
        }
    }

    /// The time of the next event; [`Instant::NEVER`]: there is none.
    pub fn next_event(&mut self) -> Instant {
        let mut next = Instant::NEVER;
        for station in &mut self.stations {
            for host in &mut station.hosts {
                next = next.min(host.next_event(self.now));
            }
            for arrival in [station.up.next_arrival(), station.down.next_arrival()] {
                let at = arrival.map_or(Instant::NEVER, |at| {
                    Instant::from_nanos(u64::try_from(at.as_nanos()).unwrap_or(u64::MAX))
                });
                next = next.min(at);
            }
        }
        next.max(self.now)
    }

    /// Advances time to the next event, or to `limit` if that is earlier. Returns whether it
    /// reached an event.
    pub fn advance(&mut self, limit: Instant) -> bool {
        let next = self.next_event();
        let event = next <= limit && next != Instant::NEVER;
        self.now = self.now.max(next.min(limit));
        event
    }

    /// Runs until the applications are done, for `time` at most. `apps` does everything that
    /// applications can do at this moment, and returns the number of actions, or that all are
    /// done. It is called again after an event, or at the time for which it asked.
    ///
    /// The errors of `apps`; or the applications are not done in time.
    /// As `apps` does, or if it is not over in time.
    pub fn run(
        &mut self,
        time: Duration,
        mut apps: impl FnMut(&mut Moment) -> Result<ControlFlow<(), usize>, SocketError>,
    ) -> Result<(), RunError> {
        let limit = self.now + time;
        loop {
            self.run_until_idle();
            let mut moment = Moment {
                now: self.now,
                wake_at: Instant::NEVER,
                progress: self.progress(),
            };
            match apps(&mut moment)? {
                ControlFlow::Break(()) => return Ok(()),
                ControlFlow::Continue(0) => {}
                ControlFlow::Continue(_) => continue,
            }
            // A call may have given a stack work even if it returned no progress.
            if self.run_until_idle() > 0 {
                continue;
            }
            let until = limit.min(moment.wake_at);
            if !self.advance(until) && moment.wake_at > limit {
                let silent = self.next_event() == Instant::NEVER;
                return Err(if silent {
                    RunError::Stuck
                } else {
                    RunError::OutOfTime
                });
            }
        }
    }

    /// Lets `time` pass without applications.
    pub fn pass(&mut self, time: Duration) {
        let limit = self.now + time;
        loop {
            self.run_until_idle();
            if !self.advance(limit) {
                self.run_until_idle();
                return;
            }
        }
    }

    /// As [`Host::check`], for every host.
    ///
    /// # Errors
    /// The host, and the difference.
    pub fn check(&mut self) -> Result<usize, String> {
        let mut compared = 0;
        for station in &mut self.stations {
            for host in &mut station.hosts {
                let checked = host.check();
                compared += checked.map_err(|what| format!("{}: {what}", station.address))?;
            }
        }
        Ok(compared)
    }

    /// A number that differs if any transmitted byte or its time differs.
    pub fn fingerprint(&mut self) -> u64 {
        let mut all = mix(self.now.as_nanos());
        for station in &mut self.stations {
            let [up, down] = [station.up.stats(), station.down.stats()];
            for count in [up.offered, up.delivered, down.offered, down.delivered] {
                all = mix(all ^ count);
            }
            for host in &station.hosts {
                let states = host.inspect(ReplicaState::fingerprint).into_iter();
                all = states.fold(all, |all, state| mix(all ^ state));
            }
        }
        all
    }
}

/// The device of a host, which divides frames of several datagrams if `divides`.
fn host_device(setup: &Setup, divides: bool) -> (Box<dyn Device>, Script) {
    let mac = Host::mac_of(setup.address());
    let mtu = usize::from(setup.limits.mtu);
    let longest = if divides { 65_549 } else { 0 };
    let config = MemoryConfig::default().mtu(mtu).macs(mac, mac);
    let (device, script) = scripted_with(config.uso_max_bytes(longest));
    (Box::new(device), script)
}

fn span(at: Instant) -> core::time::Duration {
    core::time::Duration::from_nanos(at.as_nanos())
}
