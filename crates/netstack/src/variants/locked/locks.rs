//! How many locks stand around a connection's state, and what each was waited for.

use crossbeam_utils::CachePadded;

use super::State;
use super::lock::{Lock, LockKind, timed};
use crate::stats::LockStats;

/// How many locks stand around the state: TCP-1, TCP-2 and TCP-6 of Nahum, Yates, Kurose and
/// Towsley, section 5.1.
///
/// There is one state, which one lock guards by itself in each of them; the others are taken around
/// the same phases, in the order of the paper, so that they cost and exclude what they did there.
///
/// | | segments and datagrams that arrive | everything else | checksums and frames |
/// |---|---|---|---|
/// | `One` | *state* | *state* | without a lock |
/// | `Two` | receive, *send* | *send* | without a lock |
/// | `Six` | receive window, reassembly, *send window*, retransmission | *send window*, retransmission | header remove; header prepend |
///
/// The lock in italics has the state in it. A segment takes the locks of both sides, as its
/// acknowledgment changes what may be sent: in the paper header prediction did so, too.
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
        /// and summed under the one for prepending them, as in the paper. Otherwise each of the two
        /// is taken and released before that.
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
    /// Of [`Granularity::Six`], as the following.
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
    /// Of reference counts, if they have locks.
    References,
    /// Of message memory, if workers share it.
    Messages,
    /// Of the application's counter.
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

    /// As in reports.
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

/// What a worker met at each lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockTimes([LockStats; LockName::ALL.len()]);

impl LockTimes {
    /// Of one lock. Segments and misordering are counted at none in particular.
    pub fn of(&self, name: LockName) -> LockStats {
        self.0[name as usize]
    }

    /// Of all together.
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

/// Does `what` under a lock, and notes what was waited for it.
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

/// A lock that guards a phase.
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

    /// Looks at the state; waits for it, and notes nothing.
    pub(super) fn look<R>(&self, look: impl FnOnce(&mut State) -> R) -> R {
        self.state.with(look)
    }

    /// Changes the state under the locks that this takes; `receives` says whether something
    /// arrived.
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

    /// Removes headers, and verifies checksums meanwhile or behind it.
    #[inline]
    pub(super) fn remove_header<R>(&self, times: &mut LockTimes, what: impl FnOnce() -> R) -> R {
        self.header(&self.header_remove, LockName::HeaderRemove, times, what)
    }

    /// Prepends headers, and computes checksums meanwhile or behind it.
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

    /// Whether frames are built under a lock.
    pub(super) const fn has_header_locks(&self) -> bool {
        matches!(self.granularity, Granularity::Six { .. })
    }
}
