//! One core, no log.

use dominoes_netstack::variants::single::Single;

use crate::drivers::app::App;
use crate::drivers::{Direction, Row, worker};
use crate::workload::Workload;

/// The variant on one core.
pub(crate) fn row(direction: Direction, workload: &Workload, _cores: usize) -> Result<Row, String> {
    let (single, app) = App::on(direction, workload, Single::new)?;
    Ok(worker::row("single", single.into_workers(), [app]))
}
