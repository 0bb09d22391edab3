//! Connection migration in the replicated state: connections that leave for another group or arrive
//! from one.
//!
//! A connection leaves at one position of its group's log, identically in every replica: it is
//! removed from all tables and serialized, and effects carry the bytes. Its place waits for
//! [`Body::Free`](crate::log::request::Body::Free), as that of a closed connection. It arrives at
//! one position of the other group's log, where it is built from bytes that requests carried, in a
//! place that was reserved for it. This module knows no threads; the pumps do the work between the
//! two positions ([`crate::io::rx`]).
//!
//! A connection is opened only in the home group of its flow, the one that the hash names. The home
//! group remembers the flows that migrated to other groups: it gives their ports to no other
//! connection and ignores segments for them.

use crate::keys::Domain;
use crate::log::effect::{Effect, EffectSink, Event, SerializedPart};
use crate::log::request::{ConnId, Flow, MigrationParts};
use crate::state::apply::Replica;
use crate::state::apply::connections::is_current;
use crate::tcp::Tcb;
use crate::time::Instant;

/// The largest serialized connection, in bytes. A connection whose scoreboard does not fit waits
/// until it has recovered.
const MAX_BYTES: usize = 16 << 10;

/// Serializes a connection.
#[cfg(feature = "migration")]
fn serialize(now: Instant, tcb: &Tcb) -> Option<Vec<u8>> {
    postcard::to_stdvec(&(now, tcb)).ok()
}

/// The connection that [`serialize`] wrote; `None` if the bytes are not one.
#[cfg(feature = "migration")]
fn deserialize(bytes: &[u8]) -> Option<(Instant, Tcb)> {
    postcard::from_bytes(bytes).ok()
}

/// Without the feature no connection leaves.
#[cfg(not(feature = "migration"))]
fn serialize(_: Instant, _: &Tcb) -> Option<Vec<u8>> {
    None
}

#[cfg(not(feature = "migration"))]
fn deserialize(_: &[u8]) -> Option<(Instant, Tcb)> {
    None
}

impl Replica {
    /// Whether this is the home group of a flow.
    pub(crate) fn is_at_home(&self, flow: &Flow) -> bool {
        let group = self.group;
        group.count == 1 || self.grouping.group(flow) == group.index
    }

    /// Reserves a place for a connection that is about to arrive.
    pub(crate) fn migration_reserve(&mut self, request_id: u64, out: &mut impl EffectSink) {
        self.evict_time_wait(out);
        let conn = self.allocate().unwrap_or(ConnId::NONE);
        out.push(Effect::MigrationReserved { request_id, conn });
    }

    /// Removes and serializes a connection, if it may leave.
    pub(crate) fn migration_leave(&mut self, conn: ConnId, out: &mut impl EffectSink) {
        let now = self.now;
        let may = |tcb: &Tcb| tcb.may_migrate();
        let place = self
            .current(conn)
            .filter(|place| place.held && place.tcb.as_ref().is_some_and(may));
        let bytes = place.as_ref().and_then(|place| {
            let bytes = serialize(now, place.tcb.as_ref()?)?;
            (bytes.len() <= MAX_BYTES).then_some(bytes)
        });
        let tcb = bytes.is_some().then(|| place?.tcb.take()).flatten();
        let (Some(bytes), Some(tcb)) = (bytes, tcb) else {
            self.stats.migration_declined += 1;
            return out.push(Effect::Serialized(SerializedPart::declined(conn)));
        };
        let pages = &mut self.frames.gap_pages;
        *pages = pages.saturating_sub(tcb.gap_pages());
        let flow = tcb.flow();
        self.demux.remove(&flow);
        if self.is_at_home(&flow) {
            self.demux.insert(flow, ConnId::MIGRATED);
            self.migrated_away ^= self.keys.of_flow(Domain::Migrated, &flow, 0);
        }
        let place = &mut self.places[conn.index as usize];
        place.armed = Instant::NEVER;
        self.deadlines.remove(conn.index);
        self.touched = conn.index;
        self.stats.migrated_out += 1;
        out.push(Effect::Hint {
            conn,
            flow,
            open: false,
        });
        for packed in SerializedPart::all(conn, &bytes) {
            out.push(Effect::Serialized(packed));
        }
    }

    /// Adds a part of the bytes of an arriving connection.
    pub(crate) fn migration_part(&mut self, bytes: [u64; MigrationParts::WORDS]) {
        if self.incoming.len() < MAX_BYTES + MigrationParts::BYTES {
            let bytes = bytes.into_iter().flat_map(u64::to_le_bytes);
            self.incoming.extend(bytes);
        }
    }

    /// All `len` bytes of an arriving connection are here. The connection takes its reserved place.
    pub(crate) fn migration_arrive(&mut self, conn: ConnId, len: u32, out: &mut impl EffectSink) {
        let bytes = core::mem::take(&mut self.incoming);
        if !is_current(&self.places, conn) || self.places[conn.index as usize].tcb.is_some() {
            return;
        }
        let found = bytes.get(..len as usize);
        let found = found.and_then(deserialize);
        let found = found.filter(|(_, tcb)| {
            let known = self.demux.find(&tcb.flow());
            tcb.may_migrate() && known.is_none_or(|known| known == ConnId::MIGRATED)
        });
        let place = &mut self.places[conn.index as usize];
        place.held = true;
        let Some((at, mut tcb)) = found else {
            // The bytes were corrupted on the way.
            out.push(Effect::Event {
                conn,
                event: Event::Aborted,
                received: 0,
            });
            return out.push(Effect::Retire { conn, held: true });
        };
        tcb.complete_migration(conn);
        let flow = tcb.flow();
        self.frames.gap_pages += tcb.gap_pages();
        place.tcb = Some(tcb);
        if self.demux.find(&flow).is_some() {
            self.migrated_away ^= self.keys.of_flow(Domain::Migrated, &flow, 0);
        }
        self.demux.insert(flow, conn);
        // No time stamp of the connection lies in the future.
        self.now = self.now.max(at);
        self.stats.migrated_in += 1;
        out.push(Effect::Hint {
            conn,
            flow,
            open: true,
        });
        self.finish(conn, out);
    }

    /// A connection that migrated to another group is closed there.
    pub(crate) fn migration_end(&mut self, flow: &Flow) {
        if self.demux.find(flow) == Some(ConnId::MIGRATED) {
            self.demux.remove(flow);
            self.migrated_away ^= self.keys.of_flow(Domain::Migrated, flow, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::request::{Body, Flags};
    use crate::state::apply::tests::Fixture;

    /// The serialized bytes of the connection that left.
    fn packed(fixture: &Fixture) -> Vec<u8> {
        let mut bytes = Vec::new();
        for effect in &fixture.effects {
            if let Effect::Serialized(packed) = effect {
                assert_eq!(
                    usize::from(packed.part) * SerializedPart::BYTES,
                    bytes.len()
                );
                bytes.extend(packed.bytes());
            }
        }
        bytes
    }

    fn bring(fixture: &mut Fixture, conn: ConnId, bytes: &[u8]) {
        for bytes in MigrationParts::of(bytes) {
            fixture.command(Body::MigrationPart { bytes });
        }
        let len = bytes.len() as u32;
        fixture.command(Body::MigrationArrive { conn, len });
    }

    /// The reserved place.
    fn expected(fixture: &mut Fixture) -> ConnId {
        fixture.command(Body::MigrationReserve { request_id: 3 });
        match fixture.effects[..] {
            [
                Effect::MigrationReserved {
                    request_id: 3,
                    conn,
                },
            ] => conn,
            ref other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_migrated_connection_is_unchanged() {
        let mut fixture = Fixture::listening(4);
        let (conn, ours) = fixture.open(4000, 100);
        let tcb = |fixture: &Fixture, conn| {
            let found = fixture.replica.connections().find(|(c, _)| *c == conn);
            found.map(|(_, tcb)| tcb.clone())
        };
        let before = tcb(&fixture, conn);
        assert!(before.is_some());
        fixture.command(Body::MigrationLeave { conn });
        let bytes = packed(&fixture);
        assert!(!bytes.is_empty());
        assert_eq!(tcb(&fixture, conn), None);
        assert_ne!(fixture.replica.migrated_away, 0);
        // No segment of the connection is answered meanwhile.
        fixture.segment(4000, 101, ours, Flags::ACK);
        assert_eq!(fixture.sent(), []);
        assert_eq!(fixture.replica.stats().dropped_while_migrating, 1);
        let there = expected(&mut fixture);
        assert_ne!(there, conn);
        bring(&mut fixture, there, &bytes);
        assert_eq!(fixture.replica.migrated_away, 0);
        let mut after = tcb(&fixture, there).unwrap();
        after.complete_migration(conn);
        assert_eq!(Some(after), before);
        let stats = fixture.replica.stats();
        assert_eq!(
            (
                stats.migrated_out,
                stats.migrated_in,
                stats.migration_declined
            ),
            (1, 1, 0)
        );
    }

    #[test]
    fn a_connection_that_ended_elsewhere_is_forgotten() {
        let mut fixture = Fixture::listening(4);
        let (conn, ours) = fixture.open(4000, 100);
        fixture.command(Body::MigrationLeave { conn });
        fixture.command(Body::MigrationEnd {
            flow: fixture.flow(4001),
        });
        assert_ne!(fixture.replica.migrated_away, 0, "that is another flow");
        fixture.command(Body::MigrationEnd {
            flow: fixture.flow(4000),
        });
        assert_eq!(fixture.replica.migrated_away, 0);
        // Its segments are answered as those of no connection.
        fixture.segment(4000, 101, ours, Flags::ACK);
        assert_eq!(fixture.replica.stats().no_connection, 1);
    }

    #[test]
    fn a_connection_not_established_or_without_a_socket_stays() {
        let mut fixture = Fixture::listening(4);
        fixture.segment(4000, 100, 0, Flags::SYN);
        let conn = fixture.sent()[0].conn;
        for conn in [conn, ConnId::NONE] {
            fixture.command(Body::MigrationLeave { conn });
            assert_eq!(
                fixture.effects,
                [Effect::Serialized(SerializedPart::declined(conn))]
            );
        }
        assert_eq!(fixture.replica.stats().migration_declined, 2);
        assert_eq!(fixture.replica.connections().count(), 1);
    }

    #[test]
    fn bytes_that_make_no_connection_end_it() {
        let mut fixture = Fixture::listening(4);
        let (conn, _) = fixture.open(4000, 100);
        fixture.command(Body::MigrationLeave { conn });
        let bytes = packed(&fixture);
        for len in [0, 1, bytes.len() - 1] {
            let there = expected(&mut fixture);
            bring(&mut fixture, there, &bytes[..len]);
            let retired = Effect::Retire {
                conn: there,
                held: true,
            };
            assert!(fixture.effects.contains(&retired), "{:?}", fixture.effects);
            fixture.command(Body::Free { conn: there });
        }
    }
}
