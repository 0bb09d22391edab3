//! The sockets that [`TcpListener::bind`], [`TcpStream::connect`] and [`UdpSocket::bind`] use, as
//! the functions of these names in `std::net` use the host's.

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

/// Connections that wait to be accepted at a listener of [`TcpListener::bind`], as many as
/// `std::net` has.
const BACKLOG: u16 = 128;

/// While this lives, its thread uses the sockets that were [entered](Sockets::enter).
#[must_use = "the sockets are left when this is dropped"]
pub struct Entered {
    before: Option<Sockets>,
    /// It belongs to its thread.
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
    /// Lets [`TcpListener::bind`], [`TcpStream::connect`] and [`UdpSocket::bind`] on this thread
    /// use these sockets until the guard is dropped: code written for `std::net` needs only other
    /// imports then.
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

    /// As [`Sockets::enter`], for every thread of the process that has not entered others, and for
    /// good. The sockets of a stack that was shut down say [`SocketError::Down`].
    pub fn make_default(&self) {
        let mut default = DEFAULT.write().unwrap_or_else(PoisonError::into_inner);
        *default = Some(self.clone());
    }

    /// Those of this thread, or the default.
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

    /// Checks that a socket may be bound to `address`: one of ours, or any. Says what it is bound
    /// to, and at which of several interfaces.
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

/// Tries all addresses that `addresses` stands for, in their order.
///
/// # Errors
/// That of the last, or [`SocketError::NoAddress`] if there are none, or `addresses` is text that
/// is none. What the system's resolver says stays as it is.
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
    /// Listens at one of our addresses, those of this host alone (127.0.0.1, `::1`) among them, for
    /// connections to that address; at 0.0.0.0 (RFC 1122 section 3.2.1.3) for those of IPv4, or at
    /// `::` for those of both families; at a port or with 0 at one that is free, with the
    /// sockets of this thread ([`Sockets::enter`]) or the default. At most 128 connections of each
    /// group wait to be accepted.
    ///
    /// # Errors
    /// As [`Sockets::listen`]; [`SocketError::NotOurs`], [`SocketError::NoStack`]. Names of hosts
    /// are asked of the system's resolver.
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
    /// A socket at one of our addresses, those of this host alone (127.0.0.1, `::1`) among them,
    /// for datagrams to that address alone, none of groups and broadcasts; at 0.0.0.0 (RFC 1122
    /// section 3.2.1.3) for those of IPv4, or at `::` for those of both families; at a port or with
    /// 0 at one that is free, of the sockets of this thread ([`Sockets::enter`]) or the default.
    ///
    /// # Errors
    /// As [`Sockets::bind_udp`]; [`SocketError::NotOurs`], [`SocketError::NoStack`].
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        let sockets = Sockets::current()?;
        each_address(address, |address| sockets.bind_udp_on(address))
    }
}
