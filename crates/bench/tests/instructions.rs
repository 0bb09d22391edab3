//! A separate binary, since some unit tests look at the clock.

use dominoes_bench::instructions::cases;

/// Each case checks its own counts: segments, runs, checksums, order.
#[test]
fn every_case_does_what_it_is_told() {
    for case in cases("") {
        let mut work = (case.make)();
        work(case.units);
        work(2 * case.units);
    }
}
