//! TCP as a whole: scripts for one side, streams between two, arbitrary segments.

mod arriving;
mod end;
mod fuzz;
mod one_side;
mod pair;
mod queries;
mod runs_of_acks;
mod sacks;
mod sending;
mod states;
mod touched;
mod user_calls;
