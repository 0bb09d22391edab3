//! The replicated state: all connections of a group, and the data that they share.
//!
//! A [`ReplicaState`] is plain data. Only requests change it; the exceptions are `continue_log_at`
//! and faults that tests inject. The result depends only on the state, the request and its verdict.
//! The verdict shows which segments have good checksums, and is equal for every replica. Replicas
//! that began with the same limits and applied the same requests are therefore equal.
//!
//! The receive pump, which reads frames, publishes requests. A request has a digest of fixed size:
//! the time, the number of sent frames, and the inputs of the fast path for a run of segments. One
//! part of that is the hint: the connection to which the segments probably belong.

use core::cell::Cell;
use core::hash::BuildHasher;
use core::panic::AssertUnwindSafe;
use std::collections::{HashMap, VecDeque};
use std::panic::{catch_unwind, resume_unwind};

use crate::config::Limits;
use crate::hash::mix;
use crate::ip::rate_limit::RateLimit;
use crate::keys::{Grouping, KeyUse, Keys, TableKey};
use crate::log::effect::{EffectSink, FrameNumbers};
use crate::log::request::{
    Body, ConnId, Digest, Flags, Flow, GroupIndex, Mac, Options, Request, RequestKind, Segment,
    Verdict,
};
use crate::seqnum::SeqNum;
use crate::stats::StateStats;
#[cfg(any(test, feature = "testkit"))]
use crate::tcp::fields::{Fields, Flip};
use crate::tcp::{self, Cx, Finish, State, Tcb, fields};
use crate::time::Instant;
use crate::udp;

mod connections;
mod isolate;
mod listen;
mod schedule;
#[cfg(test)]
mod tests;

use connections::Place;
use listen::{Listeners, Returned};
use schedule::Deadlines;

/// A source of requests that are applied one after the other. It also takes the effects of
/// each: work to perform outside of the state, such as building frames.
pub trait Requests<S> {
    /// Moves to the next request; false if there is none.
    fn advance(&mut self) -> bool;
    /// The request, and its verdict.
    fn current(&self) -> (&Request, Verdict);
    /// Called after the current request was applied: takes its effects out of `out`.
    fn take_effects(&mut self, out: &mut S);
}

/// What a state waits for that only a request can tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// A time: [`ReplicaState::next_deadline`].
    pub time: Instant,
    /// That so many frames are sent; `u64::MAX` if nothing waits for that.
    pub sent: u64,
}

/// One copy of the state of all connections of a group.
#[derive(Clone, Debug)]
pub struct ReplicaState {
    /// The latest time that an applied request carried.
    now: Instant,
    /// `next`: the number of the next outgoing frame; `limit`: the first number for which there is
    /// no transmit slot yet; `sent`: how many frames are sent. Also the rate limits of resets and
    /// challenge ACKs.
    frames: FrameNumbers,
    /// How many requests of the log were applied, which is the position of the next one. Requests
    /// that are applied without a log count here, too, until `continue_log_at`.
    position: u64,
    /// How many requests were applied without a log, up to the last `continue_log_at`.
    applied_unlogged: u64,
    /// Running hash of frame numbers and of connections and sockets as requests left them. Replicas
    /// compare it.
    fold: u64,
    /// The place of the connection that was changed last: the next fingerprint includes it, and a
    /// panic of the fast path is blamed on it.
    touched: u32,
    /// A lower bound of all deadlines of connections. It may be too early, because the deadline
    /// that set it may have been postponed.
    next_deadline: Instant,
    /// `follow_up` runs once `frames.sent` reaches this. With 0 it runs after every request;
    /// `u64::MAX` means that nothing waits for frames to be sent.
    next_sent: u64,
    limits: Limits,
    /// The group of the stack that this replica belongs to.
    group: GroupIndex,
    keys: Keys,
    grouping: Grouping,
    /// The connection table. A [`ConnId`] is the index of a place and its generation, which
    /// counts the connections that were in it.
    places: Vec<Place>,
    /// Indices of free places.
    free: Vec<u32>,
    /// The connection of each flow. Only for look-ups, since its order has no meaning.
    flows: HashMap<Flow, ConnId, TableKey>,
    listeners: Listeners,
    /// Connections that wait for transmit slots or their turn, in order.
    waiting: VecDeque<ConnId>,
    /// Connections with acknowledged bytes to which unsent frames still refer. They may release
    /// these bytes once `frames.sent` is at least the number of their entry; numbers ascend.
    unsent: VecDeque<(u64, ConnId)>,
    /// Connections in TIME-WAIT, the oldest first. Some may have been closed since.
    time_wait: VecDeque<ConnId>,
    /// When each connection has to be handled next.
    deadlines: Deadlines,
    udp: udp::UdpSockets,
    stats: StateStats,
    /// `frames.next` before the request: `recover` sets it back to this after a panic. Replicas do
    /// not compare it, nor the next field, since both have a meaning within one request only.
    first_frame: u64,
    /// Whether code runs that may change several connections. A panic in it is not attributed
    /// to one of them, unless it is within `guarded`, which knows the connection.
    concerns_several: bool,
    /// How many of [`StateStats::panicked`] were injected ([`Limits::panics_ppm`]).
    #[cfg(feature = "testkit")]
    injected: u64,
}

impl ReplicaState {
    /// The state before the first request.
    pub fn new(limits: Limits) -> Self {
        ReplicaState {
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
            group: GroupIndex::ONLY,
            keys: Keys::default(),
            grouping: Grouping::new(&Keys::default(), 1),
            places: Vec::new(),
            free: Vec::new(),
            flows: HashMap::default(),
            listeners: Listeners::default(),
            waiting: VecDeque::new(),
            unsent: VecDeque::new(),
            time_wait: VecDeque::new(),
            deadlines: Deadlines::default(),
            udp: udp::UdpSockets::default(),
            stats: StateStats::default(),
            first_frame: 0,
            concerns_several: false,
            #[cfg(feature = "testkit")]
            injected: 0,
        }
    }

    /// Applies the next request of the log. `verdict` has one bit per segment of a run, or per
    /// datagram, set if its checksum is good; other requests ignore it. The effects of the request
    /// go to `out`, which must be empty.
    ///
    /// A panic in the code of one connection closes that connection, identically in every replica
    /// ([`StateStats::panicked`]).
    ///
    /// # Panics
    /// If code that is not specific to one connection panics, such as the answer to a segment that
    /// matches none. The replica must not be used afterwards.
    pub fn apply(&mut self, request: &Request, verdict: Verdict, out: &mut impl EffectSink) {
        let apply = || self.apply_unguarded(request, verdict, &mut *out);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(apply)) {
            self.recover(panic, request, out);
        }
    }

    /// Applies several requests. Cheaper than calling [`ReplicaState::apply`] for each, because
    /// one `catch_unwind` covers many. After the panic of a connection it continues with the
    /// next request.
    ///
    /// # Panics
    /// As [`ReplicaState::apply`], and if a method of `requests` panics.
    pub fn apply_each<S: EffectSink>(&mut self, requests: &mut impl Requests<S>, out: &mut S) {
        loop {
            // Whether a request is being applied.
            let applying = Cell::new(false);
            let batch = || {
                while requests.advance() {
                    let (request, verdict) = requests.current();
                    applying.set(true);
                    self.apply_unguarded(request, verdict, out);
                    applying.set(false);
                    requests.take_effects(out);
                }
            };
            match catch_unwind(AssertUnwindSafe(batch)) {
                Ok(()) => break,
                Err(panic) if applying.get() => {
                    self.recover(panic, requests.current().0, out);
                    requests.take_effects(out);
                }
                Err(panic) => resume_unwind(panic),
            }
        }
    }

    /// Applies one request, for callers that catch the panics of a whole batch themselves: a panic
    /// unwinds out of this function, and the caller must pass it to [`ReplicaState::recover`]
    /// before any other use of the replica.
    ///
    /// # Panics
    /// If any code called from here panics.
    #[inline(always)]
    pub fn apply_unguarded(
        &mut self,
        request: &Request,
        verdict: Verdict,
        out: &mut impl EffectSink,
    ) {
        let digest = &request.digest;
        self.now = self.now.max(digest.now);
        self.position += 1;
        self.first_frame = self.frames.next;
        self.frames.update_sent(digest.sent, &self.limits);
        let may_be_acks = digest.bits & (Digest::OPTIONS | Digest::CE | Digest::ACKS) != 0;
        let is_taken = self.fast_path::<false>(request, &[], verdict, out)
            || may_be_acks && self.fast_path_of_acks(request, verdict, out);
        if !is_taken {
            self.slow_path(request, verdict, out);
        }
        if self.next_deadline <= self.now || self.next_sent <= self.frames.sent {
            self.follow_up(out);
        }
    }

    /// Applies a request by the fast path, if the hint names a connection and its segments are
    /// the next ones that this connection expects. Otherwise returns false, and the slow path
    /// has to apply it. Even then `touched` may be updated, and the connection may already have
    /// the application's cursors (how much it has read and written); the slow path may update
    /// them again.
    #[inline(always)]
    fn fast_path<const ARE_ACKS: bool>(
        &mut self,
        request: &Request,
        beyond: &[u16],
        verdict: Verdict,
        out: &mut impl EffectSink,
    ) -> bool {
        let digest = &request.digest;
        let conn = digest.hint;
        let full_verdict = digest.all_good();
        let Some(place) = self.places.get_mut(conn.index as usize) else {
            return false;
        };
        let (true, Some(tcb)) = (place.generation == conn.generation, &mut place.tcb) else {
            return false;
        };
        if !tcb.expects::<ARE_ACKS>(digest) || verdict & full_verdict != full_verdict {
            return false;
        }
        self.touched = conn.index;
        let mut cx = Cx::new(self.now, &mut self.frames, &self.limits, out);
        if digest.bits & Digest::PROGRESS != 0 {
            tcb.progress_low(digest.app_read, digest.app_written, &mut cx);
        }
        let is_taken = match ARE_ACKS {
            true => tcb.take_expected_acks(digest, beyond, &mut cx),
            false => tcb.take_expected(digest, 0, &mut cx),
        };
        if !is_taken {
            return false;
        }
        let finish = tcb.finish(&mut cx);
        self.stats.segments += u64::from(digest.count);
        self.fold = tcb.fold(self.fold ^ self.frames.next);
        let deadline = tcb.next_deadline();
        if finish != Finish::default() || deadline < place.armed {
            self.concerns_several = true;
            self.schedule(conn, finish, deadline);
            self.concerns_several = false;
        }
        true
    }

    /// As [`ReplicaState::fast_path`], for a run of acknowledgments with one window.
    #[inline(never)]
    fn fast_path_of_acks(
        &mut self,
        request: &Request,
        verdict: Verdict,
        out: &mut impl EffectSink,
    ) -> bool {
        let Some(beyond) = request.acks_alike() else {
            return false;
        };
        self.fast_path::<true>(request, beyond, verdict, out)
    }

    /// Applies a request that the fast path rejected.
    #[inline(never)]
    fn slow_path(&mut self, request: &Request, verdict: Verdict, out: &mut impl EffectSink) {
        self.concerns_several = true;
        match request.digest.kind {
            RequestKind::Segments => self.segments(request, verdict, out),
            RequestKind::Command => {
                if !self.udp_command(request, out) {
                    self.command(request, out);
                }
                self.fold = mix(self.fold ^ self.frames.next);
            }
            RequestKind::Datagrams => {
                let (sockets, mut cx) = self.udp(out);
                sockets.arrive(request, verdict, &mut cx);
                self.fold = self.udp.fold(self.fold, request);
            }
            RequestKind::Tick => {}
        }
        self.concerns_several = false;
    }

    /// Fires deadlines that are due, and lets waiting connections and UDP sockets continue. Any
    /// request may carry a later time or more sent frames, so this may run after every kind.
    #[inline(never)]
    fn follow_up(&mut self, out: &mut impl EffectSink) {
        self.concerns_several = true;
        if self.next_deadline <= self.now {
            self.fire_deadlines(out);
        }
        self.after_sending(out);
        let (sockets, mut cx) = self.udp(out);
        sockets.after_sending(&mut cx);
        if sockets.comes_first() {
            sockets.serve(&mut cx);
            self.serve_waiting(out);
        } else {
            self.serve_waiting(out);
            let (sockets, mut cx) = self.udp(out);
            sockets.serve(&mut cx);
        }
        self.next_sent = match (self.waiting.is_empty(), self.unsent.front()) {
            (false, _) => 0,
            (true, Some(&(sent, _))) => sent,
            (true, None) => u64::MAX,
        };
        self.next_sent = self.next_sent.min(self.udp.next_sent());
        self.concerns_several = false;
    }

    /// The UDP sockets, and the shared state that they may change.
    fn udp<'a, S: EffectSink>(
        &'a mut self,
        out: &'a mut S,
    ) -> (&'a mut udp::UdpSockets, udp::UdpCx<'a, S>) {
        let cx = udp::UdpCx {
            frames: &mut self.frames,
            limits: &self.limits,
            stats: &mut self.stats,
            out,
        };
        (&mut self.udp, cx)
    }

    /// Applies a command for a UDP socket. Returns false if the request is something else.
    fn udp_command(&mut self, request: &Request, out: &mut impl EffectSink) -> bool {
        let (sockets, mut cx) = self.udp(out);
        let done = sockets.command(request, &mut cx);
        if done {
            self.next_sent = self.next_sent.min(self.udp.next_sent());
            self.fold = self.udp.fold(self.fold, request);
        }
        done
    }

    /// Applies a run (consecutive segments of one flow): finds the flow's connection, and
    /// passes it the segments with good checksums. An early return skips the application's
    /// cursors. Nothing is lost: they are totals, and a later request carries them again.
    fn segments(&mut self, request: &Request, verdict: Verdict, out: &mut impl EffectSink) {
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
            Some(conn) => conn,
            None => match self.cookie_returned(request, verdict, out) {
                Returned::Connection(conn) => conn,
                Returned::Dropped => return,
                Returned::Nothing => return self.no_connection(request, verdict, None, out),
            },
        };
        if digest.flags.has(Flags::SYN)
            && let Some(past) = self.replaced_past(conn, request, verdict)
        {
            self.close(conn, out);
            return self.no_connection(request, verdict, Some(past), out);
        }
        self.with(conn, out, |tcb, cx| {
            // The cursors belong to the connection that the pump found (`hint`), but the flow
            // may have a newer connection by now.
            if digest.bits & Digest::PROGRESS != 0 && conn == digest.hint {
                tcb.progress_low(digest.app_read, digest.app_written, cx);
            }
            request.pieces(verdict, |segment| tcb.segment(segment, cx));
        });
    }

    /// Handles a run that matches no connection: each segment goes to the listener of its port,
    /// or is refused. `past` is set if a SYN replaced an old connection: the first sequence
    /// number after those of the old one. (A SYN is always a separate run.)
    fn no_connection(
        &mut self,
        request: &Request,
        verdict: Verdict,
        past: Option<SeqNum>,
        out: &mut impl EffectSink,
    ) {
        let Body::Segments { flow, mac, .. } = request.body else {
            return;
        };
        request.pieces(verdict, |segment| {
            if self.listeners.takes(&flow) {
                self.listen(flow, mac, segment, past, out);
            } else if segment.flags.opens() && self.listeners.holds(flow.local) {
                // When it was published, its flow still had a connection. The peer sends it again.
                self.stats.refused_syn += 1;
            } else {
                self.refuse(flow, mac, segment, out);
            }
        });
    }

    /// Answers a segment that matches no connection with a RST, unless RFC 9293 section 3.10.7.1 or
    /// a rate limit forbids it.
    fn refuse(&mut self, flow: Flow, mac: Mac, segment: &Segment<'_>, out: &mut impl EffectSink) {
        self.stats.no_connection += 1;
        let mut cx = Cx::new(self.now, &mut self.frames, &self.limits, out);
        tcp::reset_for(segment, flow, mac, &mut cx);
    }

    fn command(&mut self, request: &Request, out: &mut impl EffectSink) {
        match request.body {
            // Not commands, or commands of UDP sockets, which `udp_command` applied.
            Body::None
            | Body::Segments { .. }
            | Body::Datagrams { .. }
            | Body::Bind { .. }
            | Body::Unbind { .. }
            | Body::Sends { .. } => {}
            Body::Configure { group, secret } => {
                self.group = group;
                let keys = Keys::new(secret);
                self.keys = keys;
                self.grouping = Grouping::new(&keys, group.count);
                self.flows = HashMap::with_hasher(keys.table());
                self.frames.resets = RateLimit::new(&keys, KeyUse::ResetLimit);
                self.frames.challenges = RateLimit::new(&keys, KeyUse::ChallengeLimit);
                self.udp.configure(&keys, group);
            }
            Body::Open {
                request_id,
                local,
                remote,
                mac,
                settings,
            } => self.open(request_id, Flow { local, remote }, (mac, settings), out),
            Body::AcceptSyn {
                request_id,
                flow,
                mac,
                options,
                settings,
            } => {
                let options = Options::Syn(options);
                let syn = request.digest.segment(&options);
                self.accept_syn(request_id, (flow, mac, &syn), settings, out);
            }
            Body::HoldSyns { port, holds } => self.listeners.hold(port, holds),
            Body::RefuseSyn { flow, mac } => {
                self.refuse(flow, mac, &request.digest.segment(&Options::None), out);
            }
            Body::SetListener {
                port,
                binding,
                settings,
            } => self.listeners.set(port, binding, settings),
            Body::Listen {
                port,
                backlog,
                binding,
            } => self.listeners.open(port, backlog, binding),
            Body::Accepted {
                port,
                binding,
                accepted,
            } => self.listeners.accepted(port, binding, accepted),
            Body::Unlisten { port, binding } => self.unlisten(port, binding, out),
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
            Body::Tune {
                conn,
                tuning,
                more,
                push,
            } => self.with(conn, out, |tcb, cx| tcb.tune(tuning, (more, push), cx)),
            Body::Abort { conn } => self.with(conn, out, |tcb, cx| tcb.abort(cx)),
            Body::AddressLost { conn } => self.with(conn, out, |tcb, cx| tcb.lose_address(cx)),
            Body::Free { conn } => {
                if let Some(place) = self.current(conn)
                    && place.tcb.is_none()
                {
                    *place = Place::fresh(conn.generation.wrapping_add(1));
                    self.free.push(conn.index);
                }
            }
            Body::NetworkError { flow, seq, what } => {
                let mut heeded = false;
                if let Some(conn) = self.flows.get(&flow).copied() {
                    self.with(conn, out, |tcb, cx| {
                        heeded = tcb.network_error(seq, what, cx)
                    });
                }
                self.stats.ignored_errors += u64::from(!heeded);
            }
            Body::NextHop { conn, mac } => {
                self.with(conn, out, |tcb, _| {
                    if tcb.mac() != mac {
                        tcb.set_mac(mac);
                    }
                });
            }
            Body::LinkMtu { mtu } => self.frames.link_mtu_v6 = mtu,
            Body::PathMtu { conn, mtu } => self.with(conn, out, |tcb, cx| tcb.path_mtu(mtu, cx)),
        }
    }

    /// If the connection still exists, calls `what` with it, and then `after_request`. A panic in
    /// `what` closes the connection.
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

    /// The position of the next request in the log, which is the number of applied requests.
    /// Requests without a log count too, until `continue_log_at`.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// How many requests were applied, with and without a log.
    pub fn applied(&self) -> u64 {
        self.position + self.applied_unlogged
    }

    /// Continues with the log at `position`, after working without it. Nothing is undone:
    /// requests that were applied beyond `position` count as unlogged from now on. `position`
    /// is at most the result of [`ReplicaState::position`].
    pub fn continue_log_at(&mut self, position: u64) {
        self.applied_unlogged += self.position - position;
        self.position = position;
    }

    /// The latest time that an applied request carried.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// What it waits for; no such count of sent frames was in a request that it has applied.
    #[inline]
    pub fn awaited(&self) -> Awaited {
        Awaited {
            time: self.next_deadline,
            sent: self.next_sent.max(self.frames.sent + 1),
        }
    }

    /// Some request, at least a tick, must be applied by this time; otherwise deadlines fire late.
    pub fn next_deadline(&self) -> Instant {
        self.next_deadline
    }

    /// The number of the next outgoing frame, the limit of numbers, and the number of sent
    /// frames; also the rate limits of resets and challenge ACKs.
    pub fn frames(&self) -> &FrameNumbers {
        &self.frames
    }

    /// Counters of the state.
    pub fn stats(&self) -> StateStats {
        let counted = StateStats {
            requests: self.applied(),
            resets_withheld: self.frames.resets.refused(),
            challenges_withheld: self.frames.challenges.refused(),
            gaps_refused: self.frames.gaps_refused,
            ..self.stats
        };
        counted.and(self.frames.counts)
    }

    /// How many panics that no test injected ([`Limits::panics_ppm`]) closed a connection. Each
    /// is a bug, regardless of the input that caused it.
    #[cfg(feature = "testkit")]
    pub fn unexpected_panics(&self) -> u64 {
        self.stats.panicked - self.injected
    }

    /// The limits of this group.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }
}

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
        let key = self.flows.hasher();
        let flows = self.flows.iter().map(|flow| key.hash_one(flow));
        let flows = flows.fold(0, u64::wrapping_add);
        let tables = mix(flows) ^ self.deadlines.fingerprint();
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
