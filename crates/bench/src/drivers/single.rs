//! One core, no log.

use dominoes_netstack::time::Instant;
use dominoes_netstack::variants::single::Single;

use crate::drivers::app::{self, App};
use crate::drivers::{Direction, Row, worker};
use crate::peer;
use crate::workload::Workload;

/// The variant on one core.
pub(crate) fn row(direction: Direction, workload: &Workload, _cores: usize) -> Result<Row, String> {
    let (device, peer) = peer::new(app::role(direction), workload)?;
    let setup = app::setup(direction, workload)?;
    let mut single = Single::new(setup, Box::new(device)).map_err(|e| e.to_string())?;
    let sockets = single.sockets();
    let app = App::accept(direction, workload, &sockets, peer.clone(), |now| {
        single.turn(Instant::from_nanos(now));
    })?;
    Ok(worker::row("single", [single], [app]))
}
