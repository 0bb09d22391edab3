//! What a packet costs besides the protocol, as in the x-kernel's message tool: memory for its
//! message, reference counts of the layers that it passes, and its place in the order above TCP.
//!
//! Nahum, Yates, Kurose and Towsley measured each of them (sections 4.2, 5.2 and 6). This stack
//! needs none: frames belong to the pool of their device, states are not counted, and deliveries
//! are numbered. All are off by default.

use core::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use dominoes_drivers::Frame;

use super::lock::{Lock, LockKind};
use super::locks::{LockName, LockTimes, hold};

/// How the layers that a packet passes count references to their sessions: one up when it arrives,
/// one down when it is done with, at each of three layers (the paper's figure 15).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum References {
    /// Not at all.
    #[default]
    None,
    /// A lock around each count.
    Locked,
    /// By atomic instructions.
    Atomic,
}

/// Where the memory of a packet's message comes from (the paper's figure 16). The headers of the
/// packet are copied there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Messages {
    /// There is none.
    #[default]
    None,
    /// The process's allocator.
    Malloc,
    /// A free list that all workers share behind a lock, as `malloc` was in 1994.
    Shared,
    /// A stack of free messages for each worker, the last one first.
    Pool,
}

/// What the application does with a packet (the paper's section 4.2): it counts it, under a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Counting {
    /// Nothing.
    #[default]
    None,
    /// It counts packets as they come, in any order.
    Unordered,
    /// It counts them in the order in which TCP had them: each took a ticket before its worker
    /// released the state, and waits until that is called.
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

    /// A packet comes.
    pub(super) fn refer(&self, times: &mut LockTimes) {
        self.change(1, times);
    }

    /// A packet is done with.
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
                    // ORDERING: AcqRel, as who finds 0 would free the session.
                    count.fetch_add(by, Ordering::AcqRel);
                }
            }
        }
    }
}

/// Bytes of a packet that its message holds.
const HEADERS: usize = 128;

/// Free messages, each in memory of its own.
pub(super) type Free = Vec<Own>;
/// A message in memory of its own, which is what is measured.
pub(super) type Own = Box<Message>;

/// A message.
pub(super) struct Message {
    headers: [u8; HEADERS],
}

/// Messages that are free.
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

    /// The message of a packet that begins with this frame.
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

    /// Its packet is done with.
    pub(super) fn free(&self, message: Option<Own>, own: &mut Free, times: &mut LockTimes) {
        let Some(message) = message else { return };
        // What was written must not be optimized away.
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

/// The application of the paper's test: a counter behind a lock, and the ticket that is called.
pub(super) struct Counter<K: LockKind> {
    kind: Counting,
    counted: CachePadded<K::Of<Counted>>,
    called: CachePadded<AtomicU64>,
}

/// What the application counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counted {
    /// Requests with payload.
    pub requests: u64,
    /// ... behind one that TCP had later.
    pub misordered: u64,
    /// Where the newest one stood in the order of TCP, and one.
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

    /// Counts the request with this ticket, if its turn has come. Says whether it did.
    pub(super) fn count(&self, ticket: u64, times: &mut LockTimes) -> bool {
        let waits = self.kind == Counting::Ticketed;
        // ORDERING: Acquire, pairs with the Release below: the one before is counted.
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
