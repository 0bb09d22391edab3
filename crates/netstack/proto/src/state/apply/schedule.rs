//! Handling of connections without a segment: at a deadline, or when there is room to send.

use std::collections::VecDeque;

use super::ReplicaState;
use super::connections::{Place, is_current};
use crate::log::effect::EffectSink;
use crate::log::request::ConnId;
use crate::tcp::{Finish, State, Tcb};
use crate::time::Instant;

impl ReplicaState {
    /// Lets a connection that received no segment send, and updates its queues and its deadline.
    pub(super) fn finish(&mut self, conn: ConnId, out: &mut impl EffectSink) {
        self.with(conn, out, |_, _| ());
    }

    /// Finishes the handling of a request by a connection: queues it, schedules its deadline,
    /// detects its end.
    pub(super) fn after_request(
        &mut self,
        conn: ConnId,
        finish: Finish,
        out: &mut impl EffectSink,
    ) {
        let place = &mut self.places[conn.index as usize];
        let Some(tcb) = &mut place.tcb else { return };
        self.fold = tcb.fold(self.fold ^ self.frames.next);
        self.touched = conn.index;
        let closed = tcb.is_closed();
        let child = place.listener_port.is_some();
        let deadline = tcb.next_deadline();
        if tcb.state() == State::TimeWait && !place.in_time_wait {
            place.in_time_wait = true;
            let most = 2 * self.limits.connections as usize;
            let places = &self.places;
            enqueue(&mut self.time_wait, conn, most, |conn| waits(places, *conn));
        }
        self.schedule(conn, finish, deadline);
        if child {
            self.progress_of_child(conn, out);
        }
        if closed {
            self.close(conn, out);
        }
    }

    /// Schedules when a connection is handled next: when it can send more, when frames are
    /// sent, or at `deadline`.
    pub(super) fn schedule(&mut self, conn: ConnId, finish: Finish, deadline: Instant) {
        let most = 2 * self.limits.connections as usize;
        let places = &mut self.places;
        let index = conn.index as usize;
        if finish.blocked && !places[index].waits_for_turn {
            places[index].waits_for_turn = true;
            enqueue(&mut self.waiting, conn, most, |conn| {
                is_current(places, *conn)
            });
            self.next_sent = 0;
        }
        if finish.waits_for_sent && !places[index].waits_for_sent {
            places[index].waits_for_sent = true;
            let entry = (self.frames.next, conn);
            enqueue(&mut self.unsent, entry, most, |(_, conn)| {
                is_current(places, *conn)
            });
            self.next_sent = self.next_sent.min(self.frames.next);
        }
        if deadline < places[index].armed {
            places[index].armed = deadline;
            self.next_deadline = self.next_deadline.min(deadline);
            self.deadlines.set(conn.index, deadline);
        }
    }

    /// Handles all deadlines that are due. Entries that were too early are put back.
    pub(super) fn fire_deadlines(&mut self, out: &mut impl EffectSink) {
        // A deadline that is due is normally armed again for later. The bound keeps a corrupted
        // state from looping forever.
        for _ in 0..2 * self.places.len() {
            let Some(index) = self.deadlines.pop_due(self.now) else {
                break;
            };
            let place = &mut self.places[index as usize];
            place.armed = Instant::NEVER;
            let generation = place.generation;
            self.with(ConnId { index, generation }, out, |tcb, cx| tcb.on_time(cx));
        }
        self.next_deadline = self.deadlines.next();
    }

    /// Continues connections that waited for frames which are sent now.
    pub(super) fn after_sending(&mut self, out: &mut impl EffectSink) {
        // A connection that has to wait again waits for frames that are not sent yet. The bound
        // guards against a corrupted state.
        for _ in 0..self.unsent.len() {
            let Some(&(sent, conn)) = self.unsent.front() else {
                break;
            };
            if sent > self.frames.sent {
                break;
            }
            self.unsent.pop_front();
            if let Some(place) = self.current(conn) {
                place.waits_for_sent = false;
                self.finish(conn, out);
            }
        }
    }

    /// Lets waiting connections send, a quantum each in turn, while there is room.
    pub(super) fn serve_waiting(&mut self, out: &mut impl EffectSink) {
        for _ in 0..self.waiting.len() {
            if self.frames.room() == 0 {
                break;
            }
            let Some(conn) = self.waiting.pop_front() else {
                break;
            };
            if let Some(place) = self.current(conn) {
                place.waits_for_turn = false;
                self.finish(conn, out);
            }
        }
    }
}

/// Whether `conn` is in TIME-WAIT.
pub(super) fn waits(places: &[Place], conn: ConnId) -> bool {
    let waits = |tcb: &Tcb| tcb.state() == State::TimeWait;
    is_current(places, conn) && places[conn.index as usize].tcb.as_ref().is_some_and(waits)
}

/// Adds `entry` to a queue that may contain stale entries. When the queue reaches `most` entries,
/// twice the number that can be current, the stale ones are removed.
fn enqueue<T>(
    queue: &mut VecDeque<T>,
    entry: T,
    most: usize,
    means_something: impl FnMut(&T) -> bool,
) {
    if queue.len() >= most {
        queue.retain(means_something);
    }
    queue.push_back(entry);
}
