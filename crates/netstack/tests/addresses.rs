//! Addresses that come and go while a stack runs, and links that go down and up, over both families
//! and in every variant.

#![cfg(feature = "testkit")]

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use dominoes_drivers::memory;
use dominoes_drivers::{
    AddressFilter, Capabilities, Device, DeviceError, DeviceRx, DeviceTx, TxFrame, TxStats,
};
use dominoes_netstack::SocketError;
use dominoes_netstack::testkit::Variant;
use dominoes_netstack::time::Duration;
use dominoes_netstack::variants::Setup;
use dominoes_testkit::device::Around;
use dominoes_testkit::hand::{self, Shape, Wired, address, prefix};

const PORT: u16 = 7;

/// A host that announces its addresses.
fn setup(host: u8) -> Setup {
    hand::setup(0, host).announce(true)
}

#[test]
fn connections_of_a_lost_address_end_and_those_of_a_new_one_begin() {
    for mut fixture in Wired::all(setup) {
        let (ours, theirs) = (fixture.sockets(), fixture.peer());
        let listener = ours.listen(PORT, 64).unwrap();
        let mut udp = ours.bind_udp(PORT).unwrap();
        let their_listener = theirs.listen(PORT, 64).unwrap();
        let mut peer = theirs.bind_udp(0).unwrap();
        for is_v4 in [true, false] {
            let old = address(is_v4, 0, 1);
            let new = address(is_v4, 0, 9);
            // The other family's address; the first round has replaced the IPv4 one.
            let other = address(!is_v4, 0, if is_v4 { 1 } else { 9 });
            let mut lost = Vec::new();
            let mut unaware = Vec::new();
            for _ in 0..8 {
                unaware.push(
                    fixture
                        .connect(&theirs, SocketAddr::new(old, PORT))
                        .unwrap(),
                );
                lost.push(listener.try_accept().unwrap().0);
                let to = SocketAddr::new(address(is_v4, 0, 2), PORT);
                lost.push(fixture.connect(&ours, to).unwrap());
                unaware.push(their_listener.try_accept().unwrap().0);
            }
            let mut kept = fixture
                .connect(&theirs, SocketAddr::new(other, PORT))
                .unwrap();
            let (mut own, _) = listener.try_accept().unwrap();

            assert_eq!(ours.remove_address(new), Err(SocketError::NotOurs));
            ours.remove_address(old).unwrap();
            fixture.turn();
            assert_eq!(ours.remove_address(old), Err(SocketError::NotOurs));
            for stream in &mut lost {
                assert_eq!(stream.try_read(&mut [0; 8]), Err(SocketError::AddressLost));
                let error = stream.take_error().unwrap().unwrap();
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionAborted);
            }
            // Their peers do not notice.
            for stream in &mut unaware {
                assert_eq!(stream.try_read(&mut [0; 8]), Err(SocketError::WouldBlock));
            }
            kept.try_write(b"hello").unwrap();
            fixture.turn();
            assert_eq!(own.try_read(&mut [0; 8]), Ok(5));
            // No host has the address any more. Without an IPv4 address no connection can begin.
            let gone = fixture.connect(&theirs, SocketAddr::new(old, PORT));
            assert_eq!(gone.err(), Some(SocketError::WouldBlock));
            peer.try_send_to(b"x", SocketAddr::new(old, PORT)).unwrap();
            fixture.turn();
            assert_eq!(udp.try_recv_from(&mut [0; 8]), Err(SocketError::WouldBlock));
            if is_v4 {
                let to = SocketAddr::new(address(is_v4, 0, 2), PORT);
                let error = fixture.connect(&ours, to).err();
                assert_eq!(error, Some(SocketError::NoRoute));
            }

            ours.add_address(1, new, prefix(is_v4)).unwrap();
            fixture.turn();
            let taken = Err(SocketError::AddressTaken);
            assert_eq!(ours.add_address(1, new, prefix(is_v4)), taken);
            assert!(ours.interfaces()[0].addresses.contains(&new));
            let there = fixture
                .connect(&theirs, SocketAddr::new(new, PORT))
                .unwrap();
            let (here, _) = listener.try_accept().unwrap();
            assert_eq!(here.local_addr().unwrap().ip(), new);
            assert_eq!(there.local_addr().unwrap(), here.peer_addr().unwrap());
            peer.try_send_to(b"hello", SocketAddr::new(new, PORT))
                .unwrap();
            fixture.turn();
            let (len, from) = udp.try_recv_from(&mut [0; 8]).unwrap();
            assert_eq!(len, 5);
            udp.try_send_to(b"answer", from).unwrap();
            fixture.turn();
            let answer = peer.try_recv_from(&mut [0; 8]);
            assert_eq!(answer, Ok((6, SocketAddr::new(new, PORT))));
        }
    }
}

#[test]
fn what_is_bound_to_a_lost_address_serves_again_when_that_comes_back() {
    for mut fixture in Wired::all(setup) {
        let (ours, theirs) = (fixture.sockets(), fixture.peer());
        for is_v4 in [true, false] {
            let at = SocketAddr::new(address(is_v4, 0, 1), 99);
            let to = SocketAddr::new(address(is_v4, 0, 2), 99);
            let listener = ours.listen_on(at, 8).unwrap();
            let mut udp = ours.bind_udp_on(at).unwrap();
            ours.remove_address(at.ip()).unwrap();
            fixture.turn();
            assert_eq!(udp.try_send_to(b"x", to), Err(SocketError::NotOurs));
            assert_eq!(ours.listen_on(at, 8).err(), Some(SocketError::NotOurs));
            ours.add_address(1, at.ip(), prefix(is_v4)).unwrap();
            fixture.turn();
            let _there = fixture.connect(&theirs, at).unwrap();
            assert!(listener.try_accept().is_ok());
            assert_eq!(udp.try_send_to(b"x", to), Ok(()));
        }
    }
}

#[test]
fn opens_that_wait_while_their_address_is_lost_end() {
    for mut fixture in Wired::all(setup) {
        let ours = fixture.sockets();
        for is_v4 in [true, false] {
            // No host has the address, so these wait for an answer.
            let to = SocketAddr::new(address(is_v4, 0, 77), PORT);
            let from = SocketAddr::new(address(is_v4, 0, 1), 0);
            let mut any = ours.begin_connect(to).unwrap();
            let mut bound = ours.begin_connect_from(from, to).unwrap();
            fixture.turn();
            ours.remove_address(from.ip()).unwrap();
            fixture.pass(Duration::from_secs(5));
            assert_eq!(any.try_finish().err(), Some(SocketError::Unreachable));
            assert!(bound.try_finish().is_err());
        }
    }
}

#[test]
fn a_link_that_is_down_loses_what_is_sent_and_connections_go_on_when_it_is_up() {
    for mut fixture in Wired::all(setup) {
        let (ours, theirs) = (fixture.sockets(), fixture.peer());
        let listener = ours.listen(PORT, 64).unwrap();
        let mut udp = ours.bind_udp(PORT).unwrap();
        for is_v4 in [true, false] {
            let at = SocketAddr::new(address(is_v4, 0, 1), PORT);
            let to = SocketAddr::new(address(is_v4, 0, 2), PORT);
            let mut there = fixture.connect(&theirs, at).unwrap();
            let (mut here, _) = listener.try_accept().unwrap();
            ours.set_link_up(1, false).unwrap();
            fixture.turn();
            assert!(!ours.interfaces()[0].is_up);
            assert_eq!(ours.begin_connect(to).err(), Some(SocketError::NoRoute));
            assert_eq!(udp.try_send_to(b"x", to), Err(SocketError::NoRoute));
            // The stack still connects to itself.
            fixture.connect(&ours, at).unwrap();
            assert!(listener.try_accept().is_ok());
            here.try_write(b"from here").unwrap();
            there.try_write(b"from there").unwrap();
            fixture.pass(Duration::from_millis(500));
            let would_block = Err(SocketError::WouldBlock);
            assert_eq!(here.try_read(&mut [0; 16]), would_block);
            assert_eq!(there.try_read(&mut [0; 16]), would_block);
            ours.set_link_up(1, true).unwrap();
            fixture.pass(Duration::from_secs(2));
            assert_eq!(here.try_read(&mut [0; 16]), Ok(10));
            assert_eq!(there.try_read(&mut [0; 16]), Ok(9));
            assert!(ours.interfaces()[0].is_up);
        }
        let none = SocketError::Invalid;
        assert_eq!(ours.set_link_up(2, true), Err(none));
        assert_eq!(ours.add_address(0, address(true, 0, 3), 24), Err(none));
        assert_eq!(ours.add_address(1, address(true, 0, 3), 33), Err(none));
        for nobody in ["127.0.0.1", "0.0.0.0", "224.0.0.1", "::1", "::", "ff02::1"] {
            let nobody = nobody.parse().unwrap();
            assert_eq!(ours.add_address(1, nobody, 32), Err(none), "{nobody}");
        }
    }
}

/// A device that accepts frames only to some addresses.
struct Filtered {
    inner: memory::MemoryDevice,
    taken: Arc<Taken>,
}

/// The addresses whose frames it accepts.
#[derive(Default)]
struct Taken(Mutex<BTreeSet<IpAddr>>);

impl Taken {
    fn addresses(&self) -> Vec<IpAddr> {
        self.0.lock().unwrap().iter().copied().collect()
    }
}

impl AddressFilter for Taken {
    fn add(&self, address: IpAddr) -> Result<(), DeviceError> {
        self.0.lock().unwrap().insert(address);
        Ok(())
    }

    fn remove(&self, address: IpAddr) -> Result<(), DeviceError> {
        self.0.lock().unwrap().remove(&address);
        Ok(())
    }
}

impl Device for Filtered {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn mac(&self) -> [u8; 6] {
        self.inner.mac()
    }

    fn address_filter(&self) -> Option<Arc<dyn AddressFilter>> {
        Some(Arc::clone(&self.taken) as Arc<dyn AddressFilter>)
    }

    fn split(self: Box<Self>) -> (Box<dyn DeviceRx>, Box<dyn DeviceTx>) {
        Box::new(self.inner).split()
    }
}

#[test]
fn a_device_that_filters_is_told_of_addresses_that_come_and_go() {
    for shape in Shape::all() {
        let taken = Arc::new(Taken::default());
        let mut fixture = Wired::around(shape, [setup(1), setup(2)], |inner| {
            let taken = Arc::clone(&taken);
            Filtered { inner, taken }
        });
        let ours = fixture.sockets();
        assert_eq!(taken.addresses(), [] as [IpAddr; 0]);
        for is_v4 in [true, false] {
            let own = [3, 1].map(|host| address(is_v4, 0, host));
            ours.add_address(1, own[0], prefix(is_v4)).unwrap();
            fixture.turn();
            assert_eq!(taken.addresses(), own[..1]);
            ours.remove_address(own[0]).unwrap();
            fixture.turn();
            assert_eq!(taken.addresses(), [] as [IpAddr; 0]);
            // An address that was configured from the start.
            ours.remove_address(own[1]).unwrap();
            fixture.turn();
            ours.add_address(1, own[1], prefix(is_v4)).unwrap();
            fixture.turn();
            assert_eq!(taken.addresses(), own[1..]);
            ours.remove_address(own[1]).unwrap();
            fixture.turn();
        }
    }
}

/// The sending half of a device whose link goes down.
struct UnpluggedTx {
    inner: Box<dyn DeviceTx>,
    is_down: Arc<AtomicBool>,
}

impl DeviceTx for UnpluggedTx {
    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, DeviceError> {
        if self.is_down.load(Ordering::Relaxed) {
            let interface = "unplugged".to_owned();
            return Err(DeviceError::Down { interface });
        }
        self.inner.transmit(frames)
    }

    fn stats(&self) -> TxStats {
        self.inner.stats()
    }
}

#[test]
fn the_address_is_announced_when_a_device_takes_frames_again() {
    for variant in Variant::ALL {
        let is_down = Arc::new(AtomicBool::new(false));
        let mut fixture = Wired::around(variant, [setup(1), setup(2)], |inner| {
            let is_down = Arc::clone(&is_down);
            Around::new(inner).tx(|inner| UnpluggedTx { inner, is_down })
        });
        fixture.pass(Duration::from_secs(3));
        let ours = fixture.sockets();
        let announced = |fixture: &Wired| fixture.hosts[0].stats().pump.arp;
        let before = announced(&fixture);
        fixture.pass(Duration::from_secs(3));
        assert_eq!(announced(&fixture), before, "{variant}");
        is_down.store(true, Ordering::Relaxed);
        let mut udp = ours.bind_udp(PORT).unwrap();
        let to = SocketAddr::new(address(true, 0, 2), PORT);
        udp.try_send_to(b"x", to).unwrap();
        fixture.pass(Duration::from_millis(100));
        assert!(!ours.interfaces()[0].is_up, "{variant}");
        is_down.store(false, Ordering::Relaxed);
        fixture.pass(Duration::from_secs(3));
        assert!(ours.interfaces()[0].is_up, "{variant}");
        assert!(announced(&fixture) >= before + 2, "{variant}");
    }
}
