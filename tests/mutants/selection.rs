//! Which mutant is active.
//!
//! `MUTANT` is its number. If `MUTANTS_REACHED` names a file instead, none is active, and the file
//! gets the numbers of all that are met.

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// More than there are mutants.
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
    // In one piece, since threads share the file.
    let line = format!("{id}\n");
    file.write_all(line.as_bytes()).expect("a file that can be written");
}

/// Whether the mutant of this number is active.
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
