//! Connections are accepted in the order in which they were established, whichever workers hand
//! them over.

use std::net::SocketAddr;

use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::Setup;
use dominoes_testkit::{Host, Stalls, Variant};

const SEEDS: u64 = 40;
const CONNECTIONS: u16 = 12;
const PORT: u16 = 7;

fn host(variant: Variant, last: u8, seed: u64) -> Host {
    let setup = Setup::new([10, 0, 0, last].into(), 24, [seed, u64::from(last)]);
    let mut host = Host::new(variant, setup, seed).unwrap();
    host.set_stalls(Stalls {
        ppm: 50_000,
        longest: Duration::from_micros(50),
    });
    host
}

/// Opens connections one after the other, each once the one before is established. Returns their
/// ports as they were opened, and as they are accepted afterwards.
fn opened_and_accepted(variant: Variant, seed: u64) -> [Vec<u16>; 2] {
    let (mut near, mut far) = (host(variant, 1, seed), host(Variant::Single, 2, seed));
    let listener = near.sockets().listen(PORT, 2 * CONNECTIONS).unwrap();
    let to = SocketAddr::new([10, 0, 0, 1].into(), PORT);
    let mut now = Instant::from_millis(1);
    let mut streams = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut opening = far.sockets().begin_connect(to).unwrap();
        streams.push(loop {
            now += Duration::from_micros(10);
            far.turn(now);
            far.take_sent().into_iter().for_each(|f| near.inject(f));
            near.turn(now);
            near.take_sent().into_iter().for_each(|f| far.inject(f));
            if let Some(stream) = opening.try_finish().unwrap() {
                break stream;
            }
        });
    }
    for _ in 0..100 {
        now += Duration::from_millis(1);
        far.turn(now);
        far.take_sent().into_iter().for_each(|f| near.inject(f));
        near.turn(now);
        near.take_sent().into_iter().for_each(|f| far.inject(f));
    }
    let opened = streams.iter().map(|s| s.local_addr().unwrap().port());
    let accepted = std::iter::from_fn(|| listener.try_accept().ok().map(|(_, from)| from.port()));
    [opened.collect(), accepted.collect()]
}

#[test]
fn connections_are_accepted_in_the_order_in_which_they_were_established() {
    // A lock may let segments of later connections pass earlier ones before TCP sees either.
    let keeps_order = |variant: &Variant| {
        matches!(
            variant,
            Variant::Single | Variant::Pipelined(_) | Variant::Replicated(_)
        )
    };
    for variant in Variant::ALL.into_iter().filter(keeps_order) {
        for seed in 0..SEEDS {
            let [opened, accepted] = opened_and_accepted(variant, seed);
            assert_eq!(opened, accepted, "{variant}, seed {seed}");
        }
    }
}
