//! The time of a small request.

use std::time::Duration;

#[cfg(target_os = "linux")]
use super::parts;
use super::{Experiment, TABLES};
use crate::drivers::echo::{Pair, SERVERS, Server};
#[cfg(target_os = "linux")]
use crate::kernel_echo;
use crate::lineup::Wanted;
use crate::paper::Measure;
use crate::rounds::{self, Reading};
use crate::spread::Spread;
use crate::table::{Lines, Table, columns};
use crate::topology::{Distance, MAY_WAIT};

pub(super) const LATENCY: Experiment = Experiment {
    name: "latency",
    about: "one byte each way: how long a request and its answer take, in memory and over veth",
    besides: |wanted, _, progress| latency(wanted, progress),
    besides_takes: |_| TABLES,
    ..Experiment::NONE
};

/// Requests of a row in one round.
const ASKED: usize = 2_000;

/// A server and its readings, with the values of one round each.
type Measured = (Server, Vec<Reading<Vec<f64>>>);

/// Measures all servers in turn for several rounds; `measure` returns the values of one round.
fn by_turns(
    wanted: &Wanted,
    progress: &mut dyn FnMut(usize, usize),
    mut measure: impl FnMut(&mut Pair, &mut Duration) -> Result<(Vec<f64>, f64), String>,
) -> Result<Vec<Measured>, String> {
    let asked = |server: &Server| {
        let named = wanted.variants.is_empty() || wanted.variants.iter().any(|v| v == server.name);
        named && wanted.cores.contains(&server.cores)
    };
    let mut rows = Vec::new();
    for server in SERVERS.into_iter().filter(asked) {
        rows.push((server, Pair::new(server)?, Duration::ZERO));
    }
    let rounds = wanted.side_rounds.max(3);
    let readings = rounds::by_turns(&mut rows, rounds, progress, |(server, pair, clock), _| {
        let before = Distance::now();
        let (value, waited) = measure(pair, clock)
            .map_err(|why| format!("{}/{}: {why}", server.name, server.cores))?;
        let near = before == Distance::Near && Distance::now() == Distance::Near;
        let is_calm = near && waited <= MAY_WAIT;
        Ok::<_, String>(Reading { value, is_calm })
    })?;
    Ok(rows.into_iter().map(|row| row.0).zip(readings).collect())
}

/// The quantile `part` of the samples, in microseconds.
fn part(sorted: &[u64], part: f64) -> f64 {
    let at = (sorted.len().saturating_sub(1)) as f64 * part;
    sorted
        .get(at as usize)
        .map_or(f64::NAN, |ns| *ns as f64 / 1e3)
}

/// The median with quartiles as text, and as numbers.
fn spread(values: impl Iterator<Item = f64>, digits: usize) -> (String, Spread) {
    match Spread::of(values) {
        None => (String::new(), Spread::one(f64::NAN)),
        Some(spread) => (format!("{spread:.digits$}"), spread),
    }
}

fn latency(wanted: &Wanted, progress: &mut dyn FnMut(usize, usize)) -> Result<Vec<Table>, String> {
    let measured = by_turns(wanted, progress, |pair, clock| {
        let asked = pair.run(clock, |client, beside, now| client.ask(ASKED, beside, now));
        let (mut took, waited) = asked?;
        took.sort_unstable();
        let values = [0.5, 0.9, 0.99].map(|share| part(&took, share));
        Ok((values.into(), waited))
    })?;
    let mut table = Table::new(
        "one byte each way over a pair of devices in memory, microseconds; both ends poll, near cores",
        &columns("server | cores | p50 | p90 | p99 | p50 / single | rounds"),
    );
    let single = measured.iter().find(|(server, _)| server.name == "single");
    let single = single.and_then(|(_, readings)| {
        let (values, _) = rounds::kept(readings);
        Spread::of(values.iter().map(|round| round[0]))
    });
    let mut line = Vec::new();
    for (server, readings) in &measured {
        let (values, left_out) = rounds::kept(readings);
        let disturbed = left_out.is_none();
        let of = |at: usize| spread(values.iter().map(|round| round[at]), 2);
        let (p50, p99) = (of(0).1, of(2).1);
        for (part, value) in [("p50", p50), ("p99", p99)] {
            let name = format!("latency {part} of {}/{}", server.name, server.cores);
            let measure = Measure::of(value, values.len());
            table.measure(name, measure.disturbed_if(disturbed));
        }
        let ratio = single.map(|single| p50.over(single));
        line.push((
            format!("{}/{}", server.name, server.cores),
            [(50.0, p50), (90.0, of(1).1), (99.0, p99)]
                .map(|(part, spread)| (part, spread.median))
                .into(),
        ));
        table.row(vec![
            server.name.to_owned(),
            server.cores.to_string(),
            of(0).0,
            of(1).0,
            of(2).0,
            ratio.map_or_else(String::new, |ratio| ratio.to_string()),
            counted(values.len(), readings.len(), disturbed),
        ]);
    }
    table.note(format!(
        "medians of rounds of {ASKED} requests, with quartiles; the client's thread drives the second worker, where there is one"
    ));
    table.lines(Lines {
        x: "percentile".to_owned(),
        y: "microseconds for one byte each way".to_owned(),
        doubling: false,
        lines: line,
    });
    let mut tables = vec![table];
    tables.extend(over_veth(wanted));
    Ok(tables)
}

fn counted(kept: usize, all: usize, disturbed: bool) -> String {
    match disturbed {
        true => format!("{all}, ALL disturbed or far"),
        false => format!("{kept} of {all}"),
    }
}

/// The measurement against a Linux client over a veth pair, with our server and Linux's in turn. A
/// table with the reason if it cannot run here.
#[cfg(target_os = "linux")]
fn over_veth(wanted: &Wanted) -> Option<Table> {
    let mut table = Table::new(
        "one byte each way between a Linux client and each server over veth, microseconds",
        &["server", "p50", "p90", "p99"],
    );
    if let Err(why) = parts::can_play() {
        table.note(format!("skipped: {why}"));
        return Some(table);
    }
    match kernel_echo::measure(wanted.side_rounds.clamp(1, 5)) {
        Err(error) => table.note(format!(
            "skipped: {error}; needs root, ip and ethtool (apt-get install iproute2 ethtool)"
        )),
        Ok(rows) => {
            for (server, asked) in rows {
                let of = |at: usize| spread(asked.iter().map(|asked| asked.micros[at]), 1).0;
                table.row(vec![server.to_owned(), of(0), of(1), of(2)]);
            }
            table.note("the client is a blocking socket; our servers run on AF_PACKET and sleep when idle, as the kernel does".to_owned());
        }
    }
    Some(table)
}

#[cfg(not(target_os = "linux"))]
fn over_veth(_: &Wanted) -> Option<Table> {
    None
}
