//! An unreliable wire: loss, duplicates, reordering and bit errors from a seed.

use crate::{Frame, RxChecksum, complete_checksum};
use std::collections::VecDeque;

/// Faults on the way to a device.
///
/// Probabilities are in parts per million of the frames, 0 to 1,000,000. The fate of a frame
/// depends only on the seed and on the number of frames before it in this direction. Each kind of
/// fault draws from a separate sequence, so changing one rate does not change the other choices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Faults {
    /// Seed of all choices.
    pub seed: u64,
    /// Frames that are lost.
    pub loss_ppm: u32,
    /// Frames that begin a burst of losses (counted outside of bursts). Links lose frames in
    /// bursts (E. N. Gilbert, *Capacity of a burst-noise channel*, 1960).
    pub burst_ppm: u32,
    /// Longest burst, in frames; 0 counts as 1. All lengths from 1 on are equally likely.
    pub burst_frames: u32,
    /// Frames that arrive twice, the copy directly after the original.
    pub duplicate_ppm: u32,
    /// Frames that later frames overtake.
    pub reorder_ppm: u32,
    /// Most frames that overtake such a frame; 0 counts as 1. A frame is held back only until the
    /// receiver finds the queue empty, so the last frame is never late.
    pub reorder_distance: u32,
    /// Frames in which one bit after the Ethernet header is flipped. Only IPv4 and IPv6 frames are
    /// affected, since their checksums reveal it. A partial checksum is completed first, and the
    /// frame arrives as [`RxChecksum::Verify`] even if the device reports others as valid.
    pub corrupt_ppm: u32,
}

impl Faults {
    /// No faults; later choices start from `seed`.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            ..Self::default()
        }
    }

    crate::settings! {
        /// Sets [`loss_ppm`](Self::loss_ppm).
        fn loss(self, ppm: u32) { self.loss_ppm = ppm }

        /// Sets [`burst_ppm`](Self::burst_ppm) and [`burst_frames`](Self::burst_frames).
        fn bursts(self, ppm: u32, frames: u32) { self.burst_ppm = ppm; self.burst_frames = frames }

        /// Sets [`duplicate_ppm`](Self::duplicate_ppm).
        fn duplicate(self, ppm: u32) { self.duplicate_ppm = ppm }

        /// Sets [`reorder_ppm`](Self::reorder_ppm) and
        /// [`reorder_distance`](Self::reorder_distance).
        fn reorder(self, ppm: u32, distance: u32) {
            self.reorder_ppm = ppm;
            self.reorder_distance = distance;
        }

        /// Sets [`corrupt_ppm`](Self::corrupt_ppm).
        fn corrupt(self, ppm: u32) { self.corrupt_ppm = ppm }
    }

    /// Whether no fault can occur.
    pub fn is_none(&self) -> bool {
        self.loss_ppm == 0
            && self.burst_ppm == 0
            && self.duplicate_ppm == 0
            && self.reorder_ppm == 0
            && self.corrupt_ppm == 0
    }
}

/// Counts of an unreliable wire, in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FaultStats {
    /// Lost, in bursts or alone.
    pub lost: u64,
    /// Bursts of losses.
    pub bursts: u64,
    /// Delivered twice.
    pub duplicated: u64,
    /// Held back so that later frames could overtake.
    pub reordered: u64,
    /// Delivered with a flipped bit.
    pub corrupted: u64,
}

/// Applies [`Faults`] to frames as the receiver takes them from the queue.
#[derive(Debug)]
pub(crate) struct FaultyWire {
    faults: Faults,
    /// Number of frames taken from the queue.
    index: u64,
    /// Frames below this number are lost, because a burst lasts.
    burst_until: u64,
    /// Frames to deliver before the queue is read again.
    due: VecDeque<Frame>,
    /// Frames held back, each with the number of frames that may still overtake it.
    held: VecDeque<(u32, Frame)>,
    stats: FaultStats,
}

/// The kinds of choices, each with a separate sequence of numbers.
#[derive(Clone, Copy)]
enum Choice {
    Loss = 1,
    Duplicate,
    Reorder,
    Distance,
    Corrupt,
    Bit,
    Burst,
    BurstLength,
    Late,
}

impl FaultyWire {
    pub(crate) fn new(faults: Faults) -> Self {
        Self {
            faults,
            index: 0,
            burst_until: 0,
            due: VecDeque::new(),
            held: VecDeque::new(),
            stats: FaultStats::default(),
        }
    }

    pub(crate) fn stats(&self) -> FaultStats {
        self.stats
    }

    /// Turns off all faults. Frames that are held back stay so until others overtake them.
    pub(crate) fn clear_faults(&mut self) {
        self.faults = Faults::new(self.faults.seed);
        self.burst_until = 0;
    }

    /// A delay for frame `index`, uniform in 0 to `most`.
    pub(crate) fn late(&self, index: u64, most: u64) -> u64 {
        ((u128::from(self.draw(Choice::Late, index)) * (u128::from(most) + 1)) >> 64) as u64
    }

    /// Whether there are frames to deliver even if the queue is empty.
    pub(crate) fn holds_frames(&self) -> bool {
        !self.due.is_empty() || !self.held.is_empty()
    }

    /// Returns the next frame to deliver. `pop` takes one from the queue; `buffer` and `recycle`
    /// access the receiver's pool.
    pub(crate) fn next(
        &mut self,
        mut pop: impl FnMut() -> Option<Frame>,
        buffer: impl Fn() -> Box<[u8]>,
        recycle: impl Fn(Frame),
    ) -> Option<Frame> {
        loop {
            if let Some(frame) = self.due.pop_front() {
                return Some(frame);
            }
            match pop() {
                Some(frame) => self.accept(frame, &buffer, &recycle),
                None => return self.pop_held(),
            }
        }
    }

    /// Returns the next frame that is not held back.
    pub(crate) fn pop_due(&mut self) -> Option<Frame> {
        self.due.pop_front()
    }

    /// Returns the oldest frame that is held back, whether it was overtaken or not.
    pub(crate) fn pop_held(&mut self) -> Option<Frame> {
        self.held.pop_front().map(|(_, frame)| frame)
    }

    /// Decides the fate of the next frame: it is lost, or held back, or due for delivery together
    /// with the held frames that it releases.
    pub(crate) fn accept(
        &mut self,
        mut frame: Frame,
        buffer: &impl Fn() -> Box<[u8]>,
        recycle: &impl Fn(Frame),
    ) {
        let index = self.index;
        self.index += 1;
        if self.is_lost(index) {
            self.stats.lost += 1;
            return recycle(frame);
        }
        if self.happens(self.faults.corrupt_ppm, Choice::Corrupt, index) {
            self.corrupt(&mut frame, index);
        }
        if self.happens(self.faults.reorder_ppm, Choice::Reorder, index) {
            let spread = u64::from(self.faults.reorder_distance.max(1));
            let distance = 1 + (self.draw(Choice::Distance, index) % spread) as u32;
            self.stats.reordered += 1;
            return self.held.push_back((distance, frame));
        }
        let copy = self
            .happens(self.faults.duplicate_ppm, Choice::Duplicate, index)
            .then(|| {
                self.stats.duplicated += 1;
                let mut copy = buffer();
                copy[..frame.len()].copy_from_slice(&frame);
                Frame::from_buffer(copy, 0, frame.len(), frame.meta)
            });
        self.due.push_back(frame);
        self.due.extend(copy);
        self.overtake();
    }

    fn is_lost(&mut self, index: u64) -> bool {
        if index >= self.burst_until && self.happens(self.faults.burst_ppm, Choice::Burst, index) {
            let spread = u64::from(self.faults.burst_frames.max(1));
            self.burst_until = index + 1 + self.draw(Choice::BurstLength, index) % spread;
            self.stats.bursts += 1;
        }
        index < self.burst_until || self.happens(self.faults.loss_ppm, Choice::Loss, index)
    }

    /// Counts one more frame that has overtaken those held back.
    fn overtake(&mut self) {
        let mut i = 0;
        while i < self.held.len() {
            self.held[i].0 -= 1;
            if self.held[i].0 > 0 {
                i += 1;
            } else if let Some((_, frame)) = self.held.remove(i) {
                self.due.push_back(frame);
            }
        }
    }

    fn corrupt(&mut self, frame: &mut Frame, index: u64) {
        let is_ip = matches!(frame.get(12..14), Some([0x08, 0x00] | [0x86, 0xdd]));
        if !is_ip || frame.len() <= 14 {
            return;
        }
        if let RxChecksum::Partial { start, offset } = frame.meta.checksum {
            complete_checksum(frame.bytes_mut(), start, offset);
        }
        frame.meta.checksum = RxChecksum::Verify;
        let bit = self.draw(Choice::Bit, index) % ((frame.len() as u64 - 14) * 8);
        frame.bytes_mut()[14 + (bit / 8) as usize] ^= 1 << (bit % 8);
        self.stats.corrupted += 1;
    }

    fn happens(&self, ppm: u32, choice: Choice, index: u64) -> bool {
        // The upper half of the product is uniform below a million.
        ppm > 0 && (((u128::from(self.draw(choice, index))) * 1_000_000) >> 64) < u128::from(ppm)
    }

    fn draw(&self, choice: Choice, index: u64) -> u64 {
        splitmix64(splitmix64(self.faults.seed ^ ((choice as u64) << 56)).wrapping_add(index))
    }
}

/// The output function of SplitMix64 (Steele, Lea, Flood 2014) for the state that follows `state`.
fn splitmix64(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Gso, GsoKind, RxMeta};
    use proptest::prelude::*;

    const MILLION: u32 = 1_000_000;

    fn ipv4(number: u16) -> Frame {
        let mut bytes = [0; 60];
        bytes[12] = 0x08;
        bytes[40..42].copy_from_slice(&number.to_be_bytes());
        Frame::from_bytes(&bytes)
    }

    fn number(frame: &Frame) -> u16 {
        u16::from_be_bytes([frame[40], frame[41]])
    }

    /// Sends `count` numbered frames in bursts of `burst` and returns the frames that arrive.
    fn deliver(wire: &mut FaultyWire, count: u16, burst: u16) -> Vec<Frame> {
        let mut out = Vec::new();
        let mut next = 0;
        while next < count {
            let end = count.min(next + burst);
            let mut queue: VecDeque<_> = (next..end).map(ipv4).collect();
            while let Some(frame) = wire.next(|| queue.pop_front(), || vec![0; 60].into(), drop) {
                out.push(frame);
            }
            next = end;
        }
        out
    }

    fn numbers(frames: &[Frame]) -> Vec<u16> {
        frames.iter().map(number).collect()
    }

    #[test]
    fn splitmix64_gives_the_published_sequence() {
        // The first outputs from state 0.
        let states = [0, 0x9e37_79b9_7f4a_7c15, 0x3c6e_f372_fe94_f82a];
        assert_eq!(
            states.map(splitmix64),
            [
                0xe220_a839_7b1d_cdaf,
                0x6e78_9e6a_a1b9_65f4,
                0x06c4_5d18_8009_454f
            ]
        );
    }

    #[test]
    fn rates_are_kept() {
        let faults = Faults::new(1)
            .loss(100_000)
            .duplicate(50_000)
            .reorder(20_000, 3)
            .corrupt(10_000);
        let mut wire = FaultyWire::new(faults);
        let arrived = deliver(&mut wire, 50_000, 500);
        let stats = wire.stats();
        let near = |count: u64, expected: u64| {
            assert!(
                count.abs_diff(expected) < expected / 10,
                "{count} {expected}"
            )
        };
        near(stats.lost, 5_000);
        near(stats.corrupted, 450);
        near(stats.reordered, 900);
        near(stats.duplicated, 2_200);
        assert_eq!(arrived.len() as u64, 50_000 - stats.lost + stats.duplicated);
    }

    #[test]
    fn a_burst_takes_up_to_its_length_in_a_row() {
        let mut wire = FaultyWire::new(Faults::new(2).bursts(10_000, 8));
        let arrived = numbers(&deliver(&mut wire, 20_000, 100));
        let gaps = arrived.windows(2).map(|pair| pair[1] - pair[0] - 1);
        // Two bursts may follow each other at once.
        assert!(gaps.clone().all(|gap| gap <= 16));
        assert!(gaps.filter(|&gap| gap >= 8).count() > 10);
        let stats = wire.stats();
        assert!(stats.bursts.abs_diff(190) < 40, "{stats:?}");
        let mean = stats.lost as f64 / stats.bursts as f64;
        assert!((4.0..5.0).contains(&mean), "{mean} frames a burst");
    }

    #[test]
    fn total_loss_delivers_nothing_and_ends() {
        assert!(deliver(&mut FaultyWire::new(Faults::new(1).loss(MILLION)), 100, 10).is_empty());
    }

    #[test]
    fn a_frame_is_overtaken_by_no_more_than_the_distance() {
        let mut wire = FaultyWire::new(Faults::new(3).reorder(100_000, 4));
        let arrived = numbers(&deliver(&mut wire, 5_000, 100));
        assert!(!arrived.is_sorted());
        for (position, &number) in arrived.iter().enumerate() {
            let overtaken_by = arrived[..position]
                .iter()
                .filter(|&&other| other > number)
                .count();
            assert!(
                overtaken_by <= 4 + 4,
                "{number} came after {overtaken_by} later ones"
            );
        }
        let mut sorted = arrived.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..5_000).collect::<Vec<_>>());
    }

    #[test]
    fn a_frame_with_none_behind_it_is_not_late() {
        let mut wire = FaultyWire::new(Faults::new(3).reorder(MILLION, 4));
        assert_eq!(numbers(&deliver(&mut wire, 3, 1)), [0, 1, 2]);
        assert!(!wire.holds_frames());
    }

    #[test]
    fn corruption_flips_one_bit_past_the_header_and_takes_the_vouching_away() {
        let mut wire = FaultyWire::new(Faults::new(5).corrupt(MILLION));
        for number in 0..200 {
            let mut sent = ipv4(number);
            sent.meta.checksum = RxChecksum::Valid;
            let mut once = Some(sent.clone());
            let got = wire.next(|| once.take(), || unreachable!(), drop).unwrap();
            assert_eq!(got[..14], sent[..14]);
            let flipped: u32 = got
                .iter()
                .zip(sent.iter())
                .map(|(a, b)| (a ^ b).count_ones())
                .sum();
            assert_eq!((flipped, got.meta.checksum), (1, RxChecksum::Verify));
        }
    }

    #[test]
    fn frames_without_a_checksum_are_left_whole() {
        let mut wire = FaultyWire::new(Faults::new(5).corrupt(MILLION));
        let mut arp = ipv4(1);
        arp.bytes_mut()[13] = 0x06;
        let mut once = Some(arp.clone());
        let got = wire.next(|| once.take(), || unreachable!(), drop).unwrap();
        assert_eq!(got.bytes(), arp.bytes());
    }

    #[test]
    fn a_partial_checksum_is_completed_before_it_is_spoiled() {
        let mut wire = FaultyWire::new(Faults::new(9).corrupt(MILLION));
        let mut sent = ipv4(77);
        sent.meta = RxMeta {
            checksum: RxChecksum::Partial {
                start: 34,
                offset: 16,
            },
            gso: Some(Gso {
                kind: GsoKind::Tcp4,
                size: 10,
                header_len: 54,
            }),
        };
        let mut completed = sent.clone();
        complete_checksum(completed.bytes_mut(), 34, 16);
        let mut once = Some(sent);
        let got = wire.next(|| once.take(), || unreachable!(), drop).unwrap();
        let flipped: u32 = got
            .iter()
            .zip(completed.iter())
            .map(|(a, b)| (a ^ b).count_ones())
            .sum();
        assert_eq!((flipped, got.meta.checksum), (1, RxChecksum::Verify));
    }

    proptest! {
        #[test]
        fn what_happens_depends_on_seed_and_index_only(seed: u64, burst in 1u16..50) {
            let faults = Faults::new(seed).loss(50_000).duplicate(50_000).corrupt(50_000);
            let bytes = |frames: Vec<Frame>| frames.iter().map(|frame| frame.to_vec()).collect::<Vec<_>>();
            let one_by_one = bytes(deliver(&mut FaultyWire::new(faults.clone()), 300, 1));
            let in_bursts = bytes(deliver(&mut FaultyWire::new(faults), 300, burst));
            prop_assert_eq!(one_by_one, in_bursts);
        }
    }
}
