//! What sockets may ask for of received datagrams: where they were sent to, by which interface they
//! came, and when. Over both families and in every variant.

#![cfg(feature = "testkit")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use dominoes_drivers::Device;
use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::testkit::Variant;
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::groups::{self, INBOX};
use dominoes_netstack::variants::{self, Setup, interfaces, single::Single};
use dominoes_netstack::{Datagram, Ipv6Config, Limits, Sockets};

use crate::two_hosts::{Groups, three_groups};

const PORT: u16 = 7;
/// Of each queue: it wraps around several times.
const QUEUE: u32 = 16 << 10;

fn address(is_v4: bool, net: u8, host: u8) -> IpAddr {
    match is_v4 {
        true => Ipv4Addr::new(10, 0, net, host).into(),
        false => Ipv6Addr::new(0xfd00, 0, 0, net.into(), 0, 0, 0, host.into()).into(),
    }
}

fn setup(net: u8, host: u8) -> Setup {
    let config = Ipv6Config::default()
        .autoconfigure(false)
        .duplicate_probes(0);
    let mut limits = Limits::default();
    limits.udp_receive_buffer = QUEUE;
    let setup = Setup::new(address(true, net, host), 24, [u64::from(host), 7]).limits(limits);
    match address(false, net, host) {
        IpAddr::V6(v6) => setup.ipv6(config.address(v6, 64)),
        IpAddr::V4(_) => setup,
    }
}

/// Stacks that are one, or its groups or interfaces, which are host 1, and a host 2 on each
/// network.
struct Fixture {
    stacks: Groups,
    hosts: Vec<Single>,
    now: Instant,
}

impl Fixture {
    fn all() -> impl Iterator<Item = Fixture> {
        let by_variant = Variant::ALL.into_iter().map(|variant| {
            let (here, there) = memory::pair(MemoryConfig::default());
            let stack = variant.build(setup(1, 1), Box::new(here)).unwrap();
            Fixture::over(vec![stack], vec![there])
        });
        let of_groups = || {
            let (here, there) = memory::pair(MemoryConfig::default());
            Fixture::over(three_groups(setup(1, 1), here), vec![there])
        };
        let of_interfaces = Variant::ALL.into_iter().map(|variant| {
            let joined = interfaces::join([setup(1, 1), setup(2, 1)]).unwrap();
            let mut devices = Vec::new();
            let stacks = joined.into_iter().map(|setup| {
                let (here, there) = memory::pair(MemoryConfig::default());
                devices.push(there);
                variant.build(setup, Box::new(here)).unwrap()
            });
            let stacks = stacks.collect();
            Fixture::over(stacks, devices)
        });
        let of_both = || {
            let pairs = [(); 2].map(|()| memory::pair(MemoryConfig::default()));
            let (here, there): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
            let here = here
                .into_iter()
                .map(|device| Box::new(device) as Box<dyn Device>);
            let own = [setup(1, 1), setup(2, 1)].into_iter().zip(here);
            let groups = interfaces::divide(own, 3, INBOX).unwrap().into_iter();
            let group = |(setup, device)| -> Box<dyn variants::Variant> {
                Box::new(Single::new(setup, Box::new(device)).unwrap())
            };
            Fixture::over(groups.map(group).collect(), there)
        };
        let of_groups = [of_groups(), of_both()];
        by_variant.chain(of_groups).chain(of_interfaces)
    }

    fn over(stacks: Groups, devices: Vec<memory::MemoryDevice>) -> Fixture {
        let hosts = (1..).zip(devices);
        let hosts =
            hosts.map(|(net, device)| Single::new(setup(net, 2), Box::new(device)).unwrap());
        let mut fixture = Fixture {
            stacks,
            hosts: hosts.collect(),
            now: Instant::from_millis(1),
        };
        fixture.turn();
        fixture
    }

    fn sockets(&self) -> Sockets {
        groups::sockets(self.stacks.iter().map(|stack| stack.sockets()))
    }

    fn turn(&mut self) {
        for _ in 0..40 {
            self.now += Duration::from_micros(50);
            for stack in &mut self.stacks {
                stack.turn(self.now);
            }
            for host in &mut self.hosts {
                host.turn(self.now);
            }
        }
    }
}

#[test]
fn datagrams_say_where_they_were_sent_to_and_when_they_came() {
    for mut fixture in Fixture::all() {
        let mut ours = fixture.sockets().bind_udp(PORT).unwrap();
        let groups = [IpAddr::from([239, 1, 2, 3]), "ff05::77".parse().unwrap()];
        ours.join_multicast_v4(&Ipv4Addr::new(239, 1, 2, 3), &Ipv4Addr::UNSPECIFIED)
            .unwrap();
        let IpAddr::V6(group) = groups[1] else {
            unreachable!("it is not IPv4");
        };
        ours.join_multicast_v6(&group, 0).unwrap();
        let mut into = vec![Datagram::new(2000); 40];
        for round in 0..12_usize {
            // Asked for or not: both kinds of records lie in the queue.
            let asked = round % 3 != 0;
            ours.set_packet_info(asked);
            fixture.turn();
            for net in 1..=fixture.hosts.len() {
                let mut theirs = fixture.hosts[net - 1].sockets().bind_udp(0).unwrap();
                theirs.set_broadcast(true).unwrap();
                let net = net as u8;
                let mut to = vec![address(true, net, 1), address(false, net, 1)];
                to.push([10, 0, net, 255].into());
                if net == 1 {
                    to.extend(groups);
                }
                let began = fixture.now;
                for (number, to) in (0..).zip(&to) {
                    let len = round * 97 + number * 31;
                    let text = vec![number as u8; len];
                    theirs
                        .try_send_to(&text, SocketAddr::new(*to, PORT))
                        .unwrap();
                }
                fixture.turn();
                let count = ours.recv_many(&mut into).unwrap();
                let mut got: Vec<_> = into[..count].iter().collect();
                got.sort_by_key(|datagram| datagram.bytes().len());
                assert_eq!(got.len(), to.len());
                for ((number, to), got) in (0..).zip(&to).zip(got) {
                    assert_eq!(got.bytes().len(), round * 97 + number * 31);
                    assert!(got.bytes().iter().all(|byte| *byte == number as u8));
                    assert_eq!(got.info.is_some(), asked);
                    if let Some(info) = got.info {
                        assert_eq!((info.local, info.interface), (*to, net.into()));
                        assert!(began <= info.arrived && info.arrived <= fixture.now);
                    }
                }
                // In place, too.
                theirs
                    .try_send_to(b"hello", SocketAddr::new(to[1], PORT))
                    .unwrap();
                fixture.turn();
                let received = ours.try_peek().unwrap();
                assert_eq!(received.parts.0.len() + received.parts.1.len(), 5);
                assert_eq!(received.info.map(|info| info.local), asked.then_some(to[1]));
                assert_eq!(ours.try_recv_from(&mut [0; 8]).unwrap().0, 5);
            }
        }
    }
}

#[test]
fn a_queue_that_is_full_of_such_datagrams_loses_the_others_and_goes_on() {
    for mut fixture in Fixture::all() {
        let mut ours = fixture.sockets().bind_udp(PORT).unwrap();
        ours.set_packet_info(true);
        fixture.turn();
        let mut theirs = fixture.hosts[0].sockets().bind_udp(0).unwrap();
        let to = SocketAddr::new(address(false, 1, 1), PORT);
        // The neighbours know each other then.
        theirs.try_send_to(b"hello", to).unwrap();
        fixture.turn();
        assert_eq!(ours.try_recv_from(&mut [0; 8]).unwrap().0, 5);
        for round in 0..20_u8 {
            for _ in 0..(QUEUE / 128 + 10) {
                theirs.try_send_to(&[round; 33], to).unwrap();
            }
            fixture.turn();
            let mut count = 0;
            let mut bytes = [0; 64];
            while let Ok((len, _)) = ours.try_recv_from(&mut bytes) {
                assert!(len == 33 && bytes[..33] == [round; 33]);
                count += 1;
            }
            // 32 bytes of header, as many more, and 64 of padded payload.
            assert_eq!(count, QUEUE / 128);
            fixture.turn();
        }
    }
}
