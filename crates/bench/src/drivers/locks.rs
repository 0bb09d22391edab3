//! `locked` with every division of its state, and with other parts of the baseline: the rows of the
//! experiment `locks`, which take the locks for each packet.

use dominoes_drivers::memory::peer::headers::Ends;
use dominoes_netstack::variants::locked::{
    Counting, Granularity, LockKind, LockName, LockedGroup, LockedLayout, LockedWorker, Mcs,
    Messages, Mutex, References,
};
use dominoes_netstack::variants::{ByHand, Worker as _};

use dominoes_proto::keys::Grouping;
use dominoes_proto::keys::Keys;
use dominoes_proto::packet::flow::{Endpoint, Flow};

use crate::drivers::app::{self, App};
use crate::drivers::{Account, Direction, Row, Several, Variant, partitioned, worker};
use crate::workload::Workload;

/// As in the paper.
const SIX: Granularity = Granularity::Six {
    checksums_inside: true,
};
const SIX_OUTSIDE: Granularity = Granularity::Six {
    checksums_inside: false,
};

/// The paper's baseline: one lock, a packet at a time, atomic counts and pools.
fn baseline(layout: LockedLayout) -> LockedLayout {
    layout
        .claim(1)
        .references(References::Atomic)
        .messages(Messages::Pool)
}

fn row<K: LockKind>(
    name: &'static str,
    (direction, workload, cores): (Direction, &Workload, usize),
    change: impl FnOnce(LockedLayout) -> LockedLayout,
) -> Result<Row, String> {
    let layout = LockedLayout::default()
        .workers(cores)
        .window(workload.log_requests);
    let layout = change(baseline(layout));
    let make = |setup, device| LockedGroup::<K>::new(setup, layout, device);
    let (group, app) = App::on(direction, workload, make)?;
    let apps = [app.reordering()];
    Ok(worker::row_with(name, group.into_workers(), apps, account))
}

/// Whether [`each`] finds a group for each connection: of more than eight, hashes hardly ever do.
pub(crate) fn can_each(_: Direction, workload: &Workload) -> bool {
    super::moves_only(workload) && (2..=8).contains(&workload.connections)
}

/// The arrangement of the paper's figure 12: a state and a lock for each connection, and a core
/// takes the packets of some connections alone.
pub(crate) fn each(direction: Direction, workload: &Workload, cores: usize) -> Result<Row, String> {
    const NAME: &str = "lock-each-mcs";
    let count = workload.connections;
    let seed = (workload.seed..).find(|seed| are_apart(*seed, count));
    // All groups together have the transmit slots of one state.
    let part = Workload {
        seed: seed.unwrap_or(workload.seed),
        pool_bytes: workload.pool_bytes / count,
        ..*workload
    };
    let layout = LockedLayout::default().workers(1);
    let layout = baseline(layout.window(workload.log_requests));
    let (groups, app) = partitioned::groups(
        (direction, workload),
        count,
        app::setup(direction, &part)?,
        |setup, device| LockedGroup::<Mcs>::new(setup, layout, device),
    )?;
    let workers = groups.into_iter().flat_map(ByHand::into_workers);
    let row = worker::row_with(NAME, workers, app.divide(count), account);
    Ok(Row::new(NAME, Several::dealt(row.drivers, cores)))
}

/// Whether the connections of the peer are in different groups with the keys of this seed.
fn are_apart(seed: u64, connections: usize) -> bool {
    let Ends { from, to, .. } = Ends::default();
    let keys = Keys::new(app::secret(seed));
    let grouping = Grouping::new(&keys, connections as u16);
    let group = |index: usize| {
        let port = from.port() + index as u16;
        grouping.group(&Flow {
            local: Endpoint::from(to),
            remote: Endpoint::new(Endpoint::from(from).address, port),
        })
    };
    let groups = (0..connections).fold(0_u64, |found, index| found | 1 << group(index));
    groups.count_ones() as usize == connections
}

/// Waits for each lock, and what the application counted.
fn account<K: LockKind>(worker: &LockedWorker<K>, account: &mut Account) {
    let times = worker.lock_times();
    // The counters of the pump are not available while another worker has it.
    account.segments = worker.lock_stats().segments;
    account.waits_ns = LockName::ALL.map(|name| times.of(name).waited_ns);
    if worker.id() == 0 {
        let counted = worker.counted();
        (account.counted, account.counted_misordered) = (counted.requests, counted.misordered);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::LOCKS;

    #[test]
    fn the_names_of_the_locks_are_those_of_the_stack() {
        assert_eq!(LockName::ALL.map(LockName::name), LOCKS);
    }

    #[test]
    fn every_connection_has_a_lock_of_its_own() {
        let apart = (0..1000).filter(|seed| are_apart(*seed, 8)).count();
        assert!((1..20).contains(&apart), "{apart}");
        let workload = Workload {
            pool_bytes: 8 << 20,
            connections: 8,
            ring_bytes: 1 << 16,
            ..Workload::default()
        };
        for direction in [Direction::Receive, Direction::Send] {
            assert!(can_each(direction, &workload));
            for cores in 1..=3 {
                let mut row = each(direction, &workload, cores).unwrap();
                row.drive_until(1 << 20).unwrap();
                let accounts = row.drivers.iter().map(|driver| driver.account());
                assert!(
                    accounts
                        .min_by_key(|a| a.lock_acquired)
                        .unwrap()
                        .lock_acquired
                        > 0
                );
            }
        }
    }

    #[test]
    fn every_row_moves_verified_bytes() {
        let workload = Workload {
            pool_bytes: 1 << 20,
            ..Workload::default()
        };
        for variant in VARIANTS {
            for direction in [Direction::Receive, Direction::Send] {
                let mut row = (variant.make)(direction, &workload, 2).unwrap();
                let driven = row.drive_until(1 << 20);
                driven.unwrap_or_else(|e| panic!("{} {direction:?}: {e}", variant.name));
            }
        }
    }
}

/// A variant of `locked`, with either kind of lock.
macro_rules! variants {
    ($($name:literal $mcs:literal $about:literal $change:expr;)*) => {
        /// The rows.
        pub const VARIANTS: &[Variant] = &[$(
            Variant::new($name, $about, |direction, workload, cores| {
                row::<Mutex>($name, (direction, workload, cores), $change)
            })
            .scales()
            .can(|_, workload| super::moves_only(workload)),
            Variant::new($mcs, $about, |direction, workload, cores| {
                row::<Mcs>($mcs, (direction, workload, cores), $change)
            })
            .scales()
            .can(|_, workload| super::moves_only(workload)),
        )*];
    };
}

variants! {
    "tcp-1" "tcp-1-mcs" "one lock" |layout| layout;
    "tcp-2" "tcp-2-mcs" "two locks" |layout| layout.granularity(Granularity::Two);
    "tcp-6" "tcp-6-mcs" "six locks, checksums inside" |layout| layout.granularity(SIX);
    "tcp-6-outside" "tcp-6-outside-mcs" "six locks, checksums outside"
        |layout| layout.granularity(SIX_OUTSIDE);
    "in-order" "in-order-mcs" "each segment is taken for the one expected"
        |layout| layout.assume_in_order(true);
    "counted" "counted-mcs" "the application counts in any order"
        |layout| layout.counting(Counting::Unordered);
    "tickets" "tickets-mcs" "the application counts in order"
        |layout| layout.counting(Counting::Ticketed);
    "locked-references" "locked-references-mcs" "reference counts behind locks"
        |layout| layout.references(References::Locked);
    "malloc" "malloc-mcs" "messages by malloc" |layout| layout.messages(Messages::Malloc);
    "shared-messages" "shared-messages-mcs" "messages of one list behind a lock"
        |layout| layout.messages(Messages::Shared);
}
