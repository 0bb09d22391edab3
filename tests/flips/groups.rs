//! Groups with a flipped bit that confirm nothing: among three replicas the changed one is found in
//! time and repaired; between two the difference is reported.
//!
//! `GROUPS_CASES=10000` sets the number of flips, `GROUPS_FIRST=0x...` begins with fresh seeds,
//! `GROUPS_SEED=0x...` repeats one. The test ignores the data that applications get from a group
//! with a wrong state.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use dominoes_netstack::time::{Duration, Instant};
use dominoes_testkit::{Cases, HostConfig, Net, Rng, Traffic, Variant};

const CONNECTIONS: u16 = 3;
/// The most positions between two posts in a group of the testkit.
const EVERY: u64 = 32;
/// Requests by which the fastest worker may be ahead of the slowest.
const AHEAD: u64 = 256;

/// The result of a flip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    /// The worker received the state of the others.
    Repaired,
    /// The group counted that its two replicas differ.
    Reported,
    /// The changed value was overwritten.
    Overwritten,
    /// The worker panicked.
    Unwound,
    /// No further request could have shown the difference.
    Quiet,
    /// The wrong state made another part of the program panic.
    Harmful,
}

fn flip(seed: u64, replicas: usize) -> Result<Option<Fate>, String> {
    let mut rng = Rng::new(seed);
    let mut net = Net::new(seed);
    let delay = dominoes_testkit::LinkConfig::default();
    let delay = delay.delay(core::time::Duration::from_millis(1));
    let mut add = |variant| {
        let config = HostConfig::new(variant).wires(delay.clone(), delay.clone());
        net.add(config).map_err(|error| error.to_string())
    };
    let server = add(Variant::Replicated(replicas))?;
    let client = add(Variant::Single)?;
    let listener = net
        .sockets(server)
        .listen(7, 8)
        .map_err(|e| e.to_string())?;
    let to = net.address_of(server, 7);
    let mut connecting = Vec::new();
    for _ in 0..CONNECTIONS {
        let opening = net.sockets(client).begin_connect(to);
        connecting.push(opening.map_err(|error| error.to_string())?);
    }
    let mut all_traffic: Vec<Traffic> = Vec::new();
    let limit = Instant::ZERO + Duration::from_secs(600);
    let flip_after = rng.below(300_000);
    let mut flipped_at = None;
    let mut asked = false;
    loop {
        net.run_until_idle();
        let mut done = 0;
        while let Ok((stream, _)) = listener.try_accept() {
            all_traffic.push(Traffic::new(stream, 2, 1, 100_000, 100_000));
            done += 1;
        }
        connecting.retain_mut(|opening| match opening.try_finish() {
            Ok(Some(stream)) => {
                all_traffic.push(Traffic::new(stream, 1, 2, 100_000, 100_000));
                false
            }
            Ok(None) => true,
            Err(_) => false,
        });
        // An application that gets an error drops its connection.
        all_traffic.retain_mut(|traffic| match traffic.step() {
            Ok(did) => {
                done += did;
                !traffic.is_over()
            }
            Err(_) => false,
        });
        let moved: u64 = all_traffic.iter().map(Traffic::received).sum();
        let host = net.host(server);
        let (life, members, position) =
            (host.fault_stats(), host.membership_stats(), host.position());
        let Some(begin) = flipped_at else {
            if life.flips > 0 {
                flipped_at = Some(position);
                continue;
            }
            if !asked && moved >= flip_after {
                host.flip_soon();
                asked = true;
            }
            if done == 0 && !net.advance(limit) {
                return Ok(None);
            }
            continue;
        };
        let fate = match () {
            () if life.repairs > 0 => Fate::Repaired,
            () if life.overwritten > 0 => Fate::Overwritten,
            () if life.unwound > 0 => Fate::Unwound,
            () if replicas == 2 && members.undecided > 0 => Fate::Reported,
            () if done == 0 && !net.advance(limit) => Fate::Quiet,
            () => {
                let places = u64::from(CONNECTIONS) + 1;
                if position - begin > EVERY * (places + 1) + AHEAD {
                    return Err(format!("flipped at {begin}, not found at {position}"));
                }
                continue;
            }
        };
        return Ok(Some(fate));
    }
}

fn fates(name: &'static str, command: &'static str, replicas: usize) -> BTreeMap<Fate, u64> {
    let outcomes = Cases::new(name, command, 200).run(|seed| {
        catch_unwind(AssertUnwindSafe(|| flip(seed, replicas))).unwrap_or(Ok(Some(Fate::Harmful)))
    });
    let mut fates = BTreeMap::new();
    for fate in outcomes.into_iter().flatten() {
        *fates.entry(fate).or_default() += 1;
    }
    println!("of {replicas}: {fates:?}");
    fates
}

#[test]
fn of_three_replicas_the_one_that_changed_is_found_in_time_and_repaired() {
    let command = "cargo test --release -p dominoes-tests --test main of_three_replicas_the_one";
    let fates = fates("GROUPS", command, 3);
    let count = |fate| fates.get(&fate).copied().unwrap_or(0);
    let all: u64 = fates.values().sum();
    if all >= 100 {
        assert!(count(Fate::Repaired) * 2 > all, "{fates:?}");
        assert!(count(Fate::Harmful) * 20 < all, "{fates:?}");
    }
}

#[test]
fn of_two_replicas_that_differ_it_is_said_that_they_do() {
    let command = "cargo test --release -p dominoes-tests --test main of_two_replicas_that_differ";
    let fates = fates("GROUPS", command, 2);
    let count = |fate| fates.get(&fate).copied().unwrap_or(0);
    let all: u64 = fates.values().sum();
    if all >= 100 {
        assert!(count(Fate::Reported) * 2 > all, "{fates:?}");
        assert!(count(Fate::Harmful) * 20 < all, "{fates:?}");
    }
}
