//! Code that panics while it handles one connection: that connection ends alike in every replica,
//! and no other connection does.

use std::panic::{AssertUnwindSafe, catch_unwind};

use dominoes_proto::log::effect::ConnectionEvent;
use dominoes_testkit::Cases;

use super::hosts::World;

/// Three replicas with some connections that move data both ways.
fn busy(seed: u64) -> World {
    let mut world = World::new(seed, 3);
    let connections = world.rng.between(2, 5);
    for _ in 0..connections {
        world.open();
    }
    for _ in 0..60 {
        world.step();
    }
    for index in 0..connections as u32 {
        for host in 0..2 {
            let bytes = world.rng.between(20_000, 100_000);
            world.write(host, index, bytes);
        }
    }
    for _ in 0..world.rng.below(200) {
        world.step();
    }
    world
}

/// Counts of a case.
struct Tally {
    panicked: u64,
    /// Panics where the state could not be restored.
    fatal: u64,
    /// Connections of the server that ended well.
    well: u64,
    resets: u64,
}

fn case(seed: u64) -> Result<Tally, String> {
    let mut world = busy(seed);
    let mut tally = Tally {
        panicked: 0,
        fatal: 0,
        well: 0,
        resets: 0,
    };
    for _ in 0..2 {
        let fuse = world.rng.index(12);
        let resets = world.hosts[0].resets;
        for sink in &mut world.hosts[0].sinks {
            sink.fuse = Some(fuse);
        }
        // Until an effect triggers the panic.
        for _ in 0..200 {
            let stepped = catch_unwind(AssertUnwindSafe(|| world.step()));
            if stepped.is_err() {
                tally.fatal = 1;
                return Ok(tally);
            }
            if world.hosts[0].sinks.iter().all(|sink| sink.fuse.is_none()) {
                break;
            }
        }
        let server = &mut world.hosts[0];
        let fired = server
            .sinks
            .iter()
            .filter(|sink| sink.fuse.is_none())
            .count();
        if fired != 0 && fired != 3 {
            return Err(format!("{fired} of three panicked"));
        }
        server.sinks.iter_mut().for_each(|sink| sink.fuse = None);
        let [one, other, third] = &server.replicas[..] else {
            return Err("there are not three".to_owned());
        };
        let prints = [one, other, third].map(|replica| replica.fingerprint());
        if prints != [prints[0]; 3] {
            return Err(format!("they differ: {:?}", one.first_difference(other)));
        }
        let panicked = one.stats().panicked;
        if panicked > tally.panicked {
            tally.resets += server.resets - resets;
        }
        tally.panicked = panicked;
        for _ in 0..world.rng.below(100) {
            world.step();
        }
    }
    // The remaining connections run to their end.
    let open = |world: &World| {
        let of = |host: usize| world.hosts[host].replicas[0].connections().count();
        of(0) + of(1)
    };
    for _ in 0..50_000 {
        world.step();
        if open(&world) == 0 {
            break;
        }
        for host in 0..2 {
            let apps: Vec<u32> = world.hosts[host].apps.keys().copied().collect();
            for index in apps {
                if world.is_idle(host, index) {
                    world.shut(host, index);
                }
            }
        }
    }
    let server = &world.hosts[0];
    let aborted = |failed: Option<ConnectionEvent>| failed == Some(ConnectionEvent::Aborted);
    let ended = server
        .over
        .iter()
        .filter(|(_, app)| aborted(app.failed))
        .count() as u64;
    if ended != tally.panicked {
        return Err(format!("{} panicked, {ended} sockets know", tally.panicked));
    }
    tally.well = server
        .over
        .iter()
        .filter(|(_, app)| app.failed.is_none())
        .count() as u64;
    if open(&world) != 0 {
        let left: Vec<_> = world
            .hosts
            .iter()
            .map(|host| {
                let states = host.replicas[0]
                    .connections()
                    .map(|(conn, tcb)| (conn.index, tcb.state()));
                (states.collect::<Vec<_>>(), host.apps.clone())
            })
            .collect();
        return Err(format!("connections that never end: {left:?}"));
    }
    Ok(tally)
}

#[test]
fn a_panic_closes_its_connection_alike_in_all_replicas_and_no_other() {
    let command =
        "cargo test --release -p dominoes-tests --test main a_panic_closes_its_connection";
    let tallies = Cases::new("PANICS", command, 300).run(case);
    let sum = |of: fn(&Tally) -> u64| tallies.iter().map(of).sum::<u64>();
    let (panicked, fatal) = (sum(|t| t.panicked), sum(|t| t.fatal));
    let (well, resets) = (sum(|t| t.well), sum(|t| t.resets));
    println!("panicked {panicked}, nobody's own {fatal}, ended well {well}, resets {resets}");
    if tallies.len() >= 300 {
        assert!(panicked > 300 && well > 300 && resets > panicked / 2);
        assert!(fatal < panicked / 4, "{fatal} of {panicked}");
    }
}
