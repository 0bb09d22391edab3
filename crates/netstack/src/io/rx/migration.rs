//! Connection migration in the receive pumps: a connection moves from one group to another while it
//! is used.
//!
//! The receive pumps of the two groups exchange messages; each is the only publisher of its group's
//! log:
//!
//! ```text
//!  group that it leaves                         group that it arrives in
//!  asked to let it migrate    -- Offer ---->    publishes MigrationReserve; from now on
//!                                               defers requests about the connection
//!  sends its segments there   <-- Reply ----
//!  publishes MigrationLeave; defers requests
//!  waits until earlier effects are performed,
//!  all its frames are sent, and segments that
//!  were on their way to it are deferred
//!  publishes Free             -- Transfer ->    publishes MigrationPart for each part, then
//!                                               MigrationArrive, the application's progress,
//!                                               and the deferred requests of both groups in
//!                                               the order in which they came
//! ```
//!
//! So no part of a connection exists twice, and nothing is lost except requests beyond
//! [`MAX_DEFERRED`], which are counted. A connection that may not leave stays unchanged, and its
//! deferred requests are published where it is. The application reads and writes all the while: its
//! stream is assigned to the new place, and its flag is lowered after that.
//!
//! # Why it works this way
//!
//! - A connection leaves and arrives at one position each. No value is shared between the replicas
//!   of two groups, so failures, stealing, joining and [confirmation](crate::group::Layout) need no
//!   rule for it. Its deadline, its turn and what it waits for follow from its `Tcb`; its frames
//!   are counted from the beginning.
//! - It leaves only when everything that was asked for up to `MigrationLeave` is performed and all
//!   frames that were numbered by then are sent, as with `Free`. So deliveries continue with the
//!   next number; all groups have the same number of delivery slots.
//! - The two groups exchange two streams in their lists. A socket keeps its stream, and asks it for
//!   the current group when it has something to announce. The group that receives the connection
//!   lowers the flag after the exchange and then reads the cursors: a flag that was raised before
//!   is seen then, and one that is raised later reaches the new group.
//! - Segments and ICMP errors that arrive meanwhile are deferred by the pump that receives them,
//!   and follow `MigrationArrive` in the order in which they came. On a good wire nothing is lost
//!   (`tests/migration.rs`); `tests/between.rs` sends errors and SYNs at every step.
//! - Segments that were taken from the device as the old group's, and not published, could arrive
//!   behind later ones that the new group takes: the peer would see acknowledgments repeated (RFC
//!   5681 section 4.2). So the connection leaves only when the old group has published everything
//!   that was meant for it when the table of migrated flows changed
//!   ([`ClaimMark`](crate::io::claim::ClaimMark)); the new group publishes the old group's deferred
//!   requests, then its own, and only then takes segments of the connection as they come.
//! - The group of a flow is looked up in the table of migrated flows
//!   ([`migrated_flows`](crate::groups::migrated_flows)) while that is not empty, then by hash. A
//!   segment that reaches another group all the same is forwarded.
//! - Connections begin only in their home group. A SYN that would begin one elsewhere is dropped;
//!   its repetition reaches the home group.
//! - A connection stays if it is not established, is over, has lost its socket, or has too many
//!   losses on its scoreboard to be serialized in 16 KB. One that waits to be accepted may migrate,
//!   and counts in the backlog of the group in which it began.

use std::collections::HashMap;

use crate::io::Run;
use crate::io::rx::{Log, RESERVED, RxPump, sample_cursors};
use crate::log::effect::SerializedPart;
use crate::log::request::{Body, ConnId, Digest, Flow, MigrationParts, Request, Verdict};
use crate::time::{Duration, Instant};

/// How long a connection waits for segments that were on their way when its group changed, in time
/// and in turns of the pump: after both, frames must have been lost, and what does come is
/// forwarded.
const MAX_WAIT: Duration = Duration::from_secs(1);
const MAX_WAIT_TURNS: u32 = 1 << 12;
/// The most requests that each of the two groups defers for one connection.
const MAX_DEFERRED: usize = 256;

/// A request about a connection that belongs to another group, or is migrating.
pub(crate) struct DeferredRequest {
    request: Request,
    verdict: Option<Verdict>,
    run: Run,
}

/// Messages between the pumps of two groups.
pub(crate) enum MigrationMessage {
    /// Asks the group of a connection to let it migrate to group `to`.
    #[cfg_attr(
        not(any(feature = "migration", feature = "testkit")),
        expect(dead_code, reason = "only connections that may move are asked to")
    )]
    Start { conn: ConnId, flow: Flow, to: u16 },
    /// Asks whether there is room for a connection.
    Offer { from: u16, flow: Flow },
    /// Whether there is a place for it; if so, the free stream that the sender gets in exchange.
    Reply { flow: Flow, stream: Option<u32> },
    /// The connection does not migrate after all.
    Cancel { flow: Flow },
    /// The connection.
    Transfer {
        flow: Flow,
        bytes: Vec<u8>,
        stream: u32,
        deferred: Vec<DeferredRequest>,
    },
    /// A connection of this home group was closed in another group.
    Closed { flow: Flow },
    /// A request that belongs to the receiver of this message.
    Forward(Box<DeferredRequest>),
}

/// Results that primaries report to the pump.
pub(crate) enum MigrationProgress {
    Reserved { request_id: u64, conn: ConnId },
    Serialized(Box<SerializedPart>),
}

/// A connection that leaves.
struct Outgoing {
    conn: ConnId,
    flow: Flow,
    to: u16,
    step: Step,
    deferred: Vec<DeferredRequest>,
}

enum Step {
    /// The other group was asked.
    Offered,
    /// The other group has room, and gives `stream` in exchange.
    Serializing {
        stream: u32,
        /// The position after its last request.
        position: u64,
        /// When that was, and the question to whoever claims frames then.
        since: Instant,
        question: u64,
        /// Turns that it waited for segments on their way.
        waited: u32,
        /// The number of frames that must be sent first, once known.
        numbered: Option<u64>,
        /// The parts of the serialized connection so far.
        parts: Vec<SerializedPart>,
    },
}

/// A connection that arrives.
struct Incoming {
    flow: Flow,
    from: u16,
    request_id: u64,
    /// The place reserved for it.
    conn: Option<ConnId>,
    /// Its serialized bytes, and how many of them were published.
    bytes: Vec<u8>,
    published: usize,
    /// Whether `bytes` is complete.
    is_complete: bool,
    /// Whether a primary has reported its beginning.
    is_begun: bool,
    /// The requests that the other group deferred, then those of this group.
    deferred: [Vec<DeferredRequest>; 2],
}

/// The migrations of a pump's group.
#[derive(Default)]
pub(crate) struct Migrations {
    outgoing: Vec<Outgoing>,
    incoming: Vec<Incoming>,
    next_request_id: u64,
    /// Connections of this group whose home group is another one.
    arrived: HashMap<ConnId, Flow>,
}

impl Migrations {
    fn outgoing(&mut self, flow: &Flow) -> Option<&mut Outgoing> {
        self.outgoing.iter_mut().find(|one| one.flow == *flow)
    }

    fn incoming(&mut self, flow: &Flow) -> Option<&mut Incoming> {
        self.incoming.iter_mut().find(|one| one.flow == *flow)
    }

    /// The deferred requests of a flow, if it is migrating.
    fn deferred(&mut self, flow: &Flow) -> Option<&mut Vec<DeferredRequest>> {
        let packing = |one: &&mut Outgoing| matches!(one.step, Step::Serializing { .. });
        if let Some(outgoing) = self
            .outgoing
            .iter_mut()
            .find(|one| one.flow == *flow)
            .filter(packing)
        {
            return Some(&mut outgoing.deferred);
        }
        let incoming = self.incoming.iter_mut().find(|one| one.flow == *flow);
        incoming.map(|incoming| &mut incoming.deferred[1])
    }

    /// A primary has reported the beginning of an arriving connection. Returns whether it is one:
    /// its pump learns it behind the deferred requests, so that none is overtaken.
    pub(crate) fn begins(&mut self, flow: &Flow) -> bool {
        let incoming = self.incoming(flow);
        incoming.map(|incoming| incoming.is_begun = true).is_some()
    }

    /// Whether `conn` is migrating from or to this group. Its application's progress is then
    /// published later.
    pub(crate) fn has(&self, conn: ConnId) -> bool {
        let leaves =
            |one: &Outgoing| one.conn == conn && matches!(one.step, Step::Serializing { .. });
        let comes =
            |one: &Incoming| one.conn == Some(conn) && !(one.is_complete && one.bytes.is_empty());
        self.outgoing.iter().any(leaves) || self.incoming.iter().any(comes)
    }

    /// The connection to install next. They are installed one after the other, because parts of two
    /// must not mix.
    fn next_to_install(&self) -> Option<usize> {
        let mut incoming = self.incoming.iter();
        let begun = incoming.position(|one| one.is_complete && one.published > 0);
        begun.or_else(|| self.incoming.iter().position(|one| one.is_complete))
    }

    /// Whether there is work that needs no message from another group.
    pub(crate) fn has_work(&self) -> bool {
        let packing = |one: &Outgoing| matches!(one.step, Step::Serializing { .. });
        self.outgoing.iter().any(packing) || self.incoming.iter().any(|one| one.is_complete)
    }
}

impl RxPump {
    /// Does all migration work that is possible now. Returns how much that was.
    pub(crate) fn advance_migrations(&mut self, now: Instant, log: &mut impl Log) -> usize {
        if self.group.count == 1 {
            return 0;
        }
        let mut done = 0;
        while log.room() > RESERVED {
            let Some(message) = self.world.mailbox.messages.pop() else {
                break;
            };
            self.on_message(now, message, log);
            done += 1;
        }
        while let Some(progress) = self.world.migration_progress.pop() {
            self.on_progress(now, progress, log);
            done += 1;
        }
        if self.migration.has_work() {
            done += self.send_serialized(now, log) + self.install(now, log);
        }
        done
    }

    fn send_message(&self, group: u16, message: MigrationMessage) {
        if let Some(mailbox) = self.world.mailbox_of(group) {
            mailbox.messages.push(message);
            mailbox.wake();
        }
    }

    /// The group that has the connection of `flow`.
    fn group_of(&self, flow: &Flow) -> u16 {
        let moved = self.world.shared.migrated.find(flow);
        moved.unwrap_or_else(|| self.grouping.group(flow))
    }

    fn on_message(&mut self, now: Instant, message: MigrationMessage, log: &mut impl Log) {
        match message {
            MigrationMessage::Start { conn, flow, to } => self.begin_outgoing(conn, flow, to),
            MigrationMessage::Offer { from, flow } => self.reserve(now, from, flow, log),
            MigrationMessage::Reply { flow, stream } => self.on_reply(now, flow, stream, log),
            MigrationMessage::Cancel { flow } => self.cancel(now, flow, log),
            MigrationMessage::Transfer {
                flow,
                bytes,
                stream,
                deferred,
            } => {
                let Some(incoming) = self.migration.incoming(&flow) else {
                    return;
                };
                (incoming.bytes, incoming.deferred[0], incoming.is_complete) =
                    (bytes, deferred, true);
                if let Some(conn) = incoming.conn {
                    self.world.streams.assign(conn, stream);
                    if self.grouping.group(&flow) != self.group.index {
                        self.migration.arrived.insert(conn, flow);
                    }
                }
            }
            MigrationMessage::Closed { flow } => {
                self.publish_command(now, Body::MigrationEnd { flow }, log)
            }
            MigrationMessage::Forward(stray) => self.take_deferred(now, *stray, true, log),
        }
    }

    fn on_progress(&mut self, now: Instant, progress: MigrationProgress, log: &mut impl Log) {
        match progress {
            MigrationProgress::Reserved { request_id, conn } => {
                self.on_reserved(now, request_id, conn, log)
            }
            MigrationProgress::Serialized(packed) => {
                let outgoing = &mut self.migration.outgoing;
                let outgoing = outgoing.iter_mut().find(|one| one.conn == packed.conn);
                if let Some(Outgoing {
                    step: Step::Serializing { parts, .. },
                    ..
                }) = outgoing
                {
                    parts.push(*packed);
                }
            }
        }
    }

    // The group that the connection leaves.

    fn begin_outgoing(&mut self, conn: ConnId, flow: Flow, to: u16) {
        let is_here = self.has_hint(&flow, conn);
        let is_there = is_here && to != self.group.index && to < self.group.count;
        // A connection migrates to one group at a time.
        if !is_there
            || self.migration.outgoing(&flow).is_some()
            || self.migration.incoming(&flow).is_some()
        {
            return;
        }
        self.migration.outgoing.push(Outgoing {
            conn,
            flow,
            to,
            step: Step::Offered,
            deferred: Vec::new(),
        });
        let from = self.group.index;
        self.send_message(to, MigrationMessage::Offer { from, flow });
    }

    fn on_reply(&mut self, now: Instant, flow: Flow, stream: Option<u32>, log: &mut impl Log) {
        let asked = |one: &&mut Outgoing| matches!(one.step, Step::Offered);
        let Some(outgoing) = self.migration.outgoing(&flow).filter(asked) else {
            return;
        };
        let (conn, to) = (outgoing.conn, outgoing.to);
        let Some(stream) = stream else {
            return self.migration.outgoing.retain(|one| one.flow != flow);
        };
        // The connection may have been closed meanwhile, and its flow may belong to another one.
        let is_here = self.has_hint(&flow, conn);
        if !is_here || !self.set_home(&flow, to) {
            self.migration.outgoing.retain(|one| one.flow != flow);
            return self.send_message(to, MigrationMessage::Cancel { flow });
        }
        self.hints.remove(&flow);
        self.hints_version += 1;
        self.publish_command(now, Body::MigrationLeave { conn }, log);
        let position = log.published();
        let question = self.claim_mark.ask();
        if let Some(outgoing) = self.migration.outgoing(&flow) {
            outgoing.step = Step::Serializing {
                stream,
                position,
                since: now,
                question,
                waited: 0,
                numbered: None,
                parts: Vec::new(),
            };
        }
    }

    /// Makes `group` the destination of the segments of `flow`. Returns whether the table has room
    /// for that.
    fn set_home(&self, flow: &Flow, group: u16) -> bool {
        let moved = &self.world.shared.migrated;
        if self.grouping.group(flow) == group {
            moved.remove(flow);
            return true;
        }
        moved.set(flow, group)
    }

    /// Sends connections that are serialized, after all their earlier effects were performed.
    fn send_serialized(&mut self, now: Instant, log: &mut impl Log) -> usize {
        let mut done = 0;
        let mut i = 0;
        while i < self.migration.outgoing.len() && log.room() > RESERVED {
            let tx = &self.world.tx;
            let Step::Serializing {
                position,
                since,
                question,
                waited,
                numbered,
                ..
            } = &mut self.migration.outgoing[i].step
            else {
                i += 1;
                continue;
            };
            if *position > log.performed() {
                // A worker that returned to logged mode counts positions anew, so the log may never
                // get there.
                if *position > log.published() {
                    let tick = Request::tick(now, self.sample_sent());
                    self.publish(&tick, None, Run::default(), log);
                    done += 1;
                }
                i += 1;
                continue;
            }
            // All frames of the connection are built by now. Some may still wait for the device,
            // with payload in its send ring.
            if tx.sent() < *numbered.get_or_insert_with(|| tx.claimed()) {
                i += 1;
                continue;
            }
            // Segments that were on their way here are deferred by now, in their order.
            let mark = self.claim_mark.answer_to(*question);
            let is_late = *waited >= MAX_WAIT_TURNS && now.since(*since) >= MAX_WAIT;
            if mark.is_none_or(|frames| self.stats.frames < frames && !is_late) {
                *waited = waited.saturating_add(1);
                i += 1;
                continue;
            }
            // Every primary that had parts or other updates of it has reported them.
            self.take_hints(now);
            while let Some(progress) = self.world.migration_progress.pop() {
                self.on_progress(now, progress, log);
            }
            let outgoing = self.migration.outgoing.remove(i);
            self.transfer(now, outgoing, log);
            done += 1;
        }
        done
    }

    fn transfer(&mut self, now: Instant, outgoing: Outgoing, log: &mut impl Log) {
        let Outgoing {
            conn,
            flow,
            to,
            step,
            deferred,
        } = outgoing;
        let Step::Serializing {
            stream, mut parts, ..
        } = step
        else {
            return;
        };
        parts.sort_unstable_by_key(|packed| packed.part);
        // An interrupted primary may have reported a part, and the one that took over reported it
        // again.
        parts.dedup_by_key(|packed| packed.part);
        let bytes: Vec<u8> = parts.iter().flat_map(SerializedPart::bytes).collect();
        let ended = self.over.remove(&conn);
        if bytes.is_empty() {
            // The connection may not leave.
            self.set_home(&flow, self.group.index);
            if !ended {
                self.connection_begins(now, flow, conn);
            }
            self.hints_version += 1;
            self.send_message(to, MigrationMessage::Cancel { flow });
            self.progress(now, conn, log);
            for stray in deferred {
                self.take_deferred(now, stray, false, log);
            }
            return;
        }
        self.migration.arrived.remove(&conn);
        let ours = self.world.streams.stream_of(conn);
        self.recorded.remove(&conn);
        self.world.streams.unassign(conn, stream);
        self.publish_command(now, Body::Free { conn }, log);
        let message = MigrationMessage::Transfer {
            flow,
            bytes,
            stream: ours,
            deferred,
        };
        self.send_message(to, message);
    }

    // The group that the connection arrives in.

    fn reserve(&mut self, now: Instant, from: u16, flow: Flow, log: &mut impl Log) {
        if self.migration.incoming(&flow).is_some() || self.hints.contains_key(&flow) {
            return self.send_message(from, MigrationMessage::Reply { flow, stream: None });
        }
        self.migration.next_request_id += 1;
        let request_id = self.migration.next_request_id;
        self.migration.incoming.push(Incoming {
            flow,
            from,
            request_id,
            conn: None,
            bytes: Vec::new(),
            published: 0,
            is_complete: false,
            is_begun: false,
            deferred: [Vec::new(), Vec::new()],
        });
        self.publish_command(now, Body::MigrationReserve { request_id }, log);
    }

    fn on_reserved(&mut self, now: Instant, request_id: u64, conn: ConnId, log: &mut impl Log) {
        let incoming = &mut self.migration.incoming;
        let Some(incoming) = incoming.iter_mut().find(|one| one.request_id == request_id) else {
            return;
        };
        let (flow, from) = (incoming.flow, incoming.from);
        if conn == ConnId::NONE {
            self.send_message(from, MigrationMessage::Reply { flow, stream: None });
            return self.cancel(now, flow, log);
        }
        incoming.conn = Some(conn);
        let stream = Some(self.world.streams.stream_of(conn));
        self.send_message(from, MigrationMessage::Reply { flow, stream });
    }

    /// A connection does not arrive after all.
    fn cancel(&mut self, now: Instant, flow: Flow, log: &mut impl Log) {
        let Some(at) = self
            .migration
            .incoming
            .iter()
            .position(|one| one.flow == flow)
        else {
            return;
        };
        let incoming = self.migration.incoming.remove(at);
        if let Some(conn) = incoming.conn {
            self.world.streams.recycle(conn);
            self.publish_command(now, Body::Free { conn }, log);
        }
        for deferred in incoming.deferred.into_iter().flatten() {
            self.take_deferred(now, deferred, false, log);
        }
    }

    /// Installs arrived connections while there is room: their bytes, then the deferred requests.
    fn install(&mut self, now: Instant, log: &mut impl Log) -> usize {
        let mut done = 0;
        while let Some(at) = self.migration.next_to_install() {
            let incoming = &mut self.migration.incoming[at];
            let Some(conn) = incoming.conn else {
                self.migration.incoming.remove(at);
                continue;
            };
            let (flow, len) = (incoming.flow, incoming.bytes.len());
            if incoming.published < len {
                if log.room() <= RESERVED {
                    break;
                }
                let rest = &incoming.bytes[incoming.published..];
                let piece = MigrationParts::of(rest)
                    .next()
                    .map(|bytes| Body::MigrationPart { bytes });
                incoming.published += MigrationParts::BYTES;
                self.publish_command(now, piece.unwrap_or(Body::None), log);
                done += 1;
                continue;
            }
            if len > 0 {
                // The effects of the installation, and the application's progress, at once.
                if log.room() <= RESERVED + 3 {
                    break;
                }
                incoming.bytes = Vec::new();
                let len = len as u32;
                self.publish_command(now, Body::MigrationArrive { conn, len }, log);
                self.publish_progress(now, conn, log);
                done += 1;
                continue;
            }
            // One request may become two: a deferred one, and a reserved place.
            if log.room() <= RESERVED {
                break;
            }
            let held = &mut incoming.deferred;
            let oldest = held.iter_mut().find(|held| !held.is_empty());
            match oldest.map(|held| held.remove(0)) {
                Some(deferred) => self.republish(now, deferred, conn, log),
                None => {
                    let is_begun = incoming.is_begun;
                    self.migration.incoming.retain(|one| one.flow != flow);
                    if is_begun && !self.over.remove(&conn) {
                        self.connection_begins(now, flow, conn);
                    }
                    self.hints_version += 1;
                }
            }
            done += 1;
        }
        done
    }

    // Both groups.

    /// Handles a run without a hint. If it belongs to another group or has to wait, it is taken and
    /// handled.
    #[cold]
    pub(crate) fn defer_or_forward(
        &mut self,
        now: Instant,
        request: &Request,
        verdict: Option<Verdict>,
        run: Run,
        log: &mut impl Log,
    ) {
        let deferred = DeferredRequest {
            request: *request,
            verdict,
            run,
        };
        self.take_deferred(now, deferred, false, log);
    }

    /// Whether a run of this flow without a hint has to be [deferred or
    /// forwarded](Self::defer_or_forward).
    #[cold]
    pub(crate) fn is_migrated(&mut self, flow: &Flow) -> bool {
        self.migration.deferred(flow).is_some() || self.group_of(flow) != self.group.index
    }

    /// Defers an ICMP error about a connection that is migrating.
    pub(crate) fn defer_error(&mut self, request: Request) -> bool {
        let Body::NetworkError { flow, .. } = request.body else {
            return false;
        };
        let Some(held) = self.migration.deferred(&flow) else {
            return false;
        };
        if held.len() == MAX_DEFERRED {
            self.stats.deferred_dropped += 1;
            return true;
        }
        self.stats.deferred += 1;
        held.push(DeferredRequest {
            request,
            verdict: None,
            run: Run::default(),
        });
        true
    }

    /// Handles a request about a migrating or migrated connection: defers it, publishes it, or
    /// forwards it to its group unless it was forwarded already.
    fn take_deferred(
        &mut self,
        now: Instant,
        deferred: DeferredRequest,
        is_sent: bool,
        log: &mut impl Log,
    ) {
        let flow = match deferred.request.body {
            Body::Segments { flow, .. } | Body::NetworkError { flow, .. } => flow,
            _ => return,
        };
        if let Some(held) = self.migration.deferred(&flow) {
            if held.len() < MAX_DEFERRED {
                self.stats.deferred += 1;
                return held.push(deferred);
            }
        } else {
            let group = self.group_of(&flow);
            if group == self.group.index && log.room() > RESERVED {
                return self.republish(now, deferred, ConnId::NONE, log);
            }
            if group != self.group.index && !is_sent {
                self.stats.forwarded += 1;
                return self.send_message(group, MigrationMessage::Forward(Box::new(deferred)));
            }
        }
        self.stats.deferred_dropped += 1;
        self.recycler.put(deferred.run);
    }

    /// Publishes a deferred request.
    fn republish(
        &mut self,
        now: Instant,
        deferred: DeferredRequest,
        conn: ConnId,
        log: &mut impl Log,
    ) {
        let DeferredRequest {
            mut request,
            verdict,
            mut run,
        } = deferred;
        let sent = self.sample_sent();
        let hint = match request.body {
            Body::Segments { flow, .. } if conn == ConnId::NONE => self.hint_of(now, &flow),
            _ => conn,
        };
        let digest = &mut request.digest;
        (digest.now, digest.sent, digest.hint) = (now, sent, hint);
        // The segments that followed it then may have been lost since.
        digest.bits &= !(Digest::PROGRESS | Digest::FOLLOWED);
        if let Body::Segments { .. } = request.body {
            let ahead = self.stores_ahead.then_some(verdict.is_none());
            self.received += u64::from(digest.len);
            sample_cursors(&self.world, digest, ahead, &mut run);
        }
        self.publish(&request, verdict, run, log);
    }

    /// A connection that had migrated to this group is closed, and its place free. Its flow belongs
    /// to its home group again.
    pub(crate) fn arrived_is_closed(&mut self, conn: ConnId) {
        if let Some(flow) = self.migration.arrived.remove(&conn) {
            self.world.shared.migrated.remove(&flow);
            self.send_message(
                self.grouping.group(&flow),
                MigrationMessage::Closed { flow },
            );
        }
    }
}
