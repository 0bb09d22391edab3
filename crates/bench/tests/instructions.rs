//! Beside the unit tests and not among them, some of which look at the clock.

use dominoes_bench::instructions::cases;

/// Each case checks by itself that it counts what it says: segments, runs, checksums, order.
#[test]
fn every_case_does_what_it_is_told() {
    for case in cases("") {
        let mut work = (case.make)();
        work(case.units);
        work(2 * case.units);
    }
}
