//! Calls a device without trusting its answers: anyone can implement the device traits in safe
//! code.

use std::io::{self, Write};

use crate::{DeviceError, DeviceRx, DeviceTx, Frame, TxFrame};

/// Calls [`DeviceRx::claim`], but appends at most `max` frames to `out` and returns their true
/// number, whatever the device does. Frames above `max` go back to the device unread.
///
/// # Errors
/// The device's error, if it appended no frame.
#[inline]
pub fn claim(
    rx: &mut dyn DeviceRx,
    max: usize,
    out: &mut Vec<Frame>,
) -> Result<usize, DeviceError> {
    let before = out.len();
    let claimed = rx.claim(max, out);
    match claimed {
        Ok(claimed) if claimed <= max && before.checked_add(claimed) == Some(out.len()) => {
            Ok(claimed)
        }
        claimed => recount(rx, max, out, before, claimed),
    }
}

#[cold]
fn recount(
    rx: &mut dyn DeviceRx,
    max: usize,
    out: &mut Vec<Frame>,
    before: usize,
    claimed: Result<usize, DeviceError>,
) -> Result<usize, DeviceError> {
    let appended = out.len().saturating_sub(before);
    if appended > max {
        rx.release(&mut out.split_off(before + max));
    }
    match claimed {
        Err(error) if appended == 0 => Err(error),
        _ => Ok(appended.min(max)),
    }
}

/// Calls [`DeviceRx::release`]; `frames` is empty afterwards.
#[inline]
pub fn release(rx: &mut dyn DeviceRx, frames: &mut Vec<Frame>) {
    rx.release(frames);
    frames.clear();
}

/// Calls [`DeviceTx::transmit`]; the result is at most the number of frames offered.
///
/// # Errors
/// The device's error.
#[inline]
pub fn transmit(tx: &mut dyn DeviceTx, frames: &[TxFrame<'_>]) -> Result<usize, DeviceError> {
    Ok(tx.transmit(frames)?.min(frames.len()))
}

/// Calls [`DeviceTx::transmit_prepared`]; the result is at most the number of frames offered.
///
/// # Errors
/// The device's error.
#[inline]
pub fn transmit_prepared(
    tx: &mut dyn DeviceTx,
    first: usize,
    count: usize,
) -> Result<usize, DeviceError> {
    Ok(tx.transmit_prepared(first, count)?.min(count))
}

/// A writer that reports no more bytes written than it was given; the standard library's loops
/// would panic on more.
#[derive(Debug)]
pub struct Sink<W>(pub W);

impl<W: Write> Write for Sink<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.0.write(bytes)?.min(bytes.len()))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
