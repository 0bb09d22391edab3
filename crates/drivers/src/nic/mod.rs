//! A programmable network card in software: rings of descriptors, mailboxes, DMA and MAC channels,
//! and firmware that handles events.
//!
//! It models the card described by Kim, Pai and Rixner (*Exploiting task-level concurrency in a
//! programmable network interface*, PPoPP 2003): a controller whose firmware is a loop over the
//! bits of an event register and nine handlers, each of which runs to completion. The same
//! handlers run on one processor, on two with the events divided between them as in that paper, or
//! on several that take any event ([`Firmware`]).
//!
//! ```text
//!        host                    |  card                                        |  wire
//!  NicTx  send ring, mailbox  ---|-> DMA read  -> transmit buffer -> MAC        |-> DeviceTx
//!  NicRx  receive ring, mailbox -|-> DMA read  -> local receive ring            |
//!         return ring, interrupt |<- DMA write <- receive buffer  <- MAC        |<- DeviceRx
//! ```
//!
//! A descriptor owns its buffer, where a real card's descriptor has an address. So a transfer is a
//! copy between two buffers, and no memory is read while another processor writes it. The wire is
//! any other [`Device`]; the card passes its offloads on.
//!
//! The two processors of the partition share three indices and no lock. Each index is written by
//! one handler, and its reader may see an old value: the event that follows a new value makes it
//! look again.
//!
//! - To send, the driver produces descriptors and writes a mailbox register (Mailbox). The
//!   firmware fetches descriptors (Send BD Ready, DMA Read Complete) and frames (Send Data Ready,
//!   DMA Read Complete), and passes its consumer index to the driver (Update Send Consumer).
//! - To receive, the driver produces buffers, which the firmware fetches (Mailbox, Receive BD
//!   Ready, DMA Read Complete). The firmware copies a frame into one of them, its descriptor into
//!   the return ring (Receive Complete), and the producer index of that ring to the driver (Update
//!   Receive Return Producer, DMA Write Complete), and interrupts the driver.
//!
//! While the driver offers no buffer, frames wait at the wire, as with pause frames (IEEE 802.3
//! annex 31B), and the card loses none.
//!
//! [`Nic::start`] gives each processor a thread. [`Nic::by_hand`] starts no threads: every event,
//! transfer and frame is a call, which a test makes in any order.
//!
//! ```
//! use dominoes_drivers::memory::{self, MemoryConfig};
//! use dominoes_drivers::nic::{Firmware, Nic, NicConfig};
//! use dominoes_drivers::{Device, TxFrame};
//!
//! let (wire, peer) = memory::pair(MemoryConfig::default());
//! let config = NicConfig::default().firmware(Firmware::Partitioned);
//! let (nic, mut card) = Nic::by_hand(&config, wire);
//! let (_, mut tx) = Box::new(nic).split();
//! let (mut rx, _) = Box::new(peer).split();
//!
//! assert_eq!(tx.transmit(&[TxFrame::new(&[7; 60])])?, 1);
//! while card.turn() > 0 {}
//! let mut frames = Vec::new();
//! assert_eq!(rx.claim(8, &mut frames)?, 1);
//! assert_eq!(frames[0].bytes(), [7; 60]);
//! # Ok::<(), dominoes_drivers::DeviceError>(())
//! ```

mod event;
mod firmware;
mod host;
mod memory;
mod processor;
mod threads;

use std::io;
use std::sync::{Arc, Mutex};

use rtrb::RingBuffer;

use crate::{
    Capabilities, Device, DeviceRx, DeviceTx, DeviceWaker, ETHERNET_HEADER_LEN, VLAN_TAG_LEN,
};
use firmware::{Bounds, ReceiveHalf, SendHalf, SendRings};
use memory::CardShared;
use processor::CardHalf;
use threads::CardThreads;

/// Most bytes of a frame before its packet.
const FRAMING: usize = ETHERNET_HEADER_LEN + VLAN_TAG_LEN;

pub use event::NicEvent;
pub use firmware::Inspect;
pub use host::{NicRx, NicTx};
pub use processor::{CardProcessor, CardStep, Firmware, Profile};

crate::settings! {
    /// Configuration of a card.
    #[derive(Clone, Debug)]
    pub struct NicConfig {
        /// Assigns the handlers to processors. Default: one processor runs all.
        pub firmware: Firmware = Firmware::default();
        /// Descriptors in each ring; at least 1. Default 512.
        pub ring: usize = 512;
        /// Capacity of the transmit and of the receive buffer, in frames; at least 1. Default 256.
        pub buffered: usize = 256;
        /// Most descriptors, transfers or frames per call of a handler; at least 1. Default 16.
        pub batch: usize = 16;
        /// Number of descriptors after which an index is passed to the driver while more are in
        /// progress; at least one. After the last descriptor of a burst it is always passed at
        /// once. Default 16.
        pub coalesced: usize = 16;
        /// The function that Receive Complete applies to each frame. Default: none.
        pub inspect: Option<Inspect> = None => some Inspect;
        /// Whether the run time of each handler is measured. Default: no.
        pub profile: bool = false;
    }
}

impl NicConfig {
    fn bounds(&self) -> Bounds {
        Bounds {
            batch: self.batch.max(1),
            channel: 2 * self.batch.max(1) + 2,
            buffered: self.buffered.max(1),
            coalesced: u32::try_from(self.coalesced.max(1)).unwrap_or(u32::MAX),
        }
    }
}

/// The host's side of a card.
#[derive(Debug)]
pub struct Nic {
    caps: Capabilities,
    mac: [u8; 6],
    rx: NicRx,
    tx: NicTx,
}

impl Nic {
    /// A card on `wire`, with a thread for each processor. The threads end with the device.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start(config: &NicConfig, wire: impl Device + 'static) -> io::Result<Nic> {
        let threads = Arc::new(CardThreads::default());
        let (nic, card) = Nic::build(config, Box::new(wire), Arc::clone(&threads));
        let name = nic.caps.name.clone();
        threads.start(&name, &nic.rx.shared, card.processors, &card.wire)?;
        Ok(nic)
    }

    /// A card on `wire` that does nothing on its own.
    pub fn by_hand(config: &NicConfig, wire: impl Device + 'static) -> (Nic, Card) {
        Nic::build(config, Box::new(wire), Arc::default())
    }

    fn build(config: &NicConfig, wire: Box<dyn Device>, threads: Arc<CardThreads>) -> (Nic, Card) {
        let firmware = config.firmware;
        let registers = if firmware == Firmware::Partitioned {
            2
        } else {
            1
        };
        let shared = Arc::new(CardShared::new(registers, firmware.register_of()));
        let mut caps = wire.capabilities();
        let mac = wire.mac();
        caps.name = format!("nic-{}", caps.name);
        // Buffers are as long as the longest frame. An IP packet has at most 65,535 bytes,
        // whatever the device claims.
        caps.mtu = caps.mtu.min(usize::from(u16::MAX));
        for len in [
            &mut caps.rx_max_frame,
            &mut caps.tso4_max_bytes,
            &mut caps.tso6_max_bytes,
            &mut caps.uso_max_bytes,
        ] {
            *len = (*len).min(usize::from(u16::MAX) + FRAMING);
        }
        let (wire_rx, wire_tx) = wire.split();
        let ring = config.ring.max(1);
        let (send, host_send) = RingBuffer::new(ring);
        let (spent, reclaimed) = RingBuffer::new(ring);
        let (receive, host_receive) = RingBuffer::new(ring);
        let (local, local_receives) = RingBuffer::new(ring);
        let (returns, returned) = RingBuffer::new(ring);
        let tx = NicTx::new(
            caps.clone(),
            Arc::clone(&shared),
            send,
            reclaimed,
            Arc::clone(&threads),
        );
        let (shared_again, rx_len) = (Arc::clone(&shared), caps.rx_max_frame);
        let rx = NicRx::new(shared_again, receive, returned, rx_len, threads);
        let rings = SendRings {
            send: host_send,
            receive: host_receive,
            spent,
            local_receives: local,
        };
        let tx_len = tx.free.first().map_or(rx_len, |buffer| buffer.len());
        let (ours, bounds) = (Arc::clone(&shared), config.bounds());
        let sending = SendHalf::new(ours, bounds, rings, wire_tx, tx_len);
        let (ours, bounds) = (Arc::clone(&shared), config.bounds());
        let receiving = ReceiveHalf::new(ours, bounds, local_receives, returns, wire_rx, rx_len);
        let wire = receiving.waker();
        let processor = |register, place, send, receive| CardProcessor {
            shared: Arc::clone(&shared),
            firmware,
            register,
            place,
            send,
            receive,
            inspect: config.inspect.clone(),
            is_profiled: config.profile,
            profile: Profile::default(),
            arrivals: Vec::new(),
            was_contended: false,
        };
        let (sending, receiving) = (Box::new(sending), Box::new(receiving));
        let processors = match firmware {
            Firmware::Uniprocessor => {
                vec![processor(
                    0,
                    0,
                    CardHalf::Own(sending),
                    CardHalf::Own(receiving),
                )]
            }
            Firmware::Partitioned => vec![
                processor(0, 0, CardHalf::Elsewhere, CardHalf::Own(receiving)),
                processor(1, 0, CardHalf::Own(sending), CardHalf::Elsewhere),
            ],
            Firmware::Dynamic(_) | Firmware::Copies(_) => {
                let sending = Arc::new(Mutex::new(*sending));
                let receiving = Arc::new(Mutex::new(*receiving));
                let halves = |place| {
                    let (send, receive) = (Arc::clone(&sending), Arc::clone(&receiving));
                    processor(0, place, CardHalf::Shared(send), CardHalf::Shared(receive))
                };
                (0..firmware.processors()).map(halves).collect()
            }
        };
        (Nic { caps, mac, rx, tx }, Card { processors, wire })
    }

    /// Like [`Device::split`], with the concrete types of the halves.
    pub fn into_halves(self) -> (NicRx, NicTx) {
        (self.rx, self.tx)
    }
}

impl Device for Nic {
    fn capabilities(&self) -> Capabilities {
        self.caps.clone()
    }

    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn split(self: Box<Self>) -> (Box<dyn DeviceRx>, Box<dyn DeviceTx>) {
        (Box::new(self.rx), Box::new(self.tx))
    }
}

/// A card that is driven by hand.
#[derive(Debug)]
pub struct Card {
    processors: Vec<CardProcessor>,
    wire: DeviceWaker,
}

impl Card {
    /// Runs a turn of every processor. Returns the amount of work done; 0 means that nothing will
    /// happen until the driver or the wire acts.
    pub fn turn(&mut self) -> usize {
        self.processors.iter_mut().map(CardProcessor::turn).sum()
    }

    /// The processors, to run on threads of the caller.
    pub fn processors(&mut self) -> &mut [CardProcessor] {
        &mut self.processors
    }

    /// The combined profile of all processors.
    pub fn profile(&self) -> Profile {
        let profiles = self.processors.iter().map(CardProcessor::profile);
        profiles.fold(Profile::default(), |sum, one| sum.merged(&one))
    }
}
