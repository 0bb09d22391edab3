//! Pieces of a file: each is hashed and searched by itself, and their results are put together.

use std::sync::Arc;

use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root,
};
use blake3::{Hash, Hasher};
use dominoes_netstack::framed::{Failure, MAX_PAYLOAD, UnitProcessor};

use crate::work::{Crossing, Search};

/// Bytes of a piece: a power of two, so that it is a whole subtree of BLAKE3's tree.
pub(crate) const PIECE: usize = 8 << 10;
/// Bytes of a chaining value.
const HASH: usize = 32;
/// Bytes of the results of a piece: its chaining value, and the number of occurrences in it.
const RESULTS: usize = HASH + 8;

/// Makes a unit of each piece of a file of `len` bytes. The payload of a unit is the piece and then
/// its results, so any worker may process it, even twice.
#[derive(Debug)]
pub(crate) struct Pieces {
    pub(crate) len: u64,
    pub(crate) search: Arc<Search>,
}

impl UnitProcessor for Pieces {
    fn max_payload(&self) -> usize {
        MAX_PAYLOAD
    }

    fn max_unit(&self) -> usize {
        MAX_PAYLOAD
    }

    fn received_len(&self, offset: u64, _: &[u8], arrived: usize) -> Result<usize, Failure> {
        Ok(match self.len.saturating_sub(offset) {
            // After the file.
            0 => arrived,
            left => left.min(PIECE as u64) as usize,
        })
    }

    fn receive(&self, offset: u64, unit: &[u8], payload: &mut [u8]) -> Result<usize, Failure> {
        let (bytes, results) = payload.split_at_mut(unit.len());
        bytes.copy_from_slice(unit);
        if offset >= self.len {
            return Ok(unit.len());
        }
        let mut hasher = Hasher::new();
        let hash = hasher.set_input_offset(offset).update(unit);
        results[..HASH].copy_from_slice(&hash.finalize_non_root());
        results[HASH..RESULTS].copy_from_slice(&self.search.count(unit).to_le_bytes());
        Ok(unit.len() + RESULTS)
    }

    fn sent_len(&self, payload_len: usize) -> usize {
        payload_len
    }

    fn send(&self, _: u64, payload: &[u8], unit: &mut [u8]) -> Result<(), Failure> {
        unit.copy_from_slice(payload);
        Ok(())
    }
}

/// Puts the results of pieces together, in the order of the file.
pub(crate) struct Whole {
    crossing: Crossing,
    /// How often the strings occur.
    pub(crate) found: u64,
    /// Roots of whole subtrees, the largest first.
    subtrees: Vec<ChainingValue>,
    /// The last piece, which is not yet among them, and its digest if there is no other.
    last: Option<(ChainingValue, Hash)>,
    /// Pieces among the subtrees.
    pieces: u64,
}

impl Whole {
    pub(crate) fn new(search: Arc<Search>) -> Whole {
        Whole {
            crossing: Crossing::new(search),
            found: 0,
            subtrees: Vec::new(),
            last: None,
            pieces: 0,
        }
    }

    /// Adds a piece, by the payload of its unit. Returns its bytes.
    pub(crate) fn add<'a>(&mut self, payload: &'a [u8]) -> Option<&'a [u8]> {
        let (bytes, results) = payload.split_at_checked(payload.len().checked_sub(RESULTS)?)?;
        let (hash, found) = results.split_first_chunk::<HASH>()?;
        self.found += u64::from_le_bytes(found.try_into().ok()?) + self.crossing.count(bytes);
        if let Some((hash, _)) = self.last.take() {
            self.merge(hash);
        }
        let alone = match self.pieces {
            0 => blake3::hash(bytes),
            _ => Hash::from_bytes([0; HASH]),
        };
        self.last = Some((*hash, alone));
        Some(bytes)
    }

    /// Adds a subtree of one piece; two of one size become one.
    fn merge(&mut self, mut hash: ChainingValue) {
        self.pieces += 1;
        for _ in 0..self.pieces.trailing_zeros() {
            if let Some(left) = self.subtrees.pop() {
                hash = merge_subtrees_non_root(&left, &hash, Mode::Hash);
            }
        }
        self.subtrees.push(hash);
    }

    /// The digest of all pieces.
    pub(crate) fn digest(self) -> Hash {
        let mut subtrees = self.subtrees;
        let Some((mut hash, alone)) = self.last else {
            return blake3::hash(&[]);
        };
        let Some(first) = (!subtrees.is_empty()).then(|| subtrees.remove(0)) else {
            return alone;
        };
        while let Some(left) = subtrees.pop() {
            hash = merge_subtrees_non_root(&left, &hash, Mode::Hash);
        }
        merge_subtrees_root(&first, &hash, Mode::Hash)
    }
}
