//! One core, no log.

use dominoes_netstack::time::Instant;
use dominoes_netstack::variants::single::Single;

use crate::drivers::app::{self, App};
use crate::drivers::{Account, Direction, Driver, Row};
use crate::peer;
use crate::workload::Workload;

struct SingleDriver {
    single: Single,
    app: App,
}

/// The variant on one core.
pub(crate) fn row(direction: Direction, workload: &Workload, _cores: usize) -> Result<Row, String> {
    let (device, peer) = peer::new(app::role(direction), workload)?;
    let setup = app::setup(direction, workload)?;
    let mut single = Single::new(setup, Box::new(device)).map_err(|e| e.to_string())?;
    let sockets = single.sockets();
    let app = App::accept(direction, workload, &sockets, peer.clone(), |now| {
        single.turn(Instant::from_nanos(now));
    })?;
    Ok(Row::new(
        "single",
        vec![Box::new(SingleDriver { single, app })],
    ))
}

impl Driver for SingleDriver {
    fn turn(&mut self, now: Instant) -> usize {
        let done = self.single.turn(now);
        done + usize::from(self.app.turn())
    }

    fn bytes(&self) -> u64 {
        self.app.bytes()
    }

    fn verify(&mut self, on: bool) {
        self.app.verify(on);
    }

    fn account(&self) -> Account {
        let pump = self.single.pump_stats();
        let effects = self.single.effect_stats();
        Account {
            primary_bytes: effects.delivered_bytes + effects.sent_bytes,
            segments: pump.segments,
            runs: pump.runs,
            log_full: pump.log_full,
            ..Account::default()
        }
    }

    fn sent_again(&self) -> u64 {
        self.app.sent_again()
    }

    fn out_of_order(&self) -> u64 {
        self.app.out_of_order()
    }

    fn check(&self) -> Result<(), String> {
        self.app.check()?;
        let bad = self.single.replica().stats().bad_checksum;
        if bad > 0 {
            return Err(format!("{bad} segments had a bad checksum"));
        }
        match self.single.effect_stats().diverged {
            0 => Ok(()),
            diverged => Err(format!("{diverged} effects found no place")),
        }
    }
}
