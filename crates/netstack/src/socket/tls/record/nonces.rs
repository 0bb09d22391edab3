//! Which nonces the cipher has sealed with (feature `testkit`, in builds with assertions).
//!
//! A key that seals two texts with one nonce panics. A test may count besides, over all keys of a
//! thread: two keys that are made of the same secret are one key.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Mutex;

/// Hashes of what was sealed with each nonce.
#[derive(Default)]
struct Used(HashMap<(u64, [u8; 12]), u64>);

impl Used {
    /// `None` if the nonce is new, else whether the text is the same.
    fn note(&mut self, key: u64, nonce: [u8; 12], text: u64) -> Option<bool> {
        let first = self.0.insert((key, nonce), text)?;
        Some(first == text)
    }
}

/// How often a thread has sealed with which kind of nonce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NonceTally {
    /// With one that its key had not been used with.
    pub fresh: u64,
    /// The same text again, since the first time was not finished.
    pub again: u64,
    /// Another text with a nonce that was used. Must be 0.
    pub reused: u64,
}

thread_local! {
    static COUNTING: RefCell<Option<(Used, NonceTally)>> = const { RefCell::new(None) };
}

/// Counts the nonces of this thread from now on. Returns what was counted since the last call.
pub fn count_nonces() -> NonceTally {
    let before = COUNTING.replace(Some(Default::default()));
    before.map_or(NonceTally::default(), |(_, tally)| tally)
}

fn hash(what: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// The nonces of one key.
pub(super) struct Nonces {
    key: u64,
    used: Mutex<Used>,
}

impl Nonces {
    pub(super) fn new(key: &[u8]) -> Nonces {
        Nonces {
            key: hash(key),
            used: Mutex::default(),
        }
    }

    /// `text` is sealed with `nonce`. It may be again, another one not.
    ///
    /// # Panics
    /// If another one was.
    pub(super) fn note(&self, nonce: [u8; 12], content: u8, text: &[u8]) {
        let text = hash((content, text));
        COUNTING.with_borrow_mut(|counting| {
            if let Some((used, tally)) = counting {
                match used.note(self.key, nonce, text) {
                    None => tally.fresh += 1,
                    Some(true) => tally.again += 1,
                    Some(false) => tally.reused += 1,
                }
            }
        });
        let mut used = self.used.lock().unwrap_or_else(|held| held.into_inner());
        let is_same = used.note(self.key, nonce, text) != Some(false);
        drop(used);
        assert!(is_same, "nonce {nonce:x?} seals two texts");
    }
}
