//! Threads that open, close, duplicate and poll the same descriptors, over our stack.
//!
//! The threads share slots with descriptors. A thread takes a number from its slot to close or
//! replace it, so none is closed twice, but others use it meanwhile. Pipes that no thread shares
//! must keep their bytes.

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const THREADS: u64 = 64;
const SLOTS: usize = 48;
/// Longer than a library that drops sockets takes.
const PATIENCE: Duration = Duration::from_secs(120);

static SHARED: [AtomicI32; SLOTS] = [const { AtomicI32::new(-1) }; SLOTS];
static CALLS: AtomicU64 = AtomicU64::new(0);

/// Runs `steps` steps in each thread. A number that ends with `s` is a time in seconds instead.
pub(crate) fn run(steps: &str) {
    let until = steps.strip_suffix('s').map(|seconds| {
        Instant::now() + Duration::from_secs(seconds.parse().expect("a number of seconds"))
    });
    let steps = steps.parse().unwrap_or(u64::MAX);
    // The first socket starts the stack, which opens descriptors.
    close(&open(false));
    let before = descriptors();
    thread::scope(|scope| {
        for seed in 1..=THREADS {
            scope.spawn(move || {
                let pipe = pipe();
                let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                for step in 0..steps {
                    if until.is_some_and(|until| Instant::now() > until) {
                        break;
                    }
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    call(random);
                    if step % 16 == 0 {
                        check(pipe, random);
                    }
                }
                // SAFETY: the thread owns both.
                unsafe {
                    libc::close(pipe[0]);
                    libc::close(pipe[1]);
                }
            });
        }
    });
    SHARED.iter().for_each(close);
    let deadline = Instant::now() + PATIENCE;
    while descriptors() != before && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(10));
    }
    let after = descriptors();
    println!(
        "{} calls, {before} descriptors before, {after} after",
        CALLS.load(Ordering::Relaxed)
    );
    assert_eq!(before, after, "descriptors leak");
    println!("passed");
}

/// The number of open descriptors.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("a list").count()
}

fn pipe() -> [c_int; 2] {
    let mut pipe = [0; 2];
    // SAFETY: it writes two numbers.
    let result = unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) };
    assert_eq!(result, 0);
    pipe
}

/// Bytes that enter a pipe of one thread come out of it.
fn check(pipe: [c_int; 2], bytes: u64) {
    let mut read = 0_u64;
    // SAFETY: both numbers live during the calls.
    unsafe {
        let len = size_of::<u64>();
        assert_eq!(
            libc::write(pipe[1], (&raw const bytes).cast(), len),
            len as isize
        );
        assert_eq!(
            libc::read(pipe[0], (&raw mut read).cast(), len),
            len as isize
        );
    }
    assert_eq!(bytes, read, "a call for a socket used another descriptor");
}

/// A slot with a new socket: one that connects to an echo service, listens, or sends datagrams.
fn open(listens: bool) -> AtomicI32 {
    let kind = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC | libc::SOCK_STREAM;
    // SAFETY: a zeroed address is valid, and lives during the calls.
    let fd = unsafe {
        let fd = libc::socket(libc::AF_INET, kind, 0);
        let mut to: libc::sockaddr_in = zeroed();
        to.sin_family = libc::AF_INET as u16;
        to.sin_port = 7_u16.to_be();
        to.sin_addr.s_addr = u32::from_ne_bytes([10, 78, 0, 2]);
        if listens {
            libc::listen(fd, 4);
        } else {
            libc::connect(
                fd,
                (&raw const to).cast(),
                size_of::<libc::sockaddr_in>() as u32,
            );
        }
        fd
    };
    AtomicI32::new(fd)
}

fn close(slot: &AtomicI32) {
    let fd = slot.swap(-1, Ordering::Relaxed);
    if fd >= 0 {
        // SAFETY: a number that was taken from its slot.
        unsafe { libc::close(fd) };
    }
}

/// Puts a descriptor into a slot, and closes the one that was there.
fn put(slot: &AtomicI32, fd: c_int) {
    let old = AtomicI32::new(slot.swap(fd, Ordering::Relaxed));
    close(&old);
}

fn call(random: u64) {
    let pick = |shift: u64| &SHARED[(random >> shift) as usize % SLOTS];
    let (slot, other) = (pick(8), pick(20));
    let (fd, second) = (slot.load(Ordering::Relaxed), other.load(Ordering::Relaxed));
    let mut bytes = [7_u8; 64];
    CALLS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: all memory lives during the calls. A number may belong to no descriptor, or to
    // another one of the slots.
    unsafe {
        let place = bytes.as_mut_ptr().cast();
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        match random % 12 {
            0 | 1 => put(slot, open(false).into_inner()),
            2 => put(slot, open(true).into_inner()),
            3 => close(slot),
            4 => put(slot, libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0)),
            5 => {
                let to = other.swap(-1, Ordering::Relaxed);
                if to >= 0 && fd >= 0 && libc::dup3(fd, to, libc::O_CLOEXEC) < 0 {
                    libc::close(to);
                } else {
                    put(other, to);
                }
            }
            6 => {
                let one = |fd| libc::pollfd {
                    fd,
                    events: libc::POLLIN | libc::POLLOUT,
                    revents: 0,
                };
                let mut fds = [one(fd), one(second)];
                libc::poll(fds.as_mut_ptr(), 2, (random >> 32) as c_int & 1);
            }
            7 => {
                let set = libc::epoll_create1(libc::EPOLL_CLOEXEC);
                let mut event = libc::epoll_event {
                    events: libc::EPOLLIN as u32,
                    u64: 1,
                };
                libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event);
                event.events |= libc::EPOLLET as u32;
                libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, second, &raw mut event);
                libc::epoll_wait(set, &raw mut event, 1, (random >> 32) as c_int & 1);
                libc::close(set);
            }
            8 => drop(libc::recv(fd, place, 64, flags)),
            9 => put(
                slot,
                libc::accept4(
                    fd,
                    null_mut(),
                    null_mut(),
                    libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
                ),
            ),
            10 => drop(libc::shutdown(fd, libc::SHUT_WR)),
            _ => drop(libc::send(fd, place, 64, flags)),
        }
    }
}
