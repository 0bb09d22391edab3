//! Goodput over a wire that loses or reorders: 100 Mbit/s, a round trip of 10 ms, a queue of the
//! bandwidth-delay product, and one connection between two of our stacks.
//!
//! `GOODPUT_SEEDS=10 GOODPUT_SECONDS=20` runs the whole measurement; the default is a few seconds
//! of virtual time.

use core::cell::Cell;
use core::ops::ControlFlow;
use std::rc::Rc;

use dominoes_netstack::Limits;
use dominoes_netstack::config::CongestionControl;
use dominoes_netstack::time::Duration;
use dominoes_testkit::link::Faults;
use dominoes_testkit::{HostConfig, LinkConfig, Net, Traffic, Variant};

/// Bits per second.
const RATE: u64 = 100_000_000;
/// Bytes of the queue: a round trip's worth.
const QUEUE: u64 = 125_000;

/// Mbit/s of data that arrive in `seconds`, and retransmitted bytes per 1000.
fn goodput(seed: u64, faults: &Faults, seconds: u64, control: CongestionControl) -> (f64, f64) {
    let mut net = Net::new(seed);
    let delay = core::time::Duration::from_millis(5);
    let wire = LinkConfig::default()
        .faults(faults.clone())
        .delay(delay)
        .rate(RATE, QUEUE);
    let mut limits = Limits::default();
    limits.tcp.congestion = control;
    let sender = HostConfig::new(Variant::Single).limits(limits);
    let sender = sender.wires(wire.clone(), wire);
    let sender = net.add(sender).expect("good settings");
    let receiver = HostConfig::new(Variant::Single).limits(limits);
    let receiver = net.add(receiver).expect("good settings");
    let sent = Rc::new(Cell::new(0_u64));
    let count = sent.clone();
    net.watch(move |_, from, frame| {
        if from == sender && frame.len() > 200 {
            count.set(count.get() + frame.len() as u64 - 66);
        }
    });
    let listener = net.sockets(receiver).listen(7, 1).expect("a free port");
    let to = net.address_of(receiver, 7);
    let mut connecting = net.sockets(sender).begin_connect(to).expect("it begins");
    let (mut ours, mut theirs) = (None, None);
    let more_than_fits = 1 << 40;
    let outcome = net.run(Duration::from_secs(seconds), |_| {
        if ours.is_none()
            && let Some(stream) = connecting.try_finish()?
        {
            ours = Some(Traffic::new(stream, 1, 2, more_than_fits, 0));
        }
        if theirs.is_none()
            && let Ok((stream, _)) = listener.try_accept()
        {
            theirs = Some(Traffic::new(stream, 2, 1, 0, more_than_fits));
        }
        let all_traffic = [&mut ours, &mut theirs].into_iter().flatten();
        let done =
            all_traffic.map(|traffic| traffic.step().expect("what was written is what is read"));
        Ok(ControlFlow::Continue(done.sum()))
    });
    outcome.expect_err("it does not end by itself");
    let read = theirs.map_or(0, |traffic| traffic.received());
    let again = sent.get().saturating_sub(read) as f64 * 1000.0 / sent.get().max(1) as f64;
    (read as f64 * 8.0 / 1e6 / seconds as f64, again)
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect(name))
}

#[test]
fn goodput_over_a_wire_that_loses_is_what_other_stacks_reach() {
    let (seeds, seconds) = (setting("GOODPUT_SEEDS", 3), setting("GOODPUT_SECONDS", 4));
    // Linux to Linux reaches about 94, 39, 11 and 2.6 Mbit/s.
    let cases = [(0, 85.0), (1_000, 25.0), (10_000, 8.0), (50_000, 1.5)];
    for (loss_ppm, least) in cases {
        for control in [CongestionControl::Cubic, CongestionControl::NewReno] {
            let name = format!("loss {:>4.1} %", f64::from(loss_ppm) / 1e4);
            let faults = Faults::new(0).loss(loss_ppm);
            let median = median(&name, &faults, seeds, seconds, control);
            let enough = control != CongestionControl::Cubic || median >= least;
            assert!(enough, "{median:.1} Mbit/s at {loss_ppm} ppm of loss");
        }
    }
}

/// Prints and returns the median.
fn median(
    name: &str,
    faults: &Faults,
    seeds: u64,
    seconds: u64,
    control: CongestionControl,
) -> f64 {
    let mut all: Vec<_> = (1..=seeds)
        .map(|seed| goodput(seed, faults, seconds, control))
        .collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let median = all[all.len() / 2];
    println!(
        "{name}, {control:?}: {:.1} Mbit/s ({:.1} to {:.1}), {:.0} of 1000 bytes again",
        median.0,
        all[0].0,
        all[all.len() - 1].0,
        median.1,
    );
    median.0
}

/// This wire loses nothing: a congestion window that was reduced because of late segments must be
/// restored (RFC 4015).
#[test]
fn goodput_over_a_wire_that_reorders_is_that_of_one_that_does_not() {
    let (seeds, seconds) = (setting("GOODPUT_SEEDS", 3), setting("GOODPUT_SECONDS", 4));
    // A hundred frames take 12 ms, more than a round trip.
    for (ppm, distance, least) in [(10_000, 10, 85.0), (1_000, 100, 85.0), (10_000, 100, 60.0)] {
        for control in [CongestionControl::Cubic, CongestionControl::NewReno] {
            let name = format!("reorder {:.1} % by {distance}", f64::from(ppm) / 1e4);
            let faults = Faults::new(0).reorder(ppm, distance);
            let median = median(&name, &faults, seeds, seconds, control);
            assert!(median >= least, "{median:.1} Mbit/s, {name}");
        }
    }
}
