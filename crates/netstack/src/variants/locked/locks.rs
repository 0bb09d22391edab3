//! The locks around a connection's state, and the time spent waiting for each.

use crossbeam_utils::CachePadded;

use super::State;
use super::lock::{Lock, LockKind, timed};
use crate::stats::LockStats;

/// How many locks guard the state: TCP-1, TCP-2 and TCP-6 of Nahum, Yates, Kurose and Towsley,
/// section 5.1.
///
/// In each of them one lock guards the whole state. The other locks are taken around the same
/// phases and in the same order as in the paper, so that they cost as much and exclude as much as
/// they did there.
///
/// | | segments and datagrams that arrive | everything else | checksums and frames |
/// |---|---|---|---|
/// | `One` | *state* | *state* | without a lock |
/// | `Two` | receive, *send* | *send* | without a lock |
/// | `Six` | receive window, reassembly, *send window*, retransmission | *send window*, retransmission | header remove; header prepend |
///
/// The lock in italics contains the state. A segment takes the locks of both sides, since its
/// acknowledgment changes what may be sent; header prediction in the paper did so, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Granularity {
    /// TCP-1: one lock.
    #[default]
    One,
    /// TCP-2: one for receiving, one for sending.
    Two,
    /// TCP-6: one each for reassembly, retransmission, both windows, and both header operations.
    Six {
        /// Whether checksums are verified under the lock for removing headers, and frames copied
        /// and summed under the lock for prepending them, as in the paper. Otherwise each of the
        /// two locks is taken and released before that work.
        checksums_inside: bool,
    },
}

/// A lock of `locked`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockName {
    /// The only lock of [`Granularity::One`].
    State,
    /// Send side of [`Granularity::Two`].
    Send,
    /// Receive side of [`Granularity::Two`].
    Receive,
    /// The receive window; like the following, a lock of [`Granularity::Six`].
    ReceiveWindow,
    /// The reassembly queue.
    Reassembly,
    /// The send window.
    SendWindow,
    /// The retransmission buffer.
    Retransmission,
    /// Removing headers.
    HeaderRemove,
    /// Prepending headers.
    HeaderPrepend,
    /// The reference counts, with [`References::Locked`](super::References::Locked).
    References,
    /// The message memory, with [`Messages::Shared`](super::Messages::Shared).
    Messages,
    /// The application's counter.
    Application,
}

impl LockName {
    /// All of them.
    pub const ALL: [LockName; 12] = [
        LockName::State,
        LockName::Send,
        LockName::Receive,
        LockName::ReceiveWindow,
        LockName::Reassembly,
        LockName::SendWindow,
        LockName::Retransmission,
        LockName::HeaderRemove,
        LockName::HeaderPrepend,
        LockName::References,
        LockName::Messages,
        LockName::Application,
    ];

    /// The name used in reports.
    pub const fn name(self) -> &'static str {
        match self {
            LockName::State => "state",
            LockName::Send => "send",
            LockName::Receive => "receive",
            LockName::ReceiveWindow => "receive window",
            LockName::Reassembly => "reassembly",
            LockName::SendWindow => "send window",
            LockName::Retransmission => "retransmission",
            LockName::HeaderRemove => "header remove",
            LockName::HeaderPrepend => "header prepend",
            LockName::References => "references",
            LockName::Messages => "messages",
            LockName::Application => "application",
        }
    }
}

/// Acquisitions of each lock by one worker, and the time spent waiting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockTimes([LockStats; LockName::ALL.len()]);

impl LockTimes {
    /// The counts of one lock. Segments and misordering belong to no lock and are 0 here.
    pub fn of(&self, name: LockName) -> LockStats {
        self.0[name as usize]
    }

    /// The sum over all locks.
    pub(super) fn sum(&self) -> LockStats {
        let mut sum = LockStats::default();
        for stats in &self.0 {
            sum.acquisitions += stats.acquisitions;
            sum.contended += stats.contended;
            sum.waited_ns += stats.waited_ns;
        }
        sum
    }

    fn note(&mut self, name: LockName, waited: Option<u64>) {
        let stats = &mut self.0[name as usize];
        stats.acquisitions += 1;
        if let Some(waited) = waited {
            stats.contended += 1;
            stats.waited_ns += waited;
        }
    }
}

/// Calls `what` under a lock, and records the time spent waiting for it.
#[inline]
pub(super) fn hold<T, R>(
    lock: &impl Lock<T>,
    name: LockName,
    times: &mut LockTimes,
    what: impl FnOnce(&mut T, &mut LockTimes) -> R,
) -> R {
    let (result, waited) = timed(lock, |value| what(value, times));
    times.note(name, waited);
    result
}

/// A lock around a phase, with no value.
type Phase<K> = CachePadded<<K as LockKind>::Of<()>>;

/// The locks around the state.
pub(super) struct Locks<K: LockKind> {
    granularity: Granularity,
    state: CachePadded<K::Of<State>>,
    /// `Two`: the receive side; `Six`: the receive window.
    receive: Phase<K>,
    reassembly: Phase<K>,
    retransmission: Phase<K>,
    header_remove: Phase<K>,
    header_prepend: Phase<K>,
}

impl<K: LockKind> Locks<K> {
    pub(super) fn new(granularity: Granularity, state: State) -> Self {
        let phase = || CachePadded::new(K::Of::new(()));
        Locks {
            granularity,
            state: CachePadded::new(K::Of::new(state)),
            receive: phase(),
            reassembly: phase(),
            retransmission: phase(),
            header_remove: phase(),
            header_prepend: phase(),
        }
    }

    /// Reads the state: waits for its lock, and records nothing.
    pub(super) fn look<R>(&self, look: impl FnOnce(&mut State) -> R) -> R {
        self.state.with(look)
    }

    /// Calls `what` with the state under the locks that this change takes; `receives` if it applies
    /// frames that arrived.
    #[inline]
    pub(super) fn with<R>(
        &self,
        receives: bool,
        times: &mut LockTimes,
        what: impl FnOnce(&mut State) -> R,
    ) -> R {
        use LockName::{Reassembly, Receive, ReceiveWindow, Retransmission, SendWindow};
        let state = &*self.state;
        match self.granularity {
            Granularity::One => hold(state, LockName::State, times, |state, _| what(state)),
            Granularity::Two if receives => hold(&*self.receive, Receive, times, |(), times| {
                hold(state, LockName::Send, times, |state, _| what(state))
            }),
            Granularity::Two => hold(state, LockName::Send, times, |state, _| what(state)),
            Granularity::Six { .. } => {
                let sending = |times: &mut LockTimes| {
                    hold(state, SendWindow, times, |state, times| {
                        hold(&*self.retransmission, Retransmission, times, |(), _| {
                            what(state)
                        })
                    })
                };
                if !receives {
                    return sending(times);
                }
                hold(&*self.receive, ReceiveWindow, times, |(), times| {
                    hold(&*self.reassembly, Reassembly, times, |(), times| {
                        sending(times)
                    })
                })
            }
        }
    }

    /// Removes headers under their lock; verifies checksums in `what`, under the lock or after it.
    #[inline]
    pub(super) fn remove_header<R>(&self, times: &mut LockTimes, what: impl FnOnce() -> R) -> R {
        self.header(&self.header_remove, LockName::HeaderRemove, times, what)
    }

    /// Prepends headers under their lock; computes checksums in `what`, under the lock or after it.
    #[inline]
    pub(super) fn prepend_header<R>(&self, times: &mut LockTimes, what: impl FnOnce() -> R) -> R {
        self.header(&self.header_prepend, LockName::HeaderPrepend, times, what)
    }

    #[inline]
    fn header<R>(
        &self,
        lock: &Phase<K>,
        name: LockName,
        times: &mut LockTimes,
        what: impl FnOnce() -> R,
    ) -> R {
        match self.granularity {
            Granularity::Six {
                checksums_inside: true,
            } => hold(&**lock, name, times, |(), _| what()),
            Granularity::Six { .. } => {
                hold(&**lock, name, times, |(), _| ());
                what()
            }
            _ => what(),
        }
    }

    /// Whether building frames takes a lock.
    pub(super) const fn has_header_locks(&self) -> bool {
        matches!(self.granularity, Granularity::Six { .. })
    }
}
