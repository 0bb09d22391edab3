//! An idle stack does nothing, however many connections it holds.

#![cfg(feature = "testkit")]

use std::net::SocketAddr;
use std::{thread, time};

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::config::Keepalive;
use dominoes_netstack::testkit::Variant;
use dominoes_netstack::time::Duration;
use dominoes_netstack::variants::{ByHand, Setup};
use dominoes_netstack::{Limits, SocketError, Stack, TcpStream};
use dominoes_testkit::hand::Wired;

use crate::support::connections;

const CONNECTIONS: usize = 1000;
const PORT: u16 = 7;
/// Connections opened at a time.
const AT_ONCE: usize = 100;

fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.connections = 2048;
    (limits.receive_buffer, limits.send_buffer) = (4096, 4096);
    limits
}

fn server() -> SocketAddr {
    SocketAddr::new([10, 0, 0, 1].into(), PORT)
}

/// The variants whose threads sleep differently.
const VARIANTS: [Variant; 3] = [Variant::Single, Variant::Locked(2), Variant::Replicated(2)];

/// Two hosts with many connections between them, in virtual time.
struct Pair {
    wired: Wired,
    held: Vec<TcpStream>,
}

impl Pair {
    fn new(variant: Variant) -> Pair {
        let setup = |last| {
            let mut setup = Setup::new([10, 0, 0, last].into(), 24, [1, 2]);
            setup.limits = limits();
            setup
        };
        let mut pair = Pair {
            wired: Wired::two(variant, [1, 2].map(setup)),
            held: Vec::new(),
        };
        pair.open();
        pair
    }

    fn open(&mut self) {
        let listener = self.wired.sockets().listen(PORT, 1000).unwrap();
        let sockets = self.wired.peer();
        for _ in 0..CONNECTIONS / AT_ONCE {
            let mut opening: Vec<_> = (0..AT_ONCE)
                .map(|_| sockets.begin_connect(server()).unwrap())
                .collect();
            while !opening.is_empty() {
                self.settle();
                opening.retain_mut(|one| match one.try_finish().unwrap() {
                    Some(stream) => {
                        self.held.push(stream);
                        false
                    }
                    None => true,
                });
            }
            while let Ok((stream, _)) = listener.try_accept() {
                self.held.push(stream);
            }
        }
        self.settle();
        assert_eq!(self.held.len(), 2 * CONNECTIONS);
    }

    fn hosts(&mut self) -> impl Iterator<Item = &mut ByHand> {
        self.wired.stacks.iter_mut().chain(&mut self.wired.hosts)
    }

    /// Turns both hosts until neither has work. Returns whether one had.
    fn settle(&mut self) -> bool {
        let mut any = false;
        loop {
            self.wired.now += Duration::from_micros(1);
            let now = self.wired.now;
            if self.hosts().map(|host| host.turn(now)).sum::<usize>() == 0 {
                return any;
            }
            any = true;
        }
    }

    /// Advances from deadline to deadline for this long. Returns how many there were, and how many
    /// led to work.
    fn idle(&mut self, for_so_long: Duration) -> (usize, usize) {
        let end = self.wired.now + for_so_long;
        let (mut woken, mut worked) = (0, 0);
        loop {
            let next = self.hosts().map(|host| host.next_deadline()).min();
            match next.filter(|next| *next <= end) {
                Some(next) => self.wired.now = self.wired.now.max(next),
                None => return (woken, worked),
            }
            woken += 1;
            worked += usize::from(self.settle());
        }
    }
}

#[test]
fn a_thousand_idle_connections_want_nothing_for_an_hour() {
    for variant in VARIANTS {
        let mut pair = Pair::new(variant);
        // The remains of opening: delayed acknowledgments, neighbour entries that expire.
        pair.idle(Duration::from_secs(300));
        let (woken, _) = pair.idle(Duration::from_secs(3600));
        println!("{variant}: {woken} deadlines in an hour");
        assert_eq!(woken, 0, "{variant}");
    }
}

#[test]
fn keepalive_asks_once_an_interval_and_finds_everybody_there() {
    for variant in VARIANTS {
        let mut pair = Pair::new(variant);
        pair.idle(Duration::from_secs(300));
        let keepalive = Keepalive::default().idle(Duration::from_secs(600));
        for stream in pair.held.iter().take(CONNECTIONS) {
            stream.set_keepalive(Some(keepalive)).unwrap();
        }
        pair.settle();
        let (woken, worked) = pair.idle(Duration::from_secs(3600));
        println!(
            "{variant}: {woken} deadlines in an hour with keepalive, {worked} led to something"
        );
        // At most one probe of each connection every ten minutes; a deadline may serve several
        // connections.
        assert!((1..=6 * CONNECTIONS).contains(&woken), "{variant}: {woken}");
        for stream in &mut pair.held {
            let read = stream.try_read(&mut [0]);
            assert_eq!(read, Err(SocketError::WouldBlock), "all are still there");
        }
    }
}

/// A thousand connections between two running stacks; opened in parts, so that no queue fills.
fn connect(near: &Stack, far: &Stack) -> Vec<TcpStream> {
    let listener = near.listen(PORT, 1000).unwrap();
    let mut held = Vec::new();
    for _ in 0..CONNECTIONS {
        held.push(far.connect(server()).unwrap());
        held.push(listener.accept().unwrap().0);
    }
    held
}

/// How often the threads of a stack went to sleep.
fn parks(stack: &Stack) -> u64 {
    let domains = stack.snapshot().domains;
    domains.iter().map(|domain| domain.parks).sum()
}

#[test]
fn threads_with_nothing_to_do_sleep_until_somebody_calls() {
    let groups_of_one = (2, Variant::Single);
    let all = VARIANTS.map(|variant| (1, variant));
    // Each stack sleeps most of the time, so all run at once.
    thread::scope(|scope| {
        for (groups, variant) in all.into_iter().chain([groups_of_one]) {
            scope.spawn(move || sleeps_until_called(groups, variant));
        }
    });
}

fn sleeps_until_called(groups: usize, variant: Variant) {
    let (here, there) = memory::pair(MemoryConfig::default());
    let near = Stack::builder("10.0.0.1/24").limits(limits());
    let near = near.variant(variant.kind()).replicas(variant.workers());
    let near = near.groups(groups).start(here).unwrap();
    let far = Stack::builder("10.0.0.2/24").limits(limits());
    let far = far.start(there).unwrap();
    let held = connect(&near, &far);

    // Sooner or later nothing wakes the stack for 300 ms; on a busy machine the remains of opening
    // take a while.
    let quiet = (0..200).any(|_| {
        let before = parks(&near);
        thread::sleep(time::Duration::from_millis(300));
        parks(&near) == before
    });
    assert!(
        quiet,
        "{groups} of {variant} never slept: {}",
        near.snapshot()
    );

    // A query is answered although all threads sleep.
    let listed = connections(&near, CONNECTIONS);
    assert_eq!(near.connections(3).len(), 3);
    let ours = held[1].local_addr().unwrap();
    assert!(listed.iter().all(|one| one.local == ours));
    // The handshake measures the round trip, unless a busy machine makes a timer send a SYN again.
    let slow = listed.iter().filter(|one| one.srtt.is_none()).count() as u64;
    let again = [near, far].map(|stack| stack.stats().state.timeouts);
    assert!(slow <= again.iter().sum(), "{slow}, {again:?}");
}
