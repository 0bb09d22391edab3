//! The sending side of an interface: neighbours, and a queue of frames.

use std::collections::VecDeque;

use dominoes_drivers::{DeviceError, DeviceTx, Frame, TxFrame, checked};

use super::{Port, RouterStats};
use crate::host::question;
use crate::ip::neighbor::{Cause, Neighbors};
use crate::packet as wire;
use crate::packet::flow::{Address, Mac};
use crate::time::Instant;

/// The most frames that wait for a busy device; further frames are dropped.
const QUEUE: usize = 1024;
/// The most frames that are offered to a device at once.
const BATCH: usize = 64;

/// Sends frames at one interface.
pub(super) struct Output {
    tx: Box<dyn DeviceTx>,
    pub(super) neighbors: Neighbors<Frame>,
    queue: VecDeque<Frame>,
    overflowed: u64,
    unresolved: u64,
}

impl Output {
    /// `fixed_mac`: the link-layer address of all neighbours, on a link without ARP.
    pub(super) fn new(tx: Box<dyn DeviceTx>, fixed_mac: Option<Mac>) -> Self {
        Output {
            tx,
            neighbors: Neighbors::default().with_fixed_mac(fixed_mac),
            queue: VecDeque::new(),
            overflowed: 0,
            unresolved: 0,
        }
    }

    /// Adds its counters to `stats`.
    pub(super) fn count(&self, stats: &mut RouterStats) {
        stats.overflowed += self.overflowed;
        stats.unresolved += self.unresolved;
    }

    /// Queues a frame that has its link-layer addresses.
    pub(super) fn push(&mut self, frame: Frame) {
        if self.queue.len() < QUEUE {
            self.queue.push_back(frame);
        } else {
            self.overflowed += 1;
        }
    }

    /// Queues a frame for a neighbour, or lets it wait until the neighbour's address is known.
    pub(super) fn send_to(
        &mut self,
        port: &Port,
        next_hop: Address,
        mut frame: Frame,
        now: Instant,
    ) {
        if let Some(mac) = self.neighbors.lookup(next_hop, now) {
            wire::set_link(frame.bytes_mut(), port.mac, mac.0);
            return self.push(frame);
        }
        wire::set_link(frame.bytes_mut(), port.mac, [0; 6]);
        // The frame's device needs its memory back, so this copies the bytes without the device's
        // data.
        let mut waiting = Frame::from_bytes(&frame);
        waiting.meta = frame.meta;
        let queued = self
            .neighbors
            .queue_frames(Cause::Ours, next_hop, vec![waiting], now);
        self.unresolved += queued.dropped;
        if queued.ask {
            self.ask(port, next_hop, None);
            // The interface's thread will repeat the request.
            port.waker.wake();
        }
    }

    /// Asks for the link-layer address of `address`: all stations, or only the station with the
    /// known address `mac`.
    pub(super) fn ask(&mut self, port: &Port, address: Address, mac: Option<Mac>) {
        if let Some(request) = question(&port.site, port.mac, address, mac) {
            self.push(Frame::from_bytes(&request));
        }
    }

    /// Sends queued frames, and adds the sent ones to `done`.
    pub(super) fn flush(&mut self, done: &mut Vec<Frame>) -> Result<usize, DeviceError> {
        let mut sent = 0;
        while !self.queue.is_empty() {
            let batch: Vec<TxFrame<'_>> = self.queue.iter().take(BATCH).map(Frame::as_tx).collect();
            let taken = checked::transmit(&mut *self.tx, &batch)?;
            let is_busy = taken < batch.len();
            done.extend(self.queue.drain(..taken));
            sent += taken;
            if is_busy {
                break;
            }
        }
        Ok(sent)
    }

    /// Drops all queued frames, because the link is down.
    pub(super) fn discard(&mut self, done: &mut Vec<Frame>) {
        self.overflowed += self.queue.len() as u64;
        done.extend(self.queue.drain(..));
    }

    /// Whether frames wait for the device.
    pub(super) fn has_backlog(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Counts frames whose neighbour does not answer.
    pub(super) fn count_unresolved(&mut self, frames: u64) {
        self.unresolved += frames;
    }
}
