//! The same actions on sockets of Linux with `epoll`, and on ours with the poller: both must report
//! equal events.
//!
//! Our stack is driven by hand, so all events of an action are known when the action is done. Linux
//! may report later: the test polls it until it has reported those events, and any other event
//! until then is a difference.

use std::io::{ErrorKind, Read, Write};
use std::net;
use std::time::Duration;

use dominoes_netstack::TcpStream;
use dominoes_netstack::testkit::Variant;
use dominoes_testkit::Rng;
use rustix::event::epoll;
use rustix::net::{AddressFamily, SocketType, sockopt};

use dominoes_testkit::hand::Wired;

use super::by_hand::{VARIANTS, connected, drain, fill};
use super::*;

/// How often to poll Linux for an event that is due at once.
const MOST_LOOKS: u32 = 20_000;
/// Bytes of Linux' send buffer. Linux reports it as writable again when a third of it is free.
const SEND_BUFFER: usize = 1 << 16;
/// Bytes that the peer's kernel holds while the peer does not read. If that many bytes leave a full
/// send buffer, less than a third of it is free, so it does not matter when they leave and when
/// they are acknowledged.
const PEER_BUFFER: usize = 1 << 12;

/// An action on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// The peer writes this many bytes.
    Send(usize),
    /// We read at most this many bytes.
    Read(usize),
    /// We write until there is no more room.
    Fill,
    /// The peer reads all that we wrote.
    Empty,
    /// We register anew with this interest.
    Modify(Interest),
    /// The peer ends its stream.
    End,
    /// The peer resets the connection.
    Reset,
}

/// The events of an action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Report {
    readable: bool,
    writable: bool,
    read_closed: bool,
    write_closed: bool,
    error: bool,
}

impl Report {
    fn and(self, other: Report) -> Report {
        Report {
            readable: self.readable | other.readable,
            writable: self.writable | other.writable,
            read_closed: self.read_closed | other.read_closed,
            write_closed: self.write_closed | other.write_closed,
            error: self.error | other.error,
        }
    }

    fn has(self, other: Report) -> bool {
        self.and(other) == self
    }
}

/// One kind of socket, with its poller.
trait Subject {
    fn act(&mut self, action: Action);
    /// The current events.
    fn report(&mut self) -> Report;
}

struct Ours {
    pair: Wired,
    stream: TcpStream,
    peer: Option<TcpStream>,
    poller: Poller,
    trigger: Trigger,
}

impl Ours {
    fn new(variant: Variant, interest: Interest, trigger: Trigger) -> Ours {
        let (pair, _, stream, peer) = connected(variant);
        let poller = Poller::new().unwrap();
        poller
            .register(&stream, Token(3), interest, trigger)
            .unwrap();
        Ours {
            pair,
            stream,
            peer: Some(peer),
            poller,
            trigger,
        }
    }
}

impl Subject for Ours {
    fn act(&mut self, action: Action) {
        let peer = self.peer.as_mut();
        match action {
            Action::Send(len) => {
                let sent = peer.unwrap().try_write(&vec![1; len]);
                assert_eq!(sent, Ok(len));
            }
            Action::Read(len) => {
                let _ = self.stream.try_read(&mut vec![0; len]);
            }
            Action::Fill => {
                let stream = &mut self.stream;
                fill(&mut self.pair, |bytes| stream.try_write(bytes));
            }
            Action::Empty => {
                let peer = peer.unwrap();
                while drain(peer) > 0 {
                    self.pair.settle();
                }
            }
            Action::Modify(interest) => {
                let modified = self
                    .poller
                    .modify(&self.stream, Token(3), interest, self.trigger);
                modified.unwrap();
            }
            Action::End => peer.unwrap().shutdown_write(),
            Action::Reset => {
                let peer = self.peer.take().unwrap();
                peer.set_linger(Some(Duration::ZERO));
            }
        }
        self.pair.settle();
    }

    fn report(&mut self) -> Report {
        let events = reported(&self.poller);
        events.iter().fold(Report::default(), |report, event| {
            report.and(Report {
                readable: event.readable,
                writable: event.writable,
                read_closed: event.read_closed,
                write_closed: event.write_closed,
                error: event.error,
            })
        })
    }
}

struct Linux {
    stream: net::TcpStream,
    peer: Option<net::TcpStream>,
    epoll: std::os::fd::OwnedFd,
    trigger: Trigger,
    /// Bytes that we wrote and the peer has not read.
    unread: usize,
    interest: Interest,
}

impl Linux {
    fn new(interest: Interest, trigger: Trigger) -> Linux {
        let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let net::SocketAddr::V4(to) = listener.local_addr().unwrap() else {
            unreachable!("it is bound to an address of IPv4");
        };
        let peer = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        sockopt::set_socket_recv_buffer_size(&peer, PEER_BUFFER).unwrap();
        rustix::net::connect_v4(&peer, &to).unwrap();
        let peer = net::TcpStream::from(peer);
        let (stream, _) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        // Otherwise Linux may enlarge the buffer, which makes room again.
        sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER).unwrap();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let flags = flags(interest, trigger);
        epoll::add(&epoll, &stream, epoll::EventData::new_u64(3), flags).unwrap();
        Linux {
            stream,
            peer: Some(peer),
            epoll,
            trigger,
            unread: 0,
            interest,
        }
    }
}

fn flags(interest: Interest, trigger: Trigger) -> epoll::EventFlags {
    use epoll::EventFlags;
    let mut flags = EventFlags::RDHUP;
    flags.set(EventFlags::IN, interest.is_readable());
    flags.set(EventFlags::OUT, interest.is_writable());
    flags.set(EventFlags::ET, trigger == Trigger::Edge);
    flags
}

impl Subject for Linux {
    fn act(&mut self, action: Action) {
        let peer = self.peer.as_mut();
        match action {
            Action::Send(len) => peer.unwrap().write_all(&vec![1; len]).unwrap(),
            Action::Read(len) => {
                let _ = self.stream.read(&mut vec![0; len]);
            }
            Action::Fill => loop {
                match self.stream.write(&[7; 10_000]) {
                    Ok(len) => self.unread += len,
                    Err(error) => break assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            },
            Action::Empty => {
                let mut all = vec![0; self.unread];
                peer.unwrap().read_exact(&mut all).unwrap();
                self.unread = 0;
            }
            Action::Modify(interest) => {
                self.interest = interest;
                let flags = flags(interest, self.trigger);
                let data = epoll::EventData::new_u64(3);
                epoll::modify(&self.epoll, &self.stream, data, flags).unwrap();
            }
            Action::End => peer.unwrap().shutdown(net::Shutdown::Write).unwrap(),
            Action::Reset => {
                let peer = self.peer.take().unwrap();
                // Closing with linger 0 resets the connection, with or without unread bytes.
                let zero = sockopt::set_socket_linger(&peer, Some(Duration::ZERO));
                zero.unwrap();
            }
        }
    }

    fn report(&mut self) -> Report {
        use epoll::EventFlags;
        let mut list = epoll::EventVec::with_capacity(4);
        epoll::wait(&self.epoll, &mut list, 1).unwrap();
        list.iter().fold(Report::default(), |report, event| {
            let flags = event.flags;
            let has = |flag| flags.contains(flag);
            let (hup, error) = (has(EventFlags::HUP), has(EventFlags::ERR));
            // Linux reports hang-ups and errors without being asked; they count in each direction
            // of the interest.
            let either = has(EventFlags::IN) || has(EventFlags::OUT) || hup || error;
            let readable = has(EventFlags::IN) || hup || error;
            let writable = has(EventFlags::OUT) || hup || error;
            report.and(Report {
                readable: readable && self.interest.is_readable(),
                writable: writable && self.interest.is_writable(),
                read_closed: either && (has(EventFlags::RDHUP) || hup),
                write_closed: hup || error,
                error,
            })
        })
    }
}

/// Random actions until one ends the connection.
fn script(rng: &mut Rng) -> (Interest, Vec<Action>) {
    let interests = [Interest::READABLE, Interest::WRITABLE, Interest::BOTH];
    let interest = interests[rng.below(3) as usize];
    let mut actions = Vec::new();
    let mut unread = 0;
    // Until the buffers are empty again, any segment of the peer may make room in Linux' buffer.
    let mut is_full = false;
    for _ in 0..3 + rng.below(12) {
        actions.push(match rng.below(12) {
            0..4 if unread < 30_000 && !is_full => {
                let len = 1 + rng.below(3000) as usize;
                unread += len;
                Action::Send(len)
            }
            4..7 => {
                let len = 1 + rng.below(4000) as usize;
                unread = unread.saturating_sub(len);
                Action::Read(len)
            }
            7..9 => {
                is_full = true;
                Action::Fill
            }
            9..11 => {
                is_full = false;
                Action::Empty
            }
            11 => Action::Modify(interests[rng.below(3) as usize]),
            _ => Action::Read(1),
        });
    }
    match rng.below(3) {
        0 if is_full => actions.extend([Action::Empty, Action::End]),
        0 => actions.push(Action::End),
        1 => actions.push(Action::Reset),
        _ => {}
    }
    (interest, actions)
}

/// The events of Linux, polled until they include all of `expected`.
fn await_report(linux: &mut Linux, expected: Report) -> Report {
    let level = linux.trigger == Trigger::Level;
    let mut found = linux.report();
    // Each poll waits for a millisecond if there is no event.
    let mut looks = 0;
    while found != expected && (level || !found.has(expected)) && looks < MOST_LOOKS {
        looks += 1;
        if level {
            std::thread::sleep(Duration::from_millis(1));
        }
        let next = linux.report();
        found = if level { next } else { found.and(next) };
    }
    found
}

/// Runs the script of `seed` on both. Returns how many actions caused edges, and how many none.
fn compare(seed: u64, variant: Variant, trigger: Trigger) -> Result<(u32, u32), String> {
    let (interest, actions) = script(&mut Rng::new(seed));
    let mut ours = Ours::new(variant, interest, trigger);
    let mut linux = Linux::new(interest, trigger);
    let (mut done, mut edges, mut silent) = (Vec::new(), 0, 0);
    for action in core::iter::once(None).chain(actions.into_iter().map(Some)) {
        if let Some(action) = action {
            done.push(action);
            ours.act(action);
            linux.act(action);
        }
        let settled = ours.report();
        let found = await_report(&mut linux, settled);
        if found != settled {
            return Err(format!(
                "Linux reports {found:?}, we {settled:?}: POLLER_SEED={seed}, {variant}, \
                 {trigger:?}, {interest:?}, {done:?}"
            ));
        }
        if trigger == Trigger::Edge && action.is_some() {
            edges += u32::from(settled != Report::default());
            silent += u32::from(settled == Report::default());
        }
    }
    Ok((edges, silent))
}

/// Runs `CASES` scripts from `SEED` on, for each variant and trigger.
#[test]
fn the_same_actions_bring_the_same_events_as_epoll() {
    let number = |name, default| {
        let value = std::env::var(name).ok();
        value.map_or(default, |value| value.parse().unwrap())
    };
    let (cases, seed) = (number("POLLER_CASES", 12), number("POLLER_SEED", 1));
    let (mut edges, mut silent) = (0, 0);
    for seed in seed..seed + cases {
        for variant in VARIANTS {
            for trigger in TRIGGERS {
                let counts = compare(seed, variant, trigger).unwrap();
                (edges, silent) = (edges + counts.0, silent + counts.1);
            }
        }
    }
    println!("{edges} actions brought edges, {silent} none");
    assert!(edges > 5 * cases as u32 && silent > 5 * cases as u32);
}
