//! Connections that leave for another group, and that come from one.
//!
//! A connection leaves at one position of its group's log, in every replica alike: it is taken out of all tables, and
//! becomes octets that effects carry. Its place waits for [`Body::Free`](crate::digest::Body::Free), as that of one that
//! is over. At one position of the other group's log it is there again, made of octets that requests brought, in a place
//! that was kept for it. Nothing here knows a thread: what happens between is the pumps' ([`crate::engine::pump`]).
//!
//! A connection begins only in the group that the hash of its flow names, and that group remembers those that live
//! elsewhere: it gives their ports to nobody, and answers nothing that is meant for them.

use super::{Replica, is_current};
use crate::digest::{ConnId, Flow, Pieces};
use crate::effect::{Effect, EffectSink, Event, Packed};
use crate::keys::Domain;
use crate::tcp::Tcb;
use crate::time::Instant;

/// Octets of a connection that may leave, at most: one that has lost more than it can tell in so many waits until it has
/// recovered.
const MOST: usize = 16 << 10;

/// A connection as octets.
#[cfg(feature = "migration")]
fn pack(now: Instant, tcb: &Tcb) -> Option<Vec<u8>> {
    postcard::to_stdvec(&(now, tcb)).ok()
}

/// What [`pack`] made; `None` if the octets are none of that.
#[cfg(feature = "migration")]
fn unpack(octets: &[u8]) -> Option<(Instant, Tcb)> {
    postcard::from_bytes(octets).ok()
}

/// Without the feature every connection stays.
#[cfg(not(feature = "migration"))]
fn pack(_: Instant, _: &Tcb) -> Option<Vec<u8>> {
    None
}

#[cfg(not(feature = "migration"))]
fn unpack(_: &[u8]) -> Option<(Instant, Tcb)> {
    None
}

impl Replica {
    /// Whether a connection of this flow may begin here.
    pub(super) fn is_at_home(&self, flow: &Flow) -> bool {
        let shard = self.shard;
        shard.of == 1 || self.grouping.group(flow) == shard.index
    }

    /// Keeps a place for a connection that is about to come.
    pub(super) fn expect(&mut self, ticket: u64, out: &mut impl EffectSink) {
        self.thin_out(out);
        let conn = self.allocate().unwrap_or(ConnId::NONE);
        out.push(Effect::Expected { ticket, conn });
    }

    /// A connection leaves as it stands, if it may.
    pub(super) fn leave(&mut self, conn: ConnId, out: &mut impl EffectSink) {
        let now = self.now;
        let may = |tcb: &Tcb| tcb.may_move();
        let place = self
            .current(conn)
            .filter(|place| place.held && place.tcb.as_ref().is_some_and(may));
        let octets = place.as_ref().and_then(|place| {
            let octets = pack(now, place.tcb.as_ref()?)?;
            (octets.len() <= MOST).then_some(octets)
        });
        let tcb = octets.is_some().then(|| place?.tcb.take()).flatten();
        let (Some(octets), Some(tcb)) = (octets, tcb) else {
            self.stats.stayed += 1;
            return out.push(Effect::Packed(Packed::nothing(conn)));
        };
        let flow = tcb.flow();
        self.demux.remove(&flow);
        if self.is_at_home(&flow) {
            self.demux.insert(flow, ConnId::AWAY);
            self.away ^= self.keys.of_flow(Domain::Migrated, &flow, 0);
        }
        let place = &mut self.places[conn.index as usize];
        place.armed = Instant::NEVER;
        self.deadlines.remove(conn.index);
        self.touched = conn.index;
        self.stats.left += 1;
        out.push(Effect::Hint {
            conn,
            flow,
            open: false,
        });
        for packed in Packed::all(conn, &octets) {
            out.push(Effect::Packed(packed));
        }
    }

    /// Some of the octets of a connection that comes.
    pub(super) fn piece(&mut self, octets: [u64; Pieces::WORDS]) {
        if self.coming.len() < MOST + Pieces::OCTETS {
            let octets = octets.into_iter().flat_map(u64::to_le_bytes);
            self.coming.extend(octets);
        }
    }

    /// All octets of a connection are here, `len` of them. It takes the place that was kept for it.
    pub(super) fn come(&mut self, conn: ConnId, len: u32, out: &mut impl EffectSink) {
        let octets = core::mem::take(&mut self.coming);
        if !is_current(&self.places, conn) || self.places[conn.index as usize].tcb.is_some() {
            return;
        }
        let found = octets.get(..len as usize);
        let found = found.and_then(unpack);
        let found = found.filter(|(_, tcb)| {
            let known = self.demux.find(&tcb.flow());
            tcb.may_move() && known.is_none_or(|known| known == ConnId::AWAY)
        });
        let place = &mut self.places[conn.index as usize];
        place.held = true;
        let Some((at, mut tcb)) = found else {
            // Somebody changed it on the way.
            out.push(Effect::Event {
                conn,
                event: Event::Aborted,
                received: 0,
            });
            return out.push(Effect::Retire { conn, held: true });
        };
        tcb.goes_on_as(conn);
        let flow = tcb.flow();
        place.tcb = Some(tcb);
        if self.demux.find(&flow).is_some() {
            self.away ^= self.keys.of_flow(Domain::Migrated, &flow, 0);
        }
        self.demux.insert(flow, conn);
        // Nothing that it knows lies in the future.
        self.now = self.now.max(at);
        self.stats.came += 1;
        out.push(Effect::Hint {
            conn,
            flow,
            open: true,
        });
        self.end(conn, out);
    }

    /// A connection that had left is over, wherever it was then.
    pub(super) fn forget(&mut self, flow: &Flow) {
        if self.demux.find(flow) == Some(ConnId::AWAY) {
            self.demux.remove(flow);
            self.away ^= self.keys.of_flow(Domain::Migrated, flow, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Bench;
    use super::*;
    use crate::digest::{Body, Flags};

    /// What left, as octets.
    fn packed(bench: &Bench) -> Vec<u8> {
        let mut octets = Vec::new();
        for effect in &bench.effects {
            if let Effect::Packed(packed) = effect {
                assert_eq!(usize::from(packed.part) * Packed::OCTETS, octets.len());
                octets.extend(packed.octets());
            }
        }
        octets
    }

    fn bring(bench: &mut Bench, conn: ConnId, octets: &[u8]) {
        for octets in Pieces::of(octets) {
            bench.command(Body::Piece { octets });
        }
        let len = octets.len() as u32;
        bench.command(Body::Come { conn, len });
    }

    /// The place that is kept.
    fn expected(bench: &mut Bench) -> ConnId {
        bench.command(Body::Expect { ticket: 3 });
        match bench.effects[..] {
            [Effect::Expected { ticket: 3, conn }] => conn,
            ref other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_connection_that_leaves_and_comes_is_the_one_that_it_was() {
        let mut bench = Bench::listening(4);
        let (conn, ours) = bench.open(4000, 100);
        let tcb = |bench: &Bench, conn| {
            let found = bench.replica.connections().find(|(c, _)| *c == conn);
            found.map(|(_, tcb)| tcb.clone())
        };
        let before = tcb(&bench, conn);
        assert!(before.is_some());
        bench.command(Body::Leave { conn });
        let octets = packed(&bench);
        assert!(!octets.is_empty());
        assert_eq!(tcb(&bench, conn), None);
        // Nobody answers for it meanwhile.
        bench.segment(4000, 101, ours, Flags::ACK);
        assert_eq!(bench.sent(), []);
        assert_eq!(bench.replica.stats().away, 1);
        let there = expected(&mut bench);
        assert_ne!(there, conn);
        bring(&mut bench, there, &octets);
        let mut after = tcb(&bench, there).unwrap();
        after.goes_on_as(conn);
        assert_eq!(Some(after), before);
        let stats = bench.replica.stats();
        assert_eq!((stats.left, stats.came, stats.stayed), (1, 1, 0));
    }

    #[test]
    fn what_is_not_established_or_nobody_holds_stays() {
        let mut bench = Bench::listening(4);
        bench.segment(4000, 100, 0, Flags::SYN);
        let conn = bench.sent()[0].conn;
        for conn in [conn, ConnId::NONE] {
            bench.command(Body::Leave { conn });
            assert_eq!(bench.effects, [Effect::Packed(Packed::nothing(conn))]);
        }
        assert_eq!(bench.replica.stats().stayed, 2);
        assert_eq!(bench.replica.connections().count(), 1);
    }

    #[test]
    fn octets_that_make_no_connection_end_it() {
        let mut bench = Bench::listening(4);
        let (conn, _) = bench.open(4000, 100);
        bench.command(Body::Leave { conn });
        let octets = packed(&bench);
        for len in [0, 1, octets.len() - 1] {
            let there = expected(&mut bench);
            bring(&mut bench, there, &octets[..len]);
            let retired = Effect::Retire {
                conn: there,
                held: true,
            };
            assert!(bench.effects.contains(&retired), "{:?}", bench.effects);
            bench.command(Body::Free { conn: there });
        }
    }
}
