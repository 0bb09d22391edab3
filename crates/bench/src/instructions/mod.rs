//! Executed instructions, counted by callgrind.
//!
//! A count of instructions is the same on a busy machine as on an idle one, so it can be a test
//! where a time cannot. It is no time: it knows nothing of caches, of the distance between cores,
//! or of how many instructions a core finishes at once.
//!
//! One run of Valgrind executes this very binary again with all [`Case`]s, one after the other
//! ([`callgrind`]). A case is set up and warmed; then N units of its work are done between two
//! marks, and 2N between the next two. The difference is N units of a warm run: setting up, warming
//! and the marks drop out of it. [`gate`] compares key counts with a checked-in file, and
//! [`report`] prints all of them.
//!
//! Why not a harness such as gungraun: it starts Valgrind anew for every benchmark, wants a second
//! program of its very version to be installed, and compares whole benchmarks with the run before.
//! Here hundreds of counts of one warm run, most of them differences, are compared with a file that
//! is part of a change.
//!
//! # On which machine
//!
//! Valgrind simulates a processor: on any x86-64 machine with AVX2 it is the
//! same one (with AVX2, FMA and BMI, without AVX-512), so code that chooses by processor chooses
//! alike. The C library's copies by one string instruction are turned off, because Valgrind counts
//! each byte of those as an instruction. Compiler, Valgrind and C library still matter; their
//! versions are in the file, beside the counts.

pub(crate) mod apart;
pub mod apply;
pub mod callgrind;
mod exchange;
pub mod functions;
pub mod gate;
pub mod report;
pub mod ring;
pub mod stack;

mod fixture;
mod sampled;

use std::hint::black_box;

/// Something whose instructions are counted.
pub struct Case {
    /// Which, in words between slashes: how rows and keys of the file are called.
    pub name: String,
    /// The unit of a count: a call, a segment.
    pub unit: &'static str,
    /// Units of the shorter measurement, N.
    pub units: u64,
    /// The functions whose instructions count, callees included, and for how much; everything if
    /// there is none.
    pub within: Vec<(&'static str, f64)>,
    /// Functions whose share, callees included, is reported, too: its name in the table, and the
    /// function.
    pub shares: &'static [(&'static str, &'static str)],
    /// The most that it should be.
    pub target: Option<u64>,
    /// Whether the gate watches it.
    pub key: bool,
    /// Sets it up. The returned closure does the given number of units.
    pub make: Box<dyn Fn() -> Box<dyn FnMut(u64)>>,
}

impl Case {
    /// A case without target, shares and gate.
    pub fn new<F: FnMut(u64) + 'static>(
        name: impl Into<String>,
        unit: &'static str,
        units: u64,
        make: impl Fn() -> F + 'static,
    ) -> Self {
        Case {
            name: name.into(),
            unit,
            units,
            within: Vec::new(),
            shares: &[],
            target: None,
            key: false,
            make: Box::new(move || Box::new(make())),
        }
    }

    /// The same, watched by the gate.
    #[must_use]
    pub fn key(mut self) -> Self {
        self.key = true;
        self
    }

    /// Makes the case one that the gate watches.
    #[must_use]
    pub fn key_if(mut self, key: bool) -> Self {
        self.key = key;
        self
    }

    /// The same with a target.
    #[must_use]
    pub fn target(mut self, most: impl Into<Option<u64>>) -> Self {
        self.target = most.into();
        self
    }

    /// The same, but only what happens within a function counts, or within one of several.
    #[must_use]
    pub fn within(self, function: &'static str) -> Self {
        self.partly_within(function, 1.0)
    }

    /// As [`Case::within`], for a function that is called more often here than it should be: only
    /// A function of whose cost only a part, `share`, counts.
    #[must_use]
    pub fn partly_within(mut self, function: &'static str, share: f64) -> Self {
        self.within.push((function, share));
        self
    }

    /// The same, with the shares of functions.
    #[must_use]
    pub fn shares(mut self, shares: &'static [(&'static str, &'static str)]) -> Self {
        self.shares = shares;
        self
    }

    /// Does its work between marks; to be run under callgrind.
    pub fn count(&self) {
        let mut work = (self.make)();
        work(self.units);
        instructions_mark();
        work(self.units);
        instructions_mark();
        work(2 * self.units);
        instructions_mark();
    }
}

/// Callgrind writes its counts whenever this is called.
#[inline(never)]
fn instructions_mark() {
    black_box(());
}

/// What the processor can do beyond the baseline of x86-64, as far as a choice by processor may
/// depend on it. Valgrind simulates the same one on every machine that has AVX2.
pub fn processor() -> String {
    let mut can: Vec<&str> = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        let features = [
            ("sse4.2", is_x86_feature_detected!("sse4.2")),
            ("avx", is_x86_feature_detected!("avx")),
            ("avx2", is_x86_feature_detected!("avx2")),
            ("bmi2", is_x86_feature_detected!("bmi2")),
            ("fma", is_x86_feature_detected!("fma")),
            ("avx512f", is_x86_feature_detected!("avx512f")),
        ];
        can.extend(
            features
                .iter()
                .filter(|(_, there)| *there)
                .map(|(name, _)| *name),
        );
    }
    format!("{} {}", std::env::consts::ARCH, can.join(" "))
}

/// All cases whose name has `filter` in it, in the order of the table.
pub fn cases(filter: &str) -> Vec<Case> {
    let mut cases = ring::cases();
    cases.extend(apply::cases());
    cases.extend(stack::cases());
    cases.extend(exchange::cases());
    cases.retain(|case| case.name.contains(filter));
    cases
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique() {
        let cases = cases("");
        let names: HashSet<_> = cases.iter().map(|case| &case.name).collect();
        assert_eq!(names.len(), cases.len());
    }
}
