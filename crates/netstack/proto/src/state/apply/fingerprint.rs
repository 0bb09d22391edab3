//! Fingerprints of the state, and the first difference of two replicas.

use super::ReplicaState;
use crate::hash::mix;
use crate::stats::StateStats;
use crate::tcp::fields;
#[cfg(any(test, feature = "testkit"))]
use crate::tcp::fields::{Fields, Flip};

/// One of so many posts has a counter: reading one takes longer than the rest of a post.
const COUNTER_EVERY: u64 = 16;

impl ReplicaState {
    /// A fingerprint that replicas post for comparison: the changes of all requests so far, folded
    /// together as they were applied, the full contents of two entries of the connection table, one
    /// of which is a different one for each post, and in one of 16 posts a counter,
    /// each in its turn. `turn` counts the posts.
    ///
    /// With a post every `e` positions and `p` entries in the table ([`ReplicaState::places`]: the
    /// largest number of connections that were open at one time), a corrupted bit in an entry
    /// becomes visible after at most `e * p` positions, unless it is overwritten before it has any
    /// effect. Its only effect may be a wrong counter.
    pub fn post(&self, turn: u64) -> u64 {
        let mut h = mix(self.fold ^ self.now.as_nanos());
        if turn.is_multiple_of(COUNTER_EVERY) {
            let counters = self.stats().words();
            let index = turn / COUNTER_EVERY % StateStats::COUNT as u64;
            h = mix(h ^ counters[index as usize]);
        }
        let places = self.places.len() as u64;
        if places > 0 {
            let touched = self.touched as usize;
            let another = Some((turn % places) as usize).filter(|index| *index != touched);
            for index in core::iter::once(touched).chain(another) {
                h = mix(h ^ fields::fingerprint(&self.places[index]));
            }
        }
        h
    }

    /// A fingerprint of the whole state, computed from scratch. For tests, and to find differences.
    pub fn fingerprint(&self) -> u64 {
        let mut h = self.fold;
        let mut add = |word: u64| h = mix(h ^ word);
        add(self.now.as_nanos());
        add(self.applied());
        add(u64::from(self.group.index) << 16 | u64::from(self.group.count));
        add(self.frames.next);
        add(self.frames.limit ^ self.frames.next_credit.rotate_left(32));
        add(self.next_deadline.as_nanos());
        add(self.next_sent);
        for place in &self.places {
            add(fields::fingerprint(place));
        }
        for index in &self.free {
            add(u64::from(*index));
        }
        self.listeners.fold(&mut add);
        add(self.frames.resets.fingerprint());
        add(self.frames.challenges.fingerprint());
        add(self.frames.gap_pages);
        for count in self.stats().words() {
            add(count);
        }
        add(u64::from(self.frames.link_mtu_v6));
        for conn in &self.waiting {
            add(u64::from(conn.index));
        }
        for conn in &self.time_wait {
            add(u64::from(conn.index) << 32 | u64::from(conn.generation));
        }
        for (sent, conn) in &self.unsent {
            add(*sent ^ u64::from(conn.index) << 48);
        }
        add(self.udp.fingerprint());
        h
    }

    /// [`fingerprint`](Self::fingerprint) plus the tables of flows and deadlines. A corruption
    /// may have left traces there although the corrupted value itself was overwritten.
    pub fn whole_fingerprint(&self) -> u64 {
        let tables = mix(self.demux.fingerprint()) ^ self.deadlines.fingerprint();
        mix(self.fingerprint() ^ tables)
    }

    /// The name of the first difference between two replicas, with the values where they are short.
    pub fn first_difference(&self, other: &ReplicaState) -> Option<String> {
        if self.applied() != other.applied() {
            return Some(format!("applied {} / {}", self.applied(), other.applied()));
        }
        if self.now != other.now {
            return Some(format!("now {:?} / {:?}", self.now, other.now));
        }
        if self.frames != other.frames {
            return Some(format!("frames {:?} / {:?}", self.frames, other.frames));
        }
        if self.stats() != other.stats() {
            return Some(format!("counters {:?} / {:?}", self.stats(), other.stats()));
        }
        if self.listeners != other.listeners {
            return Some("listeners".to_owned());
        }
        if self.udp != other.udp {
            return Some("UDP sockets".to_owned());
        }
        if self.places.len() != other.places.len() || self.free != other.free {
            return Some("connection table".to_owned());
        }
        for (index, (a, b)) in self.places.iter().zip(&other.places).enumerate() {
            if let Some(field) = fields::first_difference(a, b) {
                return Some(format!("connection {index}: {field}"));
            }
        }
        (self.waiting != other.waiting
            || self.unsent != other.unsent
            || self.time_wait != other.time_wait
            || self.next_deadline != other.next_deadline
            || self.fold != other.fold)
            .then(|| "waiting lists, deadlines or fold".to_owned())
    }

    /// How many bits [`ReplicaState::flip`] can change in entry `index` of the connection table,
    /// its connection included; 0 if there is no such entry.
    #[cfg(any(test, feature = "testkit"))]
    pub fn bits(&self, index: u32) -> u32 {
        self.places.get(index as usize).map_or(0, Flip::bits)
    }

    /// Flips bit `bit` of [`ReplicaState::bits`], as failing memory would, and returns the name
    /// of its field; `None` if there is no such bit. See [`Tcb::flip`](crate::tcp::Tcb::flip).
    #[cfg(any(test, feature = "testkit"))]
    pub fn flip(&mut self, index: u32, bit: u32) -> Option<&'static str> {
        let mut flip = Flip::new(bit);
        self.places.get_mut(index as usize)?.flip("", &mut flip);
        flip.hit()
    }
}
