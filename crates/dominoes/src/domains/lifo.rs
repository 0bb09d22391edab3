//! A bounded stack without a lock.
//!
//! Each value is in a *cell*. Two lists connect the cells: the free ones, and those with a value,
//! the newest first. A thread takes a cell off one list, works on it, and puts it on the other; in
//! between no other thread has it. A thread that stops there keeps its cell, and nothing else.
//!
//! The head of a list is one word: in its low bits the number of the first cell, in the others a
//! tag that each change increments. So a head that was read before other threads took the cell and
//! put it back is not taken for the same head. The tag has all bits that the cells leave, 53 for
//! a thousand cells. It wraps, and the comparison fails to notice, only if a thread stops between
//! its read and its exchange for exactly a multiple of 2^53 changes: years.

use super::Pool;
use crate::{
    TryLock,
    channel::Order,
    sync::{AtomicU64, Ordering},
};
use std::fmt;

/// The number of no cell.
const NONE: u64 = 0;
/// The lower half of a link: the number of the next cell.
const NEXT: u64 = u32::MAX as u64;

/// Last in, first out: the newest value is likely still in some cache. Lock-free: a thread that
/// stops within a call delays no other, but one of the cells stays unused until it continues.
pub struct Lifo<T> {
    /// Cell `n` is at `n - 1`.
    cells: Box<[TryLock<Option<T>>]>,
    /// For each cell: the number of the cell after it in its list, and in the upper half the number
    /// of cells from it to the end.
    links: Box<[AtomicU64]>,
    filled: AtomicU64,
    free: AtomicU64,
    /// The bits of a head that are the number of a cell.
    number: u64,
}

impl<T> Lifo<T> {
    /// The head after `head`, whose first cell is `first`.
    fn changed(&self, head: u64, first: u64) -> u64 {
        (head | self.number).wrapping_add(1) | first
    }

    /// The cells of a list whose first cell is `first`, in the upper half of the word.
    fn count(&self, first: u64) -> u64 {
        match first {
            NONE => 0,
            first => self.links[first as usize - 1].load(Ordering::Relaxed) & !NEXT,
        }
    }

    /// Takes the first cell off a list.
    fn take(&self, list: &AtomicU64) -> Option<u64> {
        // ORDERING: Acquire, here and below, pairs with the Release in `put`. Every change of a
        // head is a read-modify-write, so each later head carries what all threads released.
        let mut head = list.load(Ordering::Acquire);
        loop {
            let first = head & self.number;
            if first == NONE {
                return None;
            }
            // Another thread may have the cell by now. Then this is wrong, and the tag has changed.
            let next = self.links[first as usize - 1].load(Ordering::Relaxed) & NEXT;
            let changed = self.changed(head, next);
            match list.compare_exchange_weak(head, changed, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(first),
                Err(found) => head = found,
            }
        }
    }

    /// Puts a cell that this thread has taken before the first of a list.
    fn put(&self, list: &AtomicU64, cell: u64) {
        // ORDERING: Acquire, here and below, pairs with the Release below: the count of the first
        // cell is read.
        let mut head = list.load(Ordering::Acquire);
        loop {
            let first = head & self.number;
            // If another thread takes the first cell meanwhile, the count is wrong, and the tag has
            // changed.
            let link = (self.count(first) + NEXT + 1) | first;
            self.links[cell as usize - 1].store(link, Ordering::Relaxed);
            let changed = self.changed(head, cell);
            // ORDERING: Release, pairs with the Acquire above and in `take`: the link is stored.
            match list.compare_exchange_weak(head, changed, Ordering::Release, Ordering::Acquire) {
                Ok(_) => return,
                Err(found) => head = found,
            }
        }
    }

    /// Exchanges the value in a cell that this thread has taken.
    fn replace(&self, cell: u64, value: Option<T>) -> Option<T> {
        let mut held = self.cells[cell as usize - 1]
            .try_take()
            .expect("only one thread has taken the cell off a list");
        std::mem::replace(&mut held, value)
    }
}

impl<T: Send> Pool<T> for Lifo<T> {
    const ORDER: Order = Order::NewestFirst;

    fn with_capacity(capacity: usize) -> Self {
        let cells = u32::try_from(capacity).expect("a stack has fewer than 2^32 cells");
        let lifo = Lifo {
            cells: (0..cells).map(|_| TryLock::new(None)).collect(),
            links: (0..cells).map(|_| AtomicU64::new(NONE)).collect(),
            filled: AtomicU64::new(NONE),
            free: AtomicU64::new(NONE),
            number: (u64::from(cells) + 1).next_power_of_two() - 1,
        };
        (1..=u64::from(cells)).for_each(|cell| lifo.put(&lifo.free, cell));
        lifo
    }

    fn push(&self, value: T) -> Result<(), T> {
        let Some(cell) = self.take(&self.free) else {
            return Err(value);
        };
        self.replace(cell, Some(value));
        self.put(&self.filled, cell);
        Ok(())
    }

    fn pop(&self) -> Option<T> {
        let cell = self.take(&self.filled)?;
        let value = self.replace(cell, None);
        self.put(&self.free, cell);
        value
    }

    fn len(&self) -> usize {
        let first = self.filled.load(Ordering::Relaxed) & self.number;
        (self.count(first) >> 32) as usize
    }
}

impl<T> fmt::Debug for Lifo<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lifo")
            .field("capacity", &self.cells.len())
            .finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_tag_wraps_without_touching_the_cell() {
        let lifo = Lifo::with_capacity(3);
        lifo.push("old").unwrap();
        let first = lifo.filled.load(Ordering::Relaxed) & lifo.number;
        let last = (u64::MAX - lifo.number) | first;
        lifo.filled.store(last, Ordering::Relaxed);
        lifo.push("new").unwrap();
        assert!(lifo.filled.load(Ordering::Relaxed) <= lifo.number);
        assert_eq!(
            [lifo.pop(), lifo.pop(), lifo.pop()],
            [Some("new"), Some("old"), None]
        );
    }

    #[test]
    fn a_full_stack_returns_the_value_and_an_emptied_one_has_room_again() {
        let lifo = Lifo::with_capacity(2);
        for round in 0..5 {
            assert_eq!(
                [1, 2, 3].map(|n| lifo.push(n + round)),
                [Ok(()), Ok(()), Err(3 + round)]
            );
            assert_eq!(lifo.len(), 2);
            assert_eq!(
                [lifo.pop(), lifo.pop(), lifo.pop()],
                [Some(2 + round), Some(1 + round), None]
            );
            assert!(lifo.is_empty());
        }
    }
}
