//! The whole of TCP seen from outside: scripts for one side, streams between two, arbitrary segments.

mod arriving;
mod asking;
mod end;
mod fuzz;
mod pair;
mod sacks;
mod sending;
mod solo;
mod states;
mod touched;
mod using;
