//! Frames on their way in and out, and what a device says about them.
//!
//! A received [`Frame`] owns its bytes, be they in a buffer or in memory that the kernel has lent;
//! a frame to send is a pair of borrowed slices. Both carry the two facts that let 64 KB move in
//! one step: how far the transport checksum is done, and how the frame divides into segments.

use std::fmt;
use std::ops::Deref;
use std::time::SystemTime;

#[cfg(target_os = "linux")]
use crate::umem::Lent;

/// Bytes of an Ethernet header without VLAN tag: destination, source, EtherType.
pub const ETHERNET_HEADER_LEN: usize = 14;

/// Bytes that an IEEE 802.1Q tag adds to the Ethernet header.
pub const VLAN_TAG_LEN: usize = 4;

/// A received frame: an owned buffer from its device's pool, or a place in the device's ring, and
/// what the device knows about it.
///
/// It dereferences to the frame's bytes, Ethernet header first, no frame check sequence. A frame
/// may travel to any thread and be read by several, and its bytes stay the same whatever becomes of
/// the device. Give it back with [`DeviceRx::release`](crate::DeviceRx::release) when it is done;
/// dropping it frees the buffer, and the pool makes a new one when it needs one. A place in a ring
/// is free in either case, and the ring wants it back soon.
pub struct Frame {
    buf: Buffer,
    start: u16,
    len: u32,
    /// What the device says about checksum and segmentation.
    pub meta: RxMeta,
}

/// Where the bytes of a frame live.
enum Buffer {
    Heap(Box<[u8]>),
    /// In memory that the kernel has lent. The frame begins `start` bytes behind the lent place's
    /// beginning.
    #[cfg(target_os = "linux")]
    Lent(Lent),
}

// A batch of frames moves through several vectors; 48 bytes keep that below one cache line each.
const _: () = assert!(size_of::<Frame>() <= 48);

impl Frame {
    /// A frame of its own with a copy of `bytes`, of no pool. Checksums are to be verified.
    ///
    /// # Panics
    /// If `bytes` is longer than `u32::MAX`.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self::from_buffer(bytes.into(), 0, bytes.len(), RxMeta::default())
    }

    /// An empty frame with room for `capacity` bytes; [`bytes_mut`](Self::bytes_mut) after
    /// [`set_len`](Self::set_len) reaches them.
    pub fn with_capacity(capacity: usize) -> Self {
        Self::from_buffer(zeroed(capacity), 0, 0, RxMeta::default())
    }

    /// A frame made of `buffer[start..start + len]`: for devices that keep what they receive into
    /// by itself.
    ///
    /// # Panics
    /// If the buffer is shorter, or `len` above `u32::MAX`.
    #[inline]
    pub fn from_buffer(buffer: Box<[u8]>, start: u16, len: usize, meta: RxMeta) -> Self {
        assert!(
            usize::from(start) + len <= buffer.len(),
            "{start} + {len} bytes in a buffer of {}",
            buffer.len()
        );
        let len = u32::try_from(len).expect("a frame has at most u32::MAX bytes");
        Self {
            buf: Buffer::Heap(buffer),
            start,
            len,
            meta,
        }
    }

    /// A frame in memory that the kernel has lent, `start` bytes behind the place's beginning. It
    /// must lie in one unit, or reading it panics.
    #[cfg(target_os = "linux")]
    #[inline]
    pub(crate) fn from_lent(lent: Lent, start: u16, len: u32, meta: RxMeta) -> Self {
        Self {
            buf: Buffer::Lent(lent),
            start,
            len,
            meta,
        }
    }

    /// The buffer, for the pool it came from. Empty if the frame has none; its place in a ring is
    /// free then.
    #[inline]
    pub fn into_buffer(self) -> Box<[u8]> {
        match self.buf {
            Buffer::Heap(buffer) => buffer,
            #[cfg(target_os = "linux")]
            Buffer::Lent(_) => Box::default(),
        }
    }

    /// The frame's bytes, Ethernet header first.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match &self.buf {
            Buffer::Heap(buffer) => {
                let start = usize::from(self.start);
                &buffer[start..start + self.len as usize]
            }
            #[cfg(target_os = "linux")]
            Buffer::Lent(lent) => lent.bytes(self.start.into(), self.len as usize),
        }
    }

    /// The frame as one to send on: what is left to be done to it stays so. A checksum that
    /// somebody vouched for or that is still to be verified stands in the frame.
    pub fn as_tx(&self) -> TxFrame<'_> {
        let checksum = match self.meta.checksum {
            RxChecksum::Partial { start, offset } => TxChecksum::Partial { start, offset },
            RxChecksum::Verify | RxChecksum::Valid => TxChecksum::Done,
        };
        let gso = self.meta.gso;
        TxFrame {
            meta: TxMeta { checksum, gso },
            ..TxFrame::new(self.bytes())
        }
    }

    /// The frame's bytes, to be changed in place. A frame in a device's ring is copied out of it
    /// first, since rings are read only.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.copy_out();
        match &mut self.buf {
            Buffer::Heap(buffer) => &mut buffer[usize::from(self.start)..][..self.len as usize],
            #[cfg(target_os = "linux")]
            Buffer::Lent(_) => unreachable!("copied out above"),
        }
    }

    /// Whether the frame lies in its device's ring, which cannot use that place until the frame is
    /// released or dropped.
    #[inline]
    pub fn is_in_place(&self) -> bool {
        match self.buf {
            Buffer::Heap(_) => false,
            #[cfg(target_os = "linux")]
            Buffer::Lent(_) => true,
        }
    }

    /// Moves a frame that lies in its device's ring into a buffer of its own, for those that keep
    /// frames for long.
    #[inline]
    pub fn copy_out(&mut self) {
        if self.is_in_place() {
            self.move_out();
        }
    }

    #[inline(never)]
    fn move_out(&mut self) {
        self.buf = Buffer::Heap(self.bytes().into());
        self.start = 0;
    }

    /// A copy without its tag, if the frame has one that names a priority and no VLAN (identifier 0,
    /// IEEE 802.1Q section 6.9.1), and no other tag behind it: it means the same.
    #[cold]
    pub fn without_priority_tag(&self) -> Option<Frame> {
        let is_tag = |kind: &[u8]| matches!(kind, [0x81, 0x00] | [0x88, 0xa8]);
        let bytes = self.bytes();
        let [kind, control, behind] = [12, 14, 16].map(|at| bytes.get(at..at + 2));
        if !is_tag(kind?) || control?[0] & 0x0f != 0 || control?[1] != 0 || is_tag(behind?) {
            return None;
        }
        let mut meta = self.meta;
        if let RxChecksum::Partial { start, .. } = &mut meta.checksum {
            *start = start.checked_sub(VLAN_TAG_LEN as u16)?;
        }
        if let Some(gso) = &mut meta.gso {
            gso.header_len = gso.header_len.saturating_sub(VLAN_TAG_LEN as u16);
        }
        let bytes = [&bytes[..12], &bytes[12 + VLAN_TAG_LEN..]].concat();
        let len = bytes.len();
        Some(Frame::from_buffer(bytes.into(), 0, len, meta))
    }

    /// When the kernel received the frame, if its device notes that: those with a mapped packet
    /// ring do, for frames that lie in it.
    pub fn timestamp(&self) -> Option<SystemTime> {
        match &self.buf {
            Buffer::Heap(_) => None,
            #[cfg(target_os = "linux")]
            Buffer::Lent(lent) => {
                let (seconds, nanos) = lent.timestamp()?;
                let since = std::time::Duration::new(seconds.into(), nanos);
                Some(SystemTime::UNIX_EPOCH + since)
            }
        }
    }

    /// Makes the frame `len` bytes long. Bytes beyond the old length have unspecified values.
    ///
    /// # Panics
    /// If `len` exceeds [`capacity`](Self::capacity).
    pub fn set_len(&mut self, len: usize) {
        assert!(
            len <= self.capacity(),
            "length {len} in a buffer with room for {}",
            self.capacity()
        );
        self.len = u32::try_from(len).expect("a frame has at most u32::MAX bytes");
    }

    /// The longest length that [`set_len`](Self::set_len) takes, in bytes; that of the frame, if it
    /// lies in a ring.
    pub fn capacity(&self) -> usize {
        match &self.buf {
            Buffer::Heap(buffer) => buffer.len() - usize::from(self.start),
            #[cfg(target_os = "linux")]
            Buffer::Lent(_) => self.len as usize,
        }
    }
}

impl Deref for Frame {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.bytes()
    }
}

/// Copies the bytes into a buffer of the copy's own.
impl Clone for Frame {
    fn clone(&self) -> Self {
        match &self.buf {
            Buffer::Heap(buffer) => Self {
                buf: Buffer::Heap(buffer.clone()),
                ..*self
            },
            #[cfg(target_os = "linux")]
            Buffer::Lent(_) => Self {
                buf: Buffer::Heap(self.bytes().into()),
                start: 0,
                ..*self
            },
        }
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame")
            .field("len", &self.len)
            .field("meta", &self.meta)
            .finish_non_exhaustive()
    }
}

/// A buffer of `len` zero bytes. Large ones are mapped by the kernel on first touch only.
pub(crate) fn zeroed(len: usize) -> Box<[u8]> {
    vec![0; len].into_boxed_slice()
}

/// What a device says about a received frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxMeta {
    /// Who vouches for the transport checksum.
    pub checksum: RxChecksum,
    /// Set on a frame that stands for several segments: how it divides.
    pub gso: Option<Gso>,
}

/// Who vouches for the transport checksum of a received frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RxChecksum {
    /// Nobody: the receiver verifies it.
    #[default]
    Verify,
    /// The sender left it to a later hop to finish (virtio `NEEDS_CSUM`): the field holds the sum
    /// of the pseudo-header only. The data never crossed a wire, so there is nothing to verify.
    Partial {
        /// Where summing begins, in bytes from the start of the frame.
        start: u16,
        /// Where the sum is stored, in bytes from `start`.
        offset: u16,
    },
    /// The device has verified it.
    Valid,
}

/// How a frame divides into segments ("generic segmentation offload").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// The protocol whose headers are repeated.
    pub kind: GsoKind,
    /// Payload bytes of each segment but the last, which may be shorter. Not zero.
    pub size: u16,
    /// Bytes of all headers, Ethernet to transport. Zero in a received frame: the device did not
    /// say.
    pub header_len: u16,
}

/// The protocol of a segmented frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GsoKind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over IPv4 or IPv6, each segment a datagram.
    Udp,
}

/// A frame to send: two slices that the device joins, Ethernet header first.
///
/// A device pads short frames where its medium asks for it.
#[derive(Clone, Copy, Debug)]
pub struct TxFrame<'a> {
    /// The headers; at least the Ethernet header. May hold the whole frame.
    pub head: &'a [u8],
    /// What follows the headers; may be empty.
    pub payload: &'a [u8],
    /// What the device still has to do.
    pub meta: TxMeta,
}

impl<'a> TxFrame<'a> {
    /// A complete frame: nothing left to do for the device.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            head: bytes,
            payload: &[],
            meta: TxMeta::default(),
        }
    }

    /// Bytes of head and payload together.
    #[inline]
    pub fn len(&self) -> usize {
        self.head.len() + self.payload.len()
    }

    /// Whether there are no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A copy as the receiver of the frame gets it.
    pub fn to_frame(&self) -> Frame {
        let mut buffer = zeroed(self.len());
        self.copy_to(&mut buffer);
        let checksum = match self.meta.checksum {
            TxChecksum::Partial { start, offset } => RxChecksum::Partial { start, offset },
            TxChecksum::Done => RxChecksum::Verify,
        };
        let gso = self.meta.gso;
        Frame::from_buffer(buffer, 0, self.len(), RxMeta { checksum, gso })
    }

    /// Copies the frame into the start of `buffer`.
    ///
    /// # Panics
    /// If the buffer is too short.
    #[inline]
    pub(crate) fn copy_to(&self, buffer: &mut [u8]) {
        let (head, rest) = buffer.split_at_mut(self.head.len());
        head.copy_from_slice(self.head);
        rest[..self.payload.len()].copy_from_slice(self.payload);
    }
}

/// What a device has to do to a frame before it leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxMeta {
    /// How far the transport checksum is done.
    pub checksum: TxChecksum,
    /// Set on a frame that the device divides into segments. It then asks for
    /// [`TxChecksum::Partial`], since each segment has a checksum of its own.
    pub gso: Option<Gso>,
}

/// How far the transport checksum of a frame to send is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TxChecksum {
    /// It stands in the frame.
    #[default]
    Done,
    /// The field holds the sum of the pseudo-header, folded and not complemented; the device sums
    /// from `start` to the end of the frame and stores the complement at `start + offset`.
    Partial {
        /// Where summing begins, in bytes from the start of the frame.
        start: u16,
        /// Where the sum is stored, in bytes from `start`.
        offset: u16,
    },
}

/// Finishes a partial checksum in software: sums `frame[start..]`, which includes the
/// pseudo-header's sum in the field itself, and stores the complement at `start + offset`. A sum of
/// zero is stored as `0xffff`, since zero means "no checksum" in UDP and both are the same number
/// to everyone else.
///
/// Returns whether the field lay inside the frame; otherwise nothing is changed.
pub fn complete_checksum(frame: &mut [u8], start: u16, offset: u16) -> bool {
    let (start, field) = (usize::from(start), usize::from(start) + usize::from(offset));
    if field + 2 > frame.len() {
        return false;
    }
    let mut sum: u64 = 0;
    for pair in frame[start..].chunks(2) {
        sum += u64::from(u16::from_be_bytes([
            pair[0],
            pair.get(1).copied().unwrap_or(0),
        ]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let checksum = match !(sum as u16) {
        0 => 0xffff,
        other => other,
    };
    frame[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_goes_if_it_names_no_vlan_and_offsets_move_with_it() {
        let mut bytes = vec![7; 64];
        bytes[12..18].copy_from_slice(&[0x81, 0, 0xe0, 0, 8, 0]);
        let (start, offset) = (38, 16);
        let checksum = RxChecksum::Partial { start, offset };
        let gso = None;
        let frame = |bytes: &[u8]| {
            Frame::from_buffer(bytes.into(), 0, bytes.len(), RxMeta { checksum, gso })
        };
        let plain = frame(&bytes).without_priority_tag().expect("a tag");
        assert_eq!(plain[..12], bytes[..12]);
        assert_eq!(plain[12..], bytes[16..]);
        let start = 34;
        assert_eq!(plain.meta.checksum, RxChecksum::Partial { start, offset });
        assert!(plain.without_priority_tag().is_none());
        assert!(frame(&bytes[..17]).without_priority_tag().is_none());
        for (at, byte) in [(15, 1), (14, 0xe1), (12, 0x82)] {
            let mut other = bytes.clone();
            other[at] = byte;
            assert!(frame(&other).without_priority_tag().is_none());
        }
        bytes[16..18].copy_from_slice(&[0x81, 0]);
        assert!(frame(&bytes).without_priority_tag().is_none());
    }

    #[test]
    fn a_frame_reaches_exactly_its_own_bytes() {
        let mut frame = Frame::from_buffer(vec![9, 1, 2, 3, 9].into(), 1, 3, RxMeta::default());
        assert_eq!(&*frame, [1, 2, 3]);
        assert_eq!(frame.capacity(), 4);
        frame.bytes_mut()[0] = 7;
        frame.set_len(4);
        assert_eq!(frame.bytes(), [7, 2, 3, 9]);
        assert_eq!(frame.clone().bytes(), frame.bytes());
        assert_eq!(*frame.into_buffer(), [9, 7, 2, 3, 9]);
    }

    #[test]
    #[should_panic(expected = "length 3 in a buffer with room for 2")]
    fn a_length_beyond_the_buffer_panics() {
        Frame::with_capacity(2).set_len(3);
    }

    #[test]
    fn a_partial_checksum_is_completed_as_rfc_1071_says() {
        // Bytes 2.. are summed: 0x0001 + 0xf203 + 0xf4f5 + 0xf6f7 = 0x2ddf0, folded 0xddf2 (RFC
        // 1071 section 3).
        let mut frame = [
            0xaa, 0xaa, 0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7, 0x00, 0x00,
        ];
        assert!(complete_checksum(&mut frame, 2, 8));
        assert_eq!(frame[10..], (!0xddf2u16).to_be_bytes());
    }

    #[test]
    fn an_odd_last_byte_counts_as_the_high_half_of_a_word() {
        let mut frame = [0, 0, 0x12];
        assert!(complete_checksum(&mut frame, 0, 0));
        assert_eq!(frame[..2], (!0x1200u16).to_be_bytes());
    }

    #[test]
    fn a_field_outside_the_frame_changes_nothing() {
        let mut frame = [1, 2, 3];
        assert!(!complete_checksum(&mut frame, 2, 0));
        assert!(!complete_checksum(&mut frame, u16::MAX, u16::MAX));
        assert_eq!(frame, [1, 2, 3]);
    }
}
