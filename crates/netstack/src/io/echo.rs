//! Queues of echo requests and replies, shared by the sockets of applications and the receive pump.

use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use crossbeam_queue::{ArrayQueue, SegQueue};
use dominoes::EventCount;

use crate::packet::flow::Address;

/// Most replies that wait for a socket.
const MOST_REPLIES: usize = 256;
/// Most requests that wait for the pump.
const MOST_REQUESTS: usize = 256;

/// A reply to an echo request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EchoReply {
    /// The host that sent it.
    pub from: IpAddr,
    /// The number of the request.
    pub sequence: u16,
    /// The data of the request, as the reply returned it.
    pub data: Vec<u8>,
    /// The TTL or hop limit of the reply's packet when it arrived.
    pub ttl: u8,
    /// From the turn of the stack that sent the request to the turn that took the reply.
    pub round_trip: Duration,
}

/// A request to send.
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
    /// How many replies have arrived.
    arrived: AtomicU64,
    /// Notified when a reply arrives, or the stack shuts down.
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

    /// Queues a request for the pump. Returns false if too many wait.
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

    /// Adds a reply that arrived. If the queue is full, drops the oldest reply and returns true.
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

    /// How many replies have arrived.
    pub(crate) fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }
}
