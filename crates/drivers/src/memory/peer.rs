//! A simulated peer: a device whose other end is a TCP sender and receiver made of prebuilt frames.
//!
//! This is the measuring device of Nahum, Yates, Kurose and Towsley, *Performance issues in
//! parallelized network protocols* (1994), section 2.3, for benchmarks that measure a stack and
//! nothing else. The simulated sender takes its segments from prebuilt frames, sends them in
//! order, and obeys the acknowledgments and windows of the stack. The simulated receiver
//! acknowledges every second segment. Both open the connections themselves, and neither has a
//! thread: [`PeerRx::claim`](crate::DeviceRx::claim) patches the headers of the next frames, and
//! [`PeerTx::transmit`](crate::DeviceTx::transmit) parses the headers of the stack's frames. The
//! threads that build those frames can also parse them in advance
//! ([`TxPrepare`](crate::TxPrepare)). The two halves share a few atomic words.
//!
//! Differences from the paper:
//!
//! - Checksums are correct, and are patched with the headers; in the paper they were wrong, and
//!   the result ignored.
//! - Frames circulate in a pool that can be larger than a cache. They are sent in the order of
//!   their addresses, whatever the order in which the stack returns them.
//! - Connections take turns in bursts of at most 8 segments ([`PeerConfig::burst`]).
//! - With payload in both directions, acknowledgments ride on the sender's segments; they go alone
//!   while the stack's window is closed.
//!
//! The peer relies on a device that loses nothing: it never sends anything twice, and it
//! acknowledges a single segment when nothing follows for 64 calls. A [`PeerHandle`] counts the
//! faults of the stack: an acknowledgment that repeats the previous one while segments are in
//! flight, a segment that is retransmitted or out of order, a wrong checksum or payload. Segments
//! out of order are stored, and acknowledged once nothing before them is missing, without the
//! duplicate acknowledgments of RFC 5681 section 4.2. The window in an older frame is ignored (RFC
//! 9293 section 3.10.7.4). Until its connections are open, the peer answers every ARP request, for
//! any address. It closes no connection; [`wait`](crate::DeviceRx::wait) never sleeps.
//!
//! ```
//! use dominoes_drivers::memory::peer::headers::{self, Ends, Numbers, Patch, TcpHeader, flags};
//! use dominoes_drivers::memory::peer::{PeerConfig, PeerDevice, Role};
//! use dominoes_drivers::{DeviceRx, DeviceTx, TxFrame};
//!
//! let (device, peer) = PeerDevice::new(PeerConfig::new(Role::Sender).segment_bytes(1000))?;
//! let (mut rx, mut tx) = device.into_halves();
//!
//! // The peer opens the connection.
//! let mut frames = Vec::new();
//! rx.claim(32, &mut frames)?;
//! let syn = TcpHeader::read(&frames[0]).expect("a TCP frame");
//! assert_eq!(syn.flags, flags::SYN);
//! rx.release(&mut frames);
//!
//! // A stack would answer with this, and a window of 4,500 bytes.
//! let options = headers::syn_options(1460, 0, false);
//! let stack = Ends::default().reversed();
//! let mut answer = headers::tcp_frame(&stack, flags::SYN | flags::ACK, 4500, &options, &[]);
//! let patch = Patch::new(&answer);
//! let numbers = Numbers {
//!     source_port: stack.from.port(),
//!     seq: 100,
//!     ack: syn.seq + 1,
//!     ..Numbers::default()
//! };
//! patch.bare(&mut answer, &numbers);
//! tx.transmit(&[TxFrame::new(&answer)])?;
//!
//! // The last frame of the handshake, and then what fits the window.
//! assert_eq!(rx.claim(32, &mut frames)?, 1);
//! assert_eq!(rx.claim(32, &mut frames)?, 4);
//! assert_eq!(frames[4].len(), headers::HEADERS_LEN + 1000);
//! assert_eq!(peer.check(), Ok(()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod config;
mod handle;
pub mod headers;
mod pool;
mod reader;
mod receiver;
mod sender;
mod sums;

pub use config::{Encoding, Payload, PeerConfig, PeerConfigError, Role};
pub use handle::{PeerFault, PeerHandle};
pub use receiver::PeerTx;
pub use sender::PeerRx;

use crate::{
    Capabilities, Device, DeviceRx, DeviceTx, ETHERNET_HEADER_LEN, RxChecksumSupport, VLAN_TAG_LEN,
};
use crossbeam_utils::CachePadded;
use handle::{PeerShared, SharedConnection, VERIFY_CHECKSUMS, VERIFY_FRAMES};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8};

/// First sequence number of the peer, on every connection.
const PEER_ISS: u32 = 0x4000_0000;
/// Window scale of the peer; with a full window field its window is 8 MB.
const PEER_SCALE: u8 = 7;

/// A network interface whose other end is a simulated peer.
#[derive(Debug)]
pub struct PeerDevice {
    caps: Capabilities,
    mac: [u8; 6],
    rx: PeerRx,
    tx: PeerTx,
}

impl PeerDevice {
    /// Builds the device, with all frames of the peer, and the handle that reports on the peer.
    ///
    /// # Errors
    /// If `config` has invalid or contradictory values.
    pub fn new(config: PeerConfig) -> Result<(PeerDevice, PeerHandle), PeerConfigError> {
        config.check()?;
        let mut caps = Capabilities::new("peer0");
        let packet = config.head_bytes() - ETHERNET_HEADER_LEN + config.segment_bytes;
        caps.mtu = caps.mtu.max(packet);
        caps.rx_max_frame = caps.mtu + ETHERNET_HEADER_LEN + VLAN_TAG_LEN;
        if config.checksum_offload {
            caps.rx_checksum = RxChecksumSupport::Always;
            caps.tx_checksum = true;
        }
        let always = if config.verify_checksums {
            VERIFY_CHECKSUMS
        } else {
            0
        };
        let connections = (0..config.connections).map(|_| SharedConnection::default());
        let shared = Arc::new(PeerShared {
            connections: connections.collect(),
            faults: CachePadded::default(),
            is_asked: AtomicBool::new(false),
            verify: AtomicU8::new(always | VERIFY_FRAMES),
        });
        let device = PeerDevice {
            caps,
            mac: config.ends.to_mac,
            rx: PeerRx::new(&config, Arc::clone(&shared)),
            tx: PeerTx::new(config, Arc::clone(&shared)),
        };
        Ok((device, PeerHandle { shared, always }))
    }
}

super::device!(PeerDevice, PeerRx, PeerTx);

#[cfg(test)]
mod tests;
