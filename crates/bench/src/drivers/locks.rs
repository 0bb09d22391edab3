//! `locked` with every division of its state, and with other parts of the baseline: the rows of the
//! experiment `locks`, which take the locks for each packet.

use dominoes_netstack::variants::Worker as _;
use dominoes_netstack::variants::locked::{
    Counting, Granularity, LockKind, LockName, LockedGroup, LockedLayout, LockedWorker, Mcs,
    Messages, Mutex, References,
};

use crate::drivers::app::App;
use crate::drivers::{Account, Direction, Row, Variant, worker};
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
