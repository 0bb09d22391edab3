//! State that changes without its replica's knowledge, and code that panics: whether the group
//! notices, and the damage.

mod bits;
mod groups;
mod hosts;
mod last;
mod panics;
