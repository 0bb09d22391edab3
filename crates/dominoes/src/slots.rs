//! The memory of slots: plain `T`s, each published once and lent as `&[T]`.
//!
//! Data that changes after publishing is kept in separate dense arrays of the same length:
//! [`Verdicts`](crate::Verdicts) and [`BatchRecords`](crate::BatchRecords).

use crate::sync::Shadow;
use std::{
    alloc::{Layout, alloc, dealloc, handle_alloc_error},
    cell::UnsafeCell,
    mem::MaybeUninit,
    ptr::NonNull,
    slice,
};

/// Contiguous, possibly uninitialised slots; the base is aligned to 128 bytes. Does not check
/// which thread accesses which slot.
pub(crate) struct Slots<T> {
    base: NonNull<UnsafeCell<MaybeUninit<T>>>,
    len: usize,
    shadow: Shadow,
}

/// The address of the slots, by value, for loops: otherwise the compiler would have to assume that
/// writing a slot changes the `Slots`.
pub(crate) struct View<'a, T> {
    base: *mut UnsafeCell<MaybeUninit<T>>,
    slots: &'a Slots<T>,
}

impl<T> View<'_, T> {
    /// # Safety
    /// As for [`Slots::write`].
    #[inline(always)]
    pub(crate) unsafe fn write(&self, index: usize, value: T) {
        debug_assert!(index < self.slots.len);
        self.slots.shadow.write(index);
        // SAFETY: the caller has exclusive access to the slot, and `index` is inside the
        // allocation.
        unsafe { UnsafeCell::raw_get(self.base.add(index)).write(MaybeUninit::new(value)) }
    }
}

// SAFETY: the slots own their `T`s as a `Vec<T>` does; moving them to another thread moves the
// values.
unsafe impl<T: Send> Send for Slots<T> {}

// SAFETY: through a shared `Slots`, threads put values in and take them out (hence `Send`) and
// borrow them concurrently (hence `Sync`); callers of the unsafe methods guarantee that no two
// accesses conflict.
unsafe impl<T: Send + Sync> Sync for Slots<T> {}

impl<T> Slots<T> {
    pub(crate) fn new(len: usize) -> Self {
        let layout = Self::layout(len);
        let base = if layout.size() == 0 {
            NonNull::dangling()
        } else {
            // SAFETY: the layout's size is not zero.
            let memory = unsafe { alloc(layout) };
            NonNull::new(memory.cast()).unwrap_or_else(|| handle_alloc_error(layout))
        };
        Slots {
            base,
            len,
            shadow: Shadow::new(len),
        }
    }

    fn layout(len: usize) -> Layout {
        let array =
            Layout::array::<UnsafeCell<MaybeUninit<T>>>(len).and_then(|array| array.align_to(128));
        array.expect("the slots of a channel fit into memory")
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    pub(crate) fn view(&self) -> View<'_, T> {
        View {
            base: self.base.as_ptr(),
            slots: self,
        }
    }

    #[inline(always)]
    fn at(&self, index: usize) -> *mut T {
        debug_assert!(index < self.len);
        // SAFETY: callers pass an index below `len`, which is inside the allocation.
        unsafe { UnsafeCell::raw_get(self.base.as_ptr().add(index)).cast() }
    }

    /// # Safety
    /// `index < len`, and no other thread reads or writes the slot meanwhile. An old value is
    /// overwritten, not dropped.
    #[inline(always)]
    pub(crate) unsafe fn write(&self, index: usize, value: T) {
        self.shadow.write(index);
        // SAFETY: the caller has exclusive access to the slot.
        unsafe { self.at(index).write(value) }
    }

    /// # Safety
    /// `index + n <= len`, and no other thread reads or writes these slots meanwhile. `values`
    /// points to `n` values outside the slots, which are copied bit by bit: they are `Copy`, or the
    /// caller forgets them.
    #[inline]
    pub(crate) unsafe fn copy_in(&self, index: usize, values: *const T, n: usize) {
        if n == 0 {
            return;
        }
        for i in index..index + n {
            self.shadow.write(i);
        }
        // SAFETY: the caller has exclusive access to the slots and guarantees the values.
        unsafe { self.at(index).copy_from_nonoverlapping(values, n) }
    }

    /// # Safety
    /// `index < len`, the slot holds a value, and no thread writes or empties it as long as the
    /// reference lives.
    #[inline(always)]
    pub(crate) unsafe fn get(&self, index: usize) -> &T {
        self.shadow.read(index);
        // SAFETY: the caller guarantees value and lifetime.
        unsafe { &*self.at(index) }
    }

    /// # Safety
    /// As for [`get`](Self::get), for each slot of `index..index + len`.
    #[inline]
    pub(crate) unsafe fn slice(&self, index: usize, len: usize) -> &[T] {
        if len == 0 {
            return &[];
        }
        self.touch(index, len);
        // SAFETY: the caller guarantees values and lifetime; the slots are contiguous, and
        // `UnsafeCell<MaybeUninit<T>>` has the layout of `T`.
        unsafe { slice::from_raw_parts(self.at(index), len) }
    }

    /// Reports a read of these slots to loom.
    #[inline(always)]
    pub(crate) fn touch(&self, index: usize, len: usize) {
        if cfg!(loom) {
            for i in index..index + len {
                self.shadow.read(i);
            }
        }
    }

    /// # Safety
    /// `index < len`, the slot holds a value, no other thread accesses the slot meanwhile, and it
    /// counts as empty from now on.
    #[inline]
    pub(crate) unsafe fn take(&self, index: usize) -> T {
        self.shadow.write(index);
        // SAFETY: the caller has exclusive access to the slot and treats it as empty afterwards.
        unsafe { self.at(index).read() }
    }
}

/// An iterator that announces more values than this must show them.
const MOST_BELIEVED: usize = 1 << 12;

/// Values on their way into slots: a vector that is aligned as the slots are, since copying values
/// that straddle cache lines takes longer.
pub(crate) struct Staged<T> {
    slots: Slots<T>,
    /// The slots below hold values.
    len: usize,
}

impl<T> Staged<T> {
    pub(crate) fn new() -> Self {
        let slots = Slots::new(0);
        Staged { slots, len: 0 }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Makes room for `more` values.
    fn reserve(&mut self, more: usize) {
        let needed = self
            .len
            .checked_add(more)
            .expect("so many values fit into memory");
        if needed > self.slots.len() {
            let slots = Slots::new(needed.max(2 * self.len));
            // SAFETY: the new slots are this thread's alone. The old ones are forgotten.
            unsafe { slots.copy_in(0, self.as_ptr(), self.len) };
            self.slots = slots;
        }
    }

    #[inline]
    pub(crate) fn extend(&mut self, mut values: impl Iterator<Item = T>) {
        /// Sets the length also if the iterator panics, and not for each value.
        struct SetLen<'a>(&'a mut usize, usize);
        impl Drop for SetLen<'_> {
            fn drop(&mut self) {
                *self.0 = self.1;
            }
        }
        let announced = values.size_hint().0.min(MOST_BELIEVED);
        self.reserve(announced);
        let (view, before) = (self.slots.view(), self.len);
        let mut len = SetLen(&mut self.len, before);
        for value in values.by_ref().take(announced) {
            // SAFETY: the slot holds no value, as `len` shows, and is this thread's alone.
            unsafe { view.write(len.1, value) };
            len.1 += 1;
        }
        drop(len);
        for value in values {
            self.reserve(1);
            // SAFETY: as above.
            unsafe { self.slots.write(self.len, value) };
            self.len += 1;
        }
    }

    pub(crate) fn as_ptr(&self) -> *const T {
        self.slots.base.as_ptr().cast()
    }

    /// Forgets all values, which the caller has moved.
    pub(crate) fn forget(&mut self) {
        self.len = 0;
    }

    /// Moves all values out.
    pub(crate) fn take(&mut self) -> Vec<T> {
        let len = std::mem::take(&mut self.len);
        // SAFETY: each slot below `len` holds a value, which is moved once: `len` is 0 before.
        (0..len)
            .map(|index| unsafe { self.slots.take(index) })
            .collect()
    }
}

impl<T> Drop for Staged<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl<T> Drop for Slots<T> {
    fn drop(&mut self) {
        let layout = Self::layout(self.len);
        if layout.size() != 0 {
            // SAFETY: allocated in `new` with this layout. The owner has dropped the values, since
            // only it knows which slots hold one.
            unsafe { dealloc(self.base.as_ptr().cast(), layout) }
        }
    }
}
