//! Maps of the standard library as replicated state. Reads use all of their methods that take
//! `&self`: `get`, `range`, `iter` and so on.

use super::StateMachine;
use std::{
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher, Hash},
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

/// Ordered, so that reads can take ranges of keys.
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
}
