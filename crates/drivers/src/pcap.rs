//! Writes the frames that pass through a device to a capture file, for Wireshark and similar tools
//! (feature `pcap`).
//!
//! The capture contains finished checksums where the device was to finish them, so that it does
//! not look damaged. Merged frames are written as they are.

use crate::{
    AddressFilter, Capabilities, Device, DeviceError, DeviceRx, DeviceTx, DeviceWaker, Frame,
    RxChecksum, RxStats, TxChecksum, TxFrame, TxStats, checked, complete_checksum,
};
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, TsResolution};
use std::fmt;
use std::io::{self, Write};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// Longest frame that is written completely, in bytes.
const SNAP_LEN: u32 = 1 << 18;

/// A device whose received and sent frames are written to a capture file.
///
/// A received frame is written when it is claimed, a sent one when the device has taken it. Frames
/// that the device drops are not in the capture. Each frame costs a lock and a copy. Wrap the
/// writer in a [`BufWriter`](std::io::BufWriter), and drop both halves to flush it.
#[derive(Debug)]
pub struct Capture<D, W: Write> {
    device: D,
    file: File<W>,
}

/// The file, shared by both halves.
type File<W> = Arc<Mutex<FileWriter<W>>>;

struct FileWriter<W: Write> {
    /// `None` after an error, because a reader could not parse what follows it.
    writer: Option<PcapWriter<checked::Sink<W>>>,
}

impl<W: Write> fmt::Debug for FileWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

impl<D: Device, W: Write + Send> Capture<D, W> {
    /// Begins a capture of `device`.
    ///
    /// # Errors
    /// The file's header cannot be written. Later errors end the capture but not the device.
    pub fn new(device: D, to: W) -> io::Result<Self> {
        let header = PcapHeader {
            snaplen: SNAP_LEN,
            datalink: DataLink::ETHERNET,
            ts_resolution: TsResolution::NanoSecond,
            ..PcapHeader::default()
        };
        let writer =
            PcapWriter::with_header(checked::Sink(to), header).map_err(io::Error::other)?;
        let writer = FileWriter {
            writer: Some(writer),
        };
        Ok(Self {
            device,
            file: Arc::new(Mutex::new(writer)),
        })
    }
}

impl<W: Write> FileWriter<W> {
    /// Writes a frame; `unfinished` gives the start and offset of a checksum to finish.
    fn write(&mut self, when: SystemTime, mut bytes: Vec<u8>, unfinished: Option<(u16, u16)>) {
        let Some(writer) = &mut self.writer else {
            return;
        };
        if let Some((start, offset)) = unfinished {
            complete_checksum(&mut bytes, start, offset);
        }
        let since = when
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let len = bytes.len() as u32;
        bytes.truncate(SNAP_LEN as usize);
        if writer
            .write_packet(&PcapPacket::new_owned(since, len, bytes))
            .is_err()
        {
            self.writer = None;
        }
    }
}

impl<D: Device, W: Write + Send + 'static> Device for Capture<D, W> {
    fn capabilities(&self) -> Capabilities {
        self.device.capabilities()
    }

    fn mac(&self) -> [u8; 6] {
        self.device.mac()
    }

    fn address_filter(&self) -> Option<Arc<dyn AddressFilter>> {
        self.device.address_filter()
    }

    fn check_address(&self, address: IpAddr) -> Result<(), DeviceError> {
        self.device.check_address(address)
    }

    fn queues(&self) -> usize {
        self.device.queues()
    }

    fn split(self: Box<Self>) -> (Box<dyn DeviceRx>, Box<dyn DeviceTx>) {
        let Self { device, file } = *self;
        let caps = device.capabilities();
        let (rx, tx) = Box::new(device).split();
        let rx = CaptureRx {
            rx,
            file: Arc::clone(&file),
        };
        (Box::new(rx), Box::new(CaptureTx { tx, caps, file }))
    }
}

struct CaptureRx<W: Write> {
    rx: Box<dyn DeviceRx>,
    file: File<W>,
}

impl<W: Write + Send> DeviceRx for CaptureRx<W> {
    fn claim(&mut self, max: usize, out: &mut Vec<Frame>) -> Result<usize, DeviceError> {
        let before = out.len();
        let claimed = checked::claim(&mut *self.rx, max, out)?;
        if claimed > 0 {
            let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
            for frame in &out[before..] {
                let unfinished = match frame.meta.checksum {
                    RxChecksum::Partial { start, offset } => Some((start, offset)),
                    RxChecksum::Verify | RxChecksum::Valid => None,
                };
                let when = frame.timestamp().unwrap_or_else(SystemTime::now);
                file.write(when, frame.bytes().to_vec(), unfinished);
            }
        }
        Ok(claimed)
    }

    fn release(&mut self, frames: &mut Vec<Frame>) {
        self.rx.release(frames);
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), DeviceError> {
        self.rx.wait(timeout)
    }

    fn waker(&self) -> DeviceWaker {
        self.rx.waker()
    }

    fn stats(&self) -> RxStats {
        self.rx.stats()
    }
}

struct CaptureTx<W: Write> {
    tx: Box<dyn DeviceTx>,
    caps: Capabilities,
    file: File<W>,
}

impl<W: Write + Send> DeviceTx for CaptureTx<W> {
    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, DeviceError> {
        let now = SystemTime::now();
        let taken = checked::transmit(&mut *self.tx, frames)?;
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        for frame in &frames[..taken] {
            if self.caps.admits(frame) {
                let unfinished = match frame.meta.checksum {
                    TxChecksum::Partial { start, offset } => Some((start, offset)),
                    TxChecksum::Done => None,
                };
                file.write(now, [frame.head, frame.payload].concat(), unfinished);
            }
        }
        Ok(taken)
    }

    fn stats(&self) -> TxStats {
        self.tx.stats()
    }
}
