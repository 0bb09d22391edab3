//! Counts the contents of a process's inputs.
//!
//! Each target counts while it runs. When the process ends, it prints the sums in one line that
//! begins with `tally`, for the scripts in `.ci`. A process that ends at a finding prints none.

use std::cell::RefCell;

/// The counts of this thread: names, in the order in which they came, and sums.
struct Counts(Vec<(&'static str, u64)>);

// The destructor of the main thread's value runs when the process ends.
thread_local! {
    static COUNTS: RefCell<Counts> = const { RefCell::new(Counts(Vec::new())) };
}

impl Drop for Counts {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            let fields = self
                .0
                .iter()
                .map(|(name, count)| format!(" {name}={count}"));
            println!("tally{}", fields.collect::<String>());
        }
    }
}

/// Adds `count` to the sum called `name`.
pub fn add(name: &'static str, count: u64) {
    COUNTS.with_borrow_mut(
        |counts| match counts.0.iter_mut().find(|(other, _)| *other == name) {
            Some((_, sum)) => *sum += count,
            None => counts.0.push((name, count)),
        },
    );
}
