//! Which descriptors are sockets of ours.
//!
//! A slot per number. Calls for other descriptors read one atomic and continue to the kernel. The
//! clones of a descriptor share one [`Socket`], and calls in progress keep it, so `close` in
//! another thread is safe.

use core::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use crate::socket::Socket;
use crate::stack;
use crate::sys::{self, Fd};

/// Numbers from here on are the kernel's.
const SLOTS: usize = 1 << 16;

/// A descriptor of the kernel, or none.
const OTHER: u8 = 0;
/// A socket of the kernel that may become ours.
const SOCKET: u8 = 1;
/// A descriptor that this library or the stack uses.
const INTERNAL: u8 = 2;
/// An epoll set that has had a socket of ours.
const SET: u8 = 3;
/// A socket of ours.
const OURS: u8 = 4;

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

/// In a forked child, represents each socket of the parent. The child takes no lock of a slot: a
/// thread of the parent may have held it at the fork.
static PARENTS: LazyLock<Arc<Socket>> = LazyLock::new(|| Socket::undecided(libc::AF_INET, 0));

/// Prepares for forks.
pub(crate) fn prepare() {
    LazyLock::force(&PARENTS);
}

/// The socket with this number, also one that is still the kernel's.
#[inline]
pub(crate) fn socket(fd: Fd) -> Option<Arc<Socket>> {
    let slot = slot(fd)?;
    // ORDERING: Relaxed; a number reaches another thread by means that order it.
    match slot.kind.load(Ordering::Relaxed) {
        OURS if stack::is_fork() => Some(Arc::clone(&PARENTS)),
        SOCKET | OURS if !stack::is_fork() => slot.socket().clone(),
        _ => None,
    }
}

fn kind_of(socket: &Socket) -> u8 {
    if socket.live.is_some() { OURS } else { SOCKET }
}

/// Gives a number to a socket. Returns false if the number is too large for the table.
pub(crate) fn insert(fd: Fd, socket: &Arc<Socket>) -> bool {
    let Some(slot) = slot(fd) else { return false };
    if stack::is_fork() {
        slot.kind.store(OURS, Ordering::Relaxed);
        return true;
    }
    socket.add_number(fd);
    let old = slot.socket().replace(Arc::clone(socket));
    slot.kind.store(kind_of(socket), Ordering::Relaxed);
    if let Some(old) = old {
        old.remove_number(fd);
    }
    true
}

/// Gives a new number to the socket whose descriptors are of the same open file.
pub(crate) fn adopt(new: Fd) {
    let Some(file) = sys::socket_file(new) else {
        return;
    };
    let mut others = special(0, SLOTS as u32)
        .filter(|fd| *fd != new)
        .filter_map(|fd| Some((fd, socket(fd)?)));
    if let Some((_, socket)) = others.find(|(fd, _)| sys::socket_file(*fd) == Some(file)) {
        insert(new, &socket);
    }
}

/// Replaces the socket of a number; the program does not notice.
pub(crate) fn swap(fd: Fd, socket: &Arc<Socket>) {
    if let Some(slot) = slot(fd) {
        // The old one may end here, after the lock.
        let _old = slot.socket().replace(Arc::clone(socket));
        slot.kind.store(kind_of(socket), Ordering::Relaxed);
    }
}

/// Takes the number from its socket, because the program closes or replaces it.
pub(crate) fn remove(fd: Fd) -> Option<Arc<Socket>> {
    let slot = slot(fd)?;
    match slot.kind.load(Ordering::Relaxed) {
        SOCKET | OURS | SET => slot.kind.store(OTHER, Ordering::Relaxed),
        _ => return None,
    }
    if stack::is_fork() {
        return None;
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

/// Whether this is a socket, or a set that may contain one.
pub(crate) fn is_known(fd: Fd) -> bool {
    slot(fd).is_some_and(|slot| matches!(slot.kind.load(Ordering::Relaxed), SOCKET | OURS | SET))
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
