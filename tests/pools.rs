//! Devices that can lend few frames at a time, and cannot receive until some frames come back.
//! Transfers over them must not stall, however many replicas hold frames.

use std::io::{Read, Write};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_drivers::{DeviceError, DeviceRx, DeviceWaker, Frame, RxStats};
use dominoes_netstack::Stack;
use dominoes_testkit::device::Around;

/// Bytes in each direction: many times the frames of any of the devices.
const LEN: usize = 1 << 20;
/// A transfer that takes longer counts as stalled.
const PATIENCE: Duration = Duration::from_secs(600);

/// Lends at most `most` frames at a time.
struct ScarceRx {
    rx: Box<dyn DeviceRx>,
    most: usize,
    out: usize,
}

impl DeviceRx for ScarceRx {
    fn claim(&mut self, max: usize, out: &mut Vec<Frame>) -> Result<usize, DeviceError> {
        let claimed = self.rx.claim(max.min(self.most - self.out), out)?;
        self.out += claimed;
        Ok(claimed)
    }

    fn release(&mut self, frames: &mut Vec<Frame>) {
        self.out = self.out.saturating_sub(frames.len());
        self.rx.release(frames);
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), DeviceError> {
        if self.out < self.most {
            return self.rx.wait(timeout);
        }
        // The device underneath has frames and would return at once. This one receives nothing, so
        // only a waker or the timeout may end the wait.
        let nap = Duration::from_millis(1);
        thread::sleep(timeout.unwrap_or(nap).min(nap));
        Ok(())
    }

    fn waker(&self) -> DeviceWaker {
        self.rx.waker()
    }

    fn stats(&self) -> RxStats {
        self.rx.stats()
    }
}

fn exchange(replicas: usize, most: usize) {
    let (left, right) = memory::pair(MemoryConfig::default());
    let scarce = Around::new(left).rx(move |rx| ScarceRx { rx, most, out: 0 });
    let ours = Stack::builder("10.0.0.1/24").replicas(replicas);
    let (ours, peer) = (ours.start(scarce), Stack::builder("10.0.0.2/24"));
    let (ours, peer) = (ours.unwrap(), peer.start(right).unwrap());
    let listener = ours.listen(7, 4).unwrap();
    let theirs = peer.connect("10.0.0.1:7").unwrap();
    let (stream, _) = listener.accept().unwrap();
    let sent: Vec<u8> = (0..LEN).map(|i| (i % 251) as u8).collect();
    thread::scope(|scope| {
        for stream in [theirs, stream] {
            let (mut reader, mut writer) = stream.split();
            let sent = &sent;
            scope.spawn(move || {
                writer.write_all(sent).unwrap();
                writer.shutdown();
            });
            scope.spawn(move || {
                let mut heard = Vec::new();
                reader.read_to_end(&mut heard).unwrap();
                assert!(heard == *sent, "{} of {LEN} bytes", heard.len());
            });
        }
    });
}

#[test]
fn devices_that_lend_few_frames_never_stand_still() {
    for (replicas, most) in [(2, 64), (3, 64), (2, 32), (2, 8), (3, 1), (1, 1)] {
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            exchange(replicas, most);
            tell.send(()).unwrap();
        });
        assert!(
            told.recv_timeout(PATIENCE).is_ok(),
            "{replicas} replicas stand still with {most} frames"
        );
    }
}
