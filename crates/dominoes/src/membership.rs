//! Membership, published as entries of the log itself.
//!
//! When members are announced as entries of the channel, every replica sees the change at the same
//! position. So all of them agree from which entry on each member may be primary, without any
//! atomics.

/// An entry of a channel that also carries changes of the membership.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Entry<T> {
    /// An ordinary entry.
    Data(T),
    /// From the next entry on, this replica is a member.
    Joined(u64),
    /// From the next entry on, this replica is no longer a member.
    Left(u64),
}

/// The members after some position, as the entries so far define them. Part of the replicated
/// state.
///
/// ```
/// use dominoes::{ByPosition, Entry, Members, PrimaryPolicy};
///
/// let mut members = Members::new();
/// let mut primaries = Vec::new();
/// let log = [Entry::Joined(7), Entry::Data('a'), Entry::Joined(3), Entry::Data('b'), Entry::Left(7)];
/// for (chunk, entry) in log.iter().enumerate() {
///     members.apply(entry);
///     primaries.push(members.ids()[ByPosition.primary(chunk as u64, members.len())]);
/// }
/// assert_eq!(primaries, [7, 7, 3, 7, 3]);
/// ```
#[derive(Debug, Default, Clone, PartialEq, Eq, Hash)]
pub struct Members {
    /// Ascending.
    ids: Vec<u64>,
}

impl Members {
    /// No members.
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies an entry. Returns whether the members changed: joining twice and leaving without
    /// having joined change nothing.
    pub fn apply<T>(&mut self, entry: &Entry<T>) -> bool {
        match *entry {
            Entry::Data(_) => false,
            Entry::Joined(id) => match self.ids.binary_search(&id) {
                Ok(_) => false,
                Err(rank) => {
                    self.ids.insert(rank, id);
                    true
                }
            },
            Entry::Left(id) => match self.ids.binary_search(&id) {
                Ok(rank) => {
                    self.ids.remove(rank);
                    true
                }
                Err(_) => false,
            },
        }
    }

    /// The members, ascending.
    pub fn ids(&self) -> &[u64] {
        &self.ids
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there are no members.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The rank of a member: its number as a replica, for a
    /// [`PrimaryPolicy`](crate::PrimaryPolicy).
    pub fn rank(&self, id: u64) -> Option<usize> {
        self.ids.binary_search(&id).ok()
    }
}
