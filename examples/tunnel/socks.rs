//! The client's side of SOCKS5 (RFC 1928), without authentication, over a socket that never waits.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket};

use crate::relay::now;

/// The commands of section 4.
pub(crate) const CONNECT: u8 = 1;
pub(crate) const ASSOCIATE: u8 = 3;

/// A connection of the kernel to a destination, perhaps through a SOCKS5 server.
pub(crate) struct Upstream {
    pub(crate) stream: TcpStream,
    /// Our words to the server and how many of their bytes were sent, and its answer so far.
    socks: Option<(Vec<u8>, usize, Vec<u8>)>,
    /// The address that the server has for us.
    pub(crate) bound: Option<SocketAddr>,
}

impl Upstream {
    pub(crate) fn begin(
        socks: Option<SocketAddr>,
        to: SocketAddr,
        command: u8,
    ) -> io::Result<Upstream> {
        let stream = begin_connect(socks.unwrap_or(to))?;
        let words = [&[5, 1, 0, 5, command, 0][..], &address(to)].concat();
        let socks = socks.map(|_| (words, 0, Vec::new()));
        let bound = None;
        Ok(Upstream {
            stream,
            socks,
            bound,
        })
    }

    /// Whether the destination, or the server's association, is there.
    pub(crate) fn is_ready(&mut self) -> io::Result<bool> {
        if let Some(error) = self.stream.take_error()? {
            return Err(error);
        }
        let server = now(self.stream.peer_addr())?;
        while let (Some(server), Some((words, sent, answer))) = (server, &mut self.socks) {
            // The greeting, and after its answer the request.
            let due = if answer.len() < 2 { 3 } else { words.len() };
            self.stream.write_all(&words[*sent..due])?;
            *sent = due;
            let wanted = match answer[..] {
                [_, _, _, _, _, kind, len, ..] => 5 + address_len(kind, len),
                [_, _, ..] => 7,
                _ => 2,
            };
            let mut more = [0; 9 + 255];
            match now(self.stream.read(&mut more[..wanted - answer.len()]))? {
                None => return Ok(false),
                Some(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Some(len) => answer.extend(&more[..len]),
            }
            // The chosen method, and the outcome.
            if [1, 3]
                .iter()
                .any(|at| answer.get(*at).is_some_and(|byte| *byte != 0))
            {
                return Err(ErrorKind::ConnectionRefused.into());
            }
            if wanted > 7 && answer.len() == wanted {
                let bound = far_end(&answer[2..]).map(|(bound, _)| bound);
                self.bound = bound.or(Some(server)).map(|mut bound| {
                    if bound.ip().is_unspecified() {
                        bound.set_ip(server.ip());
                    }
                    bound
                });
                self.socks = None;
            }
        }
        Ok(server.is_some())
    }
}

/// A socket that never waits, with a connection that is being opened.
fn begin_connect(to: SocketAddr) -> io::Result<TcpStream> {
    let family = match to {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(family, SockType::Stream, flags, None)?;
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(socket.into()),
        Err(error) => Err(error.into()),
    }
}

/// Bytes of an address of this kind, with kind and port; `len` is the byte after the kind.
fn address_len(kind: u8, len: u8) -> usize {
    match kind {
        1 => 7,
        4 => 19,
        _ => 4 + usize::from(len),
    }
}

/// An address as requests and datagrams have it (section 5).
pub(crate) fn address(of: SocketAddr) -> Vec<u8> {
    let port = of.port().to_be_bytes();
    match of.ip() {
        IpAddr::V4(ip) => [&[1][..], &ip.octets(), &port].concat(),
        IpAddr::V6(ip) => [&[4][..], &ip.octets(), &port].concat(),
    }
}

/// The address in the header of an answer or of a whole datagram (sections 6 and 7), and the length
/// of the header. Not a name.
pub(crate) fn far_end(bytes: &[u8]) -> Option<(SocketAddr, usize)> {
    let &[_, _, 0, kind, first, ..] = bytes else {
        return None;
    };
    let len = 3 + address_len(kind, first);
    let (ip, port) = bytes.get(4..len)?.split_last_chunk()?;
    let ip = match kind {
        1 => IpAddr::from(<[u8; 4]>::try_from(ip).ok()?),
        4 => IpAddr::from(<[u8; 16]>::try_from(ip).ok()?),
        _ => return None,
    };
    Some(((ip, u16::from_be_bytes(*port)).into(), len))
}
