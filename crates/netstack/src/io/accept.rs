//! Established connections on their way to `accept`.
//!
//! `apply` numbers the connections of a group in the order in which they are established, and
//! any worker may perform the effects that hand them over, in any order. [`Arrivals`] restores
//! the order before they enter the queue of their port. So an application accepts the connections
//! of a group in the order in which they were established, as with other stacks. Protocols that use
//! several connections rely on that.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use dominoes::EventCount;

use crate::io::world::{Options, SocketTable, World};
use crate::log::request::{Binding, ConnId, Endpoint, Flow};

/// The queue of a listening port.
#[derive(Debug, Default)]
pub(crate) struct AcceptQueue {
    pub(crate) options: Options,
    pub(crate) ready: VecDeque<Ready>,
    /// For each group, whether its pump knows the settings of the listener.
    pub(crate) is_told: Vec<bool>,
    /// Whether the settings were ever changed.
    pub(crate) has_options: bool,
    /// For each group, how many of its connections were accepted.
    pub(crate) accepted: Vec<u64>,
    /// For pollers.
    pub(crate) news: Arc<QueueNews>,
}

/// Held SYNs that the application has not seen yet.
#[derive(Debug, Default)]
pub(crate) struct ArrivingQueue {
    /// Group, number in the group, and flow of each.
    syns: VecDeque<(u16, u64, Flow)>,
    /// For pollers.
    pub(crate) news: Arc<QueueNews>,
}

impl ArrivingQueue {
    /// Takes the next one.
    pub(crate) fn pop(&mut self) -> Option<(u16, u64, Flow)> {
        let syn = self.syns.pop_front();
        self.count();
        syn
    }

    fn count(&self) {
        self.news.waiting.store(self.syns.len(), Ordering::Relaxed);
    }
}

/// The queues of all listeners, by port and binding. No connection matches two of them.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    queues: BTreeMap<(u16, Binding), AcceptQueue>,
}

impl Listeners {
    /// The bindings of the listeners of a port.
    pub(crate) fn at(&self, port: u16) -> impl Iterator<Item = Binding> + '_ {
        let from = self.queues.range((port, Binding::default())..);
        let names = from.map(|(name, _)| *name);
        let of_port = names.take_while(move |(of, _)| *of == port);
        of_port.map(|(_, binding)| binding)
    }

    /// The queue of connections to `local`.
    fn of(&mut self, local: Endpoint) -> Option<&mut AcceptQueue> {
        let found = self
            .at(local.port)
            .find(|binding| binding.takes(local.address));
        self.get_mut(local.port, found?)
    }

    pub(crate) fn get_mut(&mut self, port: u16, binding: Binding) -> Option<&mut AcceptQueue> {
        self.queues.get_mut(&(port, binding))
    }

    pub(crate) fn insert(&mut self, port: u16, binding: Binding, queue: AcceptQueue) {
        self.queues.insert((port, binding), queue);
    }

    pub(crate) fn remove(&mut self, port: u16, binding: Binding) -> Option<AcceptQueue> {
        self.queues.remove(&(port, binding))
    }

    pub(crate) fn queues(&self) -> impl Iterator<Item = &AcceptQueue> {
        self.queues.values()
    }

    /// Removes and returns all queues.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = (u16, Binding, AcceptQueue)> + use<> {
        let all = core::mem::take(&mut self.queues).into_iter();
        all.map(|((port, binding), queue)| (port, binding, queue))
    }
}

/// The state of an accept queue that pollers read.
#[derive(Debug, Default)]
pub(crate) struct QueueNews {
    /// Connections that ever entered the queue.
    pub(crate) arrived: AtomicU64,
    /// Connections in the queue.
    pub(crate) waiting: AtomicUsize,
    /// Whether the listener was closed.
    pub(crate) closed: AtomicBool,
    /// Notified when a connection enters, or the listener or the stack goes away.
    pub(crate) event: EventCount,
}

impl AcceptQueue {
    /// Adds a connection. The caller notifies waiting threads after it has released the table.
    fn push(&mut self, ready: Ready) -> Arc<QueueNews> {
        self.ready.push_back(ready);
        // ORDERING: Relaxed: the notification's fence makes it visible to the woken threads.
        self.news.arrived.fetch_add(1, Ordering::Relaxed);
        self.news.waiting.store(self.ready.len(), Ordering::Relaxed);
        Arc::clone(&self.news)
    }

    /// Takes the next connection to accept.
    pub(crate) fn pop(&mut self) -> Option<Ready> {
        let ready = self.ready.pop_front();
        self.news.waiting.store(self.ready.len(), Ordering::Relaxed);
        ready
    }
}

/// A connection that waits to be accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    /// The group that opened it.
    pub(crate) group: u16,
    pub(crate) conn: ConnId,
    pub(crate) flow: Flow,
}

/// Connections of one group that wait for earlier ones.
#[derive(Debug)]
pub(crate) struct Arrivals<T = Ready> {
    /// The number of the next connection.
    next: u64,
    /// Connections that arrived before an earlier one, by number.
    early: VecDeque<(u64, T)>,
}

impl<T> Default for Arrivals<T> {
    fn default() -> Self {
        Arrivals {
            next: 0,
            early: VecDeque::new(),
        }
    }
}

impl<T> Arrivals<T> {
    fn add(&mut self, number: u64, connection: T) {
        let at = self.early.partition_point(|(other, _)| *other <= number);
        self.early.insert(at, (number, connection));
    }

    /// The next connection, if it has arrived. One that was skipped as missing is next as soon as
    /// it arrives.
    fn pop(&mut self) -> Option<T> {
        let (number, _) = self.early.front()?;
        if *number > self.next {
            return None;
        }
        self.next = self.next.max(number + 1);
        self.early.pop_front().map(|(_, connection)| connection)
    }

    /// Stops waiting for missing connections.
    fn skip(&mut self) {
        if let Some((last, _)) = self.early.back() {
            self.next = self.next.max(*last);
        }
    }
}

impl World {
    /// Hands over connection `number` of its group, which a listening port established: it
    /// enters the queue of its port after all earlier ones. If the port has no listener, the
    /// connection is aborted.
    pub(crate) fn established(&self, number: u64, ready: Ready) {
        self.hand_over(|arrivals| arrivals.add(number, ready));
    }

    /// A SYN is held for the listener of `port`.
    pub(crate) fn arrives(&self, port: u16, id: u64, flow: Flow) {
        let mut table = self.socket_table();
        let Some(queue) = table.arriving.get_mut(&port) else {
            return;
        };
        queue.syns.push_back((self.group, id, flow));
        queue.news.arrived.fetch_add(1, Ordering::Relaxed);
        queue.count();
        let news = Arc::clone(&queue.news);
        drop(table);
        self.shared.socket_table_changed.notify_all();
        news.event.notify_all();
    }

    /// These SYNs are held no longer.
    pub(crate) fn arrives_no_more(&self, port: u16, ids: &BTreeSet<u64>) {
        let mut table = self.socket_table();
        if let Some(queue) = table.arriving.get_mut(&port) {
            let group = self.group;
            queue
                .syns
                .retain(|(of, id, _)| *of != group || !ids.contains(id));
            queue.count();
        }
    }

    /// Hands over all connections that wait for missing ones: a diverged worker may have performed
    /// wrong effects, or omitted some.
    #[cold]
    pub(crate) fn skip_missing_connections(&self) {
        self.hand_over(Arrivals::skip);
    }

    fn hand_over(&self, change: impl FnOnce(&mut Arrivals)) {
        let (mut news, mut homeless) = (Vec::new(), Vec::new());
        let mut table = self.socket_table();
        let SocketTable {
            arrivals,
            listeners,
            ..
        } = &mut *table;
        let arrivals = arrivals.entry(self.group).or_default();
        change(arrivals);
        while let Some(ready) = arrivals.pop() {
            match listeners.of(ready.flow.local) {
                Some(queue) => news.push(queue.push(ready)),
                None => homeless.push(ready.conn),
            }
        }
        drop(table);
        if !news.is_empty() {
            self.shared.socket_table_changed.notify_all();
        }
        for news in news {
            news.event.notify_all();
        }
        for conn in homeless {
            self.abandon(conn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_come_in_the_order_of_their_numbers() {
        let mut arrivals = Arrivals::default();
        let mut order = Vec::new();
        for number in [2, 1, 0, 3, 6, 5] {
            arrivals.add(number, number);
            order.extend(core::iter::from_fn(|| arrivals.pop()));
            assert!(number != 1 || order.is_empty(), "one came before its turn");
        }
        assert_eq!(order, [0, 1, 2, 3]);
        // Number 4 is lost; all later ones come at once.
        arrivals.skip();
        order.extend(core::iter::from_fn(|| arrivals.pop()));
        assert_eq!(order, [0, 1, 2, 3, 5, 6]);
        for number in [4, 7] {
            arrivals.add(number, number);
            assert_eq!((arrivals.pop(), arrivals.pop()), (Some(number), None));
        }
    }
}
