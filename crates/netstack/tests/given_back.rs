//! Connections that pause give memory back and still carry every byte: over all variants and both
//! families, in both directions, on wires that lose and reorder, with workers that stall.

#![cfg(feature = "testkit")]

use core::ops::ControlFlow;

use dominoes_netstack::time::Duration;
use dominoes_netstack::{Limits, SocketError, TcpStream, testkit};
use dominoes_testkit::link::{Faults, LinkConfig};
use dominoes_testkit::packet::Family;
use dominoes_testkit::{Cases, HostConfig, HostId, Net, Rng, Stalls, Traffic, Variant};

const PORT: u16 = 7;
/// Rounds of a conversation; a pause follows each.
const ROUNDS: usize = 8;
/// Longer than a connection must be idle before it gives memory back.
const LONG: Duration = Duration::from_secs(4);
/// Everything written arrives within this time, even on bad wires.
const PATIENCE: Duration = Duration::from_secs(600);

/// How a conversation fails.
#[derive(Debug, PartialEq, Eq)]
enum Wrong {
    /// Bytes are read that were not written.
    Bytes,
    /// Some bytes never arrive.
    Missing,
    Socket(SocketError),
}

/// One end of a conversation: it writes one pattern and reads another.
struct End {
    stream: TcpStream,
    ours: u64,
    theirs: u64,
    written: u64,
    read: u64,
    to_write: u64,
    to_read: u64,
}

impl End {
    fn new(stream: TcpStream, [ours, theirs]: [u64; 2]) -> End {
        End {
            stream,
            ours,
            theirs,
            written: 0,
            read: 0,
            to_write: 0,
            to_read: 0,
        }
    }

    /// Reads and writes as much as possible now. Returns the number of bytes.
    fn step(&mut self, rng: &mut Rng) -> Result<usize, Wrong> {
        let mut done = 0;
        let most = 1 + rng.below(4096);
        let len = most.min(self.to_write - self.written);
        if len > 0 {
            let piece = Traffic::pattern(self.ours, self.written, len);
            let taken = match rng.chance(300_000) {
                true => reserve(&mut self.stream, &piece),
                false => self.stream.try_write(&piece),
            };
            let taken = unless_blocked(taken)?;
            (self.written, done) = (self.written + taken as u64, done + taken);
        }
        let len = most.min(self.to_read - self.read);
        if len > 0 {
            let mut piece = vec![0; len as usize];
            let got = unless_blocked(self.stream.try_read(&mut piece))?;
            piece.truncate(got);
            if piece != Traffic::pattern(self.theirs, self.read, got as u64) {
                return Err(Wrong::Bytes);
            }
            (self.read, done) = (self.read + got as u64, done + got);
        }
        Ok(done)
    }

    fn is_over(&self) -> bool {
        self.written == self.to_write && self.read == self.to_read
    }
}

fn unless_blocked(done: Result<usize, SocketError>) -> Result<usize, Wrong> {
    match done {
        Err(SocketError::WouldBlock) => Ok(0),
        other => other.map_err(Wrong::Socket),
    }
}

/// Writes in place.
fn reserve(stream: &mut TcpStream, piece: &[u8]) -> Result<usize, SocketError> {
    let (_, writer) = stream.halves();
    let mut room = writer.reserve(piece.len())?;
    let len = room.len();
    room.copy_from_slice(&piece[..len]);
    room.commit(len)?;
    Ok(len)
}

/// Two hosts, and a conversation between them with pauses.
struct Conversation {
    net: Net,
    hosts: [HostId; 2],
    rng: Rng,
    ends: [End; 2],
}

impl Conversation {
    fn new(variant: Variant, family: Family, seed: u64) -> Conversation {
        let mut rng = Rng::new(seed);
        let mut net = Net::new(rng.next());
        let mut host = || {
            // Rings of whole pages, and rings shorter than a page.
            let ring = 1 << (10 + rng.below(5));
            let limits = Limits::default()
                .connections(16)
                .receive_buffer(ring)
                .send_buffer(ring);
            let faults = Faults::new(0).loss(20_000).reorder(50_000, 5);
            let delay = core::time::Duration::from_millis(rng.below(10));
            let wire = LinkConfig::default().faults(faults).delay(delay);
            // Workers stall for longer than it takes to find a connection idle.
            let stalls = Stalls {
                ppm: if rng.chance(500_000) { 1_000 } else { 0 },
                longest: LONG,
            };
            let config = HostConfig::new(variant)
                .stalls(stalls)
                .limits(limits)
                .family(family)
                .wires(wire.clone(), wire);
            net.add(config).expect("its bounds are right")
        };
        let hosts = [host(), host()];
        let listener = net.sockets(hosts[0]).listen(PORT, 4);
        let listener = listener.expect("the port is free");
        let to = net.address_of(hosts[0], PORT);
        let sockets = net.sockets(hosts[1]).clone();
        let (mut connecting, mut ours, mut theirs) = (None, None, None);
        let opened = net.run(PATIENCE, |_| {
            if theirs.is_none() {
                theirs = listener.try_accept().ok().map(|(stream, _)| stream);
            }
            if ours.is_none() {
                if connecting.is_none() {
                    connecting = Some(sockets.begin_connect(to)?);
                }
                let finished = connecting.as_mut().map(|open| open.try_finish());
                match finished {
                    Some(Ok(stream)) => ours = stream,
                    // The SYN was lost: connect again.
                    _ => {
                        connecting = None;
                        return Ok(ControlFlow::Continue(1));
                    }
                }
            }
            match theirs.is_some() && ours.is_some() {
                true => Ok(ControlFlow::Break(())),
                false => Ok(ControlFlow::Continue(0)),
            }
        });
        opened.expect("the connection opens");
        let keys = [rng.next(), rng.next()];
        let ends = [(theirs, keys), (ours, [keys[1], keys[0]])];
        let ends = ends.map(|(stream, keys)| End::new(stream.expect("it is open"), keys));
        Conversation {
            net,
            hosts,
            rng,
            ends,
        }
    }

    /// Lets both ends write and read all that they have to.
    fn run(&mut self) -> Result<(), Wrong> {
        self.run_for(PATIENCE)?;
        match self.ends.iter().all(End::is_over) {
            true => Ok(()),
            false => Err(Wrong::Missing),
        }
    }

    /// Does as much of that as is possible in `time`.
    fn run_for(&mut self, time: Duration) -> Result<(), Wrong> {
        let mut wrong = Ok(());
        let Conversation { net, rng, ends, .. } = self;
        // The caller asks the ends whether they are done.
        let _ = net.run(time, |_| {
            let mut done = 0;
            for end in &mut *ends {
                match end.step(rng) {
                    Ok(len) => done += len,
                    Err(what) => {
                        wrong = Err(what);
                        return Ok(ControlFlow::Break(()));
                    }
                }
            }
            match ends.iter().all(End::is_over) {
                true => Ok(ControlFlow::Break(())),
                false => Ok(ControlFlow::Continue(done)),
            }
        });
        wrong
    }

    /// Runs the whole conversation.
    fn talk(&mut self) -> Result<(), Wrong> {
        for _ in 0..ROUNDS {
            let most = 1 << (4 + self.rng.below(12));
            let lens = [0, 1].map(|_| self.rng.below(most));
            let [one, other] = &mut self.ends;
            (one.to_write, other.to_write) = (one.written + lens[0], other.written + lens[1]);
            if self.rng.chance(300_000) {
                // Bytes stay unread over a pause.
                self.run_for(Duration::from_secs(1))?;
                self.pause();
            }
            let [one, other] = &mut self.ends;
            (one.to_read, other.to_read) = (other.to_write, one.to_write);
            self.run()?;
            self.pause();
        }
        Ok(())
    }

    fn pause(&mut self) {
        let pause = self.rng.below(LONG.as_nanos());
        self.net.pass(Duration::from_nanos(pause));
    }

    /// Lets an hour pass. Returns whether the hosts were busy only at its beginning.
    fn sleeps(&mut self) -> bool {
        let begin = self.net.now();
        let mut last = begin;
        while self.net.advance(begin + Duration::from_secs(3600)) {
            last = self.net.now();
            self.net.run_until_idle();
        }
        last.since(begin) < Duration::from_secs(30)
    }

    /// How often the two hosts gave memory back, in total.
    fn given_back(&mut self) -> u64 {
        let hosts = self.hosts.into_iter();
        hosts
            .map(|host| self.net.host(host).pump_stats().given_back)
            .sum()
    }
}

#[test]
fn what_is_sent_after_memory_was_given_back_arrives() {
    let command = "cargo test -p dominoes-netstack --test main given_back";
    Cases::new("GIVEN_BACK", command, 4).run(|seed| {
        let mut given_back = 0;
        for variant in Variant::ALL {
            for family in [Family::V4, Family::V6] {
                let mut conversation = Conversation::new(variant, family, seed);
                let talked = conversation.talk();
                talked.map_err(|what| format!("{variant}, {family:?}: {what:?}"))?;
                given_back += conversation.given_back();
            }
        }
        // Over 20 conversations.
        match given_back {
            0..60 => Err(format!("{given_back} times only")),
            _ => Ok(()),
        }
    });
}

/// The test above fails if a connection gives back memory that holds an unread byte.
#[test]
fn memory_that_is_given_back_too_early_is_noticed() {
    for variant in [Variant::Single, Variant::Replicated(2)] {
        let noticed = (0..20).find(|seed| {
            let mut conversation = Conversation::new(variant, Family::V4, *seed);
            for host in conversation.hosts {
                testkit::lose_unread(conversation.net.sockets(host), true);
            }
            conversation.talk() == Err(Wrong::Bytes)
        });
        assert!(noticed.is_some(), "{variant}");
    }
}

#[test]
fn a_stack_that_only_deadlines_drive_gives_memory_back_and_then_sleeps_without_end() {
    for variant in Variant::ALL {
        let mut conversation = Conversation::new(variant, Family::V4, 7);
        conversation.net.clear_faults();
        let [one, other] = &mut conversation.ends;
        (one.to_write, other.to_read) = (1000, 1000);
        assert_eq!(conversation.run(), Ok(()), "{variant}");
        let before = conversation.given_back();
        assert!(conversation.sleeps(), "{variant}");
        assert_eq!(conversation.given_back() - before, 2, "{variant}");

        // Unread bytes stay in memory, and the stack does not check the connection for ever.
        let [one, other] = &mut conversation.ends;
        (one.to_write, other.to_read) = (2000, 1500);
        assert_eq!(conversation.run(), Ok(()), "{variant}");
        let before = conversation.given_back();
        assert!(conversation.sleeps(), "{variant}");
        assert_eq!(conversation.given_back() - before, 1, "{variant}");

        // Reading makes the connection idle anew, although its window was open all the time.
        conversation.ends[1].to_read = 2000;
        assert_eq!(conversation.run(), Ok(()), "{variant}");
        conversation.net.pass(LONG);
        assert_eq!(conversation.given_back() - before, 2, "{variant}");
    }
}
