//! Our stack against smoltcp, over bad wires: each application reads what the other has written,
//! whichever side opens, and whichever closes first.
//!
//! Applications write and read in pieces of random sizes with rests between them.
//! `DIFFERENTIAL_CASES=10000` runs more cases, `DIFFERENTIAL_SEED=0x...` repeats one.

use std::net::SocketAddr;

use dominoes_drivers::Frame;
use dominoes_drivers::memory::{Script, scripted};
use dominoes_drivers::phy::ToPhy;
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::Setup;
use dominoes_netstack::{Connecting, SocketError, Sockets, TcpListener};
use dominoes_testkit::link::Faults;
use dominoes_testkit::link::{ImpairedLink, LinkConfig};
use dominoes_testkit::{Cases, Host, Rng, Stalls, Traffic, Variant};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp;
use smoltcp::time::Instant as Moment;
use smoltcp::wire::{EthernetAddress, IpCidr, Ipv4Address};

const OURS: [u8; 4] = [10, 0, 0, 1];
const THEIRS: [u8; 4] = [10, 0, 0, 2];
const THEIR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const PORT: u16 = 7;
/// Virtual time at which the wires become perfect.
const FAULTS_END: Duration = Duration::from_secs(60);
/// Virtual time at which everything must be over.
const LIMIT: Duration = Duration::from_secs(400);
/// The most bytes that an application reads or writes at once.
const PIECE: u64 = 4000;

/// smoltcp, its socket, and its application.
struct Them {
    interface: Interface,
    port: ToPhy,
    script: Script,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    rng: Rng,
    keys: [u64; 2],
    lens: [u64; 2],
    written: u64,
    read: u64,
    closed: bool,
    eof: bool,
    rests_until: Instant,
}

fn moment(at: Instant) -> Moment {
    Moment::from_micros((at.as_nanos() / 1000) as i64)
}

impl Them {
    fn new(rng: &mut Rng, keys: [u64; 2], lens: [u64; 2]) -> Self {
        let (device, script) = scripted();
        let mut port = ToPhy::new(device);
        let mut config = Config::new(EthernetAddress(THEIR_MAC).into());
        config.random_seed = rng.next();
        let mut interface = Interface::new(config, &mut port, moment(Instant::ZERO));
        interface.update_ip_addrs(|addresses| {
            let pushed = addresses.push(IpCidr::new(Ipv4Address::from(THEIRS).into(), 24));
            assert!(pushed.is_ok(), "there is room for one address");
        });
        let mut buffer = || tcp::SocketBuffer::new(vec![0; 1 << (11 + rng.below(6))]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(rng.chance(500_000));
        let mut sockets = SocketSet::new(Vec::new());
        let handle = sockets.add(socket);
        Them {
            interface,
            port,
            script,
            sockets,
            handle,
            rng: rng.fork(),
            keys,
            lens,
            written: 0,
            read: 0,
            closed: false,
            eof: false,
            rests_until: Instant::ZERO,
        }
    }

    fn socket(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    fn open(&mut self) -> Result<(), String> {
        let to = (Ipv4Address::from(OURS), PORT);
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.handle);
        let opened = socket.connect(self.interface.context(), to, 40_000);
        opened.map_err(|error| error.to_string())
    }

    /// Does all work that the application can do now.
    fn work(&mut self, now: Instant) -> Result<usize, String> {
        if self.rests_until > now {
            return Ok(0);
        }
        if self.rng.chance(50_000) {
            // A rest of zero would look as if the application had nothing left to do.
            self.rests_until = now + Duration::from_millis(1 + self.rng.below(299));
            return Ok(0);
        }
        let mut done = 0;
        let sizes = [0, 1].map(|_| 1 + self.rng.below(PIECE));
        let (keys, lens, read) = (self.keys, self.lens, self.read);
        let (written, closed) = (self.written, self.closed);
        let socket = self.socket();
        if socket.may_send() && written < lens[0] {
            let piece = Traffic::pattern(keys[0], written, sizes[0].min(lens[0] - written));
            let sent = socket
                .send_slice(&piece)
                .map_err(|error| error.to_string())?;
            self.written += sent as u64;
            done += usize::from(sent > 0);
        } else if socket.may_send() && !closed {
            socket.close();
            self.closed = true;
            done += 1;
        }
        let mut piece = vec![0; sizes[1] as usize];
        let socket = self.socket();
        match socket.recv_slice(&mut piece) {
            Ok(0) => {}
            Ok(len) => {
                let wanted = Traffic::pattern(keys[1], read, len as u64);
                if piece[..len] != wanted {
                    return Err(format!("smoltcp read something else from byte {read} on"));
                }
                self.read += len as u64;
                done += 1;
            }
            Err(tcp::RecvError::Finished) => {
                done += usize::from(!self.eof);
                self.eof = true;
            }
            // Not open yet, or over: a connection that ended with an error does not set `eof`.
            Err(tcp::RecvError::InvalidState) => {}
        }
        Ok(done)
    }

    fn is_over(&self) -> bool {
        self.closed && self.eof && self.read == self.lens[1]
    }
}

/// Our side: the connection before it is open, or the application.
enum Us {
    Listening(TcpListener),
    Opening(Box<Connecting>),
    Traffic(Box<Traffic>),
}

impl Us {
    fn work(&mut self, sockets: &Sockets, keys: [u64; 2], lens: [u64; 2]) -> Result<usize, String> {
        let opened = match self {
            Us::Listening(listener) => listener.try_accept().map(|(stream, _)| Some(stream)),
            Us::Opening(connecting) => connecting.try_finish(),
            Us::Traffic(traffic) => {
                return traffic
                    .step()
                    .map_err(|what| format!("{what}: {traffic:?}"));
            }
        };
        match opened {
            Ok(None) | Err(SocketError::WouldBlock) => Ok(0),
            Ok(Some(stream)) => {
                let traffic = Traffic::new(stream, keys[1], keys[0], lens[1], lens[0]);
                *self = Us::Traffic(Box::new(traffic));
                Ok(1)
            }
            // All attempts were lost: the application tries again.
            Err(SocketError::Unreachable | SocketError::TimedOut) => {
                let to = SocketAddr::new(THEIRS.into(), PORT);
                let again = sockets
                    .begin_connect(to)
                    .map_err(|error| error.to_string())?;
                *self = Us::Opening(Box::new(again));
                Ok(1)
            }
            Err(error) => Err(error.to_string()),
        }
    }

    fn is_over(&self) -> bool {
        matches!(self, Us::Traffic(traffic) if traffic.is_over())
    }
}

fn wire(rng: &mut Rng) -> LinkConfig {
    let mut part = |most| rng.below(most) as u32 * u32::from(rng.chance(600_000));
    let faults = Faults::new(0)
        .loss(part(40_000))
        .duplicate(part(20_000))
        .reorder(part(40_000), 4)
        .corrupt(part(20_000));
    LinkConfig::default()
        .faults(faults)
        .delay(core::time::Duration::from_micros(rng.below(20_000)))
        .seed(rng.next())
}

fn span(at: Instant) -> core::time::Duration {
    core::time::Duration::from_nanos(at.as_nanos())
}

/// Returns whether smoltcp finished, too. smoltcp 0.14 sometimes stops for good: its sent bytes are
/// not acknowledged, and it never asks to be polled again.
fn conversation(seed: u64) -> Result<bool, String> {
    let mut rng = Rng::new(seed);
    let variant = Variant::ALL[rng.below(Variant::ALL.len() as u64) as usize];
    let mut setup = Setup::new(OURS.into(), 24, [rng.next(), rng.next()]);
    setup.limits.connections = 4;
    setup.limits.receive_buffer = 1 << (10 + rng.below(7));
    setup.limits.send_buffer = 1 << (10 + rng.below(7));
    setup.limits.tx_slots = 16;
    let host = Host::new(variant, setup, rng.next());
    let mut host = host.map_err(|error| error.to_string())?;
    if rng.chance(300_000) {
        host.set_stalls(Stalls {
            ppm: 2_000,
            longest: Duration::from_millis(10),
        });
    }
    let mut links = [
        ImpairedLink::new(wire(&mut rng)),
        ImpairedLink::new(wire(&mut rng)),
    ];
    let keys = [rng.next(), rng.next()];
    let lens = [rng.below(30_000), rng.below(30_000)];
    let mut them = Them::new(&mut rng, keys, lens);
    let sockets = host.sockets().clone();
    let we_open = rng.chance(500_000);
    let mut us = if we_open {
        them.socket()
            .listen(PORT)
            .map_err(|error| error.to_string())?;
        let to = SocketAddr::new(THEIRS.into(), PORT);
        let connecting = sockets.begin_connect(to);
        Us::Opening(Box::new(connecting.map_err(|error| error.to_string())?))
    } else {
        Us::Listening(sockets.listen(PORT, 4).map_err(|error| error.to_string())?)
    };
    let mut now = Instant::from_millis(1);
    let limit = now + LIMIT;
    let mut they_open = !we_open;
    let mut mended = false;
    while now < limit {
        if now > Instant::ZERO + FAULTS_END && !mended {
            links.iter_mut().for_each(ImpairedLink::clear_faults);
            host.set_stalls(Stalls::default());
            mended = true;
        }
        let mut done = host.turn(now);
        for frame in host.take_sent() {
            links[0].offer(span(now), Frame::from_bytes(&frame));
            done += 1;
        }
        while let Some(frame) = links[0].take(span(now)) {
            them.script.push(frame.to_vec());
            done += 1;
        }
        if they_open {
            they_open = false;
            them.open()?;
        }
        them.interface
            .poll(moment(now), &mut them.port, &mut them.sockets);
        for (frame, _) in them.script.take_sent() {
            links[1].offer(span(now), Frame::from_bytes(&frame));
            done += 1;
        }
        while let Some(frame) = links[1].take(span(now)) {
            host.inject(frame.to_vec());
            done += 1;
        }
        done += us.work(&sockets, keys, lens)?;
        done += them
            .work(now)
            .map_err(|what| format!("{what}, {us_open}", us_open = role(we_open)))?;
        if us.is_over() && them.is_over() {
            return host.check().map(|_| true);
        }
        if done > 0 {
            continue;
        }
        let mut next = host.next_event(now).min(limit);
        for link in &links {
            if let Some(at) = link.next_arrival() {
                next = next.min(Instant::from_nanos(at.as_nanos() as u64));
            }
        }
        if let Some(at) = them.interface.poll_at(moment(now), &them.sockets) {
            next = next.min(Instant::from_nanos(at.total_micros().max(0) as u64 * 1000));
        }
        if them.rests_until > now {
            next = next.min(them.rests_until);
        }
        // smoltcp counts microseconds, and may ask to be polled again at once.
        now = next.max(now + Duration::from_micros(1));
    }
    let wants = them.interface.poll_at(moment(now), &them.sockets);
    if wants.is_none() && them.socket().send_queue() > 0 {
        return host.check().map(|_| false);
    }
    let state = them.socket().state();
    let us = match &us {
        Us::Traffic(traffic) => format!("{traffic:?}"),
        Us::Listening(_) => "we listen".to_owned(),
        Us::Opening(_) => "we open".to_owned(),
    };
    Err(format!(
        "no end, {}: {us}; smoltcp is in {state}, wrote {} of {}, read {} of {}",
        role(we_open),
        them.written,
        lens[0],
        them.read,
        lens[1]
    ))
}

const fn role(we_open: bool) -> &'static str {
    if we_open {
        "we opened"
    } else {
        "smoltcp opened"
    }
}

#[test]
fn conversations_with_smoltcp_arrive_whole_in_both_roles() {
    let command = "cargo test --release -p dominoes-tests --test main conversations_with_smoltcp";
    let done = Cases::new("DIFFERENTIAL", command, 1_000).run(conversation);
    let stopped = done.iter().filter(|ended| !**ended).count();
    println!(
        "{} conversations, smoltcp stopped for good in {stopped}",
        done.len()
    );
    assert!(stopped <= 1 + done.len() / 1_000, "smoltcp stops too often");
}
