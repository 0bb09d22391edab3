//! Every variant over a device whose frames the tests write and read: events that follow from time
//! alone, and answers of a restarted stack to the peers of its predecessor.

#![cfg(feature = "testkit")]

use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use dominoes_drivers::memory::{MemoryConfig, pair, scripted_with};
use dominoes_drivers::{DeviceError, DeviceRx, DeviceWaker, Frame, RxStats};
use dominoes_netstack::testkit::Variant;
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::Setup;
use dominoes_netstack::{
    Builder, ByHand, Interface, Limits, MembershipError, Recorder, Recording, SocketError, Stack,
    TcpStream,
};
use dominoes_testkit::app::Traffic;
use dominoes_testkit::device::Around;
use dominoes_testkit::hand::{self, Scripted, Shape};
use dominoes_testkit::link::{Faults, ImpairedLink, LinkConfig};
use dominoes_testkit::packet::{self, ACK, RST, SYN, Segment, TO_STACK};
use dominoes_testkit::peer::Peer;
use dominoes_testkit::rng::Cases;

use crate::support::Memory;

const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const PORT: u16 = 7;

fn setup(address: Ipv4Addr) -> Setup {
    Setup::new(address.into(), 24, [u64::from(address.to_bits()), 7])
}

fn new_host(variant: Variant, address: Ipv4Addr) -> Scripted {
    Scripted::new(variant, setup(address))
}

/// Jumps to the next deadline, which is later than now and within `most`; returns what leaves then.
fn jump(host: &mut Scripted, most: Duration) -> Vec<Vec<u8>> {
    let (now, deadline) = (host.now, host.next_deadline());
    assert!(deadline > now, "{deadline:?} at {now:?}");
    assert!(deadline <= now + most, "{deadline:?} at {now:?}");
    host.now = deadline;
    host.turn()
}

/// The first segment of a connection that the peer opens.
fn syn() -> Vec<u8> {
    Peer::new(TO_STACK, (4000, PORT), 900).says(SYN, &[])
}

/// An IPv4 packet from the peer to us; `fragment` is its word of flags and offset.
fn packet(protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let place = (usize::from(fragment & 0x1fff) * 8, fragment & 0x2000 != 0);
    packet::fragment(TO_STACK, protocol, 9, place, payload)
}

type Call = Box<dyn FnOnce() + Send>;

/// Runs a closure when the stack claims frames.
struct CallingRx {
    rx: Box<dyn DeviceRx>,
    call: Arc<Mutex<Option<Call>>>,
}

impl DeviceRx for CallingRx {
    fn claim(&mut self, max: usize, out: &mut Vec<Frame>) -> Result<usize, DeviceError> {
        if let Some(call) = self.call.lock().unwrap().take() {
            call();
        }
        self.rx.claim(max, out)
    }

    fn release(&mut self, frames: &mut Vec<Frame>) {
        self.rx.release(frames);
    }

    fn wait(&mut self, timeout: Option<std::time::Duration>) -> Result<(), DeviceError> {
        self.rx.wait(timeout)
    }

    fn waker(&self) -> DeviceWaker {
        self.rx.waker()
    }

    fn stats(&self) -> RxStats {
        self.rx.stats()
    }
}

#[test]
fn a_listener_accepts_a_syn_that_came_after_it_however_late_it_began() {
    for variant in Variant::ALL {
        let mac = packet::mac_of(US.octets());
        let (device, script) = scripted_with(MemoryConfig::default().macs(mac, mac));
        let call = Arc::new(Mutex::new(None));
        let called = Arc::clone(&call);
        let device = Around::new(device).rx(|rx| CallingRx { rx, call: called });
        let mut host = Scripted {
            stacks: Shape::One(variant).build(setup(US), device),
            script,
            now: Instant::from_millis(1),
        };
        host.turn();

        let (sockets, listener) = (host.sockets(), Arc::new(Mutex::new(None)));
        let begun = Arc::clone(&listener);
        host.script.push(packet::arp_reply(TO_STACK));
        host.script.push(syn());
        let listen = move || *begun.lock().unwrap() = Some(sockets.listen(PORT, 4));
        *call.lock().unwrap() = Some(Box::new(listen));
        let sent = host.turn();
        let answers = sent.iter().filter_map(|frame| Segment::read(frame));
        let flags: Vec<_> = answers.map(|segment| segment.flags).collect();
        assert_eq!(flags, [SYN | ACK], "{variant}");
        assert!(matches!(*listener.lock().unwrap(), Some(Ok(_))));
    }
}

/// The target of an ARP request.
fn asked(frame: &[u8]) -> Option<Ipv4Addr> {
    packet::asked(frame).map(Ipv4Addr::from)
}

#[test]
fn a_connect_whose_first_arp_answer_is_lost_opens_though_only_deadlines_are_told() {
    for variant in Variant::ALL {
        let mut host = new_host(variant, US);
        let to = std::net::SocketAddr::new(PEER.into(), PORT);
        let mut connecting = host.sockets().begin_connect(to).unwrap();
        let sent = host.turn();
        assert_eq!(sent.iter().find_map(|frame| asked(frame)), Some(PEER));
        // The reply is lost.
        let sent = jump(&mut host, Duration::from_secs(1));
        let again = sent.iter().find_map(|frame| asked(frame));
        assert_eq!(again, Some(PEER), "{variant}: the request is sent again");
        host.script.push(packet::arp_reply(TO_STACK));
        let sent = host.turn();
        let syn = sent.iter().find_map(|frame| Segment::read(frame)).unwrap();
        assert_eq!(syn.flags & SYN, SYN);
        let mut peer = Peer::new(TO_STACK, (PORT, syn.src_port), 900);
        peer.ack = syn.seq.wrapping_add(1);
        host.script.push(peer.says(SYN | ACK, &[]));
        host.turn();
        assert!(connecting.try_finish().unwrap().is_some(), "{variant}");
    }
}

/// A thread sleeps until the next deadline that it knows, and any thread may sleep in the device.
#[test]
fn whichever_worker_is_asked_knows_what_the_pump_waits_for() {
    for variant in Variant::ALL {
        let mut host = new_host(variant, US);
        let to = std::net::SocketAddr::new(PEER.into(), PORT);
        let connecting = host.sockets().begin_connect(to).unwrap();
        // A neighbour that does not answer, ...
        assert_eq!(
            host.turn().iter().find_map(|frame| asked(frame)),
            Some(PEER)
        );
        let deadline = host.next_deadline();
        assert!(
            deadline <= host.now + Duration::from_secs(1),
            "{variant}: {deadline:?}"
        );
        let workers = host.stacks.remove(0).into_parts().0;
        assert_eq!(workers.len(), variant.workers());
        let deadlines: Vec<_> = workers
            .iter()
            .map(|worker| worker.next_deadline())
            .collect();
        assert_eq!(deadlines, vec![deadline; workers.len()], "{variant}");
        drop(connecting);

        // ... and a datagram of which a part is missing.
        let mut host = new_host(variant, US);
        host.turn();
        host.script.push(packet(17, 0x2000, &[7; 64]));
        host.turn();
        let deadline = host.next_deadline();
        let workers = host.stacks.remove(0).into_parts().0;
        let all_know = workers
            .iter()
            .all(|worker| worker.next_deadline() == deadline);
        assert!(all_know && deadline < Instant::NEVER, "{variant}");
    }
}

#[test]
fn a_connect_that_no_neighbour_answers_fails_though_only_deadlines_are_told() {
    for variant in Variant::ALL {
        let mut host = new_host(variant, US);
        let to = std::net::SocketAddr::new(PEER.into(), PORT);
        let mut connecting = host.sockets().begin_connect(to).unwrap();
        let mut requests = host.turn().iter().filter_map(|frame| asked(frame)).count();
        let ended = loop {
            match connecting.try_finish() {
                Ok(None) => {}
                Ok(Some(_)) => panic!("{variant}: connected to a host that is not there"),
                Err(error) => break error,
            }
            let sent = jump(&mut host, Duration::from_secs(1));
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
        let mut host = new_host(variant, US);
        host.script.push(packet::arp_request(TO_STACK));
        host.turn();
        assert_eq!(host.next_deadline(), Instant::NEVER, "{variant}");
        // The first of several: more fragments follow.
        host.script.push(packet(17, 0x2000, &[7; 64]));
        assert_eq!(host.turn(), Vec::<Vec<u8>>::new());
        let sent = jump(&mut host, Duration::from_secs(60));
        let [report] = &sent[..] else {
            panic!("{variant}: {} frames", sent.len());
        };
        // ICMP, time exceeded, fragment reassembly (RFC 792).
        assert_eq!(
            (report[23], &report[34..36]),
            (1, &[11, 1][..]),
            "{variant}"
        );
        // The stack had not heard of the report's next hop for a minute, and verifies it.
        host.script.push(packet::arp_request(TO_STACK));
        host.turn();
        assert!(jump(&mut host, Duration::from_secs(1)).is_empty());
        assert_eq!(host.next_deadline(), Instant::NEVER, "{variant}");
    }
}

#[test]
fn the_peer_of_a_stack_that_started_again_finds_its_connection_reset() {
    for variant in Variant::ALL {
        for listens_again in [false, true] {
            let (mut server, mut client) = (new_host(variant, US), new_host(variant, PEER));
            let listener = server.sockets().listen(PORT, 4).unwrap();
            let to = std::net::SocketAddr::new(US.into(), PORT);
            let mut connecting = client.sockets().begin_connect(to).unwrap();
            hand::settle([&mut server, &mut client]);
            let mut ours: TcpStream = connecting.try_finish().unwrap().unwrap();
            let (mut theirs, _) = listener.try_accept().unwrap();
            assert_eq!(ours.try_write(b"before"), Ok(6));
            hand::settle([&mut server, &mut client]);
            let mut buffer = [0; 16];
            assert_eq!(theirs.try_read(&mut buffer), Ok(6));
            hand::settle([&mut server, &mut client]);

            // The server vanishes without a message, and another one gets its address.
            let mut server = new_host(variant, US);
            let _listener = listens_again.then(|| server.sockets().listen(PORT, 4).unwrap());
            client.now += Duration::from_secs(1);
            server.now = client.now;
            hand::settle([&mut server, &mut client]);
            assert_eq!(ours.try_read(&mut buffer), Err(SocketError::WouldBlock));
            assert_eq!(ours.try_write(b"after"), Ok(5));
            hand::settle([&mut server, &mut client]);
            let (read, written) = (ours.try_read(&mut buffer), ours.try_write(b"more"));
            assert_eq!(read, Err(SocketError::Reset), "{variant}");
            assert_eq!(written, Err(SocketError::Reset), "{variant}");
        }
    }
}

/// Two hosts, and the wire from each.
struct Pair {
    hosts: [Scripted; 2],
    wires: [ImpairedLink; 2],
    now: Instant,
    /// ARP requests so far.
    asked: usize,
}

impl Pair {
    fn new(variant: Variant, seed: u64) -> Pair {
        let faults = |way| Faults::new(seed ^ way).loss(200_000).duplicate(20_000);
        let wire = |way| {
            let delay = std::time::Duration::from_millis(3);
            ImpairedLink::new(LinkConfig::default().faults(faults(way)).delay(delay))
        };
        Pair {
            hosts: [US, PEER].map(|address| new_host(variant, address)),
            wires: [wire(0), wire(1)],
            now: Instant::from_millis(1),
            asked: 0,
        }
    }

    /// Does everything that happens at this moment. Returns whether there was anything.
    fn settle(&mut self) -> bool {
        let mut any = false;
        let now = std::time::Duration::from_nanos(self.now.as_nanos());
        loop {
            let mut done = false;
            for (way, host) in self.hosts.iter_mut().enumerate() {
                host.now = self.now;
                while let Some(frame) = self.wires[1 - way].take(now) {
                    host.script.push(frame.to_vec());
                    done = true;
                }
                for frame in host.turn() {
                    self.asked += usize::from(asked(&frame).is_some());
                    self.wires[way].offer(now, Frame::from_bytes(&frame));
                    done = true;
                }
            }
            any |= done;
            if !done {
                return any;
            }
        }
    }

    /// Moves the clock to the next arrival or deadline; nothing else moves it. Returns whether
    /// there is one.
    fn jump(&mut self) -> bool {
        let arrivals = self.wires.iter().filter_map(ImpairedLink::next_arrival);
        let arrivals = arrivals.map(|at| Instant::from_nanos(at.as_nanos() as u64));
        let deadlines = self.hosts.iter().map(Scripted::next_deadline);
        let next = arrivals.chain(deadlines).min().unwrap_or(Instant::NEVER);
        if next != Instant::NEVER {
            assert!(next > self.now, "{next:?} at {:?}", self.now);
            self.now = next;
        }
        next != Instant::NEVER
    }
}

/// A handshake, a transfer both ways and datagrams in fragments over wires that lose every fifth
/// frame, ARP's among them. Returns how many ARP requests there were.
fn run_on_deadlines_alone(variant: Variant, seed: u64) -> Result<usize, String> {
    let mut pair = Pair::new(variant, seed);
    let [server, client] = [0, 1].map(|host| pair.hosts[host].sockets());
    let listener = server.listen(PORT, 4).map_err(|e| e.to_string())?;
    let at = |address: Ipv4Addr| std::net::SocketAddr::new(address.into(), PORT);
    let mut sockets = [&server, &client].map(|one| one.bind_udp(PORT).expect("a free port"));
    let mut connecting = Some(client.begin_connect(at(US)).map_err(|e| e.to_string())?);
    let (mut ours, mut theirs) = (None, None);
    let mut turns = 0_u64;
    loop {
        turns += 1;
        if turns > 200_000 {
            return Err(format!("{variant}: no end at {:?}", pair.now));
        }
        let mut done = pair.settle();
        if let Some(open) = &mut connecting {
            match open.try_finish() {
                Ok(None) => {}
                Ok(Some(stream)) => {
                    ours = Some(Traffic::new(stream, 1, 2, 20_000, 10_000));
                    connecting = None;
                }
                // The neighbour did not answer three requests: the user tries again.
                Err(SocketError::Unreachable) => {
                    connecting = Some(client.begin_connect(at(US)).map_err(|e| e.to_string())?);
                    done = true;
                }
                Err(error) => return Err(format!("{variant}: {error}")),
            }
        }
        if theirs.is_none()
            && let Ok((stream, _)) = listener.try_accept()
        {
            theirs = Some(Traffic::new(stream, 2, 1, 10_000, 20_000));
            for (socket, to) in sockets.iter_mut().zip([PEER, US]) {
                let _ = socket.try_send_to(&[7; 4000], at(to));
            }
            done = true;
        }
        for traffic in [&mut ours, &mut theirs].into_iter().flatten() {
            done |= traffic.step().map_err(|e| format!("{variant}: {e:?}"))? > 0;
        }
        let over = |traffic: &Option<Traffic>| traffic.as_ref().is_some_and(Traffic::is_over);
        if over(&ours) && over(&theirs) {
            break;
        }
        if !done && !pair.settle() && !pair.jump() {
            return Err(format!(
                "{variant}: nobody waits for anything, and it is not over"
            ));
        }
    }
    drop((ours, theirs));
    // TIME-WAIT, fragments and neighbours expire by deadlines, too.
    for _ in 0..10_000 {
        pair.settle();
        if !pair.jump() {
            return Ok(pair.asked);
        }
    }
    Err(format!("{variant}: a deadline without end"))
}

#[test]
fn whole_connections_over_bad_wires_need_no_clock_but_the_deadlines() {
    const RUN: &str = "cargo test -p dominoes-netstack --test main deadlines";
    for variant in Variant::ALL {
        let cases = Cases::new("DEADLINES", RUN, 12);
        let asked = cases.run(|seed| run_on_deadlines_alone(variant, seed));
        // Without loss, one host asks once and the other learns from that, so some requests were
        // repeated.
        assert!(
            asked.iter().sum::<usize>() > asked.len(),
            "{variant}: {asked:?}"
        );
    }
}

#[test]
fn requests_that_a_failing_device_refused_leave_once_it_works() {
    for variant in Variant::ALL {
        let mut host = new_host(variant, US);
        host.turn();
        let interface = "manual0".to_owned();
        host.script.fail_with(Some(DeviceError::Down { interface }));
        let neighbors = [[10, 0, 0, 5], [10, 0, 0, 6]];
        let _opening = neighbors.map(|to| host.sockets().begin_connect((to, PORT).into()));
        for _ in 0..4 {
            host.work();
            host.now += Duration::from_millis(10);
        }
        host.script.fail_with(None);
        let sent = host.turn();
        let asked: Vec<_> = sent.iter().filter_map(|it| packet::asked(it)).collect();
        for neighbor in neighbors {
            assert!(asked.contains(&neighbor), "{variant}: {asked:?}");
        }
    }
}

#[test]
fn a_socket_that_was_dropped_is_freed_although_many_others_always_send() {
    for variant in Variant::ALL {
        let mut setup = setup(US);
        setup.limits.udp_sockets = 401;
        let mut host = Scripted::new(variant, setup);
        host.receive(packet::arp_reply(TO_STACK));
        let sockets = host.sockets();
        let mut senders: Vec<_> = (1..=401)
            .map(|port| sockets.bind_udp(port).unwrap())
            .collect();
        host.turn();
        senders.pop();
        let to = (packet::FAR, 9).into();
        let is_freed = (0..50).any(|_| {
            for sender in &mut senders {
                let _ = sender.try_send_to(b"text", to);
            }
            host.stacks[0].turn(host.now);
            host.now += Duration::from_micros(50);
            sockets.bind_udp(500).is_ok()
        });
        assert!(is_freed, "{variant}");
    }
}

#[test]
fn a_stack_by_hand_takes_in_a_replica_and_lets_it_go() {
    let (device, _peer) = pair(MemoryConfig::default());
    let builder = Stack::builder("10.0.0.1/24").replicas(2).replica_slots(3);
    let mut stack = builder.by_hand(device).unwrap();
    let mut now = Instant::ZERO;
    let mut turns = |stack: &mut ByHand| {
        for _ in 0..100 {
            // A replica joins and leaves at a request.
            drop(stack.sockets().listen(PORT, 1).unwrap());
            now += Duration::from_millis(1);
            stack.turn(now);
            stack.admit();
        }
    };
    assert_eq!(stack.add_replica(), Ok(2));
    assert_eq!(stack.add_replica(), Err(MembershipError::NoFreeSlot));
    turns(&mut stack);
    assert_eq!(stack.stats().membership.joined, 1);
    assert_eq!(stack.remove_replica(), Ok(2));
    turns(&mut stack);
    assert_eq!(stack.stats().membership.left, 1);
}

#[test]
fn groups_and_interfaces_by_hand_have_the_sockets_of_all() {
    let [(first, _), (second, _)] = [(); 2].map(|()| pair(MemoryConfig::default()));
    let builder = || Stack::builder("10.0.1.1/24").groups(2);
    let refused = builder().by_hand(first).unwrap_err().to_string();
    assert!(refused.ends_with("call `groups_by_hand`"), "{refused}");
    let (first, _) = pair(MemoryConfig::default());
    let builder = builder().interface(Interface::new("10.0.2.1/24"), second);
    let groups = builder.groups_by_hand(first).unwrap();
    assert_eq!(groups.len(), 4);
    for group in &groups {
        assert_eq!(group.sockets().interfaces().len(), 2);
    }
}

#[test]
fn a_recorded_stack_is_replayed_by_hand() {
    let bytes = Memory::default();
    let limits = Limits::default();
    let recorder = Recorder::new(Box::new(bytes.clone()), &limits).unwrap();
    let builder = || Stack::builder("10.0.0.1/24").secret([1, 2]);
    let (device, script) = scripted_with(MemoryConfig::default());
    let mut stack = builder().record(recorder).by_hand(device).unwrap();
    let _listener = stack.sockets().listen(PORT, 4).unwrap();
    script.push(syn());
    for millis in 1..100 {
        stack.turn(Instant::from_millis(millis));
    }
    stack.take_recorder().unwrap().finish().unwrap();
    let bytes = bytes.0.lock().unwrap().clone();
    let mut recording = Recording::open(&bytes[..]).unwrap();
    let (device, _script) = scripted_with(MemoryConfig::default());
    let mut again = builder().replicas(2).by_hand(device).unwrap();
    let mut requests = 0;
    while again.replay(&mut recording).unwrap() {
        requests += 1;
    }
    assert!(requests > 1, "{requests}");
    assert_eq!(again.fingerprint(), stack.fingerprint());
}

/// A stack whose client has connected to another one.
fn connected(recorder: Option<Recorder>) -> ([ByHand; 2], TcpStream) {
    let (left, right) = pair(MemoryConfig::default());
    let builder = Stack::builder("10.0.0.1/24").secret([1, 2]);
    let builder = recorder.into_iter().fold(builder, Builder::record);
    let mut client = builder.by_hand(left).unwrap();
    let mut server = Stack::builder("10.0.0.2/24").by_hand(right).unwrap();
    let _listener = server.sockets().listen(PORT, 4).unwrap();
    let to = (PEER, PORT).into();
    let mut opening = client.sockets().begin_connect(to).unwrap();
    for millis in 1.. {
        client.turn(Instant::from_millis(millis));
        server.turn(Instant::from_millis(millis));
        if let Some(stream) = opening.try_finish().unwrap() {
            return ([client, server], stream);
        }
    }
    unreachable!("it connects")
}

#[test]
fn no_log_is_replayed_over_what_an_application_borrows() {
    let bytes = Memory::default();
    let recorder = Recorder::new(Box::new(bytes.clone()), &Limits::default()).unwrap();
    let ([mut stack, _peer], mut stream) = connected(Some(recorder));
    assert_eq!(stream.try_write(b"recorded"), Ok(8));
    stack.turn(Instant::from_millis(100));
    stack.take_recorder().unwrap().finish().unwrap();
    let bytes = bytes.0.lock().unwrap().clone();

    let ([mut again, _peer], mut stream) = connected(None);
    let mut recording = Recording::open(&bytes[..]).unwrap();
    let mut borrowed = stream.halves().1.reserve(8).unwrap();
    borrowed.copy_from_slice(b"borrowed");
    let mut replayed = 0;
    let refused = loop {
        match again.replay(&mut recording) {
            Ok(true) => replayed += 1,
            ended => break ended,
        }
    };
    assert_eq!(borrowed[..], *b"borrowed", "after {replayed} requests");
    assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);

    let (device, _script) = scripted_with(MemoryConfig::default());
    let mut again = Stack::builder("10.0.0.1/24").by_hand(device).unwrap();
    let mut recording = Recording::open(&bytes[..]).unwrap();
    while again.replay(&mut recording).unwrap() {}
    let refused = again.sockets().bind_udp(PORT).unwrap_err();
    assert_eq!(refused, SocketError::Aborted);
}

/// Short connections keep a server so busy that each turn finds frames and a timer that is due.
#[test]
fn closed_connections_and_idle_memory_are_freed_though_every_turn_has_a_due_timer() {
    for variant in Variant::ALL {
        let limits = Limits::default().connections(4);
        let mut host = Scripted::new(variant, setup(US).limits(limits));
        let listener = host.sockets().listen(PORT, 4).unwrap();
        host.receive(packet::arp_request(TO_STACK));
        // Each byte of one of these lets the timer of its acknowledgment run until the next turn.
        let mut others = [4000, 4001, 4002].map(|port| Peer::new(TO_STACK, (port, PORT), 900));
        let mut streams = Vec::new();
        for other in &mut others {
            let answers = host.receive(other.says(SYN, &[]));
            answers.iter().for_each(|frame| drop(other.hears(frame)));
            host.receive(other.says(ACK, &[]));
            streams.push(listener.try_accept().unwrap());
        }
        host.receive(others[1].says(ACK, b"x"));
        for port in 5000..5020 {
            let mut peer = Peer::new(TO_STACK, (port, PORT), 900);
            let mut busy_turns = |frame: Vec<u8>, turns| {
                host.script.push(frame);
                for _ in 0..turns {
                    host.now += Duration::from_millis(40);
                    assert!(host.next_deadline() <= host.now, "{variant}");
                    host.script.push(others[0].says(ACK, b"x"));
                    others.swap(0, 1);
                    host.stacks[0].turn(host.now);
                }
                host.script.take_sent()
            };
            let sent = busy_turns(peer.says(SYN, &[]), 2);
            let answer = sent.iter().find_map(|(frame, _)| peer.hears(frame));
            assert!(answer.is_some(), "{variant}: {port} is refused");
            busy_turns(peer.says(ACK, &[]), 1);
            drop(listener.try_accept());
            busy_turns(peer.says(RST | ACK, &[]), 3);
        }
        let given_back = host.stacks[0].stats().pump.given_back;
        assert!(given_back > 0, "{variant}: the third connection is idle");
    }
}
