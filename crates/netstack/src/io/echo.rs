//! Queues of echo requests and replies, shared by the sockets of applications and the receive pump.

use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use crossbeam_queue::ArrayQueue;
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
    requests: ArrayQueue<EchoRequest>,
    replies: ArrayQueue<EchoReply>,
    /// How many replies have arrived.
    arrived: AtomicU64,
    /// Notified when a reply arrives, or the stack shuts down.
    pub(crate) event: EventCount,
}

impl EchoQueues {
    pub(crate) fn new() -> Self {
        EchoQueues {
            requests: ArrayQueue::new(MOST_REQUESTS),
            replies: ArrayQueue::new(MOST_REPLIES),
            arrived: AtomicU64::new(0),
            event: EventCount::default(),
        }
    }

    /// Queues a request for the pump. Returns false if too many wait.
    pub(crate) fn ask(&self, request: EchoRequest) -> bool {
        self.requests.push(request).is_ok()
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn no_more_requests_wait_than_the_limit_however_many_threads_ask() {
        for _ in 0..100 {
            let (queues, barrier) = (EchoQueues::new(), Barrier::new(4));
            let ask = || {
                let request = || EchoRequest {
                    to: Address::ipv4(10, 0, 0, 1),
                    sequence: 1,
                    ttl: 64,
                    data: Vec::new(),
                };
                barrier.wait();
                (0..MOST_REQUESTS).filter(|_| queues.ask(request())).count()
            };
            let taken: usize = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
                threads.into_iter().map(|one| one.join().unwrap()).sum()
            });
            assert_eq!(taken, MOST_REQUESTS);
        }
    }
}
