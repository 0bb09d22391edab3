//! Real threads that fail, join and leave while bytes go both ways.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::stats::MembershipStats;
use dominoes_netstack::{Stack, StackError};
use dominoes_testkit::number;

/// Polls of a condition before the test fails: five minutes.
const LOOKS: u32 = 300_000;

fn pattern_byte(offset: u64) -> u8 {
    (offset % 251) as u8
}

/// Waits until the counters of `stack` fulfil `wanted`.
fn wait_for(stack: &Stack, wanted: impl Fn(&MembershipStats) -> bool) -> MembershipStats {
    for _ in 0..LOOKS {
        let members = stack.stats().membership;
        if wanted(&members) {
            return members;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("never came: {:?}", stack.stats().membership);
}

/// Sets the flag when it is dropped, even by a panic.
struct SetOnDrop(Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// `server` echoes a stream of `client` while `meanwhile` runs; after that the client ends its
/// stream. Returns the number of echoed bytes, all of which were checked.
fn echo(server: &Stack, client: &Stack, meanwhile: impl FnOnce(&Stack)) -> u64 {
    let listener = server.listen(7, 4).unwrap();
    let stream = client.connect("10.0.0.1:7").unwrap();
    let (mut back, _) = listener.accept().unwrap();
    let (mut reader, mut writer) = stream.split();
    let over = Arc::new(AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut bytes = vec![0; 1 << 16];
            loop {
                let len = back.read(&mut bytes).unwrap();
                if len == 0 {
                    return back.shutdown_write();
                }
                back.write_all(&bytes[..len]).unwrap();
            }
        });
        let end = Arc::clone(&over);
        let written = scope.spawn(move || {
            let mut written = 0;
            while !end.load(Ordering::Relaxed) {
                let bytes: Vec<u8> = (written..written + 10_000).map(pattern_byte).collect();
                writer.write_all(&bytes).unwrap();
                written += bytes.len() as u64;
            }
            writer.shutdown();
            written
        });
        let read = scope.spawn(move || {
            let (mut read, mut bytes) = (0, vec![0; 1 << 16]);
            loop {
                let len = reader.read(&mut bytes).unwrap();
                if len == 0 {
                    return read;
                }
                for (at, &found) in (read..).zip(&bytes[..len]) {
                    assert_eq!(found, pattern_byte(at), "byte {at}");
                }
                read += len as u64;
            }
        });
        let over = SetOnDrop(over);
        meanwhile(server);
        drop(over);
        let (written, read) = (written.join().unwrap(), read.join().unwrap());
        assert_eq!(read, written, "not all came back");
        read
    })
}

fn stacks(replicas: usize, slots: usize) -> (Stack, Stack) {
    let (left, right) = memory::pair(MemoryConfig::default());
    let server = Stack::builder("10.0.0.1/24").replicas(replicas);
    let server = server.replica_slots(slots).start(left).unwrap();
    let client = Stack::builder("10.0.0.2/24").start(right).unwrap();
    (server, client)
}

#[test]
#[should_panic = "planned"]
fn a_panic_meanwhile_ends_the_test() {
    let (server, client) = stacks(1, 1);
    echo(&server, &client, |_| panic!("planned"));
}

#[test]
fn a_replica_that_is_killed_repeatedly_under_load_is_replaced_and_no_byte_is_lost() {
    let kills = number("MEMBERSHIP_KILLS").unwrap_or(50);
    let (server, client) = stacks(2, 2);
    let bytes = echo(&server, &client, |server| {
        for kill in 1..=kills {
            server.kill_replica(kill as usize % 2);
            wait_for(server, |members| {
                members.failed == kill && members.joined == kill && members.active == 2
            });
        }
    });
    println!("{bytes} bytes came back, {:?}", server.stats().membership);
    server.compare().unwrap();
}

#[test]
fn replicas_join_and_leave_under_load_and_no_byte_is_lost() {
    let (server, client) = stacks(1, 3);
    let bytes = echo(&server, &client, |server| {
        for round in 1..=10 {
            assert_eq!(server.add_replica().unwrap(), 1);
            assert_eq!(server.add_replica().unwrap(), 2);
            wait_for(server, |members| members.joined == 2 * round);
            assert!(matches!(
                server.add_replica(),
                Err(StackError::Membership(_))
            ));
            assert_eq!(server.remove_replica().unwrap(), 2);
            assert_eq!(server.remove_replica().unwrap(), 1);
            assert!(matches!(
                server.remove_replica(),
                Err(StackError::Membership(_))
            ));
            wait_for(server, |members| members.left == 2 * round);
        }
    });
    let members = server.stats().membership;
    println!("{bytes} bytes came back, {members:?}");
    assert_eq!((members.active, members.failed), (1, 0));
    server.compare().unwrap();
}
