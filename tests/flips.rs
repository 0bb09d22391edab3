//! State that is changed behind a replica's back, and code that panics: what is noticed, and what
//! it costs.

mod bits;
mod groups;
mod hosts;
mod last;
mod panics;
