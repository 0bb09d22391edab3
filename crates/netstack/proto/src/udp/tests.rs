use super::*;
use crate::log::effect::SendDatagrams;
use crate::log::request::{Address, Endpoint};
use crate::log::request::{Lengths, MAX_DATAGRAMS, Mac, Merged, Verdict};
use crate::time::Instant;

const ID: ConnId = ConnId {
    index: 1,
    generation: 5,
};

struct Fixture {
    sockets: UdpSockets,
    frames: FrameNumbers,
    limits: Limits,
    stats: StateStats,
    out: Vec<Effect>,
}

impl Fixture {
    fn new() -> Self {
        let limits = Limits {
            udp_receive_buffer: 1024,
            quantum: 4,
            ..Limits::default()
        };
        let mut fixture = Fixture {
            sockets: UdpSockets::default(),
            frames: FrameNumbers {
                next: 0,
                limit: 8,
                sent: 0,
                ..FrameNumbers::default()
            },
            limits,
            stats: StateStats::default(),
            out: Vec::new(),
        };
        fixture.command(Body::Bind {
            socket: ID,
            port: 53,
        });
        fixture
    }

    fn with(
        &mut self,
        what: impl FnOnce(&mut UdpSockets, &mut UdpCx<'_, Vec<Effect>>),
    ) -> Vec<Effect> {
        let mut cx = UdpCx {
            frames: &mut self.frames,
            limits: &self.limits,
            stats: &mut self.stats,
            out: &mut self.out,
        };
        what(&mut self.sockets, &mut cx);
        core::mem::take(&mut self.out)
    }

    fn command(&mut self, body: Body) -> Vec<Effect> {
        let request = Request::command(Instant::ZERO, 0, body);
        self.with(|sockets, cx| assert!(sockets.command(&request, cx)))
    }

    fn arrive(&mut self, lens: &[u16], verdict: Verdict, app_read: u64) -> Option<Queue> {
        let mut digest = Digest::bare(RequestKind::Datagrams, Instant::ZERO, 0);
        digest.hint = ID;
        digest.count = lens.len() as u8;
        digest.app_read = app_read as u32;
        digest.bits = Digest::PROGRESS;
        let mut all = [0; MAX_DATAGRAMS];
        all[..lens.len()].copy_from_slice(lens);
        self.arrive_as(digest, Lengths::Each(all), verdict)
    }

    /// `len` payload bytes in one frame, divided every `size` bytes.
    fn arrive_merged(&mut self, (len, size): (u16, u16), bits: u8, app_read: u64) -> Option<Queue> {
        let mut digest = Digest::bare(RequestKind::Datagrams, Instant::ZERO, 0);
        digest.hint = ID;
        digest.count = 1;
        digest.app_read = app_read as u32;
        digest.bits = Digest::PROGRESS | bits;
        self.arrive_as(digest, Lengths::Merged(Merged { len, size }), 1)
    }

    fn arrive_as(&mut self, digest: Digest, lengths: Lengths, verdict: Verdict) -> Option<Queue> {
        let body = Body::Datagrams { lengths };
        let request = Request::new(digest, body);
        match *self.with(|sockets, cx| sockets.arrive(&request, verdict, cx)) {
            [] => None,
            [Effect::Queue(queue)] => Some(queue),
            ref other => panic!("{other:?}"),
        }
    }

    fn send(&mut self, offset: u64, lens: &[u16]) -> Vec<SendDatagrams> {
        let mut all = [0; MAX_DATAGRAMS];
        all[..lens.len()].copy_from_slice(lens);
        self.send_as(offset, Lengths::Each(all), lens.len() as u8)
    }

    fn send_as(&mut self, offset: u64, lengths: Lengths, count: u8) -> Vec<SendDatagrams> {
        let body = Body::Sends {
            socket: ID,
            local: Endpoint::new(Address::ipv4(10, 0, 0, 1), 53),
            remote: Endpoint::new(Address::ipv4(10, 0, 0, 2), 9),
            mac: Mac([2; 6]),
            mtu: Limits::default().mtu,
            offset,
            lengths,
            ttl: 64,
            tos: 0,
            dont_fragment: false,
        };
        let mut request = Request::command(Instant::ZERO, 0, body);
        request.digest.count = count;
        sends(self.with(|sockets, cx| assert!(sockets.command(&request, cx))))
    }

    /// The device has taken `sent` frames.
    fn sent(&mut self, sent: u64) -> Vec<Effect> {
        self.frames.sent = sent;
        self.frames.limit = sent + 8;
        self.with(|sockets, cx| {
            sockets.after_sending(cx);
            sockets.serve(cx);
        })
    }
}

fn sends(effects: Vec<Effect>) -> Vec<SendDatagrams> {
    let send = |effect| match effect {
        Effect::Send(send) => Some(send),
        _ => None,
    };
    effects.into_iter().filter_map(send).collect()
}

#[test]
fn datagrams_are_queued_one_behind_the_other_and_bad_ones_are_not() {
    let mut fixture = Fixture::new();
    let first = fixture.arrive(&[10, 20, 0], 0b101, 0).unwrap();
    assert_eq!((first.take, first.offset, first.end), (0b101, 0, 64 + 32));
    let second = fixture.arrive(&[1], 1, 0).unwrap();
    assert_eq!((second.offset, second.delivery), (96, 1));
    assert_eq!(fixture.stats.bad_datagrams, 1);
    assert_eq!(fixture.stats.datagrams, 4);
}

#[test]
fn what_does_not_fit_is_dropped_and_counted_until_the_application_reads() {
    let mut fixture = Fixture::new();
    let queued = fixture.arrive(&[480, 480, 0, 16], 0b1111, 0).unwrap();
    assert_eq!((queued.take, queued.end), (0b0011, 1024));
    assert_eq!(fixture.stats.queue_full, 2);
    assert_eq!(fixture.arrive(&[0], 1, 0), None);
    let next = fixture.arrive(&[0], 1, 512).unwrap();
    assert_eq!(
        (next.offset, next.delivery),
        (1024, 1),
        "a run of which nothing is taken has no number"
    );
    // An older cursor does not move the position back.
    assert_eq!(fixture.arrive(&[448], 1, 0).unwrap().end, 1024 + 32 + 480);
}

#[test]
fn of_merged_datagrams_the_first_ones_are_queued_as_far_as_there_is_room() {
    let merged = |len, size| Lengths::Merged(Merged { len, size });
    let mut fixture = Fixture::new();
    // 128 bytes each, and 64 for the last.
    let all = fixture.arrive_merged((220, 96), 0, 0).unwrap();
    assert_eq!((all.take, all.offset, all.end), (1, 0, 128 + 128 + 64));
    assert_eq!(all.lengths, merged(220, 96));
    // Of 704 bytes, five take 640; a shorter one would fit, but not before the sixth.
    let some = fixture.arrive_merged((6 * 96 + 1, 96), 0, 0).unwrap();
    assert_eq!((some.lengths, some.end), (merged(5 * 96, 96), 320 + 640));
    assert_eq!((some.delivery, fixture.stats.queue_full), (1, 2));
    assert_eq!(fixture.arrive_merged((192, 96), 0, 0), None);
    assert_eq!(fixture.stats.queue_full, 4);
    // With the fields that the socket asked for, 160 bytes each.
    let next = fixture.arrive_merged((192, 96), Digest::INFO, 960).unwrap();
    assert_eq!((next.end, next.delivery), (960 + 320, 2));
    assert!(next.arrived.is_some());
    // Invalid lengths, which no pump publishes.
    assert_eq!(fixture.arrive_merged((0, 96), 0, 960), None);
    assert_eq!(fixture.arrive_merged((96, 0), 0, 960), None);
    assert_eq!(fixture.stats.datagrams, 3 + 7 + 2 + 2);
}

#[test]
fn nothing_arrives_at_a_socket_that_is_another_or_gone() {
    let mut fixture = Fixture::new();
    assert_eq!(
        fixture.command(Body::Unbind { socket: ID }),
        [Effect::Unbound { socket: ID }]
    );
    assert_eq!(fixture.arrive(&[1], 1, 0), None);
    assert_eq!(fixture.stats.no_socket, 1);
    let next = ConnId {
        generation: 6,
        ..ID
    };
    fixture.command(Body::Bind {
        socket: next,
        port: 53,
    });
    assert_eq!(fixture.arrive(&[1], 1, 0), None);
}

#[test]
fn frames_are_numbered_within_credit_and_the_ring_returns_when_they_are_sent() {
    let mut fixture = Fixture::new();
    let first = fixture.send(0, &[100, 200, 300]);
    assert_eq!(first.len(), 1);
    assert_eq!((first[0].first_frame, first[0].count), (0, 3));
    let second = fixture.send(768, &[0; 8]);
    // The quantum is four; the rest waits for its turn.
    assert_eq!((second[0].first_frame, second[0].count), (3, 4));
    assert_eq!(second[0].idents.nth(0), first[0].idents.nth(3));
    let served = fixture.sent(3);
    let upto = record::len(100) + record::len(200) + record::len(300);
    assert_eq!(served[0], Effect::Sent { socket: ID, upto });
    let rest = sends(served);
    assert_eq!((rest[0].first_frame, rest[0].count), (7, 4));
    assert_eq!(rest[0].offset, 768 + 4 * 32);
    assert_eq!(
        fixture.sent(11),
        [Effect::Sent {
            socket: ID,
            upto: 768 + 8 * 32
        }]
    );
}

#[test]
fn a_long_datagram_gets_a_frame_for_each_fragment_as_far_as_there_is_room() {
    let mut fixture = Fixture::new();
    // 8 + 8000 bytes in pieces of 1480.
    let first = fixture.send(0, &[8000, 5]);
    assert_eq!((first[0].count, first[0].fragment), (4, Some(0)));
    let rest = sends(fixture.sent(4));
    assert_eq!((rest[0].count, rest[0].fragment), (2, Some(4)));
    assert_eq!((rest[1].count, rest[1].fragment), (1, None));
    assert_eq!(rest[0].idents, first[0].idents);
    assert_eq!(rest[1].idents.nth(0), first[0].idents.nth(1));
    assert_eq!(rest[1].offset, record::len(8000));
}

#[test]
fn merged_datagrams_get_one_frame_and_an_identification_each() {
    let mut fixture = Fixture::new();
    let merged = Merged {
        len: 3 * 100 + 7,
        size: 100,
    };
    let first = fixture.send_as(0, Lengths::Merged(merged), 1);
    assert_eq!((first.len(), first[0].count), (1, 1));
    assert_eq!(first[0].lengths, Lengths::Merged(merged));
    assert_eq!(fixture.stats.sent_datagrams, 4);
    let next = fixture.send(512, &[1]);
    assert_eq!(next[0].first_frame, 1);
    assert_eq!(next[0].idents.nth(0), first[0].idents.nth(4));
    let upto = 3 * record::len(100) + record::len(7);
    assert_eq!(fixture.sent(1), [Effect::Sent { socket: ID, upto }]);
}

#[test]
fn a_closing_socket_is_gone_when_everything_is_sent() {
    let mut fixture = Fixture::new();
    fixture.send(0, &[1; 8]);
    assert_eq!(fixture.command(Body::Unbind { socket: ID }), []);
    assert_eq!(sends(fixture.sent(4)).len(), 1);
    let end = fixture.sent(8);
    assert_eq!(end.last(), Some(&Effect::Unbound { socket: ID }));
    assert_eq!(fixture.sockets.next_sent(), u64::MAX);
}

#[test]
fn a_skipped_part_of_the_ring_returns_at_once() {
    let mut fixture = Fixture::new();
    let body = Body::Sends {
        socket: ID,
        local: Endpoint::default(),
        remote: Endpoint::default(),
        mac: Mac::default(),
        mtu: 1500,
        offset: 64,
        lengths: Lengths::Each([0; MAX_DATAGRAMS]),
        ttl: 0,
        tos: 0,
        dont_fragment: false,
    };
    let effects = fixture.command(body);
    assert_eq!(
        effects,
        [Effect::Sent {
            socket: ID,
            upto: 64
        }]
    );
}
