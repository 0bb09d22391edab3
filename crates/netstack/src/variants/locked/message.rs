//! The costs of a packet outside the protocol, as in the x-kernel's message tool: memory for its
//! message, reference counts in the layers that it passes, and its place in the order above TCP.
//!
//! Nahum, Yates, Kurose and Towsley measured each of them (sections 4.2, 5.2 and 6). This stack has
//! none of these costs: frames belong to the pool of their device, states have no reference counts,
//! and deliveries are numbered. All are off by default.

use core::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use dominoes_drivers::Frame;

use super::lock::{Lock, LockKind};
use super::locks::{LockName, LockTimes, hold};

/// How the layers that a packet passes count references to their sessions. At each of three layers,
/// a packet adds one reference when it arrives and drops it when it is done (the paper's figure
/// 15).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum References {
    /// They do not.
    #[default]
    None,
    /// A lock around each count.
    Locked,
    /// With atomic instructions.
    Atomic,
}

/// Where the memory of a packet's message comes from (the paper's figure 16). The headers of the
/// packet are copied there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Messages {
    /// Packets have no message.
    #[default]
    None,
    /// The process's allocator.
    Malloc,
    /// A free list shared by all workers under a lock, as `malloc` was in 1994.
    Shared,
    /// A free list for each worker, used as a stack.
    Pool,
}

/// How the application counts packets, under a lock (the paper's section 4.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Counting {
    /// It does not.
    #[default]
    None,
    /// As they arrive, in any order.
    Unordered,
    /// In the order in which TCP applied them: each packet takes a ticket before its worker
    /// releases the state, and is counted once the ticket is called.
    Ticketed,
}

const LAYERS: usize = 3;

/// The sessions that packets refer to.
pub(super) struct Sessions<K: LockKind> {
    kind: References,
    locked: [CachePadded<K::Of<u64>>; LAYERS],
    atomic: [CachePadded<AtomicU64>; LAYERS],
}

impl<K: LockKind> Sessions<K> {
    pub(super) fn new(kind: References) -> Self {
        Sessions {
            kind,
            locked: core::array::from_fn(|_| CachePadded::new(K::Of::new(0))),
            atomic: core::array::from_fn(|_| CachePadded::new(AtomicU64::new(0))),
        }
    }

    /// Counts a packet that arrives.
    pub(super) fn refer(&self, times: &mut LockTimes) {
        self.change(1, times);
    }

    /// Counts down for a packet that is done.
    pub(super) fn release(&self, times: &mut LockTimes) {
        self.change(u64::MAX, times);
    }

    fn change(&self, by: u64, times: &mut LockTimes) {
        match self.kind {
            References::None => {}
            References::Locked => {
                for count in &self.locked {
                    hold(&**count, LockName::References, times, |count, _| {
                        *count = count.wrapping_add(by);
                    });
                }
            }
            References::Atomic => {
                for count in &self.atomic {
                    // ORDERING: AcqRel, since the thread that reaches 0 would free the session.
                    count.fetch_add(by, Ordering::AcqRel);
                }
            }
        }
    }
}

/// Bytes of a packet that its message holds.
const HEADERS: usize = 128;

/// Free messages, each in its own allocation.
pub(super) type Free = Vec<Own>;
/// A message in its own allocation, since the cost of that allocation is measured.
pub(super) type Own = Box<Message>;

/// A message.
pub(super) struct Message {
    headers: [u8; HEADERS],
}

/// The free messages that workers share.
pub(super) struct FreeMessages<K: LockKind> {
    kind: Messages,
    shared: CachePadded<K::Of<Free>>,
}

impl<K: LockKind> FreeMessages<K> {
    pub(super) fn new(kind: Messages) -> Self {
        FreeMessages {
            kind,
            shared: CachePadded::new(K::Of::new(Vec::new())),
        }
    }

    /// Makes the message of a packet whose first frame is `frame`.
    pub(super) fn take(
        &self,
        frame: Option<&Frame>,
        own: &mut Free,
        times: &mut LockTimes,
    ) -> Option<Own> {
        let free = match self.kind {
            Messages::None => return None,
            Messages::Malloc => None,
            Messages::Shared => hold(&*self.shared, LockName::Messages, times, |free, _| {
                free.pop()
            }),
            Messages::Pool => own.pop(),
        };
        let mut message = free.unwrap_or_else(|| {
            Box::new(Message {
                headers: [0; HEADERS],
            })
        });
        if let Some(frame) = frame {
            let bytes = frame.bytes();
            let len = bytes.len().min(HEADERS);
            message.headers[..len].copy_from_slice(&bytes[..len]);
        }
        Some(message)
    }

    /// Frees the message of a packet that is done.
    pub(super) fn free(&self, message: Option<Own>, own: &mut Free, times: &mut LockTimes) {
        let Some(message) = message else { return };
        // The compiler must not remove the copy of the headers.
        std::hint::black_box(&message.headers);
        match self.kind {
            Messages::None | Messages::Malloc => drop(message),
            Messages::Shared => hold(&*self.shared, LockName::Messages, times, |free, _| {
                free.push(message);
            }),
            Messages::Pool => own.push(message),
        }
    }
}

/// The application of the paper's test: a counter under a lock, and the ticket that is called next.
pub(super) struct Counter<K: LockKind> {
    kind: Counting,
    counted: CachePadded<K::Of<Counted>>,
    called: CachePadded<AtomicU64>,
}

/// The counts of the application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counted {
    /// Requests with payload.
    pub requests: u64,
    /// Requests that were counted after one that TCP applied later.
    pub misordered: u64,
    /// One more than the newest ticket counted.
    newest: u64,
}

impl<K: LockKind> Counter<K> {
    pub(super) fn new(kind: Counting) -> Self {
        Counter {
            kind,
            counted: CachePadded::new(K::Of::new(Counted::default())),
            called: CachePadded::new(AtomicU64::new(0)),
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.kind != Counting::None
    }

    /// Counts the request with this ticket, if its turn has come. Returns whether it did.
    pub(super) fn count(&self, ticket: u64, times: &mut LockTimes) -> bool {
        let waits = self.kind == Counting::Ticketed;
        // ORDERING: Acquire, pairs with the Release below: the ticket before this one is counted.
        if waits && self.called.load(Ordering::Acquire) != ticket {
            return false;
        }
        hold(
            &*self.counted,
            LockName::Application,
            times,
            |counted, _| {
                counted.requests += 1;
                if ticket < counted.newest {
                    counted.misordered += 1;
                } else {
                    counted.newest = ticket + 1;
                }
            },
        );
        if waits {
            // ORDERING: Release, pairs with the Acquire above. Only the holder of this ticket
            // stores here.
            self.called.store(ticket + 1, Ordering::Release);
        }
        true
    }

    pub(super) fn counted(&self) -> Counted {
        self.counted.with(|counted| *counted)
    }
}
