//! The stage of units: pieces of a stream that any worker processes, between an application and
//! its connection. What a unit is, and what is done to it, is a [`Codec`]'s: records of TLS, or
//! units of a program's own ([`framed`](super::framed)).

mod receiving;
mod sending;
mod streams;

use core::ops::ControlFlow;
use core::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use dominoes::{Exclusive, Watch};

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

/// Units of one direction that may be under way between writer or reader and the stack: with
/// records of TLS half a send buffer of the default length.
pub(super) const UNITS: usize = 32;
/// Units that a worker processes before it goes on with other work.
const UNITS_PER_TURN: usize = 4;
/// The most bytes of a unit's beginning by which its length is found.
pub(super) const MAX_HEADER: usize = 32;

/// What units are, and what is done to them. A stream may go on with another codec of its kind.
///
/// Opening and sealing leave what they read as it is, and keep nothing from one unit to the next:
/// any thread may do any unit, and do it again with the same outcome.
pub(super) trait Codec: Sized + Send + Sync + 'static {
    /// Why a unit is refused.
    type Fault: Copy + Send + Sync;
    /// What calls return.
    type Error: Clone + PartialEq + Send + From<SocketError>;
    /// What a connection has besides what all have.
    type Extra: Send + Sync;
    /// What its reader has besides.
    type Reading: Default;

    /// The content type of the application's text.
    const TEXT: u8;
    /// Text that is no longer is sealed by its writer: handing it over costs more.
    const AT_ONCE: usize;
    /// Units that are left to other content than the application's.
    const CONTROL_UNITS: usize;

    /// Whether this thread may use streams. It may not while it is in a codec, which is called
    /// while the receiver or the sender is taken.
    fn check_caller() -> Result<(), Self::Error> {
        Ok(())
    }

    /// How many bytes of a unit's beginning say how long it is; at most [`MAX_HEADER`].
    fn header_len(&self) -> usize;

    /// How long the received unit is that begins with `header`, which is included. So many bytes
    /// have `arrived`, at least one; the unit may be longer.
    fn unit_len(&self, header: &[u8], arrived: usize) -> Result<usize, Self::Fault>;

    /// The number of the unit behind one that has `number` and is `unit_len` bytes long.
    fn next_number(number: u64, _unit_len: usize) -> u64 {
        number + 1
    }

    /// Writes the text of received unit `number` to `text`. Returns its content type and length.
    fn open(&self, number: u64, unit: &[u8], text: &mut [u8]) -> Result<(u8, usize), Self::Fault>;

    /// How long the unit of so much text is.
    fn sealed_len(&self, text_len: usize) -> usize;

    /// How much of `len` bytes of text the next unit takes, if it finds `room` bytes; 0: none.
    fn fit(&self, len: usize, room: usize) -> usize;

    /// How many bytes of room let [`Codec::fit`] take some of any text.
    fn least_room(&self) -> usize;

    /// Makes unit `number`, which is [`Codec::sealed_len`] long.
    fn seal(
        &self,
        number: u64,
        content: u8,
        text: &[u8],
        unit: &mut [u8],
    ) -> Result<(), Self::Fault>;

    /// What calls return after a fault.
    fn refused(fault: Self::Fault) -> Self::Error;

    /// How the stream ends for its reader if it ends behind a whole unit, or within one.
    fn end_of_stream(is_whole: bool) -> Result<(), Self::Error>;

    /// Called before each unit that the application writes; `is_first`: of this call. Returns
    /// whether it may be made now; if not, the writer looks again, or makes no more units.
    fn before_unit(
        _: &Stage<Self>,
        _: &mut Sender<Self>,
        _: &StreamRef<'_>,
        _is_first: bool,
    ) -> Result<ControlFlow<(), bool>, Self::Error> {
        Ok(ControlFlow::Continue(true))
    }

    /// The reader takes text of the next unit, as [`Codec::open`] returned it.
    fn take(reader: &mut Reader<Self>, content: u8, len: usize) -> Result<(), Self::Fault>;

    /// Nothing more will be written, because of a fault of what was received, or because the
    /// application says so.
    fn end(
        stage: &Stage<Self>,
        sender: &mut Sender<Self>,
        stream: &StreamRef<'_>,
        why: Option<Self::Fault>,
    );
}

/// What the halves of a connection and the workers that process its units share.
///
/// *Sending.* A writer copies text into units of `sealing` and fixes for each its codec, its
/// number and its place in the send stream. Any thread seals it from there into the send ring.
/// The cursor that the pump reads moves over the sealed prefix only (`publish`), so the ring's
/// bytes become visible to the stack as sealed or not at all.
///
/// *Receiving.* Whichever thread has the `receiver` finds units in the receive ring and puts them
/// into `opening`. Any thread opens one from the ring into its buffer. The reader takes the opened
/// prefix, and gives the ring's bytes up when it takes a unit.
///
/// Neither changes what it reads, so a unit whose thread unwinds is begun anew.
pub(super) struct Stage<C: Codec> {
    /// Its only owner reads and writes the connection.
    alone: Alone,
    pub(super) half: Arc<Half>,
    /// Of its text.
    owner: Owner,
    pub(super) extra: C::Extra,
    /// Why a unit could not be sealed: nothing of it or behind it is sent.
    failed: OnceLock<C::Fault>,

    sender: Mutex<Sender<C>>,
    pub(super) sealing: UnitRing<SealUnit<C>>,
    publishing: Serial,
    /// As [`Codec::least_room`].
    least_room: usize,
    /// The stream ends behind the last unit.
    is_ending: AtomicBool,
    /// The stack was told so.
    has_ended: AtomicBool,

    receiver: Exclusive<Receiver<C>>,
    pub(super) opening: UnitRing<OpenUnit<C>>,
    /// Whether the reader has text, or the end, or is taking a unit that may contain one of them.
    has_text: AtomicBool,
    /// What the connection's news calls.
    arrivals: Arc<dyn Watch>,
    /// Whether it is called.
    is_armed: AtomicBool,
    /// Whether the stage is in the queue of its stack.
    is_queued: AtomicBool,
}

impl<C: Codec> Stage<C> {
    /// Begins at the present cursors of the connection. `sealing` and `opening` are the codecs of
    /// the two directions, each with the number of its first unit.
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
        // A stream has no units after its end.
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
            receiver: Exclusive::new(receiver),
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

    /// The connection, without its bytes.
    pub(super) fn view(&self) -> TcpView<'_> {
        self.alone.view(Some(self))
    }

    /// For pollers.
    pub(super) fn target(self: &Arc<Self>, can: Interest) -> Target {
        let units: Weak<Stage<C>> = Arc::downgrade(self);
        Target::Stream {
            world: Arc::clone(&self.half.world),
            conn: self.half.conn,
            can,
            units: Some(units),
        }
    }

    /// Applications take it, workers do not.
    pub(super) fn sender(&self) -> MutexGuard<'_, Sender<C>> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves units that are ready to the workers of the stack. Returns whether there are any.
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

    /// Lets news of the connection put it into the queue, and looks for units that came before.
    fn watch(self: &Arc<Self>) {
        let Ok(stream) = self.half.stream() else {
            return;
        };
        // ORDERING: AcqRel, pairs with the one in `fire`: the look comes after what that was for.
        while !self.is_armed.swap(true, Ordering::AcqRel) {
            stream.waiting().watch(&self.arrivals);
            self.scan();
        }
    }

    /// Takes back what `watch` did.
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

    /// Whether a read, and a write, would find something, if the connection below looks like this.
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
        // ORDERING: Acquire fence, pairs with the Release by which a unit is taken: a thread that
        // does not find the unit finds the flag that its reader stored before.
        fence(Ordering::Acquire);
        let has_more = match first {
            UnitState::Ready | UnitState::Done => true,
            UnitState::Claimed => false,
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

/// What both halves of a stream share. When the last of them goes, the connection ends.
pub(super) struct Shared<C: Codec>(pub(super) Arc<Stage<C>>);

impl<C: Codec> Drop for Shared<C> {
    fn drop(&mut self) {
        self.0.unwatch();
        self.0.end(None);
    }
}

/// Puts a stage that has more to do back into the queue, also when its worker unwinds.
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
            let opening = self.opening.claim();
            let sealing = match opening {
                None => self.sealing.claim(),
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

/// Called when a connection has news.
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
