//! Waiting for descriptors, and waking a waiting thread.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

use super::{check, own};

/// An event descriptor: a counter that is readable while it is not zero.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: takes integers only.
    own(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

/// Makes an event readable. The only error is a full counter, which is readable, too.
pub(crate) fn signal(event: BorrowedFd<'_>) {
    let one = 1u64;
    // SAFETY: eight bytes are read from a value of eight.
    let _ = unsafe {
        libc::write(
            event.as_raw_fd(),
            ptr::from_ref(&one).cast(),
            size_of_val(&one),
        )
    };
}

/// Makes an event unreadable.
pub(crate) fn clear(event: BorrowedFd<'_>) {
    let mut count = 0u64;
    // SAFETY: eight bytes are written into a value of eight.
    let _ = unsafe {
        libc::read(
            event.as_raw_fd(),
            ptr::from_mut(&mut count).cast(),
            size_of_val(&count),
        )
    };
}

/// The events that ended a wait. If none is set, the timeout was over or a signal arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ready {
    /// The device has a pending error, or is gone.
    pub(crate) device_error: bool,
    /// The event is readable.
    pub(crate) event: bool,
    /// The descriptors beside those of the device that are ready.
    pub(crate) others: [bool; 2],
}

/// Waits until the event, one of at most two descriptors of a device, or one of `others` is
/// readable, or the timeout is over.
pub(crate) fn wait_readable(
    device: &[BorrowedFd<'_>],
    event: BorrowedFd<'_>,
    others: [Option<RawFd>; 2],
    timeout: Option<Duration>,
) -> io::Result<Ready> {
    let readable = |fd: RawFd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let mut fds = [readable(event.as_raw_fd()); 5];
    let device = &device[..device.len().min(2)];
    let end = device.len() + 1;
    // The kernel skips a negative number.
    let others = others.map(|other| other.unwrap_or(-1));
    let numbers = device.iter().map(AsRawFd::as_raw_fd).chain(others);
    for (entry, fd) in fds[1..].iter_mut().zip(numbers) {
        *entry = readable(fd);
    }
    let fds = &mut fds[..end + others.len()];
    let timeout = timeout.map(|timeout| {
        // SAFETY: integers; all zeros are valid. (Not a literal, since some platforms have padding
        // fields.)
        let mut time: libc::timespec = unsafe { mem::zeroed() };
        time.tv_sec = timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX);
        time.tv_nsec = timeout.subsec_nanos() as _;
        time
    });
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: a slice of valid entries, a time that is null or valid, and no signal mask.
    let result = unsafe {
        libc::ppoll(
            fds.as_mut_ptr(),
            fds.len() as libc::nfds_t,
            timeout,
            ptr::null(),
        )
    };
    match check(result) {
        Ok(_) => Ok(Ready {
            device_error: fds[1..end]
                .iter()
                .any(|fd| fd.revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0),
            event: fds[0].revents & libc::POLLIN != 0,
            others: [end, end + 1].map(|at| fds[at].revents != 0),
        }),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Ready::default()),
        Err(error) => Err(error),
    }
}

/// An epoll instance. It is readable when one of its descriptors is.
pub(crate) fn epoll() -> io::Result<OwnedFd> {
    // SAFETY: takes integers only.
    own(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
}

/// The events of a descriptor, for [`epoll_change`]: whether to report that it is readable and
/// writable, and each change once.
pub(crate) fn epoll_events([readable, writable, edge]: [bool; 3]) -> u32 {
    let bits = [
        (readable, libc::EPOLLIN | libc::EPOLLPRI | libc::EPOLLRDHUP),
        (writable, libc::EPOLLOUT),
        (edge, libc::EPOLLET),
    ];
    let bits = bits.iter().filter(|(is_set, _)| *is_set);
    bits.fold(0, |all, (_, bit)| all | *bit as u32)
}

/// Adds a descriptor to an `epoll`, or changes its events. They are reported with `number`.
pub(crate) fn epoll_change(
    epoll: BorrowedFd<'_>,
    fd: BorrowedFd<'_>,
    is_new: bool,
    (events, number): (u32, u64),
) -> io::Result<()> {
    let operation = match is_new {
        true => libc::EPOLL_CTL_ADD,
        false => libc::EPOLL_CTL_MOD,
    };
    let mut event = libc::epoll_event {
        events,
        u64: number,
    };
    // SAFETY: the kernel reads one event through a valid pointer.
    check(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), operation, fd.as_raw_fd(), &mut event) })
        .map(drop)
}

/// The most descriptors that [`epoll_ready`] reports at once.
const MOST_READY: usize = 256;

/// Passes `each` the number and events of up to `most` ready descriptors. Does not wait.
pub(crate) fn epoll_ready(epoll: BorrowedFd<'_>, most: usize, mut each: impl FnMut(u64, u32)) {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; MOST_READY];
    let most = most.min(MOST_READY) as libc::c_int;
    // SAFETY: the kernel writes at most `most` events, no more than the array holds.
    let len = unsafe { libc::epoll_wait(epoll.as_raw_fd(), events.as_mut_ptr(), most, 0) };
    for event in events.iter().take(usize::try_from(len).unwrap_or(0)) {
        each(event.u64, event.events);
    }
}

/// Adds a device to an `epoll`. With `once` it reports each arrival once (edge-triggered).
pub(crate) fn epoll_watch(
    epoll: BorrowedFd<'_>,
    device: BorrowedFd<'_>,
    once: bool,
) -> io::Result<()> {
    let edge = if once { libc::EPOLLET } else { 0 };
    let events = (libc::EPOLLIN | libc::EPOLLERR | edge) as u32;
    epoll_change(epoll, device, true, (events, 0))
}

/// Undoes [`epoll_watch`].
pub(crate) fn epoll_forget(epoll: BorrowedFd<'_>, device: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes integers; this operation ignores the event.
    check(unsafe {
        libc::epoll_ctl(
            epoll.as_raw_fd(),
            libc::EPOLL_CTL_DEL,
            device.as_raw_fd(),
            ptr::null_mut(),
        )
    })
    .map(drop)
}

/// Consumes a pending event of an `epoll`. Returns whether its device has an error.
pub(crate) fn epoll_take(epoll: BorrowedFd<'_>) -> bool {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: the kernel writes at most one event into a valid place.
    let taken = unsafe { libc::epoll_wait(epoll.as_raw_fd(), &mut event, 1, 0) };
    let events = event.events;
    taken > 0 && events & (libc::EPOLLERR | libc::EPOLLHUP) as u32 != 0
}
