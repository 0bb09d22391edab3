//! The virtio network header, which TAP and AF_PACKET put in front of each frame.
//!
//! Pure conversion between the header's bytes and this crate's metadata; see `struct
//! virtio_net_hdr` in `linux/virtio_net.h` and section 5.1.6 of the virtio 1.2 specification.
//! Fields are in native byte order, the default of both kernel interfaces. Nothing here panics,
//! whatever the bytes.

use crate::{Gso, GsoKind, RxChecksum, RxMeta, TxChecksum, TxMeta};

/// Length of the header without the buffer count, in bytes.
pub(crate) const HEADER_LEN: usize = 10;

/// Length of the header with the buffer count at its end, in bytes. The count is zero here.
pub(crate) const HEADER_LEN_WITH_COUNT: usize = 12;

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;

const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
/// One UDP datagram to send in IP fragments: one frame, not several segments.
const GSO_UDP_FRAGMENTS: u8 = 3;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
/// A flag in the type field: the TCP segments carry congestion marks.
const GSO_ECN: u8 = 0x80;

/// `struct virtio_net_hdr`, field by field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct VnetHeader {
    flags: u8,
    gso_type: u8,
    /// Length of all headers, in bytes.
    hdr_len: u16,
    /// Payload bytes per segment.
    gso_size: u16,
    /// Where the sum begins, in bytes from the start of the frame.
    csum_start: u16,
    /// Where the sum is stored, in bytes from `csum_start`.
    csum_offset: u16,
}

/// The header names a kind of segmentation that we did not ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnknownGso;

impl VnetHeader {
    /// Parses the header's first ten bytes.
    #[inline]
    pub(crate) fn from_bytes(bytes: &[u8; HEADER_LEN]) -> Self {
        let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        Self {
            flags: bytes[0],
            gso_type: bytes[1],
            hdr_len: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
        }
    }

    /// The header's first ten bytes.
    #[inline]
    pub(crate) fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = self.flags;
        bytes[1] = self.gso_type;
        let words = [
            self.hdr_len,
            self.gso_size,
            self.csum_start,
            self.csum_offset,
        ];
        for (place, word) in bytes[2..].chunks_exact_mut(2).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// A header that asks the kernel to do what `meta` leaves undone.
    #[inline]
    pub(crate) fn for_transmit(meta: &TxMeta) -> Self {
        let mut header = Self::default();
        if let TxChecksum::Partial { start, offset } = meta.checksum {
            header.flags = NEEDS_CSUM;
            header.csum_start = start;
            header.csum_offset = offset;
        }
        if let Some(gso) = meta.gso {
            header.gso_type = match gso.kind {
                GsoKind::Tcp4 => GSO_TCPV4,
                GsoKind::Tcp6 => GSO_TCPV6,
                GsoKind::Udp => GSO_UDP_L4,
            };
            header.gso_size = gso.size;
            header.hdr_len = gso.header_len;
        }
        header
    }

    /// The metadata of the frame that follows the header.
    #[inline]
    pub(crate) fn rx_meta(&self) -> Result<RxMeta, UnknownGso> {
        let checksum = if self.flags & NEEDS_CSUM != 0 {
            RxChecksum::Partial {
                start: self.csum_start,
                offset: self.csum_offset,
            }
        } else if self.flags & DATA_VALID != 0 {
            RxChecksum::Valid
        } else {
            RxChecksum::Verify
        };
        let kind = match self.gso_type & !GSO_ECN {
            GSO_NONE | GSO_UDP_FRAGMENTS => None,
            GSO_TCPV4 => Some(GsoKind::Tcp4),
            GSO_TCPV6 => Some(GsoKind::Tcp6),
            GSO_UDP_L4 => Some(GsoKind::Udp),
            _ => return Err(UnknownGso),
        };
        let gso = match kind {
            Some(_) if self.gso_size == 0 => return Err(UnknownGso),
            Some(kind) => Some(Gso {
                kind,
                size: self.gso_size,
                header_len: self.hdr_len,
            }),
            None => None,
        };
        Ok(RxMeta { checksum, gso })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode(bytes: [u8; HEADER_LEN]) -> Result<RxMeta, UnknownGso> {
        VnetHeader::from_bytes(&bytes).rx_meta()
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn a_captured_tcp_frame_is_read_field_by_field() {
        let bytes = [
            0x01, // flags: NEEDS_CSUM
            0x01, // gso_type: TCPV4
            0x42, 0x00, // hdr_len: 66
            0xa8, 0x05, // gso_size: 1448
            0x22, 0x00, // csum_start: 34
            0x10, 0x00, // csum_offset: 16
        ];
        assert_eq!(
            decode(bytes),
            Ok(RxMeta {
                checksum: RxChecksum::Partial {
                    start: 34,
                    offset: 16
                },
                gso: Some(Gso {
                    kind: GsoKind::Tcp4,
                    size: 1448,
                    header_len: 66
                }),
            })
        );
        assert_eq!(VnetHeader::from_bytes(&bytes).to_bytes(), bytes);
    }

    #[test]
    fn flags_say_who_vouches_for_the_checksum() {
        let checksum = |flags| {
            VnetHeader {
                flags,
                ..VnetHeader::default()
            }
            .rx_meta()
            .unwrap()
            .checksum
        };
        assert_eq!(checksum(0), RxChecksum::Verify);
        assert_eq!(checksum(DATA_VALID), RxChecksum::Valid);
        assert_eq!(
            checksum(NEEDS_CSUM | DATA_VALID),
            RxChecksum::Partial {
                start: 0,
                offset: 0
            }
        );
    }

    #[test]
    fn segmentation_types_are_told_apart() {
        let kind = |gso_type| {
            let header = VnetHeader {
                gso_type,
                gso_size: 1,
                ..VnetHeader::default()
            };
            header.rx_meta().map(|meta| meta.gso.map(|gso| gso.kind))
        };
        assert_eq!(kind(GSO_NONE), Ok(None));
        assert_eq!(kind(GSO_TCPV4), Ok(Some(GsoKind::Tcp4)));
        assert_eq!(kind(GSO_TCPV4 | GSO_ECN), Ok(Some(GsoKind::Tcp4)));
        assert_eq!(kind(GSO_TCPV6), Ok(Some(GsoKind::Tcp6)));
        assert_eq!(kind(GSO_UDP_L4), Ok(Some(GsoKind::Udp)));
        assert_eq!(kind(GSO_UDP_FRAGMENTS), Ok(None));
        assert_eq!(kind(2), Err(UnknownGso));
    }

    #[test]
    fn segments_of_no_size_make_no_sense() {
        let header = VnetHeader {
            gso_type: GSO_TCPV4,
            ..VnetHeader::default()
        };
        assert_eq!(header.rx_meta(), Err(UnknownGso));
    }

    proptest! {
        #[test]
        fn bytes_survive_a_round_trip(bytes: [u8; HEADER_LEN]) {
            let header = VnetHeader::from_bytes(&bytes);
            prop_assert_eq!(header.to_bytes(), bytes);
            let _ = header.rx_meta();
        }

        #[test]
        fn what_is_sent_is_what_is_received(
            start: u16, offset: u16, kind in 0..3, size in 1u16.., header_len: u16, partial: bool, merged: bool
        ) {
            let kind = [GsoKind::Tcp4, GsoKind::Tcp6, GsoKind::Udp][kind as usize];
            let gso = merged.then_some(Gso { kind, size, header_len });
            let (tx, rx) = if partial {
                (TxChecksum::Partial { start, offset }, RxChecksum::Partial { start, offset })
            } else {
                (TxChecksum::Done, RxChecksum::Verify)
            };
            let header = VnetHeader::for_transmit(&TxMeta { checksum: tx, gso });
            let there = VnetHeader::from_bytes(&header.to_bytes());
            prop_assert_eq!(there.rx_meta(), Ok(RxMeta { checksum: rx, gso }));
        }
    }
}
