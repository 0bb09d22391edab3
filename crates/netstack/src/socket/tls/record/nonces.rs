//! Records the nonces that ciphers seal with (feature `testkit`, in builds with assertions).
//!
//! A key panics when it seals two texts with one nonce. A test can also count nonces, over all keys
//! of a thread: two keys made from one secret count as one key.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Mutex;

/// A hash of the text sealed with each nonce.
#[derive(Default)]
struct Used(HashMap<(u64, [u8; 12]), u64>);

impl Used {
    /// `None` if the nonce is new; otherwise whether the text is unchanged.
    fn note(&mut self, key: u64, nonce: [u8; 12], text: u64) -> Option<bool> {
        let first = self.0.insert((key, nonce), text)?;
        Some(first == text)
    }
}

/// How often a thread has sealed, by kind of nonce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NonceTally {
    /// With a nonce that is new for its key.
    pub fresh: u64,
    /// With a used nonce and its text, because the first attempt was not finished.
    pub again: u64,
    /// With a used nonce and another text. Must be 0.
    pub reused: u64,
}

thread_local! {
    static COUNTING: RefCell<Option<(Used, NonceTally)>> = const { RefCell::new(None) };
}

/// Counts the nonces of this thread from now on. Returns the counts since the last call.
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

    /// Notes that `text` is sealed with `nonce`. The same text may be sealed again.
    ///
    /// # Panics
    /// If another text was sealed with this nonce.
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
