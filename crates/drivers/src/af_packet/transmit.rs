//! Sending: the kernel gathers the parts of each frame, and one system call sends several frames.

use crate::link::{Link, LinkState};
use crate::vnet::{HEADER_LEN, VnetHeader};
use crate::{Capabilities, DeviceError, DeviceTx, TxFrame, TxStats, sys};
use std::sync::Arc;

/// Most frames per system call.
const BATCH: usize = 16;

/// The sending half of an [`AfPacket`](super::AfPacket).
#[derive(Debug)]
pub(crate) struct AfPacketTx {
    caps: Capabilities,
    link: Arc<Link>,
    stats: TxStats,
}

impl AfPacketTx {
    pub(crate) fn new(caps: Capabilities, link: Arc<Link>) -> Self {
        Self {
            caps,
            link,
            stats: TxStats::default(),
        }
    }

    /// Sends the longest prefix of `frames` that device and kernel accept, at most [`BATCH`].
    fn send(&self, frames: &[TxFrame<'_>]) -> std::io::Result<usize> {
        let mut headers = [[0; HEADER_LEN]; BATCH];
        let mut count = 0;
        for (header, frame) in headers.iter_mut().zip(frames) {
            if !self.caps.admits(frame) {
                break;
            }
            *header = VnetHeader::for_transmit(&frame.meta).to_bytes();
            count += 1;
        }
        let mut parts = [[&[][..]; 3]; BATCH];
        for ((parts, header), frame) in parts.iter_mut().zip(&headers).zip(&frames[..count]) {
            *parts = [header, frame.head, frame.payload];
        }
        sys::send_frames::<BATCH>(self.link.fd(), &parts[..count])
    }
}

impl DeviceTx for AfPacketTx {
    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, DeviceError> {
        let mut taken = 0;
        let mut old_error_fetched = false;
        while let Some(frame) = frames.get(taken) {
            if !self.caps.admits(frame) {
                self.stats.dropped += 1;
                taken += 1;
                continue;
            }
            let error = match self.send(&frames[taken..]) {
                Ok(sent) => {
                    self.stats.frames += sent as u64;
                    let sent = &frames[taken..taken + sent];
                    self.stats.bytes += sent.iter().map(|frame| frame.len() as u64).sum::<u64>();
                    taken += sent.len();
                    continue;
                }
                Err(error) => error,
            };
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => {
                    self.stats.busy += 1;
                    break;
                }
                Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => {
                    self.link.report_error();
                    if taken > 0 {
                        break;
                    }
                    match self.link.query_state() {
                        LinkState::Gone => return Err(self.link.gone()),
                        LinkState::Down => return Err(self.link.down()),
                        // The error dates from before the link came back.
                        LinkState::Up if !old_error_fetched => old_error_fetched = true,
                        LinkState::Up => break,
                    }
                }
                // The frame is too long for a link whose MTU has changed, or malformed.
                _ => {
                    self.stats.dropped += 1;
                    taken += 1;
                }
            }
        }
        Ok(taken)
    }

    fn stats(&self) -> TxStats {
        self.stats
    }
}
