//! Replicated state fed from one totally ordered, lock-free multicast log.
#![deny(unsafe_code)]

mod channel;
mod consistency;
mod context;
mod domain;
mod error;
mod log;
mod membership;
mod primary;
mod publisher;
mod seq;
mod share;
mod subscription;
mod sync;
mod wait;

#[allow(unsafe_code)]
mod cell;
#[allow(unsafe_code)]
mod ring;

pub use cell::{Attachments, Pin, Role, RoleGuard, Stocker, Verdicts, attachments};
pub use channel::{Channel, Delivery, Order, Publish, Receive};
pub use consistency::{Fingerprints, Mismatch};
pub use context::{Context, ContextHandle};
pub use domain::{Domain, Replica, Turn};
pub use error::{BatchError, Closed, NoBatch, SubscribeError, TryPublishError};
pub use log::{Log, channel};
pub use membership::{Entry, Members};
pub use primary::{ByPosition, PrimaryPolicy};
pub use publisher::{Buffered, Publisher};
pub use ring::MAX_SUBSCRIBERS;
pub use seq::Seq;
pub use share::{Lifo, Pool, SharePublisher, Unordered, Worker, WorkShare};
pub use subscription::{Batch, Inactive, Iter, Subscription};
pub use wait::{EventCount, Key, Park, Spin, SpinYield, Wait};
