//! One state with one lock; any core takes any packet.
//!
//! Under contention batches overtake each other on the way to the lock, so the receiving stack
//! sends duplicate acknowledgments. The peer of these rows ignores them and never retransmits: the
//! rows do better than they would with a real peer.

use dominoes_netstack::variants::locked::{LockKind, LockedGroup, LockedLayout, Mcs, Mutex};

use crate::drivers::app::App;
use crate::drivers::{Direction, Row, worker};
use crate::workload::Workload;

/// With a [`std::sync::Mutex`].
pub(crate) fn mutex(
    direction: Direction,
    workload: &Workload,
    cores: usize,
) -> Result<Row, String> {
    row::<Mutex>("locked-mutex", direction, workload, cores)
}

/// With a queue lock.
pub(crate) fn mcs(direction: Direction, workload: &Workload, cores: usize) -> Result<Row, String> {
    row::<Mcs>("locked-mcs", direction, workload, cores)
}

fn row<K: LockKind>(
    name: &'static str,
    direction: Direction,
    workload: &Workload,
    cores: usize,
) -> Result<Row, String> {
    let layout = LockedLayout::default()
        .workers(cores)
        .window(workload.log_requests);
    let make = |setup, device| LockedGroup::<K>::new(setup, layout, device);
    let (group, app) = App::on(direction, workload, make)?;
    Ok(worker::row(name, group.into_workers(), [app.reordering()]))
}
