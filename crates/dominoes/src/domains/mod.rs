//! Domains: state machines that pinned threads run, and what feeds them besides a log.

mod context;
mod domain;
mod semaphore;
mod service;
mod share;
mod timer;

pub use context::{Context, ContextControl, ContextHandle, DomainHandle, Reply};
pub use domain::{Domain, Replica, Turn};
pub use semaphore::Semaphore;
pub use service::{
    Feed, FeedId, FeedView, Priority, RoundRobin, Scheduler, Served, Service, Step, Then,
};
pub use share::{Lifo, Pool, SharePublisher, Unordered, WorkShare, Worker};
pub use timer::{
    Clock, ManualClock, SystemClock, Tick, TimerControl, TimerFeed, TimerId, TimerPublisher, Wheel,
};
