use super::headers::{Ends, HEADERS_LEN, Numbers, Patch, TcpHeader, flags};
use super::sender::ACK_AFTER_IDLE_CLAIMS;
use super::*;
use crate::{Frame, TxChecksum, TxFrame, TxMeta};

fn peer(role: Role) -> PeerConfig {
    PeerConfig::new(role).pool_frames(640)
}

fn claim(rx: &mut PeerRx, max: usize) -> Vec<Frame> {
    let mut frames = Vec::new();
    assert_eq!(rx.claim(max, &mut frames), Ok(frames.len()));
    frames
}

/// A frame of the stack on connection `index`.
fn ours(index: u16, flags: u8, seq: u32, ack: u32, wnd: u16, rest: [&[u8]; 2]) -> Vec<u8> {
    let mut ends = Ends::default().reversed();
    ends.to.set_port(40_000 + index);
    let mut frame = headers::tcp_frame(&ends, flags, wnd, rest[0], rest[1]);
    let numbers = Numbers {
        source_port: ends.from.port(),
        seq,
        ack,
        timestamps: (seq, 0),
    };
    Patch::new(&frame).bare(&mut frame, &numbers);
    frame
}

fn open_all(config: PeerConfig) -> (PeerRx, PeerTx, PeerHandle) {
    let (connections, timestamps) = (config.connections as u16, config.timestamps);
    let (device, handle) = PeerDevice::new(config).unwrap();
    handle.verify(false);
    let (mut rx, mut tx) = device.into_halves();
    for index in 0..connections {
        assert_eq!(rx.claim(0, &mut Vec::new()), Ok(0));
        let syn = claim(&mut rx, 32);
        let seen = TcpHeader::read(&syn[0]).unwrap();
        assert_eq!((seen.flags, syn.len()), (flags::SYN, 1));
        assert!(claim(&mut rx, 32).is_empty());
        let options = headers::syn_options(1460, 4, timestamps);
        let both = flags::SYN | flags::ACK;
        let rest = [&options[..], &[]];
        let syn_ack = ours(index, both, 99, PEER_ISS + 1, u16::MAX, rest);
        tx.transmit(&[TxFrame::new(&syn_ack)]).unwrap();
        let ack = claim(&mut rx, 32);
        assert_eq!(
            TcpHeader::read(&ack[0]).map(|s| (s.seq, s.ack)),
            Some((PEER_ISS + 1, 100))
        );
    }
    (rx, tx, handle)
}

fn open(role: Role) -> (PeerRx, PeerTx, PeerHandle) {
    open_all(peer(role))
}

#[test]
fn the_sender_stops_at_the_edge_of_the_window() {
    let (mut rx, mut tx, handle) = open(Role::Sender);
    let mut sent = 0;
    loop {
        let mut frames = claim(&mut rx, 32);
        if frames.is_empty() {
            break;
        }
        assert!(frames.iter().all(|f| headers::checksum_is_good(f)));
        sent += frames.len() as u32;
        rx.release(&mut frames);
    }
    assert_eq!(sent, 65_535 / 1448);
    let upto = PEER_ISS + 1 + sent * 1448;
    let ack = ours(0, flags::ACK, 100, upto, 1448 * 2 / 16 + 1, [&[], &[]]);
    tx.transmit(&[TxFrame::new(&ack)]).unwrap();
    assert_eq!(claim(&mut rx, 32).len(), 2);
    assert_eq!(handle.check(), Ok(()));
    tx.transmit(&[TxFrame::new(&ack)]).unwrap();
    assert!(handle.check().is_err());
}

#[test]
fn the_receiver_acknowledges_every_second_segment_and_a_last_one_late() {
    let (mut rx, mut tx, handle) = open(Role::Receiver);
    let segment = |seq| ours(0, flags::ACK, seq, PEER_ISS + 1, 9, [&[], &[1; 1448]]);
    for i in 0..5 {
        tx.transmit(&[TxFrame::new(&segment(100 + 1448 * i))])
            .unwrap();
    }
    let acks: Vec<_> = claim(&mut rx, 32)
        .iter()
        .map(|f| TcpHeader::read(f).unwrap().ack)
        .collect();
    assert_eq!(acks, [100 + 2 * 1448, 100 + 4 * 1448]);
    let late = (0..ACK_AFTER_IDLE_CLAIMS)
        .map(|_| claim(&mut rx, 32).len())
        .sum::<usize>();
    assert_eq!(late, 1);
    assert_eq!(handle.received_bytes(0), 5 * 1448);
    tx.transmit(&[TxFrame::new(&segment(100))]).unwrap();
    assert_eq!(
        (handle.sent_again(), handle.received_bytes(0)),
        (1, 5 * 1448)
    );
    assert_eq!(handle.check(), Ok(()));
    // Half of the segment is new.
    tx.transmit(&[TxFrame::new(&segment(100 + 4 * 1448 + 724))])
        .unwrap();
    assert_eq!(
        (handle.sent_again(), handle.received_bytes(0)),
        (2, 5 * 1448 + 724)
    );
    assert_eq!(handle.check(), Ok(()));
}

#[test]
fn segments_behind_a_hole_count_when_it_is_filled() {
    let (_, mut tx, handle) = open(Role::Receiver);
    let segment = |seq| ours(0, flags::ACK, seq, PEER_ISS + 1, 9, [&[], &[1; 1448]]);
    for i in [0, 3, 4, 2, 6] {
        tx.transmit(&[TxFrame::new(&segment(100 + 1448 * i))])
            .unwrap();
    }
    assert_eq!((handle.out_of_order(), handle.received_bytes(0)), (4, 1448));
    for (i, upto) in [(1, 5), (5, 7)] {
        tx.transmit(&[TxFrame::new(&segment(100 + 1448 * i))])
            .unwrap();
        assert_eq!(handle.received_bytes(0), upto * 1448);
    }
    // An acknowledgment from before the hole that arrives late.
    let late = ours(0, flags::ACK, 100 + 1448, PEER_ISS + 1, 9, [&[], &[]]);
    tx.transmit(&[TxFrame::new(&late)]).unwrap();
    assert_eq!((handle.out_of_order(), handle.sent_again()), (5, 0));
    assert_eq!(
        (handle.received_bytes(0), handle.check()),
        (7 * 1448, Ok(()))
    );
}

#[test]
fn an_older_acknowledgment_does_not_close_the_window() {
    let (mut rx, mut tx, handle) = open(Role::Sender);
    while !claim(&mut rx, 32).is_empty() {}
    for upto in [45, 30] {
        let ack = PEER_ISS + 1 + upto * 1448;
        let frame = ours(0, flags::ACK, 100, ack, 1448 * 2 / 16 + 1, [&[], &[]]);
        tx.transmit(&[TxFrame::new(&frame)]).unwrap();
    }
    assert_eq!(claim(&mut rx, 32).len(), 2);
    assert_eq!((handle.out_of_order(), handle.check()), (1, Ok(())));
}

#[test]
fn with_payload_both_ways_acknowledgments_ride_on_segments_while_there_are_any() {
    let (mut rx, mut tx, handle) = open(Role::Both);
    let segment = |seq| ours(0, flags::ACK, seq, PEER_ISS + 1, 4096, [&[], &[1; 1448]]);
    tx.transmit(&[TxFrame::new(&segment(100))]).unwrap();
    let frames = claim(&mut rx, 64);
    assert_eq!(frames.len(), 45, "as far as the window goes");
    for frame in &frames {
        assert_eq!(TcpHeader::read(frame).unwrap().ack, 100 + 1448);
        assert!(frame.len() > HEADERS_LEN);
    }
    for i in 1..4 {
        tx.transmit(&[TxFrame::new(&segment(100 + i * 1448))])
            .unwrap();
    }
    let bare = claim(&mut rx, 64);
    let acks: Vec<_> = bare
        .iter()
        .map(|f| (f.len(), TcpHeader::read(f).unwrap().ack))
        .collect();
    assert_eq!(acks, [(HEADERS_LEN, 100 + 3 * 1448)]);
    assert_eq!(handle.check(), Ok(()));
}

#[test]
fn payloads_of_a_round_have_their_place_in_the_stream_whatever_order_they_come_back_in() {
    let round: Vec<Vec<u8>> = (0..128u8).map(|i| vec![i; 1448]).collect();
    let (mut rx, mut tx, handle) =
        open_all(peer(Role::Sender).payload(Payload::Round(round.clone())));
    let mut offset = 0;
    for _ in 0..40 {
        let mut frames = claim(&mut rx, 32);
        for frame in &frames {
            assert_eq!(frame[HEADERS_LEN..], round[offset / 1448 % round.len()]);
            assert!(headers::checksum_is_good(frame));
            offset += 1448;
        }
        frames.reverse();
        rx.release(&mut frames);
        let upto = PEER_ISS + 1 + offset as u32;
        let ack = ours(0, flags::ACK, 100, upto, 4096, [&[], &[]]);
        tx.transmit(&[TxFrame::new(&ack)]).unwrap();
    }
    assert!(offset > 3 * 1448 * round.len());
    assert_eq!(handle.check(), Ok(()));
}

#[test]
fn connections_take_turns_and_have_windows_of_their_own() {
    let config = peer(Role::Sender).connections(3).timestamps(true);
    let (mut rx, mut tx, handle) = open_all(config);
    let frames = claim(&mut rx, 32);
    let ports: Vec<u16> = frames
        .iter()
        .map(|f| u16::from_be_bytes([f[34], f[35]]))
        .collect();
    assert_eq!(ports[..8], [40_000; 8]);
    assert_eq!(ports[8..16], [40_001; 8]);
    assert_eq!(ports[16..24], [40_002; 8]);
    assert_eq!(ports[24..], [40_000; 8]);
    assert!(frames.iter().all(|f| headers::checksum_is_good(f)));
    while !claim(&mut rx, 32).is_empty() {}
    let upto = PEER_ISS + 1 + 45 * 1448;
    let stamps = headers::timestamps(0, 0);
    let ack = ours(1, flags::ACK, 100, upto, 1448 / 16 + 1, [&stamps, &[]]);
    tx.transmit(&[TxFrame::new(&ack)]).unwrap();
    let more = claim(&mut rx, 32);
    assert_eq!(more.len(), 1);
    assert_eq!(more[0][34..36], 40_001u16.to_be_bytes());
    // The echo is the timestamp of the newest frame of that connection.
    assert_eq!(
        more[0][HEADERS_LEN + 8..HEADERS_LEN + 12],
        100u32.to_be_bytes()
    );
    assert_eq!(handle.check(), Ok(()));
}

/// The bytes of a stack that repeats 0, 1, .., 250.
fn written(offset: usize, len: usize) -> Vec<u8> {
    (offset..offset + len).map(|i| (i % 251) as u8).collect()
}

fn send(tx: &mut PeerTx, seq: u32, payload: &[u8]) {
    let frame = ours(0, flags::ACK, seq, PEER_ISS + 1, 9, [&[], payload]);
    // Headers and payload in separate slices, as a stack has them, or all in the head.
    let (head, rest) = frame.split_at(HEADERS_LEN);
    let apart = TxFrame {
        head,
        payload: rest,
        meta: TxMeta::default(),
    };
    let frame = if seq.is_multiple_of(2) {
        apart
    } else {
        TxFrame::new(&frame)
    };
    assert_eq!(tx.transmit(&[frame]), Ok(1));
}

#[test]
fn a_payload_is_compared_only_while_that_is_asked_for() {
    let (_, mut tx, handle) = open_all(peer(Role::Receiver).expected(written(0, 251)));
    send(&mut tx, 100, &[9; 501]);
    assert_eq!(handle.check(), Ok(()));
    handle.verify(true);
    send(&mut tx, 601, &written(501, 700));
    assert_eq!(handle.check(), Ok(()));
    send(&mut tx, 1301, &written(1200, 10));
    assert_eq!(handle.check(), Err(PeerFault::Wrong(1)));
    assert_eq!(handle.received_bytes(0), 1211);
}

#[test]
fn an_encoded_payload_is_compared_at_its_place() {
    let encode = |offset: u64, plain: &[u8], sent: &mut [u8]| {
        for ((to, from), at) in sent.iter_mut().zip(plain).zip(offset..) {
            *to = from ^ (at >> 3) as u8;
        }
    };
    let config = peer(Role::Receiver)
        .expected(written(0, 251))
        .encoding(Encoding::new(encode));
    let (_, mut tx, handle) = open_all(config);
    handle.verify(true);
    let mut sent = vec![0; 700];
    encode(0, &written(0, 700), &mut sent);
    send(&mut tx, 100, &sent);
    assert_eq!(handle.check(), Ok(()));
    send(&mut tx, 800, &sent);
    assert_eq!(handle.check(), Err(PeerFault::Wrong(1)));
}

#[test]
fn checksums_are_compared_with_those_of_the_expected_bytes_at_any_time() {
    for verified in [false, true] {
        let config = peer(Role::Receiver)
            .expected(written(0, 251))
            .verify_checksums(verified);
        let (_, mut tx, handle) = open_all(config);
        // Odd lengths, so that words begin at odd offsets, too.
        let mut offset = 0;
        for len in [501, 700, 0, 1, 2, 999, 252] {
            send(&mut tx, 100 + offset as u32, &written(offset, len));
            offset += len;
        }
        assert_eq!(handle.check(), Ok(()));
        let wrong = Err(PeerFault::Wrong(1));
        // The checksum matches the frame's own bytes, which are the wrong ones.
        send(&mut tx, 100 + offset as u32, &written(offset + 1, 300));
        assert_eq!(handle.check(), if verified { wrong } else { Ok(()) });
        // A checksum that the device is to finish cannot be compared.
        let mut partial = ours(0, flags::ACK, 9_000, PEER_ISS + 1, 9, [&[], &[1; 80]]);
        partial[50] ^= 1;
        let mut partial = TxFrame::new(&partial);
        partial.meta.checksum = TxChecksum::Partial {
            start: 34,
            offset: 16,
        };
        tx.transmit(&[partial]).unwrap();
        assert_eq!(handle.check(), if verified { wrong } else { Ok(()) });
    }
}

#[test]
fn a_header_that_is_not_a_header_breaks_nothing() {
    for role in [
        Role::Sender,
        Role::Receiver,
        Role::Both,
        Role::Free,
        Role::FreeReceiver,
    ] {
        let (device, handle) = PeerDevice::new(peer(role)).unwrap();
        let (_, mut tx) = device.into_halves();
        let whole = ours(0, flags::ACK, 100, 100, 9, [&[], &[1; 40]]);
        for offset in 0..16 {
            for len in 0..whole.len() {
                let mut bytes = whole[..len].to_vec();
                if let Some(place) = bytes.get_mut(46) {
                    *place = offset << 4;
                }
                assert_eq!(tx.transmit(&[TxFrame::new(&bytes)]), Ok(1));
            }
        }
        assert!(handle.check().is_err());
        assert!(handle.check_reordering().is_err());
    }
}

#[test]
fn a_free_receiver_acknowledges_every_second_segment_in_any_order() {
    let (device, _handle) = PeerDevice::new(peer(Role::FreeReceiver)).unwrap();
    let (mut rx, mut tx) = device.into_halves();
    for place in [3, 1, 2, 0, 4] {
        let segment = ours(0, flags::ACK, place * 1448, 1, 9, [&[], &[1; 1448]]);
        tx.transmit(&[TxFrame::new(&segment)]).unwrap();
    }
    let acks = claim(&mut rx, 9);
    assert_eq!(acks.len(), 2);
    assert!(acks.iter().all(|ack| headers::checksum_is_good(ack)));
}

#[test]
fn frames_that_are_not_of_the_peer_are_freed() {
    let round = vec![vec![1; 1448], vec![2; 1448]];
    for payload in [Payload::default(), Payload::Round(round)] {
        let (mut rx, ..) = open_all(peer(Role::Sender).payload(payload));
        let sizes = [0, 13, 111, 113, 1599, 1601, 9000];
        let mut frames: Vec<Frame> = sizes.map(Frame::with_capacity).into();
        // Its identification names no payload of the peer.
        let mut stray = Frame::with_capacity(1584);
        stray.set_len(60);
        stray.bytes_mut().fill(0xff);
        frames.push(stray);
        rx.release(&mut frames);
        assert!(frames.is_empty());
        let sent = claim(&mut rx, usize::MAX);
        assert_eq!(sent.len(), 45);
        assert!(sent.iter().take(45).all(|f| headers::checksum_is_good(f)));
    }
}

#[test]
fn a_long_segment_makes_the_mtu_longer() {
    let device = |config: PeerConfig| PeerDevice::new(config).unwrap().0.capabilities();
    assert_eq!(device(peer(Role::Sender)).mtu, 1500);
    let long = peer(Role::Sender).segment_bytes(9000).timestamps(true);
    assert_eq!(device(long).mtu, 9052);
    assert!(device(peer(Role::Free).checksum_offload(true)).tx_checksum);
}

mod prepared {
    use super::*;
    use proptest::prelude::*;

    /// A segment or acknowledgment: connection (0 or 1), offset in the stream in half segments,
    /// length in half segments, acknowledgment number.
    type Sent = (u16, u32, usize, u32);

    fn frame(&(connection, place, halves, ack): &Sent) -> Vec<u8> {
        let payload = vec![1; 724 * halves];
        let options = headers::timestamps(place, 0);
        let seq = 100 + 724 * place;
        let rest = [&options[..], &payload[..]];
        ours(connection, flags::ACK, seq, PEER_ISS + 1 + ack, 9, rest)
    }

    fn told(handle: &PeerHandle) -> impl PartialEq + core::fmt::Debug {
        let received = [0, 1].map(|connection| handle.received_bytes(connection));
        let counts = [handle.out_of_order(), handle.sent_again()];
        (received, counts, handle.check())
    }

    proptest! {
        /// The counts do not depend on the frames, nor on the sizes of the parts in which they are
        /// prepared and sent.
        #[test]
        fn frames_count_as_those_that_are_not_prepared(
            sent in prop::collection::vec((0..2u16, 0..12u32, 0..3usize, 0..2u32), 1..40),
            in_order in any::<bool>(),
            parts in prop::collection::vec(1..9usize, 40),
            takes in prop::collection::vec(1..9usize, 40),
            role in prop::sample::select(vec![Role::Receiver, Role::Sender, Role::Free, Role::FreeReceiver]),
        ) {
            let mut sent = sent;
            if in_order {
                for (i, sent) in sent.iter_mut().enumerate() {
                    (sent.0, sent.1, sent.2) = (i as u16 / 20, 2 * (i as u32 % 20), 2);
                }
            }
            let frames: Vec<Vec<u8>> = sent.iter().map(frame).collect();
            let frames: Vec<TxFrame<'_>> = frames.iter().map(|f| TxFrame::new(f)).collect();
            let all = || match role {
                Role::Free | Role::FreeReceiver => {
                    let (device, handle) = PeerDevice::new(peer(role)).unwrap();
                    (device.into_halves().1, handle)
                }
                _ => {
                    let config = peer(role).connections(2).timestamps(true);
                    let (_, tx, handle) = open_all(config);
                    (tx, handle)
                }
            };
            let (mut plain, expected) = all();
            plain.transmit(&frames).unwrap();
            let (mut tx, handle) = all();
            let preparer = tx.preparer(frames.len()).unwrap();
            let mut first = 0;
            for part in parts {
                let end = frames.len().min(first + part);
                preparer.prepare(first, &frames[first..end]);
                first = end;
            }
            // The remaining frames.
            preparer.prepare(first, &frames[first..]);
            let mut first = 0;
            for take in takes.into_iter().cycle() {
                let count = take.min(frames.len() - first);
                if count == 0 {
                    break;
                }
                prop_assert_eq!(tx.transmit_prepared(first, count), Ok(count));
                first += count;
            }
            prop_assert_eq!(told(&handle), told(&expected));
            prop_assert_eq!(tx.stats(), plain.stats());
        }
    }
}
