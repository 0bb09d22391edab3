//! Idle connections give memory back.
//!
//! What a connection has carried leaves pages of its receive ring, its send ring and its delivery
//! slots in memory. The pump returns them to the system when the connection has been idle for
//! [`LOOK_EVERY`] to three times that; a page that is used again is a new one.
//!
//! # How an idle connection is found
//! Nothing is counted or stamped for a segment. The pump looks at each connection every
//! [`LOOK_EVERY`]:
//!
//! 1. The application's cursors have moved since the last look: there will be another look.
//! 2. They have not: the pump *watches* the connection. It counts the table of hints as changed, so
//!    for the next run of each flow the hint is looked up again ([`RxPump::hint_of`]); the run of a
//!    watched connection ends its watch.
//! 3. It is still watched, and all that was published before the watch is performed: its memory is
//!    given back, and no further look is due. The run that ends the watch asks for the next one.
//!
//! A connection with unread or unreleased bytes is looked at [`ATTEMPTS`] times, and then left
//! alone until a run ends its watch or, with unread bytes, until its application reads
//! ([`StreamRef::ask_for_read`](crate::io::stream::StreamRef::ask_for_read)). So a stack sleeps
//! without end if no connection has anything to give back.
//!
//! # Why no byte is lost
//! - *Primaries.* What stores into the receive ring, or stamps, belongs to a run of the connection:
//!   the worker that stores a payload ahead has begun the verdict of a request that is not
//!   performed, and that which delivers has begun a unit of it. A run that was published before the
//!   watch is performed, so neither goes on, not even on a thread that is held up: this is the rule
//!   by which the place of a closed connection is used again ([`RxPump::reap`]). A run that was
//!   published since would have ended the watch, and the pump, which publishes them, is here.
//! - *The reader.* All that was stored is read: stamped bytes lie below `app_read`, and so does
//!   every byte that was stored behind a gap (`gap_end`). So no slice is lent, no unit is opened or
//!   processed in place, and no part of a unit waits for its rest. A reader may look at the slots
//!   at any time. It finds a stamp or none; `unstamped` says which of those that are gone were
//!   there.
//! - *Frames.* All that was written is released. `Effect::Release` follows the departure of every
//!   frame that was numbered before, so none that reads the ring, or that lies there for a device,
//!   is left. Later frames carry later bytes.
//! - *The writer.* One compare-and-swap begins each write, and each giving back (`send_user`). A
//!   writer that reserved a range has begun until it commits or drops it. A stream of units, in
//!   which workers write ahead, has begun for good: its send ring stays.
//! - *Closing.* A closed connection is in no table of hints, so it is not checked. When its entry
//!   is recycled, its pages are given back if it has carried much
//!   ([`Streams::recycle`](crate::io::stream::Streams)); a few stay for the next connection with
//!   its stream.
//!
//! The state of replicas, and thus the log and a recording of it, does not depend on any of this.

#[cfg(feature = "testkit")]
use core::sync::atomic::Ordering;
use std::collections::{HashMap, VecDeque};

use super::{Log, RxPump};
use crate::log::request::{ConnId, Flow};
use crate::time::{Duration, Instant};

/// How long after one look at a connection the next one is due.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Looks at a watched connection that has bytes which are not read or not released.
const ATTEMPTS: u8 = 4;
/// Connections that are looked at in one turn of the pump, so that it is not held for long: to give
/// memory back takes some microseconds.
pub(super) const LOOKS: usize = 8;
/// No such position.
const UNWATCHED: u64 = u64::MAX;

/// What the pump knows of the connection of a flow.
#[derive(Clone, Copy)]
pub(super) struct Hint {
    pub(super) conn: ConnId,
    /// Number of the look that is due; 0: none.
    look: u32,
    /// The position before which the connection's last run was published, if it is watched.
    watched: u64,
}

/// A look at a connection.
struct Look {
    due: Instant,
    number: u32,
    flow: Flow,
    /// The application's cursors at the last look.
    cursors: (u64, u64),
    /// Looks at which something was in the way.
    attempts: u8,
}

/// The looks that are due at connections.
#[derive(Default)]
pub(super) struct IdleLooks {
    /// In the order in which they are due.
    looks: VecDeque<Look>,
    /// The number of the last one.
    last: u32,
    /// Connections that are left alone until their application reads, and what was known of their
    /// window.
    unread: HashMap<ConnId, (Flow, u64)>,
}

impl IdleLooks {
    /// Asks for a look at the connection of `flow`. Returns its number.
    fn ask(&mut self, now: Instant, flow: Flow, cursors: (u64, u64), attempts: u8) -> u32 {
        // Not 0.
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

    /// The connection is gone.
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

    /// Whether the table of hints has `conn` as the connection of `flow`.
    pub(super) fn has_hint(&self, flow: &Flow, conn: ConnId) -> bool {
        self.connections
            .hints
            .get(flow)
            .is_some_and(|hint| hint.conn == conn)
    }

    /// The connection of a flow, as far as it is known. A run of it will be published.
    pub(super) fn hint_of(&mut self, now: Instant, flow: &Flow) -> ConnId {
        let Some(hint) = self.connections.hints.get(flow) else {
            return ConnId::NONE;
        };
        let conn = hint.conn;
        if hint.watched != UNWATCHED {
            self.end_watch(now, flow);
        }
        conn
    }

    #[cold]
    fn end_watch(&mut self, now: Instant, flow: &Flow) {
        let Some(hint) = self.connections.hints.get_mut(flow) else {
            return;
        };
        hint.watched = UNWATCHED;
        if hint.look == 0 {
            self.connections.idle.forget(hint.conn);
            hint.look = self.connections.idle.ask(now, *flow, (0, 0), 0);
        }
    }

    /// The application of `conn` may have read what was in the way of giving memory back.
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

    /// Looks at connections, as far as that is due. Returns whether more are due than are looked at
    /// in a turn, as 1; what was looked at counts as nothing that was done.
    #[cold]
    pub(super) fn look_at_idle(&mut self, now: Instant, log: &impl Log) -> usize {
        for _ in 0..LOOKS {
            let Some(look) = self.connections.idle.next(now) else {
                return 0;
            };
            self.look_at(now, look, log);
        }
        usize::from(self.connections.idle.is_due(now))
    }

    #[cold]
    fn look_at(&mut self, now: Instant, look: Look, log: &impl Log) {
        let flow = look.flow;
        let hint = self.connections.hints.get_mut(&flow);
        let Some(hint) = hint.filter(|hint| hint.look == look.number) else {
            // The connection is gone, or another look is due.
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
            hint.watched = log.published();
            self.connections.hints_version += 1;
        } else {
            // Of a worker that has left solo mode positions are counted anew; all that it published
            // there is performed.
            let position = hint.watched.min(log.published());
            if log.performed() >= position {
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
}
