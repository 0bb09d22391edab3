//! Shows a running stack: the work of each of its threads, and its connections.
//!
//! Each thread posts its counts from time to time, and any thread may read them. Connections are
//! listed only on request, by a thread that has the state, between two of its turns.

use core::sync::atomic::{AtomicBool, Ordering};
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
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

/// The list of connections, and the request for it.
#[derive(Debug, Default)]
pub(crate) struct View {
    asked: AtomicBool,
    list: Mutex<List>,
    listed: Condvar,
}

#[derive(Debug, Default)]
struct List {
    /// The maximum number of connections to list.
    most: usize,
    /// The only connection wanted, if the request names one.
    only: Option<ConnId>,
    /// How many lists were made so far.
    lists: u64,
    connections: Vec<ConnectionStats>,
}

impl View {
    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a thread waits for a list.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        // ORDERING: Relaxed, only a request; the list itself goes through the lock.
        self.asked.load(Ordering::Relaxed)
    }

    /// Lists connections if a list was asked for, unless another thread has the lock.
    #[cold]
    pub(crate) fn answer(&self, replica: &ReplicaState) {
        let Ok(mut list) = self.list.try_lock() else {
            return;
        };
        // ORDERING: Relaxed, as in `is_asked`.
        if !self.asked.swap(false, Ordering::Relaxed) {
            return;
        }
        let only = list.only;
        let wanted = move |conn: ConnId| only.is_none_or(|only| only == conn);
        let connections = replica.connections().filter(|(conn, _)| wanted(*conn));
        let connections = connections.take(list.most);
        list.connections = connections
            .map(|(conn, tcb)| ConnectionStats::of(conn, tcb))
            .collect();
        list.lists += 1;
        drop(list);
        self.listed.notify_all();
    }

    /// Asks for a list of at most `most` connections, or only of connection `only`, and calls
    /// `ring` to wake a thread that makes it. Waits up to `patience`, and then returns the previous
    /// list.
    pub(crate) fn ask(
        &self,
        most: usize,
        only: Option<ConnId>,
        ring: impl FnOnce(),
        patience: time::Duration,
    ) -> Vec<ConnectionStats> {
        let mut list = self.list();
        (list.most, list.only) = (most, only);
        let before = list.lists;
        // ORDERING: Relaxed; `ring` has a fence, and so has a thread that goes to sleep.
        self.asked.store(true, Ordering::Relaxed);
        drop(list);
        ring();
        let is_old = |list: &mut List| list.lists == before;
        let list = self
            .listed
            .wait_timeout_while(self.list(), patience, is_old)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
        list.connections.clone()
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
