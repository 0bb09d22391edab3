//! Which descriptors are sockets of ours.
//!
//! A slot per number. Calls for other descriptors read one atomic and continue to the kernel. The
//! clones of a descriptor share one [`Socket`], and calls in progress keep it, so `close` in
//! another thread is safe.

use core::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::socket::Socket;
use crate::sys::Fd;

/// Numbers from here on are the kernel's.
const SLOTS: usize = 1 << 16;

/// A descriptor of the kernel, or none.
const OTHER: u8 = 0;
/// A socket of ours, or one that may become ours.
const SOCKET: u8 = 1;
/// A descriptor that this library or the stack uses.
const INTERNAL: u8 = 2;
/// An epoll set that has had a socket of ours.
const SET: u8 = 3;

struct Slot {
    kind: AtomicU8,
    socket: Mutex<Option<Arc<Socket>>>,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        kind: AtomicU8::new(OTHER),
        socket: Mutex::new(None),
    }
}; SLOTS];

impl Slot {
    fn socket(&self) -> MutexGuard<'_, Option<Arc<Socket>>> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn slot(fd: Fd) -> Option<&'static Slot> {
    TABLE.get(usize::try_from(fd).ok()?)
}

/// The socket with this number, also one that is still the kernel's.
#[inline]
pub(crate) fn socket(fd: Fd) -> Option<Arc<Socket>> {
    let slot = slot(fd)?;
    // ORDERING: Relaxed; a number reaches another thread by means that order it.
    if slot.kind.load(Ordering::Relaxed) != SOCKET {
        return None;
    }
    slot.socket().clone()
}

/// Gives a number to a socket. Returns false if the number is too large for the table.
pub(crate) fn insert(fd: Fd, socket: &Arc<Socket>) -> bool {
    let Some(slot) = slot(fd) else { return false };
    socket.add_number(fd);
    let old = slot.socket().replace(Arc::clone(socket));
    slot.kind.store(SOCKET, Ordering::Relaxed);
    if let Some(old) = old {
        old.remove_number(fd);
    }
    true
}

/// Replaces the socket of a number; the program does not notice.
pub(crate) fn swap(fd: Fd, socket: &Arc<Socket>) {
    if let Some(slot) = slot(fd) {
        // The old one may end here, after the lock.
        let _old = slot.socket().replace(Arc::clone(socket));
    }
}

/// Takes the number from its socket, because the program closes or replaces it.
pub(crate) fn remove(fd: Fd) -> Option<Arc<Socket>> {
    let slot = slot(fd)?;
    match slot.kind.load(Ordering::Relaxed) {
        SOCKET | SET => slot.kind.store(OTHER, Ordering::Relaxed),
        _ => return None,
    }
    let socket = slot.socket().take()?;
    socket.remove_number(fd);
    Some(socket)
}

/// Protects a descriptor of this library from the program.
pub(crate) fn mark_internal(fd: Fd) {
    if let Some(slot) = slot(fd) {
        slot.kind.store(INTERNAL, Ordering::Relaxed);
    }
}

/// Undoes [`mark_internal`].
pub(crate) fn forget(fd: Fd) {
    if let Some(slot) = slot(fd) {
        slot.kind.store(OTHER, Ordering::Relaxed);
    }
}

/// Notes that an epoll set contains a socket.
pub(crate) fn mark_set(fd: Fd) {
    if let Some(slot) = slot(fd) {
        slot.kind.store(SET, Ordering::Relaxed);
    }
}

/// Whether an epoll set may contain a socket of ours.
pub(crate) fn is_set(fd: Fd) -> bool {
    slot(fd).is_some_and(|slot| slot.kind.load(Ordering::Relaxed) == SET)
}

pub(crate) fn is_internal(fd: Fd) -> bool {
    slot(fd).is_some_and(|slot| slot.kind.load(Ordering::Relaxed) == INTERNAL)
}

/// The numbers from `first` to `last` that are no plain descriptors of the kernel.
pub(crate) fn special(first: u32, last: u32) -> impl Iterator<Item = Fd> {
    let end = (last as usize).saturating_add(1).min(SLOTS);
    let numbers = first as usize..end.max(first as usize);
    let is_special = |fd: &usize| TABLE[*fd].kind.load(Ordering::Relaxed) != OTHER;
    numbers.filter(is_special).map(|fd| fd as Fd)
}
