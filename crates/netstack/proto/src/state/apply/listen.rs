//! Listening ports: the SYN queue, the accept queue, and SYN cookies.
//!
//! A SYN becomes a connection in SYN-RECEIVED while the backlog of its port and the SYN queue of
//! all ports have room. Further SYNs are answered with a cookie and not stored; an acknowledgment
//! that returns the cookie creates the connection (RFC 4987). A flood of SYNs therefore takes no
//! more memory than the SYN queue, and genuine peers still connect. The established connections
//! that wait to be accepted are bounded by twice the backlog of a port; the second half is used
//! only while its SYN queue is full.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::{Limits, Settings};
use crate::keys::KeyUse;
use crate::log::effect::{Effect, EffectSink};
use crate::log::request::{
    ALL_PORTS, Binding, Body, ConnId, Endpoint, Flags, Flow, Mac, Request, Segment, Verdict,
};
use crate::seqnum::SeqNum;
use crate::state::apply::{ReplicaState, State};
use crate::tcp::fields::Fields;
use crate::tcp::{self, Cx, Tcb};
use crate::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Listener {
    backlog: u16,
    /// Connections in SYN-RECEIVED.
    half_open: u32,
    /// Connections established since the port began to listen.
    established: u64,
    /// How many of them the application accepted.
    accepted: u64,
    /// The time until which a peer may return a cookie.
    cookies_until: Instant,
    /// The initial settings of its connections, if they were set.
    settings: Option<Settings>,
}

impl Listener {
    /// Established connections that wait to be accepted.
    const fn queued(&self) -> u64 {
        self.established.saturating_sub(self.accepted)
    }
}

/// All listening ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Listeners {
    /// By port and binding. No connection matches two of them.
    ports: BTreeMap<u16, BTreeMap<Binding, Listener>>,
    /// Ports whose SYNs are held outside, until the application decides. Listeners precede them.
    holding: BTreeSet<u16>,
    /// Connections in SYN-RECEIVED, over all ports.
    half_open: u32,
    /// Connections established, over all ports, including those of closed listeners.
    established: u64,
}

impl Listeners {
    pub(super) fn has(&self, port: u16) -> bool {
        self.ports.contains_key(&port)
    }

    /// The listener for connections to `local`.
    fn at(&self, local: Endpoint) -> Option<&Listener> {
        let mut of_port = self.ports.get(&local.port)?.iter();
        let found = of_port.find(|(binding, _)| binding.takes(local.address));
        found.map(|(_, listener)| listener)
    }

    fn at_mut(&mut self, local: Endpoint) -> Option<&mut Listener> {
        let mut of_port = self.ports.get_mut(&local.port)?.iter_mut();
        let found = of_port.find(|(binding, _)| binding.takes(local.address));
        found.map(|(_, listener)| listener)
    }

    /// Whether there is a listener for connections of `flow`.
    pub(super) fn takes(&self, flow: &Flow) -> bool {
        self.at(flow.local).is_some()
    }

    /// Whether SYNs to `local` are held outside.
    pub(super) fn holds(&self, local: Endpoint) -> bool {
        let holds = |port| self.holding.contains(&port);
        !self.holding.is_empty()
            && (holds(local.port) || holds(ALL_PORTS))
            && self.at(local).is_none()
    }

    /// SYNs to `port` are held outside, or no more.
    pub(super) fn hold(&mut self, port: u16, holds: bool) {
        match holds {
            true => self.holding.insert(port),
            false => self.holding.remove(&port),
        };
    }

    pub(super) fn open(&mut self, port: u16, backlog: u16, binding: Binding) {
        let of_port = self.ports.entry(port).or_default();
        of_port.entry(binding).or_insert(Listener {
            backlog: backlog.max(1),
            half_open: 0,
            established: 0,
            accepted: 0,
            cookies_until: Instant::ZERO,
            settings: None,
        });
    }

    /// Sets the initial settings of further connections of the listener.
    pub(super) fn set(&mut self, port: u16, binding: Binding, settings: Settings) {
        let of_port = self.ports.get_mut(&port);
        if let Some(listener) = of_port.and_then(|of_port| of_port.get_mut(&binding)) {
            listener.settings = Some(settings);
        }
    }

    /// The initial settings of connections to `local`.
    fn settings(&self, local: Endpoint, limits: &Limits) -> Settings {
        let set = self.at(local).and_then(|listener| listener.settings);
        set.unwrap_or_else(|| limits.settings())
    }

    fn close(&mut self, port: u16, binding: Binding) -> Option<Listener> {
        let of_port = self.ports.get_mut(&port)?;
        let closed = of_port.remove(&binding);
        if of_port.is_empty() {
            self.ports.remove(&port);
        }
        closed
    }

    /// The application has accepted this many connections of the listener in total.
    pub(super) fn accepted(&mut self, port: u16, binding: Binding, accepted: u64) {
        let of_port = self.ports.get_mut(&port);
        if let Some(listener) = of_port.and_then(|of_port| of_port.get_mut(&binding)) {
            listener.accepted = listener.accepted.max(accepted);
        }
    }

    /// Whether another connection to `local` may enter SYN-RECEIVED. `most` is the length of the
    /// SYN queue of all ports.
    fn may_begin(&self, local: Endpoint, most: u32) -> bool {
        let backlog = |listener: &Listener| {
            u64::from(listener.half_open) + listener.queued() < u64::from(listener.backlog)
        };
        self.half_open < most && self.at(local).is_some_and(backlog)
    }

    /// Whether the accept queue has room for another connection.
    fn may_queue(&self, local: Endpoint) -> bool {
        let room = |listener: &Listener| listener.queued() < u64::from(listener.backlog);
        self.at(local).is_some_and(room)
    }

    /// A connection enters SYN-RECEIVED.
    fn begin(&mut self, local: Endpoint) {
        if let Some(listener) = self.at_mut(local) {
            listener.half_open += 1;
            self.half_open += 1;
        }
    }

    /// A connection leaves SYN-RECEIVED.
    pub(super) fn end(&mut self, local: Endpoint, established: bool) {
        if let Some(listener) = self.at_mut(local) {
            listener.half_open -= 1;
            listener.established += u64::from(established);
            self.half_open -= 1;
        }
        self.established += u64::from(established);
    }

    /// Passes every value to `add`, in a fixed order.
    pub(super) fn fold(&self, add: &mut impl FnMut(u64)) {
        let Listeners {
            ports,
            holding,
            half_open,
            established,
        } = self;
        holding.iter().for_each(|port| add(u64::from(*port)));
        add(u64::from(*half_open));
        add(*established);
        let all = ports.iter().flat_map(|(port, of_port)| {
            let of_port = of_port.iter();
            of_port.map(move |(binding, listener)| (*port, *binding, *listener))
        });
        for (port, binding, listener) in all {
            let Listener {
                backlog,
                half_open,
                established,
                accepted,
                cookies_until,
                settings,
            } = listener;
            settings.visit("settings", &mut |_, value| add(value));
            add(u64::from(port) << 48 | u64::from(backlog) << 32 | u64::from(half_open));
            add(established);
            let Binding { families, address } = binding;
            // Most bindings have no address, which adds 0.
            let only = address.map_or(0, |only| {
                only.words()[0] ^ only.words()[1].rotate_left(32) | 1
            });
            add(accepted ^ (families as u64) << 62 ^ only);
            add(cookies_until.as_nanos());
        }
    }
}

impl ReplicaState {
    /// How many connections may be in SYN-RECEIVED at a time: a part of the connection table is
    /// reserved for established ones.
    fn syn_queue(&self) -> u32 {
        let connections = self.limits.connections;
        self.limits.syn_queue.min(connections - connections / 8)
    }

    /// LISTEN (RFC 9293 section 3.10.7.2).
    pub fn listen(
        &mut self,
        flow: Flow,
        mac: Mac,
        segment: &Segment<'_>,
        past: Option<SeqNum>,
        out: &mut impl EffectSink,
    ) {
        if segment.flags.has(Flags::RST) {
            return;
        }
        if segment.flags.has(Flags::ACK) {
            return self.refuse(flow, mac, segment, out);
        }
        if !segment.flags.has(Flags::SYN) {
            return;
        }
        if !self.listeners.may_begin(flow.local, self.syn_queue()) {
            return self.answer_with_cookie(flow, mac, segment, out);
        }
        self.evict_time_wait(out);
        let Some(conn) = self.allocate() else {
            self.stats.refused_syn += 1;
            self.stats.table_full += 1;
            return;
        };
        let mut iss = self.initial_sequence_number(&flow);
        if let Some(past) = past {
            // RFC 9293 section 3.6.1: larger than the largest of the connection that it replaces.
            iss = iss.max(past + 1);
        }
        let mut tcb = Tcb::passive(conn, flow, mac, iss, segment, &self.limits, self.now);
        tcb.set_timestamp_offset(self.timestamp_offset(&flow));
        let mut cx = Cx::new(self.now, &mut self.frames, &self.limits, out);
        tcb.set(self.listeners.settings(flow.local, &self.limits), &mut cx);
        self.listeners.begin(flow.local);
        self.insert(conn, tcb, Some(flow.local.port), out);
        self.finish(conn, out);
    }

    /// Lets a handshake go on whose SYN was held until the application accepted it. No listener
    /// has a part in it: the application knows the connection from now on, as one that it opened.
    pub fn accept_syn(
        &mut self,
        request_id: u64,
        (flow, mac, syn): (Flow, Mac, &Segment<'_>),
        settings: Settings,
        out: &mut impl EffectSink,
    ) {
        self.evict_time_wait(out);
        if self.flows.contains_key(&flow) {
            let port = flow.local.port;
            return out.push(Effect::NoPort { request_id, port });
        }
        let Some(conn) = self.allocate() else {
            self.stats.table_full += 1;
            let conn = ConnId::NONE;
            return out.push(Effect::Opened {
                request_id,
                conn,
                flow,
            });
        };
        let iss = self.initial_sequence_number(&flow);
        let mut tcb = Tcb::passive(conn, flow, mac, iss, syn, &self.limits, self.now);
        tcb.set_timestamp_offset(self.timestamp_offset(&flow));
        let mut cx = Cx::new(self.now, &mut self.frames, &self.limits, out);
        tcb.set(settings, &mut cx);
        self.insert(conn, tcb, None, out);
        self.places[conn.index as usize].held = true;
        out.push(Effect::Opened {
            request_id,
            conn,
            flow,
        });
        self.finish(conn, out);
    }

    /// Answers a SYN for which the SYN queue has no room.
    fn answer_with_cookie(
        &mut self,
        flow: Flow,
        mac: Mac,
        syn: &Segment<'_>,
        out: &mut impl EffectSink,
    ) {
        self.evict_time_wait(out);
        if !self.listeners.may_queue(flow.local) || !self.has_place() {
            // The connection would only wait for the application or for a table entry, so the
            // peer may as well retransmit its SYN.
            self.stats.refused_syn += 1;
            self.stats.table_full += u64::from(!self.has_place());
            return;
        }
        let (keys, offset) = (self.keys, self.timestamp_offset(&flow));
        let hash = |use_of_it| keys.of_flow(KeyUse::Cookie, &flow, use_of_it);
        let ip = self.listeners.settings(flow.local, &self.limits).ip();
        let mut cx = Cx::new(self.now, &mut self.frames, &self.limits, out);
        if tcp::answer_with_cookie(syn, (flow, mac, offset), (ip, &hash), &mut cx) {
            self.stats.cookies_sent += 1;
            if let Some(listener) = self.listeners.at_mut(flow.local) {
                listener.cookies_until = self.now + tcp::COOKIE_LIFE;
            }
        }
    }

    /// If a run without a connection returns a cookie, creates the connection in SYN-RECEIVED,
    /// to which the run is then applied. If there is no room, or the run is not the first one
    /// after the SYN, it is dropped as if the network had lost it: a reset would close a
    /// connection that the peer may regard as established.
    #[cold]
    pub fn cookie_returned(
        &mut self,
        request: &Request,
        verdict: Verdict,
        out: &mut impl EffectSink,
    ) -> Returned {
        let Body::Segments { flow, mac, .. } = request.body else {
            return Returned::Nothing;
        };
        let made = |listener: &Listener| self.now < listener.cookies_until;
        let made = self.listeners.at(flow.local).is_some_and(made);
        if !made {
            return Returned::Nothing;
        }
        let (keys, offset) = (self.keys, self.timestamp_offset(&flow));
        let hash = |use_of_it| keys.of_flow(KeyUse::Cookie, &flow, use_of_it);
        let mut returned = tcp::ReturnedCookie::Nothing;
        let mut acknowledges = false;
        request.pieces(verdict, |segment| {
            let others = Flags::SYN.with(Flags::RST);
            acknowledges |= segment.flags.without(others) == segment.flags;
            if matches!(returned, tcp::ReturnedCookie::Connection(_)) {
                return;
            }
            let whose = (flow, mac, offset);
            let found = tcp::restore_from_cookie(segment, whose, &hash, &self.limits, self.now);
            if !matches!(found, tcp::ReturnedCookie::Nothing) {
                returned = found;
            }
        });
        let mut tcb = match returned {
            tcp::ReturnedCookie::Nothing => {
                self.stats.cookies_failed += u64::from(acknowledges);
                return Returned::Nothing;
            }
            tcp::ReturnedCookie::NotFirst => return Returned::Dropped,
            tcp::ReturnedCookie::Connection(tcb) => *tcb,
        };
        self.evict_time_wait(out);
        let room = self.listeners.may_queue(flow.local);
        let Some(conn) = room.then(|| self.allocate()).flatten() else {
            self.stats.refused_syn += 1;
            self.stats.table_full += u64::from(!self.has_place());
            return Returned::Dropped;
        };
        self.stats.cookies_returned += 1;
        tcb.set_conn(conn);
        let mut cx = Cx::new(self.now, &mut self.frames, &self.limits, out);
        tcb.set(self.listeners.settings(flow.local, &self.limits), &mut cx);
        self.listeners.begin(flow.local);
        self.insert(conn, tcb, Some(flow.local.port), out);
        Returned::Connection(conn)
    }

    /// The end of the sequence numbers of a connection in TIME-WAIT, if a SYN for a listening
    /// port may replace it. That requires room in the SYN queue, because a cookie could not
    /// begin after them. For a port whose SYNs are held, the next SYN finds no connection.
    pub fn replaced_past(
        &self,
        conn: ConnId,
        request: &Request,
        verdict: Verdict,
    ) -> Option<SeqNum> {
        let tcb = self.places[conn.index as usize].tcb.as_ref()?;
        let local = tcb.flow().local;
        if !self.listeners.may_begin(local, self.syn_queue()) && !self.listeners.holds(local) {
            return None;
        }
        let mut reopens = false;
        request.pieces(verdict, |syn| reopens = tcb.may_reopen(syn));
        reopens.then(|| tcb.snd_nxt())
    }

    /// Checks whether a connection of a listener was established, and so has to be accepted.
    pub fn progress_of_child(&mut self, conn: ConnId, out: &mut impl EffectSink) {
        let place = &mut self.places[conn.index as usize];
        let (Some(_), Some(tcb)) = (place.listener_port, &place.tcb) else {
            return;
        };
        if matches!(tcb.state(), State::SynReceived) {
            return;
        }
        place.listener_port = None;
        let closed = tcb.is_closed();
        let flow = tcb.flow();
        let number = self.listeners.established;
        self.listeners.end(flow.local, !closed);
        if !closed {
            place.held = true;
            out.push(Effect::Accept { number, conn, flow });
        }
    }

    /// Closes a listener, and its connections that are not established yet.
    pub fn unlisten(&mut self, port: u16, binding: Binding, out: &mut impl EffectSink) {
        let Some(listener) = self.listeners.close(port, binding) else {
            return;
        };
        self.listeners.half_open -= listener.half_open;
        for index in 0..self.places.len() {
            let place = &mut self.places[index];
            let is_for = |tcb: &Tcb| binding.takes(tcb.flow().local.address);
            if place.listener_port == Some(port) && place.tcb.as_ref().is_some_and(is_for) {
                place.listener_port = None;
                let conn = ConnId {
                    index: index as u32,
                    generation: place.generation,
                };
                self.with(conn, out, |tcb, cx| tcb.abort(cx));
            }
        }
    }
}

/// The result of the cookie check of a run without a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returned {
    /// The run returns no cookie.
    Nothing,
    /// It returns a cookie, but there is no room, or the run is not the first one after the
    /// handshake.
    Dropped,
    /// It returns a cookie, and this is its connection.
    Connection(ConnId),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::request::{Address, Families};
    use std::collections::BTreeSet;

    /// Listeners that differ in one part only, or in two that could be confused.
    fn different() -> Vec<Listeners> {
        let plain = Listener {
            backlog: 1,
            half_open: 0,
            established: 0,
            accepted: 0,
            cookies_until: Instant::ZERO,
            settings: None,
        };
        let at = |port, binding, listener| {
            let of_port = BTreeMap::from([(binding, listener)]);
            Listeners {
                ports: BTreeMap::from([(port, of_port)]),
                ..Listeners::default()
            }
        };
        let mut all = vec![
            Listeners::default(),
            Listeners {
                half_open: 1,
                ..Listeners::default()
            },
            Listeners {
                established: 1,
                ..Listeners::default()
            },
        ];
        let all_families = Binding::default();
        for number in [1, 2, 3, 0x100, 0xff00] {
            let timeout = crate::time::Duration::from_millis(number.into());
            let listeners = [
                Listener {
                    backlog: number + 1,
                    ..plain
                },
                Listener {
                    half_open: number.into(),
                    ..plain
                },
                Listener {
                    established: number.into(),
                    ..plain
                },
                Listener {
                    accepted: number.into(),
                    ..plain
                },
                Listener {
                    cookies_until: Instant::from_nanos(number.into()),
                    ..plain
                },
                Listener {
                    settings: Some(Settings::default().user_timeout(Some(timeout))),
                    ..plain
                },
            ];
            all.push(at(number, all_families, plain));
            all.extend(listeners.map(|listener| at(80, all_families, listener)));
        }
        for families in [Families::V4, Families::V6] {
            let binding = Binding {
                families,
                ..all_families
            };
            all.push(at(80, binding, plain));
        }
        for last in 1..4 {
            for address in [
                Address::ipv4(10, 0, 0, last),
                Address::ipv4(10, last, 0, 0),
                Address::v6([0x20, last, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
                Address::v6([0x20, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last, 1]),
            ] {
                let binding = Binding {
                    address: Some(address),
                    ..all_families
                };
                all.push(at(80, binding, plain));
            }
        }
        all
    }

    #[test]
    fn listeners_that_differ_have_different_fingerprints() {
        let all = different();
        let mut seen = BTreeSet::new();
        for listeners in &all {
            let mut words = Vec::new();
            listeners.fold(&mut |word| words.push(word));
            assert!(seen.insert(words), "{listeners:?}");
        }
        assert_eq!(seen.len(), all.len());
    }
}
