//! A smoltcp device on a separate thread, for devices that are not `Send`.

use super::{FromPhy, POLL_INTERVAL, bare, capabilities, frame_of, link, mac_of};
use crate::waker::Event;
use crate::{
    Capabilities, Device, DeviceError, DeviceRx, DeviceTx, DeviceWaker, Frame, LinkType, RxStats,
    TxFrame, TxStats,
};
use ::smoltcp::phy::{self, DeviceCapabilities, RxToken as _, TxToken as _};
use ::smoltcp::time;
use crossbeam_queue::ArrayQueue;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Most frames that wait in each direction between the device's thread and the halves.
const DEPTH: usize = 256;
/// Most frames that the thread moves in one direction before it serves the other.
const TURN: usize = 32;

impl<P: phy::Device + 'static> FromPhy<P> {
    /// Creates a device on a separate thread. `mac` is its Ethernet address, which smoltcp's
    /// devices do not have; one for IP needs none, and ignores it.
    ///
    /// smoltcp's `TunTapInterface` and `RawSocket` share their descriptor through `Rc`, so they
    /// are not [`Send`], and [`FromPhy::new`] does not compile with them. Here only `make` moves
    /// to the other thread; the device is created, used and dropped there. Frames pass through two
    /// queues of 256 frames, which costs one more copy and a change of threads for each. While no
    /// frame moves, the thread polls the device every millisecond.
    ///
    /// The thread ends when the device, or both its halves, are dropped; the last drop waits for
    /// it. If the smoltcp device panics, as those two do when their interface goes down, both
    /// halves report [`DeviceError::Gone`].
    ///
    /// ```no_run
    /// use dominoes_drivers::phy::FromPhy;
    /// use smoltcp::phy::{Medium, RawSocket};
    ///
    /// let open = || RawSocket::new("eth0", Medium::Ethernet);
    /// let device = FromPhy::with(open, [0x02, 0, 0, 0, 0, 1])?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// An error of `make`, or of starting the thread. [`io::ErrorKind::InvalidInput`] if the
    /// device is neither for Ethernet nor for IP; [`io::ErrorKind::Other`] if `make` panics.
    pub fn with<F>(make: F, mac: [u8; 6]) -> io::Result<PhyThread>
    where
        F: FnOnce() -> io::Result<P> + Send + 'static,
    {
        let bridge = Arc::new(Bridge::new());
        let (report, made) = sync_channel(1);
        let thread = thread::Builder::new()
            .name("smoltcp device".to_owned())
            .spawn({
                let bridge = Arc::clone(&bridge);
                move || live(make, &report, &bridge)
            })?;
        let owner = Owner {
            bridge,
            thread: Some(thread),
        };
        let made = made.recv();
        let theirs = made.map_err(|_| io::Error::other("what makes the device panicked"))??;
        let caps = capabilities(&theirs);
        Ok(PhyThread {
            mac: mac_of(caps.link, mac),
            caps,
            owner,
        })
    }
}

/// The body of the thread.
fn live<P: phy::Device>(
    make: impl FnOnce() -> io::Result<P>,
    report: &SyncSender<io::Result<DeviceCapabilities>>,
    bridge: &Bridge,
) {
    let _end = PhyEnd(bridge);
    let made = make().and_then(|phy| {
        let theirs = phy.capabilities();
        if link(&theirs).is_some() {
            Ok((phy, theirs))
        } else {
            let reason = "the device is neither for Ethernet nor for IP";
            Err(io::Error::new(io::ErrorKind::InvalidInput, reason))
        }
    });
    let (made, theirs) = match made {
        Ok((phy, theirs)) => (Some(phy), Ok(theirs)),
        Err(error) => (None, Err(error)),
    };
    // The caller waits for this report.
    let _ = report.send(theirs);
    if let Some(phy) = made {
        bridge.run(phy);
    }
}

/// Reports the end of the thread, however it ends.
struct PhyEnd<'a>(&'a Bridge);

impl Drop for PhyEnd<'_> {
    fn drop(&mut self) {
        self.0.gone.store(true, Relaxed);
        self.0.arrival.notify();
    }
}

/// State shared by the thread and both halves.
///
/// The two flags are Relaxed: each is stored before a notification and loaded in the condition of
/// an [`Event`], whose fences order the two. Frames are handed over by their queues.
#[derive(Debug)]
struct Bridge {
    arrived: ArrayQueue<Frame>,
    leaving: ArrayQueue<Vec<u8>>,
    /// Wakes the receiving half: a frame has arrived.
    arrival: Event,
    /// Wakes the thread: there are frames to send or room to receive, or the device is closed.
    work: Event,
    /// The device and its halves are dropped.
    closed: AtomicBool,
    /// The thread has ended.
    gone: AtomicBool,
}

impl Bridge {
    fn new() -> Self {
        Bridge {
            arrived: ArrayQueue::new(DEPTH),
            leaving: ArrayQueue::new(DEPTH),
            arrival: Event::default(),
            work: Event::default(),
            closed: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        }
    }

    /// Moves frames until the device is closed and all frames taken until then are sent.
    fn run<P: phy::Device>(&self, mut phy: P) {
        let start = Instant::now();
        let link = link(&phy.capabilities()).unwrap_or_default();
        // A frame for which the device had no room.
        let mut kept = None;
        loop {
            let now = time::Instant::from_micros(start.elapsed().as_micros() as i64);
            let closed = self.closed.load(Relaxed);
            let sent = self.send(&mut phy, now, &mut kept);
            if closed && sent < TURN {
                return;
            }
            let full = self.receive(&mut phy, link, now);
            if sent == 0 && full != Some(false) {
                let full = full.is_some();
                self.work.wait(Some(POLL_INTERVAL), || {
                    self.closed.load(Relaxed)
                        || (kept.is_none() && !self.leaving.is_empty())
                        || (full && !self.arrived.is_full())
                });
            }
        }
    }

    /// Sends up to [`TURN`] frames. Returns their number.
    fn send<P: phy::Device>(
        &self,
        phy: &mut P,
        now: time::Instant,
        kept: &mut Option<Vec<u8>>,
    ) -> usize {
        for sent in 0..TURN {
            let Some(frame) = kept.take().or_else(|| self.leaving.pop()) else {
                return sent;
            };
            let Some(token) = phy.transmit(now) else {
                *kept = Some(frame);
                return sent;
            };
            token.consume(frame.len(), |buffer| buffer.copy_from_slice(&frame));
        }
        TURN
    }

    /// Receives up to [`TURN`] frames. `None` if there were none; otherwise whether the queue was
    /// full before the first.
    fn receive<P: phy::Device>(
        &self,
        phy: &mut P,
        link: LinkType,
        now: time::Instant,
    ) -> Option<bool> {
        for received in 0..TURN {
            if self.arrived.is_full() {
                return Some(received == 0);
            }
            let Some((token, _)) = phy.receive(now) else {
                return (received > 0).then_some(false);
            };
            // Only this thread pushes, so a queue with room keeps it.
            if let Some(frame) = token.consume(|bytes| frame_of(link, bytes)) {
                let _ = self.arrived.push(frame);
                self.arrival.notify();
            }
        }
        Some(false)
    }

    /// The error of a device whose thread has ended.
    fn state(&self) -> Result<(), DeviceError> {
        if self.gone.load(Relaxed) {
            Err(DeviceError::Gone {
                interface: "smoltcp".to_owned(),
            })
        } else {
            Ok(())
        }
    }
}

/// Ends the thread when dropped.
#[derive(Debug)]
struct Owner {
    bridge: Arc<Bridge>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.bridge.closed.store(true, Relaxed);
        self.bridge.work.notify();
        if let Some(thread) = self.thread.take() {
            // If it panicked, both halves have reported that.
            let _ = thread.join();
        }
    }
}

/// A smoltcp device on a separate thread, for our stack; made by [`FromPhy::with`].
#[derive(Debug)]
pub struct PhyThread {
    caps: Capabilities,
    mac: [u8; 6],
    owner: Owner,
}

impl Device for PhyThread {
    fn capabilities(&self) -> Capabilities {
        self.caps.clone()
    }

    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn split(self: Box<Self>) -> (Box<dyn DeviceRx>, Box<dyn DeviceTx>) {
        let owner = Arc::new(self.owner);
        let rx = ThreadRx {
            owner: Arc::clone(&owner),
            stats: RxStats::default(),
        };
        let tx = ThreadTx {
            owner,
            caps: self.caps,
            stats: TxStats::default(),
        };
        (Box::new(rx), Box::new(tx))
    }
}

#[derive(Debug)]
struct ThreadRx {
    owner: Arc<Owner>,
    stats: RxStats,
}

impl DeviceRx for ThreadRx {
    fn claim(&mut self, max: usize, out: &mut Vec<Frame>) -> Result<usize, DeviceError> {
        let bridge = &*self.owner.bridge;
        let mut claimed = 0;
        while claimed < max {
            let Some(frame) = bridge.arrived.pop() else {
                break;
            };
            self.stats.bytes += frame.len() as u64;
            out.push(frame);
            claimed += 1;
        }
        if claimed == 0 {
            return bridge.state().map(|()| 0);
        }
        bridge.work.notify();
        self.stats.frames += claimed as u64;
        Ok(claimed)
    }

    fn release(&mut self, frames: &mut Vec<Frame>) {
        frames.clear();
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), DeviceError> {
        let bridge = &*self.owner.bridge;
        bridge.arrival.wait(timeout, || {
            !bridge.arrived.is_empty() || bridge.gone.load(Relaxed)
        });
        if bridge.arrived.is_empty() {
            bridge.state()
        } else {
            Ok(())
        }
    }

    fn waker(&self) -> DeviceWaker {
        let bridge = Arc::clone(&self.owner.bridge);
        DeviceWaker::new(move || bridge.arrival.wake())
    }

    fn stats(&self) -> RxStats {
        RxStats {
            wakes: self.owner.bridge.arrival.wakes(),
            ..self.stats
        }
    }
}

#[derive(Debug)]
struct ThreadTx {
    owner: Arc<Owner>,
    caps: Capabilities,
    stats: TxStats,
}

impl DeviceTx for ThreadTx {
    fn transmit(&mut self, frames: &[TxFrame<'_>]) -> Result<usize, DeviceError> {
        let bridge = &*self.owner.bridge;
        bridge.state()?;
        let mut taken = 0;
        for frame in frames {
            if !self.caps.admits(frame) {
                self.stats.dropped += 1;
            } else if bridge.leaving.is_full() {
                self.stats.busy += 1;
                break;
            } else {
                // Only this half pushes, so a queue with room keeps it.
                let head = bare(self.caps.link, frame.head);
                let _ = bridge.leaving.push([head, frame.payload].concat());
                self.stats.frames += 1;
                self.stats.bytes += frame.len() as u64;
            }
            taken += 1;
        }
        bridge.work.notify();
        Ok(taken)
    }

    fn stats(&self) -> TxStats {
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::smoltcp::phy::{Loopback, Medium};
    use std::rc::Rc;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

    /// A loopback that is not `Send`, and panics when it sends a frame that begins with 0xee.
    struct Fragile {
        inner: Loopback,
        here: Rc<()>,
    }

    struct FragileToken<T>(T);

    impl<T: phy::TxToken> phy::TxToken for FragileToken<T> {
        fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
            self.0.consume(len, |buffer| {
                let result = f(buffer);
                assert_ne!(buffer[0], 0xee, "the interface is down");
                result
            })
        }
    }

    impl phy::Device for Fragile {
        type RxToken<'a> = <Loopback as phy::Device>::RxToken<'a>;
        type TxToken<'a> = FragileToken<<Loopback as phy::Device>::TxToken<'a>>;

        fn receive(
            &mut self,
            now: time::Instant,
        ) -> Option<(Self::RxToken<'_>, Self::TxToken<'_>)> {
            let (rx, tx) = self.inner.receive(now)?;
            Some((rx, FragileToken(tx)))
        }

        fn transmit(&mut self, now: time::Instant) -> Option<Self::TxToken<'_>> {
            assert_eq!(Rc::strong_count(&self.here), 1);
            self.inner.transmit(now).map(FragileToken)
        }

        fn capabilities(&self) -> DeviceCapabilities {
            self.inner.capabilities()
        }
    }

    fn fragile(medium: Medium) -> impl FnOnce() -> io::Result<Fragile> + Send {
        move || {
            Ok(Fragile {
                inner: Loopback::new(medium),
                here: Rc::new(()),
            })
        }
    }

    #[test]
    fn frames_pass_through_a_device_that_must_stay_on_its_thread() {
        let device = FromPhy::with(fragile(Medium::Ethernet), MAC).unwrap();
        assert_eq!(device.mac(), MAC);
        let (mut rx, mut tx) = Box::new(device).split();
        let (mut sent, mut got) = (0u32, 0u32);
        let mut frames = Vec::new();
        while got < 5_000 {
            let mut bytes = [0; 60];
            bytes[1..5].copy_from_slice(&sent.to_be_bytes());
            // More frames are in flight than the queues hold, so some are refused.
            sent += tx.transmit(&[TxFrame::new(&bytes)]).unwrap() as u32;
            if sent > got + 600 {
                rx.wait(None).unwrap();
            }
            rx.claim(3, &mut frames).unwrap();
            for frame in frames.drain(..) {
                assert_eq!(frame[1..5], got.to_be_bytes());
                got += 1;
            }
        }
        assert_eq!(rx.stats().frames, u64::from(got));
        assert_eq!(tx.stats().frames, u64::from(sent));
    }

    #[test]
    fn a_device_that_panics_is_gone_and_frames_before_that_are_not() {
        let device = FromPhy::with(fragile(Medium::Ethernet), MAC).unwrap();
        let (mut rx, mut tx) = Box::new(device).split();
        let gone = DeviceError::Gone {
            interface: "smoltcp".to_owned(),
        };
        tx.transmit(&[TxFrame::new(&[1; 60])]).unwrap();
        rx.wait(None).unwrap();
        tx.transmit(&[TxFrame::new(&[0xee; 60])]).unwrap();
        let mut frames = Vec::new();
        assert_eq!(rx.claim(8, &mut frames), Ok(1));
        assert_eq!(rx.wait(None), Err(gone.clone()));
        assert_eq!(rx.claim(8, &mut frames), Err(gone.clone()));
        assert_eq!(tx.transmit(&[TxFrame::new(&[1; 60])]), Err(gone));
    }

    #[test]
    fn what_cannot_be_made_is_an_error_of_the_caller() {
        let refused = || Err::<Loopback, _>(io::Error::from_raw_os_error(1));
        let error = FromPhy::with(refused, MAC).map(drop).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(1));
        let panics = || -> io::Result<Loopback> { panic!("on purpose") };
        let error = FromPhy::with(panics, MAC).map(drop).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Other);
    }

    #[test]
    fn frames_that_were_taken_leave_before_the_device_is_dropped() {
        use std::sync::atomic::AtomicUsize;
        static LEFT: AtomicUsize = AtomicUsize::new(0);
        struct Counting(Loopback);
        struct CountingToken;
        impl phy::TxToken for CountingToken {
            fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
                LEFT.fetch_add(1, Relaxed);
                f(&mut vec![0; len])
            }
        }
        impl phy::Device for Counting {
            type RxToken<'a> = <Loopback as phy::Device>::RxToken<'a>;
            type TxToken<'a> = CountingToken;
            fn receive(&mut self, _: time::Instant) -> Option<(Self::RxToken<'_>, CountingToken)> {
                None
            }
            fn transmit(&mut self, _: time::Instant) -> Option<CountingToken> {
                Some(CountingToken)
            }
            fn capabilities(&self) -> DeviceCapabilities {
                self.0.capabilities()
            }
        }
        let make = || Ok(Counting(Loopback::new(Medium::Ethernet)));
        let device = FromPhy::with(make, MAC).unwrap();
        let (rx, mut tx) = Box::new(device).split();
        assert_eq!(tx.transmit(&[TxFrame::new(&[1; 60]); 200]), Ok(200));
        drop((rx, tx));
        assert_eq!(LEFT.load(Relaxed), 200);
    }
}
