//! Real threads that die, join and leave while octets go both ways.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::stats::MemberStats;
use dominoes_netstack::{Stack, StackError};

use crate::support::number;

/// Looks at a condition before something is held to hang: a minute.
const LOOKS: u32 = 60_000;

fn octet(offset: u64) -> u8 {
    (offset % 251) as u8
}

/// Waits until the counters of `stack` are as `wanted` says.
fn wait_for(stack: &Stack, wanted: impl Fn(&MemberStats) -> bool) -> MemberStats {
    for _ in 0..LOOKS {
        let members = stack.stats().members;
        if wanted(&members) {
            return members;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("never came: {:?}", stack.stats().members);
}

/// A group that sends back what it is sent, and a peer that runs alone. `meanwhile` may do to the group what it likes;
/// when it returns, the peer ends its stream. Returns how many octets came back, all of them as they were sent.
fn echo(server: &Stack, client: &Stack, meanwhile: impl FnOnce(&Stack)) -> u64 {
    let listener = server.listen(7, 4).unwrap();
    let stream = client.connect("10.0.0.1:7".parse().unwrap()).unwrap();
    let (mut back, _) = listener.accept().unwrap();
    let (mut reader, mut writer) = stream.split();
    let over = Arc::new(AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut octets = vec![0; 1 << 16];
            loop {
                let len = back.read(&mut octets).unwrap();
                if len == 0 {
                    return back.shutdown_write();
                }
                back.write_all(&octets[..len]).unwrap();
            }
        });
        let end = Arc::clone(&over);
        let written = scope.spawn(move || {
            let mut written = 0;
            while !end.load(Ordering::Relaxed) {
                let octets: Vec<u8> = (written..written + 10_000).map(octet).collect();
                writer.write_all(&octets).unwrap();
                written += octets.len() as u64;
            }
            writer.shutdown();
            written
        });
        let read = scope.spawn(move || {
            let (mut read, mut octets) = (0, vec![0; 1 << 16]);
            loop {
                let len = reader.read(&mut octets).unwrap();
                if len == 0 {
                    return read;
                }
                for (at, &found) in (read..).zip(&octets[..len]) {
                    assert_eq!(found, octet(at), "octet {at}");
                }
                read += len as u64;
            }
        });
        meanwhile(server);
        over.store(true, Ordering::Relaxed);
        let (written, read) = (written.join().unwrap(), read.join().unwrap());
        assert_eq!(read, written, "not all came back");
        read
    })
}

fn stacks(replicas: usize, seats: usize) -> (Stack, Stack) {
    let (left, right) = memory::pair(MemoryConfig::default());
    let server = Stack::builder("10.0.0.1/24").replicas(replicas);
    let server = server.seats(seats).start(left).unwrap();
    let client = Stack::builder("10.0.0.2/24").start(right).unwrap();
    (server, client)
}

#[test]
fn a_replica_that_is_killed_again_and_again_under_load_is_replaced_and_no_octet_is_lost() {
    let kills = number("LIVING_KILLS").unwrap_or(50);
    let (server, client) = stacks(2, 2);
    let octets = echo(&server, &client, |server| {
        for kill in 1..=kills {
            server.kill_replica(kill as usize % 2);
            wait_for(server, |members| {
                members.died == kill && members.joined == kill && members.members == 2
            });
        }
    });
    println!("{octets} octets came back, {:?}", server.stats().members);
    server.compare().unwrap();
}

#[test]
fn replicas_come_and_go_under_load_and_no_octet_is_lost() {
    let (server, client) = stacks(1, 3);
    let octets = echo(&server, &client, |server| {
        for round in 1..=10 {
            assert_eq!(server.add_replica().unwrap(), 1);
            assert_eq!(server.add_replica().unwrap(), 2);
            wait_for(server, |members| members.joined == 2 * round);
            assert!(matches!(server.add_replica(), Err(StackError::Members(_))));
            assert_eq!(server.remove_replica().unwrap(), 2);
            assert_eq!(server.remove_replica().unwrap(), 1);
            assert!(matches!(
                server.remove_replica(),
                Err(StackError::Members(_))
            ));
            wait_for(server, |members| members.left == 2 * round);
        }
    });
    let members = server.stats().members;
    println!("{octets} octets came back, {members:?}");
    assert_eq!((members.members, members.died), (1, 0));
    server.compare().unwrap();
}
