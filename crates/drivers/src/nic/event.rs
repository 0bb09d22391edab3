//! Events of the firmware, and the registers that hold them.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};

use crate::DeviceWaker;

/// An event that the firmware handles. A lower number means a higher priority.
///
/// Hardware raises the first four, handlers the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum NicEvent {
    /// The driver has written a mailbox register.
    Mailbox,
    /// A transfer from the host's memory is done.
    DmaReadComplete,
    /// A transfer to the host's memory is done.
    DmaWriteComplete,
    /// A frame has arrived from the wire.
    ReceiveComplete,
    /// The driver has produced send descriptors.
    SendDescriptorsReady,
    /// Send descriptors have been fetched; their frames have not.
    SendDataReady,
    /// The driver needs the new consumer index of the send ring.
    UpdateSendConsumer,
    /// The driver has produced receive descriptors.
    ReceiveDescriptorsReady,
    /// The driver needs the new producer index of the return ring.
    UpdateReturnProducer,
}

impl NicEvent {
    /// Number of events.
    pub const COUNT: usize = 9;

    /// All events, in order of priority.
    pub const ALL: [NicEvent; NicEvent::COUNT] = [
        NicEvent::Mailbox,
        NicEvent::DmaReadComplete,
        NicEvent::DmaWriteComplete,
        NicEvent::ReceiveComplete,
        NicEvent::SendDescriptorsReady,
        NicEvent::SendDataReady,
        NicEvent::UpdateSendConsumer,
        NicEvent::ReceiveDescriptorsReady,
        NicEvent::UpdateReturnProducer,
    ];

    /// Its name in words.
    pub const fn name(self) -> &'static str {
        match self {
            NicEvent::Mailbox => "mailbox",
            NicEvent::DmaReadComplete => "DMA read complete",
            NicEvent::DmaWriteComplete => "DMA write complete",
            NicEvent::ReceiveComplete => "receive complete",
            NicEvent::SendDescriptorsReady => "send BD ready",
            NicEvent::SendDataReady => "send data ready",
            NicEvent::UpdateSendConsumer => "update send consumer",
            NicEvent::ReceiveDescriptorsReady => "receive BD ready",
            NicEvent::UpdateReturnProducer => "update receive return producer",
        }
    }

    const fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// One bit for each event that has occurred and that no processor has begun to handle.
#[derive(Debug, Default)]
pub(crate) struct EventRegister {
    bits: AtomicU32,
    /// The processors that poll this register, in the order in which they are woken.
    sleepers: OnceLock<Vec<CardSleeper>>,
}

/// A processor that sleeps while no event occurs.
#[derive(Debug)]
pub(crate) struct CardSleeper {
    sleeping: AtomicBool,
    waker: DeviceWaker,
}

impl CardSleeper {
    pub(crate) fn new(waker: DeviceWaker) -> Self {
        Self {
            sleeping: AtomicBool::new(false),
            waker,
        }
    }
}

impl EventRegister {
    /// Sets the processors to wake. Only the first call has an effect.
    pub(crate) fn set_sleepers(&self, sleepers: Vec<CardSleeper>) {
        let _ = self.sleepers.set(sleepers);
    }

    /// Sets the bit of an event. The handler sees all earlier writes of the caller.
    #[inline]
    pub(crate) fn raise(&self, event: NicEvent) {
        // ORDERING: SeqCst, here and in `sleep`: either this thread sees that a processor sleeps,
        // or the processor sees the bit before it sleeps.
        self.bits.fetch_or(event.bit(), SeqCst);
        self.wake();
    }

    /// Wakes the first processor that sleeps, if any does.
    pub(crate) fn wake(&self) {
        let sleepers = self.sleepers.get().map_or(&[][..], Vec::as_slice);
        let asleep = sleepers
            .iter()
            .find(|sleeper| sleeper.sleeping.load(SeqCst));
        if let Some(sleeper) = asleep {
            sleeper.waker.wake();
        }
    }

    /// Clears the bit of the highest-priority event in `mask`, and returns the event.
    #[inline]
    pub(crate) fn take(&self, mask: u32) -> Option<NicEvent> {
        loop {
            let bits = self.bits.load(SeqCst) & mask;
            let event = *NicEvent::ALL.get(bits.trailing_zeros() as usize)?;
            // Another processor may have taken the event meanwhile.
            if self.bits.fetch_and(!event.bit(), SeqCst) & event.bit() != 0 {
                return Some(event);
            }
        }
    }

    /// Whether any bit is set.
    pub(crate) fn is_set(&self) -> bool {
        self.bits.load(SeqCst) != 0
    }

    /// Marks processor `index` of this register as asleep, and calls `wait` if no event has
    /// occurred.
    pub(crate) fn sleep<T>(&self, index: usize, wait: impl FnOnce() -> T) -> Option<T> {
        let sleeper = self.sleepers.get()?.get(index)?;
        sleeper.sleeping.store(true, SeqCst);
        let result = (!self.is_set()).then(wait);
        sleeper.sleeping.store(false, SeqCst);
        result
    }
}

/// A mask with one event, for [`EventRegister::take`].
pub(crate) const fn mask(event: NicEvent) -> u32 {
    event.bit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_taken_by_priority_and_once() {
        let register = EventRegister::default();
        for event in [
            NicEvent::SendDataReady,
            NicEvent::Mailbox,
            NicEvent::SendDataReady,
        ] {
            register.raise(event);
        }
        assert_eq!(
            register.take(!mask(NicEvent::Mailbox)),
            Some(NicEvent::SendDataReady)
        );
        assert_eq!(register.take(!0), Some(NicEvent::Mailbox));
        assert_eq!(register.take(!0), None);
        for (number, event) in NicEvent::ALL.into_iter().enumerate() {
            assert_eq!(event as usize, number);
        }
    }
}
