//! When a connection is handled without a segment: at a deadline, or when there is room to send.

use std::collections::VecDeque;

use super::ReplicaState;
use super::connections::{Place, is_current};
use crate::hash::mix;
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
        if finish.is_blocked() && !places[index].waits_for_turn {
            places[index].waits_for_turn = true;
            enqueue(&mut self.waiting, conn, most, |conn| {
                is_current(places, *conn)
            });
            self.next_sent = 0;
        }
        if finish.waits_for_sent() && !places[index].waits_for_sent {
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

/// Not in the heap.
const NOWHERE: u32 = u32::MAX;

/// The deadlines of connections: a binary heap that finds the entry of each place of the connection
/// table by index.
///
/// A place has at most one entry, however often its deadline moves, so memory is bounded by the
/// number of places. An entry may be too early, never too late: acknowledgments postpone deadlines,
/// and a connection that is looked at too early sets its next deadline.
#[derive(Clone, Debug, Default)]
pub(super) struct Deadlines {
    /// A heap, earliest first; the place decides between equal times.
    heap: Vec<(Instant, u32)>,
    /// For each place, the index of its entry in `heap`.
    position: Vec<u32>,
}

impl Deadlines {
    /// The earliest of all; [`Instant::NEVER`] if there is none.
    pub(super) fn next(&self) -> Instant {
        self.heap.first().map_or(Instant::NEVER, |(at, _)| *at)
    }

    /// Sets the deadline of `place` to `at`, replacing any other.
    pub(super) fn set(&mut self, place: u32, at: Instant) {
        let index = place as usize;
        if index >= self.position.len() {
            self.position.resize(index + 1, NOWHERE);
        }
        let mut i = self.position[index] as usize;
        if i == NOWHERE as usize {
            i = self.heap.len();
            self.heap.push((at, place));
            self.position[index] = i as u32;
        } else {
            self.heap[i].0 = at;
        }
        self.sift(i);
    }

    /// Removes the deadline of `place`.
    pub(super) fn remove(&mut self, place: u32) {
        let Some(position) = self.position.get_mut(place as usize) else {
            return;
        };
        let i = core::mem::replace(position, NOWHERE) as usize;
        if i == NOWHERE as usize {
            return;
        }
        self.heap.swap_remove(i);
        if let Some(&(_, moved)) = self.heap.get(i) {
            self.position[moved as usize] = i as u32;
            self.sift(i);
        }
    }

    /// A fingerprint that does not depend on the order within the heap.
    pub(super) fn fingerprint(&self) -> u64 {
        let entries = self.heap.iter();
        let entries = entries.map(|(at, place)| mix(at.as_nanos() ^ mix(u64::from(*place))));
        entries.fold(0, u64::wrapping_add)
    }

    /// Removes and returns the place with the earliest deadline, if that is due at `now`.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<u32> {
        let &(at, place) = self.heap.first()?;
        if at > now {
            return None;
        }
        self.remove(place);
        Some(place)
    }

    /// Moves entry `i` to its position in the heap order.
    fn sift(&mut self, mut i: usize) {
        while i > 0 && self.heap[i] < self.heap[(i - 1) / 2] {
            self.swap(i, (i - 1) / 2);
            i = (i - 1) / 2;
        }
        loop {
            let children = 2 * i + 1..(2 * i + 3).min(self.heap.len());
            let Some(least) = children.min_by_key(|&child| self.heap[child]) else {
                return;
            };
            if self.heap[i] <= self.heap[least] {
                return;
            }
            self.swap(i, least);
            i = least;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        for i in [a, b] {
            self.position[self.heap[i].1 as usize] = i as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn fingerprints_tell_deadlines_apart_and_not_the_order_in_which_they_were_set() {
        let mut seen = std::collections::BTreeSet::new();
        for place in 0..40 {
            for at in 1..200 {
                let mut deadlines = Deadlines::default();
                deadlines.set(place, Instant::from_nanos(at));
                assert!(seen.insert(deadlines.fingerprint()), "{place} at {at}");
            }
        }
        let set = |places: &mut dyn Iterator<Item = u32>| {
            let mut deadlines = Deadlines::default();
            places.for_each(|place| deadlines.set(place, Instant::from_nanos(7)));
            deadlines.fingerprint()
        };
        assert_eq!(set(&mut (0..40)), set(&mut (0..40).rev()));
        assert_ne!(set(&mut (0..40)), set(&mut (0..39)));
    }

    proptest! {
        #[test]
        fn it_answers_as_a_sorted_map_would(steps in proptest::collection::vec((0_u32..20, 0_u64..50, 0_u8..8), 0..300)) {
            let mut deadlines = Deadlines::default();
            let mut plain: BTreeMap<u32, Instant> = BTreeMap::new();
            for (place, at, what) in steps {
                let at = Instant::from_nanos(at);
                match what {
                    0..=4 => {
                        deadlines.set(place, at);
                        plain.insert(place, at);
                    }
                    5 => {
                        deadlines.remove(place);
                        plain.remove(&place);
                    }
                    _ => {
                        let due = plain.iter().map(|(place, at)| (*at, *place)).min();
                        let due = due.filter(|(earliest, _)| *earliest <= at).map(|(_, place)| place);
                        prop_assert_eq!(deadlines.pop_due(at), due);
                        if let Some(place) = due {
                            plain.remove(&place);
                        }
                    }
                }
                let next = plain.values().min().copied().unwrap_or(Instant::NEVER);
                prop_assert_eq!(deadlines.next(), next);
                prop_assert_eq!(deadlines.heap.len(), plain.len());
            }
        }
    }
}
