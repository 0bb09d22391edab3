//! Several ways to run one protocol: where prepare, apply and perform are called.
//!
//! | variant | what it is | for whom |
//! |---|---|---|
//! | [`single`] | one thread, no log, direct calls | one core is enough; the oracle of the tests |
//! | `locked` (a feature) | one state, one, two or six locks around it, any thread processes any packet | a comparison: what a lock costs |
//! | `pipelined` (a feature) | a stage for frames, some for payload, one for headers | a comparison: division by function |
//! | [`ReplicatedGroup`](crate::group::ReplicatedGroup) | one log, a copy of the state per thread, costly work by primaries | one connection on several cores; threads that may fail |
//!
//! What is true of each:
//!
//! - None of them contains a protocol rule: given the same requests in the same order, all have the
//!   same state and send the same frames. All but `locked` apply requests in the order of the
//!   receive pump. Workers of `locked` may overtake each other on the
//!   way to the lock, so that TCP sees segments out of order that the network did not reorder.
//! - `single`, `locked` and `pipelined` have one copy of the state: it ends with its thread, or
//!   with one that fails while it has the lock or some payload. A [`ReplicatedGroup`](crate::group::ReplicatedGroup)
//!   replaces replicas that fail or differ, and replicas may join and leave.
//! - No step waits for another thread, but those of `locked` for the lock.
//! - With several groups side by side ([`groups`]) each is `single` or a
//!   [`ReplicatedGroup`](crate::group::ReplicatedGroup). With several [`interfaces`] each is any variant.
//!
//! All of them are a [`Variant`], driven by hand: time is an argument, every step is a call. Its
//! [parts](Variant::into_parts) run on threads: [`Stack`](crate::Stack) starts whichever a
//! [`VariantKind`] names. Calls through these traits are one per turn; within a turn every call is
//! direct.

mod coalescing;
pub mod groups;
pub mod interfaces;
mod kind;
#[cfg(feature = "locked")]
pub mod locked;
#[cfg(feature = "pipelined")]
pub mod pipelined;
mod replicated;
pub mod single;

use std::sync::Arc;

use dominoes::{ChannelStats, Mismatch};

use crate::config::Limits;
use crate::error::MembershipError;
use crate::io::record::{Entry, Recorder};
use crate::socket::Sockets;
use crate::state::apply::ReplicaState;
use crate::stats::{EffectStats, MembershipStats, PumpStats, StackStats, WorkerStats};
use crate::time::Instant;

pub use crate::io::setup::Setup;
pub use kind::VariantKind;

/// A way to run the stack, driven by hand: time is an argument, and no call but the lock of
/// `locked` waits.
///
/// ```
/// use dominoes_drivers::memory::{self, MemoryConfig};
/// use dominoes_netstack::group::Layout;
/// use dominoes_netstack::time::{Duration, Instant};
/// use dominoes_netstack::variants::{Setup, VariantKind};
///
/// for kind in VariantKind::ALL {
///     let (left, right) = memory::pair(MemoryConfig::default());
///     let layout = Layout::default().replicas(1);
///     let setup = |last| Setup::new([10, 0, 0, last].into(), 24, [1, 2]);
///     let mut server = kind.build(setup(1), layout, Box::new(left))?;
///     let mut client = VariantKind::Single.build(setup(2), layout, Box::new(right))?;
///     let _listener = server.sockets().listen(7, 4)?;
///     let mut connecting = client.sockets().begin_connect("10.0.0.1:7".parse()?)?;
///     let mut now = Instant::ZERO;
///     while connecting.try_finish()?.is_none() {
///         client.turn(now);
///         server.turn(now);
///         now += Duration::from_micros(10);
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Variant: Send {
    /// One turn of each worker, in order. Returns how much was done. If that is 0, and 0 again,
    /// nothing will happen before [`next_deadline`](Self::next_deadline) unless a frame comes or an
    /// application acts.
    fn turn(&mut self, now: Instant) -> usize;

    /// The latest time for the next [`turn`](Self::turn), for timers of connections and for what
    /// the receive pump waits for: neighbours that answer, and fragments.
    fn next_deadline(&self) -> Instant;

    /// Sleeps until there may be something to do: a frame comes, an application acts, or
    /// [`next_deadline`](Self::next_deadline) or `until` is reached. `now` is the time at the call;
    /// `until` may be [`Instant::NEVER`]. Returns at once if there is work, so a thread that drives
    /// the stack calls [`turn`](Self::turn) until that returns 0, and then this:
    ///
    /// ```no_run
    /// # use dominoes_netstack::{time::Instant, variants::Variant};
    /// fn drive(stack: &mut dyn Variant, clock: impl Fn() -> Instant) {
    ///     loop {
    ///         while stack.turn(clock()) > 0 {}
    ///         stack.wait(clock(), Instant::NEVER);
    ///     }
    /// }
    /// ```
    ///
    /// Time passes as the system's clock does, so a device of a simulation is not waited for.
    fn wait(&mut self, now: Instant, until: Instant);

    /// Whether a turn may find something to do that neither a frame nor time brings: in any worker,
    /// or in the receive pump.
    fn has_work(&mut self) -> bool;

    /// Whether the receive pump has something to do that neither a frame nor time brings, or a
    /// worker has it.
    fn is_pump_busy(&self) -> bool;

    /// How many workers there are.
    fn worker_count(&self) -> usize {
        1
    }

    /// One step of worker `worker`, counted from 0. A variant whose steps are not to be had so has
    /// a turn. Returns whether something was done.
    ///
    /// # Panics
    /// If there is no such worker.
    fn step(&mut self, worker: usize, _step: TurnStep, now: Instant) -> bool {
        assert!(worker < self.worker_count(), "there is no worker {worker}");
        self.turn(now) > 0
    }

    /// The sockets.
    fn sockets(&self) -> Sockets;

    /// The bounds in force, fitted to the device.
    fn limits(&self) -> Limits;

    /// Counters as of now, of the pump, the state and the replicas.
    fn stats(&self) -> StackStats;

    /// What all workers performed.
    fn effect_stats(&self) -> EffectStats;

    /// Shows each copy of the state to `look`, as far as its worker has come; of a worker that
    /// joins or has left there is none.
    fn inspect(&self, look: &mut dyn FnMut(&ReplicaState));

    /// A number that differs where two states differ, as good as always: that of the copy that is
    /// farthest.
    fn fingerprint(&self) -> u64 {
        let mut farthest = (0, 0);
        self.inspect(&mut |replica| {
            if replica.applied() >= farthest.0 {
                farthest = (replica.applied(), replica.fingerprint());
            }
        });
        farthest.1
    }

    /// Compares what replicas posted of their states at equal positions of the log. Returns how
    /// many could be compared.
    ///
    /// # Errors
    /// The first position at which two replicas differ, and which ones.
    fn compare(&self) -> Result<usize, Mismatch> {
        Ok(0)
    }

    /// Applies an entry of a recorded log as if it came from the pump, and works until everything
    /// it asks for is done and sent.
    ///
    /// What the application wrote is put into the send rings first; what it had read by then is up
    /// to the caller, who reads through the sockets.
    fn replay(&mut self, entry: &Entry);

    /// The recording so far, which ends with this; `None` without one.
    fn take_recorder(&mut self) -> Option<Recorder>;

    /// Its workers, to be given to threads, and what other threads ask of them.
    fn into_parts(self: Box<Self>) -> Parts;
}

/// A step of a worker, for callers that choose their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TurnStep {
    /// Takes the receive pump for one turn, if it is free.
    Pump,
    /// Claims a batch of frames from the device; only `replicated` has this step by itself, and the
    /// next two.
    Claim,
    /// Parses the batch that it claimed, or an older one whose worker is late.
    Parse,
    /// Publishes what is parsed, and what applications did.
    Publish,
    /// Verifies the checksums of the next request, or of one so far behind it; `locked` does it in
    /// order.
    Prepare(u64),
    /// Applies the next request that is prepared.
    Apply,
    /// Performs what the next applied request asked for, or a part of it.
    Perform,
    /// Takes the transmit pump for one turn, if it is free.
    Send,
    /// The same for one frame; `locked` has a turn of the pump.
    SendOne,
    /// Everything that can be done now, once.
    Turn,
}

/// One thread's part of a variant.
pub trait Worker: Send {
    /// Which of the variant's workers it is: of a group its replica slot.
    fn id(&self) -> usize {
        0
    }

    /// What it is called in reports.
    fn name(&self) -> String;

    /// Everything that can be done now, once. Returns how much that was; 0 means that nothing will
    /// happen before [`next_deadline`](Self::next_deadline) unless a frame, an application or
    /// another worker does something.
    fn turn(&mut self, now: Instant) -> usize;

    /// The latest time for the next [`turn`](Self::turn). Of a pump that another worker holds at
    /// this moment it says nothing: that worker asks after its turn.
    fn next_deadline(&self) -> Instant;

    /// What it has done.
    fn stats(&self) -> WorkerStats;

    /// Requests that are published and that it has not applied; 0 without a log.
    fn lag(&mut self) -> u64 {
        0
    }

    /// What the receive pump saw; `None` while another worker has it.
    fn pump_stats(&self) -> Option<PumpStats>;

    /// Shows the state to `look`, if it has one.
    fn inspect(&self, look: &mut dyn FnMut(&ReplicaState));

    /// Does what other threads asked of it between two turns: it lists connections. Returns whether
    /// it goes on; not once the stack is down, or the worker has left.
    fn attend(&mut self) -> bool;

    /// Posts its counters where other threads read them.
    fn post(&mut self);

    /// Sleeps for a moment if it is likely that several frames come meanwhile. Called when a turn
    /// found nothing to do. Returns whether it did.
    fn rest(&mut self, _now: Instant) -> bool {
        false
    }

    /// Sleeps until there may be something to do; `now` is the time at the call.
    fn wait(&mut self, now: Instant);

    /// Whether another worker can take its place if its thread fails at this moment.
    fn is_replaceable(&self) -> bool {
        false
    }
}

/// A worker that waits for a state, to go on with as a [`Worker`].
pub trait Joining: Send {
    /// The replica slot that it will have.
    fn id(&self) -> usize;

    /// The worker, once it has a state; `None` before.
    fn try_join(&mut self) -> Option<Box<dyn Worker>>;

    /// Sleeps until the state may be there.
    fn wait(&mut self);
}

/// What a variant is made of when it runs on threads.
pub struct Parts {
    /// One for each thread. Those of a group may join and leave later.
    pub workers: Vec<Box<dyn Worker>>,
    /// What any thread may ask of them meanwhile.
    pub handle: Arc<dyn Handle>,
}

/// What other threads ask of a variant while its workers run. What is given here is the answer of
/// those that have no log.
pub trait Handle: Send + Sync {
    /// As [`Variant::compare`].
    ///
    /// # Errors
    /// As [`Variant::compare`].
    fn compare(&self) -> Result<usize, Mismatch> {
        Ok(0)
    }

    /// What was performed in each replica slot so far, by all workers that had it.
    fn shares(&self) -> Vec<EffectStats> {
        Vec::new()
    }

    /// What became of the replicas.
    fn membership_stats(&self) -> MembershipStats {
        MembershipStats::default()
    }

    /// The counters of the log, under this name.
    fn log_stats(&self, _name: String) -> Option<ChannelStats> {
        None
    }

    /// A worker that joins, in this replica slot or in any free one, to be given to a thread.
    ///
    /// # Errors
    /// If there is no log, no slot is free, or no worker is left.
    fn join(&self, _replica: Option<usize>) -> Result<Box<dyn Joining>, MembershipError> {
        Err(MembershipError::NoLog)
    }

    /// Asks a worker to leave, or the one in the last slot. Returns its slot.
    ///
    /// # Errors
    /// If there is no log, no such worker, or it is the last.
    fn leave(&self, _replica: Option<usize>) -> Result<usize, MembershipError> {
        Err(MembershipError::NoLog)
    }

    /// Whether a worker whose thread unwound is to be replaced by one that joins.
    fn replaces_failed(&self) -> bool {
        false
    }

    /// Wakes workers that sleep, but for one that sleeps in the device.
    fn wake_all(&self) {}
}

/// Of a variant without a log and with one worker.
impl Handle for () {}

/// The costly steps of every variant, each by itself, so that it can be measured.
#[cfg(feature = "testkit")]
#[doc(hidden)]
pub mod kernel {
    use dominoes_drivers::Frame;

    use crate::io::{perform, prefetch, prepare};

    /// Asks the processor to fetch `bytes` into its nearest cache; waits for nothing.
    #[inline]
    pub fn prefetch(bytes: &[u8]) {
        prefetch::prefetch(bytes);
    }

    /// Whether the TCP checksum of a frame (Ethernet, IPv4) is right.
    #[inline]
    pub fn verify(frame: &[u8]) -> bool {
        prepare::is_good(frame)
    }

    /// Copies the payload at the end of a frame (Ethernet, IPv4, TCP) to `to` while its TCP
    /// checksum is verified. Returns whether the checksum is right; false if the frame is shorter
    /// than its headers say.
    #[inline]
    pub fn verify_and_copy(frame: &[u8], to: &mut [u8]) -> bool {
        prepare::verify_and_copy(frame, to) == Some(true)
    }

    /// How many of these frames (Ethernet, IPv4), one run, have a right TCP checksum. While one is
    /// summed, the next one is fetched from memory.
    #[inline]
    pub fn verify_all(frames: &[Frame]) -> usize {
        prepare::verdict(frames.iter()).count_ones() as usize
    }

    /// Copies `payload` behind the headers of a frame (Ethernet, IPv4, TCP, none with options; the
    /// TCP checksum field is zero), and stores the TCP checksum.
    ///
    /// # Panics
    /// If the frame is not as long as headers and payload together.
    #[inline]
    pub fn fill(frame: &mut [u8], payload: &[u8]) {
        perform::fill(frame, payload);
    }

    /// Whether the UDP checksum of a frame (Ethernet, IPv4) is right, or its sender computed none.
    #[inline]
    pub fn verify_datagram(frame: &[u8]) -> bool {
        prepare::datagram_is_good(frame)
    }

    /// Copies `payload` behind the headers of a frame (Ethernet, IPv4 without options, UDP), and
    /// stores the UDP checksum.
    ///
    /// # Panics
    /// If the frame is not as long as headers and payload together.
    #[inline]
    pub fn fill_datagram(frame: &mut [u8], payload: &[u8]) {
        perform::fill_datagram(frame, payload);
    }
}
