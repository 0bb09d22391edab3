//! Makes the kernel report the readiness of a socket of ours.
//!
//! The program's descriptor is one end of a pair of Unix stream sockets; this library keeps the
//! other end, the *peer*. So `poll`, `select` and `epoll` of the kernel work on it, with all their
//! modes, in mixed sets, and after `dup`. The state of our socket is written into the pair:
//!
//! | our socket | the pair | the kernel reports |
//! |---|---|---|
//! | readable | the peer has sent a byte | `POLLIN` |
//! | not writable | the program's end has sent until its buffer was full | no `POLLOUT` |
//! | the peer's FIN has arrived | the peer is shut down for writing | `POLLIN`, `POLLRDHUP` |
//! | both directions have ended | both ends are shut down for writing | `POLLHUP` |
//! | ended by an error | the peer is closed, with bytes that it has not read | `POLLERR`, `POLLHUP` |
//!
//! A byte that arrives, and room that appears, wake an epoll set, so `EPOLLET` sees each edge. If
//! more arrives while the byte is still there, a descriptor in a set with `EPOLLET` gets another
//! byte, which is another edge. If the program asks for edges alone, bytes stay when it has read
//! everything, until the buffer is full.
//!
//! # Cost
//!
//! A socket that was never polled has no mirrored state, and costs no system call. Otherwise a
//! change of readiness costs one system call: by the stack's thread when a socket becomes ready,
//! and by the program's when it has read everything or filled the room. While more bytes arrive at
//! a readable socket, and while room remains, calls for readiness are not made.
//!
//! # No change is lost
//!
//! [`Mirror::refresh`] watches the socket, then compares its state with the state that it has
//! mirrored, until they are equal. A later change finds the watch, which compares with the mirrored
//! state, too. The stack's threads never wait here: if another thread is refreshing, they mark the
//! mirror, and that thread looks again.

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use dominoes::Watch;
use dominoes_netstack::poller::direct::{Readiness, Watchable};

use crate::drive::{self, Waited};
use crate::sys::{self, Errno, Fd, Kept};

const READABLE: u8 = 1;
const WRITABLE: u8 = 2;
const READ_CLOSED: u8 = 4;
const BROKEN: u8 = 8;

/// More than the buffer of a pair holds.
const FULL: usize = 8 << 10;

/// The pair of one socket, and the state that it shows.
pub(crate) struct Mirror {
    /// Another descriptor of the program's end.
    end: Kept,
    /// Whether it shows anything yet.
    active: AtomicBool,
    /// The state has changed since the thread that refreshes has looked.
    is_stale: AtomicBool,
    /// Whether the program has shut down a direction.
    is_shut: AtomicBool,
    /// The longest waits of receiving and sending calls, in nanoseconds; 0 without limit.
    timeouts: [AtomicU64; 2],
    shown: Mutex<Shown>,
}

struct Shown {
    /// The kept end; `None` after an error.
    peer: Option<Kept>,
    watcher: Option<Arc<Watcher>>,
    /// Whether the program's end can read bytes.
    has_bytes: bool,
    is_full: bool,
    has_ended: bool,
    /// Whether each arrival is an edge.
    edges: bool,
    /// Whether the program also asks for the state, not only for edges.
    levels: bool,
    /// Whether an early end of the socket shows as an error.
    shows_errors: bool,
}

/// The watch of one object: a connection that is being opened, then its stream.
struct Watcher {
    socket: Watchable,
    mirror: Weak<Mirror>,
    /// The mirrored state, in bits.
    bits: AtomicU8,
    arrived: AtomicU64,
    edges: AtomicBool,
    is_armed: AtomicBool,
}

impl Watcher {
    /// Whether the mirrored state is this.
    fn shows(&self, now: &Readiness) -> bool {
        // ORDERING: Relaxed; the fence in `refresh_locked` orders these.
        self.bits.load(Ordering::Relaxed) == bits(now)
            && (!self.edges.load(Ordering::Relaxed)
                || self.arrived.load(Ordering::Relaxed) == now.arrived)
    }
}

/// The part of a state that a pair can show.
fn bits(now: &Readiness) -> u8 {
    let bit = |is_set, bit| if is_set { bit } else { 0 };
    bit(now.readable, READABLE)
        | bit(now.writable, WRITABLE)
        | bit(now.read_closed, READ_CLOSED)
        | bit(now.error && now.read_closed && now.write_closed, BROKEN)
}

impl Watch for Watcher {
    fn is_due(&self) -> bool {
        !self.socket.may_look() || !self.shows(&self.socket.look())
    }

    fn fire(self: Arc<Self>) {
        // ORDERING: Relaxed; `Mirror::refresh_locked` watches again if it reads false.
        self.is_armed.store(false, Ordering::Relaxed);
        if let Some(mirror) = self.mirror.upgrade() {
            mirror.refresh_or_mark();
        }
    }
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher").finish_non_exhaustive()
    }
}

impl Mirror {
    /// Creates a pair. Returns the number of the program's end, which has `flags` such as
    /// `SOCK_NONBLOCK`.
    ///
    /// # Errors
    /// As `socketpair`.
    pub(crate) fn new(flags: i32, shows_errors: bool) -> Result<(Arc<Mirror>, Fd), Errno> {
        let [end, peer] = sys::pair(flags)?;
        let least = crate::stack::least_descriptor();
        let kept = || -> Result<_, Errno> {
            Ok((Kept::duplicate(end, least)?, Kept::duplicate(peer, least)?))
        };
        let result = kept();
        let _ = sys::close(peer);
        let (kept_end, kept_peer) = result.inspect_err(|_| {
            let _ = sys::close(end);
        })?;
        crate::table::mark_internal(kept_end.number());
        crate::table::mark_internal(kept_peer.number());
        // Small buffers are full after one call.
        for number in [kept_end.number(), kept_peer.number()] {
            let _ = sys::set_option(number, libc::SOL_SOCKET, libc::SO_SNDBUF, &0);
        }
        let mirror = Mirror {
            end: kept_end,
            active: AtomicBool::new(false),
            is_stale: AtomicBool::new(false),
            is_shut: AtomicBool::new(false),
            timeouts: Default::default(),
            shown: Mutex::new(Shown {
                peer: Some(kept_peer),
                watcher: None,
                has_bytes: false,
                is_full: false,
                has_ended: false,
                edges: false,
                levels: false,
                shows_errors,
            }),
        };
        Ok((Arc::new(mirror), end))
    }

    /// The kept descriptor of the program's end.
    pub(crate) fn end(&self) -> Fd {
        self.end.number()
    }

    /// The watch. Looks again if a thread of the stack found the lock taken meanwhile.
    fn watcher(&self) -> Option<Arc<Watcher>> {
        let watcher = self.shown().watcher.clone();
        self.refresh_if_stale();
        watcher
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows the state of `socket` from now on.
    pub(crate) fn follow(self: &Arc<Self>, socket: Watchable) {
        let mut shown = self.shown();
        let watcher = Arc::new(Watcher {
            socket,
            mirror: Arc::downgrade(self),
            bits: AtomicU8::new(u8::MAX),
            arrived: AtomicU64::new(0),
            edges: AtomicBool::new(shown.edges),
            is_armed: AtomicBool::new(false),
        });
        if let Some(old) = shown.watcher.replace(watcher) {
            old.socket.unwatch(&(old.clone() as Arc<dyn Watch>));
        }
        drop(shown);
        self.refresh();
    }

    /// Begins to show the state, since the program polls the descriptor.
    pub(crate) fn activate(&self) {
        self.active.store(true, Ordering::Relaxed);
        let mut shown = self.shown();
        if !shown.levels {
            shown.levels = true;
            shown.remove_old_bytes(self.end());
        }
        drop(shown);
        self.refresh();
    }

    /// Makes each arrival an edge, for a descriptor in a set with `EPOLLET`.
    pub(crate) fn activate_edges(&self) {
        self.active.store(true, Ordering::Relaxed);
        let mut shown = self.shown();
        shown.edges = true;
        if let Some(watcher) = &shown.watcher {
            watcher.edges.store(true, Ordering::Relaxed);
        }
        // The kernel looks at the state when a set changes.
        shown.remove_old_bytes(self.end());
        drop(shown);
        self.refresh();
    }

    /// Shows the current state, if it is shown at all.
    pub(crate) fn refresh(&self) {
        if self.active.load(Ordering::Relaxed) {
            self.refresh_locked(self.shown());
            self.refresh_if_stale();
        }
    }

    /// As [`Mirror::refresh`], but leaves the work to another thread that is at it.
    fn refresh_or_mark(&self) {
        // ORDERING: SeqCst, pairs with the swap in `refresh_if_stale`: either the holder of the
        // lock sees the mark after it has unlocked, or this thread gets the lock.
        self.is_stale.store(true, Ordering::SeqCst);
        self.refresh_if_stale();
    }

    fn refresh_if_stale(&self) {
        loop {
            // ORDERING: SeqCst, pairs with the store in `refresh_or_mark`.
            fence(Ordering::SeqCst);
            if !self.is_stale.load(Ordering::SeqCst) {
                return;
            }
            let shown = match self.shown.try_lock() {
                Ok(shown) => shown,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            // ORDERING: SeqCst, as above.
            self.is_stale.store(false, Ordering::SeqCst);
            self.refresh_locked(shown);
        }
    }

    fn refresh_locked(&self, mut shown: MutexGuard<'_, Shown>) {
        let Some(watcher) = shown.watcher.clone() else {
            return;
        };
        loop {
            if !watcher.is_armed.swap(true, Ordering::Relaxed) {
                watcher.socket.watch(&(watcher.clone() as Arc<dyn Watch>));
            }
            let now = watcher.socket.look();
            if watcher.shows(&now) {
                return;
            }
            let has_news = watcher.arrived.swap(now.arrived, Ordering::Relaxed) != now.arrived;
            shown.show(self.end(), &now, has_news);
            watcher.bits.store(bits(&now), Ordering::Relaxed);
            // ORDERING: SeqCst fence, pairs with the one in `EventCount::notify_all`: either the
            // next look sees a change, or its notifier compares with the state stored above.
            fence(Ordering::SeqCst);
        }
    }

    /// Waits until a read would not wait, as the flags and timeouts of the descriptor have it.
    ///
    /// # Errors
    /// `EAGAIN` for a descriptor that does not block, or after its timeout; `EINTR`.
    pub(crate) fn wait_readable(&self) -> Result<(), Errno> {
        self.wait(
            0,
            |now| now.readable || now.read_closed,
            || sys::await_byte(self.end()),
        )
    }

    /// As [`Mirror::wait_readable`], until a write would not wait. The byte that it sends stays
    /// until the buffer is emptied.
    ///
    /// # Errors
    /// As [`Mirror::wait_readable`].
    pub(crate) fn wait_writable(&self) -> Result<(), Errno> {
        self.wait(
            1,
            |now| now.writable || now.write_closed,
            || sys::send_byte(self.end()),
        )
    }

    /// Drives the stack until a state `is_ready`, or else waits in the kernel, with a call.
    fn wait(
        &self,
        direction: usize,
        is_ready: impl Fn(&Readiness) -> bool,
        call: impl FnOnce() -> Result<usize, Errno>,
    ) -> Result<(), Errno> {
        let watcher = self.watcher();
        let nanos = self.timeouts[direction].load(Ordering::Relaxed);
        let timeout = (nanos > 0).then(|| Duration::from_nanos(nanos));
        while let Some(watcher) = &watcher {
            let check = |_: &[libc::pollfd]| is_ready(&watcher.socket.look()).then_some(());
            match drive::wait(&mut [], timeout, true, check) {
                Ok(Waited::Found(())) => return Ok(()),
                Ok(Waited::Interrupted) if timeout.is_none() && sys::restarts_after_signals() => {}
                Ok(Waited::Interrupted) => return Err(libc::EINTR),
                Ok(_) => return Err(libc::EAGAIN),
                Err(_) => break,
            }
        }
        self.activate();
        match drive::beside(call) {
            Err(error @ (libc::EAGAIN | libc::EINTR)) => Err(error),
            // Otherwise the pair is shut down, so the call of the program would not wait.
            _ => Ok(()),
        }
    }

    /// Takes over the timeout of receiving (0) or sending (1) calls.
    pub(crate) fn set_timeout(&self, direction: usize, value: libc::timeval) {
        let name = [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO][direction];
        let _ = sys::set_option(self.end(), libc::SOL_SOCKET, name, &value);
        let seconds = u64::try_from(value.tv_sec).unwrap_or(0);
        let micros = u64::try_from(value.tv_usec).unwrap_or(0);
        let nanos = seconds.saturating_mul(1_000_000_000) + micros * 1_000;
        self.timeouts[direction].store(nanos, Ordering::Relaxed);
    }

    /// Takes over the timeouts of a listener.
    pub(crate) fn inherit_timeouts(&self, listener: &Mirror) {
        for (direction, nanos) in listener.timeouts.iter().enumerate() {
            let nanos = nanos.load(Ordering::Relaxed) as i64;
            if nanos > 0 {
                let (tv_sec, tv_usec) = (nanos / 1_000_000_000, nanos % 1_000_000_000 / 1000);
                self.set_timeout(direction, libc::timeval { tv_sec, tv_usec });
            }
        }
    }

    /// Shows that the program has shut down a direction (`SHUT_RD`, `SHUT_WR` or `SHUT_RDWR`).
    pub(crate) fn shut(&self, how: i32) {
        self.is_shut.store(true, Ordering::Relaxed);
        sys::shutdown(self.end(), how);
        self.refresh();
    }

    /// Whether the peer has sent the end of the stream, or the connection is closed.
    pub(crate) fn is_read_closed(&self) -> bool {
        let watcher = self.watcher();
        watcher.is_some_and(|watcher| watcher.socket.look().read_closed)
    }

    /// Whether a read would not wait.
    pub(crate) fn may_read(&self) -> bool {
        let look = self.watcher().map(|watcher| watcher.socket.look());
        look.is_some_and(|now| now.readable || now.read_closed)
    }

    /// The state, if `poll` shows no more of it than whether reads and writes would wait.
    pub(crate) fn plain(&self) -> Option<Readiness> {
        let now = self.watcher()?.socket.look();
        let is_ended = now.read_closed || now.write_closed || now.error;
        (!is_ended && !self.is_shut.load(Ordering::Relaxed)).then_some(now)
    }

    /// Stops showing the error of the connection, since the program has read it.
    pub(crate) fn clear_error(&self) {
        let _ = sys::option::<i32>(self.end(), libc::SOL_SOCKET, libc::SO_ERROR);
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        if let Some(watcher) = self.shown().watcher.take() {
            watcher.socket.unwatch(&(watcher.clone() as Arc<dyn Watch>));
        }
    }
}

impl Shown {
    /// Makes the pair show a state. `has_news`: something arrived since.
    fn show(&mut self, end: Fd, now: &Readiness, has_news: bool) {
        let Some(peer) = self.peer.as_ref().map(Kept::number) else {
            return;
        };
        drive::note_change();
        if self.shows_errors && bits(now) & BROKEN != 0 {
            if !self.is_full {
                let _ = sys::send(end, &[0], libc::MSG_DONTWAIT);
            }
            self.peer = None;
            return;
        }
        if self.shows_errors && now.read_closed && now.readable && !self.has_ended {
            self.has_ended = true;
            sys::shutdown(peer, libc::SHUT_WR);
        }
        let is_edge = self.edges && has_news && now.readable;
        if !now.readable && self.levels {
            self.remove_bytes(end);
        }
        if now.readable && (!self.has_bytes || is_edge) && !self.has_ended {
            while sys::send(peer, &[0], libc::MSG_DONTWAIT).is_err() && self.has_bytes {
                // The buffer is full of old bytes.
                self.remove_bytes(end);
            }
            self.has_bytes = true;
        }
        if now.writable && self.is_full {
            empty(peer);
        } else if !now.writable && !self.is_full {
            let _ = sys::send(end, &[0; FULL], libc::MSG_DONTWAIT);
        }
        self.is_full = !now.writable;
    }

    fn remove_bytes(&mut self, end: Fd) {
        if self.has_bytes {
            empty(end);
            self.has_bytes = false;
        }
    }

    /// Removes the bytes of a socket that is not readable any more.
    fn remove_old_bytes(&mut self, end: Fd) {
        if self
            .watcher
            .as_ref()
            .is_some_and(|watcher| !watcher.socket.look().readable)
        {
            self.remove_bytes(end);
        }
    }
}

/// Reads and discards everything.
fn empty(fd: Fd) {
    // Less than asked for means that there is no more.
    while sys::recv(fd, &mut [0; FULL], libc::MSG_DONTWAIT) == Ok(FULL) {}
}
