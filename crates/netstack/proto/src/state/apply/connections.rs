//! The connection table: opening, finding and closing connections.

use super::ReplicaState;
use super::schedule::waits;
use crate::config::Settings;
use crate::keys::{KeyUse, ephemeral_from};
use crate::log::effect::{Effect, EffectSink};
use crate::log::request::Endpoint;
use crate::log::request::{Body, ConnId, Flow, GroupIndex, Mac, Request};
use crate::seqnum::SeqNum;
use crate::tcp::fields::Fields;
#[cfg(any(test, feature = "testkit"))]
use crate::tcp::fields::Flip;
use crate::tcp::{Cx, Tcb};
use crate::time::Instant;

/// An entry of the connection table.
#[derive(Clone, Debug)]
#[repr(C)]
pub(super) struct Place {
    pub(super) tcb: Option<Tcb>,
    pub(super) generation: u32,
    /// The listening port the connection came through, until it is accepted or closed.
    pub(super) listener_port: Option<u16>,
    /// Whether an application knows the connection, and so will release it.
    pub(super) held: bool,
    /// Whether it is in [`ReplicaState::waiting`].
    pub(super) waits_for_turn: bool,
    /// Whether it is in [`ReplicaState::unsent`].
    pub(super) waits_for_sent: bool,
    /// Whether it is in [`ReplicaState::time_wait`].
    pub(super) in_time_wait: bool,
    /// Its deadline in [`ReplicaState::deadlines`].
    pub(super) armed: Instant,
}

impl Fields for Place {
    #[inline(always)]
    fn visit(&self, name: &'static str, each: &mut impl FnMut(&'static str, u64)) {
        let Place {
            generation,
            tcb,
            listener_port,
            held,
            waits_for_turn,
            waits_for_sent,
            in_time_wait,
            armed,
        } = self;
        generation.visit("place.generation", each);
        each("place.open", u64::from(tcb.is_some()));
        listener_port.visit("place.listener_port", each);
        held.visit("place.held", each);
        waits_for_turn.visit("place.waits_for_turn", each);
        waits_for_sent.visit("place.waits_for_sent", each);
        in_time_wait.visit("place.in_time_wait", each);
        armed.visit("place.armed", each);
        if let Some(tcb) = tcb {
            tcb.visit(name, each);
        }
    }

    #[cfg(any(test, feature = "testkit"))]
    fn flip(&mut self, name: &'static str, flip: &mut Flip) {
        let Place {
            generation,
            tcb,
            listener_port,
            held,
            waits_for_turn,
            waits_for_sent,
            in_time_wait,
            armed,
        } = self;
        generation.flip("place.generation", flip);
        if tcb.is_some() && flip.within("place.open", 1).is_some() {
            *tcb = None;
        }
        listener_port.flip("place.listener_port", flip);
        held.flip("place.held", flip);
        waits_for_turn.flip("place.waits_for_turn", flip);
        waits_for_sent.flip("place.waits_for_sent", flip);
        in_time_wait.flip("place.in_time_wait", flip);
        armed.flip("place.armed", flip);
        if let Some(tcb) = tcb {
            Fields::flip(tcb, name, flip);
        }
    }
}

// A connection without data out of order takes this much memory in a replica, and some 50 bytes in
// the table of flows and in the deadlines.
const _: () = assert!(size_of::<Place>() <= 1024);

impl Place {
    pub(super) fn fresh(generation: u32) -> Self {
        Place {
            generation,
            tcb: None,
            listener_port: None,
            held: false,
            waits_for_turn: false,
            waits_for_sent: false,
            in_time_wait: false,
            armed: Instant::NEVER,
        }
    }
}

impl ReplicaState {
    /// The connection of a run: the pump's hint if it is current, otherwise the one with its flow.
    #[inline]
    pub(super) fn lookup(&self, request: &Request) -> Option<ConnId> {
        let hint = request.digest.hint;
        match self.places.get(hint.index as usize) {
            Some(place) if place.generation == hint.generation && place.tcb.is_some() => Some(hint),
            _ => self.find(&request.body),
        }
    }

    #[cold]
    pub(super) fn find(&self, body: &Body) -> Option<ConnId> {
        match body {
            Body::Segments { flow, .. } => self.flows.get(flow).copied(),
            _ => None,
        }
    }

    pub(super) fn current(&mut self, conn: ConnId) -> Option<&mut Place> {
        self.places
            .get_mut(conn.index as usize)
            .filter(|place| place.generation == conn.generation)
    }

    /// Whether there is room for another connection.
    pub(super) fn has_place(&self) -> bool {
        !self.free.is_empty() || self.places.len() < self.limits.connections as usize
    }

    pub(super) fn allocate(&mut self) -> Option<ConnId> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.places.len() < self.limits.connections as usize => {
                self.places.push(Place::fresh(0));
                self.places.len() as u32 - 1
            }
            None => return None,
        };
        Some(ConnId {
            index,
            generation: self.places[index as usize].generation,
        })
    }

    /// Inserts a new connection into all tables.
    pub(super) fn insert(
        &mut self,
        conn: ConnId,
        tcb: Tcb,
        parent: Option<u16>,
        out: &mut impl EffectSink,
    ) {
        let flow = tcb.flow();
        let place = &mut self.places[conn.index as usize];
        place.tcb = Some(tcb);
        place.listener_port = parent;
        self.flows.insert(flow, conn);
        self.stats.opened += 1;
        out.push(Effect::Hint {
            conn,
            flow,
            open: true,
        });
    }

    /// Closes the oldest connection in TIME-WAIT, which only guards against old segments, when at
    /// most an eighth of the table is free. Its entry is free after [`Body::Free`].
    pub(super) fn evict_time_wait(&mut self, out: &mut impl EffectSink) {
        let spare = self.limits.connections as usize / 8;
        if self.limits.connections as usize + self.free.len() > self.places.len() + spare {
            return;
        }
        while let Some(conn) = self.time_wait.pop_front() {
            if waits(&self.places, conn) {
                self.stats.time_wait_evicted += 1;
                return self.close(conn, out);
            }
        }
    }

    /// Closes a connection: no segment finds it any more. [`Body::Free`] frees its entry.
    pub(super) fn close(&mut self, conn: ConnId, out: &mut impl EffectSink) {
        let place = &mut self.places[conn.index as usize];
        let Some(mut tcb) = place.tcb.take() else {
            return;
        };
        tcb.count_end(&mut self.stats);
        let pages = &mut self.frames.gap_pages;
        *pages = pages.saturating_sub(tcb.gap_pages());
        place.armed = Instant::NEVER;
        self.deadlines.remove(conn.index);
        let held = place.held;
        let flow = tcb.flow();
        self.flows.remove(&flow);
        self.stats.closed += 1;
        out.push(Effect::Hint {
            conn,
            flow,
            open: false,
        });
        let frames = self.frames.next;
        out.push(Effect::Retire { conn, held, frames });
    }

    pub(super) fn open(
        &mut self,
        request_id: u64,
        ends: Flow,
        (mac, settings): (Mac, Settings),
        out: &mut impl EffectSink,
    ) {
        self.evict_time_wait(out);
        let flow = self.choose_port(ends);
        let port = ends.local.port;
        if flow.is_none() && (port != 0 || self.has_place()) {
            out.push(Effect::NoPort { request_id, port });
            return;
        }
        let conn = flow.and_then(|flow| Some((flow, self.allocate()?)));
        let Some((flow, conn)) = conn else {
            self.stats.table_full += u64::from(!self.has_place());
            out.push(Effect::Opened {
                request_id,
                conn: ConnId::NONE,
                flow: ends,
            });
            return;
        };
        let iss = self.initial_sequence_number(&flow);
        let mut tcb = Tcb::open(conn, flow, mac, iss, &self.limits, self.now);
        tcb.set_timestamp_offset(self.timestamp_offset(&flow));
        let mut cx = Cx::new(self.now, &mut self.frames, &self.limits, out);
        tcb.set(settings, &mut cx);
        self.insert(conn, tcb, None, out);
        self.stats.opened_by_us += 1;
        self.places[conn.index as usize].held = true;
        out.push(Effect::Opened {
            request_id,
            conn,
            flow,
        });
        self.finish(conn, out);
    }

    /// The flow of a new connection between these ends. If our port is 0, a keyed hash selects
    /// the port at which the search begins (RFC 6056 section 3.3.1); the first port is chosen
    /// that is free and that assigns the peer's segments to this group.
    pub(super) fn choose_port(&self, ends: Flow) -> Option<Flow> {
        if ends.local.port != 0 {
            let is_free = !self.flows.contains_key(&ends) && !self.listeners.has(ends.local.port);
            return is_free.then_some(ends);
        }
        let flow = |port| Flow {
            local: Endpoint::new(ends.local.address, port),
            ..ends
        };
        let opened = self.stats.opened;
        let start = self.keys.of_flow(KeyUse::TcpPort, &flow(0), opened) as u16;
        let GroupIndex { index, count } = self.group;
        ephemeral_from(start)
            .filter(|port| count == 1 || self.grouping.group(&flow(*port)) == index)
            .find(|port| !self.flows.contains_key(&flow(*port)) && !self.listeners.has(*port))
            .map(flow)
    }

    /// A clock that ticks every 4 microseconds, plus a keyed hash of the flow (RFC 6528 section 3).
    pub(super) fn initial_sequence_number(&self, flow: &Flow) -> SeqNum {
        let clock = (self.now.as_nanos() / 4_000) as u32;
        let hash = self.keys.of_flow(KeyUse::InitialSequenceNumber, flow, 0);
        SeqNum(clock.wrapping_add(hash as u32))
    }

    /// The offset of a connection's timestamps (RFC 7323 section 5.4), equal for all
    /// connections between these two ends.
    pub(super) fn timestamp_offset(&self, flow: &Flow) -> u32 {
        self.keys.of_flow(KeyUse::Timestamp, flow, 0) as u32
    }

    /// The number of entries of the connection table, free ones included. It never shrinks.
    pub fn places(&self) -> usize {
        self.places.len()
    }

    /// The sequence number that an established connection expects next.
    #[cfg(feature = "locked")]
    pub fn expected(&self, conn: ConnId) -> Option<SeqNum> {
        let place = self.places.get(conn.index as usize)?;
        let tcb = place.tcb.as_ref()?;
        let is_open =
            place.generation == conn.generation && tcb.state() == crate::tcp::State::Established;
        is_open.then(|| tcb.expected())
    }

    /// The open connections.
    pub fn connections(&self) -> impl Iterator<Item = (ConnId, &Tcb)> {
        self.places.iter().enumerate().filter_map(|(index, place)| {
            let conn = ConnId {
                index: index as u32,
                generation: place.generation,
            };
            Some((conn, place.tcb.as_ref()?))
        })
    }
}

/// Whether an entry still belongs to `conn`.
pub(super) fn is_current(places: &[Place], conn: ConnId) -> bool {
    let place = places.get(conn.index as usize);
    place.is_some_and(|place| place.generation == conn.generation)
}
