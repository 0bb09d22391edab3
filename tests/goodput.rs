//! Goodput over a wire that loses or reorders: 100 Mbit/s, a round trip of 10 ms, a queue of the
//! bandwidth-delay product, and one connection between two of our stacks.
//!
//! `GOODPUT_SEEDS=10 GOODPUT_SECONDS=20` runs the whole measurement; the default is a few seconds
//! of virtual time.

use core::cell::Cell;
use core::ops::ControlFlow;
use std::rc::Rc;

use dominoes_netstack::config::CongestionControl;
use dominoes_netstack::time::Duration;
use dominoes_testkit::link::Faults;
use dominoes_testkit::{HostConfig, LinkConfig, Net, Traffic, Variant};

/// Bits per second.
const RATE: u64 = 100_000_000;
/// Bytes of the queue: a round trip's worth.
const QUEUE: u64 = 125_000;

/// Mbit/s of data of each connection that arrive in `seconds`, and retransmitted bytes per 1000.
/// There is one connection with each of `controls`, over one wire.
fn goodputs(
    seed: u64,
    faults: &Faults,
    queue: u64,
    seconds: u64,
    controls: &[CongestionControl],
) -> (Vec<f64>, f64) {
    let mut net = Net::new(seed);
    let delay = core::time::Duration::from_millis(5);
    let wire = LinkConfig::default()
        .faults(faults.clone())
        .delay(delay)
        .rate(RATE, queue);
    let sender = HostConfig::new(Variant::Single).wires(wire.clone(), wire);
    let sender = net.add(sender).expect("good settings");
    let receiver = HostConfig::new(Variant::Single);
    let receiver = net.add(receiver).expect("good settings");
    let sent = Rc::new(Cell::new(0_u64));
    let count = sent.clone();
    net.watch(move |_, from, frame| {
        if from == sender && frame.len() > 200 {
            count.set(count.get() + frame.len() as u64 - 66);
        }
    });
    let more_than_fits = 1 << 40;
    let mut ends = Vec::new();
    for (port, &control) in (7..).zip(controls) {
        let listener = net.sockets(receiver).listen(port, 1).expect("a free port");
        let to = net.address_of(receiver, port);
        let connecting = net.sockets(sender).begin_connect(to).expect("it begins");
        ends.push((control, listener, connecting, None, None));
    }
    let outcome = net.run(Duration::from_secs(seconds), |_| {
        let mut done = 0;
        for (control, listener, connecting, ours, theirs) in &mut ends {
            if ours.is_none()
                && let Some(stream) = connecting.try_finish()?
            {
                let tuning = stream.tuning().congestion(Some(*control));
                stream.set_tuning(tuning).expect("it is open");
                *ours = Some(Traffic::new(stream, 1, 2, more_than_fits, 0));
            }
            if theirs.is_none()
                && let Ok((stream, _)) = listener.try_accept()
            {
                *theirs = Some(Traffic::new(stream, 2, 1, 0, more_than_fits));
            }
            for traffic in [ours, theirs].into_iter().flatten() {
                done += traffic.step().expect("what was written is what is read");
            }
        }
        Ok(ControlFlow::Continue(done))
    });
    outcome.expect_err("it does not end by itself");
    let read = ends.iter().map(|(.., theirs)| theirs.as_ref());
    let read: Vec<u64> = read
        .map(|traffic| traffic.map_or(0, Traffic::received))
        .collect();
    let all: u64 = read.iter().sum();
    let again = sent.get().saturating_sub(all) as f64 * 1000.0 / sent.get().max(1) as f64;
    let rates = read
        .into_iter()
        .map(|read| read as f64 * 8.0 / 1e6 / seconds as f64);
    (rates.collect(), again)
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect(name))
}

#[test]
fn goodput_over_a_wire_that_loses_is_what_other_stacks_reach() {
    let (seeds, seconds) = (setting("GOODPUT_SEEDS", 3), setting("GOODPUT_SECONDS", 4));
    // CUBIC from Linux to Linux reaches about 94, 39, 11 and 2.6 Mbit/s. The BBR of Linux 6 is
    // version 1, which does not respond to loss.
    let cases = [
        (0, 85.0, 85.0),
        (1_000, 25.0, 83.0),
        (10_000, 8.0, 83.0),
        (50_000, 1.5, 77.0),
    ];
    for (loss_ppm, least, least_of_bbr) in cases {
        let mut of_cubic = 0.0_f64;
        for &control in CongestionControl::ALL {
            let name = format!("loss {:>4.1} %", f64::from(loss_ppm) / 1e4);
            let faults = Faults::new(0).loss(loss_ppm);
            let median = median(&name, &faults, seeds, seconds, control);
            if control == CongestionControl::Cubic {
                of_cubic = median;
            }
            let least = match control {
                CongestionControl::Cubic => least,
                CongestionControl::Bbr if loss_ppm == 10_000 => (5.0 * of_cubic).max(least_of_bbr),
                CongestionControl::Bbr => least_of_bbr,
                _ => 0.0,
            };
            assert!(
                median >= least,
                "{control:?}: {median:.1} Mbit/s at {loss_ppm} ppm of loss"
            );
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
        .map(|seed| {
            let (rates, again) = goodputs(seed, faults, QUEUE, seconds, &[control]);
            (rates[0], again)
        })
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

/// draft-ietf-ccwg-bbr-06 section 5.3.3.8: flows with CUBIC beside BBR continue to work well.
#[test]
fn goodput_of_bbr_and_of_cubic_on_one_bottleneck_is_no_less_than_a_fifth() {
    let seconds = setting("GOODPUT_SECONDS", 4) * 5;
    let controls = [CongestionControl::Cubic, CongestionControl::Bbr];
    // In a queue that is short, the round trip hardly shows it.
    for queue in [QUEUE, QUEUE / 8, QUEUE / 16] {
        let (rates, again) = goodputs(1, &Faults::new(0), queue, seconds, &controls);
        let (cubic, bbr) = (rates[0], rates[1]);
        println!(
            "{queue} bytes of queue: CUBIC {cubic:.1}, BBR {bbr:.1} Mbit/s, {again:.0} of 1000 \
             bytes again"
        );
        let least = (cubic + bbr) / 5.0;
        assert!(
            cubic >= least && bbr >= least,
            "{cubic:.1} and {bbr:.1} Mbit/s"
        );
    }
}

/// This wire loses nothing: a congestion window that was reduced because of late segments must be
/// restored (RFC 4015).
#[test]
fn goodput_over_a_wire_that_reorders_is_that_of_one_that_does_not() {
    let (seeds, seconds) = (setting("GOODPUT_SEEDS", 3), setting("GOODPUT_SECONDS", 4));
    // A hundred frames take 12 ms, more than a round trip.
    for (ppm, distance, least) in [(10_000, 10, 85.0), (1_000, 100, 85.0), (10_000, 100, 60.0)] {
        for &control in CongestionControl::ALL {
            let name = format!("reorder {:.1} % by {distance}", f64::from(ppm) / 1e4);
            let faults = Faults::new(0).reorder(ppm, distance);
            let median = median(&name, &faults, seeds, seconds, control);
            assert!(median >= least, "{median:.1} Mbit/s, {name}");
        }
    }
}
