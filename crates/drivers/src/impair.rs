//! A bad wire in time: delay, rate, a queue that overflows, and the [`Faults`] of a cable.
//!
//! A [`Link`] is one direction as plain data: time is an argument, frames go in and come out, and
//! it says when the next one arrives. Simulations drive it with virtual time. [`Impaired`] puts one
//! in each direction of any device, [`bridge`] between two.
//!
//! ```
//! use dominoes_drivers::Frame;
//! use dominoes_drivers::impair::{Link, LinkConfig};
//! use std::time::Duration;
//!
//! let mut link = Link::new(LinkConfig::default().delay(Duration::from_millis(5)));
//! link.offer(Duration::ZERO, Frame::from_bytes(&[0; 60]));
//! assert_eq!(link.next_arrival(), Some(Duration::from_millis(5)));
//! assert!(link.take(Duration::from_millis(4)).is_none());
//! assert!(link.take(Duration::from_millis(5)).is_some());
//! ```

mod bridge;
mod impaired;

pub use bridge::bridge;
pub use impaired::{Clock, Impaired, LinkControls};

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::Frame;
use crate::memory::{FaultStats, Faults, Wire};

/// Bytes that a frame takes on an Ethernet besides itself: preamble, frame check sequence and gap
/// between frames.
const OVERHEAD: u64 = 24;

/// How long a frame that others were to overtake waits for them.
const REORDER_TIMEOUT: Duration = Duration::from_millis(1);

/// One direction of a wire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkConfig {
    /// What goes wrong before the queue. A frame that others are to overtake waits for them no
    /// longer than a millisecond after the newest frame.
    pub faults: Faults,
    /// From the last bit sent to the last bit received. Default 0.
    pub delay: Duration,
    /// More delay, from 0 to this, drawn for each frame; frames pass each other when it is longer
    /// than their distance. Default 0.
    pub jitter: Duration,
    /// Bits per second, with 24 bytes around each frame as on Ethernet; 0, the default: no limit.
    pub rate: u64,
    /// Bytes that may wait for the rate; what comes on top is dropped. 0, the default: no limit.
    pub queue: u64,
}

impl LinkConfig {
    /// Sets [`faults`](Self::faults).
    pub fn faults(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }

    /// Sets [`delay`](Self::delay).
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Sets [`jitter`](Self::jitter).
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.jitter = jitter;
        self
    }

    /// Sets [`rate`](Self::rate), in bits per second, and [`queue`](Self::queue), in bytes.
    pub fn rate(mut self, rate: u64, queue: u64) -> Self {
        self.rate = rate;
        self.queue = queue;
        self
    }

    /// The same, with choices from another seed.
    pub fn seed(mut self, seed: u64) -> Self {
        self.faults.seed = seed;
        self
    }
}

/// What a link has done so far, in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkStats {
    /// Offered.
    pub offered: u64,
    /// Delivered, copies included.
    pub delivered: u64,
    /// Dropped because the queue was full.
    pub overflowed: u64,
    /// What went wrong besides.
    pub faults: FaultStats,
}

/// One direction of a wire, driven by whoever has the time. Times are spans since a start that the
/// driver chooses, and never go back.
#[derive(Debug)]
pub struct Link {
    config: LinkConfig,
    wire: Wire,
    /// When frames that are held back are let go.
    reorder_timeout: Duration,
    /// When each frame that waits for the rate has left, and its length in bytes.
    waiting: VecDeque<(Duration, u64)>,
    waiting_bytes: u64,
    /// When the rate is free again.
    free_at: Duration,
    /// By arrival, and by the order in which they left.
    in_flight: BTreeMap<(Duration, u64), Frame>,
    count: u64,
    stats: LinkStats,
}

impl Link {
    /// An empty one.
    pub fn new(config: LinkConfig) -> Self {
        Self {
            wire: Wire::new(config.faults.clone()),
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

    /// A frame is sent.
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

    /// The next frame that has arrived by `now`.
    pub fn take(&mut self, now: Duration) -> Option<Frame> {
        self.release_held(now);
        let first = self.in_flight.first_entry()?;
        if first.key().0 > now {
            return None;
        }
        self.stats.delivered += 1;
        Some(first.remove())
    }

    /// When [`take`](Self::take) has to be called next, unless something is offered before; `None`:
    /// never.
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

    /// From now on nothing goes wrong, and nothing is dropped for want of room; rate and delay
    /// stay. What is under way is not affected.
    pub fn clear_faults(&mut self) {
        self.wire.clear_faults();
        self.config.queue = 0;
    }

    /// Lets frames go that were held back in vain.
    fn release_held(&mut self, now: Duration) {
        if self.wire.holds_frames() && self.reorder_timeout <= now {
            let at = self.reorder_timeout;
            while let Some(frame) = self.wire.pop_held() {
                self.depart(at, frame);
            }
        }
    }

    /// The frame enters the queue.
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

    fn drain(link: &mut Link, now: Duration) -> Vec<u8> {
        std::iter::from_fn(|| link.take(now))
            .map(|frame| frame[0])
            .collect()
    }

    #[test]
    fn a_rate_spaces_frames_by_their_length() {
        // 101 + 24 bytes are 1000 bits: a millisecond at 1 Mbit/s.
        let mut link = Link::new(LinkConfig::default().rate(1_000_000, 0).delay(MS * 5));
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
        let mut link = Link::new(LinkConfig::default().rate(1_000_000, 303));
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
            let mut link = Link::new(config);
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
        let mut link = Link::new(LinkConfig::default().faults(faults));
        link.offer(MS, frame(1));
        assert_eq!(link.next_arrival(), Some(MS * 2));
        assert!(link.take(MS).is_none());
        assert_eq!(drain(&mut link, MS * 2), [1]);
    }

    #[test]
    fn a_mended_link_loses_nothing_any_more() {
        let config = LinkConfig::default().faults(Faults::new(1).loss(1_000_000));
        let mut link = Link::new(config);
        link.offer(Duration::ZERO, frame(1));
        link.clear_faults();
        link.offer(Duration::ZERO, frame(2));
        assert_eq!(drain(&mut link, Duration::ZERO), [2]);
    }
}
