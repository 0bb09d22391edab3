//! Processors of the card: which handlers each one runs, and the loop that dispatches events.

use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::event::{NicEvent, mask};
use super::firmware::{Arrival, Inspect, ReceiveHalf, SendHalf};
use super::memory::CardShared;

/// How the handlers are distributed over processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Firmware {
    /// One processor runs all handlers.
    #[default]
    Uniprocessor,
    /// Processor A runs Mailbox, DMA Write Complete, Receive Complete and Update Return Producer,
    /// processor B the others, without mutual exclusion (Kim, Pai and Rixner, *Exploiting
    /// task-level concurrency in a programmable network interface*, PPoPP 2003, section 4.2).
    Partitioned,
    /// This many processors, at least 1, each run any handler; a lock for each half of the
    /// firmware keeps them apart (section 7 of that paper).
    Dynamic(usize),
    /// As [`Dynamic`](Self::Dynamic), and several processors run Receive Complete at the same
    /// time, each with different frames.
    Copies(usize),
}

impl Firmware {
    /// Number of processors.
    pub fn processors(self) -> usize {
        match self {
            Firmware::Uniprocessor => 1,
            Firmware::Partitioned => 2,
            Firmware::Dynamic(count) | Firmware::Copies(count) => count.max(1),
        }
    }

    /// The event register of each event. Each processor has one register, except in dynamic
    /// partitions, where one serves all.
    pub(crate) fn register_of(self) -> [usize; NicEvent::COUNT] {
        NicEvent::ALL.map(|event| {
            let on_b = matches!(
                event,
                NicEvent::DmaReadComplete
                    | NicEvent::SendDescriptorsReady
                    | NicEvent::SendDataReady
                    | NicEvent::ReceiveDescriptorsReady
                    | NicEvent::UpdateSendConsumer
            );
            usize::from(on_b && self == Firmware::Partitioned)
        })
    }
}

/// Counts of a processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Profile {
    /// Number of runs of each handler, indexed by [`NicEvent`].
    pub runs: [u64; NicEvent::COUNT],
    /// Total run time of each handler in nanoseconds; 0 unless
    /// [`NicConfig::profile`](super::NicConfig::profile) is set.
    pub nanos: [u64; NicEvent::COUNT],
    /// How often a handler was postponed because another processor had the half that it needs.
    pub contended: u64,
}

impl Profile {
    /// The sum of two profiles.
    pub fn merged(mut self, other: &Profile) -> Profile {
        for (sum, runs) in self.runs.iter_mut().zip(other.runs) {
            *sum += runs;
        }
        for (sum, nanos) in self.nanos.iter_mut().zip(other.nanos) {
            *sum += nanos;
        }
        self.contended += other.contended;
        self
    }
}

/// One step of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CardStep {
    /// The processor handles an event.
    Dispatch,
    /// A transfer of the DMA read channel.
    DmaRead,
    /// A transfer of the DMA write channel.
    DmaWrite,
    /// The MAC sends a frame.
    MacTransmit,
    /// The MAC receives a frame.
    MacReceive,
}

impl CardStep {
    /// All steps.
    pub const ALL: [CardStep; 5] = [
        CardStep::Dispatch,
        CardStep::DmaRead,
        CardStep::DmaWrite,
        CardStep::MacTransmit,
        CardStep::MacReceive,
    ];
}

/// A processor's access to one half of the firmware.
pub(crate) enum CardHalf<T> {
    Own(Box<T>),
    Shared(Arc<Mutex<T>>),
    /// Only another processor has it.
    Elsewhere,
}

/// Another processor is using the half.
struct Contended;

impl<T> CardHalf<T> {
    /// Calls `f` with the half. `None` if it is [`Elsewhere`](Self::Elsewhere).
    fn with<R>(&mut self, f: impl FnOnce(&mut T) -> R) -> Option<Result<R, Contended>> {
        match self {
            CardHalf::Own(half) => Some(Ok(f(half))),
            CardHalf::Shared(half) => Some(match half.try_lock() {
                Ok(mut half) => Ok(f(&mut half)),
                // A panic in a handler ends its card.
                Err(TryLockError::Poisoned(half)) => Ok(f(&mut half.into_inner())),
                Err(TryLockError::WouldBlock) => Err(Contended),
            }),
            CardHalf::Elsewhere => None,
        }
    }

    /// As [`with`](Self::with), but waits while another processor uses the half.
    fn with_waiting<R>(&mut self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        match self {
            CardHalf::Own(half) => Some(f(half)),
            CardHalf::Shared(half) => {
                let mut half = half.lock().unwrap_or_else(PoisonError::into_inner);
                Some(f(&mut half))
            }
            CardHalf::Elsewhere => None,
        }
    }
}

/// Most transfers or frames that a hardware unit moves per turn of its processor.
const TURN: usize = 32;
/// Sleep of a processor that waits for the wire or the host to take something; no event reports it.
const POLL_INTERVAL: Duration = Duration::from_micros(100);
/// How often a sleeping processor checks whether its wire, which was down, came up.
const SLEEP: Duration = Duration::from_millis(100);

/// A processor of a card, with the halves of the firmware and the hardware units that it controls.
pub struct CardProcessor {
    pub(crate) shared: Arc<CardShared>,
    pub(crate) firmware: Firmware,
    /// Its register, and its index among the processors that poll it.
    pub(crate) register: usize,
    pub(crate) place: usize,
    pub(crate) send: CardHalf<SendHalf>,
    pub(crate) receive: CardHalf<ReceiveHalf>,
    pub(crate) inspect: Option<Inspect>,
    pub(crate) is_profiled: bool,
    pub(crate) profile: Profile,
    pub(crate) arrivals: Vec<Arrival>,
    /// In the last turn, another processor was using a hardware unit that this one needed.
    pub(crate) was_contended: bool,
}

impl CardProcessor {
    /// Counts of this processor so far.
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// Whether it has the receiving half, alone or shared.
    pub(crate) fn commands_receiving(&self) -> bool {
        !matches!(self.receive, CardHalf::Elsewhere)
    }

    /// Performs one step. Returns whether there was work.
    pub fn step(&mut self, step: CardStep) -> bool {
        if step == CardStep::Dispatch {
            return self.dispatch(!0).is_some();
        }
        self.hardware(step, 1) > 0
    }

    /// Handles pending events and runs the hardware units. Returns the amount of work done; 0
    /// means that nothing will happen until the driver, the wire or another processor acts.
    pub fn turn(&mut self) -> usize {
        self.was_contended = false;
        let mut done = self.hardware(CardStep::MacReceive, TURN);
        // Handlers raise further events. Handle a limited number now and the rest in the next turn.
        let mut left = !0;
        for _ in 0..2 * NicEvent::COUNT {
            match self.dispatch(left) {
                Some(Ok(())) => done += 1,
                Some(Err(event)) => left &= !mask(event),
                None => break,
            }
        }
        for step in [CardStep::DmaRead, CardStep::DmaWrite, CardStep::MacTransmit] {
            done += self.hardware(step, TURN);
        }
        done
    }

    /// Runs a hardware unit, if this processor has it and no other one is using it.
    fn hardware(&mut self, step: CardStep, max: usize) -> usize {
        let done = match step {
            CardStep::Dispatch => None,
            CardStep::DmaRead => self.send.with(|half| half.dma_read(max)),
            CardStep::MacTransmit => self.send.with(|half| half.mac_transmit(max)),
            CardStep::DmaWrite => self.receive.with(|half| half.dma_write(max)),
            CardStep::MacReceive => self.receive.with(|half| half.mac_receive(max)),
        };
        self.was_contended |= matches!(done, Some(Err(Contended)));
        done.and_then(Result::ok).unwrap_or(0)
    }

    /// Handles the highest-priority event in `among`. An error returns an event that could not be
    /// handled because another processor was using its half; the event is raised again.
    fn dispatch(&mut self, among: u32) -> Option<Result<(), NicEvent>> {
        let event = self.shared.registers[self.register].take(among)?;
        let begin = self.is_profiled.then(now);
        let handled = self.handle(event);
        if let Some(begin) = begin {
            self.profile.nanos[event as usize] += begin.elapsed().as_nanos() as u64;
        }
        if handled.is_err() {
            self.profile.contended += 1;
            self.shared.raise(event);
            return Some(Err(event));
        }
        self.profile.runs[event as usize] += 1;
        Some(Ok(()))
    }

    fn handle(&mut self, event: NicEvent) -> Result<(), Contended> {
        let (send, receive) = (&mut self.send, &mut self.receive);
        let handled = match event {
            NicEvent::Mailbox => {
                self.mailbox();
                return Ok(());
            }
            NicEvent::DmaReadComplete => send.with(SendHalf::dma_read_complete),
            NicEvent::SendDescriptorsReady => send.with(SendHalf::send_descriptors_ready),
            NicEvent::ReceiveDescriptorsReady => send.with(SendHalf::receive_descriptors_ready),
            NicEvent::SendDataReady => send.with(SendHalf::send_data_ready),
            NicEvent::UpdateSendConsumer => return self.update_send_consumer(),
            NicEvent::DmaWriteComplete => receive.with(ReceiveHalf::dma_write_complete),
            NicEvent::UpdateReturnProducer => receive.with(ReceiveHalf::update_return_producer),
            NicEvent::ReceiveComplete => return self.receive_complete(),
        };
        handled.unwrap_or(Ok(()))
    }

    /// Reads the mailbox registers, and raises the events for what the driver has produced.
    fn mailbox(&mut self) {
        let shared = &self.shared;
        for (mailbox, producer, event) in [
            (
                &shared.send_mailbox,
                &shared.send_producer,
                NicEvent::SendDescriptorsReady,
            ),
            (
                &shared.receive_mailbox,
                &shared.receive_producer,
                NicEvent::ReceiveDescriptorsReady,
            ),
        ] {
            let index = mailbox.load();
            if index != producer.load() {
                producer.store(index);
                shared.raise(event);
            }
        }
    }

    /// On one processor the index goes through the DMA write channel. With several processors that
    /// channel belongs to the other half, so the index is left in a register that the driver reads.
    fn update_send_consumer(&mut self) -> Result<(), Contended> {
        let shared = &self.shared;
        let firmware = self.firmware;
        let index = self.send.with(|half| {
            let index = half.update_send_consumer();
            if firmware != Firmware::Uniprocessor {
                shared.send_consumer.store(index);
            }
            index
        });
        let index = index.unwrap_or(Err(Contended))?;
        if firmware == Firmware::Uniprocessor {
            self.receive.with(|half| half.write_send_consumer(index));
        }
        Ok(())
    }

    fn receive_complete(&mut self) -> Result<(), Contended> {
        let CardProcessor {
            receive,
            arrivals,
            inspect,
            firmware,
            ..
        } = self;
        let inspect = inspect.as_ref();
        if !matches!(firmware, Firmware::Copies(_)) {
            let handled = receive.with(|half| half.receive_complete(inspect));
            return handled.unwrap_or(Ok(()));
        }
        receive
            .with(|half| half.begin_receive(arrivals))
            .unwrap_or(Ok(()))?;
        if let Some(inspect) = inspect {
            for arrival in &mut *arrivals {
                arrival.inspect(inspect);
            }
        }
        receive.with_waiting(|half| half.finish_receive(arrivals));
        Ok(())
    }

    /// Runs until the card is switched off, then finishes pending work.
    pub(crate) fn run(&mut self) {
        // ORDERING: Relaxed; `Shared::end` sets the flag and wakes this thread.
        while !self.shared.over.load(std::sync::atomic::Ordering::Relaxed) {
            if self.turn() == 0 {
                self.sleep();
            }
        }
        let deadline = now() + SLEEP;
        while self.turn() > 0 && now() < deadline {}
    }

    /// Sleeps until an event occurs.
    fn sleep(&mut self) {
        if self.shared.registers[self.register].is_set() {
            // Another processor is using the half that the event needs.
            return std::thread::yield_now();
        }
        if self.was_contended {
            // The first processor may be waiting for the wire with the half that this one needs.
            self.shared.registers[self.register].wake();
            return std::thread::yield_now();
        }
        // A processor that is using a half is awake, and checks this itself.
        let is_blocked = self.send.with(|half| half.has_backlog());
        let is_full = self.receive.with(|half| !half.has_room());
        if [is_blocked, is_full]
            .iter()
            .any(|state| matches!(state, Some(Ok(true))))
        {
            return std::thread::sleep(POLL_INTERVAL);
        }
        let CardProcessor {
            shared,
            receive,
            register,
            place,
            ..
        } = self;
        // The first processor waits for the wire, if it has the receiving half.
        let waits_for_wire = *place == 0;
        let waited = shared.registers[*register].sleep(*place, || {
            let waited = waits_for_wire.then(|| receive.with_waiting(|half| half.wait(SLEEP)));
            match waited.flatten() {
                None => {
                    std::thread::park_timeout(SLEEP);
                    Ok(())
                }
                Some(waited) => waited,
            }
        });
        if let Some(Err(error)) = waited {
            shared.report(error);
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

impl std::fmt::Debug for CardProcessor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CardProcessor")
            .field("firmware", &self.firmware)
            .field("register", &self.register)
            .field("profile", &self.profile)
            .finish_non_exhaustive()
    }
}

fn now() -> Instant {
    Instant::now()
}
