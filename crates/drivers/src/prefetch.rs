//! Hints to the processor to fetch memory into a nearby cache.

#![allow(unsafe_code)]

/// Asks the processor to fetch `bytes` into its nearest cache, where the processor supports that.
/// Does not wait.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    prefetch_at(bytes.as_ptr(), bytes.len());
}

/// As [`prefetch`], for `len` bytes from `start` on, even while another thread writes them.
#[inline]
pub fn prefetch_at(start: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        const LINE: usize = 64;
        let fetch = |at| {
            // SAFETY: a prefetch is a hint for any address and never faults; every x86-64 has SSE.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(at).cast()) };
        };
        let mut at = 0;
        // Four lines per iteration, since the loop overhead per line would exceed the cost of
        // prefetching.
        while at + 4 * LINE <= len {
            fetch(at);
            fetch(at + LINE);
            fetch(at + 2 * LINE);
            fetch(at + 3 * LINE);
            at += 4 * LINE;
        }
        while at < len {
            fetch(at);
            at += LINE;
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, len);
}

/// As [`prefetch`], for the first line of `value`.
#[inline]
pub fn prefetch_of<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: as in `prefetch`.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(core::ptr::from_ref(value).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
