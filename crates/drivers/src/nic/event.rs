//! Events of the firmware, and the registers in which they wait.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};

use crate::Waker;

/// What the firmware handles. The lower the number, the higher the priority.
///
/// The first four are raised by hardware, the others by handlers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Event {
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
    /// Send descriptors have been fetched; the frames they describe are to be.
    SendDataReady,
    /// The consumer index of the send ring is to be passed to the driver.
    UpdateSendConsumer,
    /// The driver has produced receive descriptors.
    ReceiveDescriptorsReady,
    /// The producer index of the return ring is to be passed to the driver.
    UpdateReturnProducer,
}

impl Event {
    /// How many there are.
    pub const COUNT: usize = 9;

    /// All of them, in the order of their priority.
    pub const ALL: [Event; Event::COUNT] = [
        Event::Mailbox,
        Event::DmaReadComplete,
        Event::DmaWriteComplete,
        Event::ReceiveComplete,
        Event::SendDescriptorsReady,
        Event::SendDataReady,
        Event::UpdateSendConsumer,
        Event::ReceiveDescriptorsReady,
        Event::UpdateReturnProducer,
    ];

    /// Its name in words.
    pub const fn name(self) -> &'static str {
        match self {
            Event::Mailbox => "mailbox",
            Event::DmaReadComplete => "DMA read complete",
            Event::DmaWriteComplete => "DMA write complete",
            Event::ReceiveComplete => "receive complete",
            Event::SendDescriptorsReady => "send BD ready",
            Event::SendDataReady => "send data ready",
            Event::UpdateSendConsumer => "update send consumer",
            Event::ReceiveDescriptorsReady => "receive BD ready",
            Event::UpdateReturnProducer => "update receive return producer",
        }
    }

    const fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// A bit for each event that has occurred and that no processor has begun to handle.
#[derive(Debug, Default)]
pub(crate) struct EventRegister {
    bits: AtomicU32,
    /// The processors that poll it, the one that is to be woken first before the others.
    sleepers: OnceLock<Vec<Sleeper>>,
}

/// A processor that sleeps while no event occurs.
#[derive(Debug)]
pub(crate) struct Sleeper {
    sleeping: AtomicBool,
    waker: Waker,
}

impl Sleeper {
    pub(crate) fn new(waker: Waker) -> Self {
        Self {
            sleeping: AtomicBool::new(false),
            waker,
        }
    }
}

impl EventRegister {
    /// Names the processors that are woken. Only the first call counts.
    pub(crate) fn set_sleepers(&self, sleepers: Vec<Sleeper>) {
        let _ = self.sleepers.set(sleepers);
    }

    /// Sets the bit of an event. Whatever the caller wrote before, the handler reads.
    #[inline]
    pub(crate) fn raise(&self, event: Event) {
        // ORDERING: SeqCst, here and in `sleep`: either this sees that a processor sleeps, or that
        // sees the bit before it does.
        self.bits.fetch_or(event.bit(), SeqCst);
        self.wake();
    }

    /// Wakes a processor, if all of them sleep or the first does.
    pub(crate) fn wake(&self) {
        let sleepers = self.sleepers.get().map_or(&[][..], Vec::as_slice);
        let asleep = sleepers
            .iter()
            .find(|sleeper| sleeper.sleeping.load(SeqCst));
        if let Some(sleeper) = asleep {
            sleeper.waker.wake();
        }
    }

    /// Clears the bit of the event of highest priority among those in `mask`, and names the event.
    #[inline]
    pub(crate) fn take(&self, mask: u32) -> Option<Event> {
        loop {
            let bits = self.bits.load(SeqCst) & mask;
            let event = *Event::ALL.get(bits.trailing_zeros() as usize)?;
            // Another processor may have taken it meanwhile.
            if self.bits.fetch_and(!event.bit(), SeqCst) & event.bit() != 0 {
                return Some(event);
            }
        }
    }

    /// Whether any bit is set.
    pub(crate) fn is_set(&self) -> bool {
        self.bits.load(SeqCst) != 0
    }

    /// Announces that processor `index` of this register sleeps, and calls `wait` unless an event
    /// has occurred.
    pub(crate) fn sleep<T>(&self, index: usize, wait: impl FnOnce() -> T) -> Option<T> {
        let sleeper = self.sleepers.get()?.get(index)?;
        sleeper.sleeping.store(true, SeqCst);
        let result = (!self.is_set()).then(wait);
        sleeper.sleeping.store(false, SeqCst);
        result
    }
}

/// A mask of one event, for [`EventRegister::take`].
pub(crate) const fn mask(event: Event) -> u32 {
    event.bit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_taken_by_priority_and_once() {
        let register = EventRegister::default();
        for event in [Event::SendDataReady, Event::Mailbox, Event::SendDataReady] {
            register.raise(event);
        }
        assert_eq!(
            register.take(!mask(Event::Mailbox)),
            Some(Event::SendDataReady)
        );
        assert_eq!(register.take(!0), Some(Event::Mailbox));
        assert_eq!(register.take(!0), None);
        for (number, event) in Event::ALL.into_iter().enumerate() {
            assert_eq!(event as usize, number);
        }
    }
}
