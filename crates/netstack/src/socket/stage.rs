//! The stage of units: pieces of a stream that any worker processes, between an application and its
//! connection. A [`Codec`] defines the units and how they are processed: TLS records, or the units
//! of a program's processor ([`framed`](super::framed)).

mod receiving;
mod sending;
mod streams;

use core::ops::ControlFlow;
use core::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use dominoes::{TryLock, Watch};

use super::alone::{Alone, TcpView};
use super::half::Half;
use super::poller::{Interest, Target};
use crate::error::SocketError;
use crate::io::stream::{Look, StreamRef};
use crate::io::units::{Owner, Serial, TextBuffer, UnitRing, UnitState, UnitWork};
use crate::log::request::ConnId;

pub(super) use receiving::{OpenUnit, Reader, Receiver};
pub(super) use sending::{SealUnit, Sender};
pub(super) use streams::stream_of_units;

/// The most units of one direction between the writer or reader and the stack. With TLS records
/// this is half a send buffer of the default length.
pub(super) const UNITS: usize = 32;
/// Units that a worker processes before it turns to other work.
const UNITS_PER_TURN: usize = 4;
/// The most bytes at the start of a unit that determine its length.
pub(super) const MAX_HEADER: usize = 32;

/// A kind of units. A stream may change to another codec of the same type.
///
/// Opening and sealing do not modify their input and keep no state between units: any thread may
/// process any unit, and repeat it with the same outcome.
pub(super) trait Codec: Sized + Send + Sync + 'static {
    /// The reason for refusing a unit.
    type Fault: Copy + Send + Sync;
    /// The error of calls on a stream.
    type Error: Clone + PartialEq + Send + From<SocketError>;
    /// Additional state of a connection.
    type Extra: Send + Sync;
    /// Additional state of its reader.
    type Reading: Default;

    /// The content type of the application's text.
    const TEXT: u8;
    /// Text up to this length is sealed by its writer, because handing it to a worker costs more.
    const AT_ONCE: usize;
    /// Units reserved for content other than the application's.
    const CONTROL_UNITS: usize;

    /// Whether this thread may use streams. It may not while it runs code of a codec, because the
    /// receiver or the sender is then taken.
    fn check_caller() -> Result<(), Self::Error> {
        Ok(())
    }

    /// How many bytes at the start of a unit determine its length; at most [`MAX_HEADER`].
    fn header_len(&self) -> usize;

    /// The length of received unit `number`, which begins with `header`, header included. `arrived`
    /// bytes have arrived, at least one; the unit may be longer.
    fn unit_len(&self, number: u64, header: &[u8], arrived: usize) -> Result<usize, Self::Fault>;

    /// The number of the unit after unit `number`, which is `unit_len` bytes long.
    fn next_number(number: u64, _unit_len: usize) -> u64 {
        number + 1
    }

    /// Writes the text of received unit `number` to `text`. Returns its content type and length.
    fn open(&self, number: u64, unit: &[u8], text: &mut [u8]) -> Result<(u8, usize), Self::Fault>;

    /// How many of `len` bytes of text the next unit takes if it has `room` bytes, and the length
    /// of that unit; 0 and 0 if there is no room for it.
    fn fit(&self, len: usize, room: usize) -> Result<(usize, usize), Self::Fault>;

    /// The room with which [`Codec::fit`] takes some bytes of any text.
    fn least_room(&self) -> usize;

    /// Writes unit `number` to `unit`, which has the length that `text` needs.
    fn seal(
        &self,
        number: u64,
        content: u8,
        text: &[u8],
        unit: &mut [u8],
    ) -> Result<(), Self::Fault>;

    /// The error that calls return after a fault.
    fn refused(fault: Self::Fault) -> Self::Error;

    /// How the stream ends for its reader if it ends after a whole unit, or within one.
    fn end_of_stream(is_whole: bool) -> Result<(), Self::Error>;

    /// Called before each unit that the application writes. Returns whether the unit may be made
    /// now (`Continue(true)`); otherwise the writer tries again (`Continue(false)`) or stops
    /// (`Break`).
    fn before_unit(
        _: &Stage<Self>,
        _: &mut Sender<Self>,
        _: &StreamRef<'_>,
    ) -> Result<ControlFlow<(), bool>, Self::Error> {
        Ok(ControlFlow::Continue(true))
    }

    /// Passes the text of the next unit to the reader, with the result of [`Codec::open`].
    fn take(reader: &mut Reader<Self>, content: u8, len: usize) -> Result<(), Self::Fault>;

    /// Called when writing ends, because of a fault in received bytes (`why`), or because the
    /// application ended it.
    fn end(
        stage: &Stage<Self>,
        sender: &mut Sender<Self>,
        stream: &StreamRef<'_>,
        why: Option<Self::Fault>,
    );
}

/// The state shared by the halves of a connection and the workers that process its units.
///
/// *Sending.* A writer copies text into units of `sealing` and fixes the codec, number and offset
/// in the send stream of each. Any thread seals a unit from there into the send ring. The cursor
/// that the pump reads moves over the sealed prefix only (`publish`), so the stack sees bytes of
/// the ring only after they are sealed.
///
/// *Receiving.* The thread that holds the `receiver` finds units in the receive ring and puts them
/// into `opening`. Any thread opens one from the ring into the unit's buffer. The reader takes the
/// opened prefix, and releases a unit's bytes in the ring when it takes the unit.
///
/// Neither direction modifies its input, so a unit whose thread unwinds is processed again.
pub(super) struct Stage<C: Codec> {
    /// The connection, which only this stage reads and writes.
    alone: Alone,
    pub(super) half: Arc<Half>,
    /// The owner of its text buffers.
    owner: Owner,
    pub(super) extra: C::Extra,
    /// Why a unit could not be sealed: neither it nor any later unit is sent.
    failed: OnceLock<C::Fault>,

    sender: Mutex<Sender<C>>,
    pub(super) sealing: UnitRing<SealUnit<C>>,
    publishing: Serial,
    /// As [`Codec::least_room`].
    least_room: usize,
    /// The stream ends after the last unit.
    is_ending: AtomicBool,
    /// The end of the stream has been requested from the stack.
    has_ended: AtomicBool,

    receiver: TryLock<Receiver<C>>,
    pub(super) opening: UnitRing<OpenUnit<C>>,
    /// Whether the reader has text or the end, or is taking a unit that may contain either.
    has_text: AtomicBool,
    /// Notified when the connection has news.
    arrivals: Arc<dyn Watch>,
    /// Whether `arrivals` is registered with the connection.
    is_armed: AtomicBool,
    /// Whether the stage is in its stack's queue.
    is_queued: AtomicBool,
}

impl<C: Codec> Stage<C> {
    /// Begins at the connection's current cursors. `sealing` and `opening` are the codecs of the
    /// two directions, each with the number of its first unit.
    pub(super) fn new(
        alone: Alone,
        extra: C::Extra,
        (sealing, first_sealed): (Arc<C>, u64),
        (opening, first_opened): (&Arc<C>, u64),
    ) -> Result<Arc<Stage<C>>, SocketError> {
        let half = Arc::clone(alone.half());
        let stream = half.stream()?;
        stream.write_units();
        let (read, written) = stream.cursors();
        let least_room = sealing.least_room();
        let receiver = Receiver::new(opening, first_opened, read);
        let mut sender = Sender::new(sealing, first_sealed, written);
        // There are no units after the end of a stream.
        let is_shut = half.writer.with(|is_shut| *is_shut);
        if is_shut {
            sender.over = Some(SocketError::ShutDown.into());
        }
        half.ahead.store(written, Ordering::Relaxed);
        let owner = half.world.units.owner();
        let stage = Arc::new_cyclic(|stage: &Weak<Stage<C>>| Stage {
            alone,
            half,
            owner,
            extra,
            failed: OnceLock::new(),
            sender: Mutex::new(sender),
            sealing: UnitRing::new(UNITS),
            publishing: Serial::default(),
            least_room,
            is_ending: AtomicBool::new(is_shut),
            has_ended: AtomicBool::new(is_shut),
            receiver: TryLock::new(receiver),
            opening: UnitRing::new(UNITS),
            has_text: AtomicBool::new(false),
            arrivals: Arc::new(Arrivals(Weak::clone(stage))),
            is_armed: AtomicBool::new(false),
            is_queued: AtomicBool::new(false),
        });
        let weak: Weak<Stage<C>> = Arc::downgrade(&stage);
        stage.half.world.register_units(weak);
        stage.watch();
        Ok(stage)
    }

    /// The connection, without access to its bytes.
    pub(super) fn view(&self) -> TcpView<'_> {
        self.alone.view(Some(self))
    }

    /// The object that a poller checks.
    pub(super) fn target(self: &Arc<Self>, can: Interest) -> Target {
        let units: Weak<Stage<C>> = Arc::downgrade(self);
        Target::Stream {
            world: Arc::clone(&self.half.world),
            conn: self.half.conn,
            can,
            units: Some(units),
        }
    }

    /// Locks the sender. Applications do so, workers do not.
    pub(super) fn sender(&self) -> MutexGuard<'_, Sender<C>> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves ready units to the workers of the stack. Returns whether there are any.
    pub(super) fn share(self: &Arc<Self>) -> bool {
        let has_ready = self.sealing.has_ready() || self.opening.has_ready();
        if has_ready {
            self.enqueue();
        }
        has_ready
    }

    /// A buffer for text of this connection.
    fn buffer(&self) -> TextBuffer {
        self.half.world.units.buffer(self.owner)
    }

    fn enqueue(self: &Arc<Self>) {
        // ORDERING: AcqRel: Release, pairs with the Acquire in `serve`, which then finds the units.
        if !self.is_queued.swap(true, Ordering::AcqRel) {
            self.half
                .world
                .push_units(Arc::clone(self) as Arc<dyn UnitWork>);
        }
    }

    /// Lets news of the connection queue the stage, and finds units that arrived before.
    fn watch(self: &Arc<Self>) {
        let Ok(stream) = self.half.stream() else {
            return;
        };
        // Usually nothing fired. If this misses that `fire` runs now, the stage is queued again.
        if self.is_armed.load(Ordering::Relaxed) {
            return;
        }
        // ORDERING: AcqRel, pairs with the one in `fire`: the scan sees the arrival that caused it.
        while !self.is_armed.swap(true, Ordering::AcqRel) {
            stream.waiting().watch(&self.arrivals);
            self.scan();
        }
    }

    /// Undoes `watch`.
    fn unwatch(&self) {
        if let Ok(stream) = self.half.stream() {
            stream.waiting().unwatch(&self.arrivals);
        }
    }
}

/// The part of a stage that does not depend on its codec.
pub(super) trait Staged: Send + Sync {
    /// Ends the stream after the last unit.
    fn end_writing(&self);

    /// Whether a read, and a write, would find something, given the state `below` of the
    /// connection.
    fn look(&self, stream: &StreamRef<'_>, below: &Look) -> StageLook;
}

/// Whether calls would have to wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct StageLook {
    pub(super) is_readable: bool,
    pub(super) is_writable: bool,
    /// Whether nothing can be written any more.
    pub(super) is_write_over: bool,
}

impl<C: Codec> Staged for Stage<C> {
    fn end_writing(&self) {
        self.end(None);
    }

    fn look(&self, stream: &StreamRef<'_>, below: &Look) -> StageLook {
        let first = self.opening.first();
        // ORDERING: Acquire fence, pairs with the Release that takes a unit: a thread that does not
        // find the unit sees the flag that its reader stored before.
        fence(Ordering::Acquire);
        let has_more = match first {
            UnitState::Ready | UnitState::Done => true,
            UnitState::Begun => false,
            UnitState::Free => below.is_at_end || self.has_unit(),
        };
        let has_place = self.sealing.len() + C::CONTROL_UNITS < UNITS || self.sealing.has_ready();
        let ahead = self.half.ahead.load(Ordering::Relaxed);
        let is_write_over = self.is_ending.load(Ordering::Relaxed) || self.failed.get().is_some();
        StageLook {
            is_readable: has_more || self.has_text.load(Ordering::Relaxed),
            is_writable: has_place && stream.has_room_behind(ahead, self.least_room),
            is_write_over,
        }
    }
}

impl<C: Codec> Drop for Stage<C> {
    fn drop(&mut self) {
        self.half.world.units.forget(self.owner);
    }
}

/// Shared by both halves of a stream. When the last half is dropped, the connection ends.
pub(super) struct Shared<C: Codec>(pub(super) Arc<Stage<C>>);

impl<C: Codec> Drop for Shared<C> {
    fn drop(&mut self) {
        self.0.unwatch();
        self.0.end(None);
    }
}

/// Queues the stage again if it has more work, also when its worker unwinds.
struct Requeue<'a, C: Codec>(&'a Arc<Stage<C>>);

impl<C: Codec> Drop for Requeue<'_, C> {
    fn drop(&mut self) {
        self.0.share();
    }
}

impl<C: Codec> UnitWork for Stage<C> {
    fn serve(self: Arc<Self>, more: &dyn Fn()) -> usize {
        // ORDERING: AcqRel: Acquire, pairs with the Release in `enqueue`.
        self.is_queued.swap(false, Ordering::AcqRel);
        let requeue = Requeue(&self);
        self.scan();
        self.watch();
        let mut done = 0;
        while done < UNITS_PER_TURN {
            let opening = self.opening.begin();
            let sealing = match opening {
                None => self.sealing.begin(),
                Some(_) => None,
            };
            if (opening.is_some() || sealing.is_some()) && self.share() {
                more();
            }
            match (opening, sealing) {
                (Some(unit), _) => self.open(unit, true),
                (None, Some(unit)) => self.seal(unit, true),
                (None, None) => break,
            }
            done += 1;
        }
        drop(requeue);
        done
    }

    fn finish(self: Arc<Self>) -> Option<(u16, ConnId)> {
        self.end(None);
        Some((self.half.world.group, self.half.stream().ok()?.conn()))
    }
}

/// Notified when a connection has news.
struct Arrivals<C: Codec>(Weak<Stage<C>>);

impl<C: Codec> Watch for Arrivals<C> {
    fn is_due(&self) -> bool {
        self.0.upgrade().is_none_or(|stage| stage.has_unit())
    }

    fn fire(self: Arc<Self>) {
        if let Some(stage) = self.0.upgrade() {
            // ORDERING: AcqRel, pairs with the one in `watch`.
            stage.is_armed.swap(false, Ordering::AcqRel);
            stage.enqueue();
        }
    }
}

impl<C: Codec> core::fmt::Debug for Arrivals<C> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Arrivals").finish_non_exhaustive()
    }
}

impl<C: Codec> core::fmt::Debug for Stage<C> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Stage")
            .field("sealing", &self.sealing.len())
            .field("opening", &self.opening.len())
            .finish_non_exhaustive()
    }
}
