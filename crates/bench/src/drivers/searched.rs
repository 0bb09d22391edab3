//! Datagrams that any worker searches: Sizemore's UDP path, over a group of `dominoes` alone.
//!
//! A worker that can have the device takes frames from it, reads their headers, and publishes them
//! together as one request. Every worker counts the datagrams of every request in its own copy of
//! the state. One worker, the primary, verifies their checksums, and copies and searches their
//! payloads. `single` does the same without a log.

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use dominoes::group::GroupWorker;
use dominoes::{Group, Park, Publisher, Seq, Turn};
use dominoes_drivers::memory::peer::headers::Ends;
use dominoes_drivers::{Device, DeviceRx, Frame};
use dominoes_netstack::framed::{Search, UnitProcessor};
use dominoes_netstack::time::Instant;
use dominoes_netstack::variants::kernel;
use dominoes_proto::packet::{self, Packet};

use super::limit::lock;
use super::{Direction, Driver, Row, Variant};
use crate::datagrams::{self, DatagramDevice, HEADERS};
use crate::inline::search;
use crate::workload::{Processing, Workload};

/// Datagrams of a request.
const AT_ONCE: usize = 32;
/// Requests of the log.
const LOG: usize = 64;
/// The most payload bytes of a datagram.
const MAX_TEXT: usize = 1472;

fn can(direction: Direction, workload: &Workload) -> bool {
    direction == Direction::Receive && workload.processing == Processing::Search
}

/// The rows.
pub(crate) const VARIANTS: &[Variant] = &[
    Variant::new("single", "one core, no log", |_, workload, _| {
        let driver = Alone(Source::new(workload), Searches::new(workload)?, 0);
        Ok(Row::new("single", vec![Box::new(driver)]))
    })
    .can(can),
    Variant::new("replicated", "one log, counts on each core", replicated)
        .scales()
        .can(can),
];

/// The device, and frames that it gets back.
struct Source {
    rx: Box<dyn DeviceRx>,
    used: Vec<Frame>,
}

impl Source {
    fn new(workload: &Workload) -> Source {
        let (device, _) = DatagramDevice::new(true, false, workload);
        let (rx, used) = (Box::new(device).split().0, Vec::new());
        Source { rx, used }
    }

    /// The next datagrams for our socket.
    fn next(&mut self) -> Vec<Frame> {
        let mut frames = Vec::with_capacity(AT_ONCE);
        self.rx.release(&mut self.used);
        // A simulated device cannot be down.
        let _ = self.rx.claim(AT_ONCE, &mut frames);
        let port = Ends::default().to.port();
        frames.retain(|frame| match packet::parse(frame.bytes()) {
            Ok(Packet::Udp(udp)) => udp.dst_port == port,
            _ => false,
        });
        frames
    }
}

/// The searches of all workers.
struct Searches {
    search: Search,
    /// Payload bytes of a datagram, and how often words occur in it.
    len: u64,
    each: u64,
    /// Payload bytes that were searched.
    bytes: AtomicU64,
    bad: AtomicU64,
}

impl Searches {
    fn new(workload: &Workload) -> Result<Arc<Searches>, String> {
        let (one, payload) = (search(workload)?, datagrams::payload(workload, 0));
        let found = one.receive(0, &payload, &mut [0; MAX_TEXT]);
        found.map_err(|failure| failure.to_string())?;
        Ok(Arc::new(Searches {
            search: search(workload)?,
            len: payload.len() as u64,
            each: one.received(),
            bytes: AtomicU64::new(0),
            bad: AtomicU64::new(0),
        }))
    }

    /// Searches `frames`, of which there should be `count`.
    fn search(&self, frames: &[Frame], count: usize) {
        let (mut text, mut bad) = ([0; MAX_TEXT], count.abs_diff(frames.len()) as u64);
        for frame in frames {
            let payload = &frame.bytes()[HEADERS..];
            let is_good = kernel::verify_datagram(frame.bytes());
            let done = self.search.receive(0, payload, &mut text);
            bad += u64::from(!is_good || done != Ok(payload.len()));
        }
        // ORDERING: Relaxed, counts.
        let bytes = self.len * frames.len() as u64;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.bad.fetch_add(bad, Ordering::Relaxed);
    }

    fn bytes(&self) -> u64 {
        // ORDERING: Relaxed, a count.
        self.bytes.load(Ordering::Relaxed)
    }

    fn check(&self) -> Result<(), String> {
        let datagrams = self.bytes() / self.len;
        // ORDERING: Relaxed, no worker is in a turn.
        match self.bad.load(Ordering::Relaxed) {
            0 if self.search.received() == self.each * datagrams => Ok(()),
            0 => Err(format!("a search of {datagrams} datagrams missed words")),
            bad => Err(format!("{bad} datagrams were lost, or had a bad checksum")),
        }
    }
}

/// One worker without a log.
struct Alone(Source, Arc<Searches>, u64);

impl Driver for Alone {
    fn turn(&mut self, _now: Instant) -> usize {
        let Alone(source, searches, datagrams) = self;
        let frames = source.next();
        *datagrams += frames.len() as u64;
        searches.search(&frames, frames.len());
        source.used = frames;
        source.used.len()
    }

    fn bytes(&self) -> u64 {
        self.1.bytes()
    }

    fn check(&self) -> Result<(), String> {
        self.1.check()
    }
}

/// How many datagrams were read together, and their frames, which the primary takes.
type Request = Arc<(usize, Mutex<Vec<Frame>>)>;

/// Where requests come from, and one for which the log had no room.
struct Intake {
    source: Source,
    publisher: Publisher<Request, Park>,
    waits: Option<Request>,
}

/// One worker of a group.
struct Searcher<A, P> {
    worker: GroupWorker<u64, Request, Request, A, P>,
    intake: Arc<Mutex<Intake>>,
    used: Arc<Mutex<Vec<Frame>>>,
    searches: Arc<Searches>,
}

fn replicated(_: Direction, workload: &Workload, cores: usize) -> Result<Row, String> {
    let searches = Searches::new(workload)?;
    let used: Arc<Mutex<Vec<Frame>>> = Arc::default();
    let apply = |datagrams: &mut u64, _: Seq, request: &Request| {
        *datagrams += request.0 as u64;
        Arc::clone(request)
    };
    let (shared, returned) = (Arc::clone(&searches), Arc::clone(&used));
    let perform = move |request: Request, _: Seq| {
        let mut frames = mem::take(&mut *lock(&request.1));
        shared.search(&frames, request.0);
        lock(&returned).append(&mut frames);
    };
    let group = Group::builder(0, cores);
    let group = group.capacity(LOG).chunk(1).by_hand(apply, perform);
    let group = group.map_err(|error| error.to_string())?;
    let intake = Arc::new(Mutex::new(Intake {
        source: Source::new(workload),
        publisher: group.handle().publisher(),
        waits: None,
    }));
    let driver = |worker| -> Box<dyn Driver> {
        Box::new(Searcher {
            worker,
            intake: Arc::clone(&intake),
            used: Arc::clone(&used),
            searches: Arc::clone(&searches),
        })
    };
    let drivers = group.workers.into_iter().map(driver).collect();
    Ok(Row::new("replicated", drivers))
}

impl<A, P> Driver for Searcher<A, P>
where
    A: Fn(&mut u64, Seq, &Request) -> Request + Send + Sync,
    P: Fn(Request, Seq) + Send + Sync,
{
    fn turn(&mut self, _now: Instant) -> usize {
        if let Ok(mut intake) = self.intake.try_lock() {
            let next = intake.waits.take().or_else(|| {
                intake.source.used = mem::take(&mut *lock(&self.used));
                let frames = intake.source.next();
                (!frames.is_empty()).then(|| Arc::new((frames.len(), Mutex::new(frames))))
            });
            let published = next.map(|request| intake.publisher.try_publish(request));
            if let Some(Err(refused)) = published {
                intake.waits = Some(refused.into_inner());
            }
        }
        usize::from(self.worker.turn(std::time::Instant::now()) == Turn::Worked)
    }

    fn bytes(&self) -> u64 {
        // The first of a row reports for all.
        if self.worker.id() == 0 {
            self.searches.bytes()
        } else {
            0
        }
    }

    fn check(&self) -> Result<(), String> {
        self.searches.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whichever_worker_searches_a_datagram_every_word_is_found() {
        for segment_bytes in [1448, 64] {
            let workload = Workload {
                pool_bytes: 4 << 20,
                segment_bytes,
                processing: Processing::Search,
                ..Workload::default()
            };
            for variant in VARIANTS {
                for cores in if variant.scales { 1..=3 } else { 1..=1 } {
                    let mut row = (variant.make)(Direction::Receive, &workload, cores).unwrap();
                    row.drive_until(1 << 20).unwrap();
                }
            }
        }
    }
}
