//! The stack that [`TcpListener::bind`], [`TcpStream::connect`] and [`UdpSocket::bind`] use. They
//! correspond to the functions of `std::net` that use the host's stack.

use core::cell::RefCell;
use core::marker::PhantomData;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::io;
use std::net::ToSocketAddrs;
use std::sync::{PoisonError, RwLock};

use super::{Sockets, TcpListener, TcpStream, UdpSocket, interfaces};
use crate::error::SocketError;
use crate::log::request::{Address, Binding, Families};

thread_local! {
    static ENTERED: RefCell<Option<Sockets>> = const { RefCell::new(None) };
}

static DEFAULT: RwLock<Option<Sockets>> = RwLock::new(None);

/// The most connections that wait to be accepted by a listener of [`TcpListener::bind`], as in
/// `std::net`.
const BACKLOG: u16 = 128;

/// While this guard exists, its thread uses the sockets that it [entered](Sockets::enter).
#[must_use = "the sockets are left when this is dropped"]
pub struct Entered {
    before: Option<Sockets>,
    /// Keeps the guard on its thread.
    _thread: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let before = self.before.take();
        ENTERED.with(|entered| *entered.borrow_mut() = before);
    }
}

impl core::fmt::Debug for Entered {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Entered").finish_non_exhaustive()
    }
}

impl Sockets {
    /// Makes [`TcpListener::bind`], [`TcpStream::connect`] and [`UdpSocket::bind`] on this thread
    /// use these sockets until the guard is dropped. So code written for `std::net` only needs
    /// other imports.
    ///
    /// ```
    /// use dominoes_drivers::memory::{self, MemoryConfig};
    /// use dominoes_netstack::{Stack, TcpListener};
    ///
    /// let (device, _peer) = memory::pair(MemoryConfig::default());
    /// let stack = Stack::builder("10.0.0.1/24").start(device)?;
    /// let _entered = stack.sockets().enter();
    /// let listener = TcpListener::bind("10.0.0.1:0")?;
    /// assert_ne!(listener.local_addr()?.port(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn enter(&self) -> Entered {
        let entered = Some(self.clone());
        Entered {
            before: ENTERED.with(|place| place.replace(entered)),
            _thread: PhantomData,
        }
    }

    /// As [`Sockets::enter`], permanently and for every thread of the process that has not
    /// entered other sockets. The sockets of a stack that was shut down return
    /// [`SocketError::Down`].
    pub fn make_default(&self) {
        let mut default = DEFAULT.write().unwrap_or_else(PoisonError::into_inner);
        *default = Some(self.clone());
    }

    /// The sockets of this thread, or the default.
    ///
    /// # Errors
    /// [`SocketError::NoStack`] if there are none.
    pub fn current() -> Result<Sockets, SocketError> {
        let entered = ENTERED.with(|entered| entered.borrow().clone());
        let default = || {
            let default = DEFAULT.read().unwrap_or_else(PoisonError::into_inner);
            default.clone()
        };
        entered.or_else(default).ok_or(SocketError::NoStack)
    }

    /// Checks that a socket may be bound to `address`: one of ours, or any. Returns the bound
    /// address and its interface, if there are several.
    pub(super) fn check_local(
        &self,
        address: IpAddr,
    ) -> Result<(Option<usize>, Binding), SocketError> {
        let address = Address::from(address);
        let families = Families::bound_to(address);
        if address.is_unspecified() {
            return Ok((None, families.into()));
        }
        let found = interfaces::with_address(self.worlds(), address);
        let index = found.ok_or(SocketError::NotOurs)?;
        let has_several = self.world().shared.has_interfaces();
        let binding = Binding {
            families,
            address: Some(address),
        };
        Ok((has_several.then_some(index), binding))
    }
}

/// Tries all addresses that `addresses` resolves to, in order.
///
/// # Errors
/// The error of the last address; [`SocketError::NoAddress`] if there are none, or if `addresses`
/// is text that is no address. Errors of the system's resolver are passed on.
pub(super) fn each_address<T>(
    addresses: impl ToSocketAddrs,
    mut attempt: impl FnMut(SocketAddr) -> Result<T, SocketError>,
) -> io::Result<T> {
    let mut last = SocketError::NoAddress;
    let addresses = addresses
        .to_socket_addrs()
        .map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => SocketError::NoAddress.into(),
            _ => error,
        })?;
    for address in addresses {
        match attempt(address) {
            Ok(done) => return Ok(done),
            Err(error) => last = error,
        }
    }
    Err(last.into())
}

impl TcpListener {
    /// Listens with the sockets of this thread ([`Sockets::enter`]) or the default, at one of our
    /// addresses, which may be local to this host (127.0.0.1, `::1`). 0.0.0.0 means all addresses
    /// of IPv4 (RFC 1122 section 3.2.1.3), and `::` all addresses of both families. Port 0 means a
    /// free port. At most 128 connections of each group wait to be accepted.
    ///
    /// # Errors
    /// As [`Sockets::listen`]; [`SocketError::NotOurs`], [`SocketError::NoStack`]. The system's
    /// resolver resolves host names.
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<TcpListener> {
        let sockets = Sockets::current()?;
        each_address(address, |address| sockets.listen_on(address, BACKLOG))
    }
}

impl TcpStream {
    /// Opens a connection with the sockets of this thread ([`Sockets::enter`]) or the default, and
    /// waits until it is established.
    ///
    /// # Errors
    /// As [`Sockets::connect`]; [`SocketError::NoStack`].
    pub fn connect(address: impl ToSocketAddrs) -> io::Result<TcpStream> {
        let sockets = Sockets::current()?;
        each_address(address, |address| sockets.begin_connect(address)?.finish())
    }

    /// As [`TcpStream::connect`], and gives up after `timeout`.
    ///
    /// # Errors
    /// As [`Sockets::connect_timeout`]; [`SocketError::NoStack`].
    pub fn connect_timeout(address: &SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
        let sockets = Sockets::current()?;
        if timeout.is_zero() {
            return Err(SocketError::Invalid.into());
        }
        Ok(sockets.connect_timeout(*address, timeout)?)
    }
}

impl UdpSocket {
    /// Binds a socket of this thread's sockets ([`Sockets::enter`]) or the default to one of our
    /// addresses, which may be local to this host (127.0.0.1, `::1`). It receives datagrams to
    /// this address, without multicast and broadcast. 0.0.0.0 means all addresses of IPv4 (RFC
    /// 1122 section 3.2.1.3), and `::` all addresses of both families. Port 0 means a free port.
    ///
    /// # Errors
    /// As [`Sockets::bind_udp`]; [`SocketError::NotOurs`], [`SocketError::NoStack`].
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        let sockets = Sockets::current()?;
        each_address(address, |address| sockets.bind_udp_on(address))
    }
}
