//! Runs the behaviours that all devices share on the devices in memory. `tests/kernel.rs` runs
//! them on the kernel's devices.

use crate::support::{Port, behaviour, packet};
use dominoes_drivers::memory::{self, Faults, MemoryConfig};
use dominoes_drivers::{IP_MAC, LinkType, TxFrame};

fn run(config: MemoryConfig) {
    for (name, test) in behaviour::ALL {
        println!("{name}");
        let (left, right) = memory::pair(config.clone());
        test(Port::new(left), Port::new(right));
    }
}

#[test]
fn a_pair_that_carries_bare_packets() {
    run(MemoryConfig::default().link(LinkType::Ip));
    run(MemoryConfig::default()
        .link(LinkType::Ip)
        .tso4_max_bytes(65_549));
}

#[test]
fn nothing_but_packets_passes_between_ip_devices() {
    let (left, right) = memory::ip_pair(MemoryConfig::default());
    let (mut left, mut right) = (Port::new(left), Port::new(right));
    let packet = packet::experiment(IP_MAC, IP_MAC, 0, 80);
    let of_kind = |kind: [u8; 2]| {
        let mut frame = packet.clone();
        frame[12..14].copy_from_slice(&kind);
        frame
    };
    let mut other_version = packet.clone();
    other_version[14] = 0x55;
    let others = [
        of_kind([0x08, 0x06]),
        of_kind([0x81, 0x00]),
        other_version,
        packet[..33].to_vec(),
    ];
    let others = others.each_ref().map(|frame| TxFrame::new(frame));
    assert_eq!(left.tx.transmit(&others), Ok(4));
    assert_eq!(left.tx.stats().dropped, 4);
    // The version decides, and the receiver does not see the header of the sender.
    let mut from_elsewhere = of_kind([0x86, 0xdd]);
    from_elsewhere[..12].fill(0xee);
    assert_eq!(left.tx.transmit(&[TxFrame::new(&from_elsewhere)]), Ok(1));
    assert_eq!(right.claim_exactly(1, |_| true)[0].bytes(), packet);
}

/// Two pipes, each end of which is a device.
#[cfg(target_os = "linux")]
#[test]
fn devices_over_pipes() {
    use dominoes_drivers::tun::Tun;
    for (name, test) in behaviour::ALL {
        println!("{name}");
        let [(a, b), (c, d)] = [0, 1].map(|_| std::io::pipe().expect("a pipe"));
        let open = |reader: std::io::PipeReader, writer: std::io::PipeWriter| {
            Port::new(Tun::from_pipes(reader.into(), writer.into(), &Tun::options()).unwrap())
        };
        test(open(a, d), open(c, b));
    }
}

#[test]
fn a_plain_pair() {
    run(MemoryConfig::default());
}

#[test]
fn a_pair_with_offloads() {
    run(MemoryConfig::default()
        .tso4_max_bytes(65_549)
        .rx_checksum_valid(true));
}

#[test]
fn a_pair_with_one_buffer_and_a_short_queue() {
    // The longest burst that a behaviour sends before it receives is 100 frames.
    run(MemoryConfig::default().rx_pool(1).queue_depth(100));
}

#[test]
fn a_wire_whose_faults_never_happen() {
    // One in a million of a few thousand frames: with this seed no frame is lost, but every frame
    // goes through the code for faults.
    run(MemoryConfig::default().faults(Faults::new(1).loss(1)));
}

#[cfg(feature = "smoltcp")]
#[test]
fn a_device_that_smoltcp_uses_and_we_use_smoltcps() {
    use dominoes_drivers::Device;
    use dominoes_drivers::phy::{FromPhy, ToPhy};

    for (name, test) in behaviour::ALL {
        println!("{name}");
        for link in [LinkType::Ethernet, LinkType::Ip] {
            let (left, right) = memory::pair(MemoryConfig::default().link(link));
            let there_and_back = |device: memory::MemoryDevice| {
                let mac = device.mac();
                Port::new(FromPhy::new(ToPhy::new(device), mac))
            };
            test(there_and_back(left), there_and_back(right));
        }
    }
}

#[cfg(feature = "smoltcp")]
#[test]
fn smoltcp_finds_finished_checksums() {
    use dominoes_drivers::phy::ToPhy;
    use dominoes_drivers::{Device, TxChecksum, TxMeta};
    use smoltcp::phy::{Device as _, RxToken};

    let (left, right) = memory::pair(MemoryConfig::default().tx_checksum(true));
    let (_rx, mut tx) = Box::new(left).split();
    let mut phy = ToPhy::new(right);
    let bytes = packet::experiment([1; 6], [2; 6], 0, 80);
    let meta = TxMeta {
        checksum: TxChecksum::Partial {
            start: 34,
            offset: 16,
        },
        gso: None,
    };
    let frame = TxFrame {
        meta,
        ..TxFrame::new(&bytes)
    };
    assert_eq!(tx.transmit(&[frame]), Ok(1));
    let mut expected = bytes.clone();
    assert!(dominoes_drivers::complete_checksum(&mut expected, 34, 16));
    let now = smoltcp::time::Instant::ZERO;
    // An unused token loses no frame.
    assert!(phy.receive(now).is_some());
    let (token, _) = phy.receive(now).expect("the same frame");
    token.consume(|got| assert_eq!(got, expected));
    assert!(phy.receive(now).is_none() && phy.take_error().is_none());
}

#[cfg(feature = "pcap")]
mod capture {
    use super::*;
    use dominoes_drivers::pcap::Capture;
    use dominoes_drivers::{Device, TxChecksum, TxMeta};
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    /// A file in memory that can be read while it is written. Writing fails beyond a length.
    #[derive(Clone)]
    struct Shared(Arc<Mutex<Vec<u8>>>, usize);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut file = self.0.lock().unwrap();
            if file.len() + bytes.len() > self.1 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            file.extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn captured(file: &Shared) -> Vec<Vec<u8>> {
        let bytes = file.0.lock().unwrap().clone();
        let mut reader = pcap_file::pcap::PcapReader::new(&bytes[..]).unwrap();
        let mut frames = Vec::new();
        while let Some(packet) = reader.next_packet() {
            frames.push(packet.unwrap().data.into_owned());
        }
        frames
    }

    #[test]
    fn a_device_that_is_captured() {
        for (name, test) in behaviour::ALL {
            println!("{name}");
            let (left, right) = memory::pair(MemoryConfig::default().tso4_max_bytes(65_549));
            let capture = |device| Port::new(Capture::new(device, io::sink()).unwrap());
            test(capture(left), capture(right));
        }
    }

    #[test]
    fn what_was_sent_and_received_is_in_the_file_with_its_checksum() {
        let file = Shared(Arc::default(), usize::MAX);
        let (left, right) = memory::pair(MemoryConfig::default().tx_checksum(true));
        let (mut rx, mut tx) = Box::new(Capture::new(left, file.clone()).unwrap()).split();
        let (_rx, mut other) = Box::new(right).split();
        let bytes = packet::experiment([1; 6], [2; 6], 0, 80);
        let meta = TxMeta {
            checksum: TxChecksum::Partial {
                start: 34,
                offset: 16,
            },
            gso: None,
        };
        let long = [0; 2000];
        let batch = [
            TxFrame {
                meta,
                ..TxFrame::new(&bytes)
            },
            TxFrame::new(&long),
        ];
        assert_eq!(tx.transmit(&batch), Ok(2));
        assert_eq!(other.transmit(&[TxFrame::new(&bytes)]), Ok(1));
        assert_eq!(rx.claim(10, &mut Vec::new()), Ok(1));
        let mut finished = bytes.clone();
        assert!(dominoes_drivers::complete_checksum(&mut finished, 34, 16));
        assert_eq!(
            captured(&file),
            [finished, bytes],
            "what was dropped is not there"
        );
    }

    #[test]
    fn a_full_disk_ends_the_capture_and_not_the_device() {
        let file = Shared(Arc::default(), 150);
        let (left, right) = memory::pair(MemoryConfig::default());
        let (_, mut tx) = Box::new(Capture::new(left, file).unwrap()).split();
        let (mut rx, _) = Box::new(right).split();
        let bytes = packet::experiment([1; 6], [2; 6], 0, 80);
        for _ in 0..5 {
            assert_eq!(tx.transmit(&[TxFrame::new(&bytes)]), Ok(1));
        }
        assert_eq!(rx.claim(10, &mut Vec::new()), Ok(5));
    }
}
