//! State that host and card share: mailboxes, indices, event registers.

use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crossbeam_utils::CachePadded;

use super::event::{EventRegister, NicEvent};
use crate::waker;
use crate::{DeviceError, TxMeta};

/// The first index of every ring, close to the end of the number range so that every run wraps.
pub(crate) const FIRST: u32 = u32::MAX - 63;

/// A producer or consumer index of a ring. One side writes it; others may read an old value.
#[derive(Debug)]
pub(crate) struct Index(CachePadded<AtomicU32>);

impl Default for Index {
    fn default() -> Self {
        Index(CachePadded::new(AtomicU32::new(FIRST)))
    }
}

impl Index {
    /// Publishes the entries before `index`.
    #[inline]
    pub(crate) fn store(&self, index: u32) {
        // ORDERING: Release, so that a reader of the index sees the entries before it.
        self.0.store(index, Release);
    }

    #[inline]
    pub(crate) fn load(&self) -> u32 {
        // ORDERING: Acquire, for the same reason.
        self.0.load(Acquire)
    }
}

/// A frame to send, as described by the driver. It contains the buffer instead of its address.
#[derive(Debug)]
pub(crate) struct SendDescriptor {
    pub(crate) buffer: Box<[u8]>,
    pub(crate) len: usize,
    pub(crate) meta: TxMeta,
}

/// State that several processors, or the host and the card, read and write.
#[derive(Debug)]
pub(crate) struct CardShared {
    /// One register per processor, or one for all of them.
    pub(crate) registers: Box<[EventRegister]>,
    /// The index of each event's register.
    pub(crate) register_of: [usize; NicEvent::COUNT],
    /// Mailbox registers: the driver's producer indices of the send and the receive ring.
    pub(crate) send_mailbox: Index,
    pub(crate) receive_mailbox: Index,
    /// The three variables that the two processors of the partition share. Each is written by one
    /// handler. This one is the producer index of the driver's send ring: from Mailbox to Send
    /// Descriptors Ready.
    pub(crate) send_producer: Index,
    /// The producer index of the driver's receive ring: from Mailbox to Receive Descriptors Ready.
    pub(crate) receive_producer: Index,
    /// The producer index of the card's copy of the receive ring: from DMA Read Complete to
    /// Receive Complete.
    pub(crate) local_receive_producer: Index,
    /// The consumer index of the send ring: in the host's memory, or in a register of the card
    /// that the driver reads.
    pub(crate) send_consumer: Index,
    /// The producer index of the return ring, in the host's memory.
    pub(crate) return_producer: Index,
    /// The card's interrupt line to the host.
    pub(crate) interrupt: waker::Event,
    /// The driver's receiving half is dropped.
    pub(crate) receiver_gone: AtomicBool,
    /// The card must finish its work and stop.
    pub(crate) over: AtomicBool,
    /// Frames that were too long for a receive buffer.
    pub(crate) truncated: AtomicU64,
    /// Frames that the wire did not take because it was down or gone.
    pub(crate) unsent: AtomicU64,
    trouble: Mutex<Option<DeviceError>>,
}

impl CardShared {
    pub(crate) fn new(registers: usize, register_of: [usize; NicEvent::COUNT]) -> Self {
        Self {
            registers: (0..registers).map(|_| EventRegister::default()).collect(),
            register_of,
            send_mailbox: Index::default(),
            receive_mailbox: Index::default(),
            send_producer: Index::default(),
            receive_producer: Index::default(),
            local_receive_producer: Index::default(),
            send_consumer: Index::default(),
            return_producer: Index::default(),
            interrupt: waker::Event::default(),
            receiver_gone: AtomicBool::new(false),
            over: AtomicBool::new(false),
            truncated: AtomicU64::new(0),
            unsent: AtomicU64::new(0),
            trouble: Mutex::new(None),
        }
    }

    /// Sets the event's bit in the register of the processor that handles it.
    #[inline]
    pub(crate) fn raise(&self, event: NicEvent) {
        self.registers[self.register_of[event as usize]].raise(event);
    }

    fn trouble(&self) -> MutexGuard<'_, Option<DeviceError>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the wire is down or gone.
    pub(crate) fn report(&self, error: DeviceError) {
        *self.trouble() = Some(error);
        self.interrupt.notify();
    }

    /// Whether [`check`](Self::check) would fail.
    pub(crate) fn is_troubled(&self) -> bool {
        self.trouble().is_some()
    }

    /// Reports a wire that is down once, and one that is gone at every call.
    pub(crate) fn check(&self) -> Result<(), DeviceError> {
        let mut trouble = self.trouble();
        match &*trouble {
            None => Ok(()),
            Some(gone @ DeviceError::Gone { .. }) => Err(gone.clone()),
            Some(_) => trouble.take().map_or(Ok(()), Err),
        }
    }

    /// Makes the processors finish.
    pub(crate) fn end(&self) {
        self.over.store(true, SeqCst);
        self.registers.iter().for_each(EventRegister::wake);
    }
}
