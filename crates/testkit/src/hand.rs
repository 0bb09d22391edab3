//! Stacks that a test drives by hand, turn by turn, at times that it chooses.
//!
//! A [`Scripted`] stack has a device whose frames the test writes and reads. A [`Wired`] stack has
//! another host on the network of each of its interfaces. How the stack is built is a [`Shape`],
//! so a test that must hold for all of them is a loop.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use dominoes_drivers::Device;
use dominoes_drivers::memory::{self, MemoryConfig, MemoryDevice, Script, scripted_with};
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::groups::{self, INBOX};
use dominoes_netstack::variants::{ByHand, Setup, interfaces};
use dominoes_netstack::{Ipv6Config, SocketError, Sockets, TcpStream};

use crate::host::{Host, Variant};

/// The stack of each group and interface.
pub type Stacks = Vec<ByHand>;

/// A device, with the setup of the stack that uses it.
pub type Port = (Setup, Box<dyn Device>);

/// How a stack is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// As one group at each interface.
    One(Variant),
    /// As this many groups at each interface.
    Groups(Variant, usize),
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shape::One(variant) => variant.fmt(f),
            Shape::Groups(variant, count) => write!(f, "{count} groups of {variant}"),
        }
    }
}

impl From<Variant> for Shape {
    fn from(variant: Variant) -> Self {
        Shape::One(variant)
    }
}

impl Shape {
    /// Three groups of `single`.
    pub const THREE_GROUPS: Shape = Shape::Groups(Variant::Single, 3);

    /// Every variant, and three groups.
    pub fn all() -> impl Iterator<Item = Shape> {
        let by_variant = Variant::ALL.into_iter().map(Shape::One);
        by_variant.chain([Shape::THREE_GROUPS])
    }

    /// The stack with one interface.
    pub fn build(self, setup: Setup, device: impl Device + 'static) -> Stacks {
        match self {
            Shape::One(variant) => vec![variant.build(setup, Box::new(device)).unwrap()],
            Shape::Groups(variant, count) => {
                let parts = groups::divide(setup, count, Box::new(device), INBOX).unwrap();
                let build = |(setup, part)| variant.build(setup, Box::new(part)).unwrap();
                parts.into_iter().map(build).collect()
            }
        }
    }

    /// The stack with an interface for each port.
    pub fn build_interfaces(self, ports: Vec<Port>) -> Stacks {
        match self {
            Shape::One(variant) => {
                let (setups, devices): (Vec<_>, Vec<_>) = ports.into_iter().unzip();
                let joined = interfaces::join(setups).unwrap().into_iter();
                let build = |(setup, device)| variant.build(setup, device).unwrap();
                joined.zip(devices).map(build).collect()
            }
            Shape::Groups(variant, count) => {
                let parts = interfaces::divide(ports, count, INBOX).unwrap();
                let build = |(setup, part)| variant.build(setup, Box::new(part)).unwrap();
                parts.into_iter().map(build).collect()
            }
        }
    }
}

/// IPv6 whose addresses are used at once, and which heeds no router.
pub fn ipv6() -> Ipv6Config {
    let config = Ipv6Config::default().autoconfigure(false);
    config.duplicate_probes(0)
}

/// The address of a host on a network, 10.0.net.host or fd00:0:0:net::host.
pub fn address(is_v4: bool, net: u8, host: u8) -> IpAddr {
    match is_v4 {
        true => Ipv4Addr::new(10, 0, net, host).into(),
        false => address_v6(net, host).into(),
    }
}

/// The host's IPv6 [`address`] on a network.
pub const fn address_v6(net: u8, host: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, net as u16, 0, 0, 0, host as u16)
}

/// Bits of the prefix of these networks.
pub const fn prefix(is_v4: bool) -> u8 {
    if is_v4 { 24 } else { 64 }
}

/// A host with its [`address`] of either family on a network.
pub fn setup(net: u8, host: u8) -> Setup {
    let setup = Setup::new(address(true, net, host), 24, [u64::from(host), 7]);
    setup.ipv6(ipv6().address(address_v6(net, host), 64))
}

fn turn_all(stacks: &mut Stacks, now: Instant) -> usize {
    stacks.iter_mut().map(|stack| stack.turn(now)).sum()
}

fn compare(stacks: &Stacks) {
    for stack in stacks {
        stack.compare().unwrap();
    }
}

fn sockets(stacks: &Stacks) -> Sockets {
    groups::sockets(stacks.iter().map(|stack| stack.sockets()))
}

/// A stack over a device whose frames the test writes and reads.
pub struct Scripted {
    /// The stack.
    pub stacks: Stacks,
    /// The far side of its device.
    pub script: Script,
    /// The time.
    pub now: Instant,
}

impl Scripted {
    /// At 1 ms, with the link-layer address that [`mac_of`](crate::packet::mac_of) gives.
    pub fn new(shape: impl Into<Shape>, setup: Setup) -> Scripted {
        let mac = Host::mac_of(setup.address());
        Scripted::over(shape, setup, MemoryConfig::default().macs(mac, mac))
    }

    /// As [`new`](Scripted::new), over a device with this configuration.
    pub fn over(shape: impl Into<Shape>, setup: Setup, config: MemoryConfig) -> Scripted {
        let (device, script) = scripted_with(config);
        Scripted {
            stacks: shape.into().build(setup, device),
            script,
            now: Instant::from_millis(1),
        }
    }

    /// The sockets of the stack.
    pub fn sockets(&self) -> Sockets {
        sockets(&self.stacks)
    }

    /// When the stack must have a turn at the latest.
    pub fn next_deadline(&self) -> Instant {
        let deadlines = self.stacks.iter().map(|stack| stack.next_deadline());
        deadlines.min().unwrap_or(Instant::NEVER)
    }

    /// Does everything that can be done now, after which replicas agree.
    pub fn work(&mut self) {
        while turn_all(&mut self.stacks, self.now) > 0 {}
        compare(&self.stacks);
    }

    /// Does the same, and returns the frames that left.
    pub fn turn(&mut self) -> Vec<Vec<u8>> {
        self.work();
        let sent = self.script.take_sent();
        sent.into_iter().map(|(frame, _)| frame).collect()
    }

    /// Lets time pass from deadline to deadline. Returns the frames that left.
    pub fn pass(&mut self, time: Duration) -> Vec<Vec<u8>> {
        let until = self.now + time;
        let mut sent = self.turn();
        while self.next_deadline() <= until {
            self.now = self.next_deadline().max(self.now);
            sent.extend(self.turn());
        }
        self.now = until;
        sent.extend(self.turn());
        sent
    }

    /// Lets a frame arrive. Returns the frames that leave then.
    pub fn receive(&mut self, frame: Vec<u8>) -> Vec<Vec<u8>> {
        self.script.push(frame);
        self.turn()
    }
}

/// Carries frames between two stacks until neither sends one. Returns the frames.
pub fn settle([a, b]: [&mut Scripted; 2]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let (from_a, from_b) = (a.turn(), b.turn());
        if from_a.is_empty() && from_b.is_empty() {
            return all;
        }
        from_a.iter().for_each(|frame| b.script.push(frame.clone()));
        from_b.iter().for_each(|frame| a.script.push(frame.clone()));
        all.extend(from_a.into_iter().chain(from_b));
    }
}

/// A stack with another host on the network of each of its interfaces.
pub struct Wired {
    /// The stack, which is host 1 of every network.
    pub stacks: Stacks,
    /// Host 2 of each network.
    pub hosts: Stacks,
    /// The time.
    pub now: Instant,
}

impl Wired {
    /// How long a [`step`](Wired::step) takes.
    const STEP: Duration = Duration::from_micros(50);
    /// Steps after which every frame on the wire has arrived.
    const STEPS: usize = 60;

    /// Every [`Shape`] of a stack with one interface, by what `setup` gives hosts 1 and 2.
    pub fn all(setup: fn(u8) -> Setup) -> impl Iterator<Item = Wired> {
        Shape::all().map(move |shape| Wired::two(shape, [setup(1), setup(2)]))
    }

    /// A stack with one interface, and the other host.
    pub fn two(shape: impl Into<Shape>, setups: [Setup; 2]) -> Wired {
        Wired::around(shape, setups, |device| device)
    }

    /// As [`two`](Wired::two), with devices of this configuration.
    pub fn over(
        shape: impl Into<Shape>,
        [ours, theirs]: [Setup; 2],
        config: MemoryConfig,
    ) -> Wired {
        let (here, there) = memory::pair(config);
        let host = Variant::Single.build(theirs, Box::new(there)).unwrap();
        Wired::of(shape.into().build(ours, here), vec![host])
    }

    /// As [`two`](Wired::two); `wrap` puts something around the device of the stack.
    pub fn around<D: Device + 'static>(
        shape: impl Into<Shape>,
        [ours, theirs]: [Setup; 2],
        wrap: impl FnOnce(MemoryDevice) -> D,
    ) -> Wired {
        let (here, there) = memory::pair(MemoryConfig::default());
        let host = Variant::Single.build(theirs, Box::new(there)).unwrap();
        Wired::of(shape.into().build(ours, wrap(here)), vec![host])
    }

    /// A stack with an interface on each of the networks 1 and so on, by what `setup` gives a host
    /// of a network.
    pub fn interfaces(
        shape: impl Into<Shape>,
        networks: u8,
        setup: impl Fn(u8, u8) -> Setup,
    ) -> Wired {
        let (mut ports, mut hosts) = (Vec::<Port>::new(), Stacks::new());
        for net in 1..=networks {
            let (here, there) = memory::pair(MemoryConfig::default());
            ports.push((setup(net, 1), Box::new(here)));
            let host = Variant::Single.build(setup(net, 2), Box::new(there));
            hosts.push(host.unwrap());
        }
        Wired::of(shape.into().build_interfaces(ports), hosts)
    }

    fn of(stacks: Stacks, hosts: Stacks) -> Wired {
        let now = Instant::from_millis(1);
        let mut wired = Wired { stacks, hosts, now };
        wired.turn();
        wired
    }

    /// The sockets of the stack.
    pub fn sockets(&self) -> Sockets {
        sockets(&self.stacks)
    }

    /// The sockets of the first of the other hosts.
    pub fn peer(&self) -> Sockets {
        self.hosts[0].sockets()
    }

    /// Lets 50 µs pass, and gives each stack a turn.
    pub fn step(&mut self) {
        self.now += Wired::STEP;
        turn_all(&mut self.stacks, self.now);
        turn_all(&mut self.hosts, self.now);
    }

    /// Takes steps until the frames on the wires have arrived. Then the replicas agree.
    pub fn turn(&mut self) {
        self.steps(Wired::STEPS);
        compare(&self.stacks);
    }

    /// A connection that the first host opens to a port: the stack's end, and the host's.
    pub fn open(&mut self, port: u16) -> (TcpStream, TcpStream) {
        let listener = self.sockets().listen(port, 1).unwrap();
        let from = self.peer();
        let to = self.sockets().interfaces()[0].addresses[0];
        let theirs = self.connect(&from, SocketAddr::new(to, port)).unwrap();
        (listener.try_accept().unwrap().0, theirs)
    }

    /// Takes `count` steps.
    pub fn steps(&mut self, count: usize) {
        (0..count).for_each(|_| self.step());
    }

    /// Lets both sides do all that they can, delayed acknowledgments included.
    pub fn settle(&mut self) {
        for pause_ms in [50, 50, 50, 0] {
            while turn_all(&mut self.stacks, self.now) + turn_all(&mut self.hosts, self.now) > 0 {}
            self.now += Duration::from_millis(pause_ms);
        }
    }

    /// Lets time pass.
    pub fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.now += Duration::from_millis(20);
            self.turn();
        }
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// Why the stack or the peer refused it; [`SocketError::WouldBlock`] without an answer.
    pub fn connect(&mut self, from: &Sockets, to: SocketAddr) -> Result<TcpStream, SocketError> {
        let any = match to {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        self.connect_from(from, SocketAddr::new(any, 0), to)
    }

    /// Opens a connection from a local end that the test chooses.
    ///
    /// # Errors
    /// As [`connect`](Wired::connect).
    pub fn connect_from(
        &mut self,
        from: &Sockets,
        local: SocketAddr,
        to: SocketAddr,
    ) -> Result<TcpStream, SocketError> {
        let mut connecting = from.begin_connect_from(local, to)?;
        for _ in 0..10 {
            self.turn();
            if let Some(stream) = connecting.try_finish()? {
                return Ok(stream);
            }
        }
        Err(SocketError::WouldBlock)
    }
}
