//! What the pump learns back: which connections begin, end, and are idle.
//!
//! Workers that perform effects report each connection that begins or ends (a
//! [`HintUpdate`](crate::io::world::HintUpdate)), and each that is over. From these the pump has a
//! table of connections by flow, for the hints of runs, and a queue of those whose places it frees.
//!
//! # Memory of idle connections
//! Traffic leaves pages of a connection's receive ring, send ring and delivery slots in memory. The
//! pump returns them when the connection has been idle for one to three times [`LOOK_EVERY`]. The
//! system supplies new pages if the connection is used again.
//!
//! ## How an idle connection is found
//! The fast path counts and records nothing for this. The pump looks at each connection every
//! [`LOOK_EVERY`]:
//!
//! 1. If the application's cursors have moved since the last look, there will be another look.
//! 2. If not, the pump *watches* the connection. It counts the table of hints as changed, so that
//!    the next run of every flow looks up its hint again ([`RxPump::hint_of`]). That look-up ends
//!    the watch of a watched connection.
//! 3. If the connection is still watched, and every request published before the watch is
//!    performed, the pump returns its memory. No further look is due until a run ends the watch.
//!
//! If bytes are unread or unreleased, the pump tries [`ATTEMPTS`] times. Then it waits until a run
//! ends the watch or, if bytes are unread, until the application reads
//! ([`StreamRef::ask_for_read`](crate::io::stream::StreamRef::ask_for_read)). So a stack can sleep
//! indefinitely if no connection has memory to return.
//!
//! ## Why no byte is lost
//! - *Primaries.* Only work on a run of the connection stores into the receive ring, or stamps: a
//!   worker that stores payload ahead has begun the verdict of a request that is not performed, or is
//!   the pump and publishes the request in the same turn, and a worker that delivers has begun its batch. Every run published before the watch is
//!   performed, so no such work is under way, not even on a thread that has lost its core.
//!   [`RxPump::reap`] relies on the same rule to reuse the place of a closed connection. A run
//!   published later would have ended the watch, and only the pump, which runs this, publishes.
//! - *The reader.* All stored bytes are read: stamped bytes are below `app_read`, and so is every
//!   byte that was stored after a gap (`gap_end`). So no slice is lent, no unit is opened, and
//!   no partial unit waits for its rest. A reader may look at the slots at any time. It finds a
//!   stamp or none, and reads from `unstamped` which stamps were lost when the slots were returned.
//! - *Frames.* All written bytes are released. `Effect::Release` comes after the departure of every
//!   frame that was numbered before it, so no frame or device reads the ring. Later frames carry
//!   later bytes.
//! - *The writer.* A compare-and-swap on `send_user` begins each write, and each return of the send
//!   ring's memory. A writer that reserved a range holds `send_user` until it commits or drops the
//!   range. A stream of units, into which workers write ahead, holds it for good: its send ring
//!   stays.
//! - *Closing.* A closed connection is not in the table of hints, so it is never checked. When its
//!   place is recycled, the pages of its stream are returned if it has carried much
//!   ([`Streams::recycle`](crate::io::stream::Streams)); a few stay for the next connection that
//!   gets the stream.
//!
//! The state of replicas, and thus the log and a recording of it, does not depend on any of this.

#[cfg(feature = "testkit")]
use core::sync::atomic::Ordering;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use super::addresses::Rerouting;
use super::held::HeldSyns;
use super::paths::Paths;
use super::unanswered::Unanswered;
use super::{Log, RxPump};
use crate::ip::neighbor::WaitingOpen;
use crate::log::request::{Body, ConnId, Flow};
use crate::packet::flow::Mac;
use crate::time::{Duration, Instant};

/// Time between two looks at a connection.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Maximum number of looks at a watched connection with unread or unreleased bytes.
const ATTEMPTS: u8 = 4;
/// Maximum number of looks in one turn of the pump. Returning memory takes some microseconds, so
/// more would hold up the pump.
pub(super) const LOOKS: usize = 8;
/// The value of `Hint::watched` for a connection that is not watched.
const UNWATCHED: u64 = u64::MAX;

/// The receive pump's connections: a table by flow, and queues of connections that begin, wait or
/// end.
#[derive(Default)]
pub(super) struct Connections {
    /// The connection of each flow. A hint: replicas ignore one of an earlier generation, and look
    /// in their own tables.
    pub(super) hints: HashMap<Flow, Hint>,
    /// How often `hints` or `over` changed.
    pub(super) hints_version: u64,
    /// SYNs that wait until the application decides.
    pub(super) held: HeldSyns,
    pub(super) idle: IdleLooks,
    /// Connections whose end was reported before their start.
    pub(super) over: HashSet<ConnId>,
    /// Active opens that wait for room in the log, with the link-layer address of their next hop.
    pub(super) opens: VecDeque<(WaitingOpen, Mac)>,
    /// Active opens that wait until an IPv6 address of ours is no longer tentative, or for a lease.
    pub(super) sourceless: VecDeque<WaitingOpen>,
    /// Segments without a connection that wait for the next hops of their answers.
    pub(super) unanswered: Unanswered,
    /// Connections whose next hop changes.
    pub(super) rerouting: Rerouting,
    /// Connections whose path MTU must be published.
    pub(super) paths: Paths,
    /// Connections of addresses that we lost, whose end must be published.
    pub(super) lost: BTreeSet<ConnId>,
    /// Closed connections. Each can be freed when the effects up to a position are performed, and
    /// the frames below a number are sent.
    pub(super) closing: VecDeque<(u64, u64, ConnId)>,
    /// Closed connections whose socket still exists.
    pub(super) lingering: HashSet<ConnId>,
    /// Whether the next notification comes from the mailbox's `overflow`, if that has any.
    pub(super) overflow_first: bool,
}

/// The connection of a flow, as far as the pump knows, and its next look.
#[derive(Clone, Copy)]
pub(super) struct Hint {
    pub(super) conn: ConnId,
    /// Number of the look that is due, or 0.
    look: u32,
    /// The position at which the watch began, or `UNWATCHED`. The connection's last run was
    /// published before it.
    watched: u64,
}

impl Hint {
    /// Whether the connection is watched.
    #[inline]
    pub(super) fn is_watched(&self) -> bool {
        self.watched != UNWATCHED
    }
}

/// A look at a connection.
struct Look {
    due: Instant,
    number: u32,
    flow: Flow,
    /// The application's cursors at the last look.
    cursors: (u64, u64),
    /// Looks that found unread or unreleased bytes.
    attempts: u8,
}

/// The pending looks at connections.
#[derive(Default)]
pub(super) struct IdleLooks {
    /// The looks, in the order in which they are due.
    looks: VecDeque<Look>,
    /// The number of the last look.
    last: u32,
    /// Connections that wait until their application reads. For each, the edge of its window, which
    /// [`ask_for_read`](crate::io::stream::StreamRef::ask_for_read) returned.
    unread: HashMap<ConnId, (Flow, u64)>,
}

impl IdleLooks {
    /// Schedules a look at the connection of `flow`. Returns its number.
    fn ask(&mut self, now: Instant, flow: Flow, cursors: (u64, u64), attempts: u8) -> u32 {
        // 0 means that no look is due.
        self.last = self.last.checked_add(1).unwrap_or(1);
        self.looks.push_back(Look {
            due: now + LOOK_EVERY,
            number: self.last,
            flow,
            cursors,
            attempts,
        });
        self.last
    }

    /// When the next look is due.
    pub(super) fn next_deadline(&self) -> Instant {
        self.looks.front().map_or(Instant::NEVER, |look| look.due)
    }

    /// Whether a look is due.
    #[inline]
    pub(super) fn is_due(&self, now: Instant) -> bool {
        let due = self.next_deadline();
        due <= now && due != Instant::NEVER
    }

    /// The next look, if it is due.
    fn next(&mut self, now: Instant) -> Option<Look> {
        if !self.is_due(now) {
            return None;
        }
        let look = self.looks.pop_front();
        if self.looks.is_empty() {
            self.looks.shrink_to(64);
        }
        look
    }

    /// Removes a connection.
    pub(super) fn forget(&mut self, conn: ConnId) {
        self.unread.remove(&conn);
    }
}

impl RxPump {
    /// Adds the connection of a flow to the table of hints. The caller counts the table as changed.
    pub(super) fn add_hint(&mut self, now: Instant, flow: Flow, conn: ConnId) {
        let hint = Hint {
            conn,
            look: self.connections.idle.ask(now, flow, (0, 0), 0),
            watched: UNWATCHED,
        };
        self.connections.hints.insert(flow, hint);
    }

    /// Ends the watch of a connection whose hint is looked up.
    #[cold]
    pub(super) fn end_watch(&mut self, now: Instant, flow: &Flow) {
        let Some(hint) = self.connections.hints.get_mut(flow) else {
            return;
        };
        hint.watched = UNWATCHED;
        if hint.look == 0 {
            self.connections.idle.forget(hint.conn);
            hint.look = self.connections.idle.ask(now, *flow, (0, 0), 0);
        }
    }

    /// The application of `conn` may have read: if that was awaited, schedules another look.
    #[inline]
    pub(super) fn after_reading(&mut self, now: Instant, conn: ConnId) {
        if !self.connections.idle.unread.is_empty() {
            self.look_after_reading(now, conn);
        }
    }

    #[cold]
    fn look_after_reading(&mut self, now: Instant, conn: ConnId) {
        let Some((flow, advertised)) = self.connections.idle.unread.remove(&conn) else {
            return;
        };
        if let Some(stream) = self.world.streams.get(conn) {
            stream.advertised(advertised, 0);
        }
        let hint = self.connections.hints.get_mut(&flow);
        if let Some(hint) = hint.filter(|hint| hint.conn == conn && hint.look == 0) {
            hint.look = self.connections.idle.ask(now, flow, (0, 0), 0);
        }
    }

    /// Takes up to [`LOOKS`] due looks. When the turn began, all was performed below the position
    /// `performed`. Returns 1 if more are due, 0 otherwise; looks do not count
    /// as work.
    #[cold]
    pub(super) fn look_at_idle(&mut self, now: Instant, performed: u64, log: &impl Log) -> usize {
        for _ in 0..LOOKS {
            let Some(look) = self.connections.idle.next(now) else {
                return 0;
            };
            self.look_at(now, performed, look, log);
        }
        usize::from(self.connections.idle.is_due(now))
    }

    #[cold]
    fn look_at(&mut self, now: Instant, performed: u64, look: Look, log: &impl Log) {
        let flow = look.flow;
        let hint = self.connections.hints.get_mut(&flow);
        let Some(hint) = hint.filter(|hint| hint.look == look.number) else {
            // The connection is gone, or another look replaced this one.
            return;
        };
        hint.look = 0;
        let Some(stream) = self.world.streams.get(hint.conn) else {
            return;
        };
        let cursors = stream.cursors();
        let mut attempts = look.attempts;
        if cursors != look.cursors {
            attempts = 0;
        } else if hint.watched == UNWATCHED {
            hint.watched = log.end();
            self.connections.hints_version += 1;
        } else {
            // When a worker leaves solo mode, positions start again from a lower value; every
            // request of solo mode is performed.
            let position = hint.watched.min(log.end());
            if performed >= position {
                #[cfg(feature = "testkit")]
                if self.world.loses_unread.load(Ordering::Relaxed) {
                    stream.lose_received();
                }
                let [received, sent] = [stream.give_back_received(), stream.give_back_sent()];
                if received && sent {
                    self.stats.given_back += 1;
                    return;
                }
                attempts += 1;
                if attempts > ATTEMPTS {
                    if !received {
                        let advertised = stream.ask_for_read();
                        self.connections
                            .idle
                            .unread
                            .insert(hint.conn, (flow, advertised));
                    }
                    return;
                }
            }
        }
        hint.look = self.connections.idle.ask(now, flow, cursors, attempts);
    }

    /// Takes the primaries' reports of connections that begin and end.
    pub(super) fn take_hints(&mut self, now: Instant) {
        while !self.world.hints.is_empty()
            && let Some(update) = self.world.hints.pop()
        {
            // Two primaries may report the start and the end of a connection in either order.
            if update.open {
                if !self.connections.over.remove(&update.conn) {
                    self.connection_begins(now, update.flow, update.conn);
                }
            } else if self.has_hint(&update.flow, update.conn) {
                self.connection_ends(&update.flow);
            } else {
                self.connections.over.insert(update.conn);
            }
            self.connections.hints_version += 1;
        }
    }

    /// Whether the table of hints has `conn` as the connection of `flow`.
    pub(super) fn has_hint(&self, flow: &Flow, conn: ConnId) -> bool {
        self.connections
            .hints
            .get(flow)
            .is_some_and(|hint| hint.conn == conn)
    }

    /// The connection of a flow, or `ConnId::NONE`. Ends a watch, so the caller must publish a run
    /// of the flow.
    pub(super) fn hint_of(&mut self, now: Instant, flow: &Flow) -> ConnId {
        let Some(hint) = self.connections.hints.get(flow) else {
            return ConnId::NONE;
        };
        let conn = hint.conn;
        if hint.is_watched() {
            self.end_watch(now, flow);
        }
        conn
    }

    /// Takes the primaries' reports of closed connections.
    pub(super) fn take_retired(&mut self, log: &mut impl Log) {
        while !self.world.retired.is_empty()
            && let Some((conn, frames)) = self.world.retired.pop()
        {
            // A replica that is wrong may name any frame. No number is beyond the credit.
            let credit = self.world.tx.sent() + u64::from(self.world.limits.tx_slots);
            let closing = (log.end(), frames.min(credit), conn);
            self.connections.closing.push_back(closing);
        }
    }

    /// Frees the places of closed connections whose work, below the position `performed`, is done
    /// and whose sockets are gone.
    pub(super) fn reap(&mut self, now: Instant, performed: u64, log: &mut impl Log) -> usize {
        let (mut done, mut discarded) = (0, 0);
        while let Some(&(position, frames, conn)) = self.connections.closing.front() {
            if position > performed || log.room() == 0 || discarded == LOOKS {
                break;
            }
            // Frames that wait for the device may have payload in the connection's send ring.
            if self.world.tx.sent() < frames {
                break;
            }
            self.connections.closing.pop_front();
            if let Some(stream) = self.world.streams.get(conn) {
                stream.all_sent();
                if stream.is_orphan() {
                    discarded += usize::from(self.free(now, conn, log));
                } else {
                    self.connections.lingering.insert(conn);
                }
            }
            done += 1;
        }
        done
    }

    /// Frees the place of a connection. Returns whether that returned memory to the system.
    pub(super) fn free(&mut self, now: Instant, conn: ConnId, log: &mut impl Log) -> bool {
        self.published.forget(conn);
        self.connections.over.remove(&conn);
        self.connections.idle.forget(conn);
        let is_discarded = self.world.streams.recycle(conn);
        self.publish_command(now, Body::Free { conn }, log);
        is_discarded
    }
}
