//! Domains: state machines that pinned threads run, and their sources of work other than a log.

mod context;
mod domain;
mod lifo;
mod semaphore;
mod service;
mod share;
mod timer;

pub use context::{Context, ContextControl, ContextHandle, DomainHandle, Reply};
pub use domain::{Domain, Replica, Turn};
pub use lifo::Lifo;
pub use semaphore::Semaphore;
pub use service::{
    Feed, FeedId, FeedView, Handled, Priority, RoundRobin, Scheduler, Served, Service, Then,
};
pub use share::{Pool, PoolWorker, SharePublisher, Unordered, WorkShare};
pub use timer::{
    Clock, ManualClock, SystemClock, Tick, TimerControl, TimerFeed, TimerId, TimerPublisher, Wheel,
};
