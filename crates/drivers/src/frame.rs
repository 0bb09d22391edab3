//! Received frames, frames to send, and the metadata that a device attaches to them.
//!
//! A received [`Frame`] owns its bytes, in a buffer or in memory lent by the kernel; a frame to
//! send is a pair of borrowed slices. Both carry the two facts that let 64 KB move in one step:
//! how far the transport checksum is done, and how the frame divides into segments.

use std::fmt;
use std::ops::Deref;
use std::time::SystemTime;

#[cfg(target_os = "linux")]
use crate::umem::Lent;

/// Bytes of an Ethernet header without VLAN tag: destination, source, EtherType.
pub const ETHERNET_HEADER_LEN: usize = 14;

/// Bytes that an IEEE 802.1Q tag adds to the Ethernet header.
pub const VLAN_TAG_LEN: usize = 4;

/// A received frame and its metadata. Its bytes are in a buffer from the device's pool, or in the
/// device's ring.
///
/// It dereferences to the frame's bytes, from the Ethernet header on, without frame check
/// sequence. A frame may move to any thread and be read by several; its bytes stay valid even if
/// the device is dropped. Return it with [`DeviceRx::release`](crate::DeviceRx::release) after
/// use. Dropping it instead frees the buffer, and the pool allocates a new one on demand. Either
/// way a place in a ring becomes free, so do not keep frames of a ring for long.
pub struct Frame {
    buf: Buffer,
    start: u16,
    /// The queue of the device that it was claimed from, if that has several.
    pub(crate) queue: u8,
    len: u32,
    /// The device's knowledge of checksum and segmentation.
    pub meta: RxMeta,
}

/// The memory that holds a frame's bytes.
enum Buffer {
    Heap(Box<[u8]>),
    /// In memory lent by the kernel. The frame begins `start` bytes into it.
    #[cfg(target_os = "linux")]
    Lent(Lent),
}

// A batch of frames moves through several vectors; with at most 48 bytes each frame takes less
// than a cache line there.
const _: () = assert!(size_of::<Frame>() <= 48);

impl Frame {
    /// A frame with a copy of `bytes` in a buffer that belongs to no pool. Its checksum is
    /// [`RxChecksum::Verify`].
    ///
    /// # Panics
    /// If `bytes` is longer than `u32::MAX`.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self::from_buffer(bytes.into(), 0, bytes.len(), RxMeta::default())
    }

    /// A frame of length 0 with room for `capacity` bytes. To write them, call
    /// [`set_len`](Self::set_len), then [`bytes_mut`](Self::bytes_mut).
    pub fn with_capacity(capacity: usize) -> Self {
        Self::from_buffer(zeroed(capacity), 0, 0, RxMeta::default())
    }

    /// A frame of the bytes `buffer[start..start + len]`, for devices that own their buffers.
    ///
    /// # Panics
    /// If the buffer is shorter, or `len` exceeds `u32::MAX`.
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
            queue: 0,
            len,
            meta,
        }
    }

    /// A frame in memory lent by the kernel, `start` bytes into it. It must not cross the end of
    /// its unit, or reading it panics.
    #[cfg(target_os = "linux")]
    #[inline]
    pub(crate) fn from_lent(lent: Lent, start: u16, len: u32, meta: RxMeta) -> Self {
        Self {
            buf: Buffer::Lent(lent),
            start,
            queue: 0,
            len,
            meta,
        }
    }

    /// The buffer, to return it to its pool. Empty if the frame was in a ring, which frees its
    /// place.
    #[inline]
    pub fn into_buffer(self) -> Box<[u8]> {
        match self.buf {
            Buffer::Heap(buffer) => buffer,
            #[cfg(target_os = "linux")]
            Buffer::Lent(_) => Box::default(),
        }
    }

    /// The frame's bytes, from the Ethernet header on.
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

    /// The frame as one to forward, with the same work left to the device. A checksum that is
    /// valid or unverified is sent as it is.
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

    /// The frame's bytes, mutable. A frame in a device's ring is first copied out of it, since
    /// rings are read only.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.copy_out();
        match &mut self.buf {
            Buffer::Heap(buffer) => &mut buffer[usize::from(self.start)..][..self.len as usize],
            #[cfg(target_os = "linux")]
            Buffer::Lent(_) => unreachable!("copied out above"),
        }
    }

    /// Whether the frame is in its device's ring. The device cannot reuse that place until the
    /// frame is released or dropped.
    #[inline]
    pub fn is_in_place(&self) -> bool {
        match self.buf {
            Buffer::Heap(_) => false,
            #[cfg(target_os = "linux")]
            Buffer::Lent(_) => true,
        }
    }

    /// Moves a frame out of its device's ring into a separate buffer, for callers that keep it
    /// long.
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

    /// If the frame has one VLAN tag, and it names a priority but no VLAN (identifier 0, IEEE
    /// 802.1Q section 6.9.1), returns a copy without the tag, which has the same meaning. `None`
    /// for other frames, also for those with a second tag.
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

    /// When the kernel received the frame. Only frames in a mapped packet ring have the time.
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

    /// Sets the length to `len` bytes. Bytes beyond the old length have unspecified values.
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

    /// The largest length that [`set_len`](Self::set_len) accepts, in bytes. For a frame in a
    /// ring, its present length.
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

/// Copies the bytes into a new buffer.
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

/// A buffer of `len` zero bytes. The kernel maps the pages of a large one on first touch.
pub(crate) fn zeroed(len: usize) -> Box<[u8]> {
    vec![0; len].into_boxed_slice()
}

/// Metadata of a received frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxMeta {
    /// The state of the transport checksum.
    pub checksum: RxChecksum,
    /// How the frame divides, if it is a merge of several segments.
    pub gso: Option<Gso>,
}

/// The state of a received frame's transport checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RxChecksum {
    /// Not verified: the receiver verifies it.
    #[default]
    Verify,
    /// Not computed: the sender left it to a later hop (virtio `NEEDS_CSUM`), and the field holds
    /// the sum of the pseudo-header only. The data never crossed a wire, so no check is needed.
    Partial {
        /// Where the sum begins, in bytes from the start of the frame.
        start: u16,
        /// Where the sum is stored, in bytes from `start`.
        offset: u16,
    },
    /// Verified by the device.
    Valid,
}

/// How a frame divides into segments ("generic segmentation offload").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// The protocol whose headers are repeated.
    pub kind: GsoKind,
    /// Payload bytes per segment; the last one may have fewer. Not zero.
    pub size: u16,
    /// Length of all headers, Ethernet to transport, in bytes. Zero in a received frame: unknown.
    pub header_len: u16,
}

/// The protocol of a segmented frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GsoKind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over IPv4 or IPv6; each segment becomes a datagram.
    Udp,
}

/// A frame to send: two slices that the device joins, from the Ethernet header on.
///
/// A device pads short frames if its medium requires it.
#[derive(Clone, Copy, Debug)]
pub struct TxFrame<'a> {
    /// The headers, at least the Ethernet header; possibly the whole frame.
    pub head: &'a [u8],
    /// The bytes after `head`; may be empty.
    pub payload: &'a [u8],
    /// The work left to the device.
    pub meta: TxMeta,
}

impl<'a> TxFrame<'a> {
    /// A complete frame, which leaves no work to the device.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            head: bytes,
            payload: &[],
            meta: TxMeta::default(),
        }
    }

    /// Length of head and payload, in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.head.len() + self.payload.len()
    }

    /// Whether the frame has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A copy of the frame as its receiver would get it.
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
    /// If `buffer` is too short.
    #[inline]
    pub(crate) fn copy_to(&self, buffer: &mut [u8]) {
        let (head, rest) = buffer.split_at_mut(self.head.len());
        head.copy_from_slice(self.head);
        rest[..self.payload.len()].copy_from_slice(self.payload);
    }
}

/// The work that the device does on a frame before sending it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxMeta {
    /// The state of the transport checksum.
    pub checksum: TxChecksum,
    /// How the device divides the frame into segments, if it is to. Requires
    /// [`TxChecksum::Partial`], since each segment gets its own checksum.
    pub gso: Option<Gso>,
}

/// The state of the transport checksum of a frame to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TxChecksum {
    /// The frame contains it.
    #[default]
    Done,
    /// The field holds the sum of the pseudo-header, folded and not complemented. The device sums
    /// from `start` to the end of the frame and stores the complement at `start + offset`.
    Partial {
        /// Where the sum begins, in bytes from the start of the frame.
        start: u16,
        /// Where the sum is stored, in bytes from `start`.
        offset: u16,
    },
}

/// Finishes a partial checksum in software: sums `frame[start..]`, where the field itself
/// contributes the pseudo-header's sum, and stores the complement at `start + offset`. A sum of
/// zero is stored as `0xffff`: in UDP zero means "no checksum", and for every other protocol both
/// are the same number.
///
/// Returns false, and changes nothing, if the field is outside the frame.
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
        // The sum covers bytes 2..: 0x0001 + 0xf203 + 0xf4f5 + 0xf6f7 = 0x2ddf0, folded 0xddf2
        // (RFC 1071 section 3).
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
