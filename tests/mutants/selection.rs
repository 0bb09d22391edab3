//! Selects the active mutant.
//!
//! `MUTANT` is its number. If `MUTANTS_REACHED` names a file instead, no mutant is active, and the
//! numbers of all mutants that the program reaches are written to the file.

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// More than the number of mutants.
const ROOM: usize = 1 << 14;

#[derive(Debug)]
struct Selection {
    active: Option<usize>,
    reached: Option<std::ffi::OsString>,
}

fn selected() -> Selection {
    Selection {
        active: std::env::var("MUTANT").ok().and_then(|id| id.parse().ok()),
        reached: std::env::var_os("MUTANTS_REACHED"),
    }
}

#[cold]
fn note(path: &std::ffi::OsStr, id: usize) {
    let file = OpenOptions::new().create(true).append(true).open(path);
    let mut file = file.expect("a file that can be written");
    // In one write, since threads share the file.
    let line = format!("{id}\n");
    file.write_all(line.as_bytes()).expect("a file that can be written");
}

/// Whether the mutant with this number is active.
#[inline(always)]
pub fn is(id: usize) -> bool {
    static SELECTION: OnceLock<Selection> = OnceLock::new();
    static REACHED: [AtomicBool; ROOM] = [const { AtomicBool::new(false) }; ROOM];
    let selection = SELECTION.get_or_init(selected);
    if let Some(path) = &selection.reached
        && !REACHED[id].load(Ordering::Relaxed)
        && !REACHED[id].swap(true, Ordering::Relaxed)
    {
        note(path, id);
    }
    selection.active == Some(id)
}
