//! The replicated state: all connections of a group, and what they share.
//!
//! A [`Replica`] is plain data. Only applying a request changes it (apart from planned faults of
//! tests), and the result depends on nothing but the request, its verdict and the state. Replicas that applied the same log are
//! therefore equal.

use crate::hash::mix;
use core::net::SocketAddrV4;
use core::panic::AssertUnwindSafe;
use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::panic::{catch_unwind, resume_unwind};

use crate::config::Limits;
use crate::ip::rate_limit::RateLimit;
use crate::keys::{Domain, Keys};
use crate::log::effect::{Effect, EffectSink, FrameNumbers};
use crate::log::request::{
    Body, ConnId, Digest, Flags, Flow, GroupIndex, Kind, Mac, Options, Request, Segment,
};
use crate::seqnum::SeqNum;
use crate::state::demux::{Demux, Grouping};
use crate::state::ports::ephemeral_from;
use crate::stats::StateStats;
#[cfg(any(test, feature = "testkit"))]
use crate::tcp::fields::Flip;
use crate::tcp::fields::{self, Fields};
use crate::tcp::{self, Cx, Finish, State, Tcb};
use crate::time::Instant;
use crate::udp;

mod deadlines;
mod isolate;
mod listen;
mod migration;

use deadlines::Deadlines;
use listen::{Listeners, Returned};

#[derive(Clone, Debug)]
struct Place {
    generation: u32,
    tcb: Option<Tcb>,
    /// The listening port the connection came through, until it is accepted or closed.
    listener_port: Option<u16>,
    /// Whether an application was informed of it, and so will release it.
    held: bool,
    /// Whether it is in `waiting`.
    waits_for_turn: bool,
    /// Whether it is in `unsent`.
    waits_for_sent: bool,
    /// Whether it is in `time_wait`.
    in_time_wait: bool,
    /// The earliest entry that `deadlines` has for it.
    armed: Instant,
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
        listener_port.visit("place.parent", each);
        held.visit("place.held", each);
        waits_for_turn.visit("place.waits_for_turn", each);
        waits_for_sent.visit("place.waits_for_sent", each);
        in_time_wait.visit("place.waits_out", each);
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
        listener_port.flip("place.parent", flip);
        held.flip("place.held", flip);
        waits_for_turn.flip("place.waits_for_turn", flip);
        waits_for_sent.flip("place.waits_for_sent", flip);
        in_time_wait.flip("place.waits_out", flip);
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
    fn fresh(generation: u32) -> Self {
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

/// Requests that are applied one after the other. The caller receives the effects of each.
pub(crate) trait Requests<S> {
    /// Moves to the next request; false if there is none.
    fn advance(&mut self) -> bool;
    /// The request, and its verdict.
    fn current(&self) -> (&Request, u16);
    /// The current request was applied: takes its effects out of `out`.
    fn applied(&mut self, out: &mut S);
}

/// One copy of the state of all connections of a group.
#[derive(Clone, Debug)]
pub struct Replica {
    now: Instant,
    frames: FrameNumbers,
    /// How many requests of the log were applied: the position of the next one.
    position: u64,
    /// How many requests were applied without a log.
    applied_unlogged: u64,
    fold: u64,
    /// The place that was used last.
    touched: u32,
    next_deadline: Instant,
    /// Waiting connections and sockets may continue once so many frames were sent; 0 if one can
    /// continue with the next request.
    next_sent: u64,
    limits: Limits,
    address: Ipv4Addr,
    /// The group of the stack that this replica belongs to.
    group: GroupIndex,
    keys: Keys,
    grouping: Grouping,
    places: Vec<Place>,
    free: Vec<u32>,
    demux: Demux,
    listeners: Listeners,
    /// Connections that could send more, in the order of their turns.
    waiting: VecDeque<ConnId>,
    /// Connections that continue once this many frames are sent; the counts ascend.
    unsent: VecDeque<(u64, ConnId)>,
    /// Connections in TIME-WAIT, the oldest first; some may be closed already.
    time_wait: VecDeque<ConnId>,
    /// When each connection has to be looked at.
    deadlines: Deadlines,
    udp: udp::Sockets,
    /// The bytes received so far of a connection that migrates to this group.
    incoming: Vec<u8>,
    /// The flows whose connections migrated to other groups, folded into one number.
    migrated_away: u64,
    stats: StateStats,
    /// Number of the next frame when the fast path began; isolation of panics goes back to it.
    /// Meaningful within one request only, so not part of the state.
    next_before: u64,
    /// Whether the current work concerns more than one connection. Meaningful within one request
    /// only.
    beyond_one: bool,
    /// How many of [`StateStats::panicked`] were injected ([`Limits::panics_ppm`]).
    #[cfg(feature = "testkit")]
    injected: u64,
}

impl Replica {
    /// The state before the first request.
    pub fn new(limits: Limits) -> Self {
        Replica {
            now: Instant::ZERO,
            frames: FrameNumbers {
                next: 0,
                limit: u64::from(limits.tx_slots),
                ..FrameNumbers::default()
            },
            position: 0,
            applied_unlogged: 0,
            fold: 0,
            touched: 0,
            next_deadline: Instant::NEVER,
            next_sent: u64::MAX,
            limits,
            address: Ipv4Addr::UNSPECIFIED,
            group: GroupIndex::ONLY,
            keys: Keys::default(),
            grouping: Grouping::new(&Keys::default(), 1),
            places: Vec::new(),
            free: Vec::new(),
            demux: Demux::default(),
            listeners: Listeners::default(),
            waiting: VecDeque::new(),
            unsent: VecDeque::new(),
            time_wait: VecDeque::new(),
            deadlines: Deadlines::default(),
            udp: udp::Sockets::default(),
            incoming: Vec::new(),
            migrated_away: 0,
            stats: StateStats::default(),
            next_before: 0,
            beyond_one: false,
            #[cfg(feature = "testkit")]
            injected: 0,
        }
    }

    /// Applies the next request of the log. `verdict` has one bit per segment of a run, set if its
    /// checksum is good; other requests ignore it. The effects of the request go to `out`, which
    /// holds no others.
    ///
    /// A panic in the TCP code closes the connection that it concerns, identically in every replica
    /// ([`StateStats::panicked`]).
    ///
    /// # Panics
    /// If code that is not specific to one connection panics. The replica must not be used
    /// afterwards.
    pub fn apply(&mut self, request: &Request, verdict: u16, out: &mut impl EffectSink) {
        let apply = || self.apply_in_batch(request, verdict, &mut *out);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(apply)) {
            self.unwound(panic, request, out);
        }
    }

    /// Applies several requests. Cheaper than calling [`Replica::apply`] for each, because panics
    /// are caught once for all.
    ///
    /// # Panics
    /// As [`Replica::apply`], and if the work between two requests panics.
    pub(crate) fn apply_each<S: EffectSink>(
        &mut self,
        requests: &mut impl Requests<S>,
        out: &mut S,
    ) {
        loop {
            // Whether a request is being applied.
            let mut applying = false;
            let batch = || {
                while requests.advance() {
                    applying = true;
                    let (request, verdict) = requests.current();
                    self.apply_in_batch(request, verdict, out);
                    applying = false;
                    requests.applied(out);
                }
            };
            match catch_unwind(AssertUnwindSafe(batch)) {
                Ok(()) => break,
                Err(panic) if applying => {
                    self.unwound(panic, requests.current().0, out);
                    requests.applied(out);
                }
                Err(panic) => resume_unwind(panic),
            }
        }
    }

    /// As [`Replica::apply`], for callers that catch panics themselves: a panic unwinds out of this
    /// function, and the caller must pass it to [`Replica::unwound`] before any other use of the
    /// replica.
    ///
    /// # Panics
    /// If any code called from here panics.
    #[inline(always)]
    pub fn apply_in_batch(&mut self, request: &Request, verdict: u16, out: &mut impl EffectSink) {
        let digest = &request.digest;
        self.now = self.now.max(digest.now);
        self.position += 1;
        self.frames.update_sent(digest.sent, &self.limits);
        if !self.fast_path(request, verdict, out) {
            self.slow_path(request, verdict, out);
        }
        if self.next_deadline <= self.now || self.next_sent <= self.frames.sent {
            self.follow_up(out);
        }
    }

    /// The fast path, for a run that is as expected and whose connection the pump knew. Returns
    /// false otherwise; then at most the application's cursors were updated, which the slow path
    /// may do again.
    #[inline(always)]
    fn fast_path(&mut self, request: &Request, verdict: u16, out: &mut impl EffectSink) -> bool {
        let digest = &request.digest;
        let conn = digest.hint;
        let all_good = digest.all_good();
        if digest.kind != Kind::Segments
            || digest.bits & (Digest::OPTIONS | Digest::CE | Digest::ACKS) != 0
            || verdict & all_good != all_good
        {
            return false;
        }
        let Some(place) = self.places.get_mut(conn.index as usize) else {
            return false;
        };
        let (true, Some(tcb)) = (place.generation == conn.generation, &mut place.tcb) else {
            return false;
        };
        self.next_before = self.frames.next;
        self.touched = conn.index;
        let mut cx = Cx::new(self.now, &mut self.frames, &self.limits, out);
        if digest.bits & Digest::PROGRESS != 0 {
            tcb.progress_low(digest.app_read, digest.app_written, &mut cx);
        }
        if !tcb.try_fast_path(&digest.segment(&Options::None), &mut cx) {
            return false;
        }
        let finish = tcb.finish(&mut cx);
        self.stats.segments += u64::from(digest.count);
        self.fold = tcb.fold(self.fold ^ self.frames.next);
        let deadline = tcb.next_deadline();
        if finish != Finish::default() || deadline < place.armed {
            self.beyond_one = true;
            self.schedule(conn, finish, deadline);
            self.beyond_one = false;
        }
        true
    }

    /// Every request that the fast path does not take.
    #[inline(never)]
    fn slow_path(&mut self, request: &Request, verdict: u16, out: &mut impl EffectSink) {
        self.beyond_one = true;
        match request.digest.kind {
            Kind::Segments => self.segments(request, verdict, out),
            Kind::Command => {
                if !self.for_socket(request, out) {
                    self.command(&request.body, out);
                }
                self.fold = mix(self.fold ^ self.frames.next);
            }
            Kind::Datagrams => {
                let (sockets, mut cx) = self.udp(out);
                sockets.arrive(request, verdict, &mut cx);
                self.fold = self.udp.fold(self.fold, request);
            }
            Kind::Tick => {}
        }
        self.beyond_one = false;
    }

    /// The work that new time and credit allow, whatever the request was about.
    #[inline(never)]
    fn follow_up(&mut self, out: &mut impl EffectSink) {
        self.beyond_one = true;
        if self.next_deadline <= self.now {
            self.fire(out);
        }
        self.after_sending(out);
        let (sockets, mut cx) = self.udp(out);
        sockets.after_sending(&mut cx);
        if sockets.comes_first() {
            sockets.serve(&mut cx);
            self.serve(out);
        } else {
            self.serve(out);
            let (sockets, mut cx) = self.udp(out);
            sockets.serve(&mut cx);
        }
        self.next_sent = match (self.waiting.is_empty(), self.unsent.front()) {
            (false, _) => 0,
            (true, Some(&(sent, _))) => sent,
            (true, None) => u64::MAX,
        };
        self.next_sent = self.next_sent.min(self.udp.next_sent());
        self.beyond_one = false;
    }

    /// The UDP sockets, and the shared state that they may change.
    fn udp<'a, S: EffectSink>(
        &'a mut self,
        out: &'a mut S,
    ) -> (&'a mut udp::Sockets, udp::Cx<'a, S>) {
        let cx = udp::Cx {
            frames: &mut self.frames,
            limits: &self.limits,
            stats: &mut self.stats,
            out,
        };
        (&mut self.udp, cx)
    }

    /// Applies a command for a UDP socket; returns false if the request is something else.
    fn for_socket(&mut self, request: &Request, out: &mut impl EffectSink) -> bool {
        let (sockets, mut cx) = self.udp(out);
        let done = sockets.command(request, &mut cx);
        if done {
            self.next_sent = self.next_sent.min(self.udp.next_sent());
            self.fold = self.udp.fold(self.fold, request);
        }
        done
    }

    /// Applies a run of one flow: finds its connection, processes its good pieces, and finishes the
    /// request.
    fn segments(&mut self, request: &Request, verdict: u16, out: &mut impl EffectSink) {
        let digest = &request.digest;
        let verdict = verdict & digest.all_good();
        self.stats.segments += u64::from(digest.count);
        if verdict != digest.all_good() {
            self.stats.bad_checksum += u64::from(digest.count) - u64::from(verdict.count_ones());
            if verdict == 0 {
                return;
            }
        }
        let conn = match self.lookup(request) {
            Some(ConnId::MIGRATED) => {
                self.stats.dropped_while_migrating += u64::from(digest.count);
                return;
            }
            Some(conn) => conn,
            None => match self.cookie_returned(request, verdict, out) {
                Returned::Connection(conn) => conn,
                Returned::Dropped => return,
                Returned::Nothing => return self.no_connection(request, verdict, None, out),
            },
        };
        if digest.flags.has(Flags::SYN)
            && let Some(past) = self.replaces(conn, request, verdict)
        {
            self.close(conn, out);
            return self.no_connection(request, verdict, Some(past), out);
        }
        self.with(conn, out, |tcb, cx| {
            // The cursors belong to the connection that the pump looked up. A new connection of the
            // same flow may have replaced it since.
            if digest.bits & Digest::PROGRESS != 0 && conn == digest.hint {
                tcb.progress_low(digest.app_read, digest.app_written, cx);
            }
            request.pieces(verdict, |segment| tcb.segment(segment, cx));
        });
    }

    /// The connection of a run: the pump's hint if it is current, otherwise the one with its flow.
    #[inline]
    fn lookup(&self, request: &Request) -> Option<ConnId> {
        let hint = request.digest.hint;
        match self.places.get(hint.index as usize) {
            Some(place) if place.generation == hint.generation && place.tcb.is_some() => Some(hint),
            _ => self.find(&request.body),
        }
    }

    #[cold]
    fn find(&self, body: &Body) -> Option<ConnId> {
        match body {
            Body::Segment { flow, .. } => self.demux.find(flow),
            _ => None,
        }
    }

    /// Handles a run of no known connection: its port's listener takes it, or a RST answers it.
    /// `past` is the end of the sequence numbers of the connection that this one would replace.
    fn no_connection(
        &mut self,
        request: &Request,
        verdict: u16,
        past: Option<SeqNum>,
        out: &mut impl EffectSink,
    ) {
        let Body::Segment { flow, mac, .. } = request.body else {
            return;
        };
        request.pieces(verdict, |segment| {
            if self.listeners.has(flow.local.port()) {
                self.listen(flow, mac, segment, past, out);
            } else {
                self.refuse(flow, mac, segment, out);
            }
        });
    }

    /// Answers a segment of no connection with a RST, unless a limit forbids it.
    fn refuse(&mut self, flow: Flow, mac: Mac, segment: &Segment<'_>, out: &mut impl EffectSink) {
        self.stats.no_connection += 1;
        let mut cx = Cx::new(self.now, &mut self.frames, &self.limits, out);
        tcp::reset_for(segment, flow, mac, &mut cx);
    }

    /// Inserts a new connection into all tables.
    fn insert(&mut self, conn: ConnId, tcb: Tcb, parent: Option<u16>, out: &mut impl EffectSink) {
        let flow = tcb.flow();
        let place = &mut self.places[conn.index as usize];
        place.tcb = Some(tcb);
        place.listener_port = parent;
        self.demux.insert(flow, conn);
        self.stats.opened += 1;
        out.push(Effect::Hint {
            conn,
            flow,
            open: true,
        });
    }

    /// Closes the oldest connection in TIME-WAIT, which only guards against old segments, when at
    /// most an eighth of the table is free. Its place is usable after `Body::Free`.
    fn evict_time_wait(&mut self, out: &mut impl EffectSink) {
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

    /// Whether there is room for another connection.
    fn has_place(&self) -> bool {
        !self.free.is_empty() || self.places.len() < self.limits.connections as usize
    }

    fn allocate(&mut self) -> Option<ConnId> {
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

    /// RFC 6528 section 3: a clock that ticks every 4 microseconds plus a keyed hash of the
    /// connection.
    fn initial_sequence_number(&self, flow: &Flow) -> SeqNum {
        let clock = (self.now.as_nanos() / 4_000) as u32;
        let hash = self.keys.of_flow(Domain::InitialSequenceNumber, flow, 0);
        SeqNum(clock.wrapping_add(hash as u32))
    }

    /// The offset of a connection's timestamps (RFC 7323 section 5.4): the same for every
    /// connection between these two ends.
    fn timestamp_offset(&self, flow: &Flow) -> u32 {
        self.keys.of_flow(Domain::Timestamp, flow, 0) as u32
    }

    /// Lets a connection that received no segment send, and updates its queues and its deadline.
    fn finish(&mut self, conn: ConnId, out: &mut impl EffectSink) {
        self.with(conn, out, |_, _| ());
    }

    /// The work that is left after a connection has handled a request: queues it, schedules its
    /// deadline, notices its end.
    fn after_request(&mut self, conn: ConnId, finish: Finish, out: &mut impl EffectSink) {
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

    /// Schedules the next look at a connection: when it can send more, when frames are sent, or at
    /// `deadline`.
    fn schedule(&mut self, conn: ConnId, finish: Finish, deadline: Instant) {
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

    /// A connection is closed: no segment finds it any more. Its place waits for [`Body::Free`].
    fn close(&mut self, conn: ConnId, out: &mut impl EffectSink) {
        let place = &mut self.places[conn.index as usize];
        let Some(tcb) = place.tcb.take() else { return };
        place.armed = Instant::NEVER;
        self.deadlines.remove(conn.index);
        let held = place.held;
        let flow = tcb.flow();
        self.demux.remove(&flow);
        self.stats.closed += 1;
        out.push(Effect::Hint {
            conn,
            flow,
            open: false,
        });
        out.push(Effect::Retire { conn, held });
    }

    /// Handles all deadlines that are due. Entries that were too early are put back.
    fn fire(&mut self, out: &mut impl EffectSink) {
        // A deadline that is due is normally armed again for later. The bound keeps a corrupted
        // state from looping for ever.
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

    /// Frames that connections waited for have been sent.
    fn after_sending(&mut self, out: &mut impl EffectSink) {
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
    fn serve(&mut self, out: &mut impl EffectSink) {
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

    fn current(&mut self, conn: ConnId) -> Option<&mut Place> {
        self.places
            .get_mut(conn.index as usize)
            .filter(|place| place.generation == conn.generation)
    }

    fn command(&mut self, body: &Body, out: &mut impl EffectSink) {
        match *body {
            Body::None
            | Body::Segment { .. }
            | Body::Datagrams { .. }
            | Body::Bind { .. }
            | Body::Unbind { .. }
            | Body::Sends { .. } => {}
            Body::Configure {
                address,
                group,
                secret,
            } => {
                self.address = address;
                self.group = group;
                let keys = Keys::new(secret);
                self.keys = keys;
                self.grouping = Grouping::new(&keys, group.count);
                self.demux = Demux::new(keys.table());
                self.frames.resets = RateLimit::new(&keys, Domain::ResetLimit);
                self.frames.challenges = RateLimit::new(&keys, Domain::ChallengeLimit);
                self.udp.configure(&keys, group);
            }
            Body::Open {
                request_id,
                remote,
                mac,
                port,
            } => self.open(request_id, remote, mac, port, out),
            Body::Listen { port, backlog } => self.listeners.open(port, backlog),
            Body::Accepted { port, accepted } => self.listeners.accepted(port, accepted),
            Body::Unlisten { port } => self.unlisten(port, out),
            Body::Progress {
                conn,
                app_read,
                app_written,
                shutdown,
                orphan,
            } => self.with(conn, out, |tcb, cx| {
                tcb.progress(app_read, app_written, cx);
                if shutdown || orphan {
                    tcb.shutdown(cx);
                }
                if orphan {
                    tcb.orphan(cx);
                }
            }),
            Body::Set { conn, settings } => {
                self.with(conn, out, |tcb, cx| tcb.set(settings, cx));
            }
            Body::Abort { conn } => self.with(conn, out, |tcb, cx| tcb.abort(cx)),
            Body::Free { conn } => {
                if let Some(place) = self.current(conn)
                    && place.tcb.is_none()
                {
                    *place = Place::fresh(conn.generation.wrapping_add(1));
                    self.free.push(conn.index);
                }
            }
            Body::MigrationReserve { request_id } => self.migration_reserve(request_id, out),
            Body::MigrationLeave { conn } => self.migration_leave(conn, out),
            Body::MigrationPart { bytes } => self.migration_part(bytes),
            Body::MigrationArrive { conn, len } => self.migration_arrive(conn, len, out),
            Body::MigrationEnd { flow } => self.migration_end(&flow),
            Body::NetworkError { flow, seq, what } => {
                let mut counts = false;
                if let Some(conn) = self.demux.find(&flow) {
                    self.with(conn, out, |tcb, cx| {
                        counts = tcb.network_error(seq, what, cx)
                    });
                }
                self.stats.ignored_errors += u64::from(!counts);
            }
            Body::Neighbor { old, new } => {
                for tcb in self
                    .places
                    .iter_mut()
                    .filter_map(|place| place.tcb.as_mut())
                {
                    if tcb.mac() == old {
                        tcb.set_mac(new);
                    }
                }
            }
        }
    }

    /// Calls `what` with a connection if it still exists, and does the work that follows.
    fn with<S: EffectSink>(
        &mut self,
        conn: ConnId,
        out: &mut S,
        what: impl FnOnce(&mut Tcb, &mut Cx<'_, S>),
    ) {
        if let Some(finish) = self.guarded(conn, out, what) {
            self.after_request(conn, finish, out);
        }
    }

    fn open(
        &mut self,
        request_id: u64,
        remote: SocketAddrV4,
        mac: Mac,
        port: u16,
        out: &mut impl EffectSink,
    ) {
        self.evict_time_wait(out);
        let flow = self.choose_port(remote, port);
        let conn = flow.and_then(|flow| Some((flow, self.allocate()?)));
        let Some((flow, conn)) = conn else {
            self.stats.table_full += u64::from(!self.has_place());
            out.push(Effect::Opened {
                request_id,
                conn: ConnId::NONE,
                flow: Flow {
                    local: SocketAddrV4::new(self.address, port),
                    remote,
                },
            });
            return;
        };
        let iss = self.initial_sequence_number(&flow);
        let mut tcb = Tcb::open(conn, flow, mac, iss, &self.limits, self.now);
        tcb.set_timestamp_offset(self.timestamp_offset(&flow));
        self.insert(conn, tcb, None, out);
        self.places[conn.index as usize].held = true;
        out.push(Effect::Opened {
            request_id,
            conn,
            flow,
        });
        self.finish(conn, out);
    }

    /// Our end of a new connection: `port`, or if that is 0 the first free port, from one that a
    /// keyed hash gives (RFC 6056 section 3.3.1), with which the peer's segments belong to this
    /// group.
    fn choose_port(&self, remote: SocketAddrV4, port: u16) -> Option<Flow> {
        let flow = |port| Flow {
            local: SocketAddrV4::new(self.address, port),
            remote,
        };
        if port != 0 {
            return self.demux.find(&flow(port)).is_none().then(|| flow(port));
        }
        let opened = self.stats.opened;
        let start = self.keys.of_flow(Domain::TcpPort, &flow(0), opened) as u16;
        let GroupIndex { index, count } = self.group;
        ephemeral_from(start)
            .filter(|port| count == 1 || self.grouping.group(&flow(*port)) == index)
            .find(|port| self.demux.find(&flow(*port)).is_none() && !self.listeners.has(*port))
            .map(flow)
    }

    /// The number of places in the connection table, free ones included. It never shrinks.
    pub fn places(&self) -> usize {
        self.places.len()
    }

    /// How many requests of the log were applied.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// How many requests were applied, with and without a log.
    pub fn applied(&self) -> u64 {
        self.position + self.applied_unlogged
    }

    /// Resets the position of the log after working without a log: the requests that were applied
    /// from `position` on count as unlogged.
    pub(crate) fn continue_log_at(&mut self, position: u64) {
        self.applied_unlogged += self.position - position;
        self.position = position;
    }

    /// The time of the latest request.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The latest time for the next request: deadlines need one then, if nothing else happens.
    pub fn next_deadline(&self) -> Instant {
        self.next_deadline
    }

    /// Number of the next outgoing frame, and the limit of numbers.
    pub fn frames(&self) -> &FrameNumbers {
        &self.frames
    }

    /// Counters of the state.
    pub fn stats(&self) -> StateStats {
        StateStats {
            requests: self.applied(),
            resets_withheld: self.frames.resets.refused(),
            challenges_withheld: self.frames.challenges.refused(),
            ..self.stats
        }
    }

    /// How many panics closed a connection and were not injected by a test
    /// ([`Limits::panics_ppm`]): each is a bug, whatever input caused it.
    #[cfg(feature = "testkit")]
    pub fn unexpected_panics(&self) -> u64 {
        self.stats.panicked - self.injected
    }

    /// The limits of this group.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// A fingerprint that replicas post for comparison: the changes of all requests so far, folded
    /// together as they were applied, and the full contents of two places of the connection table,
    /// one of which is a different one for each post. `turn` counts the posts.
    ///
    /// With a post every `e` positions and `p` places in the table ([`Replica::places`]: the
    /// largest number of connections that were open at one time), a corrupted bit in a place
    /// becomes visible after at most `e * p` positions, unless it is overwritten before it has any
    /// effect.
    pub fn post(&self, turn: u64) -> u64 {
        let mut h = mix(self.fold ^ self.now.as_nanos());
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

    /// A fingerprint of the whole state, computed anew. For tests, and for finding differences.
    pub fn fingerprint(&self) -> u64 {
        let mut h = self.fold;
        let mut add = |word: u64| h = mix(h ^ word);
        add(self.now.as_nanos());
        add(self.applied());
        add(u64::from(self.group.index) << 16 | u64::from(self.group.count));
        add(self.frames.next);
        add(self.frames.limit);
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
        add(self.migrated_away);
        for byte in &self.incoming {
            add(u64::from(*byte));
        }
        h
    }

    /// As [`fingerprint`](Self::fingerprint), plus the tables of flows and deadlines. A corruption
    /// may have left traces there although the corrupted value itself was overwritten.
    pub(crate) fn whole_fingerprint(&self) -> u64 {
        let tables = mix(self.demux.fingerprint()) ^ self.deadlines.fingerprint();
        mix(self.fingerprint() ^ tables)
    }

    /// The name of the first difference between two replicas, with the values where they are short.
    pub fn first_difference(&self, other: &Replica) -> Option<String> {
        if self.applied() != other.applied() {
            return Some(format!("applied {} / {}", self.applied(), other.applied()));
        }
        if self.now != other.now {
            return Some(format!("now {:?} / {:?}", self.now, other.now));
        }
        if self.frames != other.frames {
            return Some(format!("frames {:?} / {:?}", self.frames, other.frames));
        }
        if self.listeners != other.listeners {
            return Some("listeners".to_owned());
        }
        if (self.migrated_away, &self.incoming) != (other.migrated_away, &other.incoming) {
            return Some("connections that move".to_owned());
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

    /// How many bits [`Replica::flip`] can change in place `index` of the connection table, its
    /// connection included; 0 if there is no such place.
    #[cfg(any(test, feature = "testkit"))]
    pub fn bits(&self, index: u32) -> u32 {
        self.places.get(index as usize).map_or(0, Flip::bits)
    }

    /// Flips bit `bit` of [`Replica::bits`], as failing memory would, and returns the name of the
    /// field that it belongs to; `None` if there is no such bit. See [`Tcb::flip`].
    #[cfg(any(test, feature = "testkit"))]
    pub fn flip(&mut self, index: u32, bit: u32) -> Option<&'static str> {
        let mut flip = Flip::new(bit);
        self.places.get_mut(index as usize)?.flip("", &mut flip);
        flip.hit()
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

/// Whether a place still belongs to `conn`.
fn is_current(places: &[Place], conn: ConnId) -> bool {
    let place = places.get(conn.index as usize);
    place.is_some_and(|place| place.generation == conn.generation)
}

/// Whether `conn` is in TIME-WAIT.
fn waits(places: &[Place], conn: ConnId) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::effect::Transmit;

    const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const PORT: u16 = 80;

    /// A replica, the effects of the last request, and the time.
    pub(crate) struct Fixture {
        pub(crate) replica: Replica,
        pub(crate) effects: Vec<Effect>,
        now: Instant,
        /// Timestamp of the peer's segments.
        ts_val: Option<u32>,
    }

    impl Fixture {
        pub(crate) fn listening(backlog: u16) -> Self {
            let limits = Limits {
                connections: 4,
                frame_payload: 0,
                ..Limits::default()
            };
            let mut fixture = Fixture {
                replica: Replica::new(limits),
                effects: Vec::new(),
                now: Instant::from_millis(1),
                ts_val: None,
            };
            fixture.command(Body::Configure {
                address: US,
                group: GroupIndex::ONLY,
                secret: [1, 2],
            });
            fixture.command(Body::Listen {
                port: PORT,
                backlog,
            });
            fixture
        }

        fn apply(&mut self, request: &Request) {
            self.effects.clear();
            self.replica.apply(request, 1, &mut self.effects);
        }

        pub(crate) fn command(&mut self, body: Body) {
            self.apply(&Request::command(self.now, self.replica.frames.next, body));
        }

        pub(crate) fn segment(&mut self, from: u16, seq: u32, ack: u32, flags: Flags) {
            let mut digest = Digest::bare(Kind::Segments, self.now, self.replica.frames.next);
            digest.seg_seq = SeqNum(seq);
            digest.seg_ack = SeqNum(ack);
            digest.seg_wnd = 60_000;
            digest.flags = flags;
            digest.count = 1;
            if let Some(ts_val) = self.ts_val {
                digest.bits |= Digest::TIMESTAMPS;
                digest.ts_val = ts_val;
            }
            let body = Body::Segment {
                flow: self.flow(from),
                mac: Mac([2; 6]),
                payload_offset: 54,
                options: crate::log::request::Options::None,
            };
            self.apply(&Request { digest, body });
        }

        pub(crate) fn sent(&self) -> Vec<Transmit> {
            let transmit = |effect: &Effect| match effect {
                Effect::Transmit(transmit) => Some(*transmit),
                _ => None,
            };
            self.effects.iter().filter_map(transmit).collect()
        }

        /// Opens a connection from `from`; returns its name and our first sequence number after the
        /// SYN.
        pub(crate) fn open(&mut self, from: u16, seq: u32) -> (ConnId, u32) {
            self.open_with(from, seq, None)
        }

        /// As [`Fixture::open`], of a peer whose clock shows `ts_val` if it uses timestamps.
        pub(crate) fn open_with(
            &mut self,
            from: u16,
            seq: u32,
            ts_val: Option<u32>,
        ) -> (ConnId, u32) {
            self.ts_val = ts_val;
            self.segment(from, seq, 0, Flags::SYN);
            let syn_ack = self.sent()[0];
            let ours = syn_ack.seq.0.wrapping_add(1);
            self.segment(from, seq + 1, ours, Flags::ACK);
            (syn_ack.conn, ours)
        }

        /// The connection from port `from` of the peer.
        pub(crate) fn flow(&self, from: u16) -> Flow {
            Flow {
                local: SocketAddrV4::new(US, PORT),
                remote: SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), from),
            }
        }

        fn accepted(&self) -> Option<ConnId> {
            self.effects.iter().find_map(|effect| match effect {
                Effect::Accept { conn, .. } => Some(*conn),
                _ => None,
            })
        }
    }

    #[test]
    fn a_handshake_asks_for_the_connection_to_be_accepted_once() {
        let mut fixture = Fixture::listening(4);
        let (conn, ours) = fixture.open(4000, 100);
        assert_eq!(fixture.accepted(), Some(conn));
        fixture.segment(4000, 101, ours, Flags::ACK);
        assert_eq!(fixture.accepted(), None);
    }

    #[test]
    fn a_full_backlog_drops_syns_until_the_application_accepts() {
        let mut fixture = Fixture::listening(1);
        fixture.open(4000, 100);
        fixture.segment(4001, 100, 0, Flags::SYN);
        assert_eq!(fixture.sent(), []);
        assert_eq!(fixture.replica.stats().refused_syn, 1);
        fixture.command(Body::Accepted {
            port: PORT,
            accepted: 1,
        });
        fixture.segment(4001, 100, 0, Flags::SYN);
        assert_eq!(fixture.sent().len(), 1);
    }

    #[test]
    fn a_segment_without_a_connection_is_reset() {
        let mut fixture = Fixture::listening(1);
        fixture.segment(4000, 100, 77, Flags::ACK);
        assert!(fixture.sent()[0].flags.has(Flags::RST));
        assert_eq!(fixture.replica.stats().no_connection, 1);
    }

    #[test]
    fn a_connection_that_ends_before_it_is_established_has_no_socket() {
        let mut fixture = Fixture::listening(4);
        fixture.segment(4000, 100, 0, Flags::SYN);
        fixture.segment(4000, 101, 0, Flags::RST);
        let retired = fixture.effects.iter().find_map(|effect| match effect {
            Effect::Retire { held, .. } => Some(*held),
            _ => None,
        });
        assert_eq!(retired, Some(false));
    }

    #[test]
    fn a_place_is_used_again_only_when_it_was_freed() {
        let mut fixture = Fixture::listening(4);
        let (conn, ours) = fixture.open(4000, 100);
        fixture.segment(4000, 101, ours, Flags::RST);
        assert!(
            fixture
                .effects
                .contains(&Effect::Retire { conn, held: true })
        );
        let (other, _) = fixture.open(4001, 100);
        assert_ne!(other.index, conn.index);
        fixture.command(Body::Free { conn });
        let (again, _) = fixture.open(4002, 100);
        assert_eq!(again.index, conn.index);
        assert_eq!(again.generation, conn.generation + 1);
    }

    #[test]
    fn a_new_syn_takes_the_place_of_a_connection_in_time_wait() {
        let mut fixture = Fixture::listening(4);
        let (conn, ours) = fixture.open(4000, 100);
        fixture.command(Body::Progress {
            conn,
            app_read: 0,
            app_written: 0,
            shutdown: true,
            orphan: false,
        });
        assert!(fixture.sent()[0].flags.has(Flags::FIN));
        fixture.segment(4000, 101, ours + 1, Flags::ACK.with(Flags::FIN));
        let state = |fixture: &Fixture, conn| {
            let found = fixture.replica.connections().find(|(c, _)| *c == conn);
            found.map(|(_, tcb)| tcb.state())
        };
        assert_eq!(state(&fixture, conn), Some(State::TimeWait));
        fixture.segment(4000, 50, 0, Flags::SYN);
        assert_eq!(
            state(&fixture, conn),
            Some(State::TimeWait),
            "an old SYN changes nothing"
        );
        let (new, new_ours) = fixture.open(4000, 5000);
        assert_eq!(state(&fixture, new), Some(State::Established));
        assert_eq!(state(&fixture, conn), None);
        assert!(SeqNum(new_ours).after(SeqNum(ours + 1)));
    }

    #[test]
    fn a_table_full_of_time_wait_makes_room_for_new_connections() {
        let mut fixture = Fixture::listening(100);
        fixture.replica.limits.connections = 16;
        for i in 0..16 {
            let (conn, ours) = fixture.open(4000 + i, 100);
            fixture.command(Body::Accepted {
                port: PORT,
                accepted: u64::from(i) + 1,
            });
            fixture.command(Body::Progress {
                conn,
                app_read: 0,
                app_written: 0,
                shutdown: true,
                orphan: true,
            });
            fixture.segment(4000 + i, 101, ours + 1, Flags::ACK.with(Flags::FIN));
        }
        assert_eq!(
            fixture.replica.stats().time_wait_evicted,
            2,
            "the two oldest ended before it was full"
        );
        fixture.segment(5000, 100, 0, Flags::SYN);
        assert_eq!(fixture.sent(), [], "their places are not free yet");
        for index in 0..2 {
            let conn = ConnId {
                index,
                generation: 0,
            };
            fixture.command(Body::Free { conn });
        }
        fixture.segment(5000, 100, 0, Flags::SYN);
        assert_eq!(fixture.sent().len(), 1);
    }

    #[test]
    fn whatever_finds_the_connection_table_full_is_counted() {
        let mut fixture = Fixture::listening(100);
        for i in 0..4 {
            fixture.open(4000 + i, 100);
        }
        let counted = |fixture: &Fixture| {
            let stats = fixture.replica.stats();
            (stats.table_full, stats.refused_syn, stats.opened)
        };
        assert_eq!(counted(&fixture), (0, 0, 4));
        fixture.segment(5000, 100, 0, Flags::SYN);
        assert_eq!((fixture.sent(), counted(&fixture)), (vec![], (1, 1, 4)));
        fixture.command(Body::Open {
            request_id: 9,
            remote: fixture.flow(6000).remote,
            mac: Mac([2; 6]),
            port: 0,
        });
        let answers = fixture.effects.iter().filter(
            |effect| matches!(effect, Effect::Opened { conn, .. } if *conn == ConnId::NONE),
        );
        assert_eq!(answers.count(), 1);
        assert_eq!(counted(&fixture), (2, 1, 4));

        // A SYN for which the accept queue has no room does not count as `table_full`.
        let mut fixture = Fixture::listening(1);
        fixture.open(4000, 100);
        fixture.segment(5000, 100, 0, Flags::SYN);
        assert_eq!(counted(&fixture), (0, 1, 1));
    }

    #[test]
    fn connections_take_turns_when_there_is_too_little_room_to_send() {
        let mut fixture = Fixture::listening(4);
        fixture.replica.limits.tx_slots = 4;
        fixture.replica.limits.quantum = 1;
        let conns = [fixture.open(4000, 100).0, fixture.open(4001, 100).0];
        let mut frames = [0; 2];
        let mut count = |fixture: &Fixture| {
            for transmit in fixture.sent() {
                let which = conns.iter().position(|conn| *conn == transmit.conn);
                frames[which.expect("one of the two")] += transmit.count;
            }
            frames
        };
        for conn in conns {
            fixture.command(Body::Progress {
                conn,
                app_read: 0,
                app_written: 9 * 536,
                shutdown: false,
                orphan: false,
            });
            count(&fixture);
        }
        let mut seen = [0; 2];
        while fixture.replica.frames.next > fixture.replica.frames.sent {
            fixture.apply(&Request::tick(fixture.now, fixture.replica.frames.next));
            seen = count(&fixture);
            assert!(seen[0].abs_diff(seen[1]) <= 2, "{seen:?}");
        }
        assert_eq!(seen, [9, 9]);
    }
}
