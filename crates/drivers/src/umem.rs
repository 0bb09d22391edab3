//! Memory shared by the kernel and this process. Frames are read in place.
//!
//! A [`Region`] is mapped twice. Code accesses the kernel's bookkeeping through the writable
//! mapping, and reads frames through the *view*, a read-only mapping. The region is divided into
//! units, each of which returns to the kernel as a whole: a slot (TPACKET_V2), a block
//! (TPACKET_V3), or a chunk (AF_XDP).
//!
//! # Why a frame does not change while it is read
//!
//! - A unit belongs either to the kernel or to this process. The kernel hands it over through a
//!   status word or a ring, both read with Acquire, and does not touch it until it is given back.
//! - Each [`Lent`] is counted in its unit. [`PacketMemory::give_back`] refuses a unit whose count
//!   is not zero, and a chunk becomes free only when its count falls to zero. So the bytes of a
//!   `Lent` are constant while it lives.
//! - The one exception is a unit that [`PacketMemory::detach`] has copied out: its pages in the
//!   *view* are then private memory with the same bytes at the same address, exchanged by the
//!   kernel in one step. So the bytes of a `Lent` stay the same although the kernel may fill the
//!   unit again. No frame is lent from such a unit until [`PacketMemory::reuse_detached`] has
//!   restored the shared pages, which it does only at a count of zero.

#![allow(unsafe_code)]

use crate::sys::{self, Mapping};
use crossbeam_queue::ArrayQueue;
use std::io;
use std::os::fd::BorrowedFd;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The use of a region, and how its units are handed over.
#[derive(Debug)]
pub(crate) enum Kind {
    /// A packet socket's ring of frames. The status word is at the start of each slot.
    Slots,
    /// A packet socket's ring of blocks. The status word is 8 bytes into each block.
    Blocks,
    /// The frames of AF_XDP sockets. Each queue holds the free units of one socket, which are
    /// neither lent nor the kernel's; the sockets have equal shares of the units.
    Chunks(Vec<ArrayQueue<u32>>),
}

/// Memory shared with the kernel.
#[derive(Debug)]
pub(crate) struct Region {
    /// The writable mapping, for the kernel's bookkeeping and for frames to send.
    write: Mapping,
    /// The read-only mapping, for received frames.
    view: Mapping,
    unit_len: usize,
    /// Per unit, the number of frames that are lent.
    lent: Box<[AtomicU32]>,
    kind: Kind,
}

impl Region {
    /// Maps `units * unit_len` bytes of the descriptor twice.
    fn new(fd: BorrowedFd<'_>, units: u32, unit_len: usize, kind: Kind) -> io::Result<Self> {
        let len = units as usize * unit_len;
        if u32::try_from(len).is_err() || !unit_len.is_multiple_of(8) || units == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let write = Mapping::shared(fd, len, 0, true)?;
        let view = Mapping::shared(fd, len, 0, false)?;
        let lent = (0..units).map(|_| AtomicU32::new(0)).collect();
        Ok(Self {
            write,
            view,
            unit_len,
            lent,
            kind,
        })
    }

    /// The chunks of AF_XDP sockets. All receive chunks are free at first.
    ///
    /// Each of `queues` sockets has `receive` receive chunks. After all of those follow `transmit`
    /// transmit chunks for each socket.
    pub(crate) fn chunks(
        fd: BorrowedFd<'_>,
        queues: u32,
        receive: u32,
        transmit: u32,
        chunk_len: usize,
    ) -> io::Result<Self> {
        let free = (0..queues)
            .map(|queue| {
                let free = ArrayQueue::new(receive.max(1) as usize);
                for unit in queue * receive..(queue + 1) * receive {
                    let _ = free.push(unit);
                }
                free
            })
            .collect();
        Self::new(
            fd,
            queues * (receive + transmit),
            chunk_len,
            Kind::Chunks(free),
        )
    }

    /// Address and length of the writable mapping, for the kernel.
    pub(crate) fn address(&self) -> (u64, u64) {
        (self.write.start().addr() as u64, self.write.len() as u64)
    }

    /// Length of a unit in bytes.
    pub(crate) fn unit_len(&self) -> usize {
        self.unit_len
    }

    fn units(&self) -> u32 {
        self.lent.len() as u32
    }

    /// Number of frames lent from the unit.
    #[inline]
    pub(crate) fn lent(&self, unit: u32) -> u32 {
        // ORDERING: Acquire, pairs with the Release in `Lent::drop`: all reads are over.
        self.lent[unit as usize].load(Acquire)
    }

    /// Lends a chunk that the kernel has filled. The frame begins `at` bytes into the region.
    #[inline]
    pub(crate) fn lend_chunk(self: &Arc<Self>, at: u32) -> Lent {
        let Kind::Chunks(free) = &self.kind else {
            panic!("a packet ring");
        };
        let unit = at / self.unit_len as u32;
        assert!(
            (unit as usize) < free.len() * free[0].capacity(),
            "a chunk for sending"
        );
        assert_eq!(
            self.lent(unit),
            0,
            "the kernel has filled a chunk that is being read"
        );
        self.lend(unit, at)
    }

    /// Reads eight bytes of a chunk that the kernel has handed over, without lending a frame.
    #[cfg(feature = "bare")]
    #[inline]
    pub(crate) fn bare_head(&self, at: u64) -> u64 {
        assert!(at as usize + 8 <= self.view.len());
        // SAFETY: inside the view. The caller got the offset from the receive ring and has not
        // returned it.
        unsafe {
            self.view
                .start()
                .add(at as usize)
                .cast::<u64>()
                .read_unaligned()
        }
    }

    #[inline]
    fn lend(self: &Arc<Self>, unit: u32, at: u32) -> Lent {
        // ORDERING: Relaxed, another thread gets the frame only through synchronization, which
        // orders this before.
        self.lent[unit as usize].fetch_add(1, Relaxed);
        Lent {
            region: Arc::clone(self),
            at,
            unit,
        }
    }

    /// Takes a free receive chunk of socket `queue`.
    #[inline]
    pub(crate) fn take_free(&self, queue: usize) -> Option<u32> {
        match &self.kind {
            Kind::Chunks(free) => free[queue].pop(),
            Kind::Slots | Kind::Blocks => None,
        }
    }

    /// Number of free receive chunks of socket `queue`.
    pub(crate) fn free(&self, queue: usize) -> usize {
        match &self.kind {
            Kind::Chunks(free) => free[queue].len(),
            Kind::Slots | Kind::Blocks => 0,
        }
    }

    /// Whether the kernel has handed the slot or block over to us.
    #[inline]
    fn is_ours(&self, unit: u32) -> bool {
        // ORDERING: Acquire, pairs with the kernel's barrier between frame and status.
        self.status(unit).load(Acquire) & libc::TP_STATUS_USER != 0
    }

    #[inline]
    fn status(&self, unit: u32) -> &AtomicU32 {
        let within = match self.kind {
            Kind::Slots => 0,
            Kind::Blocks => 8,
            Kind::Chunks(_) => panic!("chunks have no status"),
        };
        assert!(unit < self.units());
        // SAFETY: the unit is inside the mapping, which lives as long as `self`. The word is
        // aligned, since units are multiples of 8 bytes in a mapping of whole pages. Both the
        // kernel and this process access it only atomically.
        unsafe {
            let word = self
                .write
                .start()
                .add(unit as usize * self.unit_len + within);
            AtomicU32::from_ptr(word.cast())
        }
    }

    /// Copies bytes out of the writable mapping.
    ///
    /// # Safety
    /// The unit that contains them is ours.
    #[inline]
    unsafe fn read(&self, at: usize, into: &mut [u8]) {
        assert!(at + into.len() <= self.write.len());
        // SAFETY: inside the mapping. The kernel does not write there (the caller's promise), and
        // neither does this process.
        unsafe {
            self.write
                .start()
                .add(at)
                .copy_to_nonoverlapping(into.as_mut_ptr(), into.len());
        }
    }
}

/// A frame in a region. Its bytes do not change while this lives.
#[derive(Debug)]
pub(crate) struct Lent {
    region: Arc<Region>,
    /// Start of the kernel's header of this frame, or of the frame itself if it has none, in bytes
    /// from the start of the region.
    at: u32,
    unit: u32,
}

impl Lent {
    /// `len` bytes, `start` bytes after the beginning.
    ///
    /// # Panics
    /// If they are not within one unit.
    #[inline]
    pub(crate) fn bytes(&self, start: usize, len: usize) -> &[u8] {
        let region = &*self.region;
        let from = self.at as usize + start;
        let end = (self.unit as usize + 1) * region.unit_len;
        assert!(
            from + len <= end,
            "{len} bytes at {from}, in a unit that ends at {end}"
        );
        // SAFETY: `at` is in the unit, and so are all the bytes; the view is mapped as long as the
        // region lives. The bytes do not change as long as `self` lives; see the head of this file.
        unsafe { slice::from_raw_parts(region.view.start().add(from), len) }
    }

    /// When the kernel received the frame, in seconds and nanoseconds since 1970, if the region's
    /// kind records it.
    pub(crate) fn timestamp(&self) -> Option<(u32, u32)> {
        let at = match self.region.kind {
            Kind::Slots => 16,
            Kind::Blocks => 4,
            Kind::Chunks(_) => return None,
        };
        let bytes = self.bytes(at, 8);
        let word = |at: usize| {
            u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        Some((word(0), word(4)))
    }
}

impl Drop for Lent {
    #[inline]
    fn drop(&mut self) {
        let region = &*self.region;
        // ORDERING: Release, pairs with the Acquire in `Region::lent`: reads come before.
        let before = region.lent[self.unit as usize].fetch_sub(1, Release);
        if let Kind::Chunks(free) = &region.kind
            && before == 1
        {
            // ORDERING: the queue's own. The frame of a chunk is lent only once, and this thread
            // has seen all reads through other references, or synchronized with the threads that
            // made them.
            let each = free[0].capacity();
            // Never full, since each chunk is in it at most once.
            let _ = free[self.unit as usize / each].push(self.unit);
        }
    }
}

/// A transmit chunk that does not belong to the kernel. Each chunk has at most one such value, so
/// its owner may write to the chunk.
#[derive(Debug)]
pub(crate) struct TransmitChunk {
    unit: u32,
}

/// The memory from which one AF_XDP socket sends. No frame is ever lent from it.
#[derive(Debug)]
pub(crate) struct TransmitMemory {
    region: Arc<Region>,
    first: u32,
    count: u32,
}

impl TransmitMemory {
    /// The memory of socket `queue` and all its chunks. Call this once per socket.
    pub(crate) fn new(region: &Arc<Region>, queue: u32) -> (Self, Vec<TransmitChunk>) {
        let Kind::Chunks(free) = &region.kind else {
            panic!("a packet ring");
        };
        let receive = free.len() as u32 * free[0].capacity() as u32;
        let count = (region.units() - receive) / free.len() as u32;
        let first = receive + queue * count;
        let memory = Self {
            region: Arc::clone(region),
            first,
            count,
        };
        let chunks = (first..first + count).rev();
        (memory, chunks.map(|unit| TransmitChunk { unit }).collect())
    }

    /// Start of a chunk, in bytes from the start of the region.
    fn start(&self, unit: u32) -> u64 {
        u64::from(unit) * self.region.unit_len as u64
    }

    /// Hands a chunk to the kernel. Returns its start, in bytes from the start of the region.
    pub(crate) fn hand_over(&self, chunk: TransmitChunk) -> u64 {
        self.start(chunk.unit)
    }

    /// Takes back the chunk that contains offset `at`, which the kernel has sent.
    ///
    /// # Panics
    /// If it is not a chunk of this memory.
    pub(crate) fn take_back(&self, at: u64) -> TransmitChunk {
        let unit = (at / self.region.unit_len as u64) as u32;
        assert!(
            unit.wrapping_sub(self.first) < self.count,
            "the kernel returns a chunk that it did not have"
        );
        TransmitChunk { unit }
    }

    /// Writes into a chunk, `within` bytes after its start.
    ///
    /// # Panics
    /// If the chunk is not part of this memory, or the bytes exceed it.
    pub(crate) fn write(&self, chunk: &mut TransmitChunk, within: usize, bytes: &[u8]) {
        assert!(
            chunk.unit.wrapping_sub(self.first) < self.count
                && within + bytes.len() <= self.region.unit_len
        );
        let at = self.start(chunk.unit) as usize + within;
        // SAFETY: inside the writable mapping, since the chunk is. No reference leads there,
        // because no frame is lent from these chunks. No other code writes there: the caller has
        // exclusive access to the only `TransmitChunk` of this chunk, and the kernel had returned
        // the chunk when that value was made.
        unsafe {
            let to = self.region.write.start().add(at);
            bytes.as_ptr().copy_to_nonoverlapping(to, bytes.len());
        }
    }
}

/// The ring of a packet socket. It has a single owner, so one thread at a time uses its methods.
#[derive(Debug)]
pub(crate) struct PacketMemory {
    region: Arc<Region>,
    /// Units whose pages in the view are a copy.
    detached: Box<[bool]>,
    detached_count: u32,
}

impl PacketMemory {
    /// Maps the ring of a packet socket with `units` slots or blocks.
    pub(crate) fn new(
        fd: BorrowedFd<'_>,
        units: u32,
        unit_len: usize,
        blocks: bool,
    ) -> io::Result<Self> {
        if !unit_len.is_multiple_of(sys::page_len()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let kind = if blocks { Kind::Blocks } else { Kind::Slots };
        let region = Arc::new(Region::new(fd, units, unit_len, kind)?);
        Ok(Self {
            region,
            detached: vec![false; units as usize].into(),
            detached_count: 0,
        })
    }

    pub(crate) fn units(&self) -> u32 {
        self.region.units()
    }

    pub(crate) fn unit_len(&self) -> usize {
        self.region.unit_len
    }

    /// The address of the first unit in the view.
    #[cfg(feature = "testkit")]
    pub(crate) fn view(&self) -> *const u8 {
        self.region.view.start()
    }

    /// Whether the kernel has handed the unit over.
    #[inline]
    pub(crate) fn is_ours(&self, unit: u32) -> bool {
        self.region.is_ours(unit)
    }

    /// Reads the first bytes of the kernel's data at offset `within` of the unit. `None` if they
    /// would cross its end.
    ///
    /// # Panics
    /// If the unit belongs to the kernel.
    #[inline]
    pub(crate) fn header<const N: usize>(&self, unit: u32, within: usize) -> Option<[u8; N]> {
        assert!(self.is_ours(unit), "unit {unit} is the kernel's");
        if within + N > self.region.unit_len {
            return None;
        }
        let mut bytes = [0; N];
        // SAFETY: the unit is ours.
        unsafe { self.region.read(self.at(unit, within), &mut bytes) };
        Some(bytes)
    }

    /// Whether frames of the unit can be lent: the view shows the pages that the kernel fills.
    #[inline]
    pub(crate) fn can_lend(&self, unit: u32) -> bool {
        !self.detached[unit as usize]
    }

    /// Lends the frame at offset `within` of the unit.
    ///
    /// # Panics
    /// If the unit belongs to the kernel or is detached.
    #[inline]
    pub(crate) fn lend(&self, unit: u32, within: usize) -> Lent {
        assert!(self.is_ours(unit) && self.can_lend(unit) && within < self.region.unit_len);
        self.region.lend(unit, self.at(unit, within) as u32)
    }

    /// Copies bytes at offset `within` out of a unit of ours.
    ///
    /// # Panics
    /// If the unit belongs to the kernel, or the bytes would cross its end.
    pub(crate) fn copy(&self, unit: u32, within: usize, into: &mut [u8]) {
        assert!(self.is_ours(unit), "unit {unit} is the kernel's");
        assert!(within + into.len() <= self.region.unit_len);
        // SAFETY: the unit is ours.
        unsafe { self.region.read(self.at(unit, within), into) };
    }

    fn at(&self, unit: u32, within: usize) -> usize {
        unit as usize * self.region.unit_len + within
    }

    /// Whether the unit can be given back: no frame of it is lent, or only frames of its copy.
    #[inline]
    pub(crate) fn is_done(&self, unit: u32) -> bool {
        self.detached[unit as usize] || self.region.lent(unit) == 0
    }

    /// Gives the unit back to the kernel.
    ///
    /// # Panics
    /// If [`is_done`](Self::is_done) is false.
    #[inline]
    pub(crate) fn give_back(&mut self, unit: u32) {
        assert!(self.is_done(unit), "unit {unit} is being read");
        // ORDERING: Release, pairs with the kernel's read of the status before it writes: our reads
        // come before.
        self.region
            .status(unit)
            .store(libc::TP_STATUS_KERNEL, Release);
    }

    /// Copies the unit out, so that it can be given back at once. Readers of its frames then read
    /// the copy, at the same addresses.
    ///
    /// # Errors
    /// There is no memory for the copy. Nothing has changed then.
    pub(crate) fn detach(&mut self, unit: u32) -> io::Result<()> {
        let region = &*self.region;
        assert!(self.is_ours(unit) && !self.detached[unit as usize]);
        let copy = Mapping::private(region.unit_len)?;
        // SAFETY: the mapping is new and has this length; no reference into it exists.
        let bytes = unsafe { slice::from_raw_parts_mut(copy.start(), region.unit_len) };
        // SAFETY: the unit is ours.
        unsafe { region.read(self.at(unit, 0), bytes) };
        copy.forbid_writes()?;
        // SAFETY: whole pages of the view, inside it. The bytes are equal, since the unit is ours
        // and was not written after it was copied.
        unsafe {
            copy.replace(region.view.start().add(self.at(unit, 0)))?;
        }
        self.detached[unit as usize] = true;
        self.detached_count += 1;
        Ok(())
    }

    /// Number of detached units.
    pub(crate) fn detached(&self) -> u32 {
        self.detached_count
    }

    /// Restores the shared pages of all detached units from which no frame is lent any more. Costs
    /// a mapping of the whole ring.
    ///
    /// # Errors
    /// The ring cannot be mapped, or pages cannot be moved. Units restored before that stay
    /// restored.
    pub(crate) fn reuse_detached(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let region = &*self.region;
        let other = Mapping::shared(fd, region.view.len(), 0, false)?;
        let start = other.start();
        // The pages are moved or unmapped one by one below; meanwhile another mapping may be
        // placed in a gap.
        std::mem::forget(other);
        let mut result = Ok(());
        for unit in 0..region.units() {
            let at = unit as usize * region.unit_len;
            // SAFETY: inside the mapping.
            let from = unsafe { start.add(at) };
            if result.is_ok() && self.detached[unit as usize] && region.lent(unit) == 0 {
                // SAFETY: whole pages of the two mappings. No thread reads those in the view,
                // since no frame of the unit is lent and only this thread lends.
                result =
                    unsafe { sys::move_pages(from, region.view.start().add(at), region.unit_len) };
                if result.is_ok() {
                    self.detached[unit as usize] = false;
                    self.detached_count -= 1;
                    continue;
                }
            }
            // SAFETY: mapped above, and not used.
            unsafe { sys::unmap(from, region.unit_len) };
        }
        result
    }
}
