//! Every variant over a device whose frames the tests write and read: what only the clock brings
//! about, and what a stack that started again answers to the peers of the one before it.

#![cfg(feature = "testkit")]

use std::net::Ipv4Addr;

use dominoes_drivers::memory::{MemoryConfig, Script, scripted_with};
use dominoes_netstack::testkit::Variant;
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::{self, Setup};
use dominoes_netstack::{SocketError, Sockets, TcpStream};
use dominoes_testkit::packet::{self, ACK, FIN, PSH, RST, SYN, TO_STACK};

const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const PORT: u16 = 7;

/// A stack and the far side of its device.
struct Host {
    stack: Box<dyn variants::Variant>,
    script: Script,
}

impl Host {
    fn new(variant: Variant, address: Ipv4Addr) -> Host {
        let mac = packet::mac_of(address.octets());
        let (device, script) = scripted_with(MemoryConfig::default().macs(mac, mac));
        let setup = Setup::new(address, 24, [u64::from(address.to_bits()), 7]);
        let stack = variant.build(setup, Box::new(device)).unwrap();
        Host { stack, script }
    }

    fn sockets(&self) -> Sockets {
        self.stack.sockets()
    }

    /// Does what can be done at `now`, and returns the frames that left.
    fn turn(&mut self, now: Instant) -> Vec<Vec<u8>> {
        while self.stack.turn(now) > 0 {}
        let sent = self.script.take_sent();
        sent.into_iter().map(|(frame, _)| frame).collect()
    }

    fn next_deadline(&self) -> Instant {
        self.stack.next_deadline()
    }

    /// Jumps to the next deadline, which is later than `now` and within `most`; returns what leaves
    /// then.
    fn jump(&mut self, now: &mut Instant, most: Duration) -> Vec<Vec<u8>> {
        let deadline = self.next_deadline();
        assert!(deadline > *now, "{deadline:?} at {now:?}");
        assert!(deadline <= *now + most, "{deadline:?} at {now:?}");
        *now = deadline;
        self.turn(*now)
    }
}

/// An IPv4 packet from the peer to us; `fragment` is its word of flags and offset.
fn packet(protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let place = (usize::from(fragment & 0x1fff) * 8, fragment & 0x2000 != 0);
    packet::fragment(TO_STACK, protocol, 9, place, payload)
}

/// A segment as far as these tests look at it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Segment {
    /// Port of the peer.
    port: u16,
    seq: u32,
    ack: u32,
    flags: u8,
    payload: Vec<u8>,
}

impl Segment {
    fn new(port: u16, seq: u32, ack: u32, flags: u8, payload: &[u8]) -> Segment {
        Segment {
            port,
            seq,
            ack,
            flags,
            payload: payload.to_vec(),
        }
    }

    /// The frame that brings it from the peer to our port `to`.
    fn frame(&self, to: u16) -> Vec<u8> {
        let segment = packet::Segment {
            src_port: self.port,
            dst_port: to,
            seq: self.seq,
            ack: self.ack,
            flags: self.flags,
            wnd: u16::MAX,
            payload: self.payload.clone(),
            ..packet::Segment::default()
        };
        segment.frame(TO_STACK)
    }

    /// What a frame from us brings to the peer; `None` if it is no TCP segment.
    fn sent(frame: &[u8]) -> Option<(u16, Segment)> {
        let sent = packet::Segment::read(frame)?;
        let segment = Segment::new(sent.dst_port, sent.seq, sent.ack, sent.flags, &sent.payload);
        Some((sent.src_port, segment))
    }
}

/// Who is asked for by ARP, if a frame asks for somebody.
fn asked(frame: &[u8]) -> Option<Ipv4Addr> {
    packet::asked(frame).map(Ipv4Addr::from)
}

#[test]
fn a_connect_whose_first_arp_answer_is_lost_opens_though_only_deadlines_are_told() {
    for variant in Variant::ALL {
        let mut host = Host::new(variant, US);
        let mut now = Instant::from_millis(1);
        let to = std::net::SocketAddrV4::new(PEER, PORT);
        let mut connecting = host.sockets().begin_connect(to).unwrap();
        let sent = host.turn(now);
        assert_eq!(sent.iter().find_map(|frame| asked(frame)), Some(PEER));
        // The answer to that is lost.
        let sent = host.jump(&mut now, Duration::from_secs(1));
        let again = sent.iter().find_map(|frame| asked(frame));
        assert_eq!(again, Some(PEER), "{variant}: the request is sent again");
        host.script.push(packet::arp_reply(TO_STACK));
        let sent = host.turn(now);
        let (ours, syn) = sent.iter().find_map(|frame| Segment::sent(frame)).unwrap();
        assert_eq!(syn.flags & SYN, SYN);
        let answer = Segment::new(PORT, 900, syn.seq.wrapping_add(1), SYN | ACK, &[]);
        host.script.push(answer.frame(ours));
        host.turn(now);
        assert!(connecting.try_finish().unwrap().is_some(), "{variant}");
    }
}

/// A thread may sleep only until what it knows of, and any may be the one that sleeps in the
/// device.
#[test]
fn whichever_worker_is_asked_knows_what_the_pump_waits_for() {
    for variant in Variant::ALL {
        let mut host = Host::new(variant, US);
        let now = Instant::from_millis(1);
        let to = std::net::SocketAddrV4::new(PEER, PORT);
        let connecting = host.sockets().begin_connect(to).unwrap();
        // A neighbour that does not answer, ...
        assert_eq!(
            host.turn(now).iter().find_map(|frame| asked(frame)),
            Some(PEER)
        );
        let deadline = host.next_deadline();
        assert!(
            deadline <= now + Duration::from_secs(1),
            "{variant}: {deadline:?}"
        );
        let workers = host.stack.into_parts().workers;
        assert_eq!(workers.len(), variant.workers());
        let deadlines: Vec<_> = workers
            .iter()
            .map(|worker| worker.next_deadline())
            .collect();
        assert_eq!(deadlines, vec![deadline; workers.len()], "{variant}");
        drop(connecting);

        // ... and a datagram of which a part is missing.
        let mut host = Host::new(variant, US);
        host.turn(now);
        host.script.push(packet(17, 0x2000, &[7; 64]));
        host.turn(now);
        let deadline = host.next_deadline();
        let workers = host.stack.into_parts().workers;
        let all_know = workers
            .iter()
            .all(|worker| worker.next_deadline() == deadline);
        assert!(all_know && deadline < Instant::NEVER, "{variant}");
    }
}

#[test]
fn a_connect_that_no_neighbour_answers_fails_though_only_deadlines_are_told() {
    for variant in Variant::ALL {
        let mut host = Host::new(variant, US);
        let mut now = Instant::from_millis(1);
        let to = std::net::SocketAddrV4::new(PEER, PORT);
        let mut connecting = host.sockets().begin_connect(to).unwrap();
        let mut requests = host
            .turn(now)
            .iter()
            .filter_map(|frame| asked(frame))
            .count();
        let ended = loop {
            match connecting.try_finish() {
                Ok(None) => {}
                Ok(Some(_)) => panic!("{variant}: connected to a host that is not there"),
                Err(error) => break error,
            }
            let sent = host.jump(&mut now, Duration::from_secs(1));
            requests += sent.iter().filter_map(|frame| asked(frame)).count();
        };
        assert_eq!(
            (ended, requests),
            (SocketError::Unreachable, 3),
            "{variant}"
        );
    }
}

#[test]
fn a_datagram_that_stays_incomplete_is_given_up_by_its_deadline() {
    for variant in Variant::ALL {
        let mut host = Host::new(variant, US);
        let mut now = Instant::from_millis(1);
        host.turn(now);
        assert_eq!(host.next_deadline(), Instant::NEVER, "{variant}");
        // The first of several: more fragments follow.
        host.script.push(packet(17, 0x2000, &[7; 64]));
        assert_eq!(host.turn(now), Vec::<Vec<u8>>::new());
        let sent = host.jump(&mut now, Duration::from_secs(30));
        let [report] = &sent[..] else {
            panic!("{variant}: {} frames", sent.len());
        };
        // ICMP, time exceeded, fragment reassembly (RFC 792).
        assert_eq!(
            (report[23], &report[34..36]),
            (1, &[11, 1][..]),
            "{variant}"
        );
        assert_eq!(host.next_deadline(), Instant::NEVER, "{variant}");
    }
}

/// RFC 9293 section 3.10.7.1, CLOSED: which reset answers a segment; `None`: a reset is not
/// answered.
fn reset_for(segment: &Segment) -> Option<Segment> {
    let &Segment {
        port,
        seq,
        ack,
        flags,
        ..
    } = segment;
    if flags & RST != 0 {
        None
    } else if flags & ACK != 0 {
        Some(Segment::new(port, ack, 0, RST, &[]))
    } else {
        let controls = [SYN, FIN].map(|control| u32::from(flags & control != 0));
        let len = segment.payload.len() as u32 + controls.iter().sum::<u32>();
        Some(Segment::new(port, 0, seq.wrapping_add(len), RST | ACK, &[]))
    }
}

#[test]
fn a_stack_that_knows_nothing_of_a_connection_resets_its_segments() {
    let text = b"in the middle of a stream";
    for variant in Variant::ALL {
        let mut host = Host::new(variant, US);
        let now = Instant::from_millis(1);
        let _listener = host.sockets().listen(PORT, 4).unwrap();
        host.turn(now);
        let all_flags = [
            ACK,
            ACK | PSH,
            ACK | FIN,
            SYN | ACK,
            PSH,
            FIN,
            RST,
            RST | ACK,
        ];
        for flags in all_flags {
            for seq in [5_000, u32::MAX - 3] {
                let segment = Segment::new(4000, seq, 77_000, flags, text);
                // Where nobody listens; and where somebody does, if the segment acknowledges
                // something (section 3.10.7.2).
                for to in [9, PORT] {
                    host.script.push(segment.frame(to));
                    let sent = host.turn(now);
                    let sent: Vec<_> = sent.iter().filter_map(|f| Segment::sent(f)).collect();
                    let listens = to == PORT && flags & ACK == 0;
                    let expected = reset_for(&segment).filter(|_| !listens);
                    let expected: Vec<_> = expected.into_iter().map(|seg| (to, seg)).collect();
                    assert_eq!(sent, expected, "{variant}: {segment:?} to port {to}");
                }
            }
        }
    }
}

/// Lets two hosts send each other frames until they have nothing more to say at `now`.
fn settle(hosts: [&mut Host; 2], now: Instant) {
    let [a, b] = hosts;
    loop {
        let (from_a, from_b) = (a.turn(now), b.turn(now));
        if from_a.is_empty() && from_b.is_empty() {
            break;
        }
        from_a.into_iter().for_each(|frame| b.script.push(frame));
        from_b.into_iter().for_each(|frame| a.script.push(frame));
    }
}

#[test]
fn the_peer_of_a_stack_that_started_again_finds_its_connection_reset() {
    for variant in Variant::ALL {
        for listens_again in [false, true] {
            let (mut server, mut client) = (Host::new(variant, US), Host::new(variant, PEER));
            let mut now = Instant::from_millis(1);
            let listener = server.sockets().listen(PORT, 4).unwrap();
            let to = std::net::SocketAddrV4::new(US, PORT);
            let mut connecting = client.sockets().begin_connect(to).unwrap();
            settle([&mut server, &mut client], now);
            let mut ours: TcpStream = connecting.try_finish().unwrap().unwrap();
            let (mut theirs, _) = listener.try_accept().unwrap();
            assert_eq!(ours.try_write(b"before"), Ok(6));
            settle([&mut server, &mut client], now);
            let mut buffer = [0; 16];
            assert_eq!(theirs.try_read(&mut buffer), Ok(6));
            settle([&mut server, &mut client], now);

            // It is gone without a word, and another one has its address.
            let mut server = Host::new(variant, US);
            let _listener = listens_again.then(|| server.sockets().listen(PORT, 4).unwrap());
            now += Duration::from_secs(1);
            settle([&mut server, &mut client], now);
            assert_eq!(ours.try_read(&mut buffer), Err(SocketError::WouldBlock));
            assert_eq!(ours.try_write(b"after"), Ok(5));
            settle([&mut server, &mut client], now);
            let (read, written) = (ours.try_read(&mut buffer), ours.try_write(b"more"));
            assert_eq!(read, Err(SocketError::Reset), "{variant}");
            assert_eq!(written, Err(SocketError::Reset), "{variant}");
        }
    }
}
