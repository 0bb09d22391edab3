//! The simulated peer that a workload asks for: [`dominoes_drivers::memory::peer`].

use dominoes_drivers::memory::peer::{
    Encoding, Payload, PeerConfig, PeerDevice, PeerHandle, Role, headers::Ends,
};

use crate::inline::Units;
use crate::workload::Workload;

/// The port at which the stack listens for the peer.
pub(crate) fn port() -> u16 {
    Ends::default().to.port()
}

/// A device, and a handle that reports on its peer.
pub(crate) fn new(role: Role, workload: &Workload) -> Result<(PeerDevice, PeerHandle), String> {
    with_period(role, workload, workload.ring_bytes as usize)
}

/// Like [`new`], for a stack whose send ring is `period` bytes long.
pub(crate) fn with_period(
    role: Role,
    workload: &Workload,
    period: usize,
) -> Result<(PeerDevice, PeerHandle), String> {
    let units = Units::of(workload)?;
    let payload = match &units {
        Some(units) => Payload::Round(units.segments(workload)),
        None => Payload::Marked(workload.payload()),
    };
    let mut config = config(role, workload, payload)
        .expected(workload.ring(period))
        .verify_checksums(
            workload.verify_checksums && !matches!(role, Role::Free | Role::FreeReceiver),
        );
    if let Some(units) = units {
        let encoding = Encoding::new(move |offset, _, sent| units.sent(offset, sent));
        config = config.verify_checksums(false).encoding(encoding);
    }
    PeerDevice::new(config).map_err(|e| e.to_string())
}

/// Like [`new`], with this payload in its segments. The peer compares no byte from the stack.
#[cfg(feature = "tls")]
pub(crate) fn with_payload(
    role: Role,
    workload: &Workload,
    payload: Payload,
) -> Result<(PeerDevice, PeerHandle), String> {
    PeerDevice::new(config(role, workload, payload)).map_err(|e| e.to_string())
}

fn config(role: Role, workload: &Workload, payload: Payload) -> PeerConfig {
    PeerConfig::new(role)
        .segment_bytes(workload.segment_bytes)
        .connections(workload.connections)
        .burst(workload.burst)
        .pool_frames(workload.frames())
        .buffer_bytes(workload.buffer_bytes())
        .timestamps(workload.timestamps)
        .checksum_offload(!workload.checksum)
        .payload(payload)
}
