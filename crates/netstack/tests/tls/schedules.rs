//! *Schedules* of TLS: a connection over bad wires. The hosts' workers stall, come, go, die (also
//! within records) and have bits flipped, while both ends write and replace their keys. In some
//! schedules one record is changed on its way.
//!
//! `TLS_SCHEDULES=100000` sets their number, `TLS_SCHEDULES_FIRST=0x...` begins with fresh seeds,
//! `TLS_SCHEDULES_SEED=0x...` repeats one. `KIND=tls .ci/schedules` runs many, and resumes where it
//! was stopped.

use std::ops::ControlFlow;

use dominoes_netstack::Limits;
use dominoes_netstack::time::Duration;
use dominoes_netstack::tls::{TlsError, count_nonces};
use dominoes_testkit::link::Faults;
use dominoes_testkit::packet::Family;
use dominoes_testkit::{Cases, FaultPlan, HostConfig, LinkConfig, Moment, Rng, RunError, Stalls};
use dominoes_testkit::{HostId, Variant, mix, number};
use rustls::AlertDescription;

use super::fixture::*;

/// Schedules of a usual run; each kind of event happens at least once.
const FEW: u64 = 200;
/// Bytes that each end writes, at least.
const BYTES: u64 = 16 << 10;
/// Faults of wires and workers end after this much virtual time.
const FAULTS_END: Duration = Duration::from_secs(120);
/// A healthy connection must end within this time after the faults.
const GRACE: Duration = Duration::from_secs(240);
/// Both stacks must have forgotten it after two maximum segment lifetimes.
const FORGOTTEN: Duration = Duration::from_secs(130);

dominoes_testkit::tally! {
    /// Connections that ended as expected.
    schedules,
    over_ipv6,
    tls12,
    /// Bytes that applications read.
    bytes,
    /// Frames searched for text.
    frames,
    /// Records sealed.
    sealed,
    /// ... once more, because a worker died within them.
    sealed_again,
    key_updates,
    /// Records that were changed on their way.
    forged,
    lost,
    duplicated,
    reordered,
    corrupted,
    stalls,
    joins,
    leaves,
    deaths,
    deaths_performing,
    deaths_applying,
    deaths_in_unit,
    steals,
    flips,
    repairs,
}

fn wire(rng: &mut Rng, corrupts: bool) -> LinkConfig {
    let mut part = |most: u64| match rng.chance(300_000) {
        true => 0,
        false => rng.below(most + 1).min(rng.below(most + 1)) as u32,
    };
    let faults = Faults::new(0)
        .loss(part(30_000))
        .duplicate(part(20_000))
        .reorder(part(50_000), 5)
        // Corrupts a frame at most once: TCP's checksum does not detect every second corruption,
        // and TLS would end the connection.
        .corrupt(if corrupts { part(20_000) } else { 0 });
    let delay = core::time::Duration::from_micros(rng.below(5_000));
    let jitter = core::time::Duration::from_micros(rng.below(1_000) * rng.below(2));
    LinkConfig::default()
        .faults(faults)
        .delay(delay)
        .jitter(jitter)
}

fn host(rng: &mut Rng, family: Family) -> HostConfig {
    let replicas = 2 + rng.below(3) as usize;
    let variant = match rng.below(12) {
        0 => Variant::Single,
        1 => Variant::LockedTwo(2),
        2 => Variant::Pipelined(3),
        3 => Variant::Replicated(1),
        _ => Variant::Replicated(replicas),
    };
    let mut limits = Limits::default();
    limits.connections = 4;
    limits.receive_buffer = 1 << (15 + rng.below(3));
    limits.send_buffer = 1 << (12 + rng.below(6));
    limits.tx_slots = 16 << rng.below(4);
    limits.mtu = [576, 1500, 1500, 9000][rng.below(4) as usize];
    if family == Family::V6 {
        limits.mtu = limits.mtu.max(1280);
    }
    let flips = matches!(variant, Variant::Replicated(3..)) && rng.chance(500_000);
    let plan = FaultPlan {
        free_slots: 1 + rng.below(2) as usize,
        joins_ppm: 2_000 + rng.below(2_000) as u32,
        leaves_ppm: rng.below(2_000) as u32,
        failures_ppm: rng.below(2_000) as u32,
        panics_ppm: rng.below(16_000) as u32,
        flips_ppm: u32::from(flips) * (2_000 + rng.below(6_000) as u32),
    };
    let stalls = Stalls {
        ppm: 10_000,
        longest: Duration::from_millis(5),
    };
    HostConfig::new(variant)
        .family(family)
        .limits(limits)
        .stalls(stalls)
        .fault_plan(plan)
        .wires(wire(rng, true), wire(rng, false))
}

/// The actions of both applications.
struct Traffic {
    rng: Rng,
    texts: [Vec<u8>; 2],
    written: [usize; 2],
    heard: [Vec<u8>; 2],
    shut: [bool; 2],
    over: [bool; 2],
    /// The longest write.
    at_once: u64,
    updates: u64,
    /// The end that changes a record, after how many bytes of text, and a number that selects the
    /// bit.
    forges: Option<(usize, usize, u64)>,
    /// The length of the text before the changed record, and the alert for it.
    forged: Option<(usize, AlertDescription)>,
    buffer: Vec<u8>,
}

impl Traffic {
    fn new(mut rng: Rng, plan: &Plan) -> Traffic {
        let texts = [0, 1].map(|_| {
            let len = BYTES / 2 * rng.below(2) + BYTES + rng.below(4 * BYTES);
            text(len as usize, rng.next())
        });
        let from = plan.who.iter().position(|who| *who == Who::Rustls);
        let from = from.filter(|_| rng.chance(400_000));
        let forges = from.map(|end| {
            let most = texts[end].len() as u64 - 1;
            (end, rng.below(most) as usize, rng.next())
        });
        Traffic {
            texts,
            written: [0; 2],
            heard: Default::default(),
            shut: [false; 2],
            over: [false; 2],
            at_once: 1 << (6 + rng.below(12)),
            updates: 0,
            forges,
            forged: None,
            buffer: vec![0; 20_000],
            rng,
        }
    }

    /// Does what both ends can do now. Returns whether all is over.
    fn step(&mut self, ends: &mut [End; 2], plan: &Plan) -> Result<bool, String> {
        for (i, end) in ends.iter_mut().enumerate() {
            self.write(i, end, plan)?;
            self.read(i, end)?;
        }
        let is_sent = ends.iter().all(End::is_drained);
        let is_over = self.over == [true; 2] && self.shut == [true; 2] && is_sent;
        Ok(is_over || (self.over == [true; 2] && self.forged.is_some()))
    }

    fn write(&mut self, i: usize, end: &mut End, plan: &Plan) -> Result<(), String> {
        let left = &self.texts[i][self.written[i]..];
        let has_failed = self.forged.is_some() && self.over[i];
        let fail = |error: TlsError| format!("end {i} writes: {error:?}");
        if has_failed || self.rng.percent(20) {
            return Ok(());
        }
        if self.shut[i] {
            // `rustls` may have more to send.
            return end.go_on().map(drop).map_err(fail);
        }
        if left.is_empty() {
            // No alert follows a close_notify.
            if self.forges.is_none() && end.go_on().map_err(fail)? && end.is_drained() {
                end.shutdown();
                self.shut[i] = true;
            }
            return Ok(());
        }
        let mut len = left.len().min(1 + self.rng.below(self.at_once) as usize);
        let mut forges = None;
        if let Some((from, behind, choice)) = self.forges
            && (from, self.forged) == (i, None)
        {
            match self.written[i] < behind {
                true => len = len.min(behind - self.written[i]),
                false if !end.go_on().map_err(fail)? || !end.is_drained() => return Ok(()),
                false => forges = Some(choice),
            }
        }
        if let (Some(choice), End::Rustls(_, wire)) = (forges, &mut *end) {
            wire.forge_next(choice, plan.suite);
        }
        let written = end.write(&left[..len]).map_err(fail)?;
        if forges.is_some() {
            let End::Rustls(_, wire) = end else {
                return Err("only rustls forges".to_owned());
            };
            let alert = wire.alert.ok_or("no record was changed")?;
            self.forged = Some((self.written[i], alert));
        }
        self.written[i] += written;
        let updates = written > 0 && plan.suite.tls13().is_some() && self.rng.percent(3);
        // Not before the change: a key update would become the changed record.
        if updates && (self.forges.is_none() || self.forged.is_some()) {
            end.update_keys();
            self.updates += 1;
        }
        Ok(())
    }

    fn read(&mut self, i: usize, end: &mut End) -> Result<(), String> {
        while !self.over[i] {
            let read = end.read(&mut self.buffer);
            let len = match (read, self.forged) {
                (Ok(None), _) => break,
                (Ok(Some(len)), _) => len,
                (Err(error), Some((behind, alert))) => {
                    self.over[i] = true;
                    return self.ends_rightly(i, error, behind, alert);
                }
                (Err(error), None) => return Err(format!("end {i} reads: {error:?}")),
            };
            self.heard[i].extend_from_slice(&self.buffer[..len]);
            self.over[i] = len == 0;
            if !self.texts[1 - i].starts_with(&self.heard[i]) {
                return Err(format!("end {i} reads something else"));
            }
            if len == 0 && self.heard[i].len() < self.texts[1 - i].len() {
                return Err(format!("end {i} misses something"));
            }
        }
        Ok(())
    }

    /// After a change its reader reports the right alert and has read all text before it; the other
    /// end receives the alert.
    fn ends_rightly(
        &self,
        i: usize,
        error: TlsError,
        behind: usize,
        alert: AlertDescription,
    ) -> Result<(), String> {
        let forger = self.forges.map_or(0, |(end, ..)| end);
        let expected = match i == forger {
            true => heard(alert),
            false => TlsError::Refused(alert),
        };
        if error != expected {
            return Err(format!("end {i} ends with {error:?}, not {expected:?}"));
        }
        if i != forger && self.heard[i].len() != behind {
            let len = self.heard[i].len();
            return Err(format!("end {i} reads {len} bytes of {behind}"));
        }
        Ok(())
    }
}

fn schedule(seed: u64) -> Result<Tally, String> {
    count_nonces();
    let mut rng = Rng::new(seed);
    let who = [OURS, SERVER, CLIENT][rng.below(3) as usize];
    let suite = SUITES[rng.below(SUITES.len() as u64) as usize];
    let plan = Plan::new(Variant::Single, who, suite);
    let family = Family::ALL[(mix(seed) & 1) as usize];
    let hosts = [host(&mut rng, family), host(&mut rng, family)];
    let mut pair = Pair::new(rng.next(), hosts, who, &configs(suite));
    let mut traffic = Traffic::new(rng.fork(), &plan);
    let mut ran = Err(RunError::OutOfTime);
    for time in [FAULTS_END, GRACE] {
        let (mut failed, ends, seen) = (None, &mut pair.ends, &pair.seen);
        ran = pair.net.run(time, |moment: &mut Moment| {
            // Workers may have units to process although no frame is on its way.
            moment.wake_at(moment.now() + Duration::from_millis(1));
            let stepped = match seen.get() {
                0 => traffic.step(ends, &plan),
                frames => Err(format!("{frames} frames carry text")),
            };
            match stepped {
                Ok(false) => Ok(ControlFlow::Continue(0)),
                Ok(true) => Ok(ControlFlow::Break(())),
                Err(what) => {
                    failed = Some(what);
                    Ok(ControlFlow::Break(()))
                }
            }
        });
        if let Some(what) = failed {
            return Err(format!("{what}, {who:?} {:?}", suite.suite()));
        }
        if ran != Err(RunError::OutOfTime) {
            break;
        }
        pair.net.clear_faults();
    }
    if let Err(error) = ran {
        let (written, shut, over) = (traffic.written, traffic.shut, traffic.over);
        let forged = traffic.forged;
        return Err(format!("{error}: {written:?} {shut:?} {over:?} {forged:?}"));
    }
    let is_forged = traffic.forged.is_some();
    pair.net.clear_faults();
    pair.ends = [End::Gone, End::Gone];
    pair.net.pass(FORGOTTEN);
    if pair.seen.get() > 0 {
        return Err(format!("{} frames carry text", pair.seen.get()));
    }
    let nonces = count_nonces();
    if nonces.reused > 0 || nonces.fresh == 0 {
        return Err(format!("{nonces:?}"));
    }
    pair.net.check()?;
    let mut tally = Tally {
        schedules: 1,
        over_ipv6: u64::from(family == Family::V6),
        tls12: u64::from(suite.tls13().is_none()),
        bytes: traffic.heard.iter().map(|heard| heard.len() as u64).sum(),
        sealed: nonces.fresh,
        sealed_again: nonces.again,
        key_updates: traffic.updates,
        forged: u64::from(is_forged),
        ..Tally::default()
    };
    for id in pair.hosts {
        tally.count(&mut pair, id)?;
    }
    Ok(tally)
}

impl Tally {
    /// Adds the statistics of a host that has no connection any more.
    fn count(&mut self, pair: &mut Pair, id: HostId) -> Result<(), String> {
        for link in pair.net.link_stats(id) {
            self.lost += link.faults.lost;
            self.duplicated += link.faults.duplicated;
            self.reordered += link.faults.reordered;
            self.corrupted += link.faults.corrupted;
        }
        self.frames += pair.net.link_stats(id)[0].offered;
        let host = pair.net.host(id);
        self.stalls += host.stall_count();
        self.steals += host.effect_stats().stolen;
        let stats = host.fault_stats();
        self.joins += stats.joins;
        self.leaves += stats.leaves;
        self.deaths += stats.failures;
        self.deaths_performing += stats.failures_performing;
        self.deaths_applying += stats.failures_applying;
        self.deaths_in_unit += stats.failures_in_unit;
        self.flips += stats.flips;
        self.repairs += stats.repairs;
        let left = host.inspect(|replica| replica.connections().count());
        match left.into_iter().max() {
            Some(0) => Ok(()),
            left => Err(format!("{left:?} connections are left")),
        }
    }
}

#[test]
fn every_schedule_of_tls_keeps_every_byte_and_shows_none() {
    let command = "cargo test -p dominoes-netstack --test main every_schedule_of_tls";
    let mut sum = Tally::default();
    let count = number("TLS_SCHEDULES").unwrap_or(FEW);
    for tally in Cases::new("TLS_SCHEDULES", command, count).run(schedule) {
        sum.add(&tally);
    }
    println!("tally {sum}");
    if sum.schedules >= FEW {
        assert_eq!(sum.missing(), Vec::<&str>::new(), "too calm: {sum}");
    }
}
