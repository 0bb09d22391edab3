//! One case: two hosts, their wires, and several conversations between the hosts.

use core::cell::RefCell;
use core::ops::ControlFlow;
use std::net::SocketAddr;
use std::rc::Rc;

use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::VariantKind;
use dominoes_netstack::{
    AnyListener, CongestionControl, Connecting, Keepalive, Limits, SocketError, Sockets,
    TcpListener, TcpStream,
};
use dominoes_testkit::link::Faults;
use dominoes_testkit::packet::Family;
use dominoes_testkit::{
    FaultPlan, HostConfig, HostId, LinkConfig, Moment, Net, Progress, Rng, RunError, Stalls,
    Traffic, TrafficError, Variant, mix,
};

use super::Tally;
use super::oddities::Meddler;
use super::wire_observer::WireObserver;

/// Connections of a case.
pub(super) const CONNECTIONS: u64 = 8;
/// Approximate bytes in each direction.
const BYTES: u64 = 20_000;
/// The least bytes of a schedule in each direction.
const SCHEDULE_BYTES: u64 = 96 << 10;
/// The least requests that the logs of both hosts receive during a schedule.
const SCHEDULE_POSITIONS: u64 = 2 * 200;
/// The size of a packet that every IPv6 link carries (RFC 8200 section 5).
const IPV6_MIN_MTU: u16 = 1280;
/// All conversations begin within this time.
const BEGIN: Duration = Duration::from_secs(20);
/// Virtual time at which the wire becomes perfect.
const FAULTS_END: Duration = Duration::from_secs(120);
/// Time after that in which healthy connections must end: the longest timeout, and the work that
/// waits for it.
const GRACE: Duration = Duration::from_secs(240);
/// Bytes that a peer sends, each in its own segment, to a large buffer that is read late.
const SINGLE_BYTES: u64 = 300;
/// The most option changes of an application.
const CHANGES: u64 = 3;
/// Both stacks must have removed the connections after two maximum segment lifetimes.
const FORGOTTEN: Duration = Duration::from_secs(130);

fn wire(rng: &mut Rng) -> LinkConfig {
    let mut part = |most: u64| {
        // Often 0, rarely the maximum.
        let (a, b) = (rng.below(most + 1), rng.below(most + 1));
        if rng.chance(300_000) {
            0
        } else {
            a.min(b) as u32
        }
    };
    let faults = Faults::new(0)
        .loss(part(50_000))
        .bursts(part(5_000), 8)
        .duplicate(part(20_000))
        .reorder(part(50_000), 5)
        .corrupt(part(20_000));
    let delay = core::time::Duration::from_micros(rng.below(30_000));
    let jitter = core::time::Duration::from_micros(rng.below(3_000) * rng.below(2));
    let mut config = LinkConfig::default()
        .faults(faults)
        .delay(delay)
        .jitter(jitter);
    if rng.chance(500_000) {
        config = config.rate(500_000 + rng.below(20_000_000), 5_000 + rng.below(20_000));
    }
    config
}

/// Some workers with one, two or six locks.
fn locked(rng: &mut Rng) -> Variant {
    let workers = 1 + rng.below(4) as usize;
    match rng.below(6) {
        0 => Variant::Locked(workers),
        1 => Variant::LockedMcs(workers),
        2 => Variant::LockedTwo(workers),
        3 => Variant::LockedTwoMcs(workers),
        4 => Variant::LockedSix(workers),
        _ => Variant::LockedSixMcs(workers),
    }
}

/// A congestion control, which takes no number from `rng`.
fn control(rng: &Rng) -> CongestionControl {
    let all = CongestionControl::ALL;
    all[rng.clone().fork().index(all.len())]
}

/// A host with random limits and random wires.
pub(super) fn host(rng: &mut Rng) -> HostConfig {
    let variant = match rng.below(8) {
        0 => Variant::Single,
        6 => locked(rng),
        7 => Variant::Pipelined(1 + rng.below(6) as usize),
        // Rarely up to 8 workers, since each takes its steps.
        1 => Variant::Replicated(5 + rng.below(4) as usize),
        _ => Variant::Replicated(1 + rng.below(4) as usize),
    };
    let mut limits = Limits::default();
    limits.connections = 2 * CONNECTIONS as u32;
    limits.receive_buffer = 1 << (10 + rng.below(7));
    if rng.chance(500_000) {
        limits.tcp.receive_window = 1 << (10 + rng.below(7));
    }
    limits.send_buffer = 1 << (10 + rng.below(7));
    limits.tx_slots = 8 << rng.below(5);
    if rng.chance(200_000) {
        limits.panics_ppm = 1_000;
    }
    limits.mtu = [576, 1500, 1500, 9000][rng.below(4) as usize];
    limits.tcp.congestion = control(rng);
    let stalls = Stalls {
        ppm: if rng.chance(500_000) { 6_500 } else { 0 },
        longest: Duration::from_millis(20),
    };
    // A frame crosses two wires. TCP's checksum finds every single flipped bit, but not every pair:
    // a 0 that becomes 1 and a 1 that becomes 0 in the same column of 16-bit words leave the sum
    // unchanged. So only one of the two wires corrupts frames.
    let mut down = wire(rng);
    down.faults.corrupt_ppm = 0;
    HostConfig::new(variant)
        .limits(limits)
        .stalls(stalls)
        .wires(wire(rng), down)
}

/// A host whose workers join, leave and fail all the time.
fn lively_host(rng: &mut Rng) -> HostConfig {
    let replicas = match rng.below(8) {
        0 => 1,
        1 => 5 + rng.below(4) as usize,
        _ => 2 + rng.below(3) as usize,
    };
    let mut limits = Limits::default();
    limits.connections = 2 * CONNECTIONS as u32;
    limits.receive_buffer = 1 << (12 + rng.below(5));
    limits.send_buffer = 1 << (12 + rng.below(5));
    limits.tx_slots = 16 << rng.below(4);
    limits.mtu = [576, 1500, 1500, 9000][rng.below(4) as usize];
    limits.tcp.congestion = control(rng);
    // A flip needs two other replicas to outvote it, and makes effects wait for a majority.
    let flips = replicas >= 3 && rng.chance(500_000);
    let life = FaultPlan {
        free_slots: (1 + rng.below(3) as usize).min(8 - replicas),
        joins_ppm: 1_000 + rng.below(1_600) as u32,
        leaves_ppm: rng.below(1_400) as u32,
        failures_ppm: rng.below(1_400) as u32,
        panics_ppm: rng.below(8_000) as u32,
        flips_ppm: u32::from(flips) * (1_200 + rng.below(5_000) as u32),
    };
    let stalls = Stalls {
        ppm: 3_500,
        longest: Duration::from_millis(10),
    };
    let mut down = wire(rng);
    down.faults.corrupt_ppm = 0;
    // All groups have equally many replicas, so only stacks with few replicas have several groups.
    let groups = match rng.below(8) {
        0 if replicas <= 3 => 2 + rng.below(2) as usize,
        _ => 1,
    };
    HostConfig::new(Variant::Replicated(replicas))
        .limits(limits)
        .stalls(stalls)
        .fault_plan(life)
        .groups(groups)
        .wires(wire(rng), down)
}

/// The faults of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    /// Bad wires, and code that panics; stacks of one kind, or of any.
    Wires(Option<VariantKind>),
    /// Workers that join, leave and fail, and bad wires.
    Members,
}

/// Where the listening application gets its connection.
enum Door {
    Plain(TcpListener),
    /// Holds SYNs. The handshakes of accepted ones, and how often the application was silent.
    Held(AnyListener, Vec<Connecting>, u64),
}

impl Door {
    /// In a quarter of the cases one that holds SYNs.
    fn new(sockets: &Sockets, port: u16, key: u64) -> Result<Door, SocketError> {
        if !mix(key ^ 0xd00).is_multiple_of(4) {
            return sockets.listen(port, 4).map(Door::Plain);
        }
        let listener = sockets.listen_any_port(port, 4)?;
        Ok(Door::Held(listener, Vec::new(), 0))
    }

    /// Takes an established connection, if there is one.
    fn take(&mut self) -> Option<TcpStream> {
        match self {
            Door::Plain(listener) => listener.try_accept().ok().map(|(stream, _)| stream),
            Door::Held(listener, handshakes, silent) => {
                while let Ok(arriving) = listener.try_next() {
                    // The peer sends the first SYN again.
                    if *silent == 0 {
                        *silent += 1;
                        drop(arriving);
                    } else {
                        handshakes.extend(arriving.accept());
                    }
                }
                let mut opened = None;
                handshakes.retain_mut(|handshake| match handshake.try_finish() {
                    Ok(None) => true,
                    Ok(stream) => {
                        opened = opened.take().or(stream);
                        false
                    }
                    // The peer tries again.
                    Err(_) => false,
                });
                opened
            }
        }
    }
}

/// A connection between two applications.
struct Conversation {
    number: u64,
    begins: Instant,
    /// The sockets of the listening end, and of the opening end.
    sockets: Sockets,
    to: SocketAddr,
    door: Door,
    connecting: Option<Connecting>,
    /// The listening end first.
    all_traffic: [Option<Traffic>; 2],
    rests: [Instant; 2],
    keys: [u64; 2],
    lens: [u64; 2],
    /// How often applications rest, in percent. An application that rests lets windows fill.
    resting: u64,
    rng: Rng,
    reopened: u64,
    settings: u64,
    /// How often each end may still change options.
    changes: [u64; 2],
    /// Whether the opening end sends single bytes, and the other end reads only once all are sent.
    is_late: bool,
    /// Whether the code of the stacks may panic.
    panics: bool,
    /// A panic ended this connection.
    cut: bool,
    /// The progress of the hosts when the conversation began, and when it ended.
    from: Option<Progress>,
    until: Option<Progress>,
}

impl Conversation {
    fn new(
        number: u64,
        net: &Net,
        hosts: [HostId; 2],
        about: About,
        panics: bool,
        rng: &mut Rng,
    ) -> Result<Self, SocketError> {
        let mut rng = rng.fork();
        let port = 7 + number as u16;
        let [server, client] = if rng.chance(500_000) {
            hosts
        } else {
            [hosts[1], hosts[0]]
        };
        let begins = Instant::from_nanos(rng.below(BEGIN.as_nanos()));
        let keys = [rng.next(), rng.next()];
        Ok(Conversation {
            number,
            begins,
            sockets: net.sockets(client).clone(),
            to: net.address_of(server, port),
            connecting: None,
            all_traffic: [None, None],
            rests: [Instant::ZERO; 2],
            keys,
            door: Door::new(net.sockets(server), port, keys[0])?,
            lens: [0, 1].map(|_| match (about, rng.below(4)) {
                (About::Members, more) => SCHEDULE_BYTES + more,
                (About::Wires(_), 0) => 0,
                (About::Wires(_), _) => BYTES / 2 + rng.below(BYTES),
            }),
            resting: rng.below(2) * rng.below(20),
            rng,
            reopened: 0,
            settings: 0,
            changes: [0; 2],
            is_late: false,
            panics,
            cut: false,
            from: None,
            until: None,
        })
    }

    fn is_over(&self) -> bool {
        let over = |traffic: &Option<Traffic>| traffic.as_ref().is_some_and(Traffic::is_over);
        self.cut || self.all_traffic.iter().all(over)
    }

    /// Whether at least one worker stalled, and one joined or failed, while the conversation moved
    /// its bytes through long enough logs.
    fn is_schedule(&self) -> bool {
        let (Some(from), Some(until)) = (self.from, self.until) else {
            return false;
        };
        !self.cut
            && self.lens.iter().all(|len| *len >= SCHEDULE_BYTES)
            && until.positions - from.positions >= SCHEDULE_POSITIONS
            && until.stalls > from.stalls
            && until.changes > from.changes
    }

    /// Handles a failed call: if stacks may panic, the connection is cut for both applications.
    /// Otherwise it is an error.
    fn failed(&mut self, error: SocketError) -> Result<(), SocketError> {
        let broken = matches!(
            error,
            SocketError::Aborted | SocketError::Reset | SocketError::Refused
        );
        if !self.panics || !broken {
            return Err(error);
        }
        self.cut = true;
        self.all_traffic = [None, None];
        self.connecting = None;
        Ok(())
    }

    /// Starts the application of one end.
    fn start_traffic(&mut self, end: usize, stream: TcpStream) -> Result<(), SocketError> {
        if self.rng.chance(300_000) {
            stream.set_nodelay(true).unwrap();
            self.settings += 1;
        }
        if self.rng.chance(300_000) {
            // With enough probes to survive any wire of a case.
            let often = Duration::from_millis(100 + self.rng.below(5_000));
            let keepalive = Keepalive::default().idle(often).interval(often);
            stream.set_keepalive(Some(keepalive.probes(255)))?;
            self.settings += 1;
        }
        if self.rng.chance(200_000) {
            // A limit of a few bytes would make each of them wait for an acknowledgment.
            let bytes = 1000 + self.rng.below(20_000) as u32;
            stream.set_notsent_lowat(Some(bytes))?;
            self.settings += 1;
        }
        let (ours, theirs) = (end, 1 - end);
        let (keys, lens) = (self.keys, self.lens);
        if self.is_late {
            stream.set_nodelay(true).unwrap();
        }
        let traffic = Traffic::new(stream, keys[ours], keys[theirs], lens[ours], lens[theirs]);
        let most = if self.is_late { 1 } else { u64::MAX };
        self.all_traffic[end] = Some(traffic.write_at_most(most));
        Ok(())
    }

    /// Perhaps changes an option of a connection, between two writes.
    fn change_options(&mut self, end: usize) -> Result<(), SocketError> {
        if self.changes[end] == 0 || self.rng.below(10) > 0 {
            return Ok(());
        }
        let Some(stream) = self.all_traffic[end].as_ref().and_then(Traffic::stream) else {
            return Ok(());
        };
        self.changes[end] -= 1;
        self.settings += 1;
        let is_on = self.rng.chance(500_000);
        // Longer than any case.
        let long = core::time::Duration::from_secs(600 + self.rng.below(600));
        match self.rng.below(4) {
            0 => stream.set_cork(is_on),
            1 => stream.set_nodelay(is_on).unwrap(),
            2 => stream.set_user_timeout(is_on.then_some(long))?,
            _ => {
                let often = Duration::from_millis(100 + self.rng.below(5_000));
                let keepalive = Keepalive::default().idle(often).interval(often);
                stream.set_keepalive(is_on.then_some(keepalive.probes(255)))?;
            }
        }
        Ok(())
    }

    /// Whether an end must wait, because bytes are sent one by one, or read late.
    fn holds_back(&mut self, end: usize, moment: &mut Moment) -> bool {
        if !self.is_late {
            return false;
        }
        let opener = self.all_traffic[1].as_ref();
        let is_sent = opener.is_some_and(|traffic| traffic.written() == self.lens[1]);
        if end == 0 || is_sent {
            return end == 0 && !is_sent;
        }
        if self.rests[end] <= moment.now() {
            self.rests[end] = moment.now() + Duration::from_micros(500 + self.rng.below(2_000));
            moment.wake_at(self.rests[end]);
            return false;
        }
        moment.wake_at(self.rests[end]);
        true
    }

    fn open(&mut self, moment: &mut Moment) -> Result<(), SocketError> {
        if self.begins > moment.now() {
            moment.wake_at(self.begins);
            return Ok(());
        }
        self.from.get_or_insert(moment.progress());
        if self.all_traffic[0].is_none()
            && let Some(stream) = self.door.take()
        {
            self.start_traffic(0, stream)?;
        }
        if self.all_traffic[1].is_some() {
            return Ok(());
        }
        let Some(connecting) = &mut self.connecting else {
            self.connecting = Some(self.sockets.begin_connect(self.to)?);
            return Ok(());
        };
        match connecting.try_finish() {
            Ok(Some(stream)) => self.start_traffic(1, stream),
            Ok(None) => Ok(()),
            // Three ARP requests or eight SYNs in a row were lost: the application tries again.
            Err(SocketError::Unreachable | SocketError::TimedOut) => {
                self.reopened += 1;
                self.connecting = Some(self.sockets.begin_connect(self.to)?);
                Ok(())
            }
            Err(error) => self.failed(error),
        }
    }

    /// Lets both applications do all that they can now. Returns the amount of work done.
    fn step(&mut self, moment: &mut Moment) -> Result<usize, String> {
        let number = self.number;
        self.open(moment)
            .map_err(|error| format!("conversation {number}: {error}"))?;
        let mut done = 0;
        let mut broken = None;
        for end in 0..2 {
            if self.holds_back(end, moment) {
                continue;
            }
            self.change_options(end)
                .or_else(|error| self.failed(error))
                .map_err(|error| format!("conversation {number}: {error}"))?;
            let (traffic, rest) = (&mut self.all_traffic[end], &mut self.rests[end]);
            let Some(traffic) = traffic else { continue };
            let is_single = self.is_late && end == 1;
            let rests = self.resting > 0 && self.rng.below(100) < self.resting;
            if rests && *rest <= moment.now() && !is_single {
                *rest = moment.now() + Duration::from_millis(self.rng.below(2_000));
            }
            if *rest > moment.now() && !is_single {
                moment.wake_at(*rest);
                continue;
            }
            match traffic.step() {
                Ok(did) => done += did,
                Err(TrafficError::Socket(error)) if self.panics => broken = Some(error),
                Err(what) => return Err(format!("conversation {number}: {what}: {traffic:?}")),
            }
        }
        if let Some(error) = broken {
            self.failed(error)
                .map_err(|error| format!("conversation {number}: {error}"))?;
        }
        if self.is_over() {
            self.until = Some(moment.progress());
        }
        Ok(done)
    }
}

/// The states of all connections in both stacks.
fn states(net: &mut Net, hosts: [HostId; 2]) -> String {
    let mut all = format!("at {} ms", net.now().as_nanos() / 1_000_000);
    for id in hosts {
        let links = net
            .link_stats(id)
            .map(|link| (link.offered, link.delivered));
        for (group, host) in net.groups(id).iter_mut().enumerate() {
            // All replicas may have failed.
            let states = host.inspect(|replica| -> Vec<_> {
                let tcbs = replica.connections().map(|(_, tcb)| tcb);
                tcbs.map(|tcb| (tcb.flow().local.port, tcb.state()))
                    .collect()
            });
            let states = states.first();
            all += &format!("; host {id:?}, group {group}: {states:?}");
        }
        all += &format!(", frames offered and delivered {links:?}");
    }
    all
}

/// Runs the case of a seed.
pub(super) fn run(seed: u64, about: About) -> Result<Tally, String> {
    let mut rng = Rng::new(seed);
    let mut odd = Rng::new(mix(!seed));
    let mut net = Net::new(rng.next());
    let is_wires = matches!(about, About::Wires(_));
    // Rarely, since mapping their pages takes time.
    let large = (is_wires && odd.below(32) == 0).then(|| 1 << (20 + odd.below(4)));
    let family = Family::ALL[(mix(seed) & 1) as usize];
    let mut add = |net: &mut Net| {
        let mut host = match about {
            About::Wires(_) => host(&mut rng),
            About::Members => lively_host(&mut rng),
        };
        if let About::Wires(Some(kind)) = about {
            host.variant = Variant::new(kind, host.variant.workers());
        }
        let mut host = host.family(family);
        if let Some(bytes) = large {
            host.limits.receive_buffer = bytes;
            host.limits.tcp.receive_window = host.limits.tcp.receive_window.max(bytes);
        }
        if family == Family::V6 {
            host.limits.mtu = host.limits.mtu.max(IPV6_MIN_MTU);
        }
        net.add(host).map_err(|error| error.to_string())
    };
    let hosts: [HostId; 2] = [add(&mut net)?, add(&mut net)?];
    let limits = hosts.map(|id| net.host(id).inspect(|replica| replica.limits().panics_ppm)[0]);
    let panics = limits != [0, 0];
    let eyes = Rc::new(RefCell::new(WireObserver::default()));
    let seen = Rc::clone(&eyes);
    let first = hosts[0];
    net.watch(move |_, from, frame| seen.borrow_mut().see(usize::from(from != first), frame));
    let conversations: Result<Vec<_>, _> = (0..CONNECTIONS)
        .map(|number| Conversation::new(number, &net, hosts, about, panics, &mut rng))
        .collect();
    let mut conversations = conversations.map_err(|error| error.to_string())?;
    let meddler = Rc::new(RefCell::new(Meddler::new(family, Rng::new(odd.next()))));
    let moves = is_wires && odd.chance(250_000);
    if moves {
        let at = Instant::from_nanos(odd.below(2 * BEGIN.as_nanos()));
        net.move_host(hosts[odd.below(2) as usize], at, [2, 0, 10, 0, 1, 1]);
    }
    if is_wires {
        let meddler = Rc::clone(&meddler);
        net.meddle(move |_, _, frame| meddler.borrow_mut().meddle(frame));
        let changes = odd.below(2) * CHANGES;
        for conversation in &mut conversations {
            conversation.changes = [changes; 2];
        }
    }
    if large.is_some() {
        conversations[0].is_late = true;
        conversations[0].lens = [SINGLE_BYTES; 2];
    }

    let mut trouble = None;
    for (time, mend) in [(FAULTS_END, true), (GRACE, false)] {
        let run = net.run(time, |moment| {
            let mut done = 0;
            for conversation in &mut conversations {
                if conversation.is_over() {
                    continue;
                }
                match conversation.step(moment) {
                    Ok(did) => done += did,
                    Err(what) => trouble = Some(what),
                }
            }
            let over = conversations.iter().all(Conversation::is_over);
            Ok(if over || trouble.is_some() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(done)
            })
        });
        if let Some(what) = trouble {
            return Err(format!("{what}, {}", states(&mut net, hosts)));
        }
        match run {
            Ok(()) => break,
            Err(RunError::OutOfTime | RunError::Stuck) if mend => net.clear_faults(),
            Err(RunError::OutOfTime | RunError::Stuck) if panics => {
                // The reset got lost, so the application that waits for the rest of the stream has
                // nothing to send: a real one would give up.
                for left in conversations.iter_mut().filter(|left| !left.is_over()) {
                    left.cut = true;
                    left.all_traffic = [None, None];
                    left.connecting = None;
                }
            }
            Err(error) => {
                let left = conversations.iter().filter(|traffic| !traffic.is_over());
                let left: Vec<_> = left.map(|left| (left.number, &left.all_traffic)).collect();
                return Err(format!("{error}: {left:?}, {}", states(&mut net, hosts)));
            }
        }
    }
    let mut tally = Tally {
        seconds: net.now().as_nanos() / 1_000_000_000,
        ..Tally::default()
    };
    for conversation in &conversations {
        tally.connections += 1;
        tally.over_ipv6 += u64::from(family == Family::V6);
        tally.schedules += u64::from(conversation.is_schedule());
        tally.reopened += conversation.reopened;
        tally.held += u64::from(matches!(conversation.door, Door::Held(_, _, 1)));
        tally.settings += conversation.settings;
        if conversation.is_late
            && let Some(traffic) = &conversation.all_traffic[1]
        {
            tally.single_bytes += traffic.written();
        }
        tally.cut += u64::from(conversation.cut);
        let all_traffic = conversation.all_traffic.iter().flatten();
        tally.bytes += all_traffic.map(Traffic::received).sum::<u64>();
    }
    drop(conversations);
    net.clear_faults();
    net.pass(FORGOTTEN);
    net.check()?;
    for id in hosts {
        tally.links(net.link_stats(id));
        let groups = net.groups(id);
        tally.divided += u64::from(groups.len() > 1);
        for host in groups {
            tally.group(host)?;
        }
    }
    if tally.cut > tally.panicked {
        let Tally { cut, panicked, .. } = tally;
        return Err(format!("{panicked} panics ended {cut} conversations"));
    }
    let eyes = eyes.borrow();
    if (eyes.over_ipv6 > 0) != (family == Family::V6) {
        let seen = eyes.over_ipv6;
        return Err(format!(
            "{seen} segments over IPv6, and it is about {family}"
        ));
    }
    tally.retransmissions = eyes.retransmissions;
    tally.zero_windows = eyes.zero_windows;
    tally.window_probes = eyes.window_probes;
    tally.moves = u64::from(moves);
    let seen = meddler.borrow().seen;
    tally.tags = seen.tags;
    tally.atomic = seen.atomic;
    tally.illegal_options = seen.illegal_options;
    tally.texts_on_syns = seen.texts_on_syns;
    tally.too_big = seen.too_big;
    tally.redirects = seen.redirects;
    tally.advertisements = seen.advertisements;
    tally.changed_advertisements = seen.changed;
    Ok(tally)
}
