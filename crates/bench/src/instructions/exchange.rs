//! One byte each way, and turns that find nothing.
//!
//! The client is another stack. Counted are the turns of the server's first worker. A second one
//! stays aside, and its turns are reported beside them.

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::TcpStream;
use dominoes_netstack::group::Layout;
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::single::Single;
use dominoes_netstack::variants::{Setup, VariantKind, Worker};

use super::Case;

/// Exchanges, or idle turns, of the shorter measurement: a fingerprint is due equally often in it.
const UNITS: u64 = 512;
/// Time from one turn to the next.
const TURN: Duration = Duration::from_nanos(100);
const PORT: u16 = 7;

struct Pair {
    workers: Vec<Box<dyn Worker>>,
    client: Single,
    asks: TcpStream,
    answers: TcpStream,
    now: Instant,
}

#[inline(never)]
fn counted_turn(worker: &mut dyn Worker, now: Instant) -> usize {
    worker.turn(now)
}

#[inline(never)]
fn counted_aside(worker: &mut dyn Worker, now: Instant) -> usize {
    std::hint::black_box(1);
    worker.turn(now)
}

impl Pair {
    fn new(kind: VariantKind, replicas: usize) -> Pair {
        let (here, there) = memory::pair(MemoryConfig::default());
        let setup = |last| Setup::new([10, 0, 0, last].into(), 24, [1, u64::from(last)]);
        let layout = Layout::default().replicas(replicas);
        let server = kind.build(setup(1), layout, Box::new(here));
        let server = server.expect("the settings are right");
        let mut client = Single::new(setup(2), Box::new(there)).expect("the settings are right");
        let listener = server.sockets().listen(PORT, 1).expect("the port is free");
        let (mut workers, mut now) = (server.into_parts().0, Instant::from_millis(1));
        let to = std::net::SocketAddr::from(([10, 0, 0, 1], PORT));
        let mut opening = client.sockets().begin_connect(to).expect("there is room");
        let (mut asks, mut answers) = (None, None);
        while asks.is_none() || answers.is_none() {
            client.turn(now);
            for worker in &mut workers {
                worker.turn(now);
            }
            now += TURN;
            if asks.is_none() {
                asks = opening.try_finish().expect("the server answers");
            }
            answers = answers.or_else(|| listener.try_accept().ok());
        }
        let both = asks.zip(answers.map(|(stream, _)| stream));
        let (asks, answers) = both.expect("the loop ends when they are there");
        for stream in [&asks, &answers] {
            stream.set_nodelay(true).expect("it is open");
        }
        Pair {
            workers,
            client,
            asks,
            answers,
            now,
        }
    }

    fn turn(&mut self) {
        counted_turn(&mut *self.workers[0], self.now);
        if let Some(worker) = self.workers.get_mut(1) {
            counted_aside(&mut **worker, self.now);
        }
        self.now += TURN;
    }

    /// Sends a byte and waits for the answer; then until nothing is left to do.
    fn exchange(&mut self) {
        self.asks.try_write(&[7]).expect("there is room");
        let mut bytes = [0; 2];
        while self.asks.try_read(&mut bytes) != Ok(1) {
            self.client.turn(self.now);
            self.turn();
            if let Ok(len) = self.answers.try_read(&mut bytes) {
                self.answers
                    .try_write(&bytes[..len])
                    .expect("there is room");
            }
        }
        self.client.turn(self.now);
        self.turn();
    }
}

/// The servers: without a log because there is none, or only one replica; and with a log.
const SERVERS: [(&str, VariantKind, usize); 3] = [
    ("single", VariantKind::Single, 1),
    ("replicated", VariantKind::Replicated, 1),
    ("logged by two", VariantKind::Replicated, 2),
];

/// All cases.
pub(super) fn cases() -> impl Iterator<Item = Case> {
    SERVERS.into_iter().flat_map(|(server, kind, replicas)| {
        [true, false].map(|asks| {
            let (what, unit) = if asks {
                ("one byte each way", "exchange")
            } else {
                ("idle", "turn")
            };
            let case = Case::new(format!("{server}/{what}"), unit, UNITS, move || {
                let mut pair = Pair::new(kind, replicas);
                // A worker without a share stays aside afterwards.
                (0..100).for_each(|_| pair.turn());
                (0..UNITS).for_each(|_| pair.exchange());
                move |units| match asks {
                    true => (0..units).for_each(|_| pair.exchange()),
                    false => (0..units).for_each(|_| pair.turn()),
                }
            });
            case.within("::counted_turn")
                .shares(&[("aside", "::counted_aside")])
                .key()
        })
    })
}
