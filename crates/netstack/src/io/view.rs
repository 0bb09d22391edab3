//! Shows a running stack: the work of each of its threads, and its connections.
//!
//! Each thread posts its counts from time to time, and any thread may read them. Connections are
//! listed only on request, by a thread that has the state, between two of its turns.

use core::sync::atomic::{AtomicBool, Ordering};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, mpsc};
use std::time;

use dominoes::Meter;

use crate::log::request::ConnId;
use crate::state::apply::ReplicaState;
use crate::stats::WorkerStats;
use crate::tcp::{Info, State, Tcb};
use crate::time::Duration;

/// How long [`Stack::connections`](crate::Stack::connections) and
/// [`TcpStream::info`](crate::TcpStream::info) wait at most.
pub const LIST_TIMEOUT: time::Duration = time::Duration::from_millis(100);

/// The state of a connection at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionStats {
    /// Its name within its group.
    pub conn: ConnId,
    /// The local endpoint.
    pub local: SocketAddr,
    /// The remote endpoint.
    pub remote: SocketAddr,
    /// The state of the connection (RFC 9293 section 3.3.2).
    pub state: State,
    /// Bytes that arrived without a gap.
    pub received: u64,
    /// Bytes that the peer acknowledged.
    pub acknowledged: u64,
    /// Congestion window, bytes (RFC 5681 section 2).
    pub cwnd: u32,
    /// Smoothed round-trip time (RFC 6298 section 2); `None` before the first measurement.
    pub srtt: Option<time::Duration>,
    /// Further values.
    pub info: Info,
}

impl ConnectionStats {
    fn of(conn: ConnId, tcb: &Tcb) -> Self {
        let flow = tcb.flow();
        let srtt = tcb.srtt();
        ConnectionStats {
            conn,
            local: flow.local.into(),
            remote: flow.remote.into(),
            state: tcb.state(),
            received: tcb.received(),
            acknowledged: tcb.acknowledged(),
            cwnd: tcb.cwnd(),
            srtt: (srtt != Duration::ZERO).then(|| srtt.into()),
            info: tcb.info(),
        }
    }
}

/// The requests for lists of connections.
#[derive(Debug, Default)]
pub(crate) struct View {
    asked: AtomicBool,
    asks: Mutex<Asks>,
}

#[derive(Debug, Default)]
struct Asks {
    /// How many requests there were so far.
    count: u64,
    waiting: Vec<Ask>,
    /// The last list that was not of one connection only.
    latest: Vec<ConnectionStats>,
    /// How many requests the replica had applied that answered last.
    applied: u64,
}

/// The request of a thread that waits for its list.
#[derive(Debug)]
struct Ask {
    number: u64,
    /// The maximum number of connections to list.
    most: usize,
    /// The only connection wanted, if the request names one.
    only: Option<ConnId>,
    answer: mpsc::Sender<Vec<ConnectionStats>>,
}

/// Locks a mutex, even if a thread panicked while it held the lock; `None` if another thread holds
/// it.
pub(super) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl View {
    fn asks(&self) -> MutexGuard<'_, Asks> {
        self.asks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a thread waits for a list.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        // ORDERING: Relaxed, only a hint; the requests go through the lock.
        self.asked.load(Ordering::Relaxed)
    }

    /// Makes the lists that were asked for, unless another thread has the lock, or `replica` is
    /// behind one that has answered: it would show an earlier moment.
    #[cold]
    pub(crate) fn answer(&self, replica: &ReplicaState) {
        let Some(mut asks) = try_lock(&self.asks) else {
            return;
        };
        if replica.applied() < asks.applied {
            return;
        }
        asks.applied = replica.applied();
        // ORDERING: Relaxed, as in `is_asked`.
        self.asked.store(false, Ordering::Relaxed);
        for ask in core::mem::take(&mut asks.waiting) {
            let wanted = |conn: ConnId| ask.only.is_none_or(|only| only == conn);
            let connections = replica.connections().filter(|(conn, _)| wanted(*conn));
            let list: Vec<_> = connections
                .take(ask.most)
                .map(|(conn, tcb)| ConnectionStats::of(conn, tcb))
                .collect();
            if ask.only.is_none() {
                asks.latest.clone_from(&list);
            }
            // Fails if the thread no longer waits.
            let _ = ask.answer.send(list);
        }
    }

    /// At most `most` connections. Calls `ring` to wake a thread that lists them, and waits up to
    /// `patience`; then returns an older list.
    pub(crate) fn list(
        &self,
        most: usize,
        ring: impl FnOnce(),
        patience: time::Duration,
    ) -> Vec<ConnectionStats> {
        self.ask(most, None, ring, patience).unwrap_or_else(|| {
            let mut list = self.asks().latest.clone();
            list.truncate(most);
            list
        })
    }

    /// Connection `conn`, as [`View::list`] lists it now. `None` if there is none, or after
    /// `patience`.
    pub(crate) fn one(
        &self,
        conn: ConnId,
        ring: impl FnOnce(),
        patience: time::Duration,
    ) -> Option<ConnectionStats> {
        self.ask(1, Some(conn), ring, patience)?.pop()
    }

    fn ask(
        &self,
        most: usize,
        only: Option<ConnId>,
        ring: impl FnOnce(),
        patience: time::Duration,
    ) -> Option<Vec<ConnectionStats>> {
        let (answer, list) = mpsc::channel();
        let mut asks = self.asks();
        asks.count += 1;
        let number = asks.count;
        asks.waiting.push(Ask {
            number,
            most,
            only,
            answer,
        });
        // ORDERING: Relaxed; `ring` has a fence, and so has a thread that goes to sleep.
        self.asked.store(true, Ordering::Relaxed);
        drop(asks);
        ring();
        let list = list.recv_timeout(patience).ok();
        if list.is_none() {
            let mut asks = self.asks();
            asks.waiting.retain(|ask| ask.number != number);
            // The replica that was ahead may be gone.
            asks.applied = 0;
        }
        list
    }
}

/// Publishes a thread's counts to other threads.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    meter: Arc<Meter>,
    shown: WorkerStats,
}

impl Gauge {
    pub(crate) fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    pub(crate) fn show(&mut self, now: WorkerStats, lag: u64) {
        let before = core::mem::replace(&mut self.shown, now);
        let (done, had) = (now.effects, before.effects);
        self.meter.handled(now.applied - before.applied);
        self.meter.primary(done.requests - had.requests);
        self.meter.stole(done.stolen - had.stolen);
        self.meter.set_lag(lag);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Limits, Settings};
    use crate::io::setup::Setup;
    use crate::log::effect::Effect;
    use crate::log::request::{Body, Endpoint, GroupIndex, Mac, Request};
    use crate::packet::flow::Address;
    use crate::time::Instant;
    use dominoes_drivers::memory;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Barrier;
    use std::thread;

    const LONG: time::Duration = time::Duration::from_secs(600);

    /// A replica with `count` connections that are opening.
    fn replica(count: u16) -> ReplicaState {
        let mut replica = ReplicaState::new(Limits::default());
        let mut effects = Vec::<Effect>::new();
        let mut command = |body| {
            let request = Request::command(Instant::from_millis(1), 0, body);
            replica.apply(&request, 0, &mut effects);
        };
        command(Body::Configure {
            group: GroupIndex::ONLY,
            secret: [1, 2],
        });
        for port in 1..=count {
            command(Body::Open {
                request_id: port.into(),
                settings: Settings::default(),
                local: Endpoint::new(Address::ipv4(10, 0, 0, 1), port),
                remote: Endpoint::new(Address::ipv4(10, 0, 0, 2), 7),
                mac: Mac::default(),
            });
        }
        replica
    }

    #[test]
    fn each_of_several_threads_gets_the_connections_that_it_asked_for() {
        let (view, replica) = (View::default(), replica(3));
        let conns: Vec<ConnId> = replica.connections().map(|(conn, _)| conn).collect();
        let all_asked = Barrier::new(6);
        let ring = || {
            all_asked.wait();
        };
        thread::scope(|scope| {
            let lists = [1, 2, 10].map(|most| {
                let view = &view;
                scope.spawn(move || view.list(most, ring, LONG).len())
            });
            let ones = [0, 2].map(|i| {
                let (view, conn) = (&view, conns[i]);
                scope.spawn(move || view.one(conn, ring, LONG).map(|stats| stats.conn))
            });
            ring();
            view.answer(&replica);
            let lists = lists.map(|thread| thread.join().unwrap());
            let ones = ones.map(|thread| thread.join().unwrap());
            assert_eq!((lists, ones), ([1, 2, 3], [Some(conns[0]), Some(conns[2])]));
        });
    }

    #[test]
    fn a_replica_behind_one_that_answered_leaves_the_next_answer_to_others() {
        let (view, [ahead, behind]) = (View::default(), [3, 1].map(replica));
        let list = |ring: &dyn Fn(), patience| view.list(10, ring, patience).len();
        assert_eq!(list(&|| view.answer(&behind), LONG), 1);
        assert_eq!(list(&|| view.answer(&ahead), LONG), 3);
        let both = || [&behind, &ahead].map(|replica| view.answer(replica));
        assert_eq!(list(&|| _ = both(), LONG), 3);
        // The one that is ahead no longer answers.
        assert_eq!(list(&|| view.answer(&behind), time::Duration::ZERO), 3);
        assert_eq!(list(&|| view.answer(&behind), LONG), 1);
    }

    #[test]
    fn a_panic_under_a_lock_silences_neither_lists_nor_counters() {
        let (device, _) = memory::scripted();
        let setup = Setup::new([10, 0, 0, 1].into(), 24, [1, 2]);
        let world = setup.build(Box::new(device), 64, 1).unwrap().world;
        let dies = || world.post(|_| panic!("planted"));
        assert!(catch_unwind(AssertUnwindSafe(dies)).is_err());
        world.post(|posted| posted.pump.frames = 7);
        assert_eq!(world.stats().pump.frames, 7);

        let (view, replica) = (View::default(), replica(3));
        let dies = || {
            let _asks = view.asks();
            panic!("planted");
        };
        assert!(catch_unwind(AssertUnwindSafe(dies)).is_err());
        let answer = || view.answer(&replica);
        assert_eq!(view.list(10, answer, time::Duration::ZERO).len(), 3);
    }

    #[test]
    fn without_an_answer_there_is_an_older_list_but_no_older_connection() {
        let (view, replica) = (View::default(), replica(3));
        let conn = replica.connections().next().unwrap().0;
        let answer = || view.answer(&replica);
        assert_eq!(view.list(10, answer, LONG).len(), 3);
        assert!(view.one(conn, answer, LONG).is_some());
        let none = time::Duration::ZERO;
        assert_eq!(view.one(conn, || (), none), None);
        assert_eq!(view.list(10, || (), none).len(), 3);
        assert_eq!(view.list(2, || (), none).len(), 2);
        assert!(view.asks().waiting.is_empty());
    }
}
