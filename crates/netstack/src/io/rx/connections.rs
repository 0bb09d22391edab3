//! The connections in the receive pump: a table by flow, and queues of connections that begin, wait
//! or end.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use super::addresses::Rerouting;
use super::held::HeldSyns;
use super::idle::{Hint, IdleLooks, LOOKS};
use super::paths::Paths;
use super::unanswered::Unanswered;
use super::{Log, RxPump};
use crate::ip::neighbor::WaitingOpen;
use crate::log::request::{Body, ConnId, Flow, Mac};
use crate::time::Instant;

/// The receive pump's tables of connections.
#[derive(Default)]
pub(super) struct Connections {
    /// The connection of each flow. A hint: replicas ignore one of an earlier generation, and look
    /// in their own tables.
    pub(super) hints: HashMap<Flow, Hint>,
    /// How often `hints` changed.
    pub(super) hints_version: u64,
    /// SYNs that wait until the application decides.
    pub(super) held: HeldSyns,
    pub(super) idle: IdleLooks,
    /// Connections whose end was reported before their start.
    over: HashSet<ConnId>,
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

impl RxPump {
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
