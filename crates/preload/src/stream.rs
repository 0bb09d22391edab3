//! TCP sockets that are ours.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::io::{IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::sync::{Arc, Mutex, OnceLock};

use dominoes_netstack::poller::direct::Watchable;
use dominoes_netstack::{Connecting, ReadHalf, SocketError, TcpListener, TcpStream, WriteHalf};

use crate::addr;
use crate::mirror::Mirror;
use crate::options;
use crate::socket::{Bound, Common, Live, Object, Socket, errno_of, families, lock, stack};
use crate::stack as process;
use crate::sys::{self, Errno, Fd};

/// The most connections that wait to be accepted.
const MOST_BACKLOG: c_int = 4096;

/// A TCP socket, in one of its states.
#[derive(Default)]
pub(crate) struct Tcp {
    pub(crate) listener: OnceLock<TcpListener>,
    pub(crate) opening: Mutex<Option<Connecting>>,
    pub(crate) stream: OnceLock<Stream>,
    /// Why opening failed, until the program has read it.
    error: AtomicI32,
    /// Whether opening has failed.
    has_failed: AtomicBool,
    /// Whether `connect` has returned that, so that the socket is as before.
    is_failure_announced: AtomicBool,
    /// Whether `connect` has returned 0.
    is_announced: AtomicBool,
    /// As [`Common::buffers`].
    buffers: Arc<[AtomicU32; 2]>,
}

/// An established connection.
pub(crate) struct Stream {
    pub(crate) whole: TcpStream,
    read: Mutex<ReadHalf>,
    write: Mutex<WriteHalf>,
    /// Whether a call has returned how the connection ended.
    is_end_known: AtomicBool,
}

impl Stream {
    fn new(whole: TcpStream) -> Result<Stream, Errno> {
        let (read, write) = whole.try_clone().map_err(|_| libc::ENOBUFS)?.split();
        Ok(Stream {
            whole,
            read: Mutex::new(read),
            write: Mutex::new(write),
            is_end_known: AtomicBool::new(false),
        })
    }

    /// The number of the error with which the connection ended, at the first call; later `None`.
    fn end(&self, error: SocketError) -> Option<Errno> {
        let is_first = !self.is_end_known.swap(true, Ordering::Relaxed);
        is_first.then(|| errno_of(error))
    }
}

impl Tcp {
    fn accepted(whole: TcpStream, parent: &Common) -> Result<Tcp, Errno> {
        let tcp = Tcp::default();
        options::limit_send_buffer(&whole, &parent.buffers);
        let _ = tcp.stream.set(Stream::new(whole)?);
        tcp.is_announced.store(true, Ordering::Relaxed);
        Ok(tcp)
    }

    /// Looks whether the connection that is being opened is established or has failed.
    fn settle(&self, mirror: &Arc<Mirror>) {
        let mut opening = lock(&self.opening);
        let Some(connecting) = &mut *opening else {
            return;
        };
        let error = match connecting.try_finish() {
            Ok(None) => return,
            Ok(Some(stream)) => {
                options::limit_send_buffer(&stream, &self.buffers);
                let watchable = Watchable::new(&stream);
                match Stream::new(stream) {
                    Ok(stream) => {
                        let _ = self.stream.set(stream);
                        *opening = None;
                        drop(opening);
                        mirror.follow(watchable);
                        return;
                    }
                    Err(errno) => errno,
                }
            }
            Err(error) => errno_of(error),
        };
        self.error.store(error, Ordering::Relaxed);
        self.has_failed.store(true, Ordering::Relaxed);
        // It stays, for the mirror shows that it has failed.
        *opening = None;
    }

    /// Returns and clears the pending error.
    fn take_open_error(&self, mirror: &Mirror) -> Option<Errno> {
        let error = self.error.swap(0, Ordering::Relaxed);
        (error != 0).then(|| {
            mirror.clear_error();
            error
        })
    }

    /// The value of `SO_ERROR`, which it clears.
    pub(crate) fn take_error(&self, mirror: &Arc<Mirror>) -> Errno {
        self.settle(mirror);
        if let Some(error) = self.take_open_error(mirror) {
            return error;
        }
        let Some(stream) = self.stream.get() else {
            return 0;
        };
        let ended = stream.whole.take_error().ok().flatten();
        let ended = ended.as_ref().and_then(SocketError::of);
        let error = ended.and_then(|error| stream.end(error));
        error.inspect(|_| mirror.clear_error()).unwrap_or(0)
    }

    /// The connection; waits while it is being opened, if the call may.
    ///
    /// # Errors
    /// `none` without a connection; the error of opening it; `EAGAIN`, `EINTR`.
    fn stream(&self, live: &Live, may_wait: bool, none: Errno) -> Result<&Stream, Errno> {
        loop {
            if let Some(stream) = self.stream.get() {
                return Ok(stream);
            }
            self.settle(&live.mirror);
            if self.stream.get().is_some() {
                continue;
            }
            if lock(&self.opening).is_none() {
                return Err(self.take_open_error(&live.mirror).unwrap_or(none));
            }
            if !may_wait {
                return Err(libc::EAGAIN);
            }
            live.mirror.wait_writable()?;
        }
    }

    pub(crate) fn recv(
        &self,
        common: &Common,
        live: &Live,
        into: &mut [IoSliceMut<'_>],
        flags: c_int,
    ) -> Result<usize, Errno> {
        if flags & libc::MSG_OOB != 0 {
            return Err(libc::EINVAL);
        }
        if flags & libc::MSG_ERRQUEUE != 0 {
            return Err(libc::EAGAIN);
        }
        let may_wait = common.may_wait(flags);
        let stream = match self.stream(live, may_wait, libc::ENOTCONN) {
            // The program has learned of the failure by other means than `connect`.
            Err(libc::ENOTCONN)
                if self.has_failed.load(Ordering::Relaxed)
                    && !self.is_failure_announced.load(Ordering::Relaxed) =>
            {
                return Ok(0);
            }
            stream => stream?,
        };
        let peeks = flags & libc::MSG_PEEK != 0;
        let wants_all = flags & libc::MSG_WAITALL != 0 && !peeks;
        let wanted: usize = into.iter().map(|part| part.len()).sum();
        let mut done = 0;
        loop {
            let mut read = lock(&stream.read);
            let result = match peeks {
                // As on Linux, this waits for bytes, too, and takes none.
                _ if wanted == 0 => read.try_peek(&mut [0]).map(|_| 0),
                true => into
                    .iter_mut()
                    .find(|part| !part.is_empty())
                    .map_or(Ok(0), |part| read.try_peek(part)),
                false if done == 0 => read.try_read_vectored(into),
                false => read_rest(&mut read, into, done),
            };
            drop(read);
            match result {
                Ok(len) => {
                    live.mirror.refresh();
                    done += len;
                    if !wants_all || len == 0 || done == wanted {
                        return Ok(done);
                    }
                    continue;
                }
                Err(SocketError::WouldBlock) => {}
                Err(_) if done > 0 => return Ok(done),
                Err(error) => {
                    live.mirror.clear_error();
                    return stream.end(error).map_or(Ok(0), Err);
                }
            }
            live.mirror.refresh();
            let waited = match may_wait {
                true => live.mirror.wait_readable(),
                false => Err(libc::EAGAIN),
            };
            match waited {
                Err(_) if done > 0 => return Ok(done),
                waited => waited?,
            }
        }
    }

    pub(crate) fn send(
        &self,
        common: &Common,
        live: &Live,
        from: &[IoSlice<'_>],
        flags: c_int,
    ) -> Result<usize, Errno> {
        if flags & libc::MSG_OOB != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let may_wait = common.may_wait(flags);
        let stream = match self.stream(live, may_wait, libc::EPIPE) {
            Err(libc::EPIPE) => return broken_pipe(flags),
            stream => stream?,
        };
        let wanted: usize = from.iter().map(|part| part.len()).sum();
        let mut done = 0;
        loop {
            let mut write = lock(&stream.write);
            let result = match (from, done) {
                _ if wanted == 0 => return Ok(0),
                ([one], done) => write.try_write(&one[done..]),
                (_, 0) => write.try_write_vectored(from),
                (_, done) => write_rest(&mut write, from, done),
            };
            drop(write);
            match result {
                Ok(len) => {
                    done += len;
                    if done == wanted {
                        live.mirror.refresh();
                        return Ok(done);
                    }
                }
                Err(SocketError::WouldBlock) => {}
                Err(_) if done > 0 => return Ok(done),
                Err(SocketError::ShutDown) => return broken_pipe(flags),
                Err(error) => match stream.end(error) {
                    Some(errno) => {
                        live.mirror.clear_error();
                        return Err(errno);
                    }
                    None => return broken_pipe(flags),
                },
            }
            live.mirror.refresh();
            let waited = match may_wait {
                true => live.mirror.wait_writable(),
                false => Err(libc::EAGAIN),
            };
            match waited {
                Err(_) if done > 0 => return Ok(done),
                waited => waited?,
            }
        }
    }

    pub(crate) fn accept(
        &self,
        common: &Common,
        live: &Live,
        flags: c_int,
    ) -> Result<(Fd, SocketAddr), Errno> {
        let listener = self.listener.get().ok_or(libc::EINVAL)?;
        loop {
            if live.mirror.may_read() {
                // Without a free descriptor, the connection stays in the queue.
                let (mirror, fd) = Mirror::new(flags, true)?;
                let accepted =
                    listener
                        .try_accept()
                        .map_err(errno_of)
                        .and_then(|(stream, peer)| {
                            live.mirror.refresh();
                            mirror.follow(Watchable::new(&stream));
                            let object = Object::Tcp(Box::new(Tcp::accepted(stream, common)?));
                            Socket::accepted((common, live), flags, object, (mirror, fd))?;
                            process::OURS.fetch_add(1, Ordering::Relaxed);
                            Ok((fd, peer))
                        });
                match accepted {
                    Err(error) => {
                        let _ = sys::close(fd);
                        if error != libc::EAGAIN {
                            return Err(error);
                        }
                    }
                    accepted => return accepted,
                }
            }
            live.mirror.refresh();
            if !common.may_wait(0) {
                return Err(libc::EAGAIN);
            }
            live.mirror.wait_readable()?;
        }
    }

    pub(crate) fn shutdown(&self, live: &Live, how: c_int) -> Result<(), Errno> {
        self.settle(&live.mirror);
        if let Some(listener) = self.listener.get() {
            if how != libc::SHUT_WR {
                listener.close();
                live.mirror.refresh();
            }
            return Ok(());
        }
        let stream = self.open_stream(live)?;
        let how_std = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            _ => Shutdown::Both,
        };
        stream.whole.shutdown(how_std).map_err(|_| libc::ENOTCONN)?;
        live.mirror.shut(how);
        Ok(())
    }

    /// The number of bytes to read.
    pub(crate) fn unread(&self, live: &Live) -> Result<usize, Errno> {
        self.settle(&live.mirror);
        if self.listener.get().is_some() {
            return Err(libc::EINVAL);
        }
        let unread = self.stream.get().map(|stream| lock(&stream.read).unread());
        Ok(unread.and_then(Result::ok).unwrap_or(0))
    }

    pub(crate) fn local(&self, common: &Common, live: &Live) -> SocketAddr {
        self.settle(&live.mirror);
        let stream = self
            .stream
            .get()
            .and_then(|one| one.whole.local_addr().ok());
        stream.unwrap_or_else(|| common.local())
    }

    pub(crate) fn peer(&self, live: &Live) -> Result<SocketAddr, Errno> {
        self.settle(&live.mirror);
        let stream = self.open_stream(live)?;
        stream.whole.peer_addr().map_err(|_| libc::ENOTCONN)
    }

    /// The connection, unless both directions have ended.
    fn open_stream(&self, live: &Live) -> Result<&Stream, Errno> {
        let stream = self.stream.get().ok_or(libc::ENOTCONN)?;
        let is_over = live.mirror.is_read_closed() && lock(&stream.write).all_acknowledged();
        match is_over || stream.is_end_known.load(Ordering::Relaxed) {
            true => Err(libc::ENOTCONN),
            false => Ok(stream),
        }
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.stream.get().is_some()
    }

    /// A further call of `connect`.
    fn connect_again(&self, common: &Common, live: &Live) -> Result<(), Errno> {
        self.settle(&live.mirror);
        if self.stream.get().is_some() {
            return match self.is_announced.swap(true, Ordering::Relaxed) {
                false => Ok(()),
                true => Err(libc::EISCONN),
            };
        }
        if self.listener.get().is_some() {
            return Err(libc::EISCONN);
        }
        if let Some(error) = self.take_open_error(&live.mirror) {
            self.is_failure_announced.store(true, Ordering::Relaxed);
            return Err(error);
        }
        match common.may_wait(0) {
            true => self.await_open(live),
            false => Err(libc::EALREADY),
        }
    }

    /// Waits until a connection is established.
    fn await_open(&self, live: &Live) -> Result<(), Errno> {
        match self.stream(live, true, libc::ECONNABORTED) {
            Ok(_) => {
                self.is_announced.store(true, Ordering::Relaxed);
                Ok(())
            }
            // After a timeout the connection is still being opened.
            Err(libc::EAGAIN) => Err(libc::EINPROGRESS),
            Err(libc::EINTR) => Err(libc::EINTR),
            Err(error) => {
                self.is_failure_announced.store(true, Ordering::Relaxed);
                Err(error)
            }
        }
    }
}

fn broken_pipe<T>(flags: c_int) -> Result<T, Errno> {
    if flags & libc::MSG_NOSIGNAL == 0 {
        sys::raise_broken_pipe();
    }
    Err(libc::EPIPE)
}

fn read_rest(
    read: &mut ReadHalf,
    into: &mut [IoSliceMut<'_>],
    mut done: usize,
) -> Result<usize, SocketError> {
    for part in into {
        if done < part.len() {
            return read.try_read(&mut part[done..]);
        }
        done -= part.len();
    }
    Ok(0)
}

fn write_rest(
    write: &mut WriteHalf,
    from: &[IoSlice<'_>],
    mut done: usize,
) -> Result<usize, SocketError> {
    for part in from {
        if done < part.len() {
            return write.try_write(&part[done..]);
        }
        done -= part.len();
    }
    Ok(0)
}

/// `bind` of a socket that may become ours: remembers the address.
///
/// # Errors
/// `EINVAL` if it is bound, `EADDRINUSE`.
pub(crate) fn bind(socket: &Arc<Socket>, fd: Fd, local: SocketAddr) -> Result<(), Errno> {
    let common = &socket.common;
    let mut bound = lock(&common.bound);
    if socket.live.is_some() || bound.is_some() {
        return Err(libc::EINVAL);
    }
    *bound = Some(Bound::new(local, socket.is_only_v6(fd), sys::sharing(fd))?);
    Ok(())
}

/// `listen` of a socket that is bound to an address of ours, or is ours.
///
/// # Errors
/// `EADDRINUSE`, `EINVAL` for a connection.
pub(crate) fn listen(socket: &Arc<Socket>, fd: Fd, backlog: c_int) -> Result<(), Errno> {
    let common = &socket.common;
    if let Some(live) = &socket.live {
        // Our backlog stays as it was.
        return match &live.object {
            Object::Tcp(tcp) if tcp.listener.get().is_some() => Ok(()),
            _ => Err(libc::EINVAL),
        };
    }
    let mut bound = lock(&common.bound);
    let bound = match &*bound {
        Some(bound) => Arc::clone(bound),
        None => {
            let new = Bound::new(common.unspecified(), socket.is_only_v6(fd), [false; 2])?;
            *bound = Some(Arc::clone(&new));
            new
        }
    };
    let local = SocketAddr::new(bound.local.ip().to_canonical(), bound.local.port());
    let is_only_v6 = socket.is_only_v6(fd);
    let backlog = backlog.clamp(1, MOST_BACKLOG) as u16;
    let listener = match (bound.shared_listener(), local.ip().is_unspecified()) {
        (Some(listener), _) => Ok(listener),
        (None, true) => stack()?.listen_for(families(local, is_only_v6), local.port(), backlog),
        (None, false) => stack()?.listen_on(local, backlog),
    };
    let listener = listener.map_err(errno_of)?;
    let _ = bound
        .listener
        .set(listener.try_clone().map_err(|_| libc::ENOBUFS)?);
    socket.become_ours(|shadow| {
        if common.has_options.load(Ordering::Relaxed) {
            let _ = listener.set_settings(options::settings(shadow.number(), common.domain));
            let _ = listener.set_tuning(options::tuning(shadow.number(), common));
        }
        let watchable = Watchable::new(&listener);
        let tcp = Tcp::default();
        let _ = tcp.listener.set(listener);
        Ok((Object::Tcp(Box::new(tcp)), watchable))
    })?;
    Ok(())
}

/// `connect` to an address of ours.
///
/// # Errors
/// As `connect`.
pub(crate) fn connect(socket: &Arc<Socket>, remote: SocketAddr) -> Result<(), Errno> {
    let common = &socket.common;
    if let Some(live) = &socket.live
        && let Object::Tcp(tcp) = &live.object
        && !(tcp.has_failed.load(Ordering::Relaxed) && tcp.error.load(Ordering::Relaxed) == 0)
    {
        return tcp.connect_again(common, live);
    }
    let local = common.local();
    let remote = addr::destination(remote);
    let local = match local.ip().is_unspecified() {
        true if remote.is_ipv4() => SocketAddr::new([0, 0, 0, 0].into(), local.port()),
        _ => SocketAddr::new(local.ip().to_canonical(), local.port()),
    };
    let socket = socket.become_ours(|shadow| {
        let connecting = stack()?.begin_connect_from(local, remote);
        let mut connecting = connecting.map_err(|error| match error {
            SocketError::Unreachable => libc::ENETUNREACH,
            // A host refuses this port.
            SocketError::PortZero => libc::ECONNREFUSED,
            other => errno_of(other),
        })?;
        if common.has_options.load(Ordering::Relaxed) {
            let _ = connecting.set_settings(options::settings(shadow.number(), common.domain));
            let _ = connecting.set_tuning(options::tuning(shadow.number(), common));
        }
        let watchable = Watchable::new(&connecting);
        let tcp = Tcp {
            buffers: Arc::clone(&common.buffers),
            ..Tcp::default()
        };
        *lock(&tcp.opening) = Some(connecting);
        Ok((Object::Tcp(Box::new(tcp)), watchable))
    })?;
    let Some(live) = &socket.live else {
        return Err(libc::ECONNABORTED);
    };
    match &live.object {
        Object::Tcp(_) if !common.may_wait(0) => Err(libc::EINPROGRESS),
        Object::Tcp(tcp) => tcp.await_open(live),
        Object::Udp(_) => Err(libc::ECONNABORTED),
    }
}
