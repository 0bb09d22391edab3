//! One state guarded by one, two or six locks: whole transfers over a bad wire, by hand and by
//! threads, and agreement with `single`.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use dominoes_drivers::memory::{self, Faults, MemoryConfig};
use dominoes_netstack::time::Instant;
use dominoes_netstack::variants::locked::{
    self, Counted, Counting, Granularity, Hold, LockKind, LockName, LockTimes, LockedGroup,
    LockedLayout, LockedWorker, Mcs, Messages, References,
};
use dominoes_netstack::variants::{Worker as _, single::Single};
use dominoes_netstack::{Entry, Recorder, Recording};
use dominoes_testkit::{Rng, Traffic};

use crate::support::{Memory, pattern_byte, setup};

/// Writes and reads as much as possible. Returns whether both directions are complete.
fn is_over(traffic: &mut Traffic) -> bool {
    traffic.step().expect("every byte is right");
    traffic.is_over()
}

/// One step of one worker.
fn step<K: LockKind>(worker: &mut LockedWorker<K>, now: Instant, rng: &mut Rng) {
    match rng.below(7) {
        0 => _ = worker.pump(now),
        1 => _ = worker.prepare(),
        2 | 3 => _ = worker.apply(),
        4 | 5 => _ = worker.perform(),
        _ => _ = worker.send(),
    }
}

/// A wire that loses, repeats, reorders and corrupts frames, both ways.
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

/// Transfers bytes both ways between a group whose workers take random steps, and `single`.
/// Afterwards `single` replays the requests in the order in which they passed the lock, and must
/// end in the same state. Returns how many segments were misordered at the lock, and the
/// application's counts.
fn by_hand<K: LockKind>(layout: LockedLayout, seed: u64, total: u64) -> (u64, Counted) {
    println!("{} with {layout:?}, seed {seed:#x}", K::NAME);
    let workers = layout.workers;
    let mut rng = Rng::new(seed);
    let (near, far) = memory::pair(bad_wire(seed));
    let layout = layout.window(64).keep_order(true);
    let log = Memory::default();
    let mut ours = setup(1);
    ours.recorder = Some(Recorder::new(Box::new(log.clone()), &ours.limits).unwrap());
    let mut group = LockedGroup::<K>::new(ours, layout, Box::new(near)).unwrap();
    let mut peer = Single::new(setup(2), Box::new(far)).unwrap();
    let listener = group.sockets().listen(7, 4).unwrap();
    let at = SocketAddr::new([10, 0, 0, 1].into(), 7);
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
            let finish = |worker: &mut LockedWorker<K>| {
                worker.prepare() || worker.apply() || worker.perform()
            };
            // Some workers wait for the tickets of others.
            while group
                .workers()
                .iter_mut()
                .map(|worker| finish(worker))
                .filter(|did| *did)
                .count()
                > 0
            {}
            for worker in group.workers() {
                assert_eq!(worker.stats().effects.diverged, 0);
            }
            replayed(&mut group, &log);
            let stats = group.workers().iter().map(|w| w.lock_stats());
            return (stats.map(|s| s.misordered).sum(), group.counted());
        }
    }
    panic!("the transfer stands still: seed {seed:#x}");
}

/// `single` applies the recorded requests in the order of the lock.
fn replayed<K: LockKind>(group: &mut LockedGroup<K>, log: &Memory) {
    drop(group.take_recorder());
    let bytes = log.0.lock().unwrap();
    let recording = Recording::open(&bytes[..]).unwrap();
    let mut entries: Vec<Entry> = recording.entries().map(Result::unwrap).collect();
    let order = group.order();
    assert_eq!(order.len(), entries.len());
    // Written bytes are in the ring when the pump reports them, and so before any later request.
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
        single.replay_entry(&entry);
    }
    let difference = group.inspect(|state| state.first_difference(single.replica()));
    assert_eq!(difference, [None]);
    let fingerprint =
        group.inspect(|state| (state.fingerprint(), state.post(0), state.frames().next));
    let replica = single.replica();
    assert_eq!(
        fingerprint,
        [(
            replica.fingerprint(),
            replica.post(0),
            replica.frames().next
        )]
    );
}

#[test]
fn every_byte_arrives_whatever_steps_the_workers_take_and_single_replays_them_to_the_same_state() {
    let mut misordered = 0;
    for workers in 1..=4 {
        for seed in 1..=4 {
            let seed = seed * 0x9e37_79b9 + workers as u64;
            let layout = LockedLayout::default().workers(workers);
            let (at_mutex, _) = by_hand::<locked::Mutex>(layout, seed, 100_000);
            let (at_mcs, _) = by_hand::<Mcs>(layout, seed, 100_000);
            // One thread drives all workers, so the kind of lock makes no difference.
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

/// All divisions of the state, and each way to do the work outside the protocol.
fn layouts() -> Vec<LockedLayout> {
    let six = |checksums_inside| Granularity::Six { checksums_inside };
    let layout = LockedLayout::default()
        .workers(3)
        .counting(Counting::Ticketed);
    let locked = layout.references(References::Locked);
    let atomic = layout.references(References::Atomic);
    vec![
        layout.claim(1),
        locked
            .granularity(Granularity::Two)
            .messages(Messages::Malloc),
        atomic.granularity(six(true)).messages(Messages::Pool),
        atomic
            .granularity(six(false))
            .messages(Messages::Shared)
            .claim(4),
    ]
}

#[test]
fn every_division_of_the_state_is_single_in_another_order_and_tickets_restore_it() {
    let (mut misordered, mut unordered) = (0, 0);
    for (seed, layout) in (71..).zip(layouts()) {
        let (at_lock, counted) = by_hand::<locked::Mutex>(layout, seed, 100_000);
        assert!(counted.requests > 5, "{counted:?}");
        assert_eq!(counted.misordered, 0, "{layout:?}");
        let layout = layout.counting(Counting::Unordered);
        let (again, counted) = by_hand::<Mcs>(layout, seed, 100_000);
        assert!(counted.requests > 5, "{counted:?}");
        unordered += counted.misordered;
        misordered += at_lock + again;
    }
    assert!(misordered > 100, "{misordered}");
    assert!(
        unordered > 20,
        "without tickets nothing was reordered: {unordered}"
    );
}

#[test]
fn every_division_of_the_state_moves_every_byte_by_threads_and_says_which_locks_it_took() {
    use LockName::{HeaderPrepend, HeaderRemove, Receive, ReceiveWindow, Send, State};
    for (seed, layout) in (5..).zip(layouts()) {
        for times in [
            by_threads::<locked::Mutex>(layout, seed, 200_000),
            by_threads::<Mcs>(layout, seed, 200_000),
        ] {
            let taken = |name| times.iter().map(|t| t.of(name).acquisitions).sum::<u64>() > 0;
            let names = [
                State,
                Send,
                Receive,
                ReceiveWindow,
                HeaderPrepend,
                HeaderRemove,
            ];
            let expected = match layout.granularity {
                Granularity::One => [true, false, false, false, false, false],
                Granularity::Two => [false, true, true, false, false, false],
                Granularity::Six { .. } => [false, false, false, true, true, true],
            };
            assert_eq!(names.map(taken), expected, "{layout:?}");
            assert_eq!(
                taken(LockName::References),
                layout.references == References::Locked
            );
            assert_eq!(
                taken(LockName::Messages),
                layout.messages == Messages::Shared
            );
            assert!(taken(LockName::Application));
        }
    }
}

/// The paper's upper bound: if segments are assumed to be in order at the lock, overtaking segments
/// cause no duplicate acknowledgments.
#[test]
fn segments_that_are_taken_for_those_expected_cause_no_duplicate_acknowledgments() {
    let mut sent = [0, 0];
    for (sent, assumed) in sent.iter_mut().zip([false, true]) {
        let mut rng = Rng::new(3);
        let (near, far) = memory::pair(MemoryConfig::default().rx_checksum_valid(false));
        let layout = LockedLayout::default()
            .workers(3)
            .claim(1)
            .assume_in_order(assumed);
        let mut group = LockedGroup::<Mcs>::new(setup(1), layout, Box::new(near)).unwrap();
        let mut peer = Single::new(setup(2), Box::new(far)).unwrap();
        let listener = group.sockets().listen(7, 4).unwrap();
        let at = std::net::SocketAddr::new([10, 0, 0, 1].into(), 7);
        let mut opening = peer.sockets().begin_connect(at).unwrap();
        let (mut sender, mut receiver) = (None, None);
        let (mut written, mut read) = (0, 0);
        for round in 1..400_000_u64 {
            let now = Instant::from_nanos(round * 2_000);
            for _ in 0..8 {
                let which = rng.below(3) as usize;
                step(&mut group.workers()[which], now, &mut rng);
            }
            peer.turn(now);
            if sender.is_none() {
                sender = opening.try_finish().unwrap();
            }
            if let Ok((stream, _)) = listener.try_accept() {
                receiver = Some(stream);
            }
            if let Some(stream) = &mut sender
                && written < 300_000
            {
                written += stream.try_write(&[7; 10_000]).unwrap_or(0);
            }
            if let Some(stream) = &mut receiver {
                read += stream.try_read(&mut [0; 20_000]).unwrap_or(0);
            }
            if read >= 300_000 {
                break;
            }
        }
        assert!(read >= 300_000, "{assumed}: {read} bytes");
        let misordered: u64 = group
            .workers()
            .iter()
            .map(|worker| worker.lock_stats().misordered)
            .sum();
        assert!(misordered > 10, "{misordered}");
        let stats = group.workers().iter().map(|worker| worker.stats().effects);
        *sent = stats.map(|stats| stats.frames).sum::<u64>();
    }
    assert!(sent[1] + 10 < sent[0], "{sent:?}");
}

/// Transfers bytes both ways between a group with a thread for each worker, and `single` on this
/// thread.
fn by_threads<K: LockKind>(layout: LockedLayout, seed: u64, total: u64) -> Vec<LockTimes> {
    println!("{} with {layout:?}, seed {seed:#x}", K::NAME);
    let (near, far) = memory::pair(bad_wire(seed));
    let layout = layout.window(64);
    let group = LockedGroup::<K>::new(setup(1), layout, Box::new(near)).unwrap();
    let mut peer = Single::new(setup(2), Box::new(far)).unwrap();
    let listener = group.sockets().listen(7, 4).unwrap();
    let at = SocketAddr::new([10, 0, 0, 1].into(), 7);
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
        let run = |mut worker: LockedWorker<K>| {
            let (stop, now) = (&stop, &now);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    if worker.turn(now()) == 0 {
                        thread::yield_now();
                    }
                }
                (
                    worker.stats().effects,
                    worker.lock_stats(),
                    worker.lock_times(),
                )
            })
        };
        let threads: Vec<_> = group.into_workers().into_iter().map(run).collect();
        let stands_still = || start.elapsed() > std::time::Duration::from_secs(600);
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
        let mut all = Vec::new();
        for thread in threads {
            let (effects, lock, times) = thread.join().unwrap();
            assert_eq!(effects.diverged, 0);
            assert!(lock.contended <= lock.acquisitions && lock.misordered <= lock.segments);
            all.push(times);
        }
        assert!(heard && told, "the transfer stands still");
        all
    })
}

#[test]
fn every_byte_arrives_with_one_to_four_threads_at_either_lock() {
    for workers in 1..=4 {
        for hold in [Hold::Batch, Hold::Run] {
            let layout = LockedLayout::default().workers(workers).hold(hold);
            by_threads::<locked::Mutex>(layout, 11 + workers as u64, 300_000);
            by_threads::<Mcs>(layout, 23 + workers as u64, 300_000);
        }
    }
}

#[test]
fn a_layout_out_of_range_is_refused() {
    for (workers, window) in [(0, 512), (57, 512), (2, 32), (2, 100)] {
        let (near, _) = memory::pair(MemoryConfig::default());
        let mut layout = LockedLayout::default();
        layout.workers = workers;
        layout.window = window;
        assert!(LockedGroup::<Mcs>::new(setup(1), layout, Box::new(near)).is_err());
    }
}

/// However workers overtake each other on the way to the lock, no datagram changes, and none is
/// lost if the wire loses none.
#[test]
fn datagrams_pass_the_lock_whole_whichever_worker_carries_them() {
    for seed in 1..20 {
        let mut rng = Rng::new(seed);
        let (near, far) = memory::pair(MemoryConfig::default().rx_checksum_valid(false));
        let mut layout = LockedLayout::default();
        layout.workers = 3;
        let mut server = LockedGroup::<Mcs>::new(setup(1), layout, Box::new(near)).unwrap();
        let mut client = Single::new(setup(2), Box::new(far)).unwrap();
        let mut theirs = server.sockets().bind_udp(7).unwrap();
        let mut ours = client.sockets().bind_udp(0).unwrap();
        let to = SocketAddr::new([10, 0, 0, 1].into(), 7);
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
            .map(|worker| worker.stats().effects.diverged)
            .sum();
        assert_eq!(diverged, 0, "seed {seed}");
    }
}
