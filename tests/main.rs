//! Tests of the whole stack that need no privileges.

mod agreement;
mod budgets;
mod conformance;
mod datagrams;
mod differential;
mod flips;
mod glossary;
mod goodput;
mod hostile;
mod layering;
mod membership;
mod nic;
mod pools;
mod preempt;
mod prose;
mod simulation;
mod source;
mod stall;
mod support;
mod top;
mod untrusted_hosts;
