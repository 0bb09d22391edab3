//! Shared by the tests of devices: frames to send, and the behaviours that every device must have.

// Two test programs share these modules, and each uses only a part of them.
#![allow(dead_code, unreachable_pub, unused_imports)]

/// Functions, each after its name.
macro_rules! named {
    ($($test:ident)*) => { [$((stringify!($test), $test as _)),*] };
}

pub mod behaviour;
pub mod packet;
pub(crate) use named;

use dominoes_drivers::{Capabilities, Device, DeviceRx, DeviceTx, Frame};
use std::time::{Duration, Instant};

/// Longer than anything here takes on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(300);

/// A device, split into its parts.
pub struct Port {
    pub rx: Box<dyn DeviceRx>,
    pub tx: Box<dyn DeviceTx>,
    pub caps: Capabilities,
    pub mac: [u8; 6],
}

impl Port {
    pub fn new(device: impl Device + 'static) -> Self {
        let (caps, mac) = (device.capabilities(), device.mac());
        let (rx, tx) = Box::new(device).split();
        Self { rx, tx, caps, mac }
    }

    /// Claims frames and passes them to `wanted` until it returns false. Panics if that takes too
    /// long.
    pub fn claim_while(&mut self, mut wanted: impl FnMut(Frame) -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        let mut frames = Vec::new();
        loop {
            // One at a time, so that no frame after the last one is claimed.
            while self.rx.claim(1, &mut frames).expect("the device is up") > 0 {
                if !frames.drain(..).all(&mut wanted) {
                    return;
                }
            }
            assert!(
                Instant::now() < deadline,
                "no such frame came; {:?}",
                self.rx.stats()
            );
            self.rx
                .wait(Some(Duration::from_millis(100)))
                .expect("the device is up");
        }
    }

    /// Claims frames until `count` of them satisfy `wanted`, and returns those.
    pub fn claim_exactly(&mut self, count: usize, wanted: impl Fn(&Frame) -> bool) -> Vec<Frame> {
        let mut found = Vec::new();
        if count > 0 {
            self.claim_while(|frame| {
                if wanted(&frame) {
                    found.push(frame);
                }
                found.len() < count
            });
        }
        found
    }
}
