//! The replica that differed remains alone: the correct ones have gone, and the state is lost.

use std::net::{Ipv4Addr, SocketAddr};

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::group::{FaultHooks, Layout, ReplicatedGroup};
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::Setup;
use dominoes_netstack::variants::Worker as _;
use dominoes_netstack::variants::single::Single;
use dominoes_netstack::{SocketError, TcpStream};
use dominoes_proto::log::effect::Effect;

const GROUP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// Drops the effects of all requests from a position.
struct Forgetful {
    from: u64,
}

impl FaultHooks for Forgetful {
    const ACTIVE: bool = true;

    fn change_effects(&mut self, seq: u64, effects: &mut Vec<Effect>) {
        if seq >= self.from {
            effects.clear();
        }
    }
}

/// Returns a group in which two replicas agree and the third differs, with a connection that has
/// received bytes, as soon as all replicas have posted fingerprints.
fn outvoted() -> (ReplicatedGroup<Forgetful>, TcpStream, Instant) {
    let (ours, theirs) = memory::pair(MemoryConfig::default());
    let mut layout = Layout::default();
    (layout.replicas, layout.confirm) = (3, true);
    let forgetful = |id| Forgetful {
        from: if id == 2 { 20 } else { u64::MAX },
    };
    let setup = Setup::new(GROUP.into(), 24, [1, 2]);
    let mut group =
        ReplicatedGroup::with_fault_hooks(setup, layout, Box::new(ours), forgetful).unwrap();
    let mut peer = Single::new(Setup::new(PEER.into(), 24, [3, 4]), Box::new(theirs)).unwrap();
    let listener = group.sockets().listen(7, 1).unwrap();
    let to = SocketAddr::new(GROUP.into(), 7);
    let mut connecting = peer.sockets().begin_connect(to).unwrap();
    let (mut end, mut peer_end) = (None::<TcpStream>, None::<TcpStream>);
    let mut now = Instant::ZERO;
    for _ in 0..100_000 {
        now += Duration::from_micros(100);
        peer.turn(now);
        if peer_end.is_none() {
            peer_end = connecting.try_finish().unwrap();
        }
        if end.is_none() {
            end = listener.try_accept().ok().map(|(stream, _)| stream);
        }
        if let Some(peer_end) = &mut peer_end {
            let _ = peer_end.try_write(&[7; 100]);
        }
        // The third replica runs last, and only up to positions on which the others have agreed.
        for id in [0, 1] {
            group.workers()[id].turn(now);
        }
        let position = group.workers()[0].replica().position();
        let third = &mut group.workers()[2];
        while third.replica().position() < position.min(21) && third.turn(now) > 0 {}
        if position > 21 && third.replica().position() > 20 {
            return (group, end.expect("it was accepted"), now);
        }
    }
    panic!("nothing came of it: {:?}", group.workers());
}

#[test]
fn when_no_correct_replica_is_left_the_stack_goes_down() {
    let (mut group, mut end, now) = outvoted();
    drop(group.take(1));
    drop(group.take(0));
    let mut read = [0; 4096];
    while end.try_read(&mut read).is_ok_and(|len| len > 0) {}
    assert_eq!(end.try_read(&mut read), Err(SocketError::WouldBlock));
    for _ in 0..10 {
        group.turn(now);
    }
    assert!(!group.workers()[0].is_active(), "it kept a wrong state");
    assert_eq!(end.try_read(&mut read), Err(SocketError::Down));
}

#[test]
fn as_long_as_one_of_them_is_left_the_third_gets_its_state() {
    let (mut group, mut end, mut now) = outvoted();
    drop(group.take(1));
    for _ in 0..1_000 {
        now += Duration::from_micros(100);
        group.turn(now);
    }
    let mut read = [0; 4096];
    while end.try_read(&mut read).is_ok_and(|len| len > 0) {}
    assert_eq!(end.try_read(&mut read), Err(SocketError::WouldBlock));
    let stats = group.membership_stats();
    assert!(stats.repaired > 0, "{stats:?}");
}
