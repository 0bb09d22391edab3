//! System calls that pass by the functions that this library defines, and libc's own functions.
//!
//! The library's own calls are raw system calls: they need no symbol, take no lock and are no
//! cancellation points. Calls for descriptors of the kernel go to the next definition of the
//! function, usually libc's.

use core::ffi::{CStr, c_int, c_long, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicPtr, Ordering};

/// The number of a descriptor.
pub(crate) type Fd = c_int;

/// An error number of Linux.
pub(crate) type Errno = c_int;

/// The next definition of a function, found at the first call.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Next {
        Next {
            name,
            found: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// The address of the function.
    pub(crate) fn address(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if !found.is_null() {
            return found;
        }
        // SAFETY: the name ends with a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if found.is_null() {
            // A function that no library has cannot be called by a program that was linked.
            std::process::abort();
        }
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// The error of the last call of this thread.
pub(crate) fn errno() -> Errno {
    // SAFETY: libc returns the address of a variable of this thread.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(errno: Errno) {
    // SAFETY: as in `errno`.
    unsafe { *libc::__errno_location() = errno }
}

/// The result of a system call.
fn checked(result: c_long) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| errno())
}

macro_rules! syscall {
    ($number:ident $(, $argument:expr)*) => {
        // SAFETY: the arguments are numbers, or pointers to live memory of the lengths beside
        // them.
        checked(unsafe { kernel()(libc::$number $(, $argument)*) })
    };
}

type Syscall = unsafe extern "C" fn(c_long, ...) -> c_long;

/// Libc's function for system calls; this library defines one of that name.
fn kernel() -> Syscall {
    static NEXT: Next = Next::new(c"syscall");
    // SAFETY: libc gives it this prototype.
    unsafe { core::mem::transmute::<*mut c_void, Syscall>(NEXT.address()) }
}

/// A descriptor that this library keeps, at a number that programs do not get.
#[derive(Debug)]
pub(crate) struct Kept(Fd);

impl Kept {
    pub(crate) fn number(&self) -> Fd {
        self.0
    }

    /// Keeps a further descriptor of the open file of `fd`.
    pub(crate) fn duplicate(fd: Fd, least: Fd) -> Result<Kept, Errno> {
        let number = syscall!(SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, least)?;
        Ok(Kept(number as Fd))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        crate::table::forget(self.0);
        let _ = close(self.0);
    }
}

pub(crate) fn close(fd: Fd) -> Result<usize, Errno> {
    syscall!(SYS_close, fd)
}

/// Two connected sockets of the kernel with short buffers.
pub(crate) fn pair(flags: c_int) -> Result<[Fd; 2], Errno> {
    let mut pair = [0; 2];
    let kind = libc::SOCK_STREAM | flags;
    syscall!(SYS_socketpair, libc::AF_UNIX, kind, 0, pair.as_mut_ptr())?;
    Ok(pair)
}

/// An unconnected socket of the kernel.
pub(crate) fn socket(family: c_int, kind: c_int, protocol: c_int) -> Result<Fd, Errno> {
    syscall!(SYS_socket, family, kind, protocol).map(|fd| fd as Fd)
}

/// Gives the open file of `from` the number `to`, too, in place of another file.
pub(crate) fn replace(from: Fd, to: Fd, flags: c_int) -> Result<(), Errno> {
    syscall!(SYS_dup3, from, to, flags).map(|_| ())
}

/// Sends up to `bytes.len()` bytes; raises no signal.
pub(crate) fn send(fd: Fd, bytes: &[u8], flags: c_int) -> Result<usize, Errno> {
    let flags = flags | libc::MSG_NOSIGNAL;
    let nothing = core::ptr::null::<c_void>();
    syscall!(
        SYS_sendto,
        fd,
        bytes.as_ptr(),
        bytes.len(),
        flags,
        nothing,
        0
    )
}

pub(crate) fn recv(fd: Fd, into: &mut [u8], flags: c_int) -> Result<usize, Errno> {
    let nothing = core::ptr::null_mut::<c_void>();
    let len = into.len();
    syscall!(
        SYS_recvfrom,
        fd,
        into.as_mut_ptr(),
        len,
        flags,
        nothing,
        nothing
    )
}

pub(crate) fn shutdown(fd: Fd, how: c_int) {
    let _ = syscall!(SYS_shutdown, fd, how);
}

/// Reads the flags of a descriptor with `F_GETFL` or `F_GETFD`.
pub(crate) fn flags(fd: Fd, command: c_int) -> Result<c_int, Errno> {
    syscall!(SYS_fcntl, fd, command, 0).map(|flags| flags as c_int)
}

/// Reads an option whose value is a plain C structure or number. Any bits are valid values of it.
pub(crate) fn option<T: Plain>(fd: Fd, level: c_int, name: c_int) -> Result<T, Errno> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    syscall!(
        SYS_getsockopt,
        fd,
        level,
        name,
        value.as_mut_ptr(),
        &raw mut len
    )?;
    // SAFETY: every bit pattern is a valid value, and the bytes are initialized.
    Ok(unsafe { value.assume_init() })
}

pub(crate) fn set_option<T: Plain>(
    fd: Fd,
    level: c_int,
    name: c_int,
    value: &T,
) -> Result<(), Errno> {
    let len = size_of::<T>();
    syscall!(SYS_setsockopt, fd, level, name, &raw const *value, len).map(|_| ())
}

/// Whether a socket has `SO_REUSEADDR`, and `SO_REUSEPORT`.
pub(crate) fn sharing(fd: Fd) -> [bool; 2] {
    [libc::SO_REUSEADDR, libc::SO_REUSEPORT]
        .map(|name| option::<c_int>(fd, libc::SOL_SOCKET, name) == Ok(1))
}

/// The number of the socket that a descriptor has, if it is a socket.
pub(crate) fn socket_file(fd: Fd) -> Option<u64> {
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: it writes a structure, all of whose bit patterns are values.
    let status =
        unsafe { (libc::fstat(fd, status.as_mut_ptr()) == 0).then(|| status.assume_init()) }?;
    (status.st_mode & libc::S_IFMT == libc::S_IFSOCK).then_some(status.st_ino)
}

/// A type for which every bit pattern is a value.
pub(crate) trait Plain: Copy {}

impl Plain for c_int {}
impl Plain for libc::linger {}
impl Plain for libc::timeval {}

/// Changes the interest of an epoll set; 0 for `event` if there is none.
pub(crate) fn epoll_change(set: Fd, operation: c_int, fd: Fd, mut event: libc::epoll_event) {
    let _ = syscall!(SYS_epoll_ctl, set, operation, fd, &raw mut event);
}

/// Finds out which descriptors are ready; does not wait.
pub(crate) fn poll_now(fds: &mut [libc::pollfd]) -> Result<usize, Errno> {
    if fds.is_empty() {
        return Ok(0);
    }
    let zero = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let signals = core::ptr::null::<c_void>();
    syscall!(
        SYS_ppoll,
        fds.as_mut_ptr(),
        fds.len(),
        &raw const zero,
        signals,
        0
    )
}

/// Reads bytes of a file at an offset.
pub(crate) fn read_at(fd: Fd, into: &mut [u8], offset: i64) -> Result<usize, Errno> {
    syscall!(SYS_pread64, fd, into.as_mut_ptr(), into.len(), offset)
}

/// Moves the position of a file, and returns it.
pub(crate) fn seek(fd: Fd, offset: i64, whence: c_int) -> Result<i64, Errno> {
    syscall!(SYS_lseek, fd, offset, whence).map(|position| position as i64)
}

pub(crate) fn close_range(first: u32, last: u32, flags: c_int) -> Result<usize, Errno> {
    syscall!(SYS_close_range, first, last, flags)
}

unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    fn pthread_testcancel();
}

const CANCEL_ENABLE: c_int = 0;
const CANCEL_DISABLE: c_int = 1;

/// Delays the cancellation of this thread. Returns whether it was allowed.
pub(crate) fn forbid_cancellation() -> bool {
    let mut old = 0;
    // SAFETY: it writes the old state there.
    unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut old) };
    old == CANCEL_ENABLE
}

/// Undoes [`forbid_cancellation`].
pub(crate) fn restore_cancellation(was_allowed: bool) {
    if was_allowed {
        // SAFETY: the old state is not wanted.
        unsafe { pthread_setcancelstate(CANCEL_ENABLE, core::ptr::null_mut()) };
    }
}

type Recv = unsafe extern "C-unwind" fn(Fd, *mut c_void, usize, c_int) -> isize;
type Send = unsafe extern "C-unwind" fn(Fd, *const c_void, usize, c_int) -> isize;

/// Waits until a descriptor has a byte. Unlike the other calls here, this may be cancelled.
pub(crate) fn await_byte(fd: Fd) -> Result<usize, Errno> {
    static NEXT: Next = Next::new(c"recv");
    let mut byte = 0_u8;
    // SAFETY: the library that defines this name gives it this prototype; the byte lives.
    checked(unsafe {
        let next = core::mem::transmute::<*mut c_void, Recv>(NEXT.address());
        next(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK) as c_long
    })
}

/// Waits until a descriptor has room, and sends a byte. This may be cancelled, too.
pub(crate) fn send_byte(fd: Fd) -> Result<usize, Errno> {
    static NEXT: Next = Next::new(c"send");
    let byte = 0_u8;
    // SAFETY: as in `await_byte`.
    checked(unsafe {
        let next = core::mem::transmute::<*mut c_void, Send>(NEXT.address());
        next(fd, (&raw const byte).cast(), 1, libc::MSG_NOSIGNAL) as c_long
    })
}

/// Ends this thread if another has cancelled it.
pub(crate) fn end_if_cancelled() {
    // SAFETY: it has no arguments.
    unsafe { pthread_testcancel() };
}

/// Whether calls begin again after a signal, because every handler has `SA_RESTART`.
pub(crate) fn restarts_after_signals() -> bool {
    (1..=libc::SIGRTMAX()).all(|signal| {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: it writes a structure, all of whose bit patterns are values.
        let action = unsafe {
            libc::sigaction(signal, core::ptr::null(), action.as_mut_ptr());
            action.assume_init()
        };
        matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
            || action.sa_flags & libc::SA_RESTART != 0
    })
}

/// The path of the library that contains a function, as the loader found it.
pub(crate) fn library_path(function: *const ()) -> &'static [u8] {
    let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the structure is valid when it is zeroed; a name in it stays while the library is
    // loaded, which this one is for ever.
    unsafe {
        libc::dladdr(function.cast(), found.as_mut_ptr());
        let name = found.assume_init().dli_fname;
        if name.is_null() {
            b""
        } else {
            CStr::from_ptr(name).to_bytes()
        }
    }
}

pub(crate) fn process() -> c_int {
    // SAFETY: it has no arguments.
    unsafe { libc::getpid() }
}

/// Raises `SIGPIPE` in this thread.
pub(crate) fn raise_broken_pipe() {
    // SAFETY: a number is all that it takes.
    unsafe { libc::raise(libc::SIGPIPE) };
}

/// Ends the process at once.
pub(crate) fn exit_now(code: c_int) -> ! {
    // SAFETY: a number is all that it takes, and it does not return.
    unsafe {
        kernel()(libc::SYS_exit_group, code);
    }
    std::process::abort()
}

/// Calls `at_exit` when the process ends by `exit`, and `in_child` in each forked child.
pub(crate) fn call_at_exit_and_fork(at_exit: extern "C" fn(), in_child: unsafe extern "C" fn()) {
    // SAFETY: both are functions without arguments, which stay loaded.
    unsafe {
        libc::atexit(at_exit);
        libc::pthread_atfork(None, None, Some(in_child));
    }
}

/// Blocks every signal in this thread while `run` runs; threads that it starts keep them blocked.
pub(crate) fn without_signals<R>(run: impl FnOnce() -> R) -> R {
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: both are sets of signals in memory of this function.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let result = run();
    // SAFETY: the first call has written `before`.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), core::ptr::null_mut());
    }
    result
}

/// The limit of descriptors of this process. Raises it so that each socket can have three more
/// than the program's own, if the hard limit allows, and returns the least number for them.
pub(crate) fn reserve_descriptors() -> Fd {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure is valid for both calls.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        let soft = limit.rlim_cur;
        let wanted = soft.saturating_mul(4).min(limit.rlim_max).min(1 << 20);
        let raised = libc::rlimit {
            rlim_cur: wanted.max(soft),
            ..limit
        };
        let is_raised =
            wanted > soft && libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) == 0;
        let least = if is_raised { soft } else { soft / 4 };
        least as Fd
    }
}
