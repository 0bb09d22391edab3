//! Stages in a row: separate threads handle whole frames, payload and headers.
//!
//! The arrangement of P. Mackerras and D. Sitsky, *A parallel TCP/IP protocol implementation*
//! (Parallel Computing Workshop 1995), on shared memory:
//!
//! ```text
//!              whole frames            headers                  what apply asks for
//! device --> interface --+--> data 0 --+--> protocol --+--> data 0 --> ring of the application
//!               ^   ^    +--> data 1 --+   (one order) +--> data 1 --> transmit slots
//!               |   +-- frames that are done with ----------'   |
//!               +------- built frames <-------------------------'
//! ```
//!
//! - The *interface* stage moves whole frames and reads none: from the device to the data stages in
//!   turn, a message of at most [`PipelinedLayout::frames`] each, and built frames to the device.
//! - Each *data* stage verifies the checksums of the frames that it receives, and owns their
//!   payload. It copies payload to applications, and builds the frames that carry payload.
//! - The *protocol* stage takes the frames of all data stages in the order of arrival and reads
//!   their headers: it runs the receive pump, applies requests, builds frames without payload, and
//!   notifies sockets. It refers to payload by remote buffers (`RemoteRun`: the stage, and the
//!   address and length of each frame).
//!
//! The state machine, the pumps and the code that performs effects are shared with the other
//! variants. Bounded [`dominoes::channel`]s connect the stages, and no stage waits for another: if
//! a channel is full, the sender keeps its message and does other work.
//!
//! If a data stage finds a checksum wrong, the protocol stage computes it again; it also computes
//! the checksum of a datagram that arrived in fragments. Both are rare.
//!
//! # Order and bounds
//! One protocol stage applies all requests in the order of arrival, so it sends what `single` sends
//! for the same requests. A request enters only if fewer than [`PipelinedLayout::window`] requests
//! are not yet performed, so that number of delivery slots is enough, and no channel of jobs is
//! ever full.
//!
//! When a timer is due, the protocol stage first waits for the frames that had arrived by then.
//!
//! # Several protocol stages
//! [`PipelinedLayout::protocol_stages`] divides connections among protocol stages by the hash of
//! their flow, as the paper proposes in section 6. Each protocol stage has its own state and
//! transmit slots, like a group in [`groups`](super::groups); the interface and data stages serve
//! all of them.
//!
//! # Stages and threads
//! With as many workers as stages, each stage has a thread. Fewer workers share the stages: one
//! worker has all of them; of two, the second has the data stages.

mod front;
mod message;
mod stage;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dominoes::TryLock;
use dominoes_drivers::Device;

use super::Setup;
use super::groups::{Classify, divide_setup};
use crate::drive::{ByHand, Handle};
use crate::error::{ConfigError, check_queues};
use crate::io::claim::Claimer;
use crate::io::direct::Receiver;
use crate::io::perform::BuiltHeaders;
use crate::io::setup::Base;
use crate::io::world::World;
use crate::socket::Sockets;
use crate::time::Instant;
use front::{Front, Inbox, SharedTx};
use message::{LastLook, Sender, WakeUp, channel};
use stage::{Data, Interface, JobInput, Outbox, Protocol, Stage};

pub use worker::{PipelinedWorker, StageStats};

/// Capacity of a channel of received frames, in messages.
const FRAMES_WAITING: usize = 64;
/// Capacity of the channel that returns frames to the device, in messages.
const RETURNS_WAITING: usize = 1024;

/// A stage of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StageKind {
    /// Moves whole frames.
    Interface,
    /// Owns payload; its index, from 0.
    Data(usize),
    /// Handles headers; its index, from 0.
    Protocol(usize),
}

dominoes_proto::settings! {
    /// The settings of a pipeline. None of them changes the protocol.
    ///
    /// ```
    /// use dominoes_netstack::variants::pipelined::PipelinedLayout;
    ///
    /// let layout = PipelinedLayout::default().workers(6);
    /// assert_eq!((layout.data_stages, layout.stages()), (4, 6));
    /// assert_eq!(layout.data_stages(8).workers, 6);
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PipelinedLayout {
        /// Threads, 1 to 56. Default 3.
        pub workers: usize = 3, 1..=56, "1 to 56" => none;
        /// Data stages, 1 to 32. Default 1.
        pub data_stages: usize = 1, 1..=32, "1 to 32";
        /// Protocol stages, 1 to 8. Default 1.
        pub protocol_stages: usize = 1, 1..=8, "1 to 8";
        /// Most frames in a message, 1 to 32. Default 16.
        pub frames: usize = 16, 1..=32, "1 to 32";
        /// Requests in flight, a power of two, 64 to 65536. Default 512.
        pub window: usize = 512, super::WINDOWS, "a power of two, 64 to 65536";
        /// Whether each stage measures its busy time ([`StageStats::busy_ns`]). Default: no.
        pub timed: bool = false;
    }
}

impl PipelinedLayout {
    dominoes_proto::settings! {
        /// Sets [`PipelinedLayout::workers`], and as many data stages as there are workers left for
        /// them, at least one.
        fn workers(self, workers: usize) {
                self.workers = workers;
                let data = workers.saturating_sub(1 + self.protocol_stages);
                self.data_stages = if data == 0 { 1 } else { data };
        }
    }

    /// The number of stages.
    pub const fn stages(&self) -> usize {
        1 + self.data_stages + self.protocol_stages
    }

    /// The worker that runs a stage.
    fn worker_of(&self, stage: StageKind) -> usize {
        let spread = self.workers > 2;
        match stage {
            StageKind::Interface => 0,
            StageKind::Data(_) if !spread => self.workers - 1,
            StageKind::Protocol(_) if !spread => 0,
            // The last workers have the protocol stages, the workers between have the data stages.
            StageKind::Protocol(index) => {
                let own = self.protocol_stages.min(self.workers - 2);
                self.workers - 1 - index % own
            }
            StageKind::Data(index) => {
                let own = self.workers - 1 - self.protocol_stages.min(self.workers - 2);
                1 + index % own
            }
        }
    }
}

/// The part of a pipeline that other threads use.
struct PipelinedShared {
    worlds: Vec<Arc<World>>,
    wakes: Vec<Arc<WakeUp>>,
    /// The next deadline of each protocol stage.
    deadlines: Vec<Arc<AtomicU64>>,
}

impl Handle for PipelinedShared {
    fn sockets(&self) -> Sockets {
        Sockets::over(self.worlds.clone())
    }

    fn wake_all(&self) {
        self.wakes.iter().for_each(|wake| wake.wake());
    }
}

impl PipelinedShared {
    /// The earliest time at which a protocol stage has work without input.
    fn next_deadline(&self) -> Instant {
        // ORDERING: Relaxed, as in `Protocol::post_deadline`.
        let deadlines = self.deadlines.iter().map(|at| at.load(Ordering::Relaxed));
        Instant::from_nanos(deadlines.min().unwrap_or(u64::MAX))
    }

    fn is_down(&self) -> bool {
        self.worlds.iter().any(|world| world.is_down())
    }

    fn shut_down(&self) {
        self.worlds.iter().for_each(|world| world.shut_down());
        self.wake_all();
    }
}

/// A pipeline, whose stages belong to workers, [driven by hand](ByHand).
pub type Pipeline = ByHand<PipelinedWorker>;

impl Pipeline {
    /// A pipeline over `device`.
    ///
    /// # Errors
    /// If a setting is out of its range, or if there are several protocol stages and the setup has
    /// a recorder: each stage has its own log.
    pub fn new(
        setup: Setup,
        layout: PipelinedLayout,
        device: Box<dyn Device>,
    ) -> Result<Pipeline, ConfigError> {
        ConfigError::check(layout.out_of_range())?;
        check_queues(device.queues())?;
        let (caps, mac) = (device.capabilities(), device.mac());
        let filter = device.address_filter();
        let (rx, tx) = device.split();
        let tx = Arc::new(TryLock::new(tx));
        // The first worker sleeps in the device.
        let wakes: Vec<_> = (0..layout.workers)
            .map(|_| Arc::new(WakeUp::new(rx.waker())))
            .collect();
        let wake_of = |stage| &wakes[layout.worker_of(stage)];
        let (setups, classify): (_, Option<Arc<Classify>>) = match layout.protocol_stages {
            1 => (vec![setup], None),
            several => {
                let (setups, classify) = divide_setup(setup, several)?;
                (setups, Some(Arc::new(classify)))
            }
        };
        let interface_wake = wake_of(StageKind::Interface);
        let (returns, returned) = channel(RETURNS_WAITING, interface_wake);
        let (to_data, frames_of): (Vec<_>, Vec<_>) = (0..layout.data_stages)
            .map(|data| channel(FRAMES_WAITING, wake_of(StageKind::Data(data))))
            .unzip();
        let mut data_outputs: Vec<Vec<_>> = (0..layout.data_stages).map(|_| Vec::new()).collect();
        let mut data_jobs: Vec<Vec<JobInput>> = data_outputs.iter().map(|_| Vec::new()).collect();
        let (mut protocols, mut transmit) = (Vec::new(), Vec::new());
        let last_look = Arc::new(LastLook::default());
        let never = || Arc::new(AtomicU64::new(Instant::NEVER.as_nanos()));
        let deadlines: Vec<_> = setups.iter().map(|_| never()).collect();
        for (index, setup) in setups.into_iter().enumerate() {
            let wake = wake_of(StageKind::Protocol(index));
            let mut inputs = Vec::new();
            for outputs in &mut data_outputs {
                let (sender, receiver) = channel(FRAMES_WAITING, wake);
                outputs.push(sender);
                inputs.push(receiver);
            }
            let inbox = Arc::new(Inbox::new(inputs, wake));
            let front = Front {
                caps: caps.clone(),
                mac,
                filter: filter.clone(),
                inbox: Arc::clone(&inbox),
                returns: Sender::clone(&returns),
                tx: SharedTx {
                    tx: Arc::clone(&tx),
                    is_alone: deadlines.len() == 1,
                },
            };
            let base: Base = setup.build(Box::new(front), layout.window, layout.workers)?;
            let mut outboxes = Vec::new();
            for (data, jobs) in data_jobs.iter_mut().enumerate() {
                let (sender, receiver) = channel(layout.window, wake_of(StageKind::Data(data)));
                let done = Arc::new(AtomicU64::new(0));
                jobs.push(JobInput {
                    world: Arc::clone(&base.world),
                    headers: BuiltHeaders::default(),
                    receiver,
                    done: Arc::clone(&done),
                    wake: Arc::clone(wake),
                });
                outboxes.push(Outbox::new(sender, done));
            }
            transmit.push((base.tx, Arc::clone(wake)));
            protocols.push(Protocol::new(
                (base.world, Receiver::new(base.rx, base.claimer)),
                (inbox, Arc::clone(&last_look)),
                Arc::clone(&deadlines[index]),
                outboxes,
                (Sender::clone(&returns), Arc::clone(interface_wake)),
                layout.window,
            ));
        }
        let worlds: Vec<_> = protocols.iter().map(|p| Arc::clone(&p.world)).collect();
        let interface = Interface::new(
            (Claimer::new(Arc::clone(&worlds[0]), rx, 0), returned),
            (to_data, last_look),
            transmit,
            layout.frames,
        );
        let mut stages = vec![(StageKind::Interface, Stage::Interface(Box::new(interface)))];
        let data = frames_of.into_iter().zip(data_outputs).zip(data_jobs);
        for (index, ((frames, outputs), jobs)) in data.enumerate() {
            let data = Data::new(
                frames,
                outputs,
                jobs,
                (Sender::clone(&returns), Arc::clone(interface_wake)),
                classify.clone(),
            );
            stages.push((StageKind::Data(index), Stage::Data(Box::new(data))));
        }
        for (index, protocol) in protocols.into_iter().enumerate() {
            stages.push((
                StageKind::Protocol(index),
                Stage::Protocol(Box::new(protocol)),
            ));
        }
        let shared = Arc::new(PipelinedShared {
            worlds,
            wakes,
            deadlines,
        });
        let mut workers: Vec<_> = (0..layout.workers)
            .map(|id| PipelinedWorker::new(id, Arc::clone(&shared), layout.timed))
            .collect();
        for (kind, stage) in stages {
            workers[layout.worker_of(kind)].add(kind, stage);
        }
        Ok(ByHand::new_over(workers, shared))
    }
}
