//! A bad wire over time: delay, limited rate, a bounded queue, and the [`Faults`] of a cable.
//!
//! An [`ImpairedLink`] is one direction of the wire as plain data: time is an argument, frames go
//! in and come out, and [`ImpairedLink::next_arrival`] returns when the next one arrives.
//! Simulations drive it with virtual time. [`Impaired`] puts one into each direction of any
//! device, [`bridge`] between two devices.
//!
//! ```
//! use dominoes_drivers::Frame;
//! use dominoes_drivers::impair::{ImpairedLink, LinkConfig};
//! use std::time::Duration;
//!
//! let mut link = ImpairedLink::new(LinkConfig::default().delay(Duration::from_millis(5)));
//! link.offer(Duration::ZERO, Frame::from_bytes(&[0; 60]));
//! assert_eq!(link.next_arrival(), Some(Duration::from_millis(5)));
//! assert!(link.take(Duration::from_millis(4)).is_none());
//! assert!(link.take(Duration::from_millis(5)).is_some());
//! ```

mod bridge;
mod impaired;

pub use bridge::bridge;
pub use impaired::{ImpairClock, Impaired, LinkControls};

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::Frame;
use crate::memory::{FaultStats, Faults, FaultyWire};

/// Bytes that Ethernet adds to each frame: preamble, frame check sequence and inter-frame gap.
const OVERHEAD: u64 = 24;

/// How long a frame to be overtaken waits for other frames.
const REORDER_TIMEOUT: Duration = Duration::from_millis(1);

crate::settings! {
    /// Configuration of one direction of a wire.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct LinkConfig {
        /// Faults that occur before the queue. A frame to be overtaken is released one millisecond
        /// after the newest frame at the latest.
        pub faults: Faults = Faults::default();
        /// Time from the last bit sent to the last bit received. Default 0.
        pub delay: Duration = Duration::ZERO;
        /// Additional delay, drawn for each frame from 0 to this. A frame overtakes the one before
        /// it when their delays differ by more than their distance. Default 0.
        pub jitter: Duration = Duration::ZERO;
        /// Bits per second, with 24 bytes added to each frame as on Ethernet. 0, the default: no
        /// limit.
        pub rate: u64 = 0 => none;
        /// Bytes that may wait for the rate; frames beyond that are dropped. 0, the default: no
        /// limit.
        pub queue: u64 = 0 => none;
    }
}

impl LinkConfig {
    crate::settings! {
        /// Sets [`rate`](Self::rate), in bits per second, and [`queue`](Self::queue), in bytes.
        fn rate(self, rate: u64, queue: u64) { self.rate = rate; self.queue = queue }

        /// Sets the seed of the faults and the jitter.
        fn seed(self, seed: u64) { self.faults.seed = seed }
    }
}

/// Counts of a link, in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkStats {
    /// Frames offered.
    pub offered: u64,
    /// Frames delivered, including copies.
    pub delivered: u64,
    /// Frames dropped because the queue was full.
    pub overflowed: u64,
    /// The other faults.
    pub faults: FaultStats,
}

/// One direction of a wire. The caller supplies the time, as a duration since a start of its
/// choice; it must never go back.
#[derive(Debug)]
pub struct ImpairedLink {
    config: LinkConfig,
    wire: FaultyWire,
    /// When the frames that are held back are released.
    reorder_timeout: Duration,
    /// For each frame that waits for the rate: when its last bit is sent, and its length in bytes.
    waiting: VecDeque<(Duration, u64)>,
    waiting_bytes: u64,
    /// When the rate allows the next frame.
    free_at: Duration,
    /// Frames on the wire, by time of arrival and then by order of departure.
    in_flight: BTreeMap<(Duration, u64), Frame>,
    count: u64,
    stats: LinkStats,
}

impl ImpairedLink {
    /// An empty link.
    pub fn new(config: LinkConfig) -> Self {
        Self {
            wire: FaultyWire::new(config.faults.clone()),
            config,
            reorder_timeout: Duration::ZERO,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            free_at: Duration::ZERO,
            in_flight: BTreeMap::new(),
            count: 0,
            stats: LinkStats::default(),
        }
    }

    /// Sends a frame.
    pub fn offer(&mut self, now: Duration, frame: Frame) {
        self.stats.offered += 1;
        self.release_held(now);
        let len = frame.len();
        self.wire.accept(frame, &|| vec![0; len].into(), &drop);
        self.reorder_timeout = now.saturating_add(REORDER_TIMEOUT);
        while let Some(frame) = self.wire.pop_due() {
            self.depart(now, frame);
        }
    }

    /// Returns the next frame that has arrived by `now`.
    pub fn take(&mut self, now: Duration) -> Option<Frame> {
        self.release_held(now);
        let first = self.in_flight.first_entry()?;
        if first.key().0 > now {
            return None;
        }
        self.stats.delivered += 1;
        Some(first.remove())
    }

    /// When to call [`take`](Self::take) next, unless a frame is offered earlier; `None`: never.
    pub fn next_arrival(&self) -> Option<Duration> {
        let flying = self.in_flight.keys().next().map(|key| key.0);
        let held = self.wire.holds_frames().then_some(self.reorder_timeout);
        [flying, held].into_iter().flatten().min()
    }

    /// Counts so far.
    pub fn stats(&self) -> LinkStats {
        LinkStats {
            faults: self.wire.stats(),
            ..self.stats
        }
    }

    /// Turns off faults and the limit of the queue for later frames. Rate and delay remain, and
    /// frames on the wire are not affected.
    pub fn clear_faults(&mut self) {
        self.wire.clear_faults();
        self.config.queue = 0;
    }

    /// Releases frames whose time to be overtaken is over.
    fn release_held(&mut self, now: Duration) {
        if self.wire.holds_frames() && self.reorder_timeout <= now {
            let at = self.reorder_timeout;
            while let Some(frame) = self.wire.pop_held() {
                self.depart(at, frame);
            }
        }
    }

    /// Puts a frame into the queue.
    fn depart(&mut self, now: Duration, frame: Frame) {
        let number = self.count;
        self.count += 1;
        let mut gone = now;
        if self.config.rate > 0 {
            while let Some(&(at, len)) = self.waiting.front()
                && at <= now
            {
                self.waiting.pop_front();
                self.waiting_bytes -= len;
            }
            let len = frame.len() as u64;
            if self.config.queue > 0 && self.waiting_bytes + len > self.config.queue {
                self.stats.overflowed += 1;
                return;
            }
            let bits = u128::from((len + OVERHEAD) * 8);
            let nanos = (bits * 1_000_000_000).div_ceil(u128::from(self.config.rate));
            let wire_time = Duration::from_nanos(nanos as u64);
            gone = self.free_at.max(now).saturating_add(wire_time);
            self.free_at = gone;
            self.waiting.push_back((gone, len));
            self.waiting_bytes += len;
        }
        let jitter = self.config.jitter.as_nanos() as u64;
        let late = Duration::from_nanos(self.wire.late(number, jitter));
        let at = gone.saturating_add(self.config.delay).saturating_add(late);
        self.in_flight.insert((at, number), frame);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn frame(number: u8) -> Frame {
        Frame::from_bytes(&[number; 101])
    }

    fn drain(link: &mut ImpairedLink, now: Duration) -> Vec<u8> {
        std::iter::from_fn(|| link.take(now))
            .map(|frame| frame[0])
            .collect()
    }

    #[test]
    fn a_rate_spaces_frames_by_their_length() {
        // 101 + 24 bytes are 1000 bits: a millisecond at 1 Mbit/s.
        let mut link = ImpairedLink::new(LinkConfig::default().rate(1_000_000, 0).delay(MS * 5));
        for number in 0..3 {
            link.offer(Duration::ZERO, frame(number));
        }
        for number in 0..3 {
            let at = link.next_arrival().unwrap();
            assert_eq!(at, MS * (6 + u32::from(number)));
            assert_eq!(drain(&mut link, at), [number]);
        }
        assert_eq!(link.next_arrival(), None);
    }

    #[test]
    fn a_full_queue_drops_the_newest_and_takes_more_when_it_has_drained() {
        let mut link = ImpairedLink::new(LinkConfig::default().rate(1_000_000, 303));
        for number in 0..5 {
            link.offer(Duration::ZERO, frame(number));
        }
        assert_eq!(link.stats().overflowed, 2);
        link.offer(MS, frame(5));
        assert_eq!(link.stats().overflowed, 2);
        assert_eq!(drain(&mut link, MS * 10), [0, 1, 2, 5]);
        assert_eq!(link.stats().delivered, 4);
    }

    #[test]
    fn jitter_lets_frames_pass_each_other_and_repeats_with_the_seed() {
        let run = |seed| {
            let config = LinkConfig::default().jitter(MS * 10).seed(seed);
            let mut link = ImpairedLink::new(config);
            for number in 0..50 {
                link.offer(Duration::ZERO, frame(number));
            }
            drain(&mut link, MS * 10)
        };
        assert_eq!(run(3), run(3));
        assert_ne!(run(3), run(4));
        assert!(!run(3).is_sorted() && run(3).len() == 50);
    }

    #[test]
    fn a_frame_held_back_for_nobody_comes_after_a_millisecond() {
        let faults = Faults::new(1).reorder(1_000_000, 3);
        let mut link = ImpairedLink::new(LinkConfig::default().faults(faults));
        link.offer(MS, frame(1));
        assert_eq!(link.next_arrival(), Some(MS * 2));
        assert!(link.take(MS).is_none());
        assert_eq!(drain(&mut link, MS * 2), [1]);
    }

    #[test]
    fn a_mended_link_loses_nothing_any_more() {
        let config = LinkConfig::default().faults(Faults::new(1).loss(1_000_000));
        let mut link = ImpairedLink::new(config);
        link.offer(Duration::ZERO, frame(1));
        link.clear_faults();
        link.offer(Duration::ZERO, frame(2));
        assert_eq!(drain(&mut link, Duration::ZERO), [2]);
    }
}
