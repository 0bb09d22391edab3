//! Flipped bits: three replicas apply one log, and one of them is changed without its knowledge.
//!
//! A posted fingerprint must reveal each flip within the number of positions that
//! [`ReplicaState::post`] documents, or the changed value has been overwritten before it had any
//! effect, and the states are equal again.
//!
//! `FLIPS_CASES=10000` sets the number of flips, `FLIPS_FIRST=0x...` begins with fresh seeds,
//! `FLIPS_SEED=0x...` repeats one.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use dominoes_netstack::ReplicaState;
use dominoes_testkit::Cases;

use super::hosts::World;

/// Positions between two posts.
const EVERY: u64 = 4;

/// The result of a flip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    /// A posted fingerprint differed.
    Found,
    /// The replica panicked.
    Unwound,
    /// The changed value was overwritten.
    Harmless,
}

struct Outcome {
    fate: Fate,
    field: &'static str,
    /// Positions until then.
    after: u64,
    places: u64,
}

/// Two hosts with idle connections and busy ones.
fn world(seed: u64) -> World {
    let mut world = World::new(seed, 3);
    let connections = world.rng.between(1, 6);
    for _ in 0..connections {
        world.open();
    }
    for _ in 0..world.rng.between(20, 80) {
        world.step();
    }
    for index in 0..connections as u32 {
        for host in 0..2 {
            // Some applications write nothing.
            let bytes = world.rng.below(2) * world.rng.below(200_000);
            world.write(host, index, bytes);
        }
        if world.rng.chance(200) {
            world.shut(1, index);
        }
    }
    for _ in 0..world.rng.below(500) {
        world.step();
    }
    world
}

fn flip(seed: u64) -> Result<Option<Outcome>, String> {
    let mut world = world(seed);
    let open: Vec<u32> = world.hosts[0].replicas[0]
        .connections()
        .map(|(conn, _)| conn.index)
        .collect();
    if open.is_empty() {
        return Ok(None);
    }
    let place = open[world.rng.index(open.len())];
    let victim = &mut world.hosts[0].replicas[1];
    let bit = world.rng.below(u64::from(victim.bits(place))) as u32;
    let field = victim.flip(place, bit).ok_or("there is no such bit")?;
    let [one, other, third] = &world.hosts[0].replicas[..] else {
        return Err("there are not three".to_owned());
    };
    if one.fingerprint() == other.fingerprint() || one.fingerprint() != third.fingerprint() {
        return Err(format!("bit {bit}, {field}: no fingerprint shows it"));
    }
    let begin = one.position();
    let places = one.places() as u64;
    let outcome = |fate, replica: &ReplicaState| Outcome {
        fate,
        field,
        after: replica.position() - begin,
        places,
    };
    // States are compared only when they are posted, which happens within `EVERY` positions for
    // each place.
    let bound = EVERY * (places + 1);
    let mut seen = world.requests;
    loop {
        // An event of the server; in the end only timers.
        let step = catch_unwind(AssertUnwindSafe(|| world.step()));
        let [one, other, third] = &world.hosts[0].replicas[..] else {
            return Err("there are not three".to_owned());
        };
        let Ok(more) = step else {
            return Ok(Some(outcome(Fate::Unwound, one)));
        };
        for position in seen + 1..=world.requests {
            // If a step applied several requests, the state after the last one is compared for all.
            if position % EVERY == 0 {
                let turn = position / EVERY;
                if one.post(turn) != third.post(turn) {
                    return Err("replicas that nobody touched differ".to_owned());
                }
                if one.post(turn) != other.post(turn) {
                    return Ok(Some(outcome(Fate::Found, one)));
                }
            }
        }
        seen = world.requests;
        if one.fingerprint() == other.fingerprint() {
            return Ok(Some(outcome(Fate::Harmless, one)));
        }
        if one.position() - begin > bound {
            let difference = one.first_difference(other);
            return Err(format!(
                "bit {bit}, {field}: not found after {bound} positions: {difference:?}"
            ));
        }
        if !more {
            world.tick();
        }
    }
}

#[test]
fn every_flipped_bit_is_found_in_time_or_has_come_to_nothing() {
    let command = "cargo test --release -p dominoes-tests --test main every_flipped_bit";
    let outcomes = Cases::new("FLIPS", command, 1_000).run(flip);
    let mut fates: BTreeMap<Fate, u64> = BTreeMap::new();
    let mut fields: BTreeMap<&str, u64> = BTreeMap::new();
    let mut harmless: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut longest, mut most) = (0, 0);
    for outcome in outcomes.iter().flatten() {
        *fates.entry(outcome.fate).or_default() += 1;
        *fields.entry(outcome.field).or_default() += 1;
        if outcome.fate == Fate::Harmless {
            *harmless.entry(outcome.field).or_default() += 1;
        }
        longest = longest.max(outcome.after);
        most = most.max(outcome.places);
    }
    println!(
        "flips {} {fates:?}; {} fields; at most {longest} positions, with up to {most} places; overwritten: {harmless:?}",
        outcomes.iter().flatten().count(),
        fields.len(),
    );
    if outcomes.len() >= 1_000 {
        assert!(fields.len() > 60, "only {} fields", fields.len());
        assert!(
            fates.get(&Fate::Found) > fates.get(&Fate::Harmless),
            "{fates:?}"
        );
    }
}
