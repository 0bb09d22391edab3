//! One state behind a lock: whole transfers over a bad wire, by hand and by threads, and agreement
//! with `single`.

use std::io::Write;
use std::net::SocketAddrV4;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use dominoes_drivers::memory::{self, Faults, MemoryConfig};
use dominoes_netstack::time::Instant;
use dominoes_netstack::variants::locked::{self, Group, Hold, Layout, LockKind, Mcs, Worker};
use dominoes_netstack::variants::single::Single;
use dominoes_netstack::{Entry, Recorder, Recording};
use dominoes_testkit::{Rng, Traffic};

use crate::support::{pattern_byte, setup};

/// Writes and reads what it can. Whether both directions are complete.
fn is_over(traffic: &mut Traffic) -> bool {
    traffic.step().expect("every byte is right");
    traffic.is_over()
}

/// One step of one worker.
fn step<K: LockKind>(worker: &mut Worker<K>, now: Instant, rng: &mut Rng) {
    match rng.below(7) {
        0 => _ = worker.pump(now),
        1 => _ = worker.prepare(),
        2 | 3 => _ = worker.apply(),
        4 | 5 => _ = worker.perform(),
        _ => _ = worker.send(),
    }
}

/// A wire that loses, repeats, reorders and damages frames, both ways.
fn bad_wire(seed: u64) -> MemoryConfig {
    let faults = Faults::new(seed)
        .loss(10_000)
        .duplicate(10_000)
        .reorder(20_000, 4)
        .corrupt(10_000);
    MemoryConfig::default()
        .rx_checksum_valid(false)
        .faults(faults)
}

/// A log in memory.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A transfer both ways between a group whose workers take random steps, and `single`; afterwards
/// `single` replays the requests in the order in which they went through the lock, and has to end
/// in the same state. Returns how many segments were misordered at the lock.
fn by_hand<K: LockKind>(workers: usize, seed: u64, total: u64) -> u64 {
    println!("{} with {workers} workers, seed {seed:#x}", K::NAME);
    let mut rng = Rng::new(seed);
    let (near, far) = memory::pair(bad_wire(seed));
    let mut layout = Layout::default();
    layout.workers = workers;
    layout.window = 64;
    layout.keep_order = true;
    let log = Memory::default();
    let mut ours = setup(1);
    ours.recorder = Some(Recorder::new(Box::new(log.clone()), &ours.limits).unwrap());
    let mut group = Group::<K>::new(ours, layout, Box::new(near)).unwrap();
    let mut peer = Single::new(setup(2), Box::new(far)).unwrap();
    let listener = group.sockets().listen(7, 4).unwrap();
    let at = SocketAddrV4::new([10, 0, 0, 1].into(), 7);
    let mut opening = Some(peer.sockets().begin_connect(at).unwrap());
    let mut ends: Vec<Traffic> = Vec::new();
    for round in 1..2_000_000u64 {
        let now = Instant::from_nanos(round * 20_000);
        for _ in 0..8 {
            let which = rng.below(workers as u64) as usize;
            step(&mut group.workers()[which], now, &mut rng);
        }
        peer.turn(now);
        if let Some(open) = &mut opening
            && let Some(stream) = open.try_finish().unwrap()
        {
            ends.push(Traffic::new(stream, 1, 2, total, total));
            opening = None;
        }
        if let Ok((stream, _)) = listener.try_accept() {
            ends.push(Traffic::new(stream, 2, 1, total, total));
        }
        let over = ends.iter_mut().map(is_over).filter(|over| *over).count();
        if over == 2 {
            for worker in group.workers() {
                while worker.prepare() || worker.apply() || worker.perform() {}
                assert_eq!(worker.stats().diverged, 0);
            }
            replayed(&mut group, &log);
            let stats = group.workers().iter().map(|w| w.lock_stats());
            return stats.map(|s| s.misordered).sum();
        }
    }
    panic!("the transfer stands still: seed {seed:#x}");
}

/// `single` applies the recorded requests in the order of the lock.
fn replayed<K: LockKind>(group: &mut Group<K>, log: &Memory) {
    drop(group.take_recorder());
    let bytes = log.0.lock().unwrap();
    let recording = Recording::open(&bytes[..]).unwrap();
    let mut entries: Vec<Entry> = recording.map(Result::unwrap).collect();
    let order = group.order();
    assert_eq!(order.len(), entries.len());
    // What the application wrote is in the ring when the pump says so, and so before any later
    // request.
    let mut written: Vec<_> = entries.iter_mut().map(|e| e.written.take()).collect();
    let (device, far) = memory::pair(MemoryConfig::default());
    drop(far);
    let mut single = Single::new(setup(1), Box::new(device)).unwrap();
    let mut in_ring = 0;
    for position in order {
        let mut entry = entries[position as usize].clone();
        for some in &mut written[in_ring.min(position as usize + 1)..=position as usize] {
            if let Some(some) = some.take() {
                match &mut entry.written {
                    Some(first) => first.bytes.extend(some.bytes),
                    none => *none = Some(some),
                }
            }
        }
        in_ring = in_ring.max(position as usize + 1);
        single.replay(&entry);
    }
    let difference = group.inspect(|state| state.first_difference(single.replica()));
    assert_eq!(difference, None);
    let fingerprint =
        group.inspect(|state| (state.fingerprint(), state.post(0), state.frames().next));
    let replica = single.replica();
    assert_eq!(
        fingerprint,
        (
            replica.fingerprint(),
            replica.post(0),
            replica.frames().next
        )
    );
}

#[test]
fn every_byte_arrives_whatever_steps_the_workers_take_and_single_replays_them_to_the_same_state() {
    let mut misordered = 0;
    for workers in 1..=4 {
        for seed in 1..=4 {
            let seed = seed * 0x9e37_79b9 + workers as u64;
            let at_mutex = by_hand::<locked::Mutex>(workers, seed, 100_000);
            let at_mcs = by_hand::<Mcs>(workers, seed, 100_000);
            // One thread drives all, so the kind of lock decides nothing.
            assert_eq!(at_mutex, at_mcs);
            if workers == 1 {
                assert_eq!(at_mutex, 0, "one worker keeps the order");
            }
            misordered += at_mutex;
        }
    }
    assert!(
        misordered > 100,
        "batches hardly overtook each other: {misordered}"
    );
}

/// A transfer both ways between a group on as many threads as workers, and `single` on this one.
fn by_threads<K: LockKind>(workers: usize, hold: Hold, seed: u64, total: u64) {
    println!("{} on {workers} threads, {hold:?}, seed {seed:#x}", K::NAME);
    let (near, far) = memory::pair(bad_wire(seed));
    let mut layout = Layout::default();
    layout.workers = workers;
    layout.window = 64;
    layout.hold = hold;
    let group = Group::<K>::new(setup(1), layout, Box::new(near)).unwrap();
    let mut peer = Single::new(setup(2), Box::new(far)).unwrap();
    let listener = group.sockets().listen(7, 4).unwrap();
    let at = SocketAddrV4::new([10, 0, 0, 1].into(), 7);
    let mut opening = Some(peer.sockets().begin_connect(at).unwrap());
    #[expect(
        clippy::disallowed_methods,
        reason = "threads run against the clock, to which the bad wire's timeouts belong"
    )]
    let start = std::time::Instant::now();
    let now = || Instant::from_nanos(start.elapsed().as_nanos() as u64);
    let stop = AtomicBool::new(false);
    let (mut ours, mut theirs): (Option<Traffic>, Option<Traffic>) = (None, None);
    thread::scope(|scope| {
        let run = |mut worker: Worker<K>| {
            let (stop, now) = (&stop, &now);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    if worker.turn(now()) == 0 {
                        thread::yield_now();
                    }
                }
                (worker.stats(), worker.lock_stats())
            })
        };
        let threads: Vec<_> = group.into_workers().into_iter().map(run).collect();
        let stands_still = || start.elapsed() > std::time::Duration::from_secs(60);
        let (mut heard, mut told) = (false, false);
        while !(stands_still() || heard && told) {
            if peer.turn(now()) == 0 {
                thread::yield_now();
            }
            if let Some(open) = &mut opening
                && let Some(stream) = open.try_finish().unwrap()
            {
                theirs = Some(Traffic::new(stream, 1, 2, total, total));
                opening = None;
            }
            if let Ok((stream, _)) = listener.try_accept() {
                ours = Some(Traffic::new(stream, 2, 1, total, total));
            }
            heard = ours.as_mut().is_some_and(is_over);
            told = theirs.as_mut().is_some_and(is_over);
        }
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            let (effects, lock) = thread.join().unwrap();
            assert_eq!(effects.diverged, 0);
            assert!(lock.contended <= lock.acquisitions && lock.misordered <= lock.segments);
        }
        assert!(heard && told, "the transfer stands still");
    });
}

#[test]
fn every_byte_arrives_with_one_to_four_threads_at_either_lock() {
    for workers in 1..=4 {
        for hold in [Hold::Batch, Hold::Run] {
            by_threads::<locked::Mutex>(workers, hold, 11 + workers as u64, 300_000);
            by_threads::<Mcs>(workers, hold, 23 + workers as u64, 300_000);
        }
    }
}

#[test]
fn a_layout_out_of_range_is_refused() {
    for (workers, window) in [(0, 512), (57, 512), (2, 32), (2, 100)] {
        let (near, _) = memory::pair(MemoryConfig::default());
        let mut layout = Layout::default();
        layout.workers = workers;
        layout.window = window;
        assert!(Group::<Mcs>::new(setup(1), layout, Box::new(near)).is_err());
    }
}

/// Whatever passes whom on the way to the lock, no datagram changes, and none is lost where the
/// wire loses none.
#[test]
fn datagrams_pass_the_lock_whole_whichever_worker_carries_them() {
    for seed in 1..20 {
        let mut rng = Rng::new(seed);
        let (near, far) = memory::pair(MemoryConfig::default().rx_checksum_valid(false));
        let mut layout = Layout::default();
        layout.workers = 3;
        let mut server = Group::<Mcs>::new(setup(1), layout, Box::new(near)).unwrap();
        let mut client = Single::new(setup(2), Box::new(far)).unwrap();
        let mut theirs = server.sockets().bind_udp(7).unwrap();
        let mut ours = client.sockets().bind_udp(0).unwrap();
        let to = SocketAddrV4::new([10, 0, 0, 1].into(), 7);
        let datagram = |number: u64| -> Vec<u8> {
            let len = 8 + (pattern_byte(number) as usize) * 11;
            let rest = (number..).map(pattern_byte).take(len - 8);
            number.to_be_bytes().into_iter().chain(rest).collect()
        };
        let mut buffer = [0; 4_096];
        let mut back = vec![0; 200];
        let mut sent = 0;
        for round in 0..20_000_u64 {
            let now = Instant::from_nanos(round * 1_000);
            if sent < back.len() as u64 && rng.below(4) == 0 {
                ours.try_send_to(&datagram(sent), to).unwrap();
                sent += 1;
            }
            client.turn(now);
            let worker = rng.below(3) as usize;
            step(&mut server.workers()[worker], now, &mut rng);
            while let Ok((len, from)) = theirs.try_recv_from(&mut buffer) {
                theirs.try_send_to(&buffer[..len], from).unwrap();
            }
            while let Ok((len, _)) = ours.try_recv_from(&mut buffer) {
                let number = u64::from_be_bytes(buffer[..8].try_into().unwrap());
                assert_eq!(buffer[..len], datagram(number), "seed {seed}");
                back[number as usize] += 1;
            }
        }
        assert!(
            back.iter().all(|count| *count == 1),
            "seed {seed}: {back:?}"
        );
        let diverged: u64 = server
            .workers()
            .iter()
            .map(|worker| worker.stats().diverged)
            .sum();
        assert_eq!(diverged, 0, "seed {seed}");
    }
}
