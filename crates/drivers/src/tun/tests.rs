//! Tests of descriptors that carry bare packets, with the test at the other end.

use super::*;
use crate::vnet::HEADER_LEN;
use crate::{Frame, Gso, GsoKind, RxChecksum, TxChecksum, TxFrame, TxMeta};
use proptest::prelude::*;
use std::io::Write;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::time::Duration;

type Halves = (Box<dyn DeviceRx>, Box<dyn DeviceTx>);

/// A device over a socket, and the other end.
fn socket(vnet_header: usize) -> (Halves, UnixDatagram) {
    let (ours, theirs) = UnixDatagram::pair().expect("a pair of sockets");
    let options = Tun::options().vnet_header(vnet_header);
    let device = Tun::from_fd(ours.into(), &options).expect("a datagram socket fits");
    (Box::new(device).split(), theirs)
}

/// A device over pipes, and what writes to it.
fn pipe() -> (Halves, std::io::PipeWriter) {
    let [(reader, theirs), (_, writer)] = [0, 1].map(|_| std::io::pipe().expect("a pipe"));
    let device = Tun::from_pipes(reader.into(), writer.into(), &Tun::options());
    (Box::new(device.expect("pipes fit")).split(), theirs)
}

/// A packet of `len` bytes, of IPv4 for even lengths.
fn packet(len: usize) -> Vec<u8> {
    let mut packet = vec![len as u8; len];
    if len.is_multiple_of(2) {
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    } else {
        packet[0] = 0x60;
        packet[4..6].copy_from_slice(&(len as u16 - 40).to_be_bytes());
    }
    packet
}

fn claim(rx: &mut Box<dyn DeviceRx>, max: usize) -> Vec<Frame> {
    let mut frames = Vec::new();
    rx.claim(max, &mut frames).expect("it is there");
    frames
}

#[test]
fn only_what_keeps_the_bounds_of_packets_is_taken() {
    let refuse = |fd: OwnedFd, options: TunOptions| {
        let error = Tun::from_fd(fd, &options).map(drop).unwrap_err();
        assert!(matches!(error, DeviceError::Unsuitable { .. }), "{error}");
    };
    let datagrams = || UnixDatagram::pair().unwrap().0.into();
    refuse(UnixStream::pair().unwrap().0.into(), Tun::options());
    refuse(std::io::pipe().unwrap().0.into(), Tun::options());
    refuse(
        std::fs::File::open("/dev/null").unwrap().into(),
        Tun::options(),
    );
    refuse(datagrams(), Tun::options().vnet_header(11));
    refuse(datagrams(), Tun::options().mtu(67));
    refuse(datagrams(), Tun::options().mtu(65_536));
    let (reader, writer) = std::io::pipe().unwrap();
    let options = Tun::options().mtu(libc::PIPE_BUF + 1);
    let error = Tun::from_pipes(reader.into(), writer.into(), &options).map(drop);
    assert!(matches!(error, Err(DeviceError::Unsuitable { .. })));
}

#[test]
fn offsets_of_a_virtio_header_count_from_the_packet() {
    let ((mut rx, mut tx), theirs) = socket(12);
    let head = [&[0xee; 12][..], &[0x08, 0x00], &packet(40)].concat();
    let frame = TxFrame {
        head: &head,
        payload: &[7; 3000],
        meta: TxMeta {
            checksum: TxChecksum::Partial {
                start: 34,
                offset: 16,
            },
            gso: Some(Gso {
                kind: GsoKind::Tcp4,
                size: 1460,
                header_len: 54,
            }),
        },
    };
    assert_eq!(tx.transmit(&[frame]), Ok(1));
    let mut bytes = [0; 4000];
    let len = theirs.recv(&mut bytes).unwrap();
    assert_eq!(len, 12 + 3040);
    let words = bytes[2..10].chunks(2);
    let words = words.map(|word| u16::from_ne_bytes([word[0], word[1]]));
    assert_eq!(words.collect::<Vec<_>>(), [40, 1460, 20, 16]);
    assert_eq!(bytes[12..52], head[14..]);

    theirs.send(&bytes[..len]).unwrap();
    let got = claim(&mut rx, 1).remove(0);
    assert_eq!(got[..14], ip_header_of(&got));
    assert_eq!(got[14..], bytes[12..len]);
    assert_eq!(got.meta.gso, frame.meta.gso);
    let partial = RxChecksum::Partial {
        start: 34,
        offset: 16,
    };
    assert_eq!(got.meta.checksum, partial);
}

fn ip_header_of(frame: &[u8]) -> [u8; 14] {
    crate::ip_header(&frame[14..]).expect("a packet")
}

#[test]
fn a_virtio_header_that_lies_is_counted() {
    let ((mut rx, _tx), theirs) = socket(10);
    let mut send = |header: [u8; HEADER_LEN]| {
        theirs.send(&[&header[..], &packet(60)].concat()).unwrap();
        let frames = claim(&mut rx, 1);
        (frames.len(), rx.stats().truncated)
    };
    let far = 0xffff_u16.to_ne_bytes();
    // The checksum begins after the end of the longest frame.
    assert_eq!(send([1, 0, 0, 0, 0, 0, far[0], far[1], 0, 0]), (0, 1));
    // An unknown kind, and segments of no bytes.
    assert_eq!(send([0, 9, 0, 0, 1, 0, 0, 0, 0, 0]), (0, 2));
    assert_eq!(send([0, 1, 0, 0, 0, 0, 0, 0, 0, 0]), (0, 3));
    assert_eq!(send([0; HEADER_LEN]), (1, 3));
}

#[test]
fn what_is_no_packet_never_leaves() {
    let ((_rx, mut tx), theirs) = socket(0);
    theirs.set_nonblocking(true).unwrap();
    let mut frames = [0x0806_u16, 0x8100, 0x0800].map(|kind| {
        let mut frame = [&[0; 14][..], &packet(46)].concat();
        frame[12..14].copy_from_slice(&kind.to_be_bytes());
        frame
    });
    frames[2].truncate(13);
    let frames = frames.each_ref().map(|frame| TxFrame::new(frame));
    assert_eq!(tx.transmit(&frames), Ok(3));
    assert_eq!(tx.stats().dropped, 3);
    assert!(theirs.recv(&mut [0; 100]).is_err());
}

#[test]
fn an_end_that_is_closed_is_gone() {
    let gone = |name: &str| DeviceError::Gone {
        interface: name.to_owned(),
    };
    let frame = [&[0; 12][..], &[0x08, 0x00], &packet(46)].concat();
    let ((_, mut tx), theirs) = socket(0);
    drop(theirs);
    // At first the kernel only refuses the datagram.
    let _ = tx.transmit(&[TxFrame::new(&frame)]);
    assert_eq!(tx.transmit(&[TxFrame::new(&frame)]), Err(gone("fd")));

    let ((mut rx, _), theirs) = socket(0);
    theirs.send(&packet(60)).unwrap();
    // An empty datagram is a packet that is dropped, and no end.
    theirs.send(&[]).unwrap();
    assert_eq!(claim(&mut rx, 8).len(), 1);
    assert_eq!(rx.stats().truncated, 1);
    theirs.send(&packet(60)).unwrap();
    assert_eq!(claim(&mut rx, 8).len(), 1);

    let ((mut rx, mut tx), mut theirs) = pipe();
    theirs.write_all(&packet(60)).unwrap();
    drop(theirs);
    rx.wait(None).unwrap();
    assert_eq!(claim(&mut rx, 8).len(), 1);
    rx.wait(Some(Duration::ZERO)).unwrap_err();
    assert_eq!(rx.claim(8, &mut Vec::new()), Err(gone("pipe")));
    assert_eq!(tx.transmit(&[TxFrame::new(&frame)]), Err(gone("pipe")));
}

#[test]
fn the_lengths_in_a_pipe_divide_it_wherever_it_is_cut() {
    let packets: Vec<_> = (40..120).map(packet).collect();
    let bytes = packets.concat();
    for step in [1, 7, 39, 41, 1000, bytes.len()] {
        let ((mut rx, _tx), mut theirs) = pipe();
        let mut got = Vec::new();
        for piece in bytes.chunks(step) {
            theirs.write_all(piece).unwrap();
            got.extend(claim(&mut rx, 1));
            got.extend(claim(&mut rx, 1000));
        }
        let got: Vec<_> = got.iter().map(|frame| frame[14..].to_vec()).collect();
        assert_eq!(got, packets, "in steps of {step}");
    }
}

#[test]
fn after_what_is_no_packet_a_pipe_is_gone() {
    for wrong in [vec![0x50; 60], vec![0x45, 0, 0, 19]] {
        let ((mut rx, _tx), mut theirs) = pipe();
        theirs.write_all(&[packet(60), wrong].concat()).unwrap();
        assert_eq!(claim(&mut rx, 8).len(), 1);
        assert!(rx.claim(8, &mut Vec::new()).is_err());
        assert_eq!(rx.stats().truncated, 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn whatever_arrives_is_a_packet_or_is_counted(
        vnet in prop::sample::select(vec![0_usize, 10, 12]),
        bytes in prop::collection::vec(any::<u8>(), 1..200),
        version in prop::sample::select(vec![0x45_u8, 0x60, 0x00, 0xf0]),
    ) {
        let ((mut rx, _tx), theirs) = socket(vnet);
        let mut bytes = bytes;
        if let Some(first) = bytes.get_mut(vnet) {
            *first = version;
        }
        theirs.send(&bytes).unwrap();
        let frames = claim(&mut rx, 4);
        prop_assert_eq!(frames.len() as u64 + rx.stats().truncated, 1);
        for frame in frames {
            prop_assert_eq!(&frame[14..], &bytes[vnet..]);
            prop_assert_eq!(&frame[..14], ip_header_of(&frame));
        }
    }
}
