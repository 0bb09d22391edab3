//! Echo requests that sockets send, and the replies to them, as applications and the receive pump
//! share them.

use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use crossbeam_queue::{ArrayQueue, SegQueue};
use dominoes::EventCount;

use crate::packet::flow::Address;

/// Replies that wait for a socket, at most.
const MOST_REPLIES: usize = 256;
/// Requests that wait for the pump, at most.
const MOST_REQUESTS: usize = 256;

/// A reply to an echo request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EchoReply {
    /// Who sent it.
    pub from: IpAddr,
    /// The number of the request.
    pub sequence: u16,
    /// What the request carried, or what became of it.
    pub data: Vec<u8>,
    /// Hops that its packet had left.
    pub ttl: u8,
    /// From the turn of the stack that sent the request until that which took the reply.
    pub round_trip: Duration,
}

/// A request that is to be sent.
#[derive(Debug)]
pub(crate) struct EchoRequest {
    pub(crate) to: Address,
    pub(crate) sequence: u16,
    pub(crate) ttl: u8,
    pub(crate) data: Vec<u8>,
}

/// The queues of an echo socket.
#[derive(Debug)]
pub(crate) struct EchoQueues {
    requests: SegQueue<EchoRequest>,
    replies: ArrayQueue<EchoReply>,
    /// Replies that have ever come.
    arrived: AtomicU64,
    /// Notified when a reply comes, or the stack goes away.
    pub(crate) event: EventCount,
}

impl EchoQueues {
    pub(crate) fn new() -> Self {
        EchoQueues {
            requests: SegQueue::new(),
            replies: ArrayQueue::new(MOST_REPLIES),
            arrived: AtomicU64::new(0),
            event: EventCount::default(),
        }
    }

    /// Leaves a request for the pump. Returns false if too many wait.
    pub(crate) fn ask(&self, request: EchoRequest) -> bool {
        let has_room = self.requests.len() < MOST_REQUESTS;
        if has_room {
            self.requests.push(request);
        }
        has_room
    }

    /// The next request.
    pub(crate) fn request(&self) -> Option<EchoRequest> {
        self.requests.pop()
    }

    /// A reply came. The oldest makes room for it; returns whether that is lost.
    pub(crate) fn reply(&self, reply: EchoReply) -> bool {
        let is_lost = self.replies.force_push(reply).is_some();
        // ORDERING: Relaxed, as in `AcceptQueue::push`.
        self.arrived.fetch_add(1, Ordering::Relaxed);
        self.event.notify_all();
        is_lost
    }

    /// The oldest reply.
    pub(crate) fn take(&self) -> Option<EchoReply> {
        self.replies.pop()
    }

    /// Whether a reply waits.
    pub(crate) fn has_reply(&self) -> bool {
        !self.replies.is_empty()
    }

    /// How many replies have ever come.
    pub(crate) fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }
}
