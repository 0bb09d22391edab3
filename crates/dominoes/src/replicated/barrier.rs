//! A fence of which one side, the light one, is nearly free.
//!
//! Of two threads, each stores to one word and then loads another, which the other stores to. One
//! of them must see the other's store, which takes a full fence on both sides. If one side is rare,
//! it can fence for both: [`heavy`] interrupts each core that runs a thread of this process, and
//! makes it pass a full fence (`membarrier(2)`, Linux 4.14). So [`light`] need only stop the
//! compiler.
//!
//! Where this system call is missing, and under loom and ThreadSanitizer, which do not know it,
//! [`is_available`] is false. In their place a test in `state_lock.rs` races a reader against
//! writers.

use std::sync::atomic::{Ordering, compiler_fence};

#[cfg(all(target_os = "linux", not(any(loom, netstack_loom, tsan, miri))))]
#[expect(unsafe_code, reason = "it calls the system")]
mod system {
    use std::sync::OnceLock;

    fn membarrier(command: libc::c_int) -> bool {
        // SAFETY: the call has no pointers, and changes nothing but what the kernel keeps for it.
        let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
        result == 0
    }

    fn register() -> bool {
        membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
    }

    pub(super) fn is_available() -> bool {
        static REGISTERED: OnceLock<bool> = OnceLock::new();
        *REGISTERED.get_or_init(register)
    }

    pub(super) fn fence() -> bool {
        membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
    }
}

#[cfg(not(all(target_os = "linux", not(any(loom, netstack_loom, tsan, miri)))))]
mod system {
    pub(super) fn is_available() -> bool {
        false
    }
    pub(super) fn fence() -> bool {
        false
    }
}

/// Whether [`heavy`] may be called.
pub(super) fn is_available() -> bool {
    system::is_available()
}

/// The light side, between its store and its load.
#[inline(always)]
pub(super) fn light() {
    // ORDERING: SeqCst for the compiler; the core's part is in `heavy`.
    compiler_fence(Ordering::SeqCst);
}

/// The heavy side, between its store and its load. It takes microseconds. Returns false, and fences
/// nothing, if the system refuses: after [`is_available`] it does so only for a process that has
/// begun to filter its system calls.
#[cold]
#[must_use]
pub(super) fn heavy() -> bool {
    #[cfg(test)]
    if REFUSES.get() {
        return false;
    }
    system::fence()
}

#[cfg(test)]
thread_local! {
    /// The system refuses this thread's heavy fences.
    pub(super) static REFUSES: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}
