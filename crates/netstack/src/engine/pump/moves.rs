//! How connections get from one group to another while they run.
//!
//! Two receive pumps arrange it by notes, each the only publisher of its group's log:
//!
//! ```text
//!    group that has it                         group that gets it
//!  asked to let it go   ---- Wanted ------>  publishes Expect: a place is kept; from now on what comes for the
//!                                            connection is held back
//!  has its segments sent to the other  <-- Room ---
//!  publishes Leave; holds back what still comes
//!  waits until all that was asked for before is
//!  performed, and all its frames are sent
//!  publishes Free       ---- Parcel ------>  publishes Piece by Piece, Come, what the application did meanwhile,
//!                                            and what was held back by both, in the order in which it came
//! ```
//!
//! So nothing of it is anywhere twice, and nothing is lost but what is held back in excess of [`HELD`], which is counted.
//! A connection that may not leave stays as it is, and what was held back is published where it is. The application goes
//! on reading and writing all the while: its stream moves from place to place, and its flag is lowered behind that.

use core::mem::take;
use std::collections::HashMap;

use super::{Log, RESERVED, RxPump, sample_cursors};
use crate::digest::{Body, ConnId, Digest, Flow, Mac, Pieces, Request};
use crate::effect::Packed;
use crate::engine::Run;
use crate::engine::balance::{Balance, Weighed};
use crate::engine::replica::Replica;
use crate::time::Instant;

/// Requests that are held back for a connection, by each of the two groups, at most.
const HELD: usize = 256;

/// A request about a connection that lives elsewhere, or is on its way.
pub(crate) struct Stray {
    request: Request,
    verdict: Option<u16>,
    run: Run,
    /// Whether its segments are requests of their own.
    apart: bool,
}

/// What groups tell each other.
pub(crate) enum Note {
    /// Somebody wants this connection to go to that group.
    #[cfg_attr(
        not(any(feature = "migration", feature = "testkit")),
        expect(dead_code, reason = "only connections that may move are asked to")
    )]
    Go { conn: ConnId, flow: Flow, to: u16 },
    /// A connection would come.
    Wanted { from: u16, flow: Flow },
    /// Whether there is a place for it; then, which stream of the row is free for it.
    Room { flow: Flow, stream: Option<u32> },
    /// It stays.
    Stays { flow: Flow },
    /// It comes.
    Parcel {
        flow: Flow,
        octets: Vec<u8>,
        stream: u32,
        held: Vec<Stray>,
    },
    /// It is over.
    Over { flow: Flow },
    /// This belongs to you.
    Stray(Box<Stray>),
}

/// What primaries tell the pump.
pub(crate) enum Told {
    Expected { ticket: u64, conn: ConnId },
    Packed(Box<Packed>),
}

/// A connection that is to leave.
struct Leaving {
    conn: ConnId,
    flow: Flow,
    to: u16,
    step: Step,
    held: Vec<Stray>,
}

enum Step {
    /// The other group was asked.
    Asked,
    /// It has room, and gives `stream` for the one that leaves.
    Packing {
        stream: u32,
        /// The position behind its last request.
        position: u64,
        /// Frames that must be sent, once that is known.
        numbered: Option<u64>,
        /// What came of it so far, and of how many octets.
        parts: Vec<Packed>,
    },
}

/// A connection that is to come.
struct Coming {
    flow: Flow,
    from: u16,
    ticket: u64,
    /// The place that is kept for it.
    conn: Option<ConnId>,
    /// Octets of it, and how many were published.
    octets: Vec<u8>,
    published: usize,
    /// Whether `octets` is all of it.
    is_here: bool,
    /// What the other group held back, then what this one did.
    held: [Vec<Stray>; 2],
    /// Neighbours whose addresses changed meanwhile.
    renamed: Vec<(Mac, Mac)>,
}

/// What a pump knows of moves.
#[derive(Default)]
pub(super) struct Moves {
    leaving: Vec<Leaving>,
    coming: Vec<Coming>,
    next_ticket: u64,
    /// Connections that live here although the hash of their flow says otherwise.
    guests: HashMap<ConnId, Flow>,
}

impl Moves {
    fn leaving(&mut self, flow: &Flow) -> Option<&mut Leaving> {
        self.leaving.iter_mut().find(|one| one.flow == *flow)
    }

    fn coming(&mut self, flow: &Flow) -> Option<&mut Coming> {
        self.coming.iter_mut().find(|one| one.flow == *flow)
    }

    /// Where requests about this flow wait, if they do.
    fn held(&mut self, flow: &Flow) -> Option<&mut Vec<Stray>> {
        let packing = |one: &&mut Leaving| matches!(one.step, Step::Packing { .. });
        if let Some(leaving) = self
            .leaving
            .iter_mut()
            .find(|one| one.flow == *flow)
            .filter(packing)
        {
            return Some(&mut leaving.held);
        }
        let coming = self.coming.iter_mut().find(|one| one.flow == *flow);
        coming.map(|coming| &mut coming.held[1])
    }

    /// Whether `conn` is on its way from here or to here: what its application does is looked at later.
    pub(super) fn has(&self, conn: ConnId) -> bool {
        let leaves = |one: &Leaving| one.conn == conn && matches!(one.step, Step::Packing { .. });
        let comes =
            |one: &Coming| one.conn == Some(conn) && !(one.is_here && one.octets.is_empty());
        self.leaving.iter().any(leaves) || self.coming.iter().any(comes)
    }

    /// Who is here. One after the other: pieces of two must not mix.
    fn next_to_unpack(&self) -> Option<usize> {
        let mut coming = self.coming.iter();
        let begun = coming.position(|one| one.is_here && one.published > 0);
        begun.or_else(|| self.coming.iter().position(|one| one.is_here))
    }

    /// Whether something is to be done without news from elsewhere.
    pub(super) fn has_work(&self) -> bool {
        let packing = |one: &Leaving| matches!(one.step, Step::Packing { .. });
        self.leaving.iter().any(packing) || self.coming.iter().any(|one| one.is_here)
    }

    /// A neighbour's address changed: those that come have not heard of it.
    pub(super) fn rename(&mut self, old: Mac, new: Mac) {
        for coming in &mut self.coming {
            coming.renamed.push((old, new));
        }
    }
}

impl RxPump {
    /// Does what can be done about moves now. Returns how much that was.
    pub(super) fn moves(&mut self, now: Instant, log: &mut impl Log) -> usize {
        if self.shard.of == 1 {
            return 0;
        }
        let mut done = 0;
        while log.room() > RESERVED {
            let Some(note) = self.world.door.notes.pop() else {
                break;
            };
            self.note(now, note, log);
            done += 1;
        }
        while let Some(told) = self.world.told.pop() {
            self.told(now, told, log);
            done += 1;
        }
        if self.moves.has_work() {
            done += self.pack(now, log) + self.unpack(now, log);
        }
        done
    }

    fn tell(&self, group: u16, note: Note) {
        if let Some(door) = self.world.front.door(group) {
            door.notes.push(note);
            door.ring();
        }
    }

    /// Which group the connection of `flow` lives in.
    fn group_of(&self, flow: &Flow) -> u16 {
        let moved = self.world.front.moved.find(flow);
        moved.unwrap_or_else(|| self.grouping.group(flow))
    }

    fn note(&mut self, now: Instant, note: Note, log: &mut impl Log) {
        match note {
            Note::Go { conn, flow, to } => self.begin_leaving(conn, flow, to),
            Note::Wanted { from, flow } => self.expect(now, from, flow, log),
            Note::Room { flow, stream } => self.room_there(now, flow, stream, log),
            Note::Stays { flow } => self.call_off(now, flow, log),
            Note::Parcel {
                flow,
                octets,
                stream,
                held,
            } => {
                let Some(coming) = self.moves.coming(&flow) else {
                    return;
                };
                (coming.octets, coming.held[0], coming.is_here) = (octets, held, true);
                if let Some(conn) = coming.conn {
                    self.world.streams.seat(conn, stream);
                    if self.grouping.group(&flow) != self.shard.index {
                        self.moves.guests.insert(conn, flow);
                    }
                }
            }
            Note::Over { flow } => self.publish_command(now, Body::Forget { flow }, log),
            Note::Stray(stray) => self.take_in(now, *stray, true, log),
        }
    }

    fn told(&mut self, now: Instant, told: Told, log: &mut impl Log) {
        match told {
            Told::Expected { ticket, conn } => self.expected(now, ticket, conn, log),
            Told::Packed(packed) => {
                let leaving = &mut self.moves.leaving;
                let leaving = leaving.iter_mut().find(|one| one.conn == packed.conn);
                if let Some(Leaving {
                    step: Step::Packing { parts, .. },
                    ..
                }) = leaving
                {
                    parts.push(*packed);
                }
            }
        }
    }

    // The group that has it.

    fn begin_leaving(&mut self, conn: ConnId, flow: Flow, to: u16) {
        let is_here = self.hints.get(&flow) == Some(&conn);
        let is_there = is_here && to != self.shard.index && to < self.shard.of;
        // One move of a connection at a time.
        if !is_there || self.moves.leaving(&flow).is_some() || self.moves.coming(&flow).is_some() {
            return;
        }
        self.moves.leaving.push(Leaving {
            conn,
            flow,
            to,
            step: Step::Asked,
            held: Vec::new(),
        });
        let from = self.shard.index;
        self.tell(to, Note::Wanted { from, flow });
    }

    fn room_there(&mut self, now: Instant, flow: Flow, stream: Option<u32>, log: &mut impl Log) {
        let asked = |one: &&mut Leaving| matches!(one.step, Step::Asked);
        let Some(leaving) = self.moves.leaving(&flow).filter(asked) else {
            return;
        };
        let (conn, to) = (leaving.conn, leaving.to);
        let Some(stream) = stream else {
            return self.moves.leaving.retain(|one| one.flow != flow);
        };
        // It may be over meanwhile, and another one have its flow.
        let is_here = self.hints.get(&flow) == Some(&conn);
        if !is_here || !self.lives_in(&flow, to) {
            self.moves.leaving.retain(|one| one.flow != flow);
            return self.tell(to, Note::Stays { flow });
        }
        self.hints.remove(&flow);
        self.last_hint = None;
        self.publish_command(now, Body::Leave { conn }, log);
        let position = log.published();
        if let Some(leaving) = self.moves.leaving(&flow) {
            leaving.step = Step::Packing {
                stream,
                position,
                numbered: None,
                parts: Vec::new(),
            };
        }
    }

    /// From now on segments of `flow` are for `group`. Says whether that can be remembered.
    fn lives_in(&self, flow: &Flow, group: u16) -> bool {
        let moved = &self.world.front.moved;
        if self.grouping.group(flow) == group {
            moved.remove(flow);
            return true;
        }
        moved.set(flow, group)
    }

    /// Sends off those that are packed, behind everything that they had asked for.
    fn pack(&mut self, now: Instant, log: &mut impl Log) -> usize {
        let mut done = 0;
        let mut i = 0;
        while i < self.moves.leaving.len() && log.room() > RESERVED {
            let tx = &self.world.tx;
            let Step::Packing {
                position, numbered, ..
            } = &mut self.moves.leaving[i].step
            else {
                i += 1;
                continue;
            };
            if *position > log.performed() {
                // A worker that went back to its log counts anew, so there may be nothing there that gets so far.
                if *position > log.published() {
                    let tick = Request::tick(now, self.sample_sent());
                    self.publish(&tick, None, Run::default(), log);
                    done += 1;
                }
                i += 1;
                continue;
            }
            // All its frames are built by now. Some may wait for the device, with octets in its send ring.
            if tx.sent() < *numbered.get_or_insert_with(|| tx.claimed()) {
                i += 1;
                continue;
            }
            // Everybody who had parts, or other news of it, has told.
            self.take_hints();
            while let Some(told) = self.world.told.pop() {
                self.told(now, told, log);
            }
            let leaving = self.moves.leaving.remove(i);
            self.send_off(now, leaving, log);
            done += 1;
        }
        done
    }

    fn send_off(&mut self, now: Instant, leaving: Leaving, log: &mut impl Log) {
        let Leaving {
            conn,
            flow,
            to,
            step,
            held,
        } = leaving;
        let Step::Packing {
            stream, mut parts, ..
        } = step
        else {
            return;
        };
        parts.sort_unstable_by_key(|packed| packed.part);
        // Who was interrupted may have told of a part, and who took over told once more.
        parts.dedup_by_key(|packed| packed.part);
        let octets: Vec<u8> = parts.iter().flat_map(Packed::octets).collect();
        let ended = self.over.remove(&conn);
        if octets.is_empty() {
            // It may not leave.
            self.lives_in(&flow, self.shard.index);
            if !ended {
                self.hints.insert(flow, conn);
            }
            self.last_hint = None;
            self.tell(to, Note::Stays { flow });
            self.progress(now, conn, log);
            for stray in held {
                self.take_in(now, stray, false, log);
            }
            return;
        }
        self.moves.guests.remove(&conn);
        let ours = self.world.streams.stream_of(conn);
        self.recorded.remove(&conn);
        self.world.streams.part_with(conn, stream);
        self.publish_command(now, Body::Free { conn }, log);
        let parcel = Note::Parcel {
            flow,
            octets,
            stream: ours,
            held,
        };
        self.tell(to, parcel);
    }

    // The group that gets it.

    fn expect(&mut self, now: Instant, from: u16, flow: Flow, log: &mut impl Log) {
        if self.moves.coming(&flow).is_some() || self.hints.contains_key(&flow) {
            return self.tell(from, Note::Room { flow, stream: None });
        }
        self.moves.next_ticket += 1;
        let ticket = self.moves.next_ticket;
        self.moves.coming.push(Coming {
            flow,
            from,
            ticket,
            conn: None,
            octets: Vec::new(),
            published: 0,
            is_here: false,
            held: [Vec::new(), Vec::new()],
            renamed: Vec::new(),
        });
        self.publish_command(now, Body::Expect { ticket }, log);
    }

    fn expected(&mut self, now: Instant, ticket: u64, conn: ConnId, log: &mut impl Log) {
        let coming = &mut self.moves.coming;
        let Some(coming) = coming.iter_mut().find(|one| one.ticket == ticket) else {
            return;
        };
        let (flow, from) = (coming.flow, coming.from);
        if conn == ConnId::NONE {
            self.tell(from, Note::Room { flow, stream: None });
            return self.call_off(now, flow, log);
        }
        coming.conn = Some(conn);
        let stream = Some(self.world.streams.stream_of(conn));
        self.tell(from, Note::Room { flow, stream });
    }

    /// A connection does not come after all.
    fn call_off(&mut self, now: Instant, flow: Flow, log: &mut impl Log) {
        let Some(at) = self.moves.coming.iter().position(|one| one.flow == flow) else {
            return;
        };
        let coming = self.moves.coming.remove(at);
        if let Some(conn) = coming.conn {
            self.world.streams.recycle(conn);
            self.publish_command(now, Body::Free { conn }, log);
        }
        for stray in coming.held.into_iter().flatten() {
            self.take_in(now, stray, false, log);
        }
    }

    /// Lets those go on that are here: their octets, then what happened meanwhile, as far as there is room.
    fn unpack(&mut self, now: Instant, log: &mut impl Log) -> usize {
        let mut done = 0;
        while let Some(at) = self.moves.next_to_unpack() {
            let coming = &mut self.moves.coming[at];
            let Some(conn) = coming.conn else {
                self.moves.coming.remove(at);
                continue;
            };
            let (flow, len) = (coming.flow, coming.octets.len());
            if coming.published < len {
                if log.room() <= RESERVED {
                    break;
                }
                let rest = &coming.octets[coming.published..];
                let piece = Pieces::of(rest).next().map(|octets| Body::Piece { octets });
                coming.published += Pieces::OCTETS;
                self.publish_command(now, piece.unwrap_or(Body::None), log);
                done += 1;
                continue;
            }
            if len > 0 {
                // What comes of it, and what its application did, in one go.
                if log.room() <= RESERVED + 3 + coming.renamed.len() {
                    break;
                }
                let renamed = take(&mut coming.renamed);
                coming.octets = Vec::new();
                if let Some(balance) = &mut self.balance {
                    balance.came();
                }
                let len = len as u32;
                self.publish_command(now, Body::Come { conn, len }, log);
                for (old, new) in renamed {
                    self.publish_command(now, Body::Neighbor { old, new }, log);
                }
                self.look_at(now, conn, log);
                done += 1;
                continue;
            }
            // One request may become two: one that was held back, and a place that is reserved.
            if log.room() <= RESERVED {
                break;
            }
            let held = &mut coming.held;
            let oldest = held.iter_mut().find(|held| !held.is_empty());
            match oldest.map(|held| held.remove(0)) {
                Some(stray) => self.republish(now, stray, conn, log),
                None => {
                    self.moves.coming.retain(|one| one.flow != flow);
                    self.last_hint = None;
                }
            }
            done += 1;
        }
        done
    }

    // Both.

    /// A run for which no hint says whose it is. If it is not this group's, or has to wait, it is taken and done with.
    #[cold]
    pub(super) fn divert(
        &mut self,
        now: Instant,
        verdict: Option<u16>,
        run: Run,
        log: &mut impl Log,
    ) {
        let stray = Stray {
            request: self.open.request,
            verdict,
            run,
            apart: self.apart,
        };
        self.take_in(now, stray, false, log);
    }

    /// Whether a run of this flow, for which there is no hint, is to be [diverted](Self::divert).
    #[cold]
    pub(super) fn is_elsewhere(&mut self, flow: &Flow) -> bool {
        self.moves.held(flow).is_some() || self.group_of(flow) != self.shard.index
    }

    /// An ICMP error about a connection that is on its way waits for it.
    pub(super) fn divert_error(&mut self, request: Request) -> bool {
        let Body::NetworkError { flow, .. } = request.body else {
            return false;
        };
        let Some(held) = self.moves.held(&flow) else {
            return false;
        };
        if held.len() == HELD {
            self.stats.not_held += 1;
            return true;
        }
        self.stats.held_back += 1;
        held.push(Stray {
            request,
            verdict: None,
            run: Run::default(),
            apart: false,
        });
        true
    }

    /// Does with a request what is to be done: it waits, is published, or goes to the group that it is for, unless it comes
    /// from one.
    fn take_in(&mut self, now: Instant, stray: Stray, is_sent: bool, log: &mut impl Log) {
        let flow = match stray.request.body {
            Body::Segment { flow, .. } | Body::NetworkError { flow, .. } => flow,
            _ => return,
        };
        if let Some(held) = self.moves.held(&flow) {
            if held.len() < HELD {
                self.stats.held_back += 1;
                return held.push(stray);
            }
        } else {
            let group = self.group_of(&flow);
            if group == self.shard.index && log.room() > RESERVED {
                return self.republish(now, stray, ConnId::NONE, log);
            }
            if group != self.shard.index && !is_sent {
                self.stats.handed_over += 1;
                return self.tell(group, Note::Stray(Box::new(stray)));
            }
        }
        self.stats.not_held += 1;
        self.shelf.put(stray.run);
    }

    /// Publishes what could not be published when it came.
    fn republish(&mut self, now: Instant, stray: Stray, conn: ConnId, log: &mut impl Log) {
        let Stray {
            mut request,
            verdict,
            mut run,
            apart,
        } = stray;
        let sent = self.sample_sent();
        let digest = &mut request.digest;
        (digest.now, digest.sent) = (now, sent);
        // What came right behind it then may have been lost since.
        digest.bits &= !(Digest::PROGRESS | Digest::FOLLOWED);
        digest.hint = conn;
        if let Body::Segment { flow, .. } = request.body {
            if conn == ConnId::NONE {
                digest.hint = self.hints.get(&flow).copied().unwrap_or(conn);
            }
            let ahead = self.stores_ahead.then_some(verdict.is_none());
            self.received += u64::from(digest.len);
            sample_cursors(&self.world, digest, ahead, &mut run);
        }
        if apart {
            self.stats.requests += u64::from(digest.count);
            self.told = now;
            return log.publish_apart(&request, verdict, run);
        }
        self.publish(&request, verdict, run, log);
    }

    /// Lets connections go to a group that is less busy, if that is due. To be called by who has the state.
    #[inline]
    pub(crate) fn rebalance(&mut self, replica: &Replica) {
        if self.balance.as_ref().is_some_and(Balance::wants_to_weigh) {
            self.weigh(replica);
        }
    }

    #[cold]
    fn weigh(&mut self, replica: &Replica) {
        let connections = replica.connections().map(|(conn, tcb)| Weighed {
            conn,
            flow: tcb.flow(),
            octets: tcb.received() + tcb.acknowledged(),
        });
        let Some(balance) = &mut self.balance else {
            return;
        };
        let (going, to) = balance.weigh(connections);
        for one in going {
            self.stats.rebalanced += 1;
            self.begin_leaving(one.conn, one.flow, to);
        }
    }

    /// A connection is over that lived here, and its place free. Its flow belongs where the hash says again.
    pub(super) fn guest_is_gone(&mut self, conn: ConnId) {
        if let Some(flow) = self.moves.guests.remove(&conn) {
            self.world.front.moved.remove(&flow);
            self.tell(self.grouping.group(&flow), Note::Over { flow });
        }
    }
}
