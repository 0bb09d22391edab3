use super::*;

use crate::config::{Settings, tx_chunk};
use crate::log::effect::{Effect, FrameNumbers, Transmit};
use crate::log::request::{Address, Binding, Endpoint, NetworkError};

const US: Address = Address::ipv4(10, 0, 0, 1);

const PORT: u16 = 80;

/// A replica, the effects of the last request, and the time.
pub(crate) struct Fixture {
    pub(crate) replica: ReplicaState,
    pub(crate) effects: Vec<Effect>,
    now: Instant,
    /// Timestamp of the peer's segments.
    ts_val: Option<u32>,
}

impl Fixture {
    pub(crate) fn listening(backlog: u16) -> Self {
        Fixture::listening_with(backlog, 4)
    }

    /// [`Fixture::listening`] with room for `connections` connections.
    fn listening_with(backlog: u16, connections: u32) -> Self {
        let limits = Limits {
            connections,
            frame_payload: 0,
            ..Limits::default()
        };
        let mut fixture = Fixture {
            replica: ReplicaState::new(limits),
            effects: Vec::new(),
            now: Instant::from_millis(1),
            ts_val: None,
        };
        fixture.command(Body::Configure {
            group: GroupIndex::ONLY,
            secret: [1, 2],
        });
        fixture.command(Body::Listen {
            port: PORT,
            backlog,
            binding: Binding::default(),
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
        let request = self.request(from, seq, ack, flags);
        self.apply(&request);
    }

    /// A segment without payload.
    fn request(&self, from: u16, seq: u32, ack: u32, flags: Flags) -> Request {
        let mut digest = Digest::bare(RequestKind::Segments, self.now, self.replica.frames.next);
        digest.seg_seq = SeqNum(seq);
        digest.seg_ack = SeqNum(ack);
        digest.seg_wnd = 60_000;
        digest.flags = flags;
        digest.count = 1;
        if let Some(ts_val) = self.ts_val {
            digest.bits |= Digest::TIMESTAMPS;
            digest.ts_val = ts_val;
        }
        let body = Body::Segments {
            flow: self.flow(from),
            mac: Mac([2; 6]),
            payload_offset: 54,
            options: crate::log::request::Options::None,
        };
        Request::new(digest, body)
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

    /// [`Fixture::open`] for a peer with timestamps if `ts_val` is set.
    pub(crate) fn open_with(&mut self, from: u16, seq: u32, ts_val: Option<u32>) -> (ConnId, u32) {
        self.ts_val = ts_val;
        self.segment(from, seq, 0, Flags::SYN);
        let syn_ack = self.sent()[0];
        let ours = syn_ack.seq.0.wrapping_add(1);
        self.segment(from, seq + 1, ours, Flags::ACK);
        (syn_ack.common.conn, ours)
    }

    /// The connection from port `from` of the peer.
    pub(crate) fn flow(&self, from: u16) -> Flow {
        Flow {
            local: Endpoint::new(US, PORT),
            remote: Endpoint::new(Address::ipv4(10, 0, 0, 2), from),
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
fn cursors_of_the_application_are_those_of_the_connection_that_the_pump_found() {
    for is_the_same in [true, false] {
        let mut fixture = Fixture::listening(4);
        let (conn, ours) = fixture.open(4000, 77);
        let mut request = fixture.request(4000, 78, ours, Flags::ACK.with(Flags::PSH));
        (request.digest.seg_len, request.digest.len) = (100, 100);
        fixture.apply(&request);
        let unread = |fixture: &Fixture| {
            let tcb = fixture.replica.connections().last();
            tcb.map(|(_, tcb)| tcb.info().unread)
        };
        assert_eq!(unread(&fixture), Some(100));

        // Data that was already received takes the slow path.
        request.digest.bits |= Digest::PROGRESS;
        request.digest.app_read = 60;
        request.digest.hint = ConnId {
            generation: conn.generation.wrapping_sub(u32::from(!is_the_same)),
            ..conn
        };
        fixture.apply(&request);
        let left = if is_the_same { 40 } else { 100 };
        assert_eq!(unread(&fixture), Some(left), "{is_the_same}");
        // Without the bit the field has no meaning.
        request.digest.bits &= !Digest::PROGRESS;
        request.digest.app_read = 90;
        fixture.apply(&request);
        assert_eq!(unread(&fixture), Some(left), "{is_the_same}");
    }
}

#[test]
fn an_eighth_of_the_connection_table_is_for_established_ones() {
    let mut fixture = Fixture::listening_with(1000, 16);
    for from in 0..20 {
        fixture.segment(4000 + from, 77, 0, Flags::SYN);
    }
    assert_eq!(fixture.replica.connections().count(), 14);
    assert_eq!(fixture.replica.stats().cookies_sent, 6);
}

#[test]
fn a_next_hop_with_another_address_has_it_for_its_connection_alone() {
    let (old, other) = (Mac([2; 6]), Mac([4; 6]));
    let mut fixture = Fixture::listening(4);
    let (first, _) = fixture.open(4000, 77);
    let (second, _) = fixture.open(4001, 77);
    fixture.command(Body::NextHop {
        conn: second,
        mac: other,
    });
    let macs = fixture.replica.connections();
    let macs: Vec<_> = macs.map(|(conn, tcb)| (conn, tcb.mac())).collect();
    assert_eq!(macs, [(first, old), (second, other)]);
}

#[test]
fn a_hint_that_is_out_of_date_costs_no_segment() {
    let mut fixture = Fixture::listening(4);
    let (before, ours) = fixture.open(4000, 77);
    fixture.segment(4000, 78, ours, Flags::RST);
    assert_eq!(fixture.replica.connections().count(), 0);
    // Its place is not free until its socket is gone.
    let (conn, ours) = fixture.open(4000, 77);
    assert_ne!(before.index, conn.index);
    let older = ConnId {
        generation: conn.generation.wrapping_sub(1),
        ..conn
    };
    for (hint, seq) in [before, older, ConnId::NONE, conn].into_iter().zip(78..) {
        let mut request = fixture.request(4000, seq, ours, Flags::ACK.with(Flags::PSH));
        (request.digest.seg_len, request.digest.len) = (1, 1);
        request.digest.hint = hint;
        fixture.apply(&request);
        let received = fixture.replica.connections().map(|(_, tcb)| tcb.received());
        assert_eq!(received.last(), Some(u64::from(seq) - 77), "{hint:?}");
    }
}

#[test]
fn segments_with_bad_checksums_are_counted_and_change_nothing_else() {
    let mut fixture = Fixture::listening(4);
    let (conn, ours) = fixture.open(4000, 77);
    let mut request = fixture.request(4000, 78, ours, Flags::ACK.with(Flags::PSH));
    let digest = &mut request.digest;
    (digest.count, digest.seg_len, digest.len) = (4, 100, 400);
    for (verdict, bad, received) in [(0, 4, 0), (0b0011, 6, 200), (0b1111, 6, 400)] {
        let mut effects = Vec::new();
        fixture.replica.apply(&request, verdict, &mut effects);
        assert_eq!(fixture.replica.stats().bad_checksum, bad, "{verdict:b}");
        let tcbs = fixture.replica.connections();
        let received_by = tcbs.map(|(name, tcb)| (name, tcb.received()));
        assert_eq!(received_by.last(), Some((conn, received)), "{verdict:b}");
        assert_eq!(effects.is_empty(), verdict == 0, "{effects:?}");
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
        binding: Binding::default(),
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
fn errors_about_what_is_not_in_flight_are_ignored_and_counted() {
    let mut fixture = Fixture::listening(4);
    let (conn, ours) = fixture.open(4000, 100);
    let ignored = |fixture: &mut Fixture, port, seq| {
        fixture.command(Body::NetworkError {
            flow: fixture.flow(port),
            seq: SeqNum(seq),
            what: NetworkError::Unreachable,
        });
        fixture.replica.stats().ignored_errors
    };
    assert_eq!(ignored(&mut fixture, 4001, ours), 1, "no connection");
    assert_eq!(ignored(&mut fixture, 4000, ours), 2, "nothing is in flight");
    fixture.command(Body::Progress {
        conn,
        app_read: 0,
        app_written: 10,
        shutdown: false,
        orphan: false,
    });
    assert_eq!(ignored(&mut fixture, 4000, ours), 2);
    assert_eq!(ignored(&mut fixture, 4000, ours + 10), 3, "behind its end");
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
    // Its only frame is the SYN-ACK.
    let retire = Effect::Retire {
        conn,
        held: true,
        frames: 1,
    };
    assert!(fixture.effects.contains(&retire));
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
            binding: Binding::default(),
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
        local: Endpoint::new(US, 0),
        remote: fixture.flow(6000).remote,
        mac: Mac([2; 6]),
        settings: Settings::default(),
    });
    let answers = fixture
        .effects
        .iter()
        .filter(|effect| matches!(effect, Effect::Opened { conn, .. } if *conn == ConnId::NONE));
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
            let which = conns.iter().position(|conn| *conn == transmit.common.conn);
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

#[test]
fn a_counter_that_differs_shows_in_both_fingerprints() {
    let replica = Fixture::listening(1).replica;
    let mut other = replica.clone();
    // As a flipped bit of a connection leaves it that was counted twice, and ended twice.
    other.frames.counts.established += 1;
    other.frames.counts.no_longer_established += 1;
    assert_ne!(replica.whole_fingerprint(), other.whole_fingerprint());
    let differ = |turn: &u64| replica.post(*turn) != other.post(*turn);
    assert_eq!((0..16 * StateStats::COUNT as u64).filter(differ).count(), 2);
}

#[test]
fn credit_grows_by_whole_chunks_of_transmit_slots() {
    for slots in [4, 64, 512, 4096] {
        let limits = Limits {
            tx_slots: slots,
            ..Limits::default()
        };
        let (slots, mut frames) = (u64::from(slots), FrameNumbers::default());
        let chunk = tx_chunk(slots);
        // Counts grow by steps of all sizes, and may come late.
        for sent in (0..300).flat_map(|step| [step * step / 20, step * step / 40]) {
            frames.update_sent(sent, &limits);
            if frames.sent > 0 {
                assert_eq!(frames.limit, frames.sent / chunk * chunk + slots);
            }
        }
        assert_eq!(frames.sent, 299 * 299 / 20);
    }
}
