//! Devices that wrap a lying device: each passes on the true frames and numbers, and no more.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use dominoes_drivers::impair::{Impaired, LinkConfig};
use dominoes_drivers::nic::{Nic, NicConfig};
use dominoes_drivers::pcap::Capture;
use dominoes_drivers::phy::ToPhy;
use dominoes_drivers::split::{Target, split};
use dominoes_drivers::{
    Capabilities, Device, DeviceError, DeviceRx, DeviceTx, DeviceWaker, Frame, RxStats, TxFrame,
    TxStats, checked,
};
use smoltcp::phy::{Device as _, TxToken as _};

/// Appends three frames to any request and takes one frame, but claims to have done more than all.
struct Liar;

impl Device for Liar {
    fn capabilities(&self) -> Capabilities {
        let mut caps = Capabilities::new("liar");
        caps.mtu = usize::MAX;
        caps.rx_max_frame = usize::MAX;
        caps.tso4_max_bytes = usize::MAX;
        caps.max_batch = 2;
        caps.added_latency = Duration::MAX;
        caps
    }

    fn mac(&self) -> [u8; 6] {
        [2; 6]
    }

    fn split(self: Box<Self>) -> (Box<dyn DeviceRx>, Box<dyn DeviceTx>) {
        (self, Box::new(Liar))
    }
}

impl DeviceRx for Liar {
    fn claim(&mut self, _: usize, out: &mut Vec<Frame>) -> Result<usize, DeviceError> {
        out.extend([1, 2, 3].map(|byte| Frame::from_bytes(&[byte; 60])));
        Ok(usize::MAX)
    }

    fn release(&mut self, _: &mut Vec<Frame>) {}

    fn wait(&mut self, _: Option<Duration>) -> Result<(), DeviceError> {
        Ok(())
    }

    fn waker(&self) -> DeviceWaker {
        DeviceWaker::new(|| ())
    }

    fn stats(&self) -> RxStats {
        let mut stats = RxStats::default();
        stats.dropped = u64::MAX;
        stats
    }
}

impl DeviceTx for Liar {
    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, DeviceError> {
        Ok(frames.len() + 1)
    }

    fn transmit_prepared(&mut self, _: usize, count: usize) -> Result<usize, DeviceError> {
        Ok(count + 1)
    }

    fn stats(&self) -> TxStats {
        TxStats::default()
    }
}

/// Claims to write more bytes than it is given.
struct Greedy;

impl Write for Greedy {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Ok(usize::MAX)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A frame that every device admits.
const FRAME: [u8; 60] = [0xff; 60];

#[test]
fn claims_and_sends_are_counted_by_who_asks_for_them() {
    let mut frames = vec![Frame::from_bytes(&[9; 60])];
    assert_eq!(checked::claim(&mut Liar, 2, &mut frames), Ok(2));
    let first = frames.iter().map(|frame| frame[0]);
    assert_eq!(first.collect::<Vec<_>>(), [9, 1, 2]);
    assert_eq!(checked::claim(&mut Liar, 8, &mut frames), Ok(3));
    let offered = [TxFrame::new(&FRAME); 2];
    assert_eq!(checked::transmit(&mut Liar, &offered), Ok(2));
    assert_eq!(checked::transmit_prepared(&mut Liar, 3, 2), Ok(2));
}

#[test]
fn a_wrapper_of_a_device_that_lies_claims_and_sends_no_more_than_there_is() {
    let link = || LinkConfig::default();
    let wrapped: [Box<dyn Device>; 4] = [
        Box::new(Capture::new(Liar, Greedy).unwrap()),
        Box::new(Impaired::new(Liar, link(), link())),
        Box::new(Impaired::with_clock(
            Liar,
            link().delay(Duration::MAX),
            link(),
            Arc::new(|| Duration::MAX),
        )),
        Box::new(split(Box::new(Liar), 1, 64, |_| Target::All).remove(0)),
    ];
    for device in wrapped {
        let _ = device.capabilities();
        let (mut rx, mut tx) = device.split();
        for max in [0, 1, 2, 5] {
            let mut frames = vec![Frame::from_bytes(&FRAME)];
            let claimed = rx.claim(max, &mut frames).unwrap();
            assert!(claimed <= max && frames.len() == 1 + claimed);
            let offered = vec![TxFrame::new(&FRAME); max];
            assert!(tx.transmit(&offered).unwrap() <= max);
        }
        let _ = (rx.stats(), tx.stats());
    }
}

#[test]
fn a_stack_of_smoltcp_over_a_device_that_lies_sends_one_frame_for_each() {
    let mut phy = ToPhy::new(Liar);
    let _ = phy.capabilities();
    let now = smoltcp::time::Instant::ZERO;
    for _ in 0..4 {
        phy.transmit(now)
            .unwrap()
            .consume(60, |bytes| bytes.fill(1));
        assert!(phy.receive(now).is_some());
    }
}

#[test]
fn a_card_whose_wire_lies_takes_frames_of_any_length() {
    let (nic, mut card) = Nic::by_hand(&NicConfig::default(), Liar);
    let (mut rx, mut tx) = Box::new(nic).split();
    let long = [0xff; 70_000];
    for len in [60, 1514, 65_000, 70_000] {
        assert!(tx.transmit(&[TxFrame::new(&long[..len])]).unwrap() <= 1);
        for _ in 0..100 {
            card.turn();
        }
    }
    let mut frames = Vec::new();
    assert_eq!(rx.claim(2, &mut frames), Ok(2));
}
