//! The programmable card: all device behaviours with each firmware, and its steps in random order.

use crate::support::packet::experiment;
use crate::support::{Port, behaviour};
use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_drivers::nic::{CardStep, Firmware, Inspect, Nic, NicConfig, NicEvent};
use dominoes_drivers::{Device, DeviceRx, DeviceTx, Frame, RxChecksum, TxFrame};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng};

const FIRMWARE: [Firmware; 5] = [
    Firmware::Uniprocessor,
    Firmware::Partitioned,
    Firmware::Dynamic(2),
    Firmware::Dynamic(3),
    Firmware::Copies(2),
];

fn run(config: &NicConfig, wire: &MemoryConfig, both: bool) {
    for (name, test) in behaviour::ALL {
        println!("{:?} {name}", config.firmware);
        let (left, right) = memory::pair(wire.clone());
        let start = |device| Port::new(Nic::start(config, device).unwrap());
        if both {
            test(start(left), start(right));
        } else {
            // Once as the sender, once as the receiver.
            test(start(left), Port::new(right));
            let (left, right) = memory::pair(wire.clone());
            test(Port::new(left), start(right));
        }
    }
}

#[test]
fn a_card_between_the_driver_and_a_wire() {
    for firmware in FIRMWARE {
        let config = NicConfig::default().firmware(firmware);
        run(&config, &MemoryConfig::default(), false);
    }
}

#[test]
fn two_cards_on_one_wire() {
    for firmware in FIRMWARE {
        let config = NicConfig::default().firmware(firmware);
        run(&config, &MemoryConfig::default(), true);
    }
}

#[test]
fn a_card_passes_the_offloads_of_its_wire_on() {
    let config = NicConfig::default()
        .firmware(Firmware::Partitioned)
        .ring(16)
        .buffered(8);
    run(
        &config,
        &MemoryConfig::default().tso4_max_bytes(65_549),
        true,
    );
}

/// Pseudo-random choices from a seed.
struct Choices(TestRng);

impl Choices {
    fn below(&mut self, limit: usize) -> usize {
        self.0.next_u32() as usize % limit
    }
}

/// Two cards and their drivers, whose steps run in a chosen order.
struct Steps {
    rng: Choices,
    rx: [Box<dyn DeviceRx>; 2],
    tx: [Box<dyn DeviceTx>; 2],
    cards: [dominoes_drivers::nic::Card; 2],
    sent: [u32; 2],
    got: [Vec<Frame>; 2],
}

fn bytes_of(way: usize, number: u32) -> Vec<u8> {
    let mac = |way| [2, 0, 0, 0, 0, way as u8 + 1];
    experiment(
        mac(1 - way),
        mac(way),
        number,
        60 + (number as usize * 131) % 1_400,
    )
}

impl Steps {
    fn new(seed: u64) -> Steps {
        let seed: Vec<u8> = seed.to_le_bytes().repeat(4);
        let mut rng = Choices(TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
        let depth = 1 + rng.below(40);
        let wire = memory::pair(MemoryConfig::default().queue_depth(depth));
        let mut build = |wire: memory::MemoryDevice| {
            let firmware = FIRMWARE[rng.below(FIRMWARE.len())];
            let mut size = |most| 1 + rng.below(most);
            let config = NicConfig::default()
                .firmware(firmware)
                .ring(size(40))
                .buffered(size(20))
                .batch(size(8))
                .coalesced(size(20))
                .inspect(Inspect::new(|_| RxChecksum::Valid));
            let (nic, card) = Nic::by_hand(&config, wire);
            let (rx, tx) = Box::new(nic).split();
            (rx, tx, card)
        };
        let ((rx0, tx0, card0), (rx1, tx1, card1)) = (build(wire.0), build(wire.1));
        Steps {
            rng,
            rx: [rx0, rx1],
            tx: [tx0, tx1],
            cards: [card0, card1],
            sent: [0; 2],
            got: Default::default(),
        }
    }

    fn step(&mut self, most: u32) {
        let side = self.rng.below(2);
        match self.rng.below(12) {
            0 => {
                let count = self.rng.below(20) as u32;
                let upto = (self.sent[side] + count).min(most);
                let bytes: Vec<_> = (self.sent[side]..upto).map(|n| bytes_of(side, n)).collect();
                let frames: Vec<_> = bytes.iter().map(|bytes| TxFrame::new(bytes)).collect();
                self.sent[side] += self.tx[side].transmit(&frames).unwrap() as u32;
            }
            1 => {
                let max = self.rng.below(20);
                self.rx[side].claim(max, &mut self.got[side]).unwrap();
            }
            _ => {
                let processors = self.cards[side].processors();
                let which = self.rng.below(processors.len());
                let step = CardStep::ALL[self.rng.below(CardStep::ALL.len())];
                processors[which].step(step);
            }
        }
    }

    /// Checks that all sent frames arrived so far, in order.
    fn check(&mut self, from: &mut [u32; 2]) -> Result<(), String> {
        for (side, from) in from.iter_mut().enumerate() {
            for frame in &self.got[side] {
                let number = *from;
                if frame.bytes() != bytes_of(1 - side, number) {
                    return Err(format!("side {side}: frame {number} is another one"));
                }
                if frame.meta.checksum != RxChecksum::Valid {
                    return Err(format!("side {side}: frame {number} was not inspected"));
                }
                *from += 1;
            }
            if self.rng.below(2) == 0 {
                self.rx[side].release(&mut self.got[side]);
            } else {
                self.got[side].clear();
            }
        }
        Ok(())
    }
}

/// Frames sent in each direction.
const FRAMES: u32 = 150;

/// Runs `count` steps, then all parts in turn until no work is left.
fn every_frame_arrives(seed: u64, count: usize) -> Result<(), String> {
    let mut steps = Steps::new(seed);
    let mut from = [0; 2];
    for _ in 0..count {
        steps.step(FRAMES);
        steps.check(&mut from)?;
    }
    // Frames that are missing then are lost, not late.
    let mut idle = 0;
    while idle < 3 {
        let before = (steps.sent, from);
        let done: usize = steps.cards.iter_mut().map(|card| card.turn()).sum();
        for side in 0..2 {
            let rest: Vec<_> = (steps.sent[side]..FRAMES)
                .map(|n| bytes_of(side, n))
                .collect();
            let frames: Vec<_> = rest.iter().map(|bytes| TxFrame::new(bytes)).collect();
            steps.sent[side] += steps.tx[side].transmit(&frames).unwrap() as u32;
            steps.rx[side].claim(64, &mut steps.got[side]).unwrap();
        }
        steps.check(&mut from)?;
        let is_idle = done == 0 && before == (steps.sent, from);
        idle = if is_idle { idle + 1 } else { 0 };
    }
    if from != [FRAMES; 2] || steps.sent != [FRAMES; 2] {
        return Err(format!("{:?} sent, {from:?} arrived", steps.sent));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 300, ..ProptestConfig::default() })]

    #[test]
    fn every_order_of_steps_passes_every_frame_once_and_in_order(
        seed in any::<u64>(),
        count in 0_usize..3_000,
    ) {
        every_frame_arrives(seed, count).map_err(TestCaseError::fail)?;
    }
}

#[test]
fn one_frame_each_way_takes_the_events_of_the_paper() {
    let (wire, peer) = memory::pair(MemoryConfig::default());
    let config = NicConfig::default().firmware(Firmware::Partitioned);
    let (nic, mut card) = Nic::by_hand(&config, wire);
    let (mut rx, mut tx) = Box::new(nic).split();
    let (mut far_rx, mut far_tx) = Box::new(peer).split();
    while card.turn() > 0 {}
    let runs = |card: &mut dominoes_drivers::nic::Card| {
        card.processors()
            .iter()
            .map(|one| one.profile().runs)
            .collect::<Vec<_>>()
    };
    let before = runs(&mut card);
    assert_eq!(tx.transmit(&[TxFrame::new(&[1; 60])]), Ok(1));
    while card.turn() > 0 {}
    let mut got = Vec::new();
    assert_eq!(far_rx.claim(2, &mut got), Ok(1));
    let sent = runs(&mut card);
    let count = |of: &[[u64; NicEvent::COUNT]], cpu: usize, event: NicEvent| {
        of[cpu][event as usize] - before[cpu][event as usize]
    };
    // Processor A reads the mailbox; B fetches the descriptor, then the frame.
    let of_b = [
        (NicEvent::SendDescriptorsReady, 1),
        (NicEvent::DmaReadComplete, 2),
        (NicEvent::UpdateSendConsumer, 1),
    ];
    assert_eq!(count(&sent, 0, NicEvent::Mailbox), 1);
    for (event, times) in of_b {
        assert_eq!(count(&sent, 1, event), times, "{}", event.name());
    }
    assert!(count(&sent, 1, NicEvent::SendDataReady) >= 1);
    assert_eq!(
        sent[0].iter().sum::<u64>(),
        before[0].iter().sum::<u64>() + 1
    );

    assert_eq!(far_tx.transmit(&[TxFrame::new(&[2; 60])]), Ok(1));
    while card.turn() > 0 {}
    assert_eq!(rx.claim(2, &mut got), Ok(1));
    let received = runs(&mut card);
    let of_a = [
        (NicEvent::ReceiveComplete, 1),
        (NicEvent::UpdateReturnProducer, 1),
    ];
    for (event, times) in of_a {
        let taken = received[0][event as usize] - sent[0][event as usize];
        assert_eq!(taken, times, "{}", event.name());
    }
    assert_eq!(received[1], sent[1], "processor B has no part in receiving");
}

#[test]
fn frames_wait_at_the_wire_while_the_host_claims_none() {
    let (wire, peer) = memory::pair(MemoryConfig::default().queue_depth(8));
    let config = NicConfig::default().ring(4).buffered(4);
    let (nic, mut card) = Nic::by_hand(&config, wire);
    let (mut rx, _tx) = Box::new(nic).split();
    let (_, mut far) = Box::new(peer).split();
    let bytes: Vec<_> = (0..40).map(|n| bytes_of(0, n)).collect();
    let mut sent = 0;
    loop {
        let frames: Vec<_> = bytes[sent..]
            .iter()
            .map(|bytes| TxFrame::new(bytes))
            .collect();
        let taken = far.transmit(&frames).unwrap();
        sent += taken;
        if card.turn() + taken == 0 {
            break;
        }
    }
    // The return ring, the receive buffer and the wire are full.
    assert_eq!(sent, 4 + 4 + 8);
    let mut got = Vec::new();
    while rx.claim(8, &mut got).unwrap() + card.turn() > 0 {}
    assert_eq!(got.len(), 16);
    assert!(
        got.iter()
            .map(|frame| frame.bytes())
            .eq(bytes.iter().take(16).map(Vec::as_slice))
    );
}
