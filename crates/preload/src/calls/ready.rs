//! Waiting for readiness. The kernel waits, with the program's descriptors; see
//! [`mirror`](crate::mirror).

use core::ffi::{c_int, c_short, c_ulong};
use core::time::Duration;
use std::time::Instant;

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

use super::{answer_unit, interpose, ours};
use crate::drive::{self, Slept, Waited};
use crate::sys::{self, Fd};
use crate::table;

/// Begins to show the state, if this is a socket of ours. Returns whether it is, or a set that may
/// contain one.
fn show(fd: Fd) -> bool {
    let ours = ours(fd);
    let live = ours.as_ref().and_then(|ours| ours.0.live.as_ref());
    live.inspect(|live| live.mirror.activate()).is_some() || table::is_set(fd)
}

/// Shows the state of the sockets of ours. Returns whether there are any.
///
/// # Safety
/// `fds` is null or points to `count` structures.
unsafe fn show_all(fds: *const pollfd, count: nfds_t) -> bool {
    // SAFETY: the caller's promise.
    let fds = unsafe { entries(fds, count) };
    fds.iter().filter(|one| show(one.fd)).count() > 0
}

/// # Safety
/// As [`show_all`]; nothing else uses the structures.
unsafe fn entries_mut<'a>(fds: *mut pollfd, count: nfds_t) -> &'a mut [pollfd] {
    match fds.is_null() {
        true => &mut [],
        // SAFETY: the caller's promise.
        false => unsafe { core::slice::from_raw_parts_mut(fds, count as usize) },
    }
}

/// # Safety
/// As [`show_all`].
unsafe fn entries<'a>(fds: *const pollfd, count: nfds_t) -> &'a [pollfd] {
    match fds.is_null() {
        true => &[],
        // SAFETY: the caller's promise.
        false => unsafe { core::slice::from_raw_parts(fds, count as usize) },
    }
}

/// The bits of a set.
///
/// # Safety
/// `set` is null or points to enough bits for `count` descriptors.
unsafe fn words<'a>(set: *mut fd_set, count: c_int) -> &'a mut [c_ulong] {
    let count = usize::try_from(count).unwrap_or(0);
    match set.is_null() {
        true => &mut [],
        // SAFETY: the caller's promise; a set is an array of words, and may be longer than the
        // type.
        false => unsafe {
            core::slice::from_raw_parts_mut(set.cast(), count.div_ceil(c_ulong::BITS as usize))
        },
    }
}

/// The events of the three sets.
const SETS: [c_short; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];

/// Whether `select` shows it in the set of its events; a number without a descriptor in none.
fn is_selected(one: &pollfd) -> bool {
    let shown = match one.events {
        libc::POLLIN => libc::POLLIN | libc::POLLHUP | libc::POLLERR,
        libc::POLLOUT => libc::POLLOUT | libc::POLLERR,
        other => other,
    };
    one.revents & shown != 0
}

/// The descriptors of three sets, as `poll` has them.
fn listed(sets: &[Vec<c_ulong>; 3], count: c_int) -> Vec<pollfd> {
    let mut all = Vec::new();
    for (set, events) in sets.iter().zip(SETS) {
        for (index, word) in set.iter().enumerate() {
            let mut rest = *word;
            while rest != 0 {
                let fd = (index * c_ulong::BITS as usize) as Fd + rest.trailing_zeros() as Fd;
                rest &= rest - 1;
                if fd < count {
                    all.push(pollfd {
                        fd,
                        events,
                        revents: 0,
                    });
                }
            }
        }
    }
    all
}

/// The most sockets of ours at which [`quick`] looks after each turn.
const MOST_LOOKS: usize = 16;

/// Waits as `poll` does while this thread drives the stack, without mirrors: looks at the sockets
/// of ours after each turn, and at other descriptors at first and after each sleep.
///
/// # Errors
/// The rest of the time, in which the kernel waits: this thread cannot drive, or a state is not
/// plain.
fn quick(fds: &mut [pollfd], limit: Option<Duration>) -> Result<c_int, Option<Duration>> {
    let entries = || fds.iter().enumerate();
    let mine: Vec<_> = entries()
        .filter_map(|(at, one)| Some((at, ours(one.fd)?)))
        .collect();
    let has_set = || fds.iter().any(|one| table::is_set(one.fd));
    if mine.is_empty() || mine.len() > MOST_LOOKS || has_set() {
        return Err(limit);
    }
    let others = entries().filter(|(at, _)| mine.iter().all(|(mine, _)| mine != at));
    let (places, mut beside): (Vec<usize>, Vec<pollfd>) = others.unzip();
    if sys::poll_now(&mut beside).is_err() {
        return Err(limit);
    }
    let start = Instant::now();
    let check = |beside: &[pollfd]| {
        let mut ready = 0;
        for (at, ours) in &mine {
            let live = ours.live().ok();
            let Some(state) = live.and_then(|live| live.mirror.plain()) else {
                return Some(None);
            };
            let can =
                if state.readable { READ } else { 0 } | if state.writable { WRITE } else { 0 };
            fds[*at].revents = fds[*at].events & can;
            ready += c_int::from(fds[*at].revents != 0);
        }
        for (at, one) in places.iter().zip(beside) {
            fds[*at].revents = one.revents;
            ready += c_int::from(one.revents != 0);
        }
        (ready > 0).then_some(Some(ready))
    };
    match drive::wait(&mut beside, limit, true, check) {
        Ok(Waited::Found(Some(ready))) => Ok(ready),
        Ok(Waited::Found(None)) => Err(limit.map(|limit| limit.saturating_sub(start.elapsed()))),
        Ok(Waited::Interrupted) => Ok(answer_unit(Err(libc::EINTR))),
        Ok(Waited::TimedOut) => {
            fds.iter_mut().for_each(|one| one.revents = 0);
            Ok(0)
        }
        Err(left) => Err(left),
    }
}

/// Events that mean that a read, and a write, would not wait.
const READ: c_short = libc::POLLIN | libc::POLLRDNORM;
const WRITE: c_short = libc::POLLOUT | libc::POLLWRNORM;

/// Waits for descriptors, some of which are sockets of ours: drives the stack, and looks with `now`
/// whether any is ready, or else waits with `call`, which gets the rest of the time.
fn wait(
    mut beside: Vec<pollfd>,
    timeout: Option<Duration>,
    mut now: impl FnMut() -> c_int,
    call: impl FnOnce(Option<Duration>) -> c_int,
) -> c_int {
    let check = |_: &[pollfd]| Some(now()).filter(|found| *found != 0);
    match drive::wait(&mut beside, timeout, false, check) {
        Ok(Waited::Found(found)) => found,
        Ok(Waited::Interrupted) => answer_unit(Err(libc::EINTR)),
        Ok(_) => 0,
        Err(left) => drive::beside(|| call(left)),
    }
}

/// A timeout in milliseconds; negative: none.
fn millis(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

/// Undoes [`millis`]; rounds up.
fn as_millis(timeout: Option<Duration>) -> c_int {
    timeout.map_or(-1, |left| {
        c_int::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX)
    })
}

fn time_of(timeout: Option<Duration>) -> Option<timespec> {
    timeout.map(|left| timespec {
        tv_sec: left.as_secs() as libc::time_t,
        tv_nsec: left.subsec_nanos().into(),
    })
}

/// A time that the program gives; `None` if the kernel would refuse it.
fn duration(seconds: i64, nanos: i64) -> Option<Duration> {
    let seconds = u64::try_from(seconds).ok()?;
    let nanos = u32::try_from(nanos)
        .ok()
        .filter(|nanos| *nanos < 1_000_000_000)?;
    Some(Duration::new(seconds, nanos))
}

interpose! {
    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int |next| {
        let left = match quick(entries_mut(fds, count), millis(timeout)) {
            Ok(ready) => return ready,
            Err(left) => left,
        };
        if !show_all(fds, count) {
            return next(fds, count, timeout);
        }
        let beside = entries(fds, count).to_vec();
        wait(beside, left, || next(fds, count, 0), |left| {
            next(fds, count, as_millis(left))
        })
    }

    fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int |next| {
        match count as usize > room / size_of::<pollfd>() {
            true => next(fds, count, timeout, room),
            false => poll(fds, count, timeout),
        }
    }

    /// The device of the stack waits with this function, too: then for the descriptors beside it.
    fn ppoll(
        fds: *mut pollfd,
        count: nfds_t,
        timeout: *const timespec,
        signals: *const sigset_t,
    ) -> c_int |next| {
        if let Some((beside, more)) = drive::take_beside() {
            let mut all = entries(fds, count).to_vec();
            all.extend_from_slice(entries(beside, more as nfds_t));
            let ready = next(all.as_mut_ptr(), all.len() as nfds_t, timeout, signals);
            core::slice::from_raw_parts_mut(fds, count as usize)
                .copy_from_slice(&all[..count as usize]);
            let all = &all[count as usize..];
            core::slice::from_raw_parts_mut(beside, more).copy_from_slice(all);
            drive::note_sleep(match ready {
                -1 if sys::errno() == libc::EINTR => Slept::Interrupted,
                _ if all.iter().any(|one| one.revents != 0) => Slept::Beside,
                _ => Slept::Other,
            });
            return ready;
        }
        let limit = match timeout.is_null() {
            true => None,
            false => match duration((*timeout).tv_sec, (*timeout).tv_nsec) {
                None => return next(fds, count, timeout, signals),
                limit => limit,
            },
        };
        let limit = match signals.is_null() {
            false => limit,
            true => match quick(entries_mut(fds, count), limit) {
                Ok(ready) => return ready,
                Err(left) => left,
            },
        };
        if !show_all(fds, count) {
            return next(fds, count, timeout, signals);
        }
        if !signals.is_null() {
            return drive::beside(|| next(fds, count, timeout, signals));
        }
        let beside = entries(fds, count).to_vec();
        let zero = timespec { tv_sec: 0, tv_nsec: 0 };
        wait(beside, limit, || next(fds, count, &raw const zero, signals), |left| {
            let left = time_of(left);
            next(fds, count, left.as_ref().map_or(core::ptr::null(), core::ptr::from_ref), signals)
        })
    }

    fn __ppoll_chk(
        fds: *mut pollfd,
        count: nfds_t,
        timeout: *const timespec,
        signals: *const sigset_t,
        room: size_t,
    ) -> c_int |next| {
        match count as usize > room / size_of::<pollfd>() {
            true => next(fds, count, timeout, signals, room),
            false => ppoll(fds, count, timeout, signals),
        }
    }

    fn select(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *mut timeval,
    ) -> c_int |next| {
        let limit = match timeout.is_null() {
            true => None,
            false => match duration((*timeout).tv_sec, (*timeout).tv_usec.saturating_mul(1000)) {
                None => return next(count, read, write, except, timeout),
                limit => limit,
            },
        };
        let start = Instant::now();
        let result = select_among(count, [read, write, except], limit, |sets, left| {
            let time = left.map(|left| timeval {
                tv_sec: left.as_secs() as libc::time_t,
                tv_usec: left.subsec_micros().into(),
            });
            let mut time = time;
            let time = time.as_mut().map_or(core::ptr::null_mut(), core::ptr::from_mut);
            next(count, sets[0], sets[1], sets[2], time)
        });
        if let (Some(limit), false) = (limit, timeout.is_null()) {
            let left = limit.saturating_sub(start.elapsed());
            (*timeout).tv_sec = left.as_secs() as libc::time_t;
            (*timeout).tv_usec = left.subsec_micros().into();
        }
        result
    }

    fn pselect(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *const timespec,
        signals: *const sigset_t,
    ) -> c_int |next| {
        let limit = match timeout.is_null() {
            true => None,
            false => match duration((*timeout).tv_sec, (*timeout).tv_nsec) {
                None => return next(count, read, write, except, timeout, signals),
                limit => limit,
            },
        };
        if !signals.is_null() {
            [read, write, except].iter().for_each(|set| show_set(*set, count));
            return drive::beside(|| next(count, read, write, except, timeout, signals));
        }
        select_among(count, [read, write, except], limit, |sets, left| {
            let left = time_of(left);
            let left = left.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
            next(count, sets[0], sets[1], sets[2], left, signals)
        })
    }

    fn epoll_wait(set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int |next| {
        if !table::is_set(set) {
            return next(set, events, most, timeout);
        }
        let beside = vec![pollfd { fd: set, events: libc::POLLIN, revents: 0 }];
        wait(beside, millis(timeout), || next(set, events, most, 0), |left| {
            next(set, events, most, as_millis(left))
        })
    }

    fn epoll_pwait(
        set: c_int,
        events: *mut epoll_event,
        most: c_int,
        timeout: c_int,
        signals: *const sigset_t,
    ) -> c_int |next| {
        match (table::is_set(set), signals.is_null()) {
            (false, _) => next(set, events, most, timeout, signals),
            (true, true) => epoll_wait(set, events, most, timeout),
            (true, false) => drive::beside(|| next(set, events, most, timeout, signals)),
        }
    }

    fn epoll_pwait2(
        set: c_int,
        events: *mut epoll_event,
        most: c_int,
        timeout: *const timespec,
        signals: *const sigset_t,
    ) -> c_int |next| {
        match table::is_set(set) {
            false => next(set, events, most, timeout, signals),
            true => drive::beside(|| next(set, events, most, timeout, signals)),
        }
    }

    fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int |next| {
        if table::is_set(fd) {
            table::mark_set(set);
        }
        if let Some(socket) = table::socket(fd)
            && (!event.is_null() || operation == libc::EPOLL_CTL_DEL)
        {
            let none = epoll_event { events: 0, u64: 0 };
            let event = if event.is_null() { none } else { event.read_unaligned() };
            table::mark_set(set);
            return socket.change_epoll((set, operation, fd, event), || {
                let mut event = event;
                next(set, operation, fd, &raw mut event)
            });
        }
        next(set, operation, fd, event)
    }
}

/// # Safety
/// As [`words`].
unsafe fn show_set(set: *mut fd_set, count: c_int) {
    // SAFETY: the caller's promise.
    let set = unsafe { words(set, count) }.to_vec();
    for one in listed(&[set, Vec::new(), Vec::new()], count) {
        show(one.fd);
    }
}

/// Waits as `select` does; `next` is the call of the kernel.
///
/// # Safety
/// As [`words`], for each set.
unsafe fn select_among(
    count: c_int,
    sets: [*mut fd_set; 3],
    limit: Option<Duration>,
    next: impl Fn([*mut fd_set; 3], Option<Duration>) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let given = sets.map(|set| unsafe { words(set, count) }.to_vec());
    let mut beside = listed(&given, count);
    let left = match quick(&mut beside, limit) {
        Ok(-1) => return -1,
        Ok(ready) => {
            // Sets do not show all that `poll` shows.
            let found: Vec<_> = beside.iter().filter(|one| is_selected(one)).collect();
            if found.len() == ready as usize {
                for (index, set) in sets.into_iter().enumerate() {
                    // SAFETY: the caller's promise.
                    let words = unsafe { words(set, count) };
                    words.fill(0);
                    for one in found.iter().filter(|one| one.events == SETS[index]) {
                        let (fd, bits) = (one.fd as usize, c_ulong::BITS as usize);
                        words[fd / bits] |= 1 << (fd % bits);
                    }
                }
                return found.len() as c_int;
            }
            limit
        }
        Err(left) => left,
    };
    if beside.iter().filter(|one| show(one.fd)).count() == 0 {
        return next(sets, left);
    }
    let restore = || {
        for (set, given) in sets.into_iter().zip(&given) {
            // SAFETY: the caller's promise.
            unsafe { words(set, count) }.copy_from_slice(given);
        }
    };
    let now = || {
        restore();
        next(sets, Some(Duration::ZERO))
    };
    wait(beside, left, now, |left| {
        restore();
        next(sets, left)
    })
}
