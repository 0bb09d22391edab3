//! Maps of the standard library as replicated state. Reads use all of their methods that take
//! `&self`: `get`, `range`, `iter` and so on.

use super::{Pieces, StateMachine};
use std::{
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher, Hash},
    ops::Bound,
};

/// A change of a map. The answer is the value that the key had before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapOp<K, V> {
    /// Gives the key this value.
    Insert(K, V),
    /// Removes the key.
    Remove(K),
    /// Removes all keys. The answer is `None`.
    Clear,
}

impl<K, V, S> StateMachine for HashMap<K, V, S>
where
    K: Clone + Eq + Hash + Send + Sync,
    V: Clone + Send + Sync,
    S: BuildHasher + Clone + Send + Sync,
{
    type Op = MapOp<K, V>;
    type Answer = Option<V>;

    fn apply(&mut self, op: &MapOp<K, V>) -> Option<V> {
        match op {
            MapOp::Insert(key, value) => self.insert(key.clone(), value.clone()),
            MapOp::Remove(key) => self.remove(key),
            MapOp::Clear => {
                self.clear();
                None
            }
        }
    }
}

/// Ordered, so that reads can take ranges of keys. A replica that joins copies it in pieces.
impl<K, V> StateMachine for BTreeMap<K, V>
where
    K: Clone + Ord + Send + Sync,
    V: Clone + Send + Sync,
{
    type Op = MapOp<K, V>;
    type Answer = Option<V>;

    fn apply(&mut self, op: &MapOp<K, V>) -> Option<V> {
        match op {
            MapOp::Insert(key, value) => self.insert(key.clone(), value.clone()),
            MapOp::Remove(key) => self.remove(key),
            MapOp::Clear => {
                self.clear();
                None
            }
        }
    }

    fn pieces<'a>(&self) -> Option<Box<dyn Pieces<Self> + 'a>>
    where
        Self: 'a,
    {
        let (copy, last) = (BTreeMap::new(), None);
        Some(Box::new(Ranges { copy, last }))
    }
}

/// Entries of a map that are copied at a time, which takes less than a millisecond.
const PIECE: usize = 4096;

/// A copy of the lowest keys of a map.
struct Ranges<K, V> {
    copy: BTreeMap<K, V>,
    /// The keys up to here are copied.
    last: Option<K>,
}

impl<K, V> Pieces<BTreeMap<K, V>> for Ranges<K, V>
where
    K: Clone + Ord + Send + Sync,
    V: Clone + Send + Sync,
{
    fn copy(&mut self, state: &BTreeMap<K, V>) -> bool {
        let after = self.last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut last = None;
        for (key, value) in state.range((after, Bound::Unbounded)).take(PIECE) {
            self.copy.insert(key.clone(), value.clone());
            last = Some(key);
        }
        match last {
            Some(last) => self.last = Some(last.clone()),
            None => return true,
        }
        false
    }

    fn apply(&mut self, op: &MapOp<K, V>) {
        match op {
            MapOp::Insert(key, _) | MapOp::Remove(key) if Some(key) > self.last.as_ref() => {}
            _ => drop(self.copy.apply(op)),
        }
    }

    fn finish(self: Box<Self>) -> BTreeMap<K, V> {
        self.copy
    }
}
